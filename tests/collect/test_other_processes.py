"""The memory of programs beside the server, of real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from asyncli.collect import other_processes
from asyncli.collect.other_processes import OtherProcesses

MB = 1_000_000
#: Holds 30 MB until it reads a line, and ends with the next one.
HOLDS = """
import mmap
memory = mmap.mmap(-1, 30_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * 30_000_000)
print("holds", flush=True)
input()
memory.close()
print("gave back", flush=True)
input()
"""


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_program_may_have_less_memory_than_before_and_one_that_has_ended_has_no_part(
    child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of all processes of this host, whichever come first.
    monkeypatch.setattr(other_processes, "_FIRST_READING_S", 60.0)
    assert said(child) == "holds"
    others = OtherProcesses(set, set, [])
    tell(child)
    assert said(child) == "gave back"
    fallen = others._memory([child.pid])
    assert fallen is not None
    assert -36 * MB < fallen < -24 * MB
    child.kill()
    child.wait()
    assert others._memory([child.pid]) == 0.0
