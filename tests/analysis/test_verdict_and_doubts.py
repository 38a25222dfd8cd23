"""Verdicts, saturation and findings of losses, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from synthetic_run import a_run, bare_run, raised, spread, without

from asyncli.analysis.absent_server import absent_server
from asyncli.analysis.handshakes import tls_findings, tls_of
from asyncli.analysis.losses import loss_findings
from asyncli.analysis.losses.attribution import Diagnosis, diagnose
from asyncli.analysis.saturation import achieved_per_s, has_late_ramp, is_saturated, saturation
from asyncli.analysis.shared_host import cpus_taken, other_sockets
from asyncli.analysis.totals import SHORTAGES, Totals, Unaccounted, fold
from asyncli.analysis.verdict import LOST, RULES, Case, Judgement
from asyncli.analysis.verdict import judge as judge_case
from asyncli.core.histogram import Histogram
from asyncli.core.life import DEATHS, FAILURES
from asyncli.findings import verdicts
from asyncli.findings.generator import saturated_cpu
from asyncli.model import records
from asyncli.model.exit_status import exit_status
from asyncli.model.plan import Plan
from asyncli.model.records import (
    ABORTED,
    CUT,
    NOTHING_LISTENS,
    RESUMED,
    STOPPED,
    Deaths,
    EventCounts,
    Finding,
    Gap,
    Phase,
    Sample,
    TcpCounts,
    Tick,
    TlsCounts,
)
from asyncli.model.run import Run, Ticks
from asyncli.report.answer import NOT_THE_SERVER, headroom
from asyncli.report.answer import doubts as doubts_of
from asyncli.report.summary import summarise

PLAN = Plan(urls=("http://a/",), connections=100)


def judge(plan: Plan, of: Totals, **known: Any) -> Judgement:
    return judge_case(Case(plan, of, **known))


def totals(held: int, opened: int, lost: dict[str, int] | None = None, failed: dict[str, int] | None = None) -> Totals:
    whole = Tick(opened=opened, answered=opened, failures=failed or {})
    whole.deaths = {cause: Deaths(count=count) for cause, count in (lost or {}).items()}
    shortages = [cause.removeprefix("no_") for cause in SHORTAGES & whole.failures.keys()]
    return Totals(whole=whole, held=held, short_of={None: shortages} if shortages else {})


@pytest.mark.parametrize(
    ("of", "options", "verdict"),
    [
        (totals(100, 100), {}, "passed"),
        (totals(99, 100, {"reset": 1}), {}, "failed"),
        (totals(100, 101, {"reset": 1}), {}, "failed"),  # lost and replaced still counts as lost
        (totals(0, 100, {"closed_idle": 100}), {}, "failed"),
        (totals(60, 60, None, {"refused": 40}), {}, "failed"),
        (totals(100, 100, None, {"refused": 40}), {}, "passed"),  # came up at a later attempt
        (totals(0, 0, None, {"refused": 100}), {}, "untested"),
        (totals(0, 0), {}, "untested"),
        (totals(0, 0), {"saturated": True, "complete": False}, "untested"),
        (totals(100, 100), {"saturated": True}, "invalid"),
        (totals(90, 100, {"reset": 10}), {"saturated": True}, "invalid"),
        (totals(100, 110, {"generator_lost": 10}), {}, "invalid"),
        (totals(60, 60, None, {"no_ports": 40}), {}, "invalid"),
        (totals(60, 60, None, {"no_descriptors": 40}), {}, "invalid"),
        (totals(100, 100, None, {"no_ports": 40}), {}, "passed"),
        (totals(100, 100), {"complete": False}, "invalid"),
        (totals(90, 100, {"reset": 10}), {"complete": False}, "failed"),
    ],
)
def test_verdicts(of: Totals, options: dict[str, Any], verdict: str) -> None:
    judgement = judge(PLAN, of, **({"saturated": False, "complete": True} | options))
    assert judgement.verdict == verdict
    assert judgement.why


UNASKED = records.ProtocolCounts(unasked=200)
STOPPED_IN_RAMP = Finding(STOPPED, "warning", "stopped by the user", fields={"phase": "ramp"})
#: Each rule's name, and a run of which it is the first to apply; the last has passed.
FIRST_TO_APPLY = {
    "records_are_missing": (Totals(recorded=False), {}),
    "nothing_connected": (totals(0, 0), {}),
    "nothing_answered": (Totals(Tick(opened=100, sent=100), held=100), {}),
    "answers_prove_nothing": (Totals(Tick(opened=100, answered=200, protocol=UNASKED), held=100), {}),
    "asyncli_was_at_fault": (totals(100, 110, {"generator_lost": 10}), {}),
    "only_a_suspension_lost_connections": (totals(100, 110, {"heartbeat_timeout": 10}), {"suspended": 10}),
    "ports_or_descriptors_ran_out": (totals(60, 60, None, {"no_ports": 40}), {}),
    "connects_failed_in_a_late_ramp": (totals(60, 60, None, {"refused": 40}), {"late_ramp": True}),
    "the_server_failed": (totals(99, 100, {"reset": 1}), {}),
    "limits_cannot_be_judged": (totals(100, 100), {"not_judged": ["not judged"]}),
    "stopped_before_its_hold": (totals(60, 60), {"findings": [STOPPED_IN_RAMP]}),
    "cut_by_the_user": (totals(100, 100), {"findings": [Finding(CUT, "warning", "ended at once", fields={"phase": "hold"})]}),
    "not_complete": (totals(100, 100), {"complete": False}),
    "records_do_not_add_up": (Totals(Tick(opened=100, answered=100), held=100, missing=Unaccounted(9.0, 40)), {}),
    "limits_within_lateness": (totals(100, 100), {"within_lateness": ["undecided"]}),
    "": (totals(100, 100), {}),
}


@pytest.mark.parametrize("name", FIRST_TO_APPLY)
def test_each_rule_applies_to_its_case(name: str) -> None:
    of, known = FIRST_TO_APPLY[name]
    case = Case(PLAN, of, **({"saturated": False, "complete": True} | known))
    first = next((rule.__name__ for rule in RULES if rule(case) is not None), "")
    assert first == name


def test_each_rule_has_its_case() -> None:
    assert [*FIRST_TO_APPLY] == [*(rule.__name__ for rule in RULES), ""]


def test_wrong_answers_are_answers() -> None:
    none, wrong = (judge(PLAN, Totals(Tick(opened=9, sent=9, deaths=dead), 0), saturated=False, complete=True) for dead in ({}, {"protocol_error": Deaths(count=9)}))
    assert (none.verdict, wrong.verdict, none.why == wrong.why) == ("untested", "untested", False)


def test_without_a_due_heartbeat_a_handshake_counts_as_tested() -> None:
    granted = records.ProtocolCounts()
    granted.handshake_us.add(5)
    ticks = (Tick(opened=100), Tick(opened=100, protocol=granted), Tick(opened=100, protocol=granted, sent=1), Tick(opened=100, sent=1))
    judgements = [judge(PLAN, Totals(one, held=100), saturated=False, complete=True) for one in ticks]
    assert [one.verdict for one in judgements] == ["untested", "passed", "untested", "untested"]
    assert judgements[0].why != judgements[3].why


@pytest.mark.parametrize(
    ("by_status", "limited", "verdict", "named"),
    [
        ({200: 7, 404: 30, 503: 1_405}, (), "failed", ("1,435 of 1,442", "404: 30", "503: 1,405")),
        # A limit on a status replaces the rule for that status alone.
        ({200: 7, 404: 30, 503: 60}, ("connections.lost", "heartbeats.by_status.404"), "failed", ("60 of 97", "(503: 60)")),
        ({200: 7, 404: 30}, ("heartbeats.by_status.404",), "passed", ("30 of 37", "404: 30")),
        ({200: 7, 304: 1}, (), "passed", ()),
    ],
)
def test_an_error_answer_fails_a_run(by_status: dict[int, int], limited: tuple[str, ...], verdict: str, named: tuple[str, ...]) -> None:
    of = totals(100, 100)
    of.whole.answered, of.whole.by_status = sum(by_status.values()), by_status
    judgement = judge(PLAN, of, saturated=False, complete=True, limited=limited)
    assert (judgement.verdict, judgement.by_limits) == (verdict, False)
    assert all(words in judgement.why for words in named)


def test_losses_come_before_crossed_limits() -> None:
    crossed = ["p99 > 1s: it is 10 s", "drift > 1: it is unknown"]
    gone, few = totals(0, 100, {"heartbeat_timeout": 100}), totals(60, 60, None, {"refused": 40})

    def why(of: Totals, **more: Any) -> str:
        return judge(PLAN, of, saturated=False, complete=True, crossed=crossed, **more).why

    for of in (gone, few):
        assert why(of).split("; ")[1:] == crossed
    assert why(totals(100, 100)) == "; ".join(crossed)
    # A --fail-if replaces its part of the rule; a ramp that a crossed limit ended explains why few are held.
    assert why(gone, limited=["connections.lost", "connections.held"]) == "; ".join(crossed)
    assert why(few, findings=[Finding(ABORTED, "error", "stopped")]) == "; ".join(crossed)


def short_of_ports(first_s: int, last_s: int, of_event: bool) -> Run:
    """Five minutes after the hold began 40 of 100 clients are ended by a storm, or by the server if ``of_event`` is False, and are refused
    from then on. In these seconds of the run a connect, of the storm's or another, found no port."""
    run = a_run(100, hold_s=400.0, reconnect="fixed:1s", events=("300s drop 40%",))
    assert run.hold is not None
    began_s = run.hold.start_s + 300.0
    for t_s, tick in run.ticks:
        counts = EventCounts()
        failures = counts.failures if of_event else tick.failures
        if first_s <= t_s <= last_s:
            failures["no_ports"] = 3
        if began_s < t_s <= run.stop_s:
            tick.held -= 40
            failures["refused"] = 30
        tick.held_at_drain = min(tick.held_at_drain, 60)
        if began_s < t_s <= began_s + 1.0:
            if of_event:
                counts.ended = 40
            else:
                tick.deaths["reset"] = Deaths(count=40)
        if counts != EventCounts():
            tick.events[1] = counts
    return run


