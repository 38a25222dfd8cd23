"""The numbers and findings of a run's report. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from asyncli.analysis.bottleneck import explained
from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.analysis.gaps import of_one_server
from asyncli.analysis.generations import changes
from asyncli.analysis.handshakes import protocol_findings, protocol_of, tls_findings, tls_of
from asyncli.analysis.holders import Holders
from asyncli.analysis.losses import loss_findings
from asyncli.analysis.losses.recorded import SUSPENDED
from asyncli.analysis.losses.slowness import not_heard, packets_lost, slow_answers, stalls, unheard
from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.residue import Residue
from asyncli.analysis.saturation import achieved_per_s, has_late_ramp, is_saturated, saturation
from asyncli.analysis.server_count import other_clients_found
from asyncli.analysis.server_memory import at_hold_end, memory_in_all
from asyncli.analysis.shared_host import cpus_taken, other_sockets
from asyncli.analysis.totals import Latency, Lateness, Totals, in_ms, tested
from asyncli.analysis.verdict import Case, Verdict, ended_by_user, judge
from asyncli.findings import unknown
from asyncli.findings.cost import COST_NAMES
from asyncli.findings.forecast import gave_way
from asyncli.findings.run import incomplete, stopped_early
from asyncli.findings.run import verdict as verdict_of
from asyncli.findings.runfile import records_missing
from asyncli.findings.server import other_clients
from asyncli.findings.thresholds import limit_crossed, limit_kept, limit_unknown
from asyncli.findings.verdicts import RULE
from asyncli.model.metrics import GENERATOR_CPU_S, GENERATOR_PROCESSES, GENERATOR_USS_BYTES
from asyncli.model.plan import Plan, shown_plan
from asyncli.model.records import CUT, SCHEMA, Finding
from asyncli.model.run import Run
from asyncli.report import summary_parts
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.summary_parts import CostPart, Limit, Summary
from asyncli.report.thresholds import Outcome
from asyncli.report.thresholds import judge as judge_limits
from asyncli.report.thresholds import parse as parse_limit

__all__ = ["CostPart", "Summary", "summarise"]

# More findings of one kind are merged.
_FEW_OF_A_KIND = 4


def summarise(run: Run, analyses: Analyses | None = None) -> Summary:
    """The summary of a run, complete or not. ``analyses``: of this run, if the caller has them."""
    plan = run.plan
    known = analyses if analyses is not None else analyse(run)
    totals, cost = known.totals, known.costs
    whole = totals.whole
    reconciliation, disagreements = reconcile(run, totals, known.diagnoses)
    limits = saturation(run, totals)
    steady = of_one_server(run)
    server, server_findings = _server(steady, known.costs.holders)
    generator, generator_findings = _generator(steady, totals, is_saturated(limits))
    rate = achieved_per_s(run, totals)
    silent = unheard(run, totals)

    def known_count(count: int) -> int | None:
        return count if totals.recorded else None

    summary = Summary(
        schema=SCHEMA,
        run=summary_parts.RunPart(
            id=run.id,
            started=run.started,
            duration_s=run.end_s,
            phases=run.phases,
            verdict="untested",
            complete=run.complete,
            stopped=bool(ended_by_user(run.findings)),
            gaps=run.gaps,
        ),
        plan=shown_plan(plan),
        connections=summary_parts.Connections(
            requested=plan.connections,
            opened=known_count(whole.opened),
            established_peak=known_count(totals.peak),
            held=known_count(totals.held),
            not_heard=known_count(silent.count if silent is not None else 0),
            lost=known_count(whole.lost),
            reopened=known_count(whole.reopened),
            failed=known_count(sum(whole.failures.values())),
            failures=loss_findings.by_count(whole.failures),
            deaths=loss_findings.by_count({cause: dead.count for cause, dead in whole.deaths.items()}),
        ),
        ramp=summary_parts.RampPart(plan.asked_per_s, rate, Lateness(*in_ms(whole.ramp_lateness_us, 0.5, 0.99, 1.0))),
        heartbeats=summary_parts.Heartbeats(
            sent=known_count(whole.sent),
            answered=known_count(whole.answered),
            failed=known_count(whole.beats_failed),
            by_status={str(status): count for status, count in sorted(whole.by_status.items())},
            latency_ms=Latency(*in_ms(whole.latency_us, 0.5, 0.9, 0.99, 0.999, 1.0)),
            lateness_ms=Lateness(*in_ms(whole.lateness_us, 0.5, 0.99, 1.0)),
        ),
        reconciliation=reconciliation,
        server=server,
        cost=CostPart.of(cost),
        residue=cost.residue,
        forecast=known.forecast,
        drift=known.drifts,
        diagnoses=known.diagnoses,
        generator=generator,
        limits=[],
        findings=[],
        environment=dict.fromkeys(_ENVIRONMENT) | run.environment,
        tls=tls_of(run, totals),
        protocol=protocol_of(run, totals),
    )
    outcomes, unreadable = limits_of(plan, summary)
    crossed = [one.words for one in not_kept(outcomes)] + [one.evidence for one in unreadable]
    case = Case(
        plan, totals, saturated=is_saturated(limits), late_ramp=has_late_ramp(limits), complete=run.complete,
        written=run.written, findings=run.findings, limited=[one.threshold.key for one in outcomes], crossed=crossed,
        end_s=run.end_s, suspended=sum(one.count for one in known.diagnoses if one.code == SUSPENDED), unheard=silent,
    )  # fmt: skip
    judgement = judge(case)
    summary.run.verdict = judgement.verdict
    summary.limits = [
        *(Limit(one.threshold.text, one.value, None if one.crossed is None else not one.crossed) for one in outcomes),
        *(Limit(one.fields["limit"], None, None) for one in unreadable),
    ]
    # The first handshake of each worker with each target is a full one.
    first = (run.place.workers or 1) * len(plan.targets) if plan.tls_options.tls_resume else None
    findings = [
        verdict_of(judgement.verdict, judgement.why, RULE, judgement.by_limits),
        *limit_findings(outcomes),
        *unreadable,
        *limits,
        *loss_findings.failures(run, totals),
        *tls_findings(summary.tls, run.environment, started=run.started, first=first, held=totals.open, run_s=run.end_s),
        *protocol_findings(run, totals, summary.protocol),
        *loss_findings.lost(known.diagnoses, run.plan.protocol),
        *disagreements,
        *other_clients_found(run),
        *changes(run),
        *other_sockets(run),
        *cpus_taken(run),
        *loss_findings.listen_queue(run),
        *packets_lost(run),
        *stalls(run),
        *slow_answers(run),
        *loss_findings.statuses(run, totals),
        *not_heard(silent, totals, plan),
        *_file_findings(run, totals),
        *_merge_repeats(run.findings),
        *([] if totals.recorded else [unknown.counts_unknown()]),
        *([unknown.ramp_unknown()] if rate is None else []),
        *([] if whole.latency_us or run.plan.listens else [unknown.latency_unknown()]),
        *cost.findings,
        *known.findings,
        *_residue_findings(plan, cost.residue),
        *server_findings,
        *generator_findings,
    ]
    summary.findings = _in_order(explained(findings, known.diagnoses))
    return summary


def verdict_needs_summary(run: Run) -> bool:
    """Whether the verdict needs the whole run: for limits of --fail-if, for diagnoses, or for the server's sockets."""
    return bool(run.plan.fail_if) or run.plan.listens or any(one.code == SUSPENDED for one in run.findings)


