"""Assigns the plan's connections to hosts, by what each can hold. Pure: it gets the hosts'
probes.
"""

from __future__ import annotations

import bisect
import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from asyncli.cluster.host_probe import HostProbe
from asyncli.engine.fleet import Room, assign, held_by, take_over
from asyncli.engine.shard import Shard
from asyncli.engine.spread import OWN_DESCRIPTORS, Destination, Spread, workers_needed
from asyncli.findings.generator import cluster, cluster_open
from asyncli.model.errors import ClusterError, HeldError, PlanError, PreflightError
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding
from asyncli.model.units import format_many
from asyncli.preflight import checks_to_findings, refusals
from asyncli.preflight.host_checks import host_checks

# The prefix of the checks of one host of several.
_HOST_PREFIX = "host_"


class HostHeldError(ClusterError, HeldError):
    """Another session opens connections on this client host."""


class Member(msgspec.Struct, frozen=True):
    """A host of the fleet: ``address`` of its Dask worker, ``workers``: the numbers of its
    processes.
    """

    name: str
    address: str
    seen: HostProbe
    room: Room
    workers: tuple[int, ...] = ()

    @property
    def spread(self) -> Spread:
        assert self.seen.spread is not None
        return self.seen.spread


class Placement(msgspec.Struct, frozen=True):
    """A plan spread over the hosts of a run. ``workers``: the number of all processes;
    ``left_out``: hosts without room for the share of one.
    """

    plan: Plan
    members: tuple[Member, ...]
    workers: int
    destinations: tuple[Destination, ...]
    left_out: tuple[Member, ...] = ()

    def share(self, numbers: Sequence[int]) -> int:
        """The number of connections that the workers with these numbers open."""
        return held_by(self.plan.connections, self.plan.batch, self.workers, numbers)

    def take_over(
        self, numbers: Sequence[int], free: Mapping[str, Room]
    ) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
        """Which hosts with ``free`` room open a lost host's share, and which numbers have
        no room.
        """
        return take_over(self.plan.connections, self.plan.batch, self.workers, numbers, free)

    @property
    def checks(self) -> list[Check]:
        """Each host's limits checked against its share."""
        checks = []
        for member in self.members:
            part = _part(self.plan, self.share(member.workers))
            workers = max(1, len(member.workers))
            spread = msgspec.structs.replace(member.spread, workers=workers)
            for check in host_checks(part, spread, member.seen.limits):
                code = f"{_HOST_PREFIX}{check.code}"
                named = f"{member.name}: {check.what}"
                checks.append(msgspec.structs.replace(check, code=code, what=named))
        return checks

    @property
    def spread(self) -> Spread:
        sources: list[str] = []
        for member in self.members:
            sources += member.spread.sources or ("",)
        ports = min(member.spread.ports for member in self.members)
        return Spread(self.destinations, tuple(sources), self.workers, local=False, ports=ports)

    def shard_of(self, shard: Shard, member: Member) -> Shard:
        """``shard`` for one host: its workers, its sources, and the destinations by its own
        resolver.
        """
        spread = member.spread
        # A host that joins later has no workers yet: it takes over what it has room for.
        connections = self.share(member.workers) if member.workers else member.room.connections
        return msgspec.structs.replace(
            shard,
            destinations=spread.destinations,
            sources=spread.sources,
            local=spread.local,
            mine=member.workers,
            crowded=spread.crowds(connections),
        )

    def document(self, member: Member) -> dict[str, Any]:
        """A host, for the run file."""
        return {
            "name": member.name,
            "address": member.address,
            "connections": self.share(member.workers),
            "workers": len(member.workers),
            "room": member.room.connections,
            "sources": max(1, len(member.spread.sources)),
            "limits": msgspec.to_builtins(member.seen.limits),
        }


def choose(seen: Mapping[str, HostProbe | str], plan: Plan) -> list[Member]:
    """One Dask worker for each host. ``seen``: address -> its probe, or the error. Raises
    :class:`ClusterError`.
    """
    hosts: dict[str, list[tuple[str, HostProbe]]] = {}
    for address, probe in sorted(seen.items()):
        if isinstance(probe, str):
            raise ClusterError(f"the worker at {address} {probe}")
        if probe.why_not:
            raise ClusterError(f"{probe.host} ({address}): {probe.why_not}")
        hosts.setdefault(probe.place, []).append((address, probe))
    hosts_by_name = Counter(workers[0][1].host for workers in hosts.values())
    members = []
    for workers in hosts.values():
        address, probe = workers[0]
        name = probe.host
        if hosts_by_name[name] > 1:
            name = f"{name} at {urlsplit(address).hostname}"
        for _, other in workers:
            if other.held_by:
                raise HostHeldError(
                    f"{name} is held by {other.held_by}; "
                    "wait for its end, or leave that host's worker out"
                )
        members.append(Member(name, address, probe, room_of(plan, probe)))
    return _with_distinct_names(members)


