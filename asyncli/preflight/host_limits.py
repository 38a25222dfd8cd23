"""Reads the limits of this host: descriptors, ports, memory, queues, processes. Changes nothing but our soft descriptor limit.

Each fact comes from a file under ``/proc`` or ``/sys`` (proc(5), the kernel's admin-guide/sysctl and cgroup-v2.rst). A missing,
forbidden or malformed one gives None, never an error.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

#: Stands for "unlimited" in /proc/PID/limits, "max" in cgroup v2, and cgroup v1's numbers near 2**63.
NO_LIMIT = 2**60


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The host's limits; None: could not be read. Sizes in bytes unless a name says pages; no limit is 2**60."""

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
    page_bytes: int = mmap.PAGESIZE
    epoll_watches: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    #: The tightest memory cgroup of this process: its limit, and its usage without inactive file pages.
    cgroup_memory_limit: int | None = None
    cgroup_memory_used: int | None = None
    #: The tightest pids cgroup of this process.
    pids_limit: int | None = None
    pids_used: int | None = None
    threads_max: int | None = None
    #: CPUs that this process may use, and a cgroup's quota in CPUs (None: no quota).
    cpus: int | None = None
    cpu_quota: float | None = None
    #: sockstat: sockets of all kinds, TCP sockets in use, in TIME_WAIT, and pages queued in TCP buffers.
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
        return float(self.cpus) if self.cpu_quota is None else min(float(self.cpus), self.cpu_quota)


def raise_nofile() -> None:
    """Raise our soft descriptor limit to the hard one."""
    # A hard limit above fs.nr_open cannot be set.
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_limits(root: Path = Path("/")) -> Limits:
    """The limits of the host whose file system starts at ``root``."""
    proc, sys = root / "proc", root / "proc/sys"
    soft, hard = read_rlimit(proc / "self/limits", "Max open files")
    low, high = _pair(sys / "net/ipv4/ip_local_port_range")
    meminfo = _table(proc / "meminfo")
    status = _table(proc / "self/status")
    cgroups = _cgroups(proc / "self/cgroup")
    memory_limit, memory_used = _tightest(_memory_groups(root, cgroups))
    pids_limit, pids_used = _tightest(_pids_groups(root, cgroups))
    sockets = _sockstat(proc / "net/sockstat")
    uid = (status.get("Uid") or "").split()
    return Limits(
        kernel=_kernel(sys / "kernel/osrelease"),
        nofile_soft=soft, nofile_hard=hard, nproc=read_rlimit(proc / "self/limits", "Max processes")[0],
        nr_open=_number(sys / "fs/nr_open"), file_max=_number(sys / "fs/file-max"), files_open=_number(sys / "fs/file-nr"),
        port_low=low, port_high=high, ports_reserved=_reserved(sys / "net/ipv4/ip_local_reserved_ports", low, high),
        tcp_tw_reuse=_number(sys / "net/ipv4/tcp_tw_reuse"), somaxconn=_number(sys / "net/core/somaxconn"),
        syn_backlog=_number(sys / "net/ipv4/tcp_max_syn_backlog"),
        conntrack_count=_number(sys / "net/netfilter/nf_conntrack_count"),
        conntrack_max=_number(sys / "net/netfilter/nf_conntrack_max"),
        tcp_mem_pages=_triple(sys / "net/ipv4/tcp_mem"),
        epoll_watches=_number(sys / "fs/epoll/max_user_watches"),
        memory_total=_kibibytes(meminfo.get("MemTotal")), memory_available=_kibibytes(meminfo.get("MemAvailable")),
        cgroup_memory_limit=memory_limit, cgroup_memory_used=memory_used, pids_limit=pids_limit, pids_used=pids_used,
        threads_max=_number(sys / "kernel/threads-max"),
        cpus=sum(last - first + 1 for first, last in _ranges(status.get("Cpus_allowed_list", ""))) or None,
        cpu_quota=_cpu_quota(root, cgroups),
        sockets_used=sockets.get("sockets.used"), tcp_inuse=sockets.get("TCP.inuse"),
        tcp_tw=sockets.get("TCP.tw"), tcp_used_pages=sockets.get("TCP.mem"),
        superuser=len(uid) > 1 and uid[1] == "0",
    )  # fmt: skip


