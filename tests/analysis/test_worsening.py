"""How often a run is called worse that is not, and as good that is worse: counted on numbers whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from scipy.special import stdtrit
from synthetic_run import a_run

from asyncli.analysis.compare import REPEAT
from asyncli.analysis.estimates import Estimate, Repeat
from asyncli.analysis.measured import measure
from asyncli.analysis.worsening import COMPARABLE, FALSE_ALARMS, MISSES, BaselineRun, Bound, Worsening, chances_at, worsening

KEY = "cost.server_user"
POINTS = 12
BOUND = Bound(amount=30.0)
TRIALS = 2000


def estimate(value: float, error: float, freedom: float | None = None) -> Estimate:
    half = error * float(stdtrit(freedom or 1e7, 0.975))
    return Estimate(value, value - half, value + half, freedom)


# The numbers are given in each test; what else a run has does not matter.
THIS = msgspec.structs.replace(
    measure("this run", "", a_run(200, hold_s=30.0)), numbers={KEY: estimate(1000, 1)}, levels=frozenset()
)


def difference(before: Sequence[Estimate | str], after: Estimate | str, bound: Bound = BOUND) -> Worsening | str:
    baseline = [
        BaselineRun.of(f"{place}.db", msgspec.structs.replace(THIS, numbers={KEY: number})) for place, number in enumerate(before)
    ]
    run = msgspec.structs.replace(THIS, numbers={KEY: after})
    return worsening(KEY, baseline, run, chances_at(None, 1), bound)


def calls(seed: int, runs: int, true_difference: float, *, error: float, scatter: float) -> dict[bool | None, int]:
    """How often each call is made where the truth is known: every run has an error of its own, and repeats scatter."""
    rng = np.random.default_rng(seed)
    counts: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for _ in range(TRIALS):
        estimates = []
        for truth in [1000.0] * runs + [1000.0 + true_difference]:
            of_run = rng.normal(truth, scatter)
            readings = rng.normal(of_run, error * math.sqrt(POINTS), POINTS)
            own = float(readings.std(ddof=1)) / math.sqrt(POINTS)
            estimates.append(estimate(float(readings.mean()), own, POINTS - 1))
        *before, after = estimates
        known = difference(before, after)
        assert isinstance(known, Worsening)
        counts[known.is_worse] += 1
    return counts


@pytest.mark.parametrize(
    ("runs", "error", "scatter"), [(1, 3.0, 0.0), (1, 12.0, 0.0), (5, 3.0, 0.0), (5, 3.0, 4.0), (10, 2.0, 6.0)]
)
def test_no_more_false_alarms_than_stated(runs: int, error: float, scatter: float) -> None:
    counts = calls(1, runs, 0.0, error=error, scatter=scatter)
    # At the end half of the chance is spent; three standard errors of a count of 2,000 at 1 % are 0.7 %.
    assert counts[True] <= TRIALS * (FALSE_ALARMS + 0.007)


@pytest.mark.parametrize(("runs", "error", "scatter"), [(1, 3.0, 0.0), (5, 3.0, 0.0), (5, 3.0, 4.0)])
def test_what_is_worse_by_the_bound_is_not_missed(runs: int, error: float, scatter: float) -> None:
    counts = calls(2, runs, 30.0, error=error, scatter=scatter)
    assert counts[False] <= TRIALS * (MISSES + 0.015)
    if not scatter:
        # Each is narrow enough for a decision.
        assert counts[True] >= TRIALS * 0.95


def test_an_interval_with_both_in_it_decides_nothing() -> None:
    counts = calls(3, 1, 15.0, error=20.0, scatter=0.0)
    assert counts[None] >= TRIALS * 0.85


def test_the_more_is_known_the_nearer_to_the_bound_the_calls_meet() -> None:
    # 25 of 30 is no worsening by 30 where that is sure, and one where only "more than none" is.
    surely = difference([estimate(1000, 0.5)], estimate(1025, 0.5))
    hardly = difference([estimate(1000, 4)], estimate(1025, 4))
    assert isinstance(surely, Worsening)
    assert isinstance(hardly, Worsening)
    assert (surely.is_worse, hardly.is_worse) == (False, True)


def test_chances_over_all_looks_are_what_is_stated() -> None:
    early = [chances_at(look, 1) for look in range(1, 10_000)]
    end = chances_at(None, 1)
    assert sum(chance.false_alarm for chance in early) + end.false_alarm == pytest.approx(FALSE_ALARMS, rel=1e-3)
    assert sum(chance.miss for chance in early) + end.miss == pytest.approx(MISSES, rel=1e-3)
    # Of several limits any may alarm, and each may be missed.
    three = chances_at(None, 3)
    assert three.false_alarm == pytest.approx(end.false_alarm / 3)
    assert three.miss == end.miss


def test_the_scatter_of_the_baseline_runs_widens_the_interval() -> None:
    own = [estimate(1000 + off, 1) for off in (-20, 15, 0, 25, -20)]
    close = [estimate(1000, 1)] * 5
    wide, narrow = difference(own, estimate(1010, 1)), difference(close, estimate(1010, 1))
    assert isinstance(wide, Worsening)
    assert isinstance(narrow, Worsening)
    assert wide.low < 0 < narrow.low
    assert wide.runs == 5
    assert wide.before == pytest.approx(1000)


def test_what_repeats_differ_by_elsewhere_counts_too() -> None:
    assert REPEAT["latency.p50"] == Repeat(0.035)
    number = estimate(10, 0.01)
    numbers = {"latency.p50": number}
    before = BaselineRun.of("a.db", msgspec.structs.replace(THIS, numbers=numbers))
    known = worsening("latency.p50", [before], msgspec.structs.replace(THIS, numbers=numbers), chances_at(None, 1), Bound(0.2))
    assert isinstance(known, Worsening)
    # 3.5 % of each run, so 0.5 ms of the difference of two.
    assert known.low < -1.5


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ([estimate(1000, 1)], "no slope is known", "no slope is known"),
        (["the ramp was too short"], estimate(1000, 1), "in 0.db, the ramp was too short"),
        (["no slope"] * 3, estimate(1000, 1), "in 0.db, no slope; nor can it be compared with 2 other baseline runs"),
        ([Estimate(1000, 990, math.inf, 5)], estimate(1000, 1), "in 0.db, its latencies changed so much in the hold that another run may differ by any amount"),
    ],
)
def test_what_is_not_known_is_not_compared(before: list[Estimate], after: Estimate | str, why: str) -> None:
    assert difference(before, after) == why


def test_a_share_of_nothing_is_no_bound() -> None:
    known = difference([estimate(-5, 1)], estimate(10, 1), Bound(share=0.03))
    assert isinstance(known, str)
    assert "amount" in known


def test_another_kind_of_memory_is_not_compared() -> None:
    kinds = {**THIS.kinds, KEY: "RSS"}
    before = BaselineRun.of("old.db", msgspec.structs.replace(THIS, kinds=kinds))
    known = worsening(KEY, [before], THIS, chances_at(None, 1), Bound(0.03))
    assert isinstance(known, str)
    assert "RSS" in known


def test_a_baseline_run_is_the_same_after_its_record() -> None:
    before = BaselineRun.of("old.db", THIS)
    assert msgspec.json.decode(msgspec.json.encode(before), type=BaselineRun) == before
    assert set(before.numbers) | set(before.unknown) == set(COMPARABLE.values())


def test_a_baseline_run_that_knows_little_decides_nothing_alone_and_spoils_no_others() -> None:
    """Memory in no process may be the server's: such a run says "at least", with a high upper end."""
    vague = Estimate(8228, 527, 27_020, 8)
    clear = [estimate(528 + off, 1.5, 8) for off in (-0.5, 0.5, 0.0, 0.8)]
    limit = Bound(share=0.03)
    # What is no more than the least that it may have been is as good all the same.
    for after, call, alone_call in ((528.0, False, False), (546.0, True, None)):
        alone = difference([vague], estimate(after, 1.5, 8), limit)
        beside = difference([vague, *clear], estimate(after, 1.5, 8), limit)
        assert isinstance(alone, Worsening)
        assert isinstance(beside, Worsening)
        assert alone.is_worse is alone_call
        assert beside.is_worse is call
        assert beside.before == pytest.approx(528, abs=1)


