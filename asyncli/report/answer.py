"""A summary as sentences: verdict, capacity, doubts. :mod:`asyncli.report.cost_answer` has the cost of a connection."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec import UnsetType

from asyncli.analysis.ceiling import Ceiling
from asyncli.analysis.drift import in_words
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import cost_bent
from asyncli.findings.drift import drift_grows
from asyncli.findings.forecast import forecast_far, gave_way
from asyncli.findings.host import host_shared
from asyncli.findings.server import OF_ANOTHER
from asyncli.model.records import Finding
from asyncli.model.text import first_part, oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_count, format_many
from asyncli.report.format import about, about_to, capitalised, ceiling, with_error, with_streams
from asyncli.report.summary import Summary

# An interval beyond this share of its slope is called wide.
_WIDE_INTERVAL = 0.25


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
    if summary.verdict == "untested":
        return oneline(line)
    cost = _cost_in_one_line(summary)
    if cost:
        line += f"; {cost}"
    if growth(summary) is not None:
        line += f"; memory of {server_name(summary)} {in_words(summary.drift['server_user'])} of the hold"
    return oneline(line)


def _cost_in_one_line(summary: Summary) -> str:
    """The cost on the host, else in the server; "" if neither is above zero."""
    total, server = summary.cost.host_total, summary.cost.server_user
    streams = with_streams(summary.cost.streams)
    # Two levels of the whole host include other programs.
    if total is not None and not is_hidden(total):
        where = f"on {sides(summary.environment).host}"
        return f"one more connection{streams} costs {with_error(total)} {where}"
    if server is None or server.ci95[0] <= 0:
        return ""
    where = f"in {server_name(summary)}"
    if server.of_levels:
        return f"a connection{streams}, first use included, costs {with_error(server)} {where}"
    return f"one more connection{streams} costs {with_error(server)} {where}"


def is_hidden(total: Cost) -> bool:
    """Whether other programs may be in a total: then the parts lead."""
    return total.ci95[0] <= 0 or total.of_levels


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


def growth(summary: Summary) -> Finding | None:
    """The certain growth of the server's memory with time. Other memory may grow by other programs."""
    return next((one for one in summary.findings if one.code == drift_grows.code and one.fields["metric"] == "server_user"), None)


def drift_of_server(summary: Summary) -> str:
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
    bottleneck = summary.finding(gave_way.code)
    if summary.connections.opened and bottleneck is not None:
        return with_remedy(summary, bottleneck)
    if not summary.connections.held:
        return ""
    sentences = [_memory_for(summary), _first_limit(summary)]
    return " ".join(filter(None, sentences))


def _memory_for(summary: Summary) -> str:
    """How many connections memory is there for, on this host and with the clients elsewhere; "" if unknown."""
    here, alone = summary.forecast.memory, summary.forecast.server_memory
    clauses = []
    if here is not None and here.connections is not None:
        # Beside a range that begins lower, this is a range too.
        is_above = alone is not None and alone.ci95 is not None and alone.ci95[0] < here.connections
        number = about_to(here) if is_above else f"about {about(here)}"
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
    sentence = f"{', or '.join(clauses)}."
    if growth(summary) is None:
        return sentence
    return f"Without that growth, {sentence[:1].lower()}{sentence[1:]}"


# Limits that the kernel sets to a server's processes.
_OF_PROCESSES = {
    "descriptors", "group_tasks", "user_tasks", "host_tasks", "address_space", "mappings",
}  # fmt: skip


def _first_limit(summary: Summary) -> str:
    """The lowest limit, if it is not the memory that was named; "" if none is known."""
    ceilings = {one.name: one for one in summary.forecast.ceilings}
    first = ceilings.get(summary.forecast.first or "")
    if first is None or first.connections is None:
        return ""
    earlier = _reached_before(first.connections, summary.forecast.ceilings)
    if first is summary.forecast.memory:
        return "" if earlier is None else f"{earlier[:1].upper()}{earlier[1:]}."
    limit = f"{ceiling(first.name)}, at about {about(first)}"
    if "earlier_memory" in ceilings:
        return (
            f"The first known limit is {limit}; how many fit into the memory that {server_name(summary)} has in advance is "
            "unknown."
        )
    if _rises(summary):
        return (
            f"The first known limit is {limit}; how many fit into memory is unknown, because each "
            "further connection costs more."
        )
    if earlier is not None:
        return f"The first known limit is {limit}; {earlier}."
    return _limit_with_others(limit, ceilings.keys())


def _limit_with_others(limit: str, ceilings: Set[str]) -> str:
    """The first ``limit``, and what is known of the server's others by the names of all."""
    if "maxconn" in ceilings and "global_maxconn" not in ceilings:
        return (
            f"The first known limit is {limit}; HAProxy's global maxconn, which was not read, may "
            "be lower."
        )
    # nginx's and HAProxy's configuration is read; of other servers the limits of their processes.
    if "worker_connections" in ceilings or "global_maxconn" in ceilings:
        return f"The first limit is {limit}."
    of_processes = _OF_PROCESSES & ceilings
    if len(of_processes) > 1:
        return f"The first known limit is {limit}; the server's own settings are unknown."
    if of_processes:
        return f"The first limit is {limit}; no other limit of the server is known."
    return f"The first limit is {limit}; the server's own limits are unknown."


def _rises(summary: Summary) -> bool:
    """Whether the last connections cost more memory than all on average."""
    bent = [finding.fields for finding in summary.findings if finding.code == cost_bent.code]
    return any(fields["last_ones"] > fields["mean"] for fields in bent)


def _reached_before(connections: float, ceilings: Sequence[Ceiling]) -> str | None:
    """A clause on a limit that may be lower than so many ``connections``; None without one."""
    for limit in ceilings:
        if isinstance(limit.at_least, UnsetType) or limit.at_least >= connections:
            continue
        at_least = format_count(limit.rounded(limit.at_least))
        return f"{ceiling(limit.name)} may be reached earlier, at {at_least} connections or more"
    return None


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
    if drift_of_server(summary) == "shrinks":
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
