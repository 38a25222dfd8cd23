"""Who opens what, who takes over, and how ticks become one: properties of the pure parts of a fleet."""

from __future__ import annotations

import copy
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli import __version__
from asyncli.cluster.generator import Clock, ClusterGenerator, _Link
from asyncli.cluster.look import Seen, read_look
from asyncli.cluster.muster import Fleet, Member, ends_there
from asyncli.engine.fleet import PATIENCE_S, Merging, Room, deal, held_by, take_over
from asyncli.engine.shard import Failed, Told, build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.plan import Plan
from asyncli.preflight.limits import Limits
from asyncli.records import Deaths, Tick

room = st.builds(Room, st.integers(0, 60_000), st.integers(500, 20_000), st.integers(1, 8))
rooms = st.lists(room, min_size=1, max_size=5)


@given(st.integers(1, 60_000), st.integers(1, 50), rooms, st.none() | st.integers(1, 40))
def test_every_connection_is_dealt_once_and_no_room_is_overfilled(connections: int, batch: int, rooms: list[Room], workers: int | None) -> None:
    dealt = deal(connections, batch, rooms, workers)
    if dealt is None:
        return
    count = sum(map(len, dealt))
    assert sorted(number for hand in dealt for number in hand) == list(range(count))
    assert workers in (None, count)
    shares = [held_by(connections, batch, count, hand) for hand in dealt]
    assert sum(shares) == connections
    for mine, hand, room in zip(shares, dealt, rooms, strict=True):
        assert mine <= room.connections
        assert all(held_by(connections, batch, count, [number]) <= room.of_a_worker for number in hand)


def test_equal_hosts_have_equal_shares_in_turn() -> None:
    room = Room(60_000, 19_936, 4)
    dealt = deal(100_000, 10, [room, room], None)
    assert dealt == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert [held_by(100_000, 10, 8, hand) for hand in dealt] == [50_000, 50_000]


def test_a_small_host_has_what_it_can_hold() -> None:
    dealt = deal(100_000, 10, [Room(10_000, 20_000, 2), Room(100_000, 20_000, 2)], None)
    assert dealt is not None
    assert held_by(100_000, 10, sum(map(len, dealt)), dealt[0]) <= 10_000
    assert deal(100_000, 10, [Room(10_000, 20_000, 2), Room(80_000, 20_000, 2)], None) is None


@given(st.integers(1, 50_000), st.integers(1, 50), st.integers(1, 20), st.dictionaries(st.sampled_from("abc"), room))
def test_a_lost_share_is_taken_over_once_or_left_over(connections: int, batch: int, workers: int, free: dict[str, Room]) -> None:
    taken, over = take_over(connections, batch, workers, range(workers), free)
    assert sorted([*over, *(number for theirs in taken.values() for number in theirs)]) == list(range(workers))
    for name, numbers in taken.items():
        assert held_by(connections, batch, workers, numbers) <= free[name].connections
        assert all(held_by(connections, batch, workers, [number]) <= free[name].of_a_worker for number in numbers)


# -- ticks


def tick(second: int, opened: int, held: int, **more: object) -> Tick:
    return Tick(second=second, workers=1, opened=opened, held=held, cpu_user_s=float(second), **more)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 9)), max_size=40),
    st.lists(st.floats(0, 2), min_size=40, max_size=40),
)
def test_whenever_ticks_come_each_count_is_there_once(coming: list[tuple[str, int, int]], waits: list[float]) -> None:
    merging = Merging()
    merging.join("a", 1)
    merging.join("b", 1)
    at = {"a": 0, "b": 0}
    now, out = 0.0, []
    for (host, skipped, opened), wait_s in zip(coming, waits, strict=False):
        at[host] += 1 + skipped
        merging.heard(host, tick(at[host], opened, 5))
        now += wait_s
        out += merging.due(now)
    out.append(merging.rest())
    assert sum(one.opened for one in out) == sum(opened for _, _, opened in coming)
    seconds = [one.second for one in out]
    assert seconds == sorted(set(seconds))
    assert seconds[:-1] == list(range(1, len(seconds)))


def test_a_late_host_joins_the_next_second_and_its_gauges_stay() -> None:
    merging = Merging()
    for host in "ab":
        merging.join(host, 1)
        merging.heard(host, tick(1, 10, 10))
    assert [(one.opened, one.held) for one in merging.due(1.0)] == [(20, 20)]
    merging.heard("a", tick(2, 1, 11))
    assert merging.due(2.0) == []
    assert [(one.opened, one.held) for one in merging.due(2.0 + PATIENCE_S)] == [(1, 21)]
    merging.heard("b", tick(2, 2, 12))
    merging.heard("a", tick(3, 0, 11))
    merging.heard("b", tick(3, 3, 15))
    assert [(one.second, one.opened, one.held) for one in merging.due(3.0)] == [(3, 5, 26)]


