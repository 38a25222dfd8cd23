"""A summary as sentences: verdict, cost per connection, capacity, doubts."""

from __future__ import annotations

import shlex

from asyncli.analysis.drift import in_words
from asyncli.analysis.slope import Cost
from asyncli.findings.drift import drift_grows
from asyncli.findings.forecast import forecast_far, gave_way
from asyncli.findings.host import host_shared
from asyncli.findings.server import OF_ANOTHER
from asyncli.model.records import Finding
from asyncli.model.text import first_part, oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_many
from asyncli.model.values import AGENT_PORT, parse_target
from asyncli.report.format import (
    about,
    about_to,
    bytes_each,
    capitalised,
    ceiling,
    interval_bytes,
    is_unknown,
    with_error,
    with_streams,
)
from asyncli.report.summary import CostPart, Summary

# An interval beyond this share of its slope is called wide.
_WIDE_INTERVAL = 0.25
_ENDS = {2: "two", 3: "three", 4: "four"}


def worst(summary: Summary) -> Finding | None:
    """The worst finding beside a pass: an error, a leak, else the first warning; None if there is none."""
    if summary.verdict != "passed":
        return None
    serious = [one for one in summary.findings if one.severity != "info" and not one.code.startswith("verdict_")]
    errors = [one for one in serious if one.severity == "error"]
    leak = growth(summary)
    if leak is not None and not errors:
        return leak
    return next(iter(errors or serious), None)


def beside_pass(summary: Summary) -> str:
    """How many errors and warnings stand beside a pass, and the worst: ``with 2 warnings (drift_grows)``; "" if none does."""
    finding = worst(summary)
    if finding is None:
        return ""
    counts = [(sum(one.severity == severity for one in summary.findings), severity) for severity in ("error", "warning")]
    of_each = [format_many(count, severity) for count, severity in counts if count]
    # Of one alone there is no worse.
    code = finding.code if sum(count for count, _ in counts) == 1 else f"worst: {finding.code}"
    return f"with {' and '.join(of_each)} ({code})"


def why_with_worst(summary: Summary) -> str:
    """The reason of the verdict; of a pass also an error beside it, by its first clause."""
    finding = worst(summary)
    if finding is None or finding.severity != "error":
        return summary.why
    return f"{summary.why}; but {first_part(oneline(finding.evidence), '; ')}"


def one_line(summary: Summary, *, warnings: bool = False) -> str:
    """The verdict and the cost in one line. An error beside a pass is told with it; with ``warnings`` these are too."""
    finding = worst(summary)
    line = f"{summary.verdict}: {summary.why}"
    if finding is not None and (warnings or finding.severity == "error"):
        line = f"{summary.verdict} {beside_pass(summary)}: {why_with_worst(summary)}"
    total, server = summary.cost.host_total, summary.cost.server_user
    if summary.verdict == "untested":
        return oneline(line)
    for one, where in ((total, f"on {sides(summary.environment).host}"), (server, f"in {server_name(summary)}")):
        # Two levels of the whole host include other programs.
        if one is not None and one.ci95[0] > 0 and not (one is total and one.of_levels):
            streams = with_streams(summary.cost.streams)
            each = f"a connection{streams}, first use included," if one.of_levels else f"one more connection{streams}"
            line += f"; {each} costs {with_error(one)} {where}"
            break
    if growth(summary) is not None:
        line += f"; memory of {server_name(summary)} {in_words(summary.drift['server_user'])} of the hold"
    return oneline(line)


def server_label(summary: Summary) -> str:
    """The server with its version: ``nginx/1.22.1``, ``built-in server``, or ``the server`` if unknown."""
    server = summary.environment.get("server")
    label = server.get("label") if isinstance(server, dict) else None
    return oneline(str(label)) if label else "the server"


def server_name(summary: Summary) -> str:
    return server_label(summary).partition("/")[0] or "the server"


def memory_name(summary: Summary) -> str:
    """The name of the server's memory: ``nginx``, or ``nginx (RSS)`` if only RSS is known."""
    memory, kind = summary.server.memory
    return f"{server_name(summary)} (RSS)" if kind == "RSS" and memory.hold_end is not None else server_name(summary)


