"""``asyncli compare`` and ``asyncli runs``: their output, and one clear line for bad input."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from made_runs import dead
from recording import new_run, write_run
from synthetic_run import a_run

from asyncli.cli.compare import command as compare_command
from asyncli.cli.report import command as report_command
from asyncli.cli.runs import command as runs_command
from asyncli.model.errors import AsyncliError
from asyncli.model.records import STOPPED, Finding, Phase, Sample
from asyncli.model.run import Run
from asyncli.report import comparison_report as comparison
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run
from asyncli.store.run_index import read_index_entry


def write(run: Run, path: Path, *, run_id: str | None = None, started_s: float | None = None) -> Path:
    """Write ``run`` to a run file, with a new id."""
    return write_run(run, path, run_id=run_id or path.stem, started_s=started_s or time.time())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two good runs, one in which nothing connected, and one without a tick."""
    folder = tmp_path_factory.mktemp("runs")
    write(a_run(5000, hold_s=30.0, seed=1), folder / "a.db", started_s=1_000_000_000)
    write(a_run(5000, hold_s=30.0, seed=2), folder / "b.db", started_s=1_000_000_100)
    never = a_run(500)
    for _, tick in never.ticks:
        tick.opened = tick.held = tick.held_at_drain = tick.sent = tick.answered = 0
    write(never, folder / "never.db", started_s=1_000_000_200)
    silent = a_run(500, complete=False)
    silent.ticks, silent.samples, silent.phases = [], [], [Phase("baseline", 0.0)]
    write(silent, folder / "silent.db", started_s=1_000_000_300)
    return folder


def ran(command: click.Command, *arguments: str | Path) -> tuple[int, str]:
    """Exit status and standard output; errors of asyncli are raised."""
    result = CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False, catch_exceptions=False)
    return (result.return_value if isinstance(result.return_value, int) else 0), result.stdout


def refused(command: click.Command, *arguments: str | Path) -> str:
    """The one-line error."""
    with pytest.raises(AsyncliError) as caught:
        ran(command, *arguments)
    assert caught.value.exit_status == 2
    line = str(caught.value)
    assert "\n" not in line
    assert ";" in line, "it does not say how to mend it"
    return line


def test_compare_writes_json_and_html(files: Path, tmp_path: Path) -> None:
    status, text = ran(compare_command, files / "a.db", files / "b.db", "--json")
    document = json.loads(text)
    assert (status, document["schema"], [run["file"] for run in document["runs"]]) == (0, 1, [str(files / "a.db"), str(files / "b.db")])
    both = ["--json", tmp_path / "c.json", "--html", tmp_path / "c.html"]
    assert ran(compare_command, files / "a.db", files / "b.db", *both) == (0, f"{tmp_path / 'c.html'}\n")
    assert json.loads((tmp_path / "c.json").read_text()) == document
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    # A page is UTF-8 whatever the terminal's encoding.
    page = CliRunner(charset="latin-1").invoke(compare_command, [str(files / "a.db"), str(files / "b.db"), "--html", "-"], standalone_mode=False)
    assert page.stdout_bytes == (tmp_path / "c.html").read_bytes()


def test_invalid_comparison_is_one_line(files: Path, tmp_path: Path) -> None:
    a, b = files / "a.db", files / "b.db"
    copy, link = tmp_path / "copy.db", tmp_path / "link.db"
    shutil.copy(a, copy)
    link.symlink_to(a)
    for arguments, what in (
        ([a], "one run cannot"), ([a, a], "twice"), ([a, b, link], "twice"), ([a, copy], " copy "), ([files / "never.db", a], "never.db: "),
        ([a, files / "silent.db"], "silent.db: "), ([a, tmp_path / "none.db"], "none.db: "), ([a, tmp_path], " folder"),
        ([a, b, "--json", a], "--json: "), ([a, b, "--html", tmp_path], "--html: "), ([*([a] * 27)], "27 runs"),
    ):  # fmt: skip
        assert what in refused(compare_command, *arguments), what


def listing(*arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran(runs_command, *arguments, "--json", "-")[1])
    return document


