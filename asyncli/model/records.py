"""Records: ticks of the generator, samples of the collector, findings.

They are passed from worker to host, session, run file and report; their only behaviour is addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from asyncli.core.adding import added_up, copy_counts
from asyncli.core.histogram import Histogram
from asyncli.model.text import plain, tidy

#: The schema number of run file and JSON summary. Increased when older readers would misread new
#: files.
SCHEMA = 1

PhaseName = Literal["baseline", "ramp", "hold", "drain", "residue"]
PHASES: tuple[PhaseName, ...] = ("baseline", "ramp", "hold", "drain", "residue")
Severity = Literal["info", "warning", "error"]


#: A count, validated when read: never negative, and exact as a float.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Finding(msgspec.Struct, frozen=True):
    """Something the user should know. ``evidence``: the observation, in numbers; ``remedy``: what
    to do ("": nothing). ``fields``: the evidence as plain data; empty in older files. See
    :mod:`asyncli.findings`.
    """

    code: str
    severity: Severity
    evidence: str
    remedy: str = ""
    fields: dict[str, Any] = {}

    def __post_init__(self) -> None:
        tidy(self)
        if self.fields:
            msgspec.structs.force_setattr(self, "fields", plain(self.fields))

    def __hash__(self) -> int:
        return hash((self.code, self.evidence))


#: Codes of findings. The user stopped the run: with a drain, or at once.
STOPPED = "stopped_by_user"
CUT = "cut_off"
#: The run was resumed.
RESUMED = "resumed"
#: For so long (s) at most a run that was killed had gone on after the last instant in its file: the
#: generator counts each second, and the file is written each second.
UNRECORDED_S = 2.0
#: In the environment of a run resumed against another server: the last instant of the previous one
#: (s).
SERVER_CHANGED = "server_changed_s"
#: A client host was lost.
HOST_LOST = "host_lost"
#: A limit ended the run.
ABORTED = "aborted_by_limit"
#: It was sure what the limits say, so the run ended.
DECIDED = "decided_early"
#: Nothing connected, so the ramp was given up.
GAVE_UP = "gave_up"
#: Nothing on this host listens at the target, so the run did not begin.
NOTHING_LISTENS = "nothing_listens"


class Phase(msgspec.Struct):
    """A phase, in seconds since the run's start. ``end_s`` is None while it lasts."""

    name: PhaseName
    start_s: float
    end_s: float | None = None


def phase_at(phases: Iterable[Phase], t_s: float) -> PhaseName | None:
    """The phase that had begun last at ``t_s``; None before the first."""
    name = None
    for phase in phases:
        if phase.start_s <= t_s:
            name = phase.name
    return name


class Gap(msgspec.Struct):
    """An interruption of a resumed run: from its last record until all connections are held again;
    ``end_s`` None until then.
    """

    start_s: float
    end_s: float | None = None


#: What was done: a note by the user (``asyncli mark``), or an event of the plan.
EventKind = Literal["mark", "run", "drop", "storm", "vanish", "stall", "churn"]


class RunEvent(msgspec.Struct, frozen=True):
    """Something that was done to the run or to its server, or noted, at ``at_s`` (s since the run's
    start).

    ``end_s``: when its effects were over (s); None while they last. A mark has none, so it ends as
    it begins. ``text``: one line, of the user for a mark. ``fields``: what else is known of it, as
    plain data.
    """

    kind: EventKind
    at_s: float
    end_s: float | None
    text: str
    fields: dict[str, Any] = {}

    def __post_init__(self) -> None:
        tidy(self)
        if self.fields:
            msgspec.structs.force_setattr(self, "fields", plain(self.fields))


def mark(at_s: float, text: str) -> RunEvent:
    """A note at this instant (s since the run's start)."""
    return RunEvent("mark", at_s, at_s, text)


class TimeSpan(Protocol):
    """Anything with a start and perhaps an end (s)."""

    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float | None: ...


