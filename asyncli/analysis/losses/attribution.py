"""Every death of a run under one diagnosis: the mechanisms in the order in which they are asked, and what nobody claims."""

from __future__ import annotations

from functools import partial

import msgspec

from asyncli.analysis.levels import FEWEST
from asyncli.analysis.losses import bursts, recorded, timeouts, unanswered
from asyncli.analysis.losses.table import LossTable, Reason, left, reason
from asyncli.analysis.totals import Totals
from asyncli.findings.causes import SEE_OF_CAUSE
from asyncli.run import Run

# What the run itself or the server bears out comes first, then what one number of the dead shows, then what their moments show.
_MECHANISMS = (
    recorded.generator_lost,
    recorded.not_http,
    recorded.tls_error,
    recorded.http_error,
    recorded.client_cut,
    timeouts.keepalive_off,
    timeouts.configured,
    bursts.idle_reuse,
    recorded.suspended,
    partial(bursts.bursts, only_certain=True),
    timeouts.likely_idle_timeout,
    bursts.likely_reuse,
    timeouts.closed_at_once,
    unanswered.cut_short,
    timeouts.forgotten,
    partial(bursts.bursts, only_certain=False),
    timeouts.likely_keepalive_requests,
    timeouts.likely_age_limit,
    unanswered.unanswered,
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

    ``totals``: those of its ticks. The most frequent cause comes first, and within it the most frequent diagnosis.
    """
    if not totals.whole.deaths:
        return []
    table = LossTable(run, totals)
    for mechanism in (*_MECHANISMS, _unexplained):
        mechanism(table)
    found = []
    of_cause: dict[str, int] = {}
    incidents: dict[Reason, int] = {}
    for (cause, why), claimed in table.attributions.items():
        incident = incidents.setdefault(why, len(incidents) + 1)
        evidence, remedy, _ = claimed.words(why)
        found.append(
            Diagnosis(cause, why.code, claimed.count, evidence, remedy, why.certain, claimed.from_s, claimed.to_s, incident)
        )
        of_cause[cause] = of_cause.get(cause, 0) + claimed.count
    return sorted(found, key=lambda one: (-of_cause[one.cause], one.cause, -one.count, one.from_s))


def _unexplained(table: LossTable) -> None:
    for event, cause in enumerate(dict.fromkeys(cell.cause for cell in table.cells if cell.left)):
        cells = table.of(cause)
        code = "too_few" if left(cells) < FEWEST else "unexplained"
        table.claim(cells, reason(code, event=event, remedy=SEE_OF_CAUSE.get(cause, "see the kernel's log")))
