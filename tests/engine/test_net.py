"""Nets on the kernel's sockets: replaced connections, acknowledgements, deadlines of TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import cast

import pytest
from namespaces import SERVER, Cable

from asyncli.core.life import DEADLINE, TLS_DEADLINE
from asyncli.engine.net import PEER_CLOSED, READABLE, WRITABLE, PollNet, RealNet
from asyncli.engine.spread import Destination
from asyncli.engine.tls import TlsNet
from asyncli.model.values import TlsOptions

# TEST-NET-1 of RFC 5737: no address of this host.
NOT_OURS = "192.0.2.1"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture(params=[RealNet, PollNet])
def net(request: pytest.FixtureRequest, listener: socket.socket) -> RealNet:
    kind: type[RealNet] = request.param
    return kind((Destination(socket.AF_INET, "127.0.0.1", listener.getsockname()[1]),), ("127.0.0.1", NOT_OURS))


def connected(net: RealNet, listener: socket.socket) -> tuple[int, socket.socket]:
    handle = net.connect(0, 0)
    net.watch(handle, READABLE | PEER_CLOSED)
    return handle, listener.accept()[0]


def test_a_replacement_is_watched_as_before(net: RealNet, listener: socket.socket) -> None:
    handle, first = connected(net, listener)
    other = net.replace(handle, 0, 0)
    assert other == handle
    assert first.recv(1) == b""  # the old one is closed
    second = listener.accept()[0]
    assert net.poll(8) == []
    second.sendall(b"x")
    assert net.poll(8, 1.0) == [(handle, READABLE)]
    net.close(handle, abort=False)
    assert net.poll(8) == []
    first.close()
    second.close()


def test_a_failed_replacement_still_closes_the_old_handle(net: RealNet, listener: socket.socket) -> None:
    handle, first = connected(net, listener)
    with pytest.raises(OSError, match="Cannot assign requested address"):
        net.replace(handle, 0, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    assert net.poll(8) == []
    first.close()


def test_a_reused_socket_is_a_new_connection_to_the_server(listener: socket.socket) -> None:
    net = PollNet((Destination(socket.AF_INET, "127.0.0.1", listener.getsockname()[1]),), ())
    handle, peer = connected(net, listener)
    ports = {peer.getpeername()[1]}
    inode = os.fstat(handle).st_ino
    for number in range(50):
        net.send(handle, b"ask %d" % number)
        assert peer.recv(100) == b"ask %d" % number
        peer.sendall(b"answer")
        peer.shutdown(socket.SHUT_WR)
        assert net.poll(8, 1.0) == [(handle, READABLE | PEER_CLOSED)]
        assert net.recv(handle, 100) == b"answer"
        assert net.replace(handle, 0, 0) == handle
        assert peer.recv(1) == b""  # an orderly end, and no reset
        peer.close()
        peer = listener.accept()[0]
        ports.add(peer.getpeername()[1])
        assert net.poll(8) == []
    assert len(ports) == 51
    assert os.fstat(handle).st_ino == inode
    net.close(handle, abort=False)
    assert peer.recv(1) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    peer.close()


def test_unread_data_in_the_peers_kernel_is_acknowledged(listener: socket.socket) -> None:
    net = RealNet((Destination(socket.AF_INET, "127.0.0.1", listener.getsockname()[1]),), ())
    handle, peer = connected(net, listener)
    net.send(handle, b"ask")
    assert net.acknowledged(handle)
    with contextlib.suppress(BlockingIOError):
        while net.send(handle, bytes(65_536)):
            pass
    assert not net.acknowledged(handle)
    net.close(handle, abort=True)
    peer.close()


def test_a_deaf_socket_knows_when_it_sends_again(listener: socket.socket) -> None:
    net = RealNet([Destination(socket.AF_INET, "127.0.0.1", listener.getsockname()[1])], ())
    handle, peer = connected(net, listener)
    with peer:
        assert net.unacknowledged(handle) is None
        net.deafen(handle)
        net.send(handle, b"request")
        time.sleep(0.5)
        waits = net.unacknowledged(handle)
        assert waits is not None
        assert waits.again_in_s >= 0
        # Linux waits for 0.2 s at first, and since then for twice as long each time.
        assert waits.sent_ago_s + waits.again_in_s > 0.35
        net.hear(handle)
        until = time.monotonic() + 30
        while net.unacknowledged(handle) is not None and time.monotonic() < until:
            time.sleep(0.02)
        assert net.unacknowledged(handle) is None
        net.close(handle, abort=True)


def test_a_socket_knows_what_it_sent_again() -> None:
    with socket.socket() as full, socket.socket() as other:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        net = RealNet((Destination(socket.AF_INET, "127.0.0.1", full.getsockname()[1]),), ())
        first = net.connect(0, 0)
        assert net.retransmitted(first) == 0
        # The queue of one is full: the kernel drops the SYN of the second, which is sent again after a second.
        other.setblocking(False)
        other.connect_ex(full.getsockname())
        second = net.connect(0, 0)
        give_up_s = time.monotonic() + 60
        while not net.retransmitted(second) and time.monotonic() < give_up_s:
            time.sleep(0.05)
        assert (net.retransmitted(first), net.retransmitted(second) >= 1) == (0, True)
        for handle in (first, second):
            net.close(handle, abort=True)


@pytest.mark.namespaces
@pytest.mark.parametrize("kind", [RealNet, PollNet])
def test_a_rejected_syn_is_not_reported_without_end(kind: type[RealNet]) -> None:
    """On loopback the connect goes on until the next SYN: an error that stays in its queue would be polled again and again."""
    rule = "table ip t { chain i { type filter hook input priority 0; tcp dport 9000 reject with icmp admin-prohibited; }; }"
    with Cable() as cable, cable.inside("server"):
        subprocess.run(["nft", rule], check=True)
        net = kind((Destination(socket.AF_INET, SERVER, 9000),), ())
        handle = net.connect(0, 0)
        net.watch(handle, READABLE | WRITABLE)
        reports = 0
        outcome = errno.EAGAIN
        begun_s = time.monotonic()
        while outcome == errno.EAGAIN and time.monotonic() < begun_s + 60:
            reports += len(net.poll(8, 0.1))
            try:
                net.send(handle, b"")
            except OSError as error:
                outcome = error.errno or 0
        took_s = time.monotonic() - begun_s
        net.close(handle, abort=True)
    # The error of each SYN (one a second) twice, until its queue is emptied, and the outcome.
    assert outcome == errno.EHOSTUNREACH
    assert reports <= 4 + 2 * took_s


class SlowNet:
    """One connection, whose TCP handshake is over at ``connected_s``."""

    now, connected_s = 0.0, 9.0

    def clock(self) -> float:
        return self.now

    def connect(self, destination: int, source: int) -> int:
        return 7

    def send(self, handle: int, data: bytes) -> int:
        if self.now < self.connected_s:
            raise BlockingIOError
        return len(data)

    recv = poll = connect


def test_a_tls_handshake_may_take_as_long_as_tcps() -> None:
    slow = SlowNet()
    net = TlsNet(cast(RealNet, slow), TlsOptions(), ["localhost"], patience_s=10.0)
    handle = net.connect(0, 0)
    assert net.late_event(handle) == DEADLINE
    slow.now = 9.5
    with pytest.raises(BlockingIOError):
        net.send(handle, b"")
    slow.now = 19.0
    assert net.late_event(handle) is None
    slow.now = 19.5
    assert net.late_event(handle) == TLS_DEADLINE
