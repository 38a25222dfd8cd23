"""A middlebox for tests: a TCP proxy that forgets, resets or closes connections as firewalls and load balancers do, and delays,
splits, throttles or corrupts answers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from programs import DEADLINE_S

#: What it does to a connection that was idle too long: nothing; forget it and drop later data silently; forget it and answer later
#: data with RST; send RST or FIN at the timeout.
Habit = Literal["none", "silent", "reset_at_data", "reset", "close"]
#: How answers are corrupted: bytes that are not HTTP, only the first half, the first half and FIN.
Spoilt = Literal["garbage", "half", "half_and_close"]
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_GARBAGE = b"\x15\x03\x01\x00\x02\x02\x46"  # an alert of TLS


class MiddleBox:
    """Listens on ``port`` of 127.0.0.1 and forwards to ``to``, until a connection was idle for ``idle_s`` seconds."""

    def __init__(self, to: tuple[str, int], habit: Habit = "none", idle_s: float = 1.0) -> None:
        self.to, self.habit, self.idle_s = to, habit, idle_s
        self.port = 0
        #: Drop everything in both directions, silently.
        self.cut = False
        #: How answers are forwarded: the delay, the size of pieces, and the rate.
        self.delay_s = 0.0
        self.piece, self.bytes_per_s = 0, math.inf
        self.spoilt: Spoilt | None = None
        #: The connections that it forwards, and all that it ever had.
        self.flows: set[_Client] = set()
        self._all: set[_Client] = set()
        self.loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._serve(),))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def forget_all(self) -> None:
        """Send RST to every client at once, as a box that has lost its table does at their next packets."""
        self.loop.call_soon_threadsafe(lambda: [flow.reset() for flow in list(self.flows)])

    def reset_one(self) -> None:
        """Send RST to one client; call it in the loop's thread."""
        next(iter(self.flows)).reset()

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(DEADLINE_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self.loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        server = await self.loop.create_server(lambda: _Client(self), "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ended.wait()
        server.close()
        for flow in self._all:
            flow.end()
        await asyncio.sleep(0)


class _Client(asyncio.Protocol):
    """The client side of a connection."""

    def __init__(self, box: MiddleBox) -> None:
        self.box, self.forgotten = box, False
        self.heard = time.monotonic()
        self.free_s = 0.0
        self.waiting: list[bytes] = []
        self.server: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.client = transport
        self.box.flows.add(self)
        self.box._all.add(self)
        self.task = self.box.loop.create_task(self._join())
        self._rest()

    def data_received(self, data: bytes) -> None:
        idle = time.monotonic() - self.heard
        if self.box.habit in ("silent", "reset_at_data") and idle > self.box.idle_s:
            self.forgotten = True
        if self.forgotten and self.box.habit == "reset_at_data":
            self.reset()
        elif not self.forgotten and not self.box.cut:
            self.heard = time.monotonic()
            if self.server is None:
                self.waiting.append(data)
            else:
                self.server.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        # A forgotten connection's end is not forwarded to the server.
        if not self.forgotten and not self.box.cut:
            self.end()

    def answered(self, data: bytes) -> None:
        if not self.forgotten and not self.box.cut and not self.client.is_closing():
            spoilt = self.box.spoilt  # another thread sets it
            if spoilt is not None:
                data = _GARBAGE if spoilt == "garbage" else data[: len(data) // 2]
            self._pass_on(data)
            if spoilt == "half_and_close":
                self.client.close()
            self.heard = time.monotonic()
            self._rest()

    def _pass_on(self, data: bytes) -> None:
        box, now = self.box, self.box.loop.time()
        if not box.delay_s and not box.piece:
            self.client.write(data)
            return
        size = box.piece or len(data)
        # Each piece occupies the line for its transmission time, then takes the delay to arrive.
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self.free_s = max(now, self.free_s) + len(piece) / box.bytes_per_s
            box.loop.call_at(self.free_s + box.delay_s, self._arrive, piece)

    def _arrive(self, piece: bytes) -> None:
        if not self.client.is_closing():
            self.client.write(piece)

    def reset(self) -> None:
        self.box.flows.discard(self)
        self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.forgotten = True
        self.client.abort()

    def end(self) -> None:
        self.box.flows.discard(self)
        self.task.cancel()
        if self.timer is not None:
            self.timer.cancel()
        for side in (self.server, self.client):
            if side is not None:
                side.abort()

    def _rest(self) -> None:
        """Start the idle timer."""
        if self.box.habit in ("reset", "close"):
            if self.timer is not None:
                self.timer.cancel()
            self.timer = self.box.loop.call_later(self.box.idle_s, self.reset if self.box.habit == "reset" else self.client.close)

    async def _join(self) -> None:
        with contextlib.suppress(OSError):
            transport, _ = await self.box.loop.create_connection(lambda: _Server(self), *self.box.to)
            self.server = transport
            transport.writelines(self.waiting)


class _Server(asyncio.Protocol):
    """The server side of a connection."""

    def __init__(self, flow: _Client) -> None:
        self.flow = flow

    def data_received(self, data: bytes) -> None:
        self.flow.answered(data)

    def eof_received(self) -> None:
        if not self.flow.forgotten and not self.flow.box.cut:
            self.flow.client.close()


@contextmanager
def between(to: tuple[str, int], habit: Habit = "none", idle_s: float = 1.0) -> Iterator[MiddleBox]:
    """A middlebox in front of the server at ``to`` for the block."""
    box = MiddleBox(to, habit, idle_s)
    box.start()
    try:
        yield box
    finally:
        box.stop()
