"""What all benchmarks share: facts about the machine, medians, and rounds of one asyncli engine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from asyncli import __version__
from asyncli.engine.generator import Generator
from asyncli.engine.shard import Ticked, build_shard
from asyncli.engine.spread import Destination, Spread, loopback_sources, sources_wanted

try:
    from asyncli.engine.held_table import ConnectionTable
    from asyncli.model.plan import Layer, Plan, build_plan
    from asyncli.model.records import Tick
except ModuleNotFoundError:  # versus_before.py runs older checkouts
    from asyncli.engine.table import Table as ConnectionTable  # type: ignore[no-redef]
    from asyncli.plan import Layer, Plan, build_plan  # type: ignore[no-redef]
    from asyncli.records import Tick  # type: ignore[no-redef]

HERE = Path(__file__).parent
PORTS = 28_232


def machine() -> str:
    """One line on where the figures were measured."""
    memory = psutil.virtual_memory().total / 2**30
    nginx = (
        subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False)
        .stderr.strip()
        .rpartition(" ")[2]
    )
    return (
        f"Linux {platform.release()}, {os.cpu_count()} CPUs, {memory:.0f} GiB, Python "
        f"{platform.python_version()}, asyncli {__version__}, {nginx}"
    )


def command() -> str:
    return "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])


def spread_of(values: list[float]) -> str:
    """``median (least-greatest)``."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def build_c_client() -> Path:
    """Build the C client if it is older than its source; returns its path."""
    source, target = HERE / "epoll_client.c", HERE / "bin" / "epoll_client"
    target.parent.mkdir(exist_ok=True)
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", target, source], check=True)
    return target


def settle(seconds: float = 20.0) -> None:
    """Wait until no socket of the previous round is left: the kernel frees them late."""
    end = time.monotonic() + seconds
    while (
        time.monotonic() < end
        and int(Path("/proc/net/sockstat").read_text().split("inuse ")[1].split()[0]) > 100
    ):
        time.sleep(0.2)
    time.sleep(0.5)


def engine_plan(url: str, connections: int, **values: Any) -> Plan:
    return build_plan(
        [Layer("--{key}", {"urls": [url], "connections": connections, "seed": 1, **values})]
    )


