"""The quantities that a run counts and measures: the key of each in the JSON, its unit, and what it
means.

What is made from this table: the units of limits (--fail-if), the limits that can end a run
(--abort), the columns of CSV and frames, the JSON Schema of a run and the reference. What samples
read is in :mod:`asyncli.model.metrics`. To add a quantity: a line in QUANTITIES, and in COUNTS or
TIMES if each second has it; its field in report/summary_parts.py and its value in
report/summary.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from asyncli.core.histogram import Histogram
from asyncli.model.records import ProtocolCounts, Tick, TlsCounts

#: "yes_or_no" is written as true or false, and "share" is between 0 and 1.
Unit = Literal["count", "bytes", "s", "ms", "us", "minutes", "share", "yes_or_no"]
#: What a rate is for.
Per = Literal["", "s", "hour"]
#: Any name in a key.
ANY = "*"

_NO_TLS = TlsCounts()
_NO_PROTOCOL = ProtocolCounts()


class Quantity(NamedTuple):
    """A number of a JSON document. ``key``: its place there, in which ``*`` is any name."""

    key: str
    unit: Unit
    about: str
    per: Per = ""


class CountEachSecond(NamedTuple):
    """A number of each second. ``key``: the number of the JSON that those of a run add up to, if
    there is one.
    """

    column: str
    about: str
    of: Callable[[Tick], int | float | None]
    key: str = ""


class TimesEachSecond(NamedTuple):
    """Times in each second, in microseconds, told as ``quantiles`` in ms. ``key``: the part of the
    JSON that has those of the run, if there is one.
    """

    column: str
    quantiles: Mapping[str, float]
    about: str
    of: Callable[[Tick], Histogram]
    key: str = ""


class CountsByName(NamedTuple):
    """Counts by name in each second, which add up to those of the JSON's part ``key``."""

    key: str
    of: Callable[[Tick], Mapping[str, int]]


#: Beside the latencies by which limits are judged: see :func:`beyond_lateness`.
BEYOND_LATENESS = "beyond_lateness_ms"
_LATENCY = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
_LATENESS = {"p50": 0.5, "p99": 0.99, "max": 1.0}

# What a second has.

COUNTS = (
    CountEachSecond(
        "second",
        "whole seconds since the first connect that the tick closes",
        lambda tick: tick.second,
    ),
    CountEachSecond("workers", "worker processes that reported", lambda tick: tick.workers),
    CountEachSecond("held", "connections held at the second's end", lambda tick: tick.held),
    CountEachSecond(
        "connecting", "connects without an answer so far then", lambda tick: tick.connecting
    ),
    CountEachSecond(
        "awaiting", "connections waiting for an answer then", lambda tick: tick.awaiting
    ),
    CountEachSecond("started", "connects begun in the second", lambda tick: tick.started),
    CountEachSecond(
        "opened",
        "connections established in it",
        lambda tick: tick.opened,
        "connections.opened",
    ),
    CountEachSecond(
        "reopened",
        "those of them that replaced a lost one",
        lambda tick: tick.reopened,
        "connections.reopened",
    ),
    CountEachSecond(
        "lost",
        "established connections that ended in it",
        lambda tick: tick.lost,
        "connections.lost",
    ),
    CountEachSecond(
        "failed",
        "connects that failed in it",
        lambda tick: tick.failed,
        "connections.failed",
    ),
    CountEachSecond("sent", "heartbeats sent", lambda tick: tick.sent, "heartbeats.sent"),
    CountEachSecond(
        "answered", "heartbeats answered", lambda tick: tick.answered, "heartbeats.answered"
    ),
    CountEachSecond(
        "beats_failed",
        "heartbeats not answered",
        lambda tick: tick.beats_failed,
        "heartbeats.failed",
    ),
    CountEachSecond("bytes_sent", "bytes sent", lambda tick: tick.bytes_sent),
    CountEachSecond("bytes_received", "bytes received", lambda tick: tick.bytes_received),
    CountEachSecond(
        "cpu_user_s",
        "user CPU time of the workers since their start",
        lambda tick: tick.cpu_user_s,
    ),
    CountEachSecond("cpu_system_s", "their system CPU time", lambda tick: tick.cpu_system_s),
    CountEachSecond(
        "longest_turn_s",
        "the longest time that a worker was stopped",
        lambda tick: tick.longest_turn_s,
    ),
)
#: Those that HTTP/1.1 has not.
PROTOCOL_COUNTS = (
    CountEachSecond(
        "messages",
        "unsolicited messages received",
        lambda tick: None if tick.protocol is None else tick.protocol.messages,
    ),
    CountEachSecond(
        "message_bytes",
        "bytes of them without framing",
        lambda tick: None if tick.protocol is None else tick.protocol.message_bytes,
    ),
    CountEachSecond(
        "streams_open",
        "HTTP/2 streams held at the second's end",
        lambda tick: None if tick.protocol is None else tick.protocol.streams_open,
    ),
)
TIMES = (
    TimesEachSecond(
        "latency",
        _LATENCY,
        "heartbeat: answered minus due",
        lambda tick: tick.latency_us,
        "heartbeats.latency_ms",
    ),
    TimesEachSecond(
        "lateness",
        _LATENESS,
        "heartbeat: sent minus due",
        lambda tick: tick.lateness_us,
        "heartbeats.lateness_ms",
    ),
    TimesEachSecond(
        "connect", _LATENESS, "connect: established minus begun", lambda tick: tick.connect_us
    ),
    TimesEachSecond(
        "ramp_lateness",
        _LATENESS,
        "batch of the ramp: opened minus due",
        lambda tick: tick.ramp_lateness_us,
        "ramp.lateness_ms",
    ),
    TimesEachSecond(
        "granted",
        _LATENESS,
        "protocol handshake: from the first byte sent until granted",
        lambda tick: (tick.protocol or _NO_PROTOCOL).handshake_us,
    ),
    TimesEachSecond(
        "tcp",
        _LATENESS,
        "TCP part of a connect over TLS",
        lambda tick: (tick.tls or _NO_TLS).tcp_us,
    ),
    TimesEachSecond(
        "handshake",
        _LATENESS,
        "TLS handshake of a connect",
        lambda tick: (tick.tls or _NO_TLS).handshake_us,
    ),
)
COUNTS_BY_NAME = (
    CountsByName("connections.failures", lambda tick: tick.failures),
    CountsByName("connections.deaths", lambda tick: tick.lost_by_cause),
    CountsByName(
        "heartbeats.by_status",
        lambda tick: {str(status): count for status, count in tick.by_status.items()},
    ),
)


