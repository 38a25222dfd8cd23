"""The samples of a run, stored by metric (a night has some million numbers), and series of one
metric over time.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import overload

import msgspec

from asyncli.model.records import Sample


class Samples(Sequence[Sample]):
    """A sequence of :class:`Sample` that is stored by metric; read-only, as are its samples, which
    are created on access.

    ``t_s``: the instants (s). ``columns``: metric -> (ascending indexes into ``t_s``, the value at
    each). ``left_out``: metrics that were not read from the file, and have no column.
    """

    def __init__(self, t_s: list[float], columns: dict[str, tuple[list[int], list[float]]]) -> None:
        self._t_s = t_s
        self._columns = columns
        self._rows: list[Sample] | None = None
        self.left_out: Set[str] = frozenset()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were ever read, in the order of their first reading."""
        return tuple(self._columns)

    def column(self, name: str) -> tuple[list[float], list[float]]:
        """The instants (s) at which ``name`` was read, and its values; empty if it never was.

        Raises :class:`LookupError` for a metric that is left out.
        """
        if name in self.left_out:
            raise LookupError(f"{name} is left out: read the whole run")
        places, values = self._columns.get(name, ([], []))
        if len(places) == len(self._t_s):
            return list(self._t_s), list(values)
        t_s = self._t_s
        return [t_s[place] for place in places], list(values)

    def instants(self, names: Iterable[str]) -> list[float]:
        """The instants (s) at which any of the metrics ``names`` was read."""
        places: set[int] = set()
        for name in names:
            places.update(self._columns[name][0])
            if len(places) == len(self._t_s):
                break
        return [self._t_s[place] for place in sorted(places)]

    def within(self, *spans: tuple[float, float]) -> Samples:
        """The samples in ``spans`` (start, end; s, both included; in order, not overlapping)."""
        t_s: list[float] = []
        columns: dict[str, tuple[list[int], list[float]]] = {
            name: ([], []) for name in self._columns
        }
        for start_s, end_s in spans:
            first = bisect_left(self._t_s, start_s)
            beyond = bisect_right(self._t_s, end_s)
            left_out = first - len(t_s)
            t_s += self._t_s[first:beyond]
            for name, (places, values) in self._columns.items():
                low = bisect_left(places, first)
                high = bisect_left(places, beyond)
                places_within, values_within = columns[name]
                places_within.extend(place - left_out for place in places[low:high])
                values_within.extend(values[low:high])
        part = Samples(t_s, {name: column for name, column in columns.items() if column[0]})
        part.left_out = self.left_out
        return part

    def __len__(self) -> int:
        return len(self._t_s)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> list[Sample]: ...
    def __getitem__(self, at: int | slice) -> Sample | list[Sample]:
        if self._rows is not None:
            return self._rows[at]
        if isinstance(at, slice):
            places = range(len(self))[at]
            # Mostly a few at either end are read; for many it is cheaper to make them all, once.
            if len(places) > 2:
                return self._all()[at]
            return [self._row(place) for place in places]
        return self._row(range(len(self))[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {len(self._columns)} metrics>"

    def _row(self, place: int) -> Sample:
        values = {}
        for name, (places, column) in self._columns.items():
            at = bisect_left(places, place)
            if at < len(places) and places[at] == place:
                values[name] = column[at]
        return Sample(self._t_s[place], values)

    def _all(self) -> list[Sample]:
        if self._rows is None:
            rows = [Sample(t_s, {}) for t_s in self._t_s]
            values = [row.values for row in rows]
            for name, (places, column) in self._columns.items():
                for place, value in zip(places, column, strict=True):
                    values[place][name] = value
            self._rows = rows
        return self._rows


def metrics_of(samples: Sequence[Sample]) -> tuple[str, ...]:
    """The metrics that were ever read, in the order of their first reading."""
    if isinstance(samples, Samples):
        return samples.metrics
    names: dict[str, None] = {}
    for sample in samples:
        names.update(dict.fromkeys(sample.values))
    return tuple(names)


def first_read(names: Iterable[str], values: Mapping[str, float]) -> float | None:
    """The value of the first of these metrics that a sample has; None without any."""
    for name in names:
        if name in values:
            return values[name]
    return None


class Series(msgspec.Struct):
    """A number over time: ascending instants on the run's clock (s), and the value at each."""

    t_s: list[float] = msgspec.field(default_factory=list)
    values: list[float] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t_s)

    def rows(self) -> Iterator[tuple[float, float]]:
        """(instant, value) pairs."""
        return zip(self.t_s, self.values, strict=True)

    def between(self, start_s: float, end_s: float) -> Series:
        """The part in ``[start_s, end_s]``."""
        low = bisect_left(self.t_s, start_s)
        high = bisect_right(self.t_s, end_s)
        return Series(self.t_s[low:high], self.values[low:high])

    def last(self, until_s: float = math.inf, since_s: float = -math.inf) -> float | None:
        """The latest value in ``[since_s, until_s]``, or None."""
        place = bisect_right(self.t_s, until_s) - 1
        if place < 0 or self.t_s[place] < since_s:
            return None
        return self.values[place]

    def first(self, since_s: float = -math.inf) -> float | None:
        """The earliest value from ``since_s`` on, or None."""
        place = bisect_left(self.t_s, since_s)
        if place == len(self.t_s):
            return None
        return self.values[place]

    def at(self, t_s: float) -> float | None:
        """The value at ``t_s``, interpolated; the first or last value beyond an end; None
        if empty.
        """
        if not self.t_s:
            return None
        after = bisect_left(self.t_s, t_s)
        if after == 0:
            return self.values[0]
        if after == len(self.t_s):
            return self.values[-1]
        return self._interpolated(t_s, after)

    def _interpolated(self, t_s: float, after: int) -> float:
        """The value at ``t_s``, on the line between the value before index ``after`` and the one at
        it.
        """
        t0, t1 = self.t_s[after - 1], self.t_s[after]
        share = (t_s - t0) / (t1 - t0)
        return self.values[after - 1] * (1 - share) + self.values[after] * share

    def per_second(self, start_s: float, stop_s: float, least_s: float) -> float | None:
        """A counter's growth per second between two instants; None if its readings there span less
        than ``least_s``.
        """
        part = self.between(start_s, stop_s)
        if len(part) < 2 or part.t_s[-1] - part.t_s[0] < least_s:
            return None
        return (part.values[-1] - part.values[0]) / (part.t_s[-1] - part.t_s[0])

    def near(self, t_s: float, gap_s: float) -> float | None:
        """Like :meth:`at`, but None unless there is a value at ``t_s``, or one within ``gap_s`` on
        each side.
        """
        after = bisect_left(self.t_s, t_s)
        if after == len(self.t_s):
            return None
        if self.t_s[after] == t_s:
            return self.values[after]
        if after == 0 or max(self.t_s[after] - t_s, t_s - self.t_s[after - 1]) > gap_s:
            return None
        return self._interpolated(t_s, after)


def parts(start_s: float, stop_s: float, part_s: float, readings: int) -> list[tuple[float, float]]:
    """Equal parts (from, to) of a span: of at least ``part_s``, and no more than there are
    readings, however long the span. The instants may be those of a stranger's run file.
    """
    length_s = stop_s - start_s
    count = max(1, min(int(length_s / part_s), readings))
    borders = [start_s + length_s * place / count for place in range(count + 1)]
    return list(itertools.pairwise(borders))


def counter_resets(counter: Sequence[float]) -> list[int]:
    """The indexes at which a counter is less than before: its process restarted."""
    return [
        place
        for place, (before, after) in enumerate(itertools.pairwise(counter), 1)
        if after < before
    ]


def series(samples: Iterable[Sample], name: str) -> Series:
    """The metric ``name`` over time, from the samples that hold it."""
    if isinstance(samples, Samples):
        return Series(*samples.column(name))
    over_time = Series()
    for sample in samples:
        value = sample.values.get(name)
        if value is not None:
            over_time.t_s.append(sample.t_s)
            over_time.values.append(value)
    return over_time


def within(samples: Sequence[Sample], *spans: tuple[float, float]) -> Sequence[Sample]:
    """The samples in ``spans`` (start, end; s, both included; in order, not overlapping)."""
    if isinstance(samples, Samples):
        return samples.within(*spans)
    samples_within = []
    for sample in samples:
        if any(start_s <= sample.t_s <= end_s for start_s, end_s in spans):
            samples_within.append(sample)
    return samples_within


def instants(samples: Sequence[Sample], *families: str) -> list[float]:
    """When (s) any metric was read whose name begins with one of ``families``."""
    if isinstance(samples, Samples):
        return samples.instants(name for name in samples.metrics if name.startswith(families))
    instants_s = []
    for sample in samples:
        if any(name.startswith(families) for name in sample.values):
            instants_s.append(sample.t_s)
    return instants_s