class _Echo:
    """A network of next to no cost, on a virtual clock: each heartbeat is answered at once. Each
    checkout has its own engine/sim.py; this is the same for all.
    """

    def __init__(self, protocol: str) -> None:
        self.now, self.ready, self.handles = 0.0, [], 10
        self._answer, self._unread = _ANSWERS[protocol], {}

    def clock(self) -> float:
        return self.now

    def connect(self, destination: int, source: int) -> int:
        self.handles += 1
        return self.handles

    def send(self, handle: int, data: bytes) -> int:
        if data and (answer := self._answer(data)):
            self._unread[handle] = answer
            self.ready.append((handle, 1))
        return len(data)

    def recv(self, handle: int, most: int) -> bytes:
        return self._unread.pop(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        ready, self.ready = self.ready, []
        return ready

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        pass

    def add_counts(self, tick: Tick) -> None:
        pass


def _of_http(data: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nServer: echo\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"


def _of_websocket(data: bytes) -> bytes:
    """The pong to a ping of four bytes, else an upgrade's acceptance."""
    if len(data) == 10:
        return b"\x8a\x04" + (int.from_bytes(data[2:6]) ^ int.from_bytes(data[6:])).to_bytes(4)
    key = data.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept
        + b"\r\n\r\n"
    )


def _of_http2(data: bytes) -> bytes:
    """The acknowledgement of a PING, or of the first SETTINGS, with the server's own; b"" for our
    acknowledgement of those.
    """
    if data.startswith(b"PRI "):
        return b"\0\0\0\4\0\0\0\0\0" + b"\0\0\0\4\1\0\0\0\0"
    return b"\0\0\x08\6\1" + data[-12:] if len(data) >= 17 else b""


_ANSWERS = {"http": _of_http, "websocket": _of_websocket, "http2": _of_http2}


def python_us_per_heartbeat(
    connections: int = 4_000, rounds: int = 5, protocol: str = "http"
) -> float:
    """CPU time of the table's own code for a heartbeat and its answer, each of them in a turn of
    its own: the least of the rounds.
    """
    url = "ws://127.0.0.1:80/" if protocol == "websocket" else "http://127.0.0.1:80/"
    more = {"http2": True} if protocol == "http2" else {}
    plan = engine_plan(
        url, connections, batch=40, interval=0.01, keepalive=20, first_beat="sleep", **more
    )
    net = _Echo(protocol)
    table = ConnectionTable(
        build_shard(
            plan, Spread((Destination(socket.AF_INET, "127.0.0.1", 80),), (), 1, True, PORTS)
        ),
        0,
        net,
    )
    table.start(0.0)

    def go_to(instant: float) -> Tick:
        while net.now < instant:
            upcoming = table.turn()
            net.now = max(net.now, instant if upcoming is None else upcoming)
        return table.take_tick(1)

    go_to(2.0)
    found = []
    for number in range(1, rounds + 1):
        began = time.process_time()
        answered = go_to(2.0 + 40 * number).answered
        found.append((time.process_time() - began) / answered * 1e6)
    return min(found)


async def engine_round(
    url: str, connections: int, hold_s: float, workers: int = 1, **values: Any
) -> dict[str, float]:
    """One soak of the bare engine (no collector, no run file): CPU per connect and heartbeat,
    memory per connection.
    """
    plan = engine_plan(url, connections, **values)
    sources = loopback_sources(sources_wanted(connections, 1, PORTS))
    destination = Destination(socket.AF_INET, "127.0.0.1", plan.targets[0].port)
    generator = Generator(build_shard(plan, Spread((destination,), sources, workers, True, PORTS)))
    await generator.start()

    def memory() -> int:
        return sum(psutil.Process(pid).memory_full_info().uss for pid in generator.pids)

    await asyncio.sleep(0.5)
    memory_before = memory()
    # The CPU time of the processes' start is not a connect's.
    started = [psutil.Process(pid).cpu_times() for pid in generator.pids[1:]]
    user_before, system_before = (
        sum(one.user for one in started),
        sum(one.system for one in started),
    )
    generator.begin(time.monotonic() + 0.1)
    total, ramped, result = Tick(), None, {}
    async for message in generator.messages():
        if not isinstance(message, Ticked):
            raise RuntimeError(str(message))
        tick = message.tick
        total.merge_counts(tick)
        if ramped is None and tick.ramped == workers:
            ramped, at = tick, total.answered
            result = {
                "ramp_s": tick.second,
                "opened": total.opened,
                "failed": sum(total.failures.values()),
                "ramp_beats": total.sent,
                "connect_user_us": (tick.cpu_user_s - user_before) / connections * 1e6,
                "connect_system_us": (tick.cpu_system_s - system_before) / connections * 1e6,
                "ramp_late_p99_ms": (total.ramp_lateness_us.quantile(0.99) or 0) / 1e3,
            }
        if ramped is not None and tick.second >= ramped.second + hold_s:
            beats = total.answered - at
            result |= {
                "beats": beats,
                "lost": total.lost,
                "beat_user_us": (tick.cpu_user_s - ramped.cpu_user_s) / max(1, beats) * 1e6,
                "beat_system_us": (tick.cpu_system_s - ramped.cpu_system_s) / max(1, beats) * 1e6,
                "late_p99_ms": (total.lateness_us.quantile(0.99) or 0) / 1e3,
                "memory_bytes": (memory() - memory_before) / connections,
                "fixed_mb": memory_before / 1e6,
            }
            break
    await generator.close()
    return result


#: A figure of :func:`engine_costs`, or of its caller -> the parts that it sums.
FIGURES = {
    "CPU per connect, us": ("connect_user_us", "connect_system_us"),
    "CPU per heartbeat, us": ("beat_user_us", "beat_system_us"),
    "of it user time, us": ("beat_user_us",),
    "of it our own code, us": ("python_us",),
    "a WebSocket ping's, us": ("websocket_us",),
    "an HTTP/2 ping's, us": ("http2_us",),
    "memory/connection, B": ("memory_bytes",),
}


async def engine_costs(
    url: str, connections: int, hold_s: float, batches: tuple[int, int], **values: Any
) -> dict[str, float]:
    """Three rounds of one worker: connects with hardly any heartbeats, then heartbeats alone, then
    an eighth of the connections.

    With a batch each every 10 ms. Memory per connection is the slope between the last two: what a
    process takes once, mostly pages copied after the fork, is no connection's.
    """
    shared: dict[str, Any] = {"interval": 0.01, "first_beat": "sleep", **values}
    few = connections // 8
    rounds = []
    for count, seconds, batch, keepalive in (
        (connections, 1, batches[0], 3600),
        (connections, hold_s, batches[1], 20),
        (few, hold_s, batches[1], 20),
    ):
        rounds.append(
            await engine_round(url, count, seconds, batch=batch, keepalive=keepalive, **shared)
        )
        settle()
    connects, beats, others = rounds
    slope = (beats["memory_bytes"] * connections - others["memory_bytes"] * few) / (
        connections - few
    )
    return {
        **beats,
        **{key: connects[key] for key in FIGURES["CPU per connect, us"]},
        "memory_bytes": slope,
    }


def print_figures(
    names: tuple[str, str], rounds: list[tuple[dict[str, float], dict[str, float]]]
) -> None:
    """Print the medians of both, and the ratios of the second to the first."""
    for name, parts in FIGURES.items():
        if not rounds[0][0].keys() >= set(parts):
            continue
        first, second = (
            [sum(pair[at][part] for part in parts) for pair in rounds] for at in (0, 1)
        )
        ratios = [new / old for old, new in zip(first, second, strict=True)]
        middles = (
            f"{statistics.median(first):.2f} {names[0]}, {statistics.median(second):.2f} {names[1]}"
        )
        print(f"{name:24} {middles}, ratio {spread_of(ratios)}")
