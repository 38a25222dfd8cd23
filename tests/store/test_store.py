"""The run file: what is written can be read, whatever happens to the writer, the disk or the reader."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from programs import until
from recording import a_tick, new_run

import asyncli
from asyncli.model.errors import StoreError
from asyncli.model.plan import Plan
from asyncli.model.records import SCHEMA, Check, Finding, Phase, Sample
from asyncli.model.samples import Samples
from asyncli.store import reader as reader_module
from asyncli.store import second_file
from asyncli.store.follow import Follower
from asyncli.store.reader import read_run
from asyncli.store.run_index import read_index_entry
from asyncli.store.schema import APPLICATION_ID
from asyncli.store.writer import RunWriter

PLAN = Plan(urls=("http://127.0.0.1:8080/",), connections=500, seed=7)


def create(path: Path) -> RunWriter:
    return new_run(path, PLAN, run_id="r1", started_s=1_740_830_400.0, environment={"cpus": 2})


def fill(writer: RunWriter) -> None:
    writer.phase(Phase("baseline", 0.0))
    writer.phase(Phase("baseline", 0.0, 5.0))
    writer.phase(Phase("ramp", 5.0))
    for second in range(1, 4):
        writer.tick(5.0 + second, a_tick(second))
    writer.sample(Sample(1.0, {"host.used_bytes": 1.5e9, "status.active": 1.0}))
    writer.sample(Sample(2.0, {"status.active": 3.0, "kernel.slab.TCP": 17.25}))
    writer.finding(2.5, Finding("slow", "warning", "12 ms", "wait"))
    writer.checks([Check("nofile", "descriptors", "ok", have=20000.0, need=600.0)])
    writer.environment({"server": {"label": "nginx/1.22.1"}})


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a b%20?.db"  # special characters in a URI
    writer = create(path)
    fill(writer)
    writer.close(True)
    writer.close(True)
    assert writer.trouble is None
    assert os.listdir(tmp_path) == [path.name]
    run = read_run(path)
    assert os.listdir(tmp_path) == [path.name]
    assert (run.id, run.started, run.complete, run.plan) == ("r1", "2025-03-01T12:00:00Z", True, PLAN)
    assert run.environment == {"cpus": 2, "server": {"label": "nginx/1.22.1"}}
    assert run.phases == [Phase("baseline", 0.0, 5.0), Phase("ramp", 5.0)]
    assert run.ticks == [(5.0 + second, a_tick(second)) for second in range(1, 4)]
    assert run.samples == [
        Sample(1.0, {"host.used_bytes": 1.5e9, "status.active": 1.0}),
        Sample(2.0, {"status.active": 3.0, "kernel.slab.TCP": 17.25}),
    ]
    assert run.findings == [Finding("slow", "warning", "12 ms", "wait")]
    assert run.checks == [Check("nofile", "descriptors", "ok", have=20000.0, need=600.0)]


def test_counts_can_be_queried_with_sql(tmp_path: Path) -> None:
    writer = create(tmp_path / "run.db")
    fill(writer)
    writer.close(True)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as database:
        rows = database.execute("SELECT t_s, value FROM named_samples WHERE metric = 'status.active'").fetchall()
        counts = database.execute("SELECT sum(lost), max(held) FROM ticks").fetchone()
        marks = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    assert (rows, counts, marks) == ([(1.0, 1.0), (2.0, 3.0)], (6, 30), [APPLICATION_ID, SCHEMA])


def test_plan_and_environment_are_written_first(tmp_path: Path) -> None:
    writer = create(tmp_path / "run.db")
    run = read_run(tmp_path / "run.db")
    writer.close(False)
    assert (run.plan, run.environment, run.ticks, run.complete) == (PLAN, {"cpus": 2}, [], False)
    assert not read_run(tmp_path / "run.db").complete


def test_an_active_reader_does_not_block_the_close(tmp_path: Path) -> None:
    writer = create(tmp_path / "run.db")
    fill(writer)
    other = sqlite3.connect(f"file:{tmp_path}/run.db?mode=ro", uri=True, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM meta").fetchone()
    writer.close(True)
    assert writer.trouble is None
    assert read_run(tmp_path / "run.db").complete
    other.close()


def test_non_finite_numbers_are_skipped(tmp_path: Path) -> None:
    writer = create(tmp_path / "run.db")
    writer.sample(Sample(1.0, {"a": float("nan"), "b": float("inf"), "c": 2.0}))
    writer.finding(1.0, Finding("odd", "info", "a name with \udcff in it"))
    writer.phase(Phase("ramp", 2**64))
    writer.close(True)
    run = read_run(tmp_path / "run.db")
    assert run.samples == [Sample(1.0, {"c": 2.0})]
    assert [finding.evidence for finding in run.findings] == ["a name with ? in it"]
    assert writer.dropped == 1


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the WAL's index cannot be created, file and WAL are copied (simulated: root may write anywhere)."""
    path = tmp_path / "run.db"
    writer = create(path)
    fill(writer)
    real, asked = reader_module._connect, []

    def only_in_copies(at: Path) -> sqlite3.Connection | None:
        asked.append(at)
        return None if at == path else real(at)

    monkeypatch.setattr(reader_module, "_connect", only_in_copies)
    ticks = until(lambda: read_run(path).ticks, "they are written")
    writer.close(True)
    assert len(ticks) == 3
    assert not asked[-1].exists()


