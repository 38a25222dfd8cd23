"""A run as the numbers that a report shows: pure data, whose JSON is the contract with outside tools.

Bytes and seconds unless a name says otherwise; what is unknown is null, and a finding says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from asyncli.analysis.cost import Residue
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.gaps import of_one_server
from asyncli.analysis.losses import loss_findings
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.losses.recorded import SUSPENDED
from asyncli.analysis.losses.slowness import not_heard, sent_again, slow_answers, stalls, unheard
from asyncli.analysis.reconcile import Reconciliation, reconcile
from asyncli.analysis.saturation import achieved_per_s, is_saturated, saturation
from asyncli.analysis.shared_host import company, cpus_taken
from asyncli.analysis.slope import Cost
from asyncli.analysis.totals import Totals
from asyncli.analysis.verdict import RULE, Verdict, ended_by_user, judge
from asyncli.core.histogram import Histogram
from asyncli.findings.cost import CALLED
from asyncli.findings.forecast import gave_way
from asyncli.findings.limits import limit_crossed, limit_kept, limit_unknown
from asyncli.findings.run import incomplete, stopped_early
from asyncli.findings.run import verdict as verdict_of
from asyncli.findings.runfile import records_missing
from asyncli.findings.unknown import (
    generator_numbers_unknown,
    latency_unknown,
    ramp_unknown,
    residue_unknown,
    server_numbers_unknown,
)
from asyncli.metrics import GENERATOR_CPU_S, GENERATOR_PROCESSES, GENERATOR_USS_BYTES
from asyncli.plan import Plan, shown_plan
from asyncli.records import CUT, SCHEMA, Environment, Finding, PhaseName
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.thresholds import Outcome
from asyncli.report.thresholds import judge as judge_limits
from asyncli.report.thresholds import parse as parse_limit
from asyncli.run import Run
from asyncli.samples import Series

__all__ = ["Summary", "summarise"]

# Sampled at the borders of phases: a value for the hold's end that is older than this is not one.
_STALE_S = 60.0
# So many findings of one kind are listed; more are told together.
_FEW_OF_A_KIND = 4


class PhaseSpan(msgspec.Struct):
    """A phase on the run's own clock."""

    name: PhaseName
    start_s: float
    end_s: float | None


class GapSpan(msgspec.Struct):
    start_s: float
    end_s: float | None


class RunPart(msgspec.Struct):
    """``gaps``: where it was interrupted and resumed; nothing is fitted across them. ``stopped``: by its user, before its plan
    was done."""

    id: str
    started: str
    duration_s: float
    phases: list[PhaseSpan]
    verdict: Verdict
    complete: bool
    stopped: bool
    gaps: list[GapSpan]


class Connections(msgspec.Struct):
    """``opened``: established, replacements included. ``lost``: ended before the drain, or owed an answer then and never gave it;
    ``deaths`` adds up to it. ``not_heard``: of the held, not heard since a fault, or since the hold began.

    ``failed``: attempts that never established; ``failures`` adds up to it.
    """

    requested: int
    opened: int
    established_peak: int
    held: int
    not_heard: int
    lost: int
    reopened: int
    failed: int
    failures: dict[str, int]
    deaths: dict[str, int]


class Lateness(msgspec.Struct):
    """Sent (or opened) minus due, in ms; None without a record."""

    p50: float | None
    p99: float | None
    max: float | None


class Latency(msgspec.Struct):
    """Answered minus due, in ms; None without a record."""

    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None


class RampPart(msgspec.Struct):
    asked_per_s: float
    achieved_per_s: float | None
    lateness_ms: Lateness


class Heartbeats(msgspec.Struct):
    sent: int
    answered: int
    failed: int
    by_status: dict[str, int]
    latency_ms: Latency
    lateness_ms: Lateness


class Then(msgspec.Struct):
    """One number at the baseline's end and at the hold's end."""

    baseline: float | None
    hold_end: float | None


class Server(msgspec.Struct):
    """The server's processes, summed; ``cpu_s`` since their start."""

    processes: Then
    rss_bytes: Then
    pss_bytes: Then
    cpu_s: Then


class CostPart(msgspec.Struct):
    """``kernel_queued``: what waits in socket buffers, per end; a part of no other row."""

    server_user: Cost | None
    kernel: Cost | None
    kernel_queued: Cost | None
    generator_user: Cost | None
    host_total: Cost | None
    residual: Cost | None


