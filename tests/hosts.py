"""Several hosts of the test's own: network namespaces on a bridge, and Dask's real scheduler and workers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from programs import DEADLINE_S, contents, until

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


def _at(place: Place | None) -> AbstractContextManager[None]:
    return nullcontext() if place is None else place[0].inside(place[1])


def another_machine(folder: Path, number: int) -> tuple[str, ...]:
    """Words before a program, to which this machine is then another one: by its boot's id, the only thing that tells."""
    told = folder / f"boot_id_{number}"
    told.write_text(f"00000000-0000-0000-0000-{number:012}\n", encoding="ascii")
    return ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', str(told))


class Dask:
    """A scheduler or a worker as a process, on a host of a network or none, its log in ``folder``; what it starts bears its mark."""

    def __init__(self, folder: Path, *arguments: str, place: Place | None = None, before: Sequence[str] = ()) -> None:
        self._mark = f"ASYNCLI_TEST_DASK={uuid.uuid4().hex}"
        self._log = folder / f"dask-{uuid.uuid4().hex[:8]}.log"
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, name: value, "TMPDIR": str(folder)}
        with self._log.open("wb") as log, _at(place):
            self.popen = subprocess.Popen(
                [*before, sys.executable, "-m", "dask", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until_said(self, words: str) -> None:
        until(lambda: words in self.log or self.popen.poll() is not None, f"dask says {words!r}")
        assert words in self.log, self.log

    def started(self) -> list[int]:
        """The living processes that it has started, and that theirs have."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != self.popen.pid and self._is_ours(pid)]

    def hosts(self) -> list[int]:
        """The generator's processes on it."""
        return [pid for pid in self.started() if b"asyncli.engine.host" in contents(f"/proc/{pid}/cmdline")]

    def until_free(self) -> None:
        """Until nothing of a generator is left on it."""
        until(lambda: not self.hosts(), "its generator is gone")

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(DEADLINE_S)

    def stop(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        for pid in self.started():
            os.kill(pid, signal.SIGKILL)

    def _is_ours(self, pid: int) -> bool:
        # A zombie has no environment any more.
        return self._mark.encode() in contents(f"/proc/{pid}/environ")


class Hosts:
    """A scheduler and its workers; what was started last ends first."""

    def __init__(self, folder: Path, *, at: str = "127.0.0.1", place: Place | None = None, more: tuple[str, ...] = ()) -> None:
        self.folder, self._more, self._place = folder, more, place
        self._all: list[Dask] = []
        scheme = "tls" if more else "tcp"
        self.scheduler = self._start("scheduler", "--host", f"{scheme}://{at}", "--port", "0", "--no-dashboard", *more, place=place)
        self.scheduler.until_said("Scheduler at:")
        self.address = next(word for word in self.scheduler.log.split() if word.startswith(f"{scheme}://"))

    def _start(self, *arguments: str, place: Place | None, before: Sequence[str] = ()) -> Dask:
        dask = Dask(self.folder, *arguments, place=place, before=before)
        self._all.append(dask)
        return dask

    def worker(self, place: Place | None = None, *more: str, before: Sequence[str] = ()) -> Dask:
        """One more worker, which the scheduler knows. ``before``: words before it, of a program that becomes it."""
        worker = self._start(
            "worker", self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard", *self._more, *more, place=place, before=before
        )
        worker.until_said("Registered to")
        return worker

    def stop_workers(self) -> None:
        """And the scheduler knows none any more."""
        while (worker := self._all.pop()) is not self.scheduler:
            worker.stop()
        self._all.append(self.scheduler)

    def schedule_anew(self) -> None:
        """Another scheduler in the place of the one that was killed, which knows no worker."""
        self.stop_workers()
        where = urlsplit(self.address)
        self._all.clear()
        arguments = ("--host", f"{where.scheme}://{where.hostname}", "--port", str(where.port), "--no-dashboard", *self._more)
        self.scheduler = self._start("scheduler", *arguments, place=self._place)
        self.scheduler.until_said("Scheduler at:")

    def stop(self) -> None:
        self.stop_workers()
        self.scheduler.stop()


@contextmanager
def clustered(folder: Path, *, at: str = "127.0.0.1", place: Place | None = None, more: tuple[str, ...] = ()) -> Iterator[Hosts]:
    """A scheduler, for workers to come; all gone at the end of the block."""
    hosts = Hosts(folder, at=at, place=place, more=more)
    try:
        yield hosts
    finally:
        hosts.stop()
