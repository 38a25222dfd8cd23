"""The report as one HTML file: readable offline, on paper, on a phone, in the dark, and without JavaScript.

The page is a view of data made here (:func:`_document`); the template lays it out and escapes every string of it. Nothing in
it points outside itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncli import __version__
from asyncli.analysis.cost import Cost
from asyncli.analysis.drift import RULE as DRIFT_RULE
from asyncli.analysis.drift import MetricName, in_words
from asyncli.analysis.forecast import RESERVE
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import RULE as RECONCILE_RULE
from asyncli.analysis.reconcile import RULE_OF_TIME as DIVERGENCE_RULE
from asyncli.analysis.reconcile import agreement
from asyncli.analysis.reconcile import in_words as divergence_in_words
from asyncli.analysis.verdict import RULE as VERDICT_RULE
from asyncli.analysis.verdict import interrupted
from asyncli.findings.cost import SETTLED
from asyncli.records import Check, Finding
from asyncli.report import charts
from asyncli.report.analyses import Analyses
from asyncli.report.charts import NARROW, PALETTE, WIDE, NothingToDraw, drift_words, each, shown_r2
from asyncli.report.pictures import Picture, pictures
from asyncli.report.summary import Summary
from asyncli.report.svg import inline_svg
from asyncli.report.text import answer, doubts, first_ceiling, room, server_label, server_name, why
from asyncli.report.words import (
    POOLED,
    about,
    about_to,
    bytes_are,
    caption,
    ceiling,
    cost_rows,
    fixed_is,
    interval,
    kept_less,
    milliseconds,
    or_dash,
    spent,
)
from asyncli.run import Run
from asyncli.text import oneline
from asyncli.topology import sides
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from markupsafe import Markup

_DASH = "–"


class Table(NamedTuple):
    """A table's caption, its columns (name, whether of numbers), and its rows. The first column names the row."""

    caption: str
    columns: list[tuple[str, bool]]
    rows: list[list[str]]
    #: Places of rows that sum the others up.
    strong: tuple[int, ...] = ()
    note: str = ""


class Figure(NamedTuple):
    """A picture as the page shows it: two SVGs, or ``missing``, a sentence why there is none."""

    name: str
    title: str
    caption: str
    alt: str
    wide: str
    narrow: str
    missing: str = ""


def render(run: Run, summary: Summary, analyses: Analyses, drawn: Iterable[Picture] | None = None) -> str:
    """The page of a run as HTML text; ``drawn``: its pictures, where they are known already.

    The same run gives the same page, byte for byte.
    """
    from markupsafe import Markup

    drawn = pictures(run, summary, analyses) if drawn is None else drawn
    figures = {name: one._replace(wide=Markup(one.wide), narrow=Markup(one.narrow)) for name, one in _figures(drawn)}
    return fill("page.html.jinja", **_document(run, summary, analyses), figures=figures)


