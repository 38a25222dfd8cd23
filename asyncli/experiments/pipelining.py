"""Pipelines against one request at a time, threads and asynchronous tasks, for the same answers."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asyncli.analysis.bench_result import Benched
from asyncli.errors import PlanError
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, figures, fitness
from asyncli.experiments.counters import counting
from asyncli.experiments.distant import Distant
from asyncli.experiments.inorder import behind_slow, unread
from asyncli.experiments.judging import Case, Interval, Side, claimed, in_every_round, interval, together
from asyncli.experiments.ordinary import run_client
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    Line,
    Round,
    Table,
    by_round,
    of_step,
    ratio,
    row_of,
    span,
    turned,
    usable,
)
from asyncli.lab import LabServer
from asyncli.lab.nginx import LabNginx

_MANY, _TEN, _ONE, _KEPT, _THREADS, _TASKS = "pipelines", "ten pipelines", "one pipeline", "one at a time", "threads", "tasks"
_WAYS = (_MANY, _TEN, _ONE, _KEPT, _THREADS, _TASKS)
_NEAR, _LARGE, _FAR, _WORK = "near", "large", "far", "work"
_PAGES = (_NEAR, _LARGE, _FAR, _WORK)
# What one connection would take longer for, one answer after the other, is left out: that is known by multiplication.
_LONGEST_S = 10.0
# As the first servers with such a limit had it, and a depth beyond.
_LIMIT, _TOO_DEEP = 100, 150
_MOST_DEEP = 10_000
_UNLIMITED, _CUT, _FITTING = "no limit", "cut", "fitting"
_BEHIND = 9
_PIPELINED, _APART = "pipelined", "apart"
_UNREAD = "unread"
_UNREAD_RESPONSES = 100
# Pipelines of thousands of requests are answered over the whole of a run.
_TIMEOUT_S = 120

# Of 10,000 answers of 6 kB each, and of another 10,000 of 32.6 kB; from servers that were far away.
_SOURCE: dict[tuple[str, str], dict[str, float]] = {
    (_FAR, _MANY): {"duration_s": 5.0},
    (_FAR, _THREADS): {"duration_s": 25.0},
    (_FAR, _TASKS): {"duration_s": 60.0},
    (_LARGE, _MANY): {"duration_s": 30.0},
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


# -- measuring


async def _run(context: Context) -> None:
    plan = context.plan
    if plan["responses"] < plan["connections"]:
        raise PlanError("experiment pipelining: responses: fewer than connections; each connection needs one at least")
    lost: set[tuple[str, str]] = set()
    for number in range(plan["rounds"]):
        for at, page in enumerate(_PAGES):
            if not context.wanted(_server_of(page)):
                continue
            with context.step(_server_of(page), _page_label(plan, page)):
                async with _serving(plan, page) as (server, url):
                    # Over three rounds of four pages each of the six ways is first twice, and last twice.
                    for way in turned(_WAYS, number * len(_PAGES) + at):
                        if (page, way) in lost or _too_long(plan, page, way):
                            continue
                        lost.add((page, way))
                        # One that fails is left out of this page from here on.
                        with context.step(_step(page, way), f"{_way_label(plan, way)}, {_page_label(plan, page)},"):
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
                    stalled = await unread(server.url, _UNREAD_RESPONSES)
                context.add(_UNREAD, number, **stalled._asdict())


def _server_of(page: str) -> str:
    return "nginx" if page in (_NEAR, _LARGE) else "distant"


@contextlib.asynccontextmanager
async def _serving(plan: dict[str, Any], page: str) -> AsyncIterator[tuple[LabServer, str]]:
    """A page's server, and the page's URL."""
    if page in (_NEAR, _LARGE):
        # One worker: then no way uses more of the server than another, however few its connections are.
        size = plan["page_bytes"] if page == _NEAR else plan["large_bytes"]
        async with LabNginx(plan["connections"] + 64, body="x" * size, workers=1) as nginx:
            yield nginx, nginx.url
    else:
        async with Distant(plan["page_bytes"], plan["round_trip_ms"] if page == _FAR else 0) as distant:
            yield distant, f"{distant.url}?ms={plan['service_ms']}" if page == _WORK else distant.url


def _connections(plan: dict[str, Any], way: str) -> int:
    return int({_ONE: 1, _TEN: min(10, plan["connections"])}.get(way, plan["connections"]))


def _depth(plan: dict[str, Any], way: str) -> int:
    if way not in (_MANY, _TEN, _ONE):
        return 1
    return min(_MOST_DEEP, -(-int(plan["responses"]) // _connections(plan, way)))


def _too_long(plan: dict[str, Any], page: str, way: str) -> bool:
    return page == _WORK and _one_after_the_other_s(plan, way) > _LONGEST_S


def _one_after_the_other_s(plan: dict[str, Any], way: str) -> float:
    return float(plan["responses"]) / _connections(plan, way) * float(plan["service_ms"]) / 1000


async def _measure(context: Context, number: int, page: str, way: str, server: LabServer, url: str) -> None:
    plan = context.plan
    responses, connections = plan["responses"], _connections(plan, way)
    found: dict[str, Any]
    with counting() as counts:
        if way in (_THREADS, _TASKS):
            said = await run_client(way, url, connections, responses)
            latencies = sorted(said["latencies_ms"])
            found = {key: said[key] for key in ("duration_s", "cpu_s", "failed", "bytes")}
            found |= _fitness(said["answered"], said["failed"], responses)
            found |= {"total": said["answered"], "p50_ms": _quantile(latencies, 0.5), "p99_ms": _quantile(latencies, 0.99)}
        else:
            keys = {"connections": connections, "requests": responses, "pipeline": _depth(plan, way), "workers": 1}
            found = _of_bench(await context.bench(server, url, timeout=f"{_TIMEOUT_S}s", **keys))
    total, duration_s = found["total"], found["duration_s"]
    each = {
        "per_s": total / duration_s if duration_s else None,
        "cores": found["cpu_s"] / duration_s if duration_s else None,
        "segments_each": counts["segments"] / total if total and counts else None,
        # Fewer answers take less time: only whole runs are compared.
        "usable": found.get("usable", True) and not found["failed"] and total == responses,
    }
    context.add(_step(page, way), number, **{**found, **counts, **each})
    what = f"{total:,} answers in {duration_s:,.2f} s, {found['cpu_s']:,.2f} s of the client's CPU"
    context.say(f"round {number + 1} of {plan['rounds']}, {_page_label(plan, page)}, {_way_label(plan, way)}: {what}")


def _of_bench(found: Benched) -> dict[str, Any]:
    kept = ("usable", "unusable", "duration_s", "total", "failed", "resent", "opened", "bytes", "p50_ms", "p99_ms")
    return {**{key: value for key, value in figures(found).items() if key in kept}, "cpu_s": found.generator.cpu_s}


def _fitness(answered: int, failed: int, responses: int) -> dict[str, Any]:
    """Of an ordinary program: it counts an answer of another status than 200 as failed, and answered."""
    return fitness(
        f"{failed:,} of {responses:,} requests failed" if failed else None,
        f"{answered:,} of {responses:,} requests were answered" if answered != responses else None,
    )


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else None


async def _be_cut(context: Context, number: int) -> None:
    """Pipelines without a limit of requests a connection; deeper than one; and just as deep."""
    plan = context.plan
    for step, limit, depth in ((_UNLIMITED, None, _TOO_DEEP), (_CUT, _LIMIT, _TOO_DEEP), (_FITTING, _LIMIT, _LIMIT)):
        server = LabNginx(
            plan["connections"] + 64, body="x" * plan["page_bytes"], workers=1, keepalive_requests=limit or 10_000_000
        )
        async with server:
            found = await context.bench(
                server, connections=plan["connections"], requests=plan["responses"], pipeline=depth, workers=1, timeout="30s"
            )
        mine = _of_bench(found)
        context.add(step, number, **mine)
        what = f"{mine['total']:,} answers, {mine['resent']:,} asked again, {mine['opened']:,} connections"
        context.say(f"round {number + 1} of {plan['rounds']}, {_cut_label(step)}: {what}")


async def _wait_behind(context: Context, number: int) -> None:
    plan = context.plan
    async with Distant(plan["page_bytes"]) as server:
        for step in (_PIPELINED, _APART):
            trials = [await behind_slow(server.url, plan["slow_ms"], _BEHIND, pipelined=step == _PIPELINED) for _ in range(3)]
            # Each answer's place in the line, its median over the trials.
            arrivals = [statistics.median(place) for place in zip(*trials, strict=True)]
            slow, *behind = arrivals
            context.add(step, number, arrivals_ms=arrivals, slow_ms=slow, first_behind_ms=min(behind), last_behind_ms=max(behind))
            what = f"the {_BEHIND} others came after {min(behind):,.1f} to {max(behind):,.1f} ms"
            context.say(f"round {number + 1} of {plan['rounds']}, a slow answer, {_order_label(step)}: {what}")


# -- concluding: pure


def _step(page: str, way: str) -> str:
    return f"{page}: {way}"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1000:g} kB"


def _page_label(plan: dict[str, Any], page: str) -> str:
    small, large = _size(plan["page_bytes"]), _size(plan["large_bytes"])
    return {
        _NEAR: f"{small} next door",
        _LARGE: f"{large} next door",
        _FAR: f"{small} from {plan['round_trip_ms']} ms away",
        _WORK: f"{small} that take {plan['service_ms']} ms to make",
    }[page]


def _way_label(plan: dict[str, Any], way: str) -> str:
    many, deep = _connections(plan, way), _depth(plan, way)
    return {
        _KEPT: f"{many} one at a time",
        _THREADS: f"{many} threads",
        _TASKS: f"{plan['responses']:,} tasks",
    }.get(way, f"{many} {'pipelines' if many > 1 else 'pipeline'} of {deep:,}")


def _cut_label(step: str) -> str:
    return {
        _UNLIMITED: f"no limit, {_TOO_DEEP} deep",
        _CUT: f"{_LIMIT} a connection, {_TOO_DEEP} deep",
        _FITTING: f"{_LIMIT} a connection, {_LIMIT} deep",
    }[step]


def _order_label(step: str) -> str:
    return "one pipeline" if step == _PIPELINED else f"{_BEHIND + 1} connections"


def conclude(plan: dict[str, Any], rounds: list[Round]) -> Conclusions:
    """Its tables and pictures, and what it says of the source's claims."""
    rounds = usable(rounds)
    tables = [_page_table(plan, rounds, page) for page in _PAGES if any(one["step"].startswith(f"{page}: ") for one in rounds)]
    tables += [*_inner_tables(plan, rounds), *_wire_table(plan, rounds)]
    return Conclusions(tables, [*_charts(plan, rounds)], [*_claims(plan, rounds)])