@pytest.mark.parametrize("of_event", [True, False])
def test_a_shortage_of_asyncli_explains_who_is_missing_while_it_lasts(of_event: bool) -> None:
    """Each client tries again within 45 s at the latest. What failed in the ramp, or right after an event, was over by then."""
    told = []
    for first_s, last_s in ((1, 30), (320, 325), (320, 435)):
        run = short_of_ports(first_s, last_s, of_event)
        told.append(judge(run.plan, fold(run), saturated=False, complete=True))
    assert [judgement.verdict for judgement in told] == ["failed", "failed", "invalid"]
    reason = verdicts.ran_out_after_event(["ports"], 40, 1) if of_event else verdicts.ran_out(["ports"], 60, 100)
    assert told[-1].why == reason
    if of_event:
        limited = judge(run.plan, fold(run), saturated=False, complete=True, limited=["events.1.not_back"])
        assert limited.verdict == "passed"


def test_exit_statuses() -> None:
    assert {one: exit_status(one) for one in ("passed", "untested", "invalid", "failed")} == {
        "passed": 0, "untested": 3, "invalid": 4, "failed": 99,
    }  # fmt: skip


def doubts(run: Run) -> list[Finding]:
    return saturation(run, fold(run))


def test_a_late_ramp() -> None:
    run = a_run(20_000)
    for _, tick in run.ticks[:20]:
        tick.ramp_lateness_us = spread(60_000, 100)
    (finding,) = doubts(run)
    assert (finding.code, finding.severity) == ("ramp_late", "warning")
    assert finding.fields["bound_s"] == 0.05
    # The same lateness with connects waiting for the server is the server's.
    run.ticks[5][1].connecting = 10 * 200
    (finding,) = doubts(run)
    assert (finding.code, finding.severity, finding.fields["waited_in"]) == ("ramp_held_back", "warning", "tcp")
    assert not is_saturated([finding])
    # The longest part of a connect; unfinished parts have no times. Without TLS only the whole connect is known.
    late = run.ticks[5][1]
    for tcp, tls, protocol, part in (
        (230, 900_000, None, "tls"), (900_000, 46_000, None, "tcp"), (230, 0, None, "tls"), (230, 900, 1_000, "protocol"),
        (230, 900, 0, "protocol"), (230, 900, 300, "tls"), (900, None, 800, "protocol"), (900, None, 20, "tcp"),
    ):  # fmt: skip
        times = [spread(us, 100 if us else 0) for us in (tcp, tls or 0, protocol or 0)]
        late.connect_us = times[0]
        late.tls = None if tls is None else TlsCounts(tcp_us=times[0], handshake_us=times[1])
        late.protocol = None if protocol is None else records.ProtocolCounts(handshake_us=times[2])
        (finding,) = doubts(run)
        assert (finding.code, finding.fields["waited_in"]) == ("ramp_held_back", part)


