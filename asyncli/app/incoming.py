"""Handles the generator's messages during a soak."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from asyncli.app.progress import STOPPABLE, Progress
from asyncli.app.recorder import Recorder
from asyncli.engine import shard
from asyncli.engine.spread import Destination, show
from asyncli.engine.ticks import away_by_event, count_away_as_lost
from asyncli.findings import generator
from asyncli.findings.server import address_dead, address_dropped
from asyncli.model.records import Deaths, Finding, Sample, Tick

# After this many failed attempts without a success the ramp ends.
_MOST_FAILURES = 100
# Half seconds without a tick until the generator counts as silent. Ticks come once a second, up to
# 0.7 s late if a worker is slow. Counted in turns of our own loop, so that a loop that hung does
# not blame the generator.
SILENT_TURNS = 20


def generator_loss(held: int, awaiting: int, coming_back: int, second: int = 0) -> Tick:
    """A tick that counts the connections of lost generator processes as lost by the generator,
    besides those that were ``coming_back`` from an event.
    """
    loss = Tick(second=second, beats_failed=awaiting, coming_back_lost=coming_back)
    if held:
        loss.deaths["generator_lost"] = Deaths(count=held)
    return loss


def _finding_of_worker(
    message: shard.WorkerSilent | shard.WorkerBack | shard.WorkerLost,
) -> Finding:
    worker = message.worker
    pid = message.pid
    host = message.host
    if isinstance(message, shard.WorkerSilent):
        return generator.worker_silent(worker, pid, host, message.held, message.silent_s)
    if isinstance(message, shard.WorkerBack):
        return generator.worker_back(worker, pid, host, message.silent_s)
    return generator.worker_lost(worker, pid, host, message.held, message.how)


class Incoming:
    """``resume``: the command that resumes the run.

    ``on_host_finding`` is called after each finding about a host.
    """

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
        self.opened = 0
        self.failures = 0
        self._refused = 0
        self.silent = shard.SilentWorkers()
        self._progress = progress
        self._recorder = recorder
        self._destinations = destinations
        self._resume = resume
        self._on_host_finding = on_host_finding
        self._on_sample = on_sample
        self._dropped: set[int] = set()
        # By the number of an event: those whom it ended and who are not back.
        self._away: Counter[int] = Counter()
        self._silent_turns = 0

    async def listen(self, messages: AsyncIterator[shard.Up]) -> None:
        async for message in messages:
            self.handle(message)

    def handle(self, message: shard.Up) -> None:
        match message:
            case shard.Ticked():
                self._tick(message.tick)
            case shard.WorkerSilent() | shard.WorkerBack() | shard.WorkerLost():
                self.silent.heard(message)
                self._recorder.finding(_finding_of_worker(message))
            case shard.WorkerReplaced(worker=worker, pid=pid, host=host):
                reopens = self._progress.plan.reopen if self._progress.t0_s else None
                self._recorder.finding(generator.worker_replaced(worker, pid, host, reopens))
            case shard.ProcessUsage(values=values):
                self._on_sample(Sample(self._progress.now_s(), values))
            case shard.HostFinding(finding=finding):
                self._recorder.finding(finding)
                self._on_host_finding()
            case shard.Failed(why=why):
                self._generator_failed(why)

    def _generator_failed(self, why: str) -> None:
        held = self.last.held + self.silent.held
        awaiting = self.last.awaiting + self.silent.awaiting
        if held or any(self._away.values()):
            # No worker is left to report them.
            loss = generator_loss(held, awaiting, self.last.coming_back, self.last.second + 1)
            count_away_as_lost(loss, self._away)
            self._tick(loss)
        self.fail(generator.generator_failed(why, self.resume))

    def _tick(self, tick: Tick) -> None:
        self.last = tick
        self.silent.ticked()
        self._silent_turns = 0
        self.opened += tick.opened
        self.failures += tick.failed
        self._refused += tick.failures.get("refused", 0)
        self._away.update(away_by_event(tick))
        self._recorder.tick(self._progress.t0_s + tick.second - self._progress.zero_s, tick)
        for number in tick.dropped.keys() - self._dropped:
            self._dropped.add(number)
            self._recorder.finding(self._finding_of_dropped(self._destinations[number]))
        self._progress.ticked.set()

    def _finding_of_dropped(self, dropped: Destination) -> Finding:
        """An address was given up: the only one of its target, or one of several."""
        others = []
        siblings = 0
        for destination in self._destinations:
            if destination.target == dropped.target:
                siblings += 1
            else:
                others.append(show(destination))
        if siblings > 1:
            return address_dropped(show(dropped))
        return address_dead(show(dropped), others)

    @property
    def resume(self) -> str:
        """The command that resumes the run; "" from the drain on."""
        if self._progress.phase is None or self._progress.is_in(*STOPPABLE):
            return self._resume
        return ""

    def fail(self, finding: Finding) -> None:
        """End the run; the first call reports it."""
        if self._progress.failed:
            return
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
        """Fail the run if the generator is silent. Called every half second of a wait; before the
        first connect it has nothing to say.
        """
        if not self._progress.t0_s:
            return
        self._silent_turns += 1
        if self._silent_turns > SILENT_TURNS:
            self.fail(generator.generator_silent(SILENT_TURNS / 2, False, self.resume))

    @property
    def nothing_connected(self) -> bool:
        """Whether nothing connected, and so many attempts failed that nothing will."""
        if self.opened:
            return False
        return self._is_refused_everywhere or self.failures >= min(_MOST_FAILURES, self._asked)

    @property
    def _asked(self) -> int:
        return self._progress.plan.schedule.connections

    @property
    def _is_refused_everywhere(self) -> bool:
        """Two refusals per address: a refusal is an answer, a timeout may be a lost packet."""
        addresses = len(self._destinations)
        if not addresses or self._refused < 2 * addresses or self.last.connecting:
            return False
        # Wait until every address was tried, since one may have refused them all.
        ramp = self._progress.plan.schedule
        last_batch = (min(addresses, ramp.connections) - 1) // ramp.batch
        return self.last.second >= ramp.due_s(last_batch)
