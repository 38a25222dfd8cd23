"""Two runs or more, number by number: what differs, by how much, and whether the difference is real.

Each run gives each number with a 95 % interval and degrees of freedom. The runs are independent, so the variances of both
sides add up, with degrees of freedom after Welch and Satterthwaite (Satterthwaite 1946, Biometrics Bulletin 2; Welch 1947,
Biometrika 34); an interval that is longer on one side (a quantile's, a rate's) enters with the side that matters, as in
Zou and Donner 2008 (Stat. Med. 27). What a run cannot know of itself is how the next run of the same server would have
come out; :data:`REPEAT` is what that was measured to be, and it is part of every interval.

Latency and lateness quantiles: stretches of the hold give the error of the share of answers below the quantile, and the
interval is where that share lies in all answers (Woodruff 1952, J. Am. Stat. Assoc. 47). Losses and failures are counts:
the interval of a rate is Garwood's (1936, Biometrika 28), and two rates are compared exactly, given the sum of both
counts (Przyborowski and Wilenski 1940, Biometrika 31).

Some twenty numbers are compared at once, and of twenty that do not differ one would seem to. So a difference is called
real only if it stands Holm's test over all numbers of the two runs (Holm 1979, Scand. J. Stat. 6): where the runs do not
differ in anything, the chance that any number is called different is 1 in 20.

The whole host's memory is shared with whatever else runs there. So a difference of it is called real only where the parts
that are known of a connection make up at least half of it: what lies in what is left over may be anybody's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, Literal

import msgspec

from asyncli.analysis.company import company
from asyncli.analysis.cost import Costs, costs, server_memory
from asyncli.analysis.drift import drifts, source_of
from asyncli.analysis.saturation import is_saturated, saturation
from asyncli.analysis.totals import Totals, fold
from asyncli.analysis.verdict import Verdict, judge
from asyncli.core.histogram import Histogram, bounds, summed
from asyncli.findings.comparison import (
    compare_asyncli,
    compare_burst,
    compare_company,
    compare_failed,
    compare_host,
    compare_incomplete,
    compare_invalid,
    compare_lateness,
    compare_plan,
    compare_same,
    compare_sysctls,
)
from asyncli.findings.host import host_shared
from asyncli.metrics import SERVER_CPU_S
from asyncli.plan import Plan, masked
from asyncli.records import Environment, Finding
from asyncli.run import Hold, Run, Ticks
from asyncli.units import format_count, format_duration

Called = Literal["higher", "lower", "no_difference", "cannot_say"]
Group = Literal["cost", "memory", "cpu", "latency", "losses", "drift", "asyncli"]

ALPHA = 0.05
# The hold is cut into at most this many stretches, none shorter than three seconds where that leaves the fewest that give a
# spread. What is alike in neighbouring stretches is reckoned with (:func:`_worth`). In simulated holds of one to ten minutes
# whose latency wandered with correlation times of 0 to 20 s, the truth lay within 92 to 99 % of the intervals of p50 and p99.
_STRETCHES, _FEWEST_STRETCHES, _STRETCH_S = 24, 6, 3.0
# A quantile with fewer answers beyond it than this hangs on single ones.
_BEYOND = 10
# The level at the hold's end is the mean over this long.
_LEVEL_S = 60.0
_FEWEST_LEVEL = 5
# Held at the hold's end may differ by this share for memory then to be comparable.
_SAME_HELD = 0.01
# Losses in one second that make this share of all are one event rather than many.
_BURST = 0.5
# Losses that are worth a word about bursts.
_FEW_LOSSES = 20


class Repeat(msgspec.Struct, frozen=True):
    """By how much repeats of one soak scatter beyond what each run knows of itself: a standard deviation."""

    #: As a share of the value.
    share: float = 0.0
    #: And in the row's unit, whatever the value.
    absolute: float = 0.0


_NO_SCATTER = Repeat()
# What bench/repeats.py measured over ten soaks of 10,000 connections, each on an nginx of its own, on a host on which other
# work went on: 0.22 MB of the server's memory (PSS moves with what other processes share with nginx), 9.9 % and 7.2 % of its
# CPU time, 2.9 % of p50. The slow quantiles of rounds whose stretches agreed scattered by 4 %; the others are seen as
# such, or by asyncli's own lateness. Rows without an entry scattered no more than their own intervals allow.
REPEAT: dict[str, Repeat] = {
    "fixed.server_user": Repeat(absolute=0.23e6),
    "memory.server_hold_end": Repeat(absolute=0.23e6),
    "cpu.per_request": Repeat(0.142),
    "cpu.per_connection": Repeat(0.082),
    "latency.p50": Repeat(0.035),
    "latency.p99": Repeat(0.05),
    "latency.p999": Repeat(0.05),
    "lateness.p99": Repeat(0.05),
}
#: Degrees of freedom by which they are known.
REPEAT_FREEDOM = 9
# A difference of latencies of which asyncli's own lateness makes this share says nothing of the server.
_OWN = 0.5
# A difference of the whole host of which what is left over makes more than this share says nothing of a connection's parts.
_LEFT_OVER = 0.5

METHOD = (
    "the intervals of both runs, independent of each other, combined after Welch and Satterthwaite, with what the same server "
    "was measured to differ by from run to run; rates by Garwood's intervals and the exact conditional test; quantiles by "
    "Woodruff's intervals over stretches of the hold (a report's are of ramp and hold); a level at the hold's end is the mean "
    "of its last minute"
)
RULE = (
    "a difference is real if it stands Holm's test at 5 % over all numbers of both runs: where nothing differs, 1 comparison in "
    "20 calls anything real. Of the whole host it must also lie in the parts that are known, not in what is left over. An "
    "interval by itself holds the truth in 19 of 20"
)


class Estimate(msgspec.Struct, frozen=True):
    """A number of one run with its 95 % interval, and the degrees of freedom behind it (None: as many as you like)."""

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
        """With Garwood's interval: exact for a Poisson count, if wider than it need be."""
        from scipy.special import chdtri

        # chdtri is the inverse of the upper tail, in (degrees of freedom, probability).
        low = float(chdtri(2 * self.count, 1 - ALPHA / 2)) / 2 if self.count else 0.0
        high = float(chdtri(2 * self.count + 2, ALPHA / 2)) / 2
        return Estimate(self.value, low / self.exposure, high / self.exposure)


