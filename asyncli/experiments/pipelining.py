"""Pipelines against one request at a time, threads and asynchronous tasks, for the same answers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np

from asyncli.analysis.bench_result import Benched
from asyncli.errors import PlanError
from asyncli.experiments import Experiment
from asyncli.experiments.baseline_clients import run_client
from asyncli.experiments.context import Context, figures, fitness
from asyncli.experiments.counters import read_tcp, since
from asyncli.experiments.delay_server import DelayServer
from asyncli.experiments.head_of_line import behind_slow, unread
from asyncli.experiments.pipelining_claims import (
    BEHIND,
    LIMIT,
    PAGES,
    TOO_DEEP,
    UNREAD_RESPONSES,
    WAYS,
    OtherStep,
    Page,
    Way,
    connections_of,
    cut_label,
    depth_of,
    judge,
    one_by_one_s,
    order_label,
    page_label,
    size_label,
    step_of,
    too_long,
    way_label,
)
from asyncli.experiments.record import (
    Chart,
    ChartLine,
    Column,
    Conclusions,
    FigureTable,
    Round,
    Rounds,
    bars,
    turned,
    usable,
)
from asyncli.lab.nginx import LabNginx
from asyncli.lab.program import LabServer

# Pipelines of thousands of requests are answered over the whole of a run.
_TIMEOUT_S = 120


async def _run(context: Context) -> None:
    plan = context.plan
    if plan["responses"] < plan["connections"]:
        raise PlanError("experiment pipelining: responses: fewer than connections; each connection needs one at least")
    lost: set[tuple[str, str]] = set()
    for number in range(plan["rounds"]):
        for at, page in enumerate(PAGES):
            if not context.wanted(_server_of(page)):
                continue
            with context.step(_server_of(page), page_label(plan, page)):
                async with _serving(plan, page) as (server, url):
                    # Over three rounds of four pages each of the six ways is first twice, and last twice.
                    for way in turned(WAYS, number * len(PAGES) + at):
                        if (page, way) in lost or too_long(plan, page, way):
                            continue
                        lost.add((page, way))
                        # One that fails is left out of this page from here on.
                        with context.step(step_of(page, way), f"{way_label(plan, way)}, {page_label(plan, page)},"):
                            await _measure(context, number, page, way, server, url)
                            lost.remove((page, way))
        if context.wanted("nginx"):
            with context.step("nginx", "the limit of requests a connection"):
                await _be_cut(context, number)
        if context.wanted("distant"):
            with context.step("distant", "a slow answer at the head of the line"):
                await _wait_behind(context, number)
        if context.wanted("nginx"):
            with context.step("nginx", "a pipeline that is not read"):
                async with LabNginx(64, body="x" * plan["large_bytes"], workers=1) as server:
                    stalled = await unread(server.url, UNREAD_RESPONSES)
                context.add(OtherStep.UNREAD, number, **stalled._asdict())


def _server_of(page: Page) -> str:
    return "nginx" if page in (Page.NEAR, Page.LARGE) else "distant"


@contextlib.asynccontextmanager
async def _serving(plan: dict[str, Any], page: Page) -> AsyncIterator[tuple[LabServer, str]]:
    """A page's server, and the page's URL."""
    if page in (Page.NEAR, Page.LARGE):
        # One worker: then no way uses more of the server than another, however few its connections are.
        size = plan["page_bytes"] if page == Page.NEAR else plan["large_bytes"]
        async with LabNginx(plan["connections"] + 64, body="x" * size, workers=1) as nginx:
            yield nginx, nginx.url
    else:
        async with DelayServer(plan["page_bytes"], plan["round_trip_ms"] if page == Page.FAR else 0) as distant:
            yield distant, f"{distant.url}?ms={plan['service_ms']}" if page == Page.WORK else distant.url


async def _measure(context: Context, number: int, page: Page, way: str, server: LabServer, url: str) -> None:
    plan = context.plan
    responses, connections = plan["responses"], connections_of(plan, way)
    found: dict[str, Any]
    before = read_tcp()
    if way in (Way.THREADS, Way.TASKS):
        said = await run_client(way, url, connections, responses)
        found = {key: said[key] for key in ("duration_s", "cpu_s", "failed", "bytes")}
        found |= _fitness(said["answered"], said["failed"], responses)
        found |= {"total": said["answered"], **_quantiles(said["latencies_ms"])}
    else:
        keys = {"connections": connections, "requests": responses, "pipeline": depth_of(plan, way), "workers": 1}
        found = _of_bench(await context.bench(server, url, timeout=f"{_TIMEOUT_S}s", **keys))
    counts = since(read_tcp(), before)
    total, duration_s = found["total"], found["duration_s"]
    each = {
        "per_s": total / duration_s if duration_s else None,
        "cores": found["cpu_s"] / duration_s if duration_s else None,
        "segments_each": counts["segments"] / total if total and counts else None,
        # Fewer answers take less time: only whole runs are compared.
        "usable": found.get("usable", True) and not found["failed"] and total == responses,
    }
    context.add(step_of(page, way), number, **{**found, **counts, **each})
    what = f"{total:,} answers in {duration_s:,.2f} s, {found['cpu_s']:,.2f} s of the client's CPU"
    context.tell(number, f"{page_label(plan, page)}, {way_label(plan, way)}", what)


def _of_bench(found: Benched) -> dict[str, Any]:
    kept = ("usable", "unusable", "duration_s", "total", "failed", "resent", "opened", "bytes", "p50_ms", "p99_ms")
    return {**{key: value for key, value in figures(found).items() if key in kept}, "cpu_s": found.generator.cpu_s}


def _fitness(answered: int, failed: int, responses: int) -> dict[str, Any]:
    """Of an ordinary program: it counts an answer of another status than 200 as failed, and answered."""
    return fitness(
        f"{failed:,} of {responses:,} requests failed" if failed else None,
        f"{answered:,} of {responses:,} requests were answered" if answered != responses else None,
    )


def _quantiles(latencies_ms: list[float]) -> dict[str, float | None]:
    """By nearest rank."""
    names = {"p50_ms": 0.5, "p99_ms": 0.99}
    if not latencies_ms:
        return dict.fromkeys(names)
    return {name: float(np.quantile(latencies_ms, share, method="inverted_cdf")) for name, share in names.items()}


async def _be_cut(context: Context, number: int) -> None:
    """Pipelines without a limit of requests a connection; deeper than one; and just as deep."""
    plan = context.plan
    for step, limit, depth in (
        (OtherStep.UNLIMITED, 10_000_000, TOO_DEEP),
        (OtherStep.CUT, LIMIT, TOO_DEEP),
        (OtherStep.FITTING, LIMIT, LIMIT),
    ):
        server = LabNginx(plan["connections"] + 64, body="x" * plan["page_bytes"], workers=1, keepalive_requests=limit)
        async with server:
            found = await context.bench(
                server, connections=plan["connections"], requests=plan["responses"], pipeline=depth, workers=1, timeout="30s"
            )
        mine = _of_bench(found)
        context.add(step, number, **mine)
        what = f"{mine['total']:,} answers, {mine['resent']:,} asked again, {mine['opened']:,} connections"
        context.tell(number, f"{cut_label(step)}", what)


async def _wait_behind(context: Context, number: int) -> None:
    plan = context.plan
    async with DelayServer(plan["page_bytes"]) as server:
        for step in (OtherStep.PIPELINED, OtherStep.APART):
            pipelined = step == OtherStep.PIPELINED
            trials = [await behind_slow(server.url, plan["slow_ms"], BEHIND, pipelined=pipelined) for _ in range(3)]
            # Each answer's place in the line, its median over the trials.
            arrivals = [statistics.median(place) for place in zip(*trials, strict=True)]
            slow, *behind = arrivals
            context.add(step, number, arrivals_ms=arrivals, slow_ms=slow, first_behind_ms=min(behind), last_behind_ms=max(behind))
            what = f"the {BEHIND} others came after {min(behind):,.1f} to {max(behind):,.1f} ms"
            context.tell(number, f"a slow answer, {order_label(step)}", what)


# -- concluding: pure

# Of 10,000 answers of 6 kB each, and of another 10,000 of 32.6 kB; from servers that were far away.
_SOURCE: dict[tuple[str, str], dict[str, float]] = {
    (Page.FAR, Way.MANY): {"duration_s": 5.0},
    (Page.FAR, Way.THREADS): {"duration_s": 25.0},
    (Page.FAR, Way.TASKS): {"duration_s": 60.0},
    (Page.LARGE, Way.MANY): {"duration_s": 30.0},
}
_COLUMNS = [
    Column("duration_s", "time", "s"), Column("cpu_s", "client CPU", "s"),
    Column("cores", "busy", "cores"), Column("p50_ms", "p50", "ms"), Column("p99_ms", "p99", "ms"),
]  # fmt: skip
_WIRE_COLUMNS = [
    Column("segments_each", "segments an answer"), Column("retransmitted", "sent again"), Column("timeouts", "timeouts"),
    Column("window_closed", "window closed"),
]  # fmt: skip
_CUT_COLUMNS = [
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


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    rounds = usable(measured)
    tables = [*_page_tables(plan, rounds), *_inner_tables(plan, rounds)]
    return Conclusions(tables, [*_charts(plan, rounds)], [*judge(plan, rounds)])


# Once: what holds of all these tables stands below the first of them.
_CAPTIONS = {
    Page.NEAR: "One nginx worker on loopback. Pipelines, and kept-alive connections with one request at a time, are asyncli's, "
    "in one process; threads (http.client) and tasks (aiohttp, a pool of as many connections) are a Python program each. "
    "Client CPU: user and system, of that process; busy: that by time. Latency counts from when the request was written, or "
    "its task was made.",
    Page.LARGE: "One nginx worker on loopback; the source's line was full.",
    Page.FAR: "All that is sent is heard so much later, but for the handshake; nothing is lost, and the line is as wide as "
    "loopback's.",
    Page.WORK: "Worked on one after the other on each connection, as a pipeline has it.",
}


def _page_tables(plan: dict[str, Any], rounds: Rounds) -> Iterator[FigureTable]:
    for page in PAGES:
        ways = [way for way in WAYS if rounds.of(step_of(page, way), "duration_s")]
        labels = {step_of(page, way): way_label(plan, way) for way in ways}
        source = {step_of(*key): figures for key, figures in _SOURCE.items()}
        out = [way for way in (Way.TEN, Way.ONE) if way not in ways and too_long(plan, page, way)]
        left_out = "".join(
            f" Left out: {way_label(plan, way)}, which would take {one_by_one_s(plan, way):,.0f} s." for way in out
        )
        if any(one["step"].startswith(f"{page}: ") for one in rounds):
            title = f"{plan['responses']:,} answers, {page_label(plan, page)}"
            yield FigureTable(title, _COLUMNS, rounds.rows(labels, _COLUMNS, source), _CAPTIONS[page] + left_out)


def _inner_tables(plan: dict[str, Any], rounds: Rounds) -> Iterator[FigureTable]:
    on_the_wire = {
        step_of(page, way): f"{way_label(plan, way)}, {page_label(plan, page)}"
        for page in PAGES
        for way in (Way.MANY, Way.ONE, Way.KEPT)
    }
    for title, columns, labels, caption in (
        (
            "A server's limit of requests a connection",
            _CUT_COLUMNS,
            {step: cut_label(step) for step in (OtherStep.UNLIMITED, OtherStep.CUT, OtherStep.FITTING)},
            "nginx's keepalive_requests. Asked again: written on a connection that the server ended before it answered them. "
            "asyncli learns the limit from two such connections, and its later pipelines are no deeper.",
        ),
        (
            f"{BEHIND} quick answers behind one that takes {plan['slow_ms']} ms",
            _ORDER_COLUMNS,
            {step: order_label(step) for step in (OtherStep.PIPELINED, OtherStep.APART)},
            "Milliseconds from the write of all the requests.",
        ),
        (
            f"A pipeline of {UNREAD_RESPONSES} that nobody reads",
            _UNREAD_COLUMNS,
            {OtherStep.UNREAD: f"{size_label(plan['large_bytes'])} an answer"},
            "Not read until the kernel says that the receive window has closed; then read to the end.",
        ),
        (
            "On the wire",
            _WIRE_COLUMNS,
            on_the_wire,
            "The kernel's counts of a run: segments of both directions, acknowledgements too (loopback's hold up to 64 kB, those "
            "of Ethernet 1,460 B); how often a receive window closed, because the client had not read what was there.",
        ),
    ):
        if rows := rounds.rows({str(step): label for step, label in labels.items()}, columns):
            yield FigureTable(title, columns, rows, caption)


def _charts(plan: dict[str, Any], rounds: Rounds) -> Iterator[Chart]:
    many = f"{plan['responses']:,} answers"
    for key, title, unit in (
        ("duration_s", f"How long {many} take", "seconds"),
        ("cpu_s", f"What {many} cost the client", "seconds of CPU"),
    ):
        lines = [
            bars(page_label(plan, page), [rounds.median(step_of(page, way), key) for way in WAYS]) for page in PAGES
        ]
        if lines := [line for line in lines if line.ys]:
            yield Chart("bars", title, "", unit, lines, [way_label(plan, way) for way in WAYS])
    lines = []
    for step in (OtherStep.PIPELINED, OtherStep.APART):
        trials = [one["arrivals_ms"] for one in rounds if one["step"] == step and one.get("arrivals_ms")]
        places = [statistics.median(place) for place in zip(*trials, strict=False)]
        if places:
            lines.append(ChartLine(order_label(step), [float(at) for at in range(1, len(places) + 1)], places))
    if lines:
        title = f"When each answer is there, behind one that takes {plan['slow_ms']} ms"
        yield Chart("lines", title, "request, in the order of writing; the first is the slow one", "ms", lines)


EXPERIMENT = Experiment(
    name="pipelining",
    title="Pipelining against one request at a time, threads and tasks",
    question="How much faster are the same answers by pipelines, what does it cost the client, and what does it not cure?",
    source="10,000 answers, 60 MB, by 100 pipelines of 100 in about 5 s, by 100 threads in 25 s, by 10,000 asynchronous "
    "submissions in over 60 s; and 326 MB by pipelines in 30 s; from sites on the Internet",
    defaults={
        "rounds": 3,
        "responses": 10_000,
        "connections": 100,
        "page_bytes": 6_000,
        "large_bytes": 32_600,
        "round_trip_ms": 20,
        "service_ms": 5,
        "slow_ms": 200,
        "only": [],
    },
    quick={"rounds": 1},
    run=_run,
    conclude=conclude,
    servers=("nginx", "distant"),
    bounds={
        "connections": (1, 1000), "page_bytes": (1, 1 << 20), "large_bytes": (1, 1 << 20), "round_trip_ms": (0, 1000),
        "service_ms": (0, 1000), "slow_ms": (1, 10_000),
    },
)  # fmt: skip
