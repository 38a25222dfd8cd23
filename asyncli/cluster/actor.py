"""The actor of a host, in its Dask worker's loop: starts the host process, forwards orders, and
buffers messages.

Dask's workers are daemonic and cannot fork, so the host process is a program; it ends with this
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec
from distributed import get_worker

from asyncli.cluster import host_probe
from asyncli.collect.probe_budget import OWN_BUDGET
from asyncli.collect.processes import ProcessGroup, listed
from asyncli.engine.generator import Generator
from asyncli.engine.shard import (
    Adopt,
    CommandLasts,
    Down,
    Drain,
    Failed,
    HoldBegun,
    ProcessUsage,
    Shard,
    Start,
    Ticked,
)
from asyncli.model.errors import AsyncliError

#: After so long (s) without a call from the session its connections are closed. Shorter than the
#: session's LOST_S, after which it opens them elsewhere.
SESSION_TIMEOUT_S = 15.0
# If the actor itself hangs (its Dask worker is stopped), its processes end after so long (s).
_PROCESSES_TIMEOUT_S = 18
_decode_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_encode = msgspec.msgpack.Encoder().encode
# An event loop keeps only weak references to tasks.
_tasks: set[asyncio.Task[None]] = set()


class HostActor:
    """The actor of one session. Frames are msgpack; only calls are pickled."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._worker = get_worker()
        self._arrived = asyncio.Event()
        self._generator: Generator | None = None
        self._messages: deque[bytes] = deque()
        #: The number of the first message in the buffer.
        self._first = 0
        self._orders = 0
        self._closing: asyncio.Task[None] | None = None
        self._host_taken = False
        #: Set once the start of its processes succeeded or failed.
        self._opened = asyncio.Event()
        self._last_call_s = time.monotonic()
        self._measure_at = 0.0

    async def open(self, shard: bytes) -> str:
        """Start the host process; "" or why not. Calls arrive in any order: ``close`` may come
        first, or during this call.
        """
        if self._closing is not None:
            return "its session has closed it"
        if host_probe.held_by:
            return f"it is held by {host_probe.held_by}"
        generator = Generator(msgspec.msgpack.decode(shard, type=Shard))
        self._generator = generator
        self._group = ProcessGroup("generator", listed(lambda: generator.pids), may_be_empty=True)
        host_probe.held_by = self._session
        self._host_taken = True
        self._start_task(self._watch_session())
        try:
            await generator.start()
        except (AsyncliError, OSError) as error:
            self._release_host()
            return " ".join(str(error).split())
        finally:
            self._last_call_s = time.monotonic()
            self._opened.set()
        self._start_task(self._forward(generator))
        return ""

    async def clock(self) -> float:
        """This host's monotonic clock."""
        self._last_call_s = time.monotonic()
        return self._last_call_s

    async def carry_out(self, number: int, order: bytes) -> None:
        """Carry out order ``number``, from 0 on; a repeated one is ignored."""
        self._last_call_s = time.monotonic()
        if number < self._orders or self._generator is None:
            return
        self._orders = number + 1
        match _decode_down.decode(order):
            case Start(t0=t0):
                self._generator.begin(t0)
            case HoldBegun() as hold:
                self._generator.hold(hold)
            case CommandLasts() as command:
                self._generator.command_lasts(command)
            case Drain():
                # Drain even if measuring fails: a repeated order is ignored.
                try:
                    await self._measure()
                finally:
                    self._generator.drain()
            case Adopt() as adopt:
                self._generator.adopt(adopt)

    async def messages(self, after: int, wait_s: float) -> list[bytes]:
        """Messages from number ``after`` on, waiting up to ``wait_s`` for one; earlier ones are
        dropped.
        """
        self._last_call_s = time.monotonic()
        while self._messages and self._first < after:
            self._messages.popleft()
            self._first += 1
        if not self._messages:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
        return list(self._messages)

    async def close(self) -> None:
        """End the host process and wait for it."""
        if self._closing is None:
            self._closing = self._start_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._generator is not None:
                await self._generator.close()
                # If it was still starting, there was no process to end before.
                await self._opened.wait()
                await self._generator.close()
        finally:
            self._release_host()

    def _release_host(self) -> None:
        if self._host_taken:
            host_probe.held_by = ""
            self._host_taken = False

    async def _watch_session(self) -> None:
        """End when Dask drops this actor, or after SESSION_TIMEOUT_S without a call."""
        while self._closing is None:
            await asyncio.sleep(1.0)
            if self._generator is not None and self._opened.is_set():
                self._generator.alive(_PROCESSES_TIMEOUT_S)
            if not self._is_kept() or self._is_silent():
                await self.close()
                why = (
                    f"no contact with its session for {SESSION_TIMEOUT_S:.0f} s, so it closed its "
                    "connections"
                )
                self._put(_encode(Failed(why, away=True)))

    def _is_kept(self) -> bool:
        """Whether Dask still has this actor."""
        return any(actor is self for actor in self._worker.state.actors.values())

    def _is_silent(self) -> bool:
        """Whether its session has not called for too long since the start of its processes."""
        if not self._opened.is_set():
            return False
        return time.monotonic() - self._last_call_s > SESSION_TIMEOUT_S

    async def _forward(self, generator: Generator) -> None:
        await self._measure()
        async for message in generator.messages():
            self._put(_encode(message))
            if isinstance(message, Failed):
                return
            # Once a second; less often with many processes: sixty take ten milliseconds.
            if isinstance(message, Ticked) and time.monotonic() >= self._measure_at:
                await self._measure()

    async def _measure(self) -> None:
        values, cost_s = await asyncio.to_thread(self._read)
        self._measure_at = time.monotonic() + cost_s / OWN_BUDGET
        if values:
            self._put(_encode(ProcessUsage(values)))

    def _read(self) -> tuple[dict[str, float], float]:
        begun = time.thread_time()
        values = self._group.scan().values | self._group.memory().values
        return values, time.thread_time() - begun

    def _put(self, message: bytes) -> None:
        self._messages.append(message)
        self._arrived.set()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        _tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """Report a failed task, which is a bug."""
        _tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            text = " ".join(str(error).split())
            why = f"its actor failed: {type(error).__name__}: {text}"
            self._put(_encode(Failed(why=why)))
