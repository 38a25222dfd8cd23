"""What the server's listening sockets have dropped, by the kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence

from asyncli.collect.listeners import Listeners


def readings(listeners: Listeners, least: float) -> float:
    """What they dropped, once it is so many or five seconds have passed."""
    until_s = time.monotonic() + 5.0
    while True:
        dropped = listeners.read().values["server.listeners_dropped"]
        if dropped >= least or time.monotonic() > until_s:
            return dropped
        time.sleep(0.05)


def connect(stack: contextlib.ExitStack, address: Sequence[object], count: int) -> None:
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(tuple(address))


def test_the_backlog_is_the_least_of_those_that_listen() -> None:
    with contextlib.ExitStack() as stack:
        ports = []
        for backlog in (32, 7):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(backlog)
            ports.append(listener.getsockname()[1])
        values = Listeners(ports, [os.getpid()], lambda: [os.getpid()]).read().values
        assert (values["server.listeners"], values["server.listeners_backlog"]) == (2, 7)


def test_only_what_its_own_sockets_drop_counts() -> None:
    with contextlib.ExitStack() as stack, socket.socket() as own, socket.socket() as other:
        for listener in (own, other):
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
        of_own = Listeners([own.getsockname()[1]], [os.getpid()], lambda: [os.getpid()])
        assert readings(of_own, 0) == 0
        connect(stack, other.getsockname(), 6)
        of_other = Listeners([other.getsockname()[1]], [os.getpid()], lambda: [os.getpid()])
        # What they dropped before the first reading is none of ours.
        assert of_other.read().values["server.listeners_dropped"] == 0
        connect(stack, other.getsockname(), 6)
        assert readings(of_other, 4) >= 4
        assert readings(of_own, 0) == 0
        connect(stack, own.getsockname(), 6)
        assert readings(of_own, 4) >= 4


def test_readings_without_a_socket_count_only_after_one_with_some() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        address = first.getsockname()
        first.listen(8)
        listeners = Listeners([address[1]], [os.getpid()], lambda: [os.getpid()])
        counted = []
        listeners.read()
        counted.append(listeners.absent_for)
    for _ in range(3):
        listeners.read()
        counted.append(listeners.absent_for)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)
        again.listen(8)
        listeners.read()
        counted.append(listeners.absent_for)
    assert counted == [0, 1, 2, 3, 0]
    never = Listeners([address[1]], [os.getpid()], lambda: [os.getpid()])
    never.read()
    never.read()
    assert never.absent_for == 0
