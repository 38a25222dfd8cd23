"""Findings of a bench: what was not answered as asked, and where asyncli or this host was the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.units import format_count, format_duration

_ERROR_LOG = "see the server's error log"
# So many processes of a program are named.
_PIDS_NAMED = 4


class Taker(TypedDict):
    """Other programs of one name, and how many cores they used."""

    name: str
    pids: Sequence[int]
    cores: float


def by_cause(counts: Mapping[str, int]) -> str:
    """``unanswered in time: 3, reset: 1``."""
    words = {"heartbeat_timeout": "unanswered in time", "protocol_error": "what came is not HTTP"}
    return ", ".join(f"{words.get(cause, cause.replace('_', ' '))}: {format_count(count)}" for cause, count in counts.items())


def _many(count: int, one: str, several: str) -> str:
    return f"{format_count(count)} {one if count == 1 else several}"


def _answers(by_status: Mapping[int, int], of: int, what: str) -> str:
    listed = ", ".join(f"HTTP {status}: {format_count(count)}" for status, count in sorted(by_status.items()))
    return f"{format_count(sum(by_status.values()))} of {format_count(of)} answers {what} ({listed})"


def _taker(one: Taker) -> str:
    pids = one["pids"]
    listed = ", ".join(map(str, pids[:_PIDS_NAMED])) + (" and others" if len(pids) > _PIDS_NAMED else "")
    who = f"{one['name']}, {'pid' if len(pids) == 1 else 'pids'} {listed}" if pids else one["name"]
    return f"{who}: {one['cores']:.2f}"


@finding("stopped_by_user", "warning")
def stopped(after_s: float) -> Words:
    """A signal ended the bench before its time."""
    return Words(f"it was stopped by a signal after {format_duration(after_s)}, before its end")


@finding("short_run", "info")
def short_run(for_s: float) -> Words:
    """All was asked and answered within a tenth of a second: a rate of few answers, and of a start."""
    return Words(
        f"all was over in {format_duration(for_s)}, too little to say what the server can do",
        "ask for more (-n), or for a time (-d 10s)",
    )


@finding("error_answers", "error")
def error_answers(by_status: Mapping[int, int], of: int) -> Words:
    """Requests were answered with a status of 400 or more."""
    return Words(_answers(by_status, of, "were errors"), "aim at a path that the server answers with 200, or see its error log")


@finding("requests_failed", "error")
def requests_failed(failures: Mapping[str, int]) -> Words:
    """Requests were never answered whole: their connection ended, or they waited too long."""
    count = sum(failures.values())
    return Words(
        f"{_many(count, 'request was', 'requests were')} never answered whole ({by_cause(failures)})",
        f"{_ERROR_LOG}, and its load",
    )


@finding("connects_failed", "warning")
def connects_failed(failures: Mapping[str, int], of: int, opened: int) -> Words:
    """Attempts to connect failed; an error where none succeeded."""
    return Words(
        f"{format_count(sum(failures.values()))} of {format_count(of)} connects failed ({by_cause(failures)})",
        "see the server's listen queue and room" if opened else "see that the server runs, and that this is its address and port",
        None if opened else "error",
    )


@finding("several_urls", "info")
def several_urls(by_url: Mapping[str, int]) -> Words:
    """Several URLs were asked for, and the figures are those of all together."""
    shares = ", ".join(f"{url} {format_count(count)}" for url, count in by_url.items())
    return Words(
        f"each connection asks for one of the URLs, so a quick one is asked for more often: {shares}",
        "the latencies are those of all together; bench one at a time to tell them apart",
    )


@finding("several_servers", "warning")
def several_servers(server: str) -> Words:
    """Several servers were asked, and the CPU of one of them was read."""
    return Words(f"the CPU of the server is that of {server} alone, and several are asked")


@finding("requests_resent", "info")
def requests_resent(count: int, many: bool) -> Words:
    """Requests whose connection ended before they were answered, as when the server closes an idle connection in the moment in
    which one is asked. A warning where there are too ``many`` for that.
    """
    return Words(
        f"{_many(count, 'request was', 'requests were')} asked again: their connection ended before they were answered",
        _ERROR_LOG if many else "",
        "warning" if many else None,
    )


@finding("lengths_differ", "info")
def lengths_differ(count: int) -> Words:
    """The body of some answers was of another length than that of the first."""
    return Words(f"{_many(count, 'answer', 'answers')} had a body of another length than the first one's")


@finding("redirected", "warning")
def redirected(by_status: Mapping[int, int], of: int) -> Words:
    """Answers named another address, which was not asked."""
    return Words(f"{_answers(by_status, of, 'sent elsewhere')}, and nobody went there", "aim at the address that they name")


@finding("close_ignored", "info")
def close_ignored(count: int) -> Words:
    """The server kept connections open after answers to requests that asked it to close them."""
    return Words(f"asked to close, the server kept {_many(count, 'connection', 'connections')} open: asyncli closed them")


@finding("gave_up", "error")
def gave_up(after_s: float, left: int, of: int) -> Words:
    """No connection stood for so long that the bench ended, with ``left`` of its requests not asked."""
    unasked = f" with {format_count(left)} of {format_count(of)} requests not asked" if left else ""
    return Words(
        f"no connection stood for {format_duration(after_s)}: asyncli gave up{unasked}",
        "see that the server runs and has room for the connections",
    )


@finding("requests_left", "info")
def requests_left(left: int, of: int, stopped: bool) -> Words:
    """The bench ended before all of a given number of requests were asked. An error where a signal ended it."""
    why = "it was stopped" if stopped else "the time was over"
    return Words(f"{why} before {format_count(left)} of {format_count(of)} requests were asked", "", "error" if stopped else None)


@finding("unanswered_at_end", "warning")
def unanswered_at_end(count: int, of: int, longest_s: float, slowest_s: float | None, stands: bool) -> Words:
    """Requests in flight at the end had waited far longer than the slowest answer took (None: nothing was answered). An error
    where that is so long that the server seems to stand still.
    """
    than = "nothing was answered" if slowest_s is None else f"the slowest answer took {format_duration(slowest_s)}"
    return Words(
        f"{format_count(count)} of {_many(of, 'request', 'requests')} in flight at the end had waited for up to "
        f"{format_duration(longest_s)}, and {than}: the latencies leave them out",
        "see whether the server stands still",
        "error" if stands else None,
    )


def _ours(workers: int, busy: float) -> str:
    ours = f"asyncli's {workers} processes were" if workers > 1 else "asyncli's process was"
    return f"{ours} busy for {busy:.0%} of the time"


@finding("both_busy", "info")
def both_busy(workers: int, busy: float, server_cores: float) -> Words:
    """asyncli's processes filled their cores (``busy``: which share), and the server one of its own: either may be the limit."""
    return Words(
        f"{_ours(workers, busy)}, and the server for {server_cores:.0%} of a core: the figures are those of the two together on "
        "this host"
    )


