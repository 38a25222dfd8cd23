"""The closed and the open loop on the simulated network: every request is counted once, every instant is kept."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncli.engine.shard import LoadShard
from asyncli.engine.sim import SimNet, SimServer, simulate_load
from asyncli.engine.spread import Destination
from asyncli.model.records import Asked, Tick

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ASK_ONCE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def shard(**values: Any) -> LoadShard:
    asks = (ASK_ONCE if values.get("short") else ASK,)
    given = {"connections": 8, "workers": 1, "method": "GET", "asks": asks, "sources": (), "local": True, "seed": 1}
    return LoadShard(**given | {"destinations": (Destination(socket.AF_INET, "127.0.0.1", 80),)} | values)


def bench(server: SimServer, net: SimNet | None = None, most_s: float = 3600.0, **values: Any) -> tuple[Tick, Asked, SimNet]:
    """All ticks merged, a bench's further counts, and the network."""
    net, total = net or SimNet(server), Tick()
    for tick in simulate_load(shard(**values), net, most_s=most_s):
        total.merge_counts(tick)
    assert total.asked is not None
    return total, total.asked, net


def is_whole(total: Tick, asked: Asked, wanted: int | None) -> None:
    """Every request sent was answered, failed, resent, or is in flight; and of the ``wanted`` ones none is missing."""
    failed = sum(asked.failed.values())
    assert total.sent == total.answered + asked.resent + failed + asked.in_flight
    assert total.answered == sum(total.by_status.values()) == sum(total.latency_us.counts.values())
    assert total.answered == sum(asked.waiting_us.counts.values()) == sum(asked.processing_us.counts.values())
    if wanted is not None:
        assert total.answered + failed + asked.in_flight + asked.left == wanted


def test_a_number_of_requests_is_sent_exactly() -> None:
    total, asked, net = bench(SimServer(), requests=10_000)
    assert (total.answered, total.sent, net.requests, total.opened, net.accepted) == (10_000, 10_000, 10_000, 8, 8)
    assert (asked.keepalive, asked.failed, asked.resent, total.deaths, total.failures) == (10_000, {}, 0, {}, {})
    assert total.bytes_sent == 10_000 * len(ASK)
    is_whole(total, asked, 10_000)
    # 200 us for each request, none on our side: the first one also waits for its connect, which is no processing time.
    assert (total.latency_us.least, total.latency_us.greatest) == (199, 300)
    assert (asked.processing_us.least, asked.processing_us.greatest) == (199, 200)
    assert asked.last_s == pytest.approx(0.000_1 + 1250 * 0.000_2, rel=1e-3)


@pytest.mark.parametrize("fin_after_s", [0.0, 1e-6, 0.01])
@pytest.mark.parametrize("connect_s", [0.0, 0.000_1])
@pytest.mark.parametrize("local", [True, False])
def test_one_connection_per_request(fin_after_s: float, connect_s: float, local: bool) -> None:
    total, asked, net = bench(SimServer(fin_after_s=fin_after_s, connect_s=connect_s), requests=1000, short=True, local=local)
    assert (total.answered, total.opened, net.accepted, asked.keepalive) == (1000, 1000, 1000, 0)
    assert (total.deaths, asked.resent) == ({}, 0)
    assert asked.per_connection.counts == {1: 1000}
    is_whole(total, asked, 1000)
    assert total.latency_us.least >= 199 + connect_s * 1e6  # the connect is part of each
    assert (total.started, total.sent, total.connect_us.count) == (1000, 1000, 1000)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_requests_beyond_a_limit_are_resent_until_the_limit_is_learnt(most: int) -> None:
    total, asked, net = bench(SimServer(most_requests=most), requests=5000, pipeline=100, connections=4)
    assert total.answered == net.requests == 5000
    assert total.deaths["closed_announced"].count == 5000 // most
    assert set(asked.per_connection.counts) == {most}
    # The limit is learnt from two connections; the other two had sent by then.
    assert asked.resent <= 4 * (100 - min(most, 99))
    is_whole(total, asked, 5000)


