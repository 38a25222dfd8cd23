"""What a connection costs where memory is collected, by what the runtime says of itself.

Resident memory of a collected heap (Go, Node, the JVM) rises with garbage until a collection, and
comes to rest at a goal that follows what was alive at the last one. So its slope is the cost of
nothing: too low to size a host, too high for what the program keeps. Three costs are told apart:

- *live*: what is reachable, with the memory outside the heap that its objects hold (Buffers of
  Node, direct buffers of Java). It is known right after a collection, and at no other instant.
- *stacks*: of the runtime's threads, which no collection frees while the connections are held.
- *at goal*: what the heap, the stacks and the runtime's own structures take when the heap has
  filled to its goal. That is what a host must have.

bench/collected.py compares them with forced collections, and with memory after a long rest.
"""

from __future__ import annotations

import enum
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.bends import Sampled
from asyncli.analysis.constants import FEWEST, HALF, PART, WORTH_TELLING
from asyncli.analysis.regression import CONFIDENCE, FEWEST_POINTS, Point, regress
from asyncli.analysis.slope import (
    OTHERS_INTO_HOLD_S,
    PAGES,
    Cost,
    Fit,
    Fitter,
    median_point,
    successive_medians,
)
from asyncli.findings import collected as findings
from asyncli.model import metrics
from asyncli.model.go_heap import (
    MOST_UNSEEN,
    MOST_UNSEEN_OF_LIVE,
    USUAL_GOGC,
    gogc_of,
    headroom,
    least_goal,
    memory_limit_of,
)
from asyncli.model.records import Finding, Sample
from asyncli.model.run import SETTLING_COLLECTIONS, TICK_S, Run
from asyncli.model.samples import Series
from asyncli.model.units import format_bytes

# With one reading fewer the interval is three times as wide, by Student's t alone, and no reading
# can be seen to be off the line.
_FEWEST_OF_A_LINE = FEWEST_POINTS + 1
# One of these is on each page of a heap.
_OF_HEAP = (metrics.RUNTIME_HEAP_BYTES, metrics.RUNTIME_LIVE_BYTES)
# What only a collection changes.
_BY_COLLECTIONS = (
    metrics.RUNTIME_COLLECTED_AT_S,
    metrics.RUNTIME_COLLECTIONS,
    metrics.RUNTIME_LIVE_BYTES,
)

# What a runtime counts of the memory of its process.
_COUNTED_BY_RUNTIME = (
    metrics.RUNTIME_HEAP_BYTES,
    metrics.RUNTIME_STACKS_BYTES,
    metrics.RUNTIME_OWN_BYTES,
)

# Whose objects hold memory outside the heap that the runtime counts.
_HOLD_OUTSIDE = ("node", "jvm")

#: The names of the costs of a heap, in the order of a report.
HEAP_COSTS = ("live", "stacks", "at_goal")


class HeapCost(Cost):
    """A cost by the runtime's own numbers. ``collections``: those that were read; 0 where the
    number needs none (an allocator's own count). ``forced``: asyncli had asked for them.
    ``is_whole``: its levels have all memory of the processes, not the runtime's alone.
    """

    collections: int = 0
    forced: bool = False
    is_whole: bool = False
    #: By so much (bytes a connection) the interval reaches below that of the line: it may be
    #: growth, since the drain did not free it.
    not_freed: float = 0.0
    #: So much (bytes a connection) rose in the ramp by the clock alone, and is not in the cost.
    by_clock: float = 0.0
    #: So much of the cost (bytes a connection) is outside the heap, in what its objects hold there;
    #: None: not read, or the runtime does not count it.
    outside: float | None = None
    #: Objects of this runtime hold memory outside the heap, which nothing read: the cost is without
    #: it.
    lacks_outside: bool = False

    @property
    def perhaps_by_clock(self) -> float:
        """How much of a line over the same ramp may have come by the clock (bytes a connection)."""
        return self.not_freed + max(0.0, self.by_clock)


