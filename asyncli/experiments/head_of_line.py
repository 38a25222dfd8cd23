"""What happens inside one pipeline: answers behind a slow one, and a reader that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import socket
import sys
import termios
import time
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

from asyncli.errors import PeerError
from asyncli.experiments.counters import read_tcp, since
from asyncli.lab import child

_TIMEOUT_S = 30.0
# A window closes within milliseconds of nobody reading, or never.
_PATIENCE_S = 3.0
# Of its buffer, what a full socket holds at least: the rest is the kernel's own (about half, of small segments more).
_FULL_SHARE = 0.25
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


@contextlib.asynccontextmanager
async def _answering(url: str) -> AsyncIterator[None]:
    """What is asked in it is answered within 30 s; else :class:`PeerError`."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except (OSError, asyncio.IncompleteReadError) as error:
        raise PeerError(f"{url}: {error or 'no answer in time'}; see that the server runs") from None


async def behind_slow(url: str, slow_ms: int, behind: int, *, pipelined: bool) -> list[float]:
    """Milliseconds until each answer is whole: of one request that takes ``slow_ms`` to work on, and ``behind`` that take none.

    ``pipelined``: all are written at once on one connection, the slow one first; else at the same time on one each, connected
    before. Raises :class:`~asyncli.errors.PeerError` where the server ends a connection or does not answer within 30 s.
    """
    parts = urlsplit(url)
    asks = [_ask(parts.netloc, slow_ms), *[_ask(parts.netloc, 0)] * behind]
    async with _answering(url), contextlib.AsyncExitStack() as stack:
        streams = []
        for _ in range(1 if pipelined else len(asks)):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            stack.callback(writer.transport.abort)
            streams.append((reader, writer))
        begun = time.monotonic()
        if pipelined:
            reader, writer = streams[0]
            writer.write(b"".join(asks))
            return [await _arrival_ms(reader, begun) for _ in asks]
        for (_, writer), ask in zip(streams, asks, strict=True):
            writer.write(ask)
        return list(await asyncio.gather(*(_arrival_ms(reader, begun) for reader, _ in streams)))


def _ask(host: str, work_ms: int) -> bytes:
    path = f"/?ms={work_ms}" if work_ms else "/"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def _arrival_ms(reader: asyncio.StreamReader, begun: float) -> float:
    await _read_one(reader)
    return (time.monotonic() - begun) * 1000


async def _read_one(reader: asyncio.StreamReader) -> None:
    length = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
    await reader.readexactly(int(length[1]) if length else 0)


class Stalled(NamedTuple):
    """``before_bytes`` came while nobody read: then the window closed, ``window_closed`` times by the whole host's count, 0 where
    this connection's did not, None where the kernel does not tell. ``answered``: answers that were read whole after that.
    """

    before_bytes: int
    window_closed: float | None
    answered: int


async def unread(url: str, responses: int) -> Stalled:
    """Ask for ``responses`` in one pipeline and read nothing until the receive window has closed (or 3 s); then read them all.

    Raises :class:`~asyncli.errors.PeerError` where the server does not answer.
    """
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    before = read_tcp()
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    client.setblocking(False)
    waiting, room = 0, client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    def closed() -> bool:
        """The count is of the whole host, so this socket must be full too: it waits, and no more comes."""
        nonlocal waiting
        was, waiting = waiting, int.from_bytes(fcntl.ioctl(client, termios.FIONREAD, bytes(4)), sys.byteorder)
        return bool(since(read_tcp(), before).get("window_closed")) and was == waiting >= _FULL_SHARE * room

    async with _answering(url), contextlib.AsyncExitStack() as stack:
        stack.callback(client.close)
        await loop.sock_connect(client, (parts.hostname, parts.port))
        # Nothing is read of a socket that has no reader yet.
        sending = asyncio.create_task(loop.sock_sendall(client, _ask(parts.netloc, 0) * responses))
        stack.callback(sending.cancel)
        full = await child.until(closed, _PATIENCE_S)
        came, answered = waiting, await _read_all(client, responses, sending)
    counts = since(read_tcp(), before)
    return Stalled(came, (counts["window_closed"] if full else 0.0) if counts else None, answered)


async def _read_all(client: socket.socket, responses: int, sending: asyncio.Task[None]) -> int:
    """How many answers came whole, up to ``responses``, while the rest of them is asked for."""
    # A duplicate, for the loop knows the first as a socket that it sends on.
    reader, writer = await asyncio.open_connection(sock=client.dup())
    answered = 0
    try:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while answered < responses:
                await _read_one(reader)
                answered += 1
            await sending
    finally:
        writer.transport.abort()
    return answered