def answer(summary: Summary) -> str:
    """The cost of a connection as a sentence."""
    cost, where = summary.cost, sides(summary.environment)
    if summary.connections.opened != 0 and summary.verdict == "untested":
        # The reason without its numbers, which the verdict has just given.
        return f"Cost per connection unknown: {first_part(summary.why, ':')}."
    if unknown := _server_unknown(summary):
        return unknown
    end = "for this end of it" if where.far is None else "for its end of it"
    ends = f"for each of its {_ENDS[cost.ends]} ends" if cost.ends > 1 else end
    total = cost.host_total
    # The host's memory includes other programs: lead with the parts.
    hidden = total is not None and (total.ci95[0] <= 0 or total.of_levels)
    rest = cost.residual if not hidden and cost.residual is not None and cost.residual.ci95[1] >= 0 else None
    # A slope includes growth in the ramp.
    moves = {"grows": " (growth included)", "shrinks": " (shrinking included)"}.get(_moves(summary), "")
    places = (
        (cost.server_user, f"in {server_name(summary)}{moves}"),
        (cost.behind or None, f"in {' and '.join(cost.behind_programs or [])} behind it"), (cost.kernel, f"in the kernel {ends}"),
        (cost.generator_user, "in asyncli"), (rest, _left_over(rest)),
    )  # fmt: skip
    # With the rest, the parts add up to the total.
    adds_up = total is not None and rest is not None
    parts = [
        f"{with_error(one, _times_in_total(cost, one) if adds_up else 0)} {place}"
        for one, place in places
        if one is not None and (adds_up or not is_unknown(one))
    ]
    unsure = [
        f"{place} ({interval_bytes(one)}{': it shrank' if one.ci95[1] < 0 else ''})"
        for one, place in places
        if one is not None and is_unknown(one)
    ]
    if cost.server_user is None and (found := summary.finding("cost_short_lived", "cost_grew")) is not None:
        return oneline(f"{capitalised(found.evidence, server_name(summary))}.")
    streams = with_streams(cost.streams)
    each = f"One more connection{streams} costs"
    first = next((one for one in (cost.server_user, cost.kernel, total) if one is not None), None)
    if first is not None and first.of_levels:
        each = f"A connection{streams}, first use included, costs"
    if total is not None and not hidden:
        whole = f"{each} {with_error(total)} on {where.host}"
        return f"{whole}: {', '.join(parts)}." if parts else f"{whole}."
    if total is not None and total.ci95[0] <= 0:
        unsure.append(f"on {where.host} in all ({interval_bytes(total)}, other programs included)")
    if parts or unsure:
        sentences = [f"{each} {', '.join(parts)}"] if parts else []
        if unsure:
            sentences.append(f"{'' if parts else f'The cost of a connection{streams} '}cannot be told: {', '.join(unsure)}")
        missing = [f"the cost in {server_name(summary)}"] if cost.server_user is None else []
        if total is None:
            missing.append(f"the total of {where.host}")
        elif total.ci95[0] > 0:
            sentences.append(f"{where.host} in all took {with_error(total)}, other programs included")
        sentences += [f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} unknown"] if missing else []
        return f"{'; '.join(sentences)}."
    known = summary.finding("cost_few_points", "cost_not_sampled")
    if summary.connections.held and known is not None:
        return f"Cost per connection unknown: {known.evidence}; {known.remedy}."
    return "Cost per connection unknown: no connections were held."


def _times_in_total(cost: CostPart, part: Cost) -> int:
    """How often ``part`` is in the total; 0 of one below zero, which is no part of it."""
    if part is cost.residual and part.bytes_per_connection < 0:
        return 0
    return cost.ends if part is cost.kernel else 1


def _left_over(rest: Cost | None) -> str:
    """Memory is not left over below zero: then the parts are more than the total, within its error."""
    if rest is None or rest.bytes_per_connection >= 0:
        return "left over"
    return f"left over (the parts exceed the total by {bytes_each(-rest.bytes_per_connection)}, which is within its error)"


def _server_unknown(summary: Summary) -> str:
    """Why the server's cost is unknown and how to measure it; "" if its processes were seen or nothing was held."""
    unseen = summary.finding("server_processes_unknown") is not None
    if not unseen or summary.cost.server_user is not None or not summary.connections.held:
        return ""
    reason, remedy = _server_remedy(summary)
    host = sides(summary.environment).host
    total, kernel, known = summary.cost.host_total, summary.cost.kernel, ""
    if total is not None and total.ci95[0] > 0:
        known = f" (on {host} it costs {with_error(total)} in all)"
    elif kernel is not None and kernel.ci95[0] > 0:
        known = f" (each end of it costs {with_error(kernel)} in the kernel of {host})"
    return oneline(f"Cost per connection unknown for {server_name(summary)}: {reason}{known}. To measure it: {remedy}")


def _server_remedy(summary: Summary) -> tuple[str, str]:
    """(Why the server's memory could not be read, how to read it)."""
    server, agent = summary.environment.get("server"), isinstance(summary.environment.get("agent"), dict)
    hidden = isinstance(server, dict) and server.get("hidden") is True
    if not agent and not sides(summary.environment).server:
        host = parse_target(summary.plan["urls"][0]).host
        at = f"http://{f'[{host}]' if ':' in host else host}:{AGENT_PORT}"
        return "it runs on another host", f"start 'asyncli agent' there, and soak with --agent {shlex.quote(at)}"
    program = "the agent" if agent else "the soak"
    if hidden:
        below = summary.finding("needs_root") is not None
        return "its processes belong to another user", "see the remedy below" if below else f"run {program} as root (sudo)"
    return "its processes were not found", f"start {program} with --server-pid PID"


