"""An open loop asks at fixed instants, whether or not a connection is free: latency counts from that instant, so neither a slow
server nor a stalled generator can hide in it.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from asyncli.engine.bench_counts import count, us_between
from asyncli.engine.bench_load import NEVER, Load
from asyncli.engine.net import Net
from asyncli.engine.shard import LoadShard


class OpenLoop(Load):
    """Worker ``worker``'s share of a bench at a rate."""

    def __init__(self, shard: LoadShard, worker: int, net: Net) -> None:
        # A short connection is made at its instant: the connect is part of what is asked for.
        super().__init__(shard, worker, net, kept=not shard.short)
        assert shard.rate is not None
        self._kept, self._rate = not shard.short, shard.rate
        self._due = 0  # how many instants have been served
        # Slots that connect when an instant is due.
        self._idle: deque[int] = deque(() if self._kept else range(len(self._slots.place)))

    def _instant(self) -> float:
        """When the loop asks next."""
        if self._again:
            return self._again[0][0]
        return self._t0 + (self._due * self._shard.workers + self._worker) / self._rate if self._todo else NEVER

    def _next_instant(self) -> float:
        following = super()._next_instant()
        return min(following, self._instant()) if self._free or self._idle else following

    def _claim(self, now: float, place: int, served: int) -> tuple[float, int]:
        since = self._instant()
        if self._again:
            self._again.popleft()
        else:
            self._due += 1
            self._todo -= 1
        return since, 1

    def _use_slot(self, slot: int, now: float) -> None:
        if self._kept:
            self._connect(slot)
            return
        queued = not self._idle
        self._idle.append(slot)
        self._ask_what_is_due(now, queued)

    def _use_free(self, handle: int, now: float) -> None:
        queued = not self._first_is_free()
        self._free.append(handle)
        self._ask_what_is_due(now, queued)

    def _use_all_free(self, now: float) -> None:
        if self._free or self._idle:
            self._ask_what_is_due(now, queued=False)

    def _ask_what_is_due(self, now: float, queued: bool) -> None:
        """Ask what is due, on the connections that are free or on new ones. ``queued``: none was free until now."""
        while (due := self._instant()) <= now:
            if not (self._first_is_free() if self._kept else self._idle):
                return
            if not self._again:  # what is asked again was asked in time before
                self._note_lateness(due, now, queued)
            if self._kept:
                handle = self._free.popleft()
                since, many = self._claim(now, self._place[handle], self._served[handle])
                self._write(handle, since, many, now)
            else:
                self._connect(self._idle.popleft())
                now = self._net.clock()

    def _note_lateness(self, due: float, now: float, queued: bool) -> None:
        # For want of a free connection the server is to blame, or --connections; else we are.
        if queued:
            self._counts.asked.queued += 1
        else:
            self._counts.tick.lateness_us.add((now - due) * 1e6)

    def _count_overdue(self, now: float, waited: dict[int, int]) -> int:
        for since, many in self._again:
            count(waited, us_between(since, now), many)
        # And the instants that have passed and nobody served; what is due at the very end is no more to be asked.
        now = min(now, self._stop_at)
        step_s = self._shard.workers / self._rate
        since = self._t0 + (self._due + self._worker / self._shard.workers) * step_s
        missed = min(self._todo, max(0, ceil((now - since) / step_s - 1e-6)))
        # A long night's worth of them is told by a thousand.
        at_once = missed // 1000 + 1
        for first in range(0, missed, at_once):
            count(waited, us_between(since + first * step_s, now), min(at_once, missed - first))
        return missed + sum(many for _, many in self._again)
