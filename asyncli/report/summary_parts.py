"""The parts of a summary, which are the JSON's contract. Bytes and seconds unless a name says otherwise; null is unknown."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncli.analysis.cost import Costs
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.handshakes import ProtocolPart, TlsPart
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import Reconciliation
from asyncli.analysis.residue import Residue
from asyncli.analysis.slope import Cost
from asyncli.analysis.totals import Latency, Lateness
from asyncli.analysis.verdict import Verdict
from asyncli.model.records import Environment, Finding, Gap, Phase


class RunPart(msgspec.Struct):
    """``gaps``: interruptions of a resumed run. ``stopped``: by its user, early."""

    id: str
    started: str
    duration_s: float
    phases: list[Phase]
    verdict: Verdict
    complete: bool
    stopped: bool
    gaps: list[Gap]


class Connections(msgspec.Struct):
    """``opened``: established, replacements included. ``lost``: ended before the drain, or unanswered at its end; the sum of
    ``deaths``. ``not_heard``: held, but without data since a fault or the hold's start. ``failed``: never established; the sum of
    ``failures``. None: the run file has no record of its connections.
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


class Server(msgspec.Struct):
    """Sums over the server's processes; ``cpu_s`` since their start. ``memory_bytes``: with what PSS does not have (huge pages,
    swap, programs that hold the connections in its place); absent where that is hardly anything.
    """

    processes: BeforeAfter
    rss_bytes: BeforeAfter
    pss_bytes: BeforeAfter
    cpu_s: BeforeAfter
    memory_bytes: BeforeAfter | msgspec.UnsetType = msgspec.UNSET

    @property
    def memory(self) -> tuple[BeforeAfter, str]:
        """The memory that is known, and its kind."""
        if self.memory_bytes is not msgspec.UNSET:
            return self.memory_bytes, "PSS"
        if self.pss_bytes.hold_end is not None:
            return self.pss_bytes, "PSS"
        return self.rss_bytes, "RSS"


class CostPart(msgspec.Struct):
    """``kernel_queued``: data in socket buffers, per end, not included elsewhere. ``streams``: HTTP/2 streams per connection.
    ``ends``: sockets of a connection on the sampled host; ``kernel`` is per end.
    """

    server_user: Cost | None
    kernel: Cost | None
    kernel_queued: Cost | None
    generator_user: Cost | None
    host_total: Cost | None
    residual: Cost | None
    streams: float | msgspec.UnsetType = msgspec.UNSET
    ends: int = 2
    #: Programs that hold as many connections behind the server, and their cost; both absent without any.
    behind_programs: list[str] | msgspec.UnsetType = msgspec.UNSET
    behind: Cost | msgspec.UnsetType | None = msgspec.UNSET

    @classmethod
    def of(cls, costs: Costs) -> CostPart:
        """The costs that stand in the JSON."""
        part = cls(
            server_user=costs.server_user,
            kernel=costs.kernel,
            kernel_queued=costs.kernel_queued,
            generator_user=costs.generator_user,
            host_total=costs.host_total,
            residual=costs.residual,
            streams=costs.streams,
            ends=costs.ends,
        )
        if costs.behind_programs:
            part.behind_programs = costs.behind_programs
            part.behind = costs.behind
        return part


class GeneratorUse(msgspec.Struct):
    """Host process and workers. ``user_bytes``: USS at the hold's end minus that before the first connect."""

    processes: int | None
    user_bytes: float | None
    user_bytes_per_connection: float | None
    cpu_s: float | None
    cpu_us_per_heartbeat: float | None
    saturated: bool


class Limit(msgspec.Struct):
    """A limit of ``--fail-if`` as written, its value, and whether it was ``kept`` (null: undecided)."""

    limit: str
    value: float | None
    kept: bool | None


class Summary(msgspec.Struct):
    """The contents of a report, and the JSON's contract. ``drift``: of each sampled metric. ``diagnoses``: their counts add up to
    the lost connections.
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

    def finding(self, *codes: str) -> Finding | None:
        """The first finding with one of these codes."""
        for finding in self.findings:
            if finding.code in codes:
                return finding
        return None
