"""Bounds on what unauthenticated clients may use of an agent: connections, time. In this process, with small bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from programs import DEADLINE_S

from asyncli.agent import server
from asyncli.agent.server import Agent
from asyncli.model.plan import Plan
from asyncli.model.records import Sample
from asyncli.web import guard, listener

TOKEN = "a-token-of-the-tests-0123456789"


@contextlib.asynccontextmanager
async def an_agent(tls: ssl.SSLContext | None = None, **of: Any) -> AsyncIterator[Agent]:
    said: list[str] = []
    idle = subprocess.Popen(["sleep", "600"])
    plan = Plan(urls=(), **(of or {"server_pid": idle.pid}))
    one = Agent(plan, host="127.0.0.1", port=0, token=TOKEN, tls=tls, log=said.append)
    one.said = said  # type: ignore[attr-defined]
    await one.open()
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.wait({running})
        await one.close()
        idle.kill()
        idle.wait()


@pytest.fixture
async def agent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """An agent that samples an idle process, with short delays and timeouts."""
    monkeypatch.setattr(guard, "_WRONG_TOKEN_S", 0.01)
    monkeypatch.setattr(listener, "IDLE_S", 0.3)
    monkeypatch.setattr(listener, "_MOST_CONNECTIONS", 8)
    async with an_agent() as one:
        yield one


def request(head: str, body: bytes = b"", token: str = TOKEN, lease: str = "") -> bytes:
    named = f"Host: x\r\nAuthorization: Bearer {token}\r\nAsyncli-Protocol: 1\r\nAsyncli-Lease: {lease}\r\nContent-Length: {len(body)}\r\n"
    return f"{head} HTTP/1.1\r\n{named}Connection: close\r\n\r\n".encode() + body


async def ask(agent: Agent, head: str, body: bytes = b"", *, source: str = "127.0.0.1", **more: str) -> tuple[int, bytes]:
    """Status and body of one request on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, local_addr=(source, 0))
    writer.write(request(head, body, **more))
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        ("GET /v1/hello", b"", 200),
        ("GET /metrics", b"", 200),
        ("GET /", b"", 404),
        ("GET /v1/hello/", b"", 404),
        ("GET /v1/../../etc/passwd", b"", 404),
        ("HEAD /v1/hello", b"", 405),
        ("PUT /v1/lease", b"", 405),
        ("POST /v1/lease", b"", 400),
        ("POST /v1/lease", b'{"holder": ""}', 400),
        ("POST /v1/lease", b'{"holder": "' + b"x" * 201 + b'"}', 400),
        ("POST /v1/lease", b'{"holder": "' + b"x" * 2000 + b'"}', 413),
        ("GET /v1/samples?after=0", b"", 409),
        ("POST /v1/sample?after=0", b"", 409),
        ("DELETE /v1/lease", b"", 204),
    ],
)
async def test_only_known_requests_are_answered(agent: Agent, head: str, body: bytes, status: int) -> None:
    found, answer = await ask(agent, head, body)
    assert found == status
    assert b"Python" not in answer
    assert b"aiohttp" not in answer
    # Without the token every request gets 401, even for an unknown page.
    assert (await ask(agent, head, body, token="x" * 20))[0] == 401


async def test_a_second_session_learns_the_holder(agent: Agent) -> None:
    assert (await ask(agent, "POST /v1/lease", b'{"holder": "one\\u001b[2J"}'))[0] == 200
    status, body = await ask(agent, "POST /v1/lease", b'{"holder": "two"}')
    assert status == 409
    assert b"one?[2J, from 127.0.0.1 " in body


async def test_the_rate_limit_is_per_address(agent: Agent) -> None:
    agent._guarded._rates._per_s = 0.0  # however slow this machine is, no bucket fills meanwhile
    found = [(await ask(agent, "GET /metrics", source="127.3.0.1"))[0] for _ in range(int(server._BURST) + 2)]
    assert found == [200] * int(server._BURST) + [429] * 2
    assert (await ask(agent, "GET /metrics", source="127.3.0.2"))[0] == 200
    assert any(line.startswith("refused 127.3.0.1: ") for line in agent.said)  # type: ignore[attr-defined]


async def test_clients_without_the_token_have_a_separate_rate_limit(agent: Agent) -> None:
    # As behind a tunnel, where all clients have one address.
    agent._guarded._rates._per_s = 0.0
    found = [(await ask(agent, "GET /metrics", token="x" * 20))[0] for _ in range(int(server._BURST) + 1)]
    assert found == [401] * int(server._BURST) + [429]
    assert (await ask(agent, "GET /metrics"))[0] == 200


