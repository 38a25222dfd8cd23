"""Counts of this network namespace's TCP sockets by port, from the kernel (sock_diag(7)). Any user may ask.

Of a million sockets the kernel writes 110 MB; the port is compared there, so that only the sockets asked for are copied.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x001 | 0x300
_ERROR, _DONE = 2, 3
_REQUEST_BYTECODE = 1
_SOURCE_AT_LEAST, _SOURCE_AT_MOST, _PEER_AT_LEAST, _PEER_AT_MOST = 2, 3, 4, 5
_ESTABLISHED = 1 << 1

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_ATTRIBUTE = struct.Struct("=HH")
# Code, bytes to the next instruction if it holds, and if not (a jump past the end rejects); the port is in a second one.
_INSTRUCTION = struct.Struct("=BBHBBH")
_LENGTH_AND_KIND = struct.Struct("=IH")
_ERROR_NUMBER = struct.Struct("=i")
_INODE = struct.Struct("=I")
# struct inet_diag_msg: 4 bytes, the sockets' addresses (48), then expires, rqueue, wqueue, uid and inode.
_INODE_AT = _HEADER.size + 4 + 48 + 4 * 4
# A dump comes in parts of at most 32 kB (NLMSG_GOODSIZE is less; netlink_dump takes up to 32 kB for a large buffer).
_CHUNK = 1 << 16
_TIMEOUT_S = 5.0


class ServerSockets(NamedTuple):
    """Established sockets whose own port is the server's: those that a program has accepted, and those that wait for it."""

    accepted: int
    waiting: int


def server_sockets(ports: Collection[int]) -> ServerSockets:
    """The server's ends of the connections to ``ports``. A socket has its inode from accept(2) on. Raises OSError."""
    accepted, waiting = 0, 0
    for inode in _established(ports, _SOURCE_AT_LEAST, _SOURCE_AT_MOST):
        if inode:
            accepted += 1
        else:
            waiting += 1
    return ServerSockets(accepted, waiting)


def client_inodes(ports: Collection[int]) -> set[int]:
    """The inodes of the clients' ends of the connections to ``ports``, as far as they are in this namespace. Raises OSError."""
    return set(_established(ports, _PEER_AT_LEAST, _PEER_AT_MOST))


def _established(ports: Collection[int], at_least: int, at_most: int) -> Iterator[int]:
    """The inode of each established socket whose port, by the comparisons ``at_least`` and ``at_most``, is one of ``ports``."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for port in ports:
            try:
                yield from _dump(family, _port_is(port, at_least, at_most))
            except FileNotFoundError:
                # A kernel without IPv6.
                continue


def _port_is(port: int, at_least: int, at_most: int) -> bytes:
    """The filter of one port. An operation of eight bytes with its operand; to reject is to jump four bytes past the end."""
    first = _INSTRUCTION.pack(at_least, 8, 20, 0, 0, port)
    second = _INSTRUCTION.pack(at_most, 8, 12, 0, 0, port)
    return first + second


def _dump(family: int, bytecode: bytes) -> Iterator[int]:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ESTABLISHED)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(bytecode), _REQUEST_BYTECODE) + bytecode
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(header + body)
        chunk = bytearray(_CHUNK)
        while True:
            size = kernel.recv_into(chunk)
            at = 0
            while at < size:
                length, kind = _LENGTH_AND_KIND.unpack_from(chunk, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -_ERROR_NUMBER.unpack_from(chunk, at + _HEADER.size)[0]
                    raise OSError(number or errno.EPROTO, os.strerror(number or errno.EPROTO))
                yield _INODE.unpack_from(chunk, at + _INODE_AT)[0]
                at += (length + 3) & ~3
