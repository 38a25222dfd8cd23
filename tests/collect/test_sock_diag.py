"""Sockets by port, as this kernel counts them: ports of both families, in one reading."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncli.collect.sock_diag import client_inodes, listening_sockets, server_inodes, server_sockets

#: More than jumps of a byte reach.
PORTS = 30


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        of_ipv4 = [socket.create_server(("127.0.0.1", 0)) for _ in range(PORTS)]
        of_ipv6 = [socket.create_server(("::1", 0), family=socket.AF_INET6)] if socket.has_ipv6 else []
        yield [stack.enter_context(listener) for listener in (*of_ipv4, *of_ipv6)]


def test_sockets_are_counted_at_any_number_of_ports(listeners: list[socket.socket]) -> None:
    ports = [listener.getsockname()[1] for listener in listeners]
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
        waiting = server_sockets(ports)
        assert (waiting.accepted, waiting.waiting, waiting.elsewhere) == (0, len(ports), 0)
        for listener in listeners[:10]:
            stack.enter_context(listener.accept()[0])
        both = server_sockets(ports[:4], elsewhere=ports[4:])
        assert (both.accepted, both.waiting, both.elsewhere) == (4, 0, 6)
        for port in (ports[0], ports[-1]):
            only = server_sockets([port])
            assert only.accepted + only.waiting == 1
        assert len(server_inodes(ports)) == 10
        assert len(client_inodes(ports)) == len(ports)
    assert len(listening_sockets(ports)) == len(ports)
    assert listening_sockets([]) == {}
    assert server_sockets([]) == (0, 0, 0, 0, 0)


def test_what_a_client_does_not_read_is_memory_of_the_server_s_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        port = listener.getsockname()[1]
        accepted, _ = listener.accept()
        with accepted:
            accepted.setblocking(False)
            assert server_sockets([port], with_memory=True).memory == 0
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += accepted.send(bytes(65_536))
            received = fcntl.ioctl(client, termios.FIONREAD, bytes(4))
            waits = sent - int.from_bytes(received, sys.byteorder)
            queued = server_sockets([port], with_memory=True).memory
            # Its packets take some more than what is in them, and at most twice as much.
            assert waits <= queued <= 2 * waits + 65_536
            assert server_sockets([port]).memory == 0