@pytest.mark.parametrize("waiting", [False, True])
def test_lateness_in_the_ramp_has_one_consequence(waiting: bool) -> None:
    """Whatever it waited for: the pace is in doubt, not what is held, nor a slope of memory."""
    run = a_run(20_000, hold_s=30.0)
    punctual = summarise(a_run(20_000, hold_s=30.0))
    for _, tick in run.ticks[:20]:
        tick.ramp_lateness_us = spread(9_000_000, 100)
    run.ticks[5][1].connecting = 10 * 200 * waiting
    summary = summarise(run)
    assert (summary.verdict, summary.generator.saturated) == ("passed", False)
    assert summary.finding("ramp_held_back" if waiting else "ramp_late").severity == "warning"
    assert summary.cost == punctual.cost
    assert NOT_THE_SERVER not in doubts_of(summary)
    # Heartbeats that are late are another matter: what the verdict rests on.
    for _, tick in run.ticks:
        tick.lateness_us = spread(300_000, max(1, tick.sent))
    # What was computed of the ticks is computed anew.
    run.ticks = list(run.ticks)
    summary = summarise(run)
    assert (summary.verdict, summary.generator.saturated) == ("invalid", True)
    assert NOT_THE_SERVER in doubts_of(summary)
    assert summary.cost == punctual.cost
    assert headroom(summary) == headroom(punctual) != ""


def test_what_failed_in_a_late_ramp_may_be_asynclis() -> None:
    short = totals(90, 90, None, {"connect_timeout": 10})
    for late_ramp, verdict in ((False, "failed"), (True, "invalid")):
        assert judge(PLAN, short, saturated=False, late_ramp=late_ramp, complete=True).verdict == verdict
    # What was held was held.
    for of, verdict in ((totals(100, 100), "passed"), (totals(100, 100, None, {"refused": 3}), "passed"), (totals(90, 100, {"reset": 10}), "failed")):
        assert judge(PLAN, of, saturated=False, late_ramp=True, complete=True).verdict == verdict


def test_what_a_server_lost_is_its_own_however_late_the_ramp_was() -> None:
    """Of a server that ended in the hold each later connect is refused."""
    ended = totals(0, 100, {"closed_idle": 100}, {"refused": 900})
    some_allowed = totals(58, 60, {"reset": 2}, {"refused": 40})
    for late_ramp in (False, True):
        assert judge(PLAN, ended, saturated=False, late_ramp=late_ramp, complete=True).why == verdicts.connections_lost(100, 100)
        found = judge(PLAN, ended, saturated=False, late_ramp=late_ramp, complete=True, limited=[LOST])
        assert (found.verdict, found.why) == ("failed", verdicts.fewer_held(0, 100))
        # Where losses are allowed, those who were never held are what is missing.
        found = judge(PLAN, some_allowed, saturated=False, late_ramp=late_ramp, complete=True, limited=[LOST])
        assert found.verdict == ("invalid" if late_ramp else "failed")


def test_a_lack_of_cpu_in_the_ramp_is_no_limit_of_the_hold() -> None:
    found = {phase: saturated_cpu(0.99, 1, phase, 0.9) for phase in ("ramp", "hold")}
    assert {phase: (one.severity, is_saturated([one]), has_late_ramp([one])) for phase, one in found.items()} == {
        "ramp": ("warning", False, True), "hold": ("error", True, False),
    }  # fmt: skip


@pytest.mark.parametrize(("in_events", "severity"), [(3, "info"), (2, "error"), (0, "error")])
def test_handshakes_that_fail_on_the_way_back_from_an_event_are_no_error(in_events: int, severity: str) -> None:
    """A restart cuts some off; one that failed outside of events is the server's."""
    run = a_run(1000)
    run.ticks[5][1].tls = TlsCounts(failed={"reset": 3})
    run.ticks[5][1].events = {1: EventCounts(attempts=3, failures={"tls_failed": in_events})}
    told = [finding.severity for finding in summarise(run).findings if finding.code == "tls_handshakes_failed"]
    assert told == [severity]


def test_a_certificate_shown_during_the_run_may_expire_soon() -> None:
    run = a_run(1000)
    shown = ("2025-03-11T12:00:00+00:00", "2026-03-11T12:00:00+00:00", "soon", "2025-03-11")
    run.ticks[5][1].tls = TlsCounts(certificates=dict.fromkeys(shown, 7))
    (finding,) = tls_findings(tls_of(run, fold(run)), run.environment, started=run.started)
    assert (finding.code, finding.fields["ends"], finding.fields["days_left"]) == ("tls_certificate_ends", shown[0], 10)
    run.environment["tls"] = {"certificate": {"ends": shown[0], "days_left": 40}}
    assert list(tls_findings(tls_of(run, fold(run)), run.environment, started=run.started)) == []


