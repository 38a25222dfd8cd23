"""The cost of a connection so far, during a run, by the rules of :func:`asyncli.analysis.cost.known_costs`. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from asyncli.analysis.constants import FEWEST, MISSED_S
from asyncli.analysis.server_memory import BEFORE, held_before
from asyncli.analysis.slope import FREED_KEPT, PAGES
from asyncli.analysis.totals import tested
from asyncli.findings.cost import SURE
from asyncli.model.plan import Plan
from asyncli.model.records import PhaseName, Tick

# Student's t for 95 %, from 1 degree of freedom on; the last for more.
_STUDENT = (12.7, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
# Fewer recent readings cannot show the noise.
_FEWEST_READINGS = 3
#: Rates, latencies and costs cover this time: steady to read, yet quick to change.
RECENT_S = 10
#: The kinds of memory with a cost.
COSTS = ("server", "kernel", "generator", "host")


class LiveCost(NamedTuple):
    """Bytes per connection, and half of the 95 % interval."""

    bytes_per_connection: float
    half_width: float


class Reading(NamedTuple):
    """Memory (bytes) at an instant (s), and the connections held then."""

    t_s: float
    value: float
    held: float


class LiveCosts:
    """The costs that the report would show too: not of a server that reuses memory, of memory that grows in the hold, of a host
    whose growth is mostly in no measured part, nor of connections too few, too brief, or never answered.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._levels = {
            name: Level(0.0 if name == "kernel" else FREED_KEPT) for name in (*COSTS, "others")
        }
        self._before: dict[str, float] = {}
        self._tested = False
        #: A program was seen to accept connections at the server's ports.
        self.accepted = False
        #: Seconds that connections were held, and how many were lost; the most that were held.
        self._held_s = 0.0
        self._lost = 0
        self._most_held = 0

    def before(self, values: Mapping[str, float]) -> None:
        """A sample of the baseline: what the server had held earlier."""
        for name in BEFORE:
            if name in values:
                self._before.setdefault(name, values[name])

    def tick(self, tick: Tick) -> None:
        self._tested = self._tested or tested(self._plan, tick, accepted=self.accepted)
        self._held_s += tick.held
        self._lost += tick.lost
        lost_by_asyncli = tick.deaths.get("generator_lost")
        if lost_by_asyncli is not None:
            self._lost -= lost_by_asyncli.count
        self._most_held = max(self._most_held, tick.held)

    def read(
        self,
        t_s: float,
        read: Mapping[str, float],
        held: float,
        phase: PhaseName | None,
        empty: bool,
    ) -> None:
        """A reading of each kind of memory at ``held`` connections. ``empty``: it is of the baseline."""
        kinds = {name: value for name, value in read.items() if name in COSTS}
        if read.keys() >= {"server", "generator", "host", "processes"}:
            kinds["others"] = read["processes"] - read["server"] - read["generator"]
        for name, value in kinds.items():
            self._levels[name].read(Reading(t_s, value, held), empty, phase == "hold")

    def known(self) -> dict[str, LiveCost]:
        """The costs that are known, by kind."""
        if not self._has_enough_connections:
            return {}
        costs = self._measured()
        others = costs.pop("others", LiveCost(0.0, 0.0))
        if "host" in costs:
            total = _with_or_without_others(costs.pop("host"), others)
            if _is_narrow(total) and self._is_explained(total, costs):
                costs["host"] = total
        return costs

    @property
    def _has_enough_connections(self) -> bool:
        """Whether they were answered, enough of them were held, and long enough."""
        if not self._tested or self._most_held < FEWEST:
            return False
        return self._held_s >= MISSED_S * self._lost

    def _measured(self) -> dict[str, LiveCost]:
        """The cost of each kind of memory that does not grow by itself and that the server did not
        hold before.
        """
        costs = {}
        for name, level in self._levels.items():
            # asyncli's own memory settles for minutes.
            if name != "generator" and level.grows():
                continue
            if name == "server" and self._reuses_memory:
                continue
            cost = level.cost()
            if cost is not None:
                costs[name] = cost
        return costs

    @property
    def _reuses_memory(self) -> bool:
        """Whether the server has memory of connections that it held before the run."""
        return 2 * held_before(self._before)[0] >= self._most_held

    def _is_explained(self, total: LiveCost, parts: Mapping[str, LiveCost]) -> bool:
        """Whether at least half of the host's rise is in the parts, whose memory is in the host's.
        Most of a rise in no part is other programs'.
        """
        for name in ("server", "kernel"):
            if self._levels[name].is_read and name not in parts:
                return False
        if "server" not in parts:
            return True
        in_parts = sum(cost.bytes_per_connection + cost.half_width for cost in parts.values())
        if "kernel" not in parts:
            in_parts += 2 * PAGES
        unexplained = total.bytes_per_connection - in_parts
        return unexplained <= total.bytes_per_connection / 2