def grows(key: str) -> bool:
    """Whether a number of a run's JSON never falls during the run: a count, or a longest time."""
    if any(key == count.key for count in COUNTS):
        return True
    if any(key == f"{times.key}.max" for times in TIMES):
        return True
    part, _, _ = key.rpartition(".")
    return any(part == counts.key for counts in COUNTS_BY_NAME)


def is_counted(key: str) -> bool:
    """Whether the sum of a run's ticks tells a number of its JSON: one that grows, or a quantile of
    times.
    """
    part, _, name = key.rpartition(".")
    is_quantile = any(part == times.key and name in times.quantiles for times in TIMES)
    return is_quantile or grows(key)


def so_far(total: Tick) -> dict[str, Any]:
    """The part of a run's JSON that its ticks tell, by their sum."""
    document: dict[str, Any] = {}
    for count in COUNTS:
        if count.key:
            _put(document, count.key, count.of(total))
    for times in TIMES:
        if not times.key:
            continue
        quantiles_us = times.of(total).quantiles(list(times.quantiles.values()))
        for name, value_us in zip(times.quantiles, quantiles_us, strict=True):
            if value_us is not None:
                _put(document, f"{times.key}.{name}", value_us / 1000)
    for counts in COUNTS_BY_NAME:
        _put(document, counts.key, counts.of(total))
    return document


def beyond_lateness(latency_us: Histogram, lateness_us: Histogram) -> dict[str, float]:
    """What surely remains of latencies without asyncli's own lateness (ms), by quantile; empty
    without a record.
    """
    remains_ms = {}
    remains_us = latency_us.beyond(lateness_us, list(_LATENCY.values()))
    for name, value_us in zip(_LATENCY, remains_us, strict=True):
        if value_us is not None:
            remains_ms[name] = value_us / 1000
    return remains_ms


def _put(document: dict[str, Any], key: str, value: object) -> None:
    *parts, name = key.split(".")
    for part in parts:
        document = document.setdefault(part, {})
    document[name] = value


# What the JSON of a run and of a bench has.


def _times(part: str, about: str, quantiles: Iterable[str]) -> Iterator[Quantity]:
    words = {
        "p50": "the median",
        "p90": "nine of ten took no longer",
        "p99": "99 of 100 took no longer",
        "p999": "999 of 1,000 took no longer",
        "max": "the longest",
    }
    for name in quantiles:
        yield Quantity(f"{part}.{name}", "ms", f"{about}: {words[name]}")


