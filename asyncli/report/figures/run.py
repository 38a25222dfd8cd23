"""The figures of one run: which there are, what each shows in a sentence, and how to read it."""

from __future__ import annotations

from asyncli.analysis.counts import CountsOverTime, counts_over_time
from asyncli.analysis.drift import in_words, medians
from asyncli.analysis.slope import Cost
from asyncli.report.analyses import Analyses
from asyncli.report.answer import server_name
from asyncli.report.document import Picture
from asyncli.report.figures.cost import Slope, cost_lines, cost_parts, cost_residuals, cost_shares, known_total, slopes
from asyncli.report.figures.counts import counts_apart
from asyncli.report.figures.drawing import each
from asyncli.report.figures.drift import drift_lines
from asyncli.report.figures.forecast import drawn_ceilings, forecast_ceilings
from asyncli.report.figures.losses import deaths_by
from asyncli.report.figures.panels import Timeline, timeline
from asyncli.report.figures.timeline import timeline_panels
from asyncli.report.summary import Summary
from asyncli.run import Run
from asyncli.samples import Series
from asyncli.topology import sides
from asyncli.units import format_bytes, format_count, format_duration


def pictures(run: Run, summary: Summary, analyses: Analyses) -> list[Picture]:
    """Every figure of the run, in the order of the report."""
    where, server = sides(summary.environment), server_name(summary)
    ends, host = where.ends, where.host
    fits, held = analyses.costs.fits, summary.connections.held
    points = medians(run, analyses.drifts)
    counts = counts_over_time(run)
    over_time = timeline(run, _asked(counts), server)
    lost = {cause: one for cause, one in analyses.totals.whole.deaths.items() if one.count}
    whole = "; the heavy part of the line over the bar is the total's 95 % interval" if known_total(analyses.costs) else ""
    return [
        Picture(
            "parts",
            "What one connection is made of",
            f"Memory in bytes{whole}.",
            lambda style: cost_parts(analyses.costs, ends=ends, server=server, style=style),
            lambda: _parts_alt(analyses, ends, server),
        ),
        Picture(
            "cost",
            "Memory over connections",
            "Open marks are medians, the points that each line is fitted to; a cross is a baseline that is none of them, "
            "where the first connections took what no other does; dots are single samples. Each line starts at its fixed "
            "part, so that slopes can be compared; its tint is the slope's 95 % interval, cut where it leaves the figure.",
            lambda style: cost_lines(fits, ends=ends, server=server, host=host, style=style),
            lambda: _lines_alt(slopes(fits, ends=ends, server=server, host=host)),
        ),
        Picture(
            "residuals",
            "How far the points lie from their lines",
            "Each point less its line, each strip on a scale of its own, that of its points. Dots are single samples; those "
            "beyond a strip are left out, and so is a baseline that stands apart. R² is the share of the points' variance on "
            "the line.",
            lambda style: cost_residuals(fits, ends=ends, server=server, host=host, style=style),
            lambda: _residuals_alt(slopes(fits, ends=ends, server=server, host=host, unsteady=True)),
            optional=True,
        ),
        Picture(
            "forecast",
            "How many connections each limit allows",
            "The bar through a mark is its 95 % interval, where it has one.",
            lambda style: forecast_ceilings(analyses.forecast, asked=run.plan.connections, held=held, style=style),
            lambda: _forecast_alt(analyses, held),
            optional=True,
        ),
        Picture(
            "drift",
            "Memory over the hold",
            "Medians of a minute each (of a twentieth of a short hold), and the Theil-Sen line through them, above where that "
            "line begins; each strip on a scale of its own.",
            lambda style: drift_lines(analyses.drifts, points, server=server, host=host, style=style),
            lambda: _drift_alt(analyses, server, host),
        ),
        Picture(
            "timeline",
            "The run on one time axis",
            "Latencies count from when the heartbeat was due; below 10 µs they are drawn as that. Ramp and drain are tinted. "
            f"{over_time.into.method}",
            lambda style: timeline_panels(over_time, style=style),
            lambda: _timeline_alt(over_time, summary),
        ),
        Picture(
            "deaths",
            "How old the lost connections were, how long idle, after how many requests",
            "A row for each cause; each panel on axes of its own.",
            lambda style: deaths_by(lost, style=style),
            lambda: _deaths_alt(summary),
        ),
        Picture(
            "counts",
            "The server's counts less the client's",
            "At zero both count the same. While connections come and go the two are read up to a second apart, and differ "
            "by what happened in between; the held ones are left out of the drain.",
            lambda style: counts_apart(counts, over_time.phases, style=style),
            lambda: _counts_alt(counts),
        ),
    ]


