"""Findings of a bench: where asyncli or other programs were the limit, and what was not
answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from asyncli.analysis.constants import WORTH_TELLING
from asyncli.analysis.saturation import MOST_CPU_SHARE
from asyncli.analysis.shared_host import MOST_OF_OTHERS
from asyncli.analysis.totals import errors, redirects
from asyncli.core.histogram import bounds
from asyncli.findings import bench, losses
from asyncli.findings.bench import Taker
from asyncli.findings.server import several_servers
from asyncli.model.benchplan import BenchRun
from asyncli.model.records import STOLEN, Asked, CpuShares, Finding

#: At this share of a core the server is a limit too.
BUSY_SERVER_CORES = 0.85
# 10 ms: late enough to matter to a server with human users.
MOST_LATENESS_MS = 10.0
# CPU time includes start and end of the bench: over less time, shares are too rough.
_SHORTEST_SPAN_S = 0.5


class CpuUse(msgspec.Struct):
    """CPU time: user and system (None if not read separately), per answered request, and the mean
    number of ``cores`` in use.
    """

    cpu_s: float | None
    user_s: float | None
    system_s: float | None
    cpu_us_per_request: float | None
    cores: float | None


def bench_findings(
    run: BenchRun, asked: Asked, generator: CpuUse, server: CpuUse, limited: Collection[str]
) -> Iterable[Finding]:
    """The findings of a bench. ``limited``: keys with a --fail-if."""
    yield from _its_length(run)
    yield from _limits_of_hosts(run, generator, server)
    yield from _requests_that_failed(run, asked, limited)
    yield from _end(run, asked)
    if run.plan.rate is not None:
        yield from _open_loop(run, asked, run.plan.rate)
    if run.total.failed:
        yield bench.connects_failed(run.total.failures, run.total.started, run.total.opened)
    yield from _targets(run, asked, server)
    yield from _connections_ended(run)
    yield from _odd_answers(run, asked)


def _its_length(run: BenchRun) -> Iterable[Finding]:
    if run.ended == "stopped":
        yield bench.stopped(run.elapsed_s)
    if run.total.answered and run.ended == "asked" and run.elapsed_s < 0.1:
        yield bench.short_run(run.elapsed_s)


def _limits_of_hosts(run: BenchRun, generator: CpuUse, server: CpuUse) -> Iterable[Finding]:
    busy = _busy(run, generator, server)
    if busy is not None:
        yield busy
    taken = _cpus_taken(run, generator, server)
    if taken is not None:
        yield taken


def _requests_that_failed(
    run: BenchRun, asked: Asked, limited: Collection[str]
) -> Iterable[Finding]:
    total = run.total
    wrong = errors(total, limited)
    if wrong:
        yield bench.error_answers(wrong, total.answered, total.tls is not None)
    if sum(asked.failed.values()):
        yield bench.requests_failed(asked.failed, {} if total.tls is None else total.tls.ended)


def _targets(run: BenchRun, asked: Asked, server: CpuUse) -> Iterable[Finding]:
    plan = run.plan
    if len(plan.urls) < 2:
        return
    yield bench.several_urls(
        {url: asked.by_target.get(number, 0) for number, url in enumerate(plan.urls)}
    )
    places = {(target.host, target.port) for target in plan.held.targets}
    if len(places) > 1 and server.cpu_s is not None:
        yield several_servers(run.environment["server"]["label"])


def _odd_answers(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    plan, total = run.plan, run.total
    if asked.resent:
        # A few are a race between a request and the server's close of an idle connection.
        yield bench.requests_resent(
            asked.resent, plan.pipeline == 1 and asked.resent > WORTH_TELLING * total.answered
        )
    if asked.other_length:
        yield bench.lengths_differ(asked.other_length)
    elsewhere = redirects(total)
    if elsewhere:
        yield losses.redirected(elsewhere, total.answered, from_s=None)
    if plan.short and asked.keepalive:
        yield bench.close_ignored(asked.keepalive)


def _end(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    plan = run.plan
    total = run.total
    # Other findings report that nothing listens or that every address refused.
    reported = not total.opened and not total.answered and set(total.failures) <= {"refused"}
    if run.ended == "gave up":
        if not reported:
            yield bench.gave_up(plan.connect_timeout_s, asked.left, plan.requests or 0)
        return
    if asked.left:
        yield bench.requests_left(asked.left, plan.requests or 0, run.ended == "stopped")
    yield from _unanswered_at_end(run, asked)


def _unanswered_at_end(run: BenchRun, asked: Asked) -> Iterable[Finding]:
    """Requests in flight for far longer than the slowest answer took."""
    waited = asked.outstanding_us
    slowest_us = run.total.latency_us.greatest
    late = sum(count for key, count in waited.items() if bounds(key)[0] > 2 * slowest_us)
    if not late:
        return
    longest_s = waited.greatest / 1e6
    slowest_s = slowest_us / 1e6 if run.total.answered else None
    yield bench.unanswered_at_end(
        late, asked.in_flight + asked.overdue, longest_s, slowest_s, longest_s >= 1.0
    )


def _busy(run: BenchRun, generator: CpuUse, server: CpuUse) -> Finding | None:
    """Whether asyncli was the limit of a closed loop."""
    if run.elapsed_s < _SHORTEST_SPAN_S or generator.cores is None:
        return None
    if generator.cores < MOST_CPU_SHARE * run.workers:
        return None
    busy = generator.cores / run.workers
    if server.cores is not None and server.cores >= BUSY_SERVER_CORES:
        return bench.both_busy(run.workers, busy, server.cores)
    return bench.saturated_cpu(run.workers, busy, server.cores)


def _cpus_taken(run: BenchRun, generator: CpuUse, server: CpuUse) -> Finding | None:
    """A finding if other programs used CPUs that the bench needed; load that rose with it may be
    the server's backend.
    """
    host = run.cpus
    before = run.cpus_before
    if host is None or before is None or run.elapsed_s < _SHORTEST_SPAN_S:
        return None
    used = sum(host.others.values())
    if host.busy < MOST_CPU_SHARE * host.cpus or used < MOST_OF_OTHERS * host.cpus:
        return None
    unrelated, most_risen = _before_and_since(host, before)
    own = generator.cores or 0.0
    server_is_busy = max(server.cores or 0.0, most_risen) >= BUSY_SERVER_CORES
    busy = server_is_busy or own >= MOST_CPU_SHARE * run.workers
    reached = run.plan.rate is not None and not _misses_rate(run, run.total.asked or Asked())
    from_before = unrelated >= MOST_OF_OTHERS * host.cpus
    takers = _takers(host)
    return bench.host_busy(
        host.cpus, host.busy, own, server.cores, used, takers, from_before, reached, busy
    )


def _before_and_since(host: CpuShares, before: CpuShares) -> tuple[float, float]:
    """The cores that others used before the bench as well, and the most by which one rose."""
    unrelated = 0.0
    most_risen = 0.0
    for name, cores in host.others.items():
        as_before = cores
        if name != STOLEN:
            as_before = min(cores, before.others.get(name, 0.0))
        unrelated += as_before
        most_risen = max(most_risen, cores - as_before)
    return unrelated, most_risen


def _takers(host: CpuShares) -> list[Taker]:
    """The three programs that used most, without those that used less than a tenth as much."""
    by_use = sorted(host.others.items(), key=lambda pair: -pair[1])[:3]
    takers: list[Taker] = []
    for name, cores in by_use:
        if cores >= by_use[0][1] / 10:
            takers.append({"name": name, "pids": host.pids.get(name, ()), "cores": cores})
    return takers


def _open_loop(run: BenchRun, asked: Asked, rate: float) -> Iterable[Finding]:
    late_us = run.total.lateness_us.quantile(0.99)
    tail_us = run.total.latency_us.quantile(0.99)
    if late_us is not None and late_us > 1e3 * MOST_LATENESS_MS:
        yield bench.saturated_late(late_us / 1e6, MOST_LATENESS_MS / 1e3)
    elif late_us is not None and tail_us is not None and late_us > max(0.3 * tail_us, 1000.0):
        yield bench.late_tail(tail_us / 1e6, late_us / 1e6)
    sent = run.total.sent - asked.resent
    if _misses_rate(run, asked):
        yield bench.rate_missed(sent / run.elapsed_s, rate)
    elif asked.queued > WORTH_TELLING * sent:
        yield bench.requests_queued(asked.queued, sent)


def _misses_rate(run: BenchRun, asked: Asked) -> bool:
    """Whether an open loop sent fewer requests than --rate asks for."""
    due = (run.plan.rate or 0.0) * run.elapsed_s
    if run.plan.requests is not None:
        due = min(due, float(run.plan.requests))
    return run.total.sent - asked.resent < (1 - WORTH_TELLING) * due - 1


def _connections_ended(run: BenchRun) -> Iterable[Finding]:
    ended = run.total.deaths.get("closed_announced")
    if ended is not None and not run.plan.short:
        yield bench.connections_ended(
            ended.count, ended.requests.quantile(0.5) or 0.0, ended.requests.greatest <= 1
        )
