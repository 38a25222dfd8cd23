"""A proxy's connections to its backends: a new one for each request, or kept alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncli.collect.pages import NotStatusPage, parse_page
from asyncli.errors import HostError
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, figures
from asyncli.experiments.cputime import ServerCpu
from asyncli.experiments.judging import WORTH, ClaimCase, claimed, in_every_round, interval, limited
from asyncli.experiments.record import (
    Chart,
    Claim,
    Column,
    Conclusions,
    FigureTable,
    Round,
    Rounds,
    bars,
    span,
    turned,
    usable,
)  # fmt: skip
from asyncli.lab.nginx import LabNginx
from asyncli.lab.program import ask
from asyncli.lab.proxy import LabNginxProxy
from asyncli.metrics import STATUS_ACCEPTS, STATUS_REQUESTS

#: step -> (keep-alive to the backends, requests that a backend allows a connection, idle connections that the proxy keeps)
_STEPS = {
    "off": (False, 1_000, 32),
    "on, 100 a connection": (True, 100, 32),
    "on, 1,000 a connection": (True, 1_000, 32),
    "on, 100, room for 128": (True, 100, 128),
    "on, 1,000, room for 128": (True, 1_000, 128),
}
_FEW, _MANY = "on, 100 a connection", "on, 1,000 a connection"
_FEW_ROOMY, _MANY_ROOMY = "on, 100, room for 128", "on, 1,000, room for 128"
_SOURCE = {"off": {"per_s": 21_203.0, "mean_ms": 1.61}, _FEW: {"per_s": 49_469.0, "mean_ms": 0.82, "each": 100.0}}
# Of the hundred that a connection may serve.
_NEARLY_FULL = 90.0
_COLUMNS = [
    Column("per_s", "requests/s", "/s"), Column("mean_ms", "mean", "ms"), Column("p99_ms", "p99", "ms"),
    Column("client_us", "asyncli CPU a request", "us"), Column("proxy_us", "proxy CPU a request", "us"),
    Column("backend_us", "backends CPU a request", "us"), Column("each", "requests a backend connection"),
    Column("backend_accepts", "backend connections"),
]  # fmt: skip


async def _run(context: Context) -> None:
    plan = context.plan
    for number in range(plan["rounds"]):
        for step in turned([*_STEPS], number):
            if context.wanted("nginx-proxy"):
                with context.step("nginx-proxy", "nginx as a proxy"):
                    await _measure(context, step, number)


async def _measure(context: Context, step: str, number: int) -> None:
    plan, (keepalive, most, idle) = context.plan, _STEPS[step]
    many = plan["connections"]
    async with LabNginxProxy(
        many + 64, upstream_keepalive=keepalive, backend_keepalive_requests=most, upstream_idle=idle
    ) as proxy:
        before = [await _counts(backend) for backend in proxy.backends]
        cpu = ServerCpu(*proxy.backend_pids)
        begun = cpu.read()
        found = await context.bench(proxy, connections=many, duration=plan["duration"])
        backends = cpu.read().less(begun)
        after = [await _counts(backend) for backend in proxy.backends]
    # Each look is a request on a connection of its own, and counts itself.
    accepts, requests = (sum(b[at] - a[at] - 1 for a, b in zip(before, after, strict=True)) for at in (0, 1))
    mine = figures(found)
    context.add(
        step, number, **mine, proxy_us=mine["server_us"], backend_us=1e6 * backends.total_s / max(1, mine["total"]),
        backend_accepts=accepts, backend_requests=requests, each=requests / accepts if accepts else None,
    )  # fmt: skip
    context.tell(number, f"keep-alive {step}", f"{mine['per_s']:,.0f} requests a second, {accepts:,} backend connections")


async def _counts(backend: LabNginx) -> tuple[int, int]:
    """Accepts and requests of a backend."""
    _, _, body = (await ask(backend.status_port, backend.status_path)).decode("latin-1").partition("\r\n\r\n")
    try:
        counts = parse_page(body).values
    except NotStatusPage as error:
        raise HostError(f"a backend's status page cannot be read ({error}); look at the host's load") from None
    return int(counts[STATUS_ACCEPTS]), int(counts[STATUS_REQUESTS])


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its table, and what it says of the source's claims."""
    rounds = usable(measured)
    rows = [rounds.row(step, _COLUMNS, _SOURCE.get(step), f"keep-alive {step}") for step in _STEPS]
    caption = "One nginx worker as the proxy, two backends of one worker each, all on this host."
    if busy := sorted(limited(rounds)):
        caption += f" asyncli itself was the limit of keep-alive {'; '.join(busy)}: the proxy can do more."
    table = FigureTable("Keep-alive from a proxy to its backends", _COLUMNS, rows, caption)
    line = bars("here", [row.median("per_s") for row in rows])
    chart = Chart("bars", "Throughput of the proxy", "", "requests a second", [line] if line.ys else [], [*_STEPS])
    return Conclusions([table], [chart], [*_claims(rounds)])


