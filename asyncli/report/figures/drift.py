"""Memory over the hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.series import Series
from asyncli.report.figures.downsample import Buckets, broken, extremes
from asyncli.report.figures.drawing import (
    COLOURS,
    ROLES,
    WIDE,
    NothingToDraw,
    Sheet,
    Style,
    about_zero,
    bytes_at,
    cut,
    drawn_alone,
    plot_line,
    plot_points,
    time_axis,
)
from asyncli.report.figures.panels import Role
from asyncli.report.format import drift_words

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
    left, right = (62.0, 8.0) if style.narrow else (72.0, 12.0)
    height, gap, top = 58.0, 32.0, 26.0
    sheet = Sheet(style, top + len(drawn) * (height + gap) + 4)
    width = style.width - left - right
    start = min(medians[name].t_s[0] for name in drawn)
    end = max(medians[name].t_s[-1] for name in drawn)
    for place, name in enumerate(drawn):
        one, found, role = drifts[name], medians[name], DRIFT_ROLES[name]
        color = ROLES[role][0]
        at = top + place * (height + gap)
        ax = sheet.axes(left, at, width, height, ticks_below=place == len(drawn) - 1)
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
        time_axis(ax, start, end, width)
        sheet.text(left, at - 12, cut(labels[name], 26), color, bold=True, size=11.5)
        sheet.text(left + width, at - 12, drift_words(one), ha="right", size=11)
    return sheet.figure