def fill(template: str, **document: Any) -> str:
    """One of the report's templates with its document, every text escaped; it ends with one line's end."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asyncli.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["flags"] = _unbroken_flags
    return environment.get_template(template).render(**document, palette=PALETTE).rstrip("\n") + "\n"


_FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def _unbroken_flags(words: str) -> Markup:
    """``words``, escaped, with each ``--flag`` kept on one line: browsers break after a hyphen."""
    from markupsafe import Markup, escape

    return Markup(_FLAG.sub(r'<span class="flag">\1</span>', str(escape(words))))


def _figures(drawn: Iterable[Picture]) -> Iterable[tuple[str, Figure]]:
    for one in drawn:
        try:
            wide = inline_svg(one.draw(WIDE), f"{one.name}-w")
            narrow = inline_svg(one.draw(NARROW), f"{one.name}-n")
        except NothingToDraw as nothing:
            yield one.name, Figure(one.name, one.title, one.caption, "", "", "", str(nothing))
        else:
            yield one.name, Figure(one.name, one.title, one.caption, one.alt(), wide, narrow)


def _document(run: Run, summary: Summary, analyses: Analyses) -> dict[str, Any]:
    """Everything that the template shows, in words."""
    word = summary.verdict if summary.run.complete else "incomplete"
    findings = [one for one in _findings(summary, analyses) if not one.code.startswith("verdict_")]
    tally = {severity: sum(one.severity == severity for one in findings) for severity in ("error", "warning", "info")}
    return {
        "title": f"{_headline(summary)}: {word}",
        "headline": _headline(summary),
        "byline": _byline(summary),
        "word": word,
        "why": oneline(why(summary)),
        "answer": answer(summary),
        "room": room(summary),
        "doubts": doubts(summary),
        "facts": _facts(summary, analyses),
        "tally": tally,
        "tally_words": _tally_words(tally),
        "sections": _SECTIONS,
        "cost": _cost_table(summary, analyses),
        "residue": _residue_table(summary, analyses),
        "forecast": _forecast_table(analyses),
        "drift": _drift_table(summary, analyses),
        "connections": _connections_table(summary),
        "failures": _failures_table(summary),
        "heartbeats": _heartbeats_table(summary),
        "heartbeats_words": _heartbeats_words(summary),
        "ramp_words": _ramp_words(summary),
        "phases": _phases_table(summary),
        "diagnoses": [_diagnosis(one) for one in analyses.diagnoses],
        "deaths": _deaths_table(summary, analyses),
        "counts": _counts_table(summary),
        "agreement": f"{agreement(summary.reconciliation.agrees, summary.findings)}.",
        "divergences": [divergence_in_words(one) for one in summary.reconciliation.divergences],
        "findings": [_finding(one) for one in findings],
        "plan": _plan_table(summary),
        "processes": _processes_table(summary),
        "generator_words": _generator_words(summary),
        "environment": _environment_tables(summary),
        "checks": _checks_table(run.checks),
        "methods": _methods(summary, analyses),
        "made": f"asyncli {__version__}",
        "measured": f"asyncli {summary.environment.get('asyncli') or ''}".strip(),
        "run_id": summary.run.id,
    }  # fmt: skip


# The top.

# A shorter hold holds nothing that is worth a headline.
_A_HOLD_S = 0.1


def _headline(summary: Summary) -> str:
    held, label = summary.connections.held, server_label(summary)
    if not held:
        return f"{format_count(summary.connections.requested)} connections asked of {label}"
    hold = next((one for one in summary.run.phases if one.name == "hold"), None)
    lasted_s = 0.0 if hold is None or hold.end_s is None else hold.end_s - hold.start_s
    # A hold that was not reached still has its milliseconds.
    lasted = f", held for {format_duration(lasted_s)}" if lasted_s >= _A_HOLD_S else ""
    # Held for so long is what was not lost meanwhile.
    if lasted and summary.connections.lost:
        lasted = f" after {format_duration(lasted_s)}, {format_count(summary.connections.lost)} lost on the way"
    ended = ", stopped by the user" if interrupted(summary.findings) else ""
    return f"{format_count(held)} connections on {label}{lasted}{ended}"


def _byline(summary: Summary) -> list[str]:
    day, _, time = summary.run.started.removesuffix("Z").partition("T")
    host = summary.environment.get("host")
    return [
        f"run {summary.run.id}",
        f"{day} {time} UTC" if time else day,
        f"{format_duration(summary.run.duration_s)} in all",
        *([f"on {oneline(str(host))}"] if host else []),
    ]


def _facts(summary: Summary, analyses: Analyses) -> list[tuple[str, str, str]]:
    """(what, number, beside it) of what is asked for first after the answer."""
    c, latency = summary.connections, summary.heartbeats.latency_ms
    facts = [
        ("held at the end", format_count(c.held), f"of {format_count(c.requested)} asked for"),
        ("lost", format_count(c.lost), "none failed to open" if not c.failed else f"{format_count(c.failed)} failed to open"),
    ]
    if latency.p50 is not None:
        what = "answered or given up in" if summary.heartbeats.failed else "heartbeat answered in"
        half = "half of the heartbeats" if summary.heartbeats.failed else "half of them"
        facts.append((what, milliseconds(latency.p50), f"{half}; 99 % in {milliseconds(latency.p99)}"))
    first = first_ceiling(summary)
    if first is not None and first.connections is not None:
        facts.append(("would fit", charts.short_count(first.rounded(first.connections)), f"limited by {ceiling(first.name)}"))
    drift = analyses.drifts.get("server_user")
    if drift is not None:
        short = drift.verdict == "too_short"
        what, words = ("too short to say", in_words(drift)) if short else (drift.verdict, drift_words(drift))
        facts.append(("the server's memory in the hold", what, words.removeprefix(f"{what}: ").removeprefix(f"{what} ")))
    return facts


def _tally_words(tally: Mapping[str, int]) -> str:
    parts = [
        f"{count} {word if count == 1 else plural}"
        for word, plural, count in (
            ("error", "errors", tally["error"]), ("warning", "warnings", tally["warning"]), ("note", "notes", tally["info"]),
        )
        if count
    ]  # fmt: skip
    return ", ".join(parts) or "no findings"


#: (id, heading) in the page's order.
_SECTIONS = (
    ("cost", "Cost of a connection"),
    ("forecast", "How many would fit"),
    ("drift", "Drift over the hold"),
    ("timeline", "Timeline"),
    ("deaths", "Lost connections"),
    ("counts", "Counts compared"),
    ("findings", "Findings"),
    ("plan", "Plan"),
    ("environment", "Environment"),
    ("method", "How it was measured"),
)


# Cost and forecast.


def _cost_table(summary: Summary, analyses: Analyses) -> Table | None:
    held, where = summary.connections.held, sides(summary.environment)
    rows = cost_rows(analyses.costs, server_name(summary), where)
    if not any(one.cost for one in rows if one.name != "kernel_queued"):
        return None
    columns = [
        ("", False), ("bytes", True), ("95 % interval", True), ("fixed", True), (f"at {format_count(held)}", True), ("R²", True),
    ]  # fmt: skip
    lines = []
    for row in rows:
        one = row.cost
        if one is None:
            lines.append([row.label, *[_DASH] * 5])
            continue
        r2 = _DASH if one.r2 is None or row.name == "residual" else shown_r2(one.r2)
        number, within = each(one.bytes_per_connection, sign=False), interval(*one.ci95).replace("-", "−")
        lines.append(
            [row.label, number, within, *(row.of_ends(whole).replace("-", "−") for whole in (row.fixed, row.at(held))), r2]
        )
    return Table(f"{caption(rows)}, in bytes", columns, lines, (len(lines) - 1,))


def _residue_table(summary: Summary, analyses: Analyses) -> Table | None:
    left = analyses.costs.residue
    rows = [
        [label, _signed_bytes(value) if value >= 0 else f"nothing that shows ({kept_less(value)})"]
        for label, value in (
            (f"{server_name(summary)}, user memory", left.server_user),
            (f"kernel, all sockets of {sides(summary.environment).host}", left.kernel),
            (f"{sides(summary.environment).host} in all", left.host_total),
        )
        if value is not None
    ]
    if not rows:
        return None
    after = "" if left.after_s is None else f", {format_duration(left.after_s)} after the last close"
    return Table(f"What stays behind{after}", [("", False), ("more than at the baseline", True)], rows)


def _forecast_table(analyses: Analyses) -> Table | None:
    ceilings = list(analyses.forecast.ceilings)
    alone = analyses.forecast.server_memory
    if alone is not None and alone not in ceilings:
        ceilings.append(alone)
    if not ceilings:
        return None
    rows = [
        [
            ceiling(one.name),
            _DASH if one.connections is None else about(one),
            about_to(one) or _DASH,
            oneline(one.how),
        ]
        for one in sorted(ceilings, key=lambda one: math.inf if one.connections is None else one.connections)
    ]
    columns = [("limit", False), ("connections", True), ("95 % interval", True), ("how it is reckoned", False)]
    return Table("Connections that each limit allows, the lowest first", columns, rows)


def _drift_table(summary: Summary, analyses: Analyses) -> Table | None:
    names: dict[MetricName, str] = {
        "host_total": f"{sides(summary.environment).host} in all",
        "server_user": f"{server_name(summary)}, user memory", "kernel": "kernel, all sockets",
        "generator_user": "asyncli, user memory",
    }  # fmt: skip
    rows = []
    for name, label in names.items():
        one = analyses.drifts.get(name)
        if one is None:
            continue
        interval = _DASH if one.ci95 is None else f"{_signed_bytes(one.ci95[0])} to {_signed_bytes(one.ci95[1])}"
        p = _DASH if one.p_value is None else "< 0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"
        rows.append(
            [label, _DASH if one.bytes_per_hour is None else _signed_bytes(one.bytes_per_hour), interval, p, drift_words(one)]
        )
    if not rows:
        return None
    columns = [("", False), ("an hour", True), ("95 % interval", True), ("p", True), ("verdict", False)]
    return Table("Memory over the hold", columns, rows)


# What happened.


def _connections_table(summary: Summary) -> Table:
    c = summary.connections
    numbers = (c.requested, c.opened, c.established_peak, c.held, c.lost, c.reopened, c.failed)
    names = ("asked for", "opened", "most at once", "held at the end", "lost", "reopened", "failed to open")
    return Table(
        "Connections", [("", False), ("number", True)], [[name, format_count(n)] for name, n in zip(names, numbers, strict=True)]
    )


def _failures_table(summary: Summary) -> Table | None:
    failures = summary.connections.failures
    if not failures:
        return None
    rows = [[cause, format_count(count)] for cause, count in failures.items()]
    return Table("Attempts that failed, by cause", [("cause", False), ("attempts", True)], rows)


def _heartbeats_table(summary: Summary) -> Table:
    beats, ramp = summary.heartbeats, summary.ramp
    latency, late = beats.latency_ms, beats.lateness_ms
    rows = [["latency", *map(_ms, (latency.p50, latency.p90, latency.p99, latency.p999, latency.max))]]
    for label, one in (("lateness", late), ("lateness of the ramp", ramp.lateness_ms)):
        rows.append([label, _ms(one.p50), "", _ms(one.p99), "", _ms(one.max)])
    columns = [("", False), ("p50", True), ("p90", True), ("p99", True), ("p99.9", True), ("max", True)]
    return Table("Heartbeats: due to answered, and due to sent", columns, rows)


def _heartbeats_words(summary: Summary) -> str:
    beats = summary.heartbeats
    statuses = ", ".join(f"{format_count(count)} × {status}" for status, count in beats.by_status.items())
    sent, answered, failed = (format_count(one) for one in (beats.sent, beats.answered, beats.failed))
    counts = f"{sent} heartbeats sent, {answered} answered, {failed} failed"
    return f"{counts}{f'; status {statuses}' if statuses else ''}. {POOLED}"


def _ramp_words(summary: Summary) -> str:
    ramp = summary.ramp
    achieved = "none" if ramp.achieved_per_s is None else f"{ramp.achieved_per_s:,.0f}"
    return f"The ramp was asked for {ramp.asked_per_s:,.0f} connections a second and reached {achieved}."


def _phases_table(summary: Summary) -> Table | None:
    rows = []
    for one in summary.run.phases:
        ended = one.end_s is not None
        rows.append(
            [
                one.name,
                f"{one.start_s:,.1f} s",
                f"{one.end_s:,.1f} s" if one.end_s is not None else "not ended",
                format_duration(one.end_s - one.start_s) if ended and one.end_s is not None else _DASH,
            ]
        )
    columns = [("", False), ("from", True), ("to", True), ("lasted", True)]
    return Table("Phases", columns, rows) if rows else None


# Codes of what no mechanism explains.
_OPEN = ("unexplained", "too_few")


def _diagnosis(one: Diagnosis) -> dict[str, str]:
    return {
        "cause": one.cause, "code": one.code, "evidence": oneline(one.evidence),
        "remedy": oneline(one.remedy), "certain": "certain" if one.certain else "likely" if one.code not in _OPEN else "open",
    }  # fmt: skip


def _deaths_table(summary: Summary, analyses: Analyses) -> Table | None:
    rows = []
    for cause, count in summary.connections.deaths.items():
        dead = analyses.totals.whole.deaths[cause]
        age, idle, requests = (one.quantile(0.5) for one in (dead.age_s, dead.idle_s, dead.requests))
        times = (_DASH if one is None else format_duration(one) if one else "0 s" for one in (age, idle))
        rows.append(
            [
                cause, format_count(count), *times,
                _DASH if requests is None else format_count(requests),
            ]
        )  # fmt: skip
    columns = [("cause", False), ("lost", True), ("median age", True), ("median idle", True), ("median requests", True)]
    return Table("Lost connections, by cause", columns, rows) if rows else None


def _counts_table(summary: Summary) -> Table | None:
    r = summary.reconciliation
    if r.agrees is None and r.accepts_delta is None:
        return None
    rows = [
        [label, or_dash(ours, ",d"), or_dash(theirs, ",d")]
        for label, ours, theirs in (
            ("open, active", r.client_held, r.server_active),
            ("opened, accepted", summary.connections.opened, r.accepts_delta),
            ("opened, handled", summary.connections.opened, r.handled_delta),
            ("answers, requests (polls too)", summary.heartbeats.answered, r.requests_delta),
        )
    ]
    return Table(
        "The same connections, counted on both sides", [("", False), ("asyncli", True), (server_name(summary), True)], rows
    )


# Findings, plan, environment.


def _findings(summary: Summary, analyses: Analyses) -> list[Finding]:
    """The summary's findings and those of the analyses that it does not have, the worst first."""
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys([*summary.findings, *analyses.findings]), key=lambda one: rank[one.severity])


