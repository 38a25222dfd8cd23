"""What one more connection costs: its parts, the lines through memory over connections, and what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis.cost import Costs
from asyncli.analysis.slope import Cost, Fit
from asyncli.report.figures.drawing import (
    COLOURS,
    ROLES,
    WIDE,
    NothingToDraw,
    Sheet,
    Strips,
    Style,
    about_zero,
    bytes_at,
    counts_at,
    cut,
    drawn_alone,
    each,
    from_zero,
    height_of,
    plot_cloud,
    plot_points,
    round_marks,
    set_marks,
    spread,
    wide,
)
from asyncli.report.figures.panels import Role
from asyncli.report.format import minus, shown_r2
from asyncli.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# How much higher than its points a figure may be to show what an interval leaves open: no interval that does not reach to
# nothing needs more.
_ROOM = 2.0


class Slope(msgspec.Struct):
    """A fit as it is drawn: above its fixed part, and both ends of a connection together where both are on this host."""

    name: str
    label: str
    role: Role
    fit: Fit
    times: int

    @property
    def each(self) -> float:
        return self.times * self.fit.cost.bytes_per_connection

    @property
    def half(self) -> float:
        low, high = self.sides
        return (high - low) / 2

    def above(self, values: Sequence[float]) -> list[float]:
        return [self.times * (value - self.fit.cost.fixed_bytes) for value in values]

    def residuals(self) -> list[float]:
        return [self.times * value for value in self.fit.residuals()]

    @property
    def sides(self) -> tuple[float, float]:
        """The slope's 95 % interval."""
        low, high = self.fit.cost.ci95
        return self.times * low, self.times * high

    @property
    def apart(self) -> float | None:
        """The baseline, where it is no point of the line: how far it lies above (below: less than 0) the line's fixed part."""
        return None if self.fit.apart is None else self.above([self.fit.apart])[0]


def slopes(fits: Mapping[str, Fit], *, ends: int, server: str, host: str = "this host", unsteady: bool = False) -> list[Slope]:
    """The fits that are drawn, the whole host first; ``unsteady``: also where its interval reaches to nothing."""
    known: tuple[tuple[str, str, Role, int], ...] = (
        ("host_total", f"{host} in all", "total", 1),
        ("server_user", server, "server", 1),
        ("kernel", "kernel, both ends" if ends == 2 else "kernel, this end", "kernel", ends),
        ("generator_user", "asyncli", "ours", 1),
    )
    drawn = [Slope(name, label, role, fits[name], times) for name, label, role, times in known if name in fits]
    # A host whose interval reaches to nothing would cover all others with its band.
    return [one for one in drawn if unsteady or one.name != "host_total" or one.fit.cost.ci95[0] > 0 or len(drawn) == 1]


@drawn_alone
def cost_lines(
    fits: Mapping[str, Fit], *, ends: int = 2, server: str = "server", host: str = "this host", style: Style = WIDE
) -> Figure:
    """Memory over connections held, above each line's fixed part: points, the line, its slope's 95 % interval, raw seconds."""
    drawn = slopes(fits, ends=ends, server=server, host=host)
    if not drawn:
        raise NothingToDraw("No line could be fitted: there are too few points of memory over connections.")
    narrow = style.narrow
    left, right, top, height = (50.0, 98.0, 22.0, 230.0) if narrow else (64.0, 172.0, 22.0, 320.0)
    sheet = Sheet(style, top + height + 46)
    width = style.width - left - right
    ax = sheet.axes(left, top, width, height)
    most_n = max(max(one.fit.n) for one in drawn) or 1.0
    most_y = max(max(*one.above(one.fit.bytes), one.each * most_n) for one in drawn)
    # What the intervals leave open as well, but for what would press the points flat: that is cut.
    most_y = min(_ROOM * most_y, max(most_y, *(one.sides[1] * most_n for one in drawn)))
    least_y = min(min(*one.above(one.fit.bytes), one.each * most_n, one.apart or 0.0, 0.0) for one in drawn)
    ax.set_xlim(0, most_n)
    if least_y < -0.02 * max(most_y, -least_y):
        about_zero(ax, least_y, most_y, bytes_at)
    else:
        from_zero(ax, max(most_y, 1.0), bytes_at, 4)
    marks = round_marks(most_n, 3 if narrow else 5)
    set_marks(ax, marks, counts_at(marks), x=True)
    for one in drawn:
        color, thick, dash, _ = ROLES[one.role]
        low, high = one.sides
        ax.fill_between(
            [0, most_n], [0, low * most_n], [0, high * most_n], color=COLOURS[color], alpha=0.16, linewidth=0, zorder=1
        )
        plot_cloud(ax, one.role, one.fit.seconds_n, one.above(one.fit.seconds_bytes))
        ax.plot([0, most_n], [0, one.each * most_n], color=COLOURS[color], linewidth=thick, linestyle=dash, zorder=3)
        plot_points(ax, one.role, one.fit.n, one.above(one.fit.bytes))
        if one.apart is not None:
            ax.plot(
                [0], [one.apart], marker="x", markersize=6, color=COLOURS[color], markeredgewidth=1.4, clip_on=False, zorder=4
            )
    ends_at = [height_of(ax, one.each * most_n, top, height) for one in drawn]
    lines = 28.0 if narrow else 34.0
    for one, at in zip(drawn, spread(ends_at, [lines] * len(drawn), top - 8, top + height + 6), strict=True):
        color = ROLES[one.role][0]
        x = left + width + 10
        size = 11.0 if narrow else 12.0
        label = (
            {f"{host} in all": "host in all", "kernel, both ends": "kernel, 2 ends"}.get(one.label, one.label)
            if narrow
            else one.label
        )
        sheet.text(x, at - 7, cut(label, 14 if narrow else 24), color, size=size, bold=True)
        within = f"{each(one.each)} ± {each(one.half, sign=False)}" if not narrow else each(one.each)
        sheet.text(x, at + 8, within, color, size=size)
    sheet.text(left, 4, "memory above the fixed part", "soft", size=11)
    sheet.text(left + width / 2, top + height + 34, "connections held", "soft", ha="center", size=11)
    return sheet.figure


