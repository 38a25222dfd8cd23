"""What one more connection costs: the slope of memory over connections held, with an interval that can be believed.

A slope, not a quotient: the quotient would spread fixed cost (nginx writes all its slots at the start) over the
connections. Raw seconds are autocorrelated (memory moves slowly), and an interval from them would be too narrow; so the
ramp is cut into bins of equal N and each gives one point, the medians of N and of the metric. What correlation is left
between neighbouring bins is paid for with a smaller effective number of points (Santer et al. 2000, J. Geophys. Res.
105(D6), eq. 6).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from asyncli.analysis.series import Series, Ticks, first_connect, held_over_time, phase, series
from asyncli.core.ramp import Ramp
from asyncli.plan import Plan
from asyncli.records import Environment, Finding, Phase, Sample

# Twenty points leave Student's t near its limit (2.10 against 1.96), and a ramp of a minute or more fills each with
# several samples; a shorter ramp gets fewer bins rather than bins of one sample, but never fewer than six.
MOST_BINS = 20
FEWEST_BINS = 6
_SAMPLES_PER_BIN = 3
# A slope through fewer points than this says nothing to act on: six of a ramp with its baseline, or three plateaus and
# the baseline (each plateau is a median over seconds at rest, and so worth more than a bin).
FEWEST_RAMP_POINTS = 6
FEWEST_PLATEAUS = 3
# The ramp that the remedy for too few points suggests: a sample a second fills seven bins.
_RAMP_THAT_FITS_S = 20.0
# The first seconds of the hold show what the last connections cost; later ones would mix in growth over time.
_INTO_HOLD_S = 5.0
# Sampled less often than this, a metric cannot be laid on another's instants by a line between its neighbours.
_WIDEST_GAP_S = 30.0
# Connections of other clients that tell: more than these many, or this share of ours.
_OTHERS, _OTHERS_SHARE = 5, 0.01
# Bytes of /proc inodes per connection that are worth a finding: one listing leaves some 900 for each end.
_LISTING_THAT_TELLS = 50.0

CONFIDENCE = 0.95


class Cost(msgspec.Struct):
    """Memory per connection (bytes), its 95 % interval (low, high), the fixed part (bytes), method, points."""

    bytes_per_connection: float
    ci95: tuple[float, float]
    fixed_bytes: float
    method: str
    points: int


class Costs(msgspec.Struct):
    """The five costs of the contract; None where unknown, and then ``findings`` says why."""

    server_user: Cost | None = None
    kernel: Cost | None = None
    generator_user: Cost | None = None
    host_total: Cost | None = None
    residual: Cost | None = None
    findings: list[Finding] = msgspec.field(default_factory=list)


def fit(n: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """(slope, intercept, half-width of its 95 % interval) of ``y`` over ``n`` by least squares; None where undefined.

    The half-width is Student's t times the slope's standard error, both for the effective number of points
    m(1 - r)/(1 + r), where r is the lag-1 autocorrelation of the residuals, if positive. Points come in the order of n.
    """
    import scipy.stats

    m = len(n)
    if m < 3 or max(n) - min(n) <= 0:
        return None
    result: Any = scipy.stats.linregress(n, y)
    slope, intercept = float(result.slope), float(result.intercept)
    residuals = [b - intercept - slope * a for a, b in zip(n, y, strict=True)]
    effective = effective_points(residuals)
    middle = sum(n) / m
    # From the residuals rather than linregress's own, which is NaN for a metric that does not move.
    error = math.sqrt(sum(r * r for r in residuals) / (effective - 2) / sum((a - middle) ** 2 for a in n))
    half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, effective - 2)) * error
    return (slope, intercept, half) if all(map(math.isfinite, (slope, intercept, half))) else None


def effective_points(residuals: Sequence[float]) -> float:
    """How many independent points ``residuals`` are worth: between 3 and their number."""
    m = len(residuals)
    power = sum(r * r for r in residuals)
    if power <= 0:
        return float(m)
    r1 = sum(a * b for a, b in pairwise(residuals)) / power
    # The line takes with it part of the wander that it is fitted to: beside a fitted trend r1 is too low by (2 + 4 r)/m
    # (Shaman and Stine 1988, J. Am. Stat. Assoc. 83, for AR(1)). In simulated ramps of 100 s whose noise is correlated
    # from second to second by 0.95, the truth lay within 82 % of the 95 % intervals without this, and 91 % with it.
    r = min(0.99, (r1 + 2 / m) / (1 - 4 / m)) if m > 4 else r1
    if r <= 0:
        return float(m)
    # Three are left in any case: below, no interval exists, and Student's t with one degree of freedom is 12.7.
    return min(float(m), max(3.0, m * (1 - r) / (1 + r)))


def ramp_points(metric: Series, held: Series, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """(N, metric) medians: one for the baseline, and one for each of up to 20 equal stretches of N until ``end_s``."""
    baseline = metric.between(-math.inf, start_s)
    ramp = metric.between(math.nextafter(start_s, math.inf), end_s)
    pairs = [(held.at(t_s) or 0.0, value) for t_s, value in zip(ramp.t_s, ramp.values, strict=True)]
    pairs = [(n, value) for n, value in pairs if n > 0]
    points = [(0.0, statistics.median(baseline.values))] if baseline.values else []
    if not pairs:
        return points
    bins = max(FEWEST_BINS, min(MOST_BINS, len(pairs) // _SAMPLES_PER_BIN))
    most = max(n for n, _ in pairs)
    cells: list[list[tuple[float, float]]] = [[] for _ in range(bins)]
    for n, value in pairs:
        cells[min(bins - 1, int(n / most * bins))].append((n, value))
    return points + [(statistics.median(n for n, _ in c), statistics.median(v for _, v in c)) for c in cells if c]


def plateau_points(
    metric: Series, held: Series, start_s: float, rests: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """(N, metric) medians: the baseline, and the last half of each of ``rests`` (from, to), in s after ``start_s``."""
    stretches = [(-math.inf, start_s), *((start_s + (a + b) / 2, start_s + b) for a, b in rests)]
    points = []
    for low, high in stretches:
        part = metric.between(low, high)
        if part.values:
            n = statistics.median(held.at(t_s) or 0.0 for t_s in part.t_s) if high > start_s else 0.0
            points.append((n, statistics.median(part.values)))
    return points


class _Fitter:
    """Fits one metric after another against the same N(t)."""

    def __init__(self, plan: Plan, phases: Sequence[Phase], ticks: Ticks, held: Series, over: str = "") -> None:
        self._held, self._over = held, over
        self._start = first_connect(phases, ticks)
        ramp, hold = phase(phases, "ramp"), phase(phases, "hold")
        end = ramp.end_s if ramp is not None and ramp.end_s is not None else (ticks[-1][0] if ticks else self._start)
        hold_end = hold.end_s if hold is not None and hold.end_s is not None else math.inf
        self._end = min(end + _INTO_HOLD_S, hold_end) if hold is not None else end
        schedule = Ramp(plan.connections, plan.batch, plan.interval_s, plan.plateaus, plan.plateau_s)
        rests = [(a, b) for a, b in schedule.rests() if self._start + b <= self._end + 1.0]
        self._rests = rests if len(rests) >= FEWEST_PLATEAUS else []
        self.points_wanted = FEWEST_PLATEAUS + 1 if self._rests else FEWEST_RAMP_POINTS

    def fit(self, metric: Series, scale: float = 1.0, note: str = "") -> Cost | int:
        """The cost that ``metric`` x ``scale`` shows, or the number of points where they are too few."""
        if self._rests:
            points = plateau_points(metric, self._held, self._start, self._rests)
        else:
            points = ramp_points(metric, self._held, self._start, self._end)
        enough = len(points) >= self.points_wanted
        found = fit([n for n, _ in points], [y * scale for _, y in points]) if enough else None
        if found is None:
            return len(points)
        slope, intercept, half = found
        how = (
            f"plateau medians ({len(self._rests)}) and the baseline"
            if self._rests
            else f"ramp, medians of {len(points) - 1} bins and the baseline"
        )
        method = f"{how}, linear regression{note}{self._over}"
        return Cost(slope, (slope - half, slope + half), intercept, method, len(points))


def costs(plan: Plan, phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample], environment: Environment) -> Costs:
    """The five costs of a run. ``environment["local"]``: both ends of each connection are on this host."""
    result = Costs()
    local = environment.get("local") is True
    held = held_over_time(ticks, phases)
    others = _server_count(samples, held, phases, ticks)
    ours = _Fitter(plan, phases, ticks, held)
    server = ours if others is None else _Fitter(plan, phases, ticks, others, " over the server's active count")
    shared = server if local else ours

    user, note = series(samples, "server.pss_bytes"), " of PSS"
    if not len(user):
        user, note = series(samples, "server.rss_bytes"), " of RSS (counts shared pages in each process)"
    kernel = series(samples, "kernel.socket_bytes")
    generator = series(samples, "generator.uss_bytes")
    host, in_use = series(samples, "host.used_bytes"), " of memory in use"
    listing = series(samples, "kernel.listing_bytes")
    listed = shared.fit(listing)
    if isinstance(listed, Cost) and listed.ci95[0] > _LISTING_THAT_TELLS:
        # Another program's doing, in bursts, and in proportion to the connections: left in, it would be taken for their cost.
        host, in_use = _minus(host, [listing]), f"{in_use} less inodes of /proc"
        result.findings.append(_listed(listed))
    ends = 2 if local else 1

    few: dict[str, int] = {}
    unread: list[str] = []

    def one(name: str, found: Cost | int, source: str) -> Cost | None:
        if isinstance(found, Cost):
            return found
        if found:
            few[name] = found
        else:
            unread.append(f"{name} ({source})")
        return None

    per_end = " of slab objects, per socket end" + (" (both on this host)" if local else "")
    result.server_user = one("server_user", server.fit(user, note=note), "the memory of the server's processes")
    result.kernel = one("kernel", shared.fit(kernel, 1 / ends, per_end), "slab objects (/proc/slabinfo needs root)")
    result.generator_user = one("generator_user", ours.fit(generator, note=" of USS"), "the generator's memory")
    result.host_total = one("host_total", shared.fit(host, note=in_use), "/proc/meminfo")
    parts = {"kernel": kernel, "generator_user": generator} | ({"server_user": user} if local else {})
    result.residual = _residual(result, shared.fit(_minus(host, list(parts.values()))), local)
    result.findings += _unknown(few, unread, ours.points_wanted, plan)
    if result.residual is None:
        missing = [name for name in ("host_total", *parts) if getattr(result, name) is None]
        why = f"it needs {', '.join(missing)}" if missing else "its parts were not sampled together"
        result.findings.append(Finding("cost_residual_unknown", "info", f"no residual is known: {why}"))
    return result


def _listed(listing: Cost) -> Finding:
    """What a program that lists descriptors adds for each connection."""
    half = (listing.ci95[1] - listing.ci95[0]) / 2
    return Finding(
        "descriptors_listed",
        "warning",
        f"{listing.bytes_per_connection:,.0f} B a connection (± {half:,.0f}) more are in use on this host, which are not counted "
        "above: inodes and dentries of /proc, left by a program that lists /proc/PID/fd, as monitoring agents do that count "
        "descriptors",
        "reckon with them where such a program runs, or have it count less often",
    )


def _residual(known: Costs, found: Cost | int, local: bool) -> Cost | None:
    """What the host uses per connection beyond the parts, so that the table adds up.

    The value is the difference of the slopes. Its interval comes from fitting the series of differences itself (the
    parts' errors are not independent, so their intervals must not be added), which is ``found``, and spans both values
    where they differ.
    """
    total, kernel, generator = known.host_total, known.kernel, known.generator_user
    server = known.server_user if local else None
    if total is None or kernel is None or generator is None or (local and server is None):
        return None
    if not isinstance(found, Cost):
        return None
    ends = 2 if local else 1
    value = total.bytes_per_connection - generator.bytes_per_connection - ends * kernel.bytes_per_connection
    fixed = total.fixed_bytes - generator.fixed_bytes - ends * kernel.fixed_bytes
    if server is not None:
        value, fixed = value - server.bytes_per_connection, fixed - server.fixed_bytes
    half = (found.ci95[1] - found.ci95[0]) / 2
    low, high = min(found.ci95[0], value - half), max(found.ci95[1], value + half)
    method = f"host_total {'- server_user ' if local else ''}- generator_user - {ends} x kernel; interval: {found.method}"
    return Cost(value, (low, high), fixed, method, found.points)


def _minus(whole: Series, parts: Sequence[Series]) -> Series:
    """``whole`` less the parts, at the instants of whichever was sampled least often."""
    sparsest = min([whole, *parts], key=len)
    rest = Series()
    for t_s in sparsest.t_s:
        values = [_near(one, t_s) for one in (whole, *parts)]
        if all(value is not None for value in values):
            total, *others = (value for value in values if value is not None)
            rest.t_s.append(t_s)
            rest.values.append(total - sum(others))
    return rest


def _near(metric: Series, t_s: float) -> float | None:
    """The value at ``t_s`` if there are samples close by on both sides, or one at that very instant."""
    around = metric.between(t_s - _WIDEST_GAP_S, t_s + _WIDEST_GAP_S)
    if not around.t_s or around.t_s[0] > t_s or around.t_s[-1] < t_s:
        return None
    return around.at(t_s)


def _server_count(samples: Sequence[Sample], held: Series, phases: Sequence[Phase], ticks: Ticks) -> Series | None:
    """The server's active connections less our poller, where other clients use it too; None where all are ours."""
    active = series(samples, "status.active")
    start = first_connect(phases, ticks)
    most = max(held.values)
    bound = max(_OTHERS, _OTHERS_SHARE * most)
    before = active.between(-math.inf, start)
    hold = phase(phases, "hold")
    during = active.between(hold.start_s, hold.end_s if hold.end_s is not None else math.inf) if hold else Series()
    strangers = [value - 1 for value in before.values]
    excess = [value - 1 - (held.at(t_s) or 0.0) for t_s, value in zip(during.t_s, during.values, strict=True)]
    if not any(part and statistics.median(part) > bound for part in (strangers, excess)):
        return None
    return Series(active.t_s, [max(0.0, value - 1) for value in active.values])


def _unknown(few: dict[str, int], unread: list[str], wanted: int, plan: Plan) -> list[Finding]:
    found = []
    if few:
        interval_ms = math.ceil(_RAMP_THAT_FITS_S / math.ceil(plan.connections / plan.batch) * 1000)
        interval_ms = max(interval_ms, math.ceil(plan.interval_s * 2000))
        found.append(
            Finding(
                "cost_few_points", "info",
                f"the ramp was too short for a slope of memory ({max(few.values())} points of the {wanted} that it "
                f"wants): no cost is known of {', '.join(few)}",
                f"ramp more slowly, for example --interval {interval_ms}ms",
            )
        )  # fmt: skip
    if unread:
        evidence = f"no cost is known of what was not sampled in the ramp: {', '.join(unread)}"
        found.append(Finding("cost_not_sampled", "info", evidence, "see the other findings for why it was not read"))
    return found
