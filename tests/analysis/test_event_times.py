"""What began in the time of an event of the plan, or just after a mark, names it."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest
from synthetic_run import a_run, cut, spread, without
from test_slowness import silent, slow

from asyncli.analysis.drift import drifts
from asyncli.analysis.losses import slowness
from asyncli.analysis.losses.attribution import diagnose
from asyncli.analysis.losses.loss_findings import statuses
from asyncli.analysis.losses.own_sockets import SegmentsAgain
from asyncli.analysis.losses.slowness import slow_answers, stalls
from asyncli.analysis.provoked import provoked
from asyncli.analysis.totals import fold
from asyncli.analysis.unlistened import listeners_gone
from asyncli.core.histogram import bucket
from asyncli.findings.slowness import MOST_PERIODS, no_answers
from asyncli.model import metrics
from asyncli.model.records import Deaths, EventCounts, RunEvent, mark
from asyncli.model.run import EVENT_SETTLES_S, Run
from asyncli.model.samples import Series
from asyncli.report.summary import summarise

BEGUN_S = 28.5


def command(run: Run, *, begun_s: float = BEGUN_S, took_s: float = 4.0, number: int = 1) -> Run:
    """The run with a command of the plan at that time."""
    events = (*run.plan.events, f"{10 + number}s run deploy")
    run.plan = msgspec.structs.replace(run.plan, events=events)
    fields = {"number": number, "status": 0, "took_s": took_s, "output": ""}
    run.events.append(RunEvent("run", begun_s, begun_s + took_s, "deploy", fields))
    # What was computed before is of other records.
    return msgspec.structs.replace(run)


def named(finding: Any) -> list[int]:
    return [event["number"] for event in finding.fields["events"]]


def test_a_command_that_ends_nobody_has_a_time_of_its_own() -> None:
    run = command(silent(30, 32))
    assert run.quiet_commands[1].start_s == BEGUN_S
    assert run.quiet_commands[1].end_s == BEGUN_S + 4.0 + EVENT_SETTLES_S
    for t_s, tick in run.ticks:
        if 32 < t_s < 34:
            tick.latency_us.add(3_000_000)
            tick.latency_us.counts = {key: 100 * count for key, count in tick.latency_us.counts.items()}
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1]
    assert (done.is_quiet, done.no_answers_s) == (True, pytest.approx(3.0))
    assert done.latency_ms.others_p99 is not None
    assert done.latency_ms.outside_p99 is not None
    assert done.latency_ms.others_p99 > 1_000 > done.latency_ms.outside_p99
    [event] = summarise(run).events or []
    assert (event.ended, event.no_answers_s, event.back) == (0, pytest.approx(3.0), msgspec.UNSET)


def test_a_command_that_was_not_run_has_none() -> None:
    run = command(a_run(1_000), took_s=0.0)
    assert (run.quiet_commands, run.commands) == ({}, {})
    assert stalls(command(silent(30, 32), took_s=0.0))[0].fields["events"] == []


def test_an_event_lasts_at_least_as_long_as_its_command() -> None:
    run = command(a_run(1_000), took_s=12.0)
    [tick] = [tick for t_s, tick in run.ticks if BEGUN_S < t_s <= BEGUN_S + 1]
    tick.events = {1: EventCounts(ended=5)}
    assert run.quiet_commands == {}
    assert run.event_windows[1].end_s == BEGUN_S + 12.0 + EVENT_SETTLES_S


@pytest.mark.parametrize(("hold_s", "takes", "is_named"), [(100.0, 0.9, True), (200.0, 0.4, False), (12.0, 0.4, False)])
def test_a_command_through_the_hold_leaves_too_little_of_it_for_growth(hold_s: float, takes: float, is_named: bool) -> None:
    """With a hold that is too short by itself no event is the reason."""
    run = a_run(1_000, hold_s=hold_s)
    assert run.hold is not None
    run = command(run, begun_s=run.hold.start_s + 5.0, took_s=takes * hold_s)
    told = [finding.fields["left_by_events_s"] for finding in drifts(run)[1] if finding.code == "drift_unknown"]
    assert any(left_s is not None for left_s in told) is is_named


def test_a_mark_of_the_plan_does_not_end_the_event_before_it() -> None:
    run = command(a_run(1_000))
    run.events.append(RunEvent("mark", BEGUN_S + 1, BEGUN_S + 1, "half way", {"number": 2}))
    assert run.quiet_commands[1].end_s == BEGUN_S + 4.0 + EVENT_SETTLES_S


def stormed(run: Run, *, number: int, at_s: float, back_s: float, ended: int = 100) -> Run:
    """The run with a storm whose clients are back at that instant; with nobody ended it found all away already."""
    events = (*run.plan.events, f"{10 + number}s storm")
    run.plan = msgspec.structs.replace(run.plan, events=events)
    run.events.append(RunEvent("storm", at_s, None, "storm", {"number": number}))
    for t_s, tick in run.ticks:
        if at_s < t_s <= at_s + 1:
            tick.events[number] = EventCounts(chosen=100, absent=100 - ended, ended=ended, clients=ended)
        if ended and back_s < t_s <= back_s + 1:
            tick.events[number] = EventCounts(opened=ended)
    return msgspec.structs.replace(run)


@pytest.mark.parametrize("by_whom", ["a command", "an event that took nobody"])
def test_what_takes_nobody_does_not_end_the_time_of_an_event_whose_clients_are_away(by_whom: str) -> None:
    """Only the time in which memory settles: what it then shows may be of either."""
    run = stormed(a_run(1_000), number=1, at_s=25.0, back_s=30.0)
    if by_whom == "a command":
        run = command(run, number=2, took_s=0.1)
    else:
        run = stormed(run, number=2, at_s=BEGUN_S, back_s=BEGUN_S, ended=0)
    window = run.event_windows[1]
    [last_s] = [t_s for t_s, tick in run.ticks if 1 in tick.events and tick.events[1].opened]
    assert (window.start_s, window.end_s) == (25.0, last_s)
    later = command(stormed(a_run(1_000), number=1, at_s=25.0, back_s=30.0), number=2, begun_s=33.0, took_s=0.1)
    assert later.event_windows[1].end_s == 33.0


def test_what_takes_clients_ends_the_time_of_the_event_before_it() -> None:
    run = stormed(a_run(1_000), number=1, at_s=25.0, back_s=30.0)
    run = stormed(run, number=2, at_s=BEGUN_S, back_s=32.0, ended=1)
    assert run.event_windows[1].end_s == BEGUN_S


@pytest.mark.parametrize(("begun_s", "events"), [(28.5, [1]), (30.0, [1]), (31.0, []), (5.0, [])])
def test_a_silence_names_the_command_in_whose_time_it_began(begun_s: float, events: list[int]) -> None:
    [finding] = stalls(command(silent(30, 32), begun_s=begun_s))
    assert named(finding) == events
    assert ("event 1" in finding.evidence) == bool(events)
    # Its own output says more than routes and firewalls do.
    assert ("event 1" in finding.remedy, "firewalls" in finding.remedy) == (bool(events), not events)


@pytest.mark.parametrize(
    ("first", "second", "marked", "events"),
    [
        # Both were at work: an earlier one that only goes on did nothing new.
        ((28.5, 9.0), (29.5, 4.0), False, [2]),
        # One that was over began later than the one that was at work: nothing tells which it was.
        ((20.5, 19.0), (28.5, 0.1), False, [1, 2]),
        # One that was over when the one that was at work began.
        ((27.0, 0.1), (29.5, 4.0), False, [2]),
        # Neither was at work, and then the user did something.
        ((27.0, 0.1), (28.0, 0.1), False, [1, 2]),
        ((27.0, 0.1), (28.0, 0.1), True, []),
        # A mark while it was at work.
        ((20.5, 19.0), (28.5, 0.1), True, [1]),
    ],
)
def test_a_silence_belongs_to_the_event_that_was_at_work_and_began_last(
    first: tuple[float, float], second: tuple[float, float], marked: bool, events: list[int]
) -> None:
    run = silent(30, 32)
    for number, (begun_s, took_s) in enumerate((first, second), start=1):
        run = command(run, begun_s=begun_s, took_s=took_s, number=number)
    if marked:
        run.events.append(mark(29.5, "another thing"))
    [finding] = stalls(run)
    assert named(finding) == events
    assert (finding.fields["mark"] is not None) is marked
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))
    assert [number for number in (1, 2) if done[number].no_answers_s] == events


@pytest.mark.parametrize(("in_last_second", "events"), [(0.05, [1]), (0.95, [2]), (1.0, [2])])
def test_a_silence_that_had_begun_before_an_event_is_not_that_one_s(in_last_second: float, events: list[int]) -> None:
    """By the answers in the last second with any: the second event began as it ended."""
    run = silent(30, 32)
    for t_s, tick in run.ticks:
        if t_s < 30:
            tick.answered = round(200 * (in_last_second if t_s > 29 else 1.0))
    run = command(command(run, begun_s=28.1, took_s=0.2), begun_s=29.1, took_s=0.1, number=2)
    [finding] = stalls(run)
    assert named(finding) == events
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))
    assert [number for number in (1, 2) if done[number].no_answers_s] == events


@pytest.mark.parametrize(("last_s", "events"), [(28.9, [1]), (29.08, [2]), (29.1, [2])])
def test_a_silence_of_which_the_last_answer_is_known_belongs_to_the_event_of_that_instant(last_s: float, events: list[int]) -> None:
    """Of 200 answers a second, 40 were due between the last one and the beginning of the second event, though most of that second came."""
    run = silent(30, 32)
    [(t_s, tick)] = [(t_s, tick) for t_s, tick in run.ticks if 29.0 < t_s < 29.5]
    tick.answered_s = (tick.second - 1.0, tick.second - (t_s - last_s))
    run = command(command(run, begun_s=28.1, took_s=0.2), begun_s=29.1, took_s=0.1, number=2)
    for _, other in run.ticks:
        other.answered = min(other.answered, 200)
    tick.answered = 180
    [finding] = stalls(run)
    assert named(finding) == events


def test_each_silence_that_a_command_began_is_named_with_its_time_and_its_event() -> None:
    """Two silences by two commands: the longer one is the second."""
    run = silent(50, 53)
    for t_s, tick in run.ticks:
        if 30 < t_s < 33:
            tick.answered, tick.awaiting = 0, 9
    run = command(command(run, begun_s=28.9, took_s=3.0), begun_s=48.9, took_s=4.0, number=2)
    [finding] = stalls(run)
    assert named(finding) == [2]
    [other] = finding.fields["others"]
    assert (other["from_s"], other["to_s"]) == pytest.approx((29.1, 32.1), abs=0.2)
    assert [event["number"] for event in other["events"]] == [1]
    assert "such period," in finding.evidence
    assert "event 1," in finding.evidence
    assert all(event in finding.remedy for event in ("event 1", "event 2"))


def test_of_many_silences_those_in_the_time_of_an_event_are_named_first() -> None:
    run = silent(0, 0)
    for t_s, tick in run.ticks:
        if any(first < t_s < first + 3 for first in (14, 22, 31, 45, 60)):
            tick.answered, tick.awaiting = 0, 9
    run = command(run, begun_s=58.9, took_s=3.0)
    [finding] = stalls(run)
    assert finding.fields["times"] == 5
    others = finding.fields["others"]
    assert len(others) == MOST_PERIODS
    assert [bool(other["events"]) for other in others] == [False, False, True]
    assert "periods, such" in finding.evidence


def test_of_many_silences_no_more_are_looked_at_than_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many events has a silence: the times of all events are put together once."""
    run = silent(0, 0)
    firsts = range(14, 64, 5)
    for number, first in enumerate(firsts, start=1):
        run = command(run, begun_s=first - 0.1, took_s=0.5, number=number)
    for t_s, tick in run.ticks:
        if any(first < t_s < first + 3 for first in firsts):
            tick.answered, tick.awaiting = 0, 9
    looked_at = Mock(wraps=slowness.events_of_silence)
    put_together = Mock(wraps=slowness.times_of_events)
    monkeypatch.setattr(slowness, "events_of_silence", looked_at)
    monkeypatch.setattr(slowness, "times_of_events", put_together)
    [finding] = stalls(run)
    assert finding.fields["times"] == len(firsts)
    assert all(other["events"] for other in finding.fields["others"])
    assert (looked_at.call_count, put_together.call_count) == (1 + MOST_PERIODS, 1)


