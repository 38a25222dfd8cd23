"""The session's end of a host process: starts it, sends orders, receives messages. Works on any
asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import msgspec

from asyncli.engine.shard import (
    Adopt,
    Alive,
    CommandLasts,
    Down,
    Drain,
    Failed,
    HoldBegun,
    LoadShard,
    Ready,
    Shard,
    Start,
    Stop,
    Up,
    WorkerLost,
    WorkerReplaced,
    frame,
)  # fmt: skip
from asyncli.model.errors import EngineError
from asyncli.model.own_process import command_of, environment_of

_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
# Sixty forks, each with a heap to copy on write, take a second on a slow machine; after this long
# something hangs.
_START_S = 60.0
# The host gives its workers 2 s to end before it kills them; after five times that it is stuck
# itself.
_CLOSE_S = 10.0
# Between the end of its pipe and its exit status there is one turn of the kernel and one of the
# loop.
_REAP_S = 1.0
# The line that the processes printed last, in a report.
_LONGEST_OUTPUT = 500


class Generator:
    """One host process and its workers. ``pids``: all of them, the host first."""

    #: The ramp's first batch is due this long after the start order: time for it to reach sixty
    #: processes.
    lead_s = 0.1
    #: The time that a drain may take beyond that of its connections.
    drain_s = 0.0

    def __init__(self, shard: Shard | LoadShard) -> None:
        self._shard = shard
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self._last_line = b""
        self.pids: list[int] = []

    async def start(self) -> None:
        """Fork the workers; they wait for :meth:`begin`. Raises :class:`EngineError` if they do not
        start.
        """
        self._process = await asyncio.create_subprocess_exec(
            *command_of("asyncli.engine.host"),
            env=environment_of(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
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
            raise EngineError(f"asyncli's processes did not start; {self.last_output}")
        self.pids = [message.host, *message.workers]

    def begin(self, t0: float) -> None:
        """Start the ramp at ``t0`` of the monotonic clock."""
        self._send(Start(t0))

    def hold(self, order: HoldBegun) -> None:
        """The hold begins, and the instants of events are known."""
        self._send(order)

    def command_lasts(self, order: CommandLasts) -> None:
        """A command still runs, or the server still has processes from before it."""
        self._send(order)

    def drain(self) -> None:
        self._send(Drain())

    def adopt(self, order: Adopt) -> None:
        """Also run these workers of a lost host."""
        self._send(order)

    def alive(self, leash_s: int) -> None:
        """Renew the heartbeat of the controller: the processes exit when it is not renewed within
        ``leash_s``.
        """
        self._send(Alive(leash_s))

    async def messages(self) -> AsyncIterator[Up]:
        """The host's messages until it is gone; then, unless :meth:`close` ended it, a last
        :class:`Failed`.
        """
        while True:
            message = await self._receive()
            if message is None:
                if (process := self._process) is None:  # it ended because we closed it
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REAP_S):
                        await process.wait()
                        if self._errors is not None:  # its last output may still be in the pipe
                            await asyncio.wait({self._errors})
                leashed = process.returncode == -signal.SIGALRM
                yield Failed(
                    why=f"asyncli's host process has ended; {self.last_output}", away=leashed
                )
                return
            if isinstance(message, WorkerLost):
                self.pids.remove(message.pid)
            elif isinstance(message, WorkerReplaced):
                self.pids.append(message.pid)
            yield message

    @property
    def last_output(self) -> str:
        """The last line that the processes printed to standard error, cut to 500 bytes."""
        return self._last_line.decode(errors="replace").strip() or "it printed nothing"

    async def close(self) -> None:
        """Stop the processes and wait for their end; if cancelled, kill them and still wait. Safe
        to call twice.
        """
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            if process.returncode is None:
                process.stdin.write(frame(Stop()))
            process.stdin.close()
        ending = asyncio.create_task(self._ended(process))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            _kill(process)
            # A process that is still running when its loop closes causes a traceback.
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
        if (
            self._process is not None
            and self._process.stdin is not None
            and self._process.returncode is None
        ):
            with contextlib.suppress(OSError, RuntimeError):
                self._process.stdin.write(frame(message))

    async def _receive(self) -> Up | None:
        if self._process is None:
            return None
        # A local name: close() may reset the attribute meanwhile.
        pipe = self._process.stdout
        assert pipe is not None
        try:
            size = int.from_bytes(await pipe.readexactly(4), "little")
            return _up.decode(await pipe.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        # Not by readline(): a line beyond the reader's limit would end this task, and a full pipe
        # blocks the processes.
        line = b""
        while piece := await self._process.stderr.read(1 << 16):
            *whole, line = (line + piece).split(b"\n")
            line = line[:_LONGEST_OUTPUT]
            self._last_line = next(
                (
                    candidate[:_LONGEST_OUTPUT]
                    for candidate in (line, *reversed(whole))
                    if candidate.strip()
                ),
                self._last_line,
            )


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill it and close our ends of its pipes: a stuck worker may outlive a killed host and keep
    the other ends open.
    """
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    for fd in (1, 2):
        if (pipe := transport.get_pipe_transport(fd)) is not None:
            pipe.close()