class Row(msgspec.Struct, frozen=True):
    """A number that is compared: its key in the JSON, its unit, its name under the heading of its group, and in a sentence."""

    key: str
    unit: str
    label: str
    group: Group
    name: str


ROWS: tuple[Row, ...] = (
    Row("cost.server_user", "bytes", "server", "cost", "memory per connection in the server"),
    Row("cost.kernel", "bytes", "kernel, each end", "cost", "kernel memory per socket end"),
    Row("cost.residual", "bytes", "left over", "cost", "memory per connection that is left over"),
    Row("cost.host_total", "bytes", "host in all", "cost", "memory per connection on the host in all"),
    Row("fixed.server_user", "bytes", "fixed", "memory", "the server's fixed memory"),
    Row("memory.server_hold_end", "bytes", "at the hold's end", "memory", "the server's memory at the hold's end"),
    Row("cpu.per_request", "us", "a request", "cpu", "the server's CPU per request in the hold"),
    Row("cpu.per_connection", "us", "a connection", "cpu", "the server's CPU per connection in the ramp"),
    Row("latency.p50", "ms", "p50", "latency", "latency p50"),
    Row("latency.p99", "ms", "p99", "latency", "latency p99"),
    Row("latency.p999", "ms", "p99.9", "latency", "latency p99.9"),
    Row("lost", "per 1,000 connection-hours", "lost", "losses", "connections lost per 1,000 connection-hours"),
    Row("reopened", "per 1,000 connection-hours", "reopened", "losses", "connections reopened per 1,000 connection-hours"),
    Row("failed", "per 1,000 attempts", "failed to open", "losses", "failures per 1,000 attempts to connect"),
    Row("drift.server_user", "bytes/h", "server", "drift", "growth of the server's memory in the hold"),
    Row("drift.kernel", "bytes/h", "kernel", "drift", "growth of kernel memory in the hold"),
    Row("drift.host_total", "bytes/h", "host in all", "drift", "growth of the host's memory in the hold"),
    Row("cost.generator_user", "bytes", "memory", "asyncli", "asyncli's own memory per connection"),
    Row("lateness.p99", "ms", "beats late, p99", "asyncli", "p99 of how late asyncli sent heartbeats"),
)
GROUPS: dict[Group, str] = {
    "cost": "Memory of a connection",
    "memory": "Server's memory",
    "cpu": "Server's CPU",
    "latency": "Latency in the hold",
    "losses": "Losses (rates)",
    "drift": "Growth in the hold",
    "asyncli": "asyncli itself",
}

#: What a run says of one row; a text says why it says nothing.
Said = Estimate | Rate | str


class Measured(msgspec.Struct):
    """One run, ready to be compared: its numbers by key of a row, and what its reader must know of it."""

    name: str
    path: str
    id: str
    started: str
    verdict: Verdict
    why: str
    complete: bool
    #: Why its numbers are the generator's own; "" where they are not.
    spoiled: str
    held: int
    hold_s: float
    #: Flat facts for the table of what differs: plan keys, ``server.label``, ``kernel``...
    facts: dict[str, Any]
    said: dict[str, Said]
    #: How late asyncli sent its heartbeats in the hold, by quantile ("p99"), however unsure that is.
    late_ms: dict[str, float]
    #: By key of a row of the server's memory: as what it was read ("PSS").
    kinds: dict[str, str]
    #: Keys of the rows that are differences of two levels: what the first connections take once is in them, and in no slope.
    levels: frozenset[str]
    findings: list[Finding]


