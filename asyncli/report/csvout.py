"""A run as CSV tables: header, UTF-8, units in the names, empty for unknown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.away import Away
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.totals import in_ms
from asyncli.model.metrics import METRICS, meaning
from asyncli.model.quantities import COUNTS, PROTOCOL_COUNTS, TIMES, TimesEachSecond
from asyncli.model.records import Deaths, Finding, Sample, Tick, phase_at
from asyncli.model.run import Run
from asyncli.model.samples import metrics_of
from asyncli.model.text import printable
from asyncli.report.analyses import Analyses
from asyncli.report.format import COSTS
from asyncli.report.summary import Summary
from asyncli.report.summary_parts import EventPart, known

Cell = str | int | float | None

_AGES = (("least", 0.0), ("p50", 0.5), ("max", 1.0))
_RUN_ID = {"run_id": "the run's id, so that rows of several runs can be combined"}
_T_S = {"t_s": "seconds since the run's start", "phase": "the phase at that time"}


_TICK_COUNTS = (*COUNTS, *PROTOCOL_COUNTS)
PROTOCOL_COLUMNS = tuple(count.column for count in PROTOCOL_COUNTS)


def _tick_meanings() -> dict[str, str]:
    meanings = {**_RUN_ID, **_T_S}
    for count in _TICK_COUNTS:
        meanings[count.column] = count.about
    for times in TIMES:
        for quantile in times.quantiles:
            meanings[f"{times.column}_{quantile}_ms"] = times.about
    return meanings


# Empty for marks, and for commands in whose time the server ended nothing.
_OF_DONE_EVENT = {
    "chosen": "connections that it concerned",
    "absent": "of these, not connected at its instant",
    "ended": "connections that it ended or silenced",
    "not_back": "of these, without an answer since",
    "attempts": "connects of those who come back; who is heard again on the same connection makes "
    "none",
    "failed": "of these, failed",
    "phantoms": "new connections that got no answer",
    "back_p50_s": "after how many seconds half of them were back; empty if they were not",
    "back_p90_s": "the same of 90 %",
    "back_p99_s": "the same of 99 %",
    "back_all_s": "the same of all",
    "server_before": "the server's memory before it, in bytes",
    "server_peak": "the most while it lasted",
    "server_after": "when it had settled",
    "server_cpu_s": "the server's CPU time meanwhile, in seconds",
    "server_kept": "what the server did not give back, in bytes; empty if unknown",
    "server_moves": "by how much its memory changes by itself, in bytes",
    "into_hold_s": "seconds since the hold's start",
    "cut_after_s": "how much of its time the hold had, in seconds; empty if all",
    "interrupted_after_s": "how long after it the run was interrupted, in seconds; else empty",
    "ended_again": "ended by another event before they were back",
    "lost_with_worker": "whose process of asyncli ended before they were back",
    "waiting": "not to be back yet at the hold's end, or by the last record",
    "unheard": "listeners that were sent nothing since they hear again",
    "gone": "of the silent ones, gone for good",
    "returned": "of the silent ones, heard again on the same connections",
    "given_up": "heartbeats that were awaited as it ended connections",
    "least_held": "the fewest held as a second ended; empty if not of this event alone",
    "connect_p50_ms": "connects of who comes back, in milliseconds",
    "connect_p99_ms": "the same",
    "answer_p50_ms": "first answers to them",
    "answer_p99_ms": "the same",
    "late_p50_ms": "connects of who comes back, opened minus due, in milliseconds",
    "late_p99_ms": "the same",
    "late_max_ms": "the same",
    "noticed_p50_s": "after how many seconds the server held half of the silent ones no more",
    "noticed_p90_s": "the same of 90 %",
    "noticed_all_s": "the same of all",
    "noticed_all_at_most_s": "where that is not known: by when it held none of them at the latest",
    "noticed_left": "of the silent ones, held by it at the last reading; empty where churn hides "
    "that",
    "noticed_left_after_s": "how long after the event that reading was, in seconds; where churn "
    "hides how many it held, the last at which it surely held one",
    "noticed_within_s": "the longest time between two readings of that, in seconds",
    "noticed_at_reconnect": "1: it let them go as they connected anew; 0: not",
    "closed_first_s": "after how many seconds it ended the first of those that stalled",
    "closed_p50_s": "the same of half of those that it ended",
    "closed_last_s": "the same of the last",
    "away_p50_s": "for how many seconds half of them were away at most; empty if unknown",
    "away_p99_s": "the same of 99 %",
    "away_max_s": "the same of all",
    "away_at_least_s": "where that is not known: for how many seconds the longest was at least",
    "clients": "clients whose connections it ended, silenced or had stall; empty if unknown",
    "ended_repeatedly": "of these, those whose connections it ended more than once",
    "error_answers": "answers with an error status before they were back",
}
# Of commands in whose time the server ended nothing too. Empty for marks.
_OF_TIME = {
    "no_answers_s": "the longest time that began in its time, in seconds, in which no client had "
    "an answer though some waited for one or tried to come back, at least; empty if unknown",
    "stood_still_s": "the longest standstill of the server that began in its time, in seconds, "
    "at least",
    "latency_others_p99_ms": "heartbeats of the others in its time, in milliseconds",
    "in_vain": "connects of who comes back that got no answer in time",
}
_OF_STALL = {
    "stalled": "connections that it had read nothing",
    "closed": "of these, ended by the server",
    "segment_bytes": "the largest TCP segments to them",
    "waited_bytes": "what waited for them and was read afterwards",
    "slow_reader_user": "what each cost the server's memory, in bytes",
    "slow_reader_user_measured": "1: that is the cost; 0: a bound, or unknown",
    "slow_reader_kernel": "what each cost its kernel for sockets, in bytes",
    "slow_reader_kernel_measured": "1: that is the cost; 0: a bound, or unknown",
}
#: table -> column -> meaning. Samples have a column for each metric too.
COLUMNS: dict[str, dict[str, str]] = {
    "ticks": _tick_meanings(),
    "samples": {**_RUN_ID, "t_s": _T_S["t_s"]},
    "deaths": {
        **_RUN_ID,
        **_T_S,
        "kind": "lost (after it was established) or failed (never established)",
        "cause": "cause",
        "count": "number in this second",
        **{f"age_{name}_s": "age of the lost connections" for name, _ in _AGES},
        **{f"idle_{name}_s": "their idle time" for name, _ in _AGES},
        **{f"requests_{name}": "answered requests of each" for name, _ in _AGES},
    },
    "phases": {
        **_RUN_ID,
        "name": "phase",
        "start_s": "seconds since the run's start",
        "end_s": "the same; empty while it lasts",
        "duration_s": "its length",
    },
    "events": {
        **_RUN_ID,
        "number": "that of the plan, from 1; marks by hand have the following ones",
        "kind": "what was done: an event of the plan, or mark, a note by the user",
        "at_s": "seconds since the run's start",
        "end_s": "when its effects were over; empty while they last. A mark has none: it ends as "
        "it begins",
        "phase": "the phase at that time",
        "text": "what the plan or the user says",
        **_OF_DONE_EVENT,
        **_OF_STALL,
        **_OF_TIME,
    },
    "findings": {
        **_RUN_ID,
        "severity": "error, warning or info",
        "code": "the finding's code",
        "evidence": "what was measured",
        "remedy": "what to do; may be empty",
    },
    "cost": {
        **_RUN_ID,
        "part": "whose memory; kernel and kernel_queued are per socket end",
        "bytes_per_connection": "the slope of memory over connections",
        "ci95_low_bytes": "lower end of its 95 % interval",
        "ci95_high_bytes": "upper end",
        "fixed_bytes": "the line at no connections",
        "r2": "share of the points' variance that the line explains",
        "points": "number of medians that the line is fitted to",
        "method": "how it was measured",
    },
}


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Cell]]


def tables(run: Run, summary: Summary, analyses: Analyses) -> dict[str, Table]:
    """Every table by name; the table ``columns`` describes the columns of the others."""
    metrics = ordered_metrics(run.samples)
    rows: dict[str, Iterable[list[Cell]]] = {
        "ticks": tick_rows(run),
        "samples": sample_rows(run, metrics),
        "deaths": death_rows(run),
        "phases": phase_rows(run),
        "events": event_rows(run, summary.events or ()),
        "findings": finding_rows(summary.findings),
        "cost": _cost(analyses),
    }
    described = {name: dict(columns) for name, columns in COLUMNS.items()}
    described["samples"] |= {metric: meaning(metric) for metric in metrics}
    made = {}
    descriptions: list[list[Cell]] = []
    for name, meanings in described.items():
        made[name] = Table(list(meanings), [[run.id, *row] for row in rows[name]])
        for column, text in meanings.items():
            descriptions.append([run.id, name, column, text])
    made["columns"] = Table(["run_id", "table", "column", "meaning"], descriptions)
    return made


def to_csv(table: Table) -> str:
    """The table as CSV (RFC 4180, with Unix line ends)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, table.columns))
    writer.writerows(map(_harmless, row) for row in table.rows)
    return text.getvalue()


