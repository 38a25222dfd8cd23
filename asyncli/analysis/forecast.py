"""How many connections fit, and which limit comes first, extrapolated linearly.

By memory: the memory available before the first connect, less a reserve and the first use, divided
by the cost of one more; the interval is the inverted interval of the slope. The preflight read the
other limits. The length of a queue (somaxconn, the SYN backlog) bounds arrivals, not connections,
and is no limit here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from asyncli.analysis.ceiling import Ceiling, Space
from asyncli.analysis.constants import PART, REUSE_BELOW
from asyncli.analysis.cost import Costs
from asyncli.analysis.gaps import for_cost
from asyncli.analysis.server_ceilings import haproxy_ceilings, new_connections, server_ceilings
from asyncli.analysis.server_count import server_count
from asyncli.analysis.server_memory import server_memory
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import COST_NAMES, cost_in_earlier_memory, descriptors_listed
from asyncli.findings.forecast import forecast_far, forecast_unknown
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import FAR, Check, Finding
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.units import format_bytes, format_count, format_many, format_share

#: The share of the host's memory that stays free: with less the kernel reclaims heavily, and bursts
#: of buffers do not fit.
RESERVE = PART
# Descriptors that an nginx worker uses itself: listeners, logs, channel to the master, epoll.
_WORKER_DESCRIPTORS = 32
# The preflight asks for the mean and this many deviations where the kernel's hash distributes
# connections.
_DEVIATIONS = 6.0
# file-max on a fresh host is 2**63 - 1: no limit.
_NO_LIMIT = 2**60


class Forecast(msgspec.Struct):
    """``memory``: of this host, as in this run. ``server_memory``: of a host like this for the
    server alone, with the whole residual; its interval extends to none of it.

    ``ceilings``: all limits of this run, lowest first, unknown ones last. ``first``: the name of
    the lowest.
    """

    memory: Ceiling | None = None
    server_memory: Ceiling | None = None
    ceilings: list[Ceiling] = msgspec.field(default_factory=list)
    first: str | None = None


def forecast(run: Run, costs: Costs) -> tuple[Forecast, list[Finding]]:
    """The forecast of a run, and findings on what is unknown or extrapolated too far."""
    run = for_cost(run)
    checks = {check.code: check for check in run.checks}
    before = run.within((-math.inf, run.first_connect_s))
    room = _room_of_sampled_host(before, checks)
    rising = costs.rising("server_user", "behind")
    sampled_host = _without_a_line(_of_sampled_host(run, before, costs, room), rising)
    of_nginx = _slots(checks, _descriptors_each(run))
    slots = haproxy_ceilings(run) if of_nginx is None else [of_nginx]
    limits = [
        sampled_host,
        _of_client_host(run, before, costs, checks),
        _without_a_line(_server_group(run, costs), rising),
        _earlier_memory(costs),
        *slots,
        _descriptors(checks, run.plan) or _descriptors_in_use(run),
        *server_ceilings(run),
        _ports(checks, run),
    ]
    ceilings = [ceiling for ceiling in limits if ceiling is not None]
    ceilings += _of_the_host(checks, run.plan, run.sides.ends)
    if run.sides.far is not None:
        ceilings += _of_the_host(checks, run.plan, 1, FAR)
    ceilings.sort(key=_connections_or_infinite)
    forecast = Forecast(ceilings=ceilings)
    if ceilings and ceilings[0].connections is not None:
        forecast.first = ceilings[0].name
    if _has_both_ends(run):
        forecast.memory = sampled_host
    if room is not None and run.sides.far is None:
        forecast.server_memory = _without_a_line(
            _server_alone(costs, before, room, sampled_host), rising
        )
    findings = [
        *_unknown_memory(run, costs, room, sampled_host),
        *_unknown_limits_of_server(run, slots, ceilings),
        *_far(forecast, run.held.values),
    ]
    return forecast, findings


def _has_both_ends(run: Run) -> bool:
    """Whether server and clients are on one host."""
    return run.sides.ends == 2


def _connections_or_infinite(ceiling: Ceiling) -> float:
    return math.inf if ceiling.connections is None else ceiling.connections


def _unknown_memory(
    run: Run, costs: Costs, room: Space | None, sampled_host: Ceiling | None
) -> list[Finding]:
    """Why the number of connections by memory is unknown."""
    if room is None:
        return [forecast_unknown(["memory"], "available_not_read", "")]
    if not _has_both_ends(run) or (
        sampled_host is not None and sampled_host.connections is not None
    ):
        return []
    if sampled_host is not None:
        return [forecast_unknown(["memory"], "interval_too_wide", sampled_host.how)]
    if costs.host_total is not None and costs.host_total.of_levels:
        return [forecast_unknown(["memory"], "of_two_levels", "")]
    return [forecast_unknown(["memory"], "cost_not_known", "")]


def _unknown_limits_of_server(
    run: Run, slots: Sequence[Ceiling], ceilings: Sequence[Ceiling]
) -> list[Finding]:
    """Which of the server's own limits are unknown."""
    known = {ceiling.name for ceiling in ceilings}
    name_of_slots = slots[0].name if slots else "worker_connections"
    missing = [name for name in (name_of_slots, "descriptors") if name not in known]
    if not missing:
        return []
    if run.place.server_found or not _has_both_ends(run):
        return [forecast_unknown(missing, "configuration_not_read", "")]
    return [forecast_unknown(missing, "process_not_named", "")]


