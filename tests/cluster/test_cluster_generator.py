"""A fleet's counts and findings when a host is lost at any moment, leases of hosts, hosts with little room. No scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from programs import DEADLINE_S
from test_placement import PLAN, member

from asyncli.cluster import host_probe
from asyncli.cluster.actor import HostActor
from asyncli.cluster.generator import ClusterGenerator
from asyncli.cluster.link import Cluster
from asyncli.cluster.placement import Member, Placement
from asyncli.cluster.remote_host import RemoteHost
from asyncli.collect.clocks import Offset
from asyncli.engine.fleet import Room
from asyncli.engine.shard import (
    Adopt,
    CommandLasts,
    Drain,
    Failed,
    HostFinding,
    Ticked,
    Up,
    WorkerBack,
    WorkerLost,
    WorkerSilent,
    build_shard,
)
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Plan
from asyncli.model.records import Deaths, Tick


class Actor:
    """The actor of a host that answers no call."""

    def lost(self) -> str:
        return ""

    async def call(self, method: str, *arguments: object) -> Any:
        raise OSError("no answer")

    def release(self) -> None: ...


async def nobody(_: object) -> Any:
    raise AssertionError


def fleet(*members: Member, plan: Plan = PLAN) -> ClusterGenerator:
    """A generator with hosts but without tasks: the test passes their messages."""
    whole = Placement(plan, members, sum(len(one.workers) for one in members), members[0].spread.destinations)
    generator = ClusterGenerator(whole, build_shard(plan, whole.spread), nobody, nobody)
    for one in members:
        host = RemoteHost(one, Actor(), on_messages=generator._on_messages, on_finding=generator._record_finding)
        generator._hosts[one.name] = host
        generator._with_actor.append(host)
        generator._merging.join(one.name, len(one.workers))
    return generator


async def said(generator: ClusterGenerator) -> list[Up]:
    await generator.close()
    heard = []
    while (message := generator._out.get_nowait()) is not None:
        heard.append(message)
    return heard


def tick(second: int, held: int, **more: Any) -> Ticked:
    return Ticked(Tick(second=second, workers=2, held=held, **more))


SILENT = WorkerSilent(worker=1, pid=11, held=50, awaiting=5, silent_s=5.1)
LOST = WorkerLost(1, 11, "was killed by SIGKILL", 50)


# A worker's silence is reported between two ticks: the last one's gauges may include what it holds or not.
@pytest.mark.parametrize(
    "messages",
    [
        [SILENT],
        [SILENT, tick(2, 50, awaiting=4)],
        [SILENT, tick(2, 50, awaiting=4), WorkerBack(1, 11, 7.0)],
        [SILENT, tick(2, 50, awaiting=4), LOST],
        [SILENT, tick(2, 50, awaiting=4), LOST, tick(3, 50, awaiting=4, beats_failed=5, deaths={"generator_lost": Deaths(count=50)})],
    ],
)
async def test_connections_of_a_silent_worker_on_a_lost_host_are_counted_once(messages: Sequence[Up]) -> None:
    generator = fleet(member("a", 0), member("b", 1, 2))
    generator.begin(time.monotonic() - 10.0)
    for message in (tick(1, 100, awaiting=9), *messages):
        generator._on_message(generator._hosts["b"], message)
    generator._lose(generator._hosts["b"], "is cut off")
    ticks = [one.tick for one in await said(generator) if isinstance(one, Ticked)] + [generator._merging.rest()]
    assert sum(one.deaths["generator_lost"].count for one in ticks if "generator_lost" in one.deaths) == 100
    assert sum(one.beats_failed for one in ticks) == 9


def test_a_command_lasts_by_the_clock_of_each_host() -> None:
    generator = fleet(member("a", 0), member("b", 1))
    for name, offset_s in (("a", 5.0), ("b", -7.0)):
        host = generator._hosts[name]
        host.clock = host.clock._replace(offset_s=offset_s)
    generator.command_lasts(CommandLasts(3, 100.0))
    told = [generator._hosts[name].orders.get_nowait() for name in ("a", "b")]
    assert told == [CommandLasts(3, 105.0), CommandLasts(3, 93.0)]


async def test_an_actor_passes_on_that_a_command_lasts(actors: Callable[[], HostActor], monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[CommandLasts] = []
    actor = actors()
    assert await actor.open(SHARD) == ""
    try:
        monkeypatch.setattr(actor._generator, "command_lasts", passed.append)
        await actor.carry_out(0, msgspec.msgpack.encode(CommandLasts(3, 100.0)))
        assert passed == [CommandLasts(3, 100.0)]
    finally:
        await actor.close()


async def test_a_host_that_is_lost_in_the_residue_costs_nothing() -> None:
    generator = fleet(member("a", 0), member("b", 1))
    generator.begin(time.monotonic() - 10.0)
    for name in ("a", "b"):
        generator._on_message(generator._hosts[name], tick(1, 100))
    generator.drain()
    for name in ("a", "b"):
        generator._on_message(generator._hosts[name], tick(2, 0, held_at_drain=100))
    generator._lose(generator._hosts["b"], "is cut off")
    heard = await said(generator)
    ticks = [one.tick for one in heard if isinstance(one, Ticked)]
    assert (ticks[0].held, ticks[1].held_at_drain) == (200, 200)
    assert not any(one.deaths for one in [*ticks, generator._merging.rest()])
    (told,) = (one.finding for one in heard if isinstance(one, HostFinding))
    assert (told.severity, told.fields["host"], told.fields["held"]) == ("warning", "b", 0)


@pytest.mark.parametrize(("apart_s", "at_once"), [(1.0, True), (30.0, False)])
async def test_hosts_silent_at_once_point_to_the_sessions_network(apart_s: float, at_once: bool) -> None:
    generator = fleet(member("a", 0), member("b", 1))
    generator._hosts["b"].heard_s += apart_s
    generator.begin(time.monotonic())
    for host in generator._hosts.values():
        generator._lose(host, "is cut off")
    heard = await said(generator)
    assert not any(isinstance(one, Failed) for one in heard)
    (told,) = (one.finding for one in heard if isinstance(one, HostFinding) and one.finding.code == "hosts_all_lost")
    assert (told.fields["within_s"] is not None) is at_once


async def test_a_host_lost_in_the_baseline_costs_nothing_if_others_open_its_share() -> None:
    """The same as for a lost worker."""
    generator = fleet(member("a", 0), member("b", 1))
    generator._lose(generator._hosts["b"], "is cut off")
    generator.begin(time.monotonic())
    assert generator._merging.rest().deaths == {}
    full = fleet(member("a", 0, room=Room(10_000, 20_000, 2)), member("b", 1))
    full._lose(full._hosts["b"], "is cut off")
    full.begin(time.monotonic())
    assert {cause: deaths.count for cause, deaths in full._merging.rest().deaths.items()} == {"generator_lost": 0}


async def test_a_host_that_takes_over_learns_whether_its_ports_are_crowded() -> None:
    """Ten thousand of 28,232 ports are not crowded; twenty thousand are."""
    generator = fleet(member("a", 0), member("b", 1))
    assert not generator._fleet.shard_of(generator._shard, generator._fleet.members[0]).crowded
    generator._lose(generator._hosts["b"], "is cut off")
    assert generator._hosts["a"].orders.get_nowait() == Adopt((1,), crowded=True)


async def test_a_growing_drift_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 ppm the drift is 10 ms after two minutes, and 26 s after three days."""
    monkeypatch.setattr("asyncli.cluster.remote_host._CLOCK_S", 0.0)
    drifts, over = [0.0, 0.02, 0.03, 0.19, 0.3, 1.0, 5.0], asyncio.Event()

    class Drifting(Actor):
        async def call(self, method: str, *arguments: object) -> Any:
            await asyncio.sleep(0)
            measured, self.asked = self.asked // 5, self.asked + 1
            if measured >= len(drifts):
                over.set()
                raise OSError("no more")
            return time.monotonic() + drifts[measured]

        asked = 0

    generator = fleet(member("a", 0))
    host = generator._hosts["a"]
    host.actor, host.clock = Drifting(), Offset(0.0, 0.0)
    keeping = asyncio.create_task(host._watch_clock())
    await asyncio.wait_for(over.wait(), DEADLINE_S)
    keeping.cancel()
    told = [one.finding.fields["drift_s"] for one in await said(generator) if isinstance(one, HostFinding)]
    assert told == [pytest.approx(one, abs=0.01) for one in (0.02, 0.3, 5.0)]


