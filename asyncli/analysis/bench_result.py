"""The figures, findings and verdict of a bench. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import msgspec

from asyncli.analysis.bench_doubts import (
    BUSY_SERVER_CORES,
    MOST_LATENESS_MS,
    CpuUse,
    bench_findings,
)
from asyncli.analysis.handshakes import TlsPart, tls_findings, tls_part
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.analysis.shared_host import MOST_OF_OTHERS
from asyncli.analysis.totals import Latency, Lateness, in_ms
from asyncli.analysis.verdict import but_allowed
from asyncli.core.histogram import Histogram
from asyncli.findings import losses
from asyncli.findings.bench import by_cause
from asyncli.findings.tls import by_reason
from asyncli.model.benchplan import BenchPlan, BenchRun
from asyncli.model.metrics import SERVER_CPU_S
from asyncli.model.records import NOTHING_LISTENS, Asked, CpuShares, Environment, Finding
from asyncli.model.units import format_count, format_duration, format_rate, format_share

Verdict = Literal["passed", "failed", "invalid", "untested"]
RULE = (
    "passed: every request was answered below status 400 (a --fail-if on a status replaces that "
    "for it), or in flight at the end for not much longer than answers took; failed: else; "
    f"invalid: asyncli sent late (p99 above {MOST_LATENESS_MS:.0f} ms), or was busy for more than "
    f"{format_share(MOST_CPU_SHARE)} of the time while the server used less than "
    f"{format_share(BUSY_SERVER_CORES)} of a core, or other programs used more than "
    f"{format_share(MOST_OF_OTHERS)} of this host's busy CPUs; untested: nothing was answered"
)


class Times(msgspec.Struct):
    """The times of one part of a request, in ms. All are of one histogram, exact to 1/128: the
    records of a bucket lie evenly between its bounds and the extremes, so ``mean`` and ``median``
    are between ``min`` and ``max``; ``sd`` is 0 if those agree.
    """

    min: float
    mean: float
    sd: float
    median: float
    max: float


class Requests(msgspec.Struct):
    """``total``: answered. ``failed``: never answered, by cause in ``failures``. ``keepalive``:
    answered on a connection that stayed open. ``resent``: sent again after their connection ended.
    ``queued``: waited for a free connection. At the end of the bench: ``in_flight``, ``overdue``
    (open loop: due and not sent) and ``left`` (of -n: not sent).
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


class BenchConnections(msgspec.Struct):
    """``failed`` attempts by cause in ``failures``; ``ended`` by cause, before the last request.
    ``requests_each``: answers per connection that ended: min, median, max.
    """

    opened: int
    failed: int
    failures: dict[str, int]
    ended: dict[str, int]
    requests_each: dict[str, float] | None


class Bytes(msgspec.Struct):
    """Bytes above TCP, heads included; ``bodies``: of answers, without chunk framing."""

    received: int
    bodies: int
    sent: int


class BenchHost(msgspec.Struct):
    """CPU of this host, in cores; ``others``: by name of programs that are neither asyncli nor the
    server.
    """

    cpus: int
    busy_cores: float
    others_cores: float
    others: dict[str, float]


class BenchResult(msgspec.Struct):
    """All results of a bench."""

    verdict: Verdict
    why: str
    started: str
    duration_s: float
    complete: bool
    plan: BenchPlan
    workers: int
    requests: Requests
    latency_ms: Latency
    #: connect (once per connection), waiting, processing, total, like ab.
    times_ms: dict[str, Times | None]
    percentiles_ms: dict[str, float]
    lateness_ms: Lateness
    connections: BenchConnections
    bytes: int
    transfer: Bytes
    generator: CpuUse
    server: CpuUse
    host: BenchHost | None
    findings: list[Finding]
    environment: Environment
    tls: TlsPart | msgspec.UnsetType = msgspec.UNSET


def evaluate_bench(run: BenchRun, limited: Collection[str] = ()) -> BenchResult:
    """The results of ``run``. ``limited``: keys with a --fail-if."""
    total = run.total
    asked = total.asked or Asked()
    failed = sum(asked.failed.values())
    generator = _spent(sum(run.cpu_s), run.cpu_s[0], total.answered, run.elapsed_s)
    server = _server(run)
    objects = max((tick.tls.objects for _, tick in run.ticks if tick.tls is not None), default=0)
    tls: TlsPart | msgspec.UnsetType = msgspec.UNSET
    if total.tls is not None:
        tls = tls_part(total.tls, not run.plan.insecure, objects)
    findings = [*run.findings, *bench_findings(run, asked, generator, server, limited)]
    if total.queue_full:
        findings.append(losses.listen("full", total.queue_full, "", None))
    findings += tls_findings(tls, run.environment, started=run.started, run_s=run.elapsed_s)
    verdict, why = _verdict(run, asked, findings)
    per_s = 0.0
    if run.elapsed_s > 0:
        per_s = total.answered / run.elapsed_s
    return BenchResult(
        verdict=verdict,
        why=why,
        started=run.started,
        duration_s=run.elapsed_s,
        complete=run.complete,
        plan=run.plan,
        workers=run.workers,
        requests=Requests(
            total=total.answered,
            per_s=per_s,
            failed=failed,
            keepalive=asked.keepalive,
            failures=asked.failed,
            by_status=dict(sorted(total.by_status.items())),
            by_url={
                url: asked.by_target.get(number, 0) for number, url in enumerate(run.plan.urls)
            },
            other_length=asked.other_length,
            resent=asked.resent,
            queued=asked.queued,
            in_flight=asked.in_flight,
            overdue=asked.overdue,
            left=asked.left,
        ),
        latency_ms=Latency(*in_ms(total.latency_us, 0.5, 0.9, 0.99, 0.999, 1.0)),
        times_ms={
            "connect": _times(total.connect_us),
            "waiting": _times(asked.waiting_us),
            "processing": _times(asked.processing_us),
            "total": _times(total.latency_us),
        },
        # The percentiles of ab.
        percentiles_ms={
            f"{percent:g}": value
            for percent in (50, 66, 75, 80, 90, 95, 98, 99, 99.9, 100)
            for value in in_ms(total.latency_us, percent / 100)
            if value is not None
        },
        lateness_ms=Lateness(*in_ms(total.lateness_us, 0.5, 0.99, 1.0)),
        connections=BenchConnections(
            opened=total.opened,
            failed=total.failed,
            failures=total.failures,
            ended=total.lost_by_cause,
            requests_each=_each(asked.per_connection),
        ),
        bytes=total.bytes_received,
        transfer=Bytes(total.bytes_received, asked.body_bytes, total.bytes_sent),
        generator=generator,
        server=server,
        host=_host(run.cpus),
        findings=findings,
        environment=run.environment,
        tls=tls,
    )


