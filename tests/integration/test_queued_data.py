"""A server that leaves most of each request unread: it stays in the buffers of its sockets, for as long as they are open."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import document
from programs import Program, recorded, serving_by

pytestmark = pytest.mark.measures

# The kernel counts buffers in pieces of 1 MB: this is many of them.
REQUEST, CONNECTIONS = 40_000, 400
def test_data_that_nobody_reads_is_in_the_kernels_interval(tmp_path: Path) -> None:
    with serving_by(Path(__file__).with_name("bare_server.py"), "unread") as port:
        asked = ["soak", f"tcp://127.0.0.1:{port}", "--send", "x" * REQUEST, "--expect", "ok", "-c", str(CONNECTIONS), "-k", "600"]
        asked += ["--ramp", "40/s", "--hold", "6", "--baseline", "2", "--residue", "0.2", "--out", "run.db"]
        with Program(tmp_path, *asked) as program:
            program.wait()
    summary = document(recorded(tmp_path / "run.db"))
    kernel = summary["cost"]["kernel"]
    assert kernel is not None
    # Two ends; the data is at one of them.
    assert kernel["ci95"][1] > 4_000 + REQUEST / 2, kernel
