"""CPU and memory of groups of processes: the server's tree, the generator's list, this process.

There are two readings, as their costs differ: counts and CPU time from stat (a few microseconds a
process), memory from smaps_rollup, for which the kernel walks the page tables (a quarter of a
millisecond for 10 MB). Descriptors are never listed: listing /proc/PID/fd creates dentries, which
are part of the measured memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from asyncli.collect.lost_roots import Replaced
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import (
    TICKS_PER_S,
    Memory,
    Stat,
    living_stat,
    read_memory,
    read_rss,
    tree,
)
from asyncli.findings.probes import memory_unprivileged
from asyncli.model.metrics import METRICS, SESSION_CPU_S, SESSION_USS_BYTES


class ProcessesGoneError(Exception):
    """No process of the group is left."""


class CpuLedger:
    """CPU time of a changing group of processes; it never falls. Pure.

    It sums the living processes' own time and that of the children they waited for (cutime, cstime
    of proc(5)). When a worker ends and its master waits for it, the worker's whole time moves into
    the master's. If no process of the group waits for it (its parent ignores SIGCHLD, or init reaps
    it), its last value is kept; then at most one period of its time is missing.

    A process's own time is exact, its waited-for time is in ticks of 10 ms. A part kept only
    because the tick was late is subtracted when the tick comes.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], Stat] = {}
        self._kept_s = 0.0
        # By the pid of the waiting ancestor: the part of the kept time that may come again with a
        # late tick.
        self._owed_s: dict[int, float] = {}

    def update(self, living: Iterable[Stat]) -> float:
        """CPU seconds of the group, given its living processes (zombies included)."""
        now = {(stat.pid, stat.start_ticks): stat for stat in living}
        known = {
            stat.pid: stat for stat in now.values() if (stat.pid, stat.start_ticks) in self._last
        }
        ended = {key: stat for key, stat in self._last.items() if key not in now}
        seen = by_ancestor(ended, known)
        self._owed_s = {pid: owed_s for pid, owed_s in self._owed_s.items() if pid in known}
        for pid in seen.keys() | self._owed_s.keys():
            newly_s = (
                0.0
                if pid is None
                else known[pid].waited_s - self._last[pid, known[pid].start_ticks].waited_s
            )
            missing_s = seen.get(pid, 0.0) - newly_s
            if pid is not None:
                owed_s = self._owed_s.pop(pid, 0.0)
                missing_s = max(missing_s, -owed_s)
                if owed_s := min(1 / TICKS_PER_S, owed_s + missing_s):
                    self._owed_s[pid] = owed_s
            self._kept_s += missing_s
        self._last = now
        return self._kept_s + sum(stat.cpu_s + stat.waited_s for stat in now.values())


def by_ancestor(
    ended: Mapping[tuple[int, int], Stat], living: Mapping[int, Stat]
) -> dict[int | None, float]:
    """CPU seconds of the ended processes, by their nearest living ancestor, which may wait for them
    (None: none lives).
    """
    seen: dict[int | None, float] = {}
    parents_of = {stat.pid: stat.parent for stat in ended.values()}
    for stat in ended.values():
        above, steps = stat.parent, 0
        while above in parents_of and above not in living and steps < len(parents_of):
            above, steps = parents_of[above], steps + 1
        ancestor = above if above in living else None
        seen[ancestor] = seen.get(ancestor, 0.0) + stat.cpu_s + stat.waited_s
    return seen