def growth(summary: Summary) -> Finding | None:
    """The certain growth of the server's memory with time. Other memory may grow by other programs."""
    return next((one for one in summary.findings if one.code == drift_grows.code and one.fields["metric"] == "server_user"), None)


def _moves(summary: Summary) -> str:
    """The verdict of the server's drift, or ""."""
    return summary.drift["server_user"].verdict if "server_user" in summary.drift else ""


def stands_first(summary: Summary, one: Finding) -> bool:
    """Whether the first sentences on a terminal say all of this finding."""
    first = None if summary.generator.saturated else summary.finding(gave_way.code)
    incidents = [(each["why"], [*each["others"]]) for each in one.fields.get("incidents") or ()]
    same = first is not None and incidents == [(first.fields["why"], [])]
    same = same or (first is not None and one.code in (first.code, first.fields["what"]))
    return same or one is growth(summary) or one.code in (host_shared.code, "cost_short_lived", *OF_ANOTHER)


def with_remedy(summary: Summary, one: Finding) -> str:
    evidence = capitalised(one.evidence, server_name(summary))
    return oneline(f"{evidence}.{f' Remedy: {one.remedy}.' if one.remedy else ''}")


def as_doubt(finding: Finding, sentences: str) -> str:
    """``sentences`` as the finding's first telling, marked like those of the list: the first line counts both."""
    return sentences if finding.severity == "info" else f"{finding.severity.capitalize()}: {sentences}"


def headroom(summary: Summary) -> str:
    """How many connections fit and the first limit, or the measured bottleneck; "" if unknown."""
    found, sentences = summary.forecast, []
    if summary.connections.opened and (bottleneck := summary.finding(gave_way.code)) is not None:
        return with_remedy(summary, bottleneck)
    if not summary.connections.held:
        return ""
    here, alone = found.memory, found.server_memory
    if here is not None and here.connections is not None:
        # Beside a range that begins lower, this is a range too.
        beside = alone is not None and alone.ci95 is not None and alone.ci95[0] < here.connections
        many = about_to(here) if beside else f"about {about(here)}"
        sentences.append(f"This host has memory for {many} such connections with both ends on it")
    if alone is not None and alone.connections is not None:
        # A range: the server's share of the residual is unknown.
        host = "" if sentences else "A server like this host has memory "
        sentences.append(f"{host}for {about_to(alone)} with the clients elsewhere")
    if sentences and (far := summary.finding(forecast_far.code)) is not None:
        sentences[0] += f" ({far.fields['times']:,.0f} times the measured count)"
    if sentences and growth(summary) is not None:
        sentences[0] = f"Without that growth, {sentences[0][:1].lower()}{sentences[0][1:]}"
    first = next((one for one in found.ceilings if one.name == found.first), None)
    if first is not None and first.connections is not None and first is not here:
        before = f"{', or '.join(sentences)}. " if sentences else ""
        names, but = {one.name for one in found.ceilings}, ""
        if "earlier_memory" in names:
            return (
                f"{before}The first known limit is {ceiling(first.name)}, at about {about(first)}; how many fit into the memory "
                f"that {server_name(summary)} had before the first connect is unknown."
            )
        # nginx's and HAProxy's configuration is read; other servers' descriptors only.
        if names.isdisjoint(("worker_connections", "maxconn")):
            others = "descriptors" in names
            but = "; no other limit of the server is known" if others else "; the server's own limits are unknown"
        return f"{before}The first limit is {ceiling(first.name)}, at about {about(first)}{but}."
    return f"{', or '.join(sentences)}." if sentences else ""


NOT_THE_SERVER = (
    "Do not rely on latencies and losses: asyncli was the limit (see the findings). Memory per connection does not "
    "depend on it."
)


def doubts(summary: Summary) -> list[str]:
    """Reasons to doubt the answer, worst first."""
    found = []
    if summary.generator.saturated:
        found.append(NOT_THE_SERVER)
    if (shared := summary.finding(host_shared.code)) is not None:
        alone = f"Not alone on the host: {oneline(shared.evidence)}. Remedy: {oneline(shared.remedy)}."
        found.append(as_doubt(shared, alone))
    if _moves(summary) == "shrinks":
        shrinks = in_words(summary.drift["server_user"])
        found.append(f"Memory of {server_name(summary)} {shrinks} of the hold: what it frees hides part of its cost.")
    found += [f"{oneline(one.evidence)}." for one in summary.findings if one.code == "upstream_sockets"]
    found += [with_remedy(summary, one) for one in summary.findings if one.code == "cost_if_fresh"]
    total, few = summary.cost.host_total, summary.finding("cost_few_points")
    if few is not None and total is not None and total.of_levels and few.remedy:
        found.append(f"The ramp was too short for a slope: first use is included. For a slope: {few.remedy}.")
    elif total is not None and total.ci95[0] > 0 and total.half_width > _WIDE_INTERVAL * abs(total.bytes_per_connection):
        found.append("The interval is wide: more connections, a longer ramp or --plateaus 8 narrow it.")
    return found
