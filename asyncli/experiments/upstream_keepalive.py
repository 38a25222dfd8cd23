"""A proxy's connections to its backends: a new one for each request, or kept alive."""

from __future__ import annotations

from collections.abc import Iterator

from asyncli.collect.status_pages import NotStatusPage, parse_page
from asyncli.errors import HostError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments.context import Context, figures
from asyncli.experiments.judging import Rule, claimed, counted, limited, unjudged
from asyncli.experiments.record import Chart, Claim, Column, Conclusions, Rounds, bars, span, turned
from asyncli.lab.base import ask
from asyncli.lab.nginx import LabNginx
from asyncli.lab.proxies import LabNginxProxy
from asyncli.metrics import STATUS_ACCEPTS, STATUS_REQUESTS

#: step -> (keep-alive to the backends, requests that a backend allows a connection, idle connections that the proxy keeps)
_STEPS = {
    "off": (False, 1_000, 32),
    "on, 100 a connection": (True, 100, 32),
    "on, 1,000 a connection": (True, 1_000, 32),
    "on, 100, room for 128": (True, 100, 128),
    "on, 1,000, room for 128": (True, 1_000, 128),
}
_OFF, _FEW, _, _FEW_ROOMY, _ = _STEPS
_SOURCE = {_OFF: {"per_s": "21,203", "mean_ms": "1.61"}, _FEW: {"per_s": "49,469", "mean_ms": "0.82", "each": "100"}}
_COLUMNS = [
    Column("per_s", "requests/s", "/s"), Column("mean_ms", "mean", "ms"), Column("p99_ms", "p99", "ms"),
    Column("client_us", "asyncli CPU a request", "us"), Column("proxy_us", "proxy CPU a request", "us"),
    Column("each", "requests a backend connection"), Column("backend_accepts", "backend connections"),
]  # fmt: skip


class UpstreamPlan(ExperimentPlan, frozen=True, kw_only=True):
    rounds: Count = 5
    duration: str = "10s"
    connections: Count = 32


async def _run(context: Context) -> None:
    for number in range(context.plan.rounds):
        for step in turned([*_STEPS], number):
            if context.wanted("nginx-proxy"):
                with context.step("nginx-proxy", "nginx as a proxy"):
                    await _measure(context, step, number)


async def _measure(context: Context, step: str, number: int) -> None:
    many, (keepalive, most, idle) = context.plan.connections, _STEPS[step]
    async with LabNginxProxy(
        many + 64, upstream_keepalive=keepalive, backend_keepalive_requests=most, upstream_idle=idle
    ) as proxy:
        before = [await _counts(backend) for backend in proxy.backends]
        found = figures(await context.bench(proxy, connections=many, duration=context.plan.duration))
        after = [await _counts(backend) for backend in proxy.backends]
    # Each look is a request on a connection of its own, and counts itself.
    accepts, requests = (sum(b[at] - a[at] - 1 for a, b in zip(before, after, strict=True)) for at in (0, 1))
    each = requests / accepts if accepts else None
    context.add(step, number, **found, proxy_us=found["server_us"], backend_accepts=accepts, backend_requests=requests, each=each)
    context.tell(number, f"keep-alive {step}", f"{found['per_s']:,.0f} requests a second, {accepts:,} backend connections")


async def _counts(backend: LabNginx) -> tuple[int, int]:
    """Accepts and requests of a backend."""
    _, _, body = (await ask(backend.status_port, backend.status_path)).decode("latin-1").partition("\r\n\r\n")
    try:
        counts = parse_page(body).values
    except NotStatusPage as error:
        raise HostError(f"a backend's status page cannot be read ({error}); look at the host's load") from None
    return int(counts[STATUS_ACCEPTS]), int(counts[STATUS_REQUESTS])


def conclude(plan: UpstreamPlan, rounds: Rounds) -> Conclusions:
    """Its table, and what it says of the source's claims."""
    caption = (
        "One nginx worker as the proxy, two backends of one worker each, all on this host. Room: idle connections that the proxy "
        "keeps to both backends together; where more are free at one than are wanted there, it closes one that has served few."
    )
    if busy := sorted(limited(rounds)):
        caption += f" asyncli itself was the limit of keep-alive {'; '.join(busy)}: the proxy can do more."
    labels = {step: f"keep-alive {step}{'' if step in _SOURCE else ' (ours)'}" for step in _STEPS}
    table = rounds.table("Keep-alive from a proxy to its backends", _COLUMNS, labels, caption, _SOURCE)
    line = bars("here", [rounds.median(step, "per_s") for step in _STEPS])
    chart = Chart("bars", "Throughput of the proxy", "", "requests a second", [line], [*_STEPS])
    return Conclusions([table], [chart], [*_claims(rounds)])


def _claims(rounds: Rounds) -> Iterator[Claim]:
    # Where asyncli was the limit, the proxy's speed is unknown.
    busy = limited(rounds) & {_OFF, _FEW}
    gains = {"times the requests a second": [] if busy else rounds.ratio(_FEW, _OFF, "per_s")}
    note = unjudged(busy) or ("the source: 2.33 times" if any(gains.values()) else "")
    yield from claimed("Keep-alive to the backends more than doubles what a proxy carries.", Rule(low=2), gains, note)
    served = {idle: rounds.of(step, "each") for step, idle in ((_FEW, 32), (_FEW_ROOMY, 128))}
    cases = {
        f"{span(each, '.1f')} with room for {idle} idle ones in the proxy": [90 <= one <= 100 for one in each]
        for idle, each in served.items()
        if each
    }
    every = span([one for each in served.values() for one in each], ".1f") if cases else ""
    claim = "A backend with keepalive_requests 100 serves 100 requests on each connection."
    yield from counted(claim, "from 90 to 100, the last ones being cut short by the end", cases, figure=f"{every} requests")


EXPERIMENT = Experiment(
    name="upstream-keepalive",
    title="Keep-alive between a proxy and its backends",
    question="What does a proxy gain when it keeps its connections to the backends alive?",
    write_up="nginx upstream keepalive, off and on",
    source="wrk -t1 -c32 -d60s on nginx 1.16 before two backends: 21,203 requests/s and 1.61 ms off, 49,469 and 0.82 ms on",
    plan=UpstreamPlan,
    quick={"rounds": 1, "duration": "2s"},
    run=_run,
    conclude=conclude,
    servers=("nginx-proxy",),
)
