"""``--fail-if 'lost > 0.1%'``: limits on any number of a run's JSON. Pure.

An expression is a key, a comparison and a number with a unit; ``cost.server_user worse by 3%``
compares with earlier runs (:mod:`asyncli.analysis.worsening`). Keys are checked against the JSON's
types before the run starts. Numbers are compared as exact fractions of their decimal text.
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
from typing import Any, Literal

import msgspec

from asyncli.analysis.worsening import COMPARABLE, Bound, Worsening
from asyncli.core.life import DEATHS, FAILURES
from asyncli.findings.cost import SURE
from asyncli.model.errors import PlanError
from asyncli.model.quantities import ANY, BEYOND_LATENESS, Quantity, matches, quantity_of
from asyncli.model.records import CHURN
from asyncli.model.units import (
    exact,
    exact_duration,
    format_bytes,
    format_count,
    format_duration,
    shown,
)

#: Of an interval too wide for its middle.
WIDE = "wide"
#: The part of the numbers that may be negative.
_GROWTH = "drift."
#: The comparison with the baseline runs.
WORSE_BY = "worse by"
_FORM = re.compile(r"([A-Za-z_][\w.*]*)\s*(>=|<=|==|!=|>|<|worse +by\b)\s*(\S.*)")
_COMPARE: dict[str, Callable[[Fraction, Fraction], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_NUMBER = re.compile(r"([-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?)\s*(\S.*)?")
_BARE = re.compile(r"[-+]?[\d._]+(?:[eE][-+]?\d+)?")
_STATUS = re.compile(r"[1-9][0-9][0-9]")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
# Units in a second.
_TIMES = {"us": Fraction(10**6), "ms": Fraction(1000), "s": Fraction(1), "minutes": Fraction(1, 60)}
# Rates may be written with their unit (10MB/h); costs per connection or request may not.
_PER = {"s": ("/s", "a second"), "hour": ("/h", "an hour")}
_BASE_UNITS = {"bytes": "B"}
_UNIT_WORDS = {
    "count": "counts",
    "share": "shares of 1",
    "us": "µs",
    "yes_or_no": "true (1) or false (0)",
}
#: The number of a part, if only the part is named.
_DEFAULT_NUMBERS = ("bytes_per_connection", "bytes_per_hour", "bytes_per_s", "connections")
#: The whole of a percentage of a limit that compares with the baseline runs.
OF_BASELINE = "baseline runs"
#: The whole of a percentage, by the first word of the key.
_WHOLES = {
    "connections": "connections.requested",
    "heartbeats": "heartbeats.sent",
    "requests": "requests.total",
}
_OF = {
    "connections.requested": "asked for",
    "heartbeats.sent": "sent",
    "requests.total": "sent",
}
#: The parts of the JSON that are computed with NumPy and SciPy.
_COMPUTED = ("cost", "drift", "forecast", "reconciliation", "residue")
#: Why a limit is not judged: this installation lacks what its number is computed with, or asyncli
#: ended the run for another limit.
NotJudged = Literal["not_installed", "ended_early"]
#: Why the number of a limit is not known here.
NOT_INSTALLED = "it needs NumPy and SciPy, which are not installed here"
# Parts of the JSON that are not results.
_EXCLUDED = ("schema", "plan", "environment", "findings", "diagnoses")
# Parts with counts by name.
_BY_NAME = ("failures", "deaths", "by_status", "error_answers", "ended")
_BY_STATUS = ("by_status", "error_answers")
#: The names that exist: the count of another would always be 0.
_CAUSES: dict[str, Sequence[str]] = {
    "connections.deaths": DEATHS,
    "connections.failures": FAILURES,
}


# Where the numbers of churn stand.
_OF_CHURN = f"events.{CHURN}."


class Threshold(msgspec.Struct, frozen=True):
    """One parsed limit: the full ``key``, and ``bound`` in the key's unit or as a share of
    ``whole``, of a limit on what is worse of the baseline runs' mean (:data:`OF_BASELINE`).
    """

    text: str
    key: str
    comparison: str
    bound: Fraction
    whole: str | None = None

    @property
    def is_relative(self) -> bool:
        """Whether it compares with the baseline runs."""
        return self.comparison == WORSE_BY

    @property
    def shown_key(self) -> str:
        """The key as it is asked for: of churn, which stands among the events, by its name."""
        if not self.key.startswith(_OF_CHURN):
            return self.key
        return f"churn.{self.key.removeprefix(_OF_CHURN)}"

    @property
    def is_computed(self) -> bool:
        """Whether its number, or what it is compared with, needs NumPy and SciPy."""
        return self.is_relative or self.key.partition(".")[0] in _COMPUTED


# Up to when a value is known that has more: by whether the run goes on.
_UP_TO = {True: " at that time", False: ", as far as the hold goes"}


class Outcome(msgspec.Struct, frozen=True):
    """``value`` of the key (None: unknown) and whether the limit was ``crossed`` (None: undecided).

    ``ci95``: the value's interval; a limit within it is undecided. ``whole``: what a percentage is
    of. ``worsening``: the difference from the baseline runs, or why there is none; None for other
    limits. ``why``: the reason for no value, or why it is at most this one; "" where none is known.
    ``has_more``: more than the value, which is as far as the run goes; ``so_far``: as far as it had
    gone when that was judged. ``is_least``: at least the value. ``beyond_lateness_ms``: of a
    latency whose limit is undecided for asyncli's own lateness, what is surely left without it.
    ``not_judged``: why it says nothing of the run; None of one that is kept, crossed or undecided.
    ``by_shared_memory``: it is undecided with an interval that reaches to shared memory which may
    be another program's.
    """

    threshold: Threshold
    value: float | None
    crossed: bool | None
    ci95: tuple[float, float] | None = None
    whole: float | None = None
    worsening: Worsening | str | None = None
    why: str = ""
    has_more: bool = False
    is_least: bool = False
    so_far: bool = False
    beyond_lateness_ms: float | None = None
    not_judged: NotJudged | None = None
    by_shared_memory: bool = False

    @property
    def by_lateness(self) -> bool:
        """Whether it is undecided because asyncli's own lateness is in the value."""
        if isinstance(self.worsening, Worsening):
            return self.worsening.is_by_lateness and self.worsening.later_ms > 0
        return self.beyond_lateness_ms is not None

    @property
    def words(self) -> str:
        text = f"{self.threshold.text}: {self.threshold.shown_key} is {self.amount}"
        if self.not_judged is not None:
            return f"not judged: {text}"
        if self.crossed is None:
            return f"undecided: {text}"
        return text

    @property
    def is_unjudged_here(self) -> bool:
        """Whether this installation cannot judge it."""
        return self.not_judged == "not_installed"

    @property
    def amount(self) -> str:
        """The value with its unit, interval and share."""
        if isinstance(self.worsening, str):
            return f"unknown: {self.worsening}"
        if self.value is None and self.why:
            return f"unknown: {self.why}"
        if self.value is None:
            return "unknown"
        key = self.threshold.key
        amount = value_shown(key, self.value)
        if self.why:
            return f"{amount} at most: {self.why}"
        if self.has_more:
            return f"more than {amount}{_UP_TO[self.so_far]}"
        if self.is_least:
            return f"{amount} at least"
        if self.beyond_lateness_ms is not None:
            left = value_shown(key, self.beyond_lateness_ms)
            return f"{amount} with asyncli's own lateness, and at least {left} without it"
        if isinstance(self.worsening, Worsening):
            return f"{amount}, {_compared(self.threshold, self.worsening)}"
        return self._with_interval_and_share(amount)

    def _with_interval_and_share(self, amount: str) -> str:
        assert self.value is not None
        if self.ci95 is not None:
            low, high = (value_shown(self.threshold.key, end) for end in self.ci95)
            amount += f" (95 % interval {low} to {high})"
        if self.whole and self.threshold.whole is not None:
            share = _percent(self.value / self.whole * 100)
            amount += f", {share} of the {format_count(self.whole)} {_OF[self.threshold.whole]}"
        return amount


