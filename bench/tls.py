"""What TLS costs asyncli: CPU a connect, CPU a heartbeat and memory a connection, beside the same in the clear, as ratios.

    python bench/tls.py [--connections 10000] [--rounds 3] [--hold 10]

Interleaved rounds against two nginx of one configuration, one with TLS 1.3; the bare engine, one worker, as versus_before.py.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from common import command, engine_round, machine, settle, spread_of

from asyncli.lab import choose

FIGURES = {
    "CPU a connect, us": ("connect_user_us", "connect_system_us"),
    "CPU a heartbeat, us": ("beat_user_us", "beat_system_us"),
    "memory a connection, B": ("memory_bytes",),
}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hold", type=int, default=10)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    rounds: list[list[dict[str, float]]] = [[], []]
    for number in range(options.rounds):
        for tls in (False, True) if number % 2 else (True, False):
            async with choose("nginx", connections=options.connections, keepalive_s=3600, tls=tls) as server:
                ca = {"ca": str(server.authority)} if tls else {}
                connects = await engine_round(server.url, options.connections, 1, batch=3, interval=0.01, keepalive=3600, first_beat="sleep", **ca)
                settle()
                beats = await engine_round(server.url, options.connections, options.hold, batch=3, interval=0.01, keepalive=20, first_beat="sleep", **ca)
                settle()
            rounds[tls].append({**beats, **{key: connects[key] for key in ("connect_user_us", "connect_system_us")}})
            print(f"round {number + 1}", "TLS" if tls else "plain", {key: round(value, 2) for key, value in rounds[tls][-1].items()}, flush=True)
    for name, parts in FIGURES.items():
        plain, sealed = ([sum(one[part] for part in parts) for one in of] for of in rounds)
        ratios = [new / old for old, new in zip(plain, sealed, strict=True)]
        print(f"{name:24} {statistics.median(plain):.2f} plain, {statistics.median(sealed):.2f} TLS, ratio {spread_of(ratios)}")


asyncio.run(main())
