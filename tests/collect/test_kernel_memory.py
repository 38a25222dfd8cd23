from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncli.collect import kernel
from asyncli.collect.kernel import MemoryReader
from asyncli.collect.procfs import TICKS_PER_S
from asyncli.model.metrics import METRICS

# Captured on Linux 6.18, the lines that matter: eventpoll_pwq is listed as anon_vma_chain, eventpoll_epi as fib6_node.
SLABINFO = """slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
tw_sock_TCP          160    224    256   16    1 : tunables    0    0    0 : slabdata     14     14      0
request_sock_TCP      36     96    320   12    1 : tunables    0    0    0 : slabdata      8      8      0
TCP                   78    143   2368   13    8 : tunables    0    0    0 : slabdata     11     11      0
ep_head             1036   2816     16  256    1 : tunables    0    0    0 : slabdata     11     11      0
sock_inode_cache     148    266    832   19    4 : tunables    0    0    0 : slabdata     14     14      0
filp                 540    567    192   21    1 : tunables    0    0    0 : slabdata     27     27      0
dentry             53508  53508    192   21    1 : tunables    0    0    0 : slabdata   2548   2548      0
lsm_inode_cache    46444  46848     32  128    1 : tunables    0    0    0 : slabdata    366    366      0
fib6_node            320    352    128   32    1 : tunables    0    0    0 : slabdata     11     11      0
anon_vma_chain       634    832     64   64    1 : tunables    0    0    0 : slabdata     13     13      0
"""
LINKS = {
    "ep_head": ":A-0000016", "eventpoll_epi": ":A-0000128", "fib6_node": ":A-0000128", "tcp_bind_bucket": ":A-0000128",
    "tcp_bind2_bucket": ":A-0000128", "eventpoll_pwq": ":A-0000064", "anon_vma_chain": ":A-0000064",
    "fs_cache": ":A-0000064", "lsm_inode_cache": ":0000032",
}
SOCKSTAT = """sockets: used 30014
TCP: inuse 29998 orphan 3 tw 7 alloc 30001 mem 245
UDP: inuse 4 mem 2
RAW: inuse 0
FRAG: inuse 0 memory 0
"""
SOCKSTAT6 = "TCP6: inuse 2\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 0\nFRAG6: inuse 0 memory 0\n"
MEMINFO = """MemTotal:       24684084 kB
MemFree:        24449904 kB
MemAvailable:   24389468 kB
Buffers:            1244 kB
Cached:            53876 kB
AnonPages:         12312 kB
Shmem:              8872 kB
Slab:             101404 kB
PageTables:         1716 kB
HugePages_Total:       0
"""
NETSTAT = """TcpExt: SyncookiesSent TW ListenOverflows ListenDrops TCPTimeouts
TcpExt: 0 240012 5 6 2
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
MPTcpExt: MPCapableSYNRX
MPTcpExt: 0
"""
SNMP = """Ip: Forwarding DefaultTTL
Ip: 2 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs
Tcp: 1 200 120000 -1 11 12 0 3093746 3092218 13
Udp: InDatagrams
Udp: 1
"""
STAT = "cpu  3330 10 3230 268979 299 5 880 11 40 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1 2\n"


def fake_slab_tree(root: Path) -> Path:
    """A /sys/kernel/slab with the links above, and directories for unmerged caches."""
    root.mkdir()
    for target in set(LINKS.values()):
        (root / target).mkdir()
    for name in ("TCP", "sock_inode_cache", "filp", "dentry"):
        (root / name).mkdir()
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    return root


def test_names_behind_merged_caches_are_found_and_counted_once(tmp_path: Path) -> None:
    links = kernel.read_slab_links(fake_slab_tree(tmp_path / "slab"))
    assert links == LINKS
    assert kernel.resolve_caches(kernel.parse_slabinfo(SLABINFO), links)[0] == {
        "TCP": "TCP", "sock_inode_cache": "sock_inode_cache", "filp": "filp", "dentry": "dentry",
        "eventpoll_epi": "fib6_node", "eventpoll_pwq": "anon_vma_chain", "ep_head": "ep_head",
        "lsm_inode_cache": "lsm_inode_cache",
    }


@pytest.mark.parametrize(
    ("listed", "links", "resolved"),
    [
        (["tcp_bind_bucket", "eventpoll_epi"], {}, {"eventpoll_epi": "eventpoll_epi", "tcp_bind_bucket": "tcp_bind_bucket"}),
        # slabinfo's name of the cache that it shares with eventpoll_epi.
        (["tcp_bind_bucket"], LINKS, {"eventpoll_epi": "tcp_bind_bucket"}),
    ],
)
def test_a_cache_counts_once(listed: list[str], links: dict[str, str], resolved: dict[str, str]) -> None:
    assert kernel.resolve_caches(listed, links)[0] == resolved


