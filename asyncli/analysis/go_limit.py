"""How many connections a memory limit of Go's runtime (GOMEMLIMIT) has room for, and whether a run
reached it.

The limit is on all that the runtime has: heap, stacks and its own structures. Go does not refuse
memory beyond it: when what is alive fills what the limit leaves to the heap, it collects all the
time, which costs CPU and not memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.constants import FEWEST, HALF, PART, REACHED
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.heap_cost import HeapCost
from asyncli.analysis.slope import Cost
from asyncli.findings.collected import memory_limit_reached
from asyncli.findings.cost import SURE
from asyncli.model import metrics
from asyncli.model.go_heap import (
    LEAST_UNSEEN,
    MOST_UNSEEN,
    MOST_UNSEEN_OF_LIVE,
    UNSEEN,
    memory_limit_of,
    most_alive,
)
from asyncli.model.records import Finding, Sample
from asyncli.model.run import Run
from asyncli.model.units import format_bytes, format_count


class _Reached(NamedTuple):
    """The run was at the limit from the page ``first`` to the page ``last``; ``before``: the page
    before the first; ``start``: that at the first connect.
    """

    start: Sample
    before: Sample
    first: Sample
    last: Sample


def _pace(begin: Sample, end: Sample) -> float:
    """Collections a second between two pages."""
    seconds = end.t_s - begin.t_s
    if seconds <= 0:
        return 0.0
    return _rise(begin, end, metrics.RUNTIME_COLLECTIONS) / seconds


def _rise(begin: Sample, end: Sample, name: str) -> float:
    return max(0.0, end.values.get(name, 0.0) - begin.values.get(name, 0.0))


def _reached(run: Run, limit: float) -> _Reached | None:
    """Since when the heap has stood at the goal that the limit leaves it, until the hold's end;
    None where it did not, or where no more collections came by that.
    """
    pages = []
    for sample in run.samples:
        if run.first_connect_s <= sample.t_s <= run.stop_s and _has_heap(sample):
            pages.append(sample)
    place = len(pages)
    while place > 1 and _is_full(pages[place - 1], limit):
        place -= 1
    # A heap that nears its goal is collected no more often than before.
    while place < len(pages) and not _is_collected_more(pages, place):
        place += 1
    if len(pages) - place < FEWEST:
        return None
    return _Reached(pages[0], pages[place - 1], pages[place], pages[-1])


def _is_collected_more(pages: Sequence[Sample], place: int) -> bool:
    """Whether collections came faster before the page at ``place`` than earlier."""
    before = pages[max(0, place - 1)]
    earlier = _pace(pages[0], before)
    return HALF * _pace(before, pages[place]) >= max(earlier, HALF)


def _has_heap(sample: Sample) -> bool:
    names = (metrics.RUNTIME_HEAP_BYTES, metrics.RUNTIME_GOAL_BYTES, metrics.RUNTIME_COLLECTIONS)
    return all(name in sample.values for name in names)


def _is_full(page: Sample, limit: float) -> bool:
    """Whether the heap has no room left below its goal, and all of the runtime little below the
    limit: some of what that counts nobody says.
    """
    heap = page.values[metrics.RUNTIME_HEAP_BYTES]
    if heap < REACHED * page.values[metrics.RUNTIME_GOAL_BYTES]:
        return False
    taken = heap
    for name in (metrics.RUNTIME_STACKS_BYTES, metrics.RUNTIME_OWN_BYTES):
        taken += page.values.get(name, 0.0)
    return taken + MOST_UNSEEN + MOST_UNSEEN_OF_LIVE * heap >= limit * (1 - PART)


def limit_reached(run: Run) -> list[Finding]:
    """A finding if the server's runtime was at its memory limit in the run."""
    limit = memory_limit_of(run)
    if limit is None:
        return []
    reached = _reached(run, limit)
    if reached is None:
        return []
    start, before, first, last = reached
    cpu = run.series(metrics.SERVER_CPU_S)
    earlier_cpu_s = None
    cpu_s = None
    if cpu:
        at_first_s = cpu.at(before.t_s) or 0.0
        earlier_cpu_s = at_first_s - (cpu.at(start.t_s) or 0.0)
        cpu_s = (cpu.at(last.t_s) or 0.0) - at_first_s
    finding = memory_limit_reached(
        limit,
        first.t_s,
        round(run.held.at(first.t_s) or 0.0),
        round(_rise(before, last, metrics.RUNTIME_COLLECTIONS)),
        last.t_s - before.t_s,
        cpu_s,
        round(_rise(start, before, metrics.RUNTIME_COLLECTIONS)),
        before.t_s - start.t_s,
        earlier_cpu_s,
    )
    return [finding]


