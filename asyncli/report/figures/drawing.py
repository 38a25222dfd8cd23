"""Shared parts of the figures: colours, axes in pixels, ticks and legends; a figure as SVG, inline or as a file, and as PNG.

A figure is a function from data to a :class:`matplotlib.figure.Figure`, without pyplot and the caller's style. Without data it
raises :class:`NothingToDraw` with a sentence. Lengths are CSS pixels (1/72 inch), so text of size 12 has 12 pixels on the page.

Colours: Okabe and Ito (2008, "Color Universal Design"), darkened to a contrast of 4.5 on paper. Each role also has a dash and a
marker. SVG is deterministic and refers to nothing outside: no DTD, no metadata.
"""

from __future__ import annotations

import functools
import html
import io
import re
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec

from asyncli.report.figures.timeline_data import Role, Span
from asyncli.report.format import minus, short_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")

#: Name -> (on light paper, on dark). The light ones are drawn; a page replaces each by a CSS variable.
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
}
COLOURS = {name: light for name, (light, _) in PALETTE.items()}


class Style(msgspec.Struct, frozen=True):
    """The size of a figure. ``title`` and ``note``: for a figure outside a page."""

    width: float = 736.0
    narrow: bool = False
    title: str = ""
    note: str = ""


WIDE = Style()
#: For a phone: 390 pixels less margins.
NARROW = Style(358.0, narrow=True)


class NothingToDraw(ValueError):  # noqa: N818  (no error of the user's: the text says why there is no figure)
    """No data for this figure; the text says why."""


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
_RC_PARAMS: Any = {
    "axes.axisbelow": True, "axes.edgecolor": COLOURS["rule"], "axes.facecolor": "none", "axes.grid": True, "axes.grid.axis": "y",
    "axes.linewidth": 0.8, "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlecolor": COLOURS["ink"], "axes.titlelocation": "left", "axes.titlesize": 11.5, "axes.titleweight": "bold",
    "axes.labelcolor": COLOURS["soft"], "axes.labelsize": 11, "axes.xmargin": 0,
    "figure.facecolor": COLOURS["paper"], "font.sans-serif": ["DejaVu Sans"], "font.size": 12.0,
    "grid.color": COLOURS["grid"], "hatch.linewidth": 0.7,
    "legend.fontsize": 11, "legend.frameon": False, "legend.handlelength": 1.5, "legend.handletextpad": 0.5,
    "lines.solid_capstyle": "butt", "text.color": COLOURS["ink"],
    # A dollar sign in a server's name is not mathematics.
    "text.parse_math": False,
    # Text stays text, in the page's font.
    "svg.fonttype": "none",
    "xtick.color": COLOURS["rule"], "xtick.labelcolor": COLOURS["soft"], "xtick.labelsize": 11, "xtick.major.size": 3,
    "ytick.labelcolor": COLOURS["soft"], "ytick.labelsize": 11, "ytick.major.pad": 7, "ytick.major.size": 0,
}  # fmt: skip


def drawing() -> Any:
    """A context with the style of reports, whatever the caller's settings."""
    import matplotlib as mpl

    defaults: Any = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith(("backend", "interactive"))}
    return mpl.rc_context({**defaults, **_RC_PARAMS})


