"""The connections of one process: rows in columns, one wheel of what is due, one turn that does what can be done now.

No asyncio here and no clock of its own: a driver calls :meth:`Table.turn` when the network is ready or something is due
(worker.py on the real clock, sim.py on a virtual one). Laws:

- Level-triggered, a bounded number of events a turn.
- No handle is closed before the batch of events is done, so none can come back as another connection within it.
- A row is in the wheel exactly while it is IDLE (next beat) or in BACKOFF (next attempt); CONNECTING and AWAITING rows
  stand in dictionaries in the order of their start, which is the order of their deadlines.
- Lateness counts from the instant that was due, latency too: a stalled generator cannot make the server look good.
- Held is what was heard: what was asked before the drain and is not answered in it is lost.
- After a stall of ours nothing is fired at once: beats that were missed keep their distances, and go out as much later as the
  stall was long. What is lost is opened again no faster than the ramp opened it.
"""

from __future__ import annotations

import math
from array import array

from asyncli.core.heartbeat import backoff_s, sleep_s
from asyncli.core.http1 import ProtocolError, Response, Scanner
from asyncli.core.life import (
    ANNOUNCED,
    AWAITING,
    BACKOFF,
    CONNECTING,
    DEAD,
    DEADLINE,
    EOF,
    GARBAGE,
    IDLE,
    cause,
    event_of,
)  # fmt: skip
from asyncli.core.wheel import Wheel
from asyncli.engine.net import READABLE, WRITABLE, Net
from asyncli.engine.shard import Shard
from asyncli.engine.spread import share
from asyncli.records import Deaths, Tick

# Bounds of one turn: each keeps it near 10 ms at the 20-50 us that a connect or beat takes, so that nothing starves.
MOST_EVENTS = 256
MOST_BEATS = 256
MOST_OPENS = 128
MOST_CLOSES = 400
# Half of a listen backlog of nginx's default, 511, in flight from each worker: more would only queue in the kernel.
MOST_PENDING = 256
# A head of HTTP fits; os.read with a big buffer maps and unmaps it at each call (17 us more at 256 KiB).
READ_BYTES = 8192
# Deadlines are seconds long; looking at them ten times a second makes them 100 ms late at most.
_SWEEP_S = 0.1
# A row that must wait waits for so long at the least, or it would be looked at again in the same turn.
_GRAIN_S = 0.001
# How much of a ramp that fell behind may be made up for in one turn.
_BURST_S = 0.010
# Beats that are so much too late were missed in a stall; less is a busy moment, which a spread would only prolong.
_MISSED_S = 0.1
# Stalls may follow each other, and each puts off what it missed; but a worker that is always late must send all the same.
_MOST_PUT_OFF = 8
# Failed connects to an address that never answered before it is given up for others that do.
_REFUSALS_TO_DROP = 5
# As many may wait for an address that never answered while another of its name does: a quarter of what may be pending, or one
# that leads nowhere would hold up the ramp for a connect's timeout.
_MOST_UNPROVEN = MOST_PENDING // 4


