"""The answer of ``asyncli size`` as a document and as JSON."""

from __future__ import annotations

import math

import msgspec

from asyncli import __version__
from asyncli.analysis.sizing import SizedPart, Sizing
from asyncli.findings.collected import BY_COMMAND, collect_flags
from asyncli.model.records import SCHEMA
from asyncli.model.text import oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_bytes, format_count, format_many
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.answer import is_heap_filling, server_name
from asyncli.report.format import capitalised, ceiling, error_of, is_lopsided, or_bytes
from asyncli.report.run_costs import ONE_RAMP, earlier_memory, is_of_one_ramp
from asyncli.report.summary import Summary
from asyncli.report.summary_parts import RuntimePart

# Beyond so many times the measured count the line may bend: the forecast of a report says so too.
_FAR = 10


def size_document(sizing: Sizing, summary: Summary, path: str) -> doc.Document:
    """The document; ``path``: the run file that it is computed from."""
    server = oneline(server_name(summary))
    answer = [doc.Paragraph(oneline(in_a_sentence(sizing, server, path)), "answer")]
    for doubt in doubts(sizing, summary):
        answer.append(doc.Paragraph(doubt, "doubt", "yellow"))
    sections = [
        doc.Section("answer", "Answer", answer),
        doc.Section("memory", "Memory", [_memory_table(sizing, server)]),
    ]
    if sizing.limits:
        sections.append(doc.Section("limits", "Limits", [_limit_table(sizing)]))
    headline = f"{format_count(sizing.connections)} connections on {server}"
    byline = [f"computed from {path}, run {summary.run.id} of {summary.run.started}"]
    footer = f"Computed by asyncli {__version__}. A tenth of each host's memory stays free."
    return doc.Document("size", f"Size of {headline}", headline, byline, sections, footer)


def in_a_sentence(sizing: Sizing, server: str, path: str) -> str:
    """``1,000,000 clients: 18.7 GB ± 0.4 on the server (14.8 GB in nginx, 3.9 GB in the server's
    kernel). Hosts of 64 GB: one.``
    """
    clients = format_many(sizing.connections, "client")
    if sizing.at_least_bytes is not None:
        total = f"at least {format_bytes(sizing.at_least_bytes)}"
    elif sizing.total_bytes is not None and sizing.ci95 is not None:
        total = with_interval(sizing.total_bytes, sizing.ci95)
    else:
        return f"{clients}: {_without_total(sizing, server)}. {_no_hosts(sizing)}"
    parts = ", ".join(_named(part, server) for part in sizing.parts)
    return f"{clients}: {total} on the server ({parts}). {_hosts(sizing, path)}"


def _without_total(sizing: Sizing, server: str) -> str:
    """The parts that are known, then why the others are not."""
    parts = [_named(part, server) for part in sizing.parts if part.bytes is not None]
    known = len(parts)
    reasons: set[str] = set()
    for part in reversed(sizing.unknown):
        amount = f"{_bound(part)} {_place(part, server)}"
        # A reason that several parts share follows the last of them.
        if part.why not in reasons:
            amount += f" ({part.why})"
        parts.insert(known, amount)
        reasons.add(part.why)
    listed = ", ".join(parts)
    if sizing.at_most_bytes is None:
        return listed
    at_most = f"at most {format_bytes(sizing.at_most_bytes)} on the server"
    if not sizing.rest_at_most_bytes:
        return f"{at_most}: {listed}"
    return f"{at_most}: {listed}, at most {format_bytes(sizing.rest_at_most_bytes)} left over"


def _no_hosts(sizing: Sizing) -> str:
    """Why there is no number of hosts."""
    if sizing.host_too_small and sizing.host_bytes is not None:
        return f"A host of {format_bytes(sizing.host_bytes)} is too small for the server alone."
    if sizing.rest_at_most_bytes is not None and sizing.rest_unknown:
        return (
            f"The total cannot be told: what is left over is unknown ({sizing.rest_unknown}). "
            "Hence no number of hosts."
        )
    if sizing.at_most_bytes is not None:
        return "A part of it is hidden, hence no number of hosts."
    return "The total cannot be told without the unknown part, and no number of hosts."


def with_interval(total: float, ci95: tuple[float, float]) -> str:
    """``18.7 GB ± 0.4`` where the interval is symmetric, else ``18.7 GB (18.3 GB to 22.1 GB)``."""
    text = format_bytes(total)
    if is_lopsided(total, ci95):
        return f"{text} ({_interval(ci95)})"
    number, _, unit = text.partition(" ")
    if not unit:
        return text
    # The error in the unit of the total and in its decimals, rounded up.
    decimals = len(number.partition(".")[2])
    in_this_unit = float(number.replace(",", ""))
    scale = total / in_this_unit if in_this_unit else 1.0
    step = 10**-decimals
    error = math.ceil(error_of(total, ci95) / scale / step) * step
    return f"{text} ± {error:,.{decimals}f}"


