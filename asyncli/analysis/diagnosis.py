"""What ended the connections: every death of a run under one diagnosis, in words, or said to fit none.

Each mechanism that is known leaves its mark on the ages, idle times and request numbers of the dead (timers.py), on when they
died and on what the server says of itself meanwhile (moments.py), or on what came of their last heartbeats (silences.py). They
are asked in turn, what is borne out by the server's own configuration, counts or processes first; what one has explained is
gone for the next. Each is provoked on a real nginx in tests/integration (docs/faults.md: what was done, and what is said).
"""

from __future__ import annotations

import msgspec

from asyncli.analysis import moments, silences, timers
from asyncli.analysis.mortality import FEWEST, Case, Share, Words, left
from asyncli.analysis.totals import Totals
from asyncli.analysis.witness import Witness
from asyncli.findings.losses import befell
from asyncli.run import Run

#: What to do where no mechanism fits, by cause.
REMEDIES = {
    "reset": "see the server's error log, and firewalls between",
    "closed_idle": "see the server's idle timeout, and its free slots",
    "closed_awaiting": "see its error log; a reload or a crash of a worker does this",
    "closed_announced": "raise its request and age limits (nginx: keepalive_requests, keepalive_time)",
    "heartbeat_timeout": "see the server's load, and middle boxes that drop idle connections without a word",
    "other": "see the kernel's log",
}

#: The codes of what no mechanism explains: too few to tell, and what fits none.
UNKNOWN = ("too_few", "unexplained")

# In the order in which they are asked.
_MECHANISMS = (
    timers.ours,
    timers.errors,
    timers.keepalive_off,
    timers.client_header_timeout,
    timers.keepalive_timeout,
    moments.idle_reuse,
    moments.suspended,
    moments.certain_bursts,
    timers.likely_keepalive_off,
    timers.likely_client_header_timeout,
    moments.unlucky_reuse,
    timers.keepalive_requests,
    timers.keepalive_time,
    timers.idle_timeout,
    moments.likely_reuse,
    timers.closed_at_once,
    silences.cut_short,
    moments.likely_bursts,
    timers.forgotten,
    timers.lifetime,
    silences.client_cut,
    silences.silences,
)


class Diagnosis(msgspec.Struct, frozen=True):
    """``count`` deaths of one cause that one mechanism explains; code "unexplained" or "too_few" for what none does.

    ``certain``: the server's own configuration, counts or processes bear it out; else it is a likelihood, and worded as one.
    ``from_s`` and ``to_s``: the seconds of the run in which the first and the last of them died. ``incident``: the same number
    for what one event did by several causes, as a reload that closes the idle and resets the rest.
    """

    cause: str
    code: str
    count: int
    evidence: str
    remedy: str
    certain: bool
    from_s: float
    to_s: float
    incident: int = 0


def diagnose(run: Run, totals: Totals) -> list[Diagnosis]:
    """Every death of the run under one diagnosis: the counts of a cause's diagnoses add up to its deaths.

    The most frequent cause comes first, and within it the most frequent diagnosis.
    """
    if not totals.whole.deaths:
        return []
    case = Case(totals, run.ticks, run.plan, Witness(run), run.findings)
    for case.turn, mechanism in enumerate((*_MECHANISMS, _unexplained)):
        mechanism(case)
    found = []
    of_cause: dict[str, int] = {}
    incidents: dict[tuple[object, ...], int] = {}
    for (cause, code, turn, certain, place), (share, words) in case.shares.items():
        # What nobody explains is no event, and each of its causes stands alone.
        event = (code, turn, certain, place, cause if code in UNKNOWN else "")
        incident = incidents.setdefault(event, len(incidents) + 1)
        evidence, remedy = words(share)
        found.append(Diagnosis(cause, code, share.count, evidence, remedy, certain, share.from_s, share.to_s, incident))
        of_cause[cause] = of_cause.get(cause, 0) + share.count
    return sorted(found, key=lambda one: (-of_cause[one.cause], one.cause, -one.count, one.from_s))


def _unexplained(case: Case) -> None:
    few, none = UNKNOWN
    for cause in dict.fromkeys(cell.cause for cell in case.cells if cell.left):
        code = few if left(case.of(cause)) < FEWEST else none
        why = "too few to tell why" if code == few else "this fits nothing that asyncli knows"
        case.take_rest(cause, code, _unknown(cause, why))


def _unknown(cause: str, why: str) -> Words:
    def words(share: Share) -> tuple[str, str]:
        return f"{befell(cause, share.count)}{share.medians()}{share.when()}: {why}", REMEDIES.get(cause, REMEDIES["other"])

    return words
