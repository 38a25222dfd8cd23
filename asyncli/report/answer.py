"""A summary as sentences: verdict, capacity, doubts. :mod:`asyncli.report.cost_answer` has the cost
of a connection.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec import UnsetType

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.drift import in_words
from asyncli.analysis.slope import Cost
from asyncli.findings.collected import heap_of_a_part, live_rises, memory_limit_reached
from asyncli.findings.cost import cost_bent, cost_if_fresh
from asyncli.findings.drift import drift_grows
from asyncli.findings.forecast import forecast_far, gave_way
from asyncli.findings.host import host_shared, upstream_sockets
from asyncli.findings.run import command_failed
from asyncli.findings.server import OF_ANOTHER
from asyncli.findings.unknown import nothing_to_measure
from asyncli.model.records import Finding
from asyncli.model.text import first_part, oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_count, format_many
from asyncli.report.format import about, about_to, capitalised, ceiling, with_error, with_streams
from asyncli.report.summary import Summary

# An interval beyond this share of its slope is called wide.
_WIDE_INTERVAL = 0.25
# What may stand beside a pass; the worse first.
_BESIDE = ("error", "warning")


def worst(summary: Summary) -> Finding | None:
    """The worst finding beside a pass: an error, a command of the plan that failed, an event that
    took nobody, a leak, else the first warning; None if there is none.
    """
    if summary.verdict != "passed":
        return None
    # The verdict tells of those that decide it.
    beside = [finding for finding in summary.findings if not finding.code.startswith("verdict_")]
    error = _first_of_severity(beside, "error")
    if error is not None:
        return error
    # Without its deploy a rehearsal shows nothing of it.
    failed = summary.finding(command_failed.code)
    if failed is not None:
        return failed
    empty = summary.finding(nothing_to_measure.code)
    if empty is not None and empty.severity == "warning":
        return empty
    leak = growth(summary) or summary.finding(live_rises.code)
    if leak is not None:
        return leak
    return _first_of_severity(beside, "warning")


def _first_of_severity(findings: Sequence[Finding], severity: str) -> Finding | None:
    for finding in findings:
        if finding.severity == severity:
            return finding
    return None


def beside_pass(summary: Summary) -> str:
    """How many errors and warnings stand beside a pass, and the worst: ``with 2 warnings
    (drift_grows)``; "" if none does.
    """
    finding = worst(summary)
    if finding is None:
        return ""
    # A single one is not the worst of several.
    is_only = sum(other.severity in _BESIDE for other in summary.findings) == 1
    code = finding.code if is_only else f"worst: {finding.code}"
    return f"{counted_beside(summary)} ({code})"


def counted_beside(summary: Summary) -> str:
    """How many errors and warnings stand beside a pass: ``with 2 warnings``; "" if none does."""
    if worst(summary) is None:
        return ""
    counts = []
    for severity in _BESIDE:
        count = sum(finding.severity == severity for finding in summary.findings)
        if count:
            counts.append(format_many(count, severity))
    return f"with {' and '.join(counts)}"


def why_with_worst(summary: Summary) -> str:
    """The reason of the verdict; of a pass also an error beside it, by its first clause."""
    finding = worst(summary)
    if finding is None or finding.severity != "error":
        return summary.why
    first_sentence = first_part(oneline(finding.evidence), ". ")
    return f"{summary.why}; but {first_part(first_sentence, '; ')}"


def one_line(summary: Summary, *, warnings: bool = False) -> str:
    """The verdict and the cost in one line. An error beside a pass is told with it; with
    ``warnings`` these are too.
    """
    finding = worst(summary)
    line = f"{summary.verdict}: {summary.why}"
    if finding is not None and (warnings or finding.severity == "error"):
        line = f"{summary.verdict} {beside_pass(summary)}: {why_with_worst(summary)}"
    if summary.verdict == "untested":
        return oneline(line)
    cost = _cost_in_one_line(summary)
    if cost:
        line += f"; {cost}"
    if growth(summary) is not None:
        line += (
            f"; memory of {server_name(summary)} {in_words(summary.drift['server_user'])} of the "
            "hold"
        )
    return oneline(line)


def _cost_in_one_line(summary: Summary) -> str:
    """The cost on the host, else in the server; "" if neither is above zero."""
    total = summary.cost.host_total
    server = summary.cost.server_user
    streams = with_streams(summary.cost.streams)
    if summary.cost.at_goal:
        where = f"in {server_name(summary)} when its heap has filled"
        if summary.cost.heap_of:
            where = (
                f"in {oneline(summary.cost.heap_of)} behind {server_name(summary)} when its heap "
                "has filled"
            )
        return f"one more connection{streams} costs {with_error(summary.cost.at_goal)} {where}"
    if alive_leads(summary):
        assert summary.cost.live
        alive = f"{with_error(summary.cost.live)} alive in the heap of {server_name(summary)}"
        return f"one more connection{streams} keeps {alive}"
    # Two levels of the whole host include other programs.
    if total is not None and not is_hidden(total):
        where = f"on {sides(summary.environment).host}"
        if is_heap_filling(summary):
            where += f" while the heap of {server_name(summary)} was filling"
        return f"one more connection{streams} costs {with_error(total)} {where}"
    if server is None or server.ci95[0] <= 0:
        return ""
    where = f"in {server_name(summary)}"
    if is_heap_filling(summary):
        where += " while its heap was filling"
    if server.of_levels:
        return f"a connection{streams}, first use included, costs {with_error(server)} {where}"
    return f"one more connection{streams} costs {with_error(server)} {where}"


def is_heap_filling(summary: Summary) -> bool:
    """Whether the server's memory was that of a collected heap on its way to its goal, which is
    unknown: then no cost with it in it is a size to plan with.
    """
    if summary.cost.at_goal and not summary.cost.heap_of:
        return False
    return heap_is_collected(summary)


def alive_leads(summary: Summary) -> bool:
    """Whether what is alive in the server's heap is the first number: it is known, and the slope of
    the server's memory is no size to plan with, though its page counts all of that.
    """
    if not summary.cost.live or summary.finding(heap_of_a_part.code) is not None:
        return False
    return is_heap_filling(summary)


def heap_is_collected(summary: Summary) -> bool:
    """Whether the server runs on a runtime that frees its heap by collections."""
    runtime = summary.server.runtime
    return not isinstance(runtime, UnsetType) and runtime.collected


def is_hidden(total: Cost) -> bool:
    """Whether other programs may be in a total: then the parts lead."""
    return total.ci95[0] <= 0 or total.of_levels


def server_label(summary: Summary) -> str:
    """The server with its version: ``nginx/1.22.1``, ``built-in server``, or ``the server`` if
    unknown.
    """
    server = summary.environment.get("server")
    label = server.get("label") if isinstance(server, dict) else None
    return oneline(str(label)) if label else "the server"


def server_name(summary: Summary) -> str:
    return server_label(summary).partition("/")[0] or "the server"


def heap_owner(summary: Summary) -> str:
    """Whose heap the costs of a heap are of: the server, or the program behind it."""
    server = server_name(summary)
    program = summary.cost.heap_of or server
    if summary.cost.heap_of == server:
        return oneline(f"{program} behind it")
    return oneline(program)


def memory_name(summary: Summary) -> str:
    """The name of the server's memory: ``nginx``, or ``nginx (RSS)`` if only RSS is known."""
    memory, kind = summary.server.memory
    name = server_name(summary)
    if kind == "RSS" and memory.hold_end is not None:
        return f"{name} (RSS)"
    return name


