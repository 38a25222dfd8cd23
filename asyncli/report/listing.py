"""A folder of runs as lines: what each was of, how it went, what one more connection cost. Pure but for the printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.cost import costs
from asyncli.analysis.saturation import is_saturated, saturation
from asyncli.analysis.slope import Cost
from asyncli.analysis.totals import fold
from asyncli.analysis.verdict import Verdict, ended_by_user, judge
from asyncli.records import SCHEMA
from asyncli.report.document import Block, Cell, DataTable, Document, Paragraph, Section, TableColumn, TableRow, View
from asyncli.report.format import utf8, with_error
from asyncli.report.summary import hangs_on_all, verdict_of_all
from asyncli.report.terminal import VERDICT_STYLE, fitting, print_document
from asyncli.run import Run
from asyncli.text import oneline
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console

# A file that is being written grows each second; one that has not for this long has lost its writer.
_LIVE_S = 3.0


class Listed(msgspec.Struct):
    """One run file. ``cost``: bytes of one more connection on the host in all, or where that is unknown in the server's
    processes (``cost_of`` says which); None where neither is known. ``server_cost``: in the server's processes.

    ``live``: it is being written. ``stopped``: by its user, before its plan was done. ``hold_s``: held and measured, of
    ``planned_s`` (None: until stopped). Times in seconds.
    """

    file: str
    id: str
    started: str
    age_s: float
    server: str | None
    requested: int
    held: int
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


class Unread(msgspec.Struct):
    """A file that looked like a run and is none, or is broken, and why."""

    file: str
    why: str


class Listing(msgspec.Struct):
    """What a folder holds, the newest run first."""

    folder: str
    runs: list[Listed]
    unread: list[Unread]


def listed(run: Run, file: str, size: int, *, changed_s: float, age_s: float, whole: Callable[[], Run] | None = None) -> Listed:
    """The line of ``run``. ``changed_s``: how long ago its file was last written to; ``age_s``: how long ago it began.

    ``whole``: reads all of the run, where ``run`` is but its head and its verdict hangs on more.
    """
    totals = fold(run)
    limits = saturation(run, totals)
    if hangs_on_all(run):
        verdict, _ = verdict_of_all(run if whole is None else whole())
    else:
        verdict = judge(run.plan, totals, saturated=is_saturated(limits), complete=run.complete, findings=run.findings).verdict
    cost, of, server_cost = None, None, None
    if totals.held or totals.peak:
        found = costs(run)
        server_cost = found.server_user
        # A slope whose interval reaches zero was drowned by whatever else the host did.
        if found.host_total is not None and found.host_total.ci95[0] > 0 and not found.host_total.of_levels:
            cost, of = found.host_total, "host_total"
        elif server_cost is not None:
            cost, of = server_cost, "server_user"
    return Listed(
        file=file, id=run.id, started=run.started, age_s=max(0.0, age_s),
        server=run.place.server_label or None,
        requested=run.plan.connections, held=totals.held, verdict=verdict, complete=run.complete,
        live=not run.complete and changed_s < _LIVE_S, stopped=bool(ended_by_user(run.findings)),
        hold_s=run.measured_s(run.hold.start_s, run.hold.end_s) if run.hold is not None else 0.0,
        planned_s=run.plan.hold_s,
        cost=cost, cost_of=of, server_cost=server_cost, bytes=size,
    )  # fmt: skip


def to_json(listing: Listing) -> str:
    """The JSON of ``asyncli runs``, schema 1: ``folder``, ``runs`` (see :class:`Listed`), ``unread``."""
    document: dict[str, Any] = {"schema": SCHEMA, **msgspec.to_builtins(listing), "folder": utf8(listing.folder)}
    for one in (*document["runs"], *document["unread"]):
        one |= {key: utf8(one[key]) for key in ("file", "why") if key in one}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def state(run: Listed) -> str:
    """The verdict, or that there is none yet, or will never be."""
    ended = f"{run.verdict}, stopped" if run.stopped else run.verdict
    return ended if run.complete else "going on" if run.live else "incomplete"


def _hold(run: Listed) -> str:
    if run.hold_s < 1:
        return "-"
    lasted = format_duration(round(run.hold_s))
    return f"{lasted} of {format_duration(run.planned_s)}" if run.stopped and run.planned_s is not None else lasted


#: The first that go where a terminal is narrow are the last.
_COLUMNS = ("age", "held", "verdict", "cost in server", "hold", "cost on host", "server", "started (UTC)", "size")
_WORDS = ("verdict", "server", "started (UTC)")
# The columns that stay leave the rest of the terminal to a file's name.
_THAT_STAY = 50


def print_listing(listing: Listing, console: Console) -> None:
    """One line a run. On a terminal columns go until a line fits; in a pipe all are there, however wide."""
    columns = [TableColumn(name, "word" if name in _WORDS else "number") for name in _COLUMNS]
    longest = max(12, console.width - _THAT_STAY) if console.is_terminal else None
    table = DataTable("run file", columns, [_row(one, longest) for one in listing.runs], width=0)
    blocks: list[Block] = [fitting(table, console) if console.is_terminal else table]
    if not listing.runs:
        blocks = [Paragraph(f"no run files in {oneline(listing.folder)}; 'asyncli demo' makes one", "text")]
    # As a table: in a pipe no path is broken.
    broken = [TableRow(f"  {oneline(one.why)}", style="yellow") for one in listing.unread]
    sections = [Section("runs", "", blocks)]
    if broken:
        sections.append(Section("unread", "", [DataTable("Not runs, or broken:", [], broken, width=0)]))
    print_document(Document("runs", "", "", [], sections), console, View.VERBOSE)


def _row(run: Listed, longest: int | None) -> TableRow:
    held, verdict, name = format_count(run.held), state(run), oneline(run.file)
    if longest is not None and len(name) > longest:
        # Their ends tell files apart.
        name = f"…{name[1 - longest :]}"
    cells: list[Cell] = [
        _age(run.age_s), held if run.held == run.requested else f"{held}/{format_count(run.requested)}",
        (verdict, VERDICT_STYLE[verdict.partition(",")[0]]), _cost(run.server_cost), _hold(run),
        _cost(run.cost if run.cost_of == "host_total" else None), oneline(run.server or "-"),
        run.started.replace("T", " ").removesuffix("Z")[:16],
        format_bytes(run.bytes),
    ]  # fmt: skip
    return TableRow(name, cells)


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    # A difference of two levels is no cost of one more: what the first ones take once is in it.
    return with_error(cost) + (" (two levels)" if cost.of_levels else "")


def _age(seconds: float) -> str:
    """The age in its largest unit: "3 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:,.0f} {unit}"
    return f"{seconds:.0f} s"


def newest_first(runs: Sequence[Listed]) -> list[Listed]:
    """By their start, the file's name for those of one second."""
    return sorted(sorted(runs, key=lambda one: one.file), key=lambda one: one.age_s)
