"""The original experiment's hosts as one cluster; one client host loses its network during the hold
and gets it back.
"""

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
from asyncli.analysis.totals import Totals, fold
from asyncli.core.adding import added_up
from asyncli.experiments import Count, Experiment, ExperimentPlan
from asyncli.experiments import netns_testbed as testbed
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.judging import Interval, Rule, claimed, counted
from asyncli.experiments.record import Chart, ChartLine, Claim, Column, Conclusions, Round, Rounds
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
    "before the cut",
    "the host is silent",
    "the host is lost",
    "all are held again",
    "the cable is put back",
    "the server has let the dead go",
    "near the hold's end",
)
_COLUMNS = [
    Column("after_s", "after the cut", "s"),
    Column("held", "held by asyncli"),
    Column("active", "Active"),
    Column("opened", "opened"),
    Column("lost", "lost"),
    Column("reopened", "reopened"),
]


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
    """When the link went down, when it came up again, and shortly before the hold's end (s,
    monotonic).
    """

    cut_s: float
    back_s: float
    end_s: float


async def _run(context: Context) -> None:
    # Fails with one line if Dask is not installed.
    importlib.import_module("asyncli.cluster.link")
    plan = context.plan
    least_s = parse_duration(plan.cut) + 2 * _LAST_READ_S
    if parse_duration(plan.duration) < least_s:
        raise PlanError(
            f"--duration: {plan.duration} is too short for a cut of {plan.cut}; "
            f"write {format_duration(least_s)} or more"
        )
    await testbed.in_rounds(context, "nginx with a fleet of two", _round)


async def _round(context: Context, number: int, folder: Path) -> None:
    plan = context.plan
    file = folder / f"run{testbed.suffix(number)}.db"
    with Network(testbed.FLEET, testbed.SYSCTLS) as network:
        # Slots for lost connections that the server still holds, beside the reopened ones.
        slots = (len(testbed.CLIENTS) + 1) * plan.connections
        async with (
            testbed.serving(context, network, slots) as (nginx, _),
            testbed.Programs(network) as programs,
        ):
            url, token = await programs.agent(nginx.status_url)
            address = await programs.cluster(testbed.SESSION)
            connections = len(testbed.CLIENTS) * plan.connections
            arguments = testbed.soak_arguments(plan, nginx, connections, file)
            arguments += ["--cluster", address, "--agent", url, "--log-json"]
            soak = programs.start(testbed.SESSION, "the soak", "asyncli", arguments, token)
            times = await _cut_cable(plan, network, soak)
    run = await asyncio.to_thread(read_run, file)
    finding_times = await asyncio.to_thread(read_with, file, _finding_times)
    figures = figures_of(run, finding_times, times)
    for step, figures_of_step in figures.items():
        context.add(step, number, **figures_of_step)
    for finding in run.findings:
        if finding.code.startswith("host_"):
            context.findings.append(finding)
    held = figures["sum"]["held"]
    asked = figures["sum"]["asked"]
    context.report(number, "the fleet", f"{held:,} of {asked:,} held at the end; {file}")


async def _cut_cable(plan: Any, network: Network, soak: testbed.Running) -> CutTimes:
    """Take one client's link down midway in the hold, up again, and wait for the soak's end."""
    hold_s = parse_duration(plan.duration)
    cut_s = parse_duration(plan.cut)
    ramp_s = len(testbed.CLIENTS) * plan.connections / plan.rate
    wait_s = parse_duration(plan.baseline) + ramp_s + _SLACK_S
    await soak.wait_for_output('"event":"phase","phase":"hold"', wait_s)
    begun_s = time.monotonic()
    await _wait_until(begun_s + (hold_s - cut_s) / 2, soak)
    cut_at_s = time.monotonic()
    network.link(_CUT_CLIENT, "down")
    await _wait_until(cut_at_s + cut_s, soak)
    back_at_s = time.monotonic()
    network.link(_CUT_CLIENT, "up")
    await _wait_until(begun_s + hold_s - _LAST_READ_S, soak)
    times = CutTimes(cut_at_s, back_at_s, time.monotonic())
    if not await child.until(lambda: soak.ended, wait_s):
        raise EngineError(f"the soak has not ended ({soak.last_words}); look at the host's load")
    return times


async def _wait_until(at_s: float, soak: testbed.Running) -> None:
    """Wait until that monotonic instant. Raises :class:`EngineError` if the soak ends before."""
    if await child.until(lambda: soak.ended, at_s - time.monotonic()):
        status = soak.process.returncode
        raise EngineError(f"the soak ended early with status {status}: {soak.last_words}")


