"""A connection for each request, or one for many: what either costs the server, and where the tail of the second comes from."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from asyncli.analysis.bench_result import Benched, benched
from asyncli.benchplan import BenchRun
from asyncli.collect.processes import ServerTree
from asyncli.core.histogram import Histogram, bounds
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, figures, fitness_of
from asyncli.experiments.counters import read_tcp, read_usage, since
from asyncli.experiments.judging import limited
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Round,
    Rounds,
    bars,
    turned,
    usable,
)
from asyncli.experiments.short_vs_keepalive_claims import CALLS, FEW, FULL, KEPT, NGINX, SETUPS, SHORT, TWO, WAYS, judge, step_of
from asyncli.experiments.strace import counting
from asyncli.lab import choose
from asyncli.lab.apache import page
from asyncli.lab.program import LabServer
from asyncli.metrics import KERNEL_TCP_TW, SERVER_PSS_BYTES

# A child that closes a connection waits for the client's end of it (lingering close), and meanwhile serves nobody.
_SPARE_CHILDREN = 8
# As in the source: a child gives up an idle connection after so long. None is idle here.
_KEEPALIVE_TIMEOUT_S = 15
# The pass under strace ends by its number of requests; this is for a host on which that would take for ever.
_LONGEST_TRACE = "60s"
_TIMES_MEDIAN = 10
_MOST_CALLS = 10


_SOURCE = {
    step_of(FULL, SHORT): {"per_s": 5_242.33, "mean_ms": 18.0, "sd_ms": 5.7, "max_ms": 101.0, "connect_ms": 8.0},
    step_of(FULL, KEPT): {
        "per_s": 16_804.02, "mean_ms": 5.0, "sd_ms": 22.5, "max_ms": 1_409.0, "connect_ms": 0.0, "kept": 990_148 / 1_000_000,
    },
}  # fmt: skip
# Of one child, over "about 10,000" requests: it accepted 9,997 short connections, or 100 persistent ones of 100 requests.
_SOURCE_CALLS = {
    name: {SHORT: short / 10_000, KEPT: kept / 10_000}
    for name, short, kept in (
        ("all", 375_310, 288_408), ("accept4", 9_997, 100), ("shutdown", 9_997, 100), ("getsockname", 9_997, 100),
        ("fcntl", 19_994, 200), ("close", 29_988, 19_941), ("read", 71_617, 49_572),
    )
}  # fmt: skip

_SPEED = [
    Column("per_s", "requests/s", "/s"), Column("mean_ms", "mean", "ms"), Column("sd_ms", "sd", "ms"),
    Column("p99_ms", "p99", "ms"), Column("max_ms", "max", "ms"), Column("connect_ms", "connect, of the mean", "ms"),
    Column("kept", "kept alive", "share"), Column("each", "most requests a connection"),
]  # fmt: skip
_COST = [
    Column("server_us", "server CPU", "us"), Column("client_us", "asyncli CPU", "us"),
    Column("wire_bytes", "bytes above TCP", "B"), Column("segments", "TCP segments"), Column("io_calls", "read and write calls"),
    Column("waits", "waits"), Column("preemptions", "preemptions"),
]  # fmt: skip
_MEMORY = [
    Column("pss_begun_bytes", "PSS, idle", "B"), Column("pss_bytes", "PSS, at the end", "B"),
    Column("tw", "sockets in TIME_WAIT"),
]  # fmt: skip
_TAIL = [
    Column("p50_ms", "p50", "ms"), Column("p999_ms", "p99.9", "ms"),
    Column("max_ms", "max", "ms"), Column("slow", "slower than 10 medians, per 1,000"), Column("slow_ms", "their mean", "ms"),
    Column("first", "first of a connection, per 1,000"), Column("queue_ms", "wait for a child, by Little's law", "ms"),
    Column("cpu_wait_ms", "wait for a CPU, of the mean", "ms"),
]  # fmt: skip
_COST_CAPTION = (
    "Bytes above TCP: both ways, without its headers and handshakes. TCP segments are those of the whole host, both ends. Read "
    "and write calls are not counted of nginx, which receives by recv(2). Waits and preemptions: the server's context switches."
)
_MEMORY_CAPTION = (
    "PSS is of the server's processes. TIME_WAIT is what the kernel keeps of a closed connection for a minute: of the whole "
    "host, so of the steps before too."
)
_TAIL_CAPTION = (
    "A child serves one connection until that ends; the others' first requests wait in the listen queue. By Little's law that "
    "wait is the connections without a child, divided by the connections opened a second. With two ports to listen on children "
    "accept in turns, under a lock, and the one whose turn it is waits for a CPU first: so does each new connection. The wait "
    "for a CPU is that of the server's processes that were ready to run (schedstat)."
)
_CALLS_COLUMNS = [Column(SHORT, SHORT), Column(KEPT, KEPT)]


async def _run(context: Context) -> None:
    plan = context.plan
    for number in range(plan["rounds"]):
        for setup in turned([*SETUPS], number):
            server = SETUPS[setup]
            # What short connections leave in TIME_WAIT meets the kept ones in every other round.
            for way in turned([*WAYS], number):
                if context.wanted(server) and (setup != FEW or plan["connections"] > 1):  # one has no half
                    with context.step(server, server):
                        await _measure(context, setup, way, number)
    with context.step("strace", "the count of system calls"):
        for setup in (FULL, NGINX):
            for way in WAYS:
                if context.wanted(SETUPS[setup]):
                    await _count_calls(context, setup, way)


def _children(plan: dict[str, Any], setup: str) -> int:
    many: int = plan["connections"]
    return many // 2 if setup == FEW else many + _SPARE_CHILDREN


def _server(plan: dict[str, Any], setup: str) -> LabServer:
    limits = {"keepalive_requests": plan["keepalive_requests"], "keepalive_timeout_s": _KEEPALIVE_TIMEOUT_S}
    if setup == NGINX:
        text = page(plan["page_bytes"]).decode()
        return choose("nginx", connections=plan["connections"] + 64, body=text, content_type="text/html", **limits)
    children = _children(plan, setup)
    cut = {"workers": children, "page_bytes": plan["page_bytes"], "one_listener": setup != TWO}
    return choose("apache-prefork", connections=plan["connections"], **cut, **limits)


async def _measure(context: Context, setup: str, way: str, number: int) -> None:
    plan = context.plan
    async with _server(plan, setup) as server:
        before = read_usage(server.pid) | read_tcp()
        run = await context.bench_run(server, connections=plan["connections"], duration=plan["duration"], short=WAYS[way])
        used = since(read_usage(server.pid) | read_tcp(), before)
    found = benched(run)
    children = None if setup == NGINX else _children(plan, setup)
    mine = {**figures(found), **_memory(run), **_a_request(found, used, setup), **_slow(run.total.latency_us)}
    if way == KEPT:
        mine |= _queue(found, children)
    context.add(step_of(setup, way), number, **mine, children=children)
    slowest = f", the slowest {mine['max_ms']:,.0f} ms" if mine["max_ms"] is not None else ""
    context.tell(number, step_of(setup, way), f"{mine['per_s']:,.0f} requests a second{slowest}")


def _memory(run: BenchRun) -> dict[str, Any]:
    """Of the server's processes, and what the kernel keeps of closed connections."""
    pss = [(one.t_s, one.values[SERVER_PSS_BYTES]) for one in run.samples if SERVER_PSS_BYTES in one.values]
    return {
        "pss": pss,
        "pss_begun_bytes": pss[0][1] if pss else None,
        "pss_bytes": pss[-1][1] if pss else None,
        "tw": run.samples[-1].values.get(KERNEL_TCP_TW) if run.samples else None,
    }


