"""When a server noticed that clients had fallen silent, by how many connections it has beside those
that are held.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from asyncli.analysis.heap_cost import most_processes
from asyncli.analysis.server_count import is_one_for_each, risen_for_each, server_count
from asyncli.model import metrics
from asyncli.model.records import EventCounts, Gap
from asyncli.model.run import TICK_S, Run
from asyncli.model.samples import Series


class Noticed(msgspec.Struct, frozen=True):
    """How long after those clients fell silent the server held so many of them no more (s), by its
    own count, the kernel's sockets, or else its descriptors; None if it held more to the end.
    ``left``: how many it held when the next event or the drain came, or they were heard again.
    """

    p50_s: float | None
    p90_s: float | None
    all_s: float | None
    left: int
    #: The longest time between two readings meanwhile (s): the times are known within it.
    within_s: float
    #: It let them go as they connected anew, as brokers do whose sessions are taken over.
    at_reconnect: bool


def noticed(run: Run, number: int, window: Gap, counts: EventCounts) -> Noticed | None:
    """None where nobody fell silent, and where nothing that counts was read meanwhile."""
    if not counts.silenced:
        return None
    by_count = []
    for count in (server_count(run), _descriptors(run)):
        counted = _by_count(run, number, window, counts.silenced, count)
        if counted is not None:
            by_count.append(counted)
    # The sockets are those of connections alone, so they say it unless they were read less often.
    return min(by_count, key=lambda counted: math.ceil(counted.within_s / TICK_S), default=None)


def _descriptors(run: Run) -> Series:
    """The descriptors of all processes of the server; empty where it does not open one for each
    connection.
    """
    opened = run.series(metrics.SERVER_DESCRIPTORS_OPEN)
    if not opened and most_processes(run) <= 1:
        opened = run.series(metrics.SERVER_DESCRIPTORS)
    share = risen_for_each(run, opened, run.held)
    if share is None or not is_one_for_each(share):
        return Series()
    return opened


def _by_count(run: Run, number: int, window: Gap, silenced: int, count: Series) -> Noticed | None:
    start_s = window.start_s
    later_s = [other.start_s for other in run.event_windows.values() if other.start_s > start_s]
    # Between two ticks it is not known how many are held, across the drain's start too.
    end_s = min([run.stop_s, *later_s]) - TICK_S
    planned = run.plan.event_numbered(number)
    if planned is not None and planned.then == "return" and planned.for_s is not None:
        # From then on they are no longer silent.
        end_s = min(end_s, start_s + planned.for_s)
    # Who is silent by an earlier event is known only after its window.
    earlier_s = [
        other.end_s or 0.0 for other in run.event_windows.values() if other.start_s < start_s
    ]
    since_s = max(earlier_s, default=-math.inf)
    others = _others(run, count.between(since_s, start_s - TICK_S))
    part = count.between(start_s, end_s)
    if others is None or not len(part):
        return None
    silent = [(t_s - start_s, value - others - _held(run, t_s)) for t_s, value in part.rows()]
    all_s = _below_for_good(silent, 0.0)
    _, last = silent[-1]
    until_s = end_s - start_s if all_s is None else all_s
    within_s = _longest_gap(silent, until_s)
    p50_s = _below_for_good(silent, 0.5 * silenced)
    return Noticed(
        p50_s=p50_s,
        p90_s=_below_for_good(silent, 0.1 * silenced),
        all_s=all_s,
        left=min(silenced, max(0, round(last))),
        within_s=within_s,
        at_reconnect=_at_reconnect(run, number, start_s, silenced, silent, all_s, within_s),
    )


def _held(run: Run, t_s: float) -> float:
    """How many are held at the end of the second in which an instant lies: what an event ends or
    silences goes at its start, and who comes back in that second may be there already.
    """
    held = run.held
    place = min(bisect_left(held.t_s, t_s), len(held) - 1)
    return held.values[place]


def _others(run: Run, before: Series) -> float | None:
    """What it had beside those that are held, at the last reading of a second in which these did
    not change; None without one.
    """
    held = run.held
    for t_s, value in reversed(list(before.rows())):
        if t_s <= run.first_connect_s:
            return value
        place = bisect_left(held.t_s, t_s)
        if 0 < place < len(held) and held.values[place - 1] == held.values[place]:
            return value - held.values[place]
    return None


def _below_for_good(silent: Sequence[tuple[float, float]], bound: float) -> float | None:
    """From when on (s) there were no more than ``bound``; None if there were at the end."""
    since_s = None
    for after_s, value in silent:
        if round(value) > bound:
            since_s = None
        elif since_s is None:
            since_s = after_s
    return since_s


def _longest_gap(silent: Sequence[tuple[float, float]], until_s: float) -> float:
    """The longest time without a reading (s), from the event's instant on."""
    longest_s = 0.0
    last_s = 0.0
    for after_s, _ in silent:
        if after_s > until_s:
            break
        longest_s = max(longest_s, after_s - last_s)
        last_s = after_s
    return max(longest_s, until_s - last_s)


def _at_reconnect(
    run: Run,
    number: int,
    start_s: float,
    silenced: int,
    silent: Sequence[tuple[float, float]],
    all_s: float | None,
    within_s: float,
) -> bool:
    """Whether the server held them until they connected anew, and none of them then."""
    planned = run.plan.event_numbered(number)
    if planned is None or planned.then != "reconnect" or all_s is None:
        return False
    opened_s = [t_s - start_s for t_s, tick in run.ticks if _opened(tick.events.get(number))]
    if not opened_s:
        return False
    first_s = opened_s[0] - TICK_S
    held_before = [value for after_s, value in silent if after_s < first_s]
    nearly_all = 0.9 * silenced
    if not held_before or held_before[-1] < nearly_all:
        return False
    return first_s <= all_s <= opened_s[-1] + within_s


def _opened(counts: EventCounts | None) -> int:
    if counts is None:
        return 0
    return counts.opened
