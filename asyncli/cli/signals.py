"""What Ctrl-C, SIGTERM and SIGHUP mean while something runs: the first one stops it, the second one cancels.

A SIGHUP that was ignored from the start stays so: `nohup asyncli ...` outlives its terminal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from types import FrameType


class Heard:
    """What this process has heard of them."""

    #: Something has run, and ``count`` of them came since it began.
    ran = False
    count = 0
    #: Of these one came when it was over, while the report was written.
    late = False
    #: They are heard until the process ends: nothing else of it wants them.
    to_the_end = False


def caught() -> tuple[signal.Signals, ...]:
    """The signals that end what runs."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


async def until_stopped(work: Coroutine[object, object, None], stop: Callable[[], bool | None]) -> bool:
    """Await ``work``; the first signal calls ``stop``, the second cancels, or the first where ``stop`` is False: nothing to stop.

    False when it was cancelled. What comes later counts on: the second of all ends the writing of a report too.
    """
    # Not above: the entry point imports this.
    import asyncio

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)
    Heard.ran, signals = True, 0

    def signalled() -> None:
        nonlocal signals
        signals += 1
        Heard.count += 1
        if signals > 1 or stop() is False:
            task.cancel()

    numbers = caught()
    for number in numbers:
        loop.add_signal_handler(number, signalled)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        # Blocked meanwhile: in between, each would end the process in its own way.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:
            loop.remove_signal_handler(number)
            if Heard.to_the_end:
                signal.signal(number, _late)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


def _late(_number: int, _frame: FrameType | None) -> None:
    Heard.count += 1
    Heard.late = True
    if Heard.count > 1:
        raise KeyboardInterrupt
