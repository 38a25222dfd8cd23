"""Estimates of one run with their 95 % intervals, and the difference of two.

The runs are independent, so the variances of both add up, with degrees of freedom after Welch and
Satterthwaite (Satterthwaite 1946, Biometrics Bulletin 2; Welch 1947, Biometrika 34). An asymmetric
interval (of a quantile or a rate) enters with the side that matters, as in Zou and Donner 2008
(Stat. Med. 27).

Latency and lateness quantiles: stretches of the hold give the error of the share of answers below
the quantile, and the interval is where that share lies in all answers (Woodruff 1952, J. Am. Stat.
Assoc. 47). Losses and failures are counts: the interval of a rate is Garwood's (1936, Biometrika
28), and two rates are compared exactly, given the sum of both counts (Przyborowski and Wilenski
1940, Biometrika 31).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from asyncli.analysis.regression import CONFIDENCE
from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.model.records import Tick
from asyncli.model.run import Hold
from asyncli.model.units import format_duration

ALPHA = 1 - CONFIDENCE
# Stretches of a hold, none shorter than three seconds if that leaves enough for a spread.
# Correlation of neighbours is corrected (:func:`_worth`): in simulated holds of 1 to 10 minutes
# with correlation times of 0 to 20 s, 92 to 99 % of the intervals of p50 and p99 held the truth.
_STRETCHES, _FEWEST_STRETCHES, _STRETCH_S = 24, 6, 3.0
# With fewer answers beyond it, a quantile depends on single answers.
_BEYOND = 10
#: Degrees of freedom of a :class:`Repeat`.
REPEAT_FREEDOM = 9


class Repeat(msgspec.Struct, frozen=True):
    """The scatter between repeats beyond each run's own interval: a standard deviation, as a share
    of the value and absolute.
    """

    share: float = 0.0
    absolute: float = 0.0

    def variance(self, value: float) -> float:
        """The variance between repeats of a run that measured this value."""
        return (self.share * value) ** 2 + self.absolute**2


NO_SCATTER = Repeat()


class Estimate(msgspec.Struct, frozen=True):
    """A number of one run, its 95 % interval (``high``: infinite if unknown), and degrees of
    freedom (None: infinite).
    """

    value: float
    low: float
    high: float
    freedom: float | None = None


class Rate(msgspec.Struct, frozen=True):
    """``count`` events over ``exposure`` units (thousand connection-hours, thousand attempts)."""

    count: int
    exposure: float

    @property
    def value(self) -> float:
        return self.count / self.exposure

    def estimate(self) -> Estimate:
        """Garwood's interval: exact for a Poisson count, and conservative."""
        from asyncli.analysis.special import chdtri

        # chdtri: inverse of the upper tail, of (degrees of freedom, probability).
        low = float(chdtri(2 * self.count, 1 - ALPHA / 2)) / 2 if self.count else 0.0
        high = float(chdtri(2 * self.count + 2, ALPHA / 2)) / 2
        return Estimate(self.value, low / self.exposure, high / self.exposure)


def last_of(values: Sequence[float]) -> Estimate:
    """The last of correlated readings; its interval is for the mean of their process, about which
    one reading scatters.
    """
    from asyncli.analysis.special import stdtrit

    middle = statistics.fmean(values)
    off = [value - middle for value in values]
    worth = _worth(off)
    # Corrected for the fitted mean.
    deviation = math.sqrt(
        sum(distance * distance for distance in off) / len(off) * worth / (worth - 1)
    )
    half = float(stdtrit(worth - 1, 1 - ALPHA / 2)) * deviation
    return Estimate(values[-1], values[-1] - half, values[-1] + half, worth - 1)


def at_least(estimate: Estimate, resolution: float) -> Estimate:
    """The estimate with an interval that is not narrower than the metric's resolution: no number is
    known exactly.
    """
    low = min(estimate.low, estimate.value - resolution)
    high = max(estimate.high, estimate.value + resolution)
    return Estimate(estimate.value, low, high, estimate.freedom)


