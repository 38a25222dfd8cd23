"""Records: ticks of the generator, samples of the collector, findings.

These types cross all borders (worker -> host -> session -> run file -> report); their only behaviour is to add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from asyncli.core.adding import added_up, summable
from asyncli.core.histogram import Histogram
from asyncli.text import plain, tidy

#: The run file's and the JSON summary's schema number. Raised when an older reader would misread new files.
SCHEMA = 1

PhaseName = Literal["baseline", "ramp", "hold", "drain", "residue"]
PHASES: tuple[PhaseName, ...] = ("baseline", "ramp", "hold", "drain", "residue")
Severity = Literal["info", "warning", "error"]


#: A count; from a run file or a pipe it is validated: never below 0, and exact as a float.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Finding(msgspec.Struct, frozen=True):
    """Something the user should know. ``evidence``: what was seen, in numbers; ``remedy``: what to do ("": nothing). ``fields``:
    the evidence as plain data; empty in older files. See :mod:`asyncli.findings`."""

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


#: Codes of findings. Its user ended the run: drained, or cut off at once.
STOPPED, CUT = "stopped_by_user", "cut_off"
#: The run was resumed.
RESUMED = "resumed"
#: In the environment of a resumed run with another server: the last instant of the former (s).
SERVER_CHANGED = "server_changed_s"
#: A client host was lost.
HOST_LOST = "host_lost"
#: A limit ended the run.
ABORTED = "aborted_by_limit"
#: Nothing connected, so the ramp ended.
GAVE_UP = "gave_up"
#: Nothing listens at the target on this host, so the run did not begin.
NOTHING_LISTENS = "nothing_listens"


class Phase(msgspec.Struct):
    """A phase, in seconds since the run's start. ``end_s`` is None while it lasts."""

    name: PhaseName
    start_s: float
    end_s: float | None = None


class Gap(msgspec.Struct):
    """An interruption of a resumed run: from its last record until all were held again; ``end_s`` None while it lasts."""

    start_s: float
    end_s: float | None = None


class TimeSpan(Protocol):
    """What begins (s) and may have ended."""

    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float | None: ...


def left_out_s(gaps: Iterable[TimeSpan], start_s: float, until_s: float) -> float:
    """The interruptions between ``start_s`` and ``until_s`` (s)."""
    return sum(
        min(until_s, math.inf if one.end_s is None else one.end_s) - one.start_s
        for one in gaps
        if start_s <= one.start_s < until_s
    )


class Deaths(msgspec.Struct, array_like=True):
    """Established connections that ended by one cause: number, age (s), idle time (s), requests."""

    count: Count = 0
    age_s: Histogram = msgspec.field(default_factory=Histogram)
    idle_s: Histogram = msgspec.field(default_factory=Histogram)
    requests: Histogram = msgspec.field(default_factory=Histogram)


#: Why a bench's worker ended: all requests done, its time over, stopped, or no connection was possible.
Ended = Literal["asked", "time", "stopped", "gave up"]


class Asked(msgspec.Struct):
    """What a second of ``asyncli bench`` counts beyond a :class:`Tick`'s. Times in microseconds. Mergeable.

    A tick's ``latency_us`` is then the whole of a request (connect and all, from the instant it was due), its ``sent`` and
    ``answered`` count requests, ``failures`` connects, and its ``deaths`` connections that ended while more was to be asked.
    """

    #: Answered on a connection that stays open.
    keepalive: int = 0
    #: Asked again, because the connection ended before the answer.
    resent: int = 0
    #: Bytes of bodies.
    body_bytes: int = 0
    #: Answers whose body is not as long as the first one's.
    other_length: int = 0
    #: In flight when the bench ended.
    in_flight: int = 0
    #: Of an open loop: due and not sent by then.
    overdue: int = 0
    #: How long the requests in flight, and the overdue ones, had waited by then.
    outstanding_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Of a given number of requests: not sent by then.
    left: int = 0
    #: Why workers ended -> how many.
    ended: dict[Ended, int] = msgspec.field(default_factory=dict)
    #: When, in seconds since T0: the last of all workers'.
    ended_s: float = 0.0
    #: Of an open loop: due while no connection was free.
    queued: int = 0
    #: Failed requests that are not retried, by cause.
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    #: Answers by the number of the URL that was asked.
    by_target: dict[int, int] = msgspec.field(default_factory=dict)
    #: From the write of a request on an open connection to the first byte of its answer, and to the last.
    waiting_us: Histogram = msgspec.field(default_factory=Histogram)
    processing_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Connections by the requests that they answered, as they end.
    per_connection: Histogram = msgspec.field(default_factory=Histogram)
    #: The last answer's instant, in seconds since T0: the greatest of all workers'.
    last_s: float = 0.0


