"""Compares pipelines with one request at a time, threads and asynchronous tasks, for the same
number of answers.
"""

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
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Claim,
    Column,
    Conclusions,
    Rounds,
    bars,
    rotated,
    span,
)
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
# Also measured: nginx's limit of requests per connection (with the pipelines' depth), and the order
# of answers.
_LIMITS = {"no limit": (10_000_000, 150), "cut": (100, 150), "fitting": (100, 100)}
_FREE, _CUT, _FITTING = _LIMITS
_ORDERS = ("pipelined", "apart")
_UNREAD = "unread"
_UNREAD_RESPONSES = 100
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
    Column("total", "answered"),
    Column("failed", "failed"),
    Column("resent", "sent again"),
    Column("opened", "connections"),
    Column("duration_s", "time", "s"),
]
_ORDER_COLUMNS = [
    Column("slow_ms", "slow answer", "ms"), Column("first_behind_ms", "first quick answer", "ms"),
    Column("last_behind_ms", "last quick answer", "ms"),
]  # fmt: skip
_UNREAD_COLUMNS = [
    Column("before_bytes", "received before the window closed", "B"),
    Column("window_closed", "window closed, times"),
    Column("answered", "answers read afterwards"),
]


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
        raise PlanError(
            "experiment pipelining: responses: fewer than connections; each connection needs one "
            "at least"
        )
    for number in range(plan.rounds):
        for place, page in enumerate(PAGES):
            await _measure_page(context, number, place, page)
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


async def _measure_page(context: Context, number: int, place: int, page: str) -> None:
    """Measure all clients with a page, in an order that depends on the round and on the page's
    ``place``.
    """
    plan = context.plan
    server_name = PAGES[page]
    if not context.wanted(server_name):
        return
    page_label = _page_label(plan, page)
    with context.step(server_name, page_label):
        async with _serving(plan, page, number) as (server, read):
            for way in rotated(WAYS, number * len(PAGES) + place):
                step = f"{page}: {way}"
                # A client that failed is left out for this page.
                if step in context.left_out:
                    continue
                with context.step(step, f"{_way_label(plan, way)}, {page_label},"):
                    await _measure(context, number, page, way, server, read)


@contextlib.asynccontextmanager
async def _serving(
    plan: PipeliningPlan, page: str, number: int
) -> AsyncIterator[tuple[LabServer, Counters]]:
    """The page's server, and a reader of TCP counters. For the line, this thread is at its near end
    during the block.
    """
    if PAGES[page] == "distant":
        async with DelayServer(plan.page_bytes, plan.round_trip_ms) as distant:
            yield distant, read_tcp
        return
    # One worker, so that all clients use the same process.
    keys: dict[str, Any] = {"body": "x" * _page_bytes(plan, page), "workers": 1}
    if page != _LINE:
        async with LabNginx(plan.connections + 64, **keys) as nginx:
            yield nginx, read_tcp
        return
    async with line(_quality(plan), number) as network, contextlib.AsyncExitStack() as stack:

        def read() -> dict[str, float]:
            with network.inside(NEAR):
                near = read_tcp()
            with network.inside(FAR):
                far = read_tcp()
            return {name: count + far.get(name, 0.0) for name, count in near.items()}

        server = LabNginx(plan.connections + 64, address=ADDRESSES[FAR], **keys)
        with network.inside(FAR):
            nginx = await stack.enter_async_context(server)
        with network.inside(NEAR):
            yield nginx, read


async def _measure(
    context: Context, number: int, page: str, way: str, server: LabServer, read: Counters
) -> None:
    plan = context.plan
    before = read()
    if way in (_THREADS, _TASKS):
        measured = await _figures_of_program(plan, way, server)
    else:
        result = await context.bench(
            server,
            timeout=_TIMEOUT,
            connections=_connections(plan, way),
            requests=plan.responses,
            pipeline=_depth(plan, way),
            workers=1,
        )
        measured = figures(result)
    counts = since(read(), before)
    total = measured["total"]
    duration_s = measured["duration_s"]
    cpu_s = measured["cpu_s"]
    measured["cores"] = cpu_s / duration_s if duration_s else None
    measured["segments_each"] = counts["segments"] / total if total and counts else None
    context.add(f"{page}: {way}", number, **measured, **counts)
    outcome = f"{total:,} answers in {duration_s:,.2f} s, {cpu_s:,.2f} s of the client's CPU"
    context.report(number, f"{_page_label(plan, page)}, {_way_label(plan, way)}", outcome)