def _before_and_after(part: str, unit: Unit, about: str) -> Iterator[Quantity]:
    yield Quantity(f"{part}.baseline", unit, f"{about}, at the baseline's end")
    yield Quantity(f"{part}.hold_end", unit, f"{about}, at the hold's end")


def _cost(part: str, whose: str) -> Iterator[Quantity]:
    yield Quantity(
        f"{part}.bytes_per_connection", "bytes", f"what one more connection costs {whose}"
    )
    yield Quantity(f"{part}.fixed_bytes", "bytes", f"the line at no connections, {whose}")
    yield Quantity(f"{part}.points", "count", "points that the line is fitted to")
    yield Quantity(f"{part}.r2", "share", "share of their variance that the line explains")
    yield Quantity(f"{part}.of_levels", "yes_or_no", "a difference of two levels, and no slope")


def _cost_of_heap(part: str, whose: str) -> Iterator[Quantity]:
    yield from _cost(part, whose)
    yield Quantity(f"{part}.collections", "count", "collections after which that was read")
    yield Quantity(
        f"{part}.not_freed", "bytes", "how far its interval reaches down, since that may be growth"
    )
    yield Quantity(
        f"{part}.by_clock", "bytes", "what rose in the ramp by the clock alone, and is not in it"
    )
    yield Quantity(
        f"{part}.outside", "bytes", "of it, what objects of the heap hold outside it (Buffers)"
    )
    yield Quantity(f"{part}.lacks_outside", "yes_or_no", "it is without that, which nothing read")
    yield Quantity(f"{part}.forced", "yes_or_no", "asyncli asked for these collections")
    yield Quantity(
        f"{part}.is_whole", "yes_or_no", "its levels have all memory of the server's processes"
    )


_TLS = (
    Quantity("tls.full", "count", "TLS handshakes with a certificate"),
    Quantity("tls.resumed", "count", "TLS handshakes that resumed a session"),
    Quantity("tls.verified", "yes_or_no", "certificates were verified"),
    Quantity("tls.spoken.*", "count", "handshakes that agreed on this version and cipher suite"),
    Quantity("tls.certificates.*", "count", "full handshakes with a certificate that expires then"),
    Quantity("tls.failed.*", "count", "TLS handshakes that failed for this reason"),
    Quantity("tls.ended.*", "count", "open connections that TLS ended for this reason"),
    Quantity("tls.objects", "count", "connections with an object of OpenSSL at the hold's end"),
    *_times("tls.tcp_ms", "TCP handshake of a connect", ("p50", "p90", "p99", "max")),
    *_times("tls.handshake_ms", "TLS handshake after it", ("p50", "p90", "p99", "max")),
)


def _slow_readers(part: str, whose: str) -> Iterator[Quantity]:
    yield Quantity(f"{part}.total", "bytes", f"{whose}, more at the stall's end than before")
    yield Quantity(
        f"{part}.per_connection", "bytes", f"{whose}, more at the stall's end for each that stalled"
    )
    yield Quantity(f"{part}.error", "bytes", f"by how far readings of {whose} were apart before")
    yield Quantity(f"{part}.grows_per_s", "bytes", f"how fast {whose} grew at the stall's end", "s")
    yield Quantity(f"{part}.kept", "bytes", f"{whose}, more than before when it had settled")


