"""Marks: written by other processes into a run file that is being written, and read back in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from programs import ASYNCLI, complaint, deadline_s, here, until
from recording import a_tick, new_run

from asyncli.environment import clock_at, on_clock
from asyncli.model.errors import StoreError
from asyncli.model.records import Phase, RunEvent, mark
from asyncli.store.events import read_events
from asyncli.store.follow import Follower
from asyncli.store.reader import read_run
from asyncli.store.resume import read_interrupted
from asyncli.store.writer import COMMIT_EVERY_S, RunWriter

#: The writer of a run, as a process: a tick a second, until it is told to end or is killed.
_WRITER = """
import sys, time
from pathlib import Path
from recording import a_tick, new_run
from asyncli.environment import clock_at
writer = new_run(Path(sys.argv[1]), environment={"clock": clock_at(time.monotonic())})
for second in range(1, 1000):
    writer.tick(float(second), a_tick(1))
    for event in writer.new_events():
        print("saw", event.text, flush=True)
    assert writer.trouble is None, writer.trouble
    time.sleep(0.1)
"""


@contextlib.contextmanager
def writing(path: Path) -> Any:
    """A process that writes the run ``path``, once its first ticks are there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            until(lambda: path.exists() and path.with_name(f"{path.name}-wal").exists() and texts_or_none(path) is not None, "it writes")
            yield process
        finally:
            process.kill()


def texts_or_none(path: Path) -> list[str] | None:
    """The marks; None before the file has a run with a second."""
    with contextlib.suppress(StoreError):
        run = read_run(path)
        return [event.text for event in run.events] if run.ticks else None
    return None


def start_marking(path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*ASYNCLI, "mark", str(path), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def marked(path: Path, *words: str) -> tuple[int, str, str]:
    """Mark the run by a process of its own; its status and what it printed."""
    with start_marking(path, *words) as process:
        out, err = process.communicate(timeout=deadline_s())
    return process.returncode, out, err


def test_a_mark_has_the_instant_of_its_command_and_the_writer_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path) as writer:
        zero_s = read_run(path).environment["clock"]["monotonic_s"]
        before_s = time.monotonic()
        refused, out, err = marked(path, "two\nlines")
        assert (refused, out, len(err.splitlines())) == (2, "", 1)
        status, out, err = marked(path, "deployed \t1.4.2\x1b[31m", "again\n")
        after_s = time.monotonic()
        assert (status, err) == (0, "")
        (event,) = read_run(path).events
        assert event == mark(event.at_s, " ".join(("deployed", "1.4.2?[31m", "again")))
        assert event.end_s == event.at_s
        assert before_s <= zero_s + event.at_s <= after_s
        assert out.endswith(f": {event.text}\n")
        assert writer.stdout.readline() == f"saw {event.text}\n"
        assert time.monotonic() - after_s < COMMIT_EVERY_S + 1.0 + deadline_s() / 60


def test_many_marks_at_the_same_time_while_a_writer_commits(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path) as writer:
        for number in range(4):
            started = [start_marking(path, f"{who} {number}") for who in ("this", "that")]
            for process in started:
                _, err = process.communicate(timeout=deadline_s())
                assert (process.returncode, err) == (0, "")
        wanted = sorted(f"{who} {number}" for who in ("this", "that") for number in range(4))
        seen = sorted(writer.stdout.readline().removeprefix("saw ").strip() for _ in wanted)
        assert writer.poll() is None
    events = read_run(path).events
    assert sorted(event.text for event in events) == wanted == seen
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)


def test_a_killed_writer_leaves_its_marks_and_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path) as writer:
        assert marked(path, "before")[0] == 0
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        names = sorted(os.listdir(tmp_path))
        status, out, err = marked(path, "after")
        # Neither is its WAL moved into the file, which the one who resumes it does.
        assert (status, out, sorted(os.listdir(tmp_path))) == (2, "", names)
        assert "no process" in err
    assert texts_or_none(path) == ["before"]


def test_the_writer_waits_for_a_mark_no_longer_than_for_any_other_lock(tmp_path: Path) -> None:
    """A mark leaves waiting for the disk to the writer, so a slow disk does not hold its lock."""
    path = tmp_path / "run.db"
    with writing(path):
        trace = tmp_path / "trace"
        strace = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        try:
            subprocess.run([*strace, *ASYNCLI, "mark", str(path), "now"], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            pytest.skip("strace cannot trace here")
        assert "sync(" not in trace.read_text()
        assert texts_or_none(path) == ["now"]


def test_an_older_file_has_no_events_and_gets_them_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer = new_run(path)
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, a_tick(1))
    writer.close(False)
    with contextlib.closing(sqlite3.connect(path)) as older:
        older.execute("DROP TABLE events")
        older.commit()
    assert read_run(path).events == Follower(path).news().events == []
    before = read_interrupted(path)
    writer = RunWriter.resume(path, {"clock": clock_at(time.monotonic() - 5.0)}, recorded=before.recorded, restart=False)
    writer.environment({})
    until(lambda: read_run(path).environment, "the clock is recorded")
    status, _, err = marked(path, "resumed")
    assert (status, err) == (0, "")
    until(lambda: texts(writer.new_events()) == ["resumed"], "the writer sees it")
    writer.close(False)
    (event,) = read_run(path).events
    assert 5.0 <= event.at_s < 5.0 + deadline_s()
    # Those of the killed session are not news in the next.
    writer = RunWriter.resume(path, {}, recorded=before.recorded, restart=False)
    time.sleep(1.5 * COMMIT_EVERY_S)
    assert writer.new_events() == []
    writer.close(False)