class Generator(msgspec.Struct):
    """Host process and workers. ``user_bytes``: USS at the hold's end less that before the first connect."""

    processes: int | None
    user_bytes: float | None
    user_bytes_per_connection: float | None
    cpu_s: float | None
    cpu_us_per_heartbeat: float | None
    saturated: bool


class Limit(msgspec.Struct):
    """A limit of ``--fail-if`` as it was written, and the value that it is on; ``kept`` is null where that cannot be said."""

    limit: str
    value: float | None
    kept: bool | None


class Summary(msgspec.Struct):
    """Everything that a report shows; field by field the JSON's contract.

    ``drift`` has an entry for each of server_user, kernel, generator_user and host_total that was sampled; ``diagnoses`` add up
    to the connections lost.
    """

    schema: int
    run: RunPart
    plan: dict[str, Any]
    connections: Connections
    ramp: RampPart
    heartbeats: Heartbeats
    reconciliation: Reconciliation
    server: Server
    cost: CostPart
    residue: Residue
    forecast: Forecast
    drift: dict[MetricName, Drift]
    diagnoses: list[Diagnosis]
    generator: Generator
    limits: list[Limit]
    findings: list[Finding]
    environment: Environment

    @property
    def verdict(self) -> Verdict:
        return self.run.verdict


def summarise(run: Run, analyses: Analyses | None = None) -> Summary:
    """The summary of a run, whole or not. Pure: the same records give the same summary.

    ``analyses``: those of this run, where the caller has them already.
    """
    plan = run.plan
    known = analyses if analyses is not None else analyse(run)
    totals, cost = known.totals, known.costs
    whole = totals.whole
    reconciliation, disagreements = reconcile(run, totals, known.diagnoses)
    limits = saturation(run, totals)
    marks = _Marks(run)
    server, server_findings = _server(run, marks)
    generator, generator_findings = _generator(marks, totals, is_saturated(limits))
    rate = achieved_per_s(run, totals)
    silent = unheard(run, totals)
    summary = Summary(
        schema=SCHEMA,
        run=RunPart(
            id=run.id,
            started=run.started,
            duration_s=run.end_s,
            phases=[PhaseSpan(one.name, one.start_s, one.end_s) for one in run.phases],
            verdict="untested",
            complete=run.complete,
            stopped=bool(ended_by_user(run.findings)),
            gaps=[GapSpan(one.start_s, one.end_s) for one in run.gaps],
        ),
        plan=shown_plan(plan),
        connections=Connections(
            requested=plan.connections,
            opened=whole.opened,
            established_peak=totals.peak,
            held=totals.held,
            not_heard=silent.count if silent is not None else 0,
            lost=whole.lost,
            reopened=whole.reopened,
            failed=sum(whole.failures.values()),
            failures=loss_findings.counted(whole.failures),
            deaths=loss_findings.counted({cause: dead.count for cause, dead in whole.deaths.items()}),
        ),
        ramp=RampPart(plan.asked_per_s, rate, _lateness(whole.ramp_lateness_us)),
        heartbeats=Heartbeats(
            sent=whole.sent,
            answered=whole.answered,
            failed=whole.beats_failed,
            by_status={str(status): count for status, count in sorted(whole.by_status.items())},
            latency_ms=_latency(whole.latency_us),
            lateness_ms=_lateness(whole.lateness_us),
        ),
        reconciliation=reconciliation,
        server=server,
        cost=CostPart(
            server_user=cost.server_user,
            kernel=cost.kernel,
            kernel_queued=cost.kernel_queued,
            generator_user=cost.generator_user,
            host_total=cost.host_total,
            residual=cost.residual,
        ),
        residue=cost.residue,
        forecast=known.forecast,
        drift=known.drifts,
        diagnoses=known.diagnoses,
        generator=generator,
        limits=[],
        findings=[],
        environment=_whole_environment(run.environment),
    )
    outcomes, unreadable = limits_of(plan, summary)
    crossed = [one.words for one in not_kept(outcomes)] + [one.evidence for one in unreadable]
    judgement = judge(
        plan, totals, saturated=is_saturated(limits), complete=run.complete, findings=run.findings,
        limited=[one.threshold.key for one in outcomes], crossed=crossed,
        asleep=sum(one.count for one in known.diagnoses if one.code == SUSPENDED), unheard=silent,
    )  # fmt: skip
    summary.run.verdict = judgement.verdict
    summary.limits = [
        *(Limit(one.threshold.text, one.value, None if one.crossed is None else not one.crossed) for one in outcomes),
        *(Limit(one.fields["limit"], None, None) for one in unreadable),
    ]
    summary.findings = _once(
        [
            verdict_of(judgement.verdict, judgement.why, RULE),
            *limit_findings(outcomes),
            *unreadable,
            *limits,
            *loss_findings.failures(run, totals),
            *loss_findings.lost(known.diagnoses),
            *disagreements,
            *company(run, totals),
            *cpus_taken(run),
            *loss_findings.listen_queue(run),
            *sent_again(run),
            *stalls(run),
            *slow_answers(run),
            *loss_findings.statuses(whole),
            *not_heard(silent, totals, plan),
            *_of_the_file(run),
            *_few_of_each(run.findings),
            *_of_numbers(plan, totals, rate),
            *cost.findings,
            *known.findings,
            *_of_residue(plan, cost.residue),
            *server_findings,
            *generator_findings,
        ]
    )
    return summary