def _worth(off: Sequence[float]) -> float:
    """The equivalent number of independent values: m (1 - r)/(1 + r) for an AR(1) process.

    Bayley and Hammersley 1946 (Suppl. J. R. Stat. Soc. 8); r corrected for the fitted mean by (1 +
    3 r)/m (Marriott and Pope 1954, Biometrika 41).
    """
    m = len(off)
    power = sum(distance * distance for distance in off)
    if power <= 0 or m < 5:
        return float(m)
    r = (sum(a * b for a, b in pairwise(off)) / power + 1 / m) / (1 - 3 / m)
    r = min(0.98, max(0.0, r))
    return max(2.0, m * (1 - r) / (1 + r))


def count_stretches(span_s: float, least_s: float = 1.0) -> int | None:
    """The number of stretches of a span; None if it is too short to estimate their spread."""
    k = min(_STRETCHES, int(span_s / _STRETCH_S))
    if k < _FEWEST_STRETCHES:
        k = min(_FEWEST_STRETCHES, int(span_s / least_s))
    if k < _FEWEST_STRETCHES:
        return None
    return k


class Stretches(msgspec.Struct):
    """A histogram of the hold by stretches: its buckets, and their counts in each stretch."""

    keys: list[int]  # rising
    table: Any  # numpy, (stretches, buckets)


def by_stretch(
    hold: Hold | None, histogram_of: Callable[[Tick], Histogram], event: str
) -> Stretches | str:
    """A histogram of the hold in stretches of equal length; or the reason for none. ``event``: what
    happened to the heartbeats in it ("answered").
    """
    import numpy as np

    if hold is None:
        return "the run did not reach its hold"
    ticks = hold.ticks
    if not ticks:
        return f"hold too short ({format_duration(hold.length_s)})"
    start_s = ticks[0][0] - 1.0
    span_s = ticks[-1][0] - ticks[0][0] + 1.0
    k = count_stretches(span_s)
    if k is None:
        return f"hold too short ({format_duration(span_s)})"
    parts: list[list[Histogram]] = [[] for _ in range(k)]
    for t_s, tick in ticks:
        parts[min(k - 1, int((t_s - 0.5 - start_s) / span_s * k))].append(histogram_of(tick))
    sums = [summed(part).counts for part in parts]
    keys = sorted(set().union(*sums))
    if not keys:
        return f"no heartbeat was {event} in the hold"
    table = np.zeros((k, len(keys)))
    for place, counts in enumerate(sums):
        table[place] = [counts.get(key, 0) for key in keys]
    return Stretches(keys, table)


def quantile(stretches: Stretches | str, q: float) -> Estimate | str:
    """Woodruff's interval of the ``q`` quantile, in ms.

    The share of records at or below the quantile is a ratio of sums over the stretches; its error
    gives the two shares between which the quantile's own interval lies.
    """
    import numpy as np

    from asyncli.analysis.special import stdtrit

    if isinstance(stretches, str):
        return stretches
    sums = stretches.table.sum(axis=1)
    total = float(sums.sum())
    k = len(sums)
    if total * (1 - q) < _BEYOND:
        return f"{total:,.0f} heartbeats in the hold are too few for p{q * 100:g}"
    share = np.cumsum(stretches.table.sum(axis=0)) / total

    def column(p: float) -> int:
        return min(len(share) - 1, int(np.searchsorted(share, p - 1e-12)))

    def at(p: float) -> tuple[float, float]:
        # The resolution is a bucket.
        low, high = bounds(stretches.keys[column(p)])
        return low / 1e3, (high + 1) / 1e3

    reach = 0.0
    freedom = float(k - 1)
    # A stall may fill the quantile's bucket: its records count as below, and as above.
    for last in (column(q), column(q) - 1):
        below = stretches.table[:, : last + 1].sum(axis=1)
        off = below - float(below.sum()) / total * sums
        worth = _worth(off.tolist())
        # The variance of a mean of k correlated stretches.
        error = math.sqrt(k / (worth - 1) * float((off**2).sum())) / total
        half = float(stdtrit(worth - 1, 1 - ALPHA / 2)) * error
        reach, freedom = max((reach, freedom), (half, worth - 1))
    low, _ = at(q - reach)
    # Most of the slowest came in few stretches (a stall): how slow they are in other runs is
    # unknown.
    high = math.inf
    if q + reach < 1.0:
        _, high = at(q + reach)
    return Estimate(sum(at(q)) / 2, low, high, freedom)