def _page_table(plan: dict[str, Any], rounds: list[Round], page: str) -> Table:
    ways = [way for way in _WAYS if of_step(rounds, _step(page, way), "duration_s")]
    rows = [row_of(rounds, _step(page, way), _COLUMNS, _SOURCE.get((page, way)), _way_label(plan, way)) for way in ways]
    return Table(f"{plan['responses']:,} answers, {_page_label(plan, page)}", _COLUMNS, rows, _caption(plan, page, ways))


def _caption(plan: dict[str, Any], page: str, ways: list[str]) -> str:
    # Once: what holds of all these tables stands below the first of them.
    server = {
        _NEAR: "One nginx worker on loopback. Pipelines, and kept-alive connections with one request at a time, are asyncli's, "
        "in one process; threads (http.client) and tasks (aiohttp, a pool of as many connections) are a Python program each. "
        "Client CPU: user and system, of that process; busy: that by time. Latency counts from when the request was written, or "
        "its task was made.",
        _LARGE: "One nginx worker on loopback; the source's line was full.",
        _FAR: "All that is sent is heard so much later, but for the handshake; nothing is lost, and the line is as wide as "
        "loopback's.",
        _WORK: "Worked on one after the other on each connection, as a pipeline has it.",
    }[page]
    out = [way for way in (_TEN, _ONE) if way not in ways and _too_long(plan, page, way)]
    for way in out:
        server += f" Left out: {_way_label(plan, way)}, which would take {_one_after_the_other_s(plan, way):,.0f} s."
    return server