@drawn_alone
def cost_residuals(
    fits: Mapping[str, Fit], *, ends: int = 2, server: str = "server", host: str = "this host", style: Style = WIDE
) -> Figure:
    """How far each point lies from its line, in bytes: a strip for each fit, as high as its points reach."""
    drawn = slopes(fits, ends=ends, server=server, host=host, unsteady=True)
    if not drawn:
        raise NothingToDraw("No line could be fitted, so there are no residuals.")
    strips = Strips(style, len(drawn), height=62.0 if style.narrow else 66.0, gap=30.0, top=24.0, below=14.0, left=58.0)
    most_n = max(max(one.fit.n) for one in drawn) or 1.0
    marks = round_marks(most_n, 3 if style.narrow else 5)
    for place, one in enumerate(drawn):
        color, _, dash, _ = ROLES[one.role]
        remarks = [] if one.apart is None else [f"baseline apart, {minus(format_bytes(one.apart))}"]
        remarks += [] if one.fit.cost.r2 is None else [f"R² {shown_r2(one.fit.cost.r2)}"]
        ax = strips.axes(place, one.label, "; ".join(remarks), color)
        ax.axhline(0, color=COLOURS[color], linewidth=1.2, linestyle=dash)
        rest = one.residuals()
        reach = max([1.0, *(abs(value) for value in rest)])
        about_zero(ax, -1.3 * reach, 1.3 * reach, bytes_at)
        low, high = ax.get_ylim()
        seconds = [value - one.each * n for n, value in zip(one.fit.seconds_n, one.above(one.fit.seconds_bytes), strict=True)]
        kept = [(n, value) for n, value in zip(one.fit.seconds_n, seconds, strict=True) if low <= value <= high]
        plot_cloud(ax, one.role, [n for n, _ in kept], [value for _, value in kept])
        plot_points(ax, one.role, one.fit.n, rest, 4.5)
        ax.set_xlim(0, most_n)
        set_marks(ax, marks, counts_at(marks), x=True)
    sheet = strips.sheet
    sheet.text(strips.left + strips.width / 2, sheet.height - 8, "connections held", "soft", ha="center", size=11)
    return sheet.figure


