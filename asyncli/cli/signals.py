"""What Ctrl-C, SIGTERM and SIGHUP mean while something runs: the first one stops it, the second one cancels.

A SIGHUP that was ignored from the start stays so: `nohup asyncli ...` outlives its terminal.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine


def caught() -> tuple[signal.Signals, ...]:
    """The signals that end what runs."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


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

    numbers = caught()
    for number in numbers:
        loop.add_signal_handler(number, signalled)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return True