class Difference(msgspec.Struct):
    """One row of two runs: ``values`` are the first's and the second's, ``difference`` is the second's less the first's.

    ``relative``: the difference as a share of the first's value; None where that is not above zero. ``p_value`` is the
    row's own, ``verdict`` is after Holm. ``why``: the reason for "cannot_say", else empty.
    """

    key: str
    unit: str
    between: tuple[str, str]
    values: tuple[float | None, float | None]
    difference: float | None
    ci95: tuple[float, float] | None
    relative: float | None
    p_value: float | None
    verdict: Called
    why: str = ""


class Differing(msgspec.Struct):
    """A fact of the plan, the server or the host that is not the same in all runs."""

    key: str
    values: list[Any]


class Comparison(msgspec.Struct):
    """The first run is what the others are compared with."""

    runs: list[Measured]
    differences: list[Difference]
    differs: list[Differing]
    findings: list[Finding]


def hindrance(path: str, run: Run) -> str | None:
    """Why ``run`` cannot be compared with any other, in one line; None if it can."""
    if not run.ticks:
        where = run.phases[-1].name if run.phases else "beginning"
        return f"{path}: holds no second of the generator (the run ended in its {where}); compare runs that came to their ramp"
    if not any(tick.answered for _, tick in run.ticks):
        did = "answered" if any(tick.opened for _, tick in run.ticks) else "connected"
        return f"{path}: nothing ever {did} in this run; 'asyncli report {path}' says why"
    return None


def compare(runs: Sequence[Measured]) -> Comparison:
    """The first of ``runs`` against each other one. Pure: the same runs give the same comparison."""
    first, *others = runs
    differences = list(chain.from_iterable(_pair(first, other) for other in others))
    differs = differing(runs)
    return Comparison(list(runs), differences, differs, _findings(runs, differs, differences))


# -- one run

_NONE = Histogram()
# A tick speaks of a second, and of a generator that stood still of as long as that lasted.
_LONGEST_S = 60.0
_QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def measure(name: str, path: str, run: Run) -> Measured:
    """All numbers of ``run``, which is called ``name`` ("A") and kept in ``path``."""
    # Nothing that is judged here hangs on latencies, and to add up a night of them takes longer than all the rest.
    quick = [(t_s, msgspec.structs.replace(tick, latency_us=_NONE, connect_us=_NONE)) for t_s, tick in run.ticks]
    totals = fold(msgspec.structs.replace(run, ticks=quick))
    measured = run.outside_gaps
    saturated = is_saturated(saturation(run, totals))
    judgement = judge(run.plan, totals, saturated=saturated, complete=run.complete, findings=run.findings)
    # Of a run without an end as well, which is invalid for that alone.
    at_end = judge(run.plan, totals, saturated=saturated, complete=True, findings=run.findings)
    hold = measured.hold
    hold_s = hold.length_s if hold is not None else 0.0
    said: dict[str, Said] = {}
    levels = _costs(said, costs(run))
    _memory(said, run)
    _cpu(said, run)
    latency = _by_stretch(hold, "latency_us")
    said |= {f"latency.{name}": _quantile(latency, q) for name, q in _QUANTILES.items()}
    lateness = _by_stretch(hold, "lateness_us")
    said["lateness.p99"] = _quantile(lateness, _QUANTILES["p99"])
    _losses(said, totals, measured)
    _drift(said, run)
    return Measured(
        name=name, path=path, id=run.id, started=run.started, verdict=judgement.verdict, why=judgement.why,
        complete=run.complete, spoiled=at_end.why if at_end.verdict == "invalid" else "", held=totals.held, hold_s=hold_s,
        facts=facts(run.plan, run.environment), said=said, late_ms=_late_ms(lateness),
        kinds=_kinds(run), levels=levels,
        findings=[*company(run, totals), *_bursts(name, measured.ticks)],
    )  # fmt: skip


def _costs(said: dict[str, Said], found: Costs) -> frozenset[str]:
    """The rows of costs; keys of those that are differences of two levels."""

    def why(name: str) -> str:
        return found.unknown.get(name, "no slope is known")

    for name in ("server_user", "kernel", "generator_user", "host_total", "residual"):
        cost = getattr(found, name)
        if cost is None:
            said[f"cost.{name}"] = why(name)
            continue
        low, high = cost.ci95
        said[f"cost.{name}"] = Estimate(cost.bytes_per_connection, low, high, max(1, cost.points - 2))
    server, line = found.server_user, found.fits.get("server_user")
    if server is None:
        said["fixed.server_user"] = why("server_user")
    elif line is None:
        said["fixed.server_user"] = "no interval of the fixed part is known"
    else:
        low, high = line.band(0.0)
        said["fixed.server_user"] = Estimate(server.fixed_bytes, low, high, max(1, server.points - 2))
    levels = {f"cost.{name}" for name, fit in found.fits.items() if fit.cost.of_levels}
    levels |= {"fixed.server_user"} if "cost.server_user" in levels else set()
    return frozenset(levels)