def read_rlimit(path: Path, name: str) -> tuple[int | None, int | None]:
    """(soft, hard) of one row of a ``/proc/PID/limits``, for example "Max open files"; (None, None) if unreadable."""
    for line in (_text(path) or "").splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            try:
                soft, hard = (NO_LIMIT if word == "unlimited" else int(word) for word in words[:2])
            except ValueError:
                return None, None
            return soft, hard
    return None, None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _kernel(path: Path) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", _text(path) or "")
    return None if found is None else (int(found[1]), int(found[2]))


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in (_text(path) or "").split()]
    except ValueError:
        return []


def _number(path: Path) -> int | None:
    numbers = _numbers(path)
    return min(numbers[0], NO_LIMIT) if numbers else None


def _pair(path: Path) -> tuple[int | None, int | None]:
    numbers = _numbers(path)
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, None)


def _triple(path: Path) -> tuple[int, int, int] | None:
    numbers = _numbers(path)
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _table(path: Path) -> dict[str, str]:
    """``Name:   value`` lines."""
    rows = (line.partition(":") for line in (_text(path) or "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in rows if colon}


def _kibibytes(value: str | None) -> int | None:
    words = (value or "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """``0-3,8`` as pairs; malformed parts are skipped."""
    for part in text.replace("\n", ",").split(","):
        low, dash, high = part.strip().partition("-")
        if low.isdigit() and (not dash or high.isdigit()):
            yield int(low), int(high or low)


def _reserved(path: Path, low: int | None, high: int | None) -> int:
    """The number of reserved ports in low..high. The kernel merges the list, so ranges do not overlap."""
    if low is None or high is None:
        return 0
    return sum(max(0, min(last, high) - max(first, low) + 1) for first, last in _ranges(_text(path) or ""))


def _sockstat(path: Path) -> dict[str, int]:
    """``TCP: inuse 5 orphan 0`` as {"TCP.inuse": 5, "TCP.orphan": 0}."""
    found: dict[str, int] = {}
    for line in (_text(path) or "").splitlines():
        family, _, rest = line.partition(":")
        words = rest.split()
        for name, value in zip(words[::2], words[1::2], strict=False):
            if value.isdigit():
                found[f"{family}.{name}"] = int(value)
    return found


def _cgroups(path: Path) -> dict[str, str]:
    """Controller -> our path in its hierarchy; "" is the unified one (cgroup v2)."""
    found: dict[str, str] = {}
    for line in (_text(path) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        for controller in controllers.split(","):
            found[controller.removeprefix("name=")] = place
    return found


def _folders(root: Path, cgroups: dict[str, str], controller: str) -> Iterator[tuple[Path, bool]]:
    """Each cgroup from ours up to the root, and whether it is v2.

    In a container our path may not exist below the mount, or start with "..": then the mount's root is the nearest.
    """
    mounts = [(root / "sys/fs/cgroup" / controller, cgroups.get(controller), False)]
    mounts += [(root / "sys/fs/cgroup" / name, cgroups.get(""), True) for name in ("", "unified")]
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
        limit = _limit(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is None or used is None:
            continue
        # The kernel reclaims inactive file pages on demand (Kubernetes' "working set").
        wanted = "inactive_file" if unified else "total_inactive_file"
        for line in (_text(folder / "memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == wanted and value.isdigit():
                used = max(0, used - int(value))
        yield limit, used


def _pids_groups(root: Path, cgroups: dict[str, str]) -> Iterator[tuple[int, int]]:
    for folder, _ in _folders(root, cgroups, "pids"):
        limit, used = _limit(folder / "pids.max"), _number(folder / "pids.current")
        if limit is not None and used is not None:
            yield limit, used


def _limit(path: Path) -> int | None:
    """A cgroup's limit; None without one."""
    if (_text(path) or "").strip() == "max":
        return None
    number = _number(path)
    return None if number is None or number >= NO_LIMIT else number


def _tightest(groups: Iterator[tuple[int, int]]) -> tuple[int | None, int | None]:
    """The (limit, used) with the least room."""
    return min(groups, key=lambda group: group[0] - group[1], default=(None, None))


def _cpu_quota(root: Path, cgroups: dict[str, str]) -> float | None:
    quotas = []
    for folder, unified in _folders(root, cgroups, "cpu"):
        if unified:
            words = (_text(folder / "cpu.max") or "").split()
        else:
            words = [(_text(folder / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        # "max" and v1's -1 are no digits: no quota.
        if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)
