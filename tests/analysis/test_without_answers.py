"""How long no client had an answer in an event's time: those who were connected, and those who tried to come back."""

from __future__ import annotations

import math

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


def at_least(run: Run) -> dict[int, float]:
    """By event, without those that may have been shorter than two seconds."""
    return {number: lasted.at_least_s for number, lasted in longest_without_answers(run).items() if lasted.at_least_s}


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
    assert at_least(run) == {number: pytest.approx(lasted_s) for number, lasted_s in expected.items()}


@pytest.mark.parametrize(("clients", "expected"), [(2, {}), (5, {1: 5.0})])
def test_who_tries_and_waits_is_one_client(clients: int, expected: dict[int, float]) -> None:
    """Each connects in every second, and waits at its end."""
    run = restart(refused=dict.fromkeys(ALL, clients))
    for t_s, tick in run.ticks:
        if round(t_s) in ALL:
            tick.connecting = tick.coming_back = clients
    assert at_least(run) == {number: pytest.approx(lasted_s) for number, lasted_s in expected.items()}


def test_an_interruption_of_the_run_is_no_outage() -> None:
    """The run was killed two seconds after the first connect in vain, and gone on with two seconds later."""
    run = restart(refused=ALL)
    run.gaps = [Gap(BEGUN_S + 2.5, BEGUN_S + 4.5)]
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if not BEGUN_S + 2.5 < t_s < BEGUN_S + 4.5]
    assert at_least(run) == {1: pytest.approx(2.0)}


def test_clients_that_read_nothing_want_no_answer() -> None:
    run = a_run(1_000)
    run.plan = msgspec.structs.replace(run.plan, events=("28s stall 100% for 5s",))
    run.events.append(RunEvent("stall", BEGUN_S, BEGUN_S + 5.0, "stall 100% for 5s", {"number": 1}))
    for t_s, tick in run.ticks:
        if BEGUN_S < t_s < BEGUN_S + 5.0:
            tick.awaiting, tick.answered = 800, 0
            tick.events = {1: EventCounts(stalled=1_000 if t_s < BEGUN_S + 1.0 else 0)}
    assert at_least(run) == {}
    # Of those who read on none has an answer either, from the instant of the event on.
    for t_s, tick in run.ticks:
        if 1 in tick.events:
            tick.events[1].stalled = 600 if t_s < BEGUN_S + 1.0 else 0
    assert at_least(run) == {1: pytest.approx(4.1)}


def timed(run: Run, last_s: float | None = None, first_s: float | None = None) -> Run:
    """The run in whose second with the command's beginning there were answers, the last one at this instant; the next one came at that of
    ``first_s`` (both on the run's clock). None: not recorded, as in older versions.
    """
    (before,) = [row for row in run.ticks if row[0] - 1.0 < BEGUN_S < row[0]]
    after = next(row for row in run.ticks if row[0] > BEGUN_S + 1.0 and row[1].answered)
    before[1].answered = 200
    for instant_s, (t_s, tick) in ((last_s, before), (first_s, after)):
        if instant_s is not None:
            since_t0_s = instant_s - t_s + tick.second
            tick.answered_s = (since_t0_s, since_t0_s)
    return run


@pytest.mark.parametrize(
    ("run", "at_least_s", "at_most_s"),
    [
        (timed(restart(refused=ALL), 30.05, 35.2), 5.15, 5.15),
        # What was before the event is not its time.
        (timed(restart(refused=ALL), 29.6, 35.9), 5.9, 5.9),
        # By whole seconds: from a second before, but not before the event, to a second after.
        (timed(restart(refused=ALL)), 5.0, 6.1),
        (timed(restart(refused=ALL), last_s=30.05), 5.05, 6.05),
        # One second had no answer.
        (timed(restart(refused=ALL, back_s=32), 30.02, 32.05), 2.03, 2.03),
        (timed(restart(refused=ALL, back_s=32)), 0.0, 2.1),
        # asyncli itself stood still as it may have ended.
        (timed(restart(refused=ALL, turn_s=34), 30.05), 3.05, math.inf),
    ],
)
def test_an_outage_lasts_from_the_last_answer_to_the_next_one(run: Run, at_least_s: float, at_most_s: float) -> None:
    assert longest_without_answers(run) == {1: (pytest.approx(at_least_s), pytest.approx(at_most_s))}


def test_an_outage_of_less_than_two_seconds_is_none() -> None:
    assert longest_without_answers(timed(restart(refused=ALL, back_s=32), 30.02, 31.9)) == {}


def test_an_outage_to_the_hold_s_end_has_an_end() -> None:
    run = restart(refused=dict.fromkeys(range(31, 67), 100), back_s=67)
    assert longest_without_answers(run)[1] == (pytest.approx(run.stop_s - 30.1), pytest.approx(run.stop_s - 30.1))
    run.phases = [phase for phase in run.phases if phase.name not in ("drain", "residue")]
    assert longest_without_answers(msgspec.structs.replace(run))[1].at_most_s == math.inf
