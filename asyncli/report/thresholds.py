"""``--fail-if 'lost > 0.1%'``: limits on any number of a run's JSON. Pure.

An expression is a key, a comparison and a number with a unit. Keys are checked against the JSON's types before the run starts.
Numbers are compared as exact fractions of their decimal text.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from asyncli.core.life import DEATHS, FAILURES
from asyncli.model.errors import PlanError
from asyncli.model.units import exact, exact_duration, format_bytes, format_count, format_duration, shown

_FORM = re.compile(r"([A-Za-z_][\w.*]*)\s*(>=|<=|==|!=|>|<)\s*(\S.*)")
_COMPARE: dict[str, Callable[[Fraction, Fraction], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_NUMBER = re.compile(r"([-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?)\s*(\S.*)?")
_STATUS = re.compile(r"[1-9][0-9][0-9]")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# Units in a second.
_TIMES = {"us": Fraction(10**6), "ms": Fraction(1000), "s": Fraction(1), "minutes": Fraction(1, 60)}
# Rates may be written with their unit (10MB/h); costs per connection or request may not.
_PER = {"s": ("/s", "a second"), "hour": ("/h", "an hour")}
# Parts of the JSON in bytes without a unit in the name.
_IN_BYTES = ("residue", "bytes", "transfer")
#: The number of a part, if only the part is named.
_DEFAULT_NUMBERS = ("bytes_per_connection", "bytes_per_hour", "connections")
#: The whole of a percentage, by the first word of the key.
_WHOLES = {"connections": "connections.requested", "heartbeats": "heartbeats.sent", "requests": "requests.total"}
_OF = {"connections.requested": "asked for", "heartbeats.sent": "sent", "requests.total": "sent"}
# Parts of the JSON that are not results.
_EXCLUDED = ("schema", "plan", "environment", "findings", "diagnoses")
# Parts with counts by name.
_BY_NAME = ("failures", "deaths", "by_status", "ended")
#: Any name in a key.
_ANY = "*"
#: The names that exist: the count of another would always be 0.
_CAUSES: dict[str, Sequence[str]] = {"connections.deaths": DEATHS, "connections.failures": FAILURES}


class Threshold(msgspec.Struct, frozen=True):
    """One parsed limit: the full ``key``, and ``bound`` in the key's unit or as a share of ``whole``."""

    text: str
    key: str
    comparison: str
    bound: Fraction
    whole: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """``value`` of the key (None: unknown) and whether the limit was ``crossed`` (None: undecided).

    ``ci95``: the value's interval; a limit within it is undecided. ``whole``: what a percentage is of.
    """

    threshold: Threshold
    value: float | None
    crossed: bool | None
    ci95: tuple[float, float] | None = None
    whole: float | None = None

    @property
    def words(self) -> str:
        one = self.threshold
        return f"{'undecided: ' if self.crossed is None else ''}{one.text}: {one.key} is {self.amount}"

    @property
    def amount(self) -> str:
        """The value with its unit, interval and share."""
        if self.value is None:
            return "unknown"
        key, amount = self.threshold.key, _shown(self.threshold.key, self.value)
        if self.ci95 is not None:
            low, high = (_shown(key, end) for end in self.ci95)
            amount += f" (95 % interval {low} to {high})"
        if self.whole:
            percent = self.value / self.whole * 100
            share = f"{percent:,.3g}" if percent < 1000 else f"{percent:,.0f}"
            amount += f", {share} % of the {format_count(self.whole)} {_OF[self.threshold.whole or '']}"
        return amount


def parse(text: str, of: type[msgspec.Struct]) -> Threshold:
    """Parse a limit on the numbers of ``of``. Raises ``ValueError`` that says what to write instead."""
    text = re.sub(r"\s", " ", text.strip())  # it is printed on one line
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a limit; write KEY > NUMBER, such as 'lost > 0.1%'")
    key, comparison, number = _full(match[1], keys(of)), match[2], match[3]
    whole = None
    try:
        if number.endswith("%"):
            whole = _WHOLES.get(key.partition(".")[0])
            if whole is None or _kind(key) != _COUNT:
                raise ValueError(f"{key} is not a share of a count; write {shown(number)} without %")
            bound = _number(number[:-1].strip(), {"": 1}, number) / 100
        else:
            bound = _bound(key, number)
    except OverflowError:
        raise ValueError(f"{shown(number)} is too large; write a smaller number") from None
    return Threshold(text, key, comparison, bound, whole)


