"""A server without an object for a connection: python bare_server.py MODE [BYTES CONNECTIONS]

``before``: it touches BYTES for each of so many CONNECTIONS before it listens, as a pool or a heap that is touched in advance.
``with the first``: it takes them as one piece with the first connection. Each connection then
writes to its part. ``roster``: each connection keeps BYTES for each of those that were there
before it. ``cache``: it keeps BYTES of each of the first CONNECTIONS, and a quarter of that of each
later one. ``unread``: it reads 100 bytes of what comes at once, and answers ``ok``. ``closing``:
it stops listening after CONNECTIONS. It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading

MODE = sys.argv[1]
EACH, MOST = map(int, sys.argv[2:] or (0, 0))
READ_BYTES = 100 if MODE == "unread" else 4096
ANSWER = b"ok" if MODE == "unread" else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
# What is left unread does not wake it again.
EVENTS = select.EPOLLIN | (select.EPOLLET if MODE == "unread" else 0)
pool = bytearray(b"x" * EACH * MOST) if MODE == "before" else bytearray()
used = 0
kept: list[bytes] = []


def use_pool() -> None:
    global pool, used  # noqa: PLW0603
    if not EACH:
        return
    if MODE == "roster":
        kept.append(b"x" * EACH * len(kept))
        return
    if MODE == "cache":
        kept.append(b"x" * (EACH if len(kept) < MOST else EACH // 4))
        return
    pool = pool or bytearray(b"x" * EACH * MOST)
    pool[used : used + EACH] = b"y" * EACH
    used = (used + EACH) % len(pool)


def answer(descriptor: int) -> None:
    try:
        request = os.read(descriptor, READ_BYTES)
        if request:
            os.write(descriptor, ANSWER)
            return
    except ConnectionError:
        pass
    os.close(descriptor)


listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
poll = select.epoll()
poll.register(listener)
print(listener.getsockname()[1], flush=True)
number = listener.fileno()
accepted = 0
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    for descriptor, _ in poll.poll():
        if descriptor == number:
            poll.register(listener.accept()[0].detach(), EVENTS)
            use_pool()
            accepted += 1
            if MODE == "closing" and accepted == MOST:
                listener.close()
        else:
            answer(descriptor)
