"""What the events of a plan did: when who was back, at what price, and what the server did not give
back.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.away import Away, Clients, away_of, clients_of
from asyncli.analysis.bounded_time import NO_TIME
from asyncli.analysis.closed_by_commands import ClosedBy, closed_by_commands
from asyncli.analysis.constants import FEWEST, MISSED_S
from asyncli.analysis.due import Spans, latencies_of_due
from asyncli.analysis.event_pace import EventPace, event_pace
from asyncli.analysis.in_vain import InVain, in_vain
from asyncli.analysis.least_held import LeastHeld
from asyncli.analysis.losses.own_sockets import SegmentsByOrigin, all_sent_again
from asyncli.analysis.noticed import Noticed, noticed_by_event
from asyncli.analysis.server_count import has_other_connections
from asyncli.analysis.slope import MOST_BINS, PAGES
from asyncli.analysis.slow_readers import SlowReaders, slow_readers
from asyncli.analysis.standstill import longest_by_event
from asyncli.analysis.totals import Lateness, in_ms
from asyncli.analysis.without_answers import longest_without_answers
from asyncli.core.histogram import Histogram
from asyncli.findings.probes import MASTER_ENDED
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import CHURN, EventCounts, Gap
from asyncli.model.run import EVENT_SETTLES_S, Run, Ticks
from asyncli.model.samples import Series

#: The time in which no event was at work, among the numbers of events.
_OUTSIDE = None


class Back(msgspec.Struct, frozen=True):
    """How long after the event so many of those who were ended had their first answer (s); None if
    fewer were back before the hold ended, or before their process of asyncli did. ``waited_s``: how
    long there was (s) for those who were not back, also where that was before their turn; None if
    all were.
    """

    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    all_s: float | None
    waited_s: float | None = None


class Closed(msgspec.Struct, frozen=True):
    """How long after those clients stopped reading, or a command began, the server ended some (s):
    the first, half of them, the last. ``unseen``: how many ends were seen only when they read
    again.
    """

    first_s: float | None
    p50_s: float | None
    last_s: float | None
    unseen: int


class SentAgain(msgspec.Struct, frozen=True):
    """Of how many who were heard again a request was under way that the server's kernel had not
    acknowledged; and how long after that (s) their own kernels were to send it again: the first,
    half of them, the last.
    """

    requests: int
    first_s: float
    p50_s: float
    last_s: float


class EventLatency(msgspec.Struct, frozen=True):
    """Of those who came back, in milliseconds: their connects and first answers; of the others,
    the heartbeats that were due while the event lasted, each also in the time of any other that
    was at work, and outside of all events; one that was lost without an answer counts with the time
    it had waited. None where none was, or where one in a hundred or more may have waited for
    longer than anything tells.
    """

    connect_p50: float | None
    connect_p99: float | None
    answer_p50: float | None
    answer_p99: float | None
    others_p99: float | None
    outside_p99: float | None


#: Why what the server did not give back is unknown: the seconds before the event were not all in
#: the hold, or another event was not settled in them; nothing was read at rest after it; nothing
#: was read outside of events; it changes as much by itself; its heap is collected now and then; one
#: of several processes that are the server ended, and none was found in its place until the event
#: was over;
#: between the two readings other clients opened or closed connections there, or it let those go
#: whom an earlier event had silenced.
WhyUnknown = Literal[
    "early",
    "after_another",
    "no_time",
    "not_read",
    "moves",
    "collected",
    "part_ended",
    "other_connections",
]


class ServerPrice(msgspec.Struct, frozen=True):
    """The server's memory (bytes), of pages of files as many as before the first connect: in the
    hold at rest before the event, the most while it lasted, and when it had settled; and its CPU
    time (s). None where not read. ``kept``: what it did not give back (bytes; None: unknown, see
    ``why``); ``moves``: by how much its memory changes by itself in such a time, as it did in the
    hold outside of events. ``other_processes``: some of the server's ended in the time of a
    command, so that what came after it is of others.
    """

    memory_before: float | None
    peak: float | None
    after: float | None
    cpu_s: float | None
    kept: float | None = None
    moves: float | None = None
    other_processes: bool = False
    why: WhyUnknown | msgspec.UnsetType = msgspec.UNSET


class SpentDescriptors(msgspec.Struct, frozen=True):
    """While clients waited to be back, a process of the server had as many descriptors open as it
    may: the first and the last reading of that (s on the run's clock), and its limit.
    """

    limit: int
    from_s: float
    until_s: float


class Provoked(msgspec.Struct, frozen=True):
    """What an event did. ``counts``: of all its seconds. ``window``: from its instant until memory
    had settled (s on the run's clock). ``least_held``: the fewest connections that were held as a
    second of it ended; None where none did, and where that is not of this event alone: another one
    had some away in that time, or its own had not all been counted.
    """

    number: int
    window: Gap
    counts: EventCounts
    back: Back
    #: None where nobody whom it ended was to come back, and in runs of older versions.
    away: Away | None
    clients: Clients
    latency_ms: EventLatency
    lateness_ms: Lateness
    server: ServerPrice
    #: How long it lasted (s) where the hold was over before its planned time; None: all of that.
    cut_after_s: float | None
    #: How long after it the records of a run without a drain end, which goes on or was killed,
    #: where not all of it was over then (s); else None.
    records_end_after_s: float | None
    #: None where nobody fell silent, and where the server's connections are not counted.
    noticed: Noticed | None
    least_held: int | None
    #: None where nobody waited for an answer, and where no reading was at the limit.
    descriptors_spent: SpentDescriptors | None
    #: By address, where there are several: how many connects failed there, or got no answer; and
    #: of how many clients that were not back the last connect was there.
    failed_at: dict[str, int]
    missing_at: dict[str, int]
    #: None where no connect waited in vain for an answer.
    in_vain: InVain | None
    #: None where nobody stalled.
    slow_readers: SlowReaders | None
    #: None where nobody stalled, and where the server ended none in the time of a command.
    closed: Closed | None
    #: By which commands, which ended all others as well, the server ended those who were silent or
    #: stalled; and of a command, whom it ended so, who are not in its own counts.
    closed_by: list[ClosedBy]
    ended_of_others: list[ClosedBy]
    #: None where nobody was heard again with a request that had not been acknowledged.
    sent_again: SentAgain | None
    pace: EventPace
    listen_overflows: float | None
    segments_sent_again: int
    #: The longest time of two seconds or more that began in its time, and in which no client had an
    #: answer though some waited for one or tried to come back (s, at least); 0 without one. None
    #: where clients send no heartbeats.
    no_answers_s: float | None = None
    #: The longest that it may have been (s; infinite: no end of it is known).
    no_answers_at_most_s: float | None = None
    #: The longest time that began in its time, and in which the server stood still (s, at least):
    #: from the first to the last reading of that; 0 without one.
    stood_still_s: float = 0.0
    #: The longest that it may have been (s; infinite: no end of it is known).
    stood_still_at_most_s: float = 0.0
    #: A command in whose time the server ended no connection.
    is_quiet: bool = False

    @property
    def not_back(self) -> int:
        """Those whom it ended, and who had no answer since, though it was their turn; without those
        whom another event ended, and those whose process of asyncli has gone.
        """
        return self.counts.away


class _Moves(NamedTuple):
    """By how much the server's memory changes without an event: the largest change (bytes) in any
    part of the hold outside of events, and in each second of the longest of them, which lasted for
    ``longest_s``.
    """

    largest: float
    per_s: float
    longest_s: float

    def in_time(self, lasts_s: float) -> float:
        """In so long: also what its drift adds where the longest part was shorter."""
        missing_s = max(0.0, lasts_s - self.longest_s)
        return self.largest + abs(self.per_s) * missing_s


class _Known(NamedTuple):
    """What is known of a run, once for all events: the server's memory over time, how it ``moves``
    without an event (None: it was not read twice then), whether it is mostly a heap that a runtime
    collects, who was held, which commands ended clients of which events, and what was sent again.
    """

    memory: Series
    moves: _Moves | None
    collected: bool
    least_held: LeastHeld
    closings: Sequence[ClosedBy]
    sent_again: SegmentsByOrigin


def provoked(run: Run, memory: Series, *, collected: bool = False) -> dict[int, Provoked]:
    """What each event of the plan did, by its number. ``memory``: the server's (bytes), without
    changes of pages of files; ``collected``: it is mostly a heap that a runtime collects.
    """
    windows = run.event_windows | run.quiet_commands
    if run.hold is not None and run.has_churned:
        # It lasts as long as the hold, and is no disturbance of it.
        windows[CHURN] = Gap(run.hold.start_s, run.hold.end_s)
    if not windows:
        # The latencies of a night take seconds to add.
        return {}
    # Of churn it is its window, which is the hold.
    times = windows | run.event_times
    spans_of: dict[int | None, Spans] = {_OUTSIDE: run.spans_outside_events}
    for number, time in times.items():
        spans_of[number] = [(math.nextafter(time.start_s, math.inf), time.end_s or math.inf)]
    due_us = latencies_of_due(run.ticks, spans_of)
    [outside_ms] = in_ms(due_us[_OUTSIDE], 0.99)
    noticed = noticed_by_event(run)
    known = _Known(
        memory=memory,
        collected=collected,
        moves=_moves_by_itself(run, memory),
        least_held=LeastHeld(run),
        closings=closed_by_commands(run, noticed),
        sent_again=SegmentsByOrigin(all_sent_again(run)),
    )
    silences = longest_without_answers(run)
    standstills = longest_by_event(run)
    told = {}
    for number, window in windows.items():
        others_ms = _others_p99(run, number, times[number], due_us[number])
        meanwhile_ms = (others_ms, outside_ms)
        done = _provoked(run, number, window, known, meanwhile_ms, noticed.get(number))
        no_answers_s = no_answers_at_most_s = None
        if not run.plan.listens:
            no_answers_s, no_answers_at_most_s = silences.get(number, NO_TIME)
        still = standstills.get(number, NO_TIME)
        told[number] = msgspec.structs.replace(
            done,
            no_answers_s=no_answers_s,
            no_answers_at_most_s=no_answers_at_most_s,
            stood_still_s=still.at_least_s,
            stood_still_at_most_s=still.at_most_s,
            is_quiet=number in run.quiet_commands,
        )
    return told


def _provoked(
    run: Run,
    number: int,
    window: Gap,
    known: _Known,
    meanwhile_ms: tuple[float | None, float | None],
    noticed: Noticed | None,
) -> Provoked:
    assert window.end_s is not None
    counts = run.counts_of_event(number)
    overflows = run.series(f"{metrics.TCP}ListenOverflows")
    connect_p50, connect_p99 = in_ms(counts.connect_us, 0.5, 0.99)
    answer_p50, answer_p99 = in_ms(counts.answer_us, 0.5, 0.99)
    others_p99, outside_p99 = meanwhile_ms
    return Provoked(
        number=number,
        window=window,
        counts=counts,
        back=msgspec.structs.replace(
            back_of(number, counts),
            waited_s=waited_s(run.plan, number, counts, window.start_s, run.stop_s),
        ),
        away=away_of(number, counts),
        clients=clients_of(counts),
        latency_ms=EventLatency(
            connect_p50=connect_p50,
            connect_p99=connect_p99,
            answer_p50=answer_p50,
            answer_p99=answer_p99,
            others_p99=others_p99,
            outside_p99=outside_p99,
        ),
        lateness_ms=Lateness(*in_ms(counts.lateness_us, 0.5, 0.99, 1.0)),
        server=_price(run, number, window, known, counts),
        cut_after_s=_cut_after_s(run, number, window),
        records_end_after_s=_records_end_after_s(run, number, window, counts),
        noticed=noticed,
        descriptors_spent=_descriptors_spent(run, number, window, counts),
        failed_at=_by_address(run, counts.failed_at),
        missing_at=_by_address(run, counts.missing_at),
        in_vain=in_vain(run, window, counts),
        slow_readers=_slow_readers(run, number, window, known.memory, counts, known.closings),
        closed=_closed(counts),
        closed_by=[closing for closing in known.closings if closing.event == number],
        ended_of_others=[closing for closing in known.closings if closing.command == number],
        sent_again=_sent_again(counts),
        least_held=known.least_held.during(number, window),
        pace=event_pace(run, number, window, counts),
        listen_overflows=_counted(overflows, window.start_s, window.end_s),
        segments_sent_again=_segments_sent_again(number, window, counts, known.sent_again),
    )


def _segments_sent_again(
    number: int, window: Gap, counts: EventCounts, sent_again: SegmentsByOrigin
) -> int:
    """What an event's clients sent again, in its silence or on their way back; and what others did
    whose connect or request began in its time.
    """
    assert window.end_s is not None
    of_clients = counts.sent_again_silent + sent_again.of_event(number)
    return of_clients + sent_again.of_others(window.start_s, window.end_s)


def _cut_after_s(run: Run, number: int, window: Gap) -> float | None:
    planned = run.plan.event_numbered(number)
    if run.interrupted_after_s(number) is not None or not run.has_drained:
        return None
    had_s = run.stop_s - window.start_s
    if planned is None or planned.for_s is None or planned.for_s <= had_s:
        return None
    return had_s


def _records_end_after_s(run: Run, number: int, window: Gap, counts: EventCounts) -> float | None:
    if run.interrupted_after_s(number) is not None or run.has_drained or number == CHURN:
        return None
    had_s = run.stop_s - window.start_s
    if counts.waiting:
        return had_s
    planned = run.plan.event_numbered(number)
    if planned is None or planned.for_s is None or planned.for_s <= had_s:
        return None
    return had_s


def _slow_readers(
    run: Run,
    number: int,
    window: Gap,
    memory: Series,
    counts: EventCounts,
    closings: Sequence[ClosedBy],
) -> SlowReaders | None:
    if not counts.stalled:
        return None
    planned = run.plan.event_numbered(number)
    for_s = planned.for_s if planned is not None else None
    by_commands = 0
    for closing in closings:
        if closing.event == number:
            # They read nothing until then.
            by_commands += closing.count * closing.certain
            until_s = closing.at_s - window.start_s
            for_s = until_s if for_s is None else min(for_s, until_s)
    return slow_readers(run, window, counts, memory, for_s, by_commands=by_commands)


def _by_address(run: Run, counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by the places of addresses, the largest first."""
    addresses = run.place.destinations
    known = [place for place in counts if place < len(addresses)]
    known.sort(key=lambda place: -counts[place])
    return {addresses[place]: counts[place] for place in known}


def _closed(counts: EventCounts) -> Closed | None:
    times = counts.closed_ms
    if not counts.stalled and not times.count:
        return None
    if not times.count:
        return Closed(None, None, None, counts.closed_unseen)
    median_ms = times.quantile(0.5) or 0.0
    return Closed(times.least / 1e3, median_ms / 1e3, times.greatest / 1e3, counts.closed_unseen)


def _sent_again(counts: EventCounts) -> SentAgain | None:
    times = counts.resends_ms
    if not times.count:
        return None
    median_ms = times.quantile(0.5) or 0.0
    return SentAgain(times.count, times.least / 1e3, median_ms / 1e3, times.greatest / 1e3)


def _others_p99(run: Run, number: int, time: Gap, latency_us: Histogram) -> float | None:
    """Of the heartbeats that were due in the time of an event, in milliseconds; None where as many
    of them may have waited for longer as such a percentile leaves out.
    """
    unknown = _waits_unknown(run, number, time)
    if 100 * unknown > latency_us.count + unknown:
        return None
    [others_p99] = in_ms(latency_us, 0.99)
    return others_p99


def _waits_unknown(run: Run, number: int, time: Gap) -> int:
    """Of how many heartbeats that were due in the time of an event nothing tells how long they
    waited, at most: another event ended their connections before the answer, or the records end or
    were interrupted before it.
    """
    assert time.end_s is not None
    ticks = run.ticks_between(time.start_s, time.end_s)
    if not ticks:
        return 0
    _, last = ticks[-1]
    answered_by_s = time.end_s + run.plan.patience_s
    left = _asked_of_others(run.ticks_between(time.end_s, answered_by_s), number)
    is_cut = any(time.end_s <= gap.start_s <= answered_by_s for gap in run.gaps)
    if is_cut or (run.phase("drain") is None and run.end_s < answered_by_s):
        left = last.awaiting
    return _asked_of_others(ticks, number) + min(last.awaiting, left)


def _asked_of_others(ticks: Ticks, number: int) -> int:
    """How many connections that awaited an answer other events ended."""
    asked = 0
    for _, tick in ticks:
        for key, counts in tick.events.items():
            if key != number:
                asked += counts.asked
    return asked


def back_of(number: int, counts: EventCounts) -> Back:
    """After how long the clients of an event were back, by what it counted so far; without how long
    there was for the others.

    By the rank among all who were ended, and not by another event before they were back: those
    who are not back count as later than all, also those whose turn was to come after the hold. Else
    these were times of those whose turn came early. So do those of whom nothing tells whether they
    were back (``lost_with_worker``, ``unheard``): with some of these a time is at most this long.
    Of churn some are always on their way.
    """
    came = counts.back_ms.count
    awaited = counts.ended + counts.stalled - counts.ended_again
    if number == CHURN:
        awaited -= counts.waiting
    values: list[float | None] = []
    for share in (0.5, 0.9, 0.99, 1.0):
        rank = math.ceil(share * awaited)
        value_ms = counts.back_ms.quantile(rank / came) if 0 < rank <= came else None
        values.append(None if value_ms is None else value_ms / 1e3)
    return Back(*values)


def waited_s(
    plan: Plan, number: int, counts: EventCounts, began_s: float, until_s: float
) -> float | None:
    """For how long (s) until then those were not back who were to be, of an event that began at
    ``began_s``; None if all were. Of churn each had its own instant; so has who stalled until the
    server ended it.
    """
    waited = counts.away
    if not counts.stalled:
        waited += counts.waiting
    if number == CHURN or waited <= 0:
        return None
    planned = plan.event_numbered(number)
    since_s = began_s
    if planned is not None:
        since_s += planned.for_s or 0.0
    return max(0.0, until_s - since_s)


def _descriptors_spent(
    run: Run, number: int, window: Gap, counts: EventCounts
) -> SpentDescriptors | None:
    limit = run.series(metrics.SERVER_DESCRIPTORS_LIMIT).last()
    has_waited = counts.away > 0 or counts.phantoms or counts.failures or counts.error_answers
    if not limit or not has_waited:
        return None
    until_s = run.stop_s
    if counts.away <= 0:
        until_s, _ = run.seconds_of_event(number)[-1]
    used = run.series(metrics.SERVER_DESCRIPTORS).between(window.start_s, until_s)
    spent_s = [t_s for t_s, value in used.rows() if value >= limit]
    if not spent_s:
        return None
    return SpentDescriptors(round(limit), spent_s[0], spent_s[-1])


def _price(run: Run, number: int, window: Gap, known: _Known, counts: EventCounts) -> ServerPrice:
    memory = known.memory
    start_s = window.start_s
    end_s = window.end_s
    assert end_s is not None
    planned = run.plan.event_numbered(number)
    # In the second half of the time in which memory settles, unless something else came before.
    back_s = start_s + _outage_s(planned) + max(0, counts.back_ms.greatest) / 1e3
    settled_s = back_s + EVENT_SETTLES_S / 2
    # What came in the ramp is the cost of the connections; what came with another event is that's.
    rested_since_s = run.rested_since_s(start_s)
    before = _level(memory, rested_since_s, start_s)
    if before is None and run.hold is not None:
        in_hold = memory.between(run.hold.start_s, start_s).values
        before = in_hold[-1] if in_hold else None
    # At its instant the server has what it had before.
    readings = memory.between(start_s, end_s).values
    if readings and before is not None:
        readings = [before, *readings]
    moves = None
    if known.moves is not None:
        moves = known.moves.in_time(end_s - (start_s - EVENT_SETTLES_S))
    price = ServerPrice(
        memory_before=before,
        peak=max(readings, default=None),
        after=_level(memory, settled_s, end_s),
        cpu_s=_counted(run.series(metrics.SERVER_CPU_S), start_s, end_s),
        moves=moves,
        other_processes=_has_other_processes(run, planned, start_s, end_s),
    )
    why = _why_not_at_rest(run, rested_since_s, start_s)
    if why is not None:
        return msgspec.structs.replace(price, why=why)
    if price.after is None:
        why = _why_not_read_after(run, memory, settled_s, end_s)
        return msgspec.structs.replace(price, why=why)
    if has_other_connections(
        run,
        counts.ended + counts.stalled,
        (rested_since_s, start_s),
        (settled_s, end_s),
        # The server may still hold whom it silenced, and whose connect got no answer.
        more=counts.silenced + counts.phantoms + max(0, counts.away) + counts.waiting,
    ):
        return msgspec.structs.replace(price, why="other_connections")
    return _with_kept(price, price.after, collected=known.collected)


def _outage_s(planned: PlannedEvent | None) -> float:
    """For how long (s) an event keeps clients silent or has them stall."""
    if planned is None:
        return 0.0
    if planned.do == "stall" and planned.for_s is None:
        # It ends with the hold.
        return math.inf
    return planned.for_s or 0.0


def _has_other_processes(
    run: Run, planned: PlannedEvent | None, start_s: float, end_s: float
) -> bool:
    if planned is None or planned.do != "run":
        return False
    return bool(_counted(run.series(metrics.SERVER_ENDED), start_s, end_s))


def _why_not_at_rest(run: Run, rested_since_s: float, start_s: float) -> WhyUnknown | None:
    """Why the memory before an event was not that of a server at rest; None if it was."""
    if run.hold is None or run.hold.start_s > start_s - EVENT_SETTLES_S:
        return "early"
    if rested_since_s >= start_s:
        return "after_another"
    return None


def _why_not_read_after(run: Run, memory: Series, settled_s: float, end_s: float) -> WhyUnknown:
    """Why the server's memory was not read at rest after an event, whose window ended at
    ``end_s``.
    """
    if end_s <= settled_s:
        return "no_time"
    is_of_a_part = any(finding.code == MASTER_ENDED for finding in run.findings)
    if is_of_a_part and _lacks_a_part(run, memory, end_s):
        return "part_ended"
    return "no_time"


def _lacks_a_part(run: Run, memory: Series, at_s: float) -> bool:
    """Whether more of the server's processes had ended than started between the last reading of its
    memory and ``at_s``.
    """
    read = memory.between(-math.inf, at_s).t_s
    if not read:
        return False
    ended = _risen(run.series(metrics.SERVER_ENDED), read[-1], at_s)
    return ended > _risen(run.series(metrics.SERVER_STARTED), read[-1], at_s)


def _risen(counter: Series, from_s: float, to_s: float) -> float:
    """By how much a counter rose between the last readings until two instants; 0 where it was not
    read.
    """
    return (counter.last(to_s) or 0.0) - (counter.last(from_s) or 0.0)


def _with_kept(price: ServerPrice, after: float, *, collected: bool) -> ServerPrice:
    """The price with what the server did not give back, or why that is unknown."""
    if price.memory_before is None or price.moves is None:
        return msgspec.structs.replace(price, why="not_read")
    if collected:
        return msgspec.structs.replace(price, why="collected")
    kept = after - price.memory_before
    # It takes memory by pages, for other work too: a few more or less do not show.
    least = max(price.moves, FEWEST * PAGES / 2)
    if (kept or price.moves) and abs(kept) <= least:
        return msgspec.structs.replace(price, why="moves", moves=least)
    return msgspec.structs.replace(price, kept=kept)


def _moves_by_itself(run: Run, memory: Series) -> _Moves | None:
    """None if it was not read twice in any part of the hold outside of events."""
    if run.hold is None:
        return None
    spans = run.undisturbed_spans(run.hold.start_s, run.hold.end_s)
    quiet = [memory.between(start_s, end_s) for start_s, end_s in spans]
    quiet = [part for part in quiet if len(part) > 1]
    if not quiet:
        return None
    longest = max(quiet, key=_length_s)
    return _Moves(max(map(_range, quiet)), _per_second(longest), _length_s(longest))


def _range(part: Series) -> float:
    """Between the least and the largest value, each of which may stand alone where there are some
    more.
    """
    values = sorted(part.values)
    if len(values) >= EVENT_SETTLES_S:
        values = values[1:-1]
    return values[-1] - values[0]


def _per_second(part: Series) -> float:
    """The median of the slopes between its values, of many some: one that stands alone has no
    weight.
    """
    slopes = []
    rows = list(part.rows())[:: 1 + len(part) // MOST_BINS]
    for (first_s, first), (later_s, later) in itertools.combinations(rows, 2):
        slopes.append((later - first) / (later_s - first_s))
    return statistics.median(slopes or [0.0])


def _length_s(part: Series) -> float:
    return part.t_s[-1] - part.t_s[0]


def _level(memory: Series, start_s: float, end_s: float) -> float | None:
    readings = memory.between(start_s, end_s).values
    if not readings:
        return None
    return statistics.median(readings)


def _counted(counter: Series, start_s: float, end_s: float) -> float | None:
    """By how much a counter rose between the readings before two instants; None if it was not read
    right before one of them, or not between them, or began anew.
    """
    before = counter.between(start_s - MISSED_S, start_s).values
    after = counter.between(max(end_s - MISSED_S, math.nextafter(start_s, math.inf)), end_s).values
    if not before or not after or after[-1] < before[-1]:
        return None
    return after[-1] - before[-1]
