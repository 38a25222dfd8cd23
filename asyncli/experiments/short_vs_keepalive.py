"""Compares a connection per request with persistent connections: the server's cost, and the latency
tail.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from asyncli.analysis.bench_result import BenchResult, evaluate_bench
from asyncli.collect.processes import ServerTree
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context, figures, fitness_of
from asyncli.experiments.counters import count_syscalls, read_io, read_tcp, since
from asyncli.experiments.judging import LESS, MORE, claimed, limited, not_judged
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
from asyncli.lab import choose
from asyncli.lab.apache import page
from asyncli.lab.base import LabServer
from asyncli.model.benchplan import BenchRun
from asyncli.model.metrics import SERVER_PROCESSES, SERVER_PSS_BYTES
from asyncli.model.samples import series

#: Setup -> lab server. Few: one child for two connections. From 5: Apache's default numbers of
#: children, an access log, and KeepAlive Off for short connections.
_SETUPS = {
    "Apache": "apache-prefork",
    "Apache, few children": "apache-prefork",
    "Apache, from 5 children": "apache-prefork",
    "nginx": "nginx",
}
_FULL, _FEW, _FROM_FIVE, _NGINX = _SETUPS
#: Way -> whether each request has its own connection.
_WAYS = {"short": True, "kept alive": False}
_SHORT, _KEPT = _WAYS
# Suffix of the steps that count system calls.
_CALLS = ": system calls"
# A child that closes waits for the client's close (lingering close), and serves no other client
# meanwhile.
_SPARE_CHILDREN = 8
# The source's; no connection is idle here.
_KEEPALIVE_TIMEOUT_S = 15
# A bound for the pass under strace, which ends after a number of requests.
_TRACE_LIMIT = "60s"
_TOP_CALLS = 10


def _step(setup: str, way: str) -> str:
    return f"{setup}, {way}"


_STEPS = {setup: (_step(setup, _KEPT), _step(setup, _SHORT)) for setup in _SETUPS}
_SOURCE = {
    _step(_FULL, _SHORT): {
        "per_s": "5,242.33",
        "mean_ms": "18",
        "sd_ms": "5.7",
        "max_ms": "101",
        "connect_ms": "8",
    },
    _step(_FULL, _KEPT): {
        "per_s": "16,804.02",
        "mean_ms": "5",
        "sd_ms": "22.5",
        "max_ms": "1,409",
        "connect_ms": "0",
        "kept": "990,148 of 1,000,000",
    },
}
# Calls of one child during "about 10,000" requests: on 9,997 short connections, or 100 persistent
# ones of 100 requests.
_SOURCE_CALLS = {
    name: {_SHORT: f"{short:,} / about 10,000", _KEPT: f"{kept:,} / about 10,000"}
    for name, short, kept in (
        ("all", 375_310, 288_408),
        ("accept4", 9_997, 100),
        ("shutdown", 9_997, 100),
        ("getsockname", 9_997, 100),
        ("fcntl", 19_994, 200),
        ("close", 29_988, 19_941),
        ("read", 67_716, 49_720),
    )
}
_SPEED = [
    Column("per_s", "requests/s", "/s"),
    Column("mean_ms", "mean", "ms"),
    Column("sd_ms", "sd", "ms"),
    Column("p50_ms", "p50", "ms"),
    Column("p99_ms", "p99", "ms"),
    Column("p999_ms", "p99.9", "ms"),
    Column("max_ms", "max", "ms"),
    Column("connect_ms", "connect, part of mean", "ms"),
    Column("kept", "kept alive", "share"),
    Column("each", "max. requests per connection"),
]
_COST = [
    Column("server_us", "server CPU", "us"),
    Column("client_us", "asyncli CPU", "us"),
    Column("wire_bytes", "bytes above TCP", "B"),
    Column("segments", "TCP segments"),
    Column("io_calls", "read and write calls"),
    Column("disk_bytes", "disk", "B"),
]
_MEMORY = [
    Column("pss_begun_bytes", "PSS, idle", "B"), Column("pss_bytes", "PSS, at the end", "B"),
    Column("processes", "processes, at the end"),
]  # fmt: skip
_COST_CAPTION = (
    "Bytes above TCP: in both directions, without TCP's headers and handshakes. TCP segments: the "
    "whole host's, both ends. Read and write calls are unknown for nginx, which uses recv(2)."
)


class ShortPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    duration: str = "8s"
    connections: Count = 100
    page_bytes: Count = 1_456
    keepalive_requests: Count = 100
    traced_requests: Count = 10_000


async def _run(context: Context) -> None:
    for number in range(context.plan.rounds):
        for setup in rotated([*_SETUPS], number):
            server = _SETUPS[setup]
            # In alternating order: short connections leave TIME_WAIT behind.
            for way in rotated([*_WAYS], number):
                if context.wanted(server) and (
                    setup != _FEW or context.plan.connections > 1
                ):  # half a child is none
                    with context.step(server, server):
                        await _measure(context, setup, way, number)
    with context.step("strace", "the count of system calls"):
        for setup in (_FULL, _NGINX):
            for way in _WAYS:
                if context.wanted(_SETUPS[setup]):
                    await _count_calls(context, setup, way)


def _children(plan: ShortPlan, setup: str) -> int:
    if setup == _FEW:
        return plan.connections // 2
    return plan.connections + _SPARE_CHILDREN


def _server(plan: ShortPlan, setup: str, way: str) -> LabServer:
    limits = {
        "keepalive_requests": plan.keepalive_requests,
        "keepalive_timeout_s": _KEEPALIVE_TIMEOUT_S,
    }
    if setup == _NGINX:
        text = page(plan.page_bytes).decode()
        return choose(
            "nginx",
            connections=plan.connections + 64,
            body=text,
            content_type="text/html",
            **limits,
        )
    options = {
        "workers": _children(plan, setup),
        "page_bytes": plan.page_bytes,
        "one_listener": True,
    }
    if setup == _FROM_FIVE:
        options |= {"grows": True, "access_log": True, "keepalive": not _WAYS[way]}
    return choose("apache-prefork", connections=plan.connections, **options, **limits)


async def _measure(context: Context, setup: str, way: str, number: int) -> None:
    plan = context.plan
    async with _server(plan, setup, way) as server:
        before = read_io(server.pid) | read_tcp()
        run = await context.bench_run(
            server, connections=plan.connections, duration=plan.duration, short=_WAYS[way]
        )
        used = since(read_io(server.pid) | read_tcp(), before)
    result = evaluate_bench(run)
    measured = {**figures(result), **_memory(run), **_per_request(result, used, setup)}
    context.add(_step(setup, way), number, **measured)
    outcome = f"{measured['per_s']:,.0f} requests a second"
    if measured["max_ms"] is not None:
        outcome += f", the slowest {measured['max_ms']:,.0f} ms"
    context.report(number, _step(setup, way), outcome)


def _memory(run: BenchRun) -> dict[str, Any]:
    """Memory and number of the server's processes."""
    pss = series(run.samples, SERVER_PSS_BYTES)
    processes = series(run.samples, SERVER_PROCESSES)
    return {
        "pss": list(pss.rows()),
        "pss_begun_bytes": pss.first(),
        "pss_bytes": pss.last(),
        "processes": processes.last(),
    }