async def _figures_of_program(plan: PipeliningPlan, way: str, server: LabServer) -> dict[str, Any]:
    """The figures of a client that is a program, as :func:`figures` gives them for asyncli."""
    result = await run_client(way, server.url, _connections(plan, way), plan.responses)
    answered = result["answered"]
    why = None
    if answered != plan.responses:
        why = f"{answered:,} of {plan.responses:,} requests were answered"
    figures_of_client = {**fitness(why), "total": answered}
    for key in ("duration_s", "cpu_s", "failed", "bytes"):
        figures_of_client[key] = result[key]
    latencies_ms = result["latencies_ms"]
    for key, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        figures_of_client[key] = None
        if latencies_ms:
            figures_of_client[key] = float(np.quantile(latencies_ms, share, method="inverted_cdf"))
    return figures_of_client


async def _measure_limit(context: Context, number: int, step: str) -> None:
    plan = context.plan
    limit, depth = _LIMITS[step]
    body = "x" * plan.page_bytes
    nginx = LabNginx(plan.connections + 64, body=body, workers=1, keepalive_requests=limit)
    async with nginx as server:
        result = await context.bench(
            server,
            timeout=_TIMEOUT,
            connections=plan.connections,
            requests=plan.responses,
            pipeline=depth,
            workers=1,
        )
    measured = figures(result)
    context.add(step, number, **measured)
    answers = f"{measured['total']:,} answers, {measured['resent']:,} requests sent again"
    context.report(number, _limit_label(step), f"{answers}, {measured['opened']:,} connections")


async def _measure_order(context: Context, number: int) -> None:
    plan = context.plan
    async with DelayServer(plan.page_bytes) as server:
        for step in _ORDERS:
            is_pipelined = step == _ORDERS[0]
            arrivals_ms = await answers_behind_slow(
                server.url, plan.slow_ms, _QUICK, pipelined=is_pipelined
            )
            slow_ms, *behind_ms = arrivals_ms
            context.add(
                step,
                number,
                arrivals_ms=arrivals_ms,
                slow_ms=slow_ms,
                first_behind_ms=min(behind_ms),
                last_behind_ms=max(behind_ms),
            )
            came = f"came after {min(behind_ms):,.1f} to {max(behind_ms):,.1f} ms"
            context.report(
                number, f"a slow answer, {_order_label(step)}", f"the {_QUICK} others {came}"
            )


def _connections(plan: PipeliningPlan, way: str) -> int:
    if way == _TEN:
        return min(10, plan.connections)
    return plan.connections


def _depth(plan: PipeliningPlan, way: str) -> int:
    if way not in (_MANY, _TEN):
        return 1
    requests_each = -(-plan.responses // _connections(plan, way))
    return min(_MAX_DEPTH, requests_each)


def _quality(plan: PipeliningPlan) -> Quality:
    return Quality(plan.round_trip_ms, plan.line_mbit_s, plan.line_lost)


def _page_bytes(plan: PipeliningPlan, page: str) -> int:
    if page == _LARGE:
        return plan.large_bytes
    return plan.page_bytes


def _page_label(plan: PipeliningPlan, page: str) -> str:
    size = f"{_page_bytes(plan, page) / 1000:g} kB"
    if page == _LINE:
        return f"{size} {_quality(plan).words}"
    if page == _FAR:
        return f"{size} with a delay of {plan.round_trip_ms} ms"
    return f"{size} on loopback"


def _way_label(plan: PipeliningPlan, way: str) -> str:
    connections = _connections(plan, way)
    if way == _TASKS:
        return f"{plan.responses:,} tasks"
    if way in (_ONE, _THREADS):
        return f"{connections} {way}"
    return f"{connections} pipelines of {_depth(plan, way):,}"


def _limit_label(step: str) -> str:
    limit, depth = _LIMITS[step]
    if step == _FREE:
        return f"{_FREE}, {depth} deep"
    return f"{limit} per connection, {depth} deep"


def _order_label(step: str) -> str:
    if step == _ORDERS[0]:
        return "one pipeline"
    return f"{_QUICK + 1} connections"


# Conclusions: pure.

# The first also explains what is common to all tables.
_CAPTIONS = {
    _NEAR: "One nginx worker on loopback. Pipelines, and kept-alive connections with one request "
    "at a time, are asyncli's, in one process; threads (http.client) and tasks (aiohttp, "
    "with a pool of as many connections) are Python programs. Client CPU: user and system "
    "time of that process; busy: that divided by the time. Latency counts from the write "
    "of the request, or the creation of its task.",
    _LARGE: "One nginx worker on loopback. The source's line was saturated.",
    _FAR: (
        "The server delays all received data, except the TCP handshake; without losses, and with "
        "the bandwidth of loopback."
    ),
    _LINE: "One nginx worker at the far end of a line between two network namespaces: half of the "
    "delay each way, a queue of 50 ms, packets of at most 1,500 B, random losses from a "
    "seed. 60 MB alone take 5 s on it.",
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
            "A server's limit of requests per connection",
            _LIMIT_COLUMNS,
            {step: _limit_label(step) for step in _LIMITS},
            "nginx's keepalive_requests. Sent again: requests on a connection that the server "
            "closed before it answered them. asyncli learns the limit from two such connections, "
            "and its later pipelines are no deeper.",
        ),
        rounds.table(
            f"{_QUICK} quick answers behind one that takes {plan.slow_ms} ms",
            _ORDER_COLUMNS,
            {step: _order_label(step) for step in _ORDERS},
            "Milliseconds after all requests were written.",
        ),
        rounds.table(
            f"An unread pipeline of {_UNREAD_RESPONSES} requests",
            _UNREAD_COLUMNS,
            {_UNREAD: f"{plan.large_bytes / 1000:g} kB per answer"},
            "Not read until the kernel reports a closed receive window; then read to the end.",
        ),
        rounds.table(
            "On the wire",
            _WIRE_COLUMNS,
            {
                f"{page}: {way}": f"{_way_label(plan, way)}, {_page_label(plan, page)}"
                for page in PAGES
                for way in (_MANY, _ONE)
            },
            "The kernel's counts during a run: segments in both directions, with acknowledgements "
            "(up to 64 kB on loopback, 1,460 B on Ethernet); how often a receive window closed "
            "because the client did not read.",
        ),
    ]
    return Conclusions(tables, [*_charts(plan, rounds)], [*_claims(plan, rounds)])


