"""Of the connections that are held at the end: how many nobody has heard of since a fault, or since the hold began?

A connection that sleeps is held as far as its last answer says. What owes an answer at the drain gives it there, or is lost.
"""

from __future__ import annotations

import msgspec

from asyncli.analysis.mortality import began_s
from asyncli.analysis.totals import Totals
from asyncli.core.histogram import bounds
from asyncli.findings import latency
from asyncli.plan import Plan
from asyncli.records import Finding
from asyncli.run import Run


class Unheard(msgspec.Struct, frozen=True):
    """``count`` connections are held that were last answered before ``since_s`` (s on the run's clock), ``ago_s`` before the end.

    ``fault``: whether the first heartbeat that stayed unanswered was sent then; else the hold began then.
    """

    count: int
    since_s: float
    ago_s: float
    fault: bool


def unheard(run: Run, totals: Totals) -> Unheard | None:
    """What of the held was not heard; None where each was, or the run never came to its drain."""
    hold, drain = run.phase("hold"), run.phase("drain")
    if hold is None or drain is None:
        return None
    faults = [began_s(t_s, run.plan.timeout_s) for t_s, tick in run.ticks if "heartbeat_timeout" in tick.deaths]
    # Of a silence of all to the end, however long after the first fault, its beginning counts.
    answered_s = max((t_s for t_s, tick in run.ticks if tick.answered), default=hold.start_s)
    silent = any(one >= answered_s - 1.0 for one in faults) and answered_s < drain.start_s
    since_s = max(hold.start_s, min(faults, default=hold.start_s), answered_s if silent else hold.start_s)
    ago_s = drain.start_s - since_s
    # A bucket is 1/64 of its value wide: one that reaches into the time before counts, as doubt does.
    count = sum(n for key, n in totals.whole.heard_ms.counts.items() if bounds(key)[1] >= ago_s * 1e3)
    return Unheard(count, since_s, ago_s, since_s > hold.start_s) if count else None


def not_heard(seen: Unheard | None, totals: Totals, plan: Plan) -> list[Finding]:
    """The finding, with the hold that would have heard every one."""
    if seen is None:
        return []
    enough_s = plan.keepalive_s / 2 + plan.timeout_s
    return [latency.not_heard(seen.count, totals.held, seen.since_s, seen.ago_s, seen.fault, enough_s)]
