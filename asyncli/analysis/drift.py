"""Whether memory grows over time at a constant number of connections: a rate per hour, its
interval, and a verdict.

The points are medians of a minute; :mod:`asyncli.analysis.trend` fits the line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import msgspec

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
from asyncli.model.metrics import SERVER_DESCRIPTORS
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series, counter_resets
from asyncli.model.units import format_bytes, format_count

MetricName = Literal["server_user", "kernel", "generator_user", "host_total"]
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
    hold.

    If the number of connections changed in the hold, growth must show both in memory as read and in
    memory less the connections' cost; the kernel's always follows the connections. Minutes with
    10 % more or fewer connections than the median are left out.
    """
    run = for_drift(run)
    if run.hold is None:
        return {}, []
    start, end = (
        run.hold.start_s + min(run.plan.keepalive_s, _SETTLING_SHARE * run.hold.length_s),
        run.hold.end_s,
    )
    shared = any(one.code == host_shared.code for one in other_sockets(run))
    analysis = _DriftAnalysis(
        run, start, end, others=sockets_of_others(run) if shared else Series()
    )

    sources = {name: source_of(run, name) for name in SOURCES}
    found = {
        name: analysis.drift(name, one)
        for name, one in sources.items()
        if drifting(run, one).between(start, end).t_s
    }
    available = run.series(metrics.HOST_AVAILABLE_BYTES).last(until_s=end)
    findings = [
        _grows(name, found[name], available, run.hold.length_s)
        for name in found
        if _is_reported(name, found)
    ]
    if unknown := {name: one for name, one in found.items() if one.bytes_per_hour is None}:
        too_short = min(one.minutes for one in unknown.values()) < FEWEST_POINTS
        findings.append(
            drift_unknown(
                list(unknown), max(one.points for one in unknown.values()), FEWEST_POINTS, too_short
            )
        )
    return found, findings


def medians(run: Run, found: Mapping[MetricName, Drift]) -> dict[MetricName, Series]:
    """The medians (instant in s, bytes) behind each drift of ``found``."""
    analysis = _DriftAnalysis(run, -math.inf, math.inf)
    points = {}
    for name, one in found.items():
        if one.from_s is not None and one.to_s is not None:
            points[name] = Series(
                *analysis.medians(drifting(run, one.metric), one.from_s, one.to_s, one.bin_s)[:2]
            )
    return points


def source_of(run: Run, name: MetricName) -> str:
    """The metric of drift ``name``, the first of :data:`SOURCES` that was sampled, or ""."""
    return next((source for source in SOURCES[name] if len(run.series(source))), "")


def drifting(run: Run, source: str) -> Series:
    """The memory ``source`` over time; the host's without inodes of /proc."""
    metric = run.series(source)
    listing = (
        run.series(metrics.KERNEL_LISTING_BYTES) if source == metrics.HOST_USED_BYTES else Series()
    )
    return minus(metric, [listing]) if len(listing) else metric


def counted(run: Run, name: str) -> Series:
    """The count ``name`` of the ticks, added up since the first: interpolation gives the count of
    any stretch of time.
    """
    first_s = run.ticks[0][0] - 1.0 if run.ticks else 0.0
    counts = accumulate((getattr(tick, name) for _, tick in run.ticks), initial=0.0)
    return Series([first_s, *(t_s for t_s, _ in run.ticks)], list(counts))


