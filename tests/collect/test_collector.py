from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from programs import serving

from asyncli.collect import collector as collector_module
from asyncli.collect import sampler as module
from asyncli.collect.collector import Collector
from asyncli.collect.locate import Found
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.procfs import ancestors
from asyncli.collect.sampler import SamplerOptions
from asyncli.model.errors import HostError
from asyncli.model.metrics import METRICS
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample

PAGE = "Active connections: 1 \nserver accepts handled requests\n 1 1 {} \nReading: 0 Writing: 1 Waiting: 0 \n"
NOWHERE = "http://127.0.0.1:9/"


class Clock:
    """The run's clock in a test: it moves when the collector sleeps, and stops the run after ``seconds``."""

    def __init__(self, seconds: int, now_s: float = 0.25) -> None:
        self.now_s = now_s
        self.end_s = now_s + seconds

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s > self.end_s:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


class Bench:
    """A collector with its samples and findings."""

    def __init__(self, plan: Plan, clock: Clock, **more: Any) -> None:
        self.samples: list[Sample] = []
        self.findings: list[Finding] = []
        self.probes: dict[str, Any] | None = more.pop("probes", None)
        local, more = more.pop("local", False), {"generator_pids": lambda: (os.getpid(),), "sleep": clock.sleep} | more
        self.collector = Collector(plan, SamplerOptions(clock=clock, on_sample=self.samples.append, on_finding=self.findings.append, **more), local=local)

    async def open(self) -> None:
        """Open it, with the test's probes if there are any."""
        await self.collector.open()
        if self.probes is not None:
            self.collector._probes = self.probes
            self.findings.clear()

    async def run(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            await self.collector.run()

    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(plan: Plan, clock: Clock, **more: Any) -> Bench:
        made.append(Bench(plan, clock, **more))
        return made[-1]

    yield make
    for one in made:
        await one.collector.close()


class Status:
    """A status page that counts requests and can fail or hang."""

    def __init__(self) -> None:
        self.requests, self.broken, self.url = 0, False, ""
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, number: int) -> bytes:
        self.requests = number
        self.gate.wait(10)
        text = "<html>busy</html>" if self.broken else PAGE.format(number)
        return f"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


@pytest.fixture
def status() -> Iterator[Status]:
    status = Status()
    with serving(answer=status) as server:
        status.url = server.url
        yield status
        status.gate.set()


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


async def test_one_sample_a_second_merges_the_page_and_proc(bench: Callable[..., Bench], status: Status, sleeper: int) -> None:
    one = bench(Plan(urls=(NOWHERE,), status_url=status.url, server_pid=sleeper), Clock(3))
    await one.open()
    await one.run()
    assert [sample.t_s for sample in one.samples] == [1, 2, 3]
    families = tuple(name for name in METRICS if name.endswith("."))
    for sample in one.samples:
        assert [name for name in sample.values if name not in METRICS and not name.startswith(families)] == []
    first, last = one.samples[0].values, one.samples[-1].values
    # A late sample lacks the values of its last probes.
    known = {name: value for sample in one.samples for name, value in sample.values.items()}
    assert known["server.processes"] == 1
    assert all(known[name] > 0 for name in ("server.pss_bytes", "generator.uss_bytes", "session.uss_bytes", "host.used_bytes"))
    assert first["status.active"] == 1
    assert (first["status.polls"], last["status.polls"]) == (2, 4)
    assert last["status.requests"] == last["status.polls"] == status.requests
    assert last["status.connects"] == 1
    facts = one.collector.server
    assert (facts.pid, facts.version, facts.found_by) == (sleeper, "nginx/1.22.1", "--server-pid")
    assert os.path.basename(facts.exe or "") == facts.name
    assert one.findings == []
    # A border reads the page again, and so does the next one.
    for polls in (5, 6):
        assert (await one.collector.sample_now()).values["status.requests"] == polls


async def test_no_process_above_asyncli_is_taken_for_the_server(bench: Callable[..., Bench]) -> None:
    for stat in ancestors(os.getpid()):
        with pytest.raises(HostError, match=rf"--server-pid: .*\(pid {stat.pid}\)"):
            await bench(Plan(urls=(NOWHERE,), server_pid=stat.pid), Clock(1)).open()


