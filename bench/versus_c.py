"""Compares asyncli's engine, with one worker, with the C client of this folder: CPU per connect and
heartbeat, as ratios.

    python bench/versus_c.py [--connections 15000] [--rounds 5] [--hold 20] [--keepalive 20]

Interleaved rounds against one nginx with the same sources and schedule (both sleep before the first
heartbeat, so the ramp has connects and hardly any heartbeats).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess

from common import PORTS, build_c_client, command, engine_round, machine, settle, spread_of

from asyncli.engine.spread import sources_wanted
from asyncli.lab import choose

FIGURES = ("connect_user_us", "connect_system_us", "beat_user_us", "beat_system_us")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hold", type=int, default=20)
    parser.add_argument("--keepalive", type=int, default=20)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--interval-us", type=int, default=10_000)
    options = parser.parse_args()
    client = build_c_client()
    sources = sources_wanted(options.connections, 1, PORTS)
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    print(f"$ {command()}\n{machine()}")
    async with choose("nginx", connections=options.connections, keepalive_s=3600) as server:
        for number in range(options.rounds):
            floor, ours = {}, {}
            # Connects with hardly any heartbeats, then heartbeats alone.
            for keepalive, hold, batch in (
                (3600, 1, options.batch),
                (options.keepalive, options.hold, 2 * options.batch),
            ):
                process = await asyncio.create_subprocess_exec(
                    client,
                    server.url.rstrip("/").rpartition(":")[2],
                    str(options.connections),
                    str(batch),
                    str(options.interval_us),
                    str(keepalive),
                    str(hold),
                    str(sources),
                    stdout=subprocess.PIPE,
                )
                measured = json.loads((await process.communicate())[0])
                floor = {**measured, **{key: floor[key] for key in FIGURES[:2] if key in floor}}
                settle()
                measured = await engine_round(
                    server.url,
                    options.connections,
                    hold,
                    batch=batch,
                    interval=options.interval_us * 1e-6,
                    keepalive=keepalive,
                    first_beat="sleep",
                )
                ours = {**measured, **{key: ours[key] for key in FIGURES[:2] if key in ours}}
                settle()
            rounds.append((floor, ours))
            print(f"round {number + 1}")
            print("  C      ", {key: round(value, 2) for key, value in floor.items()})
            print("  asyncli", {key: round(value, 2) for key, value in ours.items()}, flush=True)
    print(f"\n{'us':24} {'C':>24} {'asyncli':>24} {'ratio':>24}")
    for name in ("connect", "beat"):
        totals = [
            [one[f"{name}_user_us"] + one[f"{name}_system_us"] for one in pair] for pair in rounds
        ]
        ratios = [ours / floor for floor, ours in totals]
        print(
            f"{name + ' (user+system)':24} {spread_of([t[0] for t in totals]):>24} "
            f"{spread_of([t[1] for t in totals]):>24} {spread_of(ratios):>24}"
        )
    for figure in FIGURES:
        print(
            f"  {figure:22} {spread_of([f[figure] for f, _ in rounds]):>24} "
            f"{spread_of([o[figure] for _, o in rounds]):>24}"
        )
    print(
        f"memory per connection {statistics.median(o['memory_bytes'] for _, o in rounds):.0f} B "
        f"over {rounds[0][1]['fixed_mb']:.1f} MB fixed"
    )


if __name__ == "__main__":
    asyncio.run(main())
