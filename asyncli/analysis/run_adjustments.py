"""What the whole run says of a cost: growth in the hold, memory that was used before, memory in no
part, and who holds the connections. :data:`ADJUSTMENTS` has their order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from asyncli.analysis.absent_server import absent_server
from asyncli.analysis.asked_collections import remedy_of_failed_collections
from asyncli.analysis.constants import PART, WORTH_TELLING
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.drift import Drift, MetricName, counted, in_words, is_settling
from asyncli.analysis.holders import memory_of
from asyncli.analysis.other_programs import memory_of_others
from asyncli.analysis.server_memory import server_memory
from asyncli.analysis.slope import PAGES, Cost, Fit, Fitter
from asyncli.findings import cost as findings
from asyncli.findings.collected import heap_of_a_part
from asyncli.findings.server import held_behind, held_by_others, server_holds_nothing
from asyncli.findings.unknown import cost_grew, cost_of_others
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import Run


class WholeRun(NamedTuple):
    """A run and the growth of its memory in the hold."""

    run: Run
    drift: Mapping[MetricName, Drift]

    @property
    def heap_is_collected(self) -> bool:
        """Whether the server's memory is that of a heap with a tracing collector."""
        return self.run.place.server_runtime.collected

    @property
    def most_held(self) -> float:
        return max(self.run.held.values)

    @property
    def ramp_s(self) -> tuple[float, float]:
        """When the ramp began and ended; 0 without one."""
        ramp = self.run.phase("ramp")
        if ramp is None:
            return 0.0, 0.0
        return ramp.start_s, ramp.end_s or self.run.stop_s


#: New costs by the whole run; the same ones where there is nothing to adjust.
Adjustment: TypeAlias = Callable[[WholeRun, Costs], Costs]


# Growth.


def growth(seen: WholeRun, known: Costs) -> Costs:
    """Exclude two-level differences that include growth in the hold. Widen slopes by as much
    growth, or settling, in the ramp; but growth of a collected heap lowers no cost.
    """
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        cost = known.cost_of(name)
        if cost is None:
            continue
        grown = [part for part in seen.drift if name in (part, "host_total")]
        if cost.of_levels:
            known = _without_levels_that_grow(seen, known, name, grown)
            continue
        changing = [part for part in grown if _grew_or_settled(part, seen.drift[part])]
        if seen.heap_is_collected and "server_user" in changing:
            known = _up_to_hold_end(known, name)
            changing = [part for part in changing if part not in _WITH_THE_HEAP]
        if changing:
            known = _with_growth(seen, known, name, [seen.drift[part] for part in changing])
    return known


# The growth of the server's heap is in both.
_WITH_THE_HEAP: tuple[MetricName, ...] = ("server_user", "host_total")


def _up_to_hold_end(known: Costs, name: str) -> Costs:
    """Widen a slope up to the level at the hold's end, by each connection. A collected heap fills
    up to its goal, which follows what is live: in the hold too that is memory of the connections,
    and no leak.
    """
    cost = known.cost_of(name)
    at_end = known.fits[name].by_level_at_end
    if cost is None or at_end is None or at_end <= cost.ci95[1]:
        return known
    method = f"{cost.method}; the interval reaches to the level at the hold's end: a collected heap"
    return known.revised(name, ci95=(cost.ci95[0], at_end), method=method)


def _without_levels_that_grow(
    seen: WholeRun, known: Costs, name: str, grown: Collection[MetricName]
) -> Costs:
    """A difference of two levels includes the growth between them: then it is no cost."""
    described = {}
    for part in grown:
        if seen.drift[part].verdict == "grows":
            described[findings.COST_NAMES[part]] = in_words(seen.drift[part])
    if not described:
        return known
    grew = cost_grew(findings.COST_NAMES[name], described)
    return known.without(grew, name, "residual").noting(grew)


