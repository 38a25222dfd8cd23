"""The preflight as a document for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncli.analysis.tls import tls_findings, tls_part
from asyncli.engine.spread import Spread
from asyncli.plan import Plan
from asyncli.records import Check, Finding, TlsCounts
from asyncli.report.document import Document, ItemList, ListedItem, Paragraph, Section, finding_items
from asyncli.report.format import milliseconds
from asyncli.report.run_events import tls_words
from asyncli.report.run_setup import checks_table
from asyncli.report.terminal import print_document
from asyncli.text import oneline
from asyncli.units import format_count, format_duration, format_many

if TYPE_CHECKING:
    from rich.console import Console

#: Verdicts of checks that are listed with their remedy, as severities.
_SEVERITIES = {"short": "error", "warn": "warning"}


def print_checks(
    plan: Plan, spread: Spread, checks: Sequence[Check], findings: Sequence[Finding], console: Console, *,
    tls: dict[str, Any] | None, steps: Mapping[str, Iterable[tuple[str, float]]],
) -> None:  # fmt: skip
    """Print a row for each check, the failed ones first, and below the table their details and remedies. ``tls``: what the server
    agreed to, as a run's environment has it; ``steps``: by URL those of a first connection, with their seconds."""
    from rich.text import Text

    pairs = f"{format_many(len(spread.destinations), 'destination')} x {format_many(max(1, len(spread.sources)), 'source')}"
    asked = (
        f"{format_count(plan.connections)} connections in {format_many(spread.workers, 'process')}, {pairs}, "
        f"{format_count(plan.asked_per_s)} a second: {format_duration(plan.connections / plan.asked_per_s)} of ramp"
    )
    told = [
        ListedItem(_SEVERITIES[one.verdict], one.verdict, oneline(f"{one.what}: {one.detail}" if one.detail else one.what),
                   f"remedy: {oneline(one.remedy)}" if one.remedy else "")
        for one in checks
        if one.verdict in _SEVERITIES
    ]  # fmt: skip
    agreed = []
    for url, done in steps.items():
        took = ", ".join(f"{what} in {milliseconds(seconds * 1e3)}" for what, seconds in done)
        agreed.append(Paragraph(((oneline(url), "bold"), f": {took or 'not reached: see that the server listens'}"), "line"))
    if tls is not None:
        part = tls_part(TlsCounts(spoken={f"{tls['protocol']} {tls['suite']}": 1}), tls["verified"])
        agreed.append(Paragraph((("TLS", "bold"), f": {tls_words(part, {'tls': tls})}"), "line"))
        findings = [*findings, *tls_findings(part, {"tls": tls})]
    elif not steps and (plan.tls is not None or plan.upgrades):
        unseen = "the server's answer was" if plan.tls is None else "the certificate and the rate of handshakes were"
        told.append(ListedItem("info", "info", f"{unseen} not looked at", "remedy: --probe shakes hands with the target"))
    sections = [
        Section("asked", "", [Paragraph(asked, "text"), checks_table(checks), *agreed]),
        Section("short", "", [ItemList([*told, *finding_items(findings)])]),
    ]
    print_document(Document("check", "", "", [], sections), console)
    words, style = _verdict(checks, findings)
    console.print(Text(words, style), soft_wrap=True)


def _verdict(checks: Sequence[Check], findings: Sequence[Finding]) -> tuple[str, str]:
    short = sum(check.verdict == "short" for check in checks)
    if short:
        limits = "one limit is" if short == 1 else f"{short} limits are"
        return f"{limits} too low: a soak will refuse to start. To start it anyway: --force", "bold red"
    unknown = next((one for one in findings if one.code == "server_processes_unknown"), None)
    if unknown is None:
        return "OK: no limit blocks this plan", "green"
    hosts = "the client hosts" if any(one.code == "cluster" for one in findings) else "this host"
    why = oneline(str(unknown.fields.get("why", unknown.evidence)))
    return f"OK: no limit of {hosts} blocks this plan; the server's limits are unknown: {why}", "yellow"
