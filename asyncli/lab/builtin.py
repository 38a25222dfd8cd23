"""The built-in server as a lab server: for hosts without nginx. ``python -m asyncli.lab.builtin`` starts it by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import asyncli
from asyncli.errors import HostError
from asyncli.lab import child
from asyncli.lab.server import OwnServer, outlast

_START_S = 30.0


class LabBuiltin(OwnServer):
    """asyncli's own asyncio server, with the interface of :class:`~asyncli.lab.nginx.LabNginx`.

    Its processes end when their owner does: by the pipe to it, and by the parent-death signal. Its memory and CPU are
    those of Python, so ``label`` ("built-in server") belongs wherever its numbers appear.
    """

    label = "built-in server"
    called = f"the {label}"

    def __init__(
        self,
        connections: int = 100_000,
        port: int = 0,
        keepalive_s: float = 60.0,
        address: str = "127.0.0.1",
        workers: int | None = None,
        *,
        keepalive_timeout_s: float | None = None,
        keepalive_requests: int = 10_000_000,
        keepalive_time_s: float = 3_600_000.0,
        worker_connections: int | None = None,
    ) -> None:
        super().__init__(address, port)
        self.connections = connections
        self.status_port = 0
        self._workers = workers or 0
        timeout_s = outlast(keepalive_s) if keepalive_timeout_s is None else keepalive_timeout_s
        self._flags = {
            "--address": address,
            "--port": port,
            "--connections": connections,
            "--workers": workers or 0,
            "--keepalive-timeout": timeout_s,
            "--client-header-timeout": max(60, timeout_s),
            "--keepalive-requests": keepalive_requests,
            "--keepalive-time": keepalive_time_s,
            "--worker-connections": worker_connections or 0,
        }
        self._stderr: IO[bytes] | None = None

    @property
    def status_url(self) -> str:
        """The URL of its stub_status page, on 127.0.0.1 and a port of its own."""
        return f"http://127.0.0.1:{self.status_port}/nginx_status"

    @property
    def version(self) -> str:
        """asyncli's."""
        return asyncli.__version__

    @property
    def workers(self) -> int:
        """Worker processes; 0 before the start unless they were asked for."""
        return self._workers

    @property
    def error_log(self) -> Path | None:
        """It keeps none."""
        return None

    async def start(self) -> None:
        """Start it and return when all its workers accept; at most 30 s, else :class:`HostError`."""
        if self._process is not None:
            return
        try:
            # No file to clean up after a kill: it has no name.
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
            self._process = child.spawn(
                [
                    sys.executable,
                    "-m",
                    "asyncli.lab.builtin",
                    *(f"{flag}={value}" for flag, value in self._flags.items()),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=child.finds_us(),
            )
            said = await self._first_line()
        except OSError as error:
            await self.stop()
            raise HostError(f"the built-in server could not be started ({error}); TMPDIR must be writable") from None
        except BaseException:
            await self.stop()
            raise
        if "error" in said:
            await self.stop()
            raise HostError(str(said["error"]))
        self.port, self.status_port, self._workers = said["port"], said["status_port"], said["workers"]

    async def stop(self) -> None:
        """End it with all its processes. Safe to repeat."""
        try:
            if self._process is not None:
                await child.end(self._process)
        finally:
            if self._process is not None:
                for pipe in (self._process.stdin, self._process.stdout):
                    if pipe is not None:
                        pipe.close()
            if self._stderr is not None:
                self._stderr.close()
            self._process = self._stderr = None

    async def _first_line(self) -> dict[str, Any]:
        """The line of JSON that it prints when it is ready, or when it cannot be."""
        assert self._process is not None
        text = await child.first_line(self._process, _START_S)
        if text is None:
            raise HostError(f"the built-in server is not ready after {_START_S:.0f} s; look at the host's load")
        try:
            said: dict[str, Any] = json.loads(text)
        except ValueError:
            raise HostError(f"the built-in server did not start: {self._last_words()}") from None
        return said

    def _last_words(self) -> str:
        assert self._stderr is not None
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    from asyncli.lab.serve import main

    sys.exit(main())
