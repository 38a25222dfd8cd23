"""A closed loop sends the next request after an answer: latency counts from the write, or from the
connect before it.
"""

from __future__ import annotations

from asyncli.core.life import event_of
from asyncli.engine.bench_connections import UNBOUNDED, WATCH
from asyncli.engine.bench_load import Load
from asyncli.engine.net import PEER_CLOSED, Net
from asyncli.engine.shard import LoadShard

# A pipeline's answers come one by one, and reading each alone costs more than all else. So the
# driver may pause after each turn, for this part of the latency of a full pipeline (1/128 of its
# median latency, the resolution of the histograms), and no longer than _LONGEST_PAUSE_S.
_PAUSE, _LONGEST_PAUSE_S = 1 / 256, 200e-6


class ClosedLoop(Load):
    """Worker ``worker``'s share of a bench without a rate."""

    def __init__(self, shard: LoadShard, worker: int, net: Net) -> None:
        super().__init__(shard, worker, net, kept=True)

    def _claim(self, now: float, destination: int, served: int) -> tuple[float, int]:
        # The depth of the pipeline, or what the server allows a connection.
        if served > self._limits[destination]:
            self._limits[destination] = UNBOUNDED
        room = min(self._shard.pipeline, max(1, self._limits[destination] - served))
        if self._resend:
            since, many = self._resend.popleft()
            if many > room:
                self._resend.appendleft((since, many - room))
            return since, min(many, room)
        many = min(room, self._todo)
        self._todo -= many
        return now, many

    def _use_slot(self, slot: int, now: float) -> None:
        # Without requests left, a connection would only cost the server.
        if self._todo or self._resend:
            self._connect(slot)

    def _use_free(self, handle: int, now: float) -> None:
        if self._shard.pipeline > 1:
            self.pause_s += (
                min(_LONGEST_PAUSE_S, _PAUSE * (now - self._since[handle])) - self.pause_s
            ) / 8
        if self._todo or self._resend:
            since, many = self._claim(now, self._destination[handle], self._served[handle])
            self._write(handle, since, many, now)
        else:
            self._free.append(handle)

    def _use_all_free(self, now: float) -> None:
        """Send the unanswered requests of ended connections again. Not as each ends: the write to a
        free connection may end that one too.
        """
        while self._free and (self._todo or self._resend) and self._has_free():
            self._use_free(self._free.popleft(), now)

    def _finish_short(self, handle: int) -> bool:  # noqa: PLR0915 - a hot path
        """Count the answer of a short connection that came with its end, as nearly all do, and
        connect again in its place.

        False for anything else, before anything was read. The handle may be closed at once: its
        event is this one. Inlined for speed: columns that do not change for the next connection's
        row are not written.
        """
        fresh = self._fresh.get(handle)
        if fresh is None or handle in self._unsent or handle in self._state:
            return False
        net, slot, slots, counts = self._net, self._slot[handle], self._slots, self._counts
        clock, destination = net.clock, self._destination[handle]
        last = self._replies[destination].last
        try:
            data = net.recv(handle, self._read)
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return True
        now = clock()
        if data != last.data or not data:
            self._take_answers(handle, data, now, PEER_CLOSED)
            return True
        last.tally.untimed += 1
        began, connected = fresh
        us = int((now - began) * 1e6)
        by_us = counts.whole_us
        by_us[us] = by_us.get(us, 0) + 1
        us = int((now - connected) * 1e6)
        by_us = counts.answering_us
        by_us[us] = by_us.get(us, 0) + 1
        counts.rounds += 1
        self._last_answer = now
        slots.retries[slot] = 0
        if not self._todo or self._resend or not self._shard.local:
            self._free_answered_row(handle)
            net.close(handle, False)
            if self._todo or self._resend:
                self._connect(slot)
            return True
        slots.connects = number = slots.connects + 1
        began = clock()
        try:
            other = net.replace(handle, destination, number * self._shard.workers + self._worker)
        except OSError as error:
            self._free_answered_row(handle)
            self._connect_failed(slot, event_of(error.errno), began)
            return True
        self._todo -= 1
        if other != handle:
            self._free_answered_row(handle)
            self._alloc_row(other, slot)
            self._connected(other, began, (began, 1), 0)
            return True
        now, ask = clock(), self._requests[destination]
        try:
            taken = net.send(handle, ask)
        except OSError as error:
            self._free_answered_row(handle)
            self._alloc_row(handle, slot)
            self._not_connected(handle, began, (began, 1), WATCH, error)
            return True
        self._fresh[handle] = began, now
        self._since[handle] = began
        us = int((now - began) * 1e6)
        by_us = counts.connect_us
        by_us[us] = by_us.get(us, 0) + 1
        counts.sent += 1
        counts.sent_bytes += len(ask)
        if taken != len(ask):
            self._keep_unsent(handle, ask[taken:])
        return True

    def _free_answered_row(self, handle: int) -> None:
        self.held -= 1
        self._outstanding -= 1
        self._slot[handle], self._pending[handle] = -1, 0
        del self._fresh[handle]
        self._slow.discard(handle)
