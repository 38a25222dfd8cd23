"""A comparison of runs as one HTML file, in the looks of a run's own report: what is real first, drawn and in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncli import __version__
from asyncli.analysis.compare import GROUPS, METHOD, ROWS, RULE, Comparison, Difference
from asyncli.findings.comparison import in_words, named
from asyncli.report import charts
from asyncli.report.charts import NARROW, PALETTE, WIDE, NothingToDraw, Style
from asyncli.report.comparison import UNITS, amounts, headline, sentence, server_of, unsaid, verdict_of, words
from asyncli.report.page import Figure, Table, fill
from asyncli.report.svg import inline_svg
from asyncli.text import oneline
from asyncli.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_DASH = "–"
_ROW = {row.key: row for row in ROWS}
# Where the axis of relative differences may end (%); it ends where most intervals do, and arrows point at the rest.
_ENDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WITHIN = 0.75


class Line(NamedTuple):
    """One row of the table of numbers."""

    cells: list[str]
    verdict: str
    real: bool


class Pair(NamedTuple):
    """One run against the first, as the page shows it."""

    id: str
    title: str
    sentences: list[str]
    figure: Figure
    columns: list[str]
    #: (heading of the group, its lines); a line's last cell is the verdict, and "real" says whether it is one.
    groups: list[tuple[str, list[Line]]]
    #: (why, the names of what that is true of)
    unsaid: list[tuple[str, str]]


def page(comparison: Comparison) -> str:
    """The page as HTML text. The same comparison gives the same page, byte for byte."""
    return fill("comparison.html.jinja", **_document(comparison))


def _document(comparison: Comparison) -> dict[str, Any]:
    runs = comparison.runs
    pairs = [_pair([one for one in comparison.differences if one.between[1] == run.name]) for run in runs[1:]]
    labels = list(dict.fromkeys(str(run.facts.get("server.label") or "unknown server") for run in runs))
    return {
        "title": f"{' against '.join(run.name for run in reversed(runs))}: {oneline(' and '.join(labels))}",
        "headline": "; ".join(pair.title for pair in pairs),
        "runs": [
            {
                "name": run.name, "file": oneline(run.path), "server": server_of(run), "verdict": verdict_of(run),
                "held": format_count(run.held), "hold": format_duration(round(run.hold_s)) if run.hold_s >= 1 else "",
                "started": run.started.replace("T", " ").removesuffix("Z") + " UTC", "id": run.id,
            }
            for run in runs
        ],
        "findings": [
            {
                "severity": one.severity, "word": "note" if one.severity == "info" else one.severity, "code": one.code,
                "evidence": oneline(one.evidence), "remedy": oneline(one.remedy),
            }
            for one in comparison.findings
        ],
        "pairs": pairs,
        "units": UNITS,
        "differs": _differs_table(comparison),
        "rule": RULE[:1].upper() + RULE[1:],
        "method": METHOD[:1].upper() + METHOD[1:],
        "made": f"asyncli {__version__}",
    }  # fmt: skip


def _pair(rows: Sequence[Difference]) -> Pair:
    first, second = rows[0].between
    name = f"{second}-{first}".lower()
    return Pair(
        name,
        headline(rows),
        [_minus(sentence(one)) for one in rows if one.verdict in ("higher", "lower")],
        _figure(rows, name),
        [first, second, f"{second} − {first}", "in %", "95 % interval"],
        [(heading, lines) for group, heading in GROUPS.items() if (lines := _lines(rows, group))],
        [(why, ", ".join(names)) for why, names in unsaid(rows).items()],
    )


def _lines(rows: Sequence[Difference], group: str) -> list[Line]:
    lines = []
    for one in rows:
        if _ROW[one.key].group != group or one.values == (None, None):
            continue
        shown = amounts(one)
        percent = _DASH if one.relative is None else f"{_minus(shown.percent)} %"
        interval = _DASH if one.ci95 is None else f"{_minus(shown.low)} to {_minus(shown.high)}"
        label = f"{_ROW[one.key].label}{f', {shown.unit}' if shown.unit else ''}"
        numbers = (_DASH if text == "-" else _minus(text) for text in (shown.first, shown.second, shown.difference))
        said = "cannot say" if one.verdict == "cannot_say" else words(one)
        lines.append(Line([label, *numbers, percent, interval], said, one.verdict in ("higher", "lower")))
    return lines


def _differs_table(comparison: Comparison) -> Table | None:
    if not comparison.differs:
        return None
    columns = [("", False), *((run.name, False) for run in comparison.runs)]
    rows = [[named(one.key), *(oneline(in_words(one.key, value)) for value in one.values)] for one in comparison.differs]
    return Table("Plan, server and host, in what they differ", columns, rows)


def _minus(text: str) -> str:
    """Signs as print has them; a hyphen in a word stays one."""
    return re.sub(r"(^|[ (])-(?=\d)", r"\1−", text)


def _figure(rows: Sequence[Difference], name: str) -> Figure:
    from markupsafe import Markup

    first, second = rows[0].between
    title = f"How much {second} differs from {first}"
    caption = (
        f"Differences as a share of {first}, with 95 % intervals. Filled marks are real differences, open ones are not; an arrow "
        "points at what lies beyond the axis."
    )
    try:
        svgs = [inline_svg(forest(rows, style=style), f"{name}-{style.narrow:d}") for style in (WIDE, NARROW)]
    except NothingToDraw as nothing:
        return Figure(name, title, caption, "", "", "", str(nothing))
    drawn = [one for one in rows if _drawable(one)]
    alt = "; ".join(f"{_ROW[one.key].name} {amounts(one).percent} %" for one in drawn)
    return Figure(name, title, caption, f"Relative differences: {alt}.", Markup(svgs[0]), Markup(svgs[1]))


def _drawable(one: Difference) -> bool:
    return one.relative is not None and one.ci95 is not None and not one.key.startswith("drift.")


def forest(rows: Sequence[Difference], *, style: Style = WIDE) -> Drawing:
    """Each row's relative difference with its interval, about a line at no difference."""
    with charts.drawing():
        return _forest([one for one in rows if _drawable(one)], style)


