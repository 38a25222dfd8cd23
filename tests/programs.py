"""Runs asyncli as processes for tests: starts, watches and signals them, and finds what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from contract import document

from asyncli.cli.main import run as run_here
from asyncli.model.errors import StoreError
from asyncli.model.run import Run
from asyncli.store.reader import read_run

T = TypeVar("T")
ASYNCLI = (sys.executable, "-m", "asyncli")
# The deadline of all waits for an event, far longer than anything takes on a busy machine. Only a failing test waits for so long;
# on an idle machine it fails sooner.
DEADLINE_S = 240.0
_IDLE_DEADLINE_S = 60.0
_MARK = "ASYNCLI_TEST_MARK"
# Short phases for the tests' soaks.
SHORT = ("--baseline", "0.2", "--residue", "0.2", "--keepalive", "2")


def deadline_s() -> float:
    """The deadline for waits: the busier the machine, the longer."""
    return min(DEADLINE_S, _IDLE_DEADLINE_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def until(happened: Callable[[], T], what: str) -> T:
    """Poll until ``happened()`` is true, and return its result; fail with ``what`` at the deadline."""
    begun_s, pause_s = time.monotonic(), 0.01
    while not (result := happened()):
        assert time.monotonic() - begun_s < deadline_s(), f"it never happened: {what}"
        time.sleep(pause_s)
        pause_s = min(0.1, 1.2 * pause_s)
    return result


@contextmanager
def serving_by(script: str | Path, *arguments: str | int | Path) -> Iterator[str]:
    """A Python script that serves until its standard input ends, as the block does; the first line that it prints."""
    command = [sys.executable, script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


#: A line of the log of a run, or one before its first: all of standard error that is no complaint.
_LOG = re.compile(r"\d+:\d\d:\d\d  |defaults: |from the environment: |.* listens at \S+ with ")


class Done(NamedTuple):
    """A program that has ended. ``err``: the complaints of its standard error; ``log``: all of it."""

    status: int
    out: str
    err: str
    log: str


def done_of(status: int, out: str, log: str) -> Done:
    """A program that has ended; ``log``: its standard error."""
    complaints = [line for line in log.splitlines(keepends=True) if not _LOG.match(line)]
    return Done(status, out, "".join(complaints), log)


class Program:
    """``asyncli ARGUMENTS`` running in ``folder``, with its output in files there; a mark identifies all its processes.

    ``before``: a command prefix. ``program``: another asyncli than this environment's.
    """

    def __init__(
        self, folder: Path, *arguments: str | Path, name: str = "program", before: Sequence[str] = (), program: Sequence[str] = ASYNCLI
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        # Temporary files go to the test's folder, so that those of a killed lab are removed with it.
        # Not a copy of os.environ: pytest changes it while threads start programs.
        # No server here has a certificate of a public authority, and to read all of those takes 30 ms.
        environment = {"SSL_CERT_FILE": os.devnull, **inherited(), _MARK: self.mark, "COLUMNS": "100", "TMPDIR": str(folder)}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._popen = subprocess.Popen(
                [*before, *program, *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
            )
        self.pid = self._popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def wait(self) -> Done:
        """Wait for its end."""
        try:
            status = self._popen.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end; it said {self.out!r} and {self.err!r}") from None
        return done_of(status, self.out, self.err)

    def until(self, happened: Callable[[], T], what: str) -> T:
        """Like :func:`until`, but fail at once if the program has ended."""

        def look() -> T:
            ended = self.ended
            result = happened()
            assert result or not ended, f"it ended before: {what}; it said {self.out!r} and {self.err!r}"
            return result

        return until(look, what)

    def until_phase(self, name: str) -> None:
        """Wait until its standard error logs that the phase has begun."""
        self.until(lambda: re.search(rf"^\d+:\d\d:\d\d  {name}\b", self.err, re.MULTILINE), f"the {name} begins")

    def signal(self, number: int = signal.SIGINT) -> None:
        self._popen.send_signal(number)

    def processes(self) -> list[int]:
        """All its running processes, found by the mark in their environment."""
        wanted = f"{_MARK}={self.mark}".encode()
        return [pid for pid in filter(alive, map(int, filter(str.isdigit, os.listdir("/proc")))) if wanted in contents(f"/proc/{pid}/environ")]

    def hosts(self) -> list[int]:
        """The generator's host processes."""
        return [pid for pid in self.processes() if _is_generator(pid) and not _is_generator(_parent(pid))]

    def workers(self) -> list[int]:
        """The generator's workers."""
        return [pid for pid in self.processes() if _is_generator(pid) and _is_generator(_parent(pid))]

    def until_gone(self) -> None:
        """Wait until none of its processes runs."""
        self._popen.wait(DEADLINE_S)
        until(lambda: not self.processes(), "all its processes have ended")


