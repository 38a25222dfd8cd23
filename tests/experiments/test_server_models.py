"""The experiment server-models: its client, its CPU clock, a real run, and conclusions from synthetic rounds."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import DEADLINE_S, speaking

from asyncli import experiments
from asyncli.collect.procfs import all_pids, read_stat
from asyncli.experiments import bytes_client
from asyncli.experiments.context import run
from asyncli.experiments.counters import CpuTime, ServerCpu
from asyncli.experiments.record import Claim, Conclusions, Round, Rounds
from asyncli.experiments.server_models import EXPERIMENT, ModelLoad, cells, conclude
from asyncli.lab import compiler
from asyncli.lab.models import MODELS, LabModel

HOME = Path(experiments.__file__).parents[2]
CLIENT = (sys.executable, "-m", "asyncli.experiments.bytes_client")
TINY = {"rounds": 1, "server_s": 0.01, "processes": [3], "bytes": [4_000], "pools": [2, 4]}


def ours() -> set[int]:
    """The running descendants of this process."""
    stats = {}
    for pid in all_pids():
        try:
            stats[pid] = read_stat(pid)
        except OSError:
            continue
    found = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if stat.parent in found and not stat.ended} - found:
        found |= more
    return found - {os.getpid()}


async def client(*arguments: object) -> tuple[int, dict[str, Any], str]:
    """Run the client; returns its exit status, its JSON and its stderr."""
    process = await asyncio.create_subprocess_exec(*CLIENT, *map(str, arguments), stdout=-1, stderr=-1, env={**os.environ, "PYTHONPATH": str(HOME)})
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out else {}, err.decode()


async def test_the_client_makes_as_many_connections_as_it_was_told() -> None:
    async with LabModel("asyncio") as server:
        for size in (1, 4_000, 200_000):
            status, found, err = await client(*server.address_port, 3, 20, size)
            assert (status, found["connections"], found["failures"], err) == (0, 60, {}, "")
            assert found["seconds"] > 0
            assert 0 < found["cpu_s"] < 10


@pytest.mark.parametrize(("answer", "kind"), [(b"", "short"), (b"123", "short"), (b"12345", "too_many_bytes")])
async def test_the_client_says_when_not_just_its_bytes_came(answer: bytes, kind: str) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(answer)
        writer.close()

    with speaking(answers) as at:
        status, found, err = await client(*at.split(":"), 2, 5, 4)
    assert (status, found["connections"], found["failures"], err) == (1, 0, {kind: 2}, "")


async def test_the_client_explains_itself_in_one_line() -> None:
    for wrong in ((), ("127.0.0.1", 80, 1, 1), ("127.0.0.1", 80, 0, 1, 4), ("nowhere.invalid", 80, 1, 1, 4), ("127.0.0.1", "x", 1, 1, 4)):
        status, _, err = await client(*wrong)
        assert status == 2
        assert err.startswith("usage: ")
        assert err.count("\n") == 1


def test_no_address_serves_so_many_connections_that_its_ports_run_out() -> None:
    for processes, loops in ((1, 50_000), (100, 500), (10, 5_000), (100, 50_000)):
        sources = bytes_client._sources("127.0.0.1", processes, loops)
        assert len(sources) == processes
        assert all(len(one) * 2_824 >= loops for one in sources)
        flat = [one for some in sources for one in some]
        assert len(set(flat)) == len(flat)
        assert all(one is not None and one.startswith("127.") for one in flat)
    assert bytes_client._sources("192.0.2.1", 2, 50_000) == [(None,), (None,)]


def test_the_client_is_a_light_process() -> None:
    code = "import asyncli.experiments.bytes_client, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(HOME)}).stdout
    assert set(loaded.split()) & {"asyncio", "numpy", "scipy", "click", "rich", "asyncli.app.bench", "asyncli.experiments.context"} == set()


_BUSY = """
import os, sys, time
for _ in range(25):
    if os.fork() == 0:
        begun = time.process_time()
        while time.process_time() - begun < 0.006: pass
        os.write(1, b".")
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


def test_time_below_a_tick_is_seen_in_each_of_many_processes() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", _BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert len(process.stdout.read(25)) == 25
            cpu = ServerCpu(process.pid)
            assert cpu.size() == (26, 26)
            # 6 ms in each, of which ticks of 10 ms would show nothing.
            assert 25 * 0.006 <= cpu.read().total_s < 1.0
        finally:
            process.stdin.close()


