"""A bench as a document, in ab's terms, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from asyncli.analysis.bench_doubts import CpuUse
from asyncli.analysis.bench_result import RULE, BenchResult, Times
from asyncli.model.benchplan import BenchPlan
from asyncli.model.masks import masked_url
from asyncli.model.plan import shown_plan
from asyncli.model.records import Tick
from asyncli.model.text import oneline
from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_rate,
)
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.format import cores, digits
from asyncli.report.run_events import tls_words

# A longer body is shown by its length.
_LONGEST_BODY_SHOWN = 1000


def to_json(result: BenchResult) -> str:
    """The JSON of ``asyncli bench``."""
    document: dict[str, Any] = {"schema": 1, **msgspec.to_builtins(result, str_keys=True)}
    document["plan"] = shown_plan(result.plan)
    document["plan"]["body"] = _shown_body(result.plan.body)
    return jsonout.to_json(document)


def _shown_body(body: bytes) -> str:
    if len(body) > _LONGEST_BODY_SHOWN:
        return f"{len(body)} bytes"
    return body.decode("utf-8", "replace")


def one_line(result: BenchResult) -> str:
    line = f"{result.verdict}: {result.why}"
    latency = result.latency_ms
    if latency.p99 is None:
        return oneline(line)
    # The reason of "passed" has the rate.
    if result.verdict != "passed":
        line += f"; {format_rate(result.requests.per_s)}"
    return oneline(f"{line}; p50 {_ms(latency.p50)} ms, p99 {_ms(latency.p99)} ms")


def tick_line(t_s: float, tick: Tick) -> str:
    """The log line of one second."""
    parts = [format_clock(t_s), f"{format_count(tick.answered):>9} answered"]
    p50_us, p99_us = tick.latency_us.quantiles((0.5, 0.99))
    if p50_us is not None and p99_us is not None:
        parts += [f"p50 {_ms(p50_us / 1000)} ms", f"p99 {_ms(p99_us / 1000)} ms"]
    requests_failed = sum(tick.asked.failed.values()) if tick.asked else 0
    if requests_failed:
        parts.append(f"{format_count(requests_failed)} failed")
    if tick.failed:
        parts.append(f"{format_count(tick.failed)} connects failed")
    return "  ".join(parts)


def bench_document(result: BenchResult) -> doc.Document:
    """The document: verdict, load and results, times, percentiles, findings."""
    sections = [doc.Section("answer", "", [doc.VerdictLine(result.verdict, result.why)])]
    findings = result.findings
    if result.verdict == "untested" and not result.connections.opened:
        # Nothing was measured: only the reason matters.
        findings = [finding for finding in findings if finding.severity == "error"]
    else:
        sections += [
            doc.Section("numbers", "Results", [_results(result)]),
            doc.Section("times", "Times", _times(result)),
            doc.Section("percentiles", "Percentiles", _percentiles(result)),
        ]
    last: list[doc.Block] = [doc.ItemList(doc.finding_items(findings))]
    if result.verdict != "passed":
        last.append(doc.Paragraph(f"The rule: {RULE}", style="dim"))
    sections.append(doc.Section("findings", "Findings", last))
    return doc.Document("bench", f"bench: {result.verdict}", oneline(result.why), [], sections)


def _results(result: BenchResult) -> doc.DataTable:
    columns = [doc.TableColumn("", kind="words")]
    rows = [doc.TableRow(f"  {name}", [oneline(text)]) for name, text in _rows(result)]
    return doc.DataTable("", columns, rows, "Results", kind="keys", width=0)


def _rows(result: BenchResult) -> Iterator[tuple[str, str]]:
    """(Name, what is said of it), in the order of the table."""
    yield "server", _server(result)
    yield "load", load(result.plan, result.workers)
    yield "requests", _requests(result)
    by_status = result.requests.by_status
    if by_status and set(by_status) != {200}:
        counts = (f"{status}: {format_count(count)}" for status, count in by_status.items())
        yield "statuses", ", ".join(counts)
    if result.tls is not msgspec.UNSET:
        yield "TLS", tls_words(result.tls, result.environment)
    yield "connections", _connections(result)
    yield "transfer", _transfer(result)
    if result.lateness_ms.p99 is not None:
        yield "sent late", _lateness(result)
    yield "CPU", _cpu(result)


def _server(result: BenchResult) -> str:
    label = result.environment["server"]["label"]
    if label == "the server":
        label = "unknown"
    return f"{label} at {', '.join(map(masked_url, result.plan.urls))}"


def _requests(result: BenchResult) -> str:
    requests = result.requests
    answered = f"{format_count(requests.total)} answered in {format_duration(result.duration_s)}"
    parts = [
        f"{answered}, {format_rate(requests.per_s)}",
        f"{format_count(requests.keepalive)} kept alive",
        f"{format_count(requests.failed)} failed",
    ]
    told_above_zero = {
        "sent again": requests.resent,
        "in flight at the end": requests.in_flight,
        "due but not sent at the end": requests.overdue,
        "never sent": requests.left,
    }
    for name, count in told_above_zero.items():
        if count:
            parts.append(f"{format_count(count)} {name}")
    return "; ".join(parts)


def _connections(result: BenchResult) -> str:
    connections = result.connections
    opened, failed = format_count(connections.opened), format_count(connections.failed)
    counts = f"{opened} opened, {failed} failed"
    served = connections.requests_each
    if not served:
        return counts
    return f"{counts}; the closed ones served {_range(served['min'], served['max'])}"


def _transfer(result: BenchResult) -> str:
    transfer = result.transfer
    per_second = transfer.received / (result.duration_s or math.inf)
    received = f"{format_bytes(transfer.received)} received, {format_bytes(per_second)} a second"
    bodies, sent = format_bytes(transfer.bodies), format_bytes(transfer.sent)
    return f"{received}, {bodies} in bodies; {sent} sent"


def _lateness(result: BenchResult) -> str:
    late = result.lateness_ms
    text = f"by asyncli: p50 {_ms(late.p50)} ms, p99 {_ms(late.p99)} ms, max {_ms(late.max)} ms"
    queued = result.requests.queued
    if not queued:
        return text
    return f"{text}; {format_count(queued)} waited for a free connection"


def _cpu(result: BenchResult) -> str:
    text = f"asyncli {_spent(result.generator)}; server {_spent(result.server)}"
    if result.host is None:
        return text
    return f"{text}; other programs {cores(result.host.others_cores)}"


def load(plan: BenchPlan, workers: int) -> str:
    """``GET on 100 connections, kept alive, from 2 processes``."""
    request = plan.method
    if plan.body:
        request += f" with a body of {format_bytes(len(plan.body))}"
    manner = _manner(plan)
    if plan.rate is not None:
        manner += f", {format_rate(plan.rate)} at fixed instants"
    connections = format_many(plan.connections, "connection")
    return f"{request} on {connections}, {manner}, from {format_many(workers, 'process')}"


def _manner(plan: BenchPlan) -> str:
    if plan.pipeline > 1:
        return f"{format_count(plan.pipeline)} requests pipelined on each"
    if plan.short:
        return "a new connection for each request"
    return "kept alive"


def _range(least: float, most: float) -> str:
    fewest = round(least)
    highest = round(most)
    if fewest == highest:
        return f"{format_many(highest, 'request')} each"
    return f"{format_count(fewest)} to {format_count(highest)} requests"


def _spent(spent: CpuUse) -> str:
    if spent.cpu_s is None:
        return "unknown"
    if spent.cpu_us_per_request is None:
        return f"{format_duration(spent.cpu_s)} in all"
    return f"{digits(spent.cpu_us_per_request)} us a request ({cores(spent.cores)})"


def _ms(value: float | None) -> str:
    """Milliseconds in four digits: 0.421, 12.30, 4,012."""
    if value is None:
        return "-"
    for below, decimals in ((10, 3), (100, 2), (1000, 1)):
        if value < below:
            return f"{value:,.{decimals}f}"
    return f"{value:,.0f}"


def _times(result: BenchResult) -> list[doc.Block]:
    rows = []
    for name, times in result.times_ms.items():
        if times is not None:
            cells = [_ms(value) for value in msgspec.structs.astuple(times)]
            rows.append(doc.TableRow(f"  {name}", cells))
    if not rows:
        return []
    columns = [doc.TableColumn(name) for name in Times.__struct_fields__]
    meanings = {
        "connect": "time to connect",
        "waiting": "from the request to the first byte",
        "processing": "from the request to the last byte",
        "total": _meaning_of_total(result.plan),
    }
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())
    table = doc.DataTable("  times, ms", columns, rows, width=12, kind="tight")
    return [table, doc.Paragraph(legend, style="dim")]


def _meaning_of_total(plan: BenchPlan) -> str:
    if plan.rate is None:
        return "with the connect"
    if plan.short:
        return "from the scheduled instant, with the connect"
    return "from the scheduled instant"


def _percentiles(result: BenchResult) -> list[doc.Block]:
    if not result.percentiles_ms:
        return []
    columns = [doc.TableColumn(f"{name} %") for name in result.percentiles_ms]
    rows = [doc.TableRow("  total, ms", [_ms(value) for value in result.percentiles_ms.values()])]
    label = "Share of the requests answered within"
    return [doc.DataTable("  answered within", columns, rows, label, width=0)]
