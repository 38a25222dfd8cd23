"""A private redis or memcached for a soak of raw TCP: each is one process, and answers a line with a line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import ClassVar

from asyncli.errors import HostError
from asyncli.expected import parse_expected, unescaped
from asyncli.lab import ports
from asyncli.lab.base import LabServer, backlog
from asyncli.lab.executables import descriptor_limit, programs

# Listeners, pipes, logs and epoll sets; redis keeps 32 of its limit, and memcached counts some 30 as connections.
_OWN_DESCRIPTORS = 64
_ANSWER_S = 1.0


class _LabStore(LabServer):
    """It keeps nothing on disk, and its descriptors bound it. It is ready when it answers a heartbeat."""

    scheme = "tcp"
    usual = 10_000
    #: The program, what it says of its version, and the package that has it.
    program: ClassVar[str]
    version_flag: ClassVar[str]
    says: ClassVar[re.Pattern[str]]
    package: ClassVar[str]
    _path, _version_text = "", ""

    @property
    def label(self) -> str:
        """For example ``redis/7.0.15``."""
        return f"{self.name}/{self._version_text}" if self._version_text else self.name

    async def _prepare(self) -> None:
        found = ((path, self.says.search(text)) for path, text in programs(self.version_flag, self.program))
        there = next(((path, match[1]) for path, match in found if match), None)
        if there is None:
            raise HostError(f"{self.name}: no {self.program} on this host; install it (apt-get install {self.package})")
        self._path, self._version_text = there
        self._workers, nofile = 1, descriptor_limit()
        self._require_room(nofile - _OWN_DESCRIPTORS, nofile)

    async def _answers(self) -> bool:
        answer, expected = b"", parse_expected(self.plan_keys["expect"])
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(ports.reachable(self.address), self.port)
                try:
                    writer.write(unescaped(self.plan_keys["send"]))
                    while expected.end_in(answer) is None and (more := await reader.read(4096)):
                        answer += more
                    return expected.end_in(answer) is not None
                finally:
                    writer.close()
        return False


class LabRedis(_LabStore):
    """A redis that writes nothing down."""

    name, program, version_flag, package = "redis", "redis-server", "--version", "redis-server"
    says = re.compile(r"^Redis server v=(\S+)")
    plan_keys: ClassVar = {"send": r"PING\r\n", "expect": r"+PONG\r\n"}

    def _argv(self) -> list[str]:
        return [
            self._path, "--port", str(self.port), "--bind", self.address, "--maxclients",
            str(self.connections + _OWN_DESCRIPTORS), "--save", "", "--timeout", "0", "--tcp-backlog", str(backlog()),
            "--protected-mode", "no", "--loglevel", "warning",
        ]  # fmt: skip


class LabMemcached(_LabStore):
    """A memcached; its ``workers`` are threads, one a CPU."""

    name, program, version_flag, package = "memcached", "memcached", "-V", "memcached"
    says = re.compile(r"^memcached (\d\S*)")
    plan_keys: ClassVar = {"send": r"version\r\n", "expect": r"/^VERSION /"}

    async def _prepare(self) -> None:
        await super()._prepare()
        self._workers = self._asked_workers or len(os.sched_getaffinity(0))

    def _argv(self) -> list[str]:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        return [
            self._path, *user, "-l", self.address, "-p", str(self.port), "-U", "0", "-c",
            str(self.connections + _OWN_DESCRIPTORS), "-b", str(backlog()), "-t", str(self.workers),
        ]  # fmt: skip