def _kinds(run: Run) -> dict[str, str]:
    """PSS shares out what processes share, RSS counts it in each, USS in none: one less another is no difference of servers."""
    # What is left over is less the server's memory where that is on the host that was sampled.
    keys = ["cost.server_user", "fixed.server_user", "memory.server_hold_end", *(["cost.residual"] if run.sides.server else [])]
    source = source_of(run, "server_user").removeprefix("server.").removesuffix("_bytes")
    return dict.fromkeys(keys, server_memory(run)[1]) | {"drift.server_user": source.replace("_", " + ").upper()}


def _memory(said: dict[str, Said], run: Run) -> None:
    """The level of the server's memory at the hold's end."""
    memory, _ = server_memory(run)
    hold = run.hold
    key = "memory.server_hold_end"
    if hold is None:
        said[key] = "the run never came to its hold"
        return
    in_hold = memory.between(hold.start_s, hold.end_s)
    level = in_hold.between(hold.end_s - _LEVEL_S, hold.end_s).values
    # A server of many processes is read more seldom.
    level = level if len(level) >= _FEWEST_LEVEL else in_hold.values[-_FEWEST_LEVEL:]
    if not memory.values:
        said[key] = "the memory of the server's processes was not read"
    elif len(level) < _FEWEST_LEVEL:
        readings = f"{len(level)} reading{'' if len(level) == 1 else 's'}"
        said[key] = f"the hold has {readings} of the server's memory, and this wants {_FEWEST_LEVEL}"
    else:
        said[key] = _mean(level)


def _mean(values: Sequence[float]) -> Estimate:
    """The mean of readings whose neighbours are alike."""
    from scipy.special import stdtrit

    m = len(values)
    middle = statistics.fmean(values)
    off = [value - middle for value in values]
    worth = _worth(off)
    # The sample's own spread is too small by what its mean has taken with it.
    error = math.sqrt(sum(one * one for one in off) / m / (worth - 1))
    half = float(stdtrit(worth - 1, 1 - ALPHA / 2)) * error
    return Estimate(middle, middle - half, middle + half, worth - 1)


def _worth(off: Sequence[float]) -> float:
    """How many independent ones these deviations from their mean are worth: m (1 - r)/(1 + r), with neighbours alike as in AR(1).

    Bayley and Hammersley 1946 (Suppl. J. R. Stat. Soc. 8). Around a fitted mean r comes out too low by (1 + 3 r)/m (Marriott
    and Pope 1954, Biometrika 41).
    """
    m, power = len(off), sum(one * one for one in off)
    if power <= 0 or m < 5:
        return float(m)
    r = (sum(a * b for a, b in pairwise(off)) / power + 1 / m) / (1 - 3 / m)
    r = min(0.98, max(0.0, r))
    return max(2.0, m * (1 - r) / (1 + r))


def _cpu(said: dict[str, Said], run: Run) -> None:
    """CPU time of the server: by requests in the hold, and by connections in the ramp (their heartbeats included)."""
    ramp, hold = run.phase("ramp"), run.phase("hold")
    for key, part, end_s, counted, name in (
        ("cpu.per_request", hold, run.stop_s, "answered", "hold"),
        ("cpu.per_connection", ramp, hold.start_s if hold is not None else run.stop_s, "opened", "ramp"),
    ):
        if part is None:
            said[key] = f"the run never came to its {name}"
        else:
            said[key] = _per(run, part.start_s, end_s, counted, name)


