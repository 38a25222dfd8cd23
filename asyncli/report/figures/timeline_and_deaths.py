"""A run on one time axis, panel above panel; and ages, idle times and request numbers of lost connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from asyncli.core.histogram import Histogram
from asyncli.model.records import Deaths
from asyncli.model.units import format_count, format_duration
from asyncli.report.figures import drawing
from asyncli.report.figures.timeline_data import Panel, Timeline, histogram_bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@drawing.drawn_alone
def timeline_panels(timeline: Timeline, *, style: drawing.Style = drawing.WIDE) -> Figure:
    """All panels on one time axis."""
    if not timeline.panels:
        raise drawing.NothingToDraw("Nothing was recorded over time: the run ended before its first second.")
    heights = [30.0 if one.bars else 88.0 for one in timeline.panels]
    left, right, gap, top = (60.0, 22.0, 62.0, 76.0) if style.narrow else (64.0, 130.0, 34.0, 44.0)
    figure, rows = drawing.sheet(style, heights, (left, right, top, 30.0), gap=gap, common_x=True)
    width = style.width - left - right
    for panel, ax in zip(timeline.panels, rows[:, 0], strict=True):
        drawing.shade_phases(ax, timeline.phases)
        _bars(ax, panel, timeline, width) if panel.bars else _lines(ax, panel)
        ax.set_title(drawing.cut(panel.title, 46), pad=6 + (0 if panel.bars else drawing.legend(ax, style)))
    drawing.time_axis(rows[-1, 0], 0.0, timeline.end_s, width)
    at = 1 + (54.0 if style.narrow else 24.0) / heights[0]
    for one in timeline.phases:
        # A short phase has no room for its name.
        if (one.end_s - one.start_s) / max(timeline.end_s, 1.0) * width > 7.0 * len(one.name):
            rows[0, 0].text(
                (one.start_s + one.end_s) / 2, at, one.name, transform=rows[0, 0].get_xaxis_transform(), ha="center", size=11,
                color=drawing.COLOURS["soft"],
            )  # fmt: skip
    return figure


def _lines(ax: Axes, panel: Panel) -> None:
    # Solid lines first: broken ones stay visible on them.
    for line in sorted(panel.lines, key=lambda line: drawing.ROLES[line.role][2] != drawing.SOLID):
        drawing.plot_line(ax, line.role, line.t_s, line.values, drawing.cut(line.label, 15))
    known = np.concatenate([line.values for line in panel.lines])
    low, high = np.nanmin(known), np.nanmax(known)
    if panel.unit != "s":
        drawing.ticks(ax.yaxis, panel.unit, 4)
        ax.set_ylim(min(0.0, low) * 1.08, max(high, 1.0) * 1.04)
        return
    from matplotlib.ticker import EngFormatter, LogLocator

    ax.set_yscale("log")
    ax.set_ylim(low / 1.25, max(high * 1.25, low * 12))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    ax.minorticks_off()


def _bars(ax: Axes, panel: Panel, timeline: Timeline, width: float) -> None:
    line = panel.lines[0]
    # At least a pixel and a half wide.
    thick = max(timeline.width_s, timeline.end_s / width * 1.5)
    ax.bar(line.t_s, line.values, width=thick, color=drawing.COLOURS["kernel" if panel.key == "lost" else "violet"], linewidth=0)
    drawing.ticks(ax.yaxis, "", 2)


_ASPECTS: tuple[tuple[str, Callable[[Deaths], Histogram], Callable[[float], str]], ...] = (
    ("age", lambda dead: dead.age_s, format_duration),
    ("idle for", lambda dead: dead.idle_s, format_duration),
    ("requests", lambda dead: dead.requests, format_count),
)
MOST_CAUSES = 6


@drawing.drawn_alone
def deaths_by(dead: Mapping[str, Deaths], *, style: drawing.Style = drawing.WIDE) -> Figure:
    """A row of histograms per cause, most frequent first."""
    causes = sorted((cause for cause, one in dead.items() if one.count), key=lambda cause: (-dead[cause].count, cause))
    if not causes:
        raise drawing.NothingToDraw("No established connection was lost.")
    causes = causes[:MOST_CAUSES]
    columns = 1 if style.narrow else len(_ASPECTS)
    figure, grid = drawing.sheet(
        style, [50.0] * (len(causes) * len(_ASPECTS) // columns), (4.0, 24.0, 26.0, 26.0), gap=56.0, columns=columns
    )
    panels = grid.reshape(len(causes), len(_ASPECTS))
    for cause, row in zip(causes, panels, strict=True):
        row[0].set_title(f"{format_count(dead[cause].count)} {drawing.cut(cause, 30)}")
        for (name, of, words), ax in zip(_ASPECTS, row, strict=True):
            _spread(ax, of(dead[cause]), name, words)
    return figure


def _spread(ax: Axes, histogram: Histogram, name: str, words: Callable[[float], str]) -> None:
    ax.grid(visible=False)
    ax.set_yticks([])
    ax.set_xticks([])
    first, last = histogram.quantiles((0.0, 1.0))
    if first is None or last is None:
        ax.set_xlabel(f"{name}: unknown", loc="left")
        return
    counts, edges = histogram_bins(histogram, 40)
    ax.stairs(counts, edges, fill=True, color=drawing.COLOURS["server"])
    # A few bars would fill the panel and look like a wide spread.
    pad = max(0, 12 - len(counts)) / 2 * (edges[1] - edges[0])
    ax.set_xlim(edges[0] - pad, edges[-1] + pad)
    span = words(first) if first == last else f"{words(first)} to {words(last)}"
    ax.set_xlabel(f"{name} {span}", loc="left")
