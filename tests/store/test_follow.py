"""Following a run file: the first read is short and gives the same sums as the whole; later reads miss and repeat nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import until
from recording import new_run, write_run
from synthetic_run import a_run, cut

from asyncli.live.following import fold_news
from asyncli.model.plan import Plan
from asyncli.model.records import Deaths, EventCounts, Finding, Gap, Phase, Sample, Tick
from asyncli.model.run import Run
from asyncli.report.livestate import LiveFold, LiveState
from asyncli.store import follow
from asyncli.store.follow import Follower, News, last_written_s
from asyncli.store.reader import read_run
from asyncli.store.resume import read_interrupted
from asyncli.store.writer import RunWriter


def eventful(hold_s: float = 600.0) -> Run:
    """A run in its hold; some seconds had losses, some refused connects."""
    run = a_run(connections=2000, hold_s=hold_s)
    cut(run, run.phases[3].start_s - 0.001)
    for place, (_, tick) in enumerate(run.ticks[40:-60:50]):
        tick.deaths["reset"] = Deaths(count=5)
        tick.opened = tick.reopened = 3 + place % 2
    for _, tick in run.ticks[60:80]:
        tick.held, tick.failures = 1995, {"refused": 7}
    return run


def looked(news: News) -> LiveState:
    fold = LiveFold(news.plan)
    fold_news(fold, news)
    return fold.state()


def whole(path: Path) -> LiveState:
    """The sums of a full read."""
    run = read_run(path)
    return looked(News(run.plan, run.phases, run.ticks, list(run.samples), [(0.0, one) for one in run.findings], run.complete))


def test_the_first_read_sums_like_a_full_read_and_decodes_only_seconds_with_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(eventful(), tmp_path / "run.db")
    opened = []
    decode = follow.decode_tick
    monkeypatch.setattr(follow, "decode_tick", lambda payload: opened.append(payload) or decode(payload))
    news = Follower(path).news()
    assert looked(news) == whole(path)
    assert news.plan.connections == 2000
    # Those of the ramp, those with a loss, and those in which not all were held.
    assert len(opened) < 60
    assert len(news.ticks) < 20
    assert len(news.samples) < 40
    assert len(read_run(path).ticks) > 600


def test_who_was_away_before_the_first_read_is_away(tmp_path: Path) -> None:
    run = a_run(2000)
    # A storm whose turns last longer than what a first read has second by second.
    hold_s = run.phases[2].start_s
    for t_s, tick in run.ticks:
        if hold_s + 5 < t_s < hold_s + 30:
            tick.held = 1000
            tick.events[1] = EventCounts(attempts=10)
    stormy = next(tick for _, tick in run.ticks if tick.events)
    stormy.events[1].ended = 1000
    state = looked(Follower(write_run(cut(run, hold_s + 29.5), tmp_path / "run.db")).news())
    assert state.away == 1000 - 10 * sum(1 for t_s, tick in run.ticks if tick.events and t_s < hold_s + 29.5)


def test_an_interruption_is_no_part_of_the_holds_progress(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer = new_run(path, Plan(urls=("http://127.0.0.1/",), connections=10, hold_s=40.0), started_s=time.time())
    writer.phase(Phase("hold", 10.0))
    writer.tick(20.0, Tick(second=20, held=10, opened=10))
    writer.close(False)
    before = read_interrupted(path)
    writer = RunWriter.resume(path, {}, recorded=before.recorded, restart=False)
    writer.gap(Gap(20.0, 50.0))
    writer.tick(60.0, Tick(second=60, held=10))
    writer.close(False)
    state = looked(Follower(path).news())
    # 20 of its 40 s are over.
    assert (state.progress, state.eta_s, state.hold_left_s) == (0.5, 20.0, 20.0)


@pytest.mark.parametrize("seconds", [0, 1, 20])
def test_the_first_read_of_a_run_that_has_just_begun(tmp_path: Path, seconds: int) -> None:
    run = eventful(60.0)
    run.ticks = run.ticks[:seconds]
    run.samples = run.samples[: seconds + 4]
    run.phases = run.phases[: 2 if seconds < 3 else 3]
    path = write_run(run, tmp_path / "run.db")
    news = Follower(path).news()
    if seconds:
        assert looked(news) == whole(path)
    else:
        assert (looked(news).phase, looked(news).held) == ("ramp", 0)


def test_news_is_returned_once(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer = new_run(path, started_s=time.time())
    writer.phase(Phase("ramp", 0.0))
    writer.tick(1.0, Tick(second=1, held=10, opened=10))
    follower = Follower(path)
    news = [_when(follower, lambda one: bool(one.ticks))]
    assert [one.name for one in news[0].phases] == ["ramp"]
    assert follower.news().phases == []
    assert follower.is_open is True
    writer.phase(Phase("ramp", 0.0, 2.0))
    writer.tick(2.0, Tick(second=2, held=20, opened=10))
    writer.sample(Sample(2.0, {"status.active": 21.0}))
    writer.finding(2.0, Finding("odd", "info", "something"))
    later = _when(follower, lambda one: bool(one.findings))
    assert [(t_s, one.code) for t_s, one in later.findings] == [(2.0, "odd")]
    assert ([t_s for t_s, _ in later.ticks], len(later.samples), later.phases) == ([2.0], 1, [Phase("ramp", 0.0, 2.0)])
    assert follower.news().ticks == []
    writer.tick(3.0, Tick(second=3, held=30, opened=10))
    assert [t_s for t_s, _ in _when(follower, lambda one: bool(one.ticks)).ticks] == [3.0]
    writer.close(True)
    assert follower.news().complete is True
    # A read does not keep the writer from closing to a single file.
    assert [one.name for one in tmp_path.iterdir()] == ["run.db"]


def test_the_wal_of_a_killed_run_counts(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run.db", started_s=time.time())
    writer.tick(1.0, Tick(second=1, held=10, opened=10))
    _when(Follower(tmp_path / "run.db"), lambda one: bool(one.ticks))
    (tmp_path / "elsewhere").mkdir()
    for name in ("run.db", "run.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / "elsewhere" / name)
    writer.close(True)
    assert looked(Follower(tmp_path / "elsewhere" / "run.db").news()).held == 10


def _when(follower: Follower, happened: Callable[[News], bool]) -> News:
    return until(lambda: news if happened(news := follower.news()) else None, "it is written")  # type: ignore[return-value]


def test_a_reader_does_not_look_like_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(b"a run")
    os.utime(path, (1000.0, 1000.0))
    (tmp_path / "run.db-wal").touch()
    assert last_written_s(path) == 1000.0


def test_a_file_that_is_touched_without_a_record_is_quiet(tmp_path: Path) -> None:
    """So does a writer whose disk is full, at each try."""
    path = write_run(a_run(100), tmp_path / "run.db")
    follower = Follower(path)
    follower.news()
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 0.5:
        os.utime(path)
        assert not follower.news().has_records
        time.sleep(0.05)
    assert follower.quiet_s >= 0.5
