"""The original experiment's hosts as one fleet, one of which loses its cable during the hold and gets it back."""

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
from asyncli.errors import EngineError, PlanError
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments import netns_testbed as testbed
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, Rounds
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.metrics import STATUS_ACTIVE
from asyncli.records import Tick
from asyncli.run import Run
from asyncli.store.reader import read_run, read_with
from asyncli.units import format_duration, parse_duration

_, _CUT = testbed.CLIENTS
# What a soak takes beside its phases: probing hosts, clock offsets, processes, preflight, report.
_SLACK_S = 90.0
# The server's sockets are last read so long before the hold's end.
_LAST_LOOK_S = 1.0
# Beyond the time that the ramp takes for as many: ticks come once a second.
_SOON_S = 5.0
_TICK_S = 1.2

_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END = (
    "before the cut", "the host is silent", "the host is lost", "all are held again", "the cable is put back",
    "the server has let the dead go", "near the hold's end",
)  # fmt: skip
_COLUMNS = [
    Column("after_s", "after the cut", "s"), Column("held", "held by us"), Column("active", "Active"), Column("opened", "opened"),
    Column("lost", "lost"), Column("reopened", "opened again"),
]  # fmt: skip


class ClientLostPlan(ExperimentPlan, frozen=True, kw_only=True):
    duration: str = "100s"
    # Either must be able to hold all: a client has 60,001 ports.
    connections: Annotated[int, Meta(ge=1, le=30_000)] = 25_000
    rate: Count = 4_000
    keepalive: str = "60s"
    baseline: str = "5s"
    # A host is lost after 20 s; the agent keeps ten minutes of samples.
    cut: str = "40s"


class Watched(NamedTuple):
    """When the cable was pulled, when put back, and shortly before the hold's end (s, monotonic)."""

    cut_s: float
    back_s: float
    end_s: float


# Measuring.


async def _run(context: Context) -> None:
    # It says in one line that Dask is not installed here.
    importlib.import_module("asyncli.cluster.link")
    plan = context.plan
    if parse_duration(plan.duration) < (least_s := parse_duration(plan.cut) + 2 * _LAST_LOOK_S):
        raise PlanError(
            f"--duration: {plan.duration} is too short for a cut of {plan.cut}; write {format_duration(least_s)} or more"
        )
    await testbed.in_rounds(context, "nginx with a fleet of two", _round)


async def _round(context: Context, number: int, folder: Path) -> None:
    plan = context.plan
    file = folder / f"run{testbed.suffix(number)}.db"
    with Network(testbed.FLEET, testbed.SYSCTLS) as network:
        # Room for the dead beside those that are opened again.
        most = (len(testbed.CLIENTS) + 1) * plan.connections
        async with (
            testbed.serving(context, network, most) as (nginx, _),
            testbed.Programs(network) as programs,
        ):
            url, token = await programs.agent(nginx.status_url)
            address = await programs.cluster(testbed.SESSION)
            words = testbed.soak_words(plan, nginx, len(testbed.CLIENTS) * plan.connections, file)
            words += ["--cluster", address, "--agent", url, "--log-json"]
            watched = await _watch(plan, network, programs.start(testbed.SESSION, "the soak", "asyncli", words, token))
    run = await asyncio.to_thread(read_run, file)
    told_s = await asyncio.to_thread(read_with, file, _told)
    found = figures_of(run, told_s, watched)
    for step, one in found.items():
        context.add(step, number, **one)
    context.findings += [one for one in run.findings if one.code.startswith("host_")]
    context.tell(number, "the fleet", f"{found['sum']['held']:,} of {found['sum']['asked']:,} held at the end; {file}")


async def _watch(plan: Any, network: Network, soak: testbed.Running) -> Watched:
    """Pull the cable of one client midway in the hold, put it back, and wait for the soak's end."""
    hold_s, cut_s = parse_duration(plan.duration), parse_duration(plan.cut)
    ramp_s = len(testbed.CLIENTS) * plan.connections / plan.rate
    await soak.until_said('"event":"phase","phase":"hold"', parse_duration(plan.baseline) + ramp_s + _SLACK_S)
    begun_s = time.monotonic()
    await _until(begun_s + (hold_s - cut_s) / 2, soak)
    cut_at_s = time.monotonic()
    network.link(_CUT, "down")
    await _until(cut_at_s + cut_s, soak)
    back_at_s = time.monotonic()
    network.link(_CUT, "up")
    await _until(begun_s + hold_s - _LAST_LOOK_S, soak)
    watched = Watched(cut_at_s, back_at_s, time.monotonic())
    if not await child.until(lambda: soak.ended, parse_duration(plan.baseline) + ramp_s + _SLACK_S):
        raise EngineError(f"the soak has not ended ({soak.last_words}); look at the host's load")
    return watched


async def _until(at_s: float, soak: testbed.Running) -> None:
    """Wait until that monotonic instant. Raises :class:`EngineError` where the soak ends before."""
    if await child.until(lambda: soak.ended, at_s - time.monotonic()):
        raise EngineError(f"the soak ended with {soak.process.returncode} in the midst of it: {soak.last_words}")


# Computing: pure.


