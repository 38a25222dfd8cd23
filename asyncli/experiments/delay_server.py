"""A server that is far away, or slow: it answers in order, one after the other on each connection, as late as it is told.

``python -m asyncli.experiments.delay_server --bytes 6000 --round-trip-ms 20`` starts it by hand; it prints its port, and ends
with SIGTERM. ``--round-trip-ms``: all that is sent to it is heard so much later, as if the line were that long. A path's
``?ms=5``: this request takes so long to work on, during which the next of its connection waits (RFC 9112 9.3.2: answers are sent
in the order of requests).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import socket
import sys
from collections import deque
from typing import cast

import asyncli
from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.program import LabServer
from asyncli.lab.serve import listen, new_loop, until_told
from asyncli.lab.wire import answer

_CONNECTIONS = 4096
# Requests that came and wait for their turn: beyond, the client is not read, as a real server would not.
_MOST_UNREAD = 1 << 20
# What stands ready together goes out together, and not much more than the client can be expected to take.
_MOST_AT_ONCE = 65_536
_REQUEST = re.compile(rb"GET /(?:\?ms=([0-9]{1,5}))? HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*\r\n")


class DelayConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, response: bytes, round_trip_s: float) -> None:
        self._response, self._round_trip_s = response, round_trip_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._on_the_way: deque[bytes] = deque()
        self._heard = bytearray()
        self._unread = 0
        self._busy = self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > _MOST_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        # A queue, so that what comes first is heard first even where two timers are due together.
        self._on_the_way.append(data)
        if self._round_trip_s:
            self._loop.call_later(self._round_trip_s, self._hear)
        else:
            self._hear()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def _hear(self) -> None:
        self._heard += self._on_the_way.popleft()
        self._go_on()

    def _done(self) -> None:
        self._busy = False
        if self._transport is not None:
            self._transport.write(self._response)
            self._go_on()

    def _go_on(self) -> None:
        """Answer what is here, up to a request that takes time, or as far as the client reads."""
        transport, at, ready = self._transport, 0, 0
        while transport is not None and not (self._paused or self._busy):
            match = _REQUEST.match(self._heard, at)
            if match is None:
                if self._heard.find(b"\r\n\r\n", at) >= 0:
                    transport.close()  # nothing of ours: this serves the experiment's own clients
                break
            at = match.end()
            if took_ms := int(match[1] or 0):
                self._busy = True
                self._loop.call_later(took_ms / 1000, self._done)
            else:
                ready += 1
            if ready * len(self._response) > _MOST_AT_ONCE or (ready and self._busy):
                transport.write(self._response * ready)
                ready = 0
        if transport is None or not at:
            return
        transport.write(self._response * ready)
        del self._heard[:at]
        self._unread -= at
        if self._unread <= _MOST_UNREAD and not transport.is_closing():
            transport.resume_reading()


class DelayServer(LabServer):
    """The server as a process of its own on 127.0.0.1; its answers' bodies have ``size_bytes``."""

    name = "delay-server"
    label = "asyncli's delay server"
    called = "the delay server"
    version = asyncli.__version__
    workers = 1
    prints_when_ready = True

    def __init__(self, size_bytes: int, round_trip_ms: float = 0.0) -> None:
        super().__init__(_CONNECTIONS, 0, "127.0.0.1")
        self.size_bytes, self.round_trip_ms = size_bytes, round_trip_ms

    async def _prepare(self) -> None:
        pass

    def _argv(self) -> list[str]:
        flags = {"port": self.port, "bytes": self.size_bytes, "round-trip-ms": self.round_trip_ms}
        return [sys.executable, "-m", __name__, *(f"--{name}={value}" for name, value in flags.items())]


async def _serve(listener: socket.socket, size_bytes: int, round_trip_s: float) -> None:
    response = answer(200, b"x" * size_bytes, head_only=False, keep=True)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: DelayConnection(response, round_trip_s), sock=listener, backlog=_CONNECTIONS)
    stopped = until_told()
    gc.freeze()
    print(listener.getsockname()[1], flush=True)
    await stopped


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.delay_server``; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m asyncli.experiments.delay_server", description="a server that answers late")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--bytes", type=int, default=6000, help="length of the body of each answer (6000)")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="how long the line is, there and back (0)")
    chosen = parser.parse_args(argv)
    try:
        with listen("127.0.0.1", chosen.port or ports.free_pair("127.0.0.1")[0]) as listener:
            new_loop().run_until_complete(_serve(listener, chosen.bytes, chosen.round_trip_ms / 1000))
    except HostError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
