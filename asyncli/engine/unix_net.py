"""The network seam over Unix sockets: both ends are in one kernel, and there are no ports, packets or RST."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from contextlib import suppress

from asyncli.engine.net import READABLE, RealNet
from asyncli.engine.spread import Destination
from asyncli.records import Tick

# A connect that waits asks for room so often (ns).
_AGAIN_NS = 2_000_000


class UnixNet(RealNet):
    """Where the server's listen queue is full a connect ends with EAGAIN (connect(2)), while TCP sends its SYN again.
    Here it waits its turn, as a blocking one does, for as long as the table lets it, and is counted.
    """

    def __init__(self, destinations: tuple[Destination, ...]) -> None:
        super().__init__(destinations, ())
        # Those that wait, in the order in which they came, all for the one socket of a plan; and what they are to be watched for.
        self._waiting: dict[int, socket.SocketType] = {}
        self._wanted: dict[int, int] = {}
        self._queued = 0
        self.send = self._send_connected
        # In the epoll set, so it wakes whoever waits for that. Python has timerfd_create() since 3.13.
        self._libc = ctypes.CDLL(None)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._timer, READABLE)

    def connect(self, destination: int, source: int) -> int:
        if not self._waiting:
            try:
                return super().connect(destination, source)
            except BlockingIOError:
                self._wake_every(_AGAIN_NS)
        sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        handle = sock.fileno()
        self._waiting[handle], self._wanted[handle] = sock, READABLE
        self._queued += 1
        return handle

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        # One that is not connected would be reported as hung up, for ever.
        if handle in self._waiting:
            self._wanted[handle] = events
        else:
            super().watch(handle, events, again)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        if not self._waiting:
            return super().poll(most, wait_s)
        self._connect_waiting()
        return [one for one in super().poll(most, wait_s) if one[0] != self._timer]

    def _connect_waiting(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        for handle, sock in list(self._waiting.items()):
            if sock.connect_ex(self._targets[0][1]) == errno.EAGAIN:
                return
            # Whatever came of it: the first words tell.
            super().watch(handle, self._leave(handle))

    def _leave(self, handle: int) -> int:
        """It waits no more: what it is to be watched for."""
        self._waiting.pop(handle).detach()
        if not self._waiting:
            self._wake_every(0)
        return self._wanted.pop(handle)

    def _wake_every(self, period_ns: int) -> None:
        self._libc.timerfd_settime(self._timer, 0, struct.pack("4l", 0, period_ns, 0, period_ns), None)

    def close(self, handle: int, abort: bool) -> None:
        if handle in self._waiting:
            self._leave(handle)
        os.close(handle)

    def _send_connected(self, handle: int, data: bytes) -> int:
        if handle in self._waiting:
            raise BlockingIOError(errno.EAGAIN, "")
        try:
            return os.write(handle, data)
        except BrokenPipeError:
            # The server has closed. What it said before is still to be read, as of TCP, which takes these words.
            return len(data)

    def acknowledged(self, handle: int) -> bool:
        """What was sent is at the peer's socket. SIOCOUTQ tells what of it is unread there (unix_outq_len), which is no loss."""
        return True

    def add_counts(self, tick: Tick) -> None:
        tick.queue_full, self._queued = self._queued, 0
