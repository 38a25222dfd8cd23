"""The textbook's server models compared: what one client costs each of them in CPU time."""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta, field

from asyncli.errors import PeerError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context
from asyncli.experiments.cputime import CpuTime, ServerCpu
from asyncli.experiments.server_models_claims import POOLS, WORDS, ModelLoad, cells, conclude
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


EXPERIMENT = Experiment(
    name="server-models",
    title="Server models: processes, threads and pools",
    question="What CPU time does a short connection cost a server: iterative, a process or thread for each, or a pool of them?",
    source="the six classic designs, cheapest first: iterative; thread pools with accept or a queue about equal;"
    " thread per client; prefork; fork per client. 1 to 100 client processes, 4 to 10,000 bytes, pools of 2 to 100",
    plan=ModelsPlan,
    quick={"rounds": 1, "server_s": 0.3},
    run=_run,
    conclude=conclude,
    servers=MODELS,
)
