"""Findings of the server: its listeners, addresses and program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from asyncli.findings import Words, finding
from asyncli.model.records import NOTHING_LISTENS
from asyncli.model.units import format_clock, format_duration, format_many

# This many addresses are named.
_NAMED = 3
#: What to do if nothing answers.
SEE_SERVER = "see that the server runs and that the URL is right"
#: Findings which say that the server's numbers may be another process's: they stand before these.
OF_ANOTHER = (
    "other_clients",
    "several_servers",
    "server_not_listening",
    "server_took_no_part",
    "server_holds_nothing",
    "held_by_others",
)


@finding(NOTHING_LISTENS, "error")
def nothing_listens(what: str, url: str | None, waited_s: float | None, so: str) -> Words:
    """Nothing listens on this host at the plan's target, so the run did not start. ``url``: another
    address with that port open; ``waited_s``: how long --wait-for-server waited (null: the command
    has no such flag).
    """
    remedy = SEE_SERVER if url is None else f"use {url}"
    if waited_s:
        what += f", also after --wait-for-server {format_duration(waited_s)}"
    elif waited_s is not None and url is None:
        remedy += "; --wait-for-server 30s waits for it"
    return Words(f"{what}: {so}", f"{remedy}; --force starts anyway")


@finding("address_dropped", "warning")
def address_dropped(address: str) -> Words:
    """No connect to one address of a name succeeded, but to another: an attempt fails only once
    each address was tried.
    """
    return Words(
        f"{address} accepted no connect, while another address of its name did; attempts "
        "continued there and count once",
        f"see that the server listens at {address} and that this host has a route there, or leave "
        "it out",
    )


@finding("address_dead", "error")
def address_dead(address: str, others: Sequence[str]) -> Words:
    """The first connects to the address of one URL failed, while another address accepted: its
    share was not opened. ``others``: how many addresses accepted.
    """
    accepting = " or ".join(others)
    if len(others) > _NAMED:
        accepting = f"one of {len(others)} others"
    return Words(
        f"{address} accepted none of its first connects, while {accepting} did",
        f"see that the server listens at {address}, or leave that URL out",
    )


@finding("server_program_not_run", "warning")
def server_program_not_run(command: str, why: str, distrusted: bool) -> Words:
    """The server's program was not run to read its version. ``distrusted``: users other than root
    and asyncli's can change it.
    """
    evidence = f"the server's version may be unknown: `{command}` was not run: {why}"
    if not distrusted:
        return Words(evidence, "restart the server if its program was upgraded meanwhile", "info")
    return Words(
        evidence,
        "asyncli runs only files that root or its own user owns: chown root and chmod go-w the "
        "file and its folders",
    )


def find_by_user(users: Collection[int]) -> str:
    """The flag that names a server whose listening sockets ``users`` opened (none: unknown)."""
    if not users:
        return "--server-pid PID (find it by its name: pgrep -a NAME)"
    listed = ",".join(map(str, sorted(users)))
    return f"--server-pid PID (find it by its name: pgrep -au {listed} NAME)"


@finding("server_not_listening", "warning")
def server_not_listening(
    flag: str,
    name: str,
    pid: int,
    where: str,
    listeners: Sequence[Mapping[str, object]],
    users: Sequence[int],
) -> Words:
    """The plan names a process, but others listen at its target. Right for a server behind a proxy.
    ``flag``: by which the plan names it; ``listeners``: the others (``name``, ``pid``); ``users``:
    theirs, if they are hidden.
    """
    if listeners:
        others = [f"{listener['name']} (pid {listener['pid']})" for listener in listeners]
        remedy = f"leave {flag} out"
    else:
        others = [f"a process of user {user}" for user in users]
        remedy = find_by_user(users)
    others_do = f"{' and '.join(others)} do"
    behind = "those"
    if len(others) == 1:
        others_do = f"{others[0]} does"
        behind = "that one"
    return Words(
        f"{name} (pid {pid}), which {flag} names, does not listen on {where}, but {others_do}: "
        f"the memory and CPU of {name} may be unrelated to these connections",
        f"{remedy}, unless {name} is a server behind {behind}",
    )


@finding("several_servers", "warning")
def several_servers(server: str, programs: Mapping[str, int] | None = None) -> Words:
    """Several programs listen at the target, as they may share a port (SO_REUSEPORT). Each may get
    a part of the connections. Or a bench covers several servers, but the CPU of only one was read.
    ``programs``: of a soak, the lowest process id of each, by name.
    """
    if programs is None:
        return Words(
            f"the server's CPU is that of {server} alone, although several servers were tested"
        )
    listed = " and ".join(f"{name} (pid {pid})" for name, pid in programs.items())
    return Words(
        f"several programs listen at the target, {listed}: each may get connections, "
        "and memory and CPU are those of all of them",
        "end the programs that are not the server",
    )


@finding("server_took_no_part", "warning")
def server_took_no_part(pid: int | None, named: bool, answered: int, cpu_s: float) -> Words:
    """The processes taken for the server used less CPU than any server needs for the answers, and
    opened no descriptor for the connections, so they are others. ``named``: by the plan.
    """
    process = "the process" if pid is None else f"process {pid}"
    remedy = "name the one that serves the URL with --server-pid"
    if named:
        remedy += ", or run asyncli as root, which finds it"
    did = (
        f"with its children it used {format_duration(cpu_s)} of CPU for {answered:,} answers, "
        "and opened nothing for them"
    )
    return Words(f"{process} is not the server: {did}", remedy)


@finding(
    "other_clients",
    "warning",
    "stop the other clients of this server, such as a second asyncli, and run again",
)
def other_clients(before: int, during: int, ours: int, by_page: bool = False) -> str:
    """By its status page, or by the kernel's sockets at its ports, the server held connections of
    other clients, before asyncli's first connect or in the hold's first seconds. Its cost is
    divided by those of all. ``before`` and ``during``: how many, when ``ours`` were held.
    ``by_page``: its sockets cannot be seen, and its page may count something else.
    """
    if by_page and during > before:
        return (
            f"the server's status page counts {during:,} connections beside these {ours:,}: those "
            "of other clients, or something else; the interval of a cost reaches from that by the "
            "page's count to that by these alone"
        )
    if during <= before:
        return (
            f"other clients held {before:,} connections on the server before this run's first: "
            "memory per connection is of all clients, and the server's work for them is in its "
            "latencies"
        )
    return (
        f"other clients held {during:,} connections on the server beside these {ours:,}: memory "
        "per connection is of all clients, and the server's work for them is in its latencies"
    )


@finding(
    "connections_elsewhere",
    "warning",
    "run again without other clients at the server's other ports",
)
def connections_elsewhere(elsewhere: int, ours: int) -> str:
    """The server's connections at other ports, by the kernel or by its status page, rose in the
    run: those of other clients, or of the server to itself, as of a proxy. Its cost reaches from
    memory by all connections to memory by these alone.
    """
    return (
        f"the server had {elsewhere:,} further connections beside these {ours:,}, at other ports: "
        "of other clients, or of a proxy to itself; the interval of its cost reaches from that of "
        "all to that of these alone"
    )


@finding("server_reloaded", "warning", "reload the server before the run or after it")
def server_reloaded(at_s: float, started: int, workers: int) -> str:
    """The server started as many workers as it had, or more, and the earlier ones did not end: it
    was reloaded or upgraded while they hold connections, or it started further workers. Costs and
    growth are of one generation of processes. ``workers``: how many it had.
    """
    return (
        f"the server was reloaded, or started further workers, at {format_clock(at_s)}: "
        f"{format_many(started, 'process')} beside {format_many(workers, 'earlier worker')}, "
        "which went on with the connections; costs are of the time before it"
    )


@finding("server_processes_changed", "info")
def server_processes_changed(
    started: int, ended: int, from_s: float, to_s: float, brief: bool = False, by_events: int = 0
) -> Words:
    """Processes of the server came or went while connections were held, and none was lost with
    them: helpers, further workers, or workers that were replaced. ``by_events``: connections that
    ended then and count with events of the plan. Its memory at each instant is of those that ran
    then. A warning if any ended, because its memory went with it. ``brief``: many
    lived so shortly that only one reading saw them. Others came and went between two readings, and
    CPU time of a process that ended is known only if the server waited for it (wait(2)).
    """
    when = f"from {format_clock(from_s)} to {format_clock(to_s)}"
    if to_s - from_s < 1.0:
        when = f"at {format_clock(from_s)}"
    changes = f"{format_many(started, 'process')} of the server started"
    if started and ended:
        changes += f" and {ended:,} ended"
    elif ended or not started:
        changes = f"{format_many(ended, 'process')} of the server ended"
    with_them = "no connection was lost with them"
    if by_events:
        ends = format_many(by_events, "connection")
        with_them = f"{ends} ended then, which count with events of the plan and not as lost"
    evidence = f"{changes} {when}; {with_them}"
    if brief:
        return Words(
            f"{evidence}. Most lived for less than two readings, a second or so: there were more, "
            "and the server's CPU time is known to be at least what is shown",
            "see what it starts: a process for each request?",
            "warning",
        )
    if not ended:
        return Words(evidence, "see what it started: its memory counts as the server's")
    return Words(
        evidence, "see why: memory that ended with them is missing at the hold's end", "warning"
    )


@finding(
    "server_holds_nothing",
    "warning",
    "name the process that holds the connections with --server-pid",
)
def server_holds_nothing(server: str, connections: int) -> str:
    """The server's processes opened no descriptor, thread or process for the connections, so they
    do not hold them, and their memory is no cost of a connection. Another process holds them: one
    that got the sockets, or one in another namespace.
    """
    return (
        f"the processes of {server} do not hold the connections: they opened no descriptor, "
        f"thread or process for any of {connections:,}; what a connection costs in the server is "
        "unknown"
    )


@finding("held_by_others", "warning")
def held_by_others(
    server: str, programs: Sequence[str], memory_read: bool, shared: bool = False
) -> Words:
    """Other programs than the server's processes hold its connections: all of them, or a part.
    ``shared``: only a part; ``memory_read``: what they took is in the server's cost; else that is
    unknown.
    """
    holders = " and ".join(programs)
    if shared:
        held = f"other processes, of {holders}, hold a part of the connections of {server}"
    else:
        verb = "holds" if len(programs) == 1 else "hold"
        held = f"{holders} {verb} the connections, not the processes of {server} that listen"
    if memory_read:
        return Words(f"{held}: the server's cost includes their memory")
    return Words(
        f"{held}, and that memory may not be read: the server's cost is unknown",
        "run asyncli as root (sudo)",
    )


@finding("held_behind", "info")
def held_behind(server: str, programs: Sequence[str], memory_read: bool) -> Words:
    """Behind the server other programs rose with the connections, like a proxy's backend.
    ``memory_read``: what they took is a part of its own, and of the whole host's cost; else that is
    unknown.
    """
    verb = "opens" if len(programs) == 1 else "open"
    behind = (
        f"{' and '.join(programs)} {verb} as many descriptors as {server}, like a backend behind it"
    )
    if memory_read:
        return Words(f"{behind}: its memory is a part of its own")
    return Words(
        f"{behind}, and that memory may not be read: no forecast without it",
        "run asyncli as root (sudo)",
        "warning",
    )


@finding("not_accepted", "warning")
def not_accepted(count: int, known: bool) -> Words:
    """Connections that listen, of which only the kernel is known: it completes a connect before any
    program accepts it. ``known``: the server's sockets were seen, and no program has accepted these
    in the hold; else they are on another host.
    """
    many = format_many(count, "connection")
    if known:
        evidence = (
            f"no program has accepted {many}: the server's kernel alone granted them, and keeps "
            "them in its accept queue"
        )
        return Words(
            evidence,
            "see why the server accepts none: it may be stopped or blocked, or at its own limit",
        )
    evidence = (
        f"nothing was heard on {many}: no byte came, and whether a program accepted them is not "
        "seen from here"
    )
    return Words(
        evidence,
        "write what the server says first (--greeting) or answers (--send, --expect), or see it "
        "by an agent",
    )


@finding(
    "connections_draining", "warning", "see what stopped or reloaded the server, and its timeouts"
)
def connections_draining(count: int, at_s: float) -> str:
    """A GOAWAY without error announced the end of connections whose held streams go on (RFC 9113,
    section 6.8): they are kept until their last stream ends, and no stream is opened on them.
    """
    return (
        f"the server announced the end of {format_many(count, 'connection')} with GOAWAY of code "
        f"0 (no error), from {format_clock(at_s)} on, and serves their held streams to the end: "
        "it drains them, and they count as held until then"
    )


@finding("streams_not_allowed", "warning")
def streams_not_allowed(
    count: int, needed: int, heads: bool, from_s: float, until_s: float | None
) -> Words:
    """The server keeps connections of HTTP/2, and allows fewer streams at once on them than the
    plan needs, or none, so that it would serve no further request there (RFC 9113, section 5.1.2:
    SETTINGS_MAX_CONCURRENT_STREAMS). asyncli keeps to that limit. ``count``: of such connections,
    the most at once; ``needed``: streams of each; ``heads``: the heartbeat is a HEAD; ``until_s``:
    when the server allowed enough on all (None: it did not).
    """
    when = f"from {format_clock(from_s)} on"
    if until_s is not None:
        when = f"from {format_clock(from_s)} to {format_clock(until_s)}"
    connections = format_many(count, "connection")
    remedy = (
        "raise that limit (nginx: http2_max_concurrent_streams), or see whether the server shuts "
        "down or is overloaded"
    )
    if needed > 1:
        allowed = f"fewer than the {needed:,} streams that each of {connections} needs"
        effect = "no further stream was opened on them"
    else:
        allowed = f"no stream on {connections} (SETTINGS_MAX_CONCURRENT_STREAMS 0)"
        effect = "a request would not have been served on them"
    evidence = f"the server allowed {allowed}, {when}: {effect}"
    if heads:
        return Words(f"{evidence}, and pings took the place of HEADs", remedy)
    asks = "--h2-heartbeat head asks for requests, which pings do not"
    return Words(f"{evidence}, and pings do not ask for one", f"{remedy}; {asks}")


@finding("answers_unproven", "warning")
def answers_unproven(unasked: int, answered: int) -> Words:
    """The server sends by itself what would answer a heartbeat, so an answer may be one that it
    sends anyway, unread.
    """
    evidence = (
        f"the server sends by itself what answers a heartbeat: {unasked:,} such messages came "
        f"unasked, beside {answered:,} answers, which therefore prove little"
    )
    echo = (
        "write {nonce} in --ws-message, or in --send and --expect, if the server echoes it: other "
        "bytes in each heartbeat"
    )
    return Words(evidence, f"{echo}; else an --expect that only the answer matches")


_SAY_WHICH = (
    "say which answer is right, such as the usual one: --expect 'BYTES' or --expect '/REGEX/'"
)


@finding("answers_look_like_errors", "warning")
def answers_look_like_errors(count: int, answered: int, error: str, usual: str) -> Words:
    """Any answer was accepted, and these begin as errors of RESP (redis), memcached, NATS and POP3
    do: a hyphen and a word in capital letters, ERROR, CLIENT_ERROR or SERVER_ERROR. ``error``: one
    of them; ``usual``: another answer, or "".
    """
    beside = f", beside {usual}" if usual else ""
    evidence = (
        f"{count:,} of {answered:,} answers look like errors: {error}{beside}; without --expect "
        "any answer is accepted"
    )
    return Words(evidence, f"{_SAY_WHICH}; see the server's log")


@finding("answers_differ", "info", _SAY_WHICH)
def answers_differ(count: int, answered: int, first: str, other: str) -> str:
    """Any answer was accepted, and these begin with another word than the first one. Numbers are
    alike, and nothing is said of answers that begin in many ways.
    """
    return (
        f"{count:,} of {answered:,} answers begin otherwise than the first one, {first}: such as "
        f"{other}"
    )


@finding("event_stream", "warning", "hold the streams: --protocol sse")
def event_stream() -> str:
    """Answers have the type text/event-stream: its clients hold one answer open, while heartbeats
    ask for a new one each.
    """
    return (
        "the server answers with an event stream (text/event-stream), which heartbeats do not "
        "hold open"
    )
