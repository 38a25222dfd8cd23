from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator

import pytest
from programs import until

from asyncli.collect import processes, procfs
from asyncli.collect.lost_roots import LostRoots, Replaced
from asyncli.collect.processes import CpuLedger, ProcessesGoneError, ProcessGroup, ServerTree, listed, workers_among
from asyncli.collect.procfs import Memory, Stat, read_text


def stat(pid: int, parent: int = 1, cpu_s: float = 0.0, *, waited_s: float = 0.0, start: int = 0, state: str = "S") -> Stat:
    return Stat(pid, "nginx", state, parent, cpu_s, waited_s, 1, start or pid)


MASTER, WORKER, OTHER = 10, 11, 12

# Each row: rounds of living processes, and the group's CPU time after each.
LEDGER = {
    "the living add up": ([[stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)]], [3.0]),
    "a worker that its master waited for, its unseen last second too": (
        [
            [stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)],
            [stat(MASTER, cpu_s=1, waited_s=2.7), stat(OTHER, MASTER, 0.1)],
            [stat(MASTER, cpu_s=1, waited_s=2.7), stat(OTHER, MASTER, 0.3)],
        ],
        [3.0, 3.8, 4.0],
    ),
    "a worker that nobody waited for keeps what was last seen": (
        [[stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)], [stat(MASTER, cpu_s=1)], [stat(MASTER, cpu_s=1.5)]],
        [3.0, 3.0, 3.5],
    ),
    "a zombie still counts, and once": (
        [
            [stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)],
            [stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2.5, state="Z")],
            [stat(MASTER, cpu_s=1, waited_s=2.5)],
        ],
        [3.0, 3.5, 3.5],
    ),
    "a line of the ended falls to the nearest living ancestor": (
        [[stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2), stat(OTHER, WORKER, 4)], [stat(MASTER, cpu_s=1, waited_s=6.5)]],
        [7.0, 7.5],
    ),
    "all ended, then another server": ([[stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)], [stat(20, cpu_s=0.5)]], [3.0, 3.5]),
    "a pid used again is another process": (
        [[stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 2)], [stat(MASTER, cpu_s=1), stat(WORKER, MASTER, 0.1, start=99)]],
        [3.0, 3.1],
    ),
}


@pytest.mark.parametrize("case", LEDGER)
def test_cpu_of_a_changing_group_never_falls(case: str) -> None:
    rounds, expected = LEDGER[case]
    ledger = CpuLedger()
    seen = [ledger.update(living) for living in rounds]
    assert seen == pytest.approx(expected)
    assert seen == sorted(seen)


@pytest.mark.parametrize("each_s", [0.0037, 0.0137])
def test_late_ticks_are_not_counted_twice(each_s: float) -> None:
    """A master that waits for one child per round: the child's time is exact, the waited-for time is in whole ticks."""
    ledger, total_s, before = CpuLedger(), 0.0, 0.0
    for number in range(300):
        waited_s = int(total_s * 100) / 100
        found = ledger.update([stat(MASTER, waited_s=waited_s), stat(100 + number, MASTER, each_s)])
        total_s += each_s
        assert found >= before
        assert found == pytest.approx(total_s, abs=0.0101)
        before = found


def test_an_empty_group_raises_unless_it_may_be_empty() -> None:
    with pytest.raises(ProcessesGoneError):
        ProcessGroup("server", list).scan()
    empty = ProcessGroup("generator", list, may_be_empty=True)
    assert (empty.scan().values, empty.memory().values) == ({}, {})


def test_memory_is_summed_over_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {MASTER: Memory(30, 20, 10), WORKER: Memory(3, 2, 1), OTHER: None}
    monkeypatch.setattr(processes, "read_memory", lambda pid: sizes[pid])
    group = ProcessGroup("server", lambda: [stat(pid) for pid in sizes])
    group.scan()
    assert group.memory().values == {"server.rss_bytes": 33, "server.pss_bytes": 22, "server.uss_bytes": 11}
    sizes = {MASTER: Memory(30, 20, 10, 15), WORKER: Memory(3, 2, 1, 2), OTHER: None}
    assert group.memory().values["server.anon_shmem_bytes"] == 17
    sizes[WORKER] = Memory(3, 2, 1)
    assert "server.anon_shmem_bytes" not in group.memory().values, "a partial sum would be a wrong one"