def of_latency(before: list[tuple[float, float]], after: tuple[float, float], share: float = 0.2) -> Worsening:
    """Of medians of the latency, each with the median lateness of its run (ms)."""
    runs = []
    for place, (latency_ms, late_ms) in enumerate([*before, after]):
        number = Estimate(latency_ms, 0.98 * latency_ms, 1.02 * latency_ms, 20.0)
        numbers = {"latency.p50": number}
        runs.append(msgspec.structs.replace(THIS, name=f"{place}.db", numbers=numbers, late_ms={"p50": late_ms}))
    *earlier, this = runs
    baseline = [BaselineRun.of(run.name, run) for run in earlier]
    known = worsening("latency.p50", baseline, this, chances_at(None, 1), Bound(share=share))
    assert isinstance(known, Worsening)
    return known


# One of them was late, and slow for that.
BEFORE = [(0.932, 0.78), (0.772, 0.70), (0.764, 0.69)]


@pytest.mark.parametrize("late_ms", [0.60, 0.70, 0.76])
def test_of_all_baseline_runs_none_is_left_out_for_its_lateness(late_ms: float) -> None:
    known = of_latency(BEFORE, (0.925, late_ms))
    assert (known.runs, known.left_out) == (3, [])
    assert known.before == pytest.approx(0.82, abs=0.02)