def drawn_alone(function: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with drawing():
            return function(*args, **kwargs)

    return inside


def sheet(
    style: Style, heights: Sequence[float], margins: tuple[float, float, float, float], *, gap: float = 0.0, columns: int = 1,
    common_x: bool = False,
) -> tuple[Figure, Any]:  # fmt: skip
    """A figure and its axes: rows of these heights with ``gap`` between, within ``margins`` (left, right, top, bottom)."""
    from matplotlib.figure import Figure

    left, right, top, bottom = margins
    head = (34.0 + (18.0 if style.note else 0.0)) if style.title else 0.0
    height = head + top + sum(heights) + gap * (len(heights) - 1) + bottom
    figure = Figure(figsize=(style.width / 72, height / 72), dpi=72)
    places = {
        "left": left / style.width, "right": 1 - right / style.width, "top": 1 - (head + top) / height, "bottom": bottom / height,
        "hspace": gap / statistics.fmean(heights), "height_ratios": heights, "wspace": 0.12,
    }  # fmt: skip
    if style.title:
        figure.text(2 / style.width, 1 - 20 / height, style.title, size=14, weight="bold")
        figure.text(2 / style.width, 1 - 38 / height, style.note, size=11, color=COLOURS["soft"])
    return figure, figure.subplots(len(heights), columns, sharex=common_x, squeeze=False, gridspec_kw=places)


def ticks(axis: Axis, unit: str, most: int) -> None:
    """Round ticks, ``most`` of them at most: ``200 MB``, ``10k``."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=True))
    whole = EngFormatter(unit, sep=" " if unit else "")
    # Around a flat line there would be thousandths of a byte.
    axis.set_major_formatter(FuncFormatter(lambda value, _: "" if 0 < abs(value) < 1 else whole(value)))


def time_axis(ax: Axes, start_s: float, end_s: float, width: float) -> None:
    """Ticks at round times in a suitable unit."""
    from matplotlib.ticker import MaxNLocator

    end_s = max(end_s, start_s + 1.0)
    unit, factor = ("s", 1) if end_s - start_s < 300 else ("min", 60) if end_s - start_s < 7200 else ("h", 3600)
    marks = MaxNLocator(max(2, int(width / 66)), steps=[1, 2, 3, 5, 6, 10]).tick_values(start_s / factor, end_s / factor)
    marks = [mark for mark in marks if start_s <= mark * factor <= end_s]
    ax.set_xticks([mark * factor for mark in marks], [f"{mark:g} {unit}" for mark in marks])
    ax.set_xlim(start_s, end_s)


def legend(ax: Axes, style: Style, columns: int = 3) -> int:
    """Add a legend beside the axes, or above them on a phone; return its height there."""
    handles, labels = ax.get_legend_handles_labels()
    if not style.narrow:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.06), borderaxespad=0.3, labelcolor="linecolor")
        return 0
    lines = max((label.count("\n") + 1 for label in labels), default=0)
    ax.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(-0.1, 1.0), borderaxespad=0.1, ncols=columns, columnspacing=1.0,
        labelcolor="linecolor",
    )  # fmt: skip
    return -(-len(labels) // columns) * 18 * lines


def plot_line(ax: Axes, role: Role, t_s: Any, values: Any, label: str = "") -> None:
    """A line, open where a value is NaN; a single point gets a marker."""
    color, thick, dash, _ = ROLES[role]
    marker = "o" if len(values) == 1 else ""
    ax.plot(t_s, values, color=COLOURS[color], linewidth=thick, linestyle=dash, marker=marker, markersize=4, label=label)


def plot_points(ax: Axes, role: Role, xs: Sequence[float], ys: Sequence[float], size: float = 5.0) -> None:
    """Open markers of the role's shape."""
    color, _, _, marker = ROLES[role]
    ax.plot(
        xs, ys, linestyle="none", marker=marker, markersize=size, markerfacecolor=COLOURS["paper"],
        markeredgecolor=COLOURS[color], markeredgewidth=1.2, clip_on=False, zorder=4,
    )  # fmt: skip


def write_at_right(
    ax: Axes, place: float, text: str, colour: str, gap: float, weight: str = "normal"
) -> None:
    """Write ``text`` to the right of the axes at ``place``, ``gap`` points from them."""
    ax.annotate(
        text,
        (1.0, place),
        xycoords=("axes fraction", "data"),
        xytext=(gap, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        size=11,
        weight=weight,
    )


def shade_phases(ax: Axes, phases: Sequence[Span]) -> None:
    """Tint ramp and drain, and separate the phases by thin lines."""
    for one in phases:
        if one.name in ("ramp", "drain"):
            ax.axvspan(one.start_s, one.end_s, facecolor=COLOURS["shade"], linewidth=0, zorder=0)
        if one.start_s > 0:
            ax.axvline(one.start_s, color=COLOURS["rule"], linewidth=0.6, zorder=0.5)


def each(value: float, *, sign: bool = True) -> str:
    """Bytes of one connection: ``"10,888 B"``."""
    return minus(short_bytes(value)) + (" B" if sign else "")


def cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)))
_HEAD = re.compile(r"<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>.*?</style>\s*|<!--.*?-->\s*", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'\s+id="([^"]*)"')
_REFERENCE = re.compile(r'(?:xlink:)?(href="#|url\(#)([^")]+)')
# matplotlib wrote a font as CSS shorthand (style? weight? size families) up to 3.9, and each part separately since.
_FONT = re.compile(r"font: ((?:[\w.]+ )*)([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;?\s*")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(figure: Figure, name: str) -> str:
    """``figure`` as an ``<svg>`` element: CSS variables of PALETTE as colours, the page's font, ids with the prefix ``name``.
    Hidden from assistive technology: the page has its text.
    """
    text = _STYLE.sub("", _raw(figure, name, "none"))
    width, height = figure.get_size_inches() * 72
    svg = f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true" focusable="false">'
    text = re.sub(r".*?<svg[^>]*>", lambda _: svg, text, count=1, flags=re.DOTALL)
    used = {reference for tag in _TAG.findall(text) for _, reference in _REFERENCE.findall(tag)}

    def rewritten(tag: re.Match[str]) -> str:
        """One tag, rewritten."""
        inside = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", tag[0])
        inside = _REFERENCE.sub(lambda found: f"{found[1]}{name}-{found[2]}", inside)
        inside = _FONT.sub(lambda found: f"{'font-weight: 600; ' * ('bold' in found[1])}font-size: {found[2]}px", inside)
        inside = _FAMILY.sub("", inside)
        inside = _COLOUR.sub(lambda found: _VARIABLES[found[0]], inside)
        # A hundredth of a pixel is enough; matplotlib writes six decimals.
        return _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), inside)

    return re.sub(r">\s+<", "><", _TAG.sub(rewritten, text)).strip()


def file_svg(figure: Figure, name: str, description: str) -> str:
    """``figure`` as an SVG file with ``description`` as its only metadata."""
    text = _raw(figure, name, PALETTE["paper"][0])
    metadata = f"<desc>{html.escape(description, quote=False)}</desc>"
    return re.sub(r"<svg[^>]*>", lambda tag: f"{tag[0]}\n {metadata}", text, count=1)


def file_png(figure: Figure, description: str) -> bytes:
    """``figure`` as a PNG of 200 dpi."""
    raw = io.BytesIO()
    with drawing():
        figure.savefig(raw, format="png", dpi=200, metadata={"Software": None, "Description": description})
    return raw.getvalue()


def _raw(figure: Figure, name: str, background: str) -> str:
    import matplotlib as mpl

    raw = io.StringIO()
    # The salt makes ids deterministic.
    with drawing(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(raw, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})
    return _HEAD.sub("", raw.getvalue())
