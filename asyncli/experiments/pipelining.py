"""Pipelines against one request at a time, threads and asynchronous tasks, for the same answers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from asyncli.errors import PlanError
from asyncli.experiments import Count, Experiment, ExperimentPlan, Milliseconds
from asyncli.experiments.baseline_clients import run_client
from asyncli.experiments.context import Context, figures, fitness
from asyncli.experiments.counters import read_tcp, since
from asyncli.experiments.delay_server import DelayServer
from asyncli.experiments.head_of_line import behind_slow, unread
from asyncli.experiments.judging import Rule, claimed, counted
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, Rounds, bars, span, turned
from asyncli.lab.base import LabServer
from asyncli.lab.line import ADDRESSES, FAR, NEAR, Quality, line
from asyncli.lab.nginx import LabNginx

#: Reads TCP's counters of both ends.
Counters = Callable[[], dict[str, float]]
#: How the same answers are asked for.
WAYS = ("pipelines", "ten pipelines", "one at a time", "threads", "tasks")
_MANY, _TEN, _KEPT, _THREADS, _TASKS = WAYS
#: What is asked for, and of which server.
PAGES = {"near": "nginx", "large": "nginx", "far": "distant", "line": "line"}
_NEAR, _LARGE, _FAR, _LINE = PAGES
# Also measured: limits of requests a connection (nginx's, and the pipelines' depth), and the order of answers.
_LIMITS = {"no limit": (10_000_000, 150), "cut": (100, 150), "fitting": (100, 100)}
_FREE, _CUT, _FITTING = _LIMITS
_ORDERS = ("pipelined", "apart")
_UNREAD, _UNREAD_RESPONSES = "unread", 100
_BEHIND = 9
_MOST_DEEP = 10_000
# Pipelines of thousands of requests take the whole run.
_TIMEOUT = "120s"

# Of 10,000 answers of 6 kB each, and of another 10,000 of 32.6 kB; from servers that were far away.
_SOURCE = {
    f"{_LINE}: {_MANY}": {"duration_s": "about 5"}, f"{_LINE}: {_THREADS}": {"duration_s": "25"},
    f"{_LINE}: {_TASKS}": {"duration_s": "over 60"}, f"{_LARGE}: {_MANY}": {"duration_s": "30"},
}  # fmt: skip
_COLUMNS = [
    Column("duration_s", "time", "s"), Column("cpu_s", "client CPU", "s"),
    Column("cores", "busy", "cores"), Column("p50_ms", "p50", "ms"), Column("p99_ms", "p99", "ms"),
]  # fmt: skip
_WIRE_COLUMNS = [
    Column("segments_each", "segments an answer"), Column("retransmitted", "sent again"),
    Column("window_closed", "window closed"),
]  # fmt: skip
_LIMIT_COLUMNS = [
    Column("total", "answered"), Column("failed", "failed"), Column("resent", "asked again"), Column("opened", "connections"),
    Column("duration_s", "time", "s"),
]  # fmt: skip
_ORDER_COLUMNS = [
    Column("slow_ms", "the slow one", "ms"), Column("first_behind_ms", "first of the others", "ms"),
    Column("last_behind_ms", "last of them", "ms"),
]  # fmt: skip
_UNREAD_COLUMNS = [
    Column("before_bytes", "sent before the window closed", "B"), Column("window_closed", "window closed, times"),
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
    # The source's 60 MB in about 5 s are 96 Mbit/s.
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
                        for way in turned(WAYS, number * len(PAGES) + at):
                            # A failed one is left out of this page.
                            if (step := f"{page}: {way}") not in context.left_out:
                                with context.step(step, f"{_way_label(plan, way)}, {_page_label(plan, page)},"):
                                    await _measure(context, number, page, way, lab, read)
        if context.wanted("nginx"):
            with context.step("nginx", "the limit of requests a connection"):
                for step in _LIMITS:
                    await _be_cut(context, number, step)
        if context.wanted("distant"):
            with context.step("distant", "a slow answer at the head of the line"):
                await _wait_behind(context, number)
        if context.wanted("nginx"):
            with context.step("nginx", "a pipeline that is not read"):
                async with LabNginx(64, body="x" * plan.large_bytes, workers=1) as nginx:
                    context.add(_UNREAD, number, **await unread(nginx.url, _UNREAD_RESPONSES))


@contextlib.asynccontextmanager
async def _serving(plan: PipeliningPlan, page: str, number: int) -> AsyncIterator[tuple[LabServer, Counters]]:
    """The page's server and counters. On the line this thread is at its near end meanwhile."""
    if PAGES[page] == "distant":
        async with DelayServer(plan.page_bytes, plan.round_trip_ms) as distant:
            yield distant, read_tcp
        return
    # One worker, so that each way uses the same server.
    keys: dict[str, Any] = {"body": "x" * (plan.large_bytes if page == _LARGE else plan.page_bytes), "workers": 1}
    if page != _LINE:
        async with LabNginx(plan.connections + 64, **keys) as nginx:
            yield nginx, read_tcp
        return
    async with (
        line(_quality(plan), number) as network,
        contextlib.AsyncExitStack() as stack,
    ):

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


