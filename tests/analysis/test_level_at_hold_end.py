"""The line of a cost predicts the memory at the hold's end, or the interval of the cost reaches to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic_run import GENERATOR, KERNEL_END, REST, SERVER, a_run, raised, without

from asyncli.analysis.cost import costs
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.estimates import Estimate
from asyncli.analysis.measured import measure
from asyncli.analysis.regression import Point, regress
from asyncli.analysis.slope import Cost
from asyncli.model.plan import Plan
from asyncli.model.run import Run
from asyncli.model.units import format_bytes
from asyncli.report.analyses import analyse
from asyncli.report.figures.drawing import each_with_error
from asyncli.report.format import CostRow, with_error
from asyncli.report.run_costs import cost_table
from asyncli.report.summary import summarise

AFTER_RAMP = "memory_after_ramp"
LATE = 60_000.0
MEMORY = ("server.pss_bytes", "host.used_bytes")


def of_a_thousand(**options: Any) -> Run:
    """A thousand connections at 50 a second, held for a minute."""
    return a_run(1000, **{"hold_s": 60.0, "batch": 10, "interval_s": 0.2, **options})


def into_hold(run: Run, seconds: float) -> float:
    return run.phases[2].start_s + seconds


def with_few_left(run: Run, left: int, after_s: float) -> Run:
    """All but so many connections end at an instant of the hold."""
    for t_s, tick in run.ticks:
        if into_hold(run, after_s) < t_s:
            tick.held = min(tick.held, left)
            tick.held_at_drain = min(tick.held_at_drain, left)
    return run


def noted(found: Costs) -> dict[str, float]:
    """Bytes off the line, by cost, in the finding."""
    return next((one.fields["moved"] for one in found.findings if one.code == AFTER_RAMP), {})


def test_healthy_runs_are_not_widened() -> None:
    """The prediction has an interval of 95 % too: one of twenty runs reaches a little farther."""
    found = [costs(of_a_thousand(seed=seed, phi=0.9, hold_s=30.0 * (1 + seed % 4))) for seed in range(40)]
    for name in ("server_user", "kernel", "host_total"):
        assert sum(one.fits[name].off_at_end != 0 for one in found) <= 5, name
    # In a long ramp, with no noise but that of pages, half a byte stays half a byte.
    narrow = costs(a_run(100_000, hold_s=120.0, noise=0.01)).server_user
    assert narrow.half_width < 0.5


@pytest.mark.parametrize("sockets", [0, 5_000])
def test_where_other_programs_are_the_cause_no_slower_ramp_is_advised(sockets: int) -> None:
    """Their sockets move the memory of kernel and host; the finding on them says so."""
    run = of_a_thousand(noise=0.1)
    raised(run, sockets, "kernel.tcp_alloc", since_s=run.phases[1].start_s + 5.0)
    raised(run, 0, *MEMORY, "kernel.socket_bytes", each=LATE, since_s=into_hold(run, 20.0))
    found = costs(run)
    expected = {"server_user"} if sockets else {"server_user", "kernel", "host_total"}
    assert set(noted(found)) == expected


@pytest.mark.parametrize(("options", "flag"), [({}, "--plateaus 5"), ({"plateaus": 5, "plateau_s": 4.0}, "--plateau-rest 8s")])
def test_who_had_plateaus_is_told_to_rest_longer(options: dict[str, Any], flag: str) -> None:
    run = of_a_thousand(**options)
    raised(run, 0, *MEMORY, each=LATE, since_s=into_hold(run, 20.0))
    [after_ramp] = [finding for finding in costs(run).findings if finding.code == AFTER_RAMP]
    assert flag in after_ramp.remedy


@pytest.mark.parametrize("options", [{}, {"plateaus": 5, "plateau_s": 4.0}, {"interval_s": 0.005}])
def test_memory_that_comes_after_the_ramp_is_in_the_interval(options: dict[str, Any]) -> None:
    """Of a line, of plateaus, of two levels."""
    run = of_a_thousand(**options)
    raised(run, 0, *MEMORY, each=LATE, since_s=into_hold(run, 20.0))
    found = costs(run)
    for cost, ramp_alone in ((found.server_user, SERVER), (found.host_total, SERVER + 2 * KERNEL_END + GENERATOR + REST)):
        low, high = cost.ci95
        assert high > 0.99 * (LATE + ramp_alone)
        assert low < ramp_alone
        # The level is read: value and fixed part lead to it.
        level = cost.fixed_bytes + 1000 * cost.bytes_per_connection
        assert level == pytest.approx(run.series(MEMORY[cost is found.host_total]).last(until_s=run.stop_s), rel=0.01)
    assert set(noted(found)) == {"server_user", "host_total"}
    assert noted(found)["server_user"] == pytest.approx(1000 * LATE, rel=0.05)
    # The others stay as they are.
    assert found.kernel.half_width < KERNEL_END / 4


def test_one_level_wherever_it_stands() -> None:
    run = of_a_thousand(noise=0.01)
    raised(run, 0, *MEMORY, each=LATE, since_s=into_hold(run, 20.0))
    summary, found = summarise(run), analyse(run).costs
    cost = found.server_user
    level = summary.server.pss_bytes.hold_end
    assert cost.fixed_bytes + 1000 * cost.bytes_per_connection == pytest.approx(level, rel=1e-3)
    # A cost of which only the upper end is known shows no level in its row, rather than another one.
    table = cost_table(found, "nginx", run.sides, 1000)
    row = next(one for one in table.rows if one.label.startswith("nginx"))
    assert row.cells[3] in ("-", format_bytes(level))


def test_a_level_that_falls_is_in_the_interval() -> None:
    run = of_a_thousand()
    raised(run, 0, *MEMORY, each=-SERVER / 2, since_s=into_hold(run, 20.0))
    low, high = costs(run).server_user.ci95
    assert low < SERVER / 2 < SERVER < high


def test_a_leak_becomes_no_cost() -> None:
    """What the line says stays in the interval, and growth is told as growth."""
    run = of_a_thousand(hold_s=1200.0)
    raised(run, 0, *MEMORY, per_s=50_000.0)
    known = analyse(run)
    low, high = known.costs.server_user.ci95
    assert low < SERVER < SERVER + 0.9 * 50_000 * 1200 / 1000 < high
    assert known.drifts["server_user"].verdict == "grows"


def test_the_level_is_of_those_that_are_held() -> None:
    """Half of the connections end, then the others take memory: theirs, not that of a thousand."""
    run = with_few_left(of_a_thousand(), 500, 10.0)
    raised(run, 500 * LATE, *MEMORY, since_s=into_hold(run, 20.0))
    assert costs(run).server_user.ci95[1] > LATE
    # What is kept of those that ended is no cost of the others.
    kept = with_few_left(of_a_thousand(), 500, 10.0)
    assert costs(kept).server_user.half_width < SERVER / 2


def test_few_that_are_left_have_no_level() -> None:
    found = costs(with_few_left(of_a_thousand(), 3, 20.0))
    assert found.server_user.ci95[1] < 2 * SERVER
    assert noted(found) == {}


def test_two_levels_with_few_that_are_left_are_unknown() -> None:
    """The server keeps memory of those that ended: divided by three, it would be 340 times the cost."""
    found = costs(with_few_left(of_a_thousand(interval_s=0.005, hold_s=15.0, status=False), 3, 3.0))
    assert (found.server_user, found.generator_user, "server_user" in found.unknown) == (None, None, True)


def test_a_limit_on_such_a_cost_is_undecided() -> None:
    limited = of_a_thousand(fail_if=("cost.server_user > 5000",))
    assert isinstance(limited.plan, Plan)
    assert [one.kept for one in summarise(limited).limits] == [True]
    raised(limited, 0, *MEMORY, each=LATE, since_s=into_hold(limited, 20.0))
    assert [one.kept for one in summarise(limited).limits] == [None]


@pytest.mark.parametrize(("kind", "least"), [("white", 0.93), ("wander", 0.88), ("walk", 0.75)])
def test_the_prediction_has_coverage(kind: str, least: float) -> None:
    """Half a minute after the last point, under noise that the points alone show."""
    chance = np.random.default_rng(2)
    inside = 0
    for _ in range(80):
        noise = chance.normal(size=60)
        if kind == "walk":
            noise = np.cumsum(noise)
        if kind == "wander":
            for place in range(1, 60):
                noise[place] = 0.9 * noise[place - 1] + (1 - 0.81) ** 0.5 * noise[place]
        rows = [Point(float(t), 50.0 * max(0, t - 5), float(noise[t]) + 100.0 * max(0, t - 5)) for t in range(30)]
        ahead = Point(59.0, rows[-1].n, float(noise[59]) + 2 * rows[-1].n)
        middle, half = regress(rows, ahead).predicted
        inside += abs(ahead.value - middle) <= half
    assert inside >= least * 80
    # A point ahead changes nothing of the line.
    assert regress(rows, ahead).slope == regress(rows).slope
    assert regress(rows, ahead).half == pytest.approx(regress(rows).half, rel=1e-6)


def test_asyncli_on_one_connection_has_no_cost() -> None:
    for connections, known in ((1, False), (4, False), (5, True)):
        summary = summarise(a_run(connections, hold_s=15.0))
        assert (summary.generator.user_bytes_per_connection is not None) is known
        assert known or "user_bytes_per_connection" in summary.finding("generator_numbers_unknown").fields["unknown"]
        assert known or summary.cost.generator_user is None


def test_no_interval_is_zero() -> None:
    """Of memory that is read the same each time, too: in costs, fixed parts and comparisons."""
    run = of_a_thousand(noise=0.0)
    found = costs(run)
    for cost in (found.server_user, found.kernel, found.generator_user, found.host_total, found.residual):
        assert cost.half_width >= 4096 / 1000 / 2 - 1e-9
    low, high = found.fits["server_user"].band(0.0)
    assert high - low >= 4096
    numbers = measure("A", "", run).numbers
    for key, number in numbers.items():
        assert not isinstance(number, Estimate) or number.low < number.value < number.high, key
    assert with_error(Cost(0.001, (0.0005, 0.0015), 0.0, "", 9)) == "0 B ± 0.1"
    assert with_error(Cost(528.0, (527.99, 528.01), 0.0, "", 9)) == "528 B ± 0.1"


@pytest.mark.parametrize(
    ("ends", "said", "of_each"),
    [
        ((10_113.0, 33_155.0), "between 10,113 and 33,155 B", "10,113 to 33,155 B"),
        ((21_000.0, 33_300.0), "between 21,000 and 33,300 B", "21,000 to 33,300 B"),
        ((25_000.0, 27_000.0), "26,000 B ± 1,000", "26,000 B ± 1,000"),
        ((25_000.0, 27_100.0), "26,000 B ± 1,100", "26,000 B ± 1,100"),
        ((24_900.0, 27_000.0), "26,000 B ± 1,100", "26,000 B ± 1,100"),
    ],
    ids=["lopsided", "uneven", "even", "higher", "lower"],
)
def test_a_half_width_stands_for_no_lopsided_interval(ends: tuple[float, float], said: str, of_each: str) -> None:
    """What ± says, from 14,000 to 38,000 B, is not what is known; and it cuts off no end of what is known."""
    cost = Cost(26_000.0, ends, 0.0, "", 9)
    assert (with_error(cost), each_with_error(cost)) == (said, of_each)


def test_an_unexplained_rest_is_not_sold_as_cost() -> None:
    """Another program fills pipes in the ramp: kernel memory that is in no part."""
    usual = analyse(of_a_thousand(noise=0.1)).costs
    assert usual.residual.half_width < 1000
    assert [one.code for one in usual.findings] == []
    run = raised(of_a_thousand(noise=0.1), 0, "host.used_bytes", each=8000.0)
    found = analyse(run).costs
    low, high = found.host_total.ci95
    alone = SERVER + 2 * KERNEL_END + GENERATOR + REST
    assert low < alone < alone + 7500 < high
    assert found.residual.ci95[0] <= 0 < REST + 7500 < found.residual.ci95[1]
    assert [one.code for one in found.findings] == ["residual_large"]
    # The parts are as they were.
    assert found.server_user.bytes_per_connection == pytest.approx(usual.server_user.bytes_per_connection, rel=0.02)
    # As an ordinary user, whose kernel cost is unknown: beyond what that can be.
    mine = analyse(without(raised(run, 0, "host.used_bytes", each=20_000.0), "kernel.socket_bytes")).costs
    assert mine.host_total is None or mine.host_total.ci95[0] < 2 * 8192 + SERVER + GENERATOR + 100


def test_the_rest_of_a_server_with_a_thread_each_is_its_own() -> None:
    run = raised(of_a_thousand(noise=0.1), 0, "host.used_bytes", each=8000.0)
    for sample in run.samples:
        sample.values["server.threads"] = 2.0 + sample.values.get("status.active", 0.0)
    assert "residual_large" not in {one.code for one in analyse(run).costs.findings}


def test_no_memory_is_below_zero() -> None:
    """A cost halfway in a wide interval leads below zero at no connections."""
    cost = Cost(60_000.0, (30_001.0, 89_999.0), -7e6, "", 9)
    total, rest = (CostRow(name, name, cost, 1, hidden=False) for name in ("host_total", "residual"))
    assert (total.at(0), total.at(1000)) == ("-", format_bytes(53e6))
    # A difference of memories may be.
    assert rest.at(0) == format_bytes(-7e6)
