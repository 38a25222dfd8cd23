"""A private nginx for a soak: configured for very many long connections, started, and gone without a trace."""

from __future__ import annotations

import asyncio
import fcntl
import grp
import math
import os
import pwd
import re
import shutil
import string
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncli.errors import HostError
from asyncli.lab import child, ports
from asyncli.lab.binary import NginxBinary, Sizes, descriptor_limit, find_nginx, size
from asyncli.lab.configs import config_file

__all__ = ["LabNginx", "NginxBinary", "find_nginx"]

_PREFIX = "asyncli-nginx-"
_LOCK = "lock"
# A directory younger than this may be one that its owner has not locked yet.
_STALE_S = 60.0
_START_TRIES = 5
_START_S = 30.0
_QUESTION_S = 5.0


class LabNginx:
    """An nginx of our own on ``address``, cut for ``connections`` that beat every ``keepalive_s`` seconds or oftener.

    ``async with LabNginx(connections=100_000) as server`` starts it and, at the end, stops it and removes its files. It
    is a child in the foreground that dies with us. Raises :class:`HostError` if there is no nginx or it does not start.

    The keyword arguments after ``workers`` are for provoking what kills connections; leave them out for a soak.
    """

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
        keepalive_time_s: int = 3_600_000,
        worker_connections: int | None = None,
        binary: NginxBinary | None = None,
    ) -> None:
        ports.family_of(address)
        self.connections = connections
        self.address = address
        self.port = port
        self.status_port = 0
        self._asked_port = port
        self._asked_workers = workers
        # Ten heartbeats of head room, and never below an hour: a paused client must not lose its connections here.
        self._timeout_s = max(3600, math.ceil(10 * keepalive_s)) if keepalive_timeout_s is None else keepalive_timeout_s
        self._requests = keepalive_requests
        self._time_s = keepalive_time_s
        self._slots = worker_connections
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._lock = -1
        self.sizes: Sizes | None = None

    @property
    def url(self) -> str:
        """The URL to aim at."""
        return f"http://{ports.host_port(ports.reachable(self.address), self.port)}/"

    @property
    def status_url(self) -> str:
        """The URL of its stub_status page, on 127.0.0.1 and a port of its own."""
        return f"http://127.0.0.1:{self.status_port}/nginx_status"

    @property
    def pid(self) -> int:
        """The master's process id; its workers are its children."""
        if self._process is None:
            raise HostError("the lab nginx is not running; start it first")
        return self._process.pid

    @property
    def exe(self) -> str:
        """The program's path."""
        return self._binary.path if self._binary else ""

    @property
    def config_path(self) -> Path:
        """The rendered configuration; exists while the server runs."""
        return self._file("nginx.conf")

    @property
    def error_log(self) -> Path:
        """Its error log, level warn; exists while the server runs."""
        return self._file("error.log")

    @property
    def version(self) -> str:
        """For example ``1.22.1``."""
        return self.label.partition("/")[2]

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1``."""
        return self._binary.version_text if self._binary else "nginx"

    @property
    def workers(self) -> int:
        """Worker processes; 0 before the start."""
        return self.sizes.workers if self.sizes else 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it and return when it answers with all its workers ready; at most 30 s, else :class:`HostError`."""
        if self._process is not None:
            return
        self._binary = self._binary or find_nginx()
        if self._binary is None:
            raise HostError("no nginx on this host; install it (apt-get install nginx) or use the built-in server")
        if not self._binary.stub_status:
            raise HostError(
                f"{self._binary.path} is built without stub_status; install the distribution's nginx, or use the built-in server"
            )
        self.sizes = size(
            self.connections,
            nofile=descriptor_limit(),
            cpus=len(os.sched_getaffinity(0)),
            workers=self._asked_workers,
        )
        if self._slots is not None:
            self.sizes = self.sizes._replace(slots=self._slots)
        remove_leftovers()
        for attempt in range(_START_TRIES):
            try:
                await self._start_once()
                return
            except _PortTakenError as error:
                # Between our look and nginx's bind somebody took a port. With one drawn by us, draw again.
                if self._asked_port or attempt == _START_TRIES - 1:
                    raise HostError(str(error)) from None

    async def stop(self) -> None:
        """End it (SIGTERM, after 5 s SIGKILL for all its processes) and remove its files. Safe to repeat."""
        try:
            if self._process is not None:
                await child.end(self._process)
        finally:
            self._process = None
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    async def _start_once(self) -> None:
        assert self._binary is not None
        if self._asked_port:
            ports.require_free(self.address, self._asked_port)
            self.port, self.status_port = self._asked_port, ports.free_pair("127.0.0.1")[1]
        else:
            self.port, self.status_port = ports.free_pair(self.address)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            # Workers may run as another user than the one that may read our temporary files.
            self._folder.chmod(0o755)
            self._lock = _locked(self._folder)
            self.config_path.write_text(self._config(), encoding="utf-8")
            argv = [self._binary.path, "-p", f"{self._folder}/", "-c", str(self.config_path)]
            if self._binary.version >= (1, 19, 5):
                # Else it complains about the compiled-in log, which an ordinary user may not write.
                argv += ["-e", str(self.error_log)]
            with self._file("stderr").open("wb") as stderr:
                self._process = child.spawn(argv, stderr=stderr, cwd=self._folder, keep=(self._lock,))
            await self._ready()
        except OSError as error:
            await self.stop()
            raise HostError(
                f"nginx could not be started ({error}); TMPDIR must be a folder that can be written, "
                f"and {self._binary.path} a program that can be run"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def _ready(self) -> None:
        """Wait until every worker runs its loop and the status page answers."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_S
        process = self._process
        all_ready = await child.until(lambda: process.poll() is not None or self._workers_ready(), _START_S)
        while process.poll() is None and loop.time() < deadline:
            if await _answers(self.status_port):
                if not all_ready:
                    raise HostError(
                        f"nginx has not started its {self.workers} workers within {_START_S:.0f} s: "
                        f"{self._complaint()}; ask for fewer connections, or look at the host's load"
                    )
                return
            await asyncio.sleep(0.01)
        complaint = self._complaint()
        if process.poll() is None:
            raise HostError(
                f"nginx does not answer on 127.0.0.1:{self.status_port} after {_START_S:.0f} s: {complaint}; "
                "look for a firewall rule on loopback, or at the host's load"
            )
        if "Address already in use" in complaint or "(98" in complaint:
            raise _PortTakenError(f"nginx did not start: {complaint}; stop what uses the port, or use --port 0")
        raise HostError(f"nginx did not start: {complaint}; see configs/nginx.conf, or use the built-in server")

    def _workers_ready(self) -> bool:
        """Whether each worker has set itself up: nginx names a process "nginx: worker process" only when it has.

        True too where the kernel does not list children (CONFIG_PROC_CHILDREN): then the status page must suffice.
        """
        assert self._process is not None
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return True
        return sum(map(_is_worker, children)) >= self.workers

    def _config(self) -> str:
        """The text of the configuration."""
        assert self.sizes is not None
        assert self._binary is not None
        modern = self._binary.version >= (1, 19, 10)
        values = {
            "error_log": _quoted(self.error_log),
            "user_line": _user_line(),
            "workers": self.sizes.workers,
            "nofile": self.sizes.nofile,
            "slots": self.sizes.slots,
            "temp_paths": _temp_paths(self._binary.without),
            "keepalive_timeout": self._timeout_s,
            "keepalive_requests": self._requests,
            # Not shorter than nginx's own when a test provokes a short keepalive_timeout.
            "header_timeout": max(60, self._timeout_s),
            "keepalive_time": f"keepalive_time {self._time_s}s;" if modern else "# (not in this version)",
            "status_keepalive_time": "keepalive_time 1000h;" if modern else "# (keepalive_time: not in this version)",
            "listen": ports.host_port(self.address, self.port),
            "backlog": backlog(),
            "status_port": self.status_port,
        }
        template = string.Template(config_file("nginx.conf").read_text(encoding="utf-8"))
        try:
            return template.substitute(values)
        except (KeyError, ValueError) as error:
            raise HostError(
                f"configs/nginx.conf: {error} is no value that asyncli fills in; write $$ for a dollar sign"
            ) from None

    def _complaint(self) -> str:
        """The first line of what it wrote about its trouble, without time stamps."""
        for name in ("error.log", "stderr"):
            try:
                text = self._file(name).read_text(encoding="utf-8", errors="replace")
            except (OSError, HostError):
                continue
            lines = text.splitlines()
            grave = [line for line in lines if re.search(r"\[(emerg|alert|crit|error)\]", line)]
            if lines:
                return re.sub(r"^[\d/]+ [\d:]+ |^nginx: |\d+#\d+: (\*\d+ )?", "", (grave or lines)[0]).strip()
        return f"it said nothing (exit status {self._process.poll() if self._process else None})"

    def _file(self, name: str) -> Path:
        if self._folder is None:
            raise HostError("the lab nginx is not running; start it first")
        return self._folder / name


class _PortTakenError(HostError):
    """The port was free when we looked and is not any more."""


def backlog() -> int:
    """The listeners' queue: 4,096, or net.core.somaxconn where that is less (the kernel would cut it anyway)."""
    try:
        return min(4096, int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 4096


def remove_leftovers() -> None:
    """Remove the files of lab servers whose owner was killed: those whose lock no asyncli and no nginx holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            facts = folder.lstat()
            if facts.st_uid != os.geteuid() or folder.is_symlink() or time.time() - facts.st_mtime < _STALE_S:
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def _locked(folder: Path) -> int:
    """A lock on the folder that lasts as long as we or the server hold the descriptor."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _is_worker(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"nginx: worker process")
    except OSError:
        return False


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _user_line() -> str:
    """As root the workers stay the user we are, instead of the one nginx was built for.

    For measuring: another user's memory map (PSS) cannot be read without CAP_SYS_PTRACE, which root lacks in most
    containers; and no user needs to exist but ours. It serves a constant on an address of ours: little to guard.
    """
    if os.geteuid() != 0:
        return "# (user: only root may set it; workers run as the user that started them)"
    try:
        us = pwd.getpwuid(0)
        return f"user {us.pw_name} {grp.getgrgid(us.pw_gid).gr_name};"
    except KeyError:
        return "user root root;"


def _temp_paths(without: frozenset[str]) -> str:
    """Temporary folders inside our own, for the modules that are there: the compiled-in ones belong to the system's."""
    optional = ("proxy", "fastcgi", "uwsgi", "scgi")
    names = ["client_body", *(name for name in optional if f"http_{name}_module" not in without)]
    return "".join(f"    {name}_temp_path {name}_temp;\n" for name in names)


async def _answers(port: int) -> bool:
    """Whether the status page on 127.0.0.1 answers with a status page."""
    try:
        async with asyncio.timeout(_QUESTION_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /nginx_status HTTP/1.0\r\n\r\n")
                answer = await reader.read(4096)
                while answer and b"Active connections" not in answer and (more := await reader.read(4096)):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b"Active connections" in answer
