"""Who decided how long the clients of a storm or a drop took to be back: by what was measured, in
the order in which :mod:`asyncli.analysis.storm_forecast` asks it of the laws. Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncli.analysis.constants import HALF, MISSED_S
from asyncli.analysis.standstill import stood_still_s
from asyncli.analysis.storm_bounds import (
    MARGINS,
    StormCpu,
    connected_late,
    cpu_use,
    dropped_between,
    has_come_back,
    tester_cpu_s,
    took_long,
    waited_for_server_s,
)
from asyncli.model.planned_events import DEFAULT_RECONNECT, reconnect_of
from asyncli.model.records import EventCounts, Gap
from asyncli.model.run import Run

#: The waits of the clients, the listen queue, the server, asyncli itself, the CPUs of the host that
#: both are on, or that the server stood still.
PacedBy = Literal["policy", "queue", "server", "asyncli", "host", "standstill"]


class EventPace(msgspec.Struct, frozen=True):
    """``by``: who decided how long the comeback took; null: nothing tells. ``generator_cpu_s``:
    asyncli's CPU time while the event lasted (s). ``others``: where ``by`` is the host, which share
    of its busy CPUs other programs had.
    """

    by: PacedBy | None
    generator_cpu_s: float
    others: float = 0.0


def event_pace(run: Run, number: int, window: Gap, counts: EventCounts) -> EventPace:
    """Of the event ``number``, which has these counts and lasted for ``window``."""
    spent_s = tester_cpu_s(run, window.start_s, window.end_s or run.stop_s)
    planned = run.plan.event_numbered(number)
    if planned is None or planned.do not in ("drop", "storm") or not has_come_back(counts):
        return EventPace(None, spent_s)
    if counts.error_answers:
        # The server was there, and would not serve them yet.
        return EventPace(None, spent_s)
    all_s = counts.back_ms.greatest / 1e3
    policy = reconnect_of(run.plan.reconnect or DEFAULT_RECONNECT)
    if policy.soonest_s + policy.spread_s >= (1 - MARGINS.waited) * all_s:
        return EventPace("policy", spent_s)
    back_s = window.start_s + all_s
    still_s = stood_still_s(run, window.start_s, back_s)
    if still_s:
        return EventPace(_standstill_if_most(still_s, all_s), spent_s)
    dropped = dropped_between(run, window.start_s, back_s) or 0.0
    if dropped > (1 - MARGINS.came_back) * counts.ended:
        return EventPace(_queue_if_served(counts, policy.soonest_s), spent_s)
    cpu = cpu_use(run, window.start_s, back_s)
    by = _slower(counts, cpu, all_s)
    if by == "host":
        return EventPace(by, spent_s, cpu.others)
    return EventPace(by, spent_s)


def _standstill_if_most(still_s: float, all_s: float) -> PacedBy | None:
    """That the server stood still, if it did for half of the time or more; else nothing tells what
    decided the rest: a full queue, and who waits for another try, may be its consequence too.
    """
    return "standstill" if still_s >= HALF * all_s else None


def _queue_if_served(counts: EventCounts, soonest_s: float) -> PacedBy | None:
    """The listen queue, if the server took from it what there was room for from the first moment
    on; else nothing tells why it was full.
    """
    first_s = counts.back_ms.least / 1e3 - soonest_s
    return "queue" if first_s < MISSED_S else None


def _slower(counts: EventCounts, cpu: StormCpu, all_s: float) -> PacedBy | None:
    """Which of asyncli, the server and their CPUs was slower than the clients."""
    if counts.failures or counts.phantoms:
        # Some waited for another try.
        return None
    if cpu.tester_busy or connected_late(counts.lateness_us.greatest / 1e6, all_s):
        return "asyncli"
    if not took_long(waited_for_server_s(counts), all_s):
        return None
    if cpu.host_busy:
        return "host"
    return "server"
