"""The sampling loop of sessions and agents: runs probes once a second without blocking the event
loop.

A thread reads /proc, and the loop polls peers. A probe that fails leaves a gap and a finding; it
never ends a run.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from asyncli.collect.probe_budget import Outage, ProbeReading, Schedule
from asyncli.collect.processes import ProcessesGoneError
from asyncli.findings.probes import server_ended
from asyncli.model import metrics
from asyncli.model.errors import UntrustedPeerError
from asyncli.model.metrics import PROBE
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample

# A sample waits so long for answers; later ones join the next sample, so that a slow status page
# delays nothing.
_ROUND_WAIT_S = 0.5
# A thread stuck in the kernel for so long is an outage.
_STALL_S = 2.0

#: A blocking read.
Probe = Callable[[], ProbeReading]
#: Polls a peer, in bounded time; ``everything``: at a phase border, all current values.
Poll = Callable[[bool], Awaitable[ProbeReading]]


class SamplerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The run's ``clock`` (s), the generator's pids (host process and workers), those of asyncli's
    other processes, and the callbacks for samples and findings, which run in the loop's thread.
    """

    on_finding: Callable[[Finding], None]
    on_sample: Callable[[Sample], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    generator_pids: Callable[[], Sequence[int]] = list
    helper_pids: Callable[[], Sequence[int]] = list
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class _Outcome(NamedTuple):
    """A probe's reading or error, and its CPU time (wall time for a poll)."""

    reading: ProbeReading | None
    error: Exception | None
    took_s: float

    @property
    def again_s(self) -> float:
        """The CPU time that the next round will take."""
        if self.reading is None:
            return self.took_s
        return max(0.0, self.took_s - self.reading.once_s)


class _Pending(NamedTuple):
    since_s: float
    outcome: asyncio.Future[_Outcome]


class Sampler:
    """Takes a sample at each whole second of the clock."""

    #: How long to wait for answers at a phase border; longer than the status page's timeout of 2 s.
    border_wait_s = 2.5

    def __init__(self, plan: Plan, options: SamplerOptions) -> None:
        self._plan = plan
        self._clock, self._sleep, self._generator_pids = (
            options.clock,
            options.sleep,
            options.generator_pids,
        )
        self._helper_pids = options.helper_pids
        self._on_sample, self._on_finding = options.on_sample, options.on_finding
        #: Cheap ones first: one that stalls delays those after it.
        self._probes: dict[str, Probe] = {}
        self._polls: dict[str, Poll] = {}
        self._schedules: dict[str, Schedule] = {}
        self._outages: dict[str, Outage] = {}
        self._begun: tuple[float, float] | None = None
        self._reported: set[str] = set()
        self._pending: dict[str, _Pending] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncli-probes")
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Sample until cancelled. A second missed while the loop was busy is a gap."""
        try:
            while True:
                second = math.floor(self._clock()) + 1
                while (wait_s := second - self._clock()) > 0:
                    await self._sleep(wait_s)
                async with self._lock:
                    await self._round(float(second))
        finally:
            self._cancel_polls()

    async def sample_now(self, *, is_spent: bool = True) -> Sample:
        """Read everything now, ignoring budgets, for a phase border; also passed to ``on_sample``.
        ``is_spent`` False: for an event of the plan, and the budgets of later readings are as if
        it had not been.

        Takes at most twice ``border_wait_s``; what did not answer is absent.
        """
        async with self._lock:
            return await self._round(self._clock(), everything=True, is_spent=is_spent)

    def begin(self) -> None:
        """Start the run's budgets, which may be exceeded in its first seconds."""
        self._begun = (self._clock(), self._plan.lasts_s)
        for schedule in self._schedules.values():
            schedule.begin(*self._begun)

    async def close(self) -> None:
        cancelled = self._cancel_polls()
        if cancelled:
            await asyncio.wait(cancelled)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _cancel_polls(self) -> list[asyncio.Future[_Outcome]]:
        cancelled = [
            self._pending.pop(name).outcome for name in self._polls if name in self._pending
        ]
        for outcome in cancelled:
            outcome.cancel()
        return cancelled

    async def _round(self, now_s: float, everything: bool = False, is_spent: bool = True) -> Sample:
        wait_s = self.border_wait_s if everything else _ROUND_WAIT_S
        if everything:
            # Pending readings are from before the border: wait for them and drop them.
            await self._wait(wait_s)
            self._gather(now_s, {})
        sample = Sample(t_s=self._clock(), values={})
        self._ask(now_s, everything)
        await self._wait(wait_s)
        self._gather(now_s, sample.values, is_spent=is_spent)
        if sample.values:
            self._on_sample(sample)
        return sample

    def _ask(self, now_s: float, everything: bool) -> None:
        for name, poll in self._polls.items():
            if name not in self._pending:
                self._pending[name] = _Pending(
                    now_s, asyncio.ensure_future(_polled(poll, everything, time.perf_counter()))
                )
        for name, probe in self._probes.items():
            if name not in self._pending and (everything or self._schedule(name).due(now_s)):
                future = asyncio.get_running_loop().run_in_executor(self._thread, _probed, probe)
                self._pending[name] = _Pending(now_s, future)

    async def _wait(self, timeout_s: float) -> None:
        outcomes = [reading.outcome for reading in self._pending.values()]
        if outcomes:
            await asyncio.wait(outcomes, timeout=timeout_s)

    def _gather(self, now_s: float, values: dict[str, float], *, is_spent: bool = True) -> None:
        for name, (since_s, outcome) in list(self._pending.items()):
            if outcome.done():
                del self._pending[name]
                if is_spent and name in self._probes:
                    self._report(self._schedule(name).spent(since_s, outcome.result().again_s))
                self._take(name, since_s, now_s, outcome.result(), values)
        # The thread runs probes in turn: the first pending one is stuck.
        stuck = next((name for name in self._pending if name in self._probes), None)
        if stuck is None:
            return
        since_s = self._pending[stuck].since_s
        if now_s - since_s >= _STALL_S:
            why = f"no answer in {now_s - since_s:.0f} s"
            self._report(self._outage(stuck).failed(since_s, why))

    def _take(
        self, name: str, since_s: float, now_s: float, outcome: _Outcome, values: dict[str, float]
    ) -> None:
        if outcome.reading is None:
            why = _error_text(outcome.error)
            lost = self._outage(name).failed(
                since_s, why, untrusted=isinstance(outcome.error, UntrustedPeerError)
            )
            # The end of the server explains later losses.
            ended = lost is not None and isinstance(outcome.error, ProcessesGoneError)
            self._report(server_ended(since_s, why, self._plan.server_pid) if ended else lost)
            return
        self._report(self._outage(name).answered(now_s))
        if outcome.reading.values:
            values.update(self._relevant(outcome.reading.values))
            values[f"{PROBE}{name}"] = outcome.took_s
        for finding in outcome.reading.findings:
            if finding.code not in self._reported:
                self._reported.add(finding.code)
                self._on_finding(finding)

    def _relevant(self, read: dict[str, float]) -> dict[str, float]:
        """The values that concern the plan's connections: TCP's only if they have ports."""
        if self._plan.has_ports:
            return read
        return {name: value for name, value in read.items() if not name.startswith(metrics.OF_TCP)}

    def _report(self, finding: Finding | None) -> None:
        if finding is not None:
            self._on_finding(finding)

    def _schedule(self, name: str) -> Schedule:
        if name not in self._schedules:
            schedule = Schedule(name)
            self._schedules[name] = schedule
            if self._begun is not None:
                schedule.begin(*self._begun)
        return self._schedules[name]

    def _outage(self, name: str) -> Outage:
        return self._outages.setdefault(name, Outage(name))


def _probed(probe: Probe) -> _Outcome:
    # CPU time: waiting for a core is not the probe's cost.
    begun = time.thread_time()
    try:
        reading = probe()
    except Exception as error:  # any failure of a probe is a gap, never the end of a run
        return _Outcome(None, error, time.thread_time() - begun)
    return _Outcome(reading, None, time.thread_time() - begun)


async def _polled(poll: Poll, everything: bool, begun: float) -> _Outcome:
    # Since it was asked for: a busy loop may begin later, and the answer is of that time.
    try:
        reading = await poll(everything)
    except Exception as error:
        return _Outcome(None, error, time.perf_counter() - begun)
    return _Outcome(reading, None, time.perf_counter() - begun)


def _error_text(error: Exception | None) -> str:
    """An error in one line; asyncli's own errors without their type."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (
        text
        if text and type(error).__module__.startswith("asyncli.")
        else f"{type(error).__name__}: {text}"
    )
