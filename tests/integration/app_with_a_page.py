"""A WebSocket server that keeps some bytes of each connection, with a page of metrics: python app_with_a_page.py PORT PAGE_PORT BYTES."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import sys
import time

NAME = "app-with-page"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PING, _PONG, _CLOSE = 0x9, 0xA, 0x8
kept: dict[asyncio.StreamWriter, bytes] = {}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        [key] = [line.split(b":", 1)[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")]
        accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        kept[writer] = os.urandom(int(sys.argv[3]))
        while await answered(reader, writer) != _CLOSE:
            pass
    kept.pop(writer, None)
    writer.close()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Answer one frame of a client, which are short; its kind."""
    first, second = await reader.readexactly(2)
    mask = await reader.readexactly(4)
    payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(await reader.readexactly(second & 0x7F)))
    kind = first & 0xF
    if kind == _PING:
        writer.write(bytes([0x80 | _PONG, len(payload)]) + payload)
    elif kind != _CLOSE:
        writer.write(bytes([first, len(payload)]) + payload)
    return kind


async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            values = {
                "process_open_fds": float(len(os.listdir("/proc/self/fd"))),
                "process_start_time_seconds": STARTED_S,
                "app_kept_bytes": float(len(TABLE) + sum(map(len, kept.values()))),
                "python_info": 1.0,
            }
            page = "".join(f"# TYPE {name} gauge\n{name} {value!r}\n" for name, value in values.items()).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
    writer.close()


async def main() -> None:
    host = "127.0.0.1"
    await asyncio.start_server(serve, host, int(sys.argv[1]), backlog=1000)
    await asyncio.start_server(show, host, int(sys.argv[2]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    # As an operator would see it among other programs of Python.
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(NAME)
    STARTED_S = time.time()
    TABLE = os.urandom(50_000)
    asyncio.run(main())
