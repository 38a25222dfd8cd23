"""A run in a few hundred stretches: whatever they are joined to, sums, extremes and quantiles are those of all seconds."""

from __future__ import annotations

import itertools
import random
from typing import cast

import msgspec
import pytest

from asyncli.core.histogram import Histogram, summed
from asyncli.live.history import History
from asyncli.live.panels import PANELS, metrics_of_panels
from asyncli.model import metrics
from asyncli.model.records import Deaths, Sample, Tick
from asyncli.store.lazy_ticks import StoredHistogram

KEYS = [line.key for panel in PANELS for line in panel.lines]


def value_of(row: tuple[float, list[float | None]], key: str) -> float | None:
    return row[1][KEYS.index(key)]


def ticks(seconds: int, seed: int = 7) -> list[Tick]:
    lot = random.Random(seed)
    every = []
    for second in range(1, seconds + 1):
        tick = Tick(second=second, held=lot.randrange(900, 1000), sent=lot.randrange(50))
        for _ in range(20):
            tick.latency_us.add(lot.lognormvariate(7, 1.5))
        if lot.random() < 0.01:
            tick.deaths["reset"] = Deaths(count=lot.randrange(1, 9))
        every.append(tick)
    return every


def folded(every: list[Tick], **how: int) -> History:
    history = History(most=how.get("most", 60), lasts_s=how.get("lasts_s", 0))
    for tick in every:
        history.tick(tick.second - 0.4, tick)
        history.sample(Sample(tick.second - 0.3, {metrics.SERVER_CPU_S: 0.25 * tick.second}))
    return history


@pytest.mark.parametrize("lasts_s", [0, 5000])
def test_stretches_that_were_joined_are_as_if_they_had_been_one(lasts_s: int) -> None:
    every = ticks(5000)
    history = folded(every, lasts_s=lasts_s)
    assert len(history) <= 60
    assert history.width_s == 120
    rows = list(history.rows())
    for first, second in itertools.batched(rows, 2) if hasattr(itertools, "batched") else zip(rows[::2], rows[1::2], strict=True):
        begin_s = first[0] // history.width_s * history.width_s
        within = [tick for tick in every if begin_s <= tick.second - 0.4 < begin_s + history.width_s]
        helds = [value_of(first, "held"), value_of(second, "held")]
        assert sorted(filter(None, helds)) == [min(tick.held for tick in within), max(tick.held for tick in within)]
        # The extremes come in their order.
        least_at = min(within, key=lambda tick: tick.held).second
        most_at = max(within, key=lambda tick: tick.held).second
        if len({tick.held for tick in within}) == len(within):
            assert (helds[0] == min(filter(None, helds))) == (least_at < most_at)
        rate = value_of(first, "sent")
        assert rate is not None
        assert rate == pytest.approx(sum(tick.sent for tick in within) / len(within), rel=0.02)
        p99_us = summed([tick.latency_us for tick in within]).quantile(0.99)
        assert p99_us is not None
        assert value_of(first, "latency_p99") == pytest.approx(p99_us / 1000)
        assert value_of(second, "server_cpu") == pytest.approx(0.25)
    lost = sum(counts["lost"]["reset"] for _, counts in history.bars() if "lost" in counts)
    assert lost == sum(tick.lost for tick in every) > 50


def test_one_second_of_loss_in_twelve_hours_shows() -> None:
    history = History(most=600)
    for second in range(1, 43_201, 1):
        tick = Tick(second=second, held=1000)
        if second == 20_000:
            tick.held = 400
            tick.deaths["reset"] = Deaths(count=600)
        history.tick(float(second), tick)
    assert 300 < len(history) <= 600
    ((t_s, counts),) = history.bars()
    assert counts == {"lost": {"reset": 600}}
    assert abs(t_s - 20_000) <= history.width_s
    assert min(value_of(row, "held") or 1000 for row in history.rows()) == 400


def test_the_last_minutes_forget_what_is_older_and_keep_each_second() -> None:
    history = History(most=60, forgets=True)
    for tick in ticks(300):
        history.tick(float(tick.second), tick)
    rows = list(history.rows())
    assert [row[0] for row in rows] == [float(second) for second in range(241, 301)]
    assert [value_of(row, "held") for row in rows] == [tick.held for tick in ticks(300)[240:]]


def test_what_is_forgotten_is_never_unpacked() -> None:
    """Half of the time until the page of a night listened went into seconds that it did not keep."""
    history = History(most=60, forgets=True)
    for tick in ticks(300):
        packed = msgspec.msgpack.encode(tick.latency_us) if tick.second > 240 else b"damaged"
        tick.latency_us = cast(Histogram, StoredHistogram(packed))
        history.tick(float(tick.second), tick)
    history.settle()
    found = [value_of(row, "latency_p99") for row in history.rows()]
    expected = []
    for tick in ticks(300)[240:]:
        p99_us = tick.latency_us.quantile(0.99)
        assert p99_us is not None
        expected.append(p99_us / 1000)
    assert found == expected


