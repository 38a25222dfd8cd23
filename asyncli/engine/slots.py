"""A bench worker's slots: each has one connection at a time, the instant of its next connect, and
its address.
"""

from __future__ import annotations

from heapq import heappop, heappush

from asyncli.core.heartbeat import backoff_s
from asyncli.engine.shard import LoadShard


class Slots:
    """The slots of worker ``worker``. ``waiting``: they all connect from the start."""

    def __init__(self, shard: LoadShard, worker: int, waiting: bool) -> None:
        self._shard, destinations = shard, shard.destinations
        numbers = range(worker, shard.connections, shard.workers)
        #: By slot: its destination, and its connections in a row that failed or served nothing.
        self.destination = [number % len(destinations) for number in numbers]
        self.retries = bytearray(len(numbers))
        # Slots without a connection, by the instant of their connect.
        self._due: list[tuple[float, int]] = (
            [(0.0, slot) for slot in range(len(numbers))] if waiting else []
        )
        #: By destination: whether a connect ever succeeded.
        self.proven = [False] * len(destinations)
        self._same_name = [
            [n for n, other in enumerate(destinations) if other.target == destination.target]
            for destination in destinations
        ]
        self._refusing: set[int] = set()
        # By slot whose attempt continues at another address of its name: the number of addresses
        # tried.
        self._tried: dict[int, int] = {}
        #: Connects begun in all, and those that take_started() has reported or that continue an
        #: attempt.
        self.connects = self._reported = 0

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def pop(self) -> int:
        """Remove and return the slot that is due first."""
        return heappop(self._due)[1]

    def connect_at(self, slot: int, instant: float) -> None:
        heappush(self._due, (instant, slot))

    def begin(self, slot: int) -> int:
        """Count a connect; returns its number."""
        self.connects += 1
        if slot in self._tried:
            self._reported += 1  # its attempt is counted already
        return self.connects

    def take_started(self) -> int:
        """The number of attempts begun since the last call."""
        started, self._reported = self.connects - self._reported, self.connects
        return started

    def established(self, slot: int) -> None:
        self.proven[self.destination[slot]] = True
        if self._tried:
            self._tried.pop(slot, None)

    def failed(self, slot: int, reached: bool, now: float) -> bool:
        """A connect failed; not ``reached``: on this side. The slot's next connect is to the next
        address of the same name.

        False: it connects at once, since no connect to this address ever succeeded. True: the
        attempt failed; back off.
        """
        destination = self.destination[slot]
        same_name = self._same_name[destination]
        tried = self._tried.pop(slot, 0) + 1
        if len(same_name) > 1:
            proven = [mate for mate in same_name if self.proven[mate] and mate != destination]
            following = same_name[(same_name.index(destination) + 1) % len(same_name)]
            self.destination[slot] = proven[slot % len(proven)] if proven else following
            if not self.proven[destination] and reached:
                self._refusing.add(destination)
                if tried < len(same_name):
                    self._tried[slot] = tried
                    self.connect_at(slot, now)
                    return False
        self.back_off(slot, now)
        return True

    def back_off(self, slot: int, now: float) -> None:
        """Schedule the slot's connect after a backoff."""
        self.retries[slot] = min(255, self.retries[slot] + 1)
        wait_s = backoff_s(self._shard.seed, slot, self.connects, self.retries[slot])
        # Shorter than the time without a connection after which the bench gives up.
        self.connect_at(slot, now + min(wait_s, self._shard.connect_timeout_s / 4))

    def dropped(self) -> list[int]:
        """Destinations that only refused, while another of their name accepted a connect."""
        return [
            refusing
            for refusing in self._refusing
            if not self.proven[refusing]
            and any(self.proven[mate] for mate in self._same_name[refusing])
        ]

    def patience_s(self, sweep_s: float) -> float:
        """How long the bench may be without a connection before it gives up."""
        # An attempt at several addresses may take the timeout at each of them.
        one_s = self._shard.connect_timeout_s
        return max(map(len, self._same_name)) * (one_s + sweep_s) if self._tried else one_s