def _far(found: Forecast, held: Sequence[float]) -> list[Finding]:
    most = max(held, default=0.0)
    memory = next(
        (
            one
            for one in (found.memory, found.server_memory)
            if one is not None and one.connections is not None
        ),
        None,
    )
    if (
        memory is None
        or memory.connections is None
        or most <= 0
        or PART * memory.connections <= most
    ):
        return []
    many = memory.rounded(memory.connections)
    return [forecast_far(many, memory.rounded(many / most), math.ceil(PART * many))]


# Memory.


def _without_a_line(ceiling: Ceiling | None, rising: Sequence[str]) -> Ceiling | None:
    """A limit of memory without a number, if a cost of a connection rises with them: no line says
    where it is reached.
    """
    if ceiling is None or not rising:
        return ceiling
    names = ", ".join(COST_NAMES[name] for name in rising)
    return Ceiling(
        ceiling.name,
        None,
        None,
        f"{ceiling.how}; but the cost in {names} rises with the connections",
    )


_BOTH_ENDS = "this host, as in this test (server, asyncli and both ends of each connection on it)"
_OUR_END = "with asyncli and its end of each connection"
_SERVER_END = "the server's host, with its end of each connection, all that the host pays for one"


def _room_of_sampled_host(before: Run, checks: Mapping[str, Check]) -> Space | None:
    """The room of the host that is sampled: of the server's, else of this one."""
    available = before.series(metrics.HOST_AVAILABLE_BYTES)
    far = before.sides.far
    if far is not None:
        return _room(available, far.memory_bytes, None)
    return _room(available, before.place.memory_bytes, checks.get("cgroup_memory"))


def _of_sampled_host(run: Run, before: Run, costs: Costs, room: Space | None) -> Ceiling | None:
    if _has_both_ends(run):
        name, words = "memory", _BOTH_ENDS
    elif run.sides.server:
        name, words = "server_host", _SERVER_END
    else:
        name, words = "generator", f"this host, {_OUR_END}"
    used = before.series(metrics.HOST_USED_BYTES)
    listing = before.series(metrics.KERNEL_LISTING_BYTES)
    is_listed = any(finding.code == descriptors_listed.code for finding in costs.findings)
    return _of_host(name, words, costs.host_total, room, used, listing, listed=is_listed)


def _of_client_host(
    run: Run, before: Run, costs: Costs, checks: Mapping[str, Check]
) -> Ceiling | None:
    """asyncli's own host, if an agent samples the server's."""
    if run.sides.far is None:
        return None
    available = before.series(before.of_ours(metrics.HOST_AVAILABLE_BYTES))
    used = before.series(before.of_ours(metrics.HOST_USED_BYTES))
    room = _room(available, before.place.memory_bytes, checks.get("cgroup_memory"))
    return _of_host(
        "generator", f"asyncli's own host, {_OUR_END}", costs.client_total, room, used, Series()
    )