def _compared(threshold: Threshold, worsening: Worsening) -> str:
    """How a value differs from that of the baseline runs, with the interval of the decision, and
    what asyncli's own lateness has to do with it if that decides.
    """
    difference = _difference_from(threshold, worsening)
    if not worsening.is_by_lateness:
        return difference
    apart = format_duration(abs(worsening.later_ms) / 1000)
    if worsening.later_ms > 0:
        return f"{difference}; asyncli itself sent {apart} later, which this latency includes"
    return f"{difference}; before, asyncli itself sent {apart} later, which those latencies include"


def _difference_from(threshold: Threshold, worsening: Worsening) -> str:
    before = value_shown(threshold.key, worsening.before)
    if worsening.runs > 1:
        before = f"the weighted mean of {worsening.runs} baseline runs, {before}"
    else:
        before = f"the baseline run's {before}"
    ends = (worsening.low, worsening.difference, worsening.high)
    low, difference, high = differences_shown(threshold, worsening.before, ends)
    if difference == WIDE:
        return f"{low} to {high} against {before}"
    return f"{difference} against {before} ({low} to {high})"


def differences_shown(
    threshold: Threshold, before: float, interval: tuple[float, float, float]
) -> tuple[str, str, str]:
    """Lower end, difference and upper end of ``interval`` as :func:`difference_shown`; the
    difference in the middle of one that is wide against the value before says nothing.
    """
    low, difference, high = interval
    shown_difference = difference_shown(threshold, difference, before)
    if high - low > 2 * SURE * abs(before):
        shown_difference = WIDE
    return (
        difference_shown(threshold, low, before),
        shown_difference,
        difference_shown(threshold, high, before),
    )


