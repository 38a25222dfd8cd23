"""Memory in a run's report: cost of a connection, capacity, drift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.constants import PART
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.drift import Drift, MetricName, called, in_words, told_rate
from asyncli.analysis.slope import WIDE_COST, is_wide, unmeasured
from asyncli.findings.cost import SURE, reclaimable_rises
from asyncli.findings.drift import examined
from asyncli.model.text import oneline
from asyncli.model.topology import Sides, sides
from asyncli.model.units import format_bytes, format_count, format_many
from asyncli.report import document as doc
from asyncli.report.answer import (
    filling,
    headroom,
    heap_is_collected,
    memory_name,
    server_name,
)
from asyncli.report.format import (
    CostRow,
    about,
    about_to,
    caption,
    ceiling,
    cost_rows,
    has_slope,
    interval,
    memory_labels,
    or_bytes,
    short_bytes,
    shown_r2,
    with_streams,
)
from asyncli.report.summary import CostPart, Summary


def cost_table(
    costs: Costs | CostPart,
    server: str,
    where: Sides,
    held: int,
    level: float | None = None,
    *,
    heap_fills: bool = False,
) -> doc.DataTable:
    """``level``: the server's memory with ``held`` connections, as read; None where it was not.
    ``heap_fills``: the server's heap is collected.
    """
    rows = cost_rows(costs, server, where, heap_fills=heap_fills)
    lines = []
    for row in rows:
        at_held = row.at(held)
        if level is not None and row.name == "server_user" and not row.hidden:
            at_held = format_bytes(level)
        lines.append(_cost_line(row, at_held))
    columns = doc.numbers("bytes", "95 % interval", "fixed", f"at {format_count(held)}")
    columns.append(doc.TableColumn("R²", view=doc.View.PAGE))
    streams = with_streams(costs.streams)
    heading = f"Cost of a connection{streams}"
    if not has_slope(rows):
        heading = f"Cost{streams}, first use included"
    title = f"{caption(rows, streams)}, in bytes"
    return doc.DataTable(heading, columns, lines, title, kind="stack")


def _cost_line(row: CostRow, at_held: str) -> doc.TableRow:
    is_total = row.name == "host_total"
    cost = row.cost
    if cost is None:
        return doc.TableRow(row.label, [("-", "dim")] * 5, strong=is_total)
    number = (short_bytes(cost.bytes_per_connection), "bold" if is_total else "cyan")
    if row.hidden:
        number = (unmeasured(*cost.ci95), "dim")
    elif row.name != "residual" and is_wide(cost.bytes_per_connection, *cost.ci95):
        number = (WIDE_COST, "dim")
    r2 = "-"
    if cost.r2 is not None and row.name != "residual":
        r2 = shown_r2(cost.r2)
    cells: list[doc.Cell] = [number, interval(*cost.ci95), row.fixed, at_held, r2]
    return doc.TableRow(row.label, cells, strong=is_total)


def cost_section(summary: Summary) -> doc.Section:
    where = sides(summary.environment)
    server = memory_name(summary)
    fills = heap_is_collected(summary)
    methods = []
    for row in cost_rows(summary.cost, server, where, heap_fills=fills):
        if row.cost is not None:
            points = format_many(row.cost.points, "point")
            methods.append((row.label, f"{row.cost.method}; {points}."))
    blocks: list[doc.Block] = []
    if methods:
        held = summary.connections.held_or_peak or 0
        level = server_level(summary)
        blocks.append(cost_table(summary.cost, server, where, held, level, heap_fills=fills))
        apart = files_apart(summary)
        if apart:
            blocks.append(doc.Paragraph(apart))
        blocks.append(doc.Folded("How each was measured", doc.Definitions(methods)))
    if is_of_one_ramp(summary):
        blocks.append(doc.Paragraph(ONE_RAMP, view=doc.FULL))
    earlier = earlier_memory(summary)
    if earlier:
        blocks.append(doc.Paragraph(earlier, view=doc.FULL))
        blocks += _in_brief(summary)
    residue = _residue(summary)
    if residue:
        blocks.append(doc.Paragraph(residue, view=doc.FULL))
    heading = f"Cost of a connection{with_streams(summary.cost.streams)}"
    return doc.Section("cost", heading, blocks)


#: What a ramp without rests cannot tell.
ONE_RAMP = (
    "Connections and time rise together in one ramp: memory that is taken by the clock until its "
    "end, such as a warm-up, is in these costs. To tell them apart: --plateaus 5."
)


def is_of_one_ramp(summary: Summary) -> bool:
    """Whether the server's cost is the slope of a ramp without rests."""
    cost = summary.cost.server_user
    return cost is not None and not cost.of_levels and not summary.plan.get("plateaus")


