"""A run file that is gone on with: by one process, and from where it is now."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from asyncli.errors import StoreError
from asyncli.plan import Plan, plan_document
from asyncli.records import Finding, Phase, Tick
from asyncli.store.reader import read_run
from asyncli.store.resume import Interrupted, read_interrupted
from asyncli.store.writer import RunWriter


@pytest.fixture
def cut_off(tmp_path: Path) -> Path:
    """A run that was killed in its ramp."""
    plan = plan_document(Plan(urls=("http://127.0.0.1/",)))
    writer = RunWriter.create(tmp_path / "run.db", run_id="r", started_wall_s=1e9, plan_document=plan, environment={})
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=10, opened=10))
    writer.close(False)
    return writer.path


def resume(before: Interrupted) -> RunWriter:
    return RunWriter.resume(before.path, {}, recorded=before.recorded, anew=True)


def test_of_those_that_resume_it_at_once_one_does(cut_off: Path) -> None:
    before = read_interrupted(cut_off)
    at_once = threading.Barrier(4)
    writers, refusals = [], []

    def try_it() -> None:
        at_once.wait()
        try:
            writers.append(resume(before))
        except StoreError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (writer,) = writers
    assert refusals == [f"{cut_off}: its run goes on, another process writes it; 'asyncli watch {cut_off}' looks on"] * 3
    writer.close(True)
    assert read_run(cut_off).complete is True


def test_what_another_process_went_on_with_meanwhile_is_not_what_was_read(cut_off: Path) -> None:
    before = read_interrupted(cut_off)
    other = resume(before)
    other.phase(Phase("baseline", 5.0))
    other.finding(5.0, Finding("resumed", "warning", "the run was cut off"))
    other.close(False)
    with pytest.raises(StoreError, match="another process has gone on with its run just now"):
        resume(before)
    # And it may be gone on with again by whoever reads it again.
    assert [one.name for one in read_run(cut_off).phases] == ["baseline"]
    resume(read_interrupted(cut_off)).close(False)
