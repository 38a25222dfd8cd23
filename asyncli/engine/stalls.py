"""Connections of one process that read nothing by an event of the plan, as a client does that is
slow or hangs, and that go on sending heartbeats.

While a row stalls, its socket is watched for the peer's end alone, and nobody's timeout judges it.
Then what waited is read, and the heartbeats in it are answered late. What the server ends
meanwhile is the event's. Only runs with such an event have this class.

A server that ends a slow reader sends its FIN behind what waits, in its own kernel too, so that the
end comes after a read that has left nothing. So a row stays the event's until the answer to a
heartbeat that it sent once it read again; where none is sent, for a time without an end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import groupby

import msgspec

from asyncli.core.events import Choice
from asyncli.core.heartbeat import sleep_s
from asyncli.core.life import (
    ABORTS,
    AWAITING,
    DEAD,
    DEADLINE,
    IDLE,
    STALLED,
    cause,
    event_of,
)
from asyncli.engine.held_connections import HeldConnections
from asyncli.engine.net import PEER_CLOSED, READABLE, WRITABLE, Net
from asyncli.engine.shard import Shard
from asyncli.model.planned_events import choices_of
from asyncli.model.records import EventCounts
from asyncli.protocols.interface import Event

# Much may wait: more than for an answer.
_READ_BYTES = 65_536
# How long an end may come behind what waited, once a read has left nothing: what the server's
# kernel still has is sent as soon as there is room.
END_FOLLOWS_S = 2.0


class _Stall(msgspec.Struct):
    """A row that stalls. Instants are those of the net's clock (s)."""

    event: int
    since: float
    until: float
    #: Heartbeats whose answers it has not read.
    unanswered: int
    #: Whether its next heartbeat is in the wheel.
    in_wheel: bool = False
    #: Whether it reads again, and what waited is not all read yet.
    reads: bool = False
    #: Whether all that had waited in the kernel is read.
    drained: bool = False
    #: Whether it has sent a heartbeat since it reads again, which is answered behind all that
    #: waited.
    asked_again: bool = False
    #: When all that waited was read, as far as could be seen, and each heartbeat was answered.
    caught_up_at: float | None = None
    #: When the peer's end was seen while nothing was read.
    closed_at: float | None = None


