"""Limits of the server that samples show: tasks, address space and memory maps, which a server with
a thread or a process for each connection takes with them; and HAProxy's connections.

The law: what rises in step with the connections, and has a limit that can be read, is a limit of
the connections.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from asyncli.analysis.ceiling import Ceiling, Space
from asyncli.analysis.constants import PART
from asyncli.analysis.server_count import other_clients_of, server_count
from asyncli.analysis.slope import PAGES, Cost, Fit, Fitter
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.units import format_bytes, format_count


class _Tasks(NamedTuple):
    """A limit on tasks, that is threads of all processes: how many there are, and may be."""

    name: str
    used: str
    limit: str
    may_have: str


_TASKS = (
    _Tasks(
        "group_tasks",
        metrics.SERVER_GROUP_TASKS,
        metrics.SERVER_GROUP_TASKS_LIMIT,
        "the server's control group may have {limit} threads (pids.max)",
    ),
    _Tasks(
        "user_tasks",
        metrics.SERVER_USER_TASKS,
        metrics.SERVER_USER_TASKS_LIMIT,
        "the server's user may have {limit} threads (RLIMIT_NPROC)",
    ),
    _Tasks(
        "host_tasks",
        metrics.HOST_TASKS,
        metrics.HOST_TASKS_LIMIT,
        "the server's host may have {limit} threads (kernel.threads-max, kernel.pid_max)",
    ),
)


def server_ceilings(run: Run) -> list[Ceiling]:
    """The limits on tasks, address space and memory maps, where connections take of these."""
    limits = [*_of_tasks(run), _address_space(run), _mappings(run)]
    return [ceiling for ceiling in limits if ceiling is not None]


def new_connections(run: Run) -> float:
    """The most connections that the server had since the first connect, those of other clients
    that came meanwhile included: they take of its limits too.
    """
    ours = max(run.held.values)
    count = server_count(run)
    earlier = count.last(until_s=run.first_connect_s)
    if earlier is None:
        return max(ours, 0.0)
    return max(ours, max(count.values) - earlier)


def _of_tasks(run: Run) -> list[Ceiling]:
    """By the server's own threads for each connection: other programs have tasks as well."""
    start_s = run.first_connect_s
    threads = run.series(metrics.SERVER_THREADS)
    before = threads.last(until_s=start_s)
    peak = max(threads.between(start_s, math.inf).values, default=0.0)
    connections = new_connections(run)
    if before is None or not connections or peak - before < PART * connections:
        return []
    of_connection = (peak - before) / connections
    ceilings = []
    for tasks in _TASKS:
        limit = run.series(tasks.limit).last()
        used = run.series(tasks.used).last(until_s=start_s)
        if limit is None or used is None:
            continue
        room = max(0.0, limit - used)
        how = (
            f"{tasks.may_have.format(limit=format_count(limit))}, and had {format_count(used)} "
            f"before the first connect; the server's threads rose from {format_count(before)} to "
            f"{format_count(peak)} with {format_count(connections)} connections: extrapolated "
            "linearly"
        )
        ceilings.append(Ceiling(tasks.name, math.floor(room / of_connection), None, how))
    return ceilings


def _address_space(run: Run) -> Ceiling | None:
    limit = run.series(metrics.SERVER_ADDRESS_SPACE_LIMIT_BYTES).last()
    rise = _ResourceRise.of(run, metrics.SERVER_ADDRESS_SPACE_BYTES, PAGES / 2)
    if limit is None or rise is None or rise.peak <= rise.before:
        return None
    how = (
        f"a process of the server may have {format_bytes(limit)} of address space (RLIMIT_AS), and "
        f"had {format_bytes(rise.before)} before the first connect"
    )
    return rise.ceiling("address_space", limit, how, "B")


def _mappings(run: Run) -> Ceiling | None:
    limit = run.series(metrics.SERVER_MAPPINGS_LIMIT).last()
    rise = _ResourceRise.of(run, metrics.SERVER_MAPPINGS, 0.5)
    if limit is None or rise is None or rise.peak - rise.before < PART * rise.connections:
        return None
    how = (
        f"a process of the server may have {format_count(limit)} memory maps (vm.max_map_count), "
        f"and had {format_count(rise.before)} before the first connect"
    )
    return rise.ceiling("mappings", limit, how, "maps")


class _ResourceRise(NamedTuple):
    """What the server had of a resource ``before`` the first connect, and at the peak, with so many
    ``connections``; ``cost``: of each, None where too little was sampled.
    """

    before: float
    peak: float
    connections: float
    cost: Cost | None

    @classmethod
    def of(cls, run: Run, name: str, known_to: float) -> _ResourceRise | None:
        """``known_to``: the resolution of the metric. None if it was not read before the first
        connect, or not with connections.
        """
        metric = run.series(name)
        before = metric.between(-math.inf, run.first_connect_s).values
        later = metric.between(run.first_connect_s, run.stop_s).values
        connections = new_connections(run)
        if not before or not later or not connections:
            return None
        others = other_clients_of(run)
        fitter = Fitter(run, run.held if others is None else others.count)
        fit = fitter.fit(name, metric, known_to=known_to)
        cost = fit.cost if isinstance(fit, Fit) else None
        return cls(statistics.median(before), max(later), connections, cost)

    def ceiling(self, name: str, limit: float, how: str, unit: str) -> Ceiling:
        """The ceiling by the slope. The first threads take more than later ones, for an arena of
        their own: without a slope their mean tells how many fit at least.
        """
        mean = (self.peak - self.before) / self.connections
        at_least = math.floor(max(0.0, limit - self.before) / mean)
        if self.cost is None or self.cost.of_levels:
            how = (
                f"{how}, and {_amount(mean, unit)} more for each connection then: at least "
                "so many fit, because first use is included"
            )
            return Ceiling(name, None, None, how, at_least)
        room = Space(max(0.0, limit - self.before), how, unit)
        room = room.less_once(self.cost.fixed_bytes - self.before)
        slope = self.cost.bytes_per_connection
        how = f"{room.how}, by {_amount(slope, unit)} a connection"
        ceiling = room.ceiling(name, slope, self.cost.ci95, how)
        if ceiling.connections is None:
            ceiling.at_least = at_least
        return ceiling


def _amount(number: float, unit: str) -> str:
    """Bytes of a stack are millions, maps of a thread are two or three."""
    if unit == "B":
        return f"{number:,.0f} B"
    return f"{number:.3g} {unit}"


def haproxy_ceilings(run: Run) -> list[Ceiling]:
    """The room for sessions in HAProxy's frontend that we use, and for connections in all its
    frontends, before the first connect.
    """
    taken = run.series(metrics.STATUS_ACTIVE).last(until_s=run.first_connect_s)
    if taken is None:
        return []
    ceilings = []
    of_frontend = run.series(metrics.STATUS_LIMIT).last(until_s=run.stop_s)
    in_all = run.series(metrics.STATUS_LIMIT_IN_ALL).last(until_s=run.stop_s)
    were_taken = f"{format_count(taken)} of them taken before the first connect"
    if of_frontend is not None:
        how = (
            f"{format_count(of_frontend)} sessions (slim of the frontend that asyncli uses), "
            f"{were_taken}"
        )
        if in_all is None:
            how += "; HAProxy's global maxconn, which was not read, may be lower"
        ceilings.append(Ceiling("maxconn", max(0.0, of_frontend - taken), None, how))
    if in_all is not None:
        how = f"{format_count(in_all)} connections of all frontends (global maxconn), {were_taken}"
        ceilings.append(Ceiling("global_maxconn", max(0.0, in_all - taken), None, how))
    return ceilings
