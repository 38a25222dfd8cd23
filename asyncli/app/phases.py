"""The phases of a soak, from baseline to residue. Start at :meth:`Phases.run`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from asyncli.app.forced_collections import ForcedCollections
from asyncli.app.hold_events import EarlierPart, HoldEvents
from asyncli.app.incoming import Incoming
from asyncli.app.progress import Progress, wait_for
from asyncli.app.recorder import Recorder
from asyncli.app.resume import Resumption
from asyncli.engine.shard import Shard
from asyncli.findings.generator import drain_unfinished
from asyncli.findings.run import gave_up, hold_until, nobody_home
from asyncli.model.plan import plan_document
from asyncli.model.records import Phase, PhaseName
from asyncli.model.units import format_instant, instant_of
from asyncli.store.resume import HOLD_ENDS

if TYPE_CHECKING:
    from asyncli.app.check import Sampler
    from asyncli.cluster.generator import ClusterGenerator
    from asyncli.engine.generator import Generator

# Connect timeouts and retries may delay a ramp's end; after this long the hold begins anyway.
_RAMP_SLACK_S = 10.0
# Closing 100,000 connections takes a few seconds; a drain that takes longer per connection hangs.
_DRAIN_S_PER_CONNECTION = 1 / 2000
_DRAIN_SLACK_S = 10.0


class Phases:
    """The phases of one soak. ``started_wall_s``: when the run started (s since 1970).
    ``before_connects``: called at the end of the baseline.
    """

    def __init__(
        self,
        progress: Progress,
        recorder: Recorder,
        incoming: Incoming,
        *,
        shard: Shard,
        generator: Generator | ClusterGenerator,
        sampler: Sampler,
        resumption: Resumption | None,
        started_wall_s: float,
        before_connects: Callable[[], Awaitable[None]],
        collections: ForcedCollections,
        events: HoldEvents,
    ) -> None:
        self._progress = progress
        self._recorder = recorder
        self._incoming = incoming
        self._shard = shard
        self._generator = generator
        self._sampler = sampler
        self._resumption = resumption
        self._started_wall_s = started_wall_s
        self._before_connects = before_connects
        self._collections = collections
        self._events = events

    async def run(self) -> None:
        """Run the phases from the baseline, already entered, to the residue.

        A run resumed in its hold continues there.
        """
        progress = self._progress
        await self._sample()
        if progress.reopening and self._resumption is not None:
            await self._reopen(self._resumption)
            if progress.reopening:
                # Nothing was measured: the run can be resumed again.
                return
        else:
            await self._wait(progress.plan.baseline_s)
            await self._collections.before_connects()
            await self._before_connects()
            await self._sample()
            await self._ramp()
            self._begin_hold()
        async with self._events.while_held(self._earlier_part()):
            await self._hold()
        await self._sample()
        if progress.is_in("hold"):
            await self._collections.at_hold_end()
        if progress.failed:
            # A run without a drain can be resumed.
            return
        self.enter("drain")
        self._generator.drain()
        await self._wait_for_drain()
        self.enter("residue")
        await self._sample()
        if not self._incoming.nothing_connected:
            await self._wait(progress.plan.residue_s, even_if_stopped=True)
            await self._collections.after_drain()
        await self._sample()
        self._leave(progress.now_s())

    async def _sample(self) -> None:
        """Sample at a phase's edge, which the collector's own seconds may miss."""
        await self._sampler.sample_now()

    async def _ramp(self) -> None:
        progress = self._progress
        progress.t0_s = time.monotonic() + self._generator.lead_s
        self.enter("ramp", at_s=progress.t0_s - progress.zero_s)
        self._generator.begin(progress.t0_s)
        if progress.stopped.is_set():
            # Stopped in the baseline: open nothing.
            self._generator.drain()
        collecting = asyncio.create_task(self._collections.at_plateaus(progress.t0_s))
        try:
            await self._wait_for_ramp()
        finally:
            collecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await collecting

    def _begin_hold(self) -> None:
        if self._incoming.nothing_connected:
            where = self._progress.where()
            self._recorder.finding(gave_up(*where, self._incoming.failures))
        elif not self._progress.failed:
            self._set_hold()
            self.enter("hold")

    async def _hold(self) -> None:
        if self._incoming.nothing_connected:
            return
        if self._resumption is None:
            await self._wait(self._progress.plan.hold_s)
        else:
            await self._wait(self._resumption.left_s)

    def _earlier_part(self) -> EarlierPart | None:
        """What a run that is resumed in its hold had held and done before."""
        if self._resumption is None or not self._resumption.in_hold:
            return None
        before = self._resumption.before
        return EarlierPart(
            before.held_s,
            self._resumption.hold_start_s,
            frozenset(before.away),
            frozenset(before.recorded_events),
        )

    async def _reopen(self, resumption: Resumption) -> None:
        """Reopen the connections of a resumed run, which ends the gap."""
        progress = self._progress
        resumption.show_end(progress, self._recorder, early=True)
        self._recorder.phase(Phase("hold", resumption.hold_start_s))
        progress.t0_s = time.monotonic() + self._generator.lead_s
        self._generator.begin(progress.t0_s)
        await self._wait_for_ramp()
        if self._incoming.nothing_connected:
            self._incoming.fail(nobody_home(self._incoming.failures, self._incoming.resume))
        if not progress.failed and not progress.stopped.is_set():
            resumption.continue_hold(progress, self._recorder, self._incoming.last.held)

    def _set_hold(self) -> None:
        """Set the length of a hold that ends by the wall clock. A later change of that clock does
        not alter it.
        """
        progress = self._progress
        until = progress.plan.hold_until
        if until is None:
            return
        now_s = time.time()
        # The first such time of day after the run's start, even if the ramp took longer.
        hold_s = instant_of(until, min(self._started_wall_s, now_s)) - now_s
        plan = msgspec.structs.replace(progress.plan, hold_s=max(0.0, hold_s))
        progress.plan = plan
        if self._recorder.writer is not None:
            self._recorder.writer.plan(plan_document(plan))
            self._recorder.writer.environment({HOLD_ENDS: now_s + max(0.0, hold_s)})
        self._recorder.show(lambda observer: observer.planned(plan))
        self._recorder.finding(hold_until(until, hold_s, format_instant(now_s + hold_s)))

    # -- entering and leaving

    def enter(self, name: PhaseName, at_s: float | None = None) -> None:
        start_s = self._progress.now_s() if at_s is None else at_s
        if self._progress.phase is not None:
            # A ramp starts slightly in the future: if stopped before, it has no length.
            start_s = max(start_s, self._progress.phase.start_s)
        self._leave(start_s)
        self._recorder.phase(Phase(name, start_s))

    def _leave(self, at_s: float) -> None:
        phase = self._progress.phase
        if phase is not None:
            self._recorder.phase(msgspec.structs.replace(phase, end_s=at_s))

    # -- waiting

    async def _wait(self, seconds: float | None, even_if_stopped: bool = False) -> None:
        """Wait ``seconds`` (None: for ever), or until the run is stopped or fails."""
        progress = self._progress
        deadline_s = math.inf if seconds is None else time.monotonic() + seconds
        while not progress.failed and (even_if_stopped or not progress.stopped.is_set()):
            left_s = min(0.5, deadline_s - time.monotonic())
            if left_s <= 0:
                return
            if even_if_stopped:
                await asyncio.sleep(left_s)
            else:
                await wait_for(progress.stopped, left_s)
            self._incoming.check_silence()

    async def _next_tick(self) -> None:
        self._progress.ticked.clear()
        await wait_for(self._progress.ticked, 0.5)
        self._incoming.check_silence()

    async def _wait_for_ramp(self) -> None:
        progress = self._progress
        ramp_s = self._shard.ramp.end_s
        last_rest_s = progress.t0_s + ramp_s
        latest_s = progress.t0_s + ramp_s * 2 + self._shard.attempt_s + _RAMP_SLACK_S
        while not progress.stopped.is_set() and not progress.failed:
            if self._incoming.nothing_connected:
                return
            now_s = time.monotonic()
            has_ramped = self._incoming.last.ramped >= self._shard.workers
            if now_s >= latest_s or (has_ramped and now_s >= last_rest_s):
                return
            await self._next_tick()

    async def _wait_for_drain(self) -> None:
        patience_s = self._drain_patience_s()
        latest_s = time.monotonic() + patience_s
        while not self._progress.failed and not self._is_drained and time.monotonic() < latest_s:
            await self._next_tick()
        if not self._is_drained:
            incoming = self._incoming
            silent = [{"worker": worker.worker, "pid": worker.pid} for worker in incoming.silent]
            incoming.fail(drain_unfinished(patience_s, silent, incoming.resume))

    @property
    def _is_drained(self) -> bool:
        return self._incoming.last.drained >= self._shard.workers

    def _drain_patience_s(self) -> float:
        plan = self._progress.plan
        patience_s = max(plan.timeout_s, plan.connect_timeout_s, self._generator.drain_s)
        if plan.upgrades:
            # A protocol with a goodbye awaits its answer, after that to the last heartbeat.
            patience_s += plan.timeout_s
        return patience_s + plan.connections * _DRAIN_S_PER_CONNECTION + _DRAIN_SLACK_S
