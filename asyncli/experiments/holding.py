"""The same soak against many lab servers: the cost of a held connection, how many fit, and which limit is reached first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from msgspec import field

from asyncli.collect.kernel import MemoryReader
from asyncli.experiments import Count, Experiment
from asyncli.experiments.context import Context
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import Chart, Claim, Column, Conclusions, FigureRow, FigureTable, Round, Rounds, bars, span
from asyncli.experiments.soak_ladder import LadderPlan, figures_of, ladder_soak, measured_in_cgroup, plan_of_soak, run_ladder
from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.model.errors import HostError
from asyncli.model.metrics import HOST_AVAILABLE_BYTES, HOST_USED_BYTES, SERVER_PSS_BYTES
from asyncli.model.units import format_bytes, parse_duration

_MIB = 1 << 20


class Shape(NamedTuple):
    """How a server holds connections: in an event loop, or with a process or thread for each; ``pool``: these are started before
    the first connection.

    ``processes``: it has several, each with its own descriptors and memory maps. ``guess_bytes``: an upper bound of memory per
    connection with both ends on this host, to keep a ladder within the free memory.
    """

    holds: Literal["event", "process", "thread"]
    guess_bytes: int
    pool: bool = False
    processes: bool = False


SHAPES = {
    "nginx": Shape("event", 16_000, processes=True),
    "nginx-proxy": Shape("event", 16_000, processes=True),
    "haproxy": Shape("event", 20_000),
    "apache-event": Shape("event", 24_000, processes=True),
    "builtin": Shape("event", 24_000, processes=True),
    "asyncio": Shape("event", 24_000),
    "apache-prefork": Shape("process", 2 * _MIB, pool=True, processes=True),
    "fork": Shape("process", 400_000, processes=True),
    "prefork": Shape("process", 400_000, pool=True, processes=True),
    "thread": Shape("thread", 100_000),
    "thread-pool": Shape("thread", 100_000, pool=True),
    "thread-queue": Shape("thread", 100_000, pool=True),
}
#: The iterative server has no slope.
SERVERS = ("iterative", *SHAPES)
# Connections to the iterative server, which serves one at a time.
_ITERATIVE_CONNECTIONS = 8
# The share of free memory that a test may take.
_MEMORY_SHARE = 1 / 3


class HoldingPlan(LadderPlan, frozen=True, kw_only=True):
    rounds: Count = 2
    connections: Count = 10_000
    members: Count = 1_000
    rate: Count = 2_000
    keepalive: str = "10s"
    hold: str = "4s"
    limit_mib: Count = 48
    servers: list[str] = field(default_factory=lambda: list(SERVERS))


async def _run(context: Context) -> None:
    chosen = context.plan.only or context.plan.servers
    await context.run_rounds([one for one in SERVERS if one in chosen], _hold)


async def _hold_iterative(context: Context, number: int) -> None:
    """Eight connections to the server that serves one at a time."""
    baseline = context.plan.baseline
    async with choose("iterative", connections=1) as server:
        plan = plan_of_soak(server, connections=_ITERATIVE_CONNECTIONS, keepalive=4, timeout="1s", hold="2s", baseline=baseline)
        found = figures_of(await run_ladder(server, plan))
        context.record_server(server)
    # One client gives neither a slope nor a latency.
    kept = ("asked", "held", "causes", "processes", "threads", "full_bytes")
    context.add("iterative", number, **{key: found[key] for key in kept})
    context.report(number, "iterative", f"{found['held']:,} of {found['asked']:,} served")


async def _hold(context: Context, name: str, number: int) -> None:
    if name == "iterative":
        await _hold_iterative(context, number)
        return
    plan, shape = context.plan, SHAPES[name]
    many = connections_that_fit(name, plan, _counter(HOST_AVAILABLE_BYTES))
    options = {"workers": many} if shape.pool and name != "apache-prefork" else {}
    before = _counter(HOST_USED_BYTES)
    server = choose(name, connections=many, keepalive_s=parse_duration(plan.keepalive), **options)
    async with measured_in_cgroup(context, server) as charges:
        # Of the host, or below of the control group: these include tasks, stacks and page tables, which a process's memory lacks.
        start = max(0.0, _counter(HOST_USED_BYTES) - before)
        # The fastest servers fork 2,000 processes a second; an event loop needs far less CPU.
        rate = plan.rate if shape.holds == "event" else max(100, plan.rate // 4)
        found = figures_of(await run_ladder(server, ladder_soak(server, plan, many, rate)), charges)
        if charges.samples:
            start = charges.samples[0].values[SERVER_PSS_BYTES]
        workers = server.workers
        context.record_server(server)
    # A pool starts before the first connection.
    member = start / max(1, workers) if shape.pool else None
    each = None if found["own"] is None else found["own"] + (member or 0.0)
    context.add(
        name, number, **found, start=start, member=member, each=each, workers=workers, cut=server.connections, **_host_facts()
    )
    cost = f"{found['own']:,.0f} B each on the server's side" if found["own"] is not None else "cost unknown"
    context.report(number, name, f"{found['held']:,} of {found['asked']:,} held, {cost}")


def connections_that_fit(name: str, plan: Any, free_bytes: float) -> int:
    """Connections for a server's ladder: as asked, within its kind's maximum and a third of the free memory.

    Raises :class:`HostError` if the ladder would have fewer connections than steps.
    """
    shape = SHAPES[name]
    asked = plan.connections if shape.holds == "event" else min(plan.connections, plan.members)
    many = int(min(asked, free_bytes * _MEMORY_SHARE / shape.guess_bytes))
    if many < plan.plateaus:
        raise HostError(f"{format_bytes(free_bytes)} of free memory is too little for a ladder on {name}; free some")
    return many


def _counter(name: str) -> float:
    return MemoryReader().read().values.get(name, 0.0)


def _host_facts() -> dict[str, int | None]:
    """This host's limits on a server's growth; None: unreadable."""
    files = {"pid_max": "kernel/pid_max", "threads_max": "kernel/threads-max", "map_max": "vm/max_map_count"}
    return {"nofile": descriptor_limit(), **{name: number_in(f"/proc/sys/{file}") for name, file in files.items()}}


# Conclusions: pure.

# No quotient is computed from a slope with a wider interval.
_MAX_RELATIVE_HALF_WIDTH = 0.5
_COST = [
    Column("user", "server processes", "B"), Column("user_half", "±", "B"), Column("socket", "socket", "B"),
    Column("rest", "residual", "B"), Column("own", "one more", "B"), Column("own_half", "±", "B"),
    Column("member", "place in pool", "B"), Column("each", "in all", "B"),
]  # fmt: skip
_STATE = [
    Column("asked", "requested"), Column("held", "held"), Column("processes", "processes"), Column("threads", "threads"),
    Column("start", "memory with none held", "B"), Column("full_bytes", "with all held", "B"), Column("p99_ms", "p99", "ms"),
]  # fmt: skip
_LIMITS = [
    Column("least", "memory, low"), Column("memory", "memory"), Column("most", "memory, high"),
    Column("descriptors", "descriptors"), Column("ids", "ids"), Column("maps", "memory maps"), Column("cut", "configured for"),
]  # fmt: skip
_COST_CAPTION = (
    "Slopes of memory over connections held, cheapest first; ± is half of a 95 % interval. One more: what the server's control "
    "group is charged per connection, and its TCP socket where that is not; without a group what this host uses, less "
    "asyncli's memory and the kernel's for asyncli's end. Its parts are the processes' memory (PSS), the kernel's objects for "
    "the socket if known to ± 10 %, and the residual: kernel tasks and stacks, page tables, and what processes share. The "
    "socket is half of both ends, but the client's end has two bind buckets of 128 B more: so the residual is 128 B too low, "
    "and may be negative. Place in pool: memory with none held, divided by the processes or threads; in all: including that."
)


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The tables, the chart and the claims."""
    measured = [name for name in SHAPES if rounds.of(name, "asked")]
    order = sorted(measured, key=lambda name: rounds.median(name, "each") or math.inf)
    tables = [
        rounds.table("Cost of one more held connection on the server's side", _COST, order, _COST_CAPTION),
        rounds.table(
            "The server with all connections held", _STATE, ["iterative", *order],
            "Memory with none held: what its control group was charged, or this host used, for the start; with all held: PSS of "
            "its processes. p99: heartbeat latency, from due to answered.",
        ),
        _limits_table(plan, rounds, order),
    ]  # fmt: skip
    drawn = [name for name in order if rounds.median(name, "user") is not None]
    sockets = [rounds.median(name, "socket") for name in drawn]
    parts = [
        bars("server processes", [rounds.median(name, "user") for name in drawn]),
        bars("kernel, both ends of the socket", [None if one is None else 2 * one for one in sockets]),
        bars("in all on the server's side, with the place in a pool", [rounds.median(name, "each") for name in drawn]),
    ]
    chart = Chart("bars", "Memory of a held connection", "", "bytes a connection", parts, drawn)
    return Conclusions(tables, [chart], [*_claims(rounds)])