class HeapCosts(msgspec.Struct, frozen=True):
    """The costs of a connection in the server's heap; None where unknown, and why in
    ``findings``.
    """

    live: HeapCost | None = None
    stacks: HeapCost | None = None
    at_goal: HeapCost | None = None
    #: What of :attr:`live` is in the heap itself, which its greatest size (-Xmx) bounds.
    in_heap: HeapCost | None = None
    findings: tuple[Finding, ...] = ()
    #: The runtime's own structures.
    own: HeapCost | None = None


def why_no_heap(run: Run, heap: HeapCosts) -> str:
    """Why a cost of the server's heap is not known."""
    for finding in heap.findings:
        if finding.code in (findings.live_unknown.code, findings.heap_of_a_part.code):
            return finding.evidence
    if heap.live is not None:
        return "what was read of the server's heap does not tell it"
    if run.place.server_runtime.collected:
        return "nothing read the server's heap (--server-metrics or --collect does)"
    return "the server has no heap that asyncli can read; cost.server_user has all its memory"


class _Reading(NamedTuple):
    """A number (bytes) of the instant at which a collection ended (s on the run's clock), and the
    connections that were held then.
    """

    t_s: float
    n: float
    value: float


class _Collections(NamedTuple):
    """What the pages after collections say: what was alive, what of it in the heap itself, and the
    goal of the heap with all that is beside it, where that goal follows what is alive.
    ``at_least_goal``: the connections held where it was Go's least one; ``at_limit``: at how many
    it was what a memory limit leaves. ``rising``: how many came while connections were opened.
    """

    live: Sequence[_Reading]
    in_heap: Sequence[_Reading]
    at_goal: Sequence[_Reading]
    at_least_goal: Sequence[float]
    at_limit: int
    rising: int

    @property
    def says_goal(self) -> bool:
        """Whether any page says the goal."""
        return bool(self.at_goal or self.at_least_goal or self.at_limit)


def heap_costs(run: Run, fitter: Fitter, replaced_s: float | None = None) -> HeapCosts:
    """The costs by the pages of a run. ``fitter``: over the connections that the server holds.
    ``replaced_s``: when processes of the server were replaced in the ramp.
    """
    heap = _with_goal(run, fitter, replaced_s)
    if heap.stacks is None:
        return heap
    own = fitter.fit("own", run.series(metrics.RUNTIME_OWN_BYTES))
    return msgspec.structs.replace(heap, own=_by_fit(own))


def _with_goal(run: Run, fitter: Fitter, replaced_s: float | None) -> HeapCosts:
    forced = run.series(metrics.RUNTIME_FORCED_BYTES)
    allocated = run.series(metrics.RUNTIME_ALLOCATED_BYTES)
    heap = run.series(metrics.RUNTIME_HEAP_BYTES) or run.series(metrics.RUNTIME_LIVE_BYTES)
    if not forced and not allocated and not heap:
        return HeapCosts()
    refused = _of_a_part(run, fitter.held, is_forced=bool(forced))
    if refused is not None and forced:
        return HeapCosts(findings=(_asked_for(run, forced), refused))
    if refused is not None:
        return HeapCosts(findings=(refused,))
    if forced:
        return _of_forced(run, fitter, forced, replaced_s)
    if not heap:
        note = " of the memory in use by the allocator's own count"
        _, hold_end_s = _ends_of_ramp_and_hold(run)
        written = _as_written(allocated.between(-math.inf, hold_end_s), fitter.held)
        known_to = max(PAGES / 2, written.known_to)
        fit = fitter.fit("live", written.series, note=note, known_to=known_to)
        live = _by_fit(fit)
        return HeapCosts(live, in_heap=live)
    stacks = fitter.fit("stacks", run.series(metrics.RUNTIME_STACKS_BYTES), note=" of stacks")
    seen = _collections(run, fitter.held)
    live = _line(run, [*_before_connects(run), *seen.live])
    if live is None:
        kind = run.place.server_runtime.kind
        unknown = findings.live_unknown(
            len(seen.live),
            seen.rising,
            kind,
            forced=False,
            remedy_of_failed=remedy_of_failed_collections(run),
            at_limit=seen.at_limit > 0,
        )
        return HeapCosts(stacks=_by_fit(stacks), findings=(unknown,))
    in_heap = _line(run, [*_before_connects(run, with_outside=False), *seen.in_heap])
    known = HeapCosts(_with_outside(run, live, in_heap), _by_fit(stacks), in_heap=in_heap)
    at_goal = _at_goal(run, seen)
    if at_goal is not None or not seen.says_goal:
        return msgspec.structs.replace(known, at_goal=at_goal)
    return msgspec.structs.replace(known, findings=(_why_no_goal(run, seen, live),))


