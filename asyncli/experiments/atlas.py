"""What one held connection costs, by server and protocol: memory in server and kernel, CPU time of
a connect and a heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asyncli.analysis.slope import Cost
from asyncli.app.results import Results
from asyncli.experiments import Count, Experiment
from asyncli.experiments.context import Context, fitness
from asyncli.experiments.record import (
    Chart,
    Column,
    Conclusions,
    FigureRow,
    FigureTable,
    Rounds,
    bars,
)
from asyncli.experiments.soak_ladder import (
    LadderPlan,
    figures_of,
    ladder_soak,
    measured_in_cgroup,
    run_ladder,
)
from asyncli.lab import choose
from asyncli.lab.base import LabServer
from asyncli.model.metrics import SERVER_CPU_S
from asyncli.model.run import Run
from asyncli.model.units import parse_duration


class Cell(NamedTuple):
    """A lab server and a protocol: ``protocol`` for labels, ``scheme`` if not the lab's default,
    ``keys`` of the soak's plan, ``options`` of the lab.
    """

    server: str
    protocol: str
    tls: bool = False
    scheme: str | None = None
    keys: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}

    @property
    def streams(self) -> int:
        """Streams that each connection holds; 0: none."""
        return int(self.keys.get("streams", 0))


_H2C: Mapping[str, Any] = {"http2": True}
_H2: dict[str, Any] = {"keys": _H2C, "options": _H2C}
# A short message is enough: the first one makes the server allocate its compression state.
_DEFLATE: dict[str, Any] = {
    "keys": {"ws_deflate": True, "ws_message": '{"op": "ping"}'},
    "options": {"deflate": True},
}
_SSE: dict[str, Any] = {"scheme": "http", "keys": {"protocol": "sse", "silence": "forever"}}
#: Names for ``--only``.
CELLS = {
    "nginx": Cell("nginx", "HTTP"),
    "nginx-tls": Cell("nginx", "HTTPS", True),
    "nginx-h2c": Cell("nginx", "HTTP/2, pings", **_H2),
    "nginx-h2": Cell("nginx", "HTTP/2 over TLS, pings", True, **_H2),
    "nginx-h2c-heads": Cell(
        "nginx", "HTTP/2, HEADs", keys={**_H2C, "h2_heartbeat": "head"}, options=_H2C
    ),
    "nginx-h2c-heads-table": Cell(
        "nginx",
        "HTTP/2, HEADs by the header table",
        keys={**_H2C, "h2_heartbeat": "head", "h2_table": True},
        options=_H2C,
    ),
    "nginx-h2c-streams-10": Cell(
        "nginx", "HTTP/2, 10 held streams", keys={**_H2C, "streams": 10}, options=_H2C
    ),
    "nginx-h2c-streams-100": Cell(
        "nginx", "HTTP/2, 100 held streams", keys={**_H2C, "streams": 100}, options=_H2C
    ),
    "apache-event": Cell("apache-event", "HTTP"),
    "apache-event-tls": Cell("apache-event", "HTTPS", True),
    "apache-event-h2c": Cell("apache-event", "HTTP/2, pings", **_H2),
    "apache-event-h2": Cell("apache-event", "HTTP/2 over TLS, pings", True, **_H2),
    "haproxy": Cell("haproxy", "HTTP"),
    "haproxy-tls": Cell("haproxy", "HTTPS", True),
    "haproxy-h2c": Cell("haproxy", "HTTP/2, pings", **_H2),
    "haproxy-h2": Cell("haproxy", "HTTP/2 over TLS, pings", True, **_H2),
    "nginx-proxy-ws": Cell("nginx-proxy", "WebSocket", scheme="ws"),
    "nginx-proxy-wss": Cell("nginx-proxy", "WebSocket over TLS", True, scheme="ws"),
    "haproxy-proxy-ws": Cell("haproxy-proxy", "WebSocket", scheme="ws"),
    "haproxy-proxy-wss": Cell("haproxy-proxy", "WebSocket over TLS", True, scheme="ws"),
    "caddy": Cell("caddy", "HTTP"),
    "caddy-tls": Cell("caddy", "HTTPS", True),
    "caddy-h2c": Cell("caddy", "HTTP/2, pings", **_H2),
    "caddy-h2": Cell("caddy", "HTTP/2 over TLS, pings", True, **_H2),
    "lighttpd": Cell("lighttpd", "HTTP"),
    "lighttpd-h2c": Cell("lighttpd", "HTTP/2, pings", **_H2),
    "varnish": Cell("varnish", "HTTP"),
    "varnish-h2c": Cell("varnish", "HTTP/2, pings", **_H2),
    "builtin": Cell("builtin", "HTTP"),
    "builtin-tls": Cell("builtin", "HTTPS", True),
    "nchan-ws": Cell("nchan", "WebSocket"),
    "nchan-wss": Cell("nchan", "WebSocket over TLS", True),
    "websockets-ws": Cell("websockets", "WebSocket"),
    "websockets-wss": Cell("websockets", "WebSocket over TLS", True),
    "websockets-ws-deflate": Cell("websockets", "WebSocket, compressed messages", **_DEFLATE),
    "aiohttp-ws": Cell("aiohttp", "WebSocket"),
    "aiohttp-wss": Cell("aiohttp", "WebSocket over TLS", True),
    "aiohttp-http": Cell("aiohttp", "HTTP", scheme="http"),
    "uvicorn-ws": Cell("uvicorn", "WebSocket"),
    "uvicorn-wss": Cell("uvicorn", "WebSocket over TLS", True),
    "uvicorn-http": Cell("uvicorn", "HTTP", scheme="http"),
    "node-ws": Cell("node-ws", "WebSocket"),
    "node-wss": Cell("node-ws", "WebSocket over TLS", True),
    "node-ws-deflate": Cell("node-ws", "WebSocket, compressed messages", **_DEFLATE),
    "node-http": Cell("node-ws", "HTTP", scheme="http"),
    "go-http": Cell("go-http", "HTTP"),
    "jvm-http": Cell("jvm", "HTTP"),
    "gorilla-ws": Cell("gorilla", "WebSocket"),
    "gorilla-wss": Cell("gorilla", "WebSocket over TLS", True),
    "gobwas-ws": Cell("gobwas", "WebSocket"),
    "nchan-sse": Cell("nchan", "event stream", **_SSE),
    "nchan-sse-tls": Cell("nchan", "event stream over TLS", True, **_SSE),
    "mosquitto": Cell("mosquitto", "MQTT"),
    "mosquitto-tls": Cell("mosquitto", "MQTT over TLS", True),
    "nats": Cell("nats", "raw TCP"),
    "redis": Cell("redis", "raw TCP"),
    "memcached": Cell("memcached", "raw TCP"),
}
_COLUMNS = [
    Column("user", "server processes", "B"),
    Column("user_half", "±", "B"),
    Column("kernel", "kernel, per socket end", "B"),
    Column("own", "server side in all", "B"),
    Column("own_half", "±", "B"),
    Column("connect_us", "CPU per connect with first heartbeat", "us"),
    Column("beat_us", "CPU per later heartbeat", "us"),
]
_STREAM_COLUMNS = _COLUMNS[:2]
_HEAP_COLUMNS = [
    Column("live", "alive in its heap", "B"),
    Column("live_half", "±", "B"),
    Column("stacks", "stacks", "B"),
    Column("at_goal", "when its heap has filled", "B"),
    Column("at_goal_half", "±", "B"),
]
_HEAP_CAPTION = (
    "Servers whose memory is collected. Their slope above is of a heap that was filling. "
    "Alive: what one more connection keeps, by collections that asyncli asked for at each plateau "
    "of a second ladder, on a new server. Stacks and the filled heap are by the server's own page "
    "of metrics in the first ladder; Node and Java have neither."
)
# Fewer and more streams: the cost of the first one, and of the connection's buffers, is in both and
# cancels.
_PAIRS = {"nginx": ("nginx-h2c-streams-10", "nginx-h2c-streams-100")}
_STREAM_CAPTION = (
    "One more HTTP/2 stream with an unfinished response, on a connection that holds some already: "
    "the difference of two cells' cost per connection, divided by the difference of their "
    "streams. It is not the cost of the first stream. The body has 3 bytes."
)
_CAPTION = (
    "One more connection each, by a ladder: slopes of memory over connections held, ± half of a "
    "95 % interval. Server side: what the server's control group is charged for it, and its TCP "
    "socket where that is not. CPU time is the server's, handshakes included. A figure whose "
    "interval reaches zero is omitted. Each server is the lab's with its configuration: no log, "
    "no cache, and no backend except a proxy's, which is not counted. A proxy's side has both of "
    "its socket ends."
)


class AtlasPlan(LadderPlan, frozen=True, kw_only=True):
    rounds: Count = 3
    connections: Count = 5_000
    rate: Count = 1_000
    #: Connects a second over TLS: both ends' handshakes run on this host's CPUs.
    tls_rate: Count = 200
    keepalive: str = "30s"
    hold: str = "10s"


async def _run(context: Context) -> None:
    await context.run_rounds(list(CELLS), _measure)


async def _measure(context: Context, name: str, number: int) -> None:
    plan = context.plan
    cell = CELLS[name]
    # As many streams as the others have connections.
    streams_each = max(1, cell.streams)
    connections = max(plan.plateaus, plan.connections // streams_each)
    connects_per_s = plan.tls_rate if cell.tls else plan.rate
    rate = connects_per_s // streams_each
    server = _server_of(cell, plan, connections)
    async with measured_in_cgroup(context, server) as charges:
        keys = _keys_of(cell, server)
        if server.collect is not None and server.metrics_url is not None:
            keys["server_metrics"] = [server.metrics_url]
        run = await run_ladder(server, ladder_soak(server, plan, connections, rate, **keys))
        figures = {**figures_of(run, charges, server.ends), **cpu_of(run), **_filled_heap(run)}
        context.record_server(server)
    if server.collect is not None:
        figures |= await _live_heap(cell, plan, connections, rate)
    failure = None
    if figures["held"] != figures["asked"]:
        failure = f"{figures['held']:,} of {figures['asked']:,} were held"
    context.add(name, number, **figures, **fitness(failure))
    cost = "unknown"
    if figures["user"] is not None:
        cost = f"{figures['user']:,.0f} B ± {figures['user_half']:,.0f} in {server.label}"
    context.report(number, name, cost)


def _server_of(cell: Cell, plan: AtlasPlan, connections: int) -> LabServer:
    return choose(
        cell.server,
        connections=connections,
        keepalive_s=parse_duration(plan.keepalive),
        tls=cell.tls,
        scheme=cell.scheme,
        **cell.options,
    )


def _keys_of(cell: Cell, server: LabServer) -> dict[str, Any]:
    """Keys of the soak's plan for a server that runs."""
    keys = {**server.plan_keys, **cell.keys}
    if server.authority is not None:
        keys["ca"] = str(server.authority)
    return keys


