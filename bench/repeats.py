"""Measures how much runs of the same server differ: the numbers of `asyncli compare` from repeated
soaks.

    python bench/repeats.py [--connections 10000] [--rounds 10] [--interval 20ms] [--hold 30]
    [--keepalive 60]

Each round starts its own nginx. For each number it prints: the median, the standard deviation
between rounds, that of one round by its own 95 % interval, and the part of the first that the
second does not explain (as a share of the median, and absolute), which calibrates REPEAT of
asyncli/analysis/compare.py. Then how many of all pairs `asyncli compare` calls different, without
and with REPEAT.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
from itertools import combinations
from pathlib import Path

from common import command, machine, settle

from asyncli.analysis import compare
from asyncli.analysis.compare import ROWS
from asyncli.analysis.estimates import Estimate, Rate
from asyncli.analysis.measured import MeasuredRun, measure
from asyncli.api import soak
from asyncli.lab.nginx import LabNginx
from asyncli.model.plan import Layer, build_plan
from asyncli.store.reader import read_run


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--interval", default="20ms")
    parser.add_argument("--hold", type=int, default=30)
    parser.add_argument("--keepalive", type=int, default=60)
    parser.add_argument(
        "--keep", help="a folder for the run files; existing runs in it count as rounds"
    )
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(exist_ok=True)
        files = sorted(folder.glob("*.db"))
        for number in range(len(files), options.rounds):
            files.append(await one(options, folder / f"{number:02}.db"))
        measured = [measure(file.stem, str(file), read_run(file)) for file in files]
    show(measured)


async def one(options: argparse.Namespace, out: Path) -> Path:
    async with LabNginx(connections=options.connections, keepalive_s=options.keepalive) as server:
        values = {
            "urls": [server.url], "status_url": server.status_url, "server_pid": server.pid,
            "connections": options.connections, "interval": options.interval, "hold": options.hold,
            "keepalive": options.keepalive, "residue": 1,
        }  # fmt: skip
        await soak(build_plan([Layer("--{key}", values)]), out)
    settle()
    return out


def show(measured: list[MeasuredRun]) -> None:
    print(
        f"{'':26} {'rounds':>6} {'median':>14} {'sd':>8} {'own sd':>8} {'beyond':>8} {'beyond':>14}"
    )
    for row in ROWS:
        values = [one.numbers[row.key] for one in measured]
        known = [
            one.estimate() if isinstance(one, Rate) else one
            for one in values
            if not isinstance(one, str)
        ]
        if len(known) < 3:
            print(f"{row.key:26} {next((one for one in values if isinstance(one, str)), '-')}")
            continue
        values = [one.value for one in known]
        middle, deviation = statistics.median(values), statistics.stdev(values)
        own = math.sqrt(statistics.median(own_variance(one) for one in known))
        beyond = math.sqrt(max(0.0, deviation**2 - own**2))
        shares = " ".join(
            f"{one / abs(middle):8.2%}" if middle else f"{'-':>8}"
            for one in (deviation, own, beyond)
        )
        print(f"{row.key:26} {len(known):6} {middle:14,.3f} {shares} {beyond:14,.3f}")
    pairs = list(combinations(measured, 2))
    for words, repeat in (("without REPEAT", {}), ("with REPEAT", dict(compare.REPEAT))):
        compare.REPEAT.clear()
        compare.REPEAT.update(repeat)
        real = [
            [
                one.key
                for one in compare.compare([a, b]).differences
                if one.verdict in ("higher", "lower")
            ]
            for a, b in pairs
        ]
        counts = {row.key: sum(row.key in one for one in real) for row in ROWS}
        called = ", ".join(f"{key} {count}" for key, count in counts.items() if count) or "none"
        print(
            f"{words}: of {len(pairs)} pairs {sum(map(bool, real))} were called different: {called}"
        )


def own_variance(one: Estimate) -> float:
    """The variance implied by a round's own interval."""
    from scipy.special import stdtrit

    return float(((one.high - one.low) / 2 / stdtrit(one.freedom or 1e7, 0.975)) ** 2)


if __name__ == "__main__":
    asyncio.run(main())
