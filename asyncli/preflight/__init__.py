"""Can this plan succeed here? In numbers, with the command that mends each shortfall. Nothing is sent to the target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from asyncli.engine.spread import Spread
from asyncli.errors import PreflightError
from asyncli.findings.preflight import preflight
from asyncli.plan import Plan
from asyncli.preflight.checks import far_checks, host_checks
from asyncli.preflight.configured import Configured, read_configured
from asyncli.preflight.limits import Limits, raise_nofile, read_limits
from asyncli.records import Check, Finding

__all__ = ["Limits", "checks_to_findings", "examine", "examine_far", "raise_nofile", "read_limits", "refusals"]


def examine(
    plan: Plan,
    spread: Spread,
    *,
    server_pid: int | None = None,
    server_exe: str | None = None,
    server_config: str | None = None,
    root: Path = Path("/"),
    hosts: list[Check] | None = None,
) -> list[Check]:
    """Every limit of this host, and of the server if that is an nginx on it, against ``plan`` laid out as ``spread``.

    ``server_pid`` is its master (a worker is followed to it), ``server_exe`` its program and ``server_config`` its main
    file; each may be None where unknown. Reads files and runs ``nginx -V``; ``root`` is the file system's, for tests.
    ``hosts``: what was checked of the hosts that open the connections, where this one is not among them.
    """
    limits = read_limits(root)
    checks = list(host_checks(plan, spread, limits) if hosts is None else hosts)
    if spread.local:
        checks += _server_checks(plan, limits, read_configured(server_pid, server_exe, server_config, root=root))
    return checks


def examine_far(
    plan: Plan,
    spread: Spread,
    *,
    limits: Limits,
    configured: Configured,
    status_url: str | None,
    hosts: list[Check] | None = None,
) -> list[Check]:
    """The same where an agent has read ``limits`` of the server's host and how the server there is ``configured``.

    ``status_url``: the page that the agent reads; ``hosts`` as in :func:`examine`. Where the
    agent is on this host, ``spread`` is local, and there is one host.
    """
    checks = list(host_checks(plan, spread, read_limits()) if hosts is None else hosts)
    if not spread.local:
        checks += far_checks(plan, limits)
    return checks + _server_checks(msgspec.structs.replace(plan, status_url=status_url), limits, configured)


def refusals(checks: Iterable[Check]) -> list[Check]:
    """The checks that make the run fail for certain."""
    return [check for check in checks if check.verdict == "short"]


def refuse(checks: Iterable[Check]) -> None:
    """Raise :class:`~asyncli.errors.PreflightError` where a run could only fail; it says all that stands in the way."""
    short = refusals(checks)
    if short:
        lines = [f"{finding.evidence}; mend: {finding.remedy}" for finding in checks_to_findings(short)]
        raise PreflightError("\n".join(lines) + " (--force goes on all the same)")


def checks_to_findings(checks: Iterable[Check]) -> list[Finding]:
    """What the user should know of the checks: short as error, warn as warning, unknown as info; nothing if ok."""
    return [
        preflight(one.code, one.verdict, one.what, one.have, one.need, one.unit, one.detail, one.remedy)
        for one in checks
        if one.verdict != "ok"
    ]


def _server_checks(plan: Plan, limits: Limits, configured: Configured) -> list[Check]:
    """The checks of an nginx; nothing for another server, whose limits asyncli does not know how to read."""
    # Imported here: most runs aim at something else.
    from asyncli.preflight.nginx import Host, nginx_checks

    if configured.nginx is None:
        return [] if configured.unknown is None else [configured.unknown]
    host = Host(cpus=limits.cpus, somaxconn=limits.somaxconn, inherited_nofile=configured.inherited_nofile)
    return nginx_checks(configured.nginx, plan, host)