def test_what_was_sent_again_is_gone_through_once_for_all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(1_000)
    for number, begun_s in enumerate((20.0, 35.0, 50.0), start=1):
        run = command(run, begun_s=begun_s, took_s=0.5, number=number)
    sent_again = MagicMock()
    sent_again.__iter__.side_effect = lambda: iter(
        [
            SegmentsAgain(began_s=20.5, seen_s=24.0, segments=3),
            SegmentsAgain(began_s=34.0, seen_s=36.0, segments=5),
            SegmentsAgain(began_s=36.0, seen_s=36.0, segments=7),
            SegmentsAgain(began_s=51.0, seen_s=52.0, segments=11, event=2),
        ]
    )
    monkeypatch.setattr("asyncli.analysis.provoked.all_sent_again", lambda _: sent_again)
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))
    assert [done[number].segments_sent_again for number in (1, 2, 3)] == [3, 7 + 11, 0]
    assert sent_again.__iter__.call_count == 1


def test_a_path_that_was_down_is_looked_at_before_a_command() -> None:
    told = no_answers(30.0, 34.0, 10, "nginx", "unacknowledged", None, 1, None, None, events=[{"number": 1, "kind": "run"}])
    assert told.remedy.startswith("see routes")
    assert "event 1" in told.remedy