def inherited() -> dict[str, str]:
    """This process's environment, which another thread may change meanwhile."""
    variables = {name: os.environ.get(name) for name in list(os.environ)}
    return {name: value for name, value in variables.items() if value is not None}


def run(folder: Path, *arguments: str | Path, name: str = "program", before: Sequence[str] = ()) -> Done:
    """Run ``asyncli ARGUMENTS`` until all its processes have ended."""
    with Program(folder, *arguments, name=name, before=before) as program:
        done = program.wait()
        program.until_gone()
        return done


def here(folder: Path, *arguments: object) -> Done:
    """Run ``asyncli ARGUMENTS`` in this process, which is faster; not while other threads run."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_here([str(one) for one in arguments])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return done_of(status, *(one.buffer.getvalue().decode() for one in (out, err)))  # type: ignore[attr-defined]


def complaint(done: Done) -> str:
    """The error's one line: what, where, and after a semicolon the remedy (or, for a flag, where flags are listed)."""
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done
    assert re.match(r"asyncli: \S.*(; \S|\(see 'asyncli.*--help'\))", done.err), done
    return done.err.removeprefix("asyncli: ")


def report(folder: Path, path: str | Path) -> dict[str, Any]:
    """The JSON of ``asyncli report PATH --json -``, made in this process for speed."""
    return document(read_run(folder / path))


def was_late(summary: dict[str, Any]) -> bool:
    """Whether asyncli itself was the limit, as on a busy machine: the run is invalid then, whatever the server did. A lack of CPU in the
    ramp alone is a warning, and changes no verdict."""
    return bool(summary["generator"]["saturated"])


def longest_delay_s(run: Run) -> float:
    """The longest that a worker of asyncli stood still, or that the server let a connect or a heartbeat wait, by the run's own record: what
    a time of the run may be longer by than the plan has it, where other programs use the CPUs."""
    ticks = [tick for _, tick in run.ticks]
    waited_us = max((times.greatest for tick in ticks for times in (tick.connect_us, tick.latency_us, tick.lateness_us)), default=0)
    return max([waited_us / 1e6, *(tick.longest_turn_s for tick in ticks)])


def session_stood_still_s(run: Run) -> float:
    """For how long asyncli's session, which reads the server, stood still at most: it samples once a second."""
    instants = [sample.t_s for sample in run.samples]
    return max((later - earlier for earlier, later in pairwise(instants)), default=1.0) - 1.0


def was_held_up(run: Run) -> bool:
    """Whether asyncli or the server stood still for so long that readings are of other moments than planned, or are missing."""
    return max(longest_delay_s(run), session_stood_still_s(run)) >= 0.5


def require_whole(status: int, summary: dict[str, Any], wanted: int = 0) -> None:
    """Require that a soak ended with ``wanted``; on a busy machine it may have been late and so invalid, but its counts are exact. Of a
    server that let nobody in nothing is known, late or not (3)."""
    is_late = wanted != 3 and was_late(summary)
    assert status == (4 if is_late else wanted), [(one["code"], one["evidence"]) for one in summary["findings"]]


