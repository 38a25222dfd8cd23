"""The line of memory over connections held, through medians of a ramp or of plateaus; or a
difference of two levels.

Samples are autocorrelated (memory changes slowly), and an interval that ignores this would be too
narrow. So the ramp is cut into bins of equal N, and each gives one point, the medians of N and of
the metric. The remaining correlation is part of the fit (:mod:`asyncli.analysis.regression`). If
the ramp is too short for that, two levels are compared.
"""

from __future__ import annotations

import math
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
from asyncli.findings.cost import LEVELS, Moved
from asyncli.model.records import Tick
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
_PLATEAUS_THAT_SPARE_ONE = 5
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
    #: What the last connections cost in a program, where that is not what the line says.
    bends: list[Bend] = msgspec.field(default_factory=list)

    def at(self, n: float) -> float:
        return self.cost.fixed_bytes + self.cost.bytes_per_connection * n

    def band(self, n: float) -> tuple[float, float]:
        """The 95 % confidence band of the line (not of a sample) at ``n`` connections, bytes."""
        # The cost's interval may be wider than the line's (an unsettled plateau, a difference of
        # slopes).
        wider = self.cost.half_width / self.line.half if self.line.half > 0 else 1.0
        half = max(self.known_to, self.line.half_at(n) * max(1.0, wider)) + abs(
            self.at(n) - self.line.at(n)
        )
        return self.at(n) - half, self.at(n) + half


def _with_held(metric: Series, held: Series) -> list[tuple[float, float, float]]:
    """(Instant, connections held then, value) of each reading."""
    return [(t_s, held.at(t_s) or 0.0, value) for t_s, value in metric.rows()]


