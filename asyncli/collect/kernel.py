"""The kernel's memory for sockets, and its TCP counters. Pure parsers, and a reader for each.

Sources: slabinfo(5), Documentation/mm/slub.rst, proc_meminfo(5), proc_stat(5), net/ipv4/proc.c
(sockstat, netstat, snmp). Slab and memory are of the whole host; sockstat and the TCP counters are
of our network namespace.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PAGE_BYTES, PROC, TICKS_PER_S, read_text
from asyncli.findings.probes import slab_caches_missing, slabinfo_unreadable
from asyncli.model import metrics
from asyncli.model.records import Finding

SLAB_LINKS = Path("/sys/kernel/slab")

#: Slab caches in which an idle established connection has objects. The bind buckets are the
#: connecting end's: one for its port (shared by all its users) and one for its port and address.
#: Security blobs are of an LSM with its own cache. Before Linux 5.15 UNIX had stream sockets as
#: well. Time-wait and request sockets are left out: they are no established connections.
SOCKET_CACHES = (
    "TCP",
    "TCPv6",
    "UNIX-STREAM",
    "UNIX",
    "sock_inode_cache",
    "filp",
    "dentry",
    "eventpoll_epi",
    "eventpoll_pwq",
    "ep_head",
    "lsm_inode_cache",
    "lsm_file_cache",
    "selinux_inode_security",
    "selinux_file_security",
    "tcp_bind_bucket",
    "tcp_bind2_bucket",
)
#: Each inode has one of these, a socket's as well as a file's: other programs' files come and go.
_OF_INODES = frozenset({"dentry", "lsm_inode_cache", "selinux_inode_security"})
#: Inodes of /proc. A program that lists /proc/PID/fd (as monitoring agents do) creates one and a
#: dentry for each end of each connection, and they stay: 700 + 192 B an end. They are no cost of a
#: connection but grow with N, so they are counted apart.
_LISTING_CACHE = "proc_inode_cache"
#: Caches of every kernel; if one is missing the sum is too low. (ep_head came with 5.16, the second
#: bind bucket with 6.1; TCPv6 needs IPv6, blobs need an LSM.)
_ESSENTIAL = ("TCP", "sock_inode_cache", "filp", "dentry", "eventpoll_epi", "eventpoll_pwq")

#: Counters of refused, dropped, reset and late connections, and of needless retransmissions. All
#: 140 would dominate the run file.
TCP_COUNTERS = frozenset(
    {
        "ListenOverflows",
        "ListenDrops",
        "TCPBacklogDrop",
        "TCPReqQFullDrop",
        "TCPReqQFullDoCookies",
        "SyncookiesSent",
        "TCPTimeWaitOverflow",
        "TCPAbortOnMemory",
        "TCPAbortOnTimeout",
        "TCPAbortOnData",
        "TCPAbortOnClose",
        "TCPMemoryPressures",
        "TCPTimeouts",
        "TCPSynRetrans",
        "TCPRetransFail",
        "TCPRcvQDrop",
        "TCPZeroWindowDrop",
        "PruneCalled",
        "TCPChallengeACK",
        "TCPDSACKRecv",
    }
)
_SLAB_NAME = re.compile(r"^(?!slabinfo|#)(\S+) ", re.MULTILINE)
_WAITING_PAGES = re.compile(r"^ +count: +(\d+)$", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_SNMP_TCP = frozenset({"OutSegs", "RetransSegs", "AttemptFails", "EstabResets", "OutRsts"})


class Slab(NamedTuple):
    """One line of /proc/slabinfo. SLUB counts free objects of per-CPU slabs as active, up to some
    hundreds in each cache.
    """

    active_objs: int
    total_objs: int
    objsize: int
    #: Bytes of the pages that the cache holds.
    slab_bytes: int

    @property
    def active_bytes(self) -> int:
        return self.active_objs * self.objsize

    @property
    def free_bytes(self) -> float:
        """The share of the pages that free objects have."""
        return (
            self.slab_bytes * (1 - self.active_objs / self.total_objs) if self.total_objs else 0.0
        )

    def of(self, objects: int) -> Slab:
        """The slab with at most so many active objects."""
        return self._replace(active_objs=max(0, min(self.active_objs, objects)))


def parse_slabinfo(text: str, wanted: Collection[str] | None = None) -> dict[str, Slab]:
    """Caches by name (only ``wanted`` ones if given). Raises ValueError if the text is not slabinfo
    2.x.
    """
    if not text.startswith("slabinfo - version: 2"):
        raise ValueError(
            f"/proc/slabinfo begins with {text[:40]!r}, not with version 2 of slabinfo"
        )
    slabs: dict[str, Slab] = {}
    for name in wanted if wanted is not None else _SLAB_NAME.findall(text):
        at = text.find(f"\n{name} ")
        if at >= 0:
            line = text[at : text.find("\n", at + 1)]
            # The last three are the active slabs, all slabs, and a count of SLAB's.
            numbers = line.replace(":", "").split()
            _, active, total, size, _per_slab, pages, *_, slab_count, _shared = numbers
            slab_bytes = int(slab_count) * int(pages) * PAGE_BYTES
            slabs[name] = Slab(int(active), int(total), int(size), slab_bytes)
    return slabs


def count_objects(proc: Path = PROC) -> dict[str, int]:
    """The objects in use of four socket caches, in all network namespaces; those whose counters
    cannot be read are absent.

    The kernel adds these counters up over all CPUs when they are read; older ones know open files
    within some dozens a CPU.
    """
    objects: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        values = read_sockstat(proc)
        allocated = int(values[metrics.KERNEL_TCP_ALLOC])
        # A TCP socket that waits to be accepted has no inode; those of other namespaces are
        # allocated, and not in use here.
        inodes = (
            int(values[metrics.KERNEL_SOCKETS]) + allocated - int(values[metrics.KERNEL_TCP_INUSE])
        )
        objects["TCP"] = allocated
        objects["sock_inode_cache"] = inodes
    for cache, file in (("filp", "file-nr"), ("dentry", "dentry-state")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            objects[cache] = int(read_text(proc / "sys/fs" / file).split()[0])
    return objects


def counted_exactly(slabs: Mapping[str, Slab], objects: Mapping[str, int]) -> dict[str, Slab]:
    """The slabs with the ``objects`` of :func:`count_objects` in use, which slabinfo may exceed by
    free ones.

    Both families of TCP have one counter: free objects are taken from TCPv6 first, since more hosts
    use IPv4.
    """
    exact = dict(slabs)
    for name, count in objects.items():
        if name in slabs:
            exact[name] = slabs[name].of(count)
    if "TCP" in objects and "TCPv6" in slabs:
        exact["TCPv6"] = slabs["TCPv6"].of(
            objects["TCP"] - slabs["TCP"].active_objs if "TCP" in slabs else objects["TCP"]
        )
    return exact


def read_slab_links(root: Path = SLAB_LINKS) -> dict[str, str]:
    """Name of a cache -> name of the merged cache behind it, by SLUB's links. Empty if sysfs has
    none.
    """
    links: dict[str, str] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.is_symlink():
                    links[entry.name] = os.path.basename(os.readlink(entry.path))
    except OSError:
        pass
    return links


def resolve_caches(
    listed: Iterable[str], links: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Name of a socket cache -> its name in slabinfo, each listed cache once; and the essential
    caches that were not found.

    slabinfo lists a merged cache once, by the name that was created first. Two socket caches merged
    into one count once, by the first of the two in SOCKET_CACHES. A merged cache holds other
    objects too (vm areas in eventpoll_pwq's): a constant, which a slope over connections does not
    include.
    """
    names = dict.fromkeys(listed)
    by_target = {links[name]: name for name in names if name in links}
    family = (*SOCKET_CACHES, _LISTING_CACHE)
    listed_as = {
        name: name if name in names else by_target.get(links.get(name, "")) for name in family
    }
    resolved: dict[str, str] = {}
    for name, listed_name in listed_as.items():
        if listed_name is not None and listed_name not in resolved.values():
            resolved[name] = listed_name
    return resolved, [name for name in _ESSENTIAL if listed_as[name] is None]


