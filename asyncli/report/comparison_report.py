"""A comparison of runs as a document and as JSON: real differences first, then every number, then the findings."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncli import __version__
from asyncli.analysis.compare import GROUPS, METHOD, ROW_OF, RULE, Comparison, Difference, hindrance
from asyncli.analysis.measured import MeasuredRun, measure
from asyncli.findings.compare import in_words, named
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.records import SCHEMA
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.document import typeset
from asyncli.report.figures.drawing import COLOURS, WIDE, NothingToDraw, Style, drawn_alone, sheet
from asyncli.report.format import utf8
from asyncli.report.summary import summary_verdict, verdict_needs_summary
from asyncli.report.terminal import VERDICT_STYLE
from asyncli.store.reader import read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns of a terminal.
_WIDEST = 120
#: Units by size: (at least, factor, name); the first that fits is used. Bytes are spelled out: B is a run.
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "bytes": ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e5, 1e3, "kB"), (0, 1, "bytes")),
    "bytes/h": ((1e9, 1e9, "GB/h"), (1e6, 1e6, "MB/h"), (1e5, 1e3, "kB/h"), (0, 1, "bytes/h")),
    "us": ((1e6, 1e6, "s"), (1e4, 1e3, "ms"), (0, 1, "µs")),
    "ms": ((1e4, 1e3, "s"), (0, 1, "ms")),
}
_PLAIN = ((0.0, 1.0, ""),)
# Digits below a tenth of the interval are noise; at most five digits in all.
_RESOLVED, _MOST_DIGITS = 10, 5
_TINY = 0.01
# Values with such a ratio are told first, real or not, and as a ratio; repeats on a quiet host differ by two.
_FAR_APART = 10
_TIMES = " times"
# Notes on the short names of some rows.
_NOTES = {
    ("lost", "reopened"): "Lost and reopened: per 1,000 connection-hours.",
    ("failed",): "Failed to open: per 1,000 attempts.",
    ("cpu.per_connection",): "CPU of a connection: all that the server used in the ramp, heartbeats included, by the connections "
    "opened.",
}


def require_comparable(where: str, count: int) -> None:
    """Raise :class:`PlanError` unless ``count`` runs can be compared."""
    if count < 2:
        raise PlanError(f"{where}: one run cannot be compared; name two or more")
    if count > len(string.ascii_uppercase):
        raise PlanError(f"{where}: {count} runs are too many; compare at most {len(string.ascii_uppercase)}")


def measure_files(files: Iterable[tuple[Path, Run | None]]) -> list[MeasuredRun]:
    """Measure each run file (path, its run if already read), and name it by a letter.

    Raises :class:`StoreError` for a file that cannot be read or compared, or is a copy of another.
    """
    found: list[MeasuredRun] = []
    for name, (path, run) in zip(string.ascii_uppercase, files, strict=False):
        found.append(_measure_file(name, path, run, found))
    return found


def _measure_file(name: str, path: Path, run: Run | None, others: Sequence[MeasuredRun]) -> MeasuredRun:
    # A night's run is some hundred megabytes: free it before the next is read.
    run = read_run(path) if run is None else run
    if (twin := next((one for one in others if one.id == run.id), None)) is not None:
        raise StoreError(f"{path}: is a copy of {twin.path} (run {run.id}); compare two different runs")
    if (why := hindrance(str(path), run)) is not None:
        raise StoreError(why)
    found = measure(name, str(path), run)
    if verdict_needs_summary(run):
        found.verdict, found.why = summary_verdict(run)
        if run.complete:
            found.spoiled = found.why if found.verdict == "invalid" else ""
    return found


class Amounts(msgspec.Struct, frozen=True):
    """A row's numbers as text: one unit, digits by the interval, "-" for unknown."""

    unit: str
    first: str
    second: str
    difference: str
    low: str
    high: str
    #: In per cent; from a tenfold on as a ratio: "185 times".
    percent: str
    #: The largest possible difference, of either sign.
    most: str

    @property
    def interval(self) -> str:
        return f"{self.low} to {self.high}" if self.low != "-" else "-"

    @property
    def relative(self) -> str:
        """The relative difference as text with its unit."""
        return self.percent if self.percent == "-" or self.percent.endswith(_TIMES) else f"{self.percent} %"


