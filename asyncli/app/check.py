"""Checks whether a plan can succeed: the client hosts, the server and its sampler, against every limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asyncli import preflight
from asyncli.collect.collector import Collector
from asyncli.collect.listening import nothing_listens
from asyncli.collect.locate import ServerFacts
from asyncli.collect.sampler import SamplerOptions
from asyncli.collect.status_reader import StatusReader
from asyncli.engine.probe import TlsFacts, probe
from asyncli.engine.spread import Spread
from asyncli.environment import probe_host
from asyncli.findings.probes import server_processes_unknown
from asyncli.model.data_file import read_data
from asyncli.model.errors import PeerError, PlanError
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding
from asyncli.model.template import Data
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.host_checks import handshake_rate
from asyncli.preflight.host_limits import Limits, read_limits
from asyncli.preflight.nginx_choice import StatusAddress, directives_for, status_pages

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


async def plan_spread(plan: Plan, cluster: Cluster | None, say: Callable[[str], None]) -> tuple[Limits, Spread]:
    """The limits of this host, and the plan spread over the hosts that open the connections."""
    return await (probe_host(plan) if cluster is None else cluster.find_hosts(plan, say))


class Examined(NamedTuple):
    """The result of :func:`examine`. ``spread``: corrected by the sampler. ``server``: with its directives. ``tls``, ``steps``:
    of the first connection, as in :class:`~asyncli.engine.probe.Probed`; empty without one."""

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
    """Check ``plan`` with an open ``sampler``. ``connects``: make one connection to the target, with its handshakes; ``beats``:
    and send a heartbeat. ``data``: the contents of ``plan.data``."""
    if not plan.has_ports and not sampler.local:
        raise PlanError(f"--connect-to and --agent: {plan.connect_to} is on this host, but the agent is not; leave one out")
    spread = msgspec.structs.replace(spread, local=sampler.local)
    if cluster is not None and not isinstance(sampler, Collector):
        cluster.watched_by_agent(sampler.boot)
    hosts, found = (None, []) if cluster is None else (cluster.checks, cluster.findings)
    far, configured, server = None, Configured(), sampler.server
    judged = plan
    if not isinstance(sampler, Collector):
        far, configured, status_url = sampler.read_far()
        judged = msgspec.structs.replace(plan, status_url=status_url)
    elif spread.local:
        configured = await asyncio.to_thread(read_configured, server.pid, server.exe, server.config_path, pids=server.pids)
        if configured.nginx is not None and plan.status_url is None:
            silent = [page for page in status_pages(configured.nginx, plan.targets) if not await _answers(page, plan)]
            configured = msgspec.structs.replace(configured, silent_pages=tuple(silent))
    if isinstance(sampler, Collector):
        configured = msgspec.structs.replace(configured, frontends=sampler.frontends)
    limits = await asyncio.to_thread(read_limits)
    checks = preflight.examine(judged, spread, limits, configured, far=far, hosts=hosts)
    tls, steps, news = await asyncio.to_thread(probe, plan, spread, data, beats=beats) if connects else (None, {}, [])
    # Without its certificate verified, a handshake is a single one.
    if tls is not None and cluster is None and tls.verified is not plan.insecure:
        checks.append(handshake_rate(plan, spread, limits, tls.handshake_s, tls.cpu_s))
    if configured.nginx is not None:
        (first, *_) = plan.targets
        address = next((one.address for one in spread.destinations if one.target == 0), first.host)
        server = msgspec.structs.replace(server, directives=directives_for(configured.nginx, first, address))
    return Examined(spread, checks, [*found, *news], server, tls, steps)


async def _answers(page: StatusAddress, plan: Plan) -> bool:
    reader = StatusReader(page.url, plan.tls_options, [f"Host: {page.host}"] if page.host else ())
    try:
        await reader.read()
    except PeerError:
        return False
    finally:
        await reader.close()
    return True


async def check(
    plan: Plan, cluster: Cluster | None = None, say: Callable[[str], None] = lambda _: None, *, connects: bool, beats: bool
) -> Examined:
    """The result of ``asyncli check``. ``connects`` and ``beats``: see :func:`examine`. ``say`` gets a line for each wait."""
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
        examined = await examine(plan, spread, sampler, cluster, data, connects=connects, beats=beats)
        places = {(one.address, one.port) for one in spread.destinations}
        here = examined.spread.local and cluster is None and not plan.force
        if here and (missing := nothing_listens(places, None, "a soak will not start")):
            findings = [missing, *(one for one in findings if one.code != server_processes_unknown.code)]
        return examined._replace(findings=[*findings, *examined.findings])
    finally:
        await sampler.close()