def earlier_memory(summary: Summary) -> str:
    """What no slope can tell: whether connections use memory that the server had before them; "" if
    that is too little to matter.
    """
    cost = summary.cost.server_user
    bound_bytes = _earlier_bytes_each(summary)
    if cost is None or cost.half_width > SURE * cost.bytes_per_connection:
        return ""
    if bound_bytes <= PART * cost.bytes_per_connection:
        return ""
    return (
        f"The slope has no part of the {_earlier(summary)} that {server_name(summary)} had without "
        f"connections{_files_aside(summary)}: a pool, a table or a heap that was touched in "
        f"advance may add up to {format_bytes(bound_bytes)} to each. More connections lower this "
        "bound."
    )


def _earlier_bytes_each(summary: Summary) -> float:
    """The memory that the server had before the connections, for each of them; minus infinity where
    it is unknown. Pages of files are no memory that a connection can use.
    """
    cost = summary.cost.server_user
    held = summary.connections.held_or_peak
    if cost is None or not held:
        return -math.inf
    return (cost.fixed_bytes - _files_before(summary)) / held


def _files_before(summary: Summary) -> float:
    files = summary.server.file_bytes
    if isinstance(files, msgspec.UnsetType) or files.baseline is None:
        return 0.0
    return files.baseline


def _earlier(summary: Summary) -> str:
    cost = summary.cost.server_user
    assert cost is not None
    return format_bytes(cost.fixed_bytes - _files_before(summary))


def _files_aside(summary: Summary) -> str:
    return ", pages of files aside" if _files_before(summary) else ""


def _in_brief(summary: Summary) -> list[doc.Block]:
    """The same for a short report, where it could cost each connection more than the slope: then
    the slope alone is no answer.
    """
    cost = summary.cost.server_user
    bound_bytes = _earlier_bytes_each(summary)
    if cost is None or bound_bytes <= cost.bytes_per_connection:
        return []
    # On one line of a terminal: of how much memory that is says the full report.
    text = (
        f"A pool or heap touched in advance may add up to {format_bytes(bound_bytes)} to each "
        "connection."
    )
    return [doc.Paragraph(text, view=doc.View.SHORT)]


def server_level(summary: Summary) -> float | None:
    """The server's memory at the hold's end as its cost counts it: the memory of the table of
    processes, with pages of files as before the first connect. None if nothing was held, or it was
    not read.
    """
    level = summary.server.memory[0].hold_end
    if not summary.connections.held or level is None:
        return None
    return level - _files_since(summary)


def _files_since(summary: Summary) -> float:
    """By how much the server's pages of files are more at the hold's end than before the first
    connect (bytes), if that is in no cost; 0 where it was not read.
    """
    files = summary.server.file_bytes
    memory, kind = summary.server.memory
    if isinstance(files, msgspec.UnsetType) or kind != "PSS" or memory.hold_end is None:
        return 0.0
    if files.baseline is None or files.hold_end is None:
        return 0.0
    # Pages of files that rise with the connections are in the cost.
    if summary.finding(reclaimable_rises.code) is not None:
        return 0.0
    return files.hold_end - files.baseline


def files_apart(summary: Summary) -> str:
    """That pages of files came or went which are in no column of the costs; "" if that is little of
    the server's memory.
    """
    level = server_level(summary)
    since = _files_since(summary)
    if level is None or abs(since) <= PART * level:
        return ""
    name = server_name(summary)
    if since > 0:
        return (
            f"In no column are {format_bytes(since)} of pages of files that {name} had at the "
            "hold's end beyond those before the first connect: they are of its program, and other "
            "processes that shared them have ended, or it had touched more of them."
        )
    return (
        f"In no column is that {name} had {format_bytes(-since)} less of pages of files at the "
        "hold's end than before the first connect: they are of its program, and other processes "
        "share them now."
    )


def _residue(summary: Summary) -> str:
    """Memory still in use after the drain; "" if it was not read."""
    residue = summary.residue
    host = sides(summary.environment).host
    places: list[tuple[float | None, str]] = [
        (residue.server_user, f"in {memory_name(summary)}"),
        (residue.kernel, "in the kernel"),
        (residue.host_total, f"on {host} in all"),
    ]
    if residue.live is not msgspec.UNSET:
        places.append((residue.live, "alive in its heap after a collection"))
    if residue.stacks is not msgspec.UNSET:
        places.append((residue.stacks, "in its stacks"))
    parts = []
    for value, place in places:
        if value is not None and value >= 0:
            parts.append(f"{format_bytes(value)} {place}")
        elif value is not None:
            parts.append(f"nothing {place} ({format_bytes(-value)} less than before)")
    if not parts or residue.after_s is None:
        return ""
    return f"Still in use {residue.after_s:.0f} s after the drain: {', '.join(parts)}."


