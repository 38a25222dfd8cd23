"""Limits of the server that samples show: tasks, memory of a process and its maps, which a server
with a thread or a process for each connection takes with them; descriptors of programs that hold
its connections or are behind it; places of Apache's scoreboard; and HAProxy's connections.

The law: what rises in step with the connections, and has a limit that can be read, is a limit of
the connections.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import msgspec

from asyncli.analysis.ceiling import Ceiling, Space
from asyncli.analysis.constants import FEWEST, HALF, PART
from asyncli.analysis.holders import Holders, holders_of
from asyncli.analysis.server_count import other_clients_of, server_count
from asyncli.analysis.slope import PAGES, Cost, Fit, Fitter
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series
from asyncli.model.server_limits import MEMORY_LIMITS, TASK_LIMITS, ServerLimit
from asyncli.model.units import format_bytes, format_count

#: By the name of a limit: what the server may have.
_MAY_HAVE = {
    "group_tasks": "the server's control group may have {limit} threads ({setting})",
    "user_tasks": "the server's user may have {limit} threads ({setting})",
    "host_tasks": "the server's host may have {limit} threads ({setting})",
    "address_space": "a process of the server may have {limit} of address space ({setting})",
    "data": "a process of the server may have {limit} of private writable memory ({setting})",
}


def server_ceilings(run: Run) -> list[Ceiling]:
    """The limits on places of Apache's scoreboard, tasks, memory of a process and its maps, and
    descriptors of programs beside it, where connections take of these.
    """
    holders = holders_of(run)
    of_memory = [_of_memory(run, memory) for memory in MEMORY_LIMITS]
    limits = [
        _scoreboard(run),
        *_of_tasks(run, holders),
        *of_memory,
        _mappings(run),
        _committed(run),
        _descriptors_beside(run, holders),
    ]
    return [ceiling for ceiling in limits if ceiling is not None]


def _scoreboard(run: Run) -> Ceiling | None:
    """The places of Apache's scoreboard, where each connection takes one. Apache 2.4 shows
    MaxRequestWorkers of them (measured in prefork with another ServerLimit, and in worker).
    """
    places = run.series(metrics.STATUS_PLACES).last()
    taken = run.series(metrics.STATUS_ACTIVE).last(until_s=run.first_connect_s)
    if places is None or taken is None:
        return None
    how = (
        f"{format_count(places)} places of Apache's scoreboard (MaxRequestWorkers), one for each "
        f"connection, {format_count(taken)} of them taken before the first connect"
    )
    return Ceiling("scoreboard", max(0.0, places - taken), None, how)


def new_connections(run: Run) -> float:
    """The most connections that the server had since the first connect, those of other clients
    that came meanwhile included: they take of its limits too.
    """
    return max(0.0, *run.held.values, *_connections_over_time(run).values)


def _connections_over_time(run: Run) -> Series:
    """Those that the server has more than before the first connect, by its own count where that is
    known.
    """
    count = server_count(run)
    earlier = count.last(until_s=run.first_connect_s)
    if earlier is None:
        return run.held
    return Series(count.t_s, [max(0.0, number - earlier) for number in count.values])


def _of_tasks(run: Run, holders: Holders) -> list[Ceiling]:
    """By the server's own threads for each connection, and by the processes of programs that hold
    connections in its place: other programs have tasks as well.
    """
    start_s = run.first_connect_s
    threads = run.series(metrics.SERVER_THREADS)
    before = threads.last(until_s=start_s)
    if before is None:
        return []
    peak = max(threads.between(start_s, math.inf).values, default=before)
    for program in holders.in_place:
        peak += max(run.series(f"{metrics.BESIDE_PROCESSES}{program}").values, default=0.0)
    connections = new_connections(run)
    if not connections or peak - before < PART * connections:
        return []
    of_connection = (peak - before) / connections
    ceilings = []
    for tasks in TASK_LIMITS:
        limit = run.series(tasks.limit).last()
        used = run.series(tasks.used).last(until_s=start_s)
        if limit is None or used is None:
            continue
        room = max(0.0, limit - used)
        how = (
            f"{_may_have(tasks, format_count(limit))}, and had {format_count(used)} "
            f"before the first connect; the server's threads rose from {format_count(before)} to "
            f"{format_count(peak)} with {format_count(connections)} connections: extrapolated "
            "linearly"
        )
        ceilings.append(Ceiling(tasks.name, math.floor(room / of_connection), None, how))
    return ceilings


def _may_have(of: ServerLimit, limit: str) -> str:
    return _MAY_HAVE[of.name].format(limit=limit, setting=of.setting)


def _of_memory(run: Run, memory: ServerLimit) -> Ceiling | None:
    limit = run.series(memory.limit).last()
    rise = _ResourceRise.of(run, memory.used, PAGES / 2)
    if limit is None or rise is None or rise.peak <= rise.before:
        return None
    how = (
        f"{_may_have(memory, format_bytes(limit))}, and had {format_bytes(rise.before)} "
        "before the first connect"
    )
    return rise.ceiling(memory.name, limit, how, "B")


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


def _committed(run: Run) -> Ceiling | None:
    """Where the kernel grants no more memory than its limit, used or not, stacks of threads count
    whole, and what a process that forks may write.
    """
    limit = run.series(metrics.HOST_COMMIT_LIMIT_BYTES).last()
    if limit is None or not run.sides.server:
        return None
    rise = _ResourceRise.of(run, metrics.HOST_COMMITTED_BYTES, PAGES / 2)
    if rise is None or rise.peak <= rise.before:
        return None
    how = (
        f"the kernel of the server's host grants programs {format_bytes(limit)} in all, used or "
        f"not (vm.overcommit_memory 2), and had granted {format_bytes(rise.before)} before the "
        "first connect"
    )
    return rise.ceiling("committed", limit, how, "B")


def _descriptors_beside(run: Run, holders: Holders) -> Ceiling | None:
    """The lowest RLIMIT_NOFILE of a process that holds the server's connections in its place, or is
    behind it.

    Such a program is followed once it has risen, so its descriptors before are unknown: they are
    extrapolated from how they rose since then.
    """
    ceilings = []
    for program in holders.beside:
        ceiling = _descriptors_of(run, program)
        if ceiling is not None:
            ceilings.append(ceiling)
    return min(ceilings, key=_least_known, default=None)


def _least_known(ceiling: Ceiling) -> float:
    if ceiling.connections is not None:
        return ceiling.connections
    if isinstance(ceiling.at_least, msgspec.UnsetType):
        return math.inf
    return ceiling.at_least


def _descriptors_of(run: Run, program: str) -> Ceiling | None:
    """None where they are not read, or connections take none of its fullest process."""
    limit = run.series(f"{metrics.BESIDE_DESCRIPTORS_LIMIT}{program}").last()
    opened = run.series(f"{metrics.BESIDE_DESCRIPTORS_OPEN}{program}").between(
        -math.inf, run.stop_s
    )
    if limit is None or not opened.values:
        return None
    fullest = max(opened.values)
    first_s = opened.t_s[0]
    full_s = opened.t_s[opened.values.index(fullest)]
    count = _connections_over_time(run)
    at_first = count.at(first_s) or 0.0
    at_most = count.at(full_s) or 0.0
    if not at_most:
        return None
    how = (
        f"a process of {program}, which holds these connections or is behind the server, may have "
        f"{format_count(limit)} descriptors open (RLIMIT_NOFILE), and had {format_count(fullest)} "
        f"with {format_count(at_most)} connections"
    )
    room = max(0.0, limit - fullest)
    risen = at_most - at_first
    if risen < HALF * at_most:
        at_least = math.floor(at_most + room * at_most / fullest)
        how = f"{how}: at least so many fit, because its own descriptors are counted with them"
        return Ceiling("descriptors_beside", None, None, how, at_least)
    of_connection = (fullest - opened.values[0]) / risen
    if of_connection < PART:
        return None
    how = f"{how}: extrapolated linearly. Its other limits were not read"
    return Ceiling("descriptors_beside", math.floor(at_most + room / of_connection), None, how)


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
    """The room for sessions in HAProxy's frontend that we use, for connections in all its
    frontends, and for sessions of the servers behind it, before the first connect.
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
    behind = _behind_haproxy(run)
    if behind is not None:
        ceilings.append(behind)
    return ceilings


def _behind_haproxy(run: Run) -> Ceiling | None:
    """The servers of a backend whose sessions rise with the connections, as of WebSocket or TCP: a
    request in HTTP takes one only until it is answered.
    """
    limit = run.series(metrics.STATUS_BEHIND_LIMIT).last(until_s=run.stop_s)
    risen = run.series(metrics.STATUS_BEHIND).between(run.first_connect_s, run.stop_s)
    if limit is None or not risen.values:
        return None
    rise = risen.values[-1]
    connections = _connections_over_time(run).at(risen.t_s[-1]) or 0.0
    if not connections or rise < max(FEWEST, PART * connections):
        return None
    how = (
        f"{format_count(limit)} more sessions than before the first connect for the servers of "
        f"HAProxy's backend (slim, maxconn of server); they had {format_count(rise)} more with "
        f"{format_count(connections)} connections: extrapolated linearly"
    )
    return Ceiling("server_maxconn", math.floor(limit * connections / rise), None, how)
