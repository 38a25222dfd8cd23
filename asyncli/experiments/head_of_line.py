"""Measures one pipeline: answers queued behind a slow one (head-of-line blocking), and a client
that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import sys
import termios
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from asyncli.experiments.counters import read_tcp, since
from asyncli.lab import child
from asyncli.model.errors import PeerError

_TIMEOUT_S = 30.0
# Without a reader a window closes within milliseconds, or never.
_PATIENCE_S = 3.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


@contextlib.asynccontextmanager
async def _connections(
    url: str, many: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """``many`` connections to the server. Raises :class:`PeerError` if it ends one, or if the block
    takes longer than 30 s.
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S), contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(many):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                stack.callback(writer.transport.abort)
                streams.append((reader, writer))
            yield streams
    except (OSError, asyncio.IncompleteReadError) as error:
        raise PeerError(
            f"{url}: {error or 'no answer in time'}; check that the server runs"
        ) from None


def _ask(url: str, work_ms: int = 0) -> bytes:
    path = f"/?ms={work_ms}" if work_ms else "/"
    return f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode()


async def _read_one(reader: asyncio.StreamReader) -> None:
    length = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
    await reader.readexactly(int(length[1]) if length else 0)


async def answers_behind_slow(
    url: str, slow_ms: int, behind: int, *, pipelined: bool
) -> list[float]:
    """Milliseconds until each answer is complete: to one request with a processing time of
    ``slow_ms``, and ``behind`` quick ones.

    ``pipelined``: all on one connection, the slow one first; else at the same time, each on its own
    connection. Raises :class:`~asyncli.model.errors.PeerError`.
    """
    asks = [_ask(url, slow_ms), *[_ask(url)] * behind]
    async with _connections(url, 1 if pipelined else len(asks)) as streams:
        begun = time.monotonic()

        async def arrival_ms(reader: asyncio.StreamReader) -> float:
            await _read_one(reader)
            return (time.monotonic() - begun) * 1000

        if pipelined:
            reader, writer = streams[0]
            writer.write(b"".join(asks))
            return [await arrival_ms(reader) for _ in asks]
        for (_, writer), ask in zip(streams, asks, strict=True):
            writer.write(ask)
        return list(await asyncio.gather(*(arrival_ms(reader) for reader, _ in streams)))


async def read_late(url: str, responses: int) -> dict[str, Any]:
    """Send ``responses`` requests in one pipeline, read nothing until the receive window closes (or
    3 s), then read all answers.

    ``before_bytes``: received but unread then; ``window_closed``: how often, on the whole host,
    None if unknown; ``answered``: answers read afterwards. Raises
    :class:`~asyncli.model.errors.PeerError`.
    """
    waiting = -1
    before = read_tcp()
    async with _connections(url, 1) as [(reader, writer)]:
        sock = writer.get_extra_info("socket")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_ask(url) * responses)

        def closed() -> bool:
            """Whether a window closed on the host and this socket is full: bytes wait, and no more
            arrive.
            """
            nonlocal waiting
            waiting_before = waiting
            unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
            waiting = int.from_bytes(unread, sys.byteorder)
            has_closed = bool(since(read_tcp(), before).get("window_closed"))
            return has_closed and waiting_before == waiting > 0

        await child.until(closed, _PATIENCE_S)
        came = waiting
        answered = 0
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(asyncio.IncompleteReadError):
            while answered < responses:
                await _read_one(reader)
                answered += 1
    return {
        "before_bytes": came,
        "window_closed": since(read_tcp(), before).get("window_closed"),
        "answered": answered,
    }
