"""The same soak against many lab servers: the cost of a held connection, how many fit, and which
limit is reached first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import field

from asyncli.collect.kernel import MemoryReader
from asyncli.experiments import Count, Experiment
from asyncli.experiments.context import Context
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Round,
    Rounds,
    bars,
    span,
)
from asyncli.experiments.soak_ladder import (
    LadderPlan,
    figures_of,
    ladder_soak,
    measured_in_cgroup,
    plan_of_soak,
    run_ladder,
)
from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.model.errors import HostError
from asyncli.model.metrics import HOST_AVAILABLE_BYTES, HOST_USED_BYTES, SERVER_PSS_BYTES
from asyncli.model.units import format_bytes, parse_duration

_MIB = 1 << 20


class Shape(NamedTuple):
    """How a server holds connections: in an event loop, or with a process or thread for each;
    ``pool``: these are started before the first connection.

    ``processes``: it has several, each with its own descriptors and memory maps. ``guess_bytes``:
    an upper bound of memory per connection with both ends on this host, to keep a ladder within the
    free memory.
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
    await context.run_rounds([server for server in SERVERS if server in chosen], _hold)


async def _hold_iterative(context: Context, number: int) -> None:
    """Eight connections to the server that serves one at a time."""
    baseline = context.plan.baseline
    async with choose("iterative", connections=1) as server:
        plan = plan_of_soak(
            server,
            connections=_ITERATIVE_CONNECTIONS,
            keepalive=4,
            timeout="1s",
            hold="2s",
            baseline=baseline,
        )
        figures = figures_of(await run_ladder(server, plan))
        context.record_server(server)
    # One client gives neither a slope nor a latency.
    kept = ("asked", "held", "causes", "processes", "threads", "full_bytes")
    context.add("iterative", number, **{key: figures[key] for key in kept})
    context.report(number, "iterative", f"{figures['held']:,} of {figures['asked']:,} served")