def test_one_refused_process_degrades_the_sum_to_rss(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(pid: int) -> Memory:
        if pid == WORKER:
            raise PermissionError(13, "Permission denied", f"/proc/{pid}/smaps_rollup")
        return Memory(30, 20, 10)

    monkeypatch.setattr(processes, "read_memory", read)
    monkeypatch.setattr(processes, "read_rss", lambda pid: {MASTER: 30_000, WORKER: 3_000}[pid])
    group = ProcessGroup("server", lambda: [stat(MASTER), stat(WORKER)])
    group.scan()
    reading = group.memory()
    assert reading.values == {"server.rss_bytes": 33_000}
    (finding,) = reading.findings
    assert finding.code == "server_memory_unprivileged"
    assert (finding.fields["pid"], finding.fields["why"]) == (11, "Permission denied")
    assert finding.remedy.endswith("with CAP_SYS_PTRACE")
    assert ("root" in finding.remedy) is (os.geteuid() != 0)


def test_a_process_unreadable_for_lack_of_descriptors_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(pid: int, proc: object) -> Stat:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(procfs, "read_stat", read)
    with pytest.raises(OSError, match="Too many open files"):
        listed(lambda: [MASTER])()


# A master with two workers, one with a child; it replaces workers as lines come in. It prints its first line in one write.
MASTER_SOURCE = textwrap.dedent("""
    import subprocess, sys
    workers = [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"])]
    sys.stdout.write(f"{workers[0].pid} {workers[1].pid}\\n"); sys.stdout.flush()
    sys.stdin.readline()
    workers[0].kill(); workers[0].wait()
    workers[0] = subprocess.Popen(["sleep", "60"])
    print(workers[0].pid, flush=True)
    sys.stdin.readline()
""")


@pytest.mark.parametrize(
    ("masters", "new", "workers"),
    [
        ({MASTER}, [stat(21, MASTER), stat(22, MASTER)], {21, 22}),
        # An upgrade in place: another master, and its workers.
        ({MASTER}, [stat(23, 21), stat(21, MASTER), stat(22, 21)], {21, 22, 23}),
        # A worker's helper, and that of a server of one process.
        ({MASTER}, [stat(21, WORKER), stat(22, 21)], set()),
        (set(), [stat(21, MASTER)], set()),
    ],
)
def test_a_new_process_is_a_worker_if_its_parent_had_others(masters: set[int], new: list[Stat], workers: set[int]) -> None:
    assert workers_among(new, masters) == workers


class Tree:
    """A real tree of processes: a master, workers that sleep, a grandchild."""

    def __init__(self) -> None:
        self.master = subprocess.Popen([sys.executable, "-c", MASTER_SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        # Two lines in either order: the workers, and the grandchild from the shell.
        (self.grandchild,), self.workers = sorted((self.line(), self.line()), key=len)

    def line(self) -> list[int]:
        return [int(word) for word in self.master.stdout.readline().split()]

    def reload(self) -> int:
        self.master.stdin.write(b"\n")
        self.master.stdin.flush()
        return self.line()[0]

    def kill(self) -> None:
        """Kill all and wait for their end: a signal to a group returns before its members end."""
        ends = [os.pidfd_open(pid) for pid in (*self.workers, self.grandchild) if os.path.exists(f"/proc/{pid}")]
        os.killpg(self.master.pid, signal.SIGKILL)
        self.master.wait()
        for end in ends:
            assert select.select([end], [], [], 10)[0]
            os.close(end)
        for stream in (self.master.stdin, self.master.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def tree() -> Iterator[Tree]:
    if shutil.which("sleep") is None:
        pytest.skip("no sleep on this host")
    real = Tree()
    yield real
    if real.master.returncode is None:
        real.kill()


def read_without_children(path: str) -> str:
    """As on a kernel that does not list children."""
    if str(path).endswith("/children"):
        raise FileNotFoundError(path)
    return read_text(path)


@pytest.mark.parametrize("listing", ["children", "parents"])
def test_a_real_tree_is_followed_through_a_reload(tree: Tree, listing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if listing == "parents":
        monkeypatch.setattr(procfs, "read_text", read_without_children)
    server = ServerTree([tree.master.pid])
    group = ProcessGroup("server", server)
    assert {one.pid for one in server()} == {tree.master.pid, *tree.workers, tree.grandchild}
    before = group.scan().values
    assert before["server.processes"] == 4
    assert group.memory().values["server.pss_bytes"] > 0
    assert server.ended == 0
    replaced = tree.reload()
    assert {one.pid for one in server()} == {tree.master.pid, replaced, tree.workers[1], tree.grandchild}
    after = group.scan().values
    assert after["server.processes"] == 4
    assert server.ended == 1
    assert after["server.cpu_s"] >= before["server.cpu_s"]


def test_children_of_an_ended_root_are_orphans() -> None:
    # Two sleeping children of a shell; and the same with one child as the other's parent.
    alone = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
    below = subprocess.Popen(["sh", "-c", "sh -c 'sleep 60 & wait' & wait"], start_new_session=True)
    try:
        for root, orphaned in ((alone, alone.pid), (below, 0)):
            server = ServerTree([root.pid])
            until(lambda server=server: len(server()) >= 3, "all three are there")
            root.kill()
            root.wait()
            assert len([one for one in server() if not one.ended]) == 2
            assert server.orphaned == orphaned
    finally:
        for root in (alone, below):
            os.killpg(root.pid, signal.SIGKILL)


def test_the_living_roots_are_those_that_have_not_ended(tree: Tree) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        server = ServerTree(sorted([other.pid, tree.master.pid]))
        server()
        assert server.living_roots() == tuple(sorted([other.pid, tree.master.pid]))
        other.kill()
        # Also before anyone has waited for it.
        until(lambda: server.living_roots() == (tree.master.pid,), "the other has ended")
    finally:
        other.kill()
        other.wait()
    tree.kill()
    assert server.living_roots() == ()


def test_of_several_roots_one_that_ended_is_missing_until_it_is_replaced(tree: Tree) -> None:
    other = subprocess.Popen(["sleep", "60"])
    third = subprocess.Popen(["sleep", "60"])
    asked: list[frozenset[int]] = []
    answers = [Replaced(), Replaced((third.pid, tree.master.pid), frozenset([other.pid]))]

    def replaced(ended: Collection[int]) -> Replaced:
        asked.append(frozenset(ended))
        return answers.pop(0)

    try:
        server = ServerTree([other.pid, tree.master.pid], replaced=replaced)
        before = len(server())
        assert (server.missing, asked) == (frozenset(), [])
        other.kill()
        other.wait()
        assert len(server()) == before - 1
        assert server.missing == {other.pid}
        found = [stat.pid for stat in server()]
        assert (len(found), third.pid in found) == (before, True)
        assert (server.missing, server.replaced, server.restarts) == (frozenset(), {other.pid}, 0)
        assert server.roots == tuple(sorted([third.pid, tree.master.pid]))
        assert (server.ended, server.started) == (1, 1)
        server()
        assert asked == [{other.pid}, {other.pid}]
    finally:
        for process in (other, third):
            process.kill()
            process.wait()


def test_roots_that_all_ended_are_missing_until_each_is_replaced(tree: Tree) -> None:
    other = subprocess.Popen(["sleep", "60"])
    answers = [Replaced((os.getpid(),), frozenset([tree.master.pid])), Replaced()]
    server = ServerTree([other.pid, tree.master.pid], replaced=lambda ended: answers.pop(0))
    server()
    other.kill()
    other.wait()
    tree.kill()
    server()
    assert (server.roots, server.missing, server.restarts) == ((os.getpid(),), {other.pid}, 0)
    server()
    assert server.missing == {other.pid}


def test_what_ended_is_searched_for_only_where_something_else_listens() -> None:
    searches: list[int] = []

    def find() -> list[int]:
        searches.append(1)
        return [os.getpid()]

    with socket.create_server(("127.0.0.1", 0)) as gone, socket.create_server(("127.0.0.1", 0)) as kept:
        ports = [listener.getsockname()[1] for listener in (gone, kept)]
        listening = subprocess.Popen(["sleep", "60"], pass_fds=[gone.fileno()])
        waiting = subprocess.Popen(["sleep", "60"], pass_fds=[kept.fileno()])
        try:
            lost = LostRoots([listening.pid, waiting.pid], find, ports)
        finally:
            listening.kill()
            waiting.kill()
            listening.wait()
            waiting.wait()
        gone.close()
        assert lost.replaced({listening.pid}) == Replaced()
        assert searches == []
        # The other one's port is taken by this process.
        assert lost.replaced({waiting.pid}) == Replaced((os.getpid(),), frozenset([waiting.pid]))
        assert len(searches) == 1
        # The same socket once more tells nothing new.
        assert lost.replaced({waiting.pid}) == Replaced()
        assert len(searches) == 1


def test_an_ended_server_raises_until_it_is_found_again(tree: Tree) -> None:
    roots: list[int] = []
    server = ServerTree([tree.master.pid], lambda: roots)
    group = ProcessGroup("server", server)
    group.scan()
    tree.kill()
    with pytest.raises(ProcessesGoneError, match=f"main process was {tree.master.pid}"):
        group.scan()
    assert group.memory().values == {}
    roots.append(os.getpid())
    assert group.scan().values["server.processes"] >= 1
    assert (server.roots, server.restarts) == ((os.getpid(),), 1)
    assert server.search_s > 0
    group.scan()
    assert server.search_s == 0