def _at_goal(run: Run, seen: _Collections) -> HeapCost | None:
    """The cost when the heap has filled to its goal. Beyond where a memory limit sets that, the
    line would go on to what the heap never takes.
    """
    if seen.at_limit:
        return None
    return _with_all_beside(run, _line(run, seen.at_goal))


def _why_no_goal(run: Run, seen: _Collections, live: HeapCost) -> Finding:
    """Why the cost at the heap's goal is unknown, though what is alive is known."""
    gogc = gogc_of(run)
    least = least_goal(gogc)
    limit = memory_limit_of(run) if seen.at_limit else None
    return findings.goal_unknown(
        len(seen.at_goal),
        len(seen.at_least_goal),
        seen.at_limit,
        least,
        limit,
        _connections_beyond_least_goal(run, seen, live, gogc),
    )


def _connections_beyond_least_goal(
    run: Run, seen: _Collections, live: HeapCost, gogc: int | None
) -> int | None:
    """How many connections fill the heap beyond its least goal often enough for a line; None where
    that is unknown.

    Beyond it a heap that only connections fill is collected each time that what is alive has risen
    by GOGC percent: a line needs three collections, over half of the connections or more.
    """
    times = 1 + (gogc or USUAL_GOGC) / 100
    if live.bytes_per_connection <= 0:
        return None
    by_live = (least_goal(gogc) / times - live.fixed_bytes) / live.bytes_per_connection
    at_least_goal = max(by_live, *seen.at_least_goal, 0.0)
    enough = at_least_goal * times**FEWEST_POINTS
    most_held = max(run.held.values)
    rounded = float(f"{max(enough, 2 * most_held):.2g}")
    return math.ceil(rounded)


def _with_outside(run: Run, live: HeapCost, in_heap: HeapCost | None) -> HeapCost:
    """The cost of what is alive with how much of it is outside the heap, as far as that is known.
    ``in_heap``: of the heap alone.
    """
    is_read = bool(run.series(metrics.RUNTIME_OUTSIDE_BYTES))
    is_read = is_read or bool(run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES))
    if is_read and in_heap is not None:
        outside = live.bytes_per_connection - in_heap.bytes_per_connection
        method = f"{live.method}, with what objects of the heap hold outside it"
        return msgspec.structs.replace(live, outside=outside, method=method)
    is_of_these = run.place.server_runtime.kind in _HOLD_OUTSIDE
    if is_read or not is_of_these or run.place.alive_source is not None:
        return live
    method = f"{live.method}, without what objects of the heap hold outside it: that was not read"
    return msgspec.structs.replace(live, lacks_outside=True, method=method)


def _with_all_beside(run: Run, at_goal: HeapCost | None) -> HeapCost | None:
    """The cost at the heap's goal with what the processes had beside the runtime's memory before
    the first connect in its fixed part: its levels are then what a host must have.
    """
    if at_goal is None:
        return None
    beside = memory_beside_runtime(run)
    if beside is None:
        method = f"{at_goal.method}; without the program's own pages, which were not read"
        return msgspec.structs.replace(at_goal, method=method)
    method = (
        f"{at_goal.method}, and the {format_bytes(beside)} that its processes had beside heap and "
        "stacks before the first connect"
    )
    fixed_bytes = at_goal.fixed_bytes + beside
    return msgspec.structs.replace(at_goal, fixed_bytes=fixed_bytes, method=method, is_whole=True)