def test_errors_that_came_before_an_event_are_not_that_one_s() -> None:
    """A server that answers with errors from the first heartbeat on, or since the event before."""
    always = command(with_errors(a_run(1_000), *range(80)))
    for _, tick in always.ticks:
        tick.answered = 10
    [finding] = statuses(always, fold(always))
    assert named(finding) == []
    since = command(command(with_errors(a_run(1_000), *range(30, 60)), begun_s=29.8, took_s=30.0), begun_s=33.5, took_s=30.0, number=2)
    for _, tick in since.ticks:
        tick.answered = 10
    [finding] = statuses(since, fold(since))
    assert named(finding) == [1]


def test_error_answers_name_no_command_that_only_goes_on() -> None:
    run = command(command(a_run(1_000), begun_s=20.0, took_s=25.0), begun_s=28.5, number=2)
    [finding] = statuses(run, fold(with_errors(run, 30, 31)))
    assert (named(finding), finding.fields["in_events"]) == ([2], 20)


@pytest.mark.parametrize(
    ("begun_s", "took_s", "events", "words"),
    [
        # Answers of 2 s to 17 s in the seconds from 30 to 35: most were due from 27 to 33.
        (12.5, 18.0, [1], "all of these were due in the time of event 1, a planned command"),
        (26.5, 4.0, [1], " of these were due in the time of event 1"),
        (32.5, 4.0, [], ""),
        (5.0, 4.0, [], ""),
    ],
)
def test_late_answers_name_the_event_in_whose_time_most_were_due(begun_s: float, took_s: float, events: list[int], words: str) -> None:
    run = command(slow(30, 35, 2_800_000), begun_s=begun_s, took_s=took_s)
    [finding] = slow_answers(run)
    assert named(finding) == events
    assert words in finding.evidence
    is_all = finding.fields["in_events"] == finding.fields["late"]
    assert is_all is words.startswith("all")
    clauses = finding.remedy.split("; ")
    assert ["event 1" in clause for clause in clauses] == ([True, False] if events else [False])
    assert "workers" in clauses[-1]


