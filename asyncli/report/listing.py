"""The list of the runs in a folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.cost import known_costs
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.drift import SOURCES, drifts
from asyncli.analysis.saturation import has_late_ramp, is_saturated, saturation
from asyncli.analysis.slope import Cost, streams_each
from asyncli.analysis.totals import fold
from asyncli.analysis.verdict import Case, Verdict, ended_by_user, judge
from asyncli.model import metrics
from asyncli.model.records import SCHEMA
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_count, format_duration
from asyncli.report import jsonout
from asyncli.report.answer import worst
from asyncli.report.document import (
    Block,
    Cell,
    DataTable,
    Document,
    Paragraph,
    Section,
    TableColumn,
    TableRow,
)
from asyncli.report.format import count_or_unknown, utf8, with_error, with_streams
from asyncli.report.summary import summarise, verdict_needs_summary
from asyncli.report.terminal import VERDICT_STYLE, fitting, has_width, print_document

if TYPE_CHECKING:
    from rich.console import Console

#: What costs and drifts read of the whole run; of other metrics they need the first seconds of the
#: hold at most.
READ_WHOLE = frozenset(
    {
        *itertools.chain.from_iterable(SOURCES.values()),
        metrics.KERNEL_LISTING_BYTES,
        metrics.STATUS_ACCEPTS,
        metrics.SERVER_STARTED,
        metrics.SERVER_CPU_S,
        metrics.SERVER_DESCRIPTORS,
        metrics.SERVER_ENDED,
        metrics.SERVER_PROCESSES,
        metrics.SERVER_THREADS,
        metrics.KERNEL_TCP_ALLOC,
        metrics.KERNEL_SOCKETS,
        f"{metrics.CLIENT}{metrics.KERNEL_SOCKETS}",
        # The cost reaches to the level at the hold's end, of each part and of what is taken off the
        # host's.
        metrics.HOST_PROCESSES_BYTES,
        metrics.SESSION_USS_BYTES,
        metrics.AGENT_USS_BYTES,
        metrics.HOST_SHMEM_BYTES,
        metrics.SERVER_SHMEM_BYTES,
        metrics.KERNEL_TCP_INUSE,
        metrics.KERNEL_TCP_TW,
        metrics.SERVER_SOCKETS,
        metrics.SERVER_SOCKETS_ELSEWHERE,
        metrics.STATUS_ACTIVE,
        metrics.SERVER_DESCRIPTORS_OPEN,
        metrics.HOST_OTHER_PROCESSES,
        metrics.BESIDE_DESCRIPTORS,
        metrics.BESIDE_PROCESSES,
        metrics.BESIDE_HOLDERS,
        metrics.BESIDE_BYTES,
    }
)
# The file of a running run grows each second.
_LIVE_S = 3.0


class Listed(msgspec.Struct):
    """One run file. ``cost``: bytes per connection of ``cost_of``, the whole host or else the
    server; None if unknown. ``live``: being written. ``stopped``: by its user, early. ``hold_s``:
    measured, of ``planned_s`` (None: until stopped).
    """

    file: str
    id: str
    started: str
    age_s: float
    server: str | None
    requested: int
    #: None: the file has no record of its connections.
    held: int | None
    verdict: Verdict
    complete: bool
    live: bool
    stopped: bool
    hold_s: float
    planned_s: float | None
    cost: Cost | None
    cost_of: str | None
    server_cost: Cost | None
    bytes: int
    #: The code and the severity of the worst finding beside a pass; None without one.
    worst: str | None = None
    severity: str | None = None
    #: HTTP/2 streams that each connection holds; the costs include them.
    streams: float | msgspec.UnsetType = msgspec.UNSET


class Unread(msgspec.Struct):
    """A file that is not a run or is broken, and why."""

    file: str
    why: str


class Listing(msgspec.Struct):
    """``runs``: newest first."""

    folder: str
    runs: list[Listed]
    unread: list[Unread]


def listed(
    run: Run,
    file: str,
    size: int,
    *,
    changed_s: float,
    age_s: float,
    whole: Callable[[], Run] | None = None,
) -> Listed:
    """The entry of ``run``. ``changed_s``: time since its file was written. ``age_s``: time since
    it started. ``whole`` reads the whole run, if ``run`` is only its index entry, with the metrics
    :data:`READ_WHOLE`, and the verdict needs more.
    """
    totals = fold(run)
    limits = saturation(run, totals)
    case = Case(
        run.plan,
        totals,
        saturated=is_saturated(limits),
        late_ramp=has_late_ramp(limits),
        complete=run.complete,
        findings=run.findings,
    )
    verdict = judge(case).verdict
    finding = None
    # What stands beside a pass is found in the whole run.
    if verdict_needs_summary(run) or (verdict == "passed" and run.complete):
        summary = summarise(run if whole is None else whole())
        verdict = summary.verdict
        finding = worst(summary)
    listed_run = Listed(
        file=file,
        id=run.id,
        started=run.started,
        age_s=max(0.0, age_s),
        server=run.place.server_label or None,
        requested=run.plan.connections,
        held=totals.held if totals.recorded else None,
        verdict=verdict,
        complete=run.complete,
        live=not run.complete and changed_s < _LIVE_S,
        stopped=bool(ended_by_user(run.findings)),
        hold_s=run.held_for_s,
        planned_s=run.plan.hold_s,
        cost=None,
        cost_of=None,
        server_cost=None,
        bytes=size,
        streams=streams_each(run.plan.streams, []),
    )
    if finding is not None:
        listed_run.worst = finding.code
        listed_run.severity = finding.severity
    if totals.held or totals.peak:
        _add_costs(listed_run, known_costs(run, totals, drifts(run)[0]))
    return listed_run


def _add_costs(listed_run: Listed, costs: Costs) -> None:
    listed_run.streams = costs.streams
    listed_run.server_cost = costs.server_user
    if _is_slope_above_zero(costs.host_total):
        listed_run.cost = costs.host_total
        listed_run.cost_of = "host_total"
    elif costs.server_user is not None:
        listed_run.cost = costs.server_user
        listed_run.cost_of = "server_user"


def _is_slope_above_zero(cost: Cost | None) -> bool:
    # If the interval includes zero, other programs hide the slope.
    return cost is not None and cost.ci95[0] > 0 and not cost.of_levels


def to_json(listing: Listing) -> str:
    """The JSON of ``asyncli runs``."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **msgspec.to_builtins(listing),
        "folder": utf8(listing.folder),
    }
    for entry in (*document["runs"], *document["unread"]):
        for key in ("file", "why"):
            if key in entry:
                entry[key] = utf8(entry[key])
    return jsonout.to_json(document)


