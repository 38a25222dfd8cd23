"""A run on one time axis, panel above panel; and ages, idle times and request numbers of lost
connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncli.core.histogram import Histogram
from asyncli.model.records import Deaths
from asyncli.model.units import format_count, format_duration
from asyncli.report.figures import drawing
from asyncli.report.figures.timeline_data import Line, Panel, Span, Timeline, histogram_bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@drawing.drawn_alone
def timeline_panels(timeline: Timeline, *, style: drawing.Style = drawing.WIDE) -> Figure:
    """All panels on one time axis."""
    if not timeline.panels:
        raise drawing.NothingToDraw(
            "Nothing was recorded over time: the run ended before its first second."
        )
    heights = [30.0 if panel.bars else 88.0 for panel in timeline.panels]
    room = _NARROW if style.narrow else _WIDE
    width = style.width - room.left - room.right
    labels = _labels(timeline, width, room.right)
    lanes = 1 + max((label.lane for label in labels), default=-1)
    margins = (room.left, room.right, room.top + _LANE * lanes, 30.0)
    figure, rows = drawing.sheet(style, heights, margins, gap=room.gap, common_x=True)
    for panel, ax in zip(timeline.panels, rows[:, 0], strict=True):
        drawing.shade_phases(ax, timeline.phases)
        for gap in timeline.gaps:
            drawing.hatch(ax, gap.start_s, gap.end_s)
        above = 6.0
        if panel.bars:
            _bars(ax, panel, timeline, width)
        else:
            _lines(ax, panel)
            above += drawing.legend(ax, style)
        ax.set_title(drawing.cut(panel.title, 46), pad=above)
    drawing.time_axis(rows[-1, 0], 0.0, timeline.end_s, width)
    _name_spans(rows[0, 0], timeline, width, 1 + room.names_above / heights[0])
    for event in timeline.events:
        for ax in rows[:, 0]:
            ax.axvline(event.at_s, color=drawing.COLOURS["violet"], linewidth=_THIN, zorder=0.6)
    _write_labels(rows[0, 0], labels, heights[0], room.names_above + _LANE)
    return figure


# The host in all has the server's, the kernel's and asyncli's memory, and some of other programs.
_OF_HOST = 3.0
_MOST_OUTSIDE = 0.5
# In pixels: the line of an event, a line of labels, and a letter in it.
_THIN = 0.7
_LANE = 14.0
_LETTER = 5.8
# Longer texts are cut: the table below has them whole.
_LONGEST_LABEL = 30
# Labels of events closer together than this allows are left out.
_MOST_LANES = 12


class _Label(NamedTuple):
    """The label of an event. ``lane``: its line, 0 is the lowest."""

    at_s: float
    text: str
    lane: int


def _labels(timeline: Timeline, width: float, right: float) -> list[_Label]:
    """The labels of events in an axis ``width`` pixels wide, with ``right`` pixels beside it: each
    begins at its event's line, and stands above those after it that it would overlap, so that no
    line crosses a label.
    """
    labels: list[_Label] = []
    # The first pixel of the last label that was placed in each lane.
    begins_px: list[float] = []
    for event in reversed(timeline.events):
        begin_px = event.at_s / max(timeline.end_s, 1.0) * width
        room = int((width + right - begin_px) / _LETTER)
        text = drawing.cut(event.text, max(1, min(_LONGEST_LABEL, room)))
        end_px = begin_px + _LETTER * (1 + len(text))
        lane = 0
        for number, taken_px in enumerate(begins_px):
            if taken_px < end_px:
                lane = number + 1
        if lane >= _MOST_LANES:
            continue
        begins_px[lane : lane + 1] = [begin_px]
        labels.append(_Label(event.at_s, text, lane))
    return labels


def _write_labels(ax: Axes, labels: Sequence[_Label], height: float, above: float) -> None:
    """Write the labels, the lowest lane ``above`` the axes, which are so high (pixels). The line of
    each goes down to there: below are the names of phases.
    """
    colour = drawing.COLOURS["violet"]
    for label in labels:
        lane = above + _LANE * label.lane
        ax.plot(
            [label.at_s, label.at_s],
            [1 + above / height, 1 + (lane + _LANE - 4) / height],
            transform=ax.get_xaxis_transform(),
            color=colour,
            linewidth=_THIN,
            clip_on=False,
        )
        ax.annotate(
            label.text,
            (label.at_s, 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(3.0, lane),
            textcoords="offset points",
            size=10,
            color=colour,
        )


class _Margins(NamedTuple):
    """Pixels around the panels; ``names_above``: from the first panel to the names of phases."""

    left: float
    right: float
    gap: float
    top: float
    names_above: float


_NARROW = _Margins(left=60.0, right=22.0, gap=62.0, top=76.0, names_above=54.0)
_WIDE = _Margins(left=64.0, right=130.0, gap=34.0, top=44.0, names_above=24.0)


def _name_spans(ax: Axes, timeline: Timeline, width: float, y: float) -> None:
    """Name each interruption, and each phase over its longest part without one."""
    named = [*timeline.gaps]
    for phase in timeline.phases:
        named.append(_longest_part(phase, timeline.gaps))
    for span in named:
        px = (span.end_s - span.start_s) / max(timeline.end_s, 1.0) * width
        # A short one has no room for its name.
        if px > 7.0 * len(span.name):
            ax.text(
                (span.start_s + span.end_s) / 2,
                y,
                span.name,
                transform=ax.get_xaxis_transform(),
                ha="center",
                size=11,
                color=drawing.COLOURS["soft"],
            )


def _longest_part(phase: Span, gaps: Sequence[Span]) -> Span:
    """The longest part of a phase outside ``gaps``, which are in order of time."""
    longest = Span(phase.name, phase.start_s, phase.start_s)
    begin_s = phase.start_s
    for start_s, end_s in [*((gap.start_s, gap.end_s) for gap in gaps), (phase.end_s, phase.end_s)]:
        until_s = min(start_s, phase.end_s)
        if until_s - begin_s > longest.end_s - longest.start_s:
            longest = Span(phase.name, begin_s, until_s)
        begin_s = max(begin_s, end_s)
    return longest


def _lines(ax: Axes, panel: Panel) -> None:
    # Solid lines first: broken ones stay visible on them.
    for line in sorted(shown_lines(panel), key=_is_broken):
        drawing.plot_line(ax, line.role, line.t_s, line.values, drawing.cut(line.label, 15))
    low, high = shown_range(panel)
    if panel.unit != "s":
        drawing.ticks(ax.yaxis, panel.unit, 4)
        ax.set_ylim(min(0.0, low) * 1.08, max(high, 1.0) * 1.04)
        return
    from matplotlib.ticker import EngFormatter, LogLocator

    ax.set_yscale("log")
    ax.set_ylim(low / 1.25, max(high * 1.25, low * 12))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    ax.minorticks_off()


def is_cut(panel: Panel) -> bool:
    """Whether a line that is drawn leaves its axis."""
    return any(_share_outside(panel, line) > 0 for line in shown_lines(panel))


def shown_lines(panel: Panel) -> list[Line]:
    """The lines that are drawn: without the host's memory where most of it would be beyond the
    axis, so that pieces without a meaning would be left.
    """
    return [line for line in panel.lines if _share_outside(panel, line) < _MOST_OUTSIDE]


def _share_outside(panel: Panel, line: Line) -> float:
    """Which share of the line's points leaves the axis."""
    low, high = shown_range(panel)
    known = line.values[~np.isnan(line.values)]
    if not len(known):
        return 0.0
    return float(np.mean((known < low) | (known > high)))


