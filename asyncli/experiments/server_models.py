"""Compares the textbook server models: CPU time per short connection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, field

from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.experiments.counters import CpuTime, ServerCpu
from asyncli.experiments.judging import MORE, Rule, claimed
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, FigureRow, FigureTable, Rounds, bars, rotated
from asyncli.findings.experiment import cell_failed
from asyncli.lab import child
from asyncli.lab.models import MODELS, LabModel
from asyncli.model.errors import PeerError

# Connections of the pilot before each measurement, which warms the server up and sizes the load.
_PILOT_CONNECTIONS = 400
# The source's maximum.
_MAX_LOOPS = 50_000
# Longer than any measurement takes.
_TIMEOUT_S = 120.0
_SETTLE_S = 5.0
_Small = Annotated[int, Meta(ge=1, le=1_000)]


class ModelsPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    server_s: Annotated[float, Meta(ge=1e-3, le=3_600)] = 1.0
    processes: Annotated[list[_Small], Meta(min_length=1)] = field(default_factory=lambda: [1, 10, 100])
    bytes: Annotated[list[Count], Meta(min_length=1)] = field(default_factory=lambda: [4, 4_000, 10_000])
    pools: Annotated[list[_Small], Meta(min_length=1)] = field(default_factory=lambda: [2, 10, 100])


async def _run(context: Context) -> None:
    loops: dict[ModelLoad, int] = {}
    failed: set[ModelLoad] = set()
    for number in range(context.plan.rounds):
        for cell in cells(context.plan, number):
            if context.wanted(cell.model) and cell not in failed:
                with context.step(cell.model, f"server model {LABELS[cell.model]}"):
                    try:
                        await _measure(context, cell, number, loops)
                    except PeerError as error:
                        # Other loads may still work.
                        failed.add(cell)
                        why, _, remedy = str(error).partition("; ")
                        context.findings.append(cell_failed(cell.label(), why, remedy))


async def _measure(context: Context, cell: ModelLoad, number: int, loops: dict[ModelLoad, int]) -> None:
    async with LabModel(cell.model, connections=max(16, cell.processes), workers=cell.pool) as server:
        context.record_server(server)
        cpu = ServerCpu(server.pid)
        idle_size = cpu.size()
        pilot = max(1, _PILOT_CONNECTIONS // cell.processes)
        _, spent = await _load(server, cpu, idle_size, cell, pilot)
        if cell not in loops:
            each_s = spent.total_s / (pilot * cell.processes)
            wanted = math.ceil(context.plan.server_s / max(each_s, 1e-6) / cell.processes)
            loops[cell] = min(_MAX_LOOPS, max(pilot, wanted))
        found, spent = await _load(server, cpu, idle_size, cell, loops[cell])
    many = found["connections"]
    user_s, system_s = spent.split() or (None, None)
    context.add(
        cell.step, number, model=cell.model, processes=cell.processes, bytes=cell.size,
        pool=cell.pool if cell.model in POOLS else None, loops=loops[cell], connections=many, cpu_s=spent.total_s,
        user_s=user_s, system_s=system_s, cpu_us=1e6 * spent.total_s / many,
        user_us=None if user_s is None else 1e6 * user_s / many, system_us=None if system_s is None else 1e6 * system_s / many,
        per_s=many / found["seconds"],
    )  # fmt: skip
    what = f"{1e6 * spent.total_s / many:,.1f} us of CPU a connection, {many / found['seconds']:,.0f} connections a second"
    context.report(number, cell.label(), what)


async def _load(
    server: LabModel, cpu: ServerCpu, idle_size: tuple[int, int], cell: ModelLoad, loops: int
) -> tuple[dict[str, Any], CpuTime]:
    """The client's result, and the CPU time of the server with its children."""
    before = cpu.read()
    found = await _client(*server.address_port, cell.processes, loops, cell.size)
    # The last children and threads may still be ending when the client has read its bytes.
    if not await child.until(lambda: cpu.size() == idle_size, _SETTLE_S):
        raise PeerError(
            f"{_SETTLE_S:.0f} s after its last client the server still has other processes or threads; look at the host's load"
        )
    return found, cpu.read().less(before)


