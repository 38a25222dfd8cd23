"""That a process writes a run file: a lock on it, which ends with the process, however that ends.

By flock(2), which SQLite does not use (https://www.sqlite.org/lockingv3.html) and which other containers see as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

# Whoever looks whether the file is claimed has the lock for a moment.
_TRIES, _AGAIN_S = 20, 0.01


def claim(path: Path) -> int | None:
    """A descriptor that says so for as long as it is open; None where the file cannot be opened.

    Raises BlockingIOError where another process writes it. To be closed after SQLite has closed the file: closing any descriptor
    of a file ends all locks on it that the process has by fcntl(2). Where the file system has no such locks it says nothing.
    """
    try:
        claimed = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                os.close(claimed)
                raise
            time.sleep(_AGAIN_S)
        except OSError:
            break
        else:
            break
    return claimed


def is_claimed(path: Path) -> bool:
    """Whether a process writes the file, as far as the file system tells."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
