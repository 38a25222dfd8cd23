"""The first lines of a report: what came of each event of the plan."""

from __future__ import annotations

import msgspec
import pytest
from made_runs import KINDS
from synthetic_run import a_run, cut
from test_run_provoked import storm

from asyncli.analysis.in_vain import InVain
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import Back
from asyncli.model.records import EventCounts, RunEvent
from asyncli.report import document as doc
from asyncli.report.event_lines import event_lines
from asyncli.report.run_report import run_document
from asyncli.report.summary import summarise
from asyncli.report.summary_parts import AtAddress, EventPart

FIRST_LINES = 10


def all_back(number: int, all_s: float) -> EventPart:
    part = storm(not_back=0)
    part.number = number
    part.back = Back(all_s, all_s, all_s, all_s)
    part.chosen = 300
    part.absent = 0
    return part


def line_of(part: EventPart) -> str:
    [line] = event_lines([part], "http")
    return line


def test_an_event_is_in_the_first_lines_and_has_a_section_before_the_costs() -> None:
    run = KINDS["provoked"]()
    document = run_document(summarise(run), "a.db")
    first, *_ = document.sections
    words = [doc.plain(block.words) for block in first.blocks[:3] if isinstance(block, doc.Paragraph)]
    assert ["20,000" in words[0], "6,000" in words[1]] == [True, True]
    names = [section.id for section in document.sections]
    assert names.index("events") < names.index("cost")


def test_answers_that_are_in_no_latency_are_told_where_clients_came_back() -> None:
    """What is counted as answered is more than the latency has, by those who came back."""
    # Who is heard again on the same connection is back without a connect.
    heard_again = KINDS["provoked"]()
    del heard_again.events[0]
    for _, tick in heard_again.ticks:
        tick.events.pop(1, None)
    told = []
    for run in (KINDS["provoked"](), heard_again, a_run(1_000, hold_s=60.0)):
        document = run_document(summarise(run), "a.db")
        (beats,) = [section for section in document.sections if section.id == "heartbeats"]
        words = [doc.plain(block.words) for block in beats.blocks if isinstance(block, doc.Paragraph)]
        told.append(any("came back" in text and "latency" in text for text in words))
    assert told == [True, True, False]


@pytest.mark.parametrize(("number", "is_told"), [(1, True), (0, False)])
def test_the_headline_says_who_was_not_to_be_back_yet(number: int, is_told: bool) -> None:
    """They are in its number, and nobody held them; of churn some are on their way at any time."""
    run = a_run(1_000, hold_s=60.0, events=("50s drop 10%",), churn=None if number else "1%/s")
    run.events.append(RunEvent("churn" if number == 0 else "drop", 40.0, None, "drop 10%", {"number": number}))
    for _, tick in run.ticks:
        tick.held_at_drain = min(970, tick.held_at_drain)
    run.ticks[-1][1].events[number] = EventCounts(chosen=30, ended=30, waiting=30)
    headline = run_document(summarise(run), "a.db").headline
    assert (headline.startswith("1,000"), "30 of" in headline) == (True, is_told)


def test_who_stalls_as_the_records_end_is_held_and_in_the_headline_once() -> None:
    run = a_run(1_000, hold_s=60.0, events=("20s stall 10% for 30s",))
    at_s = run.phases[2].start_s + 20.0
    run.events.append(RunEvent("stall", at_s, None, "stall 10% for 30s", {"number": 1}))
    for t_s, tick in run.ticks:
        if at_s < t_s <= at_s + 1.0:
            tick.events[1] = EventCounts(chosen=100, stalled=100)
    summary = summarise(cut(run, at_s + 10.0))
    assert [event.waiting for event in summary.events or []] == [100]
    headline = run_document(summary, "a.db").headline
    assert (headline.startswith("1,000"), "100 of" in headline) == (True, False)


def test_marks_alone_have_no_line_and_stand_after_the_costs() -> None:
    run = a_run(1_000, hold_s=60.0)
    run.events.append(RunEvent("mark", 30.0, 30.0, "deployed", {}))
    summary = summarise(run)
    assert event_lines(summary.events or [], "http") == []
    names = [section.id for section in run_document(summary, "a.db").sections]
    assert names.index("events") > names.index("cost")


