"""When servers notice clients that vanished without a word: what asyncli says of it, and what "ss"
shows meanwhile.

    python bench/vanish.py [--only nginx mosquitto] [--address ::1] [--user 65534]

For each row a server, and a soak of 100 connections of which 20 fall silent for good 3 s into the
hold. All are in one network namespace of their own. Beside asyncli, "ss" counts the server's
established sockets five times a second: those beyond the 80 clients that are not silent are clients
that the server has not noticed. Printed: after how many seconds it had noticed the first, half and
all of them, by both. --user: asyncli has this user's and group's number, and no capabilities. Needs
root (namespaces), websockets, mosquitto, and ws (npm) for Node.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common import command, machine, settle

from asyncli.lab.network import Network
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run

CONNECTIONS = 100
SILENT = 20
AT_S = 3
PORT = 18_441

NGINX = """
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; keepalive_timeout {keepalive};
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen {address}:{port} so_keepalive={probes}; location / {{ return 200 "ok"; }} }}
}}
"""
MOSQUITTO = """
listener {port} {address}
allow_anonymous true
persistence false
"""
WEBSOCKETS = """
import asyncio, sys
from websockets.asyncio.server import broadcast, serve
address, port, ping_s, push_s = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])
connected = set()
async def hold(connection):
    connected.add(connection)
    try:
        await connection.wait_closed()
    finally:
        connected.discard(connection)
async def main():
    ping = ping_s or None
    async with serve(hold, address, port, ping_interval=ping, ping_timeout=ping, compression=None):
        while True:
            await asyncio.sleep(push_s or 3600)
            broadcast(connected, bytes(100))
