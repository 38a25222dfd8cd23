"""Ctrl-C, SIGTERM and SIGHUP during a run: the first one stops it, the second one cancels it.

An ignored SIGHUP stays ignored, so that `nohup asyncli ...` outlives its terminal.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType

from asyncli.model.exit_status import INTERRUPTED


class Signals:
    """The signals that this process received."""

    #: A run has started, and ``count`` signals have come since.
    ran = False
    count = 0
    #: A signal came after the run, while the report was written.
    late = False
    #: Handle signals until the process ends.
    until_exit = False


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop a run."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_stopped(
    work: Coroutine[object, object, None], stop: Callable[[], bool | None]
) -> bool:
    """Await ``work``; return False if it was cancelled.

    The first signal calls ``stop``. The second cancels, as does the first if ``stop`` returns
    False. Signals count beyond the run: the second of all interrupts the writing of a report.
    """
    # Imported here because the entry point imports this module.
    import asyncio

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)
    Signals.ran = True
    signals = 0

    def signalled() -> None:
        nonlocal signals
        signals += 1
        Signals.count += 1
        if signals > 1 or stop() is False:
            task.cancel()

    numbers = stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, signalled)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        # Blocked while the handlers change: a signal in between would kill the process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:
            loop.remove_signal_handler(number)
            if Signals.until_exit:
                signal.signal(number, _late)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


# A report takes a second, that of a night some. Docker and systemd wait for 10 s and more until
# they kill.
_LATE_S = 5.0


def _late(_number: int, _frame: FrameType | None) -> None:
    Signals.count += 1
    Signals.late = True
    # A command of --on-finish, or a file that nobody reads, may take for ever; the run is in its
    # file.
    ending = threading.Timer(_LATE_S, os._exit, (INTERRUPTED,))
    ending.daemon = True
    ending.start()
    # And C code, in which no thread of Python runs. The file must stay open.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(_LATE_S + 1.0, exit=True, file=nowhere)
    if Signals.count > 1:
        raise KeyboardInterrupt
