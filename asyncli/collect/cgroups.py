"""The control groups of a process: its limit of memory, usage and OOM kills; its limit of tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

# cgroup v1 writes a number near 2**63 for no limit.
_NO_LIMIT = 2**60


class Group(NamedTuple):
    """A cgroup's folder, and whether it is cgroup v2. Its properties are of memory, and raise
    OSError.
    """

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
            if not 0 < limit < _NO_LIMIT:
                return None
            return limit
        limits = []
        for folder in (self.folder, *self.folder.parents):
            try:
                text = (folder / "memory.max").read_text(encoding="ascii").strip()
            except OSError:
                # The root of the hierarchy and the folders above have no such file.
                break
            if text.isdigit():
                limits.append(int(text))
        return min(limits, default=None)

    @property
    def killed(self) -> int:
        """Processes that the kernel killed for lack of memory."""
        return counted(
            self.read("memory.events" if self.second else "memory.oom_control"), "oom_kill"
        )

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="ascii")


class CpuQuota(NamedTuple):
    """The cores that a group may use on average, and the periods with work to do, in all and those
    in which the quota was used up.
    """

    cpus: float
    periods: int
    throttled: int


def cpu_quota(group: Group) -> CpuQuota | None:
    """The tightest quota of a cgroup of the cpu controller and of those above it; None without one.

    See admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and scheduler/sched-bwc.rst.
    """
    quotas = []
    for folder in (group.folder, *group.folder.parents):
        try:
            cpus = _quota_cpus(folder, second=group.second)
            stat = (folder / "cpu.stat").read_text(encoding="ascii")
        except OSError:
            # The root of the hierarchy and the folders above have no such files.
            break
        if cpus is not None:
            periods = counted(stat, "nr_periods")
            quotas.append(CpuQuota(cpus, periods, counted(stat, "nr_throttled")))
    return min(quotas, default=None)


def _quota_cpus(folder: Path, *, second: bool) -> float | None:
    """None: no quota. Raises OSError."""
    if second:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    else:
        quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
        period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None
    return int(quota) / int(period)


class TaskRoom(NamedTuple):
    """How many tasks (threads of all processes) may be, and how many are."""

    limit: int
    used: int

    @property
    def left(self) -> int:
        return self.limit - self.used


def task_room(folder: Path) -> TaskRoom | None:
    """The least room for tasks in the cgroup ``folder`` of the pids controller, and in those above
    it; None without a limit.

    The files have the same names in both versions (admin-guide/cgroup-v1/pids.rst, cgroup-v2.rst).
    """
    rooms = []
    for group in (folder, *folder.parents):
        try:
            limit = (group / "pids.max").read_text(encoding="ascii").strip()
            used = (group / "pids.current").read_text(encoding="ascii").strip()
        except OSError:
            # The root of the hierarchy and the folders above have no such files.
            break
        if limit.isdigit() and used.isdigit():
            rooms.append(TaskRoom(int(limit), int(used)))
    return min(rooms, key=lambda room: room.left, default=None)


def memory_group(cgroup: str, mountinfo: str) -> Group | None:
    """The memory cgroup of a process, from its ``cgroup`` and our ``mountinfo`` (proc(5)); None
    without one.
    """
    return controlled_group("memory", cgroup, mountinfo)


def controlled_group(controller: str, cgroup: str, mountinfo: str) -> Group | None:
    """The cgroup of a process by which ``controller`` governs it."""
    first_version = None
    second_version = None
    for line in cgroup.splitlines():
        if not line:
            continue
        _, controllers, path = line.split(":", 2)
        if not controllers:
            second_version = path
        elif first_version is None and controller in controllers.split(","):
            first_version = path
    for line in mountinfo.splitlines():
        front, _, back = line.partition(" - ")
        fields = front.split()
        kind = back.split()
        if first_version is not None:
            if kind[0] == "cgroup" and controller in kind[2].split(","):
                return Group(_below(fields[4], fields[3], first_version), second=False)
        elif second_version is not None and kind[0] == "cgroup2":
            return Group(_below(fields[4], fields[3], second_version), second=True)
    return None


def counted(text: str, name: str) -> int:
    """The number in the line ``name number``; 0 without one."""
    match = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    if match is None:
        return 0
    return int(match[1])


def _below(mount: str, root: str, path: str) -> Path:
    """A cgroup's folder: a mount may show only the part of the hierarchy below ``root``."""
    if root != "/":
        path = path.removeprefix(root)
    return Path(mount) / path.lstrip("/")
