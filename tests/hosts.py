"""Several hosts of the test's own: network namespaces on a bridge, and Dask's real scheduler and workers as processes."""

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

from programs import alive, contents, until

from asyncli.lab.network import Network

_NET = "10.214.0"
#: Where the hub is: the server, the scheduler and the session.
HUB = f"{_NET}.1"


def address(number: int) -> str:
    """Of client ``number``."""
    return f"{_NET}.{10 + number}"


def bridged(count: int) -> Network:
    """A "hub" and so many clients ("c0"...), each on a cable of its own to a bridge."""
    return Network({"hub": f"{HUB}/24", **{f"c{number}": f"{address(number)}/24" for number in range(count)}})


#: A host of such a network.
Place = tuple[Network, str]


def another_machine(folder: Path, number: int) -> tuple[str, ...]:
    """Words before a program, to which this machine is then another one: by its boot's id, the only thing that tells."""
    told = folder / f"boot_id_{number}"
    told.write_text(f"00000000-0000-0000-0000-{number:012}\n", encoding="ascii")
    return ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', str(told))


# Dask's looks at itself, every few milliseconds, are of no use here.
_QUIET = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False", "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s"}
# To load Dask takes seconds of CPU: one process has, and is forked for each scheduler and worker, on its host, with its log.
_NURSERY = """
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
def _nursery() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _NURSERY]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **_QUIET})


class Dask:
    """A scheduler or a worker as a process, on a host of a network or none, its log in ``folder``; what it starts bears its mark."""

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
            nursery = _nursery()
            nursery.stdin.write(json.dumps((arguments, environment, str(folder), str(self._log), namespace)) + "\n")
            nursery.stdin.flush()
            self.pid = int(nursery.stdout.readline())

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until_said(self, words: str) -> None:
        until(lambda: words in self.log or not alive(self.pid), f"dask says {words!r}")
        assert words in self.log, self.log

    def started(self) -> list[int]:
        """The living processes that it has started, and that theirs have."""
        # A zombie has no environment any more.
        every = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in every if pid != self.pid and self._mark.encode() in contents(f"/proc/{pid}/environ")]

    def hosts(self) -> list[int]:
        """The generator's processes on it."""
        return [pid for pid in self.started() if b"asyncli.engine.host" in contents(f"/proc/{pid}/cmdline")]

    def until_free(self) -> None:
        """Until nothing of a generator is left on it."""
        until(lambda: not self.hosts(), "its generator is gone")

    def kill(self) -> None:
        """It alone, and not what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), "it has ended")

    def end(self) -> None:
        """Kill it and what it has started."""
        self.kill()
        for pid in self.started():
            os.kill(pid, signal.SIGKILL)


class Hosts:
    """A scheduler and its workers; what was started last ends first."""

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
        """One more worker, which the scheduler knows. ``before``: words before it, of a program that becomes it."""
        arguments = (self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard", *self._more, *more)
        self._workers.append(worker := Dask(self.folder, "worker", *arguments, place=place, before=before))
        worker.until_said("Registered to")
        return worker

    def stop_workers(self) -> None:
        """And the scheduler knows none any more."""
        while self._workers:
            self._workers.pop().end()

    def schedule_anew(self) -> None:
        """Another scheduler in the place of the one that was killed, which knows no worker."""
        self.stop_workers()
        where = urlsplit(self.address)
        self._schedule(where.hostname or "", where.port or 0)

    def stop(self) -> None:
        self.stop_workers()
        self.scheduler.end()


@contextmanager
def clustered(folder: Path, *, at: str = "127.0.0.1", place: Place | None = None, more: tuple[str, ...] = ()) -> Iterator[Hosts]:
    """A scheduler, for workers to come; all gone at the end of the block."""
    hosts = Hosts(folder, at=at, place=place, more=more)
    try:
        yield hosts
    finally:
        hosts.stop()
