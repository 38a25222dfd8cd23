"""Findings of lost connections and of failed connects."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from asyncli.analysis.constants import MISSED_S, REACHED
from asyncli.analysis.event_times import events_begun_in, events_with_most
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.losses.own_sockets import other_drops, overflows
from asyncli.analysis.losses.server_evidence import Cut, cuts
from asyncli.analysis.losses.table import began_s
from asyncli.analysis.standstill import drops_meanwhile
from asyncli.analysis.totals import Totals, errors, redirects
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
    findings = []
    silent_hosts = cuts(run, run.plan.connect_timeout_s)
    in_hold = totals.during("hold").failures
    for cause, count in by_count(totals.whole.failures).items():
        from_s, until_s = _when_failed(run, cause)
        reports: list[HostReport] = []
        if cause in _OF_A_CUT:
            reports = _reported_by(run, cause, silent_hosts)
        replacing = totals.whole.lost > 0 and in_hold.get(cause) == count
        findings.append(losses.failed(cause, count, from_s, until_s, replacing, reports))
    return findings


def _when_failed(run: Run, cause: str) -> tuple[float | None, float | None]:
    """When the first connect with this failure began, and when the last failed; None if no tick
    has one.
    """
    instants = [t_s for t_s, tick in run.ticks if tick.failures.get(cause)]
    if not instants:
        return None, None
    waited_s = run.plan.connect_timeout_s if cause == "connect_timeout" else 0.0
    return began_s(instants[0], waited_s), instants[-1]


def _reported_by(run: Run, cause: str, silent_hosts: Sequence[Cut]) -> list[HostReport]:
    """How many of these failures client hosts reported after their silence."""
    timeout_s = run.plan.connect_timeout_s
    reports: list[HostReport] = []
    for cut in silent_hosts:
        count = 0
        for t_s, tick in run.ticks:
            if cut.holds(t_s, timeout_s):
                count += tick.failures.get(cause, 0)
        if count:
            reports.append({"count": count, "hosts": cut.hosts, "until_s": cut.last_s})
    return reports


def lost(
    diagnoses: Sequence[Diagnosis], protocol: str, allowed: Collection[str] = ()
) -> list[Finding]:
    """A finding for each cause of losses with its diagnoses; an incident of several causes is
    reported with the most frequent. ``allowed``: causes of which a limit allows as many as there
    were, so that the verdict has them already: their finding is a note.
    """
    by_cause: dict[str, list[list[Diagnosis]]] = {}
    for incident in incidents_of(diagnoses):
        by_cause.setdefault(incident[0].cause, []).append(incident)
    findings = []
    for cause, incidents in by_cause.items():
        count = sum(incident[0].count for incident in incidents)
        remedies: dict[str, None] = {}
        for incident in incidents:
            remedies.update(dict.fromkeys(diagnosis.remedy for diagnosis in incident))
        described = [_incident(*incident) for incident in incidents]
        told = losses.lost(cause, count, described, list(remedies), protocol)
        if cause in allowed:
            told = msgspec.structs.replace(told, severity="info")
        findings.append(told)
    return findings


def incidents_of(diagnoses: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """The diagnoses of each incident, the most frequent first."""
    by_incident: dict[int, list[Diagnosis]] = {}
    for place, diagnosis in enumerate(diagnoses):
        by_incident.setdefault(diagnosis.incident or -1 - place, []).append(diagnosis)
    return list(by_incident.values())


def _incident(first: Diagnosis, *others: Diagnosis) -> Incident:
    return {
        "code": first.code,
        "count": first.count,
        "certain": first.certain,
        "from_s": first.from_s,
        "to_s": first.to_s,
        "why": first.evidence,
        "others": [(diagnosis.cause, diagnosis.count) for diagnosis in others],
    }


def _redirects(run: Run, totals: Totals) -> list[Finding]:
    """A finding of answers that were redirects."""
    by_status = redirects(totals.whole)
    if not by_status:
        return []
    instants = [t_s for t_s, tick in run.ticks if redirects(tick)]
    from_s = began_s(instants[0], 0.0) if instants else 0.0
    return [losses.redirected(by_status, sum(totals.whole.by_status.values()), from_s)]


def statuses(run: Run, totals: Totals) -> list[Finding]:
    """A finding of all error answers: how many, when, and whether the server had spent its
    descriptors; else one of redirects.
    """
    bad = errors(totals.whole)
    if not bad:
        return _redirects(run, totals)
    counts = [(t_s, sum(errors(tick).values())) for t_s, tick in run.ticks if errors(tick)]
    from_s = began_s(counts[0][0], 0.0)
    until_s = counts[-1][0]
    in_time = events_with_most(run, counts)
    spent = None
    if max(bad) >= 500:
        spent = _spent_descriptors(run, from_s, until_s)
    return [
        losses.status_errors(
            bad,
            totals.whole.answered,
            from_s,
            until_s,
            totals.whole.tls is not None,
            run.place.server_name,
            spent,
            events=in_time.events or events_begun_in(run, from_s),
            in_events=in_time.came,
        )
    ]


def _spent_descriptors(run: Run, from_s: float, until_s: float) -> int | None:
    """The most descriptors of a process of the server, if they reached its limit meanwhile."""
    limit = run.series(SERVER_DESCRIPTORS_LIMIT).last()
    if limit is None:
        return None
    used = run.series(SERVER_DESCRIPTORS).between(from_s - MISSED_S, until_s + MISSED_S)
    highest = max(used.values, default=0.0)
    if highest < REACHED * limit:
        return None
    return round(highest)


def listen_queue(run: Run) -> list[Finding]:
    """Our connects that met a full listen queue, or that listening sockets dropped."""
    findings = []
    waited = sum(tick.queue_full for _, tick in run.ticks)
    if waited:
        findings.append(losses.listen("full", waited, "", None))
    for kind, dropped in (("overflows", overflows(run)), ("drops", other_drops(run))):
        if not dropped.connects:
            continue
        still = drops_meanwhile(run) if kind == "overflows" else 0.0
        findings.append(
            losses.listen(kind, dropped.connects, run.sides.host, dropped.dropped, still)
        )
    return findings


def by_count(counts: dict[str, int]) -> dict[str, int]:
    """The causes that occurred, most frequent first."""
    occurred = [(cause, count) for cause, count in counts.items() if count]
    return dict(sorted(occurred, key=lambda pair: (-pair[1], pair[0])))
