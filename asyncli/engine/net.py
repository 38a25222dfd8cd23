"""The network interface of a connection table, and its implementation on the kernel's sockets.

The table sees connections as small integers (file descriptors here, numbers in the simulation of
sim.py), bytes, and OSErrors. TLS (tls.py), the PROXY protocol (proxied_net.py) and Unix sockets
(unix_net.py) are further implementations.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from asyncli.core.life import DEADLINE
from asyncli.engine.spread import Destination, sources_for
from asyncli.model.records import Tick

#: Pending connects of a worker: half of nginx's default listen backlog of 511. More would only
#: queue in the kernel.
MOST_PENDING = 256
#: PEER_CLOSED: the peer has closed its end; reported only where it is watched.
READABLE, WRITABLE, PEER_CLOSED = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP
#: The same, or the connection is broken, which is always reported.
HUNG_UP = PEER_CLOSED | select.EPOLLHUP | select.EPOLLERR
# A socket whose connect has failed or whose peer has reset it reports both.
_BROKEN = select.EPOLLHUP | select.EPOLLERR

_IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; the socket module names it only since Python 3.12
_IP_LOCAL_PORT_RANGE = 51  # linux/in.h, since 6.3
_IP_MINTTL = 21  # linux/in.h
_IPV6_MINHOPCOUNT = 73  # linux/in6.h
_HIGHEST_TTL = 255
# What a host announces as its segments' size (RFC 6691) on a path with an MTU of 1500: without the
# headers of IP and TCP. Timestamps take 12 bytes of each.
_SEGMENTS_OF_1500: dict[int, int] = {socket.AF_INET: 1460, socket.AF_INET6: 1440}
_NONBLOCKING_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
# The C base class: no Python frame per socket, and no system call for the family and type of a
# descriptor.
_Socket = socket.SocketType
_CONNECTS = (errno.EINPROGRESS, 0)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The places of tcpi_total_retrans and tcpi_dsack_dups in struct tcp_info (linux/tcp.h); the latter
# since Linux 4.19.
_TCP_INFO_BYTES, _AT_TOTAL_RETRANS, _AT_DSACK_DUPS = 232, 100, 216
# Likewise those of tcpi_rto (us), tcpi_unacked and tcpi_last_data_sent (ms).
_AT_RTO, _AT_UNACKED, _AT_LAST_DATA_SENT = 8, 24, 44
_UNSPEC = bytes(16)  # a sockaddr of the family AF_UNSPEC


class Unacknowledged(NamedTuple):
    """What the peer's kernel has not acknowledged: how long ago (s) ours sent some of it last, and
    in how long it sends it again if it hears nothing until then.
    """

    sent_ago_s: float
    again_in_s: float


class Net(Protocol):
    """What a connection table needs. Every method is non-blocking; OSErrors carry an errno from
    core.life's table.
    """

    @property
    def send(self) -> Callable[[int, bytes], int]:
        """send(handle, data) -> bytes taken. BlockingIOError while connecting, or the error of a
        failed connect: sending b"" returns the outcome of a connect.
        """
        ...

    @property
    def recv(self) -> Callable[[int, int], bytes]:
        """recv(handle, most) -> bytes; b"" at the end of the stream."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds on a clock that never steps back."""
        ...

    def connect(self, destination: int, source: int) -> int:
        """Begin to connect to the numbered destination, from source ``source`` modulo their number;
        returns the handle.
        """
        ...

    def limit_segments(self, is_limited: bool) -> None:
        """Whether the next connections of TCP have segments as over a path with an MTU of 1500:
        those of loopback are 44 times as long, and let the peer's send buffer grow at once.
        """
        ...

    def segment_bytes(self, handle: int) -> int:
        """The largest segments of a connection of TCP (bytes); 0 for other sockets."""
        ...

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        """Have ``poll`` report ``events`` of the handle; ``again``: it is watched already."""
        ...

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        """Up to ``most`` (handle, events) that are ready now or within ``wait_s``;
        level-triggered.
        """
        ...

    def close(self, handle: int, abort: bool) -> None:
        """Close; with ``abort`` by RST, which spares TIME_WAIT."""
        ...

    def replace(self, handle: int, destination: int, source: int) -> int:
        """Close a watched handle and connect in its place; returns the new handle, mostly the same
        number.

        The same number stays watched as before, another is not watched. The old handle is closed
        even if connecting fails.
        """
        ...

    def deafen(self, handle: int) -> None:
        """From now on the kernel drops what comes for a watched TCP connection before TCP sees it,
        as if its host had lost the network: no acknowledgement, and no answer to probes. It is not
        watched any more.
        """
        ...

    def hear(self, handle: int) -> None:
        """The end of :meth:`deafen`; the handle is watched for READABLE."""
        ...

    def late_event(self, handle: int) -> str | None:
        """The event (core.life) for what took too long: the handshake of TCP or TLS, or an answer.
        None: nothing yet, because the TLS handshake began later.
        """
        ...

    def acknowledged(self, handle: int) -> bool:
        """Whether the peer's kernel has acknowledged all that was sent."""
        ...

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        """What of an established connection of TCP the peer's kernel has not acknowledged. None if
        it has acknowledged all, and of other sockets.
        """
        ...

    def retransmitted(self, handle: int) -> int:
        """How many segments the socket has sent again since it was opened, SYNs included, less
        those that the peer had received (RFC 2883): probes of a busy end, and no loss. 0 for other
        sockets than TCP's.
        """
        ...

    def add_counts(self, tick: Tick) -> None:
        """Put into ``tick`` what the transport has counted since the last call."""
        ...