def growth(summary: Summary) -> Finding | None:
    """The certain growth of the server's memory with time, but for a heap that fills. Others' may
    grow by other programs.
    """
    finding = _of_growth(summary)
    return None if finding is None or finding.severity == "info" else finding


def filling(summary: Summary) -> Finding | None:
    """The growth of the server's memory, if that has its place in a heap whose limit is known."""
    finding = _of_growth(summary)
    return finding if finding is not None and finding.severity == "info" else None


def _of_growth(summary: Summary) -> Finding | None:
    for finding in summary.findings:
        if finding.code == drift_grows.code and finding.fields["metric"] == "server_user":
            return finding
    return None


def heap_unknown(summary: Summary) -> Finding | None:
    """Why nothing is known of what is alive in a heap that is collected; None where it is known, or
    where no heap is collected.
    """
    if summary.cost.live:
        return None
    return summary.finding("live_unknown", "heap_of_a_part", "heap_collected")


def goal_unknown(summary: Summary) -> Finding | None:
    """Why nothing is known of a heap at its goal, where what is alive in it is known."""
    if summary.cost.at_goal:
        return None
    return summary.finding("goal_unknown")


def drift_of_server(summary: Summary) -> str:
    """The verdict of the server's drift, or ""."""
    drift = summary.drift.get("server_user")
    return "" if drift is None else drift.verdict


