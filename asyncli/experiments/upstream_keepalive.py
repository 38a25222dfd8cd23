"""Compares a proxy that opens a connection to a backend for each request with one that keeps them
alive.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asyncli.collect.status_pages import NotStatusPage, parse_page
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context, figures
from asyncli.experiments.judging import Rule, claimed, counted, limited, not_judged
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    Rounds,
    bars,
    rotated,
    span,
)
from asyncli.lab.base import ask
from asyncli.lab.line import ADDRESSES, FAR, NEAR, Quality, line
from asyncli.lab.nginx import LabNginx
from asyncli.lab.proxies import LabNginxProxy
from asyncli.model.errors import HostError
from asyncli.model.metrics import STATUS_ACCEPTS, STATUS_REQUESTS

#: Moves this thread to the backends' network namespace for a block.
AtBackends = Callable[[], contextlib.AbstractContextManager[None]]
#: Step -> (keep-alive to the backends, the backends' limit of requests per connection, idle
#: connections that the proxy keeps)
_STEPS = {
    "off": (False, 1_000, 32),
    "on, 100 a connection": (True, 100, 32),
    "on, 1,000 a connection": (True, 1_000, 32),
    "on, 100, room for 128": (True, 100, 128),
    "on, 1,000, room for 128": (True, 1_000, 128),
}
_OFF, _FEW, _, _FEW_ROOMY, _ = _STEPS
#: The backends at the far end of a line.
_LINE = Quality(round_trip_ms=20, mbit_s=100, lost=0.001)
_FAR_OFF, _FAR_FEW = (f"{step}, on a line" for step in (_OFF, _FEW))
_LINE_STEPS = {_FAR_OFF: _STEPS[_OFF], _FAR_FEW: _STEPS[_FEW]}
_PROXY, _LINE_PROXY = SERVERS = ("nginx-proxy", "line")
_SOURCE = {
    _OFF: {"per_s": "21,203", "mean_ms": "1.61"},
    _FEW: {"per_s": "49,469", "mean_ms": "0.82", "each": "100"},
}
_COLUMNS = [
    Column("per_s", "requests/s", "/s"),
    Column("mean_ms", "mean", "ms"),
    Column("p99_ms", "p99", "ms"),
    Column("client_us", "asyncli CPU per request", "us"),
    Column("proxy_us", "proxy CPU per request", "us"),
    Column("each", "requests per backend connection"),
    Column("backend_accepts", "backend connections"),
]


class UpstreamPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    duration: str = "10s"
    connections: Count = 32


async def _run(context: Context) -> None:
    for number in range(context.plan.rounds):
        for step in rotated([*_STEPS, *_LINE_STEPS], number):
            server = _LINE_PROXY if step in _LINE_STEPS else _PROXY
            if context.wanted(server):
                with context.step(server, f"nginx as a proxy, keep-alive {step},"):
                    await _measure(context, step, number)


@contextlib.asynccontextmanager
async def _proxied(
    step: str, number: int, *common: Any, **keys: Any
) -> AsyncIterator[tuple[LabNginxProxy, AtBackends]]:
    """The step's proxy, and what moves this thread to its backends."""
    if step in _STEPS:
        async with LabNginxProxy(*common, **keys) as proxy:
            yield proxy, contextlib.nullcontext
        return
    async with line(_LINE, number) as network, contextlib.AsyncExitStack() as stack:
        proxy = LabNginxProxy(*common, backend_address=ADDRESSES[FAR], **keys)
        stack.push_async_callback(proxy.stop)
        with network.inside(FAR):
            for backend in proxy.backends:
                await backend.start()
        with network.inside(NEAR):
            await proxy.start()
            yield proxy, lambda: network.inside(FAR)


