"""Memory: the parts of a connection's cost, the lines through memory over connections, and memory
over the hold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from asyncli.analysis.cost_parts import Costs, is_measured
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.slope import WIDE_COST, Cost, Fit, is_wide, unmeasured
from asyncli.model.samples import Series
from asyncli.report.figures.drawing import (
    COLOURS,
    ROLES,
    WIDE,
    NothingToDraw,
    Style,
    cut,
    drawn_alone,
    each,
    each_with_error,
    legend,
    plot_line,
    plot_points,
    sheet,
    ticks,
    time_axis,
)
from asyncli.report.figures.timeline_data import MOST_BUCKETS, ROLE_OF, Role, broken, extremes
from asyncli.report.format import memory_labels, with_streams

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The axis may be this many times as high as its points, to show wide intervals.
_HIGHEST = 2.0
_MOST_RAW = 240


class Slope(msgspec.Struct):
    """A line above its level without connections; both ends of a connection together where both
    are on this host.
    """

    label: str
    role: Role
    fit: Fit
    times: int
    hidden: bool

    @property
    def rise(self) -> float:
        """Of the line through the points; the cost may reach further than these show."""
        return self.times * self.fit.line.slope

    @property
    def text(self) -> str:
        """The slope as in the table of costs: ``"527 B ± 3"``, ``"hidden"``."""
        if self.hidden:
            return unmeasured(*self.fit.cost.ci95)
        return each_with_error(self.fit.cost, self.times)

    def above(self, values: Sequence[float]) -> list[float]:
        """The values above the line's level without connections."""
        return [self.times * (value - self.fit.line.intercept) for value in values]

    @property
    def points(self) -> list[float]:
        """What the line is fitted to, above its level without connections."""
        return self.above(self.fit.bytes)

    @property
    def excluded_baseline(self) -> list[float]:
        """The baseline above that level, if the fit leaves it out."""
        if self.fit.apart is None:
            return []
        return self.above([self.fit.apart])


def slopes(costs: Costs, *, server: str, host: str = "this host") -> list[Slope]:
    """The fits to draw, the whole host first."""
    fits = costs.fits
    drawn = []
    for name, label in memory_labels(server, host, _of_kernel(costs)).items():
        if name not in fits:
            continue
        fit = fits[name]
        # The band of a wide host_total would cover all others.
        if name == "host_total" and fit.cost.ci95[0] <= 0 and len(fits) > 1:
            continue
        times = costs.ends if name == "kernel" else 1
        hidden = not is_measured(costs, name)
        drawn.append(Slope(label, ROLE_OF[name], fit, times, hidden))
    return drawn


@drawn_alone
def cost_lines(drawn: Sequence[Slope], *, style: Style = WIDE) -> Figure:
    """Memory over connections held, above each line's level without them: points, line, 95 %
    interval, samples. Where that is hidden, points and samples alone.
    """
    if not drawn:
        raise NothingToDraw(
            "No line could be fitted: there are too few points of memory over connections."
        )
    margins = (50.0, 18.0, 76.0, 44.0) if style.narrow else (64.0, 186.0, 12.0, 44.0)
    height = 230.0 if style.narrow else 320.0
    figure, ((ax,),) = sheet(style, [height], margins)
    most_n = max(max(slope.fit.n) for slope in drawn) or 1.0
    for slope in drawn:
        _draw_slope(ax, slope, most_n)
    low, high = _limits_of_cost(drawn, most_n)
    ax.set_xlim(0, most_n)
    ax.set_ylim(low * 1.08, high * 1.04)
    ticks(ax.xaxis, "", 3 if style.narrow else 6)
    ticks(ax.yaxis, "B", 5)
    legend(ax, style, 2)
    ax.set_xlabel("connections held")
    return figure


