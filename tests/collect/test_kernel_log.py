from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncli.collect.kernel_log import KernelLog, killed_pid

KILLED = "Memory cgroup out of memory: Killed process 42 (nginx) total-vm:891416kB, anon-rss:200832kB, UID:0"


@pytest.mark.parametrize(
    ("record", "pid"),
    [
        (f"3,2095,5469764885,-;{KILLED}\n SUBSYSTEM=x\n", 42),
        ("3,1,1,-;Out of memory: Killed process 7 (python3) total-vm:1kB\n", 7),
        # The log of earlier kernels says both.
        ("3,1,1,-;Memory cgroup out of memory: Kill process 7 (python3) score 999 or sacrifice child\n", None),
        ("6,1,1,-;oom_reaper: reaped process 7 (python3), now anon-rss:0kB\n", None),
        # A program wrote it.
        (f"11,1,1,-;{KILLED}\n", None),
        ("", None),
        ("no record", None),
    ],
)
def test_a_record_that_names_a_victim(record: str, pid: int | None) -> None:
    assert killed_pid(record) == pid


def a_log(tmp_path: Path, namespace: str = "pid:[4026531836]") -> tuple[Path, Path]:
    """A log and a proc; the log is a pipe, which is read record by record as well."""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(namespace)
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,1,-;{KILLED}\n")
    return log, tmp_path


def test_victims_among_the_servers_processes_from_now_on(tmp_path: Path) -> None:
    path, proc = a_log(tmp_path)
    pids = [41, 42, 43]
    log = KernelLog(lambda: pids, log=path, proc=proc)
    assert log.read().values == {"server.killed": 0.0}
    # It is dead when the log is read, and one of another program is none of the server's.
    pids.remove(43)
    for pid in (43, 99):
        with path.open("a") as file:
            file.write(f"3,2,2,-;{KILLED.replace('42', str(pid))}\n")
        log.read()
    assert log.read().values == {"server.killed": 1.0}
    log.close()
    assert log.read().values == {}


def test_nothing_where_the_log_is_hidden_or_of_other_pids(tmp_path: Path) -> None:
    path, proc = a_log(tmp_path, "pid:[4026532000]")
    assert KernelLog(lambda: [42], log=path, proc=proc).read().values == {}
    assert KernelLog(lambda: [42], log=tmp_path / "absent").read().values == {}


def test_nothing_after_records_were_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, proc = a_log(tmp_path)
    log = KernelLog(lambda: [42], log=path, proc=proc)

    def overwritten(*_: object) -> bytes:
        raise BrokenPipeError

    monkeypatch.setattr(os, "read", overwritten)
    assert log.read().values == {}
    monkeypatch.undo()
    assert log.read().values == {}