class KernelNet(Net, Protocol):
    """A net whose events come by one descriptor, which an event loop watches."""

    def fileno(self) -> int: ...


def replace_by_closing(net: Net, handle: int, destination: int, source: int) -> int:
    """:meth:`Net.replace` by a close and a connect."""
    net.close(handle, abort=False)
    other = net.connect(destination, source)
    if other == handle:
        net.watch(other, READABLE | PEER_CLOSED)
    return other


class RealNet:
    """Sockets of the kernel as bare descriptors in one epoll set. ``crowded``: most ports of a
    source will be in use.
    """

    def __init__(
        self, destinations: tuple[Destination, ...], sources: tuple[str, ...], crowded: bool = False
    ) -> None:
        self._epoll = select.epoll()
        # Handles that poll reported with an error in their queue and without an outcome.
        self._with_errors: set[int] = set()
        self._targets = [(destination.family, destination.sockaddr) for destination in destinations]
        self._sources = [
            [(source, 0) for source in sources_for(destination, sources)]
            for destination in destinations
        ]
        # By destination, what is set of a socket before it connects.
        ports = _port_range() if crowded else None
        self._unlimited = [_options(ports) for _ in destinations]
        self._limited = [
            [*_options(ports), *_segments_of_1500(destination)] for destination in destinations
        ]
        self._options = self._unlimited
        # The bare system calls: this is the hot path.
        self.send: Callable[[int, bytes], int] = os.write
        self.recv: Callable[[int, int], bytes] = os.read
        self.clock: Callable[[], float] = time.monotonic

    def fileno(self) -> int:
        return self._epoll.fileno()

    def connect(self, destination: int, source: int) -> int:
        family, address = self._targets[destination]
        sock = _Socket(family, _NONBLOCKING_STREAM)
        try:
            for option in self._options[destination]:
                sock.setsockopt(*option)
            if mine := self._sources[destination]:
                # Without this option bind() takes a port exclusively, which halves the capacity of
                # a pair.
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind(mine[source % len(mine)])
            error = sock.connect_ex(address)
        except OSError:
            sock.close()
            raise
        if error not in _CONNECTS:
            sock.close()
            raise OSError(error, os.strerror(error))
        return sock.detach()

    def limit_segments(self, is_limited: bool) -> None:
        self._options = self._limited if is_limited else self._unlimited

    def segment_bytes(self, handle: int) -> int:
        sock = _Socket(socket.AF_INET, _NONBLOCKING_STREAM, 0, fileno=handle)
        try:
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        except OSError:
            return 0
        finally:
            sock.detach()

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        if again:
            self._epoll.modify(handle, events)
        else:
            self._epoll.register(handle, events)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        events = self._epoll.poll(wait_s, most)
        self._drop_queued_errors(events)
        return events

    def _drop_queued_errors(self, events: list[tuple[int, int]]) -> None:
        """Empty the error queues of sockets that still connect: poll reports a queue until it is
        empty.

        The kernel queues an ICMP error about a SYN (tcp_v4_err). On loopback it comes while
        connect() has the socket locked: only the answer to the next SYN ends the connect. Where the
        error ends it, that follows at once, and emptying the queue would clear it
        (sock_dequeue_err_skb): so a queue is emptied when it is reported again.
        """
        for handle, reported in events:
            if reported & _BROKEN != select.EPOLLERR:
                continue
            if handle not in self._with_errors:
                self._with_errors.add(handle)
                continue
            self._with_errors.discard(handle)
            sock = _Socket(socket.AF_INET, _NONBLOCKING_STREAM, 0, fileno=handle)
            with contextlib.suppress(OSError):
                while True:
                    sock.recvmsg(1, 0, socket.MSG_ERRQUEUE)
            sock.detach()

    def close(self, handle: int, abort: bool) -> None:
        self._with_errors.discard(handle)
        if abort:
            sock = _Socket(socket.AF_INET, _NONBLOCKING_STREAM, 0, fileno=handle)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()
        else:
            os.close(handle)

    def replace(self, handle: int, destination: int, source: int) -> int:
        return replace_by_closing(self, handle, destination, source)

    def deafen(self, handle: int) -> None:
        self._epoll.unregister(handle)
        _set_least_ttl(handle, _HIGHEST_TTL)

    def hear(self, handle: int) -> None:
        _set_least_ttl(handle, 0)
        self._epoll.register(handle, READABLE)

    def late_event(self, handle: int) -> str | None:
        return DEADLINE

    def acknowledged(self, handle: int) -> bool:
        return not any(fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(4)))

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        info = _tcp_info(handle)
        if not _number_at(info, _AT_UNACKED):
            return None
        # The kernel doubles the timeout each time, and the timer starts as it sends.
        timeout_s = _number_at(info, _AT_RTO) / 1e6
        sent_ago_s = _number_at(info, _AT_LAST_DATA_SENT) / 1e3
        return Unacknowledged(sent_ago_s, max(0.0, timeout_s - sent_ago_s))

    def retransmitted(self, handle: int) -> int:
        info = _tcp_info(handle)
        total = int.from_bytes(info[_AT_TOTAL_RETRANS : _AT_TOTAL_RETRANS + 4], sys.byteorder)
        needless = int.from_bytes(info[_AT_DSACK_DUPS : _AT_DSACK_DUPS + 4], sys.byteorder)
        return max(0, total - needless)

    def add_counts(self, tick: Tick) -> None:
        pass


