"""Why connections ended, or never began, as findings: in words, with what the diagnoses say about each cause."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.diagnosis import Diagnosis
from asyncli.analysis.mortality import befell, began_s
from asyncli.analysis.series import Ticks, end_of_hold, series
from asyncli.analysis.sides import sides
from asyncli.analysis.totals import Totals, errors
from asyncli.analysis.witness import cuts
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


# Failures that a client host meets whose own way is cut.
_OF_A_CUT = ("connect_timeout", "unreachable")


def failures(totals: Totals, ticks: Ticks = (), samples: Sequence[Sample] = (), connect_timeout_s: float = 0.0) -> list[Finding]:
    """A finding for each cause of attempts that never established; when, where the ``ticks`` are given; whose, by the samples."""
    found = []
    cut = cuts(samples, connect_timeout_s)
    in_hold = totals.during("hold").failures
    for cause, count in counted(totals.whole.failures).items():
        what, remedy = _FAILURES.get(cause, _FAILURES["other"])
        evidence = f"{_many(count, what)} ({cause})"
        instants = [t_s for t_s, tick in ticks if tick.failures.get(cause)]
        if instants:
            began = began_s(instants[0], connect_timeout_s if cause == "connect_timeout" else 0.0)
            evidence += f", from {format_clock(began)} to {format_clock(instants[-1])}"
        if totals.whole.lost and in_hold.get(cause) == count:
            evidence += ", as lost connections were to be replaced"
            remedy = _REPLACING.get(cause, remedy)
        for one in cut if cause in _OF_A_CUT else ():
            theirs = sum(tick.failures.get(cause, 0) for t_s, tick in ticks if one.holds(t_s, connect_timeout_s))
            if theirs:
                evidence += f"; {'all' if theirs == count else format_count(theirs)} of them were told when {one.words}"
                remedy = one.remedy if theirs == count else f"{one.remedy}; else {remedy}"
        found.append(Finding(f"failed_{cause}", "error", evidence, remedy))
    return found


def deaths(diagnoses: Sequence[Diagnosis]) -> list[Finding]:
    """What ended established connections before the drain: a finding for each cause, with what its ``diagnoses`` say, together.

    What one incident did by several causes is told once, with the most frequent of them.
    """
    by_cause: dict[str, list[list[Diagnosis]]] = {}
    told: dict[int, list[Diagnosis]] = {}
    for one in diagnoses:
        if one.incident and one.incident in told:
            told[one.incident].append(one)
        else:
            ones = told[one.incident] = [one]
            by_cause.setdefault(one.cause, []).append(ones)
    found = []
    for cause, incidents in by_cause.items():
        evidence = _evidence(incidents[0])
        if len(incidents) > 1:
            # What befell them all is not said again of each part.
            parts = (_evidence(ones).replace(befell(cause, ones[0].count), format_count(ones[0].count), 1) for ones in incidents)
            evidence = f"{befell(cause, sum(ones[0].count for ones in incidents))}; of these {'; '.join(parts)}"
        remedy = "; ".join(dict.fromkeys(one.remedy for ones in incidents for one in ones))
        found.append(Finding(f"lost_{cause}", "error", evidence, remedy))
    return found


def _evidence(incident: Sequence[Diagnosis]) -> str:
    """Of what ended most in the words of its diagnosis, and with it how many ended by the other causes."""
    first, *others = incident
    if not others:
        return first.evidence
    return f"{first.evidence}; with them {' and '.join(befell(one.cause, one.count) for one in others)}"


def statuses(whole: Tick) -> list[Finding]:
    """A finding where heartbeats were answered with errors: the connections held, at work that was not meant."""
    bad = errors(whole)
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
    """Findings where the listen queues of the server's host overflowed; none where that was not sampled."""
    found: list[Finding] = []
    where = sides(environment)
    if not where.server:
        return found
    stop = end_of_hold(phases, ticks, samples)
    for name, (what, remedy) in _COUNTERS.items():
        counter = series(samples, name)
        first, last = counter.first(), counter.last(until_s=stop)
        if first is not None and last is not None and last > first:
            code = "listen_" + name.removeprefix("tcp.Listen").lower()
            found.append(Finding(code, "warning", _many(last - first, what.replace("this host", where.host)), remedy))
    return found


def counted(counts: dict[str, int]) -> dict[str, int]:
    """The causes that occurred, most frequent first."""
    return dict(sorted(((cause, n) for cause, n in counts.items() if n), key=lambda pair: (-pair[1], pair[0])))


def _many(count: float, what: str) -> str:
    """``2 connects were refused`` of ``connects were refused``, and one of them."""
    if count == 1:
        what = what.replace("connects", "connect", 1).replace(" were ", " was ", 1)
    return f"{format_count(count)} {what}"
