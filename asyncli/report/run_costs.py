"""What a run says of memory: the cost of a connection, the room for more, and drift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asyncli.analysis.cost import Costs
from asyncli.analysis.drift import RULE as DRIFT_RULE
from asyncli.analysis.drift import Drift, MetricName, in_words
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import LEVELS, SETTLED
from asyncli.report.answer import room, server_name
from asyncli.report.document import (
    ALL,
    FULL,
    TERMINAL,
    Block,
    DataTable,
    Paragraph,
    Picture,
    Section,
    TableColumn,
    TableRow,
    View,
    Words,
    drawn_blocks,
    numbers,
)
from asyncli.report.format import (
    about,
    about_to,
    caption,
    ceiling,
    cost_rows,
    fixed_is,
    interval,
    kept_less,
    short_bytes,
    shown_r2,
)
from asyncli.report.summary import CostPart, Summary
from asyncli.text import oneline
from asyncli.topology import Sides, sides
from asyncli.units import format_bytes, format_count

if TYPE_CHECKING:
    pass


def cost_table(costs: Costs | CostPart, server: str, where: Sides, held: int, title: str = "") -> DataTable:
    """What a connection costs, part by part."""
    lines = []
    rows = cost_rows(costs, server, where)
    for row in rows:
        one, total = row.cost, row.name == "host_total"
        view = View.PAGE if row.name == "kernel_queued" else ALL
        if one is None:
            lines.append(TableRow(row.label, [("-", "dim")] * 5, strong=total, view=view))
            continue
        r2 = "-" if one.r2 is None or row.name == "residual" else shown_r2(one.r2)
        number = (short_bytes(one.bytes_per_connection), "bold" if total else "cyan")
        amounts = [row.of_ends(row.fixed), row.of_ends(row.at(held))]
        lines.append(
            TableRow(
                row.label, [number, (interval(*one.ci95), ""), *((text, "") for text in amounts), r2], strong=total, view=view
            )
        )
    columns = [*numbers("bytes", "95 % interval", "fixed", f"at {format_count(held)}"), TableColumn("R²", view=View.PAGE)]
    return DataTable("Cost of a connection", columns, lines, title or f"{caption(rows)}, in bytes", kind="stack")


def cost_section(summary: Summary, drawn: Mapping[str, Picture]) -> Section:
    held, where, server = summary.connections.held, sides(summary.environment), server_name(summary)
    rows = [one for one in cost_rows(summary.cost, server, where) if one.name != "kernel_queued"]
    blocks: list[Block] = [*drawn_blocks(drawn, "parts")]
    known = any(one.cost for one in rows)
    if known:
        blocks.append(cost_table(summary.cost, server, where, held))
    blocks += drawn_blocks(drawn, "cost", "residuals")
    if known:
        methods = _methods([(row.label.partition(",")[0], row.cost) for row in rows if row.name != "residual"])
        blocks += [Paragraph(words, style="dim", view=View.VERBOSE) for words in (methods, fixed_is(rows))]
        if any(one.code == "plateau_unsettled" for one in summary.findings):
            blocks.append(Paragraph(f"Settled: {SETTLED}.", style="dim", view=View.VERBOSE))
    if stays := _stays(summary):
        blocks.append(Paragraph(stays, view=FULL if known else View.PAGE))
    return Section("cost", "Cost of a connection", blocks)


def _stays(summary: Summary) -> str:
    """What the drain did not give back; "" where nothing was read after it."""
    left = summary.residue
    parts = [
        f"{format_bytes(value)} {where}" if value >= 0 else f"nothing that shows {where} ({kept_less(value)})"
        for value, where in (
            (left.server_user, f"in {server_name(summary)}"),
            (left.kernel, "in the kernel"),
            (left.host_total, f"on {sides(summary.environment).host} in all"),
        )
        if value is not None
    ]
    return f"Kept {left.after_s:.0f} s after the drain: {', '.join(parts)}." if parts and left.after_s is not None else ""


def _methods(rows: Sequence[tuple[str, Cost | None]]) -> str:
    """How the costs were found; what several share is said once."""
    heads: dict[str, list[str]] = {}
    for label, one in rows:
        if one is not None:
            mark = LEVELS if one.of_levels else "linear regression"
            head, _, tail = one.method.partition(mark)
            heads.setdefault(head + mark, []).append(f"for {label}{tail}")
    said = [f"{head}; {'; '.join(tails)}." for head, tails in heads.items()]
    first = said[0][:1].upper() + said[0][1:] if said[0].startswith(LEVELS) else f"Slopes: {said[0]}"
    return " ".join([first, *(one[:1].upper() + one[1:] for one in said[1:])])


def room_section(summary: Summary, drawn: Mapping[str, Picture]) -> Section:
    found = summary.forecast
    every = {one.name: one for one in (*found.ceilings, found.server_memory) if one is not None}
    ceilings = sorted(every.values(), key=lambda one: math.inf if one.connections is None else one.connections)
    rows = [
        TableRow(
            ceiling(one.name), [about(one), about_to(one), oneline(one.how)], view=View.PAGE if one.connections is None else ALL
        )
        for one in ceilings
    ]
    columns = [*numbers("at most", "95 % interval"), TableColumn("how it is found", kind="words", view=View.PAGE)]
    title = "Connections that each limit allows, the lowest first"
    table = DataTable(
        "Room for connections", columns, rows, title, kind="wordy stack", width=44,
        view=FULL if summary.connections.opened else View.PAGE,
    )  # fmt: skip
    said = [Paragraph(more, "text", view=View.PAGE)] if (more := room(summary)) else []
    return Section("forecast", "How many would fit", [*said, *drawn_blocks(drawn, "forecast"), table])


def drift_table(drifts: Mapping[MetricName, Drift], server: str, host: str) -> DataTable:
    """How each metric moved over the hold."""
    rows = []
    for name, label in drift_labels(server, host).items():
        if (one := drifts.get(name)) is None:
            continue
        each = "-" if one.bytes_per_hour is None else _signed_bytes(one.bytes_per_hour)
        within = "-" if one.ci95 is None else f"{_signed_bytes(one.ci95[0])} to {_signed_bytes(one.ci95[1])}"
        p = "-" if one.p_value is None else "< 0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"
        rows.append(TableRow(label, [each, within, p, in_words(one)]))
    columns = [*numbers("an hour", "95 % interval", "p"), TableColumn("verdict", kind="words")]
    return DataTable("Memory over the hold", columns, rows, kind="stack", view=View.PAGE)


def _signed_bytes(value: float) -> str:
    text = format_bytes(value)
    return f"+{text}" if value > 0 and text[:2] != "0 " else text


def drift_labels(server: str, host: str) -> dict[MetricName, str]:
    """Whose memory each drift is of, in the order in which they are told."""
    return {
        "host_total": f"{host} in all", "server_user": f"{oneline(server)}, user memory", "kernel": "kernel, all sockets",
        "generator_user": "asyncli, user memory",
    }  # fmt: skip


def drift_section(summary: Summary, drawn: Mapping[str, Picture]) -> Section:
    server = server_name(summary)
    table = drift_table(summary.drift, server, sides(summary.environment).host)
    blocks: list[Block] = [table, *drawn_blocks(drawn, "drift")]
    if summary.drift:
        names = {"server_user": server, "kernel": "kernel", "generator_user": "asyncli", "host_total": "host in all"}
        known = {name: one for name, one in summary.drift.items() if one.ci95 is not None}
        # How little is known of what others move, or of asyncli's own, is no news.
        news = {name: one for name, one in known.items() if name in ("server_user", "kernel") or one.verdict != "too_short"}
        untold, unknown = (", ".join(names[name] for name in summary.drift if name not in some) for some in (news, known))
        short = (f" (too short to say: {untold})", "not bold dim") if untold else ""
        blocks += [
            Paragraph((("Memory over the hold", "bold"), short), "line", view=View.SHORT),
            Paragraph("Memory over the hold", "line", "bold", view=View.VERBOSE),
        ]
        for name, one in known.items():
            style = "bold red" if one.verdict == "grows" and name != "generator_user" else ""
            words: Words = (f"{names[name]}: ", (in_words(one), style))
            blocks.append(Paragraph(words, view=TERMINAL if name in news else View.VERBOSE))
        if unknown:
            words = f"{unknown}: too short a hold to say whether memory grows"
            blocks.append(Paragraph(words, style="dim", view=View.VERBOSE))
        if known:
            blocks.append(Paragraph(f"Rule: {DRIFT_RULE}.", style="dim", view=View.VERBOSE))
    return Section("drift", "Drift over the hold", blocks, tight=True)
