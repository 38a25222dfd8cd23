"""Plan, environment and preflight in a run's report, and the report of 'asyncli check'."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from asyncli.analysis.cost import ramp_that_fits
from asyncli.analysis.handshakes import planned_s, tls_findings, tls_part
from asyncli.analysis.slope import FEWEST_PLATEAUS, FEWEST_RAMP_POINTS
from asyncli.engine.spread import Spread
from asyncli.model.plan import Plan
from asyncli.model.records import NOTHING_LISTENS, Check, Finding, TlsCounts
from asyncli.model.runtimes import Runtime
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
    # Without an end of the hold, one until a time of day never started.
    is_hold_unknown = summary.plan.get("hold_until") and summary.plan.get("hold_s") is None
    rows = []
    for key, value in summary.plan.items():
        if key == "hold_s" and is_hold_unknown:
            continue
        rows.append((key.removesuffix("_s").replace("_", " "), _setting(key, value)))
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
    "nofile_soft": "descriptors per process, soft limit",
    "nofile_hard": "descriptors per process, hard limit",
    "nproc": "processes of the user",
    "nr_open": "highest descriptor limit (fs.nr_open)",
    "file_max": "open files of all programs (fs.file-max)",
    "files_open": "open files now",
    "port_low": "lowest local port",
    "port_high": "highest local port",
    "ports_reserved": "reserved local ports",
    "tcp_tw_reuse": "net.ipv4.tcp_tw_reuse",
    "somaxconn": "net.core.somaxconn",
    "syn_backlog": "net.ipv4.tcp_max_syn_backlog",
    "conntrack_count": "tracked connections",
    "conntrack_max": "tracked connections, limit (nf_conntrack_max)",
    "tcp_mem_pages": "net.ipv4.tcp_mem, pages",
    "page_bytes": "page",
    "epoll_watches": "fs.epoll.max_user_watches",
    "memory_total": "memory",
    "cgroup_memory_limit": "memory limit of the cgroup",
    "cgroup_memory_used": "memory used in the cgroup",
    "pids_limit": "processes, limit of the cgroup",
    "pids_used": "processes in the cgroup",
    "threads_max": "threads of all programs (kernel.threads-max)",
    "pid_max": "numbers of processes and threads (kernel.pid_max)",
    "max_map_count": "memory maps of a process (vm.max_map_count)",
    "cpu_quota": "CPUs, limit of the cgroup",
    "sockets_used": "sockets in use",
    "tcp_inuse": "TCP sockets in use",
    "tcp_tw": "sockets in TIME_WAIT",
    "tcp_used_pages": "pages in TCP buffers",
    "superuser": "root",
    "cpus": "CPUs",
    "cpu_model": "CPU",
    "memory_bytes": "memory",
    "local": "server on this host",
    "wall_start": "started, by the wall clock",
    "wall_s": "wall clock",
    "monotonic_s": "monotonic clock",
    "boot_id": "boot",
    "time_ns": "time namespace",
    "network": "network namespace",
    "pid": "process",
    "exe": "program",
    "hidden": "hidden (of another user)",
}
_KINDS = {
    "server": "Server",
    "agent": "The server's host, by its agent",
    "limits": "Limits",
    "sysctls": "Kernel settings",
}


def environment_section(summary: Summary, checks: Sequence[Check]) -> doc.Section:
    host = {}
    blocks: list[doc.Block] = []
    for key, value in summary.environment.items():
        if not isinstance(value, Mapping):
            if key not in _KINDS:
                host[key] = value
        elif value:
            heading = _KINDS.get(key, key.replace("_", " ").capitalize())
            blocks.append(_facts_table(heading, value))
    blocks.insert(0, _facts_table("Host", host))
    if checks:
        blocks.append(doc.Folded("Preflight", checks_table(checks)))
    return doc.Section("environment", "Environment", blocks)


def _facts_table(heading: str, facts: Mapping[str, Any]) -> doc.DataTable:
    rows = [(_label(key), fact(key, value)) for key, value in facts.items()]
    return doc.pairs(heading, rows, doc.FULL)


def _label(key: str) -> str:
    """The name of a fact; a kernel setting's is its own."""
    if key in _FACTS:
        return _FACTS[key]
    if "." in key:
        return key
    return key.replace("_", " ")


# Numbers that users copy into plans or commands have no commas.
_NAMES = ("seed", "pid", "server_pid")


