"""What the kernel counts: what the server's processes read and wrote, TCP's segments, CPU time, system calls."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from asyncli.collect.kernel import parse_counters
from asyncli.collect.processes import ServerTree
from asyncli.collect.procfs import PROC, cpu_clock_s, read_text
from asyncli.errors import HostError
from asyncli.lab import child
from asyncli.metrics import TCP

#: A figure of TCP -> the counters whose sum it is; one that a kernel lacks counts as 0.
_TCP: dict[str, tuple[str, ...]] = {
    "segments": ("OutSegs",),
    "retransmitted": ("RetransSegs",),
    # "Want": its buffer was full, and a window that had been promised could not be taken back (RFC 9293 3.8.6).
    "window_closed": ("TCPToZeroWindowAdv", "TCPWantZeroWindowAdv"),
}
_FILES = {"net/snmp": "Tcp", "net/netstat": "TcpExt"}


def read_tcp(proc: Path = PROC) -> dict[str, float]:
    """Segments, retransmissions and closed windows; empty where the kernel's files cannot be read.

    Of our network namespace, both ends: on loopback a segment counts once (Documentation/networking/snmp_counter.rst).
    """
    wanted = {one for sums in _TCP.values() for one in sums}
    values: dict[str, float] = {}
    for file, group in _FILES.items():
        try:
            values |= parse_counters(read_text(proc / file), group, wanted)
        except (OSError, ValueError):
            return {}
    return {name: sum(values.get(f"{TCP}{one}", 0.0) for one in sums) for name, sums in _TCP.items()}


def read_io(pid: int) -> dict[str, float]:
    """``io_calls`` of ``pid`` and its descendants since they began: read(2), write(2) and their like, sockets included, but not
    recv(2) and sendfile(2); ``disk_bytes``: what storage gave and got. Children that were waited for are included (proc(5),
    /proc/PID/io). Empty where that cannot be read of all of them.
    """
    try:
        root = psutil.Process(pid)
        found = [one.io_counters() for one in (root, *root.children(recursive=True))]
    except psutil.Error:
        return {}
    calls, disk = (sum(one.read_count + one.write_count for one in found), sum(one.read_bytes + one.write_bytes for one in found))
    return {"io_calls": calls, "disk_bytes": disk}


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Each counter less its value ``before``, where both are known."""
    return {name: value - before[name] for name, value in now.items() if name in before}


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
    """CPU time and size of the tree of processes below ``pid``. Blocking: microseconds a process.

    To the microsecond, split into user and system where the kernel knows. Most kernels count a process's CPU time exactly, but
    sample the split at the timer's ticks (CONFIG_TICK_CPU_ACCOUNTING): right within a few per cent over a second. A process that
    ends before its first tick counts as user time alone (cputime_adjust() in kernel/sched/cputime.c): where ended children spent
    more than 2 %, there is no split.
    """

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


# To attach takes about a millisecond a process, and the table is written within a few more.
_PATIENCE_S = 20.0
_TRACER = re.compile(r"^TracerPid:\s+(\d+)", re.MULTILINE)
_REMEDY = "run as root or with CAP_SYS_PTRACE, in a container with --cap-add SYS_PTRACE"
_ENDED = re.compile(r"^State:\s+[ZX]", re.MULTILINE)


def parse_counts(text: str) -> dict[str, int]:
    """System call -> how often, of the table that ``strace -c`` prints; its total is left out. Pure.

    A line is the share of time, seconds, microseconds a call, calls, errors (blank where there was none) and the name.
    """
    counts = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) in (5, 6) and fields[3].isdigit() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3])
    return counts


@contextlib.asynccontextmanager
async def counting(pids: Sequence[int]) -> AsyncIterator[dict[str, int]]:
    """Count the system calls of ``pids`` and of what they fork by strace -c; filled at the block's end. Raises
    :class:`~asyncli.errors.HostError` where strace is missing, or may not trace them.

    Each traced call stops the process twice (ptrace(2)), so the server is many times slower: nothing is timed meanwhile.
    """
    program = shutil.which("strace")
    if program is None:
        raise HostError("strace is not installed; install it (apt-get install strace)")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="asyncli-strace-") as folder:
        table, said = Path(folder, "table"), Path(folder, "stderr")
        argv = [os.path.abspath(program), "-c", "-f", "-o", str(table), *(word for pid in pids for word in ("-p", str(pid)))]
        with said.open("wb") as stderr:
            process = child.spawn(argv, stderr=stderr, env={**os.environ, "LC_ALL": "C"})
        try:
            if not await child.until(lambda: process.poll() is not None or _attached(process.pid, pids), _PATIENCE_S):
                raise HostError(
                    f"strace has not attached to {len(pids)} processes within {_PATIENCE_S:.0f} s; see the host's load"
                )
            if process.poll() is not None:
                complaint = " ".join(said.read_text(encoding="utf-8", errors="replace").split()) or "it said nothing"
                raise HostError(f"strace did not start: {complaint}; {_REMEDY}")
            yield counts
            process.send_signal(signal.SIGINT)
            await child.until(lambda: process.poll() is not None, _PATIENCE_S)
            if process.poll() != -signal.SIGINT or not table.exists():
                raise HostError(
                    "strace wrote no table of system calls; see that it was not killed, and that TMPDIR can be written"
                )
            counts.update(parse_counts(table.read_text(encoding="utf-8", errors="replace")))
        finally:
            # It lets go of what it traces when it ends, however it ends.
            await child.end(process)


def _attached(tracer: int, pids: Sequence[int]) -> bool:
    """Whether all that live are traced (proc(5), TracerPid). Where none does, strace ends by itself."""
    tracers = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            text = read_text(f"/proc/{pid}/status")
            found = _TRACER.search(text)
            if found is not None and not _ENDED.search(text):
                tracers.add(int(found[1]))
    return tracers == {tracer}
