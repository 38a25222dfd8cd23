"""The original experiment's hosts as one cluster; one client host loses its network during the hold and gets it back."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from asyncli.analysis.reconcile import reconcile
from asyncli.analysis.totals import fold
from asyncli.core.adding import added_up
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments import netns_testbed as testbed
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, Rounds
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.model.errors import EngineError, PlanError
from asyncli.model.metrics import STATUS_ACTIVE
from asyncli.model.records import Tick
from asyncli.model.run import Run
from asyncli.model.units import format_duration, parse_duration
from asyncli.store.reader import read_run, read_with

_, _CUT_CLIENT = testbed.CLIENTS
# Time of a soak beside its phases: host probes, clock offsets, processes, preflight, report.
_SLACK_S = 90.0
# The last reading of the server is this long before the hold's end.
_LAST_READ_S = 1.0
# Allowed beyond the time that the ramp takes for as many connections: ticks come once a second.
_REOPEN_MARGIN_S = 5.0
_TICK_S = 1.2

_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END = (
    "before the cut", "the host is silent", "the host is lost", "all are held again", "the cable is put back",
    "the server has let the dead go", "near the hold's end",
)  # fmt: skip
_COLUMNS = [
    Column("after_s", "after the cut", "s"), Column("held", "held by asyncli"), Column("active", "Active"),
    Column("opened", "opened"), Column("lost", "lost"), Column("reopened", "reopened"),
]  # fmt: skip


class ClientLostPlan(ExperimentPlan, frozen=True, kw_only=True):
    duration: str = "100s"
    # Each client must be able to hold all of them: it has 60,001 ports.
    connections: Annotated[int, Meta(ge=1, le=30_000)] = 25_000
    rate: Count = 4_000
    keepalive: str = "60s"
    baseline: str = "5s"
    # A silent host is lost after 20 s; the agent buffers ten minutes of samples.
    cut: str = "40s"


class CutTimes(NamedTuple):
    """When the link went down, when it came up again, and shortly before the hold's end (s, monotonic)."""

    cut_s: float
    back_s: float
    end_s: float


async def _run(context: Context) -> None:
    # Fails with one line if Dask is not installed.
    importlib.import_module("asyncli.cluster.link")
    plan = context.plan
    if parse_duration(plan.duration) < (least_s := parse_duration(plan.cut) + 2 * _LAST_READ_S):
        raise PlanError(
            f"--duration: {plan.duration} is too short for a cut of {plan.cut}; write {format_duration(least_s)} or more"
        )
    await testbed.in_rounds(context, "nginx with a fleet of two", _round)


async def _round(context: Context, number: int, folder: Path) -> None:
    plan = context.plan
    file = folder / f"run{testbed.suffix(number)}.db"
    with Network(testbed.FLEET, testbed.SYSCTLS) as network:
        # Slots for lost connections that the server still holds, beside the reopened ones.
        most = (len(testbed.CLIENTS) + 1) * plan.connections
        async with testbed.serving(context, network, most) as (nginx, _), testbed.Programs(network) as programs:
            url, token = await programs.agent(nginx.status_url)
            address = await programs.cluster(testbed.SESSION)
            words = testbed.soak_arguments(plan, nginx, len(testbed.CLIENTS) * plan.connections, file)
            words += ["--cluster", address, "--agent", url, "--log-json"]
            times = await _cut_cable(plan, network, programs.start(testbed.SESSION, "the soak", "asyncli", words, token))
    run = await asyncio.to_thread(read_run, file)
    finding_times = await asyncio.to_thread(read_with, file, _finding_times)
    found = figures_of(run, finding_times, times)
    for step, one in found.items():
        context.add(step, number, **one)
    context.findings += [one for one in run.findings if one.code.startswith("host_")]
    context.report(number, "the fleet", f"{found['sum']['held']:,} of {found['sum']['asked']:,} held at the end; {file}")


