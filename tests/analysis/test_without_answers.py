"""How long no client had an answer in an event's time: those who were connected, and those who tried to come back."""

from __future__ import annotations

import msgspec
import pytest
from synthetic_run import a_run

from asyncli.analysis.without_answers import longest_without_answers
from asyncli.model.records import EventCounts, Gap, RunEvent
from asyncli.model.run import Run

BEGUN_S = 30.0


def restart(*, refused: dict[int, int], back_s: int = 36, error_s: int | None = None, turn_s: int | None = None) -> Run:
    """A command stops the server and starts it after six seconds: it ends all, of whom so many connect in each second in vain."""
    run = a_run(1_000)
    run.plan = msgspec.structs.replace(run.plan, events=("28s run deploy",))
    run.events.append(RunEvent("run", BEGUN_S, BEGUN_S + 6.0, "deploy", {"number": 1, "status": 0, "took_s": 6.0, "output": ""}))
    for t_s, tick in run.ticks:
        second = round(t_s)
        if not BEGUN_S < t_s < back_s:
            continue
        tick.sent = tick.answered = tick.awaiting = tick.held = 0
        count = refused.get(second, 0)
        tick.events = {1: EventCounts(attempts=count, failures={"refused": count})}
        if second == error_s:
            tick.events[1].error_answers = {503: 1}
        if second == turn_s:
            tick.longest_turn_s = 0.8
    return run


ALL = dict.fromkeys(range(31, 36), 100)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        # Nobody is connected, and nobody who tries to come back has an answer.
        (restart(refused=ALL), {1: 5.0}),
        # Of few, none tries in some seconds.
        (restart(refused={31: 8, 34: 8}), {1: 4.0}),
        # Nobody wanted an answer, or too few did to tell an outage from chance.
        (restart(refused={}), {}),
        (restart(refused=dict.fromkeys(range(31, 36), 2)), {}),
        # An answer with an error is one; and asyncli itself was stopped for a part of a second.
        (restart(refused=ALL, error_s=33), {1: 2.0}),
        (restart(refused=ALL, turn_s=33), {1: 2.0}),
        # A second is too short.
        (restart(refused=ALL, back_s=32), {}),
    ],
)
def test_an_outage_lasts_while_nobody_has_an_answer(run: Run, expected: dict[int, float]) -> None:
    assert longest_without_answers(run) == {number: pytest.approx(lasted_s) for number, lasted_s in expected.items()}


@pytest.mark.parametrize(("clients", "expected"), [(2, {}), (5, {1: 5.0})])
def test_who_tries_and_waits_is_one_client(clients: int, expected: dict[int, float]) -> None:
    """Each connects in every second, and waits at its end."""
    run = restart(refused=dict.fromkeys(ALL, clients))
    for t_s, tick in run.ticks:
        if round(t_s) in ALL:
            tick.connecting = tick.coming_back = clients
    assert longest_without_answers(run) == {number: pytest.approx(lasted_s) for number, lasted_s in expected.items()}


def test_an_interruption_of_the_run_is_no_outage() -> None:
    """The run was killed two seconds after the first connect in vain, and gone on with two seconds later."""
    run = restart(refused=ALL)
    run.gaps = [Gap(BEGUN_S + 2.5, BEGUN_S + 4.5)]
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if not BEGUN_S + 2.5 < t_s < BEGUN_S + 4.5]
    assert longest_without_answers(run) == {1: pytest.approx(2.0)}


def test_clients_that_read_nothing_want_no_answer() -> None:
    run = a_run(1_000)
    run.plan = msgspec.structs.replace(run.plan, events=("28s stall 100% for 5s",))
    run.events.append(RunEvent("stall", BEGUN_S, BEGUN_S + 5.0, "stall 100% for 5s", {"number": 1}))
    for t_s, tick in run.ticks:
        if BEGUN_S < t_s < BEGUN_S + 5.0:
            tick.awaiting, tick.answered = 800, 0
            tick.events = {1: EventCounts(stalled=1_000 if t_s < BEGUN_S + 1.0 else 0)}
    assert longest_without_answers(run) == {}
    # Of those who read on none has an answer either.
    for t_s, tick in run.ticks:
        if 1 in tick.events:
            tick.events[1].stalled = 600 if t_s < BEGUN_S + 1.0 else 0
    assert longest_without_answers(run) == {1: pytest.approx(5.0)}