class TlsCounts(msgspec.Struct):
    """What TLS counts in a second, in microseconds where it is a time. Mergeable.

    A :class:`Tick`'s ``connect_us`` is then the whole, until a heartbeat may be sent: ``tcp_us`` and ``handshake_us`` in turn.
    """

    not_added: ClassVar[tuple[str, ...]] = ("objects",)

    full: Count = 0
    resumed: Count = 0
    #: Version and cipher suite, as in "TLSv1.3 TLS_AES_256_GCM_SHA384" -> handshakes that chose it.
    spoken: dict[str, Count] = msgspec.field(default_factory=dict)
    #: When the certificate ends that a full handshake showed (ISO 8601) -> how many.
    certificates: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Why handshakes failed, and why TLS ended connections that stood -> how many.
    failed: dict[str, Count] = msgspec.field(default_factory=dict)
    ended: dict[str, Count] = msgspec.field(default_factory=dict)
    tcp_us: Histogram = msgspec.field(default_factory=Histogram)
    handshake_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Connections that keep an object of OpenSSL's, at the end of the second. A gauge, summed over workers.
    objects: int = 0


class ProtocolCounts(msgspec.Struct):
    """What a protocol that shakes hands counts in a second, as WebSocket does. Mergeable."""

    not_added: ClassVar[tuple[str, ...]] = ("streams_open",)

    #: From the first words to the peer's leave (us); a :class:`Tick`'s ``connect_us`` is the whole, from the connect on.
    handshake_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Why it was refused -> how many.
    refused: dict[str, Count] = msgspec.field(default_factory=dict)
    #: How it broke the protocol on connections that stood -> how many.
    broken: dict[str, Count] = msgspec.field(default_factory=dict)
    #: The code of the peer's goodbye, 0 without one -> how many.
    goodbyes: dict[int, Count] = msgspec.field(default_factory=dict)
    #: Why, in the peer's own words, where it says it -> how many.
    farewells: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Where any answer is right: how the first of each worker begins -> how many.
    first_answers: dict[str, Count] = msgspec.field(default_factory=dict)
    #: What came whole and unasked, and bytes of it without framing.
    messages: Count = 0
    message_bytes: Count = 0
    #: Of HTTP/2, requests that were answered in a handshake and whose answers are held; why such ended while their connection
    #: lived -> how many; and those open at the end of the second: a gauge, summed over workers.
    streams_opened: Count = 0
    streams_lost: dict[str, Count] = msgspec.field(default_factory=dict)
    streams_open: int = 0
    #: Of HTTP/2, connections whose requests use the server's dynamic table.
    tables: Count = 0
    #: Of WebSocket, where it was offered: permessage-deflate as it was granted, with its parameters -> on how many connections.
    deflate: dict[str, Count] = msgspec.field(default_factory=dict)
    #: Of event streams that were lost, how long (s) their last ``retry:`` has them wait; without one nothing.
    retry_s: Histogram = msgspec.field(default_factory=Histogram)


#: Of a tick: summed over workers, and not over time.
GAUGES = (
    "workers", "held", "connecting", "awaiting", "ramped", "drained", "held_at_drain", "cpu_user_s", "cpu_system_s",
)  # fmt: skip


