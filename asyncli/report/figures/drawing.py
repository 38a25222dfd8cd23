"""Shared parts of the figures: colours, axes in pixels, ticks and legends; a figure as SVG, inline
or as a file, and as PNG.

A figure is a function from data to a :class:`matplotlib.figure.Figure`, without pyplot and the
caller's style. Without data it raises :class:`NothingToDraw` with a sentence. Lengths are CSS
pixels (1/72 inch), so text of size 12 has 12 pixels on the page.

Colours: Okabe and Ito (2008, "Color Universal Design"), darkened to a contrast of 4.5 on paper.
Each role also has a dash and a marker. SVG is deterministic and refers to nothing outside: no DTD,
no metadata.
"""

from __future__ import annotations

import functools
import html
import io
import math
import re
import statistics
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec

from asyncli.analysis.slope import Cost
from asyncli.report.figures.timeline_data import Role, Span
from asyncli.report.format import error_of, is_lopsided, minus, short_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")

#: Name -> (on light paper, on dark). The light ones are drawn; a page replaces each by a CSS
#: variable.
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


# No error of the user's: the text says why there is no figure.
class NothingToDraw(ValueError):  # noqa: N818
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
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["rule"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    # None would lay out all tick labels once more, to keep titles off those above the axes.
    "axes.titley": 1.0,
    "axes.labelcolor": COLOURS["soft"],
    "axes.labelsize": 11,
    "axes.xmargin": 0,
    "figure.facecolor": COLOURS["paper"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "grid.color": COLOURS["grid"],
    "hatch.linewidth": 0.7,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "legend.handletextpad": 0.5,
    "lines.solid_capstyle": "butt",
    "text.color": COLOURS["ink"],
    # A dollar sign in a server's name is not mathematics.
    "text.parse_math": False,
    # Text stays text, in the page's font.
    "svg.fonttype": "none",
    "xtick.color": COLOURS["rule"],
    "xtick.labelcolor": COLOURS["soft"],
    "xtick.labelsize": 11,
    "xtick.major.size": 3,
    "ytick.labelcolor": COLOURS["soft"],
    "ytick.labelsize": 11,
    "ytick.major.pad": 7,
    "ytick.major.size": 0,
}


def drawing() -> Any:
    """A context with the style of reports, whatever the caller's settings."""
    import matplotlib as mpl

    settings: Any = {}
    for key, value in mpl.rcParamsDefault.items():
        if not key.startswith(("backend", "interactive")):
            settings[key] = value
    return mpl.rc_context({**settings, **_RC_PARAMS})


def drawn_alone(function: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with drawing():
            return function(*args, **kwargs)

    return inside


def sheet(
    style: Style,
    heights: Sequence[float],
    margins: tuple[float, float, float, float],
    *,
    gap: float = 0.0,
    columns: int = 1,
    common_x: bool = False,
    between: float = 0.12,
) -> tuple[Figure, Any]:
    """A figure and its axes: rows of these heights with ``gap`` between, within ``margins`` (left,
    right, top, bottom), and columns with ``between`` (a share of a column's width).
    """
    from matplotlib.figure import Figure

    left, right, top, bottom = margins
    head = _head_px(style)
    height = head + top + sum(heights) + gap * (len(heights) - 1) + bottom
    figure = Figure(figsize=(style.width / 72, height / 72), dpi=72)
    places = {
        "left": left / style.width,
        "right": 1 - right / style.width,
        "top": 1 - (head + top) / height,
        "bottom": bottom / height,
        "hspace": gap / statistics.fmean(heights),
        "height_ratios": heights,
        "wspace": between,
    }
    if style.title:
        figure.text(2 / style.width, 1 - 20 / height, style.title, size=14, weight="bold")
        figure.text(2 / style.width, 1 - 38 / height, style.note, size=11, color=COLOURS["soft"])
    axes = figure.subplots(
        len(heights), columns, sharex=common_x, squeeze=False, gridspec_kw=places
    )
    return figure, axes


def _head_px(style: Style) -> float:
    """The height of the title and the note."""
    if not style.title:
        return 0.0
    if not style.note:
        return 34.0
    return 52.0


def ticks(axis: Axis, unit: str, most: int) -> None:
    """Round ticks, ``most`` of them at most: ``200 MB``, ``10k``."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=True))
    in_unit = EngFormatter(unit, sep=" " if unit else "")

    def label(value: float, _place: int) -> str:
        # Around a flat line there would be thousandths of a byte.
        if 0 < abs(value) < 1:
            return ""
        return in_unit(value)

    axis.set_major_formatter(FuncFormatter(label))


def time_axis(ax: Axes, start_s: float, end_s: float, width: float) -> None:
    """Ticks at round times in a suitable unit."""
    from matplotlib.ticker import MaxNLocator

    end_s = max(end_s, start_s + 1.0)
    unit, unit_s = _unit_of_time(end_s - start_s)
    locator = MaxNLocator(max(2, int(width / 66)), steps=[1, 2, 3, 5, 6, 10])
    places = []
    labels = []
    for mark in locator.tick_values(start_s / unit_s, end_s / unit_s):
        if start_s <= mark * unit_s <= end_s:
            places.append(mark * unit_s)
            labels.append(f"{mark:g} {unit}")
    ax.set_xticks(places, labels)
    ax.set_xlim(start_s, end_s)


def _unit_of_time(span_s: float) -> tuple[str, int]:
    """(Unit, its seconds) for an axis of so many seconds."""
    if span_s < 300:
        return "s", 1
    if span_s < 7200:
        return "min", 60
    return "h", 3600


def legend(ax: Axes, style: Style, columns: int = 3) -> int:
    """Add a legend beside the axes, or above them on a phone; return its height there."""
    handles, labels = ax.get_legend_handles_labels()
    # Matplotlib's "linecolor" takes the face of an open marker, which has the paper's colour.
    lines_and_marks: list[Any] = handles
    colours = [line.get_color() for line in lines_and_marks]
    if not style.narrow:
        ax.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.06),
            borderaxespad=0.3,
            labelcolor=colours,
        )
        return 0
    lines = max((label.count("\n") + 1 for label in labels), default=0)
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.1, 1.0),
        borderaxespad=0.1,
        ncols=columns,
        columnspacing=1.0,
        labelcolor=colours,
    )
    return math.ceil(len(labels) / columns) * 18 * lines


def plot_line(
    ax: Axes, role: Role, t_s: Any, values: Any, label: str = "", dotted: bool = False
) -> None:
    """A line, open where a value is NaN; a single point gets a marker, each where ``dotted``."""
    colour, thick, dash, _ = ROLES[role]
    marker = ""
    size = 4.0
    if len(values) == 1:
        marker = "o"
    elif dotted:
        marker = "o"
        size = 2.5
    ax.plot(
        t_s,
        values,
        color=COLOURS[colour],
        linewidth=thick,
        linestyle=dash,
        marker=marker,
        markersize=size,
        label=label,
    )


def plot_points(
    ax: Axes,
    role: Role,
    xs: Sequence[float],
    ys: Sequence[float],
    size: float = 5.0,
    label: str = "",
) -> None:
    """Open markers of the role's shape; in the legend if they have a label."""
    colour, _, _, marker = ROLES[role]
    ax.plot(
        xs,
        ys,
        color=COLOURS[colour],
        linestyle="none",
        marker=marker,
        markersize=size,
        markerfacecolor=COLOURS["paper"],
        markeredgecolor=COLOURS[colour],
        markeredgewidth=1.2,
        clip_on=False,
        zorder=4,
        label=label,
    )


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
    for phase in phases:
        if phase.name in ("ramp", "drain"):
            ax.axvspan(
                phase.start_s, phase.end_s, facecolor=COLOURS["shade"], linewidth=0, zorder=0
            )
        if phase.start_s > 0:
            ax.axvline(phase.start_s, color=COLOURS["rule"], linewidth=0.6, zorder=0.5)


def hatch(ax: Axes, start_s: float, end_s: float) -> None:
    """Hatch a time of which nothing is known."""
    ax.axvspan(
        start_s,
        end_s,
        facecolor="none",
        edgecolor=COLOURS["shade"],
        hatch="///",
        linewidth=0,
        zorder=0,
    )


def each(value: float, *, sign: bool = True) -> str:
    """Bytes of one connection: ``"10,888 B"``."""
    amount = minus(short_bytes(value))
    if sign:
        return f"{amount} B"
    return amount


def each_with_error(cost: Cost, times: int = 1) -> str:
    """``"527 B ± 3"``, so many ``times`` the cost; ``"10,113 to 33,155 B"`` where the value is not
    in the middle of its interval.
    """
    if is_lopsided(cost.bytes_per_connection, cost.ci95):
        low, high = cost.ci95
        return f"{each(times * low, sign=False)} to {each(times * high)}"
    error = error_of(cost.bytes_per_connection, cost.ci95)
    in_each = each(times * cost.bytes_per_connection)
    return f"{in_each} ± {each(times * error, sign=False)}"


def cut(words: str, most: int) -> str:
    if len(words) <= most:
        return words
    return words[: most - 1] + "…"


_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)))
_HEAD = re.compile(r"<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>.*?</style>\s*|<!--.*?-->\s*", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'\s+id="([^"]*)"')
_REFERENCE = re.compile(r'(?:xlink:)?(href="#|url\(#)([^")]+)')
# matplotlib wrote a font as CSS shorthand (style? weight? size families) up to 3.9, and each part
# separately since.
_FONT = re.compile(r"font: ((?:[\w.]+ )*)([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;?\s*")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(figure: Figure, name: str) -> str:
    """``figure`` as an ``<svg>`` element: CSS variables of PALETTE as colours, the page's font, ids
    with the prefix ``name``. Hidden from assistive technology: the page has its text.
    """
    text = _STYLE.sub("", _raw(figure, name, "none"))
    width, height = figure.get_size_inches() * 72
    svg = f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true" focusable="false">'
    text = re.sub(r".*?<svg[^>]*>", lambda _: svg, text, count=1, flags=re.DOTALL)
    used = set()
    for tag in _TAG.findall(text):
        used |= {reference for _, reference in _REFERENCE.findall(tag)}
    text = _TAG.sub(lambda tag: _rewritten(tag[0], name, used), text)
    return re.sub(r">\s+<", "><", text).strip()


