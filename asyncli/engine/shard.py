"""Messages between the session and the generator's processes: the resolved part of the plan that
they need, orders, reports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import msgspec

from asyncli.core.events import Reconnect
from asyncli.core.ramp import Ramp
from asyncli.engine.spread import Destination, Spread
from asyncli.model.benchplan import BenchPlan
from asyncli.model.plan import Plan
from asyncli.model.planned_events import PlannedEvent, churn_per_s
from asyncli.model.records import Finding, Tick
from asyncli.model.template import Data, Fields
from asyncli.model.values import TlsOptions
from asyncli.protocols.http1 import Scanner
from asyncli.protocols.interface import Protocol
from asyncli.protocols.settings import SETTINGS, Http2Settings, Settings, request_head


class Shard(msgspec.Struct, frozen=True, tag=True):
    """The orders for a generator of a soak. Times in seconds."""

    ramp: Ramp
    keepalive_s: float
    timeout_s: float
    connect_timeout_s: float
    seed: int
    reopen: bool
    beat_at_once: bool
    settings: Settings
    destinations: tuple[Destination, ...]
    sources: tuple[str, ...]
    local: bool
    workers: int
    #: The run resumes another, in which all connections were open: each counts as reopened.
    again: bool = False
    #: So many connections share a pair's ports that the kernel's default search for a free one gets
    #: slow.
    crowded: bool = False
    #: The numbers of this host's workers among the fleet's ``workers``; None: all of them.
    mine: tuple[int, ...] | None = None
    #: None: no TLS. ``names``: the host name of each URL of the plan.
    tls: TlsOptions | None = None
    names: tuple[str, ...] = ()
    #: Protocols to offer by ALPN.
    offered_alpn: tuple[str, ...] = ("http/1.1",)
    #: "v1" or "v2": each connection begins with a PROXY header.
    proxy_protocol: str | None = None
    #: The rows of all connections of the run: a host may take over those of another.
    data: Data | None = None
    #: The plan's events, and how clients come back; None: as fast as the ramp, with a backoff.
    events: tuple[PlannedEvent, ...] = ()
    reconnect: Reconnect | None = None
    #: The share of the connections that is ended and replaced in each second of the hold.
    churn_per_s: float = 0.0
    #: The time within which each connection receives something or is lost.
    heard_within_s: float = 0.0

    def fields(self, number: Callable[[int], int]) -> Fields:
        """The fields of a table; ``number``: the number of a row's connection in the run."""
        # The random field depends on the seed, so a resumed run has the same client ids.
        return Fields(number, f"{self.seed & 0xFFFFFF:06x}", self.data)

    def new_protocol(self, number: Callable[[int], int]) -> Protocol:
        """The protocol of a table; ``number``: as in :meth:`fields`."""
        return self.settings.new(os.urandom, self.fields(number))

    @property
    def http2(self) -> bool:
        """Whether TLS must negotiate HTTP/2."""
        return isinstance(self.settings, Http2Settings)

    def addresses_beside(self, destination: int) -> int:
        """The number of addresses of a destination's name, with its own."""
        target = self.destinations[destination].target
        return sum(destination.target == target for destination in self.destinations)

    @property
    def attempt_s(self) -> float:
        """The longest attempt to connect, which tries each address of a name."""
        return self.connect_timeout_s * max(
            map(self.addresses_beside, range(len(self.destinations)))
        )


