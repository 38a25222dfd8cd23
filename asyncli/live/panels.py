"""The charts of the live page: what each shows, and how it is read of the records. Pure.

A chart more is a row in :data:`PANELS`, and a line more is one in its tuple; nothing else knows
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from asyncli.analysis.totals import errors
from asyncli.core.histogram import Histogram
from asyncli.model import metrics
from asyncli.model.records import Tick

#: How the numbers of an axis are written.
Unit = Literal["count", "bytes", "ms", "cores"]
#: The meaning of a line, which gives it its colour and dash.
Role = Literal["asked", "ours", "server", "kernel", "total", "middle", "high", "most"]


class LevelOfTick(NamedTuple):
    """A number at the end of each second."""

    of: Callable[[Tick], float]


class RateOfTick(NamedTuple):
    """What was counted, by the second; None: this protocol has none."""

    of: Callable[[Tick], float | None]


class TimesOfTick(NamedTuple):
    """The ``share``-quantile (ms) of times that were counted in microseconds."""

    of: Callable[[Tick], Histogram]
    share: float


class LevelOfSample(NamedTuple):
    """The first of these metrics that was read. ``less``: what is not of the connections."""

    metrics: tuple[str, ...]
    less: float = 0.0


class RateOfSample(NamedTuple):
    """How fast a counter of the samples rises: seconds of CPU time in a second are cores."""

    metric: str


Source = LevelOfTick | RateOfTick | TimesOfTick | LevelOfSample | RateOfSample


class LineOfPanel(NamedTuple):
    """``key``: unique on the page."""

    key: str
    label: str
    role: Role
    source: Source

    @property
    def is_level(self) -> bool:
        """Whether a reading holds until the next one is due: what was counted or timed is of its
        own seconds alone.
        """
        return not isinstance(self.source, RateOfTick | TimesOfTick)


class ChartOfLines(NamedTuple):
    """One chart. A logarithmic one shows no zero; one above the baseline shows what came with the
    connections.
    """

    key: str
    title: str
    unit: Unit
    lines: tuple[LineOfPanel, ...]
    is_logarithmic: bool = False
    is_above_baseline: bool = False


class CountedByCause(NamedTuple):
    """One chart of bars, stacked by cause: how many there were in each stretch of time."""

    key: str
    title: str
    of: Callable[[Tick], Mapping[str, int]]


def _answers(tick: Tick) -> Mapping[str, int]:
    return {f"HTTP {status}": count for status, count in errors(tick).items()}


def _messages(tick: Tick) -> float | None:
    return None if tick.protocol is None else tick.protocol.messages


def _latency(tick: Tick) -> Histogram:
    return tick.latency_us


def _lateness(tick: Tick) -> Histogram:
    return tick.lateness_us


#: From top to bottom; those of :data:`COUNTED` come after the first.
PANELS = (
    ChartOfLines(
        "connections",
        "Connections",
        "count",
        (
            LineOfPanel("held", "held", "ours", LevelOfTick(lambda tick: tick.held)),
            LineOfPanel("connecting", "connecting", "asked", LevelOfTick(lambda t: t.connecting)),
            # The page counts our own connection for it.
            LineOfPanel(
                "active",
                "by the server's count",
                "server",
                LevelOfSample((metrics.STATUS_ACTIVE,), less=1.0),
            ),
        ),
    ),
    ChartOfLines(
        "memory",
        "Memory above that before the first connect",
        "bytes",
        (
            LineOfPanel(
                "server",
                "of the server",
                "server",
                LevelOfSample(metrics.SERVER_MEMORY_THAT_CAME),
            ),
            LineOfPanel(
                "kernel",
                "of the kernel's sockets",
                "kernel",
                LevelOfSample(metrics.MEMORY["kernel"]),
            ),
            LineOfPanel(
                "generator",
                "of asyncli",
                "ours",
                LevelOfSample(metrics.MEMORY["generator"]),
            ),
        ),
        is_above_baseline=True,
    ),
    # Its other programs move it by more than all connections of a small run take, so it has an axis
    # of its own.
    ChartOfLines(
        "host_memory",
        "Memory of the whole host above that before the first connect",
        "bytes",
        (LineOfPanel("host", "of the host", "total", LevelOfSample(metrics.MEMORY["host"])),),
        is_above_baseline=True,
    ),
    ChartOfLines(
        "heap",
        "Heap of the server, by its runtime",
        "bytes",
        (
            LineOfPanel(
                "heap_used",
                "in use, garbage included",
                "server",
                LevelOfSample((metrics.RUNTIME_HEAP_BYTES,)),
            ),
            LineOfPanel(
                "heap_alive",
                "alive after its last collection",
                "middle",
                LevelOfSample((metrics.RUNTIME_LIVE_BYTES,)),
            ),
            LineOfPanel(
                "heap_outside",
                "outside the heap, held by its objects",
                "most",
                LevelOfSample((metrics.RUNTIME_OUTSIDE_BYTES,)),
            ),
            LineOfPanel(
                "heap_forced",
                "alive after asyncli's collection, in all",
                "high",
                LevelOfSample((metrics.RUNTIME_FORCED_BYTES,)),
            ),
        ),
    ),
    ChartOfLines(
        "latency",
        "Latency of heartbeats",
        "ms",
        (
            LineOfPanel(
                "latency_p50",
                "half",
                "middle",
                TimesOfTick(_latency, 0.5),
            ),
            LineOfPanel(
                "latency_p99",
                "99 of 100",
                "high",
                TimesOfTick(_latency, 0.99),
            ),
            LineOfPanel(
                "latency_p999",
                "999 of 1,000",
                "most",
                TimesOfTick(_latency, 0.999),
            ),
            LineOfPanel(
                "lateness_p99",
                "asyncli's own lateness, 99 of 100",
                "ours",
                TimesOfTick(_lateness, 0.99),
            ),
        ),
        is_logarithmic=True,
    ),
    ChartOfLines(
        "heartbeats",
        "Heartbeats and messages a second",
        "count",
        (
            LineOfPanel("sent", "heartbeats sent", "ours", RateOfTick(lambda tick: tick.sent)),
            LineOfPanel("answered", "answered", "server", RateOfTick(lambda tick: tick.answered)),
            LineOfPanel(
                "messages",
                "messages received unasked",
                "most",
                RateOfTick(_messages),
            ),
        ),
    ),
    ChartOfLines(
        "cpu",
        "CPU",
        "cores",
        (
            LineOfPanel("server_cpu", "server", "server", RateOfSample(metrics.SERVER_CPU_S)),
            LineOfPanel("generator_cpu", "asyncli", "ours", RateOfSample(metrics.GENERATOR_CPU_S)),
            LineOfPanel("host_cpu", "host in all", "total", RateOfSample(metrics.HOST_CPU_BUSY_S)),
        ),
    ),
)
COUNTED = (
    CountedByCause("lost", "Lost connections", lambda tick: tick.lost_by_cause),
    CountedByCause("failed", "Failed connects", lambda tick: tick.failures),
    CountedByCause("errors", "Error answers", _answers),
)


def metrics_of_panels() -> list[str]:
    """The metrics of the samples that the charts need."""
    names: list[str] = []
    for panel in PANELS:
        for line in panel.lines:
            if isinstance(line.source, LevelOfSample):
                names += line.source.metrics
            elif isinstance(line.source, RateOfSample):
                names.append(line.source.metric)
    return names
