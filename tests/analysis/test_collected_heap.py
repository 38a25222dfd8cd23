"""The cost of a server whose heap is collected: growth in the hold does not lower it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from collected_runs import of_go, soak
from synthetic_run import a_run, without

from asyncli.analysis.cost import costs
from asyncli.analysis.slope import Cost
from asyncli.app.results import Results
from asyncli.findings.cost import heap_collected
from asyncli.model.records import Sample
from asyncli.model.run import Run
from asyncli.model.runtimes import Runtime
from asyncli.report.analyses import analyse
from asyncli.report.csvout import tables
from asyncli.report.size_report import doubts
from asyncli.report.summary import summarise
from asyncli.report.summary_parts import CostPart

GO = Runtime("go", "1.26.8", collected=True, gogc=100)
PYTHON = Runtime("python", "3.11")
MEMORY = ("server.pss_bytes", "host.used_bytes")


def on(runtime: Runtime, run: Run) -> Run:
    """The run with a server that runs on ``runtime``."""
    changed = copy.copy(run)
    server = {**run.environment["server"], "runtime": runtime.document()}
    changed.environment = {**run.environment, "server": server}
    return changed


def that_grows(per_s: float, **options: Any) -> Run:
    """A run of 20,000 connections whose server grows by the clock from the first connect on."""
    run = a_run(20_000, **{"hold_s": 60.0, "keepalive_s": 4.0, "batch": 10, "interval_s": 0.02, **options})
    for sample in run.samples:
        grown = per_s * max(0.0, sample.t_s - run.first_connect_s)
        for name in MEMORY:
            sample.values[name] = sample.values.get(name, 0.0) + grown
    return run


def of_server(run: Run) -> Cost:
    cost = analyse(run).costs.server_user
    assert cost is not None
    return cost


@pytest.mark.parametrize("per_s", [2e6, 2e7])
def test_growth_in_the_hold_lowers_only_the_cost_without_a_collector(per_s: float) -> None:
    run = that_grows(per_s)
    as_fitted = costs(run)
    for name in ("server_user", "host_total"):
        fitted = as_fitted.cost_of(name)
        native = analyse(on(PYTHON, run)).costs.cost_of(name)
        collected = analyse(on(GO, run)).costs.cost_of(name)
        assert native.bytes_per_connection < fitted.bytes_per_connection
        assert collected.bytes_per_connection >= fitted.bytes_per_connection
        assert native.ci95[0] < fitted.ci95[0] == collected.ci95[0]
        # What it has at the hold's end, by each connection.
        assert collected.ci95[1] >= as_fitted.fits[name].by_level_at_end
        assert collected.ci95[1] >= fitted.ci95[1] >= native.ci95[1]


def test_growth_of_the_kernel_lowers_its_cost_on_any_runtime() -> None:
    run = that_grows(2e6)
    before = run.first_connect_s
    for sample in run.samples:
        if "kernel.socket_bytes" in sample.values:
            sample.values["kernel.socket_bytes"] += 2e7 * max(0.0, sample.t_s - before)
    known = [analyse(on(runtime, run)).costs.kernel for runtime in (GO, PYTHON)]
    assert known[0] == known[1]
    assert known[0].bytes_per_connection < costs(run).kernel.bytes_per_connection


def test_what_a_short_hold_leaves_open_does_not_lower_it() -> None:
    run = that_grows(1e6, hold_s=14.0, noise=20.0)
    fitted = costs(run).server_user
    native = of_server(on(PYTHON, run))
    collected = of_server(on(GO, run))
    assert native.bytes_per_connection < fitted.bytes_per_connection
    assert collected.bytes_per_connection == fitted.bytes_per_connection
    assert collected.ci95 == native.ci95


def test_a_heap_that_fills_with_garbage_is_no_rising_cost_of_connections() -> None:
    run = a_run(20_000, hold_s=60.0)
    for sample in run.samples:
        held = run.held.at(sample.t_s) or 0.0
        for name in MEMORY:
            sample.values[name] = sample.values.get(name, 0.0) + 2.0 * held * held / 20_000 * 4096
    native = analyse(on(PYTHON, run))
    collected = analyse(on(GO, run))
    assert "cost_bent" in {finding.code for finding in native.costs.findings}
    assert "cost_bent" not in {finding.code for finding in collected.costs.findings}
    assert native.costs.rising("server_user")
    assert not collected.costs.rising("server_user")
    # What the last ones took is in the interval all the same.
    assert collected.costs.cost_of("server_user").ci95[1] >= native.costs.cost_of("server_user").ci95[1]


def test_a_collection_at_the_ramps_end_is_no_cost_below_zero() -> None:
    """A fall of the memory is no slope of connections, and nothing of it came with the first ones."""
    run = a_run(20_000, hold_s=60.0, batch=10, interval_s=0.02)
    begin_s, end_s = run.first_connect_s, run.phase("hold").start_s
    for sample in run.samples:
        freed = 15e6 * (end_s - 1.5 < sample.t_s < end_s + 5.0)
        garbage = 3e6 * min(max(0.0, sample.t_s - begin_s), end_s - begin_s)
        sample.values["server.pss_bytes"] += garbage - freed
    known = analyse(on(GO, run)).costs
    assert known.server_user.ci95[0] >= 0.0
    assert known.server_user.fixed_bytes < max(run.series("server.pss_bytes").values)
    assert "cost_in_earlier_memory" not in [finding.code for finding in known.findings]


def test_a_steady_server_has_the_same_interval_on_any_runtime() -> None:
    run = a_run(20_000)
    assert of_server(on(GO, run)).ci95 == of_server(on(PYTHON, run)).ci95 == of_server(run).ci95


def test_a_collected_heap_is_told_unless_its_own_metrics_were_read() -> None:
    run = a_run(1000, batch=10, interval_s=0.2)
    measured = copy.copy(run)
    measured.samples = [Sample(sample.t_s, {**sample.values, "runtime.live_bytes": 1.0}) for sample in run.samples]
    assert told(on(GO, run)) == [1]
    assert told(on(PYTHON, run)) == told(run) == told(on(GO, measured)) == []
    assert told(on(GO, without(run, "server."))) == []


def told(run: Run) -> list[int]:
    """How often the finding is told: once, or not at all."""
    codes = [finding.code for finding in summarise(run).findings]
    count = codes.count(heap_collected.code)
    return [count] if count else []


def test_the_runtime_is_in_the_summary() -> None:
    runtime = summarise(on(GO, a_run(1000))).server.runtime
    assert (runtime.kind, runtime.version, runtime.gogc, runtime.heap_limit_bytes) == ("go", "1.26.8", 100, None)


@pytest.mark.parametrize(("runtime", "says"), [
    (GO, ("GOGC=100", "2 times")),
    (Runtime("go", "1.26.8", collected=True, gogc=400), ("GOGC=400", "5 times")),
    (Runtime("go", "1.26.8", collected=True, gogc=-1, heap_limit_bytes=62_914_560), ("GOMEMLIMIT", "62.9 MB")),
])  # fmt: skip
def test_a_size_by_a_heap_of_go_names_the_rule_that_bounds_it(runtime: Runtime, says: tuple[str, ...]) -> None:
    """Its page had too few collections for a cost at the goal."""
    run = on(runtime, of_go(soak(), least_goal=60e6))
    run.plan = msgspec.structs.replace(run.plan, server_metrics=("http://127.0.0.1:8081/metrics",))
    results = Results(Path("run.db"), run)
    text = " ".join(doubts(results.sized(100_000, 64e9), results.summary))
    assert all(word in text for word in says)
    [unknown] = [finding for finding in results.summary.findings if finding.code == "live_unknown"]
    assert unknown.evidence[1:] in text


def test_no_document_has_memory_below_zero_without_connections() -> None:
    """Where noise hides a cost, the middle of its interval puts the line anywhere."""
    run = a_run(20_000, hold_s=20.0)
    analyses = analyse(run)
    hidden = msgspec.structs.replace(analyses.costs.server_user, ci95=(0.0, 71_338.0), fixed_bytes=-16.6e6)
    analyses = msgspec.structs.replace(analyses, costs=msgspec.structs.replace(analyses.costs, server_user=hidden))
    assert CostPart.of(analyses.costs).server_user.fixed_bytes == 0
    assert CostPart.of(analyses.costs).kernel == analyses.costs.kernel
    table = tables(run, summarise(run, analyses), analyses)["cost"]
    [row] = [dict(zip(table.columns, row, strict=True)) for row in table.rows if "server_user" in row]
    assert row["fixed_bytes"] == 0
