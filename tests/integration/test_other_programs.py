"""What other programs do on this host is no evidence about the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from programs import SHORT, codes, here, recorded, report, serving


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


def test_a_full_listen_queue_of_another_program(tmp_path: Path) -> None:
    with overflowing(), serving() as server:
        done = here(tmp_path, "soak", server.url, *SHORT, "-c", "50", "--hold", "4", "--out", "run.db", "--quiet")
    assert done.status == 0
    run, summary = recorded(tmp_path / "run.db"), report(tmp_path, "run.db")
    assert run is not None
    for name in ("tcp.ListenOverflows", "tcp.RetransSegs"):
        counter = run.series(name).values
        assert counter[-1] - counter[0] >= 20, name
    assert not {"listen_overflows", "listen_drops", "packets_sent_again"} & codes(summary)
