"""A server with a thread for each connection: python threaded_server.py [STACK_BYTES]

A connection for which it can have no thread it closes. It prints its port, and ends when its
standard input does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
if len(sys.argv) > 1:
    threading.stack_size(int(sys.argv[1]))


def answer(client: socket.socket) -> None:
    with client, contextlib.suppress(ConnectionError):
        while client.recv(4096):
            client.sendall(ANSWER)


listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    try:
        threading.Thread(target=answer, args=(client,), daemon=True).start()
    except RuntimeError:
        client.close()
