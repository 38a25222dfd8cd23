"""The same soak against every server of the lab: what a held connection takes, how many fit, and what would stop the next one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, field

from asyncli.collect.kernel import read_counters
from asyncli.errors import HostError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import Chart, Claim, Column, Conclusions, FigureRow, FigureTable, Round, Rounds, bars, span
from asyncli.experiments.soak_ladder import charged, climb, figures_of, plan_of_soak
from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.metrics import HOST_AVAILABLE_BYTES, HOST_USED_BYTES, SERVER_PSS_BYTES
from asyncli.units import format_bytes, parse_duration

_MIB = 1 << 20


class Shape(NamedTuple):
    """How a server holds: by events, a process or a thread for each connection; in ``pool``, made before the first one.

    ``many``: its descriptors and memory maps are those of several processes. ``guess_bytes``: more than a connection takes on
    a host with both ends, to keep a ladder within the memory there is.
    """

    holds: Literal["event", "process", "thread"]
    guess_bytes: int
    pool: bool = False
    many: bool = False


SHAPES = {
    "nginx": Shape("event", 16_000, many=True),
    "nginx-proxy": Shape("event", 16_000, many=True),
    "haproxy": Shape("event", 20_000),
    "apache-event": Shape("event", 24_000, many=True),
    "builtin": Shape("event", 24_000, many=True),
    "asyncio": Shape("event", 24_000),
    "apache-prefork": Shape("process", 2 * _MIB, pool=True, many=True),
    "fork": Shape("process", 400_000, many=True),
    "prefork": Shape("process", 400_000, pool=True, many=True),
    "thread": Shape("thread", 100_000),
    "thread-pool": Shape("thread", 100_000, pool=True),
    "thread-queue": Shape("thread", 100_000, pool=True),
}
#: Every server of the lab. The iterative one has no slope.
SERVERS = ("iterative", *SHAPES)
# Connections to the iterative server, which serves one.
_ASKED_OF_ONE = 8
# The share of free memory that a test may take.
_SHARE_OF_FREE = 1 / 3


class HoldingPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 2
    connections: Count = 10_000
    members: Count = 1_000
    rate: Count = 2_000
    plateaus: Annotated[int, Meta(ge=2, le=100)] = 5
    rest: str = "3s"
    keepalive: str = "10s"
    hold: str = "4s"
    baseline: str = "3s"
    limit_mib: Count = 48
    servers: list[str] = field(default_factory=lambda: list(SERVERS))


async def _run(context: Context) -> None:
    chosen = context.plan.only or context.plan.servers
    await context.in_turns([one for one in SERVERS if one in chosen], _hold)


async def _hold_one(context: Context, number: int) -> None:
    """Eight connections at the server that serves one at a time."""
    baseline = context.plan.baseline
    async with choose("iterative", connections=1) as server:
        plan = plan_of_soak(server, connections=_ASKED_OF_ONE, keepalive=4, timeout="1s", hold="2s", baseline=baseline)
        found = figures_of(await climb(server, plan))
        context.met(server)
    # One client gives neither a slope nor a latency.
    kept = ("asked", "held", "causes", "processes", "threads", "full_bytes")
    context.add("iterative", number, **{key: found[key] for key in kept})
    context.tell(number, "iterative", f"{found['held']:,} of {found['asked']:,} served")


async def _hold(context: Context, name: str, number: int) -> None:
    if name == "iterative":
        await _hold_one(context, number)
        return
    plan, shape = context.plan, SHAPES[name]
    many = fitting(name, plan, _counter(HOST_AVAILABLE_BYTES))
    options = {"workers": many} if shape.pool and name != "apache-prefork" else {}
    before = _counter(HOST_USED_BYTES)
    server = choose(name, connections=many, keepalive_s=parse_duration(plan.keepalive), **options)
    async with charged(context, server) as charges:
        # The charge and the host's memory include tasks, stacks and page tables, which a process's own memory lacks.
        start = max(0.0, _counter(HOST_USED_BYTES) - before)
        # The fastest servers fork two thousand a second; events cost far less.
        rate = plan.rate if shape.holds == "event" else max(100, plan.rate // 4)
        soak = plan_of_soak(
            server, connections=many, ramp=f"{max(1, rate // 100)}/10ms", plateaus=plan.plateaus, plateau_rest=plan.rest,
            keepalive=plan.keepalive, hold=plan.hold, baseline=plan.baseline,
        )  # fmt: skip
        found = figures_of(await climb(server, soak), charges)
        if charges.samples:
            start = charges.samples[0].values[SERVER_PSS_BYTES]
        workers = server.workers
        context.met(server)
    # A pool's members exist before the first connection.
    member = start / max(1, workers) if shape.pool else None
    each = None if found["own"] is None else found["own"] + (member or 0.0)
    context.add(
        name, number, **found, start=start, member=member, each=each, workers=workers, cut=server.connections, **_host_facts()
    )
    cost = f"{found['own']:,.0f} B each on its side" if found["own"] is not None else "what one takes is not known"
    context.tell(number, name, f"{found['held']:,} of {found['asked']:,} held, {cost}")


def fitting(name: str, plan: Any, free_bytes: float) -> int:
    """Connections for a server's ladder: as asked, within its kind's maximum and a third of the free memory.

    Raises :class:`HostError` where the ladder would have fewer connections than steps.
    """
    shape = SHAPES[name]
    asked = plan.connections if shape.holds == "event" else min(plan.connections, plan.members)
    many = int(min(asked, free_bytes * _SHARE_OF_FREE / shape.guess_bytes))
    if many < plan.plateaus:
        raise HostError(f"{format_bytes(free_bytes)} of free memory are too few for a ladder on {name}; free some")
    return many


def _counter(name: str) -> float:
    return read_counters().values.get(name, 0.0)


def _host_facts() -> dict[str, int | None]:
    """This host's limits of a server's growth; None where one cannot be read."""
    files = {"pid_max": "kernel/pid_max", "threads_max": "kernel/threads-max", "map_max": "vm/max_map_count"}
    return {"nofile": descriptor_limit(), **{name: number_in(f"/proc/sys/{file}") for name, file in files.items()}}


# Concluding: pure.

# A slope with a wider interval than this is no ground to divide by.
_SURE = 0.5
_COST = [
    Column("user", "its processes", "B"), Column("user_half", "±", "B"), Column("socket", "socket", "B"),
    Column("rest", "left over", "B"), Column("own", "one more", "B"), Column("own_half", "±", "B"),
    Column("member", "place in pool", "B"), Column("each", "in all", "B"),
]  # fmt: skip
_STATE = [
    Column("asked", "asked"), Column("held", "held"), Column("processes", "processes"), Column("threads", "threads"),
    Column("start", "none held", "B"), Column("full_bytes", "all held", "B"), Column("p99_ms", "p99", "ms"),
]  # fmt: skip
_STOPS = [
    Column("least", "at least"), Column("memory", "memory"), Column("most", "at most"), Column("descriptors", "descriptors"),
    Column("ids", "ids"), Column("maps", "memory maps"), Column("cut", "cut for"),
]  # fmt: skip
_COST_CAPTION = (
    "Slopes of memory over connections held, the least first; ± is half of a 95 % interval. One more: what the server's "
    "control group is charged for it, and its TCP socket where that is not; without a group what this host takes for it, less "
    "asyncli's memory and the kernel's for asyncli's end. It is its processes' memory (PSS), the kernel's objects for "
    "its socket, where they are known to ± 10 %, and what is left over: its task and stack in the kernel, page tables, what "
    "processes share. The socket is half of both ends, and the client's has two bind buckets of 128 B more: so what is left over "
    "is 128 B too low, and may be below zero. Place in pool: what there was with none held, by its processes or threads; in "
    "all: with that."
)


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """Its tables, chart and claims."""
    met = [name for name in SHAPES if rounds.of(name, "asked")]
    order = sorted(met, key=lambda name: rounds.median(name, "each") or math.inf)
    tables = [
        rounds.table("What one more held connection takes, on the server's side", _COST, order, _COST_CAPTION),
        rounds.table(
            "What it was when it held them", _STATE, ["iterative", *order],
            "Memory with none held: what its control group was charged, or this host took, for its start; with all: of its "
            "processes (PSS). p99: of a heartbeat, from due to answered.",
        ),
        _stops_table(plan, rounds, order),
    ]  # fmt: skip
    drawn = [name for name in order if rounds.median(name, "user") is not None]
    sockets = [rounds.median(name, "socket") for name in drawn]
    parts = [
        bars("its processes", [rounds.median(name, "user") for name in drawn]),
        bars("kernel, both ends of the socket", [None if one is None else 2 * one for one in sockets]),
        bars("in all on the server's side, with its place in a pool", [rounds.median(name, "each") for name in drawn]),
    ]
    chart = Chart("bars", "Memory of a held connection", "", "bytes a connection", parts, drawn)
    return Conclusions(tables, [chart], [*_claims(rounds)])


def _known(one: Round) -> Interval | None:
    """Where what a connection takes in all lies; None where it is not known well enough to divide by it."""
    each, half = one.get("each"), one.get("own_half")
    return Interval(each - half, each + half) if each and half is not None and half <= _SURE * each else None


def stops(name: str, one: Round, limit_bytes: float) -> dict[str, float]:
    """How many connections each limit allows: ``memory`` (``least`` to ``most``), ``descriptors``, ``ids``, ``maps``, where
    known."""
    shape, found = SHAPES[name], {}
    if (known := _known(one)) is not None:
        # A pool is taken to be as large as then fits.
        room = max(0.0, limit_bytes - (0.0 if shape.pool else one["start"]))
        found = {"memory": room / one["each"], "least": room / known.high, "most": room / known.low}
    if shape.holds != "process" and one.get("nofile"):
        found["descriptors"] = one["nofile"] * ((one.get("workers") or 1) if shape.many else 1)
    ids = [number for number in (one.get("pid_max"), one.get("threads_max")) if number]
    if shape.holds != "event" and ids:
        found["ids"] = min(ids)
    if shape.holds == "thread" and one.get("map_max"):
        # A stack and its guard page.
        found["maps"] = one["map_max"] // 2
    return {key: float(math.floor(number)) for key, number in found.items()}


def _stops_table(plan: Any, rounds: Rounds, order: list[str]) -> FigureTable:
    limit = plan.limit_mib * _MIB
    rows, first = [], []
    for name in order:
        ladders = [stops(name, one, limit) for one in rounds if one["step"] == name]
        values = {one.key: [ladder[one.key] for ladder in ladders if one.key in ladder] for one in _STOPS}
        rows.append(FigureRow(name, {**values, "cut": rounds.of(name, "cut")}))
        # Where memory is unknown, it may be the first limit.
        kinds = {key: statistics.median(values[key]) for key in ("memory", "descriptors", "ids", "maps") if values[key]}
        first.append(f"{name} by {min(kinds, key=lambda key: kinds[key])}" if "memory" in kinds else f"{name} not known")
    title = f"The most that each would hold in {plan.limit_mib:,} MiB, by each thing that would stop it"
    caption = (
        f"What stops each first: {'; '.join(first)}. Reckoned, not measured. Memory: the limit, less what is there with none "
        "held, by what a connection takes in all, with its 95 % interval; a pool is taken to be as large as then fits. "
        "Descriptors, ids of processes or threads, memory maps of one process: of this host. Cut for: its slots or pool in this "
        "test, which a setting changes."
    )
    return FigureTable(title, _STOPS, rows, caption)


def _claims(rounds: Rounds) -> Iterator[Claim]:
    between: dict[str, Interval] = {}
    for name in SHAPES:
        known = [found for one in rounds if one["step"] == name and (found := _known(one)) is not None]
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
        text = f"A server of events holds a connection for less than a tenth of what a {kind} for each takes."
        yield from claimed(text, Rule(high=0.1), by(kinds["event"], kinds[kind]))
    text = "A process for each connection takes more than twice what a thread takes."
    yield from claimed(text, Rule(low=2), by(["fork"], ["thread"]))
    if alone := [one for one in rounds if one["step"] == "iterative" and one.get("held") is not None]:
        # What a client sees of a server that has not accepted it.
        waiting = {"heartbeat_timeout", "connect_timeout"}
        words = f"{span([one['held'] for one in alone], '.0f')} of {alone[0]['asked']:.0f} had answers to the end"
        yield from counted(
            "The iterative server holds one connection, and all others wait for its end.",
            "one, and of the others none refused, closed or reset",
            {words: (one["held"] == 1 and {*(one.get("causes") or ())} <= waiting for one in alone)},
        )  # fmt: skip


EXPERIMENT = Experiment(
    name="holding",
    title="What each server takes to hold a connection",
    question="The same soak against every server of the lab: what does one more held connection take, how many fit, and what "
    "stops the next one?",
    write_up="what is commonly expected",
    source="the same soak against all of them is ours",
    plan=HoldingPlan,
    quick={
        "rounds": 1, "connections": 5_000, "plateaus": 4, "rest": "2s", "hold": "2s", "baseline": "2s",
        "servers": ["iterative", "nginx", "fork", "thread"],
    },
    run=_run,
    conclude=conclude,
    servers=SERVERS,
)  # fmt: skip
