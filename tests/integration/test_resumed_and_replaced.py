"""A run that was cut off and is gone on with, and a worker in the place of one that was lost: real processes, real nginx."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import Program, codes, recorded, report, run, until

from asyncli.lab.nginx import LabNginx
from asyncli.run import Run
from asyncli.store.reader import read_run

pytestmark = pytest.mark.nginx
MANY = 300
#: Of every soak here: five batches a hundredth, two workers, and a seed to know it by.
ASKED = ("-c", str(MANY), "-k", "4", "--batch", "5", "--baseline", "0.3", "--residue", "0.2", "--workers", "2", "--seed", "7", "--out", "run.db")


def soak(folder: Path, server: LabNginx, *arguments: str) -> Program:
    return Program(folder, "soak", server.url, *ASKED, "--status-url", server.status_url or "", *arguments)


def kept(path: Path) -> list[tuple[Any, ...]]:
    """Every tick that is on the disk, as it lies there."""
    with sqlite3.connect(path) as database:
        return database.execute("SELECT * FROM ticks ORDER BY rowid").fetchall()


def until_held(program: Program, folder: Path, seconds: int = 2) -> None:
    """Until all are held, for so many ticks."""
    program.until(lambda: len(_full(folder)) >= seconds, "all are held")


def _full(folder: Path) -> list[float]:
    run = recorded(folder / "run.db")
    return [] if run is None else [t_s for t_s, tick in run.ticks if tick.held == MANY]


def counted(summary: dict[str, Any]) -> None:
    """The law of every run: what was opened is held or lost, and each loss has a cause."""
    connections = summary["connections"]
    assert connections["opened"] - connections["lost"] == connections["held"]
    assert sum(connections["deaths"].values()) == connections["lost"]
    beats = summary["heartbeats"]
    assert beats["sent"] == beats["answered"] + beats["failed"]


@pytest.mark.parametrize("victim", ["session", "host"])
def test_a_run_that_was_cut_off_in_its_hold_is_gone_on_with(tmp_path: Path, nginx: LabNginx, victim: str) -> None:
    with soak(tmp_path, nginx, "--hold", "8", "--json", "first.json") as program:
        until_held(program, tmp_path)
        os.kill(program.pid if victim == "session" else program.hosts()[0], signal.SIGKILL)
        done = program.wait()
        program.until_gone()
    assert victim == "session" or (done.status == 4 and "--resume run.db" in done.out)
    before, first = kept(tmp_path / "run.db"), read_run(tmp_path / "run.db")
    done = run(tmp_path, "soak", "--resume", "run.db", "--json", "run.json", name="resumed")
    assert (done.status, done.err) == (4, "")
    # Nothing that was committed is gone, and it is the same run.
    after, whole = kept(tmp_path / "run.db"), read_run(tmp_path / "run.db")
    assert after[: len(before)] == before
    assert len(after) > len(before) + 3
    assert (whole.id, whole.plan, whole.plan.seed, whole.complete) == (first.id, first.plan, 7, True)
    assert [one.name for one in whole.phases] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert all(b > a for (a, _), (b, _) in zip(whole.ticks, whole.ticks[1:], strict=False))

    (gap,) = whole.gaps
    hold = next(one for one in whole.phases if one.name == "hold")
    assert gap.end_s is not None
    assert hold.end_s is not None
    # From the last record to the instant at which all were held again; the hold lasts as long as asked for without it.
    assert gap.start_s == pytest.approx(max(first.ticks[-1][0], first.samples[-1].t_s), abs=0.01)
    assert (hold.end_s - hold.start_s) - (gap.end_s - gap.start_s) == pytest.approx(8, abs=1.0)
    summary = report(tmp_path, "run.db")
    assert summary["run"]["gaps"] == [{"start_s": gap.start_s, "end_s": gap.end_s}]
    assert summary["connections"]["deaths"] == {"generator_lost": MANY}
    assert (summary["connections"]["held"], summary["connections"]["opened"], summary["connections"]["reopened"]) == (MANY, 2 * MANY, MANY)
    counted(summary)
    assert summary["ramp"]["achieved_per_s"] == pytest.approx(500, rel=0.25)
    assert summary["run"]["verdict"] == "invalid"
    (resumed,) = [one for one in summary["findings"] if one["code"] == "resumed"]
    assert ("the generator's host process has ended" in resumed["remedy"]) == (victim != "session")
    # While all are opened again nobody reckons an end, and what was lost is on every line.
    lines = [line for line in done.out.splitlines() if "  hold      held " in line]
    assert "; opens again what it held; lost 300 (generator_lost 300)" in lines[0]
    assert all("lost 300" in line for line in lines)
    held_again = next(one["evidence"] for one in summary["findings"] if one["code"] == "held_again")
    assert re.fullmatch(rf"{MANY} connections are held again: \d+ s interrupted, \d+ (s|ms) to reopen", held_again), held_again
    # What the server counted between our last record and our end cannot be compared; what both hold can.
    assert summary["reconciliation"]["client_held"] == summary["reconciliation"]["server_active"] == MANY
    assert summary["reconciliation"]["accepts_delta"] is None
    assert codes(summary).isdisjoint({"accepts_differ", "held_differ", "incomplete", "counts_parted"})


def test_with_a_limit_on_our_own_losses_it_passes(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--hold", "4", "--fail-if", "connections.deaths.generator_lost > 2k") as program:
        until_held(program, tmp_path)
        program.signal(signal.SIGKILL)
        program.until_gone()
    # Twice, and once within the refilling of the second time: the gaps are apart, and the counts still exact.
    with Program(tmp_path, "soak", "--resume", "run.db", name="second") as program:
        program.until(lambda: len(_gaps(tmp_path)) == 1, "it goes on")
        program.signal(signal.SIGKILL)
        program.until_gone()
    done = run(tmp_path, "soak", "--resume", "run.db", "--quiet", name="third")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("passed: 300 of 300")
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert MANY <= summary["connections"]["deaths"]["generator_lost"] <= 2 * MANY
    assert len(summary["run"]["gaps"]) in (1, 2)


def an_hour_ago(path: Path) -> None:
    """As if the run had begun an hour earlier, and most of that had been its interruption."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = value - 3600 WHERE key = 'started_wall_s'")