class Variance(NamedTuple):
    """A variance and its degrees of freedom."""

    value: float
    freedom: float

    def reach(self, chance: float) -> float:
        """How far beyond the estimate its truth is at most, but for this chance."""
        from asyncli.analysis.special import stdtrit

        return math.sqrt(self.value) * float(stdtrit(self.freedom, 1 - chance))


def contrast(a: Estimate, b: Estimate, repeat: Repeat = NO_SCATTER) -> tuple[float, float, float]:
    """(low, high) of the 95 % interval of ``b - a``, and the p-value of no difference; at p = 0.05
    the interval ends at zero.
    """
    from asyncli.analysis.special import stdtr

    scatter = sum(repeat.variance(run.value) for run in (a, b))
    # The scatter of both runs comes from the same repeats: it is one estimate.
    between = [Variance(scatter, float(REPEAT_FREEDOM))] if scatter > 0 else []

    difference = b.value - a.value
    lower = summed_variance([*between, below(b), above(a)])
    upper = summed_variance([*between, below(a), above(b)])
    side = lower if difference > 0 else upper
    if difference == 0:
        p = 1.0
    elif side.value == 0:
        p = 0.0
    else:
        distance = abs(difference) / math.sqrt(side.value)
        p = min(1.0, 2 * float(stdtr(side.freedom, -distance)))
    return difference - lower.reach(ALPHA / 2), difference + upper.reach(ALPHA / 2), p


def summed_variance(parts: Iterable[Variance]) -> Variance:
    """The variance of a sum, with degrees of freedom after Welch and Satterthwaite."""
    known = list(parts)
    value = sum(part.value for part in known)
    if value <= 0 or value == math.inf:
        return Variance(value, math.inf)
    loose = sum(part.value**2 / part.freedom for part in known)
    if loose <= 0:
        return Variance(value, math.inf)
    return Variance(value, value**2 / loose)


def below(estimate: Estimate) -> Variance:
    """The variance of an estimate by the lower side of its interval."""
    return _of_side(estimate, estimate.value - estimate.low)


def above(estimate: Estimate) -> Variance:
    """The variance of an estimate by the upper side of its interval."""
    return _of_side(estimate, estimate.high - estimate.value)


def _of_side(estimate: Estimate, half: float) -> Variance:
    """The variance by one side of a 95 % interval."""
    from asyncli.analysis.special import stdtrit

    freedom = math.inf if estimate.freedom is None else max(1.0, estimate.freedom)
    error = max(0.0, half) / float(stdtrit(freedom, 1 - ALPHA / 2))
    return Variance(error**2, freedom)


def rates_differ(a: Rate, b: Rate) -> float:
    """The exact p-value of two Poisson rates being equal: given the sum of counts, the second's is
    binomial.
    """
    from scipy.stats import binomtest

    both = a.count + b.count
    if not both:
        return 1.0
    return float(binomtest(b.count, both, b.exposure / (a.exposure + b.exposure)).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of ``p_values`` in rising order."""
    adjusted: list[float] = []
    greatest = 0.0
    for place, p in enumerate(p_values):
        greatest = max(greatest, (len(p_values) - place) * p)
        adjusted.append(min(1.0, greatest))
    return adjusted
