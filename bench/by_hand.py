"""Compares asyncli's cost of a connection on nginx with a manual calculation from smaps_rollup,
slabinfo and free.

    python bench/by_hand.py [--connections 10000 50000 100000] [--per-second 1000] [--settle 5]

One fresh nginx and one soak for each number. "From nothing": the reading --settle seconds into the
hold less that in the baseline, divided by all connections; it includes what the first ones allocate
once. "From a tenth": less the reading when a tenth are held, divided by the rest: the cost of one
more. Run it as root (slabinfo) on a quiet host: slab and free count all programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import HERE, command, machine, settle

from asyncli.lab import choose

sys.path.insert(0, str(HERE.parent / "tests" / "integration"))
from reading_by_hand import ByHand, active, kernel_growth, listing_growth, look


def free() -> dict[str, int]:
    """The row "Mem:" of ``free -b -w``, by column."""
    header, row = subprocess.run(
        ["free", "-b", "-w"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[:2]
    return dict(zip(header.split(), map(int, row.split()[1:]), strict=True))


class Readings(NamedTuple):
    """asyncli's JSON, and manual readings (with the row of free) in the baseline, with a tenth
    held, and in the hold.
    """

    summary: dict[str, Any]
    looks: list[ByHand]
    frees: list[dict[str, int]]


async def soak(connections: int, per_second: int, settle_s: float, folder: Path) -> Readings:
    out, looks, frees = folder / f"{connections}", [], []
    async with choose("nginx", connections=connections, keepalive_s=60.0) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "asyncli",
            "soak",
            server.url,
            "-c",
            str(connections),
            "--ramp",
            f"{per_second // 100}/10ms",
            "--hold",
            "forever",
            "--status-url",
            server.status_url,
            "--server-pid",
            str(server.pid),
            "--out",
            f"{out}.db",
            "--json",
            f"{out}.json",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

        def see() -> None:
            looks.append(look(server.pid, server.status_url))
            frees.append(free())

        async def phase(name: str) -> None:
            assert process.stderr is not None
            async for line in process.stderr:
                if re.match(rf"\d+:\d\d:\d\d  {name}\b".encode(), line):
                    return
            raise RuntimeError(f"asyncli ended before its {name}")

        await phase("baseline")
        await asyncio.sleep(2.0)
        see()
        while active(server.status_url) < connections / 10:
            await asyncio.sleep(0.1)
        see()
        await phase("hold")
        await asyncio.sleep(settle_s)
        see()
        process.send_signal(signal.SIGINT)
        await process.communicate()
    return Readings(json.loads(Path(f"{out}.json").read_text()), looks, frees)


def by_hand(seen: Readings, since: int) -> dict[str, float | None]:
    """Bytes per connection between the reading ``since`` and the last one."""
    before, after, first, last = (
        seen.looks[since],
        seen.looks[-1],
        seen.frees[since],
        seen.frees[-1],
    )
    more = after.connections - before.connections
    kernel, listing = None, 0
    if before.slabs and after.slabs:
        kernel = kernel_growth(before.slabs, after.slabs, more) / more / 2
        listing = listing_growth(before.slabs, after.slabs)
    return {
        "nginx (smaps_rollup)": (after.server - before.server) / more,
        "kernel, an end (slabinfo)": kernel,
        # asyncli excludes these inodes too, if they matter.
        "in all but /proc's": (after.host - before.host - listing) / more,
        "inodes of /proc (slabinfo)": listing / more,
        # In procps 4 "used" is total less available, which counts pinned inodes and dentries as
        # available.
        "free: used": (last["used"] - first["used"]) / more,
        "free: total - free": (first["free"] - last["free"]) / more,
    }


OURS = {
    "nginx (smaps_rollup)": "server_user",
    "kernel, an end (slabinfo)": "kernel",
    "in all but /proc's": "host_total",
}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, nargs="+", default=[10_000, 50_000, 100_000])
    parser.add_argument("--per-second", type=int, default=1000)
    parser.add_argument("--settle", type=float, default=5.0)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}\n")
    print(
        f"{'held':>7}  {'bytes a connection':28} {'from nothing':>12} {'from a tenth':>12} "
        f"{'asyncli':>8}   95 % interval"
    )
    with tempfile.TemporaryDirectory() as folder:
        for connections in options.connections:
            seen = await soak(connections, options.per_second, options.settle, Path(folder))
            whole, rest = by_hand(seen, 0), by_hand(seen, 1)
            for words in whole:
                quotient, slope = (
                    " -" if one[words] is None else f"{one[words]:,.0f}" for one in (whole, rest)
                )
                line = (
                    f"{seen.summary['connections']['held']:7,d}  {words:28} {quotient:>12} "
                    f"{slope:>12}"
                )
                cost = seen.summary["cost"][OURS[words]] if words in OURS else None
                if cost is not None:
                    low, high = cost["ci95"]
                    where = (
                        ""
                        if rest[words] is None
                        else "inside"
                        if low <= rest[words] <= high
                        else "outside"
                    )
                    line += (
                        f" {cost['bytes_per_connection']:8,.1f}   {low:,.1f} to {high:,.1f}  "
                        f"{where}"
                    )
                print(line, flush=True)
            for finding in seen.summary["findings"]:
                # The server also counts our own readings of its page.
                if finding["severity"] != "info" and not finding["code"].startswith("reconcile"):
                    print(f"{'':9}{finding['severity']}: {finding['evidence']}")
            settle(60.0)


if __name__ == "__main__":
    asyncio.run(main())
