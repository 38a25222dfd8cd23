"""Detects a suspended machine, a stepped wall clock, and a hanging process; and another host's monotonic clock against ours.

CLOCK_MONOTONIC ignores steps and stops while suspended; CLOCK_BOOTTIME goes on then (clock_gettime(2)). So the boot clock's gain
on the monotonic one is sleep, and the wall clock's gain on the boot clock is a step.

Another host's clock is known from questions and answers. As in NTP (RFC 5905, 8) an exchange has four instants: asked and got by
our clock, heard and said by theirs. The offset is the middle, to within half of the travel time. Of the last exchanges the one
with the tightest bound, widened by possible drift, counts: so the least round trip decides, and a drift is followed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from asyncli.findings.clocks import clock_stepped, stalled, suspended
from asyncli.metrics import CLOCK_SUSPENDED_S
from asyncli.records import Finding, Sample

#: The period (s); after ``STILL_S`` without a turn the process hung.
EVERY_S, STILL_S = 1.0, 5.0
# The least step: reading three clocks takes time. A slewed clock gains at most 0.1 s a second (chrony's 100,000 ppm).
_LEAST_S, _SLEWED = 0.5, 0.1
# Slower readings (s) are of different instants; so many tries.
_AT_ONCE_S, _TRIES = 0.05, 5


class Clocks(NamedTuple):
    """Three clocks at one instant (s): since the start without sleep, with it, and since 1970."""

    monotonic_s: float
    boot_s: float
    wall_s: float


def read_clocks() -> Clocks | None:
    """The clocks now; None where this process was interrupted each time."""
    for _ in range(_TRIES):
        monotonic_s = time.monotonic()
        clocks = Clocks(monotonic_s, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
        if time.monotonic() - monotonic_s < _AT_ONCE_S:
            return clocks
    return None


class ClockWatch:
    """Compares the clocks once a second; ``clock`` is the run's own (s). A suspension is a sample too (``clock.suspended_s``)."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        on_sample: Callable[[Sample], None],
        on_finding: Callable[[Finding], None],
        read: Callable[[], Clocks | None] = read_clocks,
    ) -> None:
        self._clock, self._read = clock, read
        self._on_sample, self._on_finding = on_sample, on_finding
        self._last = read()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Compare the clocks with those of the last look."""
        now = self._read()
        if now is None:
            return
        before, self._last = self._last, now
        if before is None:
            return
        t_s = self._clock()
        awake_s = now.monotonic_s - before.monotonic_s
        slept_s = now.boot_s - before.boot_s - awake_s
        stepped_s = now.wall_s - before.wall_s - awake_s - slept_s
        if slept_s >= _LEAST_S:
            self._on_sample(Sample(t_s, {CLOCK_SUSPENDED_S: slept_s}))
            self._on_finding(suspended(t_s, slept_s, _wall(now.wall_s - slept_s), _wall(now.wall_s)))
        elif awake_s >= STILL_S:
            self._on_finding(stalled("session", t_s, awake_s))
        if abs(stepped_s) >= _LEAST_S + _SLEWED * awake_s:
            self._on_finding(clock_stepped(t_s, stepped_s, _wall(now.wall_s)))


def _wall(wall_s: float) -> str:
    """An instant in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


# Two quartz clocks drift apart by at most so much (s/s): each is held to 50 ppm.
_PART = 100e-6
_KEPT = 64
# A drift is computed from offsets so far apart (s): nearer ones differ by their errors.
_APART_S = 10.0


class Exchange(NamedTuple):
    """A question and its answer: by our clock, by theirs, by theirs, by ours."""

    asked_s: float
    heard_s: float
    said_s: float
    got_s: float

    @property
    def offset_s(self) -> float:
        return ((self.heard_s - self.asked_s) + (self.said_s - self.got_s)) / 2

    def error_s(self, now_s: float) -> float:
        """The offset's error at ``now_s`` of our clock."""
        on_the_way = max(0.0, (self.got_s - self.asked_s) - (self.said_s - self.heard_s))
        return on_the_way / 2 + _PART * max(0.0, now_s - self.got_s)


class Offset(NamedTuple):
    """Their clock less ours, and its error."""

    offset_s: float
    error_s: float


class ClockOffset:
    """Follows the other clock through exchanges."""

    def __init__(self) -> None:
        self._kept: deque[Exchange] = deque(maxlen=_KEPT)
        self._first: tuple[float, Offset] | None = None
        self._last: tuple[float, Offset] | None = None

    def heard(self, exchange: Exchange) -> None:
        """Add an exchange; one that contradicts the others shows that a clock stopped (a suspension, a reboot)."""
        now_s = exchange.got_s
        best = self.now(now_s)
        if best is not None and abs(exchange.offset_s - best.offset_s) > exchange.error_s(now_s) + best.error_s:
            self._kept.clear()
            self._first = None
        self._kept.append(exchange)
        self._last = (now_s, self._best(now_s))
        self._first = self._first or self._last

    def now(self, now_s: float) -> Offset | None:
        """The offset at ``now_s``; None before the first exchange."""
        return self._best(now_s) if self._kept else None

    def _best(self, now_s: float) -> Offset:
        best = min(self._kept, key=lambda one: one.error_s(now_s))
        return Offset(best.offset_s, best.error_s(now_s))

    @property
    def drift(self) -> tuple[float, float] | None:
        """Their clock's drift (s/s) and its error; None while unknown."""
        if self._first is None or self._last is None or self._last[0] - self._first[0] < _APART_S:
            return None
        (then_s, then), (now_s, now) = self._first, self._last
        return (now.offset_s - then.offset_s) / (now_s - then_s), (now.error_s + then.error_s) / (now_s - then_s)
