"""Where a run took place, by its environment: facts, and which host the samples are of. Pure.

Without an agent samples are of asyncli's own host; with one (``environment["agent"]``) of the server's, and our own begin with
``client.``, unless the two are one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from asyncli.metrics import CLIENT, KERNEL_SOCKETS, TCP
from asyncli.records import MOST, SERVER_CHANGED, Environment


class Place(msgspec.Struct, frozen=True):
    """Facts of a host, or of a run's environment; None where unknown. Untrusted input: the file may be anybody's."""

    #: Server and asyncli are on one host.
    local: bool | None = None
    cpus: float | None = None
    memory_bytes: float | None = None
    workers: float | None = None
    destinations: tuple[str, ...] = ()
    #: ``nginx/1.22.1``; "" where unknown.
    server_label: str = ""
    #: The server's processes were named or found.
    server_found: bool = False
    #: The last instant (s) of the server before this one, where another answered when the run was resumed.
    server_changed_s: float | None = None
    #: The host on which an agent sampled; None without an agent.
    agent: Place | None = None
    #: That agent is in asyncli's own network namespace.
    agent_same_network: bool = True
    #: Of a cluster: asyncli is on the server's host.
    server_here: bool = False

    @property
    def server_name(self) -> str:
        """``nginx``; "" where unknown."""
        return re.split(r"[/\s]", self.server_label, maxsplit=1)[0]

    @property
    def sides(self) -> Sides:
        if self.local:
            one_network = self.agent is None or self.agent_same_network
            return Sides(ends=2, server=True, generator=True, one_network=one_network, far=None)
        if self.agent is not None:
            return Sides(ends=1, server=True, generator=False, one_network=False, far=self.agent)
        # A cluster's session may be on the server's host, and open no connection.
        return Sides(ends=1, server=self.server_here, generator=not self.server_here, one_network=False, far=None)

    def of_ours(self, metric: str) -> str:
        """The name under which ``metric`` of asyncli's own host, or of its network namespace, was sampled."""
        known = self.sides
        apart = known.far is not None or (metric.startswith((TCP, KERNEL_SOCKETS)) and not known.one_network)
        return f"{CLIENT}{metric}" if self.agent is not None and apart else metric


def place_of(environment: Environment) -> Place:
    """The facts that ``environment`` holds."""
    server, agent, cluster = (_mapping(environment.get(name)) for name in ("server", "agent", "cluster"))
    local, destinations = environment.get("local"), environment.get("destinations")
    return Place(
        local=local if isinstance(local, bool) else None,
        cpus=_number(environment.get("cpus")),
        memory_bytes=_number(environment.get("memory_bytes")),
        workers=_number(environment.get("workers")),
        destinations=tuple(map(str, destinations)) if isinstance(destinations, list) else (),
        server_label=str(server.get("label") or "") if server is not None else "",
        server_found=server is not None and bool(server.get("pid")),
        server_changed_s=_number(environment.get(SERVER_CHANGED)),
        agent=None if agent is None else Place(cpus=_number(agent.get("cpus")), memory_bytes=_number(agent.get("memory_bytes"))),
        agent_same_network=agent is None or agent.get("same_network") is not False,
        server_here=cluster is not None and cluster.get("server_here") is True,
    )


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST
    return float(value) if known and isinstance(value, int | float) else None


class Sides(NamedTuple):
    """What is on the sampled host: ``ends`` of each connection, the server, the generator.

    ``one_network``: both speak over its loopback. ``far``: the server's host, where that is another one than ours.
    """

    ends: int
    server: bool
    generator: bool
    one_network: bool
    far: Place | None

    @property
    def host(self) -> str:
        """That host in words."""
        return "this host" if self.far is None else "the server's host"


def sides(environment: Environment) -> Sides:
    """Of a run with this environment."""
    return place_of(environment).sides
