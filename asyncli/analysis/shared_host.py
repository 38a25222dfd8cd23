"""Whether other programs used the host's CPUs or the kernel's memory for sockets."""

from __future__ import annotations

import math
from typing import NamedTuple

from asyncli.analysis.constants import FEWEST, NEARLY_ALL, PART, WORTH_TELLING
from asyncli.analysis.holders import Holders, holders_of
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.analysis.server_count import other_clients_of
from asyncli.analysis.slope import minus
from asyncli.findings import host
from asyncli.findings.host import host_busy, host_shared, upstream_sockets
from asyncli.model import metrics
from asyncli.model.metrics import (
    GENERATOR_CPU_S,
    HOST_CPU_BUSY_S,
    KERNEL_SOCKETS,
    KERNEL_TCP_ALLOC,
    SERVER_CPU_S,
    SESSION_CPU_S,
)
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series, parts

#: A smaller share of all CPUs does not limit server and asyncli.
MOST_OF_OTHERS = PART
# Asyncli ended these by itself. The server's end remains until the server closes it, and in its
# listen queue until it accepts it.
_GIVEN_UP = ("heartbeat_timeout", "tls_timeout", "handshake_timeout", "generator_lost")


class _HostCpu(NamedTuple):
    """CPU seconds of asyncli's host over time, in all and by its users. Read once: a night has
    thousands of periods.
    """

    busy: Series
    #: None: it is on another host.
    server: Series | None
    #: By asyncli.
    own: tuple[Series, ...]

    def cores(self, start_s: float, stop_s: float) -> tuple[float, float] | None:
        """Cores in use, and those used by neither asyncli nor the server; None where unknown."""
        busy = _cores(self.busy, start_s, stop_s)
        server: float | None = 0.0
        if self.server is not None:
            server = _cores(self.server, start_s, stop_s)
        if busy is None or server is None:
            return None
        # Before the first connect there may be no generator.
        own = sum(_cores(used, start_s, stop_s) or 0.0 for used in self.own)
        return busy, max(0.0, busy - server - own)


def _cores(used: Series, start_s: float, stop_s: float) -> float | None:
    # CPU time has a resolution of 10 ms: over less time, shares are too rough.
    return used.per_second(start_s, stop_s, least_s=0.5)


def cpus_taken(run: Run) -> list[Finding]:
    """A finding of the longest period in which all CPUs of asyncli's host were busy, many of them
    with other programs.
    """
    start = run.first_connect_s
    stop = run.stop_s
    cpus = run.place.cpus
    if cpus is None or not start < stop:
        return []
    server = run.series(SERVER_CPU_S) if run.place.local else None
    used = _HostCpu(
        run.series(run.of_ours(HOST_CPU_BUSY_S)),
        server,
        (run.series(GENERATOR_CPU_S), run.series(SESSION_CPU_S)),
    )
    taken: list[tuple[float, float]] = []
    for part in _parts_to_look_at(run, len(used.busy)):
        cores = used.cores(*part)
        if cores is None or cores[0] < MOST_CPU_SHARE * cpus or cores[1] < MOST_OF_OTHERS * cpus:
            continue
        from_s, to_s = part
        if taken and taken[-1][1] == from_s:
            from_s, _ = taken.pop()
        taken.append((from_s, to_s))
    if not taken:
        return []
    span = max(taken, key=lambda period: period[1] - period[0])
    then = used.cores(*span)
    before = used.cores(-math.inf, start)
    assert then is not None
    was_so_before = None
    if before is not None:
        was_so_before = before[1] >= MOST_OF_OTHERS * cpus
    return [host_busy(round(cpus), *then, was_so_before, span, len(taken))]


