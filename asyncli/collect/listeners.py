"""The server's listening sockets, in the network namespace in which it listens.

A socket's inode is its identity: where the same inodes are listed before and after, the server
listened all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from asyncli.collect.holders import ports_of
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import PROC, shares_namespace
from asyncli.collect.sock_diag import listening_inodes
from asyncli.model.metrics import SERVER_LISTENERS, SERVER_LISTENERS_OPENED


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
        #: The inodes of the last reading; None before the first.
        self._inodes: set[int] | None = None
        self._opened = 0

    def read(self) -> ProbeReading:
        """How many listen, and how many were opened since the first reading. Nothing where that
        cannot be read: no process of the other namespace is left, or it may not be entered.
        """
        of = None
        if self._is_elsewhere:
            of = next(iter(self._living()), None)
            if of is None:
                return ProbeReading()
        try:
            inodes = listening_inodes(self._ports, of)
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return ProbeReading()
        if self._inodes is not None:
            self._opened += len(inodes - self._inodes)
        self._inodes = inodes
        counts = {
            SERVER_LISTENERS: float(len(inodes)),
            SERVER_LISTENERS_OPENED: float(self._opened),
        }
        return ProbeReading(counts)
