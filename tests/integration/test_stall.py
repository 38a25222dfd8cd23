"""Clients that read nothing for a time, against real servers: they are held, answered late, and whom a server ends is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_table
import pytest
from programs import here, require_done, run, serving_by, speaking, stood_still_s
from provoked import an_nginx

from asyncli.lab import choose

SLOW = ("--baseline", "1", "--residue", "0.2", "-k", "2", "--ramp", "200/s")
FOR_3_S = ("--hold", "9s", "--at", "2s", "stall 30% for 3s", "-c", "20")

# Pushes 32 kB to each of its WebSockets fifty times a second, and keeps what they do not read.
PUSHING = """
import asyncio, sys
from websockets.asyncio.server import broadcast, serve

connected = set()


async def hold(connection):
    connected.add(connection)
    try:
        await connection.wait_closed()
    finally:
        connected.discard(connection)


async def main():
    async with serve(hold, "127.0.0.1", 0, ping_interval=None, compression=None) as server:
        print(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        while not ended.done():
            await asyncio.sleep(0.02)
            broadcast(connected, bytes(32_768))


asyncio.run(main())
"""

# Sends 20 kB to each listener fifty times a second, and ends those for whom 300 kB wait in it: behind what its kernel still has for them.
IMPATIENT = """
import asyncio, sys


async def push(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n")
    while writer.transport.get_write_buffer_size() < 300_000:
        writer.write(b"data: " + b"x" * 20_000 + b"\\n\\n")
        await asyncio.sleep(0.02)
    writer.transport.abort()


async def main():
    server = await asyncio.start_server(push, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
"""


def stalled(folder: Path, url: str, *asked: str) -> dict[str, Any]:
    """The summary of a soak in which some stall."""
    done = run(folder, "soak", url, *SLOW, *asked, "--out", "run.db")
    return require_done(folder, done)


def require_late_answers(folder: Path, summary: dict[str, Any], *, counts_beats: bool = True) -> dict[str, Any]:
    """All were held, all heartbeats answered; the event of the six that stalled, of the run in ``folder``."""
    connections = summary["connections"]
    assert (connections["held"], connections["lost"], connections["opened"], connections["failed"]) == (20, 0, 20, 0)
    [event] = summary["events"]
    assert (event["chosen"], event["absent"], event["stalled"], event["resumed"], event["closed"]) == (6, 0, 6, 6, 0)
    assert (event["not_back"], event["ended"], event["attempts"]) == (0, 0, 0)
    assert event["back"]["all_s"] < 2.0 + stood_still_s(folder)
    heartbeats = summary["heartbeats"]
    if counts_beats:
        # More than two of each, however long asyncli itself stood still.
        assert heartbeats["sent"] == heartbeats["answered"] > 40
        assert event["waited_bytes"] > 0
    return dict(event)


@pytest.mark.nginx
@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, ()), ({"tls": True}, ()), ({"http2": True}, ("--http2",)), ({"http2": True, "tls": True}, ("--http2", "--h2-heartbeat", "head"))],
    ids=["http", "https", "h2 by ping", "h2 by head"],
)  # fmt: skip
async def test_on_nginx_all_is_answered_late(tmp_path: Path, options: dict[str, Any], asked: tuple[str, ...]) -> None:
    async with choose("nginx", connections=20, **options) as server:
        trusted = () if server.authority is None else ("--ca", str(server.authority))
        words = (*FOR_3_S, *asked, *trusted, "--status-url", str(server.status_url))
        summary = await asyncio.to_thread(stalled, tmp_path, server.url, *words)
    event = require_late_answers(tmp_path, summary)
    assert summary["reconciliation"]["agrees"]
    # An answer in three seconds fits into the clients' own buffers.
    assert {event["slow_readers"][part]["why"] for part in ("user", "kernel")} == {"nothing_waited"}
    assert event["segment_bytes"] == 1448


@pytest.mark.nchan
@pytest.mark.parametrize(("scheme", "asked"), [("ws", ()), ("http", ("--protocol", "sse"))], ids=["websocket", "events"])
@pytest.mark.parametrize("tls", [False, True])
async def test_on_nchan_pings_are_answered_and_streams_are_held(tmp_path: Path, scheme: str, asked: tuple[str, ...], tls: bool) -> None:
    async with choose("nchan", connections=20, tls=tls, scheme=scheme) as server:
        trusted = () if server.authority is None else ("--ca", str(server.authority))
        summary = await asyncio.to_thread(stalled, tmp_path, server.url, *FOR_3_S, *asked, *trusted)
    require_late_answers(tmp_path, summary, counts_beats=scheme == "ws")


@pytest.mark.mosquitto
async def test_a_broker_hears_from_those_who_stall(tmp_path: Path) -> None:
    """It ends clients that it has not heard for 1.5 times their keepalive of 1 s."""
    async with choose("mosquitto", connections=20) as server:
        summary = await asyncio.to_thread(stalled, tmp_path, server.url, *FOR_3_S)
    require_late_answers(tmp_path, summary)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)


@pytest.mark.parametrize("expect", ["any", "PING\\n", "/PING/"])
def test_raw_bytes_are_answered_late(tmp_path: Path, expect: str) -> None:
    with speaking(_echo) as at:
        summary = stalled(tmp_path, f"tcp://{at}", "--send", "PING\\n", "--expect", expect, *FOR_3_S)
    require_late_answers(tmp_path, summary)


@pytest.mark.nginx
def test_who_stalls_to_the_end_is_held_to_the_end(tmp_path: Path) -> None:
    with an_nginx() as server:
        summary = stalled(tmp_path, server.url, "--hold", "5s", "--at", "2s", "stall 30%", "-c", "20")
    event = require_late_answers(tmp_path, summary, counts_beats=False)
    assert event["for_s"] is None
    assert event["server"]["after"] is None


@contextmanager
def pushing(folder: Path) -> Iterator[str]:
    """The URL of a server that pushes."""
    script = folder / "pushing.py"
    script.write_text(PUSHING, encoding="utf-8")
    with serving_by(script) as url:
        yield url


def test_what_a_slow_reader_costs_a_server_that_keeps_all_for_it(tmp_path: Path) -> None:
    """1.6 MB a second of each: first its kernel has it, and then the server, without an end."""
    with pushing(tmp_path) as url:
        summary = stalled(tmp_path, url, "-c", "20", "--hold", "22s", "--at", "6s", "stall 20% for 8s", "--fail-if", "events.1.slow_readers.kernel.per_connection > 9MB")
    connections = summary["connections"]
    [event] = summary["events"]
    assert (connections["held"], connections["lost"], event["stalled"], event["resumed"]) == (20, 0, 4, 4)
    user, kernel = event["slow_readers"]["user"], event["slow_readers"]["kernel"]
    assert (user["status"], user["why"]) == ("at_least", "grows")
    # All that came in eight seconds is with the server or on the way, but for what a client's kernel took.
    waited = event["waited_bytes"] / 4
    assert waited > 8e6
    assert 0.4 * waited < user["per_connection"] + kernel["per_connection"] < 1.6 * waited
    assert 300_000 < kernel["per_connection"] < 6_000_000
    assert abs(kernel["kept"]) < 0.2 * kernel["total"]
    assert here(tmp_path, "report", "run.db", "--csv", "tables").status == 0
    assert ",stall," in (tmp_path / "tables" / "events.csv").read_text()
    assert json.loads(here(tmp_path, "report", "run.db", "--json", "-").out)["events"][0]["slow_readers"]["user"]["why"] == "grows"


@pytest.mark.nginx
def test_a_server_that_ends_slow_readers(tmp_path: Path) -> None:
    """From the sixth on, its answers are larger than what the kernels of both ends take. The first ones are small: a client's kernel that
    has received large ones before may take several of them, the more the busier the machine is.
    """
    (tmp_path / "large").write_bytes(bytes(4_000_000))
    replace = {
        'return 200 "ok\\n";': f'root {tmp_path}; if ($connection_requests ~ "^([6-9]|..+)$") {{ rewrite ^ /large break; }} return 200 "ok\\n";',
        "reuseport backlog=4096": "reuseport backlog=4096 sndbuf=64k",
        "send_timeout 3600s;": "send_timeout 2s; reset_timedout_connection on;",
    }
    with an_nginx(replace=replace) as server:
        asked = ("--method", "GET", "-c", "10", "--hold", "14s", "--at", "3s", "stall 50% for 7s", "--reconnect", "fixed:1s", "--status-url", server.status_url)
        summary = stalled(tmp_path, server.url, *asked)
    said = " ".join(run(tmp_path, "report", "run.db", "-v").out.split())
    connections = summary["connections"]
    [event] = summary["events"]
    assert (connections["held"], connections["lost"], connections["failed"]) == (10, 0, 0)
    assert (event["stalled"], event["resumed"], event["closed"], event["not_back"]) == (5, 0, 5, 0)
    assert event["closes"] == {"reset": 5}
    assert 2.0 <= event["closed_after"]["first_s"] <= event["closed_after"]["last_s"] < 6.0 + stood_still_s(tmp_path)
    assert event["closed_after"]["unseen"] == 0
    assert 0.3 < event["back"]["all_s"] < 1.7 + stood_still_s(tmp_path)
    fault_table.require_as_printed("test_a_server_that_ends_slow_readers", said, summary["reconciliation"]["agrees"])



@pytest.mark.parametrize(("words", "held"), [("stall 50% for 6s", 10), ("stall 50%", 5)])
def test_a_server_that_ends_slow_readers_behind_what_waits(tmp_path: Path, words: str, held: int) -> None:
    """Its kernel has megabytes for each when it ends them, and the end of the stream behind these."""
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT, encoding="utf-8")
    with serving_by(script) as url:
        asked = ("--protocol", "sse", "-c", "10", "--hold", "16s", "--at", "6s", words, "--reconnect", "fixed:1s")
        summary = stalled(tmp_path, url, *asked)
    connections = summary["connections"]
    [event] = summary["events"]
    assert (connections["held"], connections["lost"], connections["deaths"], connections["failed"]) == (held, 0, {}, 0)
    assert (event["stalled"], event["resumed"], event["closed"], event["not_back"]) == (5, 5, 5, 0)
    assert (event["closes"], event["closed_after"]["unseen"]) == ({"closed_idle": 5}, 5)
    assert event["waited_bytes"] > 5 * 500_000
    assert (event["slow_readers"]["kernel"]["status"], event["slow_readers"]["kernel"]["why"]) == ("at_least", "ended")
