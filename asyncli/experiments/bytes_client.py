"""The classic client of the server models: processes that request bytes, read them and close, one
connection after the other.

``python -m asyncli.experiments.bytes_client HOST PORT PROCESSES LOOPS BYTES``: each of PROCESSES
opens LOOPS connections in turn with blocking sockets. On each it sends BYTES as a decimal number
and a line feed, reads that many bytes, and closes first, as the source's client does. It prints one
line of JSON. The exit status is 0 only if every connection received its bytes.

The side that closes first keeps the connection's port for a minute (TIME_WAIT). So connections on
loopback come from many addresses of 127.0.0.0/8, few enough from each that a port is always free,
however many runs follow each other.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from typing import IO

from asyncli.engine.spread import loopback_sources, sources_wanted

# linux/in.h; new in the socket module of Python 3.12.
_IP_BIND_ADDRESS_NO_PORT = 24
# The default range of local ports. With a wider one more addresses than needed are used; a narrower
# one is still not exhausted.
_PORTS = 28_232
# A server that does not answer for so long hangs: 100 clients wait far less for a server that
# serves one at a time.
_TIMEOUT_S = 30


class _WrongLengthError(Exception):
    """The server sent too few or too many bytes; the text is the kind of failure."""


def request_bytes(host: str, port: int, source: str | None, wanted: int) -> None:
    """Request ``wanted`` bytes on one connection and read them. Raises OSError or
    :class:`_WrongLengthError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        # Kernel timeouts: settimeout() would poll before each call.
        timeout = _TIMEOUT_S.to_bytes(8, sys.byteorder) + bytes(8)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        if source is not None:
            # Else bind() would reserve a port of the address for all destinations.
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        sock.connect((host, port))
        sock.sendall(b"%d\n" % wanted)
        missing = wanted
        while missing > 0:
            # One more than is missing, to detect a server that sends too much.
            got = len(sock.recv(missing + 1))
            if not got:
                raise _WrongLengthError("short")
            missing -= got
        if missing:
            raise _WrongLengthError("too_many_bytes")


def _loop(
    host: str, port: int, sources: tuple[str | None, ...], loops: int, wanted: int, parent: int
) -> tuple[int, str | None]:
    """Open ``loops`` connections in turn; returns how many succeeded before the first failure, and
    its kind or None.
    """
    for done in range(loops):
        if os.getppid() != parent:
            return done, "orphaned"
        try:
            request_bytes(host, port, sources[done * len(sources) // loops], wanted)
        except _WrongLengthError as error:
            return done, str(error)
        except OSError as error:
            return done, _kind_of(error)
    return loops, None


def _kind_of(error: OSError) -> str:
    # After SO_SNDTIMEO or SO_RCVTIMEO connect(), send() and recv() fail as non-blocking calls do
    # (socket(7)).
    if isinstance(error, BlockingIOError):
        return "timeout"
    return errno.errorcode.get(error.errno or 0, "other")


def _sources(host: str, processes: int, loops: int) -> list[tuple[str | None, ...]]:
    """The source addresses of each process; None: the kernel chooses, if the server is not on
    127.0.0.0/8.
    """
    if not host.startswith("127."):
        return [(None,)] * processes
    per_process = sources_wanted(loops, 1, _PORTS)
    addresses = loopback_sources(processes * per_process)
    if not addresses:
        return [(None,)] * processes
    # With more connections than addresses, addresses repeat.
    endless = itertools.cycle(addresses)
    return [tuple(itertools.islice(endless, per_process)) for _ in range(processes)]


def _start(host: str, port: int, processes: int, loops: int, wanted: int) -> IO[str]:
    """Fork the processes and start them at the same time. The returned stream has a line from each
    when it ends. They end soon after this process.
    """
    sources = _sources(host, processes, loops)
    parent = os.getpid()
    ready_read, ready_write = os.pipe()
    result_read, result_write = os.pipe()
    for number in range(processes):
        if os.fork() == 0:
            try:
                os.close(ready_write)
                os.read(ready_read, 1)
                done, kind = _loop(host, port, sources[number], loops, wanted, parent)
                # Shorter than PIPE_BUF, so that lines of several processes do not mix (pipe(7)).
                os.write(result_write, f"{done} {kind or '-'}\n".encode())
            finally:
                os._exit(0)
    for descriptor in (result_write, ready_read, ready_write):
        os.close(descriptor)
    return os.fdopen(result_read, encoding="ascii")


def main(argv: list[str]) -> int:
    """The command line; returns the exit status."""
    try:
        host, *numbers = argv
        port, processes, loops, wanted = map(int, numbers)
        if min(port, processes, loops, wanted) < 1:
            raise ValueError
        socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
    except (ValueError, OSError):
        print(
            "usage: bytes_client HOST PORT PROCESSES LOOPS BYTES: an IP address and numbers from "
            "1 up",
            file=sys.stderr,
        )
        return 2
    try:
        results = _start(host, port, processes, loops, wanted)
    except OSError as error:
        print(
            f"cannot fork {processes} client processes ({error.strerror}); ask for fewer, or "
            "raise ulimit -u",
            file=sys.stderr,
        )
        return 1
    begun = time.monotonic()
    with results:
        ends = [line.split() for line in results]
    seconds = time.monotonic() - begun
    for _ in range(processes):
        os.wait()
    failures = Counter(kind for _, kind in ends if kind != "-")
    if processes > len(ends):
        failures["died"] = processes - len(ends)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    connections = sum(int(done) for done, _ in ends)
    result = {
        "connections": connections,
        "seconds": seconds,
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "failures": failures,
    }
    print(json.dumps(result), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    # Ctrl-C ends it without a traceback, and also its processes, which are in its process group.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
