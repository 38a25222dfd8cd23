"""Plan, environment and preflight in a run's report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from asyncli.records import Check
from asyncli.report.document import FULL, Block, DataTable, Folded, Section, TableColumn, TableRow, View, numbers, pairs
from asyncli.report.summary import Summary
from asyncli.text import oneline
from asyncli.units import format_bytes, format_count, format_duration


def plan_section(summary: Summary) -> Section:
    rows = [(key.removesuffix("_s").replace("_", " "), _setting(key, value)) for key, value in summary.plan.items()]
    if summary.plan.get("hold_until") and summary.plan.get("hold_s") is None:
        rows = [row for row in rows if row[0] != "hold"]  # it never began
    return Section("plan", "Plan", [pairs("The plan", rows, FULL)])


def _setting(key: str, value: Any) -> str:
    if key == "hold_s" and value is None:
        return "until stopped"
    if value is None:
        return "found by asyncli" if key in ("workers", "server_pid") else "not given"
    if key.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    return fact(key, value)


_KINDS = {"server": "Server", "agent": "The server's host, by its agent", "limits": "Limits", "sysctls": "Kernel settings"}


def environment_section(summary: Summary, checks: Sequence[Check]) -> Section:
    where = summary.environment
    single = [(key.replace("_", " "), fact(key, value)) for key, value in where.items() if not isinstance(value, Mapping)]
    blocks: list[Block] = [pairs("Host", [row for row in single if row[0] not in _KINDS], FULL)]
    for key, value in where.items():
        if isinstance(value, Mapping) and value:
            facts = [(str(name), fact(str(name), one)) for name, one in value.items()]
            blocks.append(pairs(_KINDS.get(key, key.replace("_", " ")), facts, FULL))
    if checks:
        blocks.append(Folded("What the preflight read", checks_table(checks)))
    return Section("environment", "Environment", blocks)


# Copied into plans or commands: no commas.
_NAMES = ("seed", "pid", "server_pid")


def fact(key: str, value: Any) -> str:
    """A value of unknown type of plan or environment, in words."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_bytes"):
            return format_bytes(value)
        if isinstance(value, float):
            return f"{value:,.10g}"
        return str(value) if key in _NAMES or abs(value) < 10_000 else f"{value:,d}"
    if isinstance(value, list | tuple):
        return ", ".join(fact("", one) for one in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {fact('', one)}" for name, one in value.items()) or "none"
    return oneline(str(value)) or "empty"


_MARKS = {"short": ("SHORT", "bold red"), "warn": ("warn", "yellow"), "ok": ("ok", "green"), "unknown": ("?", "dim")}


def checks_table(checks: Sequence[Check]) -> DataTable:
    """The preflight's limits, too low ones first."""
    order = list(_MARKS)
    rows = [
        TableRow(
            oneline(one.what), [_MARKS[one.verdict], amount(one.have, one.unit), amount(one.need, one.unit), oneline(one.detail)]
        )
        for one in sorted(checks, key=lambda one: order.index(one.verdict))
    ]
    because = TableColumn("because", kind="words", view=View.PAGE)
    columns = [TableColumn("verdict", kind="word"), *numbers("have", "need"), because]
    return DataTable("What the preflight read", columns, rows, kind="wordy stack long")


def amount(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return format_duration(value) if unit in ("s", "seconds") else format_count(value)
