"""A run with gaps: what is left out of which fit."""

from __future__ import annotations

import pytest
from synthetic_run import bare_run

from asyncli.analysis.gaps import for_cost, for_drift, of_one_server, without_counters
from asyncli.analysis.totals import fold
from asyncli.records import SERVER_CHANGED, Deaths, Environment, Gap, Phase, Sample, Tick
from asyncli.run import Run

PHASES = [Phase("baseline", 0, 5), Phase("ramp", 5, 10), Phase("hold", 10, 100), Phase("drain", 100, 101), Phase("residue", 101, 106)]
TICKS = [(float(t_s), Tick(held=10, sent=1)) for t_s in range(6, 101)]
SAMPLES = [Sample(float(t_s), {"host.used_bytes": float(t_s), "status.accepts": 1.0, "status.active": 2.0}) for t_s in range(106)]




def gapped(*gaps: Gap, samples: list[Sample] = SAMPLES, environment: Environment | None = None) -> Run:
    return bare_run(TICKS, PHASES, samples, environment, gaps=gaps)


def instants(run: Run) -> tuple[list[float], list[float]]:
    return [t_s for t_s, _ in run.ticks], [one.t_s for one in run.samples]


def test_without_a_gap_everything_is_as_it_was() -> None:
    run = gapped()
    assert run.outside_gaps is run
    for of in (for_cost, for_drift, without_counters):
        assert of(run) is run


def test_what_lies_in_a_gap_is_left_out_and_its_edges_stay() -> None:
    ticks, samples = instants(gapped(Gap(20, 30), Gap(50.5, 60.5)).outside_gaps)
    assert [t_s for t_s in range(6, 101) if t_s not in ticks] == [*range(21, 31), *range(51, 61)]
    assert [t_s for t_s in range(106) if t_s not in samples] == [*range(21, 31), *range(51, 61)]


def test_a_gap_without_an_end_lasts_to_the_end() -> None:
    ticks, samples = instants(gapped(Gap(20)).outside_gaps)
    assert (max(ticks), max(samples)) == (20, 20)


def test_cost_is_fitted_up_to_the_first_gap_after_the_ramp_began_and_the_residue_stays() -> None:
    _, samples = instants(for_cost(gapped(Gap(20, 30), Gap(50, 60))))
    assert samples == [*range(21), *range(100, 106)]
    # A ramp that was begun anew: what was before it is no part of it.
    ticks, samples = instants(for_cost(gapped(Gap(1, 4))))
    assert samples == [0, 1, *range(5, 106)]
    assert ticks == [t_s for t_s, _ in TICKS]


@pytest.mark.parametrize(
    ("gaps", "stretch"),
    [([Gap(20, 30)], (30, 100)), ([Gap(80, 85)], (10, 80)), ([Gap(20, 30), Gap(90, 95)], (30, 90)), ([Gap(10, 20), Gap(70)], (20, 70))],
)
def test_drift_is_that_of_the_longest_stretch(gaps: list[Gap], stretch: tuple[float, float]) -> None:
    run = for_drift(gapped(*gaps))
    assert (run.hold.start_s, run.hold.end_s) == pytest.approx(stretch)
    ticks, samples = instants(run)
    assert max(ticks) <= stretch[1]
    assert samples[-1] == stretch[1]


def test_another_server_after_a_gap_shares_no_number_with_the_first() -> None:
    samples = [Sample(float(t_s), {"server.rss_bytes": 1.0, "host.used_bytes": 2.0, "generator.rss_bytes": 3.0}) for t_s in range(106)]
    run = gapped(Gap(60, 70), samples=samples, environment={"local": True, SERVER_CHANGED: 60})
    cost = for_cost(run).samples
    assert {name for one in cost if one.t_s <= 60 for name in one.values} == {"generator.rss_bytes"}
    assert [one.t_s for one in cost if "server.rss_bytes" in one.values] == [*range(100, 106)]
    # Of the first there is more in the hold.
    hold = for_drift(run).hold
    assert (hold.start_s, hold.end_s) == (pytest.approx(70), 100)
    # What the client's host uses is nothing of a server's on another one.
    elsewhere, odd = ({"local": False, SERVER_CHANGED: 60}, {SERVER_CHANGED: "soon"})
    assert "host.used_bytes" in of_one_server(gapped(samples=samples, environment=elsewhere)).samples[0].values
    assert of_one_server(gapped(samples=samples, environment=odd)).samples is samples


def test_totals_count_all_and_give_what_was_in_a_gap_to_no_phase() -> None:
    lost = Tick(deaths={"generator_lost": Deaths(count=10)}, beats_failed=2)
    ticks = [*TICKS[:15], (20.001, lost), (40.0, Tick(held=3, sent=7)), *TICKS[45:]]
    totals = fold(bare_run(ticks, PHASES, gaps=[Gap(20, 50)]))
    assert totals.whole.lost == 10
    assert totals.whole.sent == 15 + 7 + 50
    assert totals.by_phase["hold"].sent == 10 + 50
    assert totals.by_phase["hold"].lost == 0


def test_counters_of_the_server_are_not_compared_across_a_gap_but_what_it_holds_is() -> None:
    kept = without_counters(gapped(Gap(20, 30))).samples
    assert kept[3].values == {"host.used_bytes": 3.0, "status.active": 2.0}
