"""The view of a run's records: phases, hold, connections held over time, and where it took place. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import msgspec

from asyncli.model.plan import Plan
from asyncli.model.records import Check, Environment, Finding, Gap, Phase, PhaseName, Sample, Tick
from asyncli.model.samples import Series, instants, metrics_of, series, within
from asyncli.model.topology import Place, Sides, place_of

Ticks = Sequence[tuple[float, Tick]]


class Hold(msgspec.Struct, frozen=True):
    """The hold of a run: start, end (s; the last record's instant for a run without a drain), and ticks."""

    start_s: float
    end_s: float
    #: Those with at least half of their second in the hold.
    ticks: Ticks

    @property
    def length_s(self) -> float:
        """Its duration."""
        return max(0.0, self.end_s - self.start_s)


class Run(msgspec.Struct, dict=True):
    """The records of a run. Times are seconds since its start, except ``started``.

    Computed properties are cached until a field is set.
    """

    id: str
    #: UTC, ISO 8601, to the second: ``2025-03-01T12:00:00Z``.
    started: str
    plan: Plan
    environment: Environment
    phases: list[Phase]
    #: The histograms of ticks from a file are decoded on access.
    ticks: list[tuple[float, Tick]]
    #: From a file: :class:`~asyncli.model.samples.Samples`, stored by metric.
    samples: Sequence[Sample]
    findings: list[Finding]
    checks: list[Check]
    #: The writer closed the file at the end of the run. False while the run lasts, and if it was killed.
    complete: bool
    #: Whether a process wrote the file when it was read; None if unknown: in the writer's process, looking would end its locks.
    written: bool | None = None
    #: Records that the writer had to drop because writing failed for too long.
    dropped: int = 0
    #: Where the run was interrupted and resumed, in order.
    gaps: list[Gap] = msgspec.field(default_factory=list)
    #: Unix time of the clock's zero.
    started_wall_s: float = 0.0

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self.__dict__.clear()

    def phase(self, name: PhaseName) -> Phase | None:
        """The phase called ``name``, or None if the run did not reach it."""
        return next((one for one in self.phases if one.name == name), None)

    @cached_property
    def first_connect_s(self) -> float:
        """When the ramp began: nothing was connected before. Infinite for a run that did not reach it."""
        ramp = self.phase("ramp")
        return ramp.start_s if ramp is not None else (self.ticks[0][0] - 1.0 if self.ticks else math.inf)

    @cached_property
    def stop_s(self) -> float:
        """When the drain began; for a run that did not reach it, ``end_s``."""
        drain = self.phase("drain")
        return drain.start_s if drain is not None else self.end_s

    @cached_property
    def end_s(self) -> float:
        """The last instant in the records."""
        ends = [one.end_s if one.end_s is not None else one.start_s for one in self.phases]
        ends += [t_s for t_s, _ in self.ticks[-1:]] + [sample.t_s for sample in self.samples[-1:]]
        return max(ends, default=0.0)

    @cached_property
    def hold(self) -> Hold | None:
        """The hold; None if the run did not reach it."""
        hold = self.phase("hold")
        if hold is None:
            return None
        ticks = [(t_s, tick) for t_s, tick in self.ticks if hold.start_s < t_s - 0.5 <= self.stop_s]
        return Hold(hold.start_s, self.stop_s, ticks)

    @cached_property
    def phases_of_ticks(self) -> list[PhaseName]:
        """The phase of each tick: the latest that had begun at the middle of its second.

        Ticks before the first recorded phase belong to the ramp; the baseline has no ticks.
        """
        begun = [one for one in self.phases if one.name != "baseline"]
        names: list[PhaseName] = ["ramp", *(one.name for one in begun)]
        starts = [one.start_s for one in begun]
        return [names[bisect_right(starts, t_s - 0.5)] for t_s, _ in self.ticks]

    def ticks_between(self, after_s: float, until_s: float) -> Ticks:
        """The ticks that end in ``(after_s, until_s]``."""
        first, last = (bisect_right(self.ticks, t_s, key=lambda row: row[0]) for t_s in (after_s, until_s))
        return self.ticks[first:last]

    def series(self, metric: str) -> Series:
        """``metric`` over time."""
        return series(self.samples, metric)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were ever read."""
        return metrics_of(self.samples)

    def instants(self, *families: str) -> list[float]:
        """When (s) any metric was read whose name begins with one of ``families``."""
        return instants(self.samples, *families)

    @cached_property
    def held(self) -> Series:
        """Connections held over time: 0 until the ramp begins, then the gauge of each tick.

        At the start of the drain it is the count taken then: the gauge of that second is of its end, when they are closed.
        """
        start, drain = self.first_connect_s, self.phase("drain")
        at_drain = 0 if drain is None else max((tick.held_at_drain for t_s, tick in self.ticks if t_s > drain.start_s), default=0)
        held = Series([start if math.isfinite(start) else 0.0], [0.0])
        for t_s, tick in self.ticks:
            if drain is not None and at_drain and held.t_s[-1] < drain.start_s < t_s:
                held.t_s.append(drain.start_s)
                held.values.append(float(at_drain))
            if t_s > held.t_s[-1]:
                held.t_s.append(t_s)
                held.values.append(float(tick.held))
        return held

    @property
    def place(self) -> Place:
        """The facts of the environment."""
        return place_of(self.environment)

    @property
    def sides(self) -> Sides:
        """What is on the sampled host."""
        return self.place.sides

    def of_ours(self, metric: str) -> str:
        """The name under which ``metric`` of asyncli's host, or of its network namespace, was sampled."""
        return self.place.of_ours(metric)

    def within(self, *spans: tuple[float, float]) -> Run:
        """The run with only the records in ``spans`` (start, end; s, both included; in order, not overlapping)."""
        ticks = [(t_s, tick) for t_s, tick in self.ticks if any(start <= t_s <= end for start, end in spans)]
        return msgspec.structs.replace(self, ticks=ticks, samples=within(self.samples, *spans))

    @property
    def outside_gaps(self) -> Run:
        """The run without the records in its gaps; itself if it has none."""
        return self._outside_gaps if self.gaps else self

    # Separate, since a cached reference to itself would be a cycle that only the garbage collector frees.
    @cached_property
    def _outside_gaps(self) -> Run:
        return self.within(*self.spans_outside_gaps(-math.inf, math.inf))

    def spans_outside_gaps(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """The parts of [start, end] outside gaps."""
        spans, at = [], start_s
        for gap in self.gaps:
            if gap.start_s > end_s:
                break
            if gap.start_s > at:
                spans.append((at, gap.start_s))
            at = max(at, math.inf if gap.end_s is None else math.nextafter(gap.end_s, math.inf))
        if at < end_s or not spans:
            spans.append((min(at, end_s), end_s))
        return spans
