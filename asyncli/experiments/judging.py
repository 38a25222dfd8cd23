"""How a claim is judged: from figures of rounds to an interval, from that to a side, from the sides of all cases to a verdict.

Pure. A claim is a statement, a figure, and a rule that the figure keeps; a case is a setup, a page or a load under which it is
looked at. Rounds scatter by 5 to 15 % and more, so no claim is judged by a figure, only by its :func:`interval`
(:func:`claimed`); what is counted exactly is judged by :func:`counted`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from asyncli.experiments.record import Claim, Round, Verdict

#: The level of the intervals.
LEVEL = 0.95
#: Fewer rounds have no usable scatter (with two, Student's t is 12.7).
ENOUGH_ROUNDS = 3
#: So few rounds decide only where each of them is beyond the rule by this factor. Of two runs that scatter by 15 % each, alike in
#: truth, one round in twenty is so far apart, of those that scatter by 10 % one in two hundred.
LARGE = 1.5
# Of more cases only the two extremes are named, and the others counted.
_MOST_SAID = 8

#: Of a case: True: the claim is shown; False: its opposite; None: neither.
Side = bool | None


class Interval(NamedTuple):
    """The bounds of a figure, and its ``middle`` (None for one of slopes)."""

    low: float
    high: float
    middle: float | None = None

    def words(self, *bounds: float) -> str:
        """``middle (low to high)``, with digits enough to show the side of each of ``bounds``."""
        low, high = shown(self.low, *bounds), shown(self.high, *bounds)
        if low == high:
            return low
        return f"{low} to {high}" if self.middle is None else f"{shown(self.middle)} ({low} to {high})"

    def by(self, other: Interval) -> Interval:
        """The interval of the ratio."""
        return Interval(self.low / other.high, self.high / other.low)


def interval(values: Sequence[float]) -> Interval:
    """Where the figure of which ``values`` are rounds (one at least, none negative) lies.

    By Student's t at 95 % on their logarithms: noise multiplies, and ratios are as often twice as half. At a true figure that
    lies on a rule's bound, such an interval lies wholly above in 2.5 % of cases and wholly below in 2.5 %. Of fewer than
    :data:`ENOUGH_ROUNDS`, or with a zero among them, from the least to the most, by :data:`LARGE` wider either way.
    """
    from scipy.special import stdtrit

    count = len(values)
    if min(values) <= 0:
        return Interval(min(values) / LARGE, max(values) * LARGE, statistics.median(values))
    middle = statistics.geometric_mean(values)
    if count < ENOUGH_ROUNDS:
        return Interval(min(values) / LARGE, max(values) * LARGE, middle)
    if min(values) == max(values):
        return Interval(values[0], values[0], values[0])
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * statistics.stdev(map(math.log, values)) / math.sqrt(count)
    return Interval(middle / math.exp(half), middle * math.exp(half), middle)


def shown(value: float, *bounds: float) -> str:
    """A figure with two or three significant digits, or as many as show its side of each of ``bounds``."""
    at = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3

    def side(of: float) -> list[bool]:
        return [of > bound for bound in bounds] + [of < bound for bound in bounds]

    while side(round(value, at)) != side(value) and at < 9:
        at += 1
    return f"{round(value, at):,.{at}f}"


class Rule(NamedTuple):
    """Between which bounds a figure lies where its claim holds."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def bounds(self) -> list[float]:
        return [one for one in self if math.isfinite(one)]

    def side(self, known: Interval) -> Side:
        """Whether all of the interval is within the bounds; False where none of it is."""
        if self.low < known.low and known.high < self.high:
            return True
        return False if known.high <= self.low or known.low >= self.high else None

    def words(self) -> str:
        """For example "above 1.05"."""
        if len(self.bounds) == 2:
            return f"from {shown(self.low)} to {shown(self.high)}"
        return f"{'above' if self.low > -math.inf else 'below'} {shown(self.bounds[0])}"


#: A ratio nearer to 1 is no difference of note, however exact.
MORE, LESS = Rule(low=1.05), Rule(high=1 / 1.05)


def claimed(
    claim: str, rule: Rule, cases: Mapping[str, Sequence[float] | Interval], note: str = "", unit: str = "times"
) -> Iterator[Claim]:
    """The claim judged, of each case's rounds or interval in ``unit``; none where nothing of it was measured and no ``note`` says
    why."""
    known = {label: one if isinstance(one, Interval) else interval(one) for label, one in cases.items() if one}
    sides = {label: rule.side(one) for label, one in known.items()}
    if len(known) > _MOST_SAID:
        ends = [min(known, key=lambda label: known[label].low), max(known, key=lambda label: known[label].high)]
        many = [list(sides.values()).count(side) for side in (True, False, None)]
        note = f"{f'{note}; ' if note else ''}of {len(known)} cases {many[0]} are, {many[1]} are not, {many[2]} cannot be told"
    else:
        ends = list(known)
    evidence = "; ".join(f"{label}: {known[label].words(*rule.bounds)}" for label in ends)
    middles = [end if one.middle is None else one.middle for one in known.values() for end in (one.low, one.high)]
    figure = f"{Interval(min(middles), max(middles)).words(*rule.bounds)} {unit}" if middles else ""
    yield from _judged(claim, rule.words(), sides, evidence, note, figure)


def counted(claim: str, rule: str, cases: Mapping[str, Iterable[bool]], note: str = "", figure: str = "") -> Iterator[Claim]:
    """The same of exact counts: for each case, whether it held in each round. ``figure``: if not what the cases say."""
    seen = {label: set(one) for label, one in cases.items()}
    sides = {label: one == {True} if len(one) == 1 else None for label, one in seen.items() if one}
    yield from _judged(claim, f"{rule}, in every round", sides, "; ".join(sides), note, figure)


def _judged(claim: str, rule: str, sides: Mapping[str, Side], evidence: str, note: str, figure: str) -> Iterator[Claim]:
    if sides or note:
        why = "; ".join(one for one in (evidence, note, f"rule: {rule}") if one)
        yield Claim(claim, verdict(sides.values()), f"{why}.", figure or evidence)


def verdict(sides: Iterable[Side]) -> Verdict:
    """What the cases of a claim come to; each verdict means the same in every experiment.

    - holds: it is shown of every case;
    - holds in part: it is shown of some cases, and of others it is not;
    - does not hold: its opposite is shown of every case;
    - mostly refuted: its opposite is shown of more than half, and it of none;
    - cannot say: none of these; or there is no case that counts.

    Each case may err by the level of its interval, so one of k cases by up to k times that.
    """
    every = list(sides)
    if not every:
        return "cannot say"
    if True in every:
        return "holds" if all(every) else "holds in part"
    if None not in every:
        return "does not hold"
    return "mostly refuted" if 2 * every.count(False) > len(every) else "cannot say"


def limited(rounds: Iterable[Round]) -> set[str]:
    """The steps in which asyncli, not the server, was the limit in some round: their speed is not the server's."""
    return {one["step"] for one in rounds if "generator_saturated_cpu" in (one.get("busy") or ())}


def unjudged(names: Iterable[str]) -> str:
    """A note on cases that are left out for that."""
    return f"not judged, since asyncli was the limit: {', '.join(some)}" if (some := sorted(names)) else ""
