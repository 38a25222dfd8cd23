"""A server whose control group has a quota of CPU, which its answers use up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fault_table
from memory_groups import cpu_group
from programs import Program, codes, report

N = 40
#: An HTTP server with so many seconds of CPU in each answer, which prints its port.
SERVER = """
import asyncio, sys, time

async def serve(reader, writer):
    while await reader.readline():
        await reader.readuntil(b"\\r\\n\\r\\n")
        until = time.process_time() + float(sys.argv[1])
        while time.process_time() < until:
            pass
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_quota_of_cpu_that_is_used_up_is_named(tmp_path: Path) -> None:
    asked = ("-c", str(N), "--ramp", "20/s", "-k", "4", "--hold", "8s", "--baseline", "1s", "--residue", "0.2")
    # 40 connections ask 20 times a second: 0.2 cores.
    command = [sys.executable, "-c", SERVER, "0.01"]
    with cpu_group(0.1) as folder, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        (folder / "cgroup.procs").write_text(str(server.pid))
        with Program(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked, "--out", "run.db") as program:
            program.wait()
        server.kill()
    summary = report(tmp_path, "run.db")
    assert "server_throttled" in codes(summary)
    fault_table.require_as_written("test_a_quota_of_cpu_that_is_used_up_is_named", summary)
