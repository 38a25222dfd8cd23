"""The host's limits against a plan, in numbers. Pure: what was read comes in, one :class:`Check` a limit goes out.

"short" is kept for what makes the run fail for certain; what only may, or only slows it, is "warn". Each shortfall
carries the flag or command that mends it. The rules are those of the kernel's documentation, and of measurements named
where they are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Literal

import msgspec

from asyncli.engine.spread import OWN_DESCRIPTORS, Spread, share, sources_wanted, workers_needed
from asyncli.plan import Plan
from asyncli.preflight.limits import Limits
from asyncli.preflight.sources import HALF, WIDEST
from asyncli.preflight.sources import remedy as remedy_elsewhere
from asyncli.records import FAR, Check
from asyncli.units import format_bytes, format_count, instant_of

Verdict = Literal["ok", "short", "warn", "unknown"]

# What an idle connection takes, bytes: measured on Linux 6.18 x86-64 with nginx 1.22, a million connections held.
# An end: TCP 2,304, sock_inode_cache 832, filp 192, dentry 192, and epoll's items.
KERNEL_BYTES_PER_END = 4_100
SERVER_BYTES = 1_300
GENERATOR_BYTES = 160
# A worker process of ours before its first connection, and the session with its run file.
WORKER_BYTES = 1_500_000
SESSION_BYTES = 60_000_000
# Above this share of what is available the prediction's own error decides.
_COMFORTABLE = 0.8
# A server that is busy elsewhere for this long must find its queue no fuller than it can hold.
STALL_S = 1.0
# 17 us of CPU a heartbeat in the generator, 50 to 117 us a connect; a server on this host takes about as much again.
BEATS_PER_CPU_S = 60_000
CONNECTS_PER_CPU_S = 12_000
# Processes of ours beside the workers: session, host, and the few that the collector starts.
_OTHER_PROCESSES = 8
_NOT_LIMITED = 2**60


def longest_gap_s(plan: Plan) -> float:
    """The longest pause between two heartbeats of a connection, seconds."""
    return plan.keepalive_s / 2


def mean_gap_s(plan: Plan) -> float:
    """The mean pause between heartbeats, seconds: they are uniform in [1, keepalive/2]."""
    return (1 + plan.keepalive_s / 2) / 2


def beats_per_s(plan: Plan) -> float:
    """Heartbeats a second with everything open."""
    return plan.connections / mean_gap_s(plan)


def ramp_s(plan: Plan) -> float:
    """How long the ramp takes when it keeps its pace, rests of the plateaus included; seconds."""
    return math.ceil(plan.connections / plan.batch) * plan.interval_s + plan.plateaus * plan.plateau_s


def oldest_s(plan: Plan) -> float | None:
    """The age of the first connection at the end of the hold, seconds; None when the hold has no end."""
    if plan.hold_until is not None:
        now_s = time.time()
        return max(ramp_s(plan), instant_of(plan.hold_until, now_s) - now_s - plan.baseline_s)
    return None if plan.hold_s is None else ramp_s(plan) + plan.hold_s


def host_checks(plan: Plan, spread: Spread, limits: Limits) -> list[Check]:
    """One check for each limit of this host, in the order in which they usually bite."""
    rows = (_nofile, _nr_open, _file_max, _ports, _time_wait, _memory, _cgroup_memory, _queues, _conntrack, _tcp_mem)
    checks: list[Check] = []
    for row in (*rows, _epoll, _processes, _cpu):
        checks += row(plan, spread, limits)
    return checks


def far_checks(plan: Plan, limits: Limits) -> list[Check]:
    """The limits of a server's host elsewhere, which pays for one end of each connection: as :func:`host_checks`, named apart."""
    # No process of ours is there, and no source of a connection.
    alone = Spread(destinations=(), sources=(), workers=0, local=False, ports=0)
    checks: list[Check] = [*_file_max(plan, alone, limits), *_far_memory(plan, limits), *_accept_queues(plan, limits)]
    for row in (_conntrack, _tcp_mem, _epoll):
        checks += row(plan, alone, limits)
    there = "on the server's host"
    return [
        msgspec.structs.replace(
            one, code=f"{FAR}{one.code}", what=f"{one.what}, {there}", remedy=f"{there}: {one.remedy}" if one.remedy else ""
        )
        for one in checks
    ]


