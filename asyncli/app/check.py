"""Checks whether a plan can succeed: client hosts, server and sampler, against every limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asyncli import preflight
from asyncli.app.forced_collections import check_collections
from asyncli.collect.collector import Collector
from asyncli.collect.listening import nothing_listens
from asyncli.collect.locate import ServerFacts
from asyncli.collect.sampler import SamplerOptions
from asyncli.collect.status_reader import StatusReader
from asyncli.engine.probe import probe
from asyncli.engine.spread import Spread
from asyncli.engine.tls_facts import TlsFacts
from asyncli.environment import probe_host
from asyncli.findings.probes import server_processes_unknown
from asyncli.model.data_file import read_data
from asyncli.model.errors import PeerError, PlanError
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding
from asyncli.model.template import Data
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.host_limits import Limits, read_limits
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_choice import StatusAddress, directives_for, status_pages
from asyncli.preflight.rate_checks import OF_ONE_HANDSHAKE, handshake_rates

if TYPE_CHECKING:
    from asyncli.agent.collector import AgentCollector
    from asyncli.cluster.link import Cluster

    Sampler = Collector | AgentCollector


def make_sampler(plan: Plan, options: SamplerOptions, *, local: bool) -> Sampler:
    """A collector; with an agent on the server's host, one that reads the agent and this host."""
    if plan.agent is None:
        return Collector(plan, options, local=local)
    from asyncli.agent.collector import AgentCollector

    return AgentCollector(plan, options)


async def plan_spread(
    plan: Plan, cluster: Cluster | None, say: Callable[[str], None]
) -> tuple[Limits, Spread]:
    """The limits of this host, and the plan spread over the hosts that open the connections."""
    if cluster is None:
        return await probe_host(plan)
    return await cluster.find_hosts(plan, say)


class Examined(NamedTuple):
    """The result of :func:`examine`.

    ``spread``: corrected by the sampler. ``server``: with its directives. ``tls``, ``steps``: of
    the first connection, as in :class:`~asyncli.engine.probe.Probed`; empty without one.
    """

    spread: Spread
    checks: list[Check]
    findings: list[Finding]
    server: ServerFacts
    tls: TlsFacts | None
    steps: dict[str, list[tuple[str, float]]]


async def examine(
    plan: Plan, spread: Spread, sampler: Sampler, cluster: Cluster | None, data: Data | None, *,
    connects: bool, beats: bool = False,
) -> Examined:  # fmt: skip
    """Check ``plan`` with an open ``sampler``.

    ``connects``: make one connection to the target, with its handshakes; ``beats``: and send a
    heartbeat. ``data``: the contents of ``plan.data``.
    """
    if not plan.has_ports and not sampler.local:
        raise PlanError(
            f"--connect-to and --agent: {plan.connect_to} is on this host, but the agent is not; "
            "leave one out"
        )
    spread = msgspec.structs.replace(spread, local=sampler.local)
    hosts = None
    of_cluster: list[Finding] = []
    if cluster is not None:
        if not isinstance(sampler, Collector):
            cluster.watched_by_agent(sampler.boot)
        hosts = cluster.checks
        of_cluster = cluster.findings
    of_server = await _read_server(plan, sampler)
    limits = await asyncio.to_thread(read_limits)
    checks = preflight.examine(
        of_server.plan, spread, limits, of_server.configured, far=of_server.far, hosts=hosts
    )
    tls = None
    steps: dict[str, list[tuple[str, float]]] = {}
    of_probe: list[Finding] = []
    if connects:
        tls, steps, of_probe = await asyncio.to_thread(probe, plan, spread, data, beats=beats)
    # Without its certificate verified, a handshake is a single one.
    if tls is not None and cluster is None and tls.verified is not plan.insecure:
        checks += handshake_rates(plan, spread, limits, tls.handshake_s, tls.cpu_s)
    server = sampler.server
    if of_server.configured.nginx is not None:
        directives = _directives(of_server.configured.nginx, plan, spread)
        server = msgspec.structs.replace(server, directives=directives)
    return Examined(spread, checks, [*of_cluster, *of_probe], server, tls, steps)


async def examine_again(
    before: Examined, plan: Plan, sampler: Sampler, cluster: Cluster | None
) -> Examined:
    """What :func:`examine` says of another server than ``before``, without another connection: what
    that one showed stays.
    """
    after = await examine(plan, before.spread, sampler, cluster, None, connects=False)
    of_connection = [check for check in before.checks if check.code in OF_ONE_HANDSHAKE]
    return after._replace(
        checks=[*after.checks, *of_connection], tls=before.tls, steps=before.steps
    )


