from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest

from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_duration,
    instant_of,
    known_digits,
    parse_count,
    parse_duration,
    parse_pace,
    parse_until,
    tenth_more,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [(5000, 5000), ("5000", 5000), ("100k", 100_000), ("1.5M", 1_500_000), ("1_000", 1000), (" 2K ", 2000), (10.0, 10)],
)
def test_counts(text: Any, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "k", "1.2", "1e3", "ten", "1.2.3", "0.0001k", True, None, 0, -5, float("nan")])
def test_no_counts(text: Any) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(60, 60), ("3600", 3600), ("10ms", 0.01), ("8h", 28800), ("1h30m", 5400), ("1.5s", 1.5), ("2d", 172800), ("250us", 0.00025),
     ("5 min", 300), ("0", 0)],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1x", "1h30", "ms10", "1 h x", "inf", "nan", None, True, [], -1, "99999d", "1..5s"]
)
def test_no_durations(text: Any) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration(text)


def test_paces() -> None:
    assert parse_pace("10/10ms") == (10, 0.01)
    # A rate: without a number behind the slash, and no burst of a hundred in each second.
    for text, batch, per_s in (("100/s", 1, 100), ("5k/s", 50, 5000), ("30/s", 1, 30), ("6000/min", 1, 100), ("1/ms", 10, 1000), ("4/h", 1, 4 / 3600)):
        pace = parse_pace(text)
        assert pace[0] == batch
        assert pace[0] / pace[1] == pytest.approx(per_s)
    for text in ("10", "0/s", "10/parsec", "x/s", "0/10ms", "10/0ms", "10/", "/10ms", "1/2/3", 10):
        with pytest.raises(ValueError, match="write"):
            parse_pace(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (9_640, "9,640 B"), (12_345, "12.3 kB"), (94_600_000, "94.6 MB"), (1.5e9, "1.5 GB"), (-2e6, "-2.0 MB"), (-0.3, "0 B")],
)
def test_bytes_for_reading(number: float, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (12.5, "12.5 s"), (200, "3 min 20 s"), (29100, "8 h 5 min"), (3600, "1 h"), (59.9999, "60 s"), (0.9998, "1 s")],
)
def test_durations_for_reading(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(-0.5, "0:00:00"), (65.9, "0:01:05"), (3600, "1:00:00"), (360_061, "100:01:01")])
def test_a_runs_clock(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("until", "now", "then"),
    [
        ("07:00", "2026-11-21T22:00+01:00", "2026-11-22T07:00+01:00"),
        ("07:00", "2026-11-21T06:59:59+01:00", "2026-11-21T07:00+01:00"),
        # A time that has passed today means tomorrow, and so does this very second.
        ("07:00", "2026-11-21T07:00+01:00", "2026-11-22T07:00+01:00"),
        ("7:00", "2026-12-31T23:00+01:00", "2027-01-01T07:00+01:00"),
        # The night that is an hour longer, and the one that is an hour shorter.
        ("07:00", "2026-10-24T22:00+02:00", "2026-10-25T07:00+01:00"),
        ("07:00", "2026-03-28T22:00+01:00", "2026-03-29T07:00+02:00"),
        # The clock shows it twice, and not at all.
        ("02:30", "2026-10-24T22:00+02:00", "2026-10-25T02:30+02:00"),
        ("02:30", "2026-10-25T02:45+02:00", "2026-10-25T02:30+01:00"),
        ("02:30", "2026-03-28T22:00+01:00", "2026-03-29T03:30+02:00"),
        ("2026-11-22 07:00:30", "2026-11-21T22:00+01:00", "2026-11-22T07:00:30+01:00"),
        ("2026-11-20T07:00", "2026-11-21T22:00+01:00", "2026-11-20T07:00+01:00"),
    ],
)
def test_until(berlin: None, until: str, now: str, then: str) -> None:
    words = parse_until(until)
    assert instant_of(words, _at(now)) == _at(then)
    assert parse_until(words) == words


@pytest.mark.parametrize("text", ["", "7", "0700", "07:60", "24:00", "07:00Z", "07:00+01:00", "2026-02-30T07:00", "tomorrow 07:00", "T07:00", "٠٧:٠٠"])
def test_what_is_no_time_of_day(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time of day; write until 07:00, or until 2026-11-22T07:00"):
        parse_until(text)


def test_a_tenth_more_of_a_round_number_is_round() -> None:
    assert [tenth_more(count) for count in (0, 1, 10, 11, 100_000, 1_000_000)] == [0, 2, 11, 13, 110_000, 1_100_000]


@pytest.mark.parametrize(
    ("value", "half", "known"),
    [
        (16_002.0, 1434.0, (16_000, 1400)), (99_995.0, 29_995.0, (100_000, 30_000)), (528.4, 1.2, (528.4, 1.2)),
        (3863.0, 99.6, (3863.0, 99.6)), (3863.0, 996.0, (3860, 1000)), (0.0, 0.0, (0.0, 0.0)), (5.0, float("inf"), (5.0, float("inf"))),
    ],
)  # fmt: skip
def test_a_number_has_the_digits_that_its_interval_knows(value: float, half: float, known: tuple[float, float]) -> None:
    assert known_digits(value, half) == known