def late_in_the_time_of_two(second_s: float, *, late_s: float = 35.0) -> Run:
    """Half of the heartbeats of the seconds from 29 on are answered at once after ``late_s``; one command goes on for all that time, and
    another begins meanwhile."""
    run = command(a_run(1_000), begun_s=BEGUN_S, took_s=late_s - BEGUN_S)
    run = command(run, begun_s=second_s, took_s=0.1, number=2)
    for t_s, tick in run.ticks:
        if 28 < t_s < late_s:
            tick.answered //= 2
            tick.latency_us = spread(420, tick.answered)
        if late_s < t_s < late_s + 1:
            for waited_s in range(1, int(late_s) - 28):
                tick.answered += 100
                tick.latency_us.counts[bucket(waited_s * 1_000_000)] = 100
                tick.latency_us.greatest = waited_s * 1_000_000
    return msgspec.structs.replace(run)


@pytest.mark.parametrize(("second_s", "limit_s"), [(29.5, 4.0), (32.5, 1.0)])
def test_a_heartbeat_counts_in_the_time_of_each_event_in_which_it_was_due(second_s: float, limit_s: float) -> None:
    """They came in the time of the later one alone, which had them all."""
    run = late_in_the_time_of_two(second_s)
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))
    first, second = done[1].latency_ms, done[2].latency_ms
    assert first.others_p99 is not None
    assert second.others_p99 is not None
    assert first.others_p99 >= 5_000
    assert second.others_p99 >= limit_s * 1e3
    # What was due before the second one began had waited for longer.
    assert first.others_p99 >= second.others_p99
    assert first.outside_p99 == second.outside_p99
    assert first.outside_p99 is not None
    assert first.outside_p99 < 10
    [finding] = slow_answers(run)
    assert named(finding) == [1, 2]


