"""What the tests of lab servers share: a raw client, a reader of status pages, and a look at processes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from urllib.parse import urlsplit

HEAD = b"HEAD / HTTP/1.1\r\nHost: lab\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n"


class Client:
    """A connection on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str) -> Client:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def head(self) -> bytes:
        """One response's head."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)

    async def beat(self) -> bytes:
        self.writer.write(HEAD)
        return await self.head()

    async def ended(self) -> bytes:
        """What still comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 10)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Poller:
    """A status page asked over one kept connection, as the collector does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @classmethod
    async def to(cls, url: str) -> Poller:
        return cls(await Client.to(url))

    async def page(self) -> dict[str, int]:
        self.client.writer.write(b"GET /nginx_status HTTP/1.1\r\nHost: lab\r\n\r\n")
        head = await self.client.head()
        match = re.search(rb"(?i)content-length: (\d+)", head)
        assert match is not None
        text = await asyncio.wait_for(self.client.reader.readexactly(int(match[1])), 10)
        names = ("active", "accepts", "handled", "requests", "reading", "writing", "waiting")
        return dict(zip(names, map(int, re.findall(rb"\d+", text)), strict=True))

    async def until(self, right: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Ask until the page is right; the last page where it does not become so within 10 s."""
        page: dict[str, int] = {}
        for _ in range(500):
            page = await self.page()
            if right(page):
                return page
            await asyncio.sleep(0.02)
        raise AssertionError(f"the status page stays at {page}")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that its reaper has not collected yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def group(leader: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and alive(int(name)):
            try:
                if os.getpgid(int(name)) == leader:
                    found.append(int(name))
            except ProcessLookupError:
                continue
    return found


async def eventually(true: Callable[[], bool]) -> None:
    """Wait for it; a failure after 20 s."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it does not become true")