class _DriftAnalysis:
    """The drifts of a run's metrics over a part of the hold."""

    def __init__(
        self, run: Run, start_s: float, end_s: float, *, others: Series | None = None
    ) -> None:
        self._run, self._start, self._end = run, start_s, end_s
        #: Sockets of other programs, if they opened or closed many in the run.
        self._others = Series() if others is None else others

    def drift(self, name: MetricName, source: str) -> Drift:
        """The drift of ``name``, by the metric ``source``.

        With restarts of the server, of the longest part without one. If the later half certainly
        moves by less than the whole, it counts alone, because settling ends and growth does not.
        """
        starts = _restarts(self._run) if name in ("server_user", "host_total") else ()
        edges = [self._start, *(cut for cut in starts if self._start < cut < self._end), self._end]
        start, end = max(pairwise(edges), key=lambda part: part[1] - part[0])
        if start > self._start:
            # Memory settles again after a restart.
            start += min(self._run.plan.keepalive_s, _SETTLING_SHARE * (end - start))
        found = self._over(name, source, start, end)
        while found.bytes_per_hour and found.p_value is not None and found.p_value < 1 - CONFIDENCE:
            start = (start + end) / 2
            later = self._over(name, source, start, end)
            if later.ci95 is None or later.ci95[0] <= found.bytes_per_hour <= later.ci95[1]:
                break
            if abs(later.bytes_per_hour or 0.0) > abs(found.bytes_per_hour):
                break
            found = later
        return found

    def _over(self, name: MetricName, source: str, start: float, end: float) -> Drift:
        """The drift between two instants.

        If all metrics of :data:`_WIDER` grow by more than ``source``, that is the drift; else the
        interval includes their growth.
        """
        follows, metric = name == "kernel", drifting(self._run, source)
        bin_s = _bin_s(metric.between(start, end).t_s, end - start)
        times, values, held = self.medians(metric, start, end, bin_s)
        result = Drift(
            bytes_per_hour=None, ci95=None, p_value=None, minutes=int((end - start) // 60), verdict="too_short",
            within_bytes_per_hour=None, points=len(times), bin_s=bin_s, from_s=start, to_s=end,
            level_bytes=statistics.median(values) if values else None, metric=source,
        )  # fmt: skip
        if len(times) < FEWEST_POINTS:
            return result
        found = self._trend(metric, times, values, held, follows=follows)
        wider = _WIDER if name == "server_user" and source not in _WIDER else ()
        if (
            more := self._least_growth([self._run.series(one) for one in wider], start, end, bin_s)
        ) is not None:
            if more.p_value < 1 - CONFIDENCE and more.low > max(0.0, found.high):
                found, result.metric = more, _WIDER[0]
            else:
                found = msgspec.structs.replace(found, high=max(found.high, more.high))
        baseline, level = (
            metric.between(-math.inf, self._run.first_connect_s),
            statistics.median(values),
        )
        had, taken = math.inf if name in _NEED_MINUTES else values[0], 0.0
        if baseline.t_s:
            before, grown_h = (
                statistics.median(baseline.values),
                (times[0] - statistics.median(baseline.t_s)) / 3600,
            )
            # Without its growth since then.
            had, taken = had - before - found.slope * grown_h, level - before
        hours = (end - start) / 3600
        others = self._opened_by_others(start, end)
        theirs = 0.0
        if others and not self._are_elsewhere(start, end):
            theirs = others * self._at_most_each(baseline, times[0], values[0], held[0])
        undecided = _is_small(
            result.minutes, abs(found.slope) * hours - theirs, had, level
        ) or _has_ended(values)
        # The kernel's and the host's memory is that of the others too, however long it takes.
        of_all = others > 0 and name in ("kernel", "host_total")
        self._conclude(
            result,
            found,
            level,
            taken,
            of_all or (undecided and result.minutes < FEWEST_POINTS),
            start,
            end,
        )
        return result

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
        by_itself = (
            max(0.0, baseline.values[-1] - baseline.values[0])
            / seconds
            * (t_s - statistics.median(baseline.t_s))
        )
        return max(0.0, value - statistics.median(baseline.values) - by_itself) / held

    def _opened_by_others(self, start: float, end: float) -> float:
        """How many sockets other programs opened or closed between two instants, by the first and
        the last quarter; 0 if few.
        """
        quarter = (end - start) / 4
        before, after = (
            self._others.between(start, start + quarter).values,
            self._others.between(end - quarter, end).values,
        )
        if not before or not after:
            return 0.0
        ours = self._run.sides.ends * (self._run.held.at(end) or 0.0)
        moved = abs(statistics.median(after) - statistics.median(before))
        return moved if moved > few_sockets(ours) else 0.0

    def _least_growth(
        self, wider: Sequence[Series], start: float, end: float, bin_s: float
    ) -> Trend | None:
        """The least growth of the metrics ``wider``; None if one has too few points."""
        rows = [self.medians(one, start, end, bin_s) for one in wider]
        if not rows or min(len(times) for times, _, _ in rows) < FEWEST_POINTS:
            return None
        each = [self._trend(one, *row, follows=False) for one, row in zip(wider, rows, strict=True)]
        slope, low, high = (
            min(ends)
            for ends in zip(*((one.slope, one.low, one.high) for one in each), strict=True)
        )
        return Trend(slope, low, high, max(one.p_value for one in each))

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
        if max(held) > min(held) and (each := self._each(metric, values[0], held[0])) is not None:
            usual = statistics.median(held)
            less = [value - each * (n - usual) for value, n in zip(values, held, strict=True)]
            variants = [less] if follows else [values, less]
        hours = [t_s / 3600 for t_s in times]
        trends = [one for variant in variants if (one := trend(hours, variant)) is not None]
        low, high = min(one.low for one in trends), max(one.high for one in trends)
        return Trend(
            min((one.slope for one in trends), key=abs),
            low,
            high,
            max(one.p_value for one in trends),
        )

    def _conclude(
        self,
        result: Drift,
        found: Trend,
        level: float,
        taken: float,
        may_be_settling: bool,
        start: float,
        end: float,
    ) -> None:
        """Set rate, interval and verdict. ``taken``: bytes above the baseline."""
        rate, low, high = found.slope, found.low, found.high
        result.bytes_per_hour, result.ci95, result.p_value = rate, (low, high), found.p_value
        # Interval and test may disagree because of ranks and ties: the less certain of them counts.
        if low <= 0 <= high:
            result.p_value = max(result.p_value, 1 - CONFIDENCE)
        elif result.p_value >= 1 - CONFIDENCE:
            low, high = min(low, 0.0), max(high, 0.0)
            result.ci95 = (low, high)
        hours = (end - start) / 3600
        certain = result.p_value < 1 - CONFIDENCE and (low > 0 or high < 0)
        if certain and may_be_settling:
            certain, low, high = False, min(low, 0.0), max(high, 0.0)
        # The kernel allocates by pages: one more or less does not show.
        page = PAGES / 2 / hours
        low, high = min(low, rate - page), max(high, rate + page)
        result.ci95, result.within_bytes_per_hour = (low, high), max(abs(low), abs(high))
        # The share, over an hour or a shorter hold, as a rate per hour.
        share_of_level = level / min(1.0, hours)
        result.bound_bytes_per_hour = max(FLAT_SHARE * taken, MEANINGLESS_SHARE * level)
        if certain and abs(rate) >= max(MEANINGLESS_SHARE * share_of_level, page):
            result.verdict = "grows" if rate > 0 else "shrinks"
        elif result.within_bytes_per_hour <= result.bound_bytes_per_hour:
            result.verdict = "flat"
        answered = counted(self._run, "answered")
        if (number := (answered.at(end) or 0.0) - (answered.at(start) or 0.0)) > 0:
            result.bytes_per_request = rate * hours / number

    def medians(
        self, metric: Series, start: float, end: float, bin_s: float
    ) -> tuple[list[float], list[float], list[float]]:
        """Medians of the instants, of the metric and of connections held, of each whole bin up to
        the end.
        """
        count = int((end - start) / bin_s + 1e-6)
        edges = [end - (count - place) * bin_s for place in range(count)] + [
            math.nextafter(end, math.inf)
        ]
        rows = []
        for low, high in pairwise(edges):
            part = metric.between(low, math.nextafter(high, -math.inf))
            if part.t_s:
                t_s = (
                    part.t_s[len(part.t_s) // 2]
                    if len(part.t_s) % 2
                    else statistics.median(part.t_s)
                )
                n = self._run.held.between(low, math.nextafter(high, -math.inf)).values
                rows.append(
                    (
                        t_s,
                        statistics.median(part.values),
                        statistics.median(n) if n else self._run.held.at(t_s) or 0.0,
                    )
                )
        usual = statistics.median(n for _, _, n in rows) if rows else 0.0
        rows = [row for row in rows if abs(row[2] - usual) <= PART * usual]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]

    def _each(self, metric: Series, value: float, held: float) -> float | None:
        """Memory per connection by the baseline and the first point: accurate enough to correct for
        a few connections.
        """
        baseline = metric.between(-math.inf, self._run.first_connect_s).values
        return max(0.0, (value - statistics.median(baseline)) / held) if baseline and held else None


def _has_ended(values: Sequence[float]) -> bool:
    """Whether the growth ended before the later half: a step, or a first use, and no rate."""
    eighth = max(1, len(values) // 8)
    first, last = statistics.median(values[:eighth]), statistics.median(values[-eighth:])
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
    gaps = [b - a for a, b in pairwise(t_s)]
    return max(length_s / POINTS_WANTED, statistics.median(gaps) if gaps else BIN_S, 1e-3)


def _restarts(run: Run) -> list[float]:
    """When the server was restarted or reloaded (s): by its counters, by half of its processes
    ending at once, or by a new generation of them.
    """
    accepts, ended = run.series(metrics.STATUS_ACCEPTS), run.series(metrics.SERVER_ENDED)
    processes = run.series(metrics.SERVER_PROCESSES)
    found = {accepts.t_s[place] for place in counter_resets(accepts.values)}
    found |= {generation.at_s for generation in generations(run)}
    for (_, before), (t_s, after) in pairwise(zip(ended.t_s, ended.values, strict=True)):
        if after > before and after - before >= 0.5 * (processes.last(t_s) or math.inf):
            found.add(t_s)
    return sorted(found)


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
    settling = f", {'growth' if (drift.bytes_per_hour or 0.0) > 0 else 'shrinking'} or settling"
    return _WORDS[drift.verdict] + settling * is_settling(drift)


def is_settling(drift: Drift) -> bool:
    """Whether it certainly changed, which may be settling."""
    return (
        drift.verdict == "too_short"
        and drift.p_value is not None
        and drift.p_value < 1 - CONFIDENCE
    )


def in_words(drift: Drift) -> str:
    """The verdict with its numbers: ``"grows by 144 MB an hour (140 MB to 148 MB) in 14 s"``, ``"no
    growth in 14 s: at most 1.2 MB an hour (bound 5.0 MB)"``, ``"unknown in 14 s: -7.0 MB to 9.0 MB
    an hour (bound 5.0 MB)"``; the time is a part of the hold.
    """
    if drift.ci95 is None:
        return called(drift)
    where = f"in {examined(drift.from_s or 0.0, drift.to_s or 0.0)}"
    if drift.verdict in ("grows", "shrinks"):
        return f"{called(drift)} by {by_the_hour(drift.bytes_per_hour or 0.0, drift.ci95)} {where}"
    low, high = map(format_bytes, drift.ci95)
    rate = (
        f"at most {format_bytes(drift.within_bytes_per_hour or 0.0)}"
        if drift.verdict == "flat"
        else f"{low} to {high}"
    )
    return f"{called(drift)} {where}: {rate} an hour (bound {format_bytes(drift.bound_bytes_per_hour or 0.0)})"


def _is_reported(name: MetricName, found: dict[MetricName, Drift]) -> bool:
    """Whether the metric grows; the whole host only if its parts do not explain it."""
    rate = found[name].bytes_per_hour
    if found[name].verdict != "grows" or rate is None:
        return False
    parts = [
        one.bytes_per_hour or 0.0
        for part, one in found.items()
        if part != name and one.verdict == "grows"
    ]
    return name != "host_total" or sum(parts) < rate / 2


def _grows(name: MetricName, drift: Drift, available: float | None, hold_s: float) -> Finding:
    from_s, to_s, rate = drift.from_s or 0.0, drift.to_s or 0.0, drift.bytes_per_hour or 0.0
    each = drift.bytes_per_request if name != "host_total" else None
    # Of which as large a share lasts for ten minutes.
    long_hold_s = (
        MINUTE_S * math.ceil(hold_s * FEWEST_POINTS / (to_s - from_s))
        if drift.minutes < FEWEST_POINTS
        else None
    )
    return drift_grows(
        name, from_s, to_s, rate, drift.ci95 or (rate, rate), each, available, long_hold_s
    )