def _times(histogram: Histogram) -> Times | None:
    if not histogram:
        return None
    count = histogram.count
    buckets = [(*histogram.within(key), times) for key, times in histogram.items()]
    mean = sum((low + high) / 2 * times for low, high, times in buckets) / count
    # The variance of n whole numbers in a row is (n² - 1) / 12.
    spread = (
        ((low + high) / 2 - mean) ** 2 + ((high - low + 1) ** 2 - 1) / 12
        for low, high, _ in buckets
    )
    squares = zip(spread, buckets, strict=True)
    variance = sum(square * times for square, (*_, times) in squares) / count
    median = histogram.quantile(0.5) or 0.0
    return Times(
        histogram.least / 1000,
        mean / 1000,
        math.sqrt(variance) / 1000,
        median / 1000,
        histogram.greatest / 1000,
    )


def _each(histogram: Histogram) -> dict[str, float] | None:
    median = histogram.quantile(0.5)
    if median is None:
        return None
    return {"min": float(histogram.least), "median": median, "max": float(histogram.greatest)}


def _spent(cpu_s: float, user_s: float | None, answered: int, elapsed_s: float) -> CpuUse:
    system_s = None
    if user_s is not None:
        system_s = cpu_s - user_s
    us_per_request = None
    if answered:
        us_per_request = 1e6 * cpu_s / answered
    cores = None
    if elapsed_s > 0:
        cores = cpu_s / elapsed_s
    return CpuUse(cpu_s, user_s, system_s, us_per_request, cores)


def _server(run: BenchRun) -> CpuUse:
    """The server's CPU from the first to the last sample, ended processes included."""
    readings = [
        sample.values[SERVER_CPU_S] for sample in run.samples if SERVER_CPU_S in sample.values
    ]
    if len(readings) < 2:
        return CpuUse(None, None, None, None, None)
    cpu_s = readings[-1] - readings[0]
    return _spent(cpu_s, None, run.total.answered, run.elapsed_s)


def _host(cpus: CpuShares | None) -> BenchHost | None:
    if cpus is None:
        return None
    ordered = dict(sorted(cpus.others.items(), key=lambda pair: -pair[1]))
    return BenchHost(cpus.cpus, cpus.busy, sum(ordered.values()), ordered)


def _verdict(run: BenchRun, asked: Asked, findings: list[Finding]) -> tuple[Verdict, str]:
    total = run.total
    serious = [finding for finding in findings if finding.severity == "error"]
    by_asyncli = [finding for finding in serious if finding.code in _OURS]
    is_load_alone = all(finding.code in _LIMITS for finding in by_asyncli)
    error_answers = [finding for finding in findings if finding.code == "error_answers"]
    # Error answers are the server's fault, unless part of the count is missing.
    if error_answers and is_load_alone:
        return "failed", error_answers[0].evidence
    # Without any answer, load is no explanation.
    if by_asyncli and (total.answered or not is_load_alone):
        return "invalid", by_asyncli[0].evidence
    if not total.answered:
        return "untested", _why_unanswered(run, asked)
    if serious:
        return "failed", serious[0].evidence
    rate = format_rate(total.answered / run.elapsed_s)
    early = " (stopped before its end)" if run.ended == "stopped" else ""
    requests = f"{format_count(total.answered)} requests in {format_duration(run.elapsed_s)}{early}"
    return "passed", but_allowed(f"{requests}: {rate}, none failed", total, "request")


def _why_unanswered(run: BenchRun, asked: Asked) -> str:
    for finding in run.findings:
        if finding.code == NOTHING_LISTENS:
            return finding.evidence
    total = run.total
    why = by_cause(total.failures) or by_cause(asked.failed)
    if not why:
        why = "no answer came" if total.sent else "nothing was sent"
    tls_reasons = "" if total.tls is None else by_reason(total.tls.failed or total.tls.ended)
    if tls_reasons:
        return f"nothing was answered ({why}; TLS: {tls_reasons})"
    return f"nothing was answered ({why})"


# Findings of asyncli's own limits, and of its failures.
_LIMITS = frozenset({"generator_saturated_cpu", "generator_saturated_late", "host_busy"})
_OURS = _LIMITS | {
    "asyncli_failed",
    "generator_failed",
    "generator_silent",
    "requests_unaccounted",
    "worker_lost",
    "worker_silent",
}
