"""The numbers and findings of a run's report. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from asyncli.analysis.asked_by_plan import asked_by_plan, ended_with_server, failed_commands
from asyncli.analysis.bottleneck import explained
from asyncli.analysis.constants import FEWEST, WORTH_TELLING
from asyncli.analysis.gaps import of_one_server
from asyncli.analysis.generations import changes
from asyncli.analysis.handshakes import protocol_findings, protocol_of, tls_findings, tls_of
from asyncli.analysis.holders import Holders
from asyncli.analysis.in_vain import unanswered_since
from asyncli.analysis.losses import loss_findings
from asyncli.analysis.losses.recorded import SUSPENDED
from asyncli.analysis.losses.server_evidence import stopped_since
from asyncli.analysis.losses.slowness import not_heard, packets_lost, slow_answers, stalls, unheard
from asyncli.analysis.provoked import provoked
from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.residue import Residue
from asyncli.analysis.saturation import achieved_per_s, has_late_ramp, is_saturated, saturation
from asyncli.analysis.server_count import other_clients_found
from asyncli.analysis.server_memory import at_hold_end, memory_in_all, with_files_at_rest
from asyncli.analysis.shared_host import cpus_taken, other_sockets, server_throttled
from asyncli.analysis.standstill import stood_still
from asyncli.analysis.totals import Latency, Lateness, Totals, in_ms, tested
from asyncli.analysis.unlistened import listeners_gone
from asyncli.analysis.verdict import LOST_BY_ASYNCLI, Case, ended_by_user, judge
from asyncli.analysis.worsening import Worsening
from asyncli.findings import unknown
from asyncli.findings.cost import COST_NAMES, shared_memory_rises
from asyncli.findings.forecast import gave_way
from asyncli.findings.losses import LISTENER_GONE
from asyncli.findings.run import incomplete, stopped_early
from asyncli.findings.run import verdict as verdict_of
from asyncli.findings.runfile import records_missing
from asyncli.findings.server import other_clients
from asyncli.findings.thresholds import limit_crossed, limit_kept, limit_unknown
from asyncli.findings.verdicts import RULE
from asyncli.model.installed import can_compute
from asyncli.model.metrics import (
    GENERATOR_CPU_S,
    GENERATOR_PROCESSES,
    GENERATOR_USS_BYTES,
    SERVER_CPU_S,
    SERVER_FILE_BYTES,
    SERVER_PROCESSES,
    SERVER_PSS_BYTES,
    SERVER_RSS_BYTES,
)
from asyncli.model.plan import Plan, shown_plan
from asyncli.model.planned_events import DEFAULT_RECONNECT
from asyncli.model.quantities import BEYOND_LATENESS, beyond_lateness
from asyncli.model.records import ABORTED, CUT, DECIDED, RESUMED, SCHEMA, Finding
from asyncli.model.run import Run
from asyncli.report import summary_parts
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.relative_limits import baseline_findings, judge_worsenings
from asyncli.report.summary_parts import CostPart, Limit, Summary
from asyncli.report.thresholds import Outcome, Threshold, unless_ended_early, without_computing
from asyncli.report.thresholds import judge as judge_limits
from asyncli.report.thresholds import parse as parse_limit
from asyncli.report.why_unknown import why_unknown

__all__ = ["CostPart", "Summary", "summarise"]

# The cost whose interval reaches to shared memory that nobody has mapped.
_WIDENED = "cost.server_user."
# More findings of one kind are merged.
_FEW_OF_A_KIND = 4


def _events(run: Run, known: Analyses) -> list[summary_parts.EventPart]:
    """What was done or noted, in order of time. Events of the plan have its numbers, marks the
    following ones.
    """
    plan = run.plan
    # Pages of files are no event's: PSS of them changes as other programs that share them go.
    memory, _ = with_files_at_rest(run, known.costs.holders)
    done = provoked(run, memory, collected=run.place.server_runtime.collected)
    policy = plan.reconnect or DEFAULT_RECONNECT
    parts = []
    marks = len(plan.events)
    for event in run.events:
        number = event.fields.get("number")
        planned = plan.event_numbered(number)
        if isinstance(number, int) and planned is not None:
            parts.append(summary_parts.EventPart.of_plan(event, planned, policy, done.get(number)))
            interrupted_after_s = run.interrupted_after_s(number)
            if interrupted_after_s is not None:
                parts[-1].interrupted_after_s = interrupted_after_s
        else:
            marks += 1
            parts.append(summary_parts.EventPart.of_mark(marks, event))
        if run.hold is not None and run.hold.start_s <= event.at_s <= run.hold.end_s:
            parts[-1].into_hold_s = run.held_until_s(event.at_s)
    return parts


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
            decided=_is_ended_by(run, DECIDED),
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
            failed=known_count(whole.failed),
            failures=loss_findings.by_count(whole.failures),
            deaths=loss_findings.by_count(whole.lost_by_cause),
        ),
        ramp=summary_parts.RampPart(
            plan.asked_per_s, rate, Lateness(*in_ms(whole.ramp_lateness_us, 0.5, 0.99, 1.0))
        ),
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
    if run.events:
        summary.events = _events(steady, known)
    outcomes, unreadable = limits_of(run, summary, known)
    broken = not_kept(outcomes)
    crossed = [outcome.words for outcome in broken if not outcome.by_lateness]
    crossed += [finding.evidence for finding in unreadable]
    suspensions = [diagnosis for diagnosis in known.diagnoses if diagnosis.code == SUSPENDED]
    case = Case(
        plan,
        totals,
        saturated=is_saturated(limits),
        late_ramp=has_late_ramp(limits),
        complete=run.complete,
        written=run.written,
        findings=run.findings,
        limited=[outcome.threshold.key for outcome in outcomes],
        crossed=crossed,
        within_lateness=[outcome.words for outcome in broken if outcome.by_lateness],
        not_judged=[outcome.words for outcome in outcomes if outcome.is_unjudged_here],
        end_s=run.end_s,
        suspended=sum(diagnosis.count for diagnosis in suspensions),
        unheard=silent,
        ended_with_server=ended_with_server(run),
    )
    judgement = judge(case)
    summary.run.verdict = judgement.verdict
    summary.limits = [_limit(outcome) for outcome in outcomes]
    summary.limits += [Limit(finding.fields["limit"], None, None) for finding in unreadable]
    findings = [
        verdict_of(judgement.verdict, judgement.why, RULE, judgement.by_limits),
        *limit_findings(outcomes),
        *unreadable,
        *baseline_findings(run),
        *limits,
        *loss_findings.failures(run, totals),
        *tls_findings(
            summary.tls,
            run.environment,
            started=run.started,
            first=_full_handshakes(run),
            held=totals.open,
            run_s=run.end_s,
            failed_in_events=_failed_in_tls(totals),
        ),
        *protocol_findings(run, totals, summary.protocol),
        *loss_findings.lost(known.diagnoses, run.plan.protocol, _allowed(outcomes)),
        *disagreements,
        *other_clients_found(run),
        *changes(run),
        *other_sockets(run),
        *cpus_taken(run),
        *server_throttled(run),
        *loss_findings.listen_queue(run),
        *listeners_gone(run),
        *packets_lost(run),
        *stalls(run),
        *stood_still(run),
        *slow_answers(run),
        *loss_findings.statuses(run, totals),
        *not_heard(silent, totals, plan, is_ended_by_asyncli=_is_ended_by_asyncli(run)),
        *_file_findings(run, totals),
        *unanswered_since(run),
        *failed_commands(run),
        *_merge_repeats(_recorded(run)),
        *_unknown_numbers(run, totals, rate),
        *_of_nobody(summary.events or []),
        *cost.findings,
        *known.findings,
        *_residue_findings(plan, cost.residue),
        *server_findings,
        *generator_findings,
    ]
    findings = asked_by_plan(run, findings)
    summary.findings = _in_order(explained(findings, known.diagnoses))
    return summary


def _limit(outcome: Outcome) -> Limit:
    kept = None
    if outcome.crossed is not None:
        kept = not outcome.crossed
    against = None
    difference = outcome.worsening
    if isinstance(difference, Worsening):
        against = summary_parts.Against(
            difference.before,
            difference.difference,
            difference.low,
            difference.high,
            difference.runs,
            difference.left_out,
        )
    return Limit(outcome.threshold.text, outcome.value, kept, against, outcome.not_judged)


def _full_handshakes(run: Run) -> float | None:
    """How many handshakes are full ones of a plan that resumes sessions: the first of each worker
    with each target. None: all.
    """
    if not run.plan.tls_options.tls_resume:
        return None
    return (run.place.workers or 1) * len(run.plan.targets)


def _failed_in_tls(totals: Totals) -> int:
    """How many TLS handshakes of clients that came back from events failed."""
    return sum(event.failures.get("tls_failed", 0) for event in totals.whole.events.values())


def _unknown_numbers(run: Run, totals: Totals, rate: float | None) -> list[Finding]:
    findings = []
    if not totals.recorded:
        findings.append(unknown.counts_unknown())
    if rate is None:
        findings.append(unknown.nothing_to_measure("ramp"))
    if not totals.whole.latency_us and not run.plan.listens:
        findings.append(unknown.nothing_to_measure("latency"))
    return findings


def _of_nobody(events: Iterable[summary_parts.EventPart]) -> list[Finding]:
    """The events that chose connections and took none of them."""
    findings = []
    for event in events:
        if summary_parts.took_nobody(event):
            chosen = summary_parts.known(event.chosen)
            findings.append(unknown.nothing_to_measure("event", event.number, chosen))
    return findings


def verdict_needs_summary(run: Run) -> bool:
    """Whether the verdict needs the whole run: for limits of --fail-if, for the server's sockets,
    for a server that was stopped, or for diagnoses.
    """
    if run.plan.fail_if or run.plan.listens or stopped_since(run, run.stop_s) is not None:
        return True
    return any(finding.code == SUSPENDED for finding in run.findings)


def limits_of(
    run: Run, summary: Summary, analyses: Analyses
) -> tuple[list[Outcome], list[Finding]]:
    """The judged limits, and findings for the limits that this version cannot parse. A run that is
    not complete is judged as at a look before its end.
    """
    limits, unreadable = _readable_limits(run.plan)
    not_here = _not_computed_here(limits)
    outcomes = [without_computing(limit) for limit in not_here]
    judged = [limit for limit in limits if limit not in not_here]
    relative = [limit for limit in judged if limit.is_relative]
    others = [limit for limit in judged if not limit.is_relative]
    if others:
        document = msgspec.to_builtins(summary, str_keys=True)
        whole = analyses.totals.whole
        document["heartbeats"][BEYOND_LATENESS] = beyond_lateness(
            whole.latency_us, whole.lateness_us
        )
        for outcome in judge_limits(others, document):
            outcomes.append(_with_reason(outcome, run, analyses))
    if relative:
        outcomes += judge_worsenings(run, relative, analyses)
    if _is_ended_by_asyncli(run) and any(outcome.crossed for outcome in outcomes):
        outcomes = [unless_ended_early(outcome) for outcome in outcomes]
    outcomes = [_with_doubt(outcome, analyses) for outcome in outcomes]
    # In the plan's order.
    outcomes.sort(key=lambda outcome: limits.index(outcome.threshold))
    return outcomes, unreadable


def _readable_limits(plan: Plan) -> tuple[list[Threshold], list[Finding]]:
    """The limits of a plan, and findings for those that this version cannot parse."""
    limits = []
    unreadable = []
    for text in plan.fail_if:
        try:
            limits.append(parse_limit(text, Summary))
        except ValueError as error:
            unreadable.append(limit_unknown(text, None, None, str(error), by_lateness=False))
    return limits, unreadable


def _not_computed_here(limits: Iterable[Threshold]) -> list[Threshold]:
    """The limits whose numbers this installation cannot compute."""
    if can_compute():
        return []
    return [limit for limit in limits if limit.is_computed]


def _with_reason(outcome: Outcome, run: Run, analyses: Analyses) -> Outcome:
    """The judged limit, and if its value is unknown, why."""
    if outcome.value is not None:
        return outcome
    why = outcome.why or why_unknown(outcome.threshold.key, run, analyses)
    return msgspec.structs.replace(outcome, why=why)


def _with_doubt(outcome: Outcome, analyses: Analyses) -> Outcome:
    """The judged limit, and if it is undecided, whether shared memory makes its interval wide."""
    is_undecided = outcome.crossed is None and outcome.value is not None
    if not is_undecided or outcome.not_judged or not outcome.threshold.key.startswith(_WIDENED):
        return outcome
    codes = [finding.code for finding in analyses.costs.findings]
    return msgspec.structs.replace(outcome, by_shared_memory=shared_memory_rises.code in codes)


def _allowed(outcomes: Iterable[Outcome]) -> list[str]:
    """The causes of losses for which a kept limit replaces a part of the verdict."""
    kept = [outcome for outcome in outcomes if outcome.crossed is False]
    if any(outcome.threshold.key == LOST_BY_ASYNCLI for outcome in kept):
        return ["generator_lost"]
    return []


def not_kept(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The limits that were judged and not kept: crossed before undecided, connections first."""
    judged = [outcome for outcome in outcomes if outcome.not_judged is None]
    broken = [outcome for outcome in judged if outcome.crossed is not False]
    return sorted(broken, key=_rank_of_limit)


