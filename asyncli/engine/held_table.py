"""The schedule of one process's connections: a wheel of due instants, and a turn that does what can
be done now.

No asyncio and no clock: a driver calls :meth:`ConnectionTable.turn` when the network is ready or
something is due (worker.py on the real clock, sim.py on a virtual one). Rules, beside those of
held_connections.py:

- Level-triggered, a bounded number of events a turn.
- A connection counts as held if its heartbeat is answered: one sent before the drain and unanswered
at its end is lost. One that comes back from an event is held from its first answer on, and counts
as connecting until then.
- No bursts after a stall: core/pacer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from asyncli.core import life
from asyncli.core.life import IDLE
from asyncli.core.pacer import BeatPacer, RampPacer, ReopenPacer
from asyncli.engine.churn import Churn
from asyncli.engine.event_schedule import EventSchedule
from asyncli.engine.held_connections import HeldConnections
from asyncli.engine.net import MOST_PENDING, Net
from asyncli.engine.shard import Shard
from asyncli.engine.stalls import StallingConnections
from asyncli.model.records import Tick

# Bounds of one turn: each keeps it near 10 ms at the 20-50 us that a connect or heartbeat takes, so
# that nothing starves.
_MOST_EVENTS = 256
_MOST_BEATS = 256
_MOST_OPENS = 128
_MOST_CLOSES = 400
# Ending 10,000 connections in one go held the loop for 0.35 s.
_MOST_PROVOKED = 512
# Deadlines are seconds long; checking them ten times a second makes them 100 ms late at most.
_SWEEP_S = 0.1


def _connections(
    shard: Shard, worker: int, net: Net
) -> tuple[HeldConnections, StallingConnections | None]:
    """The connections of a worker, and again as those that can stall, if an event has some do so:
    most runs need not pay for that.
    """
    if any(event.do == "stall" for event in shard.events):
        stalling = StallingConnections(shard, worker, net)
        return stalling, stalling
    return HeldConnections(shard, worker, net), None


class ConnectionTable:
    """Worker ``worker``'s share of a shard. ``replaces``: it replaces a lost worker, whose
    connections it opens again.
    """

    def __init__(self, shard: Shard, worker: int, net: Net, *, replaces: bool = False) -> None:
        self._shard, self._net, self._replaces = shard, net, replaces
        self._connections, self._stalls = _connections(shard, worker, net)
        self._ramp = RampPacer(shard.ramp, worker, shard.workers, shard.again)
        self._reopens, self._stream_reopens = (
            ReopenPacer(shard.ramp, shard.workers) for _ in range(2)
        )
        self._holds_streams = bool(getattr(shard.settings, "streams", 0))
        self._missing: list[
            tuple[float, int]
        ] = []  # a heap of rows by the instant to reopen their streams
        self._beats = BeatPacer()
        # Most runs provoke nothing, and a turn is a few microseconds.
        self._provokes = bool(shard.events or shard.churn_per_s or shard.reconnect)
        self._events = EventSchedule(shard, self._connections)
        self._churn = Churn(shard, self._connections)
        self._t0 = 0.0
        # How many answers had come in this second when that was last noted; when the first of them
        # came (None: none did), and the last.
        self._answers_noted = 0
        self._first_answer: float | None = None
        self._last_answer = 0.0
        self._next_sweep = 0.0
        self._closing_row = 0
        self._started = False
        self.held_at_drain = 0

    # -- called by the driver

    def start(self, t0: float) -> None:
        """Begin the schedule at ``t0`` on the net's clock."""
        now = self._net.clock()
        self._started = True
        self._t0 = t0
        self._connections.start(now, t0)
        self._ramp.start(t0)
        if self._replaces:
            self._ramp.replace_worker(now, self._shard.reopen)

    def hold(self, at: float, events_s: Sequence[float]) -> None:
        """The hold began ``at`` (on the net's clock); each event is due so long after it."""
        # A replacement has not seen what lies behind.
        since = self._net.clock() if self._replaces or self._shard.again else at
        self._events.start(at, events_s, since)
        self._churn.start(at, since)

    def command_lasts(self, event: int, until: float, *, runs: bool = False) -> None:
        """The server has processes from before the command of this event ``until`` then, or it
        ``runs`` still.
        """
        self._connections.comebacks.command_lasts(event, until, runs=runs)

    def drain(self) -> None:
        """Count what is open; from here nothing is sent or opened."""
        connections = self._connections
        if not connections.draining:
            # Connections that the peer has closed by now are lost: read before counting them as
            # held.
            for _ in range(connections.rows // _MOST_EVENTS + 1):
                if connections.take_events(_MOST_EVENTS) < _MOST_EVENTS:
                    break
            connections.begin_drain()
            self.held_at_drain = connections.held

    @property
    def held(self) -> int:
        return self._connections.held

    @property
    def drained(self) -> bool:
        connections = self._connections
        closed = self._closing_row >= connections.rows and not (
            connections.closing or connections.to_close
        )
        return connections.draining and closed

    @property
    def ramped(self) -> bool:
        """Every batch is issued and every first attempt has succeeded or failed."""
        return self._started and self._ramp.finished and not self._connections.first_pending

    def turn(self) -> float | None:
        """Do what is due and ready now. Returns the latest instant of the next turn; None: at the
        next event of the network.
        """
        net, connections = self._net, self._connections
        begun = net.clock()
        if not self._started:
            return None
        if connections.draining:
            busy = self._close_some()
        else:
            busy = self._beat_due(begun)
            if self._provokes:
                busy = self._provoke(begun) or busy
            if self._ramp.next_instant <= begun:
                busy = self._open_due(begun) or busy
        events = connections.take_events(_MOST_EVENTS)
        now = net.clock()
        if self._holds_streams:
            self._reopen_streams(now)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            connections.expire(now)
            connections.close_handles()
        if self._provokes:
            self._note_answers(now)
        self.note_stall(now - begun)
        return now if busy or events == _MOST_EVENTS else self._next_instant(now)

    def _note_answers(self, now: float) -> None:
        """Note when answers came, if some did in this turn: those of a turn are at one instant."""
        connections = self._connections
        answers = connections.tick.answered + connections.comebacks.answers
        if answers != self._answers_noted:
            self._answers_noted = answers
            self._last_answer = now
            if self._first_answer is None:
                self._first_answer = now

    def note_stall(self, seconds: float) -> None:
        """The driver called :meth:`turn` this long after its instant."""
        tick = self._connections.tick
        if seconds > tick.longest_turn_s:
            tick.longest_turn_s = seconds

    def take_tick(self, second: int) -> Tick:
        """The counts since the last call, with the gauges of now."""
        connections = self._connections
        tick = connections.take_tick()
        if self._first_answer is not None:
            tick.answered_s = (self._first_answer - self._t0, self._last_answer - self._t0)
            self._first_answer = None
        # Those of the next one count from zero.
        self._answers_noted = connections.comebacks.answers
        tick.second = second
        tick.workers = 1
        tick.held = connections.held
        tick.coming_back = len(connections.unproven)
        tick.connecting = len(connections.connecting) + tick.coming_back
        tick.awaiting = connections.held_and_awaiting
        waits_since = connections.waits_since
        if waits_since is not None:
            tick.longest_wait_s = self._net.clock() - waits_since
        tick.ramped = int(self.ramped)
        tick.drained = int(self.drained)
        tick.held_at_drain = self.held_at_drain
        self._net.add_counts(tick)
        return tick

    # -- the schedule

    def _next_instant(self, now: float) -> float | None:
        connections = self._connections
        due: list[float] = []
        # Each is ordered by deadline, so the first one is the next.
        for waiting, patience_s in connections.deadlines:
            if waiting:
                due.append(max(now, self._next_sweep, next(iter(waiting.values())) + patience_s))
        if not connections.draining:
            beat = connections.wheel.next_due()
            if beat is not None:
                due.append(self._beats.instant(beat))
            if self._missing:
                due.append(self._missing[0][0])
            if self._provokes:
                due += self._next_provoked(now)
            if not self._ramp.finished:
                # With too many pending, wait for an event or a timeout before the next batch.
                full = len(connections.connecting) >= MOST_PENDING
                due.append(max(self._ramp.next_instant, self._next_sweep if full else 0.0))
        elif not self.drained:
            due.append(now + _SWEEP_S)
        return min(due, default=None)

    def _open_due(self, now: float) -> bool:
        """Open the batches that are due. True if more could be opened at once."""
        connections, opened = self._connections, 0
        while (
            self._ramp.next_instant <= now
            and (room := MOST_PENDING - len(connections.connecting)) > 0
        ):
            if opened >= _MOST_OPENS:
                return True
            opening = self._ramp.take(min(room, _MOST_OPENS - opened), now)
            if opening.begins_batch and not opening.again:
                connections.tick.ramp_lateness_us.add((self._net.clock() - opening.due) * 1e6)
            connections.open_batch(opening.rows, opening.again)
            opened += len(opening.rows)
        return False

    def _provoke(self, now: float) -> bool:
        """Do what is due by events and by churn, and connect those who come back. True if more
        could be done at once.
        """
        more_events = self._events.provoke(now, _MOST_PROVOKED)
        more_churn = self._churn.provoke(now, _MOST_PROVOKED)
        more_stalled = self._stalls is not None and self._stalls.resume_due(now, _MOST_OPENS)
        return self._come_back(now) or more_events or more_churn or more_stalled

    def _next_provoked(self, now: float) -> Iterator[float]:
        """When something is due by events, by churn, or to come back."""
        for instant in (
            self._events.next_instant,
            self._churn.next_instant,
            self._connections.comebacks.next_due,
        ):
            if instant is not None:
                yield instant
        if self._stalls is not None:
            yield from self._stalls.next_instants(max(now, self._next_sweep))

    def _come_back(self, now: float) -> bool:
        """Connect those who are due to come back. True if more could at once."""
        connections = self._connections
        for _ in range(_MOST_OPENS):
            row = connections.comebacks.take_due(now)
            if row is None:
                return False
            connections.come_back(row)
        return True

    def _beat_due(self, now: float) -> bool:
        connections, beats = self._connections, 0
        state, wheel, send_heartbeat = (
            connections.state,
            connections.wheel,
            connections.send_heartbeat,
        )
        for row in wheel.pop_due(self._beats.until(wheel.first_due(now), now), _MOST_BEATS):
            beats += 1
            if state[row] == IDLE:
                send_heartbeat(row, wheel.due[row])
            else:
                self._reopen(row, now)
        return beats == _MOST_BEATS

    def _reopen(self, row: int, now: float) -> None:
        """Reopen a lost connection if the pace allows it; else schedule it. Of a connection that
        reads nothing, send the heartbeat.
        """
        connections = self._connections
        if self._stalls is not None and connections.state[row] == life.STALLED:
            self._stalls.beat_stalled(row, now)
            return
        room = len(connections.connecting) < MOST_PENDING
        later = self._reopens.wait_until(
            row, now, room=room, continues=connections.addresses.continues(row)
        )
        if later is None:
            connections.open(range(row, row + 1))
        else:
            connections.wheel.add(row, later)

    def _reopen_streams(self, now: float) -> None:
        """Reopen lost streams until the drain: all of a row at once, rows as fast as the ramp, not
        during a heartbeat, which may be a HEAD.
        """
        connections, missing = self._connections, self._missing
        if connections.draining:
            return
        for due in connections.missing_streams(now):
            heappush(missing, due)
        while missing and missing[0][0] <= now:
            row, later = heappop(missing)[1], None
            match connections.state[row]:
                case life.AWAITING | life.STALLED:
                    later = now + _SWEEP_S
                case life.IDLE:
                    later = self._stream_reopens.wait_until(row, now, room=True, continues=False)
                    if later is None:
                        connections.reopen_streams(row)
                case _:
                    self._stream_reopens.forget(row)
            if later is not None:
                heappush(missing, (later, row))

    def _close_some(self) -> bool:
        """Close rows, a bounded number a turn, once nothing is outstanding."""
        connections = self._connections
        if connections.connecting or connections.awaiting:
            return False
        if self._stalls is not None and self._stalls.stalled:
            return False
        closed = 0
        while self._closing_row < connections.rows and closed < _MOST_CLOSES:
            if connections.state[self._closing_row] == IDLE:
                connections.close(self._closing_row)
                closed += 1
            self._closing_row += 1
        return self._closing_row < connections.rows
