"""What one more connection costs, as a sentence: its parts are data, and the sentence is the first
form that fits.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from asyncli.analysis.constants import PART
from asyncli.analysis.heap_cost import HeapCost
from asyncli.analysis.slope import Cost
from asyncli.model.go_heap import USUAL_GOGC
from asyncli.model.text import first_part, oneline
from asyncli.model.topology import sides
from asyncli.model.units import format_count, format_each
from asyncli.model.values import AGENT_PORT, parse_target
from asyncli.report.answer import (
    alive_leads,
    as_doubt,
    drift_of_server,
    goal_unknown,
    heap_owner,
    heap_unknown,
    is_heap_filling,
    is_hidden,
    server_name,
    with_remedy,
)
from asyncli.report.format import (
    capitalised,
    is_unknown,
    with_error,
    with_streams,
)
from asyncli.report.summary import CostPart, Summary

_HELD_OUTSIDE = {"node": "Buffers", "jvm": "direct buffers"}
_ENDS = {2: "two", 3: "three", 4: "four"}


class _Part(NamedTuple):
    """A part of the cost: ``place`` in words, and how many times it is in the printed total (0: the
    printed parts do not add up to one).
    """

    cost: Cost
    place: str
    times_in_total: int
    #: What the number is of, in parentheses behind it; "" where the place says all.
    note: str = ""

    @property
    def amount(self) -> str:
        return f"{with_error(self.cost, self.times_in_total)} {self.place}{self.note}"

    @property
    def unknown_place(self) -> str:
        if self.cost.ci95[1] < 0:
            return f"{self.place} (it shrank)"
        return self.place


def answer(summary: Summary) -> str:
    """The cost of a connection as a sentence: the first of :data:`_FORMS` that fits."""
    for form in _FORMS:
        sentence = form(summary)
        if sentence:
            return sentence
    return "Cost per connection unknown: no connections were held."


def answers(summary: Summary) -> list[str]:
    """The sentences on the cost and on the server's heap, the number to use first: beside a slope
    that is no size to plan with, what is alive.
    """
    sentences = [answer(summary)]
    of_heap = heap_answer(summary)
    if not of_heap:
        return sentences
    place = 0 if alive_leads(summary) else 1
    sentences.insert(place, of_heap)
    return sentences


def heap_answer(summary: Summary) -> str:
    """What of it is alive in a heap that is collected, and what it takes when that heap has filled,
    or why that is unknown; "" where no heap is collected.
    """
    cost = summary.cost
    stays = _of_what_stays(summary)
    unknown = heap_unknown(summary)
    if unknown is not None:
        return as_doubt(unknown, with_remedy(summary, unknown)) + stays
    if not cost.live:
        return ""
    in_stacks = ""
    if cost.stacks:
        in_stacks = f", and {with_error(cost.stacks)} in its stacks"
    outside = _of_outside(summary, cost.live)
    alive = f"{_alive(summary, cost.live)} a connection{outside}{in_stacks}.{stays}"
    no_goal = goal_unknown(summary)
    if no_goal is not None:
        return f"{alive} {as_doubt(no_goal, with_remedy(summary, no_goal))}"
    resident = cost.cost_of(cost.with_heap)
    if not cost.at_goal or resident is None:
        return alive
    # With its goal the answer has begun.
    return f"{alive} Resident while the heap was filling: {with_error(resident)}."


def _alive(summary: Summary, live: HeapCost) -> str:
    place = f"in the heap of {heap_owner(summary)}"
    if live.outside is not None:
        place += f" and in its {_held_outside(summary)}"
    return f"Alive {place}: {with_error(live)}"


def _of_outside(summary: Summary, live: HeapCost) -> str:
    """How much of what is alive is outside the heap, or that this is unknown, in parentheses; "" if
    it is little.
    """
    if live.lacks_outside:
        return f" (without its {_held_outside(summary)}, which nothing read)"
    if live.outside is None or live.outside < PART * live.bytes_per_connection:
        return ""
    return f" ({format_each(live.outside)} of it in {_held_outside(summary)})"


def _held_outside(summary: Summary) -> str:
    """What objects of the server's heap hold outside it."""
    runtime = summary.server.runtime
    kind = "" if runtime is msgspec.UNSET or summary.cost.heap_of else runtime.kind
    return _HELD_OUTSIDE.get(kind, "memory outside it")


def _of_what_stays(summary: Summary) -> str:
    """The sentence, after a space, of what is alive or in stacks after the drain; "" if that is
    little.
    """
    collected = summary.finding("collections_forced")
    if collected is None:
        return ""
    stays = [collected.fields.get(name) for name in ("alive_bytes", "stacks_bytes")]
    if stays == [None, None]:
        return ""
    return f" {with_remedy(summary, collected)}"


