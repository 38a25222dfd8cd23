"""The cost of a connection so far, during a run. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque

from asyncli.analysis.cost import SURE

# Student's t for 95 %, from 1 degree of freedom on; the last for more.
_STUDENT = (12.7, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
# Fewer recent readings cannot show the noise.
_FEWEST_READINGS = 3
#: Rates, latencies and costs cover this time: steady to read, yet quick to change.
RECENT_S = 10


class Level:
    """One kind of memory: its rise above the baseline, and an error by a random walk.

    The steps in the baseline and in the last seconds, minus the connections' cost, are taken for those of a random walk, so the
    interval is rather too wide.
    """

    def __init__(self, resolution: float) -> None:
        #: In bytes.
        self._resolution = resolution
        self._baseline: list[tuple[float, float, float]] = []
        #: Instant (s), bytes, connections held.
        self._recent: deque[tuple[float, float, float]] = deque()

    def read(self, t_s: float, value: float, held: float, empty: bool) -> None:
        """Add a reading at ``held`` connections. ``empty``: it is of the baseline."""
        if empty:
            self._baseline.append((t_s, value, 0.0))
            return
        self._recent.append((t_s, value, held))
        while self._recent[0][0] <= t_s - RECENT_S:
            self._recent.popleft()

    def each(self) -> tuple[float, float] | None:
        """Bytes per connection and half of the interval; None if that is wider than ± 50 %, or nothing is held."""
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
        half = max(t * math.sqrt(statistics.fmean(steps) * (now_s - self._baseline[-1][0])), self._resolution) / held
        return (cost, half) if half <= SURE * cost else None
