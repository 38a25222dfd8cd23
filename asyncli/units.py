"""Text to numbers and back: "100k", "10/10ms", "8h", "1h30m", "until 07:00". Parsed here and nowhere else.

Every parser raises ``ValueError`` with what is wrong and what to write instead; the caller adds where.
"""

from __future__ import annotations

import datetime
import math
import re
import time
from decimal import Decimal, InvalidOperation
from fractions import Fraction

_COUNT = re.compile(r"(\d+(?:[._]\d+)*)\s*([kKmM]?)")
_COUNT_FACTOR = {"": 1, "k": 1_000, "m": 1_000_000}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h|d)?")
_DURATION_FACTOR = {
    "us": Fraction(1, 1_000_000), "ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "m": Fraction(60),
    "h": Fraction(3600), "d": Fraction(86400),
}  # fmt: skip
# From Python 3.14 on fromisoformat() takes 24:00 for the next day's midnight, and a time alone cannot say so.
_UNTIL = re.compile(r"(?:(\d{4}-\d\d-\d\d)(?:T|\s+))?((?!24)\d{1,2}:\d\d(?::\d\d)?)", re.ASCII)
# Ten years: past it a duration is a typing error, and float seconds would lose their microseconds.
LONGEST_S = 10 * 365 * 86400.0
# As far as a float goes: 1e-999999999 written out as a fraction would fill the memory.
_MOST_DIGITS = 308

# Longer than any value that is meant: an error stays one line that can be read.
_MOST_SHOWN = 100


def shown(value: object) -> str:
    """A value as an error quotes it: one line of at most 100 characters and an ellipsis."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more than 4,300 digits; lists in lists without end
        return f"this {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def parse_count(value: object) -> int:
    """A number of things: ``5000``, ``"5000"``, ``"100k"``, ``"1.5M"``, ``"1_000_000"``. At least 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{shown(value)} is not a count; write a whole number such as 5000 or 100k")
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip().replace("_", ""))
        if match is None:
            raise ValueError(f"{shown(value)} is not a count; write a whole number from 1, such as 5000 or 100k")
        try:
            number = float(match[1]) * _COUNT_FACTOR[match[2].lower()]
        except ValueError:
            raise ValueError(f"{shown(value)} is not a count; write a whole number such as 5000 or 100k") from None
    else:
        number = _float(value)
    if not math.isfinite(number) or abs(number - round(number)) > 1e-6:
        raise ValueError(f"{shown(value)} is not a whole number; write for example 5000 or 100k")
    if round(number) < 1:
        raise ValueError(f"{shown(value)} is below 1; write a whole number from 1")
    return round(number)


def exact(text: str) -> Fraction:
    """The decimal number that ``text`` writes, to its last digit. OverflowError for one that no float holds."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise OverflowError(text) from None
    if len(text) > 2 * _MOST_DIGITS or (number and not -_MOST_DIGITS < number.adjusted() < _MOST_DIGITS):
        raise OverflowError(text)
    return Fraction(number)


def parse_duration(value: object) -> float:
    """A time in seconds: ``3600``, ``"90"``, ``"10ms"``, ``"8h"``, ``"1h30m"``. A bare number is seconds; never negative."""
    return float(exact_duration(value))


def exact_duration(value: object) -> Fraction:
    """The same, without rounding."""
    wrong = f"{shown(value)} is not a duration; write seconds, or for example 10ms, 90s, 10m, 8h, 1h30m"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(wrong)
    try:
        seconds = _sum_of_parts(value.strip().lower()) if isinstance(value, str) else Fraction(value)
    except (OverflowError, ValueError):
        raise ValueError(wrong) from None
    if seconds < 0:
        raise ValueError(wrong)
    if seconds > LONGEST_S:
        raise ValueError(f"{shown(value)} is longer than ten years; write for example 8h")
    return seconds


def _sum_of_parts(text: str) -> Fraction:
    seconds, at = Fraction(0), 0
    parts = list(_DURATION_PART.finditer(text))
    for match in parts:
        if match.start() != at or (match[2] is None and len(parts) > 1):
            raise ValueError
        seconds += exact(match[1]) * _DURATION_FACTOR[match[2] or "s"]
        at = match.end()
    if not parts or at != len(text):
        raise ValueError
    return seconds


def parse_until(value: str) -> str:
    """The end of ``until 07:00`` or ``until 2026-11-22T07:00``, in this machine's time zone: ``07:00``, ``2026-11-22T07:00``."""
    match = _UNTIL.fullmatch(value.strip())
    try:
        if match is None:
            raise ValueError
        at = datetime.time.fromisoformat(match[2].zfill(5))
        words = at.isoformat("seconds" if at.second else "minutes")
        return f"{datetime.date.fromisoformat(match[1]).isoformat()}T{words}" if match[1] else words
    except ValueError:
        raise ValueError(f"{shown(value.strip())} is not a time of day; write until 07:00, or until 2026-11-22T07:00") from None