def _grew_or_settled(name: MetricName, drift: Drift) -> bool:
    """Whether it grew in the hold, or settled there after growing. The host's memory and asyncli's
    settle for other reasons than connections.
    """
    if drift.verdict == "grows":
        return True
    if name in ("host_total", "generator_user"):
        return False
    return is_settling(drift) and (drift.bytes_per_hour or 0.0) > 0


def _with_growth(seen: WholeRun, known: Costs, name: str, changing: Collection[Drift]) -> Costs:
    """Widen a slope by as much growth in the ramp as in the hold: as much in the same time, or for
    as many answers, whichever is more.
    """
    cost = known.cost_of(name)
    assert cost is not None
    start_s, end_s = seen.ramp_s
    answered = counted(seen.run, lambda tick: tick.answered)
    answers = (answered.at(end_s) or 0.0) - (answered.at(start_s) or 0.0)
    grown = max(_most_grown(drift, end_s - start_s, answers) for drift in changing)
    low, high = cost.ci95
    # At most all that grew in the ramp grew with time.
    with_time = min(grown / known.times_in_connection(name) / seen.most_held, max(0.0, low))
    return known.revised(
        name,
        bytes_per_connection=cost.bytes_per_connection - with_time / 2,
        ci95=(low - with_time, high),
        method=f"{cost.method}; the interval includes growth in the ramp as in the hold",
    )


def _most_grown(drift: Drift, seconds: float, answers: float) -> float:
    """The most (bytes) that it grows in so long, or with so many answers, at the upper end of its
    rate.
    """
    rate = drift.bytes_per_hour or 0.0
    upper = rate
    if drift.ci95 is not None:
        upper = max(drift.ci95)
    by_answer = 0.0
    if rate > 0:
        by_answer = (drift.bytes_per_request or 0.0) * upper / rate
    return max(upper / 3600 * seconds, by_answer * answers)


def growth_by_the_clock(seen: WholeRun, known: Costs) -> Costs:
    """Widen the server's slope by what may have come, or gone, by the clock in the ramp: as much as
    the hold does not exclude, if it was too short to tell growth.

    In a ramp, time and connections rise together. Memory that fills by the clock and is freed now
    and then, such as a collected heap or a batch that is written, looks like a connection's there,
    and like no steady growth in the hold. The value is halfway, but for a collected heap no lower.
    The memory of the kernel, of the host and of asyncli changes by itself, by other programs too.
    """
    cost = known.server_user
    change = seen.drift.get("server_user")
    if cost is None or cost.of_levels or seen.run.phase("ramp") is None:
        return known
    if change is None or change.ci95 is None:
        return known
    if change.verdict != "too_short" or is_settling(change):
        return known
    # Bytes a connection, of a rate of bytes an hour.
    start_s, end_s = seen.ramp_s
    scale = (end_s - start_s) / 3600 / seen.most_held
    low, high = cost.ci95
    came = min(max(0.0, change.ci95[1]) * scale, max(0.0, low))
    went = max(0.0, -change.ci95[0]) * scale
    if max(came, went) <= WORTH_TELLING * abs(cost.bytes_per_connection):
        return known
    method = f"{cost.method}; the interval includes what the hold leaves open: growth by the clock"
    value = cost.bytes_per_connection + (went - came) / 2
    if seen.heap_is_collected:
        value = max(value, cost.bytes_per_connection)
    return known.revised(
        "server_user",
        bytes_per_connection=value,
        ci95=(low - came, high + went),
        method=method,
    )


def _lines_with_heap(known: Costs) -> list[tuple[str, Cost]]:
    """The costs with the server's heap in them that are lines over the ramp, by name."""
    lines = []
    for name in (known.with_heap, "host_total"):
        cost = known.cost_of(name)
        if cost is not None and not cost.of_levels:
            lines.append((name, cost))
    return lines


def heap_by_the_clock(_: WholeRun, known: Costs) -> Costs:
    """Widen the costs with the server's memory in them down by what may have come to its heap by
    the clock. The values stay: growth lowers no cost of a collected heap.
    """
    live = known.heap.live
    if live is None or live.perhaps_by_clock == 0:
        return known
    for name, cost in _lines_with_heap(known):
        low, high = cost.ci95
        low = min(low, max(0.0, low - live.perhaps_by_clock))
        method = f"{cost.method}; the interval includes what may have come to the heap by the clock"
        known = known.revised(name, ci95=(low, high), method=method)
    return known


