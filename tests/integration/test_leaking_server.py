"""A server that keeps a kilobyte of each request, one that leaks in memory shared by two processes, and one that keeps
nothing: told apart by what they hold in memory.

Real processes, time-compressed: three hundred connections that beat once a second make in half a minute as many requests
as a few connections in an hour.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from fault_table import require_said, rows
from programs import Program, recorded

from asyncli.analysis.drift import Drift, drifts, source_of
from asyncli.model.records import Finding
from asyncli.report.answer import growth
from asyncli.report.cost_answer import answer
from asyncli.report.summary import summarise

# Of each request. In half a minute that is more than its connections take, as no settling is.
LEAK = 1000
# A second, in memory that two processes share: 1.9 GB an hour.
SHARED = 1 << 19
CONNECTIONS = 300
# The hold: so long, and until memory was read so often in it; on a busy host it is read seldomer.
HOLD_S, READINGS = 24, 20

SERVER = textwrap.dedent(
    """
    import asyncio, mmap, os, signal, sys

    LEAK, SHARED = int(sys.argv[1]), int(sys.argv[2])
    kept = bytearray()
    region = mmap.mmap(-1, 64 << 20)
    page = os.sysconf("SC_PAGE_SIZE")

    def touch(told):
        # Both processes have each page mapped before the next: the server writes it, its child reads it.
        for place in range(0, len(region), page):
            if not os.read(told, 1):
                return
            region[place]

    async def leak(tell):
        # By the clock: what a busy host delays is made up for.
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for place in range(0, len(region), page):
            while loop.time() < begun + place / SHARED:
                await asyncio.sleep(page / SHARED)
            region[place] = 1
            os.write(tell, b"x")

    tasks = []
    if SHARED:
        told, tell = os.pipe()
        if not os.fork():
            os.close(tell)
            try:
                touch(told)
            finally:
                os._exit(0)

    class Connection(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.head = transport, b""

        def data_received(self, data):
            *heads, self.head = (self.head + data).split(b"\\r\\n\\r\\n")
            for _ in heads:
                kept.extend(b"x" * LEAK)
                self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

    async def main():
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        if SHARED:
            tasks.append(asyncio.ensure_future(leak(tell)))
        # Until the test closes the other end.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()

    asyncio.run(main())
    """
)


@contextmanager
def serving(leak: int, shared: int) -> Iterator[tuple[int, str]]:
    """The server in a process of its own: its pid and URL. It keeps ``leak`` bytes of each request, or touches ``shared`` bytes
    a second of memory that a child of it has too."""
    command = [sys.executable, "-c", SERVER, str(leak), str(shared)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Drift, list[Finding], float]]:
    """All soaked at once: bytes kept of a request, or a second -> drift of the server's memory, findings, answers a second of the hold."""
    folder = tmp_path_factory.mktemp("drift")
    limit = ["--fail-if", "drift.server_user > 10MB/h"]
    asked = ["-c", str(CONNECTIONS), "-k", "2", "--ramp", "10/5ms", "--hold", "forever", "--baseline", "1", "--residue", "0.2"]
    with ExitStack() as stack:
        programs = {}
        for leak, shared, limits in ((LEAK, 0, []), (0, SHARED, limit), (0, 0, [])):
            pid, url = stack.enter_context(serving(leak, shared))
            name = leak or shared
            asked_of_it = ["soak", url, *asked, "--server-pid", str(pid), "--out", f"{name}.db", "--quiet", *limits]
            programs[name] = stack.enter_context(Program(folder, *asked_of_it, name=str(name)))
        for leak, program in programs.items():
            program.until(partial(_seen_enough, folder / f"{leak}.db"), "a hold that is long enough")
        for program in programs.values():
            program.signal()
        ends = {leak: program.wait() for leak, program in programs.items()}
    return {leak: _judge(folder / f"{leak}.db", end.out) for leak, end in ends.items()}


def _seen_enough(path: Path) -> bool:
    run = recorded(path)
    if run is None or run.hold is None or run.end_s < run.hold.start_s + HOLD_S:
        return False
    return len(run.series(source_of(run, "server_user")).between(run.hold.start_s, run.end_s).t_s) >= READINGS


def _judge(path: Path, said: str) -> tuple[Drift, list[Finding], float]:
    judged = "failed: drift.server_user > 10MB/h" if path.stem == str(SHARED) else f"passed: {CONNECTIONS} of {CONNECTIONS} conn"
    # Three soaks and three servers on one host: one may be late.
    assert said.startswith((judged, "invalid: asyncli was the limit,")), said
    run = recorded(path)
    summary = summarise(run)
    assert (summary.connections.held, summary.connections.lost) == (CONNECTIONS, 0)
    assert [one.kept for one in summary.limits] == ([False] if path.stem == str(SHARED) else [])
    # What the server grew by in the hold is between two levels too.
    assert (summary.cost.server_user is None) == (path.stem != "0"), answer(summary)
    assert ["grows" in answer(summary), growth(summary) is not None] == [path.stem != "0"] * 2
    found, findings = drifts(run)
    answered = sum(tick.answered for t_s, tick in run.ticks if run.hold.start_s < t_s <= run.hold.end_s)
    return found["server_user"], [one for one in findings if "the server's" in one.evidence], answered / run.hold.length_s


def test_a_server_that_keeps_a_kilobyte_a_request_grows(judged: dict[int, tuple[Drift, list[Finding], float]]) -> None:
    drift, findings, answered_per_s = judged[LEAK]
    assert answered_per_s > CONNECTIONS / 2
    assert drift.verdict == "grows"
    assert drift.bytes_per_request is not None
    # It keeps them side by side, so pages are touched as they fill: what is off is the memory's own wander, and the edges of bins.
    assert drift.bytes_per_request == pytest.approx(LEAK, rel=0.15)
    assert drift.ci95[0] > 0
    (finding,) = findings
    assert (finding.code, finding.severity) == ("drift_grows", "warning")


def test_a_leak_in_memory_that_two_processes_share_is_no_secret(judged: dict[int, tuple[Drift, list[Finding], float]]) -> None:
    drift, findings, _ = judged[SHARED]
    assert drift.verdict == "grows"
    assert drift.bytes_per_hour == pytest.approx(3600 * SHARED, rel=0.25)
    assert [one.code for one in findings] == ["drift_grows"]
    for row in rows():
        if "test_leaking_server.py" in row.test:
            require_said(row.says, [one.evidence for one in findings])


def test_a_server_that_keeps_nothing_is_flat(judged: dict[int, tuple[Drift, list[Finding], float]]) -> None:
    drift, findings, answered_per_s = judged[0]
    assert answered_per_s > CONNECTIONS / 2
    # Half a minute excludes no growth that is small beside what 300 connections take: flat or too short to say, and no growth.
    assert (drift.verdict in ("flat", "too_short"), findings) == (True, [])
    # What the other one leaks, this one excludes.
    leaked = LEAK * answered_per_s * 3600
    assert drift.within_bytes_per_hour < leaked / 4
