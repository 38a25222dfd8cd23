"""Judges claims: figures of rounds give an interval, the interval a side of a rule, the sides of
all cases a verdict. Pure.

A claim is a statement and a rule for a figure; a case is a setup, page or load under which it is
tested. Rounds scatter by 5 to 15 % and more, so a claim is judged by its figure's :func:`interval`
(:func:`claimed`), never by a single figure. Exact counts are judged by :func:`counted`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from asyncli.experiments.record import Claim, Round, Verdict

#: The confidence level of the intervals.
LEVEL = 0.95
#: Fewer rounds give no usable scatter (with two, Student's t is 12.7).
ENOUGH_ROUNDS = 3
#: Fewer rounds decide only if each of them is beyond the rule by this factor. Two equal runs that
#: scatter by 15 % each differ by so much in one round of twenty; with a scatter of 10 % in one of
#: two hundred.
LARGE = 1.5
# Of more cases only the two extremes are named.
_MAX_NAMED = 8

#: The result for a case. True: the claim is shown; False: its opposite; None: neither.
Side = bool | None


class Interval(NamedTuple):
    """The bounds of a figure, and its ``middle`` (None for slopes)."""

    low: float
    high: float
    middle: float | None = None

    def words(self, *bounds: float) -> str:
        """``middle (low to high)``, with enough digits to show on which side of each of ``bounds``
        they are.
        """
        low = shown(self.low, *bounds)
        high = shown(self.high, *bounds)
        if low == high:
            return low
        if self.middle is None:
            return f"{low} to {high}"
        return f"{shown(self.middle)} ({low} to {high})"

    def by(self, other: Interval) -> Interval:
        """The interval of the ratio."""
        return Interval(self.low / other.high, self.high / other.low)


def interval(values: Sequence[float]) -> Interval:
    """The interval of a figure from its rounds' ``values`` (at least one, none negative).

    It is Student's t at 95 % on their logarithms: noise is multiplicative, and a ratio is as often
    doubled as halved. If the true figure is on a rule's bound, the interval is entirely above it in
    2.5 % of cases and entirely below in 2.5 %. With fewer than :data:`ENOUGH_ROUNDS`, or a zero
    among them: from the least to the greatest, wider by :data:`LARGE` on each side.
    """
    from asyncli.analysis.special import stdtrit

    count = len(values)
    if min(values) <= 0:
        return Interval(min(values) / LARGE, max(values) * LARGE, statistics.median(values))
    middle = statistics.geometric_mean(values)
    if count < ENOUGH_ROUNDS:
        return Interval(min(values) / LARGE, max(values) * LARGE, middle)
    if min(values) == max(values):
        return Interval(values[0], values[0], values[0])
    quantile = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    half_width = quantile * statistics.stdev(map(math.log, values)) / math.sqrt(count)
    return Interval(middle / math.exp(half_width), middle * math.exp(half_width), middle)


def shown(value: float, *bounds: float) -> str:
    """A figure with two or three significant digits, or as many as show on which side of each of
    ``bounds`` it is.
    """
    digits = _digits_after_point(value)

    def sides(figure: float) -> list[bool]:
        return [figure > bound for bound in bounds] + [figure < bound for bound in bounds]

    while sides(round(value, digits)) != sides(value) and digits < 9:
        digits += 1
    return f"{round(value, digits):,.{digits}f}"


def _digits_after_point(value: float) -> int:
    if value >= 100:
        return 0
    if value >= 10:
        return 1
    if value >= 0.1:
        return 2
    return 3


class Rule(NamedTuple):
    """The bounds between which a figure lies if its claim holds."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def bounds(self) -> list[float]:
        return [bound for bound in self if math.isfinite(bound)]

    def side(self, known: Interval) -> Side:
        """True if the whole interval is within the bounds, False if none of it is, else None."""
        if self.low < known.low and known.high < self.high:
            return True
        if known.high <= self.low or known.low >= self.high:
            return False
        return None

    def words(self) -> str:
        """For example "above 1.05"."""
        if len(self.bounds) == 2:
            return f"from {shown(self.low)} to {shown(self.high)}"
        if self.low > -math.inf:
            return f"above {shown(self.low)}"
        return f"below {shown(self.high)}"


