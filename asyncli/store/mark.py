"""Writes a mark into the file of a run that another process writes.

The writer must not suffer: SQLite's lock is held for one row, without waiting for the disk, which
the writer's next commit does within a second; and checkpoints are left to the writer.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from asyncli.model.errors import StoreError
from asyncli.model.records import Environment, RunEvent, mark
from asyncli.model.run import Run
from asyncli.store.events import encode_event, has_table
from asyncli.store.lock import has_writer
from asyncli.store.reader import read_frame, read_with
from asyncli.store.schema import ADD_EVENT
from asyncli.store.writer import error_text

# A writer on a slow disk holds SQLite's lock for as long as its commit takes.
_BUSY_S = 5.0


def add_mark(path: Path, text: str, now_s: Callable[[Environment], float]) -> RunEvent:
    """Mark the run in ``path`` while it is written. ``now_s``: the instant on its clock, by its
    environment. Not in the writer's process, where closing the file would end SQLite's locks.

    Raises :class:`StoreError` (one line) for what is no run file, a run that is over, and a file
    that cannot be written; and what ``now_s`` raises.
    """
    run, has_events = read_with(path, _read)
    if run.complete:
        raise _over(path)
    with _kept_open(path) as descriptor:
        if has_writer(descriptor) is False:
            raise StoreError(
                f"{path}: no process on this host writes it, so its run is over; a run is marked "
                "while it lasts"
            )
        if not has_events:
            raise StoreError(
                f"{path}: an older asyncli writes it, whose runs have no marks; note the time "
                "yourself"
            )
        event = mark(now_s(run.environment), text)
        try:
            with contextlib.closing(_open(path)) as connection:
                _add(path, connection, event)
        except sqlite3.Error as error:
            raise _unwritten(path, error) from None
    return event


def _read(connection: sqlite3.Connection) -> tuple[Run, bool]:
    return read_frame(connection), has_table(connection, "events")


@contextlib.contextmanager
def _kept_open(path: Path) -> Iterator[int]:
    """A descriptor of the file, closed after SQLite has closed it: see :func:`lock.lock`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read ({error.strerror}); see its permissions"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri() + "?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _add(path: Path, connection: sqlite3.Connection, event: RunEvent) -> None:
    # Not BEGIN alone: the writer may commit between our read and our write, which then fails.
    connection.execute("BEGIN IMMEDIATE")
    (complete,) = connection.execute("SELECT value FROM meta WHERE key = 'complete'").fetchone()
    if complete == "true":
        raise _over(path)
    connection.execute(ADD_EVENT, encode_event(event))
    connection.execute("COMMIT")


def _over(path: Path) -> StoreError:
    return StoreError(f"{path}: its run is over; a run is marked while it lasts")


def _unwritten(path: Path, error: sqlite3.Error) -> StoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return StoreError(
            f"{path}: another program has locked it; end its transaction and try again"
        )
    return StoreError(
        f"{path}: {error_text(error)}; free space on its disk, or make it and its -wal file "
        "writable"
    )
