"""A server's CPU time to the microsecond, user and system told apart as far as the kernel knows them.

Most kernels count a process's CPU time exactly and sample who spent it, user or system, at the timer's interrupts
(CONFIG_TICK_CPU_ACCOUNTING). Over a second that is right within a few per cent. But a process that ends before a tick ever
hit it has no sample, and the kernel then calls all of its time user time (cputime_adjust() in kernel/sched/cputime.c): where
children that ended spent more than 2 %, nothing is told apart.
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
    """Seconds of CPU. ``user_s`` and ``system_s`` are of samples; ``children_s``, of those that ended, is in neither."""

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
        """All that its living processes spent, and the children they waited for; ``ProcessesGoneError`` where none lives."""
        total = user = system = children = 0.0
        for stat in self._tree():
            with contextlib.suppress(OSError):  # it has ended since
                mine = cpu_clock_s(stat.pid, _VIRT)
                user, system = user + mine, system + cpu_clock_s(stat.pid, _PROF) - mine
            total, children = total + stat.cpu_s + stat.waited_s, children + stat.waited_s
        return CpuTime(total, user, system, children)

    def size(self) -> tuple[int, int]:
        """Its processes, zombies too, and threads: until these are few again, something of its work is not done."""
        stats = self._tree()
        return len(stats), sum(stat.threads for stat in stats)