def _charts(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Chart]:
    answers = f"{plan.responses:,} answers"
    ways = [_way_label(plan, way) for way in WAYS]
    for key, title, unit in (
        ("duration_s", f"How long {answers} take", "seconds"),
        ("cpu_s", f"What {answers} cost the client", "seconds of CPU"),
    ):
        lines = []
        for page in PAGES:
            medians = [rounds.median(f"{page}: {way}", key) for way in WAYS]
            lines.append(bars(_page_label(plan, page), medians))
        yield Chart("bars", title, "", unit, lines, ways)
    lines = []
    for step in _ORDERS:
        trials_ms = [figures_of_step["arrivals_ms"] for figures_of_step in rounds.in_step(step)]
        medians_ms = [statistics.median(times_ms) for times_ms in zip(*trials_ms, strict=False)]
        requests = [float(number) for number in range(1, len(medians_ms) + 1)]
        lines.append(ChartLine(_order_label(step), requests, medians_ms))
    title = f"When each answer is complete, behind one that takes {plan.slow_ms} ms"
    yield Chart(
        "lines", title, "request, in the order sent; the first is the slow one", "ms", lines
    )


def _claims(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Claim]:
    """The source's claims; each page is a case."""

    def by(way: str, other: str) -> dict[str, list[float]]:
        pairs = {_page_label(plan, page): (f"{page}: {way}", f"{page}: {other}") for page in PAGES}
        return rounds.ratios(pairs, "duration_s")

    def of(key: str, *ways: str, pages: Iterable[str] = PAGES) -> dict[str, list[float]]:
        return {
            f"{way}, {_page_label(plan, page)}": rounds.of(f"{page}: {way}", key)
            for page in pages
            for way in ways
        }

    first_ms = rounds.of(_ORDERS[0], "first_behind_ms")
    slow_ms = rounds.of(_ORDERS[0], "slow_ms")
    behind = [first / slow for first, slow in zip(first_ms, slow_ms, strict=False) if slow]
    for claim, rule, cases, unit in (
        (
            "Pipelines are more than 10 times faster than threads (the source: 5 times).",
            Rule(low=10),
            by(_THREADS, _MANY),
            "times",
        ),
        (
            "Pipelines are more than 10 times faster than asynchronous tasks (the source: 12).",
            Rule(low=10),
            by(_TASKS, _MANY),
            "times",
        ),
        ("The client's CPU is low with pipelines.", Rule(high=0.5), of("cores", _MANY), "cores"),
        (
            "The client's CPU is nearly full with threads and tasks.",
            Rule(low=0.9),
            of("cores", _THREADS, _TASKS),
            "cores",
        ),
        (
            f"A few pipelines take nearly as long as {plan.connections}.",
            Rule(high=1.25),
            by(_TEN, _MANY),
            "times",
        ),
        (
            "Pipelining cures head-of-line blocking.",
            Rule(high=0.5),
            {
                f"delay of the first of {_QUICK} quick answers, relative to the slow one before "
                "them": behind
            },
            "times its delay",
        ),
        # One at a time, each request and each answer is a segment; on the line an answer takes
        # five.
        (
            "Several requests and answers of a pipeline share a TCP segment.",
            Rule(high=1.5),
            of("segments_each", _MANY, pages=(_NEAR, _LARGE, _FAR)),
            "segments per answer",
        ),
    ):
        yield from claimed(claim, rule, cases, unit=unit)
    yield from _limits_cut_pipelines(plan, rounds)
    yield from _window_closes(rounds)
    yield from _bursts_retransmit(plan, rounds)


