"""Differences between two runs as text: numbers, whether they are real, why they are unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from asyncli.analysis.compare import ROW_OF, Difference
from asyncli.analysis.slope import WIDE_COST
from asyncli.model.text import oneline
from asyncli.model.units import format_many

#: Units by size: (at least, factor, name); the first that fits is used. Bytes are spelled out: B
#: is a run.
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "bytes": (
        (1e12, 1e12, "TB"),
        (1e9, 1e9, "GB"),
        (1e6, 1e6, "MB"),
        (1e5, 1e3, "kB"),
        (0, 1, "bytes"),
    ),
    "bytes/h": ((1e9, 1e9, "GB/h"), (1e6, 1e6, "MB/h"), (1e5, 1e3, "kB/h"), (0, 1, "bytes/h")),
    "us": ((1e6, 1e6, "s"), (1e4, 1e3, "ms"), (0, 1, "µs")),
    "ms": ((1e4, 1e3, "s"), (0, 1, "ms")),
}
_PLAIN = ((0.0, 1.0, ""),)
# Digits below a tenth of the interval are noise; at most five digits in all.
_RESOLVED = 10
_MOST_DIGITS = 5
# So many decimals at most by the interval.
_MOST_DECIMALS = 3
_TINY = 0.01
# Relative differences are shown to a tenth of a per cent.
_DECIMALS_OF_PERCENT = 1
#: Values with such a ratio are told first, real or not, and as a ratio; repeats on a quiet host
#: differ by two.
FAR_APART = 10
_TIMES = " times"


def is_real(difference: Difference) -> bool:
    return difference.verdict in ("higher", "lower")


def is_unknown(difference: Difference) -> bool:
    return difference.verdict == "cannot_say"


class Amounts(msgspec.Struct, frozen=True):
    """A row's numbers as text: one unit, digits by the interval, "-" for unknown."""

    unit: str
    first: str
    second: str
    difference: str
    low: str
    high: str
    #: In per cent; from a tenfold on as a ratio: "185 times".
    percent: str
    #: The largest possible difference, of either sign.
    most: str

    @property
    def interval(self) -> str:
        if self.low == "-":
            return "-"
        return f"{self.low} to {self.high}"

    @property
    def relative(self) -> str:
        """The relative difference as text with its unit."""
        if self.percent == "-" or self.percent.endswith(_TIMES):
            return self.percent
        return f"{self.percent} %"


class _Scale(NamedTuple):
    """How a row's numbers are written. ``unit`` is ``factor`` times the row's own unit."""

    factor: float
    unit: str
    digits: int

    def text(self, value: float | None, *, signed: bool = False) -> str:
        if value is None:
            return "-"
        return _number(value / self.factor, self.digits, signed)


def amounts(difference: Difference) -> Amounts:
    scale = _scale_of(difference)
    first, second = [_value(difference, place, scale) for place in (0, 1)]
    shown_difference = scale.text(difference.difference, signed=True)
    if not difference.is_told:
        # Of what is not shown, no difference is.
        shown_difference = "-"
    percent = _relative(difference.relative)
    if difference.ci95 is None:
        return Amounts(scale.unit, first, second, shown_difference, "-", "-", percent, "-")
    low = scale.text(difference.ci95[0], signed=True)
    high = scale.text(difference.ci95[1], signed=True)
    most = scale.text(max(map(abs, difference.ci95)))
    return Amounts(scale.unit, first, second, shown_difference, low, high, percent, most)


def _value(difference: Difference, place: int, scale: _Scale) -> str:
    """The first value (``place`` 0) or the second; of one that is hidden or wide, that word."""
    if difference.hidden[place]:
        return difference.hidden[place]
    if difference.wide[place]:
        return WIDE_COST
    return scale.text(difference.values[place])


def _scale_of(difference: Difference) -> _Scale:
    """The scale of the row's largest number."""
    numbers = [value for value in difference.values if value is not None]
    spread = None
    if difference.ci95 is None:
        numbers.append(0.0)
    else:
        numbers.extend(difference.ci95)
        spread = difference.ci95[1] - difference.ci95[0]
    largest = max(map(abs, numbers))
    factor, unit = _unit_for(largest, difference.unit)
    if spread is not None:
        spread /= factor
    least = _decimals_of_difference(difference, factor)
    return _Scale(factor, unit, _digits(largest / factor, spread, least))


def _decimals_of_difference(difference: Difference, factor: float) -> int:
    """The least decimals with which the difference has a digit of its own, where its percent is
    not rounded to zero: both stand in one row, beside the two values.
    """
    distance = difference.difference
    if not distance or difference.relative is None or any(difference.hidden):
        return 0
    if _relative(difference.relative) == _number(0.0, _DECIMALS_OF_PERCENT, signed=True):
        return 0
    return max(0, -math.floor(math.log10(abs(distance / factor))))


def _unit_for(largest: float, unit: str) -> tuple[float, str]:
    """(Factor, name) of the unit in which ``largest``, in the row's ``unit``, is written."""
    fits = ((factor, name) for least, factor, name in _SCALES.get(unit, _PLAIN) if largest >= least)
    return next(fits)


