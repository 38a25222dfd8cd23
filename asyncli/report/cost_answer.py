"""What one more connection costs, as a sentence: its parts are data, and the sentence is the first form that fits."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from asyncli.analysis.slope import Cost
from asyncli.model.text import first_part, oneline
from asyncli.model.topology import sides
from asyncli.model.values import AGENT_PORT, parse_target
from asyncli.report.answer import drift_of_server, is_hidden, server_name
from asyncli.report.format import bytes_each, capitalised, interval_bytes, is_unknown, with_error, with_streams
from asyncli.report.summary import CostPart, Summary

_ENDS = {2: "two", 3: "three", 4: "four"}


class _Part(NamedTuple):
    """A part of the cost: ``place`` in words, and how often it is in the total that the printed parts add up to (0: they need
    not)."""

    cost: Cost
    place: str
    times_in_total: int

    @property
    def amount(self) -> str:
        return f"{with_error(self.cost, self.times_in_total)} {self.place}"

    @property
    def unknown_amount(self) -> str:
        if self.cost.ci95[1] < 0:
            return f"{self.place} ({interval_bytes(self.cost)}: it shrank)"
        return f"{self.place} ({interval_bytes(self.cost)})"


def answer(summary: Summary) -> str:
    """The cost of a connection as a sentence: the first of :data:`_FORMS` that fits."""
    for form in _FORMS:
        sentence = form(summary)
        if sentence:
            return sentence
    return "Cost per connection unknown: no connections were held."


def _of_untested(summary: Summary) -> str:
    if summary.verdict != "untested" or summary.connections.opened == 0:
        return ""
    # The reason without its numbers, which the verdict has just given.
    return f"Cost per connection unknown: {first_part(summary.why, ':')}."


def _of_unseen_server(summary: Summary) -> str:
    """Why the server's cost is unknown and how to measure it; "" if its processes were seen or nothing was held."""
    is_unseen = summary.finding("server_processes_unknown") is not None
    if not is_unseen or summary.cost.server_user is not None or not summary.connections.held:
        return ""
    reason, remedy = _server_remedy(summary)
    unknown = f"Cost per connection unknown for {server_name(summary)}: {reason}"
    return oneline(f"{unknown}{_known_without_server(summary)}. To measure it: {remedy}")


def _known_without_server(summary: Summary) -> str:
    host = sides(summary.environment).host
    total = summary.cost.host_total
    if total is not None and total.ci95[0] > 0:
        return f" (on {host} it costs {with_error(total)} in all)"
    kernel = summary.cost.kernel
    if kernel is not None and kernel.ci95[0] > 0:
        return f" (each end of it costs {with_error(kernel)} in the kernel of {host})"
    return ""


def _of_unmeasurable_server(summary: Summary) -> str:
    """Connections that lived too short, or growth, which make the server's cost unknown."""
    finding = summary.finding("cost_short_lived", "cost_grew")
    if summary.cost.server_user is not None or finding is None:
        return ""
    return oneline(f"{capitalised(finding.evidence, server_name(summary))}.")


def _of_the_host(summary: Summary) -> str:
    """The total of the host, if it is measured, and its parts."""
    total = summary.cost.host_total
    if total is None or is_hidden(total):
        return ""
    whole = f"{_opening(summary)} {with_error(total)} on {sides(summary.environment).host}"
    add_up = _parts_add_up(summary)
    amounts = [part.amount for part in _parts(summary) if add_up or not is_unknown(part.cost)]
    if not amounts:
        return f"{whole}."
    return f"{whole}: {', '.join(amounts)}."


def _of_parts(summary: Summary) -> str:
    """The parts without a total, or where other programs hide it."""
    parts = _parts(summary)
    amounts = [part.amount for part in parts if not is_unknown(part.cost)]
    total, host = summary.cost.host_total, sides(summary.environment).host
    unknown = [part.unknown_amount for part in parts if is_unknown(part.cost)]
    if total is not None and total.ci95[0] <= 0:
        unknown.append(f"on {host} in all ({interval_bytes(total)}, other programs included)")
    if not amounts and not unknown:
        return ""
    clauses = []
    if amounts:
        clauses.append(f"{_opening(summary)} {', '.join(amounts)}")
    if unknown and amounts:
        clauses.append(f"its cost {', '.join(unknown)} cannot be told")
    elif unknown:
        streams = with_streams(summary.cost.streams)
        clauses.append(f"The cost of a connection{streams} cannot be told: {', '.join(unknown)}")
    if total is not None and total.ci95[0] > 0:
        clauses.append(f"{host} in all took {with_error(total)}, other programs included")
    missing = _missing(summary)
    if len(missing) == 1:
        clauses.append(f"{missing[0]} is unknown")
    elif missing:
        clauses.append(f"{' and '.join(missing)} are unknown")
    return f"{'; '.join(clauses)}."


