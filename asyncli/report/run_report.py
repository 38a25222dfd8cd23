"""The report of one run as a document. Terminals need the summary alone; the page also the run's records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli import __version__
from asyncli.analysis.verdict import interrupted
from asyncli.findings.forecast import gave_way
from asyncli.findings.server import OF_ANOTHER
from asyncli.model.records import GAVE_UP, NOTHING_LISTENS, Check, Deaths, Finding
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report import run_events as events
from asyncli.report.answer import (
    NOT_THE_SERVER,
    answer,
    as_doubt,
    beside_pass,
    doubts,
    growth,
    headroom,
    server_label,
    stands_first,
    why_with_worst,
    with_remedy,
)
from asyncli.report.run_costs import capacity_section, cost_section, drift_section
from asyncli.report.run_counts import counts_section, processes_section
from asyncli.report.run_setup import environment_section, plan_section
from asyncli.report.summary import Summary
from asyncli.report.terminal import print_document

if TYPE_CHECKING:
    from rich.console import Console

    from asyncli.model.run import Run
    from asyncli.report.analyses import Analyses

# A shorter hold is not in the headline: a hold that was not reached has some milliseconds.
_A_HOLD_S = 0.1


def print_report(summary: Summary, console: Console, path: str | os.PathLike[str], *, verbose: bool = False) -> None:
    """Print the report of the run in ``path``. ``verbose``: with notes, all limits, and every table."""
    print_document(run_document(summary, os.fspath(path)), console, doc.View.VERBOSE if verbose else doc.View.SHORT)


def render(run: Run, summary: Summary, analyses: Analyses, drawn: Iterable[doc.Picture] | None = None) -> str:
    """The page of a run as HTML, deterministic. ``drawn``: its figures if the caller has them."""
    from asyncli.report.figures.pictures import pictures
    from asyncli.report.html import page

    drawn = pictures(run, summary, analyses) if drawn is None else drawn
    return page(run_document(summary, "", analyses.totals.whole.deaths, run.checks, list(drawn)))


def run_document(
    summary: Summary,
    path: str,
    deaths: Mapping[str, Deaths] | None = None,
    checks: Sequence[Check] = (),
    pictures: Sequence[doc.Picture] = (),
) -> doc.Document:
    """The report of the run in ``path``; for a page also with losses by cause, checks and figures."""
    if not pictures and {GAVE_UP, NOTHING_LISTENS} & {one.code for one in summary.findings}:
        # Nothing was measured: only the reason matters.
        errors = [one for one in summary.findings if one.severity == "error"]
        summary = msgspec.structs.replace(summary, findings=errors)
        first = [msgspec.structs.replace(one, blocks=one.blocks[:1]) for one in (_answer(summary), _files(summary, path))]
        sections = [first[0], _findings(summary), first[1]]
    else:
        beats = summary.protocol is msgspec.UNSET or summary.heartbeats.sent
        sections = [
            _answer(summary),
            cost_section(summary),
            capacity_section(summary),
            drift_section(summary),
            events.timeline_section(summary),
            *events.tls_sections(summary),
            *events.protocol_sections(summary),
            *([events.heartbeats_section(summary)] if beats else []),
            events.deaths_section(summary, deaths or {}),
            counts_section(summary),
            processes_section(summary),
            _findings(summary),
            plan_section(summary),
            environment_section(summary, checks),
            _files(summary, path),
        ]
    sections = [one.with_pictures(pictures) for one in sections]
    headline = _headline(summary)
    return doc.Document("report", f"{headline}: {_verdict(summary)}", headline, _byline(summary), sections, _footer(summary))


def _footer(summary: Summary) -> str:
    made, measured = f"asyncli {__version__}", f"asyncli {summary.environment.get('asyncli') or ''}".strip()
    by = "measured and" if measured == made else f"measured by {measured},"
    return f"Run {summary.run.id}, {by} reported by {made}. 'asyncli explain' says how each number is measured."


def _verdict(summary: Summary) -> str:
    return summary.verdict if summary.run.complete else "incomplete"


def _answer(summary: Summary) -> doc.Section:
    # The cost is perhaps another process's, and includes growth.
    before = [one for one in summary.findings if one.code in OF_ANOTHER or one is growth(summary)]
    blocks: list[doc.Block] = [doc.Paragraph(as_doubt(one, with_remedy(summary, one)), "doubt", "bold yellow") for one in before]
    blocks.append(doc.Paragraph(answer(summary), "answer"))
    if more := headroom(summary):
        # Why a run failed comes before the cost.
        place = 0 if summary.verdict != "passed" and summary.finding(gave_way.code) is not None else len(blocks)
        blocks.insert(place, doc.Paragraph(more, "headroom"))
    for doubt in doubts(summary):
        blocks.append(doc.Paragraph(doubt, "doubt", "bold magenta" if doubt == NOT_THE_SERVER else "yellow"))
    line = doc.VerdictLine(_verdict(summary), summary.why)
    if summary.run.complete:
        line = doc.VerdictLine(summary.verdict, why_with_worst(summary), beside_pass(summary))
    return doc.Section("answer", "", [line, *blocks])


def _headline(summary: Summary) -> str:
    held, label = summary.connections.held, server_label(summary)
    if not held:
        return f"{format_count(summary.connections.requested)} connections requested of {label}"
    hold = next((one for one in summary.run.phases if one.name == "hold"), None)
    lasted_s = 0.0 if hold is None or hold.end_s is None else hold.end_s - hold.start_s
    lasted = f", held for {format_duration(lasted_s)}" if lasted_s >= _A_HOLD_S else ""
    if lasted and summary.connections.lost:
        lasted = f" after {format_duration(lasted_s)}, {format_count(summary.connections.lost)} lost"
    ended = ", stopped by the user" if interrupted(summary.findings) else ""
    return f"{format_count(held)} connections on {label}{lasted}{ended}"


def _byline(summary: Summary) -> list[str]:
    day, _, time = summary.run.started.removesuffix("Z").partition("T")
    host = summary.environment.get("host")
    return [
        f"run {summary.run.id}",
        f"{day} {time} UTC" if time else day,
        f"{format_duration(summary.run.duration_s)} in all",
        *([f"on {oneline(str(host))}"] if host else []),
    ]


def _shown_findings(summary: Summary) -> list[Finding]:
    found = [one for one in summary.findings if not one.code.startswith("verdict_")]
    # If nothing was tested, notes on the measurement are noise.
    return [one for one in found if one.severity != "info" or summary.verdict != "untested"]


def _beside(summary: Summary) -> list[Finding]:
    """The shown findings that the first sentences do not say."""
    return [one for one in _shown_findings(summary) if not stands_first(summary, one)]


def _findings(summary: Summary) -> doc.Section:
    shown, beside = _shown_findings(summary), _beside(summary)
    serious = [one for one in beside if one.severity != "info" or one.code == "limit_kept"]
    blocks: list[doc.Block] = [
        doc.ItemList(doc.finding_items(serious), view=doc.View.SHORT),
        doc.ItemList(doc.finding_items(beside), "Findings", view=doc.View.VERBOSE),
        doc.ItemList(doc.finding_items(shown), view=doc.View.PAGE),
    ]
    return doc.Section("findings", "Findings", blocks)


def _files(summary: Summary, path: str) -> doc.Section:
    """The run's id and file, and commands for more."""
    notes = sum(one.severity == "info" and one.code != "limit_kept" for one in _beside(summary))
    run, quoted = summary.run, shlex.quote(path)
    more = f", with {format_many(notes, 'more note')}" if notes else ""
    killed = (found := summary.finding("incomplete")) is not None and found.fields["phase"] not in ("drain", "residue")
    resume = [("If it was killed, continue it: ", f"asyncli soak --resume {quoted}", doc.TERMINAL)]
    lines = (
        *(resume if killed else []),
        (f"Run {run.id} of {run.started}, {format_duration(run.duration_s)}: ", path, doc.ALL),
        (f"Full report{more}: ", f"asyncli report {quoted} -v", doc.View.SHORT),
        ("Short report: ", f"asyncli report {quoted}", doc.View.VERBOSE),
        ("How it is measured: ", "asyncli explain cost", doc.ALL),
    )
    return doc.Section(
        "files", "", [doc.Paragraph((label, (text, "bold")), "text", view=view & ~doc.View.PAGE) for label, text, view in lines]
    )