class _Server(NamedTuple):
    """What is known of the server before the first connect.

    ``plan``: with the status page that its agent reads. ``far``: the limits of its host, if that is
    another one.
    """

    plan: Plan
    configured: Configured
    far: Limits | None = None


async def _read_server(plan: Plan, sampler: Sampler) -> _Server:
    if not isinstance(sampler, Collector):
        far, configured, status_url = sampler.read_far()
        configured = _with_pages(configured, sampler.server)
        return _Server(msgspec.structs.replace(plan, status_url=status_url), configured, far)
    configured = Configured()
    if sampler.local:
        configured = await _read_configured(plan, sampler.server)
    configured = msgspec.structs.replace(
        configured,
        frontends=sampler.frontends,
        backends=sampler.backends,
        all_frontends=sampler.all_frontends,
    )
    return _Server(plan, _with_pages(configured, sampler.server))


def _with_pages(configured: Configured, server: ServerFacts) -> Configured:
    """With what is known of the server's pages of metrics."""
    return msgspec.structs.replace(
        configured, counted_by=_counted_by(server), page_of=_page_of(server)
    )


def _page_of(server: ServerFacts) -> str:
    """``wsup (pid 311)``, if a page of metrics is of another program than the server; else ""."""
    for source in server.metrics:
        if source.of_program:
            return f"{source.of_program} (pid {source.of_pid})"
    return ""


def _counted_by(server: ServerFacts) -> str:
    """The metric of the server's own page that counts connections; "" if none does."""
    for source in server.metrics:
        if source.active_by:
            return source.active_by
    return ""


async def _read_configured(plan: Plan, server: ServerFacts) -> Configured:
    """The configuration of a server on this host, and which of its status pages do not answer."""
    configured = await asyncio.to_thread(
        read_configured, server.pid, server.exe, server.config_path, pids=server.pids
    )
    if configured.nginx is None or plan.status_url is not None:
        return configured
    silent_pages = []
    for page in status_pages(configured.nginx, plan.targets):
        if not await _answers(page, plan):
            silent_pages.append(page)
    return msgspec.structs.replace(configured, silent_pages=tuple(silent_pages))


def _directives(nginx: NginxConfig, plan: Plan, spread: Spread) -> dict[str, str]:
    """The directives that apply to the plan's first target."""
    target = plan.targets[0]
    address = target.host
    for destination in spread.destinations:
        if destination.target == 0:
            address = destination.address
            break
    return directives_for(nginx, target, address)


async def _answers(page: StatusAddress, plan: Plan) -> bool:
    headers = [f"Host: {page.host}"] if page.host else []
    reader = StatusReader(page.url, plan.tls_options, headers)
    try:
        await reader.read()
    except PeerError:
        return False
    finally:
        await reader.close()
    return True


async def check(
    plan: Plan,
    cluster: Cluster | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    connects: bool,
    beats: bool,
) -> Examined:
    """The result of ``asyncli check``.

    ``connects`` and ``beats``: see :func:`examine`. ``say`` gets a line for each wait.
    """
    findings: list[Finding] = []
    data = await asyncio.to_thread(read_data, plan)
    try:
        _, spread = await plan_spread(plan, cluster, say)
    finally:
        if cluster is not None:
            await cluster.close()
    sampler = make_sampler(plan, SamplerOptions(on_finding=findings.append), local=spread.local)
    try:
        # No lease: another session may hold the agent.
        await sampler.open(hold=False)
        examined = await examine(
            plan, spread, sampler, cluster, data, connects=connects, beats=beats
        )
        missing = None
        if examined.spread.local and cluster is None and not plan.force:
            destinations = spread.destinations
            places = {(destination.address, destination.port) for destination in destinations}
            missing = nothing_listens(places, None, "a soak will not start")
        if missing is not None:
            # A server that does not run has no processes to know.
            unknown = server_processes_unknown.code
            findings = [missing, *(finding for finding in findings if finding.code != unknown)]
        collections = await asyncio.to_thread(check_collections, plan, examined.server)
        if collections is not None and missing is None:
            examined.checks.append(collections)
        several = sampler.several_servers()
        if several is not None:
            findings.append(several)
        return examined._replace(findings=[*findings, *examined.findings])
    finally:
        await sampler.close()
