"""The report of a run that is still going on, as far as the live views show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.cost import known_costs
from asyncli.analysis.drift import Drift, MetricName, drifts, in_words, least_hold_s, told_rate
from asyncli.analysis.losses import loss_findings
from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.totals import fold
from asyncli.analysis.verdict import Verdict
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.answer import counted_beside
from asyncli.report.limits_so_far import LimitSoFar, limit_so_far
from asyncli.report.losses_so_far import LossSoFar
from asyncli.report.summary import Summary, limits_of, summarise
from asyncli.report.summary_parts import CostPart

#: Diagnoses without a cause, and one that has a finding of its own when it happens.
_TELL_NOTHING_NEW = ("unexplained", "too_few", "generator_lost")
#: What the server's processes and counts say of a loss is read within this time after it.
_SETTLES_S = 5.0


class Ending(msgspec.Struct, frozen=True):
    """What the report says of a run that has ended: its verdict with the reason, how many
    connections were held at the hold's end (None: unknown), what stands beside a pass ("with 2
    warnings"; "": nothing), and the errors and warnings that the run file has not. Further numbers
    of the report: the server's count of connections and its memory at the hold's end, and times of
    the whole run; None: unknown.
    """

    verdict: Verdict
    why: str
    held: int | None
    beside: str
    findings: tuple[Finding, ...]
    active: int | None = None
    server_bytes: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    lateness_p99_ms: float | None = None


class CostSoFar(msgspec.Struct, frozen=True):
    """The cost by all records up to ``at_s`` (on the run's clock). ``why_unknown``: why that of the
    host is unknown; "" where it is known. ``drifts``: the growth of each memory in words.
    ``growth``: of those that have an interval, the rate and that interval (bytes an hour); the rate
    is None where the report calls it unknown.
    """

    at_s: float
    cost: CostPart
    why_unknown: str = ""
    drifts: dict[str, str] = msgspec.field(default_factory=dict)
    growth: dict[str, tuple[float | None, float, float]] = msgspec.field(default_factory=dict)
    limits: tuple[LimitSoFar, ...] = ()
    #: Why connections were lost, where that is known; none of a run that has ended.
    losses: tuple[LossSoFar, ...] = ()
    #: How many losses each diagnosis explains, by its code, "unexplained" among them; none of the
    #: last seconds of a run that lasts, whose reasons may not have been read.
    explained: dict[str, int] = msgspec.field(default_factory=dict)
    #: How long all connections have been held (s).
    held_s: float = 0.0
    #: Of a run that has ended.
    ending: Ending | None = None


class Decision(NamedTuple):
    """What limits that compare with earlier runs surely say: one is crossed, or all are kept."""

    is_worse: bool
    because: str


def cost_so_far(run: Run) -> CostSoFar:
    """What the report would say if the run had ended now."""
    limits: tuple[LimitSoFar, ...] = ()
    ending: Ending | None = None
    if run.plan.fail_if or run.complete:
        # A limit may be on any number of the report.
        analyses = analyse(run)
        growth = analyses.drifts
        costs = analyses.costs
        diagnoses = analyses.diagnoses
        summary = summarise(run, analyses)
        outcomes, _ = limits_of(run, summary, analyses)
        is_held = run.phase("drain") is None and not run.complete
        limits = tuple(limit_so_far(outcome, is_held=is_held) for outcome in outcomes)
        if run.complete:
            ending = _ending(run, summary)
    else:
        totals = fold(run)
        growth, _ = drifts(run)
        costs = known_costs(run, totals, growth)
        diagnoses = diagnose(run, totals)
    return CostSoFar(
        at_s=run.end_s,
        cost=CostPart.of(costs),
        why_unknown=costs.unknown.get("host_total", ""),
        drifts={name: in_words(drift) for name, drift in growth.items()},
        growth=_rates(growth),
        limits=limits,
        losses=() if run.complete else _losses(run, diagnoses),
        explained=_explained(run, diagnoses),
        held_s=run.held_for_s,
        ending=ending,
    )


def _losses(run: Run, diagnoses: Sequence[Diagnosis]) -> tuple[LossSoFar, ...]:
    """Each incident whose cause is known, with the report's finding."""
    losses = []
    for incident in loss_findings.incidents_of(diagnoses):
        first = incident[0]
        if first.code in _TELL_NOTHING_NEW or not _is_settled(run, first):
            continue
        for finding in loss_findings.lost(incident, run.plan.protocol):
            losses.append(LossSoFar(first.code, first.from_s, finding))
    return tuple(losses)


def _explained(run: Run, diagnoses: Sequence[Diagnosis]) -> dict[str, int]:
    """As of :class:`CostSoFar`."""
    counts: dict[str, int] = {}
    for diagnosis in diagnoses:
        if run.complete or _is_settled(run, diagnosis):
            counts[diagnosis.code] = counts.get(diagnosis.code, 0) + diagnosis.count
    return counts


def _is_settled(run: Run, diagnosis: Diagnosis) -> bool:
    """Whether its first loss was so long ago that what explains it has been read."""
    return diagnosis.from_s <= run.end_s - _SETTLES_S


def _ending(run: Run, summary: Summary) -> Ending:
    memory, _ = summary.server.memory
    return Ending(
        verdict=summary.verdict,
        why=summary.why,
        held=summary.connections.held,
        beside=counted_beside(summary),
        findings=tuple(_found_at_the_end(run, summary)),
        active=summary.reconciliation.server_active,
        server_bytes=memory.hold_end,
        latency_p50_ms=summary.heartbeats.latency_ms.p50,
        latency_p99_ms=summary.heartbeats.latency_ms.p99,
        lateness_p99_ms=summary.heartbeats.lateness_ms.p99,
    )


def _found_at_the_end(run: Run, summary: Summary) -> Iterator[Finding]:
    """The errors and warnings of the report that the run file has not, without the verdict."""
    recorded = {finding.evidence for finding in run.findings}
    for finding in summary.findings:
        if finding.severity == "info" or finding.code.startswith("verdict_"):
            continue
        if finding.evidence not in recorded:
            yield finding


def _rates(
    growth: Mapping[MetricName, Drift],
) -> dict[str, tuple[float | None, float, float]]:
    """Of the drifts with an interval, the rate and that interval (bytes an hour)."""
    rates: dict[str, tuple[float | None, float, float]] = {}
    for name, drift in growth.items():
        if drift.ci95 is not None:
            rates[name] = (told_rate(drift), *drift.ci95)
    return rates


def decided(plan: Plan, so_far: CostSoFar) -> Decision | None:
    """What limits that compare with earlier runs surely say; None while it is not sure, and where a
    limit of another kind needs the whole hold.
    """
    relative = [limit for limit in so_far.limits if limit.is_relative]
    for limit in relative:
        if limit.is_crossed:
            return Decision(is_worse=True, because=limit.words)
    if not relative or len(relative) < len(plan.fail_if):
        return None
    if any(limit.is_crossed is None for limit in relative):
        return None
    # Each connection has had a heartbeat, and growth can be told. What comes later is missed.
    if so_far.held_s < max(plan.keepalive_s, least_hold_s(plan.keepalive_s)):
        return None
    return Decision(is_worse=False, because=" and ".join(limit.words for limit in relative))
