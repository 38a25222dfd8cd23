"""Resuming a run file: by one process, and from its current end."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from programs import here
from recording import new_run

from asyncli.app.incoming import generator_loss
from asyncli.app.resume import Resumption
from asyncli.findings.generator import resumed
from asyncli.findings.run import aborted_by_limit, stopped_by_user
from asyncli.model.errors import StoreError
from asyncli.model.plan import Plan
from asyncli.model.records import GAVE_UP, NOTHING_LISTENS, EventCounts, Finding, Gap, Phase, RunEvent, Tick
from asyncli.model.units import format_instant
from asyncli.preflight.rate_checks import _comeback_time
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run
from asyncli.store.resume import Interrupted, read_interrupted
from asyncli.store.writer import RunWriter


@pytest.fixture
def cut_off(tmp_path: Path) -> Path:
    """A run that was killed in its ramp."""
    writer = new_run(tmp_path / "run.db")
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=10, opened=10))
    writer.close(False)
    return writer.path


def test_a_run_without_an_end_is_written_or_not_by_its_lock(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run.db")
    for written in (True, False):
        found = json.loads(here(tmp_path, "report", "run.db", "--json", "-").out)["findings"]
        assert [one["fields"]["written"] for one in found if one["code"] == "incomplete"] == [written]
        writer.close(False)
    # Looking for the lock in the writer's process would end it.
    assert read_run(tmp_path / "run.db").written is None


def resume(before: Interrupted) -> RunWriter:
    return RunWriter.resume(before.path, {}, recorded=before.recorded, restart=True)


def held(path: Path, *, ends_s: float | None = None, findings: tuple[Finding, ...] = (), drained: bool = False, **plan: object) -> Path:
    """A run that was killed 3 s into its hold, or drained then."""
    environment = {} if ends_s is None else {"hold_ends_s": ends_s}
    made = Plan(urls=("http://127.0.0.1/",), **plan)  # type: ignore[arg-type]
    writer = new_run(path, made, started_s=time.time() - 10, environment=environment)
    writer.phase(Phase("hold", 1.0))
    writer.tick(4.0, Tick(second=3, held=10, opened=10))
    for finding in findings:
        writer.finding(4.0, finding)
    if drained:
        writer.phase(Phase("drain", 4.0))
    writer.close(False)
    return path


def test_a_hold_that_would_have_ended_by_now_is_not_resumed(tmp_path: Path) -> None:
    ended_s = time.time() - 3600
    path = held(tmp_path / "past.db", ends_s=ended_s, hold_s=60.0, hold_until="07:00")
    with pytest.raises(StoreError, match=re.escape(format_instant(ended_s))):
        read_interrupted(path)
    with pytest.raises(StoreError, match="nothing to resume"):
        read_interrupted(held(tmp_path / "done.db", hold_s=2.0))
    for code in (NOTHING_LISTENS, GAVE_UP):
        with pytest.raises(StoreError, match="never connected"):
            read_interrupted(held(tmp_path / f"{code}.db", findings=(Finding(code, "error", "none"),), drained=True))
    now_s = time.time()
    assert read_interrupted(held(tmp_path / "on.db", ends_s=now_s + 100, hold_s=60.0, hold_until="07:00")).left_s(now_s) == pytest.approx(100)
    assert read_interrupted(held(tmp_path / "more.db", hold_s=60.0)).left_s(now_s) == pytest.approx(57)
    assert read_interrupted(held(tmp_path / "ever.db", hold_s=None)).left_s(now_s) is None


def test_the_rest_of_a_hold_has_the_events_at_their_times_in_it(tmp_path: Path) -> None:
    """It was compared with their times from the hold's start."""
    of_storms = {"hold_s": 18.0, "reconnect": "jitter:5s", "events": ("1s storm", "12s vanish 5% for 2s then return", "70% storm")}
    before = read_interrupted(held(tmp_path / "storms.db", **of_storms))
    rest = Resumption(before).remaining_plan(before.run.plan)
    assert rest.hold_s == pytest.approx(15)
    assert [event.do for event in rest.planned_events] == ["mark", "vanish", "storm"]
    assert [event.at_s for event in rest.planned_events] == [0.0, pytest.approx(9), pytest.approx(9.6)]
    [check] = _comeback_time(rest)
    assert (check.verdict, check.have, check.need) == ("ok", pytest.approx(15), pytest.approx(14.6))
    over = read_interrupted(held(tmp_path / "over.db", **{**of_storms, "events": ("2s storm",)}))
    assert list(_comeback_time(Resumption(over).remaining_plan(over.run.plan))) == []


