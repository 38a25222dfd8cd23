"""Measures what TLS costs servers: memory of one more connection, CPU per handshake and heartbeat,
by server and directive.

    python bench/tls_servers.py [--connections 4000] [--only nginx,haproxy]

A ladder of four plateaus for each row, one after the other; a row is a lab server in one
configuration. CPU is the server's: per heartbeat in the hold, and per connection in the ramp,
without the ramp's heartbeats.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from common import command, machine, settle

import asyncli
from asyncli.api import Recorded
from asyncli.lab import choose
from asyncli.lab.base import LabServer
from asyncli.lab.certificate import issue
from asyncli.lab.nginx import LabNginx
from asyncli.model.metrics import SERVER_CPU_S


class Tuned(LabNginx):
    """The lab's nginx with further directives."""

    def __init__(self, *common: Any, lines: str, **more: Any) -> None:
        super().__init__(*common, **more)
        self._lines = lines

    def _tls_lines(self) -> str:
        return f"{super()._tls_lines()}\n        {self._lines}"


#: Row -> server, further directives, keys of the plan.
ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nginx, in the clear": ("nginx", "", {}),
    "nginx": ("nginx", "", {"tls": True}),
    "nginx, ssl_buffer_size 4k": ("nginx", "ssl_buffer_size 4k;", {"tls": True}),
    "nginx, ssl_session_tickets off": ("nginx", "ssl_session_tickets off;", {"tls": True}),
    "nginx, ssl_session_cache shared:ssl:10m": (
        "nginx",
        "ssl_session_cache shared:ssl:10m;",
        {"tls": True},
    ),
    "nginx, resumed (--tls-resume)": ("nginx", "", {"tls": True, "tls_resume": True}),
    "nginx, ssl_verify_client on": (
        "nginx",
        "ssl_client_certificate FOLDER/clients.pem; ssl_verify_client on;",
        {"tls": True},
    ),
    "nginx, TLS 1.2": ("nginx", "", {"tls": True, "tls_max": "1.2"}),
    "HAProxy, in the clear": ("haproxy", "", {}),
    "HAProxy": ("haproxy", "", {"tls": True}),
    "Apache event, in the clear": ("apache-event", "", {}),
    "Apache event": ("apache-event", "", {"tls": True}),
}


def server_of(name: str, lines: str, connections: int, tls: bool) -> LabServer:
    values: dict[str, Any] = {"connections": connections, "keepalive_s": 600, "tls": tls}
    return Tuned(lines=lines, **values) if lines else choose(name, **values)


def between(run: Recorded, start_s: float, end_s: float) -> tuple[float, int, int]:
    """The server's CPU seconds, connections opened and heartbeats answered between two instants."""
    samples = [
        one
        for one in run.records.samples
        if start_s <= one.t_s <= end_s and SERVER_CPU_S in one.values
    ]
    first, last = samples[0], samples[-1]
    ticks = [tick for t_s, tick in run.records.ticks if first.t_s < t_s <= last.t_s]
    cpu_s = last.values[SERVER_CPU_S] - first.values[SERVER_CPU_S]
    return cpu_s, sum(tick.opened for tick in ticks), sum(tick.answered for tick in ticks)


async def row(name: str, connections: int, folder: Path) -> str:
    kind, lines, keys = ROWS[name]
    keys = dict(keys)
    if "FOLDER" in lines:
        clients, one = issue("127.0.0.1"), folder / "client.pem"
        (folder / "clients.pem").write_bytes(clients.authority)
        one.write_bytes(clients.certificate + clients.key)
        folder.chmod(0o755)
        lines, keys["client_cert"] = lines.replace("FOLDER", str(folder)), str(one)
    async with server_of(kind, lines, connections, keys.pop("tls", False)) as server:
        run = await asyncli.soak(
            server,
            folder / "run.db",
            connections=connections,
            ramp="2/10ms",
            plateaus=4,
            plateau_rest="6s",
            keepalive="10s",
            baseline="3s",
            hold="20s",
            residue="1s",
            **keys,
        )
    cost = run.summary.cost.server_user
    phases = {one.name: one for one in run.records.phases}
    hold, ramp = phases["hold"], phases["ramp"]
    cpu_s, _, beats = between(run, hold.start_s, hold.end_s)
    beat_s = cpu_s / beats
    cpu_s, opened, beats = between(run, ramp.start_s, ramp.end_s)
    low, high = cost.ci95
    (folder / "run.db").unlink()
    return (
        f"| {name} | {cost.bytes_per_connection:,.0f} ± {(high - low) / 2:,.0f} | "
        f"{(cpu_s - beats * beat_s) / opened * 1e6:,.0f} | {beat_s * 1e6:.0f} | "
        f"{run.summary.connections.lost} |"
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument(
        "--only",
        default="",
        help="only rows whose name contains one of these words, separated by commas",
    )
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}\n")
    print(
        "| server | B per connection | CPU per connection, us | CPU per heartbeat, us | lost |\n"
        "|---|---|---|---|---|"
    )
    for name in ROWS:
        if any(word in name for word in options.only.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                print(await row(name, options.connections, Path(folder)), flush=True)
            settle()


asyncio.run(main())
