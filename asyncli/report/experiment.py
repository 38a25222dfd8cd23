"""An experiment for a terminal, and what its page says in the same words."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncli.experiments.record import VERDICTS, FigureRow, FigureTable, Record, Unit
from asyncli.records import Finding
from asyncli.report.terminal import SEVERITY_STYLE, Indented, print_parts
from asyncli.report.words import digits
from asyncli.text import oneline
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_WIDEST = 132
_CLAIM_STYLE = {"holds": "bold green", "holds in part": "bold yellow", "does not hold": "bold red", "cannot say": "bold magenta"}


def print_experiment(record: Record, console: Console) -> None:
    """The verdicts on the claims first, then the tables with the source's figures below ours, then what should be known."""
    print_parts([*_head(record), *_claims(record), *_tables(record), *_findings(record.findings)], console, _WIDEST)


def amount(value: float, unit: Unit) -> str:
    """A figure in its unit, with the digits that matter."""
    if unit == "B":
        return format_bytes(value)
    if unit == "share":
        return f"{value:.0%}"
    if unit == "/s" or abs(value) >= 1000 or (not unit and value == int(value)):
        return format_count(value)
    return digits(value)


def heading(label: str, unit: Unit) -> str:
    """A column's heading with its unit."""
    return f"{label}, {unit}" if unit in ("ms", "us", "s", "cores") and unit not in label.split() else label


def cell(row: FigureRow, key: str, unit: Unit) -> tuple[str, str]:
    """The median, and from which to which value it was met; "–" where nothing was measured."""
    values = row.values.get(key) or []
    if not values:
        return "–", ""
    middle = amount(statistics.median(values), unit)
    low, high = amount(min(values), unit), amount(max(values), unit)
    return middle, "" if low == high else f"{low} to {high}"


def server_labels(record: Record) -> str:
    """The servers that took part, by their names and versions."""
    return ", ".join(record.environment.get("server") or {}) or "no server"


def _head(record: Record) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text(record.title, "bold")
    yield Text(record.question)
    what = f"{server_labels(record)}; {format_duration(record.duration_s)}"
    yield Text(what if record.complete else f"{what}; not complete", "dim")
    yield ""


def _claims(record: Record) -> Iterable[RenderableType]:
    from rich.text import Text

    for one in record.conclusions.claims:
        yield Indented(
            Text.assemble((f"{one.verdict}: ", _CLAIM_STYLE[one.verdict]), oneline(one.claim), (f" {oneline(one.why)}", "dim")),
            4,
            2,
        )
    if record.conclusions.claims:
        yield Indented(Text(VERDICTS, "dim"), 2, 2)
        yield ""


def _tables(record: Record) -> Iterable[RenderableType]:
    from rich.text import Text

    for table in record.conclusions.tables:
        if not table.rows:
            continue
        yield Text(table.title, "bold")
        yield _Fitting(table)
        if table.caption:
            yield Indented(Text(table.caption, "dim"), 2, 2)
        yield ""
    of = f"Figures are medians of {_rounds(record)}, from the least to the most. " if record.rounds else ""
    yield Indented(Text(f"{of}Source: {record.source}", "dim"), 2, 2)


def _rounds(record: Record) -> str:
    rounds = len({one["round"] for one in record.rounds})
    return "1 round" if rounds == 1 else f"{rounds} rounds"


# Wider than any table.
_BOUNDLESS = 10_000


class _Fitting:
    """A table; where it is too wide, its rows one below the other, a figure a line."""

    def __init__(self, table: FigureTable) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        from rich.measure import Measurement

        grid = _grid(self._table)
        wide = Measurement.get(console, options.update(width=_BOUNDLESS), grid).maximum <= options.max_width
        yield from [grid] if wide else _stacked(self._table)


def _grid(table: FigureTable) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    grid.add_column("", no_wrap=True)
    columns = table.told
    for column in columns:
        grid.add_column(heading(column.label, column.unit), justify="right", no_wrap=True)
    for row in table.rows:
        cells = []
        for column in columns:
            middle, span = cell(row, column.key, column.unit)
            cells.append(Text.assemble(middle, (f"\n{span}", "dim") if span else ""))
        grid.add_row(row.label, *cells)
        if row.source:
            theirs = [amount(row.source[one.key], one.unit) if one.key in row.source else "" for one in columns]
            grid.add_row(Text("  the source", "dim"), *(Text(one, "dim") for one in theirs))
    return grid


def _stacked(table: FigureTable) -> Iterable[RenderableType]:
    from rich.text import Text

    columns = table.told
    widest = max((len(heading(one.label, one.unit)) for one in columns), default=0)
    for row in table.rows:
        yield Text(f"  {row.label}")
        for column in columns:
            middle, span = cell(row, column.key, column.unit)
            line = Text.assemble((f"    {heading(column.label, column.unit):<{widest}}  ", "dim"), f"{middle:>10}")
            line.append(f"  {span}" if span else "", "dim")
            if column.key in row.source:
                line.append(f"  source {amount(row.source[column.key], column.unit)}", "dim")
            yield line


def _findings(findings: list[Finding]) -> Iterable[RenderableType]:
    from rich.text import Text

    if findings:
        yield ""
    for one in findings:
        words = Text.assemble((f"{one.severity}: ", SEVERITY_STYLE[one.severity]), oneline(one.evidence))
        if one.remedy:
            words.append(f"; {oneline(one.remedy)}", "dim")
        yield Indented(words, 4, 2)
