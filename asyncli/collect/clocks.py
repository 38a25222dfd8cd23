"""Detects a suspended machine, a stepped wall clock, and a hanging process.

CLOCK_MONOTONIC ignores steps and stops while suspended; CLOCK_BOOTTIME goes on then (clock_gettime(2)). So the boot clock's gain
on the monotonic one is sleep, and the wall clock's gain on the boot clock is a step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from asyncli.findings.host import clock_stepped, stalled, suspended
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
