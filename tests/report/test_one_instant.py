"""A finding has one instant, in the run file and in all that shows it."""

from __future__ import annotations

import time
from pathlib import Path

from recording import new_run

import asyncli
from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.model.records import Finding, Tick
from asyncli.report.livestate import LiveObserver
from asyncli.store.follow import Follower


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