def hangs_on_all(run: Run) -> bool:
    """Whether the verdict hangs on more than counts and asyncli's own lateness: on limits of any number, or on diagnoses."""
    return bool(run.plan.fail_if) or any(one.code == SUSPENDED for one in run.findings)


def verdict_of_all(run: Run) -> tuple[Verdict, str]:
    """The verdict and its reason by all that the report of ``run`` knows: the only rule where :func:`hangs_on_all`."""
    summary = summarise(run)
    return summary.verdict, next(one.evidence for one in summary.findings if one.code == f"verdict_{summary.verdict}")


def limits_of(plan: Plan, summary: Summary) -> tuple[list[Outcome], list[Finding]]:
    """What the run's own numbers say of its plan's limits; a file of another asyncli may have some that this one cannot read."""
    limits, unreadable = [], []
    for text in plan.fail_if:
        try:
            limits.append(parse_limit(text, Summary))
        except ValueError as error:
            unreadable.append(limit_unknown(text, None, None, str(error)))
    return judge_limits(limits, msgspec.to_builtins(summary, str_keys=True) if limits else {}), unreadable


def not_kept(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those of the ``outcomes`` that were not kept, the gravest first: connections before all else, crossed before unknown."""
    broken = (one for one in outcomes if one.crossed is not False)
    return sorted(broken, key=lambda one: (one.crossed is None, not one.threshold.key.startswith("connections.")))


def limit_findings(outcomes: Iterable[Outcome]) -> list[Finding]:
    """What came of each limit of ``--fail-if``; one of which nothing can be said has not been kept."""
    found = []
    for one in outcomes:
        text, key = one.threshold.text, one.threshold.key
        if one.crossed is None or one.value is None:
            found.append(limit_unknown(text, key, one.value, one.amount))
        else:
            found.append((limit_crossed if one.crossed else limit_kept)(text, key, one.value, one.amount))
    return found


_ENVIRONMENT = ("kernel", "python", "asyncli", "server", "limits", "sysctls", "cpus", "memory_bytes")


class _Marks:
    """Metrics at the two instants that are compared: the baseline's end and the hold's end."""

    def __init__(self, run: Run) -> None:
        self._run = of_one_server(run)
        self.start, self.stop = run.first_connect_s, run.stop_s
        self.hold_start = run.hold.start_s if run.hold is not None else None

    def metric(self, name: str) -> Series:
        return self._run.series(name)

    def then(self, name: str) -> Then:
        metric = self.metric(name)
        late = metric.last(until_s=self.stop, since_s=max(self.start, self.stop - _STALE_S))
        return Then(metric.last(until_s=self.start), late)


def _server(run: Run, marks: _Marks) -> tuple[Server, list[Finding]]:
    server = Server(*(marks.then(f"server.{name}") for name in Server.__struct_fields__))
    unknown = [name for name in Server.__struct_fields__ if getattr(server, name).hold_end is None]
    if not unknown or any(one.code == "server_processes_unknown" for one in run.findings):
        return server, []
    # They can be named only on this host, and what was named, or read before the ramp, had been found.
    named = (run.plan.server_pid, run.plan.server_pidfile, run.plan.server_name) != (None, None, None)
    found = named or any(getattr(server, name).baseline is not None for name in unknown)
    return server, [server_numbers_unknown(unknown, not found and run.place.local is not False)]


def _generator(marks: _Marks, totals: Totals, saturated: bool) -> tuple[Generator, list[Finding]]:
    processes, memory = marks.then(GENERATOR_PROCESSES), marks.then(GENERATOR_USS_BYTES)
    cpu = marks.metric(GENERATOR_CPU_S)
    spent = cpu.last(until_s=marks.stop)
    used = None
    if memory.baseline is not None and memory.hold_end is not None:
        used = memory.hold_end - memory.baseline
    answered = totals.by_phase["hold"].answered if "hold" in totals.by_phase else 0
    per_beat = None
    if marks.hold_start is not None and answered:
        before, after = cpu.at(marks.hold_start), cpu.last(until_s=marks.stop, since_s=marks.hold_start)
        if before is not None and after is not None and after >= before:
            per_beat = (after - before) / answered * 1e6
    generator = Generator(
        processes=None if processes.hold_end is None else round(processes.hold_end),
        user_bytes=used,
        user_bytes_per_connection=used / totals.open if used is not None and totals.open and totals.whole.answered else None,
        cpu_s=spent,
        cpu_us_per_heartbeat=per_beat,
        saturated=saturated,
    )
    unknown = [name for name in Generator.__struct_fields__ if getattr(generator, name) is None]
    return generator, [generator_numbers_unknown(unknown)] if unknown else []


def _of_the_file(run: Run) -> list[Finding]:
    found = []
    ended = ended_by_user(run.findings)
    if not run.complete and CUT not in ended:
        found.append(incomplete(run.phases[-1].name if run.phases else None))
    elif not ended and (hold := run.phase("hold")) is not None and run.plan.hold_s is not None:
        lasted = hold.end_s - hold.start_s if hold.end_s is not None else 0.0
        if lasted < run.plan.hold_s - 1.0:
            found.append(stopped_early(lasted, run.plan.hold_s))
    if run.dropped:
        found.append(records_missing(run.dropped))
    return found


def _few_of_each(findings: list[Finding]) -> list[Finding]:
    """What was noted as it happened; of a kind that came again and again through a night only the first and the last of them."""
    by_code: dict[str, list[Finding]] = {}
    for one in findings:
        by_code.setdefault(one.code, []).append(one)
    found = []
    for many in by_code.values():
        if len(many) <= _FEW_OF_A_KIND:
            found += many
            continue
        first, last = many[0], many[-1]
        evidence = f"{first.evidence}; and {len(many) - 2:,} more times; the last time {last.evidence}"
        found.append(msgspec.structs.replace(first, evidence=evidence))
    return found


def _of_numbers(plan: Plan, totals: Totals, rate: float | None) -> list[Finding]:
    """Why numbers that come from ticks are null."""
    found = []
    if rate is None:
        found.append(ramp_unknown())
    if not totals.whole.latency_us:
        found.append(latency_unknown())
    return found


def _of_residue(plan: Plan, residue: Residue) -> list[Finding]:
    """Why what stays after the drain is not known."""
    if residue.after_s is None:
        return [residue_unknown([], False, True)]
    missing = [name for name in ("server_user", "kernel", "host_total") if getattr(residue, name) is None]
    if not missing:
        return []
    return [residue_unknown([CALLED[name] for name in missing], True, plan.baseline_s > 0 and plan.residue_s > 0)]


def _whole_environment(environment: Environment) -> Environment:
    """All that was recorded, with every key of the contract present."""
    return dict.fromkeys(_ENVIRONMENT) | environment


def _ms(histogram: Histogram, q: float) -> float | None:
    value = histogram.quantile(q)
    return None if value is None else value / 1e3


def _latency(histogram: Histogram) -> Latency:
    return Latency(*(_ms(histogram, q) for q in (0.5, 0.9, 0.99, 0.999, 1.0)))


def _lateness(histogram: Histogram) -> Lateness:
    return Lateness(*(_ms(histogram, q) for q in (0.5, 0.99, 1.0)))


# A server that ended, or a limit of it that was reached.
_EXPLAINS = ("server_ended", gave_way.code)


def _once(findings: list[Finding]) -> list[Finding]:
    """Errors first, then warnings, then what is only worth knowing; each once. What explains the rest stands before it."""
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys(findings), key=lambda finding: (rank[finding.severity], finding.code not in _EXPLAINS))