def _per_request(result: BenchResult, used: Mapping[str, float], setup: str) -> dict[str, Any]:
    """I/O per request, and the use of connections."""
    total = result.requests.total
    if not total:
        return {}
    requests_each = result.connections.requests_each
    connect = result.times_ms["connect"]
    per_request = {name: count / total for name, count in used.items()}
    return {
        "connect_ms": connect and connect.mean * result.connections.opened / total,
        "kept": result.requests.keepalive / total,
        "each": requests_each and requests_each["max"],
        "wire_bytes": (result.bytes + result.transfer.sent) / total,
        "segments": per_request.get("segments"),
        "disk_bytes": per_request.get("disk_bytes"),
        # nginx reads by recv(2), which /proc/PID/io does not count.
        "io_calls": None if setup == _NGINX else per_request.get("io_calls"),
    }


async def _count_calls(context: Context, setup: str, way: str) -> None:
    """Count system calls, in a separate pass: tracing slows the server."""
    plan = context.plan
    values = {"requests": plan.traced_requests, "duration": _TRACE_LIMIT, "short": _WAYS[way]}
    async with _server(plan, setup, way) as server:
        pids = [process.pid for process in ServerTree([server.pid])() if not process.ended]
        async with count_syscalls(pids) as calls:
            result = await context.bench(server, connections=plan.connections, **values)
    total = result.requests.total
    all_calls = sum(calls.values())
    context.add(
        _step(setup, way) + _CALLS,
        0,
        calls=calls,
        requests=total,
        opened=result.connections.opened,
        **fitness_of(result),
        all=all_calls / total if total else None,
    )
    context.say(f"{_step(setup, way)}: {all_calls:,} system calls for {total:,} requests")