@pytest.mark.parametrize(
    ("days_left", "lasts_days", "run_s", "reported"),
    [
        (29.9, 30.0, 0, ""), (9.0, 30.0, 0, "9 days"), (29.9, 90.0, 0, "30 days"), (31.0, 365.0, 0, ""), (29.9, 365.0, 0, "30 days"),
        (3.0, 6.6, 0, ""), (2.0, 6.6, 0, "2 days"), (-1.0, 1.0, 0, "expired on 2025-03-11"), (29.9, None, 0, "30 days"),
        (0.125, 0.5, 0, "12:00:00 UTC, in 3 h"), (0.125, 0.2, 28_800, "(2025-03-11 17:00:00 UTC)"), (40, 90, 41 * 86_400, "(2025-03-12 12:00:00 UTC)"),
    ],
)  # fmt: skip
def test_a_certificate_is_due_in_the_last_third_of_its_lifetime_or_within_the_run(
    days_left: float, lasts_days: float | None, run_s: float, reported: str
) -> None:
    """Older runs do not record the lifetime."""
    run = a_run(1000)
    run.ticks[5][1].tls = TlsCounts()
    run.environment["tls"] = {"certificate": {"subject": "CN=x", "ends": "2025-03-11T12:00:00+00:00", "days_left": days_left}}
    run.environment["tls"]["certificate"] |= {} if lasts_days is None else {"lasts_days": lasts_days}
    found = list(tls_findings(tls_of(run, fold(run)), run.environment, started=run.started, run_s=run_s))
    assert [one.code for one in found] == ["tls_certificate_ends"] * bool(reported)
    assert all(reported in one.evidence for one in found)


def test_one_delay_in_a_short_ramp_is_no_limit() -> None:
    run = a_run(1000, batch=10)
    assert run.plan.interval_s == 0.01
    for late, found in ((25, []), (26, ["ramp_late"])):
        for _, tick in run.ticks:
            tick.ramp_lateness_us = Histogram()
        run.ticks[0][1].ramp_lateness_us.add_counts({500: 100 - late, 60_000: late})
        assert [finding.code for finding in doubts(run)] == found


def test_a_slow_ramp() -> None:
    run = a_run(20_000, batch=10)
    for place, (_, tick) in enumerate(run.ticks):
        tick.opened = 500 if place < 40 else 0
    run.phases[1].end_s = run.phases[2].start_s = run.phases[1].start_s + 40
    assert [finding.code for finding in doubts(run)] == ["ramp_held_back"]
    run.ticks[3][1].failures = {"refused": 1}
    assert doubts(run) == []


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("lateness_us", spread(300_000, 1000), "generator_saturated_beats"), ("longest_turn_s", 1.2, "generator_saturated_turn")],
)
def test_bounds(field: str, value: Any, code: str) -> None:
    run = a_run(20_000)
    for _, tick in run.ticks[:60]:
        setattr(tick, field, value)
    assert [finding.code for finding in doubts(run)] == [code]
    assert is_saturated(doubts(run))


def test_one_stop_in_a_run_on_time_is_no_limit() -> None:
    run = a_run(20_000, hold_s=600.0)
    place = len(run.ticks) // 2
    t_s, tick = run.ticks[place]
    tick.longest_turn_s = 1.3
    (finding,) = doubts(run)
    assert (finding.code, finding.severity, is_saturated([finding])) == ("generator_stood_still", "warning", False)
    assert (finding.fields["for_s"], finding.fields["until_s"]) == (1.3, t_s)
    # Longer than an answer may take: a late one may have been read as in time.
    tick.longest_turn_s = run.plan.timeout_s + 0.1
    assert [finding.code for finding in doubts(run)] == ["generator_saturated_turn"]
    # Many short stops.
    for _, one in run.ticks[place : place + 8]:
        one.longest_turn_s = 1.1
    assert [finding.code for finding in doubts(run)] == ["generator_saturated_turn"]


@pytest.mark.parametrize(("place", "codes"), [(10, ["generator_saturated_turn"]), (-1, [])])
def test_one_stop_is_the_limit_of_a_short_run_but_not_in_its_drain(place: int, codes: list[str]) -> None:
    run = a_run(20_000, hold_s=20.0)
    run.ticks[place][1].longest_turn_s = 1.3
    assert [finding.code for finding in doubts(run)] == codes


def test_cpu_is_compared_with_the_usable_cores() -> None:
    run = a_run(20_000)
    for _, tick in run.ticks:
        tick.cpu_user_s = 0.95 * tick.second
    assert doubts(run) == []  # ten workers on two cores: less than half
    run.environment["workers"] = 1
    assert [finding.code for finding in doubts(run)] == ["generator_saturated_cpu"] * 2


def rate(run: Run) -> float | None:
    return achieved_per_s(run, fold(run))


@pytest.mark.parametrize("connections", [10, 1000, 100_000])
def test_a_ramp_on_time_achieves_the_asked_rate(connections: int) -> None:
    assert rate(a_run(connections)) == pytest.approx(1000.0, rel=0.02)


def test_rests_between_plateaus_do_not_count() -> None:
    assert rate(a_run(20_000, plateaus=4, plateau_s=5.0)) == pytest.approx(1000.0, rel=0.06)


def loss_findings_of(cause: str, every: list[Deaths]) -> list[Finding]:
    """The findings of losses every ten seconds, without knowledge of the server."""
    plan = Plan(urls=("http://a/",), connections=1000, keepalive_s=1000.0)
    ticks = [(10.0 * place, Tick(second=10 * place, deaths={cause: one})) for place, one in enumerate(every, 1)]
    run = bare_run(ticks, plan=plan)
    return loss_findings.lost(diagnose(run, fold(run)), "http")


def test_an_incident_of_several_causes_is_reported_once() -> None:
    reload = partial(Diagnosis, code="reload", evidence="a reload", remedy="do not", certain=True, from_s=5.0, to_s=6.0, incident=1)
    other = Diagnosis("reset", "lifetime", 3, "an age", "mend it", False, 7.0, 8.0, 2)
    idle, reset = reload("closed_idle", count=90), reload("reset", count=2)
    (only,) = loss_findings.lost([idle, reset], "http")
    (incident,) = only.fields["incidents"]
    assert (only.code, only.remedy, incident["others"]) == ("lost_closed_idle", "do not", [["reset", 2]])
    # Another incident of that cause has its own finding, and so have losses without an incident.
    both = loss_findings.lost([idle, other, reset], "http")
    assert [(one.code, one.fields["count"]) for one in both] == [("lost_closed_idle", 90), ("lost_reset", 3)]
    (reset_alone,) = loss_findings.lost([other, msgspec.structs.replace(reset, incident=0)], "http")
    assert (reset_alone.fields["count"], len(reset_alone.fields["incidents"])) == (5, 2)


