"""The report on a terminal says the answer first, and says it anywhere."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from made_runs import unsteady
from rich.console import Console
from synthetic_run import a_run

from asyncli.records import Check, Finding, Gap
from asyncli.report.answer import answer, one_line, room
from asyncli.report.run_report import print_report
from asyncli.report.summary import Summary, summarise
from asyncli.run import Run


def printed(of: Run | Summary, width: int = 80, path: str = "run.db", *, terminal: bool = True, verbose: bool = False) -> str:
    summary = summarise(of) if isinstance(of, Run) else of
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)
    print_report(summary, console, path, verbose=verbose)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not terminal or max(map(len, text.splitlines())) <= width
    assert "…" not in text  # no cell is cut
    assert "nan" not in text.lower().split()
    return str(text)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_verdict_and_the_answer_come_first() -> None:
    lines = printed(a_run(100_000)).splitlines()
    assert lines[0] == "PASSED  100,000 of 100,000 connections were held to the end, and none was lost"
    said = flat(" ".join(lines[2:5]))
    pattern = (
        r"One more connection costs 9,\d\d\d B ± \d+ on this host: 1,0\d\d B ± \d+ in nginx, 4,0\d\d B ± \d+ in the kernel for each "
        r"of its two ends, 1[23]\d B ± \d+ in asyncli, [34]\d\d B ± \d+ left over\."
    )
    assert re.fullmatch(pattern, said), said


def test_an_interruption_is_told_beside_the_phases() -> None:
    run = a_run(20_000, hold_s=120.0)
    hold = run.phases[2]
    run.gaps = [Gap(hold.start_s + 30.0, hold.start_s + 45.0)]
    assert re.search(r"residue .* interrupted 55.1 s 70.1 s 15 s", flat(printed(run, verbose=True)))


def test_the_report_of_a_run_that_passed_is_short_and_has_no_rules() -> None:
    run = a_run(3000, hold_s=120.0)
    text = printed(run)
    assert len(text.splitlines()) <= 40
    assert "Rule:" not in text
    for words in (
        "PASSED  3,000 of 3,000",
        "a connection costs 1,0",
        "Cost of a connection      bytes    95 % interval       fixed     at 3,000",
        "Memory over the hold",
        "Connections: 3,000 opened at 1,000/s (1,000/s asked), none lost or failed",
        "Counts agree: 3,000 open, 3,000 accepted, 26,614 answered",
        "CPU and memory: nginx 2.58 s, 63.1 MB; asyncli 1.95 s, + 388 kB",
        "All of it, with 5 more notes: asyncli report run.db -v",
    ):
        assert words in text, words
    assert len([one for one in summarise(run).findings if one.severity == "info" and not one.code.startswith("verdict_")]) == 5


def test_what_is_not_as_it_should_be_has_its_table_in_the_short_report_too() -> None:
    summary = summarise(a_run(3000))
    summary.connections.reopened = 2
    summary.heartbeats.by_status = {"404": summary.heartbeats.answered}
    summary.reconciliation.agrees = False
    summary.findings.append(Finding("limit_kept", "info", "kept: lost < 9: connections.lost is 0"))
    text = flat(printed(summary))
    assert "Connections asked opened held lost reopened failed 3,000 3,000 3,000 0 2 0" in text
    assert f"status {summary.heartbeats.answered:,} × 404" in text
    assert "Counts compared asyncli nginx open, active 3,000 3,000" in text
    assert "They disagree (see the findings)." in text
    assert "info kept: lost < 9: connections.lost is 0" in text
    summary.reconciliation.agrees = None
    assert "Whether they agree is not known." in flat(printed(summary))


def test_the_counts_that_agree_are_those_that_both_sides_have() -> None:
    summary = summarise(a_run(3000))
    summary.reconciliation.requests_delta = None
    text = printed(summary)
    assert "Counts agree: 3,000 open, 3,000 accepted\n" in text
    assert f"{summary.heartbeats.sent:,} sent" in text


def test_a_name_with_blanks_is_quoted_in_the_command_only() -> None:
    for verbose, command in ((False, "asyncli report 'my run.db' -v\n"), (True, "asyncli report 'my run.db'\n")):
        text = printed(a_run(1000), path="my run.db", verbose=verbose)
        assert ": my run.db\n" in text
        assert command in text


def test_a_server_elsewhere_costs_one_end_here() -> None:
    run = a_run(60_000, local=False, server=False, status=False, label="")
    said = answer(summarise(run))
    assert "in the kernel for this end of it" in said
    assert "in the server" not in said
    assert "Counts compared" not in printed(run)


def test_what_is_not_known_is_said_and_how_to_know_it() -> None:
    run = a_run(1000)
    run.phases = run.phases[:2]
    said = answer(summarise(run))
    assert said.startswith("What one more connection costs is not known: ")
    run = a_run(30_000)
    for sample in run.samples:
        sample.values.pop("host.used_bytes")
    assert answer(summarise(run)).endswith("this host's total is not known.")


NOT_SEEN = Finding("server_processes_unknown", "warning", "they are not known", "name them")


@pytest.mark.parametrize(
    ("of_run", "environment", "mend"),
    [
        ({}, {"server": {"hidden": True}}, "sudo"),
        ({}, {"server": {"hidden": False}}, "--server-pid PID"),
        ({"local": False}, {}, "--agent http://127.0.0.1:9165"),
        ({"local": False}, {"server": {"hidden": True}, "agent": {"host": "b"}}, "the agent as root (sudo)"),
        ({"local": False}, {"server": {}, "agent": {"host": "b"}}, "to the agent: --server-pid PID"),
    ],
    ids=str,
)
def test_where_the_server_was_not_seen_the_answer_says_so_and_how_to_see_it(
    of_run: dict[str, Any], environment: dict[str, Any], mend: str
) -> None:
    run = a_run(30_000, server=False, label="", **of_run)
    run.environment.update(environment)
    run.findings.append(NOT_SEEN)
    summary = summarise(run)
    said = answer(summary)
    assert said.startswith("What one more connection costs the server is not known, as ")
    assert " in all). To know it: " in said
    assert mend in said
    assert "in asyncli" not in said
    summary.cost.host_total = None
    assert "(an end of it costs 4,0" in answer(summary)


def test_an_invalid_run_warns_at_the_top() -> None:
    run = a_run(20_000)
    for _, tick in run.ticks:
        tick.longest_turn_s = 3.0
    text = printed(run)
    assert text.startswith("INVALID")
    assert "Do not rely on these numbers" in "\n".join(text.splitlines()[:7])


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_any_width(width: int) -> None:
    printed(a_run(20_000), width)


def test_foreign_text_cannot_steer_the_terminal() -> None:
    run = a_run(1000, label="nginx/[red]1\x1b[2J")
    run.findings = [Finding("x", "warning", "a\nb \x1b[31m [bold]c[/bold]", "\x07do")]
    text = printed(run)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]c[/bold]" in text


def test_a_terminal_that_knows_ascii_alone() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    summary = summarise(a_run(20_000, label="nginx-é/1"))
    print_report(summary, Console(file=file, width=80, highlight=False), "run.db")
    file.flush()
    assert re.search(rb"B \+- \d+ on this host", raw.getvalue().replace(b"\n", b" "))


def test_one_line() -> None:
    line = one_line(summarise(a_run(100_000)))
    assert re.fullmatch(r"passed: 100,000 of .* none was lost; one more costs 9,\d\d\d B \+- \d+ on this host", line)
    assert re.search(
        r"none was lost; with what the first ones take once, a connection costs 1,\d\d\d B \+- \d+ in nginx$",
        one_line(summarise(a_run(1000))),
    )


def test_a_forecast_does_not_stand_on_a_fit_that_the_answer_calls_lost() -> None:
    summary = summarise(unsteady())
    assert "the whole host's memory moved too much to tell" in answer(summary)
    assert summary.forecast.first is None
    # What is left over may be nothing or more than all the rest: a range of so much is no forecast.
    assert room(summary) == ""


def test_a_server_alone_has_a_range_in_the_answer() -> None:
    said = room(summarise(a_run(100_000)))
    assert re.search(r"a server of its size with its clients elsewhere for 3,\d\d0,000 to 3,\d\d0,000\.$", said), said


def test_less_than_before_is_nothing_that_was_kept() -> None:
    run = a_run(30_000)
    for sample in run.samples:
        if sample.t_s > run.phases[-1].start_s:
            sample.values["host.used_bytes"] -= 148e6
    assert re.search(
        r"Kept .* in nginx, .* nothing on this host in all \(1\d\d MB less than before\)\.", flat(printed(run, verbose=True))
    )


def test_what_stands_behind_the_sign_has_the_unit_of_what_stands_before_it() -> None:
    summary = summarise(a_run(100_000))
    total = summary.cost.host_total
    assert total is not None
    total.bytes_per_connection, total.ci95 = 2.0e6, (2.0e6 - 3733, 2.0e6 + 3733)
    assert "One more connection costs 2.0 MB ± 3,733 B on this host: " in answer(summary)
    total.bytes_per_connection, total.ci95 = 4e6, (3e6, 5e6)
    assert "4.0 MB ± 1.0 MB on this host: " in answer(summary)
    assert "4.0 MB +- 1.0 MB on this host" in one_line(summary)
    total.ci95 = (1e6, 7e6)
    assert "costs between 1.0 MB and 7.0 MB on this host: " in answer(summary)


def test_no_cost_in_the_answer_is_without_its_error() -> None:
    summary = summarise(a_run(100_000))
    server = summary.cost.server_user
    assert server is not None
    server.bytes_per_connection, server.ci95 = 229.0, (-106.0, 564.0)
    assert "at most 564 B in nginx, " in answer(summary)
    server.bytes_per_connection, server.ci95 = -0.02, (-0.1, 0.1)
    assert "0 B ± 0.1 in nginx, " in answer(summary)
    (row,) = re.findall(r"^nginx, user memory +(\S+) +(.+?) {2,}", printed(summary), re.MULTILINE)
    assert row == ("0", "-0.1 to 0.1")
    server.bytes_per_connection = 229.0
    summary.cost.host_total = None
    server.ci95 = (-106.0, 564.0)
    assert one_line(summary).endswith("none was lost")
    server.ci95 = (52.0, 406.0)
    assert "between 52 and 406 B in nginx" in answer(summary)
    assert one_line(summary).endswith("one more costs between 52 and 406 B in nginx")


def test_a_server_that_held_none_has_no_forecast_in_the_answer() -> None:
    summary = summarise(a_run(100_000))
    assert room(summary)
    summary.connections.held = 0
    assert room(summary) == ""
    assert "Room for connections" in printed(summary, verbose=True)
    summary.connections.opened = 0
    assert "Room for connections" not in printed(summary, verbose=True)


@pytest.mark.parametrize("known", [True, False])
def test_the_first_limit_is_not_said_to_be_the_first_of_what_was_not_read(known: bool) -> None:
    run = a_run(1000)
    run.checks = [Check("file_max", "open files", "ok", 10_000, 2_000, "files")]
    for sample in run.samples if known else ():
        sample.values |= {"server.processes": 1.0, "server.descriptors_limit": 9000.0}
    said = room(summarise(run))
    assert "First open files of the whole host (fs.file-max) would give out, at about 5,000" in said
    assert ("the server's own limits are not known" in said) is not known


def test_after_a_failure_the_answer_says_what_gave_way_in_place_of_a_forecast() -> None:
    run = a_run(100_000)
    run.ticks[5][1].failures["refused"] = 7
    for _, tick in run.ticks:
        tick.held_at_drain = max(0, tick.held_at_drain - 7)
    summary = summarise(run)
    assert (summary.forecast.memory, summary.forecast.ceilings, summary.forecast.first) == (None, [], None)
    assert room(summary) == "No forecast, because 7 connects failed: 7 connects were refused."
    said = printed(run)
    assert room(summary) in flat(said)
    assert "Room for connections" not in said
    assert "forecast_unknown" not in [one.code for one in summary.findings]


def test_a_log_gets_its_tables_as_wide_as_they_must_be() -> None:
    run = a_run(30_000)
    narrow = printed(run, 40, terminal=False)
    assert "this host in all" in narrow
    assert re.search(r"^Cost of a connection +bytes +95 % interval +fixed +at 30,000$", narrow, re.MULTILINE)


def test_no_line_ends_in_blanks() -> None:
    for width in (60, 80, 120):
        assert [line for line in printed(a_run(30_000), width=width).splitlines() if line != line.rstrip()] == []