def texts(events: list[RunEvent]) -> list[str]:
    return [event.text for event in events]


def test_a_follower_gets_each_mark_once(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path):
        follower = Follower(path)
        assert follower.news().events == []
        for text in ("first", "second"):
            assert marked(path, text)[0] == 0
            assert texts(follower.news().events) == [text]
        assert follower.news().events == []
        assert texts(Follower(path).news().events) == ["first", "second"]


def test_an_instant_of_another_clock_is_unknown(tmp_path: Path) -> None:
    clock = clock_at(100.0)
    assert on_clock(clock, 160.5) == 60.5
    for other in ({"boot_id": "another"}, {"time_ns": "time:[1]"}, {"boot_id": None}):
        assert on_clock(clock | other, 160.5) is None
    path = tmp_path / "run.db"
    for environment, words in (
        ({}, "not begun"),
        ({"clock": clock | {"boot_id": "another"}}, "another clock"),
        ({"clock": clock | {"wall_s": 0.0, "monotonic_s": "x"}}, "damaged"),
        ({"clock": []}, "damaged"),
    ):
        writer = new_run(path, environment=environment)
        status, out, err = marked(path, "now")
        assert (status, out, err.count("\n"), words in err) == (2, "", 1, True), err
        assert read_run(path).events == []
        writer.close(True)
        path.unlink()


def test_a_stepped_wall_clock_does_not_move_a_mark(tmp_path: Path) -> None:
    """The recorded wall clock is of the run's start; what it says since is not asked."""
    path = tmp_path / "run.db"
    writer = new_run(path, environment={"clock": clock_at(time.monotonic() - 7.0) | {"wall_s": 0.0}}, started_s=0.0)
    assert marked(path, "now")[0] == 0
    writer.close(True)
    (event,) = read_run(path).events
    assert 7.0 <= event.at_s < 7.0 + deadline_s()


def test_what_cannot_be_marked_is_said_in_one_line(tmp_path: Path) -> None:
    clock = {"clock": clock_at(time.monotonic())}
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty.db").touch()
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE events (text)")
    new_run(tmp_path / "over.db", environment=clock).close(True)
    new_run(tmp_path / "cut.db", environment=clock).close(False)
    for name, words in (
        ("absent.db", "no such"), ("notes.txt", "not SQLite"), ("empty.db", "is empty"), ("other.db", "another program"), (".", "a folder"),
        ("over.db", "is over"), ("cut.db", "no process"),
    ):  # fmt: skip
        assert words in complaint(here(tmp_path, "mark", name, "now"))
    for arguments, words in ((("run.db", " \n"), "is empty"), (("run.db", "x" * 201), "201 characters"), (("run.db",), "argument 'TEXT'")):
        assert words in complaint(here(tmp_path, "mark", *arguments))


def test_a_file_of_an_older_asyncli_a_locked_one_and_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("ALTER TABLE events RENAME TO hidden")
            assert "an older" in refused(path, "now")
            connection.execute("ALTER TABLE hidden RENAME TO events")
            # As if the disk were full: SQLite's error is the same.
            connection.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT raise(FAIL, 'disk is full'); END")
            assert "(disk" in refused(path, "now")
            connection.execute("DROP TRIGGER full")
        assert marked(path, "now")[0] == 0


def refused(path: Path, text: str) -> str:
    """Mark the run, which fails with one line."""
    status, out, err = marked(path, text)
    assert (status, out, err.count("\n"), "; " in err) == (2, "", 1, True), err
    return err


def test_a_file_that_another_user_owns_is_not_writable() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    # pytest's own folder is private.
    with tempfile.TemporaryDirectory() as folder, writing(path := Path(folder) / "run.db"):
        Path(folder).chmod(0o755)
        # That user may not be able to read this asyncli, so it is imported before.
        script = "import os, sys, asyncli.app.mark, asyncli.cli.mark; from asyncli.cli.main import run; os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(run(['mark', sys.argv[1], 'now']))"
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "readonly" in done.stderr
        assert texts_or_none(path) == []


def test_rows_that_are_no_events_do_not_stop_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writing(path) as writer:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for row in (("note", 1.0, 1.0, "x", "{}"), ("mark", "soon", 1.0, "x", "{}"), ("mark", 1e300, 1.0, "x", "{}"), ("mark", 1.0, 1.0, "x", "[" * 5000)):
                connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
            connection.execute("INSERT INTO events VALUES ('mark', 1.5, 1.5, 'byhand', '{}')")
        assert writer.stdout.readline() == "saw byhand\n"
        with contextlib.closing(sqlite3.connect(path)) as connection, pytest.raises(Exception):  # noqa: B017, PT011
            read_events(connection)
        with pytest.raises(StoreError, match="damaged"):
            read_run(path)
