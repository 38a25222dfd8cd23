"""Compares what asyncli says that a slow reader costs a server with a manual reading.

    python bench/slow_readers.py [--servers websockets ws nchan] [--rounds 2] [--every 0.04]

For each server and round two soaks of 100 WebSockets, to which the server pushes 8,000 bytes at
that pace (s); ten of them read nothing for 20 s. One soak is on loopback, where asyncli has those
ten announce segments as over a path with an MTU of 1500; in the other one the server is at the end
of a veth pair with an MTU of 1500, in a namespace of its own. Beside each the same is read by hand,
four times a second: smaps_rollup (Pss) of the server's processes, and r + f + w of "ss -tmn" of its
sockets. "Before": the median of the five seconds before the stall; "at its end": of a memory that
grows to the end the reading nearest to asyncli's last one, else the median of the last three
seconds. Needs root (namespaces), nchan, and ws (npm) for Node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from common import command, machine, settle

from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNchan
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.report.summary import Summary, summarise
from asyncli.store.reader import read_run

CONNECTIONS = 100
SLOW = 10
STALL_S = 20
AT_S = 10
SERVER = "10.213.0.2"
_MEMORY = re.compile(r"skmem:\(r(\d+),[^)]*?,f(\d+),w(\d+)")

WEBSOCKETS = """
import asyncio, sys
from websockets.asyncio.server import broadcast, serve
connected = set()
async def hold(connection):
    connected.add(connection)
    try:
        await connection.wait_closed()
    finally:
        connected.discard(connection)
async def main(address, port, every_s):
    async with serve(hold, address, port, ping_interval=None, compression=None):
        while True:
            await asyncio.sleep(every_s)
            broadcast(connected, bytes(8_000))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
"""
WS = """
const { WebSocketServer } = require("ws");
const [address, port, every] = process.argv.slice(1);
const server = new WebSocketServer({ host: address, port: Number(port), perMessageDeflate: false });
const message = Buffer.alloc(8000);
setInterval(() => server.clients.forEach((client) => client.send(message)), 1000 * Number(every));
"""
PUBLISHER = """
import http.client, sys, time
address, port, every_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
page = http.client.HTTPConnection(address, port)
while True:
    page.request("POST", "/publish", bytes(8_000))
    page.getresponse().read()
    time.sleep(every_s)
"""


class Reading(NamedTuple):
    """By hand: the server's memory and that of its sockets (bytes), at a Unix time (s)."""

    at: float
    user: int
    kernel: int


class Pushing(NamedTuple):
    url: str
    pid: int
    port: int


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", nargs="+", default=["websockets", "ws", "nchan"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=float, default=0.04)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii")
    print(f"tcp_congestion_control {congestion.strip()}")
    for name in options.servers:
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                await soak(name, options.every, Path(folder) / "run.db", None)
            with (
                tempfile.TemporaryDirectory() as folder,
                Network({"client": "10.213.0.1/24", "server": f"{SERVER}/24"}) as network,
            ):
                await soak(name, options.every, Path(folder) / "run.db", network)


async def soak(name: str, every_s: float, path: Path, network: Network | None) -> None:
    with _inside(network, "server"):
        async with _pushing(name, every_s, "127.0.0.1" if network is None else SERVER) as server:
            readings: list[Reading] = []
            over = threading.Event()
            reader = threading.Thread(target=_read, args=(server, network, readings, over))
            reader.start()
            words = [
                *("-c", str(CONNECTIONS), "--ramp", "100/s", "--hold", f"{AT_S + STALL_S + 15}s"),
                *("--baseline", "2", "--residue", "1", "--keepalive", "10"),
                *("--at", f"{AT_S}s", f"stall {100 * SLOW // CONNECTIONS}% for {STALL_S}s"),
                *("--server-pid", str(server.pid), "--out", str(path), "--quiet"),
            ]
            with _inside(network, "client"):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "asyncli", "soak", server.url, *words
                )
            status = await process.wait()
            over.set()
            reader.join()
    run = read_run(path)
    show(f"{name}, {'loopback' if network is None else 'veth'}", status, run, readings)
    settle()


def _inside(network: Network | None, host: str) -> contextlib.AbstractContextManager[None]:
    if network is None:
        return contextlib.nullcontext()
    return network.inside(host)