@pytest.mark.parametrize("held_by", ["tcp://1", "tcp://2"])
def test_a_host_with_a_busy_worker_is_not_added(held_by: str) -> None:
    seen = {address: member(host).seen for address, host in (("tcp://1", "a"), ("tcp://2", "a"), ("tcp://3", "b"))}
    seen[held_by] = msgspec.structs.replace(seen[held_by], held_by="a session of another")

    class Scheduler:
        status = "running"

        async def nthreads(self) -> dict[str, int]:
            return dict.fromkeys(seen, 1)

        async def run(self, function: Any, document: Any, *, workers: list[str], on_error: str) -> dict[str, bytes]:
            return {workers[0]: msgspec.msgpack.encode(seen[workers[0]])}

    there = Cluster("tcp://scheduler:1")
    there._client = Scheduler()
    there._fleet = Placement(PLAN, (), 1, ())
    assert [one.name for one in asyncio.run(there._find_new_hosts(set()))] == ["b"]


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Callable[[], HostActor]:
    """Actors of one session in one Dask worker."""
    worker = SimpleNamespace(state=SimpleNamespace(actors={}))
    monkeypatch.setattr("asyncli.cluster.actor.get_worker", lambda: worker)

    def another() -> HostActor:
        actor = worker.state.actors[len(worker.state.actors)] = HostActor("a session")
        return actor

    return another