async def _cut_cable(plan: Any, network: Network, soak: testbed.Running) -> CutTimes:
    """Take one client's link down midway in the hold, up again, and wait for the soak's end."""
    hold_s, cut_s = parse_duration(plan.duration), parse_duration(plan.cut)
    ramp_s = len(testbed.CLIENTS) * plan.connections / plan.rate
    await soak.wait_for_output('"event":"phase","phase":"hold"', parse_duration(plan.baseline) + ramp_s + _SLACK_S)
    begun_s = time.monotonic()
    await _wait_until(begun_s + (hold_s - cut_s) / 2, soak)
    cut_at_s = time.monotonic()
    network.link(_CUT_CLIENT, "down")
    await _wait_until(cut_at_s + cut_s, soak)
    back_at_s = time.monotonic()
    network.link(_CUT_CLIENT, "up")
    await _wait_until(begun_s + hold_s - _LAST_READ_S, soak)
    times = CutTimes(cut_at_s, back_at_s, time.monotonic())
    if not await child.until(lambda: soak.ended, parse_duration(plan.baseline) + ramp_s + _SLACK_S):
        raise EngineError(f"the soak has not ended ({soak.last_words}); look at the host's load")
    return times


async def _wait_until(at_s: float, soak: testbed.Running) -> None:
    """Wait until that monotonic instant. Raises :class:`EngineError` if the soak ends before."""
    if await child.until(lambda: soak.ended, at_s - time.monotonic()):
        raise EngineError(f"the soak ended early with status {soak.process.returncode}: {soak.last_words}")


