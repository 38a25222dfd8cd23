"""I/O counters of a process tree, checked with a program of known reads and writes; and the kernel's TCP counters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from asyncli.experiments.counters import read_io, read_tcp, since

# For each byte of stdin it writes 100 times, and so does a child that it reaps.
PROGRAM = """
import os
out = os.open("/dev/null", os.O_WRONLY)
os.write(1, b".")
while os.read(0, 1):
    child = os.fork()
    for _ in range(100):
        os.write(out, b"." * 1000)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os.write(1, b".")
"""


def test_calls_are_exact_and_a_child_that_ended_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        assert process.stdout.read(1) == b"."
        before = read_io(process.pid)
        process.stdin.write(b".")
        assert process.stdout.read(1) == b"."
        used = since(read_io(process.pid), before)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert used["io_calls"] == 202
    assert read_io(process.pid) == {}


def test_the_kernels_counters_are_differences(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    snmp, netstat = tmp_path / "net/snmp", tmp_path / "net/netstat"
    snmp.write_text("Tcp: InSegs OutSegs RetransSegs\nTcp: 10 20 3\n")
    netstat.write_text("TcpExt: TCPToZeroWindowAdv TCPWantZeroWindowAdv\nTcpExt: 1 1\n")
    before = read_tcp(tmp_path)
    snmp.write_text("Tcp: InSegs OutSegs RetransSegs\nTcp: 15 120 3\n")
    netstat.write_text("TcpExt: TCPToZeroWindowAdv TCPWantZeroWindowAdv\nTcpExt: 3 5\n")
    assert since(read_tcp(tmp_path), before) == {"segments": 100, "retransmitted": 0, "window_closed": 6}
    assert read_tcp(tmp_path / "nowhere") == {}
