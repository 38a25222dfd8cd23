"""A simulated network: a server with faults and a virtual clock that jumps from event to event.

The same :class:`~asyncli.engine.held_table.ConnectionTable` runs on it as on the kernel. A soak of
twelve hours takes seconds, and its counts are exact: every event has its instant, and all
randomness comes from the seed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from asyncli.core.heartbeat import fraction
from asyncli.core.life import DEADLINE
from asyncli.engine.bench_load import MOST_EVENTS
from asyncli.engine.bench_worker import new_load
from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.net import PEER_CLOSED, READABLE, WRITABLE, Unacknowledged
from asyncli.engine.shard import LoadShard, Shard
from asyncli.model.records import Tick

_NEVER = float("inf")
# The segments of loopback, and those of a path with an MTU of 1500 (bytes).
_UNLIMITED, _LIMITED = 65_483, 1448
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_OK_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class SimServer(msgspec.Struct, frozen=True):
    """How the simulated server behaves. Times in seconds, shares from 0 to 1; None and 0 switch a
    behaviour off.

    ``idle_timeout_s`` closes a connection that long after its last request; ``most_requests`` and
    ``longest_age_s`` announce ``Connection: close`` with the answer that reaches them, as nginx's
    keepalive_requests and keepalive_time do. Of the requests, ``reset_share`` are answered with
    RST, ``drop_share`` never (a dead, silent connection, as a middle box leaves it), ``cut_share``
    by closing in the middle of the answer. After ``refuse_after`` connections further ones are
    refused. ``resets_all_at_s`` resets every connection at that instant. ``stalls_s``: answers due
    between these two instants come at the second. Pipelined requests are answered in order;
    ``Connection: close`` in a request is obeyed. With a ``connect_s`` of 0 a connect is over when
    the call returns, as on loopback. ``fin_after_s``: from a last answer to the end of the stream.
    ``takes_bytes``: the send buffer, which has room again ``latency_s`` after a write.
    """

    latency_s: float = 0.000_2
    connect_s: float = 0.000_1
    idle_timeout_s: float | None = None
    most_requests: int = 0
    longest_age_s: float | None = None
    reset_share: float = 0.0
    drop_share: float = 0.0
    cut_share: float = 0.0
    refuse_after: int | None = None
    resets_all_at_s: float | None = None
    stalls_s: tuple[float, float] | None = None
    fin_after_s: float = 1e-6
    takes_bytes: int | None = None
    seed: int = 0


class _Connection:
    __slots__ = (
        "accepted",
        "age_from",
        "ended",
        "error",
        "full",
        "inbox",
        "last_request",
        "number",
        "requests",
        "segments",
        "silent",
        "unheard",
        "unread",
        "watched",
    )

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.age_from = now
        self.last_request = now
        self.requests = 0
        self.segments = _UNLIMITED
        self.accepted = False
        self.silent = False
        self.ended = False  # by the server, which sends no further answer
        self.error = 0
        self.inbox: list[bytes] = []  # b"" is the end of the stream
        self.watched = 0
        self.full = False
        self.unread = b""  # the beginning of a request
        # What comes while the client's host has lost the network; None while it has not.
        self.unheard: list[tuple[str, bytes]] | None = None


class SimNet:
    """A network for one table. ``now`` is the virtual clock; ``advance`` moves it and handles the
    events that are due.
    """

    def __init__(self, server: SimServer, start: float = 0.0) -> None:
        self.server = server
        self.now = start
        self.accepted = 0
        self.requests = 0
        self.swallowed = 0
        # By instant, then in the order in which they were scheduled.
        self._events: list[tuple[float, int, int, int, str, bytes]] = []
        self._scheduled = 0
        self._order = 0
        self._segments = _UNLIMITED
        self._free: list[int] = []
        self._connections: dict[int, _Connection] = {}
        self._highest = 2
        self._ready: dict[int, None] = {}
        if server.resets_all_at_s is not None:
            self._at(server.resets_all_at_s, -1, "reset all")

    # -- the interface Net

    def clock(self) -> float:
        return self.now

    def connect(self, destination: int, source: int) -> int:
        if self._free:
            handle = heappop(self._free)
        else:
            self._highest += 1
            handle = self._highest
        self._order += 1
        self._connections[handle] = _Connection(self._order, self.now)
        self._connections[handle].segments = self._segments
        if self.server.connect_s:
            self._at(self.now + self.server.connect_s, handle, "accept")
            return handle
        self._handle(self._order, handle, "accept", b"")
        return handle

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        self._connections[handle].watched = events
        self._note(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = []
        for handle in list(self._ready)[:most]:
            del self._ready[handle]
            what = self._readiness(handle)
            if what:
                events.append((handle, what))
                self._ready[handle] = (
                    None  # level-triggered: to the back of the queue while it is ready
                )
        return events

    def send(self, handle: int, data: bytes) -> int:
        connection = self._connections[handle]
        if connection.error:
            raise OSError(connection.error, "simulated")
        if not connection.accepted or (connection.full and data):
            raise BlockingIOError(errno.EAGAIN, "simulated")
        if not data or (connection.inbox and connection.inbox[-1] == b""):
            return len(data)  # the peer has closed, and its RST has not arrived yet
        data = data[: self.server.takes_bytes]
        *requests, connection.unread = (connection.unread + data).split(b"\r\n\r\n")
        for request in requests:
            if not connection.silent and not connection.ended:
                self._serve(handle, connection, b"Connection: close" in request)
        if self.server.takes_bytes is not None:
            connection.full = True
            self._at(self.now + self.server.latency_s, handle, "room")
        return len(data)

    def recv(self, handle: int, most: int) -> bytes:
        connection = self._connections[handle]
        if connection.error:
            raise OSError(connection.error, "simulated")
        if not connection.inbox:
            raise BlockingIOError(errno.EAGAIN, "simulated")
        if connection.inbox[0] == b"":
            return b""
        data = connection.inbox.pop(0)
        if len(data) > most:
            connection.inbox.insert(0, data[most:])
        return data[:most]

    def close(self, handle: int, abort: bool) -> None:
        del self._connections[handle]
        self._ready.pop(handle, None)
        heappush(self._free, handle)

    def replace(self, handle: int, destination: int, source: int) -> int:
        watched = self._connections[handle].watched
        self.close(handle, abort=False)
        other = self.connect(destination, source)
        if other == handle:
            self.watch(other, watched)
        return other

    def limit_segments(self, is_limited: bool) -> None:
        self._segments = _LIMITED if is_limited else _UNLIMITED

    def segment_bytes(self, handle: int) -> int:
        return self._connections[handle].segments

    def deafen(self, handle: int) -> None:
        connection = self._connections[handle]
        connection.watched = 0
        connection.unheard = []
        self._ready.pop(handle, None)

    def hear(self, handle: int) -> None:
        connection = self._connections[handle]
        unheard = connection.unheard or []
        connection.unheard = None
        # The server's kernel sends it again.
        for kind, data in unheard:
            self._handle(connection.number, handle, kind, data)
        self.watch(handle, READABLE)

    def late_event(self, handle: int) -> str | None:
        return DEADLINE

    def acknowledged(self, handle: int) -> bool:
        return not self._connections[handle].silent

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        return None

    def retransmitted(self, handle: int) -> int:
        return 3 if self._connections[handle].silent else 0

    def add_counts(self, tick: Tick) -> None:
        pass

    # -- time

    @property
    def next_event(self) -> float | None:
        """The instant of the next event; now, if a handle is ready."""
        if any(self._readiness(handle) for handle in self._ready):
            return self.now
        return self._events[0][0] if self._events else None

    def advance(self, to: float) -> None:
        """Move the clock to ``to`` and handle all events until then, in order."""
        while self._events and self._events[0][0] <= to:
            when, _, number, handle, what, data = heappop(self._events)
            self.now = max(self.now, when)
            self._handle(number, handle, what, data)
        self.now = max(self.now, to)

    # -- the server

    def _at(self, when: float, handle: int, what: str, data: bytes = b"") -> None:
        number = self._connections[handle].number if handle in self._connections else 0
        self._scheduled += 1
        heappush(self._events, (when, self._scheduled, number, handle, what, data))

    def _handle(self, number: int, handle: int, what: str, data: bytes) -> None:
        if what == "reset all":
            self._reset_all()
            return
        connection = self._connections.get(handle)
        if connection is None or connection.number != number:
            return  # closed since, and the handle may be reused
        if connection.unheard is not None:
            self._keep_unheard(connection, what, data)
            return
        if what == "accept":
            self._accept(handle, connection)
        elif what == "data":
            connection.inbox.append(data)
        elif what == "room":
            connection.full = False
        elif what == "reset":
            connection.error = errno.ECONNRESET
        elif what == "idle":
            if not self._is_idle(connection):
                return
            connection.inbox.append(b"")
        self._note(handle)

    def _is_idle(self, connection: _Connection) -> bool:
        """Whether a connection has been idle for the server's timeout: a request since it was set
        has scheduled a later event.
        """
        timeout_s = self.server.idle_timeout_s
        return timeout_s is not None and self.now >= connection.last_request + timeout_s - 1e-9

    def _keep_unheard(self, connection: _Connection, kind: str, data: bytes) -> None:
        """Keep what the server's kernel sends again once the client is heard."""
        assert connection.unheard is not None
        if kind != "idle":
            connection.unheard.append((kind, data))
        elif self._is_idle(connection):
            connection.ended = True
            connection.unheard.append(("data", b""))

    def _reset_all(self) -> None:
        for handle, connection in self._connections.items():
            connection.error = connection.error or errno.ECONNRESET
            self._note(handle)

    def _accept(self, handle: int, connection: _Connection) -> None:
        if self.server.refuse_after is not None and self.accepted >= self.server.refuse_after:
            connection.error = errno.ECONNREFUSED
            return
        connection.accepted, connection.age_from = True, self.now
        self.accepted += 1
        self._arm_idle(handle, connection)

    def _serve(self, handle: int, connection: _Connection, close: bool) -> None:
        server = self.server
        self.requests += 1
        connection.requests += 1
        connection.last_request = self.now
        answer_at = self.now + server.latency_s
        if server.stalls_s is not None and server.stalls_s[0] <= answer_at < server.stalls_s[1]:
            answer_at = server.stalls_s[1]
        chance = fraction(server.seed, connection.number, connection.requests)
        if chance < server.reset_share:
            connection.ended = True
            self._at(answer_at, handle, "reset")
            return
        chance -= server.reset_share
        if 0 <= chance < server.drop_share:
            connection.silent = True
            self.swallowed += 1
            return
        chance -= server.drop_share
        if 0 <= chance < server.cut_share:
            self._end(handle, connection, answer_at, _OK[:20])
            return
        full = bool(server.most_requests) and connection.requests >= server.most_requests
        old = (
            server.longest_age_s is not None
            and self.now - connection.age_from >= server.longest_age_s
        )
        if full or old or close:
            self._end(handle, connection, answer_at, _OK_CLOSE)
            return
        self._at(answer_at, handle, "data", _OK)
        self._arm_idle(handle, connection)

    def _end(self, handle: int, connection: _Connection, when: float, last: bytes) -> None:
        """Send ``last``, and close."""
        connection.ended = True
        self._at(when, handle, "data", last)
        self._at(when + self.server.fin_after_s, handle, "data", b"")

    def _arm_idle(self, handle: int, connection: _Connection) -> None:
        if self.server.idle_timeout_s is not None and not connection.silent:
            self._at(connection.last_request + self.server.idle_timeout_s, handle, "idle")

    def _readiness(self, handle: int) -> int:
        connection = self._connections.get(handle)
        if connection is None:
            return 0
        if connection.error:
            return READABLE
        ready = (connection.watched & READABLE if connection.inbox else 0) | (
            connection.watched & WRITABLE if connection.accepted and not connection.full else 0
        )
        return ready | (
            connection.watched & PEER_CLOSED
            if connection.inbox and connection.inbox[-1] == b""
            else 0
        )

    def _note(self, handle: int) -> None:
        if self._connections[handle].watched and self._readiness(handle):
            self._ready[handle] = None


