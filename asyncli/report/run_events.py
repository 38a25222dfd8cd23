"""Events in a run's report: connections, heartbeats, handshakes and losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from asyncli.analysis.handshakes import ProtocolPart, Quantiles, StreamsPart, TlsPart
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.totals import Lateness
from asyncli.findings.protocol_codes import code_of_goodbye
from asyncli.findings.tls import by_reason
from asyncli.model.protocol_table import PROTOCOLS
from asyncli.model.records import Deaths, Environment, Phase, phase_at
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report.format import (
    count_or_unknown,
    milliseconds,
)
from asyncli.report.run_provoked import came_back, event_blocks
from asyncli.report.summary import Summary
from asyncli.report.summary_parts import Connections, EventPart

#: Codes of diagnoses that explain nothing.
_OPEN = ("unexplained", "too_few")
# Rows of the short report.
_MOST_EVENTS = 12


def timeline_section(summary: Summary) -> doc.Section:
    """The connections: one line of the short report if nothing was lost, else a table."""
    counts = summary.connections
    ramp = summary.ramp
    all_held = counts.held is not None and counts.held >= counts.requested
    is_clean = all_held and not (counts.lost or counts.failed or counts.reopened)
    view = doc.FULL if is_clean else doc.ALL
    achieved = "-"
    if ramp.achieved_per_s is not None:
        achieved = f"{ramp.achieved_per_s:,.0f}/s"
    asked = f"{ramp.asked_per_s:,.0f}/s asked"
    peak = count_or_unknown(counts.established_peak)
    text = f"ramp: {asked}, {achieved} achieved; at most {peak} open {when_counted(counts)}"
    blocks: list[doc.Block] = [_connections_table(counts, view, all_held=all_held)]
    if counts.deaths:
        blocks.append(_by_cause("lost", counts.deaths, view))
    if counts.failures:
        blocks.append(_by_cause("failed", counts.failures, view))
    blocks.append(doc.Paragraph(text, view=view))
    if is_clean:
        blocks.append(doc.headed_line("Connections", _clean(summary, achieved, asked)))
    blocks.append(_phases_table(summary))
    return doc.Section("timeline", "Timeline", blocks, tight=True)


def _clean(summary: Summary, achieved: str, asked: str) -> str:
    """Of a run that lost nothing: how many it opened, and what failed on the way back from events,
    which is no failure of the run.
    """
    opened = count_or_unknown(summary.connections.opened)
    events = summary.events or []
    back = sum(event.attempts or 0 for event in events)
    failed = sum(sum((event.failures or {}).values()) for event in events)
    phantoms = sum(event.phantoms or 0 for event in events)
    if not back:
        return f"{opened} opened at {achieved} ({asked}), none lost or failed"
    text = f"{opened} opened, those of the ramp at {achieved} ({asked}), none lost"
    if not failed and not phantoms:
        return f"{text} or failed"
    parts = []
    if failed:
        parts.append(f"{format_count(failed)} failed")
    if phantoms:
        parts.append(f"{format_count(phantoms)} got no answer")
    return f"{text}; of the connects after events {' and '.join(parts)}"


def _by_cause(kind: str, causes: Mapping[str, int], view: doc.View) -> doc.Paragraph:
    """How many were lost or failed, by cause."""
    counted = [f"{oneline(cause)} {format_count(count)}" for cause, count in causes.items()]
    return doc.Paragraph((f"{kind} by cause: ", (", ".join(counted), "red")), view=view)


def when_counted(counts: Connections) -> str:
    """When the most connections were open. They are counted as each second ends: where some were
    lost, more may have been open in between.
    """
    if counts.lost:
        return "as a second ended"
    return "at once"


def _connections_table(counts: Connections, view: doc.View, *, all_held: bool) -> doc.DataTable:
    cells = [
        (count_or_unknown(counts.requested), ""),
        (count_or_unknown(counts.opened), ""),
        (count_or_unknown(counts.held), "bold green" if all_held else "bold red"),
        (count_or_unknown(counts.lost), _style_of_losses(counts.lost)),
        (count_or_unknown(counts.reopened), ""),
        (count_or_unknown(counts.failed), _style_of_losses(counts.failed)),
    ]
    # Six counts of seven digits must fit in 80 columns.
    columns = doc.numbers("requested", "opened", "held", "lost", "reopened", "failed")
    rows = [doc.TableRow("", cells)]
    return doc.DataTable("Connections", columns, rows, width=18, kind="stack", view=view)


def _style_of_losses(count: int | None) -> str:
    if count == 0:
        return "green"
    return "bold red"


def _phases_table(summary: Summary) -> doc.DataTable:
    rows = []
    for phase in summary.run.phases:
        rows.append(doc.TableRow(phase.name, _span(phase.start_s, phase.end_s)))
    for gap in summary.run.gaps:
        rows.append(doc.TableRow("interrupted", _span(gap.start_s, gap.end_s)))
    columns = doc.numbers("from", "to", "lasted")
    return doc.DataTable("Phases", columns, rows, kind="small-table", view=doc.FULL)


def _span(start_s: float, end_s: float | None) -> list[str]:
    if end_s is None:
        return [f"{start_s:,.1f} s", "not ended", "-"]
    return [f"{start_s:,.1f} s", f"{end_s:,.1f} s", format_duration(end_s - start_s)]


def planned_sections(summary: Summary) -> list[doc.Section]:
    """The events of a run whose plan had some; nothing of another. They come before the costs."""
    events = summary.events or []
    if not _has_planned(events):
        return []
    return [_events_section(summary, events)]


def marks_sections(summary: Summary) -> list[doc.Section]:
    """What was noted in a run of which that is all."""
    events = summary.events or []
    if not events or _has_planned(events):
        return []
    return [_events_section(summary, events)]


def _has_planned(events: Sequence[EventPart]) -> bool:
    return any(event.policy is not msgspec.UNSET for event in events)


def _events_section(summary: Summary, events: list[EventPart]) -> doc.Section:
    """What was done or noted. The short report has the first of many."""
    blocks: list[doc.Block] = [events_table(summary.run.phases, events)]
    left_out = len(events) - _MOST_EVENTS
    if left_out > 0:
        text = f"and {format_many(left_out, 'more event')}: see the full report"
        blocks.append(doc.Paragraph(text, view=doc.View.SHORT))
    blocks += event_blocks(events)
    return doc.Section("events", "Events", blocks, tight=True)


def events_table(phases: Sequence[Phase], events: Sequence[EventPart]) -> doc.DataTable:
    """What was done or noted, and when."""
    rows = []
    for event in events:
        phase = phase_at(phases, event.at_s)
        cells = [f"{event.at_s:,.1f} s", phase or "-", oneline(event.text)]
        view = doc.ALL if event.number <= _MOST_EVENTS else doc.FULL
        rows.append(doc.TableRow(event.kind, cells, view=view))
    columns = [
        doc.TableColumn("at"),
        doc.TableColumn("phase", kind="word"),
        doc.TableColumn("what", kind="words", is_of_user=True),
    ]
    return doc.DataTable("Events", columns, rows, width=12, kind="small-table")


_FIRST_IS_NOT_LATE = (
    "the first heartbeat of each connection is sent as it opens: it counts in the latency and not "
    "in the lateness"
)
_UNTIL_BACK = (
    "of clients that came back from events, the answers until they were back are told with these "
    "events: they count as answered, and are not in the latency"
)


def heartbeats_section(summary: Summary) -> doc.Section:
    beats = summary.heartbeats
    latency = beats.latency_ms
    quantiles = (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
    rows = [
        doc.TableRow("latency", [milliseconds(value) for value in quantiles]),
        _lateness_row("lateness", beats.lateness_ms, doc.ALL),
        _lateness_row("lateness of the ramp", summary.ramp.lateness_ms, doc.FULL),
    ]
    columns = doc.numbers("p50", "p90", "p99", "p99.9", "max")
    title = "Heartbeats of ramp and hold: latency from due to answered, lateness from due to sent"
    blocks: list[doc.Block] = [
        doc.DataTable("Heartbeats", columns, rows, title, kind="tight"),
        _beats_counted(summary),
    ]
    if summary.plan["first_beat"] == "now":
        blocks += _about_first_beats(beats.lateness_ms.p50, latency.p50)
    if any(_had_some_back(event) for event in summary.events or []):
        blocks.append(doc.Paragraph(_UNTIL_BACK, view=doc.FULL))
    return doc.Section("heartbeats", "Heartbeats", blocks, tight=True)


def _had_some_back(event: EventPart) -> bool:
    """Whether clients came back from an event: with a connect, or without one as they were heard or
    read again.
    """
    if event.back is msgspec.UNSET or event.then == "gone":
        return False
    return came_back(event) > 0


def _about_first_beats(late_ms: float | None, latency_ms: float | None) -> list[doc.Block]:
    """What explains a lateness above the latency: of medians; none if one is unknown."""
    if late_ms is None or latency_ms is None:
        return []
    seems_impossible = late_ms > latency_ms
    return [doc.Paragraph(_FIRST_IS_NOT_LATE, view=doc.ALL if seems_impossible else doc.FULL)]


def _lateness_row(label: str, lateness: Lateness, view: doc.View) -> doc.TableRow:
    p50 = milliseconds(lateness.p50)
    p99 = milliseconds(lateness.p99)
    return doc.TableRow(label, [p50, "", p99, "", milliseconds(lateness.max)], view=view)


def _beats_counted(summary: Summary) -> doc.Paragraph:
    beats = summary.heartbeats
    counts = summary.reconciliation
    sent, answered, failed = map(count_or_unknown, (beats.sent, beats.answered, beats.failed))
    text = f"{sent} sent, {answered} answered, {failed} unanswered"
    given_up = sum(event.given_up or 0 for event in summary.events or [])
    if given_up:
        text += (
            f", {format_count(given_up)} given up as an event, or the way back from one, ended "
            "their connections"
        )
    statuses = [f"{format_count(count)} × {status}" for status, count in beats.by_status.items()]
    if statuses:
        text = f"{text}; status {', '.join(statuses)}"
    # The "Counts" line of the short report has the same number.
    is_counted = counts.agrees and counts.requests_delta is not None
    is_redundant = is_counted and beats.sent == beats.answered == beats.by_status.get("200")
    return doc.Paragraph(text, view=doc.FULL if is_redundant else doc.ALL)


def tls_words(tls: TlsPart, environment: Environment) -> str:
    """Protocol version and suite, handshakes, certificate, and the median handshake time."""
    parts: list[str] = []
    if len(tls.spoken) == 1:
        parts.extend(tls.spoken)
    elif tls.spoken:
        parts.append(by_reason(tls.spoken))
    if tls.full:
        parts.append(f"{format_count(tls.full)} full")
    if tls.resumed:
        parts.append(f"{format_count(tls.resumed)} resumed")
    if tls.failed:
        parts.append(f"{format_count(sum(tls.failed.values()))} failed")
    parts += _certificates(tls, environment.get("tls") or {})
    text = ", ".join(parts)
    if tls.handshake_ms.p50 is None:
        return text
    return f"{text}; a handshake took {milliseconds(tls.handshake_ms.p50)} (median)"


def _certificates(tls: TlsPart, probed: Mapping[str, Any]) -> Iterator[str]:
    """The ``probed`` certificate, and when the others that the server showed end."""
    certificate = probed.get("certificate") or {}
    name = "certificate"
    if certificate:
        is_verified = tls.verified and probed.get("verified", True)
        shown = f"{certificate['key']} certificate until {certificate['ends'][:10]}"
        yield shown if is_verified else f"unverified {shown}"
        name = "another"
    for ends in sorted(tls.certificates):
        if ends != certificate.get("ends"):
            yield f"{name} until {ends[:10]}"


def tls_sections(summary: Summary) -> list[doc.Section]:
    """The TLS section; none for a run without TLS."""
    tls = summary.tls
    if tls is msgspec.UNSET:
        return []
    title = (
        "Handshakes: TCP from connect() to connected, TLS from there until a heartbeat can be sent"
    )
    took = {"TCP handshake": tls.tcp_ms, "TLS handshake": tls.handshake_ms}
    return [_handshakes("tls", "TLS", tls_words(tls, summary.environment), title, took)]


def _handshakes(
    key: str, name: str, text: str, title: str, took: Mapping[str, Quantiles]
) -> doc.Section:
    rows = []
    for label, times in took.items():
        quantiles = (times.p50, times.p90, times.p99, times.max)
        rows.append(doc.TableRow(label, [milliseconds(value) for value in quantiles]))
    columns = doc.numbers("p50", "p90", "p99", "max")
    blocks: list[doc.Block] = [
        doc.headed_line(name, text),
        doc.DataTable("Handshakes", columns, rows, title, kind="tight", view=doc.FULL),
        doc.Paragraph(text, view=doc.FULL),
    ]
    return doc.Section(key, name, blocks, tight=True)


def protocol_sections(summary: Summary) -> list[doc.Section]:
    """The section of a protocol with a handshake: handshake times, unsolicited messages, streams,
    goodbyes.
    """
    part = summary.protocol
    if part is msgspec.UNSET:
        return []
    name = PROTOCOLS[part.name].title
    text = ", ".join(_protocol_parts(part, summary))
    if part.handshake_ms.p50 is not None:
        title = "Handshakes: from the first byte sent until granted"
        return [_handshakes("protocol", name, text, title, {"": part.handshake_ms})]
    if not text:
        return [doc.Section("protocol", name, [])]
    return [doc.Section("protocol", name, [doc.headed_line(name, text)])]


def _protocol_parts(part: ProtocolPart, summary: Summary) -> Iterator[str]:
    """What there is to say of a protocol, in this order."""
    yield from _granted(part, summary.connections.opened)
    yield from _messages(part)
    if part.streams is not msgspec.UNSET:
        yield from _streams(part.streams, summary.connections.held or 0)
    if part.tables is not msgspec.UNSET:
        yield f"header table used by {format_count(part.tables)}"
    if part.deflate is not msgspec.UNSET:
        yield _compression(part.deflate)
    if part.first_answers is not msgspec.UNSET:
        yield f"first answers: {', '.join(part.first_answers)}"
    if part.goodbyes:
        goodbyes = []
        for code, count in part.goodbyes.items():
            goodbyes.append(_goodbyes(part.name, int(code), count))
        yield f"goodbyes: {', '.join(goodbyes)}"


def _granted(part: ProtocolPart, opened: int | None) -> Iterator[str]:
    """Handshakes that the server granted, and that it refused."""
    if part.handshake_ms.p50 is not None:
        took = milliseconds(part.handshake_ms.p50)
        yield f"{count_or_unknown(opened)} granted in {took} (median)"
    if part.refused:
        yield f"{format_count(sum(part.refused.values()))} refused"


def _messages(part: ProtocolPart) -> Iterator[str]:
    """What the server sent without being asked; a protocol without messages has only bytes."""
    if part.messages:
        received = format_many(part.messages, "message")
        yield f"{received} received ({format_bytes(part.message_bytes)})"
    elif part.message_bytes:
        yield f"{format_bytes(part.message_bytes)} received unsolicited"


def _compression(granted: Mapping[str, int]) -> str:
    """To how many connections compression was granted. ``granted``: by the parameters."""
    text = f"compression granted to {format_count(sum(granted.values()))}"
    if granted:
        return f"{text} ({by_reason(granted)})"
    return text


def _streams(streams: StreamsPart, held: int) -> Iterator[str]:
    """Streams of ``held`` connections."""
    still_open = format_count(streams.streams_open)
    asked = format_count(streams.per_connection * held)
    yield f"{still_open} of {asked} streams held, {streams.per_connection} a connection"
    lost = f"{format_count(streams.streams_lost)} streams lost"
    if streams.streams_lost:
        lost = f"{lost} ({by_reason(streams.reasons)})"
    yield lost


def _goodbyes(protocol: str, code: int, count: int) -> str:
    name = code_of_goodbye(protocol, code)
    if not name:
        return f"{format_count(count)} without a code"
    return f"{format_count(count)} × {name}"


def deaths_table(deaths: Mapping[str, Deaths]) -> doc.DataTable:
    """Medians of age, idle time and requests of lost connections, by cause."""
    rows = []
    for cause, dead in deaths.items():
        cells = [
            format_count(dead.count),
            _time(dead.age_s.quantile(0.5)),
            _time(dead.idle_s.quantile(0.5)),
            _count(dead.requests.quantile(0.5)),
        ]
        rows.append(doc.TableRow(cause, cells))
    columns = doc.numbers("lost", "median age", "median idle", "median requests")
    heading = "Lost connections, by cause"
    return doc.DataTable(heading, columns, rows, kind="stack", view=doc.FULL)


def _count(count: float | None) -> str:
    if count is None:
        return "-"
    return format_count(count)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    return format_duration(seconds)


def deaths_section(summary: Summary, deaths: Mapping[str, Deaths]) -> doc.Section:
    known = {}
    for cause in summary.connections.deaths:
        if cause in deaths:
            known[cause] = deaths[cause]
    items = [_diagnosis(diagnosis) for diagnosis in summary.diagnoses]
    diagnoses = doc.ItemList(items, view=doc.View.PAGE)
    return doc.Section("deaths", "Lost connections", [diagnoses, deaths_table(known)])


def _diagnosis(diagnosis: Diagnosis) -> doc.ListedItem:
    remedy = ""
    if diagnosis.remedy:
        remedy = f"remedy: {oneline(diagnosis.remedy)}"
    code = f"{diagnosis.code}, {diagnosis.cause}"
    return doc.ListedItem("error", _certainty(diagnosis), oneline(diagnosis.evidence), remedy, code)


def _certainty(diagnosis: Diagnosis) -> str:
    if diagnosis.certain:
        return "certain"
    if diagnosis.code in _OPEN:
        return "open"
    return "likely"
