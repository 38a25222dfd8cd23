from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.units import format_bytes, format_clock, format_duration, parse_count, parse_duration, parse_pace


@pytest.mark.parametrize(
    ("text", "number"),
    [(5000, 5000), ("5000", 5000), ("100k", 100_000), ("1.5M", 1_500_000), ("1_000", 1000), (" 2K ", 2000), (10.0, 10)],
)
def test_counts(text: Any, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "k", "1.2", "1e3", "ten", "1.2.3", "0.0001k", True, None, 0, -5, float("nan"), "１０"]
)
def test_no_counts(text: Any) -> None:
    if text == "１０":  # other digits than 0-9 are digits to Python: harmless
        assert parse_count(text) == 10
        return
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
    for text in ("10", "0/10ms", "10/0ms", "10/", "/10ms", "1/2/3", 10):
        with pytest.raises(ValueError, match="write"):
            parse_pace(text)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    for parse in (parse_count, parse_duration, parse_pace):
        try:
            parse(text)
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (9_640, "9,640 B"), (12_345, "12.3 kB"), (94_600_000, "94.6 MB"), (1.5e9, "1.5 GB"), (-2e6, "-2.0 MB")],
)
def test_bytes_for_reading(number: float, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (12.5, "12.5 s"), (200, "3 min 20 s"), (29100, "8 h 5 min"), (3600, "1 h"), (59.9999, "60 s")],
)
def test_durations_for_reading(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(-0.5, "0:00:00"), (65.9, "0:01:05"), (3600, "1:00:00"), (360_061, "100:01:01")])
def test_a_runs_clock(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text