def test_each_cause_of_the_engine_has_words() -> None:
    of = Totals(whole=Tick(failures=dict.fromkeys(FAILURES, 1)))
    lost = [finding for cause in DEATHS for finding in loss_findings_of(cause, [Deaths(count=1)])]
    for found, names in ((lost, DEATHS), (loss_findings.failures(bare_run(), of), FAILURES)):
        assert {finding.code.partition("_")[2] for finding in found} == set(names)
        assert len({finding.evidence for finding in found}) == len(names)
        assert all(finding.remedy for finding in found)


def test_causes_are_ordered_by_count() -> None:
    of = Totals(whole=Tick(failures={"refused": 1, "no_ports": 9, "other": 0}))
    found = loss_findings.failures(bare_run(), of)
    assert [finding.code for finding in found] == ["failed_no_ports", "failed_refused"]


def failures(ticks: Ticks, phases: list[Phase], samples: Sequence[Sample] = ()) -> list[Finding]:
    run = bare_run(ticks, phases, samples, plan=Plan(urls=("http://a/",), connections=1, connect_timeout_s=3.0))
    return loss_findings.failures(run, fold(run))


PHASES = [Phase("ramp", 0.0, 10.0), Phase("hold", 10.0, 60.0)]


def failing(cause: str) -> Ticks:
    return [(float(t_s), Tick(second=t_s, failures={cause: 3} if 20 < t_s < 24 else {})) for t_s in range(1, 60)]


def test_failed_reconnects_name_their_time_and_the_loss() -> None:
    ticks = failing("refused")
    (finding,) = failures(ticks, PHASES)
    fields = finding.fields
    assert (fields["count"], fields["from_s"], fields["until_s"], fields["replacing"]) == (9, 20.0, 23.0, False)
    ticks[19][1].deaths["reset"] = Deaths(count=9)
    assert failures(ticks, PHASES)[0].fields["replacing"]
    # Some failed in the ramp, so they replaced nothing.
    ticks[4][1].failures["refused"] = 1
    assert not failures(ticks, PHASES)[0].fields["replacing"]


def test_failed_connects_of_a_cut_off_host_are_the_hosts() -> None:
    ticks, back = failing("connect_timeout"), [Sample(20.4, {"silent.vm at 10.0.0.9": 12.0})]
    (finding,) = failures(ticks, PHASES, back)
    # They were started three seconds before they timed out.
    assert (finding.fields["from_s"], finding.fields["until_s"]) == (17.0, 23.0)
    reported = [{"count": 9, "hosts": [["vm at 10.0.0.9", 12.0]], "until_s": 20.4}]
    assert finding.fields["told"] == reported
    ticks[39][1].failures["connect_timeout"] = 5
    (finding,) = failures(ticks, PHASES, back)
    assert (finding.fields["count"], finding.fields["told"]) == (14, reported)
    ticks[39][1].failures = {"refused": 5}
    assert failures(ticks, PHASES, back)[1].fields["told"] == []


def test_losses_with_a_host_name_that_host() -> None:
    of = totals(100, 200, {"generator_lost": 100})
    host, other = (Finding("host_lost", "error", "it is lost", fields={"host": f"vm at 10.0.0.{number}"}) for number in (9, 10))
    again = Finding(RESUMED, "warning", "the run was interrupted in its hold, at 0:00:41, and resumed 2 min later; the hold continues")
    for found, hosts, processes in (
        ([host, again], ["10.0.0.9"], False),
        ([host, other], ["10.0.0.9", "10.0.0.10"], False),
        ([host, Finding("worker_lost", "error", "worker 0")], ["10.0.0.9"], True),
        ([], [], True),
    ):
        judgement = judge(PLAN, of, saturated=False, complete=True, findings=found)
        run = bare_run([(1.0, of.whole)], findings=found)
        (finding,) = loss_findings.lost(diagnose(run, fold(run)), "http")
        assert judgement.verdict == "invalid"
        for judgements in (judgement.why, finding.evidence):
            assert all(name in judgements for name in hosts)
            assert ("process" in judgements) is processes


def test_a_process_that_used_no_cpu_for_the_answers_is_not_the_server() -> None:
    run = a_run(20_000)
    assert absent_server(run) is None
    for sample in run.samples:
        sample.values |= {"server.cpu_s": 1.0, "server.descriptors": 12.0}
    found = absent_server(run)
    assert (found.fields["cpu_s"], found.fields["answered"] > 10_000, found.fields["named"]) == (0, True, False)
    # A kernel's module may serve: the process holds the connections.
    assert absent_server(raised(run, 1, "server.descriptors", since_s=9.0)) is None
    assert absent_server(without(run, "server.cpu_s")) is None


def test_listen_queues_only_of_this_host_and_of_our_connects() -> None:
    def found(
        again: int, unanswered: int, overflows: int, drops: int, at_s: float = 9.0, listeners: dict[str, float] | None = None
    ) -> list[tuple[str, int]]:
        run = raised(a_run(20_000), overflows, "tcp.ListenOverflows", since_s=9.0)
        if listeners is not None:
            for sample in run.samples:
                risen = {f"server.listeners_{name}": rise if sample.t_s >= 9.0 else 0.0 for name, rise in listeners.items()}
                sample.values |= {"server.listeners": 1.0, "server.listeners_opened": 0.0, **risen}
        # Each overflow counts as a drop too.
        run = raised(run, overflows + drops, "tcp.ListenDrops", since_s=9.0)
        tick = next(tick for t_s, tick in run.ticks if t_s >= at_s)
        tick.tcp = TcpCounts(segments=again, connects=again - unanswered, unanswered=unanswered)
        findings = loss_findings.listen_queue(run)
        assert loss_findings.listen_queue(msgspec.structs.replace(run, environment={"local": False})) == []
        return [(finding.code, finding.fields["count"]) for finding in findings]

    # They explain no more than our own sockets show, and no more than the host counts.
    assert found(50, 10, 40, 0) == [("listen_overflows", 40)]
    assert found(30, 10, 40, 0) == [("listen_overflows", 30)]
    assert found(50, 10, 40, 12) == [("listen_overflows", 40), ("listen_drops", 10)]
    # No more than the server's own sockets dropped, where the same ones listened all the while.
    assert found(50, 10, 40, 0, listeners={"dropped": 7.0}) == [("listen_overflows", 7)]
    assert found(50, 10, 40, 12, listeners={"dropped": 0.0}) == []
    assert found(50, 10, 40, 0, listeners={"dropped": 0.0, "opened": 1.0}) == [("listen_overflows", 40)]
    # Another program's, and another time.
    assert found(0, 0, 40, 12) == []
    assert found(50, 0, 40, 0, at_s=40.0) == []


