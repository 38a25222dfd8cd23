"""The generator's processes: messages about a worker that fails, and an end without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import DEADLINE_S
from test_load import shard
from test_table import shard as soak_shard

from asyncli.engine.generator import Generator
from asyncli.engine.shard import Failed, Ticked, WorkerLost


async def lost(generator: Generator) -> WorkerLost:
    async for message in generator.messages():
        if isinstance(message, WorkerLost):
            return message
    raise AssertionError("no worker was lost")


async def test_a_worker_that_fails_says_why() -> None:
    generator = Generator(shard(destinations=()))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await generator.start()
            generator.begin(time.monotonic())
            message = await lost(generator)
    finally:
        await generator.close()
    assert "(ZeroDivisionError: " in message.how


async def test_what_the_processes_print_is_read_however_long_its_lines() -> None:
    generator = Generator(shard())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await generator.start()
            # The host and its workers share one pipe as standard error; here this process writes to it.
            with open(f"/proc/{generator.pids[0]}/fd/2", "wb", buffering=0) as pipe:
                os.set_blocking(pipe.fileno(), False)
                left = b"x" * (1 << 20) + b"\n" + b"one of many lines\n" * 50_000 + b"MemoryError: " + b"y" * 100_000 + b"\n\n"
                while left:
                    written = pipe.write(left)  # None while there is no room
                    left = left[written or 0 :]
                    await asyncio.sleep(0)
            os.kill(generator.pids[0], signal.SIGKILL)
            async for message in generator.messages():
                if isinstance(message, Failed):
                    break
    finally:
        await generator.close()
    assert "MemoryError: yyy" in message.why
    assert len(message.why) < 1000


async def test_without_a_replacement_the_other_workers_continue() -> None:
    generator = Generator(soak_shard(2))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await generator.start()
            host, worker, _ = generator.pids
            _, hard = resource.prlimit(host, resource.RLIMIT_NOFILE)
            resource.prlimit(host, resource.RLIMIT_NOFILE, (3, hard))
            generator.begin(time.monotonic())
            os.kill(worker, signal.SIGKILL)
            message = await lost(generator)
            assert "Too many " in message.how
            async for other in generator.messages():
                assert not isinstance(other, Failed)
                if isinstance(other, Ticked):
                    break
    finally:
        await generator.close()
    # Its share counts as drained.
    assert (other.tick.workers, other.tick.drained) == (1, 1)


@contextlib.contextmanager
def no_traceback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No exception is ignored by a finalizer."""
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(repr(raised.exc_value)))
    yield
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize(("stopped", "times"), [("host", 3), ("worker", 1)])
def test_a_cancelled_close_waits_for_the_end(monkeypatch: pytest.MonkeyPatch, stopped: str, times: int) -> None:
    pids: list[int] = []

    async def close() -> None:
        generator = Generator(shard())
        await generator.start()
        pids.extend(generator.pids)
        # A stopped process does not end by itself; a stopped worker keeps the host waiting and its pipes open.
        os.kill(pids[("host", "worker").index(stopped)], signal.SIGSTOP)
        closing = asyncio.create_task(generator.close())
        for _ in range(times):
            await asyncio.sleep(0)
            closing.cancel()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(asyncio.CancelledError):
                await closing
        assert not Path(f"/proc/{pids[0]}").exists()

    try:
        with no_traceback(monkeypatch):
            asyncio.run(close())
    finally:
        for pid in pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
