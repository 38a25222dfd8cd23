"""A connection is held only as far as it was heard: servers that accept nothing, accept a part, or fall silent before the end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_table
import pytest
from programs import (
    OK,
    SHORT,
    Program,
    Server,
    answered,
    codes,
    held,
    here,
    longest_delay_s,
    recorded,
    report,
    require_whole,
    serving,
    speaking,
    until,
    was_late,
)

from asyncli.store.reader import read_run

N = 100


def waiting(folder: Path) -> int:
    """Heartbeats that waited for an answer at the last second on record."""
    seen = recorded(folder / "run.db")
    return seen.ticks[-1][1].awaiting if seen is not None and seen.ticks else 0


def most_waiting(folder: Path) -> int:
    """The most heartbeats that waited for an answer at any second on record."""
    seen = recorded(folder / "run.db")
    return max((tick.awaiting for _, tick in seen.ticks), default=0) if seen is not None else 0


def lost(folder: Path) -> int:
    """The connections lost until the last second on record."""
    seen = recorded(folder / "run.db")
    return sum(tick.lost for _, tick in seen.ticks) if seen is not None else 0


def as_written(summary: dict[str, Any], name: str) -> dict[str, Any]:
    """The report says what docs/reference/faults.md has for this test; its connections."""
    fault_table.require_as_written(name, summary)
    connections: dict[str, Any] = summary["connections"]
    return connections


@contextmanager
def soaking(folder: Path, server: Server, *more: str) -> Iterator[Program]:
    """A soak of :data:`N` connections that are all held; stopped after the block."""
    with Program(folder, "soak", server.url, *SHORT, "-c", str(N), "--hold", "forever", "--out", "run.db", "--quiet", *more) as program:
        program.until(lambda: held(folder) == N, "all are held")
        yield program
        program.signal()
        program.wait()
        program.until_gone()


def test_a_server_that_never_accepts(tmp_path: Path) -> None:
    # Its kernel completes every handshake: that alone is no connection held, and there is nothing to judge the server by.
    with serving(most=0) as server:
        done = here(
            tmp_path, "soak", server.url, *SHORT, "-c", "50", "--hold", "1", "--timeout", "1.5", "--no-reopen", "--out", "run.db", "--quiet",
            "--fail-if", "connections.lost > 100%",
        )  # fmt: skip
    assert done.status == 3
    summary = report(tmp_path, "run.db")
    counts = as_written(summary, "test_a_server_that_never_accepts")
    assert (counts["opened"], counts["held"], summary["heartbeats"]["answered"]) == (50, 0, 0)
    # None of them is known to have been a connection, so that there is nothing to divide by.
    assert {one for name, one in summary["cost"].items() if name not in ("unknown", "ends")} == {None}
    assert summary["generator"]["user_bytes_per_connection"] is None


@pytest.mark.parametrize(("accepts", "unix"), [(0, False), (N // 2, False), (N, False), (0, True), (N, True)])
def test_a_listener_that_accepts_none_or_some_of_those_that_only_listen(tmp_path: Path, accepts: int, unix: bool) -> None:
    # No byte comes, so only the server's sockets show what the kernel alone has granted.
    accepted = []
    place = str(tmp_path / "socket") if unix else ("127.0.0.1", 0)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as listener:
        listener.bind(place)
        listener.listen(4 * N)
        name = listener.getsockname()
        at = ["--connect-to", f"unix:{name}", "tcp://there:1"] if unix else [f"tcp://127.0.0.1:{name[1]}"]
        taker = threading.Thread(target=lambda: accepted.extend(listener.accept()[0] for _ in range(accepts)))
        taker.start()
        done = here(
            tmp_path, "soak", *at, *SHORT, "-c", str(N), "--hold", "1.5", "--out", "run.db", "--quiet",
        )  # fmt: skip
        taker.join()
        for one in accepted:
            one.close()
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["opened"], summary["connections"]["lost"]) == (N, 0)
    told = [finding["evidence"] for finding in summary["findings"] if finding["code"] == "not_accepted"]
    assert len(told) == (1 if accepts < N else 0)
    if accepts == 0:
        # Nothing is known of a server that nobody has seen to accept, however late asyncli was.
        assert done.status == 3
        fault_table.require_as_written("test_a_listener_that_accepts_none_or_some_of_those_that_only_listen", summary)
    else:
        require_whole(done.status, summary, 99 if accepts < N else 0)
        assert summary["connections"]["held"] == accepts
    if 0 < accepts < N and not unix:
        said = here(tmp_path, "report", "run.db").out.split("\n\n")[1]
        assert {str(accepts), str(N)} <= set(said.split())


def test_a_server_that_accepts_a_part(tmp_path: Path) -> None:
    with serving(most=N // 2) as server:
        done = here(tmp_path, "soak", server.url, *SHORT, "-c", str(N), "--hold", "1", "--timeout", "5", "--no-reopen", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    counts = as_written(summary, "test_a_server_that_accepts_a_part")
    require_whole(done.status, summary, 99)
    assert (counts["held"], counts["lost"], counts["deaths"]) == (N // 2, N // 2, {"heartbeat_timeout": N // 2})


def test_a_server_that_accepts_all_and_answers_a_part(tmp_path: Path) -> None:
    answers = iter(range(N // 2))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serves = next(answers, None) is not None
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                writer.write(OK if serves else b"")

    with speaking(client) as address:
        asked = ("-c", str(N), "--hold", "1", "--timeout", "5", "--no-reopen", "--out", "run.db", "--quiet")
        done = here(tmp_path, "soak", f"http://{address}/", *SHORT, *asked)
    summary = report(tmp_path, "run.db")
    counts = as_written(summary, "test_a_server_that_accepts_all_and_answers_a_part")
    require_whole(done.status, summary, 99)
    assert (counts["held"], counts["deaths"]) == (N // 2, {"heartbeat_timeout": N // 2})


def test_a_server_that_answers_with_errors_from_some_request_on(tmp_path: Path) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    limits: dict[tuple[str, ...], tuple[int, tuple[str, str, str]]] = {
        (): (99, ("1", "1", "0")),
        ("--fail-if", "heartbeats.by_status.503 > 100%"): (0, ("2", "0", "0")),
        ("--fail-if", "heartbeats.by_status.503 > 1%"): (99, ("2", "1", "1")),
    }
    for number, (more, (status, cases)) in enumerate(limits.items()):
        with serving(lambda request: OK if request <= N else busy) as server:
            done = here(
                tmp_path, "soak", server.url, *SHORT, "-c", str(N), "--hold", "1", "--out", f"{number}.db", "--junit", "-", "--quiet", *more
            )
        summary = report(tmp_path, f"{number}.db")
        require_whole(done.status, summary, status)
        suite = ET.fromstring(done.out)
        # The case of an invalid run is an error, whatever its limits say.
        assert was_late(summary) or (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == cases
        if not more:
            assert as_written(summary, "test_a_server_that_answers_with_errors_from_some_request_on")["lost"] == 0


def test_a_server_that_answers_no_more(tmp_path: Path) -> None:
    limit = "heartbeats.latency_ms.max > 1500"
    with serving() as server, soaking(tmp_path, server, "--timeout", "4", "--no-reopen", "--fail-if", limit):
        server.deaf = True
        # At any second on record: two seconds later the first have waited out their time, and this process may look seldomer.
        until(lambda: most_waiting(tmp_path) == N, "every heartbeat waits")
    summary = report(tmp_path, "run.db")
    counts = as_written(summary, "test_a_server_that_answers_no_more")
    verdict = "invalid" if was_late(summary) else "failed"
    assert (summary["run"]["verdict"], counts["held"], counts["lost"]) == (verdict, 0, N)
    assert {"limit_crossed", "lost_heartbeat_timeout"} <= codes(summary)
    beats = summary["heartbeats"]
    assert beats["sent"] == beats["answered"] + beats["failed"]
    assert beats["latency_ms"]["max"] >= 4e3


def test_what_sleeps_through_the_hold_is_named(tmp_path: Path) -> None:
    # Half of the sleeps are longer than 150 s: nothing is known of them, and the report says for how long one would have to hold.
    # The rest is in the ramp: on a busy host the last first answers come late, and must not come in the hold.
    rest = ("--plateaus", "1", "--plateau-rest", "2s")
    with serving() as server:
        here(tmp_path, "soak", server.url, *SHORT[:4], *rest, "-c", str(N), "-k", "600", "--hold", "3", "--out", "run.db", "--quiet")
    summary = report(tmp_path, "run.db")
    counts = as_written(summary, "test_what_sleeps_through_the_hold_is_named")
    assert counts["held"] == N
    assert counts["not_heard"] >= 0.9 * N
    assert "not_heard" in codes(summary)


@pytest.mark.parametrize("pause_s", [0, 0.05])
def test_a_body_in_answer_to_a_head_is_named(tmp_path: Path, pause_s: float) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + (b"" if pause_s else b"some text"))
                if pause_s:
                    await asyncio.sleep(pause_s)
                    writer.write(b"some text")
                await writer.drain()
        writer.close()

    with speaking(client) as address:
        probed = here(tmp_path, "check", "--probe", "-c", "5", f"http://{address}/")
        here(tmp_path, "soak", f"http://{address}/", *SHORT, "-c", "20", "--hold", "0.5", "--no-reopen", "--out", "run.db", "--quiet")
    assert (probed.status, "--method GET" in probed.err) == (2, True)
    summary = report(tmp_path, "run.db")
    as_written(summary, "test_a_body_in_answer_to_a_head_is_named")
    # The answer itself counts.
    assert (summary["heartbeats"]["answered"], summary["connections"]["deaths"]) == (20, {"protocol_error": 20})
    (diagnosis,) = summary["diagnoses"]
    assert "--method GET" in diagnosis["remedy"]


ANSWERS_THAT_ARE_HTTP = {"/twice": OK + OK, "/long": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"}


def test_an_answer_that_is_http_is_not_told_as_something_else(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWERS_THAT_ARE_HTTP[request.split()[1].decode()])
            await writer.drain()
        writer.close()

    with speaking(client) as address:
        urls = [f"http://{address}{path}" for path in ANSWERS_THAT_ARE_HTTP]
        here(tmp_path, "soak", *urls, *SHORT, "-c", "40", "--hold", "0.5", "--no-reopen", "--force", "--out", "run.db", "--quiet")
    as_written(report(tmp_path, "run.db"), "test_an_answer_that_is_http_is_not_told_as_something_else")


def test_a_server_that_closes_after_three_answers_without_notice(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
        await writer.drain()
        writer.close()

    with speaking(client) as address:
        here(tmp_path, "soak", f"http://{address}/", *SHORT[:4], "-c", "50", "-k", "6", "--hold", "12", "--out", "run.db", "--quiet")
    as_written(report(tmp_path, "run.db"), "test_a_server_that_closes_after_three_answers_without_notice")


def soaked_once(folder: Path, client: Callable[..., Any], *asked: str) -> dict[str, Any]:
    """The JSON of a soak of a server that speaks so to each client, without replacing what it loses."""
    with speaking(client) as address:
        more = (*asked, "--no-reopen", "--out", "run.db", "--quiet")
        here(folder, "soak", f"http://{address}/", *SHORT[:4], *more)
    return report(folder, "run.db")


def test_a_server_that_closes_all_in_step_with_the_third_answer(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(3):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK if number < 2 else OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await writer.drain()
        writer.close()

    summary = soaked_once(tmp_path, client, "--ramp", "50/100ms", "-c", "50", "-k", "2", "--hold", "4")
    as_written(summary, "test_a_server_that_closes_all_in_step_with_the_third_answer")


def test_a_server_that_drains_has_kept_connections_alive(tmp_path: Path) -> None:
    """It answers for some seconds, and then each with its last one, as at a graceful end."""
    ends_s = math.inf

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                is_last = time.monotonic() > ends_s
                writer.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) if is_last else OK)
                await writer.drain()
                if is_last:
                    break
        writer.close()

    asked = [*SHORT[:4], "-c", "50", "-k", "4", "--hold", "forever", "--no-reopen", "--out", "run.db"]
    with speaking(client) as address, Program(tmp_path, "soak", f"http://{address}/", *asked) as program:
        program.until_phase("hold")
        ends_s = time.monotonic() + 5
        # Each comes to its last heartbeat in four seconds, or later on a busy host.
        program.until(lambda: lost(tmp_path) == 50, "the server has ended all")
        program.signal()
        status = program.wait().status
    summary = report(tmp_path, "run.db")
    require_whole(status, summary, 99)
    assert summary["connections"]["deaths"] == {"closed_announced": 50}
    assert "keepalive_off" not in {diagnosis["code"] for diagnosis in summary["diagnoses"]}
    as_written(summary, "test_a_server_that_drains_has_kept_connections_alive")


def test_an_age_limit_at_one_pace_may_be_a_limit_of_requests(tmp_path: Path) -> None:
    ends: list[tuple[int, float]] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, begun_s = 0, time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.5):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(OK)
                    answers += 1
        ends.append((answers, time.monotonic() - begun_s))
        writer.close()

    summary = soaked_once(tmp_path, client, "--ramp", "10/s", "-c", "50", "-k", "2", "--hold", "4")
    deaths = summary["connections"]["deaths"]
    assert (sum(deaths.values()), set(deaths) <= {"closed_idle", "closed_awaiting", "reset"}) == (50, True)
    # On a busy machine some come to other numbers of answers, or to a greater age: then it looks like one of the two, or like none.
    came_alike = {answers for answers, _ in ends} == {4} and max(age_s for _, age_s in ends) < 3.9
    if came_alike and longest_delay_s(read_run(tmp_path / "run.db")) < 0.4:
        as_written(summary, "test_an_age_limit_at_one_pace_may_be_a_limit_of_requests")


def test_an_idle_timeout_below_a_second(tmp_path: Path) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError):
            while await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 0.5):
                writer.write(OK)
        writer.close()

    summary = soaked_once(tmp_path, client, "--ramp", "20/s", "-c", "100", "-k", "20", "--hold", "2")
    as_written(summary, "test_an_idle_timeout_below_a_second")
    # Each was served: how many were open at once follows from the pace of the ramp, and is no limit.
    (finding,) = [one for one in summary["findings"] if one["code"] == "gave_way"]
    assert finding["fields"]["served"] is None


# Serves HTTP, and on SIGUSR1 computes for three seconds of CPU time, as a collection of garbage does.
COMPUTING = """
import asyncio, signal, time