def _bound(part: SizedPart) -> str:
    """What is known of a part without a number."""
    if part.ci95 is None:
        return "unknown"
    return f"at most {format_bytes(part.ci95[1])}"


def _named(part: SizedPart, server: str) -> str:
    if part.is_wide and part.ci95 is not None:
        return f"{_interval(part.ci95)} {_place(part, server)}"
    return f"{or_bytes(part.bytes)} {_place(part, server)}"


def _place(part: SizedPart, server: str) -> str:
    places = {
        "server_user": f"in {server}",
        "behind": "behind it",
        "kernel": "in the server's kernel",
    }
    return places[part.name]


def _hosts(sizing: Sizing, path: str) -> str:
    if sizing.host_bytes is None:
        return f"How many hosts: asyncli size {path} -c {sizing.connections} --memory 64G."
    size = format_bytes(sizing.host_bytes)
    if sizing.hosts is None:
        return _no_hosts(sizing)
    if sizing.hosts_ci95 is None:
        return f"Hosts of {size}: at least {format_count(sizing.hosts)}."
    count = "one" if sizing.hosts == 1 else format_count(sizing.hosts)
    fewest, most = sizing.hosts_ci95
    if fewest == most:
        return f"Hosts of {size}: {count}."
    return f"Hosts of {size}: {count} ({format_count(fewest)} to {format_count(most)})."


def doubts(sizing: Sizing, summary: Summary) -> list[str]:
    """What makes the answer less sure."""
    sentences = []
    is_known = any(part.ci95 is not None for part in sizing.parts)
    if sizing.factor > _FAR and is_known:
        measured = format_count(sizing.measured)
        sentences.append(
            f"This is {format_count(sizing.factor)} times the {measured} connections of the run, "
            "and is right only if memory goes on rising as it did in the run. A soak of "
            f"{format_count(math.ceil(sizing.connections / _FAR))} would show it."
        )
    if is_known and is_heap_filling(summary):
        sentences.append(_of_filling_heap(sizing, summary))
    if sizing.at_least_bytes is not None:
        sentences.append(
            f"What is left over of a connection is unknown ({sizing.rest_unknown}): memory of a "
            "cache or a database that works for the server is not in it. A slower ramp and a "
            "quiet host would show it."
        )
    if summary.run.verdict != "passed":
        verdict = f"{summary.run.verdict} ({oneline(summary.why)})"
        of_run = f"Verdict of the run: {verdict}."
        if is_known:
            of_run += " The parts that it measured are used nevertheless."
        sentences.append(of_run)
    if is_of_one_ramp(summary):
        sentences.append(ONE_RAMP)
    earlier = earlier_memory(summary)
    if earlier:
        sentences.append(earlier)
    if not sides(summary.environment).server:
        sentences.append(
            "The run has no memory of the server's host: soak with --agent to size that."
        )
    return sentences


def _of_filling_heap(sizing: Sizing, summary: Summary) -> str:
    """That the memory of a collected heap whose goal is unknown is no size to plan with."""
    server = server_name(summary)
    runtime = summary.server.runtime
    if not isinstance(runtime, msgspec.UnsetType) and runtime.kind == "go":
        return _of_filling_heap_of_go(runtime, summary, server)
    limit = None
    if not isinstance(runtime, msgspec.UnsetType):
        limit = runtime.heap_limit_bytes
    if limit is not None:
        return (
            f"The memory in {server} is that of its heap while it was filling. That heap takes at "
            f"most {format_bytes(limit)}: resident memory follows this limit, and not the "
            "connections. How many it has room for follows from what is alive in it: "
            f"{_ways_to_live(summary)}."
        )
    if summary.plan.get("server_metrics"):
        return (
            f"The memory in {server} is that of its heap while it was filling, which is no size to "
            "plan with: a collected heap may come to rest higher. Its page of metrics says no "
            "goal: hold for long with all connections."
        )
    return (
        f"The memory in {server} is that of its heap while it was filling, which is no size to "
        "plan with: a collected heap may come to rest higher. A soak with --server-metrics "
        "shows where, if the runtime's page says its goal, as Go's does; else hold for long "
        "with all connections."
    )


def _of_filling_heap_of_go(runtime: RuntimePart, summary: Summary, server: str) -> str:
    """That Go's rules, and not the ramp, say where the memory of a server comes to rest."""
    filling = f"The memory in {server} is that of its heap while it was filling"
    limit = runtime.heap_limit_bytes
    if limit is not None:
        filling += (
            f". GOMEMLIMIT ({format_bytes(limit)}) is no bound: beyond it Go takes what is alive, "
            "and collects all the time. How many connections it has room for follows from what is "
            f"alive and the stacks: {_ways_to_live(summary)}"
        )
    elif runtime.gogc is not None and runtime.gogc > 0:
        fills_to = f"{1 + runtime.gogc / 100:g}"
        filling += (
            f", which is no size to plan with: by GOGC={runtime.gogc} it may fill to {fills_to} "
            "times what is alive and the stacks, so the interval reaches to that"
        )
    else:
        filling += ", which is no size to plan with: without a goal it takes what the host has"
    if not summary.plan.get("server_metrics"):
        return (
            f"{filling}. A soak with --server-metrics shows where it comes to rest; else hold for "
            "long with all connections."
        )
    for finding in summary.findings:
        if finding.code in _WHY_NO_GOAL:
            return f"{filling}. {capitalised(finding.evidence, server)}."
    return f"{filling}. Hold for long with all connections."


