"""Ends of every kind: kill -9 of any process of ours in any phase, and the signals that a user sends."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from programs import SHORT, Program, codes, recorded, report, run, serving, told, until

from asyncli.lab.nginx import LabNginx

pytestmark = pytest.mark.nginx
PHASES = ["baseline", "ramp", "hold", "drain"]


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
        program.until(lambda: _held(folder) > 0, "a connection is on record")


def _held(folder: Path) -> int:
    run = recorded(folder / "run.db")
    return run.ticks[-1][1].held if run is not None and run.ticks else 0


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_session_leaves_no_process_and_a_whole_file(tmp_path: Path, nginx: LabNginx, phase: str) -> None:
    with soaking(tmp_path, nginx, phase) as program:
        try:
            reach(program, tmp_path, nginx, phase)
            seen = recorded(tmp_path / "run.db")
            program.signal(signal.SIGKILL)
            program.until_gone()
        finally:
            os.killpg(nginx.pid, signal.SIGCONT)
    assert seen is not None
    summary = report(tmp_path, "run.db")
    assert summary["run"]["complete"] is False
    assert summary["run"]["verdict"] == ("untested" if phase == "baseline" else "invalid")
    assert "incomplete" in codes(summary)
    # What was on record before the kill is on record after it.
    assert summary["connections"]["opened"] >= sum(tick.opened for _, tick in seen.ticks)
    text = run(tmp_path, "report", "run.db", name="text")
    assert (text.status, text.err) == (0, "")
    assert text.out.startswith("INCOMPLETE  ")
    assert text.out.endswith("\nNo process writes it: it was killed, or came to no end.\n")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["host", "worker"])
def test_a_killed_generator_is_never_the_servers_failure(tmp_path: Path, nginx: LabNginx, phase: str, victim: str) -> None:
    with soaking(tmp_path, nginx, phase, "--json", "run.json") as program:
        try:
            reach(program, tmp_path, nginx, phase)
            held = _held(tmp_path)
            pids = program.until(program.hosts if victim == "host" else program.workers, f"a {victim} to kill")
            assert len(pids) == (1 if victim == "host" else 2)
            os.kill(pids[0], signal.SIGKILL)
            code = "generator_failed" if victim == "host" else "worker_lost"
            if victim == "worker":
                # The other goes on, until it is told to stop.
                program.until(
                    lambda: f"(pid {pids[0]}) of the generator was killed by SIGKILL" in program.out, "the loss is told"
                )
                program.signal()
        finally:
            os.killpg(nginx.pid, signal.SIGCONT)
        done = program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    assert code in codes(summary)
    assert done.err == ""
    # A run that has come to its drain cannot be resumed.
    assert ("soak --resume run.db'" in done.out) == (victim == "host" and phase != "drain")
    if phase == "baseline":
        # Nothing has connected yet, and nothing is there that could.
        assert (done.status, summary["run"]["verdict"]) == (3, "untested")
        return
    assert (done.status, summary["run"]["verdict"]) == (4, "invalid")
    lost = summary["connections"]["deaths"]["generator_lost"]
    if victim == "host":
        assert lost >= held
        assert summary["run"]["complete"] is False
    else:
        # What was counted when the drain began is held, and may be lost to it no more.
        assert 0 < lost < 400 or (phase == "drain" and not lost)
        assert summary["connections"]["opened"] - lost == summary["connections"]["held"]
        assert summary["run"]["complete"] is True


@pytest.mark.parametrize(("stopped", "killed"), [("host", "session"), ("worker", "host")])
def test_what_stands_still_does_not_outlive_who_started_it(tmp_path: Path, nginx: LabNginx, stopped: str, killed: str) -> None:
    with soaking(tmp_path, nginx, "hold") as program:
        program.until_phase("hold")
        (host,) = program.hosts()
        os.kill(host if stopped == "host" else program.workers()[0], signal.SIGSTOP)
        os.kill(host if killed == "host" else program.pid, signal.SIGKILL)
        program.until_gone()


def test_what_a_silent_worker_held_is_lost_with_its_host(tmp_path: Path, nginx: LabNginx) -> None:
    with soaking(tmp_path, nginx, "hold") as program:
        program.until(lambda: _held(tmp_path) == 400, "all are on record")
        os.kill(program.workers()[0], signal.SIGSTOP)
        program.until(lambda: _held(tmp_path) == 200, "it is silent, and its own count no more")
        os.kill(program.hosts()[0], signal.SIGKILL)
        program.until_gone()
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (0, {"generator_lost": 400})
    beats = summary["heartbeats"]
    assert beats["sent"] == beats["answered"] + beats["failed"]


def test_a_worker_that_is_lost_before_it_opened_anything_costs_nothing(tmp_path: Path) -> None:
    asked = ["-c", "100", "-k", "2", "--baseline", "2", "--residue", "0.2", "--workers", "2", "--hold", "1", "--out", "run.db"]
    with serving() as server, Program(tmp_path, "soak", server.url, *asked) as program:
        program.until_phase("baseline")
        os.kill(program.until(program.workers, "a worker to kill")[0], signal.SIGKILL)
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (0, "")
    summary = report(tmp_path, "run.db")
    assert (summary["connections"]["held"], summary["connections"]["deaths"]) == (100, {})
    (replaced,) = (one["evidence"] for one in summary["findings"] if one["code"] == "worker_replaced")
    assert "again" not in replaced


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_in_the_hold_drains_reports_and_passes(tmp_path: Path, nginx: LabNginx, number: int) -> None:
    # The original usage: hold until stopped.
    asked = ["-c", "100", "-k", "2", nginx.url, "--baseline", "0.2", "--residue", "0.2", "--out", "run.db", "--json", "run.json"]
    with Program(tmp_path, *asked) as program:
        program.until_phase("hold")
        program.signal(number)
        done = program.wait()
        program.until_gone()
    assert (done.status, done.err) == (0, "")
    summary = report(tmp_path, "run.db")
    assert (summary["run"]["complete"], summary["plan"]["hold_s"]) == (True, None)
    assert [phase["name"] for phase in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert "\nPASSED  100 of 100" in done.out
    # Ctrl-C is how a hold without end was meant to end.
    assert "stopped_by_user" not in codes(summary)
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize(("phase", "status", "verdict"), [("baseline", 3, "untested"), ("ramp", 99, "failed")])
def test_one_signal_before_the_hold_ends_by_the_verdict(
    tmp_path: Path, nginx: LabNginx, phase: str, status: int, verdict: str
) -> None:
    with soaking(tmp_path, nginx, phase, "--status-url", nginx.status_url) as program:
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
    assert re.fullmatch(rf"stopped by the user \(Ctrl-C or a signal\) [\d.]+ m?s into the {phase} of .*", stopped["evidence"])
    assert stopped["evidence"] in " ".join(done.out.split()).partition("One more")[0].partition("What one more")[0]
    assert "stopped_early" not in codes(summary)
    assert [one["name"] for one in summary["run"]["phases"]] == ["baseline", "ramp", "hold", "drain", "residue"]
    assert summary["reconciliation"]["agrees"] is not False
    if phase == "baseline":
        assert (summary["connections"]["opened"], summary["reconciliation"]["accepts_delta"]) == (0, 0)


@pytest.mark.parametrize("phase", ["baseline", "hold"])
def test_the_second_signal_stops_at_once(tmp_path: Path, nginx: LabNginx, phase: str) -> None:
    # The server does not answer, so that after one signal the drain would wait for ten minutes.
    with soaking(tmp_path, nginx, phase, "--timeout", "10m") as program:
        try:
            reach(program, tmp_path, nginx, phase)
            if phase == "baseline":
                # A baseline ends at the first signal; both must have come by then.
                program.signal(signal.SIGTERM)
                program.signal(signal.SIGINT)
            else:
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
    assert re.search(r"^INCOMPLETE  .*ended at once \(a second Ctrl-C or signal", done.out, re.MULTILINE)
    assert {"stopped_by_user", "cut_off"} <= codes(summary)
    assert "incomplete" not in codes(summary)


def labs(owner: int) -> list[int]:
    """Its children that are told their configuration. nginx overwrites what it was started with, so no mark of ours is found in it."""
    try:
        children = [int(pid) for pid in Path(f"/proc/{owner}/task/{owner}/children").read_text().split()]
        told = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in children]
    except OSError:
        return []
    return [pid for pid, line in zip(children, told, strict=True) if b"nginx" in line and b" -c " in line]


def test_a_signal_while_the_lab_starts_leaves_nothing(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with Program(tmp_path, "demo", "-c", "100", *SHORT, "--hold", "10m", "--out", "run.db") as program:
            # Its nginx is there, and not yet said to be. Not the one that only tells its version: nobody hears a signal then, and
            # a SIGTERM ends the program as it ends any.
            group = program.until(lambda: labs(program.pid), "a lab")[0]
            program.signal(number)
            done = program.wait()
            program.until_gone()
            assert not _living(group)
        assert done.status in (130, 3, 0)  # it may be quicker than we, and the soak have begun: 3, or 0 in its hold
        assert "Traceback" not in done.err
        (tmp_path / "run.db").unlink(missing_ok=True)


def test_a_killed_demo_takes_its_server_along(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "100", *SHORT, "--hold", "10m", "--out", "run.db") as program:
        program.until_phase("hold")
        found = re.search(r"\(pid (\d+)\)", program.out)
        assert found is not None
        program.signal(signal.SIGKILL)
        program.until_gone()
        until(lambda: not _living(int(found[1])), "the demo's nginx is gone")


def _living(group: int) -> bool:
    from asyncli.lab.child import group_alive

    return group_alive(group)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_is_named_and_what_it_held_no_longer_counts_as_held(tmp_path: Path, nginx: LabNginx, workers: int) -> None:
    with soaking(tmp_path, nginx, "hold", "--workers", str(workers)) as program:
        program.until_phase("hold")
        program.until(lambda: _held(tmp_path) == 400, "all are on record")
        pid = program.workers()[0]
        os.kill(pid, signal.SIGSTOP)
        program.until(lambda: "worker_silent" in told(tmp_path), "its silence is told")
        program.until(lambda: _held(tmp_path) == 400 - 400 // workers, "what nobody vouches for is left out")
        # Longer than a generator as a whole may say nothing: its host process does speak.
        silent = time.monotonic()
        until(lambda: time.monotonic() > silent + 6, "eleven seconds are over")
        os.kill(pid, signal.SIGCONT)
        program.until(lambda: "worker_back" in told(tmp_path), "its return is told")
        program.until(lambda: _held(tmp_path) == 400, "all are counted again")
        program.signal()
        done = program.wait()
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err, summary["run"]["verdict"]) == (4, "", "invalid")
    assert {"worker_silent", "worker_back", "generator_saturated_turn"} <= codes(summary)
    assert {one["fields"]["pid"] for one in summary["findings"] if one["code"] == "worker_silent"} == {pid}
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (400, 0)


def test_a_worker_that_stays_stopped_ends_as_invalid_and_is_named(tmp_path: Path, nginx: LabNginx) -> None:
    with soaking(tmp_path, nginx, "hold", "--timeout", "1", "--connect-timeout", "1") as program:
        program.until_phase("hold")
        program.until(lambda: _held(tmp_path) == 400, "all are on record")
        pid = program.workers()[0]
        os.kill(pid, signal.SIGSTOP)
        program.signal()
        done = program.wait()
        program.until_gone()
    summary = report(tmp_path, "run.db")
    assert (done.status, done.err, summary["run"]["verdict"]) == (4, "", "invalid")
    evidence = {finding["code"]: finding["evidence"] for finding in summary["findings"]}
    assert f"(pid {pid}) is silent" in evidence["drain_unfinished"]


def test_a_whole_generator_that_is_stopped_blames_no_worker(tmp_path: Path, nginx: LabNginx) -> None:
    """As when the whole machine stands still: the host process must not judge before it has heard what came meanwhile."""
    with soaking(tmp_path, nginx, "hold") as program:
        program.until_phase("hold")
        program.until(lambda: _held(tmp_path) == 400, "all are on record")
        pids = [*program.workers(), *program.hosts()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        seconds = len(recorded(tmp_path / "run.db").ticks)  # type: ignore[union-attr]
        # Longer than a worker may be silent, and shorter than all of them.
        asked = time.monotonic()
        until(lambda: time.monotonic() > asked + 7, "seven seconds are over")
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        program.until(lambda: len(recorded(tmp_path / "run.db").ticks) > seconds + 3, "it speaks again")  # type: ignore[union-attr]
        program.signal()
        done = program.wait()
    assert (done.status, done.err) == (4, "")
    summary = report(tmp_path, "run.db")
    assert "generator_saturated_turn" in codes(summary)
    assert not {"worker_silent", "worker_lost"} & codes(summary)
    assert (summary["connections"]["held"], summary["connections"]["lost"]) == (400, 0)