@pytest.mark.parametrize(
    ("server", "cause", "fails"),
    [
        (SimServer(most_requests=30), "closed_announced", "none"),
        (SimServer(cut_share=0.02), "closed_awaiting", "each"),
        (SimServer(reset_share=0.02), "reset", "first"),
        (SimServer(drop_share=0.01), "heartbeat_timeout", "each"),
    ],
)
@pytest.mark.parametrize("values", [{}, {"pipeline": 20}, {"rate": 2000.0}, {"short": True}], ids=str)
def test_each_fault_is_counted_and_no_request_is_lost(server: SimServer, cause: str, fails: str, values: dict[str, Any]) -> None:
    total, asked, net = bench(server, requests=3000, timeout_s=0.5, **values)
    is_whole(total, asked, 3000)
    assert asked.left == asked.in_flight == 0
    assert asked.ended == {"asked": 1}
    assert (set(total.deaths) == {cause}) == (fails != "none" or not values.get("short"))
    ends = total.deaths[cause].count if total.deaths else 0
    # A request fails if its answer was cut or timed out; else only if its connection never answered.
    unserved = total.deaths[cause].requests.counts.get(0, 0) if total.deaths else 0
    failed = {"none": 0, "each": ends, "first": unserved}[fails]
    assert asked.failed == ({cause: failed} if failed else {})
    assert (asked.resent > 0) == (bool(values.get("pipeline")) or (fails == "first" and ends > unserved))
    if cause == "heartbeat_timeout":
        assert ends == net.swallowed
    assert total.answered > 2900


@pytest.mark.parametrize("values", [{}, {"rate": 200.0}], ids=str)
def test_resent_requests_count_from_the_first_time_and_others_fail(values: dict[str, Any]) -> None:
    class HangsUp(SimNet):
        """Every second request of a connection hangs for 0.3 s, and then the connection ends."""

        def _serve(self, handle: int, connection: Any, close: bool) -> None:
            if connection.requests % 2 == 0 or connection.ended:
                super()._serve(handle, connection, close)
                return
            connection.ended = True
            self._at(self.now + 0.3, handle, "data", b"")

    total, asked, _ = bench(SimServer(), HangsUp(SimServer()), requests=40, connections=2, **values)
    is_whole(total, asked, 40)
    assert (total.answered, asked.failed) == (40, {})
    assert asked.resent >= 30
    assert total.latency_us.greatest >= 300_000
    assert total.lateness_us.greatest < 1000  # a resent request was in time
    total, asked, _ = bench(SimServer(), HangsUp(SimServer()), requests=40, connections=2, method="POST", **values)
    is_whole(total, asked, 40)
    assert asked.resent == 0
    assert asked.failed == {"closed_awaiting": 40 - total.answered}
    assert total.answered == 20


