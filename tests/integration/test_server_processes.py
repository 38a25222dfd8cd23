"""Processes of a server that come and go while it holds connections: a helper, one worker of several, and all of its workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_table
import pytest
from programs import Program, codes, held, report, require_done
from provoked import Nginx

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


def changed_in_its_hold(folder: Path, script: str, *arguments: str, wanted: int) -> dict[str, Any]:
    """The summary of a soak of the server that the script makes, which is told to change in the hold; it ends with status ``wanted``."""
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
            done = program.wait()
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(server.pid)], check=False)
        server.wait()
    return require_done(folder, done, wanted)


@pytest.mark.parametrize("mode", ["exec", "fork", "recycled"])
def test_a_helper_or_one_replaced_worker_is_no_reload(tmp_path: Path, mode: str) -> None:
    summary = changed_in_its_hold(tmp_path, SERVER, mode, wanted=0)
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
    fault_table.require_as_written("test_all_workers_at_once_are_a_reload_or_a_crash", changed_in_its_hold(tmp_path, WORKERS, wanted=99))


#: Shares the port of its standard input's first line, accepts nothing, and ends with its standard input.
SHARES_A_PORT = """
import socket, sys
port = int(sys.stdin.readline())
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", port))
listener.listen(1000)
print("listens", flush=True)
sys.stdin.read()
"""


class SharedPort(Nginx):
    """An nginx of one worker whose port other programs may share."""

    def _listen_options(self) -> list[str]:
        return [*super()._listen_options(), "reuseport"]


@contextmanager
def sharing_its_port(server: SharedPort) -> Iterator[subprocess.Popen[str]]:
    """``server`` started, beside an earlier program that shares its port."""
    other = subprocess.Popen([sys.executable, "-c", SHARES_A_PORT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        with asyncio.Runner() as runner:
            runner.run(server.start())
            try:
                print(server.port, file=other.stdin, flush=True)
                assert other.stdout.readline() == "listens\n"
                yield other
            finally:
                runner.run(server.stop())
    finally:
        other.kill()
        other.wait()


@pytest.mark.nginx
def test_a_program_that_ended_before_the_first_connect_is_not_the_server(tmp_path: Path) -> None:
    server = SharedPort(workers=1)
    with sharing_its_port(server) as other:
        asked = ("-c", "50", "--ramp", "50/s", "-k", "4", "--hold", "2s", "--baseline", "3s", "--residue", "0.2", "--out", "run.db")
        with Program(tmp_path, "soak", f"http://127.0.0.1:{server.port}/", *asked) as program:
            program.until_phase("baseline")
            other.kill()
            done = program.wait()
        summary = require_done(tmp_path, done)
        assert summary["environment"]["server"]["pid"] == server.pid
    assert summary["environment"]["server"]["version"].startswith("nginx/")
    assert summary["environment"]["server"]["directives"]["worker_processes"] == "1"
    # Its limits are known too.
    assert "worker_connections" in {limit["name"] for limit in summary["forecast"]["ceilings"]}
    assert "several_servers" not in codes(summary)


@pytest.mark.nginx
def test_several_programs_share_the_servers_port(tmp_path: Path) -> None:
    server = SharedPort(workers=1)
    with sharing_its_port(server):
        # Reading the host's sockets takes some ms: the budget of a run of seconds has few readings. One must come while all of them wait, also
        # where asyncli stands still for two seconds.
        asked = ("-c", "50", "--ramp", "50/s", "-k", "2", "--hold", "8s", "--timeout", "4s", "--baseline", "1s", "--residue", "0.2")
        with Program(tmp_path, "soak", f"http://127.0.0.1:{server.port}/", *asked, "--out", "run.db") as program:
            done = program.wait()
        summary = require_done(tmp_path, done, 99)
    fault_table.require_as_written("test_several_programs_share_the_servers_port", summary)
    # The configuration of one of them says nothing of the others.
    assert "directives" not in summary["environment"]["server"]


#: An HTTP server that starts a process for each request and waits for none: it prints its port.
FOR_EACH_REQUEST = """
import asyncio, os, signal, time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

async def serve(reader, writer):
    while await reader.readline():
        await reader.readuntil(b"\\r\\n\\r\\n")
        ends_at = time.monotonic() + 0.3
        if os.fork() == 0:
            while time.process_time() < 0.02 and time.monotonic() < ends_at:
                pass
            time.sleep(max(0.0, ends_at - time.monotonic()))
            os._exit(0)
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.measures
def test_processes_between_two_readings_are_not_all_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOR_EACH_REQUEST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        asked = ("-c", "40", "--ramp", "20/s", "-k", "4", "--hold", "12s", "--baseline", "1s", "--residue", "0.2")
        with Program(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked, "--out", "run.db") as program:
            done = program.wait()
        server.kill()
    summary = report(tmp_path, "run.db")
    fault_table.require_as_written("test_processes_between_two_readings_are_not_all_counted", summary)
    (changed,) = (finding for finding in summary["findings"] if finding["code"] == "server_processes_changed")
    assert changed["fields"]["brief"]
    assert changed["fields"]["ended"] < summary["heartbeats"]["answered"]
    cpu = done.out.partition("CPU and memory:")[2]
    assert " at least " in cpu.partition(";")[0]


#: An HTTP server at a port that it is told, or at any. Prints its URL.
ANSWERING = """
import asyncio, contextlib, sys

async def serve(reader, writer):
    with contextlib.suppress(ConnectionError):
        while await reader.readline():
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_one_of_two_servers_that_restarts_is_found(tmp_path: Path) -> None:
    """All after it is of both, as before it."""
    script = tmp_path / "answering.py"
    script.write_text(ANSWERING, encoding="utf-8")
    servers = [subprocess.Popen([sys.executable, script, "0"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    again = tmp_path / "again.pid"
    try:
        urls = [server.stdout.readline().strip() for server in servers if server.stdout is not None]
        port = urls[0].rpartition(":")[2].strip("/")
        restart = tmp_path / "restart"
        listens = tmp_path / "listens"
        begin = f"setsid {sys.executable} {script} {port} > {listens} 2>&1 & echo $! > {again}"
        # A deploy is over once the server is there, which takes seconds on a busy host.
        until_it_listens = f"until [ -s {listens} ]; do sleep 0.1; done"
        restart.write_text(f"kill -KILL {servers[0].pid}\nsleep 2\n{begin}\n{until_it_listens}\n", encoding="utf-8")
        asked = ("-c", "60", "--ramp", "100/s", "-k", "4", "--hold", "15s", "--baseline", "1s", "--residue", "0.2s")
        event = ("--at", "6s", f"run sh {restart}", "--reconnect", "fixed:3s", "--out", "run.db")
        with Program(tmp_path, "soak", *urls, *asked, *event) as program:
            done = program.wait()
    finally:
        for server in servers:
            server.kill()
            server.wait()
        if again.exists():
            os.kill(int(again.read_text(encoding="ascii")), signal.SIGKILL)
    summary = require_done(tmp_path, done)
    [told] = summary["events"]
    assert told["ended"] == 30
    price = told["server"]
    assert price["after"] == pytest.approx(price["memory_before"], rel=0.15)
    assert price["after"] > 10_000_000
    assert summary["server"]["processes"] == {"baseline": 2, "hold_end": 2}
    by_code = {finding["code"]: finding for finding in summary["findings"]}
    assert all("event 1" in by_code[code]["evidence"] for code in ("server_master_ended", "server_restarted"))
