"""The dead of a run as a table to be explained: cells of one cause and one second, and who has explained which of them.

The records hold marginals: per second and cause how old, how long idle, after how many requests, but not which went with
which. So a mechanism takes those that lie in its stretch of one of the three, and what it took is gone from that one alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from asyncli.analysis.totals import Totals
from asyncli.analysis.witness import Witness
from asyncli.core.histogram import Histogram, bounds
from asyncli.plan import Plan
from asyncli.records import Deaths, Finding, Tick
from asyncli.run import Ticks
from asyncli.units import format_clock, format_duration

# Fewer dead than this agree by chance.
FEWEST = 5
# A worker's share by the kernel's hash is binomial: seldom more than this many deviations off the mean.
DEVIATIONS = 3.0
# A timer is exact to itself and to our whole seconds: what it ended lies this close together (s, and share of its value).
NARROW, NARROW_SHARE = 1.0, 0.04
# A mode stands out with so large a share of all, or when it is so many times what lies beside it.
_SHARE_OF_ALL, _TIMES_BESIDE = 0.2, 1.5
# An idle time says something only where it is this much more frequent than random moments would show it.
_LEAST_SURPRISE = 0.3
# ... and where so many would show it by accident less often than this: many a stretch of idle times is looked at.
_NO_ACCIDENT = 1e-4

Field = Literal["age_s", "idle_s", "requests"]

# Times are told in seconds below this, as the timeouts of configurations are (75 s, 350 s).
_IN_WORDS_S = 600

# Causes that end a connection only while a heartbeat waits.
_WAITING = ("closed_awaiting", "heartbeat_timeout", "protocol_error")


class Cell:
    """The dead of one cause in one second; ``left`` of them no mechanism has explained yet.

    ``since_s``: when what ended them began, by :func:`began_s`.
    """

    __slots__ = ("cause", "dead", "from_s", "left", "since_s", "tick", "to_s")

    def __init__(self, cause: str, dead: Deaths, tick: Tick, t_s: float, timeout_s: float) -> None:
        self.cause, self.dead, self.tick = cause, dead, tick
        self.left = dead.count
        self.from_s, self.to_s = t_s - 1.0, t_s
        self.since_s = began_s(t_s, timeout_s if cause == "heartbeat_timeout" else 0.0)


def began_s(t_s: float, timeout_s: float) -> float:
    """When that began which a tick at ``t_s`` tells of: its second, and of what was given up a timeout before."""
    return max(0.0, t_s - 1.0 - timeout_s)


class Share:
    """What one mechanism explains of one cause: how many, when they died, and between which ages and so on."""

    def __init__(self) -> None:
        self.count = 0
        self.from_s, self.to_s, self.since_s = math.inf, -math.inf, math.inf
        #: All of it as one, where it is the whole of what is left of a cause.
        self.whole: Deaths | None = None
        self._parts: list[tuple[Cell, Field | None, float, float]] = []

    def add(self, cell: Cell, count: int, by: Field | None, low: float, high: float) -> None:
        self.count += count
        self._parts.append((cell, by, low, high))
        self.from_s, self.to_s = min(self.from_s, cell.from_s), max(self.to_s, cell.to_s)
        self.since_s = min(self.since_s, cell.since_s)

    def span(self, field: Field) -> tuple[float, float]:
        """Least and greatest age, idle time or request number among them; of a cell that was parted by another, all of it."""
        lows, highs = [], []
        for cell, by, low, high in self._parts:
            histogram: Histogram = getattr(cell.dead, field)
            if histogram:
                lows.append(max(float(histogram.least), low if by == field else 0.0))
                highs.append(min(float(histogram.greatest), high if by == field else math.inf))
        return (min(lows), max(highs)) if lows else (0.0, 0.0)

    def ages(self) -> str:
        return in_seconds(*self.span("age_s"))

    def idles(self) -> str:
        return in_seconds(*self.span("idle_s"))

    def when(self) -> str:
        """``, at 0:01:05`` on the run's clock, or from when to when: a silence from when its first heartbeat was sent."""
        if self.to_s - self.since_s <= 3.0:
            return f", at {format_clock(self.since_s)}"
        return f", from {format_clock(self.since_s)} to {format_clock(self.to_s)}"

    def medians(self) -> str:
        whole = self.whole if self.whole is not None else pool(cell for cell, *_ in self._parts)
        age, idle = whole.age_s.quantile(0.5), whole.idle_s.quantile(0.5)
        if age is None or idle is None:
            return ""
        return f"; median age {format_duration(age)}, idle for {format_duration(idle)}"


