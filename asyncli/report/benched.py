"""A bench for a terminal, in the terms of ab, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.bench_result import RULE, Benched, Spent, Times
from asyncli.benchplan import BenchPlan
from asyncli.plan import masked
from asyncli.records import Tick
from asyncli.report.jsonout import finite_json
from asyncli.report.terminal import SEVERITY_STYLE, VERDICT_STYLE, Indented, print_parts
from asyncli.report.words import cores
from asyncli.text import oneline
from asyncli.units import format_bytes, format_clock, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_WIDEST = 96


def to_json(found: Benched) -> str:
    """The contract's JSON: requests, latency_ms, connections, bytes, generator, findings, environment, and more beside them."""
    document: dict[str, Any] = {"schema": 1, **msgspec.to_builtins(found, str_keys=True)}
    document["bytes"], document["transfer"] = found.bytes.received, document["bytes"]
    document["plan"]["headers"] = masked(found.plan.headers)
    body = found.plan.body
    document["plan"]["body"] = body.decode("utf-8", "replace") if len(body) <= 1000 else f"{len(body)} bytes"
    return finite_json(document)


def one_line(found: Benched) -> str:
    """Verdict and figures in one line."""
    line = f"{found.verdict}: {found.why}"
    if found.latency_ms.p99 is not None:
        rate = "" if found.verdict == "passed" else f"; {found.requests.per_s:,.0f} a second"
        line += f"{rate}; p50 {_ms(found.latency_ms.p50)} ms, p99 {_ms(found.latency_ms.p99)} ms"
    return oneline(line)


def tick_line(t_s: float, tick: Tick) -> str:
    """One second of a bench that goes on."""
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


def print_bench(found: Benched, console: Console) -> None:
    """The whole of it; readable at 80 columns, without colour, and piped."""
    if found.verdict == "untested" and not found.connections.opened:
        # Nothing was measured: why is all there is to say.
        errors = [one for one in found.findings if one.severity == "error"]
        print_parts([*_answer(found), *_findings(msgspec.structs.replace(found, findings=errors))], console, _WIDEST)
        return
    parts = [*_answer(found), *_table(found), *_times(found), *_percentiles(found), *_findings(found)]
    print_parts(parts, console, _WIDEST)


def _answer(found: Benched) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text.assemble((found.verdict.upper(), VERDICT_STYLE[found.verdict]), "  ", oneline(found.why))
    yield ""


