"""A straight line through points in time with autocorrelated noise, and an interval with the stated
coverage.

Other programs, allocators and caches add noise to memory readings that is not independent from
second to second: it wanders. A ramp passes each N once, so slow wander looks like slope, and the
interval of least squares with independent errors is several times too narrow. Some forty points
show only roughly how slow the wander is, and the interval must include that uncertainty. So the
noise is modelled as white noise plus wander (an Ornstein-Uhlenbeck process: AR(1) at even spacing,
a random walk in the limit). The line is fitted by generalised least squares for each of a grid of
correlation times and shares of white noise, and each fit is weighted by its restricted likelihood
(Patterson and Thompson 1971, Biometrika 58; Harville 1974, Biometrika 61: with flat priors for line
and log scale that is the marginal likelihood, and at each point of the grid the line has Student's
t with m - 2 degrees of freedom). The interval contains 95 % of that mixture. bench/coverage.py
counts how often it contains the truth.

The baseline may be off the line, because all other points include first use (buffers, code pages).
That is a fixed cost, and the fit decides by the points whether there was one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from asyncli.model.installed import can_compute

CONFIDENCE = 0.95
# Two parameters, and one degree of freedom for the interval.
FEWEST_POINTS = 3
#: A parabola, and a plane, have three parameters.
FEWEST_POINTS_OF_A_PLANE = FEWEST_POINTS + 1
#: Two lines that meet, with two points on either side and one at the knot.
FEWEST_POINTS_OF_A_KINK = FEWEST_POINTS + 2
#: Correlation times of the wander as shares of the points' time span, from well below the distance
#: of twenty points to the whole span; and a random walk over it.
TIMES = (1 / 40, 1 / 20, 1 / 10, 1 / 5, 1 / 2, 1.0)
WALK = 30.0
#: Variance of the white noise divided by that of the wander's step from point to point.
WHITE = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
# Prior weights. Each of the 36 kinds of wander has weight one; white noise alone and each random
# walk have more, because some forty points hardly distinguish a walk from its neighbours. By
# bench/coverage.py: with one each, 70 to 88 of 100 intervals contained the truth under a random
# walk; with these weights 82 to 91, and intervals under white noise are a fifth wider.
_PRIOR_WHITE = 12.0
_PRIOR_WALK = 6.0
# Variance of the step from the baseline to the first connections, in the same unit: none; several
# usual steps; hundreds of them, as measured with nginx (0.1 MB beside noise of some kB) and asyncli
# (5 MB beside 30 kB).
_FIRST_USE = (0.0, 1e2, 1e5)
#: Residuals below this share of the points' range are rounding errors: the points are on the line.
ROUNDING = 1e-12


class Point(msgspec.Struct, frozen=True):
    """Medians of a bin: instant (s), connections, metric; samples and their span (s). ``baseline``:
    before any connection.
    """

    t_s: float
    n: float
    value: float
    samples: int = 1
    span_s: float = 0.0
    baseline: bool = False


class Part(msgspec.Struct, frozen=True):
    """The line under one kind of noise: its weight, and the means and covariances of its
    coefficients.
    """

    weight: float
    intercept: float
    slope: float
    var_intercept: float
    covariance: float
    var_slope: float


class FittedLine(msgspec.Struct):
    """``intercept + slope * n``; ``half`` is half the width of the slope's 95 % interval.

    ``apart``: the baseline is excluded from the line. ``r2``: the share of the variance of its
    points that the line explains; None if they do not vary.
    """

    slope: float
    intercept: float
    half: float
    r2: float | None
    freedom: int
    parts: list[Part] = msgspec.field(default_factory=list)
    apart: bool = False
    #: What the line and its noise predict of the point ``ahead``, and half of the 95 % interval of
    #: that point.
    predicted: tuple[float, float] | None = None

    def at(self, n: float) -> float:
        return self.intercept + self.slope * n

    def half_at(self, n: float) -> float:
        """Half the width of the line's 95 % interval at ``n`` connections."""
        mixture = []
        for part in self.parts:
            value = part.intercept + part.slope * n
            mixture.append((part.weight, value, _variance_at(part, n)))
        return _half_width(self.at(n), mixture, self.freedom)