def left_out_s(gaps: Iterable[TimeSpan], start_s: float, until_s: float) -> float:
    """How much of the time between two instants (s) the gaps have."""
    total_s: float = 0
    for gap in gaps:
        end_s = until_s if gap.end_s is None else min(until_s, gap.end_s)
        total_s += max(0.0, end_s - max(start_s, gap.start_s))
    return total_s


class Deaths(msgspec.Struct, array_like=True):
    """Connections lost by one cause: their number, age (s), idle time (s) and requests; numbers are
    truncated. ``idle_ms``: the same idle times in milliseconds; ``in_message``: how many ended
    within a message, of which a part had come. Older run files lack both.
    """

    count: Count = 0
    age_s: Histogram = msgspec.field(default_factory=Histogram)
    idle_s: Histogram = msgspec.field(default_factory=Histogram)
    requests: Histogram = msgspec.field(default_factory=Histogram)
    idle_ms: Histogram = msgspec.field(default_factory=Histogram)
    in_message: Count = 0


#: Why a bench's worker ended: all requests done, time over, stopped, or no connection was possible.
Ended = Literal["asked", "time", "stopped", "gave up"]


class Asked(msgspec.Struct):
    """What a second of ``asyncli bench`` counts in addition to :class:`Tick`. Times in
    microseconds. Mergeable.

    A tick's ``latency_us`` is then a whole request's (with its connect, from its due time), its
    ``sent`` and ``answered`` count requests, ``failures`` connects, and its ``deaths`` connections
    that ended while requests remained.
    """

    #: Answered on a connection that stays open.
    keepalive: int = 0
    #: Sent again, because the connection ended before the answer.
    resent: int = 0
    #: Bytes of bodies.
    body_bytes: int = 0
    #: Answers whose body has another length than the first one's.
    other_length: int = 0
    #: In flight when the bench ended.
    in_flight: int = 0
    #: Open loop: due but not sent when the bench ended.
    overdue: int = 0
    #: How long the requests in flight, and the overdue ones, had waited when the bench ended.
    outstanding_us: Histogram = msgspec.field(default_factory=Histogram)
    #: With a given number of requests: not sent when the bench ended.
    left: int = 0
    #: Why workers ended -> how many.
    ended: dict[Ended, int] = msgspec.field(default_factory=dict)
    #: When the last worker ended, in seconds since T0.
    ended_s: float = 0.0
    #: Open loop: due while no connection was free.
    queued: int = 0
    #: Failed requests that are not retried, by cause.
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    #: Answers by the URL's number.
    by_target: dict[int, int] = msgspec.field(default_factory=dict)
    #: From the write of a request on an open connection to the first byte of its answer, and to the
    #: last byte.
    waiting_us: Histogram = msgspec.field(default_factory=Histogram)
    processing_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Requests answered per connection, counted when it ends.
    per_connection: Histogram = msgspec.field(default_factory=Histogram)
    #: The last answer of all workers, in seconds since T0.
    last_s: float = 0.0


#: What took less (s) cannot have been sent again: Linux waits for an acknowledgement for 0.2 s
#: (TCP_RTO_MIN, timers are some ms early), for that of a SYN for a second.
SENT_AGAIN_S = 0.19


class TcpCounts(msgspec.Struct):
    """Retransmissions of asyncli's own TCP sockets in a second, as the kernel reports them for each
    socket (TCP_INFO). Mergeable.

    A socket is read when a connect or an answer took long enough for a retransmission, and when a
    connection ends. Counters of a host include other programs: they are evidence of a fault only as
    far as these sockets show it. Without what connections sent again of which the client could not
    be heard: nothing but an event's silence lost that (:class:`EventCounts`).
    """

    #: Segments that were sent again.
    segments: Count = 0
    #: Of these, those of clients that do not come back from an event of the plan: the second, by
    #: its number, in which the connect or request began that was sent again -> segments. Older run
    #: files lack it.
    begun: dict[int, Count] = msgspec.field(default_factory=dict)
    #: Connects of which the SYN or the first request was sent again, and that succeeded.
    connects: Count = 0
    #: Connects that succeeded by TCP, whose first request was sent again and got no answer in time.
    #: A connect without any answer is a failure.
    unanswered: Count = 0
    #: Later heartbeats that were answered after a part of them was sent again.
    heartbeats: Count = 0


