"""Plan, environment and preflight in a run's report, and the report of 'asyncli check'."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncli.analysis.cost import ramp_that_fits
from asyncli.analysis.handshakes import planned_s, tls_findings, tls_part
from asyncli.analysis.slope import FEWEST_PLATEAUS, FEWEST_RAMP_POINTS
from asyncli.engine.spread import Spread
from asyncli.model.plan import Plan
from asyncli.model.records import NOTHING_LISTENS, Check, Finding, TlsCounts
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report.format import milliseconds
from asyncli.report.run_events import tls_words
from asyncli.report.summary import Summary
from asyncli.report.terminal import print_document

if TYPE_CHECKING:
    from rich.console import Console


def plan_section(summary: Summary) -> doc.Section:
    rows = [(key.removesuffix("_s").replace("_", " "), _setting(key, value)) for key, value in summary.plan.items()]
    if summary.plan.get("hold_until") and summary.plan.get("hold_s") is None:
        rows = [row for row in rows if row[0] != "hold"]  # the hold never started
    return doc.Section("plan", "Plan", [doc.pairs("The plan", rows, doc.FULL)])


def _setting(key: str, value: Any) -> str:
    if key == "hold_s" and value is None:
        return "until stopped"
    if not value and key in ("workers", "server_pid", "sources"):
        return "automatic"
    if value is None:
        return "not given"
    if key.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    return fact(key, value)


# Facts whose keys are no words.
_FACTS = {
    "nofile_soft": "descriptors per process, soft limit", "nofile_hard": "descriptors per process, hard limit",
    "nproc": "processes of the user", "nr_open": "most of these limits (fs.nr_open)",
    "file_max": "open files of all programs (fs.file-max)", "files_open": "open files now", "port_low": "lowest local port",
    "port_high": "highest local port", "ports_reserved": "reserved of these", "tcp_tw_reuse": "net.ipv4.tcp_tw_reuse",
    "somaxconn": "net.core.somaxconn", "syn_backlog": "net.ipv4.tcp_max_syn_backlog", "conntrack_count": "tracked connections",
    "conntrack_max": "most of these (nf_conntrack_max)", "tcp_mem_pages": "net.ipv4.tcp_mem, pages", "page_bytes": "page",
    "epoll_watches": "fs.epoll.max_user_watches", "memory_total": "memory", "cgroup_memory_limit": "memory limit of the cgroup",
    "cgroup_memory_used": "memory used in the cgroup", "pids_limit": "processes, limit of the cgroup",
    "pids_used": "processes in the cgroup", "threads_max": "threads of all programs (kernel.threads-max)",
    "cpu_quota": "CPUs, limit of the cgroup", "sockets_used": "sockets in use", "tcp_inuse": "TCP sockets in use",
    "tcp_tw": "sockets in TIME_WAIT", "tcp_used_pages": "pages in TCP buffers", "superuser": "root", "cpus": "CPUs",
    "cpu_model": "CPU", "memory_bytes": "memory", "local": "server on this host", "wall_start": "started, by the wall clock",
    "wall_s": "wall clock", "monotonic_s": "monotonic clock", "boot_id": "boot", "time_ns": "time namespace",
    "network": "network namespace", "pid": "process", "exe": "program", "hidden": "hidden (of another user)",
}  # fmt: skip
_KINDS = {"server": "Server", "agent": "The server's host, by its agent", "limits": "Limits", "sysctls": "Kernel settings"}


def environment_section(summary: Summary, checks: Sequence[Check]) -> doc.Section:
    where = summary.environment
    single = [
        (_label(key), fact(key, value)) for key, value in where.items() if not isinstance(value, Mapping) and key not in _KINDS
    ]
    blocks: list[doc.Block] = [doc.pairs("Host", single, doc.FULL)]
    for key, value in where.items():
        if isinstance(value, Mapping) and value:
            facts = [(_label(name), fact(name, one)) for name, one in value.items()]
            blocks.append(doc.pairs(_KINDS.get(key, key.replace("_", " ").capitalize()), facts, doc.FULL))
    if checks:
        blocks.append(doc.Folded("Preflight", checks_table(checks)))
    return doc.Section("environment", "Environment", blocks)


def _label(key: str) -> str:
    """The name of a fact; a kernel setting's is its own."""
    return _FACTS.get(key) or (key if "." in key else key.replace("_", " "))


# Numbers that users copy into plans or commands have no commas.
_NAMES = ("seed", "pid", "server_pid")


def fact(key: str, value: Any) -> str:
    """A value of the plan or the environment as text."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_bytes") or key.startswith(("memory_", "cgroup_memory_")):
            return format_bytes(value)
        if isinstance(value, float):
            return f"{value:,.10g}"
        return str(value) if key in _NAMES or abs(value) < 10_000 else f"{value:,d}"
    if key == "kernel" and isinstance(value, list | tuple):
        return ".".join(map(str, value))
    if isinstance(value, list | tuple):
        return ", ".join(fact("", one) for one in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{_FACTS.get(name, name)} {fact(name, one)}" for name, one in value.items()) or "none"
    return oneline(str(value)) or "empty"


_MARKS = {"short": ("SHORT", "bold red"), "warn": ("warn", "yellow"), "ok": ("ok", "green"), "unknown": ("?", "dim")}


def checks_table(checks: Sequence[Check]) -> doc.DataTable:
    """The preflight's limits, those too low first."""
    order = list(_MARKS)
    rows = [
        doc.TableRow(
            oneline(one.what), [_MARKS[one.verdict], amount(one.have, one.unit), amount(one.need, one.unit), oneline(one.detail)]
        )
        for one in sorted(checks, key=lambda one: order.index(one.verdict))
    ]
    reason = doc.TableColumn("reason", kind="words", view=doc.View.PAGE)
    columns = [doc.TableColumn("verdict", kind="word"), *doc.numbers("have", "need"), reason]
    return doc.DataTable("Preflight", columns, rows, kind="wordy stack long")


