"""The actor of a host, in its Dask worker's loop: starts the host process, forwards orders, and keeps its messages.

Dask's workers are daemonic and cannot fork: the host process is a program that ends with this one.
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
from asyncli.engine.shard import Adopt, Down, Drain, Failed, ProcessUsage, Shard, Start, Ticked
from asyncli.errors import AsyncliError

#: A session silent for so long (s) is gone: its connections are closed. Shorter than the session's LOST_S, after which it opens
#: them elsewhere.
LEASH_S = 15.0
# Where the actor itself hangs (its Dask worker is stopped), its processes end after so long (s).
_PROCESSES_LEASH_S = 18
_decode_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_encode = msgspec.msgpack.Encoder().encode
# A loop holds its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


class HostActor:
    """One session's. Frames are msgpack; only calls are pickled."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._worker = get_worker()
        self._news = asyncio.Event()
        self._generator: Generator | None = None
        self._kept: deque[bytes] = deque()
        #: The number of the first message that is kept.
        self._first = 0
        self._orders = 0
        self._closing: asyncio.Task[None] | None = None
        self._holds = False
        #: Its processes are up, or failed.
        self._opened = asyncio.Event()
        self._asked = time.monotonic()
        self._measure_at = 0.0

    async def open(self, shard: bytes) -> str:
        """Start the host process; "" or why not. Calls arrive in any order: ``close`` may come first, or during this one."""
        if self._closing is not None:
            return "its session has left it"
        if host_probe.held_by:
            return f"it is held by {host_probe.held_by}"
        generator = self._generator = Generator(msgspec.msgpack.decode(shard, type=Shard))
        self._group = ProcessGroup("generator", listed(lambda: generator.pids), may_be_empty=True)
        host_probe.held_by, self._holds = self._whose, True
        self._keep(self._mind())
        try:
            await generator.start()
        except (AsyncliError, OSError) as error:
            self._give_back()
            return " ".join(str(error).split())
        finally:
            self._asked = time.monotonic()
            self._opened.set()
        self._keep(self._listen(generator))
        return ""

    async def clock(self) -> float:
        """This host's monotonic clock."""
        self._asked = time.monotonic()
        return self._asked

    async def tell(self, number: int, order: bytes) -> None:
        """Order ``number``, from 0 on; a repeated one is not carried out again."""
        self._asked = time.monotonic()
        if number < self._orders or self._generator is None:
            return
        self._orders = number + 1
        match _decode_down.decode(order):
            case Start(t0=t0):
                self._generator.begin(t0)
            case Drain():
                # Also where measuring fails: a repeated order is not obeyed.
                try:
                    await self._measure()
                finally:
                    self._generator.drain()
            case Adopt() as adopt:
                self._generator.adopt(adopt)

    async def said(self, after: int, wait_s: float) -> list[bytes]:
        """Messages from number ``after`` on, waiting up to ``wait_s`` for one; earlier ones are dropped."""
        self._asked = time.monotonic()
        while self._kept and self._first < after:
            self._kept.popleft()
            self._first += 1
        if not self._kept:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
        return list(self._kept)

    async def close(self) -> None:
        """End the host process and wait for it."""
        if self._closing is None:
            self._closing = self._keep(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._generator is not None:
                await self._generator.close()
                # One that was starting had no process to end.
                await self._opened.wait()
                await self._generator.close()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._holds:
            host_probe.held_by, self._holds = "", False

    async def _mind(self) -> None:
        """End when Dask drops this actor, or after LEASH_S without a call."""
        while self._closing is None:
            await asyncio.sleep(1.0)
            if self._generator is not None and self._opened.is_set():
                self._generator.alive(_PROCESSES_LEASH_S)
            forgotten = not any(one is self for one in self._worker.state.actors.values())
            if forgotten or (self._opened.is_set() and time.monotonic() - self._asked > LEASH_S):
                await self.close()
                why = f"it heard nothing of its session for {LEASH_S:.0f} s, and closed its connections"
                self._say(_encode(Failed(why, away=True)))

    async def _listen(self, generator: Generator) -> None:
        await self._measure()
        async for message in generator.messages():
            self._say(_encode(message))
            if isinstance(message, Failed):
                return
            # Once a second; sixty processes take ten milliseconds, and are read less often.
            if isinstance(message, Ticked) and time.monotonic() >= self._measure_at:
                await self._measure()

    async def _measure(self) -> None:
        values, cost_s = await asyncio.to_thread(self._read)
        self._measure_at = time.monotonic() + cost_s / OWN_BUDGET
        if values:
            self._say(_encode(ProcessUsage(values)))

    def _read(self) -> tuple[dict[str, float], float]:
        begun = time.thread_time()
        values = self._group.scan().values | self._group.memory().values
        return values, time.thread_time() - begun

    def _say(self, message: bytes) -> None:
        self._kept.append(message)
        self._news.set()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        _tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a task that fails, which is a bug."""
        _tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._say(_encode(Failed(why=f"its actor failed: {type(error).__name__}: {' '.join(str(error).split())}")))