class TlsCounts(msgspec.Struct):
    """What TLS connections count in a second; times in microseconds. Mergeable.

    A :class:`Tick`'s ``connect_us`` is then the time until a heartbeat may be sent: ``tcp_us``,
    then ``handshake_us``.
    """

    not_added: ClassVar[tuple[str, ...]] = ("objects",)

    full: Count = 0
    resumed: Count = 0
    #: Version and cipher suite, as in "TLSv1.3 TLS_AES_256_GCM_SHA384" -> handshakes that chose it.
    spoken: dict[str, Count] = msgspec.field(default_factory=dict)
    #: When the server's certificate expires (ISO 8601) -> full handshakes with it.
    certificates: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Why handshakes failed, and why TLS ended established connections -> how many.
    failed: dict[str, Count] = msgspec.field(default_factory=dict)
    ended: dict[str, Count] = msgspec.field(default_factory=dict)
    tcp_us: Histogram = msgspec.field(default_factory=Histogram)
    handshake_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Connections that keep an OpenSSL object, at the end of the second. A gauge, summed over
    #: workers.
    objects: int = 0


class ProtocolCounts(msgspec.Struct):
    """What a protocol with a handshake, such as WebSocket, counts in a second. Mergeable."""

    not_added: ClassVar[tuple[str, ...]] = ("streams_open", "without_streams")

    #: From our first bytes to the peer's acceptance (us); a :class:`Tick`'s ``connect_us`` includes
    #: the TCP connect.
    handshake_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Why handshakes were refused -> how many.
    refused: dict[str, Count] = msgspec.field(default_factory=dict)
    #: How the peer broke the protocol on established connections -> how many.
    broken: dict[str, Count] = msgspec.field(default_factory=dict)
    #: The peer's close code, 0 without one -> how many.
    goodbyes: dict[int, Count] = msgspec.field(default_factory=dict)
    #: The peer's text for the reason, if it sends one -> how many. "HTTP/1.0": that version ended
    #: them.
    farewells: dict[str, Count] = msgspec.field(default_factory=dict)
    #: If every answer is accepted: how the first one of each worker begins -> how many. Of HTTP:
    #: :data:`EVENTS`, if it is.
    first_answers: dict[str, Count] = msgspec.field(default_factory=dict)
    #: If every answer is accepted: of those that begin otherwise than the first one of the worker,
    #: how the first of each kind begins -> how many.
    other_answers: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Complete messages that the server sent by itself, and their bytes without framing.
    messages: Count = 0
    message_bytes: Count = 0
    #: Messages of them that would have answered a heartbeat, had one been unanswered.
    unasked: Count = 0
    #: HTTP/2 streams whose responses are held: those opened; why they ended while their connection
    #: was open -> how many; and those open at the end of the second, a gauge that is summed over
    #: workers.
    streams_opened: Count = 0
    streams_lost: dict[str, Count] = msgspec.field(default_factory=dict)
    streams_open: int = 0
    #: HTTP/2 connections that a GOAWAY without error announced the end of, and that were kept for
    #: their held streams.
    draining: Count = 0
    #: HTTP/2 connections on which the server allows fewer streams at once than the plan needs, or
    #: none, at the end of the second. A gauge, summed over workers.
    without_streams: int = 0
    #: HTTP/2 connections whose requests use the server's dynamic table.
    tables: Count = 0
    #: WebSocket: permessage-deflate as granted, with its parameters -> connections.
    deflate: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Lost event streams: the reconnection time (s) of their last ``retry:``, if any.
    retry_s: Histogram = msgspec.field(default_factory=Histogram)


#: Causes of failed connects whose connections stood, and got no answer in time.
HANDSHAKES_IN_VAIN = ("handshake_timeout", "tls_timeout")


