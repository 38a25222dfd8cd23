"""The report for a terminal: the verdict and the answer first, then the numbers, then what should be known or mended.

It depends on the summary alone, so that a run file printed a month later reads as the live run did.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis import drift as drifting
from asyncli.analysis.cost import Cost
from asyncli.analysis.forecast import Ceiling
from asyncli.analysis.reconcile import RULE as RECONCILE_RULE
from asyncli.analysis.reconcile import agreement
from asyncli.analysis.verdict import RULE as VERDICT_RULE
from asyncli.findings.cost import LEVELS, SETTLED
from asyncli.findings.forecast import gave_way
from asyncli.records import GAVE_UP, NOTHING_LISTENS, Environment, Finding, left_out_s
from asyncli.report.again import command_for_the_server
from asyncli.report.summary import PhaseSpan, RunPart, Summary
from asyncli.report.terminal import SEVERITY_STYLE, VERDICT_STYLE, Indented, print_parts
from asyncli.report.words import (
    POOLED,
    about,
    about_to,
    bytes_each,
    ceiling,
    cost_rows,
    fixed_is,
    interval,
    kept_less,
    milliseconds,
    or_dash,
    spent,
    with_error,
)
from asyncli.text import oneline
from asyncli.topology import sides
from asyncli.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# Lines longer than this lose the eye on their way back.
_WIDEST = 96
# An interval wider than this share of its slope is a guess, and is called one.
_WIDE_INTERVAL = 0.25


def print_report(summary: Summary, console: Console, path: str | os.PathLike[str], *, verbose: bool = False) -> None:
    """Print the report of the run kept in ``path``; readable at 80 columns, without colour, and piped.

    ``verbose``: with the rules of the figures, notes, every limit, and the tables of what is as it should be.
    """
    at = os.fspath(path)
    if {GAVE_UP, NOTHING_LISTENS} & {one.code for one in summary.findings}:
        # Nothing was measured: why is all there is to say.
        errors = msgspec.structs.replace(summary, findings=[one for one in summary.findings if one.severity == "error"])
        said = [*_findings(errors), *_epilogue(errors, at)] if verbose else _findings_and_files(errors, at)
        print_parts([*_answer(errors), *said], console, _WIDEST)
        return
    parts = list(_answer(summary))
    if verbose:
        parts += [*_cost(summary, verbose), *_room(summary), *_drift(summary, verbose), *_connections(summary), ""]
        parts += [*_beats(summary, verbose), "", *_counts(summary, verbose), *_machines(summary)]
        parts += [*_findings(summary), *_epilogue(summary, at)]
    else:
        parts += [*_cost(summary, verbose), *_drift(summary, verbose), *_what_happened(summary)]
        parts += _findings_and_files(summary, at)
    print_parts(parts, console, _WIDEST)


def one_line(summary: Summary) -> str:
    """Verdict and answer in one line."""
    line = f"{summary.verdict}: {why(summary)}"
    total, server = summary.cost.host_total, summary.cost.server_user
    if summary.verdict == "untested":
        # Memory moved, but by no connection that is known to have been one.
        return oneline(line)
    for one, where in ((total, f"on {sides(summary.environment).host}"), (server, f"in {server_name(summary)}")):
        # Between two levels of the whole host lies also what its other programs took or gave back meanwhile.
        if one is not None and one.ci95[0] > 0 and not (one is total and one.of_levels):
            each = "with what the first ones take once, a connection" if one.of_levels else "one more"
            line += f"; {each} costs {with_error(one)} {where}"
            break
    return oneline(line.replace("±", "+-"))


def why(summary: Summary) -> str:
    """What decided the verdict, in words."""
    return next((one.evidence for one in summary.findings if one.code == f"verdict_{summary.verdict}"), "")


def server_label(summary: Summary) -> str:
    """What the server is called in full: ``nginx/1.22.1``, ``built-in server``, or ``the server`` where unknown."""
    server = summary.environment.get("server")
    label = server.get("label") if isinstance(server, dict) else None
    return oneline(str(label)) if label else "the server"


def server_name(summary: Summary) -> str:
    """The server's name without its version, for sentences."""
    return server_label(summary).partition("/")[0] or "the server"


