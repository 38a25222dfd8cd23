"""When nothing listened at the server's address while it still held connections: a deploy whose new
process failed, after the old one had stopped listening. Pure.

Those who are connected notice nothing until the old process ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import MISSED_S
from asyncli.analysis.event_times import events_begun_by
from asyncli.findings.event_words import EventWords
from asyncli.findings.losses import listener_gone
from asyncli.model.metrics import SERVER_LISTENERS, SERVER_LISTENERS_BACKLOG
from asyncli.model.records import Finding
from asyncli.model.run import TICK_S, Run


class Unlistened(msgspec.Struct, frozen=True):
    """Nothing listened from ``from_s`` to ``until_s`` (s; None: to the hold's end), while at least
    ``held`` connections were held at its beginning. ``events``: those of the plan in whose time it
    began.
    """

    from_s: float
    until_s: float | None
    held: int
    events: Sequence[EventWords]


def unlistened(run: Run) -> list[Unlistened]:
    """The times in which it was so for longer than a missed reading, in order."""
    # Without a backlog these sockets are of a server behind the one that clients connect to; in
    # another network namespace others may have taken its place, in theirs.
    if not run.series(SERVER_LISTENERS_BACKLOG) or run.place.server_apart:
        return []
    absences = []
    for from_s, last_s, until_s in _without_listeners(run):
        end_s = run.stop_s if until_s is None else until_s
        held = _held_since(run, from_s)
        if end_s - from_s >= MISSED_S and held and not _any_opened(run, from_s, last_s):
            events = events_begun_by(run, from_s)
            absences.append(Unlistened(from_s, until_s, held, events))
    return absences


def unlistened_at(run: Run, t_s: float) -> Unlistened | None:
    """That in whose time ``t_s`` is; None if the server listened then, or had ceased to only with
    what was at that time.
    """
    for absence in unlistened(run):
        until_s = math.inf if absence.until_s is None else absence.until_s
        if absence.from_s + TICK_S <= t_s <= until_s:
            return absence
    return None


def listeners_gone(run: Run) -> list[Finding]:
    """A finding of the longest of these times."""
    absences = unlistened(run)
    if not absences:
        return []

    def lasted_s(absence: Unlistened) -> float:
        until_s = run.stop_s if absence.until_s is None else absence.until_s
        return until_s - absence.from_s

    longest = max(absences, key=lasted_s)
    return [
        listener_gone(
            longest.held,
            from_s=longest.from_s,
            until_s=longest.until_s,
            events=longest.events,
        )
    ]


class _Absence(NamedTuple):
    """The first and the last reading without a listening socket, after one with some, and the next
    one with some; None without one.
    """

    from_s: float
    last_s: float
    until_s: float | None


def _without_listeners(run: Run) -> list[_Absence]:
    """Each time without a listening socket, in order."""
    absences: list[_Absence] = []
    absence = None
    has_listened = False
    for t_s, count in run.series(SERVER_LISTENERS).between(-math.inf, run.stop_s).rows():
        if not count and has_listened:
            from_s = t_s if absence is None else absence.from_s
            absence = _Absence(from_s, t_s, None)
        elif count and absence is not None:
            absences.append(absence._replace(until_s=t_s))
            absence = None
        has_listened = has_listened or count > 0
    if absence is not None:
        absences.append(absence)
    return absences


def _any_opened(run: Run, from_s: float, to_s: float) -> bool:
    """Whether any connect was granted: then something listened that was not seen."""
    return any(tick.opened for _, tick in run.ticks_between(from_s + TICK_S, to_s))


def _held_since(run: Run, from_s: float) -> int:
    """The fewest connections that were held in the seconds after it."""
    ticks = run.ticks_between(from_s - TICK_S, from_s + MISSED_S)
    return min((tick.held for _, tick in ticks), default=0)
