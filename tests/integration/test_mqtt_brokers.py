"""MQTT, really soaked on a mosquitto: what it publishes, whom it refuses, and what is left when it dies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import fault_table
import pytest
from agents import AnAgent
from ohmqtt.mqtt_spec import MQTTQoS
from ohmqtt.packet import MQTTConnectPacket, MQTTPublishPacket
from programs import (
    SHORT,
    Program,
    answered,
    codes,
    held,
    recorded,
    report,
    require_whole,
    run,
    was_held_up,
)

from asyncli.collect.broker_reader import BrokerReader
from asyncli.lab import choose
from asyncli.model.errors import PeerError
from asyncli.store.reader import read_run

pytestmark = pytest.mark.mosquitto
N = 40
PASSWORD = "tiger-4711"


def words(server: Any, *more: object, hold: str = "forever") -> list[str]:
    authority = [] if server.authority is None else ["--ca", server.authority]
    return ["soak", server.url, *SHORT, *authority, "-c", str(N), "--hold", hold, "--out", "run.db", "--quiet", *map(str, more)]


def publish(server: Any, client_id: str, *messages: bytes, qos: int = 1) -> None:
    """As another client of the broker, which acknowledges each."""
    plain = socket.create_connection((server.address, server.port), timeout=20)
    with ssl.create_default_context(cafile=server.authority).wrap_socket(plain, server_hostname=server.address) if server.tls else plain as there:
        there.sendall(MQTTConnectPacket(client_id, clean_start=True).encode())
        assert there.recv(1024)[3] == 0
        for number, message in enumerate(messages, 1):
            there.sendall(MQTTPublishPacket("news/today", message, qos=MQTTQoS(qos), packet_id=number).encode())
            assert there.recv(1024)[0] >> 4 == 3 + qos
            if qos == 2:
                there.sendall(bytes((0x62, 2, 0, number)))
                assert there.recv(1024)[0] == 0x70


def failed(folder: Path) -> int:
    """The connects that have failed, as recorded so far."""
    seen = recorded(folder / "run.db")
    return 0 if seen is None else sum(sum(tick.failures.values()) for _, tick in seen.ticks)


def heard(folder: Path) -> int:
    """The messages as recorded so far."""
    seen = recorded(folder / "run.db")
    return 0 if seen is None else sum(tick.protocol.messages for _, tick in seen.ticks if tick.protocol is not None)


@pytest.mark.parametrize(("tls", "version", "qos"), [(False, "3.1.1", 1), (False, "5", 2), (True, "5", 1)])
async def test_a_mosquitto_holds_them_and_what_it_publishes_is_heard_and_acknowledged(tmp_path: Path, tls: bool, version: str, qos: int) -> None:
    # It sends the second once the first is acknowledged.
    async with choose("mosquitto", connections=N, tls=tls, more_lines="max_inflight_messages 1") as server:
        with Program(tmp_path, *words(server, "--mqtt-version", version, "--subscribe", f"news/#@{qos}", "--subscribe", "own/{n}")) as program:
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == N, "all are held")
            await asyncio.to_thread(publish, server, "publisher", b"five!", b"", bytes(20_000), qos=qos)
            await asyncio.to_thread(program.until, lambda: heard(tmp_path) == 3 * N and answered(tmp_path) >= N, "each has heard them, and an answer")
            program.signal()
            done = await asyncio.to_thread(program.wait)
        log = server.error_log.read_text()
    summary = report(tmp_path, "run.db")
    assert done.err == ""
    counts, protocol = summary["connections"], summary["protocol"]
    assert (counts["opened"], counts["held"], counts["deaths"], counts["failures"]) == (N, N, {}, {})
    assert (protocol["messages"], protocol["message_bytes"], protocol["refused"]) == (3 * N, 20_005 * N, {})
    assert summary["heartbeats"]["answered"] == summary["heartbeats"]["sent"] >= N
    assert summary["plan"]["subscribe"] == [f"news/#@{qos}", "own/{n}"]
    assert ("tls" in summary) == tls
    # Each said goodbye. (Over TLS those that try the handshake before the run do not.)
    assert tls or "Error" not in log
    require_whole(0 if done.status == 99 else done.status, summary)


async def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    async with choose("mosquitto", connections=N) as server:
        with Program(tmp_path, *words(server, "--server-pid", server.pid)) as program:
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == N, "all are held")
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(program.until, lambda: held(tmp_path) == 0 and failed(tmp_path), "all are lost, and some came back in vain")
            program.signal()
            await asyncio.to_thread(program.wait)
    summary = report(tmp_path, "run.db")
    deaths = summary["connections"]["deaths"]
    assert (sum(deaths.values()), set(deaths) <= {"closed_idle", "closed_awaiting", "reset"}) == (N, True)
    assert "refused" in summary["connections"]["failures"]
    assert sum(one["count"] for one in summary["diagnoses"]) == N


def with_login(folder: Path) -> str:
    """Lines for a broker that only device may use, by the password right-4711."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", b"right-4711", salt, 101)
    passwords = folder / "passwords"
    passwords.write_text(f"device:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n")
    passwords.chmod(0o644)
    return f"allow_anonymous false\npassword_file {passwords}"


