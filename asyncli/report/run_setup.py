"""What was asked of a run and where it ran, and how its numbers were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncli.analysis.drift import RULE as DRIFT_RULE
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.reconcile import RULE as RECONCILE_RULE
from asyncli.analysis.reconcile import RULE_OF_TIME as DIVERGENCE_RULE
from asyncli.analysis.slope import Cost
from asyncli.analysis.verdict import RULE as VERDICT_RULE
from asyncli.findings.cost import SETTLED
from asyncli.records import Check
from asyncli.report.answer import server_name
from asyncli.report.document import (
    Block,
    DataTable,
    Definitions,
    Folded,
    Section,
    TableColumn,
    TableRow,
    numbers,
    pairs,
)
from asyncli.report.format import (
    bytes_are,
    cost_rows,
    fixed_is,
)
from asyncli.report.summary import Summary
from asyncli.text import oneline
from asyncli.topology import sides
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    pass


def plan_section(summary: Summary) -> Section:
    rows = [(key.removesuffix("_s").replace("_", " "), _setting(key, value)) for key, value in summary.plan.items()]
    if summary.plan.get("hold_until") and summary.plan.get("hold_s") is None:
        rows = [row for row in rows if row[0] != "hold"]  # it never began
    return Section("plan", "Plan", [pairs("The plan", rows)])


def _setting(key: str, value: Any) -> str:
    if key == "hold_s" and value is None:
        return "until stopped"
    if value is None:
        return "found by asyncli" if key in ("workers", "server_pid") else "not given"
    if key.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    if key == "connections" and isinstance(value, int):
        return format_count(value)
    return _fact(key, value)


_KINDS = {"server": "Server", "agent": "The server's host, by its agent", "limits": "Limits", "sysctls": "Kernel settings"}


def environment_section(summary: Summary, checks: Sequence[Check]) -> Section:
    where = summary.environment
    single = [(key.replace("_", " "), _fact(key, value)) for key, value in where.items() if not isinstance(value, Mapping)]
    blocks: list[Block] = [pairs("Host", [row for row in single if row[0] not in _KINDS])]
    for key, value in where.items():
        if isinstance(value, Mapping) and value:
            blocks.append(
                pairs(_KINDS.get(key, key.replace("_", " ")), [(str(name), _fact(str(name), one)) for name, one in value.items()])
            )
    if checks:
        blocks.append(Folded("What the preflight read", checks_table(checks)))
    return Section("environment", "Environment", blocks)


# Names rather than numbers: what is copied from here goes into a plan or a command, and those take no commas.
_NAMES = ("seed", "pid", "server_pid")


def _fact(key: str, value: Any) -> str:
    """A value of the plan or the environment in words: nothing of it is trusted to be of any kind."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if not math.isfinite(value):
            return "not known"
        if key.endswith("_bytes"):
            return format_bytes(value)
        if isinstance(value, float):
            return f"{value:,.10g}"
        return str(value) if key in _NAMES or abs(value) < 10_000 else f"{value:,d}"
    if isinstance(value, list | tuple):
        return ", ".join(_fact("", one) for one in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact('', one)}" for name, one in value.items()) or "none"
    return oneline(str(value)) or "empty"


_VERDICTS_OF_CHECKS = {"ok": "ok", "short": "short", "warn": "warning", "unknown": "not known"}


def checks_table(checks: Sequence[Check]) -> DataTable:
    """What the preflight read."""
    rows = [
        TableRow(
            oneline(one.what),
            [_VERDICTS_OF_CHECKS[one.verdict], amount(one.have, one.unit), amount(one.need, one.unit), oneline(one.detail)],
        )
        for one in checks
    ]
    columns = [TableColumn("verdict", kind="words"), *numbers("have", "need"), TableColumn("because", kind="words")]
    return DataTable("What the preflight read", columns, rows, kind="wordy stack long")


def amount(value: float | None, unit: str) -> str:
    """A number of a check in its unit."""
    if value is None or not math.isfinite(value):
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return format_duration(value) if unit in ("s", "seconds") else format_count(value)


def method_section(summary: Summary) -> Section:
    """How each number was measured, or by which rule."""
    costs, server, where = summary.cost, server_name(summary), sides(summary.environment)
    known: list[tuple[str, Cost | None]] = [
        (f"Cost in {server}", costs.server_user), ("Cost in the kernel", costs.kernel), ("Queued buffers", costs.kernel_queued),
        ("Cost in asyncli", costs.generator_user), (f"Cost on {where.host} in all", costs.host_total),
        ("Left over", costs.residual),
    ]  # fmt: skip
    rows = cost_rows(costs, server, where)
    read = f"{bytes_are(rows)} {fixed_is(rows)} What is there at the hold's end follows from both."
    if costs.kernel_queued is not None:
        read += " Queued buffers are a reading of what happened to be in flight, and part of no sum."
    items = [
        ("Verdict", f"{VERDICT_RULE}."),
        ("The table of the cost", read),
        (
            "Cost",
            "The slope of memory over connections held: not a quotient, which would spread what is there without any connection "
            "over them. Seconds of a ramp are not independent of each other, so they are put into bins of equal numbers of "
            "connections, each gives one point (its medians), and what correlation is left between points is part of the "
            "interval. Where the ramp is too short for that: the difference of two levels, of the samples before the first "
            "connection and of those in the hold, with what the first connections take once; its interval is that of the line "
            "through all of these samples, by how they wander.",
        ),
        *((label, f"{one.method}; {one.points} points.") for label, one in known if one is not None),
        ("Settled plateaus", f"{SETTLED[:1].upper()}{SETTLED[1:]}."),
        (
            "What is counted as memory",
            "Server: proportional set size of its processes, where shared pages count once. Kernel: slab objects in use of the "
            "socket family. asyncli: private memory of its host process and workers. Host: MemTotal less MemFree, free pages on "
            "the CPUs' own lists (/proc/zoneinfo), Buffers, and Cached but for Shmem. Left over: the host less all of these, at "
            "the same instants.",
        ),
        (
            "Forecast",
            f"Memory: what was available before the first connect, less a reserve of {RESERVE:.0%} and what the first "
            "connections take once, by what one more costs; the interval is the slope's, turned over. The others are limits that "
            "the preflight read, as connections.",
        ),
        ("Drift", f"{DRIFT_RULE[:1].upper()}{DRIFT_RULE[1:]}."),
        (
            "Latency and lateness",
            "Latency counts from the instant at which the heartbeat was due to its answer, lateness from then to its sending: a "
            "late generator cannot hide in either. Quantiles are of histograms that are exact to 1/128 of a value.",
        ),
        ("Counts compared", f"{RECONCILE_RULE[:1].upper()}{RECONCILE_RULE[1:]}. Through time: {DIVERGENCE_RULE}."),
    ]  # fmt: skip
    return Section(
        "method", "How it was measured", [Folded("Rules, definitions, and how each number was found", Definitions(items))]
    )
