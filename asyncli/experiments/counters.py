"""Counters of the kernel that cost the server nothing: what its processes read, wrote and waited, and what TCP sent meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import psutil

from asyncli.collect.kernel import parse_counters
from asyncli.collect.procfs import PROC, read_text
from asyncli.metrics import TCP

#: A figure of TCP -> the counters whose sum it is; one that a kernel lacks counts as 0.
_TCP: dict[str, tuple[str, ...]] = {
    "segments": ("OutSegs",),
    "retransmitted": ("RetransSegs",),
    "timeouts": ("TCPTimeouts",),
    # "Want": its buffer was full, and a window that had been promised could not be taken back (RFC 9293 3.8.6).
    "window_closed": ("TCPToZeroWindowAdv", "TCPWantZeroWindowAdv"),
}
_FILES = {"net/snmp": "Tcp", "net/netstat": "TcpExt"}


def read_tcp(proc: Path = PROC) -> dict[str, float]:
    """Segments, retransmissions and windows that closed; empty where the kernel's files cannot be read.

    Of our network namespace, all its traffic and both ends of it: on loopback a segment is counted once as it goes out. Source:
    Documentation/networking/snmp_counter.rst of the kernel.
    """
    wanted = {one for sums in _TCP.values() for one in sums}
    values: dict[str, float] = {}
    for file, group in _FILES.items():
        try:
            values |= parse_counters(read_text(proc / file), group, wanted)
        except (OSError, ValueError):
            return {}
    return {name: sum(values.get(f"{TCP}{one}", 0.0) for one in sums) for name, sums in _TCP.items()}


def read_usage(pid: int) -> dict[str, float]:
    """Counters of ``pid`` and its descendants since they began; one that cannot be read of all of them is absent.

    - ``io_calls``: calls of read(2), write(2) and their like, sockets included, but not of recv(2) and sendfile(2);
      ``disk_bytes``: what storage gave and got. Children that were waited for are included (proc(5), /proc/PID/io).
    - ``waits``, ``preemptions``: context switches that a process wanted, or not; ``queued_ns``: ready to run and waiting for a
      CPU (schedstat, CONFIG_SCHED_INFO). Of those that live.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        for read in (_io, _switches, _queued):
            with contextlib.suppress(psutil.Error, OSError, IndexError):
                parts = [read(one) for one in tree]
                found |= {name: sum(part[name] for part in parts) for name in parts[0]}
    return found


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Each counter less what it was ``before``; without those of which either is unknown."""
    return {name: value - before[name] for name, value in now.items() if name in before}


def _io(process: psutil.Process) -> dict[str, float]:
    io = process.io_counters()
    return {"io_calls": io.read_count + io.write_count, "disk_bytes": io.read_bytes + io.write_bytes}


def _switches(process: psutil.Process) -> dict[str, float]:
    switches = process.num_ctx_switches()
    return {"waits": switches.voluntary, "preemptions": switches.involuntary}


def _queued(process: psutil.Process) -> dict[str, float]:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return {"queued_ns": sum(int(read_text(task / "schedstat").split()[1]) for task in tasks)}
