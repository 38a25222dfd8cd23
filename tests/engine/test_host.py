"""How the host process merges its workers' ticks: one a second, never early, and the counts add up."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_table import shard

from asyncli.analysis.totals import fold
from asyncli.engine import host as module
from asyncli.engine.host import WorkerHost, _Link
from asyncli.engine.shard import Drain, Ticked, Up, WorkerLost
from asyncli.model.plan import Plan
from asyncli.model.records import GAUGES, EventCounts, Phase, ProtocolCounts, Tick, TlsCounts
from asyncli.model.run import Run

encode = msgspec.msgpack.Encoder().encode
T0 = 1000.0


class Worker:
    """Counts as a worker does, and sends its ticks over its own link."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.tick, self.second = Tick(), 0
        self.sent: list[Tick] = []

    def open(self, many: int) -> None:
        self.tick.opened += many
        self.tick.held += many

    def close(self, second: int) -> None:
        """The seconds up to this one, as one tick."""
        if second > self.second:
            self.second = self.tick.second = second
            self.theirs.send(encode(self.tick))
            self.sent.append(self.tick)
            self.tick = Tick(held=self.tick.held, held_at_drain=self.tick.held_at_drain)


class Fleet:
    """A host with simulated workers and a simulated clock."""

    def __init__(self, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = T0
        self.messages: list[tuple[float, Up]] = []
        self.workers: dict[int, Worker] = {}
        self.all: list[Worker] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module, "SILENCE_S", float("inf"))
        monkeypatch.setattr(module, "_SHORT_LIFE_S", 0.0)
        monkeypatch.setattr(os, "wait4", lambda *_: (1, 9, SimpleNamespace(ru_utime=0.0, ru_stime=0.0)))
        self.host = host = WorkerHost(shard(workers))
        host._poll, host._t0 = select.poll(), T0
        host._emit = lambda message: self.messages.append((self.now, message))  # type: ignore[method-assign]
        host._fork = self.fork  # type: ignore[method-assign]
        for number in range(workers):
            link = self.fork(number)
            host._poll.register(link.sock.fileno(), select.POLLIN)

    def fork(self, number: int, **_: Any) -> _Link:
        worker = self.workers[number] = Worker()
        self.all.append(worker)
        worker.second = max(0, int(self.now - T0) - 1)
        link = self.host._links[worker.ours.fileno()] = _Link(number, 1, worker.ours, 0)
        return link

    def hear(self, which: Callable[[int], Any] = lambda _: True) -> None:
        """A turn of the host that reads the links of these workers."""
        for fd, _ in self.host._poll.poll(0):
            if which(self.host._links[fd].number):
                self.host._read_link(self.host._links[fd])
        self.host._forward(self.now)

    def kill(self, number: int) -> None:
        self.workers[number].theirs.close()

    @property
    def ticks(self) -> list[tuple[float, Tick]]:
        return [(at, message.tick) for at, message in self.messages if isinstance(message, Ticked)]

    def adds_up(self) -> None:
        before, opened = Tick(), 0
        for at, tick in self.ticks:
            assert before.second < tick.second <= at - T0
            assert tick.held == before.held + tick.opened - tick.lost
            before, opened = tick, opened + tick.opened
            # A tick has no counts of a later second.
            assert opened <= sum(one.opened for worker in self.all for one in worker.sent if one.second <= tick.second)

    def end(self) -> None:
        for link in self.host._links.values():
            link.sock.close()
        for worker in self.all:
            worker.theirs.close()


# Each step: seconds, and as bits of a number the workers that close a second, are killed, and are read by the host.
STEPS = st.lists(
    st.tuples(st.sampled_from([0.1, 0.4, 0.8, 1.3]), st.integers(0, 7), st.sampled_from([0, 0, 0, 1, 2, 7]), st.integers(0, 7)), max_size=20
)
THE_END = [*[(0.0, 0, 0, 7)] * 25, *[(1.0, 7, 0, 7)] * 6]