def _room(available: Series, total: float | None, cgroup: Check | None) -> Space | None:
    """The room on a host with ``total`` bytes, by the memory that was ``available`` in the
    baseline.
    """
    if not available.values:
        return None
    free = statistics.median(available.values)
    reserve = RESERVE * (total or free)
    room = max(0.0, free - reserve)
    if cgroup is not None and cgroup.have is not None and cgroup.have < room:
        return Space(
            cgroup.have,
            f"{format_bytes(cgroup.have)} left in the cgroup, which is less than the host has",
        )
    of = "the memory" if total else "that"
    less = f"less a reserve of {format_bytes(reserve)} ({format_share(RESERVE)} of {of})"
    return Space(room, f"{format_bytes(free)} available before the first connect, {less}")


def _of_host(
    name: str,
    where: str,
    total: Cost | None,
    room: Space | None,
    used: Series,
    listing: Series,
    *,
    listed: bool = False,
) -> Ceiling | None:
    """A host's memory as a limit. From the baseline: ``used`` memory and ``listing``, the inodes of
    /proc. ``listed``: these grow with the connections.
    """
    if total is None or total.of_levels or room is None:
        return None
    room = room.less_once(
        total.fixed_bytes
        - _level(used)
        + (statistics.median(listing.values) if listing.values else 0.0)
    )
    how = f"{where}: {room.how}, by {total.bytes_per_connection:,.0f} B a connection in all"
    if listed:
        how += ", without the inodes of /proc that another program adds here (see the findings)"
    return room.ceiling(name, total.bytes_per_connection, total.ci95, how)


def _earlier_memory(costs: Costs) -> Ceiling | None:
    """Memory that the server has in advance, if its connections may use it: nobody knows how many
    fit there.
    """
    for finding in costs.findings:
        if finding.code == cost_in_earlier_memory.code:
            return Ceiling("earlier_memory", None, None, finding.evidence)
    return None


def _server_group(run: Run, costs: Costs) -> Ceiling | None:
    """The memory limit of the server's control group, such as a container's; None without one.

    By the rise of the group's own memory, which includes what the kernel charges it for; where that
    is hidden, by the server's cost, which is a part of it.
    """
    limit = run.series(metrics.SERVER_GROUP_LIMIT_BYTES).last()
    used = run.series(metrics.SERVER_GROUP_BYTES).between(-math.inf, run.first_connect_s)
    if limit is None or not used.values:
        return None
    how = f"the server's control group may take {format_bytes(limit)}"
    cost, of_what = costs.server_group, "of its memory"
    if cost is None or cost.ci95[0] <= 0:
        cost, of_what = (
            costs.server_user,
            "of the server's own (what the kernel charges the group for is unknown)",
        )
    if cost is None:
        return Ceiling(
            "server_group", None, None, f"{how}; what a connection costs in it is unknown"
        )
    level = statistics.median(used.values)
    room = Space(
        max(0.0, limit - level), f"{how}, and had {format_bytes(level)} before the first connect"
    )
    how = f"{room.how}, by {cost.bytes_per_connection:,.0f} B a connection {of_what}"
    return room.ceiling("server_group", cost.bytes_per_connection, cost.ci95, how)


def _level(metric: Series) -> float:
    """The median; infinite without readings, so that nothing is a step above it."""
    return statistics.median(metric.values) if metric.values else math.inf


def server_ends(costs: Costs) -> int:
    """The ends of a connection on the server's host if its clients are elsewhere.

    Behind it on this host is a further end; a backend elsewhere has that end there.
    """
    return costs.ends - 1 if costs.behind_programs else (costs.ends + 1) // 2


