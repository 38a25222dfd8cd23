"""A server's CPU time to the microsecond, split into user and system where the kernel knows.

Most kernels count a process's CPU time exactly, but sample the split at the timer's ticks (CONFIG_TICK_CPU_ACCOUNTING): right
within a few per cent over a second. A process that ends before its first tick counts as user time alone (cputime_adjust() in
kernel/sched/cputime.c): where ended children spent more than 2 %, there is no split.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from asyncli.collect.processes import ServerTree
from asyncli.collect.procfs import cpu_clock_s

# Of :func:`~asyncli.collect.procfs.cpu_clock_s`: user and system samples together, and user alone.
_PROF, _VIRT = 0, 1
_UNTOLD = 0.02


class CpuTime(NamedTuple):
    """CPU seconds. ``user_s`` and ``system_s`` are sampled, without ``children_s`` of ended children."""

    total_s: float
    user_s: float
    system_s: float
    children_s: float

    def less(self, earlier: CpuTime) -> CpuTime:
        """What was spent since ``earlier``."""
        return CpuTime(*(mine - theirs for mine, theirs in zip(self, earlier, strict=True)))

    def split(self) -> tuple[float, float] | None:
        """User and system seconds, together all of it; None where the kernel did not tell them apart."""
        sampled = self.user_s + self.system_s
        if sampled <= 0 or self.children_s > _UNTOLD * self.total_s:
            return None
        return self.total_s * self.user_s / sampled, self.total_s * self.system_s / sampled


class ServerCpu:
    """CPU time and size of the tree of processes below ``pid``. Blocking: microseconds a process."""

    def __init__(self, pid: int) -> None:
        self._tree = ServerTree([pid])

    def read(self) -> CpuTime:
        """Of the living processes and the children they waited for; raises ``ProcessesGoneError`` where none lives."""
        total = user = system = children = 0.0
        for stat in self._tree():
            with contextlib.suppress(OSError):  # it has ended since
                mine = cpu_clock_s(stat.pid, _VIRT)
                user, system = user + mine, system + cpu_clock_s(stat.pid, _PROF) - mine
            total, children = total + stat.cpu_s + stat.waited_s, children + stat.waited_s
        return CpuTime(total, user, system, children)

    def size(self) -> tuple[int, int]:
        """Processes (with zombies) and threads: more than before means that work is unfinished."""
        stats = self._tree()
        return len(stats), sum(stat.threads for stat in stats)