async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

def compute():
    until = time.process_time() + 4
    while time.process_time() < until:
        pass

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, compute)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def test_a_server_that_computes_answers_nobody(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", COMPUTING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
        # Four seconds of CPU time may take minutes on a busy host.
        asked = (url, *SHORT, "-c", str(N), "--hold", "forever", "--out", "run.db", "--quiet", "--timeout", "10m", "--server-pid", str(server.pid))
        with Program(tmp_path, "soak", *asked) as program:
            program.until(lambda: held(tmp_path) == N, "all are held")
            answered_before = answered(tmp_path)
            program.until(lambda: answered(tmp_path) > answered_before, "heartbeats are answered")
            server.send_signal(signal.SIGUSR1)
            program.until(lambda: waiting(tmp_path) >= N // 2, "heartbeats wait")
            program.until(lambda: waiting(tmp_path) < N // 2, "they are answered")
            program.signal()
            program.wait()
        server.kill()
    summary = report(tmp_path, "run.db")
    (stall,) = (one for one in summary["findings"] if one["code"] == "no_answers")
    # A busy machine may leave it a twentieth of a core.
    assert stall["fields"]["cores"] > 0.02
    assert stall["fields"]["why"] == ("computing" if stall["fields"]["cores"] >= 0.5 else "unknown")
    if stall["fields"]["why"] == "computing":
        as_written(summary, "test_a_server_that_computes_answers_nobody")
