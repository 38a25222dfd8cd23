"""What becomes of an open run file that is taken away, or whose disk stays full: where it is now, and a new home for all of it.

Linux keeps a deleted file as long as somebody has it open, and SQLite goes on reading and writing it, its WAL too; but nobody can
open it by name any more, and with the last descriptor it is gone. A file that was moved is whole only when its WAL is folded in:
SQLite looks for a WAL by the database's name, and folds none into a database that bears another name when it closes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from asyncli.store.schema import beside

#: Device and inode.
Identity = tuple[int, int]
# So many files of one name in a folder are somebody's mistake, and no place for one more.
_MOST_NUMBERS = 100


def identity(path: str | os.PathLike[str]) -> Identity | None:
    """Which file ``path`` names; None where there is none, or none that can be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_files() -> dict[Identity, Path]:
    """The files that this process has open, and where they lie (proc(5), /proc/PID/fd); of a deleted one the place is none."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is gone already.
        with contextlib.suppress(OSError):
            link = f"/proc/self/fd/{name}"
            place = Path(os.readlink(link))
            if (one := identity(link)) is not None:
                found[one] = place
    return found


def moved_to(known: Identity | None) -> Path | None:
    """Where the file lies that this process has open; None where it was deleted."""
    place = None if known is None else open_files().get(known)
    return place if place is not None and identity(place) == known else None


def folded(connection: sqlite3.Connection, place: Path) -> bool:
    """Fold the WAL into the file that was moved to ``place``; whether it is whole now, and can be opened there.

    False where a reader is at it, and where another database's WAL lies beside that name, which SQLite would take for this one's.
    """
    try:
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error:
        return False
    try:
        return not busy and beside(place, "-wal").stat().st_size == 0
    except OSError:
        return not busy


def homes(path: Path) -> Iterator[Path]:
    """Free names for the whole of what was ``path``: there, beside it, in the current folder, in that for temporary files."""
    # Where the current folder was removed as well nothing can be made in it, and whoever asks takes the next name.
    for folder in dict.fromkeys((path.parent, Path("."), Path(tempfile.gettempdir()))):
        if not folder.is_dir():
            continue
        for number in range(1, _MOST_NUMBERS):
            place = folder / (path.name if number == 1 else f"{path.stem}-{number}{path.suffix}")
            if not os.path.lexists(place):
                yield place
                break


def write_whole(connection: sqlite3.Connection, place: Path, claim: Callable[[Path], None]) -> None:
    """All of the open database as a new file ``place``, which ``claim`` makes. Raises ``sqlite3.Error`` and what ``claim`` does.

    By SQLite's backup (https://www.sqlite.org/backup.html), which reads what only the WAL holds too.
    """
    claim(place)
    try:
        with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as copy:
            connection.backup(copy)
    except sqlite3.Error:
        for suffix in ("", "-journal"):
            beside(place, suffix).unlink(missing_ok=True)
        raise
