"""The root processes of a server of several that have ended, and what listens in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from asyncli.collect.holders import ports_of
from asyncli.collect.procfs import living_stat, tree
from asyncli.collect.sock_diag import listening_sockets


class Replaced(NamedTuple):
    """``roots``: all that were found now; ``instead_of``: the ended ones in whose places some of
    them listen. Both are empty where none was.
    """

    roots: tuple[int, ...] = ()
    instead_of: frozenset[int] = frozenset()


class LostRoots:
    """``find``: the roots of all processes that listen for the server now. ``ports``: those of the
    plan; without one, all at which a root listened count.

    A search takes 0.2 s beside 12,000 descriptors. So there is one only where something listens at
    the ports of a root that ended, and other sockets do than at the last search. Of roots without
    such ports, as on Unix sockets, each search comes twice as many calls after the one before.
    """

    def __init__(
        self, roots: Iterable[int], find: Callable[[], Sequence[int]], ports: Collection[int]
    ) -> None:
        self._find = find
        self._ports = frozenset(ports)
        self._ports_of: dict[int, frozenset[int]] = {}
        self._searched_beside: set[int] = set()
        self._calls = 0
        self._next_search = 1
        known = tuple(roots)
        if len(known) > 1:
            self._note(known)

    def replaced(self, ended: Collection[int]) -> Replaced:
        """What listens in the places of these roots, which have ended."""
        begun_again = {pid for pid in ended if self._is_listened_at(pid)}
        if not begun_again or not self._is_time_to_search(begun_again):
            return Replaced()
        roots = tuple(self._find())
        new = set(roots) - self._ports_of.keys()
        self._note(roots)
        ports = set[int]().union(*(self._ports_of[pid] for pid in roots))
        instead_of = set()
        for pid in begun_again:
            listened_at = self._ports_of.get(pid)
            is_replaced = bool(new) if not listened_at else listened_at <= ports
            if is_replaced:
                instead_of.add(pid)
        if not instead_of:
            return Replaced()
        self._calls = 0
        self._next_search = 1
        return Replaced(roots, frozenset(instead_of))

    def _note(self, roots: Iterable[int]) -> None:
        for pid in roots:
            if pid in self._ports_of:
                continue
            ports: set[int] = set()
            # Another user's may be hidden.
            with contextlib.suppress(OSError):
                ports = ports_of(tree([living_stat(pid)]))
            if self._ports:
                ports &= self._ports
            self._ports_of[pid] = frozenset(ports)

    def _is_listened_at(self, pid: int) -> bool:
        """Whether something listens at each port of a root; True where it had none."""
        try:
            return all(listening_sockets([port]) for port in self._ports_of.get(pid, ()))
        except OSError:
            return False

    def _is_time_to_search(self, pids: Collection[int]) -> bool:
        ports = set[int]().union(*(self._ports_of.get(pid, frozenset()) for pid in pids))
        if ports:
            beside = set(listening_sockets(ports))
            is_new = beside != self._searched_beside
            self._searched_beside = beside
            return is_new
        self._calls += 1
        if self._calls < self._next_search:
            return False
        self._next_search *= 2
        return True
