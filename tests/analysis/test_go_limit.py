"""Connections that a memory limit of Go has room for, by pages of a server whose truth is known."""

from __future__ import annotations

import pytest
from collected_runs import FIXED, LIVE, STACKS, UNSEEN, of_go, soak
from synthetic_run import a_run

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.cost import costs
from asyncli.analysis.forecast import Forecast, forecast
from asyncli.analysis.sizing import size
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.report.answer import doubts, headroom
from asyncli.report.cost_answer import answer
from asyncli.report.format import about
from asyncli.report.summary import summarise


def room(limit: float) -> float:
    """How many connections fill what the limit leaves: heap, stacks and structures, less what Go keeps free."""
    left = limit - FIXED - 500e3 - 3e6 - UNSEEN
    return min((left - 1024**2) / (LIVE + STACKS + 500), left / (1.03 * LIVE + STACKS + 500))


def limit_of(run: Run) -> Ceiling:
    found, _ = forecast(run, costs(run))
    [limit] = [ceiling for ceiling in found.ceilings if ceiling.name.startswith(("go_limit", "server_heap"))]
    return limit


@pytest.mark.parametrize(("limit", "gogc"), [(30e6, 100), (60e6, 100), (400e6, 100)], ids=["reached", "near", "far"])
def test_a_memory_limit_is_of_all_that_the_runtime_has(limit: float, gogc: int) -> None:
    """By what is alive alone, twice as many would fit."""
    ceiling = limit_of(of_go(soak(), limit=limit, gogc=gogc))
    low, high = ceiling.ci95
    assert low <= room(limit) <= high
    assert high - low < 0.35 * room(limit)
    assert "soft" in ceiling.how


def test_the_size_of_a_fleet_has_the_same_limit() -> None:
    run = of_go(soak(), limit=30e6)
    known = costs(run)
    found, _ = forecast(run, known)
    sized = size(known, found, connections=2_000, measured=2_000, host_bytes=None)
    limits = {limit.name: limit for limit in sized.limits}
    assert not limits["go_limit"].suffices
    assert limits["go_limit"].connections == limit_of(run).connections
    assert "GOMEMLIMIT" in headroom(summarise(run))


def test_a_memory_limit_leaves_no_garbage_beyond_it() -> None:
    """GOGC lets the heap of few connections fill to twice what it had, and that of many to the limit, or to what is alive."""
    known = costs(of_go(soak(), limit=30e6))
    assert known.heap.at_goal is None
    _, high = known.server_user.ci95
    for connections, most in ((100, 2 * high * 100), (2_000, max(3e6, high * 2_000))):
        sized = size(known, Forecast(), connections=connections, measured=2_000, host_bytes=None, gogc=100, memory_limit=3e6)
        assert sized.parts[0].ci95[1] - known.server_user.fixed_bytes == pytest.approx(most)


@pytest.mark.parametrize(("limit", "gogc"), [(30e6, 100), (30e6, -1), (60e6, 100), (60e6, -1), (400e6, 100)])
def test_a_run_at_its_memory_limit_says_what_that_costs(limit: float, gogc: int) -> None:
    run = of_go(soak(), limit=limit, gogc=gogc)
    said = [finding for finding in costs(run).findings if finding.code == "memory_limit_reached"]
    assert len(said) == (limit == 30e6)
    for finding in said:
        fields = finding.fields
        assert fields["connections"] == pytest.approx(room(limit), rel=0.08)
        assert fields["collections"] > 20 * fields["earlier_collections"]
        assert [str(fields["collections"]) in doubt.replace(",", "") for doubt in doubts(summarise(run))].count(True) == 1
        assert fields["cpu_s"] == pytest.approx(0.007 * fields["collections"])


def test_a_goal_that_a_limit_sets_is_on_no_line() -> None:
    """Below the limit the goal rises by GOGC, and beyond it the heap takes no more than is alive."""
    run = of_go(soak(), limit=40e6)
    heap = costs(run).heap
    assert heap.live is not None
    assert heap.at_goal is None
    [unknown] = [finding for finding in heap.findings if finding.code == "goal_unknown"]
    assert unknown.fields["at_limit"] >= 1
    assert unknown.fields["limit_bytes"] == 40e6
    assert "filled" not in answer(summarise(run))


def test_without_stacks_a_limit_is_between_two_bounds() -> None:
    """As where only collections are asked for, and no page is read."""
    run = a_run(450, batch=1, interval_s=0.02, plateaus=5)
    asked = [run.first_connect_s - 1.5, *[run.first_connect_s + end - 1.0 for _, end in run.plan.schedule.rests()]]
    for place in asked:
        sample = min(run.samples, key=lambda sample: abs(sample.t_s - place))
        sample.values |= {metrics.RUNTIME_FORCED_BYTES: FIXED + LIVE * (run.held.at(sample.t_s) or 0.0), metrics.RUNTIME_FORCED_S: 0.01}
    for sample in run.samples:
        sample.values[metrics.SERVER_PROCESSES] = 1.0
        sample.values[metrics.SERVER_PSS_BYTES] = 7e6 + (2 * LIVE + STACKS) * (run.held.at(sample.t_s) or 0.0)
    runtime = {"kind": "go", "version": "1.26", "collected": True, "gogc": 100, "heap_limit_bytes": 30_000_000}
    run.environment["server"] = {**run.environment["server"], "runtime": runtime}
    ceiling = limit_of(run)
    low, high = ceiling.ci95
    assert ceiling.connections is None
    assert low == ceiling.at_least < room(30e6) < high
    assert high == pytest.approx((30e6 - FIXED) / LIVE, rel=0.1)
    assert "stacks" in ceiling.how
    assert about(ceiling).startswith("at least")


@pytest.mark.parametrize("connections", [1_240, 500])
def test_where_what_is_alive_is_unknown_the_run_itself_shows_the_limit(connections: int) -> None:
    """With GOGC=off the heap is collected first when it is full."""
    run = of_go(a_run(connections, batch=2, interval_s=0.05), limit=30e6, gogc=-1)
    ceiling = limit_of(run)
    assert costs(run).heap.live is None
    if connections == 500:
        assert (ceiling.connections, ceiling.at_least) == (None, 500)
        return
    low, high = ceiling.ci95
    assert 0.95 * low <= room(30e6) <= 1.05 * high