@pytest.mark.parametrize(("version", "why"), [("3.1.1", "CONNACK 5: not authorized"), ("5", "CONNACK 135: not authorized")])
async def test_a_login_opens_and_a_wrong_one_is_refused(tmp_path: Path, version: str, why: str) -> None:
    for password in ("right-4711", "wrong-4711"):
        (tmp_path / password).write_text(f"device:{password}\n")
    async with choose("mosquitto", connections=N, more_lines=with_login(tmp_path)) as server:
        for password, status in (("right-4711", 0), ("wrong-4711", 3)):
            login = words(server, "--mqtt-version", version, "--mqtt-login-file", tmp_path / password, "--json", f"{password}.json", "--html", "page.html", hold="1")
            if status:
                refused = await asyncio.to_thread(run, tmp_path, *login)
                assert (refused.status, why in refused.err, password in refused.err) == (2, True, False)
            done = await asyncio.to_thread(run, tmp_path, *login, "--force")
            summary = report(tmp_path, "run.db")
            assert done.err == ""
            require_whole(done.status, summary, status)
            assert password not in (tmp_path / f"{password}.json").read_text() + (tmp_path / "page.html").read_text() + done.out
            assert summary["plan"]["mqtt_login"] == "***"
            assert (tmp_path / "run.db").stat().st_mode & 0o77 == 0
            (tmp_path / "run.db").unlink()
    assert set(summary["protocol"]["refused"]) == {why}
    assert set(summary["connections"]["failures"]) == {"handshake_refused"}
    assert {"handshakes_refused", "gave_up"} <= codes(summary)


@pytest.mark.parametrize(("tls", "by_agent"), [(False, False), (True, False), (False, True)], ids=["plain", "tls", "agent"])
async def test_its_own_topics_count_the_connections_and_their_memory(tmp_path: Path, tls: bool, by_agent: bool) -> None:
    async with choose("mosquitto", connections=200, tls=tls, more_lines="sys_interval 1") as server:
        authority = [] if server.authority is None else ["--ca", server.authority]
        page = server.url.replace("://", f"://me:{PASSWORD}@")
        with contextlib.ExitStack() as stack:
            reader = ["--server-metrics", page]
            if by_agent:
                agent = stack.enter_context(AnAgent(tmp_path, "--server-pid", str(server.pid), *reader))
                reader = ["--agent", agent.url]
            done = await asyncio.to_thread(
                run, tmp_path, "soak", server.url, *authority, "-c", "200", "--ramp", "10/s", "--baseline", "4s", "--hold", "6s", "--residue", "1s",
                "-k", "4", *reader, "--out", "run.db", "--quiet",
            )  # fmt: skip
    assert done.err == "", done
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    counts = summary["reconciliation"]
    assert (counts["agrees"], counts["client_held"], counts["server_active"], counts["divergences"]) == (True, 200, 200, [])
    shown = page.replace(f"me:{PASSWORD}", "***")
    assert counts["source"] == {"url": shown, "metric": "$SYS/broker/clients/connected"}
    (source,) = summary["environment"]["server"]["metrics"]
    assert (source["url"], source["products"]) == (shown, ["mosquitto"])
    assert 1 <= source["interval_s"] <= 3
    assert PASSWORD not in (tmp_path / "run.db").read_bytes().decode("latin-1")
    live = summary["cost"]["live"]
    low, high = live["ci95"]
    assert low <= live["bytes_per_connection"] <= high
    # What one takes is between these two.
    assert (low < 1500, high > 400) == (True, True)
    # A reading is of another second than the connections that it is laid to, by as much as one of the three stood still.
    if not was_held_up(read_run(tmp_path / "run.db")):
        assert 400 < low <= high < 1500
        assert high - low < 300


async def read(url: str) -> tuple[BrokerReader, str]:
    """A reader that has read once, and what was wrong."""
    reader = BrokerReader(url)
    try:
        await reader.read()
    except PeerError as error:
        return reader, str(error)
    finally:
        await reader.close()
    return reader, ""


