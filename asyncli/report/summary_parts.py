"""The parts of a summary, which are the JSON's contract. Bytes and seconds unless a name says
otherwise; null is unknown.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from asyncli.analysis.away import Away
from asyncli.analysis.cost_parts import Costs, known_of_heap
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.event_pace import EventPace
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.handshakes import ProtocolPart, TlsPart
from asyncli.analysis.heap_cost import HeapCost
from asyncli.analysis.in_vain import InVain
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import (
    Back,
    Closed,
    EventLatency,
    Provoked,
    SentAgain,
    ServerPrice,
    SpentDescriptors,
)
from asyncli.analysis.reconcile import Reconciliation
from asyncli.analysis.residue import Residue
from asyncli.analysis.slope import Cost
from asyncli.analysis.slow_readers import SlowReaders
from asyncli.analysis.totals import Latency, Lateness
from asyncli.analysis.verdict import Verdict
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import Environment, EventKind, Finding, Gap, Phase, RunEvent
from asyncli.model.runtimes import Runtime
from asyncli.report.thresholds import NotJudged


class RunPart(msgspec.Struct):
    """``gaps``: interruptions of a resumed run. ``stopped``: by its user, early. ``decided``: ended
    early by asyncli, since what limits that compare with earlier runs say was sure.
    """

    id: str
    started: str
    duration_s: float
    phases: list[Phase]
    verdict: Verdict
    complete: bool
    stopped: bool
    decided: bool
    gaps: list[Gap]


class Connections(msgspec.Struct):
    """``opened``: established, replacements included. ``lost``: ended before the drain, or
    unanswered at its end; the sum of ``deaths``. ``not_heard``: held, but without data since a
    fault or the hold's start. ``failed``: never established; the sum of ``failures``. None: the run
    file has no record of its connections.
    """

    requested: int
    opened: int | None
    established_peak: int | None
    held: int | None
    not_heard: int | None
    lost: int | None
    reopened: int | None
    failed: int | None
    failures: dict[str, int]
    deaths: dict[str, int]

    @property
    def held_or_peak(self) -> int | None:
        """``held``, or the peak of a run that lost them all."""
        return self.held or self.established_peak


class RampPart(msgspec.Struct):
    asked_per_s: float
    achieved_per_s: float | None
    lateness_ms: Lateness


class Heartbeats(msgspec.Struct):
    sent: int | None
    answered: int | None
    failed: int | None
    by_status: dict[str, int]
    latency_ms: Latency
    lateness_ms: Lateness


class BeforeAfter(msgspec.Struct):
    """A number at the baseline's end and at the hold's end."""

    baseline: float | None
    hold_end: float | None


class RuntimePart(msgspec.Struct):
    """What the server's programs run on. ``kind``: go, node, deno, bun, jvm, dotnet, python, ruby,
    beam or php. ``collected``: a collector frees its heap now and then, so resident memory has
    garbage in it. ``gogc``: of Go, in percent, -1: off. ``heap_limit_bytes``: the limit that it was
    started with (GOMEMLIMIT, -Xmx, --max-old-space-size); null: none, or unknown.
    """

    kind: str
    version: str | None
    collected: bool
    gogc: int | None
    heap_limit_bytes: int | None

    @classmethod
    def of(cls, runtime: Runtime) -> RuntimePart:
        """The runtime as it stands in the JSON."""
        return cls(
            runtime.kind,
            runtime.version or None,
            runtime.collected,
            runtime.gogc,
            runtime.heap_limit_bytes,
        )


class Server(msgspec.Struct):
    """Sums over the server's processes; ``cpu_s`` since their start. ``memory_bytes``: with what
    PSS does not have (huge pages, swap, programs that hold the connections in its place); absent
    where that is hardly anything. ``file_bytes``: of PSS, pages of files; absent where they were
    not read. ``runtime``: absent where none is known.
    """

    processes: BeforeAfter
    rss_bytes: BeforeAfter
    pss_bytes: BeforeAfter
    cpu_s: BeforeAfter
    memory_bytes: BeforeAfter | msgspec.UnsetType = msgspec.UNSET
    file_bytes: BeforeAfter | msgspec.UnsetType = msgspec.UNSET
    runtime: RuntimePart | msgspec.UnsetType = msgspec.UNSET

    @property
    def memory(self) -> tuple[BeforeAfter, str]:
        """The memory that is known, and its kind."""
        if self.memory_bytes is not msgspec.UNSET:
            return self.memory_bytes, "PSS"
        if self.pss_bytes.hold_end is not None:
            return self.pss_bytes, "PSS"
        return self.rss_bytes, "RSS"


class CostPart(msgspec.Struct):
    """``kernel_queued``: data in socket buffers, per end, not included elsewhere. ``streams``:
    HTTP/2 streams per connection. ``ends``: sockets of a connection on the sampled host; ``kernel``
    is per end.
    """

    server_user: Cost | None
    kernel: Cost | None
    kernel_queued: Cost | None
    generator_user: Cost | None
    host_total: Cost | None
    residual: Cost | None
    streams: float | msgspec.UnsetType = msgspec.UNSET
    ends: int = 2
    #: Programs that hold as many connections behind the server, and their cost; both absent without
    #: any.
    behind_programs: list[str] | msgspec.UnsetType = msgspec.UNSET
    behind: Cost | msgspec.UnsetType | None = msgspec.UNSET
    #: By the pages of a runtime; each absent where it is unknown.
    live: HeapCost | msgspec.UnsetType = msgspec.UNSET
    stacks: HeapCost | msgspec.UnsetType = msgspec.UNSET
    at_goal: HeapCost | msgspec.UnsetType = msgspec.UNSET
    #: The program behind the server whose heap that is; absent where it is the server's own.
    heap_of: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def with_heap(self) -> str:
        """The part that has the heap in it: the server, or what is behind it."""
        return "behind" if self.heap_of else "server_user"

    @classmethod
    def of(cls, costs: Costs) -> CostPart:
        """The costs that stand in the JSON."""
        part = cls(
            server_user=costs.written("server_user"),
            kernel=costs.written("kernel"),
            kernel_queued=costs.written("kernel_queued"),
            generator_user=costs.written("generator_user"),
            host_total=costs.written("host_total"),
            residual=costs.written("residual"),
            streams=costs.streams,
            ends=costs.ends,
        )
        if costs.behind_programs:
            part.behind_programs = costs.behind_programs
            part.behind = costs.written("behind")
        part.live = costs.heap.live or msgspec.UNSET
        part.stacks = costs.heap.stacks or msgspec.UNSET
        part.at_goal = costs.heap.at_goal or msgspec.UNSET
        if known_of_heap(costs):
            part.heap_of = costs.heap.program or msgspec.UNSET
        return part

    def cost_of(self, name: str) -> Cost | None:
        """The cost ``name``; None where it is unknown or absent."""
        by_name = {
            "server_user": self.server_user,
            "kernel": self.kernel,
            "kernel_queued": self.kernel_queued,
            "generator_user": self.generator_user,
            "host_total": self.host_total,
            "residual": self.residual,
            "behind": self.behind or None,
            "live": self.live or None,
            "stacks": self.stacks or None,
            "at_goal": self.at_goal or None,
        }
        return by_name[name]


class GeneratorUse(msgspec.Struct):
    """Host process and workers. ``user_bytes``: USS at the hold's end minus that before the first
    connect.
    """

    processes: int | None
    user_bytes: float | None
    user_bytes_per_connection: float | None
    cpu_s: float | None
    cpu_us_per_heartbeat: float | None
    saturated: bool


class Against(msgspec.Struct, omit_defaults=True):
    """A value against that of earlier runs: the weighted mean of ``runs`` of them
    ``before``, and the ``difference`` with the ends of the interval that decides. ``left_out``: why
    each other baseline run is not compared; absent if all are.
    """

    before: float
    difference: float
    low: float
    high: float
    runs: int
    left_out: list[str] = msgspec.field(default_factory=list)


class Limit(msgspec.Struct, omit_defaults=True):
    """A limit of ``--fail-if`` as written, its value, and whether it was ``kept`` (null:
    undecided). The value of a time back that some did not reach is how long there was for them.
    ``against``: of a limit that compares with earlier runs (``--baseline-run``). ``not_judged``:
    why it says nothing of the run, "not_installed" (asyncli-light cannot compute its number) or
    "ended_early" (asyncli ended the run for another limit that was crossed); absent of any other.
    """

    limit: str
    value: float | None
    kept: bool | None
    against: Against | None = None
    not_judged: NotJudged | None = None


T = TypeVar("T")


def known(value: T | msgspec.UnsetType) -> T:
    """A part of an event that was done."""
    assert not isinstance(value, msgspec.UnsetType)
    return value


class AtAddress(msgspec.Struct, frozen=True):
    """A count of one of several addresses."""

    address: str
    count: int


def _at_addresses(counts: dict[str, int]) -> list[AtAddress]:
    return [AtAddress(address, count) for address, count in counts.items()]


class OfAnotherEvent(msgspec.Struct, frozen=True):
    """A count of clients that another ``event`` has a part in. Not ``certain``: at most so many."""

    event: int
    count: int
    certain: bool


def _over_s(event: RunEvent, done: Provoked) -> float | None:
    """When the effects of an event were over (s); None where its command had not ended by the last
    record.
    """
    if event.kind == "run" and event.end_s is None:
        return None
    return done.window.end_s


class EventPart(msgspec.Struct):
    """What was done to the run or noted. ``number``: from 1, in order of time. ``at_s``: on the
    run's clock. ``end_s``: when its effects were over (null: they lasted); a mark has none, so it
    ends as it begins.
    """

    number: int
    kind: EventKind
    at_s: float
    end_s: float | None
    text: str
    #: How long after the hold's start it was (s), as the plan has it; absent outside of the hold.
    into_hold_s: float | msgspec.UnsetType = msgspec.UNSET
    # The rest is of events of the plan. ``share``: of all connections; ``how`` they were ended;
    # ``policy``: how they come back.
    #: Of a command: its exit status (negative: a signal; null: it was ended with the hold, or not
    #: run, or had not ended by the last record), how long it took (s; absent where it had not ended
    #: by then), and the end of what it printed.
    status: int | msgspec.UnsetType | None = msgspec.UNSET
    took_s: float | msgspec.UnsetType = msgspec.UNSET
    output: str | msgspec.UnsetType = msgspec.UNSET
    share: float | msgspec.UnsetType = msgspec.UNSET
    how: str | msgspec.UnsetType = msgspec.UNSET
    #: Of those that fall silent: for how long (s; null: for good), and what they do then.
    for_s: float | msgspec.UnsetType | None = msgspec.UNSET
    then: str | msgspec.UnsetType = msgspec.UNSET
    #: How much of that time there was (s) where the hold was over before; null: all.
    cut_after_s: float | msgspec.UnsetType | None = msgspec.UNSET
    #: How long after it the run was interrupted (s) where not all of it was over: the rest was not
    #: seen. Absent where all was.
    interrupted_after_s: float | msgspec.UnsetType = msgspec.UNSET
    #: How long after it the records end (s) of a run that goes on, or was killed, where not all of
    #: it was over then. Absent where all was.
    records_end_after_s: float | msgspec.UnsetType = msgspec.UNSET
    policy: str | msgspec.UnsetType = msgspec.UNSET
    chosen: int | msgspec.UnsetType = msgspec.UNSET
    absent: int | msgspec.UnsetType = msgspec.UNSET
    ended: int | msgspec.UnsetType = msgspec.UNSET
    #: Heartbeats whose answers were awaited as it, or the way back from it, ended the connections.
    given_up: int | msgspec.UnsetType = msgspec.UNSET
    back: Back | msgspec.UnsetType = msgspec.UNSET
    #: Null where nobody whom it ended was to come back, and in runs of older versions.
    away: Away | msgspec.UnsetType | None = msgspec.UNSET
    #: Clients whose connections it ended, silenced or had stall, each once; of these, those whose
    #: connections it ended more than once. Null in runs of older versions.
    clients: int | msgspec.UnsetType | None = msgspec.UNSET
    ended_repeatedly: int | msgspec.UnsetType | None = msgspec.UNSET
    ended_again: int | msgspec.UnsetType = msgspec.UNSET
    lost_with_worker: int | msgspec.UnsetType = msgspec.UNSET
    not_back: int | msgspec.UnsetType = msgspec.UNSET
    attempts: int | msgspec.UnsetType = msgspec.UNSET
    failures: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    #: Of several addresses: those at which connects failed, or got no answer; and those of clients
    #: that were not back.
    failed_at: list[AtAddress] | msgspec.UnsetType = msgspec.UNSET
    not_back_at: list[AtAddress] | msgspec.UnsetType = msgspec.UNSET
    phantoms: int | msgspec.UnsetType = msgspec.UNSET
    #: Null where no connect waited in vain for an answer.
    in_vain: InVain | msgspec.UnsetType | None = msgspec.UNSET
    #: Answers with an error status to those who come back, who are not back by these: status -> how
    #: many.
    error_answers: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    latency_ms: EventLatency | msgspec.UnsetType = msgspec.UNSET
    lateness_ms: Lateness | msgspec.UnsetType = msgspec.UNSET
    #: Null where no second ended in its time, or another event had some away in it.
    least_held: int | msgspec.UnsetType | None = msgspec.UNSET
    server: ServerPrice | msgspec.UnsetType = msgspec.UNSET
    #: Absent where the event was not done.
    pace: EventPace | msgspec.UnsetType = msgspec.UNSET
    #: Of those that fell silent: null where the server's connections were not counted meanwhile.
    noticed: Noticed | msgspec.UnsetType | None = msgspec.UNSET
    gone: int | msgspec.UnsetType = msgspec.UNSET
    #: Those who were not to be back yet at the hold's end, or as the records end.
    waiting: int | msgspec.UnsetType = msgspec.UNSET
    #: Those who only listen, whose connections stood again and who were sent nothing since: whether
    #: they were back cannot be told.
    unheard: int | msgspec.UnsetType = msgspec.UNSET
    returned: int | msgspec.UnsetType = msgspec.UNSET
    closed: int | msgspec.UnsetType = msgspec.UNSET
    #: By which commands the server ended those who were silent or stalled, where these ended the
    #: others as well; and of a command, how many it ended so of which events. They count with
    #: those. Absent without any.
    closed_by: list[OfAnotherEvent] | msgspec.UnsetType = msgspec.UNSET
    ended_of_others: list[OfAnotherEvent] | msgspec.UnsetType = msgspec.UNSET
    #: Of those that return: who awaited an answer then (absent in run files of older versions too);
    #: who had none in time since, and connected anew; and of whose requests the server's kernel had
    #: not acknowledged all, and when their own kernels were to send these again. Absent without
    #: any.
    awaited: int | msgspec.UnsetType = msgspec.UNSET
    timed_out: int | msgspec.UnsetType = msgspec.UNSET
    sent_again: SentAgain | msgspec.UnsetType = msgspec.UNSET
    #: Of those that stall: how many, who read again at its end, why the server ended others and
    #: when (of a command too), the bytes that waited for them, and the largest segments of TCP with
    #: which the server sent (null: no TCP). ``slow_readers``: what they cost it meanwhile.
    stalled: int | msgspec.UnsetType = msgspec.UNSET
    resumed: int | msgspec.UnsetType = msgspec.UNSET
    closes: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    closed_after: Closed | msgspec.UnsetType = msgspec.UNSET
    waited_bytes: int | msgspec.UnsetType = msgspec.UNSET
    segment_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    slow_readers: SlowReaders | msgspec.UnsetType = msgspec.UNSET
    #: Null where nobody waited to be back, or where the server had some left all the while.
    descriptors_spent: SpentDescriptors | msgspec.UnsetType | None = msgspec.UNSET
    listen_overflows: float | msgspec.UnsetType | None = msgspec.UNSET
    segments_sent_again: int | msgspec.UnsetType = msgspec.UNSET
    #: The longest time of two seconds or more that began in its time, and in which no client had an
    #: answer though some waited for one or tried to come back (s); 0 without one. Null where
    #: clients send no heartbeats.
    no_answers_s: float | msgspec.UnsetType | None = msgspec.UNSET
    #: The longest that it may have been (s): the same where it is wholly known; null where no end
    #: of it is.
    no_answers_at_most_s: float | msgspec.UnsetType | None = msgspec.UNSET
    #: The longest time that began in its time, and in which the server stood still (s): from the
    #: first to the last reading of that, so at least; 0 without one, or where a single reading
    #: shows it.
    stood_still_s: float | msgspec.UnsetType = msgspec.UNSET
    #: The longest that it may have been (s), by the readings beside these; null where no end of it
    #: is known.
    stood_still_at_most_s: float | msgspec.UnsetType | None = msgspec.UNSET

    @classmethod
    def of_mark(cls, number: int, event: RunEvent) -> EventPart:
        return cls(number, event.kind, event.at_s, event.end_s, event.text)

    @classmethod
    def of_plan(
        cls, event: RunEvent, planned: PlannedEvent, policy: str, done: Provoked | None
    ) -> EventPart:
        """An event of the plan. ``done``: what it did, once a second of it was recorded."""
        part = cls(int(event.fields["number"]), event.kind, event.at_s, event.end_s, event.text)
        if planned.do == "mark":
            return part
        part.policy = policy
        if planned.do == "churn":
            part.how = planned.how
        elif planned.do == "run":
            part._add_command(event)
        elif planned.do == "vanish":
            part.share = planned.share
            part.for_s = planned.for_s
            part.then = planned.then
        elif planned.do == "stall":
            part.share = planned.share
            part.for_s = planned.for_s
        else:
            part.share = planned.share
            part.how = planned.how
        if done is None:
            return part
        part._add_outage(done)
        if done.is_quiet:
            return part
        part.end_s = _over_s(event, done)
        part._add_cut(planned, done)
        part.ended = done.counts.ended
        part.given_up = done.counts.asked + done.counts.unanswered
        part.back = done.back
        part._add_clients(done)
        part.ended_again = done.counts.ended_again
        part.lost_with_worker = done.counts.lost_with_worker
        part.not_back = done.not_back
        part.waiting = done.counts.waiting
        part.unheard = done.counts.unheard
        part._add_connects(done)
        part.lateness_ms = done.lateness_ms
        part.least_held = done.least_held
        part._add_server(done)
        if done.closed is not None:
            part.closed_after = done.closed
        part._add_closings(done)
        if planned.do == "vanish":
            part._add_silence(done)
        if planned.do == "stall":
            part._add_stall(done)
        part.listen_overflows = done.listen_overflows
        part.segments_sent_again = done.segments_sent_again
        return part

    def _add_cut(self, planned: PlannedEvent, done: Provoked) -> None:
        """What of it the hold, or the records, had no time for."""
        if planned.for_s is not None:
            self.cut_after_s = done.cut_after_s
        if done.records_end_after_s is not None:
            self.records_end_after_s = done.records_end_after_s

    def _add_server(self, done: Provoked) -> None:
        """What it cost the server, and who decided how long it took."""
        self.server = done.server
        self.pace = done.pace
        self.descriptors_spent = done.descriptors_spent

    def _add_outage(self, done: Provoked) -> None:
        """How others were answered meanwhile."""
        self.latency_ms = done.latency_ms
        if self.kind != "churn":
            self.no_answers_s = done.no_answers_s
            self.no_answers_at_most_s = _bounded(done.no_answers_at_most_s)
            self.stood_still_s = done.stood_still_s
            self.stood_still_at_most_s = _bounded(done.stood_still_at_most_s)

    def _add_clients(self, done: Provoked) -> None:
        """How many clients it chose and concerned, and for how long these were away."""
        self.chosen = done.counts.chosen
        self.absent = done.counts.absent
        self.away = done.away
        self.clients = done.clients.all
        self.ended_repeatedly = done.clients.repeatedly

    def _add_connects(self, done: Provoked) -> None:
        """How the connects of those who come back went, and the answers with errors to them."""
        self.attempts = done.counts.connects
        self.failures = done.counts.failures
        if done.failed_at:
            self.failed_at = _at_addresses(done.failed_at)
        if done.missing_at:
            self.not_back_at = _at_addresses(done.missing_at)
        self.phantoms = done.counts.phantoms
        self.in_vain = done.in_vain
        by_status = done.counts.error_answers
        self.error_answers = {str(status): by_status[status] for status in sorted(by_status)}

    def _add_command(self, event: RunEvent) -> None:
        """How a command ended. Without a second of it the server ended none in its time."""
        self.status = event.fields.get("status")
        self.output = event.fields.get("output", "")
        if event.end_s is not None:
            self.took_s = event.fields.get("took_s", 0.0)
        if self.took_s != 0.0:
            self.ended = 0

    def _add_closings(self, done: Provoked) -> None:
        """Which commands ended its clients, or of which events it ended some."""
        by = [OfAnotherEvent(of.command, of.count, of.certain) for of in done.closed_by]
        if by:
            self.closed_by = by
        of_others = [OfAnotherEvent(of.event, of.count, of.certain) for of in done.ended_of_others]
        if of_others:
            self.ended_of_others = of_others

    def _add_silence(self, done: Provoked) -> None:
        """What is known only of those that fall silent."""
        self.noticed = done.noticed
        self.gone = done.counts.gone
        self.returned = done.counts.returned
        self.closed = done.counts.closed
        if done.counts.awaited:
            self.awaited = done.counts.awaited
        if done.counts.timed_out:
            self.timed_out = done.counts.timed_out
        if done.sent_again is not None:
            self.sent_again = done.sent_again

    def _add_stall(self, done: Provoked) -> None:
        """What is known only of those that stall."""
        counts = done.counts
        self.stalled = counts.stalled
        self.resumed = counts.resumed
        self.closed = counts.closed
        self.closes = counts.closes
        self.waited_bytes = counts.waited_bytes
        # That of most of them; 0: no TCP.
        self.segment_bytes = (
            max(counts.segments, key=counts.segments.__getitem__, default=0) or None
        )
        if done.slow_readers is not None:
            self.slow_readers = done.slow_readers


def _bounded(most: float | None) -> float | None:
    """The most that a value may be; None where it has no bound."""
    if most is None or math.isinf(most):
        return None
    return most


def took_nobody(event: EventPart) -> bool:
    """Whether an event chose connections and could take none of them: each was not connected, or in
    another event.
    """
    return bool(event.chosen) and event.absent == event.chosen


class Summary(msgspec.Struct):
    """The contents of a report, and the JSON's contract. ``drift``: of each sampled metric.
    ``diagnoses``: their counts add up to the lost connections.
    """

    schema: int
    run: RunPart
    plan: dict[str, Any]
    connections: Connections
    ramp: RampPart
    heartbeats: Heartbeats
    reconciliation: Reconciliation
    server: Server
    cost: CostPart
    residue: Residue
    forecast: Forecast
    drift: dict[MetricName, Drift]
    diagnoses: list[Diagnosis]
    generator: GeneratorUse
    limits: list[Limit]
    findings: list[Finding]
    environment: Environment
    #: Absent without TLS.
    tls: TlsPart | msgspec.UnsetType = msgspec.UNSET
    protocol: ProtocolPart | msgspec.UnsetType = msgspec.UNSET
    #: Absent without any.
    events: list[EventPart] | msgspec.UnsetType = msgspec.UNSET

    @property
    def verdict(self) -> Verdict:
        return self.run.verdict

    @property
    def why(self) -> str:
        """The reason of the verdict."""
        verdict = self.finding(f"verdict_{self.verdict}")
        if verdict is None:
            return ""
        return verdict.evidence

    @property
    def is_by_limits(self) -> bool:
        """Whether only limits decided the verdict."""
        verdict = self.finding(f"verdict_{self.verdict}")
        return verdict is not None and bool(verdict.fields["by_limits"])

    def finding(self, *codes: str) -> Finding | None:
        """The first finding with one of these codes."""
        for finding in self.findings:
            if finding.code in codes:
                return finding
        return None
