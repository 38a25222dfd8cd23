"""Ctrl-C, SIGTERM and SIGHUP during a run: the first one stops it, the second one cancels.

An ignored SIGHUP stays ignored: `nohup asyncli ...` outlives its terminal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from types import FrameType


class Heard:
    """The signals that this process got."""

    #: Something has run; ``count`` signals came since it began.
    ran = False
    count = 0
    #: One came after the run, while the report was written.
    late = False
    #: They are handled until the process ends.
    to_the_end = False


def caught() -> tuple[signal.Signals, ...]:
    """The signals that end what runs."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


async def until_stopped(work: Coroutine[object, object, None], stop: Callable[[], bool | None]) -> bool:
    """Await ``work``; False where it was cancelled. The first signal calls ``stop``; the second, or the first where ``stop``
    gives False, cancels. Later signals count on: the second of all ends the writing of a report."""
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
        # Blocked meanwhile: in between, a signal would end the process.
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
