"""The preflight as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncli.engine.spread import Spread
from asyncli.plan import Plan
from asyncli.records import Check, Finding
from asyncli.text import oneline
from asyncli.units import format_bytes, format_count, format_duration, format_many

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {"ok": ("ok", "green"), "short": ("SHORT", "bold red"), "warn": ("warn", "yellow"), "unknown": ("?", "dim")}
#: The severities of what was found beside the checks, in the words of the checks.
_SEVERITIES = {"error": ("error", "bold red"), "warning": ("warn", "yellow"), "info": ("info", "dim")}
_ROOMY = 130
_ORDER = {"short": 0, "warn": 1, "ok": 2, "unknown": 3}


def print_checks(plan: Plan, spread: Spread, checks: Sequence[Check], findings: Sequence[Finding], console: Console) -> None:
    """Every check in a row, what is short first; under the table what is behind each shortfall, and what mends it."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    pairs = f"{format_many(len(spread.destinations), 'destination')} x {format_many(max(1, len(spread.sources)), 'source')}"
    console.print(
        f"{format_count(plan.connections)} connections in {format_many(spread.workers, 'process')}, {pairs}, "
        f"{format_count(plan.asked_per_s)} a second: {format_duration(plan.connections / plan.asked_per_s)} of ramp"
    )
    # The reasons make a good fourth column where there is room for it, and a bad one where there is not.
    roomy = console.width >= _ROOMY
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in (("", "left"), ("what", "left"), ("have", "right"), ("need", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    if roomy:
        table.add_column("because", overflow="fold")
    ordered = sorted(checks, key=lambda check: _ORDER[check.verdict])
    for check in ordered:
        mark, style = _MARKS[check.verdict]
        numbers = _number(check.have, check.unit), _number(check.need, check.unit)
        reason = [Text(oneline(check.detail), style="dim")] if roomy else []
        table.add_row(Text(mark, style=style), Text(oneline(check.what)), *numbers, *reason)
    console.print(table)
    for check in ordered:
        if check.verdict in ("short", "warn"):
            mark, style = _MARKS[check.verdict]
            behind = f": {escape(oneline(check.detail))}" if check.detail else ""
            console.print(f"[{style}]{mark}[/] {escape(oneline(check.what))}{behind}", soft_wrap=True)
            if check.remedy:
                console.print(f"  remedy: {escape(oneline(check.remedy))}", soft_wrap=True)
    for finding in findings:
        said, style = _SEVERITIES[finding.severity]
        console.print(f"[{style}]{said}[/] {escape(oneline(finding.evidence))}", soft_wrap=True)
        if finding.remedy:
            console.print(f"  remedy: {escape(oneline(finding.remedy))}", soft_wrap=True)
    short = sum(check.verdict == "short" for check in checks)
    if short:
        console.print(f"[bold red]a soak would be refused: {short} short (--force goes on all the same)[/]")
    elif unknown := next((one for one in findings if one.code == "server_processes_unknown"), None):
        but = escape(oneline(str(unknown.fields.get("why", unknown.evidence))))
        hosts = "the client hosts" if any(one.code == "cluster" for one in findings) else "this host"
        console.print(f"[yellow]no limit of {hosts} stands in the way; the server's own are not known: {but}[/]", soft_wrap=True)
    else:
        console.print("[green]no limit stands in the way[/]")


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    if unit in ("s", "seconds"):
        return format_duration(value)
    return format_count(value)
