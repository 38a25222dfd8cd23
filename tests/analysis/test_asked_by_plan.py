"""A restart by a command of the plan is told as that; any other is a fault of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from synthetic_run import a_run

from asyncli.analysis.asked_by_plan import asked_by_plan, ended_with_server, failed_commands
from asyncli.analysis.generations import changes
from asyncli.findings.probes import server_ended, server_master_ended, server_restarted
from asyncli.findings.reconcile import counters_restarted
from asyncli.findings.server import server_processes_changed, server_reloaded
from asyncli.model.records import EventCounts, Finding, RunEvent
from asyncli.model.run import EVENT_SETTLES_S, Run
from asyncli.report.summary import summarise

Level = Callable[[float], float]
COMMAND_S = 30.0
ENDED_S = 31.5


def findings_of(*instants: float, end_s: float | None = ENDED_S) -> list[Finding]:
    """What is told of restarts at these instants, of a run whose command began at 30 s."""
    run = a_run(1_000, hold_s=60.0, events=("10s run restart",))
    run.events.append(RunEvent("run", COMMAND_S, end_s, "restart", {"number": 1}))
    run.findings += [server_ended(at_s, "the server's processes ended", None) for at_s in instants]
    run.findings += [server_restarted(77, [5]), server_master_ended(5, of_several=True)]
    codes = ("server_ended", "server_restarted", "server_master_ended")
    return [finding for finding in summarise(run).findings if finding.code in codes]


@pytest.mark.parametrize("at_s", [COMMAND_S, 31.0, ENDED_S + EVENT_SETTLES_S])
def test_a_restart_by_a_command_is_a_note_that_names_the_event(at_s: float) -> None:
    told = findings_of(at_s)
    assert {(finding.code, finding.severity, finding.remedy) for finding in told} == {
        ("server_ended", "info", ""),
        ("server_restarted", "info", ""),
        ("server_master_ended", "info", ""),
    }
    assert all("event 1" in finding.evidence for finding in told)


@pytest.mark.parametrize("at_s", [COMMAND_S - 1.0, ENDED_S + EVENT_SETTLES_S + 1.0])
def test_a_restart_at_another_time_is_a_fault(at_s: float) -> None:
    told = findings_of(at_s)
    assert [(finding.severity, "event 1" in finding.evidence) for finding in told] == [("error", False)] + 2 * [("warning", False)]


@pytest.mark.parametrize(
    ("gone_s", "verdict"),
    [(ENDED_S + EVENT_SETTLES_S, "passed"), (ENDED_S + EVENT_SETTLES_S + 2.0, "failed")],
)
def test_a_server_that_goes_long_after_a_command_has_gone_by_itself(gone_s: float, verdict: str) -> None:
    """The command may have ended connections by then; that it ended the server nobody asked for."""
    run = a_run(1_000, hold_s=60.0, events=("10s run checkpoint",))
    run.events.append(RunEvent("run", COMMAND_S, ENDED_S, "checkpoint", {"number": 1}))
    run.findings.append(server_ended(gone_s, "the server's processes ended", None))
    for t_s, tick in run.ticks:
        if gone_s - 1.0 < t_s <= gone_s:
            tick.events = {1: EventCounts(ended=300, attempts=300, opened=300)}
            tick.opened += 300
            for _ in range(300):
                tick.events[1].back_ms.add(7_000)
    summary = summarise(run)
    assert summary.run.verdict == verdict
    reasons = [finding.evidence for finding in summary.findings if finding.code == f"verdict_{verdict}"]
    assert ["300 connections" in reason for reason in reasons] == [verdict == "failed"]


def test_a_command_after_the_server_has_gone_has_no_part_in_that() -> None:
    """The command starts it again; what was counted with it then ended within seconds of the server's end."""
    run = a_run(1_000, hold_s=60.0, events=("10s run start",))
    run.events.append(RunEvent("run", COMMAND_S, ENDED_S, "start", {"number": 1}))
    run.findings.append(server_ended(COMMAND_S - 0.5, "the server's processes ended", None))
    for t_s, tick in run.ticks:
        if COMMAND_S < t_s <= COMMAND_S + 1.0:
            tick.events = {1: EventCounts(ended=300)}
    assert ended_with_server(run) == []


