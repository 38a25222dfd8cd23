"""HTTP/2, really soaked: on nginx in the clear and over TLS, by pings and by HEADs, and on servers that do what they should not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import fault_table
import psutil
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, PingReceived, RequestReceived
from h2.settings import SettingCodes, Settings
from programs import SHORT, Program, codes, held, recorded, report, require_whole, run, speaking, until

from asyncli.core.adding import added_up
from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.engine.worker import new_net
from asyncli.lab import choose
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import Tick
from asyncli.protocols.http2_frames import CONTINUATION, GOAWAY, HEADERS, PING, PUSH_PROMISE, RST_STREAM, frame

N = 40


@pytest.mark.nginx
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("heartbeat", ["ping", "head"])
async def test_nginx_holds_them_and_counts_the_same(tmp_path: Path, tls: bool, heartbeat: str) -> None:
    async with choose("nginx", connections=N, tls=tls, http2=True) as server:
        assert server.status_url is not None
        authority = [] if server.authority is None else ["--ca", server.authority]
        header = ["--header", "X-Long: " + "x" * 2_000, *(["--h2-table"] if tls else [])] if heartbeat == "head" else []
        asked = ["soak", "--http2", "--h2-heartbeat", heartbeat, server.url, *header, *SHORT, *authority, "--status-url", server.status_url]
        done = await asyncio.to_thread(run, tmp_path, *asked, "-c", str(N), "--hold", "3", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert (done.err, server.complaints) == ("", ())
    beats, counts = summary["heartbeats"], summary["reconciliation"]
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (N, 0)
    assert beats["answered"] == beats["sent"] > N
    assert beats["by_status"] == ({"200": beats["answered"]} if heartbeat == "head" else {})
    assert counts["agrees"]
    # To nginx a stream is a request, and a ping none; its status page was asked a few times.
    assert 0 <= counts["requests_delta"] - (beats["answered"] if heartbeat == "head" else 0) < 20
    assert (summary["protocol"]["name"], summary["protocol"]["refused"]) == ("http2", {})
    assert ("tls" in summary) == tls
    assert summary["protocol"].get("tables") == (N if tls and heartbeat == "head" else None)


@pytest.mark.nginx
async def test_a_reload_says_goodbye_to_each(tmp_path: Path) -> None:
    async with choose("nginx", connections=N, http2=True) as server:
        asked = ["soak", "--http2", server.url, *SHORT, "-c", str(N), "--hold", "forever", "--status-url", str(server.status_url)]
        with Program(tmp_path, *asked, "--out", "run.db", "--quiet") as program:
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == N, "all are held")
            os.kill(server.pid, signal.SIGHUP)
            await asyncio.to_thread(program.until, lambda: counted(tmp_path, "goodbyes") == N and held(tmp_path) == N, "all are there again")
            program.signal()
            await asyncio.to_thread(program.wait)
    summary = report(tmp_path, "run.db")
    assert summary["connections"]["deaths"] == {"closed_announced": N}
    assert summary["protocol"]["goodbyes"] == {"0": N}
    assert [one["code"] for one in summary["diagnoses"]] == ["goodbye"]
    fault_table.require_as_written("test_a_reload_says_goodbye_to_each", summary)


def counted(folder: Path, what: str) -> int:
    """What is on record."""
    seen = recorded(folder / "run.db")
    counts = [getattr(tick.protocol, what) for _, tick in seen.ticks if tick.protocol is not None] if seen is not None else []
    return sum(one if isinstance(one, int) else sum(one.values()) for one in counts)


@pytest.mark.nginx
async def test_so_many_requests_are_the_limit_that_nginx_has(tmp_path: Path) -> None:
    async with choose("nginx", connections=N, http2=True, keepalive_requests=2) as server:
        asked = ["soak", "--http2", "--h2-heartbeat", "head", server.url, *SHORT, "-c", str(N), "--hold", "3", "--no-reopen", "--force"]
        done = await asyncio.to_thread(run, tmp_path, *asked, "--status-url", str(server.status_url), "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    # The GOAWAY comes before the last answer, which counts.
    assert (done.status in (99, 4), done.err, summary["connections"]["deaths"]) == (True, "", {"closed_announced": N})
    assert (summary["heartbeats"]["sent"], summary["heartbeats"]["answered"], summary["heartbeats"]["failed"]) == (2 * N, 2 * N, 0)
    assert [(one["code"], one["certain"]) for one in summary["diagnoses"]] == [("keepalive_requests", True)]


@pytest.mark.nginx
async def test_a_server_without_it_refuses(tmp_path: Path) -> None:
    async with choose("nginx", connections=N) as server:
        done = await asyncio.to_thread(run, tmp_path, "soak", "--http2", server.url, *SHORT, "-c", "10", "--hold", "1", "--force", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err) == (3, "")
    assert set(summary["protocol"]["refused"]) == {"it speaks HTTP/1: HTTP/1.1 400 Bad Request"}
    assert {"handshakes_refused", "gave_up"} <= codes(summary)


@pytest.mark.nginx
async def test_over_tls_one_line_says_so_before_the_run(tmp_path: Path) -> None:
    async with choose("nginx", connections=N, tls=True) as server:
        done = await asyncio.to_thread(run, tmp_path, "soak", "--http2", server.url, *SHORT, "--ca", str(server.authority), "-c", "10", "--hold", "1")
    assert done.status == 2
    assert (done.err.count("\n"), server.url in done.err, "in ALPN" in done.err, "--http2" in done.err) == (1, True, True, True)


@pytest.mark.nginx
async def test_a_server_that_no_longer_chooses_it_has_failed_in_tls() -> None:
    async with choose("nginx", connections=N, tls=True) as server:
        asked = {"urls": [server.url], "http2": True, "ca": str(server.authority), "connections": 1, "reopen": False}
        there = Spread((Destination(socket.AF_INET, "127.0.0.1", server.port),), (), 1, True, 28_232)
        shard = build_shard(build_plan([Layer("--{key}", asked)]), there)
        net = new_net(shard)
        table, tick = ConnectionTable(shard, 0, net), Tick()
        table.start(net.clock())
        while not (tick := added_up(tick, table.take_tick(0))).failures:
            table.turn()
            await asyncio.sleep(0)
    assert tick.failures == {"tls_failed": 1}
    assert tick.tls is not None
    assert tick.tls.failed == {"the server speaks http/1.1 in ALPN, not h2": 1}


#: By the path of a URL what comes with the answer to the first HEAD, or in place of it.
STRANGE = {
    "/good": b"",
    "/calm": frame(GOAWAY, 0, 0, struct.pack(">II", 0, 11)),
    "/push": frame(PUSH_PROMISE, 4, 1, bytes(4)),
    "/dynamic": frame(HEADERS, 5, 1, b"\xbe"),
    # The same bytes at each: right for the first stream alone.
    "/same": frame(HEADERS, 5, 1, b"\x88"),
    "/reset": frame(RST_STREAM, 0, 1, struct.pack(">I", 7)),
    # An answer, and a GOAWAY without an error behind it.
    "/bye": frame(HEADERS, 5, 1, b"\x88") + frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)),
    "/long": frame(HEADERS, 1, 1, b"\x88") + frame(CONTINUATION, 0, 1, bytes(16_000)) * 5,
    "/ping": frame(PING, 0, 0, b"whatever"),
    "/mute": b"",
}


async def _heard(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, announced: dict[SettingCodes, int] | None = None
) -> AsyncIterator[tuple[H2Connection, Event]]:
    """One connection of a server of h2's, which sends after each read what it was told to. ``announced``: its first SETTINGS."""
    conn = H2Connection(H2Configuration(client_side=False))
    if announced:
        conn.local_settings = Settings(client=False, initial_values=announced)
    conn.initiate_connection()
    writer.write(conn.data_to_send())
    while data := await reader.read(4096):
        for event in conn.receive_data(data):
            yield conn, event
        writer.write(conn.data_to_send())
    writer.close()


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What it does is asked for by the path."""
    async for conn, event in _heard(reader, writer):
        if isinstance(event, RequestReceived):
            path = dict(event.headers)[b":path"].decode()
            writer.write(conn.data_to_send() + STRANGE[path])
            if path in ("/good", "/ping"):
                # Without the end of the stream, which follows in a frame of data.
                conn.send_headers(event.stream_id, [(":status", "204")])
                conn.end_stream(event.stream_id)


def test_what_servers_of_http2_should_not_do_has_each_its_cause(tmp_path: Path) -> None:
    with speaking(_client) as at:
        done = run(
            tmp_path, "soak", "--http2", "--h2-heartbeat", "head", *(f"http://{at}{path}" for path in STRANGE), *SHORT, "-c", str(10 * len(STRANGE)), "--hold", "6",
            "--timeout", "6", "--no-reopen", "--out", "run.db", "--quiet",
        )  # fmt: skip
    assert (done.status in (99, 4), done.err) == (True, ""), done
    summary = report(tmp_path, "run.db")
    counts, protocol = summary["connections"], summary["protocol"]
    assert counts["deaths"] == {"protocol_error": 50, "closed_announced": 20, "heartbeat_timeout": 10}
    assert (counts["held"], counts["opened"], counts["failures"]) == (20, 100, {})
    assert protocol["goodbyes"] == {"11": 10}
    assert protocol["broken"] == {
        "a push, though our SETTINGS disable it": 10,
        "a header of the dynamic table, which was not granted": 10,
        "RST_STREAM 7 in place of an answer": 10,
        "a second answer to one request": 10,
        "more than asyncli reads: a block of headers of over 65,536 bytes": 10,
    }
    assert summary["heartbeats"]["by_status"].keys() == {"200", "204"}
    assert summary["heartbeats"]["by_status"]["200"] == 20
    kinds = {one["code"]: one["count"] for one in summary["diagnoses"] if one["cause"] == "protocol_error"}
    assert kinds == {"broken_protocol": 30, "stream_reset": 10, "answer_unread": 10}
    fault_table.require_as_written("test_what_servers_of_http2_should_not_do_has_each_its_cause", summary)


@pytest.mark.nginx
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
async def test_nginx_holds_streams_and_counts_them(tmp_path: Path, tls: bool) -> None:
    async with choose("nginx", connections=N, tls=tls, http2=True) as server:
        authority = [] if server.authority is None else ["--ca", server.authority]
        heartbeat = ["--h2-heartbeat", "head", "--h2-table"] if tls else []
        asked = ["soak", "--http2", "--streams", "20", server.url, *SHORT, *authority, *heartbeat, "--status-url", str(server.status_url)]
        done = await asyncio.to_thread(run, tmp_path, *asked, "-c", str(N), "--hold", "0.5", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert (done.err, server.complaints) == ("", ())
    assert summary["protocol"]["streams"] == {"per_connection": 20, "streams_opened": 20 * N, "streams_lost": 0, "streams_open": 20 * N, "reasons": {}}
    counts = summary["reconciliation"]
    assert counts["agrees"]
    assert 0 <= counts["requests_delta"] - 20 * N - (summary["heartbeats"]["answered"] if tls else 0) < 20
    assert summary["cost"]["streams"] == 20


def workers_of(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children()}


@pytest.mark.nginx
@pytest.mark.parametrize(("path", "streams", "why"), [("/", 129, "http2_max_concurrent_streams"), ("/", 3, "END_STREAM"), ("/no", 3, "status 404")])
async def test_streams_that_would_not_last_are_one_line_before_the_run(tmp_path: Path, path: str, streams: int, why: str) -> None:
    body = "" if why == "END_STREAM" else "ok"
    async with choose("nginx", connections=N, http2=True, body=body) as server:
        config = server.config_path
        config.write_text(config.read_text().replace("10000;", "128;", 1).replace("location / {", "location = / {", 1))
        before = workers_of(server.pid)
        os.kill(server.pid, signal.SIGHUP)
        # Until then who connects may come to a worker of before.
        await asyncio.to_thread(until, lambda: workers_of(server.pid) and not before & workers_of(server.pid), "it is reloaded")
        done = await asyncio.to_thread(run, tmp_path, "soak", "--http2", "--streams", str(streams), server.url.rstrip("/") + path, *SHORT, "-c", "10", "--hold", "1")
    assert (done.status, done.err.count("\n"), why in done.err) == (2, 1, True), done.err


async def _holds_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It answers without an end, and with the first ping resets a stream; a GOAWAY ends it well."""
    async for conn, event in _heard(reader, writer):
        if isinstance(event, RequestReceived):
            conn.send_headers(event.stream_id, [(":status", "200")])
        elif isinstance(event, PingReceived) and 3 in conn.streams and conn.streams[3].open:
            conn.reset_stream(3, 7)
        elif isinstance(event, ConnectionTerminated):
            GOODBYES.append(event.error_code)
            writer.close()
            return


