"""The classic server models on Linux: one small C program (``models.c``), and one in asyncio."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import asyncli
from asyncli.lab import compiler, ports
from asyncli.lab.base import LabServer
from asyncli.model.errors import PlanError

_MAX_POOL = 1_000


class Model(NamedTuple):
    """``description``: for labels; ``at_once``: how many clients it serves at a time without a
    pool, None: no limit.
    """

    description: str
    pool: bool = False
    at_once: int | None = None


_MODELS = {
    "iterative": Model("one client at a time", at_once=1),
    "fork": Model("process per client"),
    "prefork": Model("preforked processes, each accepts", pool=True),
    "thread": Model("thread per client"),
    "thread-pool": Model("pool of threads, each accepts", pool=True),
    "thread-queue": Model("pool of threads, fed through a queue", pool=True),
    "asyncio": Model("asyncio"),
}

#: The models of :class:`LabModel`, in the order of the classic comparison; all but the last need a
#: C compiler.
MODELS: tuple[str, ...] = tuple(_MODELS)


class LabModel(LabServer):
    """A server of one model. Raises :class:`PlanError` for an unknown model; :meth:`start` raises
    :class:`HostError` without a compiler.

    Its port speaks two protocols, selected by a connection's first byte: a decimal number and a
    line feed, answered by that many bytes; and HTTP/1.1 with keep-alive. It has no timeouts.
    ``workers``: the size of its pool, by default ``connections`` up to 1,000; further clients wait.
    """

    name = "model"
    version = asyncli.__version__
    default_size = 16
    prints_when_ready = True

    def __init__(self, model: str, *common: Any, **more: Any) -> None:
        if model not in _MODELS:
            raise PlanError(
                f"unknown server model {model!r}; write {', '.join(MODELS[:-1])} or {MODELS[-1]}"
            )
        super().__init__(*common, **more)
        if self._asked_workers is not None and self._asked_workers < 1:
            raise PlanError(
                f"a pool of {self._asked_workers} workers is too small; write 1 or more"
            )
        self.model = model
        self._pool = self._asked_workers or max(1, min(self._connections, _MAX_POOL))
        self._program: list[str] = []

    @property
    def display_name(self) -> str:
        """Its name in messages."""
        return f"the {self.model} server"

    @property
    def address_port(self) -> tuple[str, int]:
        """The address and port of both protocols."""
        return ports.reachable(self.address), self.port

    @property
    def label(self) -> str:
        """For example ``server model: thread per client``."""
        label = f"server model: {_MODELS[self.model].description}"
        if self.model == "asyncio" and find_spec("uvloop"):
            return f"{label} on uvloop"
        return label

    @property
    def workers(self) -> int:
        """The number of processes or threads of its pool; 1 without a pool."""
        return self._pool if _MODELS[self.model].pool else 1

    @property
    def at_once(self) -> int | None:
        """How many clients it serves at a time; None: only the host's limits bound that."""
        model = _MODELS[self.model]
        return self._pool if model.pool else model.at_once

    @property
    def connections(self) -> int:
        """How many clients it serves: as asked for, or as many as its pool."""
        return self._connections if self.at_once is None else self.at_once

    async def _prepare(self) -> None:
        if self.model == "asyncio":
            self._program = [sys.executable, "-m", "asyncli.lab.builtin", "--model"]
        else:
            source = Path(__file__).with_name("models.c")
            self._program = [str(await asyncio.to_thread(compiler.build, source)), self.model]

    def _argv(self) -> list[str]:
        flags = {"address": self.address, "port": self.port}
        if _MODELS[self.model].pool:
            flags["pool"] = self._pool
        return [*self._program, *(f"--{name}={value}" for name, value in flags.items())]
