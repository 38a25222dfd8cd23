"""What follows a stall, a lost worker or a server's restart: nothing is fired at once, and every count stays exact."""

from __future__ import annotations

import math
import socket
from collections import Counter
from typing import Any

import msgspec
import pytest

from asyncli.core.histogram import bounds
from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.sim import SimNet, SimServer
from asyncli.engine.spread import Destination, Spread
from asyncli.engine.table import Table
from asyncli.plan import Layer, build_plan
from asyncli.records import Tick


def shard(workers: int = 1, **values: Any) -> Shard:
    plan = build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1:80/"], "seed": 1, **values})])
    return build_shard(plan, Spread((Destination(socket.AF_INET, "127.0.0.1", 80),), (), workers, True, 28_232))


class Net(SimNet):
    """Notes when each heartbeat went out and each connect began."""

    def __init__(self, server: SimServer, start: float = 0.0) -> None:
        super().__init__(server, start)
        self.beats: list[float] = []
        self.connects: list[float] = []

    def send(self, handle: int, data: bytes) -> int:
        taken = super().send(handle, data)
        if data:
            self.beats.append(self.now)
        return taken

    def connect(self, destination: int, source: int) -> int:
        self.connects.append(self.now)
        return super().connect(destination, source)


def drive(table: Table, net: SimNet, until: float, *, stall: tuple[float, float] = (math.inf, math.inf)) -> Tick:
    """Call the table whenever something happens until then, but not within ``stall``; all ticks merged, gauges of the last."""
    total, second, upcoming = Tick(), math.floor(net.now), table.turn()
    while net.now < until:
        instants = [second + 1.0, until, *(one for one in (upcoming, net.next_event) if one is not None)]
        net.advance(max(net.now, min(instants)))
        if stall[0] <= net.now < stall[1]:
            net.advance(stall[1])
        upcoming = table.turn()
        if net.now >= second + 1.0:
            second = math.floor(net.now)
            total.merge_counts(table.take_tick(second))
    last = table.take_tick(second + 1)
    total.merge_counts(last)
    total.merge_gauges(last)
    return total


def started(net: SimNet, *, workers: int = 1, worker: int = 0, replaces: bool = False, t0: float = 0.0, **values: Any) -> Table:
    table = Table(shard(workers, **values), worker, net, replaces=replaces)
    table.start(t0)
    return table


def dispersion(instants: list[float], start: float, end: float, width_s: float = 0.010) -> float:
    """Variance over mean of the counts in bins of ``width_s``: 1 where each falls anywhere, independent of the others."""
    bins = Counter(int((at - start) / width_s) for at in instants if start <= at < end)
    many = int((end - start) / width_s)
    mean = sum(bins.values()) / many
    return (sum((bins[place] - mean) ** 2 for place in range(many)) / (many - 1)) / mean


def test_heartbeats_spread_as_the_uniform_jitter_does() -> None:
    net = Net(SimServer(connect_s=0.0))
    table = started(net, connections=5_000, keepalive=10, batch=50)
    drive(table, net, 60.0)
    # By 30 s each has slept some nine times, so where its beats fall is forgotten. 3,000 bins: the index of dispersion of
    # independent beats is 1 with a standard deviation of sqrt(2 / 2,999), 0.026 (chi-square); four of them is no accident.
    assert dispersion(net.beats, 30.0, 60.0) == pytest.approx(1, abs=4 * math.sqrt(2 / 2_999))
    # A mean sleep of 3 s: 5,000 / 3 a second, each rate within five deviations.
    assert sum(30.0 <= at < 60.0 for at in net.beats) == pytest.approx(50_000, rel=0.02)


def test_what_a_stall_missed_is_spread_and_counted_as_late() -> None:
    net = Net(SimServer(connect_s=0.0))
    table = started(net, connections=5_000, keepalive=10, batch=50)
    before = drive(table, net, 40.0)
    during = drive(table, net, 60.0, stall=(40.5, 42.5))
    assert before.lateness_us.greatest == 0
    # At most twice the pace for as long as the stall was (who missed a beat comes later with the next one, too), and no burst.
    steady = 5_000 / 3
    after = [at for at in net.beats if at >= 42.5]
    assert 1.4 * 2 * steady < len([at for at in after if at < 44.5]) < 2 * 2 * steady
    assert dispersion(after, 42.5, 44.5) == pytest.approx(1, abs=4 * math.sqrt(2 / 199))
    assert max(Counter(int(at * 100) for at in after).values()) < 4 * steady / 100
    # Those that were missed went out as much later as the stall was long, and are counted by the instant that they were due.
    late = {bounds(bucket): count for bucket, count in during.lateness_us.counts.items() if bounds(bucket)[1] > 1_000}
    assert sum(late.values()) == pytest.approx(2 * steady, rel=0.1)
    assert all(low < 2.01e6 and high > 1.99e6 for low, high in late)
    assert during.latency_us.greatest == pytest.approx(2e6, rel=0.01)
    assert (during.lost, during.held, before.opened + during.opened) == (0, 5_000, 5_000)
    assert during.longest_turn_s == 0.0  # the driver of the real worker says how long it stood still


