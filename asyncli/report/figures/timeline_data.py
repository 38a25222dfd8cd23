"""A run on one time axis, downsampled to what a figure can show. Pure.

In each stretch of time, gauges keep minimum and maximum, counts become rates, and quantiles are of merged histograms.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np

from asyncli.analysis.totals import errors
from asyncli.core.histogram import Histogram, summed
from asyncli.model import metrics
from asyncli.model.records import PhaseName, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.units import format_count, format_duration

#: The meaning of a line; drawing.py has its colour and dash.
Role = Literal["asked", "total", "server", "kernel", "ours", "middle", "high", "most"]
#: The role of each memory, by its name in costs and drifts.
ROLE_OF: dict[str, Role] = {"host_total": "total", "server_user": "server", "kernel": "kernel", "generator_user": "ours"}

#: (Metrics, the first of which that was read is drawn; label; role).
MEMORY: tuple[tuple[tuple[str, ...], str, Role], ...] = (
    ((metrics.HOST_USED_BYTES,), "{host}", "total"),
    ((metrics.KERNEL_SOCKET_BYTES,), "kernel", "kernel"),
    ((metrics.SERVER_PSS_BYTES, metrics.SERVER_RSS_BYTES), "{server}", "server"),
    ((metrics.GENERATOR_USS_BYTES,), "asyncli", "ours"),
    ((metrics.KERNEL_LISTING_BYTES,), "of /proc", "most"),
)
# Drawn only if it explains a visible jump of the host's memory (bytes).
_VISIBLE_LISTING = 10e6
_QUANTILES: tuple[tuple[str, float, Role], ...] = (("p50", 0.5, "middle"), ("p99", 0.99, "high"), ("max", 1.0, "most"))
# The floor of the logarithmic axis (s): below it the clocks of two processes disagree.
_LEAST_S = 1e-5
#: About the columns of pixels in a figure.
MOST_BUCKETS = 480
# Readable widths.
_WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0)
# A pause longer than this, or than this many usual intervals, is a gap.
_GAP_S = 10.0
_GAP_PACES = 3.5


class Line(msgspec.Struct):
    """One quantity over time (s since the run's start); NaN is a gap."""

    label: str
    role: Role
    t_s: Any
    values: Any


class Panel(msgspec.Struct):
    """Lines on one vertical axis, or ``bars`` of counts per stretch. ``unit``: "B", "s" (logarithmic) or "" for counts."""

    key: str
    title: str
    unit: str
    lines: list[Line]
    bars: bool = False


class Span(msgspec.Struct):
    """A phase; one without an end ends with the run."""

    name: PhaseName
    start_s: float
    end_s: float


class Timeline(msgspec.Struct):
    """All panels of a run, in stretches of ``width_s``."""

    end_s: float
    phases: list[Span]
    panels: list[Panel]
    width_s: float

    @property
    def method(self) -> str:
        """How points were combined, for the caption."""
        if self.width_s <= 1.0:
            return "Each point is one second."
        return (
            f"Drawn in stretches of {format_duration(self.width_s)}: minimum and maximum of gauges, mean rates, quantiles of all "
            "values."
        )


def timeline(run: Run, asked: Series | None = None, server: str = "server") -> Timeline:
    """The timeline of ``run``; no panels without records. ``asked``: connections due over time."""
    end = run.end_s
    wanted = end / MOST_BUCKETS
    width = next((one for one in _WIDTHS_S if one >= wanted), math.ceil(wanted / 3600.0) * 3600.0)
    panels = [
        _connections(run, asked, width),
        memory(run, width, server),
        _beats(run, width),
        _quantiles("latency", "Latency of heartbeats", run, width, lambda tick: tick.latency_us),
        _quantiles("lateness", "Lateness of asyncli", run, width, lambda tick: tick.lateness_us),
        *_losses(run, width),
    ]
    spans = [Span(one.name, one.start_s, one.end_s if one.end_s is not None else max(end, one.start_s)) for one in run.phases]
    return Timeline(end, spans, [one for one in panels if one.lines], width)


def memory(run: Run, width_s: float, server: str = "server") -> Panel:
    """Memory (bytes) above the baseline's median, or above the first reading without a baseline."""
    lines = []
    for sources, label, role in MEMORY:
        found = next((one for source in sources if len(one := run.series(source))), None)
        if found is None:
            continue
        before = found.between(-math.inf, run.first_connect_s).values
        base = statistics.median(before) if before else found.values[0]
        if role == "most" and max(found.values) - base < _VISIBLE_LISTING:
            continue
        above = Series(found.t_s, [value - base for value in found.values])
        lines.append(_gauge(label.format(server=server, host=run.sides.host), role, above, width_s))
    return Panel("memory", "Memory above the baseline", "B", lines)


def _connections(run: Run, asked: Series | None, width_s: float) -> Panel:
    active = run.series(metrics.STATUS_ACTIVE)
    # Without our poller's connection.
    theirs = Series(active.t_s, [max(0.0, value - 1) for value in active.values])
    held = run.held if run.ticks else Series()
    drawn: tuple[tuple[str, Role, Series], ...] = (
        ("asked", "asked", asked or Series()), ("held", "ours", held), ("server active", "server", theirs),
    )  # fmt: skip
    lines = [_gauge(label, role, one, width_s) for label, role, one in drawn if len(one)]
    return Panel("connections", "Connections", "", lines)


def _beats(run: Run, width_s: float) -> Panel:
    t_s = np.array([t_s for t_s, _ in run.ticks])
    sent, answered = ([getattr(tick, what) for _, tick in run.ticks] for what in ("sent", "answered"))
    lines = []
    if any(sent):
        # A count covers the time since the one before, or a second after a gap.
        covered = np.diff(t_s, prepend=t_s[0] - 1.0)
        covered[(covered <= 0) | (covered > _GAP_S)] = 1.0
        places = [first for first, _ in stretches(t_s, width_s)]
        middles = _middles(t_s, width_s)
        drawn: tuple[tuple[str, Role, list[int]], ...] = (("sent", "ours", sent), ("answered", "server", answered))
        for label, role, counts in drawn:
            rates = np.add.reduceat(counts, places) / np.add.reduceat(covered, places)
            lines.append(Line(label, role, *broken(middles, rates, _gap_s(width_s))))
    return Panel("heartbeats", "Heartbeats per second", "", lines)


def _quantiles(key: str, title: str, run: Run, width_s: float, of: Callable[[Tick], Histogram]) -> Panel:
    full = [(t_s, of(tick)) for t_s, tick in run.ticks if of(tick)]
    t_s = np.array([t_s for t_s, _ in full])
    found = [summed(one for _, one in full[first:beyond]) for first, beyond in stretches(t_s, width_s)]
    values = [one.quantiles([q for _, q, _ in _QUANTILES]) for one in found]
    lines = []
    for place, (label, _, role) in enumerate(_QUANTILES if found else ()):
        seconds = np.array([max(_LEAST_S, (one[place] or 0.0) / 1e6) for one in values])
        lines.append(Line(label, role, *broken(_middles(t_s, width_s), seconds, _gap_s(width_s))))
    return Panel(key, title, "s", lines)


def _losses(run: Run, width_s: float) -> Iterator[Panel]:
    """A panel per cause or status: losses, failed connects, error answers; most frequent first."""
    t_s = np.array([t_s for t_s, _ in run.ticks])
    for kind, counted in (
        ("lost", [{cause: dead.count for cause, dead in tick.deaths.items()} for _, tick in run.ticks]),
        ("failed", [tick.failures for _, tick in run.ticks]),
        ("error answers", [{f"HTTP {status}": count for status, count in errors(tick).items()} for _, tick in run.ticks]),
    ):
        totals = Counter[str]()
        for counts in counted:
            totals.update(counts)
        for cause, total in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0])):
            if total:
                counts_of = [counts.get(cause, 0) for counts in counted]
                sums = np.add.reduceat(counts_of, [first for first, _ in stretches(t_s, width_s)])
                line = Line(cause, "most", _middles(t_s, width_s)[sums > 0], sums[sums > 0])
                yield Panel(kind, f"{kind}: {cause}, {format_count(total)}", "", [line], bars=True)


