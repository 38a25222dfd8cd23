"""The memory control group of a process: its limit, its usage, and OOM kills; and the server's headroom.

Descriptors are counted without listing them, which would create dentries: since Linux 6.2 the size of /proc/PID/fd is their
number (proc_fd_getattr in fs/proc/fd.c); before, only their limit is known.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from asyncli import metrics
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, read_text

# cgroup v1 says "none" by a number near 2**63.
_NO_LIMIT = 2**60


class Group(NamedTuple):
    """A memory group's folder, and whether it is of cgroup v2. Reading it raises OSError."""

    folder: Path
    second: bool

    @property
    def used_bytes(self) -> int:
        """The charge: user memory, page cache, sockets, stacks and tables."""
        return int(self.read("memory.current" if self.second else "memory.usage_in_bytes") or 0)

    @property
    def held_bytes(self) -> int:
        """Usage without the page cache, which can be reclaimed."""
        stat = self.read("memory.stat")
        cache, shared = ("file", "shmem") if self.second else ("total_cache", "total_shmem")
        return self.used_bytes - counted(stat, cache) + counted(stat, shared)

    @property
    def limit_bytes(self) -> int | None:
        """The tightest limit of the group and its ancestors; None without one."""
        if not self.second:
            limit = counted(self.read("memory.stat"), "hierarchical_memory_limit")
            return limit if 0 < limit < _NO_LIMIT else None
        found = []
        for folder in (self.folder, *self.folder.parents):
            try:
                text = (folder / "memory.max").read_text(encoding="ascii").strip()
            except OSError:
                # The root of the hierarchy and what is above have no such file.
                break
            found += [int(text)] if text.isdigit() else []
        return min(found, default=None)

    @property
    def killed(self) -> int:
        """Processes that the kernel killed for lack of memory."""
        return counted(self.read("memory.events" if self.second else "memory.oom_control"), "oom_kill")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="ascii")


def memory_group(cgroup: str, mountinfo: str) -> Group | None:
    """A process's memory group, by its ``cgroup`` and our ``mountinfo`` (proc(5)); None without one."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in cgroup.splitlines() if line)}
    mine = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
    for line in mountinfo.splitlines():
        front, _, back = line.partition(" - ")
        fields, kind = front.split(), back.split()
        if mine is not None and kind[0] == "cgroup" and "memory" in kind[2].split(","):
            return Group(_below(fields[4], fields[3], mine), second=False)
        if mine is None and kind[0] == "cgroup2" and "" in paths:
            return Group(_below(fields[4], fields[3], paths[""]), second=True)
    return None


def counted(text: str, name: str) -> int:
    """The number in the line ``name number``; 0 without one."""
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _below(mount: str, root: str, path: str) -> Path:
    """A group's folder: a mount may show the hierarchy from ``root`` on only."""
    rest = path.removeprefix(root) if root != "/" else path
    return Path(mount) / rest.lstrip("/")


# Enough for a server with a process for each connection, each with few descriptors.
_MOST_PROCESSES = 128
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)


class Headroom:
    """The headroom of ``pids``. Blocking; ended processes are skipped.

    Its memory group is the one with the tightest limit at the first reading, which outlives its processes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], *, proc: Path = PROC) -> None:
        self._pids = pids
        self._proc = proc
        self._group: Group | None = None
        self._looked = False
        self._limits: dict[int, int] = {}

    def read(self) -> ProbeReading:
        """Descriptors of the fullest process (the lowest limit where they cannot be counted), and its memory group."""
        pids = list(self._pids())[:_MOST_PROCESSES]
        return ProbeReading({**self._descriptors(pids), **self._memory(pids)})

    def _descriptors(self, pids: list[int]) -> dict[str, float]:
        self._limits = {pid: limit for pid, limit in self._limits.items() if pid in pids}
        fullest = (0.0, 0, 0)
        for pid in pids:
            with contextlib.suppress(OSError):
                number = os.stat(f"{self._proc}/{pid}/fd").st_size
                if pid not in self._limits:
                    found = _OPEN_FILES.search(read_text(f"{self._proc}/{pid}/limits"))
                    self._limits[pid] = int(found[1]) if found else 0
                if number and (limit := self._limits[pid]):
                    fullest = max(fullest, (number / limit, number, limit))
        _, number, limit = fullest
        if number:
            return {metrics.SERVER_DESCRIPTORS: float(number), metrics.SERVER_DESCRIPTORS_LIMIT: float(limit)}
        least = min(filter(None, self._limits.values()), default=0)
        return {metrics.SERVER_DESCRIPTORS_LIMIT: float(least)} if least else {}

    def _memory(self, pids: list[int]) -> dict[str, float]:
        if not self._looked and pids:
            self._looked = True
            self._group = self._tightest(pids)
        if self._group is None:
            return {}
        # The group may be removed with its last process.
        with contextlib.suppress(OSError, ValueError):
            limit = self._group.limit_bytes
            return {
                metrics.SERVER_GROUP_BYTES: float(self._group.held_bytes),
                metrics.SERVER_GROUP_KILLED: float(self._group.killed),
                **({} if limit is None else {metrics.SERVER_GROUP_LIMIT_BYTES: float(limit)}),
            }
        return {}

    def _tightest(self, pids: list[int]) -> Group | None:
        """The group with the tightest limit; None where none has one."""
        found: dict[Group, int] = {}
        with contextlib.suppress(OSError):
            mounts = read_text(f"{self._proc}/self/mountinfo")
            for pid in pids:
                with contextlib.suppress(OSError, ValueError):
                    group = memory_group(read_text(f"{self._proc}/{pid}/cgroup"), mounts)
                    if group is not None and group not in found and (limit := group.limit_bytes) is not None:
                        found[group] = limit
        return min(found, key=lambda one: found[one], default=None)
