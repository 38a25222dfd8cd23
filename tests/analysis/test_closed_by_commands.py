"""Whether the server ended silent clients and slow readers for what they did, or by a command that ended all others too."""

from __future__ import annotations

import msgspec
import pytest

from asyncli.analysis.closed_by_commands import closed_by_commands
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import provoked
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import EventCounts, Phase, RunEvent, Sample, Tick
from asyncli.model.run import Run
from asyncli.report.event_lines import line_of
from asyncli.report.run_provoked import _comeback, _command, _done
from asyncli.report.summary import summarise
from asyncli.report.summary_parts import EventPart, OfAnotherEvent

MB = 1_000_000.0
#: Ten of a hundred stall, or are silent, from 20 s on for 20 s; the command begins after 30 s, and ends connections 50 ms later.
STALL_S, COMMAND_S = 20.0, 30.0


def a_run(
    *, ends_s: list[float], unseen: int = 0, by_command: int = 90, words: str = "stall 10% for 20s", command_s: float = COMMAND_S, memory_s: float = 0.0
) -> Run:
    """``ends_s``: how long after the event the end of each client was seen that the server ended; ``unseen``: how many more it ended. ``memory_s``:
    the server's memory grows by a MB a second for so long."""
    is_stall = words.startswith("stall")
    ticks = [(float(second), Tick(second=second, held=100, workers=1)) for second in range(5, 66)]
    begun = EventCounts(chosen=10, clients=10)
    if is_stall:
        begun.stalled = 10
    else:
        begun.ended = begun.silenced = 10
    ticks[16][1].events[1] = begun
    for t_s, tick in ticks:
        if not is_stall and t_s > STALL_S:
            tick.held = 90
    closed = EventCounts(closed=len(ends_s) + unseen)
    if is_stall:
        closed.closed_unseen = closed.resumed = unseen
        closed.closes = {"closed_idle": len(ends_s) + unseen}
        closed.waited_bytes = 100_000_000
    for after_s in ends_s:
        closed.closed_ms.add(1e3 * after_s)
    for _ in range(len(ends_s) + unseen):
        closed.back_ms.add(500)
        closed.away_ms.add(11_000)
    last_s = STALL_S + max(ends_s, default=20.0)
    ticks[int(last_s) + 1 - 5][1].events[1] = closed
    commanded = EventCounts(chosen=by_command, ended=by_command, clients=by_command)
    for _ in range(by_command):
        commanded.closed_ms.add(50)
        commanded.back_ms.add(550)
        commanded.away_ms.add(500)
    if by_command:
        ticks[int(command_s) + 1 - 5][1].events[2] = commanded
    samples = []
    for second in range(66):
        grown = MB * min(memory_s, max(0.0, second - STALL_S))
        samples.append(Sample(float(second), {metrics.SERVER_PSS_BYTES: 50 * MB + grown}))
    phases = [Phase("baseline", 0, 4), Phase("ramp", 4, 5), Phase("hold", 5, 65), Phase("drain", 65, 66)]
    plan = Plan(urls=("http://127.0.0.1/",), connections=100, hold_s=60.0, events=(f"15s {words}", f"{command_s - 5:.0f}s run ./deploy"))
    events = [
        RunEvent(words.split(maxsplit=1)[0], STALL_S, None, words, {"number": 1}),
        RunEvent("run", command_s, command_s + 0.5, "./deploy", {"number": 2, "took_s": 0.5, "status": 0}),
    ]
    return Run("", "", plan, {"local": True}, phases, ticks, samples, [], [], complete=True, events=events)


def closings(run: Run, noticed: Noticed | None = None) -> list[tuple[int, int, int, bool]]:
    by_event = {} if noticed is None else {1: noticed}
    return [(of.event, of.command, of.count, of.certain) for of in closed_by_commands(run, by_event)]


def test_a_restart_ends_slow_readers_as_all_others() -> None:
    assert closings(a_run(ends_s=[10.05] * 10)) == [(1, 2, 10, True)]
    # asyncli sees some of them late.
    assert closings(a_run(ends_s=[10.05] * 9 + [10.9])) == [(1, 2, 10, True)]