async def _announces_its_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It answers without an end. With the answer to a ping, in one write, a GOAWAY: on /drain without an error, for all streams."""
    path = ""
    async for conn, event in _heard(reader, writer):
        if isinstance(event, RequestReceived):
            path = dict(event.headers)[b":path"].decode()
            conn.send_headers(event.stream_id, [(":status", "200")])
        elif isinstance(event, PingReceived) and event.ping_data != b"asyncli?":
            code, last = {"/drain": (0, (1 << 31) - 1), "/calm": (11, 0)}[path]
            writer.write(conn.data_to_send() + frame(GOAWAY, 0, 0, struct.pack(">II", last, code)))


def test_a_connection_that_drains_is_held_and_one_that_leaves_has_answered(tmp_path: Path) -> None:
    with speaking(_announces_its_end) as at:
        done = run(
            tmp_path, "soak", "--http2", "--streams", "2", f"http://{at}/drain", f"http://{at}/calm", *SHORT, "-c", "20", "--hold", "3",
            "--no-reopen", "--out", "run.db", "--quiet",
        )  # fmt: skip
    assert done.err == ""
    summary = report(tmp_path, "run.db")
    counts, beats = summary["connections"], summary["heartbeats"]
    assert (counts["held"], counts["deaths"], summary["protocol"]["goodbyes"]) == (10, {"closed_announced": 10}, {"11": 10})
    assert beats["answered"] == beats["sent"] >= 30
    assert summary["protocol"]["streams"]["streams_open"] == 20
    fault_table.require_as_written("test_a_connection_that_drains_is_held_and_one_that_leaves_has_answered", summary)


GOODBYES: list[int] = []


def test_streams_that_the_server_resets_are_opened_again_and_their_connections_held(tmp_path: Path) -> None:
    GOODBYES.clear()
    asked = ["soak", "--http2", "--streams", "4", *SHORT, "-c", "20", "--hold", "forever", "--out", "run.db", "--quiet"]
    with speaking(_holds_streams) as at, Program(tmp_path, *asked, f"http://{at}/") as program:
        program.until(lambda: counted(tmp_path, "streams_opened") == 100, "all are there again")
        program.signal()
        status = program.wait().status
        # Each connection of the drain says goodbye, and the probe's. The server hears so a while after the soak's end.
        until(lambda: len(GOODBYES) >= 21, "all have said goodbye")
    summary = report(tmp_path, "run.db")
    require_whole(status, summary, 99)
    assert summary["run"]["verdict"] == ("failed" if status == 99 else "invalid")
    assert (summary["connections"]["held"], summary["connections"]["lost"], summary["heartbeats"]["failed"]) == (20, 0, 0)
    assert summary["protocol"]["streams"] == {"per_connection": 4, "streams_opened": 100, "streams_lost": 20, "streams_open": 80, "reasons": {"RST_STREAM 7": 20}}
    assert "streams_lost" in codes(summary)
    fault_table.require_as_written("test_streams_that_the_server_resets_are_opened_again_and_their_connections_held", summary)
    assert GOODBYES == [0] * 21


async def _allows_no_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """From the first on it allows no stream, and no byte of a body."""
    async for _ in _heard(reader, writer, {SettingCodes.MAX_CONCURRENT_STREAMS: 0, SettingCodes.INITIAL_WINDOW_SIZE: 0}):
        pass


async def _allows_one_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It never allows a byte of a body, and no stream after the first HEAD. h2 ends a connection on which one is opened then."""
    async for conn, event in _heard(reader, writer, {SettingCodes.INITIAL_WINDOW_SIZE: 0}):
        if isinstance(event, RequestReceived):
            conn.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
            conn.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 0})


