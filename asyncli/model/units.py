"""Parses and formats numbers with units: "100k", "10/10ms", "8h", "1h30m", "until 07:00".

Every parser raises ``ValueError`` with what is wrong and what to write instead; the caller adds
where.
"""

from __future__ import annotations

import datetime
import math
import re
import time
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from asyncli.model.masks import masked_if_url

_COUNT = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmM]?)")
_COUNT_FACTOR = {"": 1, "k": 1_000, "m": 1_000_000}
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kKmMgGtT])(i?)[bB]?", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h|d)?")
_DURATION_FACTOR = {
    "us": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
# Without 24:00, which fromisoformat() takes for the next day's midnight from Python 3.14 on.
_UNTIL = re.compile(r"(?:(\d{4}-\d\d-\d\d)(?:T|\s+))?((?!24)\d{1,2}:\d\d(?::\d\d)?)", re.ASCII)
# Ten years: a longer duration is a typing error, and float seconds would lose microseconds.
LONGEST_S = 10 * 365 * 86400.0
# The range of a float: 1e-999999999 as a fraction would fill the memory.
_MOST_DIGITS = 308

# Longer than any sensible value, and an error stays a readable line.
_MOST_SHOWN = 100


def shown(value: object) -> str:
    """A value quoted for an error: one line of at most 100 characters and an ellipsis, without the
    query of a URL.
    """
    if isinstance(value, str):
        value = masked_if_url(value)
    try:
        # TOML has dates and times.
        text = str(value) if isinstance(value, datetime.date | datetime.time) else repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # an integer of more than 4,300 digits; endlessly nested lists
        return f"this {type(value).__name__}"
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}..."


def parse_count(value: object) -> int:
    """Parse a count of at least 1: ``5000``, ``"5000"``, ``"100k"``, ``"1.5M"``,
    ``"1_000_000"``.
    """
    try:
        number = _number_of(value)
    except OverflowError:  # an integer of hundreds of digits, which a TOML file may hold
        number = math.inf
    if number is None:
        raise ValueError(
            f"{shown(value)} is not a count; write a whole number from 1, such as 5000 or 100k"
        )
    if not math.isfinite(number) or abs(number - round(number)) > 1e-6:
        raise ValueError(f"{shown(value)} is not a whole number; write for example 5000 or 100k")
    if round(number) < 1:
        raise ValueError(f"{shown(value)} is below 1; write a whole number from 1")
    return round(number)


def _number_of(value: object) -> float | None:
    """The number that a count is; None if it is none. Raises OverflowError for a large integer."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    match = _COUNT.fullmatch(value.strip().replace("_", ""))
    if match is None:
        return None
    return float(match[1]) * _COUNT_FACTOR[match[2].lower()]


def parse_memory(value: str) -> float:
    """Parse an amount of memory in bytes: ``64G`` and ``64GB`` (10**9), ``64GiB`` (2**30),
    ``512M``, ``1.5T``.
    """
    match = _MEMORY.fullmatch(value.strip())
    if match is None:
        raise ValueError(
            f"{shown(value)} is not an amount of memory; "
            "write a number and a unit, such as 64G, 512M or 64GiB"
        )
    power = " KMGT".index(match[2].upper())
    unit: int = (1024 if match[3] else 1000) ** power
    number = float(match[1]) * unit
    if not math.isfinite(number) or number < 1:
        raise ValueError(f"{shown(value)} is not an amount of memory; write for example 64G")
    return number


def exact(text: str) -> Fraction:
    """The exact value of a decimal number. Raises OverflowError outside a float's range."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise OverflowError(text) from None
    if len(text) > 2 * _MOST_DIGITS:
        raise OverflowError(text)
    if number and not -_MOST_DIGITS < number.adjusted() < _MOST_DIGITS:
        raise OverflowError(text)
    return Fraction(number)


