"""WebSockets, really soaked: on an nginx that holds them by itself, and on a server that does what servers should not."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import fault_table
import psutil
import pytest
from programs import (
    SHORT,
    Done,
    Program,
    codes,
    held,
    here,
    publish,
    recorded,
    report,
    require_done,
    require_whole,
    run,
    speaking,
    until,
)
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request

from asyncli.lab import choose
from asyncli.model.exit_status import exit_status

N = 40


@pytest.mark.nchan
@pytest.mark.parametrize("tls", [False, True])
async def test_an_nginx_holds_them_and_its_words_are_counted(tmp_path: Path, tls: bool) -> None:
    async with choose("nchan", connections=N, tls=tls) as server:
        assert server.status_url is not None
        page = server.status_url.replace("/nginx_status", "/publish")
        authority = [] if server.authority is None else ["--ca", server.authority]
        asked = ["soak", server.url, *SHORT, *authority, "--status-url", server.status_url, "-c", str(N), "--hold", "forever", "--out", "run.db", "--quiet"]
        with Program(tmp_path, *asked) as program:
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == N, "all are held")
            await asyncio.to_thread(publish, page, b"five!")
            await asyncio.to_thread(program.until, lambda: said(tmp_path, "messages") == N, "each has heard it")
            # It takes leave of all who listen to what is no more.
            await asyncio.to_thread(publish, page, None)
            await asyncio.to_thread(program.until, lambda: said(tmp_path, "goodbyes") and held(tmp_path) == N, "all are there again")
            program.signal()
            done = await asyncio.to_thread(program.wait)
    summary = report(tmp_path, "run.db")
    # Its stderr is silent: at the end each was told goodbye.
    assert (done.err, server.complaints) == ("", ())
    require_whole(done.status, summary, 99)
    counts, protocol = summary["connections"], summary["protocol"]
    assert (counts["opened"], counts["held"], counts["deaths"]) == (2 * N, N, {"closed_announced": N})
    assert (protocol["messages"], protocol["message_bytes"], protocol["goodbyes"]) == (N, 5 * N, {"1001": N})
    assert ("tls" in summary) == tls
    assert [one["code"] for one in summary["diagnoses"]] == ["goodbye"]
    # nginx counts upgrades as requests; two requests to publish were not ours.
    assert summary["reconciliation"]["requests_delta"] - summary["reconciliation"]["accepts_delta"] < 60
    assert summary["reconciliation"]["server_active"] == N
    assert summary["heartbeats"]["answered"] >= summary["heartbeats"]["sent"] - N


@pytest.mark.nchan
@pytest.mark.haproxy
@pytest.mark.parametrize(("name", "tls"), [("nginx-proxy", True), ("haproxy-proxy", False)])
async def test_proxies_hold_them_and_are_measured_alone(tmp_path: Path, name: str, tls: bool) -> None:
    async with choose(name, connections=100, tls=tls, scheme="ws") as server:
        authority = [] if server.authority is None else ["--ca", server.authority]
        words = (server.url, *SHORT, *authority, "--status-url", server.status_url, "-c", "100", "--hold", "1", "--out", "run.db", "--quiet")
        done = await asyncio.to_thread(run, tmp_path, "soak", *words)
        server_pid, own = server.pid, 1 + len(psutil.Process(server.pid).children(recursive=True))
    summary = report(tmp_path, "run.db")
    counts, beats = summary["connections"], summary["heartbeats"]
    require_whole(done.status, summary)
    assert (counts["held"], counts["lost"], counts["deaths"]) == (100, 0, {})
    assert (beats["answered"] == beats["sent"] > 0, summary["reconciliation"]["server_active"]) == (True, 100)
    # Not the backends, two nginx with a worker each.
    assert (summary["environment"]["server"]["pid"], {*recorded(tmp_path / "run.db").series("server.processes").values}) == (server_pid, {own})


def said(folder: Path, name: str) -> int:
    """What the servers said unasked, as recorded so far."""
    seen = recorded(folder / "run.db")
    counts = [tick.protocol for _, tick in seen.ticks if tick.protocol is not None] if seen is not None else []
    return sum(one.messages if name == "messages" else sum(one.goodbyes.values()) for one in counts)


async def test_compressed_messages_of_a_library_are_answered_and_counted(tmp_path: Path) -> None:
    async with choose("websockets", connections=N, deflate=True) as server:
        words = (server.url, *SHORT, "-c", str(N), "--ws-deflate", "--ws-message", "{{n}} {n}", "-k", "2", "--hold", "1.5", "--out", "run.db", "--quiet")
        done = await asyncio.to_thread(run, tmp_path, "soak", *words)
    summary = report(tmp_path, "run.db")
    protocol, beats = summary["protocol"], summary["heartbeats"]
    assert (done.err, summary["connections"]["deaths"], protocol["messages"]) == ("", {}, 0)
    assert [(granted.count("=12"), count) for granted, count in protocol["deflate"].items()] == [(2, N)]
    # The second answer of each refers to its first.
    assert beats["answered"] == beats["sent"] >= 2 * N


@pytest.mark.nginx
async def test_a_server_of_another_protocol_refuses(tmp_path: Path) -> None:
    async with choose("nginx", connections=N) as server:
        words = (server.url.replace("http", "ws"), *SHORT, "-c", "10", "--hold", "1", "--out", "run.db", "--quiet")
        early = await asyncio.to_thread(run, tmp_path, "soak", *words)
        assert (early.status, "refused: HTTP 200 OK: ok;" in early.err, (tmp_path / "run.db").exists()) == (2, True, False)
        done = await asyncio.to_thread(run, tmp_path, "soak", *words, "--force")
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err) == (3, "")
    assert set(summary["connections"]["failures"]) == {"handshake_refused"}
    assert set(summary["protocol"]["refused"]) == {"HTTP 200 OK: ok"}
    assert {"handshakes_refused", "gave_up"} <= codes(summary)


#: By path, what the server says on a connection that it has granted, besides pongs.
STRANGE = {
    "/good": b"",
    "/masked": b"\x81\x81abcd",
    "/no-utf-8": b"\x81\x01\xff",
    "/bye": b"\x88\x0b" + struct.pack(">H", 1013) + b"too\nearly",
}
#: What answers a ping in place of its pong: any pong, the first ping's again, and its pong with a close frame in one write.
PONGS = ("/early", "/again", "/last")

#: What it heard, by all its connections.
HEARD: list[str] = []


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection; what it does is asked for by its path."""
    conn, path, first = WSConnection(ConnectionType.SERVER), "", b""
    while data := await reader.read(4096):
        conn.receive_data(data)
        for event in conn.events():
            HEARD.append(f"{type(event).__name__}{f' {event.code}' if isinstance(event, CloseConnection) else ''}")
            if isinstance(event, Request):
                path = event.target
                if path == "/never":
                    continue
                if path == "/no":
                    writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 8\r\n\r\nno token")
                elif path == "/gone":
                    writer.close()
                else:
                    early = b"\x8a\x04beat" if path == "/early" else b""
                    writer.write(conn.send(AcceptConnection()) + STRANGE.get(path, b"") + early)
            elif isinstance(event, Ping) and path == "/early":
                writer.write(b"\x8a\x04beat" * 2)
            elif isinstance(event, Ping) and path == "/again":
                first = first or conn.send(event.response())
                writer.write(first)
            elif isinstance(event, Ping) and path == "/last":
                writer.write(conn.send(event.response()) + conn.send(CloseConnection(1000)))
            elif (isinstance(event, Ping) and path != "/mute") or isinstance(event, CloseConnection):
                writer.write(conn.send(event.response()))
                if isinstance(event, CloseConnection):
                    writer.close()
    writer.close()