def summary_verdict(run: Run) -> tuple[Verdict, str]:
    """The verdict of the whole run and its reason; see :func:`verdict_needs_summary`."""
    summary = summarise(run)
    return summary.verdict, summary.why


def limits_of(plan: Plan, summary: Summary) -> tuple[list[Outcome], list[Finding]]:
    """The judged limits, and findings for the limits that this version cannot parse."""
    limits, unreadable = [], []
    for text in plan.fail_if:
        try:
            limits.append(parse_limit(text, Summary))
        except ValueError as error:
            unreadable.append(limit_unknown(text, None, None, str(error)))
    return judge_limits(limits, msgspec.to_builtins(summary, str_keys=True) if limits else {}), unreadable


def not_kept(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The limits that were not kept: crossed before undecided, connections first."""
    broken = (one for one in outcomes if one.crossed is not False)
    return sorted(broken, key=lambda one: (one.crossed is None, not one.threshold.key.startswith("connections.")))


def limit_findings(outcomes: Iterable[Outcome]) -> list[Finding]:
    found = []
    for one in outcomes:
        text, key = one.threshold.text, one.threshold.key
        if one.crossed is None or one.value is None:
            found.append(limit_unknown(text, key, one.value, one.amount))
        else:
            found.append((limit_crossed if one.crossed else limit_kept)(text, key, one.value, one.amount))
    return found


#: Keys of the environment that are always present.
_ENVIRONMENT = ("kernel", "python", "asyncli", "server", "limits", "sysctls", "cpus", "memory_bytes")


def _before_after(run: Run, name: str) -> summary_parts.BeforeAfter:
    metric = run.series(name)
    return summary_parts.BeforeAfter(metric.last(until_s=run.first_connect_s), at_hold_end(run, metric))


def _server(run: Run, holders: Holders) -> tuple[summary_parts.Server, list[Finding]]:
    read = ("processes", "rss_bytes", "pss_bytes", "cpu_s")
    server = summary_parts.Server(*(_before_after(run, f"server.{name}") for name in read))
    in_all, pss_bytes = memory_in_all(run, holders), server.pss_bytes.hold_end
    level = at_hold_end(run, in_all)
    if level is not None and pss_bytes is not None and abs(level - pss_bytes) > WORTH_TELLING * pss_bytes:
        server.memory_bytes = summary_parts.BeforeAfter(in_all.last(until_s=run.first_connect_s), level)
    missing = [name for name in read if getattr(server, name).hold_end is None]
    if not missing or any(one.code == "server_processes_unknown" for one in run.findings):
        return server, []
    # Advise to name the server only on this host, and only if it was not found.
    found = run.plan.names_server or any(getattr(server, name).baseline is not None for name in missing)
    return server, [unknown.server_numbers_unknown(missing, not found and run.place.local is not False)]


def _generator(run: Run, totals: Totals, saturated: bool) -> tuple[summary_parts.GeneratorUse, list[Finding]]:
    processes, memory = _before_after(run, GENERATOR_PROCESSES), _before_after(run, GENERATOR_USS_BYTES)
    cpu, used = run.series(GENERATOR_CPU_S), None
    if memory.baseline is not None and memory.hold_end is not None:
        used = memory.hold_end - memory.baseline
    answered = totals.by_phase["hold"].answered if "hold" in totals.by_phase else 0
    per_beat = None
    if run.hold is not None and answered:
        before, after = cpu.at(run.hold.start_s), cpu.last(until_s=run.stop_s, since_s=run.hold.start_s)
        if before is not None and after is not None and after >= before:
            per_beat = (after - before) / answered * 1e6
    generator = summary_parts.GeneratorUse(
        processes=None if processes.hold_end is None else round(processes.hold_end),
        user_bytes=used,
        user_bytes_per_connection=(
            # First use, divided by a few, is no cost of one.
            used / totals.open
            if used is not None
            and totals.open >= FEWEST
            and tested(run.plan, totals.whole, accepted=totals.acceptance.accepted)
            else None
        ),
        cpu_s=cpu.last(until_s=run.stop_s),
        cpu_us_per_heartbeat=per_beat,
        saturated=saturated,
    )
    missing = [name for name in summary_parts.GeneratorUse.__struct_fields__ if getattr(generator, name) is None]
    missing = [name for name in missing if not (run.plan.listens and name == "cpu_us_per_heartbeat")]
    return generator, [unknown.generator_numbers_unknown(missing)] if missing else []


def _file_findings(run: Run, totals: Totals) -> list[Finding]:
    found = []
    ended = ended_by_user(run.findings)
    if not run.complete and CUT not in ended:
        found.append(incomplete(run.phases[-1].name if run.phases else None, run.written))
    elif not ended and (hold := run.phase("hold")) is not None and run.plan.hold_s is not None:
        lasted = hold.end_s - hold.start_s if hold.end_s is not None else 0.0
        if lasted < run.plan.hold_s - 1.0:
            found.append(stopped_early(lasted, run.plan.hold_s))
    if run.dropped:
        found.append(records_missing(run.dropped, None))
    if totals.missing is not None:
        found.append(records_missing(totals.missing.count, totals.missing.at_s))
    return found


def _merge_repeats(findings: list[Finding]) -> list[Finding]:
    """Merge many findings of one kind into one, with the first and the last. One that a resumed run repeats counts once, with its
    last remedy: a command of the run that is over would not help.
    """
    by_code: dict[str, list[Finding]] = {}
    for one in {(one.code, one.evidence): one for one in findings}.values():
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


def _residue_findings(plan: Plan, residue: Residue) -> list[Finding]:
    """Findings about unknown memory after the drain."""
    if residue.after_s is None:
        return [unknown.residue_unknown([], False, [])]
    missing = [name for name in ("server_user", "kernel", "host_total") if getattr(residue, name) is None]
    if not missing:
        return []
    lacks = [name for name, planned_s in (("baseline", plan.baseline_s), ("residue", plan.residue_s)) if not planned_s]
    return [unknown.residue_unknown([COST_NAMES[name] for name in missing], True, lacks)]


# Findings that explain others.
_CAUSES = ("server_ended", "address_dead", gave_way.code, other_clients.code)


def _in_order(findings: list[Finding]) -> list[Finding]:
    """The findings without duplicates: errors, warnings, notes; causes first."""
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys(findings), key=lambda finding: (rank[finding.severity], finding.code not in _CAUSES))
