"""Counts of a network namespace's TCP sockets by port, from the kernel (sock_diag(7)). Any user may
ask of our own.

Of a million sockets the kernel writes 110 MB; the port is compared there, so that only the sockets
asked for are copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
# The older request for TCP, in which IPv4 and IPv6 are one (inet_diag_dump_compat of
# net/ipv4/inet_diag.c): the kernel walks its table of sockets once, which takes 2 ms for 262,144
# buckets, however few sockets are in it.
_TCP_OF_BOTH_FAMILIES = 18
_REQUEST_ONE, _REQUEST_DUMP = 0x001, 0x001 | 0x300
_ERROR, _DONE = 2, 3
_REQUEST_BYTECODE = 1
_SOURCE_AT_LEAST, _SOURCE_AT_MOST, _PEER_AT_LEAST, _PEER_AT_MOST = 2, 3, 4, 5
_ESTABLISHED, _LISTENING = 1 << 1, 1 << 10
_SHOW_PEER, _UNIX_PEER = 0x4, 2

_HEADER = struct.Struct("=IHHII")
# struct inet_diag_req: family, lengths of addresses, extensions, sockets' addresses, states, dbs.
_REQUEST = struct.Struct("=BBBB48xII")
_ATTRIBUTE = struct.Struct("=HH")
# Code, bytes to the next instruction if it holds, and if not (a jump past the end rejects); the
# port is in a second one.
_INSTRUCTION = struct.Struct("=BBHBBH")
_JUMP = struct.Struct("=BBH")
_JUMP_CODE = 1
_LENGTH_AND_KIND = struct.Struct("=IH")
_ERROR_NUMBER = struct.Struct("=i")
_NUMBER = struct.Struct("=I")
_PORT = struct.Struct(">H")
# struct inet_diag_msg: 4 bytes, the sockets' addresses (48), then expires, rqueue, wqueue, uid and
# inode.
_WQUEUE_AT = _HEADER.size + 4 + 48 + 2 * 4
_INODE_AT = _HEADER.size + 4 + 48 + 4 * 4
# The attributes after struct inet_diag_msg: INET_DIAG_SKMEMINFO, whose bit in a request is one
# lower, and in it SK_MEMINFO_DROPS.
_ATTRIBUTES_AT = _HEADER.size + 72
_MEMORY = 7
_WITH_MEMORY = 1 << (_MEMORY - 1)
_DROPS_AT = _ATTRIBUTE.size + 8 * _NUMBER.size
# SK_MEMINFO_RMEM_ALLOC, _FWD_ALLOC and _WMEM_QUEUED: r, f and w of "ss -m".
_RECEIVED_AT = _ATTRIBUTE.size
_RESERVED_AT = _ATTRIBUTE.size + 4 * _NUMBER.size
_QUEUED_AT = _ATTRIBUTE.size + 5 * _NUMBER.size
# struct inet_diag_sockid: the two ports, the two addresses.
_PORTS_AT = _HEADER.size + 4
# linux/unix_diag.h: struct unix_diag_req, and the length of struct unix_diag_msg.
_UNIX_REQUEST = struct.Struct("=BBxxIIIII")
_UNIX_ATTRIBUTES_AT = _HEADER.size + 16
# A dump comes in parts of at most 32 kB (NLMSG_GOODSIZE is less; netlink_dump takes up to 32 kB for
# a large buffer).
_CHUNK = 1 << 16
_TIMEOUT_S = 5.0
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_OWN_NAMESPACE = "/proc/thread-self/ns/net"


class ServerSockets(NamedTuple):
    """Established sockets whose own port is the server's: those that a program has accepted, those
    that wait for it, and of the accepted ones those that have sent what is not acknowledged; and
    those that were accepted at the server's other ports, ``elsewhere``. ``memory``: of the accepted
    ones, what is queued to be sent, received and unread, and reserved for either (bytes).
    """

    accepted: int
    waiting: int
    unacknowledged: int
    elsewhere: int
    memory: int = 0


def server_sockets(
    ports: Collection[int],
    elsewhere: Collection[int] = (),
    *,
    with_memory: bool = False,
    of: int | None = None,
) -> ServerSockets:
    """The server's ends of the connections to ``ports``, and to those ``elsewhere``, in the network
    namespace of the process ``of``, else in ours. A socket has its inode from accept(2) on. Raises
    OSError.
    """
    accepted = 0
    waiting = 0
    unacknowledged = 0
    at_others = 0
    memory = 0
    extensions = _WITH_MEMORY if with_memory else 0
    for chunk, at in _established(
        {*ports, *elsewhere}, _SOURCE_AT_LEAST, _SOURCE_AT_MOST, extensions, of
    ):
        is_accepted = bool(_inode(chunk, at))
        (port,) = _PORT.unpack_from(chunk, at + _PORTS_AT)
        if port not in ports:
            at_others += is_accepted
            continue
        if not is_accepted:
            waiting += 1
            continue
        accepted += 1
        unacknowledged += _NUMBER.unpack_from(chunk, at + _WQUEUE_AT)[0] > 0
        if with_memory:
            memory += _buffered(chunk, at)
    return ServerSockets(accepted, waiting, unacknowledged, at_others, memory)


class ListeningSocket(NamedTuple):
    """``backlog``: of its queue of connects, as listen(2) asked and the kernel allowed.
    ``dropped``: how many connects it has dropped, for lack of room there or of memory (sk_drops);
    None where the kernel does not say.
    """

    backlog: int
    dropped: int | None


def listening_sockets(ports: Collection[int], of: int | None = None) -> dict[int, ListeningSocket]:
    """The sockets that listen on ``ports`` by their inodes, in the network namespace of the process
    ``of``, else in ours. Raises OSError.

    The kernel keeps them apart from the others, so this takes some 0.3 ms. /proc/net/tcp goes on to
    the first established one, which takes 8 ms in a large table that is nearly empty.
    """
    sockets: dict[int, ListeningSocket] = {}
    if not ports:
        return sockets
    filtered = _port_is_one_of(ports, _SOURCE_AT_LEAST, _SOURCE_AT_MOST)
    for chunk, at in _dump(filtered, _LISTENING, of, _WITH_MEMORY):
        # Of a listening socket the kernel gives its backlog where others have their send queue
        # (inet_diag of net/ipv4/tcp_diag.c).
        (backlog,) = _NUMBER.unpack_from(chunk, at + _WQUEUE_AT)
        sockets[_inode(chunk, at)] = ListeningSocket(backlog, _drops(chunk, at))
    return sockets


def server_inodes(ports: Collection[int]) -> set[int]:
    """The inodes of the accepted sockets at ``ports``. Raises OSError."""
    return {
        _inode(chunk, at) for chunk, at in _established(ports, _SOURCE_AT_LEAST, _SOURCE_AT_MOST)
    } - {0}


def client_inodes(ports: Collection[int]) -> set[int]:
    """The inodes of the clients' ends of the connections to ``ports``, as far as they are in this
    namespace. Raises OSError.
    """
    return {
        _inode(chunk, at) for chunk, at in _established(ports, _PEER_AT_LEAST, _PEER_AT_MOST)
    } - {0}


def tcp_peers(inodes: Collection[int]) -> dict[int, int]:
    """Of each of ``inodes`` that is a connected TCP socket the inode of its other end, where that
    is in this namespace. Raises OSError.
    """
    by_address: dict[bytes, int] = {}
    wanted: dict[bytes, int] = {}
    for chunk, at in _dump(b""):
        inode, (source, peer) = _inode(chunk, at), _ends(chunk, at)
        by_address[source + peer] = inode
        if inode in inodes:
            wanted[peer + source] = inode
    return {inode: by_address[ends] for ends, inode in wanted.items() if by_address.get(ends)}


def unix_peers(inodes: Iterable[int]) -> dict[int, int]:
    """Of each of ``inodes`` that is a connected Unix socket the inode of its other end. Raises
    OSError.
    """
    peers = {}
    with _netlink() as kernel:
        for inode in inodes:
            body = _UNIX_REQUEST.pack(
                socket.AF_UNIX, 0, 0xFFFFFFFF, inode, _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF
            )
            kernel.send(
                _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_ONE, 1, 0)
                + body
            )
            answer = kernel.recv(_CHUNK)
            length, kind = _LENGTH_AND_KIND.unpack_from(answer)
            if kind == _ERROR:
                # No Unix socket has this inode, or it was closed meanwhile.
                continue
            at = _UNIX_ATTRIBUTES_AT
            while at + _ATTRIBUTE.size <= length:
                size, name = _ATTRIBUTE.unpack_from(answer, at)
                if name == _UNIX_PEER:
                    peers[inode] = _NUMBER.unpack_from(answer, at + _ATTRIBUTE.size)[0]
                at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return peers


def _established(
    ports: Collection[int],
    at_least: int,
    at_most: int,
    extensions: int = 0,
    of: int | None = None,
) -> Iterator[tuple[bytes, int]]:
    """Answers of the kernel's and where in them an established socket stands whose port, by the
    comparisons ``at_least`` and ``at_most``, is one of ``ports``.
    """
    if ports:
        filtered = _port_is_one_of(ports, at_least, at_most)
        yield from _dump(filtered, of=of, extensions=extensions)


def _port_is_one_of(ports: Collection[int], at_least: int, at_most: int) -> bytes:
    """The filter of sockets with one of ``ports``: two comparisons for each, with their operands,
    and a jump to the end, which accepts. To reject is to jump four bytes past the end.
    """
    program = b""
    for port in sorted(ports, reverse=True):
        accept = b""
        if program:
            accept = _JUMP.pack(_JUMP_CODE, _JUMP.size, _JUMP.size + len(program))
        # To the comparisons of the next port; after the last one past the end, as far as a jump.
        block = 2 * _INSTRUCTION.size + _JUMP.size
        first = _INSTRUCTION.pack(at_least, _INSTRUCTION.size, block, 0, 0, port)
        to_next = block - _INSTRUCTION.size
        second = _INSTRUCTION.pack(at_most, _INSTRUCTION.size, to_next, 0, 0, port)
        program = first + second + accept + program
    return program


def _netlink(of: int | None = None) -> socket.socket:
    """A socket to ask of our network namespace, or of that of the process ``of``."""
    with contextlib.nullcontext() if of is None else inside_network_of(of):
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    kernel.settimeout(_TIMEOUT_S)
    return kernel


@contextlib.contextmanager
def inside_network_of(pid: int) -> Iterator[None]:
    """This thread alone in the network namespace of a process. A socket stays where it was made.
    Raises OSError.
    """
    namespace = f"/proc/{pid}/ns/net"
    with open(_OWN_NAMESPACE, "rb") as own, open(namespace, "rb") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    # os.setns is new in Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _dump(
    bytecode: bytes,
    states: int = _ESTABLISHED,
    of: int | None = None,
    extensions: int = 0,
) -> Iterator[tuple[bytes, int]]:
    """The sockets of TCP in these states that pass the filter: an answer of the kernel's, and where
    the socket stands in it. ``extensions``: the attributes to ask for beside the socket.
    """
    body = _REQUEST.pack(0, 0, 0, extensions, states, 0)
    if bytecode:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(bytecode), _REQUEST_BYTECODE) + bytecode
    header = _HEADER.pack(_HEADER.size + len(body), _TCP_OF_BOTH_FAMILIES, _REQUEST_DUMP, 1, 0)
    with _netlink(of) as kernel:
        kernel.send(header + body)
        while True:
            chunk = kernel.recv(_CHUNK)
            at = 0
            while at < len(chunk):
                length, kind = _LENGTH_AND_KIND.unpack_from(chunk, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -_ERROR_NUMBER.unpack_from(chunk, at + _HEADER.size)[0]
                    if number == errno.ENOENT:
                        return
                    raise OSError(number or errno.EPROTO, os.strerror(number or errno.EPROTO))
                yield chunk, at
                at += (length + 3) & ~3


def _drops(answer: bytes, at: int) -> int | None:
    """How many packets the socket has dropped."""
    memory = _memory_at(answer, at, _DROPS_AT + _NUMBER.size)
    if memory is None:
        return None
    number: int = _NUMBER.unpack_from(answer, memory + _DROPS_AT)[0]
    return number


def _buffered(answer: bytes, at: int) -> int:
    """The memory of a socket's buffers (bytes); 0 where the kernel does not say."""
    memory = _memory_at(answer, at, _QUEUED_AT + _NUMBER.size)
    if memory is None:
        return 0
    total = 0
    for field_at in (_RECEIVED_AT, _RESERVED_AT, _QUEUED_AT):
        total += _NUMBER.unpack_from(answer, memory + field_at)[0]
    return total


def _memory_at(answer: bytes, at: int, least: int) -> int | None:
    """Where a socket's INET_DIAG_SKMEMINFO of at least so many bytes begins; None without it."""
    length, _ = _LENGTH_AND_KIND.unpack_from(answer, at)
    end = at + length
    attribute = at + _ATTRIBUTES_AT
    while attribute + _ATTRIBUTE.size <= end:
        size, name = _ATTRIBUTE.unpack_from(answer, attribute)
        if name == _MEMORY and size >= least:
            return attribute
        attribute += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return None


def _inode(answer: bytes, at: int) -> int:
    number: int = _NUMBER.unpack_from(answer, at + _INODE_AT)[0]
    return number


def _ends(answer: bytes, at: int) -> tuple[bytes, bytes]:
    """A socket's own end and its peer's: 2 bytes of port and 16 of address each."""
    ports = at + _PORTS_AT
    addresses = ports + 4
    source = answer[ports : ports + 2] + answer[addresses : addresses + 16]
    peer = answer[ports + 2 : ports + 4] + answer[addresses + 16 : addresses + 32]
    return source, peer
