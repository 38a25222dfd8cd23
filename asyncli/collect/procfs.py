"""Texts of /proc to numbers: one process, its memory, its children, the listening sockets. Parsers are pure.

Facts of the kernel are from proc(5), Documentation/filesystems/proc.rst and Documentation/networking/proc_net_tcp.rst.

Not psutil: of 60 processes it takes six to thirteen times the CPU for what is read each second (2.3 ms against 0.4 ms for stat,
3.0 ms against 0.2 ms for children, on Linux 6.18).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from asyncli.places import real_path

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A larger buffer is mapped and unmapped at each call, and seq_file hands out about a page at a time anyway.
_CHUNK = 16384
# TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it.
_LISTEN = "0A"


class Stat(msgspec.Struct, frozen=True):
    """/proc/PID/stat. Times in seconds; ``start_ticks`` (since boot) tells a process from a later one with its pid.

    ``cpu_s`` is cut off to ticks of 10 ms in the text; :func:`read_stat` has it to the nanosecond where it can.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_s: float
    #: User and system time of the children that ended and were waited for, and of theirs.
    waited_s: float
    threads: int
    start_ticks: int
    rss_bytes: int

    @property
    def ended(self) -> bool:
        """A zombie or dead: its CPU time can still be read, it holds no memory."""
        return self.state in "ZX"


class Memory(msgspec.Struct, frozen=True):
    """/proc/PID/smaps_rollup, in bytes."""

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    #: See METRICS; None where the kernel does not tell pages of files apart (before 5.4).
    anon_shmem_bytes: int | None = None


class Listener(msgspec.Struct, frozen=True):
    """A listening socket: its address (None: any), port and inode. Of a Unix socket the port is 0, and the address its path."""

    address: str | None
    port: int
    inode: int