class _UnitScale(NamedTuple):
    """Numbers shifted by their mean and divided by their range: of order one, to keep digits."""

    mean: float
    spread: float

    @classmethod
    def of(cls, numbers: Any) -> _UnitScale:
        import numpy as np

        return cls(float(numbers.mean()), float(np.ptp(numbers)))

    def scaled(self, numbers: Any) -> Any:
        return (numbers - self.mean) / self.spread


def regress(points: Sequence[Point], ahead: Point | None = None) -> FittedLine | None:
    """The line through ``points`` with its interval; None for fewer than three points, or all at
    one N, and where NumPy is not installed.

    ``ahead``: a later point, which the line does not use, to be predicted. Under each kind of noise
    it has Student's t about the line and what the noise of the points says of its own (the best
    linear unbiased prediction, Goldberger 1962, J. Am. Stat. Assoc. 57): a walk goes on from where
    it was, white noise does not.
    """
    m = len(points)
    if m < FEWEST_POINTS or not _are_finite(points) or not can_compute():
        return None
    import numpy as np

    points = _baseline_last(points)
    n = np.array([point.n for point in points])
    value = np.array([point.value for point in points])
    of_n = _UnitScale.of(n)
    of_value = _UnitScale.of(value)
    freedom = m - 2
    if of_n.spread <= 0:
        return None
    if of_value.spread <= 0:
        return _exact(0.0, float(value[0]), None, freedom, ahead)
    y = of_value.scaled(value)
    design = np.column_stack([np.ones(m), of_n.scaled(n)])
    plain = np.linalg.lstsq(design, y, rcond=None)[0]
    if float(np.max(np.abs(y - design @ plain))) < ROUNDING:
        slope = float(plain[1]) * of_value.spread / of_n.spread
        intercept = float(plain[0]) * of_value.spread + of_value.mean - slope * of_n.mean
        return _exact(slope, intercept, 1.0, freedom, ahead)

    fitted = _generalised(points, ahead, design, y)
    parts, slope, intercept = _in_bytes(fitted, of_n, of_value)
    half = _half_width(
        slope, [(part.weight, part.slope, part.var_slope) for part in parts], freedom
    )
    if not all(map(math.isfinite, (slope, intercept, half))):
        return None
    # The first kinds of noise are without a step to the first connections.
    apart = float(fitted.weight[: fitted.noise.together].sum()) < 1 - CONFIDENCE
    on_line = points[:-1] if apart else points
    r2 = _explained(on_line, slope, intercept)
    line = FittedLine(slope, intercept, half, r2, freedom, parts, apart)
    if ahead is not None:
        line.predicted = _predicted(fitted, ahead, of_n, of_value)
    return line


def _in_bytes(
    fitted: _Fitted, of_n: _UnitScale, of_value: _UnitScale
) -> tuple[list[Part], float, float]:
    """The line under each kind of noise in bytes and connections, and the mean slope and intercept:
    slope = b * spread / spread of N, and the intercept is the line's value at N = 0.
    """
    import numpy as np

    spread = of_value.spread
    to_bytes = np.array([[spread, -of_n.mean * spread / of_n.spread], [0.0, spread / of_n.spread]])
    means = fitted.coefficients @ to_bytes.T + np.array([of_value.mean, 0.0])
    covariances = to_bytes @ fitted.covariance @ to_bytes.T
    parts = []
    for weight, (intercept, slope), covariance in zip(
        fitted.weight, means, covariances, strict=True
    ):
        # Lighter ones change no digit.
        if weight <= 1e-9:
            continue
        part = Part(
            weight=float(weight),
            intercept=float(intercept),
            slope=float(slope),
            var_intercept=float(covariance[0, 0]),
            covariance=float(covariance[0, 1]),
            var_slope=float(covariance[1, 1]),
        )
        parts.append(part)
    return parts, float(means[:, 1] @ fitted.weight), float(means[:, 0] @ fitted.weight)


