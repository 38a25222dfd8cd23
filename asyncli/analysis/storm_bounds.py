"""What bounds the pace of a storm's comebacks, by what was measured: the server, the listen queue,
asyncli, or the CPUs that they share. Pure.
"""

from __future__ import annotations

import math

import msgspec

from asyncli.core.histogram import Histogram
from asyncli.model import metrics
from asyncli.model.records import EventCounts
from asyncli.model.run import Run
from asyncli.model.samples import Series


class Margins(msgspec.Struct, frozen=True):
    """From when on what was measured counts."""

    #: Fewer comebacks show no pace, nor does a storm of which a smaller share came back.
    comebacks: int = 50
    came_back: float = 0.99
    #: A ramp is over when so many had their first answer.
    ramped: float = 0.995
    #: If the best laws are further than that from a storm, none explains it.
    unexplained: float = 0.25
    #: No storm was repeated to less than that.
    error: float = 0.1
    #: Where CPUs were busy, paces of the same storm were up to so many times each other.
    of_busy: float = 1.5
    #: A CPU was busy all the while that was for this share of it: ticks and readings lag.
    busy: float = 0.8
    #: asyncli and the server need the CPUs if they have so much of one.
    needs_cpu: float = 0.25
    #: asyncli was late if it connected so much later than was due: at least so much (s), and a
    #: share of the time of the storm or the ramp. Less is a busy moment.
    late_s: float = 0.1
    late: float = 0.1
    #: The server was slower than its clients if nine of ten connects and first answers took so
    #: long: at least so much (s), and a share of that time.
    waited_s: float = 0.02
    waited: float = 0.1
    #: A pace that was seen for so long (s) is no chance.
    lasts_s: float = 0.25
    #: How long a process of asyncli takes to end a connection (s), and to open one again.
    end_each_s: float = 25e-6
    connect_each_s: float = 33e-6
    #: In a storm the server and asyncli end as many connections as they open, in a ramp none: so
    #: much longer (s) each connection of a storm takes at most.
    ending_s: float = 100e-6
    #: A pace is no bound of the server's if another part of the run was faster: this is less than
    #: that share of its pace.
    contradicted: float = 0.7
    #: How many times faster a server may accept than answer: the least one that fits is taken.
    least_ratios: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, math.inf)
    #: From this share of the clients on, a bound has to hold.
    half: float = 0.5
    #: Times of comebacks are counted in milliseconds.
    grain_s: float = 1e-3


# Measured in bench/README.md, "The twin".
MARGINS = Margins()


def has_come_back(counts: EventCounts) -> bool:
    """Whether enough of whom an event ended were back to show a pace."""
    came = counts.back_ms.count
    if came < MARGINS.comebacks or counts.ended_again:
        return False
    return came >= MARGINS.came_back * counts.ended


def waited_for_server_s(counts: EventCounts) -> float:
    """How long (s) nine of ten connects, and nine of ten first answers, of an event took."""
    return nine_of_ten_s(counts.connect_us) + nine_of_ten_s(counts.answer_us)


def took_long(waited_s: float, of_s: float) -> bool:
    """Whether connects and first answers took so long that the server was slower than clients."""
    return waited_s > max(MARGINS.waited_s, MARGINS.waited * of_s)


def connected_late(latest_s: float, of_s: float) -> bool:
    """Whether asyncli connected so late that the pace was its own."""
    return latest_s > max(MARGINS.late_s, MARGINS.late * of_s)


def nine_of_ten_s(microseconds: Histogram) -> float:
    """How long (s) nine of ten took at most; 0 without any."""
    value_us = microseconds.quantile(0.9)
    if value_us is None:
        return 0.0
    return value_us / 1e6


def dropped_between(run: Run, start_s: float, end_s: float) -> float | None:
    """How many packets met a full listen queue meanwhile; None where nobody knows."""
    for name in (metrics.SERVER_LISTENERS_DROPPED, f"{metrics.TCP}ListenOverflows"):
        readings = run.series(name)
        if len(readings):
            return _risen(readings, start_s, end_s)
    return None


class StormCpu(msgspec.Struct, frozen=True):
    """Whether asyncli's processes were busy all the while, whether all CPUs of the host were that
    they share with the server, and which share of these other programs had.
    """

    tester_busy: bool
    host_busy: bool
    others: float


def tester_cpu_s(run: Run, start_s: float, end_s: float) -> float:
    """asyncli's CPU time meanwhile (s)."""
    return _risen(run.own_cpu_s, start_s, end_s)


def cpu_use(run: Run, start_s: float, end_s: float) -> StormCpu:
    """Who needed the CPUs meanwhile."""
    lasted_s = end_s - start_s
    tester_s = tester_cpu_s(run, start_s, end_s)
    tester_busy = tester_s > MARGINS.busy * workers_of(run) * lasted_s
    cpus = run.environment.get("cpus")
    if not run.sides.server or not isinstance(cpus, int) or cpus < 1:
        return StormCpu(tester_busy, False, 0.0)
    server_s = _risen(run.series(metrics.SERVER_CPU_S), start_s, end_s)
    host_s = _risen(run.series(metrics.HOST_CPU_BUSY_S), start_s, end_s)
    both_s = tester_s + server_s
    # A server that rests between its accepts needs none.
    needs_cpu = both_s > MARGINS.needs_cpu * lasted_s
    host_busy = needs_cpu and max(both_s, host_s) > MARGINS.busy * cpus * lasted_s
    others = 0.0
    if host_s:
        others = max(0.0, 1 - both_s / host_s)
    return StormCpu(tester_busy, host_busy, others)


def workers_of(run: Run) -> int:
    """How many processes of asyncli connected."""
    return max(1, int(run.environment.get("workers") or 1))


def _risen(counter: Series, start_s: float, end_s: float) -> float:
    """By how much a counter rose from its last reading before ``start_s`` to the first one after
    ``end_s``, or to its last one.
    """
    before = counter.last(until_s=start_s) or 0.0
    after = counter.first(since_s=end_s)
    if after is None:
        after = counter.last() or 0.0
    return max(0.0, after - before)