def _of_too_few_points(summary: Summary) -> str:
    finding = summary.finding("cost_few_points", "cost_not_sampled")
    if not summary.connections.held or finding is None:
        return ""
    return f"Cost per connection unknown: {finding.evidence}; {finding.remedy}."


_FORMS = (_of_untested, _of_unseen_server, _of_unmeasurable_server, _of_the_host, _of_parts, _of_too_few_points)


def _residual(summary: Summary) -> Cost | None:
    """What is left over of the total, if it is above zero and other programs do not hide it."""
    total, residual = summary.cost.host_total, summary.cost.residual
    if residual is None or residual.ci95[1] < 0:
        return None
    if total is not None and is_hidden(total):
        return None
    return residual


def _parts_add_up(summary: Summary) -> bool:
    """Whether the printed parts add up to the printed total."""
    return summary.cost.host_total is not None and _residual(summary) is not None


def _opening(summary: Summary) -> str:
    cost = summary.cost
    leading = cost.server_user or cost.kernel or cost.host_total
    if leading is not None and leading.of_levels:
        return f"A connection{with_streams(cost.streams)}, first use included, costs"
    return f"One more connection{with_streams(cost.streams)} costs"


def _parts(summary: Summary) -> list[_Part]:
    """The parts that have a number, in the order of the sentence."""
    cost = summary.cost
    residual = _residual(summary)
    add_up = _parts_add_up(summary)
    programs = " and ".join(cost.behind_programs or [])
    places = (
        (cost.server_user, f"in {server_name(summary)}{_growth_included(summary)}"),
        (cost.behind or None, f"in {programs} behind it"),
        (cost.kernel, f"in the kernel {_ends_of(summary)}"),
        (cost.generator_user, "in asyncli"),
        (residual, _left_over(residual)),
    )
    parts = []
    for part, place in places:
        if part is not None:
            times = _times_in_total(cost, part) if add_up else 0
            parts.append(_Part(part, place, times))
    return parts


def _growth_included(summary: Summary) -> str:
    """A slope includes growth in the ramp."""
    return {"grows": " (growth included)", "shrinks": " (shrinking included)"}.get(drift_of_server(summary), "")


def _ends_of(summary: Summary) -> str:
    if summary.cost.ends > 1:
        return f"for each of its {_ENDS[summary.cost.ends]} ends"
    if sides(summary.environment).far is None:
        return "for this end of it"
    return "for its end of it"


def _missing(summary: Summary) -> list[str]:
    missing = []
    if summary.cost.server_user is None:
        missing.append(f"the cost in {server_name(summary)}")
    if summary.cost.host_total is None:
        missing.append(f"the total of {sides(summary.environment).host}")
    return missing


def _times_in_total(cost: CostPart, part: Cost) -> int:
    """How often ``part`` is in the total; 0 of one below zero, which is no part of it."""
    if part is cost.residual and part.bytes_per_connection < 0:
        return 0
    return cost.ends if part is cost.kernel else 1


def _left_over(residual: Cost | None) -> str:
    """Memory is not left over below zero: then the parts are more than the total, within its error."""
    if residual is None or residual.bytes_per_connection >= 0:
        return "left over"
    excess = bytes_each(-residual.bytes_per_connection)
    return f"left over (the parts exceed the total by {excess}, which is within its error)"


def _server_remedy(summary: Summary) -> tuple[str, str]:
    """(Why the server's memory could not be read, how to read it)."""
    server, agent = summary.environment.get("server"), isinstance(summary.environment.get("agent"), dict)
    hidden = isinstance(server, dict) and server.get("hidden") is True
    if not agent and not sides(summary.environment).server:
        host = parse_target(summary.plan["urls"][0]).host
        at = f"http://{f'[{host}]' if ':' in host else host}:{AGENT_PORT}"
        by_agent = f"start 'asyncli agent' there, and soak with --agent {shlex.quote(at)}"
        return (
            "its address is not of this network namespace",
            f"{by_agent}; if it is in a container of this host, --server-pid PID is enough",
        )
    program = "the agent" if agent else "the soak"
    if hidden:
        below = summary.finding("needs_root") is not None
        return "its processes belong to another user", "see the remedy below" if below else f"run {program} as root (sudo)"
    return "its processes were not found", f"start {program} with --server-pid PID"