# A doubt, or the cost of a connection, says all of these.
_TOLD_FIRST = {
    host_shared.code,
    "cost_short_lived",
    memory_limit_reached.code,
    live_rises.code,
    *OF_ANOTHER,
}


def stands_first(summary: Summary, finding: Finding) -> bool:
    """Whether the first sentences on a terminal say all of this finding."""
    if finding.code in _TOLD_FIRST or finding is growth(summary):
        return True
    if finding is heap_unknown(summary) or finding is goal_unknown(summary):
        return True
    return _is_of_bottleneck(summary, finding)


def _is_of_bottleneck(summary: Summary, finding: Finding) -> bool:
    """Whether the sentence on the measured bottleneck says all of this finding."""
    bottleneck = summary.finding(gave_way.code)
    if bottleneck is None or summary.generator.saturated:
        return False
    if finding.code in (bottleneck.code, bottleneck.fields["what"]):
        return True
    incidents = finding.fields.get("incidents") or ()
    reasons = [(incident["why"], [*incident["others"]]) for incident in incidents]
    return reasons == [(bottleneck.fields["why"], [])]


def with_remedy(summary: Summary, finding: Finding) -> str:
    """The finding's evidence as a sentence, and its remedy, if it has one."""
    evidence = capitalised(finding.evidence, server_name(summary))
    if not finding.remedy:
        return oneline(f"{evidence}.")
    return oneline(f"{evidence}. Remedy: {finding.remedy}.")


def as_doubt(finding: Finding, sentences: str) -> str:
    """``sentences`` as the finding's first telling, marked like those of the list: the first line
    counts both.
    """
    if finding.severity == "info":
        return sentences
    return f"{finding.severity.capitalize()}: {sentences}"


def headroom(summary: Summary) -> str:
    """How many connections fit and the first limit, or the measured bottleneck; "" if unknown."""
    bottleneck = summary.finding(gave_way.code)
    if summary.connections.opened and bottleneck is not None:
        return with_remedy(summary, bottleneck)
    if not summary.connections.held:
        return ""
    sentences = [_memory_for(summary), _first_limit(summary)]
    return " ".join(filter(None, sentences))


def _memory_for(summary: Summary) -> str:
    """How many connections memory is there for, on this host and with the clients elsewhere; "" if
    unknown.
    """
    here = summary.forecast.memory
    alone = summary.forecast.server_memory
    clauses = []
    if here is not None and here.connections is not None:
        number = _number_here(here, here.connections, alone)
        clauses.append(f"This host has memory for {number} such connections with both ends on it")
    if alone is not None and alone.connections is not None:
        # A range: the server's share of the residual is unknown.
        subject = "" if clauses else "A server like this host has memory "
        clauses.append(f"{subject}for {about_to(alone)} with the clients elsewhere")
    if not clauses:
        return ""
    far = summary.finding(forecast_far.code)
    if far is not None:
        clauses[0] += f" ({far.fields['times']:,.0f} times the measured count)"
    if is_heap_filling(summary):
        clauses[-1] += f", as filled as the heap of {server_name(summary)} was: plan with fewer"
    sentence = f"{', or '.join(clauses)}."
    if growth(summary) is None:
        return sentence
    return f"Without that growth, {sentence[:1].lower()}{sentence[1:]}"