async def _hold(context: Context, name: str, number: int) -> None:
    if name == "iterative":
        await _hold_iterative(context, number)
        return
    plan = context.plan
    shape = SHAPES[name]
    connections = connections_that_fit(name, plan, _counter(HOST_AVAILABLE_BYTES))
    options = {}
    if shape.pool and name != "apache-prefork":
        options["workers"] = connections
    before = _counter(HOST_USED_BYTES)
    keepalive_s = parse_duration(plan.keepalive)
    server = choose(name, connections=connections, keepalive_s=keepalive_s, **options)
    async with measured_in_cgroup(context, server) as charges:
        # Of the host, or below of the control group: these include tasks, stacks and page tables,
        # which a process's memory lacks.
        start = max(0.0, _counter(HOST_USED_BYTES) - before)
        # The fastest servers fork 2,000 processes a second; an event loop needs far less CPU.
        rate = plan.rate if shape.holds == "event" else max(100, plan.rate // 4)
        run = await run_ladder(server, ladder_soak(server, plan, connections, rate))
        figures = figures_of(run, charges)
        if charges.samples:
            start = charges.samples[0].values[SERVER_PSS_BYTES]
        workers = server.workers
        context.record_server(server)
    # A pool starts before the first connection.
    member = start / max(1, workers) if shape.pool else None
    with_member = None
    cost = "cost unknown"
    if figures["own"] is not None:
        with_member = figures["own"] + (member or 0.0)
        cost = f"{figures['own']:,.0f} B each on the server's side"
    context.add(
        name,
        number,
        **figures,
        start=start,
        member=member,
        each=with_member,
        workers=workers,
        cut=server.connections,
        **_host_facts(),
    )
    context.report(number, name, f"{figures['held']:,} of {figures['asked']:,} held, {cost}")


def connections_that_fit(name: str, plan: Any, free_bytes: float) -> int:
    """Connections for a server's ladder: as asked, within its kind's maximum and a third of the
    free memory.

    Raises :class:`HostError` if the ladder would have fewer connections than steps.
    """
    shape = SHAPES[name]
    asked = plan.connections
    if shape.holds != "event":
        asked = min(asked, plan.members)
    fitting = int(min(asked, free_bytes * _MEMORY_SHARE / shape.guess_bytes))
    if fitting < plan.plateaus:
        raise HostError(
            f"{format_bytes(free_bytes)} of free memory is too little for a ladder on {name}; "
            "free some"
        )
    return fitting


def _counter(name: str) -> float:
    return MemoryReader().read().values.get(name, 0.0)


def _host_facts() -> dict[str, int | None]:
    """This host's limits on a server's growth; None: unreadable."""
    return {
        "nofile": descriptor_limit(),
        "pid_max": number_in("/proc/sys/kernel/pid_max"),
        "threads_max": number_in("/proc/sys/kernel/threads-max"),
        "map_max": number_in("/proc/sys/vm/max_map_count"),
    }


# Conclusions: pure.

# No quotient is computed from a slope with a wider interval.
_MAX_RELATIVE_HALF_WIDTH = 0.5
_COST = [
    Column("user", "server processes", "B"),
    Column("user_half", "±", "B"),
    Column("socket", "socket", "B"),
    Column("rest", "residual", "B"),
    Column("own", "one more", "B"),
    Column("own_half", "±", "B"),
    Column("member", "place in pool", "B"),
    Column("each", "in all", "B"),
]
_STATE = [
    Column("asked", "requested"),
    Column("held", "held"),
    Column("processes", "processes"),
    Column("threads", "threads"),
    Column("start", "memory with none held", "B"),
    Column("full_bytes", "with all held", "B"),
    Column("p99_ms", "p99", "ms"),
]
_LIMITS = [
    Column("least", "memory, low"),
    Column("memory", "memory"),
    Column("most", "memory, high"),
    Column("descriptors", "descriptors"),
    Column("ids", "ids"),
    Column("maps", "memory maps"),
    Column("cut", "configured for"),
]
_COST_CAPTION = (
    "Slopes of memory over connections held, cheapest first; ± is half of a 95 % interval. One "
    "more: what the server's control group is charged per connection, and its TCP socket where "
    "that is not; without a group what this host uses, less asyncli's memory and the kernel's for "
    "asyncli's end. Its parts are the processes' memory (PSS), the kernel's objects for the "
    "socket if known to ± 10 %, and the residual: kernel tasks and stacks, page tables, and what "
    "processes share. The socket is half of both ends, but the client's end has two bind buckets "
    "of 128 B more: so the residual is 128 B too low, and may be negative. Place in pool: memory "
    "with none held, divided by the processes or threads; in all: including that."
)


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The tables, the chart and the claims."""
    measured = [name for name in SHAPES if rounds.of(name, "asked")]
    order = sorted(measured, key=lambda name: rounds.median(name, "each") or math.inf)
    tables = [
        rounds.table(
            "Cost of one more held connection on the server's side", _COST, order, _COST_CAPTION
        ),
        rounds.table(
            "The server with all connections held",
            _STATE,
            ["iterative", *order],
            "Memory with none held: what its control group was charged, or this host used, for "
            "the start; with all held: PSS of its processes. p99: heartbeat latency, from due to "
            "answered.",
        ),
        _limits_table(plan, rounds, order),
    ]
    drawn = [name for name in order if rounds.median(name, "user") is not None]
    both_ends: list[float | None] = []
    for name in drawn:
        socket = rounds.median(name, "socket")
        both_ends.append(None if socket is None else 2 * socket)
    parts = [
        bars("server processes", [rounds.median(name, "user") for name in drawn]),
        bars("kernel, both ends of the socket", both_ends),
        bars(
            "in all on the server's side, with the place in a pool",
            [rounds.median(name, "each") for name in drawn],
        ),
    ]
    chart = Chart("bars", "Memory of a held connection", "", "bytes a connection", parts, drawn)
    return Conclusions(tables, [chart], [*_claims(rounds)])


def _cost_interval(figures: Round) -> Interval | None:
    """The interval of a connection's whole cost; None if it is not precise enough to divide by."""
    cost = figures.get("each")
    half_width = figures.get("own_half")
    if not cost or half_width is None or half_width > _MAX_RELATIVE_HALF_WIDTH * cost:
        return None
    return Interval(cost - half_width, cost + half_width)


def limits_of(name: str, figures: Round, limit_bytes: float) -> dict[str, float]:
    """How many connections each known limit allows: ``memory`` (``least`` to ``most``),
    ``descriptors``, ``ids``, ``maps``.
    """
    shape = SHAPES[name]
    limits = {}
    cost = _cost_interval(figures)
    if cost is not None:
        # A pool is assumed to be as large as fits.
        used = 0.0 if shape.pool else figures["start"]
        free = max(0.0, limit_bytes - used)
        limits["memory"] = free / figures["each"]
        limits["least"] = free / cost.high
        limits["most"] = free / cost.low
    if shape.holds != "process" and figures.get("nofile"):
        processes = (figures.get("workers") or 1) if shape.processes else 1
        limits["descriptors"] = figures["nofile"] * processes
    if shape.holds != "event":
        ids = [figures[key] for key in ("pid_max", "threads_max") if figures.get(key)]
        if ids:
            limits["ids"] = min(ids)
    if shape.holds == "thread" and figures.get("map_max"):
        # A stack and its guard page.
        limits["maps"] = figures["map_max"] // 2
    return {key: float(math.floor(number)) for key, number in limits.items()}


def _limits_table(plan: Any, rounds: Rounds, order: list[str]) -> FigureTable:
    limit_bytes = plan.limit_mib * _MIB
    rows = []
    first = []
    for name in order:
        ladders = [limits_of(name, figures, limit_bytes) for figures in rounds.in_step(name)]
        values: dict[str, list[float]] = {}
        for column in _LIMITS:
            key = column.key
            values[key] = [ladder[key] for ladder in ladders if key in ladder]
        rows.append(FigureRow(name, {**values, "cut": rounds.of(name, "cut")}))
        first.append(f"{name} {_first_limit(values)}")
    title = f"How many connections each server could hold in {plan.limit_mib:,} MiB, by limit"
    caption = (
        f"The first known limit: {'; '.join(first)}. Computed, not measured. Memory: the limit "
        "less what is used with none held, divided by the cost in all, with its 95 % interval; a "
        "pool is assumed to be as large as fits. Descriptors, ids of processes or threads, memory "
        "maps of one process: this host's. Configured for: slots or pool size in this test, a "
        "setting."
    )
    return FigureTable(title, _LIMITS, rows, caption)


def _first_limit(values: Mapping[str, list[float]]) -> str:
    # An unknown memory limit may be the first.
    if not values["memory"]:
        return "unknown"
    medians = {}
    for key in ("memory", "descriptors", "ids", "maps"):
        if values[key]:
            medians[key] = statistics.median(values[key])
    return min(medians, key=lambda key: medians[key])


def _claims(rounds: Rounds) -> Iterator[Claim]:
    costs = _cost_intervals(rounds)
    kinds: dict[str, list[str]] = {"event": [], "process": [], "thread": []}
    for name, shape in SHAPES.items():
        kinds[shape.holds].append(name)
    for kind in ("process", "thread"):
        yield from claimed(
            "A connection costs an event-driven server less than a tenth of the memory "
            f"of a {kind} per connection.",
            Rule(high=0.1),
            _ratios(costs, kinds["event"], kinds[kind]),
        )
    yield from claimed(
        "A process per connection takes more than twice the memory of a thread per connection.",
        Rule(low=2),
        _ratios(costs, ["fork"], ["thread"]),
    )
    yield from _iterative_serves_one(rounds)


def _cost_intervals(rounds: Rounds) -> dict[str, Interval]:
    """The cost of each server that has one, over all rounds."""
    costs = {}
    for name in SHAPES:
        intervals = [_cost_interval(figures) for figures in rounds.in_step(name)]
        known = [interval for interval in intervals if interval is not None]
        if known:
            low = min(interval.low for interval in known)
            high = max(interval.high for interval in known)
            costs[name] = Interval(low, high)
    return costs


def _ratios(
    costs: Mapping[str, Interval], names: list[str], other_names: list[str]
) -> dict[str, Interval]:
    ratios = {}
    for name in names:
        for other in other_names:
            if name in costs and other in costs:
                ratios[f"{name} by {other}"] = costs[name].by(costs[other])
    return ratios


def _iterative_serves_one(rounds: Rounds) -> Iterator[Claim]:
    measured = [
        figures for figures in rounds.in_step("iterative") if figures.get("held") is not None
    ]
    if not measured:
        return
    # How a client sees a server that has not accepted its connection.
    waiting = {"heartbeat_timeout", "connect_timeout"}
    sides = []
    for figures in measured:
        causes = {*(figures.get("causes") or ())}
        sides.append(figures["held"] == 1 and causes <= waiting)
    held = span([figures["held"] for figures in measured], ".0f")
    asked = measured[0]["asked"]
    yield from counted(
        "The iterative server serves one connection, and all others wait until that ends.",
        "one is held, and of the others none is refused, closed or reset",
        {f"{held} of {asked:.0f} were answered to the end": sides},
    )


EXPERIMENT = Experiment(
    name="holding",
    title="What a held connection costs each server",
    question="The same soak against servers of the lab: what does one more held connection cost, "
    "how many fit, and which limit is reached first?",
    write_up="common expectations",
    source="asyncli's own comparison",
    plan=HoldingPlan,
    quick={
        "rounds": 1,
        "connections": 5_000,
        "plateaus": 4,
        "rest": "2s",
        "hold": "2s",
        "baseline": "2s",
        "servers": ["iterative", "nginx", "fork", "thread"],
    },
    run=_run,
    conclude=conclude,
    servers=SERVERS,
)