def _parts_to_look_at(run: Run, readings: int) -> list[tuple[float, float]]:
    """The time with connections, in parts (from, to) of 10 s or more: CPU time is read every second
    to third second, in steps of 10 ms. A short run has no such part; of one that was interrupted,
    what is shorter beside others tells nothing.
    """
    least_s = 10.0
    spans = run.uninterrupted_spans(run.first_connect_s, run.stop_s)
    long_ones = [(from_s, to_s) for from_s, to_s in spans if to_s - from_s >= least_s]
    looked_at = []
    for from_s, to_s in long_ones or spans:
        looked_at += parts(from_s, to_s, least_s, readings)
    return looked_at


def throttled_share(run: Run) -> float:
    """The share of periods with work to do in which the server's control group had used up its
    quota of CPU; 0 without a quota.
    """
    throttled, periods = _throttled(run)
    if periods <= 0:
        return 0.0
    return throttled / periods


def server_throttled(run: Run) -> list[Finding]:
    throttled, periods = _throttled(run)
    cpus = run.series(metrics.SERVER_GROUP_CPUS).last()
    if cpus is None or throttled < max(FEWEST, WORTH_TELLING * periods):
        return []
    server = run.place.server_label or "the server"
    return [host.server_throttled(server, cpus, round(throttled), round(periods))]


def _throttled(run: Run) -> tuple[float, float]:
    """In how many periods of the quota it was used up, of how many, from the first connect to the
    drain.
    """
    counts = []
    for name in (metrics.SERVER_GROUP_THROTTLED, metrics.SERVER_GROUP_PERIODS):
        counter = run.series(name)
        before = counter.last(until_s=run.first_connect_s)
        after = counter.last(until_s=run.stop_s)
        if before is None or after is None:
            return 0.0, 0.0
        counts.append(after - before)
    throttled, periods = counts
    return throttled, periods


def count_of_sockets(plan: Plan) -> str:
    """The metric that counts the sockets of all programs. For TCP sockstat's ``alloc``: like the
    slabs it counts both families in every network namespace. For Unix sockets all sockets of a
    namespace.
    """
    return KERNEL_TCP_ALLOC if plan.has_ports else KERNEL_SOCKETS


def counted_sockets(run: Run) -> Series:
    name = count_of_sockets(run.plan)
    if name == KERNEL_SOCKETS:
        name = run.of_ours(name)
    return run.series(name)


def few_sockets(ours: float) -> float:
    """So many sockets of other programs beside ``ours`` say nothing: daemons open and close dozens,
    and a share of 5 % changes no printed digit.
    """
    return 50 + 0.05 * ours


def sockets_of_others(run: Run) -> Series:
    """Sockets of other programs over time: all that are counted, less the ends of the connections
    held.
    """
    allocated = counted_sockets(run)
    held = run.held
    others = []
    for t_s, count in allocated.rows():
        others.append(count - run.sides.ends * (held.at(t_s) or 0.0))
    return Series(allocated.t_s, others)


def sockets_of_proxy(run: Run, holders: Holders) -> int:
    """How many TCP sockets each connection brought through a proxy, by the count of all; 0 if the
    server is none, other programs opened and closed few, or the count is unknown.
    """
    beside = _beside(run)
    if beside is None or not is_proxy(run, holders, run.stop_s):
        return 0
    _, _, by_each = beside
    return by_each


def other_families(run: Run) -> Series:
    """Sockets of other families than TCP over time, of all programs in this network namespace;
    empty if the plan's are such.
    """
    if not run.plan.has_ports:
        return Series()
    return minus(run.series(KERNEL_SOCKETS), [run.series(metrics.KERNEL_TCP_INUSE)])


def _beside(run: Run) -> tuple[int, int, int] | None:
    """By how many sockets ours and others rose from the baseline to the hold's end, and how many of
    the others each connection brought if the server is a proxy. None if other programs opened and
    closed few, or the count is unknown.
    """
    allocated = counted_sockets(run)
    start = run.first_connect_s
    stop = run.stop_s
    before = allocated.last(until_s=start)
    after = allocated.last(until_s=stop, since_s=max(start, stop - 10.0))
    if before is None or after is None or not math.isfinite(start):
        return None
    rise = round(after - before)
    connections = round(run.held.last(until_s=stop) or 0.0)
    least, greatest = _own_sockets(run, connections)
    own = min(max(least, rise), greatest)
    others = rise - own
    if abs(others) <= few_sockets(own):
        return None
    return own, others, _by_each_connection(run, allocated, before, others, connections)


