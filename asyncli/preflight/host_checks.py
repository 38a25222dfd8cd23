"""Checks a plan against the host's limits: one :class:`Check` per limit. Pure.

With "short" the run is certain to fail; with "warn" it may fail or slow down. Each has the flag or command that fixes it. The
rules come from the kernel's documentation, and from measurements named at their use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Literal

import msgspec

from asyncli.engine.spread import OWN_DESCRIPTORS, Spread, share, sources_wanted, workers_needed
from asyncli.model.plan import Plan
from asyncli.model.records import FAR, Check
from asyncli.model.units import format_bytes, format_count, format_many, instant_of
from asyncli.preflight.host_limits import NO_LIMIT, Limits
from asyncli.preflight.sources import HALF, WIDEST, client_port_remedy

Verdict = Literal["ok", "short", "warn", "unknown"]

# Bytes of an idle connection, measured on Linux 6.18 x86-64 with nginx 1.22 and a million connections. An end: TCP 2,304,
# sock_inode_cache 832, filp 192, dentry 192, and epoll's items. A Unix socket's end: UNIX-STREAM 1,152 in place of TCP.
KERNEL_BYTES_PER_END, KERNEL_BYTES_PER_UNIX_END = 4_100, 2_600
SERVER_BYTES, GENERATOR_BYTES = 1_300, 160
STREAM_BYTES = 10_000  # of a held HTTP/2 stream: experiment atlas
# A worker before its first connection, and the session with its run file.
WORKER_BYTES, SESSION_BYTES = 1_500_000, 60_000_000
# Above this share of what is available the prediction may err.
_COMFORTABLE = 0.8
# The queues must bear a server that accepts nothing for so long.
STALL_S = 1.0
# The generator's CPU: 17 us a heartbeat, 50 to 117 us a connect; a server on this host takes about as much.
BEATS_PER_CPU_S, CONNECTS_PER_CPU_S = 60_000, 12_000
# A batch may be so late (s) in a valid run.
_LATE_S = 0.05
# Our processes beside the workers: session, host, and the collector's few.
_OTHER_PROCESSES = 8
_TCP_CODES = ("ports", "time_wait", "syn_backlog", "conntrack", "tcp_mem")


def longest_gap_s(plan: Plan) -> float:
    """The longest pause (s) between two heartbeats of a connection."""
    return plan.keepalive_s / 2


def mean_gap_s(plan: Plan) -> float:
    """The mean pause (s) between heartbeats: it is uniform in [1, keepalive/2]."""
    return (1 + plan.keepalive_s / 2) / 2


def beats_per_s(plan: Plan) -> float:
    """Heartbeats a second with all connections open; 0 for a plan that only listens."""
    return 0.0 if plan.listens else plan.connections / mean_gap_s(plan)


def oldest_s(plan: Plan) -> float | None:
    """The age (s) of the first connection at the hold's end; None without an end."""
    if plan.hold_until is not None:
        now_s = time.time()
        return max(plan.schedule.end_s, instant_of(plan.hold_until, now_s) - now_s - plan.baseline_s)
    return None if plan.hold_s is None else plan.schedule.end_s + plan.hold_s


def limit(
    code: str, what: str, unit: str, have: float | None, need: float | None, *, short: Verdict = "short", source: str = "",
    detail: str = "", remedy: str = "",
) -> Check:  # fmt: skip
    """A check: unknown if ``have`` could not be read from ``source``, ok if it suffices, else ``short``."""
    if have is None:
        return Check(code, what, "unknown", need=need, unit=unit, detail=f"{source} could not be read")
    if need is None or need <= have:
        return Check(code, what, "ok", have, need, unit, detail)
    return Check(code, what, short, have, need, unit, detail, remedy)


def host_checks(plan: Plan, spread: Spread, limits: Limits) -> list[Check]:
    """One check for each limit of this host, in the order in which they are usually reached."""
    rows = (_nofile, _nr_open, _file_max, _ports, _time_wait, _memory, _cgroup_memory, _queues, _conntrack, _tcp_mem)
    found = [check for row in (*rows, _epoll, _processes, _cpu) for check in row(plan, spread, limits)]
    return [check for check in found if plan.has_ports or check.code not in _TCP_CODES]


