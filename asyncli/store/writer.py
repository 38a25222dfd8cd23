"""Writes a run file during the run: one connection, one thread, a commit a second.

The plan and the environment are on the disk before :meth:`RunWriter.create` returns, so even a run
that is killed at once has them. Later records reach the disk within about a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from asyncli.findings.runfile import run_file_back, run_file_moved, run_file_trouble
from asyncli.model.errors import StoreError
from asyncli.model.private_values import private_values, recorded_document
from asyncli.model.records import SCHEMA, Check, Finding, Gap, Phase, RunEvent, Sample, Tick
from asyncli.model.text import plain
from asyncli.store.events import decode_event, encode_event, rows_after
from asyncli.store.lock import lock
from asyncli.store.schema import (
    ADD_EVENT,
    ADDED_COLUMNS,
    APPLICATION_ID,
    EVENTS,
    GAPS,
    RECORDED,
    RESUMED_SCHEMA,
    TABLES,
    beside,
)
from asyncli.store.second_file import copied_elsewhere

COMMIT_EVERY_S = 1.0
# While the disk refuses writes, records wait in memory: two a second, about 5 kB each, so this is
# more than an hour and less than 50 MB. Beyond it ticks and samples are dropped and counted.
# Findings are few and explain what happened: they have as much room again, so a flood of them (an
# agent with a new one each second) is bounded too.
MOST_WAITING = 10_000
# At the end there is no next second to retry in; a disk that is still full after this stays full.
_LAST_TRIES = 4
_LAST_WAIT_S = 0.5
# Another process may hold SQLite's lock for a moment (a shell with an open transaction); only the
# writer's thread waits for it.
_BUSY_S = 1.0

_Row = tuple[Any, ...]
_Statement = tuple[str, list[_Row]]

_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
_METRIC = "INSERT OR IGNORE INTO metrics VALUES (?, ?)"
_PHASE = (
    "INSERT INTO phases VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET start_s = ?2, end_s = ?3"
)
_TICK = "INSERT INTO ticks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SAMPLE = "INSERT INTO samples VALUES (?, ?, ?)"
_FINDING = "INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?)"
_GAP = "INSERT INTO gaps VALUES (?, ?) ON CONFLICT (start_s) DO UPDATE SET end_s = ?2"
_CHECK = "INSERT OR REPLACE INTO checks VALUES (?, ?)"

# sqlite3's errors about the data rather than the disk: a text that is not UTF-8, a number beyond 64
# bits.
_UNFIT = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
)

_pack = msgspec.msgpack.Encoder().encode


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


class RunWriter:
    """The writer of a run file. Every method but :meth:`create` and :meth:`close` returns at once.

    While the disk refuses writes, records wait in memory and are retried each second; ``trouble``
    is the error (None: none), and ``dropped`` counts lost records. ``lost``: the file was moved,
    deleted or emptied; a moved one is complete once closed. :meth:`news` has findings about both.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        environment: Mapping[str, Any],
        lock_fd: int | None,
        last_event: int = 0,
    ) -> None:
        self.path = path
        #: The file that has the whole run, after :meth:`close`.
        self.whole_path = path
        self.trouble: str | None = None
        self.dropped = 0
        self._connection = connection
        self._lock_fd = lock_fd
        self.lost = False
        self._identity, self._size = _identity(path)
        self._troubled_s: float | None = None
        # The error of the last commit that failed.
        self._refusal = ""
        self._new_events: list[RunEvent] = []
        # The row of the last event that was seen.
        self._last_event = last_event
        self._news: list[Finding] = []
        self._now_s = 0.0
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._waiting: list[_Statement] = []
        # Statements of a commit that may be waiting for SQLite's lock.
        self._committing = 0
        self._metrics: dict[str, int] = {}
        self._wake = threading.Event()
        self._closing: bool | None = None
        # A daemon: an exception that skips close() must not hang the program.
        self._thread = threading.Thread(target=self._run, name="asyncli-run-file", daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        run_id: str,
        started_wall_s: float,
        plan_document: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> Self:
        """Create a run file with environment and plan, without its secrets. ``started_wall_s``:
        Unix time of the run's start.

        Raises :class:`StoreError` if the file exists or cannot be written.
        """
        path = Path(path)
        meta = {
            "id": run_id,
            "started_wall_s": _json(started_wall_s),
            "plan": _json(recorded_document(plan_document)),
            "environment": _json(plain(environment)),
            "complete": "false",
        }
        # It has no secret, but texts of the server that may quote one. SQLite gives -wal and -shm
        # the mode of the file.
        _make(path, 0o600 if private_values(plan_document) else 0o644)
        lock_fd = _acquire_lock(path)
        connection = None
        try:
            connection = _open(path)
            connection.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA}; {TABLES}"
            )
            connection.executemany(_META, meta.items())
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            for leftover in (path, beside(path, "-wal"), beside(path, "-shm")):
                leftover.unlink(missing_ok=True)
            _release_lock(lock_fd)
            raise StoreError(
                f"{path}: {error_text(error)}; name a file on a disk with room with --out"
            ) from None
        return cls(path, connection, environment, lock_fd)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        environment: Mapping[str, Any],
        *,
        recorded: int,
        restart: bool,
    ) -> Self:
        """Open the run file ``path`` to resume it; ``restart`` deletes its phases, for a run
        interrupted before its hold. ``recorded``: the value of ``schema.RECORDED`` when it was
        read. Raises :class:`StoreError` if another process writes or wrote it, or it cannot be
        written.
        """
        path = Path(path)
        lock_fd = _acquire_lock(path)
        connection = None
        try:
            connection = _open(path)
            if connection.execute(RECORDED).fetchone() != (recorded,):
                connection.close()
                _release_lock(lock_fd)
                raise StoreError(
                    f"{path}: another process has just resumed its run; see 'asyncli report {path}'"
                )
            script = f"BEGIN; PRAGMA user_version = {RESUMED_SCHEMA}; {GAPS} {EVENTS}"
            for table, column, definition in ADDED_COLUMNS:
                if column not in _columns(connection, table):
                    script += f" ALTER TABLE {table} ADD COLUMN {column} {definition};"
            if restart:
                script += " DELETE FROM phases;"
            connection.executescript(script)
            connection.execute("COMMIT")
            metrics = dict(connection.execute("SELECT name, id FROM metrics"))
            (last_event,) = connection.execute(
                "SELECT coalesce(max(rowid), 0) FROM events"
            ).fetchone()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            _release_lock(lock_fd)
            raise StoreError(
                f"{path}: {error_text(error)}; free space on its disk, or make it writable"
            ) from None
        writer = cls(path, connection, environment, lock_fd, last_event)
        writer._metrics = metrics
        return writer

    def phase(self, phase: Phase) -> None:
        """Record or update a phase."""
        self._now_s = phase.start_s if phase.end_s is None else phase.end_s
        self._put(_PHASE, [(phase.name, phase.start_s, phase.end_s)])

    def gap(self, gap: Gap) -> None:
        """Record a gap, or its end; only in a resumed file."""
        self._put(_GAP, [(gap.start_s, gap.end_s)])

    def tick(self, t_s: float, tick: Tick) -> None:
        """Record a tick, received at ``t_s`` on the run's clock."""
        self._now_s = t_s
        row = (
            t_s,
            tick.second,
            tick.held,
            tick.opened,
            tick.lost,
            tick.sent,
            tick.answered,
            _pack(tick),
        )
        self._put(_TICK, [row], room=MOST_WAITING)

    def sample(self, sample: Sample) -> None:
        """Record a sample's values; non-finite ones are skipped."""
        rows = []
        new_metrics = []
        for name, value in sample.values.items():
            if not math.isfinite(value):  # SQLite has no NaN
                continue
            number = self._metrics.get(name)
            if number is None:
                number = self._metrics[name] = len(self._metrics) + 1
                new_metrics.append((number, name))
            rows.append((sample.t_s, number, float(value)))
        if new_metrics:
            self._put(_METRIC, new_metrics)
        if rows:
            self._put(_SAMPLE, rows, room=MOST_WAITING)

    def finding(self, t_s: float, finding: Finding) -> None:
        """Record a finding, made at ``t_s`` on the run's clock."""
        row = (
            t_s,
            finding.code,
            finding.severity,
            finding.evidence,
            finding.remedy,
            _json(finding.fields),
        )
        self._put(_FINDING, [row], room=2 * MOST_WAITING)

    def event(self, event: RunEvent) -> None:
        """Record something that was done to the run."""
        self._put(ADD_EVENT, [encode_event(event)])

    def checks(self, checks: Iterable[Check]) -> None:
        """Record the preflight's limits; a second call replaces the rows of the first."""
        self._put(_CHECK, [(place, _json(check)) for place, check in enumerate(checks)])

    def environment(self, environment: Mapping[str, Any]) -> None:
        """Add to the environment; existing keys are overwritten."""
        self._environment.update(environment)
        self._put(_META, [("environment", _json(plain(self._environment)))])

    def plan(self, plan_document: Mapping[str, Any]) -> None:
        """Record the plan again, with values computed since, without its secrets."""
        self._put(_META, [("plan", _json(recorded_document(plan_document)))])

    def news(self) -> list[Finding]:
        """Findings about the file since the last call; they are already recorded."""
        with self._lock:
            news = self._news
            self._news = []
        return news

    def new_events(self) -> list[RunEvent]:
        """The events that other processes recorded since the last call, such as marks: each within
        about two seconds.
        """
        with self._lock:
            new_events = self._new_events
            self._new_events = []
        return new_events

    def close(self, complete: bool) -> None:
        """Write what waits, mark a ``complete`` run, close the file. Blocks; may be repeated; never
        raises: see ``trouble``. What its disk does not take by then is written into another file
        with the whole run, ``whole_path``.
        """
        if self._closing is None:
            self._closing = complete
        self._wake.set()
        self._thread.join()

    def _put(self, sql: str, rows: list[_Row], *, room: int | None = None) -> None:
        """Queue rows; ``room``: drop them if so many statements wait already (None: never)."""
        with self._lock:
            if room is not None and len(self._waiting) + self._committing >= room:
                self.dropped += 1
            else:
                self._waiting.append((sql, rows))

    # The following methods run in the writer's thread, which owns the connection.

    def _run(self) -> None:
        while not self._wake.wait(COMMIT_EVERY_S):
            self._commit()
            self._read_events()
        last: _Statement = (
            _META,
            [("complete", _json(bool(self._closing))), ("dropped", _json(self.dropped))],
        )
        self._put(*last)
        for attempt in range(_LAST_TRIES):
            # The second commit writes the findings of the first.
            if self._commit() and self._commit():
                break
            if attempt < _LAST_TRIES - 1:
                time.sleep(_LAST_WAIT_S)
        else:
            self._save_elsewhere()
        with contextlib.suppress(sqlite3.Error):
            # Back to a rollback journal, so that the file alone can be opened in a read-only
            # folder. If a reader or a new name prevents that, move the WAL into the file.
            if self.lost or self._connection.execute("PRAGMA journal_mode = DELETE").fetchone() != (
                "delete",
            ):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if self.lost and not os.path.lexists(self.path):
            for leftover in (beside(self.path, "-wal"), beside(self.path, "-shm")):
                with contextlib.suppress(OSError):
                    leftover.unlink()
        _release_lock(self._lock_fd)

    def _save_elsewhere(self) -> None:
        """Write the whole run into another file: this one's disk takes nothing."""
        copy = copied_elsewhere(self._connection, self.path.name, self._write_waiting)
        if copy is None:
            self.trouble = (
                f"{self.path}: the last records could not be written; the end of the run is missing"
            )
            return
        self.trouble = (
            f"{self.path}: {self._refusal}, so the end of the run is missing there; the whole run "
            f"is in {copy}: move it to where there is space"
        )
        self.whole_path = copy

    def _write_waiting(self, connection: sqlite3.Connection) -> None:
        """Write all that waits into another file."""
        with self._lock:
            batch = self._waiting
        for sql, rows in batch:
            _write(connection, sql, rows)

    def _commit(self) -> bool:
        """Write all in one transaction; after a failure the records wait. True if nothing
        is left.
        """
        batch: list[_Statement] = []
        try:
            self._check_file()
            with self._lock:
                batch = self._waiting
                self._waiting = []
                self._committing = len(batch)
            if not batch:
                return True
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            unfit = sum(not _write(self._connection, sql, rows) for sql, rows in batch)
            self._connection.execute("COMMIT")
            self._committing = 0
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            with self._lock:
                self._waiting = batch + self._waiting
                self._committing = 0
            self._refusal = error_text(error)
            self.trouble = (
                f"{self.path}: {self._refusal}; free space on its disk: records wait in memory "
                "meanwhile"
            )
            if self._troubled_s is None:
                self._troubled_s = time.monotonic()
                self._report(run_file_trouble(self.trouble))
            return False
        self.dropped += unfit
        self.trouble = None
        if self._troubled_s is not None:
            waited_s = time.monotonic() - self._troubled_s
            self._troubled_s = None
            self._report(run_file_back(str(self.path), waited_s, self.dropped))
        if self.dropped:
            self.trouble = (
                f"{self.path}: {self.dropped:,} records were dropped while it could not be written"
            )
        return True

    def _read_events(self) -> None:
        """Read what other processes added. What is no event, as by hand, is passed over."""
        try:
            rows = rows_after(self._connection, self._last_event)
        except (sqlite3.Error, UnicodeError):
            return  # tried again in a second
        for row, *columns in rows:
            self._last_event = row
            try:
                event = decode_event(columns)
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                continue
            with self._lock:
                self._new_events.append(event)

    def _check_file(self) -> None:
        """Report once that the file was moved, deleted or emptied; writing to it continues."""
        if self.lost:
            return
        was_written = self._size > 0
        identity, self._size = _identity(self.path)
        is_emptied = was_written and not self._size
        if identity != self._identity or is_emptied:
            self.lost = True
            self._report(run_file_moved(str(self.path)))

    def _report(self, finding: Finding) -> None:
        """Record the finding, and return it by :meth:`news`."""
        self.finding(self._now_s, finding)
        with self._lock:
            self._news.append(finding)