def test_a_heartbeat_without_an_answer_counts_when_it_was_due() -> None:
    """Those that wait for ten seconds are lost when the command has long been over."""
    run = command(a_run(1_000), took_s=0.2)
    for t_s, tick in run.ticks:
        if 40 < t_s < 42:
            tick.deaths = {"heartbeat_timeout": Deaths(count=100)}
            tick.latency_us.counts[bucket(10_000_000)] = 100
            tick.latency_us.greatest = 10_000_000
    latency = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1].latency_ms
    assert latency.others_p99 == pytest.approx(10_000, rel=0.01)
    assert latency.outside_p99 is not None
    assert latency.outside_p99 < 10


def ended_by_another(run: Run, asked: int) -> Run:
    for t_s, tick in run.ticks:
        if 30 < t_s < 31:
            tick.events = {2: EventCounts(ended=500, asked=asked)}
    run.events.append(RunEvent("drop", 30.0, 30.0, "drop 50%", {"number": 2}))
    return msgspec.structs.replace(run)


def killed(run: Run, awaiting: int) -> Run:
    """The run of which nothing is recorded from its 33rd second on."""
    cut(run, 33.0)
    run.ticks[-1][1].awaiting = awaiting
    return msgspec.structs.replace(run)


@pytest.mark.parametrize(("lacking", "is_known"), [(2, True), (400, False)])
def test_a_percentile_is_not_known_where_too_many_waits_are_not(lacking: int, is_known: bool) -> None:
    for run in (ended_by_another(command(a_run(1_000)), lacking), killed(command(a_run(1_000), took_s=0.2), lacking)):
        latency = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1].latency_ms
        assert (latency.others_p99 is not None) is is_known
    # Its own clients are not the others.
    own = provoked(ended_by_another(command(a_run(1_000)), lacking), Series())[2].latency_ms
    assert own.others_p99 is not None


@pytest.mark.parametrize("stopped", [9.0, 1.0, 0.0])
def test_without_a_status_page_a_stopped_server_is_told_by_its_processes(stopped: float) -> None:
    run = without(command(silent(30, 34)), "status.")
    for sample in run.samples:
        sample.values["server.stopped"] = stopped
        sample.values["server.cpu_s"] = 9.0
    [finding] = stalls(run)
    is_told = stopped == 9.0
    assert (finding.fields["why"], finding.fields["page_silent"]) == ("stopped" if is_told else "unknown", False)
    assert "status page" not in finding.evidence


@pytest.mark.parametrize(
    ("stopped", "cores", "is_silent", "sent", "stands_still"),
    [
        # The worker of a server whose master sleeps.
        (1.0, 0.0, True, 60, True),
        # A helper was stopped: the others serve, or compute.
        (1.0, 0.0, False, 60, False),
        (1.0, 0.5, True, 60, False),
        # Its processes wait for something, of which nothing tells.
        (0.0, 0.0, True, 60, False),
        # So few were sent that chance had them all go to the one that was stopped.
        (1.0, 0.0, True, 0, False),
    ],
)
def test_a_server_stands_still_of_which_a_part_is_stopped_and_the_rest_serves_nobody(
    stopped: float, cores: float, is_silent: bool, sent: int, stands_still: bool
) -> None:
    run = without(command(silent(30, 34) if is_silent else a_run(1_000)), "status.", "server.workers")
    for sample in run.samples:
        halted = stopped if 29.5 < sample.t_s < 34.5 else 0.0
        sample.values |= {"server.processes": 2.0, "server.stopped": halted, "server.cpu_s": 9.0 + cores * sample.t_s}
    for t_s, tick in run.ticks:
        if 30 < t_s < 35:
            tick.sent, tick.bytes_received = sent, 0 if is_silent else 1
        elif is_silent and 29 < t_s < 30:
            tick.sent = tick.answered
    done = provoked(run, run.series(metrics.SERVER_PSS_BYTES))[1]
    assert done.stood_still_s == pytest.approx(4.0 if stands_still else 0.0, abs=1.1 if stands_still else 0.0)


def with_errors(run: Run, *instants: int) -> Run:
    """Ten heartbeats with an error in each of these seconds."""
    for t_s, tick in run.ticks:
        if int(t_s) in instants:
            tick.by_status = {503: 10}
    return run


