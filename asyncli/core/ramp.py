"""The schedule of the ramp, as arithmetic: which batch is due when, and which connections are in
it.
"""

from __future__ import annotations

import bisect
import math

import msgspec


class Ramp(msgspec.Struct, frozen=True):
    """``connections`` in batches of ``batch`` every ``interval_s``; with ``plateaus`` K, a rest of
    ``plateau_s`` after each K-th.

    Batch j is due ``due_s(j)`` seconds after T0 and is opened whole by worker j mod n: the schedule
    does not depend on n.
    """

    connections: int
    batch: int
    interval_s: float
    plateaus: int = 0
    plateau_s: float = 0.0

    @property
    def batches(self) -> int:
        return math.ceil(self.connections / self.batch)

    def step(self, j: int) -> int:
        """The plateau, from 0, that batch j belongs to: each has as many batches as the others, or
        one more.
        """
        return j * self.plateaus // self.batches if self.plateaus > 1 else 0

    def due_s(self, j: int) -> float:
        """When batch j is due, in seconds after T0."""
        return j * self.interval_s + self.step(j) * self.plateau_s

    def opened_by(self, t_s: float) -> int:
        """The number of connections due before ``t_s`` seconds after T0."""
        return min(
            self.connections,
            self.batch * bisect.bisect_left(range(self.batches), t_s, key=self.due_s),
        )

    def size(self, j: int) -> int:
        """The number of connections that batch j opens: ``batch``, or fewer in the last one."""
        return min(self.batch, self.connections - j * self.batch)

    @property
    def end_s(self) -> float:
        """When the last batch is due; with plateaus, when its rest is over."""
        return self.due_s(self.batches - 1) + (self.plateau_s if self.plateaus else 0.0)

    def rests(self) -> list[tuple[float, float]]:
        """The rests as (start, end) in seconds after T0; without plateaus, none."""
        if not self.plateaus:
            return []
        steps = min(self.plateaus, self.batches)
        # The first batch of step k: the least j for which j * plateaus // batches is k or more.
        firsts = [-(-k * self.batches // self.plateaus) for k in range(1, steps)]
        lasts = [*(self.due_s(j - 1) for j in firsts), self.due_s(self.batches - 1)]
        return [(last + self.interval_s, last + self.interval_s + self.plateau_s) for last in lasts]
