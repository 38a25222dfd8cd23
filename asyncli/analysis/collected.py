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
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.asked_collections import (
    costs_of_asked,
    finding_of_asked,
    remedy_of_failed_collections,
)
from asyncli.analysis.bends import Sampled
from asyncli.analysis.heap_cost import (
    HeapCost,
    HeapCosts,
    HeapReading,
    by_fit,
    by_points,
    ends_of_ramp_and_hold,
    most_processes,
    runtime_kind,
    with_outside,
)
from asyncli.analysis.holders import Holders
from asyncli.analysis.regression import FEWEST_POINTS
from asyncli.analysis.server_count import is_one_for_each, risen_for_each
from asyncli.analysis.slope import (
    PAGES,
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
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.units import format_bytes

# With one reading fewer the interval is three times as wide, by Student's t alone, and no reading
# can be seen to be off the line.
_FEWEST_OF_A_LINE = FEWEST_POINTS + 1
# A collection that marks while the program runs keeps what is allocated meanwhile. Of Node's heap
# that grew with it: lines by pages were up to 6 % above those by collections that asyncli asks for,
# which nothing runs beside (bench/collected.py).
_KEPT_WHILE_MARKING = 1 / 16
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


class _Collections(NamedTuple):
    """What the pages after collections say: what was alive, what of it in the heap itself, and the
    goal of the heap with all that is beside it, where that goal follows what is alive.
    ``at_least_goal``: the connections held where it was Go's least one; ``at_limit``: at how many
    it was what a memory limit leaves. ``rising``: how many came while connections were opened.
    """

    live: Sequence[HeapReading]
    in_heap: Sequence[HeapReading]
    at_goal: Sequence[HeapReading]
    at_least_goal: Sequence[float]
    at_limit: int
    rising: int

    @property
    def says_goal(self) -> bool:
        """Whether any page says the goal."""
        return bool(self.at_goal or self.at_least_goal or self.at_limit)


def heap_costs(
    run: Run,
    fitter: Fitter,
    replaced_s: float | None = None,
    holders: Holders = Holders(),  # noqa: B008 - it cannot be changed
) -> HeapCosts:
    """The costs by the pages of a run. ``fitter``: over the connections that the server holds.
    ``replaced_s``: when processes of the server were replaced in the ramp. ``holders``: who holds
    them, by the whole run.
    """
    heap = _with_goal(run, fitter, replaced_s, holders)
    process = run.place.page_process
    if process is not None and process.name in holders.behind:
        heap = msgspec.structs.replace(heap, program=process.name)
    if heap.stacks is None:
        return heap
    own = fitter.fit("own", run.series(metrics.RUNTIME_OWN_BYTES))
    return msgspec.structs.replace(heap, own=by_fit(own))


def _with_goal(run: Run, fitter: Fitter, replaced_s: float | None, holders: Holders) -> HeapCosts:
    forced = run.series(metrics.RUNTIME_FORCED_BYTES)
    allocated = run.series(metrics.RUNTIME_ALLOCATED_BYTES)
    heap = run.series(metrics.RUNTIME_HEAP_BYTES) or run.series(metrics.RUNTIME_LIVE_BYTES)
    if not forced and not allocated and not heap:
        return HeapCosts()
    refused = _of_a_part(run, fitter.held, holders, is_forced=bool(forced))
    if refused is not None and forced:
        return HeapCosts(findings=(finding_of_asked(run, forced), refused))
    if refused is not None:
        return HeapCosts(findings=(refused,))
    if forced:
        return costs_of_asked(run, fitter, forced, replaced_s)
    if not heap:
        note = " of the memory in use by the allocator's own count"
        _, hold_end_s = ends_of_ramp_and_hold(run)
        written = _as_written(allocated.between(-math.inf, hold_end_s), fitter.held)
        known_to = max(PAGES / 2, written.known_to)
        fit = fitter.fit("live", written.series, note=note, known_to=known_to)
        live = by_fit(fit)
        return HeapCosts(live, in_heap=live)
    stacks = fitter.fit("stacks", run.series(metrics.RUNTIME_STACKS_BYTES), note=" of stacks")
    seen = _collections(run, fitter.held)
    live = _of_alive(run, _line(run, [*_before_connects(run), *seen.live]))
    if live is None:
        unknown = findings.live_unknown(
            len(seen.live),
            seen.rising,
            runtime_kind(run),
            forced=False,
            remedy_of_failed=remedy_of_failed_collections(run),
            at_limit=seen.at_limit > 0,
        )
        return HeapCosts(stacks=by_fit(stacks), findings=(unknown,))
    in_heap = _line(run, [*_before_connects(run, with_outside=False), *seen.in_heap])
    in_heap = _of_alive(run, in_heap)
    known = HeapCosts(with_outside(run, live, in_heap), by_fit(stacks), in_heap=in_heap)
    at_goal = _at_goal(run, seen)
    if at_goal is not None or not seen.says_goal:
        return msgspec.structs.replace(known, at_goal=at_goal)
    return msgspec.structs.replace(known, findings=(_why_no_goal(run, seen, live),))


def _of_alive(run: Run, line: HeapCost | None) -> HeapCost | None:
    """The cost of what is alive, by a line through pages after collections. Where the runtime says
    neither what its collections found alive nor when they were, its interval reaches down to what
    they may have kept beside.
    """
    says_alive = bool(run.series(metrics.RUNTIME_LIVE_BYTES))
    if line is None or says_alive or run.series(metrics.RUNTIME_COLLECTED_AT_S):
        return line
    low, high = line.ci95
    kept = max(0.0, line.bytes_per_connection) * _KEPT_WHILE_MARKING
    return msgspec.structs.replace(line, ci95=(min(low, line.bytes_per_connection - kept), high))


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


def _with_all_beside(run: Run, at_goal: HeapCost | None) -> HeapCost | None:
    """The cost at the heap's goal with what the processes had beside the runtime's memory before
    the first connect in its fixed part: its levels are then what a host must have.
    """
    if at_goal is None:
        return None
    beside = None
    # Of a program behind the server only the rise of its memory is read.
    if run.place.page_process is None:
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


def _before_connects(run: Run, *, with_outside: bool = True) -> list[HeapReading]:
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
                readings.append(HeapReading(page.t_s, 0.0, value))
                break
    return readings


def _outside(page: Sample) -> float:
    """What objects of the heap hold outside it (bytes), by a page."""
    return page.values.get(metrics.RUNTIME_OUTSIDE_BYTES, 0.0)


def live_over_time(run: Run) -> Series:
    """What was alive in the server's heap (bytes) at the pages after its collections; nothing where
    the page is of another program.
    """
    if run.place.page_process is not None:
        return Series()
    readings = _collections(run, run.held).live
    return Series([reading.t_s for reading in readings], [reading.value for reading in readings])


def _of_a_part(run: Run, held: Series, holders: Holders, *, is_forced: bool) -> Finding | None:
    """A finding if what is known of a heap is, or may be, of a process that does not hold all
    connections: one of two workers opens the half, and an exporter's process none.
    """
    share = _share_of_connections(run, held)
    if share is not None and not is_one_for_each(share):
        return findings.heap_of_a_part(share, None, None, None, run.place.server_name)
    of_another = _of_another_program(run, holders, share)
    if of_another is not None or share is not None:
        return of_another
    # Of forced collections see costs_of_asked.
    if is_forced or _holds_in_one_process(run, held):
        return None
    return findings.heap_of_a_part(None, most_processes(run), None, None)


def _of_another_program(run: Run, holders: Holders, share: float | None) -> Finding | None:
    """A finding if the page of metrics is of another program than the server, unless that is all
    that is behind the server and has one descriptor for each connection: then it is its heap.
    ``share``: of the connections that the page's process holds; None: unknown.
    """
    process = run.place.page_process
    if process is None:
        return None
    if holders.behind == (process.name,) and share is not None:
        return None
    if process.name not in holders.behind and run.place.alive_source is not None:
        # A user says of an exporter's metric that it is what is alive in the server.
        return None
    server = run.place.server_name
    return findings.heap_of_a_part(
        None, None, None, None, server, program=process.name, pid=process.pid
    )


def _share_of_connections(run: Run, held: Series) -> float | None:
    """How many descriptors of the page's process, or connections by its own count, came with each
    connection; None if the page says neither.
    """
    opened = run.series(metrics.RUNTIME_DESCRIPTORS) or run.series(metrics.RUNTIME_CONNECTIONS)
    return risen_for_each(run, opened, held)


def _holds_in_one_process(run: Run, held: Series) -> bool:
    """Whether one process of the server holds all of the connections, as far as is known: it has
    one, or the descriptors of its fullest one rise by one for each.
    """
    if most_processes(run) <= 1:
        return True
    share = risen_for_each(run, run.series(metrics.SERVER_DESCRIPTORS), held)
    return share is not None and is_one_for_each(share)


def _collections(run: Run, held: Series) -> _Collections:
    """What the first page says after each collection, or after several that came between two
    pages, until the hold's end.
    """
    ramp_end_s, hold_end_s = ends_of_ramp_and_hold(run)
    half = max(held.values, default=0.0) / 2
    live = []
    in_heap = []
    goals: dict[_Rule, list[HeapReading]] = {rule: [] for rule in _Rule}
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
        live.append(HeapReading(collected_s, n, _alive_at(collected_s, page, after)))
        heap = _alive_at(collected_s, page, after, with_outside=False)
        in_heap.append(HeapReading(collected_s, n, heap))
        if metrics.RUNTIME_GOAL_BYTES in page.values:
            goals[_rule_of_goal(run, page.values)].append(
                HeapReading(collected_s, n, _when_full(page.values))
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


def _line(run: Run, readings: Sequence[HeapReading]) -> HeapCost | None:
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
    return by_points(points, how, len(connected))
