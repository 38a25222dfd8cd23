"""A run: its phases, connections held over time, gaps, and totals."""

from __future__ import annotations

import math

import msgspec
import pytest
from synthetic_run import a_run, bare_run

from asyncli.analysis.gaps import for_cost, for_drift, of_one_server, without_counters
from asyncli.analysis.totals import fold
from asyncli.model.plan import Plan
from asyncli.model.records import SERVER_CHANGED, Deaths, Environment, Gap, Phase, Sample, Tick
from asyncli.model.run import Run
from asyncli.model.samples import Series

PHASES = [Phase("baseline", 0.0, 5.1), Phase("ramp", 5.1, 8.1), Phase("hold", 8.1, 11.1), Phase("drain", 11.1, 13.0)]


def test_a_series_between_and_beyond_its_points() -> None:
    one = Series([1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    assert [one.at(t) for t in (0.0, 1.0, 1.5, 3.0, 4.0, 9.0)] == [10, 10, 15, 10, 0, 0]
    assert one.between(1.5, 4.0) == Series([2.0, 4.0], [20.0, 0.0])
    assert (one.last(), one.last(until_s=3.9), one.last(until_s=0.5), one.last(since_s=5.0)) == (0.0, 20.0, None, None)
    assert (one.first(), one.first(since_s=3.0), one.first(since_s=9.0)) == (10.0, 0.0, None)
    assert (Series().at(1.0), Series().last(), Series().first()) == (None, None, None)


def test_nothing_is_held_before_the_ramp() -> None:
    held = bare_run([(6.1, Tick(held=10)), (7.1, Tick(held=20))], PHASES).held
    assert [held.at(t) for t in (0.0, 5.1, 5.6, 6.6)] == [0, 0, 5, pytest.approx(15)]
    assert bare_run().held.at(3.0) == 0.0


def test_held_bends_where_the_ramp_ends() -> None:
    """The last batch is due 1.4 s into the ramp: a line through its second would have 75 connections at 1.5 s."""
    plan = Plan(urls=("http://127.0.0.1:8080/",), connections=80, batch=10, interval_s=0.2)
    ticks = [(6.1, Tick(held=50)), (7.1, Tick(held=80)), (8.1, Tick(held=80))]
    held = bare_run(ticks, PHASES, plan=plan).held
    assert [held.at(t) for t in (6.1, 6.5, 6.6, 7.1)] == [50, 80, 80, pytest.approx(80)]
    # Connects that came late are not where the schedule has them.
    late = [(6.1, Tick(held=50)), (7.1, Tick(held=70)), (8.1, Tick(held=80))]
    assert bare_run(late, PHASES, plan=plan).held.at(6.6) == pytest.approx(60)


def test_held_at_the_start_of_the_drain_is_in_no_gauge() -> None:
    ticks = [(10.6, Tick(held=5000)), (11.6, Tick(held=0, held_at_drain=5520))]
    held = bare_run(ticks, PHASES).held
    assert [held.at(t) for t in (10.6, 11.1, 11.6)] == [5000, 5520, 0]
    assert bare_run(ticks, PHASES[:3]).held.values == [0, 5000, 0]


def test_ticks_go_to_the_phase_of_their_middle() -> None:
    ticks = [(5.1 + second, Tick(second=second, opened=1)) for second in range(1, 8)]
    totals = fold(bare_run(ticks, PHASES))
    assert {name: tick.opened for name, tick in totals.by_phase.items()} == {"ramp": 3, "hold": 3, "drain": 1}
    assert totals.whole.opened == 7
    assert totals.during("ramp", "hold").opened == 6


def test_held_is_the_count_at_the_start_of_the_drain() -> None:
    ticks = [
        (9.1, Tick(held=100)),
        (11.3, Tick(held=97, held_at_drain=60)),  # one of two workers has begun
        (12.3, Tick(held=0, held_at_drain=99, drained=2)),
        (13.3, Tick(held=0, held_at_drain=39, drained=2)),  # a worker ended early and took its count along
    ]
    assert fold(bare_run(ticks, PHASES)).held == 99
    assert fold(bare_run(ticks[:1], PHASES[:3])).held == 100
    # A lost worker counts as drained, and the connections held elsewhere still count.
    assert fold(bare_run([(9.1, Tick(held=50, drained=1))], PHASES[:3])).held == 50
    assert fold(bare_run()).held == 0


def test_cpu_of_a_phase_and_a_lost_worker() -> None:
    ticks = [(6.1, Tick(cpu_user_s=1.0)), (8.1, Tick(cpu_user_s=1.5, cpu_system_s=0.5)), (9.1, Tick(cpu_user_s=0.1))]
    totals = fold(bare_run([*ticks, (10.1, Tick(cpu_user_s=0.05))], PHASES))
    assert totals.cpu_s["ramp"] == (pytest.approx(1.0), pytest.approx(2.0))
    assert totals.cpu_s["hold"][0] == 0.0


def test_marks_of_a_run_without_phases() -> None:
    assert bare_run().first_connect_s == math.inf
    assert bare_run(samples=[Sample(3.0, {})]).stop_s == 3.0
    run = a_run(500)
    assert run.stop_s == run.phases[3].start_s


# A run with gaps: what each fit excludes.

LONG = [Phase("baseline", 0, 5), Phase("ramp", 5, 10), Phase("hold", 10, 100), Phase("drain", 100, 101), Phase("residue", 101, 106)]
LONG_TICKS = [(float(t_s), Tick(held=10, sent=1)) for t_s in range(6, 101)]
LONG_SAMPLES = [Sample(float(t_s), {"host.used_bytes": float(t_s), "status.accepts": 1.0, "status.active": 2.0}) for t_s in range(106)]


def gapped(*gaps: Gap, samples: list[Sample] = LONG_SAMPLES, environment: Environment | None = None) -> Run:
    return bare_run(LONG_TICKS, LONG, samples, environment, gaps=gaps)


def instants(run: Run) -> tuple[list[float], list[float]]:
    return [t_s for t_s, _ in run.ticks], [one.t_s for one in run.samples]


def test_without_a_gap_nothing_changes() -> None:
    run = gapped()
    assert run.undisturbed is run
    for of in (for_cost, for_drift, without_counters):
        assert of(run) is run


def test_a_gap_is_excluded_and_its_edges_stay() -> None:
    ticks, samples = instants(gapped(Gap(20, 30), Gap(50.5, 60.5)).undisturbed)
    assert [t_s for t_s in range(6, 101) if t_s not in ticks] == [*range(21, 31), *range(51, 61)]
    assert [t_s for t_s in range(106) if t_s not in samples] == [*range(21, 31), *range(51, 61)]


def test_a_gap_without_an_end_lasts_to_the_end() -> None:
    ticks, samples = instants(gapped(Gap(20)).undisturbed)
    assert (max(ticks), max(samples)) == (20, 20)


def test_cost_is_fitted_up_to_the_first_gap_and_the_residue_stays() -> None:
    _, samples = instants(for_cost(gapped(Gap(20, 30), Gap(50, 60))))
    assert samples == [*range(21), *range(100, 106)]
    # A restarted ramp excludes what was before it.
    ticks, samples = instants(for_cost(gapped(Gap(1, 4))))
    assert samples == [0, 1, *range(5, 106)]
    assert ticks == [t_s for t_s, _ in LONG_TICKS]


@pytest.mark.parametrize(("lost", "until_s"), [(50, 29.0), (2, 105.0)])
def test_cost_is_fitted_until_processes_of_the_server_end_with_connections(lost: int, until_s: float) -> None:
    ticks = [(t_s, Tick(held=3, deaths={"reset": Deaths(count=lost)}) if t_s == 30 else tick) for t_s, tick in LONG_TICKS]
    ended = [Sample(float(t_s), {"server.ended": float(t_s > 30)}) for t_s in range(106)]
    run = msgspec.structs.replace(gapped(samples=ended), ticks=ticks)
    ticks_s, samples_s = instants(for_cost(run))
    # The residue stays.
    assert (ticks_s[-1], max(t_s for t_s in samples_s if t_s < 100)) == (min(until_s, ticks[-1][0]), min(until_s, 99.0))
    assert samples_s[-1] == 105


@pytest.mark.parametrize(
    ("processes", "ended_s", "until_s"),
    [
        # All of them; of two one, such as a helper; before the first connect; in the drain.
        (1.0, 30, 30.0),
        (2.0, 30, 99.0),
        (1.0, 3, 99.0),
        (1.0, 101, 99.0),
    ],
)
def test_cost_is_fitted_until_all_processes_of_the_server_end_without_connections(processes: float, ended_s: int, until_s: float) -> None:
    """As where a deploy comes with the first connects of the ramp."""
    ended = [Sample(float(t_s), {"server.ended": float(t_s > ended_s), "server.processes": processes}) for t_s in range(106)]
    _, samples_s = instants(for_cost(gapped(samples=ended)))
    assert max(t_s for t_s in samples_s if t_s < 100) == until_s
    assert samples_s[-1] == 105


@pytest.mark.parametrize(
    ("gaps", "stretch"),
    [([Gap(20, 30)], (30, 100)), ([Gap(80, 85)], (10, 80)), ([Gap(20, 30), Gap(90, 95)], (30, 90)), ([Gap(10, 20), Gap(70)], (20, 70))],
)
def test_drift_is_of_the_longest_part(gaps: list[Gap], stretch: tuple[float, float]) -> None:
    run = for_drift(gapped(*gaps))
    assert (run.hold.start_s, run.hold.end_s) == pytest.approx(stretch)
    ticks, samples = instants(run)
    assert max(ticks) <= stretch[1]
    assert samples[-1] == stretch[1]


def test_another_server_after_a_gap_has_separate_numbers() -> None:
    samples = [Sample(float(t_s), {"server.rss_bytes": 1.0, "host.used_bytes": 2.0, "generator.rss_bytes": 3.0}) for t_s in range(106)]
    run = gapped(Gap(60, 70), samples=samples, environment={"local": True, SERVER_CHANGED: 60})
    cost = for_cost(run).samples
    assert {name for one in cost if one.t_s <= 60 for name in one.values} == {"generator.rss_bytes"}
    assert [one.t_s for one in cost if "server.rss_bytes" in one.values] == [*range(100, 106)]
    # The first server has the longer part of the hold.
    hold = for_drift(run).hold
    assert (hold.start_s, hold.end_s) == (pytest.approx(70), 100)
    # Memory of the client's host is not the server's on another host.
    elsewhere, odd = ({"local": False, SERVER_CHANGED: 60}, {SERVER_CHANGED: "soon"})
    assert "host.used_bytes" in of_one_server(gapped(samples=samples, environment=elsewhere)).samples[0].values
    assert of_one_server(gapped(samples=samples, environment=odd)).samples is samples


def test_totals_count_gaps_in_no_phase() -> None:
    lost = Tick(deaths={"generator_lost": Deaths(count=10)}, beats_failed=2)
    ticks = [*LONG_TICKS[:15], (20.001, lost), (40.0, Tick(held=3, sent=7)), *LONG_TICKS[45:]]
    totals = fold(bare_run(ticks, LONG, gaps=[Gap(20, 50)]))
    assert totals.whole.lost == 10
    assert totals.whole.sent == 15 + 7 + 50
    assert totals.by_phase["hold"].sent == 10 + 50
    assert totals.by_phase["hold"].lost == 0


def test_counters_are_not_compared_across_a_gap_but_the_active_count_is() -> None:
    kept = without_counters(gapped(Gap(20, 30))).samples
    assert kept[3].values == {"host.used_bytes": 3.0, "status.active": 2.0}
