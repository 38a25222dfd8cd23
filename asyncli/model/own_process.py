"""How asyncli starts a module of its own as another process, and hears from it."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import IO

from asyncli.model.secret_variables import for_child


def command_of(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module``.

    -P: a file in the user's folder must not shadow a module.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def environment_of() -> dict[str, str]:
    """The environment of such a process: without secrets, and with this process's path, so that it
    can import what this one can (a notebook's path).
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**for_child(), "PYTHONPATH": path}


#: A longer line is not of such a process.
_LONGEST_LINE = 1 << 20


class LinesFrom:
    """The lines that such a process writes into a ``pipe``."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._descriptor = pipe.fileno()
        self._received = b""
        #: The process has closed the pipe, or sends what is no line: no further line comes.
        self.has_ended = False

    def next(self, timeout_s: float = 0.0) -> bytes | None:
        """The next line without its end; None if none comes in this time."""
        latest_s = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while b"\n" not in self._received:
            if self.has_ended:
                return None
            left_s = max(0.0, latest_s - time.monotonic())
            if not poll.poll(left_s * 1e3):
                return None
            part = os.read(self._descriptor, _LONGEST_LINE)
            self._received += part
            self.has_ended = not part or len(self._received) > _LONGEST_LINE
        line, _, self._received = self._received.partition(b"\n")
        return line

    def fileno(self) -> int:
        """The descriptor to watch."""
        return self._descriptor
