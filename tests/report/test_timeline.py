"""The timeline: every panel with data, gaps left open, no spike lost, memory above the baseline."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import KINDS, with_deaths, with_gaps
from synthetic_run import FIXED, KERNEL_END, SERVER, a_run

from asyncli.core.histogram import Histogram
from asyncli.model.records import Gap
from asyncli.model.samples import Series
from asyncli.report.figures.timeline_and_deaths import is_cut, shown_lines, shown_range, timeline_panels
from asyncli.report.figures.timeline_data import MOST_BUCKETS, Line, Timeline, extremes, histogram_bins, stretches, timeline


def panel(of: Timeline, key: str) -> dict[str, Line]:
    return {line.label: line for one in of.panels if one.key == key for line in one.lines}


def test_every_panel_of_a_complete_run() -> None:
    asked = Series([0.0, 5.1, 35.1, 120.0], [0.0, 0.0, 30_000.0, 30_000.0])
    found = timeline(a_run(30_000), asked, "nginx")
    assert [one.key for one in found.panels] == ["connections", "memory", "heartbeats", "latency", "lateness"]
    assert set(panel(found, "connections")) == {"asked", "held", "server active"}
    assert set(panel(found, "memory")) == {"this host", "kernel", "nginx", "asyncli"}
    assert [one.name for one in found.phases] == ["baseline", "ramp", "hold", "drain", "residue"]


def test_memory_is_above_the_baseline() -> None:
    memory = panel(timeline(a_run(30_000, noise=0.0), server="nginx"), "memory")
    assert np.nanmax(memory["kernel"].values) == pytest.approx(2 * KERNEL_END * 30_000)
    assert np.nanmax(memory["nginx"].values) == pytest.approx(SERVER * 30_000)
    assert memory["nginx"].values[0] == 0.0, f"without the {FIXED['server']:,.0f} B that were there before"


def test_other_programs_do_not_flatten_the_server_s_memory() -> None:
    """Some that end in the hold free ten times what the connections cost; without them the axis has all lines."""
    run = a_run(30_000, noise=0.0)
    quiet = next(one for one in timeline(run, server="nginx").panels if one.key == "memory")
    assert not is_cut(quiet)
    for sample in run.samples:
        if sample.t_s > run.end_s / 2 and "host.used_bytes" in sample.values:
            sample.values["host.used_bytes"] = max(0.0, sample.values["host.used_bytes"] - 10 * SERVER * 30_000)
    busy = next(one for one in timeline(msgspec.structs.replace(run), server="nginx").panels if one.key == "memory")
    assert is_cut(busy)
    low, high = shown_range(busy)
    most = max(np.nanmax(line.values) for line in busy.lines if line.role != "total")
    assert most > 0.2 * (high - low)


def test_a_host_s_line_in_pieces_is_not_drawn() -> None:
    run = a_run(30_000, noise=0.0)
    for place, sample in enumerate(run.samples):
        if "host.used_bytes" in sample.values:
            sample.values["host.used_bytes"] += 1e3 * SERVER * 30_000 * (place % 3)
    wild = next(one for one in timeline(run, server="nginx").panels if one.key == "memory")
    assert {line.label for line in wild.lines} - {line.label for line in shown_lines(wild)} == {"this host"}
    assert not is_cut(wild)


def test_an_interruption_has_its_name_and_the_hold_its_longest_part() -> None:
    run = a_run(1_000, hold_s=60.0)
    hold = run.phases[2]
    run.gaps = [Gap(hold.start_s + 5.0, hold.start_s + 30.0)]
    figure = timeline_panels(timeline(run))
    names = {one.get_text(): one.get_position()[0] for ax in figure.axes for one in ax.texts}
    assert names["interrupted"] == pytest.approx(hold.start_s + 17.5)
    assert names["hold"] == pytest.approx(hold.start_s + 45.0)


def test_gap_is_left_open_unless_the_pace_is_slow() -> None:
    holes = timeline(with_gaps())
    assert np.isnan(panel(holes, "connections")["held"].values).sum() == 1
    assert np.isnan(panel(holes, "memory")["this host"].values).sum() == 1
    run = a_run(30_000, hold_s=300.0)
    for place, sample in enumerate(run.samples):
        if place % 25:
            sample.values.pop("server.pss_bytes", None)
            sample.values.pop("server.rss_bytes", None)
    assert not np.isnan(panel(timeline(run, server="nginx"), "memory")["nginx"].values).any()


def test_descriptor_listing_is_drawn_only_if_visible() -> None:
    assert "of /proc" in panel(timeline(KINDS["listed"]()), "memory")
    run = a_run(30_000)
    for sample in run.samples:
        sample.values["kernel.listing_bytes"] = 5e6
    assert "of /proc" not in panel(timeline(run), "memory")


def test_each_cause_has_a_panel_with_all_losses_and_each_error_status() -> None:
    run = with_deaths()
    run.ticks[7][1].by_status = {200: 5, 503: 2}
    bars = [(one.key, one.lines[0].label, sum(one.lines[0].values)) for one in timeline(run).panels if one.bars]
    assert [one[:2] for one in bars] == [
        ("lost", "closed_idle"), ("lost", "reset"), ("lost", "heartbeat_timeout"), ("failed", "refused"), ("failed", "connect_timeout"),
        ("error answers", "HTTP 503"),
    ]  # fmt: skip
    assert sum(total for kind, _, total in bars if kind == "lost") == sum(tick.lost for _, tick in run.ticks)


def test_running_run_has_an_end_time() -> None:
    found = timeline(KINDS["interrupted in the ramp"]())
    assert found.phases[-1].name == "ramp"
    assert found.phases[-1].end_s == found.end_s > 15.0
    assert timeline(KINDS["nothing"]()).panels == []


@given(st.lists(st.floats(0.001, 1e5), max_size=300), st.floats(0.5, 5000.0))
def test_stretches_cover_all_instants(instants: list[float], width: float) -> None:
    t_s = sorted(instants)
    found = stretches(t_s, width)
    assert [place for first, beyond in found for place in range(first, beyond)] == list(range(len(t_s)))
    for first, beyond in found:
        assert t_s[beyond - 1] - t_s[first] <= width * (1 + 1e-9)


def test_downsampling_keeps_spikes() -> None:
    lot = random.Random(1)
    values = [lot.gauss(0, 1) for _ in range(40_000)]
    values[23_456], values[31_000] = 99.0, -99.0
    t_s, kept = extremes(Series([float(place) for place in range(40_000)], values), 40_000 / MOST_BUCKETS)
    assert len(kept) <= 2 * MOST_BUCKETS + 3
    assert (max(kept), min(kept), kept[-1]) == (99.0, -99.0, values[-1])
    assert list(t_s) == sorted(t_s)
    short = extremes(Series([1.0, 2.0, 3.0], [5.0, 4.0, 6.0]), 2.0)
    assert [list(one) for one in short] == [[1.0, 2.0, 3.0], [5.0, 4.0, 6.0]]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200))
def test_histogram_bins_count_each_value_once(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    counts, edges = histogram_bins(histogram, 40)
    assert sum(counts) == len(values)
    assert len(counts) <= 41
    assert edges[0] <= min(values) <= max(values) <= edges[-1]