def answer(summary: Summary) -> str:
    """The one question's answer as a sentence: what one more connection costs, and where; of two levels what one takes."""
    cost, sampled = summary.cost, sides(summary.environment)
    if summary.connections.opened and not summary.heartbeats.answered:
        return "What one more connection costs is not known: nothing ever answered."
    if not_seen := _server_not_seen(summary):
        return not_seen
    end = "for this end of it" if sampled.far is None else "for its end of it"
    ends = "for each of its two ends" if sampled.ends == 2 else end
    parts = [
        f"{with_error(one)} {where}"
        for one, where in (
            (cost.server_user, f"in {server_name(summary)}"),
            (cost.kernel, f"in the kernel {ends}"),
            (cost.generator_user, "in asyncli"),
            (cost.residual, "left over"),
        )
        # The table has a remainder that is less than nothing.
        if one is not None and (one is not cost.residual or one.ci95[1] >= 0)
    ]
    grew = next((one for one in summary.findings if one.code == "cost_grew"), None)
    if grew is not None and cost.server_user is None:
        return oneline(f"{grew.evidence[:1].upper()}{grew.evidence[1:]}.")
    total = cost.host_total
    each = "One more connection costs"
    first = next((one for one in (cost.server_user, cost.kernel, total) if one is not None), None)
    if first is not None and first.of_levels:
        each = "With what the first ones take once, a connection costs"
    if total is not None and parts and (total.ci95[0] <= 0 or total.of_levels):
        # Whatever else the host did is in its memory too, or hides the connections there: lead with what was measured apart.
        parts = [one for one in parts if not one.endswith("left over")]
        whole = f"the whole host's memory moved too much to tell (± {bytes_each(total.half_width)})"
        if total.ci95[0] > 0:
            whole = f"{sampled.host} in all took {with_error(total)}, with what its other programs took or gave back meanwhile"
        return f"{each} {', '.join(parts)}; {whole}."
    if total is not None:
        whole = f"{each} {with_error(total)} on {sampled.host}"
        return f"{whole}: {', '.join(parts)}." if parts else f"{whole}."
    if parts:
        return f"{each} {', '.join(parts)}; {sampled.host}'s total is not known."
    known = next((one for one in summary.findings if one.code in ("cost_few_points", "cost_not_sampled")), None)
    if summary.connections.held and known is not None:
        return f"What one more connection costs is not known: {known.evidence}; {known.remedy}."
    return "What one more connection costs is not known: no connections were held."


def _server_not_seen(summary: Summary) -> str:
    """In place of an answer about asyncli and the kernel alone: why the server's cost is not known, and the command that tells;
    "" where its processes were seen, or nothing was held."""
    seen = all(one.code != "server_processes_unknown" for one in summary.findings)
    if seen or summary.cost.server_user is not None or not summary.connections.held:
        return ""
    why_not, command = command_for_the_server(summary.plan, summary.environment)
    host = sides(summary.environment).host
    total, kernel, known = summary.cost.host_total, summary.cost.kernel, ""
    if total is not None and total.ci95[0] > 0:
        known = f" (on {host} it costs {with_error(total)} in all)"
    elif kernel is not None and kernel.ci95[0] > 0:
        known = f" (an end of it costs {with_error(kernel)} in the kernel of {host})"
    told = f"What one more connection costs {server_name(summary)} is not known, as {why_not}{known}. This tells:"
    return f"{told} {oneline(command)}"


