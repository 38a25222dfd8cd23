"""The sockets that listen at a plan's targets, and the processes that hold them. Only readable
descriptors show a holder: our own user's, or all for root.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.listening import Place
from asyncli.collect.procfs import PROC, Listener, all_pids, link, read_listeners, read_stat
from asyncli.model.places import look_up, real_path, sockaddr
from asyncli.model.values import Target

# They hold the sockets of services that they start on demand.
INITS = frozenset({"systemd", "init"})
_SOCKET = re.compile(r"socket:\[(\d+)\]")
# nginx and HAProxy open their listeners among the first dozens of descriptors.
_LISTENERS_AMONG = 64
# For a connect within this host.
_CONNECT_S = 0.1


class Listening(NamedTuple):
    """Sockets at ``places``, ``where`` in words: their users by inode, and the first known holder
    of each.
    """

    where: str
    places: set[Place]
    users: dict[int, int | None]
    holders: set[int]

    @property
    def openers(self) -> set[int]:
        """The known users."""
        return {user for user in self.users.values() if user is not None}


def listening_at(targets: Sequence[Target], proc: Path = PROC) -> Listening:
    """The sockets that listen at ``targets`` in this network namespace."""
    places: set[Place] = set()
    users: dict[int, int | None] = {}
    for target in targets:
        addresses = addresses_of(target)
        listeners = read_listeners(target.port, proc)
        places |= {(address, target.port) for address in addresses}
        inodes = matching_inodes(listeners, addresses)
        for listener in listeners:
            if listener.inode in inodes:
                users[listener.inode] = listener.user
    ports = sorted({target.port for target in targets})
    if all(ports):
        where = f"port {', '.join(map(str, ports))}"
        return Listening(where, places, users, socket_holders(users, proc))
    path = targets[0].host
    holders = socket_holders(users, proc) if users else _peer(path)
    return Listening(f"unix:{path}", places, users, holders)


def _peer(path: str) -> set[int]:
    """The listener of a Unix socket, by a connect (SO_PEERCRED, unix(7)): the table may list the
    socket by another name, relative or a container's. Empty if init listens for a service.
    """
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_CONNECT_S)
            sock.connect(sockaddr(path, 0))
            pid = int.from_bytes(
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder
            )
    except OSError:
        return set()
    return {pid} if pid > 1 else set()


def addresses_of(target: Target) -> frozenset[str]:
    """The addresses of its host as text; empty if the name does not resolve. May ask a name
    server.
    """
    try:
        addresses = [address for _, address in look_up(target)]
    except (OSError, UnicodeError):
        return frozenset()
    if not target.port:
        return frozenset(map(real_path, addresses))
    return frozenset(address.partition("%")[0] for address in addresses)


def matching_inodes(listeners: Iterable[Listener], addresses: Collection[str]) -> set[int]:
    """Inodes of the sockets that answer at ``addresses``: those bound to one of them, else wildcard
    ones.

    The kernel also prefers the exact match (compute_score in net/ipv4/inet_hashtables.c).
    """
    exact = set()
    wildcard = set()
    for listener in listeners:
        if listener.address in addresses:
            exact.add(listener.inode)
        elif listener.address is None:
            wildcard.add(listener.inode)
    return exact or wildcard


def socket_holders(inodes: Collection[int], proc: Path = PROC) -> set[int]:
    """For each socket the process with the lowest pid that holds it: the master, if workers
    inherited it. Stops when each socket has a holder.
    """
    wanted = set(inodes)
    holders: set[int] = set()
    for pid in all_pids(proc):
        if not wanted:
            break
        held = set(sockets_held(pid, wanted, proc))
        if held and not (pid == 1 and read_stat(pid, proc).name in INITS):
            holders.add(pid)
            wanted -= held
    return holders


def socket_inode(target: str) -> int | None:
    """The inode of a socket, by the target of a link in /proc/PID/fd; None for another kind of
    file.
    """
    match = _SOCKET.fullmatch(target)
    if match is None:
        return None
    return int(match[1])


def ports_of(pids: Iterable[int], proc: Path = PROC, namespace: Path | None = None) -> set[int]:
    """The TCP ports at which these processes listen, by their lowest descriptors: a listener is
    opened before any client. ``namespace``: the folder whose ``net`` is theirs, if it is not ours.
    """
    inodes: set[int] = set()
    for pid in pids:
        for number in range(_LISTENERS_AMONG):
            inode = socket_inode(link(pid, f"fd/{number}", proc) or "")
            if inode is not None:
                inodes.add(inode)
    listeners = read_listeners(None, namespace or proc)
    return {listener.port for listener in listeners if listener.inode in inodes}


def sockets_held(pid: int, inodes: Collection[int], proc: Path = PROC) -> Iterator[int]:
    """Those of ``inodes`` that the process holds. It lists descriptors only until all are found, or
    as many as are taken.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    # Listening sockets have low descriptor numbers, so a worker's thousands of clients are seldom
    # listed.
    with contextlib.suppress(OSError), os.scandir(f"{proc}/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                inode = wanted.pop(os.readlink(entry.path), None)
                if inode is not None:
                    yield inode
            if not wanted:
                break