def handshakes_in_vain(failures: Mapping[str, int]) -> int:
    """How many handshakes of a protocol, or of TLS, got no answer in time. ``failures``: of
    connects, by cause.
    """
    return sum(failures.get(cause, 0) for cause in HANDSHAKES_IN_VAIN)


#: The number of what churn ends, among the plan's events, whose numbers begin at 1.
CHURN = 0


class EventCounts(msgspec.Struct):
    """What an event of a soak, such as a storm, counts in a second: none of it is in the counts of
    losses and failures. Mergeable.
    """

    #: Connections that the event concerns; of these, those that were not connected at its instant.
    chosen: Count = 0
    absent: Count = 0
    #: Connections that it ended; of these, those that awaited the answer to a heartbeat.
    ended: Count = 0
    asked: Count = 0
    #: Clients whose connections it ended or had stall, each once; of these, those whose connections
    #: it ended more than once. Older run files lack both.
    clients: Count = 0
    ended_repeatedly: Count = 0
    #: How often the turn of those who come back came: to connect, or to be heard again; connects
    #: that succeeded; why the others failed -> how many.
    attempts: Count = 0
    opened: Count = 0
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Of these too, those that only fell silent, so that the server may hold them still; of those,
    #: who stays away for good, who was heard again on the same connection, whose connection the
    #: server had then ended, and who had no answer on it in time, and connected anew (in ``closed``
    #: in older run files).
    silenced: Count = 0
    gone: Count = 0
    returned: Count = 0
    closed: Count = 0
    timed_out: Count = 0
    #: Of those who were heard again, those who awaited the answer to a request. Older run files
    #: lack it.
    awaited: Count = 0
    #: Of these, those with a request that the server's kernel had not acknowledged, as far as their
    #: own kernels knew: how long after that these were to send it again (ms).
    resends_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: TCP segments of those who come back that were sent again before their first answer: the
    #: second, by its number, in which their connect or request began -> segments; and those of
    #: connections that could not be heard, or had not been. Older run files lack both.
    sent_again: dict[int, Count] = msgspec.field(default_factory=dict)
    sent_again_silent: Count = 0
    #: Of those whom it ended, those whom another event ended before their first answer.
    ended_again: Count = 0
    #: Those who were not to be back yet when the drain began; of churn, also those on their first
    #: way back for no longer than others took on theirs; and those who were heard again, and waited
    #: only for a kernel to send again what was lost in the silence.
    waiting: Count = 0
    #: Those whose connections stood again, of which nothing tells whether they were back: they only
    #: listen, and the server sent them nothing until the drain, or until another event.
    unheard: Count = 0
    #: Those whose process of asyncli ended before their first answer.
    lost_with_worker: Count = 0
    #: Connections that read nothing for a time; of these, those that read again at its end.
    stalled: Count = 0
    resumed: Count = 0
    #: Why the server ended others of these -> how many (they are in ``closed`` too); how long after
    #: the event that was seen (ms), of those that it ended in the time of a command too; and how
    #: many ends were behind what waited to be read.
    closes: dict[str, Count] = msgspec.field(default_factory=dict)
    closed_ms: Histogram = msgspec.field(default_factory=Histogram)
    closed_unseen: Count = 0
    #: Of ``closed``, those whose end was seen only in the drain, so that they had been counted as
    #: held at its start.
    closed_in_drain: Count = 0
    #: Bytes that waited for those that stalled and were read afterwards, until they were back.
    waited_bytes: Count = 0
    #: Of those that stalled: the largest TCP segments of their connections (bytes; 0: no TCP) ->
    #: how many.
    segments: dict[int, Count] = msgspec.field(default_factory=dict)
    #: Of several addresses of a plan: the place of one among them -> how many connects to it
    #: failed, or got no answer.
    failed_at: dict[int, Count] = msgspec.field(default_factory=dict)
    #: Likewise those who had an answer neither by a connect nor otherwise when the drain began,
    #: though it was their turn, by the address that they tried last.
    missing_at: dict[int, Count] = msgspec.field(default_factory=dict)
    #: New connections that ended before their first answer; of these, those that had asked.
    phantoms: Count = 0
    unanswered: Count = 0
    #: Connects that got no answer in time, to a request or to the handshake of a protocol or of
    #: TLS, though the client's kernel called them connected; of these, those of which the peer's
    #: kernel had acknowledged all that was sent.
    in_vain: Count = 0
    acknowledged: Count = 0
    #: Answers with an error status to those who come back, who are not back by these: status -> how
    #: many (also those to the handshake of a protocol, whose connects are in ``failures`` too); and
    #: new connections that ended after such an answer.
    error_answers: dict[int, Count] = msgspec.field(default_factory=dict)
    turned_away: Count = 0
    #: From the event's instant to the first answer on a new connection (ms).
    back_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: For how long each was away (ms): from the instant at which asyncli saw its end, ended it, or
    #: had it fall silent or stall, to that answer; and as the drain began, of those who were not
    #: back then. Older run files lack both.
    away_ms: Histogram = msgspec.field(default_factory=Histogram)
    still_away_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: Likewise of those of ``ended_again``, until another event ended them. Older run files lack
    #: it.
    until_ended_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: How late asyncli connected (us); how long connects and first answers took (us).
    lateness_us: Histogram = msgspec.field(default_factory=Histogram)
    connect_us: Histogram = msgspec.field(default_factory=Histogram)
    answer_us: Histogram = msgspec.field(default_factory=Histogram)

    @property
    def connects(self) -> int:
        """Connects of those who come back: who is heard again on the same connection makes none."""
        return self.attempts - self.returned

    @property
    def turns_to_come(self) -> int:
        """Those whose turn to connect again has not come, at least: an attempt that failed is
        followed by others.
        """
        return self.ended - self.ended_again - self.lost_with_worker - self.attempts

    @property
    def waiting_so_far(self) -> int:
        """Of those who had no answer since, those whose turn has not come, at least: to connect, to
        be heard or to read again. It is ``waiting`` where the records end before the drain counts
        that.
        """
        to_come = self.turns_to_come + self.stalled - self.resumed - self.gone
        return max(0, min(to_come, self.away))

    @property
    def away(self) -> int:
        """Those who had no answer since, though it was or is to be their turn: without those whom
        another event ended, those whose process of asyncli has gone, and those who only listen and
        were sent nothing.
        """
        came = self.back_ms.count + self.ended_again + self.lost_with_worker
        away = self.ended + self.stalled - came - self.gone - self.waiting
        return away - self.unheard