def _finding(one: Finding) -> dict[str, str]:
    word = {"error": "error", "warning": "warning", "info": "note"}[one.severity]
    return {
        "severity": one.severity, "word": word, "code": one.code, "evidence": oneline(one.evidence),
        "remedy": oneline(one.remedy),
    }  # fmt: skip


def _plan_table(summary: Summary) -> Table:
    rows = [[key.removesuffix("_s").replace("_", " "), _setting(key, value)] for key, value in summary.plan.items()]
    if summary.plan.get("hold_until") and summary.plan.get("hold_s") is None:
        rows = [row for row in rows if row[0] != "hold"]  # it never began
    return Table("The plan", [("", False), ("", False)], rows)


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


def _plain(value: Any) -> str:
    """A value of the environment in words: nothing of it is trusted to be of any kind."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.10g}" if math.isfinite(value) else "not known"
    if isinstance(value, int):
        return str(value) if abs(value) < 10_000 else f"{value:,d}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(one) for one in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    return oneline(str(value)) or "empty"


def _processes_table(summary: Summary) -> Table:
    server, generator = summary.server, summary.generator
    memory, kind = (server.pss_bytes, "PSS") if server.pss_bytes.hold_end is not None else (server.rss_bytes, "RSS")
    rows = []
    if memory.hold_end is not None or server.processes.hold_end is not None:
        rows.append(
            [
                f"{server_name(summary)} ({kind})", or_dash(server.processes.hold_end, ",.0f"), _bytes(memory.baseline),
                _bytes(memory.hold_end), spent(server.cpu_s).replace("-", _DASH),
            ]
        )  # fmt: skip
    more = _DASH if generator.user_bytes is None else f"+ {format_bytes(generator.user_bytes)}"
    cpu = _DASH if generator.cpu_s is None else format_duration(generator.cpu_s)
    rows.append(["asyncli (USS)", or_dash(generator.processes, ",d"), _DASH, more, cpu])
    columns = [("", False), ("number", True), ("memory before", True), ("at the hold's end", True), ("CPU", True)]
    return Table("Processes", columns, rows)


def _generator_words(summary: Summary) -> str:
    generator = summary.generator
    notes = []
    if generator.user_bytes_per_connection is not None:
        notes.append(f"{each(generator.user_bytes_per_connection)} a connection held (what it takes once included)")
    if generator.cpu_us_per_heartbeat is not None:
        notes.append(f"{generator.cpu_us_per_heartbeat:,.1f} µs of CPU a heartbeat")
    notes.append("the limit of this run" if generator.saturated else "not the limit of this run")
    return f"asyncli itself: {', '.join(notes)}."


_KINDS = {"server": "Server", "agent": "The server's host, by its agent", "limits": "Limits", "sysctls": "Kernel settings"}


def _environment_tables(summary: Summary) -> list[Table]:
    where = summary.environment
    columns = [("", False), ("", False)]
    plain = [[key.replace("_", " "), _fact(key, value)] for key, value in where.items() if not isinstance(value, Mapping)]
    found = [Table("Host", columns, [row for row in plain if row[0] not in _KINDS])]
    for key, value in where.items():
        if isinstance(value, Mapping) and value:
            found.append(
                Table(
                    _KINDS.get(key, key.replace("_", " ")),
                    columns,
                    [[str(name), _fact(str(name), one)] for name, one in value.items()],
                )
            )
    return [one for one in found if one.rows]


# Names rather than numbers: what is copied from here goes into a plan or a command, and those take no commas.
_NAMES = ("seed", "pid", "server_pid")


def _fact(key: str, value: Any) -> str:
    if key in _NAMES:
        return oneline(str(value)) if value is not None else "not known"
    is_bytes = key.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool)
    return f"{format_bytes(value)}" if is_bytes and math.isfinite(value) else _plain(value)


def _checks_table(checks: Sequence[Check]) -> Table | None:
    rows = [
        [
            one.what,
            {"ok": "ok", "short": "short", "warn": "warning", "unknown": "not known"}[one.verdict],
            _amount(one.have, one.unit),
            _amount(one.need, one.unit),
            oneline(one.detail),
        ]
        for one in checks
    ]
    columns = [("limit", False), ("verdict", False), ("have", True), ("need", True), ("because", False)]
    return Table("What the preflight read", columns, rows) if rows else None


def _amount(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return _DASH
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return format_duration(value) if unit in ("s", "seconds") else format_count(value)


def _methods(summary: Summary, analyses: Analyses) -> list[tuple[str, str]]:
    """(what, how it was measured or by which rule)."""
    costs, server, host = analyses.costs, server_name(summary), sides(summary.environment).host
    known: list[tuple[str, Cost | None]] = [
        (f"Cost in {server}", costs.server_user), ("Cost in the kernel", costs.kernel), ("Queued buffers", costs.kernel_queued),
        ("Cost in asyncli", costs.generator_user), (f"Cost on {host} in all", costs.host_total), ("Left over", costs.residual),
    ]  # fmt: skip
    rows = cost_rows(costs, server, sides(summary.environment))
    read = f"{bytes_are(rows)} {fixed_is(rows)} What is there at the hold's end follows from both."
    if costs.kernel_queued is not None:
        read += " Queued buffers are a reading of what happened to be in flight, and part of no sum."
    return [
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


# Words for numbers.


def _bytes(value: float | None) -> str:
    return _DASH if value is None or not math.isfinite(value) else format_bytes(value).replace("-", "−")


def _signed_bytes(value: float) -> str:
    text = format_bytes(value).replace("-", "−")
    return f"+{text}" if value > 0 and text[:2] != "0 " else text


def _ms(value: float | None) -> str:
    return _DASH if value is None else milliseconds(value)
