"""Whether a number is higher than in earlier runs by a bound: a test that may stop early.

Two errors are possible, each with a stated chance in a whole run: a *false alarm* (the number is
as it was, and the run is called worse) and a *miss* (it is higher by the bound or more, and the run
is called as good). The decision is by an interval of the difference, whose lower end is exceeded
with the first chance and its upper end with the second:

- as good: the upper end is below the bound, a share of the earlier runs' number included with its
  own interval;
- worse: else, if the lower end is above zero;
- undecided: the interval has both in it.

A difference between zero and the bound may be called either; the more is measured, the nearer to
the bound the two calls meet. Each look spends a part of both chances, and the look at the end half
of them; so they hold however often one looks, and however much the looks have in common
(Bonferroni's inequality; for the spending of chances over looks see Lan and DeMets 1983, Biometrika
70).

A latency includes asyncli's own lateness, but for what of it fell on other heartbeats. So of a
latency the interval includes both the difference as it was measured and that without what asyncli
sent later or earlier than in the earlier runs, all of them together: to leave out single ones by
their lateness would leave those that differ most.

What repeats of one run differ by, beyond their own intervals, is the larger of what was measured on
other hosts (:data:`~asyncli.analysis.compare.REPEAT`) and of what the baseline runs show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from asyncli.analysis.compare import REPEAT, ROW_OF, Number, why_incomparable
from asyncli.analysis.estimates import (
    ALPHA,
    NO_SCATTER,
    REPEAT_FREEDOM,
    Estimate,
    Repeat,
    Variance,
    above,
    below,
    summed_variance,
)
from asyncli.analysis.measured import HOST, OURS, MeasuredRun
from asyncli.findings.compare import SERVED_BY, compare_asyncli, compare_host
from asyncli.model.records import Finding
from asyncli.model.units import format_many

#: The chances of both errors in a whole run. The first is for all its limits together.
FALSE_ALARMS = 0.01
MISSES = ALPHA

#: The numbers of a run's JSON that can be compared with earlier runs, and their keys in
#: :mod:`asyncli.analysis.compare`. Other programs' memory is in the rest of the costs.
COMPARABLE: Mapping[str, str] = {
    "cost.server_user.bytes_per_connection": "cost.server_user",
    "cost.kernel.bytes_per_connection": "cost.kernel",
    "cost.live.bytes_per_connection": "cost.live",
    "cost.stacks.bytes_per_connection": "cost.stacks",
    "cost.at_goal.bytes_per_connection": "cost.at_goal",
    "drift.server_user.bytes_per_hour": "drift.server_user",
    "heartbeats.latency_ms.p50": "latency.p50",
    "heartbeats.latency_ms.p99": "latency.p99",
    "heartbeats.latency_ms.p999": "latency.p999",
}
# Of the host, what may change memory or CPU; the names of runners differ from job to job.
_HOST = tuple(key for key in HOST if key != "host")
_UNBOUNDED = "its latencies changed so much in the hold that another run may differ by any amount"
_OF_LEVELS = "a difference of two levels, first use included; a slower ramp gives a slope"


class BaselineRun(msgspec.Struct, frozen=True):
    """What a later run records of an earlier one. ``name``: of its file. ``numbers`` and
    ``unknown``: by key of a row; each is in one of them.
    """

    name: str
    id: str
    started: str
    held: int
    spoiled: str
    numbers: dict[str, Estimate]
    unknown: dict[str, str]
    kinds: dict[str, str]
    late_ms: dict[str, float]
    #: The host, the version of asyncli, and whether both ends were on that host.
    facts: dict[str, Any]

    @classmethod
    def of(cls, name: str, run: MeasuredRun) -> BaselineRun:
        numbers: dict[str, Estimate] = {}
        unknown: dict[str, str] = {}
        facts = {**run.facts, SERVED_BY: _program(run.facts)}
        for key in COMPARABLE.values():
            number = run.number(key)
            if not isinstance(number, Estimate):
                unknown[key] = str(number)
            elif key in run.levels:
                unknown[key] = _OF_LEVELS
            elif not math.isfinite(number.high):
                unknown[key] = _UNBOUNDED
            else:
                numbers[key] = number
        return cls(
            name=name,
            id=run.id,
            started=run.started,
            held=run.held,
            spoiled=run.spoiled,
            numbers=numbers,
            unknown=unknown,
            kinds=run.kinds,
            late_ms=run.late_ms,
            facts={key: facts.get(key) for key in (*_HOST, *OURS, "local", SERVED_BY)},
        )

    def measured(self) -> MeasuredRun:
        """The run as :mod:`~asyncli.analysis.compare` judges what can be compared."""
        return MeasuredRun(
            name=self.name,
            path=self.name,
            id=self.id,
            started=self.started,
            verdict="passed",
            why="",
            complete=True,
            spoiled=self.spoiled,
            held=self.held,
            hold_s=0.0,
            facts=self.facts,
            numbers={**self.numbers, **self.unknown},
            late_ms=self.late_ms,
            kinds=self.kinds,
            # Differences of levels are among the unknown.
            levels=frozenset(),
            files=None,
            hidden=frozenset(),
            findings=[],
        )


class Chances(NamedTuple):
    """Of a false alarm and of a miss, at one look at one limit."""

    false_alarm: float
    miss: float


def chances_at(look: int | None, limits: int) -> Chances:
    """The chances that may be spent at the ``look``-th look at a running soak (from 1), None: after
    its end. ``limits``: how many limits share them.

    The looks before the end share one half: the first has 1/2 of it, the second 1/6, the third
    1/12.
    """
    spent = 0.5
    if look is not None:
        spent = 0.5 / (look * (look + 1))
    return Chances(FALSE_ALARMS * spent / limits, MISSES * spent)


class Bound(NamedTuple):
    """What a number may be higher by: a ``share`` of that of the earlier runs, or an ``amount``."""

    share: float = 0.0
    amount: float = 0.0

    def above(self, before: float) -> float:
        """The number at the bound."""
        return (1 + self.share) * before + self.amount


class Worsening(msgspec.Struct, frozen=True):
    """How much higher a number is than in earlier runs, and how sure that is. ``before``: the
    weighted mean of ``runs`` earlier ones; ``low``, ``high``: ends of the interval of
    ``difference``; ``over``: the upper end of the interval of what the number is above its bound.
    ``later_ms``: of a latency, how much later asyncli itself sent than in those; all ends allow for
    that. ``left_out``: why each other earlier run is not compared.
    """

    value: float
    before: float
    difference: float
    low: float
    high: float
    over: float
    runs: int
    later_ms: float = 0.0
    left_out: list[str] = msgspec.field(default_factory=list)

    @property
    def is_worse(self) -> bool | None:
        """Whether it is higher by its bound; None: undecided."""
        return _call(self.low, self.over)

    @property
    def is_by_lateness(self) -> bool:
        """Whether it is undecided only because asyncli sent later or earlier than before."""
        low = self.low + max(0.0, self.later_ms)
        over = self.over - max(0.0, -self.later_ms)
        return self.is_worse is None and _call(low, over) is not None


def _call(low: float, over: float) -> bool | None:
    """Whether a number is higher by its bound, by two ends of intervals; None: undecided."""
    if over < 0:
        return False
    if low > 0:
        return True
    return None


def worsening(
    key: str,
    baseline: Sequence[BaselineRun],
    run: MeasuredRun,
    chances: Chances,
    bound: Bound,
) -> Worsening | str:
    """How much higher the number under ``key`` (of a row) is in ``run``, by those baseline runs
    that can be compared with it; or the reason for none.
    """
    after = run.number(key)
    if not isinstance(after, Estimate):
        return str(after)
    row = ROW_OF[key]
    known: list[Estimate] = []
    later_ms: list[float] = []
    left_out: list[str] = []
    for earlier in baseline:
        before = earlier.numbers.get(key)
        if before is None:
            left_out.append(f"in {earlier.name}, {earlier.unknown.get(key, 'unknown')}")
            continue
        reason = why_incomparable(row, earlier.measured(), run)
        if reason:
            left_out.append(f"with {earlier.name}, {reason}")
            continue
        known.append(before)
        later_ms.append(_later_ms(row, earlier, run))
    if not known:
        return _of_all(left_out)
    if bound.share and statistics.median(before.value for before in known) <= 0:
        return "it was not above 0 before, so a share of it says nothing; write an amount"
    repeat = REPEAT.get(key, NO_SCATTER)
    difference = _difference(known, after, repeat, chances, bound, later_ms)
    return msgspec.structs.replace(difference, left_out=left_out)


def _later_ms(row: Number, earlier: BaselineRun, run: MeasuredRun) -> float:
    """How much later than in an earlier run asyncli itself sent, of a quantile of the latency; 0 of
    another number, and where that was not recorded.
    """
    if row.group != "latency":
        return 0.0
    quantile = row.key.removeprefix("latency.")
    before_ms = earlier.late_ms.get(quantile)
    after_ms = run.late_ms.get(quantile)
    if before_ms is None or after_ms is None:
        return 0.0
    return after_ms - before_ms


def _of_all(reasons: Sequence[str]) -> str:
    """Why a run can be compared with no baseline run; ``reasons``: of each of them."""
    if len(reasons) == 1:
        return reasons[0]
    others = len(reasons) - 1
    return f"{reasons[0]}; nor can it be compared with {format_many(others, 'other baseline run')}"


def not_alike(baseline: Sequence[BaselineRun], facts: Mapping[str, Any]) -> list[Finding]:
    """Findings if baseline runs were of another host, of another program that served, or of another
    version of asyncli, which may explain a difference.
    """
    findings = []
    for keys, differ in ((_HOST, compare_host), (OURS, compare_asyncli)):
        differing = {}
        for key in keys:
            here = facts.get(key)
            elsewhere = [earlier.facts.get(key) for earlier in baseline]
            others = [value for value in elsewhere if value != here]
            if others:
                differing[key] = [others[0], here]
        if differing:
            findings.append(differ(differing))
    program = _program(facts)
    before = [earlier.facts.get(SERVED_BY) for earlier in baseline]
    # A run of an earlier version has not recorded it; elsewhere it may be unknown.
    others = [name for name in before if name and name != program]
    if program and others:
        findings.append(compare_host({SERVED_BY: [others[0], program]}))
    return findings


def _program(facts: Mapping[str, Any]) -> str:
    """The program that served, without its version: builds of one program are compared. "" if it is
    unknown.
    """
    label = facts.get("server.label") or ""
    return str(label).partition("/")[0]


def _difference(
    known: Sequence[Estimate],
    after: Estimate,
    repeat: Repeat,
    chances: Chances,
    bound: Bound,
    later_ms: Sequence[float],
) -> Worsening:
    """The difference of a run from the mean of earlier ones, each with the weight of what it
    knows (DerSimonian and Laird 1986, Controlled Clinical Trials 7). ``later_ms``: how much later
    than in each of them asyncli sent.
    """
    scatter = _scatter(known, repeat)
    weights = _weights([_of_wider_side(run) + scatter.value for run in known])
    mean = _weighted(weights, [run.value for run in known])

    def apart(of_after: Variance, of_known: Iterable[Variance], factor: float = 1.0) -> Variance:
        """The variance of the run's number less ``factor`` times the mean of the others."""
        squares = [(weight * factor) ** 2 for weight in weights]
        of_mean = [
            Variance(part.value * square, part.freedom)
            for part, square in zip(of_known, squares, strict=True)
        ]
        between = Variance(scatter.value * (1 + sum(squares)), scatter.freedom)
        return summed_variance([between, of_after, *of_mean])

    factor = 1 + bound.share
    lower = apart(below(after), map(above, known))
    upper = apart(above(after), map(below, known))
    beyond = apart(above(after), map(below, known), factor)
    difference = after.value - mean
    excess = after.value - bound.above(mean)
    later = _weighted(weights, later_ms)
    # That may be in the number, or have been in that of the earlier runs.
    added = max(0.0, later)
    hidden = max(0.0, -later)
    return Worsening(
        value=after.value,
        before=mean,
        difference=difference,
        low=difference - lower.reach(chances.false_alarm) - added,
        high=difference + upper.reach(chances.miss) + hidden,
        over=excess + beyond.reach(chances.miss) + hidden,
        runs=len(known),
        later_ms=later,
    )


