"""Why connections ended, or never began: in words, with what the ages and counts of the dead say about the cause."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.series import Ticks, end_of_hold, series
from asyncli.analysis.totals import Totals
from asyncli.core.histogram import Histogram
from asyncli.records import Deaths, Environment, Finding, Phase, Sample, Tick
from asyncli.units import format_count, format_duration

# Fewer dead than this agree by chance.
_FEWEST_TO_INFER = 5
# A timeout is exact to its timer and to our seconds: the middle 80 % of what it ended lie within this of each other.
_NARROW, _NARROW_SHARE = 1, 0.04

#: Idle timeouts (s) that are someone's default, and whose.
_KNOWN_IDLE_S = {
    5: "the keep-alive timeout of Apache and Node.js", 60: "the idle timeout of an AWS load balancer",
    65: "nginx's packaged keepalive_timeout", 75: "nginx's default keepalive_timeout",
    240: "Azure's load balancer", 350: "AWS's network load balancer", 600: "GCP's",
}  # fmt: skip

_FAILURES: dict[str, tuple[str, str]] = {
    "refused": ("connects were refused", "see that the server listens at this address and port, and its backlog"),
    "unreachable": (
        "connects found no route, or were forbidden",
        "see routes and firewall between here and the server",
    ),
    "connect_timeout": (
        "connects got no answer in time",
        "raise net.core.somaxconn and the server's backlog=, ramp more slowly (--interval), or see the firewall",
    ),
    "no_ports": (
        "connects found no free local port",
        "spread over more sources (--source) or server ports, or widen net.ipv4.ip_local_port_range",
    ),
    "no_descriptors": ("connects found no free descriptor", "raise the limit (ulimit -n), or use more --workers"),
    "other": ("connects failed for a reason without a name", "see the kernel's log"),
}

_DEATHS: dict[str, tuple[str, str]] = {
    "reset": (
        "connections were reset by the server or on the way",
        "see the server's error log, and firewalls between",
    ),
    "closed_idle": ("connections were closed by the server while idle", "see its idle timeout, and its free slots"),
    "closed_awaiting": (
        "connections were closed by the server while a heartbeat waited for its answer",
        "see its error log; a reload or a crash of a worker does this",
    ),
    "closed_announced": (
        "connections were ended by the server with 'Connection: close'",
        "raise its request and age limits (nginx: keepalive_requests, keepalive_time)",
    ),
    "heartbeat_timeout": (
        "connections fell silent: a heartbeat was not answered in time",
        "see the server's load, and middle boxes that drop idle connections without a word",
    ),
    "protocol_error": ("connections answered with what is not HTTP", "see that the URL names an HTTP server"),
    "generator_lost": ("connections were lost with a worker of the generator", "see the finding about that worker"),
    "other": ("connections ended for a reason without a name", "see the kernel's log"),
}


def failures(totals: Totals) -> list[Finding]:
    """A finding for each cause of attempts that never established."""
    found = []
    for cause, count in _by_count(totals.whole.failures):
        what, remedy = _FAILURES.get(cause, _FAILURES["other"])
        found.append(Finding(f"failed_{cause}", "error", f"{format_count(count)} {what} ({cause})", remedy))
    return found


def deaths(totals: Totals, environment: Environment) -> list[Finding]:
    """A finding for each cause of established connections that ended before the drain."""
    whole = totals.whole
    server = environment.get("server")
    name = str(server.get("label") or "").partition("/")[0] if isinstance(server, dict) else ""
    found = []
    for cause, _ in _by_count({cause: deaths.count for cause, deaths in whole.deaths.items()}):
        dead = whole.deaths[cause]
        what, remedy = _DEATHS.get(cause, _DEATHS["other"])
        evidence = f"{format_count(dead.count)} {what} ({cause})"
        if cause == "closed_idle":
            evidence, remedy = _closed_idle(dead, evidence, remedy, name)
        elif cause == "closed_announced":
            evidence, remedy = _closed_announced(dead, evidence, remedy)
        else:
            evidence += _aged(dead)
        found.append(Finding(f"lost_{cause}", "error", evidence, remedy))
    return found


def _closed_idle(dead: Deaths, evidence: str, remedy: str, server: str) -> tuple[str, str]:
    idle = _narrow(dead.idle_s)
    if idle is None:
        return evidence + _aged(dead), remedy
    whose = next((name for seconds, name in _KNOWN_IDLE_S.items() if abs(idle - seconds) <= 1), "its keep-alive timeout")
    if server == "nginx":  # known, so no guess at whose default it might be
        whose = "its keepalive_timeout"
    return (
        f"the server closed {format_count(dead.count)} idle connections after {format_duration(idle)} idle ({whose}?)",
        "raise the server's idle timeout, or beat more often: --keepalive below twice that time",
    )


def _closed_announced(dead: Deaths, evidence: str, remedy: str) -> tuple[str, str]:
    requests, age = _narrow(dead.requests), _narrow(dead.age_s)
    if requests is not None and requests > 1:
        return (
            f"the server ended {format_count(dead.count)} connections after {format_count(requests)} requests each "
            "(keepalive_requests?)",
            "raise keepalive_requests in nginx.conf, or beat less often (--keepalive)",
        )
    if age is not None:
        return (
            f"the server ended {format_count(dead.count)} connections at the age of {format_duration(age)} (keepalive_time?)",
            "raise keepalive_time in nginx.conf (1 h by default), or hold for less",
        )
    if requests is not None:
        return (
            f"{evidence}, after their first request each",
            "switch keep-alive on: keepalive_timeout above 0 in nginx.conf",
        )
    return evidence + _aged(dead), remedy


def _narrow(histogram: Histogram) -> float | None:
    """The median where nearly all agree on it; None where they do not, or are too few to tell."""
    low, middle, high = (histogram.quantile(q) for q in (0.1, 0.5, 0.9))
    if low is None or middle is None or high is None or histogram.count < _FEWEST_TO_INFER:
        return None
    return middle if high - low <= max(_NARROW, _NARROW_SHARE * middle) else None


def _aged(dead: Deaths) -> str:
    age, idle = dead.age_s.quantile(0.5), dead.idle_s.quantile(0.5)
    if age is None or idle is None:
        return ""
    return f"; median age {format_duration(age)}, idle for {format_duration(idle)}"


def statuses(whole: Tick) -> list[Finding]:
    """A finding where heartbeats were answered with errors: the connections held, at work that was not meant."""
    bad = {status: count for status, count in whole.by_status.items() if status >= 400}
    if not bad:
        return []
    listed = ", ".join(f"{format_count(count)} x {status}" for status, count in sorted(bad.items()))
    remedy = "aim at a path that the server answers with 200, or take another --method"
    return [Finding("status_errors", "warning", f"heartbeats were answered with errors: {listed}", remedy)]


#: A TCP counter of this host -> what its rise means, and what to do (kernel: networking/snmp_counter.rst).
_COUNTERS = {
    "tcp.ListenOverflows": (
        "times a listen queue of some program on this host was full (ListenOverflows)",
        "if it was the server's: raise net.core.somaxconn and its backlog=, or ramp more slowly (--interval)",
    ),
    "tcp.ListenDrops": (
        "connects were dropped by listening sockets of this host (ListenDrops)",
        "if it was the server's: raise net.core.somaxconn and its backlog=, or ramp more slowly (--interval)",
    ),
}


def listen_queue(phases: Sequence[Phase], ticks: Ticks, samples: Sequence[Sample], environment: Environment) -> list[Finding]:
    """Findings where this host's listen queues overflowed; none where the server is elsewhere."""
    found: list[Finding] = []
    if environment.get("local") is not True:
        return found
    stop = end_of_hold(phases, ticks, samples)
    for name, (what, remedy) in _COUNTERS.items():
        counter = series(samples, name)
        first, last = counter.first(), counter.last(until_s=stop)
        if first is not None and last is not None and last > first:
            code = "listen_" + name.removeprefix("tcp.Listen").lower()
            found.append(Finding(code, "warning", f"{format_count(last - first)} {what}", remedy))
    return found


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    """The causes that occurred, most frequent first."""
    return sorted(((cause, count) for cause, count in counts.items() if count), key=lambda pair: (-pair[1], pair[0]))