def _relative(relative: float | None) -> str:
    """A relative difference, in per cent, or how many times as large the second value is; "-" if
    that says nothing.
    """
    if relative is None:
        return "-"
    times = 1 + relative
    if abs(times) < FAR_APART:
        return _number(relative * 100, _DECIMALS_OF_PERCENT, signed=True)
    if times > 0:
        return f"{times:,.0f}{_TIMES}"
    # Values of unlike signs, such as growth and shrinkage, are no multiples of each other.
    return "-"


def _digits(largest: float, spread: float | None, least: int) -> int:
    """Decimals: to a tenth of the interval, ``least`` where these are more, and at most five digits
    in all.
    """
    wanted = 0 if largest >= 100 or not largest else 2
    if spread is not None and spread > 0:
        wanted = math.ceil(-math.log10(spread / _RESOLVED))
    if 0 < largest < _TINY:
        # Three decimals would round it to zero.
        zeros = -math.floor(math.log10(largest))
        return min(max(wanted, 2 + zeros, least), _MOST_DIGITS + zeros)
    before_the_point = len(f"{largest:.0f}")
    by_interval = min(max(0, wanted), _MOST_DECIMALS)
    return min(max(by_interval, least), max(0, _MOST_DIGITS - before_the_point))


def _number(value: float, digits: int, signed: bool) -> str:
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    # Zero after rounding has no sign.
    return text if float(text.replace(",", "")) else text.lstrip("+-")


def words(difference: Difference) -> str:
    if is_real(difference):
        return f"{difference.between[1]} is {difference.verdict}"
    if difference.verdict == "no_difference":
        if difference.ci95 == (0.0, 0.0):
            return "no difference at all"
        shown = amounts(difference)
        return f"no difference seen (less than {_with_unit(shown.most, shown.unit)})"
    if difference.why:
        return f"cannot say: {difference.why}"
    return "cannot say"


def sentence(difference: Difference) -> str:
    """A difference in words: "latency p50: B is higher by 0.152 ms (+23.9 %)"; of one that is not
    real, both values and why.
    """
    shown = amounts(difference)
    name = ROW_OF[difference.key].name
    if is_unknown(difference):
        first, second = difference.between
        first_value = _with_unit(shown.first, shown.unit)
        second_value = _with_unit(shown.second, shown.unit)
        return f"{name}: {first} {first_value}, {second} {second_value}; {difference.why}"
    if shown.difference == "-":
        first, second = difference.between
        first_value = _with_unit(shown.first, shown.unit)
        second_value = _with_unit(shown.second, shown.unit)
        return f"{name}: {words(difference)} ({first} {first_value}, {second} {second_value})"
    distance = _with_unit(shown.difference.lstrip("+-"), shown.unit)
    if shown.relative == "-":
        return f"{name}: {words(difference)} by {distance}"
    return f"{name}: {words(difference)} by {distance} ({shown.relative})"


def _with_unit(number: str, unit: str) -> str:
    if not unit or not number[-1:].isdigit():
        return number
    return f"{number} {unit}"


def wide_values(difference: Difference) -> list[str]:
    """Why an interval has differences that two numbers of which none is below zero seem not to
    have.
    """
    if difference.at_most is None or not any(difference.values):
        return []
    name = ROW_OF[difference.key].name
    scale = _scale_of(difference)
    first, second = difference.between
    first_most, second_most = [
        _with_unit(scale.text(value), scale.unit) for value in difference.at_most
    ]
    notes = []
    below_first, above_second = difference.larger_than_seen
    if below_first:
        notes.append(_beyond(name, f"below -{first}", first, first_most))
    if above_second:
        notes.append(_beyond(name, f"above {second}", second, second_most))
    return notes


def _beyond(name: str, reaches: str, run: str, most: str) -> str:
    """Why the interval of a number's difference ``reaches`` so far: the value of ``run`` may be as
    large as ``most``.
    """
    return (
        f"The interval of {name} reaches {reaches}, since {run} itself may be more: up to {most} "
        "by its own interval."
    )


def headline(rows: Sequence[Difference]) -> str:
    """The number of real differences, as a title."""
    first, second = rows[0].between
    unknown = sum(map(is_unknown, rows))
    if unknown == len(rows):
        return f"{second} against {first}: none of {len(rows)} numbers could be compared"
    real = sum(map(is_real, rows))
    real_differences = format_many(real, "real difference") if real else "no real difference"
    counts = f"{real_differences} in {len(rows) - unknown} of {len(rows)} numbers"
    return f"{second} against {first}: {counts}; {unknown} unknown"


def unknown_reasons(rows: Sequence[Difference]) -> dict[str, list[str]]:
    """Reason -> names of the rows that cannot be compared for it."""
    reasons: dict[str, list[str]] = {}
    for difference in rows:
        if is_unknown(difference):
            reasons.setdefault(oneline(difference.why), []).append(ROW_OF[difference.key].name)
    return reasons
