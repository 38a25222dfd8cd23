"""Memory: the parts of a connection's cost, the lines through memory over connections, and memory over the hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from asyncli.analysis.cost import Costs, is_measured
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.slope import Cost, Fit, unmeasured
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
    from matplotlib.figure import Figure

# The axis may be this many times as high as its points, to show wide intervals.
_HIGHEST = 2.0
_MOST_RAW = 240


class Slope(msgspec.Struct):
    """A fit above its fixed part; both ends of a connection together where both are on this host."""

    label: str
    role: Role
    fit: Fit
    times: int
    hidden: bool

    @property
    def each(self) -> float:
        return self.times * self.fit.cost.bytes_per_connection

    @property
    def text(self) -> str:
        """The slope as in the table of costs: ``"527 B ± 3"``, ``"hidden"``."""
        half = self.times * self.fit.cost.half_width
        return unmeasured(*self.fit.cost.ci95) if self.hidden else f"{each(self.each)} ± {each(half, sign=False)}"

    def above(self, values: Sequence[float]) -> list[float]:
        return [self.times * (value - self.fit.cost.fixed_bytes) for value in values]


def slopes(costs: Costs, *, server: str, host: str = "this host") -> list[Slope]:
    """The fits to draw, the whole host first."""
    fits = costs.fits
    # The band of a wide host_total would cover all others.
    return [
        Slope(label, ROLE_OF[name], fits[name], costs.ends if name == "kernel" else 1, not is_measured(costs, name))
        for name, label in memory_labels(server, host, _of_kernel(costs)).items()
        if name in fits and (name != "host_total" or fits[name].cost.ci95[0] > 0 or len(fits) == 1)
    ]


@drawn_alone
def cost_lines(drawn: Sequence[Slope], *, style: Style = WIDE) -> Figure:
    """Memory over connections held, above each fixed part: points, line, 95 % interval, samples."""
    if not drawn:
        raise NothingToDraw("No line could be fitted: there are too few points of memory over connections.")
    margins = (50.0, 18.0, 76.0, 44.0) if style.narrow else (64.0, 186.0, 12.0, 44.0)
    figure, ((ax,),) = sheet(style, [230.0 if style.narrow else 320.0], margins)
    most_n = max(max(one.fit.n) for one in drawn) or 1.0
    for one in drawn:
        color, thick, dash, _ = ROLES[one.role]
        band = [[0.0, one.times * end * most_n] for end in one.fit.cost.ci95]
        ax.fill_between([0, most_n], *band, color=COLOURS[color], alpha=0.16, linewidth=0, zorder=1)
        raw = slice(None, None, max(1, len(one.fit.seconds_n) // _MOST_RAW))
        ax.plot(
            one.fit.seconds_n[raw], one.above(one.fit.seconds_bytes[raw]), linestyle="none", marker="o", markersize=2.2,
            markerfacecolor=COLOURS[color], markeredgewidth=0, alpha=0.35, zorder=2,
        )  # fmt: skip
        label = f"{cut(one.label, 24)}\n{one.text}"
        ax.plot([0, most_n], [0, one.each * most_n], color=COLOURS[color], linewidth=thick, linestyle=dash, label=label, zorder=3)
        plot_points(ax, one.role, one.fit.n, one.above(one.fit.bytes))
        if one.fit.apart is not None:
            ax.plot([0], one.above([one.fit.apart]), marker="x", markersize=6, color=COLOURS[color], clip_on=False, zorder=4)
    points = [value for one in drawn for value in (*one.above(one.fit.bytes), one.each * most_n, 0.0)]
    # Include the intervals, unless they would flatten the points.
    reach = max(points + [one.times * one.fit.cost.ci95[1] * most_n for one in drawn])
    apart = [value for one in drawn if one.fit.apart is not None for value in one.above([one.fit.apart])]
    low, high = min(points + apart), min(_HIGHEST * max(points), reach) or 1.0
    ax.set_xlim(0, most_n)
    ax.set_ylim(low * 1.08, high * 1.04)
    ticks(ax.xaxis, "", 3 if style.narrow else 6)
    ticks(ax.yaxis, "B", 5)
    legend(ax, style, 2)
    ax.set_xlabel("connections held")
    return figure


@drawn_alone
def cost_parts(costs: Costs, *, server: str = "server", style: Style = WIDE) -> Figure:
    """One connection as a bar of its parts, with the total and its interval."""
    parts = cost_shares(costs, server=server)
    if not parts:
        raise NothingToDraw("No part of a connection's cost is known.")
    total = known_total(costs)
    if total is None and not any(size > 0 for *_, size in parts):
        raise NothingToDraw("No part of the cost of a connection is above zero.")
    columns = 1 if style.narrow else len(parts)
    figure, ((ax,),) = sheet(style, [52.0], (4.0, 24.0, 30.0, 20.0 + 19.0 * -(-len(parts) // columns)))
    reached = 0.0
    for label, color, size in parts:
        # Below zero: the parts add up to more than the total.
        start, height = (reached, 0.8) if size >= 0 else (reached + size, 0.3)
        rest = color == "rest"
        ax.barh(
            0, abs(size), left=start, height=height, label=f"{cut(label, 22)} {each(size)}", linewidth=0.8,
            facecolor=COLOURS[color], edgecolor=COLOURS["paper"], alpha=0.6 if rest else 1.0, hatch="////" if rest else None,
        )  # fmt: skip
        reached += size
    held = with_streams(costs.streams)
    title = f"measured parts{held}" if costs.host_total is not None else held.strip()
    if total is not None:
        low, high = total.ci95
        title = f"{each(total.bytes_per_connection)} in all, ± {each(total.half_width, sign=False)}{held}"
        ax.plot([low, high], [0.6, 0.6], color=COLOURS["ink"], linewidth=2.4)
        ax.plot([total.bytes_per_connection], [0.6], color=COLOURS["ink"], marker="|", markersize=9)
    ax.set_title(title)
    ax.set_ylim(-0.45, 0.9)
    ax.set(xticks=[], yticks=[])
    ax.spines["bottom"].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(-0.01, 0.0), ncols=columns, columnspacing=1.4, handlelength=1.0)
    return figure


def _of_kernel(costs: Costs) -> str:
    return f"kernel, {costs.ends} ends" if costs.ends > 1 else "kernel, this end"


def cost_shares(costs: Costs, *, server: str) -> list[tuple[str, str, float]]:
    """(Label, colour, bytes) of each known part of a connection on this host."""
    return [
        (label, color, times * one.bytes_per_connection)
        for name, label, color, times in _parts(costs, server)
        if (one := getattr(costs, name)) is not None and is_measured(costs, name)
    ]


def shares_left_out(costs: Costs, *, server: str) -> list[str]:
    """The parts that were read and are not in :func:`cost_shares`, each with why: ``asyncli (hidden)``."""
    return [
        f"{label} ({unmeasured(*one.ci95)})"
        for name, label, *_ in _parts(costs, server)
        if (one := getattr(costs, name)) is not None and not is_measured(costs, name)
    ]


def _parts(costs: Costs, server: str) -> Sequence[tuple[str, str, str, int]]:
    """(Field, label, colour, times) of each part of a connection on this host."""
    return (
        ("server_user", server, "server", 1), ("behind", ", ".join(costs.behind_programs), "violet", 1),
        ("kernel", _of_kernel(costs), "kernel", costs.ends), ("generator_user", "asyncli", "ours", 1),
        ("residual", "left over", "rest", 1),
    )  # fmt: skip


def known_total(costs: Costs) -> Cost | None:
    """The whole host's cost, unless other programs hide it."""
    return costs.host_total if is_measured(costs, "host_total") else None


# Medians are of a minute at most: a longer pause is a gap.
_GAP_S = 150.0


@drawn_alone
def drift_lines(
    drifts: Mapping[MetricName, Drift], medians: Mapping[MetricName, Series], names: Mapping[MetricName, str], style: Style = WIDE
) -> Figure:
    """A panel per name: medians over the hold, with the Theil-Sen line."""
    drawn = [name for name in names if name in drifts and len(medians.get(name, Series())) > 1]
    if not drawn:
        raise NothingToDraw("No drift can be drawn: the hold has fewer than two medians of memory.")
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
