"""Measures how asyncli reads servers' own metrics (``--server-metrics``), on ten real products.

    python bench/server_counts.py [--parts counts found cpu part] [--products envoy haproxy ...]
    [--connections 400] [--ramp 15] [--hold 40] [--scrapes 30] [--pause 1] [--repeats 20]
    [--at-once 3] [--keep FOLDER]

Each product is a new process on loopback, and each soak a run of its own. Four parts, each with a
table:

- *counts*: what the page counts, beside what asyncli counts, at the hold's end.
- *found*: the same soaks without the rules that name the page's counts: which row is found by its
  values.
- *cpu*: what one reading takes of the processors, in asyncli's process and in the server's, with
  the connections held and idle, and that as a share of a core at the interval that asyncli chose.
- *part*: two processes of Go that share a port (SO_REUSEPORT), and the page of one of them: what
  it says of its heap must not be divided by the connections of both.

--keep: a folder for the run files; those in it are read again in place of a soak. Needs the
programs of the products; uvicorn and prometheus_client are installed into bench/bin/venv.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psutil
from common import HERE, command, machine

from asyncli.api import Recorded, load, soak
from asyncli.collect import metric_values
from asyncli.collect.broker_reader import BrokerReader
from asyncli.collect.metric_rules import COUNTS, PRODUCTS, Product
from asyncli.collect.metrics_reader import MetricsReader
from asyncli.lab import choose, golang, ports
from asyncli.lab.base import LabServer, ask
from asyncli.lab.child import end, spawn, until
from asyncli.lab.packaged_servers import LabCaddy, LabHaproxy, LabNats
from asyncli.model import metrics
from asyncli.model.plan import Layer, build_plan

START_S = 15.0
# Of the part "part": its hold, and how many soaks have one worker alone.
PART_HOLD_S = 10
CONTROLS = 3
VENV = HERE / "bin" / "venv"
ONE_OF_TWO = HERE / "bin" / "one-of-two"
EXPORTER = "http-request use-service prometheus-exporter if { path /metrics }"
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Place(NamedTuple):
    """A server that runs. ``pids``: of its processes and of what writes its page; the first is the
    one that holds the connections, or their parent. ``plan``: keys that its protocol needs.
    """

    url: str
    page: str
    pids: tuple[int, ...]
    plan: Mapping[str, Any] = {}

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])


Serving = contextlib.AbstractAsyncContextManager[Place]


# The products.


class ExportingHaproxy(LabHaproxy):
    """The lab's HAProxy, with its own exporter of metrics beside the status page."""

    metrics_path = "/metrics"

    def _config(self) -> str:
        return super()._config().replace("stats enable", f"{EXPORTER}\n    stats enable")


class CountingCaddy(LabCaddy):
    """The lab's Caddy, which counts its requests."""

    def _config(self) -> str:
        return super()._config().replace('"lab": {', '"lab": {"metrics": {},')


class MonitoredNats(LabNats):
    """The lab's NATS, with its monitoring."""

    metrics_path = "/varz"

    def _config(self) -> str:
        return f'{super()._config()}\nhttp: "127.0.0.1:{self.status_port}"\n'


@contextlib.asynccontextmanager
async def of_lab(server: LabServer) -> AsyncIterator[Place]:
    async with server:
        # A broker publishes its metrics as topics.
        page = server.metrics_url or server.url
        yield Place(server.url, page, (server.pid,), server.plan_keys)


@contextlib.asynccontextmanager
async def process(argv: list[str], port: int) -> AsyncIterator[int]:
    """A program that answers at a port of this host: its process id."""
    started = spawn(argv)
    try:
        if not await until(lambda: ports.bind_error("127.0.0.1", port) is not None, START_S):
            raise SystemExit(f"{argv[0]} does not listen")
        yield started.pid
    finally:
        await end(started)


@contextlib.asynccontextmanager
async def exported_nginx() -> AsyncIterator[Place]:
    exporter = shutil.which("prometheus-nginx-exporter")
    if exporter is None:
        raise SystemExit("apt-get install prometheus-nginx-exporter")
    _, port = ports.free_pair("127.0.0.1")
    async with choose("nginx", connections=1000) as nginx:
        at = f"127.0.0.1:{port}"
        argv = [exporter, "-nginx.scrape-uri", str(nginx.status_url), "-web.listen-address", at]
        async with process(argv, port) as pid:
            yield Place(nginx.url, f"http://{at}/metrics", (nginx.pid, pid))


