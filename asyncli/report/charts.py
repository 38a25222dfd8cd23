"""Every figure of a report, drawn once by matplotlib: for the page (inline SVG), for --plots, and for notebooks.

Each function takes data and gives a :class:`matplotlib.figure.Figure`; none touches pyplot, a GUI or the caller's style.
What cannot be drawn raises :class:`NothingToDraw`, whose text says why in a sentence. Lengths are CSS pixels (1/72 inch in
a figure), from the top left, so that 12 is a text of 12 pixels where the page shows the figure at its own width.

Colours are those of Okabe and Ito (2008, "Color Universal Design"), darkened until text in them has a contrast of 4.5 on
paper; and no two lines differ by colour alone: each role has a dash and a marker of its own, and its name stands at it.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec

from asyncli.analysis.cost import Cost, Costs, Fit
from asyncli.analysis.counts import CountsOverTime
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.forecast import Ceiling, Forecast
from asyncli.core.histogram import Histogram
from asyncli.records import Deaths
from asyncli.report.decimate import Buckets, broken, extremes, rebinned, thinned
from asyncli.report.timeline import Panel, Role, Span, Timeline
from asyncli.report.words import three
from asyncli.samples import Series
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

#: name -> (on light paper, on dark). The light ones are drawn; a page replaces each by a variable of that name.
PALETTE: dict[str, tuple[str, str]] = {
    "paper": ("#fffefb", "#15181b"),
    "ink": ("#1d1d1b", "#e9e7e1"),
    "soft": ("#5d5d58", "#a9a79f"),
    "rule": ("#aaa9a1", "#5a5e62"),
    "grid": ("#e6e5dd", "#2a2e32"),
    "shade": ("#f4f2ea", "#1d2125"),
    "server": ("#0068a5", "#63b7ee"),
    "kernel": ("#b84a00", "#f0954c"),
    "ours": ("#00795a", "#44c79d"),
    "rest": ("#77736a", "#9d998e"),
    "violet": ("#8f3f8a", "#d490cf"),
}  # fmt: skip


class Style(msgspec.Struct, frozen=True):
    """Where a figure will stand. ``title`` and ``note`` are drawn only where nothing around it says what it is."""

    width: float = 736.0
    narrow: bool = False
    title: str = ""
    note: str = ""


WIDE = Style()
#: For a phone: 390 pixels less the page's margins.
NARROW = Style(358.0, narrow=True)


class NothingToDraw(ValueError):  # noqa: N818  (no error of the user's: the text says why there is no figure)
    """There is no data for this figure; the text is a sentence that says why."""


_C = {name: light for name, (light, _) in PALETTE.items()}
_Dash = tuple[float, tuple[float, ...]]
_SOLID: _Dash = (0.0, ())
#: Role -> colour, width, dash, marker.
_DRAWN: dict[Role, tuple[str, float, _Dash, str]] = {
    "asked": ("soft", 1.1, (0.0, (1.5, 1.8)), ""),
    "total": ("ink", 1.8, _SOLID, "D"),
    "server": ("server", 1.6, _SOLID, "o"),
    "kernel": ("kernel", 1.6, (0.0, (5.0, 1.6)), "s"),
    "ours": ("ours", 1.6, (0.0, (5.0, 1.6, 1.0, 1.6)), "^"),
    "middle": ("ink", 1.5, _SOLID, ""),
    "high": ("violet", 1.2, (0.0, (5.0, 1.6)), ""),
    "most": ("soft", 0.9, (0.0, (1.2, 1.4)), ""),
}
# Of matplotlib's own settings, those that change a drawing: a notebook's style sheet must not.
_DRAWING = (
    "axes.",
    "figure.",
    "font.",
    "grid.",
    "hatch.",
    "lines.",
    "markers.",
    "patch.",
    "path.",
    "svg.",
    "text.",
    "xtick.",
    "ytick.",
)
_OURS = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    # A dollar sign in a server's name is not mathematics.
    "text.parse_math": False,
    # Text stays text: in the page's own font, to be found, copied and read aloud.
    "svg.fonttype": "none",
    "hatch.linewidth": 0.7,
    "path.simplify_threshold": 0.2,
}
_MOST_RAW = 240


def drawing() -> Any:
    """A context in which matplotlib draws and saves as it does for a report, whatever the caller's settings."""
    import matplotlib as mpl

    defaults: Any = {key: value for key, value in mpl.rcParamsDefault.items() if key.startswith(_DRAWING)}
    ours: Any = _OURS
    return mpl.rc_context({**defaults, **ours})


