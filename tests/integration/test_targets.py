"""Targets without an nginx: those that nobody answers for, those that count, and names with several addresses."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fault_table import require_said
from programs import SHORT, Done, Program, codes, here, report, require_done, require_whole, serving

import asyncli
from asyncli.app.incoming import SILENT_TURNS, Incoming
from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.core.adding import added_up
from asyncli.engine import resolve
from asyncli.engine.shard import Failed, Ticked
from asyncli.engine.spread import Destination
from asyncli.model.exit_status import exit_status
from asyncli.model.records import EventCounts, Tick
from asyncli.store.reader import read_run


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses, and that nobody else can get meanwhile but a server that is told it."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def silent_port(address: str, port: int) -> Iterator[None]:
    """Its listen queue is full and never emptied: the kernel drops every further SYN."""
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
            yield
        finally:
            for client in waiting:
                client.close()


def test_a_slow_ramp_to_a_target_that_refuses_is_given_up_at_its_first_refusals(tmp_path: Path) -> None:
    pace = ("-c", "1000", "--batch", "1", "--interval", "500ms", "--force", "--hold", "1h", "--out", "run.db", "--json", "run.json")
    with closed_port() as port:
        done = here(tmp_path, "soak", f"http://127.0.0.1:{port}/", *SHORT, *pace)
    assert (done.status, done.err) == (3, "")
    summary = report(tmp_path, "run.db")
    assert json.loads((tmp_path / "run.json").read_text()) == summary
    assert (summary["run"]["verdict"], summary["run"]["complete"]) == ("untested", True)
    connections = summary["connections"]
    assert (connections["opened"], connections["held"], connections["lost"]) == (0, 0, 0)
    assert connections["failures"] == {"refused": connections["failed"]}
    assert 0 < connections["failed"] < 50
    assert "failed_refused" in codes(summary)
    # It shows no hold that never was.
    assert [one["name"] for one in summary["run"]["phases"]] == ["baseline", "ramp", "drain", "residue"]


def test_nothing_connected_is_told_only_where_each_address_was_tried(tmp_path: Path) -> None:
    plan = asyncli.Plan(urls=("http://127.0.0.1:1/", "http://127.0.0.1:2/"), connections=1000, batch=1, interval_s=2.0)
    progress = Progress(plan, tmp_path / "run.db")
    two = tuple(Destination(socket.AF_INET, "127.0.0.1", 1 + place, place) for place in (0, 1))
    incoming = Incoming(progress, Recorder([], progress), two, resume="", on_host_finding=lambda: None, on_sample=lambda _: None)
    incoming.handle(Ticked(Tick(failures={"refused": 4})))
    # The first gave all of them: the second is tried after 2 s, and may take its time.
    for second, connecting, nobody in ((1, 0, False), (2, 1, False), (2, 0, True)):
        incoming.handle(Ticked(Tick(second=second, connecting=connecting)))
        assert incoming.nothing_connected is nobody


def test_a_long_baseline_is_no_silence_of_the_generator(tmp_path: Path) -> None:
    """Its processes report from the first connect on: 10 s of baseline ended each run at its ramp."""
    progress = Progress(asyncli.Plan(urls=("http://127.0.0.1:1/",), connections=1), tmp_path / "run.db")
    recorder = Recorder([], progress)
    incoming = Incoming(
        progress, recorder, (), resume="", on_host_finding=lambda: None, on_sample=lambda _: None
    )
    for _ in range(1000):
        incoming.check_silence()
    progress.t0_s = 1.0
    for _ in range(SILENT_TURNS):
        incoming.check_silence()
    assert not progress.failed
    incoming.check_silence()
    assert progress.failed


@pytest.mark.parametrize("held", [6, 0])
def test_who_was_away_as_the_generator_ended_went_with_it(tmp_path: Path, held: int) -> None:
    """It was not their turn, and nothing tells when it would have been."""
    progress = Progress(asyncli.Plan(urls=("http://127.0.0.1:1/",), connections=10), tmp_path / "run.db")
    shown: list[Tick] = []
    observer: Any = Mock(tick=lambda _, tick: shown.append(tick))
    incoming = Incoming(progress, Recorder([observer], progress), (), resume="", on_host_finding=lambda: None, on_sample=lambda _: None)
    vanished = EventCounts(ended=10 - held)
    incoming.handle(Ticked(Tick(second=3, held=held, events={1: vanished})))
    back = EventCounts()
    back.back_ms.add(100)
    incoming.handle(Ticked(Tick(second=4, held=held, events={1: back})))
    incoming.handle(Failed("it was killed"))
    whole = added_up(*shown)
    assert (whole.events[1].lost_with_worker, whole.events[1].away) == (9 - held, 0)
    assert whole.lost == held


def test_nothing_listens_is_said_at_once_and_nothing_is_sent(tmp_path: Path) -> None:
    with closed_port() as port:
        asked = ["--hold", "1h", "--baseline", "1h", "--out", "run.db", "--json", "run.json"]
        done = here(tmp_path, "soak", f"http://127.0.0.1:{port}/", *asked)
    assert (done.status, done.err) == (3, "")
    summary = report(tmp_path, "run.db")
    assert json.loads((tmp_path / "run.json").read_text()) == summary
    assert (summary["run"]["verdict"], summary["run"]["complete"], summary["run"]["phases"]) == ("untested", True, [])
    assert summary["connections"]["failed"] == summary["connections"]["opened"] == 0
    assert "nothing_listens" in codes(summary)


def require_passed(folder: Path, command: str, done: Done) -> None:
    """Require that a soak or a bench with run.json passed, or that asyncli was late."""
    summary = json.loads((folder / "run.json").read_text())
    if command == "soak":
        require_whole(done.status, summary)
        return
    errors = {one["code"] for one in summary["findings"] if one["severity"] == "error"}
    late = any(code == "host_busy" or code.startswith("generator_saturated_") for code in errors)
    assert (done.status, summary["requests"]["failed"]) == (4 if late else 0, 0), summary["findings"]


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_a_name_that_no_name_server_knows_is_where_the_plan_says(tmp_path: Path, command: str) -> None:
    more = ("--hold", "0.5", *SHORT, "--out", "run.db") if command == "soak" else ("-n", "20")
    with serving() as server:
        place = f"127.0.0.1:{server.port}"
        told = ["--resolve", f"shop.test:{server.port}:127.0.0.1", f"http://{place}/"]
        done = here(tmp_path, command, f"http://shop.test:{server.port}/", *told, "-c", "4", *more, "--json", "run.json")
        require_passed(tmp_path, command, done)
        if command == "soak":
            assert read_run(tmp_path / "run.db").environment["destinations"] == [place, place]


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_a_server_that_starts_later_is_waited_for(tmp_path: Path, command: str) -> None:
    more = ("--hold", "0.5", *SHORT, "--out", "run.db") if command == "soak" else ("-n", "100")
    asked = ("-c", "5", "--wait-for-server", "1h", "--json", "run.json", *more)
    # Its port is kept for the server: another test's client could be given it.
    with closed_port() as port, Program(tmp_path, command, f"http://127.0.0.1:{port}/", *asked) as program:
        program.until(lambda: "nothing listens on" in program.err, "it says that it waits")
        with serving(port=port):
            require_passed(tmp_path, command, program.wait())


def test_the_waiting_for_a_server_ends_with_a_signal_or_its_time(tmp_path: Path) -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        with Program(tmp_path, "soak", url, "--wait-for-server", "1h", "--out", "run.db") as program:
            program.until(lambda: "nothing listens on" in program.err, "it says that it waits")
            program.signal(signal.SIGINT)
            assert program.wait().status == 130
        assert not (tmp_path / "run.db").exists()
        for what in (("soak", "--out", "run.db"), ("bench",)):
            assert here(tmp_path, *what, url, "--wait-for-server", "0.3s").status == 3
    # A server on another host cannot be waited for.
    assert here(tmp_path, "soak", "http://192.0.2.1/", "--wait-for-server", "3", "--out", "other.db").status == 2
    assert here(tmp_path, "bench", url, "--wait-for-server", "soon").status == 2


def test_nothing_is_sent_to_the_target_that_is_not_counted(tmp_path: Path) -> None:
    with serving() as server:
        check = here(tmp_path, "check", server.url, "-c", "200")
        assert (check.status, check.err) == (0, "")
        assert (server.accepts, server.requests) == (0, 0)
        asked = ["-c", "200", "--workers", "3", "--hold", "1.5", "--out", "run.db", "--quiet"]
        done = here(tmp_path, "soak", server.url, *SHORT, *asked)
        summary = require_done(tmp_path, done)
        assert server.accepts == summary["connections"]["opened"] == 200
        assert server.requests == summary["heartbeats"]["sent"] == summary["heartbeats"]["answered"] > 200


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


async def test_of_a_name_the_address_that_refuses_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _has_ipv6():
        pytest.skip("no ::1 on this host")
    # A host's own files decide what `localhost` is; here it is both, and ::1 refuses.
    both = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(resolve, "_addresses", lambda target: both)
    with serving() as server:
        plan = asyncli.Plan(
            urls=(f"http://localhost:{server.port}/",), connections=100, workers=2, hold_s=3.0, keepalive_s=2.0, baseline_s=0.2, residue_s=0.2
        )
        run_file = await asyncli.soak(plan, tmp_path / "run.db")
        recording = read_run(run_file)
        assert recording.ticks[-1][1].held_at_drain == server.accepts == 100
    assert [finding.code for finding in recording.findings].count("address_dropped") == 1
    summary = report(tmp_path, run_file)
    require_whole(exit_status(summary["run"]["verdict"]), summary)
    assert summary["connections"]["lost"] == 0
    assert (summary["connections"]["failed"], summary["connections"]["failures"]) == (0, {})


async def test_of_a_name_the_address_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(resolve, "_addresses", lambda target: both)
    with serving() as server, silent_port("127.0.0.2", server.port):
        plan = asyncli.Plan(
            urls=(f"http://localhost:{server.port}/",), connections=100, hold_s=2.0, keepalive_s=2.0, baseline_s=0.2,
            residue_s=0.2, connect_timeout_s=0.7,
        )  # fmt: skip
        run_file = await asyncli.soak(plan, tmp_path / "run.db")
        assert server.accepts == 100
    summary = report(tmp_path, run_file)
    require_whole(exit_status(summary["run"]["verdict"]), summary)
    assert summary["connections"]["held"] == 100
    assert (summary["connections"]["failed"], summary["connections"]["lost"]) == (0, 0)
    require_said(
        ["127.0.0.2:80 accepted no connect, while another address of its name did; attempts continued there and count once"],
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