def test_a_server_that_allows_no_stream_holds_connections_and_would_serve_no_request(tmp_path: Path) -> None:
    asked = ["soak", "--http2", *SHORT, "-c", "10", "--hold", "3", "--quiet"]
    with speaking(_allows_no_stream) as at:
        done = run(tmp_path, *asked, f"http://{at}/", "--out", "run.db")
        refused = run(tmp_path, *asked, f"http://{at}/", "--h2-heartbeat", "head", "--out", "refused.db")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert done.err == ""
    assert (refused.status, refused.err.count("\n"), "MAX_CONCURRENT_STREAMS 0" in refused.err) == (2, 1, True)
    assert (summary["connections"]["held"], summary["run"]["verdict"]) == (10, "invalid" if done.status == 4 else "passed")
    fault_table.require_as_written("test_a_server_that_allows_no_stream_holds_connections_and_would_serve_no_request", summary)


def test_a_server_that_allows_no_more_streams_in_the_hold_is_asked_by_pings(tmp_path: Path) -> None:
    with speaking(_allows_one_request) as at:
        done = run(
            tmp_path, "soak", "--http2", "--h2-heartbeat", "head", f"http://{at}/", *SHORT, "-c", "10", "--hold", "3", "--out", "run.db", "--quiet",
        )  # fmt: skip
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert done.err == ""
    beats = summary["heartbeats"]
    assert (summary["connections"]["held"], beats["by_status"], beats["answered"] > 10) == (10, {"200": 10}, True)
    fault_table.require_as_written("test_a_server_that_allows_no_more_streams_in_the_hold_is_asked_by_pings", summary)