class LoadShard(msgspec.Struct, frozen=True, tag=True):
    """The orders for a generator of a bench. Times in seconds. ``asks``: the bytes of a request for
    each URL of the plan.

    ``requests``: of all workers together, or None with ``duration_s``; ``rate``: requests a second
    of all together, or None for a closed loop; ``pipeline`` requests are written at once;
    ``short``: a connection for each request.
    """

    connections: int
    workers: int
    method: str
    asks: tuple[bytes, ...]
    destinations: tuple[Destination, ...]
    sources: tuple[str, ...]
    local: bool
    requests: int | None = None
    duration_s: float | None = None
    rate: float | None = None
    pipeline: int = 1
    short: bool = False
    timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    seed: int = 0
    tls: TlsOptions | None = None
    names: tuple[str, ...] = ()
    offered_alpn: tuple[str, ...] = ("http/1.1",)
    proxy_protocol: str | None = None

    http2: ClassVar[bool] = False

    def new_reader(self) -> Scanner:
        """A reader of one answer."""
        return Scanner(self.method)

    @property
    def may_repeat(self) -> bool:
        """Whether a request may be sent again on another connection (RFC 9110, section 9.2.2)."""
        return self.method not in ("POST", "PATCH")


def build_shard(plan: Plan, spread: Spread, data: Data | None = None) -> Shard:
    """The orders for the one host process of a local run. ``data``: the content of
    ``plan.data``.
    """
    return Shard(
        ramp=plan.schedule,
        keepalive_s=plan.keepalive_s,
        timeout_s=plan.timeout_s,
        connect_timeout_s=plan.connect_timeout_s,
        seed=plan.seed,
        reopen=plan.reopen,
        beat_at_once=plan.first_beat == "now",
        settings=SETTINGS[plan.protocol].of(plan),
        destinations=spread.destinations,
        sources=spread.sources,
        local=spread.local,
        workers=spread.workers,
        crowded=spread.crowds(plan.connections),
        tls=plan.tls,
        names=tuple(target.name for target in plan.targets),
        offered_alpn=plan.offered_alpn,
        proxy_protocol=plan.proxy_protocol,
        data=data,
        events=plan.planned_events,
        reconnect=plan.policy,
        churn_per_s=churn_per_s(plan.churn) if plan.churn is not None else 0.0,
        heard_within_s=plan.heard_within_s,
    )


def build_load_shard(plan: BenchPlan, spread: Spread) -> LoadShard:
    """The orders for the one host process of a local bench."""
    fields = list(plan.headers)
    if plan.short:
        fields.append("Connection: close")
    if plan.body or plan.method in ("POST", "PUT", "PATCH"):
        if not any(field.lower().startswith("content-type:") for field in fields):
            fields.append("Content-Type: text/plain")
        fields.append(f"Content-Length: {len(plan.body)}")
    return LoadShard(
        connections=plan.connections,
        workers=spread.workers,
        method=plan.method,
        asks=tuple(
            request_head(plan.method, target, fields) + plan.body for target in plan.held.targets
        ),
        destinations=spread.destinations,
        sources=spread.sources,
        local=spread.local,
        requests=plan.requests,
        duration_s=plan.duration_s,
        rate=plan.rate,
        pipeline=plan.pipeline,
        short=plan.short,
        timeout_s=plan.timeout_s,
        connect_timeout_s=plan.connect_timeout_s,
        seed=plan.seed,
        tls=plan.held.tls,
        names=tuple(target.name for target in plan.held.targets),
        offered_alpn=plan.held.offered_alpn,
        proxy_protocol=plan.proxy_protocol,
    )


# Down the pipe: session -> host -> workers.


class Start(msgspec.Struct, tag=True):
    """Begin the ramp at ``t0`` of the monotonic clock; ticks cover whole seconds from it."""

    t0: float


class HoldBegun(msgspec.Struct, tag=True):
    """The hold began at ``at`` of the monotonic clock. ``events_s``: how long after it each event
    of the plan is due (s), in their order; those that are due already belong to an earlier part of
    the run.
    """

    at: float
    events_s: tuple[float, ...]


class CommandLasts(msgspec.Struct, tag=True):
    """The server still has processes from before the command of this ``event``: what it ends
    ``until`` then (of the monotonic clock) belongs to it, of connections from before it. Of all
    connections if it ``runs`` still, or did until now.
    """

    event: int
    until: float
    runs: bool = False


class Drain(msgspec.Struct, tag=True):
    """Count the held connections, send and open nothing more, await outstanding answers, then
    close.
    """


