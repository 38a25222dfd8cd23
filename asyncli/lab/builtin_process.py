"""The built-in server's processes: for hosts without nginx, and for tests that provoke connection
losses.

A parent serves the status page, and each worker has a listener (SO_REUSEPORT). Each process counts
in its row of shared memory, and the page sums the rows: exact, without a lock.
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

from asyncli.lab import ports
from asyncli.lab.executables import descriptor_limit
from asyncli.lab.wire import (
    HEAD_END,
    LONGEST_HEAD,
    TOKEN,
    Request,
    answer,
    parse_request,
    status_page,
)
from asyncli.model.errors import HostError

_ACCEPTS, _HANDLED, _ACTIVE, _REQUESTS, _READING = range(5)
# 8 counters of 8 bytes: a cache line.
_ROW = 8
_BACKLOG = 4096
_PR_SET_PDEATHSIG = 1
# The constants of models.c.
_MOST_BYTES = 1_000_000_000
_CHUNK = b"x" * 65_536
_LINGER_S = 3.2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BYTE_REQUEST = re.compile(rb"([0-9]{1,16})\r?\n")
_PARTIAL_BYTE_REQUEST = re.compile(rb"[0-9]{0,16}|[0-9]{1,16}\r")
# Binary input is refused at once: a line end may never come.
_PARTIAL_REQUEST_LINE = re.compile(TOKEN + rb"[^\x00-\x0c\x0e-\x1f]*(?:\n|$)", re.DOTALL)


class Options(NamedTuple):
    """Limits that end a connection, named after nginx's directives; ``worker_connections`` 0: no
    limit.
    """

    keepalive_timeout_s: float = 3600.0
    keepalive_requests: int = 10_000_000
    keepalive_time_s: float = 3_600_000.0
    client_header_timeout_s: float = 3600.0
    worker_connections: int = 0


class SharedState:
    """What the connections of a process share. ``page`` gives status and body for a path (default
    "ok"); ``byte_protocol``: a connection may also request bytes, in the protocol of ``models.c``.
    """

    def __init__(
        self,
        row: memoryview,
        options: Options,
        page: Callable[[bytes], tuple[int, bytes]] = lambda _: (200, b"ok\n"),
        *,
        byte_protocol: bool = False,
    ) -> None:
        self.row = row
        self.options = options
        self.page = page
        self.byte_protocol = byte_protocol
        self.open: set[Connection] = set()
        self._second = -1
        self._date = b""

    def date(self) -> bytes:
        """The Date header, updated once a second; the models send none."""
        if self.byte_protocol:
            return b""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        return self._date

    async def sweep(self) -> None:
        """Close connections that are idle too long, with one timer for all."""
        loop = asyncio.get_running_loop()
        options = self.options
        # At most a tenth of the shorter timeout late.
        pause = min(
            5.0, max(0.02, min(options.keepalive_timeout_s, options.client_header_timeout_s) / 10)
        )
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self.open):
                if connection.expired(now):
                    connection.close()


class Connection(asyncio.Protocol):
    """A client's connection. A Protocol takes a third of the memory of streams, and no task."""

    __slots__ = (
        "byte_protocol",
        "closing",
        "eof",
        "in_request",
        "opened",
        "owed",
        "paused",
        "reading",
        "request",
        "requests",
        "since",
        "state",
        "transport",
        "unread",
    )

    def __init__(self, state: SharedState) -> None:
        self.state = state
        self.transport: asyncio.Transport | None = None
        self.requests = 0
        self.unread = b""  # received, not yet processed
        self.byte_protocol: bool | None = (
            None if state.byte_protocol else False
        )  # None: unknown before the first byte
        self.owed = 0  # bytes still to send (byte protocol), or still to receive of a body (HTTP)
        self.request: Request | None = None  # whose body is being received
        self.in_request = self.reading = self.paused = self.eof = self.closing = False
        self.opened = self.since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods, not the base class.
        transport = cast("asyncio.Transport", transport)
        state = self.state
        row = self.state.row
        row[_ACCEPTS] += 1
        slots = state.options.worker_connections
        if slots and len(state.open) >= slots:
            # As nginx without a free slot: accepted, never handled.
            transport.abort()
            return
        row[_HANDLED] += 1
        row[_ACTIVE] += 1
        self.transport = transport
        self.opened = self.since = asyncio.get_running_loop().time()
        state.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is None:
            return
        self.state.row[_ACTIVE] -= 1
        self._set_reading(False)
        self.transport = None
        self.state.open.discard(self)

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self.unread += data
            self._process_input()

    def eof_received(self) -> bool:
        # A client that only shut down its sending side still gets its answer.
        self.eof = True
        self._process_input()
        return True

    def pause_writing(self) -> None:
        self.paused = True
        # A client that does not read answers must not pile up requests.
        if self.transport is not None and not self.eof:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            if not self.eof:
                self.transport.resume_reading()
            self._process_input()

    def expired(self, now: float) -> bool:
        """Whether it has been waiting for longer than its state allows."""
        options = self.state.options
        allowed_s = options.keepalive_timeout_s
        if self.requests == 0 or self.reading:
            allowed_s = options.client_header_timeout_s
        return now - self.since > allowed_s

    def close(self) -> None:
        """Close it as nginx does: with a FIN."""
        if self.transport is not None:
            self.transport.close()

    def _process_input(self) -> None:
        """Answer what was received, until the write buffer is full."""
        transport = self.transport
        if transport is None or self.paused or transport.is_closing():
            return
        if self.byte_protocol is None and self.unread:
            self.byte_protocol = self.unread[:1].isdigit()
        if not self.closing:
            if self.byte_protocol:
                self._process_byte_requests(transport)
            elif self.unread:
                self._process_http(transport)
        if self.eof and not self.paused:
            transport.close()

    def _process_byte_requests(self, transport: asyncio.Transport) -> None:
        while True:
            while self.owed:
                length = min(self.owed, len(_CHUNK))
                transport.write(_CHUNK[:length])
                self.owed -= length
                if self.paused or transport.is_closing():
                    return
            match = _BYTE_REQUEST.match(self.unread)
            if match is None or int(match[1]) > _MOST_BYTES:
                if match is not None or not _PARTIAL_BYTE_REQUEST.fullmatch(self.unread):
                    transport.close()
                return
            self.owed = int(match[1])
            self.unread = self.unread[match.end() :]

    def _process_http(self, transport: asyncio.Transport) -> None:
        data = self.unread
        at = 0
        size = len(self.unread)
        out: list[bytes] = []
        refused = False
        while not self.closing:
            if self.request is None:
                at = self._begin_request(data, at)
                if self.request is None:
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
            self.request = None
            self.in_request = False
        self.unread = data[at:]
        self._set_reading(self.in_request)
        if out:
            self.since = asyncio.get_running_loop().time()
            transport.write(b"".join(out))
        if self.closing:
            self._close_after_answer(transport, linger=refused or at < size)

    def _begin_request(self, data: bytes, at: int) -> int:
        """Set ``request`` if its head is complete or refused; return where the input goes on."""
        size = len(data)
        # Empty lines before a request are skipped (RFC 9112 2.2).
        while at < size and data[at] in b"\r\n":
            at += 1
        if at == size:
            return at
        # nginx counts a request from its first byte.
        self.state.row[_REQUESTS] += not self.in_request
        self.in_request = True
        if _PARTIAL_REQUEST_LINE.match(data, at, at + LONGEST_HEAD) is None:
            self.request = Request(400)
            return at
        end = HEAD_END.search(data, at, at + LONGEST_HEAD)
        if end is not None:
            self.request = parse_request(data[at : end.start()])
            return end.end()
        if size - at >= LONGEST_HEAD:
            self.request = Request(431)
        return at

    def _answer(self, request: Request) -> bytes:
        """The answer to a complete request; sets ``closing`` if the connection ends with it."""
        self.requests += 1
        keep = request.keep and not self._is_used_up()
        self.closing = not keep
        status = request.status
        body = b""
        if status == 200:
            status, body = self.state.page(request.path)
        return answer(status, body, self.state.date(), head_only=request.head_only, keep=keep)

    def _is_used_up(self) -> bool:
        """Whether it has had its number of requests or its time."""
        options = self.state.options
        if self.requests >= options.keepalive_requests or options.keepalive_timeout_s <= 0:
            return True
        return asyncio.get_running_loop().time() - self.opened > options.keepalive_time_s

    def _set_reading(self, reading: bool) -> None:
        """Count the connection as reading a request, or not."""
        self.state.row[_READING] += reading - self.reading
        self.reading = reading

    def _close_after_answer(self, transport: asyncio.Transport, *, linger: bool) -> None:
        """Close. If the client still sends, close later: a reset would destroy our answer."""
        self.unread = b""
        if linger and not self.eof and transport.can_write_eof():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, transport.close)
        else:
            transport.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop if it is installed: half the memory and CPU per connection."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def listen(address: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; ``shared``: other processes may listen on the port too (SO_REUSEPORT)."""
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


