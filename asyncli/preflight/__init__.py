"""Checks every limit against the plan, with the command that raises each low one.

Sends nothing to the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from asyncli.engine.spread import Spread
from asyncli.findings.preflight import preflight
from asyncli.model.errors import PreflightError
from asyncli.model.plan import Plan
from asyncli.model.records import FAR, Check, Finding
from asyncli.model.units import format_count, format_many, tenth_more
from asyncli.preflight.configured import Configured, Descriptors
from asyncli.preflight.host_checks import far_checks, host_checks
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.limit import limit
from asyncli.preflight.nginx_checks import nginx_checks
from asyncli.preflight.nginx_ways import KindOf, file_kind, unknown_kind
from asyncli.preflight.status_checks import status_checks
from asyncli.preflight.task_checks import task_checks


def examine(
    plan: Plan,
    spread: Spread,
    limits: Limits,
    configured: Configured,
    *,
    far: Limits | None = None,
    hosts: list[Check] | None = None,
) -> list[Check]:
    """Check ``plan``, laid out as ``spread``, against the limits of this host and of the server as
    ``configured``. Pure.

    ``far``: the limits of the server's host as read by an agent (ignored if ``spread`` is local).
    ``hosts``: in a cluster, the checks of the hosts that open the connections.
    """
    checks = host_checks(plan, spread, limits) if hosts is None else list(hosts)
    if far is not None and not spread.local:
        checks += far_checks(plan, far)
    addresses: dict[int, list[str]] = {}
    for destination in spread.destinations:
        addresses.setdefault(destination.target, []).append(destination.address)
    # The files of another host are not ours.
    kind_of = file_kind if far is None else unknown_kind
    # Each host of a cluster has addresses of its own.
    sources = max(1, len(spread.sources)) if hosts is None else None
    of_server = _server_checks(plan, far or limits, configured, addresses, kind_of, sources)
    if any(check.code == "nginx_backlog" for check in of_server):
        # nginx's queue is the lesser of its backlog and this limit: one shortage, one remedy.
        checks = [check for check in checks if check.code.removeprefix(FAR) != "somaxconn"]
    return [*checks, *of_server, *status_checks(plan, configured)]


def refusals(checks: Iterable[Check]) -> list[Check]:
    """The checks by which the run is certain to fail."""
    return [check for check in checks if check.verdict == "short"]


def refuse(checks: Iterable[Check]) -> None:
    """Raise :class:`~asyncli.model.errors.PreflightError` with a line for each limit that is too
    low.
    """
    findings = checks_to_findings(refusals(checks))
    if findings:
        lines = [f"{finding.evidence}; remedy: {finding.remedy}" for finding in findings]
        raise PreflightError("\n".join(lines) + " (override: --force)")


def checks_to_findings(checks: Iterable[Check]) -> list[Finding]:
    """The findings of the checks: short is an error, warn a warning, unknown an info, ok none."""
    findings = []
    for check in checks:
        if check.verdict != "ok":
            findings.append(_finding(check))
    return findings


def _finding(check: Check) -> Finding:
    return preflight(
        check.code,
        check.verdict,
        check.what,
        check.have,
        check.need,
        check.unit,
        check.detail,
        check.remedy,
    )


def _server_checks(
    plan: Plan,
    limits: Limits,
    configured: Configured,
    addresses: Mapping[int, Sequence[str]],
    kind_of: KindOf,
    sources: int | None,
) -> list[Check]:
    """The checks of an nginx; of another server only its descriptors can be read."""
    if configured.nginx is not None:
        return nginx_checks(configured.nginx, plan, limits, configured, addresses, kind_of, sources)
    checks = []
    if configured.unknown is not None:
        checks.append(configured.unknown)
    if configured.descriptors is not None:
        checks.append(_descriptors(plan, configured.descriptors))
    return checks + task_checks(plan, configured)


def _descriptors(plan: Plan, server: Descriptors) -> Check:
    need = plan.connections + server.open
    of_process = math.ceil(tenth_more(need) / server.processes)
    processes = format_many(server.processes, "process")
    # No certain failure: a server may have a process for each connection, raise its limit, or close
    # idle connections.
    return limit(
        "server_nofile",
        "descriptors of the server (RLIMIT_NOFILE)",
        "descriptors",
        server.limit,
        need,
        short="warn",
        detail=f"of {processes} in all, with {format_count(server.open)} open now; "
        "beyond it connects wait for accept(), unless each connection has its own process",
        remedy=f"start the server with ulimit -n {of_process}, "
        f"or LimitNOFILE={of_process} in its systemd unit",
    )
