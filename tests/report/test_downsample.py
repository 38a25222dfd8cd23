"""Fewer points, by methods that keep what matters: spikes, sums, gaps, and the quantiles of all records."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.core.histogram import Histogram
from asyncli.report.figures.downsample import (
    MOST_BUCKETS,
    Buckets,
    broken,
    buckets,
    extremes,
    merged,
    rates,
    rebinned,
    sums,
    thinned,
)

rising = st.lists(st.floats(0.01, 30.0), min_size=1, max_size=300).map(
    lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))]
)


@pytest.mark.parametrize(
    ("span_s", "width_s"),
    [
        (0.0, 1.0),
        (100.0, 1.0),
        (480.0, 1.0),
        (481.0, 2.0),
        (700.0, 2.0),
        (3600.0, 10.0),
        (43_200.0, 120.0),
        (7 * 86_400.0, 1800.0),
        (90 * 86_400.0, 18_000.0),
    ],
)
def test_buckets_have_a_width_that_people_read(span_s: float, width_s: float) -> None:
    found = buckets(5.0, 5.0 + span_s)
    assert found.width_s == width_s
    assert 1 <= found.count <= MOST_BUCKETS
    assert found.index(5.0) == 0
    assert found.index(5.0 + span_s) == found.count - 1
    assert found.index(-99.0) == 0
    assert found.index(1e9) == found.count - 1


def test_the_method_is_named() -> None:
    assert buckets(0.0, 60.0).method == "Each point is one second."
    said = buckets(0.0, 43_200.0).method
    assert said.startswith("Drawn in stretches of 2 min:")
    for word in ("least and the greatest", "rates are means", "all its records together"):
        assert word in said


@given(rising, st.data())
def test_extremes_keep_the_least_the_greatest_and_the_last_of_every_bucket(t_s: list[float], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats(-1e9, 1e9), min_size=len(t_s), max_size=len(t_s)))
    into = buckets(0.0, t_s[-1], most=7)
    kept_t, kept = extremes(t_s, values, into)
    assert kept_t == sorted(kept_t)
    assert len(kept) <= 2 * into.count + 1
    assert set(zip(kept_t, kept, strict=True)) <= set(zip(t_s, values, strict=True))
    assert (kept_t[-1], kept[-1]) == (t_s[-1], values[-1])
    for bucket in range(into.count):
        there = [value for t, value in zip(t_s, values, strict=True) if into.index(t) == bucket]
        here = [value for t, value in zip(kept_t, kept, strict=True) if into.index(t) == bucket]
        if there:
            assert (min(here), max(here)) == (min(there), max(there))


def test_a_short_series_comes_back_as_it_is() -> None:
    t_s, values = [0.5, 1.5, 2.5, 3.5], [4.0, -1.0, 7.0, 7.0]
    assert extremes(t_s, values, buckets(0.0, 4.0)) == (t_s, values)


def test_rates_are_what_was_counted_by_the_time_it_took() -> None:
    t_s = [float(second) for second in range(1, 101)]
    middles, found = rates(t_s, [50] * 100, Buckets(0.0, 10.0, 10))
    assert found == [50.0] * 10
    assert middles == [5.0 + 10 * place for place in range(10)]
    # A tick that stands for two seconds, and one after a gap, which stands for its own second.
    assert rates([1.0, 3.0], [10, 40], Buckets(0.0, 10.0, 1))[1] == [pytest.approx(50 / 3)]
    assert rates([1.0, 60.0], [10, 10], Buckets(0.0, 100.0, 1))[1] == [10.0]


def test_quantiles_are_of_all_the_records_of_a_bucket() -> None:
    slow, fast = Histogram(), Histogram()
    for _ in range(99):
        fast.add(10)
    slow.add(1000)
    middles, found = merged([1.0, 2.0, 8.0], [fast, slow, Histogram()], Buckets(0.0, 5.0, 2))
    assert middles == [2.5]
    assert [one.count for one in found] == [100]
    # The mean of the two medians would be 505.
    assert found[0].quantile(0.5) == 10
    assert fast.count == 99, "what came in is left as it was"


def test_sums_lose_nothing_and_show_nothing_where_nothing_was() -> None:
    middles, found = sums([1.0, 2.0, 12.0, 25.0], [3, 4, 0, 5], Buckets(0.0, 10.0, 3))
    assert (middles, found) == ([5.0, 25.0], [7, 5])


@given(rising)
def test_a_gap_is_left_open(t_s: list[float]) -> None:
    opened_t, opened = broken(t_s, t_s, 10.0)
    assert [value for value in opened if value is not None] == t_s
    assert opened.count(None) == sum(b - a > 10.0 for a, b in pairwise(t_s))
    assert opened_t == sorted(opened_t)


@given(st.integers(0, 5000), st.integers(1, 50))
def test_thinning_keeps_at_most_so_many_and_the_first(length: int, most: int) -> None:
    places = thinned(length, most)
    assert len(places) <= most
    assert not length or places[0] == 0


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200), st.integers(1, 60))
def test_bins_hold_every_record_where_it_lies(values: list[int], most: int) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    edges, counts = rebinned(histogram, most)
    assert len(counts) <= most
    assert len(edges) == len(counts) + 1
    assert math.isclose(sum(counts), len(values))
    assert edges[0] == min(values)
    assert edges[-1] > max(values)


def test_bins_of_nothing() -> None:
    assert rebinned(Histogram(), 10) == ([], [])
