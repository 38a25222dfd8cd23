"""Whom an event of a soak concerns, and when each of them comes back. Pure arithmetic of the seed,
the event's number and the connection's number: the same for any number of workers and hosts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncli.core.heartbeat import fraction

_GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
# Salts, so that a choice or a wait does not repeat the jitter of the heartbeat with that number.
_CHOICE_SALT = 0x3C6EF372FE94F82B
_RETURN_SALT = 0x510E527FADE682D1
# A connect that fails at once and is tried again at once would fill a CPU with attempts.
_SHORTEST_RETRY_S = 0.1
# Of a backoff: each wait is spread by so much around its middle.
_BACKOFF_SPREAD = 0.5
_MOST_DOUBLINGS = 32


class Choice(msgspec.Struct, frozen=True):
    """Some of ``connections``, by their numbers from 0, spread evenly over them.

    A connection's rank is ``(number + offset) * stride`` modulo their number: with a stride that
    shares no divisor with it, each rank comes once, so that the count is exact. ``spans``: the
    ranks of the chosen, each span from its first to before its last number.
    """

    connections: int
    stride: int
    offset: int
    spans: tuple[tuple[int, int], ...]

    def __contains__(self, connection: object) -> bool:
        assert isinstance(connection, int)
        rank = self.rank(connection)
        return any(first <= rank < end for first, end in self.spans)

    @property
    def count(self) -> int:
        """How many are chosen."""
        return sum(end - first for first, end in self.spans)

    def rank(self, connection: int) -> int:
        """Its place among all, from 0."""
        return (connection + self.offset) * self.stride % self.connections


def choose(seed: int, event: int, connections: int, share: float) -> Choice:
    """Whom event number ``event`` concerns if it is alone: ``share`` (0 to 1) of the
    connections.
    """
    offset = int(fraction(seed ^ _CHOICE_SALT, event, 0) * connections)
    count = math.floor(share * connections + 0.5)
    return Choice(connections, _stride(connections), offset, ((0, count),))


class Turns:
    """Chooses for one event after the other, all in one order of the connections: each event has
    those whose turn is next, so that two events meet only once all had their turn.
    """

    def __init__(self, seed: int, connections: int) -> None:
        self._order = choose(seed, 1, connections, 0.0)
        self._next = 0

    def take(self, share: float, away: Sequence[Choice]) -> Choice:
        """``share`` (0 to 1) of the connections. Those in ``away`` have their turn last."""
        missing = math.floor(share * self._order.connections + 0.5)
        free, others = self._parts(away)
        spans = []
        for first, end in (*free, *others):
            count = min(missing, end - first)
            if not count:
                continue
            missing -= count
            spans.append((first, first + count))
        if spans:
            _, self._next = spans[-1]
        return msgspec.structs.replace(self._order, spans=tuple(spans))

    def _parts(self, away: Sequence[Choice]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The ranks of those who are not away, and of the others, from the next turn on."""
        taken = [span for choice in away for span in choice.spans]
        edges = {0, self._next, self._order.connections}
        for span in taken:
            edges.update(span)
        free = []
        others = []
        for first, end in _in_turn(sorted(edges), self._next):
            if any(low <= first < high for low, high in taken):
                others.append((first, end))
            else:
                free.append((first, end))
        return free, others


def _in_turn(edges: list[int], begin: int) -> list[tuple[int, int]]:
    """The parts between edges, those from ``begin`` on before the others."""
    parts = list(itertools.pairwise(edges))
    later = [part for part in parts if part[0] >= begin]
    return later + parts[: len(parts) - len(later)]


def _stride(connections: int) -> int:
    """A number near connections / golden ratio that shares no divisor with ``connections``: its
    multiples are spread evenly.
    """
    middle = max(1, round(connections / _GOLDEN_RATIO))
    for away in range(connections):
        for stride in (middle + away, middle - away):
            if stride > 0 and math.gcd(stride, connections) == 1:
                return stride
    return 1


class Reconnect(msgspec.Struct, frozen=True):
    """How clients come back. Times in seconds.

    ``now``: at once. ``jitter``: uniform within ``longest_s``. ``fixed``: after ``first_s``.
    ``backoff``: ``first_s``, doubled with each failed attempt up to ``longest_s``, each spread by
    half around it.
    """

    how: Literal["now", "jitter", "backoff", "fixed"] = "backoff"
    first_s: float = 0.5
    longest_s: float = 30.0

    @property
    def soonest_s(self) -> float:
        """How soon after its end a client may connect for the first time (s)."""
        if self.how == "fixed":
            return self.first_s
        if self.how == "backoff":
            return (1 - _BACKOFF_SPREAD) * self.first_s
        return 0.0

    @property
    def spread_s(self) -> float:
        """Within how long clients that were ended at one instant connect for the first time (s)."""
        if self.how == "jitter":
            return self.longest_s
        if self.how == "backoff":
            return 2 * _BACKOFF_SPREAD * self.first_s
        return 0.0

    @property
    def longest_wait_s(self) -> float:
        """The longest that a client waits between an attempt that failed and the next one (s)."""
        wait_s = {"now": 0.0, "fixed": self.first_s}.get(self.how, self.longest_s)
        if self.how == "backoff":
            wait_s *= 1 + _BACKOFF_SPREAD
        return max(wait_s, _SHORTEST_RETRY_S)

    def wait_s(self, seed: int, event: int, connection: int, failed: int) -> float:
        """How long a client waits before it connects after ``failed`` failed attempts."""
        wait_s = self._middle_s(failed)
        if self.how == "jitter":
            wait_s *= self._chance(seed, event, connection, failed)
        if self.how == "backoff":
            spread = 2 * self._chance(seed, event, connection, failed) - 1
            wait_s *= 1 + _BACKOFF_SPREAD * spread
        if failed:
            return max(wait_s, _SHORTEST_RETRY_S)
        return wait_s

    def _middle_s(self, failed: int) -> float:
        if self.how == "now":
            return 0.0
        if self.how == "jitter":
            return self.longest_s
        if self.how == "fixed":
            return self.first_s
        return min(self.longest_s, self.first_s * 2.0 ** min(failed, _MOST_DOUBLINGS))

    def _chance(self, seed: int, event: int, connection: int, failed: int) -> float:
        return fraction(seed ^ _RETURN_SALT, connection, event << 12 | min(failed, 4095))