@contextlib.asynccontextmanager
async def uvicorn() -> AsyncIterator[Place]:
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        wanted = ("uvicorn", "prometheus-client")
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
    port, _ = ports.free_pair("127.0.0.1")
    argv = [str(python), "-m", "uvicorn", "--app-dir", str(HERE), "--port", str(port)]
    argv += ["--timeout-keep-alive", "3600", "--log-level", "warning", "asgi_app:app"]
    async with process(argv, port) as pid:
        url = f"http://127.0.0.1:{port}/"
        yield Place(url, f"{url}metrics", (pid,))


def lab(name: str) -> Callable[[], Serving]:
    return lambda: of_lab(choose(name, connections=1000))


SERVED: dict[str, Callable[[], Serving]] = {
    "envoy": lab("envoy"),
    "haproxy": lambda: of_lab(ExportingHaproxy(connections=1000)),
    "nginx-exporter": exported_nginx,
    "caddy": lambda: of_lab(CountingCaddy(connections=1000)),
    "nats": lambda: of_lab(MonitoredNats(connections=1000)),
    # The lab turns its topics off; this is the default.
    "mosquitto": lambda: of_lab(
        choose("mosquitto", connections=1000, more_lines="sys_interval 10")
    ),
    "prom-client": lab("node-http"),
    "client_golang": lab("go-http"),
    "micrometer": lab("jvm"),
    "uvicorn": uvicorn,
}


# Soaks.