def _limits_cut_pipelines(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Claim]:
    resent_with_limit = rounds.by_round(_CUT, "resent")
    resent_without = rounds.by_round(_FREE, "resent")
    sides = []
    for number, resent in resent_with_limit.items():
        if number in resent_without:
            sides.append(resent > 0 == resent_without[number])
    if not sides:
        return
    counts = []
    for step in _LIMITS:
        resent_in_step = rounds.of(step, "resent")
        if resent_in_step:
            counts.append(f"{span(resent_in_step, ',.0f')} ({_limit_label(step)})")
    yield from counted(
        "Servers' limits of requests per connection cut pipelines midway.",
        "sent again with the limit, and not without",
        {f"of {plan.responses:,} requests sent again: {', '.join(counts)}": sides},
        figure=f"{span(rounds.of(_CUT, 'resent'), ',.0f')} of {plan.responses:,} sent again",
    )


def _window_closes(rounds: Rounds) -> Iterator[Claim]:
    times_closed = rounds.of(_UNREAD, "window_closed")
    if not times_closed:
        return
    sent_kb = [received / 1000 for received in rounds.of(_UNREAD, "before_bytes")]
    times = span(times_closed, ",.0f")
    sent = span(sent_kb, ",.0f")
    yield from counted(
        "The receive window closes when the reader of a pipeline is slow.",
        "it closes",
        {f"it closed {times} times, after {sent} kB": [count > 0 for count in times_closed]},
    )


def _bursts_retransmit(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Claim]:
    pairs_of_all_pages: list[tuple[float, float]] = []
    cases: dict[str, list[bool]] = {}
    for page in PAGES:
        by_pipelines = rounds.by_round(f"{page}: {_MANY}", "retransmitted")
        by_single_requests = rounds.by_round(f"{page}: {_ONE}", "retransmitted")
        pairs = []
        for number, count in by_pipelines.items():
            if number in by_single_requests:
                pairs.append((count, by_single_requests[number]))
        pairs_of_all_pages += pairs
        sides = [pipelined > single for pipelined, single in pairs if pipelined or single]
        if sides:
            cases[f"{_page_label(plan, page)}: {_retransmit_counts(pairs)}"] = sides
    if not pairs_of_all_pages:
        return
    yield from counted(
        "Bursts of pipelines cause retransmissions.",
        "more than with one at a time, if anything is retransmitted",
        cases,
        "" if cases else "nothing was lost",
        _retransmit_counts(pairs_of_all_pages),
    )


def _retransmit_counts(pairs: list[tuple[float, float]]) -> str:
    by_pipelines = span([pipelined for pipelined, _ in pairs], ",.0f")
    by_single_requests = span([single for _, single in pairs], ",.0f")
    return f"{by_pipelines} segments per run, {by_single_requests} with one at a time"


EXPERIMENT = Experiment(
    name="pipelining",
    title="Pipelining against one request at a time, threads and tasks",
    question=(
        "How much faster are pipelines, what do they cost the client, and which problems remain?"
    ),
    write_up='"Very fast pipelined HTTP requests", lulianqi',
    source="10,000 answers, 60 MB, by 100 pipelines of 100 in about 5 s, by 100 threads in 25 s, "
    "by 10,000 asynchronous submissions in over 60 s; and 326 MB by pipelines in 30 s; "
    "from sites on the Internet",
    plan=PipeliningPlan,
    quick={"rounds": 1},
    run=_run,
    conclude=conclude,
    servers=("nginx", "distant", "line"),
)
