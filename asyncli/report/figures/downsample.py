"""Fewer points than were measured, for pictures: by methods that are named under each of them.

A gauge keeps the least and the greatest of each bucket, so that no spike is lost; counts become rates over the bucket;
quantiles are those of the bucket's merged histograms, never means of quantiles. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.units import format_duration

#: About as many as a picture has columns of pixels: more would not be seen.
MOST_BUCKETS = 480
# Widths that people read off an axis; beyond the last, whole multiples of an hour.
_WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0)
# Ticks and samples come once a second, or every few where a reading is dear: a longer silence is a gap, and is left open.
GAP_S = 10.0

Broken = list[float | None]


class Buckets(msgspec.Struct, frozen=True):
    """Equal stretches of time from ``start_s`` on, each ``width_s`` long."""

    start_s: float
    width_s: float
    count: int

    def index(self, t_s: float) -> int:
        """The bucket in which ``t_s`` lies; before the first and after the last, those. A border belongs to the earlier."""
        return min(self.count - 1, max(0, math.ceil((t_s - self.start_s) / self.width_s) - 1))

    def middle(self, index: int) -> float:
        """The instant (s) at which a bucket's rate or quantile is drawn."""
        return self.start_s + (index + 0.5) * self.width_s

    @property
    def gap_s(self) -> float:
        """A silence longer than this is a gap."""
        return max(GAP_S, 2.5 * self.width_s)

    @property
    def method(self) -> str:
        """How many points became how few, in words for under a picture."""
        if self.width_s <= 1.0:
            return "Each point is one second."
        each = format_duration(self.width_s)
        return (
            f"Drawn in stretches of {each}: of each, gauges keep the least and the greatest value, rates are means, and "
            f"quantiles are those of all its records together."
        )


def buckets(start_s: float, end_s: float, most: int = MOST_BUCKETS) -> Buckets:
    """At most ``most`` buckets of a readable width, a second or longer, that cover ``[start_s, end_s]``."""
    span = max(0.0, end_s - start_s)
    wanted = span / most
    width = next((one for one in _WIDTHS_S if one >= wanted), math.ceil(wanted / 3600.0) * 3600.0)
    return Buckets(start_s, width, max(1, math.ceil(span / width)))


def extremes(t_s: Sequence[float], values: Sequence[float], into: Buckets) -> tuple[list[float], list[float]]:
    """The least and the greatest value of each bucket, in the order in which they came, and the very last of all.

    Buckets of at most two values keep them both, so a short series comes back as it is.
    """
    kept_t: list[float] = []
    kept: list[float] = []
    for first, beyond in _runs(t_s, into):
        low = min(range(first, beyond), key=values.__getitem__)
        high = max(range(first, beyond), key=values.__getitem__)
        chosen = {first, beyond - 1} if beyond - first <= 2 else {low, high}
        if beyond == len(t_s):
            chosen.add(beyond - 1)
        for place in sorted(chosen):
            kept_t.append(t_s[place])
            kept.append(values[place])
    return kept_t, kept


def rates(t_s: Sequence[float], counts: Sequence[float], into: Buckets) -> tuple[list[float], list[float]]:
    """Counts as rates per second: of each bucket, their sum by the time they cover. A count covers the time since the one
    before it; the first, and one after a gap, a second."""
    middles: list[float] = []
    found: list[float] = []
    for first, beyond in _runs(t_s, into):
        covered = 0.0
        for place in range(first, beyond):
            since = t_s[place] - t_s[place - 1] if place else 1.0
            covered += since if 0 < since <= GAP_S else 1.0
        # A bucket of one point is drawn where that was taken.
        middles.append(t_s[first] if beyond - first == 1 else into.middle(into.index(t_s[first])))
        found.append(math.fsum(counts[first:beyond]) / covered)
    return middles, found


def merged(t_s: Sequence[float], histograms: Sequence[Histogram], into: Buckets) -> tuple[list[float], list[Histogram]]:
    """The histograms of each bucket merged into one; buckets without a record are left out."""
    middles: list[float] = []
    found: list[Histogram] = []
    for first, beyond in _runs(t_s, into):
        full = [one for one in histograms[first:beyond] if one]
        if not full:
            continue
        whole = full[0] if len(full) == 1 else summed(full)
        middles.append(t_s[first] if beyond - first == 1 else into.middle(into.index(t_s[first])))
        found.append(whole)
    return middles, found


def sums(t_s: Sequence[float], counts: Sequence[int], into: Buckets) -> tuple[list[float], list[int]]:
    """The sum of each bucket that is not zero, at the bucket's middle."""
    middles: list[float] = []
    found: list[int] = []
    for first, beyond in _runs(t_s, into):
        total = sum(counts[first:beyond])
        if total:
            middles.append(into.middle(into.index(t_s[first])))
            found.append(total)
    return middles, found


def broken(t_s: Sequence[float], values: Sequence[float], gap_s: float) -> tuple[list[float], Broken]:
    """The series with a None in each gap that is longer than ``gap_s``: a line is not drawn over what was not measured."""
    open_t: list[float] = []
    opened: Broken = []
    for place, (at, value) in enumerate(zip(t_s, values, strict=True)):
        if place and at - t_s[place - 1] > gap_s:
            open_t.append((at + t_s[place - 1]) / 2)
            opened.append(None)
        open_t.append(at)
        opened.append(value)
    return open_t, opened


def thinned(length: int, most: int) -> range:
    """The places of at most ``most`` of ``length`` things, evenly: every k-th."""
    return range(0, length, max(1, math.ceil(length / most)))


def _runs(t_s: Sequence[float], into: Buckets) -> Iterable[tuple[int, int]]:
    """(first, beyond) places of the points in each bucket that has any. Instants rise."""
    first = 0
    while first < len(t_s):
        # Instants rise, and so do their buckets: the run's end is found by halving, as most runs are of many points.
        beyond = bisect_right(t_s, into.index(t_s[first]), first, key=into.index)
        yield first, beyond
        first = beyond


def rebinned(histogram: Histogram, most: int) -> tuple[list[float], list[float]]:
    """(edges, counts) of at most ``most`` equal bins from the least to the greatest value; empty for an empty histogram.

    A bucket's count is spread evenly over the whole numbers that share its key, so counts of bins are not whole. Values
    are whole: bins are a whole number wide, and value v lies in ``[v, v + 1)``.
    """
    if not histogram:
        return [], []
    low, high = histogram.least, histogram.greatest
    width = max(1, math.ceil((high - low + 1) / most))
    bins = math.ceil((high - low + 1) / width)
    counts = [0.0] * bins
    for key, count in histogram.items():
        first, last = bounds(key)
        first, last = max(first, low), min(last, high)
        # One with a key whose bounds lie wholly outside cannot be: least and greatest are values of the histogram.
        each = count / (last - first + 1)
        for place in range((first - low) // width, (last - low) // width + 1):
            start, end = low + place * width, low + (place + 1) * width
            counts[place] += each * (min(end, last + 1) - max(start, first))
    return [float(low + place * width) for place in range(bins + 1)], counts
