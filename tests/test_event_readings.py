"""When everything is read for the sake of an event: before it, at its end, and when memory has settled."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from asyncli.app.event_readings import APART_S, reading_instants_s
from asyncli.app.hold_events import EarlierPart, HoldEvents
from asyncli.model.metrics import SERVER_ENDED, SERVER_JOINED, SERVER_PROCESSES
from asyncli.model.plan import Plan
from asyncli.model.planned_events import planned_event
from asyncli.model.run import EVENT_SETTLES_S


def instants(*texts: str, held_s: float = 0.0) -> list[float]:
    events = [planned_event(text) for text in texts]
    return reading_instants_s([(event.after_s(100.0), event) for event in events], held_s)


def test_a_stall_is_read_before_it_in_it_and_after_it() -> None:
    before_s, *within_s, after_s, settled_s = instants("10s stall 5% for 20s")
    assert 9 <= before_s < 10
    assert all(10 < at_s < 30 for at_s in within_s)
    # Two at least tell whether it grows, and the last one is of its end.
    assert len(within_s) >= 2
    assert 28 <= within_s[-1] <= 29.5
    assert 30 < after_s < 31
    assert 30 + EVENT_SETTLES_S / 2 < settled_s < 30 + EVENT_SETTLES_S


@pytest.mark.parametrize(("text", "count"), [("10s storm", 2), ("10s run true", 1), ("10s mark x", 0), ("10s vanish 5% for 9s then reconnect", 4), ("0s storm", 0)])
def test_how_often(text: str, count: int) -> None:
    assert len(instants(text)) == count


def test_events_at_almost_one_instant_share_a_reading() -> None:
    many = instants(*[f"{10 + number / 100}s drop 1%" for number in range(50)])
    assert len(many) < 8
    assert all(later - earlier >= APART_S for earlier, later in itertools.pairwise(many))


def test_a_resumed_run_reads_for_what_is_to_come() -> None:
    assert instants("10s storm", "50s storm", held_s=49.8) == [49.8, 50 + 0.8 * EVENT_SETTLES_S]


async def test_a_hold_reads_for_its_events() -> None:
    """Everything is read right before the event; none of it waits for the other."""
    begun_s = time.monotonic()
    read_s: list[float] = []
    recorded: list[Any] = []

    async def read_all() -> None:
        read_s.append(time.monotonic() - begun_s)
        await asyncio.sleep(60)

    plan = Plan(urls=("http://127.0.0.1:1/",), connections=1, hold_s=10.0, events=("0.6s storm",))
    progress: Any = SimpleNamespace(plan=plan, zero_s=begun_s, is_in=lambda phase: phase == "hold")
    recorder: Any = SimpleNamespace(event=recorded.append)
    generator: Any = SimpleNamespace(hold=lambda begun: None)
    events = HoldEvents(progress, recorder, generator, read_all)
    async with asyncio.timeout(20), events.while_held():
        while not recorded:
            await asyncio.sleep(0.01)
    [read] = read_s
    assert read >= 0.1
    assert [event.kind for event in recorded] == ["storm"]


@pytest.mark.parametrize("phase", ["hold", "drain"])
async def test_earlier_workers_of_the_server_prolong_a_command(phase: str) -> None:
    """In the hold, for as long as each connection takes to be heard once more."""
    begun_s = time.monotonic()
    recorded: list[Any] = []
    orders: list[Any] = []

    async def read_all() -> None:
        pass

    plan = Plan(urls=("http://127.0.0.1:1/",), connections=1, hold_s=10.0, events=("0.1s mark x", "0.2s run true"))
    progress: Any = SimpleNamespace(plan=plan, zero_s=begun_s, is_in=lambda phase: phase == "hold")
    recorder: Any = SimpleNamespace(event=recorded.append, event_begun=recorded.append)
    generator: Any = SimpleNamespace(hold=lambda begun: None, command_lasts=orders.append)
    events = HoldEvents(progress, recorder, generator, read_all)
    before = {SERVER_PROCESSES: 3.0, SERVER_JOINED: 0.0, SERVER_ENDED: 0.0}
    events.sample(before)
    async with asyncio.timeout(20), events.while_held():
        while len(recorded) < 3:
            await asyncio.sleep(0.01)
        events.sample(before)
        assert all(order.runs for order in orders)
        progress.is_in = lambda name: name == phase
        events.sample({**before, SERVER_JOINED: 2.0})
    # It ended.
    ends = [order for order in orders if order.runs]
    assert [order.event for order in ends] == [2]
    assert [order.event for order in orders if not order.runs] == [2] * (phase == "hold")
    for order in orders:
        assert 0 < order.until - begun_s - plan.heard_within_s < 20


async def test_a_command_lasts_for_as_long_as_it_runs() -> None:
    """With each reading, and once more when it has ended: also of a server whose processes are not read."""
    begun_s = time.monotonic()
    recorded: list[Any] = []
    orders: list[Any] = []

    async def read_all() -> None:
        pass

    plan = Plan(urls=("http://127.0.0.1:1/",), connections=1, hold_s=10.0, events=("0.1s run 'sleep 0.5'",))
    progress: Any = SimpleNamespace(plan=plan, zero_s=begun_s, is_in=lambda phase: phase == "hold")
    recorder: Any = SimpleNamespace(event=recorded.append, event_begun=recorded.append)
    generator: Any = SimpleNamespace(hold=lambda begun: None, command_lasts=orders.append)
    events = HoldEvents(progress, recorder, generator, read_all)
    told = []
    async with asyncio.timeout(20), events.while_held():
        events.sample({})
        told.append(len(orders))
        for count in (1, 2):
            while len(recorded) < count:
                await asyncio.sleep(0.01)
            events.sample({})
            told.append(len(orders))
    # Before it, while it runs, and after its end.
    assert told == [0, 1, 2]
    assert {(order.event, order.runs) for order in orders} == {(1, True)}
    during, ended = [order.until - begun_s - plan.heard_within_s for order in orders]
    assert 0.1 <= during <= 0.5 < ended


async def test_a_resumed_hold_repeats_none_that_had_begun() -> None:
    """The last second before an interruption is not recorded: the hold seems shorter than until the stall, which had begun."""
    zero_s = time.monotonic() - 30.0
    recorded: list[Any] = []
    holds: list[Any] = []
    words = ("1s run old", "2s drop 5%", "3s stall 20% for 15s", "3.3s storm", "3.6s run new")
    plan = Plan(urls=("http://127.0.0.1:1/",), connections=1, hold_s=10.0, events=words)
    progress: Any = SimpleNamespace(plan=plan, zero_s=zero_s, is_in=lambda phase: phase == "hold")
    recorder: Any = SimpleNamespace(event=recorded.append, event_begun=recorded.append)
    generator: Any = SimpleNamespace(hold=holds.append)

    async def read_all() -> None:
        pass

    events = HoldEvents(progress, recorder, generator, read_all)
    earlier = EarlierPart(held_s=2.9, since_s=5.0, begun=frozenset([2, 3]), recorded=frozenset([3]))
    async with asyncio.timeout(20), events.while_held(earlier):
        while len(recorded) < 4:
            await asyncio.sleep(0.01)
    [begun] = holds
    assert begun.events_s == (1.0, -math.inf, -math.inf, 3.3, 3.6)
    told = [(event.kind, event.fields["number"]) for event in recorded]
    assert told == [("run", 1), ("drop", 2), ("storm", 4), ("run", 5)]
    command, drop, _, new = recorded
    assert (command.at_s, drop.at_s) == (6.0, 7.0)
    # A warning of a command that failed has its status.
    assert ("status" in command.fields, "status" in new.fields) == (False, True)
    assert command.fields["output"] != new.fields["output"]