@drawn_alone
def cost_parts(costs: Costs, *, ends: int = 2, server: str = "server", style: Style = WIDE) -> Figure:
    """One connection as a bar of its parts, with the total and its interval."""
    parts = cost_shares(costs, ends=ends, server=server)
    if not parts:
        raise NothingToDraw("No part of a connection's cost is known.")
    total = known_total(costs)
    whole = sum(max(0.0, size) for _, _, size in parts)
    reach = max([whole, *([total.ci95[1], total.bytes_per_connection] if total is not None else [])])
    if reach <= 0:
        raise NothingToDraw("No part of the cost of a connection is above zero.")
    left, right, top, height = (2.0, 2.0, 34.0, 34.0) if style.narrow else (2.0, 2.0, 36.0, 40.0)
    rows = len(parts)
    sheet = Sheet(style, top + height + (14 + 22 * rows if style.narrow else 66))
    scale = (style.width - left - right) / reach
    x = left
    spans = []
    for label, color, size in parts:
        if size >= 0:
            spans.append((label, color, size, x, size * scale))
            x += size * scale
        else:
            # Less than nothing: the parts add up to more than the whole, and this takes them back to it.
            spans.append((label, color, size, x + size * scale, -size * scale))
    for label, color, size, start, length in spans:
        negative = size < 0
        sheet.bar(
            start,
            top + (height * 0.62 if negative else 0),
            length,
            height * (0.38 if negative else 1),
            color,
            hatched=color == "rest",
        )
        if "2 ends" in label and length > 4:
            sheet.line([start + length / 2] * 2, [top, top + height], "paper", 1.2)
    for _, _, size, start, _ in spans[1:]:
        if size >= 0:
            sheet.line([start, start], [top, top + height], "paper", 1.6)
    if total is not None:
        _bracket(sheet, left, left + total.bytes_per_connection * scale, total, scale, top)
    elif costs.host_total is not None:
        sheet.text(
            left,
            top - 18,
            ("" if style.narrow else "what was measured apart; ") + "the host as a whole moved too much to tell",
            "soft",
            size=11 if not style.narrow else 10.5,
        )
    if style.narrow:
        for place, (label, color, size, *_) in enumerate(spans):
            at = top + height + 22 + 22 * place
            sheet.bar(left, at - 6, 12, 12, color, hatched=color == "rest")
            sheet.text(left + 20, at, cut(label, 30), size=12)
            sheet.text(style.width - right, at, each(size), ha="right", size=12, bold=True)
        return sheet.figure
    names = [cut(label, 22) for label, *_ in spans]
    sizes = [max(wide(name, 12), wide(each(span[2]), 12)) + 10 for name, span in zip(names, spans, strict=True)]
    middles = spread([start + length / 2 for *_, start, length in spans], sizes, left, style.width - right)
    for name, (_, color, size, start, length), middle in zip(names, spans, middles, strict=True):
        bottom = top + height
        sheet.line(
            [start + length / 2, start + length / 2, middle, middle],
            [bottom + 3, bottom + 9, bottom + 13, bottom + 19],
            color,
            0.9,
        )
        sheet.text(middle, bottom + 31, name, color, ha="center", bold=True)
        sheet.text(middle, bottom + 49, each(size), ha="center")
    return sheet.figure


def cost_shares(costs: Costs, *, ends: int, server: str) -> list[tuple[str, str, float]]:
    """(label, colour, bytes) of each known part of one connection on this host."""
    kernel = "kernel, 2 ends" if ends == 2 else "kernel, this end"
    # Where the host's total may as well be nothing, so may the difference to it be anything.
    hidden = costs.host_total is not None and known_total(costs) is None
    known: tuple[tuple[str, str, Cost | None, int], ...] = (
        (server, "server", costs.server_user, 1),
        (kernel, "kernel", costs.kernel, ends),
        ("asyncli", "ours", costs.generator_user, 1),
        ("left over", "rest", None if hidden else costs.residual, 1),
    )
    return [(label, color, times * one.bytes_per_connection) for label, color, one, times in known if one is not None]


def known_total(costs: Costs) -> Cost | None:
    """The whole host's cost where it is one: where its interval reaches to nothing, all else that the host did hides it."""
    total = costs.host_total
    return total if total is not None and total.ci95[0] > 0 else None


def _bracket(sheet: Sheet, left: float, right: float, total: Cost, scale: float, top: float) -> None:
    """The total over the bar, and the whisker of its interval."""
    low, high = total.ci95
    y = top - 10
    sheet.line([left, left, right], [y + 5, y, y], "ink", 1.0)
    sheet.line([left + max(0.0, low) * scale, left + high * scale], [y, y], "ink", 3.0)
    sheet.line([right, right], [y - 5, y + 5], "ink", 1.6)
    sheet.text(left, y - 15, f"{each(total.bytes_per_connection)} in all", bold=True, size=13)
    after = left + wide(f"{each(total.bytes_per_connection)} in all", 14.5) + 10
    words = f"95 %: {each(low, sign=False)} to {each(high)}"
    if after + wide(words, 11) > sheet.style.width:
        words = f"± {each(total.half_width)}"
    sheet.text(after, y - 15, words, "soft", size=11)