async def _client(host: str, port: int, processes: int, loops: int, size: int) -> dict[str, Any]:
    """The classic client's result. Raises :class:`PeerError` unless every connection received its bytes."""
    arguments = (host, port, processes, loops, size)
    found = await child.run_module("asyncli.experiments.bytes_client", arguments, _TIMEOUT_S)
    if found is None:
        raise PeerError(f"{processes * loops:,} connections took longer than {_TIMEOUT_S:.0f} s; lower server_s in its plan")
    if failures := found["failures"]:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
        raise PeerError(
            f"client processes stopped early ({kinds}) after {found['connections']:,} of {processes * loops:,} connections;"
            " look at the host's limits with asyncli check"
        )
    return found


LABELS = {
    "iterative": "iterative", "fork": "fork per client", "prefork": "prefork", "thread": "thread per client",
    "thread-pool": "thread pool (accept)", "thread-queue": "thread pool (queue)", "asyncio": "asyncio",
}  # fmt: skip
POOLS = ("prefork", "thread-pool", "thread-queue")
#: The source's order, cheapest first; it does not have asyncio.
_BY_COST = ("iterative", "thread-pool", "thread-queue", "thread", "prefork", "fork")


class ModelLoad(NamedTuple):
    """One measurement: a model, and its value on each axis."""

    model: str
    processes: int
    size: int
    pool: int

    @property
    def step(self) -> str:
        """Its step in a record; with the pool's size if the model has a pool."""
        pool = f", pool {self.pool}" if self.model in POOLS else ""
        return f"{self.model}{pool}, {self.processes} × {self.size} B"

    def label(self) -> str:
        """The step for reports."""
        pool = f", {self.pool:,} members" if self.model in POOLS else ""
        return f"{LABELS[self.model]}{pool}, {_clients(self.processes)}, {self.size:,} B"


def _clients(processes: int) -> str:
    return "1 client process" if processes == 1 else f"{processes:,} client processes"


