"""Programs beside the server whose descriptors or processes rise in the run: its backend, or who
really holds its connections.

Who listens is not always who holds: a server may hand its sockets to another process, fork a child
twice for each connection, or be a proxy. So the descriptors of all processes of the host are
counted: one stat(2) each, without listing them (see :mod:`asyncli.collect.headroom`). Of programs
that rise, memory is read too, less what they had before the first connection.

What a program has to do with the server is told by its newest sockets: a holder has connections at
the server's ports, a client has their other ends, and a backend has the other ends of the server's
own. Clients and strangers are left out: another test on this host may rise in step with ours.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from pathlib import Path

import msgspec

from asyncli.collect.headroom import descriptors_limit
from asyncli.collect.holders import socket_inode
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import (
    PROC,
    Memory,
    all_pids,
    ancestors,
    read_memory,
    read_rss,
    readable_stat,
)
from asyncli.collect.sock_diag import client_inodes, server_inodes, tcp_peers, unix_peers
from asyncli.model import metrics
from asyncli.model.text import oneline

# Memory before the first connection is read of the smallest processes first, in at most so much CPU
# time: the kernel walks the page tables of each (0.25 ms for 10 MB). Of the others it is read when
# they first rise.
_FIRST_READING_S = 0.2
# A daemon opens a file or two at any time.
_FEWEST = 5
#: Programs that are followed, those that rise most. A connection has one holder, and a chain of
#: proxies is short.
MOST_PROGRAMS = 8
# Descriptors that are looked at, newest first: of a process that rose by five or more, and of each
# of the server's, whose newest connections are those of the clients that the other one has in hand.
_LOOKED_AT, _OF_THE_SERVER = 16, 256
# A process closed some descriptors since it started, so its highest number is a little above their
# count.
_NUMBERS_SKIPPED = 16


class _Relation(Enum):
    """What a process has to do with the server's connections."""

    #: Not looked at, or its descriptors may not be read.
    UNKNOWN = "unknown"
    #: Another client of the server.
    CLIENT = "client"
    #: It holds connections that the server accepted.
    HOLDER = "holder"
    #: It holds the other end of a socket of the server's, or of one behind it.
    BACKEND = "backend"
    NONE = "none"


_RELATED = (_Relation.HOLDER, _Relation.BACKEND)


class _Process(msgspec.Struct):
    """A process of another program: its name, the descriptors it had, and its memory then (None:
    not read yet).
    """

    name: str
    #: 0 for one that was started later.
    descriptors: int
    memory_bytes: float | None
    is_new: bool
    relation: _Relation = _Relation.UNKNOWN
    #: By how many descriptors it had risen when it was looked at.
    looked_at: int = 0
    #: Its limit of descriptors; 0: none; None: not read yet.
    limit: int | None = None


class _Rise(msgspec.Struct):
    """By how much a program rose, and its processes that did."""

    descriptors: int = 0
    processes: int = 0
    #: Processes that hold connections at the server's ports.
    holders: int = 0
    pids: list[int] = msgspec.field(default_factory=list)