#: Evidence and remedy of a share.
Words = Callable[[Share], tuple[str, str]]


class Case:
    """The dead of a run, what else is known of it, and what has been explained."""

    def __init__(self, totals: Totals, ticks: Ticks, plan: Plan, witness: Witness, findings: Sequence[Finding] = ()) -> None:
        self.witness, self.plan, self.ticks, self.findings = witness, plan, ticks, findings
        self.cells = [
            Cell(cause, dead, tick, t_s, plan.timeout_s)
            for t_s, tick in ticks
            for cause, dead in tick.deaths.items()
            if dead.count
        ]
        #: The longest gap between two heartbeats (s), and how long one waits for its answer.
        self.gap_s, self.timeout_s = plan.keepalive_s / 2, plan.timeout_s
        #: The number of the mechanism that is asked: what two of them explain stays apart, and so does what is certain.
        self.turn = 0
        #: By cause, code, turn, certainty and place.
        self.shares: dict[tuple[str, str, int, bool, int], tuple[Share, Words]] = {}
        #: How many were opened in all, and answers a second on the average.
        self.opened = totals.whole.opened
        self.answers_per_s = totals.whole.answered / max(1, len(ticks))
        self._totals = totals
        # By cause: how often something was taken from it, and what was left of it then.
        self._taken: dict[str, int] = {}
        self._pools: dict[str, tuple[int, Deaths]] = {}
        # What is left of a cell of which a part was taken.
        self._rests: dict[Cell, Deaths] = {}

    def of(self, *causes: str) -> list[Cell]:
        """The cells of these causes of which something is left."""
        return [cell for cell in self.cells if cell.left and cell.cause in causes]

    def rest(self, cell: Cell) -> Deaths:
        """What is left of a cell, as far as marginals tell."""
        return self._rests.get(cell, cell.dead)

    def all_of(self, cause: str) -> Deaths:
        """What is left of a cause, as one."""
        taken = self._taken.get(cause, 0)
        if not taken:
            return self._totals.whole.deaths.get(cause, Deaths())
        known = self._pools.get(cause)
        if known is None or known[0] != taken:
            known = self._pools[cause] = (taken, self.pool(self.of(cause)))
        return known[1]

    def pool(self, cells: Iterable[Cell]) -> Deaths:
        """What is left of these, as one."""
        whole = Deaths()
        for cell in cells:
            whole.merge(self.rest(cell))
        return whole

    def take(
        self,
        cell: Cell,
        code: str,
        words: Words,
        certain: bool,
        *,
        count: int | None = None,
        where: tuple[Field, float, float] | None = None,
        place: int = 0,
    ) -> None:
        """Explain what is left of a cell, or ``count`` of it, or those ``where`` a field lies between two values, both in.

        ``place`` tells apart what happened more than once.
        """
        by, low, high = where or (None, 0.0, 0.0)
        if by is not None:
            count = within(getattr(self.rest(cell), by), low, high)
        count = cell.left if count is None else min(count, cell.left)
        if count <= 0:
            return
        cell.left -= count
        self._taken[cell.cause] = self._taken.get(cell.cause, 0) + 1
        if cell.left and by is not None:
            rest = self._rests.setdefault(cell, Deaths(cell.dead.count, cell.dead.age_s, cell.dead.idle_s, cell.dead.requests))
            setattr(rest, by, without(getattr(rest, by), low, high))
        share, _ = self.shares.setdefault((cell.cause, code, self.turn, certain, place), (Share(), words))
        share.add(cell, count, by, low, high)

    def take_all(self, cells: Iterable[Cell], code: str, words: Words, certain: bool, place: int = 0) -> None:
        """Explain all that is left of these."""
        for cell in cells:
            self.take(cell, code, words, certain, place=place)

    def take_rest(self, cause: str, code: str, words: Words) -> None:
        """Put all that is left of a cause under one likelihood."""
        whole = self.all_of(cause)
        self.take_all(self.of(cause), code, words, False)
        self.shares[cause, code, self.turn, False, 0][0].whole = whole

    def asked(self, cells: Iterable[Cell]) -> float:
        """The share of these that ended while a heartbeat waited for its answer, from 0 to 1.

        A second's failed beats are those of all causes; of the causes that end idle connections too, what is over.
        """
        waiting = total = 0
        for cell in cells:
            others = sum(dead.count for cause, dead in cell.tick.deaths.items() if cause in _WAITING)
            waiting += min(cell.dead.count, max(0, cell.tick.beats_failed - others))
            total += cell.dead.count
        return waiting / total if total else 0.0

    def between(self, from_s: float, to_s: float) -> Sequence[tuple[float, Tick]]:
        """The ticks that close in ``(from_s, to_s]``."""
        low = bisect.bisect_right(self.ticks, from_s, key=_instant)
        return self.ticks[low : bisect.bisect_right(self.ticks, to_s, key=_instant)]

    def configured(self, directive: str) -> float | None:
        """What nginx.conf says, in seconds or as a number; None where it was not read."""
        return self.witness.configured.get(f"nginx_{directive}")


