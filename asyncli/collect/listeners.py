"""The server's listening sockets, in the network namespace in which it listens.

A socket's inode is its identity: where the same inodes are listed before and after, the server
listened all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from asyncli.collect.holders import ports_of
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, shares_namespace
from asyncli.collect.sock_diag import ListeningSocket, listening_sockets
from asyncli.model.metrics import (
    SERVER_LISTENERS,
    SERVER_LISTENERS_BACKLOG,
    SERVER_LISTENERS_DROPPED,
    SERVER_LISTENERS_OPENED,
)


class Listeners:
    """The sockets that listen on ``ports``; on all ports of the server's processes ``found`` if
    they listen on none of these.

    ``living``: its processes now, which show its namespace if that is not ours. Blocking.
    """

    def __init__(
        self, ports: Collection[int], found: Collection[int], living: Callable[[], Iterable[int]]
    ) -> None:
        self._living = living
        self._is_elsewhere = False
        namespace = PROC
        for pid in found:
            if shares_namespace(pid, "net") is False:
                self._is_elsewhere = True
                namespace = PROC / str(pid)
        own_ports = ports_of(found, namespace=namespace)
        self._ports = sorted(own_ports.intersection(ports) or own_ports or ports)
        # At other ports it is behind what drops our connects.
        self._takes_ours = not ports or not own_ports.isdisjoint(ports) or not own_ports
        #: The last reading by the sockets' inodes; None before the first.
        self._before: dict[int, ListeningSocket] | None = None
        self._opened = 0
        self._dropped = 0
        #: How many readings in turn had none of the sockets that take clients, after one with some.
        self.absent_for = 0

    def read(self) -> ProbeReading:
        """How many listen, with which backlog, and since the first reading how many were opened,
        and how many connects they dropped. Nothing where that cannot be read: no process of the
        other namespace is left, or it may not be entered.
        """
        of = None
        if self._is_elsewhere:
            of = next(iter(self._living()), None)
            if of is None:
                return ProbeReading()
        try:
            sockets = listening_sockets(self._ports, of)
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return ProbeReading()
        if self._before is not None:
            self._opened += len(sockets.keys() - self._before.keys())
            self._dropped += _rise(self._before, sockets)
            if self._takes_ours and not sockets and (self._before or self.absent_for):
                self.absent_for += 1
            else:
                self.absent_for = 0
        self._before = sockets
        counts = {
            SERVER_LISTENERS: float(len(sockets)),
            SERVER_LISTENERS_OPENED: float(self._opened),
        }
        if not self._takes_ours:
            return ProbeReading(counts)
        if sockets:
            backlogs = [listening.backlog for listening in sockets.values()]
            counts[SERVER_LISTENERS_BACKLOG] = float(min(backlogs))
        if all(listening.dropped is not None for listening in sockets.values()):
            counts[SERVER_LISTENERS_DROPPED] = float(self._dropped)
        return ProbeReading(counts)


def _rise(before: Mapping[int, ListeningSocket], after: Mapping[int, ListeningSocket]) -> int:
    """How many more connects the sockets ``after`` have dropped; a new one began at none."""
    rise = 0
    for inode, listening in after.items():
        dropped_before = 0
        if inode in before:
            dropped_before = before[inode].dropped or 0
        rise += max(0, (listening.dropped or 0) - dropped_before)
    return rise
