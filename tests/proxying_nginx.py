"""An nginx before a server, by a configuration of the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from programs import until

from asyncli.lab.ports import free_pair


@contextlib.contextmanager
def nginx_before(backend: int, folder: Path, configuration: str, **places: str) -> Iterator[tuple[str, int]]:
    """Its URL for WebSockets and its process. ``configuration`` has places for {user}, {folder}, {port}, {backend} and ``places``."""
    user = "user root;" if os.geteuid() == 0 else ""
    port = free_pair("127.0.0.1")[0]
    path = folder / "nginx.conf"
    path.write_text(configuration.format(folder=folder, port=port, backend=backend, user=user, **places), encoding="utf-8")
    with subprocess.Popen(["nginx", "-c", path]) as nginx:
        try:
            until((folder / "pid").exists, "nginx listens")
            yield f"ws://127.0.0.1:{port}/", nginx.pid
        finally:
            nginx.terminate()
