"""Checks a plan against the host's limits: one :class:`Check` per limit. Pure.

With "short" the run is certain to fail; with "warn" it may fail or slow down. Each has the flag or
command that fixes it. The rules come from the kernel's documentation, and from measurements named
at their use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from asyncli.engine.spread import OWN_DESCRIPTORS, Spread, share, sources_wanted, workers_needed
from asyncli.model.plan import Plan
from asyncli.model.planned_events import UNREAD_BYTES
from asyncli.model.records import FAR, Check
from asyncli.model.units import format_bytes, format_count, format_many
from asyncli.preflight.demand import STALL_S, beats_per_s, ends
from asyncli.preflight.host_limits import NO_LIMIT, Limits
from asyncli.preflight.limit import Verdict, limit, round_up
from asyncli.preflight.memory_checks import cgroup_memory, host_memory, server_memory
from asyncli.preflight.rate_checks import rates
from asyncli.preflight.sources import HALF, WIDEST, client_port_remedy

# Our processes beside the workers: session, host, and the collector's few.
_OTHER_PROCESSES = 8
_TCP_CODES = (
    "ports",
    "time_wait",
    "event_ports",
    "syn_backlog",
    "conntrack",
    "tcp_mem",
    "stall_memory",
)


def host_checks(plan: Plan, spread: Spread, limits: Limits) -> list[Check]:
    """One check for each limit of this host, in the order in which they are usually reached."""
    checks: list[Check] = []
    for checks_of in _CHECKS:
        checks += checks_of(plan, spread, limits)
    if plan.has_ports:
        return checks
    return [check for check in checks if check.code not in _TCP_CODES]


def far_checks(plan: Plan, limits: Limits) -> list[Check]:
    """The checks of a remote server's host, with one end of each connection: as
    :func:`host_checks`, with other codes.
    """
    # It has no process and no source address of ours.
    alone = Spread(destinations=(), sources=(), workers=0, local=False, ports=0)
    checks = [
        *_file_max(plan, alone, limits),
        *server_memory(plan, limits),
        *_accept_queues(plan, limits),
        *_conntrack(plan, alone, limits),
        *_tcp_mem(plan, alone, limits),
        *_epoll(plan, alone, limits),
    ]
    return [_on_the_servers_host(check) for check in checks]


def _on_the_servers_host(check: Check) -> Check:
    remedy = ""
    if check.remedy:
        remedy = f"on the server's host: {check.remedy}"
    return msgspec.structs.replace(
        check, code=f"{FAR}{check.code}", what=f"{check.what}, on the server's host", remedy=remedy
    )


def _nofile(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    # Workers take whole batches in turn, so worker 0 never has fewer than another.
    fullest = share(plan.most_open, plan.batch, spread.workers, 0)
    need = fullest + OWN_DESCRIPTORS
    connections = format_count(plan.most_open)
    processes = format_many(spread.workers, "process")
    raise_it = "ulimit -Hn " if limits.superuser else "sudo prlimit --pid $$ --nofile="
    remedy = ""
    if limits.nofile_hard is not None:
        remedy = f"{_smaller_shares(plan, limits.nofile_hard)}; or {raise_it}{need}"
    yield limit(
        "nofile",
        "descriptors per process (RLIMIT_NOFILE)",
        "descriptors",
        limits.nofile_hard,
        need,
        source="RLIMIT_NOFILE",
        detail=f"{connections} connections in {processes}: {format_count(fullest)} in the fullest, "
        f"plus {OWN_DESCRIPTORS} for asyncli itself",
        remedy=remedy,
    )


def _smaller_shares(plan: Plan, nofile: int) -> str:
    """The flag that keeps each process below ``nofile`` descriptors."""
    room = max(1, nofile - OWN_DESCRIPTORS)
    # One process opens a whole batch.
    if plan.batch > room:
        return f"--batch {max(1, room // 2)}"
    workers = workers_needed(plan.most_open, nofile, 1, plan.batch)
    return f"--workers {workers}, or leave --workers out"


def _nr_open(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    need = share(plan.most_open, plan.batch, spread.workers, 0) + OWN_DESCRIPTORS
    yield limit(
        "nr_open",
        "maximum of the descriptor limit (fs.nr_open)",
        "descriptors",
        limits.nr_open,
        need,
        source="/proc/sys/fs/nr_open",
        remedy=f"leave --workers out, or {limits.sudo}sysctl -w fs.nr_open={need}",
    )


def _file_max(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    subject = "open files of all programs (fs.file-max)"
    if limits.file_max is None or limits.files_open is None:
        source = "/proc/sys/fs/file-max or file-nr"
        yield limit("file_max", subject, "files", None, None, source=source)
        return
    of_connections = plan.connections * ends(spread)
    need = limits.files_open + of_connections + spread.workers * OWN_DESCRIPTORS
    detail = f"{format_count(limits.files_open)} open now, 1 per connection"
    if spread.local:
        detail = f"{format_count(limits.files_open)} open now, 2 per connection (both ends)"
    # CAP_SYS_ADMIN bypasses this limit, but the server may run as an ordinary user.
    short: Verdict = "warn" if limits.superuser else "short"
    yield limit(
        "file_max",
        subject,
        "files",
        limits.file_max,
        need,
        short=short,
        detail=detail,
        remedy=f"{limits.sudo}sysctl -w fs.file-max={round_up(need)}",
    )


# From this kernel on a connect past half of the ports takes 117 us instead of 47; before it may
# take milliseconds.
_FAST_PORT_SEARCH = (6, 8)


def _ports(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have = spread.capacity
    need = plan.connections
    sources = format_many(max(1, len(spread.sources)), "source")
    destinations = format_many(len(spread.destinations), "destination")
    ports = f"{format_count(spread.ports)} ports"
    detail = f"{sources} x {destinations} x {ports} = {format_count(have)}"
    verdict: Verdict
    if need > have:
        verdict = "short"
        detail += "; keep half of them free, so that a connect finds one quickly"
    elif need > have * HALF and not _searches_ports_fast(limits):
        verdict = "warn"
        detail += "; before Linux 6.8 a connect past half of them is slow (30 ms at 30,000)"
    else:
        yield Check("ports", "local ports", "ok", have, need, "ports", detail)
        return
    if spread.local and spread.route is None:
        remedy = _more_local_ports(plan, spread, limits)
    else:
        # A server in another network namespace of this host has separate ports.
        remedy = client_port_remedy(plan, spread, limits)
    yield Check("ports", "local ports", verdict, have, need, "ports", detail, remedy)


def _searches_ports_fast(limits: Limits) -> bool:
    return limits.kernel is not None and limits.kernel >= _FAST_PORT_SEARCH


def _more_local_ports(plan: Plan, spread: Spread, limits: Limits) -> str:
    sources = max(1, len(spread.sources))
    destinations = max(1, len(spread.destinations))
    remedies = []
    if plan.sources:
        remedies.append("leave --source out")
    if not plan.sources and spread.destinations and _are_all_localhost_ipv6(spread):
        # ::1 is one address, 127.0.0.0/8 has 16 million.
        remedies.append("aim at 127.0.0.1 instead of ::1")
    else:
        wanted = sources_wanted(plan.connections, destinations, max(1, spread.ports))
        remedies.append(f"give {wanted} addresses of this host with --source")
    urls = math.ceil(plan.connections / (max(1, sources * spread.ports) * HALF))
    remedies.append(f"let the server listen on {urls} ports and give {urls} URLs")
    if limits.ports is None or limits.ports < 50_000:
        remedies.append(f'{limits.sudo}sysctl -w net.ipv4.ip_local_port_range="{WIDEST}"')
    return "; or ".join(remedies)


def _are_all_localhost_ipv6(spread: Spread) -> bool:
    return all(destination.address == "::1" for destination in spread.destinations)


def _time_wait(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if plan.connections > spread.capacity:
        return  # _ports reports this
    have = None
    if limits.tcp_tw is not None:
        have = spread.capacity
        if not _reuses_time_wait(spread, limits):
            have = max(0, spread.capacity - limits.tcp_tw)
    waiting = format_count(limits.tcp_tw or 0)
    # Only sockets on our own address pairs count, for a minute at most: never a certain failure.
    yield limit(
        "time_wait",
        "ports not in TIME_WAIT",
        "ports",
        have,
        plan.connections,
        short="warn",
        source="/proc/net/sockstat",
        detail=f"{waiting} sockets in TIME_WAIT on this host, tcp_tw_reuse {limits.tcp_tw_reuse}",
        remedy=f"wait 60 s, or {limits.sudo}sysctl -w net.ipv4.tcp_tw_reuse=1",
    )


# A port whose connection we ended by FIN is in TIME_WAIT for so long (s; TCP_TIMEWAIT_LEN).
_TIME_WAIT_S = 60.0


def _ports_of_events(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    """The ports that events of the plan take beside those of the connections: of who vanishes and
    connects anew, and of who is ended by FIN.
    """
    waiting = round(plan.connections * _most_ended_by_fin(plan))
    need = plan.most_open + waiting
    if need == plan.connections:
        return
    have = spread.capacity
    yield limit(
        "event_ports",
        "local ports for the plan's events",
        "ports",
        have,
        need,
        source="the plan",
        detail=f"{format_count(plan.most_open)} open at once, {format_count(waiting)} in TIME_WAIT "
        "within a minute",
        remedy="end connections by RST (leave how=fin out), let a minute pass between events, or "
        f"{client_port_remedy(plan, spread, limits)}",
    )


def _most_ended_by_fin(plan: Plan) -> float:
    """The greatest share of the connections that events end by FIN within a minute; of all, where
    the hold's length is not known yet.
    """
    ended = []
    for event in plan.planned_events:
        if event.how == "fin":
            is_known = event.at_share is None or plan.hold_s is not None
            ended.append((event.after_s(plan.hold_s) if is_known else 0.0, event.share))
    greatest = 0.0
    for start_s, _ in ended:
        within = [share for at_s, share in ended if start_s <= at_s < start_s + _TIME_WAIT_S]
        greatest = max(greatest, sum(within))
    return greatest


def _reuses_time_wait(spread: Spread, limits: Limits) -> bool:
    if limits.tcp_tw_reuse != 2:
        return limits.tcp_tw_reuse == 1
    # Only on loopback.
    addresses = [ip_address(destination.address) for destination in spread.destinations]
    return all(address.is_loopback for address in addresses)


def _queues(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if spread.local:
        yield from _accept_queues(plan, limits)


def _accept_queues(plan: Plan, limits: Limits) -> Iterator[Check]:
    """The accept and SYN queues of the server's host."""
    queues = (
        ("somaxconn", "accept queue", limits.somaxconn, "net.core.somaxconn"),
        ("syn_backlog", "SYN queue", limits.syn_backlog, "net.ipv4.tcp_max_syn_backlog"),
    )
    need = plan.asked_per_s * STALL_S
    connects = f"{format_count(plan.asked_per_s)} connects/s"
    for code, queue, have, name in queues:
        widen = f"{limits.sudo}sysctl -w {name}={round_up(need)}"
        yield limit(
            code,
            f"{queue} ({name})",
            "connections",
            have,
            need,
            short="warn",
            source=name,
            detail=f"{connects} while the server accepts none for {STALL_S:g} s",
            remedy=f"{widen} and the server's backlog= to match; or a longer --interval",
        )


