"""Ramp and jitter: exact instants, equal shares, and a schedule that does not depend on the number of workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncli.core.heartbeat import backoff_s, fraction, sleep_s
from asyncli.core.histogram import Histogram, bounds, bucket
from asyncli.core.life import CAUSES, CONNECTING, DEATHS, FAILURES, HANDSHAKE, cause, event_of
from asyncli.core.ramp import Ramp
from asyncli.engine.spread import loopback_sources, share, sources_wanted, workers_needed


@given(st.integers(1, 5000), st.integers(1, 60), st.integers(1, 9))
def test_workers_share_every_connection_once(connections: int, batch: int, workers: int) -> None:
    ramp = Ramp(connections, batch, 0.01)
    assert sum(ramp.size(j) for j in range(ramp.batches)) == connections
    for worker in range(workers):
        mine = sum(ramp.size(j) for j in range(worker, ramp.batches, workers))
        assert share(connections, batch, workers, worker) == mine


def test_batches_are_due_on_the_grid_and_plateaus_rest() -> None:
    ramp = Ramp(100_000, 10, 0.01)
    assert (ramp.batches, ramp.due_s(0), ramp.due_s(9999)) == (10_000, 0.0, pytest.approx(99.99))
    steps = Ramp(100, 10, 1.0, plateaus=5, plateau_s=20.0)
    assert [steps.due_s(j) for j in range(10)] == [0, 1, 22, 23, 44, 45, 66, 67, 88, 89]
    assert steps.rests() == [(2, 22), (24, 44), (46, 66), (68, 88), (90, 110)]
    assert steps.end_s == 109
    assert ramp.rests() == []


def test_sleeps_are_uniform_from_one_second_to_half_the_keepalive() -> None:
    sleeps = [sleep_s(7, connection, beat, 62.0) for connection in range(1000) for beat in range(30)]
    assert min(sleeps) >= 1.0
    assert max(sleeps) <= 31.0
    tenths = Counter(int((sleep - 1.0) / 3.0) for sleep in sleeps)
    # Chi-squared with 9 degrees of freedom: 27.9 is passed by chance once in a thousand seeds, and the seed is fixed.
    assert sum((tenths[tenth] - 3000) ** 2 / 3000 for tenth in range(10)) < 27.9
    assert sleep_s(7, 5, 3, 2.0) == 1.0
    assert sleep_s(7, 5, 3, 62.0) == sleep_s(7, 5, 3, 62.0) != sleep_s(8, 5, 3, 62.0)


def test_neighbours_in_any_argument_are_unrelated() -> None:
    for pairs in (
        [(fraction(1, c, 0), fraction(1, c + 1, 0)) for c in range(4000)],
        [(fraction(1, 9, b), fraction(1, 9, b + 1)) for b in range(4000)],
    ):
        mean_product = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs)
        assert abs(mean_product) * 12 < 0.06  # a correlation of 4,000 pairs is within 0.06 nearly always


def test_backoff_grows_to_half_a_minute_and_is_spread() -> None:
    waits = [backoff_s(1, connection, 5, retry) for connection in range(100) for retry in range(12)]
    assert 0.25 <= min(waits) <= max(waits) <= 45.0
    assert backoff_s(1, 1, 1, 0) <= 0.75


@given(st.integers(0, 2**60))
def test_a_bucket_holds_its_value_within_a_64th(value: int) -> None:
    low, high = bounds(bucket(value))
    assert low <= value <= high
    assert high - low <= value / 64


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_agree_with_sorting(values: list[int], q: float) -> None:
    whole, parts = Histogram(), [Histogram(), Histogram()]
    for number, value in enumerate(values):
        whole.add(value)
        parts[number % 2].add(value)
    parts[0].merge(parts[1])
    assert parts[0] == whole
    exact = sorted(values)[min(len(values), max(1, -int(-q * len(values) // 1))) - 1]
    quantile = whole.quantile(q)
    assert abs(quantile - exact) <= exact / 64 + 1
    assert min(values) <= quantile <= max(values)
    assert Histogram().quantile(q) is None
    assert whole.above(round(quantile)) == sum(bucket(value) > bucket(round(quantile)) for value in values)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
# 1 - 3/9, as a float, is more than six ninths.
@example([(0, 0)] * 6 + [(0, 2)] * 3, 1.0)
def test_what_is_surely_left_of_a_sum_without_one_part(pairs: list[tuple[int, int]], q: float) -> None:
    """Never more than what is left, whichever part belongs to which sum; all of it where that part is always 0."""
    sums, part, rest = Histogram(), Histogram(), Histogram()
    for left, taken in pairs:
        sums.add(left + taken)
        part.add(taken)
        rest.add(left)
    (least,) = sums.beyond(part, [q])
    greatest = max(map(sum, pairs))
    assert 0.0 <= least <= rest.quantile(q) + greatest / 64 + 1
    none = Histogram()
    none.add_counts({0: len(pairs)})
    assert rest.beyond(none, [q]) == [pytest.approx(rest.quantile(q))]
    assert rest.beyond(Histogram(), [q]) == [rest.quantile(q)]


def test_a_tail_that_the_part_does_not_have_is_surely_left() -> None:
    """Two of 100 are slow, and none of their senders was late by more than 3."""
    sums, part = Histogram(), Histogram()
    sums.add_counts({5: 98, 1_000: 2})
    part.add_counts({1: 90, 3: 10})
    assert sums.beyond(part, [0.5, 0.99]) == [pytest.approx(4, abs=1), pytest.approx(997, rel=0.01)]
    # Now two were late for as long, so they may be the slow ones.
    part.add_counts({1_000: 2})
    assert sums.beyond(part, [0.99]) == [pytest.approx(2, abs=2)]


def test_causes_are_the_contract_s_names() -> None:
    for (state, _event), why in CAUSES.items():
        assert why in (FAILURES if state in (CONNECTING, HANDSHAKE) else DEATHS)
    assert cause(CONNECTING, event_of(99)) == "no_ports"
    assert cause(CONNECTING, event_of(24)) == "no_descriptors"
    # A Unix socket's path that is gone, and a server that ended while a connect waited.
    assert [cause(CONNECTING, event_of(one)) for one in (2, 107)] == ["refused"] * 2
    assert cause(CONNECTING, event_of(12345)) == "other"


def test_processes_and_sources_follow_from_limits() -> None:
    assert workers_needed(100_000, 20_000, 2) == 6
    assert workers_needed(1_000_000, 20_000, 2) == 51
    assert workers_needed(2000, 1_000_000, 8) == 1
    assert workers_needed(100_000, 1_000_000, 4) == 4
    assert [workers_needed(100_000, 20_000, 2, batch) for batch in (10, 10_000, 50_000)] == [6, 10, 6]  # one batch of 10,000 fits, two do not
    assert sources_wanted(100_000, 1, 28_232) == 36
    sources = loopback_sources(400)
    assert len(set(sources)) == 400
    assert all(source.startswith("127.1.") for source in sources)
    assert loopback_sources(1) == ()


@given(st.integers(1, 500), st.integers(1, 30), st.integers(0, 6), st.floats(-1, 60))
def test_connections_due_by_an_instant(connections: int, batch: int, plateaus: int, t_s: float) -> None:
    ramp = Ramp(connections, batch, 0.05, plateaus, 2.0)
    assert ramp.opened_by(t_s) == sum(ramp.size(j) for j in range(ramp.batches) if ramp.due_s(j) < t_s)


def test_rests_take_no_longer_with_more_batches() -> None:
    ramp = Ramp(10_000_000, 1, 1.0, plateaus=100, plateau_s=3.0)
    rests = ramp.rests()
    # A rest starts when the last batch of its step is due, and an interval.
    assert rests[:2] == [(100_000, 100_003), (200_003, 200_006)]
    assert len(rests) == 100
    assert rests[-1][1] == ramp.end_s + 1.0
