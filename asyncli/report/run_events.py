"""What happened in a run: connections, heartbeats, losses, counts and processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import RULE as RECONCILE_RULE
from asyncli.analysis.reconcile import agreement
from asyncli.analysis.reconcile import in_words as divergence_in_words
from asyncli.records import Deaths, Environment
from asyncli.report.answer import server_label, server_name
from asyncli.report.document import (
    ALL,
    FULL,
    Block,
    Bullets,
    DataTable,
    ItemList,
    ListedItem,
    Paragraph,
    Picture,
    Section,
    TableRow,
    View,
    drawn_blocks,
    numbers,
)
from asyncli.report.format import (
    POOLED,
    bytes_each,
    milliseconds,
    or_bytes,
    or_dash,
    spent,
)
from asyncli.report.summary import Summary
from asyncli.text import oneline
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    pass

#: Codes of what no mechanism explains.
_OPEN = ("unexplained", "too_few")


def timeline_section(summary: Summary, drawn: Mapping[str, Picture]) -> Section:
    """The connections: what is as it should be in a line of the short report, what is not in its table."""
    c, ramp = summary.connections, summary.ramp
    achieved = "-" if ramp.achieved_per_s is None else f"{ramp.achieved_per_s:,.0f}/s"
    whole = not (c.lost or c.failed or c.reopened or c.held < c.requested)
    view = FULL if whole else ALL
    bad = [("bold red" if n else "green") for n in (c.lost, c.reopened, c.failed)]
    styles = ("", "", "bold green" if c.held >= c.requested else "bold red", bad[0], "" if c.reopened else "green", bad[2])
    counts = (c.requested, c.opened, c.held, c.lost, c.reopened, c.failed)
    cells = [(format_count(n), style) for n, style in zip(counts, styles, strict=True)]
    # Narrower than the others: six counts of seven digits must fit beside it in 80 columns.
    columns = numbers("asked", "opened", "held", "lost", "reopened", "failed")
    blocks: list[Block] = [*drawn_blocks(drawn, "timeline")]
    blocks.append(DataTable("Connections", columns, [TableRow("", cells)], width=18, kind="stack", view=view))
    for what, causes in (("lost", c.deaths), ("failed", c.failures)):
        if causes:
            listed = ", ".join(f"{oneline(cause)} {format_count(count)}" for cause, count in causes.items())
            blocks.append(Paragraph((f"{what} by cause: ", (listed, "red")), view=view))
    peak = format_count(c.established_peak)
    blocks.append(
        Paragraph(f"ramp: {ramp.asked_per_s:,.0f}/s asked, {achieved} achieved; at most {peak} open at once", view=view)
    )
    if whole:
        words = f"{format_count(c.opened)} opened at {achieved} ({ramp.asked_per_s:,.0f}/s asked), none lost or failed"
        blocks.append(_line("Connections", words))
    rows = [
        TableRow(
            one.name,
            [
                f"{one.start_s:,.1f} s",
                "not ended" if one.end_s is None else f"{one.end_s:,.1f} s",
                "-" if one.end_s is None else format_duration(one.end_s - one.start_s),
            ],
        )
        for one in summary.run.phases
    ]
    if rows:
        blocks.append(DataTable("Phases", numbers("from", "to", "lasted"), rows, kind="small-table", view=View.PAGE))
    return Section("timeline", "Timeline", blocks, tight=True)


def _line(heading: str, words: str) -> Paragraph:
    return Paragraph(((heading, "bold"), f": {words}"), "line", view=View.SHORT)


def heartbeats_section(summary: Summary) -> Section:
    beats, ramp = summary.heartbeats, summary.ramp
    latency, late = beats.latency_ms, beats.lateness_ms
    quantiles = (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
    rows = [TableRow("latency", [milliseconds(value) for value in quantiles])]
    for label, one, view in (("lateness", late, ALL), ("lateness of the ramp", ramp.lateness_ms, FULL)):
        rows.append(TableRow(label, [milliseconds(one.p50), "", milliseconds(one.p99), "", milliseconds(one.max)], view=view))
    table = DataTable(
        "Heartbeats",
        numbers("p50", "p90", "p99", "p99.9", "max"),
        rows,
        "Heartbeats: due to answered, and due to sent",
        kind="tight",
    )
    counted = summary.reconciliation.agrees and summary.reconciliation.requests_delta is not None
    # Then the line of the counts says it.
    said = counted and beats.sent == beats.answered == beats.by_status.get("200")
    statuses = ", ".join(f"{format_count(count)} × {status}" for status, count in beats.by_status.items())
    counts = f"{format_count(beats.sent)} sent, {format_count(beats.answered)} answered, {format_count(beats.failed)} failed"
    words = counts + (f"; status {statuses}" if statuses else "")
    blocks: list[Block] = [table, Paragraph(words, view=FULL if said else ALL), Paragraph(POOLED, style="dim", view=FULL)]
    return Section("heartbeats", "Heartbeats", blocks, tight=True)


def deaths_table(
    deaths: Mapping[str, Deaths], heading: str = "Lost connections, by cause", notes: Sequence[str] = ()
) -> DataTable:
    """How old, how long idle and after how many requests connections ended: medians, by cause."""
    rows = []
    for cause, dead in deaths.items():
        age, idle, requests = (one.quantile(0.5) for one in (dead.age_s, dead.idle_s, dead.requests))
        times = ("-" if one is None else format_duration(one) if one else "0 s" for one in (age, idle))
        number = "-" if requests is None else format_count(requests)
        rows.append(TableRow(cause, [format_count(dead.count), *times, number]))
    columns = numbers("lost", "median age", "median idle", "median requests")
    return DataTable(heading, columns, rows, notes=notes, kind="stack", view=View.PAGE)


def deaths_section(summary: Summary, deaths: Mapping[str, Deaths], drawn: Mapping[str, Picture]) -> Section:
    blocks: list[Block] = [ItemList([_diagnosis(one) for one in summary.diagnoses], view=View.PAGE)]
    if summary.connections.deaths:
        blocks.append(deaths_table({cause: deaths[cause] for cause in summary.connections.deaths if cause in deaths}))
    return Section("deaths", "Lost connections", [*blocks, *drawn_blocks(drawn, "deaths")])


def _diagnosis(one: Diagnosis) -> ListedItem:
    sure = "certain" if one.certain else "likely" if one.code not in _OPEN else "open"
    more = f"remedy: {oneline(one.remedy)}" if one.remedy else ""
    return ListedItem("error", sure, oneline(one.evidence), more, f"{one.code}, {one.cause}")


def counts_section(summary: Summary, drawn: Mapping[str, Picture]) -> Section:
    r, beats, opened = summary.reconciliation, summary.heartbeats, summary.connections.opened
    blocks: list[Block] = []
    if r.agrees is not None or r.accepts_delta is not None:
        view = FULL if r.agrees else ALL
        rows = [
            TableRow(label, [or_dash(ours, ",d"), or_dash(theirs, ",d")])
            for label, ours, theirs in (
                ("open, active", r.client_held, r.server_active), ("opened, accepted", opened, r.accepts_delta),
                ("opened, handled", opened, r.handled_delta), ("answers, requests (polls too)", beats.answered, r.requests_delta),
            )
        ]  # fmt: skip
        columns = numbers("asyncli", server_name(summary))
        title = "The same connections, counted on both sides"
        blocks.append(DataTable("Counts compared", columns, rows, title, kind="small-table", view=view))
        said = (agreement(r.agrees, summary.findings), {True: "green", False: "bold red", None: ""}[r.agrees])
        short = View.PAGE if r.agrees else View.PAGE | View.SHORT
        blocks += [
            Paragraph((said, (".", "dim")), view=short),
            Paragraph((said, (f". Rule: {RECONCILE_RULE}.", "dim")), view=View.VERBOSE),
        ]
    if r.agrees:
        both = (
            (r.client_held, r.server_active, "open"),
            (opened, r.accepts_delta, "accepted"),
            (beats.answered, r.requests_delta, "answered"),
        )
        counted = [f"{format_count(ours or 0)} {what}" for ours, theirs, what in both if theirs is not None]
        how = agreement(r.agrees, summary.findings).removeprefix("They ").partition(" (see")[0]
        blocks.append(_line(f"Counts {how}", ", ".join(counted)))
    divergences = Bullets([divergence_in_words(one) for one in r.divergences], view=View.PAGE)
    return Section("counts", "Counts compared", [*blocks, divergences, *drawn_blocks(drawn, "counts")], tight=True)


def processes_section(summary: Summary) -> Section:
    """Of the server, where it was seen, and of asyncli: number, memory before and at the hold's end, CPU."""
    server, generator, where = summary.server, summary.generator, summary.environment
    memory, kind = (server.pss_bytes, "PSS") if server.pss_bytes.hold_end is not None else (server.rss_bytes, "RSS")
    rows, used = [], []
    if memory.hold_end is not None or server.processes.hold_end is not None:
        cpu, late = spent(server.cpu_s), or_bytes(memory.hold_end)
        cells = [or_dash(server.processes.hold_end, ",.0f"), or_bytes(memory.baseline), late, cpu]
        rows.append(TableRow(f"{server_name(summary)} ({kind})", cells))
        used.append(f"{server_name(summary)} {cpu}, {late}")
    more = "-" if generator.user_bytes is None else f"+ {format_bytes(generator.user_bytes)}"
    cpu = "-" if generator.cpu_s is None else format_duration(generator.cpu_s)
    rows.append(TableRow("asyncli (USS)", [or_dash(generator.processes, ",d"), "", more, cpu]))
    used.append(f"asyncli {cpu}, {more}")
    notes = []
    if generator.user_bytes_per_connection is not None:
        notes.append(f"{bytes_each(generator.user_bytes_per_connection)} a connection held (what it takes once included)")
    if generator.cpu_us_per_heartbeat is not None:
        notes.append(f"{generator.cpu_us_per_heartbeat:,.1f} µs of CPU a heartbeat")
    limit = ("the limit of this run", "bold magenta") if generator.saturated else ("not the limit", "")
    blocks: list[Block] = [
        DataTable("Processes", numbers("number", "memory before", "at the hold's end", "CPU"), rows, kind="stack", view=FULL),
        Paragraph(("asyncli: ", ", ".join([*notes, ""]), limit), view=FULL),
        Paragraph("At the hold's end: the last reading. What the cost table has is its line's.", style="dim", view=FULL),
        _line("CPU and memory", f"{'; '.join(used)}{', the limit of this run' if generator.saturated else ''}"),
    ]
    memory_bytes, label = where.get("memory_bytes"), server_label(summary)
    facts = [
        label if label != "the server" else "",
        f"Linux {where.get('kernel')}",
        f"Python {where.get('python')}",
        f"{where.get('cpus')} CPUs",
        format_bytes(memory_bytes) if isinstance(memory_bytes, int | float) else "",
        _many(where.get("workers"), "worker", "workers"),
        _many(where.get("sources"), "source address", "source addresses"),
    ]
    lines = [", ".join(fact for fact in facts if fact and "None" not in fact), *_hosts(where.get("cluster")), by_agent(where)]
    blocks += [Paragraph(oneline(line), style="dim", view=View.VERBOSE) for line in lines if line]
    return Section("processes", "Processes", blocks, tight=True)


