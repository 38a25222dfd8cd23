"""Rate limits of requests, and of log lines about refusals. Pure; time is seconds."""

from __future__ import annotations

from collections import OrderedDict

_ADDRESSES = 256
# Lines about refusals: so many at once, then one in so many seconds.
_LINES, _LINE_EVERY_S = 10.0, 5.0


class Rates:
    """A token bucket for each address, of ``burst`` requests, filled with ``per_s``; for the last addresses seen."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, address: str, now_s: float) -> bool:
        left, then_s = self._buckets.pop(address, (self._burst, now_s))
        left = min(self._burst, left + self._per_s * max(0.0, now_s - then_s))
        allowed = left >= 1.0
        self._buckets[address] = (left - allowed, now_s)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class Refusals:
    """Log lines about refusals, rate-limited; those left out are counted."""

    def __init__(self) -> None:
        self._rate, self._unsaid = Rates(1.0 / _LINE_EVERY_S, _LINES), 0

    def line(self, address: str, why: str, now_s: float) -> str | None:
        if not self._rate.allow("", now_s):
            self._unsaid += 1
            return None
        unsaid, self._unsaid = self._unsaid, 0
        return f"refused {address}: {why}" + (f" (and {unsaid:,} more since the last line)" if unsaid else "")
