"""When everything is read for the sake of an event: costly probes are read seldom, and what an
event costs shows only in readings right before it and at its end. Pure.
"""

from __future__ import annotations

from asyncli.model.planned_events import PlannedEvent
from asyncli.model.run import EVENT_SETTLES_S, TICK_S

#: So long before an event (s).
_BEFORE_S = 0.5
#: So long before the end of a stall or a silence (s): its last second is one of reading again.
_BEFORE_END_S = TICK_S
#: So long after its end: what the server then noticed.
_AFTER_S = 0.5
#: When memory has settled, as a share of the time that this takes.
_SETTLED = 0.8
#: At these shares of a stall: whether its cost still grows.
_IN_STALL = (0.5, 0.75)
#: One such reading is of other instants that are so near (s).
APART_S = 0.4


def reading_instants_s(
    events: list[tuple[float, PlannedEvent]], held_s: float = 0.0
) -> list[float]:
    """When to read everything, in seconds after the hold's start, in order. ``events``: each with
    when it is due. ``held_s``: what of the hold is over.
    """
    wanted: list[float] = []
    for due_s, event in events:
        if due_s > held_s and event.do != "mark":
            wanted.append(max(held_s, due_s - _BEFORE_S))
            wanted += _after_begin_s(due_s, event)
    instants: list[float] = []
    for instant_s in sorted(wanted):
        if instants and instant_s - instants[-1] < APART_S:
            continue
        if instant_s >= held_s:
            instants.append(instant_s)
    return instants


def _after_begin_s(due_s: float, event: PlannedEvent) -> list[float]:
    if event.do == "run":
        return []
    if event.for_s is None:
        return [due_s + _SETTLED * EVENT_SETTLES_S]
    end_s = due_s + event.for_s
    instants = []
    if event.do == "stall":
        instants += [due_s + share * event.for_s for share in _IN_STALL]
    last_s = end_s - _BEFORE_END_S
    if last_s > due_s:
        instants.append(last_s)
    return [*instants, end_s + _AFTER_S, end_s + _SETTLED * EVENT_SETTLES_S]
