"""The base class of lab servers: it starts a program as our child, waits until it is ready, and
removes all of its files.
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import string
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from asyncli.lab import child, ports
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.lab.resources import config_file
from asyncli.model.errors import HostError
from asyncli.model.protocol_table import PROTOCOLS, SCHEMES

_START_TRIES = 5
_START_S = 30.0
_ASK_TIMEOUT_S = 5.0
# A status page of thousands of processes fits.
_LONGEST_ANSWER = 1 << 20


class LabServer(ABC):
    """A server on ``address`` and ``port`` (0: a free one); ``async with`` starts and stops it.

    It is sized for ``connections`` with a heartbeat every ``keepalive_s`` seconds, in ``workers``
    processes or threads (default: the class chooses). ``keepalive_timeout_s`` defaults to ten times
    ``keepalive_s``, and at least an hour, so that a paused client keeps its connections. ``tls``:
    it speaks TLS, with a new certificate. ``http2``: it speaks HTTP/2. ``deflate``: it accepts
    permessage-deflate on WebSockets. ``scheme``: the scheme of its URL, for a server of several
    protocols.

    It runs in a temporary folder and ends when this process ends. It is ready when it prints a
    line, or when its status page answers on 127.0.0.1 and a port of its own.
    """

    #: The name in commands and messages, and in its folder's name.
    name: ClassVar[str]
    default_size: ClassVar[int] = 100_000
    #: The template of its configuration in configs/; "": none.
    template: ClassVar[str] = ""
    status_path: ClassVar[str] = ""
    #: The path of its page of metrics in Prometheus's text format, at the status page's port; "":
    #: none.
    metrics_path: str = ""
    #: How its runtime is asked for a collection (--collect): "auto", or a path at that port; "": it
    #: has none.
    collects_by: ClassVar[str] = ""
    speaks_tls: ClassVar[bool] = False
    speaks_http2: ClassVar[bool] = False
    speaks_proxy_protocol: ClassVar[bool] = False
    speaks_deflate: ClassVar[bool] = False
    #: It takes ``heap_bytes``, the most memory of its heap.
    limits_heap: ClassVar[bool] = False
    #: It takes ``pad_bytes``, which each connection takes more.
    pads_connections: ClassVar[bool] = False
    #: The scheme of its URL without TLS.
    scheme: str = "http"
    #: A second scheme that it accepts at the same port; "": none.
    also: str = ""
    #: Socket ends on this host per held connection: the client's and the server's; for a proxy also
    #: the two to its backend.
    ends: int = 2
    #: For a server of one process.
    descriptors_per_connection: ClassVar[int] = 1
    #: Plan keys that it needs, for example its heartbeat.
    plan_keys: ClassVar[Mapping[str, Any]] = {}
    #: It prints a line when it is ready.
    prints_when_ready: ClassVar[bool] = False
    #: Matches an error in its logs (without a match the last line is reported), and the prefix to
    #: cut: time stamps, process ids.
    error_pattern: ClassVar[re.Pattern[str] | None] = None
    prefix_pattern: ClassVar[re.Pattern[str]] = re.compile("^$")
    #: Files to search for errors, in this order.
    log_names: ClassVar[tuple[str, ...]] = ("stderr",)

    def __init__(
        self,
        connections: int | None = None,
        port: int = 0,
        keepalive_s: float = 60.0,
        address: str = "127.0.0.1",
        workers: int | None = None,
        *,
        keepalive_timeout_s: int | None = None,
        tls: bool = False,
        http2: bool = False,
        deflate: bool = False,
        scheme: str | None = None,
    ) -> None:
        if scheme is not None:
            self.scheme = scheme
        self.tls = tls
        self.http2 = http2
        self.deflate = deflate
        ports.family_of(address)
        self._connections = connections or self.default_size
        self.address = address
        self.port = port
        self.status_port = 0
        self._asked_port = port
        self._asked_workers = workers
        self._workers = 0
        if keepalive_timeout_s is None:
            keepalive_timeout_s = max(3600, math.ceil(10 * keepalive_s))
        self._timeout_s = keepalive_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._complaints: tuple[str, ...] = ()

    @property
    def connections(self) -> int:
        """The number of connections it is sized for."""
        return self._connections

    @property
    def url(self) -> str:
        """The URL for clients."""
        return url_of(
            self.scheme, ports.host_port(ports.reachable(self.address), self.port), self.tls
        )

    @property
    def authority(self) -> Path | None:
        """The PEM file of the authority that signed its certificate, which exists while it runs;
        None without TLS.
        """
        if not self.tls:
            return None
        return self._file("authority.pem")

    @property
    def status_url(self) -> str | None:
        """The URL of its status page; None: it has none."""
        if not self.status_path:
            return None
        return f"http://127.0.0.1:{self.status_port}{self.status_path}"

    @property
    def metrics_url(self) -> str | None:
        """The URL of the page on which it reports its own metrics; None: it has none."""
        if not self.metrics_path:
            return None
        return f"http://127.0.0.1:{self.status_port}{self.metrics_path}"

    @property
    def collect(self) -> str | None:
        """How a soak asks its runtime for a collection (--collect); None: it has none."""
        if not self.collects_by.startswith("/"):
            return self.collects_by or None
        return f"http://127.0.0.1:{self.status_port}{self.collects_by}"

    @property
    def pid(self) -> int:
        """The process id of its main process; any other processes are its children."""
        if self._process is None:
            raise HostError(f"{self.display_name} is not running; start it first")
        return self._process.pid

    @property
    @abstractmethod
    def label(self) -> str:
        """Name and version, shown beside its figures: ``nginx/1.22.1`` or ``built-in server``."""

    @property
    def workers(self) -> int:
        """The number of its worker processes, or of threads for a server of one process; 0 before
        the start.
        """
        return self._workers

    @property
    def version(self) -> str:
        """The version alone."""
        return self.label.partition("/")[2].partition(" ")[0]

    @property
    def display_name(self) -> str:
        """Its name in messages."""
        return f"the lab {self.name}"

    @property
    def config_path(self) -> Path:
        """The rendered configuration file, which exists while the server runs."""
        return self._file(self.template)

    @property
    def error_log(self) -> Path | None:
        """Its error log, which exists while it runs; None: it writes none."""
        if not self.template:
            return None
        return self._file("error.log")

    @property
    def complaints(self) -> tuple[str, ...]:
        """The lines of its stderr, also after it ended."""
        if self._folder is None:
            return self._complaints
        return tuple(
            self._file("stderr").read_text(encoding="utf-8", errors="replace").splitlines()
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it and wait until all workers are ready. Raises :class:`HostError` after 30 s."""
        if self._process is not None:
            return
        await self._prepare()
        if self._asked_port:
            ports.require_free(self.address, self._asked_port)
        for attempt in range(_START_TRIES):
            try:
                await self._start_once()
                return
            except _PortTakenError as error:
                # Another process took the port meanwhile; draw another unless the caller chose this
                # one.
                if self._asked_port or attempt == _START_TRIES - 1:
                    raise HostError(str(error)) from None

    async def stop(self) -> None:
        """Stop it (SIGTERM, after 5 s SIGKILL) and remove its files. Safe to repeat."""
        try:
            if self._process is not None:
                await child.end(self._process)
        finally:
            if self._process is not None and self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None
            if self._folder is not None:
                self._complaints = self.complaints if self._file("stderr").exists() else ()
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    # For subclasses.

    async def _prepare(self) -> None:  # noqa: B027 (optional)
        """Find and size the program. Raises :class:`HostError`."""

    @abstractmethod
    def _argv(self) -> list[str]:
        """The program's absolute path, and arguments that keep it in the foreground."""

    def _values(self) -> Mapping[str, object]:
        """The values of the template's ``$`` variables."""
        return {}

    def _files(self) -> Mapping[str, bytes]:
        """Further files of its folder, by name."""
        return {}

    async def _is_ready(self) -> bool:
        """Whether its status page answers, and is not another program's page."""
        return True

    def _workers_ready(self) -> bool:
        """Whether each worker is ready; True if that cannot be known."""
        return True

    def _require_descriptors(self, own: int) -> None:
        """Raise :class:`HostError` if one process, which needs ``own`` descriptors itself, cannot
        hold the connections.
        """
        nofile = descriptor_limit()
        limit = max(0, nofile - own) // self.descriptors_per_connection
        if self.connections > limit:
            raise HostError(
                f"{self.name} is one process and holds at most {limit:,} connections with "
                f"{nofile:,} descriptors, not {self.connections:,}; ask for fewer (-c {limit}) or "
                "raise the hard limit (ulimit -Hn, LimitNOFILE=)"
            )

    async def _start_once(self) -> None:
        if self._asked_port:
            self.port = self._asked_port
            self.status_port = ports.status_port_after(self._asked_port)
        else:
            self.port, self.status_port = ports.free_pair(self.address)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f"asyncli-{self.name}-"))
            # Workers may run as another user.
            self._folder.chmod(0o755)
            for file_name, content in self._files().items():
                self._file(file_name).write_bytes(content)
            if self.tls:
                self._write_certificate()
            if self.template:
                self.config_path.write_text(self._config(), encoding="utf-8")
            stdout = subprocess.PIPE if self.prints_when_ready else subprocess.DEVNULL
            with self._file("stderr").open("wb") as stderr:
                self._process = child.spawn(
                    self._argv(),
                    stdout=stdout,
                    stderr=stderr,
                    cwd=self._folder,
                    env=child.import_environment(),
                )
            if self.prints_when_ready:
                await self._wait_for_line()
            else:
                await self._wait_for_workers()
        except OSError as error:
            await self.stop()
            raise HostError(
                f"{self.display_name} could not be started ({error}); TMPDIR must be a folder "
                f"that can be written, and {self._argv()[0]} a program that can be run"
            ) from None
        except BaseException:
            await self.stop()
            raise

    def _write_certificate(self) -> None:
        from asyncli.lab.certificate import issue

        issued = issue(ports.reachable(self.address))
        self._file("authority.pem").write_bytes(issued.authority)
        self._file("server.pem").touch(mode=0o600)
        # Certificate and key in one file, as HAProxy requires; the others accept it too.
        self._file("server.pem").write_bytes(issued.certificate + issued.key)

    def _config(self) -> str:
        """The text of the configuration."""
        template = string.Template(config_file(self.template).read_text(encoding="utf-8"))
        try:
            return template.substitute(self._values())
        except (KeyError, ValueError) as error:
            raise HostError(
                f"configs/{self.template}: asyncli has no value for {error}; write $$ for a "
                "dollar sign"
            ) from None

    async def _wait_for_line(self) -> None:
        """Wait until it prints a line."""
        assert self._process is not None
        line = await child.first_line(self._process, _START_S)
        if line is None:
            raise HostError(
                f"{self.display_name} is not ready after {_START_S:.0f} s; look at the host's load"
            )
        if not line:
            raise self._start_error()

    async def _wait_for_workers(self) -> None:
        """Wait until every worker is ready and the status page answers."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        process = self._process
        deadline = loop.time() + _START_S
        all_ready = await child.until(
            lambda: process.poll() is not None or self._workers_ready(), _START_S
        )
        while process.poll() is None and loop.time() < deadline:
            if await self._is_ready():
                if not all_ready:
                    raise HostError(
                        f"{self.display_name} has not started its {self.workers} workers within "
                        f"{_START_S:.0f} s: {self._first_error()}; ask for fewer connections, or "
                        "look at the host's load"
                    )
                return
            await asyncio.sleep(0.01)
        if process.poll() is None:
            raise HostError(
                f"{self.display_name} does not answer on 127.0.0.1:{self.status_port} after "
                f"{_START_S:.0f} s: {self._first_error()}; look for a firewall rule on loopback, "
                "or at the host's load"
            )
        raise self._start_error()

    def _start_error(self) -> HostError:
        """The error for a process that ended during its start, with the reason it printed."""
        complaint = self._first_error()
        if "address already in use" in complaint.lower() or "(98" in complaint:
            return _PortTakenError(
                f"{self.display_name} did not start: {complaint}; stop what uses the port, or use "
                "--port 0"
            )
        remedy = "see the host's limits"
        if self.template:
            remedy = f"see configs/{self.template}, or use the built-in server"
        return HostError(f"{self.display_name} did not start: {complaint}; {remedy}")

    def _first_error(self) -> str:
        """The first line of its logs that matches ``error_pattern``, else the last one, without
        ``prefix_pattern``.
        """
        for name in self.log_names:
            lines = self._log_lines(name)
            if lines:
                return self.prefix_pattern.sub("", self._error_in(lines)).strip()
        status = self._process.poll() if self._process else None
        return f"no error was printed (exit status {status})"

    def _log_lines(self, name: str) -> list[str]:
        """The filled lines of a log; none if it cannot be read."""
        try:
            text = self._file(name).read_text(encoding="utf-8", errors="replace")
        except (OSError, HostError):
            return []
        # A line that ends in a colon continues in the next one.
        lines = re.sub(r":\n\s*", ": ", text).splitlines()
        return [line for line in lines if line.strip()]

    def _error_in(self, lines: list[str]) -> str:
        if self.error_pattern is not None:
            for line in lines:
                if self.error_pattern.search(line):
                    return line
        return lines[-1]

    def _file(self, name: str) -> Path:
        if self._folder is None:
            raise HostError(f"{self.display_name} is not running; start it first")
        return self._folder / name


class _PortTakenError(HostError):
    """Another process took the port after it was found free."""


def url_of(scheme: str, place: str, tls: bool) -> str:
    """The URL of a server at ``place`` (host:port)."""
    return f"{PROTOCOLS[SCHEMES[scheme][0]].schemes[tls]}://{place}/"


def backlog() -> int:
    """The length of listen queues: 4,096, or net.core.somaxconn if that is less (the kernel
    truncates to it).
    """
    return min(4096, number_in("/proc/sys/net/core/somaxconn") or 4096)


def quoted(text: Path | str) -> str:
    """``text`` as a quoted argument of an nginx or Apache directive."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


async def ask(port: int, path: str, address: str = "127.0.0.1", version: str = "1.0") -> bytes:
    """The response of a port of this host to a GET of this version of HTTP, head and body, within
    5 s; b"" without a response.
    """
    answer = b""
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                host = ports.host_port(address, port)
                head = (f"GET {path} HTTP/{version}", f"Host: {host}", "Connection: close")
                writer.write("".join(f"{line}\r\n" for line in (*head, "")).encode())
                while len(answer) < _LONGEST_ANSWER:
                    part = await reader.read(65536)
                    if not part:
                        break
                    answer += part
            finally:
                writer.close()
    except (OSError, TimeoutError):
        pass
    return answer