def _filled_heap(run: Run) -> dict[str, float | None]:
    """Of a heap that is collected, by its own page of metrics: stacks, and what it takes when it
    has filled (bytes). Nothing for a server without such a page.
    """
    if not run.plan.server_metrics:
        return {}
    heap = Results(Path(), run).analyses.costs.heap
    return {**_cost("stacks", heap.stacks), **_cost("at_goal", heap.at_goal)}


async def _live_heap(
    cell: Cell, plan: AtlasPlan, connections: int, rate: int
) -> dict[str, float | None]:
    """What is alive in the heap for one more connection (bytes), by collections that are asked for:
    of a new server, as they keep a heap from its goal.
    """
    server = _server_of(cell, plan, connections)
    async with server:
        keys = {**_keys_of(cell, server), "collect": server.collect}
        run = await run_ladder(server, ladder_soak(server, plan, connections, rate, **keys))
    return _cost("live", Results(Path(), run).analyses.costs.heap.live)


def _cost(name: str, cost: Cost | None) -> dict[str, float | None]:
    if cost is None:
        return {name: None, f"{name}_half": None}
    return {name: cost.bytes_per_connection, f"{name}_half": cost.half_width}


def cpu_of(run: Run) -> dict[str, float | None]:
    """The server's CPU time (us) of a heartbeat in the hold, and of a connect with its first
    heartbeat in the ramp. Pure.
    """
    ramp = run.phase("ramp")
    hold = run.phase("hold")
    if ramp is None or hold is None:
        return {"beat_us": None, "connect_us": None}
    cpu_s, beats, _ = _server_cpu(run, hold.start_s, run.stop_s)
    beat_s = cpu_s / beats if beats else 0.0
    connect_us = None
    cpu_s, beats, opened = _server_cpu(run, ramp.start_s, hold.start_s)
    if opened:
        later_beats = max(0, beats - opened)
        connect_us = (cpu_s - later_beats * beat_s) / opened * 1e6
    return {"beat_us": beat_s * 1e6 if beat_s else None, "connect_us": connect_us}