def amounts(one: Difference) -> Amounts:
    values = [abs(value) for value in one.values if value is not None]
    ends = one.ci95 or (0.0, 0.0)
    most = max([*values, *map(abs, ends)])
    factor, unit = next((factor, name) for least, factor, name in _SCALES.get(one.unit, _PLAIN) if most >= least)
    spread = ends[1] - ends[0]
    digits = _digits(most / factor, spread / factor if one.ci95 else None)

    def shown(value: float | None, signed: bool = False) -> str:
        return "-" if value is None else _number(value / factor, digits, signed)

    first, second = (hidden or shown(value) for value, hidden in zip(one.values, one.hidden, strict=True))
    # Of what is not shown, no difference is.
    difference = "-" if any(one.hidden) else shown(one.difference, signed=True)
    percent = _relative(one.relative)
    if one.ci95 is None:
        return Amounts(unit, first, second, difference, "-", "-", percent, "-")
    low, high = (shown(end, signed=True) for end in one.ci95)
    return Amounts(unit, first, second, difference, low, high, percent, shown(max(map(abs, one.ci95))))


def _relative(relative: float | None) -> str:
    """A relative difference, in per cent, or how many times as large the second value is; "-" if that says nothing."""
    if relative is None:
        return "-"
    times = 1 + relative
    if abs(times) < _FAR_APART:
        return _number(relative * 100, 1, signed=True)
    # Values of unlike signs, such as growth and shrinkage, are no multiples of each other.
    return f"{times:,.0f}{_TIMES}" if times > 0 else "-"


def _digits(most: float, spread: float | None) -> int:
    """Decimals: to a tenth of the interval, at most five digits in all."""
    whole = len(f"{most:.0f}")
    wanted = 0 if most >= 100 or not most else 2
    if spread is not None and spread > 0:
        wanted = math.ceil(-math.log10(spread / _RESOLVED))
    if 0 < most < _TINY:
        # Three decimals would round it to zero.
        return min(max(wanted, 2 - math.floor(math.log10(most))), _MOST_DIGITS - math.floor(math.log10(most)))
    return min(max(0, wanted), max(0, _MOST_DIGITS - whole), 3)


def _number(value: float, digits: int, signed: bool) -> str:
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    # Zero after rounding has no sign.
    return text if float(text.replace(",", "")) else text.lstrip("+-")


def words(one: Difference) -> str:
    if one.verdict in ("higher", "lower"):
        return f"{one.between[1]} is {one.verdict}"
    if one.verdict == "no_difference":
        shown = amounts(one)
        if one.ci95 == (0.0, 0.0):
            return "no difference at all"
        return f"no difference seen (less than {shown.most}{f' {shown.unit}' if shown.unit else ''})"
    return f"cannot say: {one.why}" if one.why else "cannot say"


def server_of(run: MeasuredRun) -> str:
    """The server and its configuration: ``nginx/1.22.1, config ab12``."""
    label, config = run.facts.get("server.label") or "unknown server", run.facts.get("server.config_hash")
    return oneline(f"{label}, config {str(config)[:8]}" if config else str(label))


def verdict_of(run: MeasuredRun) -> str:
    return run.verdict if run.complete else "incomplete"


