"""Reads the limits of this host: descriptors, ports, memory, queues, processes. Changes nothing but
our soft descriptor limit.

Each fact comes from a file under ``/proc`` or ``/sys`` (proc(5), the kernel's admin-guide/sysctl
and cgroup-v2.rst). A missing, forbidden or malformed one gives None, never an error.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

#: Stands for "unlimited" in /proc/PID/limits, "max" in cgroup v2, and cgroup v1's numbers near
#: 2**63.
NO_LIMIT = 2**60


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The host's limits; None: could not be read.

    Sizes in bytes unless a name says pages; no limit is 2**60.
    """

    #: The kernel's version, for example (6, 18).
    kernel: tuple[int, int] | None = None
    #: RLIMIT_NOFILE of this process: descriptors, soft and hard.
    nofile_soft: int | None = None
    nofile_hard: int | None = None
    #: RLIMIT_NPROC, soft: processes of this user. Not applied to root.
    nproc: int | None = None
    #: fs.nr_open: the highest hard limit that can be set.
    nr_open: int | None = None
    #: fs.file-max and, of file-nr, the files open on the whole host.
    file_max: int | None = None
    files_open: int | None = None
    #: ip_local_port_range, and how many of it ip_local_reserved_ports takes away.
    port_low: int | None = None
    port_high: int | None = None
    ports_reserved: int = 0
    #: 0 off, 1 on, 2 on for loopback.
    tcp_tw_reuse: int | None = None
    somaxconn: int | None = None
    syn_backlog: int | None = None
    #: Also None if the module is not loaded.
    conntrack_count: int | None = None
    conntrack_max: int | None = None
    #: net.ipv4.tcp_mem in pages: (low, pressure, high).
    tcp_mem_pages: tuple[int, int, int] | None = None
    #: net.ipv4.tcp_wmem in bytes: (least, at first, most) of a socket's send buffer.
    tcp_wmem_bytes: tuple[int, int, int] | None = None
    page_bytes: int = mmap.PAGESIZE
    epoll_watches: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    #: The tightest memory cgroup of this process: its limit, and its usage without inactive file
    #: pages.
    cgroup_memory_limit: int | None = None
    cgroup_memory_used: int | None = None
    #: The tightest pids cgroup of this process.
    pids_limit: int | None = None
    pids_used: int | None = None
    threads_max: int | None = None
    #: kernel.pid_max, and the memory maps that a process may have.
    pid_max: int | None = None
    max_map_count: int | None = None
    #: CPUs that this process may use, and a cgroup's quota in CPUs (None: no quota).
    cpus: int | None = None
    cpu_quota: float | None = None
    #: sockstat: sockets of all kinds, TCP sockets in use, in TIME_WAIT, and pages queued in TCP
    #: buffers.
    sockets_used: int | None = None
    tcp_inuse: int | None = None
    tcp_tw: int | None = None
    tcp_used_pages: int | None = None
    #: Effective user id 0, to which file-max and RLIMIT_NPROC do not apply.
    superuser: bool = False

    @property
    def sudo(self) -> str:
        """The prefix of a command that needs root."""
        return "" if self.superuser else "sudo "

    @property
    def ports(self) -> int | None:
        """Local ports that one (source, destination) pair can use."""
        if self.port_low is None or self.port_high is None:
            return None
        return max(0, self.port_high - self.port_low + 1 - self.ports_reserved)

    @property
    def cpu_time(self) -> float | None:
        """CPU seconds per second: the smaller of affinity and quota."""
        if self.cpus is None:
            return self.cpu_quota
        if self.cpu_quota is None:
            return float(self.cpus)
        return min(float(self.cpus), self.cpu_quota)


