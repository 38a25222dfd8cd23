"""The fit finds the cost that was put in, and its interval holds it as often as it says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import FIXED, GENERATOR, KERNEL_END, REST, SERVER, a_run

from asyncli.analysis.cost import Costs, costs, effective_points, fit
from asyncli.store.reader import Run

HOST = SERVER + 2 * KERNEL_END + GENERATOR + REST
TRUTH = {
    "server_user": SERVER, "kernel": KERNEL_END, "generator_user": GENERATOR, "host_total": HOST, "residual": REST,
}  # fmt: skip


def costs_of(run: Run) -> Costs:
    return costs(run.plan, run.phases, run.ticks, run.samples, run.environment)


def covered(runs: list[Run], name: str, truth: float) -> int:
    found = 0
    for run in runs:
        cost = getattr(costs_of(run), name)
        found += cost.ci95[0] <= truth <= cost.ci95[1]
    return found


@pytest.mark.parametrize(("phi", "connections"), [(0.0, 60_000), (0.5, 60_000), (0.9, 100_000)])
def test_intervals_hold_the_truth_as_often_as_they_say(phi: float, connections: int) -> None:
    """Noise independent from second to second, and noise that wanders: at least 90 of 100 intervals of 95 %."""
    runs = [a_run(connections, hold_s=8.0, seed=seed, phi=phi) for seed in range(100)]
    for name in ("server_user", "kernel", "host_total"):
        assert covered(runs, name, TRUTH[name]) >= 90, name


def test_intervals_of_plateaus_hold_the_truth() -> None:
    runs = [a_run(40_000, hold_s=8.0, seed=seed, phi=0.5, plateaus=8, plateau_s=10.0) for seed in range(100)]
    assert covered(runs, "host_total", HOST) >= 90
    assert covered(runs, "residual", REST) >= 90


def test_every_cost_is_found() -> None:
    result = costs_of(a_run(100_000, hold_s=10.0))
    for name, truth in TRUTH.items():
        cost = getattr(result, name)
        assert cost.bytes_per_connection == pytest.approx(truth, rel=0.01, abs=40)
        assert cost.ci95[0] < cost.bytes_per_connection < cost.ci95[1]
        assert (cost.points, "ramp, medians of 20 bins and the baseline" in cost.method) == (21, True)
    assert result.findings == []
    assert result.server_user is not None
    assert result.server_user.fixed_bytes == pytest.approx(FIXED["server"], rel=0.01)


def test_the_table_adds_up() -> None:
    c = costs_of(a_run(30_000, hold_s=10.0))
    assert c.residual is not None
    assert c.host_total is not None
    assert c.server_user is not None
    assert c.kernel is not None
    assert c.generator_user is not None
    for field in ("bytes_per_connection", "fixed_bytes"):
        parts = [getattr(c.server_user, field), getattr(c.generator_user, field), 2 * getattr(c.kernel, field)]
        assert getattr(c.host_total, field) == pytest.approx(sum(parts) + getattr(c.residual, field))


def test_a_server_elsewhere_pays_its_own_end() -> None:
    c = costs_of(a_run(50_000, hold_s=10.0, local=False, server=False))
    assert c.kernel is not None
    assert c.kernel.bytes_per_connection == pytest.approx(KERNEL_END, rel=0.01)
    assert c.host_total is not None
    assert c.host_total.bytes_per_connection == pytest.approx(KERNEL_END + GENERATOR + REST, rel=0.03)
    assert c.residual is not None
    assert c.residual.bytes_per_connection == pytest.approx(REST, abs=150)
    assert c.server_user is None
    assert ["server_user" in finding.evidence for finding in c.findings] == [True]


def test_plateaus_are_used_where_there_are_enough() -> None:
    c = costs_of(a_run(20_000, hold_s=5.0, plateaus=5, plateau_s=10.0))
    assert c.kernel is not None
    assert (c.kernel.points, c.kernel.method.startswith("plateau medians (5)")) == (6, True)
    assert c.kernel.bytes_per_connection == pytest.approx(KERNEL_END, rel=0.01)
    c = costs_of(a_run(20_000, hold_s=5.0, plateaus=2, plateau_s=10.0))
    assert c.kernel is not None
    assert c.kernel.method.startswith("ramp, medians")


def test_rss_stands_in_for_pss_and_says_so() -> None:
    run = a_run(30_000, hold_s=10.0)
    for sample in run.samples:
        sample.values.pop("server.pss_bytes")
    cost = costs_of(run).server_user
    assert cost is not None
    assert "RSS" in cost.method
    assert cost.bytes_per_connection == pytest.approx(1.8 * SERVER, rel=0.05)


def test_other_clients_are_counted_by_the_server() -> None:
    """Half as many again, that come and go with ours, would make each of ours look half as dear again."""
    run = a_run(30_000, hold_s=10.0, noise=0.1)
    for sample in run.samples:
        strangers = 0.5 * (sample.values.get("status.active", 1.0) - 1.0)
        sample.values["server.pss_bytes"] += SERVER * strangers
        if "status.active" in sample.values:
            sample.values["status.active"] += strangers
    cost = costs_of(run).server_user
    assert cost is not None
    assert "the server's active count" in cost.method
    assert cost.bytes_per_connection == pytest.approx(SERVER, rel=0.01)
    alone = costs_of(a_run(30_000, hold_s=10.0)).server_user
    assert alone is not None
    assert "active" not in alone.method


def test_a_metric_that_is_sampled_rarely() -> None:
    """PSS of many processes is dear, so it comes every few seconds: the residual is laid on its instants."""
    run = a_run(60_000, hold_s=10.0, noise=0.2)
    for place, sample in enumerate(run.samples):
        if place % 4:
            sample.values.pop("server.pss_bytes")
    c = costs_of(run)
    assert c.residual is not None
    assert c.residual.bytes_per_connection == pytest.approx(REST, abs=60)


def test_a_short_ramp_gives_none_and_says_what_to_do() -> None:
    c = costs_of(a_run(1000, hold_s=10.0))
    assert (c.server_user, c.kernel, c.generator_user, c.host_total, c.residual) == (None,) * 5
    assert [finding.code for finding in c.findings] == ["cost_few_points", "cost_residual_unknown"]
    assert "--interval 200ms" in c.findings[0].remedy


def test_nothing_sampled_nothing_known() -> None:
    run = a_run(30_000, slab=False)
    for sample in run.samples:
        sample.values = {name: value for name, value in sample.values.items() if name.startswith("kernel.tcp")}
    c = costs_of(run)
    assert [finding.code for finding in c.findings] == ["cost_not_sampled", "cost_residual_unknown"]
    run.samples, run.ticks, run.phases = [], [], []
    assert costs_of(run).host_total is None


def test_without_slab_the_residual_is_unknown_but_the_total_is_not() -> None:
    c = costs_of(a_run(30_000, slab=False))
    assert c.kernel is None
    assert c.residual is None
    assert c.host_total is not None
    assert any("it needs kernel" in finding.evidence for finding in c.findings)


def test_a_line_is_found_exactly() -> None:
    found = fit([0, 1, 2, 3, 4], [5, 7, 9, 11, 13])
    assert found == (pytest.approx(2.0), pytest.approx(5.0), pytest.approx(0.0, abs=1e-9))
    assert fit([0, 1], [1, 2]) is None
    assert fit([3, 3, 3], [1, 2, 3]) is None
    flat = fit([0, 1, 2, 3], [4, 4, 4, 4])
    assert flat is not None
    assert flat[0] == 0.0


def test_a_known_interval() -> None:
    """By hand: slope 1.99, s = sqrt(0.107/3), t(0.975, 3) = 3.182."""
    found = fit([1, 2, 3, 4, 5], [2.1, 3.9, 6.2, 7.8, 10.1])
    assert found is not None
    assert found[0] == pytest.approx(1.99)
    assert found[2] == pytest.approx(3.1824 * math.sqrt(0.107 / 3 / 10), rel=1e-3)


def test_points_that_follow_each_other_count_for_less() -> None:
    alternating = [1.0, -1.0] * 10
    blocks = [1.0] * 10 + [-1.0] * 10
    assert effective_points(alternating) == 20
    assert effective_points(blocks) == 3
    assert effective_points([0.0] * 5) == 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.floats(-1e13, 1e13)).map(lambda pair: (round(pair[0]), pair[1])),
        min_size=0,
        max_size=25,
    )
)
def test_never_a_nan(points: list[tuple[int, float]]) -> None:
    found = fit([n for n, _ in points], [y for _, y in points])
    assert found is None or all(map(math.isfinite, found))
