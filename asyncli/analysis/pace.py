"""Whether a search found a limit on the number of connections, or on connects in a time. Pure.

A count whose last connections were never served is tried again with its connects spread over more
time: twice its ramp, and at least a hold. A limit on the number serves the same number again. A
limit on connects in a time serves all: one of windows up to half as long as that time, because the
count is at most what two of them grant, and one that refills meanwhile by more than the precision
of the answer.

What was held at the slower pace is tried once more at the first one. Only if it fails again is the
pace the reason: else the limit moved by itself, as that of a server that keeps state of earlier
steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from asyncli.analysis.bottleneck import Bottleneck
from asyncli.analysis.capacity import (
    Absence,
    Bracket,
    Search,
    Tried,
    Verdict,
    bracket,
    holds_none,
    moved_limit,
    next_count,
    verdict,
)
from asyncli.findings.bottleneck import words_of
from asyncli.model.units import format_rate

#: What the server limits. moved: neither, the count was held at the first pace too. unknown: the
#: tries do not tell.
Limits = Literal["number", "connects_in_a_time", "moved", "unknown"]


class Attempt(NamedTuple):
    """The next step of a search. ``slower``: its ramp is to last :func:`slower_ramp_s`."""

    asked: int
    slower: bool


class PaceTest(msgspec.Struct, frozen=True):
    """``asked`` connections at two paces (connects a second), and how many each served."""

    limits: Limits
    asked: int
    per_s: float
    slower_per_s: float
    served: int
    served_slower: int

    @property
    def told_apart_s(self) -> float:
        """The longest window (s) by which a limit on connects is told from one on their number: a
        ramp across two windows has opened at most twice what one grants.
        """
        return self.asked / self.slower_per_s / 2


def slower_ramp_s(ramp_s: float, hold_s: float) -> float:
    """How long a slower ramp lasts (s), where one at the first pace lasts ``ramp_s``."""
    return max(2 * ramp_s, hold_s)


def at_first_pace(tried: Sequence[Tried]) -> list[Tried]:
    """The steps that the bracket is made of."""
    return [step for step in tried if not step.slower]


def next_attempt(search: Search, tried: Sequence[Tried]) -> Attempt | None:
    """The next step; None when the search is over."""
    if not any(step.slower for step in tried):
        count = next_count(search, tried)
        if count is not None:
            return Attempt(count, slower=False)
        doubted = _doubted(search, tried)
        if doubted is None:
            return None
        return Attempt(doubted.asked, slower=True)
    last = tried[-1]
    if last.slower and last.outcome == "held":
        return Attempt(last.asked, slower=False)
    return None


def _doubted(search: Search, tried: Sequence[Tried]) -> Tried | None:
    """The step whose count may be a limit on connects in a time; None if there is none."""
    if not tried or tried[-1].outcome == "stopped" or holds_none(tried):
        return None
    moved = moved_limit(tried)
    known = bracket(tried)
    if moved is not None:
        doubted = moved[0]
    elif known.failed is not None and known.is_narrow(search.within):
        doubted = _last_failed(tried, known.failed)
    else:
        return None
    if doubted.unserved and not doubted.chance:
        return doubted
    return None


def _last_failed(tried: Sequence[Tried], asked: int) -> Tried:
    failed = [step for step in tried if step.outcome == "failed" and step.asked == asked]
    return failed[-1]


def pace_test(search: Search, tried: Sequence[Tried]) -> PaceTest | None:
    """What the slower step shows; None if there was none."""
    place = next((number for number, step in enumerate(tried) if step.slower), None)
    if place is None:
        return None
    slower = tried[place]
    first = _last_failed(tried[:place], slower.asked)
    return PaceTest(
        _limits(first, slower, tried[place + 1 :], search.within),
        slower.asked,
        first.per_s,
        slower.per_s,
        first.served,
        slower.served,
    )


def _limits(first: Tried, slower: Tried, after: Sequence[Tried], within: float) -> Limits:
    """What a server limits that failed ``first``, then tried ``slower``, and then ``after``."""
    if slower.outcome == "held":
        if not after:
            return "unknown"
        if after[-1].outcome == "held":
            return "moved"
        if after[-1].outcome == "failed" and after[-1].unserved:
            return "connects_in_a_time"
        return "unknown"
    is_same = abs(slower.served - first.served) <= within * first.served
    if slower.outcome == "failed" and slower.unserved and is_same:
        return "number"
    return "unknown"


def paced_bracket(search: Search, tried: Sequence[Tried]) -> Bracket:
    """The bracket of the steps at the first pace. Where the limit is on connects in a time, no
    count was too many: the largest that was held at either pace.
    """
    pace = pace_test(search, tried)
    if pace is None or pace.limits != "connects_in_a_time":
        return bracket(at_first_pace(tried))
    return Bracket(max(step.asked for step in tried if step.outcome == "held"), None)


def paced_verdict(
    search: Search,
    tried: Sequence[Tried],
    *,
    gone: Absence = "",
    broken: str = "",
    stopped: bool = False,
) -> tuple[Verdict, str]:
    """As :func:`~asyncli.analysis.capacity.verdict`, by the slower step too."""
    pace = pace_test(search, tried)
    if pace is not None and pace.limits == "connects_in_a_time":
        return "stopped", "it limits connects in a time, not their number"
    if pace is not None and pace.limits == "moved":
        return "stopped", f"it refused {pace.asked:,} in one step, and held them in another"
    first_pace = at_first_pace(tried)
    return verdict(search, first_pace, gone=gone, broken=broken, stopped=stopped)


def connect_rate(pace: PaceTest, refusal: Bottleneck) -> Bottleneck:
    """The limit on connects in a time that ``refusal`` is."""
    words = words_of(
        "connect_rate",
        asked=pace.asked,
        slower=format_rate(pace.slower_per_s),
        first=format_rate(pace.per_s),
        why=refusal.evidence,
        ramp=_as_ramp(pace.slower_per_s),
    )
    return Bottleneck(refusal.side, "connect_rate", words.evidence, words.remedy, refusal.certain)


def _as_ramp(per_s: float) -> str:
    """A value of --ramp that is not faster than ``per_s``."""
    if per_s < 1:
        return f"{math.floor(60 * per_s)}/min"
    return f"{math.floor(per_s)}/s"