@pytest.mark.parametrize("sql", ["value = 1e300", "t_s = x'00'", "metric = 99"])
def test_an_invalid_sample_is_skipped_and_counted(tmp_path: Path, sql: str) -> None:
    """An agent's 1e300 once made a whole night unreadable."""
    path = tmp_path / "run.db"
    writer = create(path)
    for second in range(5):
        writer.sample(Sample(float(second), {"server.pss_bytes": 5.0 + second, "status.active": 1.0}))
    writer.finding(1.0, Finding("slow", "info", "a finding"))
    writer.close(True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as odd:
        odd.execute(f"UPDATE samples SET {sql} WHERE rowid = 5")
    for read in (read_run, read_index_entry):
        run = read(path)
        assert isinstance(run.samples, Samples)
        assert run.samples.column("server.pss_bytes") == ([0.0, 1.0, 3.0, 4.0], [5.0, 6.0, 8.0, 9.0])
        assert run.samples.column("status.active")[1] == [1.0] * 5
        if read is read_run or "metric" not in sql:  # the index reads few metrics
            assert [one.code for one in run.findings] == ["slow", "samples_skipped"]
    assert sum(len(sample.values) for sample in Follower(path).news().samples) == 9


_ODD = ["value = 1e300", "value = 9e12", "value = -1e31", "value = 'many'", "t_s = x'00'", "t_s = 1e31", "metric = 99"]


@pytest.mark.parametrize("row", [4, 5, 6])
@pytest.mark.parametrize("sql", _ODD)
def test_a_report_leaves_out_what_it_does_not_use_and_counts_what_is_odd_as_before(tmp_path: Path, sql: str, row: int) -> None:
    path = tmp_path / "run.db"
    writer = create(path)
    for second in range(5):
        values = {"server.pss_bytes": 5.0, "kernel.tcp_orphan": 3.0, "host.free_bytes": 9e9, "probe.status": 0.1, "probe.slab": 0.2}
        writer.sample(Sample(float(second), values))
    writer.close(True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as odd:
        odd.execute(f"UPDATE samples SET {sql} WHERE rowid = {row}")
    whole, reported = read_run(path), read_run(path, for_report=True)
    assert isinstance(whole.samples, Samples)
    assert isinstance(reported.samples, Samples)
    assert reported.findings == whole.findings
    assert reported.samples.metrics == ("server.pss_bytes", "probe.status")
    for name in reported.samples.metrics:
        assert reported.samples.column(name) == whole.samples.column(name)
    for part in (reported.samples, reported.samples.within((0.0, 2.0))):
        for name in ("kernel.tcp_orphan", "host.free_bytes", "probe.slab"):
            with pytest.raises(LookupError, match=name):
                part.column(name)
    assert whole.samples.column("probe.slab")[1]


def test_waiting_records_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncli.store.writer.MOST_WAITING", 5)
    writer = create(tmp_path / "run.db")
    lock = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    for second in range(9):
        writer.tick(float(second), a_tick(second))
    # Findings have as much room again, which also bounds a flood of them; phases and metadata are always kept.
    for number in range(20):
        writer.finding(9.0, Finding("many", "info", f"number {number}"))
    writer.phase(Phase("ramp", 9.0))
    lock.execute("ROLLBACK")
    lock.close()
    writer.close(True)
    run = read_run(tmp_path / "run.db")
    assert (len(run.ticks), run.dropped, len(run.findings), len(run.phases)) == (5, 4 + 15, 5, 1)
    assert "19 " in (writer.trouble or "")


def _replace(path: Path) -> None:
    path.unlink()
    path.write_text("mine")


def test_an_emptied_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncli.store.writer.COMMIT_EVERY_S", 0.05)
    writer = create(tmp_path / "run.db")
    fill(writer)
    until(lambda: read_run(tmp_path / "run.db").findings, "the writer has come so far")
    assert not writer.lost
    for path in tmp_path.glob("run.db*"):
        if not path.name.endswith("-shm"):
            os.truncate(path, 0)
    until(lambda: writer.lost, "the writer has seen it")
    writer.close(False)
    assert "run_file_moved" in [finding.code for finding in writer.news()]


@pytest.mark.parametrize(
    ("take", "place"),
    [
        (Path.unlink, None),
        (lambda path: shutil.rmtree(path.parent), None),
        (_replace, None),
        (lambda path: path.rename(path.with_name("other.db")), "here/other.db"),
        (lambda path: path.parent.rename(path.parent.with_name("archive")), "archive/run.db"),
    ],
    ids=["deleted", "folder deleted", "replaced", "moved", "folder moved"],
)  # fmt: skip
def test_a_moved_or_deleted_file_is_reported_and_a_moved_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], None], place: str | None
) -> None:
    monkeypatch.setattr("asyncli.store.writer.COMMIT_EVERY_S", 0.05)
    (tmp_path / "here").mkdir()
    writer = create(tmp_path / "here" / "run.db")
    fill(writer)
    until(lambda: read_run(tmp_path / "here" / "run.db").findings, "the writer has come so far")
    take(writer.path)
    until(lambda: writer.lost, "the writer has come so far")
    writer.tick(50.0, a_tick(50))
    writer.close(True)
    assert [one.code for one in writer.news()] == ["run_file_moved"]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    if place is not None:
        run = read_run(tmp_path / place)
        assert [tick.second for _, tick in run.ticks] == [1, 2, 3, 50]
        assert (run.complete, len(run.samples), [one.code for one in run.findings][-1]) == (True, 2, "run_file_moved")
        # In a moved folder an empty WAL is left, which the next open removes.
        assert [one for one in left if not one.endswith(("-wal", "-shm"))] == [place]
    elif take is _replace:
        assert (tmp_path / "here" / "run.db").read_text() == "mine"
    else:
        assert left == []


