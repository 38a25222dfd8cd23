"""The parts of a capacity search without a server: this host's own limit, and the guard of its memory."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from asyncli.analysis.capacity import Bracket, Search
from asyncli.app import search_range
from asyncli.app.capacity import CapacitySearch
from asyncli.app.search_range import host_limit
from asyncli.app.step_guard import StepGuard
from asyncli.engine.spread import Spread
from asyncli.lab.builtin import LabBuiltin
from asyncli.model.errors import PreflightError
from asyncli.model.exit_status import exit_status
from asyncli.model.metrics import HOST_AVAILABLE_BYTES
from asyncli.model.plan import Plan
from asyncli.model.records import NOTHING_LISTENS, Phase, Sample, Tick
from asyncli.model.values import MOST_CONNECTIONS
from asyncli.preflight.host_limits import Limits

PLAN = Plan(urls=("http://127.0.0.1:1/",), workers=1)


def on_a_host(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """The host's limits are one process's descriptors and memory; the server is on another host."""

    async def probe_host(plan: Plan) -> tuple[Limits, Spread]:
        return Limits(**limits), Spread((), (), 1, False, 10**9)

    monkeypatch.setattr(search_range, "probe_host", probe_host)
    monkeypatch.setattr(Spread, "capacity", 10**9)


@pytest.mark.parametrize(
    ("limits", "most", "code"),
    [
        ({"nofile_hard": 20_000}, 19_000, "nofile"),
        ({"nofile_hard": 200}, 130, "nofile"),
        ({"nofile_hard": 65}, 1, "nofile"),
        ({"nofile_hard": 10**9}, MOST_CONNECTIONS, None),
        # Limited by predicted memory: 80 % of it, divided by 4,260 B per connection.
        ({"nofile_hard": 10**9, "memory_available": 10**9}, 170_000, "memory"),
    ],
)
async def test_the_most_that_this_host_can_carry(
    limits: dict[str, int], most: int, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_host(monkeypatch, **limits)
    count, why = await host_limit(PLAN)
    assert (count, why and why.code) == (most, code)


async def test_a_host_that_can_carry_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_host(monkeypatch, nofile_hard=20)
    with pytest.raises(PreflightError, match="descriptors"):
        await host_limit(PLAN)


async def test_where_nothing_listens_no_step_is_begun(tmp_path: Path) -> None:
    # Bound but not listening, so that no other program takes the port.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        plan = msgspec.structs.replace(PLAN, urls=(f"http://127.0.0.1:{port}/",))
        search = CapacitySearch(plan, Search(100, 400, 0.5), tmp_path)
        await search.run()
    found = search.result
    assert (found.verdict, exit_status(found.verdict), found.steps, list(tmp_path.iterdir())) == ("untested", 3, [], [])
    assert [(one.code, "--wait-for-server" in one.remedy) for one in found.findings] == [(NOTHING_LISTENS, False)]


SHORT = {"keepalive_s": 2.0, "timeout_s": 0.5, "hold_s": 0.5, "baseline_s": 0.2, "residue_s": 0.0, "batch": 10}


async def test_a_server_that_never_accepts_is_untested_after_one_step(tmp_path: Path) -> None:
    # The kernel completes the handshakes, but the server never accepts.
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        urls = (f"http://127.0.0.1:{listener.getsockname()[1]}/",)
        search = CapacitySearch(msgspec.structs.replace(PLAN, urls=urls, **SHORT), Search(20, 400, 0.5), tmp_path)
        await search.run()
    assert (search.result.verdict, len(search.steps), search.steps[0].answered) == ("untested", 1, 0)


async def test_a_server_that_ends_each_when_it_is_old_has_no_capacity(tmp_path: Path) -> None:
    async def until_old(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.close()

    async with await asyncio.start_server(until_old, "127.0.0.1", 0) as server:
        urls = (f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}",)
        plan = {"urls": urls, **SHORT, "hold_s": 0.8, "batch": 1, "abort": True, "fail_if": ("lost > 0",)}
        search = CapacitySearch(msgspec.structs.replace(PLAN, **plan), Search(1, 8, 0.5), tmp_path)
        await search.run()
    found = search.result
    assert (found.verdict, exit_status(found.verdict), found.bracket) == ("failed", 99, Bracket(0, 1))
    assert [(one.asked, one.outcome, one.lost > 0) for one in found.steps] == [(1, "failed", True)]


async def test_what_this_hosts_preflight_ends_is_no_answer_and_named(tmp_path: Path) -> None:
    async with LabBuiltin(100, workers=1) as server:
        plan = msgspec.structs.replace(PLAN, urls=(server.url,), server_pid=server.pid, **SHORT)
        search = CapacitySearch(plan, Search(10, 10, 0.5, "too few descriptors", "raise them"), tmp_path)
        await search.run()
    found = search.result
    assert (found.verdict, found.bracket.held) == ("invalid", 10)
    assert [(one.side, one.code, one.remedy) for one in found.gave_way] == [("host", "preflight", "raise them")]


def test_a_step_ends_at_an_error_answer_and_before_this_host_has_no_memory() -> None:
    said: list[str] = []

    def a_guard(total: int | None) -> StepGuard:
        plan = msgspec.structs.replace(PLAN, fail_if=("heartbeats.by_status.404 > 1%",))
        guard = StepGuard(total, HOST_AVAILABLE_BYTES, plan)
        guard.stop = said.append
        return guard

    guard = a_guard(10_000_000_000)
    guard.tick(0.2, Tick(by_status={200: 5, 404: 1}))
    guard.sample(Sample(0.5, {"host.available_bytes": 0.9e9}))
    guard.sample(Sample(1.0, {"host.available_bytes": 8e9}))
    guard.phase(Phase("ramp", 1.0))
    guard.sample(Sample(2.0, {"host.available_bytes": 1.1e9}))
    guard.sample(Sample(2.5, {}))
    assert said == []
    guard.sample(Sample(3.0, {"host.available_bytes": 0.9e9}))
    assert len(said) == 1
    unknown = a_guard(None)
    unknown.phase(Phase("ramp", 1.0))
    unknown.sample(Sample(3.0, {"host.available_bytes": 1.0}))
    assert len(said) == 1
    unknown.tick(3.0, Tick(by_status={200: 5, 503: 1}))
    assert "503" in said[1]
