"""An HTTP server whose metrics no rule of asyncli names: python odd_names_server.py

Its page at /metrics, at the same port, has the open connections as ``myapp_ws_open{pool="a"}``, and without a type the connections
that were ever accepted. It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

PAGE = """# TYPE myapp_ws_open gauge
myapp_ws_open{{pool="a"}} {opened}
myapp_ws_open{{pool="b"}} 0
myapp_accepted {accepted}
myapp_answers {answers}
# TYPE myapp_in_flight gauge
myapp_in_flight {in_flight}
"""
opened = accepted = answers = 0


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global opened, accepted, answers  # noqa: PLW0603
    opened += 1
    accepted += 1
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            answers += 1
            body = b""
            if head.startswith(b"GET /metrics"):
                in_flight = answers % 7
                body = PAGE.format(opened=opened, accepted=accepted, answers=answers, in_flight=in_flight).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    opened -= 1
    writer.close()


def end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    await server.serve_forever()


asyncio.run(main())
