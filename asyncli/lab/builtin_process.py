"""The built-in server's processes: for hosts without nginx, and for tests that provoke the ends of connections.

A parent with the status page, and workers with a listener each (SO_REUSEPORT). Each counts in its row of shared memory, and the
page sums the rows: exact, without a lock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import mmap
import os
import re
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import NamedTuple, cast

from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.executables import descriptor_limit
from asyncli.lab.wire import HEAD_END, LONGEST_HEAD, TOKEN, Counts, Request, answer, status_page, understand

_ACCEPTS, _HANDLED, _ACTIVE, _REQUESTS, _READING = range(5)
# A row is a cache line.
_ROW = 8
_BACKLOG = 4096
_PR_SET_PDEATHSIG = 1
# As in models.c, constant by constant.
_MOST_BYTES = 1_000_000_000
_CHUNK = b"x" * 65_536
_LINGER_S = 3.2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASK = re.compile(rb"([0-9]{1,16})\r?\n")
_ASK_BEGUN = re.compile(rb"[0-9]{0,16}|[0-9]{1,16}\r")
# Binary is refused at once: its line end may never come.
_LINE_BEGUN = re.compile(TOKEN + rb"[^\x00-\x0c\x0e-\x1f]*(?:\n|$)", re.DOTALL)


class Options(NamedTuple):
    """Limits that end a connection, named after nginx's directives; 0 slots: no bound."""

    keepalive_timeout_s: float = 3600.0
    keepalive_requests: int = 10_000_000
    keepalive_time_s: float = 3_600_000.0
    client_header_timeout_s: float = 3600.0
    worker_connections: int = 0


class Desk:
    """Shared by the connections of a process. ``page``: the answer for a path, else "ok"; ``asks``: a connection may also ask for
    bytes, as of ``models.c``."""

    def __init__(
        self,
        row: memoryview,
        options: Options,
        page: Callable[[bytes], tuple[int, bytes]] = lambda _: (200, b"ok\n"),
        *,
        asks: bool = False,
    ) -> None:
        self.row, self.options, self.page, self.asks = row, options, page, asks
        self.open: set[Connection] = set()
        self._second = -1
        self._date = b""

    def date(self) -> bytes:
        """The Date header, updated once a second; the models have none."""
        if self.asks:
            return b""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date

    async def sweep(self) -> None:
        """Close connections idle too long, by one timer for all."""
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
    """One client. A Protocol takes a third of the memory of streams, and no task."""

    __slots__ = (
        "asks", "begun", "desk", "ended", "opened", "over", "owed", "paused", "reading", "request", "requests", "since", "tail",
        "transport",
    )  # fmt: skip

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.transport: asyncio.Transport | None = None
        self.requests = 0
        self.tail = b""  # come and not yet used
        self.asks: bool | None = None if desk.asks else False  # for bytes, and not in HTTP; None before the first byte
        self.owed = 0  # bytes to send (asks), or of a body still to come (HTTP)
        self.request: Request | None = None  # the one whose body is coming
        self.begun = self.reading = self.paused = self.ended = self.over = False
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
        self.desk.row[_ACTIVE] -= 1
        self._read(False)
        self.transport = None
        self.desk.open.discard(self)

    def data_received(self, data: bytes) -> None:
        if not self.over:
            self.tail += data
            self._go()

    def eof_received(self) -> bool:
        # A client that only stopped sending still gets its answer.
        self.ended = True
        self._go()
        return True

    def pause_writing(self) -> None:
        self.paused = True
        # A client that does not read answers must not pile up requests.
        if self.transport is not None and not self.ended:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            if not self.ended:
                self.transport.resume_reading()
            self._go()

    def expired(self, now: float) -> bool:
        """Whether it has been waiting for longer than its state allows."""
        options = self.desk.options
        fresh = self.requests == 0 or self.reading
        return now - self.since > (options.client_header_timeout_s if fresh else options.keepalive_timeout_s)

    def close(self) -> None:
        """Close it as nginx does: with a FIN."""
        if self.transport is not None:
            self.transport.close()

    def _go(self) -> None:
        """Answer as far as input and the client's reading allow."""
        transport = self.transport
        if transport is None or self.paused or transport.is_closing():
            return
        if self.asks is None and self.tail:
            self.asks = self.tail[:1].isdigit()
        if not self.over:
            if self.asks:
                self._bytes(transport)
            elif self.tail:
                self._http(transport)
        if self.ended and not self.paused:
            transport.close()

    def _bytes(self, transport: asyncio.Transport) -> None:
        while True:
            while self.owed:
                transport.write(_CHUNK if self.owed >= len(_CHUNK) else _CHUNK[: self.owed])
                self.owed -= min(self.owed, len(_CHUNK))
                if self.paused or transport.is_closing():
                    return
            match = _ASK.match(self.tail)
            if match is None or int(match[1]) > _MOST_BYTES:
                if match is not None or not _ASK_BEGUN.fullmatch(self.tail):
                    transport.close()
                return
            self.owed, self.tail = int(match[1]), self.tail[match.end() :]

    def _http(self, transport: asyncio.Transport) -> None:
        data, at, size = self.tail, 0, len(self.tail)
        out: list[bytes] = []
        refused = False
        while not self.over:
            if self.request is None:
                # Empty lines before a request are skipped (RFC 9112 2.2).
                while at < size and data[at] in b"\r\n":
                    at += 1
                if at == size:
                    break
                # nginx counts a request from its first byte.
                self.desk.row[_REQUESTS] += not self.begun
                self.begun = True
                end = HEAD_END.search(data, at, at + LONGEST_HEAD)
                if _LINE_BEGUN.match(data, at, at + LONGEST_HEAD) is None:
                    self.request = Request(400)
                elif end is not None:
                    self.request = understand(data[at : end.start()])
                    at = end.end()
                elif size - at >= LONGEST_HEAD:
                    self.request = Request(431)
                else:
                    break
                self.owed = self.request.body
                if self.request.expects and self.request.body > size - at:
                    out.append(_CONTINUE)
            dropped = min(self.owed, size - at)
            at += dropped
            self.owed -= dropped
            if self.owed:
                break
            refused = self.request.status != 200
            out.append(self._answer(self.request))
            self.request, self.begun = None, False
        self.tail = data[at:]
        self._read(self.begun)
        if out:
            self.since = asyncio.get_running_loop().time()
            transport.write(b"".join(out))
        if self.over:
            self._part(transport, linger=refused or at < size)

    def _answer(self, request: Request) -> bytes:
        """The answer to a complete request; ``over`` is whether the connection ends with it."""
        desk, options = self.desk, self.desk.options
        self.requests += 1
        keep = (
            request.keep
            and self.requests < options.keepalive_requests
            and options.keepalive_timeout_s > 0
            and asyncio.get_running_loop().time() - self.opened <= options.keepalive_time_s
        )
        status, body = desk.page(request.path) if request.status == 200 else (request.status, b"")
        self.over = not keep
        return answer(status, body, desk.date(), head_only=request.head_only, keep=keep)

    def _read(self, reading: bool) -> None:
        """Whether it is in the midst of a request."""
        self.desk.row[_READING] += reading - self.reading
        self.reading = reading

    def _part(self, transport: asyncio.Transport, *, linger: bool) -> None:
        """Close; later where the client still sends, or a reset would lose our answer."""
        self.tail = b""
        if linger and not self.ended and transport.can_write_eof():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, transport.close)
        else:
            transport.close()


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


