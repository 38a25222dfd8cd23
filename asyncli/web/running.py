"""How long a server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def run_until(
    work: Coroutine[object, object, None], ended: asyncio.Event, linger_s: float = 0.0
) -> None:
    """Await ``work`` until it returns, or until ``linger_s`` seconds after ``ended``; then it is
    cancelled. Raises what it raises.
    """
    running = asyncio.create_task(work)
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=linger_s)
    finally:
        ending.cancel()
        running.cancel()
        await asyncio.wait({running, ending})
    if not running.cancelled():
        running.result()
