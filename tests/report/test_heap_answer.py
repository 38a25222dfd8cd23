"""What a report says first of a server whose heap is collected."""

from __future__ import annotations

import re

import msgspec
import pytest
from collected_runs import LIVE, STACKS, of_go, soak
from synthetic_run import a_run, raised, without

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.sizing import SizedPart, size
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.runtimes import Runtime
from asyncli.model.topology import Place
from asyncli.model.units import format_bytes
from asyncli.report.analyses import analyse
from asyncli.report.answer import doubts as answer_doubts
from asyncli.report.answer import filling, growth, headroom, one_line, stands_first
from asyncli.report.cost_answer import answer, heap_answer
from asyncli.report.figures.pictures import pictures
from asyncli.report.format import cost_rows
from asyncli.report.run_costs import earlier_memory, files_apart, server_level
from asyncli.report.size_report import doubts, size_document
from asyncli.report.summary import Summary, summarise


def summary_of(**pages: float) -> Summary:
    run = of_go(soak(), **pages)
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + sample.values[metrics.RUNTIME_HEAP_BYTES] + sample.values[metrics.RUNTIME_STACKS_BYTES]
    return summarise(run)


def test_the_answer_begins_with_what_a_host_must_have() -> None:
    summary = summary_of()
    goal = summary.cost.at_goal
    assert goal
    assert abs(goal.bytes_per_connection - (2 * LIVE + 2 * STACKS)) < 2_500
    first, _, _ = answer(summary).partition(", ")
    filled = "heap has filled"
    assert first.endswith(filled)
    assert filled in one_line(summary)
    assert heap_answer(summary).count("B ±") >= 2


def test_what_is_unknown_of_a_heap_is_said_with_its_remedy() -> None:
    summary = summary_of(least_goal=1e9)
    assert not summary.cost.at_goal
    assert "--collect" in heap_answer(summary)
    assert "heap" not in answer(summary)


def test_the_heap_of_a_program_behind_the_server_is_told_as_its_own() -> None:
    run = of_go(soak())
    page = {"url": "http://h/metrics", "of_program": "app", "of_pid": 311}
    run.environment["server"] = {**run.environment["server"], "metrics": [page]}
    for sample in run.samples:
        held = run.held.at(sample.t_s) or 0.0
        beside = {f"{metrics.BESIDE_DESCRIPTORS}app": held, f"{metrics.BESIDE_BYTES}app": 26_000 * held}
        sample.values |= {metrics.HOST_OTHER_PROCESSES: 100.0, metrics.SERVER_DESCRIPTORS_OPEN: 20 + 2 * held, **beside}
    summary = summarise(run)
    in_nginx, behind, _ = answer(summary).split(", ", 2)
    assert in_nginx.endswith(" in nginx")
    filled = "when its heap has filled"
    for told, text in ((f"app behind it {filled}", behind), ("heap of app: ", heap_answer(summary)), (f"app behind nginx {filled}", one_line(summary))):
        assert told in text


def test_a_size_says_once_why_the_goal_is_unknown() -> None:
    run = on_go(of_go(soak()))
    run.plan = msgspec.structs.replace(run.plan, server_metrics=("http://127.0.0.1:9/metrics",))
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + 90_000 * (run.held.at(sample.t_s) or 0.0)
    summary = summarise(run)
    [beyond] = [finding for finding in summary.findings if finding.code == "heap_of_a_part"]
    analyses = analyse(run)
    sizing = size(analyses.costs, analyses.prediction, connections=10_000, measured=2_000, host_bytes=None, gogc=100)
    unknown = "is unknown"
    [of_heap] = [doubt for doubt in doubts(sizing, summary) if "GOGC" in doubt]
    assert of_heap.count(unknown) == 1
    assert beyond.evidence.endswith(f"{unknown}")
    assert of_heap.endswith(f"{beyond.evidence[1:]}.")


def test_a_connection_of_many_ends_is_told() -> None:
    """Others on the host may open sockets in step with ours, which counts as a proxy's."""
    summary = summarise(a_run(20_000))
    summary.cost.ends = 5
    assert " 5 ends" in answer(summary)


NO_PLAN = "to plan"


def on_go(run: Run) -> Run:
    runtime = Runtime("go", "1.26.8", collected=True, gogc=100)
    run.environment["server"] = {**run.environment["server"], "runtime": runtime.document()}
    return run


@pytest.mark.parametrize("has_total", [True, False], ids=["the total leads", "the server's part leads"])
def test_a_number_of_a_heap_that_was_filling_says_so_beside_it(has_total: bool) -> None:
    """No interval of such a number holds what the server takes at rest: nobody may plan with it unawares."""
    run = on_go(soak())
    if not has_total:
        run = without(run, "host.")
    summary = summarise(run)
    first, *parts = answer(summary).split(", ")
    assert NO_PLAN in (first if has_total else f"{first}, {parts[0]}")
    assert answer(summary).count(NO_PLAN) == 1
    assert "was filling" in one_line(summary)
    limit = headroom(summary)
    if "memory for" in limit:
        assert "with fewer" in limit
    assert has_total == ("memory for" in limit)
    assert summary.cost.server_user is not None
    assert "collected heap" in summary.cost.server_user.method