def _tcp_info(handle: int) -> bytes:
    """The struct tcp_info of a socket; as much of it as the kernel has."""
    sock = _Socket(socket.AF_INET, _NONBLOCKING_STREAM, 0, fileno=handle)
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    finally:
        sock.detach()


def _number_at(info: bytes, place: int) -> int:
    return int.from_bytes(info[place : place + 4], sys.byteorder)


# The arguments of a call of setsockopt(2).
_Option = tuple[int, int, int | bytes]


def _options(ports: bytes | None) -> list[_Option]:
    """Of every socket: the range of local ports, if connect() is to try one after the other."""
    if ports is None:
        return []
    return [(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, ports)]


def _segments_of_1500(destination: Destination) -> list[_Option]:
    size = _SEGMENTS_OF_1500.get(destination.family)
    if size is None:
        return []
    return [(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size)]


def _set_least_ttl(handle: int, ttl: int) -> None:
    """Have the kernel drop segments of a connection that come with a lower time to live (RFC 5082):
    with the highest, all that passed a router or left a host with the usual 64. Any user may.
    """
    with socket.socket(fileno=os.dup(handle)) as sock:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MINHOPCOUNT, ttl)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MINTTL, ttl)


def _port_range() -> bytes | None:
    """The range of local ports as a socket option. With it connect() tries one port after the
    other, without it every second one first, which took 30 ms a connect once half the ports were in
    use. It helps from Linux 6.8 on; None before 6.3.
    """
    try:
        low, high = map(
            int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        )
        # One number of 32 bits: the highest port in its upper half.
        option = struct.pack("=I", high << 16 | low)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, option)
    except (OSError, ValueError, struct.error):
        return None
    return option


class PollNet(RealNet):
    """RealNet by poll(2): the set is in this process, so adding and removing a connection takes no
    system call.

    For a few connections that each serve one request. poll(2) checks every connection at each call,
    so epoll is better for many or long-lived ones.

    A replaced connection leaves its socket to the next one: connecting to an address of no family
    dissolves the association (connect(2)). On the wire that is a FIN and then a SYN from another
    port, as usual; the socket, its inode and its file are reused, which saves a tenth of the cost
    of a short connection.
    """

    def __init__(self, destinations: tuple[Destination, ...], sources: tuple[str, ...]) -> None:
        import ctypes

        super().__init__(destinations, sources)
        self._set = select.poll()
        self._watched: set[int] = set()
        self._kept: dict[int, socket.SocketType] = {}
        # PyDLL keeps the GIL: the call takes a microsecond. Python's own modules cannot connect to
        # AF_UNSPEC.
        self._libc_connect = ctypes.PyDLL(None).connect
        self._libc_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        self._set.register(handle, events)
        self._watched.add(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        events = self._set.poll(math.ceil(wait_s * 1000))[:most]
        self._drop_queued_errors(events)
        return events

    def close(self, handle: int, abort: bool) -> None:
        if handle in self._watched:
            self._watched.discard(handle)
            self._set.unregister(handle)
        if (kept := self._kept.pop(handle, None)) is not None:
            kept.detach()
        super().close(handle, abort)

    def replace(self, handle: int, destination: int, source: int) -> int:
        family, address = self._targets[destination]
        if not self._sources[destination]:
            sock = self._kept.get(handle)
            if sock is None:
                sock = self._kept[handle] = _Socket(family, _NONBLOCKING_STREAM, 0, handle)
            try:
                sock.shutdown(socket.SHUT_WR)
                if (
                    self._libc_connect(handle, _UNSPEC, len(_UNSPEC)) == 0
                    and sock.connect_ex(address) in _CONNECTS
                ):
                    return handle
            except OSError:
                pass  # reset by the peer
        return super().replace(handle, destination, source)
