"""What an unattended soak tells, and to whom: a log for machines, a line on a signal, a command at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from programs import SHORT, Program, run

from asyncli.store.reader import read_run

pytestmark = pytest.mark.nginx


def test_a_log_of_json_lines_and_a_command_that_hears_the_verdict(tmp_path: Path) -> None:
    command = 'echo "$ASYNCLI_VERDICT $ASYNCLI_STATUS $ASYNCLI_LINE" > said; cat > summary.json; basename "$ASYNCLI_RUN" >> said'
    done = run(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1s", "--out", "run.db", "--log-json", "--on-finish", command)
    assert done.status == 0
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {line["event"] for line in lines} >= {"phase", "status"}
    # The report is for people, and stands beside what is for machines, which has the verdict.
    assert re.search(r"^PASSED ", done.err, re.MULTILINE)
    assert (lines[-1]["event"], lines[-1]["verdict"], lines[-1]["status"], lines[-1]["run"]) == ("end", "passed", 0, "run.db")
    assert lines[-1]["line"].startswith("passed: 50 of 50 connections were held to the end")
    phases = [line["phase"] for line in lines if line["event"] == "phase"]
    assert phases[-3:] == ["hold", "drain", "residue"]
    assert all({"time", "t_s", "event", "phase"} <= line.keys() for line in lines)
    assert next(line for line in lines if line["event"] == "status")["asked"] == 50
    verdict, name = (tmp_path / "said").read_text().splitlines()
    assert verdict.startswith("passed 0 passed: 50 of 50 connections were held to the end")
    assert name == "run.db"
    assert json.loads((tmp_path / "summary.json").read_text())["connections"]["held"] == 50


def test_a_command_that_fails_is_said_and_changes_no_status(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "-c", "10", *SHORT, "--hold", "0.2s", "--quiet", "--on-finish", "exit 7")
    assert (done.status, done.err) == (0, "asyncli: --on-finish: 'exit 7' ended with status 7\n")


@pytest.mark.parametrize(("how", "answer"), [("--quiet", "held 50 of 50"), ("--log-json", '"held":50')])
def test_sigusr1_asks_for_a_line(tmp_path: Path, how: str, answer: str) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", how, "--out", "run.db") as program:
        program.until((tmp_path / "run.db").exists, "it measures")

        def told() -> bool:
            program.signal(signal.SIGUSR1)
            return answer in program.out

        program.until(told, "it says that all are held")
        program.signal(signal.SIGINT)
        assert program.wait().status == 0


def test_watch_looks_in_from_another_terminal(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
        program.until(lambda: "held 50 of 50" in run(tmp_path, "watch", "run.db", "--once").out, "all are held")
        line = run(tmp_path, "watch", "run.db", "--once").out
        assert "  hold  " in line
        assert "lost 0" in line
        with Program(tmp_path, "watch", "run.db", name="watch") as watch:
            watch.until(lambda: "held 50 of 50" in watch.out, "it shows it")
            program.signal(signal.SIGINT)
            assert program.wait().status == 0
            assert watch.wait().status == 0
            assert watch.out.endswith("it has ended: asyncli report run.db\n")
    ended = "passed: 50 of 50 connections were held to the end, and none was lost"
    done = run(tmp_path, "watch", "run.db", "--once")
    assert (done.status, done.out.startswith(f"it has ended; {ended}")) == (0, True)
    lines = run(tmp_path, "watch", "run.db").out.splitlines()
    assert lines[-2].startswith(ended)
    assert lines[-1] == "it has ended: asyncli report run.db"
    # What was, at the instant at which it was, and nothing of how it stands: it does not stand any more.
    assert " left" not in "\n".join(lines)
    lines = [json.loads(line) for line in run(tmp_path, "watch", "run.db", "--log-json").out.splitlines()]
    assert [line["verdict"] for line in lines if line["event"] == "end"] == ["passed"]
    assert "status" not in {line["event"] for line in lines}
    recorded = read_run(tmp_path / "run.db")
    told = [line["t_s"] for line in lines if line["event"] == "finding"]
    assert len(told) == len(recorded.findings) > 0
    assert max(told) < recorded.phases[-1].end_s
    done = run(tmp_path, "watch", "run.db", "--once", "--log-json")
    assert json.loads(done.out)["line"] == lines[-1]["line"]
    done = run(tmp_path, "watch", "none.db")
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines()[-1] + "\n" == "asyncli: none.db: there is no such file; name a run file that asyncli wrote (see --out)\n"


def test_watch_says_that_a_run_stands_still_and_that_it_was_killed(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
        program.until(lambda: "held 50 of 50" in run(tmp_path, "watch", "run.db", "--once").out, "all are held")
        with Program(tmp_path, "watch", "run.db", name="watch") as watch, Program(tmp_path, "watch", "run.db", "--log-json", name="json") as log:
            program.signal(signal.SIGSTOP)
            # A minute ago by the file, which spares the test that minute.
            long_ago = time.time() - 61
            for name in ("run.db", "run.db-wal"):
                os.utime(tmp_path / name, (long_ago, long_ago))
            watch.until(lambda: re.search(r"^nothing new for 1 min \d+ s, and it stands still$", watch.out, re.MULTILINE), "it says so")
            # It may have begun later than the other, and of a run that is over by then it would say that alone.
            log.until(lambda: '"status"' in log.out, "the other watches too")
            program.signal(signal.SIGKILL)
            program.until_gone()
            why = "no process writes it: the run was killed, or came to no end"
            done = watch.wait()
            assert done.status == 0
            assert re.search(rf"^nothing new for 1 min \d+ s, and {why}: asyncli report run.db; asyncli soak --resume run.db goes on with it$", done.out, re.MULTILINE)
            # Beside objects for machines stands nothing else.
            done = log.wait()
            assert done.status == 0
            assert {json.loads(line)["event"] for line in done.out.splitlines()} >= {"phase", "status"}
            assert why in done.err
    done = run(tmp_path, "watch", "run.db", "--once")
    assert "held 50 of 50" in done.out
    assert done.out.endswith(f"{why}\n")
    assert (done.status, " left" in done.out) == (1, False)
    # Killed just now, and in a file for machines.
    now = time.time()
    for name in ("run.db", "run.db-wal"):
        os.utime(tmp_path / name, (now, now))
    done = run(tmp_path, "watch", "run.db", "--once", "--log-json")
    assert done.status == 1
    assert re.fullmatch(rf"nothing new for \d+ s, and {why}", json.loads(done.out)["trouble"])


def test_watch_waits_for_a_run_that_is_about_to_begin(tmp_path: Path) -> None:
    with Program(tmp_path, "watch", "run.db", name="watch") as watch:
        watch.until(lambda: "waiting for run.db" in watch.err, "it waits")
        with Program(tmp_path, "demo", "-c", "10", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
            watch.until(lambda: "held 10 of 10" in watch.out, "it shows it")
            program.signal()
            assert program.wait().status == 0
        assert watch.wait().status == 0


def test_watch_ends_by_ctrl_c_and_where_the_file_is_moved_and_ends_no_run(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "10", *SHORT, "--hold", "1h", "--quiet", "--out", "run.db") as program:
        program.until((tmp_path / "run.db").exists, "it measures")
        with Program(tmp_path, "watch", "run.db", name="first") as watch:
            watch.until(lambda: "held 10 of 10" in watch.out, "it looks on")
            watch.signal(signal.SIGINT)
            done = watch.wait()
            assert (done.status, done.err) == (0, "")
        with Program(tmp_path, "watch", "run.db", name="second") as watch:
            watch.until(lambda: "held 10 of 10" in watch.out, "it looks on")
            (tmp_path / "run.db").rename(tmp_path / "night.db")
            done = watch.wait()
            assert (done.status, done.err) == (0, "")
            assert "the file was moved or deleted" in done.out.splitlines()[-1]
        assert program.wait().status == 2
