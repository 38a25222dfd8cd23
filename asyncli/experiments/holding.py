"""The same soak against every server of the lab: what a held connection takes, how many fit, and what would stop the next one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from asyncli.collect.kernel import read_counters
from asyncli.errors import HostError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.cgroup import charged
from asyncli.experiments.context import Context
from asyncli.experiments.holding_claims import SHAPES, conclude
from asyncli.experiments.soak_ladder import climb, figures_of, plan_of_soak
from asyncli.lab import choose
from asyncli.lab.executables import descriptor_limit, number_in
from asyncli.metrics import HOST_AVAILABLE_BYTES, HOST_USED_BYTES, SERVER_PSS_BYTES
from asyncli.units import format_bytes, parse_duration

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


EXPERIMENT = Experiment(
    name="holding",
    title="What each server takes to hold a connection",
    question="The same soak against every server of the lab: what does one more held connection take, how many fit, and what "
    "stops the next one?",
    source="none: the same soak against all of them is ours, and the claims are what is commonly expected",
    plan=HoldingPlan,
    quick={
        "rounds": 1, "connections": 5_000, "plateaus": 4, "rest": "2s", "hold": "2s", "baseline": "2s",
        "servers": ["iterative", "nginx", "fork", "thread"],
    },
    run=_run,
    conclude=conclude,
    servers=SERVERS,
)  # fmt: skip
