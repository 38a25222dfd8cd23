"""Counts and processes in a run's report: the server's and asyncli's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from asyncli.analysis.reconcile import agreement, divergence_in_words
from asyncli.findings.reconcile import counted_by_values, found_by_values
from asyncli.findings.server import server_processes_changed
from asyncli.model.protocol_table import requests_of
from asyncli.model.units import format_bytes, format_count, format_duration, format_each
from asyncli.report import document as doc
from asyncli.report.answer import server_name, with_remedy
from asyncli.report.format import digits, or_bytes, or_dash, with_streams
from asyncli.report.summary import Summary


class _Requests(NamedTuple):
    """What the server counts as requests, as asyncli counted it. ``kind``: in the table; ``done``:
    in the short report.
    """

    number: int | None
    kind: str
    done: str


def _requests(summary: Summary) -> _Requests:
    if summary.protocol is msgspec.UNSET:
        return _Requests(summary.heartbeats.answered, "answers", "answered")
    counts = {
        "heartbeats": summary.heartbeats.answered,
        "connections": summary.connections.opened,
        "none": 0,
    }
    counted = requests_of(summary.protocol.name, summary.plan.get("h2_heartbeat"))
    count = counts.get(counted or "")
    requests = _Requests(count, "handshakes", "granted")
    if summary.protocol.name == "http2":
        requests = _Requests(count, "HEADs", "requests")
    streams = summary.protocol.streams
    if count is not None and streams is not msgspec.UNSET:
        return _Requests(count + streams.streams_opened, "streams", requests.done)
    return requests


def counts_section(summary: Summary) -> doc.Section:
    counts = summary.reconciliation
    blocks: list[doc.Block] = []
    if counts.agrees is not None or counts.accepts_delta is not None:
        blocks += _counts_table(summary)
    if counts.agrees:
        blocks.append(_counts_line(summary))
    counted = summary.finding(counted_by_values.code)
    if counted is not None:
        source = str(counted.fields["row"])
        of_descriptors = counted.fields.get("since") is not None
        blocks.append(doc.Paragraph(found_by_values(source, of_descriptors)))
    if counts.divergences:
        divergences = [divergence_in_words(divergence) for divergence in counts.divergences]
        blocks.append(doc.Bullets(divergences, view=doc.View.PAGE))
    unknown = summary.finding("reconciliation_unknown")
    if unknown is not None and unknown.fields["why"] == "page_silent":
        # Whoever named the page looks for its counts.
        view = doc.View.SHORT | doc.View.PAGE
        blocks.append(doc.Paragraph(with_remedy(summary, unknown), view=view))
    elif unknown is not None and not blocks:
        blocks.append(doc.Paragraph(with_remedy(summary, unknown), view=doc.View.PAGE))
    return doc.Section("counts", "Counts compared", blocks, tight=True)


def _counts_table(summary: Summary) -> list[doc.Block]:
    counts = summary.reconciliation
    opened = summary.connections.opened
    requests = _requests(summary)
    rows = [
        _counts_row("open, active", counts.client_held, counts.server_active),
        _counts_row("opened, accepted", opened, counts.accepts_delta),
        _counts_row("opened, handled", opened, counts.handled_delta),
    ]
    kind = f"{requests.kind}, requests (polls too)"
    rows.append(_counts_row(kind, requests.number, counts.requests_delta))
    view = doc.FULL if counts.agrees else doc.ALL
    columns = doc.numbers("asyncli", server_name(summary))
    title = "The same connections, counted on both sides"
    style = {True: "green", False: "bold red", None: ""}[counts.agrees]
    judgement = (agreement(counts.agrees, summary.findings), style)
    return [
        doc.DataTable("Counts compared", columns, rows, title, kind="small-table", view=view),
        doc.Paragraph((judgement, "."), view=view),
    ]


def _counts_row(label: str, of_asyncli: int | None, of_server: int | None) -> doc.TableRow:
    return doc.TableRow(label, [or_dash(of_asyncli, ",d"), or_dash(of_server, ",d")])


def _counts_line(summary: Summary) -> doc.Paragraph:
    """The counts that agree, in a line."""
    counts = summary.reconciliation
    requests = _requests(summary)
    texts = []
    for of_asyncli, of_server, name in (
        (counts.client_held, counts.server_active, "open"),
        (summary.connections.opened, counts.accepts_delta, "accepted"),
        (requests.number, counts.requests_delta, requests.done),
    ):
        if of_asyncli is not None and of_server is not None:
            texts.append(f"{format_count(of_asyncli)} {name}")
    agree = agreement(counts.agrees, summary.findings).removeprefix("They ")
    return doc.headed_line(f"Counts {agree.partition(' (see')[0]}", ", ".join(texts))


def processes_section(summary: Summary) -> doc.Section:
    """CPU and memory of the server and of asyncli."""
    generator = summary.generator
    rows = []
    texts = []
    memory, _ = summary.server.memory
    if memory.hold_end is not None or summary.server.processes.hold_end is not None:
        row, text = _server_processes(summary)
        rows.append(row)
        texts.append(text)
    rise = "-"
    if generator.user_bytes is not None:
        rise = f"+ {format_bytes(generator.user_bytes)}"
    cpu = _cpu(generator.cpu_s)
    rows.append(doc.TableRow("asyncli (USS)", [or_dash(generator.processes, ",d"), "", rise, cpu]))
    texts.append(f"asyncli {cpu}, {rise}")
    limit = ("not the limit", "")
    if generator.saturated:
        limit = ("the limit of this run", "bold magenta")
        texts[-1] += ", the limit of this run"
    columns = doc.numbers("number", "memory before", "at the hold's end", "CPU")
    notes = ", ".join([*_generator_notes(summary, rise), ""])
    blocks: list[doc.Block] = [
        doc.DataTable("Processes", columns, rows, kind="stack", view=doc.FULL),
        doc.Paragraph(("asyncli: ", notes, limit), view=doc.FULL),
        doc.headed_line("CPU and memory", "; ".join(texts)),
    ]
    return doc.Section("processes", "Processes", blocks, tight=True)


def _server_processes(summary: Summary) -> tuple[doc.TableRow, str]:
    """The server as a row of the table, and in the short report."""
    server = summary.server
    name = server_name(summary)
    memory, kind = server.memory
    cpu = "-"
    if server.cpu_s.baseline is not None and server.cpu_s.hold_end is not None:
        cpu = format_duration(max(0.0, server.cpu_s.hold_end - server.cpu_s.baseline))
        if _misses_processes(summary):
            cpu = f"at least {cpu}"
    number = or_dash(server.processes.hold_end, ",.0f")
    at_end = or_bytes(memory.hold_end)
    row = doc.TableRow(f"{name} ({kind})", [number, or_bytes(memory.baseline), at_end, cpu])
    if kind == "RSS":
        return row, f"{name} {cpu}, {at_end} (RSS)"
    return row, f"{name} {cpu}, {at_end}"


def _misses_processes(summary: Summary) -> bool:
    """Whether processes of the server came and went between two readings."""
    changed = server_processes_changed.code
    return any(finding.code == changed and finding.fields["brief"] for finding in summary.findings)


def _cpu(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _generator_notes(summary: Summary, rise: str) -> Iterator[str]:
    generator = summary.generator
    cost = summary.cost.generator_user
    # A cost of two levels is the same quantity, by other samples.
    is_told_as_cost = cost is not None and cost.of_levels
    if generator.user_bytes_per_connection is not None and not is_told_as_cost:
        bytes_per_connection = format_each(generator.user_bytes_per_connection)
        connection = f"connection{with_streams(summary.cost.streams)}"
        yield f"{rise}, {bytes_per_connection} a {connection} (first use included)"
    if generator.cpu_us_per_heartbeat is not None:
        used = f"{digits(generator.cpu_us_per_heartbeat)} µs of CPU a heartbeat"
        yield f"{used} (all CPU time of asyncli in the hold, divided by the answers)"
