"""What a bench says, and when not to believe it: its figures, its doubts and its verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from asyncli.analysis.company import MOST_OF_OTHERS
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.benchplan import BenchPlan, BenchRun
from asyncli.core.histogram import Histogram, bounds
from asyncli.findings import bench
from asyncli.findings.bench import Taker, by_cause
from asyncli.metrics import SERVER_CPU_S
from asyncli.records import NOTHING_LISTENS, STOLEN, Asked, CpuShares, Environment, Finding
from asyncli.units import format_count, format_duration

# A server that fills as much of a core as this is a limit as well, and the two share the blame.
BUSY_SERVER_CORES = 0.85
# The programs that used the most are named, so many.
_NAMED = 3
# An instant kept to a hundredth of a second is early enough for any server that a person waits for.
MOST_LATENESS_MS = 10.0
# An open loop that misses more of its rate than this has not offered the load that it was to offer.
LEAST_RATE_SHARE = 0.99
# What starts and ends a bench is in its CPU time: over less time than this, shares are too rough.
_SHORTEST_SPAN_S = 0.5
# In flight at the end for as much longer than the slowest answer took, and for as long, a request is unanswered.
_FAR_SLOWER, _LONG_S = 2.0, 1.0
# From this part of the latencies' p99 on, our own lateness is worth a word.
_MOST_OF_TAIL = 0.3
# Below this much time a rate is of few answers, and of a start.
_SHORT_S = 0.1
# More requests asked again than this part are no longer the race of a request with the server's closing of an idle connection.
_MANY_RESENT = 0.01
#: Of the percentiles that are printed, in percent.
PERCENTILES = (50, 66, 75, 80, 90, 95, 98, 99, 99.9, 100)

RULE = (
    "passed: everything that was asked was answered below status 400, or was in flight at the end for not much longer than "
    "answers took, and asyncli was not the limit; failed: something was not, or was answered with an error; "
    f"invalid: asyncli asked late (p99 above {MOST_LATENESS_MS:.0f} ms), or was busy for more than {MOST_CPU_SHARE:.0%} of the "
    f"time while the server filled less than {BUSY_SERVER_CORES:.0%} of a core, or neither was that busy and other programs used "
    f"more than {MOST_OF_OTHERS:.0%} of this host's CPUs, which were all busy; untested: nothing was answered"
)

# RFC 9110, 15.4: answers that name another address.
_REDIRECTS = (301, 302, 303, 307, 308)

Verdict = Literal["passed", "failed", "invalid", "untested"]


class Times(msgspec.Struct):
    """Milliseconds of one part of a request; ``mean`` and ``sd`` from a histogram whose middles are within 1/128."""

    min: float
    mean: float
    sd: float
    median: float
    max: float


class Quantiles(msgspec.Struct):
    """Milliseconds; None where nothing was recorded."""

    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None


class Lateness(msgspec.Struct):
    """How late asyncli asked, in milliseconds; of an open loop only."""

    p50: float | None
    p99: float | None
    max: float | None


class Requests(msgspec.Struct):
    """``total`` answered, ``per_s`` of them; ``failed``: never answered, by cause in ``failures``. ``keepalive``: answered on
    a connection that stayed open. ``resent``: asked again after their connection ended. ``queued``: no connection was free
    when they were due. ``in_flight``: outstanding at the end; ``overdue``: of an open loop, due and not asked by then. ``left``:
    of a given number, never asked.
    """

    total: int
    per_s: float
    failed: int
    keepalive: int
    failures: dict[str, int]
    by_status: dict[int, int]
    by_url: dict[str, int]
    other_length: int
    resent: int
    queued: int
    in_flight: int
    overdue: int
    left: int


class Connections(msgspec.Struct):
    """``failed`` attempts that never established, by cause in ``failures``; ``ended``: by cause, while more was to be asked.
    ``requests_each``: answers of a connection that has ended: least, median and most of them.
    """

    opened: int
    failed: int
    failures: dict[str, int]
    ended: dict[str, int]
    requests_each: dict[str, float] | None


class Spent(msgspec.Struct):
    """CPU time in all, of it user and system (None: not told apart), and for each answered request; ``cores``: how many it
    kept busy.
    """

    cpu_s: float | None
    user_s: float | None
    system_s: float | None
    cpu_us_per_request: float | None
    cores: float | None


class Bytes(msgspec.Struct):
    """On the wire above TCP, heads included; ``bodies``: of the answers, without the framing of chunks."""

    received: int
    bodies: int
    sent: int


class Host(msgspec.Struct):
    """This host's CPUs, in cores: ``others`` by the name of programs that are neither asyncli nor the server."""

    cpus: int
    busy_cores: float
    others_cores: float
    others: dict[str, float]


