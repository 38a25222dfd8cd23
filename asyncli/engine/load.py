"""Requests as fast as answers come, or at a rate: the connections of one process, a row in columns each.

The counterpart of table.py, for ``asyncli bench``: the same network seam, the same ticks. No asyncio here and no clock of
its own: a driver waits and calls :meth:`Load.turn` (loadworker.py on the real clock, tests on a virtual one). Laws:

- Level-triggered, a bounded number of events a turn; no handle is closed before the batch of events is done, but by its own
  event.
- A closed loop asks again when it has been answered: latency counts from the write, or from the connect that came before.
- An open loop asks at instants that stand beforehand, whoever is free: latency counts from that instant, so neither a slow
  server nor a stalled generator can hide in it.
- A request is answered, failed, in flight at the end, or still to be asked. What a connection leaves unanswered as it ends is
  asked again on another, and counted, its latency from the first time on. But the request that stood first has failed where
  its answer had begun, where it waited too long, where it may not be repeated (RFC 9110, 9.2.2), and where the connection
  never answered anything: so every bench ends.
- A row is a handle's: what is asked on it and not answered, since when and written when, what it has served. Handles that
  need more thought than "read, compare, write" are in ``_odd``.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil

from asyncli.core.heartbeat import backoff_s
from asyncli.core.histogram import Histogram
from asyncli.core.http1 import Response
from asyncli.core.life import ANNOUNCED, AWAITING, CONNECTING, DEADLINE, EOF, GARBAGE, IDLE, cause, event_of
from asyncli.core.replies import Garbled, Known, Replies, State
from asyncli.engine.net import HUNG_UP, PEER_CLOSED, READABLE, WRITABLE, Net
from asyncli.engine.shard import LoadShard
from asyncli.records import Asked, Deaths, Ended, Tick

MOST_EVENTS = 256
# Half of a listen backlog of nginx's default, 511.
MOST_PENDING = 256
# One answer mostly fits the first; a train of them is read in larger pieces. Past 128 KiB the allocator maps and unmaps the
# buffer at each read, which costs more than the read does.
SHORT_READ, LONG_READ = 8192, 65_536
# A pipeline's answers come one by one, and to read each by itself costs more than all else. So the driver may pause after each
# turn, for this part of what a train of answers takes from first to last (1/128 of its median latency, which is what the
# histograms can tell), and no longer than LONGEST_PAUSE_S.
_PAUSE, LONGEST_PAUSE_S = 1 / 256, 200e-6
# More than anything: a bench by time, and a server that sets no limit.
UNBOUNDED = 1 << 62
_NEVER = float("inf")
_WATCH = READABLE | PEER_CLOSED


class Load:
    """Worker ``worker``'s share of a bench."""

    def __init__(self, shard: LoadShard, worker: int, net: Net) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._read = SHORT_READ if shard.pipeline == 1 else LONG_READ
        self._closed_loop = shard.rate is None
        # A connection for each instant is made at that instant, and not kept ready: the connect is part of what is asked for.
        self._kept = not shard.short or self._closed_loop
        self._may_repeat = shard.method not in ("POST", "PATCH")
        slots = len(range(worker, shard.connections, shard.workers))
        # Requests to hand out yet; of an open loop, what stands in its schedule and has not come due.
        self._todo = UNBOUNDED if shard.requests is None else len(range(worker, shard.requests, shard.workers))
        self._outstanding = 0
        self._replies = [Replies(shard.method, self._read, place) for place in range(len(shard.destinations))]
        self._asks = [shard.asks[one.target] for one in shard.destinations]
        self._trains: dict[tuple[int, int], bytes] = {}
        # By destination: whether it ever let one connect, and the others of the same name.
        self._stood = [False for _ in shard.destinations]
        self._refusing: set[int] = set()
        # By slot, while an attempt to connect goes on from one address of a name to the next: how many it has tried.
        self._tried: dict[int, int] = {}
        self._mates = [
            [number for number, other in enumerate(shard.destinations) if other.target == one.target]
            for one in shard.destinations
        ]
        # ... what it is seen to allow a connection: two in turn that were ended, announced, after as many; and a body's length.
        self._limits, self._last_limits = [UNBOUNDED for _ in shard.destinations], [0 for _ in shard.destinations]
        self._lengths: list[int | None] = [None for _ in shard.destinations]
        # By handle, grown on demand.
        self._pending: list[int] = []
        self._since: list[float] = []
        self._written: list[float] = []
        self._served: list[int] = []
        self._slot: list[int] = []  # -1: no connection of ours
        self._last: list[Known] = []
        self._odd: set[int] = set()
        # Of odd handles alone.
        self._connecting: dict[int, float] = {}
        self._claimed: dict[int, tuple[float, int]] = {}  # while connecting: what is to be asked then, and since when
        self._fresh: dict[int, tuple[float, float]] = {}  # no answer yet: connecting since, connected at
        self._state: dict[int, tuple[State, float]] = {}  # in the midst of an answer, whose first bytes came then
        self._unsent: dict[int, bytes] = {}
        self._closing: dict[int, float] = {}  # whole, and the server is to close: since when
        self._doomed: list[tuple[int, bool]] = []
        # Connections with nothing to do, the longest rested first (a handle may stand here that has ended since); slots
        # without a connection, by when to connect; and slots that connect when an instant is due.
        self._free: deque[int] = deque()
        self._to_open: list[tuple[float, int]] = [(0.0, slot) for slot in range(slots)] if self._kept else []
        self._idle: deque[int] = deque(() if self._kept else range(slots))
        # By slot: its destination, and how often in turn it could not connect, or came to nothing.
        self._place = [(slot * shard.workers + worker) % len(shard.destinations) for slot in range(slots)]
        self._retries = bytearray(slots)
        self._due = 0  # of an open loop: how many of its instants have been served
        self._again: deque[tuple[float, int]] = deque()  # to be asked again: since when, and how many
        #: How long the driver may let answers gather before the next turn.
        self.pause_s = 0.0
        self._in_use: dict[int, Known] = {}
        # Since the tick before, folded into it once a second: what the fast path sent, and by whole microseconds (or requests)
        # how many took as long (or were served by a connection).
        self._sent = self._sent_bytes = 0
        self._whole_us: dict[int, int] = {}
        self._processing_us: dict[int, int] = {}
        self._waiting_us: dict[int, int] = {}
        self._answering_us: dict[int, int] = {}  # processing and waiting in one
        self._rounds = 0  # short connections that had their one answer
        self._connect_us: dict[int, int] = {}
        self._each: dict[int, int] = {}
        self._t0 = self._stop_at = _NEVER
        # A deadline is met to a twentieth of itself.
        self._sweep_s = min(1.0, shard.timeout_s / 20, shard.connect_timeout_s / 20)
        self._next_sweep = 0.0
        self._last_answer = self._last_standing = 0.0
        self._connects = self._told = 0  # begun in all, and of them what ticks have said
        self.over = False
        self.held = 0
        self._tick = Tick()
        self._asked = Asked()

    # -- what the driver calls

    def start(self, t0: float) -> None:
        """Begin at ``t0`` on the net's clock."""
        self._t0 = self._last_standing = t0
        if self._shard.duration_s is not None:
            self._stop_at = t0 + self._shard.duration_s

    def stop(self, why: Ended = "stopped") -> None:
        """Ask no more; what is outstanding is left in flight, and what was not asked yet is left."""
        if self.over:
            return
        self.over = True
        asked, now = self._asked, self._net.clock()
        asked.ended[why] = 1
        asked.ended_s = now - self._t0
        asked.in_flight += self._outstanding
        waited: dict[int, int] = {}
        for handle, slot in enumerate(self._slot):
            if slot >= 0 and self._pending[handle]:
                _count(waited, max(0, int((now - self._since[handle]) * 1e6)), self._pending[handle])
        again = [*self._again, *(one for one in self._claimed.values() if one[1])]
        if self._shard.requests is not None:
            asked.left += self._todo + sum(count for _, count in again)
        if not self._closed_loop:
            for since, count in again:
                _count(waited, max(0, int((now - since) * 1e6)), count)
            asked.overdue += sum(count for _, count in again) + self._miss_instants(now, waited)
        asked.outstanding_us.add_counts(waited)

    def wait_s(self) -> float:
        """How long the driver may wait for the network."""
        if self.over:
            return self._sweep_s
        until = min(self._next_sweep, self._stop_at)
        if self._to_open and len(self._connecting) < MOST_PENDING:
            until = min(until, self._to_open[0][0])
        if (self._free or self._idle) and not self._closed_loop:
            until = min(until, self._instant())
        return max(0.0, until - self._net.clock())

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Do what the network has ready and what is due."""
        if self.over:
            return
        self._serve(events)
        now = self._net.clock()
        if now >= self._stop_at:
            self.stop("time")
            return
        if self._closed_loop:
            self._ask_what_is_left(now)
        elif self._free or self._idle:
            self._ask_what_is_due(now, queued=False)
        if self._to_open and self._to_open[0][0] <= now:
            self._open(now)
        if now >= self._next_sweep:
            self._sweep(now)
        self._close_doomed()
        if not self._outstanding and not self._todo and not self._again and not any(one[1] for one in self._claimed.values()):
            self.stop("asked")

    def take_tick(self, second: int) -> Tick:
        """The counts since the last call, with the gauges of now."""
        self._fold()
        tick, self._tick = self._tick, Tick()
        tick.asked, self._asked = self._asked, Asked()
        tick.second, tick.workers, tick.held, tick.connecting = second, 1, self.held, len(self._connecting)
        tick.awaiting, tick.drained = self._outstanding, int(self.over)
        return tick

    # -- the hot path

    def _serve(self, events: list[tuple[int, int]]) -> None:
        net, odd, most = self._net, self._odd, self._read
        recv, send, clock = net.recv, net.send, net.clock
        pending, since, served, last = self._pending, self._since, self._served, self._last
        closed_loop, asks, sent = self._closed_loop, self._asks, 0
        deep, short = self._shard.pipeline > 1, self._shard.short and closed_loop
        only = asks[0] if len(asks) == 1 and not deep else b""
        answered_at = self._last_answer
        for handle, what in events:
            if handle in odd:
                if not (short and what & PEER_CLOSED and self._go_round(handle)):
                    self._think(handle, what)
                continue
            try:
                data = recv(handle, most)
            except BlockingIOError:
                continue
            except OSError as error:
                self._end(handle, event_of(error.errno))
                continue
            now = clock()
            known = last[handle]
            answer = known.answer
            if data == answer:
                count = 1
            elif deep and len(data) > len(answer) > 0 == len(data) % len(answer) and known.train.startswith(data):
                count = len(data) // len(answer)
            else:
                count = UNBOUNDED
            left = pending[handle] - count
            if left < 0:
                self._take(handle, data, now, what)
                continue
            # Whole answers, the same bytes as the last: nearly all of a bench on kept connections comes by here.
            answered_at = now
            us = int((now - since[handle]) * 1e6)
            counts = known.counts
            counts[us] = counts.get(us, 0) + count
            served[handle] += count
            if not closed_loop:
                _count(self._answering_us, int((now - self._written[handle]) * 1e6), count)
            if only and closed_loop and self._todo:
                self._todo -= 1
                since[handle] = now
                sent += 1
                try:
                    if (taken := send(handle, only)) != len(only):
                        self._keep_unsent(handle, only[taken:])
                except BlockingIOError:
                    self._keep_unsent(handle, only)
                except OSError as error:
                    self._end(handle, event_of(error.errno))
                continue
            pending[handle] = left
            self._outstanding -= count
            if not left:
                self._next(handle, now)
        self._sent += sent
        self._sent_bytes += sent * len(only)
        self._last_answer = max(self._last_answer, answered_at)
        self._close_doomed()

    def _go_round(self, handle: int) -> bool:
        """The one answer of a short connection and its end, together, as nearly all come: count it, and ask anew in its place.

        False for anything else, before anything was read. The handle may be closed at once: its event is this one. Written out,
        since every request of a short bench comes by here: what the next connection's row shares with this one's is left alone.
        """
        fresh = self._fresh.get(handle)
        if fresh is None or handle in self._unsent or handle in self._state:
            return False
        net, slot = self._net, self._slot[handle]
        clock, place = net.clock, self._place[slot]
        last = self._replies[place].last
        try:
            data = net.recv(handle, self._read)
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return True
        now = clock()
        if data != last.answer or not data:
            self._take(handle, data, now, PEER_CLOSED)
            return True
        if not last.answered:
            self._in_use[id(last)] = last
        last.answered += 1
        began, connected = fresh
        us = int((now - began) * 1e6)
        counts = self._whole_us
        counts[us] = counts.get(us, 0) + 1
        us = int((now - connected) * 1e6)
        counts = self._answering_us
        counts[us] = counts.get(us, 0) + 1
        self._rounds += 1
        self._last_answer = now
        self._retries[slot] = 0
        if not self._todo or self._again or not self._shard.local:
            self._vacate(handle)
            net.close(handle, False)
            if self._todo or self._again:
                self._connect(slot)
            return True
        self._connects = number = self._connects + 1
        began = clock()
        try:
            other = net.replace(handle, place, number * self._shard.workers + self._worker)
        except OSError as error:
            self._vacate(handle)
            self._failed(slot, event_of(error.errno), began)
            return True
        self._todo -= 1
        if other != handle:
            self._vacate(handle)
            self._seat(other, slot)
            self._connected(other, began, (began, 1), 0)
            return True
        now, ask = clock(), self._asks[place]
        try:
            taken = net.send(handle, ask)
        except OSError as error:
            self._vacate(handle)
            self._seat(handle, slot)
            self._not_connected(handle, began, (began, 1), _WATCH, error)
            return True
        self._fresh[handle] = began, now
        self._since[handle] = began
        us = int((now - began) * 1e6)
        counts = self._connect_us
        counts[us] = counts.get(us, 0) + 1
        self._sent += 1
        self._sent_bytes += len(ask)
        if taken != len(ask):
            self._keep_unsent(handle, ask[taken:])
        return True

    def _fold(self) -> None:
        """Count what the fast path left by answer."""
        tick, asked = self._tick, self._asked
        asked.last_s = max(0.0, self._last_answer - self._t0)
        tick.sent += self._sent
        tick.bytes_sent += self._sent_bytes
        self._sent = self._sent_bytes = 0
        # Each came at once, on a connection that stood: in a closed loop whole, processing and waiting are one.
        at_once = Histogram()
        for known in self._in_use.values():
            count, response = sum(known.counts.values()) + known.answered, known.response
            if not count:
                continue
            known.answered = 0
            at_once.add_counts(known.counts)
            known.counts.clear()
            tick.bytes_received += count * len(known.answer)
            self._count(response, count, known.place)
        for counts, histogram in (
            (self._whole_us, tick.latency_us),
            (self._processing_us, asked.processing_us),
            (self._waiting_us, asked.waiting_us),
            (self._connect_us, tick.connect_us),
            (self._each, asked.per_connection),
        ):
            histogram.add_counts(counts)
            counts.clear()
        tick.latency_us.merge(at_once)
        for histogram in (asked.processing_us, asked.waiting_us):
            if self._closed_loop:
                histogram.merge(at_once)
            histogram.add_counts(self._answering_us)
        self._answering_us.clear()
        if self._rounds:
            asked.per_connection.add_counts({1: self._rounds})
            self._rounds = 0
        tick.opened = sum(tick.connect_us.counts.values())
        for place in self._refusing:
            if not self._stood[place] and any(self._stood[one] for one in self._mates[place]):
                tick.dropped[place] = 1
        tick.started, self._told = self._connects - self._told, self._connects
        self._in_use = {id(one.known): one.known for one in self._replies}
        self._in_use |= {id(known): known for known in self._last}

    def _count(self, response: Response, count: int, place: int) -> None:
        tick, asked = self._tick, self._asked
        tick.answered += count
        tick.by_status[response.status] = tick.by_status.get(response.status, 0) + count
        asked.body_bytes += count * response.body_bytes
        target = self._shard.destinations[place].target
        asked.by_target[target] = asked.by_target.get(target, 0) + count
        if self._lengths[place] is None:
            self._lengths[place] = response.body_bytes
        if response.body_bytes != self._lengths[place]:
            asked.other_length += count
        if response.keep_alive:
            asked.keepalive += count

    # -- answers

    def _think(self, handle: int, what: int) -> None:
        """An event of an odd handle."""
        if (began := self._connecting.get(handle)) is not None:
            self._connected(handle, began, self._claimed.pop(handle), _WATCH | WRITABLE)
        elif handle in self._closing:
            if what & HUNG_UP or not self._lives(handle):
                self._let_go(handle)
        elif self._slot[handle] >= 0:
            if handle in self._unsent and what & WRITABLE:
                self._flush(handle)
            if what & ~WRITABLE and self._slot[handle] >= 0:
                self._hear(handle, what)

    def _lives(self, handle: int) -> bool:
        """Whether a connection that should end still lives."""
        try:
            return bool(self._net.recv(handle, self._read))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _hear(self, handle: int, what: int) -> None:
        try:
            data = self._net.recv(handle, self._read)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return
        self._take(handle, data, self._net.clock(), what)

    def _take(self, handle: int, data: bytes, now: float, what: int) -> None:
        """Count the answers that ``data`` makes whole, and ask again."""
        replies, tick = self._replies[self._destination(handle)], self._tick
        state, first_byte = self._state.pop(handle, (None, now))
        if not data:
            last = replies.end(state)
            if last is not None and self._pending[handle]:
                self._answered(handle, last, 1, first_byte, now)
            self._end(handle, EOF if last is None else ANNOUNCED, what | HUNG_UP, begun=state is not None)
            return
        tick.bytes_received += len(data)
        runs, state, over = replies.take(state, data)
        unasked = False
        for response, count in runs:
            wanted = min(count, self._pending[handle])
            if wanted:
                self._answered(handle, response, wanted, first_byte, now)
            unasked = unasked or wanted < count
            first_byte = now
        if unasked or isinstance(state, Garbled) or (state is not None and not self._pending[handle]):
            self._end(handle, GARBAGE)
        elif over:
            self._end(handle, ANNOUNCED, what)
        elif state is not None:
            self._state[handle] = state, first_byte
            self._odd.add(handle)
        else:
            known = replies.known
            if self._last[handle] is not known:
                self._last[handle] = self._in_use[id(known)] = known
            if handle in self._unsent:
                return  # an answer before the request was whole: the rest of it is still owed
            # What is too long to be remembered is as empty as the end of a stream, which only thought tells from an answer.
            if known.answer:
                self._odd.discard(handle)
            if not self._pending[handle]:
                self._next(handle, now)

    def _answered(self, handle: int, response: Response, count: int, first_byte: float, now: float) -> None:
        self._pending[handle] -= count
        self._outstanding -= count
        self._served[handle] += count
        self._count(response, count, self._destination(handle))
        since = self._since[handle]
        _count(self._whole_us, max(0, int((now - since) * 1e6)), count)
        # A connect is part of the whole, but nothing of the server's work on the request; nor is the time before it was written.
        since = self._written[handle] if not self._closed_loop else since
        if (fresh := self._fresh.pop(handle, None)) is not None:
            since = max(since, fresh[1])
        _count(self._processing_us, max(0, int((now - since) * 1e6)), count)
        _count(self._waiting_us, max(0, int((first_byte - since) * 1e6)), count)
        self._last_answer = now
        self._retries[self._slot[handle]] = 0

    # -- requests

    def _next(self, handle: int, now: float) -> None:
        """The connection is free: ask again on it, or let it rest."""
        if self._shard.pipeline > 1:
            self.pause_s += (min(LONGEST_PAUSE_S, _PAUSE * (now - self._since[handle])) - self.pause_s) / 8
        if self._shard.short:
            # Asked to close it, the server has not said that it will: nobody waits for it.
            self._end(handle, ANNOUNCED, HUNG_UP)
        elif not self._closed_loop:
            queued = self._none_is_free()
            self._free.append(handle)
            self._ask_what_is_due(now, queued)
        elif self._todo or self._again:
            since, count = self._claim(self._room(handle), now)
            self._write(handle, since, count, now)
        else:
            self._free.append(handle)

    def _room(self, handle: int) -> int:
        """How many requests to write at once: as the pipeline is deep, or the server lets a connection have."""
        place, served = self._destination(handle), self._served[handle]
        if served > self._limits[place]:
            self._limits[place] = UNBOUNDED
        return min(self._shard.pipeline, max(1, self._limits[place] - served))

    def _claim(self, room: int, now: float) -> tuple[float, int]:
        """Up to ``room`` requests to ask: since when their latency counts, and how many."""
        if not self._closed_loop:
            since = self._instant()
            if self._again:
                self._again.popleft()
            else:
                self._due += 1
                self._todo -= 1
            return since, 1
        if self._again:
            since, count = self._again.popleft()
            if count > room:
                self._again.appendleft((since, count - room))
            return since, min(count, room)
        count = min(room, self._todo)
        self._todo -= count
        return now, count

    def _give_back(self, claimed: tuple[float, int], began: float) -> None:
        """What was to be asked on a connection that never stood."""
        since, count = claimed
        if self._closed_loop and since == began:
            self._todo += count
        elif count:
            self._again.appendleft(claimed)

    def _is_free(self, handle: int) -> bool:
        return (
            self._slot[handle] >= 0 and not self._pending[handle] and not (handle in self._closing or handle in self._connecting)
        )

    def _none_is_free(self) -> bool:
        while self._free and not self._is_free(self._free[0]):
            self._free.popleft()
        return not self._free

    def _instant(self) -> float:
        """When the open loop asks next."""
        if self._again:
            return self._again[0][0]
        if not self._todo:
            return _NEVER
        assert self._shard.rate is not None
        return self._t0 + (self._due * self._shard.workers + self._worker) / self._shard.rate

    def _miss_instants(self, now: float, waited: dict[int, int]) -> int:
        """How many instants have passed that nobody served, added to ``waited`` by how long ago."""
        assert self._shard.rate is not None
        now = min(now, self._stop_at)  # what is due at the very end is no more to be asked
        step_s = self._shard.workers / self._shard.rate
        since = self._t0 + (self._due + self._worker / self._shard.workers) * step_s
        many = min(self._todo, max(0, ceil((now - since) / step_s - 1e-6)))
        # A long night's worth of them is told by a thousand.
        at_once = many // 1000 + 1
        for first in range(0, many, at_once):
            _count(waited, max(0, int((now - since - first * step_s) * 1e6)), min(at_once, many - first))
        return many

    def _ask_what_is_due(self, now: float, queued: bool) -> None:
        """Ask what is due, on the connections that are free or on new ones. ``queued``: none was free until now."""
        while (due := self._instant()) <= now:
            late = not self._again  # what is asked again was asked in time before
            if not self._kept:
                if not self._idle:
                    return
                if late:
                    self._note_lateness(due, now, queued)
                self._connect(self._idle.popleft())
                now = self._net.clock()
            elif self._none_is_free():
                return
            else:
                since, count = self._claim(1, now)
                if late:
                    self._note_lateness(due, now, queued)
                self._write(self._free.popleft(), since, count, now)

    def _ask_what_is_left(self, now: float) -> None:
        """In a closed loop, what connections left as they ended: on those that are free.

        Not at once, as each ends: one free connection after the other may find its own end in being asked on.
        """
        while self._free and (self._todo or self._again) and not self._none_is_free():
            self._next(self._free.popleft(), now)

    def _note_lateness(self, due: float, now: float, queued: bool) -> None:
        # For want of a free connection the server is to blame, or --connections; else we are.
        if queued:
            self._asked.queued += 1
        else:
            self._tick.lateness_us.add((now - due) * 1e6)

    def _bytes(self, place: int, count: int) -> bytes:
        """``count`` requests to a destination."""
        if count == 1:
            return self._asks[place]
        return self._trains.get((place, count)) or self._trains.setdefault((place, count), self._asks[place] * count)

    def _write(self, handle: int, since: float, count: int, now: float) -> None:
        """Write ``count`` requests, whose latency counts from ``since``."""
        data = self._bytes(self._destination(handle), count)
        self._note_asked(handle, since, count, len(data), now)
        try:
            taken = self._net.send(handle, data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return
        if taken < len(data):
            self._keep_unsent(handle, data[taken:])

    def _note_asked(self, handle: int, since: float, count: int, size: int, now: float) -> None:
        self._pending[handle], self._since[handle], self._written[handle] = count, since, now
        self._outstanding += count
        self._tick.sent += count
        self._tick.bytes_sent += size

    def _keep_unsent(self, handle: int, data: bytes) -> None:
        self._unsent[handle] = data
        self._odd.add(handle)
        self._net.watch(handle, _WATCH | WRITABLE, again=True)

    def _flush(self, handle: int) -> None:
        data = self._unsent[handle]
        try:
            taken = self._net.send(handle, data)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return
        if taken < len(data):
            self._unsent[handle] = data[taken:]
            return
        del self._unsent[handle]
        self._net.watch(handle, _WATCH, again=True)
        if handle not in self._fresh and handle not in self._state and self._last[handle].answer:
            self._odd.discard(handle)
        if not self._pending[handle]:
            self._next(handle, self._net.clock())  # it was answered before it was whole

    # -- connections

    def _destination(self, handle: int) -> int:
        return self._place[self._slot[handle]]

    def _open(self, now: float) -> None:
        """Connect the slots whose time has come, as far as what is pending allows."""
        while self._to_open and self._to_open[0][0] <= now and len(self._connecting) < MOST_PENDING:
            _, slot = heappop(self._to_open)
            if not self._kept:
                queued = not self._idle
                self._idle.append(slot)
                self._ask_what_is_due(now, queued)
            # A connection for which nothing is left to ask would only cost the server.
            elif not self._closed_loop or self._todo or self._again:
                self._connect(slot)
                now = self._net.clock()

    def _connect(self, slot: int) -> None:
        net, place = self._net, self._place[slot]
        began = net.clock()
        self._connects += 1
        if slot in self._tried:
            self._told += 1  # an attempt that goes on is counted already
        # An open loop's connections stand before they are asked on.
        asks = self._closed_loop or not self._kept
        claimed = self._claim(min(self._shard.pipeline, self._limits[place]), began) if asks else (began, 0)
        try:
            handle = net.connect(place, self._connects * self._shard.workers + self._worker)
        except OSError as error:
            self._give_back(claimed, began)
            self._failed(slot, event_of(error.errno), began)
            return
        self._seat(handle, slot)
        if self._shard.local:
            # There the handshake is mostly over when connect() returns, and nothing need be awaited.
            self._connected(handle, began, claimed, 0)
        else:
            self._connecting[handle], self._claimed[handle] = began, claimed
            net.watch(handle, _WATCH | WRITABLE)

    def _seat(self, handle: int, slot: int) -> None:
        """A row for a handle."""
        while handle >= len(self._slot):
            self._pending.append(0)
            self._since.append(0.0)
            self._written.append(0.0)
            self._served.append(0)
            self._slot.append(-1)
            self._last.append(self._replies[0].known)
        self._pending[handle] = self._served[handle] = 0
        self._slot[handle] = slot
        known = self._replies[self._place[slot]].known
        # In use from now on: what a connection that ended learnt last may be counted by here first.
        self._last[handle] = self._in_use[id(known)] = known
        self._odd.add(handle)

    def _connected(self, handle: int, began: float, claimed: tuple[float, int], watched: int) -> None:
        """A connect that may have ended: what is ``claimed`` is written, and the write tells. ``watched``: for these events."""
        net = self._net
        now = net.clock()
        since, count = claimed
        data = self._bytes(self._destination(handle), count) if count else b""
        try:
            taken = net.send(handle, data)
        except OSError as error:
            self._not_connected(handle, began, claimed, watched, error)
            return
        self._connecting.pop(handle, None)
        self._stood[self._destination(handle)] = True
        if self._tried:
            self._tried.pop(self._slot[handle], None)
        self._fresh[handle] = began, now
        _count(self._connect_us, int((now - began) * 1e6), 1)
        self.held += 1
        net.watch(handle, _WATCH if taken == len(data) else _WATCH | WRITABLE, again=watched != 0)
        if taken < len(data):
            self._unsent[handle] = data[taken:]
        if count:
            self._note_asked(handle, since, count, len(data), now)
        else:
            queued = self._none_is_free()
            self._free.append(handle)
            self._ask_what_is_due(now, queued)

    def _not_connected(self, handle: int, began: float, claimed: tuple[float, int], watched: int, error: OSError) -> None:
        """What a write says of a connect: not yet, or never."""
        self._connecting[handle], self._claimed[handle] = began, claimed
        if not isinstance(error, BlockingIOError):
            self._end(handle, event_of(error.errno))
        elif not watched & WRITABLE:
            self._net.watch(handle, _WATCH | WRITABLE, again=watched != 0)

    def _failed(self, slot: int, event: str, now: float) -> None:
        """A connect that never established; tried again after a while at the next address of the same name.

        Where it was at an address that never let one connect, the attempt goes on at once, and has failed when all were tried.
        """
        why = cause(CONNECTING, event)
        place = self._place[slot]
        mates = self._mates[place]
        tried = self._tried.pop(slot, 0) + 1
        if len(mates) > 1:
            answering = [one for one in mates if self._stood[one] and one != place]
            self._place[slot] = answering[slot % len(answering)] if answering else mates[(mates.index(place) + 1) % len(mates)]
            if not self._stood[place] and why != "no_descriptors":
                self._refusing.add(place)
                if tried < len(mates):
                    self._tried[slot] = tried
                    heappush(self._to_open, (now, slot))
                    return
        self._tick.failures[why] = self._tick.failures.get(why, 0) + 1
        self._reopen_later(slot, now)

    def _reopen_later(self, slot: int, now: float) -> None:
        self._retries[slot] = min(255, self._retries[slot] + 1)
        wait_s = backoff_s(self._shard.seed, slot, self._connects, self._retries[slot])
        # Shorter than the time after which nobody standing ends the bench: who does not try cannot know.
        heappush(self._to_open, (now + min(wait_s, self._shard.connect_timeout_s / 4), slot))

    def _end(self, handle: int, event: str, what: int = 0, *, begun: bool = False) -> None:
        """The one way a connection, or an attempt at one, ends. What it leaves unanswered is asked again elsewhere.

        ``begun``: bytes of the first unanswered one's answer had come.
        """
        slot, now = self._slot[handle], self._net.clock()
        if (began := self._connecting.pop(handle, None)) is not None:
            self._give_back(self._claimed.pop(handle), began)
            self._forget(handle, abort=event == DEADLINE)
            self._failed(slot, event, now)
            return
        pending, served, asked = self._pending[handle], self._served[handle], self._asked
        self.held -= 1
        self._last_standing = now
        _count(self._each, served, 1)
        self._outstanding -= pending
        if self._shard.short and event == ANNOUNCED:
            # As it should be. The peer closes first, so that the port waits (TIME_WAIT) on its side and not on ours.
            self._closing[handle] = now
            self._odd.add(handle)
            if what & HUNG_UP or handle in self._unsent:
                self._let_go(handle)
            return
        why = cause(AWAITING if pending else IDLE, event)
        deaths = self._tick.deaths.setdefault(why, Deaths())
        deaths.count += 1
        deaths.requests.add(served)
        if event == ANNOUNCED and served:
            self._learn_limit(self._place[slot], served)
        begun = begun or handle in self._state
        if pending and (begun or not served or event in (DEADLINE, GARBAGE) or not self._may_repeat):
            asked.failed[why] = asked.failed.get(why, 0) + 1
            pending -= 1
        if pending:
            asked.resent += pending
            self._again.append((self._since[handle], pending))
        self._forget(handle, abort=event in (DEADLINE, GARBAGE))
        if served:
            heappush(self._to_open, (now, slot))
        else:
            self._reopen_later(slot, now)

    def _let_go(self, handle: int) -> None:
        """Of a connection that was to end: the peer has closed too, or nobody waits for it."""
        heappush(self._to_open, (0.0, self._slot[handle]))
        self._forget(handle, abort=False)

    def _learn_limit(self, place: int, served: int) -> None:
        """Two connections that the server ended after as many answers tell its limit; a pipeline then asks no more of one."""
        if served == self._last_limits[place]:
            self._limits[place] = served
        self._last_limits[place] = served

    def _vacate(self, handle: int) -> None:
        """The row of a short connection that has had its answer becomes nobody's, at once."""
        self.held -= 1
        self._outstanding -= 1
        self._slot[handle], self._pending[handle] = -1, 0
        del self._fresh[handle]
        self._odd.discard(handle)

    def _forget(self, handle: int, abort: bool) -> None:
        self._slot[handle], self._pending[handle] = -1, 0
        self._odd.add(handle)  # an event of this batch may still name it
        self._closing.pop(handle, None)
        self._fresh.pop(handle, None)
        self._state.pop(handle, None)
        self._unsent.pop(handle, None)
        self._doomed.append((handle, abort))

    def _close_doomed(self) -> None:
        for handle, abort in self._doomed:
            self._net.close(handle, abort)
            self._odd.discard(handle)
        self._doomed.clear()

    def _sweep(self, now: float) -> None:
        """End what has waited too long, and the whole where nobody has been there to ask for as long."""
        self._next_sweep = now + self._sweep_s
        for handle, began in list(self._connecting.items()):
            if now - began < self._shard.connect_timeout_s:
                break
            self._end(handle, DEADLINE)
        late = now - self._shard.timeout_s
        for handle, began in list(self._closing.items()):
            if began > late:
                break
            self._let_go(handle)
        if late > self._t0:
            for handle, slot in enumerate(self._slot):
                waits = slot >= 0 and (self._pending[handle] or handle in self._unsent) and handle not in self._closing
                # A closed loop's fast path notes one instant only; what is asked again has waited since the second write.
                written = max(self._since[handle], self._written[handle])
                if waits and written < late and handle not in self._connecting:
                    self._end(handle, DEADLINE)
        if self._closed_loop:
            self._ask_what_is_left(now)
        if self.held:
            self._last_standing = now
            return
        patience_s = self._shard.connect_timeout_s
        if self._tried:
            # An attempt that goes on from an address that leads nowhere has as long for each of its name.
            patience_s = max(map(len, self._mates)) * (patience_s + self._sweep_s)
        if now - self._last_standing > patience_s and not self._closing:
            self._close_doomed()
            self.stop("gave up")


def _count(counts: dict[int, int], value: int, times: int) -> None:
    counts[value] = counts.get(value, 0) + times
