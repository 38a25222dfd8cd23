"""A timing wheel: one for a process, 12 bytes a row, no object per entry.

Each slot of time has a singly linked list of rows (arrays of row numbers); the current slot is
sorted once into a run. Adding costs four array stores, taking costs a share of one small sort, and
order is exact to the float, not to the slot. A row is in the wheel at most once.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

# A slot holds a few hundred rows at most (20,000 rows with a heartbeat every 10 s): sorted in well
# under a millisecond.
SLOT_S = 0.1
# 128 KiB, nearly an hour. A row due later is in the slot of its instant modulo the wheel, and is
# skipped once a round until then: a microsecond an hour.
MOST_SLOTS = 32_768
# How many slots next_due searches: a second's worth, so an idle wheel costs one wake-up a second.
_LOOK_AHEAD = 10


class Wheel:
    """Rows 0..rows-1, each due at most once, mostly within ``horizon_s`` from now.

    Times are seconds on the caller's clock. The caller may read ``due``: the instant for which each
    row was last added.
    """

    def __init__(self, rows: int, horizon_s: float, start: float) -> None:
        self.due = array("d", bytes(8 * rows))
        self._next = array("i", b"\xff" * (4 * rows))
        self._slots = min(int(horizon_s / SLOT_S) + 3, MOST_SLOTS)
        self._heads = array("i", b"\xff" * (4 * self._slots))
        self._start = start
        self._now_slot = 0
        self._run: list[tuple[float, int]] = []
        self._at = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: int, due: float) -> None:
        """Add ``row``, which must not be in the wheel, for the instant ``due``; a past instant is
        due at once.
        """
        self.due[row] = due
        self._count += 1
        slot = int((due - self._start) / SLOT_S)
        if slot <= self._now_slot:
            insort(self._run, (due, row), self._at)
            return
        index = slot % self._slots
        self._next[row] = self._heads[index]
        self._heads[index] = row

    def remove(self, row: int) -> None:
        """Remove ``row``, which must be in the wheel. Walks along one slot: for lost connections,
        not for heartbeats.
        """
        due = self.due[row]
        self._count -= 1
        slot = int((due - self._start) / SLOT_S)
        # A row at the very border of the current slot may be in the run.
        if slot > self._now_slot and self._unlink(row, slot % self._slots):
            return
        del self._run[bisect_left(self._run, (due, row), self._at)]

    def _unlink(self, row: int, index: int) -> bool:
        following, here, before = self._next, self._heads[index], -1
        while here >= 0:
            if here == row:
                if before < 0:
                    self._heads[index] = following[row]
                else:
                    following[before] = following[row]
                return True
            before, here = here, following[here]
        return False

    def first_due(self, now: float) -> float:
        """The earliest instant in the wheel; where nothing is due at ``now``, some later
        instant.
        """
        while self._at >= len(self._run):
            if not self._advance(now):
                return math.inf
        return self._run[self._at][0]

    def pop_due(self, now: float, most: int) -> Iterator[int]:
        """Up to ``most`` rows due at ``now``, in the order of their instants; each is removed as it
        is yielded.
        """
        while most:
            run = self._run
            if self._at < len(run):
                due, row = run[self._at]
                if due > now:
                    return
                self._at += 1
                self._count -= 1
                most -= 1
                yield row
            elif not self._advance(now):
                return

    def next_due(self) -> float | None:
        """The earliest instant in the wheel; when nothing is due soon, an earlier one at which to
        call again; None when empty.
        """
        if not self._count:
            return None
        if self._at < len(self._run):
            return self._run[self._at][0]
        for slot in range(
            self._now_slot + 1, self._now_slot + 1 + min(_LOOK_AHEAD, self._slots - 1)
        ):
            row = self._heads[slot % self._slots]
            if row >= 0:
                earliest = self.due[row]
                while (row := self._next[row]) >= 0:
                    earliest = min(earliest, self.due[row])
                # A row due a round later may be alone in this slot: do not let earlier rows wait
                # for it.
                return min(earliest, self._start + (slot + 1) * SLOT_S)
        return self._start + (self._now_slot + _LOOK_AHEAD) * SLOT_S

    def _advance(self, now: float) -> bool:
        """Move on to the next slot that has rows and has begun by ``now``. False when there is
        none.
        """
        present = int((now - self._start) / SLOT_S)
        if not self._count:
            # The wheel is empty: jump, so that one that was idle for hours is not walked slot by
            # slot.
            self._now_slot = max(self._now_slot, present)
            self._run, self._at = [], 0
            return False
        while self._now_slot < present:
            self._now_slot += 1
            index = self._now_slot % self._slots
            row = self._heads[index]
            if row >= 0:
                self._heads[index] = -1
                if self._sort_run(row):
                    return True
        return False

    def _sort_run(self, row: int) -> bool:
        """Make the list that begins with ``row`` the current run; rows due a round or more later
        are added again.
        """
        end = (
            self._start + (self._now_slot + 1) * SLOT_S + 1e-6
        )  # rounding must not delay a row by a round
        run: list[tuple[float, int]] = []
        later: list[int] = []
        while row >= 0:
            if self.due[row] < end:
                run.append((self.due[row], row))
            else:
                later.append(row)
            row = self._next[row]
        run.sort()
        self._run, self._at = run, 0
        for row in later:
            self._count -= 1
            self.add(row, self.due[row])
        return bool(self._run)