def require(expressions: Iterable[str], of: type[msgspec.Struct], where: str = "--fail-if") -> None:
    """Raise :class:`PlanError` for the first invalid limit, written ``where``."""
    for text in expressions:
        try:
            parse(text, of)
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from None


def judge(thresholds: Iterable[Threshold], document: Mapping[str, Any]) -> list[Outcome]:
    """Judge each threshold by ``document``, the JSON as plain data."""
    outcomes = []
    for one in thresholds:
        value, whole, ci95 = _finite(_found(document, one.key)), None, _interval(document, one.key)
        bound: Fraction | None = one.bound
        if one.whole is not None:
            whole = _finite(_found(document, one.whole))
            bound = None if whole is None else one.bound * _as_printed(whole)
        compare = _COMPARE[one.comparison]
        crossed = None if value is None or bound is None else compare(_as_printed(value), bound)
        if ci95 is not None and bound is not None and one.comparison not in ("==", "!="):
            crossed = crossed if all(compare(_as_printed(end), bound) is crossed for end in ci95) else None
        outcomes.append(Outcome(one, value, crossed, ci95, whole))
    return outcomes


def _as_printed(value: float) -> Fraction:
    """The decimal number in the JSON: exactly a tenth for 0.1, unlike the float."""
    return Fraction(repr(value))


@functools.cache
def keys(of: type[msgspec.Struct]) -> Sequence[str]:
    """The keys of all numbers of ``of``; ``*`` is any name."""
    return [key for key in dict.fromkeys(_walk(of, "")) if key.partition(".")[0] not in _EXCLUDED]


def _full(key: str, known: Sequence[str]) -> str:
    """The full key of a short one."""
    if _ANY in key:  # no name has a *, so its count would always be 0
        raise ValueError(f"{shown(key)} is not a number of a run; replace * by a name, such as connections.deaths.reset")
    if any(_matches(one, key) for one in known):
        _require_name(key)
        return key
    tails = [one for one in known if one.endswith(f".{key}")]
    for number in _DEFAULT_NUMBERS:
        # Except counts by name, which any name would match.
        tails += [one for one in known if not one.endswith(_ANY) and _matches(one, f"{key}.{number}")]
    found = list(dict.fromkeys(tails))
    if len(found) == 1:
        return f"{key}.{found[0].rpartition('.')[2]}" if _ANY in found[0] else found[0]
    if found:
        raise ValueError(f"{shown(key)} is ambiguous; write {' or '.join(found)}")
    section, last = key.partition(".")[0], key.rpartition(".")[2]
    near = [one for one in known if one.partition(".")[0] == section != key and one.rpartition(".")[2] == last]
    # Its names as they are written, the shortest of one number first: drift.server_user, not drift.server_user.bytes_per_hour.
    written = [*_short_names(known), *(one for one in known if _ANY not in one), *(one.rpartition(".")[2] for one in known)]
    near = near or difflib.get_close_matches(key, written, n=1)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see the keys of 'asyncli report RUN --json -'"
    raise ValueError(f"{shown(key)} is not a number of a run; {hint}")


def about(key: str, of: type[msgspec.Struct]) -> str:
    """The full key of a number of ``of``, and its unit. Raises ``ValueError`` for another."""
    full = _full(key, keys(of))
    unit, per = _kind(full)
    unit = f"{'counts' if unit == 'count' else unit}{f' {_PER[per][1]}' if per else ''}"
    return f"{full} of a run's JSON, in {unit}; --fail-if accepts it"


def _short_names(known: Sequence[str]) -> Iterator[str]:
    """The parts that stand for their default number."""
    for one in known:
        of, _, last = one.rpartition(".")
        if last in _DEFAULT_NUMBERS and _ANY not in one:
            yield of


