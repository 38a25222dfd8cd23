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
from asyncli.records import NOTHING_LISTENS, STOLEN, STOPPED, Asked, CpuShares, Environment, Finding, Severity
from asyncli.units import format_count, format_duration

# A server that fills as much of a core as this is a limit as well, and the two share the blame.
BUSY_SERVER_CORES = 0.85
# The programs that used the most are named, so many, and so many processes of each.
_NAMED, _PIDS_NAMED = 3, 4
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
    of_server = [one.values for one in run.samples if "server.cpu_s" in one.values]
    if len(of_server) < 2:
        return Spent(None, None, None, None, None)
    cpu_s = of_server[-1]["server.cpu_s"] - of_server[0]["server.cpu_s"]
    return _spent(cpu_s, None, run.total.answered, run.elapsed_s)


def _host(cpus: CpuShares | None) -> Host | None:
    if cpus is None:
        return None
    ordered = dict(sorted(cpus.others.items(), key=lambda pair: -pair[1]))
    return Host(cpus.cpus, cpus.busy, sum(ordered.values()), ordered)


def _doubts(run: BenchRun, asked: Asked, generator: Spent, server: Spent) -> Iterable[Finding]:
    total, plan = run.total, run.plan
    if run.ended == "stopped":
        yield Finding(STOPPED, "warning", f"it was stopped by a signal after {format_duration(run.elapsed_s)}, before its end")
    if total.answered and run.ended == "asked" and run.elapsed_s < _SHORT_S:
        evidence = f"all was over in {format_duration(run.elapsed_s)}, too little to say what the server can do"
        yield Finding("short_run", "info", evidence, "ask for more (-n), or for a time (-d 10s)")
    if (busy := _busy(run, generator, server)) is not None:
        yield busy
    if (taken := _taken(run, generator, server)) is not None:
        yield taken
    errors = {status: count for status, count in total.by_status.items() if status >= 400}
    if errors:
        evidence = _answers(errors, total.answered, "were errors")
        yield Finding("error_answers", "error", evidence, "aim at a path that the server answers with 200, or see its error log")
    if failed := sum(asked.failed.values()):
        evidence = f"{_many(failed, 'request was', 'requests were')} never answered whole ({_by_cause(asked.failed)})"
        yield Finding("requests_failed", "error", evidence, "see the server's error log, and its load")
    yield from _of_the_end(run, asked)
    if plan.rate is not None:
        yield from _of_open_loop(run, asked)
    if refused := sum(total.failures.values()):
        evidence = f"{format_count(refused)} of {format_count(total.started)} connects failed ({_by_cause(total.failures)})"
        if total.opened:
            yield Finding("connects_failed", "warning", evidence, "see the server's listen queue and room")
        else:
            yield Finding("connects_failed", "error", evidence, "see that the server runs, and that this is its address and port")
    if len(plan.urls) > 1:
        shares = ", ".join(f"{url} {format_count(asked.by_target.get(number, 0))}" for number, url in enumerate(plan.urls))
        evidence = f"each connection asks for one of the URLs, so a quick one is asked for more often: {shares}"
        yield Finding(
            "several_urls", "info", evidence, "the latencies are those of all together; bench one at a time to tell them apart"
        )
        if len({(target.host, target.port) for target in plan.held.targets}) > 1 and server.cpu_s is not None:
            evidence = f"the CPU of the server is that of {run.environment['server']['label']} alone, and several are asked"
            yield Finding("several_servers", "warning", evidence)
    if (limit := _limit(run, asked)) is not None:
        yield limit
    if asked.resent:
        evidence = (
            f"{_many(asked.resent, 'request was', 'requests were')} asked again: their connection ended before they were answered"
        )
        many = plan.pipeline == 1 and asked.resent > _MANY_RESENT * total.answered
        yield Finding("requests_resent", "warning" if many else "info", evidence, "see the server's error log" if many else "")
    if asked.other_length:
        evidence = f"{_many(asked.other_length, 'answer', 'answers')} had a body of another length than the first one's"
        yield Finding("lengths_differ", "info", evidence)
    elsewhere = {status: count for status, count in total.by_status.items() if status in _REDIRECTS}
    if elsewhere:
        evidence = _answers(elsewhere, total.answered, "sent elsewhere")
        yield Finding("redirected", "warning", f"{evidence}, and nobody went there", "aim at the address that they name")
    if plan.short and asked.keepalive:
        evidence = (
            f"asked to close, the server kept {_many(asked.keepalive, 'connection', 'connections')} open: asyncli closed them"
        )
        yield Finding("close_ignored", "info", evidence)


