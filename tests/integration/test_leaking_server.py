"""A server that keeps a hundred bytes of each request, and one that keeps nothing: told apart by what they hold in memory.

Real processes, time-compressed: three hundred connections that beat once a second make in half a minute as many requests
as a few connections in an hour.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from programs import Program, recorded

from asyncli.analysis.drift import Drift, drifts
from asyncli.records import Finding

LEAK = 100
CONNECTIONS = 300
HOLD_S = 24

SERVER = textwrap.dedent(
    """
    import asyncio, sys

    LEAK = int(sys.argv[1])
    kept = bytearray()

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
        # Until the test closes the other end.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()

    asyncio.run(main())
    """
)


@contextmanager
def serving(leak: int) -> Iterator[tuple[int, str]]:
    """The server in a process of its own, keeping so many bytes of each request: its pid and URL."""
    command = [sys.executable, "-c", SERVER, str(leak)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Drift, list[Finding], int]]:
    """Both servers soaked at once: bytes kept of a request -> drift of the server's memory, findings, answers in the hold."""
    folder = tmp_path_factory.mktemp("drift")
    asked = ["-c", str(CONNECTIONS), "-k", "2", "--ramp", "10/5ms", "--hold", str(HOLD_S), "--baseline", "1", "--residue", "0.2"]
    with ExitStack() as stack:
        programs = {}
        for leak in (LEAK, 0):
            pid, url = stack.enter_context(serving(leak))
            asked_of_it = ["soak", url, *asked, "--server-pid", str(pid), "--out", f"{leak}.db", "--quiet"]
            programs[leak] = stack.enter_context(Program(folder, *asked_of_it, name=str(leak)))
        ends = {leak: program.wait() for leak, program in programs.items()}
    return {leak: _judge(folder / f"{leak}.db", end.out) for leak, end in ends.items()}


def _judge(path: Path, said: str) -> tuple[Drift, list[Finding], int]:
    assert said.startswith(f"passed: {CONNECTIONS} of {CONNECTIONS} connections"), said
    run = recorded(path)
    assert run is not None
    found, findings = drifts(run.plan, run.phases, run.ticks, run.samples, run.environment)
    answered = sum(tick.answered for t_s, tick in run.ticks if run.phases[2].start_s < t_s <= run.phases[3].start_s)
    return found["server_user"], [one for one in findings if "the server's" in one.evidence], answered


def test_a_server_that_keeps_a_hundred_bytes_a_request_grows(judged: dict[int, tuple[Drift, list[Finding], int]]) -> None:
    drift, findings, answered = judged[LEAK]
    assert answered > CONNECTIONS * HOLD_S / 2
    assert drift.verdict == "grows"
    assert drift.bytes_per_request is not None
    # It keeps them side by side, so pages are touched as they fill: what is off is the memory's own wander, and the edges of bins.
    assert drift.bytes_per_request == pytest.approx(LEAK, rel=0.15)
    assert drift.ci95 is not None
    assert drift.ci95[0] > 0
    (finding,) = findings
    assert (finding.code, finding.severity) == ("drift_grows", "warning")
    assert f"{drift.bytes_per_request:,.0f} B for each heartbeat" in finding.evidence
    assert "is used up in" in finding.evidence


def test_a_server_that_keeps_nothing_is_flat(judged: dict[int, tuple[Drift, list[Finding], int]]) -> None:
    drift, findings, answered = judged[0]
    assert answered > CONNECTIONS * HOLD_S / 2
    assert (drift.verdict, findings) == ("flat", [])
    # What the other one leaks, this one excludes.
    leaked = LEAK * answered / HOLD_S * 3600
    assert drift.within_bytes_per_hour is not None
    assert drift.within_bytes_per_hour < leaked / 4
