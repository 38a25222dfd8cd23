"""Does memory grow with time, at a number of connections that stays? A rate per hour with an interval, and a verdict.

The median of the slopes through all pairs of points (Theil 1950; Sen 1968, J. Am. Stat. Assoc. 63, whose interval this
is), tested by Kendall's S (Mann 1945, Econometrica 13). The points are medians of a minute, so that no single reading
counts. Neighbouring minutes are not independent (allocators, caches and other programs wander slowly), and test and
interval would be too sure of themselves. The variance of S is therefore multiplied by what correlation does to it, as
Hamed and Rao (1998, J. Hydrol. 204) do; but not by the correlations of the points alone: in simulated holds of an hour with
slow wander under white noise those gave a trend to 40 of 100 runs that had none. See :func:`_tail`.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from asyncli.analysis.gaps import for_drift
from asyncli.findings.drift import by_the_hour, drift_grows, drift_unknown
from asyncli.metrics import (
    GENERATOR_USS_BYTES,
    HOST_AVAILABLE_BYTES,
    HOST_USED_BYTES,
    KERNEL_LISTING_BYTES,
    KERNEL_SOCKET_BYTES,
    SERVER_ANON_SHMEM_BYTES,
    SERVER_ENDED,
    SERVER_PROCESSES,
    SERVER_PSS_BYTES,
    SERVER_RSS_BYTES,
    SERVER_USS_BYTES,
    STATUS_ACCEPTS,
)
from asyncli.records import Finding
from asyncli.run import Run
from asyncli.samples import Series, began_anew
from asyncli.units import format_bytes, format_count, format_duration

MetricName = Literal["server_user", "kernel", "generator_user", "host_total"]
Verdict = Literal["grows", "shrinks", "flat", "too_short"]

BIN_S = 60.0
# A hold that has fewer minutes than this is cut into so many shorter bins: a time-compressed run is judged as a long one is.
POINTS_WANTED = 20
# With fewer points no correlation can be told from a trend.
FEWEST_POINTS = 10
# Twelve hours of minutes. A longer hold gets longer bins: the pairs of points grow as their square.
MOST_POINTS = 720
CONFIDENCE = 0.95
# Growth below this share of the metric is called flat even where it is certain: over an hour, or over a hold shorter than that.
# At 0.1 % an hour a server needs six weeks to double.
MEANINGLESS_SHARE = 0.001
# "Flat" says that growth by more than this share of what the connections took is excluded, over an hour however short the hold;
# or growth that is meaningless beside the metric, of which they may take nothing. A bound of 593 MB an hour by 20 s, where all
# connections took 25 MB, excludes nothing that matters.
FLAT_SHARE = 0.1
# The hold's beginning, in which each connection gets to its second heartbeat, is left out: after the ramp to 100,000 with
# --keepalive 60 asyncli's own memory rose by 0.6 % in 60 s, and by 0.1 % in the next 180. At most this share of the hold.
_SETTLING_SHARE = 0.25
# Memory is read once a second, or less often.
_READ_S = 1.0
# What else runs on the host keeps its own time: no run that is compressed has made it go faster, so that its growth or
# shrinking takes as many whole minutes as others take points. In 15 s of a hold of 20,000 connections it rose by 12 MB, which
# carried on is 3 GB an hour, while neither the server nor the kernel had grown by a byte. And what asyncli itself has settles for
# minutes: after a ramp to 100,000 it rose by 0.6 % in a minute (16 MB an hour), and over an hour not at all.
_SLOW_TO_TELL: tuple[MetricName, ...] = ("host_total", "generator_user")
# Memory is granted by pages: growth below one page over the whole stretch does not show.
_PAGE = 4096.0

#: Of which metric of the samples each drift is the drift: of the first of these that was read. The server's anonymous and shared
#: memory before its PSS: that has pages of files too, of which its share moves with every other process that maps them. In a
#: hold of 100,000 connections on nginx it fell by 230 kB within two seconds, while nothing private changed by a byte in ten
#: minutes. Private memory alone would hide what its processes share.
SOURCES: dict[MetricName, tuple[str, ...]] = {
    "server_user": (SERVER_ANON_SHMEM_BYTES, SERVER_USS_BYTES, SERVER_PSS_BYTES, SERVER_RSS_BYTES),
    "kernel": (KERNEL_SOCKET_BYTES,),
    "generator_user": (GENERATOR_USS_BYTES,),
    "host_total": (HOST_USED_BYTES,),
}
# What of the server's memory these leave out (of files; of private memory also what is shared) is in both of these. What both
# grow by is the server's doing: PSS alone another program moves that unmaps the same files, RSS alone one process more.
_WIDER = (SERVER_PSS_BYTES, SERVER_RSS_BYTES)

RULE = (
    "the slope through the medians of each minute of the hold (Theil-Sen), less its first --keepalive seconds, in which "
    "memory settles (at most a quarter of the hold); of 20 shorter stretches where there are fewer minutes; of the later half "
    "alone where that surely moves by less. It grows or "
    "shrinks where Kendall's test, corrected for correlated neighbours, is sure to 95 % and the rate is 0.1 % of the metric "
    "or more (over an hour, or a hold shorter than that); it is flat within X an hour where the 95 % interval lies within X "
    "and X is 10 % of what the connections took or less, or 0.1 % of the metric; else the hold was too short to say. "
    f"In less than {FEWEST_POINTS} minutes, growth by no more than the connections had taken is not told from settling: a heap "
    "fills before garbage is first collected. "
    "The whole host's memory, which all that runs there moves, "
    f"and asyncli's own, which settles for minutes, grow or shrink only over {FEWEST_POINTS} minutes or more. What fits in "
    "memory that a process already has in reserve does not show"
)


class Drift(msgspec.Struct):
    """One metric over the hold: its rate in bytes per hour with the 95 % interval, Kendall's two-sided p, and the verdict.

    ``minutes``: whole minutes of the hold that were looked at. ``within_bytes_per_hour``: the growth, of either sign, that
    the interval does not exclude. Rate, interval and p are None where there are too few points. Where growth is not told from
    settling the interval holds 0, however sure p is that memory grew.
    """

    bytes_per_hour: float | None
    ci95: tuple[float, float] | None
    p_value: float | None
    minutes: int
    verdict: Verdict
    within_bytes_per_hour: float | None
    #: How many medians, each of so many seconds, between which instants of the run's clock.
    points: int = 0
    bin_s: float = BIN_S
    from_s: float | None = None
    to_s: float | None = None
    #: The metric's median over that stretch.
    level_bytes: float | None = None
    #: The rate over answered heartbeats per hour: where it grows, what a server that leaks at each request leaks at each.
    bytes_per_request: float | None = None
    #: Of which metric of the samples.
    metric: str = ""


class Trend(msgspec.Struct, frozen=True):
    """The slope of y per unit of x, its 95 % interval, and Kendall's two-sided p."""

    slope: float
    low: float
    high: float
    p_value: float


