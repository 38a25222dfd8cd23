"""The network seam: all that the connection table asks of a network, and the real one.

The table sees small integers for connections (file descriptors here, numbers in the simulated twin in sim.py), bytes, and
OSErrors. TLS is another class with these methods (tls.py).
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncli.core.life import DEADLINE
from asyncli.engine.spread import Destination, sources_for
from asyncli.records import Tick

if TYPE_CHECKING:
    from asyncli.engine.proxied_net import ProxiedNet
    from asyncli.engine.shard import LoadShard, Shard
    from asyncli.engine.tls import TlsNet

READABLE = select.EPOLLIN if hasattr(select, "EPOLLIN") else 1
WRITABLE = select.EPOLLOUT if hasattr(select, "EPOLLOUT") else 4
#: The peer has closed its end; reported where it is asked for.
PEER_CLOSED = select.EPOLLRDHUP if hasattr(select, "EPOLLRDHUP") else 0x2000
#: The same, or the connection is broken, which is reported always.
HUNG_UP = PEER_CLOSED | ((select.EPOLLHUP | select.EPOLLERR) if hasattr(select, "EPOLLHUP") else 0x18)

_IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; the socket module names it only since Python 3.12
_IP_LOCAL_PORT_RANGE = 51  # linux/in.h, since 6.3
_NONBLOCKING_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
# The C base class: no Python frame a socket, and, told what a descriptor is, no system call to find out.
_Socket = socket.SocketType
_CONNECTS = (errno.EINPROGRESS, 0)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# A sockaddr of the family AF_UNSPEC.
_NOWHERE = bytes(16)


class Net(Protocol):
    """What a connection table needs. Every method is non-blocking; OSErrors carry an errno from core.life's table."""

    @property
    def send(self) -> Callable[[int, bytes], int]:
        """send(handle, data) -> bytes taken. BlockingIOError while not connected yet; so sending b"" asks for the outcome
        of a connect, which fails with its error."""
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
        """Begin to connect to the numbered destination, from the source that ``source`` counts to, going round; a handle."""
        ...

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        """Have ``poll`` report ``events`` of the handle; ``again`` when it is watched already."""
        ...

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        """Up to ``most`` (handle, events) that are ready now, or come within ``wait_s``; level-triggered."""
        ...

    def close(self, handle: int, abort: bool) -> None:
        """Close; with ``abort`` by RST, which spares TIME_WAIT."""
        ...

    def replace(self, handle: int, destination: int, source: int) -> int:
        """Close a watched handle and connect in its place; the new handle, which is mostly the same number.

        One that is the same number is watched as before, any other not at all. Where connecting fails, the old one is closed
        all the same.
        """
        ...

    def late_event(self, handle: int) -> str | None:
        """What has taken too long (core.life): of a connect TCP's handshake or TLS's, of a heartbeat its answer; None:
        nothing yet, since TLS's handshake began later."""
        ...

    def acknowledged(self, handle: int) -> bool:
        """Whether the peer's kernel has acknowledged all that was sent."""
        ...

    def add_counts(self, tick: Tick) -> None:
        """Put into ``tick`` what the transport has counted since the last call."""
        ...


def replace_by_closing(net: Net, handle: int, destination: int, source: int) -> int:
    """:meth:`Net.replace` by a close and a connect."""
    net.close(handle, abort=False)
    other = net.connect(destination, source)
    if other == handle:
        net.watch(other, READABLE | PEER_CLOSED)
    return other


class RealNet:
    """Sockets of the kernel as bare descriptors in one epoll set, whose own ``fileno()`` an event loop watches.

    ``crowded``: most ports of a source will be in use.
    """

    def __init__(self, destinations: tuple[Destination, ...], sources: tuple[str, ...], crowded: bool = False) -> None:
        self._range = _every_port() if crowded else None
        self._epoll = select.epoll()
        self._targets = [(one.family, one.sockaddr) for one in destinations]
        self._sources = [[(source, 0) for source in sources_for(one, sources)] for one in destinations]
        # The system calls themselves, with nothing of ours around them: they are the hot path.
        self.send: Callable[[int, bytes], int] = os.write
        self.recv: Callable[[int, int], bytes] = os.read
        self.clock: Callable[[], float] = time.monotonic

    def fileno(self) -> int:
        return self._epoll.fileno()

    def connect(self, destination: int, source: int) -> int:
        family, address = self._targets[destination]
        sock = _Socket(family, _NONBLOCKING_STREAM)
        try:
            if self._range is not None:
                sock.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, self._range)
            if mine := self._sources[destination]:
                # Without this option bind() takes a port for itself alone, which halves what a pair can carry.
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

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        if again:
            self._epoll.modify(handle, events)
        else:
            self._epoll.register(handle, events)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        return self._epoll.poll(wait_s, most)

    def close(self, handle: int, abort: bool) -> None:
        if abort:
            sock = _Socket(socket.AF_INET, _NONBLOCKING_STREAM, 0, fileno=handle)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()
        else:
            os.close(handle)

    def replace(self, handle: int, destination: int, source: int) -> int:
        return replace_by_closing(self, handle, destination, source)

    def late_event(self, handle: int) -> str | None:
        return DEADLINE

    def acknowledged(self, handle: int) -> bool:
        return not any(fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(4)))

    def add_counts(self, tick: Tick) -> None:
        pass


