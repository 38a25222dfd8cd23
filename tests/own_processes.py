"""The processes of a test: whoever else starts to listen on this host in the same second could be the process of a page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from asyncli.collect.procfs import PROC, Stat, read_stat, tree


def own_processes(proc: Path = PROC) -> Iterator[Stat]:
    """Those that this process started, and what they started."""
    this = read_stat(os.getpid())
    yield from tree([this], proc).values()