def fact(key: str, value: Any) -> str:
    """A value of the plan or the environment as text."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key, value)
    if key == "runtime":
        return Runtime.of(value).words
    if isinstance(value, list | tuple):
        if key == "kernel":
            return ".".join(map(str, value))
        return ", ".join(fact("", item) for item in value) or "none"
    if isinstance(value, Mapping):
        pairs = [f"{_FACTS.get(name, name)} {fact(name, item)}" for name, item in value.items()]
        return ", ".join(pairs) or "none"
    return oneline(str(value)) or "empty"


def _number(key: str, value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "unknown"
    if key.endswith("_bytes") or key.startswith(("memory_", "cgroup_memory_")):
        return format_bytes(value)
    if key == "wall_s":
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if key == "monotonic_s":
        return f"{value:,.1f} s"
    if isinstance(value, float):
        return f"{value:,.10g}"
    if key in _NAMES or abs(value) < 10_000:
        return str(value)
    return f"{value:,d}"


_MARKS = {
    "short": ("SHORT", "bold red"),
    "warn": ("warn", "yellow"),
    "ok": ("ok", "green"),
    "unknown": ("?", "dim"),
}


def checks_table(checks: Sequence[Check]) -> doc.DataTable:
    """The preflight's limits, those too low first."""
    order = list(_MARKS)
    rows = []
    for check in sorted(checks, key=lambda check: order.index(check.verdict)):
        have = amount(check.have, check.unit)
        need = amount(check.need, check.unit)
        cells: list[doc.Cell] = [_MARKS[check.verdict], have, need, oneline(check.detail)]
        rows.append(doc.TableRow(oneline(check.what), cells))
    reason = doc.TableColumn("reason", kind="words", view=doc.View.PAGE)
    columns = [doc.TableColumn("verdict", kind="word"), *doc.numbers("have", "need"), reason]
    return doc.DataTable("Preflight", columns, rows, kind="wordy stack long")


