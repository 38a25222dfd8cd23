"""The steps of a search for the capacity of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.model.units import format_count
from asyncli.report.capacity_step import Step, short_outcome
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Style,
    drawn_alone,
    sheet,
    ticks,
    write_at_right,
)
from asyncli.report.format import milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR = {"held": "ours", "failed": "kernel", "ours": "violet", "stopped": "rest"}


@drawn_alone
def capacity_steps(steps: Sequence[Step], answer: int, *, style: Style = WIDE) -> Figure:
    """A bar per step up to the most that it served, and a thin line up to the count that was tried.

    ``answer``: the largest count that was held, or 0.
    """
    rows = _by_count(steps)
    if not rows:
        raise NothingToDraw("No step has finished.")
    margins = (60.0, 130.0 if style.narrow else 190.0, 8.0, 26.0)
    figure, ((ax,),) = sheet(style, [24.0 * len(rows)], margins)
    for place, step in enumerate(rows):
        _draw_bar(ax, step, place)
        if answer:
            ends = [place - 0.34, place + 0.34]
            ax.plot([answer, answer], ends, color=COLOURS["ink"], linewidth=1.4, clip_on=False)
        _write_outcome(ax, step, place, style)
    ax.grid(visible=False)
    ax.set_yticks(range(len(rows)), [format_count(step.asked) for step in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, rows[-1].asked)
    ticks(ax.xaxis, "", 4)
    return figure


def capacity_steps_alt(steps: Sequence[Step]) -> str:
    """The figure in a sentence."""
    texts = [f"{format_count(step.asked)} {short_outcome(step)}" for step in _by_count(steps)]
    return f"Steps: {'; '.join(texts)}."


def _by_count(steps: Sequence[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: step.asked)


def _draw_bar(ax: Axes, step: Step, place: int) -> None:
    colour = COLOURS[_COLOUR[step.outcome]]
    served = min(step.served, step.asked)
    fill = COLOURS["paper"]
    hatch = "////"
    if step.outcome == "held":
        fill = colour
        hatch = ""
    ax.plot([served, step.asked], [place, place], color=COLOURS["rule"], linewidth=0.8)
    ax.barh(place, served, 0.42, color=fill, edgecolor=colour, hatch=hatch)


def _write_outcome(ax: Axes, step: Step, place: int, style: Style) -> None:
    text = short_outcome(step)
    if not style.narrow:
        text = f"{text}, p99 {milliseconds(step.latency_p99_ms)}"
    colour = "soft" if step.outcome == "held" else _COLOUR[step.outcome]
    write_at_right(ax, place, text, COLOURS[colour], gap=12)
