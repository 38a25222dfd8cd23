"""Which process answers at a URL of this host: the server's, or another one. Blocking."""

from __future__ import annotations

import socket
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.holders import addresses_of, listening_at, sockets_held
from asyncli.collect.locate import FORWARDERS, process_name
from asyncli.collect.procfs import PROC, readable_stat, tree
from asyncli.model.status_place import status_place
from asyncli.model.values import Target, parse_url


class Answerer(Enum):
    """Whose process answers at a URL."""

    SERVER = "the server's"
    ANOTHER = "another"
    UNKNOWN = "unknown"


class Answering(NamedTuple):
    """``name``, ``pid``: of a process that is not the server's; "" and 0 otherwise."""

    answerer: Answerer
    name: str = ""
    pid: int = 0


_UNKNOWN = Answering(Answerer.UNKNOWN)


def answering_at(url: str, server: Collection[int], proc: Path = PROC) -> Answering:
    """Who listens at a URL. ``server``: the root processes of the server. Unknown where that is on
    another host, in another network namespace or of another user, or where a program only forwards
    to others.
    """
    place = status_place(url)
    if place.socket or not server:
        return _UNKNOWN
    target = parse_url(place.url)
    if not _is_of_this_host(target):
        return _UNKNOWN
    listening = listening_at([target], proc)
    if not listening.holders:
        return _UNKNOWN
    try:
        processes = tree((readable_stat(pid, proc) for pid in server), proc)
    except OSError:
        return _UNKNOWN
    # What started the server may hold the socket too, which it has handed down.
    for pid in processes:
        if any(sockets_held(pid, listening.users, proc)):
            return Answering(Answerer.SERVER)
    pid = min(listening.holders)
    name = process_name(pid, proc) or "a process"
    if name in FORWARDERS:
        return _UNKNOWN
    return Answering(Answerer.ANOTHER, name, pid)


def _is_of_this_host(target: Target) -> bool:
    """Whether its addresses are of this network namespace: a socket can be bound to each."""
    addresses = addresses_of(target)
    return bool(addresses) and all(map(_can_be_bound, addresses))


def _can_be_bound(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True
