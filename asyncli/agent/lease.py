"""Access to an agent: one session at a time, by a lease that expires without renewal; and rate
limits. Pure; times in seconds.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable

from asyncli.agent.wire import LEASE_S


class Lease:
    """A lease for one holder; ``draw`` returns unguessable tokens."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._token = ""
        self._until_s = float("-inf")
        #: The holder's name.
        self.holder = ""

    def take(self, holder: str, now_s: float) -> str | None:
        """A new token for ``holder``; None while another session has the lease."""
        if self._token and now_s < self._until_s:
            return None
        self._token = self._draw()
        self.holder = holder
        self._until_s = now_s + LEASE_S
        return self._token

    def renew(self, token: str, now_s: float) -> bool:
        """Extend the lease of ``token``, even an expired one if no other session took it. False for
        another token.
        """
        if not self.matches(token):
            return False
        self._until_s = now_s + LEASE_S
        return True

    def matches(self, token: str) -> bool:
        """Whether ``token`` is the last holder's."""
        return bool(self._token) and equal_secrets(token, self._token)

    def release(self, token: str) -> bool:
        if not self.matches(token):
            return False
        self._token = self.holder = ""
        return True

    def held(self, now_s: float) -> bool:
        return bool(self._token) and now_s < self._until_s


def equal_secrets(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape")
    )


_ADDRESSES = 256
# Log lines about refusals: so many at once, then one in so many seconds.
_LINES = 10.0
_LINE_EVERY_S = 5.0


class Rates:
    """A token bucket for each recent address: ``burst`` requests, refilled with ``per_s`` a
    second.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, address: str, now_s: float) -> bool:
        left, then_s = self._buckets.pop(address, (self._burst, now_s))
        left = min(self._burst, left + self._per_s * max(0.0, now_s - then_s))
        is_allowed = left >= 1.0
        self._buckets[address] = (left - is_allowed, now_s)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return is_allowed


class Refusals:
    """Log lines about refusals, rate-limited; suppressed lines are counted."""

    def __init__(self) -> None:
        self._rate = Rates(1.0 / _LINE_EVERY_S, _LINES)
        self._suppressed = 0

    def line(self, address: str, why: str, now_s: float) -> str | None:
        if not self._rate.allow("", now_s):
            self._suppressed += 1
            return None
        suppressed = self._suppressed
        self._suppressed = 0
        if not suppressed:
            return f"refused {address}: {why}"
        return f"refused {address}: {why} (and {suppressed:,} more since the last line)"
