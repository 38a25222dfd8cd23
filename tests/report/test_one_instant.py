"""A finding has one instant, in the run file and in all that shows it."""

from __future__ import annotations

import time
from pathlib import Path

from programs import until
from recording import new_run

import asyncli
from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.model.records import Finding, RunEvent, Tick
from asyncli.report.livestate import LiveObserver
from asyncli.store.follow import Follower
from asyncli.store.mark import add_mark


def test_the_log_and_the_page_show_a_finding_at_the_same_instant(tmp_path: Path) -> None:
    plan = asyncli.Plan(urls=("http://127.0.0.1:1/",), connections=10)
    progress = Progress(plan, tmp_path / "run.db")
    observer = LiveObserver(plan)
    recorder = Recorder([observer], progress)
    recorder.open(new_run(tmp_path / "run.db", plan))
    assert recorder.writer is not None
    # The run is prepared for some seconds.
    progress.zero_s = time.monotonic() - 3.0
    recorder.finding(Finding("early", "warning", "something"))
    progress.zero_s = time.monotonic() - 39.97
    progress.has_clock = True
    recorder.tick(39.0, Tick(held=10))
    recorder.finding(Finding("late", "warning", "something else"))
    recorder.writer.close(False)
    shown = {notice.finding.code: notice.t_s for notice in observer.fold.state().findings}
    recorded = {finding.code: t_s for t_s, finding in Follower(tmp_path / "run.db").news().findings}
    assert shown == recorded
    assert shown["early"] == 0.0
    assert shown["late"] >= 39.97


def test_an_event_of_the_plan_is_shown_at_once_and_once(tmp_path: Path) -> None:
    """Marks of other processes are shown once they are read back from the file."""
    path = tmp_path / "run.db"
    plan = asyncli.Plan(urls=("http://127.0.0.1:1/",), connections=10)
    observer = LiveObserver(plan)
    recorder = Recorder([observer], Progress(plan, path))
    recorder.open(new_run(path, plan))
    assert recorder.writer is not None
    recorder.event(RunEvent("run", 1.0, 2.5, "deploy", {"number": 1, "status": 0, "took_s": 1.5, "output": "done"}))
    assert [event.text for event in observer.fold.state().events] == ["deploy"]
    until(lambda: texts_of(path) == ["deploy"], "it is written")
    add_mark(path, "by hand", lambda _: 3.0)

    def shown() -> list[str]:
        recorder.tick(3.0, Tick(held=10))
        return [event.text for event in observer.fold.state().events]

    until(lambda: "by hand" in shown(), "the mark is read back")
    assert shown() == ["deploy", "by hand"]
    recorder.writer.close(False)


def texts_of(path: Path) -> list[str]:
    return [event.text for event in Follower(path).news().events]