def _instant(row: tuple[float, Tick]) -> float:
    return row[0]


def one_of(workers: int, count: int, held: float) -> bool:
    """Whether ``count`` may be all that one of so many workers held of ``held``."""
    mean = held / workers
    return abs(count - mean) <= DEVIATIONS * math.sqrt(max(mean, 1.0)) + 0.1 * mean


def left(cells: Iterable[Cell]) -> int:
    """How many of them are not explained yet."""
    return sum(cell.left for cell in cells)


def pool(cells: Iterable[Cell]) -> Deaths:
    """All of these cells' dead as one."""
    deaths = Deaths()
    for cell in cells:
        deaths.merge(cell.dead)
    return deaths


# -- how many lie where


def within(histogram: Histogram, low: float, high: float) -> int:
    """How many records lie in ``[low, high]``; a bucket that touches it counts whole (it is 1/64 of its value wide)."""
    if not histogram.counts or histogram.greatest < low or histogram.least > high:
        return 0
    if low <= histogram.least and histogram.greatest <= high:
        return histogram.count
    return sum(count for key, count in histogram.counts.items() if _touches(histogram, key, low, high))


def without(histogram: Histogram, low: float, high: float) -> Histogram:
    """The histogram less what :func:`within` counts."""
    kept = {key: count for key, count in histogram.counts.items() if not _touches(histogram, key, low, high)}
    if not kept:
        return Histogram()
    least, greatest = bounds(min(kept))[0], bounds(max(kept))[1]
    return Histogram(kept, max(least, histogram.least), min(greatest, histogram.greatest))


def _touches(histogram: Histogram, key: int, low: float, high: float) -> bool:
    first, last = bounds(key)
    return max(first, histogram.least) <= high and min(last, histogram.greatest) >= low


def narrow(histogram: Histogram, width: float | None = None) -> tuple[float, float] | None:
    """Between what values the middle 80 % lie, if that is as narrow as a timer leaves it (or ``width``); else None.

    None for too few as well.
    """
    low, middle, high = (histogram.quantile(q) for q in (0.1, 0.5, 0.9))
    if low is None or middle is None or high is None or histogram.count < FEWEST:
        return None
    allowed = max(NARROW, NARROW_SHARE * middle) if width is None else width
    return (low, high) if high - low <= allowed else None


