"""The connection table on the simulated network: exact counts, every cause of a loss, hours in seconds."""

from __future__ import annotations

import errno
import itertools
import math
import socket
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.core.heartbeat import sleep_s
from asyncli.core.histogram import bounds
from asyncli.engine.held_table import MOST_PENDING, ConnectionTable
from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.sim import SimNet, SimServer, simulate
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import ProtocolCounts, Tick


def shard(workers: int = 1, **values: Any) -> Shard:
    plan = build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1:80/"], "seed": 1, **values})])
    return build_shard(plan, Spread((Destination(socket.AF_INET, "127.0.0.1", 80),), (), workers, True, 28_232))


def run(orders: Shard, net: SimNet, hold_s: float) -> tuple[Tick, Tick]:
    """All ticks merged, and the last one for its gauges."""
    total, last = Tick(), Tick()
    for tick in simulate(orders, net.server, hold_s, net=net):
        total.merge_counts(tick)
        last = tick
    return total, last


def soak(server: SimServer, hold_s: float, **values: Any) -> tuple[Tick, Tick, SimNet]:
    """The same on a plain network, which is returned too."""
    net = SimNet(server)
    return *run(shard(**values), net, hold_s), net


@pytest.mark.parametrize(("host", "says"), [("[fe80::1%25lo]:81", b"[fe80::1]:81"), ("[::1]", b"[::1]"), ("a.b:80", b"a.b")])
def test_the_host_header_has_no_zone(host: str, says: bytes) -> None:
    plan = build_plan([Layer("--{key}", {"urls": [f"http://{host}/"]})])
    (request,) = build_shard(plan, Spread((Destination(socket.AF_INET, "127.0.0.1", 80),), (), 1, True, 28_232)).settings.requests
    assert b"\r\nHost: " + says + b"\r\n" in request


def deaths(tick: Tick) -> dict[str, int]:
    return {cause: deaths.count for cause, deaths in tick.deaths.items()}


def test_hours_of_two_hundred_connections_are_exact() -> None:
    total, last, net = soak(SimServer(), 4 * 3600.0, connections=200, keepalive=3600)
    assert (total.started, total.opened, net.accepted) == (200, 200, 200)
    assert (last.held_at_drain, last.held, total.lost) == (200, 0, 0)
    assert total.sent == total.answered == net.requests == sum(total.by_status.values())
    assert total.failures == {}
    assert total.lateness_us.greatest == 0
    # The schedule is a pure function of the seed: count the heartbeats due before the drain.
    expected, end = 0, 19 * 0.01 + 4 * 3600.0
    for connection in range(200):
        at, beat = connection // 10 * 0.01, 0
        while at < end:
            expected += 1
            beat += 1
            # Established on EPOLLOUT after the simulated connect, answered after the simulated latency, both to the microsecond.
            at += (0.000_1 if beat == 1 else 0.0) + 0.000_2 + sleep_s(1, connection, beat, 3600.0)
    assert abs(total.sent - expected) <= 2  # float sums may differ at the very end of the hold


@pytest.mark.parametrize(
    ("server", "values", "cause"),
    [
        (SimServer(idle_timeout_s=75.0), {"keepalive": 600}, "closed_idle"),
        (SimServer(most_requests=3), {"keepalive": 60}, "closed_announced"),
        (SimServer(longest_age_s=300.0), {"keepalive": 60}, "closed_announced"),
        (SimServer(reset_share=0.05), {"keepalive": 60}, "reset"),
        (SimServer(resets_all_at_s=100.0), {"keepalive": 60}, "reset"),
        (SimServer(drop_share=0.05), {"keepalive": 60}, "heartbeat_timeout"),
        (SimServer(cut_share=0.05), {"keepalive": 60}, "closed_awaiting"),
    ],
)
def test_each_fault_has_its_cause_and_every_loss_is_replaced(server: SimServer, values: dict[str, Any], cause: str) -> None:
    total, last, net = soak(server, 450.0, connections=200, **values)
    assert list(deaths(total)) == [cause]
    assert total.opened == net.accepted == 200 + total.reopened
    # Lost connections are held again, except those in backoff at the end, and those unanswered in the drain.
    held = last.held_at_drain - total.unanswered
    assert held == total.opened - total.lost
    assert total.lost - total.reopened == 200 - held
    assert total.sent == total.answered + total.beats_failed
    fails = cause in ("closed_awaiting", "heartbeat_timeout") or server.reset_share
    assert total.beats_failed == (total.lost if fails else 0)
    assert not server.drop_share or total.lost == net.swallowed
    assert total.latency_us.count == total.answered + total.beats_failed


