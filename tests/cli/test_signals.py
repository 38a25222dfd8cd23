"""The signals that stop a run."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from asyncli.cli.signals import until_stopped


@pytest.mark.parametrize(
    ("number", "before", "stops"),
    [
        (signal.SIGINT, signal.SIG_DFL, True),
        (signal.SIGTERM, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_IGN, False),  # nohup
    ],
)
def test_ignored_hangup_stays_ignored(number: signal.Signals, before: signal.Handlers, stops: bool) -> None:
    stopped = asyncio.Event()

    def stop() -> bool:
        stopped.set()
        return True

    async def work() -> None:
        os.kill(os.getpid(), number)
        # A second signal, which is always handled, comes after it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await heard.wait()

    heard = asyncio.Event()
    found = signal.signal(number, before)
    try:
        assert asyncio.run(until_stopped(work(), stop))
        assert stopped.is_set() is stops
        if not stops:
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, found)
