"""The report of one run as a document. Terminals need the summary alone; pages the records too."""

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
from asyncli.findings.thresholds import limit_kept, limit_unknown
from asyncli.model.records import (
    DECIDED,
    GAVE_UP,
    NOTHING_LISTENS,
    Check,
    Deaths,
    Finding,
    left_out_s,
)
from asyncli.model.text import oneline
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report import run_events as events
from asyncli.report.answer import (
    NOT_THE_SERVER,
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
from asyncli.report.cost_answer import answers
from asyncli.report.event_lines import event_lines
from asyncli.report.run_costs import (
    capacity_section,
    cost_section,
    drift_section,
    is_of_one_ramp,
)
from asyncli.report.run_counts import counts_section, processes_section
from asyncli.report.run_limits import is_of_limit, limits_sections
from asyncli.report.run_setup import environment_section, plan_section
from asyncli.report.summary import Summary
from asyncli.report.summary_parts import EventPart
from asyncli.report.terminal import print_document

if TYPE_CHECKING:
    from rich.console import Console

    from asyncli.model.run import Run
    from asyncli.report.analyses import Analyses

# What the limits say, and why they ended the run: the short report has these too.
_NO_NOTES = (limit_kept.code, limit_unknown.code, DECIDED)
# A shorter hold is not in the headline: a hold that was not reached has some milliseconds.
_A_HOLD_S = 0.1


def print_report(
    summary: Summary, console: Console, path: str | os.PathLike[str], *, verbose: bool = False
) -> None:
    """Print the report of the run in ``path``. ``verbose``: with notes, all limits, every table."""
    view = doc.View.VERBOSE if verbose else doc.View.SHORT
    print_document(run_document(summary, os.fspath(path)), console, view)


def report_markdown(summary: Summary, path: str | os.PathLike[str]) -> str:
    """The summary of the run in ``path`` for a pull request, in Markdown."""
    from asyncli.report.markdown import markdown

    return markdown(run_document(summary, os.fspath(path)))


def render(
    run: Run, summary: Summary, analyses: Analyses, drawn: Iterable[doc.Picture] | None = None
) -> str:
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
    """The report of the run in ``path``; for a page also losses by cause, checks and figures."""
    codes = {finding.code for finding in summary.findings}
    if not pictures and {GAVE_UP, NOTHING_LISTENS} & codes:
        # Nothing was measured: only the reason matters.
        errors = [finding for finding in summary.findings if finding.severity == "error"]
        summary = msgspec.structs.replace(summary, findings=errors)
        answer_only = _first_block(_answer(summary))
        file_only = _first_block(_files(summary, path))
        sections = [answer_only, _findings(summary), file_only]
    else:
        heartbeats = []
        if summary.protocol is msgspec.UNSET or summary.heartbeats.sent:
            heartbeats.append(events.heartbeats_section(summary))
        sections = [
            _answer(summary),
            *limits_sections(summary),
            *events.planned_sections(summary),
            cost_section(summary),
            capacity_section(summary),
            drift_section(summary),
            *events.marks_sections(summary),
            events.timeline_section(summary),
            *events.tls_sections(summary),
            *events.protocol_sections(summary),
            *heartbeats,
            events.deaths_section(summary, deaths or {}),
            counts_section(summary),
            processes_section(summary),
            _findings(summary),
            plan_section(summary),
            environment_section(summary, checks),
            _files(summary, path),
        ]
    headline = _headline(summary)
    return doc.Document(
        "report",
        f"{headline}: {_verdict(summary)}",
        headline,
        _byline(summary),
        [section.with_pictures(pictures) for section in sections],
        _footer(summary),
    )


def _events_first(summary: Summary) -> list[doc.Block]:
    """What came of the events of the plan, for a reader of the first lines."""
    # HTTP has no part of its own, as it has no handshake.
    protocol = "http" if summary.protocol is msgspec.UNSET else summary.protocol.name
    lines = event_lines(summary.events or [], protocol)
    blocks: list[doc.Block] = [doc.Paragraph(line, "event") for line in lines]
    if blocks:
        blocks.append(doc.Paragraph("", view=doc.TERMINAL))
    return blocks


def _first_block(section: doc.Section) -> doc.Section:
    return msgspec.structs.replace(section, blocks=section.blocks[:1])


def _footer(summary: Summary) -> str:
    reporter = f"asyncli {__version__}"
    generator = f"asyncli {summary.environment.get('asyncli') or ''}".strip()
    made = f"measured by {generator}, reported by {reporter}"
    if generator == reporter:
        made = f"measured and reported by {reporter}"
    explain = "'asyncli explain' says how each number is measured."
    return f"Run {summary.run.id}, {made}. {explain}"


def _verdict(summary: Summary) -> str:
    return summary.verdict if summary.run.complete else "incomplete"


def _answer(summary: Summary) -> doc.Section:
    blocks: list[doc.Block] = []
    # The cost is perhaps another process's, and includes growth.
    for finding in summary.findings:
        if finding.code in OF_ANOTHER or finding is growth(summary):
            doubt = as_doubt(finding, with_remedy(summary, finding))
            blocks.append(doc.Paragraph(doubt, "doubt", "bold yellow"))
    for sentences in answers(summary):
        blocks.append(doc.Paragraph(sentences, "answer"))
    limit = headroom(summary)
    if limit:
        is_reason = summary.verdict != "passed" and summary.finding(gave_way.code) is not None
        # Why a run failed comes before the cost.
        place = 0 if is_reason else len(blocks)
        blocks.insert(place, doc.Paragraph(limit, "headroom"))
    for doubt in doubts(summary):
        style = "bold magenta" if doubt == NOT_THE_SERVER else "yellow"
        blocks.append(doc.Paragraph(doubt, "doubt", style))
    blocks = [*_events_first(summary), *blocks]
    line = doc.VerdictLine(_verdict(summary), summary.why)
    if summary.run.complete:
        why = why_with_worst(summary)
        line = doc.VerdictLine(summary.verdict, why, beside_pass(summary))
    return doc.Section("answer", "", [line, *blocks])


def _headline(summary: Summary) -> str:
    held = summary.connections.held
    lost = summary.connections.lost
    label = server_label(summary)
    if not held:
        requested = format_count(summary.connections.requested)
        return f"{requested} connections requested of {label}"
    # Those who were not to be back yet are no shortfall, and held by nobody: both is told.
    waiting = sum(_waiting_unheld(event) for event in summary.events or [])
    headline = f"{format_count(held + waiting)} connections on {label}"
    if any(event.not_back for event in summary.events or []):
        requested = format_many(summary.connections.requested, "connection")
        headline = f"{format_count(held + waiting)} of {requested} on {label}"
    lasted_s = _hold_s(summary)
    if lasted_s >= _A_HOLD_S and lost:
        headline += f" after {format_duration(lasted_s)}, {format_count(lost)} lost"
    elif lasted_s >= _A_HOLD_S:
        headline += f", held for {format_duration(lasted_s)}"
    headline += _not_to_be_back(summary)
    if summary.run.decided:
        headline += ", ended early by asyncli"
    if interrupted(summary.findings):
        headline += ", stopped by the user"
    return headline


def _not_to_be_back(summary: Summary) -> str:
    """How many of the connections in the headline nobody held, as their clients were not to be back
    yet. Of churn some are on their way at any time.
    """
    of_events = [event for event in summary.events or [] if event.kind != "churn"]
    waiting = sum(_waiting_unheld(event) for event in of_events)
    if not waiting:
        return ""
    return f", {format_count(waiting)} of them not to be back yet"


def _waiting_unheld(event: EventPart) -> int:
    """How many were not to be back yet, and held by nobody. Who stalls as the records end is held
    until it reads again.
    """
    have_records_ended = isinstance(event.records_end_after_s, float)
    if event.stalled is not msgspec.UNSET and have_records_ended:
        return 0
    return event.waiting or 0


def _hold_s(summary: Summary) -> float:
    """How long the hold lasted, without interruptions of the run; 0 without its end."""
    for phase in summary.run.phases:
        if phase.name == "hold" and phase.end_s is not None:
            lasted_s = phase.end_s - phase.start_s
            return lasted_s - left_out_s(summary.run.gaps, phase.start_s, phase.end_s)
    return 0.0


def _byline(summary: Summary) -> list[str]:
    day, _, time = summary.run.started.removesuffix("Z").partition("T")
    byline = [f"run {summary.run.id}"]
    byline.append(f"{day} {time} UTC" if time else day)
    byline.append(f"{format_duration(summary.run.duration_s)} in all")
    host = summary.environment.get("host")
    if host:
        byline.append(f"on {oneline(str(host))}")
    return byline


def _shown_findings(summary: Summary) -> list[Finding]:
    shown = []
    for finding in summary.findings:
        # If nothing was tested, notes on the measurement are noise.
        is_noise = finding.severity == "info" and summary.verdict == "untested"
        if not is_noise and not finding.code.startswith("verdict_"):
            shown.append(finding)
    return shown


def _beside(summary: Summary) -> list[Finding]:
    """The shown findings that the first sentences do not say."""
    return [finding for finding in _shown_findings(summary) if not stands_first(summary, finding)]


def _findings(summary: Summary) -> doc.Section:
    shown = _shown_findings(summary)
    beside = _beside(summary)
    serious = [finding for finding in beside if not _is_note(finding)]
    blocks: list[doc.Block] = [
        doc.ItemList(doc.finding_items(serious), view=doc.View.SHORT),
        doc.ItemList(doc.finding_items(beside), "Findings", view=doc.View.VERBOSE),
        doc.ItemList(doc.finding_items(shown), view=doc.View.PAGE),
        doc.ItemList(doc.finding_items(_beside_table(serious)), view=doc.View.SUMMARY),
    ]
    return doc.Section("findings", "Findings", blocks)


def _beside_table(findings: Iterable[Finding]) -> list[Finding]:
    """The findings where a table has the limits: of these only what it has no room for, which is
    why one is undecided, and what to do.
    """
    beside = []
    for finding in findings:
        if not is_of_limit(finding) or finding.remedy:
            beside.append(finding)
    return beside


def _is_note(finding: Finding) -> bool:
    return finding.severity == "info" and finding.code not in _NO_NOTES


def _files(summary: Summary, path: str) -> doc.Section:
    """The run's id and file, and commands for more."""
    quoted = shlex.quote(path)
    blocks: list[doc.Block] = []
    if _can_be_continued(summary):
        resume = f"asyncli soak --resume {quoted}"
        blocks.append(_command("If it was killed, continue it: ", resume, doc.TERMINAL))
    run = summary.run
    lasted = format_duration(run.duration_s)
    blocks.append(_command(f"Run {run.id} of {run.started}, {lasted}: ", path, doc.TERMINAL))
    full_report = "Full report"
    notes = sum(map(_is_note, _beside(summary)))
    if notes:
        full_report += f", with {format_many(notes, 'more note')}"
    how = "How it is measured"
    if is_of_one_ramp(summary):
        how += ", and what one ramp cannot tell"
    blocks += [
        _command(f"{full_report}: ", f"asyncli report {quoted} -v", doc.View.SHORT),
        _command("Short report: ", f"asyncli report {quoted}", doc.View.VERBOSE),
        _command(f"{how}: ", "asyncli explain cost", doc.TERMINAL),
    ]
    return doc.Section("files", "", blocks)


def _command(label: str, text: str, view: doc.View) -> doc.Paragraph:
    return doc.Paragraph((label, (text, "bold")), "text", view=view)


def _can_be_continued(summary: Summary) -> bool:
    incomplete = summary.finding("incomplete")
    return incomplete is not None and incomplete.fields["phase"] not in ("drain", "residue")
