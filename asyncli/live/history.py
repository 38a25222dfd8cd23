"""A run in a few hundred stretches of time, whatever its length. Pure.

Each stretch keeps what the charts need: the least and the greatest of a level, sums of counts, and
the histograms of times, so that a quantile is of all of its values. When there are too many, two or
more stretches become one: memory is bounded, and a loss of one second in twelve hours still shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from asyncli.core.histogram import Histogram
from asyncli.live.panels import (
    COUNTED,
    PANELS,
    LevelOfSample,
    LevelOfTick,
    LineOfPanel,
    RateOfSample,
    RateOfTick,
    Source,
    TimesOfTick,
)
from asyncli.model.records import Sample, Tick
from asyncli.model.samples import first_read

#: About the columns of pixels in a chart.
MOST_STRETCHES = 600
# Each is a multiple of the one before, so that whole stretches become one.
_WIDTHS_S = (1, 2, 10, 20, 60, 120, 600, 1200, 3600, 7200, 43_200, 86_400)
# A tick covers the time since the one before, but no pause.
_LONGEST_TICK_S = 10.0

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Histogram).decode

_LINES: tuple[LineOfPanel, ...] = tuple(line for panel in PANELS for line in panel.lines)
#: (Instant in s, the value of each line of PANELS; None: not read). A whole second is the one that
#: begins then, as on a clock.
Row = tuple[float, list[float | None]]
#: (Middle of the stretch in s, kind of COUNTED -> cause -> how many).
Bar = tuple[float, dict[str, dict[str, int]]]


class _Level(msgspec.Struct):
    """A number that was read several times: its extremes, in their order."""

    least: float
    greatest: float
    least_is_first: bool = True

    def add(self, value: float) -> None:
        if value < self.least:
            self.least = value
            self.least_is_first = False
        if value > self.greatest:
            self.greatest = value
            self.least_is_first = True

    def add_later(self, later: _Level) -> None:
        """Take in the readings of a later stretch."""
        first, second = later.ends()
        self.add(first)
        self.add(second)

    def ends(self) -> tuple[float, float]:
        """The extremes in their order."""
        if self.least_is_first:
            return self.least, self.greatest
        return self.greatest, self.least


class _CounterRise(msgspec.Struct):
    """By how much a counter rose in how many seconds, restarts left out."""

    rise: float = 0.0
    seconds: float = 0.0


class _Stretch(msgspec.Struct):
    """What was recorded from ``start_s`` (excluded) on, for ``width_s``."""

    start_s: float
    seconds: float = 0.0
    #: By the key of a line.
    levels: dict[str, _Level] = msgspec.field(default_factory=dict)
    sums: dict[str, float] = msgspec.field(default_factory=dict)
    rises: dict[str, _CounterRise] = msgspec.field(default_factory=dict)
    #: By the key of the first line that uses them: those of its only tick, which stay as they are;
    #: and sums of several, packed, except those of the open stretch.
    only_times: dict[str, Histogram] = msgspec.field(default_factory=dict)
    times: dict[str, Histogram | bytes] = msgspec.field(default_factory=dict)
    #: Those that were computed, once nothing is added any more.
    quantiles: dict[str, float | None] = msgspec.field(default_factory=dict)
    is_sealed: bool = False
    causes: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class History:
    """Folds ticks and samples in order of time.

    ``lasts_s``: how long the records are that come first, so that they are not folded again and
    again. ``forgets``: keep the last ``most`` seconds, and forget what is older, in place of wider
    stretches.
    """

    def __init__(
        self, lasts_s: float = 0.0, most: int = MOST_STRETCHES, *, forgets: bool = False
    ) -> None:
        self._most = most
        self._forgets = forgets
        self.width_s = _width_for(lasts_s, most)
        self._stretches: list[_Stretch] = []
        self._last_tick_s = -math.inf
        self._last_s = -math.inf
        self._counters: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._stretches)

    @property
    def open_from_s(self) -> float:
        """When the last stretch began; minus infinity without any."""
        return self._stretches[-1].start_s if self._stretches else -math.inf

    def tick(self, t_s: float, tick: Tick) -> None:
        stretch = self._stretch_of(t_s)
        covered_s = t_s - self._last_tick_s
        if not 0.0 < covered_s <= _LONGEST_TICK_S:
            covered_s = 1.0
        self._last_tick_s = t_s
        stretch.seconds += covered_s
        for key, level in _LEVELS_OF_TICK.items():
            _add_level(stretch, key, level.of(tick))
        for key, rate in _RATES_OF_TICK.items():
            count = rate.of(tick)
            if count is not None:
                stretch.sums[key] = stretch.sums.get(key, 0.0) + count
        for key, of in _TIMES.items():
            times = of.of(tick)
            if times:
                _add_times(stretch, key, times)
        for counted in COUNTED:
            _add_counts(stretch.causes, counted.key, counted.of(tick))

    def sample(self, sample: Sample) -> None:
        stretch = self._stretch_of(sample.t_s)
        for key, value in levels_of(sample).items():
            _add_level(stretch, key, value)
        for key, rate in _RATES_OF_SAMPLE.items():
            counted = sample.values.get(rate.metric)
            if counted is not None:
                self._add_rise(stretch, key, sample.t_s, counted)

    def _add_rise(self, stretch: _Stretch, key: str, t_s: float, value: float) -> None:
        before = self._counters.get(key)
        self._counters[key] = (t_s, value)
        if before is None or value < before[1] or t_s <= before[0]:
            return
        rises = stretch.rises.setdefault(key, _CounterRise())
        rises.rise += value - before[1]
        rises.seconds += t_s - before[0]

    def _stretch_of(self, t_s: float) -> _Stretch:
        """The stretch of an instant; one that is earlier than the last belongs to the last."""
        self._last_s = max(self._last_s, t_s)
        start_s = math.floor(t_s / self.width_s) * self.width_s
        if self._stretches and start_s <= self._stretches[-1].start_s:
            return self._stretches[-1]
        if self._stretches:
            _seal(self._stretches[-1])
        self._stretches.append(_Stretch(start_s))
        if self._forgets:
            del self._stretches[: -self._most]
        elif len(self._stretches) > self._most:
            self._widen()
        return self._stretches[-1]

    def _widen(self) -> None:
        """Join stretches until there are few enough."""
        while len(self._stretches) > self._most:
            self.width_s = _next_width(self.width_s)
            joined: list[_Stretch] = []
            for stretch in self._stretches:
                start_s = math.floor(stretch.start_s / self.width_s) * self.width_s
                if joined and joined[-1].start_s == start_s:
                    _join(joined[-1], stretch)
                    continue
                if joined:
                    _seal(joined[-1])
                stretch.start_s = start_s
                joined.append(stretch)
            self._stretches = joined

    def times(self, key: str) -> Histogram:
        """All times (us) of a line of PANELS."""
        whole = Histogram()
        for stretch in self._stretches:
            times = stretch.only_times.get(_SHARES[key]) or stretch.times.get(_SHARES[key])
            if isinstance(times, bytes):
                times = _unpack(times)
            if times is not None:
                whole.merge(times)
        return whole

    def settle(self) -> None:
        """Compute the quantiles of all stretches, which :meth:`rows` does at its first call."""
        for _ in self.rows():
            pass

    def rows(self, since_s: float = -math.inf) -> Iterator[Row]:
        """Two rows for each stretch that ends after ``since_s``, in which a level has its extremes
        in their order; one where a stretch is a single second. None is later than the last record.
        """
        for stretch in self._since(since_s):
            if self.width_s <= 1:
                # Named as a clock names it: by its beginning.
                yield stretch.start_s, [_value(stretch, line, 1) for line in _LINES]
                continue
            recorded_s = self._recorded_s(stretch)
            first_s = stretch.start_s + recorded_s / 4
            second_s = stretch.start_s + recorded_s * 3 / 4
            yield first_s, [_value(stretch, line, 0) for line in _LINES]
            yield second_s, [_value(stretch, line, 1) for line in _LINES]

    def _recorded_s(self, stretch: _Stretch) -> float:
        """How much of a stretch has passed: all but of the last one."""
        return min(self.width_s, max(0.0, self._last_s - stretch.start_s))

    def bars(self, since_s: float = -math.inf) -> Iterator[Bar]:
        """The counts by cause of each stretch that ends after ``since_s`` and has any."""
        for stretch in self._since(since_s):
            if stretch.causes:
                yield stretch.start_s + self._recorded_s(stretch) / 2, stretch.causes

    def first_since(self, since_s: float) -> float | None:
        """When the first stretch began that ends after ``since_s``; None: there is none."""
        first = next(self._since(since_s), None)
        return None if first is None else first.start_s

    def _since(self, since_s: float) -> Iterator[_Stretch]:
        for stretch in self._stretches:
            if stretch.start_s + self.width_s > since_s:
                yield stretch


# The lines by what they are of: each record is asked for its own.
_LEVELS_OF_TICK: dict[str, LevelOfTick] = {}
_RATES_OF_TICK: dict[str, RateOfTick] = {}
_LEVELS_OF_SAMPLE: dict[str, LevelOfSample] = {}
_RATES_OF_SAMPLE: dict[str, RateOfSample] = {}
#: The lines of times, of which those with the same histogram share one.
_TIMES: dict[str, TimesOfTick] = {}
_SHARES: dict[str, str] = {}
for _line in _LINES:
    if isinstance(_line.source, LevelOfTick):
        _LEVELS_OF_TICK[_line.key] = _line.source
    elif isinstance(_line.source, RateOfTick):
        _RATES_OF_TICK[_line.key] = _line.source
    elif isinstance(_line.source, LevelOfSample):
        _LEVELS_OF_SAMPLE[_line.key] = _line.source
    elif isinstance(_line.source, RateOfSample):
        _RATES_OF_SAMPLE[_line.key] = _line.source
    else:
        _same = [key for key, times in _TIMES.items() if times.of is _line.source.of]
        if not _same:
            _TIMES[_line.key] = _line.source
        _SHARES[_line.key] = (_same or [_line.key])[0]


def levels_of(sample: Sample) -> dict[str, float]:
    """The value of each line that a sample has."""
    levels = {}
    for key, source in _LEVELS_OF_SAMPLE.items():
        value = first_read(source.metrics, sample.values)
        if value is not None:
            levels[key] = max(0.0, value - source.less)
    return levels


def _width_for(lasts_s: float, most: int) -> float:
    for width_s in _WIDTHS_S:
        if lasts_s / width_s <= most:
            return float(width_s)
    return float(_WIDTHS_S[-1])


def _next_width(width_s: float) -> float:
    for wider_s in _WIDTHS_S:
        if wider_s > width_s:
            return float(wider_s)
    return 2.0 * width_s


def _add_level(stretch: _Stretch, key: str, value: float) -> None:
    level = stretch.levels.get(key)
    if level is None:
        stretch.levels[key] = _Level(value, value)
        return
    level.add(value)


def _add_counts(causes: dict[str, dict[str, int]], kind: str, counts: Mapping[str, int]) -> None:
    for cause, count in counts.items():
        if count:
            of_kind = causes.setdefault(kind, {})
            of_kind[cause] = of_kind.get(cause, 0) + count


def _add_times(stretch: _Stretch, key: str, times: Histogram) -> None:
    if key in stretch.only_times or key in stretch.times:
        _open_times(stretch, key).merge(times)
    else:
        # Of a night's 43,200 seconds most are forgotten before anybody asks for a quantile.
        stretch.only_times[key] = times


def _open_times(stretch: _Stretch, key: str) -> Histogram:
    times = stretch.times.get(key)
    if times is None:
        times = Histogram()
        only = stretch.only_times.pop(key, None)
        if only is not None:
            times.merge(only)
    elif isinstance(times, bytes):
        times = _unpack(times)
    stretch.times[key] = times
    return times


def _seal(stretch: _Stretch) -> None:
    """Pack the sums of a stretch that has ended, whose quantiles are asked for again."""
    stretch.is_sealed = True
    stretch.quantiles.clear()
    for line in _LINES:
        if isinstance(line.source, TimesOfTick) and _SHARES[line.key] in stretch.times:
            stretch.quantiles[line.key] = _quantile(stretch, line.key, line.source)
    for key, times in stretch.times.items():
        if isinstance(times, Histogram):
            stretch.times[key] = _pack(times)


def _quantile(stretch: _Stretch, key: str, source: TimesOfTick) -> float | None:
    only = stretch.only_times.get(_SHARES[key])
    if only is not None and stretch.is_sealed:
        if key not in stretch.quantiles:
            stretch.quantiles[key] = _quantile_ms(only, source)
        return stretch.quantiles[key]
    if only is not None:
        return _quantile_ms(only, source)
    times = stretch.times.get(_SHARES[key])
    if times is None:
        return None
    if isinstance(times, bytes):
        return stretch.quantiles.get(key)
    return _quantile_ms(times, source)


def _quantile_ms(times: Histogram, source: TimesOfTick) -> float | None:
    value_us = times.quantile(source.share)
    return None if value_us is None else value_us / 1000


def _join(earlier: _Stretch, later: _Stretch) -> None:
    """Take in the next stretch."""
    earlier.seconds += later.seconds
    for key, level in later.levels.items():
        if key in earlier.levels:
            earlier.levels[key].add_later(level)
        else:
            earlier.levels[key] = level
    for key, total in later.sums.items():
        earlier.sums[key] = earlier.sums.get(key, 0.0) + total
    for key, later_rises in later.rises.items():
        rises = earlier.rises.setdefault(key, _CounterRise())
        rises.rise += later_rises.rise
        rises.seconds += later_rises.seconds
    for key in {**later.only_times, **later.times}:
        _open_times(earlier, key).merge(_open_times(later, key))
    for kind, counts in later.causes.items():
        _add_counts(earlier.causes, kind, counts)


def _value(stretch: _Stretch, line: LineOfPanel, place: int) -> float | None:
    """The value of a line in the first (0) or second half (1) of a stretch; None: not read."""
    source: Source = line.source
    if isinstance(source, LevelOfTick | LevelOfSample):
        level = stretch.levels.get(line.key)
        return None if level is None else level.ends()[place]
    if isinstance(source, TimesOfTick):
        return _quantile(stretch, line.key, source)
    if isinstance(source, RateOfTick):
        total = stretch.sums.get(line.key)
        return None if total is None else total / stretch.seconds
    rises = stretch.rises.get(line.key)
    if rises is None or not rises.seconds:
        return None
    return rises.rise / rises.seconds