def read_text(path: str | os.PathLike[str]) -> str:
    """A file of /proc, whole. Raises OSError, ProcessLookupError among them when the process ended meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")


def parse_stat(text: str) -> Stat:
    """One line of /proc/PID/stat. The name may hold blanks and parentheses, so fields count from the last ``)``."""
    head, paren, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    if not paren or len(fields) < 22:
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
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


def parse_smaps_rollup(text: str) -> Memory | None:
    """The sums of /proc/PID/smaps_rollup; USS is all that is private. None for a process without memory.

    Anonymous and shared memory: Pss_Anon and Pss_Shmem, SwapPss for what of them is swapped out, and the process's own huge
    pages, which no PSS has.
    """
    kib: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and rest.endswith(" kB"):
            kib[name] = int(rest[:-3])
    if "Pss" not in kib:
        return None
    private = sum(value for name, value in kib.items() if name.startswith("Private_"))
    told = ("Pss_Anon", "Pss_Shmem", "SwapPss", "Private_Hugetlb")
    return Memory(
        rss_bytes=kib.get("Rss", 0) * 1024,
        pss_bytes=kib["Pss"] * 1024,
        uss_bytes=private * 1024,
        anon_shmem_bytes=sum(kib.get(name, 0) for name in told) * 1024 if "Pss_Anon" in kib else None,
    )


def parse_listeners(lines: Iterable[str]) -> Iterator[Listener]:
    """Listening sockets of the lines of /proc/net/tcp or tcp6, up to the first row in another state.

    The kernel prints the listening ones first (tcp_seq_start), so a million established rows are never read.
    """
    for line in lines:
        fields = line.split(None, 10)
        if len(fields) < 10 or ":" not in fields[1]:
            continue
        if fields[3] != _LISTEN:
            break
        address, _, port = fields[1].partition(":")
        yield Listener(address=_address(address), port=int(port, 16), inode=int(fields[9]))


def _address(digits: str) -> str | None:
    """Hexadecimal words in host order to an address; a v4-mapped one as IPv4; None for the wildcard."""
    packed = b"".join(int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return None if int(address) == 0 else str(address)


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """The process's /proc/PID/stat; world-readable unless /proc is mounted with hidepid.

    Its CPU time is read from the process's own clock besides: of a pool of 100 processes, ticks of 10 ms could hide a second.
    """
    stat = parse_stat(read_text(f"{proc}/{pid}/stat"))
    if proc is PROC:
        try:
            return msgspec.structs.replace(stat, cpu_s=cpu_clock_s(pid))
        except OSError:
            pass  # it has ended since, or is of another pid namespace: what its text said stands
    return stat


def cpu_clock_s(pid: int, which: int = 2) -> float:
    """A clock of the process's CPU time, ended threads included (clock_getcpuclockid(3)), in seconds; OSError where none lives.

    ``which``: 2 is exact; 1 user time and 0 user and system time, as the kernel tells them apart. MAKE_PROCESS_CPUCLOCK of
    include/linux/posix-timers_types.h.
    """
    return time.clock_gettime((~pid << 3) | which)


def read_memory(pid: int, proc: Path = PROC) -> Memory | None:
    """None for a process without memory, or that has ended. Raises PermissionError without ptrace access to it."""
    try:
        return parse_smaps_rollup(read_text(f"{proc}/{pid}/smaps_rollup"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_unix_listeners(lines: Iterable[str]) -> Iterator[Listener]:
    """Those of /proc/net/unix that listen and have a path, which is made real, or a name behind ``@``."""
    for line in lines:
        fields = line.rstrip("\n").split(None, 7)
        # __SO_ACCEPTCON of include/linux/net.h, and SOCK_STREAM.
        if len(fields) == 8 and (fields[3], fields[4]) == ("00010000", "0001"):
            yield Listener(address=real_path(fields[7]), port=0, inode=int(fields[6]))


def read_listeners(port: int, proc: Path = PROC) -> list[Listener]:
    """Sockets that listen on ``port`` in our network namespace; 0: Unix sockets."""
    found: list[Listener] = []
    if not port:
        try:
            with (proc / "net/unix").open(encoding="utf-8", errors="replace") as file:
                return list(parse_unix_listeners(file))
        except FileNotFoundError:
            return found
    for name in ("tcp", "tcp6"):
        try:
            with (proc / "net" / name).open(encoding="ascii", errors="replace") as file:
                found += [listener for listener in parse_listeners(file) if listener.port == port]
        except FileNotFoundError:
            continue
    return found


def all_pids(proc: Path = PROC) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def parents(proc: Path = PROC) -> Iterator[Stat]:
    """The stat of every readable process."""
    for pid in all_pids(proc):
        try:
            yield read_stat(pid, proc)
        except (OSError, ValueError):
            continue


def children(stat: Stat, proc: Path = PROC) -> list[int]:
    """Direct children; by the parent of every process where the kernel does not list them (CONFIG_PROC_CHILDREN).

    A child belongs to the thread that forked it, so every thread is asked; a process of one thread costs one read.
    """
    tasks = [str(stat.pid)] if stat.threads == 1 else _tasks(stat.pid, proc)
    found: list[int] = []
    for task in tasks:
        try:
            found += map(int, read_text(f"{proc}/{stat.pid}/task/{task}/children").split())
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if os.path.exists(f"{proc}/{stat.pid}/task/{task}/stat"):
                return [one.pid for one in parents(proc) if one.parent == stat.pid]
    return found


def _tasks(pid: int, proc: Path) -> list[str]:
    try:
        return os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []


def link(pid: int | str, name: str, proc: Path = PROC) -> str | None:
    """Where /proc/PID/``name`` leads (exe, cwd, ns/mnt); None without ptrace access to the process."""
    try:
        return os.readlink(f"{proc}/{pid}/{name}").removesuffix(" (deleted)")
    except OSError:
        return None


def command_line(pid: int, proc: Path = PROC) -> str:
    """Arguments as one line (nginx writes its title there, the arguments of its start after it); "" when hidden."""
    try:
        return read_text(f"{proc}/{pid}/cmdline").replace("\0", " ").strip()
    except OSError:
        return ""
