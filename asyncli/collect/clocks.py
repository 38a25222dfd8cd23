"""Detects a suspended machine, a stepped wall clock, and a hanging process; and another host's
monotonic clock against ours.

CLOCK_MONOTONIC ignores steps and stops while suspended; CLOCK_BOOTTIME includes the suspension
(clock_gettime(2)). So the boot clock's gain on the monotonic one is sleep, and the wall clock's
gain on the boot clock is a step.

Another host's clock is measured by request and answer. As in NTP (RFC 5905, 8) an exchange has four
instants: sent and returned by our clock, received and answered by theirs. The offset is the middle,
to within half of the travel time. The estimate uses the recent exchange with the smallest error,
widened by possible drift: the shortest round trip, unless it is old.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from asyncli.findings.clocks import clock_stepped, stalled, suspended
from asyncli.model.metrics import CLOCK_SUSPENDED_S
from asyncli.model.records import Finding, Sample

#: The period (s); a process that did not run for ``STALL_S`` hung.
PERIOD_S, STALL_S = 1.0, 5.0
# The least step (s): reading three clocks takes time. A slewed clock gains at most 0.1 s a second
# (chrony's 100,000 ppm).
_LEAST_S, _SLEWED = 0.5, 0.1
# A reading that takes longer (s) mixes instants and is repeated, at most so often.
_MOST_READ_S, _TRIES = 0.05, 5


class Clocks(NamedTuple):
    """Three clocks at one instant (s): since boot without and with suspensions, and since 1970."""

    monotonic_s: float
    boot_s: float
    wall_s: float


def read_clocks() -> Clocks | None:
    """The clocks now; None if this process was interrupted at each try."""
    for _ in range(_TRIES):
        monotonic_s = time.monotonic()
        clocks = Clocks(monotonic_s, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
        if time.monotonic() - monotonic_s < _MOST_READ_S:
            return clocks
    return None


class ClockWatch:
    """Compares the clocks once a second; ``clock``: the run's (s). A suspension is also a sample
    (``clock.suspended_s``).
    """

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
            await asyncio.sleep(PERIOD_S)
            self.compare()

    def compare(self) -> None:
        """Compare the clocks with the last reading."""
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
            self._on_finding(
                suspended(t_s, slept_s, _local_time(now.wall_s - slept_s), _local_time(now.wall_s))
            )
        elif awake_s >= STALL_S:
            self._on_finding(stalled("session", t_s, awake_s))
        if abs(stepped_s) >= _LEAST_S + _SLEWED * awake_s:
            self._on_finding(clock_stepped(t_s, stepped_s, _local_time(now.wall_s)))


def _local_time(wall_s: float) -> str:
    """An instant in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


# Two quartz clocks drift apart by at most so much (s/s): each is within 50 ppm.
_MOST_DRIFT = 100e-6
_MOST_EXCHANGES = 64
# A drift needs offsets at least so far apart (s): closer ones differ mostly by their errors.
_APART_S = 10.0


class Exchange(NamedTuple):
    """A request and its answer: sent by our clock, received and answered by theirs, returned by
    ours.
    """

    sent_s: float
    received_s: float
    answered_s: float
    returned_s: float

    @property
    def offset_s(self) -> float:
        return ((self.received_s - self.sent_s) + (self.answered_s - self.returned_s)) / 2

    def error_s(self, now_s: float) -> float:
        """The offset's error at ``now_s`` of our clock."""
        travel_s = max(0.0, (self.returned_s - self.sent_s) - (self.answered_s - self.received_s))
        return travel_s / 2 + _MOST_DRIFT * max(0.0, now_s - self.returned_s)


class Offset(NamedTuple):
    """Their clock minus ours, and its error."""

    offset_s: float
    error_s: float


class ClockOffset:
    """The offset and drift of another host's clock, from exchanges."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=_MOST_EXCHANGES)
        self._first: tuple[float, Offset] | None = None
        self._last: tuple[float, Offset] | None = None

    def add(self, exchange: Exchange) -> None:
        """Add an exchange. If it contradicts the others, a clock stopped (a suspension, a reboot),
        and they are dropped.
        """
        now_s = exchange.returned_s
        best = self.now(now_s)
        if (
            best is not None
            and abs(exchange.offset_s - best.offset_s) > exchange.error_s(now_s) + best.error_s
        ):
            self._exchanges.clear()
            self._first = None
        self._exchanges.append(exchange)
        self._last = (now_s, self._best(now_s))
        self._first = self._first or self._last

    def now(self, now_s: float) -> Offset | None:
        """The offset at ``now_s``; None before the first exchange."""
        return self._best(now_s) if self._exchanges else None

    def _best(self, now_s: float) -> Offset:
        best = min(self._exchanges, key=lambda one: one.error_s(now_s))
        return Offset(best.offset_s, best.error_s(now_s))

    @property
    def drift(self) -> tuple[float, float] | None:
        """Their clock's drift (s/s) and its error; None while unknown."""
        if self._first is None or self._last is None or self._last[0] - self._first[0] < _APART_S:
            return None
        (then_s, then), (now_s, now) = self._first, self._last
        return (now.offset_s - then.offset_s) / (now_s - then_s), (now.error_s + then.error_s) / (
            now_s - then_s
        )
