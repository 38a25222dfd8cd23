"""Compares the textbook server models: CPU time per short connection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, field

from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.experiments.counters import CpuTime, ServerCpu
from asyncli.experiments.judging import MORE, Rule, claimed
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Claim,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Rounds,
    bars,
    rotated,
)
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
    processes: Annotated[list[_Small], Meta(min_length=1)] = field(
        default_factory=lambda: [1, 10, 100]
    )
    bytes: Annotated[list[Count], Meta(min_length=1)] = field(
        default_factory=lambda: [4, 4_000, 10_000]
    )
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


async def _measure(
    context: Context, cell: ModelLoad, number: int, loops: dict[ModelLoad, int]
) -> None:
    async with LabModel(
        cell.model, connections=max(16, cell.processes), workers=cell.pool
    ) as server:
        context.record_server(server)
        cpu = ServerCpu(server.pid)
        idle_size = cpu.size()
        pilot = max(1, _PILOT_CONNECTIONS // cell.processes)
        _, spent = await _load(server, cpu, idle_size, cell, pilot)
        if cell not in loops:
            each_s = spent.total_s / (pilot * cell.processes)
            wanted = math.ceil(context.plan.server_s / max(each_s, 1e-6) / cell.processes)
            loops[cell] = min(_MAX_LOOPS, max(pilot, wanted))
        result, spent = await _load(server, cpu, idle_size, cell, loops[cell])
    connections = result["connections"]
    per_s = connections / result["seconds"]
    cpu_us = 1e6 * spent.total_s / connections
    user_s, system_s = spent.split() or (None, None)

    def per_connection_us(seconds: float | None) -> float | None:
        return None if seconds is None else 1e6 * seconds / connections

    context.add(
        cell.step,
        number,
        model=cell.model,
        processes=cell.processes,
        bytes=cell.size,
        pool=cell.pool if cell.model in POOLS else None,
        loops=loops[cell],
        connections=connections,
        cpu_s=spent.total_s,
        user_s=user_s,
        system_s=system_s,
        cpu_us=cpu_us,
        user_us=per_connection_us(user_s),
        system_us=per_connection_us(system_s),
        per_s=per_s,
    )
    speed = f"{per_s:,.0f} connections a second"
    context.report(number, cell.label(), f"{cpu_us:,.1f} us of CPU a connection, {speed}")


async def _load(
    server: LabModel, cpu: ServerCpu, idle_size: tuple[int, int], cell: ModelLoad, loops: int
) -> tuple[dict[str, Any], CpuTime]:
    """The client's result, and the CPU time of the server with its children."""
    before = cpu.read()
    result = await _client(*server.address_port, cell.processes, loops, cell.size)
    # The last children and threads may still be ending when the client has read its bytes.
    if not await child.until(lambda: cpu.size() == idle_size, _SETTLE_S):
        raise PeerError(
            f"{_SETTLE_S:.0f} s after its last client the server still has other processes "
            "or threads; look at the host's load"
        )
    return result, cpu.read().less(before)


async def _client(host: str, port: int, processes: int, loops: int, size: int) -> dict[str, Any]:
    """The classic client's result. Raises :class:`PeerError` unless every connection received its
    bytes.
    """
    arguments = (host, port, processes, loops, size)
    result = await child.run_module("asyncli.experiments.bytes_client", arguments, _TIMEOUT_S)
    if result is None:
        raise PeerError(
            f"{processes * loops:,} connections took longer than {_TIMEOUT_S:.0f} s; "
            "lower server_s in its plan"
        )
    failures = result["failures"]
    if failures:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
        raise PeerError(
            f"client processes stopped early ({kinds}) after {result['connections']:,} "
            f"of {processes * loops:,} connections; look at the host's limits with asyncli check"
        )
    return result


LABELS = {
    "iterative": "iterative",
    "fork": "fork per client",
    "prefork": "prefork",
    "thread": "thread per client",
    "thread-pool": "thread pool (accept)",
    "thread-queue": "thread pool (queue)",
    "asyncio": "asyncio",
}
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
        model = self.model
        if model in POOLS:
            model = f"{model}, pool {self.pool}"
        return f"{model}, {self.processes} × {self.size} B"

    def label(self) -> str:
        """The step for reports."""
        model = LABELS[self.model]
        if self.model in POOLS:
            model = f"{model}, {self.pool:,} members"
        return f"{model}, {_clients(self.processes)}, {self.size:,} B"


def _clients(processes: int) -> str:
    if processes == 1:
        return "1 client process"
    return f"{processes:,} client processes"


def load_at(
    plan: Any,
    model: str,
    processes: int | None = None,
    size: int | None = None,
    pool: int | None = None,
) -> ModelLoad:
    """A load of the model; each axis that is not given has its middle value."""
    return ModelLoad(
        model,
        _middle(plan.processes) if processes is None else processes,
        _middle(plan.bytes) if size is None else size,
        _middle(plan.pools) if pool is None else pool,
    )


