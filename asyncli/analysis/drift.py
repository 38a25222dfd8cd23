"""Whether memory grows over time at a constant number of connections: a rate per hour, its
interval, and a verdict.

The points are medians of a minute; :mod:`asyncli.analysis.trend` fits the line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import msgspec

from asyncli.analysis.after_drain import stays_alive
from asyncli.analysis.collected import live_over_time
from asyncli.analysis.constants import FEWEST, MINUTE_S, PART
from asyncli.analysis.gaps import for_drift
from asyncli.analysis.generations import generations
from asyncli.analysis.regression import CONFIDENCE
from asyncli.analysis.shared_host import few_sockets, other_sockets, sockets_of_others
from asyncli.analysis.slope import PAGES, minus
from asyncli.analysis.trend import FEWEST_POINTS, Trend, trend
from asyncli.findings.drift import by_the_hour, drift_grows, drift_unknown, examined
from asyncli.findings.host import host_shared
from asyncli.model import metrics
from asyncli.model.installed import can_compute
from asyncli.model.metrics import SERVER_DESCRIPTORS
from asyncli.model.records import Finding, Tick
from asyncli.model.run import Hold, Run
from asyncli.model.samples import Series, counter_resets
from asyncli.model.units import format_bytes, format_count

MetricName = Literal["server_user", "live_heap", "kernel", "generator_user", "host_total"]
Verdict = Literal["grows", "shrinks", "flat", "too_short"]

BIN_S = MINUTE_S
# A hold of fewer minutes is cut into so many shorter bins.
POINTS_WANTED = 20
# Twelve hours of minutes; longer holds get longer bins, since the work grows with the square of the
# points.
MOST_POINTS = 720
# Certain growth below this share of the metric, over an hour or a shorter hold, is flat: it doubles
# the memory in six weeks.
MEANINGLESS_SHARE = 0.001
# "Flat" excludes growth in an hour by this share of the connections' memory, or by the share above
# of the metric. A bound of 593 MB an hour, where all connections took 25 MB, would exclude nothing
# that matters.
FLAT_SHARE = PART
# At most this share of the hold is excluded at its beginning, while memory settles: after a ramp to
# 100,000 asyncli's memory rose by 0.6 % in 60 s, and by 0.1 % in the next 180.
_SETTLING_SHARE = 0.25
# Other programs act over minutes however short the hold, and asyncli's memory settles for minutes:
# growth of these needs whole minutes. In 15 s of a hold of 20,000 connections the host rose by
# 12 MB (3 GB an hour), server and kernel not at all.
_NEED_MINUTES: tuple[MetricName, ...] = ("host_total", "generator_user")

# Both include memory that is neither anonymous nor private. If both grow, the server does: another
# program that unmaps shared files raises PSS alone, one more process raises RSS alone.
_WIDER = (metrics.SERVER_PSS_BYTES, metrics.SERVER_RSS_BYTES)
#: The metrics of each drift; the first that was read counts. Anonymous and shared memory come
#: before PSS, which includes file pages: their share changes with every other process that maps
#: them, by 230 kB in two seconds in a hold of 100,000 connections on nginx. Private memory alone
#: would hide a leak in shared memory.
SOURCES: dict[MetricName, tuple[str, ...]] = {
    "server_user": (metrics.SERVER_ANON_SHMEM_BYTES, metrics.SERVER_USS_BYTES, *_WIDER),
    # At its collections: garbage can neither hide a leak there nor look like it.
    "live_heap": (metrics.RUNTIME_HEAP_BYTES,),
    "kernel": (metrics.KERNEL_SOCKET_BYTES,),
    "generator_user": (metrics.GENERATOR_USS_BYTES,),
    "host_total": (metrics.HOST_USED_BYTES,),
}


class Drift(msgspec.Struct):
    """One metric over the hold: rate, 95 % interval, Kendall's two-sided p, and the verdict.

    ``minutes``: whole minutes examined. ``within_bytes_per_hour``: the largest rate, of either
    sign, that the interval includes. Rate, interval and p are None with too few points. If growth
    cannot be distinguished from settling, the interval includes 0.
    """

    bytes_per_hour: float | None
    ci95: tuple[float, float] | None
    p_value: float | None
    minutes: int
    verdict: Verdict
    within_bytes_per_hour: float | None
    #: Number and length (s) of the medians, and their span on the run's clock.
    points: int = 0
    bin_s: float = BIN_S
    from_s: float | None = None
    to_s: float | None = None
    #: The metric's median in that span.
    level_bytes: float | None = None
    #: The rate by answered heartbeats per hour.
    bytes_per_request: float | None = None
    #: The metric of the samples.
    metric: str = ""
    #: The largest rate, of either sign, that counts as no growth.
    bound_bytes_per_hour: float | None = None


def least_hold_s(keepalive_s: float) -> float:
    """The shortest hold (s) that gives a rate."""
    points_s = float(FEWEST_POINTS)
    return min(points_s + keepalive_s, points_s / (1 - _SETTLING_SHARE))


def drifts(run: Run) -> tuple[dict[MetricName, Drift], list[Finding]]:
    """The drift of each metric that was sampled in the hold, and findings; both empty without a
    hold, and where NumPy is not installed.

    If the number of connections changed in the hold, growth must show both in memory as read and in
    memory less the connections' cost; the kernel's always follows the connections. Minutes with
    10 % more or fewer connections than the median are left out.
    """
    whole = run
    run = for_drift(run)
    if run.hold is None or not can_compute():
        return {}, []
    settling_s = min(run.plan.keepalive_s, _SETTLING_SHARE * run.hold.length_s)
    start = run.hold.start_s + settling_s
    end = run.hold.end_s
    others = Series()
    if any(finding.code == host_shared.code for finding in other_sockets(run)):
        others = sockets_of_others(run)
    analysis = _DriftAnalysis(run, start, end, others=others)

    by_name: dict[MetricName, Drift] = {}
    for name in SOURCES:
        source = source_of(run, name)
        readings = len(drifting(run, source).between(start, end))
        # A heap is rarely collected, and a short hold is no news of it.
        if readings and (name != "live_heap" or readings >= FEWEST_POINTS):
            by_name[name] = analysis.drift(name, source)
    available = run.series(metrics.HOST_AVAILABLE_BYTES).last(until_s=end)
    findings = []
    for name, drift in by_name.items():
        if _is_reported(name, by_name):
            limit = _limit_of_filling_heap(run, name, by_name)
            kind = run.place.server_runtime.kind
            alive = _alive_as_much(run, name, drift)
            findings.append(_grows(name, drift, available, run.hold.length_s, limit, kind, alive))
    unknown = {name: drift for name, drift in by_name.items() if drift.bytes_per_hour is None}
    if unknown:
        findings.append(_unknown(unknown, whole, run.hold))
    return by_name, findings


def _unknown(unknown: Mapping[MetricName, Drift], run: Run, examined: Hold) -> Finding:
    """That the growth of these is unknown, of the ``examined`` part of the run's hold."""
    points = max(drift.points for drift in unknown.values())
    too_short = min(drift.minutes for drift in unknown.values()) < FEWEST_POINTS
    left_s = _left_by_events_s(run, examined) if too_short else None
    return drift_unknown(list(unknown), points, FEWEST_POINTS, too_short, left_s)


