"""Whether the last connections cost more memory, or less, than all of them on average.

One more connection costs what the last ones did. A line through all of them is their mean, and
takes what is no line for slow noise. So there are two estimates of the slope at its end:

- A parabola under the same kinds of noise as the line shows a cost that rises or falls all the
  time, such as a table that each connection has of all others.
- A line through the last quarter of the connections alone shows a cost that changed on the way,
  such as a cache that was filled before. Its noise is that of its own steps from sample to sample,
  taken as a random walk, which is too large for white noise and never too small for slow one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import FEWEST, PART
from asyncli.analysis.regression import CONFIDENCE, FittedLine, Point, parabola


class Bend(msgspec.Struct, frozen=True):
    """What the last connections cost (bytes each), half of its 95 % interval, and the ``mean`` of
    all.
    """

    last_ones: float
    half: float
    mean: float

    @property
    def rises(self) -> bool:
        return self.last_ones > self.mean


class Sampled(NamedTuple):
    """An instant (s), the connections held then, and the memory (bytes)."""

    t_s: float
    n: float
    value: float


def bends(
    points: Sequence[Point], samples: Sequence[Sampled], line: FittedLine, known_to: float
) -> list[Bend]:
    """The estimates of the slope at the end of ``line`` that noise does not explain, and that
    change a decision.

    ``points``: those of the line. ``samples``: of the ramp, in the order of time. ``known_to``: the
    resolution of the memory (bytes).
    """
    known = []
    curve = parabola(points)
    if curve is not None and abs(curve.difference) > curve.half_of_difference:
        known.append(Bend(curve.slope_at_most, curve.half, line.slope))
    at_last = last_quarter(samples, known_to)
    if at_last is not None and abs(at_last.slope - line.slope) > at_last.half:
        known.append(Bend(at_last.slope, at_last.half, line.slope))
    return [bend for bend in known if _changes_a_decision(bend, line)]


def _changes_a_decision(bend: Bend, line: FittedLine) -> bool:
    is_hidden = line.slope <= line.half and bend.last_ones <= bend.half
    return not is_hidden and abs(bend.last_ones - line.slope) > PART * abs(line.slope)


class _Slope(NamedTuple):
    slope: float
    half: float


def last_quarter(samples: Sequence[Sampled], known_to: float) -> _Slope | None:
    """The slope of the last quarter of the connections, by least squares; None of fewer than five
    samples.

    The interval is that of a random walk with the steps that these samples have about the slope,
    and no narrower than the resolution ``known_to`` allows.
    """
    if not samples:
        return None
    least = min(sample.n for sample in samples)
    most = max(sample.n for sample in samples)
    begin = most - (most - least) / 4
    last = [sample for sample in samples if sample.n >= begin]
    spread = most - min(sample.n for sample in last)
    lasted_s = last[-1].t_s - last[0].t_s
    if len(last) < FEWEST or spread <= 0 or lasted_s <= 0:
        return None
    slope, _ = statistics.linear_regression(
        [sample.n for sample in last], [sample.value for sample in last]
    )
    squares = 0.0
    for before, after in itertools.pairwise(last):
        seconds = after.t_s - before.t_s
        step = after.value - before.value - slope * (after.n - before.n)
        if seconds > 0:
            squares += step * step / seconds
    # One step less than samples, and the slope.
    freedom = len(last) - 2
    of_a_walk = math.sqrt(squares / freedom * lasted_s)
    half = max(_students_t(freedom) * of_a_walk, known_to) / spread
    return _Slope(slope, half) if math.isfinite(slope) and math.isfinite(half) else None


def _students_t(freedom: int) -> float:
    from asyncli.analysis.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