def test_connects_of_those_who_come_back_met_a_full_listen_queue_too() -> None:
    """Those that got no answer at all: their failures are counted with the event."""
    run = raised(raised(a_run(20_000), 40, "tcp.ListenOverflows", since_s=9.0), 40, "tcp.ListenDrops", since_s=9.0)
    tick = next(tick for t_s, tick in run.ticks if t_s >= 9.0)
    tick.events = {1: EventCounts(attempts=25, failures={"connect_timeout": 15, "refused": 10})}
    [told] = loss_findings.listen_queue(run)
    assert (told.code, told.fields["count"]) == ("listen_overflows", 15)


@pytest.mark.parametrize(("more", "each"), [(9_000, False), (20_000, True), (40_000, True), (24_000, False)])
def test_as_many_sockets_that_close_with_ours_are_a_proxys(more: int, each: bool) -> None:
    run = raised(a_run(20_000), more, "kernel.tcp_alloc", since_s=9.0)
    left = raised(a_run(20_000), more, "kernel.tcp_alloc", since_s=9.0, until_s=run.phase("residue").start_s)
    # Without the server's descriptors it may be another load generator.
    (unknown,) = other_sockets(left)
    assert (unknown.code, unknown.fields["perhaps_proxy"]) == ("host_shared", each)
    for ends, found in ((2, "upstream_sockets" if each else "host_shared"), (1, "host_shared")):
        for one in (run, left):
            for sample in one.samples:
                held = 20_000 if sample.t_s > 9.0 else 0
                sample.values |= {"server.descriptors_open": 20.0 + ends * held, "server.processes": 2.0}
        assert [one.code for ran in (run, left) for one in other_sockets(ran)] == ["host_shared", found]


@pytest.mark.parametrize(("by", "local"), [(9000, True), (-9000, False)])
def test_other_sockets_on_this_host(by: int, local: bool) -> None:
    run = a_run(20_000, local=local)
    assert other_sockets(run) == []
    (finding,) = other_sockets(raised(run, by, "kernel.tcp_alloc", since_s=9.0))
    assert finding.fields["others"] == by
    assert other_sockets(bare_run(samples=run.samples)) == []
    assert other_sockets(bare_run(run.ticks, run.phases)) == []


@pytest.mark.parametrize(("lost", "failed"), [("heartbeat_timeout", None), ("generator_lost", None), (None, "handshake_timeout")])
def test_the_servers_ends_of_connections_given_up_are_ours(lost: str | None, failed: str | None) -> None:
    """A server short of descriptors: 210 connections, given up by asyncli, stay in its listen queue."""

    def found(others: int, lost: str | None = lost, *, local: bool = True) -> list[int]:
        run = raised(a_run(400, local=local), others, "kernel.tcp_alloc", since_s=9.0)
        tick = run.ticks[20][1]
        tick.deaths, tick.failures = {lost: Deaths(count=210)} if lost else {}, {failed: 210} if failed else {}
        return [one.fields["others"] for one in other_sockets(run)]

    # Another program's 210 are told beside them; those that the server itself ended, or of a server elsewhere, leave none.
    assert (found(210), found(420), found(210, local=False)) == ([], [210], [210])
    assert failed or found(210, "reset") == [210]


def test_a_server_has_no_socket_of_a_connection_before_it_hears_from_it() -> None:
    """TCP_DEFER_ACCEPT, Apache's default: until the first request the server's end waits in the SYN queue."""
    for answered, closed in ((0, []), (78, []), (400, [-322])):
        run = raised(a_run(400), -322, "kernel.tcp_alloc", since_s=9.0)
        for place, (_, tick) in enumerate(run.ticks):
            tick.answered = answered if place == 5 else 0
        assert [one.fields["others"] for one in other_sockets(run)] == closed


def cpu(run: Run, **cores: tuple[float, float]) -> None:
    """Cores in use before the first connect and after it, by metric (two underscores for the dot)."""
    start = run.phases[1].start_s
    for sample in run.samples:
        for name, (before, then) in cores.items():
            used_s = before * min(sample.t_s, start) + then * max(0.0, sample.t_s - start)
            sample.values[name.replace("__", ".")] = 50.0 + used_s


@pytest.mark.parametrize(
    ("cores", "local", "baseline_s", "others", "before"),
    [
        ({"host__cpu_busy_s": (1.95, 1.98), "server__cpu_s": (0.0, 0.1)}, True, 5, 1.8, True),
        ({"host__cpu_busy_s": (1.95, 1.98)}, False, 5, 1.9, True),
        # The finding has their use while connections were open.
        ({"host__cpu_busy_s": (0.4, 1.98), "server__cpu_s": (0.0, 0.1)}, True, 5, 1.8, True),
        # Two readings a second apart suffice; without any, load of others is found anyway.
        ({"host__cpu_busy_s": (1.95, 1.98), "server__cpu_s": (0.0, 0.1)}, True, 2, 1.8, True),
        ({"host__cpu_busy_s": (1.95, 1.98), "server__cpu_s": (0.0, 0.1)}, True, 0, 1.8, None),
        # Load that rose with the connections may be the server's backend; and one with an idle CPU.
        ({"host__cpu_busy_s": (0.1, 1.98), "server__cpu_s": (0.0, 0.1)}, True, 5, 1.8, False),
        ({"host__cpu_busy_s": (1.0, 1.5), "server__cpu_s": (0.0, 0.1)}, True, 5, None, None),
        ({"host__cpu_busy_s": (1.0, 1.98), "server__cpu_s": (0.9, 1.8)}, True, 5, None, None),
        # The server may have used them.
        ({"host__cpu_busy_s": (1.95, 1.98)}, True, 5, None, None),
        ({}, True, 5, None, None),
    ],
)
def test_cpus_taken_by_other_programs(
    cores: dict[str, tuple[float, float]], local: bool, baseline_s: float, others: float | None, before: bool | None
) -> None:
    run = a_run(1000, hold_s=10, local=local)
    run.samples = [sample for sample in run.samples if sample.t_s >= run.phases[1].start_s - baseline_s]
    for sample in run.samples:
        sample.values = {name: value for name, value in sample.values.items() if not name.endswith("cpu_s")}
    run.environment["cpus"] = 2
    cpu(run, generator__cpu_s=(0.0, 0.05), **cores)
    found = [(one.code, round(one.fields["others_cores"], 1), one.fields["before"]) for one in cpus_taken(run)]
    assert found == ([] if others is None else [("host_busy", others, before)])


