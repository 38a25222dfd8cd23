"""The steps of a capacity search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncli.report.capacity_report import Capacity, Step, outcome_of
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, drawn_alone, sheet, ticks
from asyncli.report.format import milliseconds
from asyncli.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR = {"held": "ours", "failed": "kernel", "ours": "violet", "stopped": "rest"}


def _by_count(found: Capacity) -> list[Step]:
    return sorted(found.steps, key=lambda one: one.asked)


@drawn_alone
def steps(found: Capacity, *, style: Style = WIDE) -> Figure:
    """A bar per step, to the most that it served; a thin line to what it asked for."""
    rows = _by_count(found)
    if not rows:
        raise NothingToDraw("No step was over.")
    figure, ((ax,),) = sheet(style, [24.0 * len(rows)], (60.0, 130.0 if style.narrow else 190.0, 8.0, 26.0))
    for place, one in enumerate(rows):
        colour, served, held = COLOURS[_COLOUR[one.outcome]], min(one.served, one.asked), one.outcome == "held"
        ax.plot([served, one.asked], [place, place], color=COLOURS["rule"], linewidth=0.8)
        ax.barh(place, served, 0.42, color=colour if held else COLOURS["paper"], edgecolor=colour, hatch="" if held else "////")
        if found.bracket.held:
            ax.plot([found.bracket.held] * 2, [place - 0.34, place + 0.34], color=COLOURS["ink"], linewidth=1.4, clip_on=False)
        said = outcome_of(one) + ("" if style.narrow else f", p99 {milliseconds(one.latency_p99_ms)}")
        ax.annotate(
            said, (1.0, place), xycoords=("axes fraction", "data"), xytext=(12, 0), textcoords="offset points", va="center",
            color=COLOURS["soft"] if held else colour, size=11,
        )  # fmt: skip
    ax.grid(visible=False)
    ax.set_yticks(range(len(rows)), [format_count(one.asked) for one in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, rows[-1].asked)
    ticks(ax.xaxis, "", 4)
    return figure


def steps_alt(found: Capacity) -> str:
    """The figure in a sentence."""
    said = "; ".join(f"{format_count(one.asked)} {outcome_of(one)}" for one in _by_count(found))
    return f"Connections asked for, and what came of it: {said}."