def _rank_of_limit(outcome: Outcome) -> tuple[bool, bool]:
    is_undecided = outcome.crossed is None
    return is_undecided, not outcome.threshold.key.startswith("connections.")


def limit_findings(outcomes: Iterable[Outcome]) -> list[Finding]:
    return [_limit_finding(outcome) for outcome in outcomes]


def _limit_finding(outcome: Outcome) -> Finding:
    limit = outcome.threshold
    if outcome.crossed is None:
        return limit_unknown(
            limit.text,
            limit.shown_key,
            outcome.value,
            outcome.amount,
            by_lateness=outcome.by_lateness,
            not_judged=outcome.not_judged,
            by_shared_memory=outcome.by_shared_memory,
        )
    if outcome.crossed:
        return limit_crossed(limit.text, limit.shown_key, outcome.value, outcome.amount)
    return limit_kept(limit.text, limit.shown_key, outcome.value, outcome.amount)


#: Keys of the environment that are always present.
_ENVIRONMENT = (
    "kernel",
    "python",
    "asyncli",
    "server",
    "limits",
    "sysctls",
    "cpus",
    "memory_bytes",
)


def _before_after(run: Run, name: str) -> summary_parts.BeforeAfter:
    metric = run.series(name)
    return summary_parts.BeforeAfter(
        metric.last(until_s=run.first_connect_s), at_hold_end(run, metric)
    )


