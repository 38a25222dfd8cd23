"""How much memory a number of connections takes on the server's host, and how many hosts that is,
by a run. Pure.

Each part is its line at that number: the fixed part, and the cost of a connection times the
connections. The client's end and asyncli are elsewhere. What of the residual is the server's is
unknown, so the interval reaches to all of it. The parts' errors may be correlated, so they are
added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.cost_parts import Costs, is_measured
from asyncli.analysis.forecast import RESERVE, Forecast, server_ends
from asyncli.findings.cost import SURE
from asyncli.model.units import format_bytes

PartName = Literal["server_user", "behind", "kernel"]
# Limits of asyncli's side, and of this host with both ends on it: a server of its own does not have
# them.
_NOT_THE_SERVERS = frozenset({"ports", "generator", "memory", "server_host"})


class SizedPart(msgspec.Struct, frozen=True):
    """Bytes of a part with all connections and their 95 % interval, None where unknown, with the
    reason in ``why``. A part that noise hides has an interval, from zero on, and no bytes.
    """

    name: PartName
    bytes_per_connection: float | None
    fixed_bytes: float | None
    bytes: float | None
    ci95: tuple[float, float] | None
    why: str = ""

    @property
    def is_wide(self) -> bool:
        """Whether the interval says more than its middle."""
        if self.bytes is None or self.ci95 is None:
            return False
        low, high = self.ci95
        furthest = max(high - self.bytes, self.bytes - low)
        return furthest > SURE * self.bytes


class SizedLimit(msgspec.Struct, frozen=True):
    """A limit of a host as it was in the run: so many ``connections`` fit, and ``needed`` are asked
    of each host.
    """

    name: str
    connections: float
    needed: float
    how: str

    @property
    def suffices(self) -> bool:
        return self.connections >= self.needed

    @property
    def factor(self) -> float:
        """By how much it must be raised; infinite if no connection fits."""
        return self.needed / self.connections if self.connections else math.inf


class Sizing(msgspec.Struct, frozen=True):
    """The answer. ``total_bytes`` and ``ci95``: on one host, None where a part or the residual is
    unknown. ``host_bytes``: memory of a host, of which a tenth stays free. ``hosts`` and
    ``hosts_ci95``: how many of these; None where unknown, or where not even one fits; without the
    residual ``hosts`` are the fewest.
    """

    connections: int
    #: The most connections that the run held, and how many times as many are asked for.
    measured: int
    factor: float
    parts: tuple[SizedPart, ...]
    total_bytes: float | None
    ci95: tuple[float, float] | None
    host_bytes: float | None
    hosts: int | None
    hosts_ci95: tuple[int, int] | None
    limits: tuple[SizedLimit, ...]
    #: The most bytes on one host where a part is hidden; None where the total is known, or a part
    #: has no bound.
    at_most_bytes: float | None = None
    #: The least bytes on one host where all parts are known but the residual is not, and why it is
    #: not ("": it is).
    at_least_bytes: float | None = None
    rest_unknown: str = ""
    #: The most bytes of the residual; None where it was not measured.
    rest_at_most_bytes: float | None = None
    #: Whether a host of ``host_bytes`` has no room for the fixed parts.
    host_too_small: bool = False

    @property
    def unknown(self) -> list[SizedPart]:
        """The parts without a number."""
        return [part for part in self.parts if part.bytes is None]


def size(
    costs: Costs,
    forecast: Forecast,
    *,
    connections: int,
    measured: int,
    host_bytes: float | None,
    gogc: int | None = None,
    memory_limit: float | None = None,
) -> Sizing:
    """The memory of ``connections`` by the ``costs`` of a run that held ``measured``, on hosts of
    ``host_bytes`` each. ``gogc``, ``memory_limit``: of a server in Go, in percent and bytes; None
    of another.
    """
    limit_bytes = math.inf
    if memory_limit is not None:
        limit_bytes = memory_limit / connections
    costs = _up_to_goal_of_go(costs.with_heap_at_goal(), gogc, limit_bytes)
    parts = _parts(costs, connections)
    rest_at_most = _rest_at_most(costs, connections)
    rest_unknown = _why_rest_is_unknown(costs, parts, rest_at_most)
    if rest_unknown:
        costs = msgspec.structs.replace(costs, residual=None)
    total = _Sum.of(parts, costs, connections)
    hosts, bounds = _hosts(total, host_bytes)
    if rest_unknown:
        # A cache or a database may work for the server: the parts are the least that it takes.
        hosts, bounds = _fewest(bounds), None
    share = math.ceil(connections / hosts) if hosts else connections
    sizing = Sizing(
        connections=connections,
        measured=measured,
        factor=connections / measured if measured else math.inf,
        parts=parts,
        total_bytes=None,
        ci95=None,
        host_bytes=host_bytes,
        hosts=hosts,
        hosts_ci95=bounds,
        limits=_limits(forecast.ceilings, share),
        rest_unknown=rest_unknown,
        rest_at_most_bytes=rest_at_most,
        host_too_small=host_bytes is not None and _room_in(host_bytes, parts) <= 0,
    )
    if total is None:
        at_most = _at_most(parts, costs, connections)
        return msgspec.structs.replace(sizing, at_most_bytes=at_most)
    low = total.low(connections)
    if rest_unknown:
        return msgspec.structs.replace(sizing, at_least_bytes=low)
    return msgspec.structs.replace(
        sizing, total_bytes=total.at(connections), ci95=(low, total.high(connections))
    )


def _up_to_goal_of_go(costs: Costs, gogc: int | None, limit_bytes: float) -> Costs:
    """With the memory of a server in Go up to what its heap may come to rest at, where its cost at
    the goal is unknown.

    Go lets the heap grow by GOGC percent of what is alive and of the stacks. Both were resident
    while the heap was filling, so that it takes at most that much more than it had then. A memory
    limit, of ``limit_bytes`` for each connection, leaves no garbage beyond it.
    """
    user = costs.server_user
    if gogc is None or gogc <= 0 or user is None:
        return costs
    if costs.heap.at_goal is not None and not costs.heap.program:
        return costs
    low, high = user.ci95
    most_garbage = max(0.0, min(high * gogc / 100, limit_bytes - high))
    user = msgspec.structs.replace(user, ci95=(low, high + most_garbage))
    return msgspec.structs.replace(costs, server_user=user)


def _rest_at_most(costs: Costs, connections: int) -> float | None:
    if costs.residual is None:
        return None
    return max(0.0, costs.residual.ci95[1]) * connections


def _why_rest_is_unknown(
    costs: Costs, parts: Sequence[SizedPart], rest_at_most: float | None
) -> str:
    """Why no total has the residual in it; "" if one has. A residual that may be more than all that
    was measured is no memory of the server, but of whoever else ran on the host.
    """
    if rest_at_most is None:
        return costs.unknown.get("residual", "it was not measured")
    in_parts = sum(part.ci95[1] for part in parts if part.ci95 is not None)
    if rest_at_most <= in_parts:
        return ""
    return (
        f"in all its interval reaches to {format_bytes(rest_at_most)}, more than all that was "
        "measured, and other programs may hold that"
    )


def _room_in(host_bytes: float, parts: Sequence[SizedPart]) -> float:
    """The memory of a host (bytes) that its reserve and the fixed parts leave for connections."""
    fixed = sum(part.fixed_bytes or 0.0 for part in parts)
    return host_bytes * (1 - RESERVE) - fixed


def _fewest(bounds: tuple[int, int] | None) -> int | None:
    if bounds is None:
        return None
    fewest, _ = bounds
    return fewest


def _parts(costs: Costs, connections: int) -> tuple[SizedPart, ...]:
    names: list[PartName] = ["server_user", "kernel"]
    if costs.behind_programs:
        names.insert(1, "behind")
    times = {"kernel": server_ends(costs)}
    return tuple(_part(costs, name, times.get(name, 1), connections) for name in names)


def _part(costs: Costs, name: PartName, times: int, connections: int) -> SizedPart:
    cost = costs.cost_of(name)
    if cost is None:
        return SizedPart(
            name, None, None, None, None, costs.unknown.get(name, "it was not measured")
        )
    if costs.rising(name) and connections > max(costs.fits[name].n):
        why = "each further connection costs more, and how much is unknown beyond those of the run"
        return SizedPart(name, None, None, None, None, why)
    if not is_measured(costs, name):
        at_most = times * (max(0.0, cost.fixed_bytes) + cost.ci95[1] * connections)
        bounds = (0.0, at_most) if cost.ci95[1] > 0 else None
        return SizedPart(
            name,
            None,
            None,
            None,
            bounds,
            "its interval reaches zero: noise or other programs hide it",
        )
    slope = times * cost.bytes_per_connection
    fixed = times * max(0.0, cost.fixed_bytes)
    low, high = (fixed + times * end * connections for end in cost.ci95)
    return SizedPart(name, slope, fixed, fixed + slope * connections, (low, high))


def _at_most(parts: Sequence[SizedPart], costs: Costs, connections: int) -> float | None:
    if costs.residual is None:
        return None
    at_most = 0.0
    for part in parts:
        if part.ci95 is None:
            return None
        at_most += part.ci95[1]
    return at_most + max(0.0, costs.residual.ci95[1]) * connections


class _Sum(msgspec.Struct, frozen=True):
    """All parts: the fixed bytes of a host, and bytes of a connection with their bounds."""

    fixed: float
    slope: float
    slope_low: float
    slope_high: float
    #: Connections for which the bounds hold.
    connections: int

    @classmethod
    def of(cls, parts: Sequence[SizedPart], costs: Costs, connections: int) -> _Sum | None:
        """None if a part is unknown."""
        fixed = 0.0
        slope = 0.0
        low = 0.0
        high = 0.0
        for part in parts:
            if (
                part.bytes is None
                or part.ci95 is None
                or part.fixed_bytes is None
                or part.bytes_per_connection is None
            ):
                return None
            fixed += part.fixed_bytes
            slope += part.bytes_per_connection
            low += (part.ci95[0] - part.fixed_bytes) / connections
            high += (part.ci95[1] - part.fixed_bytes) / connections
        if costs.residual is not None:
            high += max(0.0, costs.residual.ci95[1])
        return cls(fixed, slope, max(0.0, low), high, connections)

    def at(self, connections: float) -> float:
        return self.fixed + self.slope * connections

    def low(self, connections: float) -> float:
        return self.fixed + self.slope_low * connections

    def high(self, connections: float) -> float:
        return self.fixed + self.slope_high * connections


def _hosts(
    total: _Sum | None, host_bytes: float | None
) -> tuple[int | None, tuple[int, int] | None]:
    """How many hosts, and the least and the most of them. Each has its own fixed part."""
    if total is None or host_bytes is None:
        return None, None
    room = host_bytes * (1 - RESERVE) - total.fixed
    if room <= 0:
        return None, None
    needed = [
        max(1, math.ceil(slope * total.connections / room))
        for slope in (total.slope_low, total.slope, total.slope_high)
    ]
    return needed[1], (needed[0], needed[2])


def _limits(ceilings: Sequence[Ceiling], share: int) -> tuple[SizedLimit, ...]:
    """The limits of a server's host, lowest first."""
    known = [
        ceiling
        for ceiling in ceilings
        if ceiling.connections is not None and ceiling.name not in _NOT_THE_SERVERS
    ]
    known.sort(key=lambda ceiling: ceiling.connections or 0.0)
    return tuple(
        SizedLimit(ceiling.name, ceiling.connections or 0.0, share, ceiling.how)
        for ceiling in known
    )