def test_what_servers_should_not_do_has_each_its_cause(tmp_path: Path) -> None:
    paths = [*STRANGE, "/mute", "/no", "/gone", "/never"]
    with speaking(_client) as at:
        done = run(
            tmp_path, "soak", *(f"ws://{at}{path}" for path in paths), *SHORT, "-c", str(10 * len(paths)), "--hold", "6", "--timeout", "6",
            "--connect-timeout", "6", "--no-reopen", "--force", "--out", "run.db", "--quiet",
        )  # fmt: skip
    summary = require_done(tmp_path, done, 99)
    counts, protocol = summary["connections"], summary["protocol"]
    assert counts["deaths"] == {"protocol_error": 20, "closed_announced": 10, "heartbeat_timeout": 10}
    assert counts["failures"] == {"handshake_refused": 20, "handshake_timeout": 10}
    assert (counts["held"], counts["opened"]) == (10, 50)
    assert protocol["refused"] == {"HTTP 401 Unauthorized: no token": 10, "closed without an answer": 10}
    assert protocol["goodbyes"] == {"1013": 10}
    assert {"broken_protocol", "goodbye"} <= {one["code"] for one in summary["diagnoses"]}
    fault_table.require_as_written("test_what_servers_should_not_do_has_each_its_cause", summary)


