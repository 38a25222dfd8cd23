"""The limits of ``--fail-if`` while a run lasts: one fold over its records, for the running soak
(``--abort``), the terminal, ``asyncli watch``, the page and its metrics. Pure.

What is counted tick by tick, such as lost connections and latencies, has a limit that is as old as
the last second. Any other, such as a cost, is the report's of the records so far, which is computed
from time to time: its limit says how old it is.
"""

from __future__ import annotations

import msgspec

from asyncli.analysis.worsening import Worsening
from asyncli.findings.thresholds import limit_crossed, limit_kept
from asyncli.model.plan import Plan
from asyncli.model.quantities import (
    BEYOND_LATENESS,
    beyond_lateness,
    grows,
    is_counted,
    so_far,
)
from asyncli.model.records import Finding, Phase, RunEvent, Tick
from asyncli.report.summary import Summary
from asyncli.report.thresholds import (
    WORSE_BY,
    Outcome,
    Threshold,
    bound_of,
    judge,
    longest_away_of,
    parse,
    time_back_of,
)
from asyncli.report.times_back import TimesBack

_REQUESTED = "connections.requested"
#: It is counted as the hold ends: before, an event may keep clients away for a while.
_HELD_AT_END = "connections.held"
#: Numbers of an event that fall while the hold lasts, as its clients come back and the server
#: notices that others fell silent.
_FALLING = ("not_back", "noticed.left")
#: A limit whose value moves about its bound is news at most this often, and so is a server that
#: loses connections again and again for one reason.
NEWS_EVERY_S = 60.0


class LimitSoFar(msgspec.Struct, frozen=True):
    """A limit of --fail-if. ``amount``: the value with its unit and interval; "" before the first
    one is known. ``is_crossed``: None if that is undecided. ``stays_crossed``: a limit of this kind
    that is crossed stays so. ``is_from_above``: it bounds the number from above. ``at_s``: the
    instant (on the run's clock) up to which the records were taken into account; None: all were.
    """

    text: str
    key: str
    bound: float
    value: float | None = None
    amount: str = ""
    is_crossed: bool | None = None
    stays_crossed: bool = False
    #: It compares with the baseline runs.
    is_relative: bool = False
    is_from_above: bool = False
    #: How much of its bound is used; None where that says nothing.
    share: float | None = None
    at_s: float | None = None

    @property
    def words(self) -> str:
        return f"{self.text}: {self.key} is {self.amount}"


def limit_so_far(outcome: Outcome, *, is_held: bool = False) -> LimitSoFar:
    """A limit as it was judged. While the hold lasts (``is_held``) one of a number that is of its
    end, or that falls then, is undecided.
    """
    threshold = outcome.threshold
    bound = float(threshold.bound)
    if outcome.whole is not None:
        bound *= outcome.whole
    if isinstance(outcome.worsening, Worsening):
        bound = bound_of(threshold).above(outcome.worsening.before)
    is_crossed = outcome.crossed
    if is_held and _is_of_the_end(threshold.key):
        is_crossed = None
    return LimitSoFar(
        threshold.text,
        threshold.shown_key,
        bound,
        outcome.value,
        outcome.amount,
        is_crossed,
        stays_crossed(threshold),
        threshold.is_relative,
        _is_from_above(threshold),
        _share(outcome, bound),
    )


def _share(outcome: Outcome, bound: float) -> float | None:
    """How much of its bound a limit has used: of one that compares with earlier runs, of what the
    value may be higher by.
    """
    used = outcome.value
    allowed = bound
    if isinstance(outcome.worsening, Worsening):
        used = max(0.0, outcome.worsening.difference)
        allowed = bound - outcome.worsening.before
    if used is None or used < 0 or allowed <= 0:
        return None
    return used / allowed


def _is_of_the_end(key: str) -> bool:
    """Whether a number says nothing of the run before the hold has ended."""
    if key == _HELD_AT_END:
        return True
    return key.startswith("events.") and key.endswith(_FALLING)


def _is_of_a_status(key: str) -> bool:
    """Whether a key is of the exit status of a command of the plan."""
    return key.startswith("events.") and key.endswith(".status")


def stays_crossed(threshold: Threshold) -> bool:
    """Whether a crossed limit stays crossed: an upper bound of a growing number, unless it is a
    share of another growing one.
    """
    if not _is_from_above(threshold):
        return False
    if _is_of_a_status(threshold.key):
        # It is known once the command has ended.
        return True
    if time_back_of(threshold.key) is not None or longest_away_of(threshold.key) is not None:
        # It is known once there was so much time.
        return True
    if not grows(threshold.key):
        return False
    return threshold.whole in (None, _REQUESTED)


def _is_from_above(threshold: Threshold) -> bool:
    return threshold.comparison in (">", ">=", WORSE_BY)


def _is_counted(threshold: Threshold) -> bool:
    """Whether the ticks alone tell a limit."""
    if threshold.is_relative or not is_counted(threshold.key):
        return False
    return threshold.whole in (None, _REQUESTED) or grows(threshold.whole)