def _predicted(
    fitted: _Fitted, ahead: Point, of_n: _UnitScale, of_value: _UnitScale
) -> tuple[float, float]:
    """The value of the point ahead (bytes), and half of its 95 % interval."""
    import numpy as np

    place = np.array([1.0, of_n.scaled(ahead.n)])
    middles, variances = fitted.noise.ahead(place, fitted.coefficients, fitted.inverse)
    means = of_value.mean + of_value.spread * middles
    variances = of_value.spread**2 * variances * fitted.variance
    mixture = _mixture(fitted.weight, means, variances)
    middle = sum(weight * mean for weight, mean, _ in mixture)
    return middle, _half_width(middle, mixture, fitted.freedom)


class Parabola(NamedTuple):
    """A parabola through points: the slope at the most connections, and half of its 95 % interval.

    ``difference``: that slope less the slope at the fewest, and half of its 95 % interval.
    """

    slope_at_most: float
    half: float
    difference: float
    half_of_difference: float


def parabola(points: Sequence[Point]) -> Parabola | None:
    """How the slope changes over the connections, by a parabola under the same kinds of noise as
    the line.

    None for too few points. A parabola has one term more than the line: what a line must take for
    slow noise may be its bend.
    """
    import numpy as np

    if len(points) < FEWEST_POINTS_OF_A_PLANE or not _are_finite(points):
        return None
    points = _baseline_last(points)
    n = np.array([point.n for point in points])
    of_n = _UnitScale.of(n)
    if of_n.spread <= 0:
        return None
    x = of_n.scaled(n)
    at_most = np.array([0.0, 1.0, 2 * float(x.max())]) / of_n.spread
    by_difference = np.array([0.0, 0.0, 2 * float(np.ptp(x))]) / of_n.spread
    estimates = _estimates(points, [x, x**2], [at_most, by_difference])
    if estimates is None:
        return None
    slope, difference = estimates
    return Parabola(*slope, *difference)


class Kink(NamedTuple):
    """Two straight lines that meet: the slope of the last one, and half of its 95 % interval.

    ``difference``: that slope less the slope of the first line, and half of its 95 % interval for
    as many comparisons as places were tried (Bonferroni). ``stretch``: the connections of the last
    line.
    """

    slope_at_most: float
    half: float
    difference: float
    half_of_difference: float
    stretch: float


