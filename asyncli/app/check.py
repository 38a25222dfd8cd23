"""Can this plan succeed? The hosts that open connections, the server and what samples it, against every limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asyncli import preflight
from asyncli.collect.collector import Collector
from asyncli.engine.spread import Spread
from asyncli.environment import probe_host
from asyncli.plan import Plan
from asyncli.preflight.checks import handshake_rate
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.limits import Limits, read_limits
from asyncli.records import Check, Finding, Sample
from asyncli.values import parse_url

if TYPE_CHECKING:
    from asyncli.agent.collector import AgentCollector
    from asyncli.cluster.link import Cluster
    from asyncli.engine.handshake import TlsFacts

    Sampler = Collector | AgentCollector


def make_sampler(
    plan: Plan,
    *,
    local: bool,
    clock: Callable[[], float] = time.monotonic,
    generator_pids: Callable[[], Sequence[int]] = list,
    on_sample: Callable[[Sample], None] = lambda _: None,
    on_finding: Callable[[Finding], None],
) -> Sampler:
    """What samples: a collector, or with an agent on the server's host that and one for what is here."""
    if plan.agent is None:
        return Collector(
            plan, clock=clock, generator_pids=generator_pids, on_sample=on_sample, on_finding=on_finding, local=local
        )
    from asyncli.agent.collector import AgentCollector

    return AgentCollector(plan, clock=clock, generator_pids=generator_pids, on_sample=on_sample, on_finding=on_finding)


async def lay_plan(plan: Plan, cluster: Cluster | None, waits: Callable[[str], None]) -> tuple[Limits, Spread]:
    """The limits of the host or hosts that open the connections, and the plan laid over them."""
    return await (probe_host(plan) if cluster is None else cluster.muster(plan, waits))


class Examined(NamedTuple):
    """The spread as the opened sampler knows it, every limit against the plan, what was odd about the cluster, and what the
    server's configuration says of the plan's target (directive -> value)."""

    spread: Spread
    checks: list[Check]
    found: list[Finding]
    directives: dict[str, str]
    tls: TlsFacts | None


async def examine(plan: Plan, spread: Spread, sampler: Sampler, cluster: Cluster | None, *, connects: bool) -> Examined:
    """Whether ``plan`` can succeed, now that ``sampler`` is open. ``connects``: the target may be asked to shake hands."""
    spread = msgspec.structs.replace(spread, local=sampler.local)
    if cluster is not None and not isinstance(sampler, Collector):
        cluster.watched_by_agent(sampler.boot)
    hosts, found = (None, []) if cluster is None else (cluster.checks, cluster.findings)
    far, status_url = None, plan.status_url
    if not isinstance(sampler, Collector):
        far, configured, status_url = sampler.read_far()
    elif spread.local:
        server = sampler.server
        configured = await asyncio.to_thread(read_configured, server.pid, server.exe, server.config_path)
    else:
        configured = Configured()
    limits = await asyncio.to_thread(read_limits)
    checks = preflight.examine(plan, spread, limits, configured, far=far, status_url=status_url, hosts=hosts)
    tls = await first_handshake(plan, spread) if connects else None
    if tls is not None and cluster is None:
        checks.append(handshake_rate(plan.asked_per_s, spread, limits, tls.handshake_s, tls.cpu_s))
    nginx = configured.nginx
    return Examined(spread, checks, found, {} if nginx is None else nginx.directives_for(plan.targets[0]), tls)


async def first_handshake(plan: Plan, spread: Spread) -> TlsFacts | None:
    """Before a run over TLS; None of one in the clear. Raises :class:`~asyncli.errors.HostError` where it fails."""
    if plan.tls is None:
        return None
    from asyncli.engine.handshake import shake_hands

    return await asyncio.to_thread(shake_hands, plan, spread)


async def check(
    plan: Plan, cluster: Cluster | None = None, waits: Callable[[str], None] = lambda _: None, *, probe: bool = False
) -> tuple[Spread, list[Check], list[Finding]]:
    """What ``asyncli check`` shows: how the plan would be spread, every limit against it, and what was odd on the way.

    ``waits`` hears what it waits for. Sends nothing to the target, but with ``probe``, or where the status page of the same host
    is read, shakes hands with one that speaks TLS.
    """
    findings: list[Finding] = []
    try:
        _, spread = await lay_plan(plan, cluster, waits)
    finally:
        if cluster is not None:
            await cluster.close()
    sampler = make_sampler(plan, local=spread.local, on_finding=findings.append)
    try:
        # Another session may hold an agent meanwhile: looking takes nothing from it.
        await sampler.open(hold=False)
        known = plan.status_url is not None and parse_url(plan.status_url).host in {one.host for one in plan.targets}
        examined = await examine(plan, spread, sampler, cluster, connects=probe or known)
        return examined.spread, examined.checks, [*findings, *examined.found]
    finally:
        await sampler.close()