def test_of_two_restarts_one_may_be_a_fault() -> None:
    """Which of them the replacement of all processes is of is not known."""
    told = {(finding.code, finding.severity) for finding in findings_of(31.0, 50.0)}
    assert told == {
        ("server_ended", "info"),
        ("server_ended", "error"),
        ("server_restarted", "warning"),
        ("server_master_ended", "warning"),
    }


@pytest.mark.parametrize(("at_s", "severity"), [(COMMAND_S, "info"), (ENDED_S + 40.0, "info"), (ENDED_S + 41.0, "warning")])
def test_processes_that_end_after_a_graceful_restart_are_the_command_s(at_s: float, severity: str) -> None:
    """Until each connection has been heard once more: half a keepalive of a minute, and the timeout."""
    run = a_run(1_000, hold_s=90.0, events=("10s run restart",))
    run.events.append(RunEvent("run", COMMAND_S, ENDED_S, "restart", {"number": 1}))
    told = asked_by_plan(run, [server_processes_changed(1, 1, at_s, at_s, brief=False), server_restarted(77)])
    assert [finding.severity for finding in told] == [severity, severity]


@pytest.mark.parametrize(("at_s", "severity"), [(COMMAND_S + 1.0, "info"), (COMMAND_S - 1.0, "warning")])
def test_a_generation_that_a_command_began_is_its_note(at_s: float, severity: str) -> None:
    run = a_run(1_000, hold_s=90.0, events=("10s run restart",))
    run.events.append(RunEvent("run", COMMAND_S, ENDED_S, "restart", {"number": 1}))
    [told] = asked_by_plan(run, [server_reloaded(at_s, 2, 2)])
    assert (told.severity, "event 1" in told.evidence) == (severity, severity == "info")


def test_of_two_commands_the_last_one_restarted_it() -> None:
    run = a_run(1_000, hold_s=60.0, events=("10s run restart", "15s run restart"))
    for number, begun_s in ((1, COMMAND_S), (2, COMMAND_S + 5.0)):
        run.events.append(RunEvent("run", begun_s, begun_s + 1.0, "restart", {"number": number}))
    run.findings.append(server_ended(COMMAND_S + 7.0, "the server's processes ended", None))
    [told] = [finding for finding in summarise(run).findings if finding.code == "server_ended"]
    assert "event 2" in told.evidence


def two_deploys(**metrics: Level) -> Run:
    """Commands at 30 s and 50 s, each of a second."""
    run = a_run(1_000, hold_s=60.0, keepalive_s=4.0, timeout_s=2.0, events=("10s run deploy", "30s run deploy"))
    for number, begun_s in ((1, COMMAND_S), (2, COMMAND_S + 20.0)):
        run.events.append(RunEvent("run", begun_s, begun_s + 1.0, "deploy", {"number": number}))
    for sample in run.samples:
        for name, level in metrics.items():
            sample.values[name.replace("__", ".")] = level(sample.t_s)
    return run


@pytest.mark.parametrize(("second_s", "severity", "named"), [(51.0, "info", (1, 2)), (45.0, "warning", ())])
def test_a_finding_of_two_restarts_names_the_events_of_both(second_s: float, severity: str, named: tuple[int, ...]) -> None:
    """It is a fault where one of them was at no command's time."""
    counters = counters_restarted([31.0, second_s], "accepts", 241.0, 195.0)
    ended = [server_ended(at_s, "the server's processes ended", None) for at_s in (31.0, second_s)]
    told = asked_by_plan(two_deploys(), [counters, *ended, server_restarted(77)])
    for finding in (told[0], told[-1]):
        assert finding.severity == severity
        assert tuple(number for number in (1, 2) if f"event {number}" in finding.evidence) == named


