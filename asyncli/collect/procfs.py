"""Reads /proc: a process, its memory, its children, the listening sockets. Parsers are pure.

Sources: proc(5), Documentation/filesystems/proc.rst and Documentation/networking/proc_net_tcp.rst.

Not psutil: it takes six to thirteen times the CPU for what is read each second of 60 processes
(2.3 ms against 0.4 ms for stat, 3.0 ms against 0.2 ms for children, on Linux 6.18).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from asyncli.model.places import real_path

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A larger buffer is mapped and unmapped at each call, and seq_file returns about a page at a time
# anyway.
_CHUNK = 16384
# TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it.
_LISTEN = "0A"


class Stat(msgspec.Struct, frozen=True):
    """/proc/PID/stat. Times in seconds; ``start_ticks`` (since boot) distinguishes a process from a
    later one with its pid.

    ``cpu_s`` of the text is truncated to ticks of 10 ms; :func:`read_stat` makes it exact where it
    can.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_s: float
    #: User and system time of ended children that it waited for, and of their children.
    waited_s: float
    threads: int
    start_ticks: int

    @property
    def ended(self) -> bool:
        """Zombie or dead: its CPU time can still be read, it holds no memory."""
        return self.state in "ZX"

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or by a debugger."""
        return self.state in "Tt"


class Memory(msgspec.Struct, frozen=True):
    """/proc/PID/smaps_rollup, in bytes."""

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    #: See METRICS; None if the kernel does not separate file pages (before 5.4).
    anon_shmem_bytes: int | None = None
    #: Its share of shared memory and of files in memory (tmpfs); None likewise.
    shmem_bytes: int | None = None
    #: Pages of files, its share; None likewise.
    file_bytes: int | None = None
    #: The same without sharing: what other programs map does not change it.
    file_rss_bytes: int | None = None
    #: Of anonymous memory, what it has marked as free (MADV_FREE, since 4.12): the kernel takes it
    #: when it needs it.
    lazyfree_bytes: int | None = None


class Listener(msgspec.Struct, frozen=True):
    """A listening socket: its address (None: any), port, inode and user's number. A Unix socket's:
    its path, 0, inode, None.
    """

    address: str | None
    port: int
    inode: int
    user: int | None = None


def read_text(path: str | os.PathLike[str]) -> str:
    """The whole text of a file of /proc. Raises OSError; ProcessLookupError if the process ended
    meanwhile.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. The name may contain blanks and parentheses, so fields count from the
    last ``)``.
    """
    head, paren, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    if not paren or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {text[:60]!r}")
    return Stat(
        pid=int(pid),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        waited_s=(int(fields[13]) + int(fields[14])) / TICKS_PER_S,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


_HAS_FILE_RSS = {"Rss", "Anonymous", "Pss_Shmem"}


def parse_smaps_rollup(text: str) -> Memory | None:
    """The sums of /proc/PID/smaps_rollup; USS is all private memory. None for a process without
    memory.

    Anonymous and shared memory: Pss_Anon, Pss_Shmem, SwapPss for their swapped-out part, and
    private huge pages, which no PSS includes.
    """
    kib: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and rest.endswith(" kB"):
            kib[name] = int(rest[:-3])
    if "Pss" not in kib:
        return None
    private = sum(value for name, value in kib.items() if name.startswith("Private_"))
    anon_shmem = ("Pss_Anon", "Pss_Shmem", "SwapPss", "Private_Hugetlb")
    return Memory(
        rss_bytes=kib.get("Rss", 0) * 1024,
        pss_bytes=kib["Pss"] * 1024,
        uss_bytes=private * 1024,
        anon_shmem_bytes=sum(kib.get(name, 0) for name in anon_shmem) * 1024
        if "Pss_Anon" in kib
        else None,
        shmem_bytes=kib.get("Pss_Shmem", 0) * 1024 if "Pss_Anon" in kib else None,
        file_bytes=kib["Pss_File"] * 1024 if "Pss_File" in kib else None,
        file_rss_bytes=max(0, kib["Rss"] - kib["Anonymous"] - kib["Pss_Shmem"]) * 1024
        if kib.keys() >= _HAS_FILE_RSS
        else None,
        lazyfree_bytes=kib["LazyFree"] * 1024 if "LazyFree" in kib else None,
    )


def parse_listeners(lines: Iterable[str]) -> Iterator[Listener]:
    """The listening sockets in /proc/net/tcp or tcp6, up to the first row in another state.

    The kernel prints listening ones first (tcp_seq_start), so a million established rows are never
    read.
    """
    for line in lines:
        fields = line.split(None, 10)
        if len(fields) < 10 or ":" not in fields[1]:
            continue
        if fields[3] != _LISTEN:
            break
        address, _, port = fields[1].partition(":")
        yield Listener(_address(address), int(port, 16), inode=int(fields[9]), user=int(fields[7]))


def _address(digits: str) -> str | None:
    """The address of hexadecimal words in host order; a v4-mapped one as IPv4; None for the
    wildcard.
    """
    packed = b"".join(
        int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)
    )
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return None if int(address) == 0 else str(address)


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """The process's /proc/PID/stat; world-readable unless /proc is mounted with hidepid.

    CPU time is read from the process's CPU clock: ticks of 10 ms could hide a second of a pool of
    100 processes.
    """
    stat = parse_stat(read_text(f"{proc}/{pid}/stat"))
    if proc is PROC:
        try:
            return msgspec.structs.replace(stat, cpu_s=cpu_clock_s(pid))
        except OSError:
            pass  # it ended, or is in another pid namespace: keep the text's value
    return stat


def cpu_clock_s(pid: int, which: int = 2) -> float:
    """CPU seconds of the process, ended threads included (clock_getcpuclockid(3)). Raises OSError
    if it does not exist.

    ``which``: 2 is exact; 1 is user time and 0 user and system time by the kernel's accounting.
    MAKE_PROCESS_CPUCLOCK of include/linux/posix-timers_types.h.
    """
    return time.clock_gettime((~pid << 3) | which)


def read_memory(pid: int, proc: Path = PROC) -> Memory | None:
    """The process's memory; None if it has none or has ended. Raises PermissionError without ptrace
    access to it.
    """
    try:
        return parse_smaps_rollup(read_text(f"{proc}/{pid}/smaps_rollup"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_rss(pid: int, proc: Path = PROC) -> int:
    """The process's resident bytes, 0 if it has ended. From statm, exact since Linux 6.17; stat
    still lacks up to 32 pages a CPU (get_mm_rss in include/linux/mm.h).
    """
    try:
        return int(read_text(f"{proc}/{pid}/statm").split()[1]) * PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def parse_unix_listeners(lines: Iterable[str]) -> Iterator[Listener]:
    """The listening sockets in /proc/net/unix with a path (symlinks resolved) or a name after
    ``@``.
    """
    for line in lines:
        fields = line.rstrip("\n").split(None, 7)
        # __SO_ACCEPTCON of include/linux/net.h, and SOCK_STREAM.
        if len(fields) == 8 and (fields[3], fields[4]) == ("00010000", "0001"):
            yield Listener(address=real_path(fields[7]), port=0, inode=int(fields[6]))


def parse_unix_ends(lines: Iterable[str], address: str) -> tuple[int, int]:
    """The server's ends of connections to the Unix socket ``address`` in /proc/net/unix: how many a
    program has accepted, and how many wait. A socket has its inode from accept(2) on (unix_seq_show
    in net/unix/af_unix.c).
    """
    accepted, waiting = 0, 0
    # Resolving a path is slow, and all ends have the listener's.
    resolved: dict[str, str] = {}
    for line in lines:
        fields = line.rstrip("\n").split(None, 7)
        if len(fields) < 8 or (fields[3], fields[4]) != ("00000000", "0001"):
            continue
        path = fields[7]
        if path not in resolved:
            resolved[path] = real_path(path)
        if resolved[path] != address:
            continue
        if int(fields[6]):
            accepted += 1
        else:
            waiting += 1
    return accepted, waiting


def read_unix_ends(address: str, proc: Path = PROC) -> tuple[int, int]:
    """:func:`parse_unix_ends` for this network namespace."""
    with (proc / "net/unix").open(encoding="utf-8", errors="replace") as file:
        return parse_unix_ends(file, address)


def read_listeners(port: int | None, proc: Path = PROC) -> list[Listener]:
    """The sockets that listen on ``port`` in our network namespace; 0: Unix sockets, None: TCP ones
    at any port.
    """
    listeners: list[Listener] = []
    if port == 0:
        try:
            with (proc / "net/unix").open(encoding="utf-8", errors="replace") as file:
                return list(parse_unix_listeners(file))
        except FileNotFoundError:
            return listeners
    for name in ("tcp", "tcp6"):
        try:
            with (proc / "net" / name).open(encoding="ascii", errors="replace") as file:
                for listener in parse_listeners(file):
                    if port in (None, listener.port):
                        listeners.append(listener)
        except FileNotFoundError:
            continue
    return listeners


def all_pids(proc: Path = PROC) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def parents(proc: Path = PROC) -> Iterator[Stat]:
    """The stat of every readable process."""
    return (stat for pid in all_pids(proc) if (stat := readable_stat(pid, proc)) is not None)


def readable_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The process's stat; None if it has ended or is hidden."""
    try:
        return read_stat(pid, proc)
    except (OSError, ValueError):
        return None