class OtherProcesses:
    """``server`` and ``ours``: pids of the server's and of asyncli's processes. ``ports``: the
    server's, none for a Unix socket; ``elsewhere``: other ports at which it listens;
    ``connections``: how many it has at ``ports`` (None: unknown). Blocking; creating it reads the
    memory of all processes once.
    """

    def __init__(
        self,
        server: Callable[[], Collection[int]],
        ours: Callable[[], Collection[int]],
        ports: Collection[int],
        *,
        elsewhere: Collection[int] = (),
        connections: Callable[[], int | None] = lambda: None,
        proc: Path = PROC,
    ) -> None:
        self._server, self._ours, self._ports, self._connections, self._proc = (
            server,
            ours,
            ports,
            connections,
            proc,
        )
        # A client of the server at any port is no backend of it.
        self._every_port = {*ports, *elsewhere}
        self._known = self._first(self._count_descriptors())

    @property
    def behind(self) -> set[int]:
        """The processes that hold the other ends of sockets of the server's, as last read."""
        behind = set()
        for pid, process in list(self._known.items()):
            if process.relation is _Relation.BACKEND:
                behind.add(pid)
        return behind

    def read(self) -> ProbeReading:
        """``beside.*`` of each program whose descriptors, or the number of whose processes, rose by
        a tenth of the connections or more, and by five at least: only such a program can hold a
        part that matters. And the number of other processes.
        """
        counts, known = self._count_descriptors(), self._known
        for pid in self._of_the_server(counts.keys() - known.keys()):
            del counts[pid]
        for pid in known.keys() - counts.keys():
            del known[pid]
        # A program that starts a process for each connection starts them for one purpose.
        related = [
            process for process in known.values() if process.is_new and process.relation in _RELATED
        ]
        purposes = {process.name: process.relation for process in related}
        for pid in counts.keys() - known.keys():
            name = self._name(pid)
            known[pid] = _Process(
                name, 0, 0.0, is_new=True, relation=purposes.get(name, _Relation.UNKNOWN)
            )
        values = {metrics.HOST_OTHER_PROCESSES: float(len(counts))}
        connections = self._connections()
        if connections == 0:
            return ProbeReading(values)
        enough = max(_FEWEST, (connections or 0) // 10)
        risen = _enough(self._rises(counts), enough)
        self._relate([pid for rise in risen.values() for pid in rise.pids], counts)
        rises = _enough(self._rises(counts), enough)
        largest = sorted(
            rises, key=lambda name: rises[name].descriptors + rises[name].processes, reverse=True
        )
        for name in largest[:MOST_PROGRAMS]:
            rise = rises[name]
            values[f"{metrics.BESIDE_DESCRIPTORS}{name}"] = float(rise.descriptors)
            values[f"{metrics.BESIDE_PROCESSES}{name}"] = float(rise.processes)
            values[f"{metrics.BESIDE_HOLDERS}{name}"] = float(rise.holders)
            values |= self._fullest(name, rise.pids, counts)
            memory_bytes = self._memory(rise.pids)
            if memory_bytes is not None:
                values[f"{metrics.BESIDE_BYTES}{name}"] = memory_bytes
        return ProbeReading(values)

    def _count_descriptors(self) -> dict[int, int]:
        """The open descriptors of every process that is neither the server's nor asyncli's."""
        excluded = {*self._server(), *self._ours()}
        counts: dict[int, int] = {}
        for pid in all_pids(self._proc):
            if pid in excluded:
                continue
            with contextlib.suppress(OSError):
                counts[pid] = os.stat(f"{self._proc}/{pid}/fd").st_size
        return counts

    def _of_the_server(self, new: Iterable[int]) -> list[int]:
        """Those of the ``new`` processes that the server has started since its own were read."""
        server = {*self._server()}
        started = []
        for pid in new:
            if any(stat.pid in server for stat in ancestors(pid, self._proc)):
                started.append(pid)
        return started

    def _first(self, counts: dict[int, int]) -> dict[int, _Process]:
        processes = {
            pid: _Process(self._name(pid), count, None, is_new=False)
            for pid, count in counts.items()
        }
        begun_s = time.thread_time()
        for pid in sorted(processes, key=lambda pid: read_rss(pid, self._proc)):
            if time.thread_time() - begun_s > _FIRST_READING_S:
                break
            processes[pid].memory_bytes = self._memory_of(pid)
        return processes

    def _rises(self, counts: dict[int, int]) -> dict[str, _Rise]:
        """By how much each program rose, without clients of the server and processes that have
        nothing to do with it.
        """
        rises: dict[str, _Rise] = {}
        for pid, process in self._known.items():
            further = counts[pid] - process.descriptors
            if further <= 0 and not process.is_new:
                continue
            looked_at_enough = further < 2 * process.looked_at
            if process.relation in (_Relation.CLIENT, _Relation.NONE) and looked_at_enough:
                continue
            rise = rises.setdefault(process.name, _Rise())
            rise.descriptors += further
            rise.processes += process.is_new
            rise.holders += process.relation is _Relation.HOLDER
            rise.pids.append(pid)
        return rises

    def _relate(self, pids: Collection[int], counts: dict[int, int]) -> None:
        """Look at the newest sockets of ``pids``, once and again when a process has twice as many,
        and tell what it holds.
        """
        sockets: dict[int, set[int]] = {}
        for pid in pids:
            process = self._known[pid]
            further = max(1, counts[pid] - process.descriptors)
            if process.relation in _RELATED or further < 2 * process.looked_at:
                continue
            process.looked_at = further
            inodes = self._newest_sockets(pid, counts[pid])
            if inodes is None:
                process.relation = _Relation.UNKNOWN
            else:
                sockets[pid] = inodes
        if not sockets:
            return
        with contextlib.suppress(OSError):
            held, of_clients = server_inodes(self._ports), client_inodes(self._every_port)
            for pid, inodes in sockets.items():
                self._known[pid].relation = _Relation.NONE
                if inodes & held:
                    self._known[pid].relation = _Relation.HOLDER
                elif inodes & of_clients:
                    self._known[pid].relation = _Relation.CLIENT
            self._relate_backends(
                {
                    pid: inodes
                    for pid, inodes in sockets.items()
                    if self._known[pid].relation is _Relation.NONE
                }
            )

    def _relate_backends(self, sockets: dict[int, set[int]]) -> None:
        """Tell those of the processes, with their ``sockets``, that are behind the server, or
        behind one that is.
        """
        every = set().union(*sockets.values())
        if not every:
            return
        peer_of = tcp_peers(every) | unix_peers(every)
        peers = {
            pid: {peer_of[inode] for inode in inodes if inode in peer_of}
            for pid, inodes in sockets.items()
        }
        front: set[int] = set()
        for pid in self._server():
            front |= (
                self._newest_sockets(pid, _descriptors(pid, self._proc), _OF_THE_SERVER) or set()
            )
        while joined := [pid for pid, ends in peers.items() if ends & front]:
            for pid in joined:
                self._known[pid].relation = _Relation.BACKEND
                front |= sockets[pid]
                del peers[pid]

    def _newest_sockets(self, pid: int, count: int, looked_at: int = _LOOKED_AT) -> set[int] | None:
        """The inodes of the sockets among the newest descriptors of a process with ``count`` of
        them; None if they are hidden.

        The kernel gives the lowest free number, so the newest of a process that only opened have
        the highest.
        """
        inodes: set[int] = set()
        for number in range(count + _NUMBERS_SKIPPED, -1, -1):
            try:
                target = os.readlink(f"{self._proc}/{pid}/fd/{number}")
            except PermissionError:
                return None
            except OSError:
                continue
            looked_at -= 1
            inode = socket_inode(target)
            if inode is not None:
                inodes.add(inode)
            if not looked_at:
                break
        return inodes

    def _fullest(self, name: str, pids: Iterable[int], counts: dict[int, int]) -> dict[str, float]:
        """The descriptors of the process that is nearest to its limit, of those that hold the
        server's connections or are behind it.
        """
        fullest = (0.0, 0, 0)
        for pid in pids:
            process = self._known[pid]
            if process.relation not in _RELATED:
                continue
            if process.limit is None:
                process.limit = self._limit(pid)
            if process.limit:
                fullest = max(fullest, (counts[pid] / process.limit, counts[pid], process.limit))
        _, number, limit = fullest
        if not limit:
            return {}
        return {
            f"{metrics.BESIDE_DESCRIPTORS_OPEN}{name}": float(number),
            f"{metrics.BESIDE_DESCRIPTORS_LIMIT}{name}": float(limit),
        }

    def _limit(self, pid: int) -> int:
        """A process's limit of descriptors; 0: none, or it has ended."""
        with contextlib.suppress(OSError):
            return descriptors_limit(pid, self._proc)
        return 0

    def _memory(self, pids: Iterable[int]) -> float | None:
        """Bytes that these processes have more than before, without those that have ended; None if
        one may not be read.
        """
        rise_bytes = 0.0
        for pid in pids:
            process = self._known[pid]
            try:
                memory = read_memory(pid, self._proc)
            except OSError:
                return None
            if memory is None:
                # What it had before is no fall of the others.
                continue
            now_bytes = _own_bytes(memory)
            if process.memory_bytes is None:
                process.memory_bytes = now_bytes
            rise_bytes += now_bytes - process.memory_bytes
        return rise_bytes

    def _memory_of(self, pid: int) -> float | None:
        """Anonymous and shared memory of the process: pages of files belong to no connection. None
        if it may not be read.
        """
        try:
            memory = read_memory(pid, self._proc)
        except OSError:
            return None
        return _own_bytes(memory)

    def _name(self, pid: int) -> str:
        stat = readable_stat(pid, self._proc)
        return oneline(stat.name) if stat is not None else "?"


def _enough(rises: dict[str, _Rise], fewest: int) -> dict[str, _Rise]:
    return {
        name: rise
        for name, rise in rises.items()
        if max(rise.descriptors, rise.processes) >= fewest
    }


def _descriptors(pid: int, proc: Path) -> int:
    try:
        return os.stat(f"{proc}/{pid}/fd").st_size
    except OSError:
        return 0


def _own_bytes(memory: Memory | None) -> float:
    if memory is None:
        return 0.0
    return float(memory.pss_bytes if memory.anon_shmem_bytes is None else memory.anon_shmem_bytes)
