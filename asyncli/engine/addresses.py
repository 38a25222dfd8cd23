"""Which destination a row is opened to, of the addresses that a name has.

A name may have an address that nobody listens on (``localhost`` as ::1), or that this host has no way to. So an attempt has
failed when each address has been tried, or one that has worked before: that is the server's failure, and is counted. An address
where connects only ever failed while another of the same name answers is dropped; one that worked before is never dropped, nor a
URL of its own.
"""

from __future__ import annotations

from asyncli.engine.shard import Shard

# Failed connects to an address that never answered before it is given up for others that do.
_REFUSALS_TO_DROP = 5


class Addresses:
    """The destinations of a table. ``most_unproven`` may wait for one that never answered while another of its name does."""

    def __init__(self, shard: Shard, most_unproven: int) -> None:
        self._shard, self._most_unproven = shard, most_unproven
        self.live = list(range(len(shard.destinations)))
        #: By destination: whether a connect ever succeeded there.
        self.proven = [False] * len(self.live)
        # Until one has: how many failed, and how many wait.
        self._refusals = [0] * len(self.live)
        self._waiting = [0] * len(self.live)
        #: The destination where a row's last connect failed, and, while its attempt goes on, how many it has tried.
        self.failed_at: dict[int, tuple[int, int]] = {}

    def goes_on(self, row: int) -> bool:
        """Whether the row's attempt goes on from another address: it is counted as started already."""
        return bool(self.failed_at) and self.failed_at.get(row, (0, 0))[1] > 0

    def choose(self, row: int, destination: int) -> int:
        """Where to connect: at the row's own destination, or after a failure at the next address of the same name."""
        if row in self.failed_at:
            last = self.failed_at[row][0]
            mates = self._mates(last)
            destination = next((number for number in mates if number > last), mates[0])
        if not self.proven[destination]:
            if self._waiting[destination] >= self._most_unproven:
                proven = [number for number in self._mates(destination) if self.proven[number]]
                destination = proven[row % len(proven)] if proven else destination
            self._waiting[destination] += 1
        return destination

    def failed(self, row: int, destination: int, *, reached: bool, draining: bool) -> tuple[bool, bool]:
        """A connect of ``row`` failed there, or, not ``reached``, on this side. Whether the attempt goes on at another address,
        and whether this one is dropped.
        """
        proven, addresses = self.proven[destination], self._shard.addresses_beside(destination)
        if not proven:
            self._waiting[destination] -= 1
        if addresses == 1:
            return False, False
        tried = self.failed_at.get(row, (0, 0))[1] + 1
        goes_on = not proven and tried < addresses and reached and not draining
        self.failed_at[row] = (destination, tried if goes_on else 0)
        return goes_on, not proven and reached and destination in self.live and self._drop(destination)

    def _drop(self, destination: int) -> bool:
        self._refusals[destination] += 1
        others_answer = any(self.proven[number] for number in self._mates(destination))
        if self._refusals[destination] < _REFUSALS_TO_DROP or not others_answer:
            return False
        self.live.remove(destination)
        return True

    def _mates(self, destination: int) -> list[int]:
        """The living addresses of the same name."""
        destinations = self._shard.destinations
        return [number for number in self.live if destinations[number].target == destinations[destination].target]
