"""The range of a capacity search: as many connections as this host can carry, or as asked for."""

from __future__ import annotations

import asyncio
import math

import msgspec

from asyncli.analysis.capacity import Search
from asyncli.environment import probe_host
from asyncli.model.data_file import read_data
from asyncli.model.errors import PlanError
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.units import format_count, format_many
from asyncli.model.values import MOST_CONNECTIONS
from asyncli.preflight import checks_to_findings, refusals, refuse
from asyncli.preflight.host_checks import host_checks

# The preflight predicts to two digits.
_TWO_DIGITS = 1.02
_MEMORY = ("memory", "cgroup_memory")


async def make_search(plan: Plan, start: int, most: int | None, within: float) -> Search:
    """The range of the search; ``most`` None: as many as this host can carry.

    Raises :class:`~asyncli.model.errors.PreflightError` if this host cannot carry ``most``.
    """
    data = await asyncio.to_thread(read_data, plan, MOST_CONNECTIONS)
    rows = MOST_CONNECTIONS if data is None else data.rows
    if data is not None and rows < max(start, most or 0):
        held = format_many(rows, "row")
        raise PlanError(f"--data: {plan.data} has {held}; lower --start and --most to at most that")
    if most is None:
        return await _widest_search(plan, start, rows, within)
    if start > most:
        raise PlanError(
            f"--start: {start} is more than --most {most}; lower --start or raise --most"
        )
    checks = await _checks(plan, most)
    if not plan.force:
        refuse(checks)
    return Search(start, most, within)


async def _widest_search(plan: Plan, start: int, rows: int, within: float) -> Search:
    """A search up to what this host can carry, or to the ``rows`` of the data."""
    most, shortage = await host_limit(plan)
    if rows < most:
        return Search(start, rows, within)
    if shortage is None:
        return Search(min(start, most), most, within)
    finding = checks_to_findings([shortage])[0]
    return Search(min(start, most), most, within, finding.evidence, finding.remedy)


def in_words(search: Search, start: int) -> str:
    """The range of a search that was asked to begin at ``start``."""
    first = format_count(min(start, search.most))
    last = format_count(search.most)
    if not search.bound:
        return f"from {first} to at most {last} connections"
    bound = search.bound.partition(":")[0]
    return (
        f"from {first} to at most {last} connections, the most that this host can carry ({bound})"
    )


def sized(plan: Plan, count: int) -> Plan:
    return msgspec.structs.replace(plan, connections=count, batch=min(plan.batch, count))


async def _checks(plan: Plan, count: int) -> list[Check]:
    limits, spread = await probe_host(sized(plan, count))
    return host_checks(sized(plan, count), spread, limits)


async def host_limit(plan: Plan) -> tuple[int, Check | None]:
    """The most connections that this host's preflight allows, to two digits, and the check that
    forbids more, else None.

    A memory warning counts as short. Raises :class:`PreflightError` if this host cannot carry even
    one connection.
    """
    if await _shortage(plan, MOST_CONNECTIONS) is None:
        return MOST_CONNECTIONS, None
    shortage = await _shortage(plan, 1)
    if shortage is not None:
        refuse([msgspec.structs.replace(shortage, verdict="short")])
    low = 1
    high = MOST_CONNECTIONS
    while high > max(low * _TWO_DIGITS, low + 1):
        middle = (low + high) // 2
        if high > 4 * low:
            middle = math.isqrt(low * high)
        shortage_there = await _shortage(plan, middle)
        if shortage_there is None:
            low = middle
        else:
            high = middle
            shortage = shortage_there
    # Rounded down to two digits.
    step = int(10 ** max(0, len(str(low)) - 2))
    return low // step * step, shortage


async def _shortage(plan: Plan, count: int) -> Check | None:
    """The first check that forbids so many connections, or warns that they take too much memory."""
    checks = await _checks(plan, count)
    for check in refusals(checks):
        return check
    for check in checks:
        if check.verdict == "warn" and check.code in _MEMORY:
            return check
    return None
