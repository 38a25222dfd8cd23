"""What a fleet counts and says when a host goes at an awkward moment, and hosts that have little room. No Dask, no sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from asyncli import __version__
from asyncli.cluster.generator import ClusterGenerator, _Link
from asyncli.cluster.link import Cluster
from asyncli.cluster.look import Seen
from asyncli.cluster.muster import Fleet, Member, muster, said_of
from asyncli.engine.fleet import Room, take_over
from asyncli.engine.shard import Adopt, Failed, Ticked, Up, WorkerBack, WorkerLost, WorkerSilent, build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.errors import PreflightError
from asyncli.plan import Plan
from asyncli.preflight.limits import Limits
from asyncli.records import Deaths, Tick

PLAN = Plan(urls=("http://10.0.0.8/",), connections=20_000)


def member(name: str, *workers: int, room: Room = Room(28_232, 20_000, 2)) -> Member:
    spread = Spread((Destination(2, "10.0.0.8", 80),), (), max(1, len(workers)), local=False, ports=28_232)
    seen = Seen(asyncli=__version__, host=name, place=name, boot=name, limits=Limits(), spread=spread)
    return Member(name, name, seen, room, workers)


class Actor:
    """Of a host that answers no call."""

    def lost(self) -> str:
        return ""

    async def call(self, method: str, *arguments: object) -> Any:
        raise OSError("no answer")

    def release(self) -> None: ...


async def nobody(_: object) -> Any:
    raise AssertionError


def fleet(*members: Member, plan: Plan = PLAN) -> ClusterGenerator:
    """A generator whose hosts stand, without tasks: what they say is put in by the test."""
    whole = Fleet(plan, members, sum(len(one.workers) for one in members), members[0].spread.destinations)
    generator = ClusterGenerator(whole, build_shard(plan, whole.spread), nobody, nobody)
    for one in members:
        link = generator._links[one.name] = _Link(one, Actor())
        generator._engaged.append(link)
        generator._merging.join(one.name, len(one.workers))
    return generator


async def said(generator: ClusterGenerator) -> list[Up]:
    await generator.close()
    heard = []
    while (message := generator._heard.get_nowait()) is not None:
        heard.append(message)
    return heard


def tick(second: int, held: int, **more: Any) -> Ticked:
    return Ticked(Tick(second=second, workers=2, held=held, **more))


SILENT = WorkerSilent(worker=1, pid=11, held=50, awaiting=5, silent_s=5.1)


@pytest.mark.parametrize(
    "messages",
    [
        # A worker's silence is told between two ticks: the gauges of the last one have what it holds, or have it not, until the next.
        [tick(1, 100, awaiting=9), SILENT],
        [tick(1, 100, awaiting=9), SILENT, tick(2, 50, awaiting=4)],
        [tick(1, 100, awaiting=9), SILENT, tick(2, 50, awaiting=4), WorkerBack(1, 11, 7.0)],
        [tick(1, 100, awaiting=9), SILENT, tick(2, 50, awaiting=4), WorkerLost(1, 11, "was killed by SIGKILL", 50)],
        [
            tick(1, 100, awaiting=9), SILENT, tick(2, 50, awaiting=4), WorkerLost(1, 11, "was killed by SIGKILL", 50),
            tick(3, 50, awaiting=4, beats_failed=5, deaths={"generator_lost": Deaths(count=50)}),
        ],
    ],
)  # fmt: skip
async def test_what_a_silent_worker_of_a_lost_host_held_is_counted_once(messages: Sequence[Up]) -> None:
    generator = fleet(member("a", 0), member("b", 1, 2))
    generator.begin(time.monotonic() - 10.0)
    for message in messages:
        generator._take(generator._links["b"], message)
    generator._lose(generator._links["b"], "is cut off")
    ticks = [one.tick for one in await said(generator) if isinstance(one, Ticked)] + [generator._merging.rest()]
    assert sum(one.deaths["generator_lost"].count for one in ticks if "generator_lost" in one.deaths) == 100
    assert sum(one.beats_failed for one in ticks) == 9


async def test_hosts_that_are_lost_in_the_baseline_make_no_second() -> None:
    """There is no T0 yet that a second could be counted from."""
    generator = fleet(member("a", 0), member("b", 1))
    for link in generator._links.values():
        generator._lose(link, "is cut off")
    heard = await said(generator)
    assert isinstance(heard[-1], Failed)
    assert [one for one in heard if isinstance(one, Ticked)] == []


# -- room


def test_nobody_takes_over_more_than_one_process_of_its_can_hold() -> None:
    """Ten thousand a worker, and a host that came later with 1,024 descriptors a process."""
    free = {"small": Room(28_000, 960, 2), "large": Room(10_000, 20_000, 2)}
    taken, over = take_over(20_000, 10, 2, (0, 1), free)
    assert taken == {"large": (0,)}
    assert over == (1,)


def test_a_host_that_holds_less_than_a_share_is_left_out_and_named() -> None:
    """Without a worker it would have nothing to say, and pass for lost."""
    plan = msgspec.structs.replace(PLAN, connections=60_000)
    there = [member("small", room=Room(300, 20_000, 8)), member("a", room=Room(30_000, 20_000, 8)), member("b", room=Room(60_000, 20_000, 8))]
    whole = muster(plan, there)
    assert [one.name for one in whole.members] == ["a", "b"]
    assert all(one.workers for one in whole.members)
    assert sum(map(whole.share, whole.members)) == 60_000
    assert "small" in said_of(whole).evidence


def test_a_host_without_any_room_refuses_nobody_else() -> None:
    full = member("full", room=Room(0, 20_000, 8))
    whole = muster(msgspec.structs.replace(PLAN, connections=1), [full, member("a")])
    assert [one.name for one in whole.members] == ["a"]


def test_a_batch_that_fits_on_no_host_is_told_as_such() -> None:
    plan = msgspec.structs.replace(PLAN, connections=40_000, batch=40_000)
    with pytest.raises(PreflightError) as raised:
        muster(plan, [member("a"), member("b")])
    assert "None" not in str(raised.value)
    assert "--batch" in str(raised.value)
