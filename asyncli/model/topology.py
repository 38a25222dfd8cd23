"""Where a run took place: facts from its environment, and what is on the sampled host. Pure.

Without an agent samples are of asyncli's host. With one (``environment["agent"]``) they are of the server's host, and those of
ours begin with ``client.``, unless both are the same host.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from asyncli.model.metrics import CLIENT, KERNEL_SOCKETS, TCP
from asyncli.model.records import MOST, SERVER_CHANGED, Environment


class Place(msgspec.Struct, frozen=True):
    """Facts about a host or a run's environment; None: unknown. Its input is untrusted: the run file may be another user's."""

    #: Server and asyncli are on one host.
    local: bool | None = None
    cpus: float | None = None
    memory_bytes: float | None = None
    workers: float | None = None
    destinations: tuple[str, ...] = ()
    #: ``nginx/1.22.1``; "": unknown.
    server_label: str = ""
    #: The server's processes are known.
    server_found: bool = False
    #: If the run was resumed against another server: the last instant (s) of the previous one.
    server_changed_s: float | None = None
    #: The agent's host; None without an agent.
    agent: Place | None = None
    #: The agent is in asyncli's own network namespace.
    agent_same_network: bool = True
    #: In a cluster: the session is on the server's host.
    server_here: bool = False

    @property
    def server_name(self) -> str:
        """``nginx``; "": unknown."""
        return re.split(r"[/\s]", self.server_label.removeprefix("the server"), maxsplit=1)[0]

    @property
    def sides(self) -> Sides:
        if self.local:
            one_network = self.agent is None or self.agent_same_network
            return Sides(ends=2, server=True, generator=True, one_network=one_network, far=None)
        if self.agent is not None:
            return Sides(ends=1, server=True, generator=False, one_network=False, far=self.agent)
        # A cluster's session may be on the server's host, and opens no connections.
        return Sides(ends=1, server=self.server_here, generator=not self.server_here, one_network=False, far=None)

    def of_ours(self, metric: str) -> str:
        """The name under which ``metric`` of asyncli's host, or of its network namespace, was sampled."""
        known = self.sides
        apart = known.far is not None or (metric.startswith((TCP, KERNEL_SOCKETS)) and not known.one_network)
        return f"{CLIENT}{metric}" if self.agent is not None and apart else metric


def place_of(environment: Environment) -> Place:
    """The facts in ``environment``."""
    names = ("server", "agent", "cluster")
    server, agent, cluster = (one if isinstance(one := environment.get(name), dict) else None for name in names)
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


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST
    return float(value) if known and isinstance(value, int | float) else None


class Sides(NamedTuple):
    """What is on the sampled host: the number of ``ends`` of each connection, the server, the generator.

    ``one_network``: both use one network namespace. ``far``: the server's host, if it is not ours.
    """

    ends: int
    server: bool
    generator: bool
    one_network: bool
    far: Place | None

    @property
    def host(self) -> str:
        """The sampled host, for sentences."""
        return "this host" if self.far is None else "the server's host"


def sides(environment: Environment) -> Sides:
    """What is on the sampled host of a run with this environment."""
    return place_of(environment).sides