def memory_beside_runtime(run: Run) -> float | None:
    """What the server's processes had before the first connect beside heap, stacks and the
    runtime's own memory (bytes): programs, libraries, free room. None where it was not read.
    """
    memory = run.series(metrics.SERVER_PSS_BYTES) or run.series(metrics.SERVER_RSS_BYTES)
    before = memory.between(-math.inf, run.first_connect_s).values
    if not before:
        return None
    beside = statistics.median(before)
    for name in _COUNTED_BY_RUNTIME:
        counted = run.series(name).between(-math.inf, run.first_connect_s).values
        if counted:
            beside -= statistics.median(counted)
    return max(0.0, beside)


class _Written(NamedTuple):
    """A number of a page at the instants of which it is. ``known_to``: the bytes by which it may be
    of more or fewer connections than were held then.
    """

    series: Series
    known_to: float


def _as_written(page: Series, held: Series) -> _Written:
    """A number of a page at the instants of which it is: that of each change, and later ones until
    a connection comes or goes.

    A server may write its memory less often than it counts its connections (Envoy: every 5 s), so
    the number that a page repeats is of fewer connections than the page has. One that then changes
    was written since the page before: the middle is off by half of that time at most.
    """
    written = Series()
    last_value: float | None = None
    last_t_s = 0.0
    n_when_shown = 0.0
    was_repeated = False
    most_off = 0.0
    for t_s, value in page.rows():
        n = held.at(t_s) or 0.0
        if value != last_value:
            written_s = (last_t_s + t_s) / 2 if was_repeated else t_s
            most_off = max(most_off, abs(n - (held.at(written_s) or 0.0)))
            n_when_shown = n
            written.t_s.append(written_s)
            written.values.append(value)
        elif n == n_when_shown:
            written.t_s.append(t_s)
            written.values.append(value)
        was_repeated = value == last_value
        last_value = value
        last_t_s = t_s
    peak = max(held.values, default=0.0)
    if not peak or not written:
        return _Written(written, 0.0)
    risen = max(written.values) - min(written.values)
    return _Written(written, risen / peak * most_off)


def _before_connects(run: Run, *, with_outside: bool = True) -> list[_Reading]:
    """The heap before the first connect. Without a collection there it has garbage in it, so that
    it may be off the line, which the fit decides.
    """
    readings = []
    for page in _pages(run, run.first_connect_s):
        for name in (metrics.RUNTIME_LIVE_BYTES, metrics.RUNTIME_HEAP_BYTES):
            if name in page.values:
                value = page.values[name]
                if with_outside:
                    value += _outside(page)
                readings.append(_Reading(page.t_s, 0.0, value))
                break
    return readings


def _outside(page: Sample) -> float:
    """What objects of the heap hold outside it (bytes), by a page."""
    return page.values.get(metrics.RUNTIME_OUTSIDE_BYTES, 0.0)


def live_over_time(run: Run) -> Series:
    """What was alive in the server's heap (bytes) at the pages after its collections."""
    readings = _collections(run, run.held).live
    return Series([reading.t_s for reading in readings], [reading.value for reading in readings])


def remedy_of_failed_collections(run: Run) -> str | None:
    """The remedy of collections that were asked for in vain; None where none was."""
    for said in run.findings:
        if said.code == findings.collection_failed.code:
            return said.remedy
    return None


def _why_collections_failed(run: Run) -> str:
    """Why asyncli asked for no more collections; "" where nothing hindered it."""
    for said in run.findings:
        if said.code == findings.collection_failed.code:
            return str(said.fields.get("why") or "")
    return ""


def _asked_for(run: Run, forced: Series) -> Finding:
    """That collections were asked for, without what they say: of one process among several, what
    connections added or left cannot be told.
    """
    longest_s = max(run.series(metrics.RUNTIME_FORCED_S).values, default=0.0)
    return findings.collections_forced(len(forced), longest_s)


