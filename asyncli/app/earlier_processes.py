"""Whether a server still has processes from before a command that started others in their place: a
graceful reload lets earlier workers go on with their connections, for seconds or minutes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncli.model.metrics import (
    SERVER_ENDED,
    SERVER_JOINED,
    SERVER_PROCESSES,
)

_METRICS = (SERVER_PROCESSES, SERVER_JOINED, SERVER_ENDED)


class EarlierProcesses:
    """Of the last command of a soak."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        #: The readings before the command.
        self._before: dict[str, float] = {}
        self._number: int | None = None

    def read(self, values: Mapping[str, float]) -> None:
        """The newest values of some metrics."""
        for name in _METRICS:
            if name in values:
                self._last[name] = values[name]

    def command_begins(self, number: int) -> None:
        """The command of this event begins."""
        self._number = number
        self._before = dict(self._last)

    @property
    def left_by(self) -> int | None:
        """The number of the event whose command the server has processes from before of; None where
        they have gone, where as many others did not join them, and where that was not read.
        """
        if self._number is None or SERVER_PROCESSES not in self._before:
            return None
        # The first process is no worker, but of a server with one process.
        workers = max(1.0, self._before[SERVER_PROCESSES] - 1.0)
        if self._rise(SERVER_JOINED) < workers or self._rise(SERVER_ENDED) >= workers:
            return None
        return self._number

    def _rise(self, counter: str) -> float:
        return self._last.get(counter, 0.0) - self._before.get(counter, 0.0)
