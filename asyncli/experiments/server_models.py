"""The textbook's server models compared: what one client costs each of them in CPU time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, field

from asyncli.errors import PeerError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.experiments.counters import CpuTime, ServerCpu
from asyncli.experiments.judging import MORE, Rule, claimed
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, FigureRow, FigureTable, Rounds, bars, turned
from asyncli.findings.experiment import cell_failed
from asyncli.lab import child
from asyncli.lab.models import MODELS, LabModel

# Connections of a cell's pilot, which warms the server and sizes the load.
_PILOT = 400
# The source's largest.
_MOST_LOOPS = 50_000
# Longer than any working cell takes.
_PATIENCE_S = 120.0
_SETTLE_S = 5.0
_Many = Annotated[int, Meta(ge=1, le=1_000)]


class ModelsPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    server_s: Annotated[float, Meta(ge=1e-3, le=3_600)] = 1.0
    processes: Annotated[list[_Many], Meta(min_length=1)] = field(default_factory=lambda: [1, 10, 100])
    bytes: Annotated[list[Count], Meta(min_length=1)] = field(default_factory=lambda: [4, 4_000, 10_000])
    pools: Annotated[list[_Many], Meta(min_length=1)] = field(default_factory=lambda: [2, 10, 100])


async def _run(context: Context) -> None:
    loops: dict[ModelLoad, int] = {}
    failed: set[ModelLoad] = set()
    for number in range(context.plan.rounds):
        for cell in cells(context.plan, number):
            if context.wanted(cell.model) and cell not in failed:
                with context.step(cell.model, f"server model {WORDS[cell.model]}"):
                    try:
                        await _measure(context, cell, number, loops)
                    except PeerError as error:
                        # Other loads may still work.
                        failed.add(cell)
                        why, _, remedy = str(error).partition("; ")
                        context.findings.append(cell_failed(cell.words(), why, remedy))


async def _measure(context: Context, cell: ModelLoad, number: int, loops: dict[ModelLoad, int]) -> None:
    async with LabModel(cell.model, connections=max(16, cell.processes), workers=cell.pool) as server:
        context.met(server)
        cpu = ServerCpu(server.pid)
        quiet = cpu.size()
        pilot = max(1, _PILOT // cell.processes)
        _, spent = await _load(server, cpu, quiet, cell, pilot)
        if cell not in loops:
            each_s = spent.total_s / (pilot * cell.processes)
            wanted = math.ceil(context.plan.server_s / max(each_s, 1e-6) / cell.processes)
            loops[cell] = min(_MOST_LOOPS, max(pilot, wanted))
        found, spent = await _load(server, cpu, quiet, cell, loops[cell])
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
    context.tell(number, cell.words(), what)


async def _load(
    server: LabModel, cpu: ServerCpu, quiet: tuple[int, int], cell: ModelLoad, loops: int
) -> tuple[dict[str, Any], CpuTime]:
    """The client's result, and the server's CPU time with all that it started for the clients."""
    before = cpu.read()
    found = await _client(*server.address_port, cell.processes, loops, cell.size)
    # The last children and threads still close when the client has read its bytes.
    if not await child.until(lambda: cpu.size() == quiet, _SETTLE_S):
        raise PeerError(
            f"{_SETTLE_S:.0f} s after its last client its processes and threads are not what they were; look at the host's load"
        )
    return found, cpu.read().less(before)


async def _client(host: str, port: int, processes: int, loops: int, size: int) -> dict[str, Any]:
    """The classic client's findings. Raises :class:`PeerError` where not every connection brought its bytes."""
    arguments = (host, port, processes, loops, size)
    found = await child.run_module("asyncli.experiments.bytes_client", arguments, _PATIENCE_S)
    if found is None:
        raise PeerError(f"{processes * loops:,} connections took longer than {_PATIENCE_S:.0f} s; lower server_s in its plan")
    if failures := found["failures"]:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
        raise PeerError(
            f"client processes stopped early ({kinds}) after {found['connections']:,} of {processes * loops:,} connections;"
            " look at the host's limits with asyncli check"
        )
    return found


#: What a reader calls them.
WORDS = {
    "iterative": "iterative", "fork": "fork per client", "prefork": "prefork", "thread": "thread per client",
    "thread-pool": "thread pool (accept)", "thread-queue": "thread pool (queue)", "asyncio": "asyncio",
}  # fmt: skip
POOLS = ("prefork", "thread-pool", "thread-queue")
#: The source's order, cheapest first; it tries no asyncio.
_BY_COST = ("iterative", "thread-pool", "thread-queue", "thread", "prefork", "fork")