def test_who_was_back_after_how_long_and_who_was_not() -> None:
    assert "2.6 s" in line_of(all_back(1, 2.6))
    few = storm(not_back=256)
    few.waiting = 10
    said = line_of(few)
    assert [count in said for count in ("34 of", "256", "10 ")] == [True] * 3
    assert "none of" in line_of(storm(not_back=300))
    unheard = storm(not_back=0)
    unheard.unheard = 300
    said = line_of(unheard)
    assert [words in said for words in ("300", "was back", "server sent")] == [True, False, True]
    failed = all_back(1, 2.6)
    failed.failures = {"refused": 7}
    failed.phantoms = 1
    assert ["7 connects" in line_of(failed), "1 connect" in line_of(failed)] == [True, True]
    failed.in_vain = InVain(1, 1, 4.0, "accepted")
    assert "was accepted" in line_of(failed)
    # Of one of two it is not known.
    failed.phantoms = 2
    assert "got no" in line_of(failed)
    gone = storm(not_back=300)
    gone.not_back_at = [AtAddress("127.0.0.1:81", 300)]
    assert "127.0.0.1:81" in line_of(gone)
    failed.error_answers = {"503": 1_076}
    assert "1,076" in line_of(failed)


@pytest.mark.parametrize(("protocol", "counts"), [("websocket", ["2,703 connects", "2,321 of"]), ("http2", ["2,703 connects", "2,321 answers"])])
def test_handshakes_that_an_error_refused_are_told_once(protocol: str, counts: list[str]) -> None:
    part = all_back(1, 8.0)
    part.failures = {"refused": 382, "handshake_refused": 2_321}
    part.error_answers = {"503": 2_321}
    [said] = event_lines([part], protocol)
    assert [count for count in counts if count not in said] == []
    assert said.count("2,321") == 1
    # A handshake may be refused without a status.
    part.error_answers = {"503": 2_000}
    [said] = event_lines([part], "websocket")
    assert ("2,703" in said, "2,000 of" in said) == (True, True)


@pytest.mark.parametrize(("status", "ended"), [(0, 0), (3, 0), (0, 300)])
def test_a_command_says_how_it_ended_and_what_the_server_did(status: int, ended: int) -> None:
    part = all_back(1, 2.6) if ended else EventPart(1, "run", 5.0, 6.0, "reload")
    part.kind = "run"
    part.status = status
    part.took_s = 0.5
    part.output = ""
    part.ended = ended
    said = line_of(part)
    assert (f"status {status}" in said, "2.6 s" in said) == (True, bool(ended))


def test_who_fell_silent_for_good_is_as_the_server_noticed() -> None:
    part = all_back(1, 0.0)
    part.kind = "vanish"
    part.then = "gone"
    part.noticed = Noticed(None, None, None, 60, 9.1, 1.0)
    assert "9.1 s" in line_of(part)
    part.noticed = Noticed(5.0, 6.0, 7.5, 0, None, 1.0)
    assert "7.5 s" in line_of(part)


def test_of_many_events_those_that_went_well_are_one_line() -> None:
    well = [all_back(number, float(number)) for number in range(1, 7)]
    [said] = event_lines(well, "http")
    assert ("6 s" in said, "event 6" in said) == (True, True)
    nobody = msgspec.structs.replace(all_back(7, 0.0), absent=300)
    others = [storm(not_back=number) for number in (1, 2, 3)]
    lines = event_lines([*well, nobody, *others], "http")
    assert len(lines) == 5
    assert ["300" in lines[0], "6 of" in lines[3], lines[4].startswith("Of 1")] == [True] * 3


def test_of_many_events_those_that_ended_nobody_are_counted_apart() -> None:
    well = [all_back(number, float(number)) for number in range(1, 5)]
    quiet = [EventPart(number, "run", 9.0, 10.0, "true", output="", status=0, ended=0, took_s=0.1) for number in range(5, 8)]
    [said] = event_lines([*well, *quiet], "http")
    assert ["4 of 7" in said, "3 ended" in said] == [True, True]
    [said] = event_lines(quiet * 2, "http")
    assert ["6 of 6" in said, "back" in said] == [True, False]


def test_the_event_for_which_a_run_failed_has_a_line_among_many() -> None:
    failed = [msgspec.structs.replace(storm(not_back=0), number=number, failures={"refused": 3}) for number in range(1, 6)]
    decisive = msgspec.structs.replace(storm(not_back=50), number=6)
    lines = event_lines([*failed, decisive], "http")
    assert ["Event 6" in line for line in lines].count(True) == 1