def living_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The process's stat; None if it has ended. Raises other errors: a process that is only hidden
    still counts.
    """
    try:
        return read_stat(pid, proc)
    except (FileNotFoundError, ProcessLookupError):
        return None


def ancestors(pid: int, proc: Path = PROC) -> Iterator[Stat]:
    """The process and its ancestors, the nearest first, as far as they are readable."""
    while (stat := readable_stat(pid, proc)) is not None:
        yield stat
        pid = stat.parent


def tree(roots: Iterable[Stat | None], proc: Path = PROC) -> dict[int, Stat]:
    """The processes ``roots`` and all their descendants by pid, zombies too. Raises OSError if a
    descendant is hidden.
    """
    queue = [stat for stat in roots if stat is not None]
    processes = {stat.pid: stat for stat in queue}
    while queue:
        for pid in children(queue.pop(), proc):
            if pid not in processes and (child := living_stat(pid, proc)) is not None:
                processes[pid] = child
                queue.append(child)
    return processes


def children(stat: Stat, proc: Path = PROC) -> list[int]:
    """Direct children; found by every process's parent if the kernel does not list them
    (CONFIG_PROC_CHILDREN).

    A child belongs to the thread that forked it, so each thread's list is read; a single-threaded
    process costs one read.
    """
    tasks = [str(stat.pid)] if stat.threads == 1 else _tasks(stat.pid, proc)
    pids: list[int] = []
    for task in tasks:
        try:
            pids += map(int, read_text(f"{proc}/{stat.pid}/task/{task}/children").split())
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if os.path.exists(f"{proc}/{stat.pid}/task/{task}/stat"):
                return [child.pid for child in parents(proc) if child.parent == stat.pid]
    return pids


def _tasks(pid: int, proc: Path) -> list[str]:
    try:
        return os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []


def link(pid: int | str, name: str, proc: Path = PROC) -> str | None:
    """The target of /proc/PID/``name`` (exe, cwd, ns/mnt); None without ptrace access to the
    process.
    """
    try:
        return os.readlink(f"{proc}/{pid}/{name}").removesuffix(" (deleted)")
    except OSError:
        return None


def shares_namespace(pid: int, name: str, proc: Path = PROC) -> bool | None:
    """Whether the process is in our namespace ``name`` (mnt, net), as one in a container is not;
    None if that is hidden.
    """
    own_namespace = link("self", f"ns/{name}", proc)
    namespace = link(pid, f"ns/{name}", proc)
    if own_namespace is None or namespace is None:
        return None
    return own_namespace == namespace


def command_line(pid: int, proc: Path = PROC) -> str:
    """Arguments as one line; "" if hidden. nginx writes its title there, followed by its original
    arguments.
    """
    try:
        return read_text(f"{proc}/{pid}/cmdline").replace("\0", " ").strip()
    except OSError:
        return ""
