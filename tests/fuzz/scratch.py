"""A folder in memory for what must be a file; gone when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="asyncli-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


@atexit.register
def clean() -> None:
    """Remove it now: for a process that ends without Python's leave."""
    shutil.rmtree(FOLDER, ignore_errors=True)
