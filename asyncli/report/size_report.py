"""The answer of ``asyncli size`` as a document and as JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from asyncli import __version__
from asyncli.analysis.sizing import SizedPart, Sizing
from asyncli.model.records import SCHEMA
from asyncli.model.text import oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_bytes, format_count, format_many
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.answer import server_name
from asyncli.report.format import ceiling, or_bytes
from asyncli.report.run_costs import ONE_RAMP, earlier_memory, is_of_one_ramp
from asyncli.report.summary import Summary

# Beyond so many times the measured count the line may bend: the forecast of a report says so too.
_FAR = 10


def size_document(sizing: Sizing, summary: Summary, path: str) -> doc.Document:
    """The document; ``path``: the run file that it is computed from."""
    server = oneline(server_name(summary))
    answer = doc.Paragraph(oneline(in_a_sentence(sizing, server, path)), "answer")
    blocks: list[doc.Block] = [answer, *(doc.Paragraph(doubt, "doubt", "yellow") for doubt in doubts(sizing, summary))]
    sections = [doc.Section("answer", "Answer", blocks), doc.Section("memory", "Memory", [_memory_table(sizing, server)])]
    if sizing.limits:
        sections.append(doc.Section("limits", "Limits", [_limit_table(sizing)]))
    headline = f"{format_count(sizing.connections)} connections on {server}"
    byline = [f"computed from {path}, run {summary.run.id} of {summary.run.started}"]
    footer = f"Computed by asyncli {__version__}. A tenth of each host's memory stays free."
    return doc.Document("size", f"Size of {headline}", headline, byline, sections, footer)


def in_a_sentence(sizing: Sizing, server: str, path: str) -> str:
    """``1,000,000 clients: 18.7 GB ± 0.4 on the server (14.8 GB in nginx, 3.9 GB in the server's kernel). Hosts of 64 GB:
    one.``"""
    clients = format_many(sizing.connections, "client")
    if sizing.at_least_bytes is not None:
        parts = ", ".join(_named(part, server) for part in sizing.parts)
        return f"{clients}: at least {format_bytes(sizing.at_least_bytes)} on the server ({parts}). {_hosts(sizing, path)}"
    if sizing.total_bytes is None or sizing.ci95 is None:
        known = [_named(part, server) for part in sizing.parts if part.bytes is not None]
        unknown = [f"{_bound(part)} {_place(part, server)} ({part.why})" for part in sizing.unknown]
        in_all = "" if sizing.at_most_bytes is None else f"at most {format_bytes(sizing.at_most_bytes)} on the server: "
        return f"{clients}: {in_all}{', '.join([*known, *unknown])}."
    parts = ", ".join(_named(part, server) for part in sizing.parts)
    total = f"{with_interval(sizing.total_bytes, sizing.ci95)} on the server ({parts})"
    return f"{clients}: {total}. {_hosts(sizing, path)}"


def with_interval(total: float, ci95: tuple[float, float]) -> str:
    """``18.7 GB ± 0.4`` where the interval is symmetric, else ``18.7 GB (18.3 GB to 22.1 GB)``."""
    low, high = ci95
    below, above = total - low, high - total
    text = format_bytes(total)
    number, _, unit = text.partition(" ")
    if above > 1.5 * below or below > 1.5 * above:
        return f"{text} ({format_bytes(low)} to {format_bytes(high)})"
    digits = len(number.partition(".")[2])
    scale = total / float(number.replace(",", "")) if float(number.replace(",", "")) else 1.0
    half = max(below, above) / scale
    step = 10**-digits
    return f"{text} ± {math.ceil(half / step) * step:,.{digits}f}" if unit else text


def _bound(part: SizedPart) -> str:
    """What is known of a part without a number."""
    return "unknown" if part.ci95 is None else f"at most {format_bytes(part.ci95[1])}"


def _named(part: SizedPart, server: str) -> str:
    return f"{or_bytes(part.bytes)} {_place(part, server)}"


def _place(part: SizedPart, server: str) -> str:
    return {"server_user": f"in {server}", "behind": "behind it", "kernel": "in the server's kernel"}[part.name]


def _hosts(sizing: Sizing, path: str) -> str:
    if sizing.host_bytes is None:
        return f"How many hosts: asyncli size {path} -c {sizing.connections} --memory 64G."
    size = format_bytes(sizing.host_bytes)
    if sizing.hosts is not None and sizing.hosts_ci95 is None:
        return f"Hosts of {size}: at least {format_count(sizing.hosts)}."
    if sizing.hosts is None or sizing.hosts_ci95 is None:
        return f"A host of {size} is too small for the server alone."
    least, most = sizing.hosts_ci95
    many = "one" if sizing.hosts == 1 else format_count(sizing.hosts)
    span = "" if least == most else f" ({format_count(least)} to {format_count(most)})"
    return f"Hosts of {size}: {many}{span}."


def doubts(sizing: Sizing, summary: Summary) -> list[str]:
    """What makes the answer less sure."""
    found = []
    if sizing.factor > _FAR:
        measured = format_count(sizing.measured)
        found.append(
            f"This is {format_count(sizing.factor)} times the {measured} connections of the run: it holds if memory goes on as "
            f"it did. A soak of {format_count(math.ceil(sizing.connections / _FAR))} would show it."
        )
    if sizing.at_least_bytes is not None:
        found.append(
            f"What is left over of a connection is unknown ({sizing.rest_unknown}): memory of a cache or a database that works "
            "for the server is not in it. A slower ramp and a quiet host would show it."
        )
    if summary.run.verdict != "passed":
        verdict = f"{summary.run.verdict} ({oneline(summary.why)})"
        found.append(f"Verdict of the run: {verdict}. The parts that it measured count all the same.")
    if is_of_one_ramp(summary):
        found.append(ONE_RAMP)
    earlier = earlier_memory(summary)
    if earlier:
        found.append(earlier)
    if not sides(summary.environment).server:
        found.append("The run has no memory of the server's host: soak with --agent to size that.")
    return found


def _memory_table(sizing: Sizing, server: str) -> doc.DataTable:
    rows = []
    for part in sizing.parts:
        if part.bytes is None or part.bytes_per_connection is None or part.ci95 is None:
            interval = "-" if part.ci95 is None else _interval(part.ci95)
            rows.append(doc.TableRow(_place(part, server), ["-", "-", "-", interval]))
            continue
        each = f"{part.bytes_per_connection:,.0f} B"
        half = f"± {format_bytes((part.ci95[1] - part.ci95[0]) / 2)}"
        cells = [each, or_bytes(part.fixed_bytes), format_bytes(part.bytes), half]
        rows.append(doc.TableRow(_place(part, server), cells))
    total = ["-", "-"]
    if sizing.total_bytes is not None and sizing.ci95 is not None:
        total = [format_bytes(sizing.total_bytes), _interval(sizing.ci95)]
    in_all = "in all, with the residual in the interval"
    if sizing.at_least_bytes is not None:
        in_all, total = "in all, without the residual", [f"at least {format_bytes(sizing.at_least_bytes)}", "-"]
    rows.append(doc.TableRow(in_all, ["", "", *total], strong=True))
    columns = doc.numbers("a connection", "fixed", f"at {format_count(sizing.connections)}", "95 % interval")
    return doc.DataTable("Memory on the server", columns, rows, kind="stack")


def _interval(ci95: tuple[float, float]) -> str:
    return f"{format_bytes(ci95[0])} to {format_bytes(ci95[1])}"


def _limit_table(sizing: Sizing) -> doc.DataTable:
    rows = []
    for limit in sizing.limits:
        verdict = "enough" if limit.suffices else ("raise it", "yellow")
        rows.append(doc.TableRow(ceiling(limit.name), [format_count(limit.connections), verdict, oneline(limit.how)]))
    share = format_count(sizing.limits[0].needed)
    columns = [*doc.numbers("allows"), doc.TableColumn(f"for {share} on each", kind="word")]
    columns.append(doc.TableColumn("calculation", kind="words", view=doc.View.PAGE))
    return doc.DataTable("Limits of such a host", columns, rows, kind="wordy stack", width=44)


def to_json(sizing: Sizing, summary: Summary, path: str) -> str:
    """The answer as JSON."""
    document: dict[str, Any] = {"schema": SCHEMA, "run": {"id": summary.run.id, "file": path, "verdict": summary.run.verdict}}
    document |= {"size": msgspec.to_builtins(sizing), "doubts": doubts(sizing, summary)}
    document["size"]["limits"] = [{**msgspec.to_builtins(limit), "suffices": limit.suffices} for limit in sizing.limits]
    return jsonout.to_json(document)
