"""Findings of connections that ended, or failed to open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from asyncli.findings import Words, finding
from asyncli.findings.event_words import EventWords, commands_first, in_the_time_of, see_commands
from asyncli.findings.protocol_codes import announced, name_of_reset, remedy_of_refusals
from asyncli.findings.tls import by_reason
from asyncli.model.products import product_of
from asyncli.model.records import HOST_LOST, RESUMED, Finding
from asyncli.model.units import (
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_share,
)

#: How connections were lost, by cause; :func:`announced` says how a protocol does it.
LOSS_WORDS = {
    "reset": "were reset by the server or on the way",
    "closed_idle": "were closed by the server while idle",
    "closed_awaiting": "were closed by the server while a heartbeat waited for its answer",
    "closed_announced": "were ended by the server {announced}",
    "heartbeat_timeout": "fell silent: a heartbeat was not answered in time",
    "protocol_error": "got no answer that asyncli can read",
    "tls_failed": "were ended by a TLS error",
    "generator_lost": "were lost with a process of asyncli's own",
    "other": "ended for an unknown reason",
}
# The same in short.
_GENERAL = {
    "closed_announced": "were closed by the server with notice",
    "heartbeat_timeout": "fell silent",
}
#: How connects failed, by cause, and the remedy.
CONNECT_WORDS: dict[str, tuple[str, str]] = {
    "refused": (
        "connects were refused",
        "see that the server listens at this address and port, its backlog, and firewalls",
    ),
    "reset": (
        "connects were granted by the kernel of the other end, and then reset before anything was "
        "sent",
        "see the server's error log and limits (net.ipv4.tcp_abort_on_overflow resets at a full "
        "listen queue), and firewalls and proxies on the way",
    ),
    "unreachable": (
        "connects found no route, or were blocked",
        "see routes and firewall between here and the server",
    ),
    "connect_timeout": (
        "connects got no answer in time",
        "raise net.core.somaxconn and the server's backlog=, ramp more slowly (--interval), or "
        "see firewalls, if over a network",
    ),
    "tls_failed": ("connects failed in the TLS handshake", "see the finding tls_handshakes_failed"),
    "tls_timeout": (
        "connects succeeded, but their TLS handshake took too long",
        "ramp more slowly (--interval), or give the server more CPU: a handshake takes some 0.5 "
        "ms of it",
    ),
    "handshake_refused": (
        "connects were refused in the protocol's handshake, or ended in it before any answer",
        "see the finding handshakes_refused",
    ),
    "handshake_timeout": (
        "connects succeeded, but their protocol handshake was not answered in time",
        "see the server's load, and whether it speaks the protocol at this URL",
    ),
    "no_ports": (
        "connects found no free local port",
        "spread over more sources (--source) or server ports, or widen "
        "net.ipv4.ip_local_port_range",
    ),
    "no_descriptors": (
        "connects found no free descriptor",
        "raise the limit (ulimit -n), or use more --workers",
    ),
    "other": ("connects failed for an unknown reason", "see the kernel's log"),
}
# Remedies of failed reconnects, which follow a loss.
_REPLACING = {
    "refused": (
        "see the findings on lost connections: meanwhile nothing listened there, or a firewall "
        "refused them"
    ),
    "reset": (
        "see the findings on lost connections: meanwhile the server, or a firewall or proxy on "
        "the way, reset them"
    ),
    "unreachable": "see routes, links and firewalls between here and the server at that time",
    "connect_timeout": (
        "see the findings on lost connections: meanwhile the server did not accept, or their "
        "packets were dropped"
    ),
}
# Kinds of error statuses (RFC 9110, section 15; RFC 6585); others below 500 are about the request,
# others about the server. nginx answers 503 beyond limit_conn and limit_req.
_STATUS_KINDS = {
    **dict.fromkeys((401, 403, 407), "login"),
    **dict.fromkeys((429, 503), "limit"),
    **dict.fromkeys((502, 504), "backend"),
}
_STATUS_REMEDIES = {
    "request": (
        "use a path, or a --method such as GET, that it answers with a status below 400; else see "
        "the server's error log"
    ),
    "login": (
        "send what it asks for (--header 'Authorization: ...'), or use a path that needs no "
        "permission"
    ),
    "limit": (
        "see the server's limits on connections and on the rate of requests (of one client too: "
        "--source spreads them), its load, and its error log; or use a longer --keepalive"
    ),
    "backend": "see the backend behind it, and the server's error log",
    "server": "see the server's error log for the reason",
}
# Settings of servers, by what they allow more of.
_SETTINGS = {
    "more_slots": {
        "nginx": "worker_connections, worker_rlimit_nofile",
        "Apache": "MaxRequestWorkers",
        "HAProxy": "maxconn",
    },
    "more_descriptors": {"nginx": "worker_rlimit_nofile", "HAProxy": "ulimit-n"},
    "keep_alive": {
        "nginx": "keepalive_timeout, keepalive_requests",
        "Apache": "KeepAlive",
        "HAProxy": "option http-keep-alive",
    },
    "longer_life": {
        "nginx": "keepalive_requests, keepalive_time",
        "Apache": "MaxKeepAliveRequests",
    },
    "longer_workers": {"Apache": "MaxConnectionsPerChild"},
}
# From this share of them on, full queues are those of a server that stood still.
_MOST = 0.5
# This many client hosts are named.
_NAMED = 3
#: The meaning of TCP counters (kernel: networking/snmp_counter.rst); "full" is asyncli's own, for
#: Unix sockets.
_QUEUE = {
    "overflows": (
        "connects were sent again or in vain while a listen queue on {host} was full "
        "(ListenOverflows: {dropped})"
    ),
    "full": (
        "connects waited for room in the server's listen queue; clients such as nginx do not "
        "wait, and fail (EAGAIN)"
    ),
    "drops": (
        "connects were sent again or in vain while listening sockets of {host} that were not full "
        "dropped some (ListenDrops less ListenOverflows: {dropped})"
    ),
}


class HostReport(TypedDict):
    """``count`` attempts that silent client hosts reported later; ``hosts``: their names and
    silences (s).
    """

    count: int
    hosts: Sequence[tuple[str, float]]
    until_s: float


class Incident(TypedDict):
    """Losses of one cause by one mechanism (``code``): why, and its losses by other causes."""

    code: str
    count: int
    certain: bool
    from_s: float
    to_s: float
    why: str
    others: Sequence[tuple[str, int]]


def describe_loss(cause: str, count: int, protocol: str) -> str:
    """``49,812 connections were closed by the server while idle``."""
    words = LOSS_WORDS.get(cause, LOSS_WORDS["other"]).format(announced=announced(protocol))
    if count != 1:
        return f"{format_count(count)} connections {words}"
    if words.startswith("were "):
        return f"1 connection was {words.removeprefix('were ')}"
    return f"1 connection {words}"


def plain_braces(text: str) -> str:
    """``text`` with its braces escaped."""
    return text.replace("{", "{{").replace("}", "}}")


# No other limit replaces that part of the verdict, not even one on all losses.
_TO_ALLOW = (
    "a run that may have such losses needs --fail-if 'connections.deaths.generator_lost > 200%' "
    "when it starts"
)


def lost_with(findings: Sequence[Finding], whose: str, *, is_limited: bool = False) -> Words:
    """``a client host (vm at 10.0.0.9)``: what of asyncli lost connections, and the remedy.
    ``whose``: "asyncli's" or "its"; ``is_limited``: the run has a limit on such losses.
    """
    to_allow = "" if is_limited else f"; {_TO_ALLOW}"
    hosts: dict[str, None] = {}
    for cause in findings:
        if cause.code == HOST_LOST:
            # Files of older versions have no fields.
            hosts[str(cause.fields.get("host", "its name is not known"))] = None
    has_process = any(map(_is_of_process, findings))
    of_process = "see the finding about that process, or about the interruption of a resumed run"
    if not hosts:
        return Words(f"a process of {whose} own", f"{of_process}{to_allow}")
    named = _named_hosts(list(hosts))
    which = "that host" if len(hosts) == 1 else "each of them"
    of_host = f"see the finding {HOST_LOST} about {which}"
    if has_process:
        return Words(
            f"{named}, and processes of {whose} own", f"{of_host}; and {of_process}{to_allow}"
        )
    return Words(named, f"{of_host}{to_allow}")


def _is_of_process(cause: Finding) -> bool:
    """Whether a process of asyncli ended, also by an interruption, and its connections with it."""
    if cause.code == RESUMED:
        return bool(cause.fields.get("held"))
    return cause.code == "worker_lost"


def _named_hosts(hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        return f"a client host ({hosts[0]})"
    listed = ", ".join(hosts[:_NAMED])
    if len(hosts) > _NAMED:
        return f"client hosts ({listed} and {len(hosts) - _NAMED} more)"
    return f"client hosts ({listed})"


def cut_off(hosts: Sequence[tuple[str, float]], until_s: float) -> Words:
    """``vm at 10.0.0.9 had itself been silent for 13.6 s, until 0:00:31: looks like that client
    host was cut off...``
    """
    until = format_clock(until_s)
    if len(hosts) == 1:
        name, silent_s = hosts[0]
        return Words(
            f"{name} had itself been silent for {silent_s:.1f} s, until {until}: "
            "looks like that client host was cut off or stopped",
            "see that host's cable, its switch, and whether something stopped it; "
            "a --timeout that is longer loses none by it",
        )
    names = " and ".join(f"{name} (for {silent_s:.1f} s)" for name, silent_s in hosts)
    return Words(
        f"{names} had been silent, until {until}: "
        "looks like these client hosts were cut off or stopped",
        "see the cables of those hosts, their switch, and whether something stopped it; "
        "a --timeout that is longer loses none by it",
    )


# What a cause means, where its words in a report do not tell.
_MEANS = {
    "heartbeat_timeout": (
        "neither side had closed the connection, but a heartbeat got no answer within --timeout "
        "(a connection that listens: no data within --silence); the diagnosis says why, as far as "
        "it can be told"
    ),
    "other": "the kernel gave an error that has no cause of its own here",
}


def causes(code: str) -> Iterator[str]:
    """The meaning of the cause ``code`` of losses or of failed connects."""
    if code in _MEANS:
        yield _MEANS[code]
    elif code in LOSS_WORDS:
        notice = "with a message of its protocol (HTTP: 'Connection: close', HTTP/2: GOAWAY)"
        yield f"connections {LOSS_WORDS[code].format(announced=notice)}"
    if code in CONNECT_WORDS:
        words, remedy = CONNECT_WORDS[code]
        yield f"{words}; remedy: {remedy}"


def connects_failed(cause: str, count: int) -> Words:
    """``2 connects were refused``, and the remedy."""
    words, remedy = CONNECT_WORDS.get(cause, CONNECT_WORDS["other"])
    return Words(_many(count, words), remedy)


@finding("failed_{cause}", "error", values=", ".join(CONNECT_WORDS))
def failed(
    cause: str,
    count: int,
    from_s: float | None,
    until_s: float | None,
    replacing: bool,
    told: Sequence[HostReport],
) -> Words:
    """Failed connects of one cause: the entry of the cause itself says more. ``replacing``: all
    were reconnects. ``told``: reported by client hosts after a silence.
    """
    evidence, remedy, _ = connects_failed(cause, count)
    if cause not in evidence:
        evidence += f" ({cause})"
    if from_s is not None and until_s is not None:
        evidence += f", from {format_clock(from_s)} to {format_clock(until_s)}"
    if replacing:
        evidence += ", when lost connections were replaced"
        remedy = _REPLACING.get(cause, remedy)
    for report in told:
        cut = cut_off(report["hosts"], report["until_s"])
        if report["count"] == count:
            evidence += f"; all of them were reported late: {cut.evidence}"
            remedy = cut.remedy
        else:
            reported = format_count(report["count"])
            evidence += f"; {reported} of them were reported late: {cut.evidence}"
            remedy = f"{cut.remedy}; else {remedy}"
    return Words(evidence, remedy)


@finding("lost_{cause}", "error", values=", ".join(LOSS_WORDS))
def lost(
    cause: str,
    count: int,
    incidents: Sequence[Incident],
    remedies: Sequence[str],
    protocol: str = "http",
) -> Words:
    """Connections lost before the drain by one cause: the entry of the cause itself says more. Each
    incident is reported once, with its most frequent cause; it is found by ages, idle times and
    requests of the lost connections and by the server's own counts.
    """
    if len(incidents) == 1:
        return Words(_incident(incidents[0], protocol), "; ".join(remedies))
    parts = []
    for incident in incidents:
        # The common part is not repeated.
        common = describe_loss(cause, incident["count"], protocol)
        own_count = format_count(incident["count"])
        parts.append(_incident(incident, protocol).replace(common, own_count, 1))
    if cause in _GENERAL:
        whole = f"{format_many(count, 'connection')} {_GENERAL[cause]}"
    else:
        whole = describe_loss(cause, count, protocol)
    evidence = f"{whole}; of these {'; '.join(parts)}"
    return Words(evidence, "; ".join(remedies))


def _incident(incident: Incident, protocol: str) -> str:
    if not incident["others"]:
        return incident["why"]
    others = [describe_loss(cause, count, protocol) for cause, count in incident["others"]]
    return f"{incident['why']}; with them {' and '.join(others)}"


def settings(server: str) -> dict[str, str]:
    """For remedies, by what they allow: `` (maxconn)`` of the recognised ``server``; of all, with
    names, where it is unknown.
    """
    is_unknown = server in ("", "the server")
    in_brackets = {}
    for allowed, by_server in _SETTINGS.items():
        if is_unknown:
            named = "; ".join(f"{name}: {settings}" for name, settings in by_server.items())
        else:
            named = by_server.get(product_of(server), "")
        in_brackets[allowed] = f" ({named})" if named else ""
    return in_brackets


def remedy_of_statuses(by_status: Mapping[int, int], of: int, *, over_tls: bool) -> str:
    """The remedy of error answers, among ``of`` answers. nginx answers 400 to a client without the
    certificate or TLS that it wants.
    """
    if set(by_status) == {400} and over_tls:
        return (
            "if the server asks for a certificate (ssl_verify_client), --client-cert must name "
            "a valid one that it trusts; else see its error log"
        )
    if set(by_status) == {400}:
        return "if the server speaks TLS there, use https://; else see its error log"
    kinds: dict[str, int] = {}
    for status, count in by_status.items():
        kind = _STATUS_KINDS.get(status, "request" if status < 500 else "server")
        kinds[kind] = kinds.get(kind, 0) + count
    if "request" in kinds and sum(by_status.values()) < of:
        # Others got better answers to the same request.
        kinds["server"] = kinds.pop("request") + kinds.get("server", 0)
    most_frequent_first = sorted(kinds, key=lambda kind: -kinds[kind])
    return "; ".join(_STATUS_REMEDIES[kind] for kind in most_frequent_first)


def allowed_by(by_status: Mapping[int, int], of: int, what: str) -> str:
    """The limit that allows as many error answers to ``what`` ("heartbeats") as were seen; "" if
    one limit cannot.
    """
    if len(by_status) != 1:
        return ""
    ((status, count),) = by_status.items()
    # The next step above, so that chance does not cross it.
    share = 1
    if 100 * count >= of:
        share = min(100, 5 * (20 * count // max(1, of) + 1))
    return f"; to allow up to {share} %: --fail-if '{what}.by_status.{status} > {share}%'"


def _of_events(events: Sequence[EventWords], in_events: int, of: int) -> str:
    """In the time of which events they came, or the first of them."""
    if not in_events:
        return f"they began {in_the_time_of(events)}"
    if in_events < of:
        return (
            f"{format_count(in_events)} of these {format_count(of)} came {in_the_time_of(events)}"
        )
    return f"all of them came {in_the_time_of(events)}"


@finding("status_errors", "error")
def status_errors(
    by_status: Mapping[int, int],
    of: int,
    from_s: float,
    until_s: float,
    over_tls: bool,
    server: str,
    descriptors: int | None,
    events: Sequence[EventWords] = (),
    in_events: int = 0,
) -> Words:
    """Heartbeats were answered with HTTP errors: the connections stayed open, but did not do the
    intended work. Verdict and row of heartbeats say how many. ``descriptors``: of a process of the
    ``server`` that had reached its limit meanwhile, if there are errors of the server (5xx): files
    and backends need one each. ``events``: those of the plan in whose time most of them came,
    ``in_events`` of them; with 0 of them, those in whose time the first came.
    """
    statuses = ", ".join(map(str, sorted(by_status)))
    when = f"from {format_clock(from_s)} to {format_clock(until_s)}"
    evidence = f"heartbeats got error answers (HTTP {statuses}), {when}"
    remedy = remedy_of_statuses(by_status, of, over_tls=over_tls)
    if events:
        evidence += f"; {_of_events(events, in_events, sum(by_status.values()))}"
    commands = see_commands(events)
    if commands:
        remedy = f"{commands}, and the server's error log: clients may come before it can serve"
    if descriptors is not None:
        evidence += (
            f"; meanwhile a process of {server or 'the server'} had {format_count(descriptors)} "
            "descriptors open, its limit"
        )
        named_settings = settings(server)["more_descriptors"]
        remedy = f"raise that limit{named_settings}; if errors remain, {remedy}"
    return Words(evidence, f"{remedy}{allowed_by(by_status, of, 'heartbeats')}")


@finding(
    "redirected", "warning", "use the location that it redirects to ('curl -sI URL' prints it)"
)
def redirected(by_status: Mapping[int, int], of: int, from_s: float | None) -> str:
    """Answers were redirects, which asyncli does not follow: the intended work is elsewhere.
    ``of``: all answers; ``from_s``: when the first of them came (None: in a bench).
    """
    question = "request" if from_s is None else "heartbeat"
    count = sum(by_status.values())
    statuses = f"HTTP {', '.join(map(str, sorted(by_status)))}"
    if count == of:
        return f"every {question} was answered with a redirect ({statuses})"
    share = f"{format_count(count)} of {format_many(of, question)}"
    redirects = f"{share} were answered with a redirect ({statuses})"
    if from_s is None:
        return redirects
    since = format_clock(from_s)
    return f"{redirects}, from {since} on: the server did the intended work for the others alone"


@finding("handshakes_refused", "error")
def handshakes_refused(protocol: str, reasons: Mapping[str, int]) -> Words:
    """TCP connected, but the server refused the protocol's handshake, such as an upgrade to
    WebSocket: by its answer.
    """
    return Words(
        f"the server refused handshakes: {by_reason(reasons)}",
        remedy_of_refusals(protocol, reasons),
    )


@finding("streams_lost", "error")
def streams_lost(reasons: Mapping[str, int]) -> Words:
    """Held streams ended or were answered with an error, on connections that stayed open: by the
    reason.
    """
    ends = by_reason({name_of_reset(why): count for why, count in reasons.items()})
    return Words(f"held streams ended: {ends}", remedy_of_refusals("http2", reasons))


@finding("reopened_later", "warning", "hold longer, or have the server send a shorter retry:")
def reopened_later(count: int, longest_s: float, hold_s: float) -> str:
    """The server's 'retry:' delays the reopening of lost event streams for longer than the hold."""
    delay = f"by up to {format_duration(longest_s)}; the hold lasted {format_duration(hold_s)}"
    return f"retry: delays the reopening of {format_many(count, 'lost connection')} {delay}"