@pytest.mark.parametrize("timeout", [10.0, 40.0])
def test_a_heartbeat_unanswered_at_the_end_of_the_drain_is_a_loss(timeout: float) -> None:
    # From second 3 on the server answers nothing: this must not pass, even with a timeout as long as the hold.
    server = SimServer(stalls_s=(3.0, 1e9))
    total, last, _ = soak(server, 8.0, connections=200, keepalive=4, timeout=timeout)
    assert (last.held_at_drain, total.unanswered, deaths(total)) == (200, 200, {"heartbeat_timeout": 200})
    assert total.sent == total.answered + 200
    # The latency has at least the time that each of them waited.
    assert total.latency_us.greatest >= timeout * 1e6
    assert (total.latency_us.quantile(1 - 190 / total.sent) or 0) >= timeout * 1e6 * (1 - 1 / 128)


def test_a_tick_has_the_longest_wait() -> None:
    # No heartbeat is answered from second 3 to 7; each connection sends one within two seconds.
    ticks = list(simulate(shard(connections=200, keepalive=4), SimServer(stalls_s=(3.0, 7.0)), 9.0))
    seen = {tick.second: (tick.awaiting, tick.longest_wait_s) for tick in ticks}
    for second in (4, 5, 6):
        assert seen[second] == (pytest.approx(200, abs=140), pytest.approx(second - 3.0, abs=0.3))
    assert max(waits for second, (_, waits) in seen.items() if not 3 < second < 8) < 0.1
    of_all = Tick()
    for one in (ticks[4], ticks[5], ticks[0]):
        of_all.merge_gauges(one)
    assert of_all.longest_wait_s == ticks[5].longest_wait_s


def test_the_drain_records_when_each_idle_connection_was_heard_last() -> None:
    total, last, _ = soak(SimServer(), 30.0, connections=300, keepalive=600)
    assert total.heard_ms.count == last.held_at_drain == 300
    # Half of the sleeps are longer than 150 s: most connections were heard only when opened, 30 s before.
    assert (total.heard_ms.quantile(0.2) or 0) > 29_000


def test_deaths_carry_age_idle_time_and_requests() -> None:
    total, _, _ = soak(SimServer(most_requests=4), 200.0, connections=50, keepalive=20)
    assert set(total.deaths["closed_announced"].requests.counts) == {4}
    total, _, _ = soak(SimServer(idle_timeout_s=75.0), 400.0, connections=50, keepalive=600)
    assert set(total.deaths["closed_idle"].idle_s.counts) <= {74, 75}
    total, _, _ = soak(SimServer(longest_age_s=300.0), 400.0, connections=50, keepalive=20)
    ages = total.deaths["closed_announced"].age_s
    assert ages.least >= 299
    assert ages.greatest <= 311


def test_refusals_back_off_instead_of_hammering() -> None:
    total, last, _ = soak(SimServer(refuse_after=0), 300.0, connections=100)
    assert (total.opened, last.held_at_drain) == (0, 0)
    assert set(total.failures) == {"refused"}
    # 0.5 s doubling to 30 s: nine tries bring the wait to its cap, then two a minute.
    assert 100 * 10 < total.started < 100 * 25


def test_pending_connects_are_bounded_and_time_out() -> None:
    # A network that swallows SYNs: connects take longer than we wait.
    net, total, most = SimNet(SimServer(connect_s=1e6)), Tick(), 0
    for tick in simulate(shard(connections=1000, connect_timeout=5), SimServer(), 20.0, net=net):
        most = max(most, tick.connecting)
        total.merge_counts(tick)
    assert most <= MOST_PENDING
    assert set(total.failures) == {"connect_timeout"}
    assert total.opened == 0


