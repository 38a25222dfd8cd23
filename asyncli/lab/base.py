"""The base of lab servers: a program that is started as our child, waited for, and removed without a trace."""

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

from asyncli.errors import HostError
from asyncli.lab import child, ports
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.lab.resources import config_file
from asyncli.protocol_table import PROTOCOLS, SCHEMES

_START_TRIES = 5
_START_S = 30.0
_QUESTION_S = 5.0
# Enough for a status page of thousands of processes.
_LONGEST_ANSWER = 1 << 20


class LabServer(ABC):
    """A server on ``address`` and ``port`` (0: a free one); ``async with`` starts it and ends it.

    It is sized for ``connections`` with a heartbeat every ``keepalive_s`` seconds, in ``workers`` processes or threads (default:
    as many as suit it). ``keepalive_timeout_s`` defaults to ten times ``keepalive_s``, and at least an hour, so that a paused
    client keeps its connections. ``tls``: it speaks TLS, with a new certificate. ``http2``: it speaks HTTP/2. ``deflate``: it
    grants permessage-deflate to WebSockets. ``scheme``: of its URL, where it speaks more than one protocol.

    It runs in a temporary folder and ends with us. It is ready when it prints a line, or when its status page answers, on
    127.0.0.1 and its own port.
    """

    #: What messages call it, and its folder is called after.
    name: ClassVar[str]
    #: Where ``connections`` is not given.
    usual: ClassVar[int] = 100_000
    #: Its configuration's template in configs/; "" where it has none.
    template: ClassVar[str] = ""
    status_path: ClassVar[str] = ""
    speaks_tls: ClassVar[bool] = False
    speaks_http2: ClassVar[bool] = False
    speaks_proxy_protocol: ClassVar[bool] = False
    speaks_deflate: ClassVar[bool] = False
    #: Of its URL, without TLS.
    scheme: str = "http"
    #: Another that it speaks at the same port; "" where there is none.
    also: str = ""
    #: Of each connection that it holds, on this host: the client's and its own, and a backend's where it is a proxy.
    ends: int = 2
    #: Of each connection, where it is one process.
    descriptors_each: ClassVar[int] = 1
    #: Keys of a plan for it, as what is sent as a heartbeat.
    plan_keys: ClassVar[Mapping[str, Any]] = {}
    #: Whether it prints a line when it is ready.
    prints_when_ready: ClassVar[bool] = False
    #: A serious line of its logs (else the last one counts), and the prefix to cut: time stamps, process ids.
    grave: ClassVar[re.Pattern[str] | None] = None
    stamp: ClassVar[re.Pattern[str]] = re.compile("^$")
    #: Where it complains, the most telling first.
    complains_in: ClassVar[tuple[str, ...]] = ("stderr",)

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
        self.tls, self.http2, self.deflate = tls, http2, deflate
        ports.family_of(address)
        self._connections = connections or self.usual
        self.address, self.port, self.status_port = address, port, 0
        self._asked_port, self._asked_workers, self._workers = port, workers, 0
        self._timeout_s = max(3600, math.ceil(10 * keepalive_s)) if keepalive_timeout_s is None else keepalive_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._complaints: tuple[str, ...] = ()

    # What it offers.

    @property
    def connections(self) -> int:
        """How many it is cut for."""
        return self._connections

    @property
    def url(self) -> str:
        """The URL to aim at."""
        return url_of(self.scheme, ports.host_port(ports.reachable(self.address), self.port), self.tls)

    @property
    def authority(self) -> Path | None:
        """With TLS the file of the authority that signed its certificate (PEM), which exists while it runs."""
        return self._file("authority.pem") if self.tls else None

    @property
    def status_url(self) -> str | None:
        """The URL of its status page; None where it has none."""
        return f"http://127.0.0.1:{self.status_port}{self.status_path}" if self.status_path else None

    @property
    def pid(self) -> int:
        """Its main process; the others are its children, or its threads."""
        if self._process is None:
            raise HostError(f"{self.called} is not running; start it first")
        return self._process.pid

    @property
    @abstractmethod
    def label(self) -> str:
        """What to call it wherever its numbers appear: ``nginx/1.22.1`` or ``built-in server``."""

    @property
    def workers(self) -> int:
        """Its worker processes, or threads where it is one process; 0 before the start."""
        return self._workers

    @property
    def version(self) -> str:
        """Its version without its name."""
        return self.label.partition("/")[2].partition(" ")[0]

    @property
    def called(self) -> str:
        """In messages."""
        return f"the lab {self.name}"

    @property
    def config_path(self) -> Path:
        """The rendered configuration; exists while the server runs."""
        return self._file(self.template)

    @property
    def error_log(self) -> Path | None:
        """Its error log, which exists while it runs; None where it keeps none."""
        return self._file("error.log") if self.template else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """The lines of its stderr, also after its end."""
        if self._folder is None:
            return self._complaints
        return tuple(self._file("stderr").read_text(encoding="utf-8", errors="replace").splitlines())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it and wait until all workers are ready, at most 30 s, else :class:`HostError`."""
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
                # Another process took the port since we looked; a port that we drew is drawn again.
                if self._asked_port or attempt == _START_TRIES - 1:
                    raise HostError(str(error)) from None

    async def stop(self) -> None:
        """End it (SIGTERM, after 5 s SIGKILL) and remove its files. Safe to repeat."""
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

    # What a subclass says.

    async def _prepare(self) -> None:  # noqa: B027 (some have nothing to find)
        """Find the program and size it; :class:`HostError` where that fails."""

    @abstractmethod
    def _argv(self) -> list[str]:
        """Program (an absolute path) and arguments that keep it in the foreground."""

    def _values(self) -> Mapping[str, object]:
        """The values of the template's words after a dollar sign."""
        return {}

    def _files(self) -> Mapping[str, bytes]:
        """Files beside the configuration, by name."""
        return {}

    async def _answers(self) -> bool:
        """Whether its status page answers, and is its status page."""
        return True

    def _workers_ready(self) -> bool:
        """Whether each worker is ready; true where that is unknown."""
        return True

    def _require_room(self, own: int) -> None:
        """It is one process, in which so many descriptors are no connections. Raises :class:`HostError`."""
        most = max(0, (nofile := descriptor_limit()) - own) // self.descriptors_each
        if self.connections > most:
            raise HostError(
                f"{self.name} is one process and holds at most {most:,} connections with {nofile:,} descriptors, not "
                f"{self.connections:,}; ask for fewer (-c {most}) or raise the hard limit (ulimit -Hn, LimitNOFILE=)"
            )

    # How it is done.

    async def _start_once(self) -> None:
        if self._asked_port:
            self.port, self.status_port = self._asked_port, ports.after(self._asked_port)
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
                self._process = child.spawn(self._argv(), stdout=stdout, stderr=stderr, cwd=self._folder, env=child.finds_us())
            await (self._printed() if self.prints_when_ready else self._answered())
        except OSError as error:
            await self.stop()
            raise HostError(
                f"{self.called} could not be started ({error}); TMPDIR must be a folder that can be written, "
                f"and {self._argv()[0]} a program that can be run"
            ) from None
        except BaseException:
            await self.stop()
            raise

    def _write_certificate(self) -> None:
        from asyncli.lab.certificate import issue

        issued = issue(ports.reachable(self.address))
        self._file("authority.pem").write_bytes(issued.authority)
        self._file("server.pem").touch(mode=0o600)
        # Certificate and key in one file, as HAProxy wants them; the others take it too.
        self._file("server.pem").write_bytes(issued.certificate + issued.key)

    def _config(self) -> str:
        """The text of the configuration."""
        template = string.Template(config_file(self.template).read_text(encoding="utf-8"))
        try:
            return template.substitute(self._values())
        except (KeyError, ValueError) as error:
            raise HostError(
                f"configs/{self.template}: {error} is no value that asyncli fills in; write $$ for a dollar sign"
            ) from None

    async def _printed(self) -> None:
        """Wait for its line."""
        assert self._process is not None
        line = await child.first_line(self._process, _START_S)
        if line is None:
            raise HostError(f"{self.called} is not ready after {_START_S:.0f} s; look at the host's load")
        if not line:
            raise self._not_started()

    async def _answered(self) -> None:
        """Wait until every worker runs its loop and the status page answers."""
        assert self._process is not None
        loop, process = asyncio.get_running_loop(), self._process
        deadline = loop.time() + _START_S
        all_ready = await child.until(lambda: process.poll() is not None or self._workers_ready(), _START_S)
        while process.poll() is None and loop.time() < deadline:
            if await self._answers():
                if not all_ready:
                    raise HostError(
                        f"{self.called} has not started its {self.workers} workers within {_START_S:.0f} s: "
                        f"{self._complaint()}; ask for fewer connections, or look at the host's load"
                    )
                return
            await asyncio.sleep(0.01)
        if process.poll() is None:
            raise HostError(
                f"{self.called} does not answer on 127.0.0.1:{self.status_port} after {_START_S:.0f} s: {self._complaint()}; "
                "look for a firewall rule on loopback, or at the host's load"
            )
        raise self._not_started()

    def _not_started(self) -> HostError:
        """It has ended: what it complained of."""
        complaint = self._complaint()
        if "Address already in use" in complaint or "(98" in complaint:
            return _PortTakenError(f"{self.called} did not start: {complaint}; stop what uses the port, or use --port 0")
        where = f"see configs/{self.template}, or use the built-in server" if self.template else "see the host's limits"
        return HostError(f"{self.called} did not start: {complaint}; {where}")

    def _complaint(self) -> str:
        """The first serious line of its errors, else the last one, without time stamps."""
        for name in self.complains_in:
            try:
                text = self._file(name).read_text(encoding="utf-8", errors="replace")
            except (OSError, HostError):
                continue
            # A line that ends in a colon goes on in the next one.
            lines = [line for line in re.sub(r":\n\s*", ": ", text).splitlines() if line.strip()]
            if lines:
                grave = next((line for line in lines if self.grave is not None and self.grave.search(line)), lines[-1])
                return self.stamp.sub("", grave).strip()
        return f"it said nothing (exit status {self._process.poll() if self._process else None})"

    def _file(self, name: str) -> Path:
        if self._folder is None:
            raise HostError(f"{self.called} is not running; start it first")
        return self._folder / name


class _PortTakenError(HostError):
    """The port was free when we looked and is not any more."""


def url_of(scheme: str, place: str, tls: bool) -> str:
    """The URL of a server at ``place`` (host:port)."""
    return f"{PROTOCOLS[SCHEMES[scheme][0]].schemes[tls]}://{place}/"


def backlog() -> int:
    """The listeners' queue: 4,096, or net.core.somaxconn where that is less (the kernel would cut it anyway)."""
    return min(4096, number_in("/proc/sys/net/core/somaxconn") or 4096)


def quoted(text: Path | str) -> str:
    """A word of an nginx or Apache configuration."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


async def ask(port: int, path: str, address: str = "127.0.0.1") -> bytes:
    """What a port of this host answers to a GET, head and body, within 5 s; b"" for nothing."""
    answer = b""
    try:
        async with asyncio.timeout(_QUESTION_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {ports.host_port(address, port)}\r\n\r\n".encode())
                while len(answer) < _LONGEST_ANSWER and (more := await reader.read(65536)):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        pass
    return answer
