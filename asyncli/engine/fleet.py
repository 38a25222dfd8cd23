"""A fleet is one generator on several hosts. Assigns workers to hosts, reassigns those of a lost
host, and merges ticks. Pure.

Workers are numbered across the fleet and batch j is opened by worker j mod n, on whichever host
that is. So the schedule does not depend on the hosts, and a host's share follows from its workers'
numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from asyncli.engine.spread import CONNECTIONS_WORTH_A_PROCESS, share
from asyncli.engine.ticks import away_by_event, count_away_as_lost, without_held
from asyncli.model.records import Deaths, Tick

# A host process waits 0.7 s for a slow worker (host.PATIENCE_S); the network adds to that. The
# counts of a later tick are added to the next second, so none are lost.
PATIENCE_S = 1.2
# Each worker is a process, so at most this many times the fewest possible: then shares are even to
# within a few per cent.
_FINEST = 16


class Room(msgspec.Struct, frozen=True):
    """The capacity of a host: ``connections`` in all, ``of_a_worker`` in one process, and its
    ``cpus``.
    """

    connections: int
    of_a_worker: int
    cpus: int


def assign(
    connections: int, batch: int, rooms: Sequence[Room], workers: int | None = None
) -> list[tuple[int, ...]] | None:
    """The numbers of each host's workers: shares as even as the rooms allow. None if the hosts
    cannot hold all connections.

    ``workers``: their exact number; None: as few as descriptors and CPUs require, and at least one
    a host.
    """
    if workers is not None:
        return _assign(connections, batch, rooms, workers)
    hosts = len(rooms)
    if sum(room.connections for room in rooms) < connections:
        return None
    forced = -(-connections // max(1, min(room.of_a_worker for room in rooms)))
    wanted = min(sum(room.cpus for room in rooms), -(-connections // CONNECTIONS_WORTH_A_PROCESS))
    fewest = max(1, -(-max(forced, wanted) // hosts))
    # Whole rounds, so that equal hosts have equal shares.
    for rounds in range(fewest, fewest * _FINEST + 1):
        if (assigned := _assign(connections, batch, rooms, rounds * hosts)) is not None:
            return assigned
    return None


def _assign(
    connections: int, batch: int, rooms: Sequence[Room], workers: int
) -> list[tuple[int, ...]] | None:
    assigned: list[list[int]] = [[] for _ in rooms]
    held = [0] * len(rooms)
    for number in range(workers):
        needed = share(connections, batch, workers, number)
        fits = [
            host
            for host, room in enumerate(rooms)
            if held[host] + needed <= room.connections and needed <= room.of_a_worker
        ]
        if not fits:
            return None
        # Round robin, so that successive batches are opened by different hosts.
        host = min(fits, key=lambda host: (len(assigned[host]), host))
        assigned[host].append(number)
        held[host] += needed
    return [tuple(numbers) for numbers in assigned]


def held_by(connections: int, batch: int, workers: int, numbers: Sequence[int]) -> int:
    """The number of connections that the workers ``numbers`` of ``workers`` open."""
    return sum(share(connections, batch, workers, number) for number in numbers)


def take_over(
    connections: int, batch: int, workers: int, numbers: Sequence[int], free: Mapping[str, Room]
) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Assign the workers of a lost host to hosts with ``free`` room: their numbers by host, and
    those without a host.
    """
    left = {name: room.connections for name, room in free.items()}
    taken: dict[str, list[int]] = {}
    over: list[int] = []
    for number in numbers:
        needed = share(connections, batch, workers, number)
        fits = [
            name
            for name, room in free.items()
            if needed <= left[name] and needed <= room.of_a_worker
        ]
        host = max(fits, key=lambda name: left[name], default=None)
        if host is None:
            over.append(number)
            continue
        left[host] -= needed
        taken.setdefault(host, []).append(number)
    return {host: tuple(numbers) for host, numbers in taken.items()}, tuple(over)


class _Source:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.last = Tick()
        #: By the number of an event of the plan: whom it ended there, and who is not back yet.
        self.away: Counter[int] = Counter()
        self.coming: dict[int, Tick] = {}
        self.silent = False


