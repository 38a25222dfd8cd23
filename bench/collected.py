"""Counts how often the costs of a collected heap hold the truth, on real servers.

    python bench/collected.py [--servers go-http node-http] [--connections 4000] [--repeats 5]
    [--ramp 60] [--hold 50] [--rest 200] [--keep FOLDER]

The truth of *live* is a line through collections that asyncli forces at eight plateaus, in a run of
its own. The truth of *at goal* is the memory of the server's processes (PSS) after a hold of --rest
seconds, less that before the first connect, by the connections. Each repeat is a new server and a
soak of about two minutes that reads the server's page of metrics, and nothing else. Printed for
each: the truth, how many of the intervals hold it (of those that are told), and their half widths.
Beside them, the slope of resident memory, which is what a report had without the page.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from common import command, machine, settle

from asyncli.analysis.cost import costs
from asyncli.analysis.slope import Cost
from asyncli.api import soak
from asyncli.lab import choose
from asyncli.model import metrics
from asyncli.model.plan import Layer, build_plan
from asyncli.model.run import Run
from asyncli.store.reader import read_run

# How each server is asked for a collection.
FORCED = {
    "go-http": "{base}/debug/pprof/heap?gc=1",
    "gorilla": "{base}/debug/pprof/heap?gc=1",
    "caddy": "{base}/debug/pprof/heap?gc=1",
    "node-http": "auto",
    "node-ws": "auto",
    "jvm": "auto",
}
LAST_S = 15.0


class Truth(NamedTuple):
    """Bytes of a connection, and half of the interval; None where it was not measured."""

    live: Cost | None
    at_rest: float | None


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", nargs="+", default=["go-http", "node-http"])
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
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
    forced = await run_of(name, options, folder / f"{name}-forced.db", forced=True, hold=10)
    at_rest = await run_of(name, options, folder / f"{name}-rest.db", hold=options.rest)
    truth = Truth(costs(forced).heap.live, memory_at_rest(at_rest))
    print(f"\n{name}: live {shown(truth.live)}, at rest {truth.at_rest or 0:,.0f} B")
    runs = [
        await run_of(name, options, folder / f"{name}-{number:02}.db", hold=options.hold)
        for number in range(options.repeats)
    ]
    known = [costs(run) for run in runs]
    if truth.live is not None:
        report("live", [cost.heap.live for cost in known], truth.live.bytes_per_connection)
    if truth.at_rest is not None:
        report("at goal", [cost.heap.at_goal for cost in known], truth.at_rest)
        report("resident", [cost.server_user for cost in known], truth.at_rest)


def shown(cost: Cost | None) -> str:
    if cost is None:
        return "unknown"
    return f"{cost.bytes_per_connection:,.0f} B ± {cost.half_width:,.0f}"


def report(label: str, known: list[Cost | None], truth: float) -> None:
    told = [cost for cost in known if cost is not None]
    if not told:
        print(f"  {label:9} told by 0 of {len(known)}")
        return
    held = sum(cost.ci95[0] <= truth <= cost.ci95[1] for cost in told)
    values = statistics.median(cost.bytes_per_connection for cost in told)
    half = statistics.median(cost.half_width / cost.bytes_per_connection for cost in told)
    widest = max(cost.half_width / cost.bytes_per_connection for cost in told)
    print(
        f"  {label:9} told by {len(told)} of {len(known)}, {held} hold {truth:,.0f} B: median "
        f"{values:,.0f} B, half width {half:.1%}, at most {widest:.1%}"
    )


def memory_at_rest(run: Run) -> float | None:
    """The PSS of the server at the hold's end less that before the first connect, a connection."""
    memory = run.series(metrics.SERVER_PSS_BYTES)
    before = memory.between(0.0, run.first_connect_s).values
    hold = run.phase("hold")
    if not before or hold is None or hold.end_s is None:
        return None
    after = memory.between(hold.end_s - LAST_S, hold.end_s).values
    if not after:
        return None
    held = run.held.at(hold.end_s - 1.0) or 0.0
    return (statistics.median(after) - statistics.median(before)) / held


async def run_of(
    name: str, options: argparse.Namespace, out: Path, *, hold: int, forced: bool = False
) -> Run:
    """A soak of a new server; a file that is there is read again."""
    if not out.exists():
        async with choose(name) as server:
            values = {
                "urls": [server.url],
                "server_pid": server.pid,
                "connections": options.connections,
                "ramp": f"{max(1, options.connections // options.ramp)}/s",
                "hold": hold,
                "server_metrics": [server.metrics_url],
            }
            if forced:
                assert server.metrics_url is not None
                base = server.metrics_url.rpartition("/")[0]
                values |= {"plateaus": 8, "plateau_rest": 6}
                values |= {"collect": FORCED[name].format(base=base)}
            await soak(build_plan([Layer("--{key}", values)]), out)
        settle()
    return read_run(out)


if __name__ == "__main__":
    asyncio.run(main())