def _wire_table(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Table]:
    rows = [
        row_of(rounds, _step(page, way), _WIRE_COLUMNS, None, f"{_way_label(plan, way)}, {_page_label(plan, page)}")
        for page in _PAGES
        for way in (_MANY, _ONE, _KEPT)
    ]
    rows = [row for row in rows if any(row.values.values())]
    if rows:
        caption = (
            "The kernel's counts of a run: segments of both directions, acknowledgements too (loopback's hold up to 64 kB, those "
            "of Ethernet 1,460 B); how often a receive window closed, because the client had not read what was there."
        )
        yield Table("On the wire", _WIRE_COLUMNS, rows, caption)


def _inner_tables(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Table]:
    def table(title: str, columns: list[Column], labels: dict[str, str], caption: str) -> Iterator[Table]:
        rows = [row_of(rounds, step, columns, None, label) for step, label in labels.items()]
        rows = [row for row in rows if any(row.values.values())]
        if rows:
            yield Table(title, columns, rows, caption)

    yield from table(
        "A server's limit of requests a connection",
        _CUT_COLUMNS,
        {step: _cut_label(step) for step in (_UNLIMITED, _CUT, _FITTING)},
        "nginx's keepalive_requests. Asked again: written on a connection that the server ended before it answered them. asyncli "
        "learns the limit from two such connections, and its later pipelines are no deeper.",
    )
    yield from table(
        f"{_BEHIND} quick answers behind one that takes {plan['slow_ms']} ms",
        _ORDER_COLUMNS,
        {step: _order_label(step) for step in (_PIPELINED, _APART)},
        "Milliseconds from the write of all the requests.",
    )
    yield from table(
        f"A pipeline of {_UNREAD_RESPONSES} that nobody reads",
        _UNREAD_COLUMNS,
        {_UNREAD: f"{_size(plan['large_bytes'])} an answer"},
        "Not read until the kernel says that the receive window has closed; then read to the end.",
    )


