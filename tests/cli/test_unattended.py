"""Unattended soaks: the JSON log, a status line on a signal, a command at the end, and watch."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from programs import SHORT, Program, held, here, report, require_whole, serving
from recording import new_run, write_run
from synthetic_run import a_run

from asyncli.model.plan import Plan
from asyncli.store.reader import read_run

pytestmark = pytest.mark.nginx


def test_json_log_status_line_on_a_signal_and_on_finish(tmp_path: Path) -> None:
    command = 'echo "$ASYNCLI_VERDICT $ASYNCLI_STATUS" > said; cat > summary.json; basename "$ASYNCLI_RUN" >> said; exit 7'
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--out", "run.db", "--log-json", "--on-finish", command) as program:
        program.until((tmp_path / "run.db").exists, "it measures")
        asked(program, '"held":50')
        program.signal(signal.SIGINT)
        done = program.wait()
        program.until_gone()
    # A failed command is reported and does not change the status.
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert "status 7" in done.err
    verdict = summary["run"]["verdict"]
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {line["event"] for line in lines} >= {"phase", "status"}
    # The report is on standard error, the JSON log with the verdict on standard output.
    assert f"\n{verdict.upper()} " in f"\n{done.err}"
    assert (lines[-1]["event"], lines[-1]["verdict"], lines[-1]["status"], lines[-1]["run"]) == ("end", verdict, done.status, "run.db")
    phases = [line["phase"] for line in lines if line["event"] == "phase"]
    assert phases[-3:] == ["hold", "drain", "residue"]
    assert all({"time", "t_s", "event", "phase"} <= line.keys() for line in lines)
    assert next(line for line in lines if line["event"] == "status")["asked"] == 50
    assert (tmp_path / "said").read_text() == f"{verdict} {done.status}\nrun.db\n"
    assert json.loads((tmp_path / "summary.json").read_text())["connections"]["held"] == 50


def asked(program: Program, answer: str) -> None:
    """Send SIGUSR1 until ``answer`` is printed."""

    def told() -> bool:
        program.signal(signal.SIGUSR1)
        return answer in program.out + program.err

    program.until(told, "it says that all are held")


def test_watch_follows_a_run_and_ends_by_ctrl_c_or_with_it(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
        program.until(lambda: held(tmp_path) == 50, "all are held")
        line = here(tmp_path, "watch", "run.db", "--once").out
        assert "held 50 of 50" in line
        assert "lost 0" in line
        asked(program, "held 50 of 50")
        with Program(tmp_path, "watch", "run.db", name="other") as other:
            other.until(lambda: "held 50 of 50" in other.out, "it shows it")
            other.signal(signal.SIGINT)
            done = other.wait()
            assert (done.status, done.err) == (0, "")
        with Program(tmp_path, "watch", "run.db", name="watch") as watch:
            watch.until(lambda: "held 50 of 50" in watch.out, "it shows it")
            program.signal(signal.SIGINT)
            require_whole(program.wait().status, report(tmp_path, "run.db"))
            assert watch.wait().status == 0
    assert here(tmp_path, "watch", "run.db", "--once").status == 0
    # The events with their own times, and no status: the run is over.
    assert " left" not in here(tmp_path, "watch", "run.db").out
    lines = [json.loads(line) for line in here(tmp_path, "watch", "run.db", "--log-json").out.splitlines()]
    assert [line["verdict"] for line in lines if line["event"] == "end"] == [report(tmp_path, "run.db")["run"]["verdict"]]
    assert "status" not in {line["event"] for line in lines}
    recorded = read_run(tmp_path / "run.db")
    told = [line["t_s"] for line in lines if line["event"] == "finding"]
    assert len(told) == len(recorded.findings) > 0
    assert max(told) < recorded.phases[-1].end_s
    done = here(tmp_path, "watch", "run.db", "--once", "--log-json")
    assert json.loads(done.out)["line"] == lines[-1]["line"]


@pytest.mark.parametrize("kilobytes", [200_000, 600_000])
def test_too_little_memory_for_the_report_is_refused_before_the_run(tmp_path: Path, kilobytes: int) -> None:
    """OpenBLAS ends the process, or spins, where it gets no memory: after the run the verdict would be lost. How much it takes
    depends on the CPUs; either there is enough for the whole, or nothing is begun."""
    limited = ("sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh")
    with serving() as server:
        soak = ("soak", server.url, "-c", "5", *SHORT, "--hold", "0.2", "--out", "run.db", "--json", "run.json")
        with Program(tmp_path, *soak, before=limited) as program:
            done = program.wait()
    assert "Traceback" not in done.err
    if done.status == 2:
        assert ("ulimit -v" in done.err, len(done.err.splitlines()), list(tmp_path.glob("run.*"))) == (True, 1, [])
    else:
        require_whole(done.status, json.loads((tmp_path / "run.json").read_text()))
        assert kilobytes > 200_000


@pytest.mark.parametrize("written", ["by a soak that may write no more", "by one that was killed at its start"])
def test_missing_records_are_unknown_and_not_zero(tmp_path: Path, written: str) -> None:
    if "killed" in written:
        new_run(tmp_path / "run.db", Plan(urls=("http://127.0.0.1/",), fail_if=("lost > 0", "heartbeats.failed > 0"))).close(False)
    else:
        # Blocks of 512 or 1,024 bytes: some for the file's tables, few for its records.
        limited = ("sh", "-c", 'ulimit -f 60; exec "$@"', "sh")
        with serving() as server:
            soak = ("soak", server.url, "-c", "5", *SHORT, "--hold", "1", "--out", "run.db", "--fail-if", "lost > 0", "--quiet")
            with Program(tmp_path, *soak, before=limited) as program:
                done = program.wait()
        assert done.status != 0
        assert "Traceback" not in done.err
        if not (tmp_path / "run.db").exists():
            assert (done.status, "cannot be written" in done.err) == (2, True)
            return
    summary = json.loads(here(tmp_path, "report", "run.db", "--json", "-").out)
    unknown = not read_run(tmp_path / "run.db").ticks
    assert unknown or "killed" not in written
    if unknown:
        assert {summary["connections"][key] for key in ("opened", "held", "lost", "failed", "reopened", "established_peak")} == {None}
        assert {summary["heartbeats"][key] for key in ("sent", "answered", "failed")} == {None}
        assert {limit["kept"] for limit in summary["limits"]} == {None}
        text = here(tmp_path, "report", "run.db", "-v").out
        assert "ever connected" not in text
        assert "unknown" in text
        assert here(tmp_path, "report", "run.db", "--html", "run.html").status == 0
    (listed,) = json.loads(here(tmp_path, "runs", "--json").out)["runs"]
    assert (listed["held"] is None) == unknown
    assert here(tmp_path, "runs").out.count("unknown") >= unknown


def test_nothing_after_the_run_outlasts_a_signal(tmp_path: Path) -> None:
    with serving() as server:
        soak = ("soak", server.url, "-c", "5", *SHORT, "--hold", "0.2", "--out", "run.db")
        with Program(tmp_path, *soak, "--on-finish", "echo $$ > begun; exec sleep 1000") as program:
            program.until((tmp_path / "begun").exists, "the command runs")
            program.signal(signal.SIGTERM)
            assert program.wait().status == 130
            os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
    assert read_run(tmp_path / "run.db").complete


def test_watch_reports_a_hung_and_a_killed_run(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
        program.until(lambda: held(tmp_path) == 50, "all are held")
        with Program(tmp_path, "watch", "run.db", name="watch") as watch, Program(tmp_path, "watch", "run.db", "--log-json", name="json") as log:
            program.signal(signal.SIGSTOP)
            # Set the file's time back a minute instead of waiting for it.
            aged(tmp_path, 61)
            watch.until(lambda: "nothing new for 1 min " in watch.err, "it says so")
            # It may have started late, and would only report the end of a run that is over by then.
            log.until(lambda: '"status"' in log.out, "the other watches too")
            program.signal(signal.SIGKILL)
            program.until_gone()
            assert "--resume" in watch.wait().err
            # The JSON log contains nothing else.
            done = log.wait()
            assert (done.status, bool(done.err)) == (0, True)
            assert {json.loads(line)["event"] for line in done.out.splitlines()} >= {"phase", "status"}
    done = here(tmp_path, "watch", "run.db", "--once")
    assert (done.status, " left" in done.out, "held 50 of 50" in done.out) == (1, False, True)
    done = here(tmp_path, "watch", "run.db", "--once", "--log-json")
    assert (done.status, bool(json.loads(done.out)["trouble"])) == (1, True)


def test_watch_waits_for_the_run_file(tmp_path: Path) -> None:
    run_there = a_run(500)
    with Program(tmp_path, "watch", "run.db", name="watch") as watch:
        watch.until(lambda: "run.db" in watch.err, "it waits")
        write_run(run_there, tmp_path / "run.db")
        assert watch.wait().status == 0


def aged(folder: Path, seconds: float) -> None:
    """Set the time of the run file's last write to ``seconds`` ago."""
    then = time.time() - seconds
    for name in ("run.db", "run.db-wal"):
        os.utime(folder / name, (then, then))
