"""Events in a run's report: connections, heartbeats, losses, counts and processes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from asyncli.analysis.handshakes import Quantiles, TlsPart
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import agreement, divergence_in_words
from asyncli.findings.protocol_codes import code_of_goodbye
from asyncli.findings.tls import by_reason
from asyncli.model.protocol_table import PROTOCOLS, requests_of
from asyncli.model.records import Deaths, Environment
from asyncli.model.text import oneline
from asyncli.model.units import format_bytes, format_count, format_duration, format_many
from asyncli.report import document as doc
from asyncli.report.answer import server_name, with_remedy
from asyncli.report.format import bytes_each, count_or_unknown, milliseconds, or_bytes, or_dash, with_streams
from asyncli.report.summary import Summary

#: Codes of diagnoses that explain nothing.
_OPEN = ("unexplained", "too_few")


def timeline_section(summary: Summary) -> doc.Section:
    """The connections: one line of the short report if nothing was lost, else a table."""
    c, ramp = summary.connections, summary.ramp
    achieved = "-" if ramp.achieved_per_s is None else f"{ramp.achieved_per_s:,.0f}/s"
    all_held = c.held is not None and c.held >= c.requested
    whole = all_held and not (c.lost or c.failed or c.reopened)
    view = doc.FULL if whole else doc.ALL
    bad = [("bold red" if n != 0 else "green") for n in (c.lost, c.failed)]
    styles = ("", "", "bold green" if all_held else "bold red", bad[0], "", bad[1])
    counts = (c.requested, c.opened, c.held, c.lost, c.reopened, c.failed)
    cells = [(count_or_unknown(n), style) for n, style in zip(counts, styles, strict=True)]
    # Six counts of seven digits must fit in 80 columns.
    columns = doc.numbers("requested", "opened", "held", "lost", "reopened", "failed")
    table = doc.DataTable("Connections", columns, [doc.TableRow("", cells)], width=18, kind="stack", view=view)
    blocks: list[doc.Block] = [table]
    for what, causes in (("lost", c.deaths), ("failed", c.failures)):
        if causes:
            listed = ", ".join(f"{oneline(cause)} {format_count(count)}" for cause, count in causes.items())
            blocks.append(doc.Paragraph((f"{what} by cause: ", (listed, "red")), view=view))
    peak = count_or_unknown(c.established_peak)
    blocks.append(
        doc.Paragraph(f"ramp: {ramp.asked_per_s:,.0f}/s asked, {achieved} achieved; at most {peak} open at once", view=view)
    )
    if whole:
        text = f"{count_or_unknown(c.opened)} opened at {achieved} ({ramp.asked_per_s:,.0f}/s asked), none lost or failed"
        blocks.append(_line("Connections", text))
    rows = [doc.TableRow(one.name, _span(one.start_s, one.end_s)) for one in summary.run.phases]
    rows += [doc.TableRow("interrupted", _span(one.start_s, one.end_s)) for one in summary.run.gaps]
    blocks.append(doc.DataTable("Phases", doc.numbers("from", "to", "lasted"), rows, kind="small-table", view=doc.FULL))
    return doc.Section("timeline", "Timeline", blocks, tight=True)


def _span(start_s: float, end_s: float | None) -> list[str]:
    if end_s is None:
        return [f"{start_s:,.1f} s", "not ended", "-"]
    return [f"{start_s:,.1f} s", f"{end_s:,.1f} s", format_duration(end_s - start_s)]


def _line(heading: str, text: str) -> doc.Paragraph:
    return doc.Paragraph(((heading, "bold"), f": {text}"), "line", view=doc.View.SHORT)


_FIRST_IS_NOT_LATE = (
    "the first heartbeat of each connection is sent as it opens: it counts in the latency and not in the lateness"
)


def heartbeats_section(summary: Summary) -> doc.Section:
    beats, ramp = summary.heartbeats, summary.ramp
    latency = beats.latency_ms
    quantiles = (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
    rows = [doc.TableRow("latency", [milliseconds(value) for value in quantiles])]
    for label, one, view in (("lateness", beats.lateness_ms, doc.ALL), ("lateness of the ramp", ramp.lateness_ms, doc.FULL)):
        rows.append(doc.TableRow(label, [milliseconds(one.p50), "", milliseconds(one.p99), "", milliseconds(one.max)], view=view))
    title = "Heartbeats of ramp and hold: latency from due to answered, lateness from due to sent"
    table = doc.DataTable("Heartbeats", doc.numbers("p50", "p90", "p99", "p99.9", "max"), rows, title, kind="tight")
    counted = summary.reconciliation.agrees and summary.reconciliation.requests_delta is not None
    # The "Counts" line of the short report has the same number.
    redundant = counted and beats.sent == beats.answered == beats.by_status.get("200")
    statuses = ", ".join(f"{format_count(count)} × {status}" for status, count in beats.by_status.items())
    sent, answered, failed = map(count_or_unknown, (beats.sent, beats.answered, beats.failed))
    counts = f"{sent} sent, {answered} answered, {failed} unanswered"
    note = doc.Paragraph(counts + (f"; status {statuses}" if statuses else ""), view=doc.FULL if redundant else doc.ALL)
    blocks: list[doc.Block] = [table, note]
    if beats.lateness_ms.p50 is not None and latency.p50 is not None and summary.plan["first_beat"] == "now":
        seems_negative = beats.lateness_ms.p50 > latency.p50
        blocks.append(doc.Paragraph(_FIRST_IS_NOT_LATE, view=doc.ALL if seems_negative else doc.FULL))
    return doc.Section("heartbeats", "Heartbeats", blocks, tight=True)


def tls_words(tls: TlsPart, environment: Environment) -> str:
    """Protocol version and suite, handshakes, certificate, and the median handshake time."""
    spoken = ", ".join(tls.spoken) if len(tls.spoken) == 1 else by_reason(tls.spoken)
    parts = [spoken] if spoken else []
    parts += [f"{format_count(count)} {kind}" for count, kind in ((tls.full, "full"), (tls.resumed, "resumed")) if count]
    if tls.failed:
        parts.append(f"{format_count(sum(tls.failed.values()))} failed")
    probed = environment.get("tls") or {}
    certificate = probed.get("certificate") or {}
    if certificate:
        unverified = "" if tls.verified and probed.get("verified", True) else "unverified "
        parts.append(f"{unverified}{certificate['key']} certificate until {certificate['ends'][:10]}")
    other = "another" if certificate else "certificate"
    parts += [f"{other} until {ends[:10]}" for ends in sorted(tls.certificates) if ends != certificate.get("ends")]
    took = f"; a handshake took {milliseconds(tls.handshake_ms.p50)} (median)" if tls.handshake_ms.p50 is not None else ""
    return ", ".join(parts) + took


def tls_sections(summary: Summary) -> list[doc.Section]:
    """The TLS section; none for a run without TLS."""
    tls = summary.tls
    if tls is msgspec.UNSET:
        return []
    title = "Handshakes: TCP from connect() to connected, TLS from there until a heartbeat can be sent"
    took = {"TCP handshake": tls.tcp_ms, "TLS handshake": tls.handshake_ms}
    return [_handshakes("tls", "TLS", tls_words(tls, summary.environment), title, took)]


def _handshakes(key: str, name: str, text: str, title: str, took: Mapping[str, Quantiles]) -> doc.Section:
    rows = [
        doc.TableRow(label, [milliseconds(value) for value in (one.p50, one.p90, one.p99, one.max)])
        for label, one in took.items()
    ]
    blocks: list[doc.Block] = [
        _line(name, text),
        doc.DataTable("Handshakes", doc.numbers("p50", "p90", "p99", "max"), rows, title, kind="tight", view=doc.FULL),
        doc.Paragraph(text, view=doc.FULL),
    ]
    return doc.Section(key, name, blocks, tight=True)


def protocol_sections(summary: Summary) -> list[doc.Section]:
    """The section of a protocol with a handshake: handshake times, unsolicited messages, streams, goodbyes."""
    part = summary.protocol
    if part is msgspec.UNSET:
        return []
    name = PROTOCOLS[part.name].title
    took = part.handshake_ms
    opened = count_or_unknown(summary.connections.opened)
    parts = [] if took.p50 is None else [f"{opened} granted in {milliseconds(took.p50)} (median)"]
    parts += [f"{format_count(sum(part.refused.values()))} refused"] if part.refused else []
    if part.messages:
        parts.append(f"{format_many(part.messages, 'message')} received ({format_bytes(part.message_bytes)})")
    elif part.message_bytes:
        parts.append(f"{format_bytes(part.message_bytes)} received unsolicited")
    if (streams := part.streams) is not msgspec.UNSET:
        lost = f" ({by_reason(streams.reasons)})" if streams.streams_lost else ""
        asked = format_count(streams.per_connection * (summary.connections.held or 0))
        parts.append(f"{format_count(streams.streams_open)} of {asked} streams held, {streams.per_connection} a connection")
        parts.append(f"{format_count(streams.streams_lost)} streams lost{lost}")
    if part.tables is not msgspec.UNSET:
        parts.append(f"header table used by {format_count(part.tables)}")
    if part.deflate is not msgspec.UNSET:
        how = f" ({by_reason(part.deflate)})" if part.deflate else ""
        parts.append(f"compression granted to {format_count(sum(part.deflate.values()))}{how}")
    if part.first_answers is not msgspec.UNSET:
        parts.append(f"first answers: {', '.join(part.first_answers)}")
    if part.goodbyes:
        parts.append("goodbyes: " + ", ".join(_goodbyes(part.name, int(code), count) for code, count in part.goodbyes.items()))
    text = ", ".join(parts)
    if took.p50 is None:
        return [doc.Section("protocol", name, [_line(name, text)] if text else [])]
    return [_handshakes("protocol", name, text, "Handshakes: from the first byte sent until granted", {"": took})]


def _goodbyes(protocol: str, code: int, count: int) -> str:
    shown = code_of_goodbye(protocol, code)
    return f"{format_count(count)} × {shown}" if shown else f"{format_count(count)} without a code"


def deaths_table(deaths: Mapping[str, Deaths]) -> doc.DataTable:
    """Medians of age, idle time and requests of lost connections, by cause."""
    rows = []
    for cause, dead in deaths.items():
        age, idle, requests = (one.quantile(0.5) for one in (dead.age_s, dead.idle_s, dead.requests))
        times = ("-" if one is None else format_duration(one) if one else "0 s" for one in (age, idle))
        number = "-" if requests is None else format_count(requests)
        rows.append(doc.TableRow(cause, [format_count(dead.count), *times, number]))
    columns = doc.numbers("lost", "median age", "median idle", "median requests")
    return doc.DataTable("Lost connections, by cause", columns, rows, kind="stack", view=doc.FULL)


def deaths_section(summary: Summary, deaths: Mapping[str, Deaths]) -> doc.Section:
    table = deaths_table({cause: deaths[cause] for cause in summary.connections.deaths if cause in deaths})
    diagnoses = doc.ItemList([_diagnosis(one) for one in summary.diagnoses], view=doc.View.PAGE)
    return doc.Section("deaths", "Lost connections", [diagnoses, table])


def _diagnosis(one: Diagnosis) -> doc.ListedItem:
    sure = "certain" if one.certain else "likely" if one.code not in _OPEN else "open"
    more = f"remedy: {oneline(one.remedy)}" if one.remedy else ""
    return doc.ListedItem("error", sure, oneline(one.evidence), more, f"{one.code}, {one.cause}")


def counts_section(summary: Summary) -> doc.Section:
    r, opened = summary.reconciliation, summary.connections.opened
    # What the server counts as requests.
    asked: int | None = summary.heartbeats.answered
    what, counted_as = "answers", "answered"
    if summary.protocol is not msgspec.UNSET:
        kind = requests_of(summary.protocol.name, summary.plan.get("h2_heartbeat"))
        asked = {"heartbeats": asked, "connections": opened, "none": 0}.get(kind or "")
        what, counted_as = ("HEADs", "requests") if summary.protocol.name == "http2" else ("handshakes", "granted")
        if asked is not None and (streams := summary.protocol.streams) is not msgspec.UNSET:
            asked, what = asked + streams.streams_opened, "streams"
    blocks: list[doc.Block] = []
    if r.agrees is not None or r.accepts_delta is not None:
        view = doc.FULL if r.agrees else doc.ALL
        rows = [
            doc.TableRow(label, [or_dash(ours, ",d"), or_dash(theirs, ",d")])
            for label, ours, theirs in (
                ("open, active", r.client_held, r.server_active), ("opened, accepted", opened, r.accepts_delta),
                ("opened, handled", opened, r.handled_delta), (f"{what}, requests (polls too)", asked, r.requests_delta),
            )
        ]  # fmt: skip
        columns = doc.numbers("asyncli", server_name(summary))
        title = "The same connections, counted on both sides"
        blocks.append(doc.DataTable("Counts compared", columns, rows, title, kind="small-table", view=view))
        agrees = (agreement(r.agrees, summary.findings), {True: "green", False: "bold red", None: ""}[r.agrees])
        blocks.append(doc.Paragraph((agrees, "."), view=view))
    if r.agrees:
        both = (
            (r.client_held, r.server_active, "open"),
            (opened, r.accepts_delta, "accepted"),
            (asked, r.requests_delta, counted_as),
        )
        counted = [f"{format_count(ours)} {what}" for ours, theirs, what in both if ours is not None and theirs is not None]
        how = agreement(r.agrees, summary.findings).removeprefix("They ").partition(" (see")[0]
        blocks.append(_line(f"Counts {how}", ", ".join(counted)))
    if r.divergences:
        blocks.append(doc.Bullets([divergence_in_words(one) for one in r.divergences], view=doc.View.PAGE))
    if not blocks and (unknown := summary.finding("reconciliation_unknown")) is not None:
        blocks.append(doc.Paragraph(with_remedy(summary, unknown), view=doc.View.PAGE))
    return doc.Section("counts", "Counts compared", blocks, tight=True)


def processes_section(summary: Summary) -> doc.Section:
    server, generator, name = summary.server, summary.generator, server_name(summary)
    memory, kind = server.memory
    rows, used = [], []
    if memory.hold_end is not None or server.processes.hold_end is not None:
        before, after = server.cpu_s.baseline, server.cpu_s.hold_end
        cpu = "-" if before is None or after is None else format_duration(max(0.0, after - before))
        late = or_bytes(memory.hold_end)
        rows.append(
            doc.TableRow(f"{name} ({kind})", [or_dash(server.processes.hold_end, ",.0f"), or_bytes(memory.baseline), late, cpu])
        )
        used.append(f"{name} {cpu}, {late}{' (RSS)' if kind == 'RSS' else ''}")
    more = "-" if generator.user_bytes is None else f"+ {format_bytes(generator.user_bytes)}"
    cpu = "-" if generator.cpu_s is None else format_duration(generator.cpu_s)
    rows.append(doc.TableRow("asyncli (USS)", [or_dash(generator.processes, ",d"), "", more, cpu]))
    used.append(f"asyncli {cpu}, {more}")
    notes = []
    cost = summary.cost.generator_user
    # A cost of two levels is the same quantity, by other samples.
    if generator.user_bytes_per_connection is not None and not (cost is not None and cost.of_levels):
        held = f"a connection{with_streams(summary.cost.streams)}"
        notes.append(f"{more}, {bytes_each(generator.user_bytes_per_connection)} {held} (first use included)")
    if generator.cpu_us_per_heartbeat is not None:
        notes.append(f"{generator.cpu_us_per_heartbeat:,.1f} µs of CPU a heartbeat (all it used in the hold, by the answers)")
    columns = doc.numbers("number", "memory before", "at the hold's end", "CPU")
    limit = ("the limit of this run", "bold magenta") if generator.saturated else ("not the limit", "")
    blocks: list[doc.Block] = [
        doc.DataTable("Processes", columns, rows, kind="stack", view=doc.FULL),
        doc.Paragraph(("asyncli: ", ", ".join([*notes, ""]), limit), view=doc.FULL),
        _line("CPU and memory", f"{'; '.join(used)}{', the limit of this run' if generator.saturated else ''}"),
    ]
    return doc.Section("processes", "Processes", blocks, tight=True)