def kink(points: Sequence[Point]) -> Kink | None:
    """How the slope changes at one number of connections, by two lines that meet there, under the
    same kinds of noise as one line.

    Where they meet is unknown: each point and the middle between two is tried that leaves two
    points on either side, and each has its weight by the restricted likelihood, as the kinds of
    noise have. None for too few points.

    The bend is one column more beside those of the line. What the line explains of it, and of the
    metric, is taken off both (Frisch and Waugh 1933, Econometrica 1), so that each knot under each
    kind of noise takes a division.
    """
    import numpy as np

    m = len(points)
    if m < FEWEST_POINTS_OF_A_KINK or not _are_finite(points):
        return None
    n = np.array([point.n for point in points])
    value = np.array([point.value for point in points])
    of_n = _UnitScale.of(n)
    of_value = _UnitScale.of(value)
    if of_n.spread <= 0 or of_value.spread <= 0:
        return None
    x = of_n.scaled(n)
    y = of_value.scaled(value)
    knots = _knots(np.sort(x))
    if not len(knots):
        return None
    freedom = m - 3
    bends = np.maximum(0.0, x[:, None] - knots)
    noise = _whiten(points, None, np.column_stack([np.ones(m), x, bends, y]))
    line = noise.columns[:, :, :2]
    others = noise.columns[:, :, 2:]
    across = np.swapaxes(line, 1, 2)
    inverse = np.linalg.inv(across @ line)
    explained = inverse @ (across @ others)
    off = others - line @ explained
    # (kind, knot)
    bend = off[:, :, :-1]
    metric = off[:, :, -1:]
    own = np.maximum((bend**2).sum(axis=1), ROUNDING**2)
    by_bend = (bend * metric).sum(axis=1) / own
    squares = ((metric - bend * by_bend[:, None, :]) ** 2).sum(axis=1)
    squares = np.maximum(squares, m * ROUNDING**2)
    log_det = 2 * np.log(noise.own).sum(axis=1) - np.log(np.linalg.det(inverse))
    log_weight = noise.log_prior[:, None] - 0.5 * (
        log_det[:, None] + np.log(own) + freedom * np.log(squares)
    )
    weight = _weights(log_weight)
    variance = squares / freedom
    # The bend's column has a slope of its own, which the line's coefficient takes off.
    lever = 1 - explained[:, 1, :-1]
    slope = explained[:, 1, -1:] + by_bend * lever
    of_slope = variance * (inverse[:, 1, 1][:, None] + lever**2 / own)
    unit = of_value.spread / of_n.spread
    of_many = 1 - (1 - CONFIDENCE) / len(knots)
    ends = [
        *_mixed(weight, unit * slope, unit**2 * of_slope, freedom, CONFIDENCE),
        *_mixed(weight, unit * by_bend, unit**2 * variance / own, freedom, of_many),
        of_n.spread * float((float(x.max()) - knots) @ weight.sum(axis=0)),
    ]
    if not all(map(math.isfinite, ends)):
        return None
    return Kink(*ends)


def _knots(x: Any) -> Any:
    """The places in ``x``, in order, and between these, with two points or more on either side."""
    import numpy as np

    places = np.unique(np.concatenate([x, (x[1:] + x[:-1]) / 2]))
    before = np.searchsorted(x, places, side="right")
    after = len(x) - np.searchsorted(x, places, side="left")
    return places[(before >= 2) & (after >= 2) & (places > x[0]) & (places < x[-1])]


def _mixed(
    weight: Any, means: Any, variances: Any, freedom: int, confidence: float
) -> tuple[float, float]:
    """The mean of a mixture, and half of its interval."""
    middle = float((weight * means).sum())
    mixture = _mixture(weight.ravel(), means.ravel(), variances.ravel())
    return middle, _half_width(middle, mixture, freedom, confidence)


def _mixture(weight: Any, means: Any, variances: Any) -> list[tuple[float, float, float]]:
    """(weight, mean, variance) of each kind."""
    return list(zip(weight.tolist(), means.tolist(), variances.tolist(), strict=True))


def _weights(log_weight: Any) -> Any:
    """Weights that add up to one."""
    import numpy as np

    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


class WithTime(NamedTuple):
    """A plane over connections and time: the slope over the connections with time taken out, the
    growth per second at any count of connections, and half of the 95 % interval of each.
    """

    slope: float
    half: float
    per_s: float
    half_of_per_s: float

    @property
    def ci95(self) -> tuple[float, float]:
        """The interval of the slope."""
        return self.slope - self.half, self.slope + self.half

    @property
    def moves(self) -> bool:
        """Whether the metric moves by the clock, beyond its noise."""
        return abs(self.per_s) > self.half_of_per_s