def _of_forced(run: Run, fitter: Fitter, forced: Series, replaced_s: float | None) -> HeapCosts:
    """By the collections that asyncli asked for: before the first connect, at the end of each
    plateau and at the hold's end. They keep the heap from its goal, so that is not told.
    """
    processes = _most_processes(run)
    says_descriptors = bool(run.series(metrics.RUNTIME_DESCRIPTORS))
    if processes > 1 and not says_descriptors:
        refused = findings.heap_of_a_part(None, processes, None, None)
        return HeapCosts(findings=(_asked_for(run, forced), refused))
    longest_s = max(run.series(metrics.RUNTIME_FORCED_S).values, default=0.0)
    asked_for = findings.collections_forced(len(forced), longest_s, *_alive_of_added(run, forced))
    asked = _asked(run, fitter.held, forced)
    line = _line_of_asked(run, asked)
    stacks = fitter.fit("stacks", run.series(metrics.RUNTIME_STACKS_BYTES), note=" of stacks")
    # Another process than the server answers so, and so does one whose noise hides what it keeps.
    if line is None or line.ci95[0] <= 0:
        upper = None if line is None else line.ci95[1]
        all_held = max((reading.n for reading in asked.readings), default=0.0)
        rising = sum(0 < reading.n < all_held for reading in asked.readings)
        kind = run.place.server_runtime.kind
        unknown = findings.live_unknown(
            len(asked.readings),
            rising,
            kind,
            forced=True,
            most_bytes=upper,
            plateaus=run.plan.plateaus,
            others=_others_at(run, asked.readings),
            replaced_s=replaced_s,
            why_failed=_why_collections_failed(run),
            remedy_of_failed=remedy_of_failed_collections(run),
        )
        return HeapCosts(stacks=_by_fit(stacks), findings=(asked_for, unknown))
    live = _down_to_growth(line, asked)
    in_heap: HeapCost | None = live
    if run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES):
        in_heap = _in_heap_by_asked(run, fitter.held, forced)
    live = _with_outside(run, live, in_heap)
    return HeapCosts(live, _by_fit(stacks), in_heap=in_heap, findings=(asked_for,))


class _Alive(NamedTuple):
    """What was alive after forced collections until the hold's end, and ``after_drain`` (None where
    it did not settle), less what came by the ``clock``. ``rests``: those of the ramp with enough of
    them.
    """

    readings: Sequence[_Reading]
    after_drain: _Reading | None
    clock: _Growth
    rests: Sequence[_Rest]


def _asked(run: Run, held: Series, alive: Series) -> _Alive:
    """``alive``: after forced collections."""
    _, hold_end_s = _ends_of_ramp_and_hold(run)
    clock = _clock(run, alive) or _NO_GROWTH

    def of_one_age(t_s: float, n: float, value: float) -> _Reading:
        return _Reading(t_s, n, value - clock.per_s * (t_s - alive.t_s[0]))

    readings = []
    for t_s, value in alive.rows():
        # The collection at the hold's end takes a while.
        if t_s <= hold_end_s:
            readings.append(of_one_age(t_s, held.at(t_s) or 0.0, value))
    after_drain = _after_drain(run, alive)
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


def _others_at(run: Run, readings: Sequence[_Reading]) -> int:
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


def _line_at_rests(run: Run, readings: Sequence[_Reading]) -> HeapCost | None:
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


def _levels(readings: Sequence[_Reading]) -> int:
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


def stays_alive(run: Run) -> float | None:
    """By how much more (bytes) is alive after the drain than was before the first connect, each
    just after a collection that asyncli asked for; None where that is not known.
    """
    forced = run.series(metrics.RUNTIME_FORCED_BYTES)
    before = forced.between(-math.inf, run.first_connect_s).values
    after_drain = _alive_after_drain(run, forced)
    if not before or after_drain is None:
        return None
    return after_drain - statistics.median(before)


def _alive_after_drain(run: Run, forced: Series) -> float | None:
    """What was alive (bytes) at the last of the collections that settle the heap after the drain;
    None without two: what one of them leaves may be in Go's pools.
    """
    settled = _after_drain(run, forced)
    return None if settled is None else settled.value


def _after_drain(run: Run, forced: Series) -> _Reading | None:
    residue = run.phase("residue")
    if residue is None:
        return None
    rows = list(forced.between(residue.start_s, math.inf).rows())[:SETTLING_COLLECTIONS]
    if len(rows) < 2:
        return None
    t_s, value = rows[-1]
    return _Reading(t_s, 0.0, value)


class _Growth(NamedTuple):
    """How fast a heap rises, and half of the interval (bytes/s)."""

    per_s: float
    half: float