def test_processes_that_came_and_went_are_told_by_the_event_whose_they_were() -> None:
    """One by the first command, two by the second, and one at another time."""
    times: Level = lambda t_s: float((t_s > 31.0) + (t_s > 42.0) + 2 * (t_s > 51.0))  # noqa: E731
    run = two_deploys(server__processes=lambda _: 5.0, server__started=times, server__joined=times, server__ended=times)
    for t_s, tick in run.ticks:
        if 31.0 < t_s < 32.0:
            tick.events = {1: EventCounts(ended=300)}
    told = asked_by_plan(run, changes(run))
    assert [finding.fields["by_events"] for finding in told] == [300, 0, 0]
    assert [(finding.fields["started"], finding.severity) for finding in told] == [(1, "info"), (1, "warning"), (2, "info")]
    assert ["event 1" in told[0].evidence, "event 2" in told[2].evidence] == [True, True]
    assert all(finding.fields["to_s"] - finding.fields["from_s"] < 1.0 for finding in told)


def restarted_in_a_gap(*, bystander_s: float, gone_s: float | None) -> Run:
    """A command at 30 s restarts three processes in the background, which takes five seconds; they are not there at 31 s to 34 s. Another
    one ends nothing."""
    run = two_deploys(server__started=lambda t_s: 3.0 * (t_s > 34), server__ended=lambda t_s: 3.0 * (t_s > 34), server__processes=lambda t_s: 3.0)
    run.events = [
        RunEvent("run", COMMAND_S, COMMAND_S + 0.5, "deploy &", {"number": 1}),
        RunEvent("run", bystander_s, bystander_s + 0.1, "true", {"number": 2}),
    ]
    for sample in run.samples:
        if 30.5 < sample.t_s < 34.5:
            for name in [name for name in sample.values if name.startswith("server.")]:
                del sample.values[name]
    if gone_s is not None:
        run.findings.append(server_ended(gone_s, "the server's processes ended", None))
    for t_s, tick in run.ticks:
        if 30.5 < t_s < 31.5:
            tick.events = {1: EventCounts(ended=300, phantoms=1)}
    run.findings = [finding for finding in run.findings if finding.code == "server_ended"]
    return run


@pytest.mark.parametrize("gone_s", [31.0, None])
def test_processes_that_ended_are_of_the_command_with_which_connections_ended(gone_s: float | None) -> None:
    run = restarted_in_a_gap(bystander_s=32.0, gone_s=gone_s)
    told = asked_by_plan(run, [*run.findings, *changes(run), server_restarted(77)])
    assert [("event 1" in finding.evidence, "event 2" in finding.evidence) for finding in told] == [(True, False)] * len(told)
    [changed] = [finding for finding in told if finding.code == "server_processes_changed"]
    # One that was new, and was never answered, is none that ended with them.
    assert (changed.fields["started"], changed.fields["ended"], changed.fields["by_events"]) == (3, 3, 300)
    assert gone_s is None or changed.fields["from_s"] == gone_s


def test_a_bystander_right_after_a_restart_is_not_named_for_it() -> None:
    run = restarted_in_a_gap(bystander_s=30.9, gone_s=31.0)
    [told] = asked_by_plan(run, run.findings)
    assert ("event 1" in told.evidence, "event 2" in told.evidence) == (True, False)


def test_connections_that_ended_with_processes_are_told_once() -> None:
    """Two restarts a second apart."""

    def restarts(t_s: float) -> float:
        return float(t_s > 30.5) + float(t_s > 31.5)

    run = two_deploys(server__started=restarts, server__ended=restarts, server__processes=lambda t_s: 1.0)
    run.events = [RunEvent("run", at_s, at_s + 0.1, "deploy", {"number": number}) for number, at_s in ((1, 30.4), (2, 31.4))]
    for t_s, tick in run.ticks:
        if 30.5 < t_s < 31.5:
            tick.events = {1: EventCounts(ended=300)}
        if 31.5 < t_s < 32.5:
            tick.events = {2: EventCounts(ended=143)}
    told = asked_by_plan(run, changes(run))
    assert [finding.fields["by_events"] for finding in told] == [300, 143]


