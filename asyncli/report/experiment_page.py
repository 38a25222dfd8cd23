"""An experiment as one HTML file, in the looks of a run's own report: the verdicts on the claims first."""

from __future__ import annotations

from typing import Any

from asyncli import __version__
from asyncli.experiments.record import VERDICTS, Chart, Record
from asyncli.experiments.record import FigureTable as Figures
from asyncli.report.charts import NARROW, WIDE, NothingToDraw
from asyncli.report.experiment import amount, cell, heading, server_labels
from asyncli.report.page import Figure, Table, fill
from asyncli.report.plain_charts import draw
from asyncli.report.svg import inline_svg
from asyncli.text import oneline
from asyncli.units import format_bytes, format_duration


def page(record: Record) -> str:
    """The page as HTML text. The same record gives the same page, byte for byte."""
    conclusions = record.conclusions
    environment = {key: value for key, value in record.environment.items() if key in _FACTS}
    return fill(
        "experiment.html.jinja",
        title=record.title,
        question=record.question,
        byline=f"{server_labels(record)}; {record.started.replace('T', ' ')}, {format_duration(record.duration_s)}"
        + ("" if record.complete else "; not complete"),
        claims=conclusions.claims,
        verdicts=VERDICTS,
        marks={"holds": "passed", "holds in part": "warning", "does not hold": "failed", "cannot say": "untested"},
        tables=[_table(one) for one in conclusions.tables if one.rows],
        figures=[_figure(number, one) for number, one in enumerate(conclusions.charts, 1)],
        source=record.source,
        rounds=len({one["round"] for one in record.rounds}),
        findings=[
            {"severity": one.severity, "word": "note" if one.severity == "info" else one.severity, "code": one.code,
             "evidence": oneline(one.evidence), "remedy": oneline(one.remedy)}
            for one in record.findings
        ],
        plan=Table("What was asked", [("", False), ("", False)], [[key, _plain(key, one)] for key, one in record.plan.items()]),
        environment=Table("Where", [("", False), ("", False)], [[key, _plain(key, one)] for key, one in environment.items()]),
        command=record.command,
        made=f"asyncli {__version__}",
    )  # fmt: skip


_FACTS = ("kernel", "machine", "cpu_model", "cpus", "memory_bytes", "python", "asyncli", "host", "server")


def _plain(key: str, value: Any) -> str:
    """A value of a plan or of a place, for a reader; of the servers, their names."""
    if isinstance(value, list | dict):
        return ", ".join(map(str, value)) or ("all" if key == "only" else "none")
    if key == "memory_bytes" and value is not None:
        return format_bytes(value)
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _table(table: Figures) -> Table:
    columns = table.told
    rows = []
    for row in table.rows:
        cells = []
        for column in columns:
            middle, span = cell(row, column.key, column.unit)
            cells.append(_unbroken(f"{middle} ({span})" if span else middle))
        rows.append([row.label, *cells])
        if row.source:
            rows.append(
                ["the source", *(amount(row.source[one.key], one.unit) if one.key in row.source else "–" for one in columns)]
            )
    return Table(table.title, [("", False), *((heading(one.label, one.unit), True) for one in columns)], rows, note=table.caption)


def _unbroken(words: str) -> str:
    """A figure stays with its unit; a narrow column breaks before a range, and within it after "to"."""
    return words.replace(" ", "\xa0").replace("\xa0(", " (").replace("\xa0to\xa0", "\xa0to ")


def _figure(number: int, chart: Chart) -> Figure:
    alt = f"{chart.title}: " + "; ".join(
        f"{line.label} from {_of(line.ys, min)} to {_of(line.ys, max)}" for line in chart.lines if line.ys
    )
    try:
        wide, narrow = (inline_svg(draw(chart, style), f"x{number}-{name}") for style, name in ((WIDE, "w"), (NARROW, "n")))
    except NothingToDraw as nothing:
        return Figure(f"x{number}", chart.title, chart.caption, "", "", "", str(nothing))
    from markupsafe import Markup

    return Figure(f"x{number}", chart.title, chart.caption, alt, Markup(wide), Markup(narrow))


def _of(values: list[float], what: Any) -> str:
    return f"{what(values):,.4g}"