@given(st.integers(1, 3), STEPS)
def test_every_second_adds_up_and_none_is_early(workers: int, steps: list[tuple[float, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        fleet = Fleet(workers, monkeypatch)
        for lasts, close, kill, hear in [*steps, *THE_END]:
            fleet.now += lasts
            for number, worker in fleet.workers.items():
                if worker.theirs.fileno() >= 0:
                    worker.open(number + 1)
                    if close >> number & 1:
                        worker.close(int(fleet.now - T0))
                    if kill >> number & 1:
                        fleet.kill(number)
            fleet.hear(lambda number, hear=hear: hear >> number & 1)
        fleet.adds_up()
        # Ticks that come in time are passed on in time, once a second.
        assert [tick.second for _, tick in fleet.ticks[-5:]] == [int(fleet.now - T0) - ago for ago in range(4, -1, -1)]
        fleet.end()


@pytest.mark.parametrize("reported", [True, False])
def test_connections_held_at_the_drain_are_not_lost_with_their_worker(monkeypatch: pytest.MonkeyPatch, reported: bool) -> None:
    fleet = Fleet(2, monkeypatch)
    for worker in fleet.workers.values():
        worker.open(10)
        worker.close(1)
    fleet.now = T0 + 1
    fleet.hear()
    read, write = os.pipe()
    payload = encode(Drain())
    os.write(write, len(payload).to_bytes(4, "little") + payload)
    monkeypatch.setattr(os, "read", lambda _, most, real=os.read: real(read, most))
    assert fleet.host._read_orders()
    for number, worker in fleet.workers.items():
        worker.tick.held_at_drain = 10
        if number or reported:
            worker.close(2)
    fleet.now = T0 + 2
    fleet.hear()
    fleet.kill(0)
    fleet.hear()
    fleet.workers[1].close(3)
    fleet.now = T0 + 3
    fleet.hear()
    assert any(isinstance(message, WorkerLost) for _, message in fleet.messages)
    ticks = [tick for _, tick in fleet.ticks]
    lost = sum(tick.lost for tick in ticks)
    assert (ticks[-1].held_at_drain, lost) == ((20, 0) if reported else (10, 10))
    # Either way the run does not pass by itself.
    assert sum("generator_lost" in tick.deaths for tick in ticks) == 1
    fleet.end()
    os.close(read)
    os.close(write)


def test_who_was_coming_back_is_counted_apart_with_a_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were not held, so they are no loss; but the seconds still add up."""
    fleet = Fleet(2, monkeypatch)
    for worker in fleet.workers.values():
        worker.open(10)
        worker.tick.events[1] = EventCounts(ended=4)
        worker.tick.held, worker.tick.coming_back, worker.tick.opened = 6, 4, 14
        worker.close(1)
    fleet.now = T0 + 1
    fleet.hear()
    fleet.kill(0)
    fleet.hear()
    fleet.workers[1].tick.coming_back = 4
    fleet.workers[1].close(2)
    fleet.now = T0 + 4
    fleet.hear()
    first, second, *_ = (tick for _, tick in fleet.ticks)
    assert (first.held, first.coming_back) == (12, 8)
    assert (second.held, second.coming_back, second.lost, second.coming_back_lost) == (6, 4, 6, 4)
    assert second.events[1].lost_with_worker == 4
    phases = [Phase("ramp", 0.0, 1.0), Phase("hold", 1.0, None)]
    run = Run("", "", Plan(urls=("http://a/",), connections=20), {}, phases, [(1.0, first), (2.0, second)], [], [], [], complete=False)
    assert fold(run).missing is None
    fleet.end()


def test_counts_that_are_merged_leave_the_gauges_of_tls_and_protocol() -> None:
    """A worker merges a tick that it could not send, a session those of several hosts in turn."""
    whole = Tick()
    for streams in (5, 4):
        tick = Tick(protocol=ProtocolCounts(streams_opened=1, streams_open=streams, without_streams=streams), tls=TlsCounts(full=1, objects=streams))
        whole.merge_counts(tick)
        whole.merge_gauges(tick)
    assert whole.protocol == ProtocolCounts(streams_opened=2, streams_open=9, without_streams=9)
    assert whole.tls == TlsCounts(full=2, objects=9)


def test_each_gauge_is_summed_over_workers() -> None:
    whole = Tick()
    for _ in range(2):
        whole.merge_gauges(Tick(**dict.fromkeys(GAUGES, 3)))
    assert {name: getattr(whole, name) for name in GAUGES} == dict.fromkeys(GAUGES, 6)
