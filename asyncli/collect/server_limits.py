"""Limits of a server that has a thread or a process for each connection: how many tasks there may
be, how much address space and private writable memory a process may have, and in how many maps.

A task is a thread, and a process is one at least. What bounds their number: the control group of
the server and those above it (pids.max), its user (RLIMIT_NPROC), and the host (threads-max,
pid_max).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.cgroups import TaskRoom, controlled_group, task_room
from asyncli.collect.namespaces import source_ports_of
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PAGE_BYTES, PROC, Stat, all_pids, read_text, readable_stat
from asyncli.model import metrics
from asyncli.model.server_limits import MEMORY_LIMITS, ServerLimit

# Enough for a server with a process for each connection, which inherit their limits.
_MOST_PROCESSES = 128
_LIMIT = re.compile(r"^(Max [a-z ]+?)\s+(\d+)", re.MULTILINE)
_SIZE = re.compile(r"^(Vm\w+):\s+(\d+) kB", re.MULTILINE)
_REAL_USER = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s+([0-9a-f]+)", re.MULTILINE)
# CAP_SYS_ADMIN and CAP_SYS_RESOURCE (include/uapi/linux/capability.h): copy_process of
# kernel/fork.c lets them exceed RLIMIT_NPROC, and root.
_EXEMPT = 1 << 21 | 1 << 24
# RESERVED_PIDS of include/linux/pid.h: the kernel gives these numbers only once after boot.
_RESERVED_PIDS = 300
_CHUNK = 1 << 16


class _InProc(NamedTuple):
    """A limit on the memory of a process: its name in /proc/PID/limits, and what it counts in
    /proc/PID/status.
    """

    name: str
    counted: str


# RLIMIT_DATA counts all private writable memory but the main stack, those of threads included
# (may_expand_vm of mm/vma.c).
_IN_PROC = {
    "address_space": _InProc("Max address space", "VmSize"),
    "data": _InProc("Max data size", "VmData"),
}


class _ProcessLimits(NamedTuple):
    """Limits of a process. ``user``: its real one, which RLIMIT_NPROC counts. ``tasks`` None: no
    limit, or it is exempt. ``memory_bytes``: its limits on memory by their names.
    """

    user: int | None
    tasks: int | None
    memory_bytes: dict[str, int]


class ServerLimits:
    """The limits of the processes that ``living`` names. Blocking; ended ones are skipped."""

    def __init__(self, living: Callable[[], Sequence[Stat]], *, proc: Path = PROC) -> None:
        self._living = living
        self._proc = proc
        self._limits: dict[int, _ProcessLimits] = {}
        # The folder of the pids cgroup with the least room when sampling began.
        self._group: Path | None = None
        self._group_was_read = False
        # A setting of the host, so it is read once.
        self._source_ports: dict[str, float] | None = None
        # By user: the tasks of its other processes when they were first counted.
        self._others: dict[int, int] = {}

    def read(self) -> ProbeReading:
        """Tasks of the group, the user and the host, and memory of a process, each where a limit
        is known.
        """
        living = self._living()
        if not living:
            return ProbeReading()
        first_ones = living[:_MOST_PROCESSES]
        self._read_limits(first_ones)
        return ProbeReading(
            {
                **self._tasks_of_group(first_ones),
                **self._tasks_of_user(living),
                **self._tasks_of_host(),
                **self._memory(first_ones),
                **self._ports(first_ones[0].pid),
            }
        )

    def read_mappings(self) -> ProbeReading:
        """The memory maps of the process with the largest address space. One thread has two: its
        stack and a guard.
        """
        limit = self._number("sys/vm/max_map_count")
        sizes = {stat.pid: self._size(stat.pid) for stat in self._living()[:_MOST_PROCESSES]}
        largest = max(sizes, key=lambda pid: sizes[pid], default=None)
        if limit is None or largest is None:
            return ProbeReading()
        with contextlib.suppress(OSError):
            count = _lines(f"{self._proc}/{largest}/maps")
            if count:
                return ProbeReading(
                    {
                        metrics.SERVER_MAPPINGS: float(count),
                        metrics.SERVER_MAPPINGS_LIMIT: float(limit),
                    }
                )
        return ProbeReading()

    def _read_limits(self, living: Sequence[Stat]) -> None:
        pids = {stat.pid for stat in living}
        self._limits = {pid: limits for pid, limits in self._limits.items() if pid in pids}
        for pid in pids - self._limits.keys():
            with contextlib.suppress(OSError):
                self._limits[pid] = self._limits_of(pid)

    def _limits_of(self, pid: int) -> _ProcessLimits:
        """Raises OSError."""
        # "unlimited" has no number.
        by_name = dict(_LIMIT.findall(read_text(f"{self._proc}/{pid}/limits")))
        status = read_text(f"{self._proc}/{pid}/status")
        user = _REAL_USER.search(status)
        capabilities = _CAPABILITIES.search(status)
        tasks = by_name.get("Max processes")
        if user is None or user[1] == "0":
            tasks = None
        if capabilities is not None and int(capabilities[1], 16) & _EXEMPT:
            tasks = None
        memory_bytes = {}
        for limit in MEMORY_LIMITS:
            allowed = int(by_name.get(_IN_PROC[limit.name].name, 0))
            if allowed:
                memory_bytes[limit.name] = allowed
        return _ProcessLimits(
            user=None if user is None else int(user[1]),
            tasks=None if tasks is None else int(tasks),
            memory_bytes=memory_bytes,
        )

    def _tasks_of_group(self, living: Sequence[Stat]) -> dict[str, float]:
        if not self._group_was_read:
            self._group_was_read = True
            self._group = self._tightest_group(living)
        room = None if self._group is None else task_room(self._group)
        if room is None:
            return {}
        return {
            metrics.SERVER_GROUP_TASKS: float(room.used),
            metrics.SERVER_GROUP_TASKS_LIMIT: float(room.limit),
        }

    def _ports(self, pid: int) -> dict[str, float]:
        """The ports from which a process of the server may connect to one address."""
        if self._source_ports is None:
            ports = source_ports_of(pid, self._proc)
            self._source_ports = {}
            if ports is not None:
                self._source_ports[metrics.SERVER_SOURCE_PORTS] = float(ports)
        return self._source_ports

    def _tightest_group(self, living: Sequence[Stat]) -> Path | None:
        rooms: dict[Path, TaskRoom] = {}
        with contextlib.suppress(OSError):
            mounts = read_text(f"{self._proc}/self/mountinfo")
            for stat in living:
                with contextlib.suppress(OSError, ValueError):
                    cgroup = read_text(f"{self._proc}/{stat.pid}/cgroup")
                    group = controlled_group("pids", cgroup, mounts)
                    room = None if group is None else task_room(group.folder)
                    if group is not None and room is not None:
                        rooms[group.folder] = room
        return min(rooms, key=lambda folder: rooms[folder].left, default=None)

    def _tasks_of_user(self, living: Sequence[Stat]) -> dict[str, float]:
        """The tasks of the server's user with the least room. Others of that user are counted once:
        that takes some 10 us for each process of the host.
        """
        limits: dict[int, int] = {}
        for of_process in self._limits.values():
            if of_process.user is not None and of_process.tasks is not None:
                known = limits.get(of_process.user, of_process.tasks)
                limits[of_process.user] = min(known, of_process.tasks)
        rooms = []
        for user, limit in limits.items():
            if user not in self._others:
                self._others[user] = self._tasks_of_others(user, {stat.pid for stat in living})
            used = self._others[user] + sum(
                stat.threads for stat in living if self._user_of(stat) == user
            )
            rooms.append(TaskRoom(limit, used))
        tightest = min(rooms, key=lambda room: room.left, default=None)
        if tightest is None:
            return {}
        return {
            metrics.SERVER_USER_TASKS: float(tightest.used),
            metrics.SERVER_USER_TASKS_LIMIT: float(tightest.limit),
        }

    def _user_of(self, stat: Stat) -> int | None:
        """The user of a process; beyond the first ones that of its parent, from which a process
        for a connection has it.
        """
        known = self._limits.get(stat.pid) or self._limits.get(stat.parent)
        return None if known is None else known.user

    def _tasks_of_others(self, user: int, server: set[int]) -> int:
        tasks = 0
        for pid in all_pids(self._proc):
            if pid in server:
                continue
            with contextlib.suppress(OSError):
                if os.stat(f"{self._proc}/{pid}").st_uid != user:
                    continue
                stat = readable_stat(pid, self._proc)
                if stat is not None:
                    tasks += stat.threads
        return tasks

    def _tasks_of_host(self) -> dict[str, float]:
        threads_max = self._number("sys/kernel/threads-max")
        pid_max = self._number("sys/kernel/pid_max")
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "1 min, 5 min, 15 min, runnable/all, last pid" (proc(5)).
            tasks = int(read_text(f"{self._proc}/loadavg").split()[3].partition("/")[2])
            limits = []
            if threads_max is not None:
                limits.append(threads_max)
            if pid_max is not None:
                limits.append(pid_max - _RESERVED_PIDS)
            if limits:
                return {
                    metrics.HOST_TASKS: float(tasks),
                    metrics.HOST_TASKS_LIMIT: float(min(limits)),
                }
        return {}

    def _memory(self, living: Sequence[Stat]) -> dict[str, float]:
        """What each limit on memory counts, of the process that is closest to that limit."""
        fullest: dict[ServerLimit, tuple[float, int, int]] = {}
        for stat in living:
            limits = self._limits.get(stat.pid)
            if limits is None or not limits.memory_bytes:
                continue
            sizes = self._sizes(stat.pid)
            for limit in MEMORY_LIMITS:
                size = sizes.get(_IN_PROC[limit.name].counted, 0)
                allowed = limits.memory_bytes.get(limit.name)
                if not size or allowed is None:
                    continue
                of_process = (size / allowed, size, allowed)
                fullest[limit] = max(fullest.get(limit, of_process), of_process)
        values = {}
        for limit, (_, size, allowed) in fullest.items():
            values[limit.used] = float(size)
            values[limit.limit] = float(allowed)
        return values

    def _sizes(self, pid: int) -> dict[str, int]:
        """A process's memory in bytes by the names of /proc/PID/status; empty if it has ended."""
        with contextlib.suppress(OSError):
            status = read_text(f"{self._proc}/{pid}/status")
            return {name: int(kilobytes) << 10 for name, kilobytes in _SIZE.findall(status)}
        return {}

    def _size(self, pid: int) -> int:
        """A process's address space in bytes; 0 if it has ended."""
        try:
            return int(read_text(f"{self._proc}/{pid}/statm").split()[0]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0

    def _number(self, name: str) -> int | None:
        try:
            return int(read_text(f"{self._proc}/{name}"))
        except (OSError, ValueError):
            return None


def _lines(path: str) -> int:
    """How many lines a file of /proc has. Raises OSError."""
    count = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(descriptor, _CHUNK):
            count += part.count(b"\n")
    finally:
        os.close(descriptor)
    return count
