"""Counts how often the costs of a collected heap hold the truth, on real servers.

    python bench/collected.py [--servers go-http node-http] [--connections 4000] [--repeats 5]
    [--collected 0] [--collected-connections 450] [--truths 1] [--ramp 60] [--hold 50] [--rest 200]
    [--keep FOLDER]

The truth of *live* is a line through collections that asyncli forces at eight plateaus, in a run of
its own; of several such runs (--truths), their mean, with twice its standard error. The truth of *at goal* is the memory of the server's processes (PSS) after a hold of --rest
seconds, with all connections and with half of them. It is compared with the line of a repeat at so
many connections: a slope of two such holds would be worse known than what it is the truth for, as each collection sets another
goal. Each repeat is a new server and a
soak of about two minutes that reads the server's page of metrics, and nothing else. Printed for
each: the truth, how many of the intervals hold it (of those that are told), and their half widths.
*Collected* are --collected soaks of 450 connections in a minute in which asyncli asks for a
collection at each of five plateaus (``--collect``), and reads no page. Their truth is what is alive
at the hold's end with all connections, less that with half of them in --truths soaks of the same
length: what grows by the clock is in both. The slope of resident memory stands beside them, which
is what a report had without the page.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from common import command, machine, settle

from asyncli.analysis.cost import costs
from asyncli.analysis.cost_parts import Costs
from asyncli.analysis.slope import Cost
from asyncli.api import soak
from asyncli.lab import choose
from asyncli.model import metrics
from asyncli.model.plan import Layer, build_plan
from asyncli.model.run import Run
from asyncli.store.reader import read_run

LAST_S = 15.0
NEAR = 0.05
LINES: dict[str, Callable[[Costs], Cost | None]] = {
    "at goal": lambda cost: cost.heap.at_goal,
    "resident": lambda cost: cost.server_user,
}


class Setup(NamedTuple):
    """A soak. It asks for collections where it has plateaus. All but the counts in seconds."""

    connections: int
    ramp_s: int
    hold: int
    plateaus: int = 0
    plateau_rest: int = 0
    reads_page: bool = True


class Truth(NamedTuple):
    """Bytes a connection, and twice the standard error of the runs' mean; of one run its own."""

    bytes_per_connection: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.bytes_per_connection:,.0f} B ± {self.half_width:,.0f}"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", nargs="+", default=["go-http", "node-http"])
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--collected", type=int, default=0, help="repeats with --collect")
    parser.add_argument("--collected-connections", type=int, default=450)
    parser.add_argument("--truths", type=int, default=1, help="runs that a truth is the mean of")
    parser.add_argument("--ramp", type=int, default=60, help="seconds of the ramp")
    parser.add_argument("--hold", type=int, default=50)
    parser.add_argument("--rest", type=int, default=200, help="seconds of the hold at rest")
    parser.add_argument("--keep", help="a folder for the run files; those in it are used again")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(exist_ok=True)
        for name in options.servers:
            await compare_with_truth(name, options, folder)


async def compare_with_truth(name: str, options: argparse.Namespace, folder: Path) -> None:
    print(f"\n{name}", flush=True)
    if options.repeats:
        await compare_by_page(name, options, folder)
    if options.collected:
        await compare_collected(name, options, folder)


