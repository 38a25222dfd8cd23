"""Lines and bars of an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncli.experiments.record import Chart
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, cut, drawn_alone, sheet
from asyncli.report.format import digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinguished by dash and marker too.
_ROLES = ("server", "kernel", "ours", "violet", "ink", "rest", "soft")
_DASHES = ("-", (0, (5, 1.6)), (0, (5, 1.6, 1, 1.6)), (0, (1.2, 1.4)), (0, (8, 2)), (0, (2, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_MOST_MARKED = 40


@drawn_alone
def draw(chart: Chart, style: Style = WIDE) -> Figure:
    """The chart. Raises :class:`~asyncli.report.figures.drawing.NothingToDraw` without a point."""
    if not any(line.ys for line in chart.lines):
        raise NothingToDraw("Nothing of this was measured.")
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