def conclude(plan: ShortPlan, rounds: Rounds) -> Conclusions:
    """The tables, the charts and the source's claims."""
    steps = [_step(setup, way) for setup in _SETUPS for way in _WAYS]
    caption = (
        f"{plan.connections} connections at a time. Apache has {_children(plan, _FULL)} children, "
        f"or {_children(plan, _FEW)} in the setup with few, all started before the first "
        f"connection. In the setup from 5 children it forks up to {_children(plan, _FROM_FIVE)} "
        "on demand, writes an access log, and has KeepAlive Off for short connections. A child "
        "serves one connection until it ends; the first request of another waits for that. The "
        "source's mean and connect are whole milliseconds, as ab prints them."
    )
    busy = sorted(limited(rounds))
    if busy:
        caption += f" asyncli itself was the limit in {'; '.join(busy)}: the server can do more."
    tables = [
        rounds.table("Short against kept alive", _SPEED, steps, caption, _SOURCE),
        rounds.table("Per request", _COST, steps, _COST_CAPTION),
        rounds.table(
            "Memory of the server's processes",
            _MEMORY,
            steps,
            "For Apache from 5 children, idle is with these 5.",
        ),
        *(_calls_table(rounds, setup) for setup in (_FULL, _NGINX)),
    ]
    return Conclusions(tables, [*_charts(rounds)], [*_claims(rounds)])


def _calls_table(rounds: Rounds, setup: str) -> FigureTable:
    """A table of the most frequent system calls, and of the source's."""
    calls_by_way = {way: _calls_of(rounds, _step(setup, way)) for way in _WAYS}
    highest: dict[str, float] = {}
    for calls in calls_by_way.values():
        for name, count in calls.items():
            highest[name] = max(highest.get(name, 0.0), count)
    names = sorted(highest, key=lambda name: (-highest[name], name))[: _TOP_CALLS + 1]
    source = _SOURCE_CALLS if setup == _FULL and names else {}
    rows = []
    for name in dict.fromkeys([*names, *source]):
        values = {way: [calls.get(name, 0.0)] for way, calls in calls_by_way.items() if calls}
        rows.append(FigureRow(name, values, source.get(name, {})))
    caption = f"All processes of {setup}, counted by strace in a separate pass without timing."
    if source:
        caption += " The source's: calls of one child / requests."
    columns = [Column(way, way) for way in _WAYS]
    return FigureTable(f"System calls per request: {setup}", columns, rows, caption)


def _calls_of(rounds: Rounds, step: str) -> dict[str, float]:
    """Calls per request by name, and their sum ``all``; empty if none were counted."""
    for traced in rounds.in_step(step + _CALLS):
        if traced.get("calls") and traced.get("requests"):
            calls = {}
            for name, count in traced["calls"].items():
                calls[name] = count / traced["requests"]
            return {"all": sum(calls.values()), **calls}
    return {}