def require_done(folder: Path, done: Done, wanted: int = 0) -> dict[str, Any]:
    """The summary of a soak of ``folder`` that complained of nothing and ended with ``wanted``, or was late."""
    summary = report(folder, "run.db")
    require_whole(done.status, summary, wanted)
    assert done.err == ""
    return summary


def stood_still_s(folder: Path, name: str = "run.db") -> float:
    """For how long asyncli itself stood still at most: by so much a busy machine may make late what it does and sees."""
    run = read_run(folder / name)
    return max((tick.longest_turn_s for _, tick in run.ticks), default=0.0)


_read: dict[Path, tuple[object, Run | None]] = {}


def recorded(path: Path) -> Run | None:
    """The run file's current content; None if there is none. It is read again only after a change, since tests poll."""
    state = []
    for one in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            found = os.stat(one)
            state.append((found.st_ino, found.st_size, found.st_mtime_ns))
    if _read.get(path, (None, None))[0] != state:
        try:
            _read[path] = state, read_run(path)
        except StoreError:
            return None
    return _read[path][1]


def held(folder: Path, name: str = "run.db") -> int:
    """The connections held at the run's last recorded second; 0 before the first."""
    run = recorded(folder / name)
    return run.ticks[-1][1].held if run is not None and run.ticks else 0


def answered(folder: Path, name: str = "run.db") -> int:
    """The heartbeats answered until the run's last recorded second."""
    run = recorded(folder / name)
    return 0 if run is None else sum(tick.answered for _, tick in run.ticks)


def told(folder: Path, name: str = "run.db") -> set[str]:
    """The codes of the run's findings so far."""
    run = recorded(folder / name)
    return set() if run is None else {finding.code for finding in run.findings}


def codes(summary: dict[str, Any]) -> set[str]:
    """The codes of its findings."""
    return {finding["code"] for finding in summary["findings"]}


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"], [])


def _is_generator(pid: int) -> bool:
    return b"asyncli.engine.host" in contents(f"/proc/{pid}/cmdline")


def _parent(pid: int) -> int:
    fields = contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def contents(path: str) -> bytes:
    """The content of a file in /proc; b"" if its process has ended."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """A minimal HTTP server in a thread, which counts connections and requests.

    ``answer``: bytes, or a function of the request's number. It accepts ``most`` connections; ``closes``: each after an answer.
    """

    def __init__(self, answer: bytes | Callable[[int], bytes], port: int, most: int, closes: bool) -> None:
        self.accepts = self.requests = 0
        #: The last request; ``deaf``: requests are read but not answered.
        self.heard, self.deaf = b"", False
        self._answer, self._most, self._closes = answer, most, closes
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._ended, self._clients = asyncio.Event(), set[asyncio.Task[None]]()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        await self._ended.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait({accepting})
        self._listener.close()

    async def _accept(self) -> None:
        while self.accepts < self._most:
            client, _ = await self._loop.sock_accept(self._listener)
            self.accepts += 1
            self._clients.add(asyncio.create_task(self._client(client)))

    async def _client(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            while True:
                self.heard = await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if not self.deaf:
                    writer.write(self._answer if isinstance(self._answer, bytes) else self._answer(self.requests))
                if self._closes:
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.transport.abort()


@contextmanager
def serving(answer: bytes | Callable[[int], bytes] = OK, *, port: int = 0, most: int = 10**6, closes: bool = False) -> Iterator[Server]:
    """A :class:`Server` for the block."""
    server = Server(answer, port, most, closes)
    server.start()
    try:
        yield server
    finally:
        server.stop()


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextmanager
def speaking(client: Client, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server in a thread that calls ``client`` for each connection; yields its address and port."""
    loop, at, ended, ready = asyncio.new_event_loop(), [""], asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with await asyncio.start_server(client, "127.0.0.1", 0, backlog=1024, ssl=context) as server:
            at[0] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await ended.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield at[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def publish(page: str, words: bytes | None) -> None:
    """Send ``words`` to all subscribers of an Nchan channel; None: delete the channel."""
    urllib.request.urlopen(urllib.request.Request(page, words, method="DELETE" if words is None else "POST")).read()
