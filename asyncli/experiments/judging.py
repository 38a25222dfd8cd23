"""How a claim is judged: from figures of rounds to an interval, from that to a side, from the sides of all cases to a verdict.

Pure. A claim is a rule on a figure, most often on a ratio of two steps of the same round, and a case is a setup, a page or a
load under which it is looked at. Rounds scatter by 5 to 15 % and more, so no claim is judged by a figure, only by its
:func:`interval`; what is counted exactly is judged by :func:`in_every_round`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from asyncli.experiments.record import Claim, Round, Verdict

_K = TypeVar("_K")

#: A ratio nearer to 1 than these is no difference worth the name, however well it is known.
WORTH = 1.05
LESS = 1 / WORTH
#: The share of intervals that hold the true figure.
LEVEL = 0.95
#: Of fewer rounds than this there is no scatter to go by (with two, Student's t is 12.7).
ENOUGH_ROUNDS = 3
#: So few rounds decide only where each of them is beyond the rule by this factor. Of two runs that scatter by 15 % each, alike in
#: truth, one round in twenty is so far apart, of those that scatter by 10 % one in two hundred.
LARGE = 1.5

#: Of a case: True where the claim is shown, False where its opposite is, None where neither.
Side = bool | None


class Interval(NamedTuple):
    """Where a figure lies; about its ``middle``, of so many ``rounds`` (None and 0 where it is not of rounds but of slopes)."""

    low: float
    high: float
    rounds: int = 0
    middle: float | None = None

    def above(self, bound: float) -> Side:
        """Whether all of it is above ``bound``; False where none of it is."""
        return True if self.low > bound else False if self.high <= bound else None

    def below(self, bound: float) -> Side:
        """Whether all of it is below ``bound``; False where none of it is."""
        return True if self.high < bound else False if self.low >= bound else None

    def within(self, least: float, most: float) -> Side:
        """Whether all of it is from ``least`` to ``most``; False where none of it is."""
        if least <= self.low and self.high <= most:
            return True
        return False if self.high < least or self.low > most else None

    def words(self, *bounds: float) -> str:
        """Its middle (from where to where), with the digits that show the side of each of ``bounds``."""
        low, high = shown(self.low, *bounds), shown(self.high, *bounds)
        if low == high:
            return low
        return f"{low} to {high}" if self.middle is None else f"{shown(self.middle)} ({low} to {high})"


def interval(values: Sequence[float]) -> Interval:
    """Where the figure of which ``values`` are rounds (one at least, none negative) lies.

    By Student's t at 95 % on their logarithms: noise multiplies, and ratios are as often twice as half. At a true figure that
    lies on a rule's bound, such an interval lies wholly above in 2.5 % of cases and wholly below in 2.5 %. Of fewer than
    :data:`ENOUGH_ROUNDS`, or with a zero among them, from the least to the most, by :data:`LARGE` wider either way.
    """
    from scipy.special import stdtrit

    count = len(values)
    if min(values) <= 0:
        return Interval(min(values) / LARGE, max(values) * LARGE, count, statistics.median(values))
    middle = statistics.geometric_mean(values)
    if count < ENOUGH_ROUNDS:
        return Interval(min(values) / LARGE, max(values) * LARGE, count, middle)
    if min(values) == max(values):
        return Interval(values[0], values[0], count, values[0])
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * statistics.stdev(map(math.log, values)) / math.sqrt(count)
    return Interval(middle / math.exp(half), middle * math.exp(half), count, middle)


def shown(value: float, *bounds: float) -> str:
    """A figure with two or three digits that matter, or as many as show on which side of each of ``bounds`` it is."""
    at = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3

    def side(of: float) -> list[bool]:
        return [of > bound for bound in bounds] + [of < bound for bound in bounds]

    while side(round(value, at)) != side(value) and at < 9:
        at += 1
    return f"{round(value, at):,.{at}f}"


class ClaimCase(NamedTuple):
    """One of the cases of a claim; ``words`` have its figures. ``known``: the intervals on which it stands."""

    words: str
    side: Side
    known: tuple[Interval, ...] = ()


def intervals(values: Mapping[_K, Sequence[float]]) -> dict[_K, Interval]:
    """Of each that has any value."""
    return {key: interval(some) for key, some in values.items() if some}


def judge_each(
    known: Mapping[str, Interval], *, above: float | None = None, below: float = 0.0, unit: str = ""
) -> list[ClaimCase]:
    """A case of each interval under its label: whether it is above, or below, the bound."""
    bound = below if above is None else above
    return [
        ClaimCase(f"{label}: {one.words(bound)}{unit}", one.below(bound) if above is None else one.above(bound), (one,))
        for label, one in known.items()
    ]


def together(sides: Iterable[Side]) -> Side:
    """Of a claim of several parts in one case: True where all are, False where one is, else None."""
    every = list(sides)
    return False if False in every else None if None in every else True


def in_every_round(sides: Iterable[Side]) -> Side:
    """Of what is counted exactly: True where so in every round, False where in none, else None."""
    every = set(sides)
    return every.pop() if len(every) == 1 else None


def verdict(sides: Iterable[Side]) -> Verdict:
    """What the cases of a claim come to; each verdict means the same in every experiment.

    - holds: it is shown of every case;
    - holds in part: it is shown of some cases, and of others it is not;
    - does not hold: its opposite is shown of every case;
    - cannot say: it is shown of none, and its opposite not of all; or there is no case that counts.

    Each case may err by the level of its interval, so one of k cases by up to k times that.
    """
    every = list(sides)
    if not every:
        return "cannot say"
    if True in every:
        return "holds" if all(every) else "holds in part"
    return "cannot say" if None in every else "does not hold"


def claimed(claim: str, cases: Sequence[ClaimCase], rule: str, *, lead: str = "", more: str = "") -> Claim:
    """A claim judged, with the figures of each case, ``more`` that should be known, how they were come by, and the rule."""
    parts = [
        f"{lead}{'; '.join(one.words for one in cases)}." if cases else "",
        f"{more}." if more else "",
        *_how([known for one in cases for known in one.known]),
        f"Rule: {rule}.",
    ]
    return Claim(claim, verdict(one.side for one in cases), " ".join(part for part in parts if part))


def _how(known: list[Interval]) -> Iterator[str]:
    """How intervals were come by."""
    enough = {one.rounds for one in known if one.rounds >= ENOUGH_ROUNDS and one.low > 0}
    widened = {one.rounds for one in known if one.rounds and (one.rounds < ENOUGH_ROUNDS or one.low <= 0)}
    if enough:
        yield f"Intervals of {LEVEL:.0%} over {_rounds(enough)}."
    if widened:
        why = "too few to know their scatter" if min(widened) < ENOUGH_ROUNDS else "a zero is among them"
        yield f"The least and the most of {_rounds(widened)}, {LARGE:g} times wider either way: {why}."


def _rounds(counts: set[int]) -> str:
    return "1 round" if counts == {1} else f"{' or '.join(map(str, sorted(counts)))} rounds"


def limited(rounds: Iterable[Round]) -> set[str]:
    """The steps in which asyncli, not the server, was the limit in some round: their speed is not the server's."""
    return {one["step"] for one in rounds if "generator_saturated_cpu" in (one.get("busy") or ())}