def _left_by_events_s(run: Run, examined: Hold) -> float | None:
    """How long the examined part of the hold is, where that is too short for growth since the plan
    has events in the rest; else None.
    """
    least_s = least_hold_s(run.plan.keepalive_s)
    has_events = bool(run.event_windows or run.quiet_commands)
    was_long_enough = run.hold is not None and run.hold.length_s >= least_s
    if not has_events or not was_long_enough or examined.length_s >= least_s:
        return None
    return examined.length_s


def medians(run: Run, by_name: Mapping[MetricName, Drift]) -> dict[MetricName, Series]:
    """The medians (instant in s, bytes) behind each drift of ``by_name``."""
    analysis = _DriftAnalysis(run, -math.inf, math.inf)
    points = {}
    for name, drift in by_name.items():
        if drift.from_s is None or drift.to_s is None:
            continue
        metric = drifting(run, drift.metric)
        times, values, _ = analysis.medians(metric, drift.from_s, drift.to_s, drift.bin_s)
        points[name] = Series(times, values)
    return points


def source_of(run: Run, name: MetricName) -> str:
    """The metric of drift ``name``, the first of :data:`SOURCES` that was sampled, or ""."""
    return next((source for source in SOURCES[name] if len(run.series(source))), "")


def drifting(run: Run, source: str) -> Series:
    """The memory ``source`` over time; the host's without inodes of /proc, and a heap's at its
    collections.
    """
    if source == metrics.RUNTIME_HEAP_BYTES:
        return live_over_time(run)
    metric = run.series(source)
    if source != metrics.HOST_USED_BYTES:
        return metric
    listing = run.series(metrics.KERNEL_LISTING_BYTES)
    if not len(listing):
        return metric
    return minus(metric, [listing])


