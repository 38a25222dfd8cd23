"""An open loop sends requests at fixed instants. Latency counts from that instant, even if no
connection is free then, so neither a slow server nor a stalled generator can hide.
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
        # A short connection is opened at its instant: its latency includes the connect.
        super().__init__(shard, worker, net, kept=not shard.short)
        assert shard.rate is not None
        self._kept, self._rate = not shard.short, shard.rate
        self._due = 0  # instants served
        self._opened_s = -NEVER  # when the last connect of the start was done
        # Slots that can connect when an instant is due.
        self._idle: deque[int] = deque(() if self._kept else range(len(self._slots.destination)))

    def _instant(self) -> float:
        """When the next request is due."""
        if self._resend:
            return self._resend[0][0]
        return (
            self._t0 + (self._due * self._shard.workers + self._worker) / self._rate
            if self._todo
            else NEVER
        )

    def _next_instant(self) -> float:
        following = super()._next_instant()
        return min(following, self._instant()) if self._free or self._idle else following

    def _claim(self, now: float, destination: int, served: int) -> tuple[float, int]:
        since = self._instant()
        if self._resend:
            self._resend.popleft()
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
        self._send_due(now, queued)

    def _use_free(self, handle: int, now: float) -> None:
        queued = not self._has_free()
        if handle in self._fresh and self._slots.connects <= len(self._slots.destination):
            self._opened_s = now
        self._free.append(handle)
        self._send_due(now, queued)

    def _use_all_free(self, now: float) -> None:
        if self._free or self._idle:
            self._send_due(now, queued=False)

    def _send_due(self, now: float, queued: bool) -> None:
        """Send the requests that are due, on free connections or on new ones. ``queued``: none was
        free until now.
        """
        while (due := self._instant()) <= now:
            if not (self._has_free() if self._kept else self._idle):
                return
            # A request that is sent again was in time before; one due before all were open shows
            # neither lateness nor a lack.
            if not self._resend and due > self._opened_s:
                self._note_lateness(due, now, queued)
            if self._kept:
                handle = self._free.popleft()
                since, many = self._claim(now, self._destination[handle], self._served[handle])
                self._write(handle, since, many, now)
            else:
                self._connect(self._idle.popleft())
                now = self._net.clock()

    def _note_lateness(self, due: float, now: float, queued: bool) -> None:
        # Without a free connection the cause is the server, or too few --connections; else it is
        # the generator.
        if queued:
            self._counts.asked.queued += 1
        else:
            self._counts.tick.lateness_us.add((now - due) * 1e6)

    def _count_overdue(self, now: float, waited: dict[int, int]) -> int:
        for since, many in self._resend:
            count(waited, us_between(since, now), many)
        # And the instants that have passed unserved, without one due at the very end.
        now = min(now, self._stop_at)
        step_s = self._shard.workers / self._rate
        since = self._t0 + (self._due + self._worker / self._shard.workers) * step_s
        missed = min(self._todo, max(0, ceil((now - since) / step_s - 1e-6)))
        # A thousand of them represent any number.
        at_once = missed // 1000 + 1
        for first in range(0, missed, at_once):
            count(waited, us_between(since + first * step_s, now), min(at_once, missed - first))
        return missed + sum(many for _, many in self._resend)
