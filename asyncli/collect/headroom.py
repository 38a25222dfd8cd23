"""The server's headroom: descriptors of its fullest process, memory and CPU of its cgroup.

Descriptors are counted without listing them, which would create dentries: since Linux 6.2 the size
of /proc/PID/fd is their number (proc_fd_getattr in fs/proc/fd.c). Before, only their limit is
known.

How many a process once had is known from its table of descriptors, FDSize of /proc/PID/status: it
doubles when it is full, and never shrinks (expand_fdtable in fs/file.c). More than half of a table
was in use once, unless a shell passed it on.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from asyncli.collect.cgroups import Group, controlled_group, cpu_quota, memory_group
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, read_text
from asyncli.model import metrics

# Enough for a server with a process for each connection, each with few descriptors.
_MOST_PROCESSES = 128
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)
# A smaller table tells nothing: one of a shell begins with this size.
_LEAST_TABLE = 256
_TABLE = re.compile(r"^FDSize:\s+(\d+)", re.MULTILINE)


def descriptors_limit(pid: int, proc: Path = PROC) -> int:
    """A process's limit of descriptors (RLIMIT_NOFILE); 0: unlimited. Raises OSError."""
    match = _OPEN_FILES.search(read_text(f"{proc}/{pid}/limits"))
    if match is None:
        return 0
    return int(match[1])


class Headroom:
    """The headroom of ``pids``. Blocking; ended processes are skipped.

    The cgroup is the one with the tightest limit at the first reading, or without a limit that of
    the first process; it outlives its processes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], *, proc: Path = PROC) -> None:
        self._pids = pids
        self._proc = proc
        self._group: Group | None = None
        self._group_read = False
        # The control group of the cpu controller.
        self._cpu_group: Group | None = None
        self._cpu_group_read = False
        # By process, when it was first seen: its limit (0: none), open descriptors, and the size of
        # its table (0: unread).
        self._seen: dict[int, tuple[int, int, int]] = {}

    def read(self) -> ProbeReading:
        """Descriptors in all and of the fullest process (the lowest limit if uncountable), those
        closed before, memory of the cgroup, and its quota of CPU.
        """
        every = list(self._pids())
        pids = every[:_MOST_PROCESSES]
        return ProbeReading(
            {
                **self._open(every),
                **self._descriptors(pids),
                **self._memory(pids),
                **self._cpu(pids),
            }
        )

    def _open(self, pids: list[int]) -> dict[str, float]:
        """The descriptors of all processes; nothing where the kernel does not count them."""
        number = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                number += os.stat(f"{self._proc}/{pid}/fd").st_size
        return {metrics.SERVER_DESCRIPTORS_OPEN: float(number)} if number else {}

    def _descriptors(self, pids: list[int]) -> dict[str, float]:
        """The descriptors of the process that is nearest to its limit, and the tables of all."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}
        fullest = (0.0, 0, 0)
        for pid in pids:
            with contextlib.suppress(OSError):
                number = os.stat(f"{self._proc}/{pid}/fd").st_size
                if pid not in self._seen:
                    limit = descriptors_limit(pid, self._proc)
                    self._seen[pid] = (limit, number, self._table(pid))
                limit, _, _ = self._seen[pid]
                if number and limit:
                    fullest = max(fullest, (number / limit, number, limit))
        _, number, limit = fullest
        if not limit:
            known_limits = [known for known, _, _ in self._seen.values() if known]
            limit = min(known_limits, default=0)
        counts = {}
        if number:
            counts[metrics.SERVER_DESCRIPTORS] = float(number)
        if limit:
            counts[metrics.SERVER_DESCRIPTORS_LIMIT] = float(limit)
        return counts | self._tables()

    def _tables(self) -> dict[str, float]:
        """The sizes of all tables of descriptors, and how much of them closed descriptors left."""
        total = 0
        closed = 0
        for _, first_number, size in self._seen.values():
            total += size
            if size > max(_LEAST_TABLE, 2 * first_number):
                closed += size - first_number
        if not total:
            return {}
        return {
            metrics.SERVER_DESCRIPTORS_CLOSED: float(closed),
            metrics.SERVER_DESCRIPTORS_TABLE: float(total),
        }

    def _table(self, pid: int) -> int:
        with contextlib.suppress(OSError):
            match = _TABLE.search(read_text(f"{self._proc}/{pid}/status"))
            if match is not None:
                return int(match[1])
        return 0

    def _memory(self, pids: list[int]) -> dict[str, float]:
        if not self._group_read and pids:
            self._group_read = True
            self._group = self._tightest(pids)
        if self._group is None:
            return {}
        # The cgroup may be removed with its last process.
        with contextlib.suppress(OSError, ValueError):
            # The kernel counts its victims by group where the whole host lacks memory too.
            values = {metrics.SERVER_GROUP_KILLED: float(self._group.killed)}
            limit = self._group.limit_bytes
            if limit is not None:
                values[metrics.SERVER_GROUP_LIMIT_BYTES] = float(limit)
                values[metrics.SERVER_GROUP_BYTES] = float(self._group.held_bytes)
            return values
        return {}

    def _cpu(self, pids: list[int]) -> dict[str, float]:
        """The quota of CPU of the first process's control group."""
        if not self._cpu_group_read and pids:
            self._cpu_group_read = True
            with contextlib.suppress(OSError, ValueError):
                cgroup = read_text(f"{self._proc}/{pids[0]}/cgroup")
                mounts = read_text(f"{self._proc}/self/mountinfo")
                self._cpu_group = controlled_group("cpu", cgroup, mounts)
        if self._cpu_group is None:
            return {}
        quota = None
        with contextlib.suppress(ValueError):
            quota = cpu_quota(self._cpu_group)
        if quota is None:
            return {}
        return {
            metrics.SERVER_GROUP_CPUS: quota.cpus,
            metrics.SERVER_GROUP_PERIODS: float(quota.periods),
            metrics.SERVER_GROUP_THROTTLED: float(quota.throttled),
        }

    def _tightest(self, pids: list[int]) -> Group | None:
        """The cgroup with the tightest limit, else the first one; None without cgroups."""
        limits: dict[Group, float] = {}
        with contextlib.suppress(OSError):
            mounts = read_text(f"{self._proc}/self/mountinfo")
            for pid in pids:
                with contextlib.suppress(OSError, ValueError):
                    group = memory_group(read_text(f"{self._proc}/{pid}/cgroup"), mounts)
                    if group is None or group in limits:
                        continue
                    limit = group.limit_bytes
                    limits[group] = math.inf if limit is None else limit
        return min(limits, key=lambda group: limits[group], default=None)
