"""A server's runtime is named without its metrics: in the JSON, in the report and by a check."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import RUNTIME, document
from programs import here, recorded, require_whole

_SERVER = """
const server = require('http').createServer((_, answer) => answer.end('ok'));
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""


@pytest.fixture
def node_port() -> Iterator[str]:
    """The port of a server on Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this host")
    argv = [node, "--max-old-space-size=256", "-e", _SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_a_soak_of_node_names_it(node_port: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{node_port}/"
    pace = ["--ramp", "50/s", "--hold", "6", "--baseline", "2", "--residue", "0.2"]
    done = here(tmp_path, "soak", url, "-c", "300", "-k", "4", *pace, "--out", "run.db")
    run = recorded(tmp_path / "run.db")
    summary = document(run)
    require_whole(done.status, summary)
    runtime = summary["server"]["runtime"]
    assert set(runtime) == RUNTIME
    assert runtime["kind"] == "node"
    assert runtime["heap_limit_bytes"] == 256 << 20
    assert run.place.server_runtime.collected
    checked = here(tmp_path, "check", url)
    assert f"Node {runtime['version'] or ''}".strip() in checked.out