class TickMerger:
    """Merges the ticks of the hosts into one a second, as a host process does with its workers'
    ticks.
    """

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._sent = 0
        self._carried = Tick()
        self._spent = Tick()
        # Lost workers without a replacement: they count as ramped and drained.
        self._gone = 0

    def join(self, host: str, workers: int) -> None:
        """Add ``workers`` workers of ``host``."""
        self._sources.setdefault(host, _Source(0)).workers += workers

    def held(self, host: str) -> int:
        """The connections that ``host`` held by its last tick."""
        source = self._sources[host]
        return (source.coming[max(source.coming)] if source.coming else source.last).held

    def add(self, host: str, tick: Tick) -> None:
        """Add a tick of ``host``; a late one counts for the next second."""
        source = self._sources[host]
        second = max(tick.second, self._sent + 1)
        if (before := source.coming.get(second)) is not None:
            tick.merge_counts(before)
        source.coming[second] = tick

    def set_silent(self, host: str, silent: bool) -> None:
        """A silent host's connections are not counted as held."""
        self._sources[host].silent = silent

    def lose(self, host: str, held: int = 0, awaiting: int = 0) -> int:
        """Remove a lost host and count its connections as the generator's loss; returns how many it
        held.

        ``held``, ``awaiting``: of its silent workers, which are not in its gauges.
        """
        source = self._sources.pop(host)
        for second in sorted(source.coming):
            self._carried.merge_counts(source.coming[second])
            source.last = source.coming[second]
            source.away.update(away_by_event(source.last))
        last = source.last
        held += last.held
        awaiting += last.awaiting
        # As in host.py: once the drain has begun, only unanswered connections are lost.
        lost = awaiting if last.held_at_drain else held
        if lost:
            self._carried.deaths.setdefault("generator_lost", Deaths()).count += lost
        self._carried.unanswered += awaiting if last.held_at_drain else 0
        self._carried.beats_failed += awaiting
        self._carried.coming_back_lost += last.coming_back
        count_away_as_lost(self._carried, source.away)
        self._spent.held_at_drain += last.held_at_drain
        self._spent.cpu_user_s += last.cpu_user_s
        self._spent.cpu_system_s += last.cpu_system_s
        self._gone += source.workers
        return held

    def mark_unopened(self) -> None:
        """Report a loss, even of 0 connections: no host opens the share of a lost one."""
        self._carried.deaths.setdefault("generator_lost", Deaths())

    def replaced(self, workers: int) -> None:
        """Other hosts run this many of the lost workers."""
        self._gone -= workers

    def due(self, elapsed_s: float) -> list[Tick]:
        """The ticks of the seconds that are complete or overdue ``elapsed_s`` after T0, in order,
        without a gap.
        """
        ready: list[Tick] = []
        while self._whole(self._sent + 1) or elapsed_s >= self._sent + 1 + PATIENCE_S:
            self._sent += 1
            ready.append(self._close(self._sent))
        return ready

    def rest(self) -> Tick:
        """The last tick: what has come and was not due yet."""
        self._sent = (
            max(
                [
                    self._sent,
                    *(second for source in self._sources.values() for second in source.coming),
                ]
            )
            + 1
        )
        return self._close(self._sent)

    def _whole(self, second: int) -> bool:
        waited = [
            source for source in self._sources.values() if source.workers and not source.silent
        ]
        return bool(waited) and all(max(source.coming, default=0) >= second for source in waited)

    def _close(self, second: int) -> Tick:
        whole, self._carried = self._carried, Tick()
        whole.second = second
        for source in self._sources.values():
            for received in sorted(source.coming):
                if received <= second:
                    source.last = source.coming.pop(received)
                    source.away.update(away_by_event(source.last))
                    whole.merge_counts(source.last)
            whole.merge_gauges(without_held(source.last) if source.silent else source.last)
        whole.merge_gauges(self._spent)
        whole.ramped += self._gone
        whole.drained += self._gone
        return whole