def parse_duration(value: object) -> float:
    """Parse a duration to seconds: ``3600``, ``"90"``, ``"10ms"``, ``"8h"``, ``"1h30m"``. A bare
    number is seconds; never negative.
    """
    return float(exact_duration(value))


def exact_duration(value: object) -> Fraction:
    """:func:`parse_duration` without rounding."""
    wrong = (
        f"{shown(value)} is not a duration; write seconds, or for example 10ms, 90s, 10m, 8h, 1h30m"
    )
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(wrong)
    try:
        seconds = (
            _sum_of_parts(value.strip().lower()) if isinstance(value, str) else Fraction(value)
        )
    except (OverflowError, ValueError):
        raise ValueError(wrong) from None
    if seconds < 0:
        raise ValueError(wrong)
    if seconds > LONGEST_S:
        raise ValueError(f"{shown(value)} is longer than ten years; write for example 8h")
    return seconds


def _sum_of_parts(text: str) -> Fraction:
    seconds = Fraction(0)
    end = 0
    parts = list(_DURATION_PART.finditer(text))
    for match in parts:
        if match.start() != end or (match[2] is None and len(parts) > 1):
            raise ValueError
        seconds += exact(match[1]) * _DURATION_FACTOR[match[2] or "s"]
        end = match.end()
    if not parts or end != len(text):
        raise ValueError
    return seconds


def parse_until(value: str) -> str:
    """Normalize the time of ``until 07:00`` or ``until 2026-11-22T07:00``, in this machine's time
    zone.
    """
    match = _UNTIL.fullmatch(value.strip())
    try:
        if match is None:
            raise ValueError
        clock_time = datetime.time.fromisoformat(match[2].zfill(5))
        text = clock_time.isoformat("seconds" if clock_time.second else "minutes")
        if not match[1]:
            return text
        return f"{datetime.date.fromisoformat(match[1]).isoformat()}T{text}"
    except ValueError:
        raise ValueError(
            f"{shown(value.strip())} is not a time of day; "
            "write until 07:00, or until 2026-11-22T07:00"
        ) from None


def instant_of(until: str, now_s: float) -> float:
    """The instant (s since 1970) of ``until`` (see :func:`parse_until`): a time of day is the next
    one after ``now_s``.

    It follows the time zone's rules, so a day may have 23 or 25 hours. A time that the clock skips
    in spring is later by as much; of one that it shows twice in autumn, the first that has not
    passed. A date may be in the past.
    """
    date_text, _, clock_text = until.rpartition("T")
    clock_time = datetime.time.fromisoformat(clock_text)
    if date_text:
        dates = [datetime.date.fromisoformat(date_text)]
    else:
        today = datetime.datetime.fromtimestamp(now_s).date()
        dates = [today, today + datetime.timedelta(days=1)]
    instant_s = now_s
    for date in dates:
        for fold in (0, 1):
            local_time = datetime.datetime.combine(date, clock_time).replace(fold=fold)
            instant_s = local_time.timestamp()
            if instant_s > now_s:
                return instant_s
    return instant_s