def room(summary: Summary) -> str:
    """The other half of the answer: how many would fit and what gives out first, or what gave way; "" where neither is known."""
    found, sentences = summary.forecast, []
    if summary.connections.opened and (instead := next((one for one in summary.findings if one.code == gave_way.code), None)):
        return oneline(f"{instead.evidence[:1].upper()}{instead.evidence[1:]}.")
    if not summary.connections.held:
        # Of a server that held none at the end, what else would give out is idle talk.
        return ""
    here, alone = found.memory, found.server_memory
    if here is not None and here.connections is not None:
        sentences.append(f"This host has memory for about {about(here)} like these, both ends on it")
    if alone is not None and alone.connections is not None:
        # Which of the bytes left over would be the server's is not known: a range, and no number to copy.
        sentences.append(
            f"a server of its size with its clients elsewhere for {about_to(alone)}"
            if sentences
            else f"A server like this host, alone, has memory for {about_to(alone)}"
        )
    first = first_ceiling(summary)
    if first is not None and first.connections is not None and first is not here:
        joined = "; before that " if sentences else "First "
        unread = not {"descriptors", "worker_connections"} & {one.name for one in found.ceilings}
        but = "; the server's own limits are not known" if unread else ""
        return f"{', '.join(sentences)}{joined}{ceiling(first.name)} would give out, at about {about(first)}{but}."
    return f"{', '.join(sentences)}." if sentences else ""


def first_ceiling(summary: Summary) -> Ceiling | None:
    """What gives out first; None where no limit is known."""
    return next((one for one in summary.forecast.ceilings if one.name == summary.forecast.first), None)


_NOT_THE_SERVER = "Do not rely on these numbers: the generator was the limit (see the findings)."


def doubts(summary: Summary) -> list[str]:
    """What must be known before the answer is believed, the gravest first."""
    found = []
    if summary.generator.saturated:
        found.append(_NOT_THE_SERVER)
    shared = next((one for one in summary.findings if one.code == "host_shared"), None)
    if shared is not None:
        found.append(f"But we were not alone: {oneline(shared.evidence)}. To know it: {oneline(shared.remedy)}.")
    total, few = summary.cost.host_total, next((one for one in summary.findings if one.code == "cost_few_points"), None)
    if few is not None and total is not None and total.of_levels and few.remedy:
        found.append(f"The ramp was too short for the cost of one more alone. To know it: {few.remedy}.")
    elif total is not None and total.ci95[0] > 0 and total.half_width > _WIDE_INTERVAL * abs(total.bytes_per_connection):
        found.append("The interval is wide: more connections, a longer ramp or --plateaus 8 make it narrower.")
    return found


def _answer(summary: Summary) -> Iterable[RenderableType]:
    from rich.text import Text

    # What has no end yet is none of the four: it may be running, or have been stopped at once.
    word = summary.verdict if summary.run.complete else "incomplete"
    yield Text.assemble((word.upper(), VERDICT_STYLE[word]), "  ", oneline(why(summary)))
    yield ""
    yield Text(answer(summary), "bold")
    if not summary.generator.saturated and (more := room(summary)):
        yield Text(more)
    for doubt in doubts(summary):
        yield Text(doubt, "bold magenta" if doubt == _NOT_THE_SERVER else "yellow")
    yield ""


def _cost(summary: Summary, verbose: bool) -> Iterable[RenderableType]:
    from rich.text import Text

    held, where = summary.connections.held, sides(summary.environment)
    rows = [one for one in cost_rows(summary.cost, server_name(summary), where) if one.name != "kernel_queued"]
    if not any(one.cost for one in rows):
        return
    table = _table("Cost of a connection", "bytes", "95 % interval", "fixed", f"at {format_count(held)}")
    for row in rows:
        if row.cost is None:
            table.add_row(Text(row.label), *(Text("-", "dim") for _ in range(4)))
            continue
        style = "bold" if row.name == "host_total" else ""
        table.add_row(
            Text(row.label, style),
            Text(f"{row.cost.bytes_per_connection:z,.0f}", style or "cyan"),
            interval(*row.cost.ci95),
            row.of_ends(row.fixed),
            row.of_ends(row.at(held)),
        )
    yield table
    if verbose:
        methods = _methods([(row.label.partition(",")[0], row.cost) for row in rows if row.name != "residual"])
        yield _note(Text(methods, "dim"))
        yield _note(Text(fixed_is(rows), "dim"))
        if any(one.code == "plateau_unsettled" for one in summary.findings):
            yield _note(Text(f"Settled: {SETTLED}.", "dim"))
        if stays := _stays(summary):
            yield _note(Text(stays))
    yield ""


