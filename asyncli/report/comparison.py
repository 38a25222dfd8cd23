"""A comparison of runs for a terminal and as JSON: what is really different first, then every number, then what to know."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli.analysis.compare import GROUPS, METHOD, ROWS, RULE, Comparison, Difference, hindrance
from asyncli.analysis.measured import MeasuredRun, measure
from asyncli.errors import PlanError, StoreError
from asyncli.findings.comparison import in_words, named
from asyncli.records import SCHEMA, Finding
from asyncli.report.summary import hangs_on_all, verdict_of_all
from asyncli.report.terminal import SEVERITY_STYLE, VERDICT_STYLE, Indented, print_parts
from asyncli.report.words import utf8
from asyncli.run import Run
from asyncli.store.reader import read_run
from asyncli.text import oneline
from asyncli.units import format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Beyond this, the eye loses a row of numbers on its way.
_WIDEST = 120
_ROW = {row.key: row for row in ROWS}
#: Units by size: (at least, factor, name); the first that fits is used.
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "bytes": ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e5, 1e3, "kB"), (0, 1, "B")),
    "bytes/h": ((1e9, 1e9, "GB/h"), (1e6, 1e6, "MB/h"), (1e5, 1e3, "kB/h"), (0, 1, "B/h")),
    "us": ((1e6, 1e6, "s"), (1e4, 1e3, "ms"), (0, 1, "µs")),
    "ms": ((1e4, 1e3, "s"), (0, 1, "ms")),
}
_PLAIN = ((0.0, 1.0, ""),)
# Digits below the interval's own tenth are noise, and more than five in all are not read.
_RESOLVED, _MOST_DIGITS = 10, 5
_TINY = 0.01
#: What the short names of some rows leave out.
UNITS = (
    "Lost and reopened are per 1,000 connection-hours, failed to open per 1,000 attempts. The CPU of a connection is all that "
    "the server used in the ramp, heartbeats too, by the connections opened in it."
)


def require_some(where: str, count: int) -> None:
    """Raise :class:`PlanError` where so many runs cannot be compared."""
    if count < 2:
        raise PlanError(f"{where}: one run alone cannot be compared; name two or more")
    if count > len(string.ascii_uppercase):
        raise PlanError(f"{where}: {count} runs are more than have letters; compare at most {len(string.ascii_uppercase)}")


def measure_files(files: Iterable[tuple[Path, Run | None]]) -> list[MeasuredRun]:
    """Each run file (with what was read from it already) ready to be compared, under its letter.

    Raises :class:`StoreError` for one that cannot be read or compared, or is the same run as one before it.
    """
    found: list[MeasuredRun] = []
    for name, (path, run) in zip(string.ascii_uppercase, files, strict=False):
        found.append(_measure_file(name, path, run, found))
    return found


def _measure_file(name: str, path: Path, run: Run | None, others: Sequence[MeasuredRun]) -> MeasuredRun:
    # A night at a sample a second is some hundred megabytes: when this returns it is let go, before the next is read.
    run = read_run(path) if run is None else run
    twin = next((one for one in others if one.id == run.id), None)
    if twin is not None:
        raise StoreError(f"{path}: is a copy of {twin.path} (run {run.id} again); compare two different runs")
    why = hindrance(str(path), run)
    if why is not None:
        raise StoreError(why)
    found = measure(name, str(path), run)
    if hangs_on_all(run):
        found.verdict, found.why = verdict_of_all(run)
        if run.complete:
            found.spoiled = found.why if found.verdict == "invalid" else ""
    return found


class Amounts(msgspec.Struct, frozen=True):
    """A row's numbers as words: all in one unit, with the digits that the interval leaves them; "-" for what is not known."""

    unit: str
    first: str
    second: str
    difference: str
    low: str
    high: str
    percent: str
    #: The most that the difference can be, of either sign.
    most: str

    @property
    def interval(self) -> str:
        return f"{self.low} to {self.high}" if self.low != "-" else "-"


def amounts(one: Difference) -> Amounts:
    """The row's numbers for reading."""
    values = [abs(value) for value in one.values if value is not None]
    ends = one.ci95 or (0.0, 0.0)
    factor, unit = _scale(one.unit, max([*values, *map(abs, ends)]))
    spread = ends[1] - ends[0]
    digits = _digits(max([*values, *map(abs, ends)]) / factor, spread / factor if one.ci95 else None)

    def shown(value: float | None, signed: bool = False) -> str:
        return "-" if value is None else _number(value / factor, digits, signed)

    first, second = map(shown, one.values)
    if one.difference is None or one.ci95 is None:
        return Amounts(unit, first, second, "-", "-", "-", "-", "-")
    low, high = (shown(end, signed=True) for end in one.ci95)
    percent = "-" if one.relative is None else _number(one.relative * 100, 1 if abs(one.relative) < 10 else 0, signed=True)
    return Amounts(unit, first, second, shown(one.difference, signed=True), low, high, percent, shown(max(map(abs, one.ci95))))


