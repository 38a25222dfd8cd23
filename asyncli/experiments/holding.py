"""The same soak against every server of the lab: what a held connection takes, how many fit, and what stops the next one."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from asyncli.collect.kernel import read_counters
from asyncli.errors import HostError
from asyncli.experiments import Experiment
from asyncli.experiments.confined import MemoryGroup, counted
from asyncli.experiments.context import Context
from asyncli.experiments.held import climb, figures_of, plan_of_soak, pss_of, push
from asyncli.experiments.judging import WORTH, Case, Interval, Side, claimed, in_every_round, verdict
from asyncli.experiments.record import Chart, Claim, Column, Conclusions, Line, Round, Row, Table, of_step, row_of, span, turned
from asyncli.lab import LabServer, choose
from asyncli.lab.binary import descriptor_limit
from asyncli.metrics import HOST_AVAILABLE_BYTES
from asyncli.units import format_bytes, format_count, parse_duration
from asyncli.values import SHORTEST_KEEPALIVE_S


class Shape(NamedTuple):
    """How a server holds: by events, a process or a thread for each connection; in ``pool``, made before the first one.

    ``many``: its descriptors and memory maps are those of several processes. ``guess_bytes``: more than a connection takes on
    a host with both ends, to keep a ladder within the memory there is.
    """

    holds: Literal["event", "process", "thread"]
    guess_bytes: int
    pool: bool = False
    many: bool = False


_MIB = 1 << 20
_SHAPES = {
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
#: Every server of the lab. The iterative one is a case of its own: it has no slope.
SERVERS = ("iterative", *_SHAPES)
# A third of the memory that is free, and never more: this is a host on which others work.
_SHARE_OF_FREE = 1 / 3
# The iterative server is asked for so many, to see that it serves one of them.
_ASKED_OF_ONE = 8
# A slope with a wider interval than this is no ground to divide by.
_SURE = 0.5
# What a server of one process has open besides its connections, and some to spare.
_OWN_DESCRIPTORS = 100
# A push opens so much more than is reckoned, in this share of its time: slowly, since what it holds is told once a second.
_BEYOND, _OPENS_IN = 1.3, 0.85

_COST = [
    Column("user", "its processes", "B"), Column("user_half", "±", "B"), Column("socket", "socket", "B"),
    Column("rest", "left over", "B"), Column("own", "one more", "B"), Column("own_half", "±", "B"),
    Column("member", "place in pool", "B"), Column("each", "in all", "B"),
]  # fmt: skip
_STATE = [
    Column("asked", "asked"), Column("held", "held"), Column("processes", "processes"), Column("threads", "threads"),
    Column("start", "none held", "B"), Column("full_bytes", "all held", "B"), Column("p99_ms", "p99", "ms"),
    Column("beat_us", "CPU a beat", "us"),
]  # fmt: skip
_STOPS = [
    Column("memory", "memory"), Column("least", "at least"), Column("most", "at most"), Column("descriptors", "descriptors"),
    Column("ids", "ids"), Column("cut", "cut for"), Column("held_most", "when pushed"),
]  # fmt: skip


# Measuring.


async def _run(context: Context) -> None:
    plan = context.plan
    chosen = plan["only"] or plan["servers"]
    unpushed: set[str] = set()
    for number in range(plan["rounds"]):
        for name in turned([one for one in SERVERS if one in chosen], number):
            if context.wanted(name):
                with context.step(name, name):
                    await (_hold_one(context, number) if name == "iterative" else _hold(context, name, number))
        for name in (one for one in plan["push"] if one in chosen and one in _SHAPES and one not in unpushed):
            known = len(context.findings)
            # Without a group that counts there is none that limits, and a finding has said so.
            if context.wanted(name) and all(one.code != "no_group" for one in context.findings):
                with context.step(f"{name}, pushed", f"{name} pushed into {_mib(plan['limit_mib'] * _MIB)}"):
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
        _met(context, server)
    # All seconds of its one client: neither a slope nor a latency says anything of it.
    kept = ("asked", "held", "causes", "processes", "threads", "full_bytes")
    context.add("iterative", number, **{key: found[key] for key in kept})
    context.say(_said(plan, number, f"iterative: {found['held']:,} of {found['asked']:,} served"))


async def _hold(context: Context, name: str, number: int) -> None:
    plan, shape = context.plan, _SHAPES[name]
    many = fitting(name, plan, _free_bytes())
    alone = await _alone(context, name) if shape.pool else None
    async with contextlib.AsyncExitStack() as stack:
        group = await counted(context, stack)
        server = _made(name, many, plan)
        stack.push_async_callback(server.stop)
        with group.inside() if group is not None else contextlib.nullcontext():
            await server.start()
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
        _met(context, server)
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
    context.say(_said(plan, number, f"{name}: {found['held']:,} of {found['asked']:,} held, {cost}"))


async def _alone(context: Context, name: str) -> tuple[float, int] | None:
    """What the smallest pool takes at its start, in bytes of the same kind as a ladder's, and its members."""
    async with contextlib.AsyncExitStack() as stack:
        group = await counted(context, stack)
        server = _made(name, 1, context.plan)
        stack.push_async_callback(server.stop)
        with group.inside() if group is not None else contextlib.nullcontext():
            await server.start()
        taken = float(group.held_bytes) if group is not None else await asyncio.to_thread(pss_of, server.pid)
        return None if taken is None else (taken, server.workers)


