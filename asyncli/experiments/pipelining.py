"""Compares pipelines with one request at a time, threads and asynchronous tasks, for the same number of answers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from asyncli.experiments import Count, Experiment, ExperimentPlan, Milliseconds
from asyncli.experiments.baseline_clients import run_client
from asyncli.experiments.context import Context, figures, fitness
from asyncli.experiments.counters import read_tcp, since
from asyncli.experiments.delay_server import DelayServer
from asyncli.experiments.head_of_line import answers_behind_slow, read_late
from asyncli.experiments.judging import Rule, claimed, counted
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, Rounds, bars, rotated, span
from asyncli.lab.base import LabServer
from asyncli.lab.line import ADDRESSES, FAR, NEAR, Quality, line
from asyncli.lab.nginx import LabNginx
from asyncli.model.errors import PlanError

#: Reads the TCP counters of both ends.
Counters = Callable[[], dict[str, float]]
#: The clients to compare.
WAYS = ("pipelines", "ten pipelines", "one at a time", "threads", "tasks")
_MANY, _TEN, _ONE, _THREADS, _TASKS = WAYS
#: Page -> server.
PAGES = {"near": "nginx", "large": "nginx", "far": "distant", "line": "line"}
_NEAR, _LARGE, _FAR, _LINE = PAGES
# Also measured: nginx's limit of requests per connection (with the pipelines' depth), and the order of answers.
_LIMITS = {"no limit": (10_000_000, 150), "cut": (100, 150), "fitting": (100, 100)}
_FREE, _CUT, _FITTING = _LIMITS
_ORDERS = ("pipelined", "apart")
_UNREAD, _UNREAD_RESPONSES = "unread", 100
_QUICK = 9
_MAX_DEPTH = 10_000
# A pipeline of thousands of requests takes the whole run.
_TIMEOUT = "120s"

# For 10,000 answers of 6 kB each, and 10,000 of 32.6 kB, from distant servers.
_SOURCE = {
    f"{_LINE}: {_MANY}": {"duration_s": "about 5"}, f"{_LINE}: {_THREADS}": {"duration_s": "25"},
    f"{_LINE}: {_TASKS}": {"duration_s": "over 60"}, f"{_LARGE}: {_MANY}": {"duration_s": "30"},
}  # fmt: skip
_COLUMNS = [
    Column("duration_s", "time", "s"), Column("cpu_s", "client CPU", "s"),
    Column("cores", "busy", "cores"), Column("p50_ms", "p50", "ms"), Column("p99_ms", "p99", "ms"),
]  # fmt: skip
_WIRE_COLUMNS = [
    Column("segments_each", "segments per answer"), Column("retransmitted", "retransmitted"),
    Column("window_closed", "window closed"),
]  # fmt: skip
_LIMIT_COLUMNS = [
    Column("total", "answered"), Column("failed", "failed"), Column("resent", "sent again"), Column("opened", "connections"),
    Column("duration_s", "time", "s"),
]  # fmt: skip
_ORDER_COLUMNS = [
    Column("slow_ms", "slow answer", "ms"), Column("first_behind_ms", "first quick answer", "ms"),
    Column("last_behind_ms", "last quick answer", "ms"),
]  # fmt: skip
_UNREAD_COLUMNS = [
    Column("before_bytes", "received before the window closed", "B"), Column("window_closed", "window closed, times"),
    Column("answered", "answers read afterwards"),
]  # fmt: skip


class PipeliningPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    responses: Count = 10_000
    connections: Annotated[int, Meta(ge=1, le=1_000)] = 100
    page_bytes: Count = 6_000
    large_bytes: Count = 32_600
    round_trip_ms: Milliseconds = 20
    slow_ms: Annotated[int, Meta(ge=1, le=10_000)] = 200
    # The source's 60 MB in about 5 s is 96 Mbit/s.
    line_mbit_s: Annotated[int, Meta(ge=1, le=10_000)] = 100
    line_lost: Annotated[float, Meta(ge=0, le=0.5)] = 0.001


async def _run(context: Context) -> None:
    plan = context.plan
    if plan.responses < plan.connections:
        raise PlanError("experiment pipelining: responses: fewer than connections; each connection needs one at least")
    for number in range(plan.rounds):
        for at, (page, server) in enumerate(PAGES.items()):
            if context.wanted(server):
                with context.step(server, _page_label(plan, page)):
                    async with _serving(plan, page, number) as (lab, read):
                        for way in rotated(WAYS, number * len(PAGES) + at):
                            # A client that failed is left out for this page.
                            if (step := f"{page}: {way}") not in context.left_out:
                                with context.step(step, f"{_way_label(plan, way)}, {_page_label(plan, page)},"):
                                    await _measure(context, number, page, way, lab, read)
        if context.wanted("nginx"):
            with context.step("nginx", "the limit of requests per connection"):
                for step in _LIMITS:
                    await _measure_limit(context, number, step)
        if context.wanted("distant"):
            with context.step("distant", "a slow answer at the head of the line"):
                await _measure_order(context, number)
        if context.wanted("nginx"):
            with context.step("nginx", "an unread pipeline"):
                async with LabNginx(64, body="x" * plan.large_bytes, workers=1) as nginx:
                    context.add(_UNREAD, number, **await read_late(nginx.url, _UNREAD_RESPONSES))


@contextlib.asynccontextmanager
async def _serving(plan: PipeliningPlan, page: str, number: int) -> AsyncIterator[tuple[LabServer, Counters]]:
    """The page's server, and a reader of TCP counters. For the line, this thread is at its near end during the block."""
    if PAGES[page] == "distant":
        async with DelayServer(plan.page_bytes, plan.round_trip_ms) as distant:
            yield distant, read_tcp
        return
    # One worker, so that all clients use the same process.
    keys: dict[str, Any] = {"body": "x" * (plan.large_bytes if page == _LARGE else plan.page_bytes), "workers": 1}
    if page != _LINE:
        async with LabNginx(plan.connections + 64, **keys) as nginx:
            yield nginx, read_tcp
        return
    async with line(_quality(plan), number) as network, contextlib.AsyncExitStack() as stack:

        def read() -> dict[str, float]:
            ends = []
            for end in (NEAR, FAR):
                with network.inside(end):
                    ends.append(read_tcp())
            return {name: sum(one.get(name, 0.0) for one in ends) for name in ends[0]}

        with network.inside(FAR):
            nginx = await stack.enter_async_context(LabNginx(plan.connections + 64, address=ADDRESSES[FAR], **keys))
        with network.inside(NEAR):
            yield nginx, read