def heap_that_stayed(seen: WholeRun, known: Costs) -> Costs:
    """Widen the costs with the server's memory in them down where more stayed alive in its heap
    after the drain than their intervals can hold: what came at once in the ramp, and belongs to no
    connection, is in their lines. They reach down by as much as it adds to them if it came at the
    worst moment. The values stay. What the interval of what is alive does not hold by itself has
    widened them before (:func:`heap_by_the_clock`).
    """
    live = known.heap.live
    if live is None or live.not_freed > 0:
        return known
    for name, cost in _lines_with_heap(known):
        low, high = cost.ci95
        value = cost.bytes_per_connection
        if known.heap.stayed <= (value - low) * seen.most_held:
            continue
        by_what_stayed = known.heap.stayed * _most_of_a_step(known.fits[name].n)
        low = min(low, max(0.0, value - max(0.0, live.by_clock) - by_what_stayed))
        method = f"{cost.method}; the interval reaches down by what stayed in the heap"
        known = known.revised(name, ci95=(low, high), method=method)
    return known


def _most_of_a_step(connections: Sequence[float]) -> float:
    """The most that a rise by 1 at one instant adds to the slope of a line through readings with
    so many ``connections``; 0 where they are all the same.
    """
    mean = statistics.fmean(connections)
    spread = math.fsum((n - mean) ** 2 for n in connections)
    if not spread:
        return 0.0
    steepest = 0.0
    for first in set(connections):
        after = math.fsum(n - mean for n in connections if n >= first)
        steepest = max(steepest, after / spread)
    return steepest


def goal_below_resident(_: WholeRun, known: Costs) -> Costs:
    """Exclude a heap's cost at its goal if the process takes more already: then it has memory that
    its page of metrics does not count.
    """
    goal = known.heap.at_goal
    resident = known.cost_of(known.with_heap)
    # A difference of two levels has one-time costs in it.
    if goal is None or resident is None or resident.of_levels:
        return known
    if resident.ci95[0] <= goal.ci95[1]:
        return known
    beyond = heap_of_a_part(None, None, resident.ci95[0], goal.ci95[1], known.heap.program)
    heap = msgspec.structs.replace(
        known.heap, at_goal=None, findings=(*known.heap.findings, beyond)
    )
    return msgspec.structs.replace(known, heap=heap).noting(beyond)


def collected_heap(seen: WholeRun, known: Costs) -> Costs:
    """Say of a server whose heap is collected that its cost is resident memory; and how to know
    more, if its own metrics were not read.
    """
    run = seen.run
    if known.server_user is None or not seen.heap_is_collected:
        return known
    method = f"{known.server_user.method}; resident memory of a collected heap while it was filling"
    known = known.revised("server_user", method=method)
    is_of_server = run.place.page_process is None or bool(run.series(metrics.RUNTIME_FORCED_BYTES))
    if is_of_server and any(name.startswith(_OF_RUNTIME) for name in run.metrics):
        return known
    server = run.place.server_label or "the server"
    runtime = run.place.server_runtime
    collected = findings.heap_collected(
        server,
        runtime.title,
        runtime.kind,
        run.place.metrics_urls,
        remedy_of_failed_collections(run),
    )
    return known.noting(collected)


# The metrics of a server's own runtime begin so.
_OF_RUNTIME = "runtime."


def memory_used_again(_: WholeRun, known: Costs) -> Costs:
    """Exclude the costs that have the server's memory in them, if that is used again."""
    for reused in known.findings:
        if reused.code == findings.cost_reused.code:
            known = known.without(reused, "server_user", "host_total", "residual")
    return known


# Memory in no part.