def far_checks(plan: Plan, limits: Limits) -> list[Check]:
    """The checks of a remote server's host, with one end of each connection: as :func:`host_checks`, with other codes."""
    # It has no process and no source address of ours.
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


def _ends(spread: Spread) -> int:
    return 2 if spread.local else 1


def _nofile(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    # Workers take whole batches in turn, so worker 0 never has fewer than another.
    fullest = share(plan.connections, plan.batch, spread.workers, 0)
    detail = (
        f"{format_count(plan.connections)} connections in {format_many(spread.workers, 'process')}: {format_count(fullest)} in "
        f"the fullest, plus {OWN_DESCRIPTORS} for asyncli itself"
    )
    have, need, what = limits.nofile_hard, fullest + OWN_DESCRIPTORS, "descriptors per process (RLIMIT_NOFILE)"
    raise_it = "ulimit -Hn " if limits.superuser else "sudo prlimit --pid $$ --nofile="
    remedy = "" if have is None else f"{_smaller_shares(plan, have)}; or {raise_it}{need}"
    yield limit("nofile", what, "descriptors", have, need, source="RLIMIT_NOFILE", detail=detail, remedy=remedy)


def _smaller_shares(plan: Plan, nofile: int) -> str:
    """The flag that keeps each process below ``nofile`` descriptors."""
    room = max(1, nofile - OWN_DESCRIPTORS)
    # One process opens a whole batch.
    if plan.batch > room:
        return f"--batch {max(1, room // 2)}"
    return f"--workers {workers_needed(plan.connections, nofile, 1, plan.batch)}, or leave --workers out"


def _nr_open(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what = "maximum of the descriptor limit (fs.nr_open)"
    need = share(plan.connections, plan.batch, spread.workers, 0) + OWN_DESCRIPTORS
    remedy = f"leave --workers out, or {limits.sudo}sysctl -w fs.nr_open={need}"
    yield limit("nr_open", what, "descriptors", limits.nr_open, need, source="/proc/sys/fs/nr_open", remedy=remedy)


def _file_max(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    what, ends = "open files of all programs (fs.file-max)", _ends(spread)
    if limits.file_max is None or limits.files_open is None:
        yield limit("file_max", what, "files", None, None, source="/proc/sys/fs/file-max or file-nr")
        return
    need = limits.files_open + plan.connections * ends + spread.workers * OWN_DESCRIPTORS
    detail = f"{format_count(limits.files_open)} open now, {ends} per connection{' (both ends)' if spread.local else ''}"
    # CAP_SYS_ADMIN bypasses this limit, but the server may run as an ordinary user.
    short: Verdict = "warn" if limits.superuser else "short"
    remedy = f"{limits.sudo}sysctl -w fs.file-max={_round_up(need)}"
    yield limit("file_max", what, "files", limits.file_max, need, short=short, detail=detail, remedy=remedy)


# From this kernel on a connect past half of the ports takes 117 us instead of 47; before it may take milliseconds.
_FAST_PORT_SEARCH = (6, 8)


def _ports(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have, need = spread.capacity, plan.connections
    detail = (
        f"{format_many(max(1, len(spread.sources)), 'source')} x {format_many(len(spread.destinations), 'destination')} x "
        f"{format_count(spread.ports)} ports = {format_count(have)}"
    )
    if need <= have * HALF or (need <= have and limits.kernel is not None and limits.kernel >= _FAST_PORT_SEARCH):
        yield Check("ports", "local ports", "ok", have, need, "ports", detail)
        return
    if need <= have:
        verdict: Verdict = "warn"
        detail += "; before Linux 6.8 a connect past half of them is slow (30 ms at 30,000)"
    else:
        verdict = "short"
        detail += "; keep half of them free, so that a connect finds one quickly"
    # A server in another network namespace of this host has separate ports.
    elsewhere = not spread.local or spread.route is not None
    remedy = client_port_remedy(plan, spread, limits) if elsewhere else _more_local_ports(plan, spread, limits)
    yield Check("ports", "local ports", verdict, have, need, "ports", detail, remedy)


def _more_local_ports(plan: Plan, spread: Spread, limits: Limits) -> str:
    sources, destinations = max(1, len(spread.sources)), max(1, len(spread.destinations))
    wanted = sources_wanted(plan.connections, destinations, max(1, spread.ports))
    remedies = [f"give {wanted} addresses of this host with --source"]
    if plan.sources:
        remedies.insert(0, "leave --source out")
    elif spread.destinations and all(one.address == "::1" for one in spread.destinations):
        # ::1 is one address, 127.0.0.0/8 has 16 million.
        remedies = ["aim at 127.0.0.1 instead of ::1"]
    more_urls = math.ceil(plan.connections / (max(1, sources * spread.ports) * HALF))
    remedies.append(f"let the server listen on {more_urls} ports and give {more_urls} URLs")
    if limits.ports is None or limits.ports < 50_000:
        remedies.append(f'{limits.sudo}sysctl -w net.ipv4.ip_local_port_range="{WIDEST}"')
    return "; or ".join(remedies)


def _time_wait(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if plan.connections > spread.capacity:
        return  # _ports reports this
    have = None
    if limits.tcp_tw is not None:
        loopback = all(ip_address(one.address).is_loopback for one in spread.destinations)
        reuse = limits.tcp_tw_reuse == 1 or (limits.tcp_tw_reuse == 2 and loopback)
        have = spread.capacity if reuse else max(0, spread.capacity - limits.tcp_tw)
    # Only sockets on our own address pairs count, for a minute at most: never a certain failure.
    yield limit(
        "time_wait", "ports not in TIME_WAIT", "ports", have, plan.connections, short="warn", source="/proc/net/sockstat",
        detail=f"{format_count(limits.tcp_tw or 0)} sockets in TIME_WAIT on this host, tcp_tw_reuse {limits.tcp_tw_reuse}",
        remedy=f"wait 60 s, or {limits.sudo}sysctl -w net.ipv4.tcp_tw_reuse=1",
    )  # fmt: skip


def kernel_bytes_per_end(plan: Plan) -> int:
    return KERNEL_BYTES_PER_END if plan.has_ports else KERNEL_BYTES_PER_UNIX_END


def _server_bytes(plan: Plan) -> int:
    return SERVER_BYTES + plan.streams * STREAM_BYTES


def predicted_bytes(plan: Plan, spread: Spread) -> int:
    """The predicted memory of the run on this host, in bytes: see the constants."""
    each = kernel_bytes_per_end(plan) * _ends(spread) + GENERATOR_BYTES + (_server_bytes(plan) if spread.local else 0)
    return plan.connections * each + spread.workers * WORKER_BYTES + SESSION_BYTES


def _prediction(parts: str) -> str:
    return f"predicted per connection: {parts} (Linux 6.18, nginx 1.22); another server may need far more"


def _prediction_here(plan: Plan, spread: Spread) -> str:
    times, server = ("2 x ", f" + {_server_bytes(plan):,} B of nginx") if spread.local else ("", "")
    return _prediction(f"{times}{kernel_bytes_per_end(plan):,} B of kernel{server} + {GENERATOR_BYTES} B of asyncli")


def _memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have, need = limits.memory_available, predicted_bytes(plan, spread)
    server = ", for a server as light as nginx" if spread.local else " on this host, without the server"
    what = f"memory available{server}"
    yield _memory_check(plan, "memory", what, have, need, _prediction_here(plan, spread))


def _far_memory(plan: Plan, limits: Limits) -> Iterator[Check]:
    need = plan.connections * (kernel_bytes_per_end(plan) + _server_bytes(plan))
    detail = _prediction(f"{kernel_bytes_per_end(plan):,} B of kernel + {_server_bytes(plan):,} B of nginx")
    yield _memory_check(plan, "memory", "memory available", limits.memory_available, need, detail)


def _cgroup_memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if limits.cgroup_memory_limit is None or limits.cgroup_memory_used is None:
        # Without a limit or a memory controller there is nothing to exceed.
        return
    have, need = max(0, limits.cgroup_memory_limit - limits.cgroup_memory_used), predicted_bytes(plan, spread)
    detail = (
        f"limit {format_bytes(limits.cgroup_memory_limit)}, {format_bytes(limits.cgroup_memory_used)} in use; "
        f"a server outside this cgroup does not count; {_prediction_here(plan, spread)}"
    )
    check = _memory_check(plan, "cgroup_memory", "memory left in the cgroup", have, need, detail)
    if check.verdict != "ok":
        more = f"raise the container's memory limit by {format_bytes(need - have * _COMFORTABLE)}"
        # ``need`` includes the server's half, and the server may be in another cgroup.
        verdict: Verdict = "warn" if spread.local and need / 2 <= have else check.verdict
        check = msgspec.structs.replace(check, verdict=verdict, remedy=f"{more}; {check.remedy}")
    yield check


def _memory_check(plan: Plan, code: str, what: str, have: int | None, need: int, detail: str) -> Check:
    if have is None:
        return limit(code, what, "bytes", None, need, source="MemAvailable of /proc/meminfo")
    if need <= have * _COMFORTABLE:
        return Check(code, what, "ok", have, need, "bytes", detail)
    fits = max(1, int(plan.connections * have * _COMFORTABLE / need))
    return Check(code, what, "short" if need > have else "warn", have, need, "bytes", detail, f"-c {fits}, or free some memory")


def _queues(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if spread.local:
        yield from _accept_queues(plan, limits)


def _accept_queues(plan: Plan, limits: Limits) -> Iterator[Check]:
    """The accept and SYN queues of the server's host."""
    need = plan.asked_per_s * STALL_S
    for code, meaning, have, name in (
        ("somaxconn", "accept queue", limits.somaxconn, "net.core.somaxconn"),
        ("syn_backlog", "SYN queue", limits.syn_backlog, "net.ipv4.tcp_max_syn_backlog"),
    ):
        detail = f"{format_count(plan.asked_per_s)} connects/s while the server accepts none for {STALL_S:g} s"
        remedy = f"{limits.sudo}sysctl -w {name}={_round_up(need)} and the server's backlog= to match; or a longer --interval"
        what = f"{meaning} ({name})"
        yield limit(code, what, "connections", have, need, short="warn", source=name, detail=detail, remedy=remedy)


def _conntrack(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have, count = limits.conntrack_max, limits.conntrack_count
    if have is None or count is None:
        return  # the module is not loaded, so there is nothing to exceed
    what = "tracked connections (nf_conntrack_max)"
    # TIME_WAIT sockets stay tracked for two minutes: if they have no entries, nothing is tracked.
    if count == 0 and limits.tcp_tw:
        detail = "the module is loaded but tracks nothing: sockets in TIME_WAIT have no entry"
        yield Check("conntrack", what, "ok", have, None, "entries", detail)
        return
    need = count + plan.connections
    # A loaded module may track nothing.
    yield limit(
        "conntrack", what, "entries", have, need, short="warn",
        detail=f"{format_count(count)} now, plus each connection if a rule tracks it; a full table drops packets",
        remedy=f"{limits.sudo}sysctl -w net.netfilter.nf_conntrack_max={_round_up(need)}, or a NOTRACK rule",
    )  # fmt: skip


def _tcp_mem(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    waiting = min(plan.connections, beats_per_s(plan) * STALL_S + plan.asked_per_s * STALL_S) * _ends(spread)
    need = (limits.tcp_used_pages or 0) + math.ceil(waiting)
    low, pressure, high = limits.tcp_mem_pages or (0, None, 0)
    yield limit(
        "tcp_mem", "TCP buffer pages below pressure (net.ipv4.tcp_mem)", "pages", pressure, need, short="warn",
        source="/proc/sys/net/ipv4/tcp_mem", detail=f"a page for each end with data in flight after a stall of {STALL_S:g} s",
        remedy=f'{limits.sudo}sysctl -w net.ipv4.tcp_mem="{max(low, need)} {2 * need} {max(high, 3 * need)}"',
    )  # fmt: skip


def _epoll(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have, need = limits.epoll_watches, plan.connections * _ends(spread)
    both = have is not None and plan.connections <= have < need
    yield limit(
        "epoll_watches", "epoll watches per user (fs.epoll.max_user_watches)", "watches", have, need,
        short="warn" if both else "short", source="/proc/sys/fs/epoll/max_user_watches",
        detail="both ends count if the server runs as the same user" if both else "",
        remedy=f"{limits.sudo}sysctl -w fs.epoll.max_user_watches={_round_up(need)}",
    )  # fmt: skip


def _processes(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    """The limit on processes that leaves the least room. Threads count as processes in each."""
    need = spread.workers + _OTHER_PROCESSES
    found: list[tuple[int, str, str]] = []
    if limits.pids_limit is not None and limits.pids_used is not None:
        left = max(0, limits.pids_limit - limits.pids_used)
        found.append((left, "left in the pids cgroup", "raise the container's --pids-limit (systemd: TasksMax=)"))
    if limits.threads_max is not None:
        found.append((limits.threads_max, "kernel.threads-max", f"{limits.sudo}sysctl -w kernel.threads-max={_round_up(need)}"))
    if limits.nproc is not None and not limits.superuser:
        found.append((limits.nproc, "RLIMIT_NPROC", f"ulimit -u {_round_up(need)}"))
    have, detail, remedy = min(found, default=(None, "", ""))
    if have is not None and have >= NO_LIMIT:
        have, detail = NO_LIMIT, "no limit"
    source = "pids.max, threads-max and RLIMIT_NPROC"
    yield limit("processes", "processes", "processes", have, need, source=source, detail=detail, remedy=remedy)


def _cpu(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    for code, event, per_cpu, need, cost in (
        ("heartbeat_rate", "heartbeat", BEATS_PER_CPU_S, beats_per_s(plan), "17 us of CPU per heartbeat at full load"),
        ("connect_rate", "connect", CONNECTS_PER_CPU_S, plan.asked_per_s, "50 to 117 us of CPU per connect at full load"),
    ):
        have, detail, flag = None, "", ""
        if limits.cpu_time is not None:
            have = per_cpu * limits.cpu_time / _ends(spread)
            detail = f"{limits.cpu_time:g} CPUs, {cost}" + (", and the server needs about as much" if spread.local else "")
            detail += f"; {event}s will be late, and the lateness is recorded" if need > have else ""
            longer = f"--interval {math.ceil(1e3 * plan.batch / have)}ms"
            flag = longer if code == "connect_rate" else f"--keepalive {math.ceil(4 * plan.connections / have)}"
        yield limit(
            code, f"{event} rate (CPU)", "a second", have, need, short="warn", source="the number of usable CPUs",
            detail=detail, remedy=f"{flag} or longer, or more CPUs",
        )  # fmt: skip


# Fully used CPUs take 1.7 times as long per connection as a single handshake with its connect: two CPUs do 870 a second where
# one handshake took 1.3 ms (bench/README.md).
_BUSY = 1.7


def handshake_rate(plan: Plan, spread: Spread, limits: Limits, handshake_s: float, cpu_s: float) -> Check:
    """Check the ramp against one measured TLS handshake, which took ``handshake_s`` and ``cpu_s`` of our CPU time.

    Its ends take turns: with both on an idle host, ``handshake_s`` is the CPU time of both. At the ramp's end heartbeats need
    CPU time as well.
    """
    one_s = _BUSY * (handshake_s if spread.local else cpu_s)
    have, remedy = None, ""
    # All must be done within the ramp and the permitted lateness of a batch: a few connections need no rate.
    need = math.ceil(plan.connections / (plan.connections / plan.asked_per_s + _LATE_S))
    detail = f"{1e3 * one_s:.2g} ms of CPU per handshake{' at both ends' if spread.local else ' here'}, measured once"
    if limits.cpu_time is not None:
        beats = beats_per_s(plan)
        have = int(max(0.0, limits.cpu_time - beats * _ends(spread) / BEATS_PER_CPU_S) / one_s)
        detail += f", on {limits.cpu_time:g} CPUs that also do {_round_up(beats):,} heartbeats a second"
        detail += "; a faster ramp is late, and the lateness is recorded" if need > have else ""
        remedy = f"--ramp {max(1, int(0.7 * have))}/s or less, or more CPUs"
    return limit(
        "handshake_rate", "TLS handshake rate (CPU)", "a second", have, need, short="warn",
        source="the number of usable CPUs", detail=detail, remedy=remedy,
    )  # fmt: skip


def _round_up(number: float) -> int:
    """Rounded up to two digits."""
    step = int(10 ** max(0, len(str(math.ceil(number))) - 2))
    return math.ceil(number / step) * step