def _charts(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Chart]:
    def bars(key: str, title: str, y_label: str, caption: str = "") -> Iterator[Chart]:
        lines = []
        for page in _PAGES:
            found = {at: of_step(rounds, _step(page, way), key) for at, way in enumerate(_WAYS)}
            met = {float(at): statistics.median(values) for at, values in found.items() if values}
            if met:
                lines.append(Line(_page_label(plan, page), list(met), list(met.values())))
        if lines:
            yield Chart("bars", title, "", y_label, lines, [_way_label(plan, way) for way in _WAYS], caption)

    yield from bars("duration_s", f"How long {plan['responses']:,} answers take", "seconds")
    yield from bars("cpu_s", f"What {plan['responses']:,} answers cost the client", "seconds of CPU")
    lines = []
    for step in (_PIPELINED, _APART):
        trials = [one["arrivals_ms"] for one in rounds if one["step"] == step and one.get("arrivals_ms")]
        places = [statistics.median(place) for place in zip(*trials, strict=False)]
        if places:
            lines.append(Line(_order_label(step), [float(at) for at in range(1, len(places) + 1)], places))
    if lines:
        title = f"When each answer is there, behind one that takes {plan['slow_ms']} ms"
        yield Chart("lines", title, "request, in the order of writing; the first is the slow one", "ms", lines)