def _charts(rounds: Rounds) -> Iterator[Chart]:
    for key, title, unit in (
        ("per_s", "Throughput", "requests a second"),
        ("server_us", "The server's CPU", "µs a request"),
    ):
        lines = [
            bars(way, [rounds.median(_step(setup, way), key) for setup in _SETUPS]) for way in _WAYS
        ]
        yield Chart("bars", title, "", unit, lines, [*_SETUPS])
    quantiles = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
    steps = [_step(setup, way) for setup in _SETUPS for way in _WAYS]
    lines = [bars(step, [rounds.median(step, key) for key in quantiles.values()]) for step in steps]
    yield Chart("bars", "The tail", "", "latency, ms", lines, [*quantiles])
    lines = [_over_time(rounds, step) for step in steps]
    yield Chart(
        "lines",
        "Memory of the server's processes",
        "seconds since the first connect",
        "PSS, MB",
        lines,
        caption="Medians of the rounds, each with a freshly started server.",
    )


def _over_time(rounds: Rounds, step: str) -> ChartLine:
    by_second: dict[int, list[float]] = {}
    for measurement in rounds.in_step(step):
        for t_s, value in measurement.get("pss") or ():
            by_second.setdefault(round(t_s), []).append(value / 1e6)
    seconds = sorted(by_second)
    medians = [statistics.median(by_second[second]) for second in seconds]
    return ChartLine(step, [float(second) for second in seconds], medians)


def _claims(rounds: Rounds) -> Iterator[Claim]:
    """The source's claims, judged by the ratio of kept alive to short in the same round; each
    measured setup is a case.
    """
    # If asyncli was the limit, the speed is not the server's, but its CPU per request is.
    busy = {setup for setup, steps in _STEPS.items() if limited(rounds) & {*steps}}
    judged = {setup: steps for setup, steps in _STEPS.items() if setup not in busy}
    kinds = {
        "wire_bytes": "bytes above TCP",
        "segments": "TCP segments",
        "io_calls": "read and write calls",
    }
    calls = {setup: (kept + _CALLS, short + _CALLS) for setup, (kept, short) in _STEPS.items()}
    left_out = not_judged(busy)
    for claim, rule, cases, note in (
        (
            "Persistent connections carry more requests a second (the source: 3.21 times).",
            MORE,
            rounds.ratios(judged, "per_s"),
            left_out,
        ),
        (
            "Persistent connections cost the server less CPU per request.",
            LESS,
            rounds.ratios(_STEPS, "server_us"),
            "",
        ),
        *(
            (
                f"Persistent connections cost less I/O per request ({words}).",
                LESS,
                rounds.ratios(_STEPS, key),
                "",
            )
            for key, words in kinds.items()
        ),
        # Only this setup writes to disk.
        (
            "Persistent connections cost less I/O per request (disk).",
            LESS,
            rounds.ratios({_FROM_FIVE: _STEPS[_FROM_FIVE]}, "disk_bytes"),
            "",
        ),
        (
            "Persistent connections cost fewer system calls per request (the source: 0.77 times).",
            LESS,
            rounds.ratios(calls, "all"),
            "",
        ),
        ("Persistent connections cost more memory.", MORE, rounds.ratios(_STEPS, "pss_bytes"), ""),
        (
            "Persistent connections lower the mean latency (in the source's figures, not its "
            "text: 0.28 times).",
            LESS,
            rounds.ratios(judged, "mean_ms"),
            left_out,
        ),
        (
            "Persistent connections raise the latency tail (in the source's figures, not its "
            "text: 14 times at the maximum; here p99.9).",
            MORE,
            rounds.ratios(judged, "p999_ms"),
            left_out,
        ),
    ):
        yield from claimed(claim, rule, cases, note)


EXPERIMENT = Experiment(
    name="short-vs-keepalive",
    title="Short against persistent connections",
    question=(
        "What does a server gain when a connection serves many requests, and what does it lose?"
    ),
    write_up='"Building a fast web: long connections of web servers", cutesource',
    source=(
        "ab -c 100 -n 1000000 with and without -k on Apache 2.0.63 prefork's page of 1,456 bytes, "
        "and strace -c of one child"
    ),
    plan=ShortPlan,
    quick={"rounds": 1, "duration": "2s", "traced_requests": 2_000},
    run=_run,
    conclude=conclude,
    servers=tuple(dict.fromkeys(_SETUPS.values())),
)
