"""How one run's clock lies to another's: by the host's own clock where both ran on one, by what both saw, or by the wall clock.

Pure. A shift is what is added to an instant on a run's clock to have it on the reference's, in seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.analysis.series import Series, began_anew, series
from asyncli.records import Environment, Sample

# A step of a counter in which this many were counted tells an instant in it to a tenth; over a longer pause no line is drawn.
_LEAST_STEP, _LONGEST_STEP_S = 10, 3.0
_FEWEST_POINTS = 8
# Two samplings of one counter differ by parts of a second; those of two counters by anything.
_WIDEST_SPREAD_S = 1.0
# From the mean absolute deviation to the standard deviation of a normal distribution, and from that of single values to that of
# their median (Huber 1981, Robust Statistics).
_TO_SIGMA, _OF_A_MEDIAN = 1.4826, 1.2533
# Neighbouring readings err alike: so many count as one. An interval of 95 % is two deviations wide on either side.
_ALIKE, _DEVIATIONS = 4, 2.0


class Clock(msgspec.Struct, frozen=True):
    """The zero of a run's clock: Unix time, and the instant of the monotonic clock ``scale`` (None: not recorded) of a boot.

    ``error_s``: how far from it an agent's samples may lie. ``resumed``: it went on by the wall clock after an interruption.
    """

    wall_s: float
    monotonic_s: float | None = None
    boot: str | None = None
    scale: str | None = None
    error_s: float = 0.0
    resumed: bool = False


class Shift(msgspec.Struct, frozen=True):
    """``half_s``: half of its 95 % interval; None where nothing tells how far off it is. ``how``: what it is by, in words."""

    shift_s: float
    half_s: float | None
    how: str


def clock_of(environment: Environment, started_wall_s: float) -> Clock:
    """The clock of a run as its file tells of it; of one that is older than that record, the wall clock alone."""
    told = environment.get("clock")
    if not isinstance(told, dict) or not isinstance(told.get("wall_s"), int | float):
        return Clock(started_wall_s)
    wall_s, monotonic_s, boot = float(told["wall_s"]), told.get("monotonic_s"), told.get("boot_id")
    agent = environment.get("agent")
    error_s = agent.get("clock_error_s") if isinstance(agent, dict) else None
    clock = Clock(
        wall_s, boot=boot if isinstance(boot, str) else None,
        error_s=float(error_s) if isinstance(error_s, int | float) else 0.0, resumed=bool(environment.get("resumed")),
    )  # fmt: skip
    if clock.boot is None or not isinstance(monotonic_s, int | float):
        return clock
    return msgspec.structs.replace(clock, monotonic_s=float(monotonic_s), scale=f"{boot} {told.get('time_ns')}")


def shift_between(first: Clock, second: Clock, seen: tuple[Sequence[Sample], Sequence[Sample]]) -> Shift:
    """What is to be added to the second's instants; ``seen``: the samples of both."""
    by_wall_s = second.wall_s - first.wall_s
    # Whatever befell the host in between, a reboot as well: a step of its wall clock is a step of the run's.
    resumed = first.resumed or second.resumed
    if first.scale is not None and first.scale == second.scale:
        assert first.monotonic_s is not None
        assert second.monotonic_s is not None
        after = ", and by its wall clock after a --resume" if resumed else ""
        return Shift(second.monotonic_s - first.monotonic_s, 0.0, f"one host's clock{after}")
    if first.boot is not None and first.boot == second.boot:
        return Shift(by_wall_s, 0.0, "one host's wall clock")
    found = seen_by_both(*seen)
    if found is None:
        return Shift(by_wall_s, None, "the wall clocks alone, which nothing here checks")
    assert found.half_s is not None
    found = msgspec.structs.replace(found, half_s=found.half_s + first.error_s + second.error_s)
    ahead_s = by_wall_s - found.shift_s
    wall = "agree within that" if abs(ahead_s) <= found.half_s else f"are {abs(ahead_s):,.3f} s apart"  # type: ignore[operator]
    since = ", and after a --resume they alone tell the time of the run that was resumed" if resumed else ""
    return msgspec.structs.replace(found, how=f"{found.how}; the wall clocks {wall}{since}")


