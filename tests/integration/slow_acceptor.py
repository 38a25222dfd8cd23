"""A server that accepts at a fixed pace: python slow_acceptor.py ACCEPTS_PER_S BACKLOG

Every request is answered at once with 200. It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time

EVERY_S = 1 / float(sys.argv[1])
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
# A late turn makes up for so much.
LATE_S = 0.01

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(int(sys.argv[2]))
number = listener.fileno()
poll = select.epoll()
poll.register(listener)
print(listener.getsockname()[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()


def answer(descriptor: int) -> None:
    try:
        if os.read(descriptor, 4096):
            os.write(descriptor, ANSWER)
            return
    except ConnectionError:
        pass
    os.close(descriptor)


next_s = 0.0
rests = False
while True:
    for descriptor, _ in poll.poll(max(0.0, next_s - time.monotonic()) if rests else -1):
        if descriptor != number:
            answer(descriptor)
            continue
        poll.register(listener.accept()[0].detach(), select.EPOLLIN)
        next_s = max(next_s, time.monotonic() - LATE_S) + EVERY_S
        rests = True
        poll.modify(listener, 0)
    if rests and time.monotonic() >= next_s:
        rests = False
        poll.modify(listener, select.EPOLLIN)
