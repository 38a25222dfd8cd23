"""Workers of nginx that the kernel kills for lack of memory, and that their master replaces at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fault_table
import psutil
import pytest
from memory_groups import own_group
from programs import until
from provoked import N, Nginx, Told, an_nginx, struck

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


def require_killed(test: str, told: Told, *, certain: bool) -> None:
    told.show()
    assert {(one.code, one.certain) for one in told.diagnoses} == {("worker_crash", certain)}
    assert "server_reloaded" not in told.findings
    fault_table.require_as_written(test, told.summary)


def test_workers_that_are_killed_for_memory_are_no_reload(tmp_path: Path) -> None:
    with own_group(_LIMIT) as group, an_nginx() as server:
        join(group, [server.pid, *(worker.pid for worker in workers_of(server))])
        told = struck(tmp_path, server, lambda: lack_memory(server, group), N)
    require_killed("test_workers_that_are_killed_for_memory_are_no_reload", told, certain=True)


def test_victims_of_the_host_are_likely_the_workers(tmp_path: Path) -> None:
    """They join the group that lacks memory in the hold, and the one that is read is another."""
    with own_group(_LIMIT) as group, an_nginx() as server:
        told = struck(tmp_path, server, lambda: lack_memory(server, group), N)
    require_killed("test_victims_of_the_host_are_likely_the_workers", told, certain=False)
