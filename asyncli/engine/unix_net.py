"""A net of Unix sockets: both ends are in one kernel, and there are no ports, packets or RST."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from contextlib import suppress

from asyncli.engine.net import READABLE, RealNet, Unacknowledged
from asyncli.engine.spread import Destination
from asyncli.model.records import Tick

# A waiting connect is tried again this often (ns).
_RETRY_NS = 2_000_000


class UnixNet(RealNet):
    """When the server's listen queue is full, connect(2) fails with EAGAIN, while TCP retransmits
    its SYN. Here such a connect waits its turn, as a blocking one does, until the table's deadline,
    and is counted.
    """

    def __init__(self, destinations: tuple[Destination, ...]) -> None:
        super().__init__(destinations, ())
        # Waiting connects in their order, all to the one socket of a plan; and the events to watch
        # once connected.
        self._waiting: dict[int, socket.SocketType] = {}
        self._wanted: dict[int, int] = {}
        self._queued = 0
        self.send = self._send_connected
        # A timer in the epoll set, so that it wakes a waiting poll. Python has timerfd_create()
        # since 3.13.
        self._libc = ctypes.CDLL(None)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._timer, READABLE)

    def connect(self, destination: int, source: int) -> int:
        if not self._waiting:
            try:
                return super().connect(destination, source)
            except BlockingIOError:
                self._wake_every(_RETRY_NS)
        sock = socket.SocketType(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        handle = sock.fileno()
        self._waiting[handle], self._wanted[handle] = sock, READABLE
        self._queued += 1
        return handle

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        # An unconnected socket would be reported as hung up, for ever.
        if handle in self._waiting:
            self._wanted[handle] = events
        else:
            super().watch(handle, events, again)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        if not self._waiting:
            return super().poll(most, wait_s)
        self._connect_waiting()
        return [event for event in super().poll(most, wait_s) if event[0] != self._timer]

    def _connect_waiting(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        for handle, sock in list(self._waiting.items()):
            if sock.connect_ex(self._targets[0][1]) == errno.EAGAIN:
                return
            # The first send returns the outcome.
            super().watch(handle, self._stop_waiting(handle))

    def _stop_waiting(self, handle: int) -> int:
        """Take the handle out of the queue; returns the events to watch."""
        self._waiting.pop(handle).detach()
        if not self._waiting:
            self._wake_every(0)
        return self._wanted.pop(handle)

    def _wake_every(self, period_ns: int) -> None:
        self._libc.timerfd_settime(
            self._timer, 0, struct.pack("4l", 0, period_ns, 0, period_ns), None
        )

    def close(self, handle: int, abort: bool) -> None:
        if handle in self._waiting:
            self._stop_waiting(handle)
        os.close(handle)

    def _send_connected(self, handle: int, data: bytes) -> int:
        if handle in self._waiting:
            raise BlockingIOError(errno.EAGAIN, "")
        try:
            return os.write(handle, data)
        except BrokenPipeError:
            # The server has closed. As with TCP, which takes these bytes, what it sent before can
            # still be read.
            return len(data)

    def acknowledged(self, handle: int) -> bool:
        """True: what is sent is in the peer's socket. SIOCOUTQ counts what is unread there
        (unix_outq_len), which is no loss.
        """
        return True

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        return None

    def retransmitted(self, handle: int) -> int:
        return 0

    def add_counts(self, tick: Tick) -> None:
        tick.queue_full, self._queued = self._queued, 0