def _server(run: Run, holders: Holders) -> tuple[summary_parts.Server, list[Finding]]:
    read = {
        "processes": _before_after(run, SERVER_PROCESSES),
        "rss_bytes": _before_after(run, SERVER_RSS_BYTES),
        "pss_bytes": _before_after(run, SERVER_PSS_BYTES),
        "cpu_s": _before_after(run, SERVER_CPU_S),
    }
    server = summary_parts.Server(
        processes=read["processes"],
        rss_bytes=read["rss_bytes"],
        pss_bytes=read["pss_bytes"],
        cpu_s=read["cpu_s"],
    )
    files = _before_after(run, SERVER_FILE_BYTES)
    if files.baseline is not None:
        server.file_bytes = files
    runtime = run.place.server_runtime
    if runtime.kind != "":
        server.runtime = summary_parts.RuntimePart.of(runtime)
    in_all = memory_in_all(run, holders)
    level = at_hold_end(run, in_all)
    pss_bytes = server.pss_bytes.hold_end
    if level is not None and _is_far_from(level, pss_bytes):
        before = in_all.last(until_s=run.first_connect_s)
        server.memory_bytes = summary_parts.BeforeAfter(before, level)
    missing = [name for name, number in read.items() if number.hold_end is None]
    if not missing or any(finding.code == "server_processes_unknown" for finding in run.findings):
        return server, []
    was_found = any(read[name].baseline is not None for name in missing)
    # Advise to name the server only on this host, and only if it was not found.
    advise = not was_found and not run.plan.names_server and run.place.local is not False
    return server, [unknown.server_numbers_unknown(missing, advise)]


