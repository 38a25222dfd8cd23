"""The session's end of a host process: start it, give orders, hear what it says. Works on any asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator

import msgspec

from asyncli.engine.shard import (
    Adopt,
    Alive,
    Down,
    Drain,
    Failed,
    LoadShard,
    Ready,
    Shard,
    Start,
    Stop,
    Up,
    WorkerLost,
    WorkerReplaced,
)  # fmt: skip
from asyncli.errors import EngineError
from asyncli.secret_variables import for_child

_encode = msgspec.msgpack.Encoder().encode
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
# Sixty forks, each with a heap to copy on write, are a second on a slow machine; past this something hangs.
_START_S = 60.0
# The host gives its workers 2 s to end before it ends them; five times that, and it is stuck itself.
_CLOSE_S = 10.0
# Between the end of its pipe and the word of its end there is no more than a turn of the kernel's and one of ours.
_REAP_S = 1.0
# Of what the processes printed last: a line in a report.
_LONGEST_WORDS = 500


class Generator:
    """One host process and its workers. ``pids`` are all of them, the host first."""

    #: The ramp's first batch is due this long after the workers hear of it: time for the word to reach sixty processes.
    lead_s = 0.1
    #: A drain may take so long for reasons of its own, beyond what the connections take.
    drain_s = 0.0

    def __init__(self, shard: Shard | LoadShard) -> None:
        self._shard = shard
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self._last_line = b""
        self.pids: list[int] = []

    async def start(self) -> None:
        """Fork the workers; they wait for :meth:`begin`. Raises :class:`EngineError` when they do not stand up."""
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = await asyncio.create_subprocess_exec(
            # -P and our own path: a file of the user's folder must not stand in for a module, and what this process
            # could import (a notebook's path) the host can.
            sys.executable, "-P", "-m", "asyncli.engine.host", env={**for_child(), "PYTHONPATH": path},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._errors = asyncio.create_task(self._read_errors())
        self._send(self._shard)
        message = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    message = await self._receive()
        except BaseException:
            await self.close()
            raise
        if not isinstance(message, Ready):
            await self.close()
            raise EngineError(f"the generator's processes did not start; {self.last_words}")
        self.pids = [message.host, *message.workers]

    def begin(self, t0: float) -> None:
        """Start the ramp at ``t0`` of the monotonic clock."""
        self._send(Start(t0))

    def drain(self) -> None:
        self._send(Drain())

    def adopt(self, order: Adopt) -> None:
        """Fork these workers of the fleet as well, in the place of a lost host's."""
        self._send(order)

    def alive(self, leash_s: int) -> None:
        """We live; the processes end by themselves where that is not said again within ``leash_s``."""
        self._send(Alive(leash_s))

    async def messages(self) -> AsyncIterator[Up]:
        """What the host says, until it is gone; then, if it was not told to stop, a last :class:`Failed`."""
        while True:
            message = await self._receive()
            if message is None:
                if (process := self._process) is None:  # it ended because we closed it
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REAP_S):
                        await process.wait()
                        if self._errors is not None:  # what it printed last may be in the pipe yet
                            await asyncio.wait({self._errors})
                leashed = process.returncode == -signal.SIGALRM
                yield Failed(why=f"the generator's host process has ended; {self.last_words}", away=leashed)
                return
            if isinstance(message, WorkerLost):
                self.pids.remove(message.pid)
            elif isinstance(message, WorkerReplaced):
                self.pids.append(message.pid)
            yield message

    @property
    def last_words(self) -> str:
        """What the processes printed last to standard error: one line, cut where it is long."""
        return self._last_line.decode(errors="replace").strip() or "it said nothing"

    async def close(self) -> None:
        """Stop everything and wait for it; cancelled, kill it and wait all the same. Safe to call twice."""
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            if process.returncode is None:
                process.stdin.write(_frame(Stop()))
            process.stdin.close()
        ending = asyncio.create_task(self._ended(process))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            _kill(process)
            # A process that is still known when its loop closes ends in a traceback.
            while not ending.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({ending})
            raise

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await process.wait()
        except TimeoutError:
            _kill(process)
            await process.wait()
        if self._errors is not None:
            await asyncio.wait({self._errors}, timeout=2.0)
            self._errors.cancel()

    def _send(self, message: Shard | LoadShard | Down) -> None:
        if self._process is not None and self._process.stdin is not None and self._process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._process.stdin.write(_frame(message))

    async def _receive(self) -> Up | None:
        if self._process is None:
            return None
        # A local name: close() may reset the attribute meanwhile.
        said = self._process.stdout
        assert said is not None
        try:
            head = await said.readexactly(4)
            return _up.decode(await said.readexactly(struct.unpack("<I", head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        # Never by lines: one that is longer than the reader's limit would end this, and who prints to a full pipe stands still.
        line = b""
        while piece := await self._process.stderr.read(1 << 16):
            *whole, line = (line + piece).split(b"\n")
            line = line[:_LONGEST_WORDS]
            self._last_line = next((one[:_LONGEST_WORDS] for one in (line, *reversed(whole)) if one.strip()), self._last_line)


def _kill(process: asyncio.subprocess.Process) -> None:
    """End it, and our end of its pipes: a worker that is stuck may outlive a killed host and hold the others open."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    for fd in (1, 2):
        if (pipe := transport.get_pipe_transport(fd)) is not None:
            pipe.close()


def _frame(message: Shard | LoadShard | Down) -> bytes:
    payload = _encode(message)
    return struct.pack("<I", len(payload)) + payload