@pytest.mark.parametrize(
    ("gogc", "says"),
    [(100, "plan with)"), (400, "GOGC=400"), (400, "5 times"), (-1, "GOGC=off")],
)
def test_how_far_a_heap_may_fill_is_said_beside_its_number(gogc: int, says: str) -> None:
    run = on_go(soak())
    run.environment["server"]["runtime"]["gogc"] = gogc
    assert says in answer(summarise(run))
    assert says in answer(summarise(without(run, "host.")))
    run.environment["server"]["runtime"]["kind"] = "jvm"
    assert "GOGC" not in answer(summarise(run))


def test_why_a_goal_is_unknown_is_said_beside_what_is_alive() -> None:
    """In the first lines, and in the size of a fleet."""
    summary = summarise(on_go(of_go(a_run(300, batch=1, interval_s=0.05), garbage_per_s=4e6)))
    [unknown] = [finding for finding in summary.findings if finding.code == "goal_unknown"]
    told = heap_answer(summary)
    assert f"{unknown.fields['connections']:,}" in told
    assert told.index("Alive") < told.index(unknown.remedy)
    assert stands_first(summary, unknown)


def test_a_server_without_a_collector_has_no_such_words() -> None:
    summary = summarise(soak())
    told = f"{answer(summary)} {one_line(summary)} {headroom(summary)}"
    assert "heap" not in told
    assert NO_PLAN not in told


def test_a_heap_at_its_goal_has_no_such_words() -> None:
    run = on_go(of_go(soak()))
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 20e6 + sample.values[metrics.RUNTIME_HEAP_BYTES] + sample.values[metrics.RUNTIME_STACKS_BYTES]
    summary = summarise(run)
    assert summary.cost.at_goal
    told = f"{answer(summary)} {one_line(summary)} {headroom(summary)}"
    assert NO_PLAN not in told
    assert "with fewer" not in told


def test_the_size_of_a_fleet_by_a_filling_heap_is_doubted() -> None:
    run = on_go(soak())
    summary = summarise(run)
    analyses = analyse(run)
    asked = {"connections": 100_000, "measured": 2_000, "host_bytes": 64e9}
    sizing = size(analyses.costs, analyses.forecast, **asked)
    assert any("plan with" in doubt for doubt in doubts(sizing, summary))
    native = summarise(soak())
    assert not any("plan with" in doubt for doubt in doubts(sizing, native))


def test_a_heap_with_a_limit_is_sized_by_what_is_alive_in_it() -> None:
    """Resident memory follows -Xmx: the remedy is no flag that the run had."""
    run = soak()
    runtime = Runtime("jvm", "17", collected=True, heap_limit_bytes=256_000_000)
    run.environment["server"] = {**run.environment["server"], "runtime": runtime.document()}
    summary = summarise(run)
    analyses = analyse(run)
    sizing = size(analyses.costs, analyses.forecast, connections=100_000, measured=2_000, host_bytes=None)
    [of_heap] = [doubt for doubt in doubts(sizing, summary) if "256 MB" in doubt]
    assert "--collect" in of_heap
    assert "--server-metrics" not in of_heap


def test_pages_of_files_are_no_pool_of_connections() -> None:
    """A program of 30 MB has no more memory that a connection may use than one of none."""
    small = earlier_memory(summarise(soak()))
    run = raised(soak(), 30e6, "server.pss_bytes")
    for sample in run.samples:
        sample.values[metrics.SERVER_FILE_BYTES] = 30e6
    large = earlier_memory(summarise(run))
    assert small
    amounts = re.compile(r"[\d.,]+ [kM]?B")
    assert amounts.findall(large) == amounts.findall(small)


@pytest.mark.parametrize(("high", "says"), [(93e6, ["80.0 MB", "93.0 MB"]), (91e6, ["6.0 MB"])], ids=["uneven", "even"])
def test_the_size_of_a_part_reaches_to_both_ends_of_its_interval(high: float, says: list[str]) -> None:
    """Half of the interval beside a value off its middle cuts the upper end, with which a host is sized."""
    summary = summarise(soak())
    part = SizedPart("server_user", 1_000.0, 1e6, 85e6, (80e6, high))
    sized = size(analyse(soak()).costs, analyse(soak()).prediction, connections=1_000, measured=2_000, host_bytes=None)
    table = size_document(msgspec.structs.replace(sized, parts=(part,)), summary, "a.db").sections[1].blocks[0]
    assert re.findall(r"[\d.]+ MB", table.rows[0].cells[3]) == says


