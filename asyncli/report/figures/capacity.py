"""The steps of a capacity search: what each asked for, what it came to, and where the answer lies between them."""

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
    """A bar for each step, as long as it served at most; a hairline goes on to what it asked for."""
    rows = _by_count(found)
    if not rows:
        raise NothingToDraw("No step was over.")
    left, right = (70.0, 146.0) if style.narrow else (84.0, 190.0)
    figure, ((ax,),) = sheet(style, [26.0 * len(rows)], (left, right, 8.0, 30.0))
    ax.grid(visible=False)
    if found.bracket.held:
        ax.axvline(found.bracket.held, color=COLOURS["ink"], linewidth=1.0)
    for place, one in enumerate(rows):
        held, colour = one.outcome == "held", COLOURS[_COLOUR[one.outcome]]
        ax.plot([0, one.asked], [place, place], color=COLOURS["rule"], linewidth=0.8)
        bar = {"facecolor": colour} if held else {"facecolor": COLOURS["paper"], "hatch": "////"}
        ax.barh(place, min(one.served, one.asked), height=0.4, edgecolor=colour, linewidth=0.8, **bar)
        p99 = "" if style.narrow else f", p99 {milliseconds(one.latency_p99_ms)}"
        ax.annotate(
            f"{outcome_of(one)}{p99}", (1.0, place), xycoords=("axes fraction", "data"), xytext=(10, 0),
            textcoords="offset points", va="center", size=11, color=COLOURS["soft"] if held else colour,
        )  # fmt: skip
    ax.set_yticks(range(len(rows)), [format_count(one.asked) for one in rows])
    ticks(ax.xaxis, "", 3 if style.narrow else 6)
    ax.set_xlim(0, rows[-1].asked)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    return figure


def steps_alt(found: Capacity) -> str:
    """What :func:`steps` shows, in a sentence."""
    said = "; ".join(f"{format_count(one.asked)} {outcome_of(one)}" for one in _by_count(found))
    return f"Connections asked for, and what came of it: {said}."