#: The type of a body of server-sent events.
EVENTS = "text/event-stream"
#: Fields of a tick that are summed over workers (``Tick.merge_gauges``), but not over time.
GAUGES = (
    "workers",
    "held",
    "connecting",
    "coming_back",
    "awaiting",
    "ramped",
    "drained",
    "held_at_drain",
    "cpu_user_s",
    "cpu_system_s",
)


class Tick(msgspec.Struct):
    """One second of the generator: counts since the last tick, and gauges at its end. Mergeable.

    Times are in microseconds. ``latency_us`` counts from a heartbeat's due time, so that a late
    generator shows; an unanswered heartbeat counts with the time it has waited. ``lateness_us``:
    from due to sent.
    """

    not_added: ClassVar[tuple[str, ...]] = ("second", "longest_wait_s", "answered_s", *GAUGES)

    #: The tick's end, in whole seconds since the common start T0.
    second: int = 0
    # Gauges: summed over workers.
    workers: int = 0
    held: int = 0
    #: Connects without an answer of the peer so far; of these, those of clients that come back from
    #: an event, and whose connection stands by their own kernel: it says so too where the server
    #: has dropped it. They are not held.
    connecting: int = 0
    coming_back: int = 0
    #: Held connections that await an answer.
    awaiting: int = 0
    #: The longest wait of such an answer (s), of all workers.
    longest_wait_s: float = 0.0
    #: Workers that have issued all their batches and have no pending first connect.
    ramped: int = 0
    #: Workers that have closed all their connections.
    drained: int = 0
    #: Connections open when the drain began, summed over workers that have begun it.
    held_at_drain: int = 0
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    # Counts since the tick before.
    started: Count = 0
    opened: Count = 0
    reopened: Count = 0
    sent: Count = 0
    answered: Count = 0
    beats_failed: Count = 0
    bytes_sent: Count = 0
    bytes_received: Count = 0
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    deaths: dict[str, Deaths] = msgspec.field(default_factory=dict)
    by_status: dict[int, Count] = msgspec.field(default_factory=dict)
    #: Destinations dropped, because they refused while others answered: number -> workers that
    #: dropped it.
    dropped: dict[int, Count] = msgspec.field(default_factory=dict)
    latency_us: Histogram = msgspec.field(default_factory=Histogram)
    lateness_us: Histogram = msgspec.field(default_factory=Histogram)
    connect_us: Histogram = msgspec.field(default_factory=Histogram)
    #: For each batch of the ramp: opened minus due.
    ramp_lateness_us: Histogram = msgspec.field(default_factory=Histogram)
    #: The longest stall of a worker's loop: one long turn, or a late wake-up.
    longest_turn_s: float = 0.0
    #: Only in a bench.
    asked: Asked | None = None
    #: Deaths of connections whose heartbeat was not answered in the drain.
    unanswered: Count = 0
    #: Deaths of connections whose unanswered heartbeat the peer's kernel had acknowledged.
    acknowledged: Count = 0
    #: Deaths of connections that had received something since that heartbeat, but not its answer.
    spoke: Count = 0
    #: Unix socket: connects that had to wait because the server's listen queue was full.
    queue_full: Count = 0
    #: Connections of ``coming_back`` that ended with their process of asyncli.
    coming_back_lost: Count = 0
    #: Connections idle when the drain began: time since the last answer or the connect (ms).
    heard_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: Only with TLS.
    tls: TlsCounts | None = None
    #: For protocols with a handshake; for HTTP only ``broken``.
    protocol: ProtocolCounts | None = None
    #: None in a bench, and in files of older versions: unknown.
    tcp: TcpCounts | None = None
    #: By the event's number, from 1; that of churn is 0.
    events: dict[int, EventCounts] = msgspec.field(default_factory=dict)
    #: When the first and the last answer came, also one with an error (seconds since T0), of all
    #: workers. None without any, without events of the plan, and in files of older versions.
    answered_s: tuple[float, float] | None = None

    @property
    def lost(self) -> int:
        """Established connections that ended in this second, by any cause."""
        return sum(deaths.count for deaths in self.deaths.values())

    @property
    def ended_by_events(self) -> int:
        """Established connections that events of the plan ended or silenced, or that ended on their
        way back from one, less those that were heard again: none of them is lost.
        """
        total = 0
        for event in self.events.values():
            total += event.ended + event.phantoms + event.turned_away
            total += event.closed + event.timed_out - event.returned
        return total

    @property
    def away_by_plan(self) -> int:
        """Connections that by the plan's events are not open at the hold's end."""
        return self.waiting + sum(event.gone for event in self.events.values())

    @property
    def waiting(self) -> int:
        """Clients who were not to be back yet when the drain began."""
        return sum(event.waiting for event in self.events.values())

    @property
    def away_by_events(self) -> int:
        """Connections that events of the plan have away, as far as this tick tells: those without
        an answer since, those who are gone for good, and those whose turn is to come.
        """
        return self.away_by_plan + sum(event.away for event in self.events.values())

    @property
    def silenced_by_events(self) -> int:
        """Connections that fell silent by events of the plan, less those that were heard again."""
        return sum(event.silenced - event.returned for event in self.events.values())

    @property
    def lost_by_cause(self) -> dict[str, int]:
        """The same by cause."""
        return {cause: deaths.count for cause, deaths in self.deaths.items()}

    @property
    def lost_by_asyncli(self) -> int:
        """Connections that were lost with a process of asyncli's own."""
        if "generator_lost" not in self.deaths:
            return 0
        return self.deaths["generator_lost"].count

    @property
    def lost_by_server(self) -> int:
        """The others: what asyncli lost itself says nothing of the server."""
        return self.lost - self.lost_by_asyncli

    @property
    def asyncli_stood_still(self) -> bool:
        """Whether a turn of asyncli's own loop took so long that it may hide answers."""
        return self.longest_turn_s >= 0.5

    def failed_by(self, causes: Iterable[str]) -> int:
        """Connects that failed in this second by one of these causes, those of clients who come
        back from events of the plan included.
        """
        if not self.failures and not self.events:
            # Of nearly every second.
            return 0
        failures = [self.failures, *(event.failures for event in self.events.values())]
        return sum(by_cause.get(cause, 0) for by_cause in failures for cause in causes)

    @property
    def failed(self) -> int:
        """Connects that failed in this second, by any cause."""
        return sum(self.failures.values())

    def merge_counts(self, other: Tick) -> None:
        """Add the counts of ``other`` (not its gauges)."""
        whole = added_up(self, other)
        # The gauges of its parts, such as open streams, stay as they are.
        whole.merge_gauges(self)
        copy_counts(whole, self)
        if other.answered_s is not None:
            first_s, last_s = self.answered_s or other.answered_s
            other_first_s, other_last_s = other.answered_s
            self.answered_s = (min(first_s, other_first_s), max(last_s, other_last_s))

    def merge_gauges(self, other: Tick) -> None:
        """Add the gauges of another worker's tick."""
        self.workers += other.workers
        self.held += other.held
        self.connecting += other.connecting
        self.coming_back += other.coming_back
        self.awaiting += other.awaiting
        self.ramped += other.ramped
        self.drained += other.drained
        self.held_at_drain += other.held_at_drain
        self.cpu_user_s += other.cpu_user_s
        self.cpu_system_s += other.cpu_system_s
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        if other.tls is not None:
            self.tls = self.tls or TlsCounts()
            self.tls.objects += other.tls.objects
        if other.protocol is not None:
            self.protocol = self.protocol or ProtocolCounts()
            self.protocol.streams_open += other.protocol.streams_open
            self.protocol.without_streams += other.protocol.without_streams