def instant_of(until: str, now_s: float) -> float:
    """When ``until``, of :func:`parse_until`, is (s since 1970): a time of day next after ``now_s``, today or tomorrow.

    By the time zone's own rules, so a day may have 23 or 25 hours. A time that a clock passes over in spring is as much later;
    of one that it shows twice in autumn the first is meant that has not passed. A whole date may have passed.
    """
    day, _, clock = until.rpartition("T")
    at = datetime.time.fromisoformat(clock)
    first = datetime.date.fromisoformat(day) if day else datetime.datetime.fromtimestamp(now_s).date()
    days = [first] if day else [first, first + datetime.timedelta(days=1)]
    instants = [datetime.datetime.combine(one, at).replace(fold=fold).timestamp() for one in days for fold in (0, 1)]
    return next((instant for instant in instants if instant > now_s), instants[-1])


def format_instant(instant_s: float) -> str:
    """An instant (s since 1970) by this machine's clock: ``2026-11-22 07:00:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(instant_s))


def _float(value: float) -> float:
    """A whole number of hundreds of digits, which a TOML file may hold, is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


# A rate is opened in batches this far apart, or one by one further apart: what the loop's clock keeps, and no burst.
_BATCH_S = 0.010


def parse_pace(value: object) -> tuple[int, float]:
    """A ramp's pace as (connections, seconds).

    ``"10/10ms"`` is ten connections every ten milliseconds; ``"100/s"``, without a number behind the slash, is a rate: one every
    ten milliseconds.
    """
    if not isinstance(value, str) or value.count("/") != 1:
        raise ValueError(f"{shown(value)} is not a pace; write connections/time, for example 100/s or 10/10ms")
    count, time = value.split("/")
    if time.strip().isalpha():
        per_s = parse_count(count) / parse_duration(f"1{time.strip()}")
        batch = max(1, math.floor(per_s * _BATCH_S))
        return batch, batch / per_s
    batch, interval_s = parse_count(count), parse_duration(time or "?")
    if interval_s == 0:
        raise ValueError(f"{shown(value)} has a zero interval; write for example 10/10ms")
    return batch, interval_s


def format_count(number: float) -> str:
    """``100000`` -> ``"100,000"``; what rounds to nothing is ``"0"``, of either sign."""
    return f"{number:z,.0f}"


def format_bytes(number: float) -> str:
    """Bytes for reading, decimal: ``94600000`` -> ``"94.6 MB"``; below 10 kB whole bytes, ``"1,234 B"``."""
    if abs(number) < 10_000:
        return f"{number:z,.0f} B"
    for unit, factor in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(number) < 1000 * factor:
            return f"{number / factor:.{1 if abs(number) < 100 * factor else 0}f} {unit}"
    return f"{number / 1e12:.2f} TB"


def format_many(count: float, one: str) -> str:
    """A count and what it counts: ``1 process``, ``1,200 processes``."""
    many = one if count == 1 else one + ("es" if one.endswith("s") else "s")
    return f"{format_count(count) if count == round(count) else count} {many}"


def format_duration(seconds: float) -> str:
    """Seconds for reading: ``"250 ms"``, ``"12.5 s"``, ``"3 min 20 s"``, ``"8 h 5 min"``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, rest = divmod(whole, 3600)
    return f"{hours} h" + (f" {rest // 60} min" if rest >= 60 else "")


def format_clock(t_s: float) -> str:
    """A run's clock for reading: ``65.9`` -> ``"0:01:05"``."""
    minutes, seconds = divmod(max(0, math.floor(t_s)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
