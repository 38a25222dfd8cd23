"""Who used this host's CPUs between two readings: asyncli, the server, or other programs.

A reading takes some 10 us a process: for the borders of a measurement, never for a tick.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from asyncli.collect.processes import by_ancestor
from asyncli.collect.procfs import PROC, TICKS_PER_S, Stat, parents, read_text
from asyncli.model.records import STOLEN, CpuShares

# In another pid namespace, or started and ended between the readings.
_UNSEEN = "processes that are not seen from here"
_KTHREADD = 2
# It handles loopback traffic, which is the measurement's own.
_FOR_SOCKETS = "ksoftirqd"


class CpuTimes(msgspec.Struct, frozen=True):
    """CPU times since boot, in seconds: busy, in interrupts and stolen, summed over all CPUs; and
    each process's stat.
    """

    at_s: float
    cpus: int
    busy_s: float
    interrupts_s: float
    stolen_s: float
    processes: Mapping[int, Stat]


def read_times(proc: Path = PROC) -> CpuTimes:
    """The times now. Blocking; raises OSError or ValueError if /proc/stat cannot be read."""
    return parse_times(
        read_text(proc / "stat"), time.monotonic(), {stat.pid: stat for stat in parents(proc)}
    )


def parse_times(text: str, at_s: float, processes: Mapping[int, Stat]) -> CpuTimes:
    """Parse /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal in ticks, of all CPUs
    and of each.
    """
    rows = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    if not rows or len(rows[0]) < 9:
        raise ValueError("/proc/stat does not begin with the times of all CPUs")
    user, nice, system, _idle, _iowait, irq, softirq, stolen = (
        int(field) / TICKS_PER_S for field in rows[0][1:9]
    )
    busy_s = user + nice + system + irq + softirq + stolen
    return CpuTimes(at_s, max(1, len(rows) - 1), busy_s, irq + softirq, stolen, processes)


def shares(first: CpuTimes, last: CpuTimes, ours: int, server: Collection[int]) -> CpuShares:
    """Cores used between two readings, by program; without the process trees of ``ours`` and
    ``server``.
    """
    span_s = max(1e-9, last.at_s - first.at_s)
    busy = (last.busy_s - first.busy_s) / span_s
    stolen = (last.stolen_s - first.stolen_s) / span_s
    others = {STOLEN: stolen} if stolen > 0 else {}
    pids: dict[str, list[int]] = {}
    # Interrupts are in no process's time, and mostly the measurement's own.
    unseen = busy - stolen - (last.interrupts_s - first.interrupts_s) / span_s
    for pid, used_s in sorted(
        _used(first.processes, last.processes).items(), key=lambda pair: -pair[1]
    ):
        unseen -= used_s / span_s
        stat = last.processes[pid]
        name = stat.name.partition("/")[0] if stat.parent == _KTHREADD else stat.name
        if used_s <= 0 or name == _FOR_SOCKETS or _belongs(pid, last.processes, {ours, *server}):
            continue
        others[name] = others.get(name, 0.0) + used_s / span_s
        pids.setdefault(name, []).append(pid)
    if unseen > 0:
        others[_UNSEEN] = unseen
    return CpuShares(last.cpus, busy, others, {name: tuple(found) for name, found in pids.items()})


def _used(first: Mapping[int, Stat], last: Mapping[int, Stat]) -> dict[int, float]:
    """CPU seconds by living pid, with those of the children they waited for."""
    known = {
        pid: before
        for pid, before in first.items()
        if pid in last and last[pid].start_ticks == before.start_ticks
    }
    # The parent's waited-for time includes an ended child's time from before the first reading.
    owed = by_ancestor(
        {(pid, stat.start_ticks): stat for pid, stat in first.items() if pid not in known}, known
    )
    used = {}
    for pid, stat in last.items():
        before = known.get(pid)
        used_s = stat.cpu_s + stat.waited_s
        used[pid] = (
            used_s
            if before is None
            else max(0.0, used_s - before.cpu_s - before.waited_s - owed.get(pid, 0.0))
        )
    return used


def _belongs(pid: int, processes: Mapping[int, Stat], roots: Collection[int]) -> bool:
    seen = set[int]()
    while pid not in roots:
        stat = processes.get(pid)
        if stat is None or pid in seen:
            return False
        seen.add(pid)
        pid = stat.parent
    return True
