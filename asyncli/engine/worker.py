"""One worker: a process with one asyncio loop, one epoll set, one table of connections, and a link to the host process."""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import time
from typing import Any

import msgspec

from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.net import RealNet, new_net, over_tls
from asyncli.engine.shard import Down, Drain, LoadShard, Shard, Start, Stop
from asyncli.engine.ticks import TickSender

# The least time between two turns that a timer asks for. Beats due within it go out together; it is far below any lateness
# that matters, and it bounds the wake-ups of a worker to 1,000 a second however many beats it has.
GRAIN_S = 0.001
# A link's message: the largest tick (every histogram full) is some 100 KiB.
MOST_MESSAGE = 1 << 20

_decode_down = msgspec.msgpack.Decoder(Down).decode


class Worker:
    """Drives a table on the real clock until it is told to stop or the host is gone."""

    def __init__(self, shard: Shard, number: int, link: socket.socket, *, replaces: bool = False) -> None:
        self._net = over_tls(new_net(shard, RealNet, shard.crowded), shard)
        self._table = ConnectionTable(shard, number, self._net, replaces=replaces)
        self._link = link
        self._ticks = TickSender(link)
        self._error: BaseException | None = None
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._looked = -math.inf
        self._second = 0
        self._t0 = 0.0

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._link.setblocking(False)
        self._loop.add_reader(self._link.fileno(), self._told)
        self._loop.add_reader(self._net.fileno(), self._turn)
        # A loop logs what a callback raises and goes on; with a level-triggered set it would raise for ever, and the table
        # would look alive. So the first one ends the worker, which the host reports.
        self._loop.set_exception_handler(self._failed)
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._error is None:
            self._error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._ended.set()

    def _told(self) -> None:
        try:
            message = self._link.recv(MOST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:  # the host is gone, and nobody is left to report to
            self._ended.set()
            return
        order = _decode_down(message)
        if isinstance(order, Start):
            self._t0 = order.t0
            # One that takes another's place begins in the midst of the run: the seconds before are not its own to close.
            self._second = max(0, int(time.monotonic() - order.t0))
            self._table.start(order.t0)
            self._arm_tick()
        elif isinstance(order, Drain):
            self._table.drain()
        elif isinstance(order, Stop):
            self._ended.set()
            return
        self._turn()

    def _turn(self) -> None:
        # How late the timer is when anything wakes us: a process that was stopped, or a host that gave it no CPU.
        self._table.note_stall(time.monotonic() - max(self._armed_for, self._looked))
        upcoming = self._table.turn()
        armed = self._armed
        if upcoming is None:
            self._armed_for = math.inf
            return
        if armed is not None:
            if time.monotonic() < self._armed_for <= upcoming:
                return
            armed.cancel()
        # A timer that fires early would find nothing due and spin until it is (libuv truncates to milliseconds), so ask
        # for the instant or later, never sooner.
        now = time.monotonic()
        if upcoming <= now:  # there is more to do than a turn may: let the link speak, and go on
            self._armed_for = now
            self._armed = self._loop.call_later(0.0, self._timed)
            return
        delay = max(GRAIN_S, upcoming - now + GRAIN_S / 2)
        self._armed_for = now + delay
        self._armed = self._loop.call_later(delay, self._timed)

    def _timed(self) -> None:
        self._armed = None
        self._turn()

    def _arm_tick(self) -> None:
        self._second += 1
        # As in _turn: a timer that fires early is asked for a second time.
        self._loop.call_later(max(0.0, self._t0 + self._second - time.monotonic() + GRAIN_S / 2), self._close_second)

    def _close_second(self) -> None:
        now = time.monotonic()
        if now < self._t0 + self._second:  # the timer was early
            self._loop.call_later(GRAIN_S, self._close_second)
            return
        # It may be the first to be called after a standstill, and whether anything follows within the phase is not said.
        self._table.note_stall(now - max(self._t0 + self._second, self._looked))
        self._looked = now
        # A worker that stood still for seconds closes them all with one tick.
        self._second = max(self._second, int(now - self._t0))
        tick = self._table.take_tick(self._second)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        tick.cpu_user_s, tick.cpu_system_s = usage.ru_utime, usage.ru_stime
        self._ticks.send(tick)
        self._arm_tick()


def run_worker(shard: Shard | LoadShard, number: int, link: socket.socket, *, replaces: bool = False) -> None:
    """The body of a worker process; returns when it is over. ``replaces``: one of a soak that was lost."""
    if isinstance(shard, LoadShard):
        from asyncli.engine.bench_worker import run_load  # a soak's workers need none of it

        run_load(shard, number, link)
        return
    worker = Worker(shard, number, link, replaces=replaces)
    try:
        import uvloop
    except ImportError:
        asyncio.run(worker.run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(worker.run())
