"""The costs of a run as values, and the ways to change them. Each change returns new costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Protocol, Self

import msgspec

from asyncli.analysis.constants import PART
from asyncli.analysis.heap_cost import HEAP_COSTS, HeapCosts
from asyncli.analysis.holders import Holders
from asyncli.analysis.residue import Residue
from asyncli.analysis.slope import Cost, Fit
from asyncli.model.records import Finding


class Costs(msgspec.Struct):
    """The costs; None where unknown, with the reason in ``unknown`` and in ``findings``.

    ``kernel_queued``: pages of queued TCP buffers per socket end, in no other cost. ``fits``: the
    points and lines, by the same names. ``client_total``: of asyncli's own host if the server is on
    another; in no other cost. ``streams``: HTTP/2 streams held by each connection. ``ends``:
    sockets per connection on the sampled host, including a proxy's to its backend; ``kernel`` is
    per socket.
    """

    server_user: Cost | None = None
    kernel: Cost | None = None
    kernel_queued: Cost | None = None
    generator_user: Cost | None = None
    host_total: Cost | None = None
    residual: Cost | None = None
    client_total: Cost | None = None
    findings: list[Finding] = msgspec.field(default_factory=list)
    fits: dict[str, Fit] = msgspec.field(default_factory=dict)
    residue: Residue = msgspec.field(default_factory=Residue)
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    streams: float | msgspec.UnsetType = msgspec.UNSET
    ends: int = 2
    #: Who holds the connections; and what the programs behind the server cost.
    holders: Holders = Holders()
    behind: Cost | None = None
    #: Memory of the server's control group, if that has a limit; in no other cost.
    server_group: Cost | None = None
    #: By the runtime's own numbers, where the server, or the program behind it, has a page of them;
    #: parts of ``server_user``, or of ``behind``.
    heap: HeapCosts = HeapCosts()

    # -- what is known

    def cost_of(self, name: str) -> Cost | None:
        """The cost ``name``; None where it is unknown. By name: an adjustment is of several."""
        by_name = {
            "server_user": self.server_user,
            "kernel": self.kernel,
            "kernel_queued": self.kernel_queued,
            "generator_user": self.generator_user,
            "host_total": self.host_total,
            "residual": self.residual,
            "behind": self.behind,
            "live": self.heap.live,
            "stacks": self.heap.stacks,
            "at_goal": self.heap.at_goal,
        }
        return by_name[name]

    def written(self, name: str) -> Cost | None:
        """The cost ``name`` for a document: where it is hidden, the middle of its interval is no
        measurement, and puts the line anywhere; but no memory is below zero without connections.
        The residual, a difference of memories, may be.
        """
        cost = self.cost_of(name)
        if cost is None or name == "residual" or is_measured(self, name):
            return cost
        if cost.fixed_bytes >= 0:
            return cost
        return msgspec.structs.replace(cost, fixed_bytes=0.0)

    def rising(self, *names: str) -> list[str]:
        """Which of these costs are more for the last connections than for all on average."""
        rising = []
        for name in names:
            fit = self.fits.get(name)
            if fit is not None and any(bend.rises for bend in fit.bends):
                rising.append(name)
        return rising

    @property
    def behind_programs(self) -> list[str]:
        """The programs that hold as many connections behind the server."""
        return list(self.holders.behind)

    @property
    def with_heap(self) -> str:
        """The part that has the heap of :attr:`heap` in it: the server, or what is behind it."""
        return "behind" if self.heap.program else "server_user"

    def times_in_connection(self, name: str) -> int:
        """How many times a cost is in that of a connection: the kernel's is of one socket end."""
        return self.ends if name == "kernel" else 1

    def sum_of(self, names: Collection[str], value: Callable[[Cost], float]) -> float:
        """The sum of a ``value`` of these parts, each of which is known."""
        terms = []
        for name in names:
            part = self.cost_of(name)
            assert part is not None
            terms.append(self.times_in_connection(name) * value(part))
        return math.fsum(terms)

    # -- changes

    def with_heap_at_goal(self) -> Self:
        """As a host must be planned: a heap that is collected comes to rest when it has filled to
        its goal, above what the ramp shows of it. Unchanged where that goal is unknown.
        """
        goal = self.heap.at_goal
        resident = self.cost_of(self.with_heap)
        if goal is None or resident is None:
            return self
        fixed_bytes = goal.fixed_bytes if goal.is_whole else resident.fixed_bytes
        planned = msgspec.structs.replace(
            resident,
            bytes_per_connection=goal.bytes_per_connection,
            ci95=goal.ci95,
            fixed_bytes=fixed_bytes,
            of_levels=False,
        )
        total = self.host_total
        if total is not None:
            # The error of the server's slope is in the total's own.
            low, middle, high = (
                end - resident.bytes_per_connection
                for end in (goal.ci95[0], goal.bytes_per_connection, goal.ci95[1])
            )
            total = msgspec.structs.replace(
                total,
                bytes_per_connection=total.bytes_per_connection + middle,
                ci95=(total.ci95[0] + low, total.ci95[1] + high),
                fixed_bytes=total.fixed_bytes + fixed_bytes - resident.fixed_bytes,
            )
        return msgspec.structs.replace(self, **{self.with_heap: planned}, host_total=total)

    def noting(self, *findings: Finding) -> Self:
        """With further findings."""
        return msgspec.structs.replace(self, findings=[*self.findings, *findings])

    def fitted(self, name: str, fit: Fit) -> Self:
        """With the cost ``name`` by this fit."""
        return msgspec.structs.replace(self, **{name: fit.cost}, fits={**self.fits, name: fit})

    def without(self, why: Finding, *names: str) -> Self:
        """Without these costs, which are unknown for this reason."""
        fits = {name: fit for name, fit in self.fits.items() if name not in names}
        unknown = {**self.unknown, **dict.fromkeys(names, why.evidence)}
        # Of what is read beside, only the reason is kept.
        costs = dict.fromkeys(name for name in names if name in self.__struct_fields__)
        return msgspec.structs.replace(self, **costs, fits=fits, unknown=unknown)

    def revised(self, name: str, **changes: Any) -> Self:
        """With changes to a cost. The level with all connections was read: another slope keeps it,
        by another fixed part.
        """
        known = self.cost_of(name)
        assert known is not None
        fit = self.fits[name]
        value = changes.get("bytes_per_connection", known.bytes_per_connection)
        fixed = known.fixed_bytes + (known.bytes_per_connection - value) * max(fit.n)
        cost = msgspec.structs.replace(known, **changes, fixed_bytes=fixed)
        return self.fitted(name, msgspec.structs.replace(fit, cost=cost))

    def widened(self, name: str, lower: float, higher: float, without: str = "") -> Self:
        """With an interval that is wider by so many bytes at either end; the value moves with its
        middle. ``without``: why, if it is worth telling.
        """
        cost = self.cost_of(name)
        if cost is None:
            return self
        method = cost.method
        if without and max(lower, higher) > PART * abs(cost.bytes_per_connection):
            method = f"{method}; the interval reaches to that without {without}"
        ci95 = (cost.ci95[0] - lower, cost.ci95[1] + higher)
        value = cost.bytes_per_connection + (higher - lower) / 2
        return self.revised(name, bytes_per_connection=value, ci95=ci95, method=method)

    def reaching_to(self, name: str, other: Cost, of: str) -> Self:
        """With an interval that includes the cost ``other``, by another count of connections; the
        value is halfway.
        """
        cost = self.cost_of(name)
        assert cost is not None
        ci95 = (min(cost.ci95[0], other.ci95[0]), max(cost.ci95[1], other.ci95[1]))
        method = f"{cost.method}; the interval includes {of}"
        return self.revised(name, bytes_per_connection=sum(ci95) / 2, ci95=ci95, method=method)

    def reaching_up(self, name: str, rise: Cost, of: str) -> Self:
        """With an interval from without ``rise`` to with all of it; the value is halfway."""
        cost = self.cost_of(name)
        if cost is None:
            return self
        middle = cost.bytes_per_connection + rise.bytes_per_connection / 2
        ci95 = (cost.ci95[0], cost.ci95[1] + rise.ci95[1])
        method = f"{cost.method}; the interval includes {of}"
        return self.revised(name, bytes_per_connection=middle, ci95=ci95, method=method)


class CostsByName(Protocol):
    """The costs of a run, or those of its report."""

    host_total: Cost | None

    def cost_of(self, name: str) -> Cost | None: ...


def known_of_heap(costs: CostsByName) -> list[str]:
    """Which costs of the server's heap are known."""
    return [name for name in HEAP_COSTS if costs.cost_of(name) is not None]


def is_measured(costs: CostsByName, name: str) -> bool:
    """Whether a cost is known, and its interval above zero or within a byte of it. Of a residual,
    the interval of the total.
    """
    cost = costs.cost_of(name)
    if cost is None:
        return False
    if name == "residual" and costs.host_total is not None:
        cost = costs.host_total
    low, high = cost.ci95
    return low > 0 or max(abs(low), abs(high)) < 1