def _per(run: Run, start_s: float, end_s: float, counted: str, name: str) -> Said:
    """Microseconds of the server's CPU per ``counted`` thing, by stretches of the time between.

    The ratio of the sums. Its error is the spread of the stretches' remainders around their own trend: in the ramp the
    heartbeats of what is already held make each stretch dearer than the one before, which is no noise.
    """
    from scipy.special import stdtrit

    cpu = run.series(SERVER_CPU_S).between(start_s, end_s)
    if not len(cpu):
        return "the CPU time of the server's processes was not read"
    # Both ends must be readings: beyond them nothing is known.
    start_s, end_s = cpu.t_s[0], cpu.t_s[-1]
    ticks = [(t_s, getattr(tick, counted)) for t_s, tick in run.ticks if start_s < t_s <= end_s]
    # CPU time comes in hundredths of a second, and samples and ticks once a second.
    k = _stretches(end_s - start_s, least_s=2.0)
    if k is None or not ticks:
        return f"the {name} is too short for the spread of its stretches"
    length = (end_s - start_s) / k
    edges = [start_s + place * length for place in range(k + 1)]
    spent = [(cpu.at(b) or 0.0) - (cpu.at(a) or 0.0) for a, b in pairwise(edges)]
    counts = [0.0] * k
    # A tick counts its whole second: what of it lies in the next stretch belongs there.
    for t_s, count in ticks:
        low, high = max(start_s, t_s - 1.0), t_s
        for place in {min(k - 1, int((edge - start_s) / length)) for edge in (low, math.nextafter(high, 0.0))}:
            inside = min(high, edges[place + 1]) - max(low, edges[place])
            counts[place] += count * max(0.0, inside) / (high - low)
    whole = sum(counts)
    if whole <= 0:
        return f"nothing was {counted} in the {name}"
    if min(spent) < 0:
        return "the server's processes changed: its CPU time fell"
    ratio = sum(spent) / whole
    off = [a - ratio * b for a, b in zip(spent, counts, strict=True)]
    middle = (k - 1) / 2
    tilt = sum((place - middle) * one for place, one in enumerate(off)) / sum((place - middle) ** 2 for place in range(k))
    rest = sum((one - tilt * (place - middle)) ** 2 for place, one in enumerate(off))
    error = math.sqrt(rest / (k - 2) * k) / whole
    half = float(stdtrit(k - 2, 1 - ALPHA / 2)) * error
    return Estimate(ratio * 1e6, (ratio - half) * 1e6, (ratio + half) * 1e6, k - 2)


def _stretches(span_s: float, least_s: float = 1.0) -> int | None:
    """How many stretches a span is cut into; None where it is too short for any spread."""
    k = min(_STRETCHES, int(span_s / _STRETCH_S))
    if k < _FEWEST_STRETCHES:
        k = min(_FEWEST_STRETCHES, int(span_s / least_s))
    return k if k >= _FEWEST_STRETCHES else None


class _Stretches(msgspec.Struct):
    """A histogram of the hold by stretches: the buckets that occur, and how often each does in each stretch."""

    keys: list[int]  # rising
    table: Any  # numpy, (stretches, buckets)


def _by_stretch(hold: Hold | None, histogram: str) -> _Stretches | str:
    """A hold cut into stretches of equal length; or why that cannot be."""
    import numpy as np

    if hold is None:
        return "the run never came to its hold"
    ticks = hold.ticks
    start_s, span_s = (ticks[0][0] - 1.0, ticks[-1][0] - ticks[0][0] + 1.0) if ticks else (0.0, hold.length_s)
    k = _stretches(span_s) if ticks else None
    if k is None:
        return f"the hold is too short ({format_duration(span_s)}) for the spread of its stretches"
    parts: list[list[Histogram]] = [[] for _ in range(k)]
    for t_s, tick in ticks:
        parts[min(k - 1, int((t_s - 0.5 - start_s) / span_s * k))].append(getattr(tick, histogram))
    sums = [summed(part).counts for part in parts]
    keys = sorted(set().union(*sums))
    if not keys:
        return f"no heartbeat was {'sent' if histogram == 'lateness_us' else 'answered'} in the hold"
    table = np.array([[one.get(key, 0) for key in keys] for one in sums], dtype=float)
    return _Stretches(keys, table)


def _quantile(found: _Stretches | str, q: float) -> Said:
    """Woodruff's interval of the ``q`` quantile, in ms.

    The share of records at or below the quantile is a ratio of sums over the stretches; its error gives the two shares
    between which the quantile's own interval lies.
    """
    import numpy as np
    from scipy.special import stdtrit

    if isinstance(found, str):
        return found
    sums = found.table.sum(axis=1)
    total, k = float(sums.sum()), len(sums)
    if total * (1 - q) < _BEYOND:
        return f"{total:,.0f} heartbeats in the hold are too few for p{q * 100:g}"
    share = np.cumsum(found.table.sum(axis=0)) / total

    def column(p: float) -> int:
        return min(len(share) - 1, int(np.searchsorted(share, p - 1e-12)))

    def at(p: float) -> tuple[float, float]:
        # A bucket is all that is known of a record: the interval has whole ones.
        low, high = bounds(found.keys[column(p)])
        return low / 1e3, (high + 1) / 1e3

    reach, freedom = 0.0, float(k - 1)
    # Of the quantile's own bucket all may lie below it or none, and where one stall filled it only one of the two tells.
    for last in (column(q), column(q) - 1):
        below = found.table[:, : last + 1].sum(axis=1)
        off = below - float(below.sum()) / total * sums
        worth = _worth(off.tolist())
        # k stretches that are worth fewer: as many times the variance of their mean.
        error = math.sqrt(k / (worth - 1) * float((off**2).sum())) / total
        half = float(stdtrit(worth - 1, 1 - ALPHA / 2)) * error
        reach, freedom = max((reach, freedom), (half, worth - 1))
    if q + reach >= 1.0:
        return f"the slowest heartbeats came in too few stretches of the hold for p{q * 100:g}"
    return Estimate(sum(at(q)) / 2, at(q - reach)[0], at(q + reach)[1], freedom)


