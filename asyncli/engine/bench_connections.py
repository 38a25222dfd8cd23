"""The connections of one process of ``asyncli bench``: a row in columns each, and the life of each from connect to end.

The counterpart of held_connections.py for benches. Laws:

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

from asyncli.core.life import ABORTS, ANNOUNCED, AWAITING, CONNECTING, DEADLINE, IDLE, MALFORMED, cause, event_of
from asyncli.engine.bench_counts import LoadCounts, count, us_between
from asyncli.engine.net import HUNG_UP, PEER_CLOSED, READABLE, WRITABLE, Net
from asyncli.engine.shard import LoadShard
from asyncli.engine.slots import Slots
from asyncli.protocols.replies import Replies, State
from asyncli.records import Deaths

# One answer mostly fits the first; a train of them is read in larger pieces. Past 128 KiB the allocator maps and unmaps the
# buffer at each read, which costs more than the read does.
_SHORT_READ, _LONG_READ = 8192, 65_536
# More than anything: the requests of a bench by time.
UNBOUNDED = 1 << 62
WATCH = READABLE | PEER_CLOSED


class LoadConnections(ABC):
    """Worker ``worker``'s connections. ``kept``: they stand before they are asked on, and are opened at once."""

    def __init__(self, shard: LoadShard, worker: int, net: Net, kept: bool) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._read = _SHORT_READ if shard.pipeline == 1 else _LONG_READ
        self._closed_loop = shard.rate is None
        self._asks_at_once = self._closed_loop or not kept
        # Requests to hand out yet; of an open loop, what stands in its schedule and has not come due.
        self._todo = UNBOUNDED if shard.requests is None else len(range(worker, shard.requests, shard.workers))
        self._again: deque[tuple[float, int]] = deque()  # to be asked again: since when, and how many
        self._outstanding = 0
        # By destination.
        self._replies = [Replies(shard.new_reader, self._read) for _ in shard.destinations]
        self._known = [replies.known for replies in self._replies]
        self._asks = [shard.asks[one.target] for one in shard.destinations]
        # What it is seen to allow a connection: two in turn that were ended, announced, after as many.
        self._limits, self._last_limits = [UNBOUNDED] * len(self._asks), [0] * len(self._asks)
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
        self._last_held = 0.0
        self.held = 0

    # -- what a loop decides

    @abstractmethod
    def _claim(self, now: float, place: int, served: int) -> tuple[float, int]:
        """What a connection that has served so many asks next: since when the latency counts, and how many requests."""

    @abstractmethod
    def _use_free(self, handle: int, now: float) -> None:
        """The connection is free."""

    # -- requests

    def _next(self, handle: int, now: float) -> None:
        """All that was asked on the connection is answered."""
        if self._shard.short:
            # Asked to close it, the server has not said that it will: nobody waits for it.
            self._end(handle, ANNOUNCED, HUNG_UP)
        else:
            self._use_free(handle, now)

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

    def _write(self, handle: int, since: float, many: int, now: float) -> None:
        """Write so many requests, whose latency counts from ``since``."""
        data = self._asks[self._place[handle]] * many
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
        claimed = self._claim(began, place, 0) if self._asks_at_once else (began, 0)
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

    def _give_back(self, claimed: tuple[float, int], began: float) -> None:
        """What was to be asked on a connection that never stood."""
        since, many = claimed
        if self._closed_loop and since == began:
            self._todo += many
        elif many:
            self._again.appendleft(claimed)

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
        data = self._asks[self._place[handle]] * many
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
            self._free_row(handle, abort=event in ABORTS)
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
        if event == ANNOUNCED and served:
            # A pipeline then asks no more of one.
            place = self._place[handle]
            if served == self._last_limits[place]:
                self._limits[place] = served
            self._last_limits[place] = served
        begun = begun or handle in self._state
        if pending and (begun or not served or event in (DEADLINE, MALFORMED) or not self._shard.may_repeat):
            asked.failed[why] = asked.failed.get(why, 0) + 1
            pending -= 1
        if pending:
            asked.resent += pending
            self._again.append((self._since[handle], pending))
        self._free_row(handle, abort=event in ABORTS)
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

    def _expire(self, now: float) -> None:
        """End what has waited too long."""
        for handle, began in list(self._connecting.items()):
            if now - began < self._shard.connect_timeout_s:
                break
            if (event := self._net.late_event(handle)) is not None:
                self._end(handle, event)
        late = now - self._shard.timeout_s
        for handle, began in list(self._closing.items()):
            if began > late:
                break
            self._let_go(handle)
        for handle, slot in enumerate(self._slot):
            waits = slot >= 0 and (self._pending[handle] or handle in self._unsent) and handle not in self._closing
            # A closed loop's fast path notes one instant only; what is asked again has waited since the second write.
            written = max(self._since[handle], self._written[handle])
            if waits and written < late and handle not in self._connecting:
                self._end(handle, DEADLINE)
