"""Handles the generator's messages during a soak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from asyncli.app.progress import STOPPABLE, Progress
from asyncli.app.recorder import Recorder
from asyncli.engine import shard
from asyncli.engine.spread import Destination, show
from asyncli.findings import generator
from asyncli.findings.server import address_dead, address_dropped
from asyncli.model.records import Deaths, Finding, Sample, Tick

# After this many failed attempts without a success the ramp ends.
_MOST_FAILURES = 100
# Half seconds without a tick until the generator counts as silent. Ticks come once a second, up to 0.7 s late if a worker is
# slow. Counted in turns of our own loop, so that a loop that hung does not blame the generator.
SILENT_TURNS = 20


def generator_loss(held: int, awaiting: int, second: int = 0) -> Tick:
    """A tick that counts the connections of lost generator processes as lost by the generator."""
    return Tick(second=second, beats_failed=awaiting, deaths={"generator_lost": Deaths(count=held)})


class Incoming:
    """``resume``: the command that resumes the run. ``on_host_finding`` is called after each finding about a host."""

    def __init__(
        self,
        progress: Progress,
        recorder: Recorder,
        destinations: tuple[Destination, ...],
        *,
        resume: str,
        on_host_finding: Callable[[], None],
        on_sample: Callable[[Sample], None],
    ) -> None:
        self.last = Tick()
        self.opened = self.failures = self._refused = 0
        self.silent = shard.SilentWorkers()
        self._progress, self._recorder = progress, recorder
        self._destinations = destinations
        self._resume, self._on_host_finding, self._on_sample = resume, on_host_finding, on_sample
        self._dropped: set[int] = set()
        self._silent_turns = 0

    async def listen(self, messages: AsyncIterator[shard.Up]) -> None:
        async for message in messages:
            self.handle(message)

    def handle(self, message: shard.Up) -> None:
        record = self._recorder.finding
        match message:
            case shard.Ticked():
                self._tick(message.tick)
            case shard.WorkerSilent():
                self.silent.heard(message)
                record(generator.worker_silent(message.worker, message.pid, message.host, message.held, message.silent_s))
            case shard.WorkerBack():
                self.silent.heard(message)
                record(generator.worker_back(message.worker, message.pid, message.host, message.silent_s))
            case shard.WorkerLost():
                self.silent.heard(message)
                record(generator.worker_lost(message.worker, message.pid, message.host, message.held, message.how))
            case shard.WorkerReplaced():
                reopens = self._progress.plan.reopen if self._progress.t0_s else None
                record(generator.worker_replaced(message.worker, message.pid, message.host, reopens))
            case shard.ProcessUsage(values=values):
                self._on_sample(Sample(self._progress.now_s(), values))
            case shard.HostFinding(finding=finding):
                record(finding)
                self._on_host_finding()
            case shard.Failed():
                held, awaiting = self.last.held + self.silent.held, self.last.awaiting + self.silent.awaiting
                if held:
                    # No worker is left to report them.
                    self._tick(generator_loss(held, awaiting, self.last.second + 1))
                self.fail(generator.generator_failed(message.why, self.resume))

    def _tick(self, tick: Tick) -> None:
        self.last = tick
        self.silent.ticked()
        self._silent_turns = 0
        self.opened += tick.opened
        self.failures += sum(tick.failures.values())
        self._refused += tick.failures.get("refused", 0)
        self._recorder.tick(self._progress.t0_s + tick.second - self._progress.zero_s, tick)
        for number in tick.dropped.keys() - self._dropped:
            self._dropped.add(number)
            dropped = self._destinations[number]
            others = [show(one) for one in self._destinations if one.target != dropped.target]
            alone = sum(one.target == dropped.target for one in self._destinations) == 1
            self._recorder.finding(address_dead(show(dropped), others) if alone else address_dropped(show(dropped)))
        self._progress.ticked.set()

    @property
    def resume(self) -> str:
        """The command that resumes the run; "" from the drain on."""
        return self._resume if self._progress.phase is None or self._progress.is_in(*STOPPABLE) else ""

    def fail(self, finding: Finding) -> None:
        """End the run; the first call reports it."""
        if not self._progress.failed:
            self._progress.failed = True
            self._recorder.finding(finding)
            self._progress.ticked.set()

    def task_ended(self, task: asyncio.Task[None]) -> None:
        """Fail the run if a task beside its phases failed, as it would lack its numbers."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            why = f"{type(error).__name__}: {error}"
            self.fail(generator.asyncli_failed(task.get_name(), why, self.resume))

    def check_silence(self) -> None:
        """Fail the run if the generator is silent. Called every half second of a wait."""
        self._silent_turns += 1
        if self._progress.t0_s and self._silent_turns > SILENT_TURNS:
            self.fail(generator.generator_silent(SILENT_TURNS / 2, False, self.resume))

    @property
    def nothing_connected(self) -> bool:
        """Whether nothing connected, and so many attempts failed that nothing will."""
        if self.opened:
            return False
        # Two refusals per address: a refusal is an answer, a timeout may be a lost packet. Wait until every address was tried,
        # since one may have refused them all.
        ramp, addresses = self._progress.plan.schedule, len(self._destinations)
        each_s = ramp.due_s((min(addresses, ramp.connections) - 1) // ramp.batch)
        refused = self._refused >= 2 * addresses > 0 and self.last.second >= each_s and not self.last.connecting
        return refused or self.failures >= min(_MOST_FAILURES, ramp.connections)
