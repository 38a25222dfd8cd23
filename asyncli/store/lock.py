"""The lock of a run file's writer; it ends with the process.

It is flock(2), which SQLite does not use (https://www.sqlite.org/lockingv3.html) and which works
across containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

# is_locked holds the lock for a moment.
_TRIES, _AGAIN_S = 20, 0.01


def lock(path: Path) -> int | None:
    """Take the lock: a descriptor that holds it while open; None if the file cannot be opened.

    Raises BlockingIOError if another process writes the file. Close it after SQLite has closed the
    file: closing a descriptor releases all fcntl(2) locks of the process on that file. No effect on
    a file system without flock.
    """
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                os.close(held)
                raise
            time.sleep(_AGAIN_S)
        except OSError:
            break
        else:
            break
    return held


def is_locked(path: Path) -> bool:
    """Whether a process writes the file, if the file system supports flock."""
    if not path.is_file():
        return False  # opening a pipe would wait for its writer
    with contextlib.suppress(OSError), path.open("rb") as file:
        return has_writer(file.fileno()) is True
    return False


def has_writer(descriptor: int) -> bool | None:
    """Whether a process writes this open file; None: unknown, on a file system without flock. Where
    none does, the lock is shared until the descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
