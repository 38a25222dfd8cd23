"""A part of asyncli that fails ends the run with a finding; it never goes on for a night without numbers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S, serving

from asyncli.app import bench, incoming
from asyncli.app.bench import Bench
from asyncli.app.recorder import NoObserver
from asyncli.app.soak import Soak
from asyncli.collect.collector import Collector
from asyncli.engine import generator
from asyncli.model.benchplan import build_bench_plan
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import Tick
from asyncli.report.summary import summarise
from asyncli.store.reader import read_run

VALUES = {"connections": 50, "keepalive": 2, "hold": "1h", "baseline": 0, "residue": 0}


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as server:
        yield server.url


@pytest.mark.parametrize("broken", ["collector", "reader"])
async def test_a_task_that_fails_ends_the_run_as_invalid(broken: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Collector) -> None:
        raise RuntimeError("broken on purpose")

    def hear(self: Any, message: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(*((Collector, "run", run) if broken == "collector" else (incoming.Incoming, "handle", hear)))
    soak = Soak(build_plan([Layer("--{key}", {"urls": [url], **VALUES})]), tmp_path / "run.db")
    async with asyncio.timeout(DEADLINE_S):
        summary = summarise(read_run(await soak.run()))
    assert summary.verdict in ("invalid", "untested")
    assert not summary.run.complete
    found = {finding.code: finding.evidence for finding in summary.findings}
    assert "broken on purpose" in found["asyncli_failed"]


async def test_a_host_that_stands_still_does_not_pass(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "SILENT_TURNS", 6)
    monkeypatch.setattr(generator, "_CLOSE_S", 0.5)
    all_held = asyncio.Event()

    class Looks(NoObserver):
        def tick(self, t_s: float, tick: Tick) -> None:
            if tick.held == 50:
                all_held.set()

    soak = Soak(build_plan([Layer("--{key}", {"urls": [url], **VALUES})]), tmp_path / "run.db", observer=Looks())
    running = asyncio.create_task(soak.run())
    async with asyncio.timeout(DEADLINE_S):
        await all_held.wait()
        pids = list(soak._generator.pids)
        os.kill(pids[0], signal.SIGSTOP)
        summary = summarise(read_run(await running))
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0.05)
    assert summary.verdict == "invalid"
    assert "generator_silent" in {finding.code for finding in summary.findings}


async def test_a_bench_does_not_wait_for_a_host_that_stands_still(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SILENT_TURNS", 6)
    monkeypatch.setattr(generator, "_CLOSE_S", 0.5)
    said = asyncio.Event()
    one = Bench(
        build_bench_plan([Layer("--{key}", {"urls": [url], "connections": 2, "requests": "1000M"})]), on_tick=lambda *_: said.set()
    )
    running = asyncio.create_task(one.run())
    async with asyncio.timeout(DEADLINE_S):
        await said.wait()
        os.kill(one._generator.pids[0], signal.SIGSTOP)
        done = await running
    assert not done.complete
    assert [finding.code for finding in done.findings if finding.severity == "error"] == ["generator_silent"]
