"""The experiment that asyncli comes from: one nginx, two clients on hosts of their own, its phases and its table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncli.analysis.cost import costs
from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.totals import fold
from asyncli.errors import EngineError
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.judging import ClaimCase, Interval, claimed, in_every_round, together
from asyncli.experiments.netns_testbed import (
    CLIENTS,
    HOSTS,
    SYSCTLS,
    Programs,
    in_rounds,
    memory,
    serving,
    slots_of,
    soak_words,
    suffix,
)  # fmt: skip
from asyncli.experiments.record import Claim, Column, Conclusions, FigureTable, Round, Rounds
from asyncli.experiments.soak_ladder import as_ms, own_cost
from asyncli.findings.experiment import slots
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNginx
from asyncli.metrics import HOST_FREE_BYTES, HOST_USED_BYTES, SERVER_CPU_S, SERVER_RSS_BYTES
from asyncli.records import Phase, Sample, Tick
from asyncli.run import Run
from asyncli.store.reader import read_run
from asyncli.units import parse_duration

_KB = 1024
# What a soak takes beside its phases: workers, preflight, report.
_SLACK_S = 120.0

_IDLE, _STARTED, _ON = "1. the idle host", "2. nginx started, no request", "3. both clients on"
_COLUMNS = [
    Column("free", "free", "B"), Column("used", "used", "B"), Column("rss", "nginx RSS", "B"), Column("active", "Active"),
    Column("waiting", "Waiting"), Column("accepts", "accepts"), Column("handled", "handled"), Column("requests", "requests"),
]  # fmt: skip
_SOURCE = {
    _IDLE: {"free": 1_723_336.0 * _KB, "used": 148_316.0 * _KB},
    _STARTED: {"free": 1_681_552.0 * _KB},
    _ON: {
        "free": 654_000.0 * _KB, "used": 1_042_512.0 * _KB, "rss": 94_600.0 * _KB, "active": 100_001.0, "waiting": 100_000.0,
        "accepts": 165_539.0, "handled": 165_539.0, "requests": 1_095_055.0,
    },
}  # fmt: skip
_COST = [
    Column("rss_each", "nginx RSS by connections", "B"), Column("user", "nginx, one more", "B"), Column("user_half", "±", "B"),
    Column("kernel", "kernel, its end", "B"), Column("own", "server's host, one more", "B"), Column("own_half", "±", "B"),
    Column("cpu", "nginx CPU", "share"),
]  # fmt: skip
_COST_SOURCE = {"rss_each": 968.7, "own": 9_156.6, "cpu": 0.02}
# Of fewer connections nginx's processes and slots are most of its memory, and a quotient says nothing.
_ENOUGH_TO_DIVIDE = 50_000
_COUNTS = [
    Column("asked", "asked"), Column("held", "held"), Column("lost", "lost"), Column("opened", "opened"),
    Column("answered", "answered"), Column("late_ms", "ramp late, p99", "ms"), Column("p99_ms", "latency p99", "ms"),
]  # fmt: skip


# Measuring.


async def _run(context: Context) -> None:
    await in_rounds(context, "nginx with two clients", _round)


async def _round(context: Context, number: int, folder: Path) -> None:
    plan = context.plan
    files = [folder / f"{name}{suffix(number)}.db" for name in ("client-9", "client-10")]
    with Network(HOSTS, SYSCTLS) as network:
        before = memory()
        async with serving(context, network, len(CLIENTS) * plan["connections"]) as (nginx, charges):
            started = memory()
            if not context.found(slots.code):
                context.findings.append(slots_of(nginx))
            await _soaks(context, network, nginx, files)
    clients = {file.name: await asyncio.to_thread(read_run, file) for file in files}
    first, second = clients.values()
    context.add(_IDLE, number, **before)
    context.add(_STARTED, number, **started, rss=first.series(SERVER_RSS_BYTES).first())
    found = figures_of(clients, both(first, second), charges.samples, sockets_charged=charges.with_sockets)
    context.add(_ON, number, **found["on"])
    context.add("cost", number, **found["cost"])
    for name, one in found["clients"].items():
        context.add(name, number, **one)
    for name, run in clients.items():
        context.findings += [
            msgspec.structs.replace(one, evidence=f"{name}: {one.evidence}") for one in run.findings if one.severity == "error"
        ]
    held = f"{found['on']['held']:,} of {found['on']['asked']:,} held by both, {found['on']['active']:,.0f} active on the server"
    context.tell(number, "both clients", f"{held}; {', '.join(map(str, files))}")


async def _soaks(context: Context, network: Network, nginx: LabNginx, files: Sequence[Path]) -> None:
    """Both clients as they would be started by hand, at one time; raises :class:`EngineError` where one measured nothing.

    The server's status page answers to nobody but its own host, so an agent there reads it, for the first of them: an agent is
    one session's.
    """
    plan = context.plan
    ramp_s = plan["connections"] / plan["rate"]
    most_s = ramp_s + parse_duration(plan["duration"]) + 2 * parse_duration(plan["baseline"]) + _SLACK_S
    async with Programs(network) as programs:
        url, token = await programs.agent(nginx.status_url)
        soaks = []
        for host, file in zip(CLIENTS, files, strict=True):
            words = [*soak_words(plan, nginx, plan["connections"], file), "--quiet"]
            of_agent = ([*words, "--agent", url], token) if host == CLIENTS[0] else (words, None)
            soaks.append(programs.start(host, "the soak", "asyncli", *of_agent))
        ended = await child.until(lambda: all(one.ended for one in soaks), most_s)
        for soak, file in zip(soaks, files, strict=True):
            if not ended:
                raise EngineError(
                    f"the soak of {soak.host} has not ended after {most_s:.0f} s ({soak.last_words}); look at the host's load"
                )
            if not file.exists():
                how = f"ended with {soak.process.returncode} and no run file"
                raise EngineError(f"the soak of {soak.host} {how}: {soak.last_words}")


# Reckoning: pure.


def both(first: Run, second: Run) -> Run:
    """The two as one run on the first's clock, with its samples of the server. Their hosts have one monotonic clock.

    A tick of the second joins the nearest of the first. The hold is while both hold; the second's plan is the first's.
    """
    shift_s = second.environment["clock"]["monotonic_s"] - first.environment["clock"]["monotonic_s"]
    ticks = [(t_s, Tick()) for t_s, _ in first.ticks]
    instants = np.array([t_s for t_s, _ in ticks])
    for run, by_s in ((first, 0.0), (second, shift_s)):
        gauges: dict[int, Tick] = {}
        for t_s, tick in run.ticks:
            at = int(np.argmin(np.abs(instants - t_s - by_s)))
            ticks[at][1].merge_counts(tick)
            gauges[at] = tick
        for at, tick in gauges.items():
            ticks[at][1].merge_gauges(tick)
    starts = []
    for one in first.phases:
        other = second.phase(one.name)
        if other is not None:
            # What begins a ramp or a drain begins with the first; a hold and a residue are of both.
            starts.append((one.name, (max if one.name in ("hold", "residue") else min)(one.start_s, other.start_s + shift_s)))
    ends = [start_s for _, start_s in starts[1:]]
    phases = [Phase(name, start_s, end_s) for (name, start_s), end_s in zip(starts, [*ends, first.phases[-1].end_s], strict=True)]
    plan = msgspec.structs.replace(first.plan, connections=2 * first.plan.connections, batch=2 * first.plan.batch)
    complete = first.complete and second.complete
    return msgspec.structs.replace(first, plan=plan, ticks=ticks, phases=phases, complete=complete)


def figures_of(
    clients: dict[str, Run], run: Run, charges: Sequence[Sample] = (), *, sockets_charged: bool = True
) -> dict[str, Any]:
    """What ``run``, of both, says: at the hold's end (``on``), of a connection's ``cost``, and of each of the ``clients``.

    ``charges``: of nginx's control group, by the monotonic clock of the host that all of them share.
    """
    totals, end = fold(run), run.stop_s
    known, disagreements = reconcile(run, totals)
    wrong = [one.evidence for one in disagreements if one.code.startswith("reconcile_") and one.severity != "info"]

    def last(name: str) -> float | None:
        return run.series(name).last(until_s=end)

    failures = fitness(None if run.complete else "a client did not come to its end", None if totals.held else "nothing was held")
    on = {
        **failures, **_counts_of(run), "agrees": known.agrees, "disagree": "; ".join(wrong) or None,
        "free": last(HOST_FREE_BYTES), "used": last(HOST_USED_BYTES), "rss": last(SERVER_RSS_BYTES),
        **{name: last(f"status.{name}") for name in ("active", "waiting", "accepts", "handled", "requests")},
    }  # fmt: skip
    zero_s = run.environment["clock"]["monotonic_s"]
    on_clock = [] if zero_s is None else [Sample(one.t_s - zero_s, one.values) for one in charges]
    return {
        "on": on,
        "cost": {**failures, **_cost(run, on, end, on_clock, sockets_charged)},
        "clients": {Path(name).stem: _counts_of(one) for name, one in clients.items()},
    }


def _counts_of(run: Run) -> dict[str, Any]:
    totals = fold(run)
    whole = totals.whole
    return {
        "asked": run.plan.connections, "held": totals.held, "lost": whole.lost, "opened": whole.opened,
        "answered": whole.answered,
        "late_ms": as_ms(whole.ramp_lateness_us.quantile(0.99)), "p99_ms": as_ms(whole.latency_us.quantile(0.99)),
    }  # fmt: skip


def _cost(run: Run, on: dict[str, Any], end_s: float, charges: list[Sample], sockets_charged: bool) -> dict[str, Any]:
    found = costs(run)
    hold = next((one for one in run.phases if one.name == "hold"), None)
    cpu = None
    if hold is not None and end_s > hold.start_s:
        spent = run.series(SERVER_CPU_S).between(hold.start_s, end_s)
        if len(spent) > 1:
            cpu = (spent.values[-1] - spent.values[0]) / (spent.t_s[-1] - spent.t_s[0])
    user, kernel = found.server_user, found.kernel
    return {
        "rss_each": on["rss"] / on["held"] if on["rss"] and on["held"] else None,
        "user": user and user.bytes_per_connection,
        "user_half": user and user.half_width,
        "kernel": kernel and kernel.bytes_per_connection,
        "kernel_half": kernel and kernel.half_width,
        **own_cost(run, found, charges, run.samples, sockets_charged=sockets_charged, clients=len(CLIENTS)),
        "cpu": cpu,
    }


def conclude(plan: dict[str, Any], measured: list[Round]) -> Conclusions:
    """Its tables, and what it says of the source's claims."""
    rounds = Rounds(measured)
    phases = FigureTable(
        "The three phases",
        _COLUMNS,
        [rounds.row(one, _COLUMNS, _SOURCE[one]) for one in (_IDLE, _STARTED, _ON)],
        "This host is server, both clients and the cable: free and used count both ends of each connection and asyncli's "
        "processes. Active counts the agent's poller. Used: net of buffers and cache.",
    )
    cost = FigureTable(
        "What one connection takes",
        _COST,
        [rounds.row("cost", _COST, _COST_SOURCE, "here")],
        "By connections: all of it, slots and what is fixed included, as the source reckons. One more: a slope with its 95 % "
        "interval. The server's host: what nginx's control group is charged, and its end's TCP socket where that is not; "
        "without a group all that this host takes, less the clients' ends and asyncli's memory; the source's "
        "is used memory by connections.",
    )
    steps = [*dict.fromkeys(one["step"] for one in rounds if one["step"].startswith("client-")), _ON]
    counts = FigureTable("The clients, and both as one run", _COUNTS, [rounds.row(one, _COUNTS) for one in steps])
    on = [one for one in rounds if one["step"] == _ON]
    cost_rounds = [one for one in rounds if one["step"] == "cost"]
    return Conclusions([phases, cost, counts], [], [*_held_claims(on), *_cost_claims(on, cost_rounds)])