@pytest.mark.parametrize(
    ("spent", "split"),
    [
        (CpuTime(2.0, 0.25, 0.75, 0.0), (0.5, 1.5)),
        (CpuTime(2.0, 0.25, 0.75, 0.01), (0.5, 1.5)),
        (CpuTime(2.0, 0.25, 0.75, 1.0), None),
        (CpuTime(0.001, 0.0, 0.0, 0.0), None),
        (CpuTime(0.0, 0.0, 0.0, 0.0), None),
    ],
)
def test_the_split(spent: CpuTime, split: tuple[float, float] | None) -> None:
    assert spent.split() == split
    assert spent.less(spent) == CpuTime(0.0, 0.0, 0.0, 0.0)


def plan_of(**changes: Any) -> Any:
    return experiments.plan_of(EXPERIMENT, False, {**TINY, **changes})


@pytest.mark.compiler
async def test_all_of_it_on_every_model() -> None:
    plan, before = plan_of(), ours()
    said: list[str] = []
    record = await run(EXPERIMENT, plan, say=said.append)
    assert record.complete
    assert [one.evidence for one in record.findings] == []
    assert {one["model"] for one in record.rounds} == set(MODELS)
    assert [one["step"] for one in record.rounds] == [cell.step for cell in cells(plan)]
    assert len(said) == len(record.rounds) == 7 + 3
    for one in record.rounds:
        # A client process stops at its first failure: all of them made all of their connections.
        assert one["connections"] == one["loops"] * one["processes"] >= 399
        assert 1 < one["cpu_us"] < 100_000
        assert one["cpu_s"] == pytest.approx(one["cpu_us"] * one["connections"] / 1e6)
        if one["user_s"] is not None:
            assert one["user_s"] + one["system_s"] == pytest.approx(one["cpu_s"])
        if one["model"] == "fork":
            assert one["user_us"] is None
    assert len(record.environment["server"]) == 7
    # Two pools only, so none between "one for each client" and the largest.
    assert len(record.conclusions.claims) == 7
    assert ours() == before


async def test_stopped_half_way_it_keeps_what_it_has_and_leaves_nothing() -> None:
    before, there = ours(), asyncio.Event()
    work = asyncio.create_task(run(EXPERIMENT, plan_of(rounds=1_000, only=["asyncio"]), say=lambda _: there.set()))
    await asyncio.wait_for(there.wait(), DEADLINE_S)
    work.cancel()
    record = await work
    assert not record.complete
    assert len(record.rounds) >= 1
    assert ours() == before


async def test_a_model_that_cannot_be_built_is_left_out_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "build", compiler.build.__wrapped__)
    monkeypatch.setenv("CC", "nonesuch")
    record = await run(EXPERIMENT, plan_of(only=["fork", "thread", "asyncio"], processes=[1]), say=lambda _: None)
    assert {one["model"] for one in record.rounds} == {"asyncio"}
    assert [one.code for one in record.findings] == ["left_out", "left_out"]
    assert record.conclusions.claims == []


async def test_a_client_that_fails_costs_its_cell_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(self: LabModel) -> tuple[str, int]:
        os.kill(self.pid, signal.SIGKILL)
        return ("127.0.0.1", self.port)

    monkeypatch.setattr(LabModel, "address_port", property(ends))
    record = await run(EXPERIMENT, plan_of(rounds=2, only=["asyncio"], processes=[1]), say=lambda _: None)
    assert record.complete
    assert record.rounds == []
    assert [one.code for one in record.findings] == ["cell_failed", "untested"]


#: As the source ranks them.
ITS = {"iterative": 30.0, "thread-pool": 40.0, "thread-queue": 43.0, "thread": 60.0, "prefork": 80.0, "fork": 200.0, "asyncio": 50.0}
PLAN = EXPERIMENT.plan()