def regress_with_time(points: Sequence[Point], *, first_use: bool = False) -> WithTime | None:
    """What rises with the connections, and what with time, by points at rest: connections and time
    do not rise together there. ``first_use``: the first connection may have taken memory once.

    None for too few points, or if they do rise together.
    """
    import numpy as np

    if len(points) < FEWEST_POINTS_OF_A_PLANE or not _are_finite(points):
        return None
    points = _baseline_last(points)
    n = np.array([point.n for point in points])
    t_s = np.array([point.t_s for point in points])
    of_n = _UnitScale.of(n)
    of_time = _UnitScale.of(t_s)
    if of_n.spread <= 0 or of_time.spread <= 0:
        return None
    columns = [of_n.scaled(n), of_time.scaled(t_s)]
    by_n = [0.0, 1.0 / of_n.spread, 0.0]
    by_time = [0.0, 0.0, 1.0 / of_time.spread]
    if first_use:
        columns.append((n > 0).astype(float))
        by_n.append(0.0)
        by_time.append(0.0)
    estimates = _estimates(points, columns, [np.array(by_n), np.array(by_time)])
    if estimates is None:
        return None
    slope, growth = estimates
    return WithTime(*slope, *growth)


def _estimates(
    points: Sequence[Point], columns: Sequence[Any], contrasts: Sequence[Any]
) -> list[tuple[float, float]] | None:
    """Of each of the ``contrasts``, a combination of the coefficients of a constant and of
    ``columns``: its mean (bytes), and half of its 95 % interval.

    None if the metric does not vary, or if the columns cannot be told apart.
    """
    import numpy as np

    value = np.array([point.value for point in points])
    scale = _UnitScale.of(value)
    if scale.spread <= 0:
        return None
    y = scale.scaled(value)
    design = np.column_stack([np.ones(len(points)), *columns])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    plain = np.linalg.lstsq(design, y, rcond=None)[0]
    if float(np.max(np.abs(y - design @ plain))) < ROUNDING:
        return [(float(scale.spread * contrast @ plain), 0.0) for contrast in contrasts]
    try:
        fitted = _generalised(points, None, design, y)
    except np.linalg.LinAlgError:
        # Under some kind of noise.
        return None
    estimates = [fitted.of(scale.spread * contrast) for contrast in contrasts]
    for middle, half in estimates:
        if not math.isfinite(middle) or not math.isfinite(half):
            return None
    return estimates


class _Fitted(NamedTuple):
    """Coefficients of the columns of a design under each kind of noise, and the weight of each
    kind.

    Shapes: ``weight`` and ``variance`` (kind), ``coefficients`` (kind, column), ``covariance`` and
    ``inverse`` (kind, column, column). ``variance``: of the noise, up to the kind's own factor;
    ``freedom``: degrees of freedom of Student's t.
    """

    noise: _Whitened
    weight: Any
    coefficients: Any
    covariance: Any
    inverse: Any
    variance: Any
    freedom: int

    def of(self, contrast: Any) -> tuple[float, float]:
        """The mean of a linear combination of the coefficients, and half of its 95 % interval."""
        import numpy as np

        means = self.coefficients @ contrast
        variances = np.einsum("i,kij,j->k", contrast, self.covariance, contrast)
        middle = float(means @ self.weight)
        mixture = _mixture(self.weight, means, variances)
        return middle, _half_width(middle, mixture, self.freedom)


def _generalised(points: Sequence[Point], ahead: Point | None, design: Any, y: Any) -> _Fitted:
    """Generalised least squares of ``y`` on the columns of ``design``, under each kind of noise."""
    import numpy as np

    m, columns = design.shape
    freedom = m - columns
    noise = _whiten(points, ahead, np.column_stack([design, y]))
    white_x = noise.columns[:, :, :-1]
    white_y = noise.columns[:, :, -1]
    across = np.swapaxes(white_x, 1, 2)
    information = across @ white_x
    inverse = np.linalg.inv(information)
    coefficients = (inverse @ (across @ white_y[:, :, None]))[:, :, 0]
    off = white_y - (white_x @ coefficients[:, :, None])[:, :, 0]
    squares = (off**2).sum(axis=1)
    log_det = 2 * np.log(noise.own).sum(axis=1)
    log_det_information = np.log(np.linalg.det(information))
    log_likelihood = -0.5 * (log_det + log_det_information + freedom * np.log(squares))
    weight = _weights(noise.log_prior + log_likelihood)
    variance = squares / freedom
    covariance = inverse * variance[:, None, None]
    return _Fitted(noise, weight, coefficients, covariance, inverse, variance, freedom)


