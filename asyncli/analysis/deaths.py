"""Why connections ended, or never began, as findings: in words, with what the diagnoses say about each cause."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.diagnosis import Diagnosis, diagnose
from asyncli.analysis.mortality import befell
from asyncli.analysis.series import Ticks, end_of_hold, series
from asyncli.analysis.totals import Totals
from asyncli.records import Environment, Finding, Phase, Sample, Tick
from asyncli.units import format_count

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


def failures(totals: Totals) -> list[Finding]:
    """A finding for each cause of attempts that never established."""
    found = []
    for cause, count in _by_count(totals.whole.failures):
        what, remedy = _FAILURES.get(cause, _FAILURES["other"])
        found.append(Finding(f"failed_{cause}", "error", f"{format_count(count)} {what} ({cause})", remedy))
    return found


def deaths(totals: Totals, environment: Environment, diagnoses: Sequence[Diagnosis] | None = None) -> list[Finding]:
    """A finding for each cause of established connections that ended before the drain: what its ``diagnoses`` say, together.

    Without ``diagnoses`` (of :func:`~asyncli.analysis.diagnosis.diagnose`), by what the totals alone tell.
    """
    if diagnoses is None:
        diagnoses = diagnose(totals, (), (), (), (), environment, None)
    by_cause: dict[str, list[Diagnosis]] = {}
    for one in diagnoses:
        by_cause.setdefault(one.cause, []).append(one)
    found = []
    for cause, ones in by_cause.items():
        evidence = "; ".join(one.evidence for one in ones)
        if len(ones) > 1:
            evidence = f"{befell(cause, sum(one.count for one in ones))}; of these {evidence}"
        remedy = "; ".join(dict.fromkeys(one.remedy for one in ones))
        found.append(Finding(f"lost_{cause}", "error", evidence, remedy))
    return found


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