@pytest.mark.parametrize("since", [40e6, -25e6, 1e6])
def test_pages_of_files_that_others_share_are_in_no_column(since: float) -> None:
    """Six other processes of the program end in the ramp: its own share of the program's pages rises, and no connection has it."""
    run = raised(soak(), 30e6, "server.pss_bytes")
    began = run.first_connect_s + 10.0
    for sample in run.samples:
        sample.values[metrics.SERVER_FILE_BYTES] = 30e6 + since * (sample.t_s > began)
        sample.values[metrics.SERVER_FILE_RSS_BYTES] = 70e6
        sample.values[metrics.SERVER_ANON_SHMEM_BYTES] = sample.values[metrics.SERVER_PSS_BYTES] - 30e6
    raised(run, since, "server.pss_bytes", since_s=began)
    summary = summarise(run)
    server = summary.cost.server_user
    assert server is not None
    by_columns = server.fixed_bytes + summary.connections.held * server.bytes_per_connection
    assert server_level(summary) == pytest.approx(by_columns, rel=0.02)
    assert (format_bytes(abs(since)) in files_apart(summary)) == (abs(since) > 2e6)


def test_a_cost_of_two_levels_is_of_the_first_connections() -> None:
    """Those use memory that the server had: a small object fits into a page that is there."""
    few = summarise(without(a_run(60, batch=10, interval_s=0.2), "host."))
    assert few.cost.server_user is not None
    assert few.cost.server_user.of_levels
    [doubt] = [doubt for doubt in answer_doubts(few) if "slope" in doubt]
    assert "60" in doubt
    many = summarise(without(soak(), "host."))
    assert not [doubt for doubt in answer_doubts(many) if "slope" in doubt]


def test_the_table_names_the_memory_of_a_filling_heap() -> None:
    labels = {row.name: row.label for row in cost_rows(analyse(soak()).costs, "app", Place(local=True).sides, heap_fills=True)}
    assert labels["server_user"].endswith("heap filling")


def test_the_bar_of_a_connection_says_of_which_heap_it_is() -> None:
    for run, told in ((on_go(soak()), True), (soak(), False)):
        summary = summarise(run)
        bar = pictures(run, summary, analyse(run))[0]
        assert ("was filling" in bar.caption) == told


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_why_a_heap_is_unknown_is_said_once(share: float) -> None:
    summary = summarise(of_go(soak(), share=share))
    [refused] = [finding for finding in summary.findings if finding.code == "heap_of_a_part"]
    assert stands_first(summary, refused)
    assert refused.remedy in heap_answer(summary)
    assert heap_answer(summary).startswith("Warning: ")


@pytest.mark.parametrize(("kind", "limit", "is_filling"), [("jvm", 256e6, True), ("jvm", 30e6, False), ("jvm", None, False), ("go", 256e6, False)])
def test_growth_within_the_limit_of_a_heap_is_no_leak(kind: str, limit: float | None, is_filling: bool) -> None:
    """A young generation fills under -Xmx; Go's limit is no size that its heap fills up to."""
    run = a_run(2_000, batch=2, interval_s=0.05, hold_s=60.0)
    runtime = Runtime(kind, "17", collected=True)
    run.environment["server"] = {**run.environment["server"], "runtime": runtime.document()}
    for sample in run.samples:
        # 25 kB for each connection, and 1.5 MB a second of the hold.
        filled = 1.5e6 * max(0.0, sample.t_s - run.phases[2].start_s)
        sample.values["server.anon_shmem_bytes"] = 10e6 + 25e3 * (run.held.at(sample.t_s) or 0.0) + filled
        if limit is not None:
            sample.values[metrics.RUNTIME_LIMIT_BYTES] = limit
    summary = summarise(run)
    assert summary.drift["server_user"].verdict == "grows"
    assert (filling(summary) is not None, growth(summary) is not None) == (is_filling, not is_filling)
    if is_filling:
        assert filling(summary).fields["heap_limit_bytes"] == limit


@pytest.mark.parametrize(("middle", "adds_up"), [(-12_801.0, False), (500.0, True)])
def test_parts_do_not_add_up_to_a_total_with_a_part_below_zero(middle: float, adds_up: bool) -> None:
    """Noise makes it; what it would take off the total is no part of an answer."""
    summary = summarise(a_run(2_000, batch=2, interval_s=0.05))
    kernel = summary.cost.kernel
    assert kernel is not None
    summary.cost.kernel = msgspec.structs.replace(kernel, bytes_per_connection=middle, ci95=(-37_520.0, 11_784.0))
    sentence = answer(summary)
    assert "11,784 B" in sentence
    assert ("the total)" in sentence) == adds_up
    assert "-12,801" not in sentence

@pytest.mark.parametrize(("kind", "is_told"), [("go", False), ("node", False), ("jvm", True), ("", True)])
def test_a_program_has_no_settings_to_know(kind: str, is_told: bool) -> None:
    """How many connections a program in Go or Node lets in is in its code; Tomcat has a setting."""
    run = a_run(2_000, batch=2, interval_s=0.05)
    if kind:
        runtime = Runtime(kind, "1", collected=True)
        run.environment["server"] = {**run.environment["server"], "runtime": runtime.document()}
    summary = summarise(run)
    descriptors = Ceiling("descriptors", 20_000.0, None, "20,000 descriptors")
    summary.forecast = msgspec.structs.replace(summary.forecast, ceilings=[descriptors], first="descriptors")
    sentence = headroom(summary)
    assert "20,000" in sentence
    assert ("settings" in sentence) == is_told