async def _measure(
    context: Context, number: int, page: str, way: str, server: LabServer, read: Counters
) -> None:
    plan = context.plan
    responses, connections = plan.responses, _connections(plan, way)
    found: dict[str, Any]
    before = read()
    if way in (_THREADS, _TASKS):
        said = await run_client(way, server.url, connections, responses)
        answered, latencies = said["answered"], said["latencies_ms"]
        why = f"{answered:,} of {responses:,} requests were answered" if answered != responses else None
        found = {**fitness(why), "total": answered, **{key: said[key] for key in ("duration_s", "cpu_s", "failed", "bytes")}}
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
    context.tell(number, f"{_page_label(plan, page)}, {_way_label(plan, way)}", what)


async def _be_cut(context: Context, number: int, step: str) -> None:
    plan, (limit, depth) = context.plan, _LIMITS[step]
    keys = {"connections": plan.connections, "requests": plan.responses, "pipeline": depth, "workers": 1}
    async with LabNginx(plan.connections + 64, body="x" * plan.page_bytes, workers=1, keepalive_requests=limit) as server:
        found = figures(await context.bench(server, timeout=_TIMEOUT, **keys))
    context.add(step, number, **found)
    what = f"{found['total']:,} answers, {found['resent']:,} asked again, {found['opened']:,} connections"
    context.tell(number, _limit_label(step), what)


async def _wait_behind(context: Context, number: int) -> None:
    plan = context.plan
    async with DelayServer(plan.page_bytes) as server:
        for step in _ORDERS:
            arrivals = await behind_slow(server.url, plan.slow_ms, _BEHIND, pipelined=step == _ORDERS[0])
            slow, *behind = arrivals
            context.add(step, number, arrivals_ms=arrivals, slow_ms=slow, first_behind_ms=min(behind), last_behind_ms=max(behind))
            what = f"the {_BEHIND} others came after {min(behind):,.1f} to {max(behind):,.1f} ms"
            context.tell(number, f"a slow answer, {_order_label(step)}", what)


# What a reader calls them.


def _connections(plan: PipeliningPlan, way: str) -> int:
    return min(10, plan.connections) if way == _TEN else plan.connections


