"""Chooses the destination of a row among the addresses of a host name.

An address of a name may have no listener (``localhost`` as ::1) or no route from here. So an
attempt fails, and counts as the server's failure, once every address was tried, or one that has
worked before. An address where every connect failed while another of the same name answers is
dropped; one that has worked, or the only one of its name, never is. The only one of its name is
reported when it refuses while another name's answers.
"""

from __future__ import annotations

from asyncli.engine.shard import Shard

# An address that never answered is dropped after this many failed connects, if others answer.
_REFUSALS_TO_DROP = 5


class Addresses:
    """The destinations of a table. ``most_unproven``: pending connects to an address that never
    answered, if another does.
    """

    def __init__(self, shard: Shard, most_unproven: int) -> None:
        self._shard, self._most_unproven = shard, most_unproven
        self.live = list(range(len(shard.destinations)))
        #: By destination: whether a connect ever succeeded there.
        self.proven = [False] * len(self.live)
        # Until one has: failed and pending connects.
        self._refusals = [0] * len(self.live)
        self._waiting = [0] * len(self.live)
        #: By row: where its last connect failed, and the number of addresses its attempt has tried;
        #: 0: the attempt is over.
        self.failed_at: dict[int, tuple[int, int]] = {}

    def continues(self, row: int) -> bool:
        """Whether the row's attempt continues from another address, and so is counted as started
        already.
        """
        return bool(self.failed_at) and self.failed_at.get(row, (0, 0))[1] > 0

    def choose(self, row: int, destination: int) -> int:
        """Where to connect: the row's own destination, or after a failure the next address of the
        same name.
        """
        if row in self.failed_at:
            last = self.failed_at[row][0]
            mates = self._same_name(last)
            destination = next((number for number in mates if number > last), mates[0])
        if not self.proven[destination]:
            if self._waiting[destination] >= self._most_unproven:
                proven = [number for number in self._same_name(destination) if self.proven[number]]
                destination = proven[row % len(proven)] if proven else destination
            self._waiting[destination] += 1
        return destination

    def failed(
        self, row: int, destination: int, *, reached: bool, draining: bool
    ) -> tuple[bool, bool]:
        """Record a failed connect of ``row``; not ``reached``: it failed on this side. Returns
        whether the attempt continues at another address, and whether this address is dropped or,
        the only one of its name, reported.
        """
        proven = self.proven[destination]
        if not proven:
            self._waiting[destination] -= 1
        addresses = self._shard.addresses_beside(destination)
        if addresses == 1:
            return False, self._is_reported(destination, reached=reached)
        _, tried_before = self.failed_at.get(row, (0, 0))
        tried = tried_before + 1
        refuses = reached and not proven
        continues = refuses and tried < addresses and not draining
        self.failed_at[row] = (destination, tried if continues else 0)
        is_dropped = refuses and destination in self.live and self._drop(destination)
        return continues, is_dropped

    def _is_reported(self, destination: int, *, reached: bool) -> bool:
        """Whether the only address of its name has refused for long, while others answer."""
        proven = self.proven[destination]
        if reached and not proven and any(self.proven):
            self._refusals[destination] += 1
        return not proven and self._refusals[destination] == _REFUSALS_TO_DROP

    def _drop(self, destination: int) -> bool:
        self._refusals[destination] += 1
        others_answer = any(self.proven[number] for number in self._same_name(destination))
        if self._refusals[destination] < _REFUSALS_TO_DROP or not others_answer:
            return False
        self.live.remove(destination)
        return True

    def _same_name(self, destination: int) -> list[int]:
        """The addresses of the same name that are not dropped."""
        destinations = self._shard.destinations
        return [
            number
            for number in self.live
            if destinations[number].target == destinations[destination].target
        ]