async def compare_by_page(name: str, options: argparse.Namespace, folder: Path) -> None:
    for_long = Setup(options.connections, options.ramp, hold=options.rest)
    with_half = Setup(options.connections // 2, options.ramp, hold=options.rest)
    by_page = Setup(options.connections, options.ramp, hold=options.hold)
    truth = await truth_of(name, options.connections, options, folder)
    print(f"live {truth}", flush=True)
    at_rest = await run_of(name, for_long, folder / f"{name}-rest.db")
    half_at_rest = await run_of(name, with_half, folder / f"{name}-rest-half.db")
    repeats = [
        await run_of(name, by_page, folder / f"{name}-{number:02}.db")
        for number in range(options.repeats)
    ]
    known = [costs(run) for run in repeats]
    if truth is not None:
        report("live", [cost.heap.live for cost in known], truth)
    report_at_rest(known, [half_at_rest, at_rest])


async def compare_collected(name: str, options: argparse.Namespace, folder: Path) -> None:
    count = options.collected_connections
    label = "collected"
    if count != 450:
        label = f"collected-{count}"
    runs = await collected_runs(name, count, options.collected, folder, label)
    half = await collected_runs(name, count // 2, options.truths, folder, f"collected-{count // 2}")
    truth = truth_at_one_age(runs, half, count - count // 2)
    print(f"{name}, {count} connections: live {truth}", flush=True)
    report("collected", [costs(run).heap.live for run in runs], truth)


async def collected_runs(
    name: str, count: int, repeats: int, folder: Path, label: str
) -> list[Run]:
    setup = Setup(count, ramp_s=30, hold=6, plateaus=5, plateau_rest=4, reads_page=False)
    return [
        await run_of(name, setup, folder / f"{name}-{label}-{number:02}.db")
        for number in range(repeats)
    ]


def truth_at_one_age(runs: Sequence[Run], with_half: Sequence[Run], more: int) -> Truth:
    """What ``more`` connections keep alive, by what is alive at the hold's end with all and with
    half of them: in servers of one age, so that what grows by the clock is in both.
    """
    all_alive = alive_at_hold_end(runs)
    half_alive = alive_at_hold_end(with_half)
    difference = statistics.mean(all_alive) - statistics.mean(half_alive)
    variance = 0.0
    for alive in (all_alive, half_alive):
        variance += statistics.variance(alive) / len(alive)
    return Truth(difference / more, 2 * variance**0.5 / more)


def alive_at_hold_end(runs: Sequence[Run]) -> list[float]:
    """What was alive (bytes) at the last collection of the hold, of each run that has one."""
    alive = []
    for run in runs:
        hold = run.phase("hold")
        assert hold is not None
        in_hold = run.series(metrics.RUNTIME_FORCED_BYTES).between(hold.start_s, run.stop_s)
        alive += in_hold.values[-1:]
    return alive


async def truth_of(
    name: str, connections: int, options: argparse.Namespace, folder: Path
) -> Truth | None:
    """The mean of several runs with eight plateaus; None if one of them tells no cost."""
    setup = Setup(connections, options.ramp, hold=10, plateaus=8, plateau_rest=6)
    values = []
    half_width = 0.0
    for number in range(options.truths):
        run = await run_of(name, setup, folder / f"{name}-forced-{connections}-{number}.db")
        live = costs(run).heap.live
        if live is None:
            return None
        half_width = live.half_width
        values.append(live.bytes_per_connection)
    if len(values) > 1:
        half_width = 2 * statistics.stdev(values) / len(values) ** 0.5
    return Truth(statistics.mean(values), half_width)


def report(label: str, known: Sequence[Cost | None], truth: Truth) -> None:
    told = [cost for cost in known if cost is not None]
    if not told:
        print(f"  {label:9} told by 0 of {len(known)}")
        return
    value = truth.bytes_per_connection
    held = sum(cost.ci95[0] <= value <= cost.ci95[1] for cost in told)
    agree = sum(
        abs(cost.bytes_per_connection - value) <= cost.half_width + truth.half_width
        for cost in told
    )
    values = statistics.median(cost.bytes_per_connection for cost in told)
    half = statistics.median(cost.half_width / cost.bytes_per_connection for cost in told)
    widest = max(cost.half_width / cost.bytes_per_connection for cost in told)
    print(
        f"  {label:9} told by {len(told)} of {len(known)}, {held} hold {value:,.0f} B, "
        f"{agree} meet {truth}: median {values:,.0f} B, half width {half:.1%}, at most {widest:.1%}"
    )


def report_at_rest(known: Sequence[Costs], held: Sequence[Run]) -> None:
    """How far the memory at rest is from what a line said for so many connections: that of the heap
    when it has filled, and that of resident memory.
    """
    for run in held:
        level = memory_at_rest(run)
        if level is None:
            continue
        connections, at_rest = level
        print(f"  at rest with {connections:,.0f}: {at_rest / 1e6:.1f} MB")
        for label, of in LINES.items():
            deviations = []
            for cost in known:
                line = of(cost)
                if line is None:
                    continue
                said = line.fixed_bytes + line.bytes_per_connection * connections
                deviations.append(said / at_rest - 1)
            within = sum(abs(deviation) <= NEAR for deviation in deviations)
            middle = statistics.median(deviations) if deviations else 0.0
            print(
                f"    {label:9} told by {len(deviations)} of {len(known)}, {within} within "
                f"{NEAR:.0%}: median {middle:+.1%}, {min(deviations, default=0):+.1%} to "
                f"{max(deviations, default=0):+.1%}"
            )


def memory_at_rest(run: Run) -> tuple[float, float] | None:
    """How many connections are held at the hold's end, and the server's PSS then."""
    memory = run.series(metrics.SERVER_PSS_BYTES)
    hold = run.phase("hold")
    if hold is None or hold.end_s is None:
        return None
    after = memory.between(hold.end_s - LAST_S, hold.end_s).values
    held = run.held.at(hold.end_s - 1.0)
    if not after or held is None:
        return None
    return held, statistics.median(after)


async def run_of(name: str, setup: Setup, out: Path) -> Run:
    """A soak of a new server; a file that is there is read again."""
    if not out.exists():
        async with choose(name) as server:
            values = {
                "urls": [server.url],
                "server_pid": server.pid,
                "connections": setup.connections,
                "ramp": f"{max(1, setup.connections // setup.ramp_s)}/s",
                "hold": setup.hold,
            }
            if setup.reads_page:
                values["server_metrics"] = [server.metrics_url]
            if setup.plateaus:
                values |= {"plateaus": setup.plateaus, "plateau_rest": setup.plateau_rest}
                values |= {"collect": server.collect}
            await soak(build_plan([Layer("--{key}", values)]), out)
        settle()
    return read_run(out)


if __name__ == "__main__":
    asyncio.run(main())
