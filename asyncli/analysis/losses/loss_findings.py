"""Findings of lost connections and of failed connects."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.constants import MISSED_S, REACHED
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.losses.own_sockets import other_drops, overflows
from asyncli.analysis.losses.server_evidence import cuts
from asyncli.analysis.losses.table import began_s
from asyncli.analysis.totals import Totals, errors
from asyncli.findings import losses
from asyncli.findings.losses import HostReport, Incident
from asyncli.model.metrics import SERVER_DESCRIPTORS, SERVER_DESCRIPTORS_LIMIT
from asyncli.model.records import Finding
from asyncli.model.run import Run

# Failures on a client host whose network is cut.
_OF_A_CUT = ("connect_timeout", "unreachable")


def failures(run: Run, totals: Totals) -> list[Finding]:
    """A finding for each cause of failed connects: how many, when, and how many of them a silent
    client host reported.
    """
    found = []
    timeout_s = run.plan.connect_timeout_s
    cut = cuts(run, timeout_s)
    in_hold = totals.during("hold").failures
    for cause, count in by_count(totals.whole.failures).items():
        instants = [t_s for t_s, tick in run.ticks if tick.failures.get(cause)]
        from_s = (
            began_s(instants[0], timeout_s if cause == "connect_timeout" else 0.0)
            if instants
            else None
        )
        reports: list[HostReport] = []
        for one in cut if cause in _OF_A_CUT else ():
            theirs = sum(
                tick.failures.get(cause, 0) for t_s, tick in run.ticks if one.holds(t_s, timeout_s)
            )
            if theirs:
                reports.append({"count": theirs, "hosts": one.hosts, "until_s": one.last_s})
        replacing = totals.whole.lost > 0 and in_hold.get(cause) == count
        found.append(
            losses.failed(
                cause, count, from_s, instants[-1] if instants else None, replacing, reports
            )
        )
    return found


def lost(diagnoses: Sequence[Diagnosis], protocol: str) -> list[Finding]:
    """A finding for each cause of losses with its diagnoses; an incident of several causes is
    reported with the most frequent.
    """
    by_incident: dict[int, list[Diagnosis]] = {}
    for place, one in enumerate(diagnoses):
        by_incident.setdefault(one.incident or -1 - place, []).append(one)
    by_cause: dict[str, list[list[Diagnosis]]] = {}
    for ones in by_incident.values():
        by_cause.setdefault(ones[0].cause, []).append(ones)
    found = []
    for cause, incidents in by_cause.items():
        remedies = dict.fromkeys(one.remedy for ones in incidents for one in ones)
        count = sum(ones[0].count for ones in incidents)
        found.append(
            losses.lost(
                cause, count, [_incident(*ones) for ones in incidents], list(remedies), protocol
            )
        )
    return found


def _incident(first: Diagnosis, *others: Diagnosis) -> Incident:
    return {
        "code": first.code, "count": first.count, "certain": first.certain, "from_s": first.from_s, "to_s": first.to_s,
        "why": first.evidence, "others": [(one.cause, one.count) for one in others],
    }  # fmt: skip


def statuses(run: Run, totals: Totals) -> list[Finding]:
    """A finding of all error answers: how many, when, and whether the server had spent its
    descriptors; or that every answer was a redirect.
    """
    by_status = totals.whole.by_status
    if by_status and all(300 <= status < 400 for status in by_status):
        return [losses.redirected(by_status)]
    bad, over_tls = errors(totals.whole), totals.whole.tls is not None
    instants = [t_s for t_s, tick in run.ticks if errors(tick)] if bad else []
    if not bad:
        return []
    from_s, until_s = began_s(instants[0], 0.0), instants[-1]
    spent = _spent_descriptors(run, from_s, until_s) if max(bad) >= 500 else None
    return [
        losses.status_errors(
            bad, totals.whole.answered, from_s, until_s, over_tls, run.place.server_name, spent
        )
    ]


def _spent_descriptors(run: Run, from_s: float, until_s: float) -> int | None:
    """The most descriptors of a process of the server, if they reached its limit meanwhile."""
    used, limit = run.series(SERVER_DESCRIPTORS), run.series(SERVER_DESCRIPTORS_LIMIT).last()
    most = max(used.between(from_s - MISSED_S, until_s + MISSED_S).values, default=0.0)
    return round(most) if limit is not None and most >= REACHED * limit else None


def listen_queue(run: Run) -> list[Finding]:
    """Our connects that met a full listen queue, or that listening sockets dropped."""
    found = []
    waited = sum(tick.queue_full for _, tick in run.ticks)
    if waited:
        found.append(losses.listen("full", waited, "", None))
    for what, dropped in (("overflows", overflows(run)), ("drops", other_drops(run))):
        if dropped.connects:
            found.append(losses.listen(what, dropped.connects, run.sides.host, dropped.dropped))
    return found


def by_count(counts: dict[str, int]) -> dict[str, int]:
    """The causes that occurred, most frequent first."""
    return dict(
        sorted(
            ((cause, n) for cause, n in counts.items() if n), key=lambda pair: (-pair[1], pair[0])
        )
    )
