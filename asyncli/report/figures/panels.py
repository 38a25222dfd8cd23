"""A run on one time axis: what is drawn one above the other, already with no more points than a picture shows. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from asyncli.core.histogram import Histogram
from asyncli.metrics import (
    GENERATOR_USS_BYTES,
    HOST_USED_BYTES,
    KERNEL_LISTING_BYTES,
    KERNEL_SOCKET_BYTES,
    SERVER_PSS_BYTES,
    SERVER_RSS_BYTES,
    STATUS_ACTIVE,
)
from asyncli.records import PhaseName, Tick
from asyncli.report.figures.downsample import Broken, Buckets, broken, buckets, extremes, merged, rates, sums
from asyncli.run import Run
from asyncli.samples import Series

#: What a line stands for, and with it how it is drawn; drawing.py gives each a colour and a dash of its own.
Role = Literal["asked", "total", "server", "kernel", "ours", "middle", "high", "most"]
Unit = Literal["count", "bytes", "per_s", "ms"]

#: Metric of a sample -> (what the line is called, its role); "{server}" stands for the server's name, "{host}" for
#: the host that was sampled.
MEMORY: dict[str, tuple[str, Role]] = {
    HOST_USED_BYTES: ("{host}", "total"),
    KERNEL_SOCKET_BYTES: ("kernel", "kernel"),
    SERVER_PSS_BYTES: ("{server}", "server"),
    GENERATOR_USS_BYTES: ("asyncli", "ours"),
    KERNEL_LISTING_BYTES: ("of /proc", "most"),
}
#: What another program leaves that lists descriptors: drawn only where it can be seen, and then it explains a jump of the host's.
LISTING = KERNEL_LISTING_BYTES
_LISTING_THAT_SHOWS = 10e6
# Where PSS cannot be read, RSS may be.
_INSTEAD = {SERVER_PSS_BYTES: SERVER_RSS_BYTES}
_QUANTILES: tuple[tuple[str, float, Role], ...] = (("p50", 0.5, "middle"), ("p99", 0.99, "high"), ("max", 1.0, "most"))
# A logarithmic axis has no zero, and below this the clock of one process says nothing to the other.
_LEAST_MS = 0.01
# Readings that follow each other at this many times their usual distance have a gap between them.
_GAP_PACES = 3.5


class Line(msgspec.Struct):
    """One quantity over time (s since the run's start); a None is a gap in the measurement."""

    label: str
    role: Role
    t_s: list[float]
    values: Broken


class Panel(msgspec.Struct):
    """Lines that share a vertical axis."""

    key: str
    title: str
    unit: Unit
    lines: list[Line]
    log: bool = False


class Lane(msgspec.Struct):
    """How often one cause ended connections (or attempts): counts by stretch of time, and in all."""

    cause: str
    kind: Literal["lost", "failed"]
    t_s: list[float]
    counts: list[int]
    total: int


class Span(msgspec.Struct):
    """A phase, with an end even where the run has none."""

    name: PhaseName
    start_s: float
    end_s: float


class Timeline(msgspec.Struct):
    """All panels of a run. ``into`` says how its points were made fewer."""

    end_s: float
    phases: list[Span]
    panels: list[Panel]
    lanes: list[Lane]
    into: Buckets


def timeline(run: Run, asked: Series | None = None, server: str = "server") -> Timeline:
    """The timeline of ``run``; without panels where nothing was recorded. ``asked``: connections due by the plan over time."""
    end = run.end_s
    into = buckets(0.0, end)
    panels = [
        _connections(run, asked, into),
        memory(run, into, server),
        _beats(run, into),
        _quantiles("latency", "Latency of heartbeats", run, into, lambda tick: tick.latency_us),
        _quantiles("lateness", "Lateness of the generator", run, into, lambda tick: tick.lateness_us),
    ]
    spans = [Span(one.name, one.start_s, one.end_s if one.end_s is not None else max(end, one.start_s)) for one in run.phases]
    return Timeline(end, spans, [one for one in panels if one.lines], _lanes(run, into), into)


def memory(run: Run, into: Buckets, server: str = "server") -> Panel:
    """Memory above that of the baseline (its median; without one, the first reading), in bytes."""
    start = run.first_connect_s
    lines = []
    for metric, (label, role) in MEMORY.items():
        found = run.series(metric)
        if not len(found) and metric in _INSTEAD:
            found = run.series(_INSTEAD[metric])
        if not len(found):
            continue
        before = found.between(-math.inf, start).values
        base = statistics.median(before) if before else found.values[0]
        if metric == LISTING and max(found.values) - base < _LISTING_THAT_SHOWS:
            continue
        above = Series(found.t_s, [value - base for value in found.values])
        lines.append(_gauge(label.format(server=server, host=run.sides.host), role, above, into))
    return Panel("memory", "Memory above the baseline", "bytes", lines)


def _connections(run: Run, asked: Series | None, into: Buckets) -> Panel:
    lines = []
    if asked is not None and len(asked):
        lines.append(_gauge("asked", "asked", asked, into))
    if run.ticks:
        lines.append(_gauge("held", "ours", run.held, into))
    active = run.series(STATUS_ACTIVE)
    if len(active):
        # Our poller's own connection is not one of the soak's.
        theirs = Series(active.t_s, [max(0.0, value - 1) for value in active.values])
        lines.append(_gauge("server active", "server", theirs, into))
    return Panel("connections", "Connections", "count", lines)


def _beats(run: Run, into: Buckets) -> Panel:
    if not any(tick.sent for _, tick in run.ticks):
        return Panel("heartbeats", "", "per_s", [])
    t_s = [t_s for t_s, _ in run.ticks]
    lines = []
    for label, role, counts in (
        ("sent", "ours", [tick.sent for _, tick in run.ticks]),
        ("answered", "server", [tick.answered for _, tick in run.ticks]),
    ):
        at, found = rates(t_s, counts, into)
        lines.append(Line(label, role, *broken(at, found, into.gap_s)))  # type: ignore[arg-type]
    return Panel("heartbeats", "Heartbeats per second", "per_s", lines)


def _quantiles(key: str, title: str, run: Run, into: Buckets, of: Callable[[Tick], Histogram]) -> Panel:
    at, found = merged([t_s for t_s, _ in run.ticks], [of(tick) for _, tick in run.ticks], into)
    lines = []
    each = [one.quantiles([q for _, q, _ in _QUANTILES]) for one in found]
    for place, (label, _, role) in enumerate(_QUANTILES):
        values = [max(_LEAST_MS, (quantiles[place] or 0.0) / 1e3) for quantiles in each]
        if values:
            lines.append(Line(label, role, *broken(at, values, into.gap_s)))
    return Panel(key, title, "ms", lines, log=True)


def _gauge(label: str, role: Role, found: Series, into: Buckets) -> Line:
    # A reading that is dear is taken every few seconds, or every half minute: that is its pace, and no gap.
    pace_s = statistics.median(b - a for a, b in pairwise(found.t_s)) if len(found) > 1 else 0.0
    return Line(label, role, *broken(*extremes(found.t_s, found.values, into), max(into.gap_s, _GAP_PACES * pace_s)))


def _lanes(run: Run, into: Buckets) -> list[Lane]:
    """A lane for each cause that occurred, lost connections before failed attempts, the most frequent first."""
    t_s = [t_s for t_s, _ in run.ticks]
    lanes = []
    for kind, counted in (
        ("lost", [{cause: dead.count for cause, dead in tick.deaths.items()} for _, tick in run.ticks]),
        ("failed", [tick.failures for _, tick in run.ticks]),
    ):
        causes = sorted({cause for counts in counted for cause, count in counts.items() if count})
        found = [_lane(cause, kind, t_s, [counts.get(cause, 0) for counts in counted], into) for cause in causes]
        lanes += sorted(found, key=lambda lane: (-lane.total, lane.cause))
    return lanes


def _lane(cause: str, kind: str, t_s: Sequence[float], counts: Sequence[int], into: Buckets) -> Lane:
    at, found = sums(t_s, counts, into)
    return Lane(cause, "lost" if kind == "lost" else "failed", at, found, sum(found))
