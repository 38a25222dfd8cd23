"""What TLS costs asyncli: CPU a connect, CPU a heartbeat and memory a connection, beside the same in the clear, as ratios.

    python bench/tls.py [--connections 10000] [--rounds 3] [--hold 10]

Interleaved rounds against two nginx of one configuration, one with TLS 1.3; the bare engine, one worker, as versus_before.py.
"""

from __future__ import annotations

import argparse
import asyncio

from common import command, engine_costs, machine, print_figures

from asyncli.lab import choose


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hold", type=int, default=10)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    rounds = []
    for number in range(options.rounds):
        found = {}
        for tls in (False, True) if number % 2 else (True, False):
            async with choose("nginx", connections=options.connections, keepalive_s=3600, tls=tls) as server:
                ca = {"ca": str(server.authority)} if tls else {}
                # Two CPUs shake hands some 700 times a second.
                found[tls] = await engine_costs(server.url, options.connections, options.hold, (3, 3), **ca)
            print(f"round {number + 1}", "TLS" if tls else "plain", {key: round(value, 2) for key, value in found[tls].items()}, flush=True)
        rounds.append((found[False], found[True]))
    print_figures(("plain", "TLS"), rounds)


asyncio.run(main())