def _claims(rounds: Rounds) -> Iterator[Claim]:
    yield from _carries(
        rounds, "Keep-alive to the backends more than doubles what a proxy carries.", _FEW, "off", 2,
        "times the requests a second of none; the source had 2.33 times",
    )  # fmt: skip
    yield from _serves_as_many(rounds)
    yield from _carries(
        rounds, "nginx's later default, 1,000 requests a connection, carries more than 100.", _MANY_ROOMY, _FEW_ROOMY, WORTH,
        "times the requests a second of 100 a connection, with room for 128",
    )  # fmt: skip
    yield from _carries(
        rounds, "Room for more idle connections than there are clients pays (ours, not the source's).", _FEW_ROOMY, _FEW, WORTH,
        "times the requests a second with room for 128 in place of 32",
    )  # fmt: skip


def _carries(rounds: Rounds, claim: str, step: str, other: str, bound: float, words: str) -> Iterator[Claim]:
    """That ``step`` carries more than ``bound`` times what ``other`` does."""
    if gains := rounds.ratio(step, other, "per_s"):
        known = interval(gains)
        cases = [ClaimCase(f"{known.words(bound)} {words}", known.above(bound), (known,))]
        if busy := sorted(limited(rounds) & {step, other}):
            # What the proxy could do then is not known.
            cases = []
            words = f"asyncli was the limit of keep-alive {'; '.join(busy)}, which is no figure of the proxy"
        yield claimed(claim, cases, f"above {bound:g} times", more="" if cases else words)


def _serves_as_many(rounds: Rounds) -> Iterator[Claim]:
    cases = []
    for step, idle in ((_FEW, 32), (_FEW_ROOMY, 128)):
        if each := rounds.of(step, "each"):
            words = f"{span(each, '.1f')} requests a connection with room for {idle} idle ones in the proxy"
            cases.append(ClaimCase(words, in_every_round(_NEARLY_FULL <= one <= 100 for one in each)))
    if cases:
        why = (
            "32 are as many as the clients, but for both backends together: where more are free at one than are wanted there, "
            "the proxy closes one that has served few"
        )
        rule = f"{_NEARLY_FULL:.0f} to 100 in every round; the last ones are cut short by the end"
        yield claimed(
            "A backend with keepalive_requests 100 serves 100 requests on each connection.", cases, rule,
            more="" if cases[0].side else why,
        )  # fmt: skip


EXPERIMENT = Experiment(
    name="upstream-keepalive",
    title="Keep-alive between a proxy and its backends",
    question="What does a proxy gain when it keeps its connections to the backends alive?",
    source="wrk -t1 -c32 -d60s on nginx 1.16 before two backends: 21,203 requests/s and 1.61 ms off, 49,469 and 0.82 ms on",
    defaults={"rounds": 5, "duration": "10s", "connections": 32, "only": []},
    quick={"rounds": 1, "duration": "2s"},
    run=_run,
    conclude=conclude,
    servers=("nginx-proxy",),
)