def shifts(clocks: Sequence[Clock], samples: Sequence[Sequence[Sample]]) -> list[Shift]:
    """Of each run to the first: by the surest way, over another run where that is surer."""
    found: dict[int, Shift] = {0: Shift(0.0, 0.0, "the reference")}
    edges = {
        (a, b): shift_between(clocks[a], clocks[b], (samples[a], samples[b]))
        for a in range(len(clocks))
        for b in range(len(clocks))
        if a < b
    }
    while len(found) < len(clocks):
        ways = []
        for (a, b), edge in edges.items():
            for known, new, sign in ((a, b, 1.0), (b, a, -1.0)):
                if known in found and new not in found:
                    ways.append((_sum(found[known].half_s, edge.half_s), known, new, edge.shift_s * sign, edge.how))
        half, known, new, step_s, how = min(ways, key=lambda way: (math.inf if way[0] is None else way[0], way[1], way[2]))
        found[new] = Shift(found[known].shift_s + step_s, half, how)
    return [found[number] for number in range(len(clocks))]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else math.hypot(one, other)


def seen_by_both(first: Sequence[Sample], second: Sequence[Sample]) -> Shift | None:
    """The shift at which both read the same of the same counters of one server; None where they tell nothing of each other.

    Each reading of the second is laid on the line between the two readings of the first that enclose it; the median of what that
    gives, with what it moved by from the first half to the second (clocks drift).
    """
    took_s = sum(_median(series(samples, "probe.status").values) for samples in (first, second))
    found = []
    for name, words in (
        ("status.requests", "requests"),
        ("status.accepts", "accepts"),
        ("status.active", "active connections as they rose"),
    ):
        told = _by_counter(*(_rising(series(samples, name), name) for samples in (first, second)))
        if told is not None:
            shift_s, half_s = told
            found.append(Shift(shift_s, half_s + took_s, f"the server's {words}, which both read"))
    if not found:
        return None
    best = min(found, key=lambda one: one.half_s or 0.0)
    # Two counters of one server tell of one shift; of two servers each may seem to fit by itself.
    others = (abs(one.shift_s - best.shift_s) <= _WIDEST_SPREAD_S + (one.half_s or 0.0) + (best.half_s or 0.0) for one in found)
    return best if all(others) else None


def _rising(counter: Series, name: str) -> Series:
    """The stretch in which it only rises: since its last restart; of a count that falls again, up to its highest."""
    import numpy as np

    if name == "status.active" and len(counter):
        counter = counter.between(-math.inf, counter.t_s[int(np.argmax(counter.values))])
        return Series(counter.t_s, np.maximum.accumulate(counter.values).tolist())
    since = max(began_anew(counter.values), default=0)
    return Series(counter.t_s[since:], counter.values[since:])


def _by_counter(first: Series, second: Series) -> tuple[float, float] | None:
    """The shift and half of its interval by one counter."""
    import numpy as np

    if min(len(first), len(second)) < _FEWEST_POINTS:
        return None
    t_s, counts = np.array(first.t_s), np.array(first.values)
    at = np.searchsorted(counts, second.values, "right") - 1
    inside = (at >= 0) & (at < len(counts) - 1)
    at = at[inside]
    steps, pauses_s = counts[at + 1] - counts[at], t_s[at + 1] - t_s[at]
    tell = (steps >= _LEAST_STEP) & (pauses_s <= _LONGEST_STEP_S)
    shares = (np.array(second.values)[inside] - counts[at]) / np.maximum(steps, 1.0)
    every: Any = (t_s[at] + shares * pauses_s - np.array(second.t_s)[inside])[tell]
    if len(every) < _FEWEST_POINTS:
        return None
    middle = float(np.median(every))
    spread = _TO_SIGMA * float(np.median(np.abs(every - middle)))
    if spread > _WIDEST_SPREAD_S:
        return None
    early, late = float(np.median(every[: len(every) // 2])), float(np.median(every[len(every) // 2 :]))
    error = _OF_A_MEDIAN * spread / math.sqrt(max(1.0, len(every) / _ALIKE))
    return middle, _DEVIATIONS * error + abs(late - early) / 2


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