def _every_port() -> bytes | None:
    """The range of local ports, asked for by the socket: then connect() looks through one after the other, else through every
    second one first, which past a half of them took 30 ms a connect. It helps from Linux 6.8 on; None before 6.3.
    """
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
        # One number of 32 bits: the highest in its upper half.
        asked = struct.pack("=I", high << 16 | low)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, asked)
    except (OSError, ValueError, struct.error):
        return None
    return asked


def new_net(shard: Shard | LoadShard, kind: type[RealNet], *more: bool) -> RealNet:
    """The sockets that ``shard`` asks for; of ``kind`` where it asks for TCP's."""
    if all(one.port for one in shard.destinations):
        return kind(shard.destinations, shard.sources, *more)
    from asyncli.engine.unix_net import UnixNet

    return UnixNet(shard.destinations)


def over_tls(real: RealNet, shard: Shard | LoadShard) -> RealNet | ProxiedNet | TlsNet:
    """``real``, with a PROXY header first, and TLS over it, where the shard asks for that."""
    net: RealNet | ProxiedNet = real
    if shard.proxy_protocol is not None:
        from asyncli.engine.proxied_net import ProxiedNet as Proxied

        net = Proxied(real, shard.destinations, shard.proxy_protocol)
    if shard.tls is None:
        return net
    from asyncli.engine.tls import TlsNet as OverTls  # OpenSSL, and 3 MB, that a process without TLS does not owe

    names = [shard.names[one.target] for one in shard.destinations]
    return OverTls(net, shard.tls, names, shard.connect_timeout_s, shard.http2)


class PollNet(RealNet):
    """The same, watched by poll(2): its set lives in this process, so a connection enters and leaves it without a system call.

    For a few connections that each live for one request. poll(2) looks at every one of them at each call, so where they are
    many, or live long, the epoll set is the better one.

    A connection that is replaced leaves its socket to the next one: connecting to an address of no family dissolves what it
    was (connect(2)). On the wire that is a FIN and then a SYN from another port, as ever; the socket, its inode and its file
    are spared, a tenth of what a short connection costs.
    """

    def __init__(self, destinations: tuple[Destination, ...], sources: tuple[str, ...]) -> None:
        import ctypes

        super().__init__(destinations, sources)
        self._set = select.poll()
        self._watched: set[int] = set()
        self._kept: dict[int, socket.SocketType] = {}
        # A plain call that holds the interpreter: it is over in a microsecond, and no module of Python's connects to nowhere.
        self._libc_connect = ctypes.PyDLL(None).connect
        self._libc_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        self._set.register(handle, events)
        self._watched.add(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        return self._set.poll(math.ceil(wait_s * 1000))[:most]

    def close(self, handle: int, abort: bool) -> None:
        self._forget(handle)
        super().close(handle, abort)

    def replace(self, handle: int, destination: int, source: int) -> int:
        family, address = self._targets[destination]
        if not self._sources[destination]:
            sock = self._kept.get(handle)
            if sock is None:
                sock = self._kept[handle] = _Socket(family, _NONBLOCKING_STREAM, 0, handle)
            try:
                sock.shutdown(socket.SHUT_WR)
                if self._libc_connect(handle, _NOWHERE, len(_NOWHERE)) == 0 and sock.connect_ex(address) in _CONNECTS:
                    return handle
            except OSError:
                pass  # it was reset meanwhile
        return super().replace(handle, destination, source)

    def _forget(self, handle: int) -> None:
        if handle in self._watched:
            self._watched.discard(handle)
            self._set.unregister(handle)
        if (kept := self._kept.pop(handle, None)) is not None:
            kept.detach()