class ProcessGroup:
    """Counts, CPU time and memory of the processes that ``members`` names at each scan.
    Blocking.
    """

    def __init__(
        self, prefix: str, members: Callable[[], Iterable[Stat]], *, may_be_empty: bool = False
    ) -> None:
        self._prefix, self._may_be_empty = prefix, may_be_empty
        self._members = members
        self._ledger = CpuLedger()
        self._living: list[Stat] = []

    @property
    def living(self) -> list[Stat]:
        """The processes of the last scan."""
        return self._living

    @property
    def pids(self) -> list[int]:
        return [stat.pid for stat in self._living]

    def scan(self) -> ProbeReading:
        """``processes``, ``stopped``, ``threads``, ``cpu_s`` of the group as it is now.

        An empty group raises :class:`ProcessesGoneError`, or gives nothing where it
        ``may_be_empty``.
        """
        self._living = []
        stats = list(self._members())
        self._living = [stat for stat in stats if not stat.ended]
        if not self._living:
            if self._may_be_empty:
                return ProbeReading()
            raise ProcessesGoneError(f"no process of the {self._prefix} is left")
        values = {
            "processes": float(len(self._living)),
            "stopped": float(sum(stat.stopped for stat in self._living)),
            "threads": float(sum(stat.threads for stat in self._living)),
            "cpu_s": self._ledger.update(stats),
        }
        return ProbeReading(self._named(values))

    def memory(self) -> ProbeReading:
        """``pss_bytes``, ``uss_bytes``, ``anon_shmem_bytes``, ``shmem_bytes``, ``file_bytes``,
        ``file_rss_bytes``, ``lazyfree_bytes``, ``rss_bytes`` of the processes of the last scan.

        If one of them may not be read, only RSS and a finding: a partial sum would be wrong.
        Nothing for an empty group, which the scan has reported.
        """
        if not self._living:
            return ProbeReading()
        memories: list[dict[str, int | None]] = []
        for stat in self._living:
            try:
                memory = read_memory(stat.pid)
            except PermissionError as error:
                why = str(error.strerror)
                hidden = memory_unprivileged(self._prefix, stat.pid, why, os.geteuid())
                return ProbeReading(self._rss(), [hidden])
            if memory is not None:
                memories.append(msgspec.structs.asdict(memory))
        sums = {}
        for name in Memory.__struct_fields__:
            sums[name] = sum(memory[name] or 0 for memory in memories)
        if not sums["pss_bytes"]:
            # They ended since the scan, or the kernel is older than 4.14, without smaps_rollup.
            return ProbeReading(self._rss())
        for name in (
            "anon_shmem_bytes",
            "shmem_bytes",
            "file_bytes",
            "file_rss_bytes",
            "lazyfree_bytes",
        ):
            if any(memory[name] is None for memory in memories):
                del sums[name]
        return ProbeReading(self._named({name: float(value) for name, value in sums.items()}))

    def _rss(self) -> dict[str, float]:
        return self._named({"rss_bytes": float(sum(read_rss(stat.pid) for stat in self._living))})

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        by_metric = {}
        for name, value in values.items():
            metric = f"{self._prefix}.{name}"
            if metric in METRICS:
                by_metric[metric] = value
        return by_metric


def workers_among(new: Iterable[Stat], masters: Collection[int]) -> set[int]:
    """The pids of ``new`` processes that are workers beside earlier ones: children of ``masters``,
    which had children when sampling began, and their own new children, as of nginx that is
    upgraded. A child of a process that had none, such as a helper that a worker or a server of one
    process starts, takes nobody's place.
    """
    workers: set[int] = set()
    for stat in sorted(new, key=lambda stat: stat.start_ticks):
        if stat.parent in masters or stat.parent in workers:
            workers.add(stat.pid)
    return workers


def _starts_of(pids: Iterable[int]) -> dict[int, int]:
    """When those of the processes began that live (clock ticks)."""
    starts = {}
    for pid in pids:
        stat = living_stat(pid)
        if stat is not None:
            starts[pid] = stat.start_ticks
    return starts


def _roots_of(
    processes: Mapping[int, Stat], roots: Collection[int], before: Mapping[int, int]
) -> dict[int, int]:
    """The root of each process. ``before``: of the scan before, for those whose root has ended."""
    root_of = {}
    for pid in processes:
        top = pid
        while top not in roots and processes[top].parent in processes:
            top = processes[top].parent
        root_of[pid] = top if top in roots else before.get(top, top)
    return root_of