def test_sleeping_before_the_first_beat() -> None:
    total, last, net = soak(SimServer(), 0.5, connections=20, first_beat="sleep")
    assert (total.opened, total.sent, net.requests, last.held_at_drain) == (20, 0, 0, 20)
    total, _, net = soak(SimServer(), 40.0, connections=20, first_beat="sleep")
    assert total.sent == net.requests > 20


def test_the_schedule_does_not_depend_on_the_number_of_workers() -> None:
    def instants(workers: int) -> list[tuple[int, float]]:
        seen = []
        for worker in range(workers):
            net = SimNet(SimServer(latency_s=0.0, connect_s=0.0))
            table = ConnectionTable(shard(workers, connections=60, keepalive=30, ramp="7/10ms"), worker, net)
            table.start(0.0)
            send = net.send

            def noted(handle: int, data: bytes, table: ConnectionTable = table, net: SimNet = net, send: Any = send) -> int:
                sent: int = send(handle, data)
                seen.append((table._connections.number(table._connections._row_of[handle]), round(net.now, 6)))
                return sent

            net.send = noted  # type: ignore[method-assign]
            upcoming = table.turn()
            while net.now < 60.0 and upcoming is not None:
                net.advance(min(x for x in (upcoming, net.next_event) if x is not None))
                upcoming = table.turn()
        return sorted(one for one in seen if one[1] < 59.0)

    assert instants(1) == instants(3) == instants(4)


