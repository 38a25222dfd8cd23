"""What the server's runtime still has after the drain, by the collections that asyncli asks for
then: some that settle its heap, and looks at what it adds by itself.

The law of the looks: with nothing connected, what is alive is the same at each of them, but for
what asking leaves to the runtime, and what it loads late. Over 43 looks, 2.3 s apart and with a
page read each second, that was

- up to 54 kB up or down from one look to the next in Go,
- 12 kB up at three of four and 37 kB down at the fourth, which compacts, in a JVM with the serial
  collector,
- 20 kB up at each of some successive looks in a Node that had just begun to serve its page, later
  0.3 kB.

So a heap is told to rise by the clock only if it rises from each look to the next by about as much,
by more than asking leaves, and by LEAST_PACE or more.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import NamedTuple

from asyncli.analysis.constants import HALF, PART
from asyncli.analysis.heap_cost import HeapReading
from asyncli.analysis.regression import FEWEST_POINTS
from asyncli.model import metrics
from asyncli.model.run import LEAST_PACE, LOOKS_AFTER_DRAIN, SETTLING_COLLECTIONS, Run
from asyncli.model.samples import Series


class Growth(NamedTuple):
    """How fast a heap rises, and half of the interval (bytes/s)."""

    per_s: float
    half: float


NO_GROWTH = Growth(0.0, 0.0)


def settled_reading(run: Run, forced: Series) -> HeapReading | None:
    """What was alive at the last of the collections that settle the heap after the drain; None
    without two: what one of them leaves may be in Go's pools.
    """
    residue = run.phase("residue")
    if residue is None:
        return None
    rows = list(forced.between(residue.start_s, math.inf).rows())[:SETTLING_COLLECTIONS]
    if len(rows) < 2:
        return None
    t_s, value = rows[-1]
    return HeapReading(t_s, 0.0, value)


def stays_alive(run: Run) -> float | None:
    """By how much more (bytes) is alive after the drain than was before the first connect, each
    just after a collection that asyncli asked for; None where that is not known.
    """
    forced = run.series(metrics.RUNTIME_FORCED_BYTES)
    before = forced.between(-math.inf, run.first_connect_s).values
    settled = settled_reading(run, forced)
    if not before or settled is None:
        return None
    return settled.value - statistics.median(before)


def _looks(run: Run, forced: Series) -> list[tuple[float, float]]:
    """The readings from when the heap had settled after the drain: (instant, bytes)."""
    residue = run.phase("residue")
    if residue is None:
        return []
    return list(forced.between(residue.start_s, math.inf).rows())[SETTLING_COLLECTIONS - 1 :]


def _steps(looks: list[tuple[float, float]]) -> list[float]:
    return [after - before for (_, before), (_, after) in itertools.pairwise(looks)]


def by_the_clock(run: Run, forced: Series) -> Growth | None:
    """How fast the heap rises by the clock alone: after the drain, when it had settled, with no
    connections and no heartbeats. None where fewer than three collections show it.

    The median of the slopes between any two of them (Theil and Sen). Its error is that between the
    greatest and the least step: what comes now and then may come once more or less in that time.
    """
    looks = _looks(run, forced)
    if len(looks) < FEWEST_POINTS:
        return None
    slopes = []
    for (before_s, before), (after_s, after) in itertools.combinations(looks, 2):
        slopes.append((after - before) / (after_s - before_s))
    steps = _steps(looks)
    span_s = looks[-1][0] - looks[0][0]
    return Growth(statistics.median(slopes), (max(steps) - min(steps)) / span_s)


def steady_rise(run: Run, forced: Series) -> Growth | None:
    """How fast the heap rises by the clock, where that is certain; else None."""
    growth = by_the_clock(run, forced)
    if growth is None or growth.per_s < LEAST_PACE or growth.per_s <= growth.half:
        return None
    steps = _steps(_looks(run, forced))
    if len(steps) < LOOKS_AFTER_DRAIN:
        return None
    least_step = min(steps)
    if least_step < HALF * statistics.median(steps):
        return None
    # What each collection leaves looks like a rise by the clock too: a part of it is taken for
    # that.
    if HALF * least_step <= _left_by_asking(run, forced, growth.per_s):
        return None
    return growth


def _left_by_asking(run: Run, forced: Series, per_s: float) -> float:
    """The most that one collection left to the next (bytes), beyond a rise of ``per_s`` by the
    clock: of those in a row that settle the heap after the drain. The first two free what
    connections had.
    """
    residue = run.phase("residue")
    if residue is None:
        return 0.0
    rows = list(forced.between(residue.start_s, math.inf).rows())[:SETTLING_COLLECTIONS]
    left = 0.0
    for (before_s, before), (after_s, after) in itertools.pairwise(rows[1:]):
        left = max(left, after - before - per_s * (after_s - before_s))
    return left


def risen_by_the_clock(run: Run, forced: Series) -> float | None:
    """How much of what is alive after the drain (bytes) came by the clock, if it rose all the time
    as it does then; None where nothing is certain to rise.
    """
    growth = steady_rise(run, forced)
    settled = settled_reading(run, forced)
    before = forced.between(-math.inf, run.first_connect_s)
    if growth is None or settled is None or not before:
        return None
    return growth.per_s * (settled.t_s - statistics.median(before.t_s))


def stacks_stay(run: Run) -> float | None:
    """By how much more (bytes) the runtime's stacks take after the drain, when collections have
    settled them, than before the first connect; None where that is not known.

    Go frees stacks at collections, and keeps some for its next threads: with no goroutine that
    stayed up to a sixth of what 450 connections had added.
    """
    rise = _StaysOfRise.of(run, metrics.RUNTIME_STACKS_BYTES)
    return None if rise is None else rise.stays


class ThreadsStay(NamedTuple):
    """Threads of the runtime that are there after the drain beyond those before the first connect,
    and their stacks; None: none. ``goroutines``: None where the page does not count them.
    """

    stacks_bytes: float | None
    goroutines: int | None


NO_THREADS = ThreadsStay(None, None)


def threads_stay(run: Run) -> ThreadsStay | None:
    """The threads that no connection needs any more; None where it is not certain that there are
    some: their number says so, or without it stacks that are more than the runtime keeps.
    """
    stacks = _StaysOfRise.of(run, metrics.RUNTIME_STACKS_BYTES)
    if stacks is None or stacks.stays <= PART * stacks.added:
        return None
    goroutines = _StaysOfRise.of(run, metrics.RUNTIME_GOROUTINES)
    if goroutines is None:
        if stacks.stays <= HALF * stacks.added:
            return None
        return ThreadsStay(stacks.stays, None)
    if goroutines.stays <= PART * goroutines.added:
        return None
    return ThreadsStay(stacks.stays, round(goroutines.stays))


class _StaysOfRise(NamedTuple):
    """By how much a number of the runtime is higher after the drain than before the first connect,
    and by how much it was at most.
    """

    stays: float
    added: float

    @classmethod
    def of(cls, run: Run, metric: str) -> _StaysOfRise | None:
        """None without a page before, or none since collections settled the heap after the
        drain.
        """
        settled = settled_reading(run, run.series(metrics.RUNTIME_FORCED_BYTES))
        pages = run.series(metric)
        before = pages.between(-math.inf, run.first_connect_s).values
        if settled is None or not before:
            return None
        after = pages.between(settled.t_s, math.inf).values
        if not after:
            return None
        usual = statistics.median(before)
        return cls(statistics.median(after) - usual, max(pages.values) - usual)