SHARD = msgspec.msgpack.encode(build_shard(PLAN, Spread((Destination(2, "127.0.0.1", 9),), (), 1, True, 28_232)))


UP: Any = Up


async def test_a_refused_actor_does_not_release_the_host(actors: Callable[[], HostActor]) -> None:
    first, second = actors(), actors()
    assert await first.open(SHARD) == ""
    try:
        assert await second.open(SHARD)
        await second.close()
        assert host_probe.held_by == "a session"
    finally:
        await first.close()
    assert host_probe.held_by == ""


async def test_a_drain_works_even_if_measuring_fails(actors: Callable[[], HostActor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated order would be ignored."""

    def unread() -> Any:
        raise OSError("too many open files")

    drained = []
    actor = actors()
    assert await actor.open(SHARD) == ""
    try:
        monkeypatch.setattr(actor, "_read", unread)
        monkeypatch.setattr(actor._generator, "drain", lambda: drained.append(True))
        for _ in range(2):
            with contextlib.suppress(OSError):
                await actor.carry_out(0, msgspec.msgpack.encode(Drain()))
        assert drained == [True]
    finally:
        await actor.close()


async def test_processes_of_a_hung_actor_end_by_themselves(actors: Callable[[], HostActor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Dask worker is stopped and cannot close the connections that other hosts reopen."""
    monkeypatch.setattr("asyncli.cluster.actor._PROCESSES_TIMEOUT_S", 1)
    actor = actors()
    assert await actor.open(SHARD) == ""
    try:
        pids = list(actor._generator.pids)
        actor._generator.alive(1)
        monkeypatch.setattr(actor._generator, "alive", lambda _: None)
        heard: list[Up] = []
        async with asyncio.timeout(DEADLINE_S):
            while not heard or not isinstance(heard[-1], Failed):
                heard += [msgspec.msgpack.decode(frame, type=UP) for frame in await actor.messages(len(heard), 1.0)]
        # Not for good: the host may be added again.
        assert heard[-1].away
        async with asyncio.timeout(DEADLINE_S):
            while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
                await asyncio.sleep(0.01)
    finally:
        await actor.close()
