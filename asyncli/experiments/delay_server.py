"""A distant or slow server: it answers in order, with a delay.

``python -m asyncli.experiments.delay_server --bytes 6000 --round-trip-ms 20`` starts it by hand; it prints its port, and ends
with SIGTERM. ``--round-trip-ms`` delays all that arrives. A path's ``?ms=5`` is the work of this request, during which the next
one of its connection waits (RFC 9112 9.3.2).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import deque
from typing import cast

import asyncli
from asyncli.lab.base import LabServer
from asyncli.lab.builtin_process import run_listener
from asyncli.lab.wire import answer

_CONNECTIONS = 4096
_REQUEST = re.compile(rb"GET /(?:\?ms=([0-9]{1,5}))? HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*\r\n")


class DelayConnection(asyncio.Protocol):
    """A connection of the experiment's client, which reads all answers."""

    def __init__(self, response: bytes, round_trip_s: float) -> None:
        self._response, self._round_trip_s = response, round_trip_s
        self._loop = asyncio.get_running_loop()
        self._on_the_way: deque[bytes] = deque()
        self._heard = bytearray()
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # A queue keeps the order where two timers are due together.
        self._on_the_way.append(data)
        if self._round_trip_s:
            self._loop.call_later(self._round_trip_s, self._hear)
        else:
            self._hear()

    def _hear(self) -> None:
        self._heard += self._on_the_way.popleft()
        self._go_on()

    def _done(self) -> None:
        self._busy = False
        self._transport.write(self._response)
        self._go_on()

    def _go_on(self) -> None:
        """Answer the requests received, up to one that takes time."""
        at, ready = 0, 0
        while not self._busy and (match := _REQUEST.match(self._heard, at)) is not None:
            at = match.end()
            if took_ms := int(match[1] or 0):
                self._busy = True
                self._loop.call_later(took_ms / 1000, self._done)
            else:
                ready += 1
        del self._heard[:at]
        if ready:
            self._transport.write(self._response * ready)


class DelayServer(LabServer):
    """The server as a process on 127.0.0.1; its answers' bodies have ``size_bytes``."""

    name = "delay-server"
    label = "asyncli's delay server"
    display_name = "the delay server"
    version = asyncli.__version__
    workers = 1
    prints_when_ready = True

    def __init__(self, size_bytes: int, round_trip_ms: float = 0.0) -> None:
        super().__init__(_CONNECTIONS)
        self.size_bytes, self.round_trip_ms = size_bytes, round_trip_ms

    def _argv(self) -> list[str]:
        flags = {"port": self.port, "bytes": self.size_bytes, "round-trip-ms": self.round_trip_ms}
        return [sys.executable, "-m", __name__, *(f"--{name}={value}" for name, value in flags.items())]


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.delay_server``; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m asyncli.experiments.delay_server", description="a server that answers late")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--bytes", type=int, default=6000, help="length of the body of each answer (6000)")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="how long the line is, there and back (0)")
    chosen = parser.parse_args(argv)
    response = answer(200, b"x" * chosen.bytes, head_only=False, keep=True)
    return run_listener("127.0.0.1", chosen.port, lambda: DelayConnection(response, chosen.round_trip_ms / 1000))


if __name__ == "__main__":
    sys.exit(main())