def memory_in_no_part(seen: WholeRun, known: Costs) -> Costs:
    """Exclude the whole host's cost if more than half of it is in no measured part: in other
    processes, if the server is unknown. Else widen it down to its parts if the residual is large.

    Not of a proxy, whose backend may have it, nor of a server with a thread or a process for each
    connection: its stacks and page tables are in no part.
    """
    total = known.host_total
    if total is None or known.ends > seen.run.sides.ends or _has_a_thread_each(seen.run):
        return known
    others = _mostly_of_others(seen, known, total)
    if others is not None:
        return known.without(others, "host_total", "residual").noting(others)
    return _down_to_parts(seen, known, total)


def no_interval_of_no_total(_: WholeRun, known: Costs) -> Costs:
    """Without what is said of the interval of the whole host's cost, where that cost is unknown."""
    if known.host_total is not None:
        return known
    kept = []
    for noted in known.findings:
        if noted.code != findings.processes_rise.code:
            kept.append(noted)
    return msgspec.structs.replace(known, findings=kept)


def _mostly_of_others(seen: WholeRun, known: Costs, total: Cost) -> Finding | None:
    """A finding if more than half of the total is in no measured part."""
    # A cost whose interval reaches zero is hidden anyway.
    if total.ci95[0] <= 0:
        return None
    in_no_part = total.bytes_per_connection - _explained_bytes(known)
    if known.server_user is None:
        in_no_part = _rise_of_others(seen, known)
    if in_no_part <= total.bytes_per_connection / 2:
        return None
    return cost_of_others(in_no_part, total.bytes_per_connection)


def _rise_of_others(seen: WholeRun, known: Costs) -> float:
    """By how much other processes rose per connection on the server's host; 0 where unknown."""
    if not seen.run.sides.server:
        return 0.0
    others = memory_of_others(seen.run, known.holders)
    fit = Fitter(seen.run, seen.run.held).fit("others", others)
    if not isinstance(fit, Fit):
        return 0.0
    return fit.cost.bytes_per_connection


def _explained_bytes(known: Costs) -> float:
    """Bytes of a connection that the measured parts explain. Only root can read /proc/slabinfo:
    else two pages for each end stand for the kernel's part, twice what it is.
    """
    parts = ("server_user", "behind", "kernel", "generator_user")
    measured = [name for name in parts if known.cost_of(name) is not None]
    unread = 0.0
    if known.kernel is None:
        unread = known.ends * PAGES
    return known.sum_of(measured, lambda part: part.bytes_per_connection) + unread


def _has_a_thread_each(run: Run) -> bool:
    """Whether the server's threads or processes rise with the connections: their stacks and page
    tables are in no part.
    """
    threads = run.series(metrics.SERVER_THREADS)
    before = threads.last(until_s=run.first_connect_s) or 0.0
    rise = max(threads.values, default=0.0) - before
    return rise >= max((tick.held for _, tick in run.ticks), default=0) / 2


def _down_to_parts(seen: WholeRun, known: Costs, total: Cost) -> Costs:
    """Widen the total down to its parts, and the residual to zero, if that is larger than it
    usually is, and say so.

    Usually the residual is page tables, free parts of slabs and pages of the kernel: at most some
    600 B and three hundredths of the parts, for all servers of the atlas (docs/atlas.md,
    bench/README.md) but those with a thread for each connection. What exceeds some more than that
    may be another program's in the kernel: pipes, files, other sockets.
    """
    where = seen.run.sides
    if total.of_levels or (where.server and known.server_user is None):
        return known
    explained = _explained_bytes(known)
    usual = 1000.0 + explained / 20
    unexplained = total.bytes_per_connection - explained
    low, high = total.ci95
    if unexplained <= usual or low <= explained:
        return known
    value = (explained + high) / 2
    residual = known.residual
    known = known.revised(
        "host_total",
        bytes_per_connection=value,
        ci95=(explained, high),
        method=(
            f"{total.method}; the interval reaches down to its parts, because the residual is large"
        ),
    )
    if residual is not None:
        ci95 = (min(0.0, residual.ci95[0]), max(residual.ci95[1], high - explained))
        known = known.revised("residual", bytes_per_connection=value - explained, ci95=ci95)
    return known.noting(findings.residual_large(unexplained, usual, where.host))