def capacity_section(summary: Summary) -> doc.Section:
    forecast = summary.forecast
    limits = {}
    for limit in (*forecast.ceilings, forecast.server_memory):
        if limit is not None:
            limits[limit.name] = limit
    rows = []
    for limit in sorted(limits.values(), key=_connections_allowed):
        rows.append(
            doc.TableRow(ceiling(limit.name), [about(limit), about_to(limit), oneline(limit.how)])
        )
    columns = doc.numbers("at most", "95 % interval")
    columns.append(doc.TableColumn("calculation", kind="words", view=doc.View.PAGE))
    table = doc.DataTable(
        "Capacity by limit",
        columns,
        rows,
        "Connections that each limit allows, lowest first",
        kind="wordy stack",
        width=44,
        view=doc.FULL if summary.connections.opened else doc.View.PAGE,
    )
    first_limit = headroom(summary)
    if not first_limit:
        return doc.Section("forecast", "Capacity", [table])
    answer = doc.Paragraph(first_limit, "text", view=doc.View.PAGE)
    return doc.Section("forecast", "Capacity", [answer, table])


def _connections_allowed(limit: Ceiling) -> float:
    """Limits of an unknown number come last."""
    return math.inf if limit.connections is None else limit.connections


def drift_table(drifts: Mapping[MetricName, Drift], server: str, host: str) -> doc.DataTable:
    rows = []
    for name, label in memory_labels(server, host).items():
        if name in drifts:
            rows.append(_drift_row(label, drifts[name]))
    columns = doc.numbers("an hour", "95 % interval", "bound", "examined")
    columns.append(doc.TableColumn("verdict", kind="words"))
    return doc.DataTable(
        "Memory over the hold", columns, rows, kind="stack", width=18, view=doc.FULL
    )


def _drift_row(label: str, drift: Drift) -> doc.TableRow:
    per_hour = "-"
    rate = told_rate(drift)
    if rate is not None:
        per_hour = _signed_bytes(rate)
    interval_per_hour = "-"
    if drift.ci95 is not None:
        low, high = drift.ci95
        interval_per_hour = f"{_signed_bytes(low)} to {_signed_bytes(high)}"
    length = "-"
    if drift.from_s is not None and drift.to_s is not None:
        length = examined(drift.from_s, drift.to_s)
    bound = or_bytes(drift.bound_bytes_per_hour)
    return doc.TableRow(label, [per_hour, interval_per_hour, bound, length, called(drift)])


def _signed_bytes(value: float) -> str:
    text = format_bytes(value)
    if value > 0 and not text.startswith("0 "):
        return f"+{text}"
    return text


def drift_section(summary: Summary) -> doc.Section:
    server = memory_name(summary)
    host = sides(summary.environment).host
    labels = memory_labels(server, host)
    blocks: list[doc.Block] = [drift_table(summary.drift, server, host)]
    known = {name: drift for name, drift in summary.drift.items() if _is_listed(name, drift)}
    if summary.drift:
        unknown = [labels[name] for name in summary.drift if name not in known]
        blocks.append(_drift_heading(unknown))
    for name, drift in known.items():
        heap_fills = filling(summary)
        if name == "server_user" and heap_fills is not None:
            told = f"{labels[name]}: {heap_fills.evidence}"
            blocks.append(doc.Paragraph(told, view=doc.View.SHORT))
            continue
        grows = drift.verdict == "grows"
        style = "bold yellow" if grows and name != "generator_user" else ""
        level = summary.server.memory[0].hold_end
        ends = ""
        if name == "server_user" and grows and level is not None:
            ends = f", to {format_bytes(level)} at the hold's end"
        words = (f"{labels[name]}: ", (in_words(drift), style), ends)
        blocks.append(doc.Paragraph(words, view=doc.View.SHORT))
    return doc.Section("drift", "Drift over the hold", blocks, tight=True)


def _is_listed(name: MetricName, drift: Drift) -> bool:
    """Whether the short report has it: unknown growth is omitted but of the server."""
    if drift.ci95 is None:
        return False
    return name == "server_user" or drift.verdict != "too_short"


def _drift_heading(unknown: Sequence[str]) -> doc.Paragraph:
    heading = ("Memory over the hold", "bold")
    reason: str | tuple[str, str] = ""
    if unknown:
        reason = (f" (unknown: {', '.join(unknown)})", "not bold dim")
    return doc.Paragraph((heading, reason), "line", view=doc.View.SHORT)