HISTOGRAMS = ("latency_us", "lateness_us", "connect_us", "ramp_lateness_us", "heard_ms")


#: Greater than any time, memory size or 64-bit counter, and its square is a float.
MOST = 1e30


class Sample(msgspec.Struct):
    """The collector's reading at one instant: metric (see METRICS) -> number, without those not
    read.
    """

    t_s: float
    values: dict[str, float]


#: In :class:`CpuShares.others`: time that the hypervisor gave to other machines (proc_stat(5),
#: steal).
STOLEN = "the hypervisor (steal)"


class CpuShares(msgspec.Struct, frozen=True):
    """Use of a host's CPUs, in cores: ``busy`` in all, ``others`` by program without asyncli and
    the server; ``pids``: the process ids of those programs, the busiest first.
    """

    cpus: int
    busy: float
    others: dict[str, float]
    pids: dict[str, tuple[int, ...]]


class Check(msgspec.Struct, frozen=True):
    """A limit compared with the plan, and the command that raises it.

    ``have`` and ``need`` are in ``unit``; None: unknown. ``verdict``: "ok", "short" (the run is
    refused), "warn" (a finding), "unknown" (unreadable, or it cannot be told what the plan needs;
    ``detail`` says why).
    """

    code: str
    what: str
    verdict: Literal["ok", "short", "warn", "unknown"]
    have: float | None = None
    need: float | None = None
    unit: str = ""
    detail: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        tidy(self)


#: The code prefix of checks on the server's host, if it is another one.
FAR = "far_"

#: Facts about where a run took place; see the contract's ``environment``.
Environment = dict[str, Any]
