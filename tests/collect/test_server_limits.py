"""Limits on tasks, memory of a process and its maps: from trees of files, and of real processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from asyncli.collect.procfs import Stat, read_stat
from asyncli.collect.server_limits import ServerLimits
from asyncli.model.metrics import METRICS

ORDINARY, ROOT = "1000", "0"
NO_CAPABILITY, SYS_RESOURCE = "0000000000000000", "0000000001000000"


def a_process(pid: int, threads: int = 1, parent: int = 1) -> Stat:
    return Stat(pid, "server", "S", parent, 0.0, 0.0, threads, 5)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """A /proc in ``root`` with these files, and cgroups beside it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc"


def limits_of(tasks: str = "unlimited", address_space: str = "unlimited") -> str:
    return (
        f"Max processes             {tasks}                20000                processes\n"
        f"Max address space         {address_space}            unlimited            bytes\n"
    )


def of_user(user: str, capabilities: str = NO_CAPABILITY) -> str:
    return f"Name:\tserver\nUid:\t{user}\t0\t0\t0\nCapEff:\t{capabilities}\n"


@pytest.mark.parametrize(
    ("kind", "cgroup"), [("cgroup", "8:pids:/outer/inner\n0::/\n"), ("cgroup2", "0::/outer/inner\n")]
)
def test_the_group_with_the_least_room_of_either_version(
    tmp_path: Path, kind: str, cgroup: str
) -> None:
    mount = tmp_path / "groups"
    proc = tree(
        tmp_path,
        {
            "proc/7/limits": limits_of(),
            "proc/7/status": of_user(ROOT),
            "proc/7/cgroup": cgroup,
            "proc/self/mountinfo": f"36 32 0:33 / {mount} rw - {kind} {kind} rw,pids\n",
            "groups/outer/inner/pids.max": "max\n",
            "groups/outer/inner/pids.current": "20\n",
            "groups/outer/pids.max": "300\n",
            "groups/outer/pids.current": "290\n",
            "groups/pids.current": "400\n",
        },
    )
    limits = ServerLimits(lambda: [a_process(7)], proc=proc)
    assert limits.read().values == {"server.group_tasks": 290.0, "server.group_tasks_limit": 300.0}
    # The group itself may have less room than the one above it.
    (mount / "outer/inner/pids.max").write_text("21\n")
    assert limits.read().values == {"server.group_tasks": 20.0, "server.group_tasks_limit": 21.0}
    (mount / "outer/inner/pids.max").write_text("max\n")
    (mount / "outer/pids.max").write_text("max\n")
    assert limits.read().values == {}


@pytest.mark.parametrize(
    ("user", "capabilities", "is_bound"),
    [(ORDINARY, NO_CAPABILITY, True), (ROOT, NO_CAPABILITY, False), (ORDINARY, SYS_RESOURCE, False)],
)
def test_the_tasks_of_the_servers_user(
    tmp_path: Path, user: str, capabilities: str, is_bound: bool
) -> None:
    files = {"proc/7/limits": limits_of(tasks="100"), "proc/7/status": of_user(user, capabilities)}
    proc = tree(tmp_path, files)
    living = [a_process(7, threads=3)]
    limits = ServerLimits(lambda: living, proc=proc)
    expected = {}
    if is_bound:
        expected = {"server.user_tasks": 3.0, "server.user_tasks_limit": 100.0}
    assert limits.read().values == expected
    # A child has the user of its parent, also where it is not read.
    living.append(a_process(8, threads=2, parent=7))
    if is_bound:
        expected["server.user_tasks"] = 5.0
    assert limits.read().values == expected


def test_other_processes_of_the_user_take_tasks_too(tmp_path: Path) -> None:
    owner = str(os.stat(tmp_path).st_uid or ORDINARY)
    fields = " ".join(["0"] * 12)
    proc = tree(
        tmp_path,
        {
            "proc/7/limits": limits_of(tasks="100"),
            "proc/7/status": of_user(owner),
            # 17 fields behind the name, then the threads (proc(5)).
            "proc/9/stat": f"9 (other) S 1 0 0 {fields} 0 6 0 5 0\n",
        },
    )
    os.chown(proc / "9", int(owner), -1)
    values = ServerLimits(lambda: [a_process(7, threads=3)], proc=proc).read().values
    assert values["server.user_tasks"] == 3.0 + read_stat(9, proc).threads
    assert read_stat(9, proc).threads > 0