@pytest.mark.parametrize(
    ("after", "is_worse", "is_by_lateness"),
    [
        # As late as before: what the latencies say.
        ((0.80, 0.5), False, False), ((1.2, 0.5), True, False),
        # Later by as much as the latency is higher; earlier by more than the limit allows.
        ((1.2, 0.9), None, True), ((0.80, 0.1), None, True),
        # Lateness that cannot turn the call.
        ((0.80, 0.9), False, False), ((1.2, 0.1), True, False),
    ],
)  # fmt: skip
def test_a_call_that_lateness_may_have_made_is_none(after: tuple[float, float], is_worse: bool | None, is_by_lateness: bool) -> None:
    known = of_latency([(0.8, 0.5)] * 5, after)
    assert (known.is_worse, known.is_by_lateness) == (is_worse, is_by_lateness)


def test_lateness_that_is_not_in_the_latency_hides_no_worsening() -> None:
    """Latencies that are higher by the limit, of runs whose lateness goes with the latency, and asyncli is later besides."""
    rng = np.random.default_rng(4)
    for besides_ms in (0.0, 0.1, 0.14):
        missed = 0
        for _ in range(TRIALS // 4):
            shared = rng.normal(0.0, 0.08, 6)
            late = 0.6 + 0.8 * shared + rng.normal(0.0, 0.04, 6)
            latency = 0.8 + 0.8 * shared
            before = [(float(latency[i]), float(late[i])) for i in range(5)]
            after = (float(latency[5]) + 0.24, float(late[5]) + besides_ms)
            missed += of_latency(before, after, share=0.3).is_worse is False
        assert missed <= TRIALS / 4 * (MISSES + 0.015)


def test_a_run_that_is_left_out_is_named() -> None:
    known = difference(["no slope", estimate(1000, 1), estimate(1001, 1)], estimate(1000, 1))
    assert isinstance(known, Worsening)
    assert known.runs == 2
    assert ["0.db" in reason for reason in known.left_out] == [True]