async def _measure(context: Context, number: int, page: str, way: str, server: LabServer, read: Counters) -> None:
    plan = context.plan
    responses, connections = plan.responses, _connections(plan, way)
    found: dict[str, Any]
    before = read()
    if way in (_THREADS, _TASKS):
        result = await run_client(way, server.url, connections, responses)
        answered, latencies = result["answered"], result["latencies_ms"]
        why = f"{answered:,} of {responses:,} requests were answered" if answered != responses else None
        found = {**fitness(why), "total": answered, **{key: result[key] for key in ("duration_s", "cpu_s", "failed", "bytes")}}
        for name, share in {"p50_ms": 0.5, "p99_ms": 0.99}.items():
            found[name] = float(np.quantile(latencies, share, method="inverted_cdf")) if latencies else None
    else:
        keys = {"connections": connections, "requests": responses, "pipeline": _depth(plan, way), "workers": 1}
        found = figures(await context.bench(server, timeout=_TIMEOUT, **keys))
    counts = since(read(), before)
    total, duration_s = found["total"], found["duration_s"]
    found["cores"] = found["cpu_s"] / duration_s if duration_s else None
    found["segments_each"] = counts["segments"] / total if total and counts else None
    context.add(f"{page}: {way}", number, **found, **counts)
    what = f"{total:,} answers in {duration_s:,.2f} s, {found['cpu_s']:,.2f} s of the client's CPU"
    context.report(number, f"{_page_label(plan, page)}, {_way_label(plan, way)}", what)