def _finding_times(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """The code and the time (s) of each finding."""
    return [(str(code), float(t_s)) for code, t_s in connection.execute("SELECT code, t_s FROM findings ORDER BY rowid")]


def figures_of(run: Run, finding_times: Sequence[tuple[str, float]], times: CutTimes) -> dict[str, dict[str, Any]]:
    """The figures of each moment, the totals (``sum``), and the ``timeline`` in seconds after the cut. Pure."""
    zero_s = run.environment["clock"]["monotonic_s"]
    cut_s, back_s = times.cut_s - zero_s, times.back_s - zero_s
    asked, active = run.plan.connections, run.series(STATUS_ACTIVE)
    end_s = run.stop_s

    def first_finding(code: str) -> float | None:
        return next((t_s for name, t_s in finding_times if name == code and t_s > cut_s), None)

    lost_s = first_finding("host_lost")
    again_s = gone_s = None
    if lost_s is not None:
        again_s = next((t_s for t_s, tick in run.ticks if t_s > lost_s and tick.held == asked), None)
    if again_s is not None:
        # The agent's poller is one of the active connections.
        later = zip(active.t_s, active.values, strict=True)
        gone_s = next((t_s for t_s, count in later if max(again_s, back_s) < t_s <= end_s and count <= asked + 1), None)
    moments = {
        _BEFORE: cut_s, _SILENT: first_finding("host_silent"), _LOST: lost_s, _AGAIN: again_s, _BACK: back_s, _GONE: gone_s,
        _END: times.end_s - zero_s,
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, at_s in moments.items():
        if at_s is not None:
            # The next tick shows silence. It shows a loss too, but by then some are reopened: other counts are of the instant.
            late = [tick for t_s, tick in run.ticks if t_s <= at_s + _TICK_S]
            past = late if name == _SILENT else [tick for t_s, tick in run.ticks if t_s <= at_s]
            counts = added_up(Tick(), *past)
            lost = added_up(Tick(), *late).lost if name == _LOST else counts.lost
            # The first status page after it shows what was opened.
            read = active.first(since_s=at_s) if name == _AGAIN else active.last(until_s=at_s)
            found[name] = {
                "after_s": at_s - cut_s, "held": past[-1].held if past else 0, "active": read, "opened": counts.opened,
                "lost": lost, "reopened": counts.reopened,
            }  # fmt: skip
    totals = fold(run)
    known, _ = reconcile(run, totals)
    whole = totals.whole
    failures = fitness(None if run.complete else "the soak did not complete", None if totals.held else "nothing was held")
    found["sum"] = {
        **failures, "asked": asked, "held": totals.held, "opened": whole.opened, "lost": whole.lost,
        "causes": {name: dead.count for name, dead in whole.deaths.items()}, "failed": sum(whole.failures.values()),
        "accepted": known.accepts_delta, "lost_after_s": None if lost_s is None else lost_s - cut_s,
        "again_s": None if again_s is None or lost_s is None else again_s - lost_s,
    }  # fmt: skip
    found["timeline"] = {
        **failures, "held_s": [t_s - cut_s for t_s, _ in run.ticks], "held": [tick.held for _, tick in run.ticks],
        "active_s": [t_s - cut_s for t_s in active.t_s], "active": list(active.values),
    }  # fmt: skip
    return found


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The table, the chart and the claims."""
    table = rounds.table(
        "The cut", _COLUMNS, [_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END],
        "Connections of a silent host do not count as held. When the host is lost, its share is not yet reopened. Active "
        "includes the agent's poller, and connections of a lost host until the server notices.",
    )  # fmt: skip
    kinds = {"held by asyncli": "held", "active on the server": "active"}
    lines = [
        ChartLine(label, one[f"{kind}_s"], one[kind])
        for one in [one for one in rounds if one["step"] == "timeline"][:1]
        for label, kind in kinds.items()
    ]
    chart = Chart("lines", "Before, during and after the cut", "seconds after the cut", "connections", lines)
    return Conclusions([table], [chart], [*_claims(plan, rounds)])


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    sums = [one for one in rounds if one["step"] == "sum"]
    for claim, rule, words, sides in (
        ("The server loses no connection.", "all losses are generator_lost, and no connect failed",
         [f"lost: {', '.join(f'{count:,} {cause}' for cause, count in one['causes'].items())}" for one in sums],
         [{*one["causes"]} <= {"generator_lost"} and not one["failed"] for one in sums]),
        ("The counts add up to the last connection.", "opened less lost equals held, which equals requested",
         [f"{one['opened']:,} opened - {one['lost']:,} lost = {one['held']:,} held, of {one['asked']:,}" for one in sums],
         [one["opened"] - one["lost"] == one["held"] == one["asked"] for one in sums]),
        ("The server accepted as many as were opened.", "equal counts, without the agent's own connection",
         [f"{one['accepted'] or 0:,.0f} accepted" for one in sums],
         [one["accepted"] == one["opened"] for one in sums if one["accepted"] is not None]),
    ):  # fmt: skip
        yield from counted(claim, rule, {", ".join(words): sides})
    if again := rounds.of("sum", "again_s"):
        # Each process opens at its share of the rate.
        most_s = len(testbed.CLIENTS) * plan.connections / plan.rate + _REOPEN_MARGIN_S
        yield from claimed(
            "After the host is lost, its share is reopened as fast as the ramp opened it.", Rule(high=most_s),
            {"seconds until all are held again": Interval(min(again), max(again))}, unit="s",
        )  # fmt: skip
    back = [one for one in rounds if one["step"] == _BACK and one["active"] is not None]
    yield from counted(
        "The server counts lost connections as active until it notices the loss.",
        "when the link is up again, Active is more than held and the poller",
        {"; ".join(f"{one['active']:,.0f} active, {one['held']:,} held" for one in back):
         [one["active"] > one["held"] + 1 for one in back]},
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="client-lost",
    title="One nginx, two client hosts, and one of them cut off",
    question="What happens to {connections:,} connections of each of two client hosts when one loses its network for a while?",
    write_up="",
    source="asyncli's own: the hosts of the original experiment as one Dask cluster, with an agent beside nginx",
    plan=ClientLostPlan,
    quick={"connections": 200, "duration": "28s", "rate": 800, "keepalive": "8s", "baseline": "1s", "cut": "25s"},
    run=_run,
    conclude=conclude,
    servers=("nginx",),
)
