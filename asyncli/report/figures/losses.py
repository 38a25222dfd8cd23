"""How old, how long idle and after how many requests connections ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from asyncli.core.histogram import Histogram
from asyncli.records import Deaths
from asyncli.report.figures.downsample import rebinned
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Sheet,
    Style,
    cut,
    drawn_alone,
    set_marks,
)
from asyncli.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ASPECTS: tuple[tuple[str, str, Callable[[Deaths], Histogram]], ...] = (
    ("age", "s", lambda dead: dead.age_s),
    ("idle for", "s", lambda dead: dead.idle_s),
    ("requests", "", lambda dead: dead.requests),
)
MOST_CAUSES = 6


@drawn_alone
def deaths_by(dead: Mapping[str, Deaths], *, style: Style = WIDE) -> Figure:
    """How old, how long idle and after how many requests connections ended: a row for each cause, most frequent first."""
    causes = sorted((cause for cause, one in dead.items() if one.count), key=lambda cause: (-dead[cause].count, cause))
    if not causes:
        raise NothingToDraw("No established connection was lost.")
    causes = causes[:MOST_CAUSES]
    narrow = style.narrow
    columns = 1 if narrow else 3
    height, under, head = 54.0, 36.0, 24.0
    row = head + (height + under) * (3 if narrow else 1) + 8
    sheet = Sheet(style, row * len(causes))
    pitch = (style.width - 4) / columns
    for place, cause in enumerate(causes):
        top = place * row
        sheet.text(2, top + 10, f"{format_count(dead[cause].count)} {cut(cause, 30)}", bold=True)
        for which, (name, unit, of) in enumerate(_ASPECTS):
            left = 2.0 if narrow else 2.0 + which * pitch
            at = top + head + (which * (height + under) if narrow else 0)
            _bars(sheet, of(dead[cause]), left, at, pitch - (8 if narrow else 26), height, name, unit)
    return sheet.figure


def _bars(
    sheet: Sheet, histogram: Histogram, left: float, top: float, width: float, height: float, name: str, unit: str
) -> None:
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    set_marks(ax, [], [])
    edges, counts = rebinned(histogram, 40)
    if not counts:
        ax.set_xlim(0, 1)
        set_marks(ax, [], [], x=True)
        sheet.text(left, top + height + 27, f"{name}: not known", "soft", size=11)
        return
    step = edges[1] - edges[0]
    ax.bar(edges[:-1], counts, width=step * 0.92, align="edge", color=COLOURS["server"], linewidth=0)
    low, high = edges[0], edges[-1]
    # A bar or two would fill the panel, and look like a wide spread.
    if len(counts) < 10:
        pad = (12 - len(counts)) / 2 * step
        low, high = low - pad, high + pad
    ax.set_xlim(low, high)
    ax.set_ylim(0, max(counts) * 1.06)
    first, middle, last = histogram.quantile(0.0), histogram.quantile(0.5), histogram.quantile(1.0)
    marks = _between(low, high, max(2, int(width / 80)))
    show = _short_duration if unit == "s" else format_count
    # A mark at the very edge would stand half beside the sheet.
    marks = [mark for mark in marks if mark >= 0 and 0.07 <= (mark - low) / (high - low) <= 0.93]
    set_marks(ax, marks, [show(mark) for mark in marks], x=True)
    if first is None or middle is None or last is None:
        return
    span = show(middle) if first == last else f"{show(first)} to {show(last)}, median {show(middle)}"
    sheet.text(left, top + height + 27, f"{name} {span}", "soft", size=11)


def _short_duration(seconds: float) -> str:
    """``"75 s"``, ``"12.5 min"``, ``"2.25 h"``."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _between(low: float, high: float, steps: int) -> list[float]:
    """Round marks within the limits."""
    raw = max((high - low) / steps, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= raw * 0.999)
    step = max(step, 1.0)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