async def _measure_limit(context: Context, number: int, step: str) -> None:
    plan, (limit, depth) = context.plan, _LIMITS[step]
    keys = {"connections": plan.connections, "requests": plan.responses, "pipeline": depth, "workers": 1}
    async with LabNginx(plan.connections + 64, body="x" * plan.page_bytes, workers=1, keepalive_requests=limit) as server:
        found = figures(await context.bench(server, timeout=_TIMEOUT, **keys))
    context.add(step, number, **found)
    what = f"{found['total']:,} answers, {found['resent']:,} requests sent again, {found['opened']:,} connections"
    context.report(number, _limit_label(step), what)


async def _measure_order(context: Context, number: int) -> None:
    plan = context.plan
    async with DelayServer(plan.page_bytes) as server:
        for step in _ORDERS:
            arrivals = await answers_behind_slow(server.url, plan.slow_ms, _QUICK, pipelined=step == _ORDERS[0])
            slow, *behind = arrivals
            context.add(step, number, arrivals_ms=arrivals, slow_ms=slow, first_behind_ms=min(behind), last_behind_ms=max(behind))
            what = f"the {_QUICK} others came after {min(behind):,.1f} to {max(behind):,.1f} ms"
            context.report(number, f"a slow answer, {_order_label(step)}", what)


def _connections(plan: PipeliningPlan, way: str) -> int:
    return min(10, plan.connections) if way == _TEN else plan.connections


