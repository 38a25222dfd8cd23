"""A connection for each request, or one for many: what either costs the server, and where the tail of the second comes from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from asyncli.analysis.bench_result import Benched, benched
from asyncli.benchplan import BenchRun
from asyncli.collect.processes import ServerTree
from asyncli.core.histogram import Histogram, bounds
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, figures, fitness_of
from asyncli.experiments.judging import LESS, WORTH, Case, Interval, claimed, interval, limited, together
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    Line,
    Round,
    Row,
    Table,
    of_step,
    ratio,
    row_of,
    span,
    turned,
    usable,
)
from asyncli.experiments.strace import counting
from asyncli.experiments.usage import usage_of
from asyncli.lab import LabServer, choose
from asyncli.lab.apache import page
from asyncli.metrics import KERNEL_TCP_TW, SERVER_PSS_BYTES

#: setup -> the lab's server for it. Few: a child for two connections. Two ports: as the first, with a port for its status page,
#: for which the children accept under a lock.
_SETUPS = {
    "Apache": "apache-prefork",
    "Apache, two ports": "apache-prefork",
    "Apache, few children": "apache-prefork",
    "nginx": "nginx",
}
_FULL, _TWO, _FEW, _NGINX = _SETUPS
_WAYS = {"short": True, "kept alive": False}
_SHORT, _KEPT = _WAYS
# A child that closes a connection waits for the client's end of it (lingering close), and meanwhile serves nobody.
_SPARE_CHILDREN = 8
# As in the source: a child gives up an idle connection after so long. None is idle here.
_KEEPALIVE_TIMEOUT_S = 15
# The pass under strace ends by its number of requests; this is for a host on which that would take for ever.
_LONGEST_TRACE = "60s"
_TIMES_MEDIAN = 10
_MOST_CALLS = 10
_CALLS = ": system calls"


def _step(setup: str, way: str) -> str:
    return f"{setup}, {way}"


_SOURCE = {
    _step(_FULL, _SHORT): {"per_s": 5_242.33, "mean_ms": 18.0, "sd_ms": 5.7, "max_ms": 101.0, "connect_ms": 8.0},
    _step(_FULL, _KEPT): {
        "per_s": 16_804.02, "mean_ms": 5.0, "sd_ms": 22.5, "max_ms": 1_409.0, "connect_ms": 0.0, "kept": 990_148 / 1_000_000,
    },
}  # fmt: skip
# Of one child, over "about 10,000" requests: it accepted 9,997 short connections, or 100 persistent ones of 100 requests.
_SOURCE_CALLS = {
    name: {_SHORT: short / 10_000, _KEPT: kept / 10_000}
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
_CALLS_COLUMNS = [Column(_SHORT, _SHORT), Column(_KEPT, _KEPT)]


async def _run(context: Context) -> None:
    plan = context.plan
    for number in range(plan["rounds"]):
        for setup in turned([*_SETUPS], number):
            server = _SETUPS[setup]
            # What short connections leave in TIME_WAIT meets the kept ones in every other round.
            for way in turned([*_WAYS], number):
                if context.wanted(server) and _possible(plan, setup):
                    with context.step(server, server):
                        await _measure(context, setup, way, number)
    with context.step("strace", "the count of system calls"):
        for setup in (_FULL, _NGINX):
            for way in _WAYS:
                if context.wanted(_SETUPS[setup]):
                    await _count_calls(context, setup, way)


def _possible(plan: dict[str, Any], setup: str) -> bool:
    """A single connection has no half."""
    return setup != _FEW or plan["connections"] > 1


def _children(plan: dict[str, Any], setup: str) -> int:
    many: int = plan["connections"]
    return many // 2 if setup == _FEW else many + _SPARE_CHILDREN


def _server(plan: dict[str, Any], setup: str) -> LabServer:
    limits = {"keepalive_requests": plan["keepalive_requests"], "keepalive_timeout_s": _KEEPALIVE_TIMEOUT_S}
    if setup == _NGINX:
        text = page(plan["page_bytes"]).decode()
        return choose("nginx", connections=plan["connections"] + 64, body=text, content_type="text/html", **limits)
    children = _children(plan, setup)
    cut = {"workers": children, "page_bytes": plan["page_bytes"], "one_listener": setup != _TWO}
    return choose("apache-prefork", connections=plan["connections"], **cut, **limits)


async def _measure(context: Context, setup: str, way: str, number: int) -> None:
    plan = context.plan
    async with _server(plan, setup) as server:
        before = usage_of(server.pid)
        run = await context.bench_run(server, connections=plan["connections"], duration=plan["duration"], short=_WAYS[way])
        used = usage_of(server.pid).since(before)
    found = benched(run)
    children = None if setup == _NGINX else _children(plan, setup)
    mine = {**figures(found), **_memory(run), **_a_request(found, used, setup), **_slow(run.total.latency_us)}
    if way == _KEPT:
        mine |= _queue(found, children)
    context.add(_step(setup, way), number, **mine, children=children)
    slowest = f", the slowest {mine['max_ms']:,.0f} ms" if mine["max_ms"] is not None else ""
    what = f"{mine['per_s']:,.0f} requests a second{slowest}"
    context.say(f"round {number + 1} of {plan['rounds']}, {_step(setup, way)}: {what}")


def _memory(run: BenchRun) -> dict[str, Any]:
    """Of the server's processes, and what the kernel keeps of closed connections."""
    pss = [(one.t_s, one.values[SERVER_PSS_BYTES]) for one in run.samples if SERVER_PSS_BYTES in one.values]
    return {
        "pss": pss,
        "pss_begun_bytes": pss[0][1] if pss else None,
        "pss_bytes": pss[-1][1] if pss else None,
        "tw": run.samples[-1].values.get(KERNEL_TCP_TW) if run.samples else None,
    }