async def test_idle_connections_are_evicted_for_the_holder(agent: Agent) -> None:
    held = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(30)]
    assert (await ask(agent, "GET /metrics"))[0] == 200
    assert any(line.startswith("refused 127.0.0.1: 8 ") for line in agent.said)  # type: ignore[attr-defined]
    # Idle connections are closed, and so is one whose request never ends.
    held[-1][1].write(b"GET /v1/hello HTTP/1.1\r\nX: ")
    for reader, writer in held:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n" * 20_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (number, b"x" * 7000) for number in range(20)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + b"x" * 100_000,
    ],
)
async def test_a_client_that_sends_too_much_is_closed(agent: Agent, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither the idle timeout nor the version of aiohttp ends it.
    monkeypatch.setattr(listener, "IDLE_S", 600.0)
    monkeypatch.setattr(guard, "_WRONG_TOKEN_S", 600.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    writer.write(sent)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    assert any(line.startswith("refused 127.0.0.1: ") for line in agent.said)  # type: ignore[attr-defined]


async def test_immediate_samples_are_rate_limited(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body = await ask(agent, "POST /v1/lease", b'{"holder": "one"}')
    word = body.split(b'"')[3].decode()
    found, taken, take = [], [], agent._collector.sample_now

    async def counted() -> Sample:
        taken.append(1)
        return await take()

    monkeypatch.setattr(agent._collector, "sample_now", counted)
    agent._immediate_rate._per_s = 0.0
    most = int(server._IMMEDIATE_BURST)
    for number in range(most + 2):
        found.append((await ask(agent, "POST /v1/sample?after=0", source=f"127.4.0.{number + 1}", lease=word))[0])
    assert status == 200
    # A further request gets the next regular sample.
    assert (found, len(taken)) == ([200] * (most + 2), most)


async def test_a_lease_of_the_agent_before_a_restart_is_told(agent: Agent) -> None:
    status, body = await ask(agent, "POST /v1/sample?after=0", lease="of-another-agent.word")
    assert status == 409
    assert agent._began.encode() in body
    granted = (await ask(agent, "POST /v1/lease", b'{"holder": "one"}'))[1].split(b'"')[3].decode()
    await ask(agent, "DELETE /v1/lease", lease=granted)
    status, body = await ask(agent, "POST /v1/sample?after=0", lease=granted)
    assert (status, b"expired" in body) == (409, True)


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The agent's TLS context with a new certificate, and a client's that trusts it."""
    authority, theirs = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    return theirs, ours


async def test_unfinished_handshakes_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_MOST_CONNECTIONS", 8)
    monkeypatch.setattr(listener, "_HANDSHAKE_S", 10 * DEADLINE_S)
    theirs, ours = tls_contexts()
    async with an_agent(theirs) as agent:
        # A client that does not trust it is logged.
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", agent.port, ssl=ssl.create_default_context())
        async with asyncio.timeout(DEADLINE_S):
            while not any(line.startswith("refused 127.0.0.1: TLS") for line in agent.said):  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        silent = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(30)]
        # All but eight are evicted long before the handshake timeout.
        gone = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        async with asyncio.timeout(DEADLINE_S):
            while sum(one.done() for one in gone) < 30 - 8:
                await asyncio.wait(gone, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, ssl=ours)
        writer.write(request("GET /metrics"))
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert any(line.startswith("refused 127.0.0.1: 8 ") for line in agent.said)  # type: ignore[attr-defined]
        writer.close()
        for _, one in silent:
            one.close()
        await asyncio.gather(*gone, return_exceptions=True)


async def test_a_connect_flood_evicts_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1,000 connects a second a slot lasts 64 ms, and a new client's handshake takes some round trips."""
    monkeypatch.setattr(listener, "_MOST_CONNECTIONS", 8)
    theirs, ours = tls_contexts()
    async with an_agent(theirs) as agent:
        crowd: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def flood() -> None:
            """Open three times as many as there are slots; return when all but the last were evicted."""
            many = [await asyncio.open_connection("127.0.0.1", agent.port, local_addr=("127.5.0.1", 0)) for _ in range(24)]
            crowd.extend(many)
            await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in many[:16]), return_exceptions=True), DEADLINE_S)

        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = ours.wrap_bio(back, there, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        while True:
            await flood()
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                break
            writer.write(there.read())
            heard = await reader.read(65536)
            assert heard, "it was pushed out in its handshake"
            back.write(heard)
        end.write(request("GET /metrics"))
        writer.write(there.read())
        answer = b""
        while b"\r\n" not in answer:
            heard = await reader.read(65536)
            assert heard, "it was pushed out"
            back.write(heard)
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += end.read(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        for one in (writer, *(theirs for _, theirs in crowd)):
            one.close()


def test_an_ipv6_network_counts_as_one_client() -> None:
    assert listener._network("2001:db8::1") == listener._network("2001:db8::ffff:1") != listener._network("2001:db8:0:1::1")
    assert (listener._network("10.0.0.1"), listener._network("fe80::1%eth0")) == ("10.0.0.1", "fe80::/64")


async def test_a_restarted_server_is_described_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "_FACTS_FOR_S", 0.0)
    written = tmp_path / "server.pid"
    first, second = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        written.write_text(str(first.pid))
        async with an_agent(server_pidfile=str(written)) as agent:

            async def pid() -> Any:
                return json.loads((await ask(agent, "GET /v1/hello"))[1])["server"]["pid"]

            assert await pid() == first.pid
            written.write_text(str(second.pid))
            first.kill()
            first.wait()
            async with asyncio.timeout(DEADLINE_S):
                while await pid() != second.pid:
                    await asyncio.sleep(0.3)
    finally:
        for one in (first, second):
            one.kill()
            one.wait()
