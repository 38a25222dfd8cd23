"""A server that leaves most of each request unread: it stays in the buffers of its sockets, for as long as they are open."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from contract import document
from programs import Program, recorded, serving_by

pytestmark = pytest.mark.measures

# The kernel counts buffers in pieces of 1 MB: this is many of them.
REQUEST, CONNECTIONS = 40_000, 400
SERVER = textwrap.dedent(
    """
    import os, select, socket, sys, threading

    listener, poll = socket.create_server(("127.0.0.1", 0), backlog=1024), select.epoll()
    poll.register(listener)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                poll.register(listener.accept()[0].detach(), select.EPOLLIN | select.EPOLLET)
                continue
            try:
                if os.read(descriptor, 100):
                    os.write(descriptor, b"ok")
            except ConnectionError:
                os.close(descriptor)
    """
)


def test_data_that_nobody_reads_is_in_the_kernels_interval(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with serving_by(script) as port:
        asked = ["soak", f"tcp://127.0.0.1:{port}", "--send", "x" * REQUEST, "--expect", "ok", "-c", str(CONNECTIONS), "-k", "600"]
        asked += ["--ramp", "40/s", "--hold", "6", "--baseline", "2", "--residue", "0.2", "--out", "run.db"]
        with Program(tmp_path, *asked) as program:
            program.wait()
    summary = document(recorded(tmp_path / "run.db"))
    kernel = summary["cost"]["kernel"]
    assert kernel is not None
    # Two ends; the data is at one of them.
    assert kernel["ci95"][1] > 4_000 + REQUEST / 2, kernel