def _a_request(found: Benched, used: dict[str, float], setup: str) -> dict[str, Any]:
    """What was read, written and waited, for each request."""
    total = found.requests.total
    most, connect = found.connections.requests_each, found.times_ms["connect"]
    each = {name: count / total for name, count in used.items()} if total else {}
    return {
        "server_us": found.server.cpu_us_per_request,
        "connect_ms": connect.mean * found.connections.opened / total if connect and total else None,
        "kept": found.requests.keepalive / total if total else None,
        "each": most and most["max"],
        "wire_bytes": (found.bytes.received + found.bytes.sent) / total if total else None,
        **{name: each.get(name) for name in ("segments", "disk_bytes", "waits", "preemptions")},
        # nginx reads by recv(2), which /proc/PID/io does not count.
        "io_calls": None if setup == NGINX else each.get("io_calls"),
        "cpu_wait_ms": each["queued_ns"] / 1e6 if "queued_ns" in each else None,
    }


def _slow(latency_us: Histogram) -> dict[str, Any]:
    """How many of 1,000 requests are far from the median, and their mean."""
    share, mean_us = slower(latency_us, _TIMES_MEDIAN)
    return {"slow": None if share is None else 1000 * share, "slow_ms": None if mean_us is None else mean_us / 1000}


def _queue(found: Benched, children: int | None) -> dict[str, Any]:
    """How many of 1,000 requests are a connection's first, and how long one waits for a child.

    Little's law, W = L / lambda: all connections but those that have a child (L) wait, and as many leave the queue a second
    as are opened (lambda).
    """
    total, opened = found.requests.total, found.connections.opened
    waiting = None if children is None else max(0, found.plan.connections - children)
    return {
        "first": 1000 * opened / total if total else None,
        "queue_ms": 1000 * waiting * found.duration_s / opened if waiting is not None and opened else None,
    }


