"""One run as the live page and its metrics show it: the records of its file, folded as they are
written. Nothing here changes the run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from asyncli.analysis.slope import Cost
from asyncli.app.cost_meter import CostMeter
from asyncli.core.histogram import Histogram
from asyncli.live.following import fold_news, why_ended_of
from asyncli.live.generator_room import metrics_of_room
from asyncli.live.history import MOST_STRETCHES, History, levels_of
from asyncli.live.panels import metrics_of_panels
from asyncli.model.plan import Plan
from asyncli.model.records import (
    Check,
    Environment,
    EventCounts,
    Finding,
    RunEvent,
    Sample,
    Tick,
)
from asyncli.report.answer import is_hidden
from asyncli.report.cost_so_far import CostSoFar, Ending
from asyncli.report.limits_so_far import LimitNews
from asyncli.report.livestate import LiveFold, LiveState
from asyncli.report.losses_so_far import LossNews
from asyncli.report.summary_parts import CostPart
from asyncli.store.follow import Follower, News

#: So many findings and events are kept for the page; the report has all.
_MOST_KEPT = 500
# The cost of a long run is computed at most for this share of a core, by a process of its own.
_COST_SHARE = 0.005
_OF_ROOM = frozenset(metrics_of_room())
#: The costs of which the page shows how they converge.
COSTS: dict[str, Callable[[CostPart], Cost | None]] = {
    "server_user": lambda costs: costs.server_user,
    "kernel": lambda costs: costs.kernel,
    "host_total": lambda costs: costs.host_total,
}


class CostPoint(NamedTuple):
    """A cost as it was known at ``at_s``, with its interval; each is None while it is unknown."""

    at_s: float
    costs: dict[str, tuple[float, float, float] | None]


class Sums(msgspec.Struct):
    """What the ticks of a run add up to; times in microseconds."""

    sent: int = 0
    beats_failed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    by_status: dict[int, int] = msgspec.field(default_factory=dict)
    latency_us: Histogram = msgspec.field(default_factory=Histogram)
    lateness_us: Histogram = msgspec.field(default_factory=Histogram)

    def add(self, tick: Tick) -> None:
        """Add the counts of a tick, without its times."""
        self.sent += tick.sent
        self.beats_failed += tick.beats_failed
        self.bytes_sent += tick.bytes_sent
        self.bytes_received += tick.bytes_received
        for status, count in tick.by_status.items():
            self.by_status[status] = self.by_status.get(status, 0) + count


class EventSoFar(msgspec.Struct):
    """What an event of the plan did so far: how many connections it ``took``, that is ended,
    silenced or had stall; how many of these were ``back`` with an answer; how many fell silent, and
    whose turn to connect or to be heard again has not come.
    """

    took: int = 0
    back: int = 0
    silenced: int = 0
    turns_to_come: int = 0

    def add(self, counts: EventCounts) -> None:
        """Add those of a second."""
        self.took += counts.ended + counts.stalled
        self.back += counts.back_ms.count
        self.silenced += counts.silenced
        self.turns_to_come += counts.turns_to_come

    @property
    def silent(self) -> int:
        """Those that are silent, or were and wait for their turn."""
        if not self.silenced:
            return 0
        return max(0, self.turns_to_come)


class RunFeed:
    """The state, the history and the notes of the run in ``path`` up to the last :meth:`take`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = Follower(path)
        self.whole = History()
        self.recent = History(forgets=True)
        self.cost_points: list[CostPoint] = []
        #: How many points there were in all.
        self.cost_points_made = 0
        self.so_far: CostSoFar | None = None
        self.sums = Sums()
        #: By the number of an event of the plan.
        self.events_so_far: dict[int, EventSoFar] = {}
        #: The last value of each line of samples before the first connect.
        self.baselines: dict[str, float] = {}
        #: When the first connection was asked for (s since the run's start); infinite before.
        self.first_connect_s = math.inf
        #: What the run file says of the hosts, the limits checked before the run, and the last
        #: value of each metric that says how much of a limit is in use.
        self.environment: Environment = {}
        self.checks: list[Check] = []
        self.levels: dict[str, float] = {}
        self.findings: deque[tuple[float, Finding]] = deque(maxlen=_MOST_KEPT)
        self.events: deque[RunEvent] = deque(maxlen=_MOST_KEPT)
        #: Whether ``so_far`` is of the whole run.
        self.is_final = False
        self._is_last_asked = False
        #: Why the run does not continue; "" while it does.
        self.why_ended = ""
        self.run_id = ""
        #: Seconds since 1970.
        self.began_s = 0.0
        #: How often the histories have changed so that what was sent of them is void.
        self.edition = 0
        self.plan = Plan(urls=())
        self._limit_news = LimitNews()
        # Up to when limits were looked at.
        self._limits_seen_s = 0.0
        self._loss_news = LossNews()
        self._fold: LiveFold | None = None
        self._meter = CostMeter(path, most_of_a_core=_COST_SHARE)

    def open(self, *, with_cost: bool = True) -> None:
        """Read what is there. ``with_cost``: and have its cost computed from now on.

        Raises :class:`~asyncli.model.errors.StoreError`.
        """
        news = self.follower.news()
        self._fold = LiveFold(news.plan)
        self._limit_news = LimitNews(ends_run=news.plan.abort)
        self.plan = news.plan
        self._take_state(news)
        last_s = max((t_s for t_s, _ in news.ticks), default=0.0)
        self.whole = History(lasts_s=last_s)
        needed = [*metrics_of_panels(), *_OF_ROOM]
        self.follower.past(needed, self._past_tick, self._sample)
        # Here, and not while the first page waits.
        self.recent.settle()
        self.sums.latency_us = self.whole.times("latency_p50")
        self.sums.lateness_us = self.whole.times("lateness_p99")
        if with_cost:
            self._meter.start()

    def close(self) -> None:
        self._meter.close()

    @property
    def ending(self) -> Ending | None:
        """What the report says of the run, once it has ended and that was computed."""
        return None if self.so_far is None else self.so_far.ending

    @property
    def silent(self) -> int:
        """Connections that are silent by events of the plan."""
        return sum(event.silent for event in self.events_so_far.values())

    @property
    def record_age_s(self) -> float | None:
        """How long no record came into the file of a run that goes on; None: it does not."""
        if self.state.over:
            return None
        return self.follower.quiet_s

    @property
    def state(self) -> LiveState:
        assert self._fold is not None
        return self._fold.state()

    def read(self) -> News:
        """What is new in the file. May block, and changes nothing that is shown.

        Raises :class:`~asyncli.model.errors.StoreError`.
        """
        return self.follower.news()

    def take(self, news: News) -> None:
        """Fold what was read: in the thread of whoever shows it."""
        assert self._fold is not None
        width_s = self.whole.width_s
        self._take_state(news)
        self._take_history(news)
        if self.whole.width_s != width_s:
            self.edition += 1
        self.why_ended = why_ended_of(self.follower, news)
        is_written = self.follower.is_there and self.follower.is_open
        if self.why_ended and (news.complete or not is_written):
            self._fold.end()
        else:
            self._fold.go_on()
        so_far = self._computed(is_over=news.complete)
        if so_far is not None:
            self._take_cost(so_far)
        self._take_limits()
        if self.is_final:
            # Its process is no longer needed.
            self._meter.close()

    def _take_limits(self) -> None:
        """Show limits that have become crossed, or are kept again, among the findings while the run
        lasts. The run file has none of them; what the report says of them comes with the ending.
        """
        state = self.state
        if state.over:
            return
        news = self._limit_news.of(state.limits, state.elapsed_s, self._limits_seen_s)
        self._limits_seen_s = state.elapsed_s
        for finding in news:
            self.findings.append((state.elapsed_s, finding))

    def _computed(self, *, is_over: bool) -> CostSoFar | None:
        """The cost that was computed. It is asked for again while connections are held, and once
        more after the end.
        """
        assert self._fold is not None
        if not is_over:
            is_held = self._fold.state().phase in ("ramp", "hold") and not self.why_ended
            return self._meter.turn(time.monotonic(), is_held=is_held)
        so_far = self._meter.answer(math.inf)
        if self._is_last_asked:
            self.is_final |= so_far is not None
        else:
            self._is_last_asked = self._meter.ask(math.inf)
        return so_far

    def _take_state(self, news: News) -> None:
        assert self._fold is not None
        fold_news(self._fold, news)
        self.plan = news.plan
        self.began_s = news.began_s
        self.run_id = news.run_id
        self.environment = news.environment
        self.checks = news.checks
        for phase in news.phases:
            if phase.name == "ramp":
                self.first_connect_s = phase.start_s
        self.findings.extend(news.findings)
        self.events.extend(news.events)

    def _take_history(self, news: News) -> None:
        # (Instant in s, what folds the record).
        records: list[tuple[float, Callable[[], None]]] = []
        for t_s, tick in news.ticks:
            records.append((t_s, partial(self._tick, t_s, tick)))
        for sample in news.samples:
            records.append((sample.t_s, partial(self._sample, sample)))
        for _, fold_record in sorted(records, key=lambda record: record[0]):
            fold_record()

    def _past_tick(self, t_s: float, tick: Tick) -> None:
        self.whole.tick(t_s, tick)
        self.recent.tick(t_s, tick)
        self.sums.add(tick)
        for number, counts in tick.events.items():
            self.events_so_far.setdefault(number, EventSoFar()).add(counts)

    def _tick(self, t_s: float, tick: Tick) -> None:
        self._past_tick(t_s, tick)
        self.sums.latency_us.merge(tick.latency_us)
        self.sums.lateness_us.merge(tick.lateness_us)

    def _sample(self, sample: Sample) -> None:
        if sample.t_s <= self.first_connect_s:
            self.baselines |= levels_of(sample)
        self.levels |= {name: sample.values[name] for name in _OF_ROOM & sample.values.keys()}
        self.whole.sample(sample)
        self.recent.sample(sample)

    def _take_cost(self, so_far: CostSoFar) -> None:
        assert self._fold is not None
        self._fold.cost(so_far)
        self.so_far = so_far
        elapsed_s = self.state.elapsed_s
        for finding in self._loss_news.of(so_far.losses, elapsed_s):
            self.findings.append((elapsed_s, finding))
        self.cost_points.append(_point_of(so_far))
        self.cost_points_made += 1
        if len(self.cost_points) > 2 * MOST_STRETCHES:
            # Of the older half every second one is kept.
            older = self.cost_points[:MOST_STRETCHES]
            self.cost_points = older[1::2] + self.cost_points[MOST_STRETCHES:]


def shown_costs(costs: CostPart) -> dict[str, Cost | None]:
    """Those of COSTS, by name; None where a cost is unknown, or other programs may be in it."""
    shown: dict[str, Cost | None] = {}
    for name, of in COSTS.items():
        cost = of(costs)
        shown[name] = None if cost is None or is_hidden(cost) else cost
    return shown


def _point_of(so_far: CostSoFar) -> CostPoint:
    intervals: dict[str, tuple[float, float, float] | None] = {}
    for name, cost in shown_costs(so_far.cost).items():
        intervals[name] = None if cost is None else (cost.bytes_per_connection, *cost.ci95)
    return CostPoint(so_far.at_s, intervals)