def _asked(counts: CountsOverTime) -> Series | None:
    pairs = [(t_s, float(asked)) for t_s, asked in zip(counts.t_s, counts.asked, strict=True) if asked is not None]
    return Series([t_s for t_s, _ in pairs], [asked for _, asked in pairs]) if pairs else None


def _within(cost: Cost, times: int = 1) -> str:
    low, high = cost.ci95
    return f"{each(times * low, sign=False)} to {each(times * high)}"


def _parts_alt(analyses: Analyses, ends: int, server: str) -> str:
    parts = ", ".join(
        f"{label} {each(size)}" for label, _, size in cost_shares(analyses.costs, ends=ends, server=server)
    )
    total = known_total(analyses.costs)
    whole = "" if total is None else f" In all {each(total.bytes_per_connection)}, 95 % interval {_within(total)}."
    return f"A bar of one connection's memory: {parts}.{whole}"


def _lines_alt(drawn: list[Slope]) -> str:
    said = "; ".join(
        f"{one.label} rises by {each(one.each)} a connection (± {each(one.half, sign=False)})" for one in drawn
    )
    most = max(max(one.fit.n) for one in drawn)
    return f"Memory over 0 to {format_count(most)} connections, with straight lines: {said}."


def _residuals_alt(drawn: list[Slope]) -> str:
    said = "; ".join(
        f"{one.label} at most {format_bytes(max(abs(value) for value in one.residuals()))} from its line" for one in drawn
    )
    return f"Distances of the points from their lines: {said}."


def _forecast_alt(analyses: Analyses, held: int) -> str:
    known = drawn_ceilings(analyses.forecast)
    said = ", ".join(f"{one.name.replace('_', ' ')} {format_count(one.connections or 0)}" for one in known)
    return f"Connections that each limit allows, lowest first: {said}. This run held {format_count(held)}."


def _drift_alt(analyses: Analyses, server: str, host: str) -> str:
    names = {"host_total": f"{host} in all", "server_user": server, "kernel": "kernel", "generator_user": "asyncli"}
    said = "; ".join(f"{names[name]}: {in_words(one)}" for name, one in analyses.drifts.items() if name in names)
    return f"Memory minute by minute over the hold. {said}."


def _timeline_alt(over_time: Timeline, summary: Summary) -> str:
    c = summary.connections
    panels = ", ".join(panel.title[:1].lower() + panel.title[1:] for panel in over_time.panels)
    lanes = f"; lost and failed by cause: {', '.join(f'{lane.cause} {format_count(lane.total)}' for lane in over_time.lanes)}"
    return (
        f"{format_duration(over_time.end_s)} on one axis: {panels}. At most {format_count(c.established_peak)} connections were "
        f"open at once, {format_count(c.held)} held at the end{lanes if over_time.lanes else '; none was lost'}."
    )


def _deaths_alt(summary: Summary) -> str:
    said = ", ".join(f"{cause} {format_count(count)}" for cause, count in summary.connections.deaths.items())
    return f"Ages, idle times and request numbers of the lost connections, by cause: {said}."


def _counts_alt(counts: CountsOverTime) -> str:
    said = []
    for label, ours, theirs in (
        ("held", counts.held, counts.server_active),
        ("accepted", counts.opened, counts.accepts),
        ("handled", counts.opened, counts.handled),
        ("requests", counts.answers, counts.requests),
    ):
        apart = [b - a for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        if apart:
            said.append(f"{label}: at most {format_count(max(map(abs, apart)))} apart, {format_count(abs(apart[-1]))} at the end")
    return f"Differences between the server's counts and the client's over time. {'; '.join(said)}."
