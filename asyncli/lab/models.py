"""The classic models of a Linux server as lab servers: one small program of ours in C (``models.c``), and one in asyncio."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

import asyncli
from asyncli.errors import HostError, PlanError
from asyncli.lab import child, compiler, ports
from asyncli.lab.server import OwnServer

_START_S = 30.0
_START_TRIES = 5
# A member of a pool holds one connection at a time. More of them than this is no pool any more but a model of its own.
_MOST_MEMBERS = 1_000


class Model(NamedTuple):
    """A model of a server: its ``words`` for a label, whether it has a ``pool``, how many it serves at once without one."""

    words: str
    pool: bool = False
    at_once: int | None = None


_KNOWN = {
    "iterative": Model("one client at a time", at_once=1),
    "fork": Model("process per client"),
    "prefork": Model("preforked processes, each accepts", pool=True),
    "thread": Model("thread per client"),
    "thread-pool": Model("pool of threads, each accepts", pool=True),
    "thread-queue": Model("pool of threads, fed through a queue", pool=True),
    "asyncio": Model("asyncio"),
}

#: What :class:`LabModel` knows, in the order of the classic comparison; all but the last need a C compiler once.
MODELS: tuple[str, ...] = tuple(_KNOWN)


class LabModel(OwnServer):
    """A server of one model, on ``address`` and ``port`` (0: a free one). ``async with`` starts it and ends it.

    Its one port speaks two protocols, told apart by the first byte of a connection: a decimal number of bytes and a line
    feed, answered by that many bytes; and HTTP/1.1 with keep-alive for GET, HEAD and POST. It has no timeouts, so
    ``keepalive_s`` (seconds) changes nothing. ``workers`` is the size of its pool where it has one, by default
    ``connections`` up to 1,000: more clients than that wait. ``stack_bytes`` is that of its threads, by default the system's.

    Raises :class:`PlanError` for an unknown model; :meth:`start` raises :class:`HostError` without a C compiler.
    """

    #: It has no status page.
    status_url: str | None = None
    #: It keeps none: see :attr:`complaints`.
    error_log: Path | None = None

    def __init__(
        self,
        model: str,
        connections: int = 16,
        port: int = 0,
        keepalive_s: float = 60.0,
        address: str = "127.0.0.1",
        workers: int | None = None,
        *,
        stack_bytes: int | None = None,
    ) -> None:
        if model not in _KNOWN:
            raise PlanError(f"unknown server model {model!r}; write {', '.join(MODELS[:-1])} or {MODELS[-1]}")
        if workers is not None and workers < 1:
            raise PlanError(f"{workers} workers are no pool; write 1 or more")
        super().__init__(address, port)
        self.model = model
        self._asked_port = port
        self._pool = workers or max(1, min(connections, _MOST_MEMBERS))
        self._stack_bytes = stack_bytes
        self._connections = connections
        self._program: list[str] = []
        self._stderr: IO[bytes] | None = None
        self._complaints: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """In messages."""
        return f"the {self.model} server"

    @property
    def address_port(self) -> tuple[str, int]:
        """Where to connect to, for either protocol."""
        return ports.reachable(self.address), self.port

    @property
    def exe(self) -> str:
        """The program's path, the interpreter's for asyncio; empty before the first start."""
        return self._program[0] if self._program else ""

    @property
    def version(self) -> str:
        """asyncli's."""
        return asyncli.__version__

    @property
    def label(self) -> str:
        """For example ``server model: thread per client``."""
        on_uvloop = " on uvloop" if self.model == "asyncio" and find_spec("uvloop") else ""
        return f"server model: {_KNOWN[self.model].words}{on_uvloop}"

    @property
    def workers(self) -> int:
        """The processes or threads of its pool; 1 where it has none."""
        return self._pool if _KNOWN[self.model].pool else 1

    @property
    def at_once(self) -> int | None:
        """How many clients it serves at a time, the others waiting; None where only the host's limits bound it."""
        return self._pool if _KNOWN[self.model].pool else _KNOWN[self.model].at_once

    @property
    def connections(self) -> int:
        """How many it holds and serves: as many as were asked for, or as it has members."""
        return self._connections if self.at_once is None else self.at_once

    @property
    def complaints(self) -> tuple[str, ...]:
        """The lines it wrote about its troubles: since its start, or in its last run."""
        if self._stderr is None:
            return self._complaints
        # Its writes move the offset that we share with it, so leave that alone.
        text = os.pread(self._stderr.fileno(), 65_536, 0)
        return tuple(text.decode(errors="replace").splitlines())

    async def start(self) -> None:
        """Build it where this is its first use, start it, and return when it listens with its pool ready.

        :class:`HostError` after 30 s, for a port or address that cannot be had, and for want of a compiler.
        """
        if self._process is not None:
            return
        if self.model == "asyncio":
            self._program = [sys.executable, "-m", "asyncli.lab.model_asyncio"]
        else:
            source = Path(__file__).with_name("models.c")
            self._program = [str(await asyncio.to_thread(compiler.build, source)), self.model]
        if self._asked_port:
            ports.require_free(self.address, self._asked_port)
        for attempt in range(_START_TRIES):
            # Drawn below the clients' ports, and not by the kernel from among them.
            self.port = self._asked_port or ports.free_pair(self.address)[0]
            try:
                await self._start_once()
                return
            except HostError as error:
                # Somebody may take a port between our look and the server's bind. One drawn by us is drawn again.
                taken = os.strerror(errno.EADDRINUSE) in str(error)
                if not taken or self._asked_port or attempt == _START_TRIES - 1:
                    raise

    async def stop(self) -> None:
        """End it with all its processes (SIGTERM, after 5 s SIGKILL). Safe to repeat."""
        try:
            if self._process is not None:
                await child.end(self._process)
        finally:
            if self._process is not None and self._process.stdout is not None:
                self._process.stdout.close()
            if self._stderr is not None:
                self._complaints = self.complaints
                self._stderr.close()
            self._process = self._stderr = None

    async def _start_once(self) -> None:
        flags = {"address": self.address, "port": self.port}
        if _KNOWN[self.model].pool:
            flags["pool"] = self._pool
        if self._stack_bytes is not None and self.model != "asyncio":
            flags["stack"] = self._stack_bytes
        try:
            # No file to clean up after a kill: it has no name.
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
            self._process = child.spawn(
                [*self._program, *(f"--{name}={value}" for name, value in flags.items())],
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=child.finds_us(),
            )
            line = await child.first_line(self._process, _START_S)
            if line is None:
                raise HostError(f"{self.called} is not ready after {_START_S:.0f} s; look at the host's load")
            if not line.isdigit():
                said = self.complaints
                raise HostError(f"{self.called} did not start: {said[-1] if said else 'it said nothing'}")
        except OSError as error:
            await self.stop()
            raise HostError(f"{self.called} could not be started ({error}); TMPDIR must be writable") from None
        except BaseException:
            await self.stop()
            raise