def mode(histogram: Histogram) -> tuple[float, float] | None:
    """The heaviest stretch that is as narrow as a timer leaves it; None where none stands out.

    To stand out it needs a fifth of all, and well more than lies beside it in stretches of its width.
    """
    total = histogram.count
    rows = [(*bounds(key), count) for key, count in histogram.items()]
    best: tuple[float, float] | None = None
    most = start = inside = 0
    for low, high, count in rows:
        inside += count
        while low - rows[start][0] > max(NARROW, NARROW_SHARE * rows[start][0]):
            inside -= rows[start][2]
            start += 1
        if inside > most:
            most = inside
            best = (float(max(rows[start][0], histogram.least)), float(min(high, histogram.greatest)))
    if best is None or most < max(FEWEST, _SHARE_OF_ALL * total):
        return None
    width = best[1] - best[0] + 1
    beside = within(histogram, best[0] - width, best[0] - 1) + within(histogram, best[1] + 1, best[1] + width)
    return best if most >= _TIMES_BESIDE * beside + FEWEST or most >= 0.8 * total else None


def timer_window(low_s: float, high_s: float) -> tuple[float, float]:
    """The whole seconds in which the end by a timer of ``low_s`` to ``high_s`` is recorded.

    The server reckons from the start of its turn, so by our clock its timers end a little early; and late when it is busy.
    """
    return math.floor(low_s) - 1.0, math.ceil(high_s) + max(NARROW, NARROW_SHARE * high_s)


def is_timer(histogram: Histogram, timer_s: float) -> bool:
    """Whether these times stand out at a timer of so many seconds, or are all of it."""
    low, high = timer_window(timer_s, timer_s)
    inside = within(histogram, low, high)
    if inside == histogram.count:
        return inside > 0
    width = high - low + 1
    beside = within(histogram, low - width, low - 1) if low > 0 else histogram.count - inside
    return inside >= 2 * beside + FEWEST


def chance_idle(gap_s: float, low: float, high: float) -> float:
    """The chance that a connection, looked at in a random moment, has been idle for ``[low, high]`` whole seconds.

    Gaps are uniform in [1, gap], and a long one is met the more often: the density of x is P(gap > x) / mean gap.
    """

    def below(x: float) -> float:
        x = min(max(x, 0.0), gap_s)
        if x <= 1.0 or gap_s <= 1.0:
            return x
        return 1.0 + ((gap_s - 1.0) ** 2 - (gap_s - x) ** 2) / (2.0 * (gap_s - 1.0))

    return (below(high + 1.0) - below(low)) / max(below(gap_s), 1e-9)


def tells(gap_s: float, idle_s: Histogram, low: float, high: float, *, named: bool = False) -> bool:
    """Whether idle times in ``[low, high]``, or in some part of it, are more than random moments would show.

    By a clear margin, and by no accident, unless the configuration had ``named`` the time beforehand. 0 s never is: that is
    what a heartbeat leaves.
    """
    if high < 1 or not idle_s:
        return False
    low, high = max(0.0, low), min(high, float(idle_s.greatest))
    whole = range(int(low), int(high) + 1)
    parts = [(a, b) for a in whole for b in whole if a <= b and b >= 1] if len(whole) <= 6 else [(low, high)]
    for a, b in parts:
        share, chance = within(idle_s, a, b) / idle_s.count, chance_idle(gap_s, a, b)
        if share - chance >= _LEAST_SURPRISE and (named or accident(share, chance, idle_s.count) < _NO_ACCIDENT):
            return True
    return False


def accident(share: float, chance: float, count: int) -> float:
    """At most the probability that ``share`` or more of ``count`` fall where each falls by ``chance`` (Chernoff's bound)."""
    if share <= chance:
        return 1.0
    if chance <= 0.0:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return math.exp(-count * (share * math.log(share / chance) + rest))


# -- words


def in_seconds(low: float, high: float | None = None) -> str:
    """``75 s``, ``75-77 s``; ``1 h to 1 h 2 min``, as configurations and their manuals have them."""
    high = low if high is None else high
    if round(high) >= _IN_WORDS_S:
        first, last = format_duration(round(low)), format_duration(round(high))
        return first if first == last else f"{first} to {last}"
    return f"{low:.0f} s" if round(low) == round(high) else f"{low:.0f}-{high:.0f} s"


def as_configured(directive: str, value: str, certain: bool) -> str:
    """The mechanism, with what nginx.conf says."""
    return f"{'' if certain else 'looks like '}nginx {directive} (nginx.conf says {value})"