def slab_metrics(slabs: Mapping[str, Slab], resolved: Mapping[str, str]) -> dict[str, float]:
    """``kernel.slab.*``, ``kernel.socket_bytes`` (objects in use) and ``kernel.socket_slab_bytes``
    (their pages).

    Of _OF_INODES these sums have one object for each inode of a socket. ``kernel.listing_bytes``:
    inodes of /proc with their dentries; ``kernel.slab_free_bytes`` has these too.
    ``kernel.files_bytes``: of open files that are no sockets.
    """
    family = {name: slabs[listed] for name, listed in resolved.items() if listed in slabs}
    listing = family.pop(_LISTING_CACHE, None)
    values = {
        f"{metrics.KERNEL_SLAB}{name}": float(slab.active_bytes) for name, slab in family.items()
    }
    if listing is not None and (dentry := family.get("dentry")) is not None:
        entries = min(listing.active_objs, dentry.active_objs) * dentry.objsize
        values[metrics.KERNEL_LISTING_BYTES] = float(listing.active_bytes + entries)
    if (inodes := family.get("sock_inode_cache")) is not None:
        if (files := family.get("filp")) is not None:
            others = max(0, files.active_objs - inodes.active_objs)
            values[metrics.KERNEL_FILES_BYTES] = float(others * files.objsize)
        for name in _OF_INODES & family.keys():
            of_sockets = family[name].of(inodes.active_objs)
            family[name] = of_sockets._replace(slab_bytes=of_sockets.active_bytes)
    values[metrics.KERNEL_SOCKET_BYTES] = float(sum(slab.active_bytes for slab in family.values()))
    values[metrics.KERNEL_SOCKET_SLAB_BYTES] = float(
        sum(slab.slab_bytes for slab in family.values())
    )
    values[metrics.KERNEL_SLAB_FREE_BYTES] = math.fsum(slab.free_bytes for slab in slabs.values())
    return values