class Benched(msgspec.Struct):
    """Everything a bench says."""

    verdict: Verdict
    why: str
    started: str
    duration_s: float
    complete: bool
    plan: BenchPlan
    workers: int
    requests: Requests
    latency_ms: Quantiles
    #: connect, waiting, processing, total: ab's terms. Connect: once for each connection.
    times_ms: dict[str, Times | None]
    percentiles_ms: dict[str, float]
    lateness_ms: Lateness
    connections: Connections
    bytes: Bytes
    generator: Spent
    server: Spent
    host: Host | None
    findings: list[Finding]
    environment: Environment


def benched(run: BenchRun) -> Benched:
    """What ``run`` says."""
    total, asked = run.total, run.total.asked or Asked()
    failed, refused = sum(asked.failed.values()), sum(total.failures.values())
    generator = _spent(sum(run.cpu_s), run.cpu_s[0], total.answered, run.elapsed_s)
    server = _server(run)
    found = [*run.findings, *_doubts(run, asked, generator, server)]
    verdict, why = _verdict(run, asked, found)
    return Benched(
        verdict=verdict,
        why=why,
        started=run.started,
        duration_s=run.elapsed_s,
        complete=run.complete,
        plan=run.plan,
        workers=run.workers,
        requests=Requests(
            total=total.answered,
            per_s=total.answered / run.elapsed_s if run.elapsed_s > 0 else 0.0,
            failed=failed,
            keepalive=asked.keepalive,
            failures=asked.failed,
            by_status=dict(sorted(total.by_status.items())),
            by_url={url: asked.by_target.get(number, 0) for number, url in enumerate(run.plan.urls)},
            other_length=asked.other_length,
            resent=asked.resent,
            queued=asked.queued,
            in_flight=asked.in_flight,
            overdue=asked.overdue,
            left=asked.left,
        ),
        latency_ms=Quantiles(*_ms(total.latency_us, (0.5, 0.9, 0.99, 0.999, 1.0))),
        times_ms={
            "connect": _times(total.connect_us),
            "waiting": _times(asked.waiting_us),
            "processing": _times(asked.processing_us),
            "total": _times(total.latency_us),
        },
        percentiles_ms={
            f"{percent:g}": value
            for percent, value in zip(PERCENTILES, _ms(total.latency_us, [one / 100 for one in PERCENTILES]), strict=True)
            if value is not None
        },
        lateness_ms=Lateness(*_ms(total.lateness_us, (0.5, 0.99, 1.0))),
        connections=Connections(
            opened=total.opened,
            failed=refused,
            failures=total.failures,
            ended={cause: deaths.count for cause, deaths in total.deaths.items()},
            requests_each=_each(asked.per_connection),
        ),
        bytes=Bytes(total.bytes_received, asked.body_bytes, total.bytes_sent),
        generator=generator,
        server=server,
        host=_host(run.cpus),
        findings=found,
        environment=run.environment,
    )


def _ms(histogram: Histogram, quantiles: Iterable[float]) -> list[float | None]:
    return [None if one is None else one / 1000 for one in histogram.quantiles(tuple(quantiles))]


def _times(histogram: Histogram) -> Times | None:
    if not histogram:
        return None
    count = histogram.count
    middles = [(sum(bounds(key)) / 2, times) for key, times in histogram.items()]
    mean = sum(value * times for value, times in middles) / count
    variance = sum((value - mean) ** 2 * times for value, times in middles) / count
    median = histogram.quantile(0.5) or 0.0
    return Times(histogram.least / 1000, mean / 1000, math.sqrt(variance) / 1000, median / 1000, histogram.greatest / 1000)


def _each(histogram: Histogram) -> dict[str, float] | None:
    median = histogram.quantile(0.5)
    return None if median is None else {"min": float(histogram.least), "median": median, "max": float(histogram.greatest)}


def _spent(cpu_s: float, user_s: float | None, answered: int, elapsed_s: float) -> Spent:
    return Spent(
        cpu_s=cpu_s,
        user_s=user_s,
        system_s=None if user_s is None else cpu_s - user_s,
        cpu_us_per_request=1e6 * cpu_s / answered if answered else None,
        cores=cpu_s / elapsed_s if elapsed_s > 0 else None,
    )