def test_a_busy_period_of_a_quiet_run_is_found() -> None:
    run = a_run(1000, hold_s=100, local=True)
    run.environment["cpus"] = 2
    cpu(run, generator__cpu_s=(0.0, 0.05), server__cpu_s=(0.0, 0.1))
    for sample in run.samples:
        sample.values["host.cpu_busy_s"] = 50.0 + 0.4 * sample.t_s + 1.5 * min(30.0, max(0.0, sample.t_s - 40.0))
    (found,) = cpus_taken(run)
    start_s, end_s = found.fields["span_s"]
    assert (abs(start_s - 40.0) <= 11.0, abs(end_s - 70.0) <= 11.0, found.fields["times"]) == (True, True, 1)
    assert found.fields["others_cores"] == pytest.approx(1.75, abs=0.2)


def test_a_busy_period_neither_begins_nor_ends_while_the_run_was_interrupted() -> None:
    run = a_run(1000, hold_s=100, local=True)
    run.environment["cpus"] = 2
    gap = Gap(run.phases[2].start_s + 20.0, run.phases[2].start_s + 55.0)
    run.gaps = [gap]
    cpu(run, generator__cpu_s=(0.0, 0.05), server__cpu_s=(0.0, 0.1))
    for sample in run.samples:
        sample.values["host.cpu_busy_s"] = 50.0 + 0.4 * sample.t_s + 1.55 * max(0.0, sample.t_s - gap.start_s - 20.0)
    run.samples = [sample for sample in run.samples if not gap.start_s < sample.t_s < gap.end_s]
    (found,) = cpus_taken(run)
    assert found.fields["span_s"][0] == pytest.approx(gap.end_s)


def test_a_few_seconds_beside_an_interruption_are_no_busy_period() -> None:
    """The run was stopped soon after it had been gone on with, whose processes had just begun."""
    run = a_run(1000, hold_s=100, local=True)
    run.environment["cpus"] = 2
    gap = Gap(run.phases[2].start_s + 20.0, run.stop_s - 4.0)
    run.gaps = [gap]
    cpu(run, generator__cpu_s=(0.0, 0.05), server__cpu_s=(0.0, 0.1))
    for sample in run.samples:
        sample.values["host.cpu_busy_s"] = 50.0 + 0.4 * sample.t_s + 1.55 * max(0.0, sample.t_s - gap.end_s)
    run.samples = [sample for sample in run.samples if not gap.start_s < sample.t_s < gap.end_s]
    assert cpus_taken(run) == []


def test_error_statuses() -> None:
    def found(*of_each: dict[int, int]) -> list[Finding]:
        run = bare_run([(t_s + 1.0, Tick(answered=sum(one.values()), by_status=one)) for t_s, one in enumerate(of_each)])
        return loss_findings.statuses(run, fold(run))

    # Nothing has changed (304) is no redirect.
    assert found({200: 5, 304: 1}) == found({304: 6}) == []
    (some,) = found({200: 5}, {302: 4})
    assert (some.code, some.fields) == ("redirected", {"by_status": {302: 4}, "of": 9, "from_s": 1.0})
    assert [one.code for one in found({301: 5}, {308: 1})] == ["redirected"]
    (finding,) = found({200: 5}, {404: 2}, {503: 1}, {200: 1})
    fields = finding.fields
    assert (fields["by_status"], fields["of"], fields["from_s"], fields["until_s"]) == ({404: 2, 503: 1}, 9, 1.0, 3.0)
    # One limit cannot allow both; of one status it allows what was seen.
    assert "--fail-if" not in finding.remedy
    assert [f"> {share}%" in found({200: 1000 - bad, 503: bad})[0].remedy for bad, share in ((9, 1), (200, 25), (999, 100))] == [True] * 3
    # Of errors of the server it is told whether its descriptors were spent meanwhile.
    for status, used, of, told in ((500, 190.0, 200.0, 190), (500, 189.0, 200.0, None), (500, 190.0, None, None), (404, 190.0, 200.0, None)):
        limit = {} if of is None else {"server.descriptors_limit": of}
        run = bare_run([(5.0, Tick(answered=9, by_status={status: 2}))], samples=[Sample(4.0, {"server.descriptors": used} | limit)])
        run.environment["server"] = {"label": "nginx/1.22.1"}
        (finding,) = loss_findings.statuses(run, fold(run))
        assert (finding.fields["descriptors"], "worker_rlimit_nofile" in finding.remedy) == (told, told is not None)
        late = msgspec.structs.replace(run, samples=[Sample(40.0, one.values) for one in run.samples])
        assert loss_findings.statuses(late, fold(late))[0].fields["descriptors"] is None
    # If every answer was an error, the request is likely wrong.
    (finding,) = found({405: 5})
    assert all(words in finding.remedy for words in ("--method", "GET", "100%"))


def test_who_is_away_by_the_plan_is_counted_in_the_headline() -> None:
    of = totals(89, 100)
    of.whole.events[1] = records.EventCounts(ended=11, waiting=7, gone=4)
    of.gone = 4
    found = judge(PLAN, of, saturated=False, complete=True)
    assert found.verdict == "passed"
    assert found.why.split()[:3] == ["89", "of", "100"]
    assert "7 not" in found.why
    assert "4 gone" in found.why
    # Of churn some are on their way, which is no event's.
    of.whole.events = {records.CHURN: of.whole.events[1]}
    found = judge(PLAN, of, saturated=False, complete=True)
    assert ("7 on" in found.why, "7 not" in found.why) == (True, False)