def _write(connection: sqlite3.Connection, sql: str, rows: list[_Row]) -> bool:
    """False for rows that SQLite refuses, which must not block the others."""
    try:
        connection.executemany(sql, rows)
    except _UNFIT:
        return False
    return True


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit has reached the disk when it returns, so a power cut costs one second at
        # most.
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}


def _identity(path: Path) -> tuple[tuple[int, int] | None, int]:
    """Device and inode of ``path``, and its size (bytes); None and 0 if it does not exist or cannot
    be read.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size


def _acquire_lock(path: Path) -> int | None:
    try:
        return lock(path)
    except BlockingIOError:
        raise StoreError(
            f"{path}: another process is writing its run; follow it with 'asyncli watch {path}'"
        ) from None


def _release_lock(lock_fd: int | None) -> None:
    if lock_fd is not None:
        os.close(lock_fd)


def require_free(path: Path) -> None:
    """Raise :class:`StoreError` if ``path`` exists or its folder does not: before a server is
    started for the run.
    """
    if os.path.lexists(path):
        raise StoreError(
            f"{path}: exists already and is never overwritten; name another file with --out"
        )
    if not os.path.isdir(path.parent):
        raise StoreError(
            f"{path}: there is no folder {path.parent}; create it, or name another file with --out"
        )


def _make(path: Path, mode: int) -> None:
    """Create ``path`` as a new empty file."""
    require_free(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be created ({error.strerror}); name another file with --out"
        ) from None


def error_text(error: Exception) -> str:
    """SQLite's error text with the code's name, without which a failed write is unclear."""
    name = getattr(error, "sqlite_errorname", "")
    if not name:
        return f"cannot be written ({error})"
    return f"cannot be written ({error}, {name})"