def _far_memory(plan: Plan, limits: Limits) -> Iterator[Check]:
    what, need = "memory available", plan.connections * (KERNEL_BYTES_PER_END + SERVER_BYTES)
    if limits.memory_available is None:
        yield _unknown("memory", what, "MemAvailable of /proc/meminfo", need, "bytes")
        return
    detail = (
        f"predicted, not measured: per connection {KERNEL_BYTES_PER_END:,} B of kernel + {SERVER_BYTES:,} B of nginx, as held on "
        "Linux 6.18 with nginx 1.22; another server may take far more"
    )
    yield _memory_check(plan, code="memory", what=what, have=limits.memory_available, need=need, detail=detail)


def _ends(spread: Spread) -> int:
    return 2 if spread.local else 1


def _unknown(code: str, what: str, source: str, need: float | None = None, unit: str = "") -> Check:
    return Check(code, what, "unknown", need=need, unit=unit, detail=f"{source} could not be read")


def _nofile(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "descriptors of one process", "descriptors"
    # Whole batches go round, so worker 0 never has fewer than another.
    mine = share(plan.connections, plan.batch, spread.workers, 0)
    need = mine + OWN_DESCRIPTORS
    if limits.nofile_hard is None:
        yield _unknown("nofile", what, "RLIMIT_NOFILE", need, unit)
        return
    detail = (
        f"{format_count(plan.connections)} connections in {spread.workers} {_plural(spread.workers, 'process')}: "
        f"{format_count(mine)} in the fullest, and {OWN_DESCRIPTORS} of its own"
    )
    if need <= limits.nofile_hard:
        yield Check("nofile", what, "ok", limits.nofile_hard, need, unit, detail)
        return
    # A batch goes to one process whole, so it has to fit whatever their number.
    room = max(1, limits.nofile_hard - OWN_DESCRIPTORS)
    enough = workers_needed(plan.connections, limits.nofile_hard, 1)
    while plan.batch <= room and share(plan.connections, plan.batch, enough, 0) > room:
        enough += 1
    remedy = f"--workers {enough}, or leave --workers out" if plan.batch <= room else f"--batch {max(1, room // 2)}"
    yield Check("nofile", what, "short", limits.nofile_hard, need, unit, detail, f"{remedy}; or ulimit -Hn {need}")


def _nr_open(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "highest descriptor limit that can be set (fs.nr_open)", "descriptors"
    need = share(plan.connections, plan.batch, spread.workers, 0) + OWN_DESCRIPTORS
    if limits.nr_open is None:
        yield _unknown("nr_open", what, "/proc/sys/fs/nr_open", need, unit)
        return
    short = need > limits.nr_open
    remedy = f"leave --workers out, or sysctl -w fs.nr_open={need}" if short else ""
    yield Check("nr_open", what, "short" if short else "ok", limits.nr_open, need, unit, "", remedy)


def _file_max(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "open files of the whole host (fs.file-max)", "files"
    if limits.file_max is None or limits.files_open is None:
        yield _unknown("file_max", what, "/proc/sys/fs/file-max or file-nr", None, unit)
        return
    ends = _ends(spread)
    need = limits.files_open + plan.connections * ends + spread.workers * OWN_DESCRIPTORS
    detail = f"{format_count(limits.files_open)} open now, and {ends} for each connection" + (
        " (both ends are on this host)" if spread.local else ""
    )
    verdict: Verdict = "ok"
    if need > limits.file_max:
        # The kernel lets CAP_SYS_ADMIN past this limit, but a server that runs as an ordinary user meets it.
        verdict = "warn" if limits.superuser else "short"
    remedy = f"sysctl -w fs.file-max={_round_up(need)}" if verdict != "ok" else ""
    yield Check("file_max", what, verdict, limits.file_max, need, unit, detail, remedy)


# From this kernel on a connect past a half of the ports takes 117 us in place of 47.
_FINDS_AT_ONCE = (6, 8)


def _ports(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "local ports", "ports"
    sources, destinations = max(1, len(spread.sources)), len(spread.destinations)
    detail = (
        f"{sources} {_plural(sources, 'source')} x {destinations} {_plural(destinations, 'destination')} x "
        f"{format_count(spread.ports)} ports = {format_count(spread.capacity)}"
    )
    have, need = spread.capacity, plan.connections
    if need <= have * HALF or (need <= have and limits.kernel is not None and limits.kernel >= _FINDS_AT_ONCE):
        yield Check("ports", what, "ok", have, need, unit, detail)
        return
    verdict: Verdict = "short" if need > have else "warn"
    if verdict == "warn":
        detail += "; past a half of them a connect takes long before Linux 6.8 (30 ms at 30,000)"
    else:
        detail += "; a half of them is to stay free, so that a connect finds one without a long search"
    # A server in another network namespace of this host, as an agent there tells, is elsewhere by its ports.
    if not spread.local or spread.route is not None:
        yield Check("ports", what, verdict, have, need, unit, detail, remedy_elsewhere(plan, spread, limits))
        return
    wanted = sources_wanted(plan.connections, max(1, destinations), max(1, spread.ports))
    remedies = [f"give {wanted} addresses of this host with --source"]
    if plan.sources:
        remedies.insert(0, "leave --source out")
    elif all(ip_address(one.address).is_loopback for one in spread.destinations):
        # ::1 is one address, while all of 127.0.0.0/8 is ours.
        six = all(":" in one.address for one in spread.destinations)
        remedies = ["aim at 127.0.0.1 instead of ::1"] if six else remedies
    more_urls = math.ceil(plan.connections / (max(1, sources * spread.ports) * HALF))
    remedies.append(f"let the server listen on {more_urls} ports and give {more_urls} URLs")
    if limits.ports is None or limits.ports < 50_000:
        remedies.append(f'sysctl -w net.ipv4.ip_local_port_range="{WIDEST}"')
    yield Check("ports", what, verdict, have, need, unit, detail, "; or ".join(remedies))


def _time_wait(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "ports free of TIME_WAIT", "ports"
    if plan.connections > spread.capacity:
        return  # there are too few of them, free or not
    if limits.tcp_tw is None:
        yield _unknown("time_wait", what, "/proc/net/sockstat", plan.connections, unit)
        return
    loopback = all(ip_address(one.address).is_loopback for one in spread.destinations)
    reuse = limits.tcp_tw_reuse == 1 or (limits.tcp_tw_reuse == 2 and loopback)
    have = spread.capacity if reuse else max(0, spread.capacity - limits.tcp_tw)
    detail = f"{format_count(limits.tcp_tw)} sockets in TIME_WAIT on this host, tcp_tw_reuse {limits.tcp_tw_reuse}"
    # Only those on our own pairs count, and they are gone within a minute: never a certain failure.
    verdict: Verdict = "warn" if have < plan.connections else "ok"
    remedy = "wait 60 s, or sysctl -w net.ipv4.tcp_tw_reuse=1" if verdict == "warn" else ""
    yield Check("time_wait", what, verdict, have, plan.connections, unit, detail, remedy)


def predicted_bytes(plan: Plan, spread: Spread) -> int:
    """Memory that the run will take on this host, bytes: see the constants for what it is made of."""
    each = KERNEL_BYTES_PER_END * _ends(spread) + GENERATOR_BYTES + (SERVER_BYTES if spread.local else 0)
    return plan.connections * each + spread.workers * WORKER_BYTES + SESSION_BYTES


def _prediction(spread: Spread) -> str:
    server = f" + {SERVER_BYTES:,} B of nginx" if spread.local else ""
    ends = f"{_ends(spread)} x " if spread.local else ""
    return (
        f"predicted, not measured: per connection {ends}{KERNEL_BYTES_PER_END:,} B of kernel{server} + "
        f"{GENERATOR_BYTES} B of generator, as held on Linux 6.18 with nginx 1.22; another server may take far more"
    )


def _memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, need = "memory available on this host", predicted_bytes(plan, spread)
    if limits.memory_available is None:
        yield _unknown("memory", what, "MemAvailable of /proc/meminfo", need, "bytes")
        return
    have = limits.memory_available
    yield _memory_check(plan, code="memory", what=what, have=have, need=need, detail=_prediction(spread))


def _cgroup_memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, need = "memory left in the cgroup", predicted_bytes(plan, spread)
    if limits.cgroup_memory_limit is None or limits.cgroup_memory_used is None:
        # No limit, and no controller to read it from, look alike; neither stops a run.
        return
    have = max(0, limits.cgroup_memory_limit - limits.cgroup_memory_used)
    detail = (
        f"limit {format_bytes(limits.cgroup_memory_limit)}, {format_bytes(limits.cgroup_memory_used)} in use; "
        f"a server outside this cgroup does not count; {_prediction(spread)}"
    )
    check = _memory_check(plan, code="cgroup_memory", what=what, have=have, need=need, detail=detail)
    if check.verdict != "ok":
        remedy = f"raise the container's memory limit by {format_bytes(need - have * _COMFORTABLE)}; {check.remedy}"
        # Both ends are in the sum, but the server may live in another cgroup: then half of it is not charged here.
        verdict: Verdict = "warn" if spread.local and need / 2 <= have else check.verdict
        check = Check(check.code, what, verdict, have, need, "bytes", detail, remedy)
    yield check


def _memory_check(plan: Plan, *, code: str, what: str, have: int, need: int, detail: str) -> Check:
    if need <= have * _COMFORTABLE:
        return Check(code, what, "ok", have, need, "bytes", detail)
    fits = max(1, int(plan.connections * have * _COMFORTABLE / need))
    verdict: Verdict = "short" if need > have else "warn"
    return Check(code, what, verdict, have, need, "bytes", detail, f"-c {fits}, or free some memory")


def _queues(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if spread.local:
        yield from _accept_queues(plan, limits)


def _accept_queues(plan: Plan, limits: Limits) -> Iterator[Check]:
    """Where connections wait for accept(), and half-open ones for the last ACK. Of the server's host."""
    need = plan.asked_per_s * STALL_S
    rows = (
        ("somaxconn", "longest accept queue", limits.somaxconn, "net.core.somaxconn"),
        ("syn_backlog", "half-open connections", limits.syn_backlog, "net.ipv4.tcp_max_syn_backlog"),
    )
    for code, meaning, have, name in rows:
        what = f"{meaning} ({name})"
        if have is None:
            yield _unknown(code, what, name, need, "connections")
            continue
        detail = f"{format_count(plan.asked_per_s)} connects/s x {STALL_S:g} s in which the server may not accept"
        enough = have >= need
        remedy = ""
        if not enough:
            detail += "; what overflows is retried by the kernel after 1 s, 3 s, 7 s"
            remedy = f"sysctl -w {name}={_round_up(need)} and the server's backlog= to match; or a longer --interval"
        yield Check(code, what, "ok" if enough else "warn", have, need, "connections", detail, remedy)


def _conntrack(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if limits.conntrack_max is None or limits.conntrack_count is None:
        # No such file: the module is not loaded, so there is nothing to exceed.
        return
    need = limits.conntrack_count + plan.connections
    # TIME_WAIT sockets would be tracked for two minutes: if there are some and no entry, nothing is tracked here.
    idle = limits.conntrack_count == 0 and bool(limits.tcp_tw)
    short = need > limits.conntrack_max and not idle
    # A loaded module need not track anything: only its count's growth in the run would show it.
    detail = (
        f"{format_count(limits.conntrack_count)} tracked now, and one for each connection if a rule makes it track; "
        "when full the kernel logs 'nf_conntrack: table full, dropping packet'"
    )
    remedy = f"sysctl -w net.netfilter.nf_conntrack_max={_round_up(need)}, or a NOTRACK rule" if short else ""
    what = "tracked connections (nf_conntrack_max)"
    if idle:
        detail = "nothing is tracked here, though the module is loaded: sockets in TIME_WAIT have no entry"
    needed = None if idle else need
    yield Check("conntrack", what, "warn" if short else "ok", limits.conntrack_max, needed, "entries", detail, remedy)


def _tcp_mem(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "TCP buffers below pressure (net.ipv4.tcp_mem)", "pages"
    # Idle ends queue nothing. A page for each end that has something in flight: what a 1 s stall leaves waiting.
    busy = min(plan.connections, beats_per_s(plan) * STALL_S + plan.asked_per_s * STALL_S) * _ends(spread)
    if limits.tcp_mem_pages is None:
        yield _unknown("tcp_mem", what, "/proc/sys/net/ipv4/tcp_mem", math.ceil(busy), unit)
        return
    need = (limits.tcp_used_pages or 0) + math.ceil(busy)
    low, pressure, high = limits.tcp_mem_pages
    detail = f"a page for each end with data in flight after a {STALL_S:g} s stall; idle connections queue none"
    short = need > pressure
    remedy = f'sysctl -w net.ipv4.tcp_mem="{max(low, need)} {2 * need} {max(high, 3 * need)}"' if short else ""
    yield Check("tcp_mem", what, "warn" if short else "ok", pressure, need, unit, detail, remedy)


def _epoll(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, unit = "epoll watches of one user (fs.epoll.max_user_watches)", "watches"
    ends = _ends(spread)
    if limits.epoll_watches is None:
        yield _unknown("epoll_watches", what, "/proc/sys/fs/epoll/max_user_watches", plan.connections * ends, unit)
        return
    have, need = limits.epoll_watches, plan.connections * ends
    verdict: Verdict = "ok"
    detail = ""
    if plan.connections > have:
        verdict = "short"
    elif need > have:
        verdict, detail = "warn", "both ends count together if the server runs as the same user"
    remedy = f"sysctl -w fs.epoll.max_user_watches={_round_up(need)}" if verdict != "ok" else ""
    yield Check("epoll_watches", what, verdict, have, need, unit, detail, remedy)


def _processes(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    """Room for our processes. Threads count as processes in each of these limits."""
    need = spread.workers + _OTHER_PROCESSES
    rooms: list[tuple[int, str, str]] = []
    if limits.pids_limit is not None and limits.pids_used is not None:
        left = max(0, limits.pids_limit - limits.pids_used)
        rooms.append((left, "left in the pids cgroup", "raise the container's --pids-limit (systemd: TasksMax=)"))
    if limits.threads_max is not None:
        rooms.append((limits.threads_max, "kernel.threads-max", f"sysctl -w kernel.threads-max={_round_up(need)}"))
    if limits.nproc is not None and not limits.superuser:
        rooms.append((limits.nproc, "RLIMIT_NPROC", f"ulimit -u {_round_up(need)}"))
    what = "processes"
    if not rooms:
        yield _unknown("processes", what, "pids.max, threads-max and RLIMIT_NPROC", need, "processes")
        return
    have, detail, remedy = min(rooms)
    if have >= _NOT_LIMITED:
        have, detail = _NOT_LIMITED, "no limit"
    short = have < need
    yield Check("processes", what, "short" if short else "ok", have, need, "processes", detail, remedy if short else "")


def _cpu(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    beats, connects = beats_per_s(plan), plan.asked_per_s
    rows = (
        ("heartbeat_rate", "heartbeats", BEATS_PER_CPU_S, beats, "17 us of CPU each", "--keepalive"),
        ("connect_rate", "connects", CONNECTS_PER_CPU_S, connects, "50 to 117 us of CPU each", "--interval"),
    )
    for code, things, a_cpu, need, cost, flag in rows:
        what = f"{things} that the CPUs can do"
        if limits.cpu_time is None:
            yield _unknown(code, what, "the CPUs we may use", need, "a second")
            continue
        have = a_cpu * limits.cpu_time / _ends(spread)
        detail = f"{limits.cpu_time:g} CPUs, {cost}" + (", and the server takes about as much" if spread.local else "")
        if need <= have:
            yield Check(code, what, "ok", have, need, "a second", detail)
            continue
        seconds = 4 * plan.connections / have if flag == "--keepalive" else plan.batch / have
        value = f"{math.ceil(seconds)}" if flag == "--keepalive" else f"{math.ceil(seconds * 1e3)}ms"
        detail += "; it will lag, and the lateness is recorded"
        yield Check(code, what, "warn", have, need, "a second", detail, f"{flag} {value} or longer, or more CPUs")


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}es" if word.endswith("s") else f"{word}s"


def _round_up(number: float) -> int:
    """To two leading digits: a value one would write by hand."""
    step = int(10 ** max(0, len(str(math.ceil(number))) - 2))
    return math.ceil(number / step) * step