def difference_shown(threshold: Threshold, difference: float, before: float) -> str:
    """A difference in the unit of its limit: as a share of the value before, or as an amount. What
    cannot be below zero falls by no more than it was; growth can.
    """
    if before > 0 and not threshold.key.startswith(_GROWTH):
        difference = max(difference, -before)
    if not math.isfinite(difference):
        return "any"
    if threshold.whole == OF_BASELINE and before > 0:
        return f"{difference / before * 100:+,.2f} %"
    sign = "+" if difference > 0 else ""
    return f"{sign}{value_shown(threshold.key, difference)}"


def _percent(percent: float) -> str:
    if percent < 1000:
        return f"{percent:,.3g} %"
    return f"{percent:,.0f} %"


def parse(text: str, of: type[msgspec.Struct]) -> Threshold:
    """Parse a limit on the numbers of ``of``. Raises ``ValueError`` that says what to write
    instead.
    """
    text = re.sub(r"\s", " ", text.strip())  # it is printed on one line
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{shown(text)} is not a limit; write KEY > NUMBER, such as 'lost > 0.1%', or "
            "KEY worse by NUMBER, such as 'cost.server_user worse by 3%'"
        )
    short_key, comparison, number = match.groups()
    is_relative = comparison.startswith("worse")
    meant = _comparable(keys(of)) if is_relative else keys(of)
    key = _full(short_key, keys(of), meant)
    try:
        if is_relative:
            return _relative(text, key, number, keys(of))
        if not number.endswith("%"):
            return Threshold(text, key, comparison, _bound(key, number))
        whole = _WHOLES.get(key.partition(".")[0])
        if whole is None or not _is_count(quantity_of(key)):
            raise ValueError(f"{key} is not a share of a count; write {shown(number)} without %")
        share = _number(number[:-1].strip(), {"": 1}, number) / 100
        return Threshold(text, key, comparison, share, whole)
    except OverflowError:
        raise ValueError(f"{shown(number)} is too large; write a smaller number") from None


def _relative(text: str, key: str, number: str, known: Sequence[str]) -> Threshold:
    """A limit on how much worse a number may be than in the baseline runs; ``known``: the keys of
    all numbers.
    """
    comparable = _comparable(known)
    if not comparable:
        raise ValueError("only a soak is compared with earlier runs; write KEY > NUMBER")
    if key not in comparable:
        names = ", ".join(_without_default(other) for other in comparable)
        raise ValueError(f"{key} is not compared with earlier runs; those that are: {names}")
    whole = None
    if not number.endswith("%"):
        bound = _bound(key, number)
    elif key.startswith(_GROWTH):
        raise ValueError(f"{key} may be near zero, so {number} of it says nothing; write an amount")
    else:
        bound = _number(number[:-1].strip(), {"": 1}, number) / 100
        whole = OF_BASELINE
    if bound <= 0:
        raise ValueError(f"{shown(number)} is no worsening; write a number above 0")
    return Threshold(text, key, WORSE_BY, bound, whole)


def _comparable(known: Sequence[str]) -> Sequence[str]:
    """Those of ``known`` that are compared with earlier runs."""
    return [key for key in COMPARABLE if key in known]


def _without_default(key: str) -> str:
    """A key as it is written: without the number that its part stands for."""
    part, _, number = key.rpartition(".")
    return part if number in _DEFAULT_NUMBERS else key


def judge_worsening(threshold: Threshold, worsening: Worsening | str) -> Outcome:
    """Judge a limit that compares with earlier runs. A text is the reason for no difference."""
    if isinstance(worsening, str):
        return Outcome(threshold, None, None, worsening=worsening)
    return Outcome(threshold, worsening.value, worsening.is_worse, worsening=worsening)


def without_computing(threshold: Threshold) -> Outcome:
    """The outcome of a limit whose number this installation cannot compute."""
    return Outcome(threshold, None, None, why=NOT_INSTALLED, not_judged="not_installed")


def unless_ended_early(outcome: Outcome) -> Outcome:
    """The outcome in a run that asyncli ended for another limit that was crossed: an interval that
    is too wide is no finding then. What is undecided for a reason of its own stays so.
    """
    is_of_hold = outcome.value is not None or outcome.threshold.is_relative
    if outcome.crossed is not None or outcome.by_lateness or not is_of_hold:
        return outcome
    return msgspec.structs.replace(outcome, worsening=None, ci95=None, not_judged="ended_early")


