"""The built-in server as a lab server: for hosts without nginx. ``python -m asyncli.lab.builtin`` starts it by hand."""

from __future__ import annotations

import os
import sys

import asyncli
from asyncli.lab.binary import descriptor_limit
from asyncli.lab.program import LabServer, outlast
from asyncli.lab.serve import main, workers_for


class LabBuiltin(LabServer):
    """asyncli's own asyncio server, with the interface of :class:`~asyncli.lab.nginx.LabNginx`.

    Its memory and CPU are those of Python, so ``label`` ("built-in server") belongs wherever its numbers appear.
    """

    name = "builtin"
    label = called = "built-in server"
    version = asyncli.__version__
    status_path = "/nginx_status"
    prints_when_ready = True

    def __init__(
        self,
        connections: int = 100_000,
        port: int = 0,
        keepalive_s: float = 60.0,
        address: str = "127.0.0.1",
        workers: int | None = None,
        *,
        keepalive_timeout_s: int | None = None,
        keepalive_requests: int = 10_000_000,
        keepalive_time_s: float = 3_600_000.0,
        worker_connections: int | None = None,
    ) -> None:
        super().__init__(connections, port, address)
        self._workers = workers or 0
        timeout_s = outlast(keepalive_s, keepalive_timeout_s)
        self._flags = {
            "keepalive-timeout": timeout_s,
            "client-header-timeout": max(60, timeout_s),
            "keepalive-requests": keepalive_requests,
            "keepalive-time": keepalive_time_s,
            "worker-connections": worker_connections or 0,
        }

    @property
    def workers(self) -> int:
        """Worker processes; 0 before the start unless they were asked for."""
        return self._workers

    async def _prepare(self) -> None:
        self._workers = self._workers or workers_for(self.connections, descriptor_limit(), len(os.sched_getaffinity(0)))

    def _argv(self) -> list[str]:
        flags = {"address": self.address, "port": self.port, "status-port": self.status_port, "workers": self._workers}
        words = (f"--{flag}={value}" for flag, value in (flags | self._flags).items())
        return [sys.executable, "-m", "asyncli.lab.builtin", *words]


if __name__ == "__main__":
    sys.exit(main())
