"""A comparison of runs as a document and as JSON: real differences first, then every number."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncli import __version__
from asyncli.analysis.compare import (
    GROUPS,
    METHOD,
    ROW_OF,
    RULE,
    Comparison,
    Difference,
    hindrance,
)
from asyncli.analysis.measured import MeasuredRun, measure
from asyncli.findings.compare import in_words, named
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.garbage import uncollected
from asyncli.model.records import SCHEMA
from asyncli.model.run import Run
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report import jsonout
from asyncli.report.differences import (
    FAR_APART,
    amounts,
    headline,
    is_real,
    is_unknown,
    sentence,
    unknown_reasons,
    wide_values,
    words,
)
from asyncli.report.figures.forest import forest, forest_alt
from asyncli.report.format import utf8
from asyncli.report.summary import summarise, verdict_needs_summary
from asyncli.report.terminal import VERDICT_STYLE
from asyncli.store.reader import read_run

# Columns of a terminal.
_WIDEST = 120
# Notes on the short names of some rows.
_NOTES = {
    ("lost", "reopened"): "Lost and reopened: per 1,000 connection-hours.",
    ("failed",): "Failed to open: per 1,000 attempts.",
    ("cpu.per_connection",): "CPU of a connection: all that the server used in the ramp, "
    "heartbeats included, by the connections opened.",
}


def require_comparable(where: str, count: int) -> None:
    """Raise :class:`PlanError` unless ``count`` runs can be compared."""
    most = len(string.ascii_uppercase)
    if count < 2:
        raise PlanError(f"{where}: one run cannot be compared; name two or more")
    if count > most:
        raise PlanError(f"{where}: {count} runs are too many; compare at most {most}")


def measure_files(files: Iterable[tuple[Path, Run | None]]) -> list[MeasuredRun]:
    """Measure each run file (path, its run if already read), and name it by a letter.

    Raises :class:`StoreError` for a file that cannot be read or compared, or is a copy of another.
    """
    measured: list[MeasuredRun] = []
    for name, (path, run) in zip(string.ascii_uppercase, files, strict=False):
        measured.append(_measure_file(name, path, run, measured))
    return measured


@uncollected()
def _measure_file(
    name: str, path: Path, run: Run | None, others: Sequence[MeasuredRun]
) -> MeasuredRun:
    # A night's run is some hundred megabytes: free it before the next is read.
    run = read_run(path, for_report=True) if run is None else run
    for other in others:
        if other.id == run.id:
            raise StoreError(
                f"{path}: is a copy of {other.path} (run {run.id}); compare two different runs"
            )
    reason = hindrance(str(path), run)
    if reason is not None:
        raise StoreError(reason)
    measured = measure(name, str(path), run)
    if verdict_needs_summary(run):
        summary = summarise(run)
        measured.verdict = summary.verdict
        measured.why = summary.why
        if run.complete and not summary.is_by_limits:
            measured.spoiled = measured.why if measured.verdict == "invalid" else ""
    return measured


def server_of(run: MeasuredRun) -> str:
    """The server and its configuration: ``nginx/1.22.1, config ab12``."""
    label = _server_label(run)
    config = run.facts.get("server.config_hash")
    if not config:
        return oneline(label)
    return oneline(f"{label}, config {str(config)[:8]}")


def _server_label(run: MeasuredRun) -> str:
    return str(run.facts.get("server.label") or "unknown server")


def verdict_of(run: MeasuredRun) -> str:
    return run.verdict if run.complete else "incomplete"


def document(comparison: Comparison) -> dict[str, Any]:
    """The JSON of ``asyncli compare`` as plain data. Every number is finite or null."""
    differs = []
    for fact in comparison.differs:
        differs.append({"key": fact.key, "values": msgspec.to_builtins(fact.values)})
    return {
        "schema": SCHEMA,
        "runs": [_run_as_data(run) for run in comparison.runs],
        "differs": differs,
        "differences": [_difference_as_data(difference) for difference in comparison.differences],
        "findings": msgspec.to_builtins(comparison.findings),
        "method": METHOD,
        "rule": RULE,
    }


def _run_as_data(run: MeasuredRun) -> dict[str, Any]:
    data = {
        "name": run.name,
        "file": utf8(run.path),
        "id": run.id,
        "started": run.started,
        "verdict": run.verdict,
        "complete": run.complete,
        "held": run.held,
        "hold_s": run.hold_s,
    }
    streams = run.facts.get("plan.streams")
    if streams:
        data["streams"] = streams
    data["server"] = run.facts.get("server.label")
    data["config_hash"] = run.facts.get("server.config_hash")
    return data


def _difference_as_data(difference: Difference) -> dict[str, Any]:
    return {
        "key": difference.key,
        "name": ROW_OF[difference.key].name,
        "unit": difference.unit,
        "between": list(difference.between),
        "values": list(difference.values),
        "difference": difference.difference,
        "ci95": None if difference.ci95 is None else list(difference.ci95),
        "relative": difference.relative,
        "p_value": difference.p_value,
        "verdict": difference.verdict,
        "words": words(difference),
    }


def to_json(comparison: Comparison) -> str:
    return jsonout.to_json(document(comparison))


def comparison_document(comparison: Comparison) -> doc.Document:
    runs = comparison.runs
    labels = oneline(" and ".join(dict.fromkeys(_server_label(run) for run in runs)))
    names = " against ".join(run.name for run in reversed(runs))
    rows_by_run = [_rows_of(comparison, run) for run in runs[1:]]
    sections = [_answer(comparison)]
    for rows in rows_by_run:
        sections += _pair(rows, len(rows_by_run) > 1, runs[0].kinds)
    sections.append(doc.Section("differs", "What differs between the runs", [_differs(comparison)]))
    rules = doc.Definitions([("Real by this rule", f"{RULE}."), ("Intervals", f"{METHOD}.")])
    sections.append(doc.Section("method", "How it was compared", [rules]))
    return doc.Document(
        "comparison",
        f"{names}: {labels}",
        "; ".join(map(headline, rows_by_run)),
        [labels],
        sections,
        f"Compared by asyncli {__version__}.",
        widest=_WIDEST,
    )


def _rows_of(comparison: Comparison, run: MeasuredRun) -> list[Difference]:
    """The differences of ``run`` from the first."""
    return [row for row in comparison.differences if row.between[1] == run.name]


def _answer(comparison: Comparison) -> doc.Section:
    """The runs, and what makes them hard to compare."""
    blocks: list[doc.Block] = [doc.Paragraph(_run(run), "run") for run in comparison.runs]
    if comparison.findings:
        blocks.append(doc.Paragraph("", "text", view=doc.TERMINAL))
        blocks.append(doc.ItemList(doc.finding_items(comparison.findings)))
    return doc.Section("answer", "", blocks)


def _run(run: MeasuredRun) -> doc.Words:
    held = f"{format_count(run.held)} held"
    streams = run.facts.get("plan.streams")
    if streams:
        held += f" with {format_many(streams, 'stream')} each"
    if run.hold_s >= 1:
        held += f" for {format_duration(round(run.hold_s))}"
    verdict = verdict_of(run)
    return (
        (f"{run.name}  ", "bold"),
        (oneline(run.path), "bold"),
        f": {server_of(run)}, {held}, started {run.started}, ",
        (verdict, VERDICT_STYLE[verdict]),
    )


def _pair(
    rows: Sequence[Difference], is_one_of_several: bool, kinds: Mapping[str, str]
) -> list[doc.Section]:
    """One run against the first, which has these ``kinds`` of memory."""
    first, second = rows[0].between
    name = f"{second}-{first}".lower()
    title = headline(rows)
    real = [row for row in rows if is_real(row)]
    far_apart = [row for row in rows if _is_far_apart(row)]

    answer: list[doc.Block] = [doc.Paragraph(title, "text", "bold", view=doc.TERMINAL)]
    if real:
        answer.append(doc.Bullets([sentence(row) for row in real], strong=True))
    if far_apart:
        answer.append(doc.Bullets([sentence(row) for row in far_apart]))
    heading = ""
    heading_of_numbers = "Every number"
    heading_of_unknown = "Unknown"
    if is_one_of_several:
        # In the contents no two of them have the same name.
        heading = title
        heading_of_numbers = f"{second} against {first}: every number"
        heading_of_unknown = f"{second} against {first}: unknown"
    elif real or far_apart:
        heading = "The differences"

    numbers = [_picture(rows, name), numbers_table(rows, kinds), *_notes(rows)]
    sections = [
        doc.Section(name, heading, answer),
        doc.Section(f"{name}-numbers", heading_of_numbers, numbers),
    ]
    reasons = []
    for reason, names in unknown_reasons([row for row in rows if row not in far_apart]).items():
        reasons.append((", ".join(names), reason))
    if reasons:
        unknown = doc.Definitions(reasons, "Unknown")
        sections.append(doc.Section(f"{name}-unknown", heading_of_unknown, [unknown]))
    return sections


def _is_far_apart(row: Difference) -> bool:
    """Whether the values are far apart, though whether the difference is real is unknown."""
    return is_unknown(row) and row.p_value is not None and row.ratio >= FAR_APART


def _picture(rows: Sequence[Difference], name: str) -> doc.Picture:
    first, second = rows[0].between
    return doc.Picture(
        name,
        f"How much {second} differs from {first}",
        f"Differences as a share of {first}, with 95 % intervals. Filled marks: real differences. "
        "Arrows: beyond the axis.",
        lambda style: forest(rows, style=style),
        lambda: forest_alt(rows),
    )


def _notes(rows: Sequence[Difference]) -> list[doc.Block]:
    """What is not in the table of numbers, and what its short names mean."""
    notes = []
    zero = [ROW_OF[row.key].name for row in rows if row.values == (0.0, 0.0)]
    if zero:
        notes.append(f"Zero in both: {', '.join(zero)}.")
    for row in rows:
        notes += wide_values(row)
    listed = {row.key for row in rows if any(row.values)}
    for keys, note in _NOTES.items():
        if not listed.isdisjoint(keys):
            notes.append(note)
    return [doc.Paragraph(note, style="dim") for note in notes]


def numbers_table(rows: Sequence[Difference], kinds: Mapping[str, str]) -> doc.DataTable:
    """Every number that is known and not zero in one run at least."""
    first, second = rows[0].between
    columns = doc.numbers(first, second, f"{second} - {first}", "%", "95 % interval")
    columns.append(doc.TableColumn("real", "word"))
    lines = []
    group = None
    for row in rows:
        if not any(row.values):
            continue
        if ROW_OF[row.key].group != group:
            group = ROW_OF[row.key].group
            lines.append(doc.TableRow(GROUPS[group], group=True))
        lines.append(_numbers_row(row, kinds))
    title = "Every number, with the difference and its 95 % interval"
    return doc.DataTable("", columns, lines, title, kind="numbers stack", width=0)


def _numbers_row(row: Difference, kinds: Mapping[str, str]) -> doc.TableRow:
    shown = amounts(row)
    label = f" {ROW_OF[row.key].label}"
    if kinds.get(row.key) == "RSS" and row.key != "cost.residual":
        label += " (RSS)"
    if shown.unit:
        label += f", {shown.unit}"
    real = {"no_difference": "no", "cannot_say": "unknown"}.get(row.verdict, row.verdict)
    cells = (shown.first, shown.second, shown.difference, shown.percent, shown.interval, real)
    style = "dim" if is_unknown(row) else ""
    return doc.TableRow(label, cells, style, strong=is_real(row))


def _differs(comparison: Comparison) -> doc.Block:
    if not comparison.differs:
        return doc.Paragraph(
            "No recorded fact of the plan, the server or the host differs.", "text", "dim"
        )
    rows = []
    for fact in comparison.differs:
        values = [in_words(fact.key, value) for value in fact.values]
        rows.append(doc.TableRow(named(fact.key), values))
    columns = [doc.TableColumn(run.name, kind="words") for run in comparison.runs]
    return doc.DataTable("What differs between the runs", columns, rows, kind="keys", width=0)
