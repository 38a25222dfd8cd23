"""The experiment holding: a small run on real servers, and conclusions from synthetic rounds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from provoked import OwnStandstills
from synthetic_run import a_run, raised

from asyncli import experiments
from asyncli.analysis.cost import costs
from asyncli.experiments import holding, soak_ladder
from asyncli.experiments.context import Context, run
from asyncli.experiments.holding import SHAPES, limits_of
from asyncli.experiments.record import Conclusions, Record, Round, Rounds
from asyncli.experiments.soak_ladder import own_cost
from asyncli.lab import choose
from asyncli.model.errors import HostError
from asyncli.model.records import Sample

FACTS = {"nofile": 20_000, "pid_max": 32_768, "threads_max": 190_000, "map_max": 65_530}
SMALL = {
    "rounds": 1, "connections": 400, "members": 60, "plateaus": 3, "rest": "300ms", "hold": "300ms", "baseline": "200ms",
    "keepalive": "2s", "limit_mib": 8,
}  # fmt: skip


async def of(*servers: str) -> Record:
    experiment = experiments.load("holding")
    plan = experiments.plan_of(experiment, True, {**SMALL, "servers": list(servers)})
    return await run(experiment, plan, quick=True, say=lambda _: None)


@pytest.mark.measures
@pytest.mark.compiler
async def test_threads_pools_and_one_at_a_time_each_as_they_are() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text(encoding="ascii").split()
    standstills = OwnStandstills()
    with standstills.watched():
        record = await of("iterative", "prefork", "thread")
    assert record.complete
    found = {one["step"]: one for one in record.rounds}
    alone, pool, thread = (found[name] for name in ("iterative", "prefork", "thread"))
    assert (alone["asked"], alone["held"], alone["causes"]) == (8, 1, {"heartbeat_timeout": 7})
    assert (pool["held"], pool["workers"]) == (60, 60)
    # Processes and threads are as they were read last, which is before all were there if the server or this process stood still.
    assert pool["processes"] == 61 or standstills.any_was or pool["p99_ms"] > 300
    # The place in the pool stood before the first connection.
    assert pool["member"] == pytest.approx(pool["start"] / 60)
    assert (thread["asked"], thread["held"], thread["lost"], thread["failed"]) == (60, 60, 0, 0)
    assert (thread["processes"], thread["member"]) == (1, None)
    assert thread["threads"] == 61 or standstills.any_was or thread["p99_ms"] > 300
    assert thread["user"] > 4096  # a page of its stack at least
    assert record.conclusions.claims[-1].verdict == "holds"
    assert children.read_text(encoding="ascii").split() == before


async def group_to_be_made() -> None:
    try:
        async with soak_ladder.new_cgroup():
            pass
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")


@pytest.mark.measures
@pytest.mark.compiler
async def test_a_server_is_in_its_group_from_its_start_and_the_group_is_removed() -> None:
    await group_to_be_made()
    context = Context(holding.EXPERIMENT.plan())
    server = choose("prefork", connections=10, keepalive_s=2.0, workers=10)
    async with soak_ladder.measured_in_cgroup(context, server) as charges:
        where = {line.rpartition("/")[2] for line in Path(f"/proc/{server.pid}/cgroup").read_text(encoding="ascii").splitlines()}
        (name,) = (one for one in where if one.startswith(f"asyncli-{os.getpid()}-"))
        (folder,) = Path("/sys/fs/cgroup").rglob(name)
        assert len((folder / "cgroup.procs").read_text(encoding="ascii").split()) == 11
        await asyncio.sleep(0.3)
        assert len(charges.samples) > 1
        # Page tables and stacks of eleven processes, far from all that the host has in use.
        assert 11 * 20_000 < charges.samples[-1].values["server.pss_bytes"] < 20_000_000
    assert not folder.exists()
    assert context.findings == []


async def test_without_a_group_the_server_runs_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_ladder, "memory_group", lambda *_: None)
    context = Context(holding.EXPERIMENT.plan())
    for _ in range(2):
        async with soak_ladder.measured_in_cgroup(context, choose("asyncio", connections=1, keepalive_s=2.0)) as charges:
            assert charges.samples == []
    assert [one.code for one in context.findings] == ["no_group"]


@pytest.mark.parametrize(("with_sockets", "own"), [(True, 3_000.0), (False, 3_000.0 + 2_240.0)])
def test_what_the_group_is_charged_counts_whatever_else_the_host_does(with_sockets: bool, own: float) -> None:
    run = a_run(5_000)
    run.environment["clock"] = {"monotonic_s": 100.0}
    charges = soak_ladder.Charges()
    charges.with_sockets = with_sockets
    for number, one in enumerate(run.samples):
        held = run.held.at(one.t_s) or 0.0
        one.values |= {"kernel.slab.TCP": 1e6 + 2 * 2_240.0 * held, "host.used_bytes": 2e9 + 1e9 * (number % 7)}
        charges.samples.append(Sample(100.0 + one.t_s, {"server.pss_bytes": 1e6 + 3_000.0 * held}))
    cost = costs(run)
    found = own_cost(run, cost, charges)
    assert found["own"] == pytest.approx(own, rel=0.02)
    assert found["own_half"] < 0.02 * own
    assert (own_cost(run, cost, soak_ladder.Charges())["own_half"] or 1e9) > 10_000


def test_figures_have_no_cost_that_a_report_withholds() -> None:
    assert soak_ladder.figures_of(a_run(5_000))["user"] is not None
    assert soak_ladder.figures_of(raised(a_run(5_000), 4_000.0, "status.accepts"))["user"] is None


def made(name: str, number: int = 0, **figures: Any) -> Round:
    own = figures.get("own", 5_000.0)
    base = {
        "asked": 1_000, "held": 1_000, "lost": 0, "failed": 0, "p99_ms": 2.0, "processes": 2.0, "threads": 2.0, "user": 600.0,
        "user_half": 10.0, "kernel": 4_000.0, "kernel_half": 20.0, "host": 9_000.0, "host_half": 100.0, "rest": 400.0, "socket": 4_000.0,
        "own": own, "own_half": 100.0, "member": None, "each": own, "start": 1 << 20, "workers": 1, "cut": 1_000,
    }  # fmt: skip
    return {"step": name, "round": number, **base, **FACTS, **figures}


def conclusions(*rounds: Round) -> Conclusions:
    return holding.conclude(experiments.plan_of(holding.EXPERIMENT, False, SMALL), Rounds(rounds))


@pytest.mark.parametrize(
    ("event", "other", "verdict"), [(5_000.0, 60_000.0, "holds"), (5_000.0, 40_000.0, "does not hold"), (5_000.0, 50_000.0, "cannot say")]
)
def test_a_tenth_of_a_thread(event: float, other: float, verdict: str) -> None:
    assert [one.verdict for one in conclusions(made("nginx", own=event), made("thread", own=other)).claims] == [verdict]


@pytest.mark.parametrize(
    ("fork", "thread", "verdict"),
    [((90e3, 95e3), (30e3, 31e3), "holds"), ((50e3, 52e3), (30e3, 31e3), "does not hold"),
     ((20e3, 21e3), (30e3, 31e3), "does not hold"), ((50e3, 70e3), (30e3, 31e3), "cannot say")],
)  # fmt: skip
def test_a_process_against_a_thread(fork: tuple[float, float], thread: tuple[float, float], verdict: str) -> None:
    rounds = [made(name, at, own=own) for name, each in (("fork", fork), ("thread", thread)) for at, own in enumerate(each)]
    assert [one.verdict for one in conclusions(*rounds).claims] == [verdict]


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [({"held": 1, "causes": {"heartbeat_timeout": 7}}, "holds"), ({"held": 1}, "holds"), ({"held": 8, "causes": {}}, "does not hold"),
     ({"held": 1, "causes": {"reset": 7}}, "does not hold")],
)  # fmt: skip
def test_all_others_wait_for_the_iterative_server(figures: dict[str, Any], verdict: str) -> None:
    found = conclusions({"step": "iterative", "round": 0, "asked": 8, "processes": 1.0, "threads": 1.0, **figures})
    assert [one.verdict for one in found.claims] == [verdict]


@pytest.mark.parametrize(
    ("name", "limit", "figures", "first", "number"),
    [
        ("nginx", 51 << 20, {}, "memory", 10_485),
        ("nginx", 1 << 30, {"workers": 2}, "descriptors", 40_000),
        ("haproxy", 1 << 30, {"workers": 2}, "descriptors", 20_000),
        ("thread", 1 << 40, {"nofile": 10**6}, "maps", 32_765),
        ("thread", 1 << 40, {"nofile": 10**6, "map_max": None}, "ids", 32_768),
        ("fork", 1 << 40, {}, "ids", 32_768),
        # A pool is taken to be as large as then fits, whatever it took at its start.
        ("prefork", 14_000_000, {"member": 9_000.0, "each": 14_000.0, "start": 9e6}, "memory", 1_000),
        ("fork", 1 << 19, {}, "memory", 0),
        # Not from a slope that is not known well.
        ("nginx", 51 << 20, {"own_half": 3_000.0}, "descriptors", 20_000),
        ("nginx", 51 << 20, {"each": None}, "descriptors", 20_000),
    ],
)
def test_what_stops_each_first(name: str, limit: float, figures: dict[str, Any], first: str, number: int) -> None:
    found = limits_of(name, made(name, **figures), limit)
    assert min((value, key) for key, value in found.items() if key not in ("least", "most")) == (number, first)
    if "memory" in found:
        assert found["least"] <= found["memory"] <= found["most"]


def test_a_ladder_stays_within_its_kind_and_a_third_of_the_free_memory() -> None:
    plan = holding.EXPERIMENT.plan()
    assert holding.connections_that_fit("nginx", plan, 8e9) == 10_000
    assert holding.connections_that_fit("fork", plan, 8e9) == 1_000
    assert holding.connections_that_fit("fork", plan, 120e6) == 100
    with pytest.raises(HostError):
        holding.connections_that_fit("fork", plan, 1e6)


@pytest.mark.parametrize(
    "rounds",
    [
        [made("nginx")],
        [made("fork", user=None, kernel=None, host=None, rest=None, own=None, own_half=None, each=None, p99_ms=None)],
        [made("nginx", kernel=0.0), made("thread", own=0.0)],
        [made(name) for name in SHAPES],
    ],
    ids=["one", "unknown", "zero", "all"],
)
def test_any_part_of_the_rounds_comes_to_something(rounds: list[Round]) -> None:
    found = conclusions(*rounds)
    assert not [one.why for one in found.claims if {"nan", "inf"} & {*one.why.split()}]
    assert len(found.tables) == 3