def test_a_run_that_is_stopped_before_all_are_held_again_can_be_resumed_once_more(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--interval", "100ms", "--hold", "10m", "--fail-if", "connections.deaths.generator_lost > 2k") as program:
        until_held(program, tmp_path)
        program.signal(signal.SIGKILL)
        program.until_gone()
    an_hour_ago(tmp_path / "run.db")
    for times, name in enumerate(("first", "second"), 1):
        with Program(tmp_path, "soak", "--resume", "run.db", name=name) as program:
            program.until(lambda times=times: _resumed(tmp_path) == times, "it is resumed")
            line = run(tmp_path, "watch", "run.db", "--once").out
            assert re.search(r"; 9 min 5\d s left;", line), line
            program.signal()
            done = program.wait()
            program.until_gone()
        assert (done.status, done.err) == (4, "")
        assert "--resume run.db" in done.out
        whole = read_run(tmp_path / "run.db")
        assert ([one.name for one in whole.phases], whole.complete) == (["baseline", "ramp", "hold"], False)
        assert [one.end_s for one in whole.gaps] == [None]
    with Program(tmp_path, "soak", "--resume", "run.db", name="third") as program:
        program.until(lambda: [one for one in _gaps(tmp_path) if one.end_s is not None], "it holds on")
        line = program.until(lambda: _held_line(tmp_path), "watch shows all of them")
        assert re.search(r"; 9 min 5\d s left;", line), line
        program.signal()
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (0, "")
    summary = report(tmp_path, "run.db")
    counted(summary)
    # What had ended it before is over, and of the hold counts what was measured.
    (why,) = [one["evidence"] for one in summary["findings"] if one["code"] == "verdict_passed"]
    assert re.search(r"; stopped by the user \(Ctrl-C or a signal\) \d(\.\d+)? s into the hold of 10 min$", why)


def test_a_hold_by_the_wall_clock_ends_at_its_instant_though_that_clock_was_stepped_before_the_interruption(
    tmp_path: Path, nginx: LabNginx
) -> None:
    end_s = time.time() + 3600
    end = time.strftime("%H:%M:%S", time.localtime(end_s))
    with soak(tmp_path, nginx, "--hold", f"until {end}") as program:
        until_held(program, tmp_path, 1)
        program.signal(signal.SIGKILL)
        program.until_gone()
    # What an hour's step of the clock in the ramp comes to.
    an_hour_ago(tmp_path / "run.db")
    with Program(tmp_path, "soak", "--resume", "run.db", name="resumed") as program:
        line = program.until(lambda: re.search(r"^.*  hold  .*$", program.out, re.MULTILINE), "it goes on")
        assert re.search(r"(59 min( \d+ s)?|1 h) left \(until", line[0]), line[0]
        program.until(lambda: [one for one in _gaps(tmp_path) if one.end_s is not None], "it holds on")
        program.signal()
        assert program.wait().status == 4


def _resumed(folder: Path) -> int:
    found = recorded(folder / "run.db")
    return 0 if found is None else sum(one.code == "resumed" for one in found.findings)


def _held_line(folder: Path) -> str:
    line = run(folder, "watch", "run.db", "--once", name="look").out
    return line if f"held {MANY} of {MANY}" in line else ""


def test_a_run_whose_server_is_gone_stays_as_it_is(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    server = start_nginx()
    with Program(tmp_path, "soak", server.url, *ASKED, "--hold", "10m") as program:
        until_held(program, tmp_path, 1)
        program.signal(signal.SIGKILL)
        program.until_gone()
    _end(server)
    for name in ("first", "second"):
        done = run(tmp_path, "soak", "--resume", "run.db", name=name)
        assert (done.status, done.err) == (4, "")
        said = " ".join(done.out.split())
        assert "error no connection was reopened: " in said
        assert "remedy: start the server, then continue the run with 'asyncli soak --resume run.db'" in said
        assert report(tmp_path, "run.db")["run"]["complete"] is False


def test_another_server_at_the_resume_is_described_anew(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    server = start_nginx()
    with Program(tmp_path, "soak", server.url, *ASKED, "--hold", "6") as program:
        until_held(program, tmp_path)
        program.signal(signal.SIGKILL)
        program.until_gone()
    assert report(tmp_path, "run.db")["environment"]["server"]["label"].startswith("nginx")
    _end(server)
    command = [sys.executable, "-m", "asyncli", "lab", "builtin", "--port", str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            done = run(tmp_path, "soak", "--resume", "run.db", name="resumed")
        finally:
            other.terminate()
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert summary["environment"]["server"]["label"] != "nginx"
    assert summary["environment"]["server"]["pid"] not in (None, server.pid)
    (finding,) = (one for one in summary["findings"] if one["code"] == "server_changed")
    assert finding["severity"] == "warning"
    assert "executable " in finding["evidence"]
    assert "/nginx" in finding["evidence"]
    # Nothing of the one is set against the other.
    assert summary["cost"]["server_user"] is None
    assert summary["cost"]["host_total"] is None
    assert {name: one["baseline"] for name, one in summary["server"].items()} == dict.fromkeys(summary["server"])
    assert summary["server"]["rss_bytes"]["hold_end"] is not None


def test_a_server_that_was_restarted_meanwhile_is_the_same(tmp_path: Path, start_nginx: Callable[..., LabNginx]) -> None:
    server = start_nginx()
    with Program(tmp_path, "soak", server.url, *ASKED, "--hold", "6") as program:
        until_held(program, tmp_path)
        program.signal(signal.SIGKILL)
        program.until_gone()
    before = report(tmp_path, "run.db")["environment"]["server"]
    command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode().replace("nginx: master process ", "").rstrip("\0").split()
    _end(server)
    with subprocess.Popen(command) as again:
        try:
            done = run(tmp_path, "soak", "--resume", "run.db", name="resumed")
        finally:
            again.terminate()
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    after = summary["environment"]["server"]
    assert "server_changed" not in codes(summary)
    assert after["pid"] not in (None, before["pid"])
    assert {**after, "pid": None} == {**before, "pid": None}


def _end(server: LabNginx) -> None:
    os.kill(server.pid, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{server.pid}").exists() or _is_zombie(server.pid), "nginx has ended")


def _is_zombie(pid: int) -> bool:
    return " Z " in Path(f"/proc/{pid}/stat").read_text()


def _gaps(folder: Path) -> list[Any]:
    found = recorded(folder / "run.db")
    return [] if found is None else found.gaps


def test_a_run_that_had_not_come_to_its_hold_begins_anew(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--interval", "100ms", "--hold", "1") as program:
        program.until_phase("ramp")
        program.until(lambda: (_last_held(tmp_path)) > 0, "some are held")
        program.signal(signal.SIGKILL)
        program.until_gone()
    held = _last_held(tmp_path)
    # A server that was started anew has another pid: that may be said, and nothing else.
    done = run(tmp_path, "soak", "--resume", "run.db", "--server-pid", str(nginx.pid), name="resumed")
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert summary["connections"]["deaths"] == {"generator_lost": held}
    assert (summary["connections"]["opened"], summary["connections"]["reopened"]) == (MANY + held, 0)
    phases = {one["name"]: one for one in summary["run"]["phases"]}
    (gap,) = summary["run"]["gaps"]
    assert gap["end_s"] <= phases["baseline"]["start_s"] < phases["ramp"]["start_s"] < phases["hold"]["start_s"]
    assert phases["ramp"]["end_s"] - phases["ramp"]["start_s"] == pytest.approx(5.9, abs=1)


def _last_held(folder: Path) -> int:
    found: Run | None = recorded(folder / "run.db")
    return found.ticks[-1][1].held if found is not None and found.ticks else 0


def test_what_cannot_be_resumed_says_so_in_one_line(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--hold", "10m") as program:
        until_held(program, tmp_path, 1)
        refused = run(tmp_path, "soak", "--resume", "run.db", name="other")
        assert refused.status == 2
        assert refused.err == "asyncli: run.db: its run goes on, another process writes it; 'asyncli watch run.db' looks on\n"
        program.signal()
        assert program.wait().status == 0
    before = (tmp_path / "run.db").read_bytes()
    done = run(tmp_path, "--resume", "run.db", name="short")
    assert (done.status, done.out) == (2, "")
    assert "it was stopped by the user" in done.err
    assert (tmp_path / "run.db").read_bytes() == before


def test_a_lost_worker_is_replaced_and_its_connections_are_opened_again(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--hold", "10m") as program:
        until_held(program, tmp_path)
        workers = program.workers()
        os.kill(workers[0], signal.SIGKILL)
        program.until(lambda: f"(pid {workers[0]}) of the generator was killed by SIGKILL" in program.out, "the loss is told")
        seen = len(_full(tmp_path))
        program.until(lambda: len(_full(tmp_path)) > seen + 2, "all are held again")
        assert set(program.workers()) - set(workers)
        assert len(program.workers()) == 2
        program.signal()
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (4, "")
    summary = report(tmp_path, "run.db")
    counted(summary)
    connections = summary["connections"]
    assert (connections["held"], connections["opened"], connections["reopened"]) == (MANY, MANY + MANY // 2, MANY // 2)
    assert connections["deaths"] == {"generator_lost": MANY // 2}
    assert {"worker_lost", "worker_replaced"} <= codes(summary)
    # What was opened and not yet told of when it died, at most: nothing here.
    assert summary["reconciliation"]["agrees"] is True
    assert summary["generator"]["processes"] == 3
    assert summary["generator"]["cpu_us_per_heartbeat"] > 0


def test_workers_that_end_again_and_again_are_given_up(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--hold", "10m") as program:
        until_held(program, tmp_path, 1)
        killed: set[int] = set()
        # Each of the two, and three that come in its place.
        while len(killed) < 8:
            for pid in program.until(lambda: set(program.workers()) - killed, "there are others"):
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (4, "")
    summary = report(tmp_path, "run.db")
    assert "generator_failed" in codes(summary)
    assert summary["connections"]["held"] == 0
    assert summary["connections"]["opened"] == summary["connections"]["lost"]