class Stop(msgspec.Struct, tag=True):
    """End at once."""


class Adopt(msgspec.Struct, tag=True):
    """Also run these ``workers`` of a lost host, and open their connections again. ``crowded``: as
    in :class:`Shard`, for all connections that this host may then hold.
    """

    workers: tuple[int, ...]
    crowded: bool = False


class Alive(msgspec.Struct, tag=True):
    """A heartbeat of the controller: the processes exit if the next one does not come within
    ``leash_s``.
    """

    leash_s: int


# Up the pipe: workers -> host -> session.


class Ready(msgspec.Struct, tag=True):
    """The processes have started: the pids of the host and its workers."""

    host: int
    workers: list[int]


class Ticked(msgspec.Struct, tag=True):
    """One second of all workers together."""

    tick: Tick


class WorkerLost(msgspec.Struct, tag=True):
    """A worker ended unexpectedly: ``how`` ("was killed by SIGKILL", "exited with status 1 (...)"),
    and what it ``held`` by its last tick. ``host``, here and below: its name, in a fleet of
    several.
    """

    worker: int
    pid: int
    how: str
    held: int
    host: str = ""


class WorkerReplaced(msgspec.Struct, tag=True):
    """A new worker replaces a lost one, and opens its connections again."""

    worker: int
    pid: int
    host: str = ""


class WorkerSilent(msgspec.Struct, tag=True):
    """A running worker has sent no tick for ``silent_s``; ``held`` and ``awaiting`` by its last
    tick, not in the gauges now.
    """

    worker: int
    pid: int
    held: int
    awaiting: int
    silent_s: float
    host: str = ""


class WorkerBack(msgspec.Struct, tag=True):
    """A silent worker sends ticks again, after ``silent_s``; the gauges include it again."""

    worker: int
    pid: int
    silent_s: float
    host: str = ""


class Failed(msgspec.Struct, tag=True):
    """The generator has ended; ``why`` in one line. ``away``: because the controller
    disconnected.
    """

    why: str
    away: bool = False


class ProcessUsage(msgspec.Struct, tag=True):
    """What the generator's processes use on other hosts: metrics of a sample, by name."""

    values: dict[str, float]


class HostFinding(msgspec.Struct, tag=True):
    """A finding about a host of the fleet."""

    finding: Finding


_encode = msgspec.msgpack.Encoder().encode
Down = Start | HoldBegun | CommandLasts | Drain | Stop | Adopt | Alive
Up = (
    Ready
    | Ticked
    | WorkerLost
    | WorkerReplaced
    | WorkerSilent
    | WorkerBack
    | Failed
    | ProcessUsage
    | HostFinding
)


def frame(message: Shard | LoadShard | Down | Up) -> bytes:
    """A message as it goes through a pipe: four bytes of length, then msgpack."""
    payload = _encode(message)
    return len(payload).to_bytes(4, "little") + payload


class SilentWorkers:
    """The silent workers, and those of them whose connections are not in the gauges of the last
    tick.

    A silence is reported between two ticks: the gauges leave the worker out from the next one on.
    """

    def __init__(self) -> None:
        self._silent: dict[int, WorkerSilent] = {}
        self._left_out: tuple[WorkerSilent, ...] = ()

    def heard(self, message: WorkerSilent | WorkerBack | WorkerLost | WorkerReplaced) -> None:
        """Record a message about a worker."""
        self._silent.pop(message.worker, None)
        if isinstance(message, WorkerSilent):
            self._silent[message.worker] = message

    def ticked(self) -> None:
        """A tick has come."""
        self._left_out = tuple(self._silent.values())

    def __iter__(self) -> Iterator[WorkerSilent]:
        return iter(self._silent.values())

    @property
    def held(self) -> int:
        """Connections of workers that the gauges leave out."""
        return sum(worker.held for worker in self._left_out)

    @property
    def awaiting(self) -> int:
        """Unanswered heartbeats of workers that the gauges leave out."""
        return sum(worker.awaiting for worker in self._left_out)