def _are_finite(points: Sequence[Point]) -> bool:
    return all(math.isfinite(point.t_s + point.n + point.value) for point in points)


def _baseline_last(points: Sequence[Point]) -> list[Point]:
    """The points with the baseline last: the noise decides whether it belongs to the line."""
    return sorted(points, key=lambda point: point.baseline)


class _Whitened(NamedTuple):
    """Columns of the points, made independent under each kind of noise (kind, point, column), and
    what that takes.

    ``own``: the diagonal of the covariance's root (kind, point); ``log_prior``: of each kind;
    ``together``: the number of kinds without a step to the first connections. Of a point ahead:
    ``onward``, its row in the root (kind, point), and ``variance``.
    """

    columns: Any
    own: Any
    log_prior: Any
    together: int
    onward: Any
    variance: Any

    def ahead(self, place: Any, coefficients: Any, inverse: Any) -> tuple[Any, Any]:
        """Of each kind: the mean of the point ahead at ``place`` (1, x), and its variance about
        that, up to a factor.
        """
        import numpy as np

        white_x = self.columns[:, :, :-1]
        white_y = self.columns[:, :, -1]
        off = white_y - (white_x @ coefficients[:, :, None])[:, :, 0]
        middles = coefficients @ place + (self.onward * off).sum(axis=1)
        lever = place - (self.onward[:, None, :] @ white_x)[:, 0, :]
        of_line = np.einsum("ki,kij,kj->k", lever, inverse, lever)
        of_point = np.maximum(0.0, self.variance - (self.onward**2).sum(axis=1))
        return middles, of_point + of_line


def _whiten(points: Sequence[Point], ahead: Point | None, columns: Any) -> _Whitened:
    """``columns`` (point, column) under each kind of noise. A baseline is the last of the
    ``points``.
    """
    import numpy as np

    m = len(points)
    timed = [*points, points[-1] if ahead is None else ahead]
    t_s = np.array([point.t_s for point in timed])
    samples = np.array([float(max(1, point.samples)) for point in timed])
    span_s = np.array([point.span_s for point in timed])
    noises, log_prior = _noises(t_s, samples, span_s, m)
    try:
        root = np.linalg.cholesky(noises[:, :m, :m])
    except np.linalg.LinAlgError:
        # Bins that overlap in time (N fell and rose again) have no such covariance; instants always
        # have one.
        noises, log_prior = _noises(t_s, samples, np.zeros(m + 1), m)
        root = np.linalg.cholesky(noises[:, :m, :m])
    white = np.linalg.solve(root, np.broadcast_to(columns, (len(noises), *columns.shape)))
    onward = np.linalg.solve(root, noises[:, :m, m:])[:, :, 0]
    variance = noises[:, m, m]
    own = np.diagonal(root, axis1=1, axis2=2)
    if not points[-1].baseline:
        return _Whitened(white, own, log_prior, len(own), onward, variance)
    # More variance of the last point changes the last diagonal element of the root, and nothing
    # else.
    smaller = [own[:, -1] / np.sqrt(own[:, -1] ** 2 + step) for step in _FIRST_USE]
    times = len(_FIRST_USE)
    return _Whitened(
        np.concatenate([_last_times(white, factor) for factor in smaller]),
        np.concatenate([_last_times(own, 1 / factor) for factor in smaller]),
        np.tile(log_prior, times),
        len(own),
        np.concatenate([_last_times(onward, factor) for factor in smaller]),
        np.tile(variance, times),
    )


def _last_times(stack: Any, factors: Any) -> Any:
    """``stack`` (kind, point, ...) with the last point times the factor of each kind."""
    copy = stack.copy()
    last = copy[:, -1]
    last *= factors.reshape(-1, *[1] * (last.ndim - 1))
    return copy