def slower(histogram: Histogram, times: float) -> tuple[float | None, float | None]:
    """The share of records above ``times`` medians, and their mean; None where there is none. Pure."""
    median = histogram.quantile(0.5)
    if median is None:
        return None, None
    beyond = [(sum(bounds(key)) / 2, count) for key, count in histogram.items() if bounds(key)[0] > times * median]
    many = sum(count for _, count in beyond)
    return many / histogram.count, sum(value * count for value, count in beyond) / many if many else None


async def _count_calls(context: Context, setup: str, way: str) -> None:
    """A pass of its own: what is traced is slow, and its times say nothing."""
    plan = context.plan
    values = {"requests": plan["traced_requests"], "duration": _LONGEST_TRACE, "short": WAYS[way]}
    async with _server(plan, setup) as server:
        pids = [one.pid for one in ServerTree([server.pid])() if not one.ended]
        async with counting(pids) as calls:
            found = await context.bench(server, connections=plan["connections"], **values)
    total, all_calls = found.requests.total, sum(calls.values())
    context.add(
        step_of(setup, way) + CALLS, 0, calls=calls, requests=total, opened=found.connections.opened,
        **fitness_of(found), all=all_calls / total if total else None,
    )  # fmt: skip
    context.say(f"{step_of(setup, way)}: {all_calls:,} system calls for {total:,} requests")


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its tables and pictures, and what they say of the source's claims."""
    rounds = usable(measured)
    setups = [one for one in SETUPS if any(each["step"] in (step_of(one, SHORT), step_of(one, KEPT)) for each in rounds)]
    steps = [step_of(setup, way) for setup in setups for way in WAYS]
    of_apache = [one for one in steps if not one.startswith(NGINX)]
    tables = [
        _table("Short against kept alive", _SPEED, steps, rounds, _how(plan) + _busy(rounds), _SOURCE),
        _table("For each request", _COST, steps, rounds, _COST_CAPTION),
        _table("Memory", _MEMORY, steps, rounds, _MEMORY_CAPTION),
        _table("The tail, and the queue for a child", _TAIL, of_apache, rounds, _TAIL_CAPTION),
        *(_calls_table(rounds, setup) for setup in (FULL, NGINX)),
    ]
    return Conclusions(
        [one for one in tables if one.rows and any(any(row.values.values()) for row in one.rows)],
        [one for one in _charts(rounds, setups) if one.lines],
        [*judge(rounds)],
    )


def _table(
    title: str,
    columns: list[Column],
    steps: Iterable[str],
    rounds: Rounds,
    caption: str,
    source: dict[str, dict[str, float]] | None = None,
) -> FigureTable:
    return FigureTable(title, columns, [rounds.row(step, columns, (source or {}).get(step)) for step in steps], caption)