# What a spreadsheet takes for the start of a formula
# (owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _harmless(cell: Cell) -> Cell:
    """A text that would be a formula, after a quotation mark that makes it a text: it may be a
    stranger's. It is one line. No NaN and no infinity, which other programs cannot read.
    """
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if not isinstance(cell, str):
        return cell
    if cell.startswith(_FORMULA):
        return printable(f"'{cell}")
    return printable(cell)


def ordered_metrics(samples: Sequence[Sample]) -> list[str]:
    """The metrics that were read, in the order of METRICS, families by name."""
    names = set(metrics_of(samples))
    known = [name for name in METRICS if name in names]
    return [*known, *sorted(names - set(known))]


def tick_rows(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), phase in zip(run.ticks, run.phases_of_ticks, strict=True):
        row: list[Cell] = [t_s, phase]
        row += [count.of(tick) for count in _TICK_COUNTS]
        for times in TIMES:
            row += _milliseconds(times, tick)
        yield row


def _milliseconds(times: TimesEachSecond, tick: Tick) -> list[float | None]:
    histogram = times.of(tick)
    if not histogram:
        return [None] * len(times.quantiles)
    return in_ms(histogram, *times.quantiles.values())


def sample_rows(run: Run, metrics: Sequence[str]) -> Iterator[list[Cell]]:
    for sample in run.samples:
        yield [sample.t_s, *map(sample.values.get, metrics)]