def _of_the_end(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    """What was not answered, and not asked, when it ended."""
    plan, total = run.plan, run.total
    of_all = f"{format_count(asked.left)} of {format_count(plan.requests or 0)} requests"
    # That nothing listens, or that every address refused, is told otherwise.
    told = not total.opened and not total.answered and set(total.failures) <= {"refused"}
    if run.ended == "gave up" and not told:
        left = f" with {of_all} not asked" if asked.left else ""
        evidence = f"no connection stood for {format_duration(plan.connect_timeout_s)}: asyncli gave up{left}"
        yield Finding("gave_up", "error", evidence, "see that the server runs and has room for the connections")
    elif run.ended == "stopped" and asked.left:
        yield Finding("requests_left", "error", f"it was stopped before {of_all} were asked")
    elif asked.left and run.ended != "gave up":
        yield Finding("requests_left", "info", f"the time was over before {of_all} were asked")
    waited, slowest_us = asked.outstanding_us, total.latency_us.greatest
    late = sum(count for key, count in waited.items() if bounds(key)[0] > _FAR_SLOWER * slowest_us)
    if late and run.ended != "gave up":
        longest_s = waited.greatest / 1e6
        what = f"{format_count(late)} of {_many(asked.in_flight + asked.overdue, 'request', 'requests')} in flight at the end"
        than = f"the slowest answer took {format_duration(slowest_us / 1e6)}" if total.answered else "nothing was answered"
        evidence = f"{what} had waited for up to {format_duration(longest_s)}, and {than}: the latencies leave them out"
        severity: Severity = "error" if longest_s >= _LONG_S else "warning"
        yield Finding("unanswered_at_end", severity, evidence, "see whether the server stands still")


def _answers(by_status: dict[int, int], of: int, what: str) -> str:
    listed = ", ".join(f"HTTP {status}: {format_count(count)}" for status, count in sorted(by_status.items()))
    return f"{format_count(sum(by_status.values()))} of {format_count(of)} answers {what} ({listed})"


def _many(count: int, one: str, several: str) -> str:
    return f"{format_count(count)} {one if count == 1 else several}"


def _by_cause(counts: dict[str, int]) -> str:
    words = {"heartbeat_timeout": "unanswered in time", "protocol_error": "what came is not HTTP"}
    return ", ".join(f"{words.get(cause, cause.replace('_', ' '))}: {format_count(count)}" for cause, count in counts.items())


def _busy(run: BenchRun, generator: Spent, server: Spent) -> Finding | None:
    """Whether the closed loop measured asyncli itself."""
    if run.elapsed_s < _SHORTEST_SPAN_S or generator.cores is None or generator.cores < MOST_CPU_SHARE * run.workers:
        return None
    ours = f"asyncli's {run.workers} processes were" if run.workers > 1 else "asyncli's process was"
    ours = f"{ours} busy for {generator.cores / run.workers:.0%} of the time"
    if server.cores is not None and server.cores >= BUSY_SERVER_CORES:
        theirs = f"and the server for {server.cores:.0%} of a core"
        return Finding("both_busy", "info", f"{ours}, {theirs}: the figures are those of the two together on this host")
    theirs = "" if server.cores is None else f", the server for {server.cores:.0%} of a core"
    evidence = f"{ours}{theirs}: the server can do more than was asked of it"
    return Finding(
        "generator_saturated_cpu", "error", evidence, "use more --workers, or a --rate below this one to see its latency"
    )


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
    shares = f"asyncli used {ours:.2f}" + ("" if server.cores is None else f", the server {server.cores:.2f}")
    evidence = (
        f"this host's {_many(host.cpus, 'CPU was', 'CPUs were')} {min(1.0, host.busy / host.cpus):.0%} busy: {shares}, and other "
        f"programs {used:.2f} ({_named(host)})"
    )
    reached = run.plan.rate is not None and not _misses_rate(run, run.total.asked or Asked())
    if sum(strange.values()) >= MOST_OF_OTHERS * host.cpus:
        effect = "without them the rate may be higher, and the latencies lower"
        if reached:
            effect = "the rate was reached, but their CPU use is in the latencies, which may be lower without them"
        remedy = "stop those programs, or bench from and on quiet hosts, and run again"
        return Finding("host_busy", "warning" if busy else "error", f"{evidence}: {effect}", remedy)
    wrong = "the latencies are too high" if reached else "the rate is too low, and the latencies are too high"
    remedy = f"if they do not work for the server, {wrong}: stop them, and run again"
    return Finding("host_busy", "warning", f"{evidence}, which used less before the first connect", remedy)


def _named(host: CpuShares) -> str:
    """Which others used the most."""
    most = sorted(host.others.items(), key=lambda pair: -pair[1])[:_NAMED]
    named = []
    for name, cores in (pair for pair in most if pair[1] >= most[0][1] / 10):
        pids = host.pids.get(name, ())
        listed = ", ".join(map(str, pids[:_PIDS_NAMED])) + (" and others" if len(pids) > _PIDS_NAMED else "")
        who = f"{name}, {'pid' if len(pids) == 1 else 'pids'} {listed}" if pids else name
        named.append(f"{who}: {cores:.2f}")
    return "; ".join(named)


def _of_open_loop(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    assert run.plan.rate is not None
    late, tail = run.total.lateness_us.quantile(0.99), run.total.latency_us.quantile(0.99)
    if late is not None and late / 1000 > MOST_LATENESS_MS:
        evidence = f"asyncli asked late: p99 {late / 1000:,.0f} ms (bound {MOST_LATENESS_MS:.0f} ms)"
        yield Finding("generator_saturated_late", "error", evidence, "use more --workers, or a lower --rate")
    elif late is not None and tail is not None and late > max(_MOST_OF_TAIL * tail, 1000.0):
        evidence = f"of the total's p99, {tail / 1000:,.1f} ms, asyncli's own lateness may be {late / 1000:,.1f} ms (its p99)"
        yield Finding(
            "late_tail", "warning", evidence, "leave more CPU to asyncli; waiting counts from the write, and is the server's"
        )
    sent = run.total.sent - asked.resent
    if _misses_rate(run, asked):
        achieved = f"{sent / run.elapsed_s:,.0f} requests a second were asked in place of {run.plan.rate:,.0f}"
        evidence = f"{achieved}: no connection was free"
        yield Finding("rate_missed", "error", evidence, "use more connections (-c), or a lower --rate: the server cannot keep up")
    elif asked.queued > 0.01 * sent:
        evidence = f"{format_count(asked.queued)} of {format_count(sent)} requests had to wait for a connection to be free"
        yield Finding("requests_queued", "warning", evidence, "use more connections (-c); the wait is part of their latency")


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
    if ended.requests.greatest <= 1:
        evidence = f"the server closes after each answer: it ended {_many(ended.count, 'connection', 'connections')} so"
        return Finding(
            "connections_ended", "warning", evidence, "it keeps none alive: --short asks it so, and counts the connects"
        )
    evidence = f"the server ended {format_count(ended.count)} connections with notice, after {median:,.0f} answers each (median)"
    remedy = (
        "its limit of requests a connection (nginx: keepalive_requests, Apache: MaxKeepAliveRequests); each cost a new connect"
    )
    return Finding("connections_ended", "info", evidence, remedy)


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
        why = _by_cause(total.failures) or _by_cause(asked.failed) or ("no answer came" if total.sent else "nothing was asked")
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
