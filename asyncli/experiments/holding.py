"""The same soak against every server of the lab: what a held connection takes, how many fit, and what stops the next one."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

from asyncli.collect.kernel import read_counters
from asyncli.experiments import Experiment
from asyncli.experiments.cgroup import counted, own_group
from asyncli.experiments.context import Context
from asyncli.experiments.holding_claims import conclude
from asyncli.experiments.holding_limits import (
    MIB,
    SHAPES,
    aimed,
    charged_alone,
    fitting,
    memory_stop,
    mib,
    priced,
    ramp_of,
    sure,
    why_it_stopped,
)
from asyncli.experiments.record import turned
from asyncli.experiments.soak_ladder import climb, figures_of, plan_of_soak, pss_of, push
from asyncli.lab import choose
from asyncli.lab.binary import descriptor_limit
from asyncli.lab.program import LabServer
from asyncli.metrics import HOST_AVAILABLE_BYTES
from asyncli.plan import SHORTEST_KEEPALIVE_S
from asyncli.units import parse_duration

#: Every server of the lab. The iterative one is a case of its own: it has no slope.
SERVERS = ("iterative", *SHAPES)
# The iterative server is asked for so many, to see that it serves one of them.
_ASKED_OF_ONE = 8
# A push opens all in this share of its time: slowly, since what it holds is told once a second.
_OPENS_IN = 0.85


async def _run(context: Context) -> None:
    plan = context.plan
    chosen = plan["only"] or plan["servers"]
    unpushed: set[str] = set()
    for number in range(plan["rounds"]):
        for name in turned([one for one in SERVERS if one in chosen], number):
            if context.wanted(name):
                with context.step(name, name):
                    await (_hold_one(context, number) if name == "iterative" else _hold(context, name, number))
        for name in (one for one in plan["push"] if one in chosen and one in SHAPES and one not in unpushed):
            known = len(context.findings)
            # Without a group that counts there is none that limits, and a finding has said so.
            if context.wanted(name) and not context.found("no_group"):
                with context.step(f"{name}, pushed", f"{name} pushed into {mib(plan['limit_mib'] * MIB)}"):
                    await _push(context, name, number)
            if len(context.findings) > known:
                unpushed.add(name)


async def _hold_one(context: Context, number: int) -> None:
    """Eight connections at the server that serves one at a time."""
    plan = context.plan
    async with choose("iterative", connections=1) as server:
        soak = plan_of_soak(
            server, connections=_ASKED_OF_ONE, keepalive=4, timeout="1s", hold="2s", baseline=plan["baseline"], reopen=False
        )
        found = figures_of(await climb(server, soak))
        context.met(server)
    # All seconds of its one client: neither a slope nor a latency says anything of it.
    kept = ("asked", "held", "causes", "processes", "threads", "full_bytes")
    context.add("iterative", number, **{key: found[key] for key in kept})
    context.tell(number, "iterative", f"{found['held']:,} of {found['asked']:,} served")


async def _hold(context: Context, name: str, number: int) -> None:
    plan, shape = context.plan, SHAPES[name]
    many = fitting(name, plan, _free_bytes())
    alone = await _alone(context, name) if shape.pool else None
    server = _made(name, many, plan)
    async with counted(context, server) as group:
        # Events cost a fraction of a fork, of which the quickest make two thousand a second.
        rate = plan["rate"] if shape.holds == "event" else max(100, plan["rate"] // 4)
        soak = plan_of_soak(
            server, connections=many, ramp=f"{max(1, rate // 100)}/10ms", plateaus=plan["plateaus"], plateau_rest=plan["rest"],
            keepalive=plan["keepalive"], hold=plan["hold"], baseline=plan["baseline"], reopen=False,
        )  # fmt: skip
        charged = None if group is None else lambda: group.held_bytes
        sockets = group is None or group.charges_sockets
        found = figures_of(await climb(server, soak, charged), sockets_charged=sockets)
        workers = server.workers
        context.met(server)
    del found["causes"]
    idle, charge = found.pop("idle_bytes") or 0.0, found.pop("charged_bytes")
    # Tasks, stacks and page tables are no part of a process's own memory; what is charged has them.
    start = idle if charge is None else charge
    if shape.holds == "process":
        # The clock of proc(5) ticks each 10 ms, more than a process that serves one connection takes in all.
        found["beat_us"] = None
    context.add(
        name, number, **found, **priced(shape, found, start, workers, alone), start=start, alone=alone, workers=workers,
        cut=server.connections, **_host_facts(),
    )  # fmt: skip
    cost = f"{found['own']:,.0f} B each on its side" if found["own"] is not None else "what one takes is not known"
    context.tell(number, f"{name}", f"{found['held']:,} of {found['asked']:,} held, {cost}")


async def _alone(context: Context, name: str) -> tuple[float, int] | None:
    """What the smallest pool takes at its start, in bytes of the same kind as a ladder's, and its members."""
    server = _made(name, 1, context.plan)
    async with counted(context, server) as group:
        taken = float(group.held_bytes) if group is not None else await asyncio.to_thread(pss_of, server.pid)
        return None if taken is None else (taken, server.workers)