class ServerTree:
    """The server's root processes and all their descendants, found at each call: a reload replaces
    workers.

    If a root ends and descendants live on (an nginx upgraded in place), they are the tree. If none
    does, ``relocate`` finds the roots of a restarted server; it returns none, or raises, while
    there is none. Of several roots, ``replaced`` finds what took the places of those that ended.
    """

    def __init__(
        self,
        roots: Sequence[int],
        relocate: Callable[[], Sequence[int]] = lambda: (),
        replaced: Callable[[Collection[int]], Replaced] = lambda ended: Replaced(),
    ) -> None:
        self.roots: tuple[int, ...] = tuple(roots)
        #: Times that ``relocate`` found the server again.
        self.restarts = 0
        #: Of several roots, those that ended and whose places none has taken: the tree is only a
        #: part of the server.
        self.missing: frozenset[int] = frozenset()
        #: Such roots that others have replaced since.
        self.replaced: frozenset[int] = frozenset()
        #: Processes that were seen alive and have ended.
        self.ended = 0
        #: Processes that appeared after the first scan.
        self.started = 0
        #: Those of them that may take the place of earlier workers: see :func:`workers_among`.
        self.joined = 0
        #: Ended processes that only one scan had seen.
        self.brief = 0
        # By the last scan for the first time.
        self._first_seen: set[tuple[int, int]] = set()
        self._masters: frozenset[int] = frozenset()
        #: A root that ended while its children lived on as orphans; 0 for none. Not a root that a
        #: child replaced, as at an upgrade in place.
        self.orphaned = 0
        #: The CPU time (s) that it took to find a server which was replaced since the last call.
        self.search_s = 0.0
        self._living: set[tuple[int, int]] | None = None
        self._relocate = relocate
        self._find_replaced = replaced
        # The root of each process of the last scan.
        self._root_of: dict[int, int] = {}
        self._known = _starts_of(roots)

    def __call__(self) -> list[Stat]:
        """Every process of the tree (zombies too). Raises :class:`ProcessesGoneError` if none
        lives.
        """
        self.search_s = 0.0
        processes = tree(self._survivors())
        if all(stat.ended for stat in processes.values()):
            self._relocate_roots()
            processes = tree(self._survivors())
        elif self._replace_missing(processes):
            processes = tree(self._survivors())
        self._root_of = _roots_of(processes, self.roots, self._root_of)
        self._check_orphaned(processes)
        living = {(pid, stat.start_ticks) for pid, stat in processes.items() if not stat.ended}
        if self._living is None:
            parent_pids = {stat.parent for stat in processes.values()}
            self._masters = frozenset(parent_pids & processes.keys())
        else:
            appeared = living - self._living
            ended = self._living - living
            self.ended += len(ended)
            self.brief += len(ended & self._first_seen)
            self._first_seen = appeared
            new = [processes[pid] for pid, _ in appeared]
            self.started += len(new)
            self.joined += len(workers_among(new, self._masters))
        self._living = living
        self._known = {pid: stat.start_ticks for pid, stat in processes.items()}
        return list(processes.values())

    def living_roots(self) -> tuple[int, ...]:
        """The roots that live; if none does, the topmost of the living descendants."""
        living = {}
        for stat in self._survivors():
            if not stat.ended:
                living[stat.pid] = stat.parent
        roots = [pid for pid in self.roots if pid in living]
        if not roots:
            roots = [pid for pid, parent in living.items() if parent not in living]
        return tuple(sorted(roots))

    def _check_orphaned(self, found: dict[int, Stat]) -> None:
        alive = {pid: stat for pid, stat in found.items() if not stat.ended}
        gone = [pid for pid in self.roots if pid not in alive]
        parents_of_living = {stat.parent for stat in alive.values()} & alive.keys()
        if len(self.roots) == 1 and gone and alive and not parents_of_living:
            self.orphaned = gone[0]

    def _survivors(self) -> list[Stat]:
        """Known processes that live, roots first."""
        order = [*self.roots, *(pid for pid in self._known if pid not in self.roots)]
        stats = ((pid, living_stat(pid)) for pid in order if pid in self._known)
        return [
            stat for pid, stat in stats if stat is not None and stat.start_ticks == self._known[pid]
        ]

    def keep_roots(self, roots: Sequence[int]) -> None:
        """These alone are the server: what else was found at first was not."""
        self.roots = tuple(roots)
        self.missing = frozenset()

    def _relocate_roots(self) -> None:
        begun_s = time.thread_time()
        ended = self.missing.union(self.roots)
        roots: Sequence[int]
        if len(ended) > 1:
            roots, instead_of = self._find_replaced(ended)
        else:
            roots = self._relocate()
            instead_of = ended
        known = _starts_of(roots)
        if not known:
            named = ", ".join(map(str, self.roots))
            raise ProcessesGoneError(f"the server's processes ended (its main process was {named})")
        self.roots, self._known = tuple(roots), known
        self.missing = ended - instead_of
        if self.missing:
            self.replaced |= instead_of
        else:
            self.restarts += 1
        self.search_s = time.thread_time() - begun_s

    def _replace_missing(self, found: Mapping[int, Stat]) -> bool:
        """Note roots of which nothing lives any more, while others do, and take what listens in
        their places. True if something does.
        """
        served = set()
        for pid, stat in found.items():
            if not stat.ended:
                served.add(self._root_of.get(pid, pid))
        known_roots = set(self._root_of.values())
        ended = {pid for pid in self.roots if pid in known_roots and pid not in served}
        if len(self.roots) > 1:
            self.missing |= ended
        if not self.missing:
            return False
        begun_s = time.thread_time()
        roots, instead_of = self._find_replaced(self.missing)
        known = _starts_of(roots)
        self.search_s = time.thread_time() - begun_s
        if not known:
            return False
        stay = [pid for pid in self.roots if pid not in self.missing]
        self.missing -= instead_of
        self.replaced |= instead_of
        self.roots = tuple(sorted({*stay, *roots}))
        self._known |= known
        return True


def read_session_cpu() -> ProbeReading:
    """``session.cpu_s``: this process's threads, without waited-for children."""
    return ProbeReading({SESSION_CPU_S: time.process_time()})


def read_session_memory() -> ProbeReading:
    """``session.uss_bytes``: this process's private memory. Always permitted."""
    memory = read_memory(os.getpid())
    return ProbeReading({} if memory is None else {SESSION_USS_BYTES: float(memory.uss_bytes)})


def listed(pids: Callable[[], Iterable[int]]) -> Callable[[], list[Stat]]:
    """A function that returns the stats of the living among ``pids``."""
    return lambda: [stat for pid in tuple(pids()) if (stat := living_stat(pid)) is not None]
