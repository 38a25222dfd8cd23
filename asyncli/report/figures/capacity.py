"""The steps of a capacity search: what each asked for, what it came to, and where the answer lies between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncli.report.capacity_report import Capacity, Step, outcome_of
from asyncli.report.figures.drawing import WIDE, NothingToDraw, Sheet, Style, counts_at, drawing, round_marks
from asyncli.report.format import milliseconds
from asyncli.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR = {"held": "ours", "failed": "kernel", "ours": "violet", "stopped": "rest"}


def _by_count(found: Capacity) -> list[Step]:
    return sorted(found.steps, key=lambda one: one.asked)


def steps(found: Capacity, *, style: Style = WIDE) -> Figure:
    """A bar for each step, as long as it served at most; a hairline goes on to what it asked for."""
    rows = _by_count(found)
    if not rows:
        raise NothingToDraw("No step was over.")
    with drawing():
        return _steps(found, rows, style)


def _steps(found: Capacity, rows: list[Step], style: Style) -> Figure:
    narrow = style.narrow
    pitch, top, left, right = (40.0, 8.0, 8.0, 16.0) if narrow else (26.0, 8.0, 84.0, 190.0)
    height, width = pitch * len(rows), style.width - left - right
    sheet = Sheet(style, top + height + 34)
    most = float(rows[-1].asked)
    ax = sheet.axes(left, top, width, height)
    ax.set_xlim(0, most)
    ax.set_ylim(0, 1)
    ax.grid(visible=False)
    marks = round_marks(most, 3 if narrow else 5)
    ax.set_xticks(marks, counts_at(marks))
    ax.set_yticks([])

    def across(count: float) -> float:
        return left + width * count / most

    for place, one in enumerate(rows):
        y = top + pitch * place + (pitch * 0.7 if narrow else pitch / 2)
        colour = _COLOUR[one.outcome]
        sheet.line([across(min(one.served, one.asked)), across(one.asked)], [y, y], "rule", 0.8)
        sheet.bar(left, y - 5, width * min(one.served, one.asked) / most, 10, colour, hatched=one.outcome != "held")
        if found.bracket.held:
            at = across(found.bracket.held)
            sheet.line([at, at], [y - 8, y + 8], "ink", 1.4)
        said = f"{outcome_of(one)}, p99 {milliseconds(one.latency_p99_ms)}"
        asked = format_count(one.asked)
        if narrow:
            sheet.text(left, y - 14, asked, bold=True, size=11.5)
            sheet.text(style.width - 8, y - 14, said, colour if one.outcome != "held" else "soft", ha="right", size=11.5)
        else:
            sheet.text(left - 10, y, asked, ha="right")
            sheet.text(left + width + 12, y, said, colour if one.outcome != "held" else "soft", size=11.5)
    return sheet.figure


def steps_alt(found: Capacity) -> str:
    """What :func:`steps` shows, in a sentence."""
    said = "; ".join(f"{format_count(one.asked)} {outcome_of(one)}" for one in _by_count(found))
    return f"Connections asked for, and what came of it: {said}."
