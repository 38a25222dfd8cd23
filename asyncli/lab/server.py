"""What every server has that we start ourselves: where it listens, its process, and a block that it lives for."""

from __future__ import annotations

import math
import subprocess
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from asyncli.errors import HostError
from asyncli.lab import ports


class OwnServer(ABC):
    """A server that is our child and listens on ``address`` and ``port``; ``async with`` starts and stops it."""

    def __init__(self, address: str, port: int) -> None:
        ports.family_of(address)
        self.address = address
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def called(self) -> str:
        """In messages: "the built-in server"."""

    @property
    def url(self) -> str:
        """The URL to aim at."""
        return f"http://{ports.host_port(ports.reachable(self.address), self.port)}/"

    @property
    def pid(self) -> int:
        """The main process's id; its workers are its children, or its threads."""
        if self._process is None:
            raise HostError(f"{self.called} is not running; start it first")
        return self._process.pid

    def __repr__(self) -> str:
        running = f", pid {self._process.pid}" if self._process is not None else ", not running"
        return f"<{self.called} at {self.url}{running}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @abstractmethod
    async def start(self) -> None:
        """Start it and return when it answers; :class:`~asyncli.errors.HostError` where it cannot."""

    @abstractmethod
    async def stop(self) -> None:
        """End it and everything it left; safe to repeat."""


def outlast(keepalive_s: float) -> int:
    """The idle timeout (s) of a server whose clients beat every ``keepalive_s`` or oftener.

    Ten beats of head room, and never below an hour: a paused client must not lose its connections.
    """
    return max(3600, math.ceil(10 * keepalive_s))