def _claims(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    yield from _faster(plan, rounds)
    yield from _whose_gain(plan, rounds)
    yield from _low_cpu(plan, rounds)
    yield from _a_few_do(plan, rounds)
    yield from _head_of_line(plan, rounds)
    yield from _limits_cut(rounds)
    yield from _on_the_wire(plan, rounds)


def _on_pages(rounds: list[Round], step: str, other: str, key: str) -> dict[str, Interval]:
    """One way by another, round by round, on each page where both were measured."""
    found = {page: ratio(rounds, _step(page, step), _step(page, other), key) for page in _PAGES}
    return {page: interval(values) for page, values in found.items() if values}


def _figure_on_pages(rounds: list[Round], step: str, key: str) -> dict[str, Interval]:
    found = {page: of_step(rounds, _step(page, step), key) for page in _PAGES}
    return {page: interval(values) for page, values in found.items() if values}


def _above(plan: dict[str, Any], known: dict[str, Interval], bound: float) -> list[Case]:
    return [Case(f"{_page_label(plan, page)}: {one.words(bound)}", one.above(bound), (one,)) for page, one in known.items()]


def _below(plan: dict[str, Any], known: dict[str, Interval], bound: float) -> list[Case]:
    return [Case(f"{_page_label(plan, page)}: {one.words(bound)}", one.below(bound), (one,)) for page, one in known.items()]


def _faster(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    for way, name, theirs in ((_THREADS, "threads", "5"), (_TASKS, "asynchronous tasks", "12 and more")):
        if times := _on_pages(rounds, way, _MANY, "duration_s"):
            yield claimed(
                f"Pipelines are more than 10 times faster than {name}.", _above(plan, times, 10), "above 10, each page by itself",
                lead="Times as long as the pipelines: ", more=f"By the source's own figures it was {theirs}",
            )  # fmt: skip


def _whose_gain(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    """The gain over threads is a product: of another client (threads by one at a time), and of pipelines (one at a time by them).

    The second is the larger where one at a time takes longer than the geometric mean of the two others.
    """
    cases = []
    for page in _PAGES:
        many, kept, threads = (by_round(rounds, _step(page, way), "duration_s") for way in (_MANY, _KEPT, _THREADS))
        whole = [at for at in kept if many.get(at) and threads.get(at)]
        if whole:
            share = interval([kept[at] / math.sqrt(many[at] * threads[at]) for at in whole])
            gain = interval([threads[at] / many[at] for at in whole])
            same = interval([kept[at] / many[at] for at in whole])
            words = f"{_page_label(plan, page)}: {same.words()}, {share.words(1)}"
            cases.append(Case(words, together([gain.above(1), share.above(1)]), (same, share)))
    if cases:
        yield claimed(
            "It is pipelining that makes the difference.", cases,
            "above 1 of that mean, and threads slower than pipelines, each page by itself",
            lead="The same client without pipelines takes so many times as long as with them, and so many times the geometric "
            "mean of pipelines and threads: ",
            more="Above that mean pipelining is the larger of the two factors of the gain over threads; the other is the client "
            "program",
        )  # fmt: skip


# Of the others' CPU, and of a core; and what is nearly full.
_LOW, _FULL = 0.5, 0.9


def _low_cpu(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    busy = {way: _figure_on_pages(rounds, way, "cores") for way in (_MANY, _THREADS, _TASKS)}
    shares = {way: _on_pages(rounds, _MANY, way, "cpu_s") for way in (_THREADS, _TASKS)}
    cases = []
    for page, mine in busy[_MANY].items():
        sides, known = [mine.below(_LOW)], [mine]
        cores, cpu = [f"pipelines {mine.words(_LOW)}"], []
        for way in (_THREADS, _TASKS):
            if page in shares[way] and page in busy[way]:
                share, full = shares[way][page], busy[way][page]
                sides += [share.below(_LOW), full.above(_FULL)]
                known += [share, full]
                cores.append(f"{way} {full.words(_FULL)}")
                cpu.append(f"{share.words(_LOW)} of {way}'")
        if cpu:
            words = f"{_page_label(plan, page)}: {', '.join(cores)}, CPU {' and '.join(cpu)}"
            cases.append(Case(words, together(sides), (*known,)))
    if cases:
        yield claimed(
            "The client's CPU is low with pipelines, and nearly full with threads and tasks.", cases,
            f"with pipelines below {_LOW} of a core and of the others' CPU, theirs above {_FULL} of a core, each page by itself",
            lead="Cores that are busy, and the pipelines' CPU for the same answers by the others': ",
        )  # fmt: skip


# What is nearly as well.
_NEARLY = 1.25


def _a_few_do(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    ten, one = (_on_pages(rounds, way, _MANY, "duration_s") for way in (_TEN, _ONE))
    if ten:
        many, single = _connections(plan, _TEN), _connections(plan, _ONE)
        alone = "; ".join(f"{_page_label(plan, page)}: {known.words()}" for page, known in one.items())
        yield claimed(
            f"A few pipelines do nearly as well as {plan['connections']}.", _below(plan, ten, _NEARLY),
            f"{many} take less than {_NEARLY} times as long, each page by itself",
            lead=f"{many} take so many times as long: ", more=f"{single} alone, not judged: {alone}" if alone else "",
        )  # fmt: skip


def _head_of_line(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    first, apart = by_round(rounds, _PIPELINED, "first_behind_ms"), by_round(rounds, _APART, "last_behind_ms")
    both = [at for at in first if at in apart]
    if not both:
        return
    slow = plan["slow_ms"]

    def cured(at: int) -> Side:
        if apart[at] >= slow / 2:  # the host itself was slow
            return None
        return True if first[at] < slow / 2 else False if first[at] >= 0.9 * slow else None

    words = (
        f"Behind an answer that takes {slow} ms, none of {_BEHIND} quick ones in its pipeline comes before "
        f"{span([first[at] for at in both], '.0f')} ms; on connections of their own all are there after "
        f"{span([apart[at] for at in both], '.1f')} ms"
    )
    yield claimed(
        "Pipelining cures head-of-line blocking.", [Case(words, in_every_round(map(cured, both)))],
        "in every round the first comes in less than half of the slow one's time; does not hold where in none before 0.9 of it",
    )  # fmt: skip


def _limits_cut(rounds: list[Round]) -> Iterator[Claim]:
    cut, free = by_round(rounds, _CUT, "resent"), by_round(rounds, _UNLIMITED, "resent")
    if not cut:
        return

    def more(at: int) -> Side:
        """Where requests are asked again without a limit too, it is not the limit that is seen."""
        if at not in free:
            return None
        return True if cut[at] > 0 == free[at] else False if cut[at] <= free[at] else None

    words = (
        f"With keepalive_requests {_LIMIT} and pipelines {_TOO_DEEP} deep, {span([*cut.values()], ',.0f')} of "
        f"{span(of_step(rounds, _CUT, 'total'), ',.0f')} requests had to be asked again"
    )
    if free:
        words += f", {span([*free.values()], ',.0f')} without a limit"
    if fitting := of_step(rounds, _FITTING, "resent"):
        words += f", {span(fitting, ',.0f')} in pipelines as deep as the limit"
    yield claimed(
        "Servers' limits of requests a connection cut pipelines midway.", [Case(words, in_every_round(map(more, cut)))],
        "in every round some with the limit, and none without",
    )  # fmt: skip


# One at a time each request is a segment and so is its answer: two at least.
_SHARED = 1.5


def _on_the_wire(plan: dict[str, Any], rounds: list[Round]) -> Iterator[Claim]:
    if fewer := _figure_on_pages(rounds, _MANY, "segments_each"):
        kept = [one for page in fewer for one in of_step(rounds, _step(page, _KEPT), "segments_each")]
        yield claimed(
            "In a pipeline several requests and answers share a TCP segment.", _below(plan, fewer, _SHARED),
            f"below {_SHARED} segments an answer, each page by itself",
            lead="Segments an answer, requests, answers and acknowledgements together: ",
            more=f"One at a time {span(kept)}" if kept else "",
        )  # fmt: skip
    if closed := of_step(rounds, _UNREAD, "window_closed"):
        sent = [one / 1000 for one in of_step(rounds, _UNREAD, "before_bytes")]
        words = f"Unread, it closed after {span(sent, ',.0f')} kB" if any(closed) else "It did not"
        read = [one for page in _PAGES for one in of_step(rounds, _step(page, _MANY), "window_closed")]
        if read:
            words += f"; in the {plan['connections']} pipelines, which are read at once, {span(read, ',.0f')} times a run"
        yield claimed(
            "The receive window closes when the reader of a pipeline is slow.",
            [Case(words, in_every_round(one > 0 for one in closed))], "it closes in every round",
        )  # fmt: skip
    yield from _sent_again(rounds)


def _sent_again(rounds: list[Round]) -> Iterator[Claim]:
    bursts, single = ([by_round(rounds, _step(page, way), "retransmitted") for page in _PAGES] for way in (_MANY, _KEPT))
    pairs = [(mine[at], theirs[at]) for mine, theirs in zip(bursts, single, strict=True) for at in mine if at in theirs]
    if not pairs:
        return

    def more(mine: float, theirs: float) -> Side:
        """By two standard deviations of a count, or not at all."""
        return True if mine - theirs > 2 * math.sqrt(mine + theirs) else False if mine <= theirs > 0 else None

    mine, theirs = (span([pair[at] for pair in pairs], ",.0f") for at in (0, 1))
    words = f"{mine} retransmitted segments a run, {theirs} one at a time"
    side = in_every_round(more(*pair) for pair in pairs)
    yield claimed(
        "Bursts of pipelines bring retransmissions.", [Case(words, side)],
        "in every run more than one at a time by two standard deviations of a count; it does not hold where in every run some "
        "are sent again one at a time, and no fewer",
        more="Loopback drops nothing by itself, so a line that does is needed to tell" if side is None else "",
    )  # fmt: skip


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