async def _push(context: Context, name: str, number: int) -> None:
    """Within its limit of memory, a third more connections than are reckoned to fit."""
    plan, shape = context.plan, SHAPES[name]
    known = next((one for one in context.rounds if one["step"] == name and one["round"] == number), None)
    limit = plan["limit_mib"] * MIB
    if known is None or not sure(known):
        return
    # The limit is on what is charged, and so is what is reckoned: a TCP socket may be none of it.
    known = charged_alone(shape, known)
    aim = aimed(shape, known, limit, _free_bytes())
    within_s = parse_duration(plan["push_time"])
    async with own_group(limit) as group:
        with group.inside():
            server = _made(name, aim, plan)
            await server.start()
        try:
            # What it takes at its start is that of one cut for so many: nginx makes its slots then.
            memory = memory_stop({**known, "start": float(group.held_bytes)}, limit)
            assert memory is not None
            soak = plan_of_soak(
                server, connections=aim, ramp=ramp_of(aim, _OPENS_IN * within_s), keepalive=plan["keepalive"], timeout="3s",
                hold=plan["push_time"], baseline="1s", reopen=False, force=True,
            )  # fmt: skip
            found = await push(server, soak, lambda: group.used_bytes, within_s)
            refused, killed = group.refused, group.killed
        finally:
            await server.stop()
    complaint = next((line for line in server.complaints if "said once" in line), "")
    reckoned = {"reckoned": memory.number, "reckoned_least": memory.least, "reckoned_most": memory.most}
    context.add(
        f"{name}, pushed", number, server=name, asked=aim, limit=limit, refused=refused, killed=killed, complaint=complaint,
        **found, **reckoned,
    )  # fmt: skip
    context.tell(number, f"{name} within {mib(limit)}", f"{why_it_stopped(context.rounds[-1])}")


def _made(name: str, many: int, plan: dict[str, Any]) -> LabServer:
    options: dict[str, Any] = {"workers": many} if SHAPES[name].pool and name != "apache-prefork" else {}
    return choose(name, connections=many, keepalive_s=parse_duration(plan["keepalive"]), **options)


def _free_bytes() -> float:
    return read_counters().values.get(HOST_AVAILABLE_BYTES, 0.0)


def _host_facts() -> dict[str, Any]:
    """The limits of this host that end a server's growth; None where one cannot be read or is none."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return {
        "nofile": descriptor_limit(),
        "pid_max": _number("/proc/sys/kernel/pid_max"),
        "threads_max": _number("/proc/sys/kernel/threads-max"),
        "map_max": _number("/proc/sys/vm/max_map_count"),
        # What glibc reserves for a thread where the limit is none (pthread_create(3), x86-64).
        "stack_bytes": 2 * MIB if stack == resource.RLIM_INFINITY else stack,
    }


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


EXPERIMENT = Experiment(
    name="holding",
    title="What each server takes to hold a connection",
    question="The same soak against every server of the lab: what does one more held connection take, how many fit, and why "
    "does it stop there?",
    source="none: the same soak against all of them is ours, and the claims are what is commonly expected",
    defaults={
        "rounds": 2, "connections": 10_000, "members": 1_000, "rate": 2_000, "plateaus": 5, "rest": "3s", "keepalive": "10s",
        "hold": "4s", "baseline": "3s", "limit_mib": 48, "push": [name for name, shape in SHAPES.items() if not shape.pool],
        "push_time": "20s",
        "servers": list(SERVERS), "only": [],
    },
    quick={
        "rounds": 1, "connections": 5_000, "members": 1_000, "plateaus": 4, "rest": "2s", "hold": "2s", "baseline": "2s",
        "limit_mib": 64, "push": ["thread"], "push_time": "10s", "servers": ["iterative", "nginx", "fork", "thread"],
    },
    run=_run,
    conclude=conclude,
    servers=SERVERS,
    bounds={"plateaus": (2, 100), "keepalive": (SHORTEST_KEEPALIVE_S, 3600)},
)  # fmt: skip