_NO_GROWTH = _Growth(0.0, 0.0)


def _clock(run: Run, forced: Series) -> _Growth | None:
    """How fast the heap rises by the clock alone: after the drain, when it had settled, with no
    connections and no heartbeats. None where fewer than three collections show it.

    The median of the slopes between any two of them (Theil and Sen). Its error is that between the
    greatest and the least step: what comes now and then may come once more or less in that time.
    """
    residue = run.phase("residue")
    if residue is None:
        return None
    rows = list(forced.between(residue.start_s, math.inf).rows())[SETTLING_COLLECTIONS - 1 :]
    if len(rows) < FEWEST_POINTS:
        return None
    slopes = []
    for (before_s, before), (after_s, after) in itertools.combinations(rows, 2):
        slopes.append((after - before) / (after_s - before_s))
    steps = [after - before for (_, before), (_, after) in itertools.pairwise(rows)]
    span_s = rows[-1][0] - rows[0][0]
    return _Growth(statistics.median(slopes), (max(steps) - min(steps)) / span_s)


class _Rest(NamedTuple):
    """The readings of a rest of the ramp, without the first: that has what connecting left to the
    runtime, and what goes at the second collection.
    """

    readings: Sequence[_Reading]

    def growth_per_s(self, cost: HeapCost) -> float:
        """How fast the heap rose (bytes/s) beyond what late connections cost."""
        first = self.readings[0]
        last = self.readings[-1]
        late = cost.bytes_per_connection * (last.n - first.n)
        return (last.value - first.value - late) / (last.t_s - first.t_s)


def _rests(run: Run, held: Series, readings: Sequence[_Reading]) -> list[_Rest]:
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


def _line_through_rests(readings: Sequence[_Reading], rests: Sequence[_Rest]) -> HeapCost | None:
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
    return _by_points(points, how, collections, forced=True)


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
    full = next(reading for reading in connected if reading.n >= at_end.n)
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


def _growth_of(cost: HeapCost, rests: Sequence[_Rest]) -> _Growth:
    """The mean over the rests, by Student's t: rests differ by more than their readings' errors."""
    from asyncli.analysis.special import stdtrit

    rates = [rest.growth_per_s(cost) for rest in rests]
    error = statistics.stdev(rates) / math.sqrt(len(rates))
    quantile = float(stdtrit(len(rates) - 1, (1 + CONFIDENCE) / 2))
    return _Growth(statistics.mean(rates), quantile * error)


def _by_points(
    points: Sequence[Point], how: str, collections: int, *, forced: bool = False
) -> HeapCost | None:
    """The cost by the line through these points."""
    line = regress(points)
    if line is None:
        return None
    # A runtime counts to the byte, and takes memory by pages.
    half = max(line.half, PAGES / max(point.n for point in points))
    on_line = len(points) - line.apart
    return HeapCost(
        line.slope,
        (line.slope - half, line.slope + half),
        line.intercept,
        how,
        on_line,
        line.r2,
        collections=collections,
        forced=forced,
    )


def _of_a_part(run: Run, held: Series, *, is_forced: bool) -> Finding | None:
    """A finding if what is known of a heap is, or may be, of a process that does not hold all
    connections: one of two workers opens the half, and an exporter's process none.
    """
    share = _share_of_connections(run, held)
    if share is not None:
        if _is_whole(share):
            return None
        return findings.heap_of_a_part(share, None, None, None, run.place.server_name)
    # Of forced collections see _of_forced.
    if is_forced or _holds_in_one_process(run, held):
        return None
    return findings.heap_of_a_part(None, _most_processes(run), None, None)


def _most_processes(run: Run) -> int:
    """How many processes the server had at most; 0 where they are not known."""
    return round(max(run.series(metrics.SERVER_PROCESSES).values, default=0.0))


def _share_of_connections(run: Run, held: Series) -> float | None:
    """How many descriptors of the page's process, or connections by its own count, came with each
    connection; None if the page says neither.
    """
    opened = run.series(metrics.RUNTIME_DESCRIPTORS) or run.series(metrics.RUNTIME_CONNECTIONS)
    return _risen_for_each(run, opened, held)