def _scatter(known: Sequence[Estimate], repeat: Repeat) -> Variance:
    """The variance between repeats beyond what their own intervals say: the larger of what was
    measured elsewhere, and of what these runs show.
    """
    middle = statistics.median(run.value for run in known)
    elsewhere = Variance(repeat.variance(middle), float(REPEAT_FREEDOM))
    if len(known) < 2:
        return elsewhere
    variances = [_of_wider_side(run) for run in known]
    weights = _weights(variances)
    mean = _weighted(weights, [run.value for run in known])
    seen = _weighted(weights, [(run.value - mean) ** 2 for run in known])
    own = _weighted([weight * (1 - weight) for weight in weights], variances)
    squares = math.fsum(weight**2 for weight in weights)
    # How many runs of equal weight know as much; one of them says nothing of the scatter.
    worth = 1 / squares
    if worth < 2:
        return elsewhere
    here = Variance((seen - own) / (1 - squares), worth - 1)
    if here.value > elsewhere.value:
        return here
    return elsewhere


def _of_wider_side(run: Estimate) -> float:
    return max(below(run).value, above(run).value)


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))


def _weights(variances: Sequence[float]) -> list[float]:
    """Weights of numbers with these variances, of which the sum is 1."""
    if min(variances) <= 0:
        return [1 / len(variances)] * len(variances)
    known = [1 / variance for variance in variances]
    return [weight / math.fsum(known) for weight in known]
