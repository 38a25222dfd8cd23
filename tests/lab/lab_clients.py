"""Helpers for tests of lab servers: a raw client, a reader of status pages, and process checks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11
import pytest
from programs import DEADLINE_S, alive, deadline_s

from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose, golang, java
from asyncli.model.errors import HostError

HEAD = b"HEAD / HTTP/1.1\r\nHost: lab\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n"


#: Servers that no package of the distribution or requirement of the tests installs -> the variable that requires them.
ASKED_FOR = {
    "envoy": "ASYNCLI_REQUIRE_ENVOY",
    "jvm": "ASYNCLI_REQUIRE_JAVA",
    "node-http": "ASYNCLI_REQUIRE_NODE",
    "node-ws": "ASYNCLI_REQUIRE_NODE",
    "go-http": "ASYNCLI_REQUIRE_GO",
    "gorilla": "ASYNCLI_REQUIRE_GO",
    "gobwas": "ASYNCLI_REQUIRE_GO",
}
#: Those that Go builds at their first start.
BUILT_BY_GO = ("go-http", "gorilla", "gobwas")


def must_be_built(name: str) -> bool:
    """Whether its first start takes long."""
    if name == "jvm":
        return not java.locate(name).is_dir()
    return name in BUILT_BY_GO and not golang.locate(name)[1].program.is_file()


async def made(name: str, **options: Any) -> Any:
    """The server, or a skip if this host lacks what it needs."""
    server = choose(name, connections=100, **options)
    asked = os.environ.get(ASKED_FOR.get(name, "ASYNCLI_REQUIRE_SERVERS"))
    try:
        if not asked and must_be_built(name):
            pytest.skip(f"to build it takes up to 40 s of CPU; asyncli lab {name}")
        await server._prepare()
    except HostError as error:
        (pytest.fail if asked else pytest.skip)(str(error))
    return server


class Client:
    """A connection on which a test may write any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def exchange(
        self, method: str, path: str, oracle: h11.Connection | None = None, body: bytes = b"", **more: str
    ) -> tuple[h11.Response, bytes]:
        """Send a request and parse the answer with h11, which refuses invalid HTTP; ``oracle``: that of a kept connection."""
        oracle = oracle or h11.Connection(h11.CLIENT)
        headers = {"Host": "lab", **({"Content-Length": str(len(body))} if body else {}), **more}
        sent = oracle.send(h11.Request(method=method, target=path, headers=[*headers.items()])) or b""
        if body:
            sent += oracle.send(h11.Data(data=body)) or b""
        self.writer.write(sent + (oracle.send(h11.EndOfMessage()) or b""))
        response, got = None, b""
        while True:
            event = oracle.next_event()
            if event is h11.NEED_DATA:
                oracle.receive_data(await asyncio.wait_for(self.reader.read(65536), DEADLINE_S))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                got += bytes(event.data)
            else:
                assert isinstance(event, h11.EndOfMessage), event
                assert response is not None
                return response, got

    @classmethod
    async def to(cls, url: str) -> Client:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def head(self) -> bytes:
        """Read a response's head."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE_S)

    async def beat(self) -> bytes:
        self.writer.write(HEAD)
        return await self.head()

    async def ended(self) -> bytes:
        """Read until the server closes."""
        return await asyncio.wait_for(self.reader.read(), DEADLINE_S)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Poller:
    """Reads a status page over one kept connection, as the collector does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @classmethod
    async def to(cls, url: str) -> Poller:
        return cls(await Client.to(url))

    async def page(self) -> dict[str, int]:
        self.client.writer.write(b"GET /nginx_status HTTP/1.1\r\nHost: lab\r\n\r\n")
        head = await self.client.head()
        match = re.search(rb"(?i)content-length: (\d+)", head)
        text = await asyncio.wait_for(self.client.reader.readexactly(int(match[1])), DEADLINE_S)
        names = ("active", "accepts", "handled", "requests", "reading", "writing", "waiting")
        return dict(zip(names, map(int, re.findall(rb"\d+", text)), strict=True))

    async def until(self, right: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        return await asked_until(self.page, right)


Page = TypeVar("Page")


async def asked_until(ask: Callable[[], Awaitable[Page]], right: Callable[[Page], bool]) -> Page:
    """Repeat ``ask`` until the answer is right, and return it; fail at the deadline."""
    begun_s = time.monotonic()
    while not right(answer := await ask()):
        assert time.monotonic() - begun_s < deadline_s(), f"it stays at {answer}"
        await asyncio.sleep(0.02)
    return answer


def group(leader: int) -> list[int]:
    """The running processes of a group."""
    found = []
    for pid in filter(alive, map(int, filter(str.isdigit, os.listdir("/proc")))):
        with contextlib.suppress(ProcessLookupError):
            found += [pid] * (os.getpgid(pid) == leader)
    return found


async def eventually(true: Callable[[], bool]) -> None:
    async def look() -> bool:
        return true()

    await asked_until(look, bool)


async def page_until(url: str, right: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Read the status page with the collector's reader until it is right."""
    reader = StatusReader(url)
    try:
        return await asked_until(reader.read, right)
    finally:
        await reader.close()


async def opened(url: str, count: int) -> list[Client]:
    """Open connections, with a heartbeat on each before the next is opened."""
    clients = []
    for _ in range(count):
        clients.append(await Client.to(url))
        assert b" 200 " in (await clients[-1].beat()).partition(b"\r\n")[0]
    return clients


async def hung_up(clients: list[Client]) -> None:
    for client in clients:
        client.writer.close()


async def refusal(server: Any) -> str:
    """The one-line error of a server that must not start."""
    try:
        await server.start()
    except HostError as error:
        assert "\n" not in str(error)
        return str(error)
    await server.stop()
    raise AssertionError("it started")


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