def _scale(unit: str, most: float) -> tuple[float, str]:
    return next((factor, name) for least, factor, name in _SCALES.get(unit, _PLAIN) if most >= least)


def _digits(most: float, spread: float | None) -> int:
    """Decimals: as far as the interval's tenth, but no more than make five digits in all."""
    whole = len(f"{most:.0f}")
    wanted = 0 if most >= 100 or not most else 2
    if spread is not None and spread > 0:
        wanted = math.ceil(-math.log10(spread / _RESOLVED))
    if 0 < most < _TINY:
        # Three decimals would leave nothing of it.
        return min(max(wanted, 2 - math.floor(math.log10(most))), _MOST_DIGITS - math.floor(math.log10(most)))
    return min(max(0, wanted), max(0, _MOST_DIGITS - whole), 3)


def _number(value: float, digits: int, signed: bool) -> str:
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    # What rounds to nothing has no sign.
    return text if float(text.replace(",", "")) else text.lstrip("+-")


def words(one: Difference) -> str:
    """The verdict on a row in words."""
    if one.verdict in ("higher", "lower"):
        return f"{one.between[1]} is {one.verdict}"
    if one.verdict == "no_difference":
        shown = amounts(one)
        if one.ci95 == (0.0, 0.0):
            return "no difference at all"
        return f"no difference seen (less than {shown.most}{f' {shown.unit}' if shown.unit else ''})"
    return f"cannot say: {one.why}" if one.why else "cannot say"


def server_of(run: MeasuredRun) -> str:
    """The server of a run, with what tells its configuration: ``nginx/1.22.1, config ab12``."""
    label, config = run.facts.get("server.label") or "unknown server", run.facts.get("server.config_hash")
    return oneline(f"{label}, config {str(config)[:8]}" if config else str(label))


def verdict_of(run: MeasuredRun) -> str:
    """The run's verdict; a run without an end has none."""
    return run.verdict if run.complete else "incomplete"


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data: the JSON of ``asyncli compare``, schema 1. Every number is finite or null."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "name": run.name, "file": utf8(run.path), "id": run.id, "started": run.started, "verdict": run.verdict,
                "complete": run.complete, "held": run.held, "hold_s": run.hold_s,
                "server": run.facts.get("server.label"), "config_hash": run.facts.get("server.config_hash"),
            }
            for run in comparison.runs
        ],
        "differs": [{"key": one.key, "values": msgspec.to_builtins(one.values)} for one in comparison.differs],
        "differences": [
            {
                "key": one.key, "name": _ROW[one.key].name, "unit": one.unit, "between": list(one.between),
                "values": list(one.values), "difference": one.difference,
                "ci95": None if one.ci95 is None else list(one.ci95), "relative": one.relative, "p_value": one.p_value,
                "verdict": one.verdict, "words": words(one),
            }
            for one in comparison.differences
        ],
        "findings": msgspec.to_builtins(comparison.findings),
        "method": METHOD,
        "rule": RULE,
    }  # fmt: skip