def _rewritten(tag: str, name: str, used: Set[str]) -> str:
    """A tag with the page's colours, font and ids; only ids that are ``used`` stay."""

    def identifier(match: re.Match[str]) -> str:
        if match[1] not in used:
            return ""
        return f' id="{name}-{match[1]}"'

    tag = _ID.sub(identifier, tag)
    tag = _REFERENCE.sub(lambda match: f"{match[1]}{name}-{match[2]}", tag)
    tag = _FONT.sub(_without_family, tag)
    tag = _FAMILY.sub("", tag)
    tag = _COLOUR.sub(lambda match: _VARIABLES[match[0]], tag)
    return _NUMBER.sub(_to_hundredths, tag)


def _without_family(font: re.Match[str]) -> str:
    size = f"font-size: {font[2]}px"
    if "bold" in font[1]:
        return f"font-weight: 600; {size}"
    return size


def _to_hundredths(number: re.Match[str]) -> str:
    """A hundredth of a pixel is enough; matplotlib writes six decimals."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def file_svg(figure: Figure, name: str, description: str) -> str:
    """``figure`` as an SVG file with ``description`` as its only metadata."""
    text = _raw(figure, name, PALETTE["paper"][0])
    metadata = f"<desc>{html.escape(description, quote=False)}</desc>"
    return re.sub(r"<svg[^>]*>", lambda tag: f"{tag[0]}\n {metadata}", text, count=1)


def file_png(figure: Figure, description: str) -> bytes:
    """``figure`` as a PNG of 200 dpi."""
    raw = io.BytesIO()
    with drawing():
        metadata = {"Software": None, "Description": description}
        figure.savefig(raw, format="png", dpi=200, metadata=metadata)
    return raw.getvalue()


def _raw(figure: Figure, name: str, background: str) -> str:
    import matplotlib as mpl

    raw = io.StringIO()
    # The salt makes ids deterministic.
    with drawing(), mpl.rc_context({"svg.hashsalt": name}):
        metadata = {"Date": None, "Creator": None}
        figure.savefig(raw, format="svg", facecolor=background, metadata=metadata)
    return _HEAD.sub("", raw.getvalue())
