"""An experiment as a document: verdicts on the claims, then the figures, with the source's below ours."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from asyncli import __version__
from asyncli.experiments.record import VERDICTS, Chart, FigureRow, FigureTable, Record, Unit
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_count, format_duration, format_many, format_share
from asyncli.report import document as doc
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, cut, drawn_alone, sheet
from asyncli.report.format import digits
from asyncli.report.run_setup import fact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDEST = 132
#: Facts about the host that are shown.
_FACTS = ("kernel", "machine", "cpu_model", "cpus", "memory_bytes", "python", "asyncli", "host", "server")


def experiment_document(record: Record) -> doc.Document:
    conclusions = record.conclusions
    complete = "" if record.complete else "; incomplete"
    lasted = f"{format_duration(record.duration_s)}{complete}"
    top = ((record.title, "bold"), (record.question, ""), (f"{server_labels(record)}; {lasted}", "dim"))
    claims = [doc.ListedItem(one.verdict, one.verdict, oneline(one.claim), oneline(one.why)) for one in conclusions.claims]
    rules = [doc.Paragraph(VERDICTS, style="dim")] if claims else []
    rounds = len({one["round"] for one in record.rounds})
    medians = f"Figures are medians of {format_many(rounds, 'round')}, with their range. " if rounds else ""
    figures: list[doc.Block] = [doc.Paragraph(f"{medians}Source: {record.source}", style="dim")]
    figures += [_picture(number, one) for number, one in enumerate(conclusions.charts, 1)]
    plan = [(key, "all" if key == "only" and not one else fact(key, one)) for key, one in record.plan.items()]
    where = [(key, fact(key, [*one] if key == "server" else one)) for key, one in record.environment.items() if key in _FACTS]
    command = f"Made by {record.command}; to repeat it: --plan record.json."
    sections = [
        doc.Section("title", "", [doc.Paragraph(text, "text", style, doc.TERMINAL) for text, style in top]),
        doc.Section("answer", "The claims", [doc.ItemList(claims), *rules]),
        *(doc.Section(f"table-{place}", one.title, _table(one)) for place, one in enumerate(conclusions.tables)),
        doc.Section("figures", "The figures", figures),
        doc.Section("findings", "Findings", [doc.ItemList(doc.finding_items(record.findings))]),
        doc.Section(
            "plan",
            "Plan and environment",
            [doc.pairs("Plan", plan), doc.pairs("Environment", where), doc.Paragraph(command, view=doc.View.PAGE)],
        ),
    ]
    byline = f"{server_labels(record)}; {record.started.replace('T', ' ')}, {lasted}"
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


def amount(value: float, unit: Unit) -> str:
    """A figure in its unit."""
    if unit == "B":
        return format_bytes(value)
    if unit == "share":
        return f"{format_share(value, 1)}" if 0 < value < 0.1 else f"{format_share(value)}"
    if unit == "/s" or abs(value) >= 1000 or (not unit and value == int(value)):
        return format_count(value)
    return digits(value)


def heading(label: str, unit: Unit) -> str:
    return f"{label}, {unit}" if unit in ("ms", "us", "s", "cores") and unit not in label.split() else label


def cell(row: FigureRow, key: str, unit: Unit) -> tuple[str, str]:
    """The median and the range of the rounds; "–" without any."""
    values = row.values.get(key) or []
    if not values:
        return "–", ""
    middle = amount(statistics.median(values), unit)
    low, high = amount(min(values), unit), amount(max(values), unit)
    return middle, "" if low == high else f"{low} to {high}"


def server_labels(record: Record) -> str:
    return ", ".join(record.environment.get("server") or {}) or "no server"


def _table(table: FigureTable) -> list[doc.Block]:
    columns, rows = table.filled_columns, []
    for row in table.rows:
        rows.append(doc.TableRow(row.label, ["\n".join(cell(row, one.key, one.unit)).rstrip("\n") for one in columns]))
        if row.source:
            figures = [str(row.source.get(one.key, "-")) for one in columns]
            rows.append(doc.TableRow("  the source", figures, "dim"))
    headings = [doc.TableColumn(heading(one.label, one.unit)) for one in columns]
    grid = doc.DataTable(table.title, headings, rows, kind="stack ranges", width=0)
    return [grid, *([doc.Paragraph(table.caption, style="dim")] if table.caption else [])]


def _picture(number: int, chart: Chart) -> doc.Picture:
    lines = "; ".join(f"{one.label} from {min(one.ys):,.4g} to {max(one.ys):,.4g}" for one in chart.lines if one.ys)
    alt = f"{chart.title}: {lines}"
    return doc.Picture(f"x{number}", chart.title, chart.caption, lambda style: draw(chart, style), lambda: alt)


# Lines differ by dash and marker, not only by colour.
_ROLES = ("server", "kernel", "ours", "violet", "ink", "rest", "soft")
_DASHES = ("-", (0, (5, 1.6)), (0, (5, 1.6, 1, 1.6)), (0, (1.2, 1.4)), (0, (8, 2)), (0, (2, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_MOST_MARKED = 40


@drawn_alone
def draw(chart: Chart, style: Style = WIDE) -> Figure:
    """The chart. Raises :class:`~asyncli.report.figures.drawing.NothingToDraw` without a point."""
    if not any(line.ys for line in chart.lines):
        raise NothingToDraw("This was not measured.")
    figure = _bars(chart, style) if chart.kind == "bars" else _lines(chart, style)
    if len(chart.lines) > 1:
        figure.legend(loc="lower left", ncols=1 if style.narrow else 3)
    return figure


def _lines(chart: Chart, style: Style) -> Figure:
    from matplotlib.ticker import FuncFormatter

    figure, ((ax,),) = sheet(style, [182.0], (58.0, 16.0, 24.0, 46.0 + _legend_px(chart, style)))
    for number, line in enumerate(chart.lines):
        colour, dash, marker = COLOURS[_ROLES[number % 7]], _DASHES[number % 7], _MARKERS[number % 7]
        marker = marker if len(line.xs) <= _MOST_MARKED else ""
        ax.plot(line.xs, line.ys, color=colour, linestyle=dash, label=line.label, marker=marker, markersize=4.5)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.02)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 10 else f"{value:,.2g}"))
    ax.set_xlabel(chart.x_label)
    ax.set_title(chart.y_label, color=COLOURS["soft"], weight="normal", size=11)
    return figure


def _bars(chart: Chart, style: Style) -> Figure:
    """Horizontal bars, a group per category."""
    many = len(chart.lines)
    step = 15.0 * many + 14
    left = min(6.4 * max(map(len, chart.categories), default=0) + 12, style.width * 0.45)
    figure, ((ax,),) = sheet(style, [step * len(chart.categories)], (left, 16.0, 24.0, 8.0 + _legend_px(chart, style)))
    for number, line in enumerate(chart.lines):
        bars = ax.barh(
            [x * step + number * 15.0 for x in line.xs], line.ys, height=11, color=COLOURS[_ROLES[number % 7]], label=line.label
        )
        ax.bar_label(bars, [digits(value) for value in line.ys], padding=4, size=11)
    names = [cut(one, int(left / 6.2) - 1) for one in chart.categories]
    ax.set_yticks([at * step + (many - 1) * 7.5 for at in range(len(names))], names)
    ax.set_ylim(step * len(names) - 7, -14)
    ax.set_xlim(0, 1.16 * max((y for line in chart.lines for y in line.ys), default=0.0) or 1.0)
    ax.set_xticks([])
    ax.grid(visible=False)
    ax.set_title(chart.y_label, color=COLOURS["soft"], weight="normal", size=11)
    return figure


def _legend_px(chart: Chart, style: Style) -> float:
    return 18.0 * -(-len(chart.lines) // (1 if style.narrow else 3)) if len(chart.lines) > 1 else 0.0