def _forest(rows: Sequence[Difference], style: Style) -> Drawing:
    if not rows:
        raise NothingToDraw("No number is known of both runs and above zero.")
    narrow = style.narrow
    groups = list(dict.fromkeys(_ROW[one.key].group for one in rows))
    step, head, top = (38.0, 28.0, 6.0) if narrow else (22.0, 26.0, 6.0)
    left, right = (26.0, 26.0) if narrow else (176.0, 140.0)
    height = step * len(rows) + head * len(groups)
    sheet = charts._Sheet(style, top + height + 44)
    width = style.width - left - right
    ax = sheet.axes(left, top, width, height)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=charts._C["grid"], linewidth=0.8)
    end = _end(rows)
    ax.set_xlim(-end, end)
    ax.set_ylim(height, 0)
    marks = [-end, -end / 2, 0.0, end / 2, end]
    charts._set_marks(ax, marks, [_minus(f"{mark:+g} %") if mark else "0" for mark in marks], x=True)
    charts._set_marks(ax, [], [])
    ax.axvline(0, color=charts._C["ink"], linewidth=1.0)
    second = rows[0].between[1]
    y, group = 0.0, None
    for one in rows:
        row = _ROW[one.key]
        if row.group != group:
            group = row.group
            sheet.text(4.0, top + y + head / 2, GROUPS[group], "soft", size=11)
            y += head
        middle = y + (step * 0.66 if narrow else step / 2)
        y += step
        real = one.verdict in ("higher", "lower")
        color = "soft" if not real else "kernel" if one.verdict == "higher" else "server"
        _whisker(ax, one, middle, end, charts._C[color], real)
        share = _minus(f"{amounts(one).percent} %")
        if narrow:
            at = top + middle - step * 0.42
            sheet.text(14.0, at, row.label, color if real else "ink", size=11.5, bold=real)
            sheet.text(style.width - 4.0, at, share, color if real else "ink", ha="right", size=11.5, bold=real)
        else:
            sheet.text(left - 12, top + middle, row.label, color if real else "ink", ha="right", bold=real)
            said = f"{share}  {one.verdict}" if real else f"{share}  ?" if one.verdict == "cannot_say" else share
            sheet.text(left + width + 12, top + middle, said, color if real else "ink", bold=real)
    foot = top + height + 34
    sheet.text(left + 2, foot, f"{second} is lower", "soft", size=11)
    sheet.text(left + width - 2, foot, f"{second} is higher", "soft", ha="right", size=11)
    return sheet.figure


def _whisker(ax: Any, one: Difference, y: float, end: float, color: str, real: bool) -> None:
    """One row's interval and mark; beyond the axis, arrows."""
    assert one.ci95 is not None
    assert one.values[0] is not None
    assert one.relative is not None
    low, high = (100 * side / one.values[0] for side in one.ci95)
    value = 100 * one.relative
    if low < end and high > -end:
        ax.plot([max(low, -end), min(high, end)], [y, y], color=color, linewidth=2.4 if real else 1.4, solid_capstyle="butt")
    for beyond, at, marker in ((low < -end, -end, "<"), (high > end, end, ">")):
        if beyond:
            ax.plot([at], [y], marker=marker, markersize=6, color=color, clip_on=False)
    if -end <= value <= end:
        face = color if real else PALETTE["paper"][0]
        shape = {"marker": "D" if real else "o", "markersize": 6.5, "markerfacecolor": face}
        ax.plot([value], [y], color=color, zorder=5, clip_on=False, **shape)


def _end(rows: Sequence[Difference]) -> float:
    """Where the axis ends (%): the nearest round number within which three quarters of the intervals lie."""
    reaches = sorted(100 * max(map(abs, one.ci95)) / one.values[0] for one in rows if one.ci95 is not None and one.values[0])
    enough = reaches[min(len(reaches) - 1, math.ceil(_WITHIN * len(reaches)) - 1)]
    return next((end for end in _ENDS if end >= enough), _ENDS[-1])