def test_runs_lists_the_newest_first(files: Path) -> None:
    document = listing(files)
    assert document["schema"] == 1
    assert [run["file"] for run in document["runs"]] == ["silent.db", "never.db", "b.db", "a.db"]
    assert [run["verdict"] for run in document["runs"]] == ["untested", "untested", "passed", "passed"]
    last = document["runs"][-1]
    assert (last["requested"], last["held"], last["server"], last["complete"]) == (5000, 5000, "nginx/1.22.1", True)
    assert (last["started"], last["bytes"]) == ("2001-09-09T01:46:40Z", (files / "a.db").stat().st_size)
    assert last["age_s"] == pytest.approx(time.time() - 1_000_000_000, abs=60)
    assert last["hold_s"] == pytest.approx(30.0, abs=1.5)
    assert document["unread"] == []


def test_list_report_and_comparison_have_the_same_verdict(files: Path, tmp_path: Path) -> None:
    limited = a_run(5000, hold_s=30.0, seed=9)
    limited.plan = msgspec.structs.replace(limited.plan, fail_if=("heartbeats.latency_ms.p99 > 0.001",))
    write(limited, tmp_path / "limited.db")
    slept = a_run(5000, hold_s=30.0, seed=10)
    at = slept.phases[2].start_s + 10.0
    slept.findings = [Finding("suspended", "warning", "this machine was suspended for 5 s")]
    slept.samples.append(Sample(at, {"clock.suspended_s": 5.0}))
    slept.samples.sort(key=lambda one: one.t_s)
    next(tick for t_s, tick in slept.ticks if t_s >= at).deaths = {"closed_idle": dead(7, 60, 20, 3)}
    write(slept, tmp_path / "slept.db")
    cut = a_run(5000, hold_s=30.0, seed=11)
    cut.plan = msgspec.structs.replace(cut.plan, hold_s=3600.0)
    cut.findings = [Finding(STOPPED, "warning", "stopped by the user (Ctrl-C or a signal) 30 s into the hold of 1 h")]
    write(cut, tmp_path / "stopped.db")
    by_name = {run["file"]: run for run in listing(tmp_path)["runs"]}
    measured = {Path(one.path).name: one for one in comparison.measure_files((path, None) for path in sorted(tmp_path.glob("*.db")))}
    for path in sorted(tmp_path.glob("*.db")):
        report = summarise(read_run(path))
        assert by_name[path.name]["verdict"] == measured[path.name].verdict == report.verdict, path
        assert measured[path.name].why == next(one.evidence for one in report.findings if one.code == f"verdict_{report.verdict}")
        assert by_name[path.name]["stopped"] is report.run.stopped is (path.name == "stopped.db")
    assert {name: run["verdict"] for name, run in by_name.items()} == {
        "limited.db": "failed", "slept.db": "invalid", "stopped.db": "passed",
    }  # fmt: skip
    stopped = by_name["stopped.db"]
    assert (round(stopped["hold_s"]), stopped["planned_s"]) == (30, 3600)
    (line,) = (one for one in ran(runs_command, tmp_path)[1].splitlines() if one.startswith("stopped.db"))
    assert "stopped" in line