def _late_ms(found: _Stretches | str) -> dict[str, float]:
    """The quantiles of all stretches together, without an interval."""
    if isinstance(found, str):
        return {}
    whole = Histogram({key: int(count) for key, count in zip(found.keys, found.table.sum(axis=0), strict=True)})
    whole.least, whole.greatest = bounds(found.keys[0])[0], bounds(found.keys[-1])[1]
    return {name: value / 1e3 for name, q in _QUANTILES.items() if (value := whole.quantile(q)) is not None}


def _losses(said: dict[str, Said], totals: Totals, run: Run) -> None:
    whole = totals.whole
    hours = connection_hours(run) / 1e3
    for key, count in (("lost", whole.lost), ("reopened", whole.reopened)):
        said[key] = Rate(count, hours) if hours > 0 else "no connection was held for a whole second"
    failed = sum(whole.failures.values())
    attempts = (whole.opened + failed) / 1e3
    said["failed"] = Rate(failed, attempts) if attempts > 0 else "nothing was attempted"


def connection_hours(run: Run) -> float:
    """Hours that connections were held until the drain, summed over connections."""
    seconds, before = 0.0, None
    for t_s, tick in run.ticks:
        if t_s > run.stop_s + 0.5:
            break
        # Beyond that nobody counted: the run was interrupted meanwhile.
        seconds += tick.held * (min(t_s - before, _LONGEST_S) if before is not None else 1.0)
        before = t_s
    return seconds / 3600


def _drift(said: dict[str, Said], run: Run) -> None:
    found, _ = drifts(run)
    for name in ("server_user", "kernel", "host_total"):
        one = found.get(name)
        if one is None:
            said[f"drift.{name}"] = "it was not sampled in the hold"
        elif one.bytes_per_hour is None or one.ci95 is None or one.verdict == "too_short":
            said[f"drift.{name}"] = "the hold is too short to tell growth"
        else:
            said[f"drift.{name}"] = Estimate(one.bytes_per_hour, *one.ci95)


def _bursts(name: str, ticks: Ticks) -> list[Finding]:
    """The rates take each loss as an event of its own; where one second holds most of them, they are not."""
    lost = [(tick.lost, t_s) for t_s, tick in ticks if tick.deaths]
    total = sum(count for count, _ in lost)
    if total < _FEW_LOSSES:
        return []
    most, at_s = max(lost)
    if most < _BURST * total:
        return []
    return [compare_burst(name, most, total, at_s)]


# -- two runs


def _pair(first: Measured, second: Measured) -> list[Difference]:
    """All rows of two runs, judged together."""
    rows = [_row(row, first, second) for row in ROWS]
    tested = sorted((one for one in rows if one.p_value is not None), key=lambda one: one.p_value or 0.0)
    adjusted = holm([one.p_value or 0.0 for one in tested])
    for one, p in zip(tested, adjusted, strict=True):
        assert one.difference is not None
        assert one.p_value is not None
        if p <= ALPHA:
            one.verdict = "higher" if one.difference > 0 else "lower"
        elif one.p_value > ALPHA:
            one.verdict = "no_difference"
        else:
            one.why = f"alone it would count (p = {one.p_value:.2g}), but of {len(tested)} numbers one may be so by chance"
    _mind_the_rest(rows)
    return rows