def _is_far_from(level: float, pss_bytes: float | None) -> bool:
    return pss_bytes is not None and abs(level - pss_bytes) > WORTH_TELLING * pss_bytes


def _generator(
    run: Run, totals: Totals, saturated: bool
) -> tuple[summary_parts.GeneratorUse, list[Finding]]:
    processes = _before_after(run, GENERATOR_PROCESSES).hold_end
    user_bytes = _generator_memory(run)
    generator = summary_parts.GeneratorUse(
        processes=None if processes is None else round(processes),
        user_bytes=user_bytes,
        user_bytes_per_connection=_per_connection(run, totals, user_bytes),
        cpu_s=run.series(GENERATOR_CPU_S).last(until_s=run.stop_s),
        cpu_us_per_heartbeat=_cpu_us_per_heartbeat(run, totals),
        saturated=saturated,
    )
    missing = [name for name, number in msgspec.structs.asdict(generator).items() if number is None]
    if run.plan.listens and "cpu_us_per_heartbeat" in missing:
        missing.remove("cpu_us_per_heartbeat")
    if not missing:
        return generator, []
    return generator, [unknown.generator_numbers_unknown(missing)]


def _generator_memory(run: Run) -> float | None:
    """What asyncli took from before the first connect to the hold's end."""
    memory = _before_after(run, GENERATOR_USS_BYTES)
    if memory.baseline is None or memory.hold_end is None:
        return None
    return memory.hold_end - memory.baseline


def _per_connection(run: Run, totals: Totals, user_bytes: float | None) -> float | None:
    # First use, divided by a few, is no cost of one.
    if user_bytes is None or totals.open < FEWEST:
        return None
    if not tested(run.plan, totals.whole, accepted=totals.acceptance.accepted):
        return None
    return user_bytes / totals.open