def _with_or_without_others(total: LiveCost, others: LiveCost) -> LiveCost:
    """The host's cost, from the host without other programs' memory to the host with it."""
    middle = total.bytes_per_connection - others.bytes_per_connection / 2
    wider = (others.bytes_per_connection + others.half_width) / 2
    return LiveCost(middle, total.half_width + wider)


def _is_narrow(cost: LiveCost) -> bool:
    return cost.half_width <= SURE * cost.bytes_per_connection


class Level:
    """One kind of memory: its rise above the baseline, and an error by a random walk.

    The steps in the baseline and in the last seconds, minus the connections' cost, are taken for those of a random walk, so the
    interval is rather too wide.
    """

    def __init__(self, resolution: float) -> None:
        #: In bytes.
        self._resolution = resolution
        self._baseline: list[Reading] = []
        self._recent: deque[Reading] = deque()
        self._first_of_hold: Reading | None = None

    def read(self, reading: Reading, empty: bool, in_hold: bool) -> None:
        """Add a reading. ``empty``: it is of the baseline."""
        if empty:
            self._baseline.append(reading._replace(held=0.0))
            return
        self._recent.append(reading)
        if in_hold and self._first_of_hold is None:
            self._first_of_hold = reading
        while self._recent[0].t_s <= reading.t_s - RECENT_S:
            self._recent.popleft()

    @property
    def is_read(self) -> bool:
        return bool(self._recent)

    def cost(self) -> LiveCost | None:
        """None if the interval is wider than ± 50 %, or nothing is held."""
        per_connection = self._per_connection()
        if per_connection is None or per_connection <= 0:
            return None
        last = self._recent[-1]
        walk = self._wander(per_connection, last.t_s - self._baseline[-1].t_s)
        cost = LiveCost(per_connection, max(walk, self._resolution) / last.held)
        return cost if _is_narrow(cost) else None

    def grows(self) -> bool:
        """Whether it has grown since the hold began, by more than such a walk, and not with the connections."""
        per_connection = self._per_connection()
        if per_connection is None or self._first_of_hold is None:
            return False
        first = self._first_of_hold
        last = self._recent[-1]
        walk = self._wander(per_connection, last.t_s - first.t_s)
        return _rise(first, last, per_connection) > max(walk, self._resolution)

    def _per_connection(self) -> float | None:
        """Bytes above the baseline, by connections held; None without a baseline or enough readings."""
        if len(self._recent) < _FEWEST_READINGS or not self._baseline:
            return None
        last = self._recent[-1]
        if last.held <= 0:
            return None
        baseline = statistics.median(reading.value for reading in self._baseline)
        return (last.value - baseline) / last.held

    def _wander(self, per_connection: float, seconds: float) -> float:
        """How far (bytes) it may walk in so long."""
        squares_per_s = []
        for readings in (self._baseline, self._recent):
            for before, after in itertools.pairwise(readings):
                if after.t_s > before.t_s:
                    step = _rise(before, after, per_connection)
                    squares_per_s.append(step**2 / (after.t_s - before.t_s))
        t = _STUDENT[min(len(squares_per_s), len(_STUDENT)) - 1]
        return t * math.sqrt(statistics.fmean(squares_per_s) * seconds)


def _rise(before: Reading, after: Reading, per_connection: float) -> float:
    """The rise (bytes) between two readings that is not of further connections."""
    return after.value - before.value - per_connection * (after.held - before.held)