def _stays(summary: Summary) -> str:
    """What the drain did not give back; "" where nothing was read after it."""
    left = summary.residue
    parts = [
        f"{format_bytes(value)} {where}" if value >= 0 else f"nothing that shows {where} ({kept_less(value)})"
        for value, where in (
            (left.server_user, f"in {server_name(summary)}"),
            (left.kernel, "in the kernel"),
            (left.host_total, f"on {sides(summary.environment).host} in all"),
        )
        if value is not None
    ]
    return f"Kept {left.after_s:.0f} s after the drain: {', '.join(parts)}." if parts and left.after_s is not None else ""


def _room(summary: Summary) -> Iterable[RenderableType]:
    from rich.text import Text

    found = summary.forecast
    ceilings = [one for one in found.ceilings if one.connections is not None]
    if found.server_memory is not None and found.server_memory.connections is not None:
        ceilings.append(found.server_memory)
    if not ceilings or not summary.connections.opened:
        return
    table = _table("Room for connections", "at most", "95 % interval", width=44)
    for one in sorted(ceilings, key=lambda one: one.connections or 0.0):
        table.add_row(Text(ceiling(one.name)), about(one), about_to(one))
    yield table
    yield ""


def _drift(summary: Summary, verbose: bool) -> Iterable[RenderableType]:
    from rich.text import Text

    if not summary.drift:
        return
    names = {"server_user": server_name(summary), "kernel": "kernel", "generator_user": "asyncli", "host_total": "host in all"}
    known = {name: one for name, one in summary.drift.items() if one.ci95 is not None}
    if not verbose:
        # How little is known of what others move, or of asyncli's own, is no news.
        known = {name: one for name, one in known.items() if name in ("server_user", "kernel") or one.verdict != "too_short"}
    rest = ", ".join(names[name] for name in summary.drift if name not in known)
    heading = Text("Memory over the hold", "bold")
    if rest and not verbose:
        heading.append(f" (too short to say: {rest})", "not bold dim")
    yield Indented(heading, 2)
    for name, one in known.items():
        style = "bold red" if one.verdict == "grows" and name != "generator_user" else ""
        yield _note(Text.assemble(f"{names[name]}: ", (drifting.in_words(one), style)))
    if not verbose:
        return
    if rest:
        yield _note(Text(f"{rest}: too short a hold to say whether memory grows", "dim"))
    if known:
        yield _note(Text(f"Rule: {drifting.RULE}.", "dim"))
    yield ""


def _methods(rows: Sequence[tuple[str, Cost | None]]) -> str:
    """How the costs were found; what several share is said once."""
    heads: dict[str, list[str]] = {}
    for label, one in rows:
        if one is not None:
            mark = LEVELS if one.of_levels else "linear regression"
            head, _, tail = one.method.partition(mark)
            heads.setdefault(head + mark, []).append(f"for {label}{tail}")
    said = [f"{head}; {'; '.join(tails)}." for head, tails in heads.items()]
    first = said[0][:1].upper() + said[0][1:] if said[0].startswith(LEVELS) else f"Slopes: {said[0]}"
    return " ".join([first, *(one[:1].upper() + one[1:] for one in said[1:])])


def _connections(summary: Summary) -> Iterable[RenderableType]:
    from rich.text import Text

    c = summary.connections
    # Narrower than the others: six counts of seven digits must fit beside it in 80 columns.
    table = _table("Connections", "asked", "opened", "held", "lost", "reopened", "failed", width=18)
    bad = ["bold red" if n else "green" for n in (c.lost, c.reopened, c.failed)]
    held = "bold green" if c.held >= c.requested else "bold red"
    numbers = (c.requested, c.opened, c.held, c.lost, c.reopened, c.failed)
    styles = ("", "", held, bad[0], "" if c.reopened else "green", bad[2])
    table.add_row("", *(Text(format_count(n), style) for n, style in zip(numbers, styles, strict=True)))
    yield table
    for what, counts in (("lost", c.deaths), ("failed", c.failures)):
        if counts:
            listed = ", ".join(f"{cause} {format_count(count)}" for cause, count in counts.items())
            yield _note(Text.assemble(f"{what} by cause: ", (listed, "red")))
    ramp = summary.ramp
    achieved = "-" if ramp.achieved_per_s is None else f"{ramp.achieved_per_s:,.0f}/s"
    peak = format_count(c.established_peak)
    yield _note(Text(f"ramp: {ramp.asked_per_s:,.0f}/s asked, {achieved} achieved; at most {peak} open at once"))