def _table(found: Benched) -> Iterable[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, words in _rows(found):
        table.add_row(f"  {name}", Text(oneline(words)))
    yield table
    yield ""


def _rows(found: Benched) -> Iterable[tuple[str, str]]:
    server, requests, connections = found.environment["server"], found.requests, found.connections
    label = "unknown" if server["label"] == "the server" else server["label"]
    yield "server", f"{label} at {', '.join(found.plan.urls)}"
    yield "asked", asked(found.plan, found.workers)
    parts = [f"{format_count(requests.total)} answered in {format_duration(found.duration_s)}, {requests.per_s:,.0f} a second"]
    parts.append(f"{format_count(requests.keepalive)} on a connection that stayed open")
    parts.append(f"{format_count(requests.failed)} failed")
    odd = {
        "asked again": requests.resent,
        "in flight at the end": requests.in_flight,
        "due and not asked at the end": requests.overdue,
        "never asked": requests.left,
    }
    parts += [f"{format_count(count)} {what}" for what, count in odd.items() if count]
    yield "requests", "; ".join(parts)
    if requests.by_status and set(requests.by_status) != {200}:
        yield "statuses", ", ".join(f"{status}: {format_count(count)}" for status, count in requests.by_status.items())
    each = connections.requests_each
    ended = f"; those that ended served {_range(each['min'], each['max'])}" if each else ""
    yield "connections", f"{format_count(connections.opened)} opened, {format_count(connections.failed)} failed{ended}"
    of_bytes, seconds = found.bytes, found.duration_s or math.inf
    yield (
        "transfer",
        (
            f"{format_bytes(of_bytes.received)} received, {format_bytes(of_bytes.received / seconds)} a second, "
            f"of it {format_bytes(of_bytes.bodies)} of bodies; {format_bytes(of_bytes.sent)} sent"
        ),
    )
    if found.lateness_ms.p99 is not None:
        late = found.lateness_ms
        queued = f"; {format_count(requests.queued)} waited for a connection to be free" if requests.queued else ""
        yield "asked late", f"by asyncli: p50 {_ms(late.p50)} ms, p99 {_ms(late.p99)} ms, max {_ms(late.max)} ms{queued}"
    others = f"; other programs {cores(found.host.others_cores)}" if found.host is not None else ""
    yield "CPU", f"asyncli {_spent(found.generator)}; server {_spent(found.server)}{others}"


def asked(plan: BenchPlan, workers: int) -> str:
    """What was asked, in words."""
    how = "a connection for each request" if plan.short else "kept alive"
    if plan.pipeline > 1:
        how = f"{format_count(plan.pipeline)} requests written at once on each"
    pace = f", {plan.rate:,.0f} a second at fixed instants" if plan.rate is not None else ""
    body = f" with {format_bytes(len(plan.body))} of body" if plan.body else ""
    many = "connections" if plan.connections > 1 else "connection"
    processes = "processes" if workers > 1 else "process"
    return f"{plan.method}{body} on {format_count(plan.connections)} {many}, {how}{pace}, from {workers} {processes}"


def _range(least: float, most: float) -> str:
    least, most = round(least), round(most)
    if least == most:
        return f"{format_count(most)} request{'' if most == 1 else 's'} each"
    return f"{format_count(least)} to {format_count(most)} requests"


def _spent(spent: Spent) -> str:
    if spent.cpu_s is None:
        return "unknown"
    if spent.cpu_us_per_request is None:
        return f"{format_duration(spent.cpu_s)} in all"
    return f"{spent.cpu_us_per_request:,.1f} us a request ({cores(spent.cores)})"


def _ms(value: float | None) -> str:
    """Milliseconds in four digits: 0.421, 12.30, 4,012."""
    if value is None:
        return "-"
    return (
        f"{value:,.3f}"
        if value < 10
        else f"{value:,.2f}"
        if value < 100
        else f"{value:,.1f}"
        if value < 1000
        else f"{value:,.0f}"
    )


def _times(found: Benched) -> Iterable[RenderableType]:
    from rich.text import Text

    if not any(found.times_ms.values()):
        return
    columns = ("min", "mean", "sd", "median", "max")
    yield Text(f"  {'times, ms':<12}" + "".join(f"{name:>10}" for name in columns), "dim")
    for name, times in found.times_ms.items():
        if times is not None:
            yield Text(f"  {name:<12}" + "".join(f"{_ms(value):>10}" for value in _values(times)))
    meaning = {
        "connect": "each connection's connect",
        "waiting": "from the request to the first byte",
        "processing": "to the last byte",
        "total": "with the connect" if found.plan.rate is None else "from the instant it was due",
    }
    if found.plan.rate is not None and found.plan.short:
        meaning["total"] += ", with the connect"
    yield Indented(Text("; ".join(f"{name}: {words}" for name, words in meaning.items()), "dim"), 4, 4)
    yield ""


def _values(times: Times) -> tuple[float, ...]:
    return times.min, times.mean, times.sd, times.median, times.max


def _percentiles(found: Benched) -> Iterable[RenderableType]:
    from rich.text import Text

    if not found.percentiles_ms:
        return
    cells = [f"{name + '%':>6} {_ms(value):<7}" for name, value in found.percentiles_ms.items()]
    yield Text("  total, ms: a share of the requests was answered within", "dim")
    for begin in range(0, len(cells), 5):
        yield Text("  " + "".join(cells[begin : begin + 5]).rstrip())
    yield ""


def _findings(found: Benched) -> Iterable[RenderableType]:
    from rich.text import Text

    for one in found.findings:
        style = SEVERITY_STYLE[one.severity]
        words: Text = Text.assemble((f"{one.severity}: ", style), oneline(one.evidence))
        if one.remedy:
            words.append(f"; {oneline(one.remedy)}", "dim")
        yield Indented(words, 4, 2)
    if found.verdict != "passed":
        yield Indented(Text(f"The rule: {RULE}", "dim"), 4, 2)