def _a_request(found: Benched, used: dict[str, int | None], setup: str) -> dict[str, Any]:
    """What was read, written and waited, for each request; CPU to the nanosecond, where the kernel counts it so."""
    total = found.requests.total
    each, connect = found.connections.requests_each, found.times_ms["connect"]

    def of(*names: str) -> float | None:
        values = [used[name] for name in names]
        known = [value for value in values if value is not None]
        return sum(known) / total if total and len(known) == len(values) else None

    server_ns = of("cpu_ns")
    return {
        "server_us": found.server.cpu_us_per_request if server_ns is None else server_ns / 1000,
        "connect_ms": connect.mean * found.connections.opened / total if connect and total else None,
        "kept": found.requests.keepalive / total if total else None,
        "each": each and each["max"],
        "wire_bytes": (found.bytes.received + found.bytes.sent) / total if total else None,
        "segments": of("segments"),
        # nginx reads by recv(2), which /proc/PID/io does not count.
        "io_calls": None if setup == _NGINX else of("reads", "writes"),
        "disk_bytes": of("disk_read", "disk_written"),
        "waits": of("waits"),
        "preemptions": of("preemptions"),
        "cpu_wait_ms": None if (queued_ns := of("queued_ns")) is None else queued_ns / 1e6,
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
    values = {"requests": plan["traced_requests"], "duration": _LONGEST_TRACE, "short": _WAYS[way]}
    async with _server(plan, setup) as server:
        pids = [one.pid for one in ServerTree([server.pid])() if not one.ended]
        async with counting(pids) as calls:
            found = await context.bench(server, connections=plan["connections"], **values)
    total, all_calls = found.requests.total, sum(calls.values())
    context.add(
        _step(setup, way) + _CALLS, 0, calls=calls, requests=total, opened=found.connections.opened,
        **fitness_of(found), all=all_calls / total if total else None,
    )  # fmt: skip
    context.say(f"{_step(setup, way)}: {all_calls:,} system calls for {total:,} requests")


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    """Its tables and pictures, and what they say of the source's claims."""
    rounds = usable(rounds)
    setups = [one for one in _SETUPS if any(each["step"] in (_step(one, _SHORT), _step(one, _KEPT)) for each in rounds)]
    steps = [_step(setup, way) for setup in setups for way in _WAYS]
    of_apache = [one for one in steps if not one.startswith(_NGINX)]
    tables = [
        _table("Short against kept alive", _SPEED, steps, rounds, _how(plan) + _busy(rounds), _SOURCE),
        _table("For each request", _COST, steps, rounds, _COST_CAPTION),
        _table("Memory", _MEMORY, steps, rounds, _MEMORY_CAPTION),
        _table("The tail, and the queue for a child", _TAIL, of_apache, rounds, _TAIL_CAPTION),
        *(_calls_table(rounds, setup) for setup in (_FULL, _NGINX)),
    ]
    return Conclusions(
        [one for one in tables if one.rows and any(any(row.values.values()) for row in one.rows)],
        [one for one in _charts(rounds, setups) if one.lines],
        [*_claims(rounds)],
    )


def _table(
    title: str,
    columns: list[Column],
    steps: Iterable[str],
    rounds: list[Round],
    caption: str,
    source: dict[str, dict[str, float]] | None = None,
) -> Table:
    return Table(title, columns, [row_of(rounds, step, columns, (source or {}).get(step)) for step in steps], caption)


def _how(plan: dict[str, Any]) -> str:
    enough, few = _children(plan, _FULL), _children(plan, _FEW)
    children = f"Apache has {enough} children, or {few} where they are few, all started before the first connection."
    return f"{plan['connections']} connections at a time. {children}"


def _busy(rounds: list[Round]) -> str:
    """Where asyncli was the limit, in words."""
    found = sorted(limited(rounds))
    return f" asyncli itself was the limit of {'; '.join(found)}: the server can do more." if found else ""


def _calls_table(rounds: list[Round], setup: str) -> Table:
    """The most frequent system calls, and those that the source has."""
    counted = {way: _calls_of(rounds, _step(setup, way)) for way in _WAYS}
    most = {name: max(one.get(name, 0.0) for one in counted.values()) for one in counted.values() for name in one}
    names = sorted(most, key=lambda name: (-most[name], name))[: _MOST_CALLS + 1]
    source = _SOURCE_CALLS if setup == _FULL and names else {}
    rows = [
        Row(name, {way: [one.get(name, 0.0)] for way, one in counted.items() if one}, source.get(name, {}))
        for name in [*names, *(name for name in source if name not in names)]
    ]
    caption = f"Of all processes of {setup}, counted by strace in a pass of its own that timed nothing."
    return Table(f"System calls for each request: {setup}", _CALLS_COLUMNS, rows, caption)


def _calls_of(rounds: list[Round], step: str) -> dict[str, float]:
    """Calls for each request by name, and ``all`` of them; empty where none were counted."""
    for one in rounds:
        if one["step"] == step + _CALLS and one.get("calls") and one.get("requests"):
            each = {name: count / one["requests"] for name, count in one["calls"].items()}
            return {"all": sum(each.values()), **each}
    return {}


def _charts(rounds: list[Round], setups: Sequence[str]) -> Iterator[Chart]:
    for key, title, unit in (("per_s", "Throughput", "requests a second"), ("server_us", "The server's CPU", "µs a request")):
        lines = [_bars(way, [_median(rounds, _step(setup, way), key) for setup in setups]) for way in _WAYS]
        yield Chart("bars", title, "", unit, [one for one in lines if one.ys], list(setups))
    quantiles = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
    shown = [_step(_FULL, _SHORT), *(_step(setup, _KEPT) for setup in (_FULL, _TWO, _FEW))]
    lines = [_bars(step, [_median(rounds, step, key) for key in quantiles.values()]) for step in shown]
    caption = "With few children half the connections wait for one; else there is a child for each."
    yield Chart("bars", "The tail", "", "latency, ms", [one for one in lines if one.ys], list(quantiles), caption)
    # A chart tells seven lines apart; with two ports Apache has the same processes as with one.
    lines = [_over_time(rounds, _step(setup, way)) for setup in setups if setup != _TWO for way in _WAYS]
    yield Chart(
        "lines", "Memory of the server's processes", "seconds since the first connect", "PSS, MB",
        [one for one in lines if one.ys], caption="Medians of the rounds. Each begins with a server just started.",
    )  # fmt: skip


def _bars(label: str, values: Sequence[float | None]) -> Line:
    known = [(float(at), value) for at, value in enumerate(values) if value is not None]
    return Line(label, [at for at, _ in known], [value for _, value in known])


def _median(rounds: list[Round], step: str, key: str) -> float | None:
    values = of_step(rounds, step, key)
    return statistics.median(values) if values else None


def _over_time(rounds: list[Round], step: str) -> Line:
    by_second: dict[int, list[float]] = {}
    for one in rounds:
        if one["step"] == step:
            for t_s, value in one.get("pss") or ():
                by_second.setdefault(round(t_s), []).append(value / 1e6)
    seconds = sorted(by_second)
    return Line(step, [float(one) for one in seconds], [statistics.median(by_second[one]) for one in seconds])


def _by_short(rounds: list[Round], key: str, suffix: str = "") -> dict[str, Interval]:
    """Kept alive by short in the same round, of each setup of which that was measured."""
    ratios = {one: ratio(rounds, _step(one, _KEPT) + suffix, _step(one, _SHORT) + suffix, key) for one in _SETUPS}
    return {setup: interval(values) for setup, values in ratios.items() if values}


def _more(setup: str, known: Interval) -> Case:
    return Case(f"{setup}: {known.words(WORTH)} times", known.above(WORTH), (known,))


def _less(setup: str, known: Interval) -> Case:
    return Case(f"{setup}: {known.words(LESS)} times", known.below(LESS), (known,))


_MORE_RULE, _LESS_RULE = f"above {WORTH:g} times", f"below {LESS:.3f} times"


def _claims(rounds: list[Round]) -> Iterator[Claim]:
    """The source's, each judged on kept alive by short in the same round, of every setup that was measured."""
    # The speed of a setup of which asyncli was the limit is not the server's; what a request cost the server is.
    busy = limited(rounds)
    ours = [setup for setup in _SETUPS if busy & {_step(setup, way) for way in _WAYS}]
    left_out = f". Not judged, since asyncli was the limit: {', '.join(ours)}" if ours else ""

    def claim(text: str, cases: Sequence[Case], rule: str, more: str) -> Iterator[Claim]:
        if cases:
            yield claimed(text, cases, rule, more=more)

    if per_s := _by_short(rounds, "per_s"):
        cases = [_more(setup, one) for setup, one in per_s.items() if setup not in ours]
        text = "Persistent connections carry more requests a second."
        yield claimed(text, cases, _MORE_RULE, more=f"The source had 3.21 times{left_out}")
    cases = [_less(*one) for one in _by_short(rounds, "server_us").items()]
    yield from claim("They cost the server less CPU a request.", cases, _LESS_RULE, "The source shows curves only")
    yield from claim("They cost less I/O a request.", _io(rounds), f"{_LESS_RULE}, each kind by itself", _disk(rounds))
    cases = [_less(*one) for one in _by_short(rounds, "all", _CALLS).items()]
    yield from claim(
        "They cost fewer system calls a request.", cases, _LESS_RULE, "The source had 0.77 times in one Apache child"
    )
    # The source's Apache forked a process for each connection that was kept. Here all stand from the start: what is no more
    # may be so for that alone, so the claim can be shown and not be refuted.
    cases = [_more(*one)._replace(side=one[1].above(WORTH) or None) for one in _by_short(rounds, "pss_bytes").items()]
    memory = (
        "PSS of the server's processes, which all stand from the start: the source's reason, a process forked for each kept "
        "connection, cannot show here"
    )
    yield from claim("They cost more memory.", cases, f"{_MORE_RULE}; less says nothing", memory)
    if means := _by_short(rounds, "mean_ms"):
        text = f"The source had 5 against 18 ms, and a maximum of 1,409 against 101 ms{left_out}"
        rule = f"the mean {_LESS_RULE}, and p99.9 {_MORE_RULE}"
        cases = [one for one in _mean_and_tail(rounds, means) if one.words.partition(":")[0] not in ours]
        yield claimed("They win the mean and lose the tail.", cases, rule, more=text)
    yield from _why_the_tail(rounds)


def _io(rounds: list[Round]) -> list[Case]:
    """Each measure of I/O is a case; the setup is named once."""
    kinds = {"wire_bytes": "bytes above TCP", "segments": "TCP segments", "io_calls": "read and write calls"}
    found = {words: _by_short(rounds, key) for key, words in kinds.items()}
    cases = []
    for setup in _SETUPS:
        mine = [(words, of[setup]) for words, of in found.items() if setup in of]
        for at, (words, known) in enumerate(mine):
            cases.append(_less(words if at else f"{setup}, {words}", known))
    return cases


def _disk(rounds: list[Round]) -> str:
    disk = [value for one in rounds if (value := one.get("disk_bytes")) is not None]
    found = f"Of the disk at most {max(disk):.1f} bytes a request" if disk else "Of the disk nothing is known"
    return f"{found}. Bytes above TCP are without its headers and handshakes"


def _mean_and_tail(rounds: list[Round], means: dict[str, Interval]) -> list[Case]:
    tails = _by_short(rounds, "p999_ms")
    return [
        Case(
            f"{setup}: mean {mean.words(LESS)} times, p99.9 {tails[setup].words(WORTH)} times",
            together([mean.below(LESS), tails[setup].above(WORTH)]),
            (mean, tails[setup]),
        )
        for setup, mean in means.items()
        if setup in tails
    ]


def _why_the_tail(rounds: list[Round]) -> Iterator[Claim]:
    """Not the source's: what its tail is made of, and whether that is as much as Little's law foretold."""
    few = _step(_FEW, _KEPT)
    cases = []

    def agree(key: str, other: str, words: str, show: Callable[[list[float]], str]) -> None:
        pairs = [(one[key], one[other]) for one in rounds if one["step"] == few and one.get(key) is not None and one.get(other)]
        if pairs:
            known = interval([mine / theirs for mine, theirs in pairs])
            mine, theirs = (show([float(pair[at]) for pair in pairs]) for at in (0, 1))
            cases.append(Case(f"{words.format(mine, theirs)}, {known.words(0.5, 2)} times", known.within(0.5, 2), (known,)))

    slow = "With few children {} of 1,000 requests are slower than ten medians, where {} are a connection's first"
    agree("slow", "first", slow, lambda values: span(values, ".1f"))
    agree("slow_ms", "queue_ms", "they take {} ms, where Little's law says {}", lambda values: span(values, ",.0f"))
    if not cases:
        return
    for setup, words in (
        (_FEW, "p99.9 is {} times that with a child for each"),
        (_TWO, "with a second port, for which children accept in turns under a lock, it is {} times"),
    ):
        if ratios := ratio(rounds, _step(setup, _KEPT), _step(_FULL, _KEPT), "p999_ms"):
            known = interval(ratios)
            cases.append(Case(words.format(known.words(WORTH)), known.above(WORTH), (known,)))
    source = (
        "The source's sd of 22.5 ms would be that of 1 request in 100 waiting 0.23 s, by Little's law some 38 of its 100 "
        "connections without a child"
    )
    text = "The tail is a connection's first request, which waits for a child (ours, not the source's)."
    yield claimed(text, cases, f"from half to twice what was foretold, and p99.9 {_MORE_RULE}", more=source)


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
    servers=tuple(dict.fromkeys(_SETUPS.values())),
)  # fmt: skip