def _gauge(label: str, role: Role, found: Series, width_s: float) -> Line:
    # Costly metrics are read every few seconds, which is no gap.
    pace_s = float(np.median(np.diff(found.t_s))) if len(found) > 1 else 0.0
    return Line(label, role, *broken(*extremes(found, width_s), max(_gap_s(width_s), _GAP_PACES * pace_s)))


def _gap_s(width_s: float) -> float:
    return max(_GAP_S, 2.5 * width_s)


def stretches(t_s: Any, width_s: float) -> list[tuple[int, int]]:
    """(First, last + 1) indices of the instants in each stretch that has any. A border belongs to the earlier stretch."""
    if not len(t_s):
        return []
    firsts = np.flatnonzero(np.diff(np.ceil(np.asarray(t_s) / width_s), prepend=-np.inf)).tolist()
    return list(zip(firsts, [*firsts[1:], len(t_s)], strict=True))


def _middles(t_s: Any, width_s: float) -> Any:
    """The middle of each stretch, or its only instant."""
    middles = [(math.ceil(t_s[first] / width_s) - 0.5) * width_s if beyond - first > 1 else t_s[first]
               for first, beyond in stretches(t_s, width_s)]  # fmt: skip
    return np.array(middles)


def extremes(found: Series, width_s: float) -> tuple[Any, Any]:
    """Minimum and maximum of each stretch in their order, and the last value."""
    t_s, values = np.array(found.t_s), np.array(found.values)
    kept = {len(t_s) - 1}
    for first, beyond in stretches(t_s, width_s):
        part = values[first:beyond]
        kept |= {first + int(part.argmin()), first + int(part.argmax())} if len(part) > 2 else {first, beyond - 1}
    places = sorted(kept)
    return t_s[places], values[places]


def broken(t_s: Any, values: Any, gap_s: float) -> tuple[Any, Any]:
    """The series with a NaN in each gap longer than ``gap_s``, where no line is drawn."""
    t_s, gaps = np.asarray(t_s), np.flatnonzero(np.diff(t_s) > gap_s) + 1
    return np.insert(t_s, gaps, t_s[gaps]), np.insert(np.asarray(values, float), gaps, math.nan)


def histogram_bins(histogram: Histogram, most: int) -> tuple[Any, Any]:
    """(Counts, edges) of at most ``most`` bins of whole numbers, from the least to the greatest value."""
    low, high = histogram.least, histogram.greatest
    width = max(1, math.ceil((high - low + 1) / most))
    edges = np.arange(low, high + 1 + width, width)
    found = [(sum(histogram.within(key)) // 2, count) for key, count in histogram.items()]
    counts, _ = np.histogram([value for value, _ in found], edges, weights=[count for _, count in found])
    return counts, edges
