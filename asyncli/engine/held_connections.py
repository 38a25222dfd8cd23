"""The connections of one process as rows of columns, and the life of each from its connect to its
end.

The clock is the net's, the schedule is that of held_table.py, and the protocol (protocols/)
interprets a peer's bytes. Rules:

- No handle is closed before the batch of events is done, so none can come back as another
connection within it.
- A row is in the wheel exactly while it is IDLE (next heartbeat) or in BACKOFF (next attempt), and
in the queue of comebacks.py while it is AWAY; rows in CONNECTING, HANDSHAKE and
  AWAITING are in dictionaries in the order of their start, which is the order of their deadlines.
- Lateness and latency count from the due instant: a stalled generator cannot make the server look
good.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator
from typing import Literal

import msgspec

from asyncli.core.events import Reconnect
from asyncli.core.heartbeat import LONGEST_BACKOFF_S, backoff_s, sleep_s
from asyncli.core.life import (
    ABORTS,
    ANNOUNCED,
    AWAITING,
    AWAY,
    BACKOFF,
    BY_SERVER,
    CLOSING,
    CONNECTING,
    DEAD,
    DEADLINE,
    EOF,
    HANDSHAKE,
    IDLE,
    MALFORMED,
    STALLED,
    TLS_DEADLINE,
    cause,
    event_of,
)
from asyncli.core.wheel import Wheel
from asyncli.engine.addresses import Addresses
from asyncli.engine.comebacks import Comebacks
from asyncli.engine.net import MOST_PENDING, READABLE, WRITABLE, Net
from asyncli.engine.shard import Shard
from asyncli.engine.spread import share
from asyncli.model.protocol_table import OTHER_REASONS
from asyncli.model.quotation import Quotation
from asyncli.model.records import (
    CHURN,
    HANDSHAKES_IN_VAIN,
    SENT_AGAIN_S,
    Deaths,
    ProtocolCounts,
    TcpCounts,
    Tick,
)
from asyncli.model.text import brief
from asyncli.protocols import interface
from asyncli.protocols.interface import Event, ProtocolError
from asyncli.protocols.settings import HttpSettings

# Pending connects to an address that never answered, if another of its name does: an unreachable
# address must not hold up the ramp for a connect timeout.
_MOST_UNPROVEN = MOST_PENDING // 4
# An answer's head fits; os.read with a big buffer maps and unmaps it at each call (17 us more at
# 256 KiB).
_READ_BYTES = 8192
# The least time between two checks of a row that listens.
_CHECK_AGAIN_S = 1.0
# Reads of an overdue row: what a socket's buffer holds.
_MOST_READS = 32
# A peer may send any text as a reason.
_MOST_REASONS = 20
# Of HTTP: from this status on an answer is an error.
_LOWEST_ERROR = 400
# Replies to pings that a peer does not read; a socket's buffers hold as much again.
_MOST_UNREAD_BYTES = 65_536


class HeldConnections:
    """The rows of worker ``worker``."""

    #: When the run began, on the net's clock.
    _t0 = 0.0

    def __init__(self, shard: Shard, worker: int, net: Net) -> None:
        self._shard, self._worker, self._net = shard, worker, net
        self._batch_size, self._workers = shard.ramp.batch, shard.workers
        self._seed, self._keepalive_s = shard.seed, shard.keepalive_s
        self.rows = rows = share(shard.ramp.connections, shard.ramp.batch, shard.workers, worker)
        self._protocol, self._fields = shard.new_protocol(self.number), shard.fields(self.number)
        self._partial, self._heartbeat = self._protocol.partial, self._protocol.heartbeat
        self._heartbeat_for, self._targets = (
            self._protocol.heartbeat_for,
            [place.target for place in shard.destinations],
        )
        self._answers, self._owed = self._protocol.answers, self._protocol.owed
        self._repeats = self._protocol.repeats
        self._handshake, self._silence_s = self._protocol.handshake, self._protocol.silence_s
        self._beats_at_once = shard.beat_at_once and self._silence_s is None
        self._counts_words = self._handshake is not None or not isinstance(
            shard.settings, HttpSettings
        )
        self.addresses = Addresses(shard, _MOST_UNPROVEN)
        self.state = bytearray(rows)  # UNOPENED
        self._handle = array("i", b"\xff" * (4 * rows))
        # By handle; grows on demand, since the descriptor limit may be a billion.
        self._row_of = array("i", b"\xff" * (4 * (rows + 64)))
        self._established_at = array("d", bytes(8 * rows))
        self._heard_at = array(
            "d", bytes(8 * rows)
        )  # when last answered (or established): idle since then
        self._requests = array("I", bytes(4 * rows))  # answered on this connection
        self._beats = array(
            "I", bytes(4 * rows)
        )  # over all connections of the row: the jitter's number
        self._lives = array("I", bytes(4 * rows))  # connections established so far
        self._retries = bytearray(rows)
        # Whether a row has had an answer without error; and an error while no event had it away.
        self._answered_well = bytearray(rows)
        self._answered_badly = bytearray(rows)
        self._destination = array("H", bytes(2 * rows))  # by index
        self._retransmitted = bytearray(
            rows
        )  # segments known to have been sent again on this connection, modulo 256
        self.wheel = Wheel(0, 1.0, 0.0)
        is_provoked = bool(shard.events or shard.churn_per_s)
        self.comebacks = Comebacks(
            shard.reconnect or Reconnect(), shard.seed, self.number, rows if is_provoked else 0
        )
        # Descriptors of connections that fell silent, and whose rows have others or none.
        self._ghosts: list[int] = []
        # Rows that fell silent while they awaited an answer, which may come once they hear again.
        self._owes_answer: set[int] = set()
        # Rows that hear again, and still await that answer: until they are back by it, are ended or
        # fall silent once more.
        self._is_owed_late: set[int] = set()
        # Listeners that hear again after an event, and have had no message since.
        self._hears_again: set[int] = set()
        self._has_policy = shard.reconnect is not None
        self._has_several = len(shard.destinations) > 1
        self._coming_back = self.comebacks.event_of
        #: Rows whose connection stands by our kernel alone: they come back from an event, and the
        #: server has not answered yet. They are not held.
        self.unproven: set[int] = set()
        self.connecting: dict[int, float] = {}
        self.awaiting: dict[int, float] = {}
        self.closing: dict[int, float] = {}
        #: Rows that wait, by their start and so by deadline, and how long each may wait.
        self.deadlines = (
            (self.connecting, shard.connect_timeout_s), (self.awaiting, shard.timeout_s),
            (self.closing, self._protocol.close_timeout_s or shard.timeout_s),
        )  # fmt: skip
        # By row, bytes that the kernel has no room for yet; these rows are also watched for
        # WRITABLE.
        self._unsent: dict[int, bytes] = {}
        self.to_close: list[tuple[int, bool]] = []
        # The last whole answer and its meaning. None at first: b"" is the end of a stream.
        self._last_answer: tuple[bytes | None, Event] = (None, Event(0, True))
        self._counts, self._reasons = ProtocolCounts(), set[str]()
        self._tcp = TcpCounts()
        #: First attempts still in progress.
        self.first_pending = 0
        self.draining = False
        self.held = 0
        self.tick = Tick()

    def start(self, now: float, t0: float) -> None:
        self._t0 = t0
        # The longest wait is a heartbeat's sleep or a backoff.
        self.wheel = Wheel(self.rows, max(self._keepalive_s / 2, LONGEST_BACKOFF_S) + 1.0, now)

    # -- called by the table

    def open_batch(self, rows: range, again: bool) -> None:
        """Open rows of a batch for the first time, or ``again`` after their process was lost."""
        if again:
            self._lives[rows.start : rows.stop] = array("I", [1] * len(rows))
        else:
            self.first_pending += len(rows)
        self.open(rows)

    def open(self, rows: range) -> None:
        """Begin to connect ``rows``, which are of one batch. With :meth:`_establish` the hot path
        of the ramp: both take many rows, because a call and the attribute look-ups for each row
        cost more than the work itself.
        """
        net, state, connecting, handles, row_of = (
            self._net,
            self.state,
            self.connecting,
            self._handle,
            self._row_of,
        )
        addresses, unsent = self.addresses, self._unsent
        live, proven, failed_at = addresses.live, addresses.proven, addresses.failed_at
        connect, send, watch, clock = net.connect, net.send, net.watch, net.clock
        local, beat, heartbeat, shakes = (
            self._shard.local,
            self._beats_at_once,
            self._heartbeat,
            self._handshake is not None,
        )
        # Back is the first answer without an error.
        beat = beat or self._asks_at_once(rows.start)
        connected: list[tuple[int, int, float]] = []
        bytes_sent, now = 0, clock()
        for number, row in enumerate(rows, self.number(rows.start)):
            turn, place = divmod(number, len(live))
            destination = live[place]
            if failed_at or not proven[destination]:
                self.tick.started -= addresses.continues(row)
                destination = addresses.choose(row, destination)
            self._destination[row] = destination
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
                    # On one host TCP's handshake is over when connect() returns: the first
                    # heartbeat goes out at once, without waiting for an event.
                    first = (
                        ((not shakes and heartbeat) or self._first_words(row))
                        if beat or shakes
                        else b""
                    )
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
                connected.append((row, number, now))
        self.tick.started += len(rows)
        self.tick.bytes_sent += bytes_sent
        if shakes:
            self._shake_hands(connected)
        else:
            self._establish(connected, beat)

    def _asks_at_once(self, row: int) -> bool:
        """Whether a row that comes back from an event sends a heartbeat at once, whatever the plan
        says of first ones.
        """
        return row in self._coming_back and self._silence_s is None

    def _asks_for_status(self, row: int) -> bool:
        """Whether a row that comes back from an event is so only by the status of an answer, which
        follows the handshake.
        """
        return self._protocol.answers_have_status and row in self._coming_back

    def end_by_event(self, row: int, event: int, *, abort: bool) -> None:
        """End the connection of a row, which comes back; ``abort``: by RST."""
        if not self._leave_by_event(row, event):
            return
        self._forget_connection(row)
        self._free_row(row, abort)
        now = self._net.clock()
        wait_s = self.comebacks.wait_s(row, failed=0)
        if event == CHURN and not self._has_policy:
            wait_s = 0.0
        self.comebacks.at(row, now + wait_s)

    def silence_by_event(
        self, row: int, event: int, until: float, then: Literal["return", "reconnect", "gone"]
    ) -> None:
        """Have a row's connection fall silent without a word. ``until``: when its client is heard
        again (on the net's clock): by ``return`` on the same connection, by ``reconnect`` on a new
        one, while the server may still hold the old one.
        """
        if not self._leave_by_event(row, event, keeps_connection=then == "return"):
            return
        self.comebacks.counts_of(event).silenced += 1
        self._net.deafen(self._handle[row])
        if then == "return":
            self.comebacks.at(row, until)
            return
        handle = self._handle[row]
        self._forget_connection(row)
        self._handle[row] = -1
        self._row_of[handle] = -1
        self._ghosts.append(handle)
        if then == "reconnect":
            self.comebacks.at(row, until + self.comebacks.wait_s(row, failed=0))
            return
        del self._coming_back[row]
        self.comebacks.counts_of(event).gone += 1

    def _leave_by_event(self, row: int, event: int, *, keeps_connection: bool = False) -> bool:
        """An event concerns a row. False if it has no connection; else it is away from now on.
        ``keeps_connection``: an answer that it awaits may still come.
        """
        counts = self.comebacks.counts_of(event)
        counts.chosen += 1
        state = self.state[row]
        if state not in (IDLE, AWAITING):
            counts.absent += 1
            return False
        counts.ended += 1
        stands = self._stands_unheard(row)
        self._hears_again.discard(row)
        asked = self._take_off_schedule(row)
        if asked and keeps_connection:
            self._owes_answer.add(row)
        elif asked:
            counts.asked += 1
            self._beats[row] += 1
        self._retries[row] = 0
        self.state[row] = AWAY
        self.comebacks.leave(row, event, self._net.clock(), stands=stands)
        return True

    def _stands_unheard(self, row: int) -> bool:
        """Whether a listener hears again after an event, and has had no message since."""
        return row in self._hears_again and self.state[row] == IDLE

    def _take_off_schedule(self, row: int, in_wheel: bool = True) -> bool:
        """A row is held no more by an event. ``in_wheel``: as of :meth:`_end`. True if it awaited
        the answer to a heartbeat.
        """
        self._hold_no_more(row)
        self._is_owed_late.discard(row)
        if row in self.awaiting:
            del self.awaiting[row]
            return True
        if in_wheel and not self.draining:
            self.wheel.remove(row)
        return False

    def _hold_no_more(self, row: int) -> None:
        if row in self.unproven:
            self.unproven.remove(row)
            return
        self.held -= 1

    def _is_back(self, row: int, now: float, answer_s: float | None = None) -> None:
        """A row has come back from an event, and is held from now on. ``answer_s``: how long its
        first answer took. Once the drain has begun it comes too late: the server may have had room
        for it only because others were closed.
        """
        if self.draining:
            return
        if row in self.unproven:
            self.unproven.remove(row)
            self.held += 1
        self._hears_again.discard(row)
        self.comebacks.back(row, now, answer_s)

    def _forget_connection(self, row: int) -> None:
        """Drop what is known of a row's connection, which has ended for its client."""
        self._protocol.forget(row)
        self._unsent.pop(row, None)
        self._retransmitted[row] = 0

    def come_back(self, row: int) -> None:
        """Connect a row that was away, or have it hear again."""
        if self._handle[row] < 0:
            self.open(range(row, row + 1))
            return
        self._net.hear(self._handle[row])
        self.comebacks.counts_of(self._coming_back[row]).returned += 1
        self.state[row] = IDLE
        now = self._net.clock()
        self.wheel.due[row] = now
        if self._silence_s is not None:
            # No message is due: it is held as far as anybody knows.
            self.held += 1
            self._hears_again.add(row)
            self.wheel.add(row, now + self._silence_s)
            return
        self.unproven.add(row)
        if row in self._owes_answer:
            # A second heartbeat would take the first one's answer for its own.
            self._owes_answer.remove(row)
            self._is_owed_late.add(row)
            self.state[row] = AWAITING
            self.awaiting[row] = now
            self.comebacks.counts_of(self._coming_back[row]).awaited += 1
            unacknowledged = self._net.unacknowledged(self._handle[row])
            if unacknowledged is not None:
                self.comebacks.is_sent_again(row, unacknowledged.again_in_s)
            if row in self._unsent:
                self._net.watch(self._handle[row], READABLE | WRITABLE, again=True)
            return
        self.send_heartbeat(row, now)

    def send_heartbeat(self, row: int, due: float) -> None:
        """Send the heartbeat of an idle row, due at ``due``; the row is not in the wheel."""
        if self._silence_s is not None:
            self._check_silence(row, self._silence_s)
            return
        # _next_heartbeat, inlined.
        heartbeat = self._heartbeat or self._heartbeat_for(
            row, self._targets[self._destination[row]]
        )
        if not self._write(row, heartbeat, in_wheel=False):
            return
        now, tick = self._net.clock(), self.tick
        tick.sent += 1
        tick.lateness_us.add((now - due) * 1e6)
        self.state[row] = AWAITING
        self.awaiting[row] = now

    def _check_silence(self, row: int, silence_s: float) -> None:
        """End a listening row whose peer was silent for too long; else schedule the next check."""
        now, heard = self._net.clock(), self._heard_at[row]
        self.wheel.add(row, max(heard + silence_s, now + _CHECK_AGAIN_S))
        if now >= heard + silence_s:
            # After a stall of ours, data that came in time may be unread.
            self._ready(row, self._handle[row])
            if self.state[row] == IDLE and self._heard_at[row] == heard:
                self._end(row, DEADLINE)

    def missing_streams(self, now: float) -> Iterator[tuple[float, int]]:
        """Rows that have lost streams since the last call, each with the instant to open them
        again: with the backoff of connections, which grows until a heartbeat is answered.
        """
        for row in self._protocol.take_rows_missing_streams() if self._shard.reopen else ():
            retry = self._retries[row]
            self._retries[row] = min(255, retry + 1)
            yield (
                now
                + backoff_s(self._seed, self.number(row), (self._beats[row] << 8) | retry, retry),
                row,
            )

    def reopen_streams(self, row: int) -> None:
        """Open again the streams that an idle row has lost."""
        if requests := self._protocol.reopen_streams(
            row, self._shard.destinations[self._destination[row]].target
        ):
            self._write(row, requests)

    def take_events(self, most: int) -> int:
        """Handle up to ``most`` events of the network; returns their number."""
        events, row_of, ready, unsent = (
            self._net.poll(most),
            self._row_of,
            self._ready,
            self._unsent,
        )
        for handle, what in events:
            if (row := row_of[handle]) >= 0:
                if (
                    unsent
                    and what & WRITABLE
                    and row in unsent
                    and self.state[row] in (HANDSHAKE, IDLE, AWAITING)
                ):
                    # Here, because a row that always has something to read would never get to it.
                    self._flush(row)
                    if row_of[handle] != row:
                        continue
                ready(row, handle)
        self.close_handles()
        return len(events)

    def expire(self, now: float) -> None:
        """End the rows whose deadline has passed."""
        for waiting, patience_s in self.deadlines:
            overdue = []
            for row, since in waiting.items():
                if now - since < patience_s:
                    break
                overdue.append((row, since))
            for row, since in overdue:
                self._read_all(row, waiting, since)
                if row in self.closing:
                    self._close(row)
                elif (
                    waiting.get(row) == since
                    and (event := self._net.late_event(self._handle[row])) is not None
                ):
                    self._end(row, event)

    def _read_all(self, row: int, waiting: dict[int, float], since: float) -> None:
        """Read what came in time, which is unread after a stall of ours; messages may precede the
        answer.
        """
        for _ in range(_MOST_READS):
            before = self.tick.bytes_received
            self._ready(row, self._handle[row])
            if waiting.get(row) != since or self.tick.bytes_received == before:
                return

    def take_tick(self) -> Tick:
        """The counts since the last call."""
        tick, self.tick = self.tick, Tick()
        tick.tcp, self._tcp = self._tcp, TcpCounts()
        tick.events = self.comebacks.take_counts()
        self._protocol.add_counts(counts := self._counts)
        if not self._counts_words:
            counts = ProtocolCounts(
                broken=counts.broken,
                farewells=counts.farewells,
                first_answers=counts.first_answers,
                other_answers=counts.other_answers,
            )
        if self._counts_words or counts != ProtocolCounts():
            tick.protocol, self._counts = counts, ProtocolCounts()
        return tick

    @property
    def held_and_awaiting(self) -> int:
        """How many connections are held and await an answer."""
        if self._silence_s is not None:
            return len(self.awaiting)
        # Some of the others may have had an answer, in the drain or with an error.
        return len(self.awaiting) - len(self.unproven & self.awaiting.keys())

    @property
    def waits_since(self) -> float | None:
        """Since when that one of them waits that waits longest. None if none does."""
        for row, since in self.awaiting.items():
            if row not in self.unproven:
                return since
        return None

    def begin_drain(self) -> None:
        """From here nothing is sent or opened. A connection that ends is no loss, unless it owes an
        answer.
        """
        self.draining = True
        now, state, heard, add_idle_ms = (
            self._net.clock(),
            self.state,
            self._heard_at,
            self.tick.heard_ms.add,
        )
        self._note_those_on_their_way()
        for row in range(self.rows):
            if state[row] == IDLE and row not in self.unproven:
                add_idle_ms((now - heard[row]) * 1e3)
            elif state[row] in (BACKOFF, AWAY):
                if row in self._owes_answer:
                    self.comebacks.counts_of(self._coming_back[row]).asked += 1
                if state[row] == AWAY and not self._retries[row]:
                    self.comebacks.is_waiting(row)
                state[row] = DEAD
                self._free_row(row, abort=True)
        self._owes_answer.clear()
        # Their servers may hold them still.
        self.to_close += [(handle, True) for handle in self._ghosts]
        self._ghosts.clear()

    def _note_those_on_their_way(self) -> None:
        """As the drain begins some are away, or on their first way back; and of listeners that hear
        again some have no message yet, of which nothing tells whether they are back.
        """
        now = self._net.clock()
        for row in self._coming_back:
            if self._stands_unheard(row):
                self.comebacks.is_unheard(row)
                continue
            if self.state[row] != STALLED:
                # Of who stalls until now, the end of it tells.
                self.comebacks.is_still_away(row, now)
            is_to_come = self.state[row] == AWAY and not self._retries[row]
            if self._waits_for_kernel(row, now):
                self.comebacks.is_waiting(row)
                continue
            if self._has_several and not is_to_come:
                self.comebacks.is_missing(row, self._destination[row])
            on_the_way = self.state[row] in (CONNECTING, HANDSHAKE, AWAITING)
            if on_the_way and not self._retries[row]:
                self.comebacks.is_on_its_way(row, now)

    def _waits_for_kernel(self, row: int, now: float) -> bool:
        """Whether a row hears again, and awaits its answer only until one of the kernels sends
        again what the silence has swallowed: each waits twice as long each time, so after that for
        no longer than the silence had lasted.
        """
        if self.state[row] != AWAITING or self._retries[row]:
            return False
        if self._established_at[row] >= self.comebacks.began_at(row):
            return False
        heard_since_s = now - self.awaiting[row]
        unacknowledged = self._net.unacknowledged(self._handle[row])
        if unacknowledged is not None:
            return unacknowledged.sent_ago_s > heard_since_s
        # Its server has the request. The answer was sent in the silence, or is behind what was.
        if row not in self._is_owed_late and not self._counts_words:
            return False
        return heard_since_s < self.comebacks.silence_s(row)

    def close(self, row: int) -> None:
        """Close an idle row at the end of the drain: at once, or once the peer has answered the
        protocol's goodbye.
        """
        self._hold_no_more(row)
        self.state[row], self.closing[row] = CLOSING, self._net.clock()
        bye = self._protocol.goodbye(row)
        try:
            if (
                bye
                and row not in self._unsent
                and self._net.send(self._handle[row], bye) == len(bye)
            ):
                return
        except OSError:
            pass
        self._close(row)

    def close_handles(self) -> None:
        for handle, abort in self.to_close:
            self._net.close(handle, abort)
        self.to_close.clear()

    # -- a connection's life

    def number(self, row: int) -> int:
        """The number of this row's connection in the run: batch j belongs to worker j mod n."""
        batch, place = divmod(row, self._batch_size)
        return (batch * self._workers + self._worker) * self._batch_size + place

    def _next_heartbeat(self, row: int) -> bytes:
        return self._heartbeat or self._heartbeat_for(row, self._targets[self._destination[row]])

    def _first_words(self, row: int) -> bytes:
        """The bytes to send first on a new connection."""
        if self._handshake is not None:
            return self._handshake(row, self._shard.destinations[self._destination[row]].target)
        return self._next_heartbeat(row)

    def _close(self, row: int) -> None:
        """By RST: 100,000 connections would fill TIME_WAIT."""
        del self.closing[row]
        self._free_row(row, abort=True)
        self.state[row] = DEAD

    def _ready(self, row: int, handle: int) -> None:
        state = self.state[row]
        if state == CONNECTING:
            self._connected(row, handle)
        elif state == CLOSING:
            try:
                if self._net.recv(handle, _READ_BYTES):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            self._close(row)
        else:
            self._receive(row, handle, state == AWAITING)

    def _connected(self, row: int, handle: int) -> None:
        """A connect has succeeded or failed: the first send returns which."""
        shakes = self._handshake is not None
        beat = (self._beats_at_once or self._asks_at_once(row)) and not self.draining
        # Bytes from an earlier try: a second call could make other ones.
        first = self._unsent.pop(row, b"")
        first = (first or self._first_words(row)) if beat or shakes else b""
        try:
            if (taken := self._net.send(handle, first)) != len(first):
                self._unsent[row] = first[taken:]
            self._net.watch(
                handle, READABLE | WRITABLE if row in self._unsent else READABLE, again=True
            )
        except BlockingIOError:
            if first:
                self._unsent[row] = first
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        self.tick.bytes_sent += taken
        connected = [(row, self.number(row), self._net.clock())]
        if shakes:
            self._shake_hands(connected)
        else:
            self._establish(connected, beat)

    def _shake_hands(self, connected: list[tuple[int, int, float]]) -> None:
        """These rows have sent their handshakes; the peers have another connect timeout to
        answer.
        """
        state, connecting, proven = self.state, self.connecting, self.addresses.proven
        established_at, destination = self._established_at, self._destination
        for row, _, now in connected:
            state[row] = HANDSHAKE
            proven[destination[row]] = True
            established_at[row] = connecting.pop(row)  # until then: the start of its connect
            connecting[row] = now

    def _accept_handshake(self, row: int, reply: bytes) -> None:
        """The peer accepted the handshake. ``reply`` goes out in one write with the first
        heartbeat, which on its own would wait until the peer's kernel has acknowledged ``reply``
        (Nagle's algorithm).
        """
        now = self._net.clock()
        self._counts.handshake_us.add((now - self.connecting[row]) * 1e6)
        self.connecting[row] = self._established_at[row]
        beat = (self._beats_at_once or self._asks_for_status(row)) and not self.draining
        reply += self._next_heartbeat(row) if beat else b""
        if not reply or self._write(row, reply):
            self._establish([(row, self.number(row), now)], beat)

    def _establish(self, connected: list[tuple[int, int, float]], beat_sent: bool) -> None:
        """These connects succeeded: (row, its connection's number, instant); ``beat_sent``: the
        first heartbeat is sent.
        """
        tick, state, connecting, due, add = (
            self.tick,
            self.state,
            self.connecting,
            self.wheel.due,
            self.wheel.add,
        )
        born, heard, requests, lives, beats = (
            self._established_at,
            self._heard_at,
            self._requests,
            self._lives,
            self._beats,
        )
        connect_us, seed, keepalive_s = tick.connect_us.add, self._seed, self._keepalive_s
        aim, proven, failed_at, silence_s = (
            self._destination,
            self.addresses.proven,
            self.addresses.failed_at,
            self._silence_s,
        )
        event_of = self._coming_back
        coming_back = 0
        for row, number, now in connected:
            took_s = now - connecting.pop(row)
            if took_s > SENT_AGAIN_S and self._sent_again(row, self._handle[row], now - took_s):
                self._tcp.connects += 1
            if row in event_of:
                coming_back += 1
                self._connected_again(row, took_s, now, beat_sent)
            else:
                connect_us(took_s * 1e6)
                self._count_connect(row)
            lives[row] += 1
            proven[aim[row]] = True
            if failed_at:
                failed_at.pop(row, None)
            requests[row] = 0
            born[row] = heard[row] = now
            if beat_sent:
                state[row] = AWAITING
                self.awaiting[row] = due[row] = now
            else:
                state[row] = IDLE
                if not self.draining:
                    add(row, now + (silence_s or sleep_s(seed, number, beats[row], keepalive_s)))
        tick.opened += len(connected)
        tick.sent += len(connected) if beat_sent else 0
        self.held += len(connected) - coming_back

    def _count_connect(self, row: int) -> None:
        """Count a connect that no event asked for."""
        if self._lives[row]:
            self.tick.reopened += 1
        elif not self._retries[row]:
            self.first_pending -= 1

    def _connected_again(self, row: int, took_s: float, now: float, beat_sent: bool) -> None:
        """The connect of an event's row succeeded. It is back, and so held, if the peer answered
        its handshake and its answers have no status, or if the protocol asks nothing.
        """
        self.comebacks.connected(row, took_s)
        self.unproven.add(row)
        was_answered = self._handshake is not None and not self._asks_for_status(row)
        if was_answered or not beat_sent:
            self._is_back(row, now)

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
        if self._answers is not None:
            known = self._answers[self._owed[row]]
        event = (
            meaning
            if awaiting and data == known and row not in self._partial
            else self._interpret(row, data, awaiting)
        )
        if event is None:
            return
        now = net.clock()
        del self.awaiting[row]
        tick.answered += 1
        if status := event.status:
            tick.by_status[status] = tick.by_status.get(status, 0) + 1
        latency_s = now - self.wheel.due[row]
        if status < _LOWEST_ERROR:
            self._answered_well[row] = 1
        elif self._is_turned_away(row, event, now):
            return
        if row in self._coming_back:
            self._is_answered_again(row, handle, now, latency_s)
        else:
            tick.latency_us.add(latency_s * 1e6)
            if latency_s > SENT_AGAIN_S:
                self._count_sent_again(row, handle)
        self._requests[row] += 1
        self._beats[row] += 1
        self._retries[row] = 0
        self._heard_at[row] = now
        self.state[row] = IDLE
        if not event.keep_alive:
            self._end_after_answer(row, event)
        elif not self.draining:
            self.wheel.add(
                row,
                now + sleep_s(self._seed, self.number(row), self._beats[row], self._keepalive_s),
            )

    def _is_answered_again(self, row: int, handle: int, now: float, latency_s: float) -> None:
        """An event's row has an answer, and is back."""
        # Of what a silence has swallowed the latency tells nothing: it counts from its end.
        if latency_s > SENT_AGAIN_S or row in self._is_owed_late:
            self._count_sent_again(row, handle)
        self._is_owed_late.discard(row)
        self._is_back(row, now, answer_s=latency_s)

    def _is_turned_away(self, row: int, answer: Event, now: float) -> bool:
        """A row was answered with an error. True: it is an event's, and not back by that: it asks
        again as after an attempt that failed, and no later than with its next heartbeat. False: it
        is no event's, or had nothing but errors before too.
        """
        if row not in self._coming_back:
            self._answered_badly[row] = 1
            return False
        if self._answered_badly[row] and not self._answered_well[row]:
            return False
        self.comebacks.answered_with_error(row, answer.status)
        self._requests[row] += 1
        self._beats[row] += 1
        self._heard_at[row] = now
        self.state[row] = IDLE
        if not answer.keep_alive:
            self._end_after_answer(row, answer)
            return True
        if self.draining:
            return True
        self._retries[row] = min(255, self._retries[row] + 1)
        asks_after_s = min(
            self.comebacks.wait_s(row, self._retries[row]),
            sleep_s(self._seed, self.number(row), self._beats[row], self._keepalive_s),
        )
        self.wheel.add(row, now + asks_after_s)
        return True

    def _sent_again(self, row: int, handle: int, began_at: float) -> int:
        """How many segments the row's socket has sent again since the last call, which are counted
        here, without those that a silence swallowed. ``began_at``: when the connect or request
        began of which they are.
        """
        total = self._net.retransmitted(handle)
        segments = (total - self._retransmitted[row]) & 0xFF
        # It falls if the peer reports a duplicate later.
        if segments > 0x7F:
            return 0
        self._retransmitted[row] = total & 0xFF
        if not segments:
            return 0
        event = self._coming_back.get(row, CHURN)
        if event != CHURN and self._fell_silent(row, event):
            self.comebacks.counts_of(event).sent_again_silent += segments
            return 0
        self._tcp.segments += segments
        begun = self._tcp.begun
        if event != CHURN:
            begun = self.comebacks.counts_of(event).sent_again
        second = math.ceil(began_at - self._t0)
        begun[second] = begun.get(second, 0) + segments
        return segments

    def _fell_silent(self, row: int, event: int) -> bool:
        """Whether an event's row has the connection still that the event had fall silent."""
        if self._shard.events[event - 1].do != "vanish":
            return False
        if self.state[row] in (CONNECTING, HANDSHAKE):
            return False
        return self._established_at[row] < self.comebacks.began_at(row)

    def _count_sent_again(self, row: int, handle: int) -> None:
        """Count a late answer whose request was sent again; a first request's, unless its SYN was
        counted.
        """
        counted = self._retransmitted[row] > 0
        if not self._sent_again(row, handle, self.wheel.due[row]):
            return
        if self._requests[row]:
            self._tcp.heartbeats += 1
        elif not counted:
            self._tcp.connects += 1

    def _end_after_answer(self, row: int, answer: Event) -> None:
        """``answer`` is the connection's last."""
        match answer.end:
            case ProtocolError() as error:
                self._end(row, MALFORMED, in_wheel=False, reason=str(error))
            case Event() as closing:
                self._take_leave(row, closing, in_wheel=False)
            case _:
                if answer.rest:
                    self._count_reason(row, self._counts.farewells, brief(answer.rest))
                self._end(row, ANNOUNCED, in_wheel=False)

    def _take_leave(self, row: int, closing: Event, in_wheel: bool = True) -> None:
        """The peer closes, in the protocol's way."""
        counts = self._counts
        counts.goodbyes[closing.status] = counts.goodbyes.get(closing.status, 0) + 1
        if why := brief(closing.rest):
            self._count_reason(row, counts.farewells, why)
        # The peer may be gone already.
        with contextlib.suppress(OSError):
            if row not in self._unsent:
                self._net.send(self._handle[row], closing.reply)
        self._end(row, ANNOUNCED, in_wheel)

    def _interpret(self, row: int, data: bytes, awaiting: int) -> Event | None:
        """Have the protocol interpret a read; returns the answer, or None if there is none or the
        row has ended.
        """
        whole, counts = row not in self._partial, self._counts
        try:
            event = self._protocol.feed(row, data, awaiting)
        except ProtocolError as error:
            if awaiting and error.answer is not None:
                return msgspec.structs.replace(error.answer, keep_alive=False, end=error)
            if error.status >= _LOWEST_ERROR and row in self._coming_back:
                self.comebacks.refused_with_error(row, error.status)
            self._end(row, MALFORMED, reason=str(error))
            return None
        if event is None:
            if not data:
                self._end(row, EOF)
            elif self._silence_s is not None or row not in self._partial:
                self._on_message(row)
            return None
        counts.messages += event.messages
        counts.message_bytes += event.body_bytes
        if event.kind == interface.CLOSING:
            self._take_leave(row, event)
            return None
        if (
            event.reply
            and event.kind != interface.ESTABLISHED
            and not self._reply(row, event.reply)
        ):
            return None
        match event.kind:
            case interface.ANSWER if awaiting:
                # Equal bytes mean the same if the answer was all that was read.
                own = (
                    event.own
                    or event.end is not None
                    or self._answers is not None
                    or not self._repeats
                )
                if (
                    whole
                    and data
                    and not (event.reply or event.messages or own or row in self._partial)
                ):
                    self._last_answer = (data, event)
                return event
            case interface.NEWS:
                self._on_message(row)
            case interface.ESTABLISHED:
                self._accept_handshake(row, event.reply)
                if event.rest and self.state[row] in (IDLE, AWAITING):
                    # These bytes came before the first heartbeat was sent, so they answer nothing.
                    return self._interpret(row, event.rest, awaiting=False)
            case _:
                self._end(row, MALFORMED)
        return None

    def _on_message(self, row: int) -> None:
        """The peer sent something that is no answer."""
        now = self._net.clock()
        self._heard_at[row] = now
        if row in self._coming_back and self._silence_s is not None:
            self._is_back(row, now)
        if self._silence_s is not None and self.state[row] == IDLE:
            self._retries[row] = 0

    def _count_reason(self, row: int, reasons: dict[str, int], why: str) -> None:
        """Count the peer's text ``why``, without what it repeats of the row's data. The plan's own
        secrets are hidden where it is recorded (app/recorder.py).
        """
        if self._fields.columns and why not in self._reasons:
            why = Quotation(self._fields.of_data(row))(why)
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else OTHER_REASONS
        reasons[why] = reasons.get(why, 0) + 1

    def _reply(self, row: int, data: bytes) -> bool:
        """Send the protocol's reply; end a row whose peer does not read replies. False: the row has
        ended.
        """
        if len(self._unsent.get(row, b"")) > _MOST_UNREAD_BYTES:
            self._end(row, MALFORMED, reason="it does not read the replies to its messages")
            return False
        return self._write(row, data)

    def _write(self, row: int, data: bytes, in_wheel: bool = True) -> bool:
        """Send ``data`` after what is still unsent; what the kernel has no room for is sent later.
        False: the row has ended.
        """
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
        """Send what is still unsent: the event may have been WRITABLE."""
        rest = self._unsent.pop(row, b"")
        if rest and self._write(row, rest) and row not in self._unsent:
            self._net.watch(self._handle[row], READABLE, again=True)

    def _end(self, row: int, event: str, in_wheel: bool = True, reason: str = "") -> None:
        """End a connection or a connect; every end comes here. ``in_wheel``: an IDLE row is still
        in the wheel; ``reason``: how the peer refused, or broke the protocol.
        """
        state, now, handle = self.state[row], self._net.clock(), self._handle[row]
        why, in_message = cause(state, event), row in self._partial
        self._protocol.forget(row)
        self._unsent.pop(row, None)
        if handle >= 0:
            self._end_sent_again(row, handle, event)
        self._free_row(row, abort=event in ABORTS)
        is_of_event = row in self._coming_back
        command = None
        if event in BY_SERVER:
            command = self._command_at(row, now)
        if command is not None:
            self.comebacks.ended_by_command(command, now)
            self._end_by_command(row, command, now, in_wheel)
        elif state in (CONNECTING, HANDSHAKE):
            if is_of_event and self._has_several:
                self.comebacks.failed_at(row, self._destination[row])
            if is_of_event and why in HANDSHAKES_IN_VAIN:
                self.comebacks.in_vain(row, acknowledged=self._net.acknowledged(handle))
            if self._connect_failed(row, why):
                self._connect_at(row, now)
                return
            if why == "handshake_refused" and not is_of_event:
                silent = f"{'closed' if event == EOF else 'reset'} without an answer"
                self._count_reason(row, self._counts.refused, reason or silent)
        elif is_of_event:
            acknowledged = None
            if event == DEADLINE:
                acknowledged = self._net.acknowledged(handle)
            self._end_phantom(row, in_wheel, acknowledged)
        else:
            if reason:
                self._count_reason(row, self._counts.broken, reason)
            self._count_loss(row, handle, why, in_message=in_message, in_wheel=in_wheel)
        if self._shard.reopen and not self.draining and self._protocol.may_reopen(row):
            self._reopen_later(row, now)
        else:
            self.state[row] = DEAD

    def _count_loss(
        self, row: int, handle: int, why: str, *, in_message: bool, in_wheel: bool
    ) -> None:
        """Count an established connection that was lost. ``in_message``: within a message, of
        which a part had come.
        """
        tick, now = self.tick, self._net.clock()
        self.held -= 1
        if not self._requests[row] and (
            self._silence_s is None or self._heard_at[row] == self._established_at[row]
        ):
            # Back off from a server that accepts and closes, instead of connecting twice a second
            # for ever.
            self._retries[row] = min(255, self._retries[row] + 1)
        asked = self.state[row] == AWAITING
        if asked:
            since = self.awaiting.pop(row)
            tick.beats_failed += 1
            # Its latency is at least this.
            tick.latency_us.add((now - self.wheel.due[row]) * 1e6)
            self._beats[row] += 1
            if why == "heartbeat_timeout":
                tick.acknowledged += self._net.acknowledged(handle)
                tick.spoke += in_message or self._heard_at[row] > since
        elif in_wheel and not self.draining:
            self.wheel.remove(row)
        # The drain sends no heartbeats, so this one was sent before.
        tick.unanswered += asked and self.draining
        if asked or not self.draining:
            deaths = tick.deaths.setdefault(why, Deaths())
            deaths.count += 1
            deaths.age_s.add(now - self._established_at[row])
            idle_s = now - self._heard_at[row]
            deaths.idle_s.add(idle_s)
            deaths.idle_ms.add(idle_s * 1e3)
            deaths.in_message += in_message
            deaths.requests.add(self._requests[row])

    def _command_at(self, row: int, now: float) -> int | None:
        """The event whose command may have the server end a row's established connection now."""
        if self.draining or self.state[row] not in (IDLE, AWAITING):
            return None
        established_at = self._established_at[row]
        is_of_event = row in self._coming_back
        if is_of_event and not self.comebacks.had_errors_before_command(row, established_at):
            # What fails on the way back from an event is that one's.
            return None
        return self.comebacks.command_at(now, established_at)

    def _end_by_command(self, row: int, event: int, now: float, in_wheel: bool) -> None:
        """The server has ended a connection in the time of a command, as was seen ``now``."""
        counts = self.comebacks.counts_of(event)
        counts.chosen += 1
        counts.ended += 1
        asked = self._take_off_schedule(row, in_wheel)
        counts.asked += asked
        self._beats[row] += asked
        self._retries[row] = 0
        self.comebacks.leave(row, event, now)

    def _end_phantom(self, row: int, in_wheel: bool, acknowledged: bool | None) -> None:
        """The connection of an event's row ended before its first answer: a new one, or the one
        that it had before, which the server had ended meanwhile. ``acknowledged``: as of
        :meth:`Comebacks.unanswered`.
        """
        asked = self._take_off_schedule(row, in_wheel)
        self._beats[row] += asked
        self._retries[row] = min(255, self._retries[row] + 1)
        if self._has_several and self._established_at[row] >= self.comebacks.began_at(row):
            self.comebacks.failed_at(row, self._destination[row])
        self.comebacks.unanswered(
            row,
            asked=asked,
            established_at=self._established_at[row],
            acknowledged=acknowledged,
        )

    def _reopen_later(self, row: int, now: float) -> None:
        """Have a row connect again: by the plan's policy, or where it has none with a backoff, at
        most as fast as the ramp.
        """
        at_least_s = self._protocol.reopen_delay_s(row)
        retries = self._retries[row]
        if self._comes_by_policy(row):
            wait_s = max(at_least_s, self.comebacks.wait_s(row, retries))
        else:
            attempt = (self._lives[row] << 8) | retries
            wait_s = at_least_s + backoff_s(self._seed, self.number(row), attempt, retries)
        self._connect_at(row, now + wait_s)

    def _comes_by_policy(self, row: int) -> bool:
        """Whether a row that ended comes back by the plan's policy. One that was never established
        belongs to the ramp.
        """
        if row in self._coming_back:
            return True
        return self._has_policy and self._lives[row] > 0

    def _connect_at(self, row: int, instant: float) -> None:
        """Have a row connect at an instant, in the queue that it belongs to."""
        if self._comes_by_policy(row):
            self.state[row] = AWAY
            self.comebacks.at(row, instant)
            return
        self.state[row] = BACKOFF
        self.wheel.add(row, instant)

    def _end_sent_again(self, row: int, handle: int, event: str) -> None:
        """Count what a connection that ends has sent again, and whether its first request was in
        vain.
        """
        self._sent_again(row, handle, self._asked_at(row))
        state = self.state[row]
        late = (event == DEADLINE and state != CONNECTING) or event == TLS_DEADLINE
        first = state in (CONNECTING, HANDSHAKE) or not self._requests[row]
        if late and first and self._retransmitted[row]:
            self._tcp.unanswered += 1
        self._retransmitted[row] = 0

    def _asked_at(self, row: int) -> float:
        """When the connect or the request of a row began that waits for an answer; of any other
        now, since nothing tells when what it has sent again was sent.
        """
        state = self.state[row]
        if state == CONNECTING:
            return self.connecting[row]
        if state == HANDSHAKE:
            # Until it is accepted: when its connect began.
            return self._established_at[row]
        return self.awaiting.get(row, self._net.clock())

    def _connect_failed(self, row: int, why: str) -> bool:
        """Count a failed connect; True if the attempt continues at once at another address."""
        tick, destination = self.tick, self._destination[row]
        del self.connecting[row]
        # Without descriptors no other address would be reached either.
        continues, dropped = self.addresses.failed(
            row, destination, reached=why != "no_descriptors", draining=self.draining
        )
        if dropped:
            tick.dropped[destination] = 1
        if continues:
            return True
        if not self._lives[row] and not self._retries[row]:
            self.first_pending -= 1
        if not self.comebacks.failed(row, why):
            tick.failures[why] = tick.failures.get(why, 0) + 1
        self._retries[row] = min(255, self._retries[row] + 1)
        return False

    def _free_row(self, row: int, abort: bool) -> None:
        handle = self._handle[row]
        if handle >= 0:
            self._handle[row] = -1
            self._row_of[handle] = -1
            self.to_close.append((handle, abort))
