"""A second file for a run whose own disk takes nothing more at its end."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

#: A file system in memory, which has space where all disks are full.
_IN_MEMORY = "/dev/shm"


def copied_elsewhere(
    connection: sqlite3.Connection, name: str, add: Callable[[sqlite3.Connection], None]
) -> Path | None:
    """The path of a copy of the run file ``name``, open in ``connection``, with what ``add`` writes
    into it: in the folder for temporary files, else in memory. None: there is no space either.
    """
    for folder in (tempfile.gettempdir(), _IN_MEMORY):
        with contextlib.suppress(OSError):
            descriptor, copy = tempfile.mkstemp(".db", f"{Path(name).stem}-", folder)
            os.close(descriptor)
            if _is_copied(connection, copy, add):
                return Path(copy)
            os.unlink(copy)
    return None


def _is_copied(
    connection: sqlite3.Connection, copy: str, add: Callable[[sqlite3.Connection], None]
) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as other:
            connection.backup(other)
            other.execute("BEGIN IMMEDIATE")
            add(other)
            other.execute("COMMIT")
            # As in a run file that was closed.
            other.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error:
        return False
    return True
