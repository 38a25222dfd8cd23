"""What the figures of a report share: colours, a sheet in pixels, axes, marks, lines. For pages, --plots and notebooks.

Each function takes data and gives a :class:`matplotlib.figure.Figure`; none touches pyplot, a GUI or the caller's style.
What cannot be drawn raises :class:`NothingToDraw`, whose text says why in a sentence. Lengths are CSS pixels (1/72 inch in
a figure), from the top left, so that 12 is a text of 12 pixels where the page shows the figure at its own width.

Colours are those of Okabe and Ito (2008, "Color Universal Design"), darkened until text in them has a contrast of 4.5 on
paper; and no two lines differ by colour alone: each role has a dash and a marker of its own, and its name stands at it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec

from asyncli.report.figures.downsample import thinned
from asyncli.report.figures.panels import Role, Span
from asyncli.report.format import minus, short_bytes, short_count

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


COLOURS = {name: light for name, (light, _) in PALETTE.items()}
Dash = tuple[float, tuple[float, ...]]
SOLID: Dash = (0.0, ())
#: Role -> colour, width, dash, marker.
ROLES: dict[Role, tuple[str, float, Dash, str]] = {
    "asked": ("soft", 1.1, (0.0, (1.5, 1.8)), ""),
    "total": ("ink", 1.8, SOLID, "D"),
    "server": ("server", 1.6, SOLID, "o"),
    "kernel": ("kernel", 1.6, (0.0, (5.0, 1.6)), "s"),
    "ours": ("ours", 1.6, (0.0, (5.0, 1.6, 1.0, 1.6)), "^"),
    "middle": ("ink", 1.5, SOLID, ""),
    "high": ("violet", 1.2, (0.0, (5.0, 1.6)), ""),
    "most": ("soft", 0.9, (0.0, (1.2, 1.4)), ""),
}
# Of matplotlib's own settings, those that change a drawing: a notebook's style sheet must not.
_DRAWING = (
    "axes.", "figure.", "font.", "grid.", "hatch.", "lines.", "markers.", "patch.", "path.", "svg.", "text.", "xtick.", "ytick.",
)  # fmt: skip
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


def drawn_alone(function: Callable[P, Figure]) -> Callable[P, Figure]:
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
    squeeze = min(1.0, (high - low) / sum(sizes)) if sum(sizes) > 0 else 1.0
    ends = list(itertools.accumulate((sizes[place] * squeeze for place in order), initial=0.0))
    # Where the first would begin if each were where it wants to be: it may not fall. Groups that touch share their mean.
    groups: list[tuple[float, int]] = []
    for at, (start, end) in enumerate(itertools.pairwise(ends)):
        groups.append((wanted[order[at]] - (start + end) / 2, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (before, many), (after, more) = groups[-2:]
            groups[-2:] = [((before * many + after * more) / (many + more), many + more)]
    found = [0.0] * len(wanted)
    begins = (min(max(begin, low), high - ends[-1]) for begin, many in groups for _ in range(many))
    for place, begin, (start, end) in zip(order, begins, itertools.pairwise(ends), strict=True):
        found[place] = begin + (start + end) / 2
    return found


def wide(words: str, size: float = 12.0) -> float:
    """About how wide a text is, in pixels: the page's font is not known, and 0.58 of its size is a wide one's mean sign."""
    return 0.58 * size * len(words)


class Sheet:
    """A figure that is laid out in pixels from its top left."""

    def __init__(self, style: Style, height: float) -> None:
        from matplotlib.figure import Figure

        self.style = style
        self._head = (34.0 + (18.0 if style.note else 0.0)) if style.title else 2.0
        self.width, self.height = style.width, height
        whole = height + self._head
        self.figure = Figure(figsize=(style.width / 72, whole / 72), dpi=72, facecolor=COLOURS["paper"])
        # Drawn over everything: labels, leaders, bars.
        self.canvas = self.figure.add_axes((0, 0, 1, 1), zorder=9, facecolor="none")
        self.canvas.set_axis_off()
        self.canvas.set_xlim(0, style.width)
        self.canvas.set_ylim(height, -self._head)
        if style.title:
            self.canvas.text(2, -self._head + 20, style.title, color=COLOURS["ink"], size=14, weight="bold", va="baseline")
            self.canvas.text(2, -self._head + 38, style.note, color=COLOURS["soft"], size=11, va="baseline")

    def axes(self, left: float, top: float, width: float, height: float, *, ticks_below: bool = True) -> Axes:
        whole = self.height + self._head
        box = (left / self.width, 1 - (top + self._head + height) / whole, width / self.width, height / whole)
        ax = self.figure.add_axes(box, facecolor="none")
        for side in ("left", "right", "top"):
            ax.spines[side].set_visible(False)
        ax.spines["bottom"].set_color(COLOURS["rule"])
        ax.spines["bottom"].set_linewidth(0.8)
        ax.grid(visible=True, axis="y", color=COLOURS["grid"], linewidth=0.8)
        ax.set_axisbelow(True)
        ax.tick_params(axis="both", which="both", length=0, labelsize=11, labelcolor=COLOURS["soft"], pad=5)
        ax.tick_params(axis="x", labelbottom=ticks_below, length=3 if ticks_below else 0, color=COLOURS["rule"])
        ax.margins(0)
        return ax

    def text(
        self, x: float, y: float, words: str, color: str = "ink", *, ha: str = "left", size: float = 12.0, bold: bool = False,
    ) -> None:  # fmt: skip
        """``words`` with their middle at the height ``y``."""
        weight = "bold" if bold else "normal"
        # A third of the size below the middle is where letters stand, in any font.
        self.canvas.text(x, y + size * 0.35, words, color=COLOURS[color], ha=ha, va="baseline", size=size, weight=weight)

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str, width: float = 1.0, dash: Dash = SOLID) -> None:
        self.canvas.plot(xs, ys, color=COLOURS[color], linewidth=width, linestyle=dash, solid_capstyle="butt")

    def bar(self, left: float, top: float, width: float, height: float, color: str, *, hatched: bool = False) -> None:
        from matplotlib.patches import Rectangle

        box = Rectangle(
            (left, top),
            width,
            height,
            facecolor=COLOURS["paper"] if hatched else COLOURS[color],
            edgecolor=COLOURS[color],
            linewidth=0.8,
        )
        if hatched:
            box.set_hatch("////")
        self.canvas.add_patch(box)


def round_marks(most: float, steps: int) -> list[float]:
    """Round marks from 0 to just below or at ``most``: about ``steps`` of them."""
    if not most > 0:
        return [0.0]
    raw = most / steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= raw * 0.999)
    return [step * place for place in range(int(most / step * 1.0001) + 1)]


def bytes_at(marks: Sequence[float]) -> list[str]:
    """Byte marks in one unit for all of an axis: ``0``, ``200 MB``, ``400 MB``."""
    most = max((abs(mark) for mark in marks), default=0.0)
    unit, factor = next(((u, f) for u, f in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if most >= f), ("B", 1.0))
    return ["0" if not mark else f"{minus(f'{mark / factor:g}')} {unit}" for mark in marks]


def counts_at(marks: Sequence[float]) -> list[str]:
    return [short_count(mark) for mark in marks]


def set_marks(ax: Axes, marks: Sequence[float], words: Sequence[str], *, x: bool = False) -> None:
    axis = ax.xaxis if x else ax.yaxis
    axis.set_ticks(list(marks), list(words))
    axis.set_ticks([], minor=True)


def from_zero(ax: Axes, most: float, words: Callable[[Sequence[float]], list[str]], steps: int = 3) -> None:
    marks = round_marks(most, steps)
    ax.set_ylim(0, max(most, marks[-1]) * 1.04 or 1.0)
    set_marks(ax, marks, words(marks))


def about_zero(ax: Axes, low: float, high: float, words: Callable[[Sequence[float]], list[str]]) -> None:
    """Limits that hold ``low``, 0 and ``high``, with marks on both sides where there is room."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 0:
        low, high = -1.0, 1.0
    step = round_marks(max(high, -low), 2)
    step = step[1:2] or [max(high, -low)]
    marks = [place * step[0] for place in range(math.ceil(low / step[0]), math.floor(high / step[0]) + 1)]
    pad = 0.08 * (high - low)
    ax.set_ylim(low - pad, high + pad)
    set_marks(ax, marks, words(marks))