def test_what_had_begun_and_who_was_away_by_it_is_known(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run.db", Plan(urls=("http://127.0.0.1/",), events=("1s storm", "2s stall 5% for 9s", "8s storm")))
    writer.phase(Phase("hold", 1.0))
    storm = EventCounts(chosen=10, ended=10)
    for _ in range(4):
        storm.back_ms.add(20)
    writer.tick(2.5, Tick(second=2, held=4, opened=10, events={1: storm}))
    back = EventCounts()
    back.back_ms.add(900)
    writer.tick(3.5, Tick(second=3, held=5, opened=1, events={1: back}))
    writer.event(RunEvent("stall", 3.2, None, "stall 5% for 9s", {"number": 2}))
    writer.close(False)
    before = read_interrupted(writer.path)
    assert (before.away, before.recorded_events) == ({1: 5, 2: 0}, [2])


def test_a_stopped_hold_is_not_called_complete(tmp_path: Path) -> None:
    stopped = stopped_by_user("hold", 3.04, 60.0, "")
    by_limit = aborted_by_limit("ramp", 3.0, 60.0, "a limit was crossed: lost > 0: connections.lost is 1")
    older = Finding(stopped.code, "warning", "stopped by the user, then")
    for number, found in enumerate((stopped, by_limit, older)):
        with pytest.raises(StoreError) as caught:
            read_interrupted(held(tmp_path / f"{number}.db", findings=(found,), drained=True))
        assert "was complete" not in str(caught.value)
    resumed = Finding("resumed", "warning", "the run was cut off")
    with pytest.raises(StoreError, match="was complete"):
        read_interrupted(held(tmp_path / "again.db", findings=(stopped, resumed), drained=True))


def test_of_concurrent_resumes_one_succeeds(cut_off: Path) -> None:
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
    assert len(refusals) == 3
    writer.close(True)
    assert read_run(cut_off).complete is True


@pytest.mark.parametrize(("after_s", "later"), [(1.0, "1 s"), (60.0, "2 s")])
def test_a_run_was_not_interrupted_after_it_was_resumed(after_s: float, later: str) -> None:
    assert f"up to {later} later" in resumed(17.0, after_s, "hold", 3, True, "").evidence


def test_a_run_that_another_process_resumed_meanwhile_is_refused(cut_off: Path) -> None:
    before = read_interrupted(cut_off)
    other = resume(before)
    other.phase(Phase("baseline", 5.0))
    other.finding(5.0, Finding("resumed", "warning", "the run was cut off"))
    other.close(False)
    with pytest.raises(StoreError, match="another process"):
        resume(before)
    # A process that reads it again may resume it.
    assert [one.name for one in read_run(cut_off).phases] == ["baseline"]
    resume(read_interrupted(cut_off)).close(False)


def test_the_reason_for_the_end_is_the_last_sessions(tmp_path: Path) -> None:
    failed = Finding("generator_failed", "error", "every host is lost; the last one, vm at 10.0.0.9, has said nothing for 20 s")
    again = Finding("resumed", "warning", "the run was cut off")
    for number, (findings, why) in enumerate((((), ""), ((failed,), failed.evidence), ((failed, again), ""), ((again, failed), failed.evidence))):
        assert read_interrupted(held(tmp_path / f"{number}.db", hold_s=60.0, findings=findings)).ended_by == why


def test_who_was_away_from_an_event_as_a_run_was_killed_is_known(tmp_path: Path) -> None:
    """Ten were ended: three were back, and two on a new connection without an answer."""
    writer = new_run(tmp_path / "run.db", Plan(urls=("http://127.0.0.1/",), events=("1s storm",)), started_s=time.time() - 10)
    writer.phase(Phase("hold", 1.0))
    back = EventCounts(opened=5)
    for _ in range(3):
        back.back_ms.add(10)
    writer.tick(4.0, Tick(second=3, held=10, opened=10))
    writer.tick(5.0, Tick(second=4, events={1: EventCounts(ended=10)}))
    writer.tick(6.0, Tick(second=5, held=3, coming_back=2, opened=5, events={1: back}))
    writer.close(False)
    before = read_interrupted(writer.path)
    assert (before.held, before.coming_back, before.away) == (3, 2, {1: 7})


@pytest.mark.parametrize(("vanishes_s", "held", "verdict"), [(3.0, 100, "passed"), (3.0, 98, "failed"), (11.0, 70, "passed"), (11.0, 69, "failed")])
def test_who_was_gone_before_a_run_was_interrupted_is_missed_after_it(tmp_path: Path, vanishes_s: float, held: int, verdict: str) -> None:
    """A resumption opens all connections: two of them were not held again."""
    words = "vanish 30%"
    plan = Plan(urls=("http://127.0.0.1/",), connections=100, events=(f"{vanishes_s:g}s {words}",), fail_if=("connections.deaths.generator_lost > 200",))
    silenced = EventCounts(chosen=30, ended=30, silenced=30, gone=30)
    is_early = vanishes_s < 4.0
    held_before = 70 if is_early else 100
    held_again = held if is_early else held + 30
    writer = new_run(tmp_path / "run.db", plan)
    writer.phase(Phase("hold", 1.0))
    writer.tick(2.0, Tick(second=1, held=100, opened=100, sent=100, answered=100))
    writer.tick(4.0, Tick(second=3, held=held_before, events={1: silenced} if is_early else {}))
    writer.close(False)
    before = read_interrupted(writer.path)
    writer = RunWriter.resume(before.path, {}, recorded=before.recorded, restart=False)
    writer.gap(Gap(4.0, 9.0))
    writer.tick(4.001, generator_loss(before.held, 0, 0))
    writer.tick(9.0, Tick(second=8, held=held_again, opened=held_again, started=held_again))
    writer.tick(12.0, Tick(second=11, held=held, events={} if is_early else {1: silenced}))
    writer.finding(9.0, resumed(4.0, 5, "hold", before.held, True, ""))
    writer.phase(Phase("drain", 12.0))
    writer.tick(13.0, Tick(second=12, held_at_drain=held, drained=1))
    writer.close(True)
    summary = summarise(read_run(before.path))
    assert (summary.connections.held, summary.verdict) == (held, verdict), summary.why