def bound_of(threshold: Threshold) -> Bound:
    """The bound of a limit that compares with earlier runs."""
    if threshold.whole == OF_BASELINE:
        return Bound(share=float(threshold.bound))
    return Bound(amount=float(threshold.bound))


def require(expressions: Iterable[str], of: type[msgspec.Struct], where: str = "--fail-if") -> None:
    """Raise :class:`PlanError` for the first invalid limit, written ``where``."""
    for text in expressions:
        try:
            _require_unit(parse(text, of))
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from None


def _require_unit(threshold: Threshold) -> None:
    """Raise ``ValueError`` for a limit that compares with earlier runs by a bare number: 3 may be
    meant as 3 %. One of a run of an earlier version is judged as it was.
    """
    if not threshold.is_relative:
        return
    match = _FORM.fullmatch(threshold.text)
    number = match[3] if match is not None else ""
    if not _BARE.fullmatch(number):
        return
    quantity = quantity_of(threshold.key)
    unit = _BASE_UNITS.get(quantity.unit, quantity.unit)
    if quantity.per:
        unit += _PER[quantity.per][0]
    text = f"{shown(number)} has no unit; write {number}{unit}"
    if not threshold.key.startswith(_GROWTH):
        text += f", or {number}% of the baseline runs' value"
    raise ValueError(text)


def judge(thresholds: Iterable[Threshold], document: Mapping[str, Any]) -> list[Outcome]:
    """Judge each threshold by ``document``, the JSON as plain data."""
    return [_unless_late(_judged(threshold, document), document) for threshold in thresholds]


def _unless_late(outcome: Outcome, document: Mapping[str, Any]) -> Outcome:
    """The outcome; undecided if a latency is surely above its limit only with asyncli's own
    lateness.
    """
    threshold = outcome.threshold
    beyond_ms = _beyond_lateness(document, threshold)
    if not outcome.crossed or beyond_ms is None:
        return outcome
    if _is_crossed(threshold.comparison, beyond_ms, threshold.bound, None):
        return outcome
    return msgspec.structs.replace(outcome, crossed=None, beyond_lateness_ms=beyond_ms)


def _judged(threshold: Threshold, document: Mapping[str, Any]) -> Outcome:
    value = _finite(_value(document, threshold.key))
    ci95 = _interval(document, threshold.key)
    whole = None
    bound: Fraction | None = threshold.bound
    if threshold.whole is not None:
        whole = _finite(_value(document, threshold.whole))
        bound = None if whole is None else threshold.bound * _as_printed(whole)
    if bound is not None:
        outcome = _of_time_of_event(threshold, value, bound, document)
        if outcome is not None:
            return outcome
    untellable = _why_untellable(document, threshold.key)
    if untellable:
        return Outcome(threshold, None, None, why=untellable)
    crossed = None
    if value is not None and bound is not None:
        crossed = _is_crossed(threshold.comparison, value, bound, ci95)
    untold = _why_at_most(document, threshold.key)
    if untold and crossed is not _SURE_OF_AT_MOST.get(threshold.comparison):
        return Outcome(threshold, value, None, why=untold)
    return Outcome(threshold, value, crossed, ci95, whole)