def format_instant(instant_s: float) -> str:
    """Format an instant (s since 1970) in this machine's time zone: ``2026-11-22 07:00:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(instant_s))


# A rate is opened in batches this far apart, or single connections further apart: precise for the
# loop's clock, no bursts.
_BATCH_S = 0.010


def parse_pace(value: object) -> tuple[int, float]:
    """Parse a ramp's pace to (connections, seconds).

    ``"10/10ms"``: ten connections every 10 ms. ``"100/s"``, without a number after the slash, is a
    rate: one every 10 ms.
    """
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) != 2 or not all(map(str.strip, parts)):
        raise ValueError(
            f"{shown(value)} is not a pace; write connections/time, for example 100/s or 10/10ms"
        )
    count, interval = parts
    if interval.strip().isalpha():
        return pace_of(parse_count(count) / parse_duration(f"1{interval.strip()}"))
    batch = parse_count(count)
    interval_s = parse_duration(interval)
    if interval_s == 0:
        raise ValueError(f"{shown(value)} has a zero interval; write for example 10/10ms")
    return batch, interval_s


def pace_of(per_s: float) -> tuple[int, float]:
    """The even pace of ``per_s`` connections a second as (connections, seconds)."""
    batch = max(1, math.floor(per_s * _BATCH_S))
    return batch, batch / per_s


def format_count(number: float) -> str:
    """``100000`` -> ``"100,000"``; never ``"-0"``."""
    return f"{number:z,.0f}"


def known_digits(value: float, half: float) -> tuple[float, float]:
    """``value`` and ``half`` of its interval with the digits that are known: the half to two, and
    the value to the same place: ``16002, 1434`` -> ``16000, 1400``. From 1 down to whole numbers.
    """
    if not math.isfinite(half) or half < 100:
        return value, half
    place = 1 - math.floor(math.log10(half))
    return round(value, place), round(half, place)


def format_measured(value: float, half: float) -> str:
    """``16002, 1434`` -> ``"16,000 B a connection (± 1,400)"``."""
    known, known_half = known_digits(value, half)
    return f"{known:,.0f} B a connection (± {known_half:,.0f})"


def format_rate(per_s: float) -> str:
    """``48231.4`` -> ``"48,231 a second"``, ``2.625`` -> ``"2.62 a second"``."""
    if per_s >= 99.5:
        return f"{per_s:,.0f} a second"
    return f"{per_s:.3g} a second"


def format_bytes(number: float) -> str:
    """Format bytes with decimal units: ``94600000`` -> ``"94.6 MB"``; below 10 kB whole bytes,
    ``"1,234 B"``.
    """
    if abs(number) < 10_000:
        return f"{number:z,.0f} B"
    for unit, factor in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(number) < 1000 * factor:
            digits = 1 if abs(number) < 100 * factor else 0
            return f"{number / factor:.{digits}f} {unit}"
    return f"{number / 1e12:.2f} TB"


#: Bytes of one connection from here on are in kB.
WHOLE_BYTES = 100_000


def format_each(number: float) -> str:
    """Bytes of one connection, exact up to 100 kB: ``"9,640 B"``, ``"3.8 MB"``."""
    if abs(number) < WHOLE_BYTES:
        return f"{format_count(number)} B"
    return format_bytes(number)


def format_many(count: float, noun: str) -> str:
    """Format a count with its noun: ``1 process``, ``1,200 processes``."""
    number = format_count(count) if count == round(count) else str(count)
    if count == 1:
        return f"{number} {noun}"
    if noun.endswith("s"):
        return f"{number} {noun}es"
    return f"{number} {noun}s"


def was_or_were(count: float) -> str:
    """The verb of so many: ``1 was``, ``1,200 were``."""
    if count == 1:
        return "was"
    return "were"


def format_duration(seconds: float) -> str:
    """Format seconds: ``"250 ms"``, ``"12.5 s"``, ``"3 min 20 s"``, ``"8 h 5 min"``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    hours, seconds_of_hour = divmod(round(seconds), 3600)
    minutes, seconds_of_minute = divmod(seconds_of_hour, 60)
    if hours and minutes:
        return f"{hours} h {minutes} min"
    if hours:
        return f"{hours} h"
    if seconds_of_minute:
        return f"{minutes} min {seconds_of_minute} s"
    return f"{minutes} min"


def format_share(share: float, decimals: int = 0) -> str:
    """``0.793`` -> ``"79 %"``: a number and its unit, as everywhere."""
    return f"{100 * share:,.{decimals}f} %"


def tenth_more(count: float) -> int:
    """``count`` and a tenth of it, rounded up: 1.1 is no binary number, so 1.1 * 100,000 alone
    would become 110,001.
    """
    return math.ceil(round(1.1 * count, 6))


def format_clock(t_s: float) -> str:
    """Format a time on a run's clock: ``65.9`` -> ``"0:01:05"``."""
    minutes, seconds = divmod(max(0, math.floor(t_s)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
