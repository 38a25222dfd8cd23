"""The figures of one run: drawing, text for screen readers, caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncli.analysis.cost import Costs
from asyncli.analysis.counts import asked_over_time
from asyncli.analysis.drift import MetricName, in_words, medians
from asyncli.model.run import Run
from asyncli.model.topology import sides
from asyncli.model.units import format_count, format_duration
from asyncli.report.analyses import Analyses
from asyncli.report.answer import memory_name
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
from asyncli.report.figures.drawing import each
from asyncli.report.figures.timeline_and_deaths import deaths_by, timeline_panels
from asyncli.report.figures.timeline_data import Timeline, timeline
from asyncli.report.format import count_or_unknown, memory_labels, with_streams
from asyncli.report.summary import Summary


def _parts_caption(costs: Costs, server: str) -> str:
    caption = "Memory in bytes"
    if known_total(costs):
        caption += "; the bar over it is the total's 95 % interval"
    if left_out := shares_left_out(costs, server=server):
        caption += f"; not in it: {', '.join(left_out)}"
    return f"{caption}."


def pictures(run: Run, summary: Summary, analyses: Analyses) -> list[Picture]:
    """Every figure of the run, in the order of the report."""
    where, server, costs = sides(summary.environment), memory_name(summary), analyses.costs
    lines = slopes(costs, server=server, host=where.host)
    over_time = timeline(run, asked_over_time(run), server)
    lost = {cause: one for cause, one in analyses.totals.whole.deaths.items() if one.count}
    labels = memory_labels(server, where.host)
    points, held = medians(run, analyses.drifts), with_streams(costs.streams)
    return [
        Picture(
            "parts",
            f"What one connection{held} is made of",
            _parts_caption(costs, server),
            lambda style: cost_parts(costs, server=server, style=style),
            lambda: _parts_alt(analyses, server),
            section="cost", first=True,
        ),
        Picture(
            "cost",
            f"Memory over connections{held and f', each{held}'}",
            "Memory above the fixed part. Open marks are the medians that each line is fitted to; a cross is an excluded "
            "baseline; dots are samples. The tint is the slope's 95 % interval.",
            lambda style: cost_lines(lines, style=style),
            lambda: _lines_alt(lines),
            section="cost",
        ),
        Picture(
            "drift",
            "Memory over the hold",
            "Medians of one minute each (or a twentieth of a short hold), and the Theil-Sen line through them.",
            lambda style: drift_lines(analyses.drifts, points, labels, style),
            lambda: f"Memory over the hold. {_drifts(analyses, labels)}.",
            section="drift",
        ),
        Picture(
            "timeline",
            "The run on one time axis",
            f"Latency counts from when the heartbeat was due. Ramp and drain are tinted. {over_time.method}",
            lambda style: timeline_panels(over_time, style=style),
            lambda: _timeline_alt(over_time, summary),
            section="timeline", first=True,
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


def _parts_alt(analyses: Analyses, server: str) -> str:
    parts = ", ".join(f"{label} {each(size)}" for label, _, size in cost_shares(analyses.costs, server=server))
    total = known_total(analyses.costs)
    half = "" if total is None else f" In all {each(total.bytes_per_connection)} ± {each(total.half_width, sign=False)}."
    return f"A bar of the memory of one connection{with_streams(analyses.costs.streams)}: {parts}.{half}"


def _lines_alt(drawn: Sequence[Slope]) -> str:
    rises = "; ".join(f"{one.label} {one.text}" for one in drawn)
    most = max(max(one.fit.n) for one in drawn)
    return f"Memory over 0 to {format_count(most)} connections, with straight lines; each connection costs: {rises}."


def _drifts(analyses: Analyses, labels: Mapping[MetricName, str]) -> str:
    return "; ".join(f"{labels[name]}: {in_words(one)}" for name, one in analyses.drifts.items())


def _timeline_alt(over_time: Timeline, summary: Summary) -> str:
    c = summary.connections
    panels = ", ".join(panel.title[:1].lower() + panel.title[1:] for panel in over_time.panels)
    most, held = count_or_unknown(c.established_peak), count_or_unknown(c.held)
    return (
        f"{format_duration(over_time.end_s)} on one axis: {panels}. At most {most} connections were open at once, {held} held at "
        "the end."
    )


def _deaths_alt(summary: Summary) -> str:
    counts = ", ".join(f"{cause} {format_count(count)}" for cause, count in summary.connections.deaths.items())
    return f"Ages, idle times and request numbers of the lost connections, by cause: {counts}."