# Findings of why the cost of a heap at its goal is unknown.
_WHY_NO_GOAL = frozenset({"live_unknown", "heap_of_a_part", "goal_unknown"})


def _ways_to_live(summary: Summary) -> str:
    runtime = summary.server.runtime
    kind = "" if isinstance(runtime, msgspec.UnsetType) else runtime.kind
    if summary.cost.live and kind == "go" and not summary.cost.stacks:
        return "soak with --server-metrics, which has its stacks"
    if summary.cost.live:
        return "see the limits"
    return f"soak with {collect_flags(kind) or BY_COMMAND}"


def _memory_table(sizing: Sizing, server: str) -> doc.DataTable:
    rows = [doc.TableRow(_place(part, server), _cells(part)) for part in sizing.parts]
    if sizing.rest_at_most_bytes is not None:
        cells = ["", "", "", f"0 B to {format_bytes(sizing.rest_at_most_bytes)}"]
        rows.append(doc.TableRow("left over", cells))
    rows.append(_total_row(sizing))
    at_count = f"at {format_count(sizing.connections)}"
    columns = doc.numbers("a connection", "fixed", at_count, "95 % interval")
    return doc.DataTable("Memory on the server", columns, rows, kind="stack")


def _cells(part: SizedPart) -> list[str]:
    if part.ci95 is None:
        return ["-", "-", "-", "-"]
    if part.bytes is None or part.bytes_per_connection is None:
        return ["-", "-", "-", _interval(part.ci95)]
    if part.is_wide:
        return ["-", "-", "-", _interval(part.ci95)]
    interval = f"± {format_bytes(error_of(part.bytes, part.ci95))}"
    if is_lopsided(part.bytes, part.ci95):
        interval = _interval(part.ci95)
    return [
        f"{part.bytes_per_connection:,.0f} B",
        or_bytes(part.fixed_bytes),
        format_bytes(part.bytes),
        interval,
    ]


def _total_row(sizing: Sizing) -> doc.TableRow:
    if sizing.at_least_bytes is not None:
        label = "in all, without the residual"
        cells = [f"at least {format_bytes(sizing.at_least_bytes)}", "-"]
        return doc.TableRow(label, ["", "", *cells], strong=True)
    cells = ["-", "-"]
    if sizing.at_most_bytes is not None:
        cells = ["-", f"at most {format_bytes(sizing.at_most_bytes)}"]
    if sizing.total_bytes is not None and sizing.ci95 is not None:
        cells = [format_bytes(sizing.total_bytes), _interval(sizing.ci95)]
    label = "in all, with the residual in the interval"
    return doc.TableRow(label, ["", "", *cells], strong=True)


def _interval(ci95: tuple[float, float]) -> str:
    return f"{format_bytes(ci95[0])} to {format_bytes(ci95[1])}"


def _limit_table(sizing: Sizing) -> doc.DataTable:
    rows = []
    for limit in sizing.limits:
        verdict: doc.Cell = "enough"
        if not limit.suffices:
            verdict = (f"raise it {_times(limit.factor)}", "yellow")
        cells = [format_count(limit.connections), verdict, oneline(limit.how)]
        rows.append(doc.TableRow(ceiling(limit.name), cells))
    share = format_count(sizing.limits[0].needed)
    columns = [*doc.numbers("allows"), doc.TableColumn(f"for {share} on each", kind="word")]
    columns.append(doc.TableColumn("calculation", kind="words", view=doc.View.PAGE))
    return doc.DataTable("Limits of such a host", columns, rows, kind="wordy stack", width=44)


def _times(factor: float) -> str:
    """``51-fold``, ``1.4-fold``: rounded up."""
    if factor < 10:
        return f"{math.ceil(10 * factor) / 10:g}-fold"
    return f"{format_count(math.ceil(factor))}-fold"


def to_json(sizing: Sizing, summary: Summary, path: str) -> str:
    """The answer as JSON."""
    run = {"id": summary.run.id, "file": path, "verdict": summary.run.verdict}
    size = msgspec.to_builtins(sizing)
    for document, limit in zip(size["limits"], sizing.limits, strict=True):
        document["suffices"] = limit.suffices
    return jsonout.to_json(
        {"schema": SCHEMA, "run": run, "size": size, "doubts": doubts(sizing, summary)}
    )