def go_limit(run: Run, costs: Costs) -> Ceiling | None:
    """How many connections the memory limit has room for; None without one."""
    limit = memory_limit_of(run)
    if limit is None:
        return None
    soft = (
        f"Go's memory limit is {format_bytes(limit)} (GOMEMLIMIT) for heap, stacks and its own "
        "structures; it is soft: beyond it Go collects all the time"
    )
    heap = costs.heap
    live = heap.live
    if live is None or live.bytes_per_connection <= 0:
        return _as_seen(run, limit, soft)
    if heap.stacks is None:
        return _without_stacks(limit, live, costs.server_user, soft)
    return _by_costs(limit, live, [heap.stacks, heap.own], soft)


def _as_seen(run: Run, limit: float, soft: str) -> Ceiling:
    """By when the run reached it; else at least as many fit as the run held."""
    reached = _reached(run, limit)
    most_held = max(run.held.values, default=0.0)
    if reached is None:
        how = f"{soft}; what a connection keeps alive is unknown, and the run did not reach it"
        return Ceiling("go_limit", None, None, how, at_least=most_held)
    low = run.held.at(reached.before.t_s) or 0.0
    high = run.held.at(reached.first.t_s) or 0.0
    how = f"{soft}, as this run did from {format_count(round(high))} connections on"
    return Ceiling("go_limit", math.floor((low + high) / 2), (low, high), how)


def _without_stacks(limit: float, live: HeapCost, user: Cost | None, soft: str) -> Ceiling | None:
    """By what is alive alone no more fit, and by the server's resident memory, which has garbage in
    it, no fewer.
    """
    low, _ = live.ci95
    if low <= 0:
        return None
    at_most = max(0.0, limit - live.fixed_bytes) / low
    how = (
        f"{soft}; stacks and own structures of a connection are unknown: at most "
        f"{format_count(at_most)} fit, by at least {low:,.0f} B that are alive"
    )
    if user is None or user.of_levels or user.ci95[1] <= 0:
        return Ceiling("go_limit", None, (0.0, at_most), how, at_least=0.0)
    fewest = max(0.0, limit - user.fixed_bytes - MOST_UNSEEN) / user.ci95[1]
    fewest = min(fewest, at_most)
    how += f", and at least {format_count(fewest)}, by at most {user.ci95[1]:,.0f} B in memory"
    return Ceiling("go_limit", None, (fewest, at_most), how, at_least=fewest)


def _by_costs(
    limit: float, live: HeapCost, beside: Sequence[HeapCost | None], soft: str
) -> Ceiling:
    """By what a connection keeps alive and takes beside the heap. The errors may be correlated:
    they are added.
    """
    known = [cost for cost in beside if cost is not None]
    fixed = live.fixed_bytes
    value = 0.0
    low = 0.0
    high = MOST_UNSEEN_OF_LIVE * live.ci95[1]
    for cost in known:
        fixed += cost.fixed_bytes
        value += cost.bytes_per_connection
        low += cost.ci95[0]
        high += cost.ci95[1]
    of_live = live.bytes_per_connection
    how = (
        f"{soft}; {format_bytes(fixed)} of them without connections and about "
        f"{format_bytes(UNSEEN)} that no page says, by {of_live:,.0f} B a connection that are "
        f"alive and {value:,.0f} B of stacks and own structures"
    )
    if live.ci95[0] <= 0 or live.half_width > SURE * of_live:
        return Ceiling("go_limit", None, None, f"{how}: the interval is too wide")
    left = limit - fixed
    connections = most_alive(left - UNSEEN, of_live, value)
    ci95 = (
        most_alive(left - MOST_UNSEEN, live.ci95[1], high),
        most_alive(left - LEAST_UNSEEN, live.ci95[0], max(0.0, low)),
    )
    return Ceiling("go_limit", math.floor(connections), ci95, how)
