"""The slope of a number over time, and whether it is significant: Theil-Sen's, with a test and an
interval for correlated noise.

The median of the slopes through all pairs of points (Theil 1950; Sen 1968, J. Am. Stat. Assoc. 63,
also for the interval), tested by Kendall's S (Mann 1945, Econometrica 13). Neighbouring minutes are
not independent (allocators, caches and other programs change memory slowly), so test and interval
would be too confident. Therefore the variance of S is multiplied by the effect of correlation, as
in Hamed and Rao (1998, J. Hydrol. 204), but not by the correlations of the points alone: in
simulated holds of an hour with slow wander under white noise those found a trend in 40 of 100 runs
that had none. See :func:`_tail`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncli.analysis.constants import PART
from asyncli.analysis.regression import CONFIDENCE, ROUNDING, TIMES, WALK, WHITE
from asyncli.analysis.slope import MOST_BINS

# With fewer points correlation cannot be distinguished from a trend.
FEWEST_POINTS = 10
# Slow wander shows equally well in the means of a few points, and the work grows with the cube of
# their number.
_MOST_BLOCKS = MOST_BINS


class Trend(msgspec.Struct, frozen=True):
    """The slope of y per unit of x, its 95 % interval, and Kendall's two-sided p."""

    slope: float
    low: float
    high: float
    p_value: float


def trend(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """Theil-Sen slope of ``y`` over rising, about evenly spaced ``x``; None for fewer than ten
    points.
    """
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
    low, high, of_walk = _as_a_walk(xs, ys)
    rank = math.floor((len(slopes) - _reach(tail, len(slopes))) / 2) - 1
    if rank >= 0:
        # Sen's interval, unless wander reduces it to the steepest pairs of neighbours: then that of
        # a walk is narrower.
        ends = np.partition(slopes, [rank, len(slopes) - 1 - rank])[[rank, len(slopes) - 1 - rank]]
        if ends[1] - ends[0] <= high - low or p_value < 1 - CONFIDENCE:
            low, high = float(ends[0]), float(ends[1])
    # S knows no amplitude: a line of 20 points was undecided because its residuals, a thousandth of
    # it, wandered. So of the 5 % the test for a walk gets a tenth.
    return Trend(slope, min(low, slope), max(high, slope), min(p_value, of_walk / PART))


def _reach(tail: Callable[[float], float], most: float) -> float:
    """The |S| that chance exceeds in 5 % of runs, at most ``most``."""
    low, high = 0.0, most
    if tail(high) > 1 - CONFIDENCE:
        return high
    while high - low > 0.5:
        middle = (low + high) / 2
        if tail(middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _as_a_walk(xs: Any, ys: Any) -> tuple[float, float, float]:
    """The 95 % interval of the rate, and p, if all noise were a random walk, whose steps are
    independent: the widest case.
    """
    import numpy as np

    from asyncli.analysis.special import stdtr, stdtrit

    size = -(-len(xs) // _MOST_BLOCKS)
    blocks = len(xs) // size
    t, y = (
        column[len(column) - blocks * size :].reshape(blocks, size).mean(axis=1)
        for column in (xs, ys)
    )
    steps = np.diff(y)
    error, rise, length = (
        float(steps.std(ddof=1)) * math.sqrt(len(steps)),
        float(y[-1] - y[0]),
        float(t[-1] - t[0]),
    )
    half = float(stdtrit(len(steps) - 1, 0.5 + CONFIDENCE / 2)) * error
    # Without noise a rise is certain.
    p_value = float(not rise)
    if error:
        p_value = 2 * float(stdtr(len(steps) - 1, -abs(rise) / error))
    return (rise - half) / length, (rise + half) / length, p_value


def _tail(residuals: Any, variance: float) -> Callable[[float], float]:
    """The probability by chance of an |S| of at least a value, given the correlation of the
    residuals.

    A few points show only roughly whether noise wanders, how slowly, and how much white noise hides
    it. So each kind of noise, with its effect on the variance of S, is weighted by its restricted
    likelihood, as in :mod:`asyncli.analysis.regression`. Normal scores keep single outliers from
    deciding.
    """
    import numpy as np

    from asyncli.analysis.special import ndtri, stdtr

    n = len(residuals)
    _, place, counts = np.unique(residuals, return_inverse=True, return_counts=True)
    scores = ndtri((np.cumsum(counts) - counts / 2)[place] / n)
    size = -(-n // _MOST_BLOCKS)
    blocks = n // size
    contrasts, roots, log_det, white, wander, weight = _noises(blocks)
    rest = (
        (roots @ (contrasts.T @ scores[n - blocks * size :].reshape(blocks, size).mean(axis=1)))
        ** 2
    ).sum(axis=1)
    if rest[0] > ROUNDING * n:
        log_likelihood = -0.5 * (log_det + (blocks - 2) * np.log(rest))
        likelihood = np.exp(log_likelihood - log_likelihood.max())
    else:
        likelihood = np.eye(len(log_det))[0]
    likelihood = likelihood / likelihood.sum()
    # The variance of the sum of x times noise, divided by that of independent points with the same
    # variance.
    inflation = np.maximum(1.0, size * weight / (white * size + wander))
    deviation = np.sqrt(variance * inflation)
    return lambda s: min(1.0, float((likelihood * 2 * stdtr(blocks - 2, -s / deviation)).sum()))


@functools.lru_cache(maxsize=8)
def _noises(m: int) -> tuple[Any, Any, Any, Any, Any, Any]:
    """For ``m`` evenly spaced points and each kind of noise, the pure white one first.

    Contrasts free of any line; the matrix that makes them independent; the logarithm of their
    determinant; the variances of white noise and of wander (about the mean); the variance of the
    sum of x times noise.
    """
    import numpy as np

    x = np.arange(m) - (m - 1) / 2
    contrasts = np.linalg.qr(np.column_stack([np.ones(m), x]), mode="complete")[0][:, 2:]
    apart = np.abs(x[:, None] - x[None, :])
    covariances, white, wander = [np.eye(m)], [1.0], [0.0]
    for time in (*TIMES, WALK):
        shape = np.exp(-apart / (time * (m - 1)))
        shape /= -2 * math.expm1(-1 / (time * (m - 1)))
        for share in WHITE:
            covariances.append(shape + share * np.eye(m))
            white.append(share)
            wander.append(float(np.trace(shape) - shape.sum() / m) / (m - 1))
    every = np.array(covariances)
    roots = np.linalg.cholesky(contrasts.T @ every @ contrasts)
    log_det = 2 * np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    weight = np.einsum("i,kij,j->k", x, every, x) / (x @ x)
    return contrasts, np.linalg.inv(roots), log_det, np.array(white), np.array(wander), weight
