"""A run as CSV tables: header, UTF-8, units in the names, empty for unknown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from asyncli.analysis.slope import Cost
from asyncli.core.histogram import Histogram
from asyncli.model.metrics import METRICS, meaning
from asyncli.model.records import Deaths, Finding, ProtocolCounts, Sample, Tick, TlsCounts
from asyncli.model.run import Run
from asyncli.model.samples import metrics_of
from asyncli.model.text import printable
from asyncli.report.analyses import Analyses
from asyncli.report.format import COSTS
from asyncli.report.summary import Summary

Cell = str | int | float | None

_LATENCY = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
_LATENESS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
_AGES = (("least", 0.0), ("p50", 0.5), ("max", 1.0))
#: Histograms of a tick: their quantiles and meaning.
_TIMES = {
    "latency": (_LATENCY, "heartbeat: answered minus due"), "lateness": (_LATENESS, "heartbeat: sent minus due"),
    "connect": (_LATENESS, "connect: established minus begun"),
    "ramp_lateness": (_LATENESS, "batch of the ramp: opened minus due"),
    "granted": (_LATENESS, "protocol handshake: from the first byte sent until granted"),
    "tcp": (_LATENESS, "TCP part of a connect over TLS"), "handshake": (_LATENESS, "TLS handshake of a connect"),
}  # fmt: skip
_RUN_ID = {"run_id": "the run's id, so that rows of several runs can be combined"}
_T_S = {"t_s": "seconds since the run's start", "phase": "the phase at that time"}
_NO_TLS, _NO_PROTOCOL = TlsCounts(), ProtocolCounts()
#: Columns that are fields of a tick.
_TICK_COLUMNS = {
    "second": "whole seconds since the first connect that the tick closes", "workers": "worker processes that reported",
    "held": "connections held at the second's end", "connecting": "connects pending then",
    "awaiting": "connections waiting for an answer then", "started": "connects begun in the second",
    "opened": "connections established in it", "reopened": "those of them that replaced a lost one",
    "lost": "established connections that ended in it", "failed": "connects that failed in it", "sent": "heartbeats sent",
    "answered": "heartbeats answered", "beats_failed": "heartbeats not answered", "bytes_sent": "bytes sent",
    "bytes_received": "bytes received", "cpu_user_s": "user CPU time of the workers since their start",
    "cpu_system_s": "their system CPU time", "longest_turn_s": "the longest time that a worker was stopped",
}  # fmt: skip
#: Columns that are fields of its protocol's counts; empty for HTTP/1.1.
PROTOCOL_COLUMNS = {
    "messages": "unsolicited messages received", "message_bytes": "bytes of them without framing",
    "streams_open": "HTTP/2 streams held at the second's end",
}  # fmt: skip
_ONE_END = "kernel and kernel_queued are per socket end"

#: table -> column -> meaning. Samples have a column for each metric too.
COLUMNS: dict[str, dict[str, str]] = {
    "ticks": {
        **_RUN_ID, **_T_S, **_TICK_COLUMNS, **PROTOCOL_COLUMNS,
        **{f"{name}_{label}_ms": what for name, (quantiles, what) in _TIMES.items() for label, _ in quantiles},
    },
    "samples": {**_RUN_ID, "t_s": _T_S["t_s"]},
    "deaths": {
        **_RUN_ID, **_T_S, "kind": "lost (after it was established) or failed (never established)",
        "cause": "cause", "count": "number in this second",
        **{f"age_{name}_s": "age of the lost connections" for name, _ in _AGES},
        **{f"idle_{name}_s": "their idle time" for name, _ in _AGES},
        **{f"requests_{name}": "answered requests of each" for name, _ in _AGES},
    },
    "phases": {
        **_RUN_ID, "name": "phase", "start_s": "seconds since the run's start", "end_s": "the same; empty while it lasts",
        "duration_s": "its length",
    },
    "findings": {
        **_RUN_ID, "severity": "error, warning or info", "code": "the finding's code", "evidence": "what was measured",
        "remedy": "what to do; may be empty",
    },
    "cost": {
        **_RUN_ID, "part": f"whose memory; {_ONE_END}", "bytes_per_connection": "the slope of memory over connections",
        "ci95_low_bytes": "lower end of its 95 % interval", "ci95_high_bytes": "upper end",
        "fixed_bytes": "the line at no connections", "r2": "share of the points' variance that the line explains",
        "points": "number of medians that the line is fitted to", "method": "how it was measured",
    },
}  # fmt: skip


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Cell]]


def tables(run: Run, summary: Summary, analyses: Analyses) -> dict[str, Table]:
    """Every table by name; the table ``columns`` describes the columns of the others."""
    metrics = ordered_metrics(run.samples)
    rows: dict[str, Iterable[list[Cell]]] = {
        "ticks": tick_rows(run), "samples": ([one.t_s, *map(one.values.get, metrics)] for one in run.samples),
        "deaths": death_rows(run), "phases": phase_rows(run), "findings": finding_rows(summary.findings),
        "cost": _cost(analyses),
    }  # fmt: skip
    meanings = {**COLUMNS, "samples": {**COLUMNS["samples"], **{name: meaning(name) for name in metrics}}}
    found = {name: Table([*meanings[name]], [[run.id, *row] for row in rows[name]]) for name in meanings}
    described: list[list[Cell]] = [[run.id, name, column, what] for name in meanings for column, what in meanings[name].items()]
    return {**found, "columns": Table(["run_id", "table", "column", "meaning"], described)}


def to_csv(table: Table) -> str:
    """The table as CSV (RFC 4180, with Unix line ends)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, table.columns))
    writer.writerows(map(_harmless, row) for row in table.rows)
    return text.getvalue()


