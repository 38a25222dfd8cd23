"""Another host's monotonic clock against ours, from questions and answers. Pure; seconds throughout.

As in NTP (RFC 5905, 8) an exchange has four instants: asked and got by our clock, heard and said by theirs. The offset is the
middle, to within half of the travel time. Of the last exchanges the one with the tightest bound, widened by possible drift,
counts: so the least round trip decides, and a drift is followed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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