def test_sums_include_only_socket_caches(tmp_path: Path) -> None:
    (tmp_path / "slabinfo").write_text(SLABINFO)
    reading = MemoryReader(proc=tmp_path, links=lambda: LINKS).read_slabs()
    assert reading.findings == []
    # A dentry and a blob of the LSM for each inode of a socket: the rest of them are other programs' files.
    active, of_inodes, files = [78 * 2368, 1036 * 16, 148 * 832, 540 * 192, 320 * 128, 634 * 64], 148 * (192 + 32), 53508 * 192 + 46444 * 32
    pages = [11 * 8, 11, 14 * 4, 27, 11, 13]
    assert reading.values["kernel.socket_bytes"] == sum(active) + of_inodes
    assert reading.values["kernel.socket_slab_bytes"] == sum(pages) * kernel.PAGE_BYTES + of_inodes
    assert reading.values["kernel.slab.eventpoll_pwq"] == 634 * 64
    assert sum(value for name, value in reading.values.items() if name.startswith("kernel.slab.")) == sum(active) + files


def test_the_kernels_own_counts_exclude_free_objects_of_each_cpu(tmp_path: Path) -> None:
    (tmp_path / "slabinfo").write_text(SLABINFO + SLABINFO.splitlines()[4].replace("TCP   ", "TCPv6 ") + "\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/sockstat").write_text("sockets: used 90\nTCP: inuse 50 orphan 0 tw 7 alloc 60 mem 1\n")
    (tmp_path / "net/sockstat6").write_text("TCP6: inuse 5\n")
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/file-nr").write_text("500\t0\t9223372036854775807\n")
    (tmp_path / "sys/fs/dentry-state").write_text("99999\t20000\t45\t0\t3000\t0\n")
    values = MemoryReader(proc=tmp_path, links=lambda: LINKS).read_slabs().values
    known = {"TCP": 60 * 2368, "TCPv6": 0, "sock_inode_cache": 95 * 832, "filp": 500 * 192, "dentry": 53508 * 192}
    assert {name: values[f"kernel.slab.{name}"] for name in known} == known
    assert values["kernel.files_bytes"] == (500 - 95) * 192
    free = [(11 * 8, 83 / 143), (11 * 8, 1), (14 * 4, 171 / 266), (27, 67 / 567)]
    free += [(11, 1780 / 2816), (366, 404 / 46848), (11, 32 / 352), (13, 198 / 832)]
    pages = sum(pages * share for pages, share in free)
    assert values["kernel.slab_free_bytes"] == pytest.approx(pages * kernel.PAGE_BYTES)


def test_unresolved_aliases_are_a_finding_once(tmp_path: Path) -> None:
    (tmp_path / "slabinfo").write_text(SLABINFO)
    reader = MemoryReader(proc=tmp_path, links=dict)
    (finding,) = reader.read_slabs().findings
    assert finding.code == "slab_caches_missing"
    assert {"eventpoll_epi", "eventpoll_pwq"} <= set(re.findall(r"\w+", finding.evidence))
    assert reader.read_slabs().findings == []


def test_a_cache_that_moved_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "slabinfo"
    path.write_text(SLABINFO)
    reader = MemoryReader(proc=tmp_path, links=lambda: LINKS)
    before = reader.read_slabs().values
    path.write_text(SLABINFO.replace("anon_vma_chain", "fs_cache      "))
    assert reader.read_slabs().values == before


def test_an_unreadable_slabinfo_is_a_finding_and_no_number(tmp_path: Path) -> None:
    reader = MemoryReader(proc=tmp_path, links=dict)
    for _ in range(2):
        reading = reader.read_slabs()
        assert reading.values == {}
        assert [(one.code, one.severity) for one in reading.findings] == [("slabinfo_unreadable", "warning")]


def test_sockstat_adds_the_families_where_the_kernel_splits_them() -> None:
    assert kernel.parse_sockstat(SOCKSTAT, SOCKSTAT6) == {
        "kernel.sockets": 30014, "kernel.tcp_inuse": 30000, "kernel.tcp_orphan": 3, "kernel.tcp_tw": 7, "kernel.tcp_alloc": 30001,
        "kernel.tcp_mem_bytes": 245 * kernel.PAGE_BYTES,
    }