def _finding_times(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """The code and the time (s) of each finding."""
    rows = connection.execute("SELECT code, t_s FROM findings ORDER BY rowid")
    return [(str(code), float(t_s)) for code, t_s in rows]


def figures_of(
    run: Run, finding_times: Sequence[tuple[str, float]], times: CutTimes
) -> dict[str, dict[str, Any]]:
    """The figures of each moment, the totals (``sum``), and the ``timeline`` in seconds after the
    cut. Pure.
    """
    zero_s = run.environment["clock"]["monotonic_s"]
    since_start = CutTimes(*(time_s - zero_s for time_s in times))
    cut_s = since_start.cut_s
    moments = _moments(run, finding_times, since_start)
    figures: dict[str, dict[str, Any]] = {}
    for name, at_s in moments.items():
        if at_s is not None:
            figures[name] = {"after_s": at_s - cut_s, **_counts_at(run, name, at_s)}
    totals = fold(run)
    failures = []
    if not run.complete:
        failures.append("the soak did not complete")
    if not totals.held:
        failures.append("nothing was held")
    lost_s = moments[_LOST]
    again_s = moments[_AGAIN]
    lost_after_s = None
    if lost_s is not None:
        lost_after_s = lost_s - cut_s
    again_after_s = None
    if lost_s is not None and again_s is not None:
        again_after_s = again_s - lost_s
    figures["sum"] = {
        **fitness(*failures),
        **_sum_of(run, totals),
        "lost_after_s": lost_after_s,
        "again_s": again_after_s,
    }
    active = run.series(STATUS_ACTIVE)
    figures["timeline"] = {
        **fitness(*failures),
        "held_s": [t_s - cut_s for t_s, _ in run.ticks],
        "held": [tick.held for _, tick in run.ticks],
        "active_s": [t_s - cut_s for t_s in active.t_s],
        "active": list(active.values),
    }
    return figures


def _moments(
    run: Run, finding_times: Sequence[tuple[str, float]], times: CutTimes
) -> dict[str, float | None]:
    """When each moment was (s, as ``times``); None: it never came."""

    def first_finding(code: str) -> float | None:
        for finding_code, t_s in finding_times:
            if finding_code == code and t_s > times.cut_s:
                return t_s
        return None

    lost_s = first_finding("host_lost")
    again_s = None
    gone_s = None
    if lost_s is not None:
        again_s = _all_held_s(run, lost_s)
    if again_s is not None:
        gone_s = _dead_gone_s(run, max(again_s, times.back_s))
    return {
        _BEFORE: times.cut_s,
        _SILENT: first_finding("host_silent"),
        _LOST: lost_s,
        _AGAIN: again_s,
        _BACK: times.back_s,
        _GONE: gone_s,
        _END: times.end_s,
    }


def _all_held_s(run: Run, since_s: float) -> float | None:
    for t_s, tick in run.ticks:
        if t_s > since_s and tick.held == run.plan.connections:
            return t_s
    return None


def _dead_gone_s(run: Run, since_s: float) -> float | None:
    """When the server counted no more active connections than asyncli asked for."""
    active = run.series(STATUS_ACTIVE)
    # The agent's poller is one of the active connections.
    limit = run.plan.connections + 1
    for t_s, count in zip(active.t_s, active.values, strict=True):
        if since_s < t_s <= run.stop_s and count <= limit:
            return t_s
    return None


def _counts_at(run: Run, name: str, at_s: float) -> dict[str, Any]:
    """The counts of a moment. The next tick shows silence. It shows a loss too, but by then some
    are reopened: other counts are of the instant.
    """
    at_next_tick = [tick for t_s, tick in run.ticks if t_s <= at_s + _TICK_S]
    ticks = [tick for t_s, tick in run.ticks if t_s <= at_s]
    if name == _SILENT:
        ticks = at_next_tick
    counts = added_up(Tick(), *ticks)
    lost = counts.lost
    if name == _LOST:
        lost = added_up(Tick(), *at_next_tick).lost
    status_page = run.series(STATUS_ACTIVE)
    active = status_page.last(until_s=at_s)
    if name == _AGAIN:
        # The first status page after it shows what was opened.
        active = status_page.first(since_s=at_s)
    return {
        "held": ticks[-1].held if ticks else 0,
        "active": active,
        "opened": counts.opened,
        "lost": lost,
        "reopened": counts.reopened,
    }


def _sum_of(run: Run, totals: Totals) -> dict[str, Any]:
    reconciled, _ = reconcile(run, totals)
    whole = totals.whole
    return {
        "asked": run.plan.connections,
        "held": totals.held,
        "opened": whole.opened,
        "lost": whole.lost,
        "causes": whole.lost_by_cause,
        "failed": whole.failed,
        "accepted": reconciled.accepts_delta,
    }


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The table, the chart and the claims."""
    table = rounds.table(
        "The cut",
        _COLUMNS,
        [_BEFORE, _SILENT, _LOST, _AGAIN, _BACK, _GONE, _END],
        "Connections of a silent host do not count as held. When the host is lost, its share is "
        "not yet reopened. Active includes the agent's poller, and connections of a lost host "
        "until the server notices.",
    )
    lines = []
    for timeline in rounds.in_step("timeline")[:1]:
        lines.append(ChartLine("held by asyncli", timeline["held_s"], timeline["held"]))
        lines.append(ChartLine("active on the server", timeline["active_s"], timeline["active"]))
    chart = Chart(
        "lines", "Before, during and after the cut", "seconds after the cut", "connections", lines
    )
    return Conclusions([table], [chart], [*_claims(plan, rounds)])


def _claims(plan: Any, rounds: Rounds) -> Iterator[Claim]:
    sums = rounds.in_step("sum")
    yield from _lost_none(sums)
    yield from _counts_add_up(sums)
    yield from _accepted_as_many(sums)
    again_s = rounds.of("sum", "again_s")
    if again_s:
        # Each process opens at its share of the rate.
        ramp_s = len(testbed.CLIENTS) * plan.connections / plan.rate
        yield from claimed(
            "After the host is lost, its share is reopened as fast as the ramp opened it.",
            Rule(high=ramp_s + _REOPEN_MARGIN_S),
            {"seconds until all are held again": Interval(min(again_s), max(again_s))},
            unit="s",
        )
    yield from _lost_ones_are_active(rounds)


def _lost_none(sums: Sequence[Round]) -> Iterator[Claim]:
    evidence = []
    sides = []
    for figures in sums:
        causes = [f"{count:,} {cause}" for cause, count in figures["causes"].items()]
        evidence.append(f"lost: {', '.join(causes)}")
        sides.append({*figures["causes"]} <= {"generator_lost"} and not figures["failed"])
    yield from counted(
        "The server loses no connection.",
        "all losses are generator_lost, and no connect failed",
        {", ".join(evidence): sides},
    )


def _counts_add_up(sums: Sequence[Round]) -> Iterator[Claim]:
    evidence = []
    sides = []
    for figures in sums:
        opened, lost, held, asked = (figures[key] for key in ("opened", "lost", "held", "asked"))
        evidence.append(f"{opened:,} opened - {lost:,} lost = {held:,} held, of {asked:,}")
        sides.append(opened - lost == held == asked)
    yield from counted(
        "The counts add up to the last connection.",
        "opened less lost equals held, which equals requested",
        {", ".join(evidence): sides},
    )


def _accepted_as_many(sums: Sequence[Round]) -> Iterator[Claim]:
    evidence = []
    sides = []
    for figures in sums:
        evidence.append(f"{figures['accepted'] or 0:,.0f} accepted")
        if figures["accepted"] is not None:
            sides.append(figures["accepted"] == figures["opened"])
    yield from counted(
        "The server accepted as many as were opened.",
        "equal counts, without the agent's own connection",
        {", ".join(evidence): sides},
    )


def _lost_ones_are_active(rounds: Rounds) -> Iterator[Claim]:
    evidence = []
    sides = []
    for figures in rounds.in_step(_BACK):
        if figures["active"] is not None:
            evidence.append(f"{figures['active']:,.0f} active, {figures['held']:,} held")
            sides.append(figures["active"] > figures["held"] + 1)
    yield from counted(
        "The server counts lost connections as active until it notices the loss.",
        "when the link is up again, Active is more than held and the poller",
        {"; ".join(evidence): sides},
    )


EXPERIMENT = Experiment(
    name="client-lost",
    title="One nginx, two client hosts, and one of them cut off",
    question=(
        "What happens to {connections:,} connections of each of two client hosts when one loses "
        "its network for a while?"
    ),
    write_up="",
    source=(
        "asyncli's own: the hosts of the original experiment as one Dask cluster, with an agent "
        "beside nginx"
    ),
    plan=ClientLostPlan,
    quick={
        "connections": 200,
        "duration": "28s",
        "rate": 800,
        "keepalive": "8s",
        "baseline": "1s",
        "cut": "25s",
    },
    run=_run,
    conclude=conclude,
    servers=("nginx",),
)