_OF_EVENTS: Sequence[Quantity] = (
    Quantity("events.*.number", "count", "the number of the event, by which limits name it"),
    Quantity("events.*.at_s", "s", "when the event was, since the run's start"),
    Quantity(
        "events.*.end_s", "s", "when the effects of the event were over, since the run's start"
    ),
    Quantity(
        "events.*.into_hold_s",
        "s",
        "when the event was, since the hold's start, as the plan has it",
    ),
    Quantity("events.*.status", "count", "the exit status of the event's command"),
    Quantity("events.*.took_s", "s", "how long the event's command took"),
    Quantity("events.*.share", "share", "the share of all connections that the event concerns"),
    Quantity("events.*.for_s", "s", "for how long the event's clients fall silent or stop reading"),
    Quantity("events.*.cut_after_s", "s", "how much of the time of silence the hold had"),
    Quantity(
        "events.*.interrupted_after_s", "s", "how long after the event the run was interrupted"
    ),
    Quantity(
        "events.*.records_end_after_s",
        "s",
        "how long after the event the records end of a run that goes on or was killed",
    ),
    Quantity("events.*.chosen", "count", "connections that the event chose"),
    Quantity(
        "events.*.absent",
        "count",
        "chosen connections that were not connected at the event's instant",
    ),
    Quantity("events.*.ended", "count", "connections that the event ended or silenced"),
    Quantity(
        "events.*.given_up",
        "count",
        "heartbeats whose answers were awaited as the event ended their connections",
    ),
    Quantity(
        "events.*.back.p50_s",
        "s",
        "after how long half of the clients that the event ended were back",
    ),
    Quantity(
        "events.*.back.p90_s",
        "s",
        "after how long 90 % of the clients that the event ended were back",
    ),
    Quantity(
        "events.*.back.p99_s",
        "s",
        "after how long 99 % of the clients that the event ended were back",
    ),
    Quantity(
        "events.*.back.all_s", "s", "after how long all clients that the event ended were back"
    ),
    Quantity("events.*.back.waited_s", "s", "how long clients that were not back had for it"),
    Quantity(
        "events.*.away.p50_s",
        "s",
        "half of the clients that the event ended were away for no longer",
    ),
    Quantity(
        "events.*.away.p99_s",
        "s",
        "99 % of the clients that the event ended were away for no longer",
    ),
    Quantity("events.*.away.max_s", "s", "no client that the event ended was away for longer"),
    Quantity("events.*.away.at_least.p50_s", "s", "what away.p50_s is at least"),
    Quantity("events.*.away.at_least.p99_s", "s", "what away.p99_s is at least"),
    Quantity("events.*.away.at_least.max_s", "s", "what away.max_s is at least"),
    Quantity(
        "events.*.clients", "count", "clients whose connections the event ended, each counted once"
    ),
    Quantity(
        "events.*.ended_repeatedly",
        "count",
        "clients whose connections the event ended more than once",
    ),
    Quantity(
        "events.*.ended_again",
        "count",
        "clients that another event ended before they were back from this one",
    ),
    Quantity(
        "events.*.lost_with_worker",
        "count",
        "clients whose process of asyncli ended before they were back",
    ),
    Quantity("events.*.in_vain.count", "count", "connects that got no answer in time"),
    Quantity(
        "events.*.in_vain.acknowledged",
        "count",
        "connects without an answer in time whose request the server's kernel had",
    ),
    Quantity(
        "events.*.in_vain.patience_s", "s", "how long each connect without an answer waited for it"
    ),
    Quantity(
        "events.*.not_back",
        "count",
        "clients that had their turn and no answer when the hold ended",
    ),
    Quantity(
        "events.*.attempts",
        "count",
        "connects of clients that come back from the event; who is heard again makes none",
    ),
    Quantity(
        "events.*.failures.*",
        "count",
        "connects of clients that come back which failed for this cause",
    ),
    Quantity(
        "events.*.phantoms", "count", "connects of clients that come back which got no answer"
    ),
    Quantity(
        "events.*.error_answers.*",
        "count",
        "answers with this HTTP status to clients before they were back",
    ),
    Quantity(
        "events.*.latency_ms.connect_p50",
        "ms",
        "half of the connects of clients that come back took no longer",
    ),
    Quantity(
        "events.*.latency_ms.connect_p99",
        "ms",
        "99 % of the connects of clients that come back took no longer",
    ),
    Quantity(
        "events.*.latency_ms.answer_p50",
        "ms",
        "half of the first answers to clients that come back took no longer",
    ),
    Quantity(
        "events.*.latency_ms.answer_p99",
        "ms",
        "99 % of the first answers to clients that come back took no longer",
    ),
    Quantity(
        "events.*.latency_ms.others_p99",
        "ms",
        "99 % of the heartbeats of other clients that were due in the event's time took no longer",
    ),
    Quantity(
        "events.*.latency_ms.outside_p99",
        "ms",
        "99 % of the heartbeats that were due outside of all events took no longer",
    ),
    *_times("events.*.lateness_ms", "connect of who comes back, opened minus due", _LATENESS),
    Quantity(
        "events.*.no_answers_s",
        "s",
        "the longest time of two seconds or more in which no client had an answer, though some "
        "waited for one or tried to come back, at least",
    ),
    Quantity(
        "events.*.no_answers_at_most_s",
        "s",
        "the longest that no_answers_s may have been: the same where it is exactly known",
    ),
    Quantity(
        "events.*.stood_still_s",
        "s",
        "the longest time in which the server stood still in the event's time, at least",
    ),
    Quantity(
        "events.*.stood_still_at_most_s",
        "s",
        "the longest that stood_still_s may have been, by the readings before and after it",
    ),
    Quantity(
        "events.*.least_held",
        "count",
        "the fewest connections held as a second of the event's time ended",
    ),
    Quantity(
        "events.*.descriptors_spent.limit",
        "count",
        "the descriptor limit of a process of the server that had none left",
    ),
    Quantity(
        "events.*.descriptors_spent.from_s",
        "s",
        "since when a process of the server had no descriptor left for who came back",
    ),
    Quantity(
        "events.*.descriptors_spent.until_s",
        "s",
        "when a process of the server was last read with no descriptor left",
    ),
    Quantity("events.*.server.memory_before", "bytes", "the server's memory before the event"),
    Quantity(
        "events.*.server.peak", "bytes", "the most memory that the server had in the event's time"
    ),
    Quantity(
        "events.*.server.after", "bytes", "the server's memory when it had settled after the event"
    ),
    Quantity("events.*.server.cpu_s", "s", "the server's CPU time in the event's time"),
    Quantity("events.*.pace.generator_cpu_s", "s", "asyncli's CPU time in the event's time"),
    Quantity(
        "events.*.pace.others",
        "share",
        "other programs' part of the busy CPUs that decided how long it took",
    ),
    Quantity(
        "events.*.server.kept",
        "bytes",
        "the memory that the server did not give back after the event",
    ),
    Quantity(
        "events.*.server.moves", "bytes", "by how much the server's memory changes without an event"
    ),
    Quantity(
        "events.*.server.other_processes",
        "yes_or_no",
        "the memory after the event is that of other processes",
    ),
    Quantity(
        "events.*.noticed.p50_s",
        "s",
        "after how long the server held half of the silent clients no more",
    ),
    Quantity(
        "events.*.noticed.p90_s",
        "s",
        "after how long the server held 90 % of the silent clients no more",
    ),
    Quantity(
        "events.*.noticed.all_s", "s", "after how long the server held none of the silent clients"
    ),
    Quantity(
        "events.*.noticed.all_at_most_s",
        "s",
        "by when at the latest the server held none of the silent clients",
    ),
    Quantity(
        "events.*.noticed.left", "count", "silent clients that the server held at the last reading"
    ),
    Quantity(
        "events.*.noticed.left_after_s",
        "s",
        "how long after the event that reading was; where churn hides how many it held, the last "
        "at which it surely held one",
    ),
    Quantity(
        "events.*.noticed.within_s",
        "s",
        "the longest time between two readings of whom the server holds",
    ),
    Quantity(
        "events.*.noticed.at_reconnect",
        "yes_or_no",
        "the server let the silent clients go as they connected anew",
    ),
    Quantity(
        "events.*.waiting",
        "count",
        "clients whose turn to come back was after the hold's end, or of whom a kernel was to send "
        "again then what was lost in the silence; in a run that goes on or was killed, whose turn "
        "had not come by the last record",
    ),
    Quantity(
        "events.*.unheard", "count", "listeners whom the server sent nothing since they hear again"
    ),
    Quantity("events.*.gone", "count", "silent clients that were gone for good"),
    Quantity("events.*.returned", "count", "silent clients that were heard again"),
    Quantity("events.*.closed", "count", "silent clients that the server ended meanwhile"),
    Quantity(
        "events.*.awaited",
        "count",
        "silent clients that awaited an answer when they were heard again",
    ),
    Quantity(
        "events.*.timed_out",
        "count",
        "silent clients that had no answer in time since they were heard again, and connected anew",
    ),
    Quantity(
        "events.*.sent_again.requests",
        "count",
        "silent clients with a request that their kernel was to send again once they were heard",
    ),
    Quantity(
        "events.*.sent_again.first_s",
        "s",
        "how long after the silence the first such request was to be sent again",
    ),
    Quantity(
        "events.*.sent_again.p50_s",
        "s",
        "how long after the silence half of such requests were to be sent again",
    ),
    Quantity(
        "events.*.sent_again.last_s",
        "s",
        "how long after the silence the last such request was to be sent again",
    ),
    Quantity("events.*.stalled", "count", "clients that the event had stop reading"),
    Quantity("events.*.resumed", "count", "clients that read again at the stall's end"),
    Quantity(
        "events.*.closes.*",
        "count",
        "clients that the server ended in the event's time for this cause",
    ),
    Quantity(
        "events.*.closed_after.first_s", "s", "after how long the server ended the first client"
    ),
    Quantity(
        "events.*.closed_after.p50_s",
        "s",
        "after how long the server had ended half of those that it ended",
    ),
    Quantity(
        "events.*.closed_after.last_s", "s", "after how long the server ended the last client"
    ),
    Quantity(
        "events.*.closed_after.unseen",
        "count",
        "ends by the server that were seen only when clients read again",
    ),
    Quantity("events.*.waited_bytes", "bytes", "bytes that waited for the clients that stalled"),
    Quantity(
        "events.*.segment_bytes", "bytes", "the largest TCP segments to the clients that stalled"
    ),
    *_slow_readers("events.*.slow_readers.user", "the server's memory"),
    *_slow_readers("events.*.slow_readers.kernel", "the memory of the server's sockets"),
    Quantity(
        "events.*.listen_overflows",
        "count",
        "listen overflows of all servers of the host in the event's time",
    ),
    Quantity(
        "events.*.segments_sent_again",
        "count",
        "segments that asyncli sent again in the event's time",
    ),
)
#: Numbers in the JSON of a soak.
QUANTITIES: Sequence[Quantity] = (
    *_OF_EVENTS,
    Quantity("run.duration_s", "s", "how long the run took"),
    Quantity("run.complete", "yes_or_no", "its file was written to the end"),
    Quantity("run.stopped", "yes_or_no", "its user stopped it early"),
    Quantity("run.decided", "yes_or_no", "asyncli ended it early, since its limits were sure"),
    Quantity("connections.requested", "count", "connections that the plan asks for"),
    Quantity("connections.opened", "count", "connections established, replacements included"),
    Quantity("connections.established_peak", "count", "the most open as a second ended"),
    Quantity("connections.held", "count", "connections held to the hold's end"),
    Quantity(
        "connections.not_heard",
        "count",
        "of those, without data since a fault or the hold's start",
    ),
    Quantity("connections.lost", "count", "established connections that ended before the drain"),
    Quantity("connections.reopened", "count", "connections that replaced a lost one"),
    Quantity("connections.failed", "count", "connects that never established a connection"),
    Quantity("connections.failures.*", "count", "connects that failed for this cause"),
    Quantity("connections.deaths.*", "count", "connections lost for this cause"),
    Quantity("ramp.asked_per_s", "count", "connects that the plan asks for", "s"),
    Quantity("ramp.achieved_per_s", "count", "connections opened in the ramp", "s"),
    *_times("ramp.lateness_ms", "batch of the ramp, opened minus due", _LATENESS),
    Quantity("heartbeats.sent", "count", "heartbeats sent"),
    Quantity("heartbeats.answered", "count", "heartbeats answered"),
    Quantity("heartbeats.failed", "count", "heartbeats without an answer"),
    Quantity("heartbeats.by_status.*", "count", "answers with this HTTP status"),
    *_times("heartbeats.latency_ms", "heartbeat, answered minus due", _LATENCY),
    *_times("heartbeats.lateness_ms", "heartbeat, sent minus due", _LATENESS),
    Quantity(
        "reconciliation.client_held",
        "count",
        "open at the client at the hold's end, unanswered ones included",
    ),
    Quantity("reconciliation.server_active", "count", "open by the server's own count then"),
    Quantity(
        "reconciliation.accepts_delta", "count", "accepted in the run by the server's own count"
    ),
    Quantity(
        "reconciliation.handled_delta", "count", "handled in the run by the server's own count"
    ),
    Quantity(
        "reconciliation.requests_delta", "count", "requests in the run by the server's own count"
    ),
    Quantity("reconciliation.agrees", "yes_or_no", "the counts of both ends agree"),
    *_before_and_after("server.processes", "count", "processes of the server"),
    *_before_and_after("server.rss_bytes", "bytes", "the server's resident memory (RSS)"),
    *_before_and_after("server.pss_bytes", "bytes", "the server's proportional memory (PSS)"),
    *_before_and_after("server.cpu_s", "s", "CPU time of the server since its start"),
    *_before_and_after(
        "server.memory_bytes",
        "bytes",
        "the server's memory with what PSS does not have: huge pages, swap, and programs that hold "
        "its connections",
    ),
    *_before_and_after("server.file_bytes", "bytes", "of the server's PSS, pages of files"),
    Quantity("server.runtime.collected", "yes_or_no", "collections free the server's heap"),
    Quantity("server.runtime.gogc", "count", "the server's GOGC in percent; -1: off"),
    Quantity(
        "server.runtime.heap_limit_bytes",
        "bytes",
        "the limit of its heap that the server was started with",
    ),
    *_cost("cost.server_user", "in the server's memory"),
    *_cost("cost.kernel", "in the kernel's memory, for each end on the sampled host"),
    *_cost("cost.kernel_queued", "in queued data of socket buffers, for each end"),
    *_cost("cost.generator_user", "in asyncli's own memory"),
    *_cost("cost.host_total", "in all memory of the sampled host"),
    *_cost("cost.residual", "in memory that is in no known part"),
    *_cost("cost.behind", "in programs behind the server"),
    *_cost_of_heap("cost.live", "in what is alive in the server's heap"),
    *_cost_of_heap("cost.stacks", "in stacks of the server's runtime"),
    *_cost_of_heap("cost.at_goal", "in a runtime whose heap has filled to its goal"),
    Quantity("cost.streams", "count", "HTTP/2 streams that each connection holds"),
    Quantity("cost.ends", "count", "ends of a connection on the sampled host"),
    Quantity("residue.after_s", "s", "time from the last close to the last reading"),
    Quantity("residue.server_user", "bytes", "the server's memory above the baseline then"),
    Quantity("residue.kernel", "bytes", "the kernel's memory above the baseline then"),
    Quantity("residue.live", "bytes", "alive after a forced collection above the baseline then"),
    Quantity(
        "residue.stacks",
        "bytes",
        "stacks of the server's runtime in use after these collections above the baseline",
    ),
    Quantity(
        "residue.live_pace.bytes_per_s",
        "bytes",
        "by so much what is alive rises by the clock, when nothing is connected",
        "s",
    ),
    Quantity("residue.host_total", "bytes", "the sampled host's memory above the baseline then"),
    Quantity(
        "forecast.memory.connections", "count", "how many connections fit on a host with both ends"
    ),
    Quantity("forecast.memory.at_least", "count", "how many fit there at least"),
    Quantity(
        "forecast.server_memory.connections",
        "count",
        "how many connections fit on the server's host alone",
    ),
    Quantity("forecast.server_memory.at_least", "count", "how many fit there at least"),
    Quantity("drift.*.bytes_per_hour", "bytes", "growth of this memory in the hold", "hour"),
    Quantity("drift.*.p_value", "share", "Kendall's two-sided p of that growth"),
    Quantity("drift.*.minutes", "minutes", "whole minutes of the hold that were examined"),
    Quantity(
        "drift.*.within_bytes_per_hour",
        "bytes",
        "the largest growth, of either sign, that its interval includes",
        "hour",
    ),
    Quantity("drift.*.points", "count", "medians over time that the growth is of"),
    Quantity("drift.*.bin_s", "s", "length of the time that each median is of"),
    Quantity("drift.*.from_s", "s", "where these begin on the run's clock"),
    Quantity("drift.*.to_s", "s", "where they end"),
    Quantity("drift.*.level_bytes", "bytes", "the median of this memory in that time"),
    Quantity("drift.*.bytes_per_request", "bytes", "growth for each answered heartbeat"),
    Quantity(
        "drift.*.bound_bytes_per_hour",
        "bytes",
        "the largest growth, of either sign, that counts as none",
        "hour",
    ),
    Quantity("generator.processes", "count", "processes of asyncli"),
    Quantity("generator.user_bytes", "bytes", "asyncli's own memory above the baseline"),
    Quantity("generator.user_bytes_per_connection", "bytes", "that, for each connection"),
    Quantity("generator.cpu_s", "s", "CPU time of asyncli"),
    Quantity("generator.cpu_us_per_heartbeat", "us", "CPU time of asyncli for each heartbeat"),
    Quantity("generator.saturated", "yes_or_no", "asyncli was at its own limit"),
    *_TLS,
    *_times(
        "protocol.handshake_ms",
        "protocol handshake, from the first byte sent until granted",
        ("p50", "p90", "p99", "max"),
    ),
    Quantity("protocol.refused.*", "count", "protocol handshakes refused for this reason"),
    Quantity("protocol.broken.*", "count", "connections on which the server broke the protocol so"),
    Quantity("protocol.goodbyes.*", "count", "connections closed with notice of this code"),
    Quantity("protocol.messages", "count", "messages that were no answers"),
    Quantity("protocol.message_bytes", "bytes", "their bytes without framing"),
    Quantity("protocol.streams.per_connection", "count", "HTTP/2 streams asked for by connection"),
    Quantity("protocol.streams.streams_opened", "count", "HTTP/2 streams opened"),
    Quantity("protocol.streams.streams_lost", "count", "streams lost on open connections"),
    Quantity("protocol.streams.streams_open", "count", "streams open at the hold's end"),
    Quantity("protocol.streams.reasons.*", "count", "streams lost for this reason"),
    Quantity("protocol.tables", "count", "connections that used the server's dynamic table"),
    Quantity("protocol.deflate.*", "count", "connections with permessage-deflate as agreed so"),
    Quantity("protocol.first_answers.*", "count", "workers whose first answer began so"),
)
#: Numbers in the JSON of a bench.
BENCH_QUANTITIES: Sequence[Quantity] = (
    Quantity("duration_s", "s", "how long requests were sent"),
    Quantity("complete", "yes_or_no", "the bench came to its planned end"),
    Quantity("workers", "count", "worker processes"),
    Quantity("requests.total", "count", "requests answered"),
    Quantity("requests.per_s", "count", "requests answered", "s"),
    Quantity("requests.failed", "count", "requests never answered"),
    Quantity("requests.keepalive", "count", "answered on a connection that stayed open"),
    Quantity("requests.failures.*", "count", "requests never answered for this cause"),
    Quantity("requests.by_status.*", "count", "answers with this HTTP status"),
    Quantity("requests.by_url.*", "count", "answers of this URL"),
    Quantity("requests.other_length", "count", "answers of another length than the first"),
    Quantity("requests.resent", "count", "requests sent again after their connection ended"),
    Quantity("requests.queued", "count", "requests that waited for a free connection"),
    Quantity("requests.in_flight", "count", "requests without their answer at the end"),
    Quantity("requests.overdue", "count", "requests due and not sent at the end (open loop)"),
    Quantity("requests.left", "count", "requests of -n that were not sent"),
    *_times("latency_ms", "request, answered minus due", _LATENCY),
    Quantity("times_ms.*.min", "ms", "the shortest time of this part of a request"),
    Quantity("times_ms.*.mean", "ms", "the mean time of this part of a request"),
    Quantity("times_ms.*.sd", "ms", "the standard deviation of that time"),
    Quantity("times_ms.*.median", "ms", "the median time of this part of a request"),
    Quantity("times_ms.*.max", "ms", "the longest time of this part of a request"),
    Quantity("percentiles_ms.*", "ms", "this percentage of requests took no longer"),
    *_times("lateness_ms", "request, sent minus due", _LATENESS),
    Quantity("connections.opened", "count", "connections established"),
    Quantity("connections.failed", "count", "connects that never established a connection"),
    Quantity("connections.failures.*", "count", "connects that failed for this cause"),
    Quantity("connections.ended.*", "count", "connections that ended before the last request so"),
    Quantity("connections.requests_each.*", "count", "answers of a connection that ended"),
    Quantity("bytes", "bytes", "bytes received above TCP"),
    Quantity("transfer.received", "bytes", "bytes received above TCP"),
    Quantity("transfer.bodies", "bytes", "bytes of the bodies of answers, without framing"),
    Quantity("transfer.sent", "bytes", "bytes sent above TCP"),
    Quantity("generator.cpu_s", "s", "CPU time of asyncli"),
    Quantity("generator.user_s", "s", "its user CPU time"),
    Quantity("generator.system_s", "s", "its system CPU time"),
    Quantity("generator.cpu_us_per_request", "us", "CPU time of asyncli for each request"),
    Quantity("generator.cores", "count", "cores that asyncli used"),
    Quantity("server.cpu_s", "s", "CPU time of the server"),
    Quantity("server.user_s", "s", "its user CPU time"),
    Quantity("server.system_s", "s", "its system CPU time"),
    Quantity("server.cpu_us_per_request", "us", "CPU time of the server for each request"),
    Quantity("server.cores", "count", "cores that the server used"),
    Quantity("host.cpus", "count", "CPUs of this host"),
    Quantity("host.busy_cores", "count", "cores of this host that were busy"),
    Quantity("host.others_cores", "count", "cores that other programs used"),
    Quantity("host.others.*", "count", "cores that this program used"),
    *_TLS,
)

_BY_KEY = {quantity.key: quantity for quantity in (*BENCH_QUANTITIES, *QUANTITIES)}


def quantity_of(key: str) -> Quantity:
    """The quantity with this key in the JSON of a soak or of a bench. Raises KeyError."""
    known = _BY_KEY.get(key)
    if known is not None:
        return known
    for pattern, quantity in _BY_KEY.items():
        if ANY in pattern and matches(pattern, key):
            return quantity
    raise KeyError(key)


def matches(pattern: str, key: str) -> bool:
    """Whether a key is one of those that ``pattern`` stands for."""
    wanted_names = pattern.split(".")
    names = key.split(".")
    if len(wanted_names) != len(names):
        return False
    return all(wanted in (ANY, name) for wanted, name in zip(wanted_names, names, strict=True))
