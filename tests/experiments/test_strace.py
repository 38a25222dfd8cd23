"""Counts of system calls with the real strace, on programs with known calls."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncli.experiments.counters import count_syscalls, parse_counts
from asyncli.model.errors import HostError

# Says that it is there, and at a line on stdin calls getppid a thousand times.
PROGRAM = """
import os, sys
print(flush=True)
for _ in sys.stdin:
    for _ in range(1000):
        os.getppid()
    print(flush=True)
"""


class Program:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.answer()

    def answer(self) -> None:
        assert self.process.stdout.readline() == b"\n"

    def call(self) -> None:
        self.process.stdin.write(b"\n")
        self.answer()
        # The answer comes before its write returns, and strace counts what has returned: wait until the next read blocks.
        while not re.search(r"^State:\s+S", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE):
            time.sleep(0.001)

    @property
    def tracer(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/status").read_text().partition("TracerPid:")[2].split()[0])


@pytest.fixture
def program() -> Iterator[Program]:
    if shutil.which("strace") is None:
        pytest.skip("no strace on this host; apt-get install strace")
    one = Program()
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


async def test_every_call_of_the_block_is_counted_and_none_after(program: Program) -> None:
    program.call()
    async with count_syscalls([program.process.pid]) as calls:
        program.call()
        program.call()
    program.call()
    assert calls["getppid"] == 2000
    assert calls["write"] == 2
    assert program.tracer == 0


async def test_what_somebody_else_traces_is_refused_in_one_line(program: Program) -> None:
    async with count_syscalls([program.process.pid]):
        with pytest.raises(HostError, match=r"not permitted.*; .*SYS_PTRACE$"):
            async with count_syscalls([program.process.pid]):
                raise AssertionError("attached twice")


async def test_who_has_ended_is_not_waited_for(program: Program) -> None:
    ended = subprocess.Popen(["true"])
    # A zombie, and after it nobody at all.
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(2):
        async with count_syscalls([program.process.pid, ended.pid]) as calls:
            program.call()
        assert calls["getppid"] == 1000
        ended.wait()
    with pytest.raises(HostError, match="No such process"):
        async with count_syscalls([ended.pid]):
            raise AssertionError("attached to nobody")


async def test_cancelled_it_lets_go(program: Program) -> None:
    attached = asyncio.Event()

    async def work() -> None:
        async with count_syscalls([program.process.pid]):
            attached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await attached.wait()
    assert program.tracer
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert program.tracer == 0
    program.call()


def test_the_table_is_read_with_and_without_errors_and_by_older_versions() -> None:
    text = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 14.60    0.000254           0       400       178 read
  8.28    0.000144           2        50           shutdown
  0.00    0.000000           0        11           lseek
------ ----------- ----------- --------- --------- ----------------
100.00    0.001740           1       461       178 total
"""
    assert parse_counts(text) == {"read": 400, "shutdown": 50, "lseek": 11}
    # Before 5.9 the total has no microseconds a call.
    assert parse_counts(text.replace("0.001740           1       461", "0.001740                   461")) == parse_counts(text)
    assert parse_counts("") == {}
