"""A server that ends some connections at once: python refusing_server.py RULE MOST HOW

``count``: those beyond MOST at a time. ``window``: those beyond MOST in a second, which begins with a
connection. ``bucket``: those for which it has no token; it
has MOST, and gets MOST a second. ``ever``: those beyond MOST since its start. HOW: ``reset`` or ``fin``. It prints its port, and
ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import threading
import time

RULE, MOST, HOW = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
RESETS_AT_CLOSE = struct.pack("ii", 1, 0)
opened = 0
ever = 0
window_s = -1.0
in_window = 0
tokens = float(MOST)
last_s = time.monotonic()


def is_too_many() -> bool:
    global ever, window_s, in_window, tokens, last_s  # noqa: PLW0603
    now_s = time.monotonic()
    ever += 1
    if now_s >= window_s + 1:
        window_s, in_window = now_s, 0
    in_window += 1
    tokens = min(float(MOST), tokens + (now_s - last_s) * MOST)
    last_s = now_s
    has_token = tokens >= 1
    tokens -= has_token
    return {"count": opened >= MOST, "window": in_window > MOST, "bucket": not has_token, "ever": ever > MOST}[RULE]


class Server(asyncio.Protocol):
    served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        global opened  # noqa: PLW0603
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not is_too_many():
            self.served = True
            opened += 1
        elif HOW == "reset":
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS_AT_CLOSE)
            transport.abort()
        else:
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.served:
            self.transport.write(ANSWER)

    def connection_lost(self, _: Exception | None) -> None:
        global opened  # noqa: PLW0603
        opened -= self.served


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


asyncio.run(main())