def _require_name(key: str) -> None:
    """Raise ``ValueError`` for a cause or a status that does not exist."""
    of, _, name = key.rpartition(".")
    if (causes := _CAUSES.get(of)) is not None and name not in causes:
        near = difflib.get_close_matches(name, causes, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(causes)}"
        raise ValueError(f"{shown(name)} is not a cause in {of}; {hint}")
    if of.endswith("by_status") and _STATUS.fullmatch(name) is None:
        raise ValueError(f"{shown(name)} is not an HTTP status; write three digits, such as {of}.503")


def _matches(pattern: str, key: str) -> bool:
    wanted, given = pattern.split("."), key.split(".")
    return len(wanted) == len(given) and all(a in (_ANY, b) for a, b in zip(wanted, given, strict=True))


def _walk(of: Any, where: str) -> Iterator[str]:
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        hints = typing.get_type_hints(of)
        for field in msgspec.structs.fields(of):
            yield from _walk(hints[field.name], f"{where}.{field.name}".lstrip("."))
        return
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from _walk(one, where)
    elif origin is dict:
        named = typing.get_args(arguments[0]) if typing.get_origin(arguments[0]) is typing.Literal else (_ANY,)
        for name in named:
            yield from _walk(arguments[1], f"{where}.{name}")
    elif of in (int, float, bool):
        yield where


def _interval(document: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """The 95 % interval beside the number ``key``, or None."""
    of, _, leaf = key.rpartition(".")
    ends = _found(document, f"{of}.ci95") if leaf in _DEFAULT_NUMBERS else None
    low, high = map(_finite, ends) if ends else (None, None)
    return None if low is None or high is None else (low, high)


def _finite(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _found(document: Mapping[str, Any], key: str) -> Any:
    found: Any = document
    names = key.split(".")
    for name in names:
        if not isinstance(found, Mapping):
            return None
        # Causes and statuses that did not occur have no entry.
        found = found.get(name, 0 if names[-2:-1][0] in _BY_NAME else None)
    return found


class _Kind(NamedTuple):
    """``unit``: "bytes", "us", "ms", "s", "minutes" or "count"; ``per``: "s", "hour" or ""."""

    unit: str
    per: str = ""


_COUNT = _Kind("count")


def _kind(key: str) -> _Kind:
    """By the last word with a unit: ``server.cpu_s.hold_end`` is in seconds."""
    for word in reversed(key.split(".")):
        what, _, per = word.partition("_per_")
        unit = next((unit for unit in ("bytes", *_TIMES) if unit in what.split("_")), None)
        per = per if per in _PER else ""
        if unit or per:
            return _Kind(unit or "count", per)
    return _Kind("bytes") if key.partition(".")[0] in _IN_BYTES else _COUNT


def _bound(key: str, number: str) -> Fraction:
    unit, per = _kind(key)
    if per:
        number = number.removesuffix(_PER[per][0]).strip()
    if unit == "bytes":
        return _number(number, _BYTES, number)
    if unit in _TIMES:
        match = _NUMBER.fullmatch(number)
        return exact(match[1]) if match is not None and not match[2] else exact_duration(number) * _TIMES[unit]
    return _number(number, _COUNTS, number)


def _number(text: str, units: Mapping[str, int], given: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    unit = (match[2] or "").strip().lower() if match is not None else ""
    if match is None or unit not in units:
        known = ", ".join(one for one in units if one)
        if "," in text:
            raise ValueError(f"{shown(given)} has a comma; write a point before decimals, and nothing between thousands")
        raise ValueError(f"{shown(given)} does not fit; write a number{f', optionally with a unit: {known}' if known else ''}")
    return exact(match[1]) * units[unit]


def _shown(key: str, value: float) -> str:
    unit, per = _kind(key)
    if unit == "bytes":
        text = format_bytes(value)
    elif unit in _TIMES:
        text = format_duration(value / float(_TIMES[unit]))
    else:
        text = format_count(value) if value == int(value) else f"{value:.4g}"
    return f"{text} {_PER[per][1]}" if per else text