def _mind_the_rest(rows: Sequence[Difference]) -> None:
    """Take back that the host differs where no part that is known does: others use its memory, too."""
    by_key = {one.key: one.difference for one in rows}
    whole = next(one for one in rows if one.key == "cost.host_total")
    rest = by_key["cost.residual"]
    if whole.verdict not in ("higher", "lower") or whole.difference is None or rest is None:
        return
    if rest / whole.difference > _LEFT_OVER:
        whole.verdict = "cannot_say"
        whole.why = (
            f"it lies in what is left over ({rest:+,.0f} B of {whole.difference:+,.0f} B a connection), which other programs "
            "move too, and not in the parts that are known"
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of rising ``p_values``: what is at most 5 % stands among all of them."""
    found: list[float] = []
    for place, p in enumerate(p_values):
        found.append(min(1.0, max([*found[-1:], (len(p_values) - place) * p])))
    return found


def _row(row: Row, first: Measured, second: Measured) -> Difference:
    a, b = (one.said.get(row.key, "it is not known") for one in (first, second))
    values = tuple(None if isinstance(one, str) else one.value for one in (a, b))
    between = (first.name, second.name)
    result = Difference(row.key, row.unit, between, (values[0], values[1]), None, None, None, None, "cannot_say")
    reasons = [f"{one.name}: {said}" for one, said in ((first, a), (second, b)) if isinstance(said, str)]
    if isinstance(a, str) or isinstance(b, str):
        same = isinstance(a, str) and a == b
        result.why = f"in both, {a}" if same else "; ".join(reasons)
        return result
    result.difference = b.value - a.value
    # A growth near zero is no measure for another.
    result.relative = result.difference / a.value if a.value > 0 and row.group != "drift" else None
    if isinstance(a, Rate) and isinstance(b, Rate):
        low, high, _ = contrast(a.estimate(), b.estimate())
        result.ci95, p = (low, high), rates_differ(a, b)
    elif isinstance(a, Estimate) and isinstance(b, Estimate):
        low, high, p = contrast(a, b, REPEAT.get(row.key, _NO_SCATTER))
        result.ci95 = (low, high)
    else:
        return result
    result.why = _unlike(row, first, second) or _own(row, result.difference, first, second)
    if not result.why:
        result.p_value = p
    return result


def _unlike(row: Row, first: Measured, second: Measured) -> str:
    """Why a number means different things in the two runs; "" where it does not."""
    a, b = first.facts.get("local"), second.facts.get("local")
    if row.key in ("cost.host_total", "cost.residual", "drift.host_total", "drift.kernel") and a != b:
        here, there = (first, second) if a else (second, first)
        return f"both ends are on one host in {here.name}, but not in {there.name}"
    kinds = first.kinds.get(row.key), second.kinds.get(row.key)
    if kinds[0] != kinds[1]:
        return f"the server's memory was read as {kinds[0]} in {first.name}, as {kinds[1]} in {second.name}"
    if of := [one.name for one in (first, second) if row.key in one.levels]:
        # Freed memory that the next connections fill moves it by more than any interval knows: whoever ran second looks better.
        once = "with what the first connections take once; a slower ramp gives a slope"
        return f"it is a difference of two levels in {' and '.join(of)}, {once}"
    if row.key == "memory.server_hold_end" and abs(first.held - second.held) > _SAME_HELD * max(first.held, second.held):
        return f"{format_count(first.held)} connections were held in {first.name}, {format_count(second.held)} in {second.name}"
    return ""


def _own(row: Row, difference: float, first: Measured, second: Measured) -> str:
    """Why a difference of latencies may be asyncli's own: they count from when a heartbeat was due. "" where it is not."""
    if row.group != "latency":
        return ""
    a, b = (one.late_ms.get(row.key.removeprefix("latency.")) for one in (first, second))
    if a is None or b is None or abs(b - a) < _OWN * abs(difference) or (b - a) * difference <= 0:
        return ""
    later = first if b < a else second
    return f"in {later.name} asyncli itself was {abs(b - a):.2g} ms later in sending, which latency counts too"


def contrast(a: Estimate, b: Estimate, repeat: Repeat = _NO_SCATTER) -> tuple[float, float, float]:
    """(low, high) of the 95 % interval of ``b - a``, and the p-value of no difference: for 0.05 the interval ends at zero."""
    from scipy.special import stdtr, stdtrit

    scatter = [(repeat.share * one.value) ** 2 + repeat.absolute**2 for one in (a, b)]
    # Both runs' scatter is known from the same repeats: one estimate, not two that agree.
    between = [(sum(scatter), float(REPEAT_FREEDOM))] if sum(scatter) > 0 else []

    def side(down: Estimate, up: Estimate) -> tuple[float, float]:
        """Standard error and degrees of freedom of ``down``'s lower side with ``up``'s upper side."""
        parts = [*between, _variance(down, down.value - down.low), _variance(up, up.high - up.value)]
        variance = sum(one for one, _ in parts)
        if variance <= 0:
            return 0.0, math.inf
        loose = sum(one**2 / freedom for one, freedom in parts)
        return math.sqrt(variance), variance**2 / loose if loose > 0 else math.inf

    def reach(error: float, freedom: float) -> float:
        return error * float(stdtrit(min(freedom, _MANY), 1 - ALPHA / 2))

    difference = b.value - a.value
    lower, upper = side(b, a), side(a, b)
    error, freedom = lower if difference > 0 else upper
    if difference == 0:
        p = 1.0
    elif error == 0:
        p = 0.0
    else:
        p = min(1.0, 2 * float(stdtr(min(freedom, _MANY), -abs(difference) / error)))
    return difference - reach(*lower), difference + reach(*upper), p


# Student's t with so many degrees of freedom is the normal distribution to seven digits.
_MANY = 1e7


def _variance(one: Estimate, half: float) -> tuple[float, float]:
    """A half of a 95 % interval as a variance with its degrees of freedom."""
    from scipy.special import stdtrit

    freedom = _MANY if one.freedom is None else max(1.0, one.freedom)
    return (max(0.0, half) / float(stdtrit(freedom, 1 - ALPHA / 2))) ** 2, freedom


def rates_differ(a: Rate, b: Rate) -> float:
    """The exact p-value of two Poisson rates being equal: given the sum of counts, the second's is binomial."""
    from scipy.stats import binomtest

    both = a.count + b.count
    if not both:
        return 1.0
    return float(binomtest(b.count, both, b.exposure / (a.exposure + b.exposure)).pvalue)


# -- what else differs

# Plan keys that say where the server is or how its processes are found, not what is done to it.
_WHERE = ("urls", "status_url", "server_pid", "server_pidfile", "server_name", "force", "seed", "workers", "sources")
_HOST = ("host", "machine", "cpu_model", "cpus", "memory_bytes", "kernel")
_OURS = ("asyncli",)
# What may differ between runs of the same server and plan, and with a configuration that is known to be the same its address.
_NO_DIFFERENCE = {"plan.seed", "plan.server_pid", "plan.server_pidfile", "plan.server_name", "plan.force"}
_ADDRESS = {"plan.urls", "plan.status_url"}
# Limits that hold still; the others of the record are readings of the moment.
_LIMITS = ("nofile_hard", "nproc", "file_max", "conntrack_max", "cgroup_memory_limit", "cpu_quota", "superuser")


def facts(plan: Plan, environment: Environment) -> dict[str, Any]:
    """What a run was of, flat: the server, each key of the plan (``plan.hold_s``), the host, limits and sysctls."""
    server = environment.get("server")
    found: dict[str, Any] = {}
    if isinstance(server, dict):
        found |= {f"server.{key}": server.get(key) for key in ("label", "version", "exe", "config_hash")}
    found |= {f"plan.{key}": value for key, value in msgspec.to_builtins(plan).items() if key not in ("batch", "interval_s")}
    if plan.hold_until is not None:
        # By the wall clock it is a few seconds longer or shorter each time.
        del found["plan.hold_s"]
    found["plan.ramp"] = f"{plan.batch}/{format_duration(plan.interval_s).replace(' ', '')}"
    found |= {key: environment.get(key) for key in (*_HOST, *_OURS, "python", "local", "workers", "sources")}
    for name, keys in (("sysctls", None), ("limits", _LIMITS)):
        part = environment.get(name)
        if isinstance(part, dict):
            found |= {f"{name}.{key}": part[key] for key in (keys or part) if key in part}
    return found


def differing(runs: Sequence[Measured]) -> list[Differing]:
    """The facts in which not all runs are alike, the server's first."""
    keys = dict.fromkeys(chain.from_iterable(one.facts for one in runs))
    found = []
    for key in keys:
        values = [one.facts.get(key) for one in runs]
        if any(value != values[0] for value in values[1:]):
            found.append(Differing(key, [masked(value or ()) for value in values] if key == "plan.headers" else values))
    return found


def _findings(runs: Sequence[Measured], differs: Sequence[Differing], differences: Sequence[Difference]) -> list[Finding]:
    by_key = {one.key: one.values for one in differs}

    def of(*keys: str) -> dict[str, list[Any]]:
        return {key: by_key[key] for key in keys if key in by_key}

    found = [*chain.from_iterable(map(_trust, runs))]
    done = [key for key in by_key if key.startswith("plan.") and key.removeprefix("plan.") not in _WHERE]
    for made, unlike in (
        (compare_plan, of(*done)),
        (compare_host, of(*_HOST, "local")),
        (compare_asyncli, of(*_OURS)),
        (compare_sysctls, of(*(key for key in by_key if key.startswith("sysctls.")))),
    ):
        if unlike:
            found.append(made(unlike))
    known = runs[0].facts.get("server.config_hash") is not None
    if not set(by_key) - _NO_DIFFERENCE - (_ADDRESS if known else set()):
        found.append(compare_same(runs[0].facts.get("server.label") or "the server", known))
    late = [one for one in differences if one.key == "lateness.p99" and one.verdict in ("higher", "lower")]
    found += [compare_lateness(one.between[1], one.verdict == "higher") for one in late]
    return sorted(found, key=lambda one: {"error": 0, "warning": 1, "info": 2}[one.severity])


def _trust(run: Measured) -> list[Finding]:
    """What keeps a run's own numbers from being believed."""
    shared = [one for one in run.findings if one.code == host_shared.code]
    found = [one for one in run.findings if one.code != host_shared.code]
    found += [compare_company(run.name, **one.fields) for one in shared]
    if run.spoiled:
        found.append(compare_invalid(run.name, run.spoiled))
    if not run.complete:
        found.append(compare_incomplete(run.name, not run.spoiled))
    elif run.verdict == "failed":
        found.append(compare_failed(run.name, run.why))
    return found
