"""Resuming an interrupted soak."""

from __future__ import annotations

import datetime
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from asyncli.app.incoming import lost_with_us
from asyncli.app.progress import Progress, wait_for
from asyncli.app.recorder import Recorder
from asyncli.collect.locate import ServerFacts
from asyncli.data_file import described
from asyncli.engine.shard import Shard
from asyncli.errors import HeldError, PlanError
from asyncli.findings.generator import resumed
from asyncli.findings.run import held_again, server_changed
from asyncli.plan import Plan
from asyncli.records import SERVER_CHANGED, Gap, Tick
from asyncli.store.resume import Interrupted
from asyncli.store.writer import RunWriter
from asyncli.template import Data

T = TypeVar("T")

# Leases of a killed session (an agent, hosts of a cluster) expire within 15 s; its run may be resumed before that.
_LEASES_EXPIRE_S = 25.0


class Resumption:
    """Resumes the run ``before`` in its hold, or from its baseline where it had not reached the hold."""

    def __init__(self, before: Interrupted) -> None:
        self.before = before
        self._gap: Gap | None = None
        self._resumed_s = 0.0

    @property
    def in_hold(self) -> bool:
        return self.before.hold is not None

    @property
    def hold_start_s(self) -> float:
        return 0.0 if self.before.hold is None else self.before.hold.start_s

    @property
    def left_s(self) -> float | None:
        """The rest of the hold (s); None: until stopped."""
        return self.before.left_s(time.time())

    def set_clock(self, progress: Progress) -> None:
        """Set the run's clock by the wall clock; it never goes back."""
        progress.zero_s -= max(time.time() - self.before.run.started_wall_s, self.before.last_s + 1.0)
        progress.reopening = self.in_hold

    def require_same(self, data: Data | None) -> None:
        """Raise :class:`PlanError` where the connections would be others than those of the run."""
        if data is not None and self.before.run.environment.get("data") != described(data):
            what = f"{self.before.run.plan.data} has other rows than those that the run began with"
            raise PlanError(f"--resume: {what}; put the file back, or begin another run")

    def plan_from_here(self, plan: Plan) -> Plan:
        """The plan that limits are judged by: with the rest of the hold."""
        if (left_s := self.left_s) is None:
            return plan
        if plan.hold_until is not None:
            # The baseline and ramp before it count too.
            left_s = max(0.0, left_s - plan.schedule.end_s)
        return msgspec.structs.replace(plan, hold_s=left_s, hold_until=None)

    def shard_from_here(self, shard: Shard) -> Shard:
        return msgspec.structs.replace(shard, again=True, ramp=shard.ramp.without_rests()) if self.in_hold else shard

    def continue_counters(self, values: dict[str, float]) -> None:
        """Continue the counters of our own processes."""
        for name in self.before.counted.keys() & values.keys():
            values[name] += self.before.counted[name]

    # -- the run file, and the gap in it

    def open(self, path: Path, server: ServerFacts, progress: Progress, recorder: Recorder) -> None:
        """Go on in the run's file: what it held is the generator's loss, and its gap begins."""
        before = self.before
        again = [*before.run.environment.get("resumed", ()), datetime.datetime.now(datetime.UTC).isoformat()]
        writer = RunWriter.resume(path, before.run.environment, recorded=before.recorded, restart=not self.in_hold)
        writer.environment({"resumed": again})
        self._gap = before.run.gaps[-1] if before.run.gaps and before.run.gaps[-1].end_s is None else Gap(before.last_s)
        writer.gap(self._gap)
        so_far = Tick()
        so_far.merge_counts(before.so_far)
        if before.held:
            lost = lost_with_us(before.held, before.awaiting)
            writer.tick(before.last_s + 0.001, lost)
            so_far.merge_counts(lost)
        recorder.show(lambda observer: observer.resumed(so_far))
        self._resumed_s = progress.now_s()
        recorder.open(writer)
        phase = before.run.phases[-1].name if before.run.phases else None
        after_s = round(self._resumed_s - before.last_s)
        recorder.finding(resumed(before.last_s, after_s, phase, before.held, self.in_hold, before.ended_by))
        self._meet_server(server, recorder, writer)

    def _meet_server(self, server: ServerFacts, recorder: Recorder, writer: RunWriter) -> None:
        """Record the server; where it is another one, its numbers are not joined to those before."""
        known = self.before.run.environment.get("server")
        if not isinstance(known, dict) or (server.exe is None and server.version is None):
            return
        differs = server.differences(known)
        writer.environment({"server": server.record(None if differs else known.get("label"))})
        if differs:
            writer.environment({SERVER_CHANGED: self.before.last_s})
            recorder.finding(server_changed(differs, self.in_hold))

    def close_gap(self, progress: Progress, recorder: Recorder) -> None:
        if self._gap is not None and recorder.writer is not None:
            recorder.writer.gap(Gap(self._gap.start_s, progress.now_s()))
            progress.reopening = False

    # -- while it opens its connections again

    def holds_again(self, progress: Progress, recorder: Recorder, held: int) -> None:
        """All connections are open again: the hold continues."""
        if self._gap is not None:
            off_s, opening_s = self._resumed_s - self._gap.start_s, progress.now_s() - self._resumed_s
            recorder.finding(held_again(held, off_s, opening_s))
        self.close_gap(progress, recorder)
        self.tell_end(progress, recorder)
        if progress.plan.hold_until is None:
            progress.left_out_s = progress.now_s() - self.hold_start_s - self.before.held_s

    def tell_end(self, progress: Progress, recorder: Recorder, *, early: bool = False) -> None:
        """Tell the observer the hold's end. ``early``: only an end by the wall clock, which reopening does not move."""
        if early and progress.plan.hold_until is None:
            return
        left_s = self.left_s
        hold_s = None if left_s is None else progress.now_s() + left_s - self.hold_start_s
        plan = msgspec.structs.replace(progress.plan, hold_s=hold_s)
        recorder.show(lambda observer: observer.planned(plan))


async def when_leases_expire(ask: Callable[[], Awaitable[T]], waits: Callable[[str], None], progress: Progress) -> T:
    """The result of ``ask``, once the leases of a killed session have expired."""
    until_s, told = time.monotonic() + _LEASES_EXPIRE_S, False
    while True:
        try:
            return await ask()
        except HeldError as error:
            if time.monotonic() >= until_s or progress.stopped.is_set():
                raise
            if not told:
                what = "what a session that was killed may still hold"
                waits(f"waits, for {_LEASES_EXPIRE_S:.0f} s at most, for {what}: {error}")
            told = True
            await wait_for(progress.stopped, 1.0)