class StallingConnections(HeldConnections):
    """The rows of a worker, some of which read nothing for a time."""

    def __init__(self, shard: Shard, worker: int, net: Net) -> None:
        super().__init__(shard, worker, net)
        #: Rows that stall, or read what waited.
        self.stalled: dict[int, _Stall] = {}
        # A heap of rows by the instant at which they read again.
        self._resumes: list[tuple[float, int]] = []
        # Rows that read again, in the order in which they last received something that had waited.
        self._catching_up: dict[int, float] = {}
        # Rows that have caught up and ask nothing, in the order of the instants until which an end
        # may follow.
        self._settling: dict[int, float] = {}
        self._chosen = _chosen_to_stall(shard)

    # -- called by the table

    def open(self, rows: range) -> None:
        """Connect rows; those that are to stall have segments as over a network."""
        if not self._chosen:
            super().open(rows)
            return
        for is_limited, group in groupby(rows, key=self._is_to_stall):
            members = list(group)
            self._net.limit_segments(is_limited)
            super().open(range(members[0], members[-1] + 1))
        self._net.limit_segments(False)

    def _is_to_stall(self, row: int) -> bool:
        number = self.number(row)
        return any(number in choice for choice in self._chosen)

    def stall_by_event(self, row: int, event: int, until: float) -> None:
        """Have a row read nothing ``until`` then (on the net's clock)."""
        self._settle(row)
        counts = self.comebacks.counts_of(event)
        counts.chosen += 1
        state = self.state[row]
        if state not in (IDLE, AWAITING) or row in self._coming_back:
            counts.absent += 1
            return
        counts.stalled += 1
        handle = self._handle[row]
        segment = self._net.segment_bytes(handle)
        counts.segments[segment] = counts.segments.get(segment, 0) + 1
        now = self._net.clock()
        self.comebacks.leave(row, event, now)
        awaits = state == AWAITING
        self.stalled[row] = stall = _Stall(event, now, until, int(awaits), in_wheel=not awaits)
        if awaits:
            del self.awaiting[row]
            self._schedule_heartbeat(row, stall, now)
        elif self._silence_s is not None:
            self.wheel.remove(row)
            stall.in_wheel = False
        self.state[row] = STALLED
        self._net.watch(handle, PEER_CLOSED, again=True)
        if until < math.inf:
            heappush(self._resumes, (until, row))

    def beat_stalled(self, row: int, now: float) -> None:
        """Send the heartbeat of a row that stalls, which the wheel has just given out."""
        stall = self.stalled[row]
        stall.in_wheel = False
        due = self.wheel.due[row]
        if self._send_unread(row, stall):
            self.tick.lateness_us.add((now - due) * 1e6)
            self._schedule_heartbeat(row, stall, now)

    def resume_due(self, now: float, at_most: int) -> bool:
        """Have up to ``at_most`` rows read again that are due to. True if more are."""
        for _ in range(at_most):
            if not self._resumes or self._resumes[0][0] > now:
                return False
            until, row = heappop(self._resumes)
            stall = self.stalled.get(row)
            if stall is None or stall.until != until or stall.reads:
                continue
            counts = self._counts_of(stall)
            counts.resumed += 1
            counts.lateness_us.add((now - until) * 1e6)
            self._read_again(row, stall)
        return bool(self._resumes) and self._resumes[0][0] <= now

    def next_instants(self, not_before: float) -> Iterator[float]:
        """When the next row is to read again; and though ``not_before``, when the next one that has
        read nothing since is overdue, and when no end follows any more for the next one.
        """
        if self._resumes:
            yield self._resumes[0][0]
        if self._settling:
            yield max(not_before, next(iter(self._settling.values())))
        if self._catching_up:
            heard = next(iter(self._catching_up.values()))
            yield max(not_before, heard + self._shard.timeout_s)

    def begin_drain(self) -> None:
        super().begin_drain()
        now = self._net.clock()
        for row, stall in list(self.stalled.items()):
            if stall.reads:
                continue
            self._counts_of(stall).resumed += 1
            self.comebacks.counts_since[row] = now
            self._read_again(row, stall)

    def expire(self, now: float) -> None:
        super().expire(now)
        self._expire_settling(now)
        overdue = []
        for row, heard in self._catching_up.items():
            if now - heard < self._shard.timeout_s:
                break
            overdue.append((row, heard))
        for row, heard in overdue:
            # After a stall of ours, what came in time may be unread.
            self._ready(row, self._handle[row])
            if self._catching_up.get(row) == heard:
                self._end(row, DEADLINE)

    def _expire_settling(self, now: float) -> None:
        due = []
        for row, until in self._settling.items():
            if until > now:
                break
            due.append(row)
        for row in due:
            # After a stall of ours, an end that came in time may be unread.
            self._ready(row, self._handle[row])
            self._settle(row)

    # -- while it stalls

    def _counts_of(self, stall: _Stall) -> EventCounts:
        return self.comebacks.counts_of(stall.event)

    def _schedule_heartbeat(self, row: int, stall: _Stall, now: float) -> None:
        self._beats[row] += 1
        wait_s = sleep_s(self._seed, self.number(row), self._beats[row], self._keepalive_s)
        self.wheel.add(row, now + wait_s)
        stall.in_wheel = True

    def _send_unread(self, row: int, stall: _Stall) -> bool:
        """Send a heartbeat whose answer nobody reads yet, or the rest of one for which the kernel
        had no room. False: the row has ended.
        """
        target = self._targets[self._destination[row]]
        is_heartbeat = False
        data = self._unsent.pop(row, b"")
        if not data and not stall.unanswered:
            data = self._next_heartbeat(row)
            is_heartbeat = True
        elif not data:
            data = self._protocol.further_heartbeat(row, target)
            is_heartbeat = self._protocol.answers_further
        try:
            taken = self._net.send(self._handle[row], data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            stall.closed_at = self._net.clock()
            self._end(row, event_of(error.errno))
            return False
        self.tick.bytes_sent += taken
        if taken < len(data):
            self._unsent[row] = data[taken:]
            if stall.reads:
                self._net.watch(self._handle[row], READABLE | WRITABLE, again=True)
        if is_heartbeat:
            self.tick.sent += 1
            stall.unanswered += 1
            stall.asked_again = stall.reads
        return True

    def _ready(self, row: int, handle: int) -> None:
        if self.state[row] != STALLED:
            super()._ready(row, handle)
            return
        stall = self.stalled[row]
        if not stall.reads:
            # Only the peer's end is watched: nothing more will wait than does now.
            stall.closed_at = self._net.clock()
            self._watch_again(row, stall)
        self._read_late(row, handle, stall)

    # -- once it reads again

    def _read_again(self, row: int, stall: _Stall) -> None:
        """Read what has waited, from now on; a row that awaits nothing is asked at once."""
        self._watch_again(row, stall)
        asks = self._silence_s is None and not stall.unanswered and not self.draining
        if asks and not self._send_unread(row, stall):
            return
        if not stall.unanswered:
            self._read_late(row, self._handle[row], stall)

    def _watch_again(self, row: int, stall: _Stall) -> None:
        stall.reads = True
        self._leave_wheel(row, stall)
        self._catching_up[row] = self._net.clock()
        events = READABLE | WRITABLE if row in self._unsent else READABLE
        self._net.watch(self._handle[row], events, again=True)

    def _leave_wheel(self, row: int, stall: _Stall) -> None:
        if stall.in_wheel and not self.draining:
            self.wheel.remove(row)
        stall.in_wheel = False

    def _read_late(self, row: int, handle: int, stall: _Stall) -> None:
        """Read once of what has waited."""
        try:
            data = self._net.recv(handle, _READ_BYTES)
        except BlockingIOError:
            self._flush(row)
            if self.stalled.get(row) is stall:
                self._note_drained(row, stall)
            return
        except OSError as error:
            self._end(row, event_of(error.errno))
            return
        now = self._net.clock()
        self.tick.bytes_received += len(data)
        if stall.caught_up_at is None:
            self._counts_of(stall).waited_bytes += len(data)
        if row in self._catching_up and not stall.drained and not self.draining:
            # To the end of the order: what waited may take long to read. What is sent from then on
            # is no reason to wait longer for an answer.
            del self._catching_up[row]
            self._catching_up[row] = now
        event = self._interpret(row, data, stall.unanswered)
        if event is not None:
            self._take_late_answer(row, stall, event, now)
        if len(data) < _READ_BYTES and self.stalled.get(row) is stall:
            self._note_drained(row, stall)

    def _note_drained(self, row: int, stall: _Stall) -> None:
        """Nothing waits any more in the kernel for a row that reads again."""
        if _is_done(stall):
            self._note_caught_up(row, stall)
            return
        if stall.drained:
            return
        stall.drained = True
        if stall.closed_at is None and self._protocol.last_answers_all and not self.draining:
            # A server may have sent no pong while it could not send.
            self._send_unread(row, stall)

    def _note_caught_up(self, row: int, stall: _Stall) -> None:
        """All that waited is read, as far as can be seen, and each heartbeat is answered."""
        now = self._net.clock()
        if stall.caught_up_at is None:
            stall.caught_up_at = now
        if stall.asked_again:
            self._back_at_work(row, stall)
            return
        if row in self._settling or row in self._unsent:
            return
        self._catching_up.pop(row, None)
        if self.draining or self._silence_s is not None:
            self._settling[row] = now + END_FOLLOWS_S
            return
        if self._send_unread(row, stall):
            self._catching_up[row] = now

    def _settle(self, row: int) -> None:
        """A row that has caught up and asks nothing is the stall's no more."""
        if row in self._settling:
            self._back_at_work(row, self.stalled[row])

    def _take_late_answer(self, row: int, stall: _Stall, event: Event, now: float) -> None:
        answers = min(event.answers, stall.unanswered)
        tick = self.tick
        tick.answered += answers
        if status := event.status:
            tick.by_status[status] = tick.by_status.get(status, 0) + answers
        stall.unanswered -= answers
        self._requests[row] += answers
        self._heard_at[row] = now
        if not event.keep_alive:
            self._end_after_answer(row, event)
        elif _is_done(stall):
            self._note_caught_up(row, stall)

    def _on_message(self, row: int) -> None:
        if self.state[row] == STALLED:
            self._heard_at[row] = self._net.clock()
            return
        super()._on_message(row)

    def _back_at_work(self, row: int, stall: _Stall) -> None:
        """All that waited is read, each heartbeat is answered, and no end came behind it."""
        now = self._net.clock()
        assert stall.caught_up_at is not None
        self._forget_stall(row, stall)
        self.state[row] = IDLE
        self.comebacks.back(row, stall.caught_up_at)
        self._heard_at[row] = now
        self._retries[row] = 0
        if self.draining:
            return
        if self._silence_s is not None:
            self.wheel.add(row, now + self._silence_s)
            return
        self._beats[row] += 1
        wait_s = sleep_s(self._seed, self.number(row), self._beats[row], self._keepalive_s)
        self.wheel.add(row, now + wait_s)

    def _forget_stall(self, row: int, stall: _Stall) -> None:
        self._leave_wheel(row, stall)
        del self.stalled[row]
        self._catching_up.pop(row, None)
        self._settling.pop(row, None)

    # -- how it ends

    def _end(self, row: int, event: str, in_wheel: bool = True, reason: str = "") -> None:
        if self.state[row] != STALLED:
            super()._end(row, event, in_wheel, reason)
            return
        stall = self.stalled[row]
        now = self._net.clock()
        handle = self._handle[row]
        self._forget_stall(row, stall)
        self._end_sent_again(row, handle, event)
        self._forget_connection(row)
        self._free_row(row, abort=event in ABORTS)
        self.held -= 1
        self._count_close(stall, event)
        self._retries[row] = 0
        ended_at = now if stall.closed_at is None else stall.closed_at
        self.comebacks.counts_since[row] = ended_at
        if self.draining:
            self.comebacks.is_waiting(row)
            self.comebacks.is_still_away(row, now)
        if self._shard.reopen and not self.draining and self._protocol.may_reopen(row):
            self._reopen_later(row, now)
            return
        self.state[row] = DEAD

    def _count_close(self, stall: _Stall, event: str) -> None:
        """Count that the server ended a row that stalled, and how."""
        counts = self._counts_of(stall)
        why = cause(AWAITING if stall.unanswered else IDLE, event)
        counts.closed += 1
        counts.closed_in_drain += self.draining
        counts.closes[why] = counts.closes.get(why, 0) + 1
        counts.asked += stall.unanswered
        if stall.closed_at is None:
            counts.closed_unseen += 1
            return
        counts.closed_ms.add((stall.closed_at - stall.since) * 1e3)

    def _leave_by_event(self, row: int, event: int, *, keeps_connection: bool = False) -> bool:
        self._settle(row)
        stall = self.stalled.get(row)
        if stall is not None and not keeps_connection:
            # Another event ends it.
            self._counts_of(stall).asked += stall.unanswered
            self._forget_stall(row, stall)
            self.state[row] = IDLE
            self.wheel.add(row, self._net.clock())
        return super()._leave_by_event(row, event, keeps_connection=keeps_connection)


def _is_done(stall: _Stall) -> bool:
    """Whether a row that reads again awaits nothing that it missed."""
    return not stall.unanswered and stall.closed_at is None


def _chosen_to_stall(shard: Shard) -> list[Choice]:
    """Whom events have stall, if the path is that of loopback: a network has its own segments."""
    if not shard.local:
        return []
    chosen = choices_of(shard.events, shard.seed, shard.ramp.connections)
    stalls = []
    for number, event in enumerate(shard.events, start=1):
        if event.do == "stall":
            stalls.append(chosen[number])
    return stalls
