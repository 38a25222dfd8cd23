"""What is drawn over time: every panel there is data for, gaps left open, memory above the baseline."""

from __future__ import annotations

import pytest
from made_runs import KINDS, with_deaths, with_gaps
from synthetic_run import FIXED, KERNEL_END, SERVER, a_run

from asyncli.report.figures.panels import Line, Timeline, timeline
from asyncli.samples import Series


def panel(of: Timeline, key: str) -> dict[str, Line]:
    return {line.label: line for one in of.panels if one.key == key for line in one.lines}


def test_every_panel_of_a_whole_run() -> None:
    asked = Series([0.0, 5.1, 35.1, 120.0], [0.0, 0.0, 30_000.0, 30_000.0])
    found = timeline(a_run(30_000), asked, "nginx")
    assert [one.key for one in found.panels] == ["connections", "memory", "heartbeats", "latency", "lateness"]
    assert set(panel(found, "connections")) == {"asked", "held", "server active"}
    assert set(panel(found, "memory")) == {"this host", "kernel", "nginx", "asyncli"}
    assert [one.name for one in found.phases] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert found.lanes == []


def test_memory_is_that_above_the_baseline() -> None:
    memory = panel(timeline(a_run(30_000, noise=0.0), server="nginx"), "memory")
    assert max(v for v in memory["kernel"].values if v is not None) == pytest.approx(2 * KERNEL_END * 30_000)
    assert max(v for v in memory["nginx"].values if v is not None) == pytest.approx(SERVER * 30_000)
    assert memory["nginx"].values[0] == 0.0, f"without the {FIXED['server']:,.0f} B that were there before"


def test_rss_stands_in_for_pss() -> None:
    run = a_run(30_000)
    for sample in run.samples:
        sample.values.pop("server.pss_bytes", None)
    assert "nginx" in panel(timeline(run, server="nginx"), "memory")


def test_a_gap_is_left_open_and_a_slow_pace_is_none() -> None:
    holes = timeline(with_gaps())
    assert panel(holes, "connections")["held"].values.count(None) == 1
    assert panel(holes, "memory")["this host"].values.count(None) == 1
    run = a_run(30_000, hold_s=300.0)
    for place, sample in enumerate(run.samples):
        if place % 25:
            sample.values.pop("server.pss_bytes", None)
            sample.values.pop("server.rss_bytes", None)
    slow = timeline(run, server="nginx")
    assert None not in panel(slow, "memory")["nginx"].values


def test_another_programs_inodes_are_drawn_only_where_there_are_some() -> None:
    assert "of /proc" in panel(timeline(KINDS["listed"]()), "memory")
    run = a_run(30_000)
    for sample in run.samples:
        sample.values["kernel.listing_bytes"] = 5e6
    assert "of /proc" not in panel(timeline(run), "memory")


def test_a_lane_for_each_cause_and_nothing_lost_on_the_way() -> None:
    run = with_deaths()
    lanes = timeline(run).lanes
    assert [(one.kind, one.cause) for one in lanes] == [
        ("lost", "closed_idle"), ("lost", "reset"), ("lost", "heartbeat_timeout"), ("failed", "refused"), ("failed", "connect_timeout"),
    ]  # fmt: skip
    assert sum(one.total for one in lanes if one.kind == "lost") == sum(tick.lost for _, tick in run.ticks)
    assert all(sum(one.counts) == one.total for one in lanes)


def test_a_run_that_goes_on_has_an_end_all_the_same() -> None:
    found = timeline(KINDS["interrupted in the ramp"]())
    assert found.phases[-1].name == "ramp"
    assert found.phases[-1].end_s == found.end_s > 15.0
    assert timeline(KINDS["nothing"]()).panels == []
