"""What Ctrl-C, SIGTERM and SIGHUP mean while something runs: the first one stops it, the second one cancels."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine


async def until_stopped(work: Coroutine[object, object, None], stop: Callable[[], bool]) -> bool:
    """Await ``work``; the first signal calls ``stop``, the second (or the first, where there is nothing to stop) cancels.

    False when it was cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)
    signals = 0

    def signalled() -> None:
        nonlocal signals
        signals += 1
        if signals > 1 or not stop():
            task.cancel()

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, signalled)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
    return True