async def _push(context: Context, name: str, number: int) -> None:
    """Within its limit of memory, a third more connections than are reckoned to fit."""
    plan, shape = context.plan, _SHAPES[name]
    known = next((one for one in context.rounds if one["step"] == name and one["round"] == number), None)
    limit = plan["limit_mib"] * _MIB
    if known is None or not _sure(known):
        return
    # The limit is on what is charged, and so is what is reckoned: a TCP socket may be none of it.
    known = charged_alone(shape, known)
    aim = aimed(shape, known, limit, _free_bytes())
    within_s = parse_duration(plan["push_time"])
    async with MemoryGroup(limit) as group:
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
        complaints = getattr(server, "complaints", ())
    complaint = next((line for line in complaints if "said once" in line), "")
    reckoned = {"reckoned": memory.number, "reckoned_least": memory.least, "reckoned_most": memory.most}
    context.add(
        f"{name}, pushed", number, server=name, asked=aim, limit=limit, refused=refused, killed=killed, complaint=complaint,
        **found, **reckoned,
    )  # fmt: skip
    context.say(_said(plan, number, f"{name} within {_mib(limit)}: {why_it_stopped(context.rounds[-1])}"))


def _made(name: str, many: int, plan: dict[str, Any]) -> LabServer:
    options: dict[str, Any] = {"workers": many} if _SHAPES[name].pool and name != "apache-prefork" else {}
    return choose(name, connections=many, keepalive_s=parse_duration(plan["keepalive"]), **options)


def _met(context: Context, server: LabServer) -> None:
    if not context.environment:
        context.environment = {"cpus": os.cpu_count(), "kernel": os.uname().release, "machine": os.uname().machine, "server": {}}
    context.environment["server"][server.label] = {"version": server.version}


def _said(plan: dict[str, Any], number: int, what: str) -> str:
    return f"round {number + 1} of {plan['rounds']}, {what}"


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
        "stack_bytes": 2 * _MIB if stack == resource.RLIM_INFINITY else stack,
    }


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


# Reckoning: pure.


def fitting(name: str, plan: dict[str, Any], free_bytes: float) -> int:
    """Connections for a server's ladder: as many as were asked for, within its kind and a third of the free memory.

    Raises :class:`HostError` where that is fewer than a ladder has steps.
    """
    shape = _SHAPES[name]
    asked = plan["connections"] if shape.holds == "event" else min(plan["connections"], plan["members"])
    many = min(asked, int(free_bytes * _SHARE_OF_FREE / shape.guess_bytes))
    if many < plan["plateaus"]:
        raise HostError(f"{format_bytes(free_bytes)} of free memory are too few for a ladder on {name}; free some")
    return int(many)


