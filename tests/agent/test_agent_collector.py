"""An agent's samples on the run's clock, also when clocks stop: on a virtual clock."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from status_pages import EVENT, HAPROXY, NGINX, PREFORK

from asyncli.agent import collector as module
from asyncli.agent.buffer import SampleBuffer
from asyncli.agent.client import LostError
from asyncli.agent.collector import AgentCollector
from asyncli.agent.wire import Batch, Instants, SampleRow
from asyncli.app.progress import Progress
from asyncli.app.recorder import NoObserver, Recorder
from asyncli.collect.clocks import Exchange
from asyncli.collect.sampler import SamplerOptions
from asyncli.collect.status_pages import parse_page
from asyncli.findings.run import sample_refused
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample


class Told:
    """A session whose agent samples once a second and is polled by :meth:`ask`; ``ahead_s`` is its clock minus ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.ahead_s, self.taken = 1000.0, 5000.0, 0
        self.kept: list[SampleRow] = []
        self.samples: list[Sample] = []
        self.findings: list[Finding] = []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now_s)
        self.collector = AgentCollector(
            Plan(urls=("http://10.0.0.8/",), agent="http://10.0.0.8:9165"),
            SamplerOptions(clock=lambda: self.now_s - 900.0, on_sample=self.samples.append, on_finding=self.findings.append),
        )  # fmt: skip

    def read(self) -> None:
        """A second passes on both clocks; the agent samples in its middle."""
        self.taken += 1
        self.kept.append(SampleRow(self.taken, self.now_s + self.ahead_s + 0.5, {"server.cpu_s": float(self.taken)}))
        self.now_s += 1.0

    def ask(self) -> None:
        heard_s = self.now_s + self.ahead_s - 0.001
        self.collector._client.clock.add(Exchange(self.now_s - 0.002, heard_s, heard_s, self.now_s))
        self.collector._record(Batch("one", Instants(heard_s, heard_s), self.kept[0].n, self.taken, self.kept, []))
        self.collector._on_recovery()
        self.kept = []

    def cut(self, seconds: int, keeps: int) -> None:
        """The network is cut for so long; the agent keeps the last ``keeps`` samples."""
        for _ in range(seconds):
            self.read()
            self.collector._on_failure(LostError("agent http://10.0.0.8:9165: no answer"))
        self.kept = self.kept[-keeps:]
        self.ask()


@pytest.mark.parametrize(
    ("seconds", "codes"), [(599, ["agent_lost", "agent_back"]), (600, ["agent_lost", "agent_back"]), (601, ["agent_lost", "agent_gap"])]
)
def test_one_sample_dropped_by_the_agent_is_a_gap(monkeypatch: pytest.MonkeyPatch, seconds: int, codes: list[str]) -> None:
    told = Told(monkeypatch)
    for _ in range(5):
        told.read()
        told.ask()
    told.cut(seconds, keeps=600)
    assert [one.code for one in told.findings] == codes
    assert len(told.samples) == 5 + min(seconds, 600)


def test_samples_taken_during_our_suspension_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    for _ in range(20):
        told.read()
        told.ask()
    for _ in range(300):
        told.read()
    # Their clock went on, ours did not.
    told.now_s, told.ahead_s = told.now_s - 300.0, told.ahead_s + 300.5
    for _ in range(5):
        told.read()
        told.ask()
    instants = [sample.t_s for sample in told.samples]
    assert len(instants) == 25
    assert min(after - before for before, after in pairwise(instants)) > 0.4
    assert told.samples[-1].values == {"server.cpu_s": 325.0}
    assert told.findings == []


@pytest.mark.parametrize("page", [NGINX, PREFORK, EVENT, HAPROXY], ids=["nginx", "prefork", "event", "haproxy"])
def test_every_number_of_a_status_page_passes_an_agent(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    told, buffer, values = Told(monkeypatch), SampleBuffer(), parse_page(page).values
    buffer.sample(Sample(told.now_s + told.ahead_s, values))
    (told.kept, _), told.taken = buffer.after(0), 1
    told.ask()
    assert told.samples[-1].values == values


def test_an_impossible_number_is_dropped_and_reported_once(tmp_path: Path) -> None:
    seen: list[Sample] = []

    class Looks(NoObserver):
        def sample(self, sample: Sample) -> None:
            seen.append(sample)

    recorder = Recorder([Looks()], Progress(Plan(urls=("http://10.0.0.8/",)), tmp_path / "run.db"))
    for t_s in (1.0, 2.0):
        odd = {"server.rss_bytes": 1e17, "tcp.ListenDrops": -5.0, "status.accepts": 1e20, "kernel.tcp_alloc": 3e9, "status.requests": math.nan}
        # Limits may be none, and the memory of a program may be less than it was.
        possible = {"status.active": 1.0, "server.descriptors_limit": 2.0**63, "beside.bytes.node": -147_456.0}
        recorder.sample(Sample(t_s, odd | possible))
    assert seen == [Sample(t_s, possible) for t_s in (1.0, 2.0)]
    [refused] = recorder._early
    assert (refused.code, refused.fields["metric"]) == ("sample_refused", "server.rss_bytes")
    assert refused.fields["also"] == ["tcp.ListenDrops", "status.accepts", "kernel.tcp_alloc", "status.requests"]
    assert "agent" in refused.remedy


def test_an_impossible_number_of_the_servers_page_is_the_pages() -> None:
    assert "page" in sample_refused(metrics.RUNTIME_COLLECTED_AT_S, 1e300).remedy


def test_an_impossible_agent_clock_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"heard_s": 1e308, "said_s": 1.0}, Instants)