def _server_alone(costs: Costs, before: Run, room: Space, here: Ceiling | None) -> Ceiling | None:
    """A host like this for the server alone: its memory and its end of each connection, for a proxy
    both ends.

    The server's part of the residual is unknown: the number includes all of it, the interval
    extends to none. If ``here``, the whole host's memory, is a number, neither exceeds what that
    took less the ends that go elsewhere.
    """
    user, kernel, rest, total = costs.server_user, costs.kernel, costs.residual, costs.host_total
    if user is None or kernel is None or user.of_levels:
        return None
    if costs.behind_programs and (costs.behind is None or costs.behind.of_levels):
        # What is behind the server is needed too, and unknown.
        return None
    if rest is None:
        # Other programs may work for the server: a cache, a database.
        return Ceiling(
            "server_memory",
            None,
            None,
            "a server with as much memory: what is left over of a connection is unknown",
        )
    ends = server_ends(costs)
    in_kernel = ends * kernel.bytes_per_connection
    server, kernel_bytes = (
        server_memory(before, costs.holders)[0],
        before.series(metrics.KERNEL_SOCKET_BYTES),
    )
    there = _level(server) + _level(kernel_bytes) * ends / costs.ends
    room = room.less_once(user.fixed_bytes + ends * kernel.fixed_bytes - there)
    behind = costs.behind.bytes_per_connection if costs.behind is not None else 0.0
    own = user.bytes_per_connection + behind + in_kernel
    # The errors may be correlated: add them.
    half = (
        user.half_width
        + ends * kernel.half_width
        + (costs.behind.half_width if costs.behind is not None else 0.0)
    )
    residual, most = max(0.0, rest.bytes_per_connection), max(0.0, rest.ci95[1])
    how = (
        f"a server with as much memory and its clients elsewhere: {room.how}, by {own + residual:,.0f} B a connection "
        f"({user.bytes_per_connection:,.0f} in the server, {in_kernel:,.0f} in the kernel for its end{'s' * (ends > 1)}"
    )
    how += f", {behind:,.0f} behind it" if costs.behind_programs else ""
    how += f", {residual:,.0f} of what is left over)" if residual else ")"
    if most:
        how += f"; the interval includes 0 to {most:,.0f} B of what is left over"
    each, low, high = own + residual, own - half, own + half + most
    if total is not None and here is not None and here.connections is not None:
        elsewhere = costs.ends - ends
        each = min(each, total.bytes_per_connection - elsewhere * kernel.bytes_per_connection)
        low = max(0.0, total.ci95[0] - elsewhere * kernel.ci95[1]) if each < low else low
        high = min(high, total.ci95[1] - elsewhere * kernel.ci95[0])
        how += f"; at most {high:,.0f} B, what this host took without the clients' end{'s' * (elsewhere > 1)}"
    return room.ceiling("server_memory", each, (low, high), how)


# Limits that the preflight read.


def _descriptors_each(run: Run) -> int:
    """How many descriptors of the server each connection took: two of a proxy; 1 where unknown."""
    used = run.series(metrics.SERVER_DESCRIPTORS_OPEN)
    before, after = used.last(until_s=run.first_connect_s), used.last(until_s=run.stop_s)
    count = server_count(run)
    most = max(run.held.values) if not len(count) else max(count.values)
    if before is None or after is None or not most:
        return 1
    return max(1, round((after - before) / most))


def _slots(checks: Mapping[str, Check], each: int) -> Ceiling | None:
    check = checks.get("nginx_worker_connections")
    if check is None or check.have is None:
        return None
    how = (
        f"{format_count(check.have)} slots of nginx (worker_connections); it closes idle clients to keep a sixteenth free; if "
        "its workers get equal shares"
    )
    if each > 1:
        how += f"; each connection takes {each}, as of a proxy"
    return Ceiling(
        "worker_connections", math.floor(check.have * (1 - REUSE_BELOW) / each), None, how
    )


def _descriptors(checks: Mapping[str, Check], plan: Plan) -> Ceiling | None:
    check = checks.get("nginx_nofile")
    if check is None or check.have is None or check.need is None:
        return None
    workers = workers_of(check.need, plan.connections)
    each = max(0.0, check.have - _WORKER_DESCRIPTORS)
    how = (
        f"{format_many(workers, 'worker')} of nginx x {format_count(check.have)} descriptors, less "
        f"{_WORKER_DESCRIPTORS} that each needs itself; if they get equal shares"
    )
    return Ceiling("descriptors", workers * each, None, how)


