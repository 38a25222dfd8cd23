"""Memory over the hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from asyncli.analysis.drift import Drift, MetricName
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Style,
    drawn_alone,
    plot_line,
    plot_points,
    sheet,
    ticks,
    time_axis,
)
from asyncli.report.figures.panels import MOST_BUCKETS, ROLE_OF, broken, extremes
from asyncli.samples import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Medians are of a minute at most: a longer silence is a gap.
_GAP_S = 150.0


@drawn_alone
def drift_lines(
    drifts: Mapping[MetricName, Drift], medians: Mapping[MetricName, Series], names: Mapping[MetricName, str], style: Style = WIDE
) -> Figure:
    """A panel per name: medians over the hold, with the Theil-Sen line."""
    drawn = [name for name in names if name in drifts and len(medians.get(name, Series())) > 1]
    if not drawn:
        raise NothingToDraw("There is no drift to be drawn: the hold has fewer than two medians of memory.")
    left, right = (62.0, 22.0) if style.narrow else (72.0, 22.0)
    figure, rows = sheet(style, [58.0] * len(drawn), (left, right, 26.0, 30.0), gap=36.0, common_x=True)
    start = min(medians[name].t_s[0] for name in drawn)
    end = max(medians[name].t_s[-1] for name in drawn)
    for name, ax in zip(drawn, rows[:, 0], strict=True):
        one, found, role = drifts[name], medians[name], ROLE_OF[name]
        per_s = (one.bytes_per_hour or 0.0) / 3600
        base = statistics.median(value - per_s * (t_s - start) for t_s, value in found.rows())
        kept_t, kept = extremes(Series(found.t_s, [value - base for value in found.values]), (end - start) / MOST_BUCKETS or 1.0)
        plot_line(ax, role, *broken(kept_t, kept, max(_GAP_S, (end - start) / 100)))
        if len(kept) <= 120:
            plot_points(ax, role, kept_t.tolist(), kept.tolist(), 3.2)
        if one.bytes_per_hour is not None:
            ax.plot([start, end], [0.0, per_s * (end - start)], color=COLOURS["ink"], linewidth=1.4, zorder=5)
        ax.set_title(names[name])
        reach = max(np.abs(kept).max(), 1.0)
        ax.set_ylim(min(-0.2 * reach, *ax.get_ylim()), max(0.2 * reach, *ax.get_ylim()))
        ticks(ax.yaxis, "B", 3)
    time_axis(rows[-1, 0], start, end, style.width - left - right)
    return figure