def _of_untested(summary: Summary) -> str:
    if summary.verdict != "untested" or summary.connections.opened == 0:
        return ""
    # The reason without its numbers, which the verdict has just given.
    return f"Cost per connection unknown: {first_part(summary.why, ':')}."


def _of_small_installation(summary: Summary) -> str:
    finding = summary.finding("cost_not_sampled")
    if finding is None or finding.fields["costs"]:
        return ""
    return oneline(f"{capitalised(finding.evidence, server_name(summary))}; {finding.remedy}.")


def _of_unseen_server(summary: Summary) -> str:
    """Why the server's cost is unknown and how to measure it; "" if its processes were seen or
    nothing was held.
    """
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
    if total is None or not _total_leads(summary):
        return ""
    whole = f"{_opening(summary)} {with_error(total)} on {sides(summary.environment).host}"
    if is_heap_filling(summary):
        no_size = f"no size to plan with{_by_gogc(summary)}"
        whole += f" while the heap of {server_name(summary)} was filling ({no_size})"
    add_up = _parts_add_up(summary)
    amounts = [part.amount for part in _parts(summary) if add_up or not is_unknown(part.cost)]
    if not amounts:
        return f"{whole}."
    return f"{whole}: {', '.join(amounts)}."


def _total_leads(summary: Summary) -> bool:
    """Whether the answer begins with the total of the host."""
    total = summary.cost.host_total
    # The total was read while the heap was filling.
    return total is not None and not is_hidden(total) and not summary.cost.at_goal


def _of_parts(summary: Summary) -> str:
    """The parts without a total, or where other programs hide it."""
    known = [part.amount for part in _parts(summary) if not is_unknown(part.cost)]
    unknown = _unknown_places(summary)
    if not known and not unknown:
        return ""
    clauses = [
        _clause_of_parts(summary, known, unknown),
        _clause_of_host(summary),
        _clause_of_missing(summary),
    ]
    return f"{'; '.join(filter(None, clauses))}."


def _unknown_places(summary: Summary) -> list[str]:
    """The parts, and the total, that cannot be told. Their intervals are in the table alone: one
    that reaches below zero means nothing to who reads a headline.
    """
    places = [part.unknown_place for part in _parts(summary) if is_unknown(part.cost)]
    total = summary.cost.host_total
    if total is not None and total.ci95[0] <= 0:
        places.append(f"on {sides(summary.environment).host} in all")
    return places


def _clause_of_parts(summary: Summary, known: Sequence[str], unknown: Sequence[str]) -> str:
    places = " and ".join(unknown)
    if not known:
        streams = with_streams(summary.cost.streams)
        return f"What a connection{streams} costs {places} cannot be told"
    clause = f"{_opening(summary)} {', '.join(known)}"
    if not unknown:
        return clause
    return f"{clause}; what it costs {places} cannot be told"


def _clause_of_host(summary: Summary) -> str:
    """A total that is above zero, though other programs may be in it."""
    total = summary.cost.host_total
    if total is None or total.ci95[0] <= 0:
        return ""
    host = sides(summary.environment).host
    return f"{host} in all took {with_error(total)}, other programs included"


def _clause_of_missing(summary: Summary) -> str:
    """Which of the server's cost and the total is unknown."""
    missing = _missing(summary)
    if not missing:
        return ""
    if len(missing) == 1:
        return f"{missing[0]} is unknown"
    return f"{' and '.join(missing)} are unknown"


def _of_too_few_points(summary: Summary) -> str:
    finding = summary.finding("cost_few_points", "cost_not_sampled")
    if not summary.connections.held or finding is None:
        return ""
    return f"Cost per connection unknown: {finding.evidence}; {finding.remedy}."


_FORMS = (
    _of_untested,
    _of_small_installation,
    _of_unseen_server,
    _of_unmeasurable_server,
    _of_the_host,
    _of_parts,
    _of_too_few_points,
)


def _residual(summary: Summary) -> Cost | None:
    """What is left over of the total, if it may be above zero and other programs do not hide the
    total.
    """
    total = summary.cost.host_total
    residual = summary.cost.residual
    if residual is None or residual.ci95[1] < 0:
        return None
    if total is not None and is_hidden(total):
        return None
    return residual


def _parts_add_up(summary: Summary) -> bool:
    """Whether the printed parts add up to the printed total. A part below zero, which noise makes,
    is printed by its bound alone, so that the others are not what the total has beside it.
    """
    cost = summary.cost
    if cost.at_goal:
        return False
    for part in (cost.server_user, cost.behind or None, cost.kernel, cost.generator_user):
        if part is not None and part.bytes_per_connection < 0:
            return False
    return summary.cost.host_total is not None and _residual(summary) is not None