def raise_nofile() -> None:
    """Raise our soft descriptor limit to the hard one."""
    # A hard limit above fs.nr_open cannot be set.
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_limits(root: Path = Path("/")) -> Limits:
    """The limits of the host whose file system starts at ``root``."""
    proc = root / "proc"
    sys = root / "proc/sys"
    soft, hard = read_rlimit(proc / "self/limits", "Max open files")
    low, high = _pair(sys / "net/ipv4/ip_local_port_range")
    meminfo = _table(proc / "meminfo")
    status = _table(proc / "self/status")
    cgroups = _cgroups(proc / "self/cgroup")
    memory_limit, memory_used = _tightest(_memory_groups(root, cgroups))
    pids_limit, pids_used = _tightest(_pids_groups(root, cgroups))
    sockets = _sockstat(proc / "net/sockstat")
    processes, _ = read_rlimit(proc / "self/limits", "Max processes")
    uids = (status.get("Uid") or "").split()
    return Limits(
        kernel=_kernel(sys / "kernel/osrelease"),
        nofile_soft=soft,
        nofile_hard=hard,
        nproc=processes,
        nr_open=_number(sys / "fs/nr_open"),
        file_max=_number(sys / "fs/file-max"),
        files_open=_number(sys / "fs/file-nr"),
        port_low=low,
        port_high=high,
        ports_reserved=_reserved(sys / "net/ipv4/ip_local_reserved_ports", low, high),
        tcp_tw_reuse=_number(sys / "net/ipv4/tcp_tw_reuse"),
        somaxconn=_number(sys / "net/core/somaxconn"),
        syn_backlog=_number(sys / "net/ipv4/tcp_max_syn_backlog"),
        conntrack_count=_number(sys / "net/netfilter/nf_conntrack_count"),
        conntrack_max=_number(sys / "net/netfilter/nf_conntrack_max"),
        tcp_mem_pages=_triple(sys / "net/ipv4/tcp_mem"),
        tcp_wmem_bytes=_triple(sys / "net/ipv4/tcp_wmem"),
        epoll_watches=_number(sys / "fs/epoll/max_user_watches"),
        memory_total=_kibibytes(meminfo.get("MemTotal")),
        memory_available=_kibibytes(meminfo.get("MemAvailable")),
        cgroup_memory_limit=memory_limit,
        cgroup_memory_used=memory_used,
        pids_limit=pids_limit,
        pids_used=pids_used,
        threads_max=_number(sys / "kernel/threads-max"),
        pid_max=_number(sys / "kernel/pid_max"),
        max_map_count=_number(sys / "vm/max_map_count"),
        cpus=_count(status.get("Cpus_allowed_list", "")) or None,
        cpu_quota=_cpu_quota(root, cgroups),
        sockets_used=sockets.get("sockets.used"),
        tcp_inuse=sockets.get("TCP.inuse"),
        tcp_tw=sockets.get("TCP.tw"),
        tcp_used_pages=sockets.get("TCP.mem"),
        # The second is the effective one.
        superuser=len(uids) > 1 and uids[1] == "0",
    )


def read_rlimit(path: Path, name: str) -> tuple[int | None, int | None]:
    """(soft, hard) of one row of a ``/proc/PID/limits``, for example "Max open files"; (None, None)
    if unreadable.
    """
    for line in (_text(path) or "").splitlines():
        if not line.startswith(name):
            continue
        words = line.removeprefix(name).split()
        try:
            return _rlimit(words[0]), _rlimit(words[1])
        except (IndexError, ValueError):
            return None, None
    return None, None


def _rlimit(word: str) -> int:
    if word == "unlimited":
        return NO_LIMIT
    return int(word)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _kernel(path: Path) -> tuple[int, int] | None:
    version = re.match(r"(\d+)\.(\d+)", _text(path) or "")
    if version is None:
        return None
    return int(version[1]), int(version[2])


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in (_text(path) or "").split()]
    except ValueError:
        return []


def _number(path: Path) -> int | None:
    numbers = _numbers(path)
    if not numbers:
        return None
    return min(numbers[0], NO_LIMIT)


def _pair(path: Path) -> tuple[int | None, int | None]:
    numbers = _numbers(path)
    if len(numbers) != 2:
        return None, None
    return numbers[0], numbers[1]


def _triple(path: Path) -> tuple[int, int, int] | None:
    numbers = _numbers(path)
    if len(numbers) != 3:
        return None
    return numbers[0], numbers[1], numbers[2]