def _what_happened(summary: Summary) -> Iterable[RenderableType]:
    """Connections, heartbeats, counts and processes: what is as it should be in a line, what is not in its table."""
    c, ramp, r, beats = summary.connections, summary.ramp, summary.reconciliation, summary.heartbeats
    if c.lost or c.failed or c.reopened or c.held < c.requested:
        yield from _connections(summary)
    else:
        achieved = "-" if ramp.achieved_per_s is None else f"{ramp.achieved_per_s:,.0f}/s"
        counts = f"{format_count(c.opened)} opened at {achieved} ({ramp.asked_per_s:,.0f}/s asked)"
        yield _line("Connections", f"{counts}, none lost or failed")
    yield from _beats(summary, verbose=False)
    if r.agrees:
        pairs = (
            (r.client_held, r.server_active, "open"),
            (c.opened, r.accepts_delta, "accepted"),
            (beats.answered, r.requests_delta, "answered"),
        )
        counted = [f"{format_count(ours or 0)} {what}" for ours, theirs, what in pairs if theirs is not None]
        how = agreement(r.agrees, summary.findings).removeprefix("They ").partition(" (see")[0]
        yield _line(f"Counts {how}", ", ".join(counted))
    else:
        yield from _counts(summary, verbose=False)
    used = "; ".join(f"{name.rpartition(' (')[0]} {cpu}, {memory}" for name, _, _, memory, cpu in _processes(summary))
    yield _line("CPU and memory", f"{used}{', the limit of this run' if summary.generator.saturated else ''}")
    yield ""


def _line(heading: str, words: str) -> RenderableType:
    from rich.text import Text

    return Indented(Text.assemble((heading, "bold"), f": {words}"), 2)


def _beats(summary: Summary, verbose: bool) -> Iterable[RenderableType]:
    from rich.text import Text

    beats, ramp = summary.heartbeats, summary.ramp
    table = _table("Heartbeats", "p50", "p90", "p99", "p99.9", "max")
    latency, late = beats.latency_ms, beats.lateness_ms
    table.add_row("latency", *(milliseconds(v) for v in (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)))
    for label, one in (("lateness", late), *([("lateness of the ramp", ramp.lateness_ms)] if verbose else ())):
        table.add_row(label, milliseconds(one.p50), "", milliseconds(one.p99), "", milliseconds(one.max))
    yield table
    counted = summary.reconciliation.agrees and summary.reconciliation.requests_delta is not None
    if not verbose and counted and beats.sent == beats.answered == beats.by_status.get("200"):
        return  # the line of the counts says it
    statuses = ", ".join(f"{format_count(count)} × {status}" for status, count in beats.by_status.items())
    counts = f"{format_count(beats.sent)} sent, {format_count(beats.answered)} answered, {format_count(beats.failed)} failed"
    yield _note(Text(counts + (f"; status {statuses}" if statuses else "")))
    if verbose:
        yield _note(Text(POOLED, "dim"))


def _counts(summary: Summary, verbose: bool) -> Iterable[RenderableType]:
    from rich.text import Text

    r, beats = summary.reconciliation, summary.heartbeats
    if r.agrees is None and r.accepts_delta is None:
        return
    table = _table("Counts compared", "asyncli", server_name(summary))
    for label, ours, theirs in (
        ("open, active", r.client_held, r.server_active),
        ("opened, accepted", summary.connections.opened, r.accepts_delta),
        ("opened, handled", summary.connections.opened, r.handled_delta),
        ("answers, requests (polls too)", beats.answered, r.requests_delta),
    ):
        table.add_row(label, or_dash(ours, ",d"), or_dash(theirs, ",d"))
    yield table
    style = {True: "green", False: "bold red", None: ""}[r.agrees]
    rule = f" Rule: {RECONCILE_RULE}." if verbose else ""
    yield _note(Text.assemble((agreement(r.agrees, summary.findings), style), (f".{rule}", "dim")))
    if verbose:
        yield ""


