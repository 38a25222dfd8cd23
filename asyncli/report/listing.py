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
from asyncli.report.format import utf8, with_error
from asyncli.report.summary import hangs_on_all, verdict_of_all
from asyncli.report.terminal import VERDICT_STYLE, ascii_only
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


# Column -> how soon it goes where the terminal is narrow: the higher the sooner; 0 stays.
_COLUMNS = {
    "run file": 0, "started (UTC)": 2, "age": 0, "server": 3, "held": 0, "hold": 1, "verdict": 0, "cost on host": 1,
    "cost in server": 0, "size": 4,
}  # fmt: skip
_RIGHT = ("age", "held", "hold", "cost on host", "cost in server", "size")


def print_listing(listing: Listing, console: Console) -> None:
    """One line a run. On a terminal columns go until a line fits; in a pipe all are there, however wide."""
    from rich.text import Text

    lines = [_cells(run) for run in listing.runs]
    shown = list(_COLUMNS)
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) if lines else 0 for name in _COLUMNS}
    if console.is_terminal:
        while sum(widths[name] + 2 for name in shown) - 2 > console.width and any(_COLUMNS[name] for name in shown):
            shown.remove(max(shown, key=_COLUMNS.__getitem__))
        # What is still too wide is the files' names: their ends tell them apart.
        over = sum(widths[name] + 2 for name in shown) - 2 - console.width
        widths["run file"] = max(12, widths["run file"] - max(0, over))

    def put(cells: dict[str, str], style: str = "") -> None:
        text = Text()
        for name in shown:
            cell = cells[name] if len(cells[name]) <= widths[name] else "…" + cells[name][1 - widths[name] :]
            padded = f"{cell:>{widths[name]}}" if name in _RIGHT else f"{cell:<{widths[name]}}"
            text.append(padded, style or (VERDICT_STYLE.get(cells["verdict"].partition(",")[0], "") if name == "verdict" else ""))
            text.append("  ")
        text.rstrip()
        _say(console, text)

    if lines:
        put({name: name for name in _COLUMNS}, "dim")
    for line in lines:
        put(line)
    if not lines:
        _say(console, Text(f"no run files in {oneline(listing.folder)}; 'asyncli demo' makes one"))
    if listing.unread:
        _say(console, Text(""))
        _say(console, Text("Not runs, or broken:", "bold"))
        for one in listing.unread:
            _say(console, Text(f"  {oneline(one.why)}", "yellow"))


def _say(console: Console, text: Any) -> None:
    if console.options.ascii_only:
        text.plain = ascii_only(text.plain)
    console.print(text, soft_wrap=True)


def _cells(run: Listed) -> dict[str, str]:
    held = format_count(run.held)
    return {
        "run file": oneline(run.file),
        "started (UTC)": run.started.replace("T", " ").removesuffix("Z")[:16],
        "age": _age(run.age_s),
        "server": oneline(run.server or "-"),
        "held": held if run.held == run.requested else f"{held}/{format_count(run.requested)}",
        "hold": _hold(run),
        "verdict": state(run),
        "cost on host": _cost(run.cost if run.cost_of == "host_total" else None),
        "cost in server": _cost(run.server_cost),
        "size": format_bytes(run.bytes),
    }


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