def _server(run: BenchRun) -> Spent:
    """The server's CPU from the first to the last sample: all its processes, those that ended too."""
    of_server = [one.values for one in run.samples if SERVER_CPU_S in one.values]
    if len(of_server) < 2:
        return Spent(None, None, None, None, None)
    cpu_s = of_server[-1][SERVER_CPU_S] - of_server[0][SERVER_CPU_S]
    return _spent(cpu_s, None, run.total.answered, run.elapsed_s)


def _host(cpus: CpuShares | None) -> Host | None:
    if cpus is None:
        return None
    ordered = dict(sorted(cpus.others.items(), key=lambda pair: -pair[1]))
    return Host(cpus.cpus, cpus.busy, sum(ordered.values()), ordered)


def _doubts(run: BenchRun, asked: Asked, generator: Spent, server: Spent) -> Iterable[Finding]:
    total, plan = run.total, run.plan
    if run.ended == "stopped":
        yield bench.stopped(run.elapsed_s)
    if total.answered and run.ended == "asked" and run.elapsed_s < _SHORT_S:
        yield bench.short_run(run.elapsed_s)
    if (busy := _busy(run, generator, server)) is not None:
        yield busy
    if (taken := _taken(run, generator, server)) is not None:
        yield taken
    if errors := {status: count for status, count in total.by_status.items() if status >= 400}:
        yield bench.error_answers(errors, total.answered)
    if sum(asked.failed.values()):
        yield bench.requests_failed(asked.failed)
    yield from _of_the_end(run, asked)
    if plan.rate is not None:
        yield from _of_open_loop(run, asked, plan.rate)
    if sum(total.failures.values()):
        yield bench.connects_failed(total.failures, total.started, total.opened)
    if len(plan.urls) > 1:
        yield bench.several_urls({url: asked.by_target.get(number, 0) for number, url in enumerate(plan.urls)})
        if len({(target.host, target.port) for target in plan.held.targets}) > 1 and server.cpu_s is not None:
            yield bench.several_servers(run.environment["server"]["label"])
    if (limit := _limit(run, asked)) is not None:
        yield limit
    if asked.resent:
        yield bench.requests_resent(asked.resent, plan.pipeline == 1 and asked.resent > _MANY_RESENT * total.answered)
    if asked.other_length:
        yield bench.lengths_differ(asked.other_length)
    if elsewhere := {status: count for status, count in total.by_status.items() if status in _REDIRECTS}:
        yield bench.redirected(elsewhere, total.answered)
    if plan.short and asked.keepalive:
        yield bench.close_ignored(asked.keepalive)


