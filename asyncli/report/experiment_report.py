"""An experiment as a document: verdicts on the claims, then the figures, with the source's below
ours.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncli import __version__
from asyncli.experiments.record import (
    VERDICTS,
    Chart,
    Column,
    FigureRow,
    FigureTable,
    Record,
    Unit,
)
from asyncli.model.text import oneline
from asyncli.model.units import (
    format_bytes,
    format_count,
    format_duration,
    format_many,
    format_share,
)
from asyncli.report import document as doc
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Style,
    cut,
    drawn_alone,
    sheet,
)
from asyncli.report.format import digits
from asyncli.report.run_setup import fact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDEST = 132
#: Facts about the host that are shown.
_FACTS = (
    "kernel",
    "machine",
    "cpu_model",
    "cpus",
    "memory_bytes",
    "python",
    "asyncli",
    "host",
    "server",
)
#: Units that a heading has; the others stand with each number.
_UNITS_IN_HEADINGS = ("ms", "us", "s", "cores")


def experiment_document(record: Record) -> doc.Document:
    tables = []
    for place, table in enumerate(record.conclusions.tables):
        tables.append(doc.Section(f"table-{place}", table.title, _table(table)))
    sections = [
        _title(record),
        _claims(record),
        *tables,
        _figures(record),
        doc.Section("findings", "Findings", [doc.ItemList(doc.finding_items(record.findings))]),
        _plan_and_environment(record),
    ]
    started = record.started.replace("T", " ")
    byline = f"{server_labels(record)}; {started}, {_lasted(record)}"
    return doc.Document(
        "experiment",
        record.title,
        record.title,
        [record.question, byline],
        sections,
        f"Made by asyncli {__version__}.",
        record.question,
        _WIDEST,
    )


def _lasted(record: Record) -> str:
    lasted = format_duration(record.duration_s)
    if not record.complete:
        return f"{lasted}; incomplete"
    return lasted


def _title(record: Record) -> doc.Section:
    made = f"{server_labels(record)}; {_lasted(record)}"
    lines = ((record.title, "bold"), (record.question, ""), (made, "dim"))
    paragraphs = [doc.Paragraph(text, "text", style, doc.TERMINAL) for text, style in lines]
    return doc.Section("title", "", paragraphs)


def _claims(record: Record) -> doc.Section:
    items = []
    for claim in record.conclusions.claims:
        text, reason = oneline(claim.claim), oneline(claim.why)
        items.append(doc.ListedItem(claim.verdict, claim.verdict, text, reason))
    blocks: list[doc.Block] = [doc.ItemList(items)]
    if items:
        blocks.append(doc.Paragraph(VERDICTS, style="dim"))
    return doc.Section("answer", "The claims", blocks)


def _figures(record: Record) -> doc.Section:
    note = f"Source: {record.source}"
    rounds = len({measurement["round"] for measurement in record.rounds})
    if rounds:
        note = f"Figures are medians of {format_many(rounds, 'round')}, with their range. {note}"
    blocks: list[doc.Block] = [doc.Paragraph(note, style="dim")]
    for number, chart in enumerate(record.conclusions.charts, 1):
        blocks.append(_picture(number, chart))
    return doc.Section("figures", "The figures", blocks)


def _plan_and_environment(record: Record) -> doc.Section:
    plan = [(key, _planned(key, value)) for key, value in record.plan.items()]
    environment = []
    for key, value in record.environment.items():
        if key in _FACTS:
            # Of the servers, their names.
            environment.append((key, fact(key, list(value) if key == "server" else value)))
    command = f"Made by {record.command}; to repeat it: --plan record.json."
    blocks: list[doc.Block] = [
        doc.pairs("Plan", plan),
        doc.pairs("Environment", environment),
        doc.Paragraph(command, view=doc.View.PAGE),
    ]
    return doc.Section("plan", "Plan and environment", blocks)


def _planned(key: str, value: Any) -> str:
    if key == "only" and not value:
        return "all"
    return fact(key, value)


def amount(value: float, unit: Unit) -> str:
    """A figure in its unit."""
    if unit == "B":
        return format_bytes(value)
    if unit == "share":
        decimals = 1 if 0 < value < 0.1 else 0
        return format_share(value, decimals)
    if unit == "/s" or abs(value) >= 1000:
        return format_count(value)
    if not unit and value == int(value):
        return format_count(value)
    return digits(value)


def heading(label: str, unit: Unit) -> str:
    if unit in _UNITS_IN_HEADINGS and unit not in label.split():
        return f"{label}, {unit}"
    return label


def cell(row: FigureRow, key: str, unit: Unit) -> tuple[str, str]:
    """The median and the range of the rounds; "–" without any."""
    values = row.values.get(key)
    if not values:
        return "–", ""
    middle = amount(statistics.median(values), unit)
    low = amount(min(values), unit)
    high = amount(max(values), unit)
    if low == high:
        return middle, ""
    return middle, f"{low} to {high}"


def server_labels(record: Record) -> str:
    return ", ".join(record.environment.get("server") or {}) or "no server"


def _table(table: FigureTable) -> list[doc.Block]:
    columns = table.filled_columns
    rows = []
    for row in table.rows:
        rows.append(doc.TableRow(row.label, [_cell_text(row, column) for column in columns]))
        if row.source:
            figures = [str(row.source.get(column.key, "-")) for column in columns]
            rows.append(doc.TableRow("  the source", figures, "dim"))
    headings = [doc.TableColumn(heading(column.label, column.unit)) for column in columns]
    blocks: list[doc.Block] = [
        doc.DataTable(table.title, headings, rows, kind="stack ranges", width=0)
    ]
    if table.caption:
        blocks.append(doc.Paragraph(table.caption, style="dim"))
    return blocks


def _cell_text(row: FigureRow, column: Column) -> str:
    """The median, and the range in a second line."""
    return "\n".join(cell(row, column.key, column.unit)).rstrip("\n")


def _picture(number: int, chart: Chart) -> doc.Picture:
    extents = []
    for line in chart.lines:
        if line.ys:
            extents.append(f"{line.label} from {min(line.ys):,.4g} to {max(line.ys):,.4g}")
    alt = f"{chart.title}: {'; '.join(extents)}"
    return doc.Picture(
        f"x{number}", chart.title, chart.caption, lambda style: draw(chart, style), lambda: alt
    )


class _Look(NamedTuple):
    """Lines differ by dash and marker, not only by colour."""

    role: str
    dash: Any
    marker: str

    @property
    def colour(self) -> str:
        return COLOURS[self.role]


_LOOKS = (
    _Look("server", "-", "o"),
    _Look("kernel", (0, (5, 1.6)), "s"),
    _Look("ours", (0, (5, 1.6, 1, 1.6)), "^"),
    _Look("violet", (0, (1.2, 1.4)), "D"),
    _Look("ink", (0, (8, 2)), "v"),
    _Look("rest", (0, (2, 2)), "P"),
    _Look("soft", (0, (3, 1, 1, 1, 1, 1)), "X"),
)
# The markers of more points would hide the line.
_MOST_MARKED = 40
_LEGEND_LINE_PX = 18.0
#: From a bar to the next of its group, and from a group to the next.
_BAR_PX = 15.0
_GROUP_GAP_PX = 14


def _look(number: int) -> _Look:
    return _LOOKS[number % len(_LOOKS)]


@drawn_alone
def draw(chart: Chart, style: Style = WIDE) -> Figure:
    """The chart. Raises :class:`~asyncli.report.figures.drawing.NothingToDraw` without a point."""
    if not any(line.ys for line in chart.lines):
        raise NothingToDraw("This was not measured.")
    figure = _bars(chart, style) if chart.kind == "bars" else _lines(chart, style)
    if len(chart.lines) > 1:
        figure.legend(loc="lower left", ncols=_legend_columns(style))
    return figure


def _lines(chart: Chart, style: Style) -> Figure:
    from matplotlib.ticker import FuncFormatter

    bottom = 46.0 + _legend_px(chart, style)
    figure, ((ax,),) = sheet(style, [182.0], (58.0, 16.0, 24.0, bottom))
    for number, line in enumerate(chart.lines):
        look = _look(number)
        ax.plot(
            line.xs,
            line.ys,
            color=look.colour,
            linestyle=look.dash,
            label=line.label,
            marker=look.marker if len(line.xs) <= _MOST_MARKED else "",
            markersize=4.5,
        )
    ax.set_ylim(bottom=0)
    ax.margins(x=0.02)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(_tick_label))
    ax.set_xlabel(chart.x_label)
    _set_title(ax, chart.y_label)
    return figure


def _tick_label(value: float, _place: int) -> str:
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:,.2g}"


def _bars(chart: Chart, style: Style) -> Figure:
    """Horizontal bars, a group per category."""
    groups = len(chart.categories)
    in_group = len(chart.lines)
    step = _BAR_PX * in_group + _GROUP_GAP_PX
    longest_name = max(map(len, chart.categories), default=0)
    left = min(6.4 * longest_name + 12, style.width * 0.45)
    bottom = 8.0 + _legend_px(chart, style)
    figure, ((ax,),) = sheet(style, [step * groups], (left, 16.0, 24.0, bottom))
    for number, line in enumerate(chart.lines):
        places = [category * step + number * _BAR_PX for category in line.xs]
        bars = ax.barh(places, line.ys, height=11, color=_look(number).colour, label=line.label)
        ax.bar_label(bars, [digits(value) for value in line.ys], padding=4, size=11)
    names = [cut(name, int(left / 6.2) - 1) for name in chart.categories]
    middle_of_group = (in_group - 1) * _BAR_PX / 2
    ax.set_yticks([group * step + middle_of_group for group in range(groups)], names)
    ax.set_ylim(step * groups - 7, -14)
    longest_bar = max((max(line.ys) for line in chart.lines if line.ys), default=0.0)
    ax.set_xlim(0, 1.16 * longest_bar or 1.0)
    ax.set_xticks([])
    ax.grid(visible=False)
    _set_title(ax, chart.y_label)
    return figure


def _set_title(ax: Any, text: str) -> None:
    ax.set_title(text, color=COLOURS["soft"], weight="normal", size=11)


def _legend_columns(style: Style) -> int:
    return 1 if style.narrow else 3


def _legend_px(chart: Chart, style: Style) -> float:
    """The height of the legend, which a chart of one line does not have."""
    if len(chart.lines) <= 1:
        return 0.0
    return _LEGEND_LINE_PX * math.ceil(len(chart.lines) / _legend_columns(style))
