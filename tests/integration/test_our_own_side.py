"""What befalls asyncli's own processes, its run file and its machine in a night: the counts stay exact, and a finding names it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import SHORT, Program, codes, recorded, report, require_whole, serving, told, until
from skew import Skew

from asyncli.lab.nginx import LabNginx

HELD = 400


def soaking(folder: Path, url: str, *arguments: str, out: str = "run.db") -> Program:
    asked = ["-c", str(HELD), *SHORT, "--ramp", "50/10ms", "--workers", "2", "--hold", "1h", "--out", out]
    return Program(folder, "soak", url, *asked, *arguments)


def last_tick(path: Path) -> Any:
    run = recorded(path)
    return run.ticks[-1][1] if run is not None and run.ticks else None


def all_held(path: Path) -> bool:
    return (tick := last_tick(path)) is not None and tick.held == HELD


def reopened(path: Path) -> int:
    run = recorded(path)
    return 0 if run is None else sum(tick.reopened for _, tick in run.ticks)


def fields(summary: dict[str, Any], code: str) -> list[dict[str, Any]]:
    return [one["fields"] for one in summary["findings"] if one["code"] == code]


def exact(summary: dict[str, Any], accepts: int, requests: int) -> bool:
    """As many connections and answers as the server itself counts, none lost, all held."""
    counts, beats = summary["connections"], summary["heartbeats"]
    assert (counts["held"], counts["lost"], counts["opened"]) == (HELD, 0, accepts)
    # A beat that was under way when all was closed is answered by the server and heard by nobody.
    return 0 <= requests - beats["answered"] <= HELD


def test_a_session_or_host_process_that_is_stopped_keeps_nothing_from_the_counts(tmp_path: Path) -> None:
    with serving() as server, soaking(tmp_path, server.url) as program:
        program.until(lambda: all_held(tmp_path / "run.db"), "all are held")
        (host,) = program.hosts()
        for pid, seconds in ((host, 2), (program.pid, 6)):
            os.kill(pid, signal.SIGSTOP)
            before = server.requests
            # Each beats once a second.
            until(lambda before=before, seconds=seconds: server.requests > before + seconds * HELD, "the workers beat on")
            os.kill(pid, signal.SIGCONT)
            stopped = last_tick(tmp_path / "run.db").second
            program.until(lambda stopped=stopped: last_tick(tmp_path / "run.db").second > stopped + 3, "ticks come again")
            assert ("session_stalled" in told(tmp_path)) == (pid == program.pid)
        program.signal()
        done = program.wait()
        summary = report(tmp_path, "run.db")
        assert (done.err, summary["run"]["complete"]) == ("", True)
        require_whole(done.status, summary)
        assert exact(summary, server.accepts, server.requests)
    assert 4 < fields(summary, "session_stalled")[0]["for_s"] < 60
    # No second is missing, though some may have come as one.
    run = recorded(tmp_path / "run.db")
    seconds = [tick.second for _, tick in run.ticks]
    assert seconds == sorted(set(seconds))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on it."""
    stuff = disk / "stuff"
    with stuff.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65536)):
                pass
        except OSError:
            return stuff
    return stuff


def refill(disk: Path) -> None:
    """SQLite keeps room in its WAL that it has once had: until it must ask for more there is none."""
    with (disk / "more").open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    with serving() as server, soaking(tmp_path, server.url, out="disk/run.db") as program:
        program.until(lambda: all_held(small_disk / "run.db"), "all are held")
        stuff = fill(small_disk)
        # Nothing can be written then: it is told on the screen alone.
        program.until(lambda: refill(small_disk) or " cannot be written " in program.err, "the trouble is told")
        before = server.requests
        until(lambda: server.requests > before + 2 * HELD, "some seconds go by")
        stuff.unlink()
        program.until(lambda: "run_file_back" in told(small_disk), "its end is told")
        program.signal()
        done = program.wait()
        summary = report(tmp_path, small_disk / "run.db")
        assert (done.err, summary["run"]["complete"]) == ("", True)
        require_whole(done.status, summary)
        assert exact(summary, server.accepts, server.requests)
    found = codes(summary)
    assert {"run_file_trouble", "run_file_back"} <= found
    assert "records_missing" not in found
    run = recorded(small_disk / "run.db")
    # A second is missing only where asyncli itself stood still for that long.
    for before, tick in itertools.pairwise(tick for _, tick in run.ticks):
        assert 0 <= tick.second - before.second - 1 <= tick.longest_turn_s + 0.1, tick