asyncio.run(main())
"""
WS = """
const { WebSocketServer } = require("ws");
const [address, port, ping] = process.argv.slice(1);
const server = new WebSocketServer({ host: address, port: Number(port), perMessageDeflate: false });
server.on("connection", (client) => {
    client.heard = true;
    client.on("pong", () => { client.heard = true; });
});
if (Number(ping)) setInterval(() => server.clients.forEach((client) => {
    if (!client.heard) return client.terminate();
    client.heard = false;
    client.ping();
}), 1000 * Number(ping));
"""


class Row(NamedTuple):
    """A server that is started by ``argv`` of a folder and an address. ``wait_s``: how long it has
    after the clients fell silent; ``keepalive_s``: time between heartbeats; ``retries``: how often
    its kernel sends again.
    """

    label: str
    scheme: str
    argv: Callable[[Path, str], list[str]]
    wait_s: int
    keepalive_s: int = 5
    options: tuple[str, ...] = ()
    retries: int = 15


def nginx(keepalive: str, probes: str) -> Callable[[Path, str], list[str]]:
    def argv(folder: Path, address: str) -> list[str]:
        path = folder / "nginx.conf"
        values = {"folder": folder, "address": in_url(address), "port": PORT}
        path.write_text(NGINX.format(**values, keepalive=keepalive, probes=probes))
        return ["nginx", "-p", str(folder), "-c", str(path), "-e", str(folder / "log")]

    return argv


def mosquitto(folder: Path, address: str) -> list[str]:
    path = folder / "mosquitto.conf"
    path.write_text(MOSQUITTO.format(port=PORT, address=address))
    return ["mosquitto", "-c", str(path)]


def websockets(ping_s: float, push_s: float = 0.0) -> Callable[[Path, str], list[str]]:
    numbers = (str(PORT), str(ping_s), str(push_s))
    return lambda _, address: [sys.executable, "-c", WEBSOCKETS, address, *numbers]


def node(ping_s: float) -> Callable[[Path, str], list[str]]:
    return lambda _, address: ["node", "-e", WS, address, str(PORT), str(ping_s)]


ROWS = [
    Row("nginx, keepalive_timeout 20s", "http", nginx("20s", "off"), 25),
    Row("nginx, so_keepalive=2s:2s:3", "http", nginx("3600s", "2s:2s:3"), 15),
    Row("nginx with neither", "http", nginx("3600s", "off"), 20),
    Row("websockets, ping 20/20", "ws", websockets(20.0), 50),
    Row("websockets, ping 5/5", "ws", websockets(5.0), 20),
    Row("Node ws without ping", "ws", node(0), 20),
    Row("Node ws, ping each 10 s", "ws", node(10), 25),
    Row("mosquitto, keepalive 10", "mqtt", mosquitto, 25, keepalive_s=10),
    Row("pushed data, tcp_retries2 5", "ws", websockets(0.0, 1.0), 25, retries=5),
    Row("pushed data, tcp_retries2 8", "ws", websockets(0.0, 1.0), 130, retries=8),
]


class Seen(NamedTuple):
    """How many sockets of the server were established, so long (s) after the clients fell
    silent.
    """

    after_s: float
    sockets: int


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", help="the rows whose names begin so")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--user", type=int, help="the number of an ordinary user and its group")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    for row in ROWS:
        if options.only and not row.label.startswith(tuple(options.only)):
            continue
        sysctls = {"net.ipv4.tcp_retries2": str(row.retries)}
        with (
            tempfile.TemporaryDirectory() as folder,
            Network({"host": "10.213.1.2/24"}, {"host": sysctls}) as network,
            network.inside("host"),
        ):
            Path(folder).chmod(0o777)
            measure(row, Path(folder), options.address, options.user)


def measure(row: Row, folder: Path, address: str, user: int | None) -> None:
    path = folder / "run.db"
    with running(row.argv(folder, address)) as server:
        time.sleep(2.0)
        words = [
            *("-c", str(CONNECTIONS), "--ramp", "100/s", "--hold", f"{AT_S + row.wait_s}s"),
            *("--baseline", "1", "--residue", "1", "--keepalive", str(row.keepalive_s)),
            *("--at", f"{AT_S}s", f"vanish {100 * SILENT // CONNECTIONS}%"),
            *("--server-pid", str(server.pid), "--out", str(path), "--quiet"),
        ]
        url = f"{row.scheme}://{in_url(address)}:{PORT}/"
        argv = [*as_user(user), sys.executable, "-m", "asyncli", "soak", url, *words]
        counts: list[tuple[float, int]] = []
        over = threading.Event()
        # A thread is in the namespace in which it was started.
        counter = threading.Thread(target=count_sockets, args=(counts, over))
        counter.start()
        status = subprocess.run(argv, check=False, stdout=subprocess.DEVNULL).returncode
        over.set()
        counter.join()
    show(row, status, path, counts)
    settle()


def as_user(user: int | None) -> list[str]:
    if user is None:
        return []
    ids = (f"--reuid={user}", f"--regid={user}", "--clear-groups")
    return ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all"]


def in_url(address: str) -> str:
    if ":" in address:
        return f"[{address}]"
    return address


@contextlib.contextmanager
def running(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def count_sockets(counts: list[tuple[float, int]], over: threading.Event) -> None:
    """The server's established sockets, by the Unix time (s)."""
    argv = ("ss", "-tnH", "state", "established", f"sport = :{PORT}")
    while not over.wait(0.2):
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        counts.append((time.time(), len(shown.splitlines())))


def show(row: Row, status: int, path: Path, counts: Sequence[tuple[float, int]]) -> None:
    run = read_run(path)
    summary = summarise(run)
    assert summary.events
    [event] = summary.events
    silent_at = run.started_wall_s + event.at_s
    ends_at = silent_at + row.wait_s - 0.5
    by_ss = [Seen(at - silent_at, number) for at, number in counts if silent_at < at < ends_at]
    noticed = event.noticed
    told = "not known"
    if noticed:
        by_asyncli = [seconds(value) for value in (noticed.p50_s, noticed.p90_s, noticed.all_s)]
        told = f"{' / '.join(by_asyncli)} s, left {noticed.left}"
    seen = " / ".join(seconds(first_below(by_ss, share)) for share in (0.5, 0.9, 1.0))
    first = seconds(first_below(by_ss, 1 / SILENT))
    lost = summary.connections.lost
    print(
        f"{row.label:30} status {status}, fell silent {event.chosen}, lost {lost}; noticed 50, "
        f"90, 100 %: {told}; by ss {seen} s, the first {first}; left {by_ss[-1].sockets - 80}",
        flush=True,
    )


def first_below(seen: Sequence[Seen], share: float) -> float | None:
    """When that share of the silent ones was no longer established (s), for good."""
    allowed = CONNECTIONS - share * SILENT
    since_s = None
    for after_s, sockets in seen:
        if sockets > allowed:
            since_s = None
        elif since_s is None:
            since_s = after_s
    return since_s


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    os.umask(0)
    main()
