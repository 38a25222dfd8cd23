"""A server that seems distant or slow: it answers in order, with a delay.

``python -m asyncli.experiments.delay_server --bytes 6000 --round-trip-ms 20`` starts it by hand; it
prints its port, and ends with SIGTERM. ``--round-trip-ms`` delays all received data. ``?ms=5`` in a
path is the processing time of this request, during which the next request of its connection waits
(RFC 9112 9.3.2).
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
    """A connection to a client that reads all answers."""

    def __init__(self, response: bytes, round_trip_s: float) -> None:
        self._response = response
        self._round_trip_s = round_trip_s
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[bytes] = deque()
        self._received = bytearray()
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods, not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # A queue keeps the order if two timers are due together.
        self._in_flight.append(data)
        if self._round_trip_s:
            self._loop.call_later(self._round_trip_s, self._receive)
        else:
            self._receive()

    def _receive(self) -> None:
        self._received += self._in_flight.popleft()
        self._answer_requests()

    def _finish_work(self) -> None:
        self._busy = False
        self._transport.write(self._response)
        self._answer_requests()

    def _answer_requests(self) -> None:
        """Answer the received requests, up to one with a processing time."""
        at = 0
        ready = 0
        while not self._busy:
            match = _REQUEST.match(self._received, at)
            if match is None:
                break
            at = match.end()
            work_ms = int(match[1] or 0)
            if work_ms:
                self._busy = True
                self._loop.call_later(work_ms / 1000, self._finish_work)
            else:
                ready += 1
        del self._received[:at]
        if ready:
            self._transport.write(self._response * ready)


class DelayServer(LabServer):
    """The server as a process on 127.0.0.1; each answer's body has ``size_bytes``."""

    name = "delay-server"
    label = "asyncli's delay server"
    display_name = "the delay server"
    version = asyncli.__version__
    workers = 1
    prints_when_ready = True

    def __init__(self, size_bytes: int, round_trip_ms: float = 0.0) -> None:
        super().__init__(_CONNECTIONS)
        self.size_bytes = size_bytes
        self.round_trip_ms = round_trip_ms

    def _argv(self) -> list[str]:
        flags = {"port": self.port, "bytes": self.size_bytes, "round-trip-ms": self.round_trip_ms}
        return [
            sys.executable,
            "-m",
            __name__,
            *(f"--{name}={value}" for name, value in flags.items()),
        ]


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.delay_server``; returns the exit
    status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m asyncli.experiments.delay_server", description="a server that answers late"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument(
        "--bytes", type=int, default=6000, help="length of the body of each answer (6000)"
    )
    parser.add_argument(
        "--round-trip-ms", type=float, default=0.0, help="round-trip time of the line (0)"
    )
    chosen = parser.parse_args(argv)
    response = answer(200, b"x" * chosen.bytes, head_only=False, keep=True)
    return run_listener(
        "127.0.0.1", chosen.port, lambda: DelayConnection(response, chosen.round_trip_ms / 1000)
    )


if __name__ == "__main__":
    sys.exit(main())
