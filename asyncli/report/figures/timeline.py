"""A run on one time axis, panel above panel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.report.figures.drawing import (
    COLOURS,
    ROLES,
    SOLID,
    WIDE,
    NothingToDraw,
    Sheet,
    Style,
    about_zero,
    bytes_at,
    counts_at,
    cut,
    drawn_alone,
    from_zero,
    height_of,
    name_phases,
    plot_line,
    set_marks,
    shade_phases,
    spread,
    time_axis,
    wide,
)
from asyncli.report.figures.panels import Panel, Role, Timeline
from asyncli.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@drawn_alone
def timeline_panels(timeline: Timeline, *, style: Style = WIDE) -> Figure:
    """Connections, memory, heartbeats, latencies, lateness and what was lost, one above the other on one time axis."""
    if not timeline.panels:
        raise NothingToDraw("Nothing was recorded over time: the run ended before its first second.")
    left, right = (50.0, 8.0) if style.narrow else (64.0, 114.0)
    width = style.width - left - right
    height, gap = (84.0, 50.0) if style.narrow else (92.0, 30.0)
    lane, lane_head = (30.0, 18.0), 34.0
    top = 62.0 if style.narrow else 46.0
    lanes = timeline.lanes
    lanes_high = lane_head + len(lanes) * sum(lane) if lanes else 26.0 - gap
    sheet = Sheet(style, top + len(timeline.panels) * (height + gap) + lanes_high)
    end = max(timeline.end_s, 1.0)
    name_phases(sheet, timeline.phases, end, left, width, 6.0)
    for place, panel in enumerate(timeline.panels):
        at = top + place * (height + gap)
        last = place == len(timeline.panels) - 1 and not lanes
        ax = sheet.axes(left, at, width, height, ticks_below=last)
        shade_phases(ax, timeline.phases)
        _panel(sheet, ax, panel, left, at, width, height)
        time_axis(ax, 0.0, end, width)
    if lanes:
        _lanes(sheet, timeline, left, top + len(timeline.panels) * (height + gap), width, lane, end)
    return sheet.figure


def _panel(sheet: Sheet, ax: Axes, panel: Panel, left: float, top: float, width: float, height: float) -> None:
    known = [value for line in panel.lines for value in line.values if value is not None]
    if panel.log:
        _log_axis(ax, min(known), max(known))
    elif panel.unit == "bytes" and min(known) < -0.02 * max(*known, 1.0):
        about_zero(ax, min(known), max(known), bytes_at)
    else:
        from_zero(ax, max(*known, 1.0), bytes_at if panel.unit == "bytes" else counts_at)
    # Where lines lie on each other, the whole one under the broken ones: both are seen.
    for line in sorted(panel.lines, key=lambda line: ROLES[line.role][2] != SOLID):
        plot_line(ax, line.role, line.t_s, line.values)
    ax.set_ylim(ax.get_ylim())
    sheet.text(left, top - (26 if sheet.style.narrow else 11), panel.title, bold=True, size=11.5)
    named = [(line, next(value for value in reversed(line.values) if value is not None)) for line in panel.lines]
    if not sheet.style.narrow:
        # At the end of the hold lines are where their names should stand, not where the drain has taken them.
        anchors = [height_of(ax, _typical(line.values), top, height) for line, _ in named]
        for (line, _), at in zip(named, spread(anchors, [15.0] * len(named), top - 2, top + height + 2), strict=True):
            _key(sheet, line.role, left + width + 8, at, cut(line.label, 14))
        return
    labels = [cut(line.label, 13) for line, _ in named]
    words = sum(wide(label, 10.5) for label in labels)
    # More names than there is room for over the panel begin at the sheet's edge, closer together.
    x = left if words + 33 * len(labels) <= width + 14 else 2.0
    pitch = min(33.0, (left + width - x - words) / len(labels))
    for (line, _), label in zip(named, labels, strict=True):
        _key(sheet, line.role, x, top - 10, label, 10.5, max(6.0, min(15.0, pitch - 12.0)))
        x += wide(label, 10.5) + pitch


def _typical(values: Sequence[float | None]) -> float:
    return statistics.median(value for value in values if value is not None)


def _key(sheet: Sheet, role: Role, x: float, y: float, label: str, size: float = 11.0, length: float = 15.0) -> None:
    """A line's name with a piece of the line before it."""
    color, thick, dash, _ = ROLES[role]
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
    set_marks(ax, marks, [_ms(mark) for mark in marks])


def _ms(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms" if value >= 0.1 else f"{value * 1000:g} µs"


def _lanes(
    sheet: Sheet, timeline: Timeline, left: float, top: float, width: float, size: tuple[float, float], end: float,
) -> None:  # fmt: skip
    heading = "Lost and failed, by cause" if sheet.style.narrow else "Lost connections and failed attempts, by cause"
    sheet.text(left, top + 2, heading, bold=True, size=11.5)
    height, head = size
    lanes = timeline.lanes
    for place, lane in enumerate(lanes):
        at = top + 16 + head + place * (height + head)
        ax = sheet.axes(left, at, width, height, ticks_below=place == len(lanes) - 1)
        ax.grid(visible=False)
        shade_phases(ax, timeline.phases)
        # A second of twelve hours is thinner than a pixel, and must be seen all the same.
        bar = max(timeline.into.width_s, end / width * 1.5)
        color = "kernel" if lane.kind == "lost" else "violet"
        ax.bar(lane.t_s, lane.counts, width=bar, color=COLOURS[color], linewidth=0)
        ax.set_ylim(0, max(lane.counts) * 1.05)
        set_marks(ax, [], [])
        time_axis(ax, 0.0, end, width)
        most = max(lane.counts)
        stretch = "a second" if timeline.into.width_s <= 1 else f"in {format_duration(timeline.into.width_s)}"
        words = f"{lane.kind}: {cut(lane.cause, 26)}, {format_count(lane.total)}"
        sheet.text(left, at - 9, words, color, size=11)
        if not sheet.style.narrow:
            sheet.text(left + width, at - 9, f"at most {format_count(most)} {stretch}", "soft", ha="right", size=11)