def test_who_was_gone_and_is_held_again_is_not_gone() -> None:
    """A resumed run opens all of its connections."""
    for gone in (0, 1):
        of = totals(99 - gone, 100)
        of.whole.events[1] = records.EventCounts(ended=30, gone=30)
        of.whole.events[2] = records.EventCounts(ended=1, waiting=1)
        of.gone = gone
        found = judge(PLAN, of, saturated=False, complete=True)
        assert (found.verdict, "30" in found.why) == ("passed", False)
        assert ("1 gone" in found.why, "gone" in found.why) == (gone == 1, gone == 1)


def of_storms(held: int, away: int, failed: dict[str, int] | None = None) -> Totals:
    """Two storms, after which so many were not back from the first."""
    of = totals(held, 100, None, failed)
    of.whole.events[1] = records.EventCounts(ended=away)
    of.whole.events[2] = records.EventCounts(ended=100, ended_again=100)
    return of


def test_who_was_not_back_when_the_hold_ended_fails_a_run() -> None:
    reason = verdicts.not_back(60, 1)
    assert ("60" in reason, "event 1 " in reason) == (True, True)
    found = judge(PLAN, of_storms(40, 60), saturated=False, complete=True)
    assert (found.verdict, found.why, found.by_limits) == ("failed", reason, False)
    # As for other shortfalls; and it is none of asyncli's ports, nor of a late ramp.
    late = judge(PLAN, of_storms(40, 60, {"no_ports": 3}), saturated=False, complete=True, late_ramp=True)
    assert (late.verdict, late.why) == ("failed", reason)
    more = judge(PLAN, of_storms(39, 60), saturated=False, complete=True)
    assert more.verdict == "failed"
    assert more.why == f"{verdicts.fewer_held(39, 100)}; {reason}"
    assert judge(PLAN, of_storms(40, 60), saturated=False, complete=False).verdict == "invalid"
    churned = totals(99, 100)
    churned.whole.events[0] = records.EventCounts(ended=1)
    assert judge(PLAN, churned, saturated=False, complete=True).why == verdicts.not_back(1, 0)
    assert "churn" in verdicts.not_back(1, 0)


@pytest.mark.parametrize(("limited", "verdict"), [("events.1.not_back", "passed"), ("connections.held", "passed"), ("events.2.not_back", "failed")])
def test_a_limit_on_who_was_not_back_replaces_that(limited: str, verdict: str) -> None:
    found = judge(PLAN, of_storms(40, 60), saturated=False, complete=True, limited=(limited,))
    assert found.verdict == verdict
    assert verdicts.not_back(60, 1) in found.why
    crossed = judge(PLAN, of_storms(40, 60), saturated=False, complete=True, limited=("events.1.not_back",), crossed=("crossed",))
    assert (crossed.verdict, crossed.why, crossed.by_limits) == ("failed", "crossed", True)


def test_the_verdict_if_nothing_listens() -> None:
    here = Finding(NOTHING_LISTENS, "error", "nothing listens on 127.0.0.1:1 of this host: the run did not begin")
    judgements = judge(PLAN, totals(0, 0), saturated=False, complete=True, findings=[here])
    assert (judgements.verdict, judgements.why) == ("untested", here.evidence)


def test_a_run_stopped_by_the_user() -> None:
    stopped = Finding(STOPPED, "warning", "stopped by the user (Ctrl-C or a signal) 5.5 s into the ramp of 45 s")
    cut = Finding(CUT, "warning", "ended at once 3 s into the drain")
    resumed = Finding(RESUMED, "warning", "the run was interrupted in its hold")

    def judged(held: int, complete: bool, *findings: Finding) -> tuple[str, str]:
        found = judge(PLAN, totals(held, held), saturated=False, complete=complete, findings=findings)
        return found.verdict, found.why.rpartition("; ")[2]

    assert judged(60, True, stopped) == ("failed", stopped.evidence)
    # It was not held to the end.
    assert "the end" not in judge(PLAN, totals(100, 100), saturated=False, complete=True, findings=[stopped]).why
    assert judged(60, False, stopped) == ("invalid", stopped.evidence)
    assert judged(60, False, stopped, cut) == ("invalid", cut.evidence)
    # As many were open as asked for, but none was held.
    early = [msgspec.structs.replace(stopped, fields={"phase": phase}) for phase in (None, "baseline", "ramp", "hold", "resume")]
    assert [judged(100, True, one)[0] for one in early] == ["invalid", "invalid", "invalid", "passed", "passed"]
    assert [judged(60, True, one)[0] for one in early] == ["invalid", "invalid", "invalid", "failed", "failed"]
    of_ramp = [early[2]]
    lost = judge(PLAN, totals(98, 100, {"reset": 2}), saturated=False, complete=True, findings=of_ramp)
    allowed = judge(PLAN, totals(60, 60), saturated=False, complete=True, findings=of_ramp, limited=["connections.held"])
    assert (lost.verdict, allowed.verdict) == ("failed", "invalid")
    assert all(stopped.evidence in one.why for one in (lost, allowed))
    # The run was resumed, so that was not its end.
    verdict, why = judged(100, True, stopped, cut, resumed)
    assert (verdict, why in (stopped.evidence, cut.evidence)) == ("passed", False)
    assert judged(60, True, cut, resumed, stopped) == ("failed", stopped.evidence)


def test_a_run_that_was_not_served_in_full_shows_a_limit() -> None:
    """A number that the server did not serve is a limit, known or not, unless asyncli or its user was the reason."""
    summary = summarise(a_run(20_000, hold_s=30.0))
    served_in_full = headroom(summary)
    summary.connections.held = 300
    said = headroom(summary)
    assert ({"300", "20,000"} <= set(said.split()), {"300"} <= set(served_in_full.split())) == (True, False)
    for owner, field, value in (
        (summary.run, "stopped", True), (summary.run, "complete", False), (summary.generator, "saturated", True),
        (summary.connections, "deaths", {"generator_lost": 19_700}),
    ):  # fmt: skip
        before = getattr(owner, field)
        setattr(owner, field, value)
        assert headroom(summary) == served_in_full, field
        setattr(owner, field, before)