def _told(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """The findings' codes, and when each was made (s)."""
    return [(str(code), float(t_s)) for code, t_s in connection.execute("SELECT code, t_s FROM findings ORDER BY rowid")]


def figures_of(run: Run, told_s: Sequence[tuple[str, float]], watched: Watched) -> dict[str, dict[str, Any]]:
    """Each moment's figures, what all of it adds up to (``sum``), and the ``timeline``, by the seconds after the cut."""
    zero_s = run.environment["clock"]["monotonic_s"]
    cut_s, back_s = watched.cut_s - zero_s, watched.back_s - zero_s
    asked, active = run.plan.connections, run.series(STATUS_ACTIVE)
    end_s = run.stop_s

    def told(code: str) -> float | None:
        return next((t_s for name, t_s in told_s if name == code and t_s > cut_s), None)

    def first_held(after_s: float | None) -> float | None:
        return None if after_s is None else next((t_s for t_s, tick in run.ticks if t_s > after_s and tick.held == asked), None)

    lost_s = told("host_lost")
    again_s = first_held(lost_s)
    gone_s = None
    if again_s is not None:
        # The agent's poller is one of them.
        later = zip(active.t_s, active.values, strict=True)
        gone_s = next((t_s for t_s, count in later if max(again_s, back_s) < t_s <= end_s and count <= asked + 1), None)
    moments = {
        _BEFORE: cut_s, _SILENT: told("host_silent"), _LOST: lost_s, _AGAIN: again_s, _BACK: back_s, _GONE: gone_s,
        _END: watched.end_s - zero_s,
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, at_s in moments.items():
        if at_s is not None:
            # Silence shows in the next tick; a loss too, but others have reopened some by then: the rest is as of the instant.
            late = [tick for t_s, tick in run.ticks if t_s <= at_s + _TICK_S]
            past = late if name == _SILENT else [tick for t_s, tick in run.ticks if t_s <= at_s]
            counts = added_up(Tick(), *past)
            lost = added_up(Tick(), *late).lost if name == _LOST else counts.lost
            # What was opened shows in the first page that was read after it.
            read = active.first(since_s=at_s) if name == _AGAIN else active.last(until_s=at_s)
            found[name] = {
                "after_s": at_s - cut_s, "held": past[-1].held if past else 0, "active": read, "opened": counts.opened,
                "lost": lost, "reopened": counts.reopened,
            }  # fmt: skip
    totals = fold(run)
    known, _ = reconcile(run, totals)
    whole = totals.whole
    # Unusable without a hold.
    failures = fitness(None if run.complete else "the soak did not come to its end", None if totals.held else "nothing was held")
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
    """Its table and picture, and its claims."""
    table = rounds.table(
        "The cut", _COLUMNS, [_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END],
        "A host that is silent holds nothing that counts; when it is lost, nobody has opened its share again yet. Active counts "
        "the agent's poller, and connections whose client is gone for as long as the server does not know.",
    )  # fmt: skip
    kinds = {"held by us": "held", "active on the server": "active"}
    lines = [
        ChartLine(label, one[f"{kind}_s"], one[kind])
        for one in [one for one in rounds if one["step"] == "timeline"][:1]
        for label, kind in kinds.items()
    ]
    chart = Chart("lines", "Before, while and after", "seconds after the cut", "connections", lines)
    return Conclusions([table], [chart], [*_claims(plan, rounds)])


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    sums = [one for one in rounds if one["step"] == "sum"]
    for claim, rule, words, sides in (
        ("Nothing is lost on the server's account.", "all that are lost are the generator's own loss, and none failed",
         [f"lost: {', '.join(f'{count:,} {cause}' for cause, count in one['causes'].items())}" for one in sums],
         [{*one["causes"]} <= {"generator_lost"} and not one["failed"] for one in sums]),
        ("The sum adds up to the last connection.", "opened less lost is held, and all that were asked for",
         [f"{one['opened']:,} opened - {one['lost']:,} lost = {one['held']:,} held, of {one['asked']:,}" for one in sums],
         [one["opened"] - one["lost"] == one["held"] == one["asked"] for one in sums]),
        ("The server accepted as many as were opened.", "the same count, less the agent's own connection",
         [f"{one['accepted'] or 0:,.0f} accepted" for one in sums],
         [one["accepted"] == one["opened"] for one in sums if one["accepted"] is not None]),
    ):  # fmt: skip
        yield from counted(claim, rule, {", ".join(words): sides})
    if again := rounds.of("sum", "again_s"):
        # Each process opens at its share of the pace.
        soon_s = len(testbed.CLIENTS) * plan.connections / plan.rate + _SOON_S
        yield from claimed(
            "Once the host is given up, its share is open again as fast as the ramp opened it.", Rule(high=soon_s),
            {"seconds until all are held again": Interval(min(again), max(again))}, unit="s",
        )  # fmt: skip
    back = [one for one in rounds if one["step"] == _BACK and one["active"] is not None]
    yield from counted(
        "The server counts the dead ones until it learns that they are.",
        "Active is more than what is held, and the poller, when the cable is put back",
        {"; ".join(f"{one['active']:,.0f} active, {one['held']:,} held" for one in back):
         [one["active"] > one["held"] + 1 for one in back]},
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="client-lost",
    title="One nginx, a fleet of two, and one of them cut off",
    question="What becomes of {connections:,} connections of each of two hosts when one loses its cable, and gets it back?",
    write_up="",
    source="ours: the hosts of the original experiment, as one fleet by Dask, with an agent beside nginx",
    plan=ClientLostPlan,
    quick={"connections": 200, "duration": "28s", "rate": 800, "keepalive": "8s", "baseline": "1s", "cut": "25s"},
    run=_run,
    conclude=conclude,
    servers=("nginx",),
)
