"""One worker of ``asyncli bench``: reads, compares and counts answers. closed_loop.py and
open_loop.py send the requests.

No asyncio and no clock: a driver waits and calls :meth:`Load.turn` (bench_worker.py on the real
clock, tests on a virtual one). Level-triggered, a bounded number of events a turn. During a batch
of events a handle is closed only by its own event.
"""

from __future__ import annotations

from abc import abstractmethod

from asyncli.core.life import ANNOUNCED, EOF, MALFORMED, event_of
from asyncli.engine.bench_connections import UNBOUNDED, WATCH, LoadConnections
from asyncli.engine.bench_counts import count, us_between
from asyncli.engine.net import HUNG_UP, MOST_PENDING, PEER_CLOSED, WRITABLE, Net
from asyncli.engine.shard import LoadShard
from asyncli.model.records import Ended, Tick
from asyncli.protocols.interface import Event
from asyncli.protocols.replies import Malformed

MOST_EVENTS = 256
NEVER = float("inf")


class Load(LoadConnections):
    """Worker ``worker``'s share of a bench."""

    def __init__(self, shard: LoadShard, worker: int, net: Net, kept: bool) -> None:
        super().__init__(shard, worker, net, kept)
        self._only_ask = (
            self._requests[0]
            if len(set(self._requests)) == 1 and shard.pipeline == 1 and self._closed_loop
            else b""
        )
        #: How long the driver may let answers accumulate before the next turn.
        self.pause_s = 0.0
        self._t0 = self._stop_at = NEVER
        # Deadlines are checked to within a twentieth.
        self._sweep_s = min(1.0, shard.timeout_s / 20, shard.connect_timeout_s / 20)
        self._next_sweep = self._last_answer = 0.0
        self.over = False

    # -- the loops differ in these

    @abstractmethod
    def _use_slot(self, slot: int, now: float) -> None:
        """The slot is due to connect."""

    @abstractmethod
    def _use_all_free(self, now: float) -> None:
        """Send the requests that wait for a free connection."""

    def _finish_short(self, handle: int) -> bool:
        """Count the answer and the end of a short connection that came together, and connect again;
        False: not done.
        """
        return False

    def _count_overdue(self, now: float, waited: dict[int, int]) -> int:
        """The number of requests that are due and not sent; their waits (us) are added to
        ``waited``.
        """
        return 0

    # -- called by the driver

    def start(self, t0: float) -> None:
        """Begin at ``t0`` on the net's clock."""
        self._t0 = self._last_held = t0
        if self._shard.duration_s is not None:
            self._stop_at = t0 + self._shard.duration_s

    def stop(self, why: Ended = "stopped") -> None:
        """Send no more: outstanding requests stay in flight, the others stay unsent."""
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
        self._resend.extend(claim for claim in self._claimed.values() if claim[1])
        if self._shard.requests is not None:
            asked.left += self._todo + sum(many for _, many in self._resend)
        asked.overdue += self._count_overdue(now, waited)
        asked.outstanding_us.add_counts(waited)

    def wait_s(self) -> float:
        """How long the driver may wait for the network."""
        return self._sweep_s if self.over else max(0.0, self._next_instant() - self._net.clock())

    def _next_instant(self) -> float:
        room = len(self._connecting) < MOST_PENDING
        return min(self._next_sweep, self._stop_at, self._slots.next_due if room else NEVER)

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Handle the network's events and do what is due."""
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
        if (
            not self._outstanding
            and not self._todo
            and not self._resend
            and not any(claim[1] for claim in self._claimed.values())
        ):
            self.stop("asked")

    def take_tick(self, second: int) -> Tick:
        """The counts since the last call, with the gauges of now."""
        self._counts.asked.last_s = max(0.0, self._last_answer - self._t0)
        tick = self._counts.take()
        tick.dropped = dict.fromkeys(self._slots.dropped(), 1)
        tick.started = self._slots.take_started()
        tick.second, tick.workers, tick.held, tick.connecting = (
            second,
            1,
            self.held,
            len(self._connecting),
        )
        tick.awaiting, tick.drained = self._outstanding, int(self.over)
        self._net.add_counts(tick)
        return tick

    def _sweep(self, now: float) -> None:
        """End connections whose deadline has passed, and the bench after too long without any
        connection.
        """
        self._next_sweep = now + self._sweep_s
        self._expire(now)
        self._use_all_free(now)
        if self.held:
            self._last_held = now
        elif now - self._last_held > self._slots.patience_s(self._sweep_s) and not self._closing:
            self._close_handles()
            self.stop("gave up")

    # -- answers

    def _serve(self, events: list[tuple[int, int]]) -> None:  # noqa: PLR0915 - a call costs
        """Read and count answers, and send the next requests: the hot path."""
        net, odd, most, counts = self._net, self._slow, self._read, self._counts
        recv, send, clock = net.recv, net.send, net.clock
        pending, since, served, known_at, destination = (
            self._pending,
            self._since,
            self._served,
            self._known,
            self._destination,
        )
        closed_loop, only, sent = self._closed_loop, self._only_ask, 0
        deep, short = self._shard.pipeline > 1, self._shard.short and closed_loop
        answered_at = self._last_answer
        for handle, what in events:
            if handle in odd:
                if not (short and what & PEER_CLOSED and self._finish_short(handle)):
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
            known = known_at[destination[handle]]
            answer = known.data
            if data == answer:
                many = 1
            elif (
                deep
                and len(data) > len(answer) > 0 == len(data) % len(answer)
                and known.train.startswith(data)
            ):
                many = len(data) // len(answer)
            else:
                many = UNBOUNDED
            left = pending[handle] - many
            if left < 0:
                self._take_answers(handle, data, now, what)
                continue
            # Whole answers, equal to the last: nearly all answers on kept connections.
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
        """Handle an event off the fast path."""
        if (began := self._connecting.get(handle)) is not None:
            self._connected(handle, began, self._claimed.pop(handle), WATCH | WRITABLE)
        elif handle in self._closing:
            if what & HUNG_UP or self._receive(handle) == b"":
                self._close(handle)
        elif self._slot[handle] >= 0:
            if handle in self._unsent and what & WRITABLE:
                self._flush(handle)
            if (
                what & ~WRITABLE
                and self._slot[handle] >= 0
                and (data := self._receive(handle)) is not None
            ):
                self._take_answers(handle, data, self._net.clock(), what)

    def _receive(self, handle: int) -> bytes | None:
        """The bytes read; None: nothing has come, or the connection has ended."""
        try:
            return self._net.recv(handle, self._read)
        except BlockingIOError:
            return None
        except OSError as error:
            if handle in self._closing:
                return b""
            self._end(handle, event_of(error.errno))
            return None

    def _take_answers(self, handle: int, data: bytes, now: float, what: int) -> None:
        """Count the answers that ``data`` completes, and send the next requests."""
        destination = self._destination[handle]
        replies = self._replies[destination]
        state, first_byte = self._state.pop(handle, (None, now))
        if not data:
            last = replies.end(state)
            if last is not None and self._pending[handle]:
                self._answered(handle, last, 1, first_byte, now)
            self._end(
                handle, EOF if last is None else ANNOUNCED, what | HUNG_UP, begun=state is not None
            )
            return
        self._counts.tick.bytes_received += len(data)
        runs, state, over = replies.take(state, data)
        self._known[destination] = replies.known
        unasked = False
        for event, many in runs:
            wanted = min(many, self._pending[handle])
            if wanted:
                self._answered(handle, event, wanted, first_byte, now)
            unasked = unasked or wanted < many
            first_byte = now
        if (
            unasked
            or isinstance(state, Malformed)
            or (state is not None and not self._pending[handle])
        ):
            self._end(handle, MALFORMED)
        elif over:
            self._end(handle, ANNOUNCED, what)
        elif state is not None:
            self._state[handle] = state, first_byte
            self._slow.add(handle)
        # If the answer came before the request was sent whole, send the rest first.
        elif handle not in self._unsent:
            self._leave_slow_path(handle)
            if not self._pending[handle]:
                self._on_all_answered(handle, now)

    def _answered(
        self, handle: int, event: Event, many: int, first_byte: float, now: float
    ) -> None:
        counts, since = self._counts, self._since[handle]
        self._pending[handle] -= many
        self._outstanding -= many
        self._served[handle] += many
        counts.answers(event, many, self._destination[handle])
        count(counts.whole_us, us_between(since, now), many)
        # Processing time excludes the connect and the time before the write, which the latency
        # includes.
        since = self._written[handle] if not self._closed_loop else since
        if (fresh := self._fresh.pop(handle, None)) is not None:
            since = max(since, fresh[1])
        count(counts.processing_us, us_between(since, now), many)
        count(counts.waiting_us, us_between(since, first_byte), many)
        self._last_answer = now
        self._slots.retries[self._slot[handle]] = 0
