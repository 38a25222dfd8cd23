"""Findings of a bench: failed requests, and where asyncli or this host was the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.findings.generator import BENCH_AGAIN
from asyncli.findings.losses import allowed_by, remedy_of_statuses
from asyncli.findings.tls import TLS_REMEDY, by_reason
from asyncli.model.records import Severity
from asyncli.model.units import (
    format_count,
    format_duration,
    format_many,
    format_rate,
    format_share,
)

_ERROR_LOG = "see the server's error log"
# The sentence names this many processes of a program.
_PIDS_NAMED = 4


class Taker(TypedDict):
    """Other programs of one name, and how many cores they used."""

    name: str
    pids: Sequence[int]
    cores: float


def by_cause(counts: Mapping[str, int]) -> str:
    """``timed out: 3, reset: 1``."""
    words = {"heartbeat_timeout": "timed out", "protocol_error": "no answer that asyncli can read"}
    parts = []
    for cause, count in counts.items():
        name = words.get(cause, cause.replace("_", " "))
        parts.append(f"{name}: {format_count(count)}")
    return ", ".join(parts)


def _error_answers(by_status: Mapping[int, int], of: int) -> str:
    counts = []
    for status, count in sorted(by_status.items()):
        counts.append(f"HTTP {status}: {format_count(count)}")
    errors = format_count(sum(by_status.values()))
    return f"{errors} of {format_count(of)} answers were errors ({', '.join(counts)})"


def _taker(taker: Taker) -> str:
    pids = taker["pids"]
    if not pids:
        return f"{taker['name']}: {taker['cores']:.2f}"
    if len(pids) == 1:
        return f"{taker['name']}, pid {pids[0]}: {taker['cores']:.2f}"
    listed = ", ".join(map(str, pids[:_PIDS_NAMED]))
    if len(pids) > _PIDS_NAMED:
        listed += " and others"
    return f"{taker['name']}, pids {listed}: {taker['cores']:.2f}"


@finding("stopped_by_user", "warning")
def stopped(after_s: float) -> str:
    """A signal ended the bench early."""
    return f"stopped by a signal after {format_duration(after_s)}"


@finding("short_run", "info", "ask for more requests (-n), or for a time (-d 10s)")
def short_run(for_s: float) -> str:
    """The bench lasted less than a tenth of a second: too short for a rate."""
    return f"all requests were answered in {format_duration(for_s)}, too short for a rate"


@finding("error_answers", "error")
def error_answers(by_status: Mapping[int, int], of: int, over_tls: bool) -> Words:
    """Answers had a status of 400 or more, without a limit of --fail-if on it."""
    remedy = remedy_of_statuses(by_status, of, over_tls=over_tls)
    remedy += allowed_by(by_status, of, "requests")
    return Words(_error_answers(by_status, of), remedy)


@finding("requests_failed", "error", f"{_ERROR_LOG}, and its load")
def requests_failed(failures: Mapping[str, int], tls: Mapping[str, int]) -> Words:
    """Requests got no complete answer: their connection ended, or they timed out. ``tls``: those
    ended by TLS, by reason.
    """
    if tls:
        return Words(
            f"{format_many(sum(failures.values()), 'request')} got no complete answer "
            f"({by_cause(failures)}); TLS ended connections: {by_reason(tls)}",
            TLS_REMEDY,
        )
    return Words(
        f"{format_many(sum(failures.values()), 'request')} got no complete answer "
        f"({by_cause(failures)})"
    )


@finding("connects_failed", "warning")
def connects_failed(failures: Mapping[str, int], of: int, opened: int) -> Words:
    """Connects failed; an error if none succeeded."""
    remedy = "see that the server runs and that address and port are right"
    if opened:
        remedy = "see the server's listen queue and limits"
    return Words(
        f"{format_count(sum(failures.values()))} of {format_count(of)} connects failed "
        f"({by_cause(failures)})",
        remedy,
        None if opened else "error",
    )


@finding("several_urls", "info", "bench one URL at a time to compare them")
def several_urls(by_url: Mapping[str, int]) -> str:
    """The figures cover several URLs together."""
    shares = ", ".join(f"{url} {format_count(count)}" for url, count in by_url.items())
    return f"each connection requests one URL, so fast ones get more requests: {shares}"


@finding("requests_resent", "info")
def requests_resent(count: int, many: bool) -> Words:
    """Requests were sent again because their connection ended before an answer, for example because
    the server closed it while idle. A warning if there are too many for that. ``many``: whether
    there are.
    """
    evidence = (
        f"{format_many(count, 'request')} sent again, because the connection ended before an answer"
    )
    if many:
        return Words(evidence, _ERROR_LOG, "warning")
    return Words(evidence)


@finding("lengths_differ", "info")
def lengths_differ(count: int) -> str:
    """Some bodies have another length than the first."""
    return f"{format_many(count, 'answer')} had a body of another length than the first"


@finding("close_ignored", "info")
def close_ignored(count: int) -> str:
    """The server kept connections open although the request asked it to close them."""
    return (
        f"the server ignored 'Connection: close' on {format_many(count, 'connection')}; asyncli "
        "closed them"
    )


@finding("gave_up", "error", "see that the server runs and can accept the connections")
def gave_up(after_s: float, left: int, of: int) -> str:
    """The bench ended because no connection was open for too long. ``left``: requests that were not
    sent.
    """
    if not left:
        return f"gave up after {format_duration(after_s)} without any connection"
    return (
        f"gave up after {format_duration(after_s)} without any connection, "
        f"with {format_count(left)} of {format_count(of)} requests not sent"
    )


@finding("requests_left", "info")
def requests_left(left: int, of: int, stopped: bool) -> Words:
    """The bench ended before the planned number of requests. An error if a signal ended it."""
    why = "it was stopped" if stopped else "the time was up"
    severity: Severity | None = "error" if stopped else None
    return Words(
        f"{format_count(left)} of {format_count(of)} requests were not sent: {why}", "", severity
    )


@finding("unanswered_at_end", "warning", "see whether the server is stopped")
def unanswered_at_end(
    count: int, of: int, longest_s: float, slowest_s: float | None, stands: bool
) -> Words:
    """Requests in flight at the end had waited far longer than the slowest answer (None: none).
    ``stands``: 1 s or more.
    """
    than = "nothing was answered"
    if slowest_s is not None:
        than = f"the slowest answer took {format_duration(slowest_s)}"
    return Words(
        f"{format_count(count)} of {format_many(of, 'request')} in flight at the end had waited "
        f"up to {format_duration(longest_s)} ({than}); latencies exclude them",
        severity="error" if stands else None,
    )


def _asyncli_was_busy(workers: int, busy: float) -> str:
    if workers > 1:
        return f"asyncli's {workers} processes were busy for {format_share(busy)} of the time"
    return f"asyncli's process was busy for {format_share(busy)} of the time"


@finding("both_busy", "info")
def both_busy(workers: int, busy: float, server_cores: float) -> str:
    """asyncli's processes were fully busy, and so was a core of the server: either may be the
    limit. ``busy``: the share of asyncli's cores.
    """
    return (
        f"{_asyncli_was_busy(workers, busy)}, the server for {format_share(server_cores)} "
        "of a core: either may be the limit on this host"
    )


@finding(
    "generator_saturated_cpu",
    "error",
    "use more --workers, or a --rate below this one to see the server's latency",
)
def saturated_cpu(workers: int, busy: float, server_cores: float | None) -> str:
    """asyncli's processes were fully busy and the server was not: the bench measured asyncli.
    ``busy``: the share of asyncli's cores.
    """
    if server_cores is None:
        return f"{_asyncli_was_busy(workers, busy)}: the server can do more"
    return (
        f"{_asyncli_was_busy(workers, busy)}, the server for {format_share(server_cores)} "
        "of a core: the server can do more"
    )


@finding("host_busy", "warning")
def host_busy(
    cpus: int,
    busy_cores: float,
    generator_cores: float,
    server_cores: float | None,
    others_cores: float,
    takers: Sequence[Taker],
    before: bool,
    reached: bool,
    ours_busy: bool,
) -> Words:
    """All CPUs of this host were busy, a good part of them with programs other than asyncli and the
    server. If they used as much before the first connect, they do not work for the server: an error
    unless asyncli or the server was busy too. ``before``: they did; ``reached``: the planned rate
    was.
    """
    cores = f"asyncli used {generator_cores:.2f}"
    if server_cores is not None:
        cores += f", the server {server_cores:.2f}"
    cores += f", and other programs {others_cores:.2f} ({'; '.join(map(_taker, takers))})"
    evidence = (
        f"{format_share(min(1.0, busy_cores / cpus))} of this host's {format_many(cpus, 'CPU')} "
        f"was busy: {cores}"
    )
    wrong = (
        "latencies may be too high"
        if reached
        else "the rate may be too low, and latencies too high"
    )
    if before:
        severity: Severity = "warning" if ours_busy else "error"
        return Words(
            f"{evidence}: {wrong}",
            "stop those programs, or use quiet hosts, and run again",
            severity,
        )
    return Words(
        f"{evidence}, which used less before the first connect",
        f"unless they work for the server, {wrong}: stop them, and run again",
    )


@finding("generator_saturated_late", "error", "use more --workers, or a lower --rate")
def saturated_late(late_s: float, bound_s: float) -> str:
    """asyncli sent requests too late (p99) for an open loop, so the figures describe asyncli."""
    return f"requests were sent late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)"


@finding(
    "late_tail",
    "warning",
    "leave more CPU to asyncli; the waiting time counts from the write and is the server's",
)
def late_tail(total_s: float, late_s: float) -> str:
    """A large part of the p99 of the total latency, which counts from the intended instant, may be
    asyncli's own lateness.
    """
    return (
        f"up to {1e3 * late_s:,.1f} ms of the total's p99, {1e3 * total_s:,.1f} ms, is asyncli's "
        "own lateness (its p99)"
    )


@finding(
    "rate_missed",
    "error",
    "use more connections (-c), or a lower --rate: the server cannot keep up",
)
def rate_missed(per_s: float, asked_per_s: float) -> str:
    """Fewer requests were sent than --rate asks for, because no connection was free: the server
    cannot keep up.
    """
    return (
        f"requests were sent at {format_rate(per_s)} of the {format_rate(asked_per_s)} asked for: "
        "no connection was free"
    )


@finding("requests_queued", "warning", "use more connections (-c); the wait is part of the latency")
def requests_queued(count: int, of: int) -> str:
    """Requests waited for a free connection; their latency includes it."""
    return f"{format_count(count)} of {format_count(of)} requests waited for a free connection"


@finding("connections_ended", "info")
def connections_ended(count: int, answers: float, each: bool) -> Words:
    """The server closed connections with 'Connection: close', each after about as many answers: it
    limits the requests of a connection. A warning if that is after each answer: it keeps no
    connection alive. ``answers``: their median; ``each``: whether after each.
    """
    if each:
        return Words(
            f"the server closes after each answer, on {format_many(count, 'connection')}",
            "it keeps no connection alive; --short expects this and counts connects",
            "warning",
        )
    return Words(
        f"the server ended {format_count(count)} connections with 'Connection: close' after "
        f"{answers:,.0f} answers each (median)",
        "its limit of requests per connection (nginx: keepalive_requests, Apache: "
        "MaxKeepAliveRequests); each cost a connect",
    )


@finding("requests_unaccounted", "error", BENCH_AGAIN)
def requests_unaccounted(accounted: int, asked: int) -> str:
    """Requests of a bench have no outcome: a bug of asyncli. The bench is invalid."""
    return f"only {accounted:,} of {asked:,} requests are accounted for"