def made(cost: dict[str, float], rounds: int = 5, *, grows: float = 1.3) -> list[Round]:
    """Rounds in which a connection has this cost for all loads, except that larger pools cost more by ``grows``."""
    found: list[Round] = []
    for number in range(rounds):
        for cell in cells(PLAN):
            if cell.model in cost:
                factor = {2: 1 / grows, 100: grows}.get(cell.pool, 1.0) if "pool " in cell.step else 1.0
                us = cost[cell.model] * factor
                split = {} if cell.model == "fork" else {"user_us": us / 4, "system_us": us * 3 / 4}
                found.append(
                    {"step": cell.step, "round": number, "model": cell.model, "processes": cell.processes, "bytes": cell.size,
                     "loops": 100, "cpu_us": us, "per_s": 1e6 / us, **split}
                )  # fmt: skip
    return found


def concluded(rounds: list[Round]) -> Conclusions:
    return conclude(PLAN, Rounds(rounds))


def claim_of(rounds: list[Round], words: str) -> Claim:
    (one,) = [one for one in concluded(rounds).claims if words in one.claim]
    return one


def test_the_sources_own_order_holds() -> None:
    found = concluded(made(ITS))
    assert [one.verdict for one in found.claims] == ["holds"] * 8
    ranking = found.tables[0]
    assert [row.label for row in ranking.rows] == [
        "iterative", "thread pool (accept)", "thread pool (queue)", "asyncio (ours)", "thread per client", "prefork", "fork per client",
    ]  # fmt: skip
    assert [row.median("rank") for row in ranking.rows] == [1, 2, 3, None, 4, 5, 6]
    assert [row.median("theirs") for row in ranking.rows] == [1, 2, 3, None, 4, 5, 6]
    bars = found.charts[0]
    assert [len(line.ys) for line in bars.lines] == [6, 6, 1]
    assert bars.categories[int(bars.lines[2].xs[0])] == ranking.rows[-1].label
    assert found.charts[1].lines[0].ys == pytest.approx([80 / 1.3, 80.0, 80 * 1.3])
    assert len(found.tables[1].rows) == 21


def test_the_opposite_does_not_hold() -> None:
    opposite = dict(zip(ITS, [200.0, 80.0, 60.0, 42.0, 40.0, 30.0, 35.0], strict=True))
    assert [one.verdict for one in concluded(made(opposite, grows=0.7)).claims] == ["does not hold"] * 8


def test_one_round_needs_a_larger_difference() -> None:
    rounds = [made(ITS | {"thread-queue": us}, count) for us, count in ((56.0, 5), (56.0, 1), (64.0, 1))]
    said = [claim_of(one, "with a queue costs more").verdict for one in rounds]
    assert said == ["holds", "cannot say", "holds"]


def test_one_load_with_less_and_two_that_cannot_be_told_are_no_refutation() -> None:
    rounds = made(ITS | {"prefork": 60.0})
    for one in rounds:
        if one["model"] == "prefork":
            one["cpu_us"] *= 0.96 if one["processes"] == 1 else 0.9 if one["round"] % 2 else 1.1
    assert claim_of(rounds, "Preforked").verdict == "cannot say"


def test_under_some_loads_only_is_in_part() -> None:
    rounds = made(ITS)
    for one in rounds:
        if one["step"] == ModelLoad("fork", 100, 4_000, 10).step:
            one["cpu_us"] = 10.0
    assert claim_of(rounds, "the most").verdict == "holds in part"


def test_each_axis_turns_with_the_round_and_its_middle_is_the_middle_value() -> None:
    orders = [cells(PLAN, number) for number in range(14)]
    assert all(set(one) == set(orders[0]) for one in orders)
    assert {one[0].model for one in orders} == set(MODELS)
    assert {one[0].processes for one in orders} == {1, 10, 100}
    unsorted = msgspec.structs.replace(PLAN, processes=[100, 1, 10], bytes=[10_000, 4, 4_000], pools=[10, 100, 2])
    assert set(cells(unsorted)) == set(cells(PLAN))


def test_conclusions_of_any_part_of_the_rounds() -> None:
    whole = made(ITS, 2)
    parts = [whole[:count] for count in range(0, len(whole), 3)]
    parts += [[one for one in whole if one["model"] != left_out] for left_out in MODELS]
    parts += [[one for one in whole if one["model"] == alone] for alone in MODELS]
    for rounds in parts:
        found = concluded(rounds)
        assert "NaN" not in msgspec.json.encode(found).decode()
        for table in found.tables:
            for row in table.rows:
                assert all(math.isfinite(value) for values in row.values.values() for value in values)
