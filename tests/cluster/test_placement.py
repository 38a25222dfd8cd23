"""Shares of hosts, takeover, and merging of ticks: properties of the pure parts of a fleet."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli import __version__
from asyncli.cluster.host_probe import HostProbe, probe_client_host, read_probe
from asyncli.cluster.placement import Member, Placement, place, placement_finding, sampled_ends
from asyncli.engine.fleet import PATIENCE_S, Room, TickMerger, assign, held_by, take_over
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.model.errors import PreflightError
from asyncli.model.plan import Plan, plan_document
from asyncli.model.records import EventCounts, Tick
from asyncli.preflight.host_limits import Limits

PLAN = Plan(urls=("http://10.0.0.8/",), connections=20_000)
ROOM = Room(28_232, 20_000, 2)
room = st.builds(Room, st.integers(0, 60_000), st.integers(500, 20_000), st.integers(1, 8))
rooms = st.lists(room, min_size=1, max_size=5)


@given(st.integers(1, 60_000), st.integers(1, 50), rooms, st.none() | st.integers(1, 40))
def test_every_connection_is_assigned_once_within_the_room(connections: int, batch: int, rooms: list[Room], workers: int | None) -> None:
    dealt = assign(connections, batch, rooms, workers)
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


def test_a_small_host_gets_what_it_can_hold() -> None:
    dealt = assign(100_000, 10, [Room(10_000, 20_000, 2), Room(100_000, 20_000, 2)], None)
    assert held_by(100_000, 10, sum(map(len, dealt)), dealt[0]) <= 10_000
    assert assign(100_000, 10, [Room(10_000, 20_000, 2), Room(80_000, 20_000, 2)], None) is None


@given(st.integers(1, 50_000), st.integers(1, 50), st.integers(1, 20), st.dictionaries(st.sampled_from("abc"), room))
def test_a_lost_share_is_taken_over_once_or_stays_idle(connections: int, batch: int, workers: int, free: dict[str, Room]) -> None:
    taken, over = take_over(connections, batch, workers, range(workers), free)
    assert sorted([*over, *(number for theirs in taken.values() for number in theirs)]) == list(range(workers))
    for name, numbers in taken.items():
        assert held_by(connections, batch, workers, numbers) <= free[name].connections
        assert all(held_by(connections, batch, workers, [number]) <= free[name].of_a_worker for number in numbers)


def tick(second: int, opened: int, held: int, **more: object) -> Tick:
    return Tick(second=second, workers=1, opened=opened, held=held, cpu_user_s=float(second), **more)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 9)), max_size=40),
    st.lists(st.floats(0, 2), min_size=40, max_size=40),
)
def test_each_count_is_merged_once_at_any_arrival_time(coming: list[tuple[str, int, int]], waits: list[float]) -> None:
    merging = TickMerger()
    merging.join("a", 1)
    merging.join("b", 1)
    at = {"a": 0, "b": 0}
    now, out = 0.0, []
    for (host, skipped, opened), wait_s in zip(coming, waits, strict=False):
        at[host] += 1 + skipped
        merging.add(host, tick(at[host], opened, 5))
        now += wait_s
        out += merging.due(now)
    out.append(merging.rest())
    assert sum(one.opened for one in out) == sum(opened for _, _, opened in coming)
    seconds = [one.second for one in out]
    assert seconds == sorted(set(seconds))
    assert seconds[:-1] == list(range(1, len(seconds)))


def test_a_late_host_joins_the_next_second_and_its_gauges_stay() -> None:
    merging = TickMerger()
    for host in "ab":
        merging.join(host, 1)
        merging.add(host, tick(1, 10, 10))
    assert [(one.opened, one.held) for one in merging.due(1.0)] == [(20, 20)]
    merging.add("a", tick(2, 1, 11))
    assert merging.due(2.0) == []
    assert [(one.opened, one.held) for one in merging.due(2.0 + PATIENCE_S)] == [(1, 21)]
    merging.add("b", tick(2, 2, 12))
    merging.add("a", tick(3, 0, 11))
    merging.add("b", tick(3, 3, 15))
    assert [(one.second, one.opened, one.held) for one in merging.due(3.0)] == [(3, 5, 26)]


def test_who_was_away_by_an_event_is_lost_with_the_host() -> None:
    merging = TickMerger()
    for host in "ab":
        merging.join(host, 1)
        ended = tick(1, 10, 0)
        ended.events[1] = EventCounts(chosen=10, ended=10)
        merging.add(host, ended)
    merging.due(1.0)
    back = tick(2, 3, 3)
    back.events[1] = EventCounts(attempts=3, opened=3)
    for _ in range(3):
        back.events[1].back_ms.add(900)
    back.coming_back = 4
    merging.add("b", back)
    merging.lose("b")
    merging.add("a", tick(2, 0, 0))
    [second] = merging.due(2.0)
    assert (second.events[1].lost_with_worker, second.events[1].away) == (7, -10)
    assert (second.coming_back, second.coming_back_lost) == (0, 4)


def test_a_silent_host_counts_as_holding_nothing_and_a_lost_one_is_our_loss() -> None:
    merging = TickMerger()
    for host, workers in (("a", 2), ("b", 3)):
        merging.join(host, workers)
        merging.add(host, tick(1, 10, 10, awaiting=4, ramped=workers))
    merging.due(1.0)
    merging.set_silent("b", True)
    merging.add("a", tick(2, 0, 10, ramped=2))
    assert [(one.held, one.ramped) for one in merging.due(2.0)] == [(10, 5)]
    assert merging.lose("b") == 10
    merging.add("a", tick(3, 0, 10, ramped=2))
    (third,) = merging.due(3.0)
    assert (third.held, third.ramped, third.drained, third.beats_failed) == (10, 5, 3, 4)
    assert {cause: deaths.count for cause, deaths in third.deaths.items()} == {"generator_lost": 10}
    # The CPU time of a lost host still counts.
    assert third.cpu_user_s == 3.0 + 1.0
    # Other hosts replace them: their ticks are awaited again.
    merging.join("a", 3)
    merging.replaced(3)
    merging.add("a", tick(4, 10, 20, ramped=2))
    (fourth,) = merging.due(4.0)
    assert (fourth.ramped, fourth.deaths) == (2, {})


@pytest.mark.parametrize(
    ("server_here", "opened_here", "ends"),
    [(True, 100, 2), (False, 100, 1), (True, 0, 1), (False, 0, 0), (True, 50, None), (False, 50, None)],
)
def test_the_number_of_ends_on_the_sampled_machine(server_here: bool, opened_here: int, ends: int | None) -> None:
    assert sampled_ends(server_here, opened_here, 100) == ends


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (msgspec.msgpack.encode({"asyncli": "9.9.9", "host": ["of", "another", "kind"]}), "9.9.9"),
        (msgspec.msgpack.encode({"host": "a"}), "?"), (b"\xc1", "?"), (msgspec.msgpack.encode({"asyncli": __version__}), "?"),
    ],
)  # fmt: skip
def test_a_probe_of_another_version_names_the_version(said: bytes, version: str) -> None:
    assert f" {version}, " in str(read_probe(said))


def member(name: str, *workers: int, room: Room = ROOM, sources: tuple[str, ...] = ()) -> Member:
    spread = Spread((Destination(2, "10.0.0.8", 80),), sources, max(1, len(workers)), local=False, ports=28_232)
    seen = HostProbe(asyncli=__version__, host=name, place=name, boot=name, limits=Limits(), spread=spread)
    return Member(name, name, seen, room, workers)


def test_a_hosts_ports_are_crowded_by_its_own_share() -> None:
    narrow, wide = member("narrow", 0, 2), member("wide", 1, 3, sources=tuple(f"10.0.1.{number}" for number in range(9)))
    plan = Plan(urls=("http://10.0.0.8/",), connections=40_000)
    fleet = Placement(plan, (narrow, wide), 4, narrow.spread.destinations)
    shard = build_shard(plan, fleet.spread)
    assert [fleet.share(one.workers) for one in fleet.members] == [20_000, 20_000]
    assert [fleet.shard_of(shard, one).crowded for one in fleet.members] == [True, False]
    # A host that joins later gets its workers later: its room decides.
    assert fleet.shard_of(shard, msgspec.structs.replace(narrow, workers=())).crowded


def test_a_host_with_room_for_less_than_a_share_is_left_out() -> None:
    """Without a worker it would send nothing and seem lost."""
    plan = msgspec.structs.replace(PLAN, connections=60_000)
    there = [member("small", room=Room(300, 20_000, 8)), member("a", room=Room(30_000, 20_000, 8)), member("b", room=Room(60_000, 20_000, 8))]
    whole = place(plan, there)
    assert [one.name for one in whole.members] == ["a", "b"]
    assert all(one.workers for one in whole.members)
    assert sum(whole.share(one.workers) for one in whole.members) == 60_000
    assert "small" in placement_finding(whole).evidence


def test_a_batch_that_fits_on_no_host_is_refused() -> None:
    plan = msgspec.structs.replace(PLAN, connections=40_000, batch=40_000)
    with pytest.raises(PreflightError) as raised:
        place(plan, [member("a"), member("b")])
    assert "None" not in str(raised.value)
    assert "--batch" in str(raised.value)


def test_a_host_without_the_ca_file_cannot_run_the_plan() -> None:
    plan = msgspec.structs.replace(PLAN, urls=("https://127.0.0.1/",), ca="absent.pem")
    probe = read_probe(asyncio.run(probe_client_host(plan_document(plan))))
    assert isinstance(probe, HostProbe)
    assert "--ca absent.pem" in probe.why_not
