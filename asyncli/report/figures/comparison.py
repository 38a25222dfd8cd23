"""How much one run differs from another, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncli.analysis.compare import GROUPS, ROWS, Difference
from asyncli.report.comparison_report import amounts
from asyncli.report.document import typeset
from asyncli.report.figures.drawing import COLOURS, PALETTE, WIDE, NothingToDraw, Sheet, Style, drawing, set_marks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ROW = {row.key: row for row in ROWS}
# Where the axis of relative differences may end (%); it ends where most intervals do, and arrows point at the rest.
_ENDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WITHIN = 0.75


def _drawable(one: Difference) -> bool:
    return one.relative is not None and one.ci95 is not None and not one.key.startswith("drift.")


def forest(rows: Sequence[Difference], *, style: Style = WIDE) -> Figure:
    """Each row's relative difference with its interval, about a line at no difference."""
    with drawing():
        return _forest([one for one in rows if _drawable(one)], style)


def _forest(rows: Sequence[Difference], style: Style) -> Figure:
    if not rows:
        raise NothingToDraw("No number is known of both runs and above zero.")
    narrow = style.narrow
    groups = list(dict.fromkeys(_ROW[one.key].group for one in rows))
    step, head, top = (38.0, 28.0, 6.0) if narrow else (22.0, 26.0, 6.0)
    left, right = (26.0, 26.0) if narrow else (176.0, 140.0)
    height = step * len(rows) + head * len(groups)
    sheet = Sheet(style, top + height + 44)
    width = style.width - left - right
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=COLOURS["grid"], linewidth=0.8)
    end = _end(rows)
    ax.set_xlim(-end, end)
    ax.set_ylim(height, 0)
    marks = [-end, -end / 2, 0.0, end / 2, end]
    set_marks(ax, marks, [typeset(f"{mark:+g} %") if mark else "0" for mark in marks], x=True)
    set_marks(ax, [], [])
    ax.axvline(0, color=COLOURS["ink"], linewidth=1.0)
    second = rows[0].between[1]
    y, group = 0.0, None
    for one in rows:
        row = _ROW[one.key]
        if row.group != group:
            group = row.group
            sheet.text(4.0, top + y + head / 2, GROUPS[group], "soft", size=11)
            y += head
        middle = y + (step * 0.66 if narrow else step / 2)
        y += step
        real = one.verdict in ("higher", "lower")
        color = "soft" if not real else "kernel" if one.verdict == "higher" else "server"
        _whisker(ax, one, middle, end, COLOURS[color], real)
        share = typeset(f"{amounts(one).percent} %")
        if narrow:
            at = top + middle - step * 0.42
            sheet.text(14.0, at, row.label, color if real else "ink", size=11.5, bold=real)
            sheet.text(style.width - 4.0, at, share, color if real else "ink", ha="right", size=11.5, bold=real)
        else:
            sheet.text(left - 12, top + middle, row.label, color if real else "ink", ha="right", bold=real)
            said = f"{share}  {one.verdict}" if real else f"{share}  ?" if one.verdict == "cannot_say" else share
            sheet.text(left + width + 12, top + middle, said, color if real else "ink", bold=real)
    foot = top + height + 34
    sheet.text(left + 2, foot, f"{second} is lower", "soft", size=11)
    sheet.text(left + width - 2, foot, f"{second} is higher", "soft", ha="right", size=11)
    return sheet.figure


def _whisker(ax: Any, one: Difference, y: float, end: float, color: str, real: bool) -> None:
    """One row's interval and mark; beyond the axis, arrows."""
    assert one.ci95 is not None
    assert one.values[0] is not None
    assert one.relative is not None
    low, high = (100 * side / one.values[0] for side in one.ci95)
    value = 100 * one.relative
    if low < end and high > -end:
        ax.plot([max(low, -end), min(high, end)], [y, y], color=color, linewidth=2.4 if real else 1.4, solid_capstyle="butt")
    for beyond, at, marker in ((low < -end, -end, "<"), (high > end, end, ">")):
        if beyond:
            ax.plot([at], [y], marker=marker, markersize=6, color=color, clip_on=False)
    if -end <= value <= end:
        face = color if real else PALETTE["paper"][0]
        shape = {"marker": "D" if real else "o", "markersize": 6.5, "markerfacecolor": face}
        ax.plot([value], [y], color=color, zorder=5, clip_on=False, **shape)


def _end(rows: Sequence[Difference]) -> float:
    """Where the axis ends (%): the nearest round number within which three quarters of the intervals lie."""
    reaches = sorted(100 * max(map(abs, one.ci95)) / one.values[0] for one in rows if one.ci95 is not None and one.values[0])
    enough = reaches[min(len(reaches) - 1, math.ceil(_WITHIN * len(reaches)) - 1)]
    return next((end for end in _ENDS if end >= enough), _ENDS[-1])


def forest_alt(rows: Sequence[Difference]) -> str:
    """What :func:`forest` shows, in a sentence."""
    shares = "; ".join(f"{_ROW[one.key].name} {amounts(one).percent} %" for one in rows if _drawable(one))
    return f"Relative differences: {shares}."