async def test_its_own_topics_need_a_login_that_may_read_them(tmp_path: Path) -> None:
    access = tmp_path / "access"
    access.write_text("user device\ntopic read $SYS/#\n")
    access.chmod(0o600)
    lines = f"{with_login(tmp_path)}\nacl_file {access}\nsys_interval 1"
    async with choose("mosquitto", connections=N, more_lines=lines) as server:
        reader, wrong = await read(server.url.replace("://", "://device:right-4711@"))
        assert (wrong, reader.source.products) == ("", ("mosquitto",))
        for login in ("", "device:wrong-4711@"):
            _, wrong = await read(server.url.replace("://", f"://{login}"))
            assert "(CONNACK 5: " in wrong
            assert "wrong-4711" not in wrong
    access.write_text("user device\ntopic read news/#\n")
    async with choose("mosquitto", connections=N, more_lines=lines) as server:
        _, wrong = await read(server.url.replace("://", "://device:right-4711@"))
        assert "$SYS/#" in wrong


async def test_a_broker_that_publishes_no_topics_of_its_own(tmp_path: Path) -> None:
    async with choose("mosquitto", connections=N) as server:
        done = await asyncio.to_thread(run, tmp_path, *words(server, "--server-metrics", server.url, hold="1"))
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "sys_interval" in line


async def test_a_broker_with_a_limit_of_connections(tmp_path: Path) -> None:
    async with choose("mosquitto", connections=N, more_lines="max_connections 30") as server:
        # Once a client has left, as the probe does, mosquitto 2.0.11 takes more.
        done = await asyncio.to_thread(run, tmp_path, *words(server, "--no-reopen", "--force", hold="2"))
    summary = report(tmp_path, "run.db")
    assert (done.status in (99, 4), done.err) == (True, ""), done
    assert (summary["connections"]["held"], summary["connections"]["failures"]) == (30, {"handshake_refused": 10})


#: What the broker says to those whose number has this rest: as the answer to CONNECT, and to PINGREQ.
STRANGE = (
    (b"\x20\3\0\0\0", b"\xd0\0"), (b"\x20\3\0\0\0", b"\xe0\1\x8b"), (b"\x20\3\0\0\0", b"\x30\5\0\2a+\0"), (b"\x20\3\0\0\0", b""),
    (b"\x20\3\0\0\0", b"\xd0\0\xd0\0"), (b"\x20\3\0\x88\0", b""), (b"\x20\6\0\0\3\x13\0\5", b""), (b"", b""),
)  # fmt: skip


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    answer = pong = b""
    with contextlib.suppress(ConnectionResetError):
        while (data := await reader.read(1024)) and data[0] != 0xE0:
            if data[0] == 0x10:
                answer, pong = STRANGE[int(data[15:].decode()) % len(STRANGE)]
            writer.write(answer if data[0] == 0x10 else pong)
    writer.close()


async def test_what_brokers_should_not_do_has_each_its_cause(tmp_path: Path) -> None:
    many = 10 * len(STRANGE)
    # On a busy machine this server may wait for seconds.
    async with await asyncio.start_server(_client, "127.0.0.1", 0, backlog=1024) as server:
        done = await asyncio.to_thread(
            run, tmp_path, "soak", f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", *SHORT, "--mqtt-version", "5", "--mqtt-id", "{n}",
            "-k", "20", "-c", str(many), "--hold", "6", "--timeout", "6", "--connect-timeout", "6", "--no-reopen", "--out", "run.db", "--quiet",
        )  # fmt: skip
    assert (done.status in (99, 4), done.err) == (True, ""), done
    summary = report(tmp_path, "run.db")
    counts, protocol = summary["connections"], summary["protocol"]
    assert counts["deaths"] == {"protocol_error": 20, "closed_announced": 10, "heartbeat_timeout": 10}
    # The first of two answers to one PINGREQ counts, and the second breaks the protocol.
    beats = summary["heartbeats"]
    assert beats["answered"] == beats["sent"] - 30 >= 20
    assert counts["failures"] == {"handshake_refused": 20, "handshake_timeout": 10}
    assert (counts["held"], protocol["goodbyes"]) == (10, {"139": 10})
    assert set(protocol["refused"]) == {
        "CONNACK 136: server unavailable", "SERVER_KEEP_ALIVE 5: heartbeats may be 10 s apart",
    }  # fmt: skip
    fault_table.require_as_written("test_what_brokers_should_not_do_has_each_its_cause", summary)


async def test_a_server_of_another_protocol_refuses(tmp_path: Path) -> None:
    async with choose("builtin", connections=N) as server:
        done = await asyncio.to_thread(run, tmp_path, "soak", server.url.replace("http", "mqtt"), *SHORT, "-c", "10", "--hold", "1", "--force", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err) == (3, "")
    assert all(one.startswith("b'HTTP/1.1 400") or "closed without an answer" in one for one in summary["protocol"]["refused"])