def document(comparison: Comparison) -> dict[str, Any]:
    """The JSON of ``asyncli compare`` as plain data. Every number is finite or null."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "name": run.name, "file": utf8(run.path), "id": run.id, "started": run.started, "verdict": run.verdict,
                "complete": run.complete, "held": run.held, "hold_s": run.hold_s,
                **({"streams": streams} if (streams := run.facts.get("plan.streams")) else {}),
                "server": run.facts.get("server.label"), "config_hash": run.facts.get("server.config_hash"),
            }
            for run in comparison.runs
        ],
        "differs": [{"key": one.key, "values": msgspec.to_builtins(one.values)} for one in comparison.differs],
        "differences": [
            {
                "key": one.key, "name": ROW_OF[one.key].name, "unit": one.unit, "between": list(one.between),
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
    return jsonout.to_json(document(comparison))


def headline(rows: Sequence[Difference]) -> str:
    """The number of real differences, as a title."""
    first, second = rows[0].between
    real = sum(one.verdict in ("higher", "lower") for one in rows)
    unknown = sum(one.verdict == "cannot_say" for one in rows)
    if unknown == len(rows):
        return f"{second} against {first}: none of {len(rows)} numbers could be compared"
    found = f"{real or 'no'} real difference{'s' if real > 1 else ''}"
    return f"{second} against {first}: {found} in {len(rows) - unknown} of {len(rows)} numbers; {unknown} unknown"


def sentence(one: Difference) -> str:
    """A difference in words: "latency p50: B is higher by 0.152 ms (+23.9 %)"; of one that is not real, both values and why."""
    shown = amounts(one)
    if one.verdict == "cannot_say":
        (a, b), unit = one.between, f" {shown.unit}".rstrip()
        return f"{ROW_OF[one.key].name}: {a} {shown.first}{unit}, {b} {shown.second}{unit}; {one.why}"
    by = f"{shown.difference.lstrip('+-')} {shown.unit}".rstrip()
    return f"{ROW_OF[one.key].name}: {words(one)} by {by}" + (f" ({shown.relative})" if shown.relative != "-" else "")


def unknown_reasons(rows: Sequence[Difference]) -> dict[str, list[str]]:
    """Reason -> names of the rows that cannot be compared for it."""
    reasons: dict[str, list[str]] = {}
    for one in rows:
        if one.verdict == "cannot_say":
            reasons.setdefault(oneline(one.why), []).append(ROW_OF[one.key].name)
    return reasons


def comparison_document(comparison: Comparison) -> doc.Document:
    runs = comparison.runs
    each = [[one for one in comparison.differences if one.between[1] == run.name] for run in runs[1:]]
    known: list[doc.Block] = []
    if comparison.findings:
        known = [doc.Paragraph("", "text", view=doc.TERMINAL), doc.ItemList(doc.finding_items(comparison.findings))]
    labels = dict.fromkeys(str(run.facts.get("server.label") or "unknown server") for run in runs)
    sections = [
        doc.Section("answer", "", [*(doc.Paragraph(_run(run), "run") for run in runs), *known]),
        *(section for rows in each for section in _pair(rows, len(each) > 1, runs[0].kinds)),
        doc.Section("differs", "What differs between the runs", [_differs(comparison)]),
        doc.Section("method", "How it was compared", [doc.Definitions([
            ("Real by this rule", f"{RULE}."), ("Intervals", f"{METHOD}."),
        ])]),
    ]  # fmt: skip
    return doc.Document(
        "comparison",
        f"{' against '.join(run.name for run in reversed(runs))}: {oneline(' and '.join(labels))}",
        "; ".join(headline(rows) for rows in each),
        [oneline(" and ".join(labels))],
        sections,
        f"Compared by asyncli {__version__}.",
        widest=_WIDEST,
    )


def _run(run: MeasuredRun) -> doc.Words:
    held = f"{format_count(run.held)} held"
    held += f" with {format_many(streams, 'stream')} each" if (streams := run.facts.get("plan.streams")) else ""
    held += f" for {format_duration(round(run.hold_s))}" if run.hold_s >= 1 else ""
    verdict = verdict_of(run)
    return (
        (f"{run.name}  ", "bold"), (oneline(run.path), "bold"), f": {server_of(run)}, {held}, started {run.started}, ",
        (verdict, VERDICT_STYLE[verdict]),
    )  # fmt: skip


def _pair(rows: Sequence[Difference], several: bool, kinds: Mapping[str, str]) -> list[doc.Section]:
    """One run against the first, which has these ``kinds`` of memory."""
    first, second = rows[0].between
    name, title = f"{second}-{first}".lower(), headline(rows)
    picture = doc.Picture(
        name,
        f"How much {second} differs from {first}",
        f"Differences as a share of {first}, with 95 % intervals. Filled marks: real differences. Arrows: beyond the axis.",
        lambda style: forest(rows, style=style),
        lambda: forest_alt(rows),
    )
    real = [sentence(one) for one in rows if one.verdict in ("higher", "lower")]
    wide = [one for one in rows if one.verdict == "cannot_say" and one.p_value is not None and one.ratio >= _FAR_APART]
    answer: list[doc.Block] = [doc.Paragraph(title, "text", "bold", view=doc.TERMINAL)]
    answer += [doc.Bullets(real, strong=True)] if real else []
    answer += [doc.Bullets([sentence(one) for one in wide])] if wide else []
    reasons = [(", ".join(names), why) for why, names in unknown_reasons([one for one in rows if one not in wide]).items()]
    heading = title if several else "The differences" if real or wide else ""
    listed = {one.key for one in rows if any(one.values)}
    zero = [ROW_OF[one.key].name for one in rows if one.values == (0.0, 0.0)]
    notes = [doc.Paragraph(f"Zero in both: {', '.join(zero)}.", style="dim")] if zero else []
    notes += [doc.Paragraph(note, style="dim") for keys, note in _NOTES.items() if not listed.isdisjoint(keys)]
    return [
        doc.Section(name, heading, answer),
        doc.Section(f"{name}-numbers", "Every number", [picture, numbers_table(rows, kinds), *notes]),
        *([doc.Section(f"{name}-unknown", "Unknown", [doc.Definitions(reasons, "Unknown")])] if reasons else []),
    ]


def numbers_table(rows: Sequence[Difference], kinds: Mapping[str, str]) -> doc.DataTable:
    """Every number that is known and not zero in one run at least."""
    first, second = rows[0].between
    columns = [doc.TableColumn(name) for name in (first, second, f"{second} - {first}", "%", "95 % interval")]
    lines, group = [], None
    for one in rows:
        if not any(one.values):
            continue
        row, shown = ROW_OF[one.key], amounts(one)
        if row.group != group:
            group = row.group
            lines.append(doc.TableRow(GROUPS[group], group=True))
        real = {"no_difference": "no", "cannot_say": "unknown"}.get(one.verdict, one.verdict)
        label = f"{row.label} (RSS)" if kinds.get(one.key) == "RSS" and one.key != "cost.residual" else row.label
        label = f"{label}, {shown.unit}" if shown.unit else label
        cells = (shown.first, shown.second, shown.difference, shown.percent, shown.interval, real)
        style = "dim" if one.verdict == "cannot_say" else ""
        lines.append(doc.TableRow(f" {label}", cells, style, strong=one.verdict in ("higher", "lower")))
    title = "Every number, with the difference and its 95 % interval"
    return doc.DataTable("", [*columns, doc.TableColumn("real", "word")], lines, title, kind="numbers stack", width=0)


def _differs(comparison: Comparison) -> doc.Block:
    if not comparison.differs:
        return doc.Paragraph("No recorded fact of the plan, the server or the host differs.", "text", "dim")
    rows = [doc.TableRow(named(one.key), [in_words(one.key, value) for value in one.values]) for one in comparison.differs]
    columns = [doc.TableColumn(run.name, kind="words") for run in comparison.runs]
    return doc.DataTable("What differs between the runs", columns, rows, kind="keys", width=0)


# Ends of the axis (%), by the share of the intervals that must fit; arrows mark the others.
_ENDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WITHIN = 0.75


def _shares(one: Difference) -> tuple[float, float, float] | None:
    """The difference and its interval as shares of the first value (%); None if unknown."""
    if one.relative is None or one.ci95 is None or not one.values[0] or one.key.startswith("drift."):
        return None
    low, high = (100 * side / one.values[0] for side in one.ci95)
    return 100 * one.relative, low, high


@drawn_alone
def forest(rows: Sequence[Difference], *, style: Style = WIDE) -> Figure:
    """The relative difference of each row with its interval."""
    drawn = [(one, shares) for one in rows if (shares := _shares(one)) is not None]
    if not drawn:
        raise NothingToDraw("No number is known of both runs and above zero.")
    lines: list[tuple[Difference, tuple[float, float, float]] | str] = []
    for one, shares in drawn:
        group = GROUPS[ROW_OF[one.key].group]
        lines += [] if group in lines else [group]
        lines.append((one, shares))
    left, right = (164.0, 74.0) if style.narrow else (180.0, 130.0)
    figure, ((ax,),) = sheet(style, [22.0 * len(lines)], (left, right, 8.0, 48.0))
    reaches = sorted(max(abs(low), abs(high)) for _, (_, low, high) in drawn)
    enough = reaches[math.ceil(_WITHIN * len(reaches)) - 1]
    end = next((end for end in _ENDS if end >= enough), _ENDS[-1])
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x")
    ax.axvline(0, color=COLOURS["ink"], linewidth=1.0)
    ax.set_yticks(range(len(lines)), [line if isinstance(line, str) else ROW_OF[line[0].key].label for line in lines])
    for place, (line, name) in enumerate(zip(lines, ax.get_yticklabels(), strict=True)):
        if isinstance(line, str):
            name.set_style("italic")
            continue
        one, (value, low, high) = line
        real = one.verdict in ("higher", "lower")
        color = COLOURS["soft" if not real else "kernel" if one.verdict == "higher" else "server"]
        if low < end and high > -end:
            ax.plot([max(low, -end), min(high, end)], [place, place], color=color, linewidth=2.4 if real else 1.4)
        for beyond, at, marker in ((low < -end, -end, "<"), (high > end, end, ">")):
            if beyond:
                ax.plot([at], [place], marker=marker, markersize=6, color=color, clip_on=False)
        if -end <= value <= end:
            face = color if real else COLOURS["paper"]
            ax.plot([value], [place], marker="D" if real else "o", color=color, markerfacecolor=face, zorder=5, clip_on=False)
        label = typeset(amounts(one).relative) + (f"  {one.verdict}" if real and not style.narrow else "")
        weight = "bold" if real else "normal"
        ax.annotate(
            label, (1.0, place), xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points", va="center",
            color=color, size=11, weight=weight,
        )  # fmt: skip
        name.set(color=color if real else COLOURS["ink"], weight=weight)
    marks = [-end, -end / 2, 0.0, end / 2, end] if not style.narrow else [-end, 0.0, end]
    ax.set_xticks(marks, [typeset(f"{mark:+g} %") if mark else "0" for mark in marks])
    ax.set_xlim(-end, end)
    ax.set_ylim(len(lines) - 0.5, -0.5)
    second = rows[0].between[1]
    ax.set_xlabel(f"← {second} is lower · {second} is higher →")
    return figure


def forest_alt(rows: Sequence[Difference]) -> str:
    """The figure in a sentence."""
    shares = "; ".join(f"{ROW_OF[one.key].name} {amounts(one).relative}" for one in rows if _shares(one))
    return f"Relative differences: {shares}."
