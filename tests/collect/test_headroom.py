"""A server's headroom in descriptors and memory: of real processes, and of cgroups as files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from asyncli.collect.cgroups import Group, memory_group
from asyncli.collect.headroom import Headroom
from asyncli.model.metrics import METRICS

V1 = "4:memory:/mine\n3:cpu:/\n0::/\n"
MOUNT = "36 32 0:33 / {at} rw,relatime - {kind} {kind} rw,memory\n"
COUNTS = os.stat("/proc/self/fd").st_size > 0


@pytest.mark.skipif(not COUNTS, reason="before Linux 6.2 descriptors cannot be counted without listing them")
def test_the_descriptors_of_the_fullest_process_without_listing_them() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = Headroom(lambda: [os.getpid()]).read().values
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        after = Headroom(lambda: [sleeper.pid, os.getpid(), 2**22 - 1]).read().values
        assert after["server.descriptors"] - before["server.descriptors"] == 10
        assert after["server.descriptors_limit"] == soft
        # The fullest by the share of its limit.
        resource.prlimit(sleeper.pid, resource.RLIMIT_NOFILE, (4, 4))
        for pids in ([os.getpid(), sleeper.pid], [sleeper.pid, os.getpid()]):
            assert Headroom(pids.copy).read().values["server.descriptors_limit"] == 4
        assert set(after) <= set(METRICS)
    finally:
        sleeper.kill()
        sleeper.wait()
        for one in opened:
            os.close(one)
    assert "server.descriptors" not in Headroom(lambda: [sleeper.pid]).read().values
    assert Headroom(list).read().values == {}


HELD_BEFORE = "import os; opened = [os.dup(0) for _ in range(700)]; [os.close(one) for one in opened[:{}]]; print(); input()"


@pytest.mark.skipif(not COUNTS, reason="before Linux 6.2 descriptors cannot be counted without listing them")
@pytest.mark.parametrize(("closed", "known"), [(0, 0), (700, 1000)])
def test_descriptors_that_a_process_once_had(closed: int, known: int) -> None:
    program = [sys.executable, "-c", HELD_BEFORE.format(closed)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        # Of 700 at once a table of 1,024 is left.
        assert known <= Headroom(lambda: [server.pid]).read().values["server.descriptors_closed"] <= 1024 * bool(known)
        server.kill()


def test_the_limit_is_known_where_descriptors_cannot_be_counted(tmp_path: Path) -> None:
    for pid, limit in ((7, 20_000), (8, 1024), (9, "unlimited")):
        (tmp_path / f"{pid}").mkdir()
        # As before Linux 6.2: a directory of size 0.
        (tmp_path / f"{pid}/fd").touch()
        (tmp_path / f"{pid}/limits").write_text(f"Max open files            {limit}                20000                files\n")
    assert Headroom(lambda: [7, 8, 9], proc=tmp_path).read().values == {"server.descriptors_limit": 1024.0}
    assert Headroom(lambda: [9], proc=tmp_path).read().values == {}


def a_proc(tmp_path: Path, **groups: str) -> Path:
    """A /proc of processes (p1...) in cgroups of version 1."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(MOUNT.format(at=tmp_path / "memory", kind="cgroup"))
    for name, group in groups.items():
        (proc / name[1:]).mkdir()
        (proc / name[1:] / "cgroup").write_text(V1.replace("mine", group))
    return proc


def v1(tmp_path: Path, name: str, limit: int, used: int = 5, killed: int = 0) -> Path:
    folder = tmp_path / "memory" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.stat").write_text(f"cache 1\nhierarchical_memory_limit {limit}\ntotal_cache 3\ntotal_shmem 1\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n")
    (folder / "memory.failcnt").write_text("7\n")
    return folder


def test_the_tightest_cgroup_outlives_its_processes(tmp_path: Path) -> None:
    proc = a_proc(tmp_path, p1="free", p2="wide", p3="mine")
    for name, limit in (("free", 2**63 - 4096), ("mine", 1000), ("wide", 2000)):
        v1(tmp_path, name, limit, used=50)
    pids = [1, 2, 3]
    room = Headroom(lambda: pids, proc=proc)
    # Without the page cache, which is reclaimed: files that a server writes fill its cgroup but take no room.
    assert room.read().values == {"server.group_bytes": 48.0, "server.group_killed": 0.0, "server.group_limit_bytes": 1000.0}
    pids.clear()
    v1(tmp_path, "mine", 1000, used=20, killed=1)
    assert room.read().values == {"server.group_bytes": 18.0, "server.group_killed": 1.0, "server.group_limit_bytes": 1000.0}
    for one in (tmp_path / "memory/mine").iterdir():
        one.unlink()
    assert room.read().values == {}


def test_cgroups_of_both_versions(tmp_path: Path) -> None:
    one = Group(v1(tmp_path, "one", 1000, used=50, killed=2), second=False)
    assert (one.used_bytes, one.held_bytes, one.limit_bytes, one.killed) == (50, 48, 1000, 2)
    inner = tmp_path / "v2/outer/inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("3000\n")
    (inner / "memory.current").write_text("40\n")
    (inner / "memory.stat").write_text("file 30\nshmem 10\n")
    (inner / "memory.events").write_text("low 0\nmax 4\noom 1\noom_kill 1\n")
    two = memory_group("0::/outer/inner\n", MOUNT.format(at=tmp_path / "v2", kind="cgroup2"))
    assert two == (inner, True)
    assert (two.used_bytes, two.held_bytes, two.limit_bytes, two.killed) == (40, 20, 3000, 1)
    (inner / "memory.max").write_text("2000\n")
    assert two.limit_bytes == 2000
    assert memory_group(V1, "") is None