def _own_sockets(run: Run, connections: int) -> tuple[int, int]:
    """How many sockets so many connections have on the sampled host, at least and at most.

    Both ends of a pending connect may exist, and the server's of one given up. Until the server has
    heard from a connection its end may be a request in the SYN queue (TCP_DEFER_ACCEPT), which is
    not counted.
    """
    ticks = [tick for t_s, tick in run.ticks if t_s <= run.stop_s]
    pending = ticks[-1].connecting if ticks else 0
    least = connections * run.sides.ends
    greatest = (connections + pending) * run.sides.ends
    if run.sides.server:
        least -= max(0, connections - sum(map(_heard, ticks)))
        greatest += sum(map(_given_up, ticks))
    return least, greatest


def _by_each_connection(
    run: Run, allocated: Series, before: float, others: int, connections: int
) -> int:
    """How many of the other sockets each connection brought; 0 if they did not close with ours.

    A proxy opens one for each connection, and its backend has the other end, here or elsewhere;
    both close with ours.
    """
    count = round(others / max(1, connections))
    if count not in (1, 2):
        return 0
    if abs(others - count * connections) > FEWEST + WORTH_TELLING * others:
        return 0
    drained = run.phase("residue")
    if drained is None:
        return 0
    left = allocated.last(since_s=drained.start_s)
    if left is None or left - before > PART * others:
        return 0
    return count


def _given_up(tick: Tick) -> int:
    count = tick.failed_by(_GIVEN_UP)
    if not tick.deaths:
        return count
    for cause in _GIVEN_UP:
        if cause in tick.deaths:
            count += tick.deaths[cause].count
    return count


def _heard(tick: Tick) -> int:
    """Answers, and handshakes that need the server."""
    heard = tick.answered
    if tick.tls is not None:
        heard += tick.tls.handshake_us.count
    if tick.protocol is not None:
        heard += tick.protocol.handshake_us.count
    return heard


def is_proxy(run: Run, holders: Holders, until_s: float) -> bool | None:
    """Whether the server took two descriptors for each connection until ``until_s``, one of them to
    its backend, by the descriptors of all its processes; None where they are unknown.

    Another load generator's sockets come and go with ours as well.
    """
    if holders.behind:
        # The backend is on this host, and was seen.
        return True
    start = run.first_connect_s
    used = run.series(metrics.SERVER_DESCRIPTORS_OPEN)
    processes = run.series(metrics.SERVER_PROCESSES)
    before = used.last(until_s=start)
    begun = processes.last(until_s=start)
    since = used.between(start, until_s)
    if before is None or not since.values or begun is None:
        return None
    # A process for each connection has descriptors of its own.
    if begun != processes.last(until_s=until_s):
        return None
    held = run.held.at(since.t_s[-1]) or 0.0
    if held < FEWEST:
        return None
    return since.values[-1] - before >= 2 * NEARLY_ALL * held


def other_sockets(run: Run) -> list[Finding]:
    """A finding if other programs opened or closed many sockets from the baseline to the hold's
    end.
    """
    beside = _beside(run)
    if beside is None:
        return []
    own, others, by_each = beside
    clients = other_clients_of(run)
    if clients is not None:
        before = clients.count.last(until_s=run.first_connect_s) or 0.0
        after = clients.count.last(until_s=run.stop_s) or 0.0
        of_clients = (after - before) * run.sides.ends - own
        if abs(others - of_clients) <= max(few_sockets(own), PART * abs(others)):
            # The finding of other clients says it of all the server's numbers.
            return []
    proxy = bool(by_each) and is_proxy(run, holders_of(run), run.stop_s)
    if proxy:
        return [upstream_sockets(run.sides.host, own, others)]
    return [host_shared(run.sides.host, own, others, proxy is None)]
