"""A run on one time axis, downsampled to what a figure can show. Pure.

In each stretch of time, gauges keep minimum and maximum, counts become rates, and quantiles are of
merged histograms.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from asyncli.analysis.totals import errors
from asyncli.core.histogram import Histogram, RangeSums
from asyncli.model import metrics
from asyncli.model.records import PhaseName, RunEvent, Tick, TimeSpan
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.units import format_count, format_duration

#: The meaning of a line; drawing.py has its colour and dash.
Role = Literal["asked", "total", "server", "kernel", "ours", "middle", "high", "most"]
#: The role of each memory, by its name in costs and drifts.
ROLE_OF: dict[str, Role] = {
    "host_total": "total",
    "server_user": "server",
    "live_heap": "middle",
    "kernel": "kernel",
    "generator_user": "ours",
}

#: (Metrics, the first of which that was read is drawn; label; role).
MEMORY: tuple[tuple[tuple[str, ...], str, Role], ...] = (
    (metrics.MEMORY["host"], "{host}", "total"),
    (metrics.MEMORY["kernel"], "kernel", "kernel"),
    (metrics.SERVER_MEMORY_THAT_CAME, "{server}", "server"),
    (metrics.MEMORY["generator"], "asyncli", "ours"),
    ((metrics.KERNEL_LISTING_BYTES,), "of /proc", "most"),
)
# Drawn only if it explains a visible jump of the host's memory (bytes).
_VISIBLE_LISTING = 10e6
#: (Label, quantile, role).
_QUANTILES: tuple[tuple[str, float, Role], ...] = (
    ("p50", 0.5, "middle"),
    ("p99", 0.99, "high"),
    ("max", 1.0, "most"),
)
# The floor of the logarithmic axis (s): below it the clocks of two processes disagree.
_LEAST_S = 1e-5
#: About the columns of pixels in a figure.
MOST_BUCKETS = 480
_HOUR_S = 3600.0
# Readable widths; longer ones are whole hours.
_WIDTHS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, _HOUR_S)
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
    """Lines on one vertical axis, or ``bars`` of counts per stretch. ``unit``: "B", "s"
    (logarithmic) or "" for counts.
    """

    key: str
    title: str
    unit: str
    lines: list[Line]
    bars: bool = False


SpanName = PhaseName | Literal["interrupted"]


class Span(msgspec.Struct):
    """A phase, or an interruption of the run; one without an end ends with the run."""

    name: SpanName
    start_s: float
    end_s: float


class Timeline(msgspec.Struct):
    """All panels of a run, in stretches of ``width_s``."""

    end_s: float
    phases: list[Span]
    panels: list[Panel]
    width_s: float
    #: What was done or noted, in order of time.
    events: list[RunEvent]
    #: When the run was interrupted.
    gaps: list[Span]

    @property
    def method(self) -> str:
        """How points were combined, for the caption."""
        if self.width_s <= 1.0:
            return "Each point is one second."
        return (
            f"Drawn in stretches of {format_duration(self.width_s)}: minimum and maximum of "
            "gauges, mean rates, quantiles of all values."
        )


def timeline(run: Run, asked: Series | None = None, server: str = "server") -> Timeline:
    """The timeline of ``run``; no panels without records. ``asked``: connections due over time."""
    width = _readable_width(run.end_s / MOST_BUCKETS)
    panels = [
        _connections(run, asked, width),
        memory(run, width, server),
        _beats(run, width),
        _quantiles("latency", "Latency of heartbeats", run, width, run.latency_sums),
        _quantiles("lateness", "Lateness of asyncli", run, width, run.lateness_sums),
        *_losses(run, width),
    ]
    filled = [panel for panel in panels if panel.lines]
    phases = [_span(phase.name, phase, run.end_s) for phase in run.phases]
    # One in the last second may be later than the last record.
    events = [event for event in run.events if 0 <= event.at_s <= run.end_s]
    gaps = [_span("interrupted", gap, run.end_s) for gap in run.gaps]
    return Timeline(run.end_s, phases, filled, width, events, gaps)


def _readable_width(least_s: float) -> float:
    for width_s in _WIDTHS_S:
        if width_s >= least_s:
            return width_s
    return math.ceil(least_s / _HOUR_S) * _HOUR_S


def _span(name: SpanName, time: TimeSpan, run_end_s: float) -> Span:
    end_s = time.end_s
    if end_s is None:
        end_s = max(run_end_s, time.start_s)
    return Span(name, time.start_s, end_s)


def memory(run: Run, width_s: float, server: str = "server") -> Panel:
    """Memory (bytes) above the baseline's median, or above the first reading without a baseline."""
    lines = []
    for sources, label, role in MEMORY:
        memory_read = first_read(run, sources)
        if memory_read is None:
            continue
        above = _above_baseline(memory_read, run.first_connect_s)
        if role == "most" and max(above.values) < _VISIBLE_LISTING:
            continue
        name = label.format(server=server, host=run.sides.host)
        lines.append(_gauge(name, role, above, width_s))
    return Panel("memory", "Memory above the baseline", "B", lines)


