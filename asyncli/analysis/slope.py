"""The line of memory over connections held, through medians of a ramp or of plateaus; or a
difference of two levels.

Samples are autocorrelated (memory changes slowly), and an interval that ignores this would be too
narrow. So the ramp is cut into bins of equal N, and each gives one point, the medians of N and of
the metric. The remaining correlation is part of the fit (:mod:`asyncli.analysis.regression`). If
the ramp is too short for that, two levels are compared.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from asyncli.analysis.bends import Bend, Sampled, bends
from asyncli.analysis.constants import FEWEST, NEARLY_ALL, PART, WORTH_TELLING
from asyncli.analysis.regression import (
    FEWEST_POINTS,
    FittedLine,
    Point,
    WithTime,
    regress,
    regress_with_time,
)
from asyncli.findings.cost import LEVELS, SURE, Moved
from asyncli.model.records import Phase, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.units import format_bytes, format_many

# Forty points distinguish white noise from wander better than twenty; ramps below two minutes
# (three samples a bin) get fewer.
MOST_BINS = 40
# The fewest points of a slope: six of a ramp with its baseline, or three plateaus (medians at rest)
# and the baseline.
FEWEST_RAMP_POINTS = 6
FEWEST_PLATEAUS = FEWEST_POINTS
# With fewer plateaus the line needs the baseline: without it, on ladders of three, slabs of 1 MB
# looked like first use, and 66 of 100 intervals held the truth instead of all (bench/coverage.py).
_MANY_PLATEAUS = 5
# The first seconds of the hold show the cost of the last connections; later seconds include growth.
# The level at its end is the median of as many.
_INTO_HOLD_S = 5.0
#: Seconds of the hold in which the server's own count shows whether others use it. A list of runs
#: reads this far.
OTHERS_INTO_HOLD_S = 15.0
#: A metric that is sampled less often than this cannot be interpolated.
WIDEST_GAP_S = 30.0
#: glibc keeps up to this much freed memory at the top of its heap (M_TRIM_THRESHOLD, mallopt(3)):
#: the resolution of two levels of a process's memory.
FREED_KEPT = 128 * 1024.0
#: The resolution of two levels of kernel objects: a page each. The objects of a socket end, some
#: 4.2 kB, never fill two.
PAGES = 2 * 4096.0
# A metric that moved by more deviations of its noise has not settled: one false alarm in some
# eighty rests of normal noise.
_MOVES_BEYOND = 2.5
# Costs of memory that stays while connections are held. Queued buffers change at rest.
_LASTING = frozenset(
    {"server_user", "behind", "kernel", "generator_user", "host_total", "residual", "client_total"}
)
# Costs that may change over the connections, or by the clock. A socket of the kernel costs the same
# each time, and the memory of kernel and host changes by other programs at all times.
_OF_PROGRAMS = frozenset({"server_user", "behind"})
_OF_THE_KERNEL = frozenset({"kernel", "kernel_queued", "listing"})


class Cost(msgspec.Struct):
    """Memory per connection (bytes), its 95 % interval (low, high), the fixed part (bytes), method,
    points.

    The fixed part includes first use, so it may exceed the baseline. ``points``: of the line,
    without an excluded baseline. ``r2``: the share of their variance that the line explains; None
    if the metric did not vary, and for two levels.
    """

    bytes_per_connection: float
    ci95: tuple[float, float]
    fixed_bytes: float
    method: str
    points: int
    r2: float | None = None
    #: A difference of two levels, not a slope.
    of_levels: bool = False

    @property
    def half_width(self) -> float:
        return (self.ci95[1] - self.ci95[0]) / 2


#: What replaces the middle of a wide interval.
WIDE_COST = "wide"


def is_wide(value: float, low: float, high: float) -> bool:
    """Whether the interval of a measured value says more than its middle, which is then not
    told.
    """
    return low > 0 and (high - low) / 2 > SURE * abs(value)


def unmeasured(low: float, high: float) -> str:
    """What replaces a value with this interval that is not measured: noise hides it, or freed
    memory outweighs it.
    """
    return "hidden" if low <= 0 <= high else "unknown"


class Fit(msgspec.Struct):
    """The points and samples behind a :class:`Cost`, scaled like it. ``apart``: the baseline
    (bytes) if it is excluded.
    """

    cost: Cost
    n: list[float]
    bytes: list[float]
    #: Every sample of the fitted stretch (baseline, ramp, first seconds of the hold).
    seconds_n: list[float]
    seconds_bytes: list[float]
    line: FittedLine
    apart: float | None = None
    #: The resolution of the metric (bytes): no level is known better.
    known_to: float = PAGES / 2
    #: Bytes that the memory at the hold's end is above the line (below zero: under it), if the line
    #: does not predict it; else 0.
    off_at_end: float = 0.0
    #: The connections held then.
    held_at_end: float = 0.0
    #: The memory at the hold's end by the connections held then, above the line's fixed part; None
    #: if it was not read.
    by_level_at_end: float | None = None
    #: What the last connections cost in a program, where that is not what the line says.
    bends: list[Bend] = msgspec.field(default_factory=list)

    def at(self, n: float) -> float:
        return self.cost.fixed_bytes + self.cost.bytes_per_connection * n

    def band(self, n: float) -> tuple[float, float]:
        """The 95 % confidence band of the line (not of a sample) at ``n`` connections, bytes."""
        # The cost's interval may be wider than the line's (an unsettled plateau, a difference of
        # slopes).
        wider = 1.0
        if self.line.half > 0:
            wider = max(1.0, self.cost.half_width / self.line.half)
        middle = self.at(n)
        half = max(self.known_to, self.line.half_at(n) * wider) + abs(middle - self.line.at(n))
        return middle - half, middle + half


def _with_held(metric: Series, held: Series) -> list[Sampled]:
    """Each reading of the metric with the connections held then."""
    return [Sampled(t_s, held.at(t_s) or 0.0, value) for t_s, value in metric.rows()]


def _half_at_least(samples: Sequence[Sampled], peak: float) -> list[Sampled]:
    """The samples with at least half of the connections held at the peak: with fewer, most of the
    memory is what is kept of the others.
    """
    return [sample for sample in samples if sample.n >= peak / 2]


def ramp_points(metric: Series, held: Series, start_s: float, end_s: float) -> list[Point]:
    """Medians of the baseline, and of each of up to 40 equal bins of N until ``end_s``."""
    # In the baseline N is zero of ours; of the server's count those of other clients.
    baseline = _with_held(metric.between(-math.inf, start_s), held)
    ramp = _with_held(metric.between(math.nextafter(start_s, math.inf), end_s), held)
    connected = [sample for sample in ramp if sample.n > 0]
    points = [median_point(baseline, baseline=True)] if baseline else []
    for samples in _bins(connected, held.at(start_s) or 0.0):
        if samples:
            points.append(median_point(samples))
    return points


def _bins(samples: Sequence[Sampled], n_at_start: float) -> list[list[Sampled]]:
    """The samples in bins of equal N, from ``n_at_start`` to the most; none if N did not rise."""
    peak = max((sample.n for sample in samples), default=n_at_start)
    if peak <= n_at_start:
        return []
    count = max(FEWEST_RAMP_POINTS, min(MOST_BINS, len(samples) // 3))
    bins: list[list[Sampled]] = [[] for _ in range(count)]
    for sample in samples:
        share = (sample.n - n_at_start) / (peak - n_at_start)
        place = min(count - 1, max(0, int(share * count)))
        bins[place].append(sample)
    return bins


def plateau_points(
    metric: Series, held: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[Point]:
    """Medians of the baseline, and of the last half of each of ``rests`` (from, to), in s after
    ``start_s``.
    """
    points = _baseline_of_rests(metric, held, start_s, rests)
    for rest in last_halves(metric, start_s, rests):
        if rest:
            points.append(median_point(_with_held(rest, held)))
    return points


def rest_points(
    metric: Series, held: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[Point]:
    """Medians of the baseline, and of successive samples in the last half of each of ``rests``
    (from, to), in s after ``start_s``; of few rests one median each.

    At rest the connections stay, so what still changes is noise, and shows how slow it is: with one
    median of each of 5 or 8 rests, 80 and 75 of 100 intervals held the truth under a random walk,
    and with all 85 and 88 do. On a ladder of three the interval would be too narrow for a bend
    that so few rests do not show (bench/coverage.py).
    """
    if len(rests) < _MANY_PLATEAUS:
        return plateau_points(metric, held, start_s, rests)
    points = _baseline_of_rests(metric, held, start_s, rests)
    return points + _at_rest(last_halves(metric, start_s, rests), held)


def _baseline_of_rests(
    metric: Series, held: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[Point]:
    """The median before the first connect, if it was read."""
    before = _with_held(metric.between(-math.inf, start_s), held)
    may_be_apart = len(rests) >= _MANY_PLATEAUS
    return [median_point(before, baseline=may_be_apart)] if before else []


def _at_rest(settled: Sequence[Series], held: Series) -> list[Point]:
    """About 40 medians of successive samples, each of one rest."""
    return successive_medians([_with_held(rest, held) for rest in settled])


def successive_medians(stretches: Sequence[Sequence[Sampled]]) -> list[Point]:
    """About 40 medians of successive samples, each of one of the stretches."""
    size = max(1, math.ceil(sum(map(len, stretches)) / MOST_BINS))
    medians = []
    for rows in stretches:
        for first in range(0, len(rows), size):
            medians.append(median_point(rows[first : first + size]))
    return medians


def last_halves(
    metric: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[Series]:
    """The metric in the last half of each of ``rests`` (from, to), in s after ``start_s``."""
    return [metric.between(start_s + (begin + end) / 2, start_s + end) for begin, end in rests]


def _while_rising(rows: Sequence[Sampled]) -> list[Sampled]:
    """The samples before the most connections were held."""
    peak = max((row.n for row in rows), default=0.0)
    return list(itertools.takewhile(lambda row: row.n < peak, rows))


def median_point(samples: Sequence[tuple[float, float, float]], *, baseline: bool = False) -> Point:
    """The medians of (instant, N, value)."""
    t_s, n, value = (statistics.median(column) for column in zip(*samples, strict=True))
    times = [t_s for t_s, _, _ in samples]
    return Point(t_s, n, value, len(samples), max(times) - min(times), baseline)


def unsettled(rests: Sequence[Series], climbs: Sequence[float]) -> list[float]:
    """How much (bytes) the metric still moved in each of the ``rests``; 0 if it had settled
    (docs/reference/terms.md, plateau).

    ``rests``: the last half of each; ``climbs``: the rise to each. A rest of fewer than two samples
    counts as settled.
    """
    noise = _wander(rests)
    return [_moved(rest, climb, noise) for rest, climb in zip(rests, climbs, strict=True)]


def _moved(rest: Series, climb: float, noise: float) -> float:
    """How much (bytes) the second half of the rest is above the first; 0 if that is noise, or
    little of the rise to it (``climb``).
    """
    if not rest:
        return 0.0
    middle_s = (rest.t_s[0] + rest.t_s[-1]) / 2
    early = rest.between(-math.inf, math.nextafter(middle_s, -math.inf))
    late = rest.between(math.nextafter(middle_s, math.inf), math.inf)
    if not early or not late:
        return 0.0
    moved = statistics.median(late.values) - statistics.median(early.values)
    apart_s = statistics.median(late.t_s) - statistics.median(early.t_s)
    by_noise = _MOVES_BEYOND * noise * math.sqrt(apart_s)
    if abs(moved) > max(WORTH_TELLING * abs(climb), by_noise):
        return moved
    return 0.0


def _wander(rests: Sequence[Series]) -> float:
    """The deviation of a metric's steps from its trend in each rest, per root of a second, as of a
    random walk (conservative).
    """
    squares = 0.0
    freedom = 0
    for rest in rests:
        steps = [
            (after - before, end - begin) for (begin, before), (end, after) in pairwise(rest.rows())
        ]
        if len(steps) < 2:
            continue
        pace = sum(step for step, _ in steps) / sum(seconds for _, seconds in steps)
        squares += sum((step - pace * seconds) ** 2 / seconds for step, seconds in steps)
        freedom += len(steps) - 1
    if not freedom:
        return 0.0
    return math.sqrt(squares / freedom)


def minus(whole: Series, parts: Sequence[Series]) -> Series:
    """``whole`` less ``parts``, at the instants of the metric that was sampled least often."""
    if all(part.t_s == whole.t_s for part in parts):
        # Read together, as most are: some ten times faster.
        columns = [part.values for part in parts]
        sums = map(sum, zip(*columns, strict=True)) if columns else itertools.repeat(0.0)
        return Series(list(whole.t_s), list(map(operator.sub, whole.values, sums)))
    sparsest = min([whole, *parts], key=len)
    difference = Series()
    for t_s in sparsest.t_s:
        value = whole.near(t_s, WIDEST_GAP_S)
        of_parts = [part.near(t_s, WIDEST_GAP_S) for part in parts]
        known = [value_of_part for value_of_part in of_parts if value_of_part is not None]
        if value is None or len(known) < len(parts):
            continue
        difference.t_s.append(t_s)
        difference.values.append(value - sum(known))
    return difference


def plus(whole: Series, parts: Sequence[Series]) -> Series:
    """``whole`` and ``parts`` together, at the instants of the one that was sampled least often."""
    return minus(whole, [Series(part.t_s, [-value for value in part.values]) for part in parts])


def reaching(
    fit: Fit, ahead: Point, predicted: tuple[float, float], peak: float, known_to: float
) -> Fit:
    """``fit`` with an interval that reaches to the level ``ahead``, at the hold's end, if the line
    does not predict that.

    Memory that comes after the ramp is a cost that no line through the ramp can show; what grows
    with time is none, and nobody can tell them apart by one level: the interval includes both, and
    the value is halfway. The line predicts the level within the interval of its noise at that
    instant (``predicted``: its middle, and half of it), and within ``known_to`` bytes. ``peak``:
    connections at the peak; memory of those that were lost may be kept, so what lies between both
    counts is predicted.
    """
    middle, half = predicted
    half = max(half, known_to)
    kept = max(0.0, fit.line.slope) * max(0.0, peak - ahead.n)
    if middle - half <= ahead.value <= middle + kept + half:
        return fit
    off = ahead.value - fit.line.at(ahead.n)
    off_per_connection = off / ahead.n
    low, high = fit.cost.ci95
    side = "above" if off > 0 else "below"
    value = fit.cost.bytes_per_connection + off_per_connection / 2
    cost = msgspec.structs.replace(
        fit.cost,
        bytes_per_connection=value,
        ci95=(min(low, low + off_per_connection), max(high, high + off_per_connection)),
        fixed_bytes=ahead.value - value * ahead.n,
        method=(
            f"{fit.cost.method}; the interval reaches to the level at the hold's end, "
            f"{format_bytes(abs(off))} {side} the line"
        ),
    )
    return msgspec.structs.replace(fit, cost=cost, off_at_end=off, held_at_end=ahead.n)


def streams_each(asked: int, ticks: Iterable[Tick]) -> float | msgspec.UnsetType:
    """How many of the ``asked`` HTTP/2 streams each connection held: all, or their mean to a tenth
    if many were missing.
    """
    if not asked:
        return msgspec.UNSET
    streams = 0
    connections = 0
    for tick in ticks:
        if tick.held and tick.protocol is not None:
            streams += tick.protocol.streams_open
            connections += tick.held
    if not connections or streams / connections >= NEARLY_ALL * asked:
        return asked
    return round(streams / connections, 1)


def _baseline_excluded(line: FittedLine, apart: float | None) -> str:
    """Words on a baseline that is not on the line; "" if it is."""
    if apart is None:
        return ""
    off = apart - line.intercept
    side = "below" if off < 0 else "above"
    return f"; baseline excluded: {format_bytes(abs(off))} {side} the line"


def _not_excluded(with_time: WithTime | None, line: FittedLine) -> str:
    """Words on growth by the clock that a ladder's rests do not exclude; "" if it is too little to
    matter, or in the interval.
    """
    if with_time is None or with_time.moves:
        return ""
    if with_time.half <= PART * abs(line.slope):
        return ""
    pace = format_bytes(with_time.half_of_per_s)
    return (
        f"; the rests do not exclude growth by the clock of up to {pace} a second, or "
        f"{with_time.half:,.0f} B of this"
    )


# When what is read, in s on the run's clock.


def _end_of_ramp(run: Run) -> float:
    """The end of the ramp; the last tick if it has none yet."""
    ramp = run.phase("ramp")
    if ramp is not None and ramp.end_s is not None:
        return ramp.end_s
    if run.ticks:
        last_tick_s, _ = run.ticks[-1]
        return last_tick_s
    return run.first_connect_s


def _end_of_hold(hold: Phase) -> float:
    """Infinite while it goes on."""
    return math.inf if hold.end_s is None else hold.end_s


def _end_of_line(ramp_end_s: float, hold: Phase | None) -> float:
    """The end of the samples of a line: the ramp and the first seconds of the hold."""
    if hold is None:
        return ramp_end_s
    return min(ramp_end_s + _INTO_HOLD_S, _end_of_hold(hold))


def _plateaus(run: Run, line_until_s: float) -> list[tuple[float, float]]:
    """The rests of the ramp (from, to; s after the first connect) that ended within the samples of
    a line; none if they are too few for one.
    """
    ended = [
        (begin, end)
        for begin, end in run.plan.schedule.rests()
        if run.first_connect_s + end <= line_until_s + 1.0
    ]
    return ended if len(ended) >= FEWEST_PLATEAUS else []


def _first_seconds_of_hold(run: Run, hold: Phase | None) -> tuple[float, float] | None:
    """From, to; None if nothing was held."""
    if hold is None or not any(tick.held for _, tick in run.ticks):
        return None
    return hold.start_s, min(hold.start_s + OTHERS_INTO_HOLD_S, _end_of_hold(hold))


def _half_held_until(
    run: Run, hold: Phase | None, held: Series, line_until_s: float
) -> float | None:
    """The last instant of the hold with at least half of the connections; None without one after
    the samples of a line.
    """
    if hold is None:
        return None
    until_s = min(run.stop_s, _end_of_hold(hold))
    half = max(held.values) / 2
    last_s = None
    for t_s, n in held.between(line_until_s, until_s).rows():
        if n >= half:
            last_s = t_s
    if last_s is None:
        return None
    return min(until_s, last_s + 1.0)


def _with_streams(streams: float | msgspec.UnsetType) -> str:
    """Words on the HTTP/2 streams of each connection; "" without."""
    if streams is msgspec.UNSET:
        return ""
    return f" of connections with {format_many(streams, 'stream')} each"


def _level_known_to(name: str, scale: float) -> float:
    """The resolution (bytes) of a level of this cost's metric."""
    if name in _OF_THE_KERNEL:
        return scale * PAGES
    return FREED_KEPT


