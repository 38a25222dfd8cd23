"""The runs of a folder that are looked at. The history of a run is read when somebody looks, and
let go when nobody has looked for some minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from asyncli.live.run_page import RunPage
from asyncli.model.text import printable
from asyncli.web.guard import RefusedError

#: So many histories are in memory at most.
MOST_OPEN = 8
#: A run that nobody has asked for so long (s) is let go.
UNWATCHED_S = 180.0


class _Open:
    """A run, and the task that reads what is new in it."""

    def __init__(self, path: Path) -> None:
        self.page = RunPage(path, in_folder=True)
        self.inode = path.stat().st_ino
        self.reading = asyncio.create_task(self.page.read())
        self.running: asyncio.Task[None] | None = None

    @property
    def problem(self) -> BaseException | None:
        """What ended the task that follows it."""
        if self.running is None or not self.running.done() or self.running.cancelled():
            return None
        return self.running.exception()

    async def close(self) -> None:
        for task in (self.reading, self.running):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        await self.page.close()


class OpenRuns:
    """By path. ``log`` gets a line for each run that cannot be followed any longer."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._open: dict[Path, _Open] = {}
        self._log = log
        # One at a time is opened or let go.
        self._changing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    async def page_of(self, path: Path) -> RunPage:
        """The run in ``path``, once its history has been read.

        Raises :class:`~asyncli.model.errors.AsyncliError` for what is no run, and
        :class:`~asyncli.web.guard.RefusedError` where too many are looked at.
        """
        async with self._changing:
            run = await self._opened(path)
        run.page.asked_s = time.monotonic()
        try:
            # Of several that ask at once, each waits for the same reading.
            await asyncio.shield(run.reading)
        except Exception:
            async with self._changing:
                if self._open.get(path) is run:
                    await self._let_go(path)
            raise
        if run.running is None and self._open.get(path) is run:
            run.running = asyncio.create_task(run.page.run())
        return run.page

    async def _opened(self, path: Path) -> _Open:
        run = self._open.get(path)
        if run is not None and run.inode == _inode_of(path):
            return run
        if run is not None:
            # Another file has its name now.
            await self._let_go(path)
        await self._make_room()
        try:
            run = _Open(path)
        except OSError as error:
            raise RefusedError(404, f"it cannot be read ({error.strerror})") from None
        self._open[path] = run
        return run

    async def _make_room(self) -> None:
        if len(self._open) < MOST_OPEN:
            return
        unwatched = [path for path, run in self._open.items() if not run.page.readers]
        if not unwatched:
            raise RefusedError(
                503, f"{MOST_OPEN} runs are looked at; close the page of one of them"
            )
        await self._let_go(min(unwatched, key=lambda path: self._open[path].page.asked_s))

    async def sweep(self) -> None:
        """Let go what nobody looks at, and what cannot be followed any longer: who looks at that
        has it read again.
        """
        long_ago_s = time.monotonic() - UNWATCHED_S
        async with self._changing:
            for path, run in list(self._open.items()):
                problem = run.problem
                if problem is not None:
                    self._log(f"{printable(path.name)}: {problem!r}; it is read again")
                is_unwatched = not run.page.readers and run.page.asked_s < long_ago_s
                if is_unwatched or problem is not None:
                    await self._let_go(path)

    async def _let_go(self, path: Path) -> None:
        await self._open.pop(path).close()

    async def close(self) -> None:
        for path in list(self._open):
            await self._let_go(path)


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