def _opening(summary: Summary) -> str:
    cost = summary.cost
    leading = cost.server_user or cost.kernel or cost.host_total
    if cost.at_goal and not cost.heap_of:
        leading = cost.at_goal
    if leading is not None and leading.of_levels:
        return f"A connection{with_streams(cost.streams)}, first use included, costs"
    return f"One more connection{with_streams(cost.streams)} costs"


def _parts(summary: Summary) -> list[_Part]:
    """The parts that have a number, in the order of the sentence."""
    cost = summary.cost
    residual = _residual(summary)
    add_up = _parts_add_up(summary)
    programs = " and ".join(cost.behind_programs or [])
    in_server = (cost.server_user, f"in {server_name(summary)}{_growth_included(summary)}")
    note_of_server = _of_filling_heap(summary)
    behind = (cost.behind or None, f"in {programs} behind it")
    if cost.at_goal and cost.heap_of:
        behind = (cost.at_goal, f"in {programs} behind it when its heap has filled")
    elif cost.at_goal:
        # It comes to rest there.
        in_server = (cost.at_goal, f"in {server_name(summary)} when its heap has filled")
    places = (
        (*in_server, note_of_server),
        (*behind, ""),
        (cost.kernel, f"in the kernel {_ends_of(summary)}", ""),
        (cost.generator_user, "in asyncli", ""),
        (residual, _left_over(residual), ""),
    )
    parts = []
    for part, place, note in places:
        if part is not None:
            times = _times_in_total(cost, part) if add_up else 0
            parts.append(_Part(part, place, times, note))
    return parts


def _of_filling_heap(summary: Summary) -> str:
    """A note on the server's cost where it is the slope of a heap that was filling; "" where it is
    not, or the total before it says so.
    """
    if not is_heap_filling(summary) or _total_leads(summary):
        return ""
    of_which_heap = "resident memory while its heap was filling"
    of_a_part = summary.finding("heap_of_a_part") is not None
    if summary.finding("collections_forced") is not None and not of_a_part:
        of_which_heap = "resident memory between forced collections"
    return f" ({of_which_heap}, not a size to plan with{_by_gogc(summary)})"


def _by_gogc(summary: Summary) -> str:
    """A clause on how far Go lets the heap fill, where the program's GOGC is not the usual one;
    "" where it is, or is unknown.
    """
    runtime = summary.server.runtime
    if isinstance(runtime, UnsetType) or runtime.kind != "go":
        return ""
    if runtime.gogc is None or runtime.gogc == USUAL_GOGC:
        return ""
    if runtime.gogc < 0:
        if runtime.heap_limit_bytes is not None:
            return ": by GOGC=off it fills up to the memory limit"
        return ": by GOGC=off it is never collected"
    times = 1 + runtime.gogc / 100
    return f": by GOGC={runtime.gogc} it may fill to {times:g} times what is alive"


def _growth_included(summary: Summary) -> str:
    """Words on memory that also grew in the hold: the slope over the ramp includes such growth."""
    match drift_of_server(summary):
        case "grows":
            return " (growth included)"
        case "shrinks":
            return " (shrinking included)"
    return ""


def _ends_of(summary: Summary) -> str:
    ends = summary.cost.ends
    if ends > 1:
        return f"for each of its {_ENDS.get(ends, format_count(ends))} ends"
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
    if part is cost.kernel:
        return cost.ends
    return 1


def _left_over(residual: Cost | None) -> str:
    """Memory is not left over below zero: then the parts exceed the total, within its error."""
    if residual is None or residual.bytes_per_connection >= 0:
        return "left over"
    excess = format_each(-residual.bytes_per_connection)
    return f"left over (the parts exceed the total by {excess}, which is within its error)"


def _server_remedy(summary: Summary) -> tuple[str, str]:
    """(Why the server's memory could not be read, how to read it)."""
    by_agent = isinstance(summary.environment.get("agent"), dict)
    if not by_agent and not sides(summary.environment).server:
        return (
            "its address is not of this network namespace",
            f"start 'asyncli agent' there, and soak with --agent {_agent_url(summary)}; "
            "if it is in a container of this host, --server-pid PID is enough",
        )
    program = "the agent" if by_agent else "the soak"
    if not _is_of_another_user(summary):
        return "its processes were not found", f"start {program} with --server-pid PID"
    remedy = f"run {program} as root (sudo)"
    if summary.finding("needs_root") is not None:
        remedy = "see the remedy below"
    return "its processes belong to another user", remedy


def _agent_url(summary: Summary) -> str:
    """Where an agent on the server's host would listen, as an argument of a shell."""
    host = parse_target(summary.plan["urls"][0]).host
    if ":" in host:
        host = f"[{host}]"
    return shlex.quote(f"http://{host}:{AGENT_PORT}")


def _is_of_another_user(summary: Summary) -> bool:
    server = summary.environment.get("server")
    return isinstance(server, dict) and server.get("hidden") is True