class Fitter:
    """Fits metrics against the same N(t)."""

    def __init__(self, run: Run, held: Series, over: str = "") -> None:
        """``held``: N(t). ``over``: what that counts, if it is the server's own count."""
        hold = run.phase("hold")
        #: The connections that the metrics are of.
        self.held = held
        self._peak = max(held.values)
        self._start = run.first_connect_s
        self.ramp_end_s = _end_of_ramp(run)
        #: The end of the samples of a line.
        self.line_until_s = _end_of_line(self.ramp_end_s, hold)
        self._rests = _plateaus(run, self.line_until_s)
        # For two levels.
        self._first_of_hold = _first_seconds_of_hold(run, hold)
        #: The end of the fitted samples.
        self.until_s = self.line_until_s + 1.0
        if self._first_of_hold is not None:
            self.until_s = max(self.until_s, self._first_of_hold[1])
        self._half_held_until_s = _half_held_until(run, hold, held, self.line_until_s)
        fitted_ticks = [tick for t_s, tick in run.ticks if t_s <= self.until_s]
        #: HTTP/2 streams held by each connection.
        self.streams = streams_each(run.plan.streams, fitted_ticks)
        self._over = over + _with_streams(self.streams)
        self._is_of_server = bool(over)
        self.points_wanted = FEWEST_PLATEAUS + 1 if self._rests else FEWEST_RAMP_POINTS
        #: By cost: how much it still moved on each plateau (from 1).
        self.unsettled: dict[str, list[Moved]] = {}
        #: By cost that is a difference of two levels: the number of points that a slope would have
        #: had.
        self.levels: dict[str, int] = {}

    def fit(
        self,
        name: str,
        metric: Series,
        scale: float = 1.0,
        note: str = "",
        *,
        known_to: float = PAGES / 2,
    ) -> Fit | int:
        """The line of ``metric`` x ``scale``, or the number of points if there are too few.
        ``known_to``: its resolution.

        The interval of a cost in :data:`_LASTING` reaches to the level at the hold's end.
        """
        metric = Series(metric.t_s, [value * scale for value in metric.values])
        ahead = self._level_ahead(metric) if name in _LASTING else None
        fit = self._line(name, metric, scale, note, known_to, ahead)
        if not isinstance(fit, Fit) or ahead is None or fit.line.predicted is None:
            return fit
        fit.by_level_at_end = (ahead.value - fit.line.intercept) / ahead.n
        return reaching(fit, ahead, fit.line.predicted, self._peak, _level_known_to(name, scale))

    def _level_ahead(self, metric: Series) -> Point | None:
        """The level at the hold's end, after the samples of a line; None if there is none.

        Of the last instant with at least half of the connections.
        """
        until_s = self._half_held_until_s
        if until_s is None:
            return None
        since_s = max(math.nextafter(self.line_until_s, math.inf), until_s - _INTO_HOLD_S)
        last = _with_held(metric.between(since_s, until_s), self.held)
        many_held = _half_at_least(last, self._peak)
        return median_point(many_held) if many_held else None

    def _line(
        self,
        name: str,
        metric: Series,
        scale: float,
        note: str,
        known_to: float,
        ahead: Point | None,
    ) -> Fit | int:
        """By the points of the ramp; if they are too few for a line, by two levels."""
        points = self._points(metric)
        places = self._places(metric, points)
        line = regress(points, ahead) if len(places) >= self.points_wanted else None
        if line is None:
            of_levels = self._two_levels(name, metric, scale, note, ahead)
            if of_levels is None:
                return len(places)
            self.levels[name] = len(places)
            return of_levels
        on_line = points
        apart = None
        if line.apart:
            on_line = [point for point in points if not point.baseline]
            apart = next(point.value for point in points if point.baseline)
        with_time = self._with_time(name, metric, points, line)
        settled = self._line_when_settled(name, metric, places)
        ci95 = self._interval(metric, points, line, settled, with_time, scale * known_to)
        method = (
            f"{self._method_of_line(metric, points, apart)}{note}{self._over}"
            f"{_baseline_excluded(line, apart)}{_not_excluded(with_time, line)}"
        )
        cost = Cost(line.slope, ci95, line.intercept, method, len(on_line), line.r2)
        sampled = metric.between(-math.inf, self.line_until_s)
        fit = self._fit(cost, on_line, sampled, line, apart)
        if name in _OF_PROGRAMS:
            fit.bends = bends(places, self._sampled(metric), line, FREED_KEPT)
        return fit

    def _places(self, metric: Series, points: Sequence[Point]) -> Sequence[Point]:
        """A point at each number of connections: those of one rest are at one."""
        if self._rests:
            return plateau_points(metric, self.held, self._start, self._rests)
        return points

    def _points(self, metric: Series) -> list[Point]:
        """The rests of a ladder, or the bins of a ramp; with the baseline."""
        if self._rests:
            return rest_points(metric, self.held, self._start, self._rests)
        return ramp_points(metric, self.held, self._start, self.line_until_s)

    def _interval(
        self,
        metric: Series,
        points: Sequence[Point],
        line: FittedLine,
        settled: FittedLine | None,
        with_time: WithTime | None,
        known_to: float,
    ) -> tuple[float, float]:
        """The interval of the line's slope, with those of the line when it has ``settled`` and of
        its growth by the clock. ``known_to``: the metric's resolution (bytes).
        """
        peak = max(point.n for point in points)
        half = max(line.half, known_to / peak, self._largest_step(metric, line) / peak)
        intervals = [(line.slope - half, line.slope + half)]
        if settled is not None:
            intervals.append((settled.slope - settled.half, settled.slope + settled.half))
        if with_time is not None and with_time.moves:
            intervals.append(with_time.ci95)
        lowest = min(low for low, _ in intervals)
        highest = max(high for _, high in intervals)
        return lowest, highest

    def _sampled(self, metric: Series) -> list[Sampled]:
        """The metric over the ramp as about 40 medians of successive samples; empty over the
        server's own count, which is read at other instants than the memory: a short stretch needs
        both.

        All are of one kind: while the connections rise, or in the rests of a ladder. While they
        rise, the memory is read some ms later or earlier than they are counted, so that it is off
        by the same amount at each instant, and not at rest.
        """
        if self._is_of_server:
            return []
        if self._rests:
            settled = last_halves(metric, self._start, self._rests)
            medians = _at_rest(settled, self.held)
        else:
            medians = successive_medians(
                [_while_rising(_with_held(self._in_ramp(metric), self.held))]
            )
        return [Sampled(point.t_s, point.n, point.value) for point in medians]

    def _in_ramp(self, metric: Series) -> Series:
        """The metric from after the first connect on to the line's last sample."""
        return metric.between(math.nextafter(self._start, math.inf), self.line_until_s)

    def _method_of_line(self, metric: Series, points: Sequence[Point], apart: float | None) -> str:
        """How the line was found, in words that the metric's own follow."""
        has_baseline = bool(metric.between(-math.inf, self._start).values)
        medians = len(points) - has_baseline
        if self._rests:
            how = f"{medians} medians at rest on {len(self._rests)} plateaus"
        else:
            how = f"ramp, medians of {medians} bins"
        if has_baseline and apart is None:
            how += " and the baseline"
        return f"{how}, linear regression"

    def _line_when_settled(
        self, name: str, metric: Series, places: Sequence[Point]
    ) -> FittedLine | None:
        """The line of a ladder whose metric still moved in its rests, as far as it may still move;
        None if it had settled.

        Until it settles it moves by as much again, if each halving of the rest takes as long.
        """
        if not self._rests or len(places) != len(self._rests) + 1:
            return None
        moving = self._moving(name, metric)
        if not any(moving):
            return None
        further = [
            msgspec.structs.replace(point, value=point.value + moves)
            for point, moves in zip(places, [0.0, *moving], strict=True)
        ]
        return regress(further)

    def _largest_step(self, metric: Series, line: FittedLine) -> float:
        """How far the metric strays from a ladder's line on the way between its rests. What grows
        in steps, as arenas do, may be as far from the line at the rests, and nobody sees it there:
        each step ends between them.
        """
        if not self._rests:
            return 0.0
        largest = 0.0
        for point in ramp_points(metric, self.held, self._start, self.line_until_s):
            if not point.baseline:
                largest = max(largest, abs(point.value - line.at(point.n)))
        return largest

    def _with_time(
        self, name: str, metric: Series, points: Sequence[Point], line: FittedLine
    ) -> WithTime | None:
        """What rises with the connections and what by the clock: of a ladder, and of a program."""
        if self._rests:
            return self._of_rests(metric)
        if name in _OF_PROGRAMS:
            return self._since_before(metric, points, line)
        return None

    def _of_rests(self, metric: Series) -> WithTime | None:
        """By the two halves of the settled part of each rest. Growth may begin with the first
        connection, so the baseline says nothing of it.
        """
        at_rest = []
        for settled in last_halves(metric, self._start, self._rests):
            rows = _with_held(settled, self.held)
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]):
                if half:
                    at_rest.append(median_point(half))
        return regress_with_time(at_rest)

    def _since_before(
        self, metric: Series, points: Sequence[Point], line: FittedLine
    ) -> WithTime | None:
        """By what moved before a ramp, which is taken to go on: in the ramp itself connections and
        time rise together. None if nothing moved. What the first connections take once moved by
        no clock.
        """
        before = metric.between(-math.inf, self._start)
        earlier = [Point(*row) for row in _with_held(before, self.held)]
        ramp = [point for point in points if not point.baseline]
        with_time = regress_with_time(earlier + ramp, first_use=line.apart)
        if with_time is None or not with_time.moves:
            return None
        return with_time

    def other_sockets(self, allocated: Series, ends: int) -> Series:
        """The ``allocated`` sockets of all programs less ``ends`` for each of these connections."""
        others = Series()
        for sample in _with_held(allocated, self.held):
            others.t_s.append(sample.t_s)
            others.values.append(sample.value - ends * sample.n)
        return others

    def _fit(
        self,
        cost: Cost,
        points: Sequence[Point],
        every: Series,
        line: FittedLine,
        apart: float | None = None,
    ) -> Fit:
        seconds_n = [self.held.at(t_s) or 0.0 for t_s in every.t_s]
        return Fit(
            cost,
            [point.n for point in points],
            [point.value for point in points],
            seconds_n,
            every.values,
            line,
            apart,
        )

    def _two_levels(
        self, name: str, metric: Series, scale: float, note: str, ahead: Point | None
    ) -> Fit | None:
        """The difference of the baseline and the last half of the hold's first seconds, by the
        connections.

        The interval is that of a line through the autocorrelated samples of both, plus what the
        metric still moves in the hold. None if one of them was not sampled, or of fewer than five
        connections, which first use hides.
        """
        if self._first_of_hold is None or self._peak < FEWEST:
            return None
        begin, end = self._first_of_hold
        before = metric.between(-math.inf, self._start)
        rest = metric.between((begin + end) / 2, end)
        if not rest:
            rest = metric.between(begin, end)
        if not before or not rest:
            return None
        in_hold = _half_at_least(_with_held(rest, self.held), self._peak)
        points = [Point(*sample) for sample in [*_with_held(before, self.held), *in_hold]]
        after_levels = None
        if ahead is not None and ahead.t_s - ahead.span_s / 2 > end:
            after_levels = ahead
        line = regress(points, after_levels)
        if line is None:
            return None
        ci95 = self._interval_of_levels(name, scale, before, rest, points, line)
        method = (
            f"{LEVELS}{note}{self._over} ({len(before)} samples before, {len(in_hold)} in the hold)"
        )
        cost = Cost(line.slope, ci95, line.intercept, method, len(points), of_levels=True)
        return self._fit(cost, points, metric.between(-math.inf, end), line)

    def _interval_of_levels(
        self,
        name: str,
        scale: float,
        before: Series,
        rest: Series,
        points: Sequence[Point],
        line: FittedLine,
    ) -> tuple[float, float]:
        """The interval of the line through both levels, with what the metric still moves in the
        ``rest``, and with its growth by the clock.
        """
        between = max(point.n for point in points) - min(point.n for point in points)
        half = max(line.half, _level_known_to(name, scale) / between)
        low = line.slope - half
        high = line.slope + half
        climb = statistics.median(rest.values) - statistics.median(before.values)
        (moved,) = unsettled([rest], [climb])
        low = min(low, low + moved / between)
        high = max(high, high + moved / between)
        with_time = regress_with_time(points) if name in _OF_PROGRAMS else None
        if with_time is None or not with_time.moves:
            return low, high
        return min(low, with_time.ci95[0]), max(high, with_time.ci95[1])

    def _moving(self, name: str, metric: Series) -> list[float]:
        """How much (bytes) the metric still moved in each rest; notes those in which it did."""
        baseline = metric.between(-math.inf, self._start)
        rests = last_halves(metric, self._start, self._rests)
        levels = [statistics.median(part.values) for part in (baseline, *rests)]
        climbs = [after - before for before, after in pairwise(levels)]
        moving = unsettled(rests, climbs)
        noted: list[Moved] = []
        for plateau, (moved, climb) in enumerate(zip(moving, climbs, strict=True), 1):
            if moved:
                share = moved / climb if climb else None
                noted.append({"plateau": plateau, "bytes": moved, "share": share})
        if noted:
            self.unsettled[name] = noted
        return moving
