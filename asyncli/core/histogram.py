"""A log-linear histogram of whole numbers: mergeable, sparse, exact to 1/128 of the value.

The layout is HdrHistogram's (64 buckets to each power of two), kept as a dictionary because a tick
touches few buckets. asyncli has its own because it runs on the hot path, in processes that must not
import numpy, and its keys need no encoding: adding a value is one ``bit_length``, two shifts and a
dictionary add.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated

import msgspec

# 7 significant bits: a bucket is at most 1/64 of its value wide, so its middle is within 1/128,
# below the noise of a clock read across processes, and 5 minutes of latencies in microseconds span
# fewer than 1,400 keys.
_BITS = 7


def bucket(value: int) -> int:
    """The key of ``value`` (a whole number from 0); keys sort as values do."""
    shift = value.bit_length() - _BITS
    return (
        value
        if shift <= 0
        else ((shift + 1) << (_BITS - 1)) + ((value >> shift) - (1 << (_BITS - 1)))
    )


def bounds(key: int) -> tuple[int, int]:
    """The smallest and the largest value that share ``key``."""
    if key < 1 << _BITS:
        return key, key
    shift = (key >> (_BITS - 1)) - 1
    low = ((key & ((1 << (_BITS - 1)) - 1)) + (1 << (_BITS - 1))) << shift
    return low, low + (1 << shift) - 1


# Histograms are read from run files and pipes; a key beyond 64 bits would create a number of that
# many bits.
_Key = Annotated[int, msgspec.Meta(ge=0, le=bucket(2**63 - 1))]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Histogram(msgspec.Struct, array_like=True):
    """Counts by bucket, with the exact least and greatest value. ``add`` takes numbers from 0, in
    any unit, truncated.
    """

    counts: dict[_Key, _Count] = msgspec.field(default_factory=dict)
    least: int = -1
    greatest: int = -1

    def add(self, value: float) -> None:
        whole = int(value) if value > 0 else 0
        shift = whole.bit_length() - _BITS  # bucket(whole), inlined: once or twice per heartbeat
        key = (
            whole
            if shift <= 0
            else ((shift + 1) << (_BITS - 1)) + ((whole >> shift) - (1 << (_BITS - 1)))
        )
        counts = self.counts
        counts[key] = counts.get(key, 0) + 1
        if whole > self.greatest:
            self.greatest = whole
        if whole < self.least or self.least < 0:
            self.least = whole

    def add_counts(self, values: Mapping[int, int]) -> None:
        """Add whole numbers from 0, given as value -> count."""
        if not values:
            return
        counts = self.counts
        for value, count in values.items():
            shift = (
                value.bit_length() - _BITS
            )  # bucket(value), inlined: a bench adds tens of thousands of values a second
            key = (
                value
                if shift <= 0
                else ((shift + 1) << (_BITS - 1)) + ((value >> shift) - (1 << (_BITS - 1)))
            )
            counts[key] = counts.get(key, 0) + count
        self.greatest = max(self.greatest, *values)
        least = min(values)
        self.least = least if self.least < 0 else min(self.least, least)

    def opened(self) -> Histogram:
        """This histogram; a packed one of a run file returns its unpacked histogram."""
        return self

    def merge(self, other: Histogram) -> None:
        counts, other = self.counts, other.opened()
        for key, count in other.counts.items():
            counts[key] = counts.get(key, 0) + count
        self.greatest = max(self.greatest, other.greatest)
        if other.least >= 0 and (self.least < 0 or other.least < self.least):
            self.least = other.least

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def __bool__(self) -> bool:
        return bool(self.counts)

    def quantile(self, q: float) -> float | None:
        """The value at or below which a share ``q`` of the records lies (nearest rank): the middle
        of its bucket :meth:`within` the extremes, so p99 never exceeds the maximum. None when
        empty.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Sequence[float]) -> list[float | None]:
        """:meth:`quantile` for each of ``qs``, in one pass."""
        total = self.count
        if not total:
            return [None] * len(qs)
        return list(self._at_ranks([_rank(q, total) for q in qs]))

    def at_rank(self, rank: int) -> float:
        """The value of the record with this rank, from 1 by rising value, as :meth:`quantile` has
        it. Of a rank beyond the last an IndexError.
        """
        [value] = self._at_ranks([rank])
        return value

    def _at_ranks(self, ranks: Iterable[int]) -> list[float]:
        """The values of the records with these ranks, from 1 by rising value."""
        keys = sorted(self.counts)
        seen = list(accumulate(map(self.counts.__getitem__, keys)))
        values = []
        for rank in ranks:
            if rank == seen[-1]:
                values.append(float(self.greatest))
            else:
                values.append(sum(self.within(keys[bisect_left(seen, rank)])) / 2)
        return values

    def beyond(self, part: Histogram, qs: Sequence[float]) -> list[float | None]:
        """The least that each quantile can be of what is left of each record without its share in
        ``part``, where it is not known which share belongs to which record: a record above x + t
        leaves more than x, unless its share is above t, and so many are. At least 0; None when
        empty.
        """
        total = self.count
        if not total or not part:
            return self.quantiles(qs)
        # (Which of ``qs``, the rank of a whole record, a share): the quantile is at least the value
        # of that record without the share. Ranks are whole numbers: a quantile that is a rounded
        # fraction may be of the next record.
        bounds_of: list[tuple[int, int, int]] = []
        ranks = [_rank(q, total) for q in qs]
        above = 0
        for key, count in sorted(part.counts.items(), reverse=True):
            _, share = part.within(key)
            for place, rank in enumerate(ranks):
                if rank > above:
                    bounds_of.append((place, rank - above, share))
            above += count
        least = [0.0] * len(qs)
        values = self._at_ranks([rank for _, rank, _ in bounds_of])
        for (place, _, share), value in zip(bounds_of, values, strict=True):
            least[place] = max(least[place], value - share)
        return list(least)

    def within(self, key: int) -> tuple[int, int]:
        """The smallest and the largest value that a record of the bucket ``key`` may have, by the
        exact least and greatest.
        """
        low, high = bounds(key)
        return max(low, self.least), min(high, self.greatest)

    def above(self, value: int) -> int:
        """The number of records greater than ``value``, without those in its bucket."""
        own = bucket(value)
        return sum(count for key, count in self.counts.items() if key > own)

    def items(self) -> Iterator[tuple[int, int]]:
        """(key, count) by rising key."""
        return iter(sorted(self.counts.items()))