@contextlib.asynccontextmanager
async def _pushing(name: str, every_s: float, address: str) -> AsyncIterator[Pushing]:
    """A server that pushes to all its WebSockets."""
    if name == "nchan":
        # It is started as the others are, in the namespace of this thread.
        async with LabNchan(connections=1_000, address=address) as lab:
            pages = ("127.0.0.1", str(lab.status_port), str(every_s))
            with _running(sys.executable, "-c", PUBLISHER, *pages):
                yield Pushing(lab.url, lab.pid, lab.port)
        return
    port = 18_431
    program = [sys.executable, "-c", WEBSOCKETS]
    if name == "ws":
        program = ["node", "-e", WS]
    with _running(*program, address, str(port), str(every_s)) as process:
        await asyncio.sleep(1.5)
        yield Pushing(f"ws://{address}:{port}/", process.pid, port)


@contextlib.contextmanager
def _running(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(
    server: Pushing, network: Network | None, readings: list[Reading], over: threading.Event
) -> None:
    with _inside(network, "server"):
        while not over.wait(0.25):
            with contextlib.suppress(psutil.Error, OSError):
                readings.append(Reading(time.time(), _user(server.pid), _kernel(server.port)))


def _user(pid: int) -> int:
    root = psutil.Process(pid)
    pids = [pid, *(child.pid for child in root.children(recursive=True))]
    total = 0
    for one_pid in pids:
        rollup = Path(f"/proc/{one_pid}/smaps_rollup").read_text(encoding="ascii")
        total += 1024 * int(rollup.split("\nPss:")[1].split()[0])
    return total


def _kernel(port: int) -> int:
    argv = ("ss", "-tmnH", "state", "established", f"sport = :{port}")
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    total = 0
    for match in _MEMORY.finditer(shown):
        total += sum(map(int, match.groups()))
    return total


def show(name: str, status: int, run: Run, readings: list[Reading]) -> None:
    summary: Summary = summarise(run)
    [event] = summary.events or ()
    costs = event.slow_readers
    assert costs
    start_s = event.at_s
    user_s = _last_read_s(run, metrics.SERVER_PSS_BYTES, start_s + STALL_S)
    kernel_s = _last_read_s(run, metrics.SERVER_SOCKETS_BYTES, start_s + STALL_S)
    hand_user = _by_hand(run, readings, "user", start_s, user_s, costs.user.why == "grows")
    hand_kernel = _by_hand(run, readings, "kernel", start_s, kernel_s, costs.kernel.why == "grows")
    print(
        f"{name:22} {summary.run.verdict} (status {status}), stalled {event.stalled}, resumed "
        f"{event.resumed}, lost {summary.connections.lost}, segments {event.segment_bytes} B; each "
        "slow reader:"
    )
    for part, cost, hand in (
        ("user", costs.user, hand_user),
        ("kernel", costs.kernel, hand_kernel),
    ):
        ours = "unknown"
        if cost.per_connection is not None:
            ours = f"{cost.per_connection:,.0f} B, {100 * (cost.per_connection / hand - 1):+.1f} %"
        print(
            f"    {part:6} {cost.status} {cost.why or '':10} {ours}; by hand {hand:,.0f} B",
            flush=True,
        )
    assert event.server
    print(f"    not given back {event.server.kept_bytes}, waited {event.waited_bytes:,} B")


def _last_read_s(run: Run, metric: str, until_s: float) -> float:
    """When asyncli last read a metric before the stall's end; its end where it did not."""
    times = run.series(metric).between(0.0, until_s - 0.5).t_s
    return times[-1] if times else until_s - 0.5


def _by_hand(
    run: Run,
    readings: list[Reading],
    part: str,
    start_s: float,
    end_s: float,
    is_growing: bool,
) -> float:
    """The rise for each slow reader until ``end_s`` of the run's clock."""
    before = []
    for reading in readings:
        if start_s - 5 <= reading.at - run.started_wall_s <= start_s:
            before.append(getattr(reading, part))
    nearest = min(readings, key=lambda reading: abs(reading.at - run.started_wall_s - end_s))
    reached: float = getattr(nearest, part)
    if not is_growing:
        late = []
        for reading in readings:
            if end_s - 3 <= reading.at - run.started_wall_s <= end_s:
                late.append(getattr(reading, part))
        reached = statistics.median(late)
    return (reached - statistics.median(before)) / SLOW


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    asyncio.run(main())
