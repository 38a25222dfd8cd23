"""Statistics of ages, idle times and request numbers of lost connections."""

from __future__ import annotations

import math

from asyncli.analysis.constants import FEWEST
from asyncli.core.histogram import Histogram, bounds

# A worker's share by the kernel's hash is binomial: one in 370 is farther off.
DEVIATIONS = 3.0
# Width of a timer's mode (s): whole seconds, or a share of its value by histogram buckets (1/64)
# and a busy server.
_TIMER_S, _TIMER_SHARE = 1.0, 0.04
# A mode has this share of all, and well more than its neighbours, or nearly all.
_LEAST_SHARE, _TIMES_BESIDE, _MOST = 0.2, 2.0, 0.8
# Evidence exceeds what random moments show by this much, and beyond chance (tests/analysis checks
# random moments).
LEAST_SURPRISE, _NO_ACCIDENT = 0.3, 1e-4


def within(histogram: Histogram, low: float, high: float) -> int:
    """Records in ``[low, high]``, in whole buckets (1/64 of the value wide)."""
    if not histogram.counts or histogram.greatest < low or histogram.least > high:
        return 0
    if low <= histogram.least and histogram.greatest <= high:
        return histogram.count
    return sum(
        count for key, count in histogram.counts.items() if _touches(histogram, key, low, high)
    )


def without(histogram: Histogram, low: float, high: float) -> Histogram:
    kept = {
        key: count
        for key, count in histogram.counts.items()
        if not _touches(histogram, key, low, high)
    }
    if not kept:
        return Histogram()
    least, greatest = bounds(min(kept))[0], bounds(max(kept))[1]
    return Histogram(kept, max(least, histogram.least), min(greatest, histogram.greatest))


def _touches(histogram: Histogram, key: int, low: float, high: float) -> bool:
    first, last = bounds(key)
    return max(first, histogram.least) <= high and min(last, histogram.greatest) >= low


def mode(
    histogram: Histogram, width: float | None = None, least: float = _LEAST_SHARE
) -> tuple[float, float] | None:
    """The heaviest range as narrow as a timer's (or ``width``); None below the share ``least``, or
    if it does not stand out.
    """
    rows = [(*bounds(key), count) for key, count in histogram.items()]
    best: tuple[float, float] | None = None
    most = start = inside = 0
    for low, high, count in rows:
        inside += count
        while low - rows[start][0] > (
            max(_TIMER_S, _TIMER_SHARE * rows[start][0]) if width is None else width
        ):
            inside -= rows[start][2]
            start += 1
        if inside > most:
            most = inside
            best = (
                float(max(rows[start][0], histogram.least)),
                float(min(high, histogram.greatest)),
            )
    if best is None or most < max(FEWEST, least * histogram.count):
        return None
    return best if stands_out(histogram, *best) else None


def stands_out(histogram: Histogram, low: float, high: float) -> bool:
    """Whether well more records are in the range than beside it, or nearly all."""
    inside, width = within(histogram, low, high), high - low + 1
    beside = within(histogram, low - width, low - 1) + within(histogram, high + 1, high + width)
    return inside > 0 and (
        inside >= _MOST * histogram.count or inside >= _TIMES_BESIDE * beside + FEWEST
    )


def timer_window(low_s: float, high_s: float) -> tuple[float, float]:
    """The recorded ages or idle times (s) of ends by a timer of ``low_s`` to ``high_s``: a server's
    clock ticks early, and a busy server closes late.
    """
    return math.floor(low_s) - 1.0, math.ceil(high_s) + max(_TIMER_S, _TIMER_SHARE * high_s)


def chance_idle(gap_s: float, low: float, high: float) -> float:
    """The chance that a connection at a random moment has been idle for ``[low, high]`` whole
    seconds.

    Gaps are uniform in [1, gap], and a random moment hits long ones more often: the density of x is
    P(gap > x) / mean gap.
    """

    def below(x: float) -> float:
        x = min(max(x, 0.0), gap_s)
        if x <= 1.0 or gap_s <= 1.0:
            return x
        return 1.0 + ((gap_s - 1.0) ** 2 - (gap_s - x) ** 2) / (2.0 * (gap_s - 1.0))

    return (below(high + 1.0) - below(low)) / max(below(gap_s), 1e-9)


def surprises(
    gap_s: float, idle_s: Histogram, low: float, high: float, *, configured: bool = False
) -> bool:
    """Whether idle times in ``[low, high]`` exceed those at random moments by a margin, and beyond
    chance unless the time is ``configured``. Never for 0 s, which heartbeats cause.
    """
    if high < 1 or not idle_s:
        return False
    low, high = max(0.0, low, float(idle_s.least)), min(high, float(idle_s.greatest))
    share, chance = within(idle_s, low, high) / idle_s.count, chance_idle(gap_s, low, high)
    return share - chance >= LEAST_SURPRISE and (
        configured or accident(share, chance, idle_s.count) < _NO_ACCIDENT
    )


def accident(share: float, chance: float, count: int) -> float:
    """An upper bound of the probability that ``share`` or more of ``count`` fall where each falls
    by ``chance`` (Chernoff).
    """
    if share <= chance:
        return 1.0
    if chance <= 0.0:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return math.exp(-count * (share * math.log(share / chance) + rest))


def idle_edge(gap_s: float, idle_s: Histogram, waited_s: float = 0.0) -> float | None:
    """The idle time (s) from which on connections end at their heartbeat, or None.

    A random moment falls into a gap of at least x with probability (gap^2 - x^2)/(gap^2 - 1) (see
    :func:`chance_idle`). ``waited_s`` of the recorded idle time came after the heartbeat.
    """
    if gap_s <= 1.0 or idle_s.count < FEWEST:
        return None
    # 2 % may have another cause.
    for strays in (0.0, 0.02 * idle_s.count):
        low, before, upto = 0.0, 0, 0
        for key, many in idle_s.items():
            low, before, upto = float(max(bounds(key)[0], idle_s.least)), upto, upto + many
            if upto > strays:
                break
        edge = low - waited_s
        chance = (gap_s**2 - edge**2) / (gap_s**2 - 1.0)
        if (
            edge >= 1.0
            and accident(1.0 - before / idle_s.count, chance, idle_s.count) < _NO_ACCIDENT
        ):
            return edge
    return None


def one_of(workers: int, count: int, held: float) -> bool:
    """Whether ``count`` may be one worker's share of ``held``."""
    mean = held / workers
    return abs(count - mean) <= DEVIATIONS * math.sqrt(max(mean, 1.0))