def test_a_run_file_that_is_taken_away_ends_the_run_and_who_watches_it(tmp_path: Path) -> None:
    with serving() as server, soaking(tmp_path, server.url) as program:
        program.until(lambda: all_held(tmp_path / "run.db"), "all are held")
        with Program(tmp_path, "watch", "run.db", name="watch") as watch:
            watch.until(lambda: f"held {HELD} of {HELD}" in watch.out, "it looks on")
            (tmp_path / "run.db").rename(tmp_path / "night.db")
            watched = watch.wait()
        done = program.wait()
    assert (watched.status, "moved" in watched.err) == (0, True)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert [path.name for path in tmp_path.glob("*.db*")] == ["night.db"]
    summary = report(tmp_path, "night.db")
    assert (summary["connections"]["held"], summary["run"]["complete"]) == (HELD, True)
    assert "run_file_moved" in codes(summary)


@pytest.fixture
def skew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Skew:
    skew = Skew(tmp_path)
    for name, value in skew.environment.items():
        monkeypatch.setenv(name, value)
    return skew


def stepped(folder: Path) -> list[float]:
    """By how much the wall clock was stepped, as far as it is told."""
    run = recorded(folder / "run.db")
    return [] if run is None else [one.fields["by_s"] for one in run.findings if one.code == "clock_stepped"]


@pytest.mark.compiler
def test_a_stepped_wall_clock_moves_nothing_but_what_people_read(tmp_path: Path, skew: Skew) -> None:
    """A hold until a time of day neither: it ends at the instant that was reckoned when it began."""
    end = time.strftime("%H:%M", time.localtime(time.time() + 3600))
    with serving() as server, soaking(tmp_path, server.url, "--hold", f"until {end}") as program:
        program.until(lambda: all_held(tmp_path / "run.db"), "all are held")
        # After the first step it would be over.
        for number, seconds in enumerate((7200, -10800), 1):
            skew.step_wall(seconds)
            program.until(lambda number=number: len(stepped(tmp_path)) == number, "it is told")
            seen = last_tick(tmp_path / "run.db").second
            program.until(lambda seen=seen: last_tick(tmp_path / "run.db").second > seen + 2, "it goes on")
        program.signal()
        done = program.wait()
        summary = report(tmp_path, "run.db")
        assert done.err == ""
        require_whole(done.status, summary)
        assert exact(summary, server.accepts, server.requests)
    assert stepped(tmp_path) == [pytest.approx(7200, abs=1), pytest.approx(-10800, abs=1)]
    # Far less than any step, however busy the machine was.
    assert 0 < summary["run"]["duration_s"] < 600
    assert summary["heartbeats"]["latency_ms"]["max"] < 60_000
    run = recorded(tmp_path / "run.db")
    instants = [t_s for t_s, _ in run.ticks]
    assert instants == sorted(instants)
    assert all(later - earlier < 60 for earlier, later in itertools.pairwise(instants))
    assert (summary["plan"]["hold_until"], summary["run"]["phases"][2]["name"]) == (end, "hold")
    # To the minute before or after, by when in its minute the test began.
    assert 3480 < summary["plan"]["hold_s"] <= 3600
    assert "hold_until" in codes(summary)


@pytest.mark.nginx
@pytest.mark.compiler
def test_what_is_lost_in_a_suspension_is_no_failure_of_the_server(
    tmp_path: Path, start_nginx: Callable[..., LabNginx], monkeypatch: pytest.MonkeyPatch
) -> None:
    nginx = start_nginx(keepalive_timeout_s=2)
    skew = Skew(tmp_path)

    def active() -> int:
        with urllib.request.urlopen(nginx.status_url) as page:
            return int(page.read().split()[2])

    for name, value in skew.environment.items():
        monkeypatch.setenv(name, value)
    program = soaking(tmp_path, nginx.url)
    monkeypatch.undo()
    with program:
        program.until(lambda: all_held(tmp_path / "run.db"), "all are held")
        slept_s = skew.suspend(program.processes, lambda: until(lambda: active() == 1, "nginx has given all of them up"))
        program.until(lambda: "suspended" in told(tmp_path), "it is told")
        # Not before all were lost, which a tick may tell later than the finding is.
        program.until(lambda: all_held(tmp_path / "run.db") and reopened(tmp_path / "run.db") >= HELD, "all are held again")
        program.signal()
        done = program.wait()
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err, summary["run"]["verdict"]) == (4, "", "invalid")
    # On a busy machine a worker may have stood still, but none for as long as that took.
    late = [one["fields"] for one in summary["findings"] if one["code"].startswith("generator_saturated_")]
    assert all(one.get("for_s", one.get("late_s", 0.0)) < slept_s for one in late), late
    # On a busy host some were found closed, and others timed out first.
    assert {one["code"] for one in summary["diagnoses"]} == {"suspended"}
    assert sum(one["count"] for one in summary["diagnoses"]) == HELD
    counts = summary["connections"]
    assert (counts["held"], counts["lost"], counts["reopened"], counts["opened"]) == (HELD, HELD, HELD, 2 * HELD)
    assert next(one["for_s"] for one in fields(summary, "suspended") if "for_s" in one) == pytest.approx(slept_s, abs=0.5)