def _depth(plan: PipeliningPlan, way: str) -> int:
    return min(_MOST_DEEP, -(-plan.responses // _connections(plan, way))) if way in (_MANY, _TEN) else 1


def _quality(plan: PipeliningPlan) -> Quality:
    return Quality(plan.round_trip_ms, plan.line_mbit_s, plan.line_lost)


def _page_label(plan: PipeliningPlan, page: str) -> str:
    size = f"{(plan.large_bytes if page == _LARGE else plan.page_bytes) / 1000:g} kB"
    if page == _LINE:
        return f"{size} {_quality(plan).words}"
    return f"{size} from {plan.round_trip_ms} ms away" if page == _FAR else f"{size} next door"


def _way_label(plan: PipeliningPlan, way: str) -> str:
    many = _connections(plan, way)
    if way == _TASKS:
        return f"{plan.responses:,} tasks"
    return f"{many} {way}" if way in (_KEPT, _THREADS) else f"{many} pipelines of {_depth(plan, way):,}"


def _limit_label(step: str) -> str:
    limit, depth = _LIMITS[step]
    return f"{_FREE if step == _FREE else f'{limit} a connection'}, {depth} deep"


def _order_label(step: str) -> str:
    return "one pipeline" if step == _ORDERS[0] else f"{_BEHIND + 1} connections"


# Concluding: pure.

# Captions common to all tables are below the first.
_CAPTIONS = {
    _NEAR: "One nginx worker on loopback. Pipelines, and kept-alive connections with one request at a time, are asyncli's, "
    "in one process; threads (http.client) and tasks (aiohttp, a pool of as many connections) are a Python program each. "
    "Client CPU: user and system, of that process; busy: that by time. Latency counts from when the request was written, or "
    "its task was made.",
    _LARGE: "One nginx worker on loopback; the source's line was full.",
    _FAR: "All that is sent is heard so much later, but for the handshake; nothing is lost, and the line is as wide as "
    "loopback's.",
    _LINE: "One nginx worker at the far end of a line between two network namespaces: half of the delay each way, a queue of "
    "50 ms before it, packets of at most 1,500 B, lost at random from a seed. 60 MB take it 5 s by themselves.",
}


def conclude(plan: PipeliningPlan, rounds: Rounds) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    tables = [
        rounds.table(
            f"{plan.responses:,} answers, {_page_label(plan, page)}", _COLUMNS,
            {f"{page}: {way}": _way_label(plan, way) for way in WAYS}, _CAPTIONS[page], _SOURCE,
        )
        for page in PAGES
    ]  # fmt: skip
    tables += [
        rounds.table(
            "A server's limit of requests a connection", _LIMIT_COLUMNS, {step: _limit_label(step) for step in _LIMITS},
            "nginx's keepalive_requests. Asked again: written on a connection that the server ended before it answered them. "
            "asyncli learns the limit from two such connections, and its later pipelines are no deeper.",
        ),
        rounds.table(
            f"{_BEHIND} quick answers behind one that takes {plan.slow_ms} ms", _ORDER_COLUMNS,
            {step: _order_label(step) for step in _ORDERS}, "Milliseconds from the write of all the requests.",
        ),
        rounds.table(
            f"A pipeline of {_UNREAD_RESPONSES} that nobody reads", _UNREAD_COLUMNS,
            {_UNREAD: f"{plan.large_bytes / 1000:g} kB an answer"},
            "Not read until the kernel says that the receive window has closed; then read to the end.",
        ),
        rounds.table(
            "On the wire", _WIRE_COLUMNS,
            {f"{page}: {way}": f"{_way_label(plan, way)}, {_page_label(plan, page)}" for page in PAGES for way in (_MANY, _KEPT)},
            "The kernel's counts of a run: segments of both directions, acknowledgements too (loopback's hold up to 64 kB, those "
            "of Ethernet 1,460 B); how often a receive window closed, because the client had not read what was there.",
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
    title = f"When each answer is there, behind one that takes {plan.slow_ms} ms"
    yield Chart("lines", title, "request, in the order of writing; the first is the slow one", "ms", lines)


def _claims(plan: PipeliningPlan, rounds: Rounds) -> Iterator[Claim]:
    """The source's, of each page by itself."""

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
         {f"the first of {_BEHIND} quick answers comes after so many times what the slow one before them takes": behind},
         "of its time"),
        # One at a time each request is a segment, and so is its answer; on the line an answer takes five.
        ("Several requests and answers of a pipeline share a TCP segment.", Rule(high=1.5),
         of("segments_each", _MANY, pages=(_NEAR, _LARGE, _FAR)),
         "segments an answer"),
    ):  # fmt: skip
        yield from claimed(claim, rule, cases, unit=unit)
    cut, free = rounds.by_round(_CUT, "resent"), rounds.by_round(_FREE, "resent")
    if both := [at for at in cut if at in free]:
        resent = {step: rounds.of(step, "resent") for step in _LIMITS}
        words = ", ".join(f"{span(many, ',.0f')} ({_limit_label(step)})" for step, many in resent.items() if many)
        yield from counted(
            "Servers' limits of requests a connection cut pipelines midway.", "some asked again with the limit, and none without",
            {f"of {plan.responses:,} requests were asked again {words}": (cut[at] > 0 == free[at] for at in both)},
            figure=f"{span(rounds.of(_CUT, 'resent'), ',.0f')} of {plan.responses:,} asked again",
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
        burst, single = (rounds.by_round(f"{page}: {way}", "retransmitted") for way in (_MANY, _KEPT))
        pairs = [(burst[at], single[at]) for at in burst if at in single]
        again += pairs
        if any(any(pair) for pair in pairs):
            more[f"{_page_label(plan, page)}: {_against(pairs)}"] = [mine > theirs for mine, theirs in pairs if mine or theirs]
    if again:
        yield from counted(
            "Bursts of pipelines bring retransmissions.", "more than one at a time, where anything is sent again", more,
            "" if more else "nothing was lost here", _against(again),
        )  # fmt: skip


def _against(pairs: list[tuple[float, float]]) -> str:
    many, few = (span([one[at] for one in pairs], ",.0f") for at in (0, 1))
    return f"{many} segments a run, {few} one at a time"


EXPERIMENT = Experiment(
    name="pipelining",
    title="Pipelining against one request at a time, threads and tasks",
    question="How much faster are the same answers by pipelines, what does it cost the client, and what does it not cure?",
    write_up='"Very fast pipelined HTTP requests", lulianqi',
    source="10,000 answers, 60 MB, by 100 pipelines of 100 in about 5 s, by 100 threads in 25 s, by 10,000 asynchronous "
    "submissions in over 60 s; and 326 MB by pipelines in 30 s; from sites on the Internet",
    plan=PipeliningPlan,
    quick={"rounds": 1},
    run=_run,
    conclude=conclude,
    servers=("nginx", "distant", "line"),
)