def shown_range(panel: Panel) -> tuple[float, float]:
    """What the axis shows: all lines; but of the host's memory, which other programs change, no
    more than so many times the range of the others, which would be flat beside it.
    """
    ruling = [line for line in panel.lines if line.role != "total"] or panel.lines
    values = np.concatenate([line.values for line in ruling])
    everything = np.concatenate([line.values for line in panel.lines])
    low = float(np.nanmin(values))
    high = float(np.nanmax(values))
    span = max(high, 0.0) - min(low, 0.0)
    least = float(np.nanmin(everything))
    greatest = float(np.nanmax(everything))
    if not span:
        return least, greatest
    return max(least, min(low, 0.0) - span), min(greatest, max(high, 0.0) + _OF_HOST * span)


def _is_broken(line: Line) -> bool:
    _, _, dash, _ = drawing.ROLES[line.role]
    return dash != drawing.SOLID


def _bars(ax: Axes, panel: Panel, timeline: Timeline, width: float) -> None:
    line = panel.lines[0]
    # At least a pixel and a half wide.
    thick = max(timeline.width_s, timeline.end_s / width * 1.5)
    colour = drawing.COLOURS["kernel" if panel.key == "lost" else "violet"]
    ax.bar(line.t_s, line.values, width=thick, color=colour, linewidth=0)
    drawing.ticks(ax.yaxis, "", 2)


