"""The memory control group of a process: its limit, its usage, and OOM kills."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

# cgroup v1 writes a number near 2**63 for no limit.
_NO_LIMIT = 2**60


class Group(NamedTuple):
    """A memory cgroup's folder, and whether it is cgroup v2. Reading it raises OSError."""

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
                # The root of the hierarchy and the folders above have no such file.
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
    """The memory cgroup of a process, from its ``cgroup`` and our ``mountinfo`` (proc(5)); None without one."""
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
    """A cgroup's folder: a mount may show only the part of the hierarchy below ``root``."""
    rest = path.removeprefix(root) if root != "/" else path
    return Path(mount) / rest.lstrip("/")