@finding("listen_{what}", "warning", values="full, overflows or drops")
def listen(
    what: str, count: int, host: str, dropped: int | None, stood_still: float = 0.0
) -> Words:
    """A listen queue was full, or listening sockets dropped connects, probably the server's.
    Connects of asyncli waited for a Unix socket's queue; or with TCP they timed out, or their own
    sockets sent the SYN or the first request again, while listening sockets of the server's host
    dropped some, of all programs. ``count``: of ours; ``dropped``: by the host; ``stood_still``:
    which share of these while the server stood still.
    """
    words = _QUEUE[what].format(host=host, dropped=format_count(dropped or 0))
    likely = "" if what == "full" else ": looks like the server's"
    remedy = "raise its backlog=, which net.core.somaxconn caps, or open connections more slowly"
    if stood_still >= _MOST:
        likely += ", which stood still meanwhile and served nobody"
        remedy = "see why it stood still: with a longer backlog they wait all the same"
    elif stood_still:
        likely += f", which stood still for {format_share(stood_still)} of these"
        remedy = f"see why it stood still; {remedy}"
    return Words(_many(count, f"{words}{likely}"), remedy)


#: The code of :func:`listener_gone`.
LISTENER_GONE = "listen_gone"


@finding(LISTENER_GONE, "warning")
def listener_gone(
    held: int,
    from_s: float | None = None,
    until_s: float | None = None,
    events: Sequence[EventWords] = (),
) -> Words:
    """No socket listened at the server's ports any more while it still held connections. A process
    that ends in order closes its listening socket first, and the one that was to take its place did
    not; those who are connected notice nothing until it ends. ``held``: as that began; ``from_s``:
    since when none listened, null while the run lasts; ``until_s``: null if to the end; ``events``:
    those of the plan in whose time that began.
    """
    when = "any more"
    refused = "new clients are refused"
    if from_s is not None:
        when = f"from {format_clock(from_s)} on"
        refused = "new clients were refused"
    if from_s is not None and until_s is not None:
        when = f"from {format_clock(from_s)} to {format_clock(until_s)}"
    evidence = (
        f"nothing listened at the server's ports {when}, though it still held "
        f"{format_many(held, 'connection')}: {refused}"
    )
    remedy = "see the server's error log: whether what was to take its place has failed"
    if events:
        evidence += f"; it began {in_the_time_of(events)}"
    return Words(evidence, commands_first(events, remedy))