def _of_the_end(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    """What was not answered, and not asked, when it ended."""
    plan, total = run.plan, run.total
    # That nothing listens, or that every address refused, is told otherwise.
    told = not total.opened and not total.answered and set(total.failures) <= {"refused"}
    if run.ended == "gave up" and not told:
        yield bench.gave_up(plan.connect_timeout_s, asked.left, plan.requests or 0)
    elif asked.left and run.ended != "gave up":
        yield bench.requests_left(asked.left, plan.requests or 0, run.ended == "stopped")
    waited, slowest_us = asked.outstanding_us, total.latency_us.greatest
    late = sum(count for key, count in waited.items() if bounds(key)[0] > _FAR_SLOWER * slowest_us)
    if late and run.ended != "gave up":
        longest_s, slowest_s = waited.greatest / 1e6, slowest_us / 1e6 if total.answered else None
        yield bench.unanswered_at_end(late, asked.in_flight + asked.overdue, longest_s, slowest_s, longest_s >= _LONG_S)


def _busy(run: BenchRun, generator: Spent, server: Spent) -> Finding | None:
    """Whether the closed loop measured asyncli itself."""
    if run.elapsed_s < _SHORTEST_SPAN_S or generator.cores is None or generator.cores < MOST_CPU_SHARE * run.workers:
        return None
    busy = generator.cores / run.workers
    if server.cores is not None and server.cores >= BUSY_SERVER_CORES:
        return bench.both_busy(run.workers, busy, server.cores)
    return bench.saturated_cpu(run.workers, busy, server.cores)


def _taken(run: BenchRun, generator: Spent, server: Spent) -> Finding | None:
    """Whether other programs had CPUs that the bench wanted.

    What a program used before the first connect too is no work of the server's. What rose with the bench may be its backend, or
    the server itself where nobody could tell which it is.
    """
    host, before = run.cpus, run.cpus_before
    if host is None or before is None or run.elapsed_s < _SHORTEST_SPAN_S or host.busy < MOST_CPU_SHARE * host.cpus:
        return None
    if (used := sum(host.others.values())) < MOST_OF_OTHERS * host.cpus:
        return None
    strange = {name: used if name == STOLEN else min(used, before.others.get(name, 0.0)) for name, used in host.others.items()}
    rose = (used - strange[name] for name, used in host.others.items())
    ours = generator.cores or 0.0
    busy = max(server.cores or 0.0, *rose, 0.0) >= BUSY_SERVER_CORES or ours >= MOST_CPU_SHARE * run.workers
    reached = run.plan.rate is not None and not _misses_rate(run, run.total.asked or Asked())
    strangers = sum(strange.values()) >= MOST_OF_OTHERS * host.cpus
    return bench.host_busy(host.cpus, host.busy, ours, server.cores, used, _named(host), strangers, reached, busy)


def _named(host: CpuShares) -> list[Taker]:
    """Which others used the most."""
    most = sorted(host.others.items(), key=lambda pair: -pair[1])[:_NAMED]
    return [{"name": name, "pids": host.pids.get(name, ()), "cores": cores} for name, cores in most if cores >= most[0][1] / 10]


def _of_open_loop(run: BenchRun, asked: Asked, rate: float) -> Iterable[Finding]:
    late_us, tail_us = run.total.lateness_us.quantile(0.99), run.total.latency_us.quantile(0.99)
    if late_us is not None and late_us > 1e3 * MOST_LATENESS_MS:
        yield bench.saturated_late(late_us / 1e6, MOST_LATENESS_MS / 1e3)
    elif late_us is not None and tail_us is not None and late_us > max(_MOST_OF_TAIL * tail_us, 1000.0):
        yield bench.late_tail(tail_us / 1e6, late_us / 1e6)
    sent = run.total.sent - asked.resent
    if _misses_rate(run, asked):
        yield bench.rate_missed(sent / run.elapsed_s, rate)
    elif asked.queued > 0.01 * sent:
        yield bench.requests_queued(asked.queued, sent)


def _misses_rate(run: BenchRun, asked: Asked) -> bool:
    """Whether an open loop asked less often than it was to."""
    due = (run.plan.rate or 0.0) * run.elapsed_s
    if run.plan.requests is not None:
        due = min(due, float(run.plan.requests))
    return run.total.sent - asked.resent < LEAST_RATE_SHARE * due - 1


def _limit(run: BenchRun, asked: Asked) -> Finding | None:
    """What the server allows a connection, where it ended some with notice."""
    ended = run.total.deaths.get("closed_announced")
    if ended is None or run.plan.short:
        return None
    median = ended.requests.quantile(0.5) or 0.0
    return bench.connections_ended(ended.count, median, ended.requests.greatest <= 1)


def _verdict(run: BenchRun, asked: Asked, findings: list[Finding]) -> tuple[Verdict, str]:
    total = run.total
    ours = [one for one in findings if one.code in _OURS and one.severity == "error"]
    # An answer that is an error is the server's, however busy we were; but not where part of the count is missing.
    errors = [one for one in findings if one.code == "error_answers"]
    if errors and all(one.code in _LIMITS for one in ours):
        return "failed", errors[0].evidence
    if ours:
        return "invalid", ours[0].evidence
    if not total.answered:
        if here := next((one.evidence for one in run.findings if one.code == NOTHING_LISTENS), None):
            return "untested", here
        why = by_cause(total.failures) or by_cause(asked.failed) or ("no answer came" if total.sent else "nothing was asked")
        return "untested", f"nothing was answered ({why})"
    errors = [one for one in findings if one.severity == "error"]
    if errors:
        return "failed", errors[0].evidence
    rate = f"{total.answered / run.elapsed_s:,.0f} a second, none failed"
    early = " (stopped before its end)" if run.ended == "stopped" else ""
    return "passed", f"{format_count(total.answered)} requests in {format_duration(run.elapsed_s)}{early}: {rate}"


# Findings of our own limits, and of all that is our own fault.
_LIMITS = frozenset({"generator_saturated_cpu", "generator_saturated_late", "host_busy"})
_OURS = _LIMITS | {
    "asyncli_failed", "generator_failed", "generator_silent", "requests_unaccounted", "worker_lost", "worker_silent",
}  # fmt: skip
