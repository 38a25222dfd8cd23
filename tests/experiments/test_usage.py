"""What a tree of processes reads and writes, against programs that do a known number of both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncli.experiments.usage import Usage, parse_fields, parse_segments, usage_of

# At each byte of stdin it writes, and so does a child that it then waits for; of these waits the other side may be the quicker,
# of a sleep never.
PROGRAM = """
import os, time

pytestmark = pytest.mark.measures
out = os.open("/dev/null", os.O_WRONLY)
os.write(1, b".")
while os.read(0, 1):
    child = os.fork()
    for _ in range(100):
        os.write(out, b"." * 1000)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.001)
    os.write(1, b".")
"""


def test_bytes_and_calls_are_exact_and_a_child_that_ended_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.read(1) == b"."
        before = usage_of(process.pid)
        process.stdin.write(b".")
        assert process.stdout.read(1) == b"."
        used = usage_of(process.pid).since(before)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert (used["written_chars"], used["writes"]) == (200_001, 201)
    assert (used["read_chars"], used["reads"]) == (1, 1)
    assert used["waits"]
    assert 0 < used["cpu_ns"] < 5e9


def test_a_process_that_is_gone_gives_nothing_but_the_hosts_part(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/snmp").write_text("Tcp: RtoMin OutSegs\nTcp: 200 12\n")
    assert usage_of(1, tmp_path) == Usage(segments=12)
    assert usage_of(1, tmp_path).since(Usage())["segments"] is None


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("Ip: A B\nIp: 1 2\nTcp: InSegs OutSegs\nTcp: 7 9\n", 9),
        ("Tcp: InSegs\nTcp: 7\n", None),
        ("Tcp: InSegs OutSegs\n", None),
        ("", None),
    ],
)
def test_segments_are_found_by_name(text: str, segments: int | None) -> None:
    assert parse_segments(text) == segments


def test_fields_are_found_by_name() -> None:
    assert parse_fields("rchar: 12\nwchar: x\nother: 3\n", {"rchar": "a", "wchar": "b"}) == {"a": 12}
