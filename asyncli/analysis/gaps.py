"""The records of a run that was interrupted and resumed, without what no line may be drawn across."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.analysis.series import Ticks, end_of_hold, phase, within
from asyncli.analysis.sides import sides
from asyncli.metrics import HOST_USED_BYTES, STATUS_ACCEPTS, STATUS_HANDLED, STATUS_REQUESTS
from asyncli.records import SERVER_CHANGED, Environment, Gap, Phase, Sample, Span, left_out_s

# What the server has counted between our last record and our end nobody can compare.
_COUNTERS = (STATUS_ACCEPTS, STATUS_HANDLED, STATUS_REQUESTS)


Records = tuple[Sequence[Phase], Ticks, Sequence[Sample]]


def measured_s(gaps: Sequence[Span], start_s: float, end_s: float) -> float:
    """How much of a phase from ``start_s`` to ``end_s`` (s) was no interruption."""
    return max(0.0, end_s - start_s - left_out_s(gaps, start_s, end_s))


def within_gap(gap: Gap, t_s: float) -> bool:
    """Whether what was recorded at ``t_s`` is of the gap."""
    return gap.start_s < t_s <= (math.inf if gap.end_s is None else gap.end_s)


def outside(gaps: Sequence[Gap], phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample]) -> Records:
    """The records without those of the gaps."""
    if not gaps:
        return phases, ticks, samples
    return phases, *_only(ticks, samples, _between(gaps, -math.inf, math.inf))


def of_one_server(samples: Sequence[Sample], environment: Environment) -> Sequence[Sample]:
    """The samples without what was read of another server, before the one that the environment names answered in its place."""
    changed_s = _changed_s(environment)
    if changed_s is None:
        return samples
    of_it = ("server.", HOST_USED_BYTES) if sides(environment).server else ("server.",)
    return [
        Sample(one.t_s, {name: value for name, value in one.values.items() if not name.startswith(of_it)})
        if one.t_s <= changed_s
        else one
        for one in samples
    ]


def _changed_s(environment: Environment) -> float | None:
    changed_s = environment.get(SERVER_CHANGED)
    return float(changed_s) if isinstance(changed_s, int | float) else None


def for_cost(
    gaps: Sequence[Gap], phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample], environment: Environment
) -> Records:
    """What says what a connection costs: until the first gap after the ramp began, and what stayed after the drain.

    A server may have begun anew meanwhile, and what it had once touched it keeps.
    """
    samples = of_one_server(samples, environment)
    ramp, drain = phase(phases, "ramp"), phase(phases, "drain")
    since = ramp.start_s if ramp is not None else math.inf
    first = next((gap.start_s for gap in gaps if gap.start_s >= since), None)
    if first is None:
        return outside(gaps, phases, ticks, samples)
    spans = [span for span in _between(gaps, -math.inf, first) if span[0] < span[1]]
    if drain is not None:
        spans.append((drain.start_s, math.inf))
    return phases, *_only(ticks, samples, spans)


def for_drift(
    gaps: Sequence[Gap], phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample], environment: Environment
) -> Records:
    """The longest stretch of the hold without a gap, as if it were the hold; of the server that the environment names."""
    hold = phase(phases, "hold")
    if not gaps or hold is None:
        return phases, ticks, samples
    since_s = max(hold.start_s, _changed_s(environment) or 0.0)
    spans = _between(gaps, since_s, end_of_hold(phases, ticks, samples))
    start_s, end_s = max(spans, key=lambda span: span[1] - span[0])
    before = [one for one in phases if one.name in ("baseline", "ramp")]
    stretch = [*before, Phase("hold", start_s, end_s), Phase("drain", end_s, end_s)]
    return stretch, *_only(ticks, samples, [(-math.inf, end_s)])


def without_counters(gaps: Sequence[Gap], samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples without what the server has counted since its start, where there is a gap in it."""
    if not gaps:
        return samples
    kept = [Sample(one.t_s, {name: value for name, value in one.values.items() if name not in _COUNTERS}) for one in samples]
    return [one for one in kept if one.values]


def _between(gaps: Sequence[Gap], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """The stretches of [start, end] that are in no gap."""
    spans, at = [], start_s
    for gap in gaps:
        if gap.start_s > end_s:
            break
        if gap.start_s > at:
            spans.append((at, gap.start_s))
        at = max(at, math.inf if gap.end_s is None else math.nextafter(gap.end_s, math.inf))
    if at < end_s or not spans:
        spans.append((min(at, end_s), end_s))
    return spans


def _only(ticks: Ticks, samples: Sequence[Sample], spans: list[tuple[float, float]]) -> tuple[Ticks, Sequence[Sample]]:
    kept = [(t_s, tick) for t_s, tick in ticks if any(start <= t_s <= end for start, end in spans)]
    return kept, within(samples, *spans)
