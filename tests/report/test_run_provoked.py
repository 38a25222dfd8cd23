"""The words of an event where little or nothing came of it."""

from __future__ import annotations

import msgspec

from asyncli.analysis.provoked import Back
from asyncli.analysis.slow_readers import SlowReaderCost, SlowReaders
from asyncli.report.run_provoked import _comeback, _command, _slow_readers
from asyncli.report.summary_parts import EventPart


def storm(*, not_back: int, ended_again: int = 0) -> EventPart:
    part = EventPart(1, "storm", 5.0, None, "storm")
    part.back = Back(None, None, None, None)
    part.ended = 300
    part.ended_again = ended_again
    part.not_back = not_back
    part.waiting = 0
    part.attempts = 300 - not_back
    part.failures = {}
    part.phantoms = 0
    return part


def test_fewer_than_half_that_are_back_are_told() -> None:
    """Ctrl-C within a storm."""
    some = _comeback(storm(not_back=256))
    assert some.startswith("44 were")
    assert "256" in some
    assert _comeback(storm(not_back=300)).startswith("none was")


def test_who_is_ended_again_is_told() -> None:
    said = _comeback(storm(not_back=0, ended_again=150))
    assert said.count("150 were") == 2
    assert "not back" not in said


def test_a_command_that_was_not_run_did_not_print_and_did_not_fail_to_end() -> None:
    part = EventPart(4, "run", 5.0, 5.0, "reload")
    part.status = None
    part.took_s = 0.0
    part.output = "not run: a resumed run runs no commands"
    assert "not run" in _command(part)
    assert "printed" not in _command(part)
    ran = msgspec.structs.replace(part, status=3, took_s=0.5, output="x")
    assert 'printed "x"' in _command(ran)


def test_an_interval_of_readings_is_named_as_that() -> None:
    """A second stall may differ by more: only its readings were as near."""
    cost = SlowReaderCost("measured", total=126_000.0, per_connection=12_600.0, error=102.0, grows_per_s=0.0)
    said = _slow_readers(SlowReaders(cost, cost))
    assert said.count("as read)") == 2


def test_a_server_that_sent_nothing_shows_nothing() -> None:
    for why, says in (("nothing_sent", "sends"), ("nothing_waited", "buffers")):
        unknown = SlowReaderCost("unknown", why=why)
        said = _slow_readers(SlowReaders(unknown, unknown))
        assert said.endswith(says)


def test_a_command_that_hung_was_ended_by_asyncli() -> None:
    hung = EventPart(1, "run", 5.0, 12.0, "sleep 60", status=None, took_s=7.0, output="")
    assert "asyncli ended" in _command(hung)
    assert "7 s" in _command(hung)