async def _measure(context: Context, step: str, number: int) -> None:
    connections = context.plan.connections
    keepalive, keepalive_requests, idle = (_STEPS | _LINE_STEPS)[step]
    keys = {
        "upstream_keepalive": keepalive,
        "backend_keepalive_requests": keepalive_requests,
        "upstream_idle": idle,
    }
    async with _proxied(step, number, connections + 64, **keys) as (proxy, inside):
        with inside():
            before = [await _counts(backend) for backend in proxy.backends]
        duration = context.plan.duration
        result = await context.bench(proxy, connections=connections, duration=duration)
        with inside():
            after = [await _counts(backend) for backend in proxy.backends]
    accepts = 0
    requests = 0
    for (accepts_before, requests_before), (accepts_after, requests_after) in zip(
        before, after, strict=True
    ):
        # Each reading is a request on a new connection, and counts itself.
        accepts += accepts_after - accepts_before - 1
        requests += requests_after - requests_before - 1
    measured = figures(result)
    context.add(
        step,
        number,
        **measured,
        proxy_us=measured["server_us"],
        backend_accepts=accepts,
        backend_requests=requests,
        each=requests / accepts if accepts else None,
    )
    speed = f"{measured['per_s']:,.0f} requests a second"
    context.report(number, f"keep-alive {step}", f"{speed}, {accepts:,} backend connections")


async def _counts(backend: LabNginx) -> tuple[int, int]:
    """Accepts and requests that a backend has counted."""
    _, _, body = (
        (await ask(backend.status_port, backend.status_path))
        .decode("latin-1")
        .partition("\r\n\r\n")
    )
    try:
        counts = parse_page(body).values
    except NotStatusPage as error:
        raise HostError(
            f"a backend's status page cannot be read ({error}); look at the host's load"
        ) from None
    return int(counts[STATUS_ACCEPTS]), int(counts[STATUS_REQUESTS])


def conclude(plan: UpstreamPlan, rounds: Rounds) -> Conclusions:
    """The table, the chart and the source's claims."""
    caption = (
        "One nginx worker as the proxy, two backends of one worker each, all on this host. Room: "
        "idle connections that the proxy keeps to both backends together; beyond that it closes "
        "idle connections, even those that have served few requests. On a line: the backends are "
        f"in another network namespace, {_LINE.words}."
    )
    busy = sorted(limited(rounds))
    if busy:
        caption += (
            f" asyncli itself was the limit with keep-alive {'; '.join(busy)}: the proxy can do "
            "more."
        )
    labels = {}
    for step in (*_STEPS, *_LINE_STEPS):
        labels[step] = f"keep-alive {step}" if step in _SOURCE else f"keep-alive {step} (ours)"
    table = rounds.table(
        "Keep-alive from a proxy to its backends", _COLUMNS, labels, caption, _SOURCE
    )
    drawn = bars("here", [rounds.median(step, "per_s") for step in labels])
    chart = Chart("bars", "Throughput of the proxy", "", "requests a second", [drawn], [*labels])
    return Conclusions([table], [chart], [*_claims(rounds)])


def _claims(rounds: Rounds) -> Iterator[Claim]:
    # If asyncli was the limit, the proxy's speed is unknown.
    cases = {"here": (_FEW, _OFF), "on a line": (_FAR_FEW, _FAR_OFF)}
    busy = limited(rounds) & {_OFF, _FEW, _FAR_OFF, _FAR_FEW}
    judged = {label: steps for label, steps in cases.items() if not busy & {*steps}}
    gains = rounds.ratios(judged, "per_s")
    note = not_judged(busy)
    if not note and any(gains.values()):
        note = "the source: 2.33 times"
    yield from claimed(
        "Keep-alive to the backends more than doubles a proxy's throughput.",
        Rule(low=2),
        gains,
        note,
    )
    kept = {}
    all_served: list[float] = []
    for step, idle in ((_FEW, 32), (_FEW_ROOMY, 128)):
        served = rounds.of(step, "each")
        if served:
            label = f"{span(served, '.1f')} with room for {idle} idle connections"
            kept[label] = [90 <= requests <= 100 for requests in served]
            all_served += served
    every = span(all_served, ".1f") if kept else ""
    claim = "A backend with keepalive_requests 100 serves 100 requests on each connection."
    yield from counted(
        claim,
        "from 90 to 100, since the end cuts the last ones short",
        kept,
        figure=f"{every} requests",
    )


EXPERIMENT = Experiment(
    name="upstream-keepalive",
    title="Keep-alive between a proxy and its backends",
    question="What does a proxy gain when it keeps its connections to the backends alive?",
    write_up='"nginx proxy keepalive", timoq',
    source=(
        "wrk -t1 -c32 -d60s on nginx 1.16 before two backends: 21,203 requests/s and 1.61 ms off, "
        "49,469 and 0.82 ms on"
    ),
    plan=UpstreamPlan,
    quick={"rounds": 1, "duration": "2s"},
    run=_run,
    conclude=conclude,
    servers=SERVERS,
)
