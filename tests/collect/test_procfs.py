from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

import pytest

from asyncli.collect import procfs
from asyncli.collect.procfs import Listener, parse_listeners, parse_smaps_rollup, parse_stat

STAT = (
    "4161 (nginx: (w) x) S 4160 4160 4160 0 -1 4194560 1520 12 0 0 150 250 30 20 20 0 3 0 168012 58892288 1507 "
    "18446744073709551615 1 1 0 0 0 0 0 4096 536946211 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
ROLLUP = """55b15f4d4000-7ffc240dd000 ---p 00000000 00:00 0                          [rollup]
Rss:                3956 kB
Pss:                1133 kB
Pss_Dirty:           548 kB
Pss_Anon:            548 kB
Shared_Clean:       3024 kB
Shared_Dirty:        704 kB
Private_Clean:         4 kB
Private_Dirty:       228 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:    2048 kB
Swap:                  0 kB
"""
# Listening on 127.0.0.1:8080 and 0.0.0.0:9000, then one established; as a little-endian kernel prints them.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                     
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7001 1 0000000000000000 100 0 0 10 0
   1: 00000000:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7002 1 0000000000000000 100 0 0 10 0
   2: 0100007F:1F90 0100007F:A2C4 01 00000000:00000000 02:000003A8 00000000     0        0 7003 2 0000000000000000 20 4 0 10 -1
   3: 00000000:1111 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7004 1 0000000000000000 100 0 0 10 0
"""  # noqa: W291
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7011 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7012 1 0000000000000000 100 0 0 10 0
   2: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7013 1 0000000000000000 100 0 0 10 0
"""


def test_stat_counts_fields_from_the_last_parenthesis() -> None:
    stat = parse_stat(STAT)
    assert (stat.pid, stat.name, stat.state, stat.parent, stat.threads) == (4161, "nginx: (w) x", "S", 4160, 3)
    assert stat.cpu_s == pytest.approx(400 / procfs.TICKS_PER_S)
    assert stat.waited_s == pytest.approx(50 / procfs.TICKS_PER_S)
    assert stat.start_ticks == 168012
    assert not stat.ended


@pytest.mark.parametrize("text", ["", "1 (a", "1 (a) S 2 3"])
def test_a_malformed_stat_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a line"):
        parse_stat(text)


def test_resident_memory_is_read_to_the_page() -> None:
    memory = mmap.mmap(-1, 300 * procfs.PAGE_BYTES)
    before = procfs.read_rss(os.getpid())
    memory.write(bytes(300 * procfs.PAGE_BYTES))
    # Before Linux 6.17 up to 32 pages of each CPU are not counted yet.
    least = 300 if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 17) else 1
    assert procfs.read_rss(os.getpid()) - before >= least * procfs.PAGE_BYTES
    assert procfs.read_rss(2**22 - 1) == 0


def test_uss_is_all_private_memory() -> None:
    memory = parse_smaps_rollup(ROLLUP)
    assert (memory.rss_bytes, memory.pss_bytes, memory.uss_bytes) == (3956 * 1024, 1133 * 1024, (4 + 228 + 2048) * 1024)


def test_anonymous_and_shared_memory_excludes_file_pages() -> None:
    memory = parse_smaps_rollup(f"{ROLLUP}Pss_File: 900 kB\nPss_Shmem: 300 kB\nSwapPss: 70 kB\n")
    assert memory.anon_shmem_bytes == (548 + 300 + 70 + 2048) * 1024
    older = parse_smaps_rollup("Rss: 10 kB\nPss: 5 kB\n")
    assert older.anon_shmem_bytes is None
    assert parse_smaps_rollup("") is None


@pytest.mark.skipif(sys.byteorder != "little", reason="the captured text is of a little-endian kernel")
def test_reading_stops_after_the_listening_sockets() -> None:
    assert list(parse_listeners(TCP.splitlines())) == [Listener("127.0.0.1", 8080, 7001, 0), Listener(None, 9000, 7002, 0)]
    assert list(parse_listeners(TCP6.splitlines())) == [
        Listener("::1", 8080, 7011, 0),
        Listener(None, 8080, 7012, 0),
        Listener("127.0.0.1", 8080, 7013, 0),
    ]


@pytest.mark.skipif(sys.byteorder != "little", reason="the captured text is of a little-endian kernel")
def test_both_families_are_read_and_a_missing_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(TCP)
    assert [one.inode for one in procfs.read_listeners(8080, tmp_path)] == [7001]
    (tmp_path / "net/tcp6").write_text(TCP6)
    assert [one.inode for one in procfs.read_listeners(8080, tmp_path)] == [7001, 7011, 7012, 7013]


def test_cpu_time_is_exact_in_our_pid_namespace() -> None:
    until = time.process_time() + 0.003
    while time.process_time() < until:
        pass
    before = time.process_time()
    read = procfs.read_stat(os.getpid()).cpu_s
    assert before <= read <= time.process_time()