def ramp_points(metric: Series, held: Series, start_s: float, end_s: float) -> list[Point]:
    """Medians of the baseline, and of each of up to 40 equal bins of N until ``end_s``."""
    baseline = metric.between(-math.inf, start_s)
    ramp = metric.between(math.nextafter(start_s, math.inf), end_s)
    triples = [triple for triple in _with_held(ramp, held) if triple[1] > 0]
    # Zero of ours; of the server's count those of other clients.
    empty = _with_held(baseline, held)
    points = [median_point(empty, baseline=True)] if empty else []
    if not triples:
        return points
    bins = max(FEWEST_RAMP_POINTS, min(MOST_BINS, len(triples) // 3))
    least, most = held.at(start_s) or 0.0, max(n for _, n, _ in triples)
    if most <= least:
        return points
    cells: list[list[tuple[float, float, float]]] = [[] for _ in range(bins)]
    for triple in triples:
        share = (triple[1] - least) / (most - least)
        place = min(bins - 1, max(0, int(share * bins)))
        cells[place].append(triple)
    return points + [median_point(cell) for cell in cells if cell]


def plateau_points(
    metric: Series, held: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[Point]:
    """Medians of the baseline, and of the last half of each of ``rests`` (from, to), in s after
    ``start_s``.
    """
    stretches = [(-math.inf, start_s), *((start_s + (a + b) / 2, start_s + b) for a, b in rests)]
    points = []
    for low, high in stretches:
        part = metric.between(low, high)
        if part.values:
            at_rest = [held.at(t_s) or 0.0 for t_s in part.t_s]
            apart = high <= start_s and len(rests) >= _PLATEAUS_THAT_SPARE_ONE
            points.append(
                median_point(list(zip(part.t_s, at_rest, part.values, strict=True)), baseline=apart)
            )
    return points


def median_point(samples: Sequence[tuple[float, float, float]], *, baseline: bool = False) -> Point:
    """The medians of (instant, N, value)."""
    t_s, n, value = (statistics.median(column) for column in zip(*samples, strict=True))
    times = [t_s for t_s, _, _ in samples]
    return Point(t_s, n, value, len(samples), max(times) - min(times), baseline)


def unsettled(rests: Sequence[Series], climbs: Sequence[float]) -> list[float]:
    """How much (bytes) the metric still moved in each of the ``rests``; 0 if it had settled
    (docs/method.md, plateau).

    ``rests``: the last half of each; ``climbs``: the rise to each. A rest of fewer than two samples
    counts as settled.
    """
    halves = []
    for rest in rests:
        middle = (rest.t_s[0] + rest.t_s[-1]) / 2 if len(rest) else 0.0
        early = [
            (t_s, value) for t_s, value in zip(rest.t_s, rest.values, strict=True) if t_s < middle
        ]
        late = [
            (t_s, value) for t_s, value in zip(rest.t_s, rest.values, strict=True) if t_s > middle
        ]
        halves.append((early, late))
    noise = _wander(rests)
    moved = []
    for (early, late), climb in zip(halves, climbs, strict=True):
        if not early or not late:
            moved.append(0.0)
            continue
        by = statistics.median(v for _, v in late) - statistics.median(v for _, v in early)
        apart_s = statistics.median(t for t, _ in late) - statistics.median(t for t, _ in early)
        enough = max(WORTH_TELLING * abs(climb), _MOVES_BEYOND * noise * math.sqrt(apart_s))
        moved.append(by if abs(by) > enough else 0.0)
    return moved


def _wander(rests: Sequence[Series]) -> float:
    """The deviation of a metric's steps from its trend in each rest, per root of a second, as of a
    random walk (conservative).
    """
    squares, freedom = 0.0, 0
    for rest in rests:
        steps = [
            (after - before, end - begin)
            for (begin, before), (end, after) in pairwise(zip(rest.t_s, rest.values, strict=True))
        ]
        if len(steps) < 2:
            continue
        pace = sum(step for step, _ in steps) / sum(seconds for _, seconds in steps)
        squares += sum((step - pace * seconds) ** 2 / seconds for step, seconds in steps)
        freedom += len(steps) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def minus(whole: Series, parts: Sequence[Series]) -> Series:
    """``whole`` less ``parts``, at the instants of the metric that was sampled least often."""
    sparsest = min([whole, *parts], key=len)
    rest = Series()
    for t_s in sparsest.t_s:
        values = [series.near(t_s, WIDEST_GAP_S) for series in (whole, *parts)]
        if all(value is not None for value in values):
            total, *others = (value for value in values if value is not None)
            rest.t_s.append(t_s)
            rest.values.append(total - sum(others))
    return rest


def plus(whole: Series, parts: Sequence[Series]) -> Series:
    """``whole`` and ``parts`` together, at the instants of the metric that was sampled least often.
    """
    return minus(whole, [Series(part.t_s, [-value for value in part.values]) for part in parts])


def reaching(
    found: Fit, ahead: Point, predicted: tuple[float, float], most: float, known_to: float
) -> Fit:
    """``found`` with an interval that reaches to the level ``ahead``, at the hold's end, if the
    line does not predict that.

    Memory that comes after the ramp is a cost that no line through the ramp can show; what grows
    with time is none, and nobody can tell them apart by one level: the interval includes both, and
    the value is halfway. The line predicts the level within the interval of its noise at that
    instant (``predicted``: its middle, and half of it), and within ``known_to`` bytes. ``most``:
    connections at the peak; memory of those that were lost may be kept, so what lies between both
    counts is predicted.
    """
    middle, half = predicted
    kept = max(0.0, found.line.slope) * max(0.0, most - ahead.n)
    half = max(half, known_to)
    if middle - half <= ahead.value <= middle + kept + half:
        return found
    off = ahead.value - found.line.at(ahead.n)
    cost, each = found.cost, off / ahead.n
    low, high = cost.ci95
    low, high = min(low, low + each), max(high, high + each)
    where = f"{format_bytes(abs(off))} {'above' if off > 0 else 'below'} the line"
    method = f"{cost.method}; the interval reaches to the level at the hold's end, {where}"
    value = cost.bytes_per_connection + each / 2
    fixed = ahead.value - value * ahead.n
    cost = msgspec.structs.replace(
        cost, bytes_per_connection=value, ci95=(low, high), fixed_bytes=fixed, method=method
    )
    return msgspec.structs.replace(found, cost=cost, off_at_end=off, held_at_end=ahead.n)


def streams_each(asked: int, ticks: Iterable[Tick]) -> float | msgspec.UnsetType:
    """How many of the ``asked`` HTTP/2 streams each connection held: all, or their mean to a tenth
    if many were missing.
    """
    if not asked:
        return msgspec.UNSET
    counted = [
        (tick.protocol.streams_open, tick.held)
        for tick in ticks
        if tick.held and tick.protocol is not None
    ]
    mean = (
        sum(streams for streams, _ in counted) / sum(held for _, held in counted)
        if counted
        else asked
    )
    return asked if mean >= NEARLY_ALL * asked else round(mean, 1)


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


class Fitter:
    """Fits metrics against the same N(t)."""

    def __init__(self, run: Run, held: Series, over: str = "") -> None:
        self._held = held
        self._start = run.first_connect_s
        ramp, hold = run.phase("ramp"), run.phase("hold")
        end = (
            ramp.end_s
            if ramp is not None and ramp.end_s is not None
            else (run.ticks[-1][0] if run.ticks else self._start)
        )
        hold_end = hold.end_s if hold is not None and hold.end_s is not None else math.inf
        self.ramp_end_s = end
        #: The end of the samples of a line.
        self.line_until_s = min(end + _INTO_HOLD_S, hold_end) if hold is not None else end
        rests = [
            (a, b)
            for a, b in run.plan.schedule.rests()
            if self._start + b <= self.line_until_s + 1.0
        ]
        self._rests = rests if len(rests) >= FEWEST_PLATEAUS else []
        # The first seconds of the hold, for two levels.
        held_any = hold is not None and any(tick.held for _, tick in run.ticks)
        self._rest = (
            (hold.start_s, min(hold.start_s + OTHERS_INTO_HOLD_S, hold_end))
            if hold is not None and held_any
            else None
        )
        #: The end of the fitted samples.
        self.until_s = max(
            self.line_until_s + 1.0, self._rest[1] if self._rest is not None else -math.inf
        )
        self._hold_end_s = min(run.stop_s, hold_end)
        self._most = max(held.values)
        many = [
            t_s
            for t_s, n in held.between(self.line_until_s, self._hold_end_s).rows()
            if n >= self._most / 2
        ]
        self._lasts_to_s = (
            None if hold is None or not many else min(self._hold_end_s, many[-1] + 1.0)
        )
        #: HTTP/2 streams held by each connection.
        self.streams = streams_each(
            run.plan.streams, (tick for t_s, tick in run.ticks if t_s <= self.until_s)
        )
        each = (
            ""
            if self.streams is msgspec.UNSET
            else f" of connections with {format_many(self.streams, 'stream')} each"
        )
        self._over = over + each
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
        found = self._line(name, metric, scale, note, known_to, ahead)
        if not isinstance(found, Fit):
            return found
        if ahead is not None and found.line.predicted is not None:
            resolution = scale * PAGES if name in _OF_THE_KERNEL else FREED_KEPT
            return reaching(found, ahead, found.line.predicted, self._most, resolution)
        return found

    def _level_ahead(self, metric: Series) -> Point | None:
        """The level at the hold's end, after the samples of a line; None if there is none.

        Of the last instant with at least half of the connections: with fewer, most of the memory is
        what is kept of the others.
        """
        if self._lasts_to_s is None:
            return None
        since_s = max(math.nextafter(self.line_until_s, math.inf), self._lasts_to_s - _INTO_HOLD_S)
        last = _with_held(metric.between(since_s, self._lasts_to_s), self._held)
        rows = [row for row in last if row[1] >= self._most / 2]
        return median_point(rows) if rows else None

    def _line(
        self,
        name: str,
        metric: Series,
        scale: float,
        note: str,
        known_to: float,
        ahead: Point | None,
    ) -> Fit | int:
        if self._rests:
            points = plateau_points(metric, self._held, self._start, self._rests)
        else:
            points = ramp_points(metric, self._held, self._start, self.line_until_s)
        line = regress(points, ahead) if len(points) >= self.points_wanted else None
        if line is None:
            found = self._two_levels(name, metric, scale, note, ahead)
            if found is not None:
                self.levels[name] = len(points)
            return found or len(points)
        apart = None
        if line.apart:
            apart = next(point.value for point in points if point.baseline)
        method = self._method_of_line(metric, points, apart) + note + self._over
        most = max(point.n for point in points)
        half = max(line.half, scale * known_to / most, self._largest_step(metric, line) / most)
        intervals = [(line.slope - half, line.slope + half)]
        settled = self._line_when_settled(name, metric, points)
        if settled is not None:
            intervals.append((settled.slope - settled.half, settled.slope + settled.half))
        with_time = self._with_time(name, metric, points)
        if with_time is not None and with_time.moves:
            intervals.append(with_time.ci95)
        method += _baseline_excluded(line, apart) + _not_excluded(with_time, line)
        on_line = [point for point in points if not (line.apart and point.baseline)]
        lowest = min(low for low, _ in intervals)
        highest = max(high for _, high in intervals)
        ci95 = (lowest, highest)
        cost = Cost(line.slope, ci95, line.intercept, method, len(on_line), line.r2)
        sampled = metric.between(-math.inf, self.line_until_s)
        fit = self._fit(cost, on_line, sampled, line, apart)
        if name in _OF_PROGRAMS:
            fit.bends = bends(points, self._sampled(metric), line, FREED_KEPT)
        return fit

    def _sampled(self, metric: Series) -> list[Sampled]:
        """The metric over the ramp as up to 40 medians of successive samples; empty over the
        server's own count, which is read at other instants than the memory: a short stretch needs
        both.
        """
        if self._is_of_server:
            return []
        ramp = metric.between(math.nextafter(self._start, math.inf), self.line_until_s)
        rows = _with_held(ramp, self._held)
        size = max(1, math.ceil(len(rows) / MOST_BINS))
        sampled = []
        for first in range(0, len(rows), size):
            columns = zip(*rows[first : first + size], strict=True)
            sampled.append(Sampled(*(statistics.median(column) for column in columns)))
        return sampled

    def _method_of_line(self, metric: Series, points: Sequence[Point], apart: float | None) -> str:
        """How the line was found, in words that the metric's own follow."""
        has_baseline = bool(metric.between(-math.inf, self._start).values)
        medians = len(points) - has_baseline
        if self._rests:
            how = f"plateau medians ({medians})"
        else:
            how = f"ramp, medians of {medians} bins"
        if has_baseline and apart is None:
            how += " and the baseline"
        return f"{how}, linear regression"

    def _line_when_settled(
        self, name: str, metric: Series, points: Sequence[Point]
    ) -> FittedLine | None:
        """The line of a ladder whose metric still moved in its rests, as far as it may still move;
        None if it had settled.

        Until it settles it moves by as much again, if each halving of the rest takes as long.
        """
        if not self._rests or len(points) != len(self._rests) + 1:
            return None
        moving = self._moving(name, metric)
        if not any(moving):
            return None
        further = [
            msgspec.structs.replace(point, value=point.value + by)
            for point, by in zip(points, [0.0, *moving], strict=True)
        ]
        return regress(further)

    def _largest_step(self, metric: Series, line: FittedLine) -> float:
        """How far the metric strays from a ladder's line on the way between its rests. What grows
        in steps, as arenas do, may be as far from the line at the rests, and nobody sees it there:
        each step ends between them.
        """
        if not self._rests:
            return 0.0
        on_the_way = ramp_points(metric, self._held, self._start, self.line_until_s)
        strays = [abs(point.value - line.at(point.n)) for point in on_the_way if not point.baseline]
        return max(strays, default=0.0)

    def _with_time(self, name: str, metric: Series, points: Sequence[Point]) -> WithTime | None:
        """What rises with the connections and what by the clock: of a ladder, and of a program."""
        if self._rests:
            return self._of_rests(metric)
        if name in _OF_PROGRAMS:
            return self._since_before(metric, points)
        return None

    def _of_rests(self, metric: Series) -> WithTime | None:
        """By the two halves of the settled part of each rest. Growth may begin with the first
        connection, so the baseline says nothing of it.
        """
        at_rest = []
        for begin, end in self._rests:
            settled = metric.between(self._start + (begin + end) / 2, self._start + end)
            rows = _with_held(settled, self._held)
            middle = len(rows) // 2
            at_rest += [median_point(half) for half in (rows[:middle], rows[middle:]) if half]
        return regress_with_time(at_rest)

    def _since_before(self, metric: Series, points: Sequence[Point]) -> WithTime | None:
        """By what moved before a ramp, which is taken to go on: in the ramp itself connections and
        time rise together. None if nothing moved.
        """
        before = metric.between(-math.inf, self._start)
        earlier = [Point(*row) for row in _with_held(before, self._held)]
        ramp = [point for point in points if not point.baseline]
        with_time = regress_with_time(earlier + ramp)
        return with_time if with_time is not None and with_time.moves else None

    def other_sockets(self, allocated: Series, ends: int) -> Series:
        """The ``allocated`` sockets of all programs less the ``ends`` of each of these connections.
        """
        ours = (ends * (self._held.at(t_s) or 0.0) for t_s in allocated.t_s)
        return Series(
            allocated.t_s, [every - own for every, own in zip(allocated.values, ours, strict=True)]
        )

    def _fit(
        self,
        cost: Cost,
        points: Sequence[Point],
        every: Series,
        line: FittedLine,
        apart: float | None = None,
    ) -> Fit:
        seconds_n = [self._held.at(t_s) or 0.0 for t_s in every.t_s]
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
        if self._rest is None or max(self._held.values) < FEWEST:
            return None
        begin, end = self._rest
        before = metric.between(-math.inf, self._start)
        rest = metric.between((begin + end) / 2, end) or metric.between(begin, end)
        points = [Point(*row) for row in _with_held(before, self._held)]
        # With fewer left, most of the memory is what is kept of the others.
        least = self._most / 2
        points += [Point(*row) for row in _with_held(rest, self._held) if row[1] >= least]
        ahead = ahead if ahead is not None and ahead.t_s - ahead.span_s / 2 > end else None
        line = regress(points, ahead) if before and rest else None
        if line is None:
            return None
        most = max(point.n for point in points) - min(point.n for point in points)
        known_to = scale * PAGES if name in _OF_THE_KERNEL else FREED_KEPT
        half = max(line.half, known_to / most)
        low, high = line.slope - half, line.slope + half
        levels = [statistics.median(part.values) for part in (before, rest)]
        (moved,) = unsettled([rest], [levels[1] - levels[0]])
        low, high = min(low, low + moved / most), max(high, high + moved / most)
        with_time = regress_with_time(points) if name in _OF_PROGRAMS else None
        if with_time is not None and with_time.moves:
            low = min(low, with_time.ci95[0])
            high = max(high, with_time.ci95[1])
        method = f"{LEVELS}{note}{self._over} ({len(before)} samples before, {len(points) - len(before)} in the hold)"
        cost = Cost(line.slope, (low, high), line.intercept, method, len(points), of_levels=True)
        return self._fit(cost, points, metric.between(-math.inf, end), line)

    def _moving(self, name: str, metric: Series) -> list[float]:
        rests = [metric.between(self._start + (a + b) / 2, self._start + b) for a, b in self._rests]
        baseline = metric.between(-math.inf, self._start)
        levels = [statistics.median(part.values) for part in (baseline, *rests)]
        climbs = [after - before for before, after in pairwise(levels)]
        moving = unsettled(rests, climbs)
        noted: list[Moved] = [
            {"plateau": number, "bytes": by, "share": by / climb if climb else None}
            for number, (by, climb) in enumerate(zip(moving, climbs, strict=True), 1)
            if by
        ]
        if noted:
            self.unsettled[name] = noted
        return moving