def death_rows(run: Run) -> Iterator[list[Cell]]:
    for (t_s, tick), phase in zip(run.ticks, run.phases_of_ticks, strict=True):
        for cause, deaths in sorted(tick.deaths.items()):
            if deaths.count:
                yield [t_s, phase, "lost", cause, deaths.count, *_death_quantiles(deaths)]
        for cause, count in sorted(tick.failures.items()):
            if count:
                yield [t_s, phase, "failed", cause, count, *[None] * (3 * len(_AGES))]


def _death_quantiles(deaths: Deaths) -> Iterator[float | None]:
    for histogram in (deaths.age_s, deaths.idle_s, deaths.requests):
        for name, share in _AGES:
            if name == "least" and histogram:
                yield float(histogram.least)
            else:
                yield histogram.quantile(share)


def phase_rows(run: Run) -> Iterator[list[Cell]]:
    for phase in run.phases:
        lasted_s = None if phase.end_s is None else phase.end_s - phase.start_s
        yield [phase.name, phase.start_s, phase.end_s, lasted_s]


def event_rows(run: Run, events: Iterable[EventPart]) -> Iterator[list[Cell]]:
    for event in events:
        phase = phase_at(run.phases, event.at_s)
        row: list[Cell] = [event.number, event.kind, event.at_s, event.end_s, phase, event.text]
        back = event.back
        server = event.server
        if back is msgspec.UNSET or server is msgspec.UNSET:
            without_ends: list[Cell] = [None] * (len(_OF_DONE_EVENT) + len(_OF_STALL))
            yield [*row, *without_ends, *_time_cells(event)]
            continue
        counts = [event.chosen, event.absent, event.ended, event.not_back, event.attempts]
        failed = sum(known(event.failures).values())
        times = [back.p50_s, back.p90_s, back.p99_s, back.all_s]
        memory = [server.memory_before, server.peak, server.after]
        yield [
            *(row + [known(count) for count in counts]),
            *(failed, known(event.phantoms), *times, *memory, server.cpu_s),
            *(server.kept, server.moves),
            *_course_cells(event),
            *_noticed_cells(event),
            *_away_cells(event),
            *_stall_cells(event),
            *_time_cells(event),
        ]


