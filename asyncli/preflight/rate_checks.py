"""Checks whether the CPUs suffice for the plan's heartbeats, connects and handshakes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from asyncli.engine.spread import Spread
from asyncli.model.plan import Plan
from asyncli.model.planned_events import (
    DEFAULT_RECONNECT,
    PlannedEvent,
    policy_words,
    reconnect_of,
)
from asyncli.model.records import Check
from asyncli.model.units import format_many
from asyncli.preflight.demand import beats_per_s, ends
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.limit import limit, round_up

# The generator's CPU: 17 us a heartbeat, 50 to 117 us a connect; a server on this host takes about
# as much.
BEATS_PER_CPU_S = 60_000
CONNECTS_PER_CPU_S = 12_000
# A batch may be so late (s) in a valid run.
_LATE_S = 0.05
# Fully used CPUs take 1.7 times as long per connection as a single handshake with its connect: two
# CPUs do 870 a second where one handshake took 1.3 ms (bench/README.md).
_BUSY = 1.7
_SOURCE = "the number of usable CPUs"
_HANDSHAKE_RATE = "handshake_rate"
_COMEBACK_HANDSHAKES = "comeback_handshakes"
#: The codes of the checks for which one handshake was timed.
OF_ONE_HANDSHAKE = (_HANDSHAKE_RATE, _COMEBACK_HANDSHAKES)
# An event at the end of the hold leaves no rest of it: so short a share stands for none.
_SHORTEST_REST = 1e-3
# Who is back within the second has come at once: a report counts by seconds.
_AT_ONCE_S = 1.0


def rates(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    yield _heartbeat_rate(plan, spread, limits)
    yield _connect_rate(plan, spread, limits)
    have = _affordable(CONNECTS_PER_CPU_S, spread, limits)
    yield from _comeback_rate("comeback_rate", "connects", plan, limits, have)
    yield from _comeback_time(plan)


def _comeback_time(plan: Plan) -> Iterator[Check]:
    """Check that the hold leaves all clients of each event their first try to come back. A plan
    whose hold has no planned end leaves any.
    """
    if plan.hold_s is None:
        return
    policy = reconnect_of(plan.reconnect or DEFAULT_RECONNECT)
    turn_s = policy.soonest_s + policy.spread_s
    number = 0
    need_s = 0.0
    for place, event in enumerate(plan.planned_events, start=1):
        if event.do not in ("drop", "storm") and event.then != "reconnect":
            continue
        hold_s = _hold_for(event, turn_s)
        if hold_s > need_s:
            number = place
            need_s = hold_s
    if not number:
        return
    how = f"clients of event {number} come back by {policy_words(policy)}"
    if need_s > plan.hold_s:
        how += ": whose turn comes after the hold is not back in it, so when all are is not known"
    yield limit(
        "comeback_time",
        "hold for all to come back from the plan's events",
        "s",
        plan.hold_s,
        need_s,
        short="warn",
        detail=how,
        remedy=f"--hold {math.ceil(need_s)}s or more, or a --reconnect with shorter waits",
    )


def _hold_for(event: PlannedEvent, turn_s: float) -> float:
    """How long a hold (s) has to be in which each client of an event had its turn to come back,
    ``turn_s`` after its end at the latest.
    """
    lasts_s = (event.for_s or 0.0) + turn_s
    if event.at_s is not None:
        return event.at_s + lasts_s
    return lasts_s / max(_SHORTEST_REST, 1 - (event.at_share or 0.0))


def _comeback_rate(
    code: str, what: str, plan: Plan, limits: Limits, have: float | None
) -> Iterator[Check]:
    """Check that asyncli can connect as fast as the greatest event of the plan has its clients come
    back: else the pace of the comeback is asyncli's own.
    """
    share = 0.0
    for event in plan.planned_events:
        if event.do in ("drop", "storm") or event.then == "reconnect":
            share = max(share, event.share)
    if not share:
        return
    policy = reconnect_of(plan.reconnect or DEFAULT_RECONNECT)
    coming = math.ceil(share * plan.connections)
    within_s = max(_AT_ONCE_S, policy.spread_s)
    need = math.ceil(coming / within_s)
    detail = ""
    remedy = ""
    if have is not None:
        clients = format_many(coming, "client")
        how = "at once" if policy.how == "now" else f"by {policy_words(policy)}"
        detail = f"{clients} come back {how}, within {within_s:g} s"
        takes_s = coming / max(1.0, have)
        if need > have:
            detail += (
                f"; the CPUs here need {takes_s:.2g} s for that, so the pace may be theirs; the "
                "report says with the event who decided it"
            )
        remedy = f"--reconnect jitter:{math.ceil(takes_s)}s or more, or more CPUs"
    yield _pace(code, f"{what} of the plan's events (CPU)", have, need, detail, remedy)


def _heartbeat_rate(plan: Plan, spread: Spread, limits: Limits) -> Check:
    cost = "17 us of CPU per heartbeat at full load"
    have = _affordable(BEATS_PER_CPU_S, spread, limits)
    flag = ""
    if have is not None:
        flag = f"--keepalive {math.ceil(4 * plan.connections / have)}"
    return _rate("heartbeat", have, beats_per_s(plan), cost, flag, spread, limits)


def _connect_rate(plan: Plan, spread: Spread, limits: Limits) -> Check:
    cost = "50 to 117 us of CPU per connect at full load"
    have = _affordable(CONNECTS_PER_CPU_S, spread, limits)
    flag = ""
    if have is not None:
        flag = f"--interval {math.ceil(1e3 * plan.batch / have)}ms"
    return _rate("connect", have, plan.asked_per_s, cost, flag, spread, limits)


def _pace(code: str, what: str, have: float | None, need: float, detail: str, remedy: str) -> Check:
    """A check of what the CPUs can do in a second, which only makes a run late."""
    return limit(
        code,
        what,
        "a second",
        have,
        need,
        short="warn",
        source=_SOURCE,
        detail=detail,
        remedy=remedy,
    )


def _affordable(per_cpu_s: float, spread: Spread, limits: Limits) -> float | None:
    """How many a second the usable CPUs allow; None where these are unknown."""
    if limits.cpu_time is None:
        return None
    return per_cpu_s * limits.cpu_time / ends(spread)


def _rate(
    event: str,
    have: float | None,
    need: float,
    cost: str,
    flag: str,
    spread: Spread,
    limits: Limits,
) -> Check:
    """``have``: :func:`_affordable`; ``flag``: what makes it suffice."""
    detail = ""
    remedy = ""
    if have is not None and limits.cpu_time is not None:
        detail = _cpus(spread, limits.cpu_time, cost)
        remedy = f"{flag} or longer, or more CPUs"
        if need > have:
            detail += f"; {event}s will be late, and the lateness is recorded"
    return _pace(f"{event}_rate", f"{event} rate (CPU)", have, need, detail, remedy)


def _cpus(spread: Spread, cpu_time: float, cost: str) -> str:
    if spread.local:
        return f"{cpu_time:g} CPUs, {cost}, and the server needs about as much"
    return f"{cpu_time:g} CPUs, {cost}"


def handshake_rates(
    plan: Plan, spread: Spread, limits: Limits, handshake_s: float, cpu_s: float
) -> Iterator[Check]:
    """Check the ramp, and the events of the plan, against one measured TLS handshake, which took
    ``handshake_s`` and ``cpu_s`` of our CPU time.

    Its ends take turns: with both on an idle host, ``handshake_s`` is the CPU time of both. At the
    ramp's end heartbeats need CPU time as well.
    """
    if spread.local:
        busy_s = _BUSY * handshake_s
        where = "at both ends"
    else:
        busy_s = _BUSY * cpu_s
        where = "here"
    detail = f"{1e3 * busy_s:.2g} ms of CPU per handshake {where}, measured once"
    # All must be done within the ramp and the permitted lateness of a batch: a few connections need
    # no rate.
    ramp_s = plan.connections / plan.asked_per_s
    need = math.ceil(plan.connections / (ramp_s + _LATE_S))
    have = None
    remedy = ""
    if limits.cpu_time is not None:
        beats = beats_per_s(plan)
        of_beats = beats * ends(spread) / BEATS_PER_CPU_S
        have = int(max(0.0, limits.cpu_time - of_beats) / busy_s)
        cpus = f"{limits.cpu_time:g} CPUs"
        detail += f", on {cpus} that also do {round_up(beats):,} heartbeats a second"
        if need > have:
            detail += "; a faster ramp is late, and the lateness is recorded"
        remedy = f"--ramp {max(1, int(0.7 * have))}/s or less, or more CPUs"
    yield _pace(_HANDSHAKE_RATE, "TLS handshake rate (CPU)", have, need, detail, remedy)
    yield from _comeback_rate(_COMEBACK_HANDSHAKES, "TLS handshakes", plan, limits, have)
