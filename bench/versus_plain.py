"""Compares what TLS, WebSocket or HTTP/2 costs asyncli with plain HTTP: CPU per connect and
heartbeat, memory per connection, as ratios.

    python bench/versus_plain.py tls|websocket|http2 [--connections 10000] [--rounds 3] [--hold 10]

Interleaved rounds against two equally configured nginx, one with TLS 1.3, Nchan, or HTTP/2 (whose
heartbeats are pings); with the bare engine and one worker, as in versus_before.py.
"""

from __future__ import annotations

import argparse
import asyncio

from common import command, engine_costs, machine, print_figures

from asyncli.lab import choose


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("tls", "websocket", "http2"))
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hold", type=int, default=10)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    rounds = []
    for number in range(options.rounds):
        found = {}
        for name in ("plain", options.what) if number % 2 else (options.what, "plain"):
            server_name, tls = "nchan" if name == "websocket" else "nginx", name == "tls"
            http2 = {"http2": True} if name == "http2" else {}
            async with choose(
                server_name, connections=options.connections, keepalive_s=3600, tls=tls, **http2
            ) as server:
                more = {"ca": str(server.authority)} if tls else http2
                # Two CPUs manage about 700 handshakes a second.
                batches = (3, 3) if options.what == "tls" else (20, 40)
                found[name] = await engine_costs(
                    server.url, options.connections, options.hold, batches, **more
                )
            print(
                f"round {number + 1}",
                name,
                {key: round(value, 2) for key, value in found[name].items()},
                flush=True,
            )
        rounds.append((found["plain"], found[options.what]))
    print_figures(("plain", options.what), rounds)


asyncio.run(main())
