"""A run that was cut off and is gone on with, and a worker in the place of one that was lost: real processes, real nginx."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract import document
from programs import DEADLINE_S, Program, alive, codes, held, here, recorded, report, require_done, told, until

from asyncli.lab.nginx import LabNginx
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


def counted(summary: dict[str, Any], awaiting: int = 0) -> None:
    """The law of every run: what was opened is held or lost, and each loss has a cause, and ``awaiting`` have no answer yet."""
    connections = summary["connections"]
    assert connections["opened"] - connections["lost"] == connections["held"]
    assert sum(connections["deaths"].values()) == connections["lost"]
    beats = summary["heartbeats"]
    assert beats["sent"] == beats["answered"] + beats["failed"] + awaiting


def test_a_run_that_was_cut_off_in_its_hold_is_gone_on_with(tmp_path: Path, nginx: LabNginx) -> None:
    # Long enough that it is killed in its hold, however late that is.
    with soak(tmp_path, nginx, "--hold", "12", "--json", "first.json") as program:
        until_held(program, tmp_path, 5)
        program.signal(signal.SIGKILL)
        program.until_gone()
    before, first = kept(tmp_path / "run.db"), read_run(tmp_path / "run.db")
    done = here(tmp_path, "soak", "--resume", "run.db", "--json", "run.json")
    assert (done.status, done.err) == (4, "")
    # Nothing that was committed is gone, and it is the same run.
    after, whole = kept(tmp_path / "run.db"), read_run(tmp_path / "run.db")
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert (whole.id, whole.plan, whole.plan.seed, whole.complete) == (first.id, first.plan, 7, True)
    assert [one.name for one in whole.phases] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert all(b > a for (a, _), (b, _) in zip(whole.ticks, whole.ticks[1:], strict=False))

    (gap,) = whole.gaps
    hold = next(one for one in whole.phases if one.name == "hold")
    # From the last record to the instant at which all were held again; the hold lasts as long as asked for without it.
    assert gap.start_s == pytest.approx(max(first.ticks[-1][0], first.samples[-1].t_s), abs=0.01)
    held_s = (hold.end_s - hold.start_s) - (gap.end_s - gap.start_s)
    # A busy machine ends it seconds late; a second whole hold would last five more.
    assert 11 < held_s < 16
    summary = report(tmp_path, "run.db")
    assert summary["run"]["gaps"] == [{"start_s": gap.start_s, "end_s": gap.end_s}]
    assert summary["connections"]["deaths"] == {"generator_lost": MANY}
    assert (summary["connections"]["held"], summary["connections"]["opened"], summary["connections"]["reopened"]) == (MANY, 2 * MANY, MANY)
    counted(summary)
    # As planned, but for what asyncli was late: the interruption is no part of it.
    late_s = summary["ramp"]["lateness_ms"]["p50"] / 1e3
    assert 0.75 * MANY / (0.6 + late_s) < summary["ramp"]["achieved_per_s"] < 625
    assert summary["run"]["verdict"] == "invalid"
    assert {"resumed", "held_again"} <= codes(summary)
    # What was lost is on every line.
    lines = [line for line in done.log.splitlines() if "  hold      held " in line]
    assert lines
    assert all("lost 300" in line for line in lines)
    # What the server counted between our last record and our end cannot be compared; what both hold can.
    assert summary["reconciliation"]["client_held"] == summary["reconciliation"]["server_active"] == MANY
    assert summary["reconciliation"]["accepts_delta"] is None
    assert codes(summary).isdisjoint({"accepts_differ", "held_differ", "incomplete", "counts_parted"})


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
    with Program(tmp_path, "soak", "--resume", "run.db", name="second") as program:
        program.until(lambda: "resumed" in told(tmp_path), "it is resumed")
        program.signal()
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (4, "")
    whole = read_run(tmp_path / "run.db")
    assert ([one.name for one in whole.phases], whole.complete) == (["baseline", "ramp", "hold"], False)
    assert [one.end_s for one in whole.gaps] == [None]
    with Program(tmp_path, "soak", "--resume", "run.db", name="third") as program:
        program.until(lambda: [one for one in recorded(tmp_path / "run.db").gaps if one.end_s is not None], "it holds on")
        # An hour of it was the interruption.
        program.until(lambda: held(tmp_path) == MANY, "all are held")
        assert " 9 min " in here(tmp_path, "watch", "run.db", "--once").out
        program.signal()
        done = program.wait()
        program.until_gone()
    counted(require_done(tmp_path, done))


def test_a_run_whose_server_is_gone_stays_as_it_is_and_another_server_is_described_anew(
    tmp_path: Path, start_nginx: Callable[..., LabNginx]
) -> None:
    server = start_nginx()
    # It is killed in its hold, however late that is.
    with Program(tmp_path, "soak", server.url, *ASKED, "--hold", "8") as program:
        until_held(program, tmp_path, 1)
        os.kill(program.hosts()[0], signal.SIGKILL)
        done = program.wait()
        program.until_gone()
    assert (done.status, "--resume" in done.out) == (4, True)
    assert report(tmp_path, "run.db")["environment"]["server"]["label"].startswith("nginx")
    os.kill(server.pid, signal.SIGTERM)
    until(lambda: not alive(server.pid), "nginx has ended")
    done = here(tmp_path, "soak", "--resume", "run.db")
    assert (done.status, done.err) == (4, "")
    assert report(tmp_path, "run.db")["run"]["complete"] is False
    command = [sys.executable, "-m", "asyncli", "lab", "builtin", "--port", str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as other:
        other.stdout.readline()
        try:
            done = here(tmp_path, "soak", "--resume", "run.db")
        finally:
            other.terminate()
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert summary["environment"]["server"]["label"] != "nginx"
    assert summary["environment"]["server"]["pid"] not in (None, server.pid)
    (finding,) = (one for one in summary["findings"] if one["code"] == "server_changed")
    assert finding["severity"] == "warning"
    # Nothing of the one is set against the other.
    assert summary["cost"]["server_user"] is None
    assert summary["cost"]["host_total"] is None
    numbers = {name: part for name, part in summary["server"].items() if name != "runtime"}
    assert {name: part["baseline"] for name, part in numbers.items()} == dict.fromkeys(numbers)
    assert summary["server"]["rss_bytes"]["hold_end"] is not None


def test_a_run_that_had_not_come_to_its_hold_begins_anew(tmp_path: Path, nginx: LabNginx) -> None:
    with soak(tmp_path, nginx, "--interval", "100ms", "--hold", "1") as program:
        program.until_phase("ramp")
        program.until(lambda: held(tmp_path) > 0, "some are held")
        program.signal(signal.SIGKILL)
        program.until_gone()
    before = held(tmp_path)
    # A server that was started anew has another pid: that may be said, and nothing else.
    done = here(tmp_path, "soak", "--resume", "run.db", "--server-pid", nginx.pid)
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert summary["connections"]["deaths"] == {"generator_lost": before}
    assert (summary["connections"]["opened"], summary["connections"]["reopened"]) == (MANY + before, 0)
    phases = {one["name"]: one for one in summary["run"]["phases"]}
    (gap,) = summary["run"]["gaps"]
    assert gap["end_s"] <= phases["baseline"]["start_s"] < phases["ramp"]["start_s"] < phases["hold"]["start_s"]
    # By the seconds of those who opened them: asyncli may stand still before it sees that all are open, and then the phase ends later.
    late_s = summary["ramp"]["lateness_ms"]["max"] / 1e3
    after = [tick for t_s, tick in read_run(tmp_path / "run.db").ticks if t_s > gap["end_s"]]
    assert 5.9 < max(tick.second for tick in after if tick.opened) < 6.9 + late_s
    assert phases["ramp"]["end_s"] - phases["ramp"]["start_s"] > 4.9


def test_a_lost_worker_is_replaced_and_its_connections_are_opened_again(tmp_path: Path, nginx: LabNginx) -> None:
    """Those that end again and again are given up."""
    with soak(tmp_path, nginx, "--hold", "10m") as program:
        until_held(program, tmp_path)
        workers = program.workers()
        os.kill(workers[0], signal.SIGKILL)
        program.until(lambda: "worker_lost" in told(tmp_path), "the loss is told")
        seen = len(_full(tmp_path))
        program.until(lambda: len(_full(tmp_path)) > seen + 2, "all are held again")
        assert set(program.workers()) - set(workers)
        assert len(program.workers()) == 2
        going_on = read_run(tmp_path / "run.db")
        killed = {workers[0]}
        # Each of the two, and three in a row that come in its place: on a busy machine some live so long that they count anew.
        while not program.ended:
            for pid in set(program.workers()) - killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        assert len(killed) >= 8
        done = program.wait()
        program.until_gone()
    summary = document(going_on)
    counted(summary, going_on.ticks[-1][1].awaiting)
    connections = summary["connections"]
    assert (connections["held"], connections["opened"], connections["reopened"]) == (MANY, MANY + MANY // 2, MANY // 2)
    assert connections["deaths"] == {"generator_lost": MANY // 2}
    assert {"worker_lost", "worker_replaced"} <= codes(summary)
    # What was opened and not yet told of when it died, at most: nothing here.
    assert summary["reconciliation"]["agrees"] is True
    assert summary["generator"]["processes"] == 3
    assert summary["generator"]["cpu_us_per_heartbeat"] > 0
    assert (done.status, done.err) == (4, "")
    summary = report(tmp_path, "run.db")
    counted(summary)
    assert "generator_failed" in codes(summary)
    assert summary["connections"]["held"] == 0
    assert summary["connections"]["opened"] == summary["connections"]["lost"]


def test_an_event_is_done_once_though_the_run_was_cut_off_in_it(tmp_path: Path, nginx: LabNginx) -> None:
    """Just after it had begun, which its record says before any count of it."""
    event = ("--hold", "14s", "--at", "3s", "stall 20% for 9s", "--fail-if", "connections.deaths.generator_lost > 300")
    with soak(tmp_path, nginx, *event) as program:
        program.until(lambda: getattr(recorded(tmp_path / "run.db"), "events", None), "the stall has begun")
        program.signal(signal.SIGKILL)
        program.until_gone()
    first = read_run(tmp_path / "run.db")
    done = here(tmp_path, "soak", "--resume", "run.db")
    require_done(tmp_path, done)
    whole = read_run(tmp_path / "run.db")
    assert [one.fields["number"] for one in whole.events] == [1]
    before = [tick.events[1].stalled for _, tick in first.ticks if 1 in tick.events]
    assert sum(tick.events[1].stalled for _, tick in whole.ticks if 1 in tick.events) == sum(before)
    [told_of] = report(tmp_path, "run.db")["events"]
    # Before its end, however late the kill was.
    assert 0 <= told_of["interrupted_after_s"] < 9
    if before:
        assert (told_of["stalled"], told_of["lost_with_worker"], told_of["not_back"]) == (60, 60, 0)
    assert "interrupted" in here(tmp_path, "report", "run.db").out


def test_the_metrics_of_a_resumed_run_are_those_of_a_run_that_goes_on(tmp_path: Path, nginx: LabNginx) -> None:
    """Of the soak itself, and of a page that was opened before: they said "over" for the rest of the night."""
    with soak(tmp_path, nginx, "--hold", "600") as program:
        until_held(program, tmp_path)
        program.signal(signal.SIGKILL)
        program.until_gone()
    with Program(tmp_path, "watch", "run.db", "--web", "127.0.0.1:0", name="watch") as watch:
        seen_before = metrics_at(watch)
        watch.until(lambda: over_and_held(seen_before()) == (1, 0), "the killed run is over")
        with Program(tmp_path, "soak", "--resume", "run.db", "--metrics", "127.0.0.1:0", name="second") as program:
            seen_beside = metrics_at(program)
            for seen in (seen_before, seen_beside):
                program.until(lambda seen=seen: over_and_held(seen()) == (0, 1), "it goes on")


def metrics_at(program: Program) -> Callable[[], str]:
    """The metrics of a program that says where it serves them; "" while it has none."""
    address = program.until(lambda: re.search(r"http://127\.0\.0\.1:\d+/", program.out + program.err), "it says where")

    def text() -> str:
        try:
            with urllib.request.urlopen(f"{address[0]}metrics", timeout=DEADLINE_S) as page:
                return page.read().decode()
        except urllib.error.HTTPError:
            return ""

    return text


def over_and_held(page: str) -> tuple[float, float] | None:
    over = re.search(r"^asyncli_run_over (\S+)$", page, re.MULTILINE)
    hold = re.search(r'^asyncli_phase\{.*phase="hold".*\} (\S+)$', page, re.MULTILINE)
    return None if over is None or hold is None else (float(over[1]), float(hold[1]))