#: What a server does since an event whose clients had no answer, by where their connects were.
_ANSWERS_NONE = {
    "accepted": (
        "the server accepts connections, and answers none {since}: it accepted {connects}, and "
        "answered none of them within {waited}"
    ),
    "waiting": (
        "the server accepts no connection, and answers none {since}: {connects} waited in its "
        "listen queue for {waited}, and its program did not take them"
    ),
}


@finding("listen_{where}", "warning", values="accepted or waiting")
def answers_none(where: str, count: int, event: int, from_s: float, patience_s: float) -> Words:
    """The server answers nobody since an event of the plan: its program accepts connections and is
    silent, as one that waits for something after a deploy, or takes none from its listen queue, by
    the kernel's list of its sockets. ``count``: connects of asyncli; ``event``: its number;
    ``from_s``: when it began; ``patience_s``: how long each of the connects waited.
    """
    words = _ANSWERS_NONE[where].format(
        since=f"since event {event}, at {format_clock(from_s)}",
        connects=format_many(count, "connect"),
        waited=format_duration(patience_s),
    )
    return Words(
        words,
        "see the server's log of that moment, and what its process waits for; a health check that "
        "asks for an answer, and not only for a connect, would have seen it",
    )


def _many(count: float, words: str) -> str:
    """``2 connects were refused`` or ``1 connect was refused``."""
    if count == 1:
        words = words.replace("connects", "connect", 1)
        words = words.replace(" were ", " was ", 1).replace(" their ", " its ", 1)
    return f"{format_count(count)} {words}"