#: A ratio closer to 1 does not count as a difference, however exact it is.
MORE = Rule(low=1.05)
LESS = Rule(high=1 / 1.05)


def claimed(
    claim: str,
    rule: Rule,
    cases: Mapping[str, Sequence[float] | Interval],
    note: str = "",
    unit: str = "times",
) -> Iterator[Claim]:
    """Judge a claim by each case's rounds or interval, in ``unit``. Yields nothing if nothing was
    measured, unless a ``note`` says why.
    """
    known = _intervals(cases)
    sides = {label: rule.side(case) for label, case in known.items()}
    labels = list(known)
    if len(known) > _MAX_NAMED:
        lowest = min(known, key=lambda label: known[label].low)
        highest = max(known, key=lambda label: known[label].high)
        labels = [lowest, highest]
        counts = _counts(list(sides.values()))
        note = f"{note}; {counts}" if note else counts
    evidence = "; ".join(f"{label}: {known[label].words(*rule.bounds)}" for label in labels)
    figure = ""
    if known:
        figure = f"{_whole(known.values()).words(*rule.bounds)} {unit}"
    yield from _judged(claim, rule.words(), sides, evidence, note, figure)


def _intervals(cases: Mapping[str, Sequence[float] | Interval]) -> dict[str, Interval]:
    """The interval of each case that has one."""
    intervals = {}
    for label, case in cases.items():
        if not case:
            continue
        intervals[label] = case if isinstance(case, Interval) else interval(case)
    return intervals


def _counts(sides: Sequence[Side]) -> str:
    true, false, undecided = (sides.count(side) for side in (True, False, None))
    return f"of {len(sides)} cases {true} are, {false} are not, {undecided} undecided"


def _whole(cases: Iterable[Interval]) -> Interval:
    """From the least to the greatest middle of the cases, or end of one without a middle."""
    figures = []
    for case in cases:
        if case.middle is None:
            figures += [case.low, case.high]
        else:
            figures.append(case.middle)
    return Interval(min(figures), max(figures))


def counted(
    claim: str, rule: str, cases: Mapping[str, Iterable[bool]], note: str = "", figure: str = ""
) -> Iterator[Claim]:
    """Judge a claim on exact counts: ``cases`` says for each case in which rounds it held.
    ``figure``: default the cases' labels.
    """
    sides: dict[str, Side] = {}
    for label, held_in_rounds in cases.items():
        results = set(held_in_rounds)
        if len(results) == 1:
            sides[label] = results == {True}
        elif results:
            sides[label] = None
    yield from _judged(claim, f"{rule}, in every round", sides, "; ".join(sides), note, figure)


def _judged(
    claim: str, rule: str, sides: Mapping[str, Side], evidence: str, note: str, figure: str
) -> Iterator[Claim]:
    if not sides and not note:
        return
    parts = [part for part in (evidence, note, f"rule: {rule}") if part]
    yield Claim(claim, verdict(sides.values()), f"{'; '.join(parts)}.", figure or evidence)


def verdict(sides: Iterable[Side]) -> Verdict:
    """The verdict from the sides of all cases; it means the same in every experiment.

    - holds: shown in every case;
    - holds in part: shown in some cases, and not in others;
    - does not hold: the opposite is shown in every case;
    - mostly refuted: the opposite is shown in more than half of the cases, and the claim in none;
    - cannot say: none of these, or no usable case.

    Each case errs with the probability of its interval, so one of k cases with up to k times that.
    """
    every = list(sides)
    if not every:
        return "cannot say"
    if True in every:
        return "holds" if all(every) else "holds in part"
    if None not in every:
        return "does not hold"
    if 2 * every.count(False) > len(every):
        return "mostly refuted"
    return "cannot say"


def limited(rounds: Iterable[Round]) -> set[str]:
    """The steps in which asyncli was the limit in some round, so that the speed is not the
    server's.
    """
    steps = set()
    for measurement in rounds:
        if "generator_saturated_cpu" in (measurement.get("busy") or ()):
            steps.add(measurement["step"])
    return steps


def not_judged(names: Iterable[str]) -> str:
    """A note that names the cases excluded because asyncli was the limit."""
    excluded = sorted(names)
    if not excluded:
        return ""
    return f"not judged, since asyncli was the limit: {', '.join(excluded)}"