def _how(plan: dict[str, Any]) -> str:
    enough, few = _children(plan, FULL), _children(plan, FEW)
    children = f"Apache has {enough} children, or {few} where they are few, all started before the first connection."
    return f"{plan['connections']} connections at a time. {children}"


def _busy(rounds: Rounds) -> str:
    """Where asyncli was the limit, in words."""
    found = sorted(limited(rounds))
    return f" asyncli itself was the limit of {'; '.join(found)}: the server can do more." if found else ""


def _calls_table(rounds: Rounds, setup: str) -> FigureTable:
    """The most frequent system calls, and those that the source has."""
    counted = {way: _calls_of(rounds, step_of(setup, way)) for way in WAYS}
    most = {name: max(one.get(name, 0.0) for one in counted.values()) for one in counted.values() for name in one}
    names = sorted(most, key=lambda name: (-most[name], name))[: _MOST_CALLS + 1]
    source = _SOURCE_CALLS if setup == FULL and names else {}
    rows = [
        FigureRow(name, {way: [one.get(name, 0.0)] for way, one in counted.items() if one}, source.get(name, {}))
        for name in dict.fromkeys([*names, *source])
    ]
    caption = f"Of all processes of {setup}, counted by strace in a pass of its own that timed nothing."
    return FigureTable(f"System calls for each request: {setup}", _CALLS_COLUMNS, rows, caption)


def _calls_of(rounds: Rounds, step: str) -> dict[str, float]:
    """Calls for each request by name, and ``all`` of them; empty where none were counted."""
    for one in rounds:
        if one["step"] == step + CALLS and one.get("calls") and one.get("requests"):
            each = {name: count / one["requests"] for name, count in one["calls"].items()}
            return {"all": sum(each.values()), **each}
    return {}


def _charts(rounds: Rounds, setups: Sequence[str]) -> Iterator[Chart]:
    for key, title, unit in (("per_s", "Throughput", "requests a second"), ("server_us", "The server's CPU", "µs a request")):
        lines = [bars(way, [rounds.median(step_of(setup, way), key) for setup in setups]) for way in WAYS]
        yield Chart("bars", title, "", unit, [one for one in lines if one.ys], list(setups))
    quantiles = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
    shown = [step_of(FULL, SHORT), *(step_of(setup, KEPT) for setup in (FULL, TWO, FEW))]
    lines = [bars(step, [rounds.median(step, key) for key in quantiles.values()]) for step in shown]
    caption = "With few children half the connections wait for one; else there is a child for each."
    yield Chart("bars", "The tail", "", "latency, ms", [one for one in lines if one.ys], list(quantiles), caption)
    # A chart tells seven lines apart; with two ports Apache has the same processes as with one.
    lines = [_over_time(rounds, step_of(setup, way)) for setup in setups if setup != TWO for way in WAYS]
    yield Chart(
        "lines", "Memory of the server's processes", "seconds since the first connect", "PSS, MB",
        [one for one in lines if one.ys], caption="Medians of the rounds. Each begins with a server just started.",
    )  # fmt: skip


def _over_time(rounds: Rounds, step: str) -> ChartLine:
    by_second: dict[int, list[float]] = {}
    for one in rounds:
        if one["step"] == step:
            for t_s, value in one.get("pss") or ():
                by_second.setdefault(round(t_s), []).append(value / 1e6)
    seconds = sorted(by_second)
    return ChartLine(step, [float(one) for one in seconds], [statistics.median(by_second[one]) for one in seconds])


EXPERIMENT = Experiment(
    name="short-vs-keepalive",
    title="Short connections against persistent ones",
    question="What does a server save when a connection serves many requests, and what does it lose?",
    source="ab -c 100 -n 1000000 with and without -k on Apache 2.0.63 prefork's page of 1,456 bytes, and strace -c of one child",
    defaults={
        "rounds": 5, "duration": "8s", "connections": 100, "page_bytes": 1_456, "keepalive_requests": 100,
        "traced_requests": 10_000, "only": [],
    },
    quick={"rounds": 1, "duration": "2s", "traced_requests": 2_000},
    run=_run,
    conclude=conclude,
    servers=tuple(dict.fromkeys(SETUPS.values())),
)  # fmt: skip
