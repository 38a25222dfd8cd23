"""Lines and bars of an experiment, in the looks of a run's own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncli.experiments.record import Chart
from asyncli.report.figures.drawing import PALETTE, WIDE, NothingToDraw, Style, drawing
from asyncli.report.format import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart without colour as well: by dash and marker, or by the name beside them.
_ROLES = ("server", "kernel", "ours", "violet", "ink", "rest", "soft")
_DASHES = ("-", (0, (5, 1.6)), (0, (5, 1.6, 1, 1.6)), (0, (1.2, 1.4)), (0, (8, 2)), (0, (2, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_MOST_MARKED = 40
_C = {name: light for name, (light, _) in PALETTE.items()}


def draw(chart: Chart, style: Style = WIDE) -> Figure:
    """The chart; :class:`~asyncli.report.figures.drawing.NothingToDraw` where it has no point."""
    if not any(line.ys for line in chart.lines):
        raise NothingToDraw("Nothing of this was measured.")
    with drawing():
        return _bars(chart, style) if chart.kind == "bars" else _lines(chart, style)


def _axes(style: Style, height: float, left: float, below: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.width / 72, height / 72), dpi=72, facecolor=_C["paper"])
    ax = figure.add_axes(
        (left / style.width, below / height, 1 - (left + 12) / style.width, 1 - (below + 24) / height), facecolor="none"
    )
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(_C["rule"])
    ax.tick_params(axis="both", which="both", length=0, labelsize=11, labelcolor=_C["soft"], pad=5)
    ax.set_axisbelow(True)
    return figure, ax


def _lines(chart: Chart, style: Style) -> Figure:
    rows = -(-len(chart.lines) // (1 if style.narrow else 3))
    height = 250.0 + 16 * rows
    figure, ax = _axes(style, height, 58, 44 + 16 * rows)
    ax.grid(visible=True, axis="y", color=_C["grid"], linewidth=0.8)
    for number, line in enumerate(chart.lines):
        colour, dash, marker = _C[_ROLES[number % 7]], _DASHES[number % 7], _MARKERS[number % 7]
        marked = {"marker": marker, "markersize": 4.5} if len(line.xs) <= _MOST_MARKED else {}
        ax.plot(line.xs, line.ys, color=colour, linestyle=dash, linewidth=1.6, label=line.label, **marked)  # type: ignore[arg-type]
    ax.set_ylim(bottom=0)
    ax.margins(x=0.02)
    ax.ticklabel_format(axis="both", style="plain", useOffset=False)
    _thousands(ax)
    ax.set_xlabel(chart.x_label, color=_C["soft"], size=11)
    ax.set_title(chart.y_label, loc="left", color=_C["soft"], size=11, x=-46 / (style.width - 70))
    if len(chart.lines) > 1:
        figure.legend(
            loc="lower left", ncols=1 if style.narrow else 3, frameon=False, fontsize=11, labelcolor=_C["ink"], handlelength=2.6
        )
    return figure


def _bars(chart: Chart, style: Style) -> Figure:
    """Bars from the left, a group for each category, its value written at its end."""
    many = len(chart.lines)
    step = 15.0 * many + 14
    height = 30.0 + step * len(chart.categories) + 24 + (18 if many > 1 else 0)
    widest = max(map(len, chart.categories), default=0)
    left = min(6.4 * widest + 12, style.width * 0.45)
    figure, ax = _axes(style, height, left, 24 + (18 if many > 1 else 0))
    most = max((y for line in chart.lines for y in line.ys), default=0.0)
    for number, line in enumerate(chart.lines):
        places = [x * step + number * 15.0 for x in line.xs]
        colour = _C[_ROLES[number % 7]]
        ax.barh(places, line.ys, height=11, color=colour, label=line.label)
        for place, value in zip(places, line.ys, strict=True):
            ax.text(value + most * 0.01, place, digits(value), color=_C["ink"], size=11, va="center")
    ax.set_yticks(
        [at * step + (many - 1) * 7.5 for at in range(len(chart.categories))], [_cut(one, left) for one in chart.categories]
    )
    ax.tick_params(axis="y", labelcolor=_C["ink"])
    ax.set_ylim(step * len(chart.categories) - 7, -14)
    ax.set_xlim(0, most * 1.16 or 1.0)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.spines["left"].set_visible(True)
    ax.spines["left"].set_color(_C["rule"])
    ax.set_title(chart.y_label, loc="left", color=_C["soft"], size=11)
    if many > 1:
        figure.legend(
            loc="lower left",
            ncols=min(many, 1 if style.narrow else 3),
            frameon=False,
            fontsize=11,
            labelcolor=_C["ink"],
            handlelength=1.2,
        )
    return figure


def _cut(words: str, width: float) -> str:
    most = int(width / 6.2) - 1
    return words if len(words) <= most else words[: most - 1] + "…"


def _thousands(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:,.2g}")
        )
