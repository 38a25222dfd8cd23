"""A server that takes memory for each connection only after the ramp: at a later request, or when a timer of its own fires.

It does so when the test says so, in the hold, so nothing waits for seconds but for the readings that show it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from contract import document
from fault_table import require_as_written
from programs import Program, here, recorded, was_held_up

from asyncli.analysis.measured import measure
from asyncli.model.run import Run

pytestmark = pytest.mark.measures

EACH, CONNECTIONS = 60_000, 300
# Readings of the server's memory: in the hold before the server takes more, and after it.
_BEFORE, _AFTER = 7, 7

SERVER = textwrap.dedent(
    """
    import asyncio, sys

    EACH = int(sys.argv[1])
    open_ones = set()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.head, self.kept = transport, b"", None
            open_ones.add(self)

        def connection_lost(self, why):
            open_ones.discard(self)

        def data_received(self, data):
            *heads, self.head = (self.head + data).split(b"\\r\\n\\r\\n")
            for _ in heads:
                self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        # A line from the test: each connection takes its memory. No line: the end.
        while await loop.run_in_executor(None, sys.stdin.readline):
            for one in open_ones:
                one.kept = bytearray(b"x") * EACH
        server.close()

    asyncio.run(main())
    """
)


class Late(NamedTuple):
    """The run of a server that took :data:`EACH` bytes for each connection in the hold; its JSON and its file."""

    run: Run
    summary: dict[str, Any]
    path: Path


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVER, str(EACH)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.kill()


def _read_in_hold(path: Path, since_s: float = 0.0) -> int:
    """How often the server's memory was read in the hold since an instant."""
    run = recorded(path)
    if run is None or run.hold is None:
        return 0
    return len(run.series("server.pss_bytes").between(max(since_s, run.hold.start_s), run.end_s))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Late:
    folder = tmp_path_factory.mktemp("late")
    path = folder / "late.db"
    with serving() as (server, url):
        asked = ["soak", url, "-c", str(CONNECTIONS), "-k", "4", "--ramp", "40/s", "--hold", "forever", "--baseline", "2"]
        asked += ["--residue", "0.2", "--server-pid", str(server.pid), "--out", path, "--fail-if", "cost.server_user > 30000"]
        with Program(folder, *asked) as program:
            program.until(lambda: _read_in_hold(path) >= _BEFORE, "the line ends in the hold")
            server.stdin.write("\n")
            server.stdin.flush()
            since_s = recorded(path).end_s + 1.0
            program.until(lambda: _read_in_hold(path, since_s) >= _AFTER, "the level at the hold's end is read")
            program.signal()
            program.wait()
    run = recorded(path)
    return Late(run, document(run), path)


def test_memory_taken_after_the_ramp_is_in_the_cost(late: Late) -> None:
    cost = late.summary["cost"]["server_user"]
    low, high = cost["ci95"]
    # The line, of a few kB, and the level.
    assert low < 20_000 < EACH < high
    # Readings of the ramp at other moments than planned may look like growth by the clock, which the interval includes.
    assert high < 1.5 * EACH or was_held_up(late.run)
    # That of the whole host has it too; beside another program that takes much memory it is unknown.
    on_host = late.summary["cost"]["host_total"]["ci95"]
    assert on_host is None or on_host[1] > EACH
    require_as_written("test_memory_taken_after_the_ramp_is_in_the_cost", late.summary)


def test_its_level_is_one_number_and_no_leak(late: Late) -> None:
    cost, level = late.summary["cost"]["server_user"], late.summary["server"]["pss_bytes"]["hold_end"]
    # But for pages of files, whose share changes with the other programs that map them.
    assert cost["fixed_bytes"] + CONNECTIONS * cost["bytes_per_connection"] == pytest.approx(level, rel=0.1)
    assert late.summary["drift"]["server_user"]["verdict"] != "grows"
    # The limit lies between what the ramp says and what the level says: it is not kept.
    assert [one["kept"] for one in late.summary["limits"]] == [None]


def test_lists_and_comparisons_have_the_same_cost(late: Late) -> None:
    folder, cost = late.path.parent, late.summary["cost"]["server_user"]
    (listed,) = json.loads(here(folder, "runs", folder, "--json", "-").out)["runs"]
    assert listed["server_cost"]["ci95"] == cost["ci95"]
    compared = measure("A", str(late.path), late.run).numbers
    estimate = compared["cost.server_user"]
    assert [estimate.low, estimate.high] == cost["ci95"]
    assert compared["memory.server_hold_end"].value == late.summary["server"]["pss_bytes"]["hold_end"]
