"""What a connection keeps alive, by the collections that asyncli asked the server's runtime for.

They are at rest: before the first connect, in each rest of the ramp, at the hold's end, and after
the drain. What rises by the clock alone shows in those after the drain, when nothing is connected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.after_drain import (
    NO_GROWTH,
    NO_THREADS,
    Growth,
    by_the_clock,
    risen_by_the_clock,
    settled_reading,
    stays_alive,
    steady_rise,
    threads_stay,
)
from asyncli.analysis.constants import FEWEST, HALF, PART
from asyncli.analysis.heap_cost import (
    HeapCost,
    HeapCosts,
    HeapReading,
    by_fit,
    by_points,
    ends_of_ramp_and_hold,
    most_processes,
    with_outside,
)
from asyncli.analysis.regression import CONFIDENCE, FEWEST_POINTS, Point
from asyncli.analysis.slope import Fitter, median_point
from asyncli.findings import collected as findings
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import TICK_S, Run
from asyncli.model.samples import Series
from asyncli.model.units import format_bytes


def _failed_collections(run: Run) -> Finding | None:
    """Why asyncli asked for no more collections; None where nothing hindered it."""
    for said in run.findings:
        if said.code == findings.collection_failed.code:
            return said
    return None


def remedy_of_failed_collections(run: Run) -> str | None:
    """The remedy of collections that were asked for in vain; None where none was."""
    failed = _failed_collections(run)
    return None if failed is None else failed.remedy


def finding_of_asked(run: Run, forced: Series) -> Finding:
    """That collections were asked for, without what they say: of one process among several, what
    connections added or left cannot be told.
    """
    longest_s = max(run.series(metrics.RUNTIME_FORCED_S).values, default=0.0)
    return findings.collections_forced(len(forced), longest_s)


def costs_of_asked(run: Run, fitter: Fitter, forced: Series, replaced_s: float | None) -> HeapCosts:
    """The costs by the collections that asyncli asked for. They keep the heap from its goal, which
    is not told. ``replaced_s``: when processes of the server were replaced in the ramp.
    """
    processes = most_processes(run)
    says_descriptors = bool(run.series(metrics.RUNTIME_DESCRIPTORS))
    if processes > 1 and not says_descriptors:
        refused = findings.heap_of_a_part(None, processes, None, None)
        return HeapCosts(findings=(finding_of_asked(run, forced), refused))
    longest_s = max(run.series(metrics.RUNTIME_FORCED_S).values, default=0.0)
    stays, added = _alive_of_added(run, forced)
    threads = threads_stay(run) or NO_THREADS
    told = [
        findings.collections_forced(
            len(forced),
            longest_s,
            stays,
            added,
            by_clock_bytes=risen_by_the_clock(run, forced),
            stacks_bytes=threads.stacks_bytes,
            goroutines=threads.goroutines,
            residue_s=run.plan.residue_s,
        )
    ]
    rise = steady_rise(run, forced)
    if rise is not None:
        told.append(findings.live_rises(run.place.server_name, rise.per_s, rise.half))
    asked = _asked(run, fitter.held, forced)
    line = _line_of_asked(run, asked)
    stacks = fitter.fit("stacks", run.series(metrics.RUNTIME_STACKS_BYTES), note=" of stacks")
    # Another process than the server answers so, and so does one whose noise hides what it keeps.
    if line is None or line.ci95[0] <= 0:
        upper = None if line is None else line.ci95[1]
        all_held = max((reading.n for reading in asked.readings), default=0.0)
        rising = sum(0 < reading.n < all_held for reading in asked.readings)
        kind = run.place.server_runtime.kind
        failed = _failed_collections(run)
        why_failed = ""
        if failed is not None:
            why_failed = str(failed.fields.get("why") or "")
        unknown = findings.live_unknown(
            len(asked.readings),
            rising,
            kind,
            forced=True,
            most_bytes=upper,
            plateaus=run.plan.plateaus,
            others=_others_at(run, asked.readings),
            replaced_s=replaced_s,
            why_failed=why_failed,
            remedy_of_failed=remedy_of_failed_collections(run),
        )
        return HeapCosts(stacks=by_fit(stacks), findings=(*told, unknown))
    live = _down_to_growth(line, asked)
    in_heap: HeapCost | None = live
    if run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES):
        in_heap = _in_heap_by_asked(run, fitter.held, forced)
    live = with_outside(run, live, in_heap)
    return HeapCosts(
        live, by_fit(stacks), in_heap=in_heap, findings=tuple(told), stayed=stays or 0.0
    )


class _Alive(NamedTuple):
    """What was alive after forced collections until the hold's end, and ``after_drain`` (None where
    it did not settle), less what came by the ``clock``. ``rests``: those of the ramp with enough of
    them.
    """

    readings: Sequence[HeapReading]
    after_drain: HeapReading | None
    clock: Growth
    rests: Sequence[_Rest]


def _asked(run: Run, held: Series, alive: Series) -> _Alive:
    """``alive``: after forced collections."""
    _, hold_end_s = ends_of_ramp_and_hold(run)
    clock = by_the_clock(run, alive) or NO_GROWTH

    def of_one_age(t_s: float, n: float, value: float) -> HeapReading:
        return HeapReading(t_s, n, value - clock.per_s * (t_s - alive.t_s[0]))

    readings = []
    for t_s, value in alive.rows():
        # The collection at the hold's end takes a while.
        if t_s <= hold_end_s:
            readings.append(of_one_age(t_s, held.at(t_s) or 0.0, value))
    after_drain = settled_reading(run, alive)
    if after_drain is not None:
        after_drain = of_one_age(*after_drain)
    return _Alive(readings, after_drain, clock, _rests(run, held, readings))


def _line_of_asked(run: Run, asked: _Alive) -> HeapCost | None:
    """The line through readings after forced collections; None for too few of them."""
    if len(asked.rests) >= FEWEST_POINTS:
        return _line_through_rests(asked.readings, asked.rests)
    return _line_at_rests(run, asked.readings)


def _in_heap_by_asked(run: Run, held: Series, forced: Series) -> HeapCost | None:
    """The cost in the heap alone; None where a reading does not tell it from what is outside."""
    outside_at = dict(run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES).rows())
    in_heap = Series()
    for t_s, alive in forced.rows():
        if t_s not in outside_at:
            return None
        in_heap.t_s.append(t_s)
        in_heap.values.append(alive - outside_at[t_s])
    asked = _asked(run, held, in_heap)
    line = _line_of_asked(run, asked)
    if line is None:
        return None
    return _down_to_growth(line, asked)


def _others_at(run: Run, readings: Sequence[HeapReading]) -> int:
    """The most connections that other clients had at the server when its heap was read, by the
    kernel's count; 0 if it is not known, or less than half of this run's.
    """
    count = run.series(metrics.SERVER_SOCKETS)
    most_others = 0.0
    for reading in readings:
        others = (count.at(reading.t_s) or 0.0) - (run.held.at(reading.t_s) or 0.0)
        most_others = max(most_others, others)
    if most_others < HALF * max(run.held.values):
        return 0
    return round(most_others)


def _line_at_rests(run: Run, readings: Sequence[HeapReading]) -> HeapCost | None:
    """The line through readings after forced collections; None for too few numbers of
    connections.
    """
    before = [reading for reading in readings if reading.t_s <= run.first_connect_s]
    at_rest = [reading for reading in readings if reading.n > 0]
    if _levels(at_rest) < FEWEST_POINTS:
        return None
    # Of many plateaus the baseline may be off the line: the first connections load code.
    may_be_apart = len(at_rest) >= FEWEST
    points = [median_point(before, baseline=may_be_apart)] if before else []
    points += [Point(*reading) for reading in at_rest]
    return _by_collections(points, len(before) + len(at_rest))


def _levels(readings: Sequence[HeapReading]) -> int:
    """How many different numbers of connections the readings are of: those of one rest are one,
    though a late connection may come between them.
    """
    levels = 0
    counted = 0.0
    all_held = max((reading.n for reading in readings), default=0.0)
    for n in sorted(reading.n for reading in readings):
        if not levels or n - counted >= PART * HALF * all_held:
            levels += 1
            counted = n
    return levels


def _alive_of_added(run: Run, forced: Series) -> tuple[float | None, float | None]:
    """What is alive after the drain beyond what was before the first connect, and the most that the
    run had added (bytes); None where the first is unknown, or little of the second.
    """
    stays = stays_alive(run)
    if stays is None:
        return None, None
    before = statistics.median(forced.between(-math.inf, run.first_connect_s).values)
    with_connections = forced.between(run.first_connect_s, run.stop_s).values
    added = max(with_connections, default=before) - before
    if stays <= PART * added:
        return None, None
    return stays, added


class _Rest(NamedTuple):
    """The readings of a rest of the ramp, without the first: that has what connecting left to the
    runtime, and what goes at the second collection.
    """

    readings: Sequence[HeapReading]

    def growth_per_s(self, cost: HeapCost) -> float:
        """How fast the heap rose (bytes/s) beyond what late connections cost."""
        first = self.readings[0]
        last = self.readings[-1]
        late = cost.bytes_per_connection * (last.n - first.n)
        return (last.value - first.value - late) / (last.t_s - first.t_s)


def _rests(run: Run, held: Series, readings: Sequence[HeapReading]) -> list[_Rest]:
    """The rests of the ramp with two readings or more after their first.

    How many are held is known each second, and between two of them it is interpolated: at a rest's
    beginning, too low.
    """
    ramp = run.phase("ramp")
    if ramp is None:
        return []
    rests = []
    for begin, end in run.plan.schedule.rests():
        within = []
        for reading in readings:
            if begin <= reading.t_s - ramp.start_s <= end:
                within.append(reading)
        if len(within) > 2:
            last_s = within[-1].t_s
            settled = []
            for reading in within[1:]:
                connections = held.at(min(reading.t_s + TICK_S, last_s)) or 0.0
                settled.append(reading._replace(n=connections))
            rests.append(_Rest(settled))
    return rests


def _line_through_rests(readings: Sequence[HeapReading], rests: Sequence[_Rest]) -> HeapCost | None:
    """The line through the readings of the rests, and those before the first connect. A reading of
    the hold's end is of another age, and is left out.
    """
    first_s = rests[0].readings[0].t_s
    before = [reading for reading in readings if reading.n == 0 and reading.t_s < first_s]
    # Of many plateaus the baseline may be off the line: the first connections load code.
    may_be_apart = len(rests) >= FEWEST
    points = [median_point(before, baseline=may_be_apart)] if before else []
    for rest in rests:
        points += [Point(*reading) for reading in rest.readings]
    collections = sum(reading.t_s <= rests[-1].readings[-1].t_s for reading in readings)
    return _by_collections(points, collections)


def _by_collections(points: Sequence[Point], collections: int) -> HeapCost | None:
    how = f"{collections} collections that asyncli asked for, at rest, linear regression"
    return by_points(points, how, collections, forced=True)


def _down_to_growth(line: HeapCost, asked: _Alive) -> HeapCost:
    """The cost with an interval that reaches down as far as growth may look like a cost.

    In a ramp, time and connections rise together. What rises by the clock alone is known from after
    the drain, and is taken off what was ``asked``. What rises by heartbeats is not: it may be a
    leak, or what a connection takes with its first ones. Two bounds hold for both, and the higher
    one counts. In the ramp it rose no faster than in the rests, where no connection comes. And
    connections cost no less than the drain freed: a leak stays then, and so do code and pools.
    """
    clock = asked.clock
    connected = [reading for reading in asked.readings if reading.n > 0]
    first = connected[0]
    at_end = connected[-1]
    full = max(connected, key=lambda reading: reading.n)
    seconds_a_connection = (full.t_s - first.t_s) / (full.n - first.n)
    value = line.bytes_per_connection
    half = math.hypot(line.half_width, clock.half * seconds_a_connection)
    bounds = []
    if len(asked.rests) >= FEWEST_POINTS:
        growth = _growth_of(line, asked.rests)
        most_per_s = max(0.0, growth.per_s + growth.half)
        bounds.append(value - half - most_per_s * seconds_a_connection)
    if asked.after_drain is not None:
        freed = at_end.value - asked.after_drain.value
        freed -= clock.half * (asked.after_drain.t_s - at_end.t_s)
        bounds.append(freed / at_end.n)
    low = value - half
    least = max(0.0, min(low, max(bounds, default=low)))
    by_clock = clock.per_s * seconds_a_connection
    method = line.method
    if by_clock:
        method += f", less {format_bytes(clock.per_s)} a second that came without connections"
    if least < low:
        method += "; the interval reaches down to what may be growth"
    return msgspec.structs.replace(
        line,
        ci95=(least, value + half),
        method=method,
        not_freed=max(0.0, low - least),
        by_clock=by_clock,
    )


def _growth_of(cost: HeapCost, rests: Sequence[_Rest]) -> Growth:
    """The mean over the rests, by Student's t: rests differ by more than their readings' errors."""
    from asyncli.analysis.special import stdtrit

    rates = [rest.growth_per_s(cost) for rest in rests]
    error = statistics.stdev(rates) / math.sqrt(len(rates))
    quantile = float(stdtrit(len(rates) - 1, (1 + CONFIDENCE) / 2))
    return Growth(statistics.mean(rates), quantile * error)