@finding("generator_saturated_cpu", "error")
def saturated_cpu(workers: int, busy: float, server_cores: float | None) -> Words:
    """asyncli's processes filled their cores (``busy``: which share), and the server did not: the bench measured asyncli."""
    theirs = "" if server_cores is None else f", the server for {server_cores:.0%} of a core"
    return Words(
        f"{_ours(workers, busy)}{theirs}: the server can do more than was asked of it",
        "use more --workers, or a --rate below this one to see its latency",
    )


@finding("host_busy", "warning")
def host_busy(
    cpus: int, busy_cores: float, generator_cores: float, server_cores: float | None, others_cores: float,
    takers: Sequence[Taker], before: bool, reached: bool, ours_busy: bool,
) -> Words:  # fmt: skip
    """All CPUs of this host were busy, a good part of them with programs that are neither asyncli nor the server. What used as
    much ``before`` the first connect is no work of the server's: an error where neither asyncli nor the server was busy too.
    ``reached``: the rate that was asked for.
    """
    shares = f"asyncli used {generator_cores:.2f}" + ("" if server_cores is None else f", the server {server_cores:.2f}")
    evidence = (
        f"this host's {_many(cpus, 'CPU was', 'CPUs were')} {min(1.0, busy_cores / cpus):.0%} busy: {shares}, and other programs "
        f"{others_cores:.2f} ({'; '.join(map(_taker, takers))})"
    )
    if before:
        effect = "without them the rate may be higher, and the latencies lower"
        if reached:
            effect = "the rate was reached, but their CPU use is in the latencies, which may be lower without them"
        remedy = "stop those programs, or bench from and on quiet hosts, and run again"
        return Words(f"{evidence}: {effect}", remedy, None if ours_busy else "error")
    wrong = "the latencies are too high" if reached else "the rate is too low, and the latencies are too high"
    return Words(
        f"{evidence}, which used less before the first connect",
        f"if they do not work for the server, {wrong}: stop them, and run again",
    )


@finding("generator_saturated_late", "error")
def saturated_late(late_s: float, bound_s: float) -> Words:
    """asyncli asked later (p99) than an open loop may: the figures are its own."""
    return Words(
        f"asyncli asked late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)", "use more --workers, or a lower --rate"
    )


@finding("late_tail", "warning")
def late_tail(total_s: float, late_s: float) -> Words:
    """asyncli's own lateness is a good part of the latencies' p99, which counts from the instant that a request was due."""
    return Words(
        f"of the total's p99, {1e3 * total_s:,.1f} ms, asyncli's own lateness may be {1e3 * late_s:,.1f} ms (its p99)",
        "leave more CPU to asyncli; waiting counts from the write, and is the server's",
    )


@finding("rate_missed", "error")
def rate_missed(per_s: float, asked_per_s: float) -> Words:
    """Fewer requests a second were asked than by --rate, for want of a free connection: the server cannot keep up."""
    return Words(
        f"{per_s:,.0f} requests a second were asked in place of {asked_per_s:,.0f}: no connection was free",
        "use more connections (-c), or a lower --rate: the server cannot keep up",
    )


@finding("requests_queued", "warning")
def requests_queued(count: int, of: int) -> Words:
    """Requests were due while no connection was free, and waited for one; their latency counts from when they were due."""
    return Words(
        f"{format_count(count)} of {format_count(of)} requests had to wait for a connection to be free",
        "use more connections (-c); the wait is part of their latency",
    )


@finding("connections_ended", "info")
def connections_ended(count: int, answers: float, each: bool) -> Words:
    """The server ended connections with notice, after ``answers`` each (the median): it limits the requests of a connection. A
    warning where it is after ``each`` answer: it keeps none alive.
    """
    if each:
        return Words(
            f"the server closes after each answer: it ended {_many(count, 'connection', 'connections')} so",
            "it keeps none alive: --short asks it so, and counts the connects",
            "warning",
        )
    return Words(
        f"the server ended {format_count(count)} connections with notice, after {answers:,.0f} answers each (median)",
        "its limit of requests a connection (nginx: keepalive_requests, Apache: MaxKeepAliveRequests); each cost a new connect",
    )
