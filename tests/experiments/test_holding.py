"""The experiment holding: on real servers with small numbers, what it makes of made rounds, and its control group."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from programs import DEADLINE_S

from asyncli import experiments, lab
from asyncli.errors import HostError
from asyncli.experiments import holding, holding_limits
from asyncli.experiments.cgroup import find_place, own_group, remove_leftovers
from asyncli.experiments.holding_limits import SHAPES
from asyncli.experiments.record import Claim, Record, Round
from asyncli.experiments.run import run
from asyncli.experiments.soak_ladder import _beat_us
from asyncli.records import Phase, Sample, Tick
from asyncli.report.experiment_report import page

pytestmark = pytest.mark.measures

FACTS = {"nofile": 20_000, "pid_max": 32_768, "threads_max": 190_000, "map_max": 65_530, "stack_bytes": 8 << 20}
SMALL = {
    "rounds": 1, "connections": 400, "members": 60, "plateaus": 3, "rest": "300ms", "hold": "300ms", "baseline": "200ms",
    "keepalive": "2s", "limit_mib": 8, "push": [], "push_time": "4s",
}  # fmt: skip


async def of(*servers: str, **changes: Any) -> Record:
    experiment = experiments.load("holding")
    plan = experiments.plan_of(experiment, True, {**SMALL, "servers": list(servers), **changes})
    return await run(experiment, plan, quick=True, say=lambda _: None)


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii").split())


def groups() -> list[Path]:
    place = find_place(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    return [] if place is None else list(place.folder.glob(f"asyncli-{os.getpid()}-*"))


async def confines() -> bool:
    try:
        async with own_group(64 << 20):
            return True
    except HostError:
        return False


# -- on real servers


@pytest.mark.compiler
async def test_a_thread_is_made_for_each_connection_and_all_are_held() -> None:
    before = children()
    record = await of("thread")
    (one,) = record.rounds
    assert record.complete
    assert (one["asked"], one["held"], one["lost"], one["failed"]) == (60, 60, 0, 0)
    assert (one["processes"], one["threads"]) == (1, 61)
    assert one["user"] > 4096  # a page of its stack at least
    if await confines():
        # Its stack in the kernel is 16 kB, and charged to the server.
        assert one["own"] > one["user"] + 16_384
    assert "server model: thread per client" in record.environment["server"]
    assert children() == before
    assert "thread" in page(record)


@pytest.mark.compiler
async def test_a_pool_counts_what_its_members_took_at_the_start() -> None:
    (one,) = (await of("prefork")).rounds
    assert (one["held"], one["processes"], one["workers"]) == (60, 61, 60)
    # The program itself is no part of a place in the pool.
    alone, members = one["alone"]
    assert (alone > 0, members) == (True, 1)
    assert one["member"] == pytest.approx((one["start"] - alone) / 59)
    assert one["beat_us"] is None


@pytest.mark.compiler
async def test_the_iterative_server_serves_one_of_eight() -> None:
    record = await of("iterative")
    (one,) = record.rounds
    assert (one["asked"], one["held"]) == (8, 1)
    assert one["causes"] == {"heartbeat_timeout": 7}
    assert [claim.verdict for claim in record.conclusions.claims] == ["holds"]


@pytest.mark.compiler
async def test_stopped_half_way_it_leaves_no_process_and_no_group() -> None:
    if not await confines():
        pytest.skip("no memory control group can be made here")
    before = children()
    context = holding.Context(experiments.plan_of(holding.EXPERIMENT, True, SMALL))
    context.rounds.append(made("thread", own=20_000.0, host=28_000.0))
    started = asyncio.Event()
    context.say = lambda _: None
    task = asyncio.create_task(holding._push(context, "thread", 0))

    async def begun() -> None:
        while not (children() - before and groups()):
            await asyncio.sleep(0.01)
        started.set()

    await asyncio.wait_for(begun(), DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == before
    assert groups() == []


@pytest.mark.compiler
async def test_threads_pushed_into_a_limit_of_memory_stop_there() -> None:
    if not await confines():
        pytest.skip("no memory control group can be made here")
    context = holding.Context(experiments.plan_of(holding.EXPERIMENT, True, {**SMALL, "limit_mib": 24, "push_time": "8s"}))
    # Reckoned at 20 kB each it takes twice that, so it must stop before all are opened: after a second, and before the third.
    context.rounds.append(made("thread", own=20_000.0, host=28_000.0))
    await holding._push(context, "thread", 0)
    pushed = context.rounds[-1]
    assert pushed["step"] == "thread, pushed"
    assert 0 < pushed["most"] < pushed["asked"]
    assert pushed["stopped"]
    assert pushed["killed"] or pushed["complaint"] or pushed["refused"]
    assert pushed["used_at_most"] <= 24 << 20
    assert groups() == []


async def test_a_server_started_inside_is_in_the_group_with_all_its_processes() -> None:
    if not await confines():
        pytest.skip("no memory control group can be made here")
    async with own_group(256 << 20) as group:
        with group.inside():
            server = lab.choose("builtin", connections=10)
            await server.start()
        try:
            assert f"/asyncli-{os.getpid()}-" in Path(f"/proc/{server.pid}/cgroup").read_text(encoding="ascii")
            (folder,) = groups()
            assert len((folder / "cgroup.procs").read_text(encoding="ascii").split()) == 1 + server.workers
            assert 1 << 20 < group.used_bytes < 256 << 20
            assert group.killed == 0
        finally:
            await server.stop()
    assert groups() == []


# -- where a group is made


V1 = "4:memory:/mine\n3:cpu:/\n0::/\n"
MOUNT = "36 32 0:33 {root} {at} rw,relatime - {kind} {kind} rw,memory\n"


def test_of_cgroup_v1_it_is_made_below_our_own(tmp_path: Path) -> None:
    whole = MOUNT.format(root="/", at="/sys/fs/cgroup/memory", kind="cgroup")
    assert find_place(V1, whole) == (Path("/sys/fs/cgroup/memory/mine"), False)
    part = MOUNT.format(root="/mine", at="/sys/fs/cgroup/memory", kind="cgroup")
    assert find_place(V1, part) == (Path("/sys/fs/cgroup/memory"), False)
    assert find_place(V1, "") is None


@pytest.mark.parametrize(
    ("above", "ours", "limit", "place"),
    [
        ("cpu memory", "", "max", "user"),
        ("cpu memory", "memory", "max", "user/mine"),
        ("cpu", "", "max", None),
        # It would be out of its own limit there.
        ("cpu memory", "", "1048576", None),
    ],
)
def test_of_cgroup_v2_it_is_made_where_memory_is_handed_on(
    tmp_path: Path, above: str, ours: str, limit: str, place: str | None
) -> None:
    mine = tmp_path / "user/mine"
    mine.mkdir(parents=True)
    (mine.parent / "cgroup.subtree_control").write_text(above)
    (mine / "cgroup.subtree_control").write_text(ours)
    (mine / "memory.max").write_text(limit)
    found = find_place("0::/user/mine\n", MOUNT.format(root="/", at=tmp_path, kind="cgroup2"))
    assert found == (None if place is None else (tmp_path / place, True))


def test_a_group_whose_maker_was_killed_is_removed_and_no_other(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "12").mkdir(parents=True)
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").touch()
    mine = (proc / "self/ns/pid").stat().st_ino
    # A maker in another pid namespace may live, whatever our /proc has under its number.
    stay = {f"asyncli-12-{mine}-a", f"asyncli-x-{mine}-a", f"asyncli-13-{mine}-a", f"asyncli-11-{mine + 1}-a"}
    for name in (f"asyncli-11-{mine}-a", f"asyncli-13-{mine}-a/child", *stay):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    remove_leftovers(tmp_path, proc)
    assert {one.name for one in tmp_path.iterdir()} == {"proc", *stay}


async def test_without_a_group_it_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(V1)
    (tmp_path / "mountinfo").write_text("")
    with pytest.raises(HostError, match="no memory control group below ours; run it as root"):
        async with own_group(1 << 20, proc=tmp_path):
            pass


# -- of made rounds


def made(name: str, number: int = 0, **figures: Any) -> Round:
    own = figures.get("own", 5_000.0)
    base = {
        "asked": 1_000, "held": 1_000, "lost": 0, "failed": 0, "p99_ms": 2.0, "processes": 2.0, "threads": 2.0, "user": 600.0,
        "user_half": 10.0, "kernel": 4_000.0, "kernel_half": 20.0, "host": 9_000.0, "host_half": 100.0, "rest": 400.0, "socket": 4_000.0,
        "own": own, "own_half": 100.0, "member": None, "each": own, "start": 1 << 20, "workers": 1, "cut": 1_000, "beat_us": 20.0,
    }  # fmt: skip
    return {"step": name, "round": number, **base, **FACTS, **figures}


def pushed(name: str = "thread", **figures: Any) -> Round:
    base = {
        "server": name, "asked": 1_300, "limit": 64 << 20, "most": 1_000, "used_at_most": 60 << 20, "lost": 30, "failed": 0,
        "causes": {"closed_idle": 30}, "stopped": True, "refused": 7, "killed": 0, "complaint": "", "reckoned": 1_050.0,
        "reckoned_least": 1_000.0, "reckoned_most": 1_100.0,
    }  # fmt: skip
    return {"step": f"{name}, pushed", "round": 0, **base, **figures}


def claim(rounds: list[Round], words: str) -> Claim:
    found = [one for one in conclusions(rounds).claims if words in one.claim]
    assert len(found) == 1
    return found[0]


def conclusions(rounds: list[Round]) -> Any:
    return holding.conclude({**holding.EXPERIMENT.defaults, **SMALL}, rounds)


@pytest.mark.parametrize(
    ("event", "other", "verdict"), [(5_000.0, 60_000.0, "holds"), (5_000.0, 40_000.0, "does not hold"), (5_000.0, 50_000.0, "cannot say")]
)
def test_a_tenth_of_a_thread(event: float, other: float, verdict: str) -> None:
    rounds = [made("nginx", own=event), made("thread", own=other)]
    assert claim(rounds, "tenth of what a thread").verdict == verdict


def test_a_tenth_holds_in_part_where_one_pair_misses_it() -> None:
    rounds = [made("nginx", own=5_000.0), made("builtin", own=9_000.0), made("fork", own=80_000.0)]
    found = claim(rounds, "tenth of what a process")
    assert found.verdict == "holds in part"
    assert "builtin takes 0.11 of what fork does" in found.why
    assert "Pairs that are below: 1 of 2; that are not: 1; that cannot be told: 0." in found.why


@pytest.mark.parametrize(("end", "verdict"), [(4_100.0, "holds"), (4_200.0, "cannot say"), (4_800.0, "does not hold")])
def test_a_socket_costs_the_kernel_the_same_everywhere(end: float, verdict: str) -> None:
    many = {"asked": 10_000, "held": 10_000}
    # A thousand are too few to tell, whatever their interval says.
    rounds = [made("nginx", **many), made("fork", kernel=end, **many), made("thread", kernel=3_000.0)]
    assert claim(rounds, "kernel keeps").verdict == verdict


@pytest.mark.parametrize(
    ("own", "verdict"), [(40_000.0, "holds"), (200_000.0, "holds"), (4_000_000.0, "cannot say"), (9_000_000.0, "does not hold")]
)
def test_a_stack_costs_what_was_touched(own: float, verdict: str) -> None:
    assert claim([made("thread", own=own)], "of its stack").verdict == verdict


@pytest.mark.parametrize(
    ("fork", "thread", "verdict"),
    [((90e3, 95e3), (30e3, 31e3), "holds"), ((50e3, 52e3), (30e3, 31e3), "does not hold"),
     ((20e3, 21e3), (30e3, 31e3), "does not hold"), ((50e3, 70e3), (30e3, 31e3), "cannot say")],
)  # fmt: skip
def test_a_process_against_a_thread(fork: tuple[float, float], thread: tuple[float, float], verdict: str) -> None:
    rounds = [made(name, at, own=own) for name, each in (("fork", fork), ("thread", thread)) for at, own in enumerate(each)]
    assert claim(rounds, "more than twice").verdict == verdict


@pytest.mark.parametrize(
    ("figures", "verdict", "words"),
    [({}, "holds", "then 30 closed by the server: the kernel refused it memory 7 times"),
     ({"killed": 1}, "holds", "the kernel killed a process of it for want of memory"),
     ({"complaint": "cannot fork for a client: Cannot allocate memory (said once)"}, "holds", "Cannot allocate memory'"),
     ({"most": 500}, "does not hold", "500 held at most"),
     # Something else than its limit of memory stopped it.
     ({"refused": 0}, "cannot say", "its limit of memory was not met"),
     ({"refused": 0, "complaint": "cannot accept: Too many open files (said once)"}, "cannot say", "Too many open files'"),
     ({"most": 1_400, "stopped": False, "causes": {}}, "does not hold", "1,400 held at most"),
     ({"stopped": False, "causes": {}}, "cannot say", "nothing stopped it (of 1,300, in the time it was given)"),
     ({"reckoned": 0.0}, "cannot say", "1,000 held at most")],
)  # fmt: skip
def test_what_a_push_came_to(figures: dict[str, Any], verdict: str, words: str) -> None:
    found = claim([pushed(**figures)], "Pushed in 64 MiB, thread")
    assert found.verdict == verdict
    assert words in found.why


def test_every_round_of_a_push_must_be_stopped_by_memory() -> None:
    rounds = [pushed(), {**pushed(stopped=False, causes={}, refused=0, most=900), "round": 1}]
    assert claim(rounds, "Pushed in 64 MiB, thread").verdict == "cannot say"


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [({"held": 1, "causes": {"heartbeat_timeout": 7}}, "holds"), ({"held": 1}, "holds"), ({"held": 8, "causes": {}}, "does not hold"),
     ({"held": 1, "causes": {"reset": 7}}, "does not hold")],
)  # fmt: skip
def test_all_others_wait_for_the_iterative_server(figures: dict[str, Any], verdict: str) -> None:
    rounds = [{"step": "iterative", "round": 0, "asked": 8, "processes": 1.0, "threads": 1.0, **figures}]
    assert claim(rounds, "iterative server").verdict == verdict


def test_cpu_of_a_few_ticks_is_no_figure() -> None:
    hold = Phase("hold", 0.0, 10.0)
    run: Any = SimpleNamespace(phase={"hold": hold}.get, ticks=[(5.0, Tick(answered=1_000))])

    def of(spent_s: float) -> float | None:
        return _beat_us(run, [Sample(0.0, {"server.cpu_s": 1.0}), Sample(9.0, {"server.cpu_s": 1.0 + spent_s})])

    assert of(0.0) is None
    assert of(0.19) is None
    assert of(0.25) == pytest.approx(250)
    # Not in ticks: the clock is finer.
    assert of(0.012345) == pytest.approx(12.345)


def first(name: str, limit: float, **figures: Any) -> str:
    return holding_limits.stops(SHAPES[name], made(name, **figures), limit)[0].words


def test_what_stops_each_first() -> None:
    assert first("nginx", 32 << 20) == "memory"
    assert first("nginx", 1 << 30, workers=2).startswith("descriptors of its 2 processes")
    assert first("haproxy", 1 << 30, workers=2) == "descriptors of its one process"
    assert first("thread", 1 << 30) == "descriptors of its one process"
    assert first("thread", 1 << 40, nofile=10**6) == "memory maps of one process (vm.max_map_count): two for each thread"
    assert first("thread", 1 << 40, nofile=10**6, map_max=None).startswith("ids for threads")
    assert first("fork", 1 << 40).startswith("ids for processes")
    assert first("prefork", 32 << 20, member=9_000.0, each=14_000.0) == "memory, of a pool that is to be as large"
    assert first("fork", 1 << 19) == "memory, all of which its start takes"


def test_memory_is_reckoned_with_the_interval_of_the_slope_and_not_from_an_unsure_one() -> None:
    stop = holding_limits.memory_stop(made("nginx"), 51 << 20)
    assert stop is not None
    assert (stop.least, stop.number, stop.most) == (math.floor((50 << 20) / 5_100), 10_485, math.floor((50 << 20) / 4_900))
    assert holding_limits.memory_stop(made("nginx", own_half=3_000.0), 51 << 20) is None
    assert holding_limits.memory_stop(made("nginx", each=None), 51 << 20) is None


def test_a_push_asks_for_a_third_more_than_fits_and_no_more_than_there_are_descriptors() -> None:
    assert holding_limits.aimed(SHAPES["nginx"], made("nginx"), 51 << 20, 8e9) == math.ceil(1.3 * 10_485)
    # 52,000 would fit by memory, and as many descriptors as two processes have.
    assert holding_limits.aimed(SHAPES["nginx"], made("nginx", workers=2), 1 << 30, 8e9) == 52_000
    assert holding_limits.aimed(SHAPES["haproxy"], made("haproxy", workers=2), 1 << 30, 8e9) == 19_900
    # Both ends of each take memory of this host.
    assert holding_limits.aimed(SHAPES["nginx"], made("nginx"), 51 << 20, 27e6) == 1_000


@pytest.mark.parametrize(
    ("connections", "within_s", "ramp"), [(530, 17.0, "1/32ms"), (1_624, 17.0, "1/10ms"), (1_750, 17.0, "2/19ms"), (29_682, 17.0, "18/10ms")]
)
def test_a_push_opens_all_within_its_time(connections: int, within_s: float, ramp: str) -> None:
    assert holding_limits.ramp_of(connections, within_s) == ramp
    batch, ms = (int(part) for part in ramp.removesuffix("ms").split("/"))
    assert connections / batch * ms / 1000 <= within_s


def test_a_push_is_reckoned_by_what_its_group_is_charged() -> None:
    shape = SHAPES["thread-pool"]
    one = made("thread-pool", charge=2_000.0, charge_half=50.0, start=8e6, workers=1_000)
    found = holding_limits.charged_alone(shape, one)
    assert (found["own"], found["own_half"], found["member"], found["each"]) == (2_000.0, 50.0, 8_000.0, 10_000.0)
    assert holding_limits.charged_alone(shape, made("nginx")) == made("nginx")
    apart = holding_limits.charged_alone(shape, {**one, "alone": [1e6, 1]})
    assert apart["member"] == pytest.approx(7e6 / 999)
    # Its start but for a thousand members is the program's, and takes room.
    stop = holding_limits.memory_stop(apart, 64 << 20)
    assert stop is not None
    assert stop.number == ((64 << 20) - (8e6 - 1_000 * apart["member"])) // apart["each"]


def test_a_socket_that_is_not_known_well_is_no_witness() -> None:
    many = {"asked": 10_000, "held": 10_000}
    rounds = [made("nginx", **many), made("thread", kernel=4_050.0, **many), made("fork", kernel=300.0, kernel_half=2_000.0, **many)]
    assert claim(rounds, "kernel keeps").verdict == "holds"


def test_a_ladder_stays_within_its_kind_and_a_third_of_the_free_memory() -> None:
    plan = {**holding.EXPERIMENT.defaults}
    assert holding_limits.fitting("nginx", plan, 8e9) == 10_000
    assert holding_limits.fitting("fork", plan, 8e9) == 1_000
    assert holding_limits.fitting("fork", plan, 120e6) == 100
    with pytest.raises(HostError, match="too few for a ladder on fork"):
        holding_limits.fitting("fork", plan, 1e6)


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [made("nginx")],
        [{"step": "iterative", "round": 0, "asked": 8, "held": 1}],
        [made("fork", user=None, kernel=None, host=None, rest=None, own=None, own_half=None, each=None, p99_ms=None)],
        [made("nginx", kernel=0.0), made("thread", own=0.0)],
        [pushed()],
        [pushed("nginx", most=0, reckoned=0.0), made("nginx", 1)],
        [made(name) for name in SHAPES],
    ],
    ids=["nothing", "one", "iterative", "unknown", "zero", "push", "push of nothing", "all"],
)
async def test_any_part_of_the_rounds_comes_to_something(rounds: list[Round]) -> None:
    found = conclusions(rounds)
    texts = [one.why for one in found.claims]
    assert not [text for text in texts if "nan" in text.split() or "inf" in text.split()]
    record = Record(1, "holding", "t", "q", "s", {}, True, "2025-03-01T12:00:00Z", 1.0, False, rounds, found, [], {})
    assert "<html" in page(record)
