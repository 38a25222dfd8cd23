"""The preflight as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.engine.spread import Spread
from asyncli.plan import Plan
from asyncli.records import Check
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {"ok": ("ok", "green"), "short": ("SHORT", "bold red"), "warn": ("warn", "yellow"), "unknown": ("?", "dim")}
_ORDER = {"short": 0, "warn": 1, "ok": 2, "unknown": 3}


def print_checks(plan: Plan, spread: Spread, checks: Sequence[Check], console: Console) -> None:
    """Every check in a row, what is short first, and under the table what to do about it."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    pairs = f"{len(spread.destinations)} destination(s) x {max(1, len(spread.sources))} source(s)"
    console.print(
        f"{format_count(plan.connections)} connections in {spread.workers} process(es), {pairs}, "
        f"{format_count(plan.asked_per_s)} a second: {format_duration(plan.connections / plan.asked_per_s)} of ramp"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    table.add_column("what")
    table.add_column("there", justify="right")
    table.add_column("needed", justify="right")
    table.add_column("because", overflow="fold")
    ordered = sorted(checks, key=lambda check: _ORDER[check.verdict])
    for check in ordered:
        mark, style = _MARKS[check.verdict]
        table.add_row(
            Text(mark, style=style), check.what, _number(check.have, check.unit), _number(check.need, check.unit),
            Text(check.detail, style="dim"),
        )  # fmt: skip
    console.print(table)
    mends = [check for check in ordered if check.verdict in ("short", "warn") and check.remedy]
    for check in mends:
        style = _MARKS[check.verdict][1]
        console.print(f"[{style}]{escape(check.what)}[/]: {escape(check.remedy)}", soft_wrap=True)
    short = sum(check.verdict == "short" for check in checks)
    console.print(
        f"[bold red]a soak would be refused: {short} short (--force goes on all the same)[/]" if short
        else "[green]nothing stands in the way[/]"
    )  # fmt: skip


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    if unit in ("s", "seconds"):
        return format_duration(value)
    return f"{value:,.4g}" if value != int(value) else format_count(value)
