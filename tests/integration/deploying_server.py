"""An HTTP server to which deploys happen: python deploying_server.py BACKLOG LEAVES_AFTER_S

Each request is answered with 200; from SIGUSR1 to SIGUSR2 with 503. At SIGTERM it listens no more, holds its connections for
LEAVES_AFTER_S, and ends. It prints its port and its process, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

BACKLOG, LEAVES_AFTER_S = int(sys.argv[1]), float(sys.argv[2])
FINE, FAILS = "200 OK", "503 Service Unavailable"


class Answering(asyncio.Protocol):
    status = FINE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self.transport.write(f"HTTP/1.1 {Answering.status}\r\nContent-Length: 0\r\n\r\n".encode())


def answer_with(status: str) -> None:
    Answering.status = status


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=BACKLOG)

    def leave() -> None:
        server.close()
        loop.call_later(LEAVES_AFTER_S, os._exit, 0)

    loop.add_signal_handler(signal.SIGUSR1, answer_with, FAILS)
    loop.add_signal_handler(signal.SIGUSR2, answer_with, FINE)
    loop.add_signal_handler(signal.SIGTERM, leave)
    print(server.sockets[0].getsockname()[1], os.getpid(), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await asyncio.Event().wait()


asyncio.run(main())