def _course_cells(event: EventPart) -> list[Cell]:
    """How it went, beside when they were back."""
    latency = known(event.latency_ms)
    lateness = known(event.lateness_ms)
    return [
        *map(_or_empty, (event.into_hold_s, event.cut_after_s, event.interrupted_after_s)),
        _or_empty(event.ended_again),
        *map(_or_empty, (event.lost_with_worker, event.waiting, event.unheard)),
        *map(_or_empty, (event.gone, event.returned, event.given_up, event.least_held)),
        *(latency.connect_p50, latency.connect_p99, latency.answer_p50, latency.answer_p99),
        *(lateness.p50, lateness.p99, lateness.max),
    ]


def _noticed_cells(event: EventPart) -> list[Cell]:
    """When the server had noticed those that fell silent, and ended those that stalled."""
    cells: list[Cell] = [None] * 8
    noticed = event.noticed
    if isinstance(noticed, Noticed):
        cells[:4] = [noticed.p50_s, noticed.p90_s, noticed.all_s, noticed.all_at_most_s]
        cells[4:7] = [noticed.left, noticed.left_after_s, noticed.within_s]
        if noticed.why is msgspec.UNSET:
            cells[7] = float(noticed.at_reconnect)
    closed = event.closed_after
    if closed is msgspec.UNSET:
        return [*cells, None, None, None]
    return [*cells, closed.first_s, closed.p50_s, closed.last_s]


def _away_cells(event: EventPart) -> list[Cell]:
    """For how long clients were away, how many those were, and the errors that they got."""
    times: list[Cell] = [None] * 4
    away = event.away
    if isinstance(away, Away):
        times[:3] = [away.p50_s, away.p99_s, away.max_s]
        if away.at_least is not None:
            times[3] = away.at_least.max_s
    errors = sum(known(event.error_answers).values())
    return [*times, _or_empty(event.clients), _or_empty(event.ended_repeatedly), errors]


def _time_cells(event: EventPart) -> list[Cell]:
    """How the server answered in its time."""
    others_p99_ms = None
    if event.latency_ms is not msgspec.UNSET:
        others_p99_ms = event.latency_ms.others_p99
    return [
        _or_empty(event.no_answers_s),
        _or_empty(event.stood_still_s),
        others_p99_ms,
        _connects_in_vain(event),
    ]


def _connects_in_vain(event: EventPart) -> Cell:
    """How many connects got no answer in time; empty for an event without connects."""
    if event.in_vain is msgspec.UNSET:
        return None
    if event.in_vain is None:
        return 0
    return event.in_vain.count


def _or_empty(value: float | msgspec.UnsetType | None) -> Cell:
    return None if value is msgspec.UNSET else value


def _stall_cells(event: EventPart) -> list[Cell]:
    """What is known only of those that stall."""
    readers = event.slow_readers
    if readers is msgspec.UNSET:
        return [None] * len(_OF_STALL)
    return [
        known(event.stalled),
        known(event.closed),
        known(event.segment_bytes),
        known(event.waited_bytes),
        readers.user.per_connection,
        float(readers.user.status == "measured"),
        readers.kernel.per_connection,
        float(readers.kernel.status == "measured"),
    ]


def finding_rows(findings: Iterable[Finding]) -> Iterator[list[Cell]]:
    for finding in findings:
        yield [finding.severity, finding.code, finding.evidence, finding.remedy]


def _cost(analyses: Analyses) -> Iterator[list[Cell]]:
    for name in COSTS:
        cost = analyses.costs.written(name)
        if cost is None:
            continue
        yield [
            name,
            cost.bytes_per_connection,
            *cost.ci95,
            cost.fixed_bytes,
            cost.r2,
            cost.points,
            cost.method,
        ]
