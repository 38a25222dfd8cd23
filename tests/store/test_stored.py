"""Late decoding gives the same as immediate: packed histograms, samples as columns."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import new_run

from asyncli.core import histogram as histogram_module
from asyncli.core.adding import added_up
from asyncli.core.histogram import Histogram, RangeSums, summed
from asyncli.model.records import Deaths, Sample, Tick
from asyncli.model.samples import Samples, Series, series, within
from asyncli.store import lazy_ticks
from asyncli.store.lazy_ticks import StoredHistogram, decode_tick
from asyncli.store.reader import read_run


def of(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def packed(histogram: Histogram) -> StoredHistogram:
    return StoredHistogram(msgspec.msgpack.encode(histogram))


values = st.lists(st.integers(0, 10_000_000), max_size=30)


@given(values, values)
def test_a_packed_histogram_reads_like_a_decoded_one(some: list[int], others: list[int]) -> None:
    one = of(*some)
    stored = packed(one)
    assert stored == one
    assert one == stored
    assert stored == packed(one)
    assert (stored != of(1, 2, 3, 10**8)) is True
    assert (stored.counts, stored.least, stored.greatest, stored.count) == (one.counts, one.least, one.greatest, one.count)
    assert bool(stored) == bool(one)
    shares = (0.0, 0.5, 0.9, 0.999, 1.0)
    assert stored.quantiles(shares) == [stored.quantile(q) for q in shares] == [one.quantile(q) for q in shares]
    assert list(stored.items()) == list(one.items())
    into, same = of(*others), of(*others)
    into.merge(stored)  # type: ignore[arg-type]
    same.merge(one)
    assert into == same
    assert packed(one) == one  # and stays packed


def test_a_tick_is_decoded_as_it_was_packed() -> None:
    tick = Tick(second=7, held=9, deaths={"reset": Deaths(2, of(30, 31), of(1, 1), of(5, 6))}, latency_us=of(100, 900), by_status={200: 4})
    opened = decode_tick(msgspec.msgpack.encode(tick))
    assert opened == tick
    assert type(opened) is Tick
    assert isinstance(opened.connect_us, Histogram)  # empty ones are not worth packing
    # A field that an older asyncli's file lacks has its default.
    document = msgspec.to_builtins(tick)
    del document["longest_turn_s"], document["lateness_us"]
    assert decode_tick(msgspec.msgpack.encode(document)) == tick


def test_summing_by_arrays_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    chance = random.Random(1)
    many = [of(*(chance.lognormvariate(6, 2) for _ in range(200))) for _ in range(60)]
    by_arrays = summed(many)
    monkeypatch.setattr(histogram_module, "_WORTH_NUMPY", math.inf)
    assert by_arrays == summed(many)
    assert all(type(key) is int and type(count) is int for key, count in by_arrays.counts.items())
    monkeypatch.undo()
    # In portions as well.
    monkeypatch.setattr(histogram_module, "_AT_ONCE", 500)
    assert by_arrays == summed(many)


def test_the_sum_of_a_range_is_that_of_its_histograms() -> None:
    chance = random.Random(2)
    many: list[Any] = [packed(of(*(chance.lognormvariate(6, 2) for _ in range(chance.randrange(4))))) for _ in range(150)]
    sums = RangeSums(many)
    # The second time from sums that were kept.
    for _ in range(2):
        for first, beyond in ((0, 150), (0, 0), (1, 2), (31, 33), (32, 64), (5, 149), (64, 150), (149, 150)):
            assert sums.between(first, beyond) == summed(many[first:beyond])
    assert [sums.has_any(at) for at in range(150)] == [bool(histogram.count) for histogram in many]


def test_least_and_greatest_are_known_once_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    histogram = packed(of(100, 900))
    assert (histogram.least, histogram.greatest) == (100, 900)
    other = packed(of(7))
    assert other.count == 1
    monkeypatch.setattr(lazy_ticks, "_decode_histogram", None)
    assert (histogram.least, histogram.greatest) == (100, 900)


def test_the_sum_of_counts_is_one_merge_after_another() -> None:
    ticks = [
        Tick(
            opened=second, failures={"refused": 1} if second % 3 else {}, by_status={200: second}, latency_us=of(second, 10 * second),
            deaths={"reset": Deaths(1, of(second), of(1), of(2))} if second % 2 else {"generator_lost": Deaths(0)},
            longest_turn_s=1 / (second + 1), dropped={0: 1} if second == 4 else {},
        )
        for second in range(9)
    ]  # fmt: skip
    before = copy.deepcopy(ticks)
    whole = Tick()
    for tick in ticks:
        whole.merge_counts(tick)
    assert added_up(Tick(), *ticks) == whole
    assert ticks == before
    assert added_up(Tick()) == Tick()


ROWS = [
    Sample(0.5, {"a": 1.0, "b": 2.0}), Sample(1.5, {"a": 3.0}), Sample(2.5, {"b": 4.0, "host.x": 5.0}), Sample(4.0, {"a": 6.0, "b": 7.0}),
]  # fmt: skip
NAMES = ("a", "b", "host.x", "none")


def columns(rows: list[Sample]) -> Samples:
    found: dict[str, tuple[list[int], list[float]]] = {}
    for place, row in enumerate(rows):
        for name, value in row.values.items():
            places, column = found.setdefault(name, ([], []))
            places.append(place)
            column.append(value)
    return Samples([row.t_s for row in rows], found)


def test_samples_behave_like_a_list() -> None:
    for samples in (columns(ROWS), columns(ROWS)):
        assert (len(samples), samples[0], samples[-1], samples[2]) == (4, ROWS[0], ROWS[-1], ROWS[2])
        assert samples[-1:] == ROWS[-1:]
        assert samples[:0] == []
        assert samples[1:] == ROWS[1:]
        assert list(samples) == ROWS
        assert samples == ROWS
        assert samples != ROWS[:3]
        assert samples[3] == ROWS[3]  # also after all were built
        with pytest.raises(IndexError):
            samples[4]
    assert columns([]) == []
    assert not columns([])


def test_one_metric_over_time() -> None:
    for name in NAMES:
        assert series(columns(ROWS), name) == series(ROWS, name)
    assert series(columns(ROWS), "a") == Series([0.5, 1.5, 4.0], [1.0, 3.0, 6.0])
    samples = columns(ROWS)
    series(samples, "b").values.clear()
    assert len(series(samples, "b")) == 3  # the caller owns the returned list


@given(st.lists(st.floats(-1, 5), min_size=2, max_size=4).map(sorted))
def test_a_part_of_the_samples(ends: list[float]) -> None:
    spans = [(ends[0], ends[1])] + ([(ends[2], ends[3])] if len(ends) == 4 and ends[1] < ends[2] else [])
    part, same = within(columns(ROWS), *spans), within(ROWS, *spans)
    assert list(part) == list(same)
    for name in NAMES:
        assert series(part, name) == series(same, name)


def test_a_run_file_gives_samples_as_columns(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run.db")
    for row in ROWS:
        writer.sample(row)
    writer.close(True)
    samples = read_run(tmp_path / "run.db").samples
    assert isinstance(samples, Samples)
    assert samples == ROWS
    assert samples.metrics == ("a", "b", "host.x")
