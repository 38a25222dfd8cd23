"""The built-in server's processes: for hosts without nginx, and for tests that provoke what ends a connection.

A parent with the status page, and workers with a listener each (SO_REUSEPORT: the kernel deals connections by a hash).
Each process counts in its own row of shared memory, and the page adds the rows up: exact, without a lock. Its numbers
are those of the "built-in server", never to be taken for nginx's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import math
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import NamedTuple, cast

from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.binary import descriptor_limit
from asyncli.lab.wire import HEAD_END, LONGEST_HEAD, Counts, answer, status_page, understand

_ACCEPTS, _HANDLED, _ACTIVE, _REQUESTS, _READING = range(5)
# A row is a cache line, so that processes do not fight over one.
_ROW = 8
_BACKLOG = 4096
_OWN_DESCRIPTORS = 64
_MOST_WORKERS = 1_000
_BODY = b"ok\n"
_PR_SET_PDEATHSIG = 1


class Options(NamedTuple):
    """What ends a connection, seconds and numbers, named after nginx's directives; 0 slots: no bound."""

    keepalive_timeout_s: float = 3600.0
    keepalive_requests: int = 10_000_000
    keepalive_time_s: float = 3_600_000.0
    client_header_timeout_s: float = 3600.0
    worker_connections: int = 0


class Desk:
    """What the connections of one process share: options, counters, the date, and who is connected."""

    def __init__(self, row: memoryview, options: Options, page: Callable[[bytes], tuple[int, bytes]] | None = None) -> None:
        self.row = row
        self.options = options
        self.page = page
        self.open: set[Connection] = set()
        self._second = -1
        self._date = b""

    def date(self) -> bytes:
        """Now, for the Date header; made once a second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date

    async def sweep(self) -> None:
        """Close what has been idle too long. One timer for all: a timer each would cost more than the connection."""
        loop = asyncio.get_running_loop()
        options = self.options
        # A tenth of the shorter timeout late at most.
        pause = min(5.0, max(0.02, min(options.keepalive_timeout_s, options.client_header_timeout_s) / 10))
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for one in [one for one in self.open if one.expired(now)]:
                one.close()


class Connection(asyncio.Protocol):
    """One client. A Protocol and not streams: a third of the memory, and no task."""

    __slots__ = ("desk", "opened", "requests", "since", "tail", "transport")

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.transport: asyncio.Transport | None = None
        self.requests = 0
        self.tail = b""
        self.opened = self.since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its class.
        transport = cast("asyncio.Transport", transport)
        desk, row = self.desk, self.desk.row
        row[_ACCEPTS] += 1
        most = desk.options.worker_connections
        if most and len(desk.open) >= most:
            # nginx without a free slot: accepted, never handled.
            transport.abort()
            return
        row[_HANDLED] += 1
        row[_ACTIVE] += 1
        self.transport = transport
        self.opened = self.since = asyncio.get_running_loop().time()
        desk.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is None:
            return
        row = self.desk.row
        row[_ACTIVE] -= 1
        if self.tail:
            row[_READING] -= 1
        self.transport = None
        self.desk.open.discard(self)

    def data_received(self, data: bytes) -> None:
        transport, row = self.transport, self.desk.row
        if transport is None or transport.is_closing():
            return
        counted = bool(self.tail)
        if counted:
            data, self.tail = self.tail + data, b""
            row[_READING] -= 1
        out: list[bytes] = []
        keep, at, size = True, 0, len(data)
        while keep:
            # Empty lines before a request are skipped (RFC 9112 2.2).
            while at < size and data[at] in b"\r\n":
                at += 1
            if at == size:
                break
            # nginx counts a request from its first byte, so one that came in pieces is in the sum already.
            if not counted:
                row[_REQUESTS] += 1
            counted = False
            end = HEAD_END.search(data, at)
            if end is None:
                if size - at > LONGEST_HEAD:
                    out.append(answer(431, b"", self.desk.date(), head_only=False, keep=False))
                    keep = False
                    break
                self.tail = data[at:]
                row[_READING] += 1
                break
            text, keep = self._serve(data[at : end.start()])
            out.append(text)
            at = end.end()
        if out:
            self.since = asyncio.get_running_loop().time()
            transport.write(b"".join(out))
        if not keep:
            transport.close()

    def _serve(self, head: bytes) -> tuple[bytes, bool]:
        """The answer to a complete request, and whether the connection goes on."""
        desk, request = self.desk, understand(head)
        self.requests += 1
        options = desk.options
        keep = (
            request.keep
            # A body is not read, so nothing after it could be told from it: answer, and close.
            and not request.body
            and self.requests < options.keepalive_requests
            and options.keepalive_timeout_s > 0
            and asyncio.get_running_loop().time() - self.opened <= options.keepalive_time_s
        )
        status, body = request.status, _BODY
        if status != 200:
            body, keep = b"", False
        elif desk.page is not None:
            status, body = desk.page(request.path)
        return answer(status, body, desk.date(), head_only=request.head_only, keep=keep), keep

    def expired(self, now: float) -> bool:
        """Whether it has been waiting for longer than its state allows."""
        options = self.desk.options
        fresh = self.requests == 0 or bool(self.tail)
        return now - self.since > (options.client_header_timeout_s if fresh else options.keepalive_timeout_s)

    def close(self) -> None:
        """Close it as nginx does: with a FIN."""
        if self.transport is not None:
            self.transport.close()


def workers_for(connections: int, nofile: int, cpus: int) -> int:
    """Processes: one a CPU, or more where the descriptor limit needs it, with room for the hash's imbalance."""
    for count in range(max(1, cpus), _MOST_WORKERS + 1):
        mean = connections / count
        if mean + 6 * math.sqrt(mean) + _OWN_DESCRIPTORS <= nofile:
            return count
    raise HostError(
        f"the built-in server cannot hold {connections:,} connections in {_MOST_WORKERS:,} processes of {nofile:,} "
        "descriptors each; raise the hard limit (ulimit -Hn) or ask for fewer"
    )


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop if there is one: half the memory and CPU a connection."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def listen(address: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; ``shared`` with other processes (SO_REUSEPORT)."""
    listener = socket.socket(ports.family_of(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise HostError(f"cannot listen on {address} port {port}: {error.strerror}") from None
    return listener


def until_told(*more: int) -> asyncio.Future[int]:
    """Done with 0 at a signal that ends a server, or with 1 when one of these descriptors can be read."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not over.done():
            over.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, finish, 0)
    for descriptor in more:
        loop.add_reader(descriptor, finish, 1)
    return over


def raise_descriptors() -> None:
    """This process's own limit, as high as it may go."""
    nofile = descriptor_limit()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))