def _server_cpu(run: Run, start_s: float, end_s: float) -> tuple[float, int, int]:
    """The server's CPU seconds from the first to the last sample of the span, and the heartbeats
    answered and connections opened between those samples.
    """
    cpu = run.series(SERVER_CPU_S).between(start_s - 1.0, end_s)
    if len(cpu) < 2:
        return 0.0, 0, 0
    ticks = [tick for _, tick in run.ticks_between(cpu.t_s[0], cpu.t_s[-1])]
    answered = sum(tick.answered for tick in ticks)
    opened = sum(tick.opened for tick in ticks)
    return cpu.values[-1] - cpu.values[0], answered, opened


def conclude(plan: Any, rounds: Rounds) -> Conclusions:
    """The tables, and a chart of server memory each without and with TLS, which takes a
    multiple.
    """
    labels = {name: f"{cell.server}, {cell.protocol}" for name, cell in CELLS.items()}
    tables = [rounds.table("One held connection", _COLUMNS, labels, _CAPTION)]
    _omit_unknown(tables[0], rounds, {label: name for name, label in labels.items()})
    streams = _stream_rows(rounds)
    if streams:
        tables.append(
            FigureTable("One more held stream", _STREAM_COLUMNS, streams, _STREAM_CAPTION)
        )
    heaps = _heap_rows(rounds, labels)
    if heaps:
        tables.append(FigureTable("A heap that is collected", _HEAP_COLUMNS, heaps, _HEAP_CAPTION))
    costs = _known_costs(rounds)
    charts = []
    for tls, title in ((False, "in the clear"), (True, "over TLS")):
        names = sorted((name for name in costs if CELLS[name].tls == tls), key=costs.__getitem__)
        line = bars("its processes", [costs[name] for name in names])
        categories = [labels[name].replace(" over TLS", "") for name in names]
        heading = f"A server's memory for one held connection {title}"
        unit = f"bytes in its processes, {title}"
        charts.append(Chart("bars", heading, "", unit, [line], categories))
    return Conclusions(tables, charts)


