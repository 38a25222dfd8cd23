"""A folder in memory for files; removed when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="asyncli-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


@atexit.register
def clean() -> None:
    """Remove it now: for a process that ends without running atexit."""
    shutil.rmtree(FOLDER, ignore_errors=True)