def _rank(q: float, total: int) -> int:
    """Which of ``total`` records by rising value, from 1, is the ``q``-quantile."""
    return min(total, max(1, -int(-q * total // 1)))


def summed(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of ``histograms``, which are not changed. Fast enough for a night of ticks: some ten
    million buckets.
    """
    whole = Histogram()
    waiting: list[dict[int, int]] = []
    waits = 0
    for packed in histograms:
        histogram = packed.opened()
        counts = histogram.counts
        if not counts:
            continue
        whole.greatest = max(whole.greatest, histogram.greatest)
        if whole.least < 0 or 0 <= histogram.least < whole.least:
            whole.least = histogram.least
        waiting.append(counts)
        waits += len(counts)
        if waits >= _AT_ONCE:
            _add(whole.counts, waiting)
            waiting, waits = [], 0
    _add(whole.counts, waiting)
    return whole


# A minute of a figure has two of them, and seconds at its ends that are summed one by one.
_BLOCK = 32


class RangeSums:
    """The sums of any ranges of ``histograms``. Those of blocks are kept, so that the second use of
    a range unpacks a quarter of the histograms of a run file, or fewer.
    """

    def __init__(self, histograms: Sequence[Histogram]) -> None:
        self._histograms = histograms
        self._blocks: dict[int, Histogram] = {}

    def between(self, first: int, beyond: int) -> Histogram:
        """The sum of those from index ``first`` on, before ``beyond``."""
        parts: list[Histogram] = []
        at = first
        while at < beyond:
            if at % _BLOCK == 0 and at + _BLOCK <= beyond:
                parts.append(self._block(at))
                at += _BLOCK
            else:
                parts.append(self._histograms[at])
                at += 1
        return summed(parts)

    def has_any(self, at: int) -> bool:
        """Whether the histogram with this index has a value."""
        return bool(self._histograms[at])

    def _block(self, at: int) -> Histogram:
        block = self._blocks.get(at)
        if block is None:
            block = summed(self._histograms[at : at + _BLOCK])
            self._blocks[at] = block
        return block


# Buckets from which numpy pays: loading it takes as long as the loop takes for a million buckets.
_WORTH_LOADING = 200_000
_WORTH_NUMPY = 1_000
# The buckets that are summed at once: with 250,000, most of which are in no cache of the CPU by
# then, a histogram takes 9.8 us in place of 7.4.
_AT_ONCE = 20_000


def _has_numpy() -> bool:
    # Here, because workers import this module.
    from importlib.util import find_spec

    return find_spec("numpy") is not None


def _add(whole: dict[int, int], parts: Sequence[dict[int, int]]) -> None:
    buckets = sum(map(len, parts))
    enough = _WORTH_NUMPY if "numpy" in sys.modules else _WORTH_LOADING
    if buckets < enough or not _has_numpy():
        for part in parts:
            for key, count in part.items():
                whole[key] = whole.get(key, 0) + count
        return
    import numpy as np

    keys = np.fromiter(chain.from_iterable(parts), np.int64, buckets)
    counts = np.fromiter(chain.from_iterable(part.values() for part in parts), np.int64, buckets)
    # bincount's sums are floats, exact up to 2**53 records.
    sums = np.bincount(keys, counts)
    for key in np.flatnonzero(sums).tolist():
        whole[key] = whole.get(key, 0) + int(sums[key])
