"""Memory read as a person would at a terminal: smaps_rollup, slabinfo, meminfo, zoneinfo. Nothing of asyncli's is used here."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path
from typing import NamedTuple


class ByHand(NamedTuple):
    """One look: connections, bytes of the server's processes (PSS), cache -> (objects in use, bytes of each), bytes in use."""

    connections: float
    server: int
    #: None without the privilege.
    slabs: dict[str, tuple[int, int]] | None
    host: int


def look(pid: int, status_url: str) -> ByHand:
    """Everything about the server whose main process is ``pid``, and this host.

    Connections: by the server's own count, the mean of before the look and after it, less the one that asks.
    """
    before = active(status_url)
    children = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _parent(one) == pid]
    server, slabs, host = sum(_pss(one) for one in (pid, *children)), _slabs(), _in_use()
    return ByHand((before + active(status_url)) / 2, server, slabs, host)


def active(status_url: str) -> int:
    """Connections that nginx holds, of its stub_status page, less this request's own connection and that of asyncli, which polls it too."""
    text = urllib.request.urlopen(status_url).read().decode()
    return int(text.split()[2]) - 2


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _pss(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


def _slabs() -> dict[str, tuple[int, int]] | None:
    if not os.access("/proc/slabinfo", os.R_OK):
        return None
    rows = [line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:]]
    return {row[0]: (int(row[1]), int(row[3])) for row in rows}


def _in_use() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    used = (kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - kib["Cached"] + kib["Shmem"]) * 1024
    # Free pages on the CPUs' own lists, which MemFree leaves out: "count:" under "pagesets".
    lists = [line.split()[1] for line in Path("/proc/zoneinfo").read_text().splitlines() if line.split()[:1] == ["count:"]]
    return used - sum(map(int, lists)) * os.sysconf("SC_PAGESIZE")


def kernel_growth(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], connections: float) -> int:
    """Bytes of objects in every cache that grew by half an object a connection or more, whatever it is called.

    Less :func:`listing_growth`.
    """
    grown = {name: count - before.get(name, (0, 0))[0] for name, (count, _) in after.items()}
    grown["dentry"] = grown.get("dentry", 0) - max(0, grown.pop(_LISTING, 0))
    return sum(count * after[name][1] for name, count in grown.items() if count >= connections / 2)


def listing_growth(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> int:
    """Bytes of what a program that lists /proc/PID/fd has made meanwhile: an inode of /proc and a dentry a descriptor."""
    if _LISTING not in after or "dentry" not in after:
        return 0
    inodes = max(0, after[_LISTING][0] - before.get(_LISTING, (0, 0))[0])
    return inodes * (after[_LISTING][1] + after["dentry"][1])


_LISTING = "proc_inode_cache"