def _depth(plan: PipeliningPlan, way: str) -> int:
    return min(_MAX_DEPTH, -(-plan.responses // _connections(plan, way))) if way in (_MANY, _TEN) else 1


def _quality(plan: PipeliningPlan) -> Quality:
    return Quality(plan.round_trip_ms, plan.line_mbit_s, plan.line_lost)


def _page_label(plan: PipeliningPlan, page: str) -> str:
    size = f"{(plan.large_bytes if page == _LARGE else plan.page_bytes) / 1000:g} kB"
    if page == _LINE:
        return f"{size} {_quality(plan).words}"
    return f"{size} with a delay of {plan.round_trip_ms} ms" if page == _FAR else f"{size} on loopback"


def _way_label(plan: PipeliningPlan, way: str) -> str:
    many = _connections(plan, way)
    if way == _TASKS:
        return f"{plan.responses:,} tasks"
    return f"{many} {way}" if way in (_ONE, _THREADS) else f"{many} pipelines of {_depth(plan, way):,}"


def _limit_label(step: str) -> str:
    limit, depth = _LIMITS[step]
    return f"{_FREE if step == _FREE else f'{limit} per connection'}, {depth} deep"


def _order_label(step: str) -> str:
    return "one pipeline" if step == _ORDERS[0] else f"{_QUICK + 1} connections"


# Conclusions: pure.

# The first also explains what is common to all tables.
_CAPTIONS = {
    _NEAR: "One nginx worker on loopback. Pipelines, and kept-alive connections with one request at a time, are asyncli's, "
    "in one process; threads (http.client) and tasks (aiohttp, with a pool of as many connections) are Python programs. "
    "Client CPU: user and system time of that process; busy: that divided by the time. Latency counts from the write of the "
    "request, or the creation of its task.",
    _LARGE: "One nginx worker on loopback. The source's line was saturated.",
    _FAR: "The server delays all received data, except the TCP handshake; without losses, and with the bandwidth of loopback.",
    _LINE: "One nginx worker at the far end of a line between two network namespaces: half of the delay each way, a queue of "
    "50 ms, packets of at most 1,500 B, random losses from a seed. 60 MB alone take 5 s on it.",
}


def conclude(plan: PipeliningPlan, rounds: Rounds) -> Conclusions:
    """The tables, the charts and the source's claims."""
    tables = [
        rounds.table(
            f"{plan.responses:,} answers, {_page_label(plan, page)}", _COLUMNS,
            {f"{page}: {way}": _way_label(plan, way) for way in WAYS}, _CAPTIONS[page], _SOURCE,
        )
        for page in PAGES
    ]  # fmt: skip
    tables += [
        rounds.table(
            "A server's limit of requests per connection", _LIMIT_COLUMNS, {step: _limit_label(step) for step in _LIMITS},
            "nginx's keepalive_requests. Sent again: requests on a connection that the server closed before it answered them. "
            "asyncli learns the limit from two such connections, and its later pipelines are no deeper.",
        ),
        rounds.table(
            f"{_QUICK} quick answers behind one that takes {plan.slow_ms} ms", _ORDER_COLUMNS,
            {step: _order_label(step) for step in _ORDERS}, "Milliseconds after all requests were written.",
        ),
        rounds.table(
            f"An unread pipeline of {_UNREAD_RESPONSES} requests", _UNREAD_COLUMNS,
            {_UNREAD: f"{plan.large_bytes / 1000:g} kB per answer"},
            "Not read until the kernel reports a closed receive window; then read to the end.",
        ),
        rounds.table(
            "On the wire", _WIRE_COLUMNS,
            {f"{page}: {way}": f"{_way_label(plan, way)}, {_page_label(plan, page)}" for page in PAGES for way in (_MANY, _ONE)},
            "The kernel's counts during a run: segments in both directions, with acknowledgements (up to 64 kB on loopback, "
            "1,460 B on Ethernet); how often a receive window closed because the client did not read.",
        ),
    ]  # fmt: skip
    return Conclusions(tables, [*_charts(plan, rounds)], [*_claims(plan, rounds)])


def _charts(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Chart]:
    many, ways = f"{plan.responses:,} answers", [_way_label(plan, way) for way in WAYS]
    for key, title, unit in (
        ("duration_s", f"How long {many} take", "seconds"),
        ("cpu_s", f"What {many} cost the client", "seconds of CPU"),
    ):
        lines = [bars(_page_label(plan, page), [rounds.median(f"{page}: {way}", key) for way in WAYS]) for page in PAGES]
        yield Chart("bars", title, "", unit, lines, ways)
    lines = []
    for step in _ORDERS:
        trials = [one["arrivals_ms"] for one in rounds if one["step"] == step]
        places = [statistics.median(place) for place in zip(*trials, strict=False)]
        lines.append(ChartLine(_order_label(step), [float(at) for at in range(1, len(places) + 1)], places))
    title = f"When each answer is complete, behind one that takes {plan.slow_ms} ms"
    yield Chart("lines", title, "request, in the order sent; the first is the slow one", "ms", lines)


def _claims(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Claim]:
    """The source's claims; each page is a case."""

    def by(way: str, other: str) -> dict[str, list[float]]:
        pairs = {_page_label(plan, page): (f"{page}: {way}", f"{page}: {other}") for page in PAGES}
        return rounds.ratios(pairs, "duration_s")

    def of(key: str, *ways: str, pages: Iterable[str] = PAGES) -> dict[str, list[float]]:
        return {f"{way}, {_page_label(plan, page)}": rounds.of(f"{page}: {way}", key) for page in pages for way in ways}

    first, slow = (rounds.of(_ORDERS[0], key) for key in ("first_behind_ms", "slow_ms"))
    behind = [one / other for one, other in zip(first, slow, strict=False) if other]
    for claim, rule, cases, unit in (
        ("Pipelines are more than 10 times faster than threads (the source: 5 times).", Rule(low=10), by(_THREADS, _MANY),
         "times"),
        ("Pipelines are more than 10 times faster than asynchronous tasks (the source: 12).", Rule(low=10), by(_TASKS, _MANY),
         "times"),
        ("The client's CPU is low with pipelines.", Rule(high=0.5), of("cores", _MANY), "cores"),
        ("The client's CPU is nearly full with threads and tasks.", Rule(low=0.9), of("cores", _THREADS, _TASKS), "cores"),
        (f"A few pipelines take nearly as long as {plan.connections}.", Rule(high=1.25), by(_TEN, _MANY), "times"),
        ("Pipelining cures head-of-line blocking.", Rule(high=0.5),
         {f"delay of the first of {_QUICK} quick answers, relative to the slow one before them": behind},
         "times its delay"),
        # One at a time, each request and each answer is a segment; on the line an answer takes five.
        ("Several requests and answers of a pipeline share a TCP segment.", Rule(high=1.5),
         of("segments_each", _MANY, pages=(_NEAR, _LARGE, _FAR)),
         "segments per answer"),
    ):  # fmt: skip
        yield from claimed(claim, rule, cases, unit=unit)
    cut, free = rounds.by_round(_CUT, "resent"), rounds.by_round(_FREE, "resent")
    if both := [at for at in cut if at in free]:
        resent = {step: rounds.of(step, "resent") for step in _LIMITS}
        words = ", ".join(f"{span(many, ',.0f')} ({_limit_label(step)})" for step, many in resent.items() if many)
        yield from counted(
            "Servers' limits of requests per connection cut pipelines midway.", "sent again with the limit, and not without",
            {f"of {plan.responses:,} requests sent again: {words}": (cut[at] > 0 == free[at] for at in both)},
            figure=f"{span(rounds.of(_CUT, 'resent'), ',.0f')} of {plan.responses:,} sent again",
        )  # fmt: skip
    if closed := rounds.of(_UNREAD, "window_closed"):
        sent = span([one / 1000 for one in rounds.of(_UNREAD, "before_bytes")], ",.0f")
        yield from counted(
            "The receive window closes when the reader of a pipeline is slow.", "it closes",
            {f"it closed {span(closed, ',.0f')} times, after {sent} kB": (one > 0 for one in closed)},
        )  # fmt: skip
    again: list[tuple[float, float]] = []
    more: dict[str, list[bool]] = {}
    for page in PAGES:
        burst, single = (rounds.by_round(f"{page}: {way}", "retransmitted") for way in (_MANY, _ONE))
        pairs = [(burst[at], single[at]) for at in burst if at in single]
        again += pairs
        if any(any(pair) for pair in pairs):
            label = f"{_page_label(plan, page)}: {_retransmit_counts(pairs)}"
            more[label] = [mine > theirs for mine, theirs in pairs if mine or theirs]
    if again:
        yield from counted(
            "Bursts of pipelines cause retransmissions.", "more than with one at a time, if anything is retransmitted", more,
            "" if more else "nothing was lost", _retransmit_counts(again),
        )  # fmt: skip


def _retransmit_counts(pairs: list[tuple[float, float]]) -> str:
    many, few = (span([one[at] for one in pairs], ",.0f") for at in (0, 1))
    return f"{many} segments per run, {few} with one at a time"


EXPERIMENT = Experiment(
    name="pipelining",
    title="Pipelining against one request at a time, threads and tasks",
    question="How much faster are pipelines, what do they cost the client, and which problems remain?",
    write_up='"Very fast pipelined HTTP requests", lulianqi',
    source="10,000 answers, 60 MB, by 100 pipelines of 100 in about 5 s, by 100 threads in 25 s, by 10,000 asynchronous "
    "submissions in over 60 s; and 326 MB by pipelines in 30 s; from sites on the Internet",
    plan=PipeliningPlan,
    quick={"rounds": 1},
    run=_run,
    conclude=conclude,
    servers=("nginx", "distant", "line"),
)