def _cost_interval(one: Round) -> Interval | None:
    """The interval of a connection's whole cost; None if it is not precise enough to divide by."""
    each, half = one.get("each"), one.get("own_half")
    return Interval(each - half, each + half) if each and half is not None and half <= _MAX_RELATIVE_HALF_WIDTH * each else None


def limits_of(name: str, one: Round, limit_bytes: float) -> dict[str, float]:
    """How many connections each known limit allows: ``memory`` (``least`` to ``most``), ``descriptors``, ``ids``, ``maps``."""
    shape, found = SHAPES[name], {}
    if (cost := _cost_interval(one)) is not None:
        # A pool is assumed to be as large as fits.
        free = max(0.0, limit_bytes - (0.0 if shape.pool else one["start"]))
        found = {"memory": free / one["each"], "least": free / cost.high, "most": free / cost.low}
    if shape.holds != "process" and one.get("nofile"):
        found["descriptors"] = one["nofile"] * ((one.get("workers") or 1) if shape.processes else 1)
    ids = [number for number in (one.get("pid_max"), one.get("threads_max")) if number]
    if shape.holds != "event" and ids:
        found["ids"] = min(ids)
    if shape.holds == "thread" and one.get("map_max"):
        # A stack and its guard page.
        found["maps"] = one["map_max"] // 2
    return {key: float(math.floor(number)) for key, number in found.items()}


