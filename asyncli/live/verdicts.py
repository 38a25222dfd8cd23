"""The verdicts of runs that have ended, for a list of them: computed by a process of its own, one
after another, so that no list waits for them. A run file has no verdict: a later asyncli may judge
otherwise.

The process gets a path as a line on standard input, answers with a line of JSON, and ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from asyncli.model.errors import AsyncliError
from asyncli.model.garbage import uncollected
from asyncli.model.own_process import command_of, environment_of
from asyncli.report.listing import READ_WHOLE, listed, state
from asyncli.store.follow import size_bytes
from asyncli.store.reader import read_run
from asyncli.store.run_index import read_index_entry

# A night takes some seconds, on a busy host minutes; what takes longer has no verdict here.
_PATIENCE_S = 300.0


class Judged(msgspec.Struct, frozen=True):
    """``verdict``: as in the list of ``asyncli runs``, such as "passed, drift_grows"; "": it could
    not be computed. ``severity``: of what stands beside a pass.
    """

    verdict: str = ""
    severity: str | None = None


class VerdictProcess:
    """Judges runs; its process is started by the first."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def judge(self, path: Path) -> Judged:
        """Judge the run in ``path``, which has ended. Asked for one at a time."""
        try:
            if self._process is None:
                self._process = await _started()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(os.fsencode(path.absolute()).hex().encode() + b"\n")
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
            return msgspec.json.decode(line, type=Judged)
        except (OSError, TimeoutError, msgspec.MsgspecError):
            # It has ended, or hangs; the next run gets another process.
            await self.close()
            return Judged()

    async def close(self) -> None:
        """End the process."""
        process = self._process
        self._process = None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _started() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command_of("asyncli.live.verdicts"),
        env=environment_of(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # Ctrl-C is for the page, which ends this process.
        start_new_session=True,
    )


@uncollected()
def judged(path: Path) -> Judged:
    """The verdict of the run in ``path``. Raises :class:`~asyncli.model.errors.StoreError`."""
    run = read_index_entry(path, READ_WHOLE)
    began_s = datetime.fromisoformat(run.started).timestamp()
    whole = partial(read_run, path, for_report=True)
    entry = listed(run, path.name, size_bytes(path), changed_s=began_s, age_s=0.0, whole=whole)
    return Judged(state(entry), entry.severity)


def main() -> None:
    # Servers and soaks of this host go first.
    os.nice(19)
    for line in sys.stdin.buffer:
        path = Path(os.fsdecode(bytes.fromhex(line.decode().strip())))
        try:
            answer = judged(path)
        except (AsyncliError, OSError, MemoryError):
            answer = Judged()
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
        gc.collect()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
