"""Looking things up in a run's records: phases by name, one metric over time, connections held over time."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from asyncli.records import Phase, PhaseName, Sample, Tick
from asyncli.samples import Samples

Ticks = Sequence[tuple[float, Tick]]


class Series(msgspec.Struct):
    """One number over time: instants on the run's clock (s), rising, and the value at each."""

    t_s: list[float] = msgspec.field(default_factory=list)
    values: list[float] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t_s)

    def rows(self) -> Iterator[tuple[float, float]]:
        """Each instant with its value."""
        return zip(self.t_s, self.values, strict=True)

    def between(self, start_s: float, end_s: float) -> Series:
        """What lies in ``[start_s, end_s]``."""
        low, high = bisect.bisect_left(self.t_s, start_s), bisect.bisect_right(self.t_s, end_s)
        return Series(self.t_s[low:high], self.values[low:high])

    def last(self, until_s: float = math.inf, since_s: float = -math.inf) -> float | None:
        """The latest value in ``[since_s, until_s]``; None without one."""
        part = self.between(since_s, until_s)
        return part.values[-1] if part.values else None

    def first(self, since_s: float = -math.inf) -> float | None:
        """The earliest value from ``since_s`` on; None without one."""
        at = bisect.bisect_left(self.t_s, since_s)
        return self.values[at] if at < len(self.t_s) else None

    def at(self, t_s: float) -> float | None:
        """The value at ``t_s``, on the line between its neighbours; the end's value beyond an end; None when empty."""
        if not self.t_s:
            return None
        after = bisect.bisect_left(self.t_s, t_s)
        if after == 0:
            return self.values[0]
        if after == len(self.t_s):
            return self.values[-1]
        t0, t1 = self.t_s[after - 1], self.t_s[after]
        share = (t_s - t0) / (t1 - t0)
        return self.values[after - 1] * (1 - share) + self.values[after] * share

    def near(self, t_s: float, gap_s: float) -> float | None:
        """As :meth:`at`, but None where no value lies within ``gap_s`` on either side; one at that very instant is enough."""
        after = bisect.bisect_left(self.t_s, t_s)
        if after == len(self.t_s):
            return None
        t1 = self.t_s[after]
        if t1 == t_s:
            return self.values[after]
        if after == 0:
            return None
        t0 = self.t_s[after - 1]
        if t1 - t_s > gap_s or t_s - t0 > gap_s:
            return None
        share = (t_s - t0) / (t1 - t0)
        return self.values[after - 1] * (1 - share) + self.values[after] * share


def began_anew(counter: Sequence[float]) -> list[int]:
    """The places at which a counter is less than before: who counts was started anew."""
    return [place for place, (before, after) in enumerate(itertools.pairwise(counter), 1) if after < before]


def series(samples: Iterable[Sample], name: str) -> Series:
    """The metric ``name`` over time, from the samples that hold it."""
    if isinstance(samples, Samples):
        return Series(*samples.column(name))
    found = Series()
    for sample in samples:
        value = sample.values.get(name)
        if value is not None:
            found.t_s.append(sample.t_s)
            found.values.append(value)
    return found


def within(samples: Sequence[Sample], *spans: tuple[float, float]) -> Sequence[Sample]:
    """The samples taken in any of ``spans`` (from, to; s, both ends included; in order, apart from each other)."""
    if isinstance(samples, Samples):
        return samples.within(*spans)
    return [sample for sample in samples if any(start_s <= sample.t_s <= end_s for start_s, end_s in spans)]


def instants(samples: Sequence[Sample], *families: str) -> list[float]:
    """When (s) any metric was read whose name begins with one of ``families``."""
    if isinstance(samples, Samples):
        return samples.instants(name for name in samples.metrics if name.startswith(families))
    return [sample.t_s for sample in samples if any(name.startswith(families) for name in sample.values)]


def held_over_time(ticks: Ticks, phases: Sequence[Phase]) -> Series:
    """Connections the client holds over time: 0 until the ramp begins, then the gauge of each tick.

    When the drain begins, as many as were counted then: the gauge of that second speaks of its end, when they are gone.
    """
    ramp = phase(phases, "ramp")
    start = ramp.start_s if ramp is not None else (ticks[0][0] - 1.0 if ticks else 0.0)
    drain = phase(phases, "drain")
    at_drain = 0 if drain is None else max((tick.held_at_drain for t_s, tick in ticks if t_s > drain.start_s), default=0)
    held = Series([start], [0.0])
    for t_s, tick in ticks:
        if drain is not None and at_drain and held.t_s[-1] < drain.start_s < t_s:
            held.t_s.append(drain.start_s)
            held.values.append(float(at_drain))
        if t_s > held.t_s[-1]:
            held.t_s.append(t_s)
            held.values.append(float(tick.held))
    return held


def phase(phases: Iterable[Phase], name: PhaseName) -> Phase | None:
    """The phase called ``name``, or None where the run never came to it."""
    return next((one for one in phases if one.name == name), None)


def end_of_run(phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample]) -> float:
    """The last instant (s) that the records speak of."""
    instants = [one.end_s if one.end_s is not None else one.start_s for one in phases]
    instants += [t_s for t_s, _ in ticks[-1:]] + [sample.t_s for sample in samples[-1:]]
    return max(instants, default=0.0)


def end_of_hold(phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample]) -> float:
    """When the drain began (s); for a run that never came so far, the last instant known."""
    drain = phase(phases, "drain")
    return drain.start_s if drain is not None else end_of_run(phases, ticks, samples)


def first_connect(phases: Sequence[Phase], ticks: Ticks) -> float:
    """When the ramp began (s): before it nothing was connected. Infinite for a run that never came so far."""
    ramp = phase(phases, "ramp")
    return ramp.start_s if ramp is not None else (ticks[0][0] - 1.0 if ticks else math.inf)
