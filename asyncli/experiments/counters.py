"""Kernel counters: what the server's processes read and wrote, and TCP's segments."""

from __future__ import annotations

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
