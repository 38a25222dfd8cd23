"""The worst finding stands beside a pass: in the first line, in the quiet line, and in a list of runs."""

from __future__ import annotations

import msgspec
import pytest
from synthetic_run import a_run, raised

from asyncli.findings.run import command_failed
from asyncli.model.exit_status import exit_status
from asyncli.model.records import Deaths, EventCounts, Finding, RunEvent
from asyncli.model.run import Run
from asyncli.report.answer import beside_pass, one_line, why_with_worst, worst
from asyncli.report.listing import listed, state
from asyncli.report.summary import summarise

ERROR = Finding("records_missing", "error", "3 records are missing; more words", "")
WARNING = Finding("probe_refused", "warning", "a warning; more words", "")
DEPLOY = command_failed(1, "./deploy", 3, 2.0, "")


def leaking(*findings: Finding) -> Run:
    run = raised(a_run(20_000, hold_s=900.0), 0.0, "server.pss_bytes", "host.used_bytes", per_s=1e6)
    return msgspec.structs.replace(run, findings=[*run.findings, *findings])


@pytest.mark.parametrize(
    ("run", "code", "count", "listed_as"),
    [
        (a_run(20_000, hold_s=30.0), None, "", "passed"),
        (leaking(WARNING), "drift_grows", "with 3 warnings (worst: drift_grows)", "passed, warning drift_grows"),
        (leaking(WARNING, DEPLOY), "command_failed", "with 4 warnings (worst: command_failed)", "passed, warning command_failed"),
        (leaking(WARNING, DEPLOY, ERROR), "records_missing", "with 1 error and 4 warnings (worst: records_missing)", "passed, error records_missing"),
        (leaking(WARNING, ERROR), "records_missing", "with 1 error and 3 warnings (worst: records_missing)", "passed, error records_missing"),
    ],
)
def test_the_worst_is_an_error_then_a_leak(run: Run, code: str | None, count: str, listed_as: str) -> None:
    summary = summarise(run)
    assert (summary.verdict, exit_status(summary.verdict)) == ("passed", 0)
    finding = worst(summary)
    assert (None if finding is None else finding.code, beside_pass(summary)) == (code, count)
    entry = listed(run, "a.db", 1, changed_s=1e6, age_s=1.0)
    assert (entry.worst, state(entry)) == (code, listed_as)


def test_an_error_is_never_under_a_bare_pass() -> None:
    summary = summarise(leaking(ERROR))
    assert one_line(summary).startswith(f"passed {beside_pass(summary)}: ")
    finding = worst(summary)
    assert finding is not None
    first, _, rest = finding.evidence.partition("; ")
    for line in (one_line(summary), why_with_worst(summary)):
        # Its first clause.
        assert first in line
        assert rest not in line
    # A leak is told right below.
    assert why_with_worst(summarise(leaking())) == summarise(leaking()).why


def test_of_another_verdict_the_reason_stands_alone() -> None:
    run = leaking(ERROR)
    run.plan = msgspec.structs.replace(run.plan, fail_if=("drift.server_user > 1kB/h",))
    summary = summarise(run)
    assert (summary.verdict, worst(summary), why_with_worst(summary)) == ("failed", None, summary.why)


def test_one_line_of_watch_has_the_warnings_too() -> None:
    summary = summarise(a_run(2000))
    summary.findings = [Finding("host_busy", "warning", "busy"), Finding("other", "warning", "else")]
    assert one_line(summary).startswith("passed: ")
    assert one_line(summary, warnings=True).startswith(f"passed {beside_pass(summary)}: ")


@pytest.mark.parametrize(("limit", "severity"), [("connections.deaths.generator_lost > 200%", "info"), ("connections.deaths.generator_lost > 5", "error")])
def test_own_losses_that_a_limit_allows_are_told_once(limit: str, severity: str) -> None:
    """A resumed run: what was held was lost with the processes of the session before."""
    run = a_run(1_000, hold_s=60.0)
    run.plan = msgspec.structs.replace(run.plan, fail_if=(limit,))
    _, tick = run.ticks[40]
    tick.deaths["generator_lost"] = Deaths(count=1_000)
    tick.opened += 1_000
    summary = summarise(run)
    lost = summary.finding("lost_generator_lost")
    assert lost is not None
    assert (lost.severity, summary.verdict == "passed") == (severity, severity == "info")
    # It has the limit that a remedy could name.
    assert "--fail-if" not in lost.remedy
    assert worst(summary) != lost
    run.plan = msgspec.structs.replace(run.plan, fail_if=())
    without = summarise(run).finding("lost_generator_lost")
    assert without is not None
    assert (without.severity, "--fail-if" in without.remedy) == ("error", True)


@pytest.mark.parametrize(("absent", "is_told"), [(20, True), (19, False)])
def test_an_event_that_took_nobody_is_the_worst_warning(absent: int, is_told: bool) -> None:
    run = a_run(1_000, hold_s=60.0, events=("20s stall 2% for 5s",))
    hold = run.phase("hold")
    assert hold is not None
    at_s = hold.start_s + 20.0
    run.events.append(RunEvent("stall", at_s, None, "stall 2% for 5s", {"number": 1}))
    for t_s, tick in run.ticks:
        if at_s < t_s <= at_s + 1:
            tick.events[1] = EventCounts(chosen=20, absent=absent, stalled=20 - absent)
        if at_s + 5 < t_s <= at_s + 6 and absent < 20:
            tick.events[1] = EventCounts(resumed=20 - absent)
            tick.events[1].back_ms.add(5)
    summary = summarise(run)
    finding = summary.finding("nothing_to_measure")
    assert (summary.verdict, finding is not None) == ("passed", is_told)
    if finding is not None:
        assert worst(summary) == finding
        assert (finding.severity, finding.fields["number"], finding.fields["chosen"]) == ("warning", 1, 20)
