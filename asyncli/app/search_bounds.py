"""How many connections a capacity search may ask for: what this host can carry by its preflight, or what the user says."""

from __future__ import annotations

import asyncio
import math

import msgspec

from asyncli.analysis.capacity import Search
from asyncli.data_file import read_data
from asyncli.environment import probe_host
from asyncli.errors import PlanError
from asyncli.plan import Plan
from asyncli.preflight import checks_to_findings, refusals, refuse
from asyncli.preflight.checks import host_checks
from asyncli.records import Check
from asyncli.units import format_many
from asyncli.values import MOST_CONNECTIONS

# The preflight predicts to two digits.
_TWO_DIGITS = 1.02
_MEMORY = ("memory", "cgroup_memory")


async def bounded(plan: Plan, start: int, most: int | None, within: float) -> Search:
    """The counts that the search may ask for; ``most`` None: as many as this host can carry. Raises
    :class:`~asyncli.errors.PreflightError` where this host cannot carry ``most``."""
    rows = await asyncio.to_thread(read_data, plan, MOST_CONNECTIONS)
    if rows is not None and rows.rows < max(start, most or 0):
        raise PlanError(f"--data: {plan.data} has {format_many(rows.rows, 'row')}; write --start and --most of at most that")
    if most is None:
        here, why = await most_here(plan)
        if rows is not None and rows.rows < here:
            return Search(start, rows.rows, within)
        told = checks_to_findings([] if why is None else [why])
        return Search(min(start, here), here, within, *((told[0].evidence, told[0].remedy) if told else ()))
    if start > most:
        raise PlanError(f"--start: {start} is more than --most {most}; write at most that")
    checks = await _checks(plan, most)
    if not plan.force:
        refuse(checks)
    return Search(start, most, within)


def sized(plan: Plan, count: int) -> Plan:
    return msgspec.structs.replace(plan, connections=count, batch=min(plan.batch, count))


async def _checks(plan: Plan, count: int) -> list[Check]:
    limits, spread = await probe_host(sized(plan, count))
    return host_checks(sized(plan, count), spread, limits)


async def most_here(plan: Plan) -> tuple[int, Check | None]:
    """The most connections that this host's preflight allows, to two digits, and the check that forbids more.

    (MOST_CONNECTIONS, None) where none does. A memory warning counts as short. Raises :class:`PreflightError` where this host
    cannot carry even one.
    """

    async def short(count: int) -> Check | None:
        checks = await _checks(plan, count)
        return next(iter([*refusals(checks), *(one for one in checks if one.verdict == "warn" and one.code in _MEMORY)]), None)

    if await short(MOST_CONNECTIONS) is None:
        return MOST_CONNECTIONS, None
    low, high, why = 1, MOST_CONNECTIONS, await short(1)
    if why is not None:
        refuse([msgspec.structs.replace(why, verdict="short")])
    while high > max(low * _TWO_DIGITS, low + 1):
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        found = await short(middle)
        low, high, why = (middle, high, why) if found is None else (low, middle, found)
    return _two_digits(low), why


def _two_digits(number: int) -> int:
    """Rounded down; numbers below a hundred stay."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return number // step * step
