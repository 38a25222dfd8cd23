"""Compares asyncli bench with wrk (kept alive, and pipelined) and ab (short connections): requests
a second, CPU per request.

    python bench/versus_wrk.py [--rounds 5] [--seconds 5] [--connections 64] [--depth 100]

One process of each, in turns, on the same nginx with one worker. CPU is the user + system time of
the process that sends requests, divided by the answers; asyncli's other two processes (session and
host) are listed separately: they start, read /proc and write once a second, independently of the
load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import command, machine, spread_of

from asyncli.lab.nginx import LabNginx

LUA = """init = function(args)
  local r = {}
  for i = 1, %d do r[i] = wrk.format(nil, "/") end
  req = table.concat(r)
end
request = function() return req end
"""
Round = dict[str, float]


def spent(argv: list[str]) -> tuple[str, float]:
    """The program's output, and the CPU seconds of it and its reaped children."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return out.read().decode(), usage.ru_utime + usage.ru_stime


def wrk(url: str, connections: int, seconds: float, script: Path | None = None) -> Round:
    argv = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds:.0f}s",
        *(["-s", str(script)] if script else []),
        url,
    ]
    text, cpu_s = spent(argv)
    found = re.search(r"(\d+) requests in ([\d.]+)s", text)
    assert found is not None, text
    assert "Socket errors" not in text, text
    requests = int(found[1])
    return {"per_s": requests / float(found[2]), "cpu_us": cpu_s / requests * 1e6}


def ab(url: str, connections: int, requests: int) -> Round:
    text, cpu_s = spent(["ab", "-q", f"-c{connections}", f"-n{requests}", url])
    found = re.search(r"Requests per second:\s+([\d.]+)", text)
    assert found is not None, text
    assert re.search(r"Failed requests:\s+0\n", text), text
    return {"per_s": float(found[1]), "cpu_us": cpu_s / requests * 1e6}


def ours(url: str, connections: int, *arguments: str) -> Round:
    asked = [
        sys.executable,
        "-m",
        "asyncli",
        "bench",
        url,
        f"-c{connections}",
        "--workers",
        "1",
        "--json",
        "-",
        "--quiet",
    ]
    text, cpu_s = spent([*asked, *arguments])
    found = json.loads(text)
    requests, generator = found["requests"], found["generator"]
    assert requests["failed"] == found["connections"]["failed"] == 0, found
    return {
        "per_s": requests["per_s"],
        "cpu_us": generator["cpu_us_per_request"],
        "user_us": generator["user_s"] / requests["total"] * 1e6,
        "others_s": cpu_s - generator["cpu_s"],
    }


def ratio(mine: list[Round], theirs: list[Round], name: str) -> str:
    return spread_of([a[name] / b[name] for a, b in zip(mine, theirs, strict=True)])


def show(title: str, name: str, mine: list[Round], theirs: list[Round]) -> None:
    def middle(rounds: list[Round], key: str) -> float:
        return statistics.median(one[key] for one in rounds)

    print(f"\n{title}")
    print(f"  {'':<8}{'requests/s':>12}{'CPU us/request':>16}")
    print(f"  {name:<8}{middle(theirs, 'per_s'):>12,.0f}{middle(theirs, 'cpu_us'):>16.2f}")
    print(
        f"  {'asyncli':<8}{middle(mine, 'per_s'):>12,.0f}{middle(mine, 'cpu_us'):>16.2f}  of it "
        f"user {middle(mine, 'user_us'):.2f}; session and host {middle(mine, 'others_s'):.2f} s "
        "in all"
    )
    print(
        f"  asyncli / {name}, round by round: requests/s {ratio(mine, theirs, 'per_s')}, CPU "
        f"{ratio(mine, theirs, 'cpu_us')}"
    )
    print(
        "  rounds: "
        + "; ".join(
            f"{a['per_s']:,.0f} vs {b['per_s']:,.0f}" for a, b in zip(mine, theirs, strict=True)
        ),
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument(
        "--short", type=int, default=40_000, help="requests of a round of short connections"
    )
    given = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    c, seconds = given.connections, given.seconds
    async with LabNginx(connections=10_000, workers=1) as server:
        url = server.url
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "pipeline.lua")
            script.write_text(LUA % given.depth)
            ways = [
                (
                    f"kept alive, {c} connections",
                    "wrk",
                    lambda: ours(url, c, "-d", f"{seconds}s"),
                    lambda: wrk(url, c, seconds),
                ),
                (
                    f"pipelined {given.depth} deep, {c} connections",
                    "wrk",
                    lambda: ours(url, c, "-d", f"{seconds}s", "--pipeline", str(given.depth)),
                    lambda: wrk(url, c, seconds, script),
                ),
                (
                    f"a connection each, {c} at a time",
                    "ab",
                    lambda: ours(url, c, "-n", str(given.short), "--short"),
                    lambda: ab(url, c, given.short),
                ),
            ]
            for title, name, mine, theirs in ways:
                rounds = [
                    (mine(), theirs()) if number % 2 else (theirs(), mine())[::-1]
                    for number in range(given.rounds)
                ]
                show(title, name, [one[0] for one in rounds], [one[1] for one in rounds])


if __name__ == "__main__":
    asyncio.run(main())
