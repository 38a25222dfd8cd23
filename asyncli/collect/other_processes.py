"""Programs beside the server whose descriptors or processes rise in the run: its backend, or who really holds its connections.

Who listens is not always who holds: a server may hand its sockets to another process, fork a child twice for each connection,
or be a proxy. So the descriptors of all processes of the host are counted: one stat(2) each, without listing them (see
:mod:`asyncli.collect.headroom`). Of programs that rise, memory is read too, less what they had before the first connection.

Clients of the server rise with its connections as well. They are told by their sockets, which have the server's port as the
peer's, and are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, Memory, all_pids, link, read_memory, read_rss, readable_stat
from asyncli.collect.sock_diag import client_inodes
from asyncli.model import metrics
from asyncli.model.text import oneline

# Memory before the first connection is read of the smallest processes first, in at most so much CPU time: the kernel walks the
# page tables of each (0.25 ms for 10 MB). Of the others it is read when they first rise.
_FIRST_READING_S = 0.2
# A daemon opens a file or two at any time.
_FEWEST = 5
#: Programs that are followed, those that rise most. A connection has one holder, and a chain of proxies is short.
MOST_PROGRAMS = 8
# Descriptors of a process that are looked at to tell a client, newest first: at least one of a client's is its connection.
_LOOKED_AT = 16
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")


class _Process(msgspec.Struct):
    """A process of another program: its name, the descriptors it had, and its memory then (None: not read yet)."""

    name: str
    #: 0 for one that was started later.
    descriptors: int
    memory_bytes: float | None
    is_new: bool
    #: Whether it is a client of the server; None: not looked at yet.
    is_client: bool | None = None


class _Rise(msgspec.Struct):
    """By how much a program rose, and its processes that did."""

    descriptors: int = 0
    processes: int = 0
    pids: list[int] = msgspec.field(default_factory=list)


class OtherProcesses:
    """``excluded``: pids of the server's and asyncli's processes. ``ports``: the server's, none for a Unix socket;
    ``connections``: how many it has there, 0 if unknown. Blocking.
    """

    def __init__(
        self,
        excluded: Callable[[], Iterable[int]],
        ports: Collection[int],
        *,
        connections: Callable[[], int] = lambda: 0,
        proc: Path = PROC,
    ) -> None:
        self._excluded, self._ports, self._connections, self._proc = excluded, ports, connections, proc
        self._known: dict[int, _Process] | None = None

    def read(self) -> ProbeReading:
        """``beside.*`` of each program whose descriptors, or the number of whose processes, rose by half of the connections or
        more, and by five at least: only such a program can hold them. And the number of other processes.
        """
        counts = self._count_descriptors()
        if self._known is None:
            self._known = self._first(counts)
        known = self._known
        for pid in known.keys() - counts.keys():
            del known[pid]
        for pid in counts.keys() - known.keys():
            known[pid] = _Process(self._name(pid), 0, 0.0, is_new=True)
        enough = max(_FEWEST, self._connections() // 2)
        risen = [name for name, rise in self._rises(counts).items() if max(rise.descriptors, rise.processes) >= enough]
        self._tell_clients(risen, counts)
        rises = {name: rise for name, rise in self._rises(counts).items() if name in risen and rise.pids}
        most = sorted(rises, key=lambda name: rises[name].descriptors + rises[name].processes, reverse=True)[:MOST_PROGRAMS]
        values = {metrics.HOST_OTHER_PROCESSES: float(len(counts))}
        for name in most:
            rise = rises[name]
            values[f"{metrics.BESIDE_DESCRIPTORS}{name}"] = float(rise.descriptors)
            values[f"{metrics.BESIDE_PROCESSES}{name}"] = float(rise.processes)
            memory_bytes = self._memory(rise.pids)
            if memory_bytes is not None:
                values[f"{metrics.BESIDE_BYTES}{name}"] = memory_bytes
        return ProbeReading(values)

    def _count_descriptors(self) -> dict[int, int]:
        """The open descriptors of every process that is neither the server's nor asyncli's."""
        excluded = set(self._excluded())
        counts: dict[int, int] = {}
        for pid in all_pids(self._proc):
            if pid in excluded:
                continue
            with contextlib.suppress(OSError):
                counts[pid] = os.stat(f"{self._proc}/{pid}/fd").st_size
        return counts

    def _first(self, counts: dict[int, int]) -> dict[int, _Process]:
        processes = {pid: _Process(self._name(pid), count, None, is_new=False) for pid, count in counts.items()}
        begun_s = time.thread_time()
        for pid in sorted(processes, key=lambda pid: read_rss(pid, self._proc)):
            if time.thread_time() - begun_s > _FIRST_READING_S:
                break
            processes[pid].memory_bytes = self._memory_of(pid)
        return processes

    def _rises(self, counts: dict[int, int]) -> dict[str, _Rise]:
        """By how much each program rose, without clients of the server."""
        assert self._known is not None
        rises: dict[str, _Rise] = {}
        for pid, process in self._known.items():
            more = counts[pid] - process.descriptors
            if process.is_client or (more <= 0 and not process.is_new):
                continue
            rise = rises.setdefault(process.name, _Rise())
            rise.descriptors += more
            rise.processes += process.is_new
            rise.pids.append(pid)
        return rises

    def _tell_clients(self, risen: Collection[str], counts: dict[int, int]) -> None:
        """Look at each process of the programs ``risen`` once it has five descriptors more, and tell whether it is a client."""
        assert self._known is not None
        looked_at = [
            (pid, process)
            for pid, process in self._known.items()
            if process.name in risen and process.is_client is None and counts[pid] - process.descriptors >= _FEWEST
        ]
        if not looked_at or not self._ports:
            return
        try:
            inodes = client_inodes(self._ports)
        except OSError:
            return
        for pid, process in looked_at:
            process.is_client = any(inode in inodes for inode in self._newest_sockets(pid, counts[pid]))

    def _newest_sockets(self, pid: int, count: int) -> list[int]:
        """The inodes of the sockets among the newest descriptors of a process with ``count`` of them; none where they are hidden.

        The kernel gives the lowest free number, so the newest of a process that only opened have the highest.
        """
        inodes = []
        for number in range(count - 1, max(-1, count - 1 - _LOOKED_AT), -1):
            match = _SOCKET.fullmatch(link(pid, f"fd/{number}", self._proc) or "")
            if match is not None:
                inodes.append(int(match[1]))
        return inodes

    def _memory(self, pids: Iterable[int]) -> float | None:
        """Bytes that these processes have more than before; None if one may not be read."""
        assert self._known is not None
        rise_bytes = 0.0
        for pid in pids:
            process, now_bytes = self._known[pid], self._memory_of(pid)
            if now_bytes is None:
                return None
            if process.memory_bytes is None:
                process.memory_bytes = now_bytes
            rise_bytes += now_bytes - process.memory_bytes
        return rise_bytes

    def _memory_of(self, pid: int) -> float | None:
        """Anonymous and shared memory of the process: pages of files belong to no connection. None if it may not be read."""
        try:
            memory = read_memory(pid, self._proc)
        except OSError:
            return None
        return _own_bytes(memory)

    def _name(self, pid: int) -> str:
        stat = readable_stat(pid, self._proc)
        return oneline(stat.name) if stat is not None else "?"


def _own_bytes(memory: Memory | None) -> float:
    if memory is None:
        return 0.0
    return float(memory.pss_bytes if memory.anon_shmem_bytes is None else memory.anon_shmem_bytes)
