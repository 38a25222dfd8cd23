"""A run as tables for other programs: CSV with a header, UTF-8, units in the names, empty where a number is not known."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asyncli.analysis.slope import Cost
from asyncli.core.histogram import Histogram
from asyncli.metrics import meaning
from asyncli.records import Deaths
from asyncli.report.analyses import Analyses
from asyncli.report.format import COSTS
from asyncli.report.frames import ordered_metrics
from asyncli.report.summary import Summary
from asyncli.run import Run

Cell = str | int | float | None

_LATENCY = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
_LATENESS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
_AGES = (("least", 0.0), ("p50", 0.5), ("max", 1.0))
_RUN_ID = {"run_id": "the run's id: rows of several runs may be put together"}
_T_S = {"t_s": "seconds since the run's start"}
_ONE_END = "kernel and kernel_queued are of one socket end"

#: table -> column -> what it means. Of samples, the metrics that were read come after these columns.
COLUMNS: dict[str, dict[str, str]] = {
    "ticks": {
        **_RUN_ID, **_T_S,
        "phase": "the phase that the second lies in", "second": "whole seconds since the first connect that the tick closes",
        "workers": "worker processes that reported", "held": "connections held at the second's end",
        "connecting": "connects pending then", "awaiting": "connections then waiting for an answer",
        "started": "connects begun in the second", "opened": "connections established in it",
        "reopened": "those of them that replaced a lost one", "lost": "established connections that ended in it",
        "failed": "connects that failed in it", "sent": "heartbeats sent", "answered": "heartbeats answered",
        "beats_failed": "heartbeats not answered", "bytes_sent": "bytes sent", "bytes_received": "bytes received",
        "cpu_user_s": "user CPU time of the workers since their start", "cpu_system_s": "system CPU time of the same",
        "longest_turn_s": "the longest that a worker stood still",
        **{f"latency_{name}_ms": "heartbeat: answered minus due" for name, _ in _LATENCY},
        **{f"lateness_{name}_ms": "heartbeat: sent minus due" for name, _ in _LATENESS},
        **{f"connect_{name}_ms": "connect: established minus begun" for name, _ in _LATENESS},
        **{f"ramp_lateness_{name}_ms": "batch of the ramp: opened minus due" for name, _ in _LATENESS},
    },
    "samples": {**_RUN_ID, **_T_S},
    "deaths": {
        **_RUN_ID, **_T_S,
        "phase": "the phase that the second lies in", "kind": "lost (it had been established) or failed (it never was)",
        "cause": "why", "count": "how many in this second",
        **{f"age_{name}_s": "age of the lost" for name, _ in _AGES},
        **{f"idle_{name}_s": "for how long they had been idle" for name, _ in _AGES},
        **{f"requests_{name}": "requests that they had been answered" for name, _ in _AGES},
    },
    "phases": {
        **_RUN_ID, "name": "of the phase", "start_s": "seconds since the run's start", "end_s": "the same; empty while it lasts",
        "duration_s": "its length",
    },
    "findings": {
        **_RUN_ID, "severity": "error, warning or info", "code": "its name for programs", "evidence": "what was seen",
        "remedy": "what to do; empty for nothing",
    },
    "cost": {
        **_RUN_ID, "part": f"whose memory; {_ONE_END}", "bytes_per_connection": "the slope of memory over connections",
        "ci95_low_bytes": "its 95 % interval, from", "ci95_high_bytes": "to", "fixed_bytes": "the line at no connections",
        "r2": "share of the points' variance that the line explains", "points": "medians that the line goes through",
        "method": "how it was found",
    },
}  # fmt: skip


class Table(NamedTuple):
    """A table's header and its rows."""

    columns: list[str]
    rows: list[list[Cell]]


def tables(run: Run, summary: Summary, analyses: Analyses) -> dict[str, Table]:
    """Every table by its name, ``columns`` among them: what the columns of the others mean."""
    metrics = ordered_metrics(run.samples)
    rows: dict[str, Iterable[list[Cell]]] = {
        "ticks": _ticks(run), "samples": _samples(run, metrics), "deaths": _deaths(run), "phases": _phases(summary),
        "findings": ([one.severity, one.code, one.evidence, one.remedy] for one in summary.findings), "cost": _cost(analyses),
    }  # fmt: skip
    found = {}
    for name, meanings in COLUMNS.items():
        header = [*meanings, *metrics] if name == "samples" else [*meanings]
        found[name] = Table(header, [[run.id, *row] for row in rows[name]])
    described: list[list[Cell]] = []
    for name, columns in COLUMNS.items():
        more = {metric: meaning(metric) for metric in metrics} if name == "samples" else {}
        described += [[run.id, name, column, what] for column, what in (columns | more).items()]
    return {**found, "columns": Table(["run_id", "table", "column", "meaning"], described)}


def to_csv(table: Table) -> str:
    """The table as CSV text (RFC 4180, but for lines that end as on Unix)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_written(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def _written(cell: Cell) -> str | int | float | None:
    # Neither NaN nor an infinity is a number to other programs.
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _ticks(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), name in zip(run.ticks, run.phases_of_ticks, strict=True):
        yield [
            t_s, name, tick.second, tick.workers, tick.held, tick.connecting, tick.awaiting,
            tick.started, tick.opened, tick.reopened, tick.lost, sum(tick.failures.values()), tick.sent, tick.answered,
            tick.beats_failed, tick.bytes_sent, tick.bytes_received, tick.cpu_user_s, tick.cpu_system_s, tick.longest_turn_s,
            *_ms(tick.latency_us, _LATENCY), *_ms(tick.lateness_us, _LATENESS), *_ms(tick.connect_us, _LATENESS),
            *_ms(tick.ramp_lateness_us, _LATENESS),
        ]  # fmt: skip


def _ms(histogram: Histogram, quantiles: tuple[tuple[str, float], ...]) -> Iterator[float | None]:
    values = [histogram.quantile(q) for _, q in quantiles] if histogram else [None] * len(quantiles)
    return (None if value is None else value / 1e3 for value in values)


def _samples(run: Run, metrics: list[str]) -> Iterator[list[Cell]]:
    for sample in run.samples:
        yield [sample.t_s, *map(sample.values.get, metrics)]


def _deaths(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), name in zip(run.ticks, run.phases_of_ticks, strict=True):
        for cause, dead in sorted(tick.deaths.items()):
            if dead.count:
                yield [t_s, name, "lost", cause, dead.count, *_of_the_dead(dead)]
        for cause, count in sorted(tick.failures.items()):
            if count:
                yield [t_s, name, "failed", cause, count, *[None] * (3 * len(_AGES))]


def _of_the_dead(dead: Deaths) -> Iterator[float | None]:
    for histogram in (dead.age_s, dead.idle_s, dead.requests):
        for _, q in _AGES:
            yield float(histogram.least) if histogram and not q else histogram.quantile(q)


def _phases(summary: Summary) -> Iterator[list[Cell]]:
    for one in summary.run.phases:
        yield [one.name, one.start_s, one.end_s, None if one.end_s is None else one.end_s - one.start_s]


def _cost(analyses: Analyses) -> Iterator[list[Cell]]:
    for name in COSTS:
        cost: Cost | None = getattr(analyses.costs, name)
        if cost is not None:
            low, high = cost.ci95
            yield [name, cost.bytes_per_connection, low, high, cost.fixed_bytes, cost.r2, cost.points, cost.method]
