"""Findings of client and server counts that diverge."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal, TypedDict

from asyncli.findings import Words, finding
from asyncli.findings.event_words import EventWords, in_the_time_of
from asyncli.findings.losses import settings
from asyncli.model.products import STATUS_PAGES, product_of
from asyncli.model.records import Finding, Severity
from asyncli.model.units import format_clock, format_count, format_many

Unknown = Literal[
    "nothing_connected",
    "not_installed",
    "no_page",
    "page_tells_nothing",
    "page_silent",
    "page_of_new_processes",
    "page_of_a_part",
]


class Since(TypedDict):
    """The first instant that shows how two counts diverged, and by how much at ``most``."""

    from_s: float
    most: int
    at_s: float


class Beyond(TypedDict):
    """Why the server counts more than we hold: connections of ``killed`` workers, by events of the
    plan (``killed_in``) or otherwise, or from ``before`` our first connect (0: none); ``others``
    that use it; else ``lost`` or failed ones that it still counts.
    """

    killed: int
    killed_in: list[EventWords]
    before: int
    others: bool
    lost: bool


class Apart(TypedDict):
    """``by``: the difference of a pair; ``flight``: the in-flight bound; ``before``: from before
    our first connect; ``silent``: those that fell silent by an event of the plan, which the server
    may hold still.
    """

    pair: str
    by: int
    flight: int
    before: int
    silent: int


# The sentence names this many restarts of counters.
_TIMES_NAMED = 3
_OTHER_CLIENTS = (
    "another client uses this server, such as a monitor or a second asyncli: stop it, and run again"
)
_LATE = "the server still counts connections that were lost or given up"
_DESCRIPTORS = (
    "see its error log for 'too many open files', and raise its descriptor limit{more_descriptors}"
)
_SLOTS = "raise its limit on connections{more_slots}"
_RESTARTED = "see whether the server was restarted"
_SEE_OTHERS = "see the other findings for why"
#: The two counts of each pair, the one that can fall behind first.
_NAMES = {
    "asked": ("the connections held", "those asked for"),
    "held": ("the server's active count", "asyncli's"),
    "accepts": ("the server's count of accepts", "the connections that asyncli opened"),
    "handled": ("the server's count of handled connections", "its accepts"),
    "requests": ("the server's count of requests", "asyncli's answers and polls"),
}
_BEHIND = {
    "asked": "see the losses, the failed connects and the ramp's lateness for why",
    "held": (
        "held connections had ended unnoticed: see the server's error log, and middle boxes for "
        "silent drops"
    ),
    "accepts": f"they waited in its listen queue: {_DESCRIPTORS}",
    "handled": _SLOTS,
    "requests": _RESTARTED,
}


def divergence_sentence(
    pair: str, from_s: float, to_s: float, most: int, at_s: float, closed: bool
) -> str:
    """Which count fell behind the other, when, by how much, and until when."""
    behind, of = _NAMES[pair]
    how = "fell behind" if most < 0 else "ran ahead of"
    # What is in flight hides a small difference at first; nothing is between the plan and what is
    # held.
    at = "at" if pair == "asked" else "at or before"
    when = (
        f"{behind} {how} {of} {at} {format_clock(from_s)}, by up to {_count(most)} (at "
        f"{format_clock(at_s)})"
    )
    if closed:
        return f"{when}, until {format_clock(to_s)}"
    return f"{when}, to the end"


def _count(difference: int) -> str:
    return format_count(abs(difference))


def _since(since: Since | None) -> str:
    if since is None:
        return ""
    first = format_clock(since["from_s"])
    largest = f" (diverged at or before {first}, by {_count(since['most'])} at most"
    instant = format_clock(since["at_s"])
    if instant == first:
        return f"{largest})"
    return f"{largest}, which was at {instant})"


def _differ(pair: str, by: int) -> str:
    behind, of = _NAMES[pair]
    if by < 0:
        return f"{behind} is {_count(by)} less than {of}"
    return f"{behind} is {_count(by)} more than {of}"


def _stale(killed: int, before: int, killed_in: Sequence[EventWords]) -> str:
    counts = []
    if killed and killed_in:
        counts.append(f"{killed:,} of a worker that was killed {in_the_time_of(killed_in)}")
    elif killed:
        counts.append(f"{killed:,} of a worker that was killed")
    if before:
        counts.append(
            f"{before:,} from before asyncli's first connect (lost in an earlier run, or others')"
        )
    return (
        f"it still counts {' and '.join(counts)}; "
        "nginx forgets those of a killed worker only when it is restarted"
    )


def _beyond(why: Beyond) -> str:
    if why["killed"] or why["before"]:
        return _stale(why["killed"], why["before"], why["killed_in"])
    if why["others"]:
        return _OTHER_CLIENTS
    if why["lost"]:
        return f"{_LATE}: see the findings on those"
    return _LATE


def _behind(addresses: int, severity: Severity, remedy: str) -> tuple[str, Severity]:
    """Remedy and severity where the server counts less than we do."""
    if addresses > 1:
        remedy = f"the status page may count only some of the {addresses} addresses; else {remedy}"
        return remedy, "info"
    return remedy, severity


#: Codes of findings of server's counts that differed for a while.
PARTED = frozenset({"parted_held", "parted_accepts", "parted_handled", "parted_requests"})


@finding("parted_{pair}", "warning", values="asked, held, accepts, handled or requests")
def parted(
    pair: str,
    from_s: float,
    to_s: float,
    at_s: float,
    most: int,
    closed: bool,
    times: int,
    addresses: int,
    beyond: Beyond,
    server: str,
) -> Words:
    """Two counts differed for a while by more than was in flight: the server's count against
    asyncli's, or the held connections against the planned ones. A warning if the server counted
    fewer connections at one address, else an info. ``times``: how often; ``most``: by how much in
    the largest, at ``at_s`` (below 0: the server's count, or the held connections, were less);
    ``addresses``: servers of the run.
    """
    evidence = divergence_sentence(pair, from_s, to_s, most, at_s, closed)
    if times == 2:
        evidence += "; and once more"
    elif times > 2:
        evidence += f"; and {times - 1} times more"
    if most >= 0:
        remedy = _beyond(beyond) if pair == "held" else _OTHER_CLIENTS
        return Words(evidence, remedy, "info")
    severity: Severity = "info" if pair in ("asked", "requests") else "warning"
    remedy = _BEHIND[pair].format_map(settings(server))
    if pair in ("held", "accepts", "requests"):
        return Words(evidence, *_behind(addresses, severity, remedy))
    return Words(evidence, remedy, severity)


@finding("reconcile_held", "error")
def reconcile_held(
    held: int, active: int, since: Since | None, addresses: int, beyond: Beyond
) -> Words:
    """At the hold's end client and server count different numbers of connections. A warning if the
    server counts more.
    """
    evidence = (
        f"the client holds {format_many(held, 'connection')}, the server {active:,}{_since(since)}"
    )
    if active > held:
        return Words(evidence, _beyond(beyond), "warning")
    remedy = (
        "the server closed connections, or never accepted them: see its error log for 'too many "
        "open files', and middle boxes for silent drops"
    )
    return Words(evidence, *_behind(addresses, "error", remedy))


def found_by_values(row: str, of_descriptors: bool) -> str:
    """Where the server's active count is from, as a sentence."""
    if of_descriptors:
        return f"The server's active count is of its process's descriptors ({row}), not of a gauge."
    return f"The server's active count is {row}: found by its values, not by a rule."


@finding("counted_by_values", "info")
def counted_by_values(
    row: str, url: str, before: int, since: int | None, held: int, active: int, agrees: bool
) -> Words:
    """No rule names what counts connections on the server's pages of metrics, and one row counts
    them by its values: it rose by one for each connection, stayed with them, and fell when they
    were closed. Where none does, the descriptors of the page's process may count them. The count is
    compared with asyncli's; no cost is divided by it, and it is no evidence of a loss. A warning if
    the two differ at the hold's end. Of descriptors only if there are fewer of them than
    connections: more may be files, and whether the counts agree is unknown then.

    ``row``: its name and labels; ``url``: the page; ``before``: what it counted beside asyncli's
    connections, which is taken off; ``since``: of descriptors, how many more there are after the
    drain than before the first connect, which may be in the count (below 0: how many fewer; null:
    no descriptors); ``held``, ``active``: asyncli's count and the row's at the hold's end;
    ``agrees``: whether they differ by no more than was in flight, and ``since``.
    """
    if since is not None:
        return _counted_by_descriptors(row, url, before, since, held, active)
    evidence = (
        f"{row} of {url} counts the server's active connections by its values: no rule names it, "
        "and it rose with the connections held, stayed with them, and fell when they were closed"
    )
    flag = f"--metrics-map {shlex.quote(f'active={row}')}"
    remedy = f"name it in later runs: {flag}"
    if before:
        evidence += f"; what it counted beside them ({format_count(before)}) is taken off"
    if before > 1:
        # One is taken for asyncli's own reading of the page: see collect/metric_values.py.
        remedy += f", which does not take off the {format_count(before)}"
    if agrees:
        return Words(evidence, remedy)
    evidence += (
        f"; at the hold's end it is {format_count(active)}, and asyncli holds {format_count(held)}"
    )
    remedy = f"see whether it counts all connections; if so, {remedy}"
    return Words(evidence, remedy, "warning")


def _counted_by_descriptors(
    row: str, url: str, before: int, since: int, held: int, active: int
) -> Words:
    evidence = (
        f"{row} of {url} counts the server's connections: no gauge there does, and these "
        "descriptors rose with the connections held, stayed with them, and fell when they were "
        f"closed; those before the first connect ({format_count(before)}) are taken off"
    )
    if active != held:
        evidence += (
            f"; at the hold's end it is {format_count(active)}, and asyncli holds "
            f"{format_count(held)}"
        )
    if since > 0 and active > held:
        evidence += f"; {format_count(since)} more are open after the drain, and no connections"
    if active + max(0, -since) < held:
        remedy = (
            "see whether another process holds some of the connections, and the server's error "
            "log for 'too many open files'"
        )
        return Words(evidence, remedy, "warning")
    remedy = (
        "none needed; a gauge of connections, if there is one, is more exact "
        "(--metrics-map active=NAME)"
    )
    return Words(evidence, remedy)


@finding("reconcile_accepts", "error")
def reconcile_accepts(
    opened: int, accepts: int, since: Since | None, addresses: int, silent: int, server: str
) -> Words:
    """The client opened another number of connections than the server accepted. ``silent``: those
    that were never answered, if they explain it: when the last packet of a handshake is lost, only
    the client has a connection.
    """
    evidence = (
        f"the client opened {format_many(opened, 'connection')}, the server accepted "
        f"{accepts:,}{_since(since)}"
    )
    if accepts > opened:
        return Words(evidence, _OTHER_CLIENTS, "warning")
    remedy = f"they wait in its listen queue: {_DESCRIPTORS}".format_map(settings(server))
    if silent:
        evidence += f"; {silent:,} of these were never answered"
        remedy = f"the network may have lost the last packet of their handshakes; else {remedy}"
    return Words(evidence, *_behind(addresses, "warning" if silent else "error", remedy))


@finding("reconcile_handled", "error")
def reconcile_handled(accepts: int, handled: int, since: Since | None, server: str) -> Words:
    """The server accepted connections and did not handle them: nginx had no free slot for them;
    HAProxy rejected them by a rule, or their handshake of TLS failed.
    """
    accepted = format_many(accepts, "connection")
    evidence = f"the server accepted {accepted} and handled {handled:,}"
    if product_of(server) == "HAProxy":
        evidence += (
            ": the rest got no session, because a rule rejected them or their handshake of TLS "
            "failed"
        )
        remedy = "see its rules that reject, and its counts of denied connections (dcon, dses)"
        return Words(evidence + _since(since), remedy)
    evidence += f": the rest found no free slot{_since(since)}"
    return Words(evidence, _SLOTS.format_map(settings(server)))


@finding("reconcile_requests", "warning")
def reconcile_requests(answers: int, requests: int, since: Since | None, addresses: int) -> Words:
    """The server counts another number of requests than the client's answers and polls."""
    evidence = (
        f"the client counts {answers:,} answers and polls, the server {requests:,} "
        f"requests{_since(since)}"
    )
    if requests > answers:
        return Words(evidence, _OTHER_CLIENTS)
    return Words(evidence, *_behind(addresses, "warning", _RESTARTED))


def counts_ahead(diverged: Finding) -> bool:
    """Whether it is a finding of a server that counts more than we do."""
    fields = diverged.fields
    match diverged.code:
        case "parted_held" | "parted_accepts" | "parted_handled":
            return bool(fields["most"] > 0)
        case "reconcile_held":
            return bool(fields["active"] > fields["held"])
        case "reconcile_accepts":
            return bool(fields["accepts"] > fields["opened"])
        case _:
            return False


@finding("reconcile_stale", "info", "restart the server before a run")
def reconcile_stale(by: int, killed: int, before: int, killed_in: Sequence[EventWords] = ()) -> str:
    """The server counts connections as active that are not this run's, or that ended with a worker
    that was killed. ``killed``: how many of these; ``killed_in``: the events of the plan in whose
    time.
    """
    return f"{_differ('held', by)}: {_stale(killed, before, killed_in)}"


@finding("reconcile_in_flight", "info")
def reconcile_in_flight(apart: Sequence[Apart], ended: bool, anew: bool) -> Words:
    """Counts differ by no more than was in flight when they were read, or had fallen silent by an
    event of the plan, so they agree. ``ended``: hold and drain finished; ``anew``: the server was
    restarted during the run.
    """
    has_silent = any(difference["silent"] for difference in apart)
    remedy = "after a finished hold and drain nothing is in flight"
    if ended:
        remedy = "none needed: client and server may count aborted connections differently"
    if has_silent:
        remedy = "none needed: a server holds clients that fell silent until it notices that"
    if anew:
        remedy = "a server that restarts loses what it counted after its last status page"
    parts = []
    for difference in apart:
        in_flight = f"up to {format_count(difference['flight'])} were in flight"
        if difference["silent"]:
            silent = format_count(difference["silent"])
            in_flight = f"it may still hold the {silent} that fell silent by events of the plan"
            if difference["flight"] > difference["silent"]:
                others = format_count(difference["flight"] - difference["silent"])
                in_flight += f", and up to {others} were in flight"
        if difference["before"]:
            before = format_count(difference["before"])
            in_flight = f"{before} were there before its first connect, {in_flight}"
        parts.append(f"{_differ(difference['pair'], difference['by'])} ({in_flight})")
    evidence = "; ".join(parts)
    if has_silent:
        return Words(
            f"counts differ by no more than was in flight or had fallen silent: {evidence}", remedy
        )
    return Words(f"counts differ by no more than was in flight: {evidence}", remedy)


@finding(
    "counters_restarted",
    "warning",
    "see the server's log for why it was restarted, or reloaded (HAProxy)",
)
def counters_restarted(at_s: Sequence[float], counter: str, before: float, after: float) -> str:
    """The server's counters fell: it was restarted, or another server answers. ``at_s``: when,
    first from ``before`` to ``after``.
    """
    when = ", ".join(map(format_clock, at_s[:_TIMES_NAMED]))
    if len(at_s) > _TIMES_NAMED:
        when = f"{when} and {len(at_s) - _TIMES_NAMED} more times"
    return (
        f"the server's counters restarted at {when} ({counter} fell from {format_count(before)} "
        f"to {format_count(after)}): the counts before and after are added; what came after its "
        "last status page is missing"
    )


def _way_to_a_page(server: str) -> str:
    """How the page of ``server`` ("": unknown) is read."""
    page = STATUS_PAGES.get(product_of(server), "")
    if server and not page:
        return (
            f"asyncli reads status pages of {', '.join(STATUS_PAGES)}, and none of {server}; "
            "if its own metrics count connections, name their page with --server-metrics"
        )
    return f"name its status page ({page or ', '.join(STATUS_PAGES)}) with --status-url"


@finding("reconciliation_unknown", "info")
def reconciliation_unknown(why: Unknown, lacks: Sequence[str], server: str) -> Words:
    """The server's own counts are unknown, so the client's are not confirmed. ``lacks``: of a
    status page and a baseline, those that were not planned, or not given to the agent.
    """
    metrics_map = "name what counts connections on its page of metrics with --metrics-map"
    status_url = _way_to_a_page(server)
    ways = {
        "status_url": status_url,
        "status_url_of_agent": f"{status_url}, as a flag of 'asyncli agent'",
        "metrics_map": metrics_map,
        "metrics_map_of_agent": f"{metrics_map}, as a flag of 'asyncli agent'",
        "baseline": "plan a --baseline",
    }
    missing = ", and ".join(ways[name] for name in lacks)
    reason, remedy = {
        "nothing_connected": ("nothing was connected", _SEE_OTHERS),
        "not_installed": (
            "NumPy is not installed here",
            "run 'asyncli report RUN.db' on a host with all of asyncli (pip install asyncli)",
        ),
        "no_page": ("no status page from before the ramp", missing or _SEE_OTHERS),
        "page_tells_nothing": (
            "the status page has neither connections nor requests",
            "Apache counts requests with ExtendedStatus On, and connections in prefork, or in "
            "event with one process",
        ),
        "page_silent": ("the page that counts was silent at the hold's end", _SEE_OTHERS),
        "page_of_a_part": (
            "by the kernel's sockets the server holds all connections, and the page of metrics "
            "counts fewer: it is of one of its processes, or of another server",
            "let one process serve, or name the page that counts for all first",
        ),
        "page_of_new_processes": (
            "after its reload the status page is of the new processes, while earlier ones hold "
            "the connections",
            _SEE_OTHERS,
        ),
    }[why]
    return Words(f"the server's own counts are unknown: {reason}", remedy)
