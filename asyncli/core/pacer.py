"""The pace of opening and reopening connections, and of missed heartbeats. Pure: instants are
arguments.

After a stall nothing goes out in a burst: a late ramp catches up at twice its pace, connections are
reopened no faster than the ramp opened them, and missed heartbeats go out at twice their pace.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from asyncli.core.ramp import Ramp

# How much of a late ramp one turn may make up for.
_BURST_S = 0.010
# A row waits at least this long, or it would be tried again in the same turn.
_GRAIN_S = 0.001
# A heartbeat later than this was missed in a stall; less is a busy moment.
_MISSED_S = 0.1


class Opening(NamedTuple):
    """Rows to open now, of a batch due at ``due``. ``again``: they were open in a lost process."""

    rows: range
    due: float
    again: bool
    begins_batch: bool


class RampPacer:
    """Which batches of a worker's share are due: batch j belongs to worker j mod n."""

    def __init__(self, ramp: Ramp, worker: int, workers: int, again: bool) -> None:
        self._ramp, self._workers, self._batches = ramp, workers, ramp.batches
        self._batch, self._opened, self._t0 = worker, 0, 0.0
        self._due = self._not_before = -math.inf
        # Batches due before this instant were open before.
        self._again_before = math.inf if again else -math.inf
        self.finished = False
        #: When more may be opened; infinite when all are.
        self.next_instant = math.inf
        self._go_to(worker)

    def start(self, t0: float) -> None:
        self._t0 = t0
        self._go_to(self._batch)

    def replace_worker(self, now: float, reopen: bool) -> None:
        """Replace a lost worker: open again what it had opened by ``now``; without ``reopen``, skip
        it.
        """
        self._again_before = max(self._again_before, now)
        while not reopen and self._due < now:
            self._go_to(self._batch + self._workers)

    def _go_to(self, batch: int) -> None:
        self._batch, self._opened = batch, 0
        self.finished = batch >= self._batches
        self._due = math.inf if self.finished else self._t0 + self._ramp.due_s(batch)
        self.next_instant = max(self._due, self._not_before)

    def take(self, most: int, now: float) -> Opening:
        """Up to ``most`` rows of the batch that is due."""
        ramp, due, opened = self._ramp, self._due, self._opened
        again = due < self._again_before
        size = ramp.size(self._batch)
        count = min(size - opened, most)
        begin = self._batch // self._workers * ramp.batch + opened
        self._opened += count
        if self._opened == size:
            # Catching up is at twice the pace; what was open before comes no faster than the ramp.
            # Counted from a moment ago, because no timer keeps a pace below its own resolution.
            pace_s = self._workers * ramp.interval_s
            self._not_before = max(self._not_before, now - _BURST_S) + (
                pace_s if again else pace_s / 2
            )
            self._go_to(self._batch + self._workers)
        return Opening(range(begin, begin + count), due, again, opened == 0)


class ReopenPacer:
    """Reopens lost connections as fast as the ramp: a row that may not open yet reserves the next
    instant.
    """

    def __init__(self, ramp: Ramp, workers: int) -> None:
        self._every_s = ramp.interval_s / ramp.batch * workers
        # As in the ramp, a batch may open at once.
        self._burst_s = ramp.batch * self._every_s
        self._next = 0.0
        self._reserved: set[int] = set()

    def wait_until(self, row: int, now: float, *, room: bool, continues: bool) -> float | None:
        """When to try again to open ``row``; None: open it now. ``room``: one more connect may be
        pending. ``continues``: the attempt was paced already, at another address of its name; an
        unreachable address must not stretch the ramp.
        """
        reserved = row in self._reserved
        following = max(self._next, now - self._burst_s) + self._every_s
        if room and (reserved or continues or self._next <= now):
            if reserved:
                self._reserved.remove(row)
            elif not continues:
                self._next = following
            return None
        self._reserved.add(row)
        self._next = following
        return max(following, now + _GRAIN_S)

    def forget(self, row: int) -> None:
        """Drop the reservation of ``row``."""
        self._reserved.discard(row)


class BeatPacer:
    """Up to which due instant heartbeats may go out: now; after a stall, from the first missed one
    on, at twice their pace.

    So missed heartbeats keep half their distances, while a process that is merely busy sends all
    that are due.
    """

    def __init__(self) -> None:
        self._until = self._asked = self._passed = 0.0

    def until(self, first_due: float, now: float) -> float:
        """``first_due``: the earliest instant of the heartbeats that are not sent yet."""
        passed, behind = now - self._asked, self._until < self._asked
        if now - first_due <= _MISSED_S and not behind:
            self._until = now
        else:
            # No burst: a stall counts for no more than the time before the previous turn.
            counts = passed if passed <= _MISSED_S else min(passed, self._passed)
            self._until = min(now, (self._until if behind else first_due) + 2 * counts)
        self._asked, self._passed = now, passed
        return self._until

    def instant(self, due: float) -> float:
        """When a heartbeat that is ``due`` may go out, as of the last call of :meth:`until`."""
        return (
            due
            if self._until >= self._asked
            else max(due, self._asked + (due - self._until) / 2 + _GRAIN_S)
        )