class Table:
    """Worker ``worker``'s share of a shard. ``replaces``: one that was lost, whose connections it opens again."""

    def __init__(self, shard: Shard, worker: int, net: Net, *, replaces: bool = False) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._ramp, self._batches, self._batch_size = shard.ramp, shard.ramp.batches, shard.ramp.batch
        # What every beat and connect asks for, one look-up away.
        self._workers, self._seed, self._keepalive_s, self._local = shard.workers, shard.seed, shard.keepalive_s, shard.local
        rows = share(shard.ramp.connections, shard.ramp.batch, shard.workers, worker)
        self.rows = rows
        self._state = bytearray(rows)  # UNBORN
        self._handle = array("i", b"\xff" * (4 * rows))
        # By handle, grown on demand; never by the descriptor limit, which may be a billion.
        self._row_of = array("i", b"\xff" * (4 * (rows + 64)))
        self._born = array("d", bytes(8 * rows))  # when established
        self._heard = array("d", bytes(8 * rows))  # when last answered (or established): since then it idles
        self._requests = array("I", bytes(4 * rows))  # answered on this connection
        self._beats = array("I", bytes(4 * rows))  # ever, over all lives of the row: the jitter's number
        self._lives = array("I", bytes(4 * rows))
        self._retries = bytearray(rows)
        self._aim = array("H", bytes(2 * rows))  # the destination it was opened to
        self._live = list(range(len(shard.destinations)))
        # By destination: whether a connect ever succeeded there, and until one has: how many failed, and how many wait.
        self._answering = [False] * len(shard.destinations)
        self._refusals = [0] * len(shard.destinations)
        self._unproven = [0] * len(shard.destinations)
        # The destination where a row's last connect failed, and, while its attempt goes on, how many it has tried.
        self._failed_at: dict[int, tuple[int, int]] = {}
        self._connecting: dict[int, float] = {}
        self._awaiting: dict[int, float] = {}
        self._patience = ((self._connecting, shard.connect_timeout_s), (self._awaiting, shard.timeout_s))
        self._partial: dict[int, Scanner] = {}
        # What the kernel had no room for, of rows that have such; they are watched for room as well.
        self._unsent: dict[int, bytes] = {}
        self._doomed: list[tuple[int, bool]] = []
        # The last answer as bytes and what it meant. None at first: b"" would be the end of a stream.
        self._seen: tuple[bytes | None, Response] = (None, Response(0, False))
        self._one_request = shard.requests[0] if len(set(shard.requests)) == 1 else None
        self._batch = worker
        self._opened_of_batch = 0
        self._not_before = 0.0
        # Batches that are due before this instant were open before, in a process that is no more.
        self._replaces = replaces
        self._again_before = math.inf if shard.again else -math.inf
        self._first_pending = 0
        # Reopening is as fast as the ramp: a row that finds the pace used up books the next place in it.
        self._reopen_every_s = shard.ramp.interval_s / shard.ramp.batch * shard.workers
        self._next_reopen = 0.0
        self._booked: set[int] = set()
        # Beats missed in a stall, with the instant that each was due and how often it was put off
        self._missed: dict[int, tuple[float, int]] = {}
        self._stall_end, self._shift_s = -math.inf, 0.0
        self._next_sweep = 0.0
        self._draining = False
        self._closing_row = 0
        self._t0: float | None = None
        self._wheel = Wheel(0, 1.0, 0.0)
        self.held = 0
        self.held_at_drain = 0
        self._tick = Tick()

    # -- what the driver calls

    def start(self, t0: float) -> None:
        """Begin the schedule at ``t0`` on the net's clock."""
        self._t0 = t0
        # The longest that a row can be due ahead: a beat's sleep or a backoff's 45 s.
        now = self._net.clock()
        self._wheel = Wheel(self.rows, max(self._shard.keepalive_s / 2, 45.0) + 1.0, now)
        if self._replaces:
            self._again_before = max(self._again_before, now)
            while not self._shard.reopen and self._batch < self._batches and t0 + self._ramp.due_s(self._batch) < now:
                self._batch += self._workers

    def drain(self) -> None:
        """Count what is open; from here nothing is sent or opened. What ends is no loss, unless it owes an answer."""
        if not self._draining:
            # What the peer has closed by now is lost, and must not be counted as held for want of a look.
            for _ in range(self.rows // MOST_EVENTS + 1):
                if self._take_events() < MOST_EVENTS:
                    break
            self._draining = True
            self.held_at_drain = self.held
            now, state, heard, ago = self._net.clock(), self._state, self._heard, self._tick.heard_ms.add
            for row in range(self.rows):
                if state[row] == IDLE:
                    ago((now - heard[row]) * 1e3)
                elif state[row] == BACKOFF:
                    state[row] = DEAD

    @property
    def drained(self) -> bool:
        return self._draining and self._closing_row >= self.rows and not self._doomed

    @property
    def ramped(self) -> bool:
        """Every batch is issued and every first attempt has ended, well or badly."""
        return self._t0 is not None and self._batch >= self._batches and not self._first_pending

    def turn(self) -> float | None:
        """Do what is due and ready now. The instant of the next turn at the latest, or None: when the network says."""
        net = self._net
        begun = net.clock()
        if self._t0 is None:
            return None
        if self._draining:
            busy = self._close_some()
        else:
            busy = self._beat_due(begun)
            busy = self._open_due(begun) or busy
        events = self._take_events()
        now = net.clock()
        if now >= self._next_sweep:
            self._sweep(now)
            self._close_doomed()
        self.stood_still(now - begun)
        return now if busy or events == MOST_EVENTS else self._next_instant(now)

    def stood_still(self, seconds: float) -> None:
        """The driver could not call :meth:`turn` for so long after the instant that it was asked for."""
        if seconds > self._tick.longest_turn_s:
            self._tick.longest_turn_s = seconds

    def take_tick(self, second: int) -> Tick:
        """The counts since the last call, with the gauges of now."""
        tick, self._tick = self._tick, Tick()
        tick.second = second
        tick.workers = 1
        tick.held = self.held
        tick.connecting = len(self._connecting)
        tick.awaiting = len(self._awaiting)
        if self._awaiting:
            tick.longest_wait_s = self._net.clock() - next(iter(self._awaiting.values()))
        tick.ramped = int(self.ramped)
        tick.drained = int(self.drained)
        tick.held_at_drain = self.held_at_drain
        return tick

    # -- the schedule

    def _next_instant(self, now: float) -> float | None:
        due: list[float] = []
        # Both in the order of their deadlines: the first is the next. A heartbeat mostly has its answer long before.
        for waiting, patience in self._patience:
            if waiting:
                due.append(max(now, self._next_sweep, next(iter(waiting.values())) + patience))
        if not self._draining:
            beat = self._wheel.next_due()
            if beat is not None:
                due.append(beat)
            if self._batch < self._batches:
                due.append(self._batch_instant())
        elif not self.drained:
            due.append(now + _SWEEP_S)
        return min(due, default=None)

    def _batch_instant(self) -> float:
        assert self._t0 is not None
        instant = max(self._t0 + self._ramp.due_s(self._batch), self._not_before)
        # With too many pending, the network must speak (or the sweep time out) before the next batch.
        return instant if len(self._connecting) < MOST_PENDING else max(instant, self._next_sweep)

    def _connection(self, row: int) -> int:
        """The number of this row's connection in the whole run: batches go round the workers."""
        batch, place = divmod(row, self._batch_size)
        return (batch * self._workers + self._worker) * self._batch_size + place

    def _open_due(self, now: float) -> bool:
        """Open the batches that are due. True when more could be opened at once."""
        ramp, opened = self._ramp, 0
        while self._batch < self._batches and self._batch_instant() <= now and len(self._connecting) < MOST_PENDING:
            if opened >= MOST_OPENS:
                return True
            assert self._t0 is not None
            due = self._t0 + ramp.due_s(self._batch)
            again = due < self._again_before
            if not self._opened_of_batch and not again:
                self._tick.ramp_lateness_us.add((self._net.clock() - due) * 1e6)
            size = ramp.size(self._batch)
            first = self._batch // self._shard.workers * ramp.batch
            room = min(size - self._opened_of_batch, MOST_OPENS - opened, MOST_PENDING - len(self._connecting))
            begin = first + self._opened_of_batch
            if again:
                self._lives[begin : begin + room] = array("I", [1] * room)
            else:
                self._first_pending += room
            self._open(range(begin, begin + room))
            opened += room
            self._opened_of_batch += room
            if self._opened_of_batch == size:
                self._opened_of_batch = 0
                self._batch += self._shard.workers
                # A ramp that fell behind catches up at twice its pace, not in one burst, and what was open before comes no faster
                # than the ramp; counted from a moment ago, or a pace closer than the timer's grain could never be kept.
                pace_s = self._workers * ramp.interval_s
                self._not_before = max(self._not_before, now - _BURST_S) + (pace_s if again else pace_s / 2)
        return False

    def _beat_due(self, now: float) -> bool:
        state, wheel, beats = self._state, self._wheel, 0
        for row in wheel.pop_due(now, MOST_BEATS):
            beats += 1
            due = wheel.due[row]
            if state[row] != IDLE:
                self._reopen(row, now)
            elif now - due > _MISSED_S or self._missed:
                self._send_late(row, due, now)
            else:
                self._send(row, due)
        return beats == MOST_BEATS

    def _send_late(self, row: int, due: float, now: float) -> None:
        """Send it, or, where it was missed in a stall, hang it up for later."""
        first, times = self._missed.get(row, (due, 0))
        if times == _MOST_PUT_OFF or (now - due <= _MISSED_S and due >= self._stall_end):
            self._missed.pop(row, None)
            self._wheel.due[row] = first
            self._send(row, first)
            return
        if due >= self._stall_end:
            # The first of those that were missed, and so the one that is the latest.
            self._stall_end, self._shift_s = now, now - due
        self._missed[row] = (first, times + 1)
        self._wheel.add(row, due + self._shift_s)

    def _reopen(self, row: int, now: float) -> None:
        """Open what was lost, where the pace has room for it; else have it wait for its place."""
        every_s, booked = self._reopen_every_s, row in self._booked
        # An attempt that goes on at another address has had its place: a name that leads nowhere must not stretch the ramp.
        goes_on = bool(self._failed_at) and self._failed_at.get(row, (0, 0))[1] > 0
        # As in the ramp, a batch may go at once.
        following = max(self._next_reopen, now - self._batch_size * every_s) + every_s
        if len(self._connecting) < MOST_PENDING and (booked or goes_on or self._next_reopen <= now):
            if booked:
                self._booked.remove(row)
            elif not goes_on:
                self._next_reopen = following
            self._open(range(row, row + 1))
        else:
            self._booked.add(row)
            self._next_reopen = following
            self._wheel.add(row, max(following, now + _GRAIN_S))

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + _SWEEP_S
        for waiting, patience in self._patience:
            overdue = []
            for row, since in waiting.items():
                if now - since < patience:
                    break
                overdue.append(row)
            for row in overdue:
                # What came in time may be unread, if it was we who stood still.
                (self._connected if waiting is self._connecting else self._answer)(row, self._handle[row])
                if row in waiting:
                    self._end(row, DEADLINE)

    def _close_some(self) -> bool:
        """Once nothing is outstanding, close rows, a bounded number a turn, by RST: 100,000 would fill TIME_WAIT."""
        if self._connecting or self._awaiting:
            return False
        closed = 0
        while self._closing_row < self.rows and closed < MOST_CLOSES:
            row = self._closing_row
            self._closing_row += 1
            if self._state[row] == IDLE:
                self._doom(row, abort=True)
                self._state[row] = DEAD
                self.held -= 1
                closed += 1
        return self._closing_row < self.rows

    # -- a connection's life

    def _open(self, rows: range) -> None:
        """Begin to connect ``rows``, which are of one batch. With :meth:`_establish` the hot path of the ramp: both take many
        rows a call, because a call a row and looking up what they share cost more than the work itself.
        """
        net, state, connecting, handles, row_of = self._net, self._state, self._connecting, self._handle, self._row_of
        answering, failed_at = self._answering, self._failed_at
        connect, send, watch, clock = net.connect, net.send, net.watch, net.clock
        local, beat, one_request, unsent = self._local, self._shard.beat_at_once, self._one_request, self._unsent
        made: list[tuple[int, int, float]] = []
        now = clock()
        for number, row in enumerate(rows, self._connection(rows.start)):
            turn, place = divmod(number, len(self._live))
            destination = self._live[place]
            if failed_at or not answering[destination]:
                destination = self._choose(row, destination)
            self._aim[row] = destination
            state[row] = CONNECTING
            connecting[row] = now
            try:
                handle = connect(destination, turn)
                if handle >= len(row_of):
                    row_of.extend([-1] * (handle + 1 - len(row_of)))
                handles[row] = handle
                row_of[handle] = row
                early = not local
                if local:
                    # There the handshake is over when connect() returns: the first beat can go out at once, and the event
                    # that would say "connected" need never be awaited.
                    first = (one_request or self._request(row)) if beat else b""
                    try:
                        if (taken := send(handle, first)) != len(first):
                            unsent[row] = first[taken:]
                    except BlockingIOError:
                        early = True
                watch(handle, READABLE | WRITABLE if early or row in unsent else READABLE)
            except OSError as error:
                self._end(row, event_of(error.errno))
                early = True
            now = clock()
            if not early:
                made.append((row, number, now))
        self._tick.started += len(rows)
        self._establish(made, beat)

    def _establish(self, made: list[tuple[int, int, float]], beaten: bool) -> None:
        """These connects succeeded: (row, its connection's number, since when); ``beaten``: their first beat is out."""
        tick, state, connecting, due, add = self._tick, self._state, self._connecting, self._wheel.due, self._wheel.add
        born, heard, requests, lives, beats = self._born, self._heard, self._requests, self._lives, self._beats
        connect_us, seed, keepalive_s, unsent = tick.connect_us.add, self._seed, self._keepalive_s, self._unsent
        failed_at = self._failed_at
        for row, number, now in made:
            connect_us((now - connecting.pop(row)) * 1e6)
            if lives[row]:
                tick.reopened += 1
            elif not self._retries[row]:
                self._first_pending -= 1
            lives[row] += 1
            self._answering[self._aim[row]] = True
            if failed_at:
                failed_at.pop(row, None)
            requests[row] = 0
            born[row] = heard[row] = now
            if beaten:
                tick.bytes_sent += len(self._request(row)) - (len(unsent[row]) if row in unsent else 0)
                tick.lateness_us.add(0)
                state[row] = AWAITING
                self._awaiting[row] = due[row] = now
            else:
                state[row] = IDLE
                if not self._draining:
                    add(row, now + sleep_s(seed, number, beats[row], keepalive_s))
        tick.opened += len(made)
        tick.sent += len(made) if beaten else 0
        self.held += len(made)

    def _take_events(self) -> int:
        """Do what the network has ready, a bounded number of things; how many there were."""
        events = self._net.poll(MOST_EVENTS)
        for handle, what in events:
            self._ready(handle, what)
        self._close_doomed()
        return len(events)

    def _close_doomed(self) -> None:
        for handle, abort in self._doomed:
            self._net.close(handle, abort)
        self._doomed.clear()

    def _ready(self, handle: int, what: int) -> None:
        row = self._row_of[handle]
        if row < 0:
            return
        state = self._state[row]
        if state == AWAITING:
            self._answer(row, handle)
        elif state == CONNECTING:
            self._connected(row, handle)
        else:
            self._unasked(row, handle)

    def _connected(self, row: int, handle: int) -> None:
        """The network says that a connect has ended, one way or the other: the first words tell which."""
        beat = self._shard.beat_at_once and not self._draining
        first = self._request(row) if beat else b""
        try:
            if (taken := self._net.send(handle, first)) != len(first):
                self._unsent[row] = first[taken:]
            self._net.watch(handle, READABLE | WRITABLE if row in self._unsent else READABLE, again=True)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        self._establish([(row, self._connection(row), self._net.clock())], beat)

    def _sleep(self, row: int, number: int, now: float) -> None:
        if not self._draining:
            self._wheel.add(row, now + sleep_s(self._seed, number, self._beats[row], self._keepalive_s))

    def _request(self, row: int) -> bytes:
        if self._one_request is not None:
            return self._one_request
        shard = self._shard
        return shard.requests[shard.destinations[self._aim[row]].target]

    def _send(self, row: int, due: float) -> None:
        net, tick = self._net, self._tick
        request = self._one_request or self._request(row)
        try:
            # After the rest of one that was answered before it was whole
            taken = net.send(self._handle[row], request) if row not in self._unsent else 0
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._end(row, event_of(error.errno), in_wheel=False)
            return
        if taken != len(request):
            self._keep_unsent(row, request[taken:])
        now = net.clock()
        tick.sent += 1
        tick.bytes_sent += taken
        tick.lateness_us.add((now - due) * 1e6)
        self._state[row] = AWAITING
        self._awaiting[row] = now

    def _keep_unsent(self, row: int, rest: bytes) -> None:
        """Have what the kernel had no room for sent as soon as it has."""
        self._unsent[row] = self._unsent.get(row, b"") + rest
        self._net.watch(self._handle[row], READABLE | WRITABLE, again=True)

    def _flush(self, row: int) -> None:
        """Nothing to read: it may be room that the network spoke of, for what could not be sent."""
        if (rest := self._unsent.get(row)) is None:
            return
        try:
            taken = self._net.send(self._handle[row], rest)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        self._tick.bytes_sent += taken
        if taken < len(rest):
            self._unsent[row] = rest[taken:]
        else:
            del self._unsent[row]
            self._net.watch(self._handle[row], READABLE, again=True)

    def _answer(self, row: int, handle: int) -> None:
        net, tick = self._net, self._tick
        try:
            data = net.recv(handle, READ_BYTES)
        except BlockingIOError:
            self._flush(row)
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        tick.bytes_received += len(data)
        response: Response | None
        if data == self._seen[0] and row not in self._partial:
            response = self._seen[1]
        else:
            response = self._scan(row, data)
            if response is None:
                return
        now = net.clock()
        del self._awaiting[row]
        tick.answered += 1
        status = response.status
        tick.by_status[status] = tick.by_status.get(status, 0) + 1
        tick.latency_us.add((now - self._wheel.due[row]) * 1e6)
        self._requests[row] += 1
        self._beats[row] += 1
        self._retries[row] = 0
        self._heard[row] = now
        self._state[row] = IDLE
        if response.keep_alive:
            self._sleep(row, self._connection(row), now)
        else:
            self._end(row, ANNOUNCED, in_wheel=False)

    def _scan(self, row: int, data: bytes) -> Response | None:
        """Off the beaten track: an answer that is not, byte for byte, the last one."""
        scanner = self._partial.get(row)
        fresh = scanner is None
        if scanner is None:
            scanner = Scanner(self._shard.method)
        if not data:
            response = scanner.end()
            self._partial.pop(row, None)
            if response is None:
                self._end(row, EOF)
            return response
        try:
            response = scanner.feed(data)
            if response is not None and scanner.rest:
                raise ProtocolError("bytes after the response")
        except ProtocolError:
            self._end(row, GARBAGE)
            return None
        if response is None:
            self._partial[row] = scanner
            return None
        self._partial.pop(row, None)
        if fresh:
            self._seen = (data, response)
        return response

    def _unasked(self, row: int, handle: int) -> None:
        """An idle connection spoke: mostly its end, or a farewell such as 408 with Connection: close."""
        try:
            data = self._net.recv(handle, READ_BYTES)
        except BlockingIOError:
            self._flush(row)
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        self._tick.bytes_received += len(data)
        if not data:
            self._end(row, EOF)
            return
        try:
            farewell = Scanner("GET").feed(data)
        except ProtocolError:
            farewell = None
        self._end(row, ANNOUNCED if farewell is not None and not farewell.keep_alive else GARBAGE)

    def _end(self, row: int, event: str, in_wheel: bool = True) -> None:
        """The one way a connection, or an attempt at one, ends. ``in_wheel``: whether an IDLE row still hangs there."""
        state, tick, now = self._state[row], self._tick, self._net.clock()
        why = cause(state, event)
        self._partial.pop(row, None)
        self._unsent.pop(row, None)
        self._missed.pop(row, None)
        # Where the peer has not closed, our FIN would leave the port waiting for a peer that does not answer.
        self._doom(row, abort=event in (DEADLINE, GARBAGE))
        if state == CONNECTING:
            del self._connecting[row]
            if self._turn_away(row, self._aim[row], why):
                self._state[row] = BACKOFF
                self._wheel.add(row, now)
                return
            if not self._lives[row] and not self._retries[row]:
                self._first_pending -= 1
            tick.failures[why] = tick.failures.get(why, 0) + 1
            self._retries[row] = min(255, self._retries[row] + 1)
        else:
            self.held -= 1
            if not self._requests[row]:
                # A server that accepts and closes must not be connected to twice a second for ever.
                self._retries[row] = min(255, self._retries[row] + 1)
            asked = state == AWAITING
            if asked:
                del self._awaiting[row]
                tick.beats_failed += 1
                # It waited for so long at the least.
                tick.latency_us.add((now - self._wheel.due[row]) * 1e6)
                self._beats[row] += 1
            elif in_wheel and not self._draining:
                self._wheel.remove(row)
            if self._draining:
                # Nothing is asked in the drain: this was before.
                tick.unanswered += asked
            if asked or not self._draining:
                deaths = tick.deaths.setdefault(why, Deaths())
                deaths.count += 1
                deaths.age_s.add(now - self._born[row])
                deaths.idle_s.add(now - self._heard[row])
                deaths.requests.add(self._requests[row])
        if self._shard.reopen and not self._draining:
            self._back_off(row, now)
        else:
            self._state[row] = DEAD

    def _back_off(self, row: int, now: float) -> None:
        self._state[row] = BACKOFF
        attempt = (self._lives[row] << 8) | self._retries[row]
        self._wheel.add(row, now + backoff_s(self._seed, self._connection(row), attempt, self._retries[row]))

    def _mates(self, destination: int) -> list[int]:
        """The living addresses of the same name."""
        destinations = self._shard.destinations
        target = destinations[destination].target
        return [number for number in self._live if destinations[number].target == target]

    def _choose(self, row: int, destination: int) -> int:
        """Where to connect: at the row's own destination, or after a failure at the next address of the same name."""
        if row in self._failed_at:
            last, tried = self._failed_at[row]
            if tried:
                self._tick.started -= 1  # an attempt that goes on is counted already
            mates = self._mates(last)
            destination = next((number for number in mates if number > last), mates[0])
        if not self._answering[destination]:
            if self._unproven[destination] >= _MOST_UNPROVEN:
                proven = [number for number in self._mates(destination) if self._answering[number]]
                destination = proven[row % len(proven)] if proven else destination
            self._unproven[destination] += 1
        return destination

    def _turn_away(self, row: int, destination: int, why: str) -> bool:
        """A connect of ``row`` failed there. True when the attempt goes on, at another address of the same name.

        A name may have an address that nobody listens on (``localhost`` as ::1), or that this host has no way to. So an
        attempt has failed when each address has been tried, or one that has worked before: that is the server's failure, and is
        counted. An address where connects only ever failed while another of the same name answers is dropped; one that worked
        before is never dropped, nor a URL of its own.
        """
        proven, addresses = self._answering[destination], self._shard.addresses_beside(destination)
        if not proven:
            self._unproven[destination] -= 1
        if addresses == 1:
            return False
        tried = self._failed_at.get(row, (0, 0))[1] + 1
        # Without descriptors none would be reached.
        goes_on = not proven and tried < addresses and why != "no_descriptors" and not self._draining
        self._failed_at[row] = (destination, tried if goes_on else 0)
        if not proven and why != "no_descriptors" and destination in self._live:
            self._refusals[destination] += 1
            others_answer = any(self._answering[number] for number in self._mates(destination))
            if self._refusals[destination] >= _REFUSALS_TO_DROP and others_answer:
                self._live.remove(destination)
                self._tick.dropped[destination] = 1
        return goes_on

    def _doom(self, row: int, abort: bool) -> None:
        handle = self._handle[row]
        if handle >= 0:
            self._handle[row] = -1
            self._row_of[handle] = -1
            self._doomed.append((handle, abort))
