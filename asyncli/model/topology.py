"""Where a run took place: facts from its environment, and what is on the sampled host. Pure.

Without an agent samples are of asyncli's host. With one (``environment["agent"]``) they are of the
server's host, and those of ours begin with ``client.``, unless both are the same host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from asyncli.model.metrics import CLIENT, KERNEL_SOCKETS, TCP
from asyncli.model.records import MOST, SERVER_CHANGED, Environment
from asyncli.model.runtimes import Runtime


class CountSource(msgspec.Struct, frozen=True):
    """The page of the server's own metrics whose count of connections is used, and its metric."""

    url: str
    metric: str


class PageProcess(msgspec.Struct, frozen=True):
    """The program on the server's host whose page of metrics is read, by its name, and its
    process.
    """

    name: str
    pid: int


class Place(msgspec.Struct, frozen=True):
    """Facts about a host or a run's environment; None: unknown. Its input is untrusted: the run
    file may be another user's.
    """

    #: Server and asyncli are on one host.
    local: bool | None = None
    cpus: float | None = None
    memory_bytes: float | None = None
    workers: float | None = None
    destinations: tuple[str, ...] = ()
    #: ``nginx/1.22.1``; "": unknown.
    server_label: str = ""
    #: The directives of nginx that apply at the first target: "location proxy_pass". Empty where
    #: its configuration was not read.
    server_directives: tuple[str, ...] = ()
    #: The server's processes are known.
    server_found: bool = False
    #: How many root processes the server has, if several: two servers behind one list of URLs have.
    server_roots: float | None = None
    #: What its programs run on.
    server_runtime: Runtime = Runtime()
    #: If the run was resumed against another server: the last instant (s) of the previous one.
    server_changed_s: float | None = None
    #: None: the server's counts are those of a status page, or unknown.
    count_source: CountSource | None = None
    #: Where the descriptors of the server's process are from; None: its pages do not say them.
    descriptors_source: CountSource | None = None
    #: The metric that the user has named for what is alive in its heap; None without one.
    alive_source: CountSource | None = None
    #: Metrics that the user has named, with values that cannot be theirs: ``my_gauge=NaN``.
    unusable_metrics: tuple[str, ...] = ()
    #: The URLs of the server's pages of metrics, in the order of --server-metrics.
    metrics_urls: tuple[str, ...] = ()
    #: Whose the page is that says what is known of a runtime, if it is another program's than the
    #: server; None: the server's, or unknown.
    page_process: PageProcess | None = None
    #: The agent's host; None without an agent.
    agent: Place | None = None
    #: The agent is in asyncli's own network namespace.
    agent_same_network: bool = True
    #: In a cluster: the session is on the server's host.
    server_here: bool = False
    #: The server is on asyncli's host, in another network namespace, and its processes are sampled.
    server_apart: bool = False

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
        if self.server_apart:
            return Sides(ends=2, server=True, generator=True, one_network=False, far=None)
        # A cluster's session may be on the server's host, and opens no connections.
        return Sides(
            ends=1,
            server=self.server_here,
            generator=not self.server_here,
            one_network=False,
            far=None,
        )

    def of_ours(self, metric: str) -> str:
        """The name under which ``metric`` of asyncli's host, or of its network namespace, was
        sampled.
        """
        if self.agent is None:
            return metric
        is_of_network = metric.startswith((TCP, KERNEL_SOCKETS))
        if self.sides.far is not None or (is_of_network and not self.sides.one_network):
            return f"{CLIENT}{metric}"
        return metric


def place_of(environment: Environment) -> Place:
    """The facts in ``environment``."""
    server = _facts(environment, "server")
    agent = _facts(environment, "agent")
    cluster = _facts(environment, "cluster")
    local = environment.get("local")
    destinations = environment.get("destinations")
    directives = server.get("directives")
    return Place(
        local=local if isinstance(local, bool) else None,
        cpus=_number(environment.get("cpus")),
        memory_bytes=_number(environment.get("memory_bytes")),
        workers=_number(environment.get("workers")),
        destinations=tuple(map(str, destinations)) if isinstance(destinations, list) else (),
        server_label=str(server.get("label") or ""),
        server_directives=tuple(map(str, directives)) if isinstance(directives, dict) else (),
        server_found=bool(server.get("pid")),
        server_roots=_number(server.get("roots")),
        server_runtime=Runtime.of(server.get("runtime")),
        server_changed_s=_number(environment.get(SERVER_CHANGED)),
        count_source=_count_source(server.get("metrics"), "active_by"),
        descriptors_source=_count_source(server.get("metrics"), "descriptors_by"),
        alive_source=_count_source(server.get("metrics"), "alive_by"),
        unusable_metrics=_unusable_metrics(server.get("metrics")),
        metrics_urls=_metrics_urls(server.get("metrics")),
        page_process=_page_process(server.get("metrics")),
        agent=_host_of(environment.get("agent")),
        agent_same_network=agent.get("same_network") is not False,
        server_here=cluster.get("server_here") is True,
        server_apart=server.get("apart") is True and not cluster,
    )


def _facts(environment: Environment, name: str) -> Mapping[str, Any]:
    """The facts of a part of the environment; none without it, or if it is no object."""
    facts = environment.get(name)
    if not isinstance(facts, dict):
        return {}
    return facts


def _count_source(pages: object, key: str) -> CountSource | None:
    """The first of the pages of metrics that names under ``key`` what is used of it."""
    if not isinstance(pages, list):
        return None
    for page in pages:
        if isinstance(page, dict) and page.get(key):
            return CountSource(str(page.get("url")), str(page[key]))
    return None


def _page_process(pages: object) -> PageProcess | None:
    """Whose the page is that says what is known of a runtime, if it is not the server's."""
    if not isinstance(pages, list):
        return None
    for page in pages:
        if isinstance(page, dict) and page.get("of_program"):
            pid = _number(page.get("of_pid")) or 0.0
            return PageProcess(str(page["of_program"]), round(pid))
    return None


def _unusable_metrics(pages: object) -> tuple[str, ...]:
    if not isinstance(pages, list):
        return ()
    unusable: list[str] = []
    for page in pages:
        written = page.get("unusable") if isinstance(page, dict) else None
        if isinstance(written, list):
            unusable += map(str, written)
    return tuple(unusable)


def _metrics_urls(pages: object) -> tuple[str, ...]:
    if not isinstance(pages, list):
        return ()
    urls = []
    for page in pages:
        urls.append(str(page.get("url")) if isinstance(page, dict) else "")
    return tuple(urls)


def _host_of(agent: object) -> Place | None:
    """The agent's host; None without an agent."""
    if not isinstance(agent, dict):
        return None
    cpus = _number(agent.get("cpus"))
    return Place(cpus=cpus, memory_bytes=_number(agent.get("memory_bytes")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -MOST <= value <= MOST:
        return None
    return float(value)


class Sides(NamedTuple):
    """What is on the sampled host: the number of ``ends`` of each connection, the server, the
    generator.

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
