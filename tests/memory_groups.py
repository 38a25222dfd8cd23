"""Control groups for a test, of memory and of CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import until

from asyncli.collect.cgroups import controlled_group, memory_group


@contextlib.contextmanager
def own_group(limit_bytes: int) -> Iterator[Path]:
    """The folder of a memory control group of our own with that limit, of either version; skips where none can be made."""
    ours = memory_group(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    folder = ours and ours.folder / f"asyncli-test-{os.getpid()}"
    try:
        if ours is None or folder is None:
            raise OSError
        folder.mkdir()
        (folder / ("memory.max" if ours.second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        with contextlib.suppress(OSError):
            swap, most = ("memory.swap.max", 0) if ours.second else ("memory.memsw.limit_in_bytes", limit_bytes)
            (folder / swap).write_text(str(most))
    except OSError:
        pytest.skip("no memory control group can be made here")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "all of the group have ended")
        folder.rmdir()


@contextlib.contextmanager
def cpu_group(cpus: float) -> Iterator[Path]:
    """The folder of a control group of our own that may use so many cores; skips where none can be made."""
    ours = controlled_group("cpu", Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    folder = ours and ours.folder / f"asyncli-test-cpu-{os.getpid()}"
    period_us = 100_000
    try:
        if ours is None or folder is None:
            raise OSError
        folder.mkdir()
        if ours.second:
            (folder / "cpu.max").write_text(f"{round(cpus * period_us)} {period_us}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(period_us))
            (folder / "cpu.cfs_quota_us").write_text(str(round(cpus * period_us)))
    except OSError:
        pytest.skip("no control group with a quota of CPU can be made here")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "all of the group have ended")
        folder.rmdir()
