"""Whether the last connections cost more memory, or less, than all of them on average.

One more connection costs what the last ones did. A line through all of them is their mean, and
takes what is no line for slow noise. So there are two estimates of the slope at its end:

- A parabola under the same kinds of noise as the line shows a cost that rises or falls all the
  time, such as a table that each connection has of all others.
- Two lines that meet show a cost that changed on the way, such as a cache that was filled before,
  however late. They are fitted to samples, which are closer than the points of the line. Where
  they meet is looked for at many places, so their slopes must differ by more than those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.constants import PART
from asyncli.analysis.regression import FittedLine, Point, kink, parabola


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
    change a decision; first the one that is the farthest from the line by its own noise.

    ``points``: those of the line. ``samples``: of the ramp, in the order of time. ``known_to``: the
    resolution of the memory (bytes).
    """
    known = []
    curve = parabola(points)
    if curve is not None and abs(curve.difference) > curve.half_of_difference:
        known.append(Bend(curve.slope_at_most, curve.half, line.slope))
    since_kink = _since_kink(samples, line, known_to, is_bent=bool(known))
    if since_kink is not None:
        known.append(since_kink)
    deciding = [bend for bend in known if _changes_a_decision(bend, line)]
    return sorted(deciding, key=lambda bend: bend.half / abs(bend.last_ones - bend.mean))


def _changes_a_decision(bend: Bend, line: FittedLine) -> bool:
    is_hidden = line.slope <= line.half and bend.last_ones <= bend.half
    return not is_hidden and abs(bend.last_ones - line.slope) > PART * abs(line.slope)


def _since_kink(
    samples: Sequence[Sampled], line: FittedLine, known_to: float, *, is_bent: bool
) -> Bend | None:
    """The slope of the last connections where it changed at a number of connections; None where
    noise or the resolution ``known_to`` explains that, or where it is about the line's. Where it
    ``is_bent`` for certain, this is another estimate of its end.
    """
    known = kink([Point(sample.t_s, sample.n, sample.value) for sample in samples])
    if known is None:
        return None
    bend = Bend(known.slope_at_most, max(known.half, known_to / known.stretch), line.slope)
    differs = abs(known.difference) > known.half_of_difference
    is_off = abs(bend.last_ones - bend.mean) > bend.half
    return bend if is_bent or (differs and is_off) else None