def _number_here(here: Ceiling, connections: float, alone: Ceiling | None) -> str:
    """The ``connections`` that fit on this host; a range beside one that begins lower."""
    if alone is not None and alone.ci95 is not None and alone.ci95[0] < connections:
        return about_to(here)
    return f"about {about(here)}"


# Limits that the kernel sets to a server's processes.
_OF_PROCESSES = {
    "descriptors", "group_tasks", "user_tasks", "host_tasks", "address_space", "data", "mappings",
    "committed", "descriptors_beside",
}  # fmt: skip


def _first_limit(summary: Summary) -> str:
    """The lowest known limit, if it is not the memory that was named; "" if none is known. A run
    that the server did not serve in full shows a lower one.

    A forecast knows the limits that were read alone: only what a run reached is the first limit.
    """
    ceilings = summary.forecast.ceilings
    first = _first_known(summary)
    if _shows_lower_limit(summary, first):
        return _seen_limit(summary, first)
    if first is None or first.connections is None:
        return ""
    names = {limit.name for limit in ceilings}
    opening = f"The first known limit is {ceiling(first.name)}, at about {about(first)}"
    if first is summary.forecast.memory:
        opening = "No lower limit is known"
    lower = [
        _why_memory_is_unknown(summary, names),
        _reached_before(first.connections, ceilings),
    ]
    if not _is_without_settings(summary):
        lower.append(_not_read(names))
    return f"{'; '.join([opening, *filter(None, lower)])}."


def _first_known(summary: Summary) -> Ceiling | None:
    """The lowest limit; None if its number is unknown."""
    for limit in summary.forecast.ceilings:
        if limit.name == summary.forecast.first and limit.connections is not None:
            return limit
    return None


def _why_memory_is_unknown(summary: Summary, ceilings: Set[str]) -> str:
    """A clause on memory that may be a lower limit; "" if it is known."""
    if "earlier_memory" in ceilings:
        return f"how many fit into the memory that {server_name(summary)} has in advance is unknown"
    if _rises(summary):
        return "how many fit into memory is unknown, because each further connection costs more"
    return ""


def _shows_lower_limit(summary: Summary, first: Ceiling | None) -> bool:
    """Whether the run held fewer than it was to hold, though neither asyncli nor its user was the
    reason, and the ``first`` known limit (None: none is known) lies above that.
    """
    connections = summary.connections
    if connections.held is None or not summary.run.complete or summary.run.stopped:
        return False
    if summary.generator.saturated or "generator_lost" in connections.deaths:
        return False
    if connections.held >= connections.requested - _away_by_plan(summary):
        return False
    return first is None or (first.connections or 0) > connections.requested


def _away_by_plan(summary: Summary) -> int:
    """How many clients events had away at the hold's end, whatever kept them: no limit on how many
    connections the server holds is to be sought for these.
    """
    away = 0
    for event in summary.events or ():
        away += (event.gone or 0) + (event.waiting or 0) + (event.not_back or 0)
    return away


def _seen_limit(summary: Summary, first: Ceiling | None) -> str:
    """How many the server served, beside the ``first`` known limit, if any."""
    held = format_count(summary.connections.held or 0)
    requested = format_count(summary.connections.requested)
    seen = f"This run held {held} of {requested} connections, which no known limit explains"
    if first is None:
        return f"{seen}."
    return f"{seen}: the first known one is {ceiling(first.name)}, at about {about(first)}."


def _is_without_settings(summary: Summary) -> bool:
    """Whether the server is a program in Go or Node: how many connections it lets in is in its code
    alone, and no settings can be read.
    """
    runtime = summary.server.runtime
    return not isinstance(runtime, UnsetType) and runtime.kind in ("go", "node")


def _not_read(ceilings: Set[str]) -> str:
    """A clause on the server's limits that were not read, by the names of those that were; "" if
    its configuration was read.
    """
    if "worker_connections" in ceilings or "global_maxconn" in ceilings:
        return ""
    if "maxconn" in ceilings:
        return "HAProxy's global maxconn, which was not read, may be lower"
    if _OF_PROCESSES & ceilings:
        return "the server's own settings are unknown"
    return "the server's own limits are unknown"


