"""The connections of one process of ``asyncli bench`` as rows of columns, and the life of each from
its connect to its end.

The counterpart of held_connections.py for benches. Rules:

- A request is answered, failed, in flight at the end, or still to be sent. The unanswered requests
of a connection that ends are
  sent again on another, and counted; their latency counts from the first time. But the first of
  them has failed if its answer
  had begun, if it timed out, if it may not be repeated (RFC 9110, 9.2.2), or if the connection
  never answered anything: so every
  bench ends.
- Rows are indexed by handle. Handles that need more than "read, compare, write" are in ``_slow``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from asyncli.core.life import (
    ABORTS,
    ANNOUNCED,
    AWAITING,
    CONNECTING,
    DEADLINE,
    IDLE,
    MALFORMED,
    cause,
    event_of,
)
from asyncli.engine.bench_counts import LoadCounts, count, us_between
from asyncli.engine.net import HUNG_UP, PEER_CLOSED, READABLE, WRITABLE, Net
from asyncli.engine.shard import LoadShard
from asyncli.engine.slots import Slots
from asyncli.model.records import Deaths
from asyncli.protocols.replies import Replies, State

# For one answer, and for the answers of a pipeline. Beyond 128 KiB the allocator maps and unmaps
# the buffer at each read, which costs more than the read.
_SHORT_READ, _LONG_READ = 8192, 65_536
# The number of requests of a bench by time.
UNBOUNDED = 1 << 62
WATCH = READABLE | PEER_CLOSED


class LoadConnections(ABC):
    """Worker ``worker``'s connections. ``kept``: they are all opened at the start, and reused."""

    def __init__(self, shard: LoadShard, worker: int, net: Net, kept: bool) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._read = _SHORT_READ if shard.pipeline == 1 else _LONG_READ
        self._closed_loop = shard.rate is None
        self._asks_at_once = self._closed_loop or not kept
        # Requests not yet assigned to a connection; in an open loop, those not due yet.
        self._todo = (
            UNBOUNDED
            if shard.requests is None
            else len(range(worker, shard.requests, shard.workers))
        )
        self._resend: deque[tuple[float, int]] = (
            deque()
        )  # to send again: (start of their latency, number)
        self._outstanding = 0
        # By destination.
        self._replies = [Replies(shard.new_reader, self._read) for _ in shard.destinations]
        self._known = [replies.known for replies in self._replies]
        self._requests = [shard.asks[destination.target] for destination in shard.destinations]
        # Requests that it allows a connection: learnt when two in a row were closed, announced,
        # after the same number.
        self._limits, self._last_limits = (
            [UNBOUNDED] * len(self._requests),
            [0] * len(self._requests),
        )
        self._slots = Slots(shard, worker, waiting=kept)
        self._counts = LoadCounts(shard, self._replies)
        # By handle, grown on demand.
        self._pending: list[int] = []
        self._since: list[float] = []
        self._written: list[float] = []
        self._served: list[int] = []
        self._slot: list[int] = []  # -1: no connection of ours
        self._destination: list[int] = []
        self._slow: set[int] = set()
        # Only for handles in _slow.
        self._connecting: dict[int, float] = {}
        self._claimed: dict[
            int, tuple[float, int]
        ] = {}  # while connecting: (start of latency, number) of its first requests
        self._fresh: dict[
            int, tuple[float, float]
        ] = {}  # no answer yet: (connect begun, connected)
        self._state: dict[
            int, tuple[State, float]
        ] = {}  # in the middle of an answer: (state, instant of its first bytes)
        self._unsent: dict[int, bytes] = {}
        self._closing: dict[int, float] = {}  # all answered, and the server is to close: since when
        self._to_close: list[tuple[int, bool]] = []
        # Idle connections, the longest idle first; some may have ended since.
        self._free: deque[int] = deque()
        self._last_held = 0.0
        self.held = 0

    # -- the loops differ in these

    @abstractmethod
    def _claim(self, now: float, destination: int, served: int) -> tuple[float, int]:
        """Take the next requests for a connection that has served ``served``: (start of their
        latency, number).
        """

    @abstractmethod
    def _use_free(self, handle: int, now: float) -> None:
        """The connection is free."""

    # -- requests

    def _on_all_answered(self, handle: int, now: float) -> None:
        """All requests of the connection are answered."""
        if self._shard.short:
            # The server was asked to close and has not announced it: do not wait for it.
            self._end(handle, ANNOUNCED, HUNG_UP)
        else:
            self._use_free(handle, now)

    def _has_free(self) -> bool:
        """Whether a connection is free; if so, the longest idle one is the first in ``_free``."""
        free = self._free
        while free:
            handle = free[0]
            taken = (
                self._slot[handle] < 0
                or self._pending[handle]
                or handle in self._closing
                or handle in self._connecting
            )
            if not taken:
                return True
            free.popleft()
        return False

    def _write(self, handle: int, since: float, many: int, now: float) -> None:
        """Write ``many`` requests, whose latency counts from ``since``."""
        data = self._requests[self._destination[handle]] * many
        self._count_sent(handle, since, many, len(data), now)
        try:
            taken = self._net.send(handle, data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._end(handle, event_of(error.errno))
            return
        if taken < len(data):
            self._keep_unsent(handle, data[taken:])

    def _count_sent(self, handle: int, since: float, many: int, size: int, now: float) -> None:
        self._pending[handle], self._since[handle], self._written[handle] = many, since, now
        self._outstanding += many
        self._counts.sent += many
        self._counts.sent_bytes += size

    def _keep_unsent(self, handle: int, data: bytes) -> None:
        self._unsent[handle] = data
        self._slow.add(handle)
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
        self._leave_slow_path(handle)
        if not self._pending[handle]:
            self._on_all_answered(
                handle, self._net.clock()
            )  # the answer came before the request was sent whole

    def _leave_slow_path(self, handle: int) -> None:
        """Return the handle to the fast path, if nothing keeps it off. An answer too long to
        remember is stored as b"", like the end of a stream: only the slow path can tell them apart.
        """
        if (
            handle not in self._fresh
            and handle not in self._state
            and self._known[self._destination[handle]].data
        ):
            self._slow.discard(handle)

    # -- connections

    def _connect(self, slot: int) -> None:
        net, destination = self._net, self._slots.destination[slot]
        began = net.clock()
        number = self._slots.begin(slot)
        claimed = self._claim(began, destination, 0) if self._asks_at_once else (began, 0)
        try:
            handle = net.connect(destination, number * self._shard.workers + self._worker)
        except OSError as error:
            self._put_back(claimed, began)
            self._connect_failed(slot, event_of(error.errno), began)
            return
        self._alloc_row(handle, slot)
        if self._shard.local:
            # On one host TCP's handshake is mostly over when connect() returns.
            self._connected(handle, began, claimed, 0)
        else:
            self._connecting[handle], self._claimed[handle] = began, claimed
            net.watch(handle, WATCH | WRITABLE)

    def _put_back(self, claimed: tuple[float, int], began: float) -> None:
        """Put back the requests of a connect that failed."""
        since, many = claimed
        if self._closed_loop and since == began:
            self._todo += many
        elif many:
            self._resend.appendleft(claimed)

    def _alloc_row(self, handle: int, slot: int) -> None:
        while handle >= len(self._slot):
            for column in (
                self._pending,
                self._since,
                self._written,
                self._served,
                self._destination,
            ):
                column.append(0)
            self._slot.append(-1)
        self._pending[handle] = self._served[handle] = 0
        self._slot[handle], self._destination[handle] = slot, self._slots.destination[slot]
        self._slow.add(handle)

    def _connected(
        self, handle: int, began: float, claimed: tuple[float, int], watched: int
    ) -> None:
        """Write the ``claimed`` requests, which returns the outcome of the connect. ``watched``:
        the events it is watched for.
        """
        net, slot = self._net, self._slot[handle]
        now = net.clock()
        since, many = claimed
        data = self._requests[self._destination[handle]] * many
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
            self._count_sent(handle, since, many, len(data), now)
        else:
            self._use_free(handle, now)

    def _not_connected(
        self, handle: int, began: float, claimed: tuple[float, int], watched: int, error: OSError
    ) -> None:
        """The write showed that the connect is still in progress, or has failed."""
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
        """End a connection or a connect; every end comes here. Its unanswered requests are sent
        again on others.

        ``begun``: the answer to the first of them had begun.
        """
        slot, now = self._slot[handle], self._net.clock()
        if (began := self._connecting.pop(handle, None)) is not None:
            self._put_back(self._claimed.pop(handle), began)
            self._free_row(handle, abort=event in ABORTS)
            self._connect_failed(slot, event, now)
            return
        pending, served, asked = self._pending[handle], self._served[handle], self._counts.asked
        self.held -= 1
        self._last_held = now
        count(self._counts.per_connection, served, 1)
        self._outstanding -= pending
        if self._shard.short and event == ANNOUNCED:
            # The expected end. The peer closes first, so that TIME_WAIT is on its side.
            self._closing[handle] = now
            self._slow.add(handle)
            if what & HUNG_UP or handle in self._unsent:
                self._close(handle)
            return
        why = cause(AWAITING if pending else IDLE, event)
        deaths = self._counts.tick.deaths.setdefault(why, Deaths())
        deaths.count += 1
        deaths.requests.add(served)
        if event == ANNOUNCED and served:
            # A pipeline then sends no more requests on one connection.
            destination = self._destination[handle]
            if served == self._last_limits[destination]:
                self._limits[destination] = served
            self._last_limits[destination] = served
        begun = begun or handle in self._state
        if pending and (
            begun or not served or event in (DEADLINE, MALFORMED) or not self._shard.may_repeat
        ):
            asked.failed[why] = asked.failed.get(why, 0) + 1
            pending -= 1
        if pending:
            asked.resent += pending
            self._resend.append((self._since[handle], pending))
        self._free_row(handle, abort=event in ABORTS)
        if served:
            self._slots.connect_at(slot, now)
        else:
            self._slots.back_off(slot, now)

    def _close(self, handle: int) -> None:
        """Close a finished connection: the peer has closed too, or we do not wait for it."""
        self._slots.connect_at(self._slot[handle], 0.0)
        self._free_row(handle, abort=False)

    def _free_row(self, handle: int, abort: bool) -> None:
        self._slot[handle], self._pending[handle] = -1, 0
        self._slow.add(handle)  # this batch may still have an event of it
        for columns in (self._closing, self._fresh, self._state, self._unsent):
            columns.pop(handle, None)
        self._to_close.append((handle, abort))

    def _close_handles(self) -> None:
        for handle, abort in self._to_close:
            self._net.close(handle, abort)
            self._slow.discard(handle)
        self._to_close.clear()

    def _expire(self, now: float) -> None:
        """End the connections whose deadline has passed."""
        for handle, began in list(self._connecting.items()):
            if now - began < self._shard.connect_timeout_s:
                break
            if (event := self._net.late_event(handle)) is not None:
                self._end(handle, event)
        late = now - self._shard.timeout_s
        for handle, began in list(self._closing.items()):
            if began > late:
                break
            self._close(handle)
        for handle, slot in enumerate(self._slot):
            waits = (
                slot >= 0
                and (self._pending[handle] or handle in self._unsent)
                and handle not in self._closing
            )
            # A closed loop's fast path sets only ``_since``; a request that is sent again waits
            # since its second write.
            written = max(self._since[handle], self._written[handle])
            if waits and written < late and handle not in self._connecting:
                self._end(handle, DEADLINE)
