"""Statistics of ages, idle times and request numbers of lost connections."""

from __future__ import annotations

import math

from asyncli.analysis.constants import FEWEST
from asyncli.analysis.saturation import MOST_BEAT_LATENESS_S
from asyncli.core.histogram import Histogram, bounds
from asyncli.model.records import Deaths

# A worker's share by the kernel's hash is binomial: one in 370 is farther off.
DEVIATIONS = 3.0
# Width of a timer's mode (s): whole seconds, or a share of its value by histogram buckets (1/64)
# and a busy server.
_TIMER_S = 1.0
_TIMER_SHARE = 0.04
# A mode has this share of all, and well more than its neighbours, or nearly all.
_LEAST_SHARE = 0.2
_TIMES_BESIDE = 2.0
_MOST = 0.8
# Evidence exceeds what random moments show by this much, and beyond chance (tests/analysis checks
# random moments).
LEAST_SURPRISE = 0.3
_NO_ACCIDENT = 1e-4


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
    least, _ = bounds(min(kept))
    _, greatest = bounds(max(kept))
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
    heaviest = 0
    start = 0
    inside = 0
    for low, high, count in rows:
        inside += count
        while low - rows[start][0] > _width_from(rows[start][0], width):
            inside -= rows[start][2]
            start += 1
        if inside > heaviest:
            heaviest = inside
            from_value = float(max(rows[start][0], histogram.least))
            to_value = float(min(high, histogram.greatest))
            best = (from_value, to_value)
    if best is None or heaviest < max(FEWEST, least * histogram.count):
        return None
    if not stands_out(histogram, *best):
        return None
    return best


def _width_from(low: float, width: float | None) -> float:
    """``width``, or by default that of a timer's mode that begins at ``low``."""
    if width is not None:
        return width
    return max(_TIMER_S, _TIMER_SHARE * low)


def stands_out(histogram: Histogram, low: float, high: float) -> bool:
    """Whether well more records are in the range than beside it, or nearly all."""
    inside = within(histogram, low, high)
    if not inside:
        return False
    if inside >= _MOST * histogram.count:
        return True
    width = high - low + 1
    beside = within(histogram, low - width, low - 1) + within(histogram, high + 1, high + width)
    return inside >= _TIMES_BESIDE * beside + FEWEST


def timer_window(low_s: float, high_s: float) -> tuple[float, float]:
    """The recorded ages or idle times (whole s) of ends by a timer of ``low_s`` to ``high_s``: it
    looks early by some milliseconds, and a busy server closes late.
    """
    high = math.ceil(high_s) + max(_TIMER_S, _TIMER_SHARE * high_s)
    return float(math.floor(low_s - MOST_BEAT_LATENESS_S)), high


def idle_window(dead: Deaths, timer_s: float) -> tuple[float, float]:
    """The recorded idle times (whole s) of ends by an idle timeout of ``timer_s``.

    An end some milliseconds early is recorded a second below it, as are ends up to a second
    earlier, which are no ends by this timer. So that second counts only if milliseconds, where
    they are recorded, say that most of its ends came just before the timer's time.
    """
    low, high = timer_window(timer_s, timer_s)
    begun_ms = 1e3 * low
    earliest_ms = 1e3 * (timer_s - MOST_BEAT_LATENESS_S)
    too_early = 0
    just_before = 0
    for key, count in dead.idle_ms.items():
        least, greatest = dead.idle_ms.within(key)
        if greatest < begun_ms or least >= 1e3 * timer_s:
            continue
        if greatest < earliest_ms:
            too_early += count
        else:
            just_before += count
    if too_early > just_before:
        low = float(math.floor(timer_s))
    return low, high


def has_spread_idle_times(dead: Deaths, low_s: float, high_s: float) -> bool:
    """Whether the middle 80 % of the idle times recorded as ``low_s`` to ``high_s`` (whole s) are
    farther apart than a timer's; False where milliseconds are not recorded.
    """
    inside = {}
    for key, count in dead.idle_ms.counts.items():
        least, _ = dead.idle_ms.within(key)
        if 1e3 * low_s <= least < 1e3 * (high_s + 1):
            inside[key] = count
    if not inside:
        return False
    times_ms = Histogram(inside, bounds(min(inside))[0], bounds(max(inside))[1])
    first_ms, last_ms = times_ms.quantiles((0.1, 0.9))
    assert first_ms is not None
    assert last_ms is not None
    return last_ms - first_ms > max(1e3 * MOST_BEAT_LATENESS_S, _TIMER_SHARE * first_ms)


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
    low = max(0.0, low, float(idle_s.least))
    high = min(high, float(idle_s.greatest))
    share = within(idle_s, low, high) / idle_s.count
    chance = chance_idle(gap_s, low, high)
    if configured:
        return share - chance >= LEAST_SURPRISE
    return is_surprising(share, chance, idle_s.count)


def is_surprising(share: float, chance: float, count: int) -> bool:
    """Whether ``share`` of ``count`` exceeds ``chance`` by a margin, and by no accident."""
    if share - chance < LEAST_SURPRISE:
        return False
    return accident(share, chance, count) < _NO_ACCIDENT


def accident(share: float, chance: float, count: int) -> float:
    """An upper bound of the probability that ``share`` or more of ``count`` fall where each falls
    by ``chance`` (Chernoff).
    """
    if share <= chance:
        return 1.0
    if chance <= 0.0:
        return 0.0
    information = share * math.log(share / chance)
    if share < 1:
        information += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-count * information)


def idle_edge(gap_s: float, idle_s: Histogram, waited_s: float = 0.0) -> float | None:
    """The idle time (s) from which on connections end at their heartbeat, or None.

    A random moment falls into a gap of at least x with probability (gap^2 - x^2)/(gap^2 - 1) (see
    :func:`chance_idle`). ``waited_s`` of the recorded idle time came after the heartbeat.
    """
    if gap_s <= 1.0 or idle_s.count < FEWEST:
        return None
    # 2 % may have another cause.
    for strays in (0.0, 0.02 * idle_s.count):
        low, before = _after_strays(idle_s, strays)
        edge = low - waited_s
        chance = (gap_s**2 - edge**2) / (gap_s**2 - 1.0)
        share = 1.0 - before / idle_s.count
        if edge >= 1.0 and accident(share, chance, idle_s.count) < _NO_ACCIDENT:
            return edge
    return None


def _after_strays(histogram: Histogram, strays: float) -> tuple[float, int]:
    """Where the bucket begins with which there are more than ``strays`` records, and how many are
    below it.
    """
    low = 0.0
    below = 0
    upto = 0
    for key, count in histogram.items():
        low = float(max(bounds(key)[0], histogram.least))
        below = upto
        upto += count
        if upto > strays:
            break
    return low, below


def one_of(workers: int, count: int, held: float) -> bool:
    """Whether ``count`` may be one worker's share of ``held``."""
    mean = held / workers
    return abs(count - mean) <= DEVIATIONS * math.sqrt(max(mean, 1.0))