@pytest.mark.parametrize(("threads", "pids", "limit"), [(1000, 4_194_304, 1000), (5000, 1300, 1000)])
def test_the_tasks_of_the_host(tmp_path: Path, threads: int, pids: int, limit: int) -> None:
    proc = tree(
        tmp_path,
        {
            "proc/loadavg": "0.10 0.20 0.30 3/412 9999\n",
            "proc/sys/kernel/threads-max": f"{threads}\n",
            "proc/sys/kernel/pid_max": f"{pids}\n",
        },
    )
    values = ServerLimits(lambda: [a_process(7)], proc=proc).read().values
    assert values == {"host.tasks": 412.0, "host.tasks_limit": float(limit)}


def test_the_address_space_of_the_process_that_is_closest_to_its_limit(tmp_path: Path) -> None:
    files = {}
    for pid, limit, kilobytes in ((7, "1000000", 40), (8, "1000000", 80), (9, "unlimited", 90)):
        files[f"proc/{pid}/limits"] = limits_of(address_space=limit)
        files[f"proc/{pid}/status"] = f"{of_user(ROOT)}VmSize:\t{kilobytes} kB\n"
    proc = tree(tmp_path, files)
    values = ServerLimits(lambda: [a_process(pid) for pid in (7, 8, 9)], proc=proc).read().values
    assert values == {
        "server.address_space_bytes": 80.0 * 1024,
        "server.address_space_limit_bytes": 1e6,
    }


def test_each_limit_on_memory_by_what_it_counts(tmp_path: Path) -> None:
    limits = limits_of(address_space="8000000") + "Max data size   4000000   unlimited   bytes\n"
    counted = "VmSize:\t    6000 kB\nVmData:\t    3000 kB\n"
    proc = tree(tmp_path, {"proc/7/limits": limits, "proc/7/status": of_user(ROOT) + counted})
    assert ServerLimits(lambda: [a_process(7)], proc=proc).read().values == {
        "server.address_space_bytes": 6000.0 * 1024,
        "server.address_space_limit_bytes": 8e6,
        "server.data_bytes": 3000.0 * 1024,
        "server.data_limit_bytes": 4e6,
    }


def test_the_maps_of_the_largest_process(tmp_path: Path) -> None:
    proc = tree(
        tmp_path,
        {
            "proc/7/statm": "10 1\n",
            "proc/7/maps": "a\n",
            "proc/8/statm": "20 1\n",
            "proc/8/maps": "a\nb\nc\n",
            "proc/sys/vm/max_map_count": "65530\n",
        },
    )
    limits = ServerLimits(lambda: [a_process(7), a_process(8)], proc=proc)
    assert limits.read_mappings().values == {
        "server.mappings": 3.0, "server.mappings_limit": 65530.0,
    }  # fmt: skip
    (proc / "8/maps").unlink()
    assert limits.read_mappings().values == {}


def test_nothing_of_a_server_that_has_ended(tmp_path: Path) -> None:
    limits = ServerLimits(list, proc=tmp_path)
    assert (limits.read().values, limits.read_mappings().values) == ({}, {})


def test_a_thread_of_a_real_process_takes_of_all_of_them() -> None:
    script = (
        "import sys, threading, time\n"
        "print(flush=True); sys.stdin.readline()\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print(flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        resource.prlimit(server.pid, resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (6 << 30, 6 << 30))
        limits = ServerLimits(lambda: [read_stat(server.pid)])
        server.stdout.readline()
        before = {**limits.read().values, **limits.read_mappings().values}
        server.stdin.write(b"\n")
        server.stdin.flush()
        server.stdout.readline()
        after = {**limits.read().values, **limits.read_mappings().values}
        server.kill()
    assert set(after) <= set(METRICS)
    assert after["server.address_space_limit_bytes"] == 8 << 30
    assert after["server.data_limit_bytes"] == 6 << 30
    for name in ("server.address_space_bytes", "server.data_bytes"):
        assert after[name] - before[name] > 20 << 16, name
    assert after["server.mappings"] - before["server.mappings"] >= 20
    assert after["host.tasks"] > 0
