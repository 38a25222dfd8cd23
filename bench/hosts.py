"""Measures the overhead of a run on several hosts, and the precision of its ramp: two clients, and
an agent beside nginx.

    python bench/hosts.py [-c 50000] [--seconds 20] [--rounds 2]

Hosts are network namespaces on a bridge (asyncli.lab.network), with one Dask worker on each client.
In every round: CPU of scheduler, Dask workers and agent over --seconds without a run; then a soak
on both clients, with a ramp of 1,000 a second and -k 600; the same CPU in its hold, when hardly any
heartbeat is due; and the lateness of its ramp's batches, relative to the start that was announced
to all. CPU is that of whole processes in the kernel's nanoseconds (schedstat), in per cent of a
core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import command, machine, spread_of

from asyncli.experiments.netns_testbed import (
    AGENT,
    CLIENTS,
    FLEET,
    SCHEDULER,
    SERVER,
    SESSION,
    SYSCTLS,
    WORKER,
    Programs,
    Running,
)
from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNginx

GENERATOR = "asyncli.engine.host"


def family(running: Running) -> dict[str, list[int]]:
    """The process ids of a program and its descendants: its "own", and those of a generator that a
    Dask worker started.
    """
    root = psutil.Process(running.process.pid)
    found: dict[str, list[int]] = {"own": [], "generator": []}
    for one in [root, *root.children(recursive=True)]:
        found["generator" if GENERATOR in " ".join(one.cmdline()) else "own"].append(one.pid)
    return found


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of these processes so far, with all their threads."""
    threads = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads) / 1e9


async def shares(programs: dict[str, list[Running]], seconds: float) -> dict[str, float]:
    """The CPU of each program over ``seconds``, in per cent of a core; the mean for several of one
    name.
    """
    pids = {name: [family(one) for one in ones] for name, ones in programs.items()}
    groups = {name: [pid for one in found for pid in one["own"]] for name, found in pids.items()}
    groups["generator"] = [
        pid for found in pids.values() for one in found for pid in one["generator"]
    ]
    before, begun = {name: cpu_s(found) for name, found in groups.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - begun
    hosts = {name: len(programs.get(name, CLIENTS)) for name in groups}
    return {
        name: 100 * (cpu_s(found) - before[name]) / elapsed / hosts[name]
        for name, found in groups.items()
        if found
    }


async def measure(connections: int, seconds: float, rounds: int, folder: Path) -> None:
    """Print a line for each round, and the medians."""
    more: dict[str, list[float]] = {}
    late: list[float] = []
    with Network(FLEET, SYSCTLS) as network:
        nginx = LabNginx(connections, 80, 600.0, network.address(SERVER))
        with network.inside(SERVER):
            await nginx.start()
        try:
            async with Programs(network) as programs:
                url, token = await programs.agent(nginx.status_url)
                address = await programs.cluster(SESSION)
                there = {
                    name: [one for one in programs.running if one.what == name]
                    for name in (SCHEDULER, WORKER, AGENT)
                }
                for number in range(rounds):
                    await asyncio.sleep(3.0)
                    idle = await shares(there, seconds)
                    file = folder / f"run{number}.db"
                    soak = programs.start(
                        SESSION,
                        "the soak",
                        "asyncli",
                        [
                            "soak",
                            nginx.url,
                            "--cluster",
                            address,
                            "--agent",
                            url,
                            "-c",
                            str(connections),
                            "-k",
                            "600",
                            "--baseline",
                            "2s",
                            "--residue",
                            "1s",
                            "--hold",
                            f"{seconds + 10:.0f}s",
                            "--out",
                            str(file),
                            "--log-json",
                        ],
                        token,
                    )
                    await soak.wait_for_output(
                        '"event":"phase","phase":"hold"', connections / 1000 + 90.0
                    )
                    await asyncio.sleep(3.0)
                    busy = await shares({**there, "session": [soak]}, seconds)
                    await soak.wait_for_output('"event":"end"', 60.0)
                    summary = json.loads(
                        subprocess.check_output(
                            [sys.executable, "-m", "asyncli", "report", file, "--json", "-"]
                        )
                    )
                    held, lost, lateness = (
                        summary["connections"]["held"],
                        summary["connections"]["lost"],
                        summary["ramp"]["lateness_ms"],
                    )
                    late.append(lateness["p99"])
                    print(
                        f"round {number + 1}: {held:,} held, {lost:,} lost, counts agree: "
                        f"{summary['reconciliation']['agrees']}; ramp lateness p50 "
                        f"{lateness['p50']:.2f}, p99 {lateness['p99']:.2f}, max "
                        f"{lateness['max']:.1f} ms",
                        flush=True,
                    )
                    for name, share in busy.items():
                        more.setdefault(name, []).append(share - idle.get(name, 0.0))
                        without = f"{idle[name]:.2f} % without a run, " if name in idle else ""
                        print(f"  {name}: {without}{share:.2f} % with one", flush=True)
        finally:
            await nginx.stop()
    print(f"ramp lateness p99: {spread_of(late)} ms")
    for name, shared in more.items():
        print(
            f"{name}: {spread_of(shared)} % of a core more during a run (generator and Dask "
            "worker: per host)"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", dest="connections", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print(machine(), command(), sep="\n")
    with tempfile.TemporaryDirectory(prefix="asyncli-hosts-") as folder:
        asyncio.run(measure(given.connections, given.seconds, given.rounds, Path(folder)))


if __name__ == "__main__":
    main()