# What a spreadsheet takes for the start of a formula (owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _harmless(cell: Cell) -> Cell:
    """A text that would be a formula, after a quotation mark that makes it a text: it may be a stranger's. It is one line. No
    NaN and no infinity, which other programs cannot read."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if isinstance(cell, str):
        return printable(f"'{cell}" if cell.startswith(_FORMULA) else cell)
    return cell


def ordered_metrics(samples: Sequence[Sample]) -> list[str]:
    """The metrics that were read, in the order of METRICS, families by name."""
    names = set(metrics_of(samples))
    known = [name for name in METRICS if name in names]
    return [*known, *sorted(names - set(known))]


def tick_rows(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), phase in zip(run.ticks, run.phases_of_ticks, strict=True):
        counts = [sum(tick.failures.values()) if name == "failed" else getattr(tick, name) for name in _TICK_COLUMNS]
        times = (
            None if value is None else value / 1e3
            for name, (quantiles, _) in _TIMES.items()
            for value in _quantiles(_times(tick, name), quantiles)
        )  # fmt: skip
        protocol = [None if tick.protocol is None else getattr(tick.protocol, name) for name in PROTOCOL_COLUMNS]
        yield [t_s, phase, *counts, *protocol, *times]


def _times(tick: Tick, name: str) -> Histogram:
    """The histogram called ``name`` in _TIMES."""
    if name == "granted":
        return (tick.protocol or _NO_PROTOCOL).handshake_us
    of = tick if hasattr(tick, f"{name}_us") else tick.tls or _NO_TLS
    histogram: Histogram = getattr(of, f"{name}_us")
    return histogram


def _quantiles(histogram: Histogram, quantiles: Sequence[tuple[str, float]]) -> list[float | None]:
    return histogram.quantiles([q for _, q in quantiles]) if histogram else [None] * len(quantiles)


def death_rows(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), phase in zip(run.ticks, run.phases_of_ticks, strict=True):
        for cause, dead in sorted(tick.deaths.items()):
            if dead.count:
                yield [t_s, phase, "lost", cause, dead.count, *_death_quantiles(dead)]
        for cause, count in sorted(tick.failures.items()):
            if count:
                yield [t_s, phase, "failed", cause, count, *[None] * (3 * len(_AGES))]


def _death_quantiles(dead: Deaths) -> Iterator[float | None]:
    for histogram in (dead.age_s, dead.idle_s, dead.requests):
        for _, q in _AGES:
            yield float(histogram.least) if histogram and not q else histogram.quantile(q)


def phase_rows(run: Run) -> list[list[Cell]]:
    return [[one.name, one.start_s, one.end_s, None if one.end_s is None else one.end_s - one.start_s] for one in run.phases]


def finding_rows(findings: Iterable[Finding]) -> list[list[Cell]]:
    return [[one.severity, one.code, one.evidence, one.remedy] for one in findings]


def _cost(analyses: Analyses) -> Iterator[list[Cell]]:
    for name in COSTS:
        cost: Cost | None = getattr(analyses.costs, name)
        if cost is not None:
            low, high = cost.ci95
            yield [name, cost.bytes_per_connection, low, high, cost.fixed_bytes, cost.r2, cost.points, cost.method]
