"""Findings of the connections and requests that client and server both count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from asyncli.findings import Words, finding
from asyncli.records import Severity
from asyncli.units import format_clock, format_count, format_many

Unknown = Literal["nothing_connected", "no_page", "page_tells_nothing", "page_silent"]


class Since(TypedDict):
    """When two counts parted, and by how much at ``most``."""

    from_s: float
    most: int
    at_s: float


class Beyond(TypedDict):
    """What explains that the server counts more than we hold: connections of ``killed`` workers, or those of ``before`` our first
    connect (0 where they do not); ``others`` that use it; or, with none of these, late news of what was ``lost`` or failed.
    """

    killed: int
    before: int
    others: bool
    lost: bool


class Apart(TypedDict):
    """``by`` how much the second of a pair differs, of ``flight`` that were in flight and ``before`` that were there already."""

    pair: str
    by: int
    flight: int
    before: int


_STRANGER = "someone else uses this server: run against a server that only we use"
_LATE = "it still counts connections that were lost or given up"
_DESCRIPTORS = "see its error log for 'too many open files', and raise its descriptor limit (nginx: worker_rlimit_nofile)"
_SLOTS = "raise its limit of connections (worker_connections in nginx.conf)"
_STARTED_ANEW = "see whether the server was restarted"
_SEE_OTHERS = "see the other findings for why"
#: What is behind, and what it is behind of.
_NAMES = {
    "asked": ("the connections held", "those asked for"),
    "held": ("the server's active count", "ours"),
    "accepts": ("the server's count of accepts", "the connections we opened"),
    "handled": ("the server's count of handled connections", "its accepts"),
    "requests": ("the server's count of requests", "our answers and polls"),
}
_BEHIND = {
    "asked": "see the deaths, the failures and the ramp's lateness for why",
    "held": "connections that we believed in were gone: see the server's error log, and middle boxes for silent drops",
    "accepts": f"they waited in its listen queue: {_DESCRIPTORS}",
    "handled": _SLOTS,
    "requests": _STARTED_ANEW,
}


def parted_in_words(pair: str, from_s: float, to_s: float, most: int, at_s: float, closed: bool) -> str:
    """Who fell behind whom when, by how much, and when they met again."""
    behind, of = _NAMES[pair]
    how = "fell behind" if most < 0 else "ran ahead of"
    when = f"{behind} {how} {of} at {format_clock(from_s)} by up to {_count(most)} (at {format_clock(at_s)})"
    return f"{when}, and met it again at {format_clock(to_s)}" if closed else f"{when}, to the end"


def _count(difference: int) -> str:
    return format_count(abs(difference))


def _since(since: Since | None) -> str:
    if since is None:
        return ""
    most, at = _count(since["most"]), format_clock(since["at_s"])
    return f" (apart since {format_clock(since['from_s'])}, by {most} at most, at {at})"


def _differ(pair: str, by: int) -> str:
    behind, of = _NAMES[pair]
    return f"{behind} is {_count(by)} {'less' if by < 0 else 'more'} than {of}"


def _stale(killed: int, before: int) -> str:
    known = [f"{killed:,} that went with a worker of it that was killed"] if killed else []
    known += [f"{before:,} that it counted before our first connect, lost ones of an earlier run or others'"] if before else []
    words = ", and ".join(known)
    return f"it still counts {words}; nginx takes off what a killed worker held only when all of it is started anew"


def _beyond(why: Beyond) -> str:
    if why["killed"] or why["before"]:
        return _stale(why["killed"], why["before"])
    if why["others"]:
        return _STRANGER
    return f"{_LATE}: see what is said of those" if why["lost"] else _LATE


def _behind(addresses: int, severity: Severity, remedy: str) -> tuple[str, Severity]:
    """Where the server counts less than we do: remedy and severity."""
    if addresses > 1:
        return f"the status page may count only some of the {addresses} addresses; else {remedy}", "info"
    return remedy, severity


@finding("parted_{pair}", "info")
def parted(
    pair: str, from_s: float, to_s: float, at_s: float, most: int, closed: bool, times: int, addresses: int, beyond: Beyond
) -> Words:
    """Two counts differed for a while by more than was in flight: the widest time of ``times``, ``most`` at ``at_s`` (below 0:
    the server's, or what is held of what was asked for, was behind). ``addresses``: servers that the status page may speak of.
    """
    evidence = parted_in_words(pair, from_s, to_s, most, at_s, closed)
    if times > 1:
        evidence += f"; and {'once' if times == 2 else f'{times - 1} times'} more"
    if most >= 0:
        return Words(evidence, _beyond(beyond) if pair == "held" else _STRANGER)
    severity: Severity = "info" if pair in ("asked", "requests") else "warning"
    if pair in ("held", "accepts", "requests"):
        return Words(evidence, *_behind(addresses, severity, _BEHIND[pair]))
    return Words(evidence, _BEHIND[pair], severity)


@finding("reconcile_held", "error")
def reconcile_held(held: int, active: int, since: Since | None, addresses: int, beyond: Beyond) -> Words:
    """At the hold's end the client holds another number of connections than the server counts as active. A warning where the
    server counts more, as of others' or of what was lost.
    """
    evidence = f"the client holds {held:,} connections, the server {active:,}{_since(since)}"
    if active > held:
        return Words(evidence, _beyond(beyond), "warning")
    remedy = (
        "the server let connections go, or never took them from its listen queue: see its error log for 'too many open "
        "files' and 'reusing connections', and middle boxes for silent drops"
    )
    return Words(evidence, *_behind(addresses, "error", remedy))


@finding("reconcile_accepts", "error")
def reconcile_accepts(opened: int, accepts: int, since: Since | None, addresses: int, silent: int) -> Words:
    """The client opened another number of connections than the server accepted. ``silent``: those that never got an answer, where
    they explain it: of a handshake whose last packet was lost only the client knows.
    """
    evidence = f"the client opened {opened:,} connections, the server accepted {accepts:,}{_since(since)}"
    if accepts > opened:
        return Words(evidence, _STRANGER, "warning")
    remedy = f"they wait in its listen queue: {_DESCRIPTORS}"
    if silent:
        evidence += f"; {silent:,} of ours fell silent before their first answer"
        remedy = f"if packets were lost on the way, so was the last one of a handshake; else {remedy}"
    return Words(evidence, *_behind(addresses, "warning" if silent else "error", remedy))


@finding("reconcile_handled", "error")
def reconcile_handled(accepts: int, handled: int, since: Since | None) -> Words:
    """The server accepted connections that it could not handle, for want of a free slot."""
    return Words(
        f"the server accepted {accepts:,} connections and handled {handled:,}: it had no free slot for the rest{_since(since)}",
        _SLOTS,
    )


@finding("reconcile_requests", "warning")
def reconcile_requests(answers: int, requests: int, since: Since | None, addresses: int) -> Words:
    """The server counts another number of requests than the answers and polls of the client."""
    evidence = f"the client counts {answers:,} answers and polls, the server {requests:,} requests{_since(since)}"
    if requests > answers:
        return Words(evidence, _STRANGER)
    return Words(evidence, *_behind(addresses, "warning", _STARTED_ANEW))


@finding("reconcile_stale", "info")
def reconcile_stale(by: int, killed: int, before: int) -> Words:
    """The server counts connections as active that are not this run's, or went with a worker of it that was ``killed``."""
    return Words(f"{_differ('held', by)}: {_stale(killed, before)}", "start the server anew before a run")


@finding("reconcile_in_flight", "info")
def reconcile_in_flight(apart: Sequence[Apart], ended: bool, anew: bool) -> Words:
    """Counts differ by no more than was in flight when they were read, so they agree. ``ended``: hold and drain came to their
    end; ``anew``: the server was started anew meanwhile.
    """
    remedy = "a hold and a drain that come to their end leave nothing in flight"
    if ended:
        remedy = "none needed: what was cut off or given up on the way may be counted by one side alone"
    if anew:
        remedy = "what a server counts after its last page goes with it: one that is not started anew leaves no such difference"
    said = []
    for one in apart:
        there = f"{format_count(one['before'])} were there before our first connect, " if one["before"] else ""
        said.append(f"{_differ(one['pair'], one['by'])} ({there}up to {format_count(one['flight'])} were in flight)")
    return Words(f"counts differ by no more than was in flight: {'; '.join(said)}", remedy)


@finding("reconcile_until", "info")
def reconcile_until(at_s: float, opened: int, answered: int) -> Words:
    """The last status page was read before the run's end; what was opened or answered later has nothing to be compared with."""
    return Words(
        f"the last status page was that of {format_clock(at_s)}: {format_many(opened, 'connection')} opened and "
        f"{format_many(answered, 'answer')} that came later are held against nothing",
        "read the page to the run's end",
    )


@finding("counters_restarted", "warning")
def counters_restarted(at_s: Sequence[float], counter: str, before: float, after: float) -> Words:
    """The server's counters fell at ``at_s``, first from ``before`` to ``after``: it was started anew, or another answers."""
    when = ", ".join(map(format_clock, at_s[:3]))
    more = f" and {len(at_s) - 3} more times" if len(at_s) > 3 else ""
    return Words(
        f"the server's counters began anew at {when}{more} ({counter} fell from {format_count(before)} to "
        f"{format_count(after)}): it was restarted, or another answers; its counts before and after are added, less what came "
        "after its last page",
        "see the server's log for why it was restarted",
    )


@finding("reconciliation_unknown", "info")
def reconciliation_unknown(why: Unknown) -> Words:
    """The server's own counts are not known, and the client's stand alone."""
    said, remedy = {
        "nothing_connected": ("nothing was connected", _SEE_OTHERS),
        "no_page": (
            "no status page from before the ramp",
            "name its status page (nginx, Apache, HAProxy) with --status-url, and keep a --baseline",
        ),
        "page_tells_nothing": (
            "the status page tells neither connections nor requests",
            "believe the client's count; Apache's tells requests with ExtendedStatus On, and connections up to date in prefork, "
            "or in event with one process",
        ),
        "page_silent": ("the status page was silent at the hold's end", _SEE_OTHERS),
    }[why]
    return Words(f"the server's own counts are not known: {said}", remedy)