def _conntrack(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have = limits.conntrack_max
    count = limits.conntrack_count
    if have is None or count is None:
        return  # the module is not loaded, so there is nothing to exceed
    subject = "tracked connections (nf_conntrack_max)"
    # TIME_WAIT sockets stay tracked for two minutes: if they have no entries, nothing is tracked.
    if count == 0 and limits.tcp_tw:
        detail = "the module is loaded but tracks nothing: sockets in TIME_WAIT have no entry"
        yield Check("conntrack", subject, "ok", have, None, "entries", detail)
        return
    need = count + plan.connections
    now = format_count(count)
    widen = f"{limits.sudo}sysctl -w net.netfilter.nf_conntrack_max={round_up(need)}"
    # A loaded module may track nothing.
    yield limit(
        "conntrack",
        subject,
        "entries",
        have,
        need,
        short="warn",
        detail=f"{now} now, plus each connection if a rule tracks it; a full table drops packets",
        remedy=f"{widen}, or a NOTRACK rule",
    )


def _tcp_mem(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    in_a_stall = beats_per_s(plan) * STALL_S + plan.asked_per_s * STALL_S
    waiting = min(plan.connections, in_a_stall) * ends(spread)
    need = (limits.tcp_used_pages or 0) + math.ceil(waiting)
    low, pressure, high = limits.tcp_mem_pages or (0, None, 0)
    pages = f"{max(low, need)} {2 * need} {max(high, 3 * need)}"
    yield limit(
        "tcp_mem",
        "TCP buffer pages below pressure (net.ipv4.tcp_mem)",
        "pages",
        pressure,
        need,
        short="warn",
        source="/proc/sys/net/ipv4/tcp_mem",
        detail=f"a page for each end with data in flight after a stall of {STALL_S:g} s",
        remedy=f'{limits.sudo}sysctl -w net.ipv4.tcp_mem="{pages}"',
    )


# Packets take up to twice the memory of what is in them.
_UNREAD_BYTES = 2 * UNREAD_BYTES
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stall_memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    """The kernel's memory for what clients that stall do not read: with none left it ends
    connections of anybody's (TCPAbortOnMemory).
    """
    stalled = round(plan.connections * _most_stalled(plan))
    if not stalled:
        return
    of_each = _UNREAD_BYTES
    detail = f"{format_count(stalled)} stall at once, {format_bytes(_UNREAD_BYTES)} unread for each"
    if spread.local and limits.tcp_wmem_bytes is not None:
        _, _, send_buffer = limits.tcp_wmem_bytes
        of_each += send_buffer
        detail += f" and up to {format_bytes(send_buffer)} of the server's send buffers (tcp_wmem)"
    need = (limits.tcp_used_pages or 0) + math.ceil(stalled * of_each / _PAGE_BYTES)
    low, pressure, high = limits.tcp_mem_pages or (0, 0, None)
    pages = f"{low} {max(pressure, need)} {2 * need}"
    yield limit(
        "stall_memory",
        "TCP memory for connections that stall (net.ipv4.tcp_mem)",
        "pages",
        high,
        need,
        short="warn",
        source="/proc/sys/net/ipv4/tcp_mem",
        detail=detail,
        remedy=f'have fewer stall, or {limits.sudo}sysctl -w net.ipv4.tcp_mem="{pages}"',
    )


def _most_stalled(plan: Plan) -> float:
    """The greatest share of the connections that stall at one instant; of all stalls, where the
    hold's length is not known yet.
    """
    spans = []
    for event in plan.planned_events:
        if event.do != "stall":
            continue
        is_known = event.at_share is None or plan.hold_s is not None
        start_s = event.after_s(plan.hold_s) if is_known else 0.0
        lasts_s = math.inf
        if is_known and event.for_s is not None:
            lasts_s = event.for_s
        spans.append((start_s, start_s + lasts_s, event.share))
    greatest = 0.0
    for instant_s, _, _ in spans:
        at_once = [share for start_s, end_s, share in spans if start_s <= instant_s < end_s]
        greatest = max(greatest, sum(at_once))
    return min(1.0, greatest)


def _epoll(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    have = limits.epoll_watches
    need = plan.connections * ends(spread)
    short: Verdict = "short"
    detail = ""
    if have is not None and plan.connections <= have < need:
        short = "warn"
        detail = "both ends count if the server runs as the same user"
    yield limit(
        "epoll_watches",
        "epoll watches per user (fs.epoll.max_user_watches)",
        "watches",
        have,
        need,
        short=short,
        source="/proc/sys/fs/epoll/max_user_watches",
        detail=detail,
        remedy=f"{limits.sudo}sysctl -w fs.epoll.max_user_watches={round_up(need)}",
    )


def _processes(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    """The limit on processes that leaves the least room. Threads count as processes in each."""
    need = spread.workers + _OTHER_PROCESSES
    # (room, what limits it, remedy)
    known: list[tuple[int, str, str]] = []
    if limits.pids_limit is not None and limits.pids_used is not None:
        left = max(0, limits.pids_limit - limits.pids_used)
        remedy = "raise the container's --pids-limit (systemd: TasksMax=)"
        known.append((left, "left in the pids cgroup", remedy))
    if limits.threads_max is not None:
        remedy = f"{limits.sudo}sysctl -w kernel.threads-max={round_up(need)}"
        known.append((limits.threads_max, "kernel.threads-max", remedy))
    if limits.nproc is not None and not limits.superuser:
        known.append((limits.nproc, "RLIMIT_NPROC", f"ulimit -u {round_up(need)}"))
    have, detail, remedy = min(known, default=(None, "", ""))
    if have is not None and have >= NO_LIMIT:
        have = NO_LIMIT
        detail = "no limit"
    yield limit(
        "processes",
        "processes",
        "processes",
        have,
        need,
        source="pids.max, threads-max and RLIMIT_NPROC",
        detail=detail,
        remedy=remedy,
    )


#: In the order in which they are usually reached.
_CHECKS = (
    _nofile,
    _nr_open,
    _file_max,
    _ports,
    _time_wait,
    _ports_of_events,
    host_memory,
    cgroup_memory,
    _queues,
    _conntrack,
    _tcp_mem,
    _stall_memory,
    _epoll,
    _processes,
    rates,
)