def _draw_slope(ax: Axes, slope: Slope, most_n: float) -> None:
    """Its interval as a band and its line, unless they are hidden; its samples and points."""
    fit = slope.fit
    colour_name, thick, dash, _ = ROLES[slope.role]
    colour = COLOURS[colour_name]
    label = f"{cut(slope.label, 24)}\n{slope.text}"
    if not slope.hidden:
        low, high = ([0.0, slope.times * end * most_n] for end in fit.cost.ci95)
        ax.fill_between([0, most_n], low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)
        ends = [0, slope.rise * most_n]
        ax.plot(
            [0, most_n], ends, color=colour, linewidth=thick, linestyle=dash, label=label, zorder=3
        )
    some = slice(None, None, max(1, len(fit.seconds_n) // _MOST_RAW))
    ax.plot(
        fit.seconds_n[some],
        slope.above(fit.seconds_bytes[some]),
        linestyle="none",
        marker="o",
        markersize=2.2,
        markerfacecolor=colour,
        markeredgewidth=0,
        alpha=0.35,
        zorder=2,
    )
    plot_points(ax, slope.role, fit.n, slope.points, label=label if slope.hidden else "")
    if fit.apart is not None:
        ax.plot(
            [0],
            slope.excluded_baseline,
            marker="x",
            markersize=6,
            color=colour,
            clip_on=False,
            zorder=4,
        )


def _limits_of_cost(drawn: Sequence[Slope], most_n: float) -> tuple[float, float]:
    """The least and the greatest value of the axis."""
    points = [0.0]
    excluded = []
    ends = []
    for slope in drawn:
        points += slope.points
        excluded += slope.excluded_baseline
        if not slope.hidden:
            points.append(slope.rise * most_n)
            ends.append(slope.times * slope.fit.cost.ci95[1] * most_n)
    # Include the intervals, unless they would flatten the points.
    highest = max(points)
    high = min(_HIGHEST * highest, max([highest, *ends]))
    return min(points + excluded), high or 1.0


@drawn_alone
def cost_parts(costs: Costs, *, server: str = "server", style: Style = WIDE) -> Figure:
    """One connection as a bar of its parts, with the total and its interval."""
    parts = cost_shares(costs, server=server)
    if not parts:
        raise NothingToDraw("No part of a connection's resident memory is measured: see the table.")
    if not _has_server_or_kernel(costs, server):
        raise NothingToDraw("Only asyncli's own part of a connection is measured: see the table.")
    total = known_total(costs)
    if total is None and not any(size > 0 for *_, size in parts):
        raise NothingToDraw("No part of the cost of a connection is above zero.")
    columns = 1 if style.narrow else len(parts)
    legend_px = 19.0 * math.ceil(len(parts) / columns)
    figure, ((ax,),) = sheet(style, [52.0], (4.0, 24.0, 30.0, 20.0 + legend_px))
    reached = 0.0
    for label, colour, size in parts:
        _draw_part(ax, reached, label, colour, size)
        reached += size
    if total is not None:
        ax.plot(total.ci95, [0.6, 0.6], color=COLOURS["ink"], linewidth=2.4)
        ax.plot([total.bytes_per_connection], [0.6], color=COLOURS["ink"], marker="|", markersize=9)
    ax.set_title(_title_of_parts(costs, total))
    ax.set_ylim(-0.45, 0.9)
    ax.set(xticks=[], yticks=[])
    ax.spines["bottom"].set_visible(False)
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(-0.01, 0.0),
        ncols=columns,
        columnspacing=1.4,
        handlelength=1.0,
    )
    return figure


def _draw_part(ax: Axes, reached: float, label: str, colour: str, size: float) -> None:
    """A part of the bar, from where the one before ended."""
    left = reached
    height = 0.8
    if size < 0:
        # The parts add up to more than the total.
        left = reached + size
        height = 0.3
    alpha = 1.0
    hatch = None
    if colour == "rest":
        # It is not measured: the measured parts leave it.
        alpha = 0.6
        hatch = "////"
    ax.barh(
        0,
        abs(size),
        left=left,
        height=height,
        label=f"{cut(label, 22)} {each(size)}",
        linewidth=0.8,
        facecolor=COLOURS[colour],
        edgecolor=COLOURS["paper"],
        alpha=alpha,
        hatch=hatch,
    )


def _title_of_parts(costs: Costs, total: Cost | None) -> str:
    held = with_streams(costs.streams)
    if total is not None:
        return f"{each_with_error(total)} in all{held}"
    if costs.host_total is not None:
        return f"measured parts{held}"
    return held.strip()


def _of_kernel(costs: Costs) -> str:
    if costs.ends > 1:
        return f"kernel, {costs.ends} ends"
    return "kernel, this end"


def cost_shares(costs: Costs, *, server: str) -> list[tuple[str, str, float]]:
    """(Label, colour, bytes) of each known part of a connection on this host."""
    shares = []
    for part in _parts(costs, server):
        if not _why_not_drawn(costs, part):
            size = part.times * part.cost.bytes_per_connection
            shares.append((part.label, part.colour, size))
    return shares


def _has_server_or_kernel(costs: Costs, server: str) -> bool:
    """Whether a part is measured that is not asyncli's own: alone, that is no connection."""
    others = [part for part in _parts(costs, server) if part.name != "generator_user"]
    return any(not _why_not_drawn(costs, part) for part in others)


def shares_left_out(costs: Costs, *, server: str) -> list[str]:
    """The parts that are not in :func:`cost_shares`, each with why: ``asyncli (hidden)``."""
    left_out = []
    for cost, label in ((costs.server_user, server), (costs.kernel, "kernel")):
        if cost is None:
            left_out.append(f"{label} (unknown)")
    for part in _parts(costs, server):
        reason = _why_not_drawn(costs, part)
        if reason:
            left_out.append(f"{part.label} ({reason})")
    return left_out


def _why_not_drawn(costs: Costs, part: _DrawnPart) -> str:
    """Why a part has no place in the bar, as the table of costs says it; "" if it has one."""
    if not is_measured(costs, part.name):
        return unmeasured(*part.cost.ci95)
    if part.name != "residual" and is_wide(part.cost.bytes_per_connection, *part.cost.ci95):
        return WIDE_COST
    return ""


class _DrawnPart(NamedTuple):
    """A part of a connection on this host; ``name``: its field in the costs."""

    name: str
    cost: Cost
    label: str
    colour: str
    times: int


def _parts(costs: Costs, server: str) -> list[_DrawnPart]:
    """The parts that were read."""
    behind = ", ".join(costs.behind_programs)
    rows = (
        ("server_user", costs.server_user, server, "server", 1),
        ("behind", costs.behind, behind, "violet", 1),
        ("kernel", costs.kernel, _of_kernel(costs), "kernel", costs.ends),
        ("generator_user", costs.generator_user, "asyncli", "ours", 1),
        ("residual", costs.residual, "left over", "rest", 1),
    )
    parts = []
    for name, cost, label, colour, times in rows:
        if cost is not None:
            parts.append(_DrawnPart(name, cost, label, colour, times))
    return parts


def known_total(costs: Costs) -> Cost | None:
    """The whole host's cost, unless other programs hide it."""
    if not is_measured(costs, "host_total"):
        return None
    return costs.host_total


# Medians are of a minute at most: a longer pause is a gap.
_GAP_S = 150.0
# The marks of more medians would hide the line.
_MOST_MARKED = 120


@drawn_alone
def drift_lines(
    drifts: Mapping[MetricName, Drift],
    medians: Mapping[MetricName, Series],
    names: Mapping[MetricName, str],
    style: Style = WIDE,
) -> Figure:
    """A panel per name: medians over the hold, with the Theil-Sen line."""
    drawn = [name for name in names if name in drifts and len(medians.get(name, Series())) > 1]
    if not drawn:
        raise NothingToDraw("No drift can be drawn: the hold has fewer than two medians of memory.")
    left = 62.0 if style.narrow else 72.0
    right = 22.0
    heights = [58.0] * len(drawn)
    margins = (left, right, 26.0, 30.0)
    figure, rows = sheet(style, heights, margins, gap=36.0, common_x=True)
    start_s = min(medians[name].t_s[0] for name in drawn)
    end_s = max(medians[name].t_s[-1] for name in drawn)
    for name, ax in zip(drawn, rows[:, 0], strict=True):
        rate = drifts[name].bytes_per_hour
        _draw_drift(ax, ROLE_OF[name], medians[name], rate, (start_s, end_s))
        ax.set_title(names[name])
    time_axis(rows[-1, 0], start_s, end_s, style.width - left - right)
    return figure


def _draw_drift(
    ax: Axes,
    role: Role,
    medians: Series,
    bytes_per_hour: float | None,
    span_s: tuple[float, float],
) -> None:
    """Medians above where the line begins, and the line, if there is one."""
    start_s, end_s = span_s
    lasted_s = end_s - start_s
    per_s = (bytes_per_hour or 0.0) / 3600
    base = statistics.median(value - per_s * (t_s - start_s) for t_s, value in medians.rows())
    above = Series(medians.t_s, [value - base for value in medians.values])
    t_s, values = extremes(above, lasted_s / MOST_BUCKETS or 1.0)
    plot_line(ax, role, *broken(t_s, values, max(_GAP_S, lasted_s / 100)))
    if len(values) <= _MOST_MARKED:
        plot_points(ax, role, t_s.tolist(), values.tolist(), 3.2)
    if bytes_per_hour is not None:
        rise = per_s * lasted_s
        ax.plot([start_s, end_s], [0.0, rise], color=COLOURS["ink"], linewidth=1.4, zorder=5)
    reach = max(np.abs(values).max(), 1.0)
    ax.set_ylim(min(-0.2 * reach, *ax.get_ylim()), max(0.2 * reach, *ax.get_ylim()))
    ticks(ax.yaxis, "B", 3)
