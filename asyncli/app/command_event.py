"""Runs the command of an event. It is ended with the hold, however long it would take, and what it
prints is kept up to a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable

import msgspec

from asyncli.model.text import oneline

# Of what a command prints the end is kept, which says how it ended.
_LONGEST_OUTPUT = 2_000
# How long the output of a command that has ended may take to end too (s): what it leaves running
# may keep it open.
_PRINTS_AFTER_END_S = 0.5


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended. ``status``: its exit status, negative for a signal; None if it was
    ended with the hold, or could not be run. ``output``: the end of what it printed, in one line.
    """

    status: int | None
    took_s: float
    output: str


async def run_command(command: str, ended: Callable[[CommandResult], None]) -> None:
    """Run a shell command, and call ``ended`` once when it ends; cancelled before, its processes
    are killed, and the result says so. What it leaves running goes on, and what that prints is read
    until this is cancelled: a pipe that is full or closed would stop it.
    """
    begun_s = time.monotonic()
    try:
        shell, printed = await asyncio.get_running_loop().subprocess_exec(
            _Printed,
            *("/bin/sh", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        ended(CommandResult(None, 0.0, f"cannot be run ({error.strerror})"))
        return
    try:
        status = await _end_of_shell(shell, printed)
        took_s = time.monotonic() - begun_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(printed.closed.wait(), _PRINTS_AFTER_END_S)
        ended(CommandResult(status, took_s, oneline(printed.end.decode("utf-8", "replace"))))
        await printed.closed.wait()
    finally:
        shell.close()


async def _end_of_shell(shell: asyncio.SubprocessTransport, printed: _Printed) -> int | None:
    """The exit status; None if its processes were killed because this was cancelled."""
    try:
        await printed.exited.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.get_pid(), signal.SIGKILL)
        await printed.exited.wait()
        return None
    return shell.get_returncode()


class _Printed(asyncio.SubprocessProtocol):
    """The end of what a command prints; when its shell has ended, and when no process can print any
    more: asyncio's own ``wait()`` waits for both.
    """

    def __init__(self) -> None:
        self.end = bytearray()
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.end += data
        del self.end[:-_LONGEST_OUTPUT]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()
