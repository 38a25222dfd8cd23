"""The closed and the open loop on the simulated network: nothing asked twice unseen, nothing lost, every instant kept."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.engine.shard import LoadShard
from asyncli.engine.sim import SimNet, SimServer, simulate_load
from asyncli.engine.spread import Destination
from asyncli.records import Asked, Tick

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ASK_ONCE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def shard(**values: Any) -> LoadShard:
    asks = (ASK_ONCE if values.get("short") else ASK,)
    given = {"connections": 8, "workers": 1, "method": "GET", "asks": asks, "sources": (), "local": True, "seed": 1}
    return LoadShard(**given | {"destinations": (Destination(socket.AF_INET, "127.0.0.1", 80),)} | values)


def bench(server: SimServer, net: SimNet | None = None, most_s: float = 3600.0, **values: Any) -> tuple[Tick, Asked, SimNet]:
    """All ticks merged, what a bench counts beyond, and the network as it was left."""
    net, total = net or SimNet(server), Tick()
    for tick in simulate_load(shard(**values), net, most_s=most_s):
        total.merge_counts(tick)
    assert total.asked is not None
    return total, total.asked, net


def is_whole(total: Tick, asked: Asked, wanted: int | None) -> None:
    """Every request that was written was answered, failed, was written again or is in flight; and of those wanted, none is missing."""
    failed = sum(asked.failed.values())
    assert total.sent == total.answered + asked.resent + failed + asked.in_flight
    assert total.answered == sum(total.by_status.values()) == sum(total.latency_us.counts.values())
    assert total.answered == sum(asked.waiting_us.counts.values()) == sum(asked.processing_us.counts.values())
    if wanted is not None:
        assert total.answered + failed + asked.in_flight + asked.left == wanted


def test_a_number_of_requests_is_asked_exactly() -> None:
    total, asked, net = bench(SimServer(), requests=10_000)
    assert (total.answered, total.sent, net.requests, total.opened, net.accepted) == (10_000, 10_000, 10_000, 8, 8)
    assert (asked.keepalive, asked.failed, asked.resent, total.deaths, total.failures) == (10_000, {}, 0, {}, {})
    assert total.bytes_sent == 10_000 * len(ASK)
    is_whole(total, asked, 10_000)
    # 200 us each way and no time of our own: the first waits for its connection too, but the server only works for 200.
    assert (total.latency_us.least, total.latency_us.greatest) == (199, 300)
    assert (asked.processing_us.least, asked.processing_us.greatest) == (199, 200)
    assert asked.last_s == pytest.approx(0.000_1 + 1250 * 0.000_2, rel=1e-3)


def test_fewer_requests_than_connections() -> None:
    total, asked, net = bench(SimServer(), connections=50, requests=3)
    assert (total.answered, net.requests) == (3, 3)
    is_whole(total, asked, 3)


def test_a_time_is_kept_and_what_is_outstanding_then_is_said() -> None:
    total, asked, _ = bench(SimServer(latency_s=0.3), duration_s=2.0)
    assert (total.answered, asked.in_flight, asked.left) == (8 * 6, 8, 0)
    is_whole(total, asked, None)


@pytest.mark.parametrize("fin_after_s", [0.0, 1e-6, 0.01])
@pytest.mark.parametrize("connect_s", [0.0, 0.000_1])
@pytest.mark.parametrize("local", [True, False])
def test_a_connection_a_request(fin_after_s: float, connect_s: float, local: bool) -> None:
    total, asked, net = bench(SimServer(fin_after_s=fin_after_s, connect_s=connect_s), requests=1000, short=True, local=local)
    assert (total.answered, total.opened, net.accepted, asked.keepalive) == (1000, 1000, 1000, 0)
    assert (total.deaths, asked.resent) == ({}, 0)
    assert asked.per_connection.counts == {1: 1000}
    is_whole(total, asked, 1000)
    assert total.latency_us.least >= 199 + connect_s * 1e6  # the connect is part of each
    assert (total.started, total.sent, total.connect_us.count) == (1000, 1000, 1000)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_the_tail_that_a_limit_cuts_off_is_asked_again_until_the_limit_is_learnt(most: int) -> None:
    total, asked, net = bench(SimServer(most_requests=most), requests=5000, pipeline=100, connections=4)
    assert total.answered == net.requests == 5000
    assert total.deaths["closed_announced"].count == 5000 // most
    assert set(asked.per_connection.counts) == {most}
    # Two connections tell the limit; the other two had asked by then.
    assert asked.resent <= 4 * (100 - min(most, 99))
    is_whole(total, asked, 5000)


@pytest.mark.parametrize(
    ("server", "cause", "fails"),
    [
        (SimServer(most_requests=30), "closed_announced", False),
        (SimServer(cut_share=0.02), "closed_awaiting", True),
        (SimServer(reset_share=0.02), "reset", True),
        (SimServer(drop_share=0.01), "heartbeat_timeout", True),
    ],
)
@pytest.mark.parametrize("values", [{}, {"pipeline": 20}, {"rate": 2000.0}, {"short": True}], ids=str)
def test_each_fault_is_counted_and_no_request_is_lost(server: SimServer, cause: str, fails: bool, values: dict[str, Any]) -> None:
    total, asked, net = bench(server, requests=3000, timeout_s=0.5, **values)
    is_whole(total, asked, 3000)
    assert asked.left == asked.in_flight == 0
    assert (set(total.deaths) == {cause}) == (fails or not values.get("short"))
    assert bool(asked.failed) <= fails
    if cause == "heartbeat_timeout":
        # Each waited in vain to its deadline, and is not asked again for ever.
        assert sum(asked.failed.values()) == net.swallowed
    assert total.answered > 2900


def test_nobody_there_ends_it() -> None:
    total, asked, _ = bench(SimServer(refuse_after=0), requests=1000, connect_timeout_s=5.0)
    assert (total.answered, total.opened, asked.left) == (0, 0, 1000)
    assert set(total.failures) == {"refused"}
    assert total.failures["refused"] < 8 * 10
    total, asked, _ = bench(SimServer(), SimNet(SimServer(connect_s=1e6)), requests=1000, connect_timeout_s=5.0)
    assert set(total.failures) == {"connect_timeout"}
    assert asked.left == 1000


def test_a_server_that_hangs_up_on_every_request_fails_each() -> None:
    total, asked, _ = bench(SimServer(cut_share=1.0), requests=20, pipeline=3)
    assert asked.failed == {"closed_awaiting": 20}
    is_whole(total, asked, 20)


def test_an_open_loop_asks_at_its_instants_and_counts_from_them() -> None:
    total, asked, net = bench(SimServer(), requests=1000, rate=500.0)
    assert (total.answered, net.requests, asked.queued) == (1000, 1000, 1)  # the first waited for its connection
    assert asked.last_s == pytest.approx(999 / 500 + 0.000_2, abs=1e-4)
    assert total.lateness_us.greatest == 0
    is_whole(total, asked, 1000)


def test_a_stall_cannot_hide_in_an_open_loop_as_it_does_in_a_closed_one() -> None:
    stalls = SimServer(stalls_s=(2.0, 3.0))
    closed, _, _ = bench(stalls, duration_s=10.0)
    p99 = closed.latency_us.quantile(0.99)
    assert p99 is not None
    assert p99 < 1000  # eight requests saw the second in which the server stood still; all others asked after it
    opened, asked, _ = bench(stalls, duration_s=10.0, rate=1000.0)
    p99, median = opened.latency_us.quantile(0.99), opened.latency_us.quantile(0.5)
    assert p99 is not None
    assert median is not None
    assert p99 > 850_000
    assert median < 1000
    assert opened.answered + asked.in_flight == 10_000
    # It was not our lateness: no connection was free.
    assert 1000 - 8 <= asked.queued <= 1050  # and of those that came due while these were worked off
    assert opened.lateness_us.greatest < 1000


def test_idle_connections_that_the_server_closes_are_replaced_and_the_rate_is_kept() -> None:
    total, asked, _ = bench(SimServer(idle_timeout_s=0.5), requests=50, rate=1.0)
    assert (total.answered, asked.failed) == (50, {})
    assert set(total.deaths) == {"closed_idle"}
    is_whole(total, asked, 50)


def test_workers_share_requests_connections_and_instants() -> None:
    def sent(worker: int) -> tuple[int, int, float]:
        from asyncli.engine.load import Load

        net = SimNet(SimServer())
        load = Load(shard(connections=7, workers=3, requests=100, rate=100.0), worker, net)
        load.start(0.0)
        total = Tick()
        while not load.over:
            load.turn(net.poll(100))
            net.advance(min(x for x in (net.now + load.wait_s(), net.next_event) if x is not None) + 1e-9)
        total = load.take_tick(1)
        assert total.asked is not None
        return total.sent, total.opened, total.asked.last_s

    shares = [sent(worker) for worker in range(3)]
    assert [one[:2] for one in shares] == [(34, 3), (33, 2), (33, 2)]
    assert max(one[2] for one in shares) == pytest.approx(0.99, abs=0.001)


def test_stopped_it_says_what_it_left() -> None:
    total, asked, _ = bench(SimServer(latency_s=1.0), requests=100, most_s=5.5)
    assert (total.answered, asked.in_flight, asked.left) == (40, 8, 52)
    is_whole(total, asked, 100)


class _Splits(SimNet):
    """A network whose answers come in pieces of ``piece`` bytes, with a body of ``size``, and takes as much of a write."""

    def __init__(self, piece: int, size: int) -> None:
        super().__init__(SimServer())
        self._piece = piece
        self._unread: dict[int, bytes] = {}
        self._until: dict[int, float] = {}  # when the answer before is out
        self._answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size

    def send(self, handle: int, data: bytes) -> int:
        taken = super().send(handle, b"")
        if not data:
            return taken
        whole = self._unread.get(handle, b"") + data[: self._piece]
        asks, _, self._unread[handle] = whole.rpartition(b"\r\n\r\n")
        for _ in range(asks.count(b"\r\n\r\n") + bool(asks)):
            self.requests += 1
            for begin in range(0, len(self._answer), self._piece):
                at = self._until[handle] = max(self._until.get(handle, 0.0), self.now + 0.001) + 1e-6
                self._at(at, handle, "data", self._answer[begin : begin + self._piece])
        return min(len(data), self._piece)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 400), st.integers(1, 9), st.booleans())
def test_pieces_of_any_size_are_the_same_answers(piece: int, size: int, pipeline: int, local: bool) -> None:
    net = _Splits(piece, size)
    total, asked, _ = bench(SimServer(), net, requests=40, pipeline=pipeline, connections=3, local=local)
    assert (total.answered, net.requests, asked.body_bytes, asked.resent) == (40, 40, 40 * size, 0)
    is_whole(total, asked, 40)


def test_an_answer_longer_than_is_remembered_and_then_the_end() -> None:
    class Closes(_Splits):
        def send(self, handle: int, data: bytes) -> int:
            taken = super().send(handle, data)
            if data:
                self._at(self.now + 0.5, handle, "data", b"")
            return taken

    net = Closes(50_000, 200_000)
    total, asked, _ = bench(SimServer(), net, requests=12, rate=1.0, connections=1)
    assert (total.answered, asked.body_bytes, total.bytes_received) == (12, 12 * 200_000, 12 * len(net._answer))
    is_whole(total, asked, 12)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        SimServer,
        most_requests=st.sampled_from([0, 0, 1, 3, 50]),
        reset_share=st.sampled_from([0.0, 0.05]),
        drop_share=st.sampled_from([0.0, 0.05]),
        cut_share=st.sampled_from([0.0, 0.05]),
        idle_timeout_s=st.sampled_from([None, 0.01]),
        resets_all_at_s=st.sampled_from([None, 0.05]),
        stalls_s=st.sampled_from([None, (0.02, 0.4)]),
        fin_after_s=st.sampled_from([0.0, 1e-6]),
        connect_s=st.sampled_from([0.0, 0.000_1]),
        refuse_after=st.sampled_from([None, 3]),
        seed=st.integers(0, 99),
    ),
    st.fixed_dictionaries(
        {
            "connections": st.integers(1, 9),
            "requests": st.integers(1, 400),
            "local": st.booleans(),
            "timeout_s": st.sampled_from([0.2, 5.0]),
            "connect_timeout_s": st.just(1.0),
        }
    ),
    st.sampled_from([{}, {"pipeline": 5}, {"short": True}, {"rate": 300.0}]),
)
def test_whatever_happens_every_request_ends_once(server: SimServer, values: dict[str, Any], way: dict[str, Any]) -> None:
    total, asked, _ = bench(server, **values, **way)
    is_whole(total, asked, values["requests"])
    assert total.held >= 0
