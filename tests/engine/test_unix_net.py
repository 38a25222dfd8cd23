"""Unix sockets: connects that meet a full listen queue wait their turn."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncli.engine.net import READABLE, WRITABLE
from asyncli.engine.spread import Destination
from asyncli.engine.unix_net import UnixNet
from asyncli.model.records import Tick


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(0)  # which has room for one (listen(2))
        yield server


def connecting(net: UnixNet) -> int:
    handle = net.connect(0, 0)
    net.watch(handle, READABLE | WRITABLE)
    return handle


def until_connected(net: UnixNet, handle: int) -> int | str | None:
    """The outcome of a connect once it no longer waits."""
    for _ in range(1000):
        if outcome(net, handle) != "EAGAIN":
            break
        net.poll(8, 5.0)
    return outcome(net, handle)


def outcome(net: UnixNet, handle: int) -> int | str | None:
    """The outcome of a connect, by a first send as a table does it."""
    try:
        return net.send(handle, b"")
    except OSError as error:
        return errno.errorcode[error.errno or 0]


@pytest.mark.parametrize("abstract", [False, True])
def test_a_connect_that_meets_a_full_queue_waits_its_turn(tmp_path: Path, abstract: bool) -> None:
    name = "asyncli-test-queue" if abstract else str(tmp_path / "a.sock")
    net = UnixNet((Destination(socket.AF_UNIX, f"@{name}" if abstract else name, 0),))
    with listening(f"\0{name}" if abstract else name) as server:
        handles = [connecting(net) for _ in range(4)]
        assert [outcome(net, handle) for handle in handles] == [0, "EAGAIN", "EAGAIN", "EAGAIN"]
        assert [handle for handle, _ in net.poll(8)] == handles[:1]
        taken = [server.accept()[0]]
        # Only the first one, even if another comes meanwhile.
        handles.append(connecting(net))
        assert until_connected(net, handles[1]) == 0
        assert [outcome(net, handle) for handle in handles] == [0, 0, "EAGAIN", "EAGAIN", "EAGAIN"]
        # A closed one does not block the queue.
        net.close(handles[2], abort=True)
        taken.append(server.accept()[0])
        assert until_connected(net, handles[3]) == 0
        assert net.send(handles[3], b"x") == 1
        net.add_counts(tick := Tick())
        assert tick.queue_full == 4
    # A connect that waits when the server ends is refused.
    assert until_connected(net, handles[4]) == "ENOTCONN"
    for handle in (handles[0], handles[1], handles[3], handles[4]):
        net.close(handle, abort=False)
    for sock in taken:
        sock.close()
