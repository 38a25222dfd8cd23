"""The built-in server as a lab server, for hosts without nginx. ``python -m asyncli.lab.builtin``
starts it by hand.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import asyncli
from asyncli.lab.base import LabServer
from asyncli.lab.builtin_process import main
from asyncli.lab.executables import descriptor_limit, size


class LabBuiltin(LabServer):
    """asyncli's own asyncio server. Its memory and CPU are Python's: its ``label`` must be shown
    with its figures.
    """

    name = "builtin"
    label = display_name = "built-in server"
    version = asyncli.__version__
    status_path = "/nginx_status"
    prints_when_ready = True
    speaks_tls = True

    def __init__(
        self,
        *common: Any,
        keepalive_requests: int = 10_000_000,
        keepalive_time_s: float = 3_600_000.0,
        worker_connections: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*common, **more)
        self._flags = {
            "keepalive-timeout": self._timeout_s,
            "client-header-timeout": max(60, self._timeout_s),
            "keepalive-requests": keepalive_requests,
            "keepalive-time": keepalive_time_s,
            "worker-connections": worker_connections or 0,
        }

    async def _prepare(self) -> None:
        nofile = descriptor_limit()
        cpus = len(os.sched_getaffinity(0))
        self._workers = (
            self._asked_workers
            or size(self.connections, nofile=nofile, cpus=cpus, of=self.display_name).workers
        )

    def _argv(self) -> list[str]:
        flags = {
            "address": self.address,
            "port": self.port,
            "status-port": self.status_port,
            "workers": self._workers,
        }
        words = [f"--{flag}={value}" for flag, value in (flags | self._flags).items()]
        if self.tls:
            words.append(f"--certificate={self._file('server.pem')}")
        return [sys.executable, "-m", "asyncli.lab.builtin", *words]


if __name__ == "__main__":
    sys.exit(main())
