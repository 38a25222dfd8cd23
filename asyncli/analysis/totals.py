"""Folds ticks into totals: of the whole run, and of each phase."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.analysis.series import Ticks
from asyncli.records import Phase, PhaseName, Tick

_NOTHING = Tick()


class Totals(msgspec.Struct):
    """Counts and histograms of a run. The ticks in it are sums: their counts and histograms hold, not their gauges."""

    whole: Tick = msgspec.field(default_factory=Tick)
    by_phase: dict[PhaseName, Tick] = msgspec.field(default_factory=dict)
    #: Held by the client when the drain began; in a run without a drain, when last heard of.
    held: int = 0
    #: The most that were held at the end of any second.
    peak: int = 0
    #: The most connects that were pending at the end of any second of the ramp, per worker.
    pending_peak_per_worker: float = 0.0
    #: CPU time (s, user and system) of the workers between the first and the last tick of each phase, and that stretch.
    cpu_s: dict[PhaseName, tuple[float, float]] = msgspec.field(default_factory=dict)

    def during(self, *names: PhaseName) -> Tick:
        """The sum over these phases."""
        total = Tick()
        for name in names:
            total.merge_counts(self.by_phase.get(name, _NOTHING))
        return total


def fold(ticks: Ticks, phases: Sequence[Phase]) -> Totals:
    """The totals of ``ticks``. A tick belongs to the phase in which the middle of its second lies."""
    totals = Totals()
    spans: dict[PhaseName, tuple[tuple[float, Tick], tuple[float, Tick]]] = {}
    at_drain = 0
    for t_s, tick in ticks:
        name = _phase_at(phases, t_s - 0.5)
        totals.by_phase.setdefault(name, Tick()).merge_counts(tick)
        first, _ = spans.get(name, ((t_s, tick), None))
        spans[name] = (first, (t_s, tick))
        totals.peak = max(totals.peak, tick.held, tick.held_at_drain)
        # The sum over workers that have begun the drain: whole once all have, and smaller again if one is lost later.
        at_drain = max(at_drain, tick.held_at_drain)
        if name == "ramp" and tick.workers:
            totals.pending_peak_per_worker = max(totals.pending_peak_per_worker, tick.connecting / tick.workers)
    for name, part in totals.by_phase.items():
        totals.whole.merge_counts(part)
        (start_s, first_tick), (end_s, last_tick) = spans[name]
        if end_s > start_s:
            # A worker that was lost takes its time out of the sum; what remains is not below zero work.
            totals.cpu_s[name] = (max(0.0, _cpu(last_tick) - _cpu(first_tick)), end_s - start_s)
    if ticks:
        totals.held = at_drain or ticks[-1][1].held
    return totals


def _cpu(tick: Tick) -> float:
    return tick.cpu_user_s + tick.cpu_system_s


def _phase_at(phases: Sequence[Phase], t_s: float) -> PhaseName:
    """The phase that began last before ``t_s``; ticks from before any phase was recorded belong to the ramp."""
    name: PhaseName = "ramp"
    for one in phases:
        if one.start_s <= t_s and one.name != "baseline":
            name = one.name
    return name
