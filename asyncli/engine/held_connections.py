"""The connections of one process: rows in columns, and the life of each from its connect to its end.

No clock of its own and no schedule: held_table.py says what is due. What a peer's bytes mean is the protocol's (protocols/).
Laws:

- No handle is closed before the batch of events is done, so none can come back as another connection within it.
- A row is in the wheel exactly while it is IDLE (next beat) or in BACKOFF (next attempt); rows that connect or shake hands, and
  AWAITING ones, stand in dictionaries in the order of their start, which is the order of their deadlines.
- Lateness counts from the instant that was due, latency too: a stalled generator cannot make the server look good.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator

from asyncli.core.heartbeat import LONGEST_BACKOFF_S, backoff_s, sleep_s
from asyncli.core.life import (
    ABORTS,
    ANNOUNCED,
    AWAITING,
    BACKOFF,
    CONNECTING,
    DEAD,
    DEADLINE,
    EOF,
    GARBAGE,
    HANDSHAKE,
    IDLE,
    LEAVING,
    cause,
    event_of,
)
from asyncli.core.wheel import Wheel
from asyncli.engine.addresses import Addresses
from asyncli.engine.net import READABLE, WRITABLE, Net
from asyncli.engine.shard import Shard
from asyncli.engine.spread import share
from asyncli.protocols import interface
from asyncli.protocols.interface import Event, ProtocolError
from asyncli.protocols.settings import HttpSettings
from asyncli.records import Deaths, ProtocolCounts, Tick
from asyncli.text import brief

# Half of a listen backlog of nginx's default, 511, in flight from each worker: more would only queue in the kernel.
MOST_PENDING = 256
# As many may wait for an address that never answered while another of its name does, or one that leads nowhere would hold up
# the ramp for a connect's timeout.
_MOST_UNPROVEN = MOST_PENDING // 4
# An answer's head fits; os.read with a big buffer maps and unmaps it at each call (17 us more at 256 KiB).
_READ_BYTES = 8192
# A row that was silent for too long and has just been heard: it is looked at again then, and no sooner.
_LOOK_AGAIN_S = 1.0
# Of an overdue row: what a socket's buffer holds.
_MOST_READS = 32
# Peers write what they like as a reason.
_MOST_REASONS = 20
# Answers to pings that a peer does not read; a socket's buffers hold as much beside.
_MOST_UNREAD_BYTES = 65_536


class HeldConnections:
    """Worker ``worker``'s rows."""

    def __init__(self, shard: Shard, worker: int, net: Net) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._batch_size, self._workers = shard.ramp.batch, shard.workers
        self._seed, self._keepalive_s = shard.seed, shard.keepalive_s
        self.rows = rows = share(shard.ramp.connections, shard.ramp.batch, shard.workers, worker)
        self._protocol = shard.new_protocol(self._number)
        self._partial, self._heartbeat = self._protocol.partial, self._protocol.heartbeat
        self._handshake, self._silence_s = self._protocol.handshake, self._protocol.silence_s
        self._beats_at_once = shard.beat_at_once and self._silence_s is None
        self._counts_words = self._handshake is not None or not isinstance(shard.settings, HttpSettings)
        self.addresses = Addresses(shard, _MOST_UNPROVEN)
        self.state = bytearray(rows)  # UNBORN
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
        self.wheel = Wheel(0, 1.0, 0.0)
        self.connecting: dict[int, float] = {}
        self.awaiting: dict[int, float] = {}
        self.leaving: dict[int, float] = {}
        #: What waits since when, in the order of its deadlines, and for how long it may.
        self.deadlines = (
            (self.connecting, shard.connect_timeout_s), (self.awaiting, shard.timeout_s),
            (self.leaving, self._protocol.parting_s or shard.timeout_s),
        )  # fmt: skip
        # What the kernel had no room for, of rows that have such; they are watched for room as well.
        self._unsent: dict[int, bytes] = {}
        self.to_close: list[tuple[int, bool]] = []
        # The last whole answer as bytes and what it meant. None at first: b"" would be the end of a stream.
        self._last_answer: tuple[bytes | None, Event] = (None, Event(0, False))
        self._counts, self._reasons = ProtocolCounts(), set[str]()
        #: First attempts that have not ended yet.
        self.first_pending = 0
        self.draining = False
        self.held = 0
        self.tick = Tick()

    def start(self, now: float) -> None:
        # A row is due ahead for a beat's sleep or a backoff at the longest.
        self.wheel = Wheel(self.rows, max(self._keepalive_s / 2, LONGEST_BACKOFF_S) + 1.0, now)

    # -- what the table asks for

    def open_batch(self, rows: range, again: bool) -> None:
        """Open rows of a batch for the first time, or ``again`` in the place of a process that is no more."""
        if again:
            self._lives[rows.start : rows.stop] = array("I", [1] * len(rows))
        else:
            self.first_pending += len(rows)
        self.open(rows)

    def open(self, rows: range) -> None:
        """Begin to connect ``rows``, which are of one batch. With :meth:`_establish` the hot path of the ramp: both take many
        rows a call, because a call a row and looking up what they share cost more than the work itself.
        """
        net, state, connecting, handles, row_of = self._net, self.state, self.connecting, self._handle, self._row_of
        addresses, unsent = self.addresses, self._unsent
        live, proven, failed_at = addresses.live, addresses.proven, addresses.failed_at
        connect, send, watch, clock = net.connect, net.send, net.watch, net.clock
        local, beat, heartbeat, shakes = self._shard.local, self._beats_at_once, self._heartbeat, self._handshake is not None
        made: list[tuple[int, int, float]] = []
        bytes_sent, now = 0, clock()
        for number, row in enumerate(rows, self._number(rows.start)):
            turn, place = divmod(number, len(live))
            destination = live[place]
            if failed_at or not proven[destination]:
                self.tick.started -= addresses.goes_on(row)
                destination = addresses.choose(row, destination)
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
                    first = ((not shakes and heartbeat) or self._first_words(row)) if beat or shakes else b""
                    try:
                        if (taken := send(handle, first)) != len(first):
                            unsent[row] = first[taken:]
                        bytes_sent += taken
                    except BlockingIOError:
                        early = True
                        if first:
                            unsent[row] = first
                watch(handle, READABLE | WRITABLE if early or row in unsent else READABLE)
            except OSError as error:
                self._end(row, event_of(error.errno))
                early = True
            now = clock()
            if not early:
                made.append((row, number, now))
        self.tick.started += len(rows)
        self.tick.bytes_sent += bytes_sent
        if shakes:
            self._shake_hands(made)
        else:
            self._establish(made, beat)

    def send_heartbeat(self, row: int, due: float) -> None:
        """Send the idle row's heartbeat, which was due then; the row is out of the wheel."""
        if self._silence_s is not None:
            self._look(row, self._silence_s)
            return
        heartbeat = self._heartbeat or self._next_heartbeat(row)
        if not self._write(row, heartbeat, in_wheel=False):
            return
        now, tick = self._net.clock(), self.tick
        tick.sent += 1
        tick.lateness_us.add((now - due) * 1e6)
        self.state[row] = AWAITING
        self.awaiting[row] = now

    def _look(self, row: int, silence_s: float) -> None:
        """Has a row that listens been silent for too long? It may have heard something since it was hung up."""
        now, heard = self._net.clock(), self._heard[row]
        self.wheel.add(row, max(heard + silence_s, now + _LOOK_AGAIN_S))
        if now >= heard + silence_s:
            # What came in time may be unread, if it was we who stood still.
            self._ready(row, self._handle[row])
            if self.state[row] == IDLE and self._heard[row] == heard:
                self._end(row, DEADLINE)

    def missing_streams(self, now: float) -> Iterator[tuple[float, int]]:
        """When to open streams again, and of which rows: of those that have begun to miss some. As connections, later and later
        until a heartbeat is answered.
        """
        for row in self._protocol.take_missing() if self._shard.reopen else ():
            retry = self._retries[row]
            self._retries[row] = min(255, retry + 1)
            yield now + backoff_s(self._seed, self._number(row), (self._beats[row] << 8) | retry, retry), row

    def ask_again(self, row: int) -> None:
        """Open the streams that the idle row misses."""
        if words := self._protocol.ask_again(row, self._shard.destinations[self._aim[row]].target):
            self._write(row, words)

    def take_events(self, most: int) -> int:
        """Do what the network has ready, a bounded number of things; how many there were."""
        events, row_of, ready, unsent = self._net.poll(most), self._row_of, self._ready, self._unsent
        for handle, what in events:
            if (row := row_of[handle]) >= 0:
                if unsent and what & WRITABLE and row in unsent and self.state[row] in (HANDSHAKE, IDLE, AWAITING):
                    # Else who always has something to read would never send it.
                    self._flush(row)
                    if row_of[handle] != row:
                        continue
                ready(row, handle)
        self.close_handles()
        return len(events)

    def expire(self, now: float) -> None:
        """End what has waited too long."""
        for waiting, patience_s in self.deadlines:
            overdue = []
            for row, since in waiting.items():
                if now - since < patience_s:
                    break
                overdue.append((row, since))
            for row, since in overdue:
                self._read_all(row, waiting, since)
                if row in self.leaving:
                    self._leave(row)
                elif waiting.get(row) == since and (event := self._net.late_event(self._handle[row])) is not None:
                    self._end(row, event)

    def _read_all(self, row: int, waiting: dict[int, float], since: float) -> None:
        """What came in time may be unread, if it was we who stood still; before the answer there may be messages."""
        for _ in range(_MOST_READS):
            before = self.tick.bytes_received
            self._ready(row, self._handle[row])
            if waiting.get(row) != since or self.tick.bytes_received == before:
                return

    def take_tick(self) -> Tick:
        """The counts since the last call."""
        tick, self.tick = self.tick, Tick()
        if self._counts_words:
            self._protocol.add_counts(self._counts)
            tick.protocol, self._counts = self._counts, ProtocolCounts()
        elif self._counts.broken:
            tick.protocol, self._counts = ProtocolCounts(broken=self._counts.broken), ProtocolCounts()
        return tick

    def begin_drain(self) -> None:
        """From here nothing is sent or opened. What ends is no loss, unless it owes an answer."""
        self.draining = True
        now, state, heard, ago = self._net.clock(), self.state, self._heard, self.tick.heard_ms.add
        for row in range(self.rows):
            if state[row] == IDLE:
                ago((now - heard[row]) * 1e3)
            elif state[row] == BACKOFF:
                state[row] = DEAD

    def close(self, row: int) -> None:
        """Close an idle row at the end of the drain, once the peer has answered a goodbye."""
        self.held -= 1
        self.state[row], self.leaving[row] = LEAVING, self._net.clock()
        bye = self._protocol.goodbye(row)
        try:
            if bye and row not in self._unsent and self._net.send(self._handle[row], bye) == len(bye):
                return
        except OSError:
            pass
        self._leave(row)

    def close_handles(self) -> None:
        for handle, abort in self.to_close:
            self._net.close(handle, abort)
        self.to_close.clear()

    # -- a connection's life

    def _number(self, row: int) -> int:
        """The number of this row's connection in the whole run: batches go round the workers."""
        batch, place = divmod(row, self._batch_size)
        return (batch * self._workers + self._worker) * self._batch_size + place

    def _next_heartbeat(self, row: int) -> bytes:
        return self._heartbeat or self._protocol.heartbeat_for(row, self._shard.destinations[self._aim[row]].target)

    def _first_words(self, row: int) -> bytes:
        """What is sent once the transport stands."""
        if self._handshake is not None:
            return self._handshake(row, self._shard.destinations[self._aim[row]].target)
        return self._next_heartbeat(row)

    def _leave(self, row: int) -> None:
        """By RST: 100,000 would fill TIME_WAIT."""
        del self.leaving[row]
        self._free_row(row, abort=True)
        self.state[row] = DEAD

    def _ready(self, row: int, handle: int) -> None:
        state = self.state[row]
        if state == CONNECTING:
            self._connected(row, handle)
        elif state == LEAVING:
            try:
                if self._net.recv(handle, _READ_BYTES):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            self._leave(row)
        else:
            self._receive(row, handle, state == AWAITING)

    def _connected(self, row: int, handle: int) -> None:
        """The network says that a connect has ended, one way or the other: the first words tell which."""
        shakes, beat = self._handshake is not None, self._beats_at_once and not self.draining
        # They may be the row's own: what could not be sent yet are these.
        first = self._unsent.pop(row, b"")
        first = (first or self._first_words(row)) if beat or shakes else b""
        try:
            if (taken := self._net.send(handle, first)) != len(first):
                self._unsent[row] = first[taken:]
            self._net.watch(handle, READABLE | WRITABLE if row in self._unsent else READABLE, again=True)
        except BlockingIOError:
            if first:
                self._unsent[row] = first
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        self.tick.bytes_sent += taken
        made = [(row, self._number(row), self._net.clock())]
        if shakes:
            self._shake_hands(made)
        else:
            self._establish(made, beat)

    def _shake_hands(self, made: list[tuple[int, int, float]]) -> None:
        """The first words of these rows are out, and the peer's are awaited for as long as a connect again."""
        state, connecting, born, aim, proven = self.state, self.connecting, self._born, self._aim, self.addresses.proven
        for row, _, now in made:
            state[row] = HANDSHAKE
            proven[aim[row]] = True
            born[row] = connecting.pop(row)
            connecting[row] = now

    def _granted(self, row: int, words: bytes) -> None:
        """The peer granted what its handshake asked for; our ``words`` to that go out with the first heartbeat, which by itself
        would wait until the peer's kernel has acknowledged them (Nagle's algorithm).
        """
        now = self._net.clock()
        self._counts.handshake_us.add((now - self.connecting[row]) * 1e6)
        self.connecting[row] = self._born[row]
        beat = self._beats_at_once and not self.draining
        words += self._next_heartbeat(row) if beat else b""
        if not words or self._write(row, words):
            self._establish([(row, self._number(row), now)], beat)

    def _establish(self, made: list[tuple[int, int, float]], beaten: bool) -> None:
        """These connects succeeded: (row, its connection's number, since when); ``beaten``: their first beat is out."""
        tick, state, connecting, due, add = self.tick, self.state, self.connecting, self.wheel.due, self.wheel.add
        born, heard, requests, lives, beats = self._born, self._heard, self._requests, self._lives, self._beats
        connect_us, seed, keepalive_s, retries = tick.connect_us.add, self._seed, self._keepalive_s, self._retries
        aim, proven, failed_at, silence_s = self._aim, self.addresses.proven, self.addresses.failed_at, self._silence_s
        for row, number, now in made:
            connect_us((now - connecting.pop(row)) * 1e6)
            if lives[row]:
                tick.reopened += 1
            elif not retries[row]:
                self.first_pending -= 1
            lives[row] += 1
            proven[aim[row]] = True
            if failed_at:
                failed_at.pop(row, None)
            requests[row] = 0
            born[row] = heard[row] = now
            if beaten:
                tick.lateness_us.add(0)
                state[row] = AWAITING
                self.awaiting[row] = due[row] = now
            else:
                state[row] = IDLE
                if not self.draining:
                    add(row, now + (silence_s or sleep_s(seed, number, beats[row], keepalive_s)))
        tick.opened += len(made)
        tick.sent += len(made) if beaten else 0
        self.held += len(made)

    def _receive(self, row: int, handle: int, awaiting: bool) -> None:
        net, tick = self._net, self.tick
        try:
            data = net.recv(handle, _READ_BYTES)
        except BlockingIOError:
            self._flush(row)
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        tick.bytes_received += len(data)
        known, meaning = self._last_answer
        event = meaning if awaiting and data == known and row not in self._partial else self._interpret(row, data, awaiting)
        if event is None:
            return
        now = net.clock()
        del self.awaiting[row]
        tick.answered += 1
        if status := event.status:
            tick.by_status[status] = tick.by_status.get(status, 0) + 1
        tick.latency_us.add((now - self.wheel.due[row]) * 1e6)
        self._requests[row] += 1
        self._beats[row] += 1
        self._retries[row] = 0
        self._heard[row] = now
        self.state[row] = IDLE
        if not event.keep_alive:
            self._end(row, ANNOUNCED, in_wheel=False)
        elif not self.draining:
            self.wheel.add(row, now + sleep_s(self._seed, self._number(row), self._beats[row], self._keepalive_s))

    def _interpret(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        """Off the beaten track, the protocol judges: an answer, or None where the row still waits, sleeps or has ended."""
        whole, counts = row not in self._partial, self._counts
        try:
            event = self._protocol.feed(row, data, awaiting)
        except ProtocolError as error:
            self._end(row, GARBAGE, said=str(error))
            return None
        if event is None:
            if not data:
                self._end(row, EOF)
            elif self._silence_s is not None or row not in self._partial:
                self._hear(row)
            return None
        counts.messages += event.messages
        counts.message_bytes += event.body_bytes
        if event.kind == interface.LEAVING:
            counts.goodbyes[event.status] = counts.goodbyes.get(event.status, 0) + 1
            if why := brief(event.rest):
                self._note(counts.farewells, why)
            # It may be gone already.
            with contextlib.suppress(OSError):
                if row not in self._unsent:
                    self._net.send(self._handle[row], event.reply)
            self._end(row, ANNOUNCED)
            return None
        if event.reply and event.kind != interface.ESTABLISHED and not self._reply(row, event.reply):
            return None
        match event.kind:
            case interface.ANSWER if awaiting:
                # What equal bytes mean: the same, where they were the whole of what was said.
                if whole and data and not (event.reply or event.messages or event.own or row in self._partial):
                    self._last_answer = (data, event)
                return event
            case interface.NEWS:
                self._hear(row)
            case interface.ESTABLISHED:
                self._granted(row, event.reply)
                if event.rest and self.state[row] in (IDLE, AWAITING):
                    return self._interpret(row, event.rest, self.state[row] == AWAITING)
            case _:
                self._end(row, GARBAGE)
        return None

    def _hear(self, row: int) -> None:
        """The peer lives, which is all that a row that listens can know."""
        self._heard[row] = self._net.clock()
        if self._silence_s is not None and self.state[row] == IDLE:
            self._retries[row] = 0

    def _note(self, reasons: dict[str, int], why: str) -> None:
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "other reasons"
        reasons[why] = reasons.get(why, 0) + 1

    def _reply(self, row: int, data: bytes) -> bool:
        """Send what the protocol answers; who asks and does not read is ended. False: the row has ended."""
        if len(self._unsent.get(row, b"")) > _MOST_UNREAD_BYTES:
            self._end(row, GARBAGE, said="it does not read what it is answered")
            return False
        return self._write(row, data)

    def _write(self, row: int, data: bytes, in_wheel: bool = True) -> bool:
        """Send, after the rest of what was not sent whole; what the kernel has no room for follows. False: the row has ended."""
        try:
            taken = self._net.send(self._handle[row], data) if row not in self._unsent else 0
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._end(row, event_of(error.errno), in_wheel)
            return False
        self.tick.bytes_sent += taken
        if taken != len(data):
            self._unsent[row] = self._unsent.get(row, b"") + data[taken:]
            self._net.watch(self._handle[row], READABLE | WRITABLE, again=True)
        return True

    def _flush(self, row: int) -> None:
        """Nothing to read: it may be room that the network spoke of, for what could not be sent."""
        rest = self._unsent.pop(row, b"")
        if rest and self._write(row, rest) and row not in self._unsent:
            self._net.watch(self._handle[row], READABLE, again=True)

    def _end(self, row: int, event: str, in_wheel: bool = True, said: str = "") -> None:
        """The one way a connection, or an attempt at one, ends. ``in_wheel``: whether an IDLE row still hangs there; ``said``:
        how the peer refused, or broke the protocol.
        """
        state, tick, now, handle = self.state[row], self.tick, self._net.clock(), self._handle[row]
        why, midst = cause(state, event), row in self._partial
        self._protocol.forget(row)
        self._unsent.pop(row, None)
        self._free_row(row, abort=event in ABORTS)
        if state in (CONNECTING, HANDSHAKE):
            if self._connect_failed(row, why):
                self.state[row] = BACKOFF
                self.wheel.add(row, now)
                return
            if why == "handshake_refused":
                self._note(self._counts.refused, said or f"{'closed' if event == EOF else 'reset'} without an answer")
        else:
            if said:
                self._note(self._counts.broken, said)
            self.held -= 1
            if not self._requests[row] and (self._silence_s is None or self._heard[row] == self._born[row]):
                # A server that accepts and closes must not be connected to twice a second for ever.
                self._retries[row] = min(255, self._retries[row] + 1)
            asked = state == AWAITING
            if asked:
                since = self.awaiting.pop(row)
                tick.beats_failed += 1
                # It waited for so long at the least.
                tick.latency_us.add((now - self.wheel.due[row]) * 1e6)
                self._beats[row] += 1
                if why == "heartbeat_timeout":
                    tick.acknowledged += self._net.acknowledged(handle)
                    tick.spoke += midst or self._heard[row] > since
            elif in_wheel and not self.draining:
                self.wheel.remove(row)
            # Nothing is asked in the drain: this was before.
            tick.unanswered += asked and self.draining
            if asked or not self.draining:
                deaths = tick.deaths.setdefault(why, Deaths())
                deaths.count += 1
                deaths.age_s.add(now - self._born[row])
                deaths.idle_s.add(now - self._heard[row])
                deaths.requests.add(self._requests[row])
        if self._shard.reopen and not self.draining:
            self.state[row] = BACKOFF
            attempt = (self._lives[row] << 8) | self._retries[row]
            wait_s = backoff_s(self._seed, self._number(row), attempt, self._retries[row])
            self.wheel.add(row, now + self._protocol.reopens_after_s(row) + wait_s)
        else:
            self.state[row] = DEAD

    def _connect_failed(self, row: int, why: str) -> bool:
        """Count it; True where the attempt goes on at once, at another address, and has not failed yet."""
        tick, destination = self.tick, self._aim[row]
        del self.connecting[row]
        # Without descriptors none would be reached.
        goes_on, dropped = self.addresses.failed(row, destination, reached=why != "no_descriptors", draining=self.draining)
        if dropped:
            tick.dropped[destination] = 1
        if goes_on:
            return True
        if not self._lives[row] and not self._retries[row]:
            self.first_pending -= 1
        tick.failures[why] = tick.failures.get(why, 0) + 1
        self._retries[row] = min(255, self._retries[row] + 1)
        return False

    def _free_row(self, row: int, abort: bool) -> None:
        handle = self._handle[row]
        if handle >= 0:
            self._handle[row] = -1
            self._row_of[handle] = -1
            self.to_close.append((handle, abort))
