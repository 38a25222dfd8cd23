"""The plan and the records of a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from asyncli.model import plan as soaks
from asyncli.model.consistency import require_alike
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer, Plan, RedactedPlan, read_layers
from asyncli.model.records import CpuShares, Ended, Environment, Finding, Sample, Tick
from asyncli.model.units import shown
from asyncli.model.values import above_zero, checked_url, count_to, each_of, one_of

# Methods whose answers have a known end; CONNECT and UPGRADE leave HTTP.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
# Those that may be sent again.
_PIPELINED = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
DEFAULT_DURATION_S = 10.0
MOST_PIPELINE = 10_000
MOST_RATE = 10_000_000
# Eleven days at a million a second; a worker's share must be less than 2**63.
MOST_REQUESTS = 10**12
# A body is kept in memory and sent in one piece.
LONGEST_BODY = 16 << 20
# So is a pipeline, for each URL in each process.
LONGEST_TRAIN = 64 << 20
# A request without its URL, headers and body.
_LEAST_REQUEST = 256


class BenchPlan(RedactedPlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A closed loop of requests on ``connections``, or an open loop at ``rate`` a second. Times in
    seconds.

    It ends after ``requests`` or ``duration_s``, whichever comes first; None: no such limit.
    ``pipeline``: how many requests are written at once; ``short``: a connection for each request.
    ``workers`` None: asyncli chooses.
    """

    urls: tuple[str, ...]
    connections: int = 64
    requests: int | None = None
    duration_s: float | None = None
    rate: float | None = None
    pipeline: int = 1
    short: bool = False
    method: str = "GET"
    headers: tuple[str, ...] = ()
    body: bytes = b""
    workers: int | None = None
    sources: tuple[str, ...] = ()
    timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    status_url: str | None = None
    status_headers: tuple[str, ...] = ()
    server_metrics: tuple[str, ...] = ()
    metrics_map: tuple[str, ...] = ()
    server_pid: int | None = None
    server_pidfile: str | None = None
    server_name: str | None = None
    #: Limits on the bench's numbers, as for a soak.
    fail_if: tuple[str, ...] = ()
    connect_to: str | None = None
    resolve: tuple[str, ...] = ()
    proxy_protocol: Literal["v1", "v2"] | None = None
    sni: str | None = None
    seed: int = 0
    force: bool = False

    @property
    def held(self) -> Plan:
        """A soak's plan with the same connections, for preflight and collector."""
        shared = {*self.__struct_fields__} & {*Plan.__struct_fields__} - {"method", "fail_if"}
        values = msgspec.structs.asdict(self)
        return Plan(batch=self.connections, **{name: values[name] for name in shared})


class BenchRun(msgspec.Struct):
    """The records of a bench. ``elapsed_s``: from the first connect to the last answer, or the end
    of ``duration_s``.

    ``total`` is the sum of ``ticks``, each (seconds since the start, tick); ``cpu_s``: user and
    system seconds of the workers; ``ended``: the worst reason; ``complete``: it reached its planned
    end. ``cpus_before``, ``cpus``: use of this host's CPUs before and since the first connect;
    None: unreadable.
    """

    plan: BenchPlan
    started: str
    elapsed_s: float
    workers: int
    cpu_s: tuple[float, float]
    ended: Ended
    complete: bool
    total: Tick
    ticks: list[tuple[float, Tick]]
    samples: list[Sample]
    findings: list[Finding]
    environment: Environment
    cpus_before: CpuShares | None = None
    cpus: CpuShares | None = None


def _body(value: object) -> bytes:
    data = _bytes_of_body(value)
    if len(data) > LONGEST_BODY:
        raise ValueError(
            f"a body of more than {LONGEST_BODY:,} bytes is too long; write a shorter one"
        )
    return data


def _bytes_of_body(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text; write one, or @FILE")
    if value.startswith("@"):
        return _body_in_file(value[1:])
    return value.encode("utf-8", "surrogateescape")


def _body_in_file(name: str) -> bytes:
    path = Path(name)
    try:
        if path.is_fifo():  # opening it would wait for a writer
            raise ValueError("it is a pipe")
        with path.open("rb") as file:
            return file.read(LONGEST_BODY + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{shown(name)} cannot be read ({why}); name a file, or write the text itself"
        ) from None


def _rate(value: object) -> float:
    if isinstance(value, str):
        value = value.removesuffix("/s")
    return float(_whole_rate(value))


_whole_rate = count_to(
    MOST_RATE,
    "more than any server answers; write requests a second up to 10M, for example 500",
)
_requests = count_to(
    MOST_REQUESTS, "more than one bench is built for; write at most 1000000M, or --duration"
)
_pipeline = count_to(
    MOST_PIPELINE,
    f"too deep; write how many requests to send at once, up to {MOST_PIPELINE:,}",
)


#: key of a plan (and, with dashes, the flag) -> (field of BenchPlan, parser).
KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    **{key: known for key, known in soaks.KEYS.items() if known[0] in BenchPlan.__struct_fields__},
    "urls": ("urls", each_of(checked_url)),
    "requests": ("requests", _requests),
    "duration": ("duration_s", above_zero("10s")),
    "rate": ("rate", _rate),
    "pipeline": ("pipeline", _pipeline),
    "short": ("short", soaks.KEYS["force"][1]),
    "method": ("method", one_of(*METHODS, what="a method to bench with")),
    "body": ("body", _body),
}  # fmt: skip


def build_bench_plan(layers: Iterable[Layer]) -> BenchPlan:
    """Merge the layers, weakest first, into one plan. Raises :class:`PlanError`."""
    fields, located = read_layers(layers, KEYS | soaks.HEADER_FILE)
    require_alike(fields, located)
    if fields.get("requests") is None and fields.get("duration_s") is None:
        fields["duration_s"] = DEFAULT_DURATION_S
    if fields.get("body") and "method" not in fields:
        fields["method"] = "POST"
    plan = BenchPlan(**fields)
    if plan.connections < len(plan.urls):
        urls = len(plan.urls)
        raise PlanError(
            f"{located.get('connections', 'URL')}: {urls} URLs need at least as many connections, "
            f"one each; use -c {urls} or more, or fewer URLs"
        )
    if plan.body and plan.method not in _WITH_BODY:
        raise PlanError(
            f"{located['body']}: a {plan.method} carries no body; "
            "leave it out, or use --method POST"
        )
    if plan.pipeline > 1:
        _require_pipeline(plan, located["pipeline"])
    return plan


def _require_pipeline(plan: BenchPlan, where: str) -> None:
    """Refuse a pipeline that contradicts the plan, or that takes too much memory."""
    if plan.short:
        raise PlanError(
            f"{where}: a connection for each request cannot carry {plan.pipeline}; "
            "leave --short out"
        )
    if plan.rate is not None:
        raise PlanError(
            f"{where}: at a rate each request has its own due time; leave --pipeline or --rate out"
        )
    if plan.method not in _PIPELINED:
        raise PlanError(
            f"{where}: a {plan.method} may not be sent again when its connection is cut "
            "(RFC 9112, 9.3.2); use GET, or leave --pipeline out"
        )
    request = _LEAST_REQUEST + len(plan.body) + sum(map(len, plan.headers))
    train = plan.pipeline * (sum(map(len, plan.urls)) + request * len(plan.urls))
    if train > LONGEST_TRAIN:
        limit = max(1, plan.pipeline * LONGEST_TRAIN // train)
        raise PlanError(
            f"{where}: {plan.pipeline:,} requests written at once are {train:,} bytes, "
            f"and each process keeps them in memory; write at most {limit:,}"
        )