def _limits_table(plan: Any, rounds: Rounds, order: list[str]) -> FigureTable:
    limit = plan.limit_mib * _MIB
    rows, first = [], []
    for name in order:
        ladders = [limits_of(name, one, limit) for one in rounds if one["step"] == name]
        values = {one.key: [ladder[one.key] for ladder in ladders if one.key in ladder] for one in _LIMITS}
        rows.append(FigureRow(name, {**values, "cut": rounds.of(name, "cut")}))
        # An unknown memory limit may be the first.
        kinds = {key: statistics.median(values[key]) for key in ("memory", "descriptors", "ids", "maps") if values[key]}
        first.append(f"{name} {min(kinds, key=lambda key: kinds[key])}" if "memory" in kinds else f"{name} unknown")
    title = f"How many connections each server could hold in {plan.limit_mib:,} MiB, by limit"
    caption = (
        f"The first limit: {'; '.join(first)}. Computed, not measured. Memory: the limit less what is used with none held, "
        "divided by the cost in all, with its 95 % interval; a pool is assumed to be as large as fits. Descriptors, ids of "
        "processes or threads, memory maps of one process: this host's. Configured for: slots or pool size in this test, a "
        "setting."
    )
    return FigureTable(title, _LIMITS, rows, caption)


def _claims(rounds: Rounds) -> Iterator[Claim]:
    between: dict[str, Interval] = {}
    for name in SHAPES:
        known = [found for one in rounds if one["step"] == name and (found := _cost_interval(one)) is not None]
        if known:
            between[name] = Interval(min(one.low for one in known), max(one.high for one in known))

    def by(ones: list[str], others: list[str]) -> dict[str, Interval]:
        return {
            f"{one} by {other}": between[one].by(between[other])
            for one in ones
            for other in others
            if one in between and other in between
        }

    kinds: dict[str, list[str]] = {"event": [], "process": [], "thread": []}
    for name, shape in SHAPES.items():
        kinds[shape.holds].append(name)
    for kind in ("process", "thread"):
        text = f"A connection costs an event-driven server less than a tenth of the memory of a {kind} per connection."
        yield from claimed(text, Rule(high=0.1), by(kinds["event"], kinds[kind]))
    text = "A process per connection takes more than twice the memory of a thread per connection."
    yield from claimed(text, Rule(low=2), by(["fork"], ["thread"]))
    if iterative := [one for one in rounds if one["step"] == "iterative" and one.get("held") is not None]:
        # How a client sees a server that has not accepted its connection.
        waiting = {"heartbeat_timeout", "connect_timeout"}
        words = f"{span([one['held'] for one in iterative], '.0f')} of {iterative[0]['asked']:.0f} were answered to the end"
        yield from counted(
            "The iterative server serves one connection, and all others wait until that ends.",
            "one is held, and of the others none is refused, closed or reset",
            {words: (one["held"] == 1 and {*(one.get("causes") or ())} <= waiting for one in iterative)},
        )  # fmt: skip


EXPERIMENT = Experiment(
    name="holding",
    title="What a held connection costs each server",
    question="The same soak against servers of the lab: what does one more held connection cost, how many fit, and which limit "
    "is reached first?",
    write_up="common expectations",
    source="asyncli's own comparison",
    plan=HoldingPlan,
    quick={
        "rounds": 1, "connections": 5_000, "plateaus": 4, "rest": "2s", "hold": "2s", "baseline": "2s",
        "servers": ["iterative", "nginx", "fork", "thread"],
    },
    run=_run,
    conclude=conclude,
    servers=SERVERS,
)  # fmt: skip