def simulate(
    shard: Shard, server: SimServer, hold_s: float, *, net: SimNet | None = None
) -> Iterator[Tick]:
    """Run a one-worker shard against a simulated server; yields a tick for every virtual second,
    until it has drained.

    The hold begins at the scheduled end of the ramp and lasts ``hold_s``. A ``net`` that is passed
    in keeps its counters.
    """
    net = net or SimNet(server)
    table = ConnectionTable(shard, 0, net)
    table.start(net.now)
    events_s = [event.after_s(hold_s) for event in shard.events]
    table.hold(net.now + shard.ramp.end_s, events_s)
    start, second, upcoming = net.now, 0, table.turn()
    drain_at = start + shard.ramp.end_s + hold_s
    draining = False
    while True:
        instants = [start + second + 1.0]
        if upcoming is not None:
            instants.append(upcoming)
        if (event := net.next_event) is not None:
            instants.append(event)
        if not draining:
            instants.append(drain_at)
        net.advance(max(net.now, min(instants)))
        if not draining and net.now >= drain_at:
            table.drain()
            draining = True
        upcoming = table.turn()
        if net.now >= start + second + 1.0:
            second += 1
            yield table.take_tick(second)
            if table.drained:
                return


def simulate_load(shard: LoadShard, net: SimNet, *, most_s: float = 3600.0) -> Iterator[Tick]:
    """Run a bench's one worker on a simulated network; yields a tick for every virtual second,
    until every request is answered.

    After ``most_s`` virtual seconds it is stopped, as by Ctrl-C.
    """
    load = new_load(shard, 0, net)
    load.start(net.now)
    start, second = net.now, 0
    while True:
        load.turn(net.poll(MOST_EVENTS))
        if load.over or net.now >= start + second + 1.0:
            second += 1
            yield load.take_tick(second)
        if load.over:
            return
        if net.now >= start + most_s:
            load.stop()
            continue
        event = net.next_event
        until = min(
            net.now + load.wait_s(), start + second + 1.0, _NEVER if event is None else event
        )
        # An instant that is a rounding error ahead is due.
        net.advance(max(net.now + 1e-9, until))