def _holds_in_one_process(run: Run, held: Series) -> bool:
    """Whether one process of the server holds all of the connections, as far as is known: it has
    one, or the descriptors of its fullest one rise by one for each.
    """
    if _most_processes(run) <= 1:
        return True
    share = _risen_for_each(run, run.series(metrics.SERVER_DESCRIPTORS), held)
    return share is not None and _is_whole(share)


def _is_whole(share: float) -> bool:
    return abs(share - 1.0) <= 2 * WORTH_TELLING


def _risen_for_each(run: Run, opened: Series, held: Series) -> float | None:
    """By how much a count rose for each connection; None if it was not read before the first
    connect and in the hold's first seconds.
    """
    before = opened.between(-math.inf, run.first_connect_s).values
    hold = run.phase("hold")
    if not before or hold is None:
        return None
    _, hold_end_s = _ends_of_ramp_and_hold(run)
    during = opened.between(hold.start_s, min(hold_end_s, hold.start_s + OTHERS_INTO_HOLD_S))
    if not during:
        return None
    connections = statistics.median(held.at(t_s) or 0.0 for t_s in during.t_s)
    connections -= held.at(run.first_connect_s) or 0.0
    if connections <= 0:
        return None
    return (statistics.median(during.values) - statistics.median(before)) / connections


def _collections(run: Run, held: Series) -> _Collections:
    """What the first page says after each collection, or after several that came between two
    pages, until the hold's end.
    """
    ramp_end_s, hold_end_s = _ends_of_ramp_and_hold(run)
    half = max(held.values, default=0.0) / 2
    live = []
    in_heap = []
    goals: dict[_Rule, list[_Reading]] = {rule: [] for rule in _Rule}
    rising = 0
    pages = _pages(run, hold_end_s)
    for before, page, after in zip(pages, pages[1:], [*pages[2:], None], strict=False):
        if not _was_collected(before.values, page.values):
            continue
        collected_s = _collected_at(run, before.t_s, page)
        n = held.at(collected_s) or 0.0
        if collected_s > ramp_end_s and n < half:
            continue
        rising += run.first_connect_s < collected_s <= ramp_end_s
        live.append(_Reading(collected_s, n, _alive_at(collected_s, page, after)))
        heap = _alive_at(collected_s, page, after, with_outside=False)
        in_heap.append(_Reading(collected_s, n, heap))
        if metrics.RUNTIME_GOAL_BYTES in page.values:
            goals[_rule_of_goal(run, page.values)].append(
                _Reading(collected_s, n, _when_full(page.values))
            )
    at_least_goal = [reading.n for reading in goals[_Rule.LEAST]]
    at_limit = len(goals[_Rule.LIMIT])
    return _Collections(live, in_heap, goals[_Rule.LIVE], at_least_goal, at_limit, rising)


class _Rule(enum.Enum):
    """What sets the goal of a heap: what is alive, Go's least goal, or a memory limit."""

    LIVE = enum.auto()
    LEAST = enum.auto()
    LIMIT = enum.auto()


def _rule_of_goal(run: Run, page: Mapping[str, float]) -> _Rule:
    goal = page[metrics.RUNTIME_GOAL_BYTES]
    if goal <= least_goal(gogc_of(run)):
        return _Rule.LEAST
    limit = memory_limit_of(run)
    if limit is not None and _may_be_at_limit(page, goal, limit):
        return _Rule.LIMIT
    return _Rule.LIVE


def _may_be_at_limit(page: Mapping[str, float], goal: float, limit: float) -> bool:
    """Whether a memory limit, and not what is alive, may have set this goal of Go's heap.

    It sets the goal to what the limit leaves, or to what is alive if that is more. A part of what
    it leaves nobody says.
    """
    unseen = MOST_UNSEEN + MOST_UNSEEN_OF_LIVE * page.get(metrics.RUNTIME_HEAP_BYTES, 0.0)
    left = max(0.0, limit - _beside_heap(page) - unseen)
    return goal >= left - headroom(left)


