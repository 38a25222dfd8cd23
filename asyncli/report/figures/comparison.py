"""Differences between two runs, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.analysis.compare import GROUPS, ROW_OF, Difference
from asyncli.report.comparison_report import amounts
from asyncli.report.document import typeset
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, drawn_alone, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Ends of the axis (%); most intervals fit, and arrows point at the others.
_ENDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WITHIN = 0.75


def _shares(one: Difference) -> tuple[float, float, float] | None:
    """The difference and its interval as shares of the first value (%); None where unknown."""
    if one.relative is None or one.ci95 is None or not one.values[0] or one.key.startswith("drift."):
        return None
    low, high = (100 * side / one.values[0] for side in one.ci95)
    return 100 * one.relative, low, high


@drawn_alone
def forest(rows: Sequence[Difference], *, style: Style = WIDE) -> Figure:
    """The relative difference of each row with its interval."""
    drawn = [(one, shares) for one in rows if (shares := _shares(one)) is not None]
    if not drawn:
        raise NothingToDraw("No number is known of both runs and above zero.")
    lines: list[tuple[Difference, tuple[float, float, float]] | str] = []
    for one, shares in drawn:
        group = GROUPS[ROW_OF[one.key].group]
        lines += [] if group in lines else [group]
        lines.append((one, shares))
    left, right = (164.0, 74.0) if style.narrow else (180.0, 130.0)
    figure, ((ax,),) = sheet(style, [22.0 * len(lines)], (left, right, 8.0, 48.0))
    reaches = sorted(max(abs(low), abs(high)) for _, (_, low, high) in drawn)
    enough = reaches[math.ceil(_WITHIN * len(reaches)) - 1]
    end = next((end for end in _ENDS if end >= enough), _ENDS[-1])
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x")
    ax.axvline(0, color=COLOURS["ink"], linewidth=1.0)
    ax.set_yticks(range(len(lines)), [line if isinstance(line, str) else ROW_OF[line[0].key].label for line in lines])
    for place, (line, name) in enumerate(zip(lines, ax.get_yticklabels(), strict=True)):
        if isinstance(line, str):
            name.set_style("italic")
            continue
        one, (value, low, high) = line
        real = one.verdict in ("higher", "lower")
        color = COLOURS["soft" if not real else "kernel" if one.verdict == "higher" else "server"]
        if low < end and high > -end:
            ax.plot([max(low, -end), min(high, end)], [place, place], color=color, linewidth=2.4 if real else 1.4)
        for beyond, at, marker in ((low < -end, -end, "<"), (high > end, end, ">")):
            if beyond:
                ax.plot([at], [place], marker=marker, markersize=6, color=color, clip_on=False)
        if -end <= value <= end:
            face = color if real else COLOURS["paper"]
            ax.plot([value], [place], marker="D" if real else "o", color=color, markerfacecolor=face, zorder=5, clip_on=False)
        said = f"{typeset(amounts(one).percent)} %" + (f"  {one.verdict}" if real and not style.narrow else "")
        weight = "bold" if real else "normal"
        ax.annotate(
            said, (1.0, place), xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points", va="center",
            color=color, size=11, weight=weight,
        )  # fmt: skip
        name.set(color=color if real else COLOURS["ink"], weight=weight)
    marks = [-end, -end / 2, 0.0, end / 2, end] if not style.narrow else [-end, 0.0, end]
    ax.set_xticks(marks, [typeset(f"{mark:+g} %") if mark else "0" for mark in marks])
    ax.set_xlim(-end, end)
    ax.set_ylim(len(lines) - 0.5, -0.5)
    second = rows[0].between[1]
    ax.set_xlabel(f"← {second} is lower · {second} is higher →")
    return figure


def forest_alt(rows: Sequence[Difference]) -> str:
    """The figure in a sentence."""
    shares = "; ".join(f"{ROW_OF[one.key].name} {amounts(one).percent} %" for one in rows if _shares(one))
    return f"Relative differences: {shares}."
