"""Whether the generator was late, and what that casts doubt on.

Lateness in the ramp casts doubt on its pace, whatever it waited for, and on connects that failed in
it; memory per connection is a slope over the connections held, whenever they came. Lateness of
heartbeats, stops of workers and a lack of CPU in the hold cast doubt on latencies and losses, and
so on the verdict: the run is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.analysis.constants import NEARLY_ALL, WORTH_TELLING
from asyncli.analysis.totals import Totals
from asyncli.core.histogram import Histogram
from asyncli.findings import generator
from asyncli.model.records import Finding, PhaseName, Tick
from asyncli.model.run import Run

# Five steps of the 10 ms grid: the ramp is no longer the planned one.
MOST_RAMP_LATENESS_S = 0.05
# In a ramp of one second a single delay is more than 1 % of the batches: a shorter total lateness
# is ignored.
LATE_FOR_S = 0.25
# Heartbeats of a connection are at least a second apart; a quarter of that shifts idle times.
MOST_BEAT_LATENESS_S = 0.25
# A stop of a second spoils a whole tick: its latencies are the generator's.
LONGEST_TURN_S = 1.0
# Above this a core has no slack for bursts.
MOST_CPU_SHARE = NEARLY_ALL
# Workers keep at most 256 connects pending; at half of that the ramp waits for the server.
PENDING_HOLDS_BACK = 128
# CPU time and ticks are inexact by a part of a second: over less time, shares and rates are too
# rough.
_SHORTEST_SPAN_S = 4.0

_BUSY: tuple[PhaseName, ...] = ("ramp", "hold")


def saturation(run: Run, totals: Totals) -> list[Finding]:
    """A finding for each bound that was crossed; empty if the generator was not the limit.

    Only warnings, which :func:`is_saturated` ignores: a ramp that was late, whether it waited for
    the server or for asyncli, and a short stop in a run that was otherwise on time.
    """
    run = run.undisturbed
    findings = [_ramp(run, totals)]
    driven = totals.during(*_BUSY)
    beat_s = _p99_s(driven.lateness_us)
    if beat_s > MOST_BEAT_LATENESS_S:
        findings.append(generator.saturated_beats(beat_s, MOST_BEAT_LATENESS_S))
    findings.append(_stopped(run))
    findings += [_cpu(run, totals, name) for name in _BUSY]
    return [finding for finding in findings if finding is not None]


def is_saturated(findings: Sequence[Finding]) -> bool:
    """Whether latencies and losses are the generator's too: what a verdict rests on."""
    errors = [finding for finding in findings if finding.severity == "error"]
    return any(finding.code.startswith("generator_saturated_") for finding in errors)


def has_late_ramp(findings: Sequence[Finding]) -> bool:
    """Whether the ramp was late by asyncli's own fault: what failed in it may be asyncli's."""
    if any(finding.code == generator.ramp_late.code for finding in findings):
        return True
    of_cpu = [finding for finding in findings if finding.code == generator.saturated_cpu.code]
    return any(finding.fields["phase"] == "ramp" for finding in of_cpu)


def achieved_per_s(run: Run, totals: Totals) -> float | None:
    """Connections per second of the ramp, without rests; None before any batch. A short ramp is
    timed by its schedule.
    """
    plan = run.plan
    whole_seconds = _rate_of_ticks(run.undisturbed)
    ramp = totals.by_phase.get("ramp")
    if whole_seconds is not None or ramp is None or not ramp.ramp_lateness_us:
        return whole_seconds
    batches = ramp.ramp_lateness_us.count
    # The last batch may be smaller.
    grid_s = (batches - 1 + plan.schedule.size(batches - 1) / plan.batch) * plan.interval_s
    delay_s = max(0.0, (ramp.ramp_lateness_us.quantile(0.5) or 0.0) / 1e6 - plan.interval_s)
    return (ramp.opened - ramp.reopened) / (grid_s + delay_s)


