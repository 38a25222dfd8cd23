"""The further sockets that each connection brought on the sampled host: those of a proxy and of its
backend.

The kernel counts the sockets of all programs. Beside other programs that open and close many, the
counts tell nothing of so few, and what both programs hold for each connection does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from asyncli.analysis.constants import NEARLY_ALL
from asyncli.analysis.holders import Holders
from asyncli.analysis.shared_host import other_families, sockets_of_others, sockets_of_proxy
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series


class SocketsBrought(NamedTuple):
    """How many further sockets each connection brought."""

    tcp: int = 0
    #: Those of other families, such as Unix sockets.
    others: int = 0


#: The proxy's socket to its backend, and the backend's.
_PAIR_OF_TCP = SocketsBrought(tcp=2)
_PAIR_OF_OTHERS = SocketsBrought(others=2)


def sockets_brought(run: Run, holders: Holders) -> SocketsBrought:
    """The sockets that each connection brought on the sampled host beside its own ends.

    The counts of all sockets tell it of a quiet host. Where they tell another number than can be,
    it is the pair that the proxy and its backend hold for each connection, unless no sockets were
    opened and closed with the connections.
    """
    counted = _counted(run, holders)
    at_most = _of_proxy_and_backend(run, holders)
    if at_most is None or 2 <= sum(counted) <= at_most:
        return counted
    edges = _Edges.of(run)
    of_tcp = sockets_of_others(run)
    of_others = other_families(run)
    if edges is None or not of_tcp or not of_others:
        return counted
    if edges.has_none(of_tcp) and edges.has_none(of_others):
        return counted
    if edges.off_pair(of_others) < edges.off_pair(of_tcp):
        return _PAIR_OF_OTHERS
    return _PAIR_OF_TCP


def _counted(run: Run, holders: Holders) -> SocketsBrought:
    """What the counts of all sockets tell."""
    of_tcp = sockets_of_proxy(run, holders)
    return SocketsBrought(of_tcp, _unix_sockets_each(run, holders))


def _unix_sockets_each(run: Run, holders: Holders) -> int:
    """How many sockets of other families each TCP connection brought, by the count of all."""
    if not run.plan.has_ports or not run.sides.server or not holders.behind:
        return 0
    others = other_families(run)
    before = others.last(until_s=run.first_connect_s)
    after = others.last(until_s=run.stop_s)
    connections = run.held.last(until_s=run.stop_s)
    if before is None or after is None or not connections:
        return 0
    by_each = round((after - before) / connections)
    return by_each if by_each in (1, 2) else 0


def _of_proxy_and_backend(run: Run, holders: Holders) -> int | None:
    """How many further sockets each connection has at most, by the descriptors of the server and of
    the programs behind it; None unless both have one of them at least.
    """
    connections = run.held.last(until_s=run.stop_s)
    used = run.series(metrics.SERVER_DESCRIPTORS_OPEN)
    before = used.last(until_s=run.first_connect_s)
    after = used.last(until_s=run.stop_s)
    if not run.plan.has_ports or not connections or before is None or after is None:
        return None
    of_server = (after - before) / connections
    of_backends = 0
    for program in holders.behind:
        risen = run.series(f"{metrics.BESIDE_DESCRIPTORS}{program}").last(until_s=run.stop_s)
        of_backends += round((risen or 0.0) / connections)
    if of_server < 2 * NEARLY_ALL or of_backends < 1:
        return None
    # One of the server's is the connection itself.
    return round(of_server) - 1 + of_backends


class _Edges(NamedTuple):
    """The instants between which the connections were opened and closed."""

    connections: float
    first_connect_s: float
    hold_s: float
    stop_s: float
    #: The end of the drain; infinite if the run did not come to it.
    drained_s: float

    @classmethod
    def of(cls, run: Run) -> _Edges | None:
        """None for a run that did not hold its connections."""
        hold = run.phase("hold")
        connections = run.held.last(until_s=run.stop_s)
        if hold is None or not connections:
            return None
        residue = run.phase("residue")
        drained_s = math.inf
        if residue is not None:
            drained_s = residue.start_s
        return cls(connections, run.first_connect_s, hold.start_s, run.stop_s, drained_s)

    def has_none(self, count: Series) -> bool:
        """Whether all the hold ``count`` was as before the first connect, and as after the drain,
        by less than one for each connection.
        """
        levels = count.between(self.hold_s, self.stop_s).values
        for without in (count.last(until_s=self.first_connect_s), count.first(self.drained_s)):
            if without is None:
                continue
            if any(abs(level - without) >= self.connections for level in levels):
                return False
        return True

    def off_pair(self, count: Series) -> float:
        """By how many sockets ``count`` fell otherwise in the drain, which is short, than by a pair
        for each connection; without a drain, by how many it rose otherwise.
        """
        held = count.last(until_s=self.stop_s)
        without = count.first(self.drained_s)
        if without is None:
            without = count.last(until_s=self.first_connect_s)
        if held is None or without is None:
            return math.inf
        return abs(held - without - 2 * self.connections)
