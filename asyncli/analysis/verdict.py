"""The verdict of a run, by a rule that is printed with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from asyncli.analysis.losses.slowness import Unheard
from asyncli.analysis.totals import Totals, errors
from asyncli.findings.losses import lost_with
from asyncli.plan import Plan
from asyncli.records import ABORTED, CUT, NOTHING_LISTENS, RESUMED, STOPPED, Finding, Tick
from asyncli.units import format_duration, format_many

Verdict = Literal["passed", "failed", "invalid", "untested"]

RULE = (
    "passed: as many held at the hold's end as were asked for, and none lost; invalid: the generator was the limit; "
    "untested: no heartbeat was ever answered; else failed"
)
#: The numbers on which the rule is; where the user limits one of them, that limit stands in the rule's place.
LOST, HELD, OURS = "connections.lost", "connections.held", "connections.deaths.generator_lost"
# Attempts that failed for want of these never left this host.
_SHORT_OF = ("no_ports", "no_descriptors")


class Judgement(msgspec.Struct):
    """The verdict and, in one line of words, what decided it."""

    verdict: Verdict
    why: str


def judge(
    plan: Plan,
    totals: Totals,
    *,
    saturated: bool,
    complete: bool,
    findings: Sequence[Finding] = (),
    limited: Collection[str] = (),
    crossed: Sequence[str] = (),
    asleep: int = 0,
    unheard: Unheard | None = None,
) -> Judgement:
    """The verdict, first match wins; ``findings``: those of the run file, where the user who stopped the run is named.

    ``limited``: the keys that the user set limits to, and of these limits ``crossed``, in words, the gravest first. ``asleep``:
    how many were lost because this machine was suspended. ``unheard``: of the held, what was not heard; a verdict that passes
    names it.

    1. untested: nothing ever connected, or no heartbeat was ever answered.
    2. invalid: the generator was the limit. It passed a stated bound (``saturated``), lost connections with a process or host
       of its own, though no limit says how many may be, lost connections only because its machine was suspended, or could not
       open what was asked for want of its own ports or descriptors.
    3. failed: an established connection was lost, and no limit says how many may be; a limit of the user's was crossed. Both are
       said, the loss first; and where none was lost, that fewer are held than were asked for.
    4. invalid: the run was killed (not ``complete``), so its hold has no end to be judged at.
    5. failed: fewer are held at the hold's end than were asked for, and no limit says how few may be.
    6. passed.
    """
    whole, held, asked = totals.whole, totals.held, plan.connections
    by_hand = f"; {stop}" if (stop := interrupted(findings)) else ""
    if not whole.opened:
        if here := next((one.evidence for one in findings if one.code == NOTHING_LISTENS), None):
            return Judgement("untested", here)
        return Judgement("untested", f"nothing ever connected{by_hand}")
    if not whole.answered:
        opened, sent = format_many(whole.opened, "connection"), format_many(whole.sent, "heartbeat")
        return Judgement("untested", f"nothing ever answered: {opened} opened, {sent} sent{by_hand}")
    # There with a count of 0 when the worker held nothing yet: its share was never opened all the same.
    gone = whole.deaths.get("generator_lost")
    starved = {cause: whole.failures[cause] for cause in _SHORT_OF if whole.failures.get(cause)}
    ours = []
    if gone is not None and OURS not in limited:
        ours.append(f"asyncli itself lost {gone.count:,} connections with {lost_with(findings, 'its').evidence}")
    if saturated:
        ours.append("the generator was the limit, so the numbers are its own rather than the server's")
    if ours:
        return Judgement("invalid", "; and ".join(ours))
    if asleep and asleep == whole.lost:
        return Judgement("invalid", f"this machine was suspended, and lost {asleep:,} connections by that and none else")
    if held < asked and starved:
        names = " and ".join(cause.removeprefix("no_") for cause in starved)
        return Judgement("invalid", f"the generator ran out of {names}: it opened {held:,} of {asked:,}")
    theirs = whole.lost - (gone.count if gone is not None else 0)
    cut, aborted = CUT in ended_by_user(findings), any(one.code == ABORTED for one in findings)
    reasons = []
    if theirs and LOST not in limited:
        reasons.append(f"{_part(theirs, whole.opened, 'established connection')} lost")
    elif held < asked and HELD not in limited and complete and not cut and not (crossed and aborted):
        reasons.append(f"{_part(held, asked, 'connection')} held at the end{by_hand}")
    if reasons or crossed:
        return Judgement("failed", "; ".join((*reasons, *crossed)))
    if cut:
        return Judgement("invalid", stop)
    if not complete:
        return Judgement("invalid", f"the run has no end: it goes on, or it was killed{by_hand}")
    lost = f"{whole.lost:,} were lost, as many as --fail-if allows" if whole.lost else "none was lost"
    # It had its replacement, so all are held; but who reads this line alone should know.
    failed = sum(whole.failures.values())
    retried = f"; {format_many(failed, 'attempt')} to connect failed on the way" if failed else ""
    # With --first-beat sleep some may never have been heard at all.
    silent = f", {unheard.count:,} of them not heard in the last {format_duration(unheard.ago_s)} of the hold" if unheard else ""
    said = f"{_part(held, asked, 'connection')} held to the end{silent}, and {lost}{retried}{by_hand}"
    return Judgement("passed", said + _answered_with_errors(whole))


def _part(count: int, of: int, one: str) -> str:
    """``1 of 1 connection was``, ``3 of 1,200 connections were``."""
    return f"{count:,} of {of:,} {one if of == 1 else one + 's'} {'was' if 1 in (count, of) else 'were'}"


def _answered_with_errors(whole: Tick) -> str:
    """What a verdict on connections says of the work they did: "" where no answer was an error."""
    bad = errors(whole)
    if not bad:
        return ""
    statuses = ", ".join(str(status) for status in sorted(bad))
    return f"; but {sum(bad.values()):,} of {whole.answered:,} heartbeats were answered with errors ({statuses})"


def interrupted(findings: Sequence[Finding]) -> str:
    """How and when the user ended the run before its plan did, the last of it; "" where nobody did, or it was resumed."""
    said = ended_by_user(findings)
    return said.get(CUT) or said.get(STOPPED, "")


def ended_by_user(findings: Sequence[Finding]) -> dict[str, str]:
    """How the user ended it, by the code of the finding; what a run that was gone on with said before that is over."""
    last = max((place for place, one in enumerate(findings) if one.code == RESUMED), default=0)
    return {one.code: one.evidence for one in findings[last:] if one.code in (STOPPED, CUT)}
