"""The records of an interrupted and resumed run for fits, which must not span a gap."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from asyncli.analysis.constants import FEWEST
from asyncli.analysis.generations import generation_ends_s
from asyncli.model.metrics import (
    HOST_USED_BYTES,
    SERVER_ENDED,
    SERVER_PROCESSES,
    STATUS_ACCEPTS,
    STATUS_HANDLED,
    STATUS_REQUESTS,
)
from asyncli.model.records import Phase, Sample
from asyncli.model.run import Run, Ticks

# Counters that cannot be compared across a gap.
_COUNTERS = (STATUS_ACCEPTS, STATUS_HANDLED, STATUS_REQUESTS)


def of_one_server(run: Run) -> Run:
    """The run without samples of another server from before the resumption."""
    changed_s = run.place.server_changed_s
    if changed_s is None:
        return run
    return _without_server_until(run, changed_s, "server.", "runtime.")


def _of_those_that_it_found(run: Run) -> Run:
    """The run without samples of processes of the server that all had ended before the first
    connect: what these kept of earlier connections went with them.
    """
    changed_s = -math.inf
    for before_s, after_s in replacements(run):
        if after_s <= run.first_connect_s:
            changed_s = before_s
    if changed_s == -math.inf:
        return run
    return _without_server_until(run, changed_s, "server.", "runtime.", "status.")


def _without_server_until(run: Run, changed_s: float, *of_it: str) -> Run:
    """The run without the samples of the server until then (s on the run's clock): those whose
    names begin so.
    """
    if run.sides.server:
        of_it = (*of_it, HOST_USED_BYTES)
    samples = []
    for sample in run.samples:
        if sample.t_s > changed_s:
            samples.append(sample)
            continue
        values = {
            name: value for name, value in sample.values.items() if not name.startswith(of_it)
        }
        samples.append(Sample(sample.t_s, values))
    return msgspec.structs.replace(run, samples=samples)


def for_cost(run: Run) -> Run:
    """The records for the cost: until the first gap or event after the start of the ramp, until
    processes of the server ended with their connections, or all of them, or until new ones joined
    them; and the samples after the drain.
    """
    run = _of_those_that_it_found(of_one_server(run))
    ramp = run.phase("ramp")
    drain = run.phase("drain")
    first = min(_ended_s(run), generation_ends_s(run))
    for gap in run.disturbances:
        if ramp is not None and gap.start_s >= ramp.start_s:
            first = min(first, gap.start_s)
    if first >= run.stop_s:
        return run.undisturbed
    spans = [span for span in run.undisturbed_spans(-math.inf, first) if span[0] < span[1]]
    if drain is not None:
        spans.append((drain.start_s, math.inf))
    kept = run.within(*spans)
    ticks = [*run.undisturbed.ticks_between(-math.inf, first)]
    ticks += _tick_that_follows(run.undisturbed, first)
    return msgspec.structs.replace(kept, ticks=ticks)


def replaced_in_ramp_s(run: Run) -> float | None:
    """When processes of the server ended with connections, or new ones joined them, before all were
    open (s on the run's clock): the cost is then of those before. None where they did not.
    """
    first = min(_ended_s(run), generation_ends_s(run))
    hold = run.phase("hold")
    ramp_end_s = run.stop_s if hold is None else hold.start_s
    return first if first < ramp_end_s else None


def _tick_that_follows(run: Run, end_s: float) -> Ticks:
    """The tick of the second in which the records end, by which the connections of the last sample
    are known; none where some of them ended in it.
    """
    for t_s, tick in run.ticks_between(end_s, end_s + 1.0):
        return [] if tick.lost else [(t_s, tick)]
    return []


def replacements(run: Run) -> list[tuple[float, float]]:
    """Between which two readings (s) all processes of the server ended, each time that they did."""
    processes = run.series(SERVER_PROCESSES)
    spans = []
    for (before_s, before), (after_s, after) in pairwise(run.series(SERVER_ENDED).rows()):
        had = processes.last(until_s=before_s)
        if had and after - before >= had:
            spans.append((before_s, after_s))
    return spans


def _ended_s(run: Run) -> float:
    """When processes of the server first ended with connections, as by a crash or a reload, or all
    of them did: its memory is then no longer that of those we hold. Infinite if never.
    """
    return min(_ended_with_connections_s(run), _all_ended_s(run))


def _all_ended_s(run: Run) -> float:
    """When all processes of the server first ended since the first connect, with few connections
    too; infinite if they never did.
    """
    for before_s, after_s in replacements(run):
        if run.first_connect_s < after_s <= run.stop_s:
            return max(before_s, run.first_connect_s)
    return math.inf


def _ended_with_connections_s(run: Run) -> float:
    """When processes of the server first ended with some of the connections; infinite if never."""
    for (before_s, before), (after_s, after) in pairwise(run.series(SERVER_ENDED).rows()):
        if after <= before:
            continue
        # Losses are counted each second, and processes when they are sampled.
        for t_s, tick in run.ticks_between(before_s - 1.0, after_s + 1.0):
            if tick.lost >= FEWEST:
                return min(before_s, t_s - 1.0)
    return math.inf


def for_drift(run: Run) -> Run:
    """The run, with the longest undisturbed part of its hold as the hold."""
    if not run.disturbances or run.hold is None:
        return run
    since_s = max(run.hold.start_s, run.place.server_changed_s or 0.0)
    start_s, end_s = max(
        run.undisturbed_spans(since_s, run.stop_s), key=lambda span: span[1] - span[0]
    )
    phases = [phase for phase in run.phases if phase.name in ("baseline", "ramp")]
    phases += [Phase("hold", start_s, end_s), Phase("drain", end_s, end_s)]
    return msgspec.structs.replace(run.within((-math.inf, end_s)), phases=phases)


def without_counters(run: Run) -> Run:
    """The run without the server's counters, if it has a gap."""
    if not run.gaps:
        return run
    return drop_counters(run)


def drop_counters(run: Run) -> Run:
    """The run without the server's counters."""
    samples = []
    for sample in run.samples:
        values = {name: value for name, value in sample.values.items() if name not in _COUNTERS}
        if values:
            samples.append(Sample(sample.t_s, values))
    return msgspec.structs.replace(run, samples=samples)