async def main() -> None:
    options = arguments()
    print(f"$ {command()}\n{machine()}")
    with tempfile.TemporaryDirectory() as scratch:
        options.keep = Path(options.keep or scratch)
        options.keep.mkdir(exist_ok=True)
        for part in options.parts:
            await PARTS[part](options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--products", nargs="+", choices=SERVED, default=list(SERVED))
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--ramp", type=int, default=15, help="seconds of the ramp")
    parser.add_argument("--hold", type=int, default=40, help="seconds of the hold")
    parser.add_argument("--scrapes", type=int, default=30, help="readings of the part cpu")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two of them")
    parser.add_argument("--repeats", type=int, default=20, help="soaks of the part part")
    parser.add_argument("--at-once", type=int, default=3, help="so many soaks at a time")
    parser.add_argument("--keep", help="a folder for the run files")
    return parser.parse_args()


async def soaked(serving: Serving, out: Path, options: argparse.Namespace, **more: Any) -> Recorded:
    """A soak of a new server; a file that is there is read again."""
    if out.exists():
        return load(out)
    async with serving as place:
        values = {
            "urls": [place.url],
            "server_pid": place.pids[0],
            "server_metrics": [place.page],
            "connections": options.connections,
            "ramp": f"{options.connections / options.ramp:.0f}/s",
            "hold": options.hold,
            # Heartbeats that a server counts, without much of its CPU time.
            "keepalive": 20,
            **place.plan,
            **more,
        }
        return await soak(build_plan([Layer("--{key}", values)]), out)


async def for_each(
    options: argparse.Namespace, run: Callable[[str], Awaitable[str]], names: list[str]
) -> list[str]:
    """The row of each name, some at a time."""
    places = asyncio.Semaphore(options.at_once)

    async def row_of(name: str) -> str:
        async with places:
            return await run(name)

    return list(await asyncio.gather(*map(row_of, names)))


def print_table(title: str, head: str, rows: list[str]) -> None:
    columns = head.count("|") - 1
    print(f"\n{title}\n\n{head}\n|{'---|' * columns}")
    for row in rows:
        print(row)
    sys.stdout.flush()


def shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


async def print_counts(options: argparse.Namespace) -> None:
    async def row(name: str) -> str:
        run = await soaked(SERVED[name](), options.keep / f"counts-{name}.db", options)
        return count_row(name, run)

    rows = await for_each(options, row, options.products)
    head = "| product | held | active | accepts | requests | asyncli's | agree | by | codes |"
    print_table("Counts at the hold's end", head, rows)


def count_row(name: str, run: Recorded) -> str:
    counts = run.summary.reconciliation
    source = source_of(run)
    whole = run.analyses.totals.whole
    # What the page counts since its first reading has asyncli's readings in it.
    polls = since_first(run, metrics.STATUS_POLLS)
    asked = "" if counts.requests_delta is None else f"{whole.answered} + {polls:.0f}"
    codes = [finding.code for finding in run.findings if is_of_counts(finding.code)]
    values = (
        name,
        counts.client_held,
        counts.server_active,
        counts.accepts_delta,
        counts.requests_delta,
        asked,
        agreement_of(run),
        source,
        ", ".join(sorted(codes)),
    )
    return f"| {' | '.join(map(shown, values))} |"


def agreement_of(run: Recorded) -> str:
    agrees = run.summary.reconciliation.agrees
    return "unknown" if agrees is None else shown(agrees)


def is_of_counts(code: str) -> bool:
    return code.startswith(("reconcil", "counted_by", "parted_", "counters_", "heap_of"))


def source_of(run: Recorded) -> str | None:
    source = run.summary.reconciliation.source
    return getattr(source, "metric", None)


def since_first(run: Recorded, metric: str) -> float:
    values = run.records.series(metric).values
    return values[-1] - values[0] if values else 0.0


async def print_found(options: argparse.Namespace) -> None:
    async def row(name: str) -> str:
        run = await soaked(SERVED[name](), options.keep / f"found-{name}.db", options)
        counts = run.summary.reconciliation
        watched = sum(metric.startswith(metrics.PAGE) for metric in run.records.metrics)
        values = (name, source_of(run), counts.client_held, counts.server_active, watched)
        return f"| {' | '.join(map(shown, values))} |"

    with without_counts():
        rows = await for_each(options, row, options.products)
    head = "| product | found | held | active by it | rows watched |"
    print_table("Found by its values, without a rule", head, rows)


@contextlib.contextmanager
def without_counts() -> Iterator[None]:
    """No rule names what a page counts; pages are recognised as before."""
    table = tuple(map(counting_nothing, PRODUCTS))
    with mock.patch.object(metric_values, "PRODUCTS", table):
        yield


def counting_nothing(product: Product) -> Product:
    readings = tuple(reading for reading in product.readings if reading.metric not in COUNTS)
    return product._replace(readings=readings)


# What a reading costs.


async def print_cpu(options: argparse.Namespace) -> None:
    head = (
        "| product | page, bytes | asyncli, ms | server, ms | interval, s | asyncli, % of a core "
        "| server, % |"
    )
    print_table(f"A reading's CPU time, {options.connections} connections", head, [])
    for name in options.products:
        async with SERVED[name]() as place:
            print(await cpu_row(name, place, options), flush=True)


async def cpu_row(name: str, place: Place, options: argparse.Namespace) -> str:
    reader = reader_of(place)
    # A broker publishes at its own interval, and is asked in each second.
    interval_s = 1.0
    size = ""
    with held(place, options.connections):
        # The first ones load code.
        for _ in range(5):
            await reader.read()
        idle_ms = await server_ms(place, options.scrapes // 3, options.pause, no_reading)
        begun_s = time.process_time()
        busy_ms = await server_ms(place, options.scrapes, options.pause, reader.read)
        own_ms = (time.process_time() - begun_s) * 1e3 / options.scrapes
        if isinstance(reader, MetricsReader):
            interval_s = reader.interval_s
            size = f"{len(urllib.request.urlopen(place.page).read()):,}"
    await reader.close()
    of_server_ms = max(0.0, busy_ms - idle_ms)
    own_share = own_ms / 1e3 / interval_s
    server_share = of_server_ms / 1e3 / interval_s
    values = (
        name,
        size,
        f"{own_ms:.2f}",
        f"{of_server_ms:.2f}",
        f"{interval_s:.1f}",
        f"{own_share:.2%}",
        f"{server_share:.2%}",
    )
    return f"| {' | '.join(map(str, values))} |"


def reader_of(place: Place) -> MetricsReader | BrokerReader:
    if place.page.startswith("mqtt"):
        return BrokerReader(place.page)
    return MetricsReader(place.page, searches=True)


async def no_reading() -> None:
    pass


async def server_ms(
    place: Place, readings: int, pause_s: float, read: Callable[[], Awaitable[object]]
) -> float:
    """CPU time (ms) of the server's processes for each reading, and the pause after it."""
    before_ns = cpu_ns(place)
    for _ in range(readings):
        await read()
        await asyncio.sleep(pause_s)
    return (cpu_ns(place) - before_ns) / 1e6 / readings


def cpu_ns(place: Place) -> int:
    """CPU time of all threads of the server's processes."""
    taken = 0
    for pid in place.pids:
        root = psutil.Process(pid)
        for server in (root, *root.children(recursive=True)):
            for thread in Path(f"/proc/{server.pid}/task").iterdir():
                # A thread may end meanwhile.
                with contextlib.suppress(OSError):
                    taken += int((thread / "schedstat").read_text().split()[0])
    return taken


@contextlib.contextmanager
def held(place: Place, count: int) -> Iterator[None]:
    """Connections to the server that have had one answer each, and stay idle."""
    ends = []
    try:
        for number in range(count):
            ends.append(socket.create_connection(("127.0.0.1", place.port), 5.0))
            if place.url.startswith("mqtt"):
                ends[-1].sendall(connect_packet(number))
            elif place.url.startswith("http"):
                ends[-1].sendall(GET)
            # NATS greets.
            ends[-1].recv(4096)
        yield
    finally:
        for socket_end in ends:
            socket_end.close()


def connect_packet(number: int) -> bytes:
    """MQTT 3.1.1's CONNECT with a clean session and no keep-alive."""
    name = f"bench-{number}".encode()
    body = b"\0\4MQTT\4\2\0\0" + len(name).to_bytes(2, "big") + name
    return b"\x10" + bytes([len(body)]) + body


# The page of one worker of two.


@contextlib.asynccontextmanager
async def workers_at_one_port(page: str, count: int) -> AsyncIterator[Place]:
    """``count`` workers, children of one shell, and the page of the first."""
    port, _ = ports.free_pair("127.0.0.1")
    pages = [ports.free_pair("127.0.0.1")[1] for _ in range(count)]
    # Their heaps are collected often, so that its cost could be told.
    script = 'export GOGC=10; port=$1; shift; for page; do "$0" $port $page & done; wait'
    argv = ["/bin/sh", "-c", script, str(one_of_two()), str(port), *map(str, pages)]
    async with process(argv, port) as pid:
        deadline_s = time.monotonic() + START_S
        for metrics_port in pages:
            while b" 200 " not in await ask(metrics_port, page):
                if time.monotonic() > deadline_s:
                    raise SystemExit("a worker does not answer")
                await asyncio.sleep(0.05)
        yield Place(f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{pages[0]}{page}", (pid,))


def one_of_two() -> Path:
    """The program, built with the lab's modules if it is older than its source."""
    source = HERE / "one_of_two.go"
    if ONE_OF_TWO.exists() and ONE_OF_TWO.stat().st_mtime >= source.stat().st_mtime:
        return ONE_OF_TWO
    ONE_OF_TWO.parent.mkdir(exist_ok=True)
    go, _ = golang.locate("go-http")
    argv = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", ONE_OF_TWO, source]
    subprocess.run(argv, cwd=golang.SOURCES, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
    return ONE_OF_TWO


async def print_part(options: argparse.Namespace) -> None:
    rows = []
    for page in ("/metrics", "/debug/vars"):
        rows.append(await part_row(page, 2, options.repeats, options))
        # A worker alone, whose costs are to be told.
        rows.append(await part_row(page, 1, min(CONTROLS, options.repeats), options))
    head = (
        "| page of the first | workers | soaks | heap of a part | a cost of the heap told | its share "
        "of the connections | counts agree |"
    )
    print_table("The page of one worker of two", head, rows)


async def part_row(page: str, workers: int, repeats: int, options: argparse.Namespace) -> str:
    runs = []

    async def repeat(number: str) -> str:
        out = options.keep / f"part{page.replace('/', '-')}-{workers}-{number}.db"
        serving = workers_at_one_port(page, workers)
        runs.append(await soaked(serving, out, options, hold=PART_HOLD_S))
        return ""

    await for_each(options, repeat, [f"{number:02}" for number in range(repeats)])
    refused = sum(map(is_refused, runs))
    told = sum(map(tells_a_cost, runs))
    shares = [share for share in map(share_of, runs) if share is not None]
    spread = "not told"
    if shares:
        spread = f"{min(shares):.0%} to {max(shares):.0%}, median {statistics.median(shares):.0%}"
    agrees = Counter(map(agreement_of, runs))
    counted = ", ".join(f"{word} ({times})" for word, times in agrees.items())
    values = (f"`{page}`", workers, repeats, refused, told, spread, counted)
    return f"| {' | '.join(map(str, values))} |"


def is_refused(run: Recorded) -> bool:
    return any(finding.code == "heap_of_a_part" for finding in run.findings)


def tells_a_cost(run: Recorded) -> bool:
    heap = run.analyses.costs.heap
    return any(cost is not None for cost in (heap.live, heap.stacks, heap.at_goal))


def share_of(run: Recorded) -> float | None:
    """The part of the connections that the page's process held, by its descriptors."""
    series = run.records.series(metrics.RUNTIME_DESCRIPTORS)
    before = series.between(0.0, run.records.first_connect_s).values
    during = series.between(run.records.first_connect_s, run.records.stop_s).values
    if not before or not during:
        return None
    return (during[-1] - before[-1]) / run.plan.connections


PARTS: dict[str, Callable[[argparse.Namespace], Awaitable[None]]] = {
    "counts": print_counts,
    "found": print_found,
    "cpu": print_cpu,
    "part": print_part,
}


if __name__ == "__main__":
    asyncio.run(main())
