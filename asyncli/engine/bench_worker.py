"""One worker of a bench: a process with one loop of its own over one epoll set, one share of the load, one link to the host.

No asyncio here: it asks as fast as it is answered, so there is nothing to interleave, and a second loop around the epoll set
would cost a system call a turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import select
import socket
import time

import msgspec

from asyncli.engine.bench_load import MOST_EVENTS, Load
from asyncli.engine.closed_loop import ClosedLoop
from asyncli.engine.net import Net, PollNet, RealNet, new_net, over_tls
from asyncli.engine.open_loop import OpenLoop
from asyncli.engine.shard import Down, Drain, LoadShard, Start, Stop
from asyncli.engine.ticks import TickSender

# How often it looks whether the host has something to say.
_LOOK_S = 0.05
_MOST_MESSAGE = 1 << 16
# Less is not worth the system call.
_LEAST_PAUSE_S = 10e-6
# Up to so many connections that live for one request each poll(2) is cheaper than epoll.
_MOST_POLLED = 256
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

_decode_down = msgspec.msgpack.Decoder(Down).decode


def new_load(shard: LoadShard, worker: int, net: Net) -> Load:
    return (ClosedLoop if shard.rate is None else OpenLoop)(shard, worker, net)


def run_load(shard: LoadShard, number: int, link: socket.socket) -> None:
    """The body of a worker process; returns when it is told to stop, or the host is gone."""
    polls = shard.tls is None and shard.short and shard.rate is None and shard.connections <= _MOST_POLLED * shard.workers
    net = over_tls(new_net(shard, PollNet if polls else RealNet), shard)
    load = new_load(shard, number, net)
    order = _receive(link)
    if not isinstance(order, Start):
        return
    if shard.rate is not None or shard.pipeline > 1:
        # The kernel lets a timer come 50 us late, to save wake-ups; a moment is a moment here (prctl(2)).
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    t0 = order.t0
    time.sleep(max(0.0, t0 - time.monotonic()))
    load.start(t0)
    link.setblocking(False)
    teller, next_look = _Teller(load, link, t0), t0
    while True:
        now = time.monotonic()
        if now >= next_look or teller.has_ended:
            next_look = now + _LOOK_S
            teller.tell(now)
            with contextlib.suppress(BlockingIOError):
                order = _receive(link)
                if order is None or isinstance(order, Stop):
                    return
                if isinstance(order, Drain):
                    load.stop()
                    continue
        if load.over:
            select.select([link], [], [], _LOOK_S)
            continue
        wait_s = min(load.wait_s(), _LOOK_S)
        if shard.rate is not None and wait_s > 0.0:
            # epoll waits in whole milliseconds; an open loop's instants are finer.
            select.select([net.fileno()], [], [], wait_s)
            wait_s = 0.0
        load.turn(net.poll(MOST_EVENTS, wait_s))
        if load.pause_s > _LEAST_PAUSE_S:
            time.sleep(load.pause_s)


class _Teller:
    """Sends a tick a second."""

    def __init__(self, load: Load, link: socket.socket, t0: float) -> None:
        self._load, self._ticks, self._t0 = load, TickSender(link), t0
        self._before = self._spent = _cpu_s()
        self._second, self._told_end = 0, False

    @property
    def has_ended(self) -> bool:
        """The load is over, and that was not told."""
        return self._load.over and not self._told_end

    def tell(self, now: float) -> None:
        if not self._told_end:
            # What it spends on waiting for the others to end is no part of the load.
            self._spent = _cpu_s()
        ended = self.has_ended
        if not ended and now < self._t0 + self._second + 1:
            return
        # What comes to its end within a second says so at once, and then every second, as the others do.
        self._second = self._second + 1 if ended else max(self._second + 1, int(now - self._t0))
        self._told_end = self._load.over
        tick = self._load.take_tick(self._second)
        tick.cpu_user_s, tick.cpu_system_s = (after - before for after, before in zip(self._spent, self._before, strict=True))
        self._ticks.send(tick)


def _cpu_s() -> tuple[float, float]:
    """User and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _receive(link: socket.socket) -> Down | None:
    """The next order; None when the host is gone."""
    message = link.recv(_MOST_MESSAGE)
    return _decode_down(message) if message else None
