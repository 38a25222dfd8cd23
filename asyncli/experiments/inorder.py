"""What happens inside one pipeline: answers behind a slow one, and a reader that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from asyncli.errors import PeerError
from asyncli.experiments.counters import counting
from asyncli.lab import child

_TIMEOUT_S = 30.0
# A window closes within milliseconds of nobody reading, or never.
_PATIENCE_S = 3.0
# Of its buffer, what a full socket holds at least: the rest is the kernel's own (about half, of small segments more).
_FULL_SHARE = 0.25


async def behind_slow(url: str, slow_ms: int, behind: int, *, pipelined: bool) -> list[float]:
    """Milliseconds until each answer is whole: of one request that takes ``slow_ms`` to work on, and ``behind`` that take none.

    ``pipelined``: all are written at once on one connection, the slow one first; else at the same time on one each, connected
    before. Raises :class:`~asyncli.errors.PeerError` where the server ends a connection or does not answer within 30 s.
    """
    parts = urlsplit(url)
    asks = [_ask(parts.netloc, slow_ms), *[_ask(parts.netloc, 0)] * behind]
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            for _ in range(1 if pipelined else len(asks)):
                streams.append(await asyncio.open_connection(parts.hostname, parts.port))
            begun = time.monotonic()
            if pipelined:
                reader, writer = streams[0]
                writer.write(b"".join(asks))
                return [await _arrival(reader, begun) for _ in asks]
            for (_, writer), ask in zip(streams, asks, strict=True):
                writer.write(ask)
            return list(await asyncio.gather(*(_arrival(reader, begun) for reader, _ in streams)))
    except (OSError, asyncio.IncompleteReadError) as error:
        raise PeerError(f"{url}: {error or 'no answer in time'}; see that the server runs") from None
    finally:
        for _, writer in streams:
            writer.transport.abort()


def _ask(host: str, work_ms: int) -> bytes:
    path = f"/?ms={work_ms}" if work_ms else "/"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def _arrival(reader: asyncio.StreamReader, begun: float) -> float:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(_length(head))
    return (time.monotonic() - begun) * 1000


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


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
    asks = _ask(parts.netloc, 0) * responses
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client, counting() as counts:
        client.setblocking(False)
        sending: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.sock_connect(client, (parts.hostname, parts.port))
                sending = asyncio.create_task(loop.sock_sendall(client, asks))

                waiting, room = 0, client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

                def closed() -> bool:
                    """The count is of the whole host, so this socket must be full too: it waits, and no more comes."""
                    nonlocal waiting
                    counts.update_now()
                    before, waiting = waiting, _waiting(client)
                    return bool(counts.get("window_closed")) and waiting == before and waiting >= _FULL_SHARE * room

                full = await child.until(closed, _PATIENCE_S)
                told = "window_closed" in counts
                answered = await _read_all(loop, client, responses)
                await sending
        except OSError as error:
            raise PeerError(f"{url}: {error or 'no answer in time'}; see that the server runs") from None
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending
        counts.update_now()
        return Stalled(waiting, (counts["window_closed"] if full else 0.0) if told else None, answered)


def _waiting(client: socket.socket) -> int:
    """Bytes that have come and were not read."""
    return int.from_bytes(fcntl.ioctl(client, termios.FIONREAD, bytes(4)), sys.byteorder)


async def _read_all(loop: asyncio.AbstractEventLoop, client: socket.socket, responses: int) -> int:
    """How many answers came whole, up to ``responses``; all are alike."""
    data = bytearray(await loop.sock_recv(client, 65_536))
    while (end := data.find(b"\r\n\r\n")) < 0 and (more := await loop.sock_recv(client, 65_536)):
        data += more
    if end < 0:
        return 0
    one = end + 4 + _length(bytes(data[:end]))
    come = len(data)
    while come < one * responses and (more := await loop.sock_recv(client, 65_536)):
        come += len(more)
    return come // one