def stop_requested(*worker_pipes: int) -> asyncio.Future[int]:
    """A future of the exit status: 0 at a terminating signal, 1 when one of the pipes is readable,
    since its worker died.
    """
    loop = asyncio.get_running_loop()
    status: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not status.done():
            status.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, finish, 0)
    for pipe in worker_pipes:
        loop.add_reader(pipe, finish, 1)
    return status


def run_listener(address: str, port: int, connection: Callable[[], asyncio.Protocol]) -> int:
    """Serve in one process until a signal; print the port once it listens. Returns the exit
    status.
    """
    _raise_descriptors()

    async def serve(listener: socket.socket) -> int:
        await asyncio.get_running_loop().create_server(connection, sock=listener, backlog=_BACKLOG)
        stopped = stop_requested()
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
    """Raise this process's descriptor limit to its maximum."""
    nofile = descriptor_limit()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))


def _run_worker(
    listener: socket.socket,
    row: memoryview,
    options: Options,
    parent: int,
    tls: ssl.SSLContext | None,
) -> None:
    """Run a worker; it ends when the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    state = SharedState(row, options)

    async def serve() -> None:
        await loop.create_server(
            lambda: Connection(state), sock=listener, backlog=_BACKLOG, ssl=tls
        )
        gc.freeze()
        await state.sweep()

    loop.run_until_complete(serve())


def run(
    address: str,
    port: int,
    status_port: int,
    workers: int,
    options: Options,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until a signal or a worker's death; print the port once all listen. Returns the exit
    status.
    """
    # Exclusive, and first: it fails if another server drew the same pair of ports.
    status = listen("127.0.0.1", status_port)
    listeners = [listen(address, port, shared=True) for _ in range(workers)]
    cells = memoryview(mmap.mmap(-1, (workers + 1) * _ROW * 8)).cast("Q")
    rows = [cells[index * _ROW : (index + 1) * _ROW] for index in range(workers + 1)]
    parent = os.getpid()
    pids: list[int] = []
    worker_pipes: list[int] = []
    try:
        for listener, row in zip(listeners, rows[1:], strict=True):
            # It becomes readable for the parent when the worker dies.
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    status.close()
                    for other in listeners:
                        if other is not listener:
                            other.close()
                    _run_worker(listener, row, options, parent, tls)
                finally:
                    os._exit(1)
            # At once, so that no later worker inherits it and keeps it open.
            os.close(writer)
            pids.append(pid)
            worker_pipes.append(reader)
        # A listener left open here would still be given connections after its worker died.
        for listener in listeners:
            listener.close()
        return _run_parent(status, rows, worker_pipes, port)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _run_parent(
    status: socket.socket, rows: list[memoryview], worker_pipes: list[int], port: int
) -> int:
    """Serve the status page and watch the workers; print the port once both are ready. Returns the
    exit status.
    """
    loop = new_loop()
    asyncio.set_event_loop(loop)

    def page(path: bytes) -> tuple[int, bytes]:
        if path != b"/nginx_status":
            return 404, b"404\n"
        sums = [sum(row[column] for row in rows) for column in range(5)]
        names = ("accepts", "handled", "active", "requests", "reading")
        # The request for this page is the one being answered.
        return 200, status_page(**dict(zip(names, sums, strict=True)), writing=1)

    async def serve() -> int:
        state = SharedState(rows[0], Options(), page)
        await loop.create_server(lambda: Connection(state), sock=status, backlog=_BACKLOG)
        stopped = stop_requested(*worker_pipes)
        print(port, flush=True)
        return await stopped

    return loop.run_until_complete(serve())


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m asyncli.lab.builtin``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncli.lab.builtin", description="asyncli's built-in server"
    )
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument(
        "--model",
        action="store_true",
        help="run the asyncio server model: one process, no status page",
    )
    parser.add_argument(
        "--status-port",
        type=int,
        default=0,
        help="port of the status page; 0: the next one, or a free one",
    )
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (one per CPU)"
    )
    for name, default in Options()._asdict().items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        parser.add_argument(
            flag, dest=name, type=type(default), default=default, help=f"as nginx's ({default:g})"
        )
    parser.add_argument("--certificate", help="PEM with the key: speak TLS")
    chosen = parser.parse_args(argv)
    if chosen.model:
        state = SharedState(
            memoryview(bytearray(8 * _ROW)).cast("Q"), Options(), byte_protocol=True
        )
        return run_listener(chosen.address, chosen.port, lambda: Connection(state))
    _raise_descriptors()
    options = Options(**{name: vars(chosen)[name] for name in Options._fields})
    try:
        drawn, status_port = ports.free_pair("127.0.0.1" if chosen.port else chosen.address)
        tls = None
        if chosen.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(chosen.certificate)
        return run(
            chosen.address,
            chosen.port or drawn,
            chosen.status_port or status_port,
            chosen.workers,
            options,
            tls,
        )
    except HostError as error:
        print(error, file=sys.stderr)
        return error.exit_status