def test_a_run_file_with_headers_is_private(tmp_path: Path) -> None:
    secret = msgspec.structs.replace(PLAN, headers=("Authorization: Bearer abc",))
    path, umask = tmp_path / "run.db", os.umask(0o022)
    try:
        writer = new_run(path, secret)
        assert {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == dict.fromkeys(
            ("run.db", "run.db-wal", "run.db-shm"), 0o600
        )
        writer.close(True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_a_reader_in_the_writers_process_keeps_its_locks(tmp_path: Path) -> None:
    """Otherwise another process that closes the file would be the last one and delete the WAL."""
    writer = create(tmp_path / "run.db")
    fill(writer)
    until(lambda: read_run(tmp_path / "run.db").findings, "the writer has come so far")
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM ticks').fetchone(); c.close()"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "run.db")], check=True)
    assert (tmp_path / "run.db-wal").exists()
    writer.close(True)


def written_while_locked(path: Path) -> RunWriter:
    """A writer that was closed while its file took nothing: the second tick came too late."""
    writer = create(path)
    writer.tick(1.0, a_tick(1))
    until(lambda: read_run(path).ticks, "the writer has come so far")
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    writer.tick(2.0, a_tick(2))
    writer.close(True)
    lock.execute("ROLLBACK")
    lock.close()
    return writer


def test_a_disk_that_stays_full_leaves_a_whole_run_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = tmp_path / "run.db"
    writer = written_while_locked(path)
    assert str(writer.whole_path) in str(writer.trouble)
    cut = read_run(path)
    assert ([tick.second for _, tick in cut.ticks], cut.complete) == ([1], False)
    assert list((tmp_path / "temporary").iterdir()) == [writer.whole_path]
    whole = read_run(writer.whole_path)
    assert ([tick.second for _, tick in whole.ticks], whole.complete) == ([1, 2], True)


def test_where_no_folder_takes_it_a_run_is_left_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(second_file, "_IN_MEMORY", str(tmp_path / "none"))
    path = tmp_path / "run.db"
    writer = written_while_locked(path)
    assert writer.trouble
    assert writer.whole_path == path
    cut = read_run(path)
    assert ([tick.second for _, tick in cut.ticks], cut.complete) == ([1], False)


@pytest.mark.parametrize(("wrote", "is_of_another"), [("99.0.0", True), (asyncli.__version__, False), (None, False)])
@pytest.mark.parametrize("changes", [{"newoption": 1}, {"events": ["5s teleport"]}])
def test_a_plan_of_a_later_version_is_not_called_damaged(tmp_path: Path, changes: dict[str, object], wrote: str | None, is_of_another: bool) -> None:
    path = tmp_path / "run.db"
    writer = create(path)
    fill(writer)
    writer.close(True)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for key, news in (("plan", changes), ("environment", {"asyncli": wrote})):
            (text,) = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            connection.execute("UPDATE meta SET value = ? WHERE key = ?", (json.dumps({**json.loads(text), **news}), key))
    with pytest.raises(StoreError) as refused:
        read_run(path)
    said = str(refused.value)
    assert ("99.0.0" in said, asyncli.__version__ in said, "damaged" in said) == (is_of_another, is_of_another, not is_of_another)
    assert str(next(iter(changes))) in said
