"""In the time of which events of a plan something was. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from asyncli.analysis.constants import FEWEST, HALF, PART
from asyncli.findings.event_words import EventWords, MarkWords
from asyncli.model.records import CHURN, Gap, RunEvent
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run, answered_between


def events_begun_in(run: Run, from_s: float) -> list[EventWords]:
    """The events to which that belongs which is first seen in the second after ``from_s``, in the
    order of their instants; none where none was near.

    Of those that were at work it is the one that began last: what began with it or after it can be
    its work, and an earlier one, as a command that only goes on, did nothing new. One that was over
    then, but had not settled, may be the reason too if it began later than that one, and if the
    user made no mark since its end.
    """
    return [words_of(near.event) for near in _near(times_of_events(run), run, from_s)]


def events_of_silence(run: Run, from_s: float, times: Sequence[EventTime]) -> list[EventWords]:
    """The events to which a silence belongs: the second that ended at ``from_s`` is the last one
    with an answer. The instant of that, or where it was not recorded how many came in that second,
    tells when the silence began; events are left out by whose beginning more answers were due since
    then than chance may leave out. ``times``: of all events, which a caller asks for once.
    """
    since_s = from_s - TICK_S
    usual = run.ticks_between(since_s - EVENT_SETTLES_S, since_s + TICK_S / 2)
    last = run.ticks_between(from_s - TICK_S / 2, from_s + TICK_S / 2)
    came = sum(tick.answered for _, tick in last)
    per_s = sum(tick.answered for _, tick in usual) / max(1, len(usual))
    instants = [answered_between(*row) for row in last]
    began_s = from_s
    if instants and instants[-1] is not None:
        _, began_s = instants[-1]
        came = 0
        since_s = began_s
    elif came < per_s:
        began_s = since_s + came / per_s
    before = [time for time in times if _is_possible(came, per_s * (time.began_s - since_s))]
    near = _near(before, run, began_s) or _near(times, run, from_s)
    return [words_of(time.event) for time in near]


def _is_possible(came: int, due: float) -> bool:
    """Whether so many answers may have come where so many were due; by three times the standard
    error of a count.
    """
    return due - came < max(FEWEST, 3 * math.sqrt(max(0.0, due)))


def events_begun_by(run: Run, read_s: float) -> list[EventWords]:
    """The events to which that belongs which the reading at ``read_s`` is the first to show. It was
    asked for then, and shows what was so a moment later, on a busy host up to half a second: where
    no event had begun, it may be the work of one that began meanwhile.
    """
    begun = events_begun_in(run, read_s - TICK_S)
    return begun or events_begun_in(run, read_s - TICK_S / 2)


class EventTime(NamedTuple):
    """An event: when it began, when it was over, and when what it did has settled (s)."""

    event: RunEvent
    began_s: float
    over_s: float
    settled_s: float

    @property
    def number(self) -> int:
        number: int = self.event.fields["number"]
        return number


def times_of_events(run: Run) -> list[EventTime]:
    """Those of all events of the plan that did something, in the order of their instants."""
    return [_time_of(run, event, run.event_windows) for event in _events(run)]


def _time_of(run: Run, event: RunEvent, windows: Mapping[int, Gap]) -> EventTime:
    """A command is over when it has ended and all are back whom the server ended meanwhile, and has
    settled some time after its end, also where another event begins meanwhile; of another event the
    window has both.
    """
    window = windows.get(event.fields["number"])
    window_s = event.at_s
    if window is not None:
        window_s = math.inf if window.end_s is None else window.end_s
    if event.kind != "run":
        return EventTime(event, event.at_s, window_s, window_s)
    command_s = run.stop_s if event.end_s is None else event.end_s
    over_s = max(command_s, window_s)
    return EventTime(event, event.at_s, over_s, max(over_s, command_s + EVENT_SETTLES_S))


def _near(times: Sequence[EventTime], run: Run, from_s: float) -> list[EventTime]:
    """As of :func:`events_begun_in`."""
    near = [time for time in times if time.began_s - TICK_S < from_s <= time.settled_s]
    if not near:
        return []
    at_work = [time for time in near if from_s <= time.over_s]
    latest = max(at_work, key=lambda time: time.began_s, default=None)
    mark = _mark_before(run, from_s)
    named = []
    for time in near:
        if time is latest:
            named.append(time)
            continue
        is_earlier = latest is not None and time.began_s < latest.began_s
        is_before_mark = mark is not None and time.over_s < mark.at_s
        if time not in at_work and not is_earlier and not is_before_mark:
            named.append(time)
    return named


def mark_before(run: Run, from_s: float) -> MarkWords | None:
    """The last mark in the second after ``from_s``, or so shortly before it that what it tells of
    had not settled; None without one.
    """
    mark = _mark_before(run, from_s)
    if mark is None:
        return None
    return {"text": mark.text, "before_s": from_s - mark.at_s}


def _mark_before(run: Run, from_s: float) -> RunEvent | None:
    last = None
    for event in run.events:
        is_near = from_s - EVENT_SETTLES_S <= event.at_s <= from_s + TICK_S
        if event.kind == "mark" and is_near:
            last = event
    return last


class InTime(NamedTuple):
    """How many of something came in the time of these events, of all."""

    events: list[EventWords]
    came: int


def events_with_most(
    run: Run, counts: Sequence[tuple[float, int]], own: Mapping[int, int] = MappingProxyType({})
) -> InTime:
    """The events to which most belongs of what was counted in the seconds that end at these
    instants: those with a tenth of it or more; none where these have fewer than half. Not one at
    whose beginning answers were counted so already. ``own``: what is known to be of an event, by
    its number.
    """
    by_second = dict(counts)
    times = times_of_events(run)
    rose = [time for time in times if _rose_with(run, time, by_second)]
    belongs = [(_near(rose, run, t_s - TICK_S), count) for t_s, count in counts]
    time_of = {time.number: time for time in times}
    for number, count in own.items():
        # That of an event without a time, such as churn, is of the whole as well.
        near = [time_of[number]] if number in time_of else []
        belongs.append((near, count))
    return _with_most(times, belongs)


def _rose_with(run: Run, time: EventTime, counts: Mapping[float, int]) -> bool:
    """Whether more of the answers were counted in an event's time than in the seconds before it;
    also where none came before.
    """
    before = _share_of_answers(run, counts, time.began_s - 2 * TICK_S, time.began_s)
    since = _share_of_answers(run, counts, time.began_s, time.settled_s)
    return before is None or since is None or before < HALF * since


def _share_of_answers(
    run: Run, counts: Mapping[float, int], from_s: float, to_s: float
) -> float | None:
    """Which share of the answers of these seconds was counted; None without any."""
    ticks = run.ticks_between(from_s, to_s)
    answered = sum(tick.answered for _, tick in ticks)
    if not answered:
        return None
    return sum(counts.get(t_s, 0) for t_s, _ in ticks) / answered


def events_when_due(run: Run, due: Sequence[tuple[float, int]]) -> InTime:
    """The same of heartbeats that were due in the seconds that end at these instants. Each belongs
    to all events in whose time it was due: one that was stopped before the last of them began
    answers late all the same. Not to one that was over when the user made a mark.
    """
    times = [_time_of(run, event, run.event_times) for event in _events(run)]
    by_second = []
    for t_s, count in due:
        mark = _mark_before(run, t_s - TICK_S)
        near = []
        for time in times:
            is_before_mark = mark is not None and time.over_s < mark.at_s
            if time.began_s < t_s <= time.settled_s + TICK_S and not is_before_mark:
                near.append(time)
        by_second.append((near, count))
    return _with_most(times, by_second)


def _with_most(
    times: Sequence[EventTime], near_by_second: Sequence[tuple[Sequence[EventTime], int]]
) -> InTime:
    """Of ``times`` those to which a tenth or more of the counts belongs."""
    of = 0
    came_in_time_of: Counter[int] = Counter()
    for near, count in near_by_second:
        of += count
        for time in near:
            came_in_time_of[time.number] += count
    named = [time for time in times if came_in_time_of[time.number] >= max(1.0, PART * of)]
    numbers = {time.number for time in named}
    came = 0
    for near, count in near_by_second:
        if any(time.number in numbers for time in near):
            came += count
    if 2 * came < of:
        return InTime([], 0)
    return InTime([words_of(time.event) for time in named], came)


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
