"""A fleet: one generator on several hosts. Who opens what, who takes over from a lost host, and how ticks become one. Pure.

Workers are numbered through the fleet and batch j is opened by worker j mod n, wherever that worker lives; so the schedule is
the same whatever the hosts are, and what a host holds is what its workers' numbers say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from asyncli.engine.spread import CONNECTIONS_WORTH_A_PROCESS, share
from asyncli.records import Deaths, Tick

# A host process gives a slow worker 0.7 s (host.PATIENCE_S); what its tick then takes to travel comes on top. A later tick's
# counts join the next second, so nothing is lost.
PATIENCE_S = 1.2
# Each worker more is a process more, so no more than this many times the fewest: shares are then even to within a few per cent.
_FINEST = 16


class Room(msgspec.Struct, frozen=True):
    """What one host can take: ``connections`` in all, ``of_a_worker`` in one process, ``cpus`` to run them on."""

    connections: int
    of_a_worker: int
    cpus: int


def assign(connections: int, batch: int, rooms: Sequence[Room], workers: int | None = None) -> list[tuple[int, ...]] | None:
    """The numbers of each host's workers: shares as even as the rooms allow. None where the hosts cannot hold them all.

    ``workers``: so many in all, no more and no less; None: as few as descriptors and CPUs ask for, and at least one a host.
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


def _assign(connections: int, batch: int, rooms: Sequence[Room], workers: int) -> list[tuple[int, ...]] | None:
    assigned: list[list[int]] = [[] for _ in rooms]
    held = [0] * len(rooms)
    for number in range(workers):
        more = share(connections, batch, workers, number)
        fits = [host for host, room in enumerate(rooms) if held[host] + more <= room.connections and more <= room.of_a_worker]
        if not fits:
            return None
        # In turn, so that batches that follow each other are opened by different hosts.
        host = min(fits, key=lambda host: (len(assigned[host]), host))
        assigned[host].append(number)
        held[host] += more
    return [tuple(hand) for hand in assigned]


def held_by(connections: int, batch: int, workers: int, numbers: Sequence[int]) -> int:
    """How many connections these of the fleet's ``workers`` open."""
    return sum(share(connections, batch, workers, number) for number in numbers)


def take_over(
    connections: int, batch: int, workers: int, numbers: Sequence[int], free: Mapping[str, Room]
) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Who of those with ``free`` room opens a lost host's share again: numbers by host, and those that nobody has room for."""
    left = {name: room.connections for name, room in free.items()}
    taken: dict[str, list[int]] = {}
    over: list[int] = []
    for number in numbers:
        more = share(connections, batch, workers, number)
        fits = [name for name, room in free.items() if more <= left[name] and more <= room.of_a_worker]
        host = max(fits, key=lambda name: left[name], default=None)
        if host is None:
            over.append(number)
            continue
        left[host] -= more
        taken.setdefault(host, []).append(number)
    return {host: tuple(theirs) for host, theirs in taken.items()}, tuple(over)


class _Source:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.last = Tick()
        self.coming: dict[int, Tick] = {}
        self.silent = False


class TickMerger:
    """Makes one tick a second of those that come from the hosts, as a host process does of its workers'."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._sent = 0
        self._carried = Tick()
        self._spent = Tick()
        # Workers that are no more and that nobody stands in for: they keep nobody waiting.
        self._gone = 0

    def join(self, host: str, workers: int) -> None:
        """``host`` has so many workers more."""
        self._sources.setdefault(host, _Source(0)).workers += workers

    def held(self, host: str) -> int:
        """What ``host`` held by its last tick."""
        source = self._sources[host]
        return (source.coming[max(source.coming)] if source.coming else source.last).held

    def heard(self, host: str, tick: Tick) -> None:
        """A second of ``host``'s workers; counts of one that is over join the next."""
        source = self._sources[host]
        second = max(tick.second, self._sent + 1)
        if (before := source.coming.get(second)) is not None:
            tick.merge_counts(before)
        source.coming[second] = tick

    def silence(self, host: str, silent: bool) -> None:
        """Nobody vouches for what ``host`` holds, or it speaks again."""
        self._sources[host].silent = silent

    def lose(self, host: str, held: int = 0, awaiting: int = 0) -> int:
        """``host`` is gone, and what it held is the generator's loss: how many that were.

        ``held``, ``awaiting``: of workers that were silent there, which are not in its gauges.
        """
        source = self._sources.pop(host)
        for second in sorted(source.coming):
            self._carried.merge_counts(source.coming[second])
            source.last = source.coming[second]
        last = source.last
        held += last.held
        awaiting += last.awaiting
        # As a host process has it: of what was counted when the drain began only those are lost that owe an answer.
        lost = awaiting if last.held_at_drain else held
        if lost:
            self._carried.deaths.setdefault("generator_lost", Deaths()).count += lost
        self._carried.unanswered += awaiting if last.held_at_drain else 0
        self._carried.beats_failed += awaiting
        self._spent.held_at_drain += last.held_at_drain
        self._spent.cpu_user_s += last.cpu_user_s
        self._spent.cpu_system_s += last.cpu_system_s
        self._gone += source.workers
        return held

    def unopened(self) -> None:
        """The share of a lost host is nobody's: named with a count of 0 too."""
        self._carried.deaths.setdefault("generator_lost", Deaths())

    def taken(self, workers: int) -> None:
        """Others stand in for so many of the lost."""
        self._gone -= workers

    def due(self, elapsed_s: float) -> list[Tick]:
        """The seconds that are whole, or overdue, ``elapsed_s`` after T0; one tick each, in order, and none left out."""
        ready: list[Tick] = []
        while self._whole(self._sent + 1) or elapsed_s >= self._sent + 1 + PATIENCE_S:
            self._sent += 1
            ready.append(self._close(self._sent))
        return ready

    def rest(self) -> Tick:
        """What has come and was not due yet, as the last tick."""
        self._sent = max([self._sent, *(second for source in self._sources.values() for second in source.coming)]) + 1
        return self._close(self._sent)

    def _whole(self, second: int) -> bool:
        waited = [source for source in self._sources.values() if source.workers and not source.silent]
        return bool(waited) and all(max(source.coming, default=0) >= second for source in waited)

    def _close(self, second: int) -> Tick:
        whole, self._carried = self._carried, Tick()
        whole.second = second
        for source in self._sources.values():
            for one in sorted(source.coming):
                if one <= second:
                    source.last = source.coming.pop(one)
                    whole.merge_counts(source.last)
            whole.merge_gauges(_unknown(source.last) if source.silent else source.last)
        whole.merge_gauges(self._spent)
        whole.ramped += self._gone
        whole.drained += self._gone
        return whole


def _unknown(last: Tick) -> Tick:
    return msgspec.structs.replace(last, held=0, connecting=0, awaiting=0, longest_wait_s=0.0)