def until_told(*lives: int) -> asyncio.Future[int]:
    """Done with 0 at a terminating signal, or with 1 when one of these descriptors can be read."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not over.done():
            over.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, finish, 0)
    for life in lives:
        loop.add_reader(life, finish, 1)
    return over


def run_listener(address: str, port: int, connection: Callable[[], asyncio.Protocol]) -> int:
    """Serve in one process until a signal; prints the port once it listens. The exit status."""
    _raise_descriptors()

    async def serve(listener: socket.socket) -> int:
        await asyncio.get_running_loop().create_server(connection, sock=listener, backlog=_BACKLOG)
        stopped = until_told()
        gc.freeze()
        print(listener.getsockname()[1], flush=True)
        return await stopped

    try:
        with listen(address, port or ports.free_pair(address)[0]) as listener:
            return new_loop().run_until_complete(serve(listener))
    except HostError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def _raise_descriptors() -> None:
    """This process's own limit, as high as it may go."""
    nofile = descriptor_limit()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))


def _work(listener: socket.socket, row: memoryview, options: Options, parent: int, tls: ssl.SSLContext | None) -> None:
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
        await loop.create_server(lambda: Connection(desk), sock=listener, backlog=_BACKLOG, ssl=tls)
        gc.freeze()
        await desk.sweep()

    loop.run_until_complete(serve())


def run(
    address: str, port: int, status_port: int, workers: int, options: Options, tls: ssl.SSLContext | None = None
) -> int:
    """Serve until a signal or a worker's death; prints the port once all listen. The exit status."""
    # Exclusive, and first: it refuses another server that drew the same pair.
    status = listen("127.0.0.1", status_port)
    listeners = [listen(address, port, shared=True) for _ in range(workers)]
    cells = memoryview(mmap.mmap(-1, (workers + 1) * _ROW * 8)).cast("Q")
    rows = [cells[index * _ROW : (index + 1) * _ROW] for index in range(workers + 1)]
    parent = os.getpid()
    pids: list[int] = []
    lives: list[int] = []
    try:
        for listener, row in zip(listeners, rows[1:], strict=True):
            # Its end tells the parent that the worker died.
            life, ours = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    status.close()
                    for other in listeners:
                        if other is not listener:
                            other.close()
                    _work(listener, row, options, parent, tls)
                finally:
                    os._exit(1)
            # At once, so that no later worker inherits it and keeps it open.
            os.close(ours)
            pids.append(pid)
            lives.append(life)
        # A listener that only the parent held would swallow its share of the connections once its worker is gone.
        for listener in listeners:
            listener.close()
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
    parser.add_argument("--model", action="store_true", help="the asyncio server model: one process, no status page")
    parser.add_argument("--status-port", type=int, default=0, help="port of the status page; 0: the next one, or a free one")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (one a CPU)")
    for name, default in Options()._asdict().items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        parser.add_argument(flag, dest=name, type=type(default), default=default, help=f"as nginx's ({default:g})")
    parser.add_argument("--certificate", help="PEM with the key: speak TLS")
    chosen = parser.parse_args(argv)
    if chosen.model:
        desk = Desk(memoryview(bytearray(8 * _ROW)).cast("Q"), Options(), asks=True)
        return run_listener(chosen.address, chosen.port, lambda: Connection(desk))
    _raise_descriptors()
    options = Options(**{name: getattr(chosen, name) for name in Options._fields})
    try:
        drawn, status_port = ports.free_pair("127.0.0.1" if chosen.port else chosen.address)
        tls = None
        if chosen.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(chosen.certificate)
        return run(chosen.address, chosen.port or drawn, chosen.status_port or status_port, chosen.workers, options, tls)
    except HostError as error:
        print(error, file=sys.stderr)
        return error.exit_status