def _drawn(function: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with drawing():
            return function(*args, **kwargs)

    return inside


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Middles as near to ``wanted`` as they can be without labels of these sizes overlapping, within ``[low, high]``.

    Neighbours keep their order. Labels that together do not fit overlap evenly.
    """
    order = sorted(range(len(wanted)), key=lambda place: (wanted[place], place))
    room = high - low
    squeeze = min(1.0, room / sum(sizes)) if sum(sizes) > 0 else 1.0
    half = [sizes[place] * squeeze / 2 for place in order]
    middles = [min(max(wanted[place], low + h), high - h) for place, h in zip(order, half, strict=True)]
    # Groups of labels that touch, each moved as one to where its members are nearest to what they want in the mean.
    groups: list[list[int]] = []
    for place in range(len(order)):
        groups.append([place])
        while len(groups) > 1 and _end(groups[-2], middles, half) > _start(groups[-1], middles, half) + 1e-9:
            joined = groups[-2] + groups.pop()
            groups[-1] = joined
            length = sum(2 * half[one] for one in joined)
            offset, start = 0.0, 0.0
            for one in joined:
                start += wanted[order[one]] - offset - half[one]
                offset += 2 * half[one]
            start = min(max(start / len(joined), low), high - length)
            for one in joined:
                middles[one] = start + half[one]
                start += 2 * half[one]
    found = [0.0] * len(wanted)
    for place, middle in zip(order, middles, strict=True):
        found[place] = middle
    return found


def _end(group: list[int], middles: list[float], half: list[float]) -> float:
    return middles[group[-1]] + half[group[-1]]


def _start(group: list[int], middles: list[float], half: list[float]) -> float:
    return middles[group[0]] - half[group[0]]


def wide(words: str, size: float = 12.0) -> float:
    """About how wide a text is, in pixels: the page's font is not known, and 0.58 of its size is a wide one's mean sign."""
    return 0.58 * size * len(words)


class _Sheet:
    """A figure that is laid out in pixels from its top left."""

    def __init__(self, style: Style, height: float) -> None:
        from matplotlib.figure import Figure

        self.style = style
        self._head = (34.0 + (18.0 if style.note else 0.0)) if style.title else 2.0
        self.width, self.height = style.width, height
        whole = height + self._head
        self.figure = Figure(figsize=(style.width / 72, whole / 72), dpi=72, facecolor=_C["paper"])
        # Drawn over everything: labels, leaders, bars.
        self.canvas = self.figure.add_axes((0, 0, 1, 1), zorder=9, facecolor="none")
        self.canvas.set_axis_off()
        self.canvas.set_xlim(0, style.width)
        self.canvas.set_ylim(height, -self._head)
        if style.title:
            self.canvas.text(2, -self._head + 20, style.title, color=_C["ink"], size=14, weight="bold", va="baseline")
            self.canvas.text(2, -self._head + 38, style.note, color=_C["soft"], size=11, va="baseline")

    def axes(self, left: float, top: float, width: float, height: float, *, ticks_below: bool = True) -> Axes:
        whole = self.height + self._head
        box = (left / self.width, 1 - (top + self._head + height) / whole, width / self.width, height / whole)
        ax = self.figure.add_axes(box, facecolor="none")
        for side in ("left", "right", "top"):
            ax.spines[side].set_visible(False)
        ax.spines["bottom"].set_color(_C["rule"])
        ax.spines["bottom"].set_linewidth(0.8)
        ax.grid(visible=True, axis="y", color=_C["grid"], linewidth=0.8)
        ax.set_axisbelow(True)
        ax.tick_params(axis="both", which="both", length=0, labelsize=11, labelcolor=_C["soft"], pad=5)
        ax.tick_params(axis="x", labelbottom=ticks_below, length=3 if ticks_below else 0, color=_C["rule"])
        ax.margins(0)
        return ax

    def text(
        self, x: float, y: float, words: str, color: str = "ink", *, ha: str = "left", size: float = 12.0, bold: bool = False,
    ) -> None:  # fmt: skip
        """``words`` with their middle at the height ``y``."""
        weight = "bold" if bold else "normal"
        # A third of the size below the middle is where letters stand, in any font.
        self.canvas.text(x, y + size * 0.35, words, color=_C[color], ha=ha, va="baseline", size=size, weight=weight)

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str, width: float = 1.0, dash: _Dash = _SOLID) -> None:
        self.canvas.plot(xs, ys, color=_C[color], linewidth=width, linestyle=dash, solid_capstyle="butt")

    def bar(self, left: float, top: float, width: float, height: float, color: str, *, hatched: bool = False) -> None:
        from matplotlib.patches import Rectangle

        box = Rectangle(
            (left, top), width, height, facecolor=_C["paper"] if hatched else _C[color], edgecolor=_C[color], linewidth=0.8
        )
        if hatched:
            box.set_hatch("////")
        self.canvas.add_patch(box)


def _nice(most: float, steps: int) -> list[float]:
    """Round marks from 0 to just below or at ``most``: about ``steps`` of them."""
    if not most > 0:
        return [0.0]
    raw = most / steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= raw * 0.999)
    return [step * place for place in range(int(most / step * 1.0001) + 1)]


def _bytes_at(marks: Sequence[float]) -> list[str]:
    """Byte marks in one unit for all of an axis: ``0``, ``200 MB``, ``400 MB``."""
    most = max((abs(mark) for mark in marks), default=0.0)
    unit, factor = next(((u, f) for u, f in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if most >= f), ("B", 1.0))
    return ["0" if not mark else f"{_minus(f'{mark / factor:g}')} {unit}" for mark in marks]


def _counts_at(marks: Sequence[float]) -> list[str]:
    return [short_count(mark) for mark in marks]


def short_count(number: float) -> str:
    """``100000`` -> ``"100k"``, ``1500000`` -> ``"1.5M"``, and below ten thousand all digits."""
    size = abs(number)
    text = f"{number / 1e6:.4g}M" if size >= 999_500 else f"{number / 1e3:.4g}k" if size >= 10_000 else f"{number:,.4g}"
    return _minus(text)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _set_marks(ax: Axes, marks: Sequence[float], words: Sequence[str], *, x: bool = False) -> None:
    axis = ax.xaxis if x else ax.yaxis
    axis.set_ticks(list(marks), list(words))
    axis.set_ticks([], minor=True)


def _from_zero(ax: Axes, most: float, words: Callable[[Sequence[float]], list[str]], steps: int = 3) -> None:
    marks = _nice(most, steps)
    ax.set_ylim(0, max(most, marks[-1]) * 1.04 or 1.0)
    _set_marks(ax, marks, words(marks))


def _about_zero(ax: Axes, low: float, high: float, words: Callable[[Sequence[float]], list[str]]) -> None:
    """Limits that hold ``low``, 0 and ``high``, with marks on both sides where there is room."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 0:
        low, high = -1.0, 1.0
    step = _nice(max(high, -low), 2)
    step = step[1:2] or [max(high, -low)]
    marks = [place * step[0] for place in range(math.ceil(low / step[0]), math.floor(high / step[0]) + 1)]
    pad = 0.08 * (high - low)
    ax.set_ylim(low - pad, high + pad)
    _set_marks(ax, marks, words(marks))


_TIME_STEPS = (
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip


def _time_axis(ax: Axes, start_s: float, end_s: float, width: float) -> None:
    """Marks at round times, named in the unit that suits the stretch."""
    span = max(end_s - start_s, 1.0)
    ax.set_xlim(start_s, start_s + span)
    most = max(2, int(width / 62))
    step = next((one for one in _TIME_STEPS if span / one <= most), math.ceil(span / most / 604800) * 604800)
    marks = [step * place for place in range(math.ceil(start_s / step), math.floor(start_s / step + span / step) + 1)]
    unit, factor = ("s", 1) if span < 300 else ("min", 60) if span < 7200 else ("h", 3600)
    _set_marks(ax, marks, [_clock(mark, unit, factor, step) for mark in marks], x=True)


def _clock(seconds: float, unit: str, factor: int, step: float) -> str:
    if not seconds:
        return "0"
    if step % factor:
        whole, rest = divmod(round(seconds), factor)
        return f"{whole}:{round(rest * 60 / factor):02d}"
    return f"{seconds / factor:,.0f} {unit}"


def _height_of(ax: Axes, value: float, top: float, height: float) -> float:
    """Where ``value`` lies on the sheet, for axes placed at ``top`` with that ``height``."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-12))
    return top + height * (1 - (value - low) / (high - low))


def _plot(ax: Axes, role: Role, t_s: Sequence[float], values: Sequence[float | None], *, width: float | None = None) -> None:
    color, thick, dash, _ = _DRAWN[role]
    known: list[float] = [math.nan if value is None else value for value in values]
    alone = sum(value is not None for value in values) == 1
    # A single point is no line: it would not be seen.
    ax.plot(
        t_s, known, color=_C[color], linewidth=width or thick, linestyle=dash, marker="o" if alone else "", markersize=4,
        solid_joinstyle="round", dash_capstyle="butt", clip_on=True,
    )  # fmt: skip


def _points(ax: Axes, role: Role, xs: Sequence[float], ys: Sequence[float], size: float = 5.0) -> None:
    color, _, _, marker = _DRAWN[role]
    ax.plot(
        xs, ys, linestyle="none", marker=marker, markersize=size * (0.85 if marker == "D" else 1.0), markerfacecolor=_C["paper"],
        markeredgecolor=_C[color], markeredgewidth=1.2, clip_on=False, zorder=4,
    )  # fmt: skip


def _cloud(ax: Axes, role: Role, xs: Sequence[float], ys: Sequence[float]) -> None:
    places = thinned(len(xs), _MOST_RAW)
    color = _DRAWN[role][0]
    ax.plot(
        [xs[place] for place in places], [ys[place] for place in places], linestyle="none", marker="o", markersize=2.2,
        markerfacecolor=_C[color], markeredgewidth=0, alpha=0.35, zorder=2,
    )  # fmt: skip


# What one more connection costs.

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


@_drawn
def cost_lines(
    fits: Mapping[str, Fit], *, ends: int = 2, server: str = "server", host: str = "this host", style: Style = WIDE
) -> Figure:
    """Memory over connections held, above each line's fixed part: points, the line, its slope's 95 % interval, raw seconds."""
    drawn = slopes(fits, ends=ends, server=server, host=host)
    if not drawn:
        raise NothingToDraw("No line could be fitted: there are too few points of memory over connections.")
    narrow = style.narrow
    left, right, top, height = (50.0, 98.0, 22.0, 230.0) if narrow else (64.0, 172.0, 22.0, 320.0)
    sheet = _Sheet(style, top + height + 46)
    width = style.width - left - right
    ax = sheet.axes(left, top, width, height)
    most_n = max(max(one.fit.n) for one in drawn) or 1.0
    most_y = max(max(*one.above(one.fit.bytes), one.each * most_n) for one in drawn)
    # What the intervals leave open as well, but for what would press the points flat: that is cut.
    most_y = min(_ROOM * most_y, max(most_y, *(one.sides[1] * most_n for one in drawn)))
    least_y = min(min(*one.above(one.fit.bytes), one.each * most_n, one.apart or 0.0, 0.0) for one in drawn)
    ax.set_xlim(0, most_n)
    if least_y < -0.02 * max(most_y, -least_y):
        _about_zero(ax, least_y, most_y, _bytes_at)
    else:
        _from_zero(ax, max(most_y, 1.0), _bytes_at, 4)
    marks = _nice(most_n, 3 if narrow else 5)
    _set_marks(ax, marks, _counts_at(marks), x=True)
    for one in drawn:
        color, thick, dash, _ = _DRAWN[one.role]
        low, high = one.sides
        ax.fill_between([0, most_n], [0, low * most_n], [0, high * most_n], color=_C[color], alpha=0.16, linewidth=0, zorder=1)
        _cloud(ax, one.role, one.fit.seconds_n, one.above(one.fit.seconds_bytes))
        ax.plot([0, most_n], [0, one.each * most_n], color=_C[color], linewidth=thick, linestyle=dash, zorder=3)
        _points(ax, one.role, one.fit.n, one.above(one.fit.bytes))
        if one.apart is not None:
            ax.plot([0], [one.apart], marker="x", markersize=6, color=_C[color], markeredgewidth=1.4, clip_on=False, zorder=4)
    ends_at = [_height_of(ax, one.each * most_n, top, height) for one in drawn]
    lines = 28.0 if narrow else 34.0
    for one, at in zip(drawn, spread(ends_at, [lines] * len(drawn), top - 8, top + height + 6), strict=True):
        color = _DRAWN[one.role][0]
        x = left + width + 10
        size = 11.0 if narrow else 12.0
        label = (
            {f"{host} in all": "host in all", "kernel, both ends": "kernel, 2 ends"}.get(one.label, one.label)
            if narrow
            else one.label
        )
        sheet.text(x, at - 7, _cut(label, 14 if narrow else 24), color, size=size, bold=True)
        within = f"{each(one.each)} ± {each(one.half, sign=False)}" if not narrow else each(one.each)
        sheet.text(x, at + 8, within, color, size=size)
    sheet.text(left, 4, "memory above the fixed part", "soft", size=11)
    sheet.text(left + width / 2, top + height + 34, "connections held", "soft", ha="center", size=11)
    return sheet.figure


@_drawn
def cost_residuals(
    fits: Mapping[str, Fit], *, ends: int = 2, server: str = "server", host: str = "this host", style: Style = WIDE
) -> Figure:
    """How far each point lies from its line, in bytes: a strip for each fit, as high as its points reach."""
    drawn = slopes(fits, ends=ends, server=server, host=host, unsteady=True)
    if not drawn:
        raise NothingToDraw("No line could be fitted, so there are no residuals.")
    left, right = (58.0, 8.0) if style.narrow else (72.0, 12.0)
    height, gap, top = (62.0, 30.0, 24.0) if style.narrow else (66.0, 30.0, 24.0)
    sheet = _Sheet(style, top + len(drawn) * (height + gap) - gap + 44)
    width = style.width - left - right
    most_n = max(max(one.fit.n) for one in drawn) or 1.0
    marks = _nice(most_n, 3 if style.narrow else 5)
    for place, one in enumerate(drawn):
        color = _DRAWN[one.role][0]
        at = top + place * (height + gap)
        last = place == len(drawn) - 1
        ax = sheet.axes(left, at, width, height, ticks_below=last)
        ax.axhline(0, color=_C[color], linewidth=1.2, linestyle=_DRAWN[one.role][2])
        rest = one.residuals()
        reach = max([1.0, *(abs(value) for value in rest)])
        seconds = [value - one.each * n for n, value in zip(one.fit.seconds_n, one.above(one.fit.seconds_bytes), strict=True)]
        _about_zero(ax, -1.3 * reach, 1.3 * reach, _bytes_at)
        low, high = ax.get_ylim()
        kept = [(n, value) for n, value in zip(one.fit.seconds_n, seconds, strict=True) if low <= value <= high]
        _cloud(ax, one.role, [n for n, _ in kept], [value for _, value in kept])
        _points(ax, one.role, one.fit.n, rest, 4.5)
        ax.set_xlim(0, most_n)
        _set_marks(ax, marks, _counts_at(marks), x=True)
        r2 = one.fit.cost.r2
        sheet.text(left, at - 11, _cut(one.label, 26), color, bold=True, size=11.5)
        said = "" if r2 is None else f"R² {shown_r2(r2)}"
        if one.apart is not None:
            said = f"baseline apart, {_minus(format_bytes(one.apart))}{'; ' if said else ''}{said}"
        sheet.text(left + width, at - 11, said, "soft", ha="right", size=11)
    sheet.text(left + width / 2, sheet.height - 8, "connections held", "soft", ha="center", size=11)
    return sheet.figure


@_drawn
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
    sheet = _Sheet(style, top + height + (14 + 22 * rows if style.narrow else 66))
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
            sheet.text(left + 20, at, _cut(label, 30), size=12)
            sheet.text(style.width - right, at, each(size), ha="right", size=12, bold=True)
        return sheet.figure
    names = [_cut(label, 22) for label, *_ in spans]
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


def _bracket(sheet: _Sheet, left: float, right: float, total: Cost, scale: float, top: float) -> None:
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


# What comes first, what moves, what died, what differs.

_CEILING = {"memory": "memory, both ends", "server_memory": "memory, server alone"}


def drawn_ceilings(forecast: Forecast) -> list[Ceiling]:
    """The limits that are known, and what memory allows where the clients are elsewhere, the lowest first."""
    every = {one.name: one for one in (*forecast.ceilings, forecast.server_memory) if one is not None and one.connections}
    return sorted(every.values(), key=lambda one: one.connections or 0.0)


@_drawn
def forecast_ceilings(forecast: Forecast, *, asked: int, held: int = 0, style: Style = WIDE) -> Figure:
    """How many connections each limit allows, lowest first, with intervals; a line at what this run held."""
    known = drawn_ceilings(forecast)
    if not known:
        raise NothingToDraw("No limit is known that would be reached first.")
    here = held or asked
    narrow = style.narrow
    left, right = (4.0, 10.0) if narrow else (172.0, 156.0)
    step, top = (44.0, 30.0) if narrow else (32.0, 30.0)
    sheet = _Sheet(style, top + step * len(known) + 40)
    width, height = style.width - left - right, step * len(known) + 4
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=_C["grid"], linewidth=0.8)
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
        marks = _nice(high, 3 if narrow else 5)
    _set_marks(ax, marks, _counts_at(marks), x=True)
    ax.set_ylim(len(known) - 0.5, -0.5)
    _set_marks(ax, [], [])
    for place in range(len(known)):
        # On a phone the names stand over the marks: the line is broken there.
        ax.plot(
            [here, here],
            [place - (0.05 if narrow else 0.5), place + 0.5],
            color=_C["soft"],
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
                color=_C[color],
                linewidth=2.4,
                solid_capstyle="butt",
            )
            if above is None:
                ax.plot([ax.get_xlim()[1]], [y], marker=">", markersize=6, color=_C[color], clip_on=False)
        ax.plot([one.connections or 0.0], [y], marker="D" if first else "o", markersize=7, color=_C[color], zorder=5)
        at = top + height * (place + 0.5) / len(known)
        name, number = _CEILING.get(one.name, one.name.replace("_", " ")), short_count(three(one.connections or 0.0))
        if narrow:
            sheet.text(left, at - 12, name + (" (first)" if first else ""), color, bold=first, size=11.5)
            sheet.text(style.width - right, at - 12, number, color, ha="right", size=11.5, bold=first)
        else:
            sheet.text(left - 12, at, name, color, ha="right", bold=first)
            sheet.text(left + width + 12, at, number + ("  reached first" if first else ""), color, bold=first)
    return sheet.figure


DRIFT_ROLES: dict[MetricName, Role] = {
    "host_total": "total",
    "server_user": "server",
    "kernel": "kernel",
    "generator_user": "ours",
}


@_drawn
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
    sheet = _Sheet(style, top + len(drawn) * (height + gap) + 4)
    width = style.width - left - right
    start = min(medians[name].t_s[0] for name in drawn)
    end = max(medians[name].t_s[-1] for name in drawn)
    for place, name in enumerate(drawn):
        one, found, role = drifts[name], medians[name], DRIFT_ROLES[name]
        color = _DRAWN[role][0]
        at = top + place * (height + gap)
        ax = sheet.axes(left, at, width, height, ticks_below=place == len(drawn) - 1)
        per_s = (one.bytes_per_hour or 0.0) / 3600
        base = statistics.median(value - per_s * (t_s - start) for t_s, value in zip(found.t_s, found.values, strict=True))
        above = [value - base for value in found.values]
        into = Buckets(start, max(1.0, (end - start) / 400), 400)
        kept_t, kept = extremes(found.t_s, above, into)
        line_t = [start, end]
        line = [per_s * (t_s - start) for t_s in line_t]
        _plot(ax, role, *broken(kept_t, kept, max(150.0, into.gap_s)), width=1.0)
        if len(kept) <= 120:
            _points(ax, role, kept_t, kept, 3.2)
        if one.bytes_per_hour is not None:
            ax.plot(line_t, line, color=_C["ink"], linewidth=1.4, zorder=5)
        _about_zero(ax, min(*above, *line), max(*above, *line), _bytes_at)
        _time_axis(ax, start, end, width)
        sheet.text(left, at - 12, _cut(labels[name], 26), color, bold=True, size=11.5)
        sheet.text(left + width, at - 12, drift_words(one), ha="right", size=11)
    return sheet.figure


def drift_words(one: Drift) -> str:
    """``"grows 1.2 MB an hour"``, ``"flat within 300 kB an hour"``, ``"too short to say"``."""
    if one.verdict == "flat" and one.within_bytes_per_hour is not None:
        return f"flat within {format_bytes(one.within_bytes_per_hour)} an hour"
    if one.verdict in ("grows", "shrinks") and one.bytes_per_hour is not None:
        return f"{one.verdict} {format_bytes(abs(one.bytes_per_hour))} an hour"
    return "too short to say" if one.verdict == "too_short" else one.verdict


_ASPECTS: tuple[tuple[str, str, Callable[[Deaths], Histogram]], ...] = (
    ("age", "s", lambda dead: dead.age_s),
    ("idle for", "s", lambda dead: dead.idle_s),
    ("requests", "", lambda dead: dead.requests),
)
MOST_CAUSES = 6


@_drawn
def deaths_by(dead: Mapping[str, Deaths], *, style: Style = WIDE) -> Figure:
    """How old, how long idle and after how many requests connections ended: a row for each cause, most frequent first."""
    causes = sorted((cause for cause, one in dead.items() if one.count), key=lambda cause: (-dead[cause].count, cause))
    if not causes:
        raise NothingToDraw("No established connection was lost.")
    causes = causes[:MOST_CAUSES]
    narrow = style.narrow
    columns = 1 if narrow else 3
    height, under, head = 54.0, 36.0, 24.0
    row = head + (height + under) * (3 if narrow else 1) + 8
    sheet = _Sheet(style, row * len(causes))
    pitch = (style.width - 4) / columns
    for place, cause in enumerate(causes):
        top = place * row
        sheet.text(2, top + 10, f"{format_count(dead[cause].count)} {_cut(cause, 30)}", bold=True)
        for which, (name, unit, of) in enumerate(_ASPECTS):
            left = 2.0 if narrow else 2.0 + which * pitch
            at = top + head + (which * (height + under) if narrow else 0)
            _bars(sheet, of(dead[cause]), left, at, pitch - (8 if narrow else 26), height, name, unit)
    return sheet.figure


def _bars(
    sheet: _Sheet, histogram: Histogram, left: float, top: float, width: float, height: float, name: str, unit: str
) -> None:
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    _set_marks(ax, [], [])
    edges, counts = rebinned(histogram, 40)
    if not counts:
        ax.set_xlim(0, 1)
        _set_marks(ax, [], [], x=True)
        sheet.text(left, top + height + 27, f"{name}: not known", "soft", size=11)
        return
    step = edges[1] - edges[0]
    ax.bar(edges[:-1], counts, width=step * 0.92, align="edge", color=_C["server"], linewidth=0)
    low, high = edges[0], edges[-1]
    # A bar or two would fill the panel, and look like a wide spread.
    if len(counts) < 10:
        pad = (12 - len(counts)) / 2 * step
        low, high = low - pad, high + pad
    ax.set_xlim(low, high)
    ax.set_ylim(0, max(counts) * 1.06)
    first, middle, last = histogram.quantile(0.0), histogram.quantile(0.5), histogram.quantile(1.0)
    marks = _between(low, high, max(2, int(width / 80)))
    show = _short_duration if unit == "s" else format_count
    # A mark at the very edge would stand half beside the sheet.
    marks = [mark for mark in marks if mark >= 0 and 0.07 <= (mark - low) / (high - low) <= 0.93]
    _set_marks(ax, marks, [show(mark) for mark in marks], x=True)
    if first is None or middle is None or last is None:
        return
    span = show(middle) if first == last else f"{show(first)} to {show(last)}, median {show(middle)}"
    sheet.text(left, top + height + 27, f"{name} {span}", "soft", size=11)


def _short_duration(seconds: float) -> str:
    """``"75 s"``, ``"12.5 min"``, ``"2.25 h"``."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _between(low: float, high: float, steps: int) -> list[float]:
    """Round marks within the limits."""
    raw = max((high - low) / steps, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= raw * 0.999)
    step = max(step, 1.0)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


_PAIRS = (
    ("held", "open, active on the server", "held", "server_active"),
    ("accepts", "opened, accepted", "opened", "accepts"),
    ("handled", "opened, handled", "opened", "handled"),
    ("requests", "answers and polls, requests", "answers", "requests"),
)


def _within(t_s: float, phase: Span) -> bool:
    return phase.start_s - 1.0 <= t_s <= phase.end_s + 1.0


@_drawn
def counts_apart(counts: CountsOverTime, phases: Sequence[Span], *, style: Style = WIDE) -> Figure:
    """The server's counts less the client's, over time: a strip for each pair. At zero they agree."""
    # Of the drain's tens of thousands a second the two are never read at the same instant: its saw would hide all else.
    closing = [one for one in phases if one.name == "drain"]
    drawn = []
    for name, label, ours, theirs in _PAIRS:
        both = [
            (t_s, b - a)
            for t_s, a, b in zip(counts.t_s, getattr(counts, ours), getattr(counts, theirs), strict=True)
            if a is not None and b is not None and not (name == "held" and any(_within(t_s, one) for one in closing))
        ]
        if both:
            drawn.append((name, label, [t_s for t_s, _ in both], [float(apart) for _, apart in both]))
    if not drawn:
        raise NothingToDraw("The server's own counts are not known, so there is nothing to compare.")
    left, right = (56.0, 8.0) if style.narrow else (72.0, 12.0)
    height, gap, top = 46.0, 32.0, 44.0
    sheet = _Sheet(style, top + len(drawn) * (height + gap))
    width = style.width - left - right
    end = max([counts.t_s[-1], *(one.end_s for one in phases)])
    _phase_names(sheet, phases, end, left, width, 6.0)
    for place, (_, label, t_s, apart) in enumerate(drawn):
        at = top + place * (height + gap)
        ax = sheet.axes(left, at, width, height, ticks_below=place == len(drawn) - 1)
        _shade(ax, phases)
        into = Buckets(0.0, max(1.0, end / 480), 480)
        kept_t, kept = broken(*extremes(t_s, apart, into), into.gap_s)
        known = [0.0 if value is None else value for value in kept]
        ax.fill_between(kept_t, 0, known, color=_C["violet"], alpha=0.2, linewidth=0)
        ax.axhline(0, color=_C["rule"], linewidth=0.8)
        color = _C["violet"]
        ax.plot(kept_t, [math.nan if value is None else value for value in kept], color=color, linewidth=1.2)
        _about_zero(ax, min(apart), max(apart), _counts_at)
        _time_axis(ax, 0.0, end, width)
        sheet.text(left, at - 11, label, bold=True, size=11.5)
        last = apart[-1]
        end_words = f"ends {_signed(last)}" if style.narrow else f"at the end {_signed(last)}"
        said = "equal throughout" if not any(apart) else end_words
        sheet.text(left + width, at - 11, said, "soft", ha="right", size=11)
    return sheet.figure


# The timeline.

LEFT, RIGHT = 64.0, 114.0
_NARROW_LEFT, _NARROW_RIGHT = 50.0, 8.0


def timeline_frame(style: Style) -> tuple[float, float]:
    """The left and the right border (px) of the timeline's panels, for what is laid over it."""
    return (_NARROW_LEFT, style.width - _NARROW_RIGHT) if style.narrow else (LEFT, style.width - RIGHT)


@_drawn
def timeline_panels(timeline: Timeline, *, style: Style = WIDE) -> Figure:
    """Connections, memory, heartbeats, latencies, lateness and what was lost, one above the other on one time axis."""
    if not timeline.panels:
        raise NothingToDraw("Nothing was recorded over time: the run ended before its first second.")
    left, beyond = timeline_frame(style)
    width = beyond - left
    height, gap = (84.0, 50.0) if style.narrow else (92.0, 30.0)
    lane, lane_head = (30.0, 18.0), 34.0
    top = 62.0 if style.narrow else 46.0
    lanes = timeline.lanes
    lanes_high = lane_head + len(lanes) * sum(lane) if lanes else 26.0 - gap
    sheet = _Sheet(style, top + len(timeline.panels) * (height + gap) + lanes_high)
    end = max(timeline.end_s, 1.0)
    _phase_names(sheet, timeline.phases, end, left, width, 6.0)
    for place, panel in enumerate(timeline.panels):
        at = top + place * (height + gap)
        last = place == len(timeline.panels) - 1 and not lanes
        ax = sheet.axes(left, at, width, height, ticks_below=last)
        _shade(ax, timeline.phases)
        _panel(sheet, ax, panel, left, at, width, height)
        _time_axis(ax, 0.0, end, width)
    if lanes:
        _lanes(sheet, timeline, left, top + len(timeline.panels) * (height + gap), width, lane, end)
    return sheet.figure


def _panel(sheet: _Sheet, ax: Axes, panel: Panel, left: float, top: float, width: float, height: float) -> None:
    known = [value for line in panel.lines for value in line.values if value is not None]
    if panel.log:
        _log_axis(ax, min(known), max(known))
    elif panel.unit == "bytes" and min(known) < -0.02 * max(*known, 1.0):
        _about_zero(ax, min(known), max(known), _bytes_at)
    else:
        _from_zero(ax, max(*known, 1.0), _bytes_at if panel.unit == "bytes" else _counts_at)
    # Where lines lie on each other, the whole one under the broken ones: both are seen.
    for line in sorted(panel.lines, key=lambda line: _DRAWN[line.role][2] != _SOLID):
        _plot(ax, line.role, line.t_s, line.values)
    ax.set_ylim(ax.get_ylim())
    sheet.text(left, top - (26 if sheet.style.narrow else 11), panel.title, bold=True, size=11.5)
    named = [(line, next(value for value in reversed(line.values) if value is not None)) for line in panel.lines]
    if not sheet.style.narrow:
        # At the end of the hold lines are where their names should stand, not where the drain has taken them.
        anchors = [_height_of(ax, _typical(line.values), top, height) for line, _ in named]
        for (line, _), at in zip(named, spread(anchors, [15.0] * len(named), top - 2, top + height + 2), strict=True):
            _key(sheet, line.role, left + width + 8, at, _cut(line.label, 14))
        return
    labels = [_cut(line.label, 13) for line, _ in named]
    words = sum(wide(label, 10.5) for label in labels)
    # More names than there is room for over the panel begin at the sheet's edge, closer together.
    x = left if words + 33 * len(labels) <= width + 14 else 2.0
    pitch = min(33.0, (left + width - x - words) / len(labels))
    for (line, _), label in zip(named, labels, strict=True):
        _key(sheet, line.role, x, top - 10, label, 10.5, max(6.0, min(15.0, pitch - 12.0)))
        x += wide(label, 10.5) + pitch


def _typical(values: Sequence[float | None]) -> float:
    return statistics.median(value for value in values if value is not None)


def _key(sheet: _Sheet, role: Role, x: float, y: float, label: str, size: float = 11.0, length: float = 15.0) -> None:
    """A line's name with a piece of the line before it."""
    color, thick, dash, _ = _DRAWN[role]
    sheet.line([x, x + length], [y, y], color, thick, dash)
    sheet.text(x + length + 4, y, label, color, size=size)


def _log_axis(ax: Axes, low: float, high: float) -> None:
    ax.set_yscale("log")
    low, high = low / 1.25, max(high * 1.25, low * 4)
    ax.set_ylim(low, high)
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    marks = [10.0**power for power in decades]
    if len(marks) < 2:
        marks = sorted({*marks, *(k * 10.0**p for p in range(math.floor(math.log10(low)), decades.stop + 1) for k in (2, 5))})
        marks = [mark for mark in marks if low <= mark <= high]
    elif len(marks) > 4:
        marks = marks[:: math.ceil(len(marks) / 4)]
    _set_marks(ax, marks, [_ms(mark) for mark in marks])


def _ms(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms" if value >= 0.1 else f"{value * 1000:g} µs"


def _lanes(
    sheet: _Sheet, timeline: Timeline, left: float, top: float, width: float, size: tuple[float, float], end: float,
) -> None:  # fmt: skip
    heading = "Lost and failed, by cause" if sheet.style.narrow else "Lost connections and failed attempts, by cause"
    sheet.text(left, top + 2, heading, bold=True, size=11.5)
    height, head = size
    lanes = timeline.lanes
    for place, lane in enumerate(lanes):
        at = top + 16 + head + place * (height + head)
        ax = sheet.axes(left, at, width, height, ticks_below=place == len(lanes) - 1)
        ax.grid(visible=False)
        _shade(ax, timeline.phases)
        # A second of twelve hours is thinner than a pixel, and must be seen all the same.
        bar = max(timeline.into.width_s, end / width * 1.5)
        color = "kernel" if lane.kind == "lost" else "violet"
        ax.bar(lane.t_s, lane.counts, width=bar, color=_C[color], linewidth=0)
        ax.set_ylim(0, max(lane.counts) * 1.05)
        _set_marks(ax, [], [])
        _time_axis(ax, 0.0, end, width)
        most = max(lane.counts)
        stretch = "a second" if timeline.into.width_s <= 1 else f"in {format_duration(timeline.into.width_s)}"
        words = f"{lane.kind}: {_cut(lane.cause, 26)}, {format_count(lane.total)}"
        sheet.text(left, at - 9, words, color, size=11)
        if not sheet.style.narrow:
            sheet.text(left + width, at - 9, f"at most {format_count(most)} {stretch}", "soft", ha="right", size=11)


def _shade(ax: Axes, phases: Sequence[Span]) -> None:
    """Ramp and drain, in which the number of connections changes, stand on a tint; a hairline parts all phases."""
    for one in phases:
        if one.name in ("ramp", "drain") and one.end_s > one.start_s:
            ax.axvspan(one.start_s, one.end_s, facecolor=_C["shade"], linewidth=0, zorder=0)
        if one.start_s > 0:
            ax.axvline(one.start_s, color=_C["rule"], linewidth=0.6, zorder=0.5)


def _phase_names(sheet: _Sheet, phases: Sequence[Span], end_s: float, left: float, width: float, top: float) -> None:
    """The phases' names in a row, each with a leader to its middle: a phase of five seconds in hours has no room for its own."""
    end_s = max(end_s, 1.0)
    middles = [left + width * (one.start_s + one.end_s) / 2 / end_s for one in phases]
    sizes = [wide(one.name, 11) + 8 for one in phases]
    right = sheet.width if not sheet.style.narrow else left + width
    for one, middle, at in zip(phases, middles, spread(middles, sizes, max(0.0, left - 30), right), strict=True):
        sheet.text(at, top + 4, one.name, "soft", ha="center", size=11)
        sheet.line([at, middle], [top + 12, top + 19], "rule", 0.7)


def each(value: float, *, sign: bool = True) -> str:
    """Bytes of one connection: ``"10,888 B"``; tenths below ten."""
    number = "0" if abs(value) < 0.05 else f"{value:,.1f}" if abs(value) < 9.95 else f"{value:,.0f}"
    return _minus(number) + (" B" if sign else "")


def shown_r2(r2: float) -> str:
    """R² to three digits, with a fourth beyond 0.999; never 1 where it is not."""
    if r2 == 1.0:
        return "1"
    text = f"{r2:.3f}" if r2 < 0.9995 else f"{r2:.4f}"
    return "> 0.9999" if text.startswith("1") else text


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + short_count(value)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
