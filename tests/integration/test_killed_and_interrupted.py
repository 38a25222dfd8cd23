"""Ends of every kind: kill -9 of any process of ours in any phase, and the signals that a user sends."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import fault_table
import pytest
from programs import SHORT, Program, codes, held, longest_delay_s, recorded, report, require_whole, told, until

from asyncli.lab.child import group_alive
from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx


def soaking(folder: Path, server: LabNginx, phase: str, *arguments: str) -> Program:
    """A soak of 400 by two workers that stays in ``phase`` until something ends it."""
    pace = {
        "baseline": ["--baseline", "10m", "--ramp", "50/10ms", "--hold", "0"],
        "ramp": ["--baseline", "0.2", "--ramp", "1/100ms", "--hold", "0"],
        "hold": ["--baseline", "0.2", "--ramp", "50/10ms", "--hold", "10m"],
        # The server is stopped in the hold: the drain then waits for answers that do not come.
        "drain": ["--baseline", "0.2", "--ramp", "50/10ms", "--hold", "1", "--timeout", "10m"],
    }[phase]
    asked = ["-c", "400", "-k", "2", "--residue", "0.2", "--workers", "2", "--out", "run.db"]
    return Program(folder, "soak", server.url, *asked, *pace, *arguments)


def reach(program: Program, folder: Path, server: LabNginx, phase: str) -> None:
    """Until ``phase`` has come and, after the baseline, a connection is on record."""
    if phase == "drain":
        program.until_phase("hold")
        os.killpg(server.pid, signal.SIGSTOP)
    program.until_phase(phase)
    if phase != "baseline":
        program.until(lambda: held(folder) > 0, "a connection is on record")


def seen(folder: Path) -> int:
    """How many seconds are on record."""
    run = recorded(folder / "run.db")
    return 0 if run is None else len(run.ticks)


@pytest.mark.parametrize(("victim", "phase"), [("host", "baseline"), ("host", "drain"), ("worker", "ramp")])
def test_a_killed_generator_is_never_the_servers_failure(tmp_path: Path, nginx: LabNginx, victim: str, phase: str) -> None:
    with soaking(tmp_path, nginx, phase, "--json", "run.json") as program:
        try:
            reach(program, tmp_path, nginx, phase)
            before = held(tmp_path)
            pids = program.until(program.hosts if victim == "host" else program.workers, f"a {victim} to kill")
            assert len(pids) == (1 if victim == "host" else 2)
            os.kill(pids[0], signal.SIGKILL)
            code = "generator_failed" if victim == "host" else "worker_lost"
            if victim == "worker":
                # The other goes on, until it is told to stop.
                program.until(lambda: code in told(tmp_path), "the loss is told")
                program.signal()
        finally:
            os.killpg(nginx.pid, signal.SIGCONT)
        done = program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    assert code in codes(summary)
    assert done.err == ""
    # A run that has come to its drain cannot be resumed.
    assert ("--resume" in done.out) == (victim == "host" and phase != "drain")
    if phase == "baseline":
        # Nothing has connected yet, and nothing is there that could.
        assert (done.status, summary["run"]["verdict"]) == (3, "untested")
        return
    assert (done.status, summary["run"]["verdict"]) == (4, "invalid")
    lost = summary["connections"]["deaths"]["generator_lost"]
    if victim == "host":
        assert lost >= before
        assert summary["run"]["complete"] is False
    else:
        assert 0 < lost < 400
        assert summary["connections"]["opened"] - lost == summary["connections"]["held"]
        assert summary["run"]["complete"] is True


def test_who_is_away_in_a_storm_goes_with_a_worker_that_is_killed(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["-c", "200", "-k", "4", nginx.url, "--workers", "2", "--ramp", "400/s", "--hold", "12s", "--baseline", "0.5", "--residue", "0.5"]
    with Program(tmp_path, "soak", *asked, "--at", "1s", "storm", "--reconnect", "fixed:5s", "--out", "run.db") as program:
        program.until(lambda: held(tmp_path) == 200, "all are held")
        program.until(lambda: held(tmp_path) == 0, "the storm has ended all")
        os.kill(program.workers()[0], signal.SIGKILL)
        done = program.wait()
    assert done.status == 4
    summary = report(tmp_path, "run.db")
    [event] = summary["events"]
    assert (event["ended"], event["lost_with_worker"], event["not_back"]) == (200, 100, 0)
    # Of the others nothing is known.
    assert 4.0 < event["back"]["p50_s"] < 6.0 + longest_delay_s(recorded(tmp_path / "run.db"))
    assert event["back"]["all_s"] is None
    assert "worker_lost" in codes(summary)


def test_what_stands_still_does_not_outlive_who_started_it(tmp_path: Path, nginx: LabNginx) -> None:
    with soaking(tmp_path, nginx, "hold") as program:
        program.until_phase("hold")
        for pid in (program.workers()[0], *program.hosts()):
            os.kill(pid, signal.SIGSTOP)
        program.signal(signal.SIGKILL)
        program.until_gone()


def test_the_original_usage_holds_until_one_signal_drains_reports_and_passes(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["-c", "100", "-k", "2", nginx.url, "--baseline", "0.2", "--residue", "0.2", "--out", "run.db", "--json", "run.json"]
    with Program(tmp_path, *asked) as program:
        program.until_phase("hold")
        program.signal(signal.SIGTERM)
        done = program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert (done.err, summary["run"]["complete"], summary["plan"]["hold_s"]) == ("", True, None)
    assert [phase["name"] for phase in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]
    # A signal is how a hold without end was meant to end.
    assert "stopped_by_user" not in codes(summary)
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize(("phase", "status", "verdict"), [("baseline", 3, "untested"), ("ramp", 4, "invalid")])
def test_one_signal_before_the_hold_ends_by_the_verdict(
    tmp_path: Path, nginx: LabNginx, phase: str, status: int, verdict: str
) -> None:
    with soaking(tmp_path, nginx, phase, "--status-url", nginx.status_url or "") as program:
        reach(program, tmp_path, nginx, phase)
        program.signal(signal.SIGHUP)
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (status, "")
    summary = report(tmp_path, "run.db")
    assert (summary["run"]["verdict"], summary["run"]["complete"]) == (verdict, True)
    assert summary["connections"]["lost"] == 0
    assert summary["run"]["stopped"] is True
    (stopped,) = (one for one in summary["findings"] if one["code"] == "stopped_by_user")
    assert stopped["fields"]["phase"] == phase
    assert "stopped_early" not in codes(summary)
    assert [one["name"] for one in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert summary["reconciliation"]["agrees"] is not False
    if phase == "baseline":
        assert (summary["connections"]["opened"], summary["reconciliation"]["accepts_delta"]) == (0, 0)


def test_a_signal_in_the_ramp_does_not_pass_though_all_are_open(tmp_path: Path, nginx: LabNginx) -> None:
    asked = ["soak", nginx.url, *SHORT, "-c", "100", "--plateaus", "1", "--plateau-rest", "1m", "--hold", "1", "--out", "run.db", "--quiet"]
    with Program(tmp_path, *asked) as program:
        program.until(lambda: held(tmp_path) == 100, "all are open")
        program.signal(signal.SIGTERM)
        done = program.wait()
    summary = report(tmp_path, "run.db")
    assert (done.status, summary["run"]["verdict"]) == (4, "invalid")
    fault_table.require_as_written("test_a_signal_in_the_ramp_does_not_pass_though_all_are_open", summary)


def test_the_second_signal_stops_at_once(tmp_path: Path, nginx: LabNginx) -> None:
    # The server does not answer, so that after one signal the drain would wait for ten minutes.
    with soaking(tmp_path, nginx, "hold", "--timeout", "10m") as program:
        try:
            reach(program, tmp_path, nginx, "hold")
            os.killpg(nginx.pid, signal.SIGSTOP)
            program.signal()
            program.until_phase("drain")
            program.signal()
            done = program.wait()
            program.until_gone()
        finally:
            os.killpg(nginx.pid, signal.SIGCONT)
    assert done.status == 130
    assert "Traceback" not in done.err
    summary = report(tmp_path, "run.db")
    assert summary["run"]["complete"] is False
    assert done.out.startswith("INCOMPLETE  ")
    assert {"stopped_by_user", "cut_off"} <= codes(summary)
    assert "incomplete" not in codes(summary)


def test_a_killed_demo_takes_its_server_along(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "100", *SHORT, "--hold", "10m", "--out", "run.db") as program:
        program.until_phase("hold")
        found = re.search(r"\(pid (\d+)\)", program.err)
        program.signal(signal.SIGKILL)
        program.until_gone()
        until(lambda: not group_alive(int(found[1])), "the demo's nginx is gone")


def test_a_stopped_worker_is_named_and_what_it_held_no_longer_counts_as_held(tmp_path: Path, nginx: LabNginx) -> None:
    with soaking(tmp_path, nginx, "hold") as program:
        program.until_phase("hold")
        program.until(lambda: held(tmp_path) == 400, "all are on record")
        # First all of them, as when the whole machine stands still: the host process must not judge before it has heard what came meanwhile.
        pids, seconds = [*program.workers(), *program.hosts()], seen(tmp_path)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # Longer than a worker may be silent, and shorter than all of them.
        asked = time.monotonic()
        until(lambda: time.monotonic() > asked + 7, "seven seconds are over")
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        program.until(lambda: seen(tmp_path) > seconds + 3, "it speaks again")
        assert not {"worker_silent", "worker_lost"} & told(tmp_path)
        os.kill(pids[0], signal.SIGSTOP)
        program.until(lambda: "worker_silent" in told(tmp_path), "its silence is told")
        program.until(lambda: held(tmp_path) == 200, "what nobody vouches for is left out")
        # Longer than a generator as a whole may say nothing: its host process does speak.
        seconds = seen(tmp_path)
        program.until(lambda: seen(tmp_path) > seconds + 6, "eleven seconds are over")
        os.kill(pids[0], signal.SIGCONT)
        program.until(lambda: "worker_back" in told(tmp_path), "its return is told")
        program.until(lambda: held(tmp_path) == 400, "all are counted again")
        program.signal()
        done = program.wait()
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err, summary["run"]["verdict"]) == (4, "", "invalid")
    assert {"worker_silent", "worker_back", "generator_saturated_turn"} <= codes(summary)
    assert {one["fields"]["pid"] for one in summary["findings"] if one["code"] == "worker_silent"} == {pids[0]}
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (400, 0)


def test_a_worker_that_stays_stopped_ends_as_invalid_and_is_named(tmp_path: Path, nginx: LabNginx) -> None:
    with soaking(tmp_path, nginx, "hold", "--timeout", "1", "--connect-timeout", "1") as program:
        program.until_phase("hold")
        program.until(lambda: held(tmp_path) == 400, "all are on record")
        pid = program.workers()[0]
        os.kill(pid, signal.SIGSTOP)
        program.signal()
        done = program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err, summary["run"]["verdict"]) == (4, "", "invalid")
    assert f"(pid {pid})" in next(one["evidence"] for one in summary["findings"] if one["code"] == "drain_unfinished")