@pytest.mark.measures
def test_processes_that_come_and_go_all_night_are_told_in_time_in_proportion_to_it() -> None:
    took_s = []
    for hold_s in (5_400.0, 21_600.0):
        run = a_run(1_000, hold_s=hold_s)
        run.events.append(RunEvent("run", COMMAND_S, hold_s, "deploy", {"number": 1}))
        for sample in run.samples:
            sample.values |= {"server.started": sample.t_s // 2, "server.ended": sample.t_s // 2, "server.processes": 2.0}
        began_s = time.process_time()
        assert changes(run) != []
        took_s.append(time.process_time() - began_s)
    # A quadratic step would take sixteen times.
    assert took_s[1] < 9.0 * max(took_s[0], 0.05)


def test_a_command_that_never_ended_may_have_restarted_it_at_any_time() -> None:
    assert {finding.severity for finding in findings_of(60.0, end_s=None)} == {"info"}


def test_a_run_without_commands_keeps_its_findings() -> None:
    run = a_run(1_000)
    ended = server_ended(math.pi, "the server's processes ended", None)
    assert asked_by_plan(run, [ended]) == [ended]


def failed(status: int | None, *, took_s: float = 2.0, output: str = "") -> list[Finding]:
    run = a_run(1_000, hold_s=60.0, events=("10s run deploy",))
    fields = {"number": 1, "status": status, "took_s": took_s, "output": output}
    run.events.append(RunEvent("run", COMMAND_S, COMMAND_S + took_s, "deploy", fields))
    return [finding for finding in summarise(run).findings if finding.code == "command_failed"]


@pytest.mark.parametrize(("status", "says"), [(127, "status 127"), (-9, "signal 9"), (None, "asyncli")])
def test_a_command_that_did_not_succeed_is_a_warning(status: int | None, says: str) -> None:
    [told] = failed(status, output="absent")
    assert (told.severity, told.fields["number"], told.fields["status"]) == ("warning", 1, status)
    assert says in told.evidence
    assert "absent" in told.evidence


def test_the_end_of_a_long_output_says_why_a_command_failed() -> None:
    output = "first " + 300 * "more " + "last"
    [told] = failed(1, output=output)
    assert ('more last"' in told.evidence, "first" in told.evidence, '"...' in told.evidence) == (True, False, True)


def test_a_command_that_was_not_run_says_why() -> None:
    [told] = failed(None, took_s=0.0, output="not run: a resumed run runs no commands")
    assert (told.evidence.count("not run"), "resumed" in told.evidence, "ended it" in told.evidence) == (1, True, False)


def test_a_command_that_succeeded_is_no_finding() -> None:
    assert failed(0) == []
    run = a_run(1_000, hold_s=60.0, events=("10s run deploy",))
    run.events.append(RunEvent("run", COMMAND_S, None, "deploy", {"number": 1}))
    assert failed_commands(run) == []


@pytest.mark.parametrize(("status", "fails"), [(0, False), (1, True)])
def test_a_limit_on_the_status_of_a_command(status: int, fails: bool) -> None:
    limits = ("events.1.status > 0", "events.1.back.all_s > 5s")
    run = a_run(1_000, hold_s=60.0, events=("10s run deploy",), fail_if=limits)
    run.events.append(RunEvent("run", COMMAND_S, 31.0, "deploy", {"number": 1, "status": status, "took_s": 1.0, "output": ""}))
    summary = summarise(run)
    # It ended no connection, so nobody had to be back.
    assert [limit.kept for limit in summary.limits] == [not fails, True]