def amount(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit in ("B", "bytes"):
        return format_bytes(value)
    if unit in ("s", "seconds"):
        return format_duration(value)
    return format_count(value)


#: The severity of each check verdict that is listed with its remedy.
_SEVERITIES = {"short": "error", "warn": "warning"}
_UNKNOWN_SERVER = "server_processes_unknown"


def print_checks(
    plan: Plan,
    spread: Spread,
    checks: Sequence[Check],
    findings: Sequence[Finding],
    console: Console,
    *,
    tls: dict[str, Any] | None,
    steps: Mapping[str, Iterable[tuple[str, float]]],
    server: Mapping[str, Any],
) -> None:
    """Print the answer, a row per check, failed ones first, then details and remedies.

    ``tls``: the server's TLS, as in a run's environment. ``steps``: URL -> (step, seconds) of a
    first connection. ``server``: its facts, as in a run's environment.
    """
    from rich.text import Text

    probed = _server(server)
    probed += [_probed(url, done) for url, done in steps.items()]
    items = [_check_item(check) for check in checks if check.verdict in _SEVERITIES]
    if tls is not None:
        part = tls_part(TlsCounts(spoken={f"{tls['protocol']} {tls['suite']}": 1}), tls["verified"])
        text = tls_words(part, {"tls": tls})
        probed.append(doc.Paragraph((("TLS", "bold"), f": {text}"), "line"))
        planned = planned_s(plan, time.time())
        findings = [*findings, *tls_findings(part, {"tls": tls}, run_s=planned)]
    elif not steps and (plan.tls is not None or plan.upgrades):
        items.append(_not_probed(plan))
    # The last line says why the server is unknown.
    shown = []
    for finding in findings:
        if finding.remedy or finding.code != _UNKNOWN_SERVER:
            shown.append(finding)
    answer, style = check_answer(checks, findings)
    # In one line of any length, which a script can read.
    console.print(Text(answer, style), soft_wrap=True)
    asked = doc.Paragraph(_asked(plan, spread), "text")
    items += doc.finding_items(shown)
    sections = [
        doc.Section("asked", "", [asked, checks_table(checks), *probed]),
        doc.Section("short", "", [doc.ItemList(items)]),
    ]
    print_document(doc.Document("check", "", "", [], sections), console)


def _asked(plan: Plan, spread: Spread) -> str:
    """The connections, how they are spread, and the ramp."""
    destinations = format_many(len(spread.destinations), "destination")
    sources = format_many(max(1, len(spread.sources)), "source")
    ramp_s = plan.connections / plan.asked_per_s
    asked = (
        f"{format_count(plan.connections)} connections in "
        f"{format_many(spread.workers, 'process')}, "
        f"{destinations} x {sources}, {format_count(plan.asked_per_s)} a second: "
        f"a ramp of {format_duration(ramp_s)}"
    )
    if ramp_s < FEWEST_RAMP_POINTS and plan.plateaus < FEWEST_PLATEAUS:
        return f"{asked}, too short for a slope of the cost ({ramp_that_fits(plan)})"
    return asked


def _server(server: Mapping[str, Any]) -> list[doc.Paragraph]:
    """A line with the server's label, its process and its runtime, if that is known."""
    runtime = Runtime.of(server.get("runtime"))
    if runtime.kind == "":
        return []
    process = f"{oneline(str(server['label']))} (pid {server['pid']})"
    return [doc.Paragraph((("server", "bold"), f": {process}, {runtime.words}"), "line")]


def _probed(url: str, steps: Iterable[tuple[str, float]]) -> doc.Paragraph:
    times = [f"{step} in {milliseconds(seconds * 1e3)}" for step, seconds in steps]
    text = ", ".join(times) or "not reached: see that the server listens"
    return doc.Paragraph(((oneline(url), "bold"), f": {text}"), "line")


def _check_item(check: Check) -> doc.ListedItem:
    text = check.what
    if check.detail:
        text = f"{text}: {check.detail}"
    remedy = ""
    if check.remedy:
        remedy = f"remedy: {oneline(check.remedy)}"
    return doc.ListedItem(_SEVERITIES[check.verdict], check.verdict, oneline(text), remedy)


def _not_probed(plan: Plan) -> doc.ListedItem:
    text = "the certificate and the rate of handshakes were not checked"
    if plan.tls is None:
        text = "the server's answer was not checked"
    return doc.ListedItem("info", "info", text, "remedy: --probe connects to the target")


def check_answer(checks: Sequence[Check], findings: Sequence[Finding]) -> tuple[str, str]:
    """The first line of 'asyncli check', and its style. It begins with "OK" only if nothing
    warns.
    """
    short = sum(check.verdict == "short" for check in checks)
    if short:
        limits = "one limit is" if short == 1 else f"{short} limits are"
        return (
            f"{limits} too low: a soak will refuse to start. To start it anyway: --force",
            "bold red",
        )
    codes = {finding.code for finding in findings}
    if NOTHING_LISTENS in codes:
        return "Nothing listens at the URL: a soak will not start", "bold red"
    warnings = _warnings(checks, findings)
    if len(warnings) == 1:
        return f"A soak will start, with 1 warning: {warnings[0]}", "bold yellow"
    if warnings:
        counted = f"A soak will start, with {len(warnings)} warnings"
        return f"{counted}; the worst: {warnings[0]}", "bold yellow"
    unknown = next((finding for finding in findings if finding.code == _UNKNOWN_SERVER), None)
    if unknown is None:
        return "OK: no known limit blocks this plan", "green"
    hosts = "the client hosts" if "cluster" in codes else "this host"
    reason = oneline(str(unknown.fields.get("why", unknown.evidence)))
    limits = f"no limit of {hosts} blocks this plan"
    return f"OK: {limits}; the server's limits are unknown: {reason}", "yellow"


def _warnings(checks: Sequence[Check], findings: Sequence[Finding]) -> list[str]:
    """What warns, the worst first: errors, what was seen, the limits that lack most, an unknown
    server.
    """
    errors = []
    seen = []
    of_server = []
    for finding in findings:
        if finding.severity == "error":
            errors.append(finding.evidence)
        elif finding.severity == "warning" and finding.code == _UNKNOWN_SERVER:
            of_server.append(finding.evidence)
        elif finding.severity == "warning":
            seen.append(finding.evidence)
    low = [check for check in checks if check.verdict == "warn"]
    low.sort(key=_lack, reverse=True)
    return list(map(oneline, [*errors, *seen, *map(_amounts, low), *of_server]))


def _lack(check: Check) -> float:
    """How many times as much is needed as there is; 0 where either is unknown."""
    if check.have is None or check.need is None:
        return 0.0
    return check.need / max(check.have, 1.0)


def _amounts(check: Check) -> str:
    if check.have is not None and check.need is not None:
        have = amount(check.have, check.unit)
        return f"{check.what}: {have} available, {amount(check.need, check.unit)} needed"
    if check.detail:
        return f"{check.what}: {check.detail}"
    return check.what