def test_a_silent_host_holds_nothing_that_counts_and_a_lost_one_is_our_loss() -> None:
    merging = Merging()
    for host, workers in (("a", 2), ("b", 3)):
        merging.join(host, workers)
        merging.heard(host, tick(1, 10, 10, awaiting=4, ramped=workers))
    merging.due(1.0)
    merging.silence("b", True)
    merging.heard("a", tick(2, 0, 10, ramped=2))
    assert [(one.held, one.ramped) for one in merging.due(2.0)] == [(10, 5)]
    assert merging.lose("b") == 10
    merging.heard("a", tick(3, 0, 10, ramped=2))
    (third,) = merging.due(3.0)
    assert (third.held, third.ramped, third.drained, third.beats_failed) == (10, 5, 3, 4)
    assert {cause: deaths.count for cause, deaths in third.deaths.items()} == {"generator_lost": 10}
    # CPU time that was spent stays spent.
    assert third.cpu_user_s == 3.0 + 1.0
    # Others stand in for them: they are waited for again.
    merging.join("a", 3)
    merging.taken(3)
    merging.heard("a", tick(4, 10, 20, ramped=2))
    (fourth,) = merging.due(4.0)
    assert (fourth.ramped, fourth.deaths) == (2, {})


def test_what_had_come_of_a_lost_host_is_counted() -> None:
    merging = Merging()
    merging.join("a", 1)
    merging.join("b", 1)
    lost = tick(1, 7, 7, deaths={"reset": Deaths(count=2)})
    merging.heard("b", copy.deepcopy(lost))
    assert merging.lose("b") == 7
    merging.heard("a", tick(1, 1, 1))
    (one,) = merging.due(1.0)
    assert (one.opened, {cause: deaths.count for cause, deaths in one.deaths.items()}) == (8, {"reset": 2, "generator_lost": 7})


# -- clocks and ends


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(st.floats(1e-4, 1.0), st.floats(0, 1)), min_size=1, max_size=10))
def test_a_clocks_offset_is_right_to_within_its_uncertainty(offset: float, trips: list[tuple[float, float]]) -> None:
    clock, now = Clock(), 100.0
    for trip_s, where in trips:
        clock.heard(now, now + trip_s * where + offset, now + trip_s)
        now += trip_s
    assert abs(clock.offset_s - offset) <= clock.uncertainty_s + 1e-6
    assert clock.uncertainty_s <= min(trip_s for trip_s, _ in trips) / 2 + 1e-6


@pytest.mark.parametrize(
    ("server_here", "opened_here", "ends"),
    [(True, 100, 2), (False, 100, 1), (True, 0, 1), (False, 0, 0), (True, 50, None), (False, 50, None)],
)
def test_how_many_ends_this_kernel_has(server_here: bool, opened_here: int, ends: int | None) -> None:
    assert ends_there(server_here, opened_here, 100) == ends


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (msgspec.msgpack.encode({"asyncli": "9.9.9", "host": ["of", "another", "kind"]}), "9.9.9"),
        (msgspec.msgpack.encode({"host": "a"}), "?"), (b"\xc1", "?"), (msgspec.msgpack.encode({"asyncli": __version__}), "?"),
    ],
)  # fmt: skip
def test_a_look_of_another_asyncli_is_told_by_its_version(said: bytes, version: str) -> None:
    assert read_look(said) == f"has asyncli {version}, here it is {__version__}; install the same"


def member(name: str, sources: tuple[str, ...], *workers: int) -> Member:
    spread = Spread((Destination(2, "10.0.0.8", 80),), sources, len(workers), local=False, ports=28_232)
    seen = Seen(asyncli=__version__, host=name, place=name, boot=name, limits=Limits(), spread=spread)
    return Member(name, name, seen, Room(28_232, 20_000, 2), workers)


def test_a_hosts_ports_are_crowded_by_its_own_share() -> None:
    narrow, wide = member("narrow", (), 0, 2), member("wide", tuple(f"10.0.1.{number}" for number in range(9)), 1, 3)
    plan = Plan(urls=("http://10.0.0.8/",), connections=40_000)
    fleet = Fleet(plan, (narrow, wide), 4, narrow.spread.destinations)
    shard = build_shard(plan, fleet.spread)
    assert [fleet.share(one) for one in fleet.members] == [20_000, 20_000]
    assert [fleet.shard_of(shard, one).crowded for one in fleet.members] == [True, False]
    # One that comes later is told of its workers later: what it may come to hold tells.
    assert fleet.shard_of(shard, msgspec.structs.replace(narrow, workers=())).crowded


@pytest.mark.parametrize(("apart_s", "said"), [(1.0, True), (30.0, False)])
async def test_hosts_that_fall_silent_at_once_point_at_the_sessions_own_network(apart_s: float, said: bool) -> None:
    class Cut:
        def lost(self) -> str:
            return "is cut off"

        async def call(self, method: str, *arguments: object) -> None: ...
        def release(self) -> None: ...

    members = (member("a", (), 0), member("b", (), 1))
    fleet = Fleet(Plan(urls=("http://10.0.0.8/",), connections=20), members, 2, members[0].spread.destinations)

    async def nobody(_: object) -> Any:
        raise AssertionError

    generator = ClusterGenerator(fleet, build_shard(fleet.plan, fleet.spread), nobody, nobody)
    for place, one in enumerate(members):
        link = generator._links[one.name] = _Link(one, Cut())
        link.heard += place * apart_s
        generator._engaged.append(link)
        generator._merging.join(one.name, 1)
    generator.begin(time.monotonic())
    for link in generator._links.values():
        generator._lose(link, "is cut off")
    await generator.close()
    told = {}
    while (message := generator._heard.get_nowait()) is not None:
        assert not isinstance(message, Failed)
        if isinstance(message, Told):
            told[message.finding.code] = message.finding.evidence
    assert ("looks like the network here" in told["hosts_all_lost"]) is said