async def test_a_silent_page_is_lost_from_the_first_unanswered_poll(
    bench: Callable[..., Bench], status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROUND_WAIT_S", 0.1)
    one = bench(Plan(urls=(NOWHERE,), status_url=status.url), Clock(12), probes={"kernel": lambda: ProbeReading({"tcp.x": 1})})
    await one.open()

    def seen(sample: Sample) -> None:
        if sample.t_s == 2:
            status.gate.clear()
        elif sample.t_s == 6:
            status.broken = True
            status.gate.set()

    one.collector._on_sample = seen
    await one.run()
    lost = next(finding for finding in one.findings if finding.code == "status_lost")
    assert lost.fields["from_s"] == 3


async def test_a_failing_probe_leaves_a_gap_only(bench: Callable[..., Bench]) -> None:
    clock = Clock(6)

    def flaky() -> ProbeReading:
        if 3 <= clock() < 5:
            raise KeyError("Pss")
        return ProbeReading({"server.pss_bytes": 1})

    probes = {"server_memory": flaky, "kernel": lambda: ProbeReading({"tcp.x": 1})}
    one = bench(Plan(urls=(NOWHERE,)), clock, probes=probes)
    await one.open()
    await one.run()
    assert [("server.pss_bytes" in sample.values) for sample in one.samples] == [True, True, False, False, True, True]
    assert all("tcp.x" in sample.values for sample in one.samples)
    assert one.codes() == ["server_memory_lost", "server_memory_back"]
    lost, back = (finding.fields for finding in one.findings)
    assert (lost["from_s"], lost["why"], back["for_s"]) == (3, "KeyError: 'Pss'", 3)


async def test_a_stuck_probe_never_blocks_the_loop(bench: Callable[..., Bench], status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUND_WAIT_S", 0.1)
    release, clock = threading.Event(), Clock(6)

    def stuck() -> ProbeReading:
        release.wait(10)
        return ProbeReading({"server.pss_bytes": 1})

    one = bench(Plan(urls=(NOWHERE,), status_url=status.url), clock, probes={"server_memory": stuck})
    await one.open()

    def seen(sample: Sample) -> None:
        one.samples.append(sample)
        if sample.t_s == 4:
            release.set()

    one.collector._on_sample = seen
    try:
        await one.run()
    finally:
        release.set()
    assert [("status.active" in sample.values) for sample in one.samples] == [True] * 6
    assert "server.pss_bytes" not in one.samples[3].values
    assert any("server.pss_bytes" in sample.values for sample in one.samples[4:])
    assert one.codes() == ["server_memory_lost", "server_memory_back"]
    assert one.findings[0].fields["from_s"] == 1


async def test_an_expensive_probe_runs_seldom_but_at_every_border(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter(range(1000))
    # The thread's CPU clock advances 9 ms per reading: a round costs that much, so it may run every three seconds.
    monkeypatch.setattr(module.time, "thread_time", lambda: next(costs) * 0.009)
    clock = Clock(7)
    # A plan of length 0 has no budget to be ahead of.
    plan = Plan(urls=(NOWHERE,), connections=1, batch=1, baseline_s=0.0, hold_s=0.0, residue_s=0.0)
    one = bench(plan, clock, probes={"server_memory": lambda: ProbeReading({"server.pss_bytes": 1})})
    await one.open()
    await one.run()
    assert [sample.t_s for sample in one.samples] == [1, 4, 7]
    assert one.samples[0].values["probe.server_memory"] == pytest.approx(0.009)
    assert one.codes() == ["server_memory_slowed"]
    assert one.findings[0].fields["period_s"] == 3
    border = await one.collector.sample_now()
    assert border.values["server.pss_bytes"] == 1
    assert one.samples[-1] is border


async def test_readings_for_an_event_leave_the_budget_as_it_is(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same probe, read three times for an event after its first second: its own next reading is in time."""
    costs = iter(range(1000))
    monkeypatch.setattr(module.time, "thread_time", lambda: next(costs) * 0.009)
    clock = Clock(7)
    plan = Plan(urls=(NOWHERE,), connections=1, batch=1, baseline_s=0.0, hold_s=0.0, residue_s=0.0)
    one = bench(plan, clock, probes={"server_memory": lambda: ProbeReading({"server.pss_bytes": 1})})
    await one.open()
    for _ in range(3):
        assert "server.pss_bytes" in (await one.collector.sample_now(is_spent=False)).values
    one.samples.clear()
    await one.run()
    assert [sample.t_s for sample in one.samples] == [1, 4, 7]


async def test_what_a_probe_does_once_does_not_delay_its_next_reading(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take 9 ms, of which the first one spends 8 ms on finding a server that was replaced: only later rounds are too expensive."""
    costs = iter(range(1000))
    monkeypatch.setattr(module.time, "thread_time", lambda: next(costs) * 0.009)
    once_s = iter([0.008, 0.0, 0.0, 0.0])
    plan = Plan(urls=(NOWHERE,), connections=1, batch=1, baseline_s=0.0, hold_s=0.0, residue_s=0.0)
    probe = {"server": lambda: ProbeReading({"server.processes": 1}, once_s=next(once_s))}
    one = bench(plan, Clock(7), probes=probe)
    await one.open()
    await one.run()
    assert [sample.t_s for sample in one.samples if "server.processes" in sample.values] == [1, 2, 5]
    assert one.samples[0].values["probe.server"] == pytest.approx(0.009)


async def test_a_replaced_server_is_searched_for_only_where_something_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Plan] = []

    def find_server(plan: Plan, **_more: Any) -> Found:
        searches.append(plan)
        return Found((os.getpid(),))

    monkeypatch.setattr(collector_module, "find_server", find_server)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        plan = Plan(urls=(f"http://127.0.0.1:{port}/",), connections=1)
        options = SamplerOptions(clock=Clock(1), sleep=asyncio.sleep, generator_pids=tuple, on_sample=print, on_finding=print)
        collector = Collector(plan, options, local=True)
        assert collector._relocate() == (os.getpid(),)
    assert collector._relocate() == ()
    assert len(searches) == 1
