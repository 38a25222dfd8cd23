"""Compares the engine of this checkout with another one's: CPU per connect and heartbeat, and
memory per connection, as ratios.

    git worktree add ../before REVISION
    python bench/versus_before.py ../before [--connections 10000] [--rounds 5] [--hold 10] [--http2]

Interleaved rounds in alternating order against one nginx; each engine runs in its own process, with
one worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys

from common import HERE, command, engine_costs, machine, print_figures, python_us_per_heartbeat

from asyncli.lab import choose


def of_tree(tree: str, url: str, options: argparse.Namespace) -> dict[str, float]:
    words = [
        __file__,
        tree,
        "--url",
        url,
        "--connections",
        str(options.connections),
        "--hold",
        str(options.hold),
    ]
    words += ["--http2"] if options.http2 else []
    environment = {**os.environ, "PYTHONPATH": os.path.abspath(tree)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("before")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hold", type=int, default=10)
    parser.add_argument("--http2", action="store_true", help="connections of HTTP/2, held by pings")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url is not None:
        more = {"http2": True} if options.http2 else {}
        costs = await engine_costs(options.url, options.connections, options.hold, (20, 40), **more)
        own = {
            f"{name}_us": python_us_per_heartbeat(protocol=name) for name in ("websocket", "http2")
        }
        print(json.dumps({**costs, "python_us": python_us_per_heartbeat(), **own}))
        return
    print(f"$ {command()}\n{machine()}")
    trees = (options.before, str(HERE.parent))
    rounds: list[dict[str, dict[str, float]]] = []
    async with choose(
        "nginx", connections=options.connections, keepalive_s=3600, http2=options.http2
    ) as server:
        for number in range(options.rounds):
            found = {}
            for tree in trees if number % 2 else reversed(trees):
                found[tree] = await asyncio.to_thread(of_tree, tree, server.url, options)
            rounds.append(found)
            for tree in trees:
                print(
                    f"round {number + 1}",
                    tree,
                    {key: round(value, 2) for key, value in found[tree].items()},
                    flush=True,
                )
    print_figures(("before", "now"), [(one[options.before], one[trees[1]]) for one in rounds])


asyncio.run(main())
