"""A real server with a thread for each connection: its control group, its address space, and its
private writable memory end before its descriptors.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from contract import document
from fault_table import require_as_written
from programs import Program, recorded, require_whole, until

from asyncli.collect.cgroups import controlled_group
from asyncli.model.exit_status import exit_status

_SERVER = Path(__file__).with_name("threaded_server.py")
_STACK = 8 << 20
_THREADS = 60
_MEMORY = 2 << 30
# A user without other processes, and a Python that every user can run.
_NOBODY_ELSE = 61_234
_PYTHON = "/usr/bin/python3"


@contextlib.contextmanager
def own_group() -> Iterator[Path]:
    """The folder of a control group with that limit of threads, of either version; skips where
    none can be made.
    """
    mounts = Path("/proc/self/mountinfo").read_text()
    ours = controlled_group("pids", Path("/proc/self/cgroup").read_text(), mounts)
    if ours is None:
        pytest.skip("no pids controller")
    folder = ours.folder / f"asyncli-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(_THREADS))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip("no control group with a limit of threads can be made here")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "all of the group have ended")
        folder.rmdir()


@contextlib.contextmanager
def threaded(
    confine: Callable[[int], None],
    python: Sequence[str] = (sys.executable,),
    user: int | None = None,
) -> Iterator[str]:
    """The port of the server, which ``confine`` was given before it listened."""
    # The shell waits until it is confined, so that the server begins with its limits.
    command = [*python, "-c", _SERVER.read_text(), str(_STACK)]
    waits = ["sh", "-c", 'read go; exec "$@"', "sh", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(waits, stdin=pipe, stdout=pipe, text=True, user=user, cwd="/") as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            confine(server.pid)
            server.stdin.write("\n")
            server.stdin.flush()
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def soaked(folder: Path, port: str, connections: int, ramp: str) -> dict[str, Any]:
    """The JSON of a soak of so many connections."""
    name = f"run-{connections}.db"
    asked = ["soak", f"http://127.0.0.1:{port}/", "-c", str(connections), "--ramp", ramp]
    asked += ["-k", "4", "--hold", "5", "--baseline", "2", "--residue", "0.2", "--out", name]
    with Program(folder, *asked, name=name) as program:
        program.wait()
    return document(recorded(folder / name))


def ceilings(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {ceiling["name"]: ceiling for ceiling in summary["forecast"]["ceilings"]}


def test_the_threads_of_its_control_group_end_first(tmp_path: Path) -> None:
    with own_group() as group:

        def confine(pid: int) -> None:
            (group / "cgroup.procs").write_text(str(pid))

        with threaded(confine) as port:
            held = soaked(tmp_path, port, 20, "10/s")
            full = soaked(tmp_path, port, 100, "20/s")
    require_whole(exit_status(held["run"]["verdict"]), held)
    # Its main thread, and the one that waits for its end.
    assert ceilings(held)["group_tasks"]["connections"] == _THREADS - 2
    assert held["forecast"]["first"] == "group_tasks"
    assert full["connections"]["held"] == _THREADS - 2
    require_as_written("test_the_threads_of_its_control_group_end_first", full)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start the server as another user")
@pytest.mark.skipif(not os.access(_PYTHON, os.X_OK), reason=f"needs {_PYTHON}")
def test_the_threads_of_its_user_end_first(tmp_path: Path) -> None:
    # Root may lack the right to change the limits of another user's process.
    limited = ("prlimit", f"--nproc={_THREADS}", _PYTHON)
    with threaded(lambda _: None, limited, _NOBODY_ELSE) as port:
        held = soaked(tmp_path, port, 20, "10/s")
        full = soaked(tmp_path, port, 100, "20/s")
    assert ceilings(held)["user_tasks"]["connections"] == _THREADS - 2
    assert held["forecast"]["first"] == "user_tasks"
    assert full["connections"]["held"] == _THREADS - 2
    require_as_written("test_the_threads_of_its_user_end_first", full)


def test_the_address_space_of_its_process_ends_first(tmp_path: Path) -> None:
    full = until_its_memory_ends(tmp_path, resource.RLIMIT_AS, "address_space")
    require_as_written("test_the_address_space_of_its_process_ends_first", full)


def test_the_private_writable_memory_of_its_process_ends_first(tmp_path: Path) -> None:
    full = until_its_memory_ends(tmp_path, resource.RLIMIT_DATA, "data")
    require_as_written("test_the_private_writable_memory_of_its_process_ends_first", full)


def until_its_memory_ends(folder: Path, limit: int, name: str) -> dict[str, Any]:
    """The JSON of a soak beyond the ceiling ``name``, which one below it told."""

    def confine(pid: int) -> None:
        resource.prlimit(pid, limit, (_MEMORY, _MEMORY))

    with threaded(confine) as port:
        held = soaked(folder, port, 60, "6/s")
        full = soaked(folder, port, 300, "40/s")
    truth = full["connections"]["held"]
    assert 60 < truth <= _MEMORY / _STACK
    ceiling = ceilings(held)[name]
    # The first threads take more than later ones, so a slope of few is uncertain.
    if ceiling["connections"] is None:
        assert ceiling["at_least"] <= truth
    else:
        low, high = ceiling["ci95"]
        # Some of the last threads begin, and find no memory for their own work: 248 of 253 served.
        assert 0.97 * low <= truth <= high, (truth, ceiling)
    return full
