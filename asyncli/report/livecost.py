"""The cost of a connection so far, during a run, by the rules of :func:`asyncli.analysis.cost.known_costs`. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping

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

#: Bytes per connection, and half of the interval.
Each = tuple[float, float]


class LiveCosts:
    """The costs that the report would show too: not of a server that reuses memory, of memory that grows in the hold, of a host
    whose growth is mostly in no measured part, nor of connections too few, too brief, or never answered.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._levels = {name: Level(0.0 if name == "kernel" else FREED_KEPT) for name in (*COSTS, "others")}
        self._before: dict[str, float] = {}
        self._tested = False
        #: A program was seen to accept connections at the server's ports.
        self.accepted = False
        #: Seconds that connections were held, and how many were lost; the most that were held.
        self._held_s, self._lost, self._most = 0.0, 0, 0

    def before(self, values: Mapping[str, float]) -> None:
        """A sample of the baseline: what the server had held earlier."""
        self._before = {name: values[name] for name in BEFORE if name in values} | self._before

    def tick(self, tick: Tick) -> None:
        self._tested = self._tested or tested(self._plan, tick, accepted=self.accepted)
        ours = tick.deaths.get("generator_lost")
        self._held_s += tick.held
        self._lost += tick.lost - (ours.count if ours is not None else 0)
        self._most = max(self._most, tick.held)

    def read(self, t_s: float, read: Mapping[str, float], held: float, phase: PhaseName | None, empty: bool) -> None:
        """A reading of each kind of memory at ``held`` connections. ``empty``: it is of the baseline."""
        kinds = {name: value for name, value in read.items() if name in COSTS}
        if read.keys() >= {"server", "generator", "host", "processes"}:
            kinds["others"] = read["processes"] - read["server"] - read["generator"]
        for name, value in kinds.items():
            self._levels[name].read(t_s, value, held, empty, phase == "hold")

    def known(self) -> dict[str, Each]:
        """The known ones."""
        if not self._tested or self._most < FEWEST or self._held_s < MISSED_S * self._lost:
            return {}
        # asyncli's own memory settles for minutes.
        hidden = {name for name in self._levels if name != "generator" and self._levels[name].grows()}
        if 2 * held_before(self._before)[0] >= self._most:
            hidden.add("server")
        found = {name: each for name, one in self._levels.items() if (each := one.each()) is not None and name not in hidden}
        others, half_of_others = found.pop("others", (0.0, 0.0))
        if "host" in found:
            # It reaches from the host without other programs' memory to the host with it.
            total, half = found["host"]
            found["host"] = total - others / 2, half + (others + half_of_others) / 2
            if found["host"][1] > SURE * found["host"][0]:
                del found["host"]
        total, parts = found.get("host", (0.0, 0.0))[0], [found[name] for name in COSTS[:3] if name in found]
        # Each part's memory is in the host's. Most of a host's rise in no part is other programs'.
        unknown = any(self._levels[name].is_read and name not in found for name in ("server", "kernel"))
        in_kernel = 0.0 if "kernel" in found else 2 * PAGES
        if unknown or ("server" in found and total - in_kernel - sum(each + half for each, half in parts) > total / 2):
            found.pop("host", None)
        return found


class Level:
    """One kind of memory: its rise above the baseline, and an error by a random walk.

    The steps in the baseline and in the last seconds, minus the connections' cost, are taken for those of a random walk, so the
    interval is rather too wide.
    """

    def __init__(self, resolution: float) -> None:
        #: In bytes.
        self._resolution = resolution
        self._baseline: list[tuple[float, float, float]] = []
        #: Instant (s), bytes, connections held.
        self._recent: deque[tuple[float, float, float]] = deque()
        #: The first reading of the hold.
        self._rest: tuple[float, float, float] | None = None

    def read(self, t_s: float, value: float, held: float, empty: bool, at_rest: bool = False) -> None:
        """Add a reading at ``held`` connections. ``empty``: it is of the baseline; ``at_rest``: of the hold."""
        if empty:
            self._baseline.append((t_s, value, 0.0))
            return
        self._recent.append((t_s, value, held))
        if at_rest and self._rest is None:
            self._rest = self._recent[-1]
        while self._recent[0][0] <= t_s - RECENT_S:
            self._recent.popleft()

    @property
    def is_read(self) -> bool:
        return bool(self._recent)

    def each(self) -> Each | None:
        """Bytes per connection and half of the interval; None if that is wider than ± 50 %, or nothing is held."""
        cost = self._cost()
        if cost is None or cost <= 0:
            return None
        now_s, _, held = self._recent[-1]
        half = max(self._wander(cost, now_s - self._baseline[-1][0]), self._resolution) / held
        return (cost, half) if half <= SURE * cost else None

    def grows(self) -> bool:
        """Whether it has grown since the hold began, by more than such a walk, and not with the connections."""
        cost = self._cost()
        if cost is None or self._rest is None:
            return False
        (begin, before, many), (now_s, value, held) = self._rest, self._recent[-1]
        return value - before - cost * (held - many) > max(self._wander(cost, now_s - begin), self._resolution)

    def _cost(self) -> float | None:
        if len(self._recent) < _FEWEST_READINGS or not self._baseline or self._recent[-1][2] <= 0:
            return None
        _, value, held = self._recent[-1]
        return (value - statistics.median(one for _, one, _ in self._baseline)) / held

    def _wander(self, cost: float, seconds: float) -> float:
        """How far (bytes) it may walk in so long; ``cost``: of a connection."""
        steps = [
            (after - before - cost * (more - many)) ** 2 / (end - begin)
            for part in (self._baseline, self._recent)
            for (begin, before, many), (end, after, more) in itertools.pairwise(part)
            if end > begin
        ]
        t = _STUDENT[min(len(steps), len(_STUDENT)) - 1]
        return t * math.sqrt(statistics.fmean(steps) * seconds)