def _of_time_of_event(
    threshold: Threshold, value: float | None, bound: Fraction, document: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of a limit on a time of an event that is not wholly known, if something is known
    of it.
    """
    outcome = _of_time_away(threshold, value, bound, document)
    if outcome is None:
        outcome = _of_bounded_time(threshold, value, bound, document)
    if value is not None or outcome is not None:
        return outcome
    if threshold.comparison in (">", ">="):
        outcome = _of_time_back(threshold, bound, document)
    return outcome or _of_time_noticed(threshold, bound, document)


#: Of a value that is at most the one known, which decision is sure.
_SURE_OF_AT_MOST = {">": False, ">=": False, "<": True, "<=": True}
#: Whose first answers nothing tells of, and why.
_UNTOLD = {
    "lost_with_worker": "some went with a process of asyncli's own before being back",
    "unheard": "the server sent some of them nothing since, who only listen",
}


def _why_at_most(document: Mapping[str, Any], key: str) -> str:
    """Why the time back from an event, of which ``key`` is one, may be shorter than its number, or
    is not known: of some whom it ended nothing tells when they were back. "" where all is told.
    """
    event = _event_of_time_back(key)
    if event is None or not key.endswith(_TIMES_BACK):
        return ""
    for count, why in _UNTOLD.items():
        if _value(document, f"{event}.{count}"):
            return why
    return ""


def _of_time_back(
    threshold: Threshold, bound: Fraction, document: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of an upper bound on an unknown time back from an event, if it is such a one and
    something decides it.
    """
    untold = _why_at_most(document, threshold.key)
    waited_s = _waited_s(document, threshold.key)
    if untold and not threshold.key.endswith(".all_s"):
        # Those who were not back may be more than this share only with these.
        waited_s = None
    if waited_s is not None and _is_crossed(threshold.comparison, waited_s, bound, None):
        return Outcome(threshold, waited_s, True, has_more=True)
    if waited_s is not None:
        why = _why_not_back(document, threshold.key, waited_s)
        return Outcome(threshold, None, None, why=why)
    if untold:
        return Outcome(threshold, None, None, why=untold)
    if _ended_none(document, threshold.key):
        return _of_no_end(threshold)
    return None


def _of_no_end(threshold: Threshold) -> Outcome:
    return Outcome(threshold, None, False, why="the event ended no connection")


#: For how long clients were away whom an event ended.
_TIMES_AWAY = ("p50_s", "p99_s", "max_s")


def _of_time_away(
    threshold: Threshold, value: float | None, bound: Fraction, document: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of a limit on how long clients were away whom an event ended, where some of them
    were not back, by the least and the most that it can be; None where all were, and of any other
    limit.
    """
    part, _, time = threshold.key.rpartition(".")
    if not _is_time_away(threshold.key):
        return None
    is_from_above = threshold.comparison in (">", ">=")
    if is_from_above and value is None and _ended_none(document, threshold.key):
        return _of_no_end(threshold)
    least_s = _finite(_value(document, f"{part}.at_least.{time}"))
    if least_s is None:
        return None
    crossed = _is_crossed_within(threshold.comparison, least_s, value, bound)
    if crossed is not None and crossed is is_from_above:
        return Outcome(threshold, least_s, crossed, has_more=True)
    if crossed is not None:
        return Outcome(threshold, value, crossed, why="some were not back")
    bounds = [f"some were not back, so {format_duration(least_s)} at least"]
    if value is not None:
        bounds.append(f"{format_duration(value)} at most")
    return Outcome(threshold, None, None, why=" and ".join(bounds))


#: Times of an event of which the least is told: where the most is.
_MOST_OF = {
    "no_answers_s": "no_answers_at_most_s",
    "stood_still_s": "stood_still_at_most_s",
}


def _of_bounded_time(
    threshold: Threshold, value: float | None, bound: Fraction, document: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of a limit on how long no client had an answer, or the server stood still, where
    that is not exactly known; None where it is, and of any other limit.
    """
    event, _, figure = threshold.key.rpartition(".")
    _, _, number = event.rpartition(".")
    bound_key = _MOST_OF.get(figure)
    if bound_key is None or value is None:
        return None
    part = _numbered(document["events"], number)
    if part is None or bound_key not in part:
        # An older version's.
        return None
    most_s = _finite(part[bound_key])
    if most_s == value:
        return None
    crossed = _is_crossed_within(threshold.comparison, value, most_s, bound)
    is_from_above = threshold.comparison in (">", ">=")
    if crossed is not None and crossed is is_from_above:
        return Outcome(threshold, value, crossed, is_least=True)
    if crossed is not None:
        why = "when it began or ended is not exactly known"
        return Outcome(threshold, most_s, crossed, why=why)
    bounds = [f"{format_duration(value)} at least"]
    if most_s is not None:
        bounds.append(f"{format_duration(most_s)} at most")
    return Outcome(threshold, None, None, why=" and ".join(bounds))


def _is_time_away(key: str) -> bool:
    part, _, time = key.rpartition(".")
    return key.startswith("events.") and part.endswith(".away") and time in _TIMES_AWAY


#: The times after which a server held no more of the silent ones than such a share.
_SHARE_AFTER = {"p50_s": 0.5, "p90_s": 0.1, "all_s": 0.0}


def _of_time_noticed(
    threshold: Threshold, bound: Fraction, document: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of a limit on an unknown time after which the server held so many silent ones no
    more, by the last reading that had more and the first that had none; None where these tell
    nothing.
    """
    part, _, time = threshold.key.rpartition(".")
    if not part.endswith(".noticed") or time not in _SHARE_AFTER:
        return None
    least_s = _held_more_s(document, part, _SHARE_AFTER[time])
    most_s = _finite(_value(document, f"{part}.all_at_most_s"))
    if not least_s and most_s is None:
        return None
    bounds = []
    if least_s:
        bounds.append(f"more than {format_duration(least_s)}")
    if most_s is not None:
        bounds.append(f"{format_duration(most_s)} at most")
    crossed = _is_crossed_within(threshold.comparison, least_s, most_s, bound)
    return Outcome(threshold, None, crossed, why=" and ".join(bounds))


def _held_more_s(document: Mapping[str, Any], part: str, share: float) -> float:
    """When (s) the server surely held more than a ``share`` of the silent ones at last; 0 where
    that is not known. Beside churn it may have held some then, and no more than the share.
    """
    after_s = _finite(_value(document, f"{part}.left_after_s")) or 0.0
    if not share:
        return after_s
    left = _finite(_value(document, f"{part}.left")) or 0.0
    silenced = _finite(_value(document, f"{part.removesuffix('noticed')}ended")) or 0.0
    return after_s if left > share * silenced else 0.0


def _is_crossed_within(
    comparison: str, least: float, most: float | None, bound: Fraction
) -> bool | None:
    """Whether a value is across a bound that is more than ``least`` and no more than ``most``
    (None: it has no end); None if it may be and may not be.
    """
    if comparison in ("==", "!="):
        return None
    compare = _COMPARE[comparison]
    is_high_crossed = comparison in (">", ">=")
    if most is not None:
        is_high_crossed = compare(_as_printed(most), bound)
    if compare(_as_printed(least), bound) is not is_high_crossed:
        return None
    return is_high_crossed


def _beyond_lateness(document: Mapping[str, Any], threshold: Threshold) -> float | None:
    """What is surely left of a latency (ms) that a limit bounds from above without asyncli's own
    lateness; None of other limits.
    """
    part, _, quantile = threshold.key.rpartition(".")
    if threshold.comparison not in (">", ">=") or not part.endswith("latency_ms"):
        return None
    beyond = f"{part.removesuffix('latency_ms')}{BEYOND_LATENESS}"
    return _finite(_value(document, f"{beyond}.{quantile}"))


def _waited_s(document: Mapping[str, Any], key: str) -> float | None:
    """For how long (s) some were not back from an event, of whose time back ``key`` is; else
    None.
    """
    event = _event_of_time_back(key)
    if event is None:
        return None
    return _finite(_value(document, f"{event}.back.waited_s"))


def _why_not_back(document: Mapping[str, Any], key: str, waited_s: float) -> str:
    """Why the time back ``key`` is not known where some were not back for so long."""
    event = _event_of_time_back(key)
    if _value(document, f"{event}.records_end_after_s") is not None:
        return "the records end before some were back"
    return f"some were not back in the {format_duration(waited_s)} that the hold had"


def _ended_none(document: Mapping[str, Any], key: str) -> bool:
    """Whether ``key`` is of a time of the clients of an event that was done and ended no
    connection.
    """
    event = _event_of_time(key)
    if event is None or _value(document, f"{event}.ended") != 0:
        return False
    if _took_nobody(document, key):
        return False
    return not _value(document, f"{event}.stalled")


def _why_untellable(document: Mapping[str, Any], key: str) -> str:
    """Why the run does not tell the number ``key`` of an event; "" where it may."""
    if _took_nobody(document, key):
        return "the event took none of those whom it chose"
    if _is_of_turns_to_come(document, key):
        return "the records end before the turn of some to come back"
    return ""


def _took_nobody(document: Mapping[str, Any], key: str) -> bool:
    """Whether ``key`` is of the comeback from an event of whose chosen connections none could be
    had: each was not connected, or in another event.
    """
    event = _event_of_time(key) or key.removesuffix(".not_back")
    if not event.startswith("events.") or event == key:
        return False
    absent = _value(document, f"{event}.absent")
    return bool(absent) and absent == _value(document, f"{event}.chosen")


def _is_of_turns_to_come(document: Mapping[str, Any], key: str) -> bool:
    """Whether ``key`` is how many were not back from an event, which the records of a run that goes
    on, or was killed, do not tell: the turn of some was to come.
    """
    event = key.removesuffix(".not_back")
    if not event.startswith("events.") or event == key:
        return False
    is_cut = _value(document, f"{event}.records_end_after_s") is not None
    return is_cut and bool(_value(document, f"{event}.waiting"))


#: The times back from an event that cannot fall any more once they are known.
_TIMES_BACK = ("p50_s", "p90_s", "p99_s", "all_s")


def time_back_of(key: str) -> int | None:
    """The number of the event of the plan after which ``key`` is a time back; else None."""
    event = _event_of_time_back(key)
    if event is None or not key.endswith(_TIMES_BACK):
        return None
    number = event.removeprefix("events.")
    if not number.isdecimal() or int(number) == CHURN:
        # Of churn some are ended all the time, so that a share of them may be faster later.
        return None
    return int(number)


def longest_away_of(key: str) -> int | None:
    """The number of the event of the plan of whose clients ``key`` is the longest time away, which
    only grows; else None.
    """
    if not _is_time_away(key) or not key.endswith(".max_s"):
        return None
    _, number, *_ = key.split(".")
    if not number.isdecimal() or int(number) == CHURN:
        return None
    return int(number)


def _event_of_time(key: str) -> str | None:
    """The part of the document on the event of whose clients ``key`` is a time, until they are back
    or for which they are away; else None.
    """
    if _is_time_away(key):
        part, _, _ = key.rpartition(".")
        return part.removesuffix(".away")
    return _event_of_time_back(key)


def _event_of_time_back(key: str) -> str | None:
    """The part of the document on the event of whose time back ``key`` is; else None."""
    part, _, _ = key.rpartition(".")
    if not key.startswith("events.") or not part.endswith(".back"):
        return None
    return part.removesuffix(".back")


def _is_crossed(
    comparison: str, value: float, bound: Fraction, ci95: tuple[float, float] | None
) -> bool | None:
    """None if the bound is within the interval, whose ends then compare differently."""
    compare = _COMPARE[comparison]
    crossed = compare(_as_printed(value), bound)
    if ci95 is None or comparison in ("==", "!="):
        return crossed
    for end in ci95:
        if compare(_as_printed(end), bound) is not crossed:
            return None
    return crossed


def _as_printed(value: float) -> Fraction:
    """The decimal number in the JSON: exactly a tenth for 0.1, unlike the float."""
    return Fraction(repr(value))


@functools.cache
def keys(of: type[msgspec.Struct]) -> Sequence[str]:
    """The keys of all numbers of ``of``; ``*`` is any name."""
    known = dict.fromkeys(_walk(of, ""))
    return [key for key in known if key.partition(".")[0] not in _EXCLUDED]


def _full(key: str, known: Sequence[str], meant: Sequence[str]) -> str:
    """The full key of a short one; ``meant``: the keys that one may have meant by a wrong one."""
    if ANY in key:  # no name has a *, so its count would always be 0
        raise ValueError(
            f"{shown(key)} is not a number of a run; replace * by a name, such as "
            "connections.deaths.reset"
        )
    if key.startswith("churn."):
        # It stands among the events.
        key = f"events.{CHURN}.{key.removeprefix('churn.')}"
    if any(matches(pattern, key) for pattern in known):
        _require_name(key)
        return key
    candidates = _ending_in(key, known)
    if not candidates:
        raise ValueError(f"{shown(key)} is not a number of a run; {_hint(key, meant)}")
    if len(candidates) > 1:
        raise ValueError(f"{shown(key)} is ambiguous; write {' or '.join(candidates)}")
    full = candidates[0]
    if ANY in full:
        return f"{key}.{full.rpartition('.')[2]}"
    return full


def _ending_in(key: str, known: Sequence[str]) -> list[str]:
    """The known keys that a short one may stand for."""
    candidates = [pattern for pattern in known if pattern.endswith(f".{key}")]
    # Except counts by name, which any name would match.
    of_parts = [pattern for pattern in known if not pattern.endswith(ANY)]
    for number in _DEFAULT_NUMBERS:
        candidates += [part for part in of_parts if matches(part, f"{key}.{number}")]
    return list(dict.fromkeys(candidates))


def _hint(key: str, known: Sequence[str]) -> str:
    near = _near(key, known)
    if not near:
        return "see the keys of 'asyncli report RUN --json -'"
    return f"did you mean {' or '.join(map(repr, near))}?"


def _near(key: str, known: Sequence[str]) -> list[str]:
    """The known keys that resemble a wrong one: of its section with the same last word, else in
    spelling.
    """
    section = key.partition(".")[0]
    last = key.rpartition(".")[2]
    near = []
    for pattern in known:
        # A key of one word has no section.
        if pattern.partition(".")[0] == section != key and pattern.rpartition(".")[2] == last:
            near.append(pattern)
    if near:
        return near
    # Its names as they are written, the shortest of a number first: drift.server_user, not
    # drift.server_user.bytes_per_hour.
    written = [*_short_names(known), *(pattern for pattern in known if ANY not in pattern)]
    written += [pattern.rpartition(".")[2] for pattern in known]
    return difflib.get_close_matches(key, written, n=1)


def about(key: str, of: type[msgspec.Struct]) -> str:
    """The full key of a number of ``of``, and its unit. Raises ``ValueError`` for another."""
    known = keys(of)
    full = _full(key, known, known)
    quantity = quantity_of(full)
    unit = unit_words(quantity)
    return f"{full} of a run's JSON: {quantity.about}, in {unit}; --fail-if accepts it"


def unit_words(quantity: Quantity) -> str:
    """A quantity's unit: "bytes an hour"."""
    unit = _UNIT_WORDS.get(quantity.unit, quantity.unit)
    if quantity.per:
        return f"{unit} {_PER[quantity.per][1]}"
    return unit


def _short_names(known: Sequence[str]) -> Iterator[str]:
    """The parts that stand for their default number."""
    for key in known:
        part, _, number = key.rpartition(".")
        if number in _DEFAULT_NUMBERS and ANY not in key:
            yield part


def _require_name(key: str) -> None:
    """Raise ``ValueError`` for a cause or a status that does not exist."""
    part, _, name = key.rpartition(".")
    causes = _CAUSES.get(part)
    if causes is not None and name not in causes:
        near = difflib.get_close_matches(name, causes, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(causes)}"
        raise ValueError(f"{shown(name)} is not a cause in {part}; {hint}")
    if part.endswith(_BY_STATUS) and _STATUS.fullmatch(name) is None:
        raise ValueError(
            f"{shown(name)} is not an HTTP status; write three digits, such as {part}.503"
        )


def _walk(of: Any, where: str) -> Iterator[str]:
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        hints = typing.get_type_hints(of)
        for field in msgspec.structs.fields(of):
            yield from _walk(hints[field.name], f"{where}.{field.name}".lstrip("."))
        return
    origin = typing.get_origin(of)
    arguments = typing.get_args(of)
    if origin in (typing.Union, types.UnionType):
        for alternative in arguments:
            yield from _walk(alternative, where)
    elif origin is dict:
        type_of_keys, type_of_values = arguments
        names = (ANY,)
        if typing.get_origin(type_of_keys) is typing.Literal:
            names = typing.get_args(type_of_keys)
        for name in names:
            yield from _walk(type_of_values, f"{where}.{name}")
    elif origin is list and _is_numbered(arguments[0]):
        yield from _walk(arguments[0], f"{where}.{ANY}")
    elif of in (int, float, bool):
        yield where


def _is_numbered(of: Any) -> bool:
    """Whether the parts of a list have numbers, by which keys name them: ``events.1``."""
    return (
        isinstance(of, type) and issubclass(of, msgspec.Struct) and "number" in of.__struct_fields__
    )


def _interval(document: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """The 95 % interval beside the number ``key``, or None."""
    part, _, number = key.rpartition(".")
    if number not in _DEFAULT_NUMBERS:
        return None
    ends = _value(document, f"{part}.ci95")
    if not ends:
        return None
    low, high = map(_finite, ends)
    if low is None or high is None:
        return None
    return low, high


def _finite(value: object) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _value(document: Mapping[str, Any], key: str) -> Any:
    """What the document has under the key; None without it."""
    *parts, name = key.split(".")
    value: Any = document
    for part in parts:
        value = _numbered(value, part) if isinstance(value, list) else value.get(part)
        if not isinstance(value, Mapping | list):
            return None
    if isinstance(value, list):
        return None
    if parts and parts[-1] in _BY_NAME:
        # Causes and statuses that did not occur have no entry.
        return value.get(name, 0)
    return value.get(name)


def _numbered(parts: list[Any], number: str) -> Any:
    """The part of a list that has this number; None without it."""
    for part in parts:
        if isinstance(part, Mapping) and str(part.get("number")) == number:
            return part
    return None


def _is_count(quantity: Quantity) -> bool:
    return quantity.unit == "count" and not quantity.per


def _bound(key: str, number: str) -> Fraction:
    quantity = quantity_of(key)
    unit = quantity.unit
    if quantity.per:
        number = number.removesuffix(_PER[quantity.per][0]).strip()
    if unit == "bytes":
        return _number(number, _BYTES, number)
    if unit in _TIMES:
        match = _NUMBER.fullmatch(number)
        if match is not None and not match[2]:
            return exact(match[1])
        return exact_duration(number) * _TIMES[unit]
    return _number(number, _COUNTS, number)


def _number(text: str, units: Mapping[str, int], given: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _unreadable_number(text, units, given)
    factor = units.get((match[2] or "").strip().lower())
    if factor is None:
        raise _unreadable_number(text, units, given)
    return exact(match[1]) * factor


def _unreadable_number(text: str, units: Mapping[str, int], given: str) -> ValueError:
    if "," in text:
        return ValueError(
            f"{shown(given)} has a comma; write a point before decimals, and nothing between "
            "thousands"
        )
    known = ", ".join(filter(None, units))
    if known:
        return ValueError(
            f"{shown(given)} does not fit; write a number, optionally with a unit: {known}"
        )
    return ValueError(f"{shown(given)} does not fit; write a number")


def value_shown(key: str, value: float) -> str:
    """A value with the unit of its key."""
    quantity = quantity_of(key)
    unit = quantity.unit
    if unit == "bytes":
        text = format_bytes(value)
    elif unit in _TIMES:
        text = format_duration(value / float(_TIMES[unit]))
    elif value == int(value):
        text = format_count(value)
    else:
        text = f"{value:.4g}"
    if quantity.per:
        return f"{text} {_PER[quantity.per][1]}"
    return text
