"""The relative differences of two runs with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from asyncli.analysis.compare import GROUPS, ROW_OF, Difference
from asyncli.report.differences import amounts, is_real
from asyncli.report.document import typeset
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Style,
    drawn_alone,
    sheet,
    write_at_right,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Ends of the axis (%), by the share of the intervals that must fit; arrows mark the others.
_ENDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WITHIN = 0.75


class _Share(NamedTuple):
    """A difference and its interval as shares of the first value (%)."""

    difference: Difference
    value: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        return max(abs(self.low), abs(self.high))

    @property
    def group(self) -> str:
        return GROUPS[ROW_OF[self.difference.key].group]

    @property
    def colour(self) -> str:
        if not is_real(self.difference):
            return COLOURS["soft"]
        if self.difference.verdict == "higher":
            return COLOURS["kernel"]
        return COLOURS["server"]


#: A line of the figure: the heading of a group, or a row.
_Line = str | _Share


@drawn_alone
def forest(rows: Sequence[Difference], *, style: Style = WIDE) -> Figure:
    """The relative difference of each row with its interval."""
    shares = _shares(rows)
    if not shares:
        raise NothingToDraw("No number is known of both runs and above zero.")
    lines = _grouped(shares)
    end = _axis_end(shares)
    left, right = (164.0, 74.0) if style.narrow else (180.0, 130.0)
    figure, ((ax,),) = sheet(style, [22.0 * len(lines)], (left, right, 8.0, 48.0))
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x")
    ax.axvline(0, color=COLOURS["ink"], linewidth=1.0)
    _write_names(ax, lines)
    for place, line in enumerate(lines):
        if isinstance(line, _Share):
            _draw_interval(ax, line, place, end)
            _draw_value(ax, line, place, end)
            _write_value(ax, line, place, style)
    marks = [-end, -end / 2, 0.0, end / 2, end]
    if style.narrow:
        marks = [-end, 0.0, end]
    ax.set_xticks(marks, [_mark(mark) for mark in marks])
    ax.set_xlim(-end, end)
    ax.set_ylim(len(lines) - 0.5, -0.5)
    second = rows[0].between[1]
    ax.set_xlabel(f"← {second} is lower · {second} is higher →")
    return figure


def _mark(percent: float) -> str:
    """The label of a mark on the axis."""
    if percent == 0:
        return "0"
    return typeset(f"{percent:+g} %")


def forest_alt(rows: Sequence[Difference]) -> str:
    """The figure in a sentence."""
    texts = []
    for share in _shares(rows):
        difference = share.difference
        texts.append(f"{ROW_OF[difference.key].name} {amounts(difference).relative}")
    return f"Relative differences: {'; '.join(texts)}."


def _shares(rows: Sequence[Difference]) -> list[_Share]:
    """Of the rows whose share and interval are known; growth has no share that says anything."""
    shares = []
    for row in rows:
        first = row.values[0]
        if row.relative is None or row.ci95 is None or not first or row.key.startswith("drift."):
            continue
        low, high = row.ci95
        shares.append(_Share(row, 100 * row.relative, 100 * low / first, 100 * high / first))
    return shares


def _grouped(shares: Sequence[_Share]) -> list[_Line]:
    """The shares, with the heading of its group before the first of each."""
    lines: list[_Line] = []
    for share in shares:
        if share.group not in lines:
            lines.append(share.group)
        lines.append(share)
    return lines


def _axis_end(shares: Sequence[_Share]) -> float:
    """The end of the axis (%), the same on both sides."""
    reaches = sorted(share.reach for share in shares)
    enough = reaches[math.ceil(_WITHIN * len(reaches)) - 1]
    return next((end for end in _ENDS if end >= enough), _ENDS[-1])


def _write_names(ax: Axes, lines: Sequence[_Line]) -> None:
    names = []
    for line in lines:
        if isinstance(line, str):
            names.append(line)
        else:
            names.append(ROW_OF[line.difference.key].label)
    ax.set_yticks(range(len(lines)), names)
    for line, label in zip(lines, ax.get_yticklabels(), strict=True):
        if isinstance(line, str):
            label.set(style="italic")
        elif is_real(line.difference):
            label.set(color=line.colour, weight="bold")
        else:
            label.set(color=COLOURS["ink"], weight="normal")


def _draw_interval(ax: Axes, share: _Share, place: int, end: float) -> None:
    """The interval as far as the axis goes, with an arrow where it goes on."""
    colour = share.colour
    if share.low < end and share.high > -end:
        inside = [max(share.low, -end), min(share.high, end)]
        width = 2.4 if is_real(share.difference) else 1.4
        ax.plot(inside, [place, place], color=colour, linewidth=width)
    if share.low < -end:
        ax.plot([-end], [place], marker="<", markersize=6, color=colour, clip_on=False)
    if share.high > end:
        ax.plot([end], [place], marker=">", markersize=6, color=colour, clip_on=False)


def _draw_value(ax: Axes, share: _Share, place: int, end: float) -> None:
    if not -end <= share.value <= end:
        return
    if is_real(share.difference):
        marker = "D"
        face = share.colour
    else:
        marker = "o"
        face = COLOURS["paper"]
    ax.plot(
        [share.value],
        [place],
        marker=marker,
        color=share.colour,
        markerfacecolor=face,
        zorder=5,
        clip_on=False,
    )


def _write_value(ax: Axes, share: _Share, place: int, style: Style) -> None:
    difference = share.difference
    text = typeset(amounts(difference).relative)
    if is_real(difference) and not style.narrow:
        text = f"{text}  {difference.verdict}"
    weight = "bold" if is_real(difference) else "normal"
    write_at_right(ax, place, text, share.colour, gap=10, weight=weight)