def first_read(run: Run, sources: Iterable[str]) -> Series | None:
    """The first of these metrics that was read."""
    for source in sources:
        series = run.series(source)
        if len(series):
            return series
    return None


def _above_baseline(series: Series, first_connect_s: float) -> Series:
    before = series.between(-math.inf, first_connect_s).values
    baseline = statistics.median(before) if before else series.values[0]
    return Series(series.t_s, [value - baseline for value in series.values])


def _connections(run: Run, asked: Series | None, width_s: float) -> Panel:
    active = run.series(metrics.STATUS_ACTIVE)
    # Without our poller's connection.
    of_clients = Series(active.t_s, [max(0.0, value - 1) for value in active.values])
    counts: tuple[tuple[str, Role, Series], ...] = (
        ("asked", "asked", asked or Series()),
        ("held", "ours", run.held if run.ticks else Series()),
        ("server active", "server", of_clients),
    )
    lines = [_gauge(label, role, count, width_s) for label, role, count in counts if len(count)]
    return Panel("connections", "Connections", "", lines)


def _beats(run: Run, width_s: float) -> Panel:
    t_s = np.array([t_s for t_s, _ in run.ticks])
    sent = [tick.sent for _, tick in run.ticks]
    answered = [tick.answered for _, tick in run.ticks]
    lines = []
    if any(sent):
        covered_s = _covered(t_s)
        firsts = _firsts(t_s, width_s)
        seconds = np.add.reduceat(covered_s, firsts)
        middles = _middles(t_s, width_s)
        drawn: tuple[tuple[str, Role, list[int]], ...] = (
            ("sent", "ours", sent),
            ("answered", "server", answered),
        )
        for label, role, counts in drawn:
            rates = np.add.reduceat(counts, firsts) / seconds
            lines.append(Line(label, role, *broken(middles, rates, _gap_s(width_s))))
    return Panel("heartbeats", "Heartbeats per second", "", lines)


def _covered(t_s: Any) -> Any:
    """The seconds that each count covers: those since the one before, or one after a gap."""
    covered_s = np.diff(t_s, prepend=t_s[0] - 1.0)
    covered_s[(covered_s <= 0) | (covered_s > _GAP_S)] = 1.0
    return covered_s


def _quantiles(key: str, title: str, run: Run, width_s: float, sums: RangeSums) -> Panel:
    instants = []
    numbers = []
    for number, (at_s, _) in enumerate(run.ticks):
        if sums.has_any(number):
            instants.append(at_s)
            numbers.append(number)
    t_s = np.array(instants)
    shares = [share for _, share, _ in _QUANTILES]
    values_us = []
    for first, beyond in stretches(t_s, width_s):
        # Those between without any add nothing.
        whole = sums.between(numbers[first], numbers[beyond - 1] + 1)
        values_us.append(whole.quantiles(shares))
    lines = []
    for place, (label, _, role) in enumerate(_QUANTILES if values_us else ()):
        seconds = np.array([max(_LEAST_S, (values[place] or 0.0) / 1e6) for values in values_us])
        lines.append(Line(label, role, *broken(_middles(t_s, width_s), seconds, _gap_s(width_s))))
    return Panel(key, title, "s", lines)


