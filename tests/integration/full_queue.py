"""Another program of this host whose listen queue overflows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def overflowing() -> Iterator[None]:
    """Another listener whose queue of one stays full, and whose clients connect again and again."""
    done = threading.Event()
    with socket.socket() as full, contextlib.ExitStack() as clients:
        full.bind(("127.0.0.1", 0))
        full.listen(0)

        def connect() -> None:
            while not done.wait(0.02):
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(full.getsockname())

        thread = threading.Thread(target=connect)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
