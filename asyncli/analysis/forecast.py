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
from typing import NamedTuple

import msgspec

from asyncli.analysis.ceiling import Ceiling, Space
from asyncli.analysis.constants import PART, REUSE_BELOW
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.gaps import for_cost
from asyncli.analysis.go_limit import go_limit
from asyncli.analysis.holders import holders_of
from asyncli.analysis.proxied_sockets import sockets_brought
from asyncli.analysis.server_ceilings import haproxy_ceilings, new_connections, server_ceilings
from asyncli.analysis.server_count import server_count
from asyncli.analysis.server_memory import server_memory
from asyncli.analysis.shared_host import is_proxy
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import COST_NAMES, cost_in_earlier_memory, descriptors_listed
from asyncli.findings.forecast import forecast_far, forecast_unknown
from asyncli.findings.probes import MASTER_ENDED
from asyncli.model import metrics
from asyncli.model.go_heap import is_of_go
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
    costs = costs.with_heap_at_goal()
    checks = {check.code: check for check in run.checks}
    before = run.within((-math.inf, run.first_connect_s))
    room = _room_of_sampled_host(before, checks)
    rising = costs.rising("server_user", "behind")
    sampled_host = _without_a_line(_of_sampled_host(run, before, costs, room), rising)
    slots = _slots_of_server(run, checks)
    limits = [
        sampled_host,
        _of_client_host(run, before, costs, checks),
        _without_a_line(_server_group(run, costs), rising),
        _earlier_memory(costs),
        _old_generation(run, costs),
        _heap_of_server(run, costs),
        *slots,
        _descriptors(checks, run) or _descriptors_in_use(run),
        *server_ceilings(run),
        *_of_upgraded(checks),
        _proxy_ports(run, checks),
        _ports(checks, run),
    ]
    ceilings = [ceiling for ceiling in limits if ceiling is not None]
    ceilings += _limits_of_host(checks, run.plan, run.sides.ends)
    if run.sides.far is not None:
        ceilings += _limits_of_host(checks, run.plan, 1, FAR)
    ceilings.sort(key=_connections_or_infinite)
    forecast = Forecast(ceilings=ceilings)
    if ceilings and ceilings[0].connections is not None:
        forecast.first = ceilings[0].name
    if _has_both_ends(run):
        forecast.memory = sampled_host
    if room is not None and run.sides.far is None:
        forecast.server_memory = _without_a_line(
            _server_alone(costs, before, room, sampled_host, _of_heap(run, costs)), rising
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
    name_of_slots = "worker_connections"
    if slots:
        name_of_slots = slots[0].name
    missing = [name for name in (name_of_slots, "descriptors") if name not in known]
    if not missing:
        return []
    if run.place.server_found or not _has_both_ends(run):
        return [forecast_unknown(missing, "configuration_not_read", "")]
    return [forecast_unknown(missing, "process_not_named", "")]


def _far(forecast: Forecast, held: Sequence[float]) -> list[Finding]:
    """That the forecast extrapolates to many times the connections of the run."""
    most_held = max(held, default=0.0)
    memory = _known_by_memory(forecast)
    if memory is None or memory.connections is None or most_held <= 0:
        return []
    if PART * memory.connections <= most_held:
        return []
    connections = memory.rounded(memory.connections)
    times = memory.rounded(connections / most_held)
    return [forecast_far(connections, times, math.ceil(PART * connections))]


def _known_by_memory(forecast: Forecast) -> Ceiling | None:
    """The number of connections by memory: of this host, else of a server alone."""
    for ceiling in (forecast.memory, forecast.server_memory):
        if ceiling is not None and ceiling.connections is not None:
            return ceiling
    return None


# Memory.


def _without_a_line(ceiling: Ceiling | None, rising: Sequence[str]) -> Ceiling | None:
    """A limit of memory without a number, if a cost of a connection rises with them: no line says
    where it is reached.
    """
    if ceiling is None or not rising:
        return ceiling
    names = ", ".join(COST_NAMES[name] for name in rising)
    how = f"{ceiling.how}; but the cost in {names} rises with the connections"
    return Ceiling(ceiling.name, None, None, how)


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
    name, where = _name_of_sampled_host(run)
    used = before.series(metrics.HOST_USED_BYTES)
    listing = before.series(metrics.KERNEL_LISTING_BYTES)
    is_listed = any(finding.code == descriptors_listed.code for finding in costs.findings)
    where += _of_heap(run, costs)
    return _of_host(name, where, costs.host_total, room, used, listing, is_listed=is_listed)


def _of_heap(run: Run, costs: Costs) -> str:
    """Words on the server's heap, if that is collected: of which size the forecast is."""
    if costs.heap.at_goal is not None and costs.heap.program:
        return f", when the heap of {costs.heap.program} has filled to its goal"
    if costs.heap.at_goal is not None:
        return ", when the server's heap has filled to its goal"
    if not run.place.server_runtime.collected or not run.sides.server:
        return ""
    return ", as the server's heap was in the run: it is collected, and its goal was not read"


def _name_of_sampled_host(run: Run) -> tuple[str, str]:
    """The name of its limit by memory, and the words for it."""
    if _has_both_ends(run):
        return "memory", _BOTH_ENDS
    if run.sides.server:
        return "server_host", _SERVER_END
    return "generator", f"this host, {_OUR_END}"


def _of_client_host(
    run: Run, before: Run, costs: Costs, checks: Mapping[str, Check]
) -> Ceiling | None:
    """asyncli's own host, if an agent samples the server's."""
    if run.sides.far is None:
        return None
    available = before.series(before.of_ours(metrics.HOST_AVAILABLE_BYTES))
    used = before.series(before.of_ours(metrics.HOST_USED_BYTES))
    room = _room(available, before.place.memory_bytes, checks.get("cgroup_memory"))
    where = f"asyncli's own host, {_OUR_END}"
    return _of_host("generator", where, costs.client_total, room, used, Series())


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
        left = format_bytes(cgroup.have)
        return Space(cgroup.have, f"{left} left in the cgroup, which is less than the host has")
    whole = "the memory" if total else "that"
    return Space(
        room,
        f"{format_bytes(free)} available before the first connect, less a reserve of "
        f"{format_bytes(reserve)} ({format_share(RESERVE)} of {whole})",
    )


def _of_host(
    name: str,
    where: str,
    total: Cost | None,
    room: Space | None,
    used: Series,
    listing: Series,
    *,
    is_listed: bool = False,
) -> Ceiling | None:
    """A host's memory as a limit. From the baseline: ``used`` memory and ``listing``, the inodes of
    /proc. ``is_listed``: these grow with the connections.
    """
    if total is None or total.of_levels or room is None:
        return None
    listing_before = statistics.median(listing.values) if listing.values else 0.0
    room = room.less_once(total.fixed_bytes - _level(used) + listing_before)
    how = f"{where}: {room.how}, by {total.bytes_per_connection:,.0f} B a connection in all"
    if total.bytes_per_connection <= 0:
        how = f"{where}: {room.how}, and what a connection takes in all is hidden"
    if is_listed:
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


def _old_generation(run: Run, costs: Costs) -> Ceiling | None:
    """The greatest size of the JVM's old generation, where that is less than the heap's. When it is
    full of what is alive no young collection is left, and each one is a full one, which stops the
    server; the greatest heap ends it only later.
    """
    of_heap = run.series(metrics.RUNTIME_LIMIT_BYTES).last()
    limit = run.series(metrics.RUNTIME_OLD_LIMIT_BYTES).last()
    live = costs.heap.in_heap
    if limit is None or of_heap is None or limit >= of_heap:
        return None
    if live is None or live.bytes_per_connection <= 0:
        return None
    how = (
        f"the old generation of the server's JVM may take {format_bytes(limit)} of the heap's "
        f"{format_bytes(of_heap)}, by {live.bytes_per_connection:,.0f} B a connection that are "
        "alive in it"
    )
    room = Space(max(0.0, limit - live.fixed_bytes), how)
    return room.ceiling("old_generation", live.bytes_per_connection, live.ci95, how)


def _heap_of_server(run: Run, costs: Costs) -> Ceiling | None:
    """The greatest heap of the server's runtime (-Xmx, --max-old-space-size), by what a connection
    keeps alive in it; of Go the limit of all its memory. None without such a limit. A heap that is
    nearly full of what is alive is collected all the time, so this is the most, and no server works
    well there.
    """
    if run.place.page_process is not None and not costs.heap.program:
        return None
    if is_of_go(run):
        return go_limit(run, costs)
    limit = run.series(metrics.RUNTIME_LIMIT_BYTES).last()
    live = costs.heap.in_heap
    if limit is None or live is None or live.bytes_per_connection <= 0:
        return None
    whose = costs.heap.program or "the server's runtime"
    how = (
        f"the heap of {whose} may take {format_bytes(limit)}, by "
        f"{live.bytes_per_connection:,.0f} B a connection that are alive in it"
    )
    room = Space(max(0.0, limit - live.fixed_bytes), how)
    return room.ceiling("server_heap", live.bytes_per_connection, live.ci95, how)


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
    cost = costs.server_group
    of_what = "of its memory"
    if cost is None or cost.ci95[0] <= 0:
        cost = costs.server_user
        of_what = "of the server's own (what the kernel charges the group for is unknown)"
    if cost is None:
        how += "; what a connection costs in it is unknown"
        return Ceiling("server_group", None, None, how)
    level = statistics.median(used.values)
    how += f", and had {format_bytes(level)} before the first connect"
    room = Space(max(0.0, limit - level), how)
    how += f", by {cost.bytes_per_connection:,.0f} B a connection {of_what}"
    return room.ceiling("server_group", cost.bytes_per_connection, cost.ci95, how)


def _level(metric: Series) -> float:
    """The median; infinite without readings, so that nothing is a step above it."""
    return statistics.median(metric.values) if metric.values else math.inf


# Memory of a server whose clients are elsewhere.


def server_ends(costs: Costs) -> int:
    """The ends of a connection on the server's host if its clients are elsewhere.

    Behind it on this host is a further end; a backend elsewhere has that end there.
    """
    if costs.behind_programs:
        return costs.ends - 1
    return (costs.ends + 1) // 2


class _CostAlone(NamedTuple):
    """What a connection costs a server whose clients are elsewhere: value and interval (bytes)."""

    value: float
    low: float
    high: float

    def within_host(self, total: Cost, kernel: Cost, ends_elsewhere: int) -> _CostAlone:
        """Not above what the whole host took less the kernel's ends that go elsewhere."""
        value = min(
            self.value, total.bytes_per_connection - ends_elsewhere * kernel.bytes_per_connection
        )
        low = self.low
        if value < low:
            low = max(0.0, total.ci95[0] - ends_elsewhere * kernel.ci95[1])
        high = min(self.high, total.ci95[1] - ends_elsewhere * kernel.ci95[0])
        return _CostAlone(value, low, high)


def _server_alone(
    costs: Costs, before: Run, room: Space, here: Ceiling | None, of_heap: str
) -> Ceiling | None:
    """A host like this for the server alone: its memory and its end of each connection, for a proxy
    both ends.

    The server's part of the residual is unknown: the number includes all of it, the interval
    extends to none. If ``here``, the whole host's memory, is a number, neither exceeds what that
    took less the ends that go elsewhere. ``of_heap``: words on a collected heap, "" without.
    """
    user = costs.server_user
    kernel = costs.kernel
    if user is None or kernel is None or user.of_levels or _needs_unknown_behind(costs):
        return None
    if costs.residual is None:
        # Other programs may work for the server: a cache, a database.
        how = "a server with as much memory: what is left over of a connection is unknown"
        return Ceiling("server_memory", None, None, how)
    ends = server_ends(costs)
    room = room.less_once(_first_use_of_server(costs, user, kernel, before))
    cost = _cost_alone(costs, user, kernel, costs.residual)
    how = (
        f"a server with as much memory and its clients elsewhere{of_heap}: {room.how}, by "
        f"{_in_parts(costs, user, kernel, costs.residual, cost)}"
    )
    total = costs.host_total
    if total is not None and here is not None and here.connections is not None:
        elsewhere = costs.ends - ends
        cost = cost.within_host(total, kernel, elsewhere)
        how += (
            f"; at most {cost.high:,.0f} B, what this host took without the clients' "
            f"{_end_or_ends(elsewhere)}"
        )
    return room.ceiling("server_memory", cost.value, (cost.low, cost.high), how)


def _needs_unknown_behind(costs: Costs) -> bool:
    """Whether programs behind the server, which it needs too, have no cost by a line."""
    if not costs.behind_programs:
        return False
    return costs.behind is None or costs.behind.of_levels


def _first_use_of_server(costs: Costs, user: Cost, kernel: Cost, before: Run) -> float:
    """Bytes that the server and its ends in the kernel took at once, above the baseline."""
    ends = server_ends(costs)
    server, _ = server_memory(before, costs.holders)
    sockets = before.series(metrics.KERNEL_SOCKET_BYTES)
    level_before = _level(server) + _level(sockets) * ends / costs.ends
    return user.fixed_bytes + ends * kernel.fixed_bytes - level_before


def _cost_alone(costs: Costs, user: Cost, kernel: Cost, residual: Cost) -> _CostAlone:
    """The server, its ends in the kernel, what is behind it, and all of the residual."""
    ends = server_ends(costs)
    behind = 0.0
    half_of_behind = 0.0
    if costs.behind is not None:
        behind = costs.behind.bytes_per_connection
        half_of_behind = costs.behind.half_width
    own = user.bytes_per_connection + behind + ends * kernel.bytes_per_connection
    # The errors may be correlated: add them.
    half = user.half_width + ends * kernel.half_width + half_of_behind
    return _CostAlone(
        value=own + max(0.0, residual.bytes_per_connection),
        low=own - half,
        high=own + half + max(0.0, residual.ci95[1]),
    )


def _in_parts(costs: Costs, user: Cost, kernel: Cost, residual: Cost, cost: _CostAlone) -> str:
    """The cost of a connection with its parts in words."""
    ends = server_ends(costs)
    in_kernel = ends * kernel.bytes_per_connection
    parts = [
        f"{user.bytes_per_connection:,.0f} in the server",
        f"{in_kernel:,.0f} in the kernel for its {_end_or_ends(ends)}",
    ]
    if costs.behind_programs and costs.behind is not None:
        parts.append(f"{costs.behind.bytes_per_connection:,.0f} behind it")
    if residual.bytes_per_connection > 0:
        parts.append(f"{residual.bytes_per_connection:,.0f} of what is left over")
    words = f"{cost.value:,.0f} B a connection ({', '.join(parts)})"
    if residual.ci95[1] > 0:
        words += f"; the interval includes 0 to {residual.ci95[1]:,.0f} B of what is left over"
    return words


def _end_or_ends(count: int) -> str:
    return "ends" if count > 1 else "end"


# Limits that the preflight read.


def _descriptors_of_connection(run: Run) -> int:
    """How many descriptors of the server each connection took: two of a proxy; 1 where unknown."""
    used = run.series(metrics.SERVER_DESCRIPTORS_OPEN)
    before = used.last(until_s=run.first_connect_s)
    after = used.last(until_s=run.stop_s)
    counted = server_count(run).values or run.held.values
    connections = max(counted)
    if before is None or after is None or not connections:
        return 1
    return max(1, round((after - before) / connections))


def _slots_of_server(run: Run, checks: Mapping[str, Check]) -> list[Ceiling]:
    """The connections that nginx or HAProxy allows itself; empty for other servers."""
    of_nginx = _slots(checks, _descriptors_of_connection(run))
    if of_nginx is not None:
        return [of_nginx]
    return haproxy_ceilings(run)


def _slots(checks: Mapping[str, Check], of_connection: int) -> Ceiling | None:
    """nginx's worker_connections; ``of_connection``: the slots that each connection takes."""
    check = checks.get("nginx_worker_connections")
    if check is None or check.have is None:
        return None
    how = (
        f"{format_count(check.have)} slots of nginx (worker_connections); it closes idle clients "
        "to keep a sixteenth free; if its workers get equal shares"
    )
    if of_connection > 1:
        how += f"; each connection takes {of_connection}, as of a proxy"
    connections = math.floor(check.have * (1 - REUSE_BELOW) / of_connection)
    return Ceiling("worker_connections", connections, None, how)


class _UpgradedLimit(NamedTuple):
    """A limit of nginx on connections that it serves all their life, by the code of its check, and
    what the check's detail is of.
    """

    code: str
    name: str
    of_what: str


_OF_UPGRADED = (
    _UpgradedLimit("nginx_limit_conn", "limit_conn", "limit_conn of nginx"),
    _UpgradedLimit("nginx_max_conns", "max_conns", "max_conns of nginx's backends"),
    _UpgradedLimit("nginx_proxy_ports", "proxy_ports", "source ports of nginx to its backends"),
)


def _of_upgraded(checks: Mapping[str, Check]) -> list[Ceiling]:
    """nginx's limits on connections with one request, such as WebSockets, by its configuration."""
    ceilings = []
    for limit in _OF_UPGRADED:
        check = checks.get(limit.code)
        if check is None:
            continue
        how = f"{limit.of_what}: {check.detail}"
        if check.verdict != "unknown":
            ceilings.append(Ceiling(limit.name, check.have, None, how))
        elif check.have is None:
            ceilings.append(Ceiling(limit.name, None, None, how))
        else:
            ceilings.append(Ceiling(limit.name, None, None, how, check.have))
    return ceilings


def _proxy_ports(run: Run, checks: Mapping[str, Check]) -> Ceiling | None:
    """The ports from which a proxy connects to its backend: at least so many connections fit,
    because how many addresses its backends have is unknown. None if the configuration told it.
    """
    ports = run.series(metrics.SERVER_SOURCE_PORTS).last()
    holders = holders_of(run)
    if ports is None or "nginx_proxy_ports" in checks:
        return None
    if not is_proxy(run, holders, run.stop_s) or sockets_brought(run, holders).others:
        return None
    how = (
        "the server is a proxy, with a socket to its backend for each connection: "
        f"{format_count(ports)} source ports (ip_local_port_range of its network namespace) for "
        "each address of its backends; how many addresses these have is unknown"
    )
    return Ceiling("proxy_ports", None, None, how, ports)


def _descriptors(checks: Mapping[str, Check], run: Run) -> Ceiling | None:
    """The descriptors of nginx's workers, by its configuration."""
    check = checks.get("nginx_nofile")
    if check is None or check.have is None or check.need is None:
        return None
    workers = workers_of(check.need, run.plan.connections)
    for_connections = max(0.0, check.have - _WORKER_DESCRIPTORS)
    how = (
        f"{format_many(workers, 'worker')} of nginx x {format_count(check.have)} descriptors, less "
        f"{_WORKER_DESCRIPTORS} that each needs itself; if they get equal shares"
    )
    of_connection = _descriptors_of_connection(run)
    if of_connection > 1:
        how += f"; each connection takes {of_connection}, as of a proxy"
    connections = workers * for_connections // of_connection
    return Ceiling("descriptors", connections, None, how)


def _descriptors_in_use(run: Run) -> Ceiling | None:
    """By RLIMIT_NOFILE of the server's process with the most descriptors, and their rise with the
    connections.
    """
    limit = run.series(metrics.SERVER_DESCRIPTORS_LIMIT).last()
    connections = new_connections(run)
    start_s = run.first_connect_s
    processes = run.series(metrics.SERVER_PROCESSES)
    most_processes = max(processes.between(start_s, math.inf).values, default=0.0)
    if limit is None or not connections or not most_processes:
        return None
    how = f"a process of the server may have {format_count(limit)} descriptors open (RLIMIT_NOFILE)"
    processes_before = processes.last(until_s=start_s)
    # Preforked processes count as begun.
    if processes_before is not None and 2 * (most_processes - processes_before) >= connections:
        how += "; no limit here: each connection has its own process"
        return Ceiling("descriptors", None, None, how)
    used = run.series(metrics.SERVER_DESCRIPTORS)
    used_before = used.last(until_s=start_s)
    most_used = max(used.between(start_s, math.inf).values, default=0.0)
    if used_before is None:
        # Linux before 6.2, or a server that was started before the run was resumed.
        how += (
            f"; one per connection in {format_count(most_processes)} processes; how many were open "
            "before the first connect is unknown"
        )
        return Ceiling("descriptors", most_processes * limit, None, how)
    if most_used <= used_before:
        how += "; no limit here: connections take none of its fullest process"
        return Ceiling("descriptors", None, None, how)
    how += (
        f"; the fullest had {format_count(used_before)} before the first connect, and "
        f"{format_count(most_used)} with {format_count(connections)} connections"
    )
    if connections > max(run.held.values):
        how += " of all clients"
    how += ": extrapolated linearly"
    fit = math.floor(connections * (limit - used_before) / (most_used - used_before))
    if _has_lost_a_server(run):
        how += (
            f"; {format_count(fit)} with all servers of the ramp, of which one ended in the run, "
            "and none took its place: those that are left have room for their share at least"
        )
        left = processes.last() or 0.0
        return Ceiling("descriptors", None, None, how, math.floor(fit * left / most_processes))
    return Ceiling("descriptors", fit, None, how)


def _has_lost_a_server(run: Run) -> bool:
    """Whether one of several servers behind the plan's URLs ended, and none took its place. The
    readings in the time of an event are not in every ``run``.
    """
    if not any(finding.code == MASTER_ENDED for finding in run.findings):
        return False
    ended = run.series(metrics.SERVER_ENDED)
    started = run.series(metrics.SERVER_STARTED)
    return (ended.last() or 0.0) > (started.last() or 0.0)


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
    if _adds_sources(run):
        how = f"{check.detail}; no limit here: on loopback asyncli uses as many sources as needed"
        return Ceiling("ports", None, None, how)
    how = (
        f"{check.detail}: one for each pair of addresses and port; more sources (--source) or "
        "URLs give more"
    )
    return Ceiling("ports", check.have, None, how)


def _adds_sources(run: Run) -> bool:
    """Whether the server is on 127.0.0.0/8 and no source is given: then asyncli uses as many of
    2^24 sources as needed.
    """
    destinations = run.place.destinations
    if run.plan.sources or not destinations:
        return False
    return all(address.startswith("127.") for address in destinations)


class _HostLimit(NamedTuple):
    """A limit of a host, by the code of its check, on what connections take there.

    ``ends_needed``: the check asks for one for each end of a connection, not one for each
    connection. ``ends_take``: each end takes one, not each connection.
    """

    code: str
    ends_needed: bool
    ends_take: bool
    of_what: str


_HOST_LIMITS = (
    _HostLimit(
        "file_max",
        ends_needed=True,
        ends_take=True,
        of_what="open files of the whole host (fs.file-max; root may exceed it)",
    ),
    # The preflight does not know whether both ends belong to one user.
    _HostLimit(
        "epoll_watches",
        ends_needed=True,
        ends_take=False,
        of_what=(
            "epoll watches of a user (fs.epoll.max_user_watches; half as many if both ends are "
            "one user's)"
        ),
    ),
    _HostLimit(
        "conntrack",
        ends_needed=False,
        ends_take=False,
        of_what="tracked connections (nf_conntrack_max), if a rule makes the kernel track these",
    ),
)


def _limits_of_host(
    checks: Mapping[str, Check], plan: Plan, ends: int, prefix: str = ""
) -> list[Ceiling]:
    """Limits of this host, or of the host whose checks begin with ``prefix``, where each connection
    has ``ends`` ends.
    """
    ceilings = []
    for limit in _HOST_LIMITS:
        check = checks.get(prefix + limit.code)
        # Without a need the limit does not apply here.
        if check is None or check.have is None or check.need is None or check.have >= _NO_LIMIT:
            continue
        needed = ends if limit.ends_needed else 1
        of_connection = ends if limit.ends_take else 1
        taken = max(0.0, check.need - needed * plan.connections)
        how = f"{format_count(check.have)} {limit.of_what}"
        if taken:
            how += f", {format_count(taken)} of them for other things"
        how += f", {of_connection} for each connection"
        connections = math.floor(max(0.0, check.have - taken) / of_connection)
        ceilings.append(Ceiling(prefix + limit.code, connections, None, how))
    return ceilings