class ModelLoad(NamedTuple):
    """One measurement: a model, and where it lies on the axes."""

    model: str
    processes: int
    size: int
    pool: int

    @property
    def step(self) -> str:
        """Its step; with the pool's size where the model has one."""
        pool = f", pool {self.pool}" if self.model in POOLS else ""
        return f"{self.model}{pool}, {self.processes} × {self.size} B"

    def words(self) -> str:
        """The same for a reader."""
        pool = f", {self.pool:,} members" if self.model in POOLS else ""
        return f"{WORDS[self.model]}{pool}, {_clients(self.processes)}, {self.size:,} B"


def _clients(processes: int) -> str:
    return "1 client process" if processes == 1 else f"{processes:,} client processes"


def at(plan: Any, model: str, processes: int | None = None, size: int | None = None, pool: int | None = None) -> ModelLoad:
    """The model's cell; an axis that is not given is at its middle value."""
    middle = [sorted(axis)[len(axis) // 2] for axis in (plan.processes, plan.bytes, plan.pools)]
    given = (processes, size, pool)
    return ModelLoad(model, *(there if one is None else one for one, there in zip(given, middle, strict=True)))


def cells(plan: Any, number: int = 0) -> list[ModelLoad]:
    """The cells of round ``number``: each axis at the middle of the others, in an order that turns with the round, so that all
    meet the same noise."""
    models, pools = turned([*MODELS], number), turned(POOLS, number)
    found = [at(plan, model, processes=many) for many in turned(plan.processes, number) for model in models]
    found += [at(plan, model, size=many) for many in turned(plan.bytes, number) for model in models]
    found += [at(plan, model, pool=many) for many in turned(plan.pools, number) for model in pools]
    return list(dict.fromkeys(found))


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    middle = [cell for cell in (at(plan, model) for model in MODELS) if rounds.of(cell.step, "cpu_us")]
    order = sorted(middle, key=lambda cell: rounds.median(cell.step, "cpu_us") or math.inf)
    clients = _clients(at(plan, MODELS[0]).processes).capitalize()
    tables = [
        _ranking(plan, rounds, order),
        _loads(plan, rounds),
        _by_axis(
            "CPU time a connection by bytes", rounds,
            {f"{many:,} B": [at(plan, model, size=many) for model in MODELS] for many in sorted(plan.bytes)}, f"{clients}.",
        ),
        _by_axis(
            "CPU time a connection by the pool's size", rounds,
            {f"pool of {many:,}": [at(plan, model, pool=many) for model in POOLS] for many in sorted(plan.pools)},
            f"{clients}: more members than that cannot all have a client.",
        ),
    ]  # fmt: skip
    return Conclusions(tables, [_bars(rounds, order), _pool_lines(plan, rounds)], [*_claims(plan, rounds)])


def _ranking(plan: Any, rounds: Rounds, order: list[ModelLoad]) -> FigureTable:
    columns = [
        Column("rank", "rank"), Column("theirs", "rank in its text"), Column("cpu_us", "CPU", "us"),
        Column("user_us", "user", "us"), Column("system_us", "system", "us"),
    ]  # fmt: skip
    rows = []
    for cell in order:
        row = rounds.row(cell.step, columns, label=WORDS[cell.model] + ("" if cell.model in _BY_COST else " (ours)"))
        if cell.model in _BY_COST:
            row.values |= {"rank": _ranks(rounds, cell, order), "theirs": [1.0 + _BY_COST.index(cell.model)]}
        rows.append(row)
    there = at(plan, POOLS[0])
    title = f"The models by CPU time a connection, {_clients(there.processes)}, {there.size:,} B, pools of {there.pool}"
    how = (
        "User and system are as the kernel samples them at its ticks. A process that ends before a tick hits it has no sample: "
        "for fork per client only the sum is told. Of the source only ranks are known to us, no microseconds. It contradicts "
        "itself: its text ranks prefork behind thread per client, its table before it."
    )
    return FigureTable(title, columns, rows, how)


def _ranks(rounds: Rounds, cell: ModelLoad, order: list[ModelLoad]) -> list[float]:
    """Its rank in each round among the source's six."""
    others = [rounds.by_round(one.step, "cpu_us") for one in order if one.model in _BY_COST and one != cell]
    mine = rounds.by_round(cell.step, "cpu_us")
    return [1.0 + sum(other.get(number, math.inf) < cpu_us for other in others) for number, cpu_us in mine.items()]


def _loads(plan: Any, rounds: Rounds) -> FigureTable:
    """The source's own table, of the runs as they were made."""
    columns = [
        Column("processes", "clients"), Column("user_s", "user CPU", "s"), Column("system_s", "system CPU", "s"),
        Column("cpu_s", "both", "s"), Column("loops", "loops"), Column("per_s", "connections/s", "/s"),
    ]  # fmt: skip
    every = [at(plan, model, processes=many) for model in MODELS for many in plan.processes]
    caption = (
        "Clients are processes, loops the connections that each makes: as many as cost the server about the same CPU time. "
        "Client and server share this host's CPUs, so the connections a second are of both; the CPU time is the server's alone."
    )
    title = f"In the source's terms: client processes, the server's CPU time, {every[0].size:,} bytes"
    return rounds.table(title, columns, {cell.step: cell.model for cell in every}, caption)


def _by_axis(title: str, rounds: Rounds, axis: dict[str, list[ModelLoad]], caption: str) -> FigureTable:
    """A column for each value of an axis, a row for each model: heading -> the cell of each there."""
    columns = [Column(str(number), heading, "us") for number, heading in enumerate(axis)]
    values: dict[str, dict[str, list[float]]] = {}
    for number, of_models in enumerate(axis.values()):
        for cell in of_models:
            values.setdefault(WORDS[cell.model], {})[str(number)] = rounds.of(cell.step, "cpu_us")
    return FigureTable(title, columns, [FigureRow(label, row) for label, row in values.items() if any(row.values())], caption)


def _bars(rounds: Rounds, order: list[ModelLoad]) -> Chart:
    """User and system time; both in one where they are not told apart."""
    apart = [bool(rounds.of(cell.step, "user_us")) for cell in order]
    lines = [
        bars(label, [rounds.median(cell.step, key) if it is told else None for cell, it in zip(order, apart, strict=True)])
        for label, key, told in (
            ("user", "user_us", True), ("system", "system_us", True), ("both, not told apart", "cpu_us", False),
        )
    ]  # fmt: skip
    categories = [WORDS[cell.model] for cell in order]
    return Chart("bars", "The server's CPU time a connection", "", "us a connection", lines, categories)


def _pool_lines(plan: Any, rounds: Rounds) -> Chart:
    lines = []
    for model in POOLS:
        found = {float(pool): rounds.median(at(plan, model, pool=pool).step, "cpu_us") for pool in sorted(plan.pools)}
        known = {pool: cpu for pool, cpu in found.items() if cpu is not None}
        lines.append(ChartLine(WORDS[model], list(known), list(known.values())))
    title = f"Larger pools, {_clients(at(plan, POOLS[0]).processes)}"
    return Chart("lines", title, "members of the pool", "us of CPU a connection", lines)


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    """The source's order, each pair of models judged under every number of client processes."""

    def dearer(*pairs: tuple[str, str]) -> dict[str, list[float]]:
        """CPU a connection of the first by the second."""
        loads = [(many, pair) for many in plan.processes for pair in pairs]
        return rounds.ratios(
            {
                f"{WORDS[one]} by {WORDS[other]}, {_clients(many)}": (at(plan, one, many).step, at(plan, other, many).step)
                for many, (one, other) in loads
            },
            "cpu_us",
        )

    def grown(small: int) -> dict[str, list[float]]:
        large = max(plan.pools)
        words = f"{large:,} members by {small:,}"
        both = {model: [at(plan, model, pool=many).step for many in (large, small)] for model in POOLS}
        pairs = {f"{WORDS[model]}, {words}": (one, other) for model, (one, other) in both.items()}
        return rounds.ratios(pairs, "cpu_us") if small != large else {}

    iterative, accept, queue, thread, prefork, fork = _BY_COST
    enough = min((pool for pool in plan.pools if pool >= at(plan, prefork).processes), default=max(plan.pools))
    rows: tuple[tuple[str, Rule, Mapping[str, list[float]]], ...] = (
        ("The iterative server costs the least CPU a connection.", MORE, dearer(*((one, iterative) for one in _BY_COST[1:]))),
        ("The two pools of threads cost about the same.", Rule(1 / 1.1, 1.1), dearer((queue, accept))),
        ("Of the two pools of threads the queue costs more, since it needs a mutex and a condition variable.", MORE,
         dearer((queue, accept))),
        ("A thread per client costs more than either pool of threads.", MORE, dearer((thread, accept), (thread, queue))),
        ("Preforked processes cost more than a thread per client (its text; its table has them cost less).", MORE,
         dearer((prefork, thread))),
        ("A process forked for each client costs the most.", MORE, dearer(*((fork, one) for one in _BY_COST[:-1]))),
        ("Smaller pools do better.", MORE, grown(min(plan.pools))),
        ("Members of a pool beyond one for each client cost more.", MORE, grown(enough)),
    )
    for claim, rule, cases in rows:
        yield from claimed(claim, rule, cases)


EXPERIMENT = Experiment(
    name="server-models",
    title="Server models: processes, threads and pools",
    question="What CPU time does a short connection cost a server: iterative, a process or thread for each, or a pool of them?",
    write_up="six Linux server models compared, title and author not known to us",
    source="the six classic designs, cheapest first: iterative; thread pools with accept or a queue about equal;"
    " thread per client; prefork; fork per client. 1 to 100 client processes, 4 to 10,000 bytes, pools of 2 to 100",
    plan=ModelsPlan,
    quick={"rounds": 1, "server_s": 0.3},
    run=_run,
    conclude=conclude,
    servers=MODELS,
)