def trend(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """Theil-Sen slope of ``y`` over rising ``x``, about evenly spaced; None for fewer than ten points."""
    import numpy as np

    n = len(x)
    if n < FEWEST_POINTS:
        return None
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    first, second = np.triu_indices(n, 1)
    rises = ys[second] - ys[first]
    slopes = rises / (xs[second] - xs[first])
    slope = float(np.median(slopes))
    ties = np.unique(ys, return_counts=True)[1].astype(float)
    # Kendall 1975, Rank Correlation Methods, with his correction for ties.
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return Trend(0.0, 0.0, 0.0, 1.0)
    tail = _tail(ys - slope * xs, variance)
    s = abs(float(np.sign(rises).sum()))
    p_value = tail(max(0.0, s - 1))
    low, high = _as_a_walk(xs, ys)
    rank = math.floor((len(slopes) - _reach(tail, len(slopes))) / 2) - 1
    if rank >= 0:
        # Sen's interval; where wander leaves of it only the steepest pairs of neighbours, that of a walk is the narrower.
        ends = np.partition(slopes, [rank, len(slopes) - 1 - rank])[[rank, len(slopes) - 1 - rank]]
        if ends[1] - ends[0] <= high - low or p_value < 1 - CONFIDENCE:
            low, high = float(ends[0]), float(ends[1])
    return Trend(slope, min(low, slope), max(high, slope), p_value)


def _reach(tail: Callable[[float], float], most: float) -> float:
    """The |S| that chance alone passes in 5 % of runs; ``most`` where it is beyond the largest."""
    low, high = 0.0, most
    if tail(high) > 1 - CONFIDENCE:
        return high
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > 1 - CONFIDENCE else (low, middle)
    return high


def _as_a_walk(xs: Any, ys: Any) -> tuple[float, float]:
    """The 95 % interval of the rate if all noise were a random walk, whose steps are independent: the widest case."""
    import numpy as np
    from scipy.special import stdtrit

    size = -(-len(xs) // _MOST_BLOCKS)
    blocks = len(xs) // size
    t, y = (column[len(column) - blocks * size :].reshape(blocks, size).mean(axis=1) for column in (xs, ys))
    steps = np.diff(y)
    half = float(stdtrit(len(steps) - 1, 0.5 + CONFIDENCE / 2)) * float(steps.std(ddof=1)) * math.sqrt(len(steps))
    rise, length = float(y[-1] - y[0]), float(t[-1] - t[0])
    return (rise - half) / length, (rise + half) / length


# What the noise may be: correlation times as shares of the stretch, from between two points to a random walk over all of it,
# each with white noise by the variance of the wander's step from point to point.
_TIMES = (1 / 40, 1 / 20, 1 / 10, 1 / 5, 1 / 2, 1.0, 30.0)
_WHITE = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
# Slow wander shows as well in the means of a few points as in all, and the work grows as the cube of their number.
_MOST_BLOCKS = 40


def _tail(residuals: Any, variance: float) -> Callable[[float], float]:
    """How probable |S| of at least so much is by chance, given how the residuals hang together.

    Whether noise wanders, how slowly, and how much white noise hides it, is known from some points only roughly. So
    each kind of noise counts by its restricted likelihood, as in :mod:`asyncli.analysis.regression`, and with it what
    it does to the variance of S. Of normal scores, so that single readings far off do not decide.
    """
    import numpy as np
    from scipy.special import ndtri, stdtr

    n = len(residuals)
    _, place, counts = np.unique(residuals, return_inverse=True, return_counts=True)
    scores = ndtri((np.cumsum(counts) - counts / 2)[place] / n)
    size = -(-n // _MOST_BLOCKS)
    blocks = n // size
    contrasts, roots, log_det, white, wander, weight = _noises(blocks)
    rest = ((roots @ (contrasts.T @ scores[n - blocks * size :].reshape(blocks, size).mean(axis=1))) ** 2).sum(axis=1)
    if rest[0] > _ROUNDING * n:
        log_likelihood = -0.5 * (log_det + (blocks - 2) * np.log(rest))
        likelihood = np.exp(log_likelihood - log_likelihood.max())
    else:
        # All points lie on the line.
        likelihood = np.eye(len(log_det))[0]
    likelihood = likelihood / likelihood.sum()
    # The variance of the sum of x times noise by what it is for independent points that vary as much.
    inflation = np.maximum(1.0, size * weight / (white * size + wander))
    deviation = np.sqrt(variance * inflation)
    return lambda s: min(1.0, float((likelihood * 2 * stdtr(blocks - 2, -s / deviation)).sum()))


# Residuals below this are rounding.
_ROUNDING = 1e-12


@functools.lru_cache(maxsize=8)
def _noises(m: int) -> tuple[Any, Any, Any, Any, Any, Any]:
    """For ``m`` evenly spaced points and each kind of noise, the pure white one first.

    Contrasts free of any line; what makes them independent; the logarithm of their determinant; the variance that is
    white and that which is wander (about the stretch's own mean); the variance of the noise's sum with x.
    """
    import numpy as np

    x = np.arange(m) - (m - 1) / 2
    contrasts = np.linalg.qr(np.column_stack([np.ones(m), x]), mode="complete")[0][:, 2:]
    apart = np.abs(x[:, None] - x[None, :])
    covariances, white, wander = [np.eye(m)], [1.0], [0.0]
    for time in _TIMES:
        shape = np.exp(-apart / (time * (m - 1)))
        shape /= -2 * math.expm1(-1 / (time * (m - 1)))
        for share in _WHITE:
            covariances.append(shape + share * np.eye(m))
            white.append(share)
            wander.append(float(np.trace(shape) - shape.sum() / m) / (m - 1))
    every = np.array(covariances)
    roots = np.linalg.cholesky(contrasts.T @ every @ contrasts)
    log_det = 2 * np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    weight = np.einsum("i,kij,j->k", x, every, x) / (x @ x)
    return contrasts, np.linalg.inv(roots), log_det, np.array(white), np.array(wander), weight


def least_hold_s(keepalive_s: float) -> float:
    """The shortest hold (s) of which a rate can be known: so many readings of memory, one a second, after it has settled."""
    points_s = FEWEST_POINTS * _READ_S
    return min(points_s + keepalive_s, points_s / (1 - _SETTLING_SHARE))


def drifts(run: Run) -> tuple[dict[MetricName, Drift], list[Finding]]:
    """The drift of each metric that was sampled in the hold, and findings; both empty without a hold.

    A finding for each metric that grows, and one for those of which no rate is known.

    See :data:`SOURCES`; ``host_total`` is memory in use less inodes of /proc. Where the number of connections moved in
    the hold, growth must show both in the memory as it was read and in it less what the connections cost (memory may
    follow them or not); the kernel's does follow. Minutes in which a tenth of the connections more or less were held
    than usual are left out.
    """
    run = for_drift(run)
    if run.hold is None:
        return {}, []
    start, end = run.hold.start_s + min(run.plan.keepalive_s, _SETTLING_SHARE * run.hold.length_s), run.hold.end_s
    look = _Look(run, start, end)

    found: dict[MetricName, Drift] = {}
    starts_anew = _restarts(run)
    for name in SOURCES:
        source = source_of(run, name)
        metric = drifting(run, source)
        if metric.between(start, end).t_s:
            of_server = name == "server_user"
            wider = [run.series(one) for one in _WIDER] if of_server and source not in _WIDER else []
            cuts = starts_anew if of_server else ()
            found[name] = look.at(metric, follows=name == "kernel", cuts=cuts, wider=wider, slow=name in _SLOW_TO_TELL)
            found[name].metric = found[name].metric or source
    available = run.series(HOST_AVAILABLE_BYTES).last(until_s=end)
    grown = [_grows(name, found[name], available) for name in found if _worth_saying(name, found)]
    return found, [*grown, *_unknown({name: one for name, one in found.items() if one.bytes_per_hour is None})]


def medians(run: Run, found: Mapping[MetricName, Drift]) -> dict[MetricName, Series]:
    """The points that each of the drifts ``found`` in a run goes through: medians, at their instants (s), of bytes."""
    look = _Look(run, -math.inf, math.inf)
    points = {}
    for name, one in found.items():
        if one.from_s is not None and one.to_s is not None:
            points[name] = Series(*look.medians(drifting(run, one.metric), one.from_s, one.to_s, one.bin_s)[:2])
    return points


def source_of(run: Run, name: MetricName) -> str:
    """The metric whose drift ``name`` is (see :data:`SOURCES`); "" where none was sampled."""
    return next((source for source in SOURCES[name] if len(run.series(source))), "")


def drifting(run: Run, source: str) -> Series:
    """The memory ``source`` over time, of the host without inodes of /proc; empty where it was not sampled."""
    metric = run.series(source)
    listing = run.series(KERNEL_LISTING_BYTES) if source == HOST_USED_BYTES else Series()
    return _less(metric, listing) if len(listing) else metric


class _Look:
    """One metric after another over the same stretch of the hold."""

    def __init__(self, run: Run, start_s: float, end_s: float) -> None:
        self._settling_s = run.plan.keepalive_s
        self._start, self._end, self._held, self._before = start_s, end_s, run.held, run.first_connect_s
        self._answered = Series([t_s for t_s, _ in run.ticks], [float(tick.answered) for _, tick in run.ticks])

    def at(
        self, metric: Series, *, follows: bool, cuts: Sequence[float], wider: Sequence[Series] = (), slow: bool = False
    ) -> Drift:
        """The drift of ``metric``, which surely ``follows`` the number of connections or perhaps does.

        ``cuts``: where it begins anew; the longest stretch between two of them counts. ``wider``: what ``metric`` leaves out is
        in each of these: where all of them grow by more, that is the drift, and what all may grow by is not excluded. ``slow``:
        minutes alone tell. Growth goes on and settling does not: where the later half surely moves by less than the whole, it
        alone counts.
        """
        edges = [self._start, *(cut for cut in cuts if self._start < cut < self._end), self._end]
        start, end = max(pairwise(edges), key=lambda stretch: stretch[1] - stretch[0])
        if start > self._start:
            # A server that is started anew settles anew, as it does at the hold's beginning.
            start += min(self._settling_s, _SETTLING_SHARE * (end - start))
        found = self._over(metric, start, end, wider, follows=follows, slow=slow)
        while found.bytes_per_hour and found.p_value is not None and found.p_value < 1 - CONFIDENCE:
            start = (start + end) / 2
            later = self._over(metric, start, end, wider, follows=follows, slow=slow)
            if later.ci95 is None or later.ci95[0] <= found.bytes_per_hour <= later.ci95[1]:
                break
            if abs(later.bytes_per_hour or 0.0) > abs(found.bytes_per_hour):
                break
            found = later
        return found

    def _over(self, metric: Series, start: float, end: float, wider: Sequence[Series], *, follows: bool, slow: bool) -> Drift:
        """The drift of ``metric`` between two instants (see :meth:`at`)."""
        bin_s = _bin_s(metric.between(start, end).t_s, end - start)
        times, values, held = self.medians(metric, start, end, bin_s)
        result = Drift(
            bytes_per_hour=None, ci95=None, p_value=None, minutes=int((end - start) // 60), verdict="too_short",
            within_bytes_per_hour=None, points=len(times), bin_s=bin_s, from_s=start, to_s=end,
            level_bytes=statistics.median(values) if values else None,
        )  # fmt: skip
        if len(times) < FEWEST_POINTS:
            return result
        found = self._trend(metric, times, values, held, follows=follows)
        if (more := self._of_all(wider, start, end, bin_s, follows=follows)) is not None:
            if more.p_value < 1 - CONFIDENCE and more.low > max(0.0, found.high):
                found, result.metric = more, _WIDER[0]
            else:
                found = msgspec.structs.replace(found, high=max(found.high, more.high))
        baseline, level = metric.between(-math.inf, self._before), statistics.median(values)
        had, taken = math.inf if slow else values[0], 0.0
        if baseline.t_s:
            before, grown_h = statistics.median(baseline.values), (times[0] - statistics.median(baseline.t_s)) / 3600
            # Less what it would have grown by since.
            had, taken = had - before - found.slope * grown_h, level - before
        self._conclude(result, found, level, taken, had, start, end)
        return result

    def _of_all(self, wider: Sequence[Series], start: float, end: float, bin_s: float, *, follows: bool) -> Trend | None:
        """What each of ``wider`` grows by at least; None where one has too few points, or there are none."""
        rows = [self.medians(one, start, end, bin_s) for one in wider]
        if not rows or min(len(times) for times, _, _ in rows) < FEWEST_POINTS:
            return None
        each = [self._trend(one, *row, follows=follows) for one, row in zip(wider, rows, strict=True)]
        slope, low, high = (min(ends) for ends in zip(*((one.slope, one.low, one.high) for one in each), strict=True))
        return Trend(slope, low, high, max(one.p_value for one in each))

    def _trend(self, metric: Series, times: list[float], values: list[float], held: list[float], *, follows: bool) -> Trend:
        """What the metric as it was read, and it less what the connections cost, have in common."""
        ways = [values]
        if max(held) > min(held) and (each := self._each(metric, values[0], held[0])) is not None:
            usual = statistics.median(held)
            less = [value - each * (n - usual) for value, n in zip(values, held, strict=True)]
            ways = [less] if follows else [values, less]
        hours = [t_s / 3600 for t_s in times]
        trends = [one for way in ways if (one := trend(hours, way)) is not None]
        low, high = min(one.low for one in trends), max(one.high for one in trends)
        return Trend(min((one.slope for one in trends), key=abs), low, high, max(one.p_value for one in trends))

    def _conclude(self, result: Drift, found: Trend, level: float, taken: float, had: float, start: float, end: float) -> None:
        """Rate, interval and verdict; ``level``: of the metric, of which ``taken`` bytes are more than in the baseline.

        In less than ten minutes, growth by no more than the connections ``had`` taken before is not told from settling.
        """
        rate, low, high = found.slope, found.low, found.high
        result.bytes_per_hour, result.ci95, result.p_value = rate, (low, high), found.p_value
        # Interval and test are of one mind: ranks and ties may leave either the surer, and the less sure one counts.
        if low <= 0 <= high:
            result.p_value = max(result.p_value, 1 - CONFIDENCE)
        elif result.p_value >= 1 - CONFIDENCE:
            low, high = min(low, 0.0), max(high, 0.0)
            result.ci95 = (low, high)
        hours = (end - start) / 3600
        certain = result.p_value < 1 - CONFIDENCE and (low > 0 or high < 0)
        if certain and result.minutes < FEWEST_POINTS and abs(rate) * hours <= had:
            certain, low, high = False, min(low, 0.0), max(high, 0.0)
        # What is granted by pages may have moved by one more or less than it was seen to.
        low, high = min(low, rate - _PAGE / hours), max(high, rate + _PAGE / hours)
        result.ci95, result.within_bytes_per_hour = (low, high), max(abs(low), abs(high))
        # A share of the metric over an hour, or over a hold that is shorter, as a rate per hour.
        share_of_level = level / min(1.0, hours)
        if certain and abs(rate) >= max(MEANINGLESS_SHARE * share_of_level, _PAGE / hours):
            result.verdict = "grows" if rate > 0 else "shrinks"
        elif result.within_bytes_per_hour <= max(FLAT_SHARE * taken, MEANINGLESS_SHARE * level):
            result.verdict = "flat"
        answered = sum(self._answered.between(math.nextafter(start, math.inf), end).values)
        if answered:
            result.bytes_per_request = rate * hours / answered

    def medians(self, metric: Series, start: float, end: float, bin_s: float) -> tuple[list[float], list[float], list[float]]:
        """Median instant, median of the metric and of connections held, of each bin; whole bins, up to the end."""
        count = int((end - start) / bin_s + 1e-6)
        edges = [end - (count - place) * bin_s for place in range(count)] + [math.nextafter(end, math.inf)]
        rows = []
        for low, high in pairwise(edges):
            part = metric.between(low, math.nextafter(high, -math.inf))
            if part.t_s:
                t_s = part.t_s[len(part.t_s) // 2] if len(part.t_s) % 2 else statistics.median(part.t_s)
                n = self._held.between(low, math.nextafter(high, -math.inf)).values
                rows.append((t_s, statistics.median(part.values), statistics.median(n) if n else self._held.at(t_s) or 0.0))
        usual = statistics.median(n for _, _, n in rows) if rows else 0.0
        rows = [row for row in rows if abs(row[2] - usual) <= _OFF_SHARE * usual]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]

    def _each(self, metric: Series, value: float, held: float) -> float | None:
        """What one connection adds, by the baseline and the stretch's beginning: good enough to correct for a few."""
        baseline = metric.between(-math.inf, self._before).values
        return max(0.0, (value - statistics.median(baseline)) / held) if baseline and held else None


# A minute in which this share of the usual number more or less was held is not of the hold.
_OFF_SHARE = 0.1


def _bin_s(t_s: Sequence[float], length_s: float) -> float:
    """How long a bin is: a minute; less where the hold has few, but never less than from one sample to the next."""
    if length_s >= POINTS_WANTED * BIN_S:
        return BIN_S * math.ceil(length_s / BIN_S / MOST_POINTS)
    gaps = [b - a for a, b in pairwise(t_s)]
    return max(length_s / POINTS_WANTED, statistics.median(gaps) if gaps else BIN_S, 1e-3)


def _less(whole: Series, part: Series) -> Series:
    """``whole`` less ``part`` at the instants of ``whole``."""
    if whole.t_s == part.t_s:
        return Series(whole.t_s, [a - b for a, b in zip(whole.values, part.values, strict=True)])
    import numpy as np

    return Series(whole.t_s, list(map(float, np.asarray(whole.values) - np.interp(whole.t_s, part.t_s, part.values))))


def _restarts(run: Run) -> list[float]:
    """When the server was started anew (s): its memory before and after is of different processes.

    By its counters; and, where no page shows them, by half of its processes or more ending at once.
    """
    accepts, ended, processes = (run.series(name) for name in (STATUS_ACCEPTS, SERVER_ENDED, SERVER_PROCESSES))
    found = {accepts.t_s[place] for place in began_anew(accepts.values)}
    for (_, before), (t_s, after) in pairwise(zip(ended.t_s, ended.values, strict=True)):
        if after > before and after - before >= 0.5 * (processes.last(t_s) or math.inf):
            found.add(t_s)
    return sorted(found)


# Saying it.


def _stretch(drift: Drift) -> str:
    return format_duration(round((drift.to_s or 0.0) - (drift.from_s or 0.0)))


def in_words(drift: Drift) -> str:
    """The verdict with its numbers: ``"grows by 144 MB an hour (140 MB to 148 MB)"``, ``"flat within 1.2 MB an hour"``,
    ``"no growth seen in 15 s; up to 983 kB an hour cannot be excluded"``."""
    if drift.verdict in ("grows", "shrinks") and drift.bytes_per_hour is not None and drift.ci95 is not None:
        return f"{drift.verdict} by {by_the_hour(drift.bytes_per_hour, drift.ci95)}"
    within = drift.within_bytes_per_hour
    if drift.verdict == "flat" and within is not None:
        flat = f"flat within {format_bytes(within)} an hour"
        if drift.minutes < FEWEST_POINTS:
            # A rate by the hour from less than that of it: who reads it should know from how little.
            flat += f", by {_stretch(drift)}"
        if drift.bytes_per_hour and drift.p_value is not None and drift.p_value < 1 - CONFIDENCE:
            # Certain, and still no reason to do anything.
            way = "up" if drift.bytes_per_hour > 0 else "down"
            flat += f" ({way} by {format_bytes(abs(drift.bytes_per_hour))}: certain, and below {MEANINGLESS_SHARE:.1%} of it)"
        return flat
    if drift.ci95 is not None:
        settling = drift.p_value is not None and drift.p_value < 1 - CONFIDENCE
        seen = "too short a hold to tell growth from settling:" if settling else f"no growth seen in {_stretch(drift)};"
        return f"{seen} up to {format_bytes(max(0.0, drift.ci95[1]))} an hour cannot be excluded"
    points = f"{format_count(drift.points)} points of the {FEWEST_POINTS} that it takes"
    return f"{'too little' if drift.minutes >= FEWEST_POINTS else 'too short'} to say: {points}"


def _worth_saying(name: MetricName, found: dict[MetricName, Drift]) -> bool:
    """Whether it grows; of the whole host only where its parts do not explain that."""
    rate = found[name].bytes_per_hour
    if found[name].verdict != "grows" or rate is None:
        return False
    parts = [one.bytes_per_hour or 0.0 for part, one in found.items() if part != name and one.verdict == "grows"]
    return name != "host_total" or sum(parts) < rate / 2


def _grows(name: MetricName, drift: Drift, available: float | None) -> Finding:
    from_s, to_s, rate = drift.from_s or 0.0, drift.to_s or 0.0, drift.bytes_per_hour or 0.0
    each = drift.bytes_per_request if name != "host_total" else None
    return drift_grows(name, from_s, to_s, rate, drift.ci95 or (rate, rate), each, available)


def _unknown(short: dict[MetricName, Drift]) -> list[Finding]:
    if not short:
        return []
    too_short = min(one.minutes for one in short.values()) < FEWEST_POINTS
    return [drift_unknown(list(short), max(one.points for one in short.values()), FEWEST_POINTS, too_short)]