def _with_distinct_names(members: list[Member]) -> list[Member]:
    """``members``, with the port in the names that several have."""
    members_by_name = Counter(member.name for member in members)
    distinct = []
    for member in members:
        name = member.name
        if members_by_name[name] > 1:
            name = f"{name}:{urlsplit(member.address).port}"
        distinct.append(msgspec.structs.replace(member, name=name))
    return distinct


def place(plan: Plan, members: list[Member]) -> Placement:
    """Assign the plan's connections to ``members``. Raises :class:`PreflightError` if they cannot
    hold them, unless ``plan.force``.
    """
    if plan.workers is not None and plan.workers < len(members):
        hosts = format_many(len(members), "host")
        raise PlanError(
            f"--workers: {plan.workers} for {hosts}; "
            f"write {len(members)} or more, the number on all hosts together"
        )
    # The limits of a host without room must not refuse the others.
    roomy = [member for member in members if member.room.connections]
    assigned = None
    if roomy:
        rooms = [member.room for member in roomy]
        assigned = assign(plan.connections, plan.batch, rooms, plan.workers)
    if assigned is None:
        if not plan.force:
            lines = [*_refusal_lines(plan, members), "(override: --force)"]
            raise PreflightError("\n".join(lines))
        roomy = members
        all_of_them = plan.connections
        rooms = [Room(all_of_them, all_of_them, member.room.cpus) for member in members]
        assigned = assign(plan.connections, plan.batch, rooms, plan.workers)
        assert assigned is not None
    # A host without a worker would send nothing and seem lost.
    used = []
    for member, numbers in zip(roomy, assigned, strict=True):
        if numbers:
            used.append(msgspec.structs.replace(member, workers=numbers))
    names = {member.name for member in used}
    left_out = tuple(member for member in members if member.name not in names)
    destinations: dict[Destination, None] = {}
    for member in used:
        destinations.update(dict.fromkeys(member.spread.destinations))
    workers = sum(map(len, assigned))
    return Placement(plan, tuple(used), workers, tuple(destinations), left_out)


def room_of(plan: Plan, seen: HostProbe) -> Room:
    """A host's room for ``plan``: the most connections that its preflight does not refuse, and the
    most in one process.
    """
    limits = seen.limits
    nofile = limits.nofile_hard or 1024
    counts = range(1, plan.connections + 1)
    connections = bisect.bisect_left(
        counts, True, key=lambda count: bool(_refusals(plan, seen, count))
    )
    in_one_process = max(1, min(nofile, limits.nr_open or nofile) - OWN_DESCRIPTORS)
    return Room(connections, in_one_process, limits.cpus or 1)


def _refusals(plan: Plan, seen: HostProbe, connections: int) -> list[Check]:
    assert seen.spread is not None
    nofile = seen.limits.nofile_hard or 1024
    workers = workers_needed(connections, nofile, seen.limits.cpus or 1, plan.batch)
    spread = msgspec.structs.replace(seen.spread, workers=workers)
    return refusals(host_checks(_part(plan, connections), spread, seen.limits))


def _part(plan: Plan, connections: int) -> Plan:
    """The plan of one host: its connections, at its share of the rate."""
    count = max(1, connections)
    interval_s = plan.interval_s * plan.connections / count
    return msgspec.structs.replace(plan, connections=count, interval_s=interval_s)


def _refusal_lines(plan: Plan, members: list[Member]) -> list[str]:
    room = sum(member.room.connections for member in members)
    if room >= plan.connections and plan.workers is None:
        return [
            f"batches of {plan.batch:,} do not fit into the room of the hosts, "
            "each opened by one host; lower --batch"
        ]
    if room >= plan.connections:
        return [f"the shares of {plan.workers} processes fit on no host; leave --workers out"]
    hosts = format_many(len(members), "host")
    lines = [
        f"the {hosts} of the cluster can hold {room:,} of the {plan.connections:,} connections; "
        "add hosts, or raise limits:"
    ]
    for member in members:
        checks = _refusals(plan, member.seen, member.room.connections + 1)
        for finding in checks_to_findings(checks):
            lines.append(
                f"{member.name}, {member.room.connections:,}: {finding.evidence}; "
                f"remedy: {finding.remedy}"
            )
    return lines


def sampled_ends(server: bool, opened: int, connections: int) -> int | None:
    """The number of ends of each connection on one machine, which runs the ``server`` or not and
    opens ``opened`` of them; None if it differs between connections.
    """
    if opened not in (0, connections):
        return None
    return int(server) + int(opened == connections)


def unencrypted(address: str) -> Finding | None:
    """A finding for a scheduler that anyone can use: neither encrypted nor on loopback."""
    parts = urlsplit(address)
    if parts.scheme != "tcp":
        return None
    try:
        if ipaddress.ip_address(parts.hostname or "").is_loopback:
            return None
    except ValueError:
        pass
    return cluster_open(address)


def placement_finding(fleet: Placement) -> Finding:
    """Which hosts open the connections."""
    shares = {member.name: fleet.share(member.workers) for member in fleet.members}
    return cluster(
        shares, fleet.workers, {member.name: member.room.connections for member in fleet.left_out}
    )