def test_a_worker_that_is_always_late_sends_all_the_same() -> None:
    net = Net(SimServer(connect_s=0.0))
    table = started(net, connections=200, keepalive=10, batch=50)
    while net.now < 120.0:
        table.turn()
        net.advance(net.now + 0.5)
    assert table.take_tick(120).answered > 200 * 10


def test_a_stall_beyond_the_timeout_blames_nobody_for_answers_that_were_there() -> None:
    net = Net(SimServer(connect_s=0.0, latency_s=0.2))
    table = started(net, connections=4_000, keepalive=4, batch=100, timeout=2)
    drive(table, net, 20.0)
    # Some 500 heartbeats wait for their answers at any time, more than a turn may take.
    during = drive(table, net, 60.0, stall=(21.0, 29.0))
    assert (during.lost, during.beats_failed, during.held) == (0, 0, 4_000)


def test_a_beat_that_was_missed_and_whose_connection_ends_meanwhile_leaves_nothing() -> None:
    net = Net(SimServer(connect_s=0.0, resets_all_at_s=23.0))
    table = started(net, connections=2_000, keepalive=10, batch=50)
    total = drive(table, net, 21.0)
    total.merge_counts(after := drive(table, net, 60.0, stall=(21.0, 22.9)))
    assert total.lost == 2_000
    assert after.held == total.opened - total.lost == 2_000
    assert total.sent == total.answered + total.beats_failed + after.awaiting


def per_second(instants: list[float], start: float) -> list[int]:
    counts = Counter(int(at - start) for at in instants if at >= start)
    return [counts[place] for place in range(max(counts, default=-1) + 1)]


def test_all_that_is_lost_at_once_is_opened_again_no_faster_than_the_ramp_opened_it() -> None:
    net = Net(SimServer(resets_all_at_s=30.0))
    table = started(net, connections=4_000, keepalive=60, batch=5)
    total = drive(table, net, 60.0)
    assert (total.opened, total.reopened, total.lost, total.held) == (8_000, 4_000, 4_000, 4_000)
    again = per_second([at for at in net.connects if at >= 30.0], 30.0)
    # 500 a second, as in the ramp; the first of them after half of the backoff.
    assert max(again) <= 510
    assert sum(again[:9]) == 4_000


def test_a_worker_in_the_place_of_a_lost_one_opens_its_connections_again() -> None:
    """Lost at 30 s, when all of its batches were open, or at 3 s, when half of them were."""
    for at, again in ((30.0, 1_000), (3.0, 600)):
        net = Net(SimServer(connect_s=0.0), at)
        table = started(net, workers=2, worker=1, replaces=True, connections=2_000, keepalive=10, batch=5, interval="12.5ms")
        total = drive(table, net, at + 30.0)
        # The ramp takes 5 s: 400 a second, of which it has half; what came due since then it catches up with at twice that.
        assert (total.opened, total.held, total.lost) == (1_000, 1_000, 0)
        assert total.reopened == pytest.approx(again, abs=5)
        assert max(per_second(net.connects, at)) <= 410
        assert max(per_second(net.connects, at)[: again // 200]) <= 210
        # A batch that was due before its time is none that was late.
        assert total.ramp_lateness_us.count == (1_000 - total.reopened) / 5
        assert total.ramped


def test_a_run_that_is_resumed_opens_all_again() -> None:
    net = Net(SimServer(connect_s=0.0))
    table = Table(msgspec.structs.replace(shard(connections=500, keepalive=10), again=True), 0, net)
    table.start(0.0)
    total = drive(table, net, 20.0)
    assert (total.opened, total.reopened, total.ramp_lateness_us.count) == (500, 500, 0)
    assert total.ramped