class Tick(msgspec.Struct):
    """One second of the generator: counts since the last tick, and gauges at its end. Mergeable.

    Times are in microseconds. ``latency_us`` counts from the instant the heartbeat was due, so a late generator cannot hide; an
    unanswered heartbeat counts with its wait. ``lateness_us`` is due to sent.
    """

    not_added: ClassVar[tuple[str, ...]] = ("second", "longest_wait_s", *GAUGES)

    #: Whole seconds since the common start T0 that this tick closes.
    second: int = 0
    # Gauges: summed over workers.
    workers: int = 0
    held: int = 0
    connecting: int = 0
    awaiting: int = 0
    #: The longest wait of these (s): the greatest of all workers'.
    longest_wait_s: float = 0.0
    #: Workers whose batches are all issued, without a pending first connect.
    ramped: int = 0
    #: Workers that have closed everything they held.
    drained: int = 0
    #: Open at the moment the drain began, summed over workers that have begun it.
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
    #: Destinations given up, because they refused while others answered: number -> workers that gave up.
    dropped: dict[int, Count] = msgspec.field(default_factory=dict)
    latency_us: Histogram = msgspec.field(default_factory=Histogram)
    lateness_us: Histogram = msgspec.field(default_factory=Histogram)
    connect_us: Histogram = msgspec.field(default_factory=Histogram)
    #: Per batch of the ramp: opened minus due.
    ramp_lateness_us: Histogram = msgspec.field(default_factory=Histogram)
    #: The longest hang of a worker: in one turn, or late to wake.
    longest_turn_s: float = 0.0
    #: Of a bench only.
    asked: Asked | None = None
    #: Of the deaths: connections whose heartbeat was not answered in the drain.
    unanswered: Count = 0
    #: Of the deaths: connections whose unanswered heartbeat the peer's kernel had acknowledged.
    acknowledged: Count = 0
    #: Of the deaths: connections that had said something since that heartbeat, and not its answer.
    spoke: Count = 0
    #: Of a Unix socket: connects that the kernel had no room for in the server's listen queue, and that waited for it.
    queue_full: Count = 0
    #: Of those idle when the drain began: time since the last answer, or the connect (ms).
    heard_ms: Histogram = msgspec.field(default_factory=Histogram)
    #: Of connections over TLS only.
    tls: TlsCounts | None = None
    #: Of connections whose protocol shakes hands; of HTTP's what broke it alone.
    protocol: ProtocolCounts | None = None

    @property
    def lost(self) -> int:
        """Established connections that ended in this second, by whatever cause."""
        return sum(deaths.count for deaths in self.deaths.values())

    def merge_counts(self, other: Tick) -> None:
        """Add the counts of ``other`` (not its gauges)."""
        whole = added_up(self, other)
        for name in summable(Tick):
            setattr(self, name, getattr(whole, name))

    def merge_gauges(self, other: Tick) -> None:
        """Add the gauges of ``other``, which comes from another worker."""
        for name in GAUGES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        if other.tls is not None:
            self.tls = self.tls or TlsCounts()
            self.tls.objects += other.tls.objects
        if other.protocol is not None:
            self.protocol = self.protocol or ProtocolCounts()
            self.protocol.streams_open += other.protocol.streams_open


HISTOGRAMS = ("latency_us", "lateness_us", "connect_us", "ramp_lateness_us", "heard_ms")


#: Beyond any time, memory or counter of 64 bits, and its square is a float.
MOST = 1e30


class Sample(msgspec.Struct):
    """The collector's reading at one instant: metric (see METRICS) -> number. Absent: not read."""

    t_s: float
    values: dict[str, float]


#: Time that a hypervisor gave to other machines (proc_stat(5), steal), among :class:`CpuShares`' programs.
STOLEN = "the hypervisor (steal)"


class CpuShares(msgspec.Struct, frozen=True):
    """Use of a host's ``cpus``, in cores: ``busy`` in all, ``others`` by program, without asyncli and the server; ``pids`` of
    those, the busiest first."""

    cpus: int
    busy: float
    others: dict[str, float]
    pids: dict[str, tuple[int, ...]]


class Check(msgspec.Struct, frozen=True):
    """A limit against the plan, with the command that mends it.

    ``have`` and ``need`` are in ``unit``, None where unknown. ``verdict``: "ok", "short" (refuses the run), "warn" (goes on, with
    a finding), "unknown" (unreadable; ``detail`` says why).
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


#: The prefix of codes of a distant server's host.
FAR = "far_"

#: Free-form facts about where a run took place; see the contract's ``environment``.
Environment = dict[str, Any]
