"""What opens the connections of a run, and how much room is left to it: workers, client hosts, and
limits, as the run file records them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from asyncli.model import metrics
from asyncli.model.records import Check, Environment
from asyncli.model.text import printable
from asyncli.model.topology import place_of

#: So many limits are shown, those with the least room first.
MOST_SHOWN = 12
# A fleet has some twenty hosts.
_MOST_HOSTS = 100


class _Measured(NamedTuple):
    """A limit of which the samples say how much is in use."""

    name: str
    used: str
    limit: str
    unit: str


_MEASURED = (
    _Measured(
        "descriptors of the server's process that is nearest to its limit",
        metrics.SERVER_DESCRIPTORS,
        metrics.SERVER_DESCRIPTORS_LIMIT,
        "descriptors",
    ),
    _Measured(
        "memory of the server's control group",
        metrics.SERVER_GROUP_BYTES,
        metrics.SERVER_GROUP_LIMIT_BYTES,
        "bytes",
    ),
    _Measured(
        "threads of the server's control group",
        metrics.SERVER_GROUP_TASKS,
        metrics.SERVER_GROUP_TASKS_LIMIT,
        "threads",
    ),
    _Measured(
        "threads of the server's user",
        metrics.SERVER_USER_TASKS,
        metrics.SERVER_USER_TASKS_LIMIT,
        "threads",
    ),
    _Measured(
        "memory maps of the server's process",
        metrics.SERVER_MAPPINGS,
        metrics.SERVER_MAPPINGS_LIMIT,
        "maps",
    ),
    _Measured("threads of the host", metrics.HOST_TASKS, metrics.HOST_TASKS_LIMIT, "threads"),
    _Measured(
        "memory that the host has granted",
        metrics.HOST_COMMITTED_BYTES,
        metrics.HOST_COMMIT_LIMIT_BYTES,
        "bytes",
    ),
)
_AVAILABLE = (metrics.HOST_AVAILABLE_BYTES, f"{metrics.CLIENT}{metrics.HOST_AVAILABLE_BYTES}")


def metrics_of_room() -> list[str]:
    """The metrics of the samples that this needs."""
    names = list(_AVAILABLE)
    for limit in _MEASURED:
        names += (limit.used, limit.limit)
    return names


class RoomLimit(msgspec.Struct, frozen=True):
    """``used`` of ``has``, in ``unit``. ``is_planned``: what the plan needs, by the checks before
    the run; else what is in use by the last sample.
    """

    name: str
    used: float
    has: float
    unit: str
    is_planned: bool
    is_short: bool = False

    @property
    def share(self) -> float:
        return self.used / self.has


class ClientHost(msgspec.Struct, frozen=True):
    """A host of a fleet: its workers, its share of the connections, and for how many it has room;
    None: unknown. ``joined_later``: after the run began.
    """

    name: str
    workers: int | None
    connections: int | None
    room: int | None
    joined_later: bool


def limits(
    checks: Iterable[Check], environment: Environment, values: Mapping[str, float]
) -> list[RoomLimit]:
    """Those with the least room first. ``values``: the last ones that were sampled."""
    known = [*_planned(checks), *_measured(values), *_memory(environment, values)]
    known.sort(key=lambda limit: (-limit.share, limit.name))
    return known


def _planned(checks: Iterable[Check]) -> list[RoomLimit]:
    planned = []
    for check in checks:
        if check.have is None or check.need is None or check.have <= 0:
            continue
        is_short = check.verdict in ("short", "warn")
        planned.append(
            RoomLimit(
                check.what, check.need, check.have, check.unit, is_planned=True, is_short=is_short
            )
        )
    return planned


def _measured(values: Mapping[str, float]) -> list[RoomLimit]:
    measured = []
    for limit in _MEASURED:
        used = values.get(limit.used)
        has = values.get(limit.limit)
        if used is not None and has is not None and has > 0:
            measured.append(RoomLimit(limit.name, used, has, limit.unit, is_planned=False))
    return measured


def _memory(environment: Environment, values: Mapping[str, float]) -> list[RoomLimit]:
    """Memory in use on asyncli's host, and on the server's if that is another one."""
    place = place_of(environment)
    # The client hosts of a fleet are not sampled.
    own = "the session's host" if "cluster" in environment else "asyncli's host"
    hosts = [(f"memory of {own}", place.memory_bytes, place.of_ours(_AVAILABLE[0]))]
    if place.sides.far is not None:
        far = ("memory of the server's host", place.sides.far.memory_bytes, _AVAILABLE[0])
        hosts.append(far)
    memory = []
    for name, total_bytes, metric in hosts:
        available_bytes = values.get(metric)
        if total_bytes and available_bytes is not None:
            used_bytes = max(0.0, total_bytes - available_bytes)
            memory.append(RoomLimit(name, used_bytes, total_bytes, "bytes", is_planned=False))
    return memory


def client_hosts(environment: Environment) -> list[ClientHost]:
    """The hosts of a fleet; none for a run of one host."""
    cluster = environment.get("cluster")
    documents = cluster.get("hosts") if isinstance(cluster, dict) else None
    if not isinstance(documents, list):
        return []
    hosts = []
    for document in documents[:_MOST_HOSTS]:
        if isinstance(document, dict):
            hosts.append(
                ClientHost(
                    name=printable(str(document.get("name"))),
                    workers=_count(document.get("workers")),
                    connections=_count(document.get("connections")),
                    room=_count(document.get("room")),
                    joined_later=document.get("came_later") is True,
                )
            )
    return hosts


def _count(value: Any) -> int | None:
    """A count of the file, which may be another user's."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
