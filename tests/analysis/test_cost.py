"""The fit finds the simulated cost, and its interval has the stated coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from synthetic_run import ENDS_A_PAGE, FIXED, GENERATOR, KERNEL_END, REST, SERVER, a_run, cut, raised, without

from asyncli.analysis.cost import costs
from asyncli.analysis.cost_parts import Costs, is_measured
from asyncli.analysis.residue import Residue
from asyncli.findings.cost import SURE, plateau_unsettled
from asyncli.model.records import Deaths, Phase, Sample
from asyncli.model.run import Run
from asyncli.model.units import parse_pace
from asyncli.report.analyses import analyse
from asyncli.report.answer import stands_first
from asyncli.report.summary import summarise

HOST = SERVER + 2 * KERNEL_END + GENERATOR + REST
TRUTH = {
    "server_user": SERVER, "kernel": KERNEL_END, "generator_user": GENERATOR, "host_total": HOST, "residual": REST,
}  # fmt: skip


def covered(found: list[Costs], name: str, truth: float) -> int:
    """How many intervals contain ``truth``."""
    intervals = [getattr(one, name).ci95 for one in found]
    return sum(low <= truth <= high for low, high in intervals)


def test_coverage_of_the_intervals() -> None:
    """All three kinds of memory; test_cost_line.py counts a hundred lines. Less than 35 of 40 come by chance in one of seventy draws."""
    found = [costs(a_run(100_000, hold_s=8.0, seed=seed, phi=0.9)) for seed in range(40)]
    for name in ("server_user", "kernel", "host_total"):
        assert covered(found, name, TRUTH[name]) >= 35, name


def test_costs_are_found_and_add_up() -> None:
    result = costs(a_run(100_000, hold_s=10.0))
    for name, truth in TRUTH.items():
        cost = getattr(result, name)
        assert cost.bytes_per_connection == pytest.approx(truth, rel=0.01, abs=40)
        assert cost.ci95[0] < cost.bytes_per_connection < cost.ci95[1]
        assert cost.points == 36
    assert result.findings == []
    assert result.server_user.fixed_bytes == pytest.approx(FIXED["server"], rel=0.01)
    assert result.kernel_queued.bytes_per_connection == pytest.approx(4096 / ENDS_A_PAGE, rel=0.02)
    for field in ("bytes_per_connection", "fixed_bytes"):
        server, generator, kernel, rest, host = (
            getattr(getattr(result, name), field) for name in ("server_user", "generator_user", "kernel", "residual", "host_total")
        )
        assert host == pytest.approx(server + generator + 2 * kernel + rest)


def test_a_server_elsewhere_has_one_end() -> None:
    c = costs(a_run(50_000, hold_s=10.0, local=False, server=False))
    assert c.kernel.bytes_per_connection == pytest.approx(KERNEL_END, rel=0.01)
    assert c.kernel_queued.bytes_per_connection == pytest.approx(4096 / ENDS_A_PAGE, rel=0.02)
    assert c.host_total.bytes_per_connection == pytest.approx(KERNEL_END + GENERATOR + REST, rel=0.03)
    assert c.residual.bytes_per_connection == pytest.approx(REST, abs=150)
    assert c.server_user is None
    assert [finding.fields["costs"] for finding in c.findings] == [["server_user"]]


def test_other_clients_are_in_the_servers_count() -> None:
    """Other clients with half as many connections as ours would raise our cost by a half."""
    run = raised(a_run(30_000, hold_s=10.0, noise=0.1), 0, "server.pss_bytes", each=0.5 * SERVER)
    run = raised(run, 0, "status.active", each=0.5)
    for sample in run.samples:
        sample.values["server.sockets"] = max(0.0, sample.values.get("status.active", 1.0) - 1.0)
    cost = costs(run).server_user
    assert "own count" in cost.method
    assert cost.bytes_per_connection == pytest.approx(SERVER, rel=0.01)
    alone = costs(a_run(30_000, hold_s=10.0)).server_user
    assert "own count" not in alone.method


@pytest.mark.parametrize("each", [SERVER, 1.5 * SERVER])
def test_a_page_alone_may_count_other_clients_or_something_else(each: float) -> None:
    """As of a server in another network namespace: the interval holds the cost by either."""
    run = raised(a_run(30_000, hold_s=10.0, noise=0.1), 0, "server.pss_bytes", each=each - SERVER)
    cost = costs(raised(run, 0, "status.active", each=0.5)).server_user
    low, high = cost.ci95
    assert low <= each / 1.5 < each <= high


def short(connections: int, seed: int = 0, *, first_use: float = 0.0, phi: float = 0.0, **more: Any) -> Run:
    """A ramp of at most two seconds, with ``first_use`` bytes that the server takes once."""
    run = a_run(connections, seed=seed, phi=phi, batch=10, interval_s=20.0 / connections, **{"hold_s": 10.0, **more})
    return raised(run, first_use, "server.pss_bytes", "host.used_bytes", since_s=run.phases[1].start_s)


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_a_ramp_too_short_for_a_slope_gives_the_difference_of_two_levels(phi: float) -> None:
    """It includes first use; its interval has the stated coverage of that."""
    found = [costs(short(2000, seed, first_use=1e6, phi=phi, hold_s=15.0)) for seed in range(50)]
    for name in ("server_user", "kernel", "generator_user", "host_total"):
        true = TRUTH[name] + (1e6 / 2000 if name in ("server_user", "host_total") else 0)
        # As in a short ramp, slow wander has less coverage (bench/README.md).
        assert covered(found, name, true) >= (45 if phi < 0.9 else 42), name
    one = found[0]
    assert [finding.code for finding in one.findings] == ["cost_few_points"]
    assert "server_user" in one.findings[0].fields["levels"]
    assert one.server_user.of_levels
    assert one.server_user.points in (13, 14)
    assert one.server_user.r2 is None
    # Even without noise, glibc may have kept freed memory.
    assert one.server_user.half_width >= 128 * 1024 / 2000
    assert (one.residual, list(one.unknown)) == (None, ["residual"])


@pytest.mark.parametrize("connections", [40, 500])
@pytest.mark.parametrize("sockets", [-20, 30, 900])
@pytest.mark.parametrize("price", [0.5, 1.0])
def test_sockets_of_others_are_in_the_interval_of_two_levels(connections: int, sockets: int, price: float) -> None:
    """They cost at most as much as ours: 900 beside 80 ends do not make 49,000 B ± 400 each."""
    run = short(connections, noise=0.01)
    alone, since_s = costs(run), run.phases[1].start_s
    raised(run, sockets, "kernel.tcp_alloc", since_s=since_s)
    raised(run, price * sockets * KERNEL_END, "kernel.socket_bytes", "host.used_bytes", since_s=since_s)
    beside = costs(run)
    for name in ("kernel", "host_total"):
        quiet, one = getattr(alone, name), getattr(beside, name)
        assert one.of_levels
        assert one.ci95[0] <= TRUTH[name] <= one.ci95[1]
        assert one.ci95[0] <= one.bytes_per_connection <= one.ci95[1]
        assert quiet.half_width < 0.5 * quiet.bytes_per_connection
    # If they are fewer than ours, there is a number.
    assert (beside.kernel.half_width <= SURE * beside.kernel.bytes_per_connection) is (sockets < 2 * connections)
    assert beside.server_user == alone.server_user


@pytest.mark.parametrize("buckets", [0, 1, 2])
def test_sockets_in_time_wait_that_expire_in_the_ramp_are_in_the_interval(buckets: int) -> None:
    run = a_run(10_000)
    alone, ramp = costs(run), run.phases[1]
    for sample in run.samples:
        left = min(1.0, max(0.0, (ramp.end_s - sample.t_s) / (ramp.end_s - ramp.start_s)))
        sample.values["kernel.tcp_tw"] = waiting = float(round(10_000 * left))
        raise_by = {"kernel.socket_bytes": 128 * buckets * waiting, "host.used_bytes": (256 + 128 * buckets) * waiting}
        sample.values |= {name: sample.values[name] + more for name, more in raise_by.items() if name in sample.values}
    beside = costs(run)
    for name in ("kernel", "host_total"):
        quiet, one = getattr(alone, name), getattr(beside, name)
        assert one.ci95[0] <= TRUTH[name] <= one.ci95[1]
        assert quiet.half_width < one.half_width < quiet.half_width + 300
    assert beside.server_user == alone.server_user


@pytest.mark.parametrize("stay", [True, False])
def test_sockets_that_close_with_ours_are_a_proxys(stay: bool) -> None:
    """Another soak that ramps at the same pace: a narrow interval about twice the cost would contain the truth of neither."""
    run = a_run(20_000, hold_s=10.0, noise=0.1)
    alone, most = costs(run), 0.0
    for sample in run.samples:
        held = sample.values.get("status.active", 1.0) - 1.0
        most = max(most, held)
        theirs = 2 * (most if stay else held)
        sample.values |= {"server.descriptors_open": 20 + 2 * held, "server.processes": 2.0}
        sample.values["kernel.tcp_alloc"] += theirs
        for name in ("kernel.socket_bytes", "host.used_bytes"):
            sample.values[name] += KERNEL_END * theirs
    beside = costs(run)
    assert beside.ends == (2 if stay else 4)
    twice = {"kernel": (2 if stay else 1) * KERNEL_END, "host_total": HOST + 2 * KERNEL_END}
    for name, price in twice.items():
        one = getattr(beside, name)
        assert one.ci95[0] <= price <= one.ci95[1]
        assert (one.ci95[0] <= TRUTH[name]) is (stay or name == "kernel")
        assert not one.of_levels
        assert getattr(alone, name).ci95[0] <= TRUTH[name] <= getattr(alone, name).ci95[1]


def test_more_closed_sockets_of_others_than_ours_hide_the_kernel() -> None:
    run = short(500)
    beside = costs(raised(run, -1100, "kernel.tcp_alloc", since_s=run.phases[1].start_s))
    assert (beside.kernel, beside.host_total, beside.residual) == (None, None, None)
    assert {"kernel", "host_total", "residual"} <= beside.unknown.keys()
    assert "cost_sockets_closed" in [one.code for one in beside.findings]
    assert beside.server_user is not None


# 2 processes with tables of 256 descriptors at most held no more than 512 at once, whatever they accepted.
@pytest.mark.parametrize(
    ("accepted", "closed", "reported"),
    [(400.0, None, None), (1500.0, None, 1501), (1500.0, 0.0, None), (1500.0, 900.0, None), (0.0, 1020.0, 1020), (1e6, 1020.0, 1030)],
)
def test_a_used_server_may_have_kept_memory(accepted: float, closed: float | None, reported: int | None) -> None:
    run = a_run(2000, hold_s=10.0)
    for sample in run.samples[1:]:
        sample.values["status.accepts"] += accepted
    for sample in run.samples if closed is not None else ():
        sample.values |= {"server.descriptors_closed": closed, "server.descriptors_table": closed + 10 if closed else 512.0}
    found = [one.fields["connections"] for one in costs(run).findings if one.code == "cost_reused"]
    assert found == ([] if reported is None else [reported])
    # Costs that are far too low are unknown.
    known = analyse(run)
    assert {known.costs.server_user is None, known.costs.host_total is None} == {reported is not None}


@pytest.mark.parametrize(
    ("processes", "into_ramp_s", "told"),
    [
        # Of two one goes on with what it kept.
        (1.0, -3.0, []),
        (2.0, -3.0, ["cost_reused"]),
        # Before its end nothing was opened, and after it the memory is of another.
        (1.0, 0.5, ["cost_few_points"]),
        (2.0, 0.5, ["cost_reused"]),
    ],
)
def test_a_process_that_ended_in_the_run_took_what_it_kept_with_it(processes: float, into_ramp_s: float, told: list[str]) -> None:
    run = a_run(20_000, hold_s=10.0, status=False)
    ended_s = run.first_connect_s + into_ramp_s
    for sample in run.samples:
        has_ended = sample.t_s > ended_s
        closed = 0.0 if processes == has_ended else 10_020.0
        sample.values |= {"server.ended": float(has_ended), "server.processes": processes, "server.descriptors_closed": closed, "server.descriptors_table": closed + 64}
    codes = [one.code for one in costs(run).findings]
    assert [code for code in codes if code in ("cost_reused", "cost_few_points")] == told
    assert (analyse(run).costs.server_user is None) is (told != [])


def test_the_memory_of_a_process_that_ended_before_the_first_connect_is_in_no_cost() -> None:
    run = a_run(20_000, hold_s=10.0)
    ended_s = run.first_connect_s - 2.0
    for sample in run.samples:
        has_ended = sample.t_s > ended_s
        sample.values |= {"server.ended": float(has_ended), "server.processes": 1.0}
        if not has_ended:
            sample.values["status.accepts"] = 50_000.0
            sample.values["server.pss_bytes"] += 1e9
    known = costs(run)
    assert known.server_user.bytes_per_connection == pytest.approx(SERVER, rel=0.02)
    assert known.server_user.fixed_bytes == pytest.approx(FIXED["server"], rel=0.05)
    assert "cost_reused" not in [one.code for one in known.findings]


@pytest.mark.parametrize(
    ("accepted", "table", "at_most"), [(None, None, None), (None, 256.0, 256), (0.0, 256.0, []), (None, 128.0, []), (400.0, None, 401)]
)
def test_a_server_whose_past_cannot_be_seen_may_have_kept_memory(
    accepted: float | None, table: float | None, at_most: int | list[int] | None
) -> None:
    run = a_run(500, hold_s=10.0)
    for sample in run.samples:
        for name in ("server.pss_bytes", "server.rss_bytes", *["status.accepts"] * (accepted is None)):
            sample.values.pop(name, None)
        if accepted and sample.t_s > run.samples[0].t_s:
            sample.values["status.accepts"] += accepted
        if table is not None:
            sample.values["server.descriptors_table"] = table
    found = [one for one in costs(run).findings if one.code == "cost_if_fresh"]
    assert not any("--status-url" in one.remedy for one in found)
    told = [one.fields["at_most"] for one in found]
    assert told == (at_most if isinstance(at_most, list) else [at_most])


@pytest.mark.parametrize(("connections", "told"), [(300, False), (20_000, True)])
def test_memory_that_did_not_change_is_known_to_a_page(connections: int, told: bool) -> None:
    run = a_run(connections, hold_s=10.0, batch=1, interval_s=25 / connections)
    for sample in run.samples:
        sample.values["server.pss_bytes"] = 41_000_000.0
    known = costs(run)
    low, high = known.server_user.ci95
    assert (known.server_user.bytes_per_connection, high - low) == (0.0, pytest.approx(2 * 4096 / connections, rel=0.01))
    assert is_measured(known, "server_user") is told


@pytest.mark.parametrize("connections", [1000, 2000, 3000, 20_000])
def test_the_remedy_for_a_short_ramp_suffices(connections: int) -> None:
    run = short(connections)
    (remedy,) = [one.remedy for one in costs(run).findings if one.code == "cost_few_points"]
    batch, interval_s = parse_pace(remedy.removeprefix("--ramp "))
    c = costs(a_run(connections, hold_s=10.0, batch=batch, interval_s=interval_s))
    assert c.findings == []
    assert not c.host_total.of_levels


@pytest.mark.parametrize("of_heartbeats", [False, True])
def test_growth_in_the_ramp_is_in_the_interval(of_heartbeats: bool) -> None:
    """A leak of 1,000 B a second for each planned connection, or for each held."""
    run = a_run(20_000, hold_s=60.0, keepalive_s=4.0, batch=10, interval_s=0.02)
    begin, grown, before_s = run.phases[1].start_s, 0.0, 0.0
    for sample in run.samples:
        share = min(1.0, max(0.0, (sample.t_s - begin) / 40)) if of_heartbeats else sample.t_s > begin
        grown, before_s = grown + 1000.0 * 20_000 * share * (sample.t_s - before_s), sample.t_s
        sample.values |= {name: sample.values[name] + grown for name in ("server.pss_bytes", "host.used_bytes") if name in sample.values}
    raw, known = costs(run), analyse(run).costs
    for name in ("server_user", "host_total"):
        one = getattr(known, name)
        assert getattr(raw, name).ci95[0] > TRUTH[name] > one.ci95[0]
        assert known.fits[name].cost is one
    assert known.kernel.ci95[0] < KERNEL_END < known.kernel.ci95[1]


@pytest.mark.parametrize("of", [a_run, short])
def test_a_total_is_at_least_its_parts_though_others_freed_memory(of: Callable[..., Run]) -> None:
    run = of(20_000, hold_s=15.0)
    before = costs(run).host_total
    known = costs(raised(run, 0.0, "host.used_bytes", each=-REST - 2000.0))
    total, fit = known.host_total, known.fits["host_total"]
    parts = known.server_user.bytes_per_connection + 2 * known.kernel.bytes_per_connection + known.generator_user.bytes_per_connection
    assert total.ci95[1] == pytest.approx(parts)
    assert total.ci95[0] < parts - 2000 < total.bytes_per_connection == pytest.approx(sum(total.ci95) / 2)
    assert known.residual is None or known.residual.ci95[0] < known.residual.bytes_per_connection < 0 == known.residual.ci95[1]
    # The level with all connections is the measured one.
    assert fit.at(20_000) == pytest.approx(before.fixed_bytes + 20_000 * (before.bytes_per_connection - REST - 2000), rel=1e-4)


def test_levels_without_samples_and_with_movement() -> None:
    run = short(2000, hold_s=15.0)
    settling = msgspec.structs.replace(run, samples=[Sample(one.t_s, dict(one.values)) for one in run.samples])
    for one in settling.samples:
        into = one.t_s - run.phases[2].start_s
        if into > 0:
            one.values["server.pss_bytes"] += 400e3 * into
    still, moving = costs(run).server_user, costs(settling).server_user
    # By as much again as it moved in the last half.
    assert moving.ci95[1] - moving.bytes_per_connection > still.half_width + 400e3 * 3 / 2000
    c = costs(without(run, "kernel.socket_bytes"))
    assert c.kernel is None
    assert "kernel" in c.unknown
    assert c.server_user is not None
    run.phases = run.phases[:2]
    c = costs(run)
    assert (c.server_user, c.host_total) == (None, None)
    assert "server_user" in c.unknown
    untested = short(2000)
    for _, tick in untested.ticks:
        tick.held = tick.held_at_drain = 0
    c = costs(untested)
    assert (c.server_user, c.kernel, c.host_total) == (None, None, None)


def test_without_samples_all_costs_are_unknown() -> None:
    run = a_run(30_000, slab=False)
    for sample in run.samples:
        sample.values = {name: value for name, value in sample.values.items() if name.startswith("kernel.tcp")}
    c = costs(run)
    assert [finding.code for finding in c.findings] == ["cost_not_sampled", "cost_residual_unknown"]
    run.samples, run.ticks, run.phases = [], [], []
    assert costs(run).host_total is None


def test_points_behind_each_cost() -> None:
    c = costs(a_run(100_000, hold_s=10.0))
    assert set(c.fits) == {*TRUTH, "kernel_queued"}
    for name, fit in c.fits.items():
        cost = getattr(c, name)
        assert fit.cost == cost
        assert len(fit.n) == len(fit.bytes) == cost.points
        assert len(fit.seconds_n) == len(fit.seconds_bytes) > 100
        assert (fit.n[0] == 0.0) is (fit.apart is None)
        line = [cost.fixed_bytes + cost.bytes_per_connection * n for n in fit.n]
        assert [fit.at(n) for n in fit.n] == pytest.approx(line, abs=0.01)
        low, high = fit.band(50_000.0)
        assert low < cost.fixed_bytes + cost.bytes_per_connection * 50_000 < high
        assert high - low < fit.band(200_000.0)[1] - fit.band(200_000.0)[0]
    # Per end, like the cost.
    assert c.fits["kernel"].bytes[-1] == pytest.approx((FIXED["kernel"] / 2 + KERNEL_END * 100_000), rel=0.03)


def test_residue() -> None:
    run = a_run(30_000, hold_s=10.0, noise=0.0)
    drained = run.phases[-1].start_s
    for name, by in (("server.pss_bytes", 5e6), ("kernel.socket_bytes", 2e6), ("host.used_bytes", 9e6)):
        raised(run, by, name, since_s=drained)
    left = costs(run).residue
    assert (left.server_user, left.kernel, left.host_total) == (pytest.approx(5e6), pytest.approx(2e6), pytest.approx(9e6))
    assert left.after_s == pytest.approx(run.samples[-1].t_s - drained)
    assert costs(without(run, "kernel.socket_bytes")).residue.kernel is None
    run.phases = run.phases[:-1]
    assert costs(run).residue == Residue()


def test_inodes_of_proc_are_excluded_from_host_and_residue() -> None:
    """Another program lists descriptors: 1,800 B a connection remain."""
    run = a_run(60_000, hold_s=10.0, noise=0.1)
    held = 0.0
    for sample in run.samples:
        held = max(held, sample.values.get("status.active", 1.0) - 1.0)
        sample.values["kernel.listing_bytes"] = 2e6 + 1800.0 * held
        sample.values["host.used_bytes"] += 1800.0 * held
    c = costs(raised(run, 9e6, "host.used_bytes", since_s=run.phases[-1].start_s))
    (finding,) = c.findings
    assert finding.code == "descriptors_listed"
    assert c.host_total.bytes_per_connection == pytest.approx(HOST, rel=0.01)
    assert c.residue.host_total == pytest.approx(9e6, abs=2e6)


def test_unsettled_plateaus_widen_the_interval() -> None:
    def ladder(lag_s: float) -> Costs:
        run = a_run(20_000, hold_s=5.0, plateaus=5, plateau_s=10.0, noise=0.1)
        behind = 0.0
        for before, sample in pairwise(run.samples):
            n = sample.values["status.active"] - 1 if "status.active" in sample.values else 0.0
            keep = 0.0 if not lag_s else math.exp(-(sample.t_s - before.t_s) / lag_s)
            behind = keep * behind + (1 - keep) * n
            sample.values["server.pss_bytes"] += SERVER * (behind - n)
        return costs(run)

    quick, slow = ladder(0.0), ladder(6.0)
    assert [one.code for one in quick.findings] == []
    (finding,) = slow.findings
    assert (finding.code, finding.severity, "20s" in finding.remedy) == ("plateau_unsettled", "warning", True)
    assert [one["plateau"] for one in finding.fields["moved"]["server_user"]] == [1, 2, 3, 4, 5]
    # An amount has no sign, whichever way the memory moved.
    assert "-6.5" not in plateau_unsettled({"server_user": [{"plateau": 1, "bytes": -6.5e6, "share": None}]}, 5.0).evidence
    assert slow.server_user.ci95[0] <= SERVER <= slow.server_user.ci95[1]
    wide = [high - low for low, high in (quick.server_user.ci95, slow.server_user.ci95)]
    assert wide[1] > 2 * wide[0]
    assert slow.fits["server_user"].band(1e4)[0] < slow.fits["server_user"].at(1e4) < slow.fits["server_user"].band(1e4)[1]
    # One or two plateaus are too few: the line is the ramp's.
    assert all("ramp" in costs(a_run(20_000, hold_s=5.0, plateaus=few, plateau_s=10.0)).kernel.method for few in (1, 2))


def test_an_interrupted_ramp_ends_at_its_last_count() -> None:
    run = a_run(100_000)
    ramp_s = run.phases[1].start_s
    # Ctrl-C within a second: its tick shows the drain's end, with no connection left.
    stop = ramp_s + 30.5
    ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s < stop + 1.0]
    ticks[-1][1].held, ticks[-1][1].held_at_drain = 0, 30_500
    run.ticks = ticks
    run.samples = [sample for sample in run.samples if sample.t_s <= stop]
    active = {"status.active": 30_501.0, "status.accepts": 31_501.0, "status.handled": 31_501.0}
    run.samples.append(Sample(stop, {**run.samples[-1].values, **active}))
    run.phases = [
        run.phases[0], Phase("ramp", ramp_s, stop - 0.01), Phase("hold", stop - 0.01, stop), Phase("drain", stop, stop + 0.5),
    ]  # fmt: skip
    c = costs(run)
    (part,) = [one for one in c.findings if one.code == "cost_of_a_part"]
    assert part.fields == {"held": 30_500.0, "asked": 100_000}
    # Half of them closed at once would look like another client of the server.
    assert "active count" not in c.kernel.method


@pytest.mark.parametrize("at_s", [0.0, 5.05, 6.2, 20.0, 60.0, 116.0])
@pytest.mark.parametrize("plateaus", [0, 5])
def test_a_run_cut_off_anywhere(at_s: float, plateaus: int) -> None:
    run = cut(a_run(100_000, hold_s=10.0, plateaus=plateaus, plateau_s=10.0), at_s)
    c = costs(run)
    assert b"NaN" not in msgspec.json.encode(c)
    assert b"null" not in msgspec.json.encode({name: cost.ci95 for name in TRUTH if (cost := getattr(c, name)) is not None})
    known = [name for name in TRUTH if getattr(c, name) is not None]
    assert known or c.findings
    if known and at_s < 80:
        assert "cost_of_a_part" in [one.code for one in c.findings]


def test_a_gap_in_the_samples_misleads_no_fit() -> None:
    run = a_run(100_000, hold_s=10.0)
    run.samples = [sample for sample in run.samples if not 40 < sample.t_s < 80]
    c = costs(run)
    assert c.host_total.ci95[0] <= HOST <= c.host_total.ci95[1]


def test_data_that_nobody_reads_is_in_the_kernels_interval() -> None:
    queued = 3000.0
    known = costs(raised(a_run(20_000), 0, "kernel.tcp_mem_bytes", each=2 * queued)).kernel
    assert known is not None
    assert known.ci95[0] <= KERNEL_END < KERNEL_END + queued <= known.ci95[1]
    as_usual = costs(a_run(20_000)).kernel
    assert as_usual is not None
    assert "buffers" in known.method.removeprefix(as_usual.method)
    assert as_usual.ci95[1] < KERNEL_END + queued


def test_an_excluded_baseline_is_no_point() -> None:
    """First use is in every point but the baseline: 3 MB of asyncli, beside 125 B a connection."""
    run = a_run(40_000, hold_s=8.0, plateaus=5, plateau_s=10.0)
    c = costs(raised(run, 3e6, "generator.uss_bytes", since_s=run.phases[1].start_s))
    fit = c.fits["generator_user"]
    # Five samples of each rest.
    assert fit.cost.points == len(fit.n) == 25
    assert fit.apart == pytest.approx(fit.cost.fixed_bytes - 3e6, abs=3e5)
    # R² is of the points of the line.
    middle = sum(fit.bytes) / 25
    off, whole = (sum((y - at) ** 2 for y, at in zip(fit.bytes, line, strict=True)) for line in ([fit.at(n) for n in fit.n], [middle] * 25))
    assert fit.cost.r2 == pytest.approx(1 - off / whole)
    kernel = c.fits["kernel"]
    assert (kernel.apart, kernel.cost.points, kernel.n[0]) == (None, 26, 0.0)


def test_coverage_of_the_intervals_of_plateaus() -> None:
    found = [costs(a_run(40_000, hold_s=8.0, seed=seed, phi=0.5, plateaus=8, plateau_s=10.0)) for seed in range(30)]
    assert covered(found, "host_total", HOST) >= 26
    assert covered(found, "residual", REST) >= 26


def test_a_metric_that_is_sampled_rarely() -> None:
    """PSS of many processes is expensive and read every few seconds: the residual uses its instants."""
    run = a_run(60_000, hold_s=10.0, noise=0.2)
    for place, sample in enumerate(run.samples):
        if place % 4:
            sample.values.pop("server.pss_bytes")
    c = costs(run)
    assert c.residual.bytes_per_connection == pytest.approx(REST, abs=60)


@pytest.mark.parametrize("of", [a_run, short])
def test_a_host_that_grows_mostly_by_other_programs_has_no_cost(of: Callable[..., Run]) -> None:
    quiet, busy = (analyse(raised(of(30_000, hold_s=10.0), 0, "host.used_bytes", each=each)) for each in (0.3 * HOST, 1.5 * HOST))
    assert quiet.costs.host_total is not None
    assert "cost_of_others" not in {one.code for one in quiet.costs.findings}
    assert (busy.costs.host_total, busy.costs.residual, busy.forecast.memory) == (None, None, None)
    assert busy.costs.server_user is not None
    assert "cost_of_others" in {one.code for one in busy.costs.findings}
    # A thread for each connection has its stack and page tables in no part.
    threads = raised(a_run(30_000, hold_s=10.0), 0, "host.used_bytes", each=1.5 * HOST)
    for sample in threads.samples:
        sample.values["server.threads"] = 1.0 + sample.values.get("status.active", 0.0)
    assert analyse(threads).costs.host_total is not None


@pytest.mark.parametrize("grown", [1, 9])
@pytest.mark.parametrize("unread", [("kernel.socket",), ("server.pss", "server.rss")])
def test_without_root_most_of_a_host_may_be_in_no_part(unread: tuple[str, ...], grown: int) -> None:
    """The kernel's part is then at most two pages for each end; a server that was not read is one of the other processes."""
    names = ["host.used_bytes", *["host.processes_bytes"] * unread[0].startswith("server")]
    run = raised(a_run(30_000, hold_s=10.0, processes=True), 0, *names, each=(grown - 1) * HOST)
    found = analyse(without(run, *unread)).costs
    told = "cost_of_others" in {one.code for one in found.findings}
    assert (found.host_total is None, told) == (grown > 1, grown > 1)


def test_connections_that_end_at_once_have_no_cost() -> None:
    """As of a server of HTTP/1.0: a count of 5 in some ticks is no level of memory."""
    run = a_run(3000, hold_s=15.0)
    for place, (_, tick) in enumerate(run.ticks):
        tick.held, tick.opened, tick.deaths = place % 5 // 4 * 5, 100, {"closed_announced": Deaths(count=100)}
    found = analyse(run).costs
    assert (costs(run).generator_user is not None, [one.code for one in found.findings]) == (True, ["cost_short_lived"])
    assert (found.fits, found.generator_user, "server_user" in found.unknown) == ({}, None, True)
    assert stands_first(summarise(run), found.findings[0])