def test_foreign_and_broken_files_are_listed_with_a_reason(files: Path, tmp_path: Path) -> None:
    shutil.copy(files / "a.db", tmp_path / "good.db")
    (tmp_path / "notes.txt").write_text("nothing to do with us")
    (tmp_path / "text.db").write_text("not SQLite")
    (tmp_path / "empty.db").touch()
    for name, pragma in (("other.sqlite", "user_version = 0"), ("newer.db", "user_version = 99")):
        with sqlite3.connect(tmp_path / name) as connection:
            connection.execute("CREATE TABLE t (x)")
            if name == "newer.db":
                connection.execute(f"PRAGMA application_id = {0x61736E63}")
            connection.execute(f"PRAGMA {pragma}")
        connection.close()
    cut = (files / "a.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(cut[: len(cut) // 2])
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere")
    document = listing(tmp_path)
    assert [run["file"] for run in document["runs"]] == ["good.db"]
    unread = {one["file"]: one["why"] for one in document["unread"]}
    assert set(unread) == {"text.db", "empty.db", "other.sqlite", "newer.db", "cut.db"}
    for name, what in (
        ("text.db", "not SQLite"), ("empty.db", "is empty"), ("other.sqlite", "another program"),
        ("newer.db", "newer asyncli"), ("cut.db", "damaged"),
    ):  # fmt: skip
        assert what in unread[name], name
    text = ran(runs_command, tmp_path)[1]
    assert text.index("good.db") < text.index("text.db")
    assert "notes.txt" not in text


def test_subfolders_only_with_recursive(files: Path, tmp_path: Path) -> None:
    for folder in ("one", "one/two", ".hidden"):
        (tmp_path / folder).mkdir()
        shutil.copy(files / "a.db", tmp_path / folder / "run.db")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert listing(tmp_path)["runs"] == []
    assert {run["file"] for run in listing(tmp_path, "-r")["runs"]} == {"one/run.db", "one/two/run.db"}


def test_run_being_written_is_running(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "live.db", started_s=time.time())
    old = time.time() - 3600
    try:
        # Even if it cannot write for now.
        for name in ("live.db", "live.db-wal"):
            os.utime(tmp_path / name, (old, old))
        (one,) = listing(tmp_path)["runs"]
        assert (one["complete"], one["live"]) == (False, True)
        assert one["bytes"] == sum((tmp_path / name).stat().st_size for name in ("live.db", "live.db-wal")) > 4096
        assert "running" in ran(runs_command, tmp_path)[1]
    finally:
        writer.close(False)
    os.utime(tmp_path / "live.db", (old, old))
    (one,) = listing(tmp_path)["runs"]
    assert (one["complete"], one["live"]) == (False, False)
    assert "incomplete" in ran(runs_command, tmp_path)[1]


def test_each_run_is_freed_before_the_next_is_read(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []

    def read(path: Path, *, for_report: bool) -> Run:
        assert not [one for one in alive if one() is not None], "two runs in memory"
        run = read_run(path, for_report=for_report)
        alive.append(weakref.ref(run.samples))
        return run

    monkeypatch.setattr(comparison, "read_run", read)
    assert [one.name for one in comparison.measure_files((files / name, None) for name in ("a.db", "b.db"))] == ["A", "B"]
    assert len(alive) == 2


def test_long_run_is_listed_without_reading_most_of_its_hold(tmp_path: Path) -> None:
    run = a_run(500, hold_s=120.0)
    path = write(run, tmp_path / "long.db")
    head, grown = read_index_entry(path), read_index_entry(path, {"server.pss_bytes"})
    assert len(head.ticks) == len(run.ticks)
    assert grown.series("server.pss_bytes").t_s[-1] == run.series("server.pss_bytes").t_s[-1]
    assert grown.series("host.used_bytes").t_s == head.series("host.used_bytes").t_s
    assert head.samples[-1].t_s == pytest.approx(run.phases[2].start_s + 15.0, abs=1.5)


def test_headers_are_compared_by_name(tmp_path: Path) -> None:
    for name in "ab":
        run = a_run(500)
        run.plan = msgspec.structs.replace(run.plan, headers=(f"X-{name}: tiger-{name}",), mqtt_login=f"tiger-{name}")
        write(run, tmp_path / f"{name}.db")
    both = (compare_command, tmp_path / "a.db", tmp_path / "b.db")
    document, page, text = (ran(*both, *words)[1] for words in (("--json", "-"), ("--html", "-"), ()))
    differs = {one["key"]: one["values"] for one in json.loads(document)["differs"]}
    assert differs["plan.headers"] == [["X-a: ***"], ["X-b: ***"]]
    assert "plan.mqtt_login" not in differs
    assert "tiger" not in document + page + text


def test_names_that_are_not_utf8(files: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff.db")
    shutil.copy(files / "a.db", odd)
    (tmp_path / os.fsdecode(b"\xfe.db")).write_text("no run")
    document = listing(tmp_path)
    assert [[one["file"] for one in document[key]] for key in ("runs", "unread")] == [["\ufffd.db"]] * 2
    compared = json.loads(ran(compare_command, odd, files / "b.db", "--json", "-")[1])
    assert compared["runs"][0]["file"].endswith("/\ufffd.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
def test_unreadable_folder_is_one_line() -> None:
    # pytest's own folders belong to root.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        (shut := Path(name) / "shut").mkdir(mode=0o700)
        run = write(a_run(500), Path(name) / "a.db")
        # Other users cannot import the package.
        ran(report_command, run, "--json", Path(name) / "x.json", "--csv", Path(name) / "csv")
        os.seteuid(65534)
        try:
            for command, *arguments in (
                (report_command, run, "--json", shut / "x.json"), (report_command, run, "--csv", shut / "q" / "x"),
                (runs_command, shut / "y"), (compare_command, run, shut / "y.db"),
            ):  # fmt: skip
                refused(command, *arguments)
        finally:
            os.seteuid(0)