def test_two_ticks_of_one_second_are_added_up_and_stay_as_they_are() -> None:
    for forgets in (False, True):
        history = History(most=60, forgets=forgets)
        first, second, third = ticks(3)
        for t_s, tick in ((1.1, first), (1.9, second)):
            history.tick(t_s, tick)
            assert value_of(next(history.rows()), "latency_p99") is not None
        history.tick(2.5, third)
        both = summed([first.latency_us, second.latency_us])
        p99_us = both.quantile(0.99)
        assert p99_us is not None
        (of_both, of_third) = list(history.rows())
        assert value_of(of_both, "latency_p99") == p99_us / 1000
        third_us = third.latency_us.quantile(0.99)
        assert third_us is not None
        assert value_of(of_third, "latency_p99") == third_us / 1000
        assert [tick.latency_us for tick in (first, second, third)] == [tick.latency_us for tick in ticks(3)]
        both.merge(third.latency_us)
        assert history.times("latency_p50") == both


def test_a_counter_that_restarts_and_a_metric_that_is_missing_are_no_rate() -> None:
    history = History()
    for second, cpu_s in enumerate([10.0, 11.0, 0.5, 1.0]):
        history.sample(Sample(second + 0.5, {metrics.SERVER_CPU_S: cpu_s}))
    assert [value_of(row, "server_cpu") for row in history.rows()] == [None, 1.0, None, 0.5]
    assert {value_of(row, "latency_p50") for row in history.rows()} == {None}


def test_news_are_the_stretches_that_end_later() -> None:
    history = folded(ticks(50))
    since_s = history.open_from_s
    assert [row[0] for row in history.rows(since_s)] == [49.0]
    history.tick(50.2, Tick(second=51, held=7))
    (open_row, *others) = list(history.rows(since_s))
    assert open_row[0] == 49.0
    assert [value_of(row, "held") for row in others] == [7]


@pytest.mark.parametrize("seconds", [50, 130, 1000])
def test_no_row_is_later_than_the_last_record_and_what_is_sent_again_names_its_stretch(seconds: int) -> None:
    history = folded(ticks(seconds))
    last_s = seconds - 0.3
    rows = list(history.rows())
    bars = list(history.bars())
    assert rows[-1][0] <= last_s
    assert all(bar[0] <= last_s for bar in bars)
    since_s = history.open_from_s
    begins_s = history.first_since(since_s)
    assert begins_s == since_s
    # It may come again at other instants, which are all within.
    assert all(begins_s <= row[0] for row in history.rows(since_s))


def test_all_times_are_those_of_the_ticks() -> None:
    every = ticks(900)
    whole: Histogram = folded(every).times("latency_p999")
    assert whole == summed([tick.latency_us for tick in every])


def test_no_line_of_the_host_sets_the_axis_of_the_servers_memory() -> None:
    (panel,) = [panel for panel in PANELS if any(line.key == "server" for line in panel.lines)]
    assert [line.key for line in panel.lines] == ["server", "kernel", "generator"]
    assert any(line.key == "host" for panel in PANELS for line in panel.lines)


def test_pages_of_files_that_another_program_shares_are_no_memory_that_came() -> None:
    history = History()
    history.sample(Sample(0.5, {metrics.SERVER_PSS_BYTES: 9e6, metrics.SERVER_ANON_SHMEM_BYTES: 7e6}))
    history.sample(Sample(1.5, {metrics.SERVER_PSS_BYTES: 8e6, metrics.SERVER_ANON_SHMEM_BYTES: 7e6}))
    assert [value_of(row, "server") for row in history.rows()] == [7e6, 7e6]


def test_the_heap_shows_what_is_used_and_what_is_alive() -> None:
    history = History()
    history.sample(Sample(0.5, {metrics.RUNTIME_HEAP_BYTES: 9e6, metrics.RUNTIME_LIVE_BYTES: 5e6, metrics.RUNTIME_OUTSIDE_BYTES: 1e6}))
    history.sample(Sample(1.5, {metrics.RUNTIME_HEAP_BYTES: 6e6, metrics.RUNTIME_FORCED_BYTES: 7e6}))
    rows = list(history.rows())
    assert [value_of(row, "heap_used") for row in rows] == [9e6, 6e6]
    assert value_of(rows[0], "heap_alive") == 5e6
    assert value_of(rows[0], "heap_outside") == 1e6
    assert value_of(rows[1], "heap_forced") == 7e6


def test_the_metrics_of_the_charts_are_known() -> None:
    assert set(metrics_of_panels()) <= set(metrics.METRICS)
