"""The fewest connections that were held in the time of an event, where that is of this event alone.
Pure.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator

from asyncli.model.records import CHURN, Gap
from asyncli.model.run import Run


class LeastHeld:
    """Of all events of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seconds_s = [t_s for t_s, _ in run.ticks]
        # By the number of seconds that are over: how many all events had away then.
        self._away = [0, *itertools.accumulate(_sent_away(run))]

    def during(self, number: int, window: Gap) -> int | None:
        """The fewest as a second of an event ended. None where none did, and where another event
        had some away in that time, or its own had not all been counted.
        """
        end_s = window.end_s or math.inf
        ticks = self._run.ticks_between(window.start_s, end_s)
        if not ticks or not self._is_alone(number, window.start_s, end_s):
            return None
        return min(tick.held for _, tick in ticks)

    def _is_alone(self, number: int, start_s: float, end_s: float) -> bool:
        """Whether an event had its time for itself, and all that it counted is in it. What churn
        has away is little at any time.
        """
        for _, tick in self._run.ticks_between(start_s, end_s):
            if tick.events.keys() - {number, CHURN}:
                return False
        own = self._run.seconds_of_event(number)
        last_s = max((t_s for t_s, _ in own if t_s <= self._run.stop_s), default=start_s)
        if last_s > end_s:
            return False
        away = self._away[bisect_right(self._seconds_s, start_s)]
        if number != CHURN:
            away -= sum(counts.away for t_s, counts in own if t_s <= start_s)
        return not away


def _sent_away(run: Run) -> Iterator[int]:
    """How many more events of the plan had away at the end of each second than at its start."""
    for _, tick in run.ticks:
        yield sum(counts.away for number, counts in tick.events.items() if number != CHURN)