def _processes(summary: Summary) -> Iterable[tuple[str, str, str, str, str]]:
    """Of the server, where it was seen, and of asyncli: name, number, memory before and at the hold's end, CPU."""
    server, generator = summary.server, summary.generator
    memory, kind = (server.pss_bytes, "PSS") if server.pss_bytes.hold_end is not None else (server.rss_bytes, "RSS")
    if memory.hold_end is not None or server.processes.hold_end is not None:
        number = or_dash(server.processes.hold_end, ",.0f")
        yield f"{server_name(summary)} ({kind})", number, _bytes(memory.baseline), _bytes(memory.hold_end), spent(server.cpu_s)
    more = "-" if generator.user_bytes is None else f"+ {format_bytes(generator.user_bytes)}"
    cpu = "-" if generator.cpu_s is None else format_duration(generator.cpu_s)
    yield "asyncli (USS)", or_dash(generator.processes, ",d"), "", more, cpu


def _machines(summary: Summary) -> Iterable[RenderableType]:
    from rich.text import Text

    generator, where = summary.generator, summary.environment
    table = _table("Processes", "number", "memory before", "at the hold's end", "CPU")
    for name, *row in _processes(summary):
        table.add_row(Text(name), *row)
    yield table
    per_beat = generator.cpu_us_per_heartbeat
    notes = []
    if generator.user_bytes_per_connection is not None:
        notes.append(f"{bytes_each(generator.user_bytes_per_connection)} a connection held (what it takes once included)")
    if per_beat is not None:
        notes.append(f"{per_beat:,.1f} µs of CPU a heartbeat")
    notes.append("the limit of this run" if generator.saturated else "not the limit")
    style = "bold magenta" if generator.saturated else ""
    yield _note(Text.assemble("asyncli: ", ", ".join([*notes[:-1], ""]), (notes[-1], style)))
    yield _note(Text("At the hold's end: the last reading. What the cost table has is its line's.", "dim"))
    memory_bytes = where.get("memory_bytes")
    facts = [
        server_label(summary) if server_label(summary) != "the server" else "",
        f"Linux {where.get('kernel')}",
        f"Python {where.get('python')}",
        f"{where.get('cpus')} CPUs",
        format_bytes(memory_bytes) if isinstance(memory_bytes, int | float) else "",
        _many(where.get("workers"), "worker", "workers"),
        _many(where.get("sources"), "source address", "source addresses"),
    ]
    yield _note(Text(oneline(", ".join(fact for fact in facts if fact and "None" not in fact)), "dim"))
    for line in _hosts(where.get("cluster")):
        yield _note(Text(oneline(line), "dim"))
    if said := by_agent(where):
        yield _note(Text(said, "dim"))
    yield ""


def _hosts(cluster: object) -> Iterable[str]:
    """Each host of a fleet: its share, and how its clock stood to the session's."""
    hosts = cluster.get("hosts") if isinstance(cluster, dict) else None
    for one in hosts if isinstance(hosts, list) else ():
        share = f"{one.get('name')}: {format_count(one.get('connections') or 0)} connections"
        said = [share, _many(one.get("workers"), "worker", "workers")]
        offset, error = one.get("clock_offset_s"), one.get("clock_uncertainty_s")
        if isinstance(offset, int | float) and isinstance(error, int | float):
            said.append(f"clock {offset:+,.4f} s ± {1000 * error:.2f} ms")
        if one.get("came_later"):
            said.append("in the place of what was lost")
        yield ", ".join(one for one in said if one)


