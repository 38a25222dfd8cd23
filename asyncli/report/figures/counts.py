"""The server's counts less the client's, over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.analysis.counts import CountsOverTime
from asyncli.report.figures.downsample import Buckets, broken, extremes
from asyncli.report.figures.drawing import (
    COLOURS,
    WIDE,
    NothingToDraw,
    Strips,
    Style,
    about_zero,
    counts_at,
    drawn_alone,
    name_phases,
    shade_phases,
    time_axis,
)
from asyncli.report.figures.panels import Span
from asyncli.report.format import short_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_PAIRS = (
    ("held", "open, active on the server", "held", "server_active"),
    ("accepts", "opened, accepted", "opened", "accepts"),
    ("handled", "opened, handled", "opened", "handled"),
    ("requests", "answers and polls, requests", "answers", "requests"),
)


def _within(t_s: float, phase: Span) -> bool:
    return phase.start_s - 1.0 <= t_s <= phase.end_s + 1.0


@drawn_alone
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
            drawn.append((label, [t_s for t_s, _ in both], [float(apart) for _, apart in both]))
    if not drawn:
        raise NothingToDraw("The server's own counts are not known, so there is nothing to compare.")
    strips = Strips(style, len(drawn), height=46.0, gap=32.0, top=44.0, below=0.0, left=56.0)
    end = max([counts.t_s[-1], *(one.end_s for one in phases)])
    name_phases(strips.sheet, phases, end, strips.left, strips.width, 6.0)
    for place, (label, t_s, apart) in enumerate(drawn):
        last = f"{'+' if apart[-1] > 0 else ''}{short_count(apart[-1])}"
        said = f"{'ends' if style.narrow else 'at the end'} {last}" if any(apart) else "equal throughout"
        ax = strips.axes(place, label, said)
        shade_phases(ax, phases)
        into = Buckets(0.0, max(1.0, end / 480), 480)
        kept_t, kept = broken(*extremes(t_s, apart, into), into.gap_s)
        known = [0.0 if value is None else value for value in kept]
        ax.fill_between(kept_t, 0, known, color=COLOURS["violet"], alpha=0.2, linewidth=0)
        ax.axhline(0, color=COLOURS["rule"], linewidth=0.8)
        ax.plot(kept_t, [math.nan if value is None else value for value in kept], color=COLOURS["violet"], linewidth=1.2)
        about_zero(ax, min(apart), max(apart), counts_at)
        time_axis(ax, 0.0, end, strips.width)
    return strips.sheet.figure
