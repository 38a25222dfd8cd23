"""How long a server serves: until its work fails, or it is told to end, and then as long as it lingers."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncli.web.running import run_until


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise OSError("no such host")


async def test_it_serves_until_it_is_told_to_end_and_lingers() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, ended.set)
    begun_s = time.monotonic()
    await asyncio.wait_for(run_until(forever(), ended, linger_s=0.1), 60.0)
    assert time.monotonic() - begun_s >= 0.14


async def test_what_it_raises_is_raised() -> None:
    with pytest.raises(OSError, match="no such host"):
        await asyncio.wait_for(run_until(failing(), asyncio.Event()), 60.0)


async def test_a_cancelled_caller_leaves_no_work_behind() -> None:
    is_cancelled = asyncio.Event()

    async def noting() -> None:
        try:
            await forever()
        finally:
            is_cancelled.set()

    task = asyncio.create_task(run_until(noting(), asyncio.Event()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_cancelled.is_set()