@pytest.mark.parametrize(
    ("instants", "events", "came"),
    [((30, 31), [1], 20), ((10, 30, 31), [1], 20), ((30, 50, 51, 52), [1], 0), ((10, 30, 50, 51), [], 0), ((10,), [], 0)],
)
def test_error_answers_name_the_event_in_whose_time_most_came_or_the_first(instants: tuple[int, ...], events: list[int], came: int) -> None:
    run = with_errors(command(a_run(1_000)), *instants)
    [finding] = statuses(run, fold(run))
    assert (named(finding), finding.fields["in_events"]) == (events, came)
    assert ("event 1" in finding.remedy) == bool(events)


def with_losses(run: Run, at_s: int = 45) -> Run:
    """All of 1,000 are closed in a second."""
    for t_s, tick in run.ticks:
        if at_s < t_s < at_s + 1:
            tick.deaths = {"closed_idle": Deaths(count=1_000)}
        if t_s > at_s:
            tick.held = 0
    return msgspec.structs.replace(run)


def why_lost(run: Run) -> str:
    [diagnosis] = diagnose(run, fold(run))
    return diagnosis.evidence


@pytest.mark.parametrize(("before_s", "words"), [(3.0, "just after your mark 'deploy {1.2}'"), (-0.3, "within a second of your mark"), (20.0, "")])
def test_losses_name_the_mark_just_before_them(before_s: float, words: str) -> None:
    run = with_losses(a_run(1_000))
    from_s = min(t_s for t_s, tick in run.ticks if tick.lost) - 1.0
    run.events.append(mark(from_s - before_s, "deploy {1.2}"))
    why = why_lost(run)
    assert words in why
    assert ("your mark" in why) == bool(words)


def test_a_silence_names_a_mark_too() -> None:
    run = silent(30, 32)
    run.events.append(mark(28.0, "before"))
    assert "mark 'before'" in stalls(run)[0].evidence


def listening(run: Run, *, gone_s: float, back_s: float = 1e9) -> Run:
    """The server's listening socket is gone between two instants."""
    for sample in run.samples:
        listens = not gone_s <= sample.t_s < back_s
        sample.values["server.listeners"] = float(listens)
        if listens:
            sample.values["server.listeners_backlog"] = 511.0
    return msgspec.structs.replace(run)


def test_a_listener_that_is_gone_while_connections_are_held() -> None:
    run = listening(command(a_run(1_000)), gone_s=31.0)
    [gone] = listeners_gone(run)
    assert (gone.code, named(gone), gone.fields["held"]) == ("listen_gone", [1], 1_000)
    assert (gone.fields["from_s"], gone.fields["until_s"]) == (pytest.approx(31.0, abs=1.0), None)
    # A gap of a second is a restart.
    assert listeners_gone(listening(a_run(1_000), gone_s=31.0, back_s=33.0)) == []
    [back] = listeners_gone(listening(a_run(1_000), gone_s=31.0, back_s=39.0))
    assert back.fields["until_s"] == pytest.approx(39.0, abs=1.0)
    # Where a connect was granted, something listened.
    granted = listening(a_run(1_000), gone_s=31.0, back_s=39.0)
    for t_s, tick in granted.ticks:
        if 33 < t_s < 34:
            tick.opened = 1
    assert listeners_gone(granted) == []
    # Of a server behind the one that clients connect to, no backlog is read.
    assert listeners_gone(without(listening(a_run(1_000), gone_s=31.0), "server.listeners_backlog")) == []


def test_who_loses_all_with_the_listener_holds_nobody_without_one() -> None:
    assert listeners_gone(listening(with_losses(a_run(1_000), 30), gone_s=30.5)) == []


def test_losses_name_the_event_after_which_nothing_listened() -> None:
    run = listening(with_losses(command(a_run(1_000))), gone_s=31.0)
    [diagnosis] = diagnose(run, fold(run))
    assert "event 1" in diagnosis.evidence
    assert "event 1" in diagnosis.remedy
    # It ceases to listen with what ends the connections: that says nothing.
    run = listening(with_losses(command(a_run(1_000))), gone_s=45.5)
    assert "event 1" not in why_lost(run)


def test_of_the_run_s_own_word_of_it_the_report_says_the_better_one() -> None:
    run = listening(command(a_run(1_000)), gone_s=31.0)
    [gone] = listeners_gone(run)
    run.findings.append(msgspec.structs.replace(gone, evidence="while it lasted"))
    told = [finding.evidence for finding in summarise(run).findings if finding.code == gone.code]
    assert told == [gone.evidence]
