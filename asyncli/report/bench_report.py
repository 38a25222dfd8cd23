"""A bench as a document, in ab's terms, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from asyncli.analysis.bench_doubts import CpuUse
from asyncli.analysis.bench_result import RULE, BenchResult
from asyncli.model.benchplan import BenchPlan
from asyncli.model.plan import shown_plan
from asyncli.model.private_values import masked_url
from asyncli.model.records import Tick
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_clock, format_count, format_duration, format_many, format_rate
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.format import cores
from asyncli.report.run_events import tls_words


def to_json(found: BenchResult) -> str:
    """The JSON of ``asyncli bench``."""
    document: dict[str, Any] = {"schema": 1, **msgspec.to_builtins(found, str_keys=True)}
    document["plan"] = shown_plan(found.plan)
    body = found.plan.body
    document["plan"]["body"] = body.decode("utf-8", "replace") if len(body) <= 1000 else f"{len(body)} bytes"
    return jsonout.to_json(document)


def one_line(found: BenchResult) -> str:
    line = f"{found.verdict}: {found.why}"
    if found.latency_ms.p99 is not None:
        rate = "" if found.verdict == "passed" else f"; {format_rate(found.requests.per_s)}"
        line += f"{rate}; p50 {_ms(found.latency_ms.p50)} ms, p99 {_ms(found.latency_ms.p99)} ms"
    return oneline(line)


def tick_line(t_s: float, tick: Tick) -> str:
    """The log line of one second."""
    p50, p99 = tick.latency_us.quantiles((0.5, 0.99))
    line = f"{format_clock(t_s)}  {format_count(tick.answered):>9} answered"
    if p50 is not None and p99 is not None:
        line += f"  p50 {_ms(p50 / 1000)} ms  p99 {_ms(p99 / 1000)} ms"
    failed = sum(tick.asked.failed.values()) if tick.asked else 0
    failures = sum(tick.failures.values())
    return (
        line
        + (f"  {format_count(failed)} failed" if failed else "")
        + (f"  {format_count(failures)} connects failed" if failures else "")
    )


def bench_document(found: BenchResult) -> doc.Document:
    """The document: verdict, load and results, times, percentiles, findings."""
    findings = found.findings
    if found.verdict == "untested" and not found.connections.opened:
        # Nothing was measured: only the reason matters.
        findings, measured = [one for one in findings if one.severity == "error"], []
    else:
        columns = [doc.TableColumn("", kind="words")]
        rows = [doc.TableRow(f"  {name}", [oneline(text)]) for name, text in _rows(found)]
        measured = [
            doc.Section("numbers", "Results", [doc.DataTable("", columns, rows, "Results", kind="keys", width=0)]),
            doc.Section("times", "Times", _times(found)),
            doc.Section("percentiles", "Percentiles", _percentiles(found)),
        ]
    rule = [doc.Paragraph(f"The rule: {RULE}", style="dim")] if found.verdict != "passed" else []
    sections = [
        doc.Section("answer", "", [doc.VerdictLine(found.verdict, found.why)]),
        *measured,
        doc.Section("findings", "Findings", [doc.ItemList(doc.finding_items(findings)), *rule]),
    ]
    return doc.Document("bench", f"bench: {found.verdict}", oneline(found.why), [], sections)


def _rows(found: BenchResult) -> Iterable[tuple[str, str]]:
    server, requests, connections = found.environment["server"], found.requests, found.connections
    label = "unknown" if server["label"] == "the server" else server["label"]
    yield "server", f"{label} at {', '.join(map(masked_url, found.plan.urls))}"
    yield "load", load(found.plan, found.workers)
    parts = [f"{format_count(requests.total)} answered in {format_duration(found.duration_s)}, {format_rate(requests.per_s)}"]
    parts.append(f"{format_count(requests.keepalive)} kept alive")
    parts.append(f"{format_count(requests.failed)} failed")
    others = {
        "sent again": requests.resent,
        "in flight at the end": requests.in_flight,
        "due but not sent at the end": requests.overdue,
        "never sent": requests.left,
    }
    parts += [f"{format_count(count)} {what}" for what, count in others.items() if count]
    yield "requests", "; ".join(parts)
    if requests.by_status and set(requests.by_status) != {200}:
        yield "statuses", ", ".join(f"{status}: {format_count(count)}" for status, count in requests.by_status.items())
    each = connections.requests_each
    ended = f"; the closed ones served {_range(each['min'], each['max'])}" if each else ""
    if found.tls is not msgspec.UNSET:
        yield "TLS", tls_words(found.tls, found.environment)
    yield "connections", f"{format_count(connections.opened)} opened, {format_count(connections.failed)} failed{ended}"
    transfer, seconds = found.transfer, found.duration_s or math.inf
    received = f"{format_bytes(transfer.received)} received, {format_bytes(transfer.received / seconds)} a second"
    yield "transfer", f"{received}, {format_bytes(transfer.bodies)} in bodies; {format_bytes(transfer.sent)} sent"
    if found.lateness_ms.p99 is not None:
        late = found.lateness_ms
        queued = f"; {format_count(requests.queued)} waited for a free connection" if requests.queued else ""
        yield "sent late", f"by asyncli: p50 {_ms(late.p50)} ms, p99 {_ms(late.p99)} ms, max {_ms(late.max)} ms{queued}"
    programs = f"; other programs {cores(found.host.others_cores)}" if found.host is not None else ""
    yield "CPU", f"asyncli {_spent(found.generator)}; server {_spent(found.server)}{programs}"


def load(plan: BenchPlan, workers: int) -> str:
    how = "a new connection for each request" if plan.short else "kept alive"
    if plan.pipeline > 1:
        how = f"{format_count(plan.pipeline)} requests pipelined on each"
    pace = f", {format_rate(plan.rate)} at fixed instants" if plan.rate is not None else ""
    body = f" with a body of {format_bytes(len(plan.body))}" if plan.body else ""
    connections, processes = format_many(plan.connections, "connection"), format_many(workers, "process")
    return f"{plan.method}{body} on {connections}, {how}{pace}, from {processes}"


def _range(least: float, most: float) -> str:
    least, most = round(least), round(most)
    if least == most:
        return f"{format_many(most, 'request')} each"
    return f"{format_count(least)} to {format_count(most)} requests"


def _spent(spent: CpuUse) -> str:
    if spent.cpu_s is None:
        return "unknown"
    if spent.cpu_us_per_request is None:
        return f"{format_duration(spent.cpu_s)} in all"
    return f"{spent.cpu_us_per_request:,.1f} us a request ({cores(spent.cores)})"


def _ms(value: float | None) -> str:
    """Milliseconds in four digits: 0.421, 12.30, 4,012."""
    if value is None:
        return "-"
    digits = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def _times(found: BenchResult) -> list[doc.Block]:
    known = {name: times for name, times in found.times_ms.items() if times is not None}
    if not known:
        return []
    rows = [
        doc.TableRow(f"  {name}", [_ms(one) for one in (times.min, times.mean, times.sd, times.median, times.max)])
        for name, times in known.items()
    ]
    columns = [doc.TableColumn(name) for name in ("min", "mean", "sd", "median", "max")]
    meaning = {
        "connect": "time to connect",
        "waiting": "from the request to the first byte",
        "processing": "from the request to the last byte",
        "total": "with the connect" if found.plan.rate is None else "from the scheduled instant",
    }
    if found.plan.rate is not None and found.plan.short:
        meaning["total"] += ", with the connect"
    legend = "; ".join(f"{name}: {text}" for name, text in meaning.items())
    return [doc.DataTable("  times, ms", columns, rows, width=12, kind="tight"), doc.Paragraph(legend, style="dim")]


def _percentiles(found: BenchResult) -> list[doc.Block]:
    if not found.percentiles_ms:
        return []
    columns = [doc.TableColumn(f"{name} %") for name in found.percentiles_ms]
    rows = [doc.TableRow("  total, ms", [_ms(value) for value in found.percentiles_ms.values()])]
    return [doc.DataTable("  answered within", columns, rows, "Share of the requests answered within", width=0)]
