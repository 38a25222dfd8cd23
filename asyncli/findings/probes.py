"""Findings of what is sampled: probes that fail or are dear, the server's processes, the kernel's files."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.findings import Words, finding
from asyncli.units import format_clock, format_duration


@finding("{probe}_slowed", "info")
def probe_slowed(probe: str, cost_s: float, period_s: float, budget: float) -> Words:
    """A probe takes so much CPU that it is read less often than once a second. ``budget`` is its share of a core."""
    return Words(
        f"one reading of {probe} takes {format_duration(cost_s)} of CPU, so it is read every {format_duration(period_s)}: "
        f"{budget:.1%} of a core is what it may use"
    )


@finding("{probe}_lost", "warning")
def probe_lost(probe: str, from_s: float, why: str) -> Words:
    """A probe (the status page, the processes, a file of the kernel's) fails; its numbers have a gap from then on."""
    return Words(
        f"{probe} could not be read from {format_clock(from_s)} on: {why}",
        "its numbers have a gap, which no figure of the report bridges",
    )


@finding("{probe}_back", "info")
def probe_back(probe: str, at_s: float, for_s: float) -> Words:
    """A probe that had failed answers again."""
    return Words(f"{probe} is read again at {format_clock(at_s)}, after a gap of {format_duration(for_s)}")


@finding("{whose}_memory_unprivileged", "warning")
def memory_unprivileged(whose: str, pid: int, why: str, user: int) -> Words:
    """PSS and USS need the right to read /proc/PID/smaps_rollup; RSS counts pages that processes share in each of them."""
    return Words(
        f"/proc/{pid}/smaps_rollup: {why} for user {user}; PSS and USS of the {whose} are not known, and RSS counts shared pages "
        "once a process",
        f"run asyncli {'as root, or ' if user else ''}with CAP_SYS_PTRACE",
    )


@finding("slabinfo_unreadable", "warning")
def slabinfo_unreadable(why: str) -> Words:
    """The kernel's memory for sockets is read from /proc/slabinfo, which is root's."""
    return Words(f"/proc/slabinfo: {why}; the kernel's memory for sockets is not known", "run as root")


@finding("slab_caches_missing", "warning")
def slab_caches_missing(caches: Sequence[str]) -> Words:
    """The kernel merges caches of one size; without /sys/kernel/slab it is not known which holds a socket's objects."""
    return Words(
        f"{', '.join(caches)}: not in /proc/slabinfo, nor linked to a name that is in /sys/kernel/slab; kernel.socket_bytes is "
        "too low",
        "make /sys/kernel/slab readable, or boot with slab_nomerge",
    )


@finding("server_ended", "error")
def server_ended(at_s: float, why: str, pid: int | None) -> Words:
    """All processes of the server ended. ``pid``: where it was named by --server-pid, which follows no restart."""
    evidence = f"{why} at {format_clock(at_s)}: what was lost or refused from then on is due to that"
    remedy = "see its error log and the kernel's for who ended it"
    if pid is not None:
        evidence += f"; as --server-pid {pid} named it, one that took its place is not known as its successor"
        remedy += "; --server-pidfile and --server-name follow a restart"
    return Words(evidence, remedy)


@finding("server_processes_unknown", "warning")
def server_processes_unknown(why: str, remedy: str) -> Words:
    """The server's processes were not found, so neither its memory nor its CPU is known; an info where nothing can be done."""
    return Words(f"{why}; the server's memory and CPU are not known", remedy, None if remedy else "info")


@finding("server_restarted", "warning")
def server_restarted(pid: int) -> Words:
    """All processes of the server ended and others took their place: memory before and after is of different processes."""
    return Words(
        f"all processes of the server ended and others took their place (root now {pid})",
        "see the server's log; memory before and after is of different processes",
    )


@finding("server_master_ended", "warning")
def server_master_ended(pid: int) -> Words:
    """The server's first process ended while its children serve on: nobody replaces one of them that ends."""
    return Words(
        f"the server's first process (pid {pid}) ended, and its children live on: if it was their master, as of nginx, they "
        "serve, but nobody replaces one that ends, and a reload does nothing",
        "see its error log and the kernel's for who ended it; restart the server when the run is over",
    )