# Who holds the connections.


def holders(seen: WholeRun, known: Costs) -> Costs:
    """Exclude the server's cost if its processes are absent, or if nobody is known to hold its
    connections. Else say which other programs hold them, and widen the cost by memory that the
    server had in advance.

    Last, because what the host's memory explains depends on whether the server's was read, not on
    whose it is.
    """
    absent = absent_server(seen.run)
    if absent is None:
        return _with_memory_in_advance(seen, _with_holders(seen, known))
    known = known.without(absent, "server_user", "residual")
    if absent in seen.run.findings:
        return known
    return known.noting(absent)


def _with_holders(seen: WholeRun, known: Costs) -> Costs:
    run = seen.run
    server = run.place.server_label or "the server"
    if known.behind_programs:
        known = known.noting(held_behind(server, known.behind_programs, known.behind is not None))
    programs = known.holders.in_place
    if known.holders.server is not False and not programs:
        return known
    if not programs:
        nobody = server_holds_nothing(server, round(seen.most_held))
        return known.noting(nobody).without(nobody, "server_user", "residual")
    memory_read = all(len(memory_of(run, program)) for program in programs)
    is_shared = known.holders.server is not False
    by_others = held_by_others(server, list(programs), memory_read, shared=is_shared)
    known = known.noting(by_others)
    if memory_read:
        return known
    return known.without(by_others, "server_user", "residual")


def _with_memory_in_advance(seen: WholeRun, known: Costs) -> Costs:
    """Widen the server's cost by memory that it has in advance, if its connections may use that."""
    run = seen.run
    cost = known.server_user
    before_first = (-math.inf, run.first_connect_s)
    own = run.series(metrics.SERVER_ANON_SHMEM_BYTES).between(*before_first).values
    with_files = server_memory(run, known.holders)[0].between(*before_first).values
    if cost is None or not own or not with_files:
        return known
    held = seen.most_held
    had = _had_before_the_first(cost, statistics.median(own), held)
    with_first = _came_with_the_first(cost, statistics.median(with_files), held)
    in_advance = max(had, with_first)
    if in_advance == 0:
        return known
    server = run.place.server_label or "the server"
    per_connection = in_advance / held
    in_earlier = findings.cost_in_earlier_memory(
        server, in_advance, per_connection, in_advance == with_first
    )
    ci95 = (cost.ci95[0], cost.ci95[1] + per_connection)
    method = f"{cost.method}; the interval includes memory that the server had in advance"
    return known.noting(in_earlier).revised("server_user", ci95=ci95, method=method)


def _had_before_the_first(cost: Cost, earlier: float, held: float) -> float:
    """The memory that the server had before the first connect, if connections may be in it; else 0.

    What holds a connection has memory for it. If far less was taken than the server had, it may be
    in there: a heap touched in advance, a pool.
    """
    # Two levels of few connections show no rise of any server.
    if cost.of_levels or cost.ci95[0] > 0:
        return 0.0
    if PART * earlier / held < cost.ci95[1]:
        return 0.0
    return earlier


def _came_with_the_first(cost: Cost, before: float, held: float) -> float:
    """The memory that came with the first connections, if it is more than all others took; else 0.

    It may have room for further ones: a pool, an arena, a huge page.
    """
    with_first = cost.fixed_bytes - before
    if with_first / held <= cost.ci95[1]:
        return 0.0
    return max(0.0, with_first)


#: In this order: each changes the costs that the ones before left. ``bench/rent.py`` takes each
#: away in turn.
ADJUSTMENTS: tuple[Adjustment, ...] = (
    growth,
    growth_by_the_clock,
    heap_by_the_clock,
    heap_that_stayed,
    memory_used_again,
    memory_in_no_part,
    holders,
    goal_below_resident,
    collected_heap,
    no_interval_of_no_total,
)