def counted(run: Run, count: Callable[[Tick], float]) -> Series:
    """The ``count`` of the ticks, added up since the first: interpolation gives the count of
    any stretch of time.
    """
    times = [run.ticks[0][0] - 1.0 if run.ticks else 0.0]
    counts = [0.0]
    for t_s, tick in run.ticks:
        times.append(t_s)
        counts.append(counts[-1] + count(tick))
    return Series(times, counts)


class _DriftAnalysis:
    """The drifts of a run's metrics over a part of the hold."""

    def __init__(
        self, run: Run, start_s: float, end_s: float, *, others: Series | None = None
    ) -> None:
        self._run = run
        self._start = start_s
        self._end = end_s
        #: Sockets of other programs, if they opened or closed many in the run.
        self._others = Series() if others is None else others

    @cached_property
    def _answered(self) -> Series:
        """The answers since the first second."""
        return counted(self._run, lambda tick: tick.answered)

    def drift(self, name: MetricName, source: str) -> Drift:
        """The drift of ``name``, by the metric ``source``.

        With restarts of the server, of the longest part without one. If the later half certainly
        moves by less than the whole, it counts alone, because settling ends and growth does not.
        """
        start, end = self._longest_part(name)
        drift = self._over(name, source, start, end)
        while drift.bytes_per_hour and drift.p_value is not None and drift.p_value < 1 - CONFIDENCE:
            start = (start + end) / 2
            later = self._over(name, source, start, end)
            if later.ci95 is None or later.ci95[0] <= drift.bytes_per_hour <= later.ci95[1]:
                break
            if abs(later.bytes_per_hour or 0.0) > abs(drift.bytes_per_hour):
                break
            drift = later
        return drift

    def _longest_part(self, name: MetricName) -> tuple[float, float]:
        """The longest part of the hold in which the server was not restarted."""
        restarts: list[float] = []
        if name in ("server_user", "live_heap", "host_total"):
            restarts = [t_s for t_s in _restarts(self._run) if self._start < t_s < self._end]
        edges = [self._start, *restarts, self._end]
        start, end = max(pairwise(edges), key=lambda part: part[1] - part[0])
        if start > self._start:
            # Memory settles again after a restart.
            start += min(self._run.plan.keepalive_s, _SETTLING_SHARE * (end - start))
        return start, end

    def _over(self, name: MetricName, source: str, start: float, end: float) -> Drift:
        """The drift between two instants.

        If all metrics of :data:`_WIDER` grow by more than ``source``, that is the drift; else the
        interval includes their growth.
        """
        metric = drifting(self._run, source)
        bin_s = _bin_s(metric.between(start, end).t_s, end - start)
        times, values, held = self.medians(metric, start, end, bin_s)
        result = Drift(
            bytes_per_hour=None,
            ci95=None,
            p_value=None,
            minutes=int((end - start) // 60),
            verdict="too_short",
            within_bytes_per_hour=None,
            points=len(times),
            bin_s=bin_s,
            from_s=start,
            to_s=end,
            level_bytes=statistics.median(values) if values else None,
            metric=source,
        )
        if len(times) < FEWEST_POINTS:
            return result
        growth = self._trend(metric, times, values, held, follows=name == "kernel")
        if name == "server_user" and source not in _WIDER:
            growth = self._with_wider(result, growth, start, end)
        baseline = metric.between(-math.inf, self._run.first_connect_s)
        if not baseline and name == "live_heap":
            # Without a collection before the connections: with the garbage that it had then.
            baseline = self._run.series(source).between(-math.inf, self._run.first_connect_s)
        level = statistics.median(values)
        taken = 0.0
        if baseline:
            taken = level - statistics.median(baseline.values)
        had = math.inf
        if name not in _NEED_MINUTES:
            had = _taken_at_first(baseline, times[0], values[0], growth)
        others = self._opened_by_others(start, end)
        of_others = 0.0
        if not self._are_elsewhere(start, end):
            of_others = others * self._at_most_each(baseline, times[0], values[0], held[0])
        grown = abs(growth.slope) * (end - start) / 3600 - of_others
        # The kernel's and the host's memory is that of the others too, however long it takes.
        is_of_all = others > 0 and name in ("kernel", "host_total")
        may_be_settling = is_of_all or _may_be_settling(result.minutes, grown, had, level, values)
        self._conclude(result, growth, level, taken, may_be_settling, start, end)
        return result

    def _with_wider(self, result: Drift, growth: Trend, start: float, end: float) -> Trend:
        """The growth of the metrics :data:`_WIDER`, if all certainly grow by more than ``growth``;
        else ``growth``, which may be as high as theirs.
        """
        wider = [self._run.series(name) for name in _WIDER]
        least = self._least_growth(wider, start, end, result.bin_s)
        if least is None:
            return growth
        if _certainly_exceeds(least, growth):
            result.metric = _WIDER[0]
            return least
        return msgspec.structs.replace(growth, high=max(growth.high, least.high))

    def _are_elsewhere(self, start: float, end: float) -> bool:
        """Whether the sockets of others are not this server's: its fullest process has as many
        descriptors as before.
        """
        used = self._run.series(SERVER_DESCRIPTORS).between(start, end).values
        return len(used) > 1 and max(used) - min(used) <= few_sockets(max(used))

    def _at_most_each(self, baseline: Series, t_s: float, value: float, held: float) -> float:
        """How much a socket of another program may take of this memory: as much as ours did, and
        what grew by itself in the ramp, but for what grew so in the baseline already.
        """
        if len(baseline) < 2 or not held:
            return 0.0
        seconds = baseline.t_s[-1] - baseline.t_s[0]
        rise = max(0.0, baseline.values[-1] - baseline.values[0])
        by_itself = rise / seconds * (t_s - statistics.median(baseline.t_s))
        return max(0.0, value - statistics.median(baseline.values) - by_itself) / held

    def _opened_by_others(self, start: float, end: float) -> float:
        """How many sockets other programs opened or closed between two instants, by the first and
        the last quarter; 0 if few.
        """
        quarter = (end - start) / 4
        before = self._others.between(start, start + quarter).values
        after = self._others.between(end - quarter, end).values
        if not before or not after:
            return 0.0
        own_ends = self._run.sides.ends * (self._run.held.at(end) or 0.0)
        moved = abs(statistics.median(after) - statistics.median(before))
        if moved <= few_sockets(own_ends):
            return 0.0
        return moved

    def _least_growth(
        self, wider: Sequence[Series], start: float, end: float, bin_s: float
    ) -> Trend | None:
        """The least growth of the metrics ``wider``; None if one has too few points."""
        trends = []
        for metric in wider:
            times, values, held = self.medians(metric, start, end, bin_s)
            if len(times) < FEWEST_POINTS:
                return None
            trends.append(self._trend(metric, times, values, held, follows=False))
        return Trend(
            min(growth.slope for growth in trends),
            min(growth.low for growth in trends),
            min(growth.high for growth in trends),
            max(growth.p_value for growth in trends),
        )

    def _trend(
        self,
        metric: Series,
        times: list[float],
        values: list[float],
        held: list[float],
        *,
        follows: bool,
    ) -> Trend:
        """The trend that memory as read and memory less the connections' cost have in common."""
        variants = [values]
        cost = None
        if max(held) > min(held):
            cost = self._cost_of_each(metric, values[0], held[0])
        if cost is not None:
            usual = statistics.median(held)
            less = [value - cost * (n - usual) for value, n in zip(values, held, strict=True)]
            variants = [less] if follows else [values, less]
        hours = [t_s / 3600 for t_s in times]
        trends = []
        for variant in variants:
            growth = trend(hours, variant)
            if growth is not None:
                trends.append(growth)
        return Trend(
            min((growth.slope for growth in trends), key=abs),
            min(growth.low for growth in trends),
            max(growth.high for growth in trends),
            max(growth.p_value for growth in trends),
        )

    def _conclude(
        self,
        result: Drift,
        growth: Trend,
        level: float,
        taken: float,
        may_be_settling: bool,
        start: float,
        end: float,
    ) -> None:
        """Set rate, interval and verdict. ``taken``: bytes above the baseline."""
        rate = growth.slope
        low, high, p_value = _consistent(growth)
        certain = p_value < 1 - CONFIDENCE and (low > 0 or high < 0)
        if certain and may_be_settling:
            certain = False
            low = min(low, 0.0)
            high = max(high, 0.0)
        hours = (end - start) / 3600
        # The kernel allocates by pages: one more or less does not show.
        page = PAGES / 2 / hours
        low = min(low, rate - page)
        high = max(high, rate + page)
        result.bytes_per_hour = rate
        result.ci95 = (low, high)
        result.p_value = p_value
        result.within_bytes_per_hour = max(abs(low), abs(high))
        result.bound_bytes_per_hour = max(FLAT_SHARE * taken, MEANINGLESS_SHARE * level)
        # The share, over an hour or a shorter hold, as a rate per hour.
        share_of_level = level / min(1.0, hours)
        least_rate = max(MEANINGLESS_SHARE * share_of_level, page)
        is_flat = result.within_bytes_per_hour <= result.bound_bytes_per_hour
        result.verdict = _verdict(rate, least_rate, certain=certain, is_flat=is_flat)
        requests = (self._answered.at(end) or 0.0) - (self._answered.at(start) or 0.0)
        if requests > 0:
            result.bytes_per_request = rate * hours / requests

    def medians(
        self, metric: Series, start: float, end: float, bin_s: float
    ) -> tuple[list[float], list[float], list[float]]:
        """Medians of the instants, of the metric and of connections held, of each whole bin up to
        the end.
        """
        count = int((end - start) / bin_s + 1e-6)
        edges = [end - (count - place) * bin_s for place in range(count)]
        edges.append(math.nextafter(end, math.inf))
        rows = []
        for low, high in pairwise(edges):
            before_next = math.nextafter(high, -math.inf)
            part = metric.between(low, before_next)
            if not part.t_s:
                continue
            t_s = statistics.median(part.t_s)
            held = self._run.held.between(low, before_next).values
            connections = self._run.held.at(t_s) or 0.0
            if held:
                connections = statistics.median(held)
            rows.append((t_s, statistics.median(part.values), connections))
        usual = statistics.median(connections for _, _, connections in rows) if rows else 0.0
        times = []
        values = []
        counts = []
        for t_s, value, connections in rows:
            if abs(connections - usual) <= PART * usual:
                times.append(t_s)
                values.append(value)
                counts.append(connections)
        return times, values, counts

    def _cost_of_each(self, metric: Series, value: float, held: float) -> float | None:
        """Memory per connection by the baseline and the first point: accurate enough to correct for
        a few connections.
        """
        baseline = metric.between(-math.inf, self._run.first_connect_s).values
        if not baseline or not held:
            return None
        return max(0.0, (value - statistics.median(baseline)) / held)


def _certainly_exceeds(growth: Trend, other: Trend) -> bool:
    """Whether a growth is certain, and greater than the other can be."""
    return growth.p_value < 1 - CONFIDENCE and growth.low > max(0.0, other.high)


def _consistent(growth: Trend) -> tuple[float, float, float]:
    """Interval and p-value. They may disagree because of ranks and ties: the less certain of them
    counts.
    """
    if growth.low <= 0 <= growth.high:
        return growth.low, growth.high, max(growth.p_value, 1 - CONFIDENCE)
    if growth.p_value >= 1 - CONFIDENCE:
        return min(growth.low, 0.0), max(growth.high, 0.0), growth.p_value
    return growth.low, growth.high, growth.p_value


def _verdict(rate: float, least_rate: float, *, certain: bool, is_flat: bool) -> Verdict:
    """``least_rate``: the slowest that has a meaning, in bytes per hour. ``is_flat``: faster growth
    than that of no meaning is excluded.
    """
    if certain and abs(rate) >= least_rate:
        return "grows" if rate > 0 else "shrinks"
    if is_flat:
        return "flat"
    return "too_short"


def _taken_at_first(baseline: Series, t_s: float, value: float, growth: Trend) -> float:
    """Bytes that the connections took up to the first point of the hold, without the growth since
    the baseline.
    """
    if not baseline:
        return value
    grown_h = (t_s - statistics.median(baseline.t_s)) / 3600
    return value - statistics.median(baseline.values) - growth.slope * grown_h


def _may_be_settling(
    minutes: int, grown: float, had: float, level: float, values: Sequence[float]
) -> bool:
    """Whether growth in fewer minutes than a trend needs may be memory that settles."""
    if minutes >= FEWEST_POINTS:
        return False
    return _is_small(minutes, grown, had, level) or _has_ended(values)


def _has_ended(values: Sequence[float]) -> bool:
    """Whether the growth ended before the later half: a step, or a first use, and no rate."""
    eighth = max(1, len(values) // 8)
    first = statistics.median(values[:eighth])
    last = statistics.median(values[-eighth:])
    middle = statistics.median(values[(len(values) - eighth) // 2 :][: eighth + 1])
    # Of growth that goes on, half is in the later half.
    return abs(last - middle) < abs(last - first) / 4


def _is_small(minutes: int, grown: float, had: float, level: float) -> bool:
    """Whether growth by ``grown`` bytes in so few minutes may be a heap that fills, beside the
    ``had`` bytes that the connections took, and the ``level`` of the memory.
    """
    if minutes < FEWEST:
        # A healthy Node server's heap rose by 0.5 MB in 11 s, "155 MB an hour": it fills before
        # garbage is first collected.
        return grown <= max(2 * had, PART / 2 * level)
    return grown <= had


def _bin_s(t_s: Sequence[float], length_s: float) -> float:
    """The length of a bin: a minute, or less in a short hold, but at least the sample interval."""
    if length_s >= POINTS_WANTED * BIN_S:
        return BIN_S * math.ceil(length_s / BIN_S / MOST_POINTS)
    gaps = [later - earlier for earlier, later in pairwise(t_s)]
    usual_gap = statistics.median(gaps) if gaps else BIN_S
    return max(length_s / POINTS_WANTED, usual_gap, 1e-3)


def _restarts(run: Run) -> list[float]:
    """When the server was restarted or reloaded (s): by its counters, by half of its processes
    ending at once, or by a new generation of them.
    """
    accepts = run.series(metrics.STATUS_ACCEPTS)
    ended = run.series(metrics.SERVER_ENDED)
    processes = run.series(metrics.SERVER_PROCESSES)
    restarts = {accepts.t_s[place] for place in counter_resets(accepts.values)}
    restarts |= {generation.at_s for generation in generations(run)}
    for (_, before), (t_s, after) in pairwise(ended.rows()):
        if after > before and after - before >= 0.5 * (processes.last(t_s) or math.inf):
            restarts.add(t_s)
    return sorted(restarts)


_WORDS: dict[Verdict, str] = {
    "grows": "grows",
    "shrinks": "shrinks",
    "flat": "no growth",
    "too_short": "unknown",
}


def called(drift: Drift) -> str:
    """The verdict alone, as every report calls it."""
    if drift.ci95 is None:
        why = "too few samples" if drift.minutes >= FEWEST_POINTS else "hold too short"
        return f"unknown: {why} ({format_count(drift.points)} of {FEWEST_POINTS} points)"
    if not is_settling(drift):
        return _WORDS[drift.verdict]
    return f"{_WORDS[drift.verdict]}, {_change(drift)} or settling"


def is_settling(drift: Drift) -> bool:
    """Whether it certainly changed, which may be settling."""
    return (
        drift.verdict == "too_short"
        and drift.p_value is not None
        and drift.p_value < 1 - CONFIDENCE
    )


def told_rate(drift: Drift) -> float | None:
    """The rate (bytes an hour); None where the hold is too short to tell growth from none, so that
    only its interval says something.
    """
    if drift.verdict == "too_short":
        return None
    return drift.bytes_per_hour


def in_words(drift: Drift) -> str:
    """The verdict with its numbers: ``"grows by 144 MB an hour (140 MB to 148 MB) in 14 s"``, ``"no
    growth in 14 s: at most 4.1 kB in that time"``, ``"no growth in 8 h: at most 1.2 MB an hour"``,
    ``"too short to tell: between -7.0 MB and 9.0 MB an hour in 14 s"``, ``"too short to tell growth
    from settling: between 0 B and 1.1 GB an hour in 11 s"``; the time is a part of the hold. That
    nothing grew says nothing of growth in steps that are rarer than the hold is long, so it is by
    the hour only where hours were examined.
    """
    if drift.ci95 is None:
        return called(drift)
    from_s = drift.from_s or 0.0
    to_s = drift.to_s or 0.0
    where = f"in {examined(from_s, to_s)}"
    if drift.verdict in ("grows", "shrinks"):
        return f"{called(drift)} by {by_the_hour(drift.bytes_per_hour or 0.0, drift.ci95)} {where}"
    if drift.verdict != "flat":
        low, high = map(format_bytes, drift.ci95)
        rates = f"between {low} and {high} an hour {where}"
        if not is_settling(drift):
            return f"too short to tell: {rates}"
        return f"too short to tell {_change(drift)} from settling: {rates}"
    within = drift.within_bytes_per_hour or 0.0
    hours = (to_s - from_s) / 3600
    if hours >= 1:
        limits = f"at most {format_bytes(within)} an hour"
    else:
        limits = f"at most {format_bytes(hours * within)} in that time"
    return f"{called(drift)} {where}: {limits}"


def _change(drift: Drift) -> str:
    return "growth" if (drift.bytes_per_hour or 0.0) > 0 else "shrinking"


def _is_reported(name: MetricName, by_name: Mapping[MetricName, Drift]) -> bool:
    """Whether the metric grows; the whole host only if its parts do not explain it."""
    rate = by_name[name].bytes_per_hour
    if by_name[name].verdict != "grows" or rate is None:
        return False
    if name == "server_user" and _only_fills_its_heap(by_name):
        return False
    if name != "host_total":
        return True
    rate_of_parts = 0.0
    for part, drift in by_name.items():
        if part != name and drift.verdict == "grows":
            rate_of_parts += drift.bytes_per_hour or 0.0
    return rate_of_parts < rate / 2


def _only_fills_its_heap(by_name: Mapping[MetricName, Drift]) -> bool:
    """Whether the server's growth is that of a heap in which no more is alive."""
    live = by_name.get("live_heap")
    return live is not None and live.verdict in ("flat", "shrinks")


def _limit_of_filling_heap(
    run: Run, name: MetricName, by_name: Mapping[MetricName, Drift]
) -> float | None:
    """What the heap of the server's runtime may take (bytes), if all of the server's memory is less
    than that: then what grows may be garbage that no collection has freed yet. None where the limit
    is unknown, where more is known to be alive, and of Go, whose limit is no size to fill up to.
    """
    runtime = run.place.server_runtime
    if name != "server_user" or not runtime.collected or runtime.kind == "go":
        return None
    live = by_name.get("live_heap")
    if live is not None and live.verdict == "grows":
        return None
    limit = run.series(metrics.RUNTIME_LIMIT_BYTES).last() or runtime.heap_limit_bytes
    if limit is None:
        return None
    drift = by_name[name]
    memory = drifting(run, drift.metric).between(drift.from_s or 0.0, drift.to_s or 0.0)
    return limit if max(memory.values) < limit else None


def _alive_as_much(run: Run, name: MetricName, drift: Drift) -> float | None:
    """What stayed alive in the server's heap after the drain (bytes), if it is as much as the
    server's memory grew in the hold: then that is no garbage. None of other memory, and where it
    is less, or unknown.
    """
    alive = stays_alive(run)
    if name != "server_user" or alive is None:
        return None
    seconds = (drift.to_s or 0.0) - (drift.from_s or 0.0)
    grown = (drift.bytes_per_hour or 0.0) * seconds / 3600
    return alive if alive >= grown else None


def _grows(
    name: MetricName,
    drift: Drift,
    available: float | None,
    hold_s: float,
    heap_limit: float | None,
    kind: str,
    alive_bytes: float | None,
) -> Finding:
    from_s = drift.from_s or 0.0
    to_s = drift.to_s or 0.0
    rate = drift.bytes_per_hour or 0.0
    per_request = drift.bytes_per_request if name != "host_total" else None
    long_hold_s = None
    if drift.minutes < FEWEST_POINTS:
        # Of which as large a share lasts for ten minutes.
        long_hold_s = MINUTE_S * math.ceil(hold_s * FEWEST_POINTS / (to_s - from_s))
    interval = drift.ci95 or (rate, rate)
    return drift_grows(
        name,
        from_s,
        to_s,
        rate,
        interval,
        per_request,
        available,
        long_hold_s,
        heap_limit,
        kind,
        alive_bytes,
    )
