"""Runs the command of an event. It is ended with the hold, however long it would take, and what it
prints is kept up to a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import msgspec

from asyncli.model.text import oneline

# Of what a command prints the end is kept, which says how it ended.
_LONGEST_OUTPUT = 2_000
_READ_BYTES = 65_536
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


async def run_command(command: str) -> CommandResult:
    """Run a shell command until it ends; cancelled, its processes are killed and the result says
    so.
    """
    begun_s = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return CommandResult(None, 0.0, f"cannot be run ({error.strerror})")
    printed = bytearray()
    reading = asyncio.create_task(_keep_end(process, printed))
    status: int | None = None
    try:
        status = await process.wait()
        await asyncio.wait([reading], timeout=_PRINTS_AFTER_END_S)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    finally:
        reading.cancel()
    took_s = time.monotonic() - begun_s
    return CommandResult(status, took_s, oneline(printed.decode("utf-8", "replace")))


async def _keep_end(process: asyncio.subprocess.Process, printed: bytearray) -> None:
    assert process.stdout is not None
    while part := await process.stdout.read(_READ_BYTES):
        printed += part
        del printed[:-_LONGEST_OUTPUT]
