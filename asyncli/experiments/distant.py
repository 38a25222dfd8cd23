"""A server that is far away, or slow: answers in order, one after the other on each connection, as late as it is told.

``python -m asyncli.experiments.distant --bytes 6000 --round-trip-ms 20`` starts it by hand; it prints its port, and ends with
SIGTERM. ``--round-trip-ms``: all that is sent to it is heard so much later, as if the line were that long. A path's ``?ms=5``:
this request takes so long to work on, during which the next of its connection waits (RFC 9112 9.3.2: answers are sent in the
order of requests).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, cast

import asyncli
from asyncli.errors import HostError
from asyncli.lab import child, ports
from asyncli.lab.serve import new_loop
from asyncli.lab.server import OwnServer

_START_S = 30.0
_START_TRIES = 5
_BACKLOG = 4096
_MOST_SAID = 65_536
# Requests that came and wait for their turn: beyond, the client is not read, as a real server would not.
_MOST_UNREAD = 1 << 20
_REQUEST = re.compile(rb"GET /(?:\?ms=([0-9]{1,5}))? HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*\r\n")


class Conversation(asyncio.Protocol):
    """One client."""

    def __init__(self, answer: bytes, round_trip_s: float) -> None:
        self._answer, self._round_trip_s = answer, round_trip_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._on_the_way: deque[bytes] = deque()
        self._heard = bytearray()
        self._unread = 0
        self._working: asyncio.TimerHandle | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._working is not None:
            self._working.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > _MOST_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        if self._round_trip_s:
            # A queue, so that what comes first is heard first even where two timers are due together.
            self._on_the_way.append(data)
            self._loop.call_later(self._round_trip_s, self._arrive)
        else:
            self._hear(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def _arrive(self) -> None:
        self._hear(self._on_the_way.popleft())

    def _hear(self, data: bytes) -> None:
        self._heard += data
        if self._working is None:
            self._go_on()

    def _go_on(self) -> None:
        """Answer what is here, up to a request that takes time, or as far as the client reads."""
        at, ready = 0, 0
        while not self._paused and self._working is None and self._transport is not None:
            match = _REQUEST.match(self._heard, at)
            if match is None:
                if self._heard.find(b"\r\n\r\n", at) >= 0:
                    self._transport.close()  # nothing of ours: this serves the experiment's own clients
                break
            at = match.end()
            if took_ms := int(match[1] or 0):
                self._working = self._loop.call_later(took_ms / 1000, self._done)
            else:
                ready += 1
                # What stands ready together goes out together, and never more than the client can be expected to take.
                if ready * len(self._answer) > 65_536:
                    self._transport.write(self._answer * ready)
                    ready = 0
        if ready and self._transport is not None:
            self._transport.write(self._answer * ready)
        if at:
            del self._heard[:at]
            self._unread -= at
            if self._unread <= _MOST_UNREAD and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _done(self) -> None:
        self._working = None
        if self._transport is not None:
            self._transport.write(self._answer)
            self._go_on()


class Distant(OwnServer):
    """The server as a process of its own on 127.0.0.1, with what a bench needs of a lab server; its answers' bodies have
    ``size_bytes``.
    """

    called = "the distant server"
    status_url: str | None = None
    error_log: Path | None = None
    workers = 1

    def __init__(self, size_bytes: int, round_trip_ms: float = 0.0) -> None:
        super().__init__("127.0.0.1", 0)
        self.connections = _BACKLOG
        self.size_bytes, self.round_trip_ms = size_bytes, round_trip_ms

    @property
    def label(self) -> str:
        """What it is called."""
        return "asyncli's distant server"

    @property
    def version(self) -> str:
        """asyncli's."""
        return asyncli.__version__

    async def start(self) -> None:
        """Start it and return when it listens; :class:`HostError` where it does not."""
        arguments = [f"--bytes={self.size_bytes}", f"--round-trip-ms={self.round_trip_ms}"]
        try:
            # Of its start alone: once it listens, it has nothing to say.
            with tempfile.TemporaryFile() as stderr:
                self._process = spawn_module("asyncli.experiments.distant", arguments, stderr)
                line = await child.first_line(self._process, _START_S)
                said = last_words(stderr)
            if line is None:
                raise HostError(f"the distant server is not ready after {_START_S:.0f} s; look at the host's load")
            if not line.isdigit():
                raise HostError(f"the distant server did not start: {said}; run it by hand to see more (python -m {__name__})")
        except OSError as error:
            await self.stop()
            raise HostError(f"the distant server could not be started ({error}); TMPDIR must be writable") from None
        except BaseException:
            await self.stop()
            raise
        self.port = int(line)

    async def stop(self) -> None:
        """End it. Safe to repeat."""
        if self._process is not None:
            try:
                await child.end(self._process)
            finally:
                if self._process.stdout is not None:
                    self._process.stdout.close()
                self._process = None


def spawn_module(module: str, arguments: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """``python -m module`` as a child that cannot outlive us, its stdout a pipe; it finds this very package, installed or not."""
    return child.spawn([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, stderr=stderr, env=child.finds_us())


def last_words(stderr: IO[bytes]) -> str:
    """The last line of what a child has written there: of a traceback the one that says what was wrong."""
    # By its place in the file: its writes move the offset that it shares with us.
    text = os.pread(stderr.fileno(), _MOST_SAID, max(0, os.fstat(stderr.fileno()).st_size - _MOST_SAID))
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def answer(size_bytes: int) -> bytes:
    """The one answer."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: keep-alive\r\n\r\n"
    return head % size_bytes + b"x" * size_bytes


async def _serve(listener: socket.socket, size_bytes: int, round_trip_s: float) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    whole = answer(size_bytes)
    await loop.create_server(lambda: Conversation(whole, round_trip_s), sock=listener, backlog=_BACKLOG)
    gc.freeze()
    print(listener.getsockname()[1], flush=True)
    await stopped.wait()


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.experiments.distant``; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m asyncli.experiments.distant", description="a server that answers late")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--bytes", type=int, default=6000, help="length of the body of each answer (6000)")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="how long the line is, there and back (0)")
    chosen = parser.parse_args(argv)
    with _listener(chosen.port) as listener:
        new_loop().run_until_complete(_serve(listener, chosen.bytes, chosen.round_trip_ms / 1000))
    return 0


def _listener(port: int) -> socket.socket:
    for attempt in range(_START_TRIES):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Below the clients' ports where it is ours to choose: a listener among them would take one.
            listener.bind(("127.0.0.1", port or ports.free_pair("127.0.0.1")[0]))
            listener.listen(_BACKLOG)
            break
        except OSError as error:
            listener.close()
            # Somebody may take a port between our look and our bind. One drawn by us is drawn again.
            if port or error.errno != errno.EADDRINUSE or attempt == _START_TRIES - 1:
                raise
    return listener


if __name__ == "__main__":
    sys.exit(main())
