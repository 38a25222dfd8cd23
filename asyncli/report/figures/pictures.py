"""The figures of one run: drawing, text for screen readers, caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.counts import asked_over_time
from asyncli.analysis.drift import MetricName, in_words, medians
from asyncli.model.run import Run
from asyncli.model.topology import sides
from asyncli.model.units import format_count, format_duration, format_many
from asyncli.report.analyses import Analyses
from asyncli.report.answer import heap_is_collected, memory_name
from asyncli.report.document import Picture
from asyncli.report.figures.costs import (
    Slope,
    cost_lines,
    cost_parts,
    cost_shares,
    drift_lines,
    known_total,
    shares_left_out,
    slopes,
)
from asyncli.report.figures.drawing import each, each_with_error
from asyncli.report.figures.recoveries import MOST_EVENTS, Recovery, recoveries, recovery_rows
from asyncli.report.figures.timeline_and_deaths import (
    deaths_by,
    is_cut,
    shown_lines,
    timeline_panels,
)
from asyncli.report.figures.timeline_data import Timeline, timeline
from asyncli.report.format import count_or_unknown, memory_labels, with_streams
from asyncli.report.run_events import when_counted
from asyncli.report.summary import Summary


def _parts_caption(costs: Costs, server: str, *, heap_fills: bool) -> str:
    caption = "Memory in bytes"
    if costs.heap.at_goal is not None:
        whose = costs.heap.program or server
        caption += f"; that of {whose} when its heap has filled"
    elif heap_fills and costs.server_user is not None:
        caption += f"; that of {server} while its heap was filling"
    if known_total(costs):
        caption += "; the bar over it is the total's 95 % interval"
    left_out = shares_left_out(costs, server=server)
    if left_out:
        caption += f"; not in it: {', '.join(left_out)}"
    return f"{caption}."


def pictures(run: Run, summary: Summary, analyses: Analyses) -> list[Picture]:
    """Every figure of the run, in the order of the report."""
    host = sides(summary.environment).host
    server = memory_name(summary)
    costs = analyses.costs
    planned = costs.with_heap_at_goal()
    lines = slopes(costs, server=server, host=host)
    over_time = timeline(run, asked_over_time(run), server)
    lost = {}
    for cause, deaths in analyses.totals.whole.deaths.items():
        if deaths.count:
            lost[cause] = deaths
    labels = memory_labels(server, host)
    points = medians(run, analyses.drifts)
    streams = with_streams(costs.streams)
    events = [] if summary.events is msgspec.UNSET else summary.events
    recovered = recoveries(run, events, server)
    return [
        Picture(
            "parts",
            f"What one connection{streams} is made of",
            _parts_caption(planned, server, heap_fills=heap_is_collected(summary)),
            lambda style: cost_parts(planned, server=server, style=style),
            lambda: _parts_alt(planned, server),
            section="cost",
            first=True,
        ),
        Picture(
            "cost",
            f"Memory over connections, each{streams}" if streams else "Memory over connections",
            "Memory above the line's level without connections. Open marks are the medians that "
            "each line is fitted to; a cross is an excluded baseline; dots are samples. The tint "
            "is the cost's 95 % interval. What is hidden has marks, and no line.",
            lambda style: cost_lines(lines, style=style),
            lambda: _lines_alt(lines),
            section="cost",
        ),
        Picture(
            "drift",
            "Memory over the hold",
            "Medians of one minute each (or a twentieth of a short hold), and the Theil-Sen line "
            "through them.",
            lambda style: drift_lines(analyses.drifts, points, labels, style),
            lambda: f"Memory over the hold. {_drifts(analyses, labels)}.",
            section="drift",
        ),
        Picture(
            "timeline",
            "The run on one time axis",
            _timeline_caption(over_time),
            lambda style: timeline_panels(over_time, style=style),
            lambda: _timeline_alt(over_time, summary),
            section="timeline",
            first=True,
        ),
        Picture(
            "recoveries",
            "Each event, from its instant on",
            _recoveries_caption(recovered, run),
            lambda style: recovery_rows(recovered, style=style),
            lambda: _recoveries_alt(recovered),
            optional=True,
            section="events",
        ),
        Picture(
            "deaths",
            "Age, idle time and number of requests of the lost connections",
            "One row per cause; each panel has its own axes.",
            lambda style: deaths_by(lost, style=style),
            lambda: _deaths_alt(summary),
            section="deaths",
        ),
    ]


def _parts_alt(costs: Costs, server: str) -> str:
    shares = cost_shares(costs, server=server)
    parts = ", ".join(f"{label} {each(size)}" for label, _, size in shares)
    bar = f"A bar of the memory of one connection{with_streams(costs.streams)}: {parts}."
    total = known_total(costs)
    if total is None:
        return bar
    return f"{bar} In all {each_with_error(total)}."


def _lines_alt(drawn: Sequence[Slope]) -> str:
    rises = "; ".join(f"{slope.label} {slope.text}" for slope in drawn)
    most_connections = format_count(max(max(slope.fit.n) for slope in drawn))
    return (
        f"Memory over 0 to {most_connections} connections, with straight lines; "
        f"each connection costs: {rises}."
    )


def _drifts(analyses: Analyses, labels: Mapping[MetricName, str]) -> str:
    drifts = analyses.drifts.items()
    return "; ".join(f"{labels[name]}: {in_words(drift)}" for name, drift in drifts)


def _recoveries_caption(drawn: Sequence[Recovery], run: Run) -> str:
    caption = (
        "A violet line is the event's instant. Those held are told once a second; a client that "
        "comes back is held with its first answer, and is among those answered again from then on. "
        "Dots are readings of the server. Memory is above its last reading before."
    )
    left_out = len(run.event_windows) - len(drawn)
    if drawn and left_out:
        return f"{caption} The first {MOST_EVENTS} events; the table has {left_out} more."
    return caption


def _recoveries_alt(drawn: Sequence[Recovery]) -> str:
    titles = "; ".join(recovery.title for recovery in drawn)
    return f"Connections and the server's memory from the instant of each event: {titles}."


def _timeline_caption(over_time: Timeline) -> str:
    caption = "Latency counts from when the heartbeat was due. Ramp and drain are tinted."
    if over_time.events:
        caption = f"{caption} A vertical line with a label is a mark."
    if over_time.gaps:
        caption = f"{caption} What is hatched is an interruption of the run."
    for panel in over_time.panels:
        if panel.key != "memory":
            continue
        if len(shown_lines(panel)) < len(panel.lines):
            caption = (
                f"{caption} The host's line is left out: other programs have most of it beyond "
                "this axis."
            )
        elif is_cut(panel):
            caption = f"{caption} The host's line leaves the axis where other programs rule it."
    return f"{caption} {over_time.method}"


def _timeline_alt(over_time: Timeline, summary: Summary) -> str:
    titles = ", ".join(panel.title[:1].lower() + panel.title[1:] for panel in over_time.panels)
    peak = count_or_unknown(summary.connections.established_peak)
    held = count_or_unknown(summary.connections.held)
    marks = ""
    if over_time.events:
        marks = f" {format_many(len(over_time.events), 'mark')}: the table Events has them."
    return (
        f"{format_duration(over_time.end_s)} on one axis: {titles}. At most {peak} connections "
        f"were open {when_counted(summary.connections)}, {held} held at the end.{marks}"
    )


def _deaths_alt(summary: Summary) -> str:
    deaths = summary.connections.deaths.items()
    counts = ", ".join(f"{cause} {format_count(count)}" for cause, count in deaths)
    return f"Ages, idle times and request numbers of the lost connections, by cause: {counts}."
