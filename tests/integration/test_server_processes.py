"""Processes of a server that come and go while it holds connections: a helper, one worker of several, and all of its workers."""

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


def changed_in_its_hold(folder: Path, script: str, *arguments: str) -> int:
    """The exit status of a soak of the server that the script makes, which is told to change in the hold."""
    server = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        asked = ("-c", str(N), "--ramp", "50/s", "-k", "4", "--hold", "8s", "--baseline", "1s", "--residue", "0.2")
        where = ("--server-pid", str(server.pid), "--out", "run.db")
        with Program(folder, "soak", f"http://127.0.0.1:{port}/", *asked, *where) as program:
            program.until_phase("hold")
            program.until(lambda: held(folder) == N, "all are held")
            print(file=server.stdin, flush=True)
            return program.wait().status
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(server.pid)], check=False)
        server.wait()


@pytest.mark.parametrize("mode", ["exec", "fork", "recycled"])
def test_a_helper_or_one_replaced_worker_is_no_reload(tmp_path: Path, mode: str) -> None:
    assert changed_in_its_hold(tmp_path, SERVER, mode) == 0
    summary = report(tmp_path, "run.db")
    assert "server_reloaded" not in codes(summary)
    if mode != "recycled":
        fault_table.require_as_written("test_a_helper_or_one_replaced_worker_is_no_reload", summary)
    (changed,) = (one for one in summary["findings"] if one["code"] == "server_processes_changed")
    assert (changed["fields"]["started"], changed["fields"]["ended"]) == (1, int(mode == "recycled"))
    # 20,000 B and Python's objects; the first ones of a forked worker unshare memory.
    low, high = summary["cost"]["server_user"]["ci95"]
    assert (low < 45_000, high > 20_000) == (True, True)


#: A server of two workers, which prints its port. At a line on its standard input both are killed, and others take their place.
WORKERS = """
import asyncio, os, signal, socket, sys, time

listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
print(listener.getsockname()[1], flush=True)

async def serve(reader, writer):
    while await reader.readline():
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    await (await asyncio.start_server(serve, sock=listener)).serve_forever()

def worker():
    pid = os.fork()
    if pid == 0:
        asyncio.run(main())
    return pid

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
workers = [worker(), worker()]
for _ in sys.stdin:
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    workers = [worker(), worker()]
"""


def test_all_workers_at_once_are_a_reload_or_a_crash(tmp_path: Path) -> None:
    """Without a page of counts nobody can tell which."""
    assert changed_in_its_hold(tmp_path, WORKERS) == 99
    fault_table.require_as_written("test_all_workers_at_once_are_a_reload_or_a_crash", report(tmp_path, "run.db"))