def _held_claims(on: list[Round]) -> Iterator[Claim]:
    if not on:
        return
    first = on[0]
    active = "not known how many" if first["active"] is None else f"{first['active'] - 1:,.0f}"
    words = f"{first['held']:,} of {first['asked']:,} held, {first['lost']:,} lost, {active} active on the server"
    side = in_every_round(one["held"] == one["asked"] and not one["lost"] for one in on)
    claim = "One nginx holds all that two clients open, and loses none."
    yield claimed(claim, [ClaimCase(words, side)], "all, and none lost, in every round")
    words = first["disagree"] or "held, opened and answered by both clients are what the server counts"
    side = in_every_round(one["agrees"] for one in on) if all(one["agrees"] is not None for one in on) else None
    claim = "The counts of both clients and of the server agree (ours, not the source's)."
    yield claimed(claim, [ClaimCase(words, side)], "in every round")


def _cost_claims(on: list[Round], cost: list[Round]) -> Iterator[Claim]:
    if each := [one["rss_each"] for one in cost if one.get("rss_each")]:
        known = Interval(min(each), max(each))
        slope = ", ".join(f"{one['user']:,.0f} ± {one['user_half']:,.0f} B" for one in cost if one.get("user") is not None)
        enough = all(one["held"] >= _ENOUGH_TO_DIVIDE for one in on)
        yield claimed(
            "A connection takes about 1 KB of nginx's memory.",
            [ClaimCase(f"RSS by connections is {known.words(1500)} B", known.within(500, 1500) if enough else None)],
            "500 to 1,500 B, all of its RSS by all connections",
            more=f"One more takes {slope or 'what is not known'}: the rest are slots and processes, there before the first",
        )
    own = next((one for one in cost if one.get("own") is not None), None)
    if own is None:
        return
    kernel = Interval(own["kernel"] - own["kernel_half"], own["kernel"] + own["kernel_half"])
    # Whatever else moved on this host: what is known of its parts is in it.
    parts = kernel.low + (own["user"] - own["user_half"] if own.get("user") is not None else 0.0)
    high = max(own["own"] + own["own_half"], parts)
    known = Interval(min(high, max(own["own"] - own["own_half"], parts)), high)
    words = f"{known.words(10_240)} B on the server's host, of it {kernel.words()} B the kernel's"
    most = True if kernel.low > known.high / 2 else False if kernel.high <= known.low / 2 else None
    claim = "In all it takes less than 10 KB of the server's host, most of it the kernel's."
    case = ClaimCase(words, together([known.below(10_240), most]))
    yield claimed(claim, [case], "below 10,240 B, and the kernel more than half")
    if known.low > 0:
        fits = Interval(_ROOM / known.high, _ROOM / known.low)
        words = f"{fits.words(120_000, 180_000)} such connections fit into what was free there"
        more = "A connection that is idle takes less than in the source's kernel, so more fit" if fits.low > 180_000 else ""
        rule = "120,000 to 180,000 in 1,681,552 KB"
        yield claimed("2 GB of memory hold about 150,000.", [ClaimCase(words, fits.within(120_000, 180_000))], rule, more=more)


_ROOM = 1_681_552 * _KB

EXPERIMENT = Experiment(
    name="two-clients",
    title="One nginx, two clients of {connections:,}",
    question="What do {connections:,} long connections from each of two hosts take of one nginx and of its host?",
    source="asyncli.py -c 50000 on two clients, nginx 1.4.7 on CentOS 6.5 (kernel 2.6.32, 2 GB); ps and free in three phases",
    defaults={
        "rounds": 1,
        "duration": "60s",
        "connections": 50_000,
        "rate": 1_000,
        "keepalive": "60s",
        "baseline": "5s",
        "only": [],
    },
    quick={"connections": 1_000, "duration": "5s", "rate": 100, "keepalive": "10s", "baseline": "3s"},
    run=_run,
    conclude=conclude,
    servers=("nginx",),
    # A client's ports are 60,001.
    bounds={"connections": (1, 60_000), "rate": (1, 10_000), "keepalive": (2.0, 3_600.0), "rounds": (1, 100)},
)
