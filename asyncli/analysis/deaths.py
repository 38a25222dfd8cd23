"""Why connections ended, or never began, as findings: in words, with what the diagnoses say about each cause."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.diagnosis import Diagnosis
from asyncli.analysis.mortality import befell
from asyncli.analysis.series import Ticks, end_of_hold, series
from asyncli.analysis.totals import Totals
from asyncli.records import Environment, Finding, Phase, Sample, Tick
from asyncli.units import format_clock, format_count

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


# The same of attempts in the hold alone, which are to replace what was lost: the loss came first, and says more.
_REPLACING = {
    "refused": "see the findings on lost connections: nobody listened there meanwhile",
    "unreachable": "see routes, links and firewalls between here and the server at that time",
    "connect_timeout": "see the findings on lost connections: whoever should accept them did not answer meanwhile",
}


def failures(totals: Totals, ticks: Ticks = ()) -> list[Finding]:
    """A finding for each cause of attempts that never established; when, where the ``ticks`` are given."""
    found = []
    in_hold = totals.during("hold").failures
    for cause, count in counted(totals.whole.failures).items():
        what, remedy = _FAILURES.get(cause, _FAILURES["other"])
        evidence = f"{_many(count, what)} ({cause})"
        instants = [t_s for t_s, tick in ticks if tick.failures.get(cause)]
        if instants:
            evidence += f", from {format_clock(instants[0] - 1.0)} to {format_clock(instants[-1])}"
        if totals.whole.lost and in_hold.get(cause) == count:
            evidence += ", as lost connections were to be replaced"
            remedy = _REPLACING.get(cause, remedy)
        found.append(Finding(f"failed_{cause}", "error", evidence, remedy))
    return found


def deaths(diagnoses: Sequence[Diagnosis]) -> list[Finding]:
    """A finding for each cause of established connections that ended before the drain: what its ``diagnoses`` say, together."""
    by_cause: dict[str, list[Diagnosis]] = {}
    for one in diagnoses:
        by_cause.setdefault(one.cause, []).append(one)
    found = []
    for cause, ones in by_cause.items():
        evidence = ones[0].evidence
        if len(ones) > 1:
            # What befell them all is not said again of each part.
            parts = (one.evidence.replace(befell(cause, one.count), format_count(one.count), 1) for one in ones)
            evidence = f"{befell(cause, sum(one.count for one in ones))}; of these {'; '.join(parts)}"
        remedy = "; ".join(dict.fromkeys(one.remedy for one in ones))
        found.append(Finding(f"lost_{cause}", "error", evidence, remedy))
    return found


def statuses(whole: Tick) -> list[Finding]:
    """A finding where heartbeats were answered with errors: the connections held, at work that was not meant."""
    bad = {status: count for status, count in whole.by_status.items() if status >= 400}
    if not bad:
        return []
    remedy = "aim at a path that the server answers with 200, or take another --method"
    return [Finding("status_errors", "warning", f"heartbeats were answered with errors: {listed(bad)}", remedy)]


def listed(by_status: dict[int, int]) -> str:
    """``3 x 502, 1 x 503``: answers by their status."""
    return ", ".join(f"{format_count(count)} x {status}" for status, count in sorted(by_status.items()))


#: A TCP counter of this host -> what its rise means, and what to do (kernel: networking/snmp_counter.rst).
_COUNTERS = {
    "tcp.ListenOverflows": (
        "connects met a full listen queue of some program on this host (ListenOverflows)",
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
            found.append(Finding(code, "warning", _many(last - first, what), remedy))
    return found


def counted(counts: dict[str, int]) -> dict[str, int]:
    """The causes that occurred, most frequent first."""
    return dict(sorted(((cause, n) for cause, n in counts.items() if n), key=lambda pair: (-pair[1], pair[0])))


def _many(count: float, what: str) -> str:
    """``2 connects were refused`` of ``connects were refused``, and one of them."""
    if count == 1:
        what = what.replace("connects", "connect", 1).replace(" were ", " was ", 1)
    return f"{format_count(count)} {what}"