def _descriptors_in_use(run: Run) -> Ceiling | None:
    """By RLIMIT_NOFILE of the server's process with the most descriptors, and their rise with the
    connections.
    """
    limit, used = (
        run.series(name) for name in (metrics.SERVER_DESCRIPTORS_LIMIT, metrics.SERVER_DESCRIPTORS)
    )
    processes = run.series(metrics.SERVER_PROCESSES)
    may, start = limit.last(), run.first_connect_s
    ours, most = max(run.held.values), new_connections(run)
    begun, ended = (
        processes.last(until_s=start),
        max(processes.between(start, math.inf).values, default=0.0),
    )
    if may is None or not most or not ended:
        return None
    how = f"a process of the server may have {format_count(may)} descriptors open (RLIMIT_NOFILE)"
    # Preforked processes count as begun.
    if begun is not None and 2 * (ended - begun) >= most:
        return Ceiling(
            "descriptors", None, None, f"{how}; no limit here: each connection has its own process"
        )
    before, then = used.last(until_s=start), max(used.between(start, math.inf).values, default=0.0)
    if before is None:  # Linux before 6.2, or a server that was started before the run was resumed
        how += f"; one per connection in {format_count(ended)} processes; how many were open before the first connect is unknown"
        return Ceiling("descriptors", ended * may, None, how)
    if then <= before:
        return Ceiling(
            "descriptors",
            None,
            None,
            f"{how}; no limit here: connections take none of its fullest process",
        )
    how += (
        f"; the fullest had {format_count(before)} before the first connect, and {format_count(then)} with "
        f"{format_count(most)} connections{' of all clients' if most > ours else ''}: extrapolated linearly"
    )
    return Ceiling("descriptors", math.floor(most * (may - before) / (then - before)), None, how)


def workers_of(need: float, connections: int) -> int:
    """The number of workers among which the preflight divided ``connections``: one needs m + 6
    root(m) for a mean of m.
    """
    share = need - _WORKER_DESCRIPTORS
    if share >= connections:
        return 1
    mean = (math.sqrt(_DEVIATIONS**2 / 4 + max(0.0, share)) - _DEVIATIONS / 2) ** 2
    return max(1, round(connections / max(1.0, mean)))


def _ports(checks: Mapping[str, Check], run: Run) -> Ceiling | None:
    check = checks.get("ports")
    if check is None or check.have is None:
        return None
    if _grows_sources(run):
        how = f"{check.detail}; no limit here: on loopback asyncli uses as many sources as needed"
        return Ceiling("ports", None, None, how)
    how = f"{check.detail}: one for each pair of addresses and port; more sources (--source) or URLs give more"
    return Ceiling("ports", check.have, None, how)


def _grows_sources(run: Run) -> bool:
    """Whether the server is on 127.0.0.0/8 and no source is given: then asyncli uses as many of
    2^24 sources as needed.
    """
    places = run.place.destinations
    return not run.plan.sources and bool(places) and all(one.startswith("127.") for one in places)


def _of_the_host(
    checks: Mapping[str, Check], plan: Plan, ends: int, prefix: str = ""
) -> list[Ceiling]:
    """Limits of this host, or of the host whose checks begin with ``prefix``: open files and epoll
    watches (``ends`` per connection), tracked connections (one each).
    """
    found = []
    # The preflight does not know whether both ends belong to one user.
    watches = "epoll watches of a user (fs.epoll.max_user_watches; half as many if both ends are one user's)"
    for code, needed, each, words in (
        ("file_max", ends, ends, "open files of the whole host (fs.file-max; root may exceed it)"),
        ("epoll_watches", ends, 1, watches),
        (
            "conntrack",
            1,
            1,
            "tracked connections (nf_conntrack_max), if a rule makes the kernel track these",
        ),
    ):
        check = checks.get(prefix + code)
        # Without a need the limit does not apply here.
        if check is None or check.have is None or check.need is None or check.have >= _NO_LIMIT:
            continue
        taken = max(0.0, check.need - needed * plan.connections)
        how = f"{format_count(check.have)} {words}" + (
            f", {format_count(taken)} of them for other things" if taken else ""
        )
        how += f", {each} for each connection"
        found.append(
            Ceiling(prefix + code, math.floor(max(0.0, check.have - taken) / each), None, how)
        )
    return found