def _alive_at(
    collected_s: float, page: Sample, after: Sample | None, *, with_outside: bool = True
) -> float:
    """What was alive when a collection ended (bytes), by the first page after it.

    What was allocated between the two is in that page, and the heap goes on rising as fast until
    the next one, unless that comes after a further collection: then nobody knows how fast.
    """
    outside = _outside(page) if with_outside else 0.0
    if metrics.RUNTIME_LIVE_BYTES in page.values:
        return page.values[metrics.RUNTIME_LIVE_BYTES] + outside
    heap = page.values[metrics.RUNTIME_HEAP_BYTES] + outside
    if after is None or _was_collected(page.values, after.values):
        return heap
    if metrics.RUNTIME_HEAP_BYTES not in after.values:
        return heap
    outside_after = _outside(after) if with_outside else 0.0
    risen = after.values[metrics.RUNTIME_HEAP_BYTES] + outside_after - heap
    return heap - risen / (after.t_s - page.t_s) * (page.t_s - collected_s)


def _ends_of_ramp_and_hold(run: Run) -> tuple[float, float]:
    """When the ramp and the hold ended (s on the run's clock); infinite while they go on."""
    hold = run.phase("hold")
    if hold is None:
        return math.inf, math.inf
    if hold.end_s is None:
        return hold.start_s, math.inf
    return hold.start_s, hold.end_s


def _pages(run: Run, until_s: float) -> list[Sample]:
    """The samples with a page of a heap, until then (s on the run's clock); with what is outside
    it, where the pages say that.
    """
    says_outside = bool(run.series(metrics.RUNTIME_OUTSIDE_BYTES))
    pages = []
    for sample in run.samples:
        if sample.t_s > until_s or not any(name in sample.values for name in _OF_HEAP):
            continue
        if metrics.RUNTIME_OUTSIDE_BYTES in sample.values or not says_outside:
            pages.append(sample)
    return pages


def _was_collected(before: Mapping[str, float], page: Mapping[str, float]) -> bool:
    """Whether a collection ended between two pages: one of the numbers that only a collection
    changes is another. A runtime may leave them out until the first one.
    """
    return any(name in page and before.get(name) != page[name] for name in _BY_COLLECTIONS)


def _collected_at(run: Run, before_s: float, page: Sample) -> float:
    """When the last collection before a page ended (s on the run's clock); the middle of the time
    since the page before, if the server's clock is not ours.
    """
    ended_s = page.values.get(metrics.RUNTIME_COLLECTED_AT_S, math.inf) - run.started_wall_s
    if before_s <= ended_s <= page.t_s:
        return ended_s
    return (before_s + page.t_s) / 2


def _when_full(page: Mapping[str, float]) -> float:
    """What the runtime takes when its heap has filled to its goal (bytes)."""
    return page[metrics.RUNTIME_GOAL_BYTES] + _beside_heap(page)


def _beside_heap(page: Mapping[str, float]) -> float:
    """What the runtime has beside its heap, by its page (bytes)."""
    beside = (metrics.RUNTIME_STACKS_BYTES, metrics.RUNTIME_OWN_BYTES)
    return math.fsum(page.get(name, 0.0) for name in beside)


def _line(run: Run, readings: Sequence[_Reading]) -> HeapCost | None:
    """The line through the readings after collections; None if they are too few, or if too few of
    the connections came between them.
    """
    connected = [reading for reading in readings if reading.n > 0]
    before = [reading for reading in readings if reading.t_s <= run.first_connect_s]
    if len(connected) + bool(before) < _FEWEST_OF_A_LINE:
        return None
    # Those that all come in the hold show one level.
    places = sorted({reading.n for reading in connected})
    if len(places) < FEWEST_POINTS or 2 * places[0] > places[-1]:
        return None
    points = [median_point(before, baseline=True)] if before else []
    points += successive_medians([[Sampled(*reading) for reading in connected]])
    how = f"the pages after {len(connected)} collections, linear regression"
    return _by_points(points, how, len(connected))


def _by_fit(fit: Fit | int) -> HeapCost | None:
    """The cost of a metric that needs no collection."""
    if not isinstance(fit, Fit):
        return None
    return HeapCost(**msgspec.structs.asdict(fit.cost))
