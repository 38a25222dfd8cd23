"""Compares asyncli with wrk and (if installed) tcpkali and k6: memory per held connection, CPU per
request, connections held.

    python bench/versus_tools.py [--connections 15000] [--hold 20] [--ask 100000]

Each tool holds connections on the same nginx and sends a HEAD or GET on each about every 1 to 10 s,
as far as it can be configured (not h2load: its HTTP/1.1 mode sends without pause and closes).
Memory is private memory (USS), as a slope between 500 and --connections; CPU is user + system time
over the hold, divided by the requests that nginx counted in it. Then each is asked for --ask
connections with the existing descriptor limit.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import psutil
from common import command, machine, settle

from asyncli.lab import choose
from asyncli.lab.base import LabServer

DELAY = "function delay() return math.random(1000, 10000) end\n"
K6 = """import http from 'k6/http'; import { sleep } from 'k6';
export default function () { http.head(__ENV.URL); sleep(1 + 9 * Math.random()); }
"""


def commands(tool: str, url: str, connections: int, seconds: int, folder: Path) -> list[str] | None:
    """The tool's command line that holds ``connections`` for ``seconds``; None: not installed."""
    exe = shutil.which(tool)
    if exe is None:
        return None
    if tool == "wrk":
        script = folder / "delay.lua"
        script.write_text(DELAY)
        return [exe, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    if tool == "tcpkali":
        return [
            exe,
            "-w1",
            f"-c{connections}",
            "--connect-rate=1000",
            "-r0.2",
            f"-T{seconds}s",
            "-m",
            "HEAD / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n",
            url.split("//")[1].strip("/"),
        ]
    script = folder / "hold.js"
    script.write_text(K6)
    return [
        exe,
        "run",
        "--quiet",
        f"-u{connections}",
        f"-d{seconds}s",
        "-e",
        f"URL={url}",
        str(script),
    ]


def status(server: LabServer) -> tuple[int, int]:
    """(active, requests) of the status page."""
    text = urllib.request.urlopen(server.status_url, timeout=5).read().decode()
    found = re.search(r"connections: (\d+).*?\d+ \d+ (\d+)", text, re.DOTALL)
    assert found is not None
    return int(found[1]), int(found[2])


async def hold(
    server: LabServer, argv: list[str], connections: int, patience: float, window: float
) -> dict[str, float]:
    """Run the tool until nginx counts all connections (or for ``patience`` seconds), then measure
    for ``window`` seconds.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        deadline = asyncio.get_running_loop().time() + patience
        most = 0
        while (
            asyncio.get_running_loop().time() < deadline
            and process.returncode is None
            and most <= connections
        ):
            await asyncio.sleep(0.5)
            most = max(most, status(server)[0] - 1)
            if most >= connections:
                break
        result: dict[str, float] = {"held": most}
        if process.returncode is None:
            await asyncio.sleep(2.0)
            watched = [
                psutil.Process(process.pid),
                *psutil.Process(process.pid).children(recursive=True),
            ]
            before, requests = sum(sum(p.cpu_times()[:2]) for p in watched), status(server)[1]
            await asyncio.sleep(window)
            if process.returncode is None:
                done = max(1, status(server)[1] - requests - 1)
                result["requests_per_s"] = done / window
                result["cpu_us"] = (
                    (sum(sum(p.cpu_times()[:2]) for p in watched) - before) / done * 1e6
                )
                result["uss"] = sum(p.memory_full_info().uss for p in watched)
                result["held"] = status(server)[0] - 1
        return result
    finally:
        if process.returncode is None:
            process.kill()
        out = (await process.communicate())[0].decode(errors="replace").strip()
        result["exit"] = process.returncode if process.returncode is not None else 0
        result["output"] = out.splitlines()[-1][:90] if out else ""  # type: ignore[assignment]


def asyncli_command(server: LabServer, connections: int, seconds: int, folder: Path) -> list[str]:
    out = folder / f"run-{connections}-{seconds}.db"
    out.unlink(missing_ok=True)
    return [
        shutil.which("asyncli") or "asyncli",
        "soak",
        "-c",
        str(connections),
        "-k",
        "20",
        "--ramp",
        "10/10ms",
        "--baseline",
        "1s",
        "--hold",
        f"{seconds}s",
        "--out",
        str(out),
        "--quiet",
        server.url,
    ]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--hold", type=int, default=20)
    parser.add_argument("--ask", type=int, default=100_000)
    parser.add_argument("--tools", default="asyncli,wrk,tcpkali,k6")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with choose("nginx", connections=options.ask, keepalive_s=3600) as server:
            for tool in options.tools.split(","):
                found: dict[int, dict[str, float]] = {}
                for connections in (500, options.connections, options.ask):
                    ramp = connections // 900 + 10
                    seconds = ramp + options.hold + 15
                    if tool == "asyncli":
                        argv: list[str] | None = asyncli_command(
                            server, connections, options.hold + 15, folder
                        )
                    else:
                        argv = commands(tool, server.url, connections, seconds, folder)
                    if argv is None:
                        print(f"{tool}: not installed here")
                        break
                    found[connections] = await hold(
                        server, argv, connections, ramp + 10, options.hold
                    )
                    print(f"{tool} {connections}: {found[connections]}", flush=True)
                    settle(60)
                else:
                    few, many, asked = (found[n] for n in (500, options.connections, options.ask))
                    slope = (
                        (many["uss"] - few["uss"]) / (options.connections - 500)
                        if "uss" in many and "uss" in few
                        else None
                    )
                    rows.append((tool, slope, many.get("cpu_us"), asked["held"]))
    print(
        "\n"
        f"{'tool':10} {'B/connection':>15} {'CPU us/request':>17} {f'held of {options.ask:,}':>18}"
    )
    for tool, slope, cpu, held in rows:
        print(
            f"{tool:10} {'-' if slope is None else f'{slope:,.0f}':>15} "
            f"{'-' if cpu is None else f'{cpu:.1f}':>17} {held:>18,.0f}"
        )


if __name__ == "__main__":
    asyncio.run(main())
