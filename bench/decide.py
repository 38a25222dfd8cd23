"""Counts how often a soak is called worse than earlier ones: where it is not, and where it is.

    python bench/decide.py [--same 50] [--worse 40] [--pad 16] [--connections 5000] [--ramp 200/s]
    [--hold 15s] [--limit 3%] [--comparisons 200] [--keep FOLDER]

Soaks of an nginx, each on a new one: --same of them of one build, and --worse of them of one whose
connections take --pad bytes more (connection_pool_size). Then each of --comparisons takes one run
and, as its baseline, one or five other runs of the first build, all drawn at random, and decides as
the soak does: at the looks that its hold had time for, and at its end. The comparisons share runs,
so they are not independent. Printed: how many were called worse, as good, and neither; and after
what time since its start the soak would have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from common import command, machine, settle

from asyncli.analysis.estimates import Estimate
from asyncli.analysis.measured import MeasuredRun, measure
from asyncli.analysis.worsening import BaselineRun, Worsening, chances_at, worsening
from asyncli.api import soak
from asyncli.lab import choose
from asyncli.model.plan import Layer, build_plan
from asyncli.model.run import Run
from asyncli.report.relative_limits import LOOK_EVERY_S
from asyncli.report.summary import Summary
from asyncli.report.thresholds import bound_of, parse
from asyncli.store.reader import read_run

KEY = "cost.server_user"
CALLS = {True: "worse", False: "as good", None: "undecided"}
SEED = 1


class Look(NamedTuple):
    """What a run was known to cost at a look, ``at_s`` after its start. ``number``: None at its end."""

    number: int | None
    at_s: float
    measured: MeasuredRun


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--same", type=int, default=50)
    parser.add_argument("--worse", type=int, default=40)
    parser.add_argument("--pad", type=int, default=16, help="bytes, a multiple of 16")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--ramp", default="200/s")
    parser.add_argument("--hold", default="15s")
    parser.add_argument("--limit", default="3%")
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--keep", help="a folder for the run files; those in it are used again")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(exist_ok=True)
        same = await looks_at_runs("A", options.same, 0, options, folder)
        worse = await looks_at_runs("B", options.worse, options.pad, options, folder)
    before = statistics.mean(cost_of(looks) for looks in same)
    after = statistics.mean(cost_of(looks) for looks in worse)
    scatter = statistics.stdev(cost_of(looks) for looks in same)
    print(
        f"first build {before:,.1f} B ± {scatter:,.2f} from run to run; second {after / before - 1:+.2%}"
    )
    for runs in (1, 5):
        for build, others in (("first", same), ("second", worse)):
            report(build, runs, compare(others, same, runs, options))


async def looks_at_runs(
    letter: str, count: int, pad: int, options: argparse.Namespace, folder: Path
) -> list[list[Look]]:
    """The looks at each run of a build."""
    known = []
    for number in range(count):
        out = folder / f"{letter}{number:03}.db"
        if not out.exists():
            await record(out, pad, options)
        known.append(looks_at(out.name, read_run(out)))
    return known


async def record(out: Path, pad: int, options: argparse.Namespace) -> None:
    async with choose("nginx", connections=options.connections, pad_bytes=pad) as server:
        values = {
            "urls": [server.url],
            "server_pid": server.pid,
            "connections": options.connections,
            "ramp": options.ramp,
            "hold": options.hold,
            "keepalive": "20s",
        }
        await soak(build_plan([Layer("--{key}", values)]), out)
    settle()


def looks_at(name: str, run: Run) -> list[Look]:
    hold = run.phase("hold")
    assert hold is not None
    assert hold.end_s is not None
    looks = []
    number = 1
    while hold.start_s + number * LOOK_EVERY_S < hold.end_s:
        at_s = hold.start_s + number * LOOK_EVERY_S
        # The hold has had time for one more look than that: one at its beginning.
        looks.append(Look(number + 1, at_s, measure(name, name, until(run, at_s))))
        number += 1
    return [*looks, Look(None, hold.end_s, measure(name, name, run))]


def until(run: Run, at_s: float) -> Run:
    """The run as its file was at this second."""
    phases = []
    for phase in run.phases:
        if phase.start_s > at_s:
            continue
        end_s = phase.end_s
        if end_s is not None and end_s > at_s:
            end_s = None
        phases.append(msgspec.structs.replace(phase, end_s=end_s))
    part = run.within((0.0, at_s))
    return msgspec.structs.replace(part, phases=phases, complete=False)


def cost_of(looks: Sequence[Look]) -> float:
    number = looks[-1].measured.numbers[KEY]
    assert isinstance(number, Estimate)
    return number.value


def compare(
    others: Sequence[list[Look]], same: Sequence[list[Look]], runs: int, options: argparse.Namespace
) -> list[tuple[bool | None, float]]:
    """The call of each comparison, and after how many seconds it was made."""
    draw = random.Random(SEED)
    calls = []
    for number in range(options.comparisons):
        looks = others[number % len(others)]
        rest = [other for other in same if other is not looks]
        baseline = [
            BaselineRun.of(earlier[-1].measured.name, earlier[-1].measured)
            for earlier in draw.sample(rest, runs)
        ]
        calls.append(decide(looks, baseline, options.limit))
    return calls


def decide(
    looks: Sequence[Look], baseline: Sequence[BaselineRun], limit: str
) -> tuple[bool | None, float]:
    threshold = parse(f"{KEY} worse by {limit}", Summary)
    call = None
    for look in looks:
        chances = chances_at(look.number, 1)
        known = worsening(KEY, baseline, look.measured, chances, bound_of(threshold))
        call = None
        if isinstance(known, Worsening):
            call = known.is_worse
        # That nothing comes later is sure at the end of these short holds alone.
        if call:
            return call, look.at_s
    return call, looks[-1].at_s


def report(build: str, runs: int, calls: Sequence[tuple[bool | None, float]]) -> None:
    counts = Counter(CALLS[call] for call, _ in calls)
    seconds = statistics.median(at_s for _, at_s in calls)
    said = ", ".join(f"{counts[name]} {name}" for name in CALLS.values())
    print(f"{build} build, {runs} baseline runs: of {len(calls)} {said}; median {seconds:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