def test_used_memory_ignores_mem_available() -> None:
    values = kernel.parse_meminfo(MEMINFO)
    assert values["host.used_bytes"] == (24684084 - 24449904 - 1244 - (53876 - 8872)) * 1024
    assert values["host.free_bytes"] == 24449904 * 1024
    assert values["host.available_bytes"] == 24389468 * 1024
    assert values["host.processes_bytes"] == (12312 + 8872) * 1024
    assert values["host.slab_bytes"] == 101404 * 1024
    assert values["host.pagetable_bytes"] == 1716 * 1024


ZONEINFO = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 43186
  pages free     3840
  pagesets
    cpu: 0
              count:    0
              high:     8
Node 0, zone   Normal
  pages free     5768000
  pagesets
    cpu: 0
              count:    7890
              high:     40213
    cpu: 1
              count:    7302
              high:     39911
  node_unreclaimable:  0
"""


@pytest.mark.parametrize(("mode", "is_limited"), [("0", False), ("1", False), ("2", True)])
def test_granted_memory_is_read_where_it_is_limited(tmp_path: Path, mode: str, is_limited: bool) -> None:
    (tmp_path / "meminfo").write_text(f"{MEMINFO}CommitLimit:    12341828 kB\nCommitted_AS:     316464 kB\n")
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/overcommit_memory").write_text(f"{mode}\n")
    values = MemoryReader(proc=tmp_path, links=dict).read().values
    wanted = {"host.committed_bytes": 316464 * 1024, "host.commit_limit_bytes": 12341828 * 1024}
    assert {name: values[name] for name in wanted if name in values} == (wanted if is_limited else {})


def test_pages_on_per_cpu_lists_are_free(tmp_path: Path) -> None:
    assert kernel.parse_zoneinfo(ZONEINFO) == (7890 + 7302) * kernel.PAGE_BYTES
    (tmp_path / "meminfo").write_text(MEMINFO)
    reader = MemoryReader(proc=tmp_path, links=dict)
    without = reader.read().values
    assert "host.cpu_lists_bytes" not in without
    (tmp_path / "zoneinfo").write_text(ZONEINFO)
    values = reader.read().values
    assert values["host.cpu_lists_bytes"] == (7890 + 7302) * kernel.PAGE_BYTES
    assert values["host.used_bytes"] == without["host.used_bytes"] - values["host.cpu_lists_bytes"]


def test_counters_are_picked_by_name_from_their_group() -> None:
    assert kernel.parse_counters(NETSTAT, "TcpExt", kernel.TCP_COUNTERS) == {
        "tcp.SyncookiesSent": 0,
        "tcp.ListenOverflows": 5,
        "tcp.ListenDrops": 6,
        "tcp.TCPTimeouts": 2,
    }
    wanted = ["RetransSegs", "AttemptFails", "EstabResets", "NotInThisKernel"]
    assert kernel.parse_counters(SNMP, "Tcp", wanted) == {"tcp.AttemptFails": 11, "tcp.EstabResets": 12, "tcp.RetransSegs": 13}


def test_busy_time_excludes_idle_and_iowait_and_counts_guests_once() -> None:
    assert kernel.parse_cpu_busy(STAT) == {"host.cpu_busy_s": pytest.approx((3330 + 10 + 3230 + 5 + 880 + 11) / TICKS_PER_S)}


@pytest.mark.parametrize(
    "parse",
    [
        lambda: kernel.parse_sockstat("sockets: used 3\n"),
        lambda: kernel.parse_meminfo("MemTotal: 3 kB\n"),
        lambda: kernel.parse_counters("TcpExt: A B\nTcpExt: 1\n", "TcpExt", ["A"]),
        lambda: kernel.parse_counters("", "Tcp", ["A"]),
        lambda: kernel.parse_cpu_busy("intr 1 2\n"),
        lambda: kernel.parse_slabinfo(""),
        lambda: kernel.parse_slabinfo("slabinfo - version: 1.1\n"),
    ],
)
def test_a_text_of_another_kind_is_refused(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"/proc/|kernel's counters|version 2"):
        parse()


def test_this_kernel_has_the_registered_metrics() -> None:
    families = tuple(name for name in METRICS if name.endswith("."))
    values = kernel.read_counters().values | MemoryReader().read().values
    expected = {"host.used_bytes", "host.cpu_busy_s", "kernel.tcp_inuse", "tcp.ListenOverflows", "tcp.RetransSegs"}
    assert expected <= set(values)
    assert [name for name in values if name not in METRICS and not name.startswith(families)] == []
