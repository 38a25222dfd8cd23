"""When a server noticed that clients had fallen silent, by how many connections it has beside those
that are held.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.beside_held import Between, others_of, silent_over_time
from asyncli.analysis.constants import MISSED_S
from asyncli.analysis.free_of_silent import FreeOfSilent, most_apart, was_process_lost
from asyncli.analysis.heap_cost import most_processes
from asyncli.analysis.server_count import (
    is_one_for_each,
    other_clients_of,
    risen_for_each,
    server_count,
)
from asyncli.model import metrics
from asyncli.model.records import EventCounts, Gap
from asyncli.model.run import EVENT_SETTLES_S, TICK_S, Run
from asyncli.model.samples import Series

#: Why it is not known when a server noticed. ``not_read``: its connections were not counted in that
#: time; ``other_clients`` hold connections there too; ``several_servers`` are behind the URLs, of
#: which each may differ; ``own_lost``: a worker or host of asyncli was lost in that time, whose
#: connections ended with it, or the run was interrupted; ``losses``: the server ended others in it;
#: ``another_event``: its silent ones may be among those that it let go, or it came too soon;
#: ``no_time``: so did the hold's end; ``disagrees``: in the end the server had more than were
#: silent, or fewer than are held; ``churn``: as many as half of them ended and came in the second
#: of a reading.
WhyNotKnown = Literal[
    "not_read",
    "other_clients",
    "several_servers",
    "own_lost",
    "losses",
    "another_event",
    "no_time",
    "disagrees",
    "churn",
]


class Noticed(msgspec.Struct, frozen=True):
    """How long after those clients fell silent the server held so many of them no more (s), by its
    own count, the kernel's sockets, or else its descriptors; None if it held more to the end, and
    where it is not known: see ``why``. ``left``: how many it held at the last reading before the
    next event or the drain came, or they were heard again; ``left_after_s``: how long after they
    fell silent that was (s). ``all_at_most_s``: how long after they fell silent it held no silent
    one of any event (s), where other events came before ``all_s``, or where churn hides a few for
    longer; None if it held some at each reading that tells, and where ``all_s`` is known. ``left``
    is None too where churn hides since when it held none, if ever; ``left_after_s`` is then of the
    last reading at which it surely held one.
    """

    p50_s: float | None = None
    p90_s: float | None = None
    all_s: float | None = None
    left: int | None = None
    left_after_s: float | None = None
    all_at_most_s: float | None = None
    #: The longest time between two readings meanwhile (s): the times are known within it.
    within_s: float | None = None
    #: It let them go as they connected anew, as brokers do whose sessions are taken over.
    at_reconnect: bool = False
    why: WhyNotKnown | msgspec.UnsetType = msgspec.UNSET


def noticed_by_event(run: Run) -> dict[int, Noticed]:
    """By the number of each event of the plan by which some fell silent."""
    silencing = [number for number in run.event_windows if run.counts_of_event(number).silenced]
    if not silencing:
        return {}
    if _has_several_servers(run):
        return dict.fromkeys(silencing, Noticed(why="several_servers"))
    if other_clients_of(run) is not None:
        return dict.fromkeys(silencing, Noticed(why="other_clients"))
    counts_read = [count for count in (server_count(run), _descriptors(run)) if count]
    free = FreeOfSilent(run, counts_read)
    settled_s = _settled_since_s(run)
    told: dict[int, Noticed] = {}
    # In the order of their instants: what is known of each is a part of what is known of a later.
    for number in silencing:
        before = _Before(settled_s[number], _has_silent_of_earlier(run, number, told))
        by_counts = _by_counts(run, number, counts_read, before)
        told[number] = _with_free(by_counts, free.since(run.event_windows[number].start_s))
    return told


def _with_free(by_counts: Noticed, free_after_s: float | None) -> Noticed:
    """Of one event; ``free_after_s``: how long after it the server held no silent one of any."""
    if by_counts.why not in (msgspec.UNSET, "another_event") or by_counts.all_s is not None:
        return by_counts
    gone_by = [by_counts.all_at_most_s, free_after_s]
    first_s = min((after_s for after_s in gone_by if after_s is not None), default=None)
    return msgspec.structs.replace(by_counts, all_at_most_s=first_s)


class _Before(NamedTuple):
    """What is known of the time before an event: since when (s) who is silent by earlier ones, and
    whether the server may still have held silent ones of these as it began.
    """

    settled_s: float
    has_silent: bool


def _by_counts(run: Run, number: int, counts_read: Sequence[Series], before: _Before) -> Noticed:
    """By that of the counts which tells it best."""
    window = run.event_windows[number]
    told = []
    for count in counts_read:
        by_count = _by_count(run, number, count, before)
        if by_count is not None:
            told.append(by_count)
    if not told:
        return Noticed(why=_why_not_read(run, window, is_counted=bool(counts_read)))
    known = [by_count for by_count in told if by_count.why is msgspec.UNSET]
    # The sockets are those of connections alone, so they say it unless they were read less often.
    # One that tells how many were left is better than one in which churn hides that.
    return min(known or told, key=lambda noticed: (noticed.left is None, _readings_apart(noticed)))


def _readings_apart(by_count: Noticed) -> int:
    """Within how many seconds its times are known."""
    if by_count.within_s is None:
        return 0
    return math.ceil(by_count.within_s / TICK_S)


def _has_several_servers(run: Run) -> bool:
    """Whether the plan's URLs may lead to several servers, of which each may notice at another
    time.
    """
    places = {(target.host, target.port) for target in run.plan.targets}
    if len(places) < 2:
        return False
    return run.place.server_roots is not None or not run.place.server_found


def _why_not_read(run: Run, window: Gap, *, is_counted: bool) -> WhyNotKnown:
    """Why there is no reading right before an event, or after it: another was so near.
    ``is_counted``: the server's connections are in this run.
    """
    if not is_counted:
        return "not_read"
    for other in run.event_windows.values():
        if window.start_s < other.start_s <= window.start_s + 2 * TICK_S:
            return "another_event"
        is_before = other.start_s < window.start_s
        if is_before and (other.end_s or math.inf) >= window.start_s - 2 * TICK_S:
            return "another_event"
    return "not_read"


def _why_not_known(
    run: Run,
    start_s: float,
    silenced: int,
    silent: Sequence[tuple[float, float]],
    until_s: float,
    *,
    has_earlier: bool,
) -> WhyNotKnown | None:
    """Why the counts of those whom it still held do not tell; None if they do. ``until_s``: how
    long after the event the last of them counts.
    """
    end_s = start_s + until_s + TICK_S
    gaps = [gap for gap in run.gaps if gap.start_s < end_s and (gap.end_s or math.inf) > start_s]
    ticks = [tick for _, tick in run.ticks_between(start_s, end_s)]
    if gaps or any(was_process_lost(tick) for tick in ticks):
        return "own_lost"
    if any(tick.lost for tick in ticks):
        return "losses"
    fewest = min(value for _, value in silent)
    if has_earlier and round(fewest) < silenced:
        return "another_event"
    _, last = silent[-1]
    bound = most_apart(run)
    if not -bound <= last <= silenced + bound:
        return "disagrees"
    return None


def _has_silent_of_earlier(run: Run, number: int, earlier: Mapping[int, Noticed]) -> bool:
    """Whether the server may still have held silent ones of an earlier event."""
    start_s = run.event_windows[number].start_s
    for other, told in earlier.items():
        began_s = run.event_windows[other].start_s
        planned = run.plan.event_numbered(other)
        if began_s >= start_s or (planned is not None and planned.then == "return"):
            continue
        if began_s + _gone_after_s(told) > start_s:
            return True
    return False


def _gone_after_s(earlier: Noticed) -> float:
    """How long after an event the server held none of those that it silenced (s)."""
    if earlier.all_s is not None:
        return earlier.all_s
    if earlier.all_at_most_s is not None:
        return earlier.all_at_most_s
    return math.inf


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


def _by_count(run: Run, number: int, count: Series, before: _Before) -> Noticed | None:
    silenced = run.counts_of_event(number).silenced
    start_s = run.event_windows[number].start_s
    later_s = _events_later_s(run, start_s)
    # Between two ticks it is not known how many are held, across the drain's start too.
    cut_s = min([run.stop_s, *later_s]) - TICK_S
    end_s = min(cut_s, _heard_again_s(run, number, start_s))
    others = others_of(run, count.between(before.settled_s, _begun_s(run, start_s)))
    part = count.between(start_s, end_s)
    if others is None or not len(part):
        return None
    kept = _kept(run.counts_of_event(number))
    read = silent_over_time(run, part, start_s, others)
    silent = [(after_s, _at_least(count, kept)) for after_s, count in read]
    middle = [(after_s, _likely(count, silenced)) for after_s, count in read]
    all_s = _time_below(silent, 0.0)
    until_s = end_s - start_s if all_s is None else all_s
    within_s = _longest_gap(middle, until_s)
    why = _why_not_known(run, start_s, silenced, middle, until_s, has_earlier=before.has_silent)
    why = why or _why_too_few(read, kept - most_apart(run))
    if why is not None:
        return Noticed(within_s=within_s, why=why)
    noticed = _when(silent, silenced, all_s, within_s)
    if noticed.p50_s is None and end_s == cut_s and until_s < EVENT_SETTLES_S:
        return Noticed(within_s=within_s, why="another_event" if later_s else "no_time")
    if noticed.why is not msgspec.UNSET:
        return noticed
    at_reconnect = _at_reconnect(
        run, number, start_s, silenced, middle, all_s, noticed.within_s or within_s
    )
    return msgspec.structs.replace(noticed, at_reconnect=at_reconnect)


def _events_later_s(run: Run, start_s: float) -> list[float]:
    """The instants of the events after one at ``start_s``."""
    return [window.start_s for window in run.event_windows.values() if window.start_s > start_s]


def _when(
    silent: Sequence[tuple[float, Between]], silenced: int, all_s: float | None, within_s: float
) -> Noticed:
    """After what time it held none of so many ``silenced`` (``all_s``), and how many it held of
    them; ``within_s``: the longest time between two readings.
    """
    half = 0.5 * silenced
    tenth = 0.1 * silenced
    p50_s = _time_below(silent, half)
    last_s, _ = silent[-1]
    if p50_s is None and _last_above(silent, half) != last_s:
        return Noticed(within_s=within_s, why="churn")
    p90_s = _time_below(silent, tenth)
    for time_s, bound in ((p50_s, half), (p90_s, tenth), (all_s, 0.0)):
        if time_s is not None:
            within_s = max(within_s, time_s - (_last_above(silent, bound) or 0.0))
    left, left_after_s = _left(silent, silenced, all_s)
    if left is not None and p90_s is None and _last_above(silent, tenth) != last_s:
        # It may be a tenth or fewer: more would say that it had not noticed the others.
        left = min(left, math.floor(tenth))
    all_at_most_s = None
    if left is None:
        all_at_most_s = _below_for_good(
            [(after_s, count.at_most) for after_s, count in silent], 0.0
        )
    return Noticed(
        p50_s=p50_s,
        p90_s=p90_s,
        all_s=all_s,
        left=left,
        left_after_s=left_after_s,
        all_at_most_s=all_at_most_s,
        within_s=within_s,
    )


def _time_below(silent: Sequence[tuple[float, Between]], bound: float) -> float | None:
    """From when on (s) there were no more than ``bound``; None if there were at the end, and where
    that may have been so for longer than a missed reading before it is sure.
    """
    perhaps_s = _below_for_good([(after_s, count.at_least) for after_s, count in silent], bound)
    surely_s = _below_for_good([(after_s, count.at_most) for after_s, count in silent], bound)
    if perhaps_s is None or surely_s is None or surely_s - perhaps_s > MISSED_S:
        return None
    return surely_s


def _likely(count: Between, silenced: int) -> float:
    """The middle, or what comes nearest to it of so many as there can be."""
    middle = (count.at_least + count.at_most) / 2
    if middle < 0:
        return min(0.0, count.at_most)
    if middle > silenced:
        return max(silenced, count.at_least)
    return middle


def _left(
    silent: Sequence[tuple[float, Between]], silenced: int, all_s: float | None
) -> tuple[int | None, float | None]:
    """How many it held at the last reading, and when that was (s). Where churn hides since when it
    held none, if ever, how many is None, and the time that of the last reading at which it surely
    held one.
    """
    last_s, count = silent[-1]
    if all_s is None and round(count.at_least) <= 0:
        return None, _last_above(silent, 0.0)
    if round(count.at_most) >= silenced:
        # Nothing shows that it let any go.
        return silenced, last_s
    return max(0, round(_likely(count, silenced))), last_s


def _last_above(silent: Sequence[tuple[float, Between]], bound: float) -> float | None:
    """The last reading (s) at which there were surely more than ``bound``; None without one."""
    after = [after_s for after_s, count in silent if round(count.at_least) > bound]
    return max(after, default=None)


def _begun_s(run: Run, t_s: float) -> float:
    """When the second began in which an instant lies (s): what is read before is at the connections
    that are held then.
    """
    place = bisect_right(run.held.t_s, t_s)
    if not place:
        return -math.inf
    return run.held.t_s[place - 1]


def _settled_since_s(run: Run) -> dict[int, float]:
    """By the number of each event since when (s) who is silent by those before it is known: since
    five seconds after all of them were back, or since the ends of their windows.
    """
    since_s: dict[int, float] = {}
    latest_s = -math.inf
    # In the order of their instants.
    for number, window in run.event_windows.items():
        since_s[number] = latest_s
        settled_s = min(window.end_s or 0.0, _all_back_s(run, number) + EVENT_SETTLES_S)
        latest_s = max(latest_s, settled_s)
    return since_s


def _all_back_s(run: Run, number: int) -> float:
    """When the last one whom an event ended or had stall was back (s); infinite where some were
    not, and where it is not known.
    """
    counts = run.counts_of_event(number)
    away = counts.away + counts.waiting + counts.unheard
    if away or not counts.back_ms.count or counts.ended_again or counts.gone:
        return math.inf
    planned = run.plan.event_numbered(number)
    if planned is None or (planned.do == "stall" and planned.for_s is None):
        return math.inf
    # Times back count from the end of a silence or a stall, and else from the event's instant.
    from_s = run.event_windows[number].start_s + (planned.for_s or 0.0)
    return from_s + counts.back_ms.greatest / 1e3


def _heard_again_s(run: Run, number: int, start_s: float) -> float:
    """Until when (s) readings are surely of the silence: infinitely, unless those connections are
    heard again. In the second in which the first of them are, they are held as it ends, and were
    silent as it was read.
    """
    planned = run.plan.event_numbered(number)
    if planned is None or planned.then != "return" or planned.for_s is None:
        return math.inf
    returned_s = [t_s for t_s, counts in run.seconds_of_event(number) if counts.returned]
    if not returned_s:
        return start_s + planned.for_s
    return min(start_s + planned.for_s, returned_s[0] - TICK_S)


def _kept(counts: EventCounts) -> int:
    """How many of the silent ones the server never let go, at least: who is back without a new
    connection is so on the old one.
    """
    return max(0, counts.back_ms.count - counts.opened)


def _why_too_few(read: Sequence[tuple[float, Between]], fewest: float) -> WhyNotKnown | None:
    """Why the counts do not tell where a reading surely has fewer than so many; else None."""
    if any(count.at_most < fewest for _, count in read):
        return "disagrees"
    return None


def _at_least(count: Between, kept: int) -> Between:
    """How many it held, where so many are known to be among them."""
    return Between(max(count.at_least, kept), max(count.at_most, kept))


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
    opened_s = [t_s - start_s for t_s, counts in run.seconds_of_event(number) if counts.opened]
    if not opened_s:
        return False
    first_s = opened_s[0] - TICK_S
    held_before = [value for after_s, value in silent if after_s < first_s]
    nearly_all = 0.9 * silenced
    if not held_before or held_before[-1] < nearly_all:
        return False
    return first_s <= all_s <= opened_s[-1] + within_s