def test_malformed_answers_fail_a_request_and_unsolicited_ones_end_the_connection() -> None:
    class Talks(SimNet):
        def __init__(self, before: bytes, after: bytes) -> None:
            super().__init__(SimServer())
            self.before, self.after = before, after

        def _serve(self, handle: int, connection: Any, close: bool) -> None:
            if self.before:
                self._at(self.now + 1e-4, handle, "data", self.before)
            super()._serve(handle, connection, close)
            if self.after:
                self._at(self.now + 3e-4, handle, "data", self.after)

    total, asked, _ = bench(SimServer(), Talks(b"SSH-2.0-x\r\n\r\n", b""), requests=5, connections=1)
    assert (total.answered, asked.failed) == (0, {"protocol_error": 5})
    is_whole(total, asked, 5)
    for unasked in (b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
        total, asked, _ = bench(SimServer(), Talks(b"", unasked), requests=5, connections=1, rate=10.0)
        assert (total.answered, asked.failed) == (5, {})
        assert total.deaths["protocol_error"].count >= 4
        is_whole(total, asked, 5)


@pytest.mark.parametrize("short", [False, True])
def test_an_answer_before_the_request_is_sent_whole(short: bool) -> None:
    class Early(SimNet):
        """Takes 100 bytes of a write, and answers the head at once; ``wire``: what it received."""

        wire = b""

        def send(self, handle: int, data: bytes) -> int:
            super().send(handle, b"")
            if data.startswith(b"POST"):
                self.requests += 1
                answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n" + b"Connection: close\r\n" * short
                self._at(self.now, handle, "data", answer + b"\r\n")
            self.wire += data[:100]
            return min(100, len(data))

    net = Early(SimServer())
    ask = b"POST / HTTP/1.1\r\nContent-Length: 300\r\n\r\n" + b"x" * 300
    total, asked, _ = bench(SimServer(), net, requests=3, connections=1, method="POST", asks=(ask,), short=short)
    assert (total.answered, asked.failed, asked.resent) == (3, {}, 0)
    # Each is sent whole before the next; only the last one may be cut.
    if not short:
        assert (ask * 3).startswith(net.wire)
        assert len(net.wire) > 2 * len(ask)
    assert net.now < 5.0  # before any deadline
    is_whole(total, asked, 3)


@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("values", [{}, {"short": True}, {"rate": 100.0}], ids=str)
def test_of_two_addresses_the_unreachable_one_is_dropped(connections: int, values: dict[str, Any]) -> None:
    class Silent(SimNet):
        nowhere = (0,)

        def connect(self, destination: int, source: int) -> int:
            handle = super().connect(destination, source)
            if destination in self.nowhere:
                self._connections[handle].number = -1  # its events are ignored
            return handle

    class AllSilent(Silent):
        nowhere = (0, 1)

    both = tuple(Destination(socket.AF_INET, address, 80) for address in ("10.0.0.1", "10.0.0.2"))
    rest: dict[str, Any] = {"requests": 100, "connections": connections, "destinations": both, "connect_timeout_s": 2.0}
    total, asked, _ = bench(SimServer(), Silent(SimServer()), **rest, **values)
    assert (total.answered, asked.failed, total.failures) == (100, {}, {})
    # At a rate, with eight connections, those at the other address get all answers before the first one times out.
    assert set(total.dropped) == (set() if connections == 8 and "rate" in values else {0})
    total, asked, net = bench(SimServer(), AllSilent(SimServer()), **rest, **values)
    assert (total.answered, asked.ended, total.dropped, set(total.failures)) == (0, {"gave up": 1}, {}, {"connect_timeout"})
    assert net.now < 6.0


@pytest.mark.parametrize("values", [{}, {"short": True}, {"pipeline": 4}], ids=str)
def test_each_url_has_its_own_request(values: dict[str, Any]) -> None:
    asks = (ASK_ONCE, b"GET /longer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    if not values.get("short"):
        asks = (ASK, b"GET /longer HTTP/1.1\r\nHost: x\r\n\r\n")
    both = tuple(Destination(socket.AF_INET, "127.0.0.1", 80, target) for target in (0, 1))
    sent = 0

    class Weighs(SimNet):
        def send(self, handle: int, data: bytes) -> int:
            nonlocal sent
            taken = super().send(handle, data)
            sent += taken
            return taken

    total, asked, _ = bench(
        SimServer(), Weighs(SimServer(connect_s=0.0)), requests=100, connections=3, destinations=both, asks=asks, **values
    )
    assert (total.answered, total.bytes_sent) == (100, sent)
    assert set(asked.by_target) == {0, 1}
    assert sum(asked.by_target.values()) == 100
    is_whole(total, asked, 100)


def test_why_a_bench_ended_and_what_was_in_flight() -> None:
    _, asked, _ = bench(SimServer(), requests=10**9, duration_s=0.5)
    assert (asked.ended, asked.in_flight, asked.failed) == ({"time": 1}, 8, {})
    assert asked.outstanding_us.greatest <= 200
    total, asked, _ = bench(SimServer(), requests=50, duration_s=20.0)
    assert (asked.ended, total.answered, asked.in_flight) == ({"asked": 1}, 50, 0)
    _, asked, _ = bench(SimServer(stalls_s=(0.1, 1e9)), duration_s=0.5, timeout_s=5.0)
    assert asked.outstanding_us.count == 8
    assert asked.outstanding_us.least >= 399_000
    total, asked, _ = bench(SimServer(stalls_s=(0.1, 1e9)), duration_s=0.5, rate=1000.0, timeout_s=5.0)
    assert total.answered + asked.in_flight + asked.overdue == 500
    assert asked.outstanding_us.count == asked.in_flight + asked.overdue == 400
    # The instants that passed while all eight connections waited are spread evenly over the last 0.4 s.
    assert asked.outstanding_us.quantile(0.5) == pytest.approx(200_000, rel=0.02)
    _, asked, _ = bench(SimServer(), duration_s=1.0, rate=10.0)
    assert (asked.in_flight, asked.overdue) == (0, 0)  # a request due at the very end is not overdue


def test_a_limit_is_forgotten_when_a_connection_outlives_it() -> None:
    class Reloads(SimNet):
        """Two connections end after one answer each; all others stay open."""

        def _serve(self, handle: int, connection: Any, close: bool) -> None:
            super()._serve(handle, connection, close or connection.number <= 2)

    total, asked, _ = bench(SimServer(), Reloads(SimServer()), requests=5000, connections=2, pipeline=10)
    is_whole(total, asked, 5000)
    # 500 trains of ten; one by one it would be a round trip of 300 us each.
    assert asked.last_s < 0.2


def test_slow_connects_are_no_more_than_the_requests() -> None:
    for values in ({"connections": 50, "requests": 3}, {"connections": 8, "requests": 50, "short": True}):
        total, _, net = bench(SimServer(connect_s=0.05), local=False, **values)
        assert (total.answered, net.accepted) == (values["requests"], 50 if values.get("short") else 3)


def test_an_open_loop_sends_at_its_instants_and_counts_from_them() -> None:
    # The first 25 wait for the connects of the start.
    total, asked, _ = bench(SimServer(connect_s=0.05), requests=1000, rate=500.0, local=False)
    assert (total.answered, asked.queued, total.lateness_us.greatest) == (1000, 0, 0)
    total, asked, net = bench(SimServer(), requests=1000, rate=500.0)
    assert (total.answered, net.requests, asked.queued) == (1000, 1000, 0)
    assert asked.last_s == pytest.approx(999 / 500 + 0.000_2, abs=1e-4)
    assert total.lateness_us.greatest == 0
    is_whole(total, asked, 1000)


def test_a_stall_shows_in_an_open_loop_and_not_in_a_closed_one() -> None:
    stalls = SimServer(stalls_s=(2.0, 3.0), latency_s=0.001)
    closed, _, _ = bench(stalls, duration_s=10.0)
    p99 = closed.latency_us.quantile(0.99)
    assert p99 < 2000  # eight requests met the stall; all others were sent after it
    opened, asked, _ = bench(stalls, duration_s=10.0, rate=1000.0)
    p99, median = opened.latency_us.quantile(0.99), opened.latency_us.quantile(0.5)
    assert p99 > 850_000
    assert median < 2000
    assert opened.answered + asked.in_flight == 10_000
    # Not our lateness: no connection was free.
    assert 1000 - 8 <= asked.queued <= 1200  # with those due while the queue was worked off
    assert opened.lateness_us.greatest < 1000


def test_workers_share_requests_connections_and_instants() -> None:
    def sent(worker: int) -> tuple[int, int, float]:
        from asyncli.engine.bench_worker import new_load

        net = SimNet(SimServer())
        load = new_load(shard(connections=7, workers=3, requests=100, rate=100.0), worker, net)
        load.start(0.0)
        total = Tick()
        while not load.over:
            load.turn(net.poll(100))
            net.advance(min(x for x in (net.now + load.wait_s(), net.next_event) if x is not None) + 1e-9)
        total = load.take_tick(1)
        return total.sent, total.opened, total.asked.last_s

    shares = [sent(worker) for worker in range(3)]
    assert [one[:2] for one in shares] == [(34, 3), (33, 2), (33, 2)]
    assert max(one[2] for one in shares) == pytest.approx(0.99, abs=0.001)


class _Splits(SimNet):
    """A network whose answers, with a body of ``size``, come in pieces of ``piece`` bytes; a write takes as many."""

    def __init__(self, piece: int, size: int) -> None:
        super().__init__(SimServer())
        self._piece = piece
        self._unread: dict[int, bytes] = {}
        self._until: dict[int, float] = {}  # the end of the previous answer
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


@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(0, 400), st.integers(1, 9), st.booleans())
def test_pieces_of_any_size_are_the_same_answers(piece: int, size: int, pipeline: int, local: bool) -> None:
    net = _Splits(piece, size)
    total, asked, _ = bench(SimServer(), net, requests=40, pipeline=pipeline, connections=3, local=local)
    assert (total.answered, net.requests, asked.body_bytes, asked.resent) == (40, 40, 40 * size, 0)
    is_whole(total, asked, 40)


@given(
    st.builds(
        SimServer, most_requests=st.sampled_from([0, 0, 1, 3, 50]), reset_share=st.sampled_from([0.0, 0.05]),
        drop_share=st.sampled_from([0.0, 0.05]), cut_share=st.sampled_from([0.0, 0.05]),
        idle_timeout_s=st.sampled_from([None, 0.01]), resets_all_at_s=st.sampled_from([None, 0.05]),
        stalls_s=st.sampled_from([None, (0.02, 0.4)]), fin_after_s=st.sampled_from([0.0, 1e-6]),
        connect_s=st.sampled_from([0.0, 0.000_1]), refuse_after=st.sampled_from([None, 3]), seed=st.integers(0, 99),
    ),
    st.fixed_dictionaries(
        {
            "connections": st.integers(1, 9), "requests": st.integers(1, 400), "local": st.booleans(),
            "timeout_s": st.sampled_from([0.2, 5.0]), "connect_timeout_s": st.just(1.0),
        }
    ),
    st.sampled_from([{}, {"pipeline": 5}, {"short": True}, {"rate": 300.0}]),
)
def test_whatever_happens_every_request_ends_once(server: SimServer, values: dict[str, Any], way: dict[str, Any]) -> None:
    total, asked, _ = bench(server, **values, **way)
    is_whole(total, asked, values["requests"])
    # Held at the end: opened and not ended.
    ended = sum(one.count for one in total.deaths.values())
    assert 0 <= total.opened - ended <= (values["connections"] if not way.get("short") else total.opened)
    assert sum(asked.ended.values()) == 1