class _Peer(SimNet):
    """A network whose server is a script: ``plan`` maps the number of a request to the bytes that answer it."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        super().__init__(SimServer(latency_s=0.01))
        self._answers = answers

    def _serve(self, handle: int, connection: Any, close: bool) -> None:
        self.requests += 1
        for index, part in enumerate(self._answers[min(self.requests, len(self._answers)) - 1]):
            self._at(self.now + 0.01 + index * 1e-5, handle, "data", part)


@pytest.mark.parametrize("connect_s", [0.0, 0.000_1])
@pytest.mark.parametrize("first_beat", ["now", "sleep"])
def test_a_send_buffer_smaller_than_a_heartbeat_loses_nothing(connect_s: float, first_beat: str) -> None:
    server = SimServer(connect_s=connect_s, takes_bytes=100)
    total, last, net = soak(server, 60.0, connections=20, keepalive=10, header="X: " + 1000 * "x", first_beat=first_beat)
    assert (total.lost, last.held_at_drain, total.failures) == (0, 20, {})
    assert total.sent == total.answered == net.requests > 200
    (request,) = shard(header="X: " + 1000 * "x").settings.requests
    assert total.bytes_sent == total.sent * len(request)
    # A tenth of it each 200 us, and the answer after the last of them.
    assert total.latency_us.least >= len(request) // 100 * 200


def test_the_rest_of_a_heartbeat_is_not_sent_on_the_next_connection() -> None:
    server = SimServer(takes_bytes=100, resets_all_at_s=30.000_5, connect_s=0.0)
    total, last, net = soak(server, 40.0, connections=200, keepalive=10, header="X: " + 1000 * "x", ramp="200/1s")
    assert (total.lost, last.held_at_drain) == (200, 200)
    assert total.sent == total.answered + total.beats_failed
    assert total.answered == net.requests
    (request,) = shard(header="X: " + 1000 * "x").settings.requests
    assert net.requests * len(request) < total.bytes_sent < total.sent * len(request)


OK = b"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n"


@settings(max_examples=60)
@given(st.lists(st.integers(1, len(OK) - 1), max_size=4, unique=True))
def test_answers_may_come_in_any_split(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(OK)]
    parts = [OK[start:end] for start, end in itertools.pairwise(edges)]
    total, _ = run(shard(connections=1, keepalive=4), _Peer([parts]), 20.0)
    assert total.sent == total.answered > 10
    assert total.lost == 0


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ([[OK], [b"garbage\r\n\r\n"]], "protocol_error"),
        ([[OK], [OK + OK]], "protocol_error"),
        ([[OK], [OK, b"unasked"]], "protocol_error"),
        ([[OK], [OK, b"HTTP/1.1 408 Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]], "closed_announced"),
        # Node's answer has no length: it ends with the connection.
        ([[OK], [OK, b"HTTP/1.1 408 Timeout\r\nConnection: close\r\n\r\n"]], "closed_announced"),
        ([[OK], [OK[:9], b""]], "closed_awaiting"),
        ([[OK], [b"HTTP/1.0 200 OK\r\n\r\n"]], "closed_announced"),
        ([[OK], [OK, b""]], "closed_idle"),
    ],
)
def test_strange_peers(answers: list[list[bytes]], cause: str) -> None:
    total, _ = run(shard(connections=1, keepalive=4, reopen=False), _Peer(answers), 20.0)
    assert deaths(total) == {cause: 1}
    assert total.deaths[cause].requests.least in (1, 2)
    assert (total.protocol or ProtocolCounts()).farewells == ({"HTTP/1.0": 1} if b"HTTP/1.0" in answers[-1][-1] else {})


def test_a_url_that_is_down_is_a_failure_not_an_address_to_drop() -> None:
    base = shard(connections=100)
    both = (Destination(socket.AF_INET, "127.0.0.1", 81, 0), Destination(socket.AF_INET, "127.0.0.1", 80, 1))
    two = msgspec.structs.replace(base, destinations=both, settings=msgspec.structs.replace(base.settings, requests=base.settings.requests * 2))
    total, last = run(two, _LeadsNowhere(errno.ECONNREFUSED), 30.0)
    assert (last.held_at_drain, total.dropped) == (50, {0: 1})


class _LeadsNowhere(SimNet):
    """A network with unreachable destinations from an instant on: connects fail with an errno, or wait for ever (0)."""

    def __init__(self, error: int, nowhere: tuple[int, ...] = (0,), since_s: float = 0.0) -> None:
        super().__init__(SimServer(connect_s=0.0, resets_all_at_s=since_s or None))
        self._error, self._nowhere, self._since_s = error, nowhere, since_s
        self.tried: list[tuple[float, int]] = []

    def connect(self, destination: int, source: int) -> int:
        self.tried.append((self.now, destination))
        if destination not in self._nowhere or self.now < self._since_s:
            return super().connect(destination, source)
        if self._error:
            raise OSError(self._error, "simulated")
        handle = super().connect(destination, source)
        self._connections[handle].accepted = False
        return handle


BOTH = (Destination(socket.AF_INET6, "::1", 80), Destination(socket.AF_INET, "127.0.0.1", 80))


def addressed(net: SimNet, hold_s: float, destinations: tuple[Destination, ...] = BOTH, **values: Any) -> tuple[Tick, Tick]:
    """A soak of a name with several addresses."""
    return run(msgspec.structs.replace(shard(**values), destinations=destinations), net, hold_s)


NOWHERE = [errno.ECONNREFUSED, errno.EAFNOSUPPORT, errno.ETIMEDOUT, 0]


@pytest.mark.parametrize("connections", [1, 100])
@pytest.mark.parametrize("error", NOWHERE)
def test_an_unreachable_address_costs_nothing_if_another_answers(error: int, connections: int) -> None:
    net = _LeadsNowhere(error)
    total, last = addressed(net, 60.0, connections=connections)
    assert (last.held_at_drain, total.opened, total.lost, total.reopened) == (connections, connections, 0, 0)
    assert total.started == connections
    assert total.failures == {}
    assert total.dropped == ({0: 1} if connections >= 10 else {})
    # The ramp keeps its schedule: few connects wait for the unreachable address.
    assert total.ramp_lateness_us.greatest < 1000
    assert sum(destination == 0 for _, destination in net.tried) <= 64


def until_ramped(table: ConnectionTable, net: SimNet) -> None:
    table.start(0.0)
    upcoming = table.turn()
    while not table.ramped:
        assert upcoming is not None
        net.advance(upcoming)
        upcoming = table.turn()


@pytest.mark.parametrize("error", NOWHERE)
def test_the_ramp_lasts_until_each_row_has_tried_the_next_address(error: int) -> None:
    net = _LeadsNowhere(error)
    table = ConnectionTable(msgspec.structs.replace(shard(connections=1, connect_timeout=5), destinations=BOTH), 0, net)
    until_ramped(table, net)
    assert table.held == 1
    # At once after the first connect failed, not after a backoff.
    assert [destination for _, destination in net.tried] == [0, 1]
    assert net.tried[1][0] <= (0.1 if error else 5.2)


@pytest.mark.parametrize("error", [errno.ECONNREFUSED, errno.ENETUNREACH, 0])
def test_if_no_address_answers_each_attempt_fails_once(error: int) -> None:
    net = _LeadsNowhere(error, (0, 1))
    total, _ = addressed(net, 60.0, connections=10, reopen=False)
    (why,) = total.failures
    assert why == {errno.ECONNREFUSED: "refused", errno.ENETUNREACH: "unreachable", 0: "connect_timeout"}[error]
    assert (total.failures[why], total.started, total.opened, total.dropped) == (10, 10, 0, {})
    assert len(net.tried) == 20


def test_an_address_that_has_worked_is_not_dropped_but_its_rows_try_the_next_one() -> None:
    net = _LeadsNowhere(errno.ECONNREFUSED, (0,), since_s=30.0)
    total, last = addressed(net, 300.0, connections=100)
    assert (last.held_at_drain, total.lost, total.reopened, total.dropped) == (100, 100, 100, {})
    # Each of its fifty was refused there once, which is the server's failure.
    assert total.failures == {"refused": 50}


class Net(SimNet):
    """Records when each heartbeat was sent and each connect began."""

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


def drive(table: ConnectionTable, net: SimNet, until: float, *, stall: tuple[float, float] = (math.inf, math.inf)) -> Tick:
    """Call the table at every event until ``until``, except within ``stall``; all ticks merged, gauges of the last."""
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


def started(net: SimNet, *, workers: int = 1, worker: int = 0, replaces: bool = False, t0: float = 0.0, **values: Any) -> ConnectionTable:
    table = ConnectionTable(shard(workers, **values), worker, net, replaces=replaces)
    table.start(t0)
    return table


def dispersion(instants: list[float], start: float, end: float, width_s: float = 0.010) -> float:
    """Variance over mean of the counts in bins of ``width_s``: 1 for independent, uniform instants."""
    bins = Counter(int((at - start) / width_s) for at in instants if start <= at < end)
    many = int((end - start) / width_s)
    mean = sum(bins.values()) / many
    return (sum((bins[place] - mean) ** 2 for place in range(many)) / (many - 1)) / mean


def test_heartbeats_are_spread_like_their_jitter_and_missed_ones_are_spread_and_late() -> None:
    net = Net(SimServer(connect_s=0.0))
    table = started(net, connections=2_500, keepalive=10, batch=25)
    before = drive(table, net, 40.0)
    # By 20 s each has slept some six times, so its phase is random. 2,000 bins: the index of dispersion of independent heartbeats
    # is 1 with a standard deviation of sqrt(2 / 1,999), 0.032 (chi-square); four of them are no accident.
    assert dispersion(net.beats, 20.0, 40.0) == pytest.approx(1, abs=4 * math.sqrt(2 / 1_999))
    # A mean sleep of 3 s: 2,500 / 3 a second, the rate within four deviations.
    assert sum(20.0 <= at < 40.0 for at in net.beats) == pytest.approx(16_667, rel=0.03)
    during = drive(table, net, 50.0, stall=(40.5, 42.5))
    assert before.lateness_us.greatest == 0
    # At most twice the pace for as long as the stall was (a missed heartbeat delays the next one, too), and no burst.
    steady = 2_500 / 3
    after = [at for at in net.beats if at >= 42.5]
    assert 1.4 * 2 * steady < len([at for at in after if at < 44.5]) < 2 * 2 * steady
    assert [dispersion(after, at, at + 0.5) for at in (42.5, 43.0, 43.5, 44.0)] == [pytest.approx(1, abs=4 * math.sqrt(2 / 49))] * 4
    assert max(Counter(int(at * 100) for at in after).values()) < 4 * steady / 100
    # Lateness counts from the due instant: from 2 s down to 0. Each connection misses one, so fewer are missed towards the end: with
    # only the first of each the mean would be 1.196 s, with as many at any time 1 s.
    late = {bounds(bucket): count for bucket, count in during.lateness_us.counts.items() if bounds(bucket)[1] > 1_000}
    assert 1e6 < sum((low + high) / 2 * count for (low, high), count in late.items()) / sum(late.values()) < 1.196e6
    assert during.lateness_us.greatest < during.latency_us.greatest == pytest.approx(2e6, rel=0.01)
    assert (during.lost, during.held, before.opened + during.opened) == (0, 2_500, 2_500)
    assert during.longest_turn_s == 0.0  # only the driver of a real worker notes a stall


def test_a_stall_beyond_the_timeout_loses_no_answer_that_had_come() -> None:
    net = Net(SimServer(connect_s=0.0, latency_s=0.2))
    table = started(net, connections=3_000, keepalive=4, batch=75, timeout=2)
    drive(table, net, 6.0)
    # Some 350 heartbeats are unanswered at any time, more than a turn may read.
    during = drive(table, net, 19.0, stall=(7.0, 15.0))
    assert (during.lost, during.beats_failed, during.held) == (0, 0, 3_000)


def test_a_missed_heartbeat_of_a_connection_that_ended_is_not_counted() -> None:
    net = Net(SimServer(connect_s=0.0, resets_all_at_s=23.0))
    table = started(net, connections=1_000, keepalive=10, batch=25)
    total = drive(table, net, 21.0)
    total.merge_counts(after := drive(table, net, 40.0, stall=(21.0, 22.9)))
    assert total.lost == 1_000
    assert after.held == total.opened - total.lost == 1_000
    assert total.sent == total.answered + total.beats_failed + after.awaiting


def per_second(instants: list[float], start: float) -> list[int]:
    counts = Counter(int(at - start) for at in instants if at >= start)
    return [counts[place] for place in range(max(counts, default=-1) + 1)]


def test_a_mass_loss_is_reopened_no_faster_than_the_ramp() -> None:
    net = Net(SimServer(resets_all_at_s=30.0))
    table = started(net, connections=4_000, keepalive=60, batch=5)
    total = drive(table, net, 45.0)
    assert (total.opened, total.reopened, total.lost, total.held) == (8_000, 4_000, 4_000, 4_000)
    again = per_second([at for at in net.connects if at >= 30.0], 30.0)
    # 500 a second, as in the ramp; the first of them after half of the backoff.
    assert max(again) <= 510
    assert sum(again[:9]) == 4_000


def test_a_replacement_worker_reopens_the_connections_of_the_lost_one() -> None:
    """Lost at 30 s, when all of its batches were open, or at 3 s, when half of them were."""
    for at, again in ((30.0, 1_000), (3.0, 600)):
        net = Net(SimServer(connect_s=0.0), at)
        table = started(net, workers=2, worker=1, replaces=True, connections=2_000, keepalive=10, batch=5, interval="12.5ms")
        total = drive(table, net, at + 15.0)
        # The ramp takes 5 s: 400 a second, half of them by this worker; it catches up at twice its pace.
        assert (total.opened, total.held, total.lost) == (1_000, 1_000, 0)
        assert total.reopened == pytest.approx(again, abs=5)
        assert max(per_second(net.connects, at)) <= 410
        assert max(per_second(net.connects, at)[: again // 200]) <= 210
        # A batch that was due before the replacement started is not late.
        assert total.ramp_lateness_us.count == (1_000 - total.reopened) / 5
        assert total.ramped