def _omit_unknown(table: FigureTable, rounds: Rounds, names: Mapping[str, str]) -> None:
    """Omit the figures whose interval reaches zero; ``names``: of the cells, by label."""
    for row in table.rows:
        for cost in ("user", "own"):
            if figure(rounds, names[row.label], cost) is None:
                row.values[cost] = []


def _stream_rows(rounds: Rounds) -> list[FigureRow]:
    rows = []
    for server, pair in _PAIRS.items():
        values = stream_cost(rounds, *pair)
        if values["user"]:
            rows.append(FigureRow(f"{server}, HTTP/2", values))
    return rows


def _heap_rows(rounds: Rounds, labels: Mapping[str, str]) -> list[FigureRow]:
    rows = []
    for name in CELLS:
        values = {}
        for column in _HEAP_COLUMNS:
            values[column.key] = list(rounds.by_round(name, column.key).values())
        if any(values.values()):
            rows.append(FigureRow(labels[name], values))
    return rows


def _known_costs(rounds: Rounds) -> dict[str, float]:
    """The server's memory for a connection without streams, by cell."""
    costs = {}
    for name, cell in CELLS.items():
        cost = figure(rounds, name, "user")
        if cost is not None and not cell.streams:
            costs[name] = cost
    return costs


def figure(rounds: Rounds, name: str, cost: str) -> float | None:
    """The median of a cell's ``cost``; None if it is unknown, or if its interval reaches zero."""
    value = rounds.median(name, cost)
    half_width = rounds.median(name, f"{cost}_half") or 0.0
    if value is None or value <= half_width:
        return None
    return value


def stream_cost(rounds: Rounds, few: str, many: str) -> dict[str, list[float]]:
    """For each round the cost of one more stream: the difference of two cells divided by that of
    their streams. ``user_half`` assumes that their errors are correlated. Pure.
    """
    streams = CELLS[many].streams - CELLS[few].streams
    costs_of_few = rounds.by_round(few, "user")
    costs_of_many = rounds.by_round(many, "user")
    halves_of_few = rounds.by_round(few, "user_half")
    halves_of_many = rounds.by_round(many, "user_half")
    costs = []
    half_widths = []
    for number, cost_of_few in costs_of_few.items():
        if number in costs_of_many:
            costs.append((costs_of_many[number] - cost_of_few) / streams)
            half_widths.append((halves_of_many[number] + halves_of_few[number]) / streams)
    return {"user": costs, "user_half": half_widths}


EXPERIMENT = Experiment(
    name="atlas",
    title="What one held connection costs, by server and protocol",
    question="The same soak of {connections:,} connections against each server of the lab, in "
    "each protocol that it speaks: what does one more connection take?",
    write_up="",
    source="none: asyncli's own comparison",
    plan=AtlasPlan,
    quick={
        "rounds": 1,
        "connections": 1_000,
        "plateaus": 4,
        "rest": "2s",
        "hold": "4s",
        "baseline": "2s",
    },
    run=_run,
    conclude=conclude,
    servers=tuple(CELLS),
)
