"""The collector of a server on another host: an agent's samples of that host and ours of this one,
on the run's clock.

The sampler polls the agent as a peer. Its metrics keep their names (status.*, server.*, kernel.*,
host.*, tcp.*); those of this host begin with ``client.`` and are not read twice if agent and soak
share a host.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Any

import msgspec

from asyncli.agent.client import BORDER_S, AgentClient, AgentError, AgentHeldError
from asyncli.agent.wire import KEEPS_S, NO_COLLECTIONS, Batch, Hello, LeaseGrant
from asyncli.collect.collector import own_probes
from asyncli.collect.forced_collection import Collect
from asyncli.collect.kernel import MemoryReader, read_counters
from asyncli.collect.locate import ServerFacts
from asyncli.collect.probe_budget import ProbeReading
from asyncli.collect.sampler import Probe, Sampler, SamplerOptions
from asyncli.environment import boot_id, host_name, network
from asyncli.findings import INSTANTS, rewritten
from asyncli.findings.agents import (
    agent,
    agent_back,
    agent_gap,
    agent_in_the_clear,
    agent_lost,
    agent_restarted,
)
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample
from asyncli.model.units import format_duration
from asyncli.preflight.configured import Configured
from asyncli.preflight.host_limits import Limits

# A shorter silence (s) loses nothing, as the agent buffers its samples.
_SILENT_S = 5.0
# How long to wait for a silent agent at a phase border (s).
_SILENT_BORDER_S = 2.0
# A longer distance of samples (s) is a gap; one may be missed.
_GAP_S = 2.5
_LONGEST_TEXT = 2000
_LONGEST_CODE = 60
# No clock error puts a past sample so far into the future (s).
_FUTURE_S = 10.0
# A sample may be so much older (s) than the last one, as the clock estimate improves.
_BEHIND_S = 0.1
_PER_MILLION = 1e6
_PER_NAMESPACE = (
    metrics.TCP,
    metrics.KERNEL_TCP_INUSE,
    metrics.KERNEL_TCP_ORPHAN,
    metrics.KERNEL_TCP_TW,
    metrics.KERNEL_SOCKETS,
)


class AgentCollector(Sampler):
    """Has the interface of :class:`~asyncli.collect.collector.Collector`."""

    #: Longer than the agent takes at a phase border, so that its loss shows.
    border_wait_s = BORDER_S + 1.0

    def __init__(self, plan: Plan, options: SamplerOptions) -> None:
        super().__init__(plan, options)
        self._client = AgentClient(plan)
        self._polls["agent"] = self._follow
        self._hello: Hello | None = None
        self._leased = False
        # The number of the last sample, and its instant on the run's clock.
        self._after = 0
        self._last_s = -math.inf
        # Its values.
        self._newest: dict[str, float] = {}
        # Whether the agent has restarted since.
        self._restarted = False
        # Since when it has been silent, and whether that was reported.
        self._lost_s: float | None = None
        self._loss_reported = False
        # Whether samples since then are missing.
        self._gap_reported = False
        self._seen_findings: set[tuple[str, str]] = set()
        # Its counters as last recorded, and before its restart.
        self._counted: dict[str, float] = {}
        self._counted_before: dict[str, float] = {}

    @property
    def server(self) -> ServerFacts:
        if self._hello is None:
            return ServerFacts()
        return self._hello.server

    @property
    def local(self) -> bool:
        """Whether the server is on this host, with both ends of each connection."""
        return self.boot is not None and self.boot == boot_id()

    @property
    def boot(self) -> str | None:
        """The boot id of the agent's machine; None if unknown."""
        if self._hello is None:
            return None
        return self._hello.boot_id

    @property
    def _one_network(self) -> bool:
        return self.local and self._hello is not None and self._hello.network == network()

    @property
    def agent(self) -> dict[str, Any] | None:
        """The agent, for the run's environment."""
        hello = self._hello
        if hello is None:
            return None
        return {
            **hello.environment,
            "url": self._client.url,
            "asyncli": hello.asyncli,
            "boot_id": hello.boot_id,
            "same_host": self.local,
            "same_network": self._one_network,
            **self._clock_facts(),
        }

    def _clock_facts(self) -> dict[str, float | None]:
        """How far the agent's clock is from ours, and how fast it moves away; None: unknown."""
        facts: dict[str, float | None] = {
            "clock_offset_s": None,
            "clock_error_s": None,
            "clock_drift_ppm": None,
            "clock_drift_error_ppm": None,
        }
        offset = self._client.clock.now(time.monotonic())
        if offset is not None:
            facts["clock_offset_s"] = offset.offset_s
            facts["clock_error_s"] = offset.error_s
        if self._client.clock.drift is not None:
            drift, error = self._client.clock.drift
            facts["clock_drift_ppm"] = drift * _PER_MILLION
            facts["clock_drift_error_ppm"] = error * _PER_MILLION
        return facts

    @property
    def collect_by_agent(self) -> Collect:
        """Asks the agent for a collection of the server's heap."""
        return self._client.collection

    async def sample_now(self, *, is_spent: bool = True) -> Sample:
        """What this host and the agent's have now."""
        sample = await super().sample_now(is_spent=is_spent)
        return Sample(sample.t_s, {**self._newest, **sample.values})

    def read_far(self) -> tuple[Limits, Configured, str | None]:
        """The limits of the server's host, the server's configuration, the agent's status page."""
        assert self._hello is not None
        return self._hello.limits, self._hello.configured, self._hello.status_url

    async def open(self, *, hold: bool = True) -> None:
        """Connect to the agent and measure its clock; ``hold``: take its lease. Raises
        :class:`AgentError`.
        """
        hello = await self._client.hello()
        self._hello = hello
        if self._plan.collect == "auto" and not hello.collects:
            raise AgentError(f"--collect auto: agent {self._client.url}: {NO_COLLECTIONS}")
        if hold:
            self._after = (await self._take_lease()).newest
        self._probes = self._client_probes() | own_probes(self._generator_pids)
        self.begin()
        offset = self._client.clock.now(time.monotonic())
        assert offset is not None
        server = hello.server.version or hello.server.name or "the server"
        where = hello.host
        if self.local:
            where = "this host, whose memory is not read a second time"
        self._report_once(agent(self._client.url, server, where, offset.error_s))
        if self._client.in_the_clear:
            self._report_once(agent_in_the_clear(self._client.url))
        for finding in hello.lasting:
            self._report_once(self._on_run_clock(finding))

    async def settle_server(self) -> bool:
        """False: the agent has read the server anew for its lease."""
        return False

    def several_servers(self) -> Finding | None:
        """None: the agent reports it."""
        return None

    async def close(self) -> None:
        await super().close()
        if self._leased:
            with contextlib.suppress(AgentError):
                await self._client.release_lease()
        await self._client.close()

    def end(self) -> None:
        """End of the run: samples not delivered by now are a gap."""
        if self._lost_s is not None:
            self._gap(self._lost_s, self._clock(), "the agent did not answer until the run's end")

    # What comes from the agent.

    async def _follow(self, everything: bool) -> ProbeReading:
        """Record new samples; at a phase border the agent first takes one of everything. A failure
        is a gap.
        """
        within_s = None
        if everything:
            within_s = BORDER_S if self._lost_s is None else _SILENT_BORDER_S
        try:
            batch = await self._first_batch(within_s)
            self._record(batch)
            while batch.rows and batch.rows[-1].n < batch.newest:
                batch = await self._client.samples(self._after)
                self._record(batch)
            self._on_recovery()
        except AgentError as error:
            self._on_failure(error)
        return ProbeReading()

    async def _first_batch(self, within_s: float | None) -> Batch:
        """The next samples, with the lease taken anew if it is lost. Raises :class:`AgentError`."""
        if not self._leased:
            await self._reconnect()
        try:
            return await self._client.samples(self._after, within_s)
        except AgentHeldError:
            # The agent restarted, or another session took the lease.
            self._leased = False
        await self._reconnect()
        return await self._client.samples(self._after, within_s)

    async def _take_lease(self) -> LeaseGrant:
        granted = await self._client.take_lease(f"asyncli on {host_name()} (pid {os.getpid()})")
        self._leased = True
        return granted

    async def _reconnect(self) -> None:
        hello = await self._client.hello()
        await self._take_lease()
        if self._hello is None or hello.instance != self._hello.instance:
            self._on_restart(hello)
        for finding in hello.lasting:
            self._report_once(self._on_run_clock(finding))

    def _on_restart(self, hello: Hello) -> None:
        """The agent restarted: its sample numbers and counters start at 0."""
        self._hello = hello
        self._after = 0
        self._restarted = True
        begun_s = self._run_time_s(hello.started_s)
        self._counted_before = dict(self._counted)
        if math.isfinite(self._last_s) and metrics.STATUS_POLLS in self._counted:
            # Polls that the server may have seen and no sample counts.
            for name in (metrics.STATUS_POLLS, metrics.STATUS_UNANSWERED):
                self._counted_before[name] += max(0.0, math.ceil(begun_s - self._last_s) + 1.0)
        self._report_once(agent_restarted(self._client.url, begun_s))

    def _record(self, batch: Batch) -> None:
        # The agent drops samples only before the first of a batch.
        overrun = batch.first > self._after + 1
        for row in batch.rows:
            if row.n <= self._after:
                continue
            self._after = row.n
            t_s = self._sample_time_s(row.t_s)
            if t_s is None:
                continue
            longest_s = _GAP_S if self._restarted else _SILENT_S
            is_gap = overrun or t_s - self._last_s > longest_s
            if is_gap and math.isfinite(self._last_s):
                self._gap(self._last_s, t_s, self._why_missing(overrun=overrun))
            overrun = False
            self._last_s = t_s
            self._restarted = False
            self._newest = self._relevant(self._continue_counters(row.values))
            self._on_sample(Sample(t_s, self._newest))
        for finding_row in batch.findings:
            self._report_once(self._on_run_clock(finding_row.finding))

    def _sample_time_s(self, agent_s: float) -> float | None:
        """The instant of the next sample on the run's clock; None if it has none there."""
        at_s = self._run_time_s(agent_s)
        if at_s < self._last_s - _BEHIND_S:
            # Read while this machine was suspended.
            return None
        # The clock estimate improves; samples stay in order.
        t_s = max(at_s, math.nextafter(self._last_s, math.inf))
        if not 0 <= t_s <= self._clock() + _FUTURE_S:
            # Before the run, or impossible: the agent may send any number, even NaN.
            return None
        return t_s

    def _why_missing(self, *, overrun: bool) -> str:
        if overrun:
            buffered = format_duration(KEEPS_S)
            return f"the agent did not answer for longer than the {buffered} that it buffers"
        if self._restarted:
            return "the agent had ended"
        return "the agent or its host hung"

    def _on_recovery(self) -> None:
        """The agent has delivered all samples. Wait for a recent one before the silence counts as
        over.
        """
        if self._lost_s is None or self._clock() - self._last_s > _GAP_S:
            return
        if self._loss_reported and not self._gap_reported:
            self._on_finding(agent_back(self._clock(), round(self._clock() - self._lost_s)))
        self._lost_s = None
        self._loss_reported = False
        self._gap_reported = False

    def _on_failure(self, error: AgentError) -> None:
        """No answer: reported after some seconds. A refusal: reported at once."""
        now_s = self._clock()
        if self._lost_s is None:
            self._lost_s = self._last_s if math.isfinite(self._last_s) else now_s
        if self._loss_reported:
            return
        if error.lost and now_s - self._lost_s < _SILENT_S:
            return
        self._loss_reported = True
        self._on_finding(agent_lost(self._lost_s, str(error), KEEPS_S))

    def _gap(self, from_s: float, to_s: float, why: str) -> None:
        self._gap_reported = True
        self._on_finding(agent_gap(from_s, to_s, why))

    def _report_once(self, finding: Finding) -> None:
        """Report a finding once: after a reconnect the agent repeats its findings."""
        key = (finding.code, finding.evidence)
        if key in self._seen_findings:
            return
        self._seen_findings.add(key)
        self._on_finding(finding)

    def _on_run_clock(self, finding: Finding) -> Finding:
        """The agent's finding with its instants on the run's clock, and the server's host named."""

        def on_run_clock(name: str, value: object) -> object:
            if name in INSTANTS and isinstance(value, int | float):
                return self._run_time_s(float(value))
            return value

        moved = rewritten(finding, on_run_clock)
        where = "" if self.local else " (on the server's host)"
        return msgspec.structs.replace(
            moved,
            code=moved.code[:_LONGEST_CODE],
            evidence=f"{moved.evidence[:_LONGEST_TEXT]}{where}",
            remedy=moved.remedy[:_LONGEST_TEXT],
            fields={} if moved is finding else moved.fields,
        )

    def _run_time_s(self, agent_s: float) -> float:
        """An instant of the agent's clock on the run's."""
        now_s = time.monotonic()
        offset = self._client.clock.now(now_s)
        offset_s = 0.0 if offset is None else offset.offset_s
        return self._clock() - now_s + agent_s - offset_s

    def _continue_counters(self, values: dict[str, float]) -> dict[str, float]:
        """The known metrics, with the agent's counters continued across a restart."""
        known = {}
        for name, value in values.items():
            if name in metrics.METRICS or name.startswith(metrics.FAMILIES):
                known[name] = value
        for name in known.keys() & metrics.SINCE_AGENT_START:
            known[name] += self._counted_before.get(name, 0.0)
            self._counted[name] = known[name]
        return known

    # What is read here.

    def _client_probes(self) -> dict[str, Probe]:
        """Probes of this host, without those that the agent reads."""
        probes: dict[str, Probe] = {}
        if not self._one_network:
            probes["client_kernel"] = lambda: _as_client(read_counters(), namespace_only=self.local)
        if not self.local:
            memory = MemoryReader()
            probes["client_memory"] = lambda: _as_client(memory.read())
        return probes


def _as_client(reading: ProbeReading, *, namespace_only: bool = False) -> ProbeReading:
    """The reading as ``client.*`` metrics; ``namespace_only``: only those of the network namespace.
    Its findings are dropped: no figure of the report needs them.
    """
    values = {}
    for name, value in reading.values.items():
        if not namespace_only or name.startswith(_PER_NAMESPACE):
            values[f"{metrics.CLIENT}{name}"] = value
    return ProbeReading(values)
