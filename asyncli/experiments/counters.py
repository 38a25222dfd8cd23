"""Reads the kernel's counters: I/O of the server's processes, TCP segments, CPU time,
system calls.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
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
from asyncli.lab import child
from asyncli.model.errors import HostError
from asyncli.model.metrics import TCP

#: A TCP figure -> the kernel counters that it sums; one that a kernel lacks counts as 0.
_TCP: dict[str, tuple[str, ...]] = {
    "segments": ("OutSegs",),
    "retransmitted": ("RetransSegs",),
    # "Want": the buffer was full, but an announced window must not shrink (RFC 9293 3.8.6).
    "window_closed": ("TCPToZeroWindowAdv", "TCPWantZeroWindowAdv"),
}
_FILES = {"net/snmp": "Tcp", "net/netstat": "TcpExt"}


def read_tcp(proc: Path = PROC) -> dict[str, float]:
    """Segments, retransmissions and closed windows in our network namespace; empty if the kernel's
    files cannot be read.

    Both ends count; on loopback a segment counts once (Documentation/networking/snmp_counter.rst).
    """
    wanted = set(itertools.chain.from_iterable(_TCP.values()))
    values: dict[str, float] = {}
    for file, group in _FILES.items():
        try:
            values |= parse_counters(read_text(proc / file), group, wanted)
        except (OSError, ValueError):
            return {}
    figures = {}
    for name, counters in _TCP.items():
        figures[name] = sum(values.get(f"{TCP}{counter}", 0.0) for counter in counters)
    return figures


def read_io(pid: int) -> dict[str, float]:
    """The I/O of ``pid`` and its descendants since they started. ``io_calls``: read(2), write(2)
    and similar, also on sockets, but not recv(2) and sendfile(2); ``disk_bytes``: read from and
    written to storage. Reaped children are included (proc(5), /proc/PID/io). Empty if it cannot be
    read for all of them.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        counters = [process.io_counters() for process in processes]
    except psutil.Error:
        return {}
    return {
        "io_calls": sum(io.read_count + io.write_count for io in counters),
        "disk_bytes": sum(io.read_bytes + io.write_bytes for io in counters),
    }


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Each counter less its value ``before``, where both are known."""
    return {name: value - before[name] for name, value in now.items() if name in before}


# Clocks of :func:`~asyncli.collect.procfs.cpu_clock_s`: user and system time together, and user
# time alone.
_PROF = 0
_VIRT = 1
_MAX_CHILDREN_SHARE = 0.02


class CpuTime(NamedTuple):
    """CPU seconds. ``user_s`` and ``system_s`` are sampled, and exclude ``children_s``, the time of
    reaped children.
    """

    total_s: float
    user_s: float
    system_s: float
    children_s: float

    def less(self, earlier: CpuTime) -> CpuTime:
        """The difference to ``earlier``."""
        return CpuTime(*map(operator.sub, self, earlier))

    def split(self) -> tuple[float, float] | None:
        """``total_s`` split into user and system seconds; None if the kernel did not sample enough
        of it.
        """
        sampled = self.user_s + self.system_s
        if sampled <= 0 or self.children_s > _MAX_CHILDREN_SHARE * self.total_s:
            return None
        return self.total_s * self.user_s / sampled, self.total_s * self.system_s / sampled


class ServerCpu:
    """CPU time and size of the process tree below ``pid``. Blocking: microseconds per process.

    Most kernels count a process's CPU time exactly, but sample the split into user and system at
    timer ticks (CONFIG_TICK_CPU_ACCOUNTING): right within a few per cent over a second. A process
    that ends before its first tick counts as user time alone (cputime_adjust() in
    kernel/sched/cputime.c), so there is no split if reaped children spent more than 2 %.
    """

    def __init__(self, pid: int) -> None:
        self._tree = ServerTree([pid])

    def read(self) -> CpuTime:
        """CPU time of the running processes and the children they reaped. Raises
        ``ProcessesGoneError`` if none runs.
        """
        total = user = system = children = 0.0
        for stat in self._tree():
            with contextlib.suppress(OSError):  # it has ended
                of_process = cpu_clock_s(stat.pid, _VIRT)
                user += of_process
                system += cpu_clock_s(stat.pid, _PROF) - of_process
            total += stat.cpu_s + stat.waited_s
            children += stat.waited_s
        return CpuTime(total, user, system, children)

    def size(self) -> tuple[int, int]:
        """The number of processes (with zombies) and threads; more than before the load means
        unfinished work.
        """
        stats = self._tree()
        return len(stats), sum(stat.threads for stat in stats)


# Attaching takes about 1 ms per process, and writing the table a few more.
_STRACE_TIMEOUT_S = 20.0
_TRACER = re.compile(r"^TracerPid:\s+(\d+)", re.MULTILINE)
_REMEDY = "run as root or with CAP_SYS_PTRACE, in a container with --cap-add SYS_PTRACE"
_ENDED = re.compile(r"^State:\s+[ZX]", re.MULTILINE)


def parse_counts(text: str) -> dict[str, int]:
    """System call -> count, from the table that ``strace -c`` prints, without its total. Pure.

    A line has the share of time, seconds, microseconds per call, calls, errors (blank for none) and
    the name.
    """
    counts = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) in (5, 6) and fields[3].isdigit() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3])
    return counts


@contextlib.asynccontextmanager
async def count_syscalls(pids: Sequence[int]) -> AsyncIterator[dict[str, int]]:
    """Count the system calls of ``pids`` and their children during the block with strace -c, if
    they return in it; the dict is filled at its end. Raises
    :class:`~asyncli.model.errors.HostError` if strace is missing or may not trace them.

    Each traced call stops the process twice (ptrace(2)), so the server is many times slower: time
    nothing meanwhile.
    """
    program = shutil.which("strace")
    if program is None:
        raise HostError("strace is not installed; install it (apt-get install strace)")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="asyncli-strace-") as folder:
        table = Path(folder, "table")
        stderr_file = Path(folder, "stderr")
        argv = [os.path.abspath(program), "-c", "-f", "-o", str(table)]
        for pid in pids:
            argv += ["-p", str(pid)]
        with stderr_file.open("wb") as stderr:
            process = child.spawn(argv, stderr=stderr, env={**os.environ, "LC_ALL": "C"})
        try:

            def attached_or_ended() -> bool:
                return process.poll() is not None or _attached(process.pid, pids)

            if not await child.until(attached_or_ended, _STRACE_TIMEOUT_S):
                raise HostError(
                    f"strace has not attached to {len(pids)} processes within "
                    f"{_STRACE_TIMEOUT_S:.0f} s; see the host's load"
                )
            if process.poll() is not None:
                text = stderr_file.read_text(encoding="utf-8", errors="replace")
                complaint = " ".join(text.split()) or "it printed nothing"
                raise HostError(f"strace did not start: {complaint}; {_REMEDY}")
            yield counts
            process.send_signal(signal.SIGINT)
            await child.until(lambda: process.poll() is not None, _STRACE_TIMEOUT_S)
            if process.poll() != -signal.SIGINT or not table.exists():
                raise HostError(
                    "strace wrote no table of system calls; check that it was not killed, and "
                    "that TMPDIR is writable"
                )
            counts.update(parse_counts(table.read_text(encoding="utf-8", errors="replace")))
        finally:
            # It detaches when it ends, however it ends.
            await child.end(process)


def _attached(tracer: int, pids: Sequence[int]) -> bool:
    """Whether ``tracer`` traces all processes that still run (proc(5), TracerPid). If none runs,
    strace ends by itself.
    """
    tracers = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            text = read_text(f"/proc/{pid}/status")
            match = _TRACER.search(text)
            if match is not None and not _ENDED.search(text):
                tracers.add(int(match[1]))
    return tracers == {tracer}