def _middle(axis: Sequence[int]) -> int:
    return sorted(axis)[len(axis) // 2]


def cells(plan: Any, number: int = 0) -> list[ModelLoad]:
    """The loads of round ``number``: each axis with the middle values of the others, rotated by the
    round, so that noise is spread evenly.
    """
    models = rotated([*MODELS], number)
    pool_models = rotated(POOLS, number)
    loads = []
    for processes in rotated(plan.processes, number):
        loads += [load_at(plan, model, processes=processes) for model in models]
    for size in rotated(plan.bytes, number):
        loads += [load_at(plan, model, size=size) for model in models]
    for pool in rotated(plan.pools, number):
        loads += [load_at(plan, model, pool=pool) for model in pool_models]
    return list(dict.fromkeys(loads))


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The tables, the charts and the source's claims."""
    loads = [load_at(plan, model) for model in MODELS]
    measured = [load for load in loads if rounds.of(load.step, "cpu_us")]
    order = sorted(measured, key=lambda load: rounds.median(load.step, "cpu_us") or math.inf)
    clients = _clients(load_at(plan, MODELS[0]).processes).capitalize()
    by_size = {}
    for size in sorted(plan.bytes):
        by_size[f"{size:,} B"] = [load_at(plan, model, size=size) for model in MODELS]
    by_pool = {}
    for pool in sorted(plan.pools):
        by_pool[f"pool of {pool:,}"] = [load_at(plan, model, pool=pool) for model in POOLS]
    tables = [
        _ranking(plan, rounds, order),
        _load_table(plan, rounds),
        _by_axis("CPU time per connection by bytes", rounds, by_size, f"{clients}."),
        _by_axis(
            "CPU time per connection by pool size",
            rounds,
            by_pool,
            f"{clients}: further pool members have no client.",
        ),
    ]
    return Conclusions(
        tables, [_cpu_chart(rounds, order), _pool_chart(plan, rounds)], [*_claims(plan, rounds)]
    )


def _ranking(plan: Any, rounds: Rounds, order: list[ModelLoad]) -> FigureTable:
    columns = [
        Column("rank", "rank"),
        Column("theirs", "rank in the source's text"),
        Column("cpu_us", "CPU", "us"),
        Column("user_us", "user", "us"),
        Column("system_us", "system", "us"),
    ]
    rows = []
    for cell in order:
        label = LABELS[cell.model]
        if cell.model not in _BY_COST:
            rows.append(rounds.row(cell.step, columns, label=f"{label} (ours)"))
            continue
        row = rounds.row(cell.step, columns, label=label)
        row.values["rank"] = _ranks(rounds, cell, order)
        row.values["theirs"] = [1.0 + _BY_COST.index(cell.model)]
        rows.append(row)
    load = load_at(plan, POOLS[0])
    title = (
        f"The models by CPU time per connection, {_clients(load.processes)}, {load.size:,} B, "
        f"pools of {load.pool}"
    )
    caption = (
        "The kernel samples user and system time at timer ticks. A process that ends before a "
        "tick has no sample, so for fork per client only the sum is known. Of the source we know "
        "only ranks, no microseconds. It contradicts itself: its text ranks prefork behind thread "
        "per client, its table before it."
    )
    return FigureTable(title, columns, rows, caption)


def _ranks(rounds: Rounds, cell: ModelLoad, order: list[ModelLoad]) -> list[float]:
    """The load's rank in each round among the source's six models."""
    others = []
    for other in order:
        if other.model in _BY_COST and other != cell:
            others.append(rounds.by_round(other.step, "cpu_us"))
    ranks = []
    for number, cpu_us in rounds.by_round(cell.step, "cpu_us").items():
        cheaper = sum(costs.get(number, math.inf) < cpu_us for costs in others)
        ranks.append(1.0 + cheaper)
    return ranks


def _load_table(plan: Any, rounds: Rounds) -> FigureTable:
    """The source's table with our figures: the runs as they were made."""
    columns = [
        Column("processes", "clients"),
        Column("user_s", "user CPU", "s"),
        Column("system_s", "system CPU", "s"),
        Column("cpu_s", "both", "s"),
        Column("loops", "loops"),
        Column("per_s", "connections/s", "/s"),
    ]
    loads = []
    for model in MODELS:
        loads += [load_at(plan, model, processes=processes) for processes in plan.processes]
    caption = (
        "Clients are processes; loops are the connections of each, chosen so that each load costs "
        "the server about the same CPU time. Client and server share this host's CPUs, so both "
        "limit the connections a second; the CPU time is the server's."
    )
    size = loads[0].size
    title = f"The source's table: client processes, the server's CPU time, {size:,} bytes"
    return rounds.table(title, columns, {load.step: load.model for load in loads}, caption)


def _by_axis(
    title: str, rounds: Rounds, axis: dict[str, list[ModelLoad]], caption: str
) -> FigureTable:
    """A table with a column for each value of an axis (heading -> the models' loads), and a row for
    each model.
    """
    columns = [Column(str(number), heading, "us") for number, heading in enumerate(axis)]
    values: dict[str, dict[str, list[float]]] = {}
    for number, of_models in enumerate(axis.values()):
        for cell in of_models:
            values.setdefault(LABELS[cell.model], {})[str(number)] = rounds.of(cell.step, "cpu_us")
    rows = [FigureRow(label, row) for label, row in values.items() if any(row.values())]
    return FigureTable(title, columns, rows, caption)


def _cpu_chart(rounds: Rounds, order: list[ModelLoad]) -> Chart:
    """A chart of user and system time, or of their sum for models whose split is unknown."""
    user_us: list[float | None] = []
    system_us: list[float | None] = []
    unsplit_us: list[float | None] = []
    for cell in order:
        user_us.append(rounds.median(cell.step, "user_us"))
        system_us.append(rounds.median(cell.step, "system_us"))
        if user_us[-1] is None:
            unsplit_us.append(rounds.median(cell.step, "cpu_us"))
        else:
            unsplit_us.append(None)
    lines = [
        bars("user", user_us),
        bars("system", system_us),
        bars("user and system, split unknown", unsplit_us),
    ]
    categories = [LABELS[cell.model] for cell in order]
    return Chart(
        "bars", "The server's CPU time per connection", "", "us per connection", lines, categories
    )


def _pool_chart(plan: Any, rounds: Rounds) -> Chart:
    lines = []
    for model in POOLS:
        by_pool = {}
        for pool in sorted(plan.pools):
            cpu_us = rounds.median(load_at(plan, model, pool=pool).step, "cpu_us")
            if cpu_us is not None:
                by_pool[float(pool)] = cpu_us
        lines.append(ChartLine(LABELS[model], list(by_pool), list(by_pool.values())))
    title = f"CPU time by pool size, {_clients(load_at(plan, POOLS[0]).processes)}"
    return Chart("lines", title, "members of the pool", "us of CPU per connection", lines)


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    """The claims on the source's order; a case is a pair of models with a number of client
    processes.
    """

    def cost_ratios(*pairs: tuple[str, str]) -> dict[str, list[float]]:
        """The CPU per connection of the first divided by that of the second."""
        cases = {}
        for processes in plan.processes:
            for model, other in pairs:
                label = f"{LABELS[model]} by {LABELS[other]}, {_clients(processes)}"
                step = load_at(plan, model, processes).step
                cases[label] = (step, load_at(plan, other, processes).step)
        return rounds.ratios(cases, "cpu_us")

    def pool_ratios(small: int) -> dict[str, list[float]]:
        large = max(plan.pools)
        if small == large:
            return {}
        cases = {}
        for model in POOLS:
            label = f"{LABELS[model]}, {large:,} members by {small:,}"
            step = load_at(plan, model, pool=large).step
            cases[label] = (step, load_at(plan, model, pool=small).step)
        return rounds.ratios(cases, "cpu_us")

    iterative, accept, queue, thread, prefork, fork = _BY_COST
    enough = min(
        (pool for pool in plan.pools if pool >= load_at(plan, prefork).processes),
        default=max(plan.pools),
    )
    rows: tuple[tuple[str, Rule, Mapping[str, list[float]]], ...] = (
        (
            "The iterative server costs the least CPU per connection.",
            MORE,
            cost_ratios(*((model, iterative) for model in _BY_COST[1:])),
        ),
        (
            "The two pools of threads cost about the same.",
            Rule(1 / 1.1, 1.1),
            cost_ratios((queue, accept)),
        ),
        (
            "The pool of threads with a queue costs more than the one with accept, since it needs "
            "a mutex and a condition variable.",
            MORE,
            cost_ratios((queue, accept)),
        ),
        (
            "A thread per client costs more than either pool of threads.",
            MORE,
            cost_ratios((thread, accept), (thread, queue)),
        ),
        (
            "Preforked processes cost more than a thread per client (the source's text; in its "
            "table they cost less).",
            MORE,
            cost_ratios((prefork, thread)),
        ),
        (
            "A process forked for each client costs the most.",
            MORE,
            cost_ratios(*((fork, model) for model in _BY_COST[:-1])),
        ),
        ("Smaller pools cost less.", MORE, pool_ratios(min(plan.pools))),
        ("Pool members beyond one for each client raise the cost.", MORE, pool_ratios(enough)),
    )
    for claim, rule, cases in rows:
        yield from claimed(claim, rule, cases)


EXPERIMENT = Experiment(
    name="server-models",
    title="Server models: processes, threads and pools",
    question=(
        "How much CPU time does a short connection cost: iterative, with a process or thread for "
        "each, or with a pool?"
    ),
    write_up="six Linux server models compared, title and author unknown",
    source="the six classic designs, cheapest first: iterative; thread pools with accept or a "
    "queue about equal; thread per client; prefork; fork per client. 1 to 100 client "
    "processes, 4 to 10,000 bytes, pools of 2 to 100",
    plan=ModelsPlan,
    quick={"rounds": 1, "server_s": 0.3},
    run=_run,
    conclude=conclude,
    servers=MODELS,
)
