"""What a connection costs so far, while a run lasts. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque

from asyncli.analysis.cost import SURE

# Student's t for 95 %, by degrees of freedom from 1 on; beyond the last as it.
_STUDENT = (12.7, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
# With fewer readings in the last seconds nothing is known of how it wanders.
_FEWEST_READINGS = 3
#: Rates, latencies and costs are of these last seconds: long enough to stand still for the eye, short enough to show a change.
RECENT_S = 10


class Level:
    """One kind of memory: how far it has risen above the baseline, and how far it may have wandered by itself meanwhile.

    Its steps from reading to reading in the baseline and in the last seconds, less what the connections of each step cost, are
    taken for those of a random walk: for noise that wanders less, what is made of them is too wide.
    """

    def __init__(self, known_to: float) -> None:
        #: Bytes that a level is not known better than.
        self._known_to = known_to
        self._baseline: list[tuple[float, float, float]] = []
        #: Instant (s), bytes, connections held.
        self._recent: deque[tuple[float, float, float]] = deque()

    def read(self, t_s: float, value: float, held: float, empty: bool) -> None:
        """A reading, with so many connections held; ``empty``: of the baseline."""
        if empty:
            self._baseline.append((t_s, value, 0.0))
            return
        self._recent.append((t_s, value, held))
        while self._recent[0][0] <= t_s - RECENT_S:
            self._recent.popleft()

    def each(self) -> tuple[float, float] | None:
        """Bytes a connection and half of the interval; None where that is wider than half of it, or nothing is held."""
        if len(self._recent) < _FEWEST_READINGS or not self._baseline:
            return None
        now_s, value, held = self._recent[-1]
        grown = value - statistics.median(one for _, one, _ in self._baseline)
        if grown <= 0 or held <= 0:
            return None
        cost = grown / held
        steps = [
            (after - before - cost * (more - many)) ** 2 / (end - begin)
            for part in (self._baseline, self._recent)
            for (begin, before, many), (end, after, more) in itertools.pairwise(part)
            if end > begin
        ]
        t = _STUDENT[min(len(steps), len(_STUDENT)) - 1]
        half = max(t * math.sqrt(statistics.fmean(steps) * (now_s - self._baseline[-1][0])), self._known_to) / held
        return (cost, half) if half <= SURE * cost else None