class _Aspect(NamedTuple):
    """What is drawn of the lost connections of a cause."""

    name: str
    histogram: Callable[[Deaths], Histogram]
    in_words: Callable[[float], str]


_ASPECTS = (
    _Aspect("age", lambda deaths: deaths.age_s, format_duration),
    _Aspect("idle for", lambda deaths: deaths.idle_s, format_duration),
    _Aspect("requests", lambda deaths: deaths.requests, format_count),
)
MOST_CAUSES = 6


@drawing.drawn_alone
def deaths_by(dead: Mapping[str, Deaths], *, style: drawing.Style = drawing.WIDE) -> Figure:
    """A row of histograms per cause, most frequent first."""
    causes = [cause for cause, deaths in dead.items() if deaths.count]
    if not causes:
        raise drawing.NothingToDraw("No established connection was lost.")
    causes.sort(key=lambda cause: (-dead[cause].count, cause))
    causes = causes[:MOST_CAUSES]
    columns = 1 if style.narrow else len(_ASPECTS)
    heights = [50.0] * (len(causes) * len(_ASPECTS) // columns)
    margins = (4.0, 24.0, 26.0, 26.0)
    figure, grid = drawing.sheet(style, heights, margins, gap=56.0, columns=columns)
    panels = grid.reshape(len(causes), len(_ASPECTS))
    for cause, row in zip(causes, panels, strict=True):
        deaths = dead[cause]
        row[0].set_title(f"{format_count(deaths.count)} {drawing.cut(cause, 30)}")
        for aspect, ax in zip(_ASPECTS, row, strict=True):
            _spread(ax, aspect, deaths)
    return figure


def _spread(ax: Axes, aspect: _Aspect, deaths: Deaths) -> None:
    histogram = aspect.histogram(deaths)
    ax.grid(visible=False)
    ax.set_yticks([])
    ax.set_xticks([])
    first, last = histogram.quantiles((0.0, 1.0))
    if first is None or last is None:
        ax.set_xlabel(f"{aspect.name}: unknown", loc="left")
        return
    counts, edges = histogram_bins(histogram, 40)
    ax.stairs(counts, edges, fill=True, color=drawing.COLOURS["server"])
    # A few bars would fill the panel and look like a wide spread.
    pad = max(0, 12 - len(counts)) / 2 * (edges[1] - edges[0])
    ax.set_xlim(edges[0] - pad, edges[-1] + pad)
    span = aspect.in_words(first)
    if first != last:
        span = f"{span} to {aspect.in_words(last)}"
    ax.set_xlabel(f"{aspect.name} {span}", loc="left")
