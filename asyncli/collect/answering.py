"""Which process answers at a URL of this host, and whose page of metrics is there: the server's, or
another one's. Blocking.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.holders import addresses_of, listening_at, ports_of, sockets_held
from asyncli.collect.locate import FORWARDERS, process_name
from asyncli.collect.procfs import (
    PROC,
    TICKS_PER_S,
    Stat,
    parents,
    readable_stat,
    shares_namespace,
    tree,
)
from asyncli.model.status_place import is_broker, status_place
from asyncli.model.text import oneline
from asyncli.model.values import Target, parse_url

# Runtimes write when they started to the second, some of them a moment after their process did.
_STARTED_WITHIN_S = 2.0


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


class PageOf(NamedTuple):
    """Whose a page of metrics is: of the program ``name``, as the kernel has it, process ``pid``;
    "" and 0 where it is the server's, or unknown. ``perhaps``: names by pid of several others, if
    it is of one of these, or of the server after all.
    """

    name: str = ""
    pid: int = 0
    perhaps: Mapping[int, str] = {}

    def of_one_of(self, pids: Collection[int]) -> PageOf:
        """As far as it is known if it can only be of these, when it is not the server's."""
        perhaps = {pid: name for pid, name in self.perhaps.items() if pid in pids}
        if len(perhaps) != 1:
            return self
        ((pid, name),) = perhaps.items()
        return PageOf(name, pid)


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
    processes = _tree_of(server, proc)
    if not listening.holders or not processes:
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


def process_of_page(
    url: str,
    started_s: float | None,
    server: Collection[int],
    apart: Collection[int] = (),
    proc: Path = PROC,
) -> PageOf:
    """Whose page of metrics is at a URL: that of who listens there, unless the page itself says
    another.

    ``started_s``: when the page's process started, by the page (Unix time); None: it does not say.
    A page is reached through a proxy too, so that decides where it is the start of the server's
    processes, or of another program that listens. ``server``: the server's root processes;
    ``apart``: asyncli's own, which have no page.
    """
    processes = _tree_of(server, proc)
    if is_broker(url) or not processes:
        return PageOf()
    answering = answering_at(url, server, proc)
    of_listener: Mapping[int, Stat] = {}
    listener = PageOf()
    if answering.answerer is Answerer.ANOTHER:
        of_listener = _tree_of([answering.pid], proc)
        listener = PageOf(_name_of(answering.pid, proc), answering.pid)
    if started_s is None or _started_at(started_s, of_listener.values()):
        return listener
    if _started_at(started_s, processes.values()):
        return PageOf()
    excluded = {*processes, *of_listener, *apart}
    others = {}
    for stat in _started_at(started_s, parents(proc)):
        if stat.pid not in excluded and _listens(stat.pid, proc):
            others[stat.pid] = oneline(stat.name)
    return listener._replace(perhaps=others).of_one_of(others)


def _tree_of(roots: Collection[int], proc: Path) -> Mapping[int, Stat]:
    """These processes and their descendants; none if one of them is hidden."""
    try:
        return tree((readable_stat(pid, proc) for pid in roots), proc)
    except OSError:
        return {}


def _started_at(started_s: float, processes: Iterable[Stat]) -> list[Stat]:
    """Those of the processes that started then (Unix time)."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = []
    for stat in processes:
        began_s = booted_s + stat.start_ticks / TICKS_PER_S
        if abs(began_s - started_s) <= _STARTED_WITHIN_S:
            started.append(stat)
    return started


def _listens(pid: int, proc: Path) -> bool:
    """Whether a process is seen to listen at a port of its network namespace."""
    namespace = proc
    if shares_namespace(pid, "net", proc) is False:
        namespace = proc / str(pid)
    try:
        return bool(ports_of([pid], proc, namespace))
    except OSError:
        return False


def _name_of(pid: int, proc: Path) -> str:
    """A process's name as the kernel has it."""
    stat = readable_stat(pid, proc)
    return "?" if stat is None else oneline(stat.name)


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
