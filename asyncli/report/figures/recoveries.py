"""What each event of a plan did to the connections and to the server's memory, from its instant on.

One row for each event: who was held, who had an answer again, and what the server counted; and its
memory above what it had before.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UnsetType

from asyncli.analysis.server_count import is_counted_by_sockets, server_count
from asyncli.model import metrics
from asyncli.model.records import Gap
from asyncli.model.run import EVENT_SETTLES_S, Run
from asyncli.model.samples import Series
from asyncli.report.figures import drawing
from asyncli.report.figures.timeline_data import Line, Role, first_read
from asyncli.report.summary_parts import EventPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Rows of a figure: more would fill a page. The table has all events.
MOST_EVENTS = 8
# The curve of those who are back has a point for each of so many parts of them.
_PARTS = 200
_ROW_PX = 112.0
# For the labels of the right panel, as a share of a panel's width.
_BETWEEN = 0.24
# More dots than these are a thick line.
_MOST_DOTS = 40
# Two labels fit beside each other.
_LONGEST_LABEL = 24


class Recovery(msgspec.Struct):
    """An event's lines over the seconds since its instant, from ``before_s`` to ``after_s``.
    ``memory``: bytes above the last reading before it; None where it was not read.
    """

    title: str
    before_s: float
    after_s: float
    connections: list[Line]
    memory: Line | None


def recoveries(run: Run, events: Sequence[EventPart], server: str) -> list[Recovery]:
    """What is drawn of the events that concerned connections, in the order of the plan. Churn lasts
    as long as the hold, which the timeline has.
    """
    parts = {event.number: event for event in events}
    drawn = []
    for number, window in run.event_windows.items():
        event = parts.get(number)
        if event is not None and window.end_s is not None:
            drawn.append(_recovery(run, event, window, server))
    return drawn[:MOST_EVENTS]


def _recovery(run: Run, event: EventPart, window: Gap, server: str) -> Recovery:
    start_s = window.start_s
    before_s = start_s - EVENT_SETTLES_S / 2
    end_s = window.end_s or start_s
    counts: tuple[tuple[str, Role, Series], ...] = (
        ("held", "ours", _dropped_at_once(run.held, event, start_s)),
        (_label_of_count(run, server), "server", server_count(run)),
    )
    lines = []
    for label, role, series in counts:
        shown = series.between(before_s, end_s)
        if shown:
            lines.append(Line(label, role, np.array(shown.t_s) - start_s, np.array(shown.values)))
    answered = _answered_again(run, event, end_s - start_s)
    if answered is not None:
        lines.append(answered)
    return Recovery(
        title=f"{event.number}: {event.text}",
        before_s=before_s - start_s,
        after_s=max(1.0, end_s - start_s),
        connections=lines,
        memory=_memory(run, before_s, start_s, end_s),
    )


def _label_of_count(run: Run, server: str) -> str:
    """Whose count of the server's connections it is: the kernel's, of its sockets, or its own."""
    if is_counted_by_sockets(run):
        return f"{server}'s sockets"
    return f"{server} counts"


def _dropped_at_once(held: Series, event: EventPart, start_s: float) -> Series:
    """Who was held, which is told once a second, with the instant at which asyncli ended some of
    them itself: without it the line is slanted, and does not reach the ground where all came back
    within the second.
    """
    before = held.last(until_s=start_s)
    if event.kind not in ("drop", "storm") or before is None or isinstance(event.ended, UnsetType):
        return held
    place = bisect.bisect_right(held.t_s, start_s)
    return Series(
        [*held.t_s[:place], start_s, start_s, *held.t_s[place:]],
        [*held.values[:place], before, before - event.ended, *held.values[place:]],
    )


def _answered_again(run: Run, event: EventPart, until_s: float) -> Line | None:
    """How many had their first answer since the event, until so many seconds after it; None where
    nobody had one.
    """
    back_ms = run.counts_of_event(event.number).back_ms
    if not back_ms.count:
        return None
    shares = [part / _PARTS for part in range(1, _PARTS + 1)]
    # Of those that fell silent it counts from when they were to be back.
    from_s = event.for_s if isinstance(event.for_s, float) else 0.0
    after_s = [from_s + (value_ms or 0.0) / 1e3 for value_ms in back_ms.quantiles(shares)]
    counts = [share * back_ms.count for share in shares]
    instants = np.array([from_s, *after_s, max(until_s, after_s[-1])])
    return Line("answered again", "high", instants, np.array([0.0, *counts, counts[-1]]))


def _memory(run: Run, before_s: float, start_s: float, end_s: float) -> Line | None:
    series = first_read(run, metrics.SERVER_MEMORY_THAT_CAME)
    if series is None:
        return None
    shown = series.between(before_s, end_s)
    level = series.last(until_s=start_s)
    if level is None or len(shown) < 2:
        return None
    return Line("", "server", np.array(shown.t_s) - start_s, np.array(shown.values) - level)


@drawing.drawn_alone
def recovery_rows(drawn: Sequence[Recovery], *, style: drawing.Style = drawing.WIDE) -> Figure:
    """A row for each event: connections, and memory beside them, on a phone below."""
    if not drawn:
        raise drawing.NothingToDraw("No event concerned a connection.")
    columns = 1 if style.narrow else 2
    heights = [_ROW_PX] * (len(drawn) * 2 // columns)
    figure, grid = drawing.sheet(
        style, heights, (58.0, 8.0, 60.0, 26.0), gap=90.0, columns=columns, between=_BETWEEN
    )
    rows = grid.reshape(len(drawn), 2)
    width = (style.width - 66.0) / columns / (1 + _BETWEEN / 2)
    for recovery, (left, right) in zip(drawn, rows, strict=True):
        _connections(left, recovery, style)
        _memory_of(right, recovery)
        for ax in (left, right):
            ax.axvline(0.0, color=drawing.COLOURS["violet"], linewidth=0.7)
            drawing.time_axis(ax, recovery.before_s, recovery.after_s, width)
    return figure


def _connections(ax: Axes, recovery: Recovery, style: drawing.Style) -> None:
    for line in recovery.connections:
        label = drawing.cut(line.label, _LONGEST_LABEL)
        drawing.plot_line(ax, line.role, line.t_s, line.values, label, _are_readings(line))
    ax.set_ylim(bottom=0)
    drawing.ticks(ax.yaxis, "", 4)
    above = drawing.legend(ax, msgspec.structs.replace(style, narrow=True), columns=2)
    ax.set_title(drawing.cut(recovery.title, 40), pad=6.0 + above)


def _are_readings(line: Line) -> bool:
    """Whether its points are readings of the server, few enough to be seen one by one: what was
    between two of them is not known.
    """
    return line.role == "server" and len(line.t_s) <= _MOST_DOTS


def _memory_of(ax: Axes, recovery: Recovery) -> None:
    ax.set_title("server's memory", pad=6.0)
    if recovery.memory is None:
        ax.set_yticks([])
        ax.set_xlabel("not read", loc="left")
        return
    memory = recovery.memory
    drawing.plot_line(ax, memory.role, memory.t_s, memory.values, "", _are_readings(memory))
    drawing.ticks(ax.yaxis, "B", 4)
