"""What every lab server has that is a program with a folder of its own: started as our child, and gone without a trace."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import string
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from asyncli.errors import HostError
from asyncli.lab import child, ports
from asyncli.lab.configs import config_file
from asyncli.lab.server import OwnServer

_LOCK = "lock"
# A directory younger than this may be one that its owner has not locked yet.
_STALE_S = 60.0
_START_TRIES = 5
_START_S = 30.0
_QUESTION_S = 5.0
# A status page of thousands of processes has a character or a line for each.
_LONGEST_ANSWER = 1 << 20


class LabProgram(OwnServer):
    """A server program of our own: a configuration rendered into a temporary folder, and a child in the foreground.

    It listens on ``address`` and ``port`` (0: a free one), and shows its status on 127.0.0.1 and a port of its own. It
    dies with us; what is left of it when we are killed is removed by the next one of its kind. A subclass says how it is
    sized, configured, called and recognised.
    """

    #: What messages call it, and what its folder is called after.
    name: ClassVar[str]
    #: Its template in configs/.
    template: ClassVar[str]
    #: Path and query of its status page.
    status_path: ClassVar[str]
    #: How a grave line of its logs looks, and what is no news at the beginning of one: time stamps, process ids.
    grave: ClassVar[re.Pattern[str]]
    stamp: ClassVar[re.Pattern[str]]
    #: Where it complains, the most telling first.
    complains_in: ClassVar[tuple[str, ...]] = ("stderr", "error.log")

    def __init__(self, connections: int, port: int, address: str) -> None:
        super().__init__(address, port)
        self.connections = connections
        self.status_port = 0
        self._asked_port = port
        self._folder: Path | None = None
        self._lock = -1

    @property
    def called(self) -> str:
        """In messages."""
        return f"the lab {self.name}"

    @property
    def status_url(self) -> str:
        """The URL of its status page, on 127.0.0.1 and a port of its own."""
        return f"http://127.0.0.1:{self.status_port}{self.status_path}"

    @property
    @abstractmethod
    def exe(self) -> str:
        """The program's path; "" before the start where it was not given."""

    @property
    def config_path(self) -> Path:
        """The rendered configuration; exists while the server runs."""
        return self._file(self.template)

    @property
    def error_log(self) -> Path:
        """Its error log; exists while the server runs."""
        return self._file("error.log")

    @property
    def version(self) -> str:
        """For example ``1.22.1``."""
        return self.label.partition("/")[2].partition(" ")[0]

    @property
    @abstractmethod
    def label(self) -> str:
        """For example ``nginx/1.22.1``; its name alone before the start."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Worker processes, or threads where it is one process; 0 before the start."""

    async def start(self) -> None:
        """Start it and return when it answers with all its workers ready; at most 30 s, else :class:`HostError`."""
        if self._process is not None:
            return
        self._prepare()
        remove_leftovers(self.name)
        for attempt in range(_START_TRIES):
            try:
                await self._start_once()
                return
            except _PortTakenError as error:
                # Between our look and the server's bind somebody took a port. With one drawn by us, draw again.
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

    # What a subclass says.

    @abstractmethod
    def _prepare(self) -> None:
        """Find the program and cut it for its connections; :class:`HostError` where that cannot be done."""

    @abstractmethod
    def _values(self) -> Mapping[str, object]:
        """What is filled in for the template's words after a dollar sign."""

    @abstractmethod
    def _argv(self) -> list[str]:
        """Program (an absolute path) and arguments that keep it in the foreground."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether its status page answers, and is its status page."""

    def _workers_ready(self) -> bool:
        """Whether each worker has set itself up; true where that cannot be told from outside."""
        return True

    def _files(self) -> Mapping[str, bytes]:
        """Files beside the configuration, by name."""
        return {}

    # How it is done.

    async def _start_once(self) -> None:
        if self._asked_port:
            ports.require_free(self.address, self._asked_port)
            self.port, self.status_port = self._asked_port, ports.free_pair("127.0.0.1")[1]
        else:
            self.port, self.status_port = ports.free_pair(self.address)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=_prefix(self.name)))
            # Workers may run as another user than the one that may read our temporary files.
            self._folder.chmod(0o755)
            self._lock = _locked(self._folder)
            for file_name, content in self._files().items():
                self._file(file_name).write_bytes(content)
            self.config_path.write_text(self._config(), encoding="utf-8")
            with self._file("stderr").open("wb") as stderr:
                self._process = child.spawn(self._argv(), stderr=stderr, cwd=self._folder, keep=(self._lock,))
            await self._ready()
        except OSError as error:
            await self.stop()
            raise HostError(
                f"{self.name} could not be started ({error}); TMPDIR must be a folder that can be written, "
                f"and {self.exe} a program that can be run"
            ) from None
        except BaseException:
            await self.stop()
            raise

    def _config(self) -> str:
        """The text of the configuration."""
        template = string.Template(config_file(self.template).read_text(encoding="utf-8"))
        try:
            return template.substitute(self._values())
        except (KeyError, ValueError) as error:
            raise HostError(
                f"configs/{self.template}: {error} is no value that asyncli fills in; write $$ for a dollar sign"
            ) from None

    async def _ready(self) -> None:
        """Wait until every worker runs its loop and the status page answers."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_S
        process = self._process
        all_ready = await child.until(lambda: process.poll() is not None or self._workers_ready(), _START_S)
        while process.poll() is None and loop.time() < deadline:
            if await self._answers():
                if not all_ready:
                    raise HostError(
                        f"{self.name} has not started its {self.workers} workers within {_START_S:.0f} s: "
                        f"{self._complaint()}; ask for fewer connections, or look at the host's load"
                    )
                return
            await asyncio.sleep(0.01)
        complaint = self._complaint()
        if process.poll() is None:
            raise HostError(
                f"{self.name} does not answer on 127.0.0.1:{self.status_port} after {_START_S:.0f} s: {complaint}; "
                "look for a firewall rule on loopback, or at the host's load"
            )
        if "Address already in use" in complaint or "(98" in complaint:
            raise _PortTakenError(f"{self.name} did not start: {complaint}; stop what uses the port, or use --port 0")
        raise HostError(f"{self.name} did not start: {complaint}; see configs/{self.template}, or use the built-in server")

    def _complaint(self) -> str:
        """The first grave line of what it wrote about its trouble, else the first one at all, without time stamps."""
        for name in self.complains_in:
            try:
                text = self._file(name).read_text(encoding="utf-8", errors="replace")
            except (OSError, HostError):
                continue
            # A line that ends in a colon goes on in the next one.
            lines = re.sub(r":\n\s*", ": ", text).splitlines()
            grave = [line for line in lines if self.grave.search(line)]
            if lines:
                return self.stamp.sub("", (grave or lines)[0]).strip()
        return f"it said nothing (exit status {self._process.poll() if self._process else None})"

    def _file(self, name: str) -> Path:
        if self._folder is None:
            raise HostError(f"{self.called} is not running; start it first")
        return self._folder / name


class _PortTakenError(HostError):
    """The port was free when we looked and is not any more."""


def backlog() -> int:
    """The listeners' queue: 4,096, or net.core.somaxconn where that is less (the kernel would cut it anyway)."""
    try:
        return min(4096, int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 4096


async def ask(port: int, path: str, address: str = "127.0.0.1") -> bytes:
    """What a port of this host answers to a GET, head and body, as far as it comes within 5 s; b"" where nothing does."""
    answer = b""
    try:
        async with asyncio.timeout(_QUESTION_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
                while len(answer) < _LONGEST_ANSWER and (more := await reader.read(65536)):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        pass
    return answer


def remove_leftovers(name: str) -> None:
    """Remove the files of lab servers called ``name`` whose owner was killed: those whose lock nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(name)}*"):
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


def _prefix(name: str) -> str:
    return f"asyncli-{name}-"


def _locked(folder: Path) -> int:
    """A lock on the folder that lasts as long as we or the server hold the descriptor."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock
