"""Findings of answers that are late or missing, and of packets lost on the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from asyncli.findings import Words, finding
from asyncli.findings.event_words import (
    EventWords,
    MarkWords,
    commands_first,
    in_the_time_of,
    near,
    see_commands,
)
from asyncli.findings.loss_causes import WHAT_IT_WAITS_FOR, WHAT_STOPPED_IT
from asyncli.model.records import Severity
from asyncli.model.units import (
    LONGEST_S,
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_share,
)

#: Why no heartbeat was answered.
NoAnswers = Literal[
    "unacknowledged",
    "stopped",
    "waited",
    "stood_still",
    "computing",
    "slow",
    "page_answered",
    "unknown",
    "left_waiting",
]
#: So many periods are named beside the longest one, at most.
MOST_PERIODS = 3


class PeriodWords(TypedDict):
    """A period in which nobody was answered, and the events of the plan in whose time it began."""

    from_s: float
    to_s: float
    events: Sequence[EventWords]


# These reasons say themselves how much CPU was used.
_TELLS_CPU = ("computing", "stopped", "waited", "stood_still", "left_waiting")
_NETWORK = "see routes, firewalls and links between here and the server"
# Where a command of the plan ran meanwhile, that comes before the network.
_WITH_A_COMMAND = {
    "page_answered": "see the server's workers and backends",
    "unknown": "see the server's error log",
}


def _with_commands(why: NoAnswers, remedy: str, commands: str) -> str:
    """The remedy, with where to look of a command of the plan in whose time it was: before the rest
    but where the network's path was down.
    """
    if not commands:
        return remedy
    if why == "unacknowledged":
        return f"{remedy}; {commands}"
    return f"{commands}; {_WITH_A_COMMAND.get(why, remedy)}"


@finding("no_answers", "warning")
def no_answers(
    from_s: float,
    to_s: float,
    waited: int,
    server: str,
    why: NoAnswers,
    requests: int | None,
    times: int,
    cores: float | None,
    every_s: float | None,
    page_silent: bool = True,
    events: Sequence[EventWords] = (),
    mark: MarkWords | None = None,
    others: Sequence[PeriodWords] = (),
) -> Words:
    """For two seconds or more no heartbeat was answered, some were waiting, and no connection was
    lost; or nobody was answered while the server stood still, and no heartbeat shows it, since its
    clients were away. The cause is inferred from retransmissions of asyncli's sockets, the server's
    status page, its CPU time and the state of its processes (T in /proc/PID/stat: a signal or a
    debugger stopped them). ``waited``: heartbeats, 0 where the clients were away; ``times``: of so
    many periods this is the longest, ``every_s`` apart if regular; ``requests``: how many the page
    counted; ``cores``: of CPU; ``page_silent``: False where the server has no status page;
    ``events``: those of the plan in whose time it began; ``mark``: the note of the user's that was
    just before; ``others``: some of the periods beside the longest, first those in the time of an
    event.
    """
    silent_page = "its status page was silent and " if page_silent else ""
    reason, remedy = {
        "unacknowledged": (
            "no packet was acknowledged: looks like the network path was down",
            _NETWORK,
        ),
        "stopped": (
            f"a signal or a debugger had stopped {server}: {silent_page}its processes used no CPU",
            WHAT_STOPPED_IT,
        ),
        "waited": (
            f"looks like {server} waited for something that blocks all of it: its status page was "
            "silent and its processes used no CPU, though no signal had stopped those that hold "
            "connections",
            WHAT_IT_WAITS_FOR,
        ),
        "stood_still": (
            f"looks like {server} was stopped, or waited for something: its status page was "
            "silent and its processes used no CPU",
            f"{WHAT_STOPPED_IT}; {WHAT_IT_WAITS_FOR}",
        ),
        "computing": (
            f"{server} used {cores or 0:.2f} cores meanwhile: looks like it computed something "
            "else",
            "see what it computes (a profiler, the log of its garbage collector); give it more "
            "processes or threads",
        ),
        "slow": (
            f"{server} counted {format_many(requests or 0, 'request')} meanwhile: it was slow, or "
            "its answers were delayed",
            "see its load, and middle boxes between here and the server",
        ),
        "page_answered": (
            "its status page answered: looks like the network path was down, or a part of it was "
            "stopped",
            f"see its workers and backends; {_NETWORK}",
        ),
        "unknown": (
            f"looks like {server} was stopped, or the network path was down",
            "see its load and its error log, and routes and firewalls between",
        ),
        "left_waiting": (
            f"{server} used no CPU and accepted nobody, though clients waited to be accepted",
            f"{WHAT_STOPPED_IT}; {WHAT_IT_WAITS_FOR}",
        ),
    }[why]
    remedy = _with_commands(why, remedy, see_commands(_events_of_all(events, others)))
    when = _from_to(from_s, to_s)
    details = ""
    if cores is not None and why not in _TELLS_CPU:
        details += f"; {server} used {cores:.2f} cores meanwhile"
    if events:
        details += f"; it began {in_the_time_of(events)}"
    if mark is not None:
        details += f"; it began {near(mark)}"
    if times > 1:
        details += f"; {format_many(times - 1, 'more such period')}{_named(others, times - 1)}"
    if every_s is not None:
        details += f", one about every {format_duration(every_s)}"
    nobody = "nobody was answered"
    waiting = ""
    if waited:
        nobody = "no heartbeat was answered"
        waiting = f" (up to {format_count(waited)} waited, none was lost)"
    return Words(f"{nobody} {when}{waiting}: {reason}{details}", remedy)


def _events_of_all(events: Sequence[EventWords], others: Sequence[PeriodWords]) -> list[EventWords]:
    """The events of all periods, each once, in the order of their numbers."""
    by_number = {event["number"]: event for event in events}
    for period in others:
        by_number |= {event["number"]: event for event in period["events"]}
    return [by_number[number] for number in sorted(by_number)]


def _named(periods: Sequence[PeriodWords], of: int) -> str:
    """When periods were, and in the time of which events they began, which are all or some."""
    if not periods:
        return ""
    whens = []
    for period in periods:
        when = _from_to(period["from_s"], period["to_s"])
        if period["events"]:
            when = f"{when}, which began {in_the_time_of(period['events'])}"
        whens.append(when)
    text = ", and ".join(whens)
    if len(periods) < of:
        return f", such as {text}"
    return f", {text}"


def _from_to(from_s: float, to_s: float) -> str:
    return f"from {format_clock(from_s)} to {format_clock(to_s)}"


_SLOW_SERVER = (
    "see the server's load, workers, disks and backends at that time, and the network path"
)


@finding("answers_slow", "warning", _SLOW_SERVER)
def answers_slow(
    from_s: float,
    to_s: float,
    late: int,
    others: int,
    median_s: float,
    usual_s: float,
    server: str,
    cores: float | None,
    times: int,
    all_s: int,
    every_s: float | None,
    events: Sequence[EventWords] = (),
    in_events: int = 0,
) -> Words:
    """For three seconds or more, a tenth of the heartbeats took ten times the usual latency and 0.1
    s more than it, while the others were answered as usual. One stopped worker of several looks so,
    and a slow backend. ``late``: how many took long, in the median ``median_s``; ``times``: of so
    many periods this is the longest, ``all_s`` in total, ``every_s`` apart if regular; ``cores``:
    CPU of the server meanwhile; ``events``: those of the plan in whose time most of these
    heartbeats were due, ``in_events`` of them.
    """
    when = _from_to(from_s, to_s)
    evidence = (
        f"{format_many(late, 'heartbeat')} had late answers {when}: "
        f"after {format_duration(median_s)} (median), {format_duration(usual_s)} is usual"
    )
    if others:
        evidence += f", and {format_count(others)} had theirs in time"
    if cores is not None:
        evidence += f"; {server} used {cores:.2f} cores meanwhile"
    if events:
        evidence += f"; {_due_in(events, in_events, late)}"
    if times > 1:
        evidence += f"; {format_many(times - 1, 'more such period')}, {all_s} s in total"
    if every_s is not None:
        evidence += f", one about every {format_duration(every_s)}"
    return Words(evidence, commands_first(events, _SLOW_SERVER))


def _due_in(events: Sequence[EventWords], in_events: int, of: int) -> str:
    """In the time of which events late heartbeats were due."""
    if in_events < of:
        return f"{format_count(in_events)} of these were due {in_the_time_of(events)}"
    return f"all of these were due {in_the_time_of(events)}"


def _when_in_bursts(
    from_s: float, to_s: float, bursts: Sequence[tuple[float, float]], times: int
) -> str:
    """``between 0:00:16 and 0:00:17, and between 0:00:27 and 0:00:29``."""
    if bursts:
        return ", and ".join(_between(*burst) for burst in bursts)
    if times > 1:
        return f"in {format_count(times)} bursts {_between(from_s, to_s)}"
    return _between(from_s, to_s)


def _between(from_s: float, to_s: float) -> str:
    return f"between {format_clock(from_s)} and {format_clock(to_s)}"


def _sent_in(events: Sequence[EventWords], in_events: int, of: int) -> str:
    """In the time of which events segments were sent again, or the first of them."""
    if not in_events:
        return f"that began {in_the_time_of(events)}"
    if in_events < of:
        return f"{format_count(in_events)} of them {in_the_time_of(events)}"
    return f"all of them {in_the_time_of(events)}"


@finding("packets_sent_again", "warning")
def packets_sent_again(
    here: bool,
    count: int,
    from_s: float,
    to_s: float,
    share: float,
    within_s: float,
    one_network: bool,
    events: Sequence[EventWords] = (),
    met_time_wait: bool = False,
    bursts: Sequence[tuple[float, float]] = (),
    times: int = 1,
    in_events: int = 0,
    in_all: int | None = None,
) -> Words:
    """The sockets of asyncli's connections sent 1 % or more of their requests again, as the kernel
    reports for each of them; or the server's host sent as much again, counted for all its programs,
    while so many answers were late. ``here``: asyncli's sockets did. ``times``: in so many bursts,
    five seconds or more apart; ``bursts``: when each was (s), where there are fewer than five, from
    the first connect or request that was sent again to when the last was seen to have been.
    ``events``: those of the plan whose clients sent most of these segments on their way back, or in
    whose time most of the connects and requests began, ``in_events`` of the segments; with 0 of
    them, those in whose time it began. ``in_all``: so many asyncli's connections sent again in the
    run. ``count`` lacks those of spans of ten seconds in which they were fewer than ten, or
    less than 1 %; and since connects that met TIME_WAIT are told apart, each of the two findings
    lacks those of the other. Neither number has what a client sent that an event of the plan had
    fall silent: nothing but the silence lost that.

    An info where connects met sockets in TIME_WAIT: for a minute the kernel keeps the sockets of
    connections that the server has ended, and where nothing listens it answers a connect from the
    same port as a packet of the earlier connection, so that the connect is sent again.
    ``met_time_wait``: these did.
    """
    began = f"; {_sent_in(events, in_events, count)}" if events else ""
    when = f"{_when_in_bursts(from_s, to_s, bursts, times)}, up to {format_share(share)} of"
    segments = format_many(count, "TCP segment")
    if here:
        if in_all is not None and in_all > count:
            segments += f" (of {format_count(in_all)} in all)"
        sent_again = f"asyncli's connections sent {segments} again {when} their requests"
    else:
        sent_again = (
            f"the server's host sent {segments} again {when} what it sent, "
            "while as many answers were late"
        )
    sent_again += f" within {within_s:.0f} s"
    if met_time_wait:
        return Words(
            f"{sent_again}: others were refused, and no listening socket dropped any, so they look "
            "like connects that met sockets of connections which the server had ended (TIME_WAIT), "
            f"while nothing listened{began}",
            "none needed: such a connect takes a second longer, and only while nothing listens",
            "info",
        )
    if one_network:
        return Words(
            f"{sent_again}: a full listen queue dropped them, or a firewall{began}",
            "see the server's listen queue (ss -ltn: Recv-Q), "
            "and this host's firewall (nft list ruleset)",
        )
    between = "here and the server" if here else "the server and here"
    return Words(
        f"{sent_again}: packets were lost, or a full queue dropped them{began}",
        f"see links, cables and firewalls between {between} (ip -s link), "
        "and the server's listen queue",
    )


@finding(
    "fell_silent",
    "warning",
    "see the server's log of that time; with --silence TIME such connections count as lost",
)
def fell_silent(count: int, held: int, from_s: float, for_s: float, usual_gap_s: float) -> str:
    """Listening connections received nothing any more at the end of the hold, for ten times as long
    as a message usually took to come. They count as held: without --silence, or within it, nothing
    says how long a connection may be silent.
    """
    quiet = (
        f"received nothing from {format_clock(from_s)} to the end, for "
        f"{format_duration(max(1, round(for_s)))}"
    )
    return (
        f"{format_count(count)} of {format_count(held)} held connections {quiet}, though a "
        f"message had come every {format_duration(usual_gap_s)} on average: looks like the server "
        "was stopped, forgot them, or had nothing to send"
    )


@finding("not_heard", "warning")
def not_heard(
    count: int,
    held: int,
    from_s: float,
    for_s: float,
    fault: bool,
    enough_s: float,
    listens: bool,
    server_stopped: bool = False,
    ended_by_asyncli: bool = False,
) -> Words:
    """Connections were open at the end, but had no heartbeat (if they listen: no data) since the
    hold began, or since the first unanswered heartbeat of a fault. So it is unknown whether the
    server still serves them. Connections that listen without a limit may stay silent. ``from_s``:
    since when; ``enough_s``: a hold that hears from each connection or ends it;
    ``server_stopped``: since then a signal or a debugger had stopped the server, which therefore
    serves none of them (state T of /proc/PID/stat); ``ended_by_asyncli``: a limit ended the hold
    before its planned end, so a longer one in the plan would change nothing.
    """
    forever = listens and enough_s >= LONGEST_S
    ago = format_duration(max(1, round(for_s)))
    if server_stopped:
        return Words(
            f"{format_count(count)} of {format_count(held)} held connections were open at the "
            f"end, but a signal or a debugger had stopped the server from {format_clock(from_s)} "
            f"to the end, for {ago}: its kernel alone kept them",
            WHAT_STOPPED_IT,
            "error",
        )
    none_came = "no heartbeat was due on them"
    if listens:
        none_came = "no data came on them"
    severity: Severity | None = None
    if (forever or ended_by_asyncli) and not fault:
        severity = "info"
    evidence = (
        f"{format_count(count)} of {format_count(held)} held connections were open at the end, "
        f"but {none_came} after {format_clock(from_s)}, {_since_when(fault, listens)}, "
        f"{ago} before: whether the server still serves them is unknown"
    )
    if ended_by_asyncli:
        return Words(f"{evidence}, since a limit ended the hold early", "", severity)
    return Words(evidence, _hold_longer(fault, enough_s, listens), severity)


def _since_when(fault: bool, listens: bool) -> str:
    if not fault:
        return "when the hold began"
    if listens:
        return "when the first fell silent"
    return "when the first heartbeat went unanswered"


def _hold_longer(fault: bool, enough_s: float, listens: bool) -> str:
    """The remedy of connections that were not heard."""
    if listens and enough_s >= LONGEST_S:
        return "use --silence TIME if the server should send"
    # After a fault only the time since then counts, however long the hold was.
    after_fault = " after it" if fault else ""
    longer = f"hold for {format_duration(enough_s)} or longer{after_fault}"
    if listens:
        return f"{longer} (--silence)"
    return f"{longer} (--keepalive / 2 + --timeout), or lower --keepalive"
