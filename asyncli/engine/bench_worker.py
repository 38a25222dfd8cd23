"""One worker of a bench: a process with its own loop over one epoll set, a share of the load, and a
link to the host.

No asyncio: requests go out as fast as answers come, so there is nothing to interleave, and an event
loop around the epoll set would cost a system call a turn.
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
from asyncli.engine.net import KernelNet, Net
from asyncli.engine.open_loop import OpenLoop
from asyncli.engine.shard import Down, Drain, LoadShard, Start, Stop
from asyncli.engine.ticks import TickSender

# How often the link to the host is read.
_LINK_S = 0.05
_MOST_MESSAGE = 1 << 16
# A shorter pause is not worth the system call.
_LEAST_PAUSE_S = 10e-6
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

_decode_down = msgspec.msgpack.Decoder(Down).decode


def new_load(shard: LoadShard, worker: int, net: Net) -> Load:
    return (ClosedLoop if shard.rate is None else OpenLoop)(shard, worker, net)


def run_load(shard: LoadShard, number: int, link: socket.socket, net: KernelNet) -> None:
    """The body of a worker process; returns at a Stop order, or when the host is gone."""
    load = new_load(shard, number, net)
    order = _receive(link)
    if not isinstance(order, Start):
        return
    if shard.rate is not None or shard.pipeline > 1:
        # By default a timer may fire 50 us late, to save wake-ups (prctl(2)).
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    t0 = order.t0
    time.sleep(max(0.0, t0 - time.monotonic()))
    load.start(t0)
    link.setblocking(False)
    reporter, next_read = _Reporter(load, link, t0), t0
    while True:
        now = time.monotonic()
        if now >= next_read or reporter.end_is_due:
            next_read = now + _LINK_S
            reporter.report(now)
            with contextlib.suppress(BlockingIOError):
                order = _receive(link)
                if order is None or isinstance(order, Stop):
                    return
                if isinstance(order, Drain):
                    load.stop()
                    continue
        if load.over:
            select.select([link], [], [], _LINK_S)
            continue
        wait_s = min(load.wait_s(), _LINK_S)
        if shard.rate is not None and wait_s > 0.0:
            # epoll waits in whole milliseconds; an open loop's schedule is finer.
            select.select([net.fileno()], [], [], wait_s)
            wait_s = 0.0
        load.turn(net.poll(MOST_EVENTS, wait_s))
        if load.pause_s > _LEAST_PAUSE_S:
            time.sleep(load.pause_s)


class _Reporter:
    """Sends a tick a second."""

    def __init__(self, load: Load, link: socket.socket, t0: float) -> None:
        self._load, self._ticks, self._t0 = load, TickSender(link), t0
        self._before = self._spent = _cpu_s()
        self._second, self._end_reported = 0, False

    @property
    def end_is_due(self) -> bool:
        """Whether the load is over, and not reported as over yet."""
        return self._load.over and not self._end_reported

    def report(self, now: float) -> None:
        if not self._end_reported:
            # CPU time spent waiting for the other workers is not part of the load.
            self._spent = _cpu_s()
        ended = self.end_is_due
        if not ended and now < self._t0 + self._second + 1:
            return
        # The end is reported at once, then every second as before.
        self._second = self._second + 1 if ended else max(self._second + 1, int(now - self._t0))
        self._end_reported = self._load.over
        tick = self._load.take_tick(self._second)
        tick.cpu_user_s, tick.cpu_system_s = (
            after - before for after, before in zip(self._spent, self._before, strict=True)
        )
        self._ticks.send(tick)


def _cpu_s() -> tuple[float, float]:
    """User and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _receive(link: socket.socket) -> Down | None:
    """The next order; None when the host is gone."""
    message = link.recv(_MOST_MESSAGE)
    return _decode_down(message) if message else None