def _rate_of_ticks(run: Run) -> float | None:
    """The rate up to the last second that the ramp filled; None with too few seconds."""
    ramp = run.phase("ramp")
    start = run.first_connect_s
    end = math.inf
    if ramp is not None and ramp.end_s is not None:
        end = ramp.end_s
    opening = [
        (t_s - start, tick.opened - tick.reopened) for t_s, tick in run.ticks if t_s <= end + 0.5
    ]
    while opening and opening[-1][1] <= 0:
        opening.pop()
    if len(opening) < 2 or opening[-2][0] < _SHORTEST_SPAN_S:
        return None
    opened = sum(count for _, count in opening[:-1])
    until = opening[-2][0]
    driven = until - sum(
        max(0.0, min(until, b) - a) for a, b in run.plan.schedule.rests() if a < until
    )
    return opened / driven if driven > 0 else None


def _ramp(run: Run, totals: Totals) -> Finding | None:
    plan = run.plan
    ramp = totals.by_phase.get("ramp")
    if ramp is None:
        return None
    p99_s = _p99_s(ramp.ramp_lateness_us)
    rate = _rate_of_ticks(run)
    for_s = ramp.ramp_lateness_us.above(round(1e6 * MOST_RAMP_LATENESS_S)) * plan.interval_s
    late_s = p99_s if p99_s > MOST_RAMP_LATENESS_S and for_s > LATE_FOR_S else None
    # Failed attempts open nothing; other findings report them.
    if late_s is None and (rate is None or rate >= NEARLY_ALL * plan.asked_per_s or ramp.failures):
        return None
    # Batches that were sent in time wait for the server.
    if late_s is None or totals.pending_peak_per_worker >= PENDING_HOLDS_BACK:
        return generator.ramp_held_back(
            late_s,
            MOST_RAMP_LATENESS_S,
            rate,
            plan.asked_per_s,
            totals.pending_peak_per_worker,
            _waited_in(ramp),
        )
    return generator.ramp_late(late_s, MOST_RAMP_LATENESS_S, rate, plan.asked_per_s)


def _waited_in(ramp: Tick) -> generator.PartOfConnect:
    """The part of a connect that took longest; the first part that no connection completed, if
    there is one.
    """
    times_us: dict[generator.PartOfConnect, float | None] = {}
    if ramp.tls:
        times_us["tcp"] = ramp.tls.tcp_us.quantile(0.9)
        times_us["tls"] = ramp.tls.handshake_us.quantile(0.9)
    else:
        times_us["tcp"] = ramp.connect_us.quantile(0.9)
    if ramp.protocol:
        times_us["protocol"] = ramp.protocol.handshake_us.quantile(0.9)
        if not ramp.tls:
            # Only the whole connect and the protocol's part are known.
            times_us["tcp"] = (times_us["tcp"] or 0.0) / 2
    for part, time_us in times_us.items():
        if time_us is None:
            return part
    return max(times_us, key=lambda part: times_us[part] or 0.0)


def _stopped(run: Run) -> Finding | None:
    """A finding of stopped workers. Latencies include a short stop, as they count from when a
    heartbeat was due.
    """
    seconds = 0
    stops = []
    for (t_s, tick), name in zip(run.ticks, run.phases_of_ticks, strict=True):
        if name in _BUSY:
            seconds += 1
            if tick.longest_turn_s > LONGEST_TURN_S:
                stops.append((t_s, tick.longest_turn_s))
    if not stops:
        return None
    until_s, longest_s = max(stops, key=lambda stop: stop[1])
    share = sum(stopped_s for _, stopped_s in stops) / seconds
    if share > WORTH_TELLING or longest_s > run.plan.timeout_s:
        return generator.saturated_turn(longest_s, LONGEST_TURN_S)
    return generator.stood_still(longest_s, until_s, share, WORTH_TELLING)


def _cpu(run: Run, totals: Totals, name: PhaseName) -> Finding | None:
    cores = max(1, int(min(run.place.workers or 1, run.place.cpus or 1)))
    spent_s, span_s = totals.cpu_s.get(name, (0.0, 0.0))
    if span_s < _SHORTEST_SPAN_S or spent_s <= MOST_CPU_SHARE * span_s * cores:
        return None
    return generator.saturated_cpu(spent_s / (span_s * cores), cores, name, MOST_CPU_SHARE)


def _p99_s(histogram: Histogram) -> float:
    return (histogram.quantile(0.99) or 0.0) / 1e6
