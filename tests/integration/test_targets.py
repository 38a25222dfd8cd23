"""Targets without an nginx: those that nobody answers for, those that count, and names with several addresses."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_table import require_said
from programs import SHORT, Program, codes, report, run, serving

import asyncli
from asyncli.app.incoming import Incoming
from asyncli.app.progress import Progress
from asyncli.app.recorder import NoObserver, Recorder
from asyncli.engine import resolve
from asyncli.engine.shard import Ticked
from asyncli.engine.spread import Destination
from asyncli.records import Tick
from asyncli.store.reader import read_run


@contextmanager
def closed_port(address: str = "127.0.0.1") -> Iterator[int]:
    """A port that refuses, and that nobody else can get meanwhile."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
        bound.bind((address, 0))
        yield bound.getsockname()[1]


@contextmanager
def silent_port(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port whose listen queue is full and never emptied: the kernel drops every further SYN."""
    with socket.create_server((address, port), backlog=0) as listener:
        waiting = []
        try:
            while True:
                client = socket.socket()
                waiting.append(client)
                client.settimeout(0.3)
                try:
                    client.connect(listener.getsockname())
                except TimeoutError:
                    break
            yield listener.getsockname()[1]
        finally:
            for client in waiting:
                client.close()


def untested(folder: Path, port: int, cause: str, *arguments: str) -> dict[str, Any]:
    asked = ["--hold", "1h", "--out", "run.db", "--json", "run.json", *arguments]
    done = run(folder, "soak", f"http://127.0.0.1:{port}/", *SHORT, *asked)
    assert (done.status, done.err) == (3, "")
    assert "\nUNTESTED  nothing ever connected" in done.out
    summary = report(folder, "run.db")
    assert json.loads((folder / "run.json").read_text()) == summary
    assert (summary["run"]["verdict"], summary["run"]["complete"]) == ("untested", True)
    connections = summary["connections"]
    assert (connections["opened"], connections["held"], connections["lost"]) == (0, 0, 0)
    assert list(connections["failures"]) == [cause]
    assert connections["failures"][cause] == connections["failed"] > 0
    assert f"failed_{cause}" in codes(summary)
    # It says that it gave up, and shows no hold that never was.
    assert re.search(r"gave up .* into the ramp.*: all [\d,]+ connects had failed", " ".join(done.out.split()))
    assert [one["name"] for one in summary["run"]["phases"]] == ["baseline", "ramp", "drain", "residue"]
    return summary


def test_a_slow_ramp_to_a_target_that_refuses_is_given_up_at_its_first_refusals(tmp_path: Path) -> None:
    with closed_port() as port:
        summary = untested(tmp_path, port, "refused", "-c", "1000", "--batch", "1", "--interval", "500ms", "--force")
    assert summary["connections"]["failed"] < 50


def test_nothing_connected_is_told_only_where_each_address_was_tried(tmp_path: Path) -> None:
    plan = asyncli.Plan(urls=("http://127.0.0.1:1/", "http://127.0.0.1:2/"), connections=1000, batch=1, interval_s=2.0)
    progress = Progress(plan, tmp_path / "run.db")
    two = tuple(Destination(socket.AF_INET, "127.0.0.1", 1 + place, place) for place in (0, 1))
    incoming = Incoming(
        progress, Recorder(NoObserver(), progress), two, resume="", on_told=lambda: None, on_sample=lambda _: None
    )
    incoming.hear(Ticked(Tick(failures={"refused": 4})))
    # The first gave all of them: the second is tried after 2 s, and may take its time.
    for second, connecting, nobody in ((1, 0, False), (2, 1, False), (2, 0, True)):
        incoming.hear(Ticked(Tick(second=second, connecting=connecting)))
        assert incoming.nothing_connected is nobody


def test_nothing_listens_is_said_at_once_and_nothing_is_sent(tmp_path: Path) -> None:
    with closed_port() as port:
        asked = ["--hold", "1h", "--baseline", "1h", "--out", "run.db", "--json", "run.json"]
        done = run(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked)
    assert (done.status, done.err) == (3, "")
    summary = report(tmp_path, "run.db")
    assert json.loads((tmp_path / "run.json").read_text()) == summary
    assert (summary["run"]["verdict"], summary["run"]["complete"], summary["run"]["phases"]) == ("untested", True, [])
    assert summary["connections"]["failed"] == summary["connections"]["opened"] == 0
    (finding,) = (one for one in summary["findings"] if one["code"] == "nothing_listens")
    assert finding["evidence"] == f"nothing listens on 127.0.0.1:{port} of this host: the run did not begin"
    printed = done.out[done.out.index("\nUNTESTED") :]
    assert len(printed.splitlines()) < 20
    assert "--wait-for-server" in printed
    assert "--quiet" not in printed


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_a_server_that_starts_later_is_waited_for(tmp_path: Path, command: str) -> None:
    with closed_port() as port:
        pass
    more = ("--hold", "0.5", *SHORT, "--out", "run.db") if command == "soak" else ("-n", "100")
    with Program(tmp_path, command, f"http://127.0.0.1:{port}/", "-c", "5", "--wait-for-server", "1h", *more) as program:
        program.until(lambda: "for the server: nothing listens on" in program.out, "it says that it waits")
        with subprocess.Popen([sys.executable, "-m", "asyncli", "lab", "builtin", "--port", str(port)], stdout=subprocess.DEVNULL) as server:
            try:
                assert program.wait().status == 0
            finally:
                server.terminate()


def test_the_waiting_for_a_server_ends_with_a_signal_or_its_time(tmp_path: Path) -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        with Program(tmp_path, "soak", url, "--wait-for-server", "1h", "--out", "run.db") as program:
            program.until(lambda: "for the server: nothing listens on" in program.out, "it says that it waits")
            program.signal(signal.SIGINT)
            assert program.wait().status == 130
        assert not (tmp_path / "run.db").exists()
        for what, so in ((("soak", "--out", "run.db"), "the run did not begin"), (("bench",), "nothing was asked")):
            done = run(tmp_path, *what, url, "--wait-for-server", "0.3s")
            assert done.status == 3
            why = f"nothing listens on 127.0.0.1:{port} of this host, also after --wait-for-server 300 ms: {so}"
            assert why in " ".join(done.out.split())
            assert "waits for it" not in done.out
    done = run(tmp_path, "soak", "http://192.0.2.1/", "--wait-for-server", "3", "--out", "other.db")
    assert done.status == 2
    assert done.err.startswith("asyncli: --wait-for-server: the server is on another host")
    assert run(tmp_path, "bench", url, "--wait-for-server", "soon").status == 2


def test_a_target_that_is_silent_is_untested(tmp_path: Path) -> None:
    with silent_port() as port:
        untested(tmp_path, port, "connect_timeout", "-c", "50", "--connect-timeout", "0.5")


@pytest.mark.parametrize(("address", "workers"), [("127.0.0.1", 3), ("::1", 1)])
def test_nothing_is_sent_to_the_target_that_is_not_counted(tmp_path: Path, address: str, workers: int) -> None:
    if ":" in address and not _has(address):
        pytest.skip("no ::1 on this host")
    with serving(address) as server:
        check = run(tmp_path, "check", server.url, "-c", "200")
        assert (check.status, check.err) == (0, "")
        assert (server.accepts, server.requests) == (0, 0)
        asked = ["-c", "200", "--workers", str(workers), "--hold", "1.5", "--out", "run.db", "--quiet"]
        done = run(tmp_path, "soak", server.url, *SHORT, *asked)
        assert (done.status, done.err) == (0, "")
        summary = report(tmp_path, "run.db")
        assert server.accepts == summary["connections"]["opened"] == 200
        assert server.requests == summary["heartbeats"]["sent"] == summary["heartbeats"]["answered"] > 200


def _has(address: str) -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def test_sleeping_first_sends_nothing_before_the_first_sleep_is_over(tmp_path: Path) -> None:
    with serving() as server:
        asked = ["-c", "50", "--first-beat", "sleep", "--hold", "0", "--out", "run.db", "--quiet", "--ramp", "50/1ms"]
        done = run(tmp_path, "soak", server.url, "--baseline", "0", "--residue", "0", "-k", "1h", *asked)
        # Nothing was asked, so nothing was answered.
        assert (done.status, done.err, server.accepts) == (3, "", 50)
        summary = report(tmp_path, "run.db")
        assert server.requests == summary["heartbeats"]["sent"] < 50


async def test_of_a_name_the_address_that_refuses_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _has("::1"):
        pytest.skip("no ::1 on this host")
    # A host's own files decide what `localhost` is; here it is both, and ::1 refuses.
    both = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(resolve, "_addresses", lambda host, port: both)
    with serving() as server:
        plan = asyncli.Plan(
            urls=(f"http://localhost:{server.port}/",),
            connections=100,
            workers=2,
            hold_s=3.0,
            keepalive_s=2.0,
            baseline_s=0.2,
            residue_s=0.2,
        )
        run_file = await asyncli.soak(plan, tmp_path / "run.db")
        recording = read_run(run_file)
        assert recording.ticks[-1][1].held_at_drain == server.accepts == 100
    assert [finding.code for finding in recording.findings].count("address_dropped") == 1
    summary = report(tmp_path, run_file)
    assert (summary["run"]["verdict"], summary["connections"]["lost"]) == ("passed", 0)
    assert (summary["connections"]["failed"], summary["connections"]["failures"]) == (0, {})


@pytest.mark.parametrize("connections", [1, 100])
async def test_of_a_name_the_address_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connections: int
) -> None:
    both = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(resolve, "_addresses", lambda host, port: both)
    with serving() as server, silent_port("127.0.0.2", server.port):
        plan = asyncli.Plan(
            urls=(f"http://localhost:{server.port}/",), connections=connections, hold_s=2.0, keepalive_s=2.0, baseline_s=0.2,
            residue_s=0.2, connect_timeout_s=0.7,
        )  # fmt: skip
        run_file = await asyncli.soak(plan, tmp_path / "run.db")
        assert server.accepts == connections
    summary = report(tmp_path, run_file)
    assert (summary["run"]["verdict"], summary["connections"]["held"]) == ("passed", connections)
    assert (summary["connections"]["failed"], summary["connections"]["lost"]) == (0, 0)
    if connections == 100:
        # One alone cannot tell that it is not a single packet that was lost.
        require_said(
            ["every connect to 127.0.0.2:80 failed while another address of its name answered; the others took its share"],
            [one["evidence"] for one in summary["findings"]],
        )


async def test_a_notebook_awaits_it_in_its_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)}
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(heart())
    with serving() as server:
        plan = asyncli.Plan(urls=(server.url,), connections=50, hold_s=1.0, keepalive_s=2.0, baseline_s=0.2, residue_s=0.2)
        soak = asyncio.create_task(asyncli.soak(plan))
        seen = set()
        while not soak.done():
            await asyncio.sleep(0.05)
            seen |= {number for number in before if signal.getsignal(number) is not before[number]}
        run = await soak
        assert server.accepts == 50
    beating.cancel()
    assert seen == set(), "the user's signal handlers were touched"
    assert beats > 50, "the user's loop stood still"
    assert run.path.parent == Path()
    assert read_run(run).complete
    assert asyncio.all_tasks() - {asyncio.current_task(), beating} == set()


async def test_two_soaks_run_side_by_side_and_one_is_stopped(tmp_path: Path) -> None:
    with serving() as server:
        plan = asyncli.Plan(urls=(server.url,), connections=20, hold_s=None, keepalive_s=2.0, baseline_s=0.1, residue_s=0.1)
        soaks = [asyncli.Soak(plan, tmp_path / f"{name}.db") for name in ("a", "b")]
        tasks = [asyncio.create_task(soak.run()) for soak in soaks]
        while server.accepts < 40:
            await asyncio.sleep(0.02)
        soaks[0].stop()
        await tasks[0]
        assert not tasks[1].done()
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
    assert (read_run(tmp_path / "a.db").complete, read_run(tmp_path / "b.db").complete) == (True, False)


FEW_DESCRIPTORS = """
import asyncio, resource

async def serve(reader, writer):
    while await reader.readline():
        while (await reader.readline()).strip():
            pass
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def few_descriptors() -> Iterator[int]:
    """A server that may have 150 descriptors: whom it cannot accept waits in its listen queue, open at our end."""
    with subprocess.Popen([sys.executable, "-c", FEW_DESCRIPTORS], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


COUNTED = Path("/proc/self/fd").stat().st_size > 0


@pytest.mark.skipif(not COUNTED, reason="before Linux 6.2 descriptors cannot be counted without listing them")
def test_a_server_that_held_has_its_descriptors_among_the_limits_and_one_that_did_not_no_forecast(tmp_path: Path) -> None:
    pace = ("-k", "4", "--batch", "10", "--interval", "100ms", "--timeout", "2s", "--hold", "5s", "--baseline", "1.5s", "--residue", "0")
    with few_descriptors() as port:
        url = f"http://127.0.0.1:{port}/"
        run(tmp_path, "soak", url, "-c", "80", *pace, "--out", "held.db")
        done = run(tmp_path, "soak", url, "-c", "250", *pace, "--force", "--out", "not.db")
    held = report(tmp_path, "held.db")
    assert held["connections"]["held"] == 80
    assert held["forecast"]["first"] == "descriptors"
    (row,) = [one for one in held["forecast"]["ceilings"] if one["name"] == "descriptors"]
    assert 120 < row["connections"] < 150
    said = report(tmp_path, "not.db")
    assert said["connections"]["lost"] + said["connections"]["failed"] > 0
    assert said["forecast"] == {"memory": None, "server_memory": None, "ceilings": [], "first": None}
    (finding,) = [one for one in said["findings"] if one["code"] == "gave_way"]
    served = re.search(r"served at most about (\d+) of 250 at once; .* had 1\d\d descriptors open, and may have 150$", finding["evidence"])
    assert served is not None, finding
    assert 110 <= int(served[1]) <= 150
    assert "would give out" not in done.out
