"""Whom a command of the plan ended while an earlier event had them silent or read nothing.

The server ends such a client for its silence, or because a command restarts the server. asyncli's
processes cannot tell which, and count the end with the event that has the client. The law here:
what ends as great a share of all others at that time has nothing to do with silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from asyncli.analysis.losses.likelihood import DEVIATIONS
from asyncli.analysis.noticed import Noticed
from asyncli.core.histogram import Histogram
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import EventCounts
from asyncli.model.run import TICK_S, Run
from asyncli.model.samples import Series


class ClosedBy(msgspec.Struct, frozen=True):
    """How many clients of an ``event`` a ``command`` ended, both by their numbers, and since when
    (``at_s`` on the run's clock) it ended connections. Not ``certain``: at most so many, since the
    server may have ended some before. ``is_all_seen``: asyncli saw each end as it was.
    """

    event: int
    command: int
    count: int
    certain: bool
    at_s: float
    is_all_seen: bool


class _Command(NamedTuple):
    """A command of the plan in whose time the server ended connections: from when to when (s on the
    run's clock), and which share of those that were held and did not stall.
    """

    number: int
    first_s: float
    last_s: float
    share: float


class _Subject(NamedTuple):
    """An event whose clients are silent or read nothing from ``start_s`` to ``end_s``."""

    number: int
    start_s: float
    end_s: float
    counts: EventCounts


def closed_by_commands(run: Run, noticed: Mapping[int, Noticed]) -> list[ClosedBy]:
    """Whom commands ended of those who were silent, and then returned, or stalled. ``noticed``:
    when the server noticed those who fell silent, by the event's number.
    """
    subjects = _subjects(run)
    if not subjects:
        return []
    closings = []
    commands = _commands(run)
    for subject in subjects:
        for command in commands:
            closing = _closed_by(subject, command, noticed.get(subject.number))
            if closing is None:
                continue
            closings.append(closing)
            if not closing.is_all_seen:
                # Those not seen are of the first one.
                break
    return closings


def _subjects(run: Run) -> list[_Subject]:
    subjects = []
    for number, window in run.event_windows.items():
        planned = run.plan.event_numbered(number)
        counts = run.counts_of_event(number)
        if planned is None or not counts.closed or not _keeps_connection(planned):
            continue
        end_s = run.stop_s
        if planned.for_s is not None:
            end_s = min(end_s, window.start_s + planned.for_s)
        subjects.append(_Subject(number, window.start_s, end_s, counts))
    return subjects


def _keeps_connection(planned: PlannedEvent) -> bool:
    """Whether the clients of an event keep their connections in its time."""
    return planned.do == "stall" or planned.then == "return"


def _commands(run: Run) -> list[_Command]:
    """The commands in whose time the server ended connections, in the order of their instants."""
    reading = _held_and_reading(run)
    commands = []
    for number, window in run.event_windows.items():
        planned = run.plan.event_numbered(number)
        counts = run.counts_of_event(number)
        if planned is None or planned.do != "run" or not counts.closed_ms.count:
            continue
        first_s = window.start_s + counts.closed_ms.least / 1e3
        last_s = window.start_s + counts.closed_ms.greatest / 1e3
        others = reading.last(first_s)
        if others:
            ended = counts.clients or counts.ended
            commands.append(_Command(number, first_s, last_s, min(1.0, ended / others)))
    return commands


def _held_and_reading(run: Run) -> Series:
    """How many connections were held as each second ended, without those that stalled."""
    times_s = []
    reading = []
    stalled = 0
    for t_s, tick in run.ticks:
        for counts in tick.events.values():
            # Those whose end was not seen at once had read again before it.
            ended_before = sum(counts.closes.values()) - counts.closed_unseen
            stalled += counts.stalled - counts.resumed - ended_before
        times_s.append(t_s)
        reading.append(float(max(0, tick.held - stalled)))
    return Series(times_s, reading)


def _closed_by(subject: _Subject, command: _Command, noticed: Noticed | None) -> ClosedBy | None:
    """How many of an event's clients a command ended; None where they ended for another reason."""
    counts = subject.counts
    times_ms = counts.closed_ms
    # A process of asyncli that is busy sees an end later.
    since_first = _ended_since(times_ms, command.first_s - TICK_S - subject.start_s)
    seen = since_first - _ended_since(times_ms, command.last_s + TICK_S - subject.start_s)
    unseen = _unseen(subject, command, noticed)
    standing = counts.stalled + counts.silenced - (times_ms.count - since_first)
    if not seen + unseen or seen + unseen > _most_ended(standing, command.share):
        return None
    return ClosedBy(
        event=subject.number,
        command=command.number,
        count=seen + unseen,
        certain=not unseen or _were_held(counts, noticed, command.first_s - subject.start_s),
        at_s=command.first_s,
        is_all_seen=not unseen,
    )


def _ended_since(times_ms: Histogram, after_s: float) -> int:
    """How many ends were seen later than so long after an event."""
    if after_s <= 0:
        return times_ms.count
    return times_ms.above(round(1e3 * after_s))


def _unseen(subject: _Subject, command: _Command, noticed: Noticed | None) -> int:
    """How many ends, at most, were in the time of a command and seen only as the clients read
    again, or were heard again.
    """
    if command.first_s > subject.end_s or command.last_s < subject.start_s:
        return 0
    counts = subject.counts
    after_s = command.first_s - subject.start_s
    if noticed is not None and noticed.all_s is not None and noticed.all_s < after_s:
        # The server had let all of them go before.
        return 0
    gave_up = counts.closes.get("heartbeat_timeout", 0)
    return max(0, counts.closed - counts.closed_ms.count - gave_up)


def _most_ended(standing: int, share: float) -> float:
    """How many of these a command may end that ends such a share of all others, and by chance some
    more.
    """
    error = math.sqrt(standing * share * (1 - share))
    return standing * share + DEVIATIONS * error


def _were_held(counts: EventCounts, noticed: Noticed | None, until_s: float) -> bool:
    """Whether the server held all who had fallen silent at its last reading before a command, which
    ended connections so long after that.
    """
    if noticed is None or noticed.left is None or noticed.left_after_s is None:
        return False
    is_just_before = 0 <= until_s - noticed.left_after_s <= 2 * TICK_S
    return is_just_before and noticed.left >= counts.silenced