def _hosts(cluster: object) -> Iterator[str]:
    """Each host of a fleet: its share, and how its clock stood to the session's."""
    hosts = cluster.get("hosts") if isinstance(cluster, dict) else None
    for one in hosts if isinstance(hosts, list) else ():
        share = f"{one.get('name')}: {format_count(one.get('connections') or 0)} connections"
        said = [share, _many(one.get("workers"), "worker", "workers")]
        offset, error = one.get("clock_offset_s"), one.get("clock_uncertainty_s")
        if isinstance(offset, int | float) and isinstance(error, int | float):
            said.append(f"clock {offset:+,.4f} s ± {1000 * error:.2f} ms")
        if one.get("came_later"):
            said.append("in the place of what was lost")
        yield ", ".join(one for one in said if one)


def by_agent(where: Environment) -> str:
    """Which agent sampled the server's host, what that is, and how far its clock is known; "" where none did."""
    agent = where.get("agent")
    if not isinstance(agent, dict):
        return ""
    error, drift = (agent.get(key) for key in ("clock_error_s", "clock_drift_ppm"))
    clock = f"its clock known to ± {format_duration(error)}" if isinstance(error, float) else "its clock not known"
    clock += f", drifting by {drift:.2g} ppm" if isinstance(drift, float) else ""
    memory_bytes = agent.get("memory_bytes")
    facts = [
        "this host" if agent.get("same_host") is True else str(agent.get("host")),
        f"Linux {agent.get('kernel')}",
        f"{agent.get('cpus')} CPUs",
        format_bytes(memory_bytes) if isinstance(memory_bytes, int | float) else "",
    ]
    said = ", ".join(fact for fact in facts if fact and "None" not in fact)
    return oneline(f"Server's host by its agent ({agent.get('url')}): {said}; {clock}")


def _many(number: object, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}" if number else ""