def test_a_pong_that_answers_no_ping_of_this_moment(tmp_path: Path) -> None:
    with speaking(_client) as at:
        done = run(
            tmp_path, "soak", *(f"ws://{at}{path}" for path in PONGS), *SHORT, "-c", "30", "--hold", "2", "--timeout", "4",
            "--no-reopen", "--out", "run.db", "--quiet",
        )  # fmt: skip
    assert done.err == ""
    summary = report(tmp_path, "run.db")
    counts, beats = summary["connections"], summary["heartbeats"]
    require_whole(exit_status(summary["run"]["verdict"]), summary, 99)
    assert counts["held"] == 0
    assert counts["deaths"] == {"heartbeat_timeout": 20, "closed_announced": 10}
    # The first ping of /again, and the one of /last: its pong counts though the connection ended in the same read.
    assert (beats["sent"], beats["answered"], beats["failed"]) == (40, 20, 20)
    fault_table.require_as_written("test_a_pong_that_answers_no_ping_of_this_moment", summary)


# -- one connection before the ramp


def soaked(folder: Path, *words: str) -> Done:
    return here(folder, "soak", *words, *SHORT, "-c", "5", "--hold", "0.2", "--out", "run.db", "--quiet")


def test_a_websocket_is_upgraded_pinged_and_left_with_a_goodbye(tmp_path: Path) -> None:
    with speaking(_client) as place:
        at = f"ws://{place}"
        HEARD.clear()
        assert "--probe" in here(tmp_path, "check", f"{at}/good").out
        assert HEARD == []
        done = here(tmp_path, "check", "--probe", f"{at}/good", f"{at}/also")
        # The server may read the last goodbye after asyncli has left.
        until(lambda: len(HEARD) == 6, "it has heard all")
        assert HEARD == ["Request", "Ping", "CloseConnection 1001"] * 2
        for path in ("good", "also"):
            assert f"{at}/{path}: connected in" in done.out
        said = " ".join(done.out.split())
        assert said.count("handshake granted in") == said.count("heartbeat answered in") == 2
        HEARD.clear()
        done = soaked(tmp_path, f"{at}/good")
        require_whole(done.status, report(tmp_path, "run.db"))
    # A soak's first connection asks to be granted, and no more.
    assert HEARD[:3] == ["Request", "CloseConnection 1001", "Request"]
    assert report(tmp_path, "run.db")["connections"]["opened"] == 5


REFUSALS = {"/no": "refused: HTTP 401 Unauthorized: no token", "/gone": "refused: closed without an answer", "/never": "--connect-timeout (2 s)"}


@pytest.mark.parametrize("path", REFUSALS)
def test_a_refusal_is_told_before_the_ramp(path: str, tmp_path: Path) -> None:
    with speaking(_client) as place:
        at = f"ws://{place}"
        # Far longer than the handshake of the good one takes on a busy machine.
        words = (f"{at}/good", f"{at}{path}", "--connect-timeout", "2")
        for done in (soaked(tmp_path, *words), here(tmp_path, "check", "--probe", *words)):
            assert (done.status, done.out, done.err.count("\n"), list(tmp_path.iterdir())) == (2, "", 1, [])
            assert f"{at}{path}: the handshake was" in done.err
            assert REFUSALS[path] in done.err
        done = soaked(tmp_path, *words, "--force")
        require_whole(done.status, report(tmp_path, "run.db"), 99)


def test_a_heartbeat_that_fails_is_told_by_check_alone(tmp_path: Path) -> None:
    with speaking(_client) as place:
        at = f"ws://{place}"
        done = here(tmp_path, "check", "--probe", f"{at}/mute", "--timeout", "0.5")
        assert (done.status, "the heartbeat was not answered within --timeout (0.5 s)" in done.err) == (2, True)
        done = here(tmp_path, "check", "--probe", f"{at}/bye", "--timeout", "0.5")
        assert (done.status, "the heartbeat failed: closed, code 1013" in done.err) == (2, True)