@pytest.mark.parametrize("by_command", [0, 2])
def test_a_server_that_ends_slow_readers_alone_does_so_for_their_reading(by_command: int) -> None:
    """A command publishes much, and slow readers are ended in its time."""
    assert closings(a_run(ends_s=[10.05] * 10, by_command=by_command)) == []


@pytest.mark.parametrize(("ended", "known"), [(5, [(1, 2, 5, True)]), (10, [])])
def test_a_restart_of_half_of_the_workers_ends_half_of_the_slow_readers(ended: int, known: list[tuple[int, int, int, bool]]) -> None:
    assert closings(a_run(ends_s=[10.05] * ended, by_command=45)) == known


def test_whom_the_server_ended_before_the_command_it_ended_for_their_reading() -> None:
    assert closings(a_run(ends_s=[3.0] * 10)) == []
    assert closings(a_run(ends_s=[3.0] * 4 + [10.05] * 6)) == [(1, 2, 6, True)]


@pytest.mark.parametrize("words", ["stall 10% for 20s", "vanish 10% for 20s then return"])
def test_an_end_that_was_seen_only_later_may_have_been_before_the_command(words: str) -> None:
    assert closings(a_run(ends_s=[], unseen=10, words=words)) == [(1, 2, 10, False)]
    # A command that was over before, or that came later, ended none of them.
    assert closings(a_run(ends_s=[], unseen=10, words=words, command_s=10.0)) == []
    assert closings(a_run(ends_s=[], unseen=10, words=words, command_s=50.0)) == []


def test_the_server_s_count_tells_whether_it_held_the_silent_ones_until_the_command() -> None:
    run = a_run(ends_s=[], unseen=10, words="vanish 10% for 20s then return")
    assert closings(run, Noticed(left=10, left_after_s=9.5)) == [(1, 2, 10, True)]
    assert closings(run, Noticed(left=10, left_after_s=5.0)) == [(1, 2, 10, False)]
    assert closings(run, Noticed(left=4, left_after_s=9.5)) == [(1, 2, 10, False)]
    assert closings(run, Noticed(all_s=6.0)) == []


@pytest.mark.parametrize(("ends_s", "status"), [(10.05, "measured"), (8.05, "at_least")])
def test_a_slow_reader_that_a_restart_ended_cost_what_it_had_until_then(ends_s: float, status: str) -> None:
    run = a_run(ends_s=[ends_s] * 10, memory_s=4.0)
    costs = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1].slow_readers
    assert costs is not None
    assert (costs.user.status, costs.user.per_connection) == (status, 0.4 * MB)


def events_of(run: Run) -> tuple[EventPart, EventPart]:
    events = summarise(run).events
    assert isinstance(events, list)
    stall, command = events
    return stall, command


def test_both_events_say_whom_the_command_ended() -> None:
    stall, command = events_of(a_run(ends_s=[10.05] * 10))
    assert (stall.closed, stall.closed_by) == (10, [OfAnotherEvent(2, 10, certain=True)])
    assert (command.ended, command.ended_of_others) == (90, [OfAnotherEvent(1, 10, certain=True)])
    assert "event 2" in line_of(stall, "http")
    assert "10 more" in line_of(command, "http")
    assert "event 2" in _done(stall)
    assert "by event" in _comeback(stall)
    assert "up to" not in _comeback(stall)
    assert "10 that" in _command(command)


def test_what_may_have_been_before_is_no_more_than_that() -> None:
    vanish, command = events_of(a_run(ends_s=[], unseen=10, words="vanish 10% for 20s then return"))
    assert "up to" in _comeback(vanish)
    assert "up to" in line_of(command, "http")
    assert "up to" in _command(command)


def test_without_a_command_the_server_has_ended_them() -> None:
    stall, command = events_of(a_run(ends_s=[10.05] * 10, by_command=0))
    assert (stall.closed_by, command.ended_of_others) == (msgspec.UNSET, msgspec.UNSET)
    assert "the server" in line_of(stall, "http")
    assert "event" not in _done(stall)
