"""Ages, idle times and request numbers of lost connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from asyncli.core.histogram import Histogram
from asyncli.records import Deaths
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, cut, drawn_alone, sheet
from asyncli.report.figures.panels import histogram_bins
from asyncli.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ASPECTS: tuple[tuple[str, Callable[[Deaths], Histogram], Callable[[float], str]], ...] = (
    ("age", lambda dead: dead.age_s, format_duration),
    ("idle for", lambda dead: dead.idle_s, format_duration),
    ("requests", lambda dead: dead.requests, format_count),
)
MOST_CAUSES = 6


@drawn_alone
def deaths_by(dead: Mapping[str, Deaths], *, style: Style = WIDE) -> Figure:
    """A row per cause, most frequent first."""
    causes = sorted((cause for cause, one in dead.items() if one.count), key=lambda cause: (-dead[cause].count, cause))
    if not causes:
        raise NothingToDraw("No established connection was lost.")
    causes = causes[:MOST_CAUSES]
    columns = 1 if style.narrow else len(_ASPECTS)
    figure, grid = sheet(
        style, [50.0] * (len(causes) * len(_ASPECTS) // columns), (4.0, 24.0, 26.0, 26.0), gap=56.0, columns=columns
    )
    panels = grid.reshape(len(causes), len(_ASPECTS))
    for cause, row in zip(causes, panels, strict=True):
        row[0].set_title(f"{format_count(dead[cause].count)} {cut(cause, 30)}")
        for (name, of, words), ax in zip(_ASPECTS, row, strict=True):
            _spread(ax, of(dead[cause]), name, words)
    return figure


def _spread(ax: Axes, histogram: Histogram, name: str, words: Callable[[float], str]) -> None:
    ax.grid(visible=False)
    ax.set_yticks([])
    ax.set_xticks([])
    first, last = histogram.quantiles((0.0, 1.0))
    if first is None or last is None:
        ax.set_xlabel(f"{name}: not known", loc="left")
        return
    counts, edges = histogram_bins(histogram, 40)
    ax.stairs(counts, edges, fill=True, color=COLOURS["server"])
    # A few bars would fill the panel and look like a wide spread.
    pad = max(0, 12 - len(counts)) / 2 * (edges[1] - edges[0])
    ax.set_xlim(edges[0] - pad, edges[-1] + pad)
    said = words(first) if first == last else f"{words(first)} to {words(last)}"
    ax.set_xlabel(f"{name} {said}", loc="left")
