"""Assigns the plan's connections to hosts, by what each can hold. Pure: it gets the hosts' probes."""

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
    """A host of the fleet: ``address`` of its Dask worker, ``workers``: the numbers of its processes."""

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
    """A plan spread over the hosts of a run. ``workers``: the number of all processes; ``left_out``: hosts without room for the
    share of one.
    """

    plan: Plan
    members: tuple[Member, ...]
    workers: int
    destinations: tuple[Destination, ...]
    left_out: tuple[Member, ...] = ()

    def share(self, numbers: Sequence[int]) -> int:
        """The number of connections that the workers with these numbers open."""
        return held_by(self.plan.connections, self.plan.batch, self.workers, numbers)

    def take_over(self, numbers: Sequence[int], free: Mapping[str, Room]) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
        """Which hosts with ``free`` room open a lost host's share, and which numbers have no room."""
        return take_over(self.plan.connections, self.plan.batch, self.workers, numbers, free)

    @property
    def checks(self) -> list[Check]:
        """Each host's limits checked against its share."""
        found = []
        for member in self.members:
            part, spread = _part(self.plan, self.share(member.workers)), member.spread
            spread = msgspec.structs.replace(spread, workers=max(1, len(member.workers)))
            for check in host_checks(part, spread, member.seen.limits):
                named = f"{member.name}: {check.what}"
                found.append(msgspec.structs.replace(check, code=f"{_HOST_PREFIX}{check.code}", what=named))
        return found

    @property
    def spread(self) -> Spread:
        sources = tuple(source for member in self.members for source in member.spread.sources or ("",))
        ports = min(member.spread.ports for member in self.members)
        return Spread(self.destinations, sources, self.workers, local=False, ports=ports)

    def shard_of(self, shard: Shard, member: Member) -> Shard:
        """``shard`` for one host: its workers, its sources, and the destinations by its own resolver."""
        spread = member.spread
        # A host that joins later has no workers yet: it takes over what it has room for.
        most = self.share(member.workers) if member.workers else member.room.connections
        return msgspec.structs.replace(
            shard, destinations=spread.destinations, sources=spread.sources, local=spread.local, mine=member.workers,
            crowded=spread.crowds(most),
        )  # fmt: skip

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
    """One Dask worker for each host. ``seen``: address -> its probe, or the error. Raises :class:`ClusterError`."""
    hosts: dict[str, list[tuple[str, HostProbe]]] = {}
    for address, one in sorted(seen.items()):
        if isinstance(one, str):
            raise ClusterError(f"the worker at {address} {one}")
        if one.why_not:
            raise ClusterError(f"{one.host} ({address}): {one.why_not}")
        hosts.setdefault(one.place, []).append((address, one))
    names = Counter(workers[0][1].host for workers in hosts.values())
    members = []
    for workers in hosts.values():
        address, one = workers[0]
        name = one.host if names[one.host] == 1 else f"{one.host} at {urlsplit(address).hostname}"
        if holder := next((other.held_by for _, other in workers if other.held_by), ""):
            raise HostHeldError(f"{name} is held by {holder}; wait for its end, or leave that host's worker out")
        members.append(Member(name, address, one, room_of(plan, one)))
    by_name = Counter(member.name for member in members)
    return [
        msgspec.structs.replace(member, name=f"{member.name}:{urlsplit(member.address).port}")
        if by_name[member.name] > 1
        else member
        for member in members
    ]


def place(plan: Plan, members: list[Member]) -> Placement:
    """Assign the plan's connections to ``members``. Raises :class:`PreflightError` if they cannot hold them, unless
    ``plan.force``.
    """
    if plan.workers is not None and plan.workers < len(members):
        hosts = format_many(len(members), "host")
        raise PlanError(f"--workers: {plan.workers} for {hosts}; write {len(members)} or more, the number on all hosts together")
    # The limits of a host without room must not refuse the others.
    roomy = [member for member in members if member.room.connections]
    assigned = assign(plan.connections, plan.batch, [member.room for member in roomy], plan.workers) if roomy else None
    if assigned is None:
        if not plan.force:
            raise PreflightError("\n".join([*_refusal_lines(plan, members), "(override: --force)"]))
        roomy, most = members, plan.connections
        assigned = assign(most, plan.batch, [Room(most, most, member.room.cpus) for member in roomy], plan.workers)
        assert assigned is not None
    # A host without a worker would send nothing and seem lost.
    pairs = zip(roomy, assigned, strict=True)
    used = tuple(msgspec.structs.replace(member, workers=numbers) for member, numbers in pairs if numbers)
    names = {member.name for member in used}
    left_out = tuple(member for member in members if member.name not in names)
    destinations = tuple(dict.fromkeys(one for member in used for one in member.spread.destinations))
    return Placement(plan, used, sum(map(len, assigned)), destinations, left_out)


def room_of(plan: Plan, seen: HostProbe) -> Room:
    """A host's room for ``plan``: the most connections that its preflight does not refuse, and the most in one process."""
    limits = seen.limits
    nofile = limits.nofile_hard or 1024
    most = bisect.bisect_left(range(1, plan.connections + 1), True, key=lambda count: bool(_refusals(plan, seen, count)))
    return Room(most, max(1, min(nofile, limits.nr_open or nofile) - OWN_DESCRIPTORS), limits.cpus or 1)


def _refusals(plan: Plan, seen: HostProbe, connections: int) -> list[Check]:
    assert seen.spread is not None
    nofile = seen.limits.nofile_hard or 1024
    workers = workers_needed(connections, nofile, seen.limits.cpus or 1, plan.batch)
    spread = msgspec.structs.replace(seen.spread, workers=workers)
    return refusals(host_checks(_part(plan, connections), spread, seen.limits))


def _part(plan: Plan, connections: int) -> Plan:
    """The plan of one host: its connections, at its share of the rate."""
    count = max(1, connections)
    return msgspec.structs.replace(plan, connections=count, interval_s=plan.interval_s * plan.connections / count)


def _refusal_lines(plan: Plan, members: list[Member]) -> list[str]:
    room = sum(member.room.connections for member in members)
    if room >= plan.connections:
        if plan.workers is None:
            return [f"batches of {plan.batch:,} do not fit into the room of the hosts, each opened by one host; lower --batch"]
        return [f"the shares of {plan.workers} processes fit on no host; leave --workers out"]
    hosts = format_many(len(members), "host")
    lines = [f"the {hosts} of the cluster can hold {room:,} of the {plan.connections:,} connections; add hosts, or raise limits:"]
    for member in members:
        found = checks_to_findings(_refusals(plan, member.seen, member.room.connections + 1))
        lines += [f"{member.name}, {member.room.connections:,}: {one.evidence}; remedy: {one.remedy}" for one in found]
    return lines


def sampled_ends(server: bool, opened: int, connections: int) -> int | None:
    """The number of ends of each connection on one machine, which runs the ``server`` or not and opens ``opened`` of them; None
    if it differs between connections.
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
    return cluster(shares, fleet.workers, {member.name: member.room.connections for member in fleet.left_out})
