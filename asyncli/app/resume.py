"""Resuming an interrupted soak."""

from __future__ import annotations

import datetime
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from asyncli.app.incoming import generator_loss
from asyncli.app.progress import Progress, wait_for
from asyncli.app.recorder import Recorder
from asyncli.collect.locate import ServerFacts
from asyncli.engine.ticks import count_away_as_lost
from asyncli.environment import clock_at
from asyncli.findings.generator import resumed
from asyncli.findings.run import held_again, server_changed
from asyncli.model.data_file import described
from asyncli.model.errors import HeldError, PlanError
from asyncli.model.plan import Plan, plan_document
from asyncli.model.planned_events import planned_event
from asyncli.model.records import SERVER_CHANGED, Gap, Tick
from asyncli.model.template import Data
from asyncli.store.private_file import write_private
from asyncli.store.resume import Interrupted
from asyncli.store.writer import RunWriter

T = TypeVar("T")

# Leases of a killed session (an agent, hosts of a cluster) expire within 15 s; its run may be
# resumed before that.
_LEASES_EXPIRE_S = 25.0


class Resumption:
    """Resumes the run ``before`` in its hold, or from its baseline if it had not reached
    the hold.
    """

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
        since_start_s = time.time() - self.before.run.started_wall_s
        progress.zero_s -= max(since_start_s, self.before.last_s + 1.0)
        progress.has_clock = True
        progress.reopening = self.in_hold

    def require_same(self, data: Data | None) -> None:
        """Raise :class:`PlanError` if the connections would differ from those of the run."""
        if data is None or self.before.run.environment.get("data") == described(data):
            return
        raise PlanError(
            f"--resume: {self.before.run.plan.data} has changed since the run started; "
            "restore the file, or start another run"
        )

    def remaining_plan(self, plan: Plan) -> Plan:
        """``plan`` with the rest of the hold, for the preflight."""
        left_s = self.left_s
        if left_s is None:
            return plan
        if plan.hold_until is not None:
            # Another baseline and ramp come before it.
            left_s = max(0.0, left_s - plan.schedule.end_s)
        events = self._events_left(plan)
        return msgspec.structs.replace(plan, hold_s=left_s, hold_until=None, events=events)

    def _events_left(self, plan: Plan) -> tuple[str, ...]:
        """The events at their times in the rest of the hold. A mark stands for each that is not
        done any more, so that the others keep their numbers.
        """
        held_s = self.before.held_s
        if not held_s or plan.hold_s is None:
            return plan.events
        begun = self.before.recorded_events
        left = []
        for number, text in enumerate(plan.events, start=1):
            due_s = planned_event(text).after_s(plan.hold_s) - held_s
            _, _, words = text.strip().partition(" ")
            if number in begun or due_s < 0:
                left.append(f"0s mark {words}")
            else:
                left.append(f"{due_s:.3f}s {words}")
        return tuple(left)

    def continue_counters(self, values: dict[str, float]) -> None:
        """Add the earlier counts of our own processes."""
        for name in self.before.counted.keys() & values.keys():
            values[name] += self.before.counted[name]

    # -- the run file, and the gap in it

    def open(self, path: Path, server: ServerFacts, progress: Progress, recorder: Recorder) -> None:
        """Continue the run file: its held connections are lost by the generator, and a gap
        begins.
        """
        before = self.before
        now = datetime.datetime.now(datetime.UTC).isoformat()
        resumed_at = [*before.run.environment.get("resumed", ()), now]
        writer = RunWriter.resume(
            path, before.run.environment, recorded=before.recorded, restart=not self.in_hold
        )
        # Of this session: an instant on the clock of the killed one may be on another boot's.
        writer.environment({"resumed": resumed_at, "clock": clock_at(progress.zero_s)})
        # An earlier asyncli recorded the secrets too.
        document = plan_document(progress.plan)
        writer.plan(document)
        write_private(path, before.run.id, document)
        self._gap = self._open_gap()
        writer.gap(self._gap)
        counts = Tick()
        counts.merge_counts(before.so_far)
        if before.held or any(before.away.values()):
            lost = generator_loss(before.held, before.awaiting, before.coming_back)
            count_away_as_lost(lost, before.away)
            writer.tick(before.last_s + 0.001, lost)
            counts.merge_counts(lost)
        self._resumed_s = progress.now_s()
        recorder.show(lambda observer: observer.resumed(self._resumed_s, counts))
        recorder.open(writer)
        phase = before.run.phases[-1].name if before.run.phases else None
        after_s = round(self._resumed_s - before.last_s)
        recorder.finding(
            resumed(before.last_s, after_s, phase, before.held, self.in_hold, before.ended_by)
        )
        self._record_server(server, recorder, writer)

    def _open_gap(self) -> Gap:
        """The gap since the last record, or that of an earlier resumption that measured nothing."""
        gaps = self.before.run.gaps
        if gaps and gaps[-1].end_s is None:
            return gaps[-1]
        return Gap(self.before.last_s)

    def _record_server(self, server: ServerFacts, recorder: Recorder, writer: RunWriter) -> None:
        """Record the server. If it is another one, its numbers are kept apart from the earlier."""
        known = self.before.run.environment.get("server")
        if not isinstance(known, dict) or (server.exe is None and server.version is None):
            return
        differences = server.differences(known)
        if not differences:
            writer.environment({"server": server.record(known.get("label"))})
            return
        writer.environment({"server": server.record(None)})
        writer.environment({SERVER_CHANGED: self.before.last_s})
        recorder.finding(server_changed(differences, self.in_hold))

    def close_gap(self, progress: Progress, recorder: Recorder) -> None:
        if self._gap is None or recorder.writer is None:
            return
        recorder.writer.gap(Gap(self._gap.start_s, progress.now_s()))
        progress.reopening = False

    # -- while the connections are reopened

    def continue_hold(self, progress: Progress, recorder: Recorder, held: int) -> None:
        """Continue the hold: all connections are open again."""
        if self._gap is not None:
            off_s = self._resumed_s - self._gap.start_s
            opening_s = progress.now_s() - self._resumed_s
            recorder.finding(held_again(held, off_s, opening_s))
        self.close_gap(progress, recorder)
        self.show_end(progress, recorder)
        if progress.plan.hold_until is None:
            progress.gaps_s = progress.now_s() - self.hold_start_s - self.before.held_s

    def show_end(self, progress: Progress, recorder: Recorder, *, early: bool = False) -> None:
        """Show the hold's end to the observers.

        ``early``: only an end by the wall clock, which reopening does not move.
        """
        if early and progress.plan.hold_until is None:
            return
        gone_s = progress.now_s() - self.hold_start_s
        hold_s = None
        left_s = self.left_s
        if left_s is not None:
            hold_s = gone_s + left_s
        plan = msgspec.structs.replace(progress.plan, hold_s=hold_s)
        interrupted_s = gone_s - self.before.held_s
        recorder.show(lambda observer: observer.planned(plan, interrupted_s))


async def retry_while_leased(
    ask: Callable[[], Awaitable[T]], say: Callable[[str], None], progress: Progress
) -> T:
    """The result of ``ask``, repeated until the leases of a killed session have expired."""
    until_s = time.monotonic() + _LEASES_EXPIRE_S
    was_said = False
    while True:
        try:
            return await ask()
        except HeldError as error:
            if time.monotonic() >= until_s or progress.stopped.is_set():
                raise
            if not was_said:
                say(
                    f"waiting up to {_LEASES_EXPIRE_S:.0f} s for the leases of a killed session "
                    f"to expire: {error}"
                )
            was_said = True
            await wait_for(progress.stopped, 1.0)