def parse_sockstat(text: str, text6: str = "") -> dict[str, float]:
    """``kernel.sockets`` and ``kernel.tcp_*`` of /proc/net/sockstat and sockstat6. Only "inuse" is
    per family.
    """
    values: dict[str, float] = {}
    for line in (*text.splitlines(), *text6.splitlines()):
        protocol, _, rest = line.partition(":")
        if protocol not in ("sockets", "TCP", "TCP6"):
            continue
        fields = rest.split()
        for name, number in zip(fields[::2], fields[1::2], strict=False):
            if name == "mem":
                values[metrics.KERNEL_TCP_MEM_BYTES] = float(int(number) * PAGE_BYTES)
            elif name == "used":
                values[metrics.KERNEL_SOCKETS] = float(number)
            elif name in ("inuse", "orphan", "tw", "alloc"):
                values[f"kernel.tcp_{name}"] = values.get(f"kernel.tcp_{name}", 0.0) + int(number)
    if values.keys() <= {metrics.KERNEL_SOCKETS}:
        raise ValueError("/proc/net/sockstat has no line for TCP")
    return values


def read_sockstat(proc: Path = PROC) -> dict[str, float]:
    """:func:`parse_sockstat` of this network namespace."""
    try:
        text6 = read_text(proc / "net/sockstat6")
    except FileNotFoundError:
        text6 = ""
    return parse_sockstat(read_text(proc / "net/sockstat"), text6)


def parse_meminfo(text: str) -> dict[str, float]:
    """``host.*_bytes`` of /proc/meminfo.

    Used memory is MemTotal - MemFree - Buffers - (Cached - Shmem), still including
    :func:`parse_zoneinfo`'s pages and the free objects of slabs. Not MemAvailable: it counts pinned
    socket inodes and dentries as reclaimable and so hides a third of a connection's cost.
    """
    kib: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields:
            kib[name] = int(fields[0])
    try:
        used = kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - (kib["Cached"] - kib["Shmem"])
        values = {metrics.HOST_USED_BYTES: used, metrics.HOST_FREE_BYTES: kib["MemFree"]}
    except KeyError as error:
        raise ValueError(f"/proc/meminfo has no line {error.args[0]}") from None
    for metric, name in (
        ("available", "MemAvailable"),
        ("slab", "Slab"),
        ("pagetable", "PageTables"),
        ("shmem", "Shmem"),
        ("committed", "Committed_AS"),
        ("commit_limit", "CommitLimit"),
    ):
        if name in kib:
            values[f"host.{metric}_bytes"] = kib[name]
    if "AnonPages" in kib:
        values[metrics.HOST_PROCESSES_BYTES] = kib["AnonPages"] + kib["Shmem"]
    return {name: float(value * 1024) for name, value in values.items()}


def parse_zoneinfo(text: str) -> float:
    """Bytes of the pages on the per-CPU free lists (``count`` of each zone's pagesets).

    They are free, but MemFree does not count them. After much was freed the lists grow to tens of
    megabytes a CPU; thousands of connections are then served from them, and the host's used memory
    does not seem to grow.
    """
    return float(PAGE_BYTES * sum(map(int, _WAITING_PAGES.findall(text))))


def parse_counters(text: str, group: str, wanted: Iterable[str]) -> dict[str, float]:
    """``tcp.*`` counters since boot, of one group ("TcpExt", "Tcp") of /proc/net/netstat or snmp: a
    line of names and a line of numbers. What the kernel lacks is absent.
    """
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith(f"{group}: ")]
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        raise ValueError(f"no pair of lines for {group} in the kernel's counters")
    keep = frozenset(wanted)
    return {
        f"{metrics.TCP}{name}": float(number)
        for name, number in zip(*rows, strict=True)
        if name in keep
    }


