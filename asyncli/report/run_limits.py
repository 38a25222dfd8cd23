"""The section of a report with the limits of --fail-if."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncli.findings.thresholds import limit_crossed, limit_kept, limit_unknown
from asyncli.model.records import Finding
from asyncli.model.units import format_count, format_many
from asyncli.report import document as doc
from asyncli.report.summary import Summary
from asyncli.report.summary_parts import Against, Limit
from asyncli.report.thresholds import differences_shown, parse, value_shown

_VIEW = doc.View.PAGE | doc.View.SUMMARY
_CODES = (limit_kept.code, limit_crossed.code, limit_unknown.code)
_HOW = (
    "Before: the weighted mean of the baseline runs (column runs). A limit is crossed if the "
    "difference is surely above 0, and not surely below the limit. Without any difference 1 run in "
    "100 is called worse at most, and of runs that are worse by the limit 5 in 100 are missed at "
    "most. The interval between has half of these chances; looks while the run goes on share the "
    "other half, so theirs are wider. For a latency the interval also covers by how much asyncli "
    "itself sent later or earlier than before."
)
#: So many reasons for which baseline runs are left out are told of a limit.
_MOST_REASONS = 3
_CALLS = {True: "kept", False: "crossed", None: "undecided"}


def is_of_limit(finding: Finding) -> bool:
    return finding.code in _CODES


def limits_sections(summary: Summary) -> list[doc.Section]:
    """Each limit with its value; those that compare with earlier runs with the difference too. None
    without limits.
    """
    if not summary.limits:
        return []
    compares = any(limit.against is not None for limit in summary.limits)
    columns = [doc.TableColumn("result", kind="word"), doc.TableColumn("this run")]
    if compares:
        columns += doc.numbers("before", "runs", "difference", "between")
    rows = [doc.TableRow(limit.limit, _cells(limit, compares=compares)) for limit in summary.limits]
    blocks: list[doc.Block] = [doc.DataTable("Limits of --fail-if", columns, rows, view=_VIEW)]
    if compares:
        blocks.append(doc.Paragraph(_HOW, view=_VIEW))
    for told in _left_out(summary.limits):
        blocks.append(doc.Paragraph(told, view=_VIEW))
    return [doc.Section("limits", "Limits", blocks)]


def _cells(limit: Limit, *, compares: bool) -> list[doc.Cell]:
    cells: list[doc.Cell] = [_call(limit), _value(limit.limit, limit.value)]
    if not compares:
        return cells
    if limit.against is None:
        return [*cells, "-", "-", "-", "-"]
    return [*cells, *_compared(limit.limit, limit.against)]


def _call(limit: Limit) -> str:
    if limit.not_judged is not None:
        return "not judged"
    return _CALLS[limit.kept]


def _compared(text: str, against: Against) -> list[doc.Cell]:
    ends = (against.low, against.difference, against.high)
    low, difference, high = differences_shown(parse(text, Summary), against.before, ends)
    before = [_value(text, against.before), format_count(against.runs)]
    return [*before, difference, f"{low} and {high}"]


def _value(text: str, value: float | None) -> str:
    key = _key(text)
    if value is None:
        return "unknown"
    if not key:
        return f"{value:g}"
    return value_shown(key, value)


def _key(text: str) -> str:
    """The key of a limit; "" if this version cannot parse it."""
    try:
        return parse(text, Summary).key
    except ValueError:
        return ""


def _left_out(limits: Sequence[Limit]) -> Iterator[str]:
    """Of each limit, how many baseline runs it is not compared with, and why."""
    for limit in limits:
        if limit.against is None or not limit.against.left_out:
            continue
        reasons = limit.against.left_out
        told = "; ".join(reasons[:_MOST_REASONS])
        yield f"{limit.limit}: {format_many(len(reasons), 'baseline run')} left out: {told}"
