"""Checks the room of a server that may have a thread or a process for each connection. Pure.

Whether a server is one is known only by a run, so a limit that is too low for such a server is
unknown to be too low for this one.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.server_limits import MEMORY_LIMITS, TASK_LIMITS, ServerLimit
from asyncli.model.units import format_bytes, format_count
from asyncli.preflight.configured import Configured

# Products whose threads serve many connections each.
_SHARE_THREADS = frozenset({"nginx", "HAProxy"})


class _Place(NamedTuple):
    """Where a limit on tasks is set, and what raises it."""

    words: str
    raised_by: str


_PLACES = {
    "group_tasks": _Place(
        "pids.max of its control group", "systemd TasksMax=, docker --pids-limit"
    ),
    "user_tasks": _Place("RLIMIT_NPROC of its user", "systemd LimitNPROC=, ulimit -u"),
    "host_tasks": _Place(
        "kernel.threads-max and kernel.pid_max of its host",
        "sysctl -w kernel.threads-max=N kernel.pid_max=N",
    ),
}
_SUBJECTS = {
    "address_space": "address space of the server's process that is closest to its limit",
    "data": "private writable memory of the server's process that is closest to its limit",
}


def task_checks(plan: Plan, configured: Configured) -> list[Check]:
    """The checks of a server whose processes are known."""
    if configured.product in _SHARE_THREADS:
        return []
    of_memory = [_memory(limit, configured.limits) for limit in MEMORY_LIMITS]
    checks = [_tasks(plan, configured.limits), *of_memory]
    return [check for check in checks if check is not None]


def _tasks(plan: Plan, limits: dict[str, float]) -> Check | None:
    """The limit on threads that leaves the least room."""
    rooms = []
    for limit in TASK_LIMITS:
        if limit.limit in limits and limit.used in limits:
            rooms.append((max(0.0, limits[limit.limit] - limits[limit.used]), limit))
    if not rooms:
        return None
    room, limit = min(rooms)
    code = "server_tasks"
    subject = "threads that the server may still start"
    allowed = format_count(limits[limit.limit])
    place = _PLACES[limit.name]
    detail = f"{place.words}: {allowed}, {format_count(limits[limit.used])} now"
    if plan.connections <= room:
        return Check(code, subject, "ok", room, plan.connections, "threads", detail)
    detail += (
        "; a server with a thread or a process for each connection is full then, and whether this "
        "one is shows only in a run"
    )
    remedy = f"if it is one, raise that limit ({place.raised_by})"
    return Check(code, subject, "unknown", room, plan.connections, "threads", detail, remedy)


def _memory(of_process: ServerLimit, limits: dict[str, float]) -> Check | None:
    """What a connection takes of it is known only by a run."""
    limit = limits.get(of_process.limit)
    used = limits.get(of_process.used)
    if limit is None or used is None:
        return None
    detail = (
        f"{format_bytes(used)} of {format_bytes(limit)} are in use ({of_process.setting}); what a "
        "connection takes shows only in a run, and a thread takes its stack (ulimit -s)"
    )
    return Check(
        f"server_{of_process.name}",
        _SUBJECTS[of_process.name],
        "unknown",
        max(0.0, limit - used),
        unit="bytes",
        detail=detail,
    )