def by_agent(where: Environment) -> str:
    """Which agent sampled the server's host, what that is, and how far its clock is known; "" where none did."""
    agent = where.get("agent")
    if not isinstance(agent, dict):
        return ""
    error, drift = (agent.get(key) for key in ("clock_error_s", "clock_drift_ppm"))
    clock = f"its clock known to ± {format_duration(error)}" if isinstance(error, float) else "its clock not known"
    clock += f", drifting by {drift:.2g} ppm" if isinstance(drift, float) else ""
    memory_bytes = agent.get("memory_bytes")
    facts = [
        "this host" if agent.get("same_host") is True else str(agent.get("host")),
        f"Linux {agent.get('kernel')}",
        f"{agent.get('cpus')} CPUs",
        format_bytes(memory_bytes) if isinstance(memory_bytes, int | float) else "",
    ]
    said = ", ".join(fact for fact in facts if fact and "None" not in fact)
    return oneline(f"Server's host by its agent ({agent.get('url')}): {said}; {clock}")


def _many(number: object, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}" if number else ""


def _found(summary: Summary) -> list[Finding]:
    shown = [one for one in summary.findings if not one.code.startswith("verdict_")]
    # Nothing connected: that nothing could be measured of it goes without saying.
    return [one for one in shown if one.severity != "info"] if summary.verdict == "untested" else shown


def _findings(summary: Summary) -> Iterable[RenderableType]:
    from rich.text import Text

    if shown := _found(summary):
        yield Text("Findings", "bold")
        yield from (_note(_finding(one)) for one in shown)
        yield ""


def _findings_and_files(summary: Summary, path: str) -> Iterable[RenderableType]:
    """What must be known or mended, and where the rest is."""
    import shlex

    from rich.text import Text

    # The doubts have said it in full.
    found, run = [one for one in _found(summary) if one.code != "host_shared"], summary.run
    told = [one for one in found if one.severity != "info" or one.code == "limit_kept"]
    yield from (_note(_finding(one)) for one in told)
    if told:
        yield ""
    notes = len(found) - len(told)
    more = f", with {notes} more {'note' if notes == 1 else 'notes'}" if notes else ""
    yield Text.assemble(f"Run {run.id} of {run.started}, {format_duration(run.duration_s)}: ", (path, "bold"), overflow="fold")
    yield Text.assemble(f"All of it{more}: ", (f"asyncli report {shlex.quote(path)} -v", "bold"), overflow="fold")
    yield Text.assemble("How it is measured: ", ("asyncli explain cost", "bold"))


def _finding(finding: Finding) -> Text:
    from rich.text import Text

    text = Text.assemble((finding.severity, SEVERITY_STYLE[finding.severity]), f"  {oneline(finding.evidence)}")
    if finding.remedy:
        # On a line of its own: a command in it can be copied.
        text.append(f"\nremedy: {oneline(finding.remedy)}", "dim")
    return text


def _epilogue(summary: Summary, path: str) -> Iterable[RenderableType]:
    import shlex

    from rich.text import Text

    run = summary.run
    spans = [f"{one.name} {_lasted(run, one)}" for one in run.phases]
    lasted = ": ".join([format_duration(run.duration_s), *([", ".join(spans)] if spans else [])])
    yield Text(f"Run {run.id} of {run.started}, {lasted}.", "dim")
    yield Text(f"Verdict by the rule: {VERDICT_RULE}.", "dim")
    yield ""
    yield Text.assemble("Run file        ", (path, "bold"), overflow="fold")
    yield Text.assemble("Print it again  ", (f"asyncli report {shlex.quote(path)}", "bold"), overflow="fold")


def _lasted(run: RunPart, one: PhaseSpan) -> str:
    """How long a phase was; what of it was an interruption is no part of that."""
    if one.end_s is None:
        return "not ended"
    measured = max(0.0, one.end_s - one.start_s - left_out_s(run.gaps, one.start_s, one.end_s))
    gap_s = one.end_s - one.start_s - measured
    return format_duration(measured) + (f" (and {format_duration(gap_s)} of gap)" if gap_s > 0 else "")


def _note(text: Text) -> RenderableType:
    """Lines under a table, set in."""
    return Indented(text, 2, first=2)


def _table(heading: str, *columns: str, width: int = 24) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(Text(heading, "bold not dim"), min_width=width, no_wrap=True)
    for column in columns:
        table.add_column(Text(column), justify="right", no_wrap=True)
    return table


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)
