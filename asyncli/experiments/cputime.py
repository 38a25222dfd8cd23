"""A server's CPU time to the microsecond, user and system told apart as far as the kernel knows them.

Most kernels count a process's CPU time exactly and sample who spent it, user or system, at the timer's interrupts
(CONFIG_TICK_CPU_ACCOUNTING). Over a second that is right within a few per cent. But a process that ends before a tick ever
hit it has no sample, and the kernel then calls all of its time user time (cputime_adjust() in kernel/sched/cputime.c).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from asyncli.collect.processes import ServerTree
from asyncli.collect.procfs import Stat, cpu_clock_s

# Of :func:`~asyncli.collect.procfs.cpu_clock_s`: user and system samples together, and user alone.
_PROF, _VIRT = 0, 1
# Reads in a row, microseconds apart: measured time moves with each, sampled time stands still between two ticks.
_READS = 20
# What of the whole may have been spent by children without a split before the split of the rest says nothing.
_UNTOLD = 0.02


class CpuTime(NamedTuple):
    """Seconds of CPU. ``user_s`` and ``system_s`` are of samples, not exact; ``untold_s`` lies in neither of them."""

    total_s: float
    user_s: float
    system_s: float
    untold_s: float

    def less(self, earlier: CpuTime) -> CpuTime:
        """What was spent since ``earlier``."""
        return CpuTime(*(mine - theirs for mine, theirs in zip(self, earlier, strict=True)))

    def split(self) -> tuple[float, float] | None:
        """User and system seconds, together all of it; None where the kernel did not tell them apart."""
        sampled = self.user_s + self.system_s
        if sampled <= 0 or self.untold_s > _UNTOLD * self.total_s:
            return None
        return self.total_s * self.user_s / sampled, self.total_s * self.system_s / sampled


class ServerCpu:
    """CPU time and size of the tree of processes below ``pids``. Blocking: microseconds a process."""

    def __init__(self, *pids: int) -> None:
        self._tree = ServerTree(pids)
        self._sampled = ticks_only()

    def read(self) -> CpuTime:
        """All that its living processes spent, and the children they waited for; ``ProcessesGoneError`` where none lives."""
        return cpu_time(self._tree(), sampled=self._sampled)

    def size(self) -> tuple[int, int]:
        """Its processes, zombies too, and threads: until these are few again, something of its work is not done."""
        stats = self._tree()
        return len(stats), sum(stat.threads for stat in stats)


def cpu_time(stats: Iterable[Stat], *, sampled: bool) -> CpuTime:
    """The CPU time of these processes and of the children they waited for; ``sampled``: see :func:`ticks_only`."""
    total = user = system = untold = 0.0
    for stat in stats:
        with contextlib.suppress(OSError):  # it has ended since
            mine = cpu_clock_s(stat.pid, _VIRT)
            user, system = user + mine, system + cpu_clock_s(stat.pid, _PROF) - mine
        total += stat.cpu_s + stat.waited_s
        if sampled:
            untold += stat.waited_s
        else:
            user, system = user + stat.waited_s - stat.waited_system_s, system + stat.waited_system_s
    return CpuTime(total, user, system, untold)


def ticks_only() -> bool:
    """Whether this kernel samples at ticks who spends the CPU, instead of measuring it."""
    return len({cpu_clock_s(os.getpid(), _PROF) for _ in range(_READS)}) < _READS // 2
