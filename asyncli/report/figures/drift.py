"""Memory over the hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncli.analysis.drift import Drift, MetricName
from asyncli.report.figures.downsample import Buckets, broken, extremes
from asyncli.report.figures.drawing import (
    COLOURS,
    ROLES,
    WIDE,
    NothingToDraw,
    Strips,
    Style,
    about_zero,
    bytes_at,
    drawn_alone,
    plot_line,
    plot_points,
    time_axis,
)
from asyncli.report.figures.panels import Role
from asyncli.report.format import drift_words
from asyncli.samples import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DRIFT_ROLES: dict[MetricName, Role] = {
    "host_total": "total",
    "server_user": "server",
    "kernel": "kernel",
    "generator_user": "ours",
}


@drawn_alone
def drift_lines(
    drifts: Mapping[MetricName, Drift],
    medians: Mapping[MetricName, Series],
    *,
    server: str = "server",
    host: str = "this host",
    style: Style = WIDE,
) -> Figure:
    """Each metric's one-minute medians over the hold, above their first, with the Theil-Sen line: a strip for each."""
    labels: dict[MetricName, str] = {
        "host_total": f"{host} in all",
        "server_user": server,
        "kernel": "kernel",
        "generator_user": "asyncli",
    }
    drawn = [name for name in labels if name in drifts and len(medians.get(name, Series())) > 1]
    if not drawn:
        raise NothingToDraw("There is no drift to be drawn: the hold has fewer than two medians of memory.")
    strips = Strips(style, len(drawn), height=58.0, gap=32.0, top=26.0, below=4.0, left=62.0)
    start = min(medians[name].t_s[0] for name in drawn)
    end = max(medians[name].t_s[-1] for name in drawn)
    for place, name in enumerate(drawn):
        one, found, role = drifts[name], medians[name], DRIFT_ROLES[name]
        ax = strips.axes(place, labels[name], drift_words(one), ROLES[role][0], "ink")
        per_s = (one.bytes_per_hour or 0.0) / 3600
        base = statistics.median(value - per_s * (t_s - start) for t_s, value in zip(found.t_s, found.values, strict=True))
        above = [value - base for value in found.values]
        into = Buckets(start, max(1.0, (end - start) / 400), 400)
        kept_t, kept = extremes(found.t_s, above, into)
        line_t = [start, end]
        line = [per_s * (t_s - start) for t_s in line_t]
        plot_line(ax, role, *broken(kept_t, kept, max(150.0, into.gap_s)), width=1.0)
        if len(kept) <= 120:
            plot_points(ax, role, kept_t, kept, 3.2)
        if one.bytes_per_hour is not None:
            ax.plot(line_t, line, color=COLOURS["ink"], linewidth=1.4, zorder=5)
        about_zero(ax, min(*above, *line), max(*above, *line), bytes_at)
        time_axis(ax, start, end, strips.width)
    return strips.sheet.figure