def _explained(points: Sequence[Point], slope: float, intercept: float) -> float | None:
    middle = sum(point.value for point in points) / max(1, len(points))
    off = sum((point.value - intercept - slope * point.n) ** 2 for point in points)
    whole = sum((point.value - middle) ** 2 for point in points)
    if whole > 0:
        return max(0.0, 1.0 - off / whole)
    return None


def _exact(
    slope: float, intercept: float, r2: float | None, freedom: int, ahead: Point | None
) -> FittedLine:
    """A line without noise."""
    predicted = None if ahead is None else (intercept + slope * ahead.n, 0.0)
    return FittedLine(slope, intercept, 0.0, r2, freedom, predicted=predicted)


def _noises(t_s: Any, samples: Any, span_s: Any, fitted: int) -> tuple[Any, Any]:
    """Covariance matrices (kind of noise, point, point) of the grid, each up to a factor, and their
    log priors.

    ``fitted``: so many of the points, the first, make the grid; later ones are only predicted.

    Each point is treated as the mean of its time span. For an Ornstein-Uhlenbeck process of
    correlation time T, the means over spans a and b with a gap g between them have the covariance
    G(a/T) G(b/T) exp(-g/T), G(x) = (1 - exp(-x)) / x, and the mean over a has the variance 2 (1 -
    G(a/T)) / (a/T). That matters if the baseline is short and the bins are long.
    """
    import numpy as np

    m = len(t_s)
    apart = np.abs(t_s[:, None] - t_s[None, :])
    whole = float(apart[:fitted, :fitted].max()) or 1.0
    gap = np.maximum(0.0, apart - (span_s[:, None] + span_s[None, :]) / 2)
    # White noise averages out in a median, wander does not.
    white = np.diag(float(np.median(samples[:fitted])) / samples)
    noises = [white]
    prior = [_PRIOR_WHITE]
    # The wander's step over the usual distance of points has variance one, so that a share of white
    # noise means the same for all.
    step = whole / max(1, fitted - 1)
    for share in (*TIMES, WALK):
        time = share * whole
        length = np.maximum(span_s / time, 1e-4)
        shrink = -np.expm1(-length) / length
        wander = shrink[:, None] * shrink[None, :] * np.exp(-gap / time)
        np.fill_diagonal(wander, 2 * (1 - shrink) / length)
        wander /= 2 * -math.expm1(-step / time)
        noises += [wander + of_white * white + 1e-9 * np.eye(m) for of_white in WHITE]
        of_wander = _PRIOR_WALK if share == WALK else 1.0
        prior += [of_wander] * len(WHITE)
    return np.array(noises), np.log(np.array(prior))


def _variance_at(part: Part, n: float) -> float:
    return max(0.0, part.var_intercept + 2 * n * part.covariance + n * n * part.var_slope)


def _half_width(
    middle: float,
    parts: Sequence[tuple[float, float, float]],
    freedom: int,
    confidence: float = CONFIDENCE,
) -> float:
    """The distance from ``middle`` that contains the share ``confidence`` of the mixture of
    (weight, mean, variance).
    """
    import numpy as np

    from asyncli.analysis.special import stdtr

    if not parts:
        return 0.0
    weight, mean, variance = (np.array(column) for column in zip(*parts, strict=True))
    varies = variance > 0
    if not varies.any():
        return 0.0
    mean = mean[varies]
    deviation = np.sqrt(variance[varies])
    weight = weight[varies] / weight[varies].sum()

    def inside(half: float) -> float:
        high = stdtr(freedom, (middle + half - mean) / deviation)
        low = stdtr(freedom, (middle - half - mean) / deviation)
        return float((weight * (high - low)).sum())

    low = 0.0
    high = float(np.max(deviation + np.abs(mean - middle)))
    while inside(high) < confidence:
        low = high
        high = 2 * high
    for _ in range(60):
        if high - low <= 1e-6 * high:
            break
        half = (low + high) / 2
        if inside(half) < confidence:
            low = half
        else:
            high = half
    return high