def load_at(plan: Any, model: str, processes: int | None = None, size: int | None = None, pool: int | None = None) -> ModelLoad:
    """A load of the model; each axis that is not given has its middle value."""
    middle = [sorted(axis)[len(axis) // 2] for axis in (plan.processes, plan.bytes, plan.pools)]
    given = (processes, size, pool)
    return ModelLoad(model, *(default if one is None else one for one, default in zip(given, middle, strict=True)))


def cells(plan: Any, number: int = 0) -> list[ModelLoad]:
    """The loads of round ``number``: each axis with the middle values of the others, rotated by the round, so that noise is
    spread evenly."""
    models, pools = rotated([*MODELS], number), rotated(POOLS, number)
    found = [load_at(plan, model, processes=many) for many in rotated(plan.processes, number) for model in models]
    found += [load_at(plan, model, size=many) for many in rotated(plan.bytes, number) for model in models]
    found += [load_at(plan, model, pool=many) for many in rotated(plan.pools, number) for model in pools]
    return list(dict.fromkeys(found))


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The tables, the charts and the source's claims."""
    middle = [cell for cell in (load_at(plan, model) for model in MODELS) if rounds.of(cell.step, "cpu_us")]
    order = sorted(middle, key=lambda cell: rounds.median(cell.step, "cpu_us") or math.inf)
    clients = _clients(load_at(plan, MODELS[0]).processes).capitalize()
    tables = [
        _ranking(plan, rounds, order),
        _load_table(plan, rounds),
        _by_axis(
            "CPU time per connection by bytes", rounds,
            {f"{many:,} B": [load_at(plan, model, size=many) for model in MODELS] for many in sorted(plan.bytes)}, f"{clients}.",
        ),
        _by_axis(
            "CPU time per connection by pool size", rounds,
            {f"pool of {many:,}": [load_at(plan, model, pool=many) for model in POOLS] for many in sorted(plan.pools)},
            f"{clients}: further pool members have no client.",
        ),
    ]  # fmt: skip
    return Conclusions(tables, [_cpu_chart(rounds, order), _pool_chart(plan, rounds)], [*_claims(plan, rounds)])


def _ranking(plan: Any, rounds: Rounds, order: list[ModelLoad]) -> FigureTable:
    columns = [
        Column("rank", "rank"), Column("theirs", "rank in the source's text"), Column("cpu_us", "CPU", "us"),
        Column("user_us", "user", "us"), Column("system_us", "system", "us"),
    ]  # fmt: skip
    rows = []
    for cell in order:
        row = rounds.row(cell.step, columns, label=LABELS[cell.model] + ("" if cell.model in _BY_COST else " (ours)"))
        if cell.model in _BY_COST:
            row.values |= {"rank": _ranks(rounds, cell, order), "theirs": [1.0 + _BY_COST.index(cell.model)]}
        rows.append(row)
    load = load_at(plan, POOLS[0])
    title = f"The models by CPU time per connection, {_clients(load.processes)}, {load.size:,} B, pools of {load.pool}"
    caption = (
        "The kernel samples user and system time at timer ticks. A process that ends before a tick has no sample, so for fork "
        "per client only the sum is known. Of the source we know only ranks, no microseconds. It contradicts itself: its text "
        "ranks prefork behind thread per client, its table before it."
    )
    return FigureTable(title, columns, rows, caption)


def _ranks(rounds: Rounds, cell: ModelLoad, order: list[ModelLoad]) -> list[float]:
    """The load's rank in each round among the source's six models."""
    others = [rounds.by_round(one.step, "cpu_us") for one in order if one.model in _BY_COST and one != cell]
    mine = rounds.by_round(cell.step, "cpu_us")
    return [1.0 + sum(other.get(number, math.inf) < cpu_us for other in others) for number, cpu_us in mine.items()]


def _load_table(plan: Any, rounds: Rounds) -> FigureTable:
    """The source's table with our figures: the runs as they were made."""
    columns = [
        Column("processes", "clients"), Column("user_s", "user CPU", "s"), Column("system_s", "system CPU", "s"),
        Column("cpu_s", "both", "s"), Column("loops", "loops"), Column("per_s", "connections/s", "/s"),
    ]  # fmt: skip
    every = [load_at(plan, model, processes=many) for model in MODELS for many in plan.processes]
    caption = (
        "Clients are processes; loops are the connections of each, chosen so that each load costs the server about the same CPU "
        "time. Client and server share this host's CPUs, so both limit the connections a second; the CPU time is the server's."
    )
    title = f"The source's table: client processes, the server's CPU time, {every[0].size:,} bytes"
    return rounds.table(title, columns, {cell.step: cell.model for cell in every}, caption)


def _by_axis(title: str, rounds: Rounds, axis: dict[str, list[ModelLoad]], caption: str) -> FigureTable:
    """A table with a column for each value of an axis (heading -> the models' loads), and a row for each model."""
    columns = [Column(str(number), heading, "us") for number, heading in enumerate(axis)]
    values: dict[str, dict[str, list[float]]] = {}
    for number, of_models in enumerate(axis.values()):
        for cell in of_models:
            values.setdefault(LABELS[cell.model], {})[str(number)] = rounds.of(cell.step, "cpu_us")
    return FigureTable(title, columns, [FigureRow(label, row) for label, row in values.items() if any(row.values())], caption)


def _cpu_chart(rounds: Rounds, order: list[ModelLoad]) -> Chart:
    """A chart of user and system time, or of their sum for models whose split is unknown."""
    has_split = [bool(rounds.of(cell.step, "user_us")) for cell in order]
    lines = [
        bars(label, [rounds.median(cell.step, key) if it is split else None for cell, it in zip(order, has_split, strict=True)])
        for label, key, split in (
            ("user", "user_us", True), ("system", "system_us", True), ("user and system, split unknown", "cpu_us", False),
        )
    ]  # fmt: skip
    categories = [LABELS[cell.model] for cell in order]
    return Chart("bars", "The server's CPU time per connection", "", "us per connection", lines, categories)


def _pool_chart(plan: Any, rounds: Rounds) -> Chart:
    lines = []
    for model in POOLS:
        found = {float(pool): rounds.median(load_at(plan, model, pool=pool).step, "cpu_us") for pool in sorted(plan.pools)}
        known = {pool: cpu for pool, cpu in found.items() if cpu is not None}
        lines.append(ChartLine(LABELS[model], list(known), list(known.values())))
    title = f"CPU time by pool size, {_clients(load_at(plan, POOLS[0]).processes)}"
    return Chart("lines", title, "members of the pool", "us of CPU per connection", lines)


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    """The claims on the source's order; a case is a pair of models with a number of client processes."""

    def cost_ratios(*pairs: tuple[str, str]) -> dict[str, list[float]]:
        """The CPU per connection of the first divided by that of the second."""
        cases = {
            f"{LABELS[a]} by {LABELS[b]}, {_clients(many)}": (load_at(plan, a, many).step, load_at(plan, b, many).step)
            for many in plan.processes
            for a, b in pairs
        }
        return rounds.ratios(cases, "cpu_us")

    def pool_ratios(small: int) -> dict[str, list[float]]:
        large = max(plan.pools)
        words = f"{large:,} members by {small:,}"
        both = {model: [load_at(plan, model, pool=many).step for many in (large, small)] for model in POOLS}
        pairs = {f"{LABELS[model]}, {words}": (one, other) for model, (one, other) in both.items()}
        return rounds.ratios(pairs, "cpu_us") if small != large else {}

    iterative, accept, queue, thread, prefork, fork = _BY_COST
    enough = min((pool for pool in plan.pools if pool >= load_at(plan, prefork).processes), default=max(plan.pools))
    rows: tuple[tuple[str, Rule, Mapping[str, list[float]]], ...] = (
        ("The iterative server costs the least CPU per connection.", MORE,
         cost_ratios(*((one, iterative) for one in _BY_COST[1:]))),
        ("The two pools of threads cost about the same.", Rule(1 / 1.1, 1.1), cost_ratios((queue, accept))),
        ("The pool of threads with a queue costs more than the one with accept, since it needs a mutex and a condition variable.",
         MORE, cost_ratios((queue, accept))),
        ("A thread per client costs more than either pool of threads.", MORE, cost_ratios((thread, accept), (thread, queue))),
        ("Preforked processes cost more than a thread per client (the source's text; in its table they cost less).", MORE,
         cost_ratios((prefork, thread))),
        ("A process forked for each client costs the most.", MORE, cost_ratios(*((fork, one) for one in _BY_COST[:-1]))),
        ("Smaller pools cost less.", MORE, pool_ratios(min(plan.pools))),
        ("Pool members beyond one for each client raise the cost.", MORE, pool_ratios(enough)),
    )
    for claim, rule, cases in rows:
        yield from claimed(claim, rule, cases)


EXPERIMENT = Experiment(
    name="server-models",
    title="Server models: processes, threads and pools",
    question="How much CPU time does a short connection cost: iterative, with a process or thread for each, or with a pool?",
    write_up="six Linux server models compared, title and author unknown",
    source="the six classic designs, cheapest first: iterative; thread pools with accept or a queue about equal;"
    " thread per client; prefork; fork per client. 1 to 100 client processes, 4 to 10,000 bytes, pools of 2 to 100",
    plan=ModelsPlan,
    quick={"rounds": 1, "server_s": 0.3},
    run=_run,
    conclude=conclude,
    servers=MODELS,
)