def _rises(summary: Summary) -> bool:
    """Whether the last connections cost more memory than all on average."""
    bent = [finding.fields for finding in summary.findings if finding.code == cost_bent.code]
    return any(fields["last_ones"] > fields["mean"] for fields in bent)


def _reached_before(connections: float, ceilings: Sequence[Ceiling]) -> str:
    """A clause on a limit that may be lower than so many ``connections``; "" without one."""
    for limit in ceilings:
        if isinstance(limit.at_least, UnsetType) or limit.at_least >= connections:
            continue
        at_least = format_count(limit.rounded(limit.at_least))
        return f"{ceiling(limit.name)} may be reached earlier, at {at_least} connections or more"
    return ""


NOT_THE_SERVER = (
    "Do not rely on latencies and losses: asyncli was the limit (see the findings). Memory per "
    "connection does not depend on it."
)


def doubts(summary: Summary) -> list[str]:
    """Reasons to doubt the answer, worst first."""
    reasons = []
    for doubt in _DOUBTS:
        reasons += doubt(summary)
    return reasons


def _saturated(summary: Summary) -> list[str]:
    return [NOT_THE_SERVER] if summary.generator.saturated else []


def _at_memory_limit(summary: Summary) -> list[str]:
    reached = summary.finding(memory_limit_reached.code)
    if reached is None:
        return []
    return [as_doubt(reached, with_remedy(summary, reached))]


def _rises_by_the_clock(summary: Summary) -> list[str]:
    rises = summary.finding(live_rises.code)
    if rises is None:
        return []
    return [as_doubt(rises, with_remedy(summary, rises))]


def _shared_host(summary: Summary) -> list[str]:
    shared = summary.finding(host_shared.code)
    if shared is None:
        return []
    sentences = (
        f"Not alone on the host: {oneline(shared.evidence)}. Remedy: {oneline(shared.remedy)}."
    )
    return [as_doubt(shared, sentences)]


def _shrinks(summary: Summary) -> list[str]:
    if drift_of_server(summary) != "shrinks":
        return []
    shrinks = in_words(summary.drift["server_user"])
    return [
        f"Memory of {server_name(summary)} {shrinks} of the hold: what it frees hides part of "
        "its cost."
    ]


def _upstream_sockets(summary: Summary) -> list[str]:
    sentences = []
    for finding in summary.findings:
        if finding.code == upstream_sockets.code:
            sentences.append(f"{oneline(finding.evidence)}.")
    return sentences


def _if_fresh(summary: Summary) -> list[str]:
    sentences = []
    for finding in summary.findings:
        if finding.code == cost_if_fresh.code:
            sentences.append(with_remedy(summary, finding))
    return sentences


def _imprecise(summary: Summary) -> list[str]:
    """That the total, or the server's cost, is no slope, or the total's interval is wide."""
    total = summary.cost.host_total
    server = summary.cost.server_user
    few = summary.finding("cost_few_points")
    if few is not None and few.remedy and (_is_of_levels(total) or _is_of_levels(server)):
        first = format_count(summary.connections.held_or_peak or 0)
        return [
            f"The ramp was too short for a slope: first use is included, and these {first} "
            "connections may have used memory that the server had, so that further ones may cost "
            f"more. For a slope: {few.remedy}; more connections lower what is hidden so."
        ]
    if total is None:
        return []
    is_wide = total.half_width > _WIDE_INTERVAL * abs(total.bytes_per_connection)
    if is_wide and total.ci95[0] > 0:
        return ["The interval is wide: more connections, a longer ramp or --plateaus 8 narrow it."]
    return []


def _is_of_levels(cost: Cost | None) -> bool:
    return cost is not None and cost.of_levels


_DOUBTS = (
    _saturated,
    _at_memory_limit,
    _rises_by_the_clock,
    _shared_host,
    _shrinks,
    _upstream_sockets,
    _if_fresh,
    _imprecise,
)
