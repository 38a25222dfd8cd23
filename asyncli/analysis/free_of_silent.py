"""When the server surely held no silent connection of any event of the plan: it had none beside
those that are held. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from asyncli.analysis.beside_held import is_told_at, others_of, silent_at
from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.model.records import Tick
from asyncli.model.run import TICK_S, Run
from asyncli.model.samples import Series


def most_apart(run: Run) -> float:
    """By how many connections two counts may differ."""
    return max(FEWEST, WORTH_TELLING * max(run.held.values))


def was_process_lost(tick: Tick) -> bool:
    """Whether a process of asyncli was lost, with its connections."""
    if any(counts.lost_with_worker for counts in tick.events.values()):
        return True
    return "generator_lost" in tick.deaths


class FreeOfSilent:
    """The readings of any of these counts at which the server had no connection beside those that
    are held, and the seconds in which a count may have lost others than silent ones, or silent ones
    may be held again: connections were lost, some stall, whose end is seen late, or some were heard
    again. ``counts_read``: of the server's connections over time.
    """

    def __init__(self, run: Run, counts_read: Sequence[Series]) -> None:
        self._run = run
        free_s: set[float] = set()
        for count in counts_read:
            free_s.update(_free_by(run, count))
        self._free_s = sorted(free_s)
        self._disturbed_s = [t_s for t_s, tick in run.ticks if _is_disturbed(tick)]

    def since(self, start_s: float) -> float | None:
        """How long after an event at ``start_s`` (s) that was so at the latest; None if no reading
        tells that.
        """
        # By then those that fell silent are no longer in the held ones.
        place = bisect_left(self._free_s, start_s + TICK_S)
        if place == len(self._free_s) or self._free_s[place] > self._told_until_s(start_s):
            return None
        return self._free_s[place] - start_s

    def _told_until_s(self, start_s: float) -> float:
        """Until when (s) the counts tell of the silent ones: at most until the run was interrupted,
        or those were disturbed.
        """
        until_s = [self._run.stop_s - TICK_S]
        for gap in self._run.gaps:
            if (gap.end_s or math.inf) > start_s:
                until_s.append(gap.start_s)
        place = bisect_right(self._disturbed_s, start_s)
        for t_s in self._disturbed_s[place : place + 1]:
            until_s.append(t_s - 2 * TICK_S)
        return min(until_s)


def _free_by(run: Run, count: Series) -> list[float]:
    """The readings (s) of a count since the first event at which it had none beside the held
    ones.
    """
    first_s = min(window.start_s for window in run.event_windows.values())
    others = others_of(run, count.between(-math.inf, first_s - TICK_S))
    if others is None:
        return []
    bound = most_apart(run)
    free_s = []
    for t_s, value in count.between(first_s + TICK_S, run.stop_s - TICK_S).rows():
        silent = silent_at(run, t_s, value, others)
        if -bound <= round(silent.at_most) <= 0 and is_told_at(run, t_s):
            free_s.append(t_s)
    return free_s


def _is_disturbed(tick: Tick) -> bool:
    if tick.lost or was_process_lost(tick):
        return True
    return any(counts.stalled or counts.returned for counts in tick.events.values())