def _table(path: Path) -> dict[str, str]:
    """``Name:   value`` lines."""
    rows = {}
    for line in (_text(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            rows[name.strip()] = value.strip()
    return rows


def _kibibytes(value: str | None) -> int | None:
    words = (value or "").split()
    if not words or not words[0].isdigit():
        return None
    return int(words[0]) * 1024


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """``0-3,8`` as pairs; malformed parts are skipped."""
    for part in text.replace("\n", ",").split(","):
        low, dash, high = part.strip().partition("-")
        if low.isdigit() and (not dash or high.isdigit()):
            yield int(low), int(high or low)


def _count(text: str) -> int:
    """How many numbers ``0-3,8`` has."""
    return sum(last - first + 1 for first, last in _ranges(text))


def _reserved(path: Path, low: int | None, high: int | None) -> int:
    """The number of reserved ports in low..high.

    The kernel merges the list, so ranges do not overlap.
    """
    if low is None or high is None:
        return 0
    count = 0
    for first, last in _ranges(_text(path) or ""):
        count += max(0, min(last, high) - max(first, low) + 1)
    return count


def _sockstat(path: Path) -> dict[str, int]:
    """``TCP: inuse 5 orphan 0`` as {"TCP.inuse": 5, "TCP.orphan": 0}."""
    counts: dict[str, int] = {}
    for line in (_text(path) or "").splitlines():
        family, _, rest = line.partition(":")
        words = rest.split()
        for name, value in zip(words[::2], words[1::2], strict=False):
            if value.isdigit():
                counts[f"{family}.{name}"] = int(value)
    return counts


def _cgroups(path: Path) -> dict[str, str]:
    """Controller -> our path in its hierarchy; "" is the unified one (cgroup v2)."""
    places: dict[str, str] = {}
    for line in (_text(path) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        for controller in controllers.split(","):
            places[controller.removeprefix("name=")] = place
    return places


def _folders(root: Path, cgroups: dict[str, str], controller: str) -> Iterator[tuple[Path, bool]]:
    """Each cgroup from ours up to the root, and whether it is v2.

    In a container our path may not exist below the mount, or start with "..": then the mount's root
    is the nearest.
    """
    top = root / "sys/fs/cgroup"
    mounts = (
        (top / controller, cgroups.get(controller), False),
        (top, cgroups.get(""), True),
        (top / "unified", cgroups.get(""), True),
    )
    for mount, place, unified in mounts:
        if place is None:
            continue
        folder = mount if ".." in place.split("/") else mount / place.strip("/")
        while True:
            if folder.is_dir():
                yield folder, unified
            if folder == mount:
                break
            folder = folder.parent


def _memory_groups(root: Path, cgroups: dict[str, str]) -> Iterator[tuple[int, int]]:
    for folder, unified in _folders(root, cgroups, "memory"):
        if unified:
            limit = _limit(folder / "memory.max")
            used = _number(folder / "memory.current")
            reclaimable = _stat(folder / "memory.stat", "inactive_file")
        else:
            limit = _limit(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.usage_in_bytes")
            reclaimable = _stat(folder / "memory.stat", "total_inactive_file")
        if limit is not None and used is not None:
            # The kernel reclaims inactive file pages on demand (Kubernetes' "working set").
            yield limit, max(0, used - reclaimable)


def _stat(path: Path, wanted: str) -> int:
    """A number of a memory.stat; 0 without it."""
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == wanted and value.isdigit():
            return int(value)
    return 0


def _pids_groups(root: Path, cgroups: dict[str, str]) -> Iterator[tuple[int, int]]:
    for folder, _ in _folders(root, cgroups, "pids"):
        limit = _limit(folder / "pids.max")
        used = _number(folder / "pids.current")
        if limit is not None and used is not None:
            yield limit, used


def _limit(path: Path) -> int | None:
    """A cgroup's limit; None without one."""
    if (_text(path) or "").strip() == "max":
        return None
    number = _number(path)
    if number is None or number >= NO_LIMIT:
        return None
    return number


def _tightest(groups: Iterator[tuple[int, int]]) -> tuple[int | None, int | None]:
    """The (limit, used) with the least room."""
    return min(groups, key=lambda group: group[0] - group[1], default=(None, None))


def _cpu_quota(root: Path, cgroups: dict[str, str]) -> float | None:
    quotas = []
    for folder, unified in _folders(root, cgroups, "cpu"):
        if unified:
            words = (_text(folder / "cpu.max") or "").split()
        else:
            quota = _text(folder / "cpu.cfs_quota_us") or ""
            period = _text(folder / "cpu.cfs_period_us") or ""
            words = [quota.strip(), period.strip()]
        if len(words) == 2 and all(map(_is_positive, words)):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _is_positive(word: str) -> bool:
    """Whether it is a number above 0: "max" and v1's -1 are no quota."""
    return word.isdigit() and int(word) > 0
