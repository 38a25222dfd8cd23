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
    of_it: tuple[str, ...] = ("server.", "runtime.")
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
    processes of the server ended with their connections, or until new ones joined them; and the
    samples after the drain.
    """
    run = of_one_server(run)
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


def _ended_s(run: Run) -> float:
    """When processes of the server first ended with connections, as by a crash or a reload: its
    memory is then no longer that of those we hold. Infinite if never.
    """
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
