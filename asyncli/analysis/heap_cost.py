"""The costs of a connection in a heap that is collected, and the lines that they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.regression import Point, regress
from asyncli.analysis.slope import (
    PAGES,
    Cost,
    Fit,
)
from asyncli.findings import collected as findings
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import Run

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
    #: What was alive after the drain beyond what was before the first connect (bytes); 0 where that
    #: was little, or is unknown.
    stayed: float = 0.0
    #: The program behind the server whose heap it is; "": the server's own.
    program: str = ""


def why_no_heap(run: Run, heap: HeapCosts, name: str = "") -> str:
    """Why a cost of the server's heap is not known. ``name``: of :data:`HEAP_COSTS`; "": of any."""
    for finding in heap.findings:
        if finding.code not in _WHY_NO_HEAP:
            continue
        # What is known of the goal alone.
        is_of_goal = finding.code == findings.goal_unknown.code
        is_of_goal = is_of_goal or finding.fields.get("goal_bytes") is not None
        if name == "at_goal" or not is_of_goal:
            return finding.evidence
    if heap.live is not None:
        return "what was read of the server's heap does not tell it"
    if run.place.server_runtime.collected:
        return "nothing read the server's heap (--server-metrics or --collect does)"
    return "the server has no heap that asyncli can read; cost.server_user has all its memory"


# Findings of why a cost of the heap is unknown.
_WHY_NO_HEAP = frozenset(
    {findings.live_unknown.code, findings.heap_of_a_part.code, findings.goal_unknown.code}
)


class HeapReading(NamedTuple):
    """A number (bytes) of the instant at which a collection ended (s on the run's clock), and the
    connections that were held then.
    """

    t_s: float
    n: float
    value: float


def ends_of_ramp_and_hold(run: Run) -> tuple[float, float]:
    """When the ramp and the hold ended (s on the run's clock); infinite while they go on."""
    hold = run.phase("hold")
    if hold is None:
        return math.inf, math.inf
    if hold.end_s is None:
        return hold.start_s, math.inf
    return hold.start_s, hold.end_s


def runtime_kind(run: Run) -> str:
    """The runtime of the heap whose costs are known: of the server, as found at its processes; ""
    where it is unknown, and of a program behind it, whose page is read.
    """
    if run.place.page_process is not None:
        return ""
    return run.place.server_runtime.kind


def most_processes(run: Run) -> int:
    """How many processes the server had at most; 0 where they are not known."""
    return round(max(run.series(metrics.SERVER_PROCESSES).values, default=0.0))


def by_points(
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


def by_fit(fit: Fit | int) -> HeapCost | None:
    """The cost of a metric that needs no collection."""
    if not isinstance(fit, Fit):
        return None
    return HeapCost(**msgspec.structs.asdict(fit.cost))


def with_outside(run: Run, live: HeapCost, in_heap: HeapCost | None) -> HeapCost:
    """The cost of what is alive with how much of it is outside the heap, as far as that is known.
    ``in_heap``: of the heap alone.
    """
    is_read = bool(run.series(metrics.RUNTIME_OUTSIDE_BYTES))
    is_read = is_read or bool(run.series(metrics.RUNTIME_FORCED_OUTSIDE_BYTES))
    if is_read and in_heap is not None:
        outside = live.bytes_per_connection - in_heap.bytes_per_connection
        method = f"{live.method}, with what objects of the heap hold outside it"
        return msgspec.structs.replace(live, outside=outside, method=method)
    is_of_these = runtime_kind(run) in _HOLD_OUTSIDE
    if is_read or not is_of_these or run.place.alive_source is not None:
        return live
    method = f"{live.method}, without what objects of the heap hold outside it: that was not read"
    return msgspec.structs.replace(live, lacks_outside=True, method=method)