def _work(listener: socket.socket, row: memoryview, options: Options, life: int, parent: int) -> None:
    """A worker's life; it ends with the parent's."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    # Ctrl-C is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    desk = Desk(row, options)

    async def serve() -> None:
        await loop.create_server(lambda: Connection(desk), sock=listener, backlog=_BACKLOG)
        # The pipe stays open as long as this process lives: its end tells the parent of our death.
        os.write(life, b".")
        gc.freeze()
        await desk.sweep()

    loop.run_until_complete(serve())


def run(address: str, port: int, status_port: int, workers: int, options: Options) -> int:
    """Serve until a signal or a worker's death; prints the port once all of it listens. The exit status."""
    # The exclusive one first: it keeps out another server that drew the same pair.
    status = listen("127.0.0.1", status_port)
    listeners = [listen(address, port, shared=True) for _ in range(workers)]
    shared = mmap.mmap(-1, (workers + 1) * _ROW * 8)
    cells = memoryview(shared).cast("Q")
    rows = [cells[index * _ROW : (index + 1) * _ROW] for index in range(workers + 1)]
    parent = os.getpid()
    pids: list[int] = []
    lives: list[int] = []
    try:
        for index in range(workers):
            life, ours = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(life)
                    status.close()
                    for other in listeners:
                        if other is not listeners[index]:
                            other.close()
                    _work(listeners[index], rows[index + 1], options, ours, parent)
                finally:
                    os._exit(1)
            # At once, so that no later worker inherits it and keeps it open.
            os.close(ours)
            pids.append(pid)
            lives.append(life)
        # A listener that only the parent held would swallow its share of the connections once its worker is gone.
        for listener in listeners:
            listener.close()
        if not all(os.read(life, 1) for life in lives):
            raise HostError("a worker of the built-in server died at its start; see what it wrote to stderr")
        return _oversee(status, rows, lives, port)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _oversee(status: socket.socket, rows: list[memoryview], lives: list[int], port: int) -> int:
    """The parent's life: the status page, and watching. The port is printed once all of that is in place."""
    loop = new_loop()
    asyncio.set_event_loop(loop)

    def page(path: bytes) -> tuple[int, bytes]:
        if path != b"/nginx_status":
            return 404, b"404\n"
        sums = [sum(row[column] for row in rows) for column in range(5)]
        # The request for this page is the one being answered.
        counts = Counts(sums[_ACTIVE], sums[_ACCEPTS], sums[_HANDLED], sums[_REQUESTS], sums[_READING], writing=1)
        return 200, status_page(counts)

    async def serve() -> int:
        desk = Desk(rows[0], Options(), page)
        await loop.create_server(lambda: Connection(desk), sock=status, backlog=_BACKLOG)
        over = until_told(*lives)
        print(port, flush=True)
        return await over

    return loop.run_until_complete(serve())


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.lab.builtin``."""
    parser = argparse.ArgumentParser(prog="python -m asyncli.lab.builtin", description="asyncli's built-in server")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--status-port", type=int, default=0, help="port of the status page; 0: the next one, or a free one")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (one a CPU)")
    for name, default in Options()._asdict().items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        parser.add_argument(flag, dest=name, type=type(default), default=default, help=f"as nginx's ({default:g})")
    chosen = parser.parse_args(argv)
    raise_descriptors()
    options = Options(**{name: getattr(chosen, name) for name in Options._fields})
    try:
        drawn, status_port = ports.free_pair("127.0.0.1" if chosen.port else chosen.address)
        return run(chosen.address, chosen.port or drawn, chosen.status_port or status_port, chosen.workers, options)
    except HostError as error:
        print(error, file=sys.stderr)
        return error.exit_status
