"""Processes of a server that come and go while it holds connections, and that are no reload."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fault_table
import pytest
from programs import Program, codes, held, report

#: An HTTP server, which prints its port. At a line on its standard input it changes its processes.
SERVER = """
import asyncio, os, signal, subprocess, sys, time

mode, kept = sys.argv[1], []

async def serve(reader, writer):
    kept.append(os.urandom(20_000))
    while await reader.readline():
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    if mode != "recycled":
        asyncio.get_running_loop().add_reader(0, lambda: sys.stdin.readline() and change(mode))
    await asyncio.Event().wait()

def change(mode):
    if mode == "exec":
        subprocess.Popen(["sleep", "60"])
    elif os.fork() == 0:
        time.sleep(60)

def worker(serves):
    pid = os.fork()
    if pid == 0:
        asyncio.run(main()) if serves else time.sleep(60)
    return pid

if mode != "recycled":
    asyncio.run(main())
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
workers = [worker(serves) for serves in (True, False, False, False)]
for _ in sys.stdin:
    os.kill(workers[-1], signal.SIGKILL)
    worker(False)
"""
N = 100


@pytest.mark.parametrize("mode", ["exec", "fork", "recycled"])
def test_a_helper_or_one_replaced_worker_is_no_reload(tmp_path: Path, mode: str) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        asked = ("-c", str(N), "--ramp", "50/s", "-k", "4", "--hold", "8s", "--baseline", "1s", "--residue", "0.2")
        where = ("--server-pid", str(server.pid), "--out", "run.db")
        with Program(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked, *where) as program:
            program.until_phase("hold")
            program.until(lambda: held(tmp_path) == N, "all are held")
            print(file=server.stdin, flush=True)
            assert program.wait().status == 0
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(server.pid)], check=False)
        server.wait()
    summary = report(tmp_path, "run.db")
    assert "server_reloaded" not in codes(summary)
    if mode != "recycled":
        fault_table.require_as_written("test_a_helper_or_one_replaced_worker_is_no_reload", summary)
    (changed,) = (one for one in summary["findings"] if one["code"] == "server_processes_changed")
    assert (changed["fields"]["started"], changed["fields"]["ended"]) == (1, int(mode == "recycled"))
    # 20,000 B and Python's objects; the first ones of a forked worker unshare memory.
    low, high = summary["cost"]["server_user"]["ci95"]
    assert (low < 45_000, high > 20_000) == (True, True)
