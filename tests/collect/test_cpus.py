"""Who used this host's CPUs between two readings."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from programs import until

from asyncli.collect.cpus import CpuTimes, parse_times, read_times, shares
from asyncli.collect.procfs import TICKS_PER_S, Stat
from asyncli.model.records import STOLEN

OURS, SERVER = 100, 200
UNSEEN = "processes that are not seen from here"


def stat(pid: int, name: str, parent: int, cpu_s: float, waited_s: float = 0.0) -> Stat:
    return Stat(pid=pid, name=name, state="R", parent=parent, cpu_s=cpu_s, waited_s=waited_s, threads=1, start_ticks=pid)


def a_look(at_s: float, busy_s: float, *stats: Stat, interrupts_s: float = 0.0, stolen_s: float = 0.0) -> CpuTimes:
    return CpuTimes(at_s, 2, busy_s, interrupts_s, stolen_s, {one.pid: one for one in stats})


def test_cpu_time_is_split_between_us_the_server_and_others() -> None:
    first = a_look(
        0.0, 50.0, stat(OURS, "asyncli", 1, 1.0), stat(101, "python3", OURS, 1.0), stat(SERVER, "nginx", 1, 0.0), stat(201, "nginx", SERVER, 5.0),
        stat(300, "loop", 1, 30.0), stat(301, "loop", 1, 10.0), stat(400, "make", 1, 0.0), stat(401, "cc1", 400, 7.0),
        stat(11, "ksoftirqd/0", 2, 1.0), stat(12, "kworker/0:1", 2, 1.0), stat(13, "kworker/1:0", 2, 1.0),
    )  # fmt: skip
    last = a_look(
        2.0, 54.0, stat(OURS, "asyncli", 1, 1.2), stat(101, "python3", OURS, 1.4), stat(SERVER, "nginx", 1, 0.0), stat(201, "nginx", SERVER, 5.4),
        stat(300, "loop", 1, 30.4), stat(301, "loop", 1, 11.0),
        # It waited for cc1, which had used 7 s before the first reading; another cc1 started since.
        stat(400, "make", 1, 0.0, waited_s=7.2), stat(402, "cc1", 400, 0.1),
        stat(11, "ksoftirqd/0", 2, 1.2), stat(12, "kworker/0:1", 2, 1.1), stat(13, "kworker/1:0", 2, 1.1),
        interrupts_s=0.2, stolen_s=0.4,
    )  # fmt: skip
    found = shares(first, last, OURS, [SERVER])
    assert (found.cpus, found.busy) == (2, 2.0)
    used = {name: round(cores, 6) for name, cores in found.others.items()}
    assert used == {
        "loop": 0.7, "make": 0.1, "cc1": 0.05, "kworker": 0.1, STOLEN: 0.2, UNSEEN: 0.15,
    }  # fmt: skip
    assert found.pids["loop"] == (301, 300)


def test_the_server_may_be_our_child_or_our_parent() -> None:
    for ours, server in ((1, 2), (2, 1)):
        first = a_look(0.0, 0.0, stat(1, "one", 0, 0.0), stat(2, "two", 1, 0.0), stat(3, "three", 2, 0.0))
        last = a_look(1.0, 2.0, stat(1, "one", 0, 0.5), stat(2, "two", 1, 0.5), stat(3, "three", 2, 0.5))
        assert set(shares(first, last, ours, [server]).others) == {UNSEEN}


def test_proc_stat_is_summed_over_all_cpus() -> None:
    text = "cpu  100 10 50 800 40 5 15 20 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n"
    found = parse_times(text, 3.0, {})
    ticks = (found.busy_s * TICKS_PER_S, found.interrupts_s * TICKS_PER_S, found.stolen_s * TICKS_PER_S)
    assert (found.cpus, [round(one, 6) for one in ticks]) == (2, [200.0, 20.0, 20.0])


def test_a_busy_loop_is_named_with_its_pid() -> None:
    first = read_times()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            clock = (~loop.pid << 3) | 2
            until(lambda: time.clock_gettime(clock) > 0.2, "it has used a fifth of a second")
            last = read_times()
        finally:
            loop.kill()
    # Neither ours nor the server's, as no pid of its ancestors is given.
    found = shares(first, last, -1, [])
    name = last.processes[loop.pid].name
    assert loop.pid in found.pids[name]
    assert found.others[name] * (last.at_s - first.at_s) >= 0.2
    assert name not in shares(first, last, os.getpid(), []).pids or loop.pid not in shares(first, last, os.getpid(), []).pids[name]