def amount(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return format_duration(value) if unit in ("s", "seconds") else format_count(value)


#: The severity of each check verdict that is listed with its remedy.
_SEVERITIES = {"short": "error", "warn": "warning"}


def print_checks(
    plan: Plan, spread: Spread, checks: Sequence[Check], findings: Sequence[Finding], console: Console, *,
    tls: dict[str, Any] | None, steps: Mapping[str, Iterable[tuple[str, float]]],
) -> None:  # fmt: skip
    """Print the answer, a row per check, failed ones first, then details and remedies. ``tls``: the server's TLS, as in a run's
    environment. ``steps``: URL -> (step, seconds) of a first connection."""
    from rich.text import Text

    pairs = f"{format_many(len(spread.destinations), 'destination')} x {format_many(max(1, len(spread.sources)), 'source')}"
    ramp_s = plan.connections / plan.asked_per_s
    asked = (
        f"{format_count(plan.connections)} connections in {format_many(spread.workers, 'process')}, {pairs}, "
        f"{format_count(plan.asked_per_s)} a second: a ramp of {format_duration(ramp_s)}"
    )
    if ramp_s < FEWEST_RAMP_POINTS and plan.plateaus < FEWEST_PLATEAUS:
        asked += f", too short for a slope of the cost ({ramp_that_fits(plan)})"
    items = [
        doc.ListedItem(_SEVERITIES[one.verdict], one.verdict, oneline(f"{one.what}: {one.detail}" if one.detail else one.what),
                   f"remedy: {oneline(one.remedy)}" if one.remedy else "")
        for one in checks
        if one.verdict in _SEVERITIES
    ]  # fmt: skip
    probed = []
    for url, done in steps.items():
        took = ", ".join(f"{what} in {milliseconds(seconds * 1e3)}" for what, seconds in done)
        probed.append(doc.Paragraph(((oneline(url), "bold"), f": {took or 'not reached: see that the server listens'}"), "line"))
    if tls is not None:
        part = tls_part(TlsCounts(spoken={f"{tls['protocol']} {tls['suite']}": 1}), tls["verified"])
        probed.append(doc.Paragraph((("TLS", "bold"), f": {tls_words(part, {'tls': tls})}"), "line"))
        findings = [*findings, *tls_findings(part, {"tls": tls}, run_s=planned_s(plan, time.time()))]
    elif not steps and (plan.tls is not None or plan.upgrades):
        unchecked = "the server's answer was" if plan.tls is None else "the certificate and the rate of handshakes were"
        items.append(doc.ListedItem("info", "info", f"{unchecked} not checked", "remedy: --probe connects to the target"))
    # The last line says why the server is unknown.
    shown = [one for one in findings if one.remedy or one.code != "server_processes_unknown"]
    answer, style = check_answer(checks, findings)
    # In one line of any length, which a script can read.
    console.print(Text(answer, style), soft_wrap=True)
    sections = [
        doc.Section("asked", "", [doc.Paragraph(asked, "text"), checks_table(checks), *probed]),
        doc.Section("short", "", [doc.ItemList([*items, *doc.finding_items(shown)])]),
    ]
    print_document(doc.Document("check", "", "", [], sections), console)


def check_answer(checks: Sequence[Check], findings: Sequence[Finding]) -> tuple[str, str]:
    """The first line of 'asyncli check', and its style. It begins with "OK" only if nothing warns."""
    short = sum(check.verdict == "short" for check in checks)
    if short:
        limits = "one limit is" if short == 1 else f"{short} limits are"
        return f"{limits} too low: a soak will refuse to start. To start it anyway: --force", "bold red"
    if any(one.code == NOTHING_LISTENS for one in findings):
        return "nothing listens at the URL: a soak will not start", "bold red"
    warnings = _warnings(checks, findings)
    if len(warnings) == 1:
        return f"1 warning, though a soak will start: {warnings[0]}", "bold yellow"
    if warnings:
        return f"{len(warnings)} warnings, though a soak will start; the worst: {warnings[0]}", "bold yellow"
    unknown = next((one for one in findings if one.code == "server_processes_unknown"), None)
    if unknown is None:
        return "OK: no known limit blocks this plan", "green"
    hosts = "the client hosts" if any(one.code == "cluster" for one in findings) else "this host"
    why = oneline(str(unknown.fields.get("why", unknown.evidence)))
    return f"OK: no limit of {hosts} blocks this plan; the server's limits are unknown: {why}", "yellow"


def _warnings(checks: Sequence[Check], findings: Sequence[Finding]) -> list[str]:
    """What warns, the worst first: errors, what was seen, the limits that lack most, an unknown server."""
    errors = [one.evidence for one in findings if one.severity == "error"]
    of_server = [one.evidence for one in findings if one.severity == "warning" and one.code == "server_processes_unknown"]
    seen = [one.evidence for one in findings if one.severity == "warning" and one.code != "server_processes_unknown"]
    low = sorted((check for check in checks if check.verdict == "warn"), key=_lack, reverse=True)
    return list(map(oneline, [*errors, *seen, *map(_amounts, low), *of_server]))


def _lack(check: Check) -> float:
    """How many times as much is needed as there is; 0 where either is unknown."""
    if check.have is None or check.need is None:
        return 0.0
    return check.need / max(check.have, 1.0)


def _amounts(check: Check) -> str:
    if check.have is None or check.need is None:
        return f"{check.what}: {check.detail}" if check.detail else check.what
    return f"{check.what}: {amount(check.have, check.unit)} available, {amount(check.need, check.unit)} needed"