def state(run: Listed) -> str:
    """The verdict, "running" or "incomplete". Of a pass also the worst finding beside it: "passed,
    warning drift_grows".
    """
    if run.live and not run.complete:
        return "running"
    if not run.complete:
        return "incomplete"
    ended: str = run.verdict
    if run.stopped:
        ended += ", stopped"
    if run.worst:
        ended += f", {run.severity} {run.worst}"
    return ended


def _hold(run: Listed) -> str:
    if run.hold_s < 1:
        return "-"
    lasted = format_duration(round(run.hold_s))
    if run.stopped and run.planned_s is not None:
        return f"{lasted} of {format_duration(run.planned_s)}"
    return lasted


#: On a narrow terminal the last columns are omitted.
_COLUMNS = (
    "age",
    "held",
    "verdict",
    "cost in server",
    "hold",
    "cost on host",
    "server",
    "started (UTC)",
    "size",
)
_WORDS = ("verdict", "server", "started (UTC)")
# Width of the columns that are always shown; the rest is for the file's name.
_ALWAYS_SHOWN = 50


def print_listing(listing: Listing, console: Console) -> None:
    """One line per run. Where the width is bounded, columns are omitted until a line fits, and a
    line says which.
    """
    columns = [TableColumn(name, "word" if name in _WORDS else "number") for name in _COLUMNS]
    is_bounded = has_width(console)
    longest = max(12, console.width - _ALWAYS_SHOWN) if is_bounded else None
    table = DataTable("run file", columns, [_row(run, longest) for run in listing.runs], width=0)
    blocks: list[Block] = [table]
    if is_bounded:
        shown = fitting(table, console)
        blocks = [shown]
        omitted = [column.name for column in columns[len(shown.columns) :]]
        if omitted:
            blocks.append(Paragraph(_omission(omitted, console), "text"))
    if not listing.runs:
        none = f"no run files in {oneline(listing.folder)}"
        blocks = [Paragraph(f"{none}; 'asyncli soak URL' or 'asyncli demo' makes one", "text")]
    # A table, so that paths do not wrap in a pipe.
    broken = [TableRow(f"  {oneline(file.why)}", style="yellow") for file in listing.unread]
    sections = [Section("runs", "", blocks)]
    if broken:
        sections.append(
            Section("unread", "", [DataTable("Not runs, or broken:", [], broken, width=0)])
        )
    print_document(Document("runs", "", "", [], sections), console)


def _omission(names: Sequence[str], console: Console) -> str:
    """Which columns were omitted, and how to see them."""
    remedy = "a larger COLUMNS, or none, shows them"
    if console.is_terminal:
        remedy = "a wider terminal or '| less -S' shows them"
    return f"Not shown in {console.width} columns: {', '.join(names)}; {remedy}."


def _row(run: Listed, longest: int | None) -> TableRow:
    name = oneline(run.file)
    if longest is not None and len(name) > longest:
        # The end of a name tells it apart.
        name = f"…{name[1 - longest :]}"
    held = count_or_unknown(run.held)
    if run.held != run.requested:
        held = f"{held}/{format_count(run.requested)}"
    verdict = state(run)
    host_cost = None
    if run.cost_of == "host_total":
        host_cost = run.cost
    cells: list[Cell] = [
        _age(run.age_s),
        held,
        (verdict, VERDICT_STYLE[verdict.partition(",")[0]]),
        _cost(run.server_cost, run),
        _hold(run),
        _cost(host_cost, run),
        oneline(run.server or "-"),
        run.started.replace("T", " ").removesuffix("Z")[:16],
        format_bytes(run.bytes),
    ]
    return TableRow(name, cells)


def _cost(cost: Cost | None, run: Listed) -> str:
    if cost is None:
        return "-"
    text = f"{with_error(cost)}{with_streams(run.streams)}"
    if cost.of_levels:
        # Two levels include first use.
        return f"{text} (two levels)"
    return text


def _age(seconds: float) -> str:
    """The age in its largest unit: "3 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:,.0f} {unit}"
    return f"{seconds:.0f} s"


def newest_first(runs: Sequence[Listed]) -> list[Listed]:
    """Newest first, then by file name."""
    return sorted(runs, key=lambda run: (run.age_s, run.file))