class LimitsSoFar:
    """Folds the ticks of a run, and what was computed of it. Of several limits that cannot be
    parsed (another version's), there is no state.
    """

    def __init__(self, plan: Plan) -> None:
        self._requested = plan.connections
        self._thresholds: list[Threshold] = []
        for text in plan.fail_if:
            try:
                self._thresholds.append(parse(text, Summary))
            except ValueError:
                continue
        self._counted = list(filter(_is_counted, self._thresholds))
        self._statuses: dict[str, LimitSoFar] = {}
        self._times_back = TimesBack(plan, self._thresholds)
        #: Those on times back that were surely crossed in the hold.
        self._too_late: dict[str, LimitSoFar] = {}
        self._is_drained = False
        self._total = Tick()
        self._computed: dict[str, LimitSoFar] = {}
        self._state: tuple[LimitSoFar, ...] | None = None

    def phase(self, phase: Phase) -> None:
        """Take that a phase began: from the drain on no time to be back is left."""
        self._is_drained |= phase.name == "drain"

    def tick(self, tick: Tick, t_s: float | None = None) -> None:
        """Count a tick that ended at ``t_s`` (on the run's clock), or the sum of several."""
        if self._counted:
            self._total.merge_counts(tick)
            self._state = None
        if t_s is None or self._is_drained:
            return
        for outcome in self._times_back.tick(t_s, tick):
            limit = limit_so_far(msgspec.structs.replace(outcome, so_far=True))
            self._too_late.setdefault(limit.text, limit)
            self._state = None

    def event(self, event: RunEvent) -> None:
        """Take an event of the plan; of a command its exit status, if it has ended."""
        self._times_back.event(event)
        of_it = [limit for limit in self._thresholds if _is_of_a_status(limit.key)]
        if not of_it or event.fields.get("status") is None:
            return
        document = {"events": [event.fields]}
        for outcome in judge(of_it, document):
            if outcome.value is not None:
                self._statuses[outcome.threshold.text] = limit_so_far(outcome)
        self._state = None

    def computed(self, limits: tuple[LimitSoFar, ...], at_s: float | None) -> None:
        """Take the limits of a report of the records up to ``at_s``; None: of the whole run."""
        self._computed = {}
        if at_s is None:
            # The report of the whole run has the last word.
            self._too_late = {}
        for limit in limits:
            self._computed[limit.text] = msgspec.structs.replace(limit, at_s=at_s)
        self._state = None

    def state(self) -> tuple[LimitSoFar, ...]:
        """All limits, in the plan's order."""
        if self._state is None:
            self._state = tuple(self._judged())
        return self._state

    def crossed(self) -> LimitSoFar | None:
        """The first limit that is crossed and stays so."""
        for limit in self.state():
            if limit.stays_crossed and limit.is_crossed:
                return limit
        return None

    def _computed_of(self, threshold: Threshold) -> LimitSoFar | None:
        """A limit as it was computed. That some are not back after so long is sure only some time
        later, and told then.
        """
        limit = self._computed.get(threshold.text)
        if limit is None or not limit.is_crossed or limit.at_s is None:
            return limit
        if not self._times_back.judges(threshold):
            return limit
        return msgspec.structs.replace(limit, is_crossed=None)

    def _judged(self) -> list[LimitSoFar]:
        document = so_far(self._total)
        document["connections"]["requested"] = self._requested
        document["heartbeats"][BEYOND_LATENESS] = beyond_lateness(
            self._total.latency_us, self._total.lateness_us
        )
        counted = {**self._too_late, **self._statuses}
        for outcome in judge(self._counted, document):
            counted[outcome.threshold.text] = limit_so_far(outcome)
        limits = []
        for threshold in self._thresholds:
            limit = counted.get(threshold.text) or self._computed_of(threshold)
            if limit is None:
                limit = LimitSoFar(
                    threshold.text,
                    threshold.shown_key,
                    float(threshold.bound),
                    is_relative=threshold.is_relative,
                )
            limits.append(limit)
        return limits


# Ticks are of a second; one may come late. A view that begins late reads older ones as one sum.
_ONE_LOOK_S = 3.0


class LimitNews:
    """Tells when a limit becomes crossed, and when it is kept again: each limit at most once a
    minute. That one is kept from the start is no news. One that bounds a number from below is
    judged at the end: most begin with 0. ``ends_run``: a crossed limit ends the run; one that may
    be kept again does not, so that it is no news.
    """

    def __init__(self, *, ends_run: bool = False) -> None:
        self._ends_run = ends_run
        self._crossed: set[str] = set()
        self._told_s: dict[str, float] = {}

    def of(self, limits: tuple[LimitSoFar, ...], at_s: float, since_s: float) -> list[Finding]:
        """What is news at ``at_s`` (on the run's clock). ``since_s``: up to when the limits were
        looked at before; what was crossed since may have been so for as long.
        """
        findings = []
        by_then = at_s - since_s > _ONE_LOOK_S
        for limit in limits:
            if limit.value is None or limit.is_crossed is None or not limit.is_from_above:
                continue
            if self._ends_run and not (limit.stays_crossed or limit.is_relative):
                continue
            if limit.is_crossed == (limit.text in self._crossed):
                continue
            if at_s - self._told_s.get(limit.text, -NEWS_EVERY_S) < NEWS_EVERY_S:
                continue
            self._told_s[limit.text] = at_s
            if limit.is_crossed:
                self._crossed.add(limit.text)
                findings.append(
                    limit_crossed(limit.text, limit.key, limit.value, limit.amount, by_then)
                )
            else:
                self._crossed.remove(limit.text)
                findings.append(limit_kept(limit.text, limit.key, limit.value, limit.amount))
        return findings
