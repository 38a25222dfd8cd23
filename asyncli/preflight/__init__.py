"""Can this plan succeed here? In numbers, with the command that mends each shortfall. Nothing is sent to the target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from asyncli.engine.spread import Spread
from asyncli.errors import PreflightError
from asyncli.plan import Plan
from asyncli.preflight.checks import host_checks
from asyncli.preflight.limits import Limits, raise_nofile, read_limits, read_rlimit
from asyncli.records import Check, Finding
from asyncli.units import format_bytes

__all__ = ["Limits", "checks_to_findings", "examine", "raise_nofile", "read_limits", "refusals"]

_NGINXES = frozenset({"nginx", "openresty", "tengine", "angie", "freenginx"})


def examine(
    plan: Plan,
    spread: Spread,
    *,
    server_pid: int | None = None,
    server_exe: str | None = None,
    server_config: str | None = None,
    root: Path = Path("/"),
) -> list[Check]:
    """Every limit of this host, and of the server if that is an nginx on it, against ``plan`` laid out as ``spread``.

    ``server_pid`` is its master (a worker is followed to it), ``server_exe`` its program and ``server_config`` its main
    file; each may be None where unknown. Reads files and runs ``nginx -V``; ``root`` is the file system's, for tests.
    """
    limits = read_limits(root)
    checks = host_checks(plan, spread, limits)
    if spread.local:
        checks += _server_checks(plan, limits, pid=server_pid, exe=server_exe, config_path=server_config, root=root)
    return checks


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
    severities = {"short": "error", "warn": "warning", "unknown": "info"}
    return [
        Finding(f"preflight_{check.code}", severities[check.verdict], _evidence(check), check.remedy)  # type: ignore[arg-type]
        for check in checks
        if check.verdict in severities
    ]


def _evidence(check: Check) -> str:
    """``descriptors of one process: 20,000 there, 50,064 needed; 100,000 connections in 2 processes...``"""
    numbers = []
    if check.have is not None:
        numbers.append(f"{_amount(check.have, check.unit)} there")
    if check.need is not None:
        numbers.append(f"{_amount(check.need, check.unit)} needed")
    said = ", ".join(numbers)
    return "; ".join(part for part in (f"{check.what}: {said}" if said else check.what, check.detail) if part)


def _amount(number: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(number)
    # Counts say their unit in the check's name; of the others seconds and rates need theirs.
    return f"{number:,.10g} {unit}" if unit in ("s", "a second") else f"{number:,.10g}"


def _server_checks(
    plan: Plan, limits: Limits, *, pid: int | None, exe: str | None, config_path: str | None, root: Path
) -> list[Check]:
    """The checks of an nginx; nothing for another server, whose limits asyncli does not know how to read."""
    # Imported here: most of it is for nginx alone.
    from asyncli.preflight.nginx import Host, nginx_checks
    from asyncli.preflight.nginx_config import NginxConfig, read_nginx

    command_line = ""
    if pid is not None:
        pid, command_line = _master(pid, root)
        exe = exe or _link(root / f"proc/{pid}/exe")
    is_nginx = command_line.startswith("nginx: ") or (exe is not None and Path(exe).name in _NGINXES)
    if not is_nginx:
        if pid is None and exe is None:
            what, detail = "the server's own limits", "its process is not known, so they were not read"
            return [Check("server", what, "unknown", detail=detail, remedy="name it with --server-pid")]
        return []
    ours, theirs = _link(root / "proc/self/ns/mnt"), _link(root / f"proc/{pid}/ns/mnt") if pid is not None else None
    if ours and theirs and ours != theirs and config_path is None:
        # Its nginx.conf is another file than the one of that name that we see.
        what, detail = "nginx's configuration", "nginx runs in a container, so its files are not those that we see"
        return [Check("nginx_config", what, "unknown", detail=detail, remedy="run asyncli check in there")]
    config = read_nginx(exe, config_path, command_line=command_line)
    if not isinstance(config, NginxConfig):
        return [config]
    inherited = read_rlimit(root / f"proc/{pid}/limits", "Max open files")[0] if pid is not None else None
    return nginx_checks(config, plan, Host(cpus=limits.cpus, somaxconn=limits.somaxconn, inherited_nofile=inherited))


def _master(pid: int, root: Path) -> tuple[int, str]:
    """The master of this nginx process and its title; of another process, itself and its command line."""
    line = _command_line(pid, root)
    if line.startswith("nginx: ") and not line.startswith("nginx: master"):
        try:
            status = (root / f"proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return pid, line
        for row in status.splitlines():
            if row.startswith("PPid:"):
                parent = int(row.split()[1])
                title = _command_line(parent, root)
                return (parent, title) if title.startswith("nginx: master") else (pid, line)
    return pid, line


def _command_line(pid: int, root: Path) -> str:
    try:
        raw = (root / f"proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
