"""The lab's library servers and one-process servers: tested with independent clients; missing programs give a one-line error."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from lab_clients import group, made, refusal
from programs import complaint, here

from asyncli.lab import choose, golang, java, kind_of, libraries, packaged_servers

websockets = pytest.importorskip("websockets.asyncio.client")
SOCKETS = ("websockets", "aiohttp", "uvicorn", "node-ws", "gorilla", "gobwas")
PAGES = ("aiohttp", "uvicorn", "node-http", "node-ws", "go-http", "gorilla", "jvm", "caddy", "envoy", "lighttpd", "varnish", "nginx-proxy", "haproxy-proxy")
HTTP2 = ("caddy", "envoy", "lighttpd", "varnish", "haproxy", "apache-event", "nginx-proxy", "haproxy-proxy")
def trusted(server: Any) -> ssl.SSLContext | None:
    return None if server.authority is None else ssl.create_default_context(cafile=server.authority)


def over_tls(*names: str) -> list[tuple[str, bool]]:
    return [(name, tls) for name in names for tls in (False, True) if kind_of(name).speaks_tls or not tls]


@pytest.mark.parametrize(("name", "tls"), over_tls(*SOCKETS))
async def test_websockets_are_held_and_answered(name: str, tls: bool, temporary: Path) -> None:
    deflate = kind_of(name).speaks_deflate and not tls
    server = await made(name, tls=tls, deflate=deflate)
    async with server:
        assert server.label.startswith(f"{'ws' if name == 'node-ws' else name}/{server.version}")
        context = trusted(server)
        asked = {"ssl": context, "compression": "deflate", "proxy": None}
        held = [await websockets.connect(server.url, **asked) for _ in range(5)]
        assert {bool(one.protocol.extensions) for one in held} == {deflate}
        for number, one in enumerate(held):
            await (await one.ping(b"%d" % number))
            for message in ("", "x" * 70_000, b"\0\xff"):
                await one.send(message)
                assert await asyncio.wait_for(one.recv(), 10) == message
        await held.pop().close()
        pid, process = server.pid, server._process
    # By itself at SIGTERM, clients or not, and without a word.
    assert (process.returncode != -signal.SIGKILL, group(pid), server.complaints) == (True, [], ())
    assert not list(temporary.iterdir())
    for one in held:
        one.transport.abort()


@pytest.mark.parametrize(("name", "tls", "http2"), [*((*one, False) for one in over_tls(*PAGES)), *((*one, True) for one in over_tls(*HTTP2))])
async def test_pages_are_answered_on_kept_connections(name: str, tls: bool, http2: bool, temporary: Path) -> None:
    scheme = {} if name in HTTP2 else {"scheme": "http"}
    server = await made(name, tls=tls, http2=http2, **scheme)
    async with server:
        context = trusted(server) or True
        async with httpx.AsyncClient(http1=not http2, http2=http2, verify=context, trust_env=False) as client:
            answers = [await client.request(method, server.url) for method in ("GET", "HEAD", "GET")]
            assert [(one.status_code, one.http_version) for one in answers] == [(200, "HTTP/2" if http2 else "HTTP/1.1")] * 3
            assert len({one.extensions["network_stream"].get_extra_info("client_addr") for one in answers}) == 1
            assert answers[0].content
            pid, process = server.pid, server._process
            await server.stop()
        assert (process.returncode != -signal.SIGKILL, group(pid)) == (True, [])
    assert not list(temporary.iterdir())


async def test_nats_answers_a_client_that_listens_first() -> None:
    async with await made("nats") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO {")
        writer.write(b"PING\r\n")
        assert await asyncio.wait_for(reader.readline(), 10) == b"PONG\r\n"
        writer.close()


@pytest.mark.parametrize("name", [*SOCKETS, "node-http", "go-http", "jvm", "redis", "memcached", "nats", "caddy", "envoy", "lighttpd", "varnish", "haproxy", "mosquitto"])
def test_what_is_missing_is_told_with_the_line_that_installs_it(name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packaged_servers, libraries, golang, java):
        monkeypatch.setattr(module, "programs", lambda *_: iter(()))
    monkeypatch.setattr(libraries, "version", nothing)
    said = complaint(here(temporary, "lab", name))
    assert (said.startswith(f"{name}: no "), "; install" in said) == (True, True)


def nothing(package: str) -> str:
    raise libraries.PackageNotFoundError(package)


async def test_a_package_of_node_is_looked_for_as_node_does(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "programs", lambda *_: iter([("/usr/bin/node", "v20.1.0\n")]))
    below = temporary / "node_modules" / "ws"
    (temporary / "app").mkdir()
    monkeypatch.chdir(temporary / "app")
    monkeypatch.setenv("NODE_PATH", str(temporary / "node_modules"))
    below.mkdir(parents=True)
    server = choose("node-ws")
    if Path("/usr/lib/node_modules/ws").exists():
        pytest.skip("ws is installed for all")
    assert "npm install" in await refusal(server)
    (below / "package.json").write_text('{"version": "8.9.0"}', encoding="utf-8")
    await server._prepare()
    assert (server.version, str(below) in server._program) == ("8.9.0", True)
