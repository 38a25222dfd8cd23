"""The connections of one process of ``asyncli bench``: a row in columns each, and the life of each from connect to end.

The counterpart of connections.py for benches: the same network seam, the same ticks. closed_loop.py and open_loop.py say what is
asked when. No asyncio here and no clock of its own: a driver waits and calls :meth:`Load.turn` (loadworker.py on the real clock,
tests on a virtual one). Laws:

- Level-triggered, a bounded number of events a turn; no handle is closed before the batch of events is done, but by its own
  event.
- A request is answered, failed, in flight at the end, or still to be asked. What a connection leaves unanswered as it ends is
  asked again on another, and counted, its latency from the first time on. But the request that stood first has failed where
  its answer had begun, where it waited too long, where it may not be repeated (RFC 9110, 9.2.2), and where the connection
  never answered anything: so every bench ends.
- A row is a handle's: what is asked on it and not answered, since when and written when, what it has served. Handles that
  need more than "read, compare, write" are in ``_odd``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from asyncli.core.life import ANNOUNCED, AWAITING, CONNECTING, DEADLINE, EOF, GARBAGE, IDLE, cause, event_of
from asyncli.engine.load_counts import LoadCounts, count, us_between
from asyncli.engine.net import HUNG_UP, PEER_CLOSED, READABLE, WRITABLE, Net
from asyncli.engine.shard import LoadShard
from asyncli.engine.slots import Slots
from asyncli.protocols.interface import Event
from asyncli.protocols.replies import Garbled, Replies, State
from asyncli.records import Deaths, Ended, Tick

MOST_EVENTS = 256
# Half of a listen backlog of nginx's default, 511.
MOST_PENDING = 256
# One answer mostly fits the first; a train of them is read in larger pieces. Past 128 KiB the allocator maps and unmaps the
# buffer at each read, which costs more than the read does.
SHORT_READ, LONG_READ = 8192, 65_536
# More than anything: a bench by time, and bytes that no known answer begins with.
UNBOUNDED = 1 << 62
NEVER = float("inf")
WATCH = READABLE | PEER_CLOSED


class Load(ABC):
    """Worker ``worker``'s share of a bench. ``kept``: connections stand before they are asked on, and are opened at once."""

    def __init__(self, shard: LoadShard, worker: int, net: Net, kept: bool) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._read = SHORT_READ if shard.pipeline == 1 else LONG_READ
        self._closed_loop, self._repeats = shard.rate is None, shard.may_repeat
        # Requests to hand out yet; of an open loop, what stands in its schedule and has not come due.
        self._todo = UNBOUNDED if shard.requests is None else len(range(worker, shard.requests, shard.workers))
        self._again: deque[tuple[float, int]] = deque()  # to be asked again: since when, and how many
        self._outstanding = 0
        # By destination.
        self._replies = [Replies(shard.new_reader, self._read) for _ in shard.destinations]
        self._known = [replies.known for replies in self._replies]
        self._asks = [shard.asks[one.target] for one in shard.destinations]
        self._only_ask = self._asks[0] if len(set(self._asks)) == 1 and shard.pipeline == 1 and self._closed_loop else b""
        self._slots = Slots(shard, worker, waiting=kept)
        self._counts = LoadCounts(shard, self._replies)
        # By handle, grown on demand.
        self._pending: list[int] = []
        self._since: list[float] = []
        self._written: list[float] = []
        self._served: list[int] = []
        self._slot: list[int] = []  # -1: no connection of ours
        self._place: list[int] = []
        self._odd: set[int] = set()
        # Of odd handles alone.
        self._connecting: dict[int, float] = {}
        self._claimed: dict[int, tuple[float, int]] = {}  # while connecting: what is to be asked then, and since when
        self._fresh: dict[int, tuple[float, float]] = {}  # no answer yet: connecting since, connected at
        self._state: dict[int, tuple[State, float]] = {}  # in the midst of an answer, whose first bytes came then
        self._unsent: dict[int, bytes] = {}
        self._closing: dict[int, float] = {}  # whole, and the server is to close: since when
        self._to_close: list[tuple[int, bool]] = []
        # Connections with nothing to do, the longest rested first; a handle may stand here that has ended since.
        self._free: deque[int] = deque()
        #: How long the driver may let answers gather before the next turn.
        self.pause_s = 0.0
        self._t0 = self._stop_at = NEVER
        # A deadline is met to a twentieth of itself.
        self._sweep_s = min(1.0, shard.timeout_s / 20, shard.connect_timeout_s / 20)
        self._next_sweep = 0.0
        self._last_answer = self._last_held = 0.0
        self.over = False
        self.held = 0

    # -- what a loop decides

    @abstractmethod
    def _claim(self, room: int, now: float) -> tuple[float, int]:
        """Up to ``room`` requests to ask: since when their latency counts, and how many."""

    @abstractmethod
    def _claim_to_connect(self, began: float) -> tuple[float, int]:
        """What a connection asks as soon as it stands."""

    @abstractmethod
    def _give_back(self, claimed: tuple[float, int], began: float) -> None:
        """What was to be asked on a connection that never stood."""

    @abstractmethod
    def _use_slot(self, slot: int, now: float) -> None:
        """The slot's time to connect has come."""

    @abstractmethod
    def _use_free(self, handle: int, now: float) -> None:
        """The connection is free."""

    @abstractmethod
    def _use_all_free(self, now: float) -> None:
        """Ask what is to be asked on the connections that are free."""

    def _go_round(self, handle: int) -> bool:
        """A short connection's answer and end have come: whether they were counted and the next one is under way."""
        return False

    def _count_overdue(self, now: float, waited: dict[int, int]) -> int:
        """What should have been asked by now and was not, added to ``waited`` by how long ago."""
        return 0

    # -- what the driver calls

    def start(self, t0: float) -> None:
        """Begin at ``t0`` on the net's clock."""
        self._t0 = self._last_held = t0
        if self._shard.duration_s is not None:
            self._stop_at = t0 + self._shard.duration_s

    def stop(self, why: Ended = "stopped") -> None:
        """Ask no more; what is outstanding is left in flight, and what was not asked yet is left."""
        if self.over:
            return
        self.over = True
        asked, now = self._counts.asked, self._net.clock()
        asked.ended[why] = 1
        asked.ended_s = now - self._t0
        asked.in_flight += self._outstanding
        waited: dict[int, int] = {}
        for handle, slot in enumerate(self._slot):
            if slot >= 0 and self._pending[handle]:
                count(waited, us_between(self._since[handle], now), self._pending[handle])
        self._again.extend(one for one in self._claimed.values() if one[1])
        if self._shard.requests is not None:
            asked.left += self._todo + sum(many for _, many in self._again)
        asked.overdue += self._count_overdue(now, waited)
        asked.outstanding_us.add_counts(waited)

    def wait_s(self) -> float:
        """How long the driver may wait for the network."""
        return self._sweep_s if self.over else max(0.0, self._next_instant() - self._net.clock())

    def _next_instant(self) -> float:
        room = len(self._connecting) < MOST_PENDING
        return min(self._next_sweep, self._stop_at, self._slots.next_due if room else NEVER)

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Do what the network has ready and what is due."""
        if self.over:
            return
        self._serve(events)
        now = self._net.clock()
        if now >= self._stop_at:
            self.stop("time")
            return
        self._use_all_free(now)
        while self._slots.next_due <= now and len(self._connecting) < MOST_PENDING:
            self._use_slot(self._slots.pop(), now)
            now = self._net.clock()
        if now >= self._next_sweep:
            self._sweep(now)
        self._close_handles()
        if not self._outstanding and not self._todo and not self._again and not any(one[1] for one in self._claimed.values()):
            self.stop("asked")

    def take_tick(self, second: int) -> Tick:
        """The counts since the last call, with the gauges of now."""
        self._counts.asked.last_s = max(0.0, self._last_answer - self._t0)
        tick = self._counts.take()
        tick.dropped = dict.fromkeys(self._slots.dropped(), 1)
        tick.started = self._slots.take_started()
        tick.second, tick.workers, tick.held, tick.connecting = second, 1, self.held, len(self._connecting)
        tick.awaiting, tick.drained = self._outstanding, int(self.over)
        return tick

    # -- answers

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """The hot path."""
        net, odd, most, counts = self._net, self._odd, self._read, self._counts
        recv, send, clock = net.recv, net.send, net.clock
        pending, since, served, known_at, place = self._pending, self._since, self._served, self._known, self._place
        closed_loop, only, sent = self._closed_loop, self._only_ask, 0
        deep, short = self._shard.pipeline > 1, self._shard.short and closed_loop
        answered_at = self._last_answer
        for handle, what in events:
            if handle in odd:
                if not (short and what & PEER_CLOSED and self._go_round(handle)):
                    self._handle_slow_path(handle, what)
                continue
            try:
                data = recv(handle, most)
            except BlockingIOError:
                continue
            except OSError as error:
                self._end(handle, event_of(error.errno))
                continue
            now = clock()
            known = known_at[place[handle]]
            answer = known.data
            if data == answer:
                many = 1
            elif deep and len(data) > len(answer) > 0 == len(data) % len(answer) and known.train.startswith(data):
                many = len(data) // len(answer)
            else:
                many = UNBOUNDED
            left = pending[handle] - many
            if left < 0:
                self._take(handle, data, now, what)
                continue
            # Whole answers, the same bytes as the last: nearly all of a bench on kept connections comes by here.
            answered_at = now
            us = int((now - since[handle]) * 1e6)
            by_us = known.by_us
            by_us[us] = by_us.get(us, 0) + many
            served[handle] += many
            if not closed_loop:
                count(counts.answering_us, int((now - self._written[handle]) * 1e6), many)
            if only and self._todo:
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
            self._outstanding -= many
            if not left:
                self._use_free(handle, now)
        counts.sent += sent
        counts.sent_bytes += sent * len(only)
        self._last_answer = max(self._last_answer, answered_at)
        self._close_handles()

    def _handle_slow_path(self, handle: int, what: int) -> None:
        """An event of an odd handle."""
        if (began := self._connecting.get(handle)) is not None:
            self._connected(handle, began, self._claimed.pop(handle), WATCH | WRITABLE)
        elif handle in self._closing:
            if what & HUNG_UP or self._receive(handle) == b"":
                self._let_go(handle)
        elif self._slot[handle] >= 0:
            if handle in self._unsent and what & WRITABLE:
                self._flush(handle)
            if what & ~WRITABLE and self._slot[handle] >= 0 and (data := self._receive(handle)) is not None:
                self._take(handle, data, self._net.clock(), what)

    def _receive(self, handle: int) -> bytes | None:
        """None: nothing has come, or the connection has ended."""
        try:
            return self._net.recv(handle, self._read)
        except BlockingIOError:
            return None
        except OSError as error:
            if handle in self._closing:
                return b""
            self._end(handle, event_of(error.errno))
            return None

    def _take(self, handle: int, data: bytes, now: float, what: int) -> None:
        """Count the answers that ``data`` makes whole, and ask again."""
        place = self._place[handle]
        replies = self._replies[place]
        state, first_byte = self._state.pop(handle, (None, now))
        if not data:
            last = replies.end(state)
            if last is not None and self._pending[handle]:
                self._answered(handle, last, 1, first_byte, now)
            self._end(handle, EOF if last is None else ANNOUNCED, what | HUNG_UP, begun=state is not None)
            return
        self._counts.tick.bytes_received += len(data)
        runs, state, over = replies.take(state, data)
        self._known[place] = replies.known
        unasked = False
        for event, many in runs:
            wanted = min(many, self._pending[handle])
            if wanted:
                self._answered(handle, event, wanted, first_byte, now)
            unasked = unasked or wanted < many
            first_byte = now
        if unasked or isinstance(state, Garbled) or (state is not None and not self._pending[handle]):
            self._end(handle, GARBAGE)
        elif over:
            self._end(handle, ANNOUNCED, what)
        elif state is not None:
            self._state[handle] = state, first_byte
            self._odd.add(handle)
        # After an answer before the request was whole, the rest of it is still owed.
        elif handle not in self._unsent:
            self._settle(handle)
            if not self._pending[handle]:
                self._next(handle, now)

    def _answered(self, handle: int, event: Event, many: int, first_byte: float, now: float) -> None:
        counts, since = self._counts, self._since[handle]
        self._pending[handle] -= many
        self._outstanding -= many
        self._served[handle] += many
        counts.answers(event, many, self._place[handle])
        count(counts.whole_us, us_between(since, now), many)
        # A connect is part of the whole, but nothing of the server's work on the request; nor is the time before it was written.
        since = self._written[handle] if not self._closed_loop else since
        if (fresh := self._fresh.pop(handle, None)) is not None:
            since = max(since, fresh[1])
        count(counts.processing_us, us_between(since, now), many)
        count(counts.waiting_us, us_between(since, first_byte), many)
        self._last_answer = now
        self._slots.retries[self._slot[handle]] = 0

    def _next(self, handle: int, now: float) -> None:
        """All that was asked on the connection is answered."""
        if self._shard.short:
            # Asked to close it, the server has not said that it will: nobody waits for it.
            self._end(handle, ANNOUNCED, HUNG_UP)
        else:
            self._use_free(handle, now)

    # -- requests

    def _first_is_free(self) -> bool:
        """Whether a connection is free; then the one that has rested longest stands first."""
        free = self._free
        while free:
            handle = free[0]
            taken = self._slot[handle] < 0 or self._pending[handle] or handle in self._closing or handle in self._connecting
            if not taken:
                return True
            free.popleft()
        return False

    def _bytes(self, place: int, many: int) -> bytes:
        """So many requests to a destination."""
        return self._asks[place]

    def _write(self, handle: int, since: float, many: int, now: float) -> None:
        """Write so many requests, whose latency counts from ``since``."""
        data = self._bytes(self._place[handle], many)
        self._note_asked(handle, since, many, len(data), now)
        try:
            taken = self._net.send(handle, data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return
        if taken < len(data):
            self._keep_unsent(handle, data[taken:])

    def _note_asked(self, handle: int, since: float, many: int, size: int, now: float) -> None:
        self._pending[handle], self._since[handle], self._written[handle] = many, since, now
        self._outstanding += many
        self._counts.sent += many
        self._counts.sent_bytes += size

    def _keep_unsent(self, handle: int, data: bytes) -> None:
        self._unsent[handle] = data
        self._odd.add(handle)
        self._net.watch(handle, WATCH | WRITABLE, again=True)

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
        self._net.watch(handle, WATCH, again=True)
        self._settle(handle)
        if not self._pending[handle]:
            self._next(handle, self._net.clock())  # it was answered before it was whole

    def _settle(self, handle: int) -> None:
        """It may be odd no more. An answer too long to be remembered is as empty as a stream's end: only the slow path tells them
        apart.
        """
        if handle not in self._fresh and handle not in self._state and self._known[self._place[handle]].data:
            self._odd.discard(handle)

    # -- connections

    def _connect(self, slot: int) -> None:
        net, place = self._net, self._slots.place[slot]
        began = net.clock()
        number = self._slots.begin(slot)
        claimed = self._claim_to_connect(began)
        try:
            handle = net.connect(place, number * self._shard.workers + self._worker)
        except OSError as error:
            self._give_back(claimed, began)
            self._connect_failed(slot, event_of(error.errno), began)
            return
        self._alloc_row(handle, slot)
        if self._shard.local:
            # There the handshake is mostly over when connect() returns, and nothing need be awaited.
            self._connected(handle, began, claimed, 0)
        else:
            self._connecting[handle], self._claimed[handle] = began, claimed
            net.watch(handle, WATCH | WRITABLE)

    def _alloc_row(self, handle: int, slot: int) -> None:
        while handle >= len(self._slot):
            for column in (self._pending, self._since, self._written, self._served, self._place):
                column.append(0)
            self._slot.append(-1)
        self._pending[handle] = self._served[handle] = 0
        self._slot[handle], self._place[handle] = slot, self._slots.place[slot]
        self._odd.add(handle)

    def _connected(self, handle: int, began: float, claimed: tuple[float, int], watched: int) -> None:
        """A connect that may have ended: what is ``claimed`` is written, and the write tells. ``watched``: for these events."""
        net, slot = self._net, self._slot[handle]
        now = net.clock()
        since, many = claimed
        data = self._bytes(self._place[handle], many) if many else b""
        try:
            taken = net.send(handle, data)
        except OSError as error:
            self._not_connected(handle, began, claimed, watched, error)
            return
        self._connecting.pop(handle, None)
        self._slots.established(slot)
        self._fresh[handle] = began, now
        count(self._counts.connect_us, us_between(began, now), 1)
        self.held += 1
        net.watch(handle, WATCH if taken == len(data) else WATCH | WRITABLE, again=watched != 0)
        if taken < len(data):
            self._unsent[handle] = data[taken:]
        if many:
            self._note_asked(handle, since, many, len(data), now)
        else:
            self._use_free(handle, now)

    def _not_connected(self, handle: int, began: float, claimed: tuple[float, int], watched: int, error: OSError) -> None:
        """What a write says of a connect: not yet, or never."""
        self._connecting[handle], self._claimed[handle] = began, claimed
        if not isinstance(error, BlockingIOError):
            self._end(handle, event_of(error.errno))
        elif not watched & WRITABLE:
            self._net.watch(handle, WATCH | WRITABLE, again=watched != 0)

    def _connect_failed(self, slot: int, event: str, now: float) -> None:
        why = cause(CONNECTING, event)
        if self._slots.failed(slot, why != "no_descriptors", now):
            failures = self._counts.tick.failures
            failures[why] = failures.get(why, 0) + 1

    def _end(self, handle: int, event: str, what: int = 0, *, begun: bool = False) -> None:
        """The one way a connection, or an attempt at one, ends. What it leaves unanswered is asked again elsewhere.

        ``begun``: bytes of the first unanswered one's answer had come.
        """
        slot, now = self._slot[handle], self._net.clock()
        if (began := self._connecting.pop(handle, None)) is not None:
            self._give_back(self._claimed.pop(handle), began)
            self._free_row(handle, abort=event == DEADLINE)
            self._connect_failed(slot, event, now)
            return
        pending, served, asked = self._pending[handle], self._served[handle], self._counts.asked
        self.held -= 1
        self._last_held = now
        count(self._counts.per_connection, served, 1)
        self._outstanding -= pending
        if self._shard.short and event == ANNOUNCED:
            # As it should be. The peer closes first, so that the port waits (TIME_WAIT) on its side and not on ours.
            self._closing[handle] = now
            self._odd.add(handle)
            if what & HUNG_UP or handle in self._unsent:
                self._let_go(handle)
            return
        why = cause(AWAITING if pending else IDLE, event)
        deaths = self._counts.tick.deaths.setdefault(why, Deaths())
        deaths.count += 1
        deaths.requests.add(served)
        begun = begun or handle in self._state
        if pending and (begun or not served or event in (DEADLINE, GARBAGE) or not self._repeats):
            asked.failed[why] = asked.failed.get(why, 0) + 1
            pending -= 1
        if pending:
            asked.resent += pending
            self._again.append((self._since[handle], pending))
        self._free_row(handle, abort=event in (DEADLINE, GARBAGE))
        if served:
            self._slots.connect_at(slot, now)
        else:
            self._slots.back_off(slot, now)

    def _let_go(self, handle: int) -> None:
        """Of a connection that was to end: the peer has closed too, or nobody waits for it."""
        self._slots.connect_at(self._slot[handle], 0.0)
        self._free_row(handle, abort=False)

    def _free_row(self, handle: int, abort: bool) -> None:
        self._slot[handle], self._pending[handle] = -1, 0
        self._odd.add(handle)  # an event of this batch may still name it
        for columns in (self._closing, self._fresh, self._state, self._unsent):
            columns.pop(handle, None)
        self._to_close.append((handle, abort))

    def _close_handles(self) -> None:
        for handle, abort in self._to_close:
            self._net.close(handle, abort)
            self._odd.discard(handle)
        self._to_close.clear()

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
        self._use_all_free(now)
        if self.held:
            self._last_held = now
        elif now - self._last_held > self._slots.patience_s(self._sweep_s) and not self._closing:
            self._close_handles()
            self.stop("gave up")
