"""The host's limits, read from made-up file trees."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from asyncli.preflight.host_limits import raise_nofile, read_limits, read_rlimit

_NO_LIMIT = 2**60
_HOST = {
    "proc/self/limits": (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max processes             96365                96365                processes \n"
        "Max open files            1024                 20000                files     \n"
    ),
    "proc/self/status": "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-1,4\n",
    "proc/self/cgroup": "0::/\n",
    "proc/meminfo": "MemTotal:       24684084 kB\nMemFree:        1 kB\nMemAvailable:   24000000 kB\n",
    "proc/net/sockstat": "sockets: used 17\nTCP: inuse 3 orphan 0 tw 7 alloc 3 mem 245\nUDP: inuse 0 mem 0\n",
    "proc/sys/fs/nr_open": "1048576\n",
    "proc/sys/fs/file-max": "9223372036854775807\n",
    "proc/sys/fs/file-nr": "533\t0\t9223372036854775807\n",
    "proc/sys/fs/epoll/max_user_watches": "5491511\n",
    "proc/sys/kernel/osrelease": "6.18.5-amd64\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/net/ipv4/ip_local_reserved_ports": "80,32767-32769,40000\n",
    "proc/sys/net/ipv4/tcp_tw_reuse": "2\n",
    "proc/sys/net/ipv4/tcp_max_syn_backlog": "2048\n",
    "proc/sys/net/ipv4/tcp_mem": "287898\t383867\t575796\n",
    "proc/sys/net/core/somaxconn": "4096\n",
    "proc/sys/net/netfilter/nf_conntrack_count": "5\n",
    "proc/sys/net/netfilter/nf_conntrack_max": "262144\n",
    "proc/sys/kernel/threads-max": "192730\n",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_an_ordinary_host(tmp_path: Path) -> None:
    limits = read_limits(tree(tmp_path, _HOST))
    assert (limits.nofile_soft, limits.nofile_hard, limits.nproc) == (1024, 20000, 96365)
    assert (limits.nr_open, limits.file_max, limits.files_open) == (1048576, _NO_LIMIT, 533)
    # 32768, 32769 and 40000 of the range are reserved.
    assert limits.ports == 28232 - 3
    assert (limits.tcp_tw_reuse, limits.somaxconn, limits.syn_backlog) == (2, 4096, 2048)
    assert (limits.conntrack_count, limits.conntrack_max) == (5, 262144)
    assert limits.tcp_mem_pages == (287898, 383867, 575796)
    assert limits.epoll_watches == 5491511
    assert limits.kernel == (6, 18)
    assert (limits.memory_total, limits.memory_available) == (24684084 * 1024, 24000000 * 1024)
    assert (limits.cgroup_memory_limit, limits.pids_limit, limits.cpu_quota) == (None, None, None)
    assert (limits.cpus, limits.cpu_time, limits.threads_max) == (3, 3.0, 192730)
    assert (limits.sockets_used, limits.tcp_inuse, limits.tcp_tw, limits.tcp_used_pages) == (17, 3, 7, 245)
    assert not limits.superuser


@pytest.mark.parametrize("files", [{}, dict.fromkeys(_HOST, "what?\n")], ids=["nothing", "nonsense"])
def test_unreadable_files_give_none(tmp_path: Path, files: dict[str, str]) -> None:
    limits = read_limits(tree(tmp_path, files))
    known = {name for name in limits.__struct_fields__ if getattr(limits, name) is not None}
    assert known == {"ports_reserved", "page_bytes", "superuser"}
    assert (limits.ports, limits.cpu_time) == (None, None)


def test_the_tightest_cgroup_of_version_2_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/kube/pod"
    limits = read_limits(
        tree(
            tmp_path,
            {
                **_HOST, "proc/self/cgroup": "0::/kube/pod\n", f"{group}/memory.max": "2000000000\n",
                f"{group}/memory.current": "700000000\n", f"{group}/memory.stat": "anon 1\ninactive_file 200000000\n",
                "sys/fs/cgroup/kube/memory.max": "1000000000\n", "sys/fs/cgroup/kube/memory.current": "800000000\n",
                f"{group}/pids.max": "max\n", f"{group}/pids.current": "5\n", "sys/fs/cgroup/kube/pids.max": "100\n",
                "sys/fs/cgroup/kube/pids.current": "90\n", f"{group}/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/kube/cpu.max": "max 100000\n",
            },
        )
    )
    assert (limits.cgroup_memory_limit, limits.cgroup_memory_used) == (1_000_000_000, 800_000_000)
    assert (limits.pids_limit, limits.pids_used) == (100, 90)
    assert limits.cpu_time == 1.5


@pytest.mark.parametrize("place", ["/docker/abc", "/../../elsewhere"])
def test_cgroup_version_1_in_a_container_that_sees_only_its_own(tmp_path: Path, place: str) -> None:
    memory = "sys/fs/cgroup/memory"
    limits = read_limits(
        tree(
            tmp_path,
            {
                **_HOST,
                "proc/self/cgroup": f"8:pids:{place}\n4:memory:{place}\n3:cpu,cpuacct:{place}\n0::{place}\n",
                f"{memory}/memory.limit_in_bytes": "512000000\n",
                f"{memory}/memory.usage_in_bytes": "300000000\n",
                f"{memory}/memory.stat": "inactive_file 1\ntotal_inactive_file 100000000\n",
                "sys/fs/cgroup/pids/pids.max": "64\n",
                "sys/fs/cgroup/pids/pids.current": "3\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
        )
    )
    assert (limits.cgroup_memory_limit, limits.cgroup_memory_used) == (512_000_000, 200_000_000)
    assert (limits.pids_limit, limits.pids_used) == (64, 3)
    assert limits.cpu_time == 0.5


def test_unlimited_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_text("Max open files            1024                 unlimited            files\n", encoding="ascii")
    assert read_rlimit(path, "Max open files") == (1024, _NO_LIMIT)
    assert read_rlimit(tmp_path / "none", "Max open files") == (None, None)


def test_this_host_can_be_read() -> None:
    limits = read_limits()
    assert limits.nofile_hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert limits.ports
    assert limits.memory_available
    assert limits.cpus


def test_our_soft_limit_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raise_nofile()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