_TIME_STEPS = (
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip


def time_axis(ax: Axes, start_s: float, end_s: float, width: float) -> None:
    """Marks at round times, named in the unit that suits the stretch."""
    span = max(end_s - start_s, 1.0)
    ax.set_xlim(start_s, start_s + span)
    most = max(2, int(width / 62))
    step = next((one for one in _TIME_STEPS if span / one <= most), math.ceil(span / most / 604800) * 604800)
    marks = [step * place for place in range(math.ceil(start_s / step), math.floor(start_s / step + span / step) + 1)]
    unit, factor = ("s", 1) if span < 300 else ("min", 60) if span < 7200 else ("h", 3600)
    set_marks(ax, marks, [_clock(mark, unit, factor, step) for mark in marks], x=True)


def _clock(seconds: float, unit: str, factor: int, step: float) -> str:
    if not seconds:
        return "0"
    if step % factor:
        whole, rest = divmod(round(seconds), factor)
        return f"{whole}:{round(rest * 60 / factor):02d}"
    return f"{seconds / factor:,.0f} {unit}"


def height_of(ax: Axes, value: float, top: float, height: float) -> float:
    """Where ``value`` lies on the sheet, for axes placed at ``top`` with that ``height``."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-12))
    return top + height * (1 - (value - low) / (high - low))


def plot_line(ax: Axes, role: Role, t_s: Sequence[float], values: Sequence[float | None], *, width: float | None = None) -> None:
    color, thick, dash, _ = ROLES[role]
    known: list[float] = [math.nan if value is None else value for value in values]
    alone = sum(value is not None for value in values) == 1
    # A single point is no line: it would not be seen.
    ax.plot(
        t_s, known, color=COLOURS[color], linewidth=width or thick, linestyle=dash, marker="o" if alone else "", markersize=4,
        solid_joinstyle="round", dash_capstyle="butt", clip_on=True,
    )  # fmt: skip


def plot_points(ax: Axes, role: Role, xs: Sequence[float], ys: Sequence[float], size: float = 5.0) -> None:
    color, _, _, marker = ROLES[role]
    ax.plot(
        xs, ys, linestyle="none", marker=marker, markersize=size * (0.85 if marker == "D" else 1.0),
        markerfacecolor=COLOURS["paper"], markeredgecolor=COLOURS[color], markeredgewidth=1.2, clip_on=False, zorder=4,
    )  # fmt: skip


def plot_cloud(ax: Axes, role: Role, xs: Sequence[float], ys: Sequence[float]) -> None:
    places = thinned(len(xs), _MOST_RAW)
    color = ROLES[role][0]
    ax.plot(
        [xs[place] for place in places], [ys[place] for place in places], linestyle="none", marker="o", markersize=2.2,
        markerfacecolor=COLOURS[color], markeredgewidth=0, alpha=0.35, zorder=2,
    )  # fmt: skip


class Strips:
    """Panels one below the other on a common axis, each with a title at its left and a remark at its right."""

    def __init__(self, style: Style, count: int, *, height: float, gap: float, top: float, below: float, left: float) -> None:
        self.left, right = (left, 8.0) if style.narrow else (72.0, 12.0)
        self._count, self._height, self._pitch, self._top = count, height, height + gap, top
        self.sheet = Sheet(style, top + count * self._pitch + below)
        self.width = style.width - self.left - right

    def axes(self, place: int, title: str, remark: str, color: str = "ink", remark_color: str = "soft") -> Axes:
        """The panel at ``place``."""
        at = self._top + place * self._pitch
        self.sheet.text(self.left, at - 12, cut(title, 30), color, bold=True, size=11.5)
        self.sheet.text(self.left + self.width, at - 12, remark, remark_color, ha="right", size=11)
        return self.sheet.axes(self.left, at, self.width, self._height, ticks_below=place == self._count - 1)


def shade_phases(ax: Axes, phases: Sequence[Span]) -> None:
    """Ramp and drain, in which the number of connections changes, stand on a tint; a hairline parts all phases."""
    for one in phases:
        if one.name in ("ramp", "drain") and one.end_s > one.start_s:
            ax.axvspan(one.start_s, one.end_s, facecolor=COLOURS["shade"], linewidth=0, zorder=0)
        if one.start_s > 0:
            ax.axvline(one.start_s, color=COLOURS["rule"], linewidth=0.6, zorder=0.5)


def name_phases(sheet: Sheet, phases: Sequence[Span], end_s: float, left: float, width: float, top: float) -> None:
    """The phases' names in a row, each with a leader to its middle: a phase of five seconds in hours has no room for its own."""
    end_s = max(end_s, 1.0)
    middles = [left + width * (one.start_s + one.end_s) / 2 / end_s for one in phases]
    sizes = [wide(one.name, 11) + 8 for one in phases]
    right = sheet.width if not sheet.style.narrow else left + width
    for one, middle, at in zip(phases, middles, spread(middles, sizes, max(0.0, left - 30), right), strict=True):
        sheet.text(at, top + 4, one.name, "soft", ha="center", size=11)
        sheet.line([at, middle], [top + 12, top + 19], "rule", 0.7)


def each(value: float, *, sign: bool = True) -> str:
    """Bytes of one connection: ``"10,888 B"``."""
    return minus(short_bytes(value)) + (" B" if sign else "")


def cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
