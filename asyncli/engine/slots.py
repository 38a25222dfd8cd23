"""A bench worker's slots: each stands for one connection at a time, and knows when to connect next, and to which address."""

from __future__ import annotations

from heapq import heappop, heappush

from asyncli.core.heartbeat import backoff_s
from asyncli.engine.shard import LoadShard


class Slots:
    """The slots of worker ``worker``. ``waiting``: they connect by themselves, from the start."""

    def __init__(self, shard: LoadShard, worker: int, waiting: bool) -> None:
        self._shard = shard
        there = shard.destinations
        numbers = range(worker, shard.connections, shard.workers)
        #: By slot: its destination, and how often in turn it could not connect, or came to nothing.
        self.place = [number % len(there) for number in numbers]
        self.retries = bytearray(len(numbers))
        # Those without a connection, by when to connect.
        self._due: list[tuple[float, int]] = [(0.0, slot) for slot in range(len(numbers))] if waiting else []
        #: By destination: whether it ever let one connect.
        self.proven = [False] * len(there)
        self._mates = [[number for number, other in enumerate(there) if other.target == one.target] for one in there]
        self._refusing: set[int] = set()
        # While an attempt to connect goes on from one address of a name to the next: how many it has tried.
        self._tried: dict[int, int] = {}
        #: Connects begun in all; of them an attempt counts once.
        self.connects = self._told = 0

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def pop(self) -> int:
        """The slot that is due first."""
        return heappop(self._due)[1]

    def connect_at(self, slot: int, instant: float) -> None:
        heappush(self._due, (instant, slot))

    def begin(self, slot: int) -> int:
        """A connect begins: its number."""
        self.connects += 1
        if slot in self._tried:
            self._told += 1  # an attempt that goes on is counted already
        return self.connects

    def take_started(self) -> int:
        """How many attempts have begun since the last call."""
        started, self._told = self.connects - self._told, self.connects
        return started

    def established(self, slot: int) -> None:
        self.proven[self.place[slot]] = True
        if self._tried:
            self._tried.pop(slot, None)

    def failed(self, slot: int, reached: bool, now: float) -> bool:
        """A connect failed, or, not ``reached``, on this side: the slot tries the next address of the same name.

        False: at once, since this one never let one connect. True: the attempt has failed, and another comes after a while.
        """
        place = self.place[slot]
        mates = self._mates[place]
        tried = self._tried.pop(slot, 0) + 1
        if len(mates) > 1:
            proven = [one for one in mates if self.proven[one] and one != place]
            self.place[slot] = proven[slot % len(proven)] if proven else mates[(mates.index(place) + 1) % len(mates)]
            if not self.proven[place] and reached:
                self._refusing.add(place)
                if tried < len(mates):
                    self._tried[slot] = tried
                    self.connect_at(slot, now)
                    return False
        self.back_off(slot, now)
        return True

    def back_off(self, slot: int, now: float) -> None:
        """Connect after a while."""
        self.retries[slot] = min(255, self.retries[slot] + 1)
        wait_s = backoff_s(self._shard.seed, slot, self.connects, self.retries[slot])
        # Shorter than the time after which no connection ends the bench: who does not try cannot know.
        self.connect_at(slot, now + min(wait_s, self._shard.connect_timeout_s / 4))

    def dropped(self) -> list[int]:
        """Destinations that only refused while another of their name let one connect."""
        return [
            place for place in self._refusing if not self.proven[place] and any(self.proven[one] for one in self._mates[place])
        ]

    def patience_s(self, sweep_s: float) -> float:
        """For how long nobody may be connected before the bench gives up."""
        # An attempt that goes on from an address that leads nowhere has as long for each of its name.
        one_s = self._shard.connect_timeout_s
        return max(map(len, self._mates)) * (one_s + sweep_s) if self._tried else one_s
