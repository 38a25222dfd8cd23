"""Several hosts for tests: network namespaces on a bridge, and Dask's scheduler and workers as real processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from programs import alive, contents, until

from asyncli.lab.network import Network

_NET = "10.214.0"
#: The address of the hub, which has the server, the scheduler and the session.
HUB = f"{_NET}.1"


def address(number: int) -> str:
    """The address of client ``number``."""
    return f"{_NET}.{10 + number}"


def bridged(count: int) -> Network:
    """A network of a "hub" and ``count`` clients ("c0"...), joined by a bridge."""
    return Network({"hub": f"{HUB}/24", **{f"c{number}": f"{address(number)}/24" for number in range(count)}})


#: A host of such a network.
Place = tuple[Network, str]


def another_machine(folder: Path, number: int) -> tuple[str, ...]:
    """A command prefix under which this machine looks like another one to a program, by its boot id."""
    boot_id = folder / f"boot_id_{number}"
    boot_id.write_text(f"00000000-0000-0000-0000-{number:012}\n", encoding="ascii")
    return ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', str(boot_id))


# Without Dask's profiling of itself, every few milliseconds.
_QUIET = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False", "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s"}
# Loading Dask takes seconds of CPU: one process loads it, and forks for each scheduler and worker, with its host and log.
_FORK_SERVER = """
import json, os, signal, sys
import asyncli.cluster.actor, dask.cli, distributed.cli.dask_scheduler, distributed.cli.dask_worker
from asyncli.lab.network import _enter
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    words, environment, folder, log, namespace = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, path in enumerate((os.devnull, log, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    if namespace:
        _enter(os.open(namespace, os.O_RDONLY))
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["dask", *words]
    dask.cli.run_cli()
"""
_forking = threading.Lock()


@functools.cache
def _fork_server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _FORK_SERVER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **_QUIET})


class Dask:
    """A scheduler or worker process, on a host of a network or on this one, with its log in ``folder``. Its environment has a mark,
    which its children inherit."""

    def __init__(self, folder: Path, *arguments: str, place: Place | None = None, before: Sequence[str] = ()) -> None:
        self._mark, self._log = f"ASYNCLI_TEST_DASK={uuid.uuid4().hex}", folder / f"dask-{uuid.uuid4().hex[:8]}.log"
        environment = {**dict([self._mark.split("=")]), "TMPDIR": str(folder)}
        self._log.touch()
        if before or "--preload" in arguments:
            command = [*before, sys.executable, "-m", "dask", *arguments]
            whole = {**os.environ, **_QUIET, **environment}
            with self._log.open("wb") as log, contextlib.nullcontext() if place is None else place[0].inside(place[1]):
                self.pid = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=whole).pid
            return
        namespace = place and f"/proc/{os.getpid()}/fd/{place[0]._namespaces[place[1]]}"
        with _forking:
            server = _fork_server()
            server.stdin.write(json.dumps((arguments, environment, str(folder), str(self._log), namespace)) + "\n")
            server.stdin.flush()
            self.pid = int(server.stdout.readline())

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until_said(self, words: str) -> None:
        until(lambda: words in self.log or not alive(self.pid), f"dask says {words!r}")
        assert words in self.log, self.log

    def started(self) -> list[int]:
        """Its running descendants."""
        # A zombie has no environment.
        every = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in every if pid != self.pid and self._mark.encode() in contents(f"/proc/{pid}/environ")]

    def hosts(self) -> list[int]:
        """The generator's processes of this worker."""
        return [pid for pid in self.started() if b"asyncli.engine.host" in contents(f"/proc/{pid}/cmdline")]

    def first_host(self) -> int:
        """The process that started the others: numbers of processes begin again at pid_max."""
        return min(self.hosts(), key=lambda pid: psutil.Process(pid).create_time())

    def until_free(self) -> None:
        """Wait until it has no generator processes."""
        until(lambda: not self.hosts(), "its generator has ended")

    def kill(self) -> None:
        """Kill it without its children."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), "it has ended")

    def end(self) -> None:
        """Kill it and its descendants."""
        self.kill()
        for pid in self.started():
            os.kill(pid, signal.SIGKILL)


class Hosts:
    """A scheduler and its workers, ended in reverse order of their start."""

    def __init__(self, folder: Path, *, at: str = "127.0.0.1", place: Place | None = None, more: tuple[str, ...] = ()) -> None:
        self.folder, self._more, self._place = folder, more, place
        self._workers: list[Dask] = []
        self._scheme = "tls" if more else "tcp"
        self._schedule(at, 0)
        self.address = next(word for word in self.scheduler.log.split() if word.startswith(f"{self._scheme}://"))

    def _schedule(self, host: str, port: int) -> None:
        arguments = ("--host", f"{self._scheme}://{host}", "--port", str(port), "--no-dashboard", *self._more)
        self.scheduler = Dask(self.folder, "scheduler", *arguments, place=self._place)
        self.scheduler.until_said("Scheduler at:")

    def worker(self, place: Place | None = None, *more: str, before: Sequence[str] = ()) -> Dask:
        """Start a worker and wait until the scheduler knows it. ``before``: a command prefix."""
        arguments = (self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard", *self._more, *more)
        self._workers.append(worker := Dask(self.folder, "worker", *arguments, place=place, before=before))
        worker.until_said("Registered to")
        return worker

    def stop_workers(self) -> None:
        while self._workers:
            self._workers.pop().end()

    def schedule_anew(self) -> None:
        """Start a scheduler at the address of the killed one; it knows no workers."""
        self.stop_workers()
        where = urlsplit(self.address)
        self._schedule(where.hostname or "", where.port or 0)

    def stop(self) -> None:
        self.stop_workers()
        self.scheduler.end()


@contextmanager
def clustered(folder: Path, *, at: str = "127.0.0.1", place: Place | None = None, more: tuple[str, ...] = ()) -> Iterator[Hosts]:
    """A scheduler for the block, to which workers can be added; all end with the block."""
    hosts = Hosts(folder, at=at, place=place, more=more)
    try:
        yield hosts
    finally:
        hosts.stop()
