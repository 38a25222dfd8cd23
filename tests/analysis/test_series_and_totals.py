"""Looking up and folding."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import a_run, bare_run

from asyncli.analysis.totals import fold
from asyncli.records import Deaths, Phase, Sample, Tick
from asyncli.samples import Series, series

PHASES = [Phase("baseline", 0.0, 5.1), Phase("ramp", 5.1, 8.1), Phase("hold", 8.1, 11.1), Phase("drain", 11.1, 13.0)]


def test_a_series_between_and_beyond_its_points() -> None:
    one = Series([1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    assert [one.at(t) for t in (0.0, 1.0, 1.5, 3.0, 4.0, 9.0)] == [10, 10, 15, 10, 0, 0]
    assert one.between(1.5, 4.0) == Series([2.0, 4.0], [20.0, 0.0])
    assert (one.last(), one.last(until_s=3.9), one.last(until_s=0.5), one.last(since_s=5.0)) == (0.0, 20.0, None, None)
    assert (one.first(), one.first(since_s=3.0), one.first(since_s=9.0)) == (10.0, 0.0, None)
    assert (Series().at(1.0), Series().last(), Series().first()) == (None, None, None)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), st.floats(-100, 200))
def test_at_stays_between_the_values(values: list[float], t_s: float) -> None:
    at = Series([float(place) for place in range(len(values))], values).at(t_s)
    assert min(values) - 1e-3 <= at <= max(values) + 1e-3


def test_held_over_time_is_none_before_the_ramp() -> None:
    held = bare_run([(6.1, Tick(held=10)), (7.1, Tick(held=20))], PHASES).held
    assert [held.at(t) for t in (0.0, 5.1, 5.6, 6.6)] == [0, 0, 5, pytest.approx(15)]
    assert bare_run().held.at(3.0) == 0.0


def test_what_was_held_as_the_drain_began_is_in_no_gauge() -> None:
    ticks = [(10.6, Tick(held=5000)), (11.6, Tick(held=0, held_at_drain=5520))]
    held = bare_run(ticks, PHASES).held
    assert [held.at(t) for t in (10.6, 11.1, 11.6)] == [5000, 5520, 0]
    assert bare_run(ticks, PHASES[:3]).held.values == [0, 5000, 0]


def test_series_skips_samples_that_lack_the_metric() -> None:
    samples = [Sample(0.0, {"a": 1.0}), Sample(1.0, {"b": 2.0}), Sample(2.0, {"a": 0.0})]
    assert series(samples, "a") == Series([0.0, 2.0], [1.0, 0.0])


def test_ticks_go_to_the_phase_of_their_middle() -> None:
    ticks = [(5.1 + second, Tick(second=second, opened=1)) for second in range(1, 8)]
    totals = fold(bare_run(ticks, PHASES))
    assert {name: tick.opened for name, tick in totals.by_phase.items()} == {"ramp": 3, "hold": 3, "drain": 1}
    assert totals.whole.opened == 7
    assert totals.during("ramp", "hold").opened == 6


def test_held_is_what_was_held_as_the_drain_began() -> None:
    ticks = [
        (9.1, Tick(held=100)),
        (11.3, Tick(held=97, held_at_drain=60)),  # one of two workers has begun
        (12.3, Tick(held=0, held_at_drain=99, drained=2)),
        (13.3, Tick(held=0, held_at_drain=39, drained=2)),  # a worker ended early and took its count along
    ]
    assert fold(bare_run(ticks, PHASES)).held == 99
    assert fold(bare_run(ticks[:1], PHASES[:3])).held == 100
    # A lost worker counts as drained, which does not make the held ones disappear.
    assert fold(bare_run([(9.1, Tick(held=50, drained=1))], PHASES[:3])).held == 50
    assert fold(bare_run()).held == 0


def test_deaths_and_histograms_add_up() -> None:
    first, second = Tick(opened=5), Tick(opened=6)
    first.deaths["reset"], second.deaths["reset"] = Deaths(count=2), Deaths(count=3)
    first.latency_us.add(10)
    second.latency_us.add(30)
    totals = fold(bare_run([(6.1, first), (7.1, second)], PHASES))
    assert (totals.whole.lost, totals.whole.latency_us.count, totals.whole.latency_us.greatest) == (5, 2, 30)
    assert (first.deaths["reset"].count, first.latency_us.count) == (2, 1)  # the records are left alone


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
