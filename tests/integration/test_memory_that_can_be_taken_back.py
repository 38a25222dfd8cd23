"""A server whose memory the kernel can take back: a session store in a mapped file, and pages that it has marked as free."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from contract import document
from fault_table import require_as_written
from programs import Program, recorded

EACH, CONNECTIONS = 16_384, 300
SERVER = textwrap.dedent(
    """
    import asyncio, mmap, sys

    KIND, EACH, MOST = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store, taken, kept = None, 0, []
    if KIND == "file":
        with open(sys.argv[4], "w+b") as file:
            file.truncate(EACH * MOST)
            store = mmap.mmap(file.fileno(), EACH * MOST)

    def take():
        global taken
        if KIND == "file":
            store[taken : taken + EACH] = b"x" * EACH
            taken += EACH
            return
        pages = mmap.mmap(-1, EACH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.write(b"x" * EACH)
        pages.madvise(mmap.MADV_FREE)
        kept.append(pages)

    class Connection(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.head, self.is_new = transport, b"", True

        def data_received(self, data):
            *heads, self.head = (self.head + data).split(b"\\r\\n\\r\\n")
            if heads and self.is_new:
                self.is_new = False
                take()
            for _ in heads:
                self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

    async def main():
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("kind", ["file", "marked as free"])
def test_the_cost_reaches_from_without_it_to_with_it(kind: str, tmp_path: Path) -> None:
    # More than this test's connections: the preflight's too.
    command = [sys.executable, "-c", SERVER, kind, str(EACH), str(2 * CONNECTIONS), str(tmp_path / "store")]
    path = tmp_path / "run.db"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
            asked = ["soak", url, "-c", str(CONNECTIONS), "-k", "4", "--ramp", "40/s", "--hold", "6", "--baseline", "2"]
            asked += ["--residue", "0.2", "--server-pid", str(server.pid), "--out", path]
            with Program(tmp_path, *asked) as program:
                program.wait()
        finally:
            server.kill()
    summary = document(recorded(path))
    low, high = summary["cost"]["server_user"]["ci95"]
    if kind == "file" and _is_in_memory(tmp_path):
        pytest.skip("the folder for temporary files is in memory, where a file's pages cannot be written back")
    assert low < EACH / 4, summary["cost"]
    assert high > EACH, summary["cost"]
    assert "reclaimable_rises" in {finding["code"] for finding in summary["findings"]}
    require_as_written("test_the_cost_reaches_from_without_it_to_with_it", summary)


def _is_in_memory(folder: Path) -> bool:
    kinds = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
    return kinds.stdout.strip() in ("tmpfs", "ramfs")