def to_json(comparison: Comparison) -> str:
    """:func:`document`, indented."""
    return msgspec.json.format(msgspec.json.encode(document(comparison)), indent=2).decode()


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print it; readable at 80 columns, without colour, piped, and where only ASCII is known."""
    width = min(console.width, _WIDEST)
    parts = [*_runs(comparison), *_findings(comparison.findings)]
    for second in comparison.runs[1:]:
        rows = [one for one in comparison.differences if one.between[1] == second.name]
        parts += [*_answer(rows), *_numbers(rows, width), *_rest(rows)]
    parts += [*_differs(comparison), *_epilogue()]
    print_parts(parts, console, _WIDEST)


def _runs(comparison: Comparison) -> Iterable[RenderableType]:
    from rich.text import Text

    for run in comparison.runs:
        held = f"{format_count(run.held)} held" + (f" for {format_duration(round(run.hold_s))}" if run.hold_s >= 1 else "")
        verdict = verdict_of(run)
        text = Text.assemble(
            (f"{run.name}  ", "bold"), (oneline(run.path), "bold"), f": {server_of(run)}, {held}, begun {run.started}, ",
            (verdict, VERDICT_STYLE[verdict]),
        )  # fmt: skip
        yield Indented(text, 3)
    yield ""


def _findings(findings: Sequence[Finding]) -> Iterable[RenderableType]:
    from rich.text import Text

    for one in findings:
        text = Text.assemble((one.severity, SEVERITY_STYLE[one.severity]), f"  {oneline(one.evidence)}")
        if one.remedy:
            text.append(f"; {oneline(one.remedy)}", "dim")
        yield Indented(text, 2)
    if findings:
        yield ""


def headline(rows: Sequence[Difference]) -> str:
    """How many of the rows could be compared, and how many of those are really different, as a title."""
    first, second = rows[0].between
    real = sum(one.verdict in ("higher", "lower") for one in rows)
    compared = sum(one.p_value is not None for one in rows)
    if not compared:
        return f"{second} against {first}: none of {len(rows)} numbers could be compared"
    found = f"{real or 'no'} real difference{'s' if real > 1 else ''}"
    return f"{second} against {first}: {found} in the {compared} of {len(rows)} numbers that could be compared"


def sentence(one: Difference) -> str:
    """A real difference in words: "latency p50: B is higher by 0.152 ms (+23.9 %)"."""
    shown = amounts(one)
    by = f"{shown.difference.lstrip('+-')} {shown.unit}".rstrip()
    return f"{_ROW[one.key].name}: {words(one)} by {by}" + (f" ({shown.percent} %)" if one.relative is not None else "")


def unsaid(rows: Sequence[Difference]) -> dict[str, list[str]]:
    """Why nothing can be said -> the names of the rows of which that is so."""
    reasons: dict[str, list[str]] = {}
    for one in rows:
        if one.verdict == "cannot_say":
            reasons.setdefault(oneline(one.why), []).append(_ROW[one.key].name)
    return reasons


def _answer(rows: Sequence[Difference]) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text(headline(rows), "bold")
    for one in rows:
        if one.verdict in ("higher", "lower"):
            yield Indented(Text(f"  {sentence(one)}"), 4)
    yield ""


_LAYOUTS = ("words", "marks", "narrow")


def _numbers(rows: Sequence[Difference], width: int) -> Iterable[RenderableType]:
    """The table, as wide as the terminal lets it be."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    endless = Console(width=1000)
    for layout in _LAYOUTS:
        table = _table(rows, layout)
        if Measurement.get(endless, endless.options, table).maximum <= width:
            break
    yield table
    if layout != "words":
        yield Text(f"Real: whether {rows[0].between[1]} really differs; ?: cannot say.", "dim")
    yield Text(UNITS, "dim")


def _table(rows: Sequence[Difference], layout: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    first, second = rows[0].between
    table = Table(box=None, padding=(0, 2 if layout == "words" else 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for heading in ("", ""):
        table.add_column(Text(heading), no_wrap=True)
    per_cent = [] if layout == "narrow" else ["%"]
    for heading in (first, second, f"{second} - {first}", *per_cent, "95 % interval"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    table.add_column(Text("" if layout == "words" else "real"), overflow="fold")
    group = None
    for one in rows:
        row, shown = _ROW[one.key], amounts(one)
        # What neither run knows has no numbers to show; the reason stands below.
        if one.values == (None, None):
            continue
        if row.group != group:
            group = row.group
            table.add_row(Text(GROUPS[group], "bold"))
        if layout == "words":
            said = "cannot say (see below)" if one.verdict == "cannot_say" else words(one)
        else:
            said = {"no_difference": "no", "cannot_say": "?"}.get(one.verdict, one.verdict)
        style = "bold" if one.verdict in ("higher", "lower") else "dim" if one.verdict == "cannot_say" else ""
        cells = (shown.first, shown.second, shown.difference, *([shown.percent] if per_cent else []), shown.interval, said)
        table.add_row(Text(f" {row.label}", style), Text(shown.unit, "dim"), *(Text(cell, style) for cell in cells))
    return table


def _rest(rows: Sequence[Difference]) -> Iterable[RenderableType]:
    """What cannot be said, and why."""
    from rich.text import Text

    yield ""
    reasons = unsaid(rows)
    if reasons:
        yield Text("Cannot say", "bold")
        for why, names in reasons.items():
            yield Indented(Text(f"  {', '.join(names)}: {why}"), 4)
        yield ""


def _differs(comparison: Comparison) -> Iterable[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if not comparison.differs:
        yield Text("Plan, server and host of these runs are the same in all that was recorded.", "dim")
        yield ""
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(Text("What differs between the runs", "bold not dim"), max_width=30)
    for run in comparison.runs:
        table.add_column(Text(run.name), overflow="fold")
    for one in comparison.differs:
        table.add_row(Text(f" {named(one.key)}"), *(Text(oneline(in_words(one.key, value))) for value in one.values))
    yield table
    yield ""


def _epilogue() -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text(f"Real by this rule: {RULE}.", "dim")
    yield Text(f"Intervals: {METHOD}.", "dim")
