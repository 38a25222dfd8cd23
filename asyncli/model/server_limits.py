"""Limits that a server with a thread or a process for each connection may reach: what is used of
each, how much may be, and where that is set.

Readings (:mod:`asyncli.collect.server_limits`), checks before a run, forecasts and bottlenecks go
through these tables. To add a limit: a line here, a sentence in each of them, and its reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncli.model import metrics


class ServerLimit(NamedTuple):
    """``name``: in forecasts. ``used``, ``limit``: the metrics that have it. ``setting``: of the
    kernel, or of what started the server.
    """

    name: str
    used: str
    limit: str
    setting: str


#: On tasks, that is the threads of all processes.
TASK_LIMITS: Sequence[ServerLimit] = (
    ServerLimit(
        "group_tasks", metrics.SERVER_GROUP_TASKS, metrics.SERVER_GROUP_TASKS_LIMIT, "pids.max"
    ),
    ServerLimit(
        "user_tasks", metrics.SERVER_USER_TASKS, metrics.SERVER_USER_TASKS_LIMIT, "RLIMIT_NPROC"
    ),
    ServerLimit(
        "host_tasks",
        metrics.HOST_TASKS,
        metrics.HOST_TASKS_LIMIT,
        "kernel.threads-max, kernel.pid_max",
    ),
)
#: On the memory of a process.
MEMORY_LIMITS: Sequence[ServerLimit] = (
    ServerLimit(
        "address_space",
        metrics.SERVER_ADDRESS_SPACE_BYTES,
        metrics.SERVER_ADDRESS_SPACE_LIMIT_BYTES,
        "RLIMIT_AS",
    ),
    ServerLimit("data", metrics.SERVER_DATA_BYTES, metrics.SERVER_DATA_LIMIT_BYTES, "RLIMIT_DATA"),
)