def _losses(run: Run, width_s: float) -> Iterator[Panel]:
    """A panel per cause or status: losses, failed connects, error answers; most frequent first."""
    t_s = np.array([t_s for t_s, _ in run.ticks])
    for kind, counts_of in _COUNTS_OF.items():
        counts_by_tick = [counts_of(tick) for _, tick in run.ticks]
        totals = Counter[str]()
        for counts in counts_by_tick:
            # Most seconds have none.
            if counts:
                totals.update(counts)
        for cause, total in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0])):
            if not total:
                continue
            counts_of_cause = [counts.get(cause, 0) for counts in counts_by_tick]
            sums = np.add.reduceat(counts_of_cause, _firsts(t_s, width_s))
            line = Line(cause, "most", _middles(t_s, width_s)[sums > 0], sums[sums > 0])
            yield Panel(kind, f"{kind}: {cause}, {format_count(total)}", "", [line], bars=True)


def _error_answers(tick: Tick) -> dict[str, int]:
    return {f"HTTP {status}": count for status, count in errors(tick).items()}


#: What is counted by cause or status: its name, and the counts of a second.
_COUNTS_OF: dict[str, Callable[[Tick], Mapping[str, int]]] = {
    "lost": lambda tick: tick.lost_by_cause,
    "failed": lambda tick: tick.failures,
    "error answers": _error_answers,
}


def _gauge(label: str, role: Role, series: Series, width_s: float) -> Line:
    # Costly metrics are read every few seconds, which is no gap.
    pace_s = float(np.median(np.diff(series.t_s))) if len(series) > 1 else 0.0
    t_s, values = extremes(series, width_s)
    return Line(label, role, *broken(t_s, values, max(_gap_s(width_s), _GAP_PACES * pace_s)))


def _gap_s(width_s: float) -> float:
    return max(_GAP_S, 2.5 * width_s)


def stretches(t_s: Any, width_s: float) -> list[tuple[int, int]]:
    """(First, last + 1) indices of the instants in each stretch that has any. A border belongs to
    the earlier stretch.
    """
    firsts = _firsts(t_s, width_s)
    if not firsts:
        return []
    return list(zip(firsts, [*firsts[1:], len(t_s)], strict=True))


def _firsts(t_s: Any, width_s: float) -> list[int]:
    """The index of the first instant of each stretch that has any."""
    if not len(t_s):
        return []
    stretch_of = np.ceil(np.asarray(t_s) / width_s)
    firsts: list[int] = np.flatnonzero(np.diff(stretch_of, prepend=-np.inf)).tolist()
    return firsts


def _middles(t_s: Any, width_s: float) -> Any:
    """The middle of each stretch, or its only instant."""
    middles = []
    for first, beyond in stretches(t_s, width_s):
        if beyond - first > 1:
            middles.append((math.ceil(t_s[first] / width_s) - 0.5) * width_s)
        else:
            middles.append(t_s[first])
    return np.array(middles)


def extremes(series: Series, width_s: float) -> tuple[Any, Any]:
    """Minimum and maximum of each stretch in their order, and the last value."""
    t_s = np.array(series.t_s)
    values = np.array(series.values)
    kept = {len(t_s) - 1}
    for first, beyond in stretches(t_s, width_s):
        part = values[first:beyond]
        if len(part) > 2:
            kept |= {first + int(part.argmin()), first + int(part.argmax())}
        else:
            kept |= {first, beyond - 1}
    places = sorted(kept)
    return t_s[places], values[places]


def broken(t_s: Any, values: Any, gap_s: float) -> tuple[Any, Any]:
    """The series with a NaN in each gap longer than ``gap_s``, where no line is drawn."""
    instants = np.asarray(t_s)
    gaps = np.flatnonzero(np.diff(instants) > gap_s) + 1
    with_gaps = np.insert(np.asarray(values, float), gaps, math.nan)
    return np.insert(instants, gaps, instants[gaps]), with_gaps


def histogram_bins(histogram: Histogram, most: int) -> tuple[Any, Any]:
    """(Counts, edges) of at most ``most`` bins of whole numbers, from the least to the greatest
    value.
    """
    low = histogram.least
    high = histogram.greatest
    width = max(1, math.ceil((high - low + 1) / most))
    edges = np.arange(low, high + 1 + width, width)
    middles = []
    weights = []
    for key, count in histogram.items():
        middles.append(sum(histogram.within(key)) // 2)
        weights.append(count)
    counts, _ = np.histogram(middles, edges, weights=weights)
    return counts, edges
