"""In the time of which events of a plan something was. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from asyncli.analysis.constants import PART
from asyncli.findings.event_words import EventWords, MarkWords
from asyncli.model.records import CHURN, RunEvent
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run


def events_begun_in(run: Run, from_s: float, *, within_s: float = 0.0) -> list[EventWords]:
    """The events in whose time that began which is first seen in the second after ``from_s``, in
    the order of their instants. ``within_s``: for how long after its end a command counts at least
    (s).
    """
    events = []
    for event in _events(run):
        began_s, end_s = time_of(run, event, within_s)
        if began_s - TICK_S < from_s <= end_s:
            events.append(words_of(event))
    return events


def mark_before(run: Run, from_s: float) -> MarkWords | None:
    """The last mark in the second after ``from_s``, or so shortly before it that what it tells of
    had not settled; None without one.
    """
    last = None
    for event in run.events:
        is_near = from_s - EVENT_SETTLES_S <= event.at_s <= from_s + TICK_S
        if event.kind == "mark" and is_near:
            last = event
    if last is None:
        return None
    return {"text": last.text, "before_s": from_s - last.at_s}


class InTime(NamedTuple):
    """How many of something came in the time of these events, of all."""

    events: list[EventWords]
    came: int


def events_with_most(run: Run, counts: Sequence[tuple[float, int]]) -> InTime:
    """The events in whose time most came of what was counted in the seconds that end at these
    instants: those in whose time a tenth came or more; none where these have fewer than half.
    """
    of = sum(count for _, count in counts)
    spans = []
    events = []
    for event in _events(run):
        began_s, end_s = time_of(run, event)
        span = (began_s, end_s + TICK_S)
        if _count_in(counts, [span]) >= max(1.0, PART * of):
            spans.append(span)
            events.append(words_of(event))
    count = _count_in(counts, spans)
    if 2 * count < of:
        return InTime([], 0)
    return InTime(events, count)


def _count_in(counts: Sequence[tuple[float, int]], spans: Sequence[tuple[float, float]]) -> int:
    """How many came in any of the spans."""
    total = 0
    for t_s, count in counts:
        if any(began_s < t_s <= end_s for began_s, end_s in spans):
            total += count
    return total


def time_of(run: Run, event: RunEvent, within_s: float = 0.0) -> tuple[float, float]:
    """From when to when (s) an event of the plan lasts: a command until it has ended and what it
    did has settled, also where another event begins meanwhile; another one for its window.
    """
    window = run.event_windows.get(event.fields["number"])
    end_s = event.at_s
    if window is not None:
        end_s = math.inf if window.end_s is None else window.end_s
    if event.kind == "run":
        command_end_s = run.stop_s if event.end_s is None else event.end_s
        end_s = max(end_s, command_end_s + max(EVENT_SETTLES_S, within_s))
    return event.at_s, end_s


def words_of(event: RunEvent) -> EventWords:
    """What findings say of an event."""
    return {"number": event.fields["number"], "kind": event.kind}


def _events(run: Run) -> list[RunEvent]:
    """The events of the plan that did something, in the order of their instants."""
    events = []
    for event in run.events:
        number = event.fields.get("number")
        is_of_plan = isinstance(number, int) and number != CHURN and event.kind != "mark"
        is_left_out = event.kind == "run" and number not in run.commands
        if is_of_plan and not is_left_out:
            events.append(event)
    return sorted(events, key=lambda event: event.at_s)