def parse_cpu_busy(text: str) -> dict[str, float]:
    """``host.cpu_busy_s``: seconds, over all cores, neither idle nor waiting for a disk.

    Stolen time is busy (nothing here could use it). Guests' time is already part of user and nice.
    """
    fields = text.split("\n", 1)[0].split()
    if not fields or fields[0] != "cpu":
        raise ValueError("/proc/stat does not begin with cpu")
    user, nice, system, _idle, _iowait, *rest = map(int, fields[1:])
    return {metrics.HOST_CPU_BUSY_S: (user + nice + system + sum(rest[:3])) / TICKS_PER_S}


def parse_vmstat(text: str) -> dict[str, float]:
    """``host.killed`` of /proc/vmstat; nothing before Linux 4.13, which did not count it."""
    match = _OOM_KILLS.search(text)
    if match is None:
        return {}
    return {metrics.HOST_KILLED: float(match[1])}


def read_counters(proc: Path = PROC) -> ProbeReading:
    """Sockets, TCP counters, CPU and lack of memory of the host: 0.3 ms, no privilege."""
    values = read_sockstat(proc)
    values |= parse_counters(read_text(proc / "net/netstat"), "TcpExt", TCP_COUNTERS)
    values |= parse_counters(read_text(proc / "net/snmp"), "Tcp", _SNMP_TCP)
    values |= parse_cpu_busy(read_text(proc / "stat"))
    values |= parse_vmstat(read_text(proc / "vmstat"))
    return ProbeReading(values)


class MemoryReader:
    """The host's memory and the kernel's slabs at one instant. Blocking: 1 ms; 0.1 ms without root.

    For root, used memory is without the free objects of slabs. After earlier connections thousands
    of objects are free in slabs that still hold objects: a new connection takes these first, and
    the host's used memory would not seem to grow.
    """

    def __init__(
        self, *, proc: Path = PROC, links: Callable[[], Mapping[str, str]] = read_slab_links
    ) -> None:
        self._proc = proc
        self._links = links
        self._resolved: dict[str, str] = {}
        self._refused: Finding | None = None

    def read(self) -> ProbeReading:
        slabs = self.read_slabs()
        values = parse_meminfo(read_text(self._proc / "meminfo")) | slabs.values
        if not self._is_commit_limited():
            values.pop(metrics.HOST_COMMITTED_BYTES, None)
            values.pop(metrics.HOST_COMMIT_LIMIT_BYTES, None)
        try:
            values[metrics.HOST_CPU_LISTS_BYTES] = waiting = parse_zoneinfo(
                read_text(self._proc / "zoneinfo")
            )
            values[metrics.HOST_USED_BYTES] -= waiting
        except (FileNotFoundError, PermissionError):
            pass  # a hardened kernel or a container's /proc: used memory is then meminfo's alone
        values[metrics.HOST_USED_BYTES] -= values.get(metrics.KERNEL_SLAB_FREE_BYTES, 0.0)
        return ProbeReading(values, slabs.findings)

    def _is_commit_limited(self) -> bool:
        """Whether the kernel grants no more memory than its limit, used or not (proc(5))."""
        with contextlib.suppress(OSError):
            return read_text(self._proc / "sys/vm/overcommit_memory").strip() == "2"
        return False

    def read_slabs(self) -> ProbeReading:
        """/proc/slabinfo, with exact counts where the kernel has them; a finding without root, who
        alone may read it.
        """
        if self._refused is not None:
            return ProbeReading(findings=[self._refused])
        try:
            text = read_text(self._proc / "slabinfo")
        except (PermissionError, FileNotFoundError) as error:
            self._refused = slabinfo_unreadable(str(error.strerror), os.geteuid())
            return ProbeReading(findings=[self._refused])
        findings = []
        slabs = parse_slabinfo(text, self._resolved.values())
        if not self._resolved or len(slabs) < len(self._resolved):
            # Names of caches change only when a module is loaded or removed.
            self._resolved, missing = resolve_caches(parse_slabinfo(text), self._links())
            findings = [slab_caches_missing(missing)] if missing else []
            slabs = parse_slabinfo(text, self._resolved.values())
        return ProbeReading(
            slab_metrics(counted_exactly(slabs, count_objects(self._proc)), self._resolved),
            findings,
        )
