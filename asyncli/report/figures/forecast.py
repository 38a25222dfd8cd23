"""How many connections each limit allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from asyncli.analysis.forecast import Ceiling, Forecast
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Sheet,
    Style,
    counts_at,
    drawn_alone,
    round_marks,
    set_marks,
    wide,
)
from asyncli.report.format import short_count, three

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_CEILING = {"memory": "memory, both ends", "server_memory": "memory, server alone"}


def drawn_ceilings(forecast: Forecast) -> list[Ceiling]:
    """The limits that are known, and what memory allows where the clients are elsewhere, the lowest first."""
    every = {one.name: one for one in (*forecast.ceilings, forecast.server_memory) if one is not None and one.connections}
    return sorted(every.values(), key=lambda one: one.connections or 0.0)


@drawn_alone
def forecast_ceilings(forecast: Forecast, *, asked: int, held: int = 0, style: Style = WIDE) -> Figure:
    """How many connections each limit allows, lowest first, with intervals; a line at what this run held."""
    known = drawn_ceilings(forecast)
    if not known:
        raise NothingToDraw("No limit is known that would be reached first.")
    here = held or asked
    narrow = style.narrow
    left, right = (4.0, 10.0) if narrow else (172.0, 156.0)
    step, top = (44.0, 30.0) if narrow else (32.0, 30.0)
    sheet = Sheet(style, top + step * len(known) + 40)
    width, height = style.width - left - right, step * len(known) + 4
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=COLOURS["grid"], linewidth=0.8)
    values = [float(here), *(one.connections or 0.0 for one in known)]
    values += [side for one in known if one.ci95 is not None for side in one.ci95 if side is not None and side > 0]
    low, high = min(value for value in values if value > 0), max(values)
    # Limits differ by decades: on an even axis the lowest, which alone matters, would be a speck at the left.
    if high / low > 12:
        ax.set_xscale("log")
        low, high = low / 1.6, high * 1.6
        ax.set_xlim(low, high)
        marks = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        if len(marks) < 3 and not narrow:
            marks = sorted({*marks, *(mark * k for mark in [marks[0] / 10, *marks] for k in (2, 5) if low <= mark * k <= high)})
    else:
        ax.set_xlim(0, high * 1.08)
        marks = round_marks(high, 3 if narrow else 5)
    set_marks(ax, marks, counts_at(marks), x=True)
    ax.set_ylim(len(known) - 0.5, -0.5)
    set_marks(ax, [], [])
    for place in range(len(known)):
        # On a phone the names stand over the marks: the line is broken there.
        ax.plot(
            [here, here],
            [place - (0.05 if narrow else 0.5), place + 0.5],
            color=COLOURS["soft"],
            linewidth=1.1,
            linestyle=(0, (1.5, 1.8)),
        )
    share = (math.log(here / low) / math.log(high / low)) if ax.get_xscale() == "log" else here / (high * 1.08)
    words = f"this run held {short_count(here)}"
    half = wide(words, 11) / 2
    sheet.text(min(max(left + width * share, left + half), style.width - half - 2), 14, words, "soft", ha="center", size=11)
    for place, one in enumerate(known):
        first = one.name == forecast.first
        color = "kernel" if first else "ink"
        y = place + (0.22 if narrow else 0.0)
        if one.ci95 is not None:
            below, above = one.ci95
            ax.plot(
                [below, ax.get_xlim()[1] if above is None else above],
                [y, y],
                color=COLOURS[color],
                linewidth=2.4,
                solid_capstyle="butt",
            )
            if above is None:
                ax.plot([ax.get_xlim()[1]], [y], marker=">", markersize=6, color=COLOURS[color], clip_on=False)
        ax.plot([one.connections or 0.0], [y], marker="D" if first else "o", markersize=7, color=COLOURS[color], zorder=5)
        at = top + height * (place + 0.5) / len(known)
        name, number = _CEILING.get(one.name, one.name.replace("_", " ")), short_count(three(one.connections or 0.0))
        if narrow:
            sheet.text(left, at - 12, name + (" (first)" if first else ""), color, bold=first, size=11.5)
            sheet.text(style.width - right, at - 12, number, color, ha="right", size=11.5, bold=first)
        else:
            sheet.text(left - 12, at, name, color, ha="right", bold=first)
            sheet.text(left + width + 12, at, number + ("  reached first" if first else ""), color, bold=first)
    return sheet.figure
