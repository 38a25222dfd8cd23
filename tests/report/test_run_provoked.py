"""The words of an event where little or nothing came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from made_runs import KINDS
from recording import write_run
from synthetic_run import a_run, cut

from asyncli.analysis.away import Away, AwayAtLeast
from asyncli.analysis.noticed import Noticed, WhyNotKnown
from asyncli.analysis.provoked import Back, Closed, EventLatency, SentAgain, ServerPrice
from asyncli.analysis.slow_readers import SlowReaderCost, SlowReaders, Why
from asyncli.model.records import EventCounts, Gap, RunEvent
from asyncli.report.event_lines import line_of
from asyncli.report.run_events import _beats_counted, _clean
from asyncli.report.run_provoked import (
    _after_mark,
    _back,
    _comeback,
    _command,
    _done,
    _kept,
    _noticed,
    _others,
    _slow_readers,
    event_blocks,
)
from asyncli.report.summary import summarise
from asyncli.report.summary_parts import EventPart
from asyncli.store.reader import read_run


def storm(*, not_back: int, ended_again: int = 0) -> EventPart:
    part = EventPart(1, "storm", 5.0, None, "storm")
    part.back = Back(None, None, None, None)
    part.ended = 300
    part.ended_again = ended_again
    part.lost_with_worker = 0
    part.not_back = not_back
    part.waiting = part.unheard = 0
    part.attempts = 300 - not_back
    part.failures = {}
    part.phantoms = 0
    return part


def test_connects_are_those_of_the_text_in_the_json_too() -> None:
    """Who is heard again on the same connection makes none, unless the server had ended it."""
    storm, vanish = summarise(KINDS["provoked"]()).events or []
    assert (storm.attempts, vanish.attempts, vanish.returned) == (20_000, 0, 6_000)
    assert "connects" not in _comeback(vanish)
    run = KINDS["provoked"]()
    counts = next(tick.events[2] for _, tick in run.ticks if 2 in tick.events and tick.events[2].returned)
    counts.attempts += 80
    _, vanish = summarise(run).events or []
    assert vanish.attempts == 80
    assert "80 connects" in _comeback(vanish)


def test_fewer_than_half_that_are_back_are_told() -> None:
    """Ctrl-C within a storm."""
    some = _comeback(storm(not_back=256))
    assert some.startswith("44 of")
    assert "256" in some
    assert _comeback(storm(not_back=300)).startswith("none was")


@pytest.mark.parametrize(("absent", "is_told"), [(299, True), (300, False)])
def test_of_an_event_that_took_nobody_no_price_is_told(absent: int, is_told: bool) -> None:
    """What the server spends meanwhile is of the event whose clients were away already."""
    run = a_run(300, hold_s=60.0, events=("20s storm",))
    run.events.append(RunEvent("storm", 30.0, None, "storm", {"number": 1}))
    for t_s, tick in run.ticks:
        if 30 < t_s <= 31:
            tick.events[1] = EventCounts(chosen=300, absent=absent, ended=300 - absent, clients=300 - absent)
            tick.events[1].back_ms.add_counts({5: 300 - absent} if is_told else {})
    blocks = event_blocks(summarise(run).events or [])
    assert (len(blocks) > 2) is is_told


def test_how_connects_failed_is_told_in_words() -> None:
    """A handshake that ended without an answer was not refused."""
    part = storm(not_back=0)
    part.failures = {"reset": 1, "refused": 9_977, "handshake_refused": 17, "handshake_timeout": 3}
    said = _comeback(part)
    assert [count for count in ("1 reset", "9,977 refused", "17 refused") if count not in said] == []
    assert "_" not in said


def test_answers_with_errors_before_they_were_back_are_told() -> None:
    part = storm(not_back=0)
    assert "503" not in _comeback(part)
    part.error_answers = {"502": 7, "503": 1_076}
    said = _comeback(part)
    assert [said.count(count) for count in ("502", "1,076", "503")] == [1, 1, 1]


def test_who_is_ended_again_is_told() -> None:
    said = _comeback(storm(not_back=0, ended_again=150))
    assert said.startswith("150 of")
    assert "150 were" in said
    assert "not back" not in said


def test_why_who_returned_was_not_back_at_once_is_told() -> None:
    """A kernel waits twice as long each time before it sends again."""
    part = storm(not_back=0)
    part.then = "return"
    part.for_s = 8.0
    part.waiting = 3
    part.sent_again = SentAgain(12, 0.31, 2.0, 5.27)
    said = _comeback(part)
    assert [said.count(words) for words in ("12 requests", "310 ms", "5.27 s", "3 were", "no kernel", "after the")] == [1] * 6
    assert "anew" not in said
    assert "awaited" not in said
    assert "no kernel" in line_of(part, "http")
    part.awaited = 12
    said = _comeback(part)
    assert [said.count(words) for words in ("12 awaited", "12 requests", "the other")] == [1, 1, 0]
    part.awaited = 150
    said = _comeback(part)
    assert [said.count(words) for words in ("150 awaited", "12 requests", "other 138")] == [1, 1, 1]
    part.sent_again = msgspec.UNSET
    said = _comeback(part)
    assert [said.count(words) for words in ("150 awaited", "acknowledged all", "own kernel")] == [1, 1, 0]
    part.timed_out = 7
    assert "7 had" in _comeback(part)
    # The hold was over before they were heard again.
    part.cut_after_s = 4.0
    assert "no kernel" not in _comeback(part)


@pytest.mark.parametrize("field", ["ended_again", "waiting", "unheard", "not_back"])
def test_one_connection_has_the_verb_of_one(field: str) -> None:
    event = storm(not_back=0)
    setattr(event, field, 1)
    assert "1 was" in _comeback(event)
    setattr(event, field, 2)
    assert "2 were" in _comeback(event)
    event.chosen = 300
    event.absent = 1
    event.how = "rst"
    event.policy = "now"
    assert "chosen was" in _done(event)


def test_listeners_who_were_sent_nothing_are_neither_back_nor_away() -> None:
    event = storm(not_back=0)
    event.unheard = 300
    said = _comeback(event)
    assert "none was" not in said
    assert "300" in said
    event.unheard = 290
    assert _comeback(event).startswith("10 of")


def test_what_an_interruption_hid_is_told() -> None:
    part = EventPart(1, "stall", 5.0, 9.0, "stall 20% for 15s")
    part.stalled = part.chosen = 40
    part.absent = 0
    part.for_s = 15.0
    assert "interrupted" not in _done(part)
    part.interrupted_after_s = 0.9
    assert "were to" in _done(part)
    # The last seconds are not in a run's file.
    assert ["900 ms" in _done(part), " 2 s" in _done(part)] == [True, True]
    later = msgspec.structs.replace(part, interrupted_after_s=16.0)
    assert "were to" not in _done(later)
    assert " 16 s" in _done(later)
    unseen = EventPart(1, "stall", 5.0, None, "stall 20% for 15s")
    assert event_blocks([unseen]) == []
    unseen.interrupted_after_s = 0.0
    assert len(event_blocks([unseen])) == 1


def test_less_than_half_noticed_is_not_none() -> None:
    part = EventPart(1, "vanish", 5.0, 9.0, "vanish 20%")
    part.ended = 40
    part.noticed = Noticed(left=40, within_s=1.0)
    assert "none" in _noticed(part, part.noticed)
    part.noticed = Noticed(left=23, within_s=1.0)
    assert "none" not in _noticed(part, part.noticed)
    assert "23 of" in _noticed(part, part.noticed)


@pytest.mark.parametrize("then", ["return", "reconnect", "gone"])
def test_when_the_server_noticed_is_told_of_each_who_fell_silent(then: str) -> None:
    part = storm(not_back=0)
    part.kind = "vanish"
    part.then = then
    assert "noticed" not in _back(part)
    part.noticed = Noticed(left=297, left_after_s=5.84, within_s=1.0)
    assert "5.84 s" in _back(part)
    part.noticed = Noticed(why="another_event", all_at_most_s=9.12)
    assert "9.12 s" in _back(part)


@pytest.mark.parametrize("why", get_args(WhyNotKnown))
def test_why_nobody_knows_when_the_server_noticed_has_words(why: Any) -> None:
    part = EventPart(1, "vanish", 5.0, 9.0, "vanish 20%")
    part.noticed = Noticed(why=why)
    assert "not known: " in _noticed(part, part.noticed)


def test_a_command_that_was_not_run_did_not_print_and_did_not_fail_to_end() -> None:
    part = EventPart(4, "run", 5.0, 5.0, "reload")
    part.status = None
    part.took_s = 0.0
    part.output = "not run: a resumed run runs no commands"
    assert "not run" in _command(part)
    assert "printed" not in _command(part)
    ran = msgspec.structs.replace(part, status=3, took_s=0.5, output="x")
    assert 'printed "x"' in _command(ran)
    long = msgspec.structs.replace(ran, output=300 * "first " + "last")
    assert 'first last"' in _command(long)


def test_what_failed_after_events_stands_beside_none_lost() -> None:
    summary = summarise(KINDS["provoked"]())
    assert isinstance(summary.events, list)
    assert _clean(summary, "100/s", "100/s asked").endswith("or failed")
    summary.events[0].failures = {"refused": 910}
    summary.events[0].phantoms = 49
    clean = _clean(summary, "100/s", "100/s asked")
    assert "or failed" not in clean
    assert ("910" in clean, "49" in clean) == (True, True)


def test_heartbeats_that_an_event_ended_are_counted() -> None:
    before = summarise(KINDS["provoked"]())
    run = KINDS["provoked"]()
    next(tick.events[1] for _, tick in run.ticks if 1 in tick.events).asked = 17
    after = summarise(run)
    assert isinstance(after.events, list)
    assert [event.given_up for event in after.events] == [17, 0]
    assert str(_beats_counted(after)) != str(_beats_counted(before))


def test_who_needed_no_connect_has_no_times_of_one() -> None:
    storm, vanish = summarise(KINDS["provoked"]()).events or []
    assert "connect" not in _others(vanish)
    storm.latency_ms = EventLatency(3.0, 5.0, None, None, 1.0, 1.0)
    assert "connects took" in _others(storm)
    assert "first answers" not in _others(storm)


def test_what_was_kept_is_told_for_each_of_those_whose_connections_are_new() -> None:
    part = storm(not_back=0)
    price = ServerPrice(1e6, 2e6, 1.3e6, None, kept=3e5, moves=0.0)
    assert "1,000 B" in _kept(part, price)
    heard_again = msgspec.structs.replace(part, then="return")
    assert "each" not in _kept(heard_again, price)
    lower = ServerPrice(1e6, 2e6, 7e5, None, kept=-3e5, moves=0.0)
    assert _kept(part, lower).startswith("300 kB")
    assert _kept(part, ServerPrice(1e6, 2e6, 1e6, None, kept=0.0, moves=0.0)).startswith("all")
    replaced = msgspec.structs.replace(price, other_processes=True)
    assert "given" not in _kept(part, replaced)
    assert "each" not in _kept(part, replaced)
    hidden = ServerPrice(1e6, 2e6, 9e5, None, moves=2e5, why="moves")
    assert "200 kB" in _kept(part, hidden)


def test_what_was_to_come_is_not_told_as_done() -> None:
    part = storm(not_back=0)
    part.how, part.policy, part.into_hold_s = "rst", "now", 5.0
    assert "at once" in _done(part)
    assert "5.0 s" in _done(part)
    nobody = msgspec.structs.replace(part, attempts=0, policy="fixed:30s")
    assert "to come" in _done(nobody)
    silent = msgspec.structs.replace(nobody, then="reconnect", for_s=20.0, cut_after_s=None)
    assert "fell silent" in _done(silent)
    cut = msgspec.structs.replace(silent, cut_after_s=3.0)
    assert "fell silent" not in _done(cut)
    assert "were to" in _done(cut)


def test_an_interval_of_readings_is_named_as_that() -> None:
    """A second stall may differ by more: only its readings were as near."""
    cost = SlowReaderCost("measured", total=126_000.0, per_connection=12_600.0, error=102.0, grows_per_s=0.0)
    said = _slow_readers(SlowReaders(cost, cost))
    assert said.count("as read)") == 2


def test_a_server_that_sent_nothing_shows_nothing() -> None:
    for why, says in (("nothing_sent", "sends"), ("nothing_waited", "65.5 kB")):
        unknown = SlowReaderCost("unknown", why=why)
        said = _slow_readers(SlowReaders(unknown, unknown))
        assert says in said


@pytest.mark.parametrize("why", get_args(Why))
def test_why_a_slow_reader_s_cost_is_unknown_has_words(why: Any) -> None:
    unknown = SlowReaderCost("unknown", why=why)
    measured = SlowReaderCost("measured", total=126_000.0, per_connection=12_600.0, grows_per_s=0.0)
    assert "unknown amount" in _slow_readers(SlowReaders(unknown, measured))
    assert "not known" in _slow_readers(SlowReaders(unknown, unknown))


def test_windows_without_a_reading_have_no_empty_words() -> None:
    storm, vanish = summarise(KINDS["provoked"]()).events or []
    for event in (storm, vanish):
        event.latency_ms = EventLatency(None, None, None, None, None, 1.0)
        assert "p99" not in _others(event)


def test_a_command_says_when_the_server_ended_connections() -> None:
    part = msgspec.structs.replace(storm(not_back=0), status=0, took_s=0.5, output="", policy="now")
    assert "9 s" not in _command(part)
    part.closed_after = Closed(9.0, 9.1, 9.3, 0)
    assert "9 s," in _command(part)
    part.closed_after = Closed(9.0, 9.5, 12.0, 0)
    assert ("9 s," in _command(part), "9 s" in _command(part), "12 s," in _command(part)) == (False, True, True)


@pytest.mark.parametrize(("marked_s", "is_named"), [(0.3, False), (4.5, True), (13.0, False)])
def test_what_ended_after_a_mark_of_the_user_names_it(marked_s: float, is_named: bool) -> None:
    """Not one while the command ran, nor one after the last end."""
    part = deployed()
    part.took_s = 0.5
    part.closed_after = Closed(0.2, 6.0, 9.0, 0)
    note = EventPart(1, "mark", part.at_s + marked_s, None, "by hand")
    assert ("by hand" in _after_mark(part, [note])) is is_named


def deployed() -> EventPart:
    part = msgspec.structs.replace(storm(not_back=0), kind="run", status=0, took_s=9.0, output="", policy="jitter:1s")
    part.back = Back(5.0, 7.0, 8.0, 8.0)
    return part


def test_a_command_says_how_many_clients_it_ended_and_how_many_more_than_once() -> None:
    part = deployed()
    assert "client" not in _command(part)
    part.clients, part.ended_repeatedly = 300, 0
    assert "client" not in _command(part)
    part.clients, part.ended_repeatedly = 200, 100
    for said in (_command(part), line_of(part, "http")):
        assert [said.count(count) for count in ("300", "200 client", "100 of")] == [1, 1, 1]
    part.clients = part.ended_repeatedly = None
    assert "client" not in _command(part) + line_of(part, "http")


def test_a_command_says_for_how_long_clients_were_away() -> None:
    part = deployed()
    for unknown in (msgspec.UNSET, None):
        part.away = unknown
        assert "away" not in _comeback(part) + line_of(part, "http")
    part.away = Away(0.5, 2.5, 3.1)
    said = _comeback(part)
    assert [said.count(words) for words in ("500 ms", "2.5 s", "3.1 s", "at most")] == [1, 1, 1, 0]
    assert "3.1 s" in line_of(part, "http")
    part.back = Back(5.0, 7.0, None, None)
    part.away = Away(0.5, None, None, AwayAtLeast(0.5, 6.0, 7.2))
    said = _comeback(part)
    assert [said.count(words) for words in ("at most", "500 ms", "99 %", "7.2 s")] == [1, 1, 0, 1]
    assert "7.2 s" in line_of(part, "http")
    # All of a storm leave at one instant.
    assert "away" not in _comeback(msgspec.structs.replace(part, kind="storm"))


def test_a_command_that_ran_to_the_hold_s_end_has_all_that_the_server_ended() -> None:
    """Of two commands the later one has it."""
    other = storm(not_back=0)
    other.policy = "now"
    # Of each command one block alone.
    other.back = msgspec.UNSET
    ended = msgspec.structs.replace(other, kind="run", status=0, took_s=7.0, output="")
    hung = msgspec.structs.replace(ended, status=None)
    none_ended = msgspec.structs.replace(hung, ended=0)
    not_run = msgspec.structs.replace(hung, took_s=0.0)
    told = []
    for events in ([ended], [hung], [none_ended], [not_run], [hung, ended], [ended, hung], [hung, other]):
        told.append([number for number, block in enumerate(event_blocks(events)) if "whatever" in str(block)])
    assert told == [[], [0], [], [], [], [1], [0]]


def test_a_command_that_hung_was_ended_by_asyncli() -> None:
    hung = EventPart(1, "run", 5.0, 12.0, "sleep 60", status=None, took_s=7.0, output="")
    assert "asyncli ended" in _command(hung)
    assert "7 s" in _command(hung)


@pytest.mark.parametrize(("lasted_s", "into_hold_s"), [(None, 25.0), (6.0, 19.0)])
def test_an_interruption_is_no_part_of_the_hold(lasted_s: float | None, into_hold_s: float) -> None:
    """The time of an event is as in the plan, which goes on where the interruption ended."""
    run = a_run(1_000, hold_s=60.0, events=("19s storm",))
    hold = run.phase("hold")
    assert hold is not None
    run.events.append(RunEvent("storm", hold.start_s + 25.0, None, "storm", {"number": 1}))
    if lasted_s is not None:
        run.gaps = [Gap(hold.start_s + 10.0, hold.start_s + 10.0 + lasted_s)]
    events = summarise(run).events
    assert events
    assert events[0].into_hold_s == pytest.approx(into_hold_s)


def killed_in_its_command(path: Path, after_s: float, words: str = "run ./deploy") -> list[EventPart]:
    """What the report says of the events of a run whose session was killed so long after its hold began, in the command of its first event."""
    run = a_run(100, hold_s=60.0, events=(f"10s {words}", "40s run ./late"))
    assert run.hold is not None
    begins_s = run.hold.start_s + 10.0
    for t_s, tick in run.ticks:
        if begins_s + 2.0 < t_s <= begins_s + 3.0:
            tick.events[1] = EventCounts(ended=5, attempts=5, opened=5)
            for _ in range(5):
                tick.events[1].back_ms.add(2_500)
            tick.opened += 5
    killed = read_run(write_run(cut(run, run.hold.start_s + after_s), path))
    events = summarise(killed).events
    return [] if events is msgspec.UNSET else events


def test_a_command_of_an_unfinished_run_had_not_ended(tmp_path: Path) -> None:
    """Its event is recorded as it ends."""
    [part] = killed_in_its_command(tmp_path / "long.db", 40.5)
    assert (part.number, part.kind, part.ended, part.not_back) == (1, "run", 5, 0)
    assert (part.status, part.took_s, part.end_s) == (None, msgspec.UNSET, None)
    assert part.into_hold_s == pytest.approx(10.0)
    assert "not ended" in _command(part)
    assert "not ended" in line_of(part, "http")
    # One second after its instant it had surely begun.
    [part] = killed_in_its_command(tmp_path / "short.db", 11.5)
    assert (part.ended, part.end_s) == (0, None)
    assert killed_in_its_command(tmp_path / "none.db", 10.5) == []


def test_a_run_that_came_to_its_end_has_the_commands_that_it_ran() -> None:
    run = a_run(100, hold_s=60.0, events=("10s run ./deploy", "20s mark here"))
    assert run.running_commands == []
    unfinished = msgspec.structs.replace(run, complete=False)
    # It drains, so each command was ended and recorded.
    assert unfinished.running_commands == []
    killed = cut(msgspec.structs.replace(run), 40.0)
    assert [event.fields for event in killed.running_commands] == [{"number": 1}]
    # A resumed run runs no commands, and records the earlier ones.
    assert msgspec.structs.replace(killed, gaps=[Gap(30.0, 35.0)]).running_commands == []
    ended = RunEvent("run", killed.running_commands[0].at_s, 30.0, "./deploy", {"number": 1, "status": 0})
    assert msgspec.structs.replace(killed, events=[ended]).running_commands == []