def _cpu_us_per_heartbeat(run: Run, totals: Totals) -> float | None:
    """asyncli's CPU time in the hold, by the heartbeats answered in it."""
    if run.hold is None or "hold" not in totals.by_phase:
        return None
    answered = totals.by_phase["hold"].answered
    if not answered:
        return None
    cpu_s = run.series(GENERATOR_CPU_S)
    before_s = cpu_s.at(run.hold.start_s)
    after_s = cpu_s.last(until_s=run.stop_s, since_s=run.hold.start_s)
    if before_s is None or after_s is None or after_s < before_s:
        return None
    return (after_s - before_s) / answered * 1e6


def _file_findings(run: Run, totals: Totals) -> list[Finding]:
    findings = _early_end(run)
    if run.dropped:
        findings.append(records_missing(run.dropped, None))
    if totals.missing is not None:
        findings.append(records_missing(totals.missing.count, totals.missing.at_s))
    return findings


def _early_end(run: Run) -> list[Finding]:
    """That the run did not end, or ended before its plan and not by its user."""
    ended = ended_by_user(run.findings)
    if not run.complete and CUT not in ended:
        last_phase = run.phases[-1].name if run.phases else None
        return [incomplete(last_phase, run.written)]
    hold = run.phase("hold")
    # Those that asyncli ended have a finding that says why.
    if ended or _is_ended_by_asyncli(run) or hold is None or run.plan.hold_s is None:
        return []
    lasted_s = 0.0 if hold.end_s is None else hold.end_s - hold.start_s
    if lasted_s >= run.plan.hold_s - 1.0:
        return []
    return [stopped_early(lasted_s, run.plan.hold_s)]


def _is_ended_by_asyncli(run: Run) -> bool:
    """Whether a limit ended the run before its plan: crossed (--abort), or surely decided."""
    return _is_ended_by(run, ABORTED) or _is_ended_by(run, DECIDED)


def _is_ended_by(run: Run, code: str) -> bool:
    """Whether the run has a finding of this code since it was last resumed."""
    is_ended = False
    for finding in run.findings:
        if finding.code == RESUMED:
            is_ended = False
        elif finding.code == code:
            is_ended = True
    return is_ended


def _recorded(run: Run) -> list[Finding]:
    """What the run recorded, without what its samples say better."""
    return [finding for finding in run.findings if finding.code != LISTENER_GONE]


def _merge_repeats(findings: list[Finding]) -> list[Finding]:
    """Merge many findings of one kind into one, with the first and the last. One that a resumed run
    repeats counts once, with its last remedy: a command of the run that is over would not help.
    """
    last_of = {(finding.code, finding.evidence): finding for finding in findings}
    by_code: dict[str, list[Finding]] = {}
    for finding in last_of.values():
        by_code.setdefault(finding.code, []).append(finding)
    merged = []
    for of_a_kind in by_code.values():
        if len(of_a_kind) <= _FEW_OF_A_KIND:
            merged += of_a_kind
            continue
        first = of_a_kind[0]
        last = of_a_kind[-1]
        again = f"and {len(of_a_kind) - 2:,} more times; the last time {last.evidence}"
        merged.append(msgspec.structs.replace(first, evidence=f"{first.evidence}; {again}"))
    return merged


def _residue_findings(plan: Plan, residue: Residue) -> list[Finding]:
    """Findings about unknown memory after the drain."""
    if residue.after_s is None:
        return [unknown.residue_unknown([], False, [])]
    numbers = {
        "server_user": residue.server_user,
        "kernel": residue.kernel,
        "host_total": residue.host_total,
    }
    missing = [COST_NAMES[name] for name, number in numbers.items() if number is None]
    if not missing:
        return []
    planned_s = {"baseline": plan.baseline_s, "residue": plan.residue_s}
    lacks = [phase for phase, seconds in planned_s.items() if not seconds]
    return [unknown.residue_unknown(missing, True, lacks)]


# Findings that explain others.
_CAUSES = ("server_ended", "address_dead", gave_way.code, other_clients.code)


def _in_order(findings: list[Finding]) -> list[Finding]:
    """The findings without duplicates: errors, warnings, notes; causes first."""
    rank = {"error": 0, "warning": 1, "info": 2}

    def place(finding: Finding) -> tuple[int, bool]:
        return rank[finding.severity], finding.code not in _CAUSES

    return sorted(dict.fromkeys(findings), key=place)