def priced(
    shape: Shape, found: dict[str, Any], start_bytes: float, workers: int, alone: Sequence[float] | None
) -> dict[str, float | None]:
    """``member``: what a process or thread of a pool took at the start; ``each``: with it, all that a connection takes.

    ``alone``: what the smallest pool takes at the start, and its members; unknown, the program's fixed cost is in ``member``.
    """
    own = found["own"]
    if not shape.pool:
        return {"member": None, "each": own}
    member = start_bytes / max(1, workers)
    if alone is not None and workers > alone[1]:
        member = max(0.0, start_bytes - alone[0]) / (workers - alone[1])
    return {"member": member, "each": None if own is None else own + member}


def _sure(one: Round) -> bool:
    """Whether what a connection takes in all is known well enough to divide by it."""
    each, half = one.get("each"), one.get("own_half")
    return each is not None and half is not None and each > 0 and half <= _SURE * each


class Stop(NamedTuple):
    """So many connections, and what ends there, in words; with an interval where it has one."""

    number: float
    words: str
    least: float | None = None
    most: float | None = None


def memory_stop(one: Round, limit_bytes: float) -> Stop | None:
    """How many fit into ``limit_bytes`` on the server's side; None where its slope is not known to ± 50 %."""
    if not _sure(one):
        return None
    each, half = one["each"], one["own_half"]
    # Of a pool's start each counts the members already.
    fixed = one["start"] - (one["workers"] * one["member"] if one.get("member") is not None else 0.0)
    room = limit_bytes - max(0.0, fixed)
    if room <= 0:
        return Stop(0.0, "memory, all of which its start takes", 0.0, 0.0)
    return Stop(math.floor(room / each), "memory", math.floor(room / (each + half)), math.floor(room / (each - half)))


def aimed(shape: Shape, one: Round, limit_bytes: float, free_bytes: float) -> int:
    """Connections to ask of a server in a limit that should not hold them all: what its one process and this host allow."""
    first = stops(shape, one, limit_bytes)[0].number
    free = free_bytes * _SHARE_OF_FREE / max(1.0, one["host"] or shape.guess_bytes)
    descriptors = math.inf if shape.many or not one.get("nofile") else one["nofile"] - _OWN_DESCRIPTORS
    return max(1, math.ceil(min(_BEYOND * first, free, descriptors)))


def ramp_of(connections: int, within_s: float) -> str:
    """The ramp of a plan that opens so many in no more than ``within_s``, by batches 10 ms apart or, of one, farther."""
    rate = connections / within_s
    batch = max(1, math.ceil(rate / 100))
    return f"{batch}/{max(1, math.floor(1000 * batch / rate))}ms"


def charged_alone(shape: Shape, one: Round) -> Round:
    """A round with what its group is charged as what a connection takes; as it is where that was not read."""
    if one.get("charge") is None:
        return one
    found = {**one, "own": one["charge"], "own_half": one["charge_half"]}
    return found | priced(shape, found, one["start"], one["workers"], one.get("alone"))


