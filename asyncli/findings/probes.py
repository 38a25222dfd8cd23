"""Findings of sampling: probes that fail or are expensive, the server's processes, the kernel's
files.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.findings import Words, finding
from asyncli.findings.event_words import EventWords, in_the_time_of
from asyncli.findings.losses import remedy_of_statuses
from asyncli.model.records import Finding
from asyncli.model.units import format_clock, format_duration, format_share

_ERROR_LOGS = "see its error log and the kernel's for what ended it"


@finding("probe_refused", "warning")
def probe_refused(why: str) -> str:
    """The test connection before the run failed; with --force the run starts anyway."""
    return f"the test connection before the run failed, and --force passed over it: {why}"


@finding("probe_answered", "warning")
def probe_answered(url: str, status: int, over_tls: bool) -> Words:
    """The heartbeat of check --probe got an error answer: those of a soak will get it too."""
    remedy = remedy_of_statuses({status: 1}, 1, over_tls=over_tls)
    return Words(f"{url}: the heartbeat got an error answer (HTTP {status})", remedy)


#: What a probe may be.
_PROBES = (
    "status, metrics, agent, server, sockets, kernel, memory and others: what is read each second"
)


@finding("{probe}_slowed", "info", values=_PROBES)
def probe_slowed(probe: str, cost_s: float, period_s: float, budget: float) -> str:
    """A probe is read less often than once a second, because it takes much CPU. ``budget``: the
    share of a core it may use.
    """
    return (
        f"reading {probe} takes {format_duration(cost_s)} of CPU, so asyncli does so every "
        f"{format_duration(period_s)} (budget: {format_share(budget, 1)} of a core)"
    )


@finding("{probe}_lost", "warning", values=_PROBES)
def probe_lost(
    probe: str, from_s: float, why: str, untrusted: bool, unusable: Sequence[str] = ()
) -> Words:
    """A probe (the status page, the processes, a file of the kernel) fails; its numbers have a gap
    from then on. ``untrusted``: TLS failed, which is no sign that the server is silent.
    ``unusable``: what --metrics-map names and no page had a value of, each with what it had in
    parentheses if it had any: NaN, a negative number, one beyond all memory.
    """
    if unusable:
        return Words(
            f"no page of --server-metrics had a usable value of {', '.join(unusable)}",
            "have the page write a number that can be one, or name another metric (--metrics-map)",
        )
    remedy = "figures leave this gap blank"
    if probe.startswith(("status", "metrics")):
        remedy = (
            "have the page answer for the whole run: nothing that it counts is known in this gap"
        )
    return Words(f"{probe} could not be read from {format_clock(from_s)} on: {why}", remedy)


@finding("{probe}_back", "info", values=_PROBES)
def probe_back(probe: str, at_s: float, for_s: float) -> str:
    """A probe that had failed answers again."""
    return f"{probe} is read again at {format_clock(at_s)}, after a gap of {format_duration(for_s)}"


@finding("{whose}_memory_unprivileged", "warning", values="server or generator")
def memory_unprivileged(whose: str, pid: int, why: str, user: int) -> Words:
    """PSS and USS need rights; RSS counts shared pages in each process. An info if asyncli does not
    run as root (see needs_root). ``user``: as which it runs.
    """
    evidence = (
        f"using RSS for the {whose}, which counts shared pages in every process: "
        f"/proc/{pid}/smaps_rollup: {why} for user {user}"
    )
    if user:
        return Words(evidence, "", "info")
    return Words(evidence, "run asyncli with CAP_SYS_PTRACE")


@finding("slabinfo_unreadable", "warning")
def slabinfo_unreadable(why: str, user: int) -> Words:
    """Kernel memory of sockets needs root (/proc/slabinfo). An info if asyncli does not run as
    root: needs_root has the remedy. ``user``: as which it runs.
    """
    evidence = f"the kernel's memory for sockets is unknown: /proc/slabinfo: {why}"
    if user:
        return Words(evidence, "", "info")
    return Words(evidence, "run it outside of the container, as the host's root")


@finding("needs_root", "warning")
def needs_root(unknown: Sequence[str], command: str, instead: str) -> Words:
    """These values need root. ``command``: runs asyncli as root; ``instead``: a flag that needs no
    root and gives the server's memory (RSS), CPU and limits, "" if none is needed.
    """
    flag = f"; or {instead}: its RSS, CPU and limits need no root" if instead else ""
    return Words(f"without root unknown: {'; '.join(unknown)}", f"{command}{flag}")


@finding(
    "slab_caches_missing", "warning", "make /sys/kernel/slab readable, or boot with slab_nomerge"
)
def slab_caches_missing(caches: Sequence[str]) -> str:
    """The kernel merges slab caches of one size; without /sys/kernel/slab a socket's cache cannot
    be identified.
    """
    return (
        f"kernel.socket_bytes is too low: {', '.join(caches)} not found in /proc/slabinfo or "
        "/sys/kernel/slab"
    )


@finding("server_ended", "error")
def server_ended(at_s: float, why: str, pid: int | None) -> Words:
    """All processes of the server ended. ``pid``: given by --server-pid, which follows no
    restart.
    """
    evidence = f"{why} at {format_clock(at_s)}"
    if pid is None:
        return Words(evidence, _ERROR_LOGS)
    return Words(
        f"{evidence}; --server-pid {pid} does not follow a restart",
        f"{_ERROR_LOGS}; --server-pidfile and --server-name do",
    )


def while_commands_ran(restart: Finding, numbers: Sequence[int]) -> Finding:
    """A finding of restarts as a note: each is in the time of a command of the plan, which asked
    for it. ``numbers``: of their events.
    """
    events: list[EventWords] = [{"number": number, "kind": "run"} for number in numbers]
    return msgspec.structs.replace(
        restart,
        severity="info",
        evidence=f"{restart.evidence}; that was {in_the_time_of(events)}",
        remedy="",
    )


@finding("server_processes_unknown", "warning")
def server_processes_unknown(why: str, remedy: str) -> Words:
    """The server's processes were not found, so its memory and CPU are unknown. An info if nothing
    can be done about it.
    """
    return Words(
        f"{why}; the server's memory and CPU are unknown", remedy, None if remedy else "info"
    )


@finding(
    "server_restarted",
    "warning",
    "see the server's log; memory before and after is of different processes",
)
def server_restarted(pid: int, ended: Sequence[int] = ()) -> str:
    """All processes of the server were replaced, so memory before and after is of different
    processes. It is told once, of the first time. ``ended``: of several root processes, only those
    that were.
    """
    if not ended:
        return f"all processes of the server ended and were replaced (root then {pid})"
    pids = ", ".join(map(str, ended))
    return (
        f"of several main processes of the server, {len(ended)} ended (pid {pids}) and others took "
        "their place"
    )


#: The code of :func:`server_master_ended`.
MASTER_ENDED = "server_master_ended"


@finding(MASTER_ENDED, "warning", f"{_ERROR_LOGS}; restart the server after the run")
def server_master_ended(pid: int, *, of_several: bool = False) -> str:
    """The server's main process ended while its workers continue: a worker that ends is not
    replaced. ``of_several``: one of several root processes ended with its workers, so that the
    memory of the others would be that of a part.
    """
    if of_several:
        return (
            f"one of several main processes of the server (pid {pid}) ended; until another one "
            "listens in its place, the server's memory is not read"
        )
    return (
        f"the server's main process (pid {pid}) ended; its workers continue, without replacement "
        "or reload"
    )
