"""The parts of a summary, field by field the JSON's contract with outside tools.

Bytes and seconds unless a name says otherwise; what is unknown is null, and a finding says why.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncli.analysis.cost import Residue
from asyncli.analysis.drift import Drift, MetricName
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.losses.attribution import Diagnosis
from asyncli.analysis.reconcile import Reconciliation
from asyncli.analysis.slope import Cost
from asyncli.analysis.tls import TlsPart
from asyncli.analysis.verdict import Verdict
from asyncli.records import Environment, Finding, Gap, Phase


class RunPart(msgspec.Struct):
    """``gaps``: where it was interrupted and resumed; nothing is fitted across them. ``stopped``: by its user, before its plan
    was done."""

    id: str
    started: str
    duration_s: float
    phases: list[Phase]
    verdict: Verdict
    complete: bool
    stopped: bool
    gaps: list[Gap]


class Connections(msgspec.Struct):
    """``opened``: established, replacements included. ``lost``: ended before the drain, or owed an answer then and never gave it;
    ``deaths`` adds up to it. ``not_heard``: of the held, not heard since a fault, or since the hold began.

    ``failed``: attempts that never established; ``failures`` adds up to it.
    """

    requested: int
    opened: int
    established_peak: int
    held: int
    not_heard: int
    lost: int
    reopened: int
    failed: int
    failures: dict[str, int]
    deaths: dict[str, int]


class Lateness(msgspec.Struct):
    """Sent (or opened) minus due, in ms; None without a record."""

    p50: float | None
    p99: float | None
    max: float | None


class Latency(msgspec.Struct):
    """Answered minus due, in ms; None without a record."""

    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None


class RampPart(msgspec.Struct):
    asked_per_s: float
    achieved_per_s: float | None
    lateness_ms: Lateness


class Heartbeats(msgspec.Struct):
    sent: int
    answered: int
    failed: int
    by_status: dict[str, int]
    latency_ms: Latency
    lateness_ms: Lateness


class Then(msgspec.Struct):
    """One number at the baseline's end and at the hold's end."""

    baseline: float | None
    hold_end: float | None


class Server(msgspec.Struct):
    """The server's processes, summed; ``cpu_s`` since their start."""

    processes: Then
    rss_bytes: Then
    pss_bytes: Then
    cpu_s: Then


class CostPart(msgspec.Struct):
    """``kernel_queued``: what waits in socket buffers, per end; a part of no other row."""

    server_user: Cost | None
    kernel: Cost | None
    kernel_queued: Cost | None
    generator_user: Cost | None
    host_total: Cost | None
    residual: Cost | None


class GeneratorUse(msgspec.Struct):
    """Host process and workers. ``user_bytes``: USS at the hold's end less that before the first connect."""

    processes: int | None
    user_bytes: float | None
    user_bytes_per_connection: float | None
    cpu_s: float | None
    cpu_us_per_heartbeat: float | None
    saturated: bool


class Limit(msgspec.Struct):
    """A limit of ``--fail-if`` as it was written, and the value that it is on; ``kept`` is null where that cannot be said."""

    limit: str
    value: float | None
    kept: bool | None


class Summary(msgspec.Struct):
    """Everything that a report shows; field by field the JSON's contract.

    ``drift`` has an entry for each of server_user, kernel, generator_user and host_total that was sampled; ``diagnoses`` add up
    to the connections lost.
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
    #: Not there of a run in the clear.
    tls: TlsPart | msgspec.UnsetType = msgspec.UNSET

    @property
    def verdict(self) -> Verdict:
        return self.run.verdict