def stops(shape: Shape, one: Round, limit_bytes: float) -> list[Stop]:
    """Every stop that is known of a server, the first one first."""
    found = [memory_stop(one, limit_bytes)]
    of_what = "of a pool that is to be as large" if shape.pool else ""
    if found[0] is not None:
        found[0] = found[0]._replace(words=f"{found[0].words}, {of_what}".rstrip(", "))
    if shape.holds != "process" and one.get("nofile"):
        count = one.get("workers") or 1 if shape.many else 1
        words = (
            "descriptors of its one process" if count == 1 else f"descriptors of its {count} processes (more of them hold more)"
        )
        found.append(Stop(one["nofile"] * count, words))
    if shape.holds != "event":
        ids = [number for number in (one.get("pid_max"), one.get("threads_max")) if number]
        if ids:
            found.append(Stop(min(ids), f"ids for {'processes' if shape.holds == 'process' else 'threads'} (kernel.pid_max)"))
    if shape.holds == "thread" and one.get("map_max"):
        # A stack and its guard page.
        found.append(Stop(one["map_max"] // 2, "memory maps of one process (vm.max_map_count): two for each thread"))
    return sorted((stop for stop in found if stop is not None), key=lambda stop: stop.number)


def why_it_stopped(one: Round) -> str:
    """What a push came to, in words."""
    held = f"{one['most']:,} held at most, in {format_bytes(one['used_at_most'])}"
    lost = ", ".join(
        f"{count:,} {_CAUSES.get(cause, cause)}" for cause, count in sorted(one["causes"].items(), key=lambda pair: -pair[1])
    )
    then = f"; then {lost}" if lost else ""
    if one["killed"]:
        what = "a process" if one["killed"] == 1 else f"{one['killed']:,} processes"
        return f"{held}{then}: the kernel killed {what} of it for want of memory"
    if one["complaint"]:
        return f"{held}{then}: it says {one['complaint'].removesuffix(' (said once)')!r}"
    if one["stopped"]:
        what = f"the kernel refused it memory {one['refused']:,} times" if one["refused"] else "its limit of memory was not met"
        return f"{held}{then}: {what}"
    of_all = (
        "all that it was asked for" if one["most"] >= 0.999 * one["asked"] else f"of {one['asked']:,}, in the time it was given"
    )
    return f"{held}: nothing stopped it ({of_all})"


_CAUSES = {
    "closed_idle": "closed by the server", "closed_awaiting": "closed instead of an answer", "reset": "reset",
    "refused": "refused", "heartbeat_timeout": "without an answer in time", "connect_timeout": "not accepted",
}  # fmt: skip


# Concluding: pure.


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    """Its tables, its picture, and what it says of what was expected."""
    met = [name for name in _SHAPES if of_step(rounds, name, "asked")]
    order = sorted(met, key=lambda name: _middle(rounds, name, "each") or math.inf)
    cost = Table(
        "What one more held connection takes, on the server's side",
        _COST,
        [row_of(rounds, name, _COST, label=name) for name in order],
        f"Slopes of memory over connections held, the least first; ± is half of a 95 % interval. One more: {_one_more(rounds)}: "
        "its processes' memory (PSS), the kernel's objects for its socket, where they are known to ± 10 %, and what is left "
        "over: its task and stack in the kernel, page tables, what processes share. Place in pool: "
        f"{_place(rounds)}, all there before the first connection; in all: with that.",
    )
    state = Table(
        "What it was when it held them",
        _STATE,
        [row_of(rounds, name, _STATE, label=name) for name in ("iterative", *order) if of_step(rounds, name, "asked")],
        f"Memory with none held: {_at_start(rounds)}; with all: of its processes alone (PSS). p99: of a heartbeat, from due to "
        "answered.",
    )
    bars = [name for name in order if _middle(rounds, name, "user") is not None]
    charts = [_chart(rounds, bars)] if bars else []
    tables = [one for one in (cost, state, _stops_table(plan, rounds, order)) if one.rows]
    return Conclusions(tables, charts, [*_claims(rounds)])


def _ungrouped(rounds: list[Round]) -> bool:
    """Whether some server had no control group that counts."""
    return any(one.get("charge") is None for one in rounds if one["step"] in _SHAPES)


def _one_more(rounds: list[Round]) -> str:
    group = "what is charged for it to the server's control group, and its TCP socket where cgroup v1 leaves that out"
    host = "what the host takes for it, less asyncli's memory and the kernel's for asyncli's end"
    return f"{group}; where there was no such group, {host}" if _ungrouped(rounds) else group


def _place(rounds: list[Round]) -> str:
    if any(one.get("alone") is not None for one in rounds):
        return "what stood at the start, less what the smallest pool takes, by the processes or threads that it has more"
    return "what stood at the start, the program itself included, by its processes or threads"


def _at_start(rounds: list[Round]) -> str:
    group = "what is charged to its control group then"
    return f"{group}, or where it had none its processes' (PSS)" if _ungrouped(rounds) else group


def _middle(rounds: list[Round], step: str, key: str) -> float | None:
    values = of_step(rounds, step, key)
    return statistics.median(values) if values else None


def _chart(rounds: list[Round], names: list[str]) -> Chart:
    def bar(label: str, key: str, times: int = 1) -> Line:
        """One for each server of which it is known."""
        known = [(float(at), value) for at, name in enumerate(names) if (value := _middle(rounds, name, key)) is not None]
        return Line(label, [at for at, _ in known], [times * value for _, value in known])

    parts = [
        bar("its processes", "user"),
        bar("kernel, both ends of the socket", "socket", 2),
        bar("in all on the server's side, with its place in a pool", "each"),
    ]
    return Chart("bars", "Memory of a held connection", "", "bytes a connection", parts, names)


def _stops_table(plan: dict[str, Any], rounds: list[Round], order: list[str]) -> Table:
    limit = plan["limit_mib"] * _MIB
    rows, reasons = [], []
    for name in order:
        of_it = [one for one in rounds if one["step"] == name]
        ladders = [stops(_SHAPES[name], one, limit) for one in of_it]
        memories = [stop for one in of_it if (stop := memory_stop(one, limit)) is not None]
        # Where memory cannot be reckoned, it may be what ends first.
        firsts = [ladder[0] for one, ladder in zip(of_it, ladders, strict=True) if _sure(one)]
        values = {
            "least": [stop.least for stop in memories if stop.least is not None],
            "memory": [stop.number for stop in memories],
            "most": [stop.most for stop in memories if stop.most is not None],
            "cut": of_step(rounds, name, "cut"),
            "held_most": of_step(rounds, f"{name}, pushed", "most"),
        }
        for key, word in (("descriptors", "descriptors"), ("ids", "ids")):
            values[key] = [stop.number for ladder in ladders for stop in ladder if stop.words.startswith(word)]
        if firsts:
            reasons.append(f"{name} by {statistics.mode(stop.words for stop in firsts)}")
        else:
            reasons.append(f"{name} not known, its slope being too wide")
        rows.append(Row(name, values))
    return Table(
        f"The most that each would hold in {_mib(limit)}, by each thing that would stop it",
        _STOPS,
        rows,
        f"What stops each first: {'; '.join(reasons) or 'not known'}. Reckoned, not measured. Memory: the limit, less what is "
        "there with none held, by what a connection takes in all, with its 95 % interval; a pool is taken to be as large as "
        "then fits. Descriptors, and ids of processes or threads: of this host. Cut for: its slots or pool in this test, which "
        "a setting changes. When pushed: measured, in a control group with that limit on what is charged to it"
        f"{_uncharged(rounds)}.",
    )


def _uncharged(rounds: list[Round]) -> str:
    """Why more fit than the reckoning has room for, where the limit does not see everything."""
    seen = [one for one in rounds if one.get("charge") and one.get("own")]
    if any(one["own"] - one["charge"] > one["own_half"] for one in seen):
        return ", which are no TCP sockets here (cgroup v1): more fit then than are reckoned with them"
    return ""


def _mib(limit_bytes: float) -> str:
    return f"{limit_bytes / _MIB:,.0f} MiB"


def _claims(rounds: list[Round]) -> Iterator[Claim]:
    yield from _tenth(rounds)
    yield from _sockets(rounds)
    yield from _touched(rounds)
    yield from _more_than_a_thread(rounds)
    yield from _one_at_a_time(rounds)
    for name in _SHAPES:
        yield from _pushed(rounds, name)


def _between(rounds: list[Round], name: str) -> Interval | None:
    """Where what a connection takes in all may lie, by the intervals of all rounds' slopes; None where it is not sure."""
    known = [
        (one["each"] - one["own_half"], one["each"] + one["own_half"]) for one in rounds if one["step"] == name and _sure(one)
    ]
    return Interval(min(low for low, _ in known), max(high for _, high in known)) if known else None


def _by(one: Interval, other: Interval) -> Interval:
    return Interval(one.low / other.high, one.high / other.low)


_TENTH = 0.1


def _tenth(rounds: list[Round]) -> Iterator[Claim]:
    known = {name: both for name in _SHAPES if (both := _between(rounds, name)) is not None}
    for kind in ("process", "thread"):
        pairs = {
            (event, other): _by(known[event], known[other])
            for event in known
            for other in known
            if _SHAPES[event].holds == "event" and _SHAPES[other].holds == kind
        }
        if not pairs:
            continue
        sides = [one.below(_TENTH) for one in pairs.values()]
        near, far = max(pairs, key=lambda pair: pairs[pair].high), min(pairs, key=lambda pair: pairs[pair].low)
        said = [
            f"{event} takes {pairs[event, other].words(_TENTH)} of what {other} does"
            for event, other in dict.fromkeys((near, far))
        ]
        why = (
            f"{'; at the other end '.join(said)}. Pairs that are below: {sides.count(True)} of {len(sides)}; that are not: "
            f"{sides.count(False)}; that cannot be told: {sides.count(None)}. {_SLOPES} Rule: below {_TENTH}, each pair."
        )
        text = f"A server of events holds a connection for less than a tenth of what a {kind} for each takes."
        yield Claim(text, verdict(sides), why)


_SLOPES = "By the 95% intervals of the slopes."
# The kernel takes its objects in slabs, and each CPU keeps some of them: some hundred kB that come and go, and so hundreds of
# bytes of each of a thousand sockets. No interval of a ladder of minutes shows that.
_ENOUGH_SOCKETS = 5_000


def _sockets(rounds: list[Round]) -> Iterator[Claim]:
    ends = {
        name: (_middle(rounds, name, "kernel"), _middle(rounds, name, "kernel_half") or 0.0)
        for name in _SHAPES
        if (_middle(rounds, name, "held") or 0.0) >= _ENOUGH_SOCKETS
    }
    # With a wider interval it is of other programs' files as well.
    known = {name: Interval(end - half, end + half) for name, (end, half) in ends.items() if end and half <= 0.1 * end}
    if len(known) < 2:
        return
    low, high = min(known, key=lambda name: known[name].high), max(known, key=lambda name: known[name].low)
    # The least that the two furthest are apart by, and the most that any two can be.
    least, most = min(one.low for one in known.values()), max(one.high for one in known.values())
    apart = Interval(max(1.0, known[high].low / known[low].high), most / least)
    words = (
        f"An end takes {known[low].words()} B ({low}) to {known[high].words()} B ({high}), the mean of both ends, of servers "
        f"that held {_ENOUGH_SOCKETS:,} or more: {apart.words(WORTH)} times apart"
    )
    claim = "What the kernel keeps for a socket does not depend on the server."
    yield claimed(claim, [Case(words, apart.below(WORTH))], f"less than {WORTH:g} times", more=_SLOPES.removesuffix("."))


def _touched(rounds: list[Round]) -> Iterator[Claim]:
    takes = [
        (one["own"], one.get("own_half") or 0.0, one["stack_bytes"])
        for one in rounds
        if one["step"] == "thread" and one.get("own") and one.get("stack_bytes")
    ]
    if not takes:
        return
    share = Interval(
        min((own - half) / reserved for own, half, reserved in takes),
        max((own + half) / reserved for own, half, reserved in takes),
    )
    words = (
        f"{span([own for own, *_ in takes], ',.0f')} B in all, {share.words(_TENTH, 1)} of the {format_bytes(takes[0][2])} that "
        "its stack reserves"
    )
    # What a stack reserves is the user's choice (ulimit -s): of a small one a thread may touch much.
    side = True if share.below(_TENTH) else False if share.above(1) else None
    yield claimed(
        "A thread for each connection takes of its stack what it touched, not what is reserved.", [Case(words, side)],
        f"below {_TENTH} of what is reserved; does not hold above all of it", more=_SLOPES.removesuffix("."),
    )  # fmt: skip


def _more_than_a_thread(rounds: list[Round]) -> Iterator[Claim]:
    process, thread = _between(rounds, "fork"), _between(rounds, "thread")
    if process and thread:
        known = _by(process, thread)
        case = Case(f"{known.words(2)} times", known.above(2))
        claim = "A process for each connection takes more than twice what a thread takes."
        yield claimed(claim, [case], "above 2 times", more=_SLOPES.removesuffix("."))


# What a client sees of a server that has not come to it.
_WAITING = {"heartbeat_timeout", "connect_timeout"}


def _one_at_a_time(rounds: list[Round]) -> Iterator[Claim]:
    of_it = [one for one in rounds if one["step"] == "iterative" and one.get("held") is not None]
    if of_it:
        others = {cause for one in of_it for cause in one.get("causes") or ()}
        words = (
            f"{span([one['held'] for one in of_it], '.0f')} of {max(one['asked'] for one in of_it):.0f} had answers to the end"
        )
        if others:
            words += f", the others were {', '.join(_CAUSES.get(one, one) for one in sorted(others))}"
        side = in_every_round(one["held"] == 1 and {*(one.get("causes") or ())} <= _WAITING for one in of_it)
        yield claimed(
            "The iterative server holds one connection, and all others wait for its end.", [Case(words, side)],
            "one in every round, and of the others none refused, closed or reset",
            more="It has no slope, and no row in the tables of cost",
        )  # fmt: skip


# What a push may differ by from what was reckoned.
_RECKONED = (0.8, 1.25)


def _pushed(rounds: list[Round], name: str) -> Iterator[Claim]:
    of_it = [one for one in rounds if one["step"] == f"{name}, pushed"]
    if not of_it:
        return
    shares = [one["most"] / one["reckoned"] for one in of_it if one["reckoned"]]
    reckoned = f"{format_count(of_it[-1]['reckoned'])} reckoned" + (f" ({span(shares)} of it)" if shares else "")
    yield claimed(
        f"Pushed in {_mib(of_it[0]['limit'])}, {name} holds what was reckoned, and no more.",
        [Case(f"{reckoned}; {why_it_stopped(of_it[-1])}", in_every_round(map(_as_reckoned, of_it)))],
        f"in every round {_RECKONED[0]} to {_RECKONED[1]} of it, and want of memory stopped it: a process killed, memory refused "
        "it, or its own word",
    )  # fmt: skip


def _as_reckoned(one: Round) -> Side:
    """Held as many as was reckoned. What something else than its limit of memory stopped could hold more than it was seen to."""
    if not one["reckoned"]:
        return None
    least, most = _RECKONED
    share = one["most"] / one["reckoned"]
    if share > most:
        return False
    for_memory = one["stopped"] and (one["killed"] or one["refused"] or "memory" in one["complaint"])
    return share >= least if for_memory else None


EXPERIMENT = Experiment(
    name="holding",
    title="What each server takes to hold a connection",
    question="The same soak against every server of the lab: what does one more held connection take, how many fit, and why "
    "does it stop there?",
    source="none: the same soak against all of them is ours, and the claims are what is commonly expected",
    defaults={
        "rounds": 2, "connections": 10_000, "members": 1_000, "rate": 2_000, "plateaus": 5, "rest": "3s", "keepalive": "10s",
        "hold": "4s", "baseline": "3s", "limit_mib": 48, "push": [name for name, shape in _SHAPES.items() if not shape.pool],
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
