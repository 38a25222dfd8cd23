"""Which host the samples are of. Pure.

Without an agent they are of asyncli's own; with one (``environment["agent"]``) of the server's, and what is of ours begins with
``client.``, unless the two are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from asyncli.metrics import CLIENT, TCP
from asyncli.records import Environment

_EACH_NETWORK = TCP


class Sides(NamedTuple):
    """What is on the host whose kernel and memory were sampled: ``ends`` of each connection, the server, the generator.

    ``one_network``: client and server speak over one host's own loopback. ``far``: the facts of the server's host, where that is
    another one than ours.
    """

    ends: int
    server: bool
    generator: bool
    one_network: bool
    far: Mapping[str, Any] | None

    @property
    def host(self) -> str:
        """That host in words."""
        return "this host" if self.far is None else "the server's host"


def sides(environment: Environment) -> Sides:
    """Of a run."""
    agent, cluster = environment.get("agent"), environment.get("cluster")
    if environment.get("local") is True:
        apart = isinstance(agent, dict) and agent.get("same_network") is False
        return Sides(ends=2, server=True, generator=True, one_network=not apart, far=None)
    if isinstance(agent, dict):
        return Sides(ends=1, server=True, generator=False, one_network=False, far=agent)
    # Of a cluster asyncli may be the server's neighbour, and no client.
    server = isinstance(cluster, dict) and cluster.get("server_here") is True
    return Sides(ends=1, server=server, generator=not server, one_network=False, far=None)


def of_ours(metric: str, environment: Environment) -> str:
    """The name under which ``metric`` of asyncli's own host, or of its network namespace, was sampled."""
    known = sides(environment)
    if isinstance(environment.get("agent"), dict):
        apart = known.far is not None or (metric.startswith(_EACH_NETWORK) and not known.one_network)
        return f"{CLIENT}{metric}" if apart else metric
    return metric
