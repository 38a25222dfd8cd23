"""Checks the room of a server that may have a thread or a process for each connection. Pure.

Whether a server is one is known only by a run, so a limit that is too low for such a server is
unknown to be too low for this one.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.units import format_bytes, format_count
from asyncli.preflight.configured import Configured

# Products whose threads serve many connections each.
_SHARE_THREADS = frozenset({"nginx", "HAProxy"})


class _TaskLimit(NamedTuple):
    used: str
    limit: str
    place: str
    remedy: str


_LIMITS = (
    _TaskLimit(
        metrics.SERVER_GROUP_TASKS,
        metrics.SERVER_GROUP_TASKS_LIMIT,
        "pids.max of its control group",
        "systemd TasksMax=, docker --pids-limit",
    ),
    _TaskLimit(
        metrics.SERVER_USER_TASKS,
        metrics.SERVER_USER_TASKS_LIMIT,
        "RLIMIT_NPROC of its user",
        "systemd LimitNPROC=, ulimit -u",
    ),
    _TaskLimit(
        metrics.HOST_TASKS,
        metrics.HOST_TASKS_LIMIT,
        "kernel.threads-max and kernel.pid_max of its host",
        "sysctl -w kernel.threads-max=N kernel.pid_max=N",
    ),
)


def task_checks(plan: Plan, configured: Configured) -> list[Check]:
    """The checks of a server whose processes are known."""
    if configured.product in _SHARE_THREADS:
        return []
    checks = [_tasks(plan, configured.limits), _address_space(configured.limits)]
    return [check for check in checks if check is not None]


def _tasks(plan: Plan, limits: dict[str, float]) -> Check | None:
    """The limit on threads that leaves the least room."""
    rooms = []
    for limit in _LIMITS:
        if limit.limit in limits and limit.used in limits:
            rooms.append((max(0.0, limits[limit.limit] - limits[limit.used]), limit))
    if not rooms:
        return None
    room, limit = min(rooms)
    code = "server_tasks"
    subject = "threads that the server may still start"
    allowed = format_count(limits[limit.limit])
    detail = f"{limit.place}: {allowed}, {format_count(limits[limit.used])} now"
    if plan.connections <= room:
        return Check(code, subject, "ok", room, plan.connections, "threads", detail)
    detail += (
        "; a server with a thread or a process for each connection is full then, and whether this "
        "one is shows only in a run"
    )
    remedy = f"if it is one, raise that limit ({limit.remedy})"
    return Check(code, subject, "unknown", room, plan.connections, "threads", detail, remedy)


def _address_space(limits: dict[str, float]) -> Check | None:
    """What a connection takes of it is known only by a run."""
    limit = limits.get(metrics.SERVER_ADDRESS_SPACE_LIMIT_BYTES)
    used = limits.get(metrics.SERVER_ADDRESS_SPACE_BYTES)
    if limit is None or used is None:
        return None
    detail = (
        f"{format_bytes(used)} of {format_bytes(limit)} are in use (RLIMIT_AS); what a connection "
        "takes shows only in a run, and a thread takes its stack (ulimit -s)"
    )
    return Check(
        "server_address_space",
        "address space of the server's process that is closest to its limit",
        "unknown",
        max(0.0, limit - used),
        unit="bytes",
        detail=detail,
    )
