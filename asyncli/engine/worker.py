"""A worker process of a soak: one asyncio loop, one epoll set, one table of connections, and a link
to the host process.
"""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import time
from typing import Any

import msgspec

from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.net import KernelNet, PollNet, RealNet
from asyncli.engine.shard import CommandLasts, Down, Drain, HoldBegun, LoadShard, Shard, Start, Stop
from asyncli.engine.ticks import TickSender

# The least time between two turns by a timer. Heartbeats due within it go out together; it is far
# below any lateness that matters, and it bounds a worker's wake-ups to 1,000 a second.
GRAIN_S = 0.001
# A link's message: the largest tick (every histogram full) is some 100 KiB.
MOST_MESSAGE = 1 << 20
# Up to this many connections a worker, of one request each, poll(2) is cheaper than epoll.
_MOST_POLLED = 256

_decode_down = msgspec.msgpack.Decoder(Down).decode


class Worker:
    """Drives a table on the real clock until a Stop order, or until the host is gone."""

    def __init__(
        self, shard: Shard, number: int, link: socket.socket, *, replaces: bool = False
    ) -> None:
        self._net = new_net(shard)
        self._table = ConnectionTable(shard, number, self._net, replaces=replaces)
        self._link = link
        self._ticks = TickSender(link)
        self._error: BaseException | None = None
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._checked = -math.inf
        self._second = 0
        self._t0 = 0.0

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._link.setblocking(False)
        self._loop.add_reader(self._link.fileno(), self._read_order)
        self._loop.add_reader(self._net.fileno(), self._turn)
        # By default a loop logs an exception of a callback and continues; with a level-triggered
        # set it would raise for ever. So the first exception ends the worker, which the host
        # reports.
        self._loop.set_exception_handler(self._failed)
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._error is None:
            self._error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._ended.set()

    def _read_order(self) -> None:
        try:
            message = self._link.recv(MOST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:  # the host is gone
            self._ended.set()
            return
        order = _decode_down(message)
        if isinstance(order, Start):
            self._t0 = order.t0
            # A replacement starts in the middle of a run: it reports no earlier seconds.
            self._second = max(0, int(time.monotonic() - order.t0))
            self._table.start(order.t0)
            self._arm_tick()
        elif isinstance(order, HoldBegun):
            self._table.hold(order.at, order.events_s)
        elif isinstance(order, CommandLasts):
            self._table.command_lasts(order.event, order.until, runs=order.runs)
        elif isinstance(order, Drain):
            self._table.drain()
        elif isinstance(order, Stop):
            self._ended.set()
            return
        self._turn()

    def _turn(self) -> None:
        # How late the timer is: the process was stopped, or got no CPU.
        self._table.note_stall(time.monotonic() - max(self._armed_for, self._checked))
        upcoming = self._table.turn()
        armed = self._armed
        if upcoming is None:
            self._armed_for = math.inf
            return
        if armed is not None:
            if time.monotonic() < self._armed_for <= upcoming:
                return
            armed.cancel()
        # A timer that fires early would find nothing due and spin (libuv truncates to
        # milliseconds): never ask for an earlier instant.
        now = time.monotonic()
        if upcoming <= now:  # more work than one turn may do: read the link in between
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
        # As in _turn: never early.
        self._loop.call_later(
            max(0.0, self._t0 + self._second - time.monotonic() + GRAIN_S / 2), self._close_second
        )

    def _close_second(self) -> None:
        now = time.monotonic()
        if now < self._t0 + self._second:  # the timer was early
            self._loop.call_later(GRAIN_S, self._close_second)
            return
        # After a stall this may run before _turn, and the phase may end before the next tick.
        self._table.note_stall(now - max(self._t0 + self._second, self._checked))
        self._checked = now
        # One tick covers all seconds of a stall.
        self._second = max(self._second, int(now - self._t0))
        tick = self._table.take_tick(self._second)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        tick.cpu_user_s, tick.cpu_system_s = usage.ru_utime, usage.ru_stime
        self._ticks.send(tick)
        self._arm_tick()


def new_net(shard: Shard | LoadShard) -> KernelNet:
    """The transport of ``shard``: TCP or Unix sockets, with a PROXY header and TLS if it asks for
    them.
    """
    net: KernelNet
    if not all(destination.port for destination in shard.destinations):
        from asyncli.engine.unix_net import UnixNet

        net = UnixNet(shard.destinations)
    elif isinstance(shard, Shard):
        net = RealNet(shard.destinations, shard.sources, shard.crowded)
    else:
        polls = (
            shard.tls is None
            and shard.short
            and shard.rate is None
            and shard.connections <= _MOST_POLLED * shard.workers
        )
        net = (PollNet if polls else RealNet)(shard.destinations, shard.sources)
    if shard.proxy_protocol is not None:
        from asyncli.engine.proxied_net import ProxiedNet

        net = ProxiedNet(net, shard.destinations, shard.proxy_protocol)
    if shard.tls is None:
        return net
    from asyncli.engine.tls import TlsNet  # loads OpenSSL, 3 MB

    names = [shard.names[destination.target] for destination in shard.destinations]
    return TlsNet(net, shard.tls, names, shard.connect_timeout_s, shard.offered_alpn, shard.http2)


def run_worker(
    shard: Shard | LoadShard, number: int, link: socket.socket, *, replaces: bool = False
) -> None:
    """The body of a worker process; returns when it is over. ``replaces``: it replaces a lost
    worker of a soak.
    """
    if isinstance(shard, LoadShard):
        from asyncli.engine.bench_worker import run_load  # a soak's workers do not need it

        run_load(shard, number, link, new_net(shard))
        return
    worker = Worker(shard, number, link, replaces=replaces)
    try:
        import uvloop
    except ImportError:
        asyncio.run(worker.run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(worker.run())
