"""Workers of nginx that the kernel kills for lack of memory, and that their master replaces at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import fault_table
import psutil
import pytest
from memory_groups import own_group
from programs import until
from provoked import N, Nginx, Told, an_nginx, struck

from asyncli.collect.kernel_log import KERNEL_LOG

pytestmark = pytest.mark.nginx
_LIMIT = 64 << 20
# Eight processes take twice the limit of the group that they join: each is smaller than what the kernel prefers as its victim.
_HOG = """
import os, sys
open(sys.argv[1], "w").write("0")
for _ in range(3):
    os.fork()
taken = bytearray(b"x") * (int(sys.argv[2]) // 8)
"""


def workers_of(server: Nginx) -> list[psutil.Process]:
    return psutil.Process(server.pid).children()


def join(group: Path, pids: list[int]) -> None:
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


def lack_memory(server: Nginx, group: Path) -> None:
    """Have the kernel kill the server's workers: those that it prefers where the group lacks memory."""
    workers = workers_of(server)
    join(group, [worker.pid for worker in workers])
    for worker in workers:
        Path(f"/proc/{worker.pid}/oom_score_adj").write_text("1000")
    hog = [sys.executable, "-c", _HOG, str(group / "cgroup.procs"), str(2 * _LIMIT)]
    subprocess.run(hog, check=False)
    until(lambda: not any(map(psutil.Process.is_running, workers)), "its workers are killed")


def kill_a_sidecar(group: Path) -> None:
    """Have the kernel kill another program of the group for lack of memory."""
    hog = [sys.executable, "-c", _HOG, str(group / "cgroup.procs"), str(64 * _LIMIT)]
    assert subprocess.run(hog, check=False).returncode == -signal.SIGKILL


def require_told(test: str, told: Told, code: str) -> None:
    """Require that nothing says that the kernel killed the server's processes."""
    told.show()
    assert {(one.code, one.certain) for one in told.diagnoses} == {(code, True)}
    assert not any("kernel killed" in words for words in told.findings.values())
    fault_table.require_as_written(test, told.summary)


def require_killed(test: str, told: Told) -> None:
    told.show()
    assert {(one.code, one.certain) for one in told.diagnoses} == {("worker_crash", True)}
    assert "server_reloaded" not in told.findings
    fault_table.require_as_written(test, told.summary)


@pytest.fixture
def kernel_log() -> None:
    """Skips where the kernel's log may not be read: then it is not known what it killed."""
    try:
        os.close(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pytest.skip("the kernel's log may not be read here")


@pytest.mark.usefixtures("kernel_log")
def test_workers_that_are_killed_for_memory_are_no_reload(tmp_path: Path) -> None:
    with own_group(_LIMIT) as group, an_nginx() as server:
        join(group, [server.pid, *(worker.pid for worker in workers_of(server))])
        told = struck(tmp_path, server, lambda: lack_memory(server, group), N)
    require_killed("test_workers_that_are_killed_for_memory_are_no_reload", told)


@pytest.mark.usefixtures("kernel_log")
def test_victims_of_a_group_that_is_not_read(tmp_path: Path) -> None:
    """They join the group that lacks memory in the hold, and the one that is read is another."""
    with own_group(_LIMIT) as group, an_nginx() as server:
        told = struck(tmp_path, server, lambda: lack_memory(server, group), N)
    require_killed("test_victims_of_a_group_that_is_not_read", told)


@pytest.mark.usefixtures("kernel_log")
def test_a_sidecar_that_is_killed_before_a_worker_crashes(tmp_path: Path) -> None:
    def strike() -> None:
        kill_a_sidecar(group)
        os.kill(server.worker(), signal.SIGSEGV)

    with own_group(_LIMIT) as group, an_nginx() as server:
        join(group, [server.pid, *(worker.pid for worker in workers_of(server))])
        told = struck(tmp_path, server, strike, 20)
    require_told("test_a_sidecar_that_is_killed_before_a_worker_crashes", told, "worker_crash")


def test_a_sidecar_that_is_killed_before_a_reload(tmp_path: Path) -> None:
    def strike() -> None:
        kill_a_sidecar(group)
        os.kill(server.pid, signal.SIGHUP)

    with own_group(_LIMIT) as group, an_nginx() as server:
        join(group, [server.pid, *(worker.pid for worker in workers_of(server))])
        told = struck(tmp_path, server, strike, N)
    require_told("test_a_sidecar_that_is_killed_before_a_reload", told, "reload")
