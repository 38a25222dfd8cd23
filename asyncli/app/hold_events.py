"""The events of a plan in its hold: the generator's processes do them; the run file gets a record
of each when it begins, and of a command when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from asyncli.app.command_event import CommandResult, run_command
from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.cluster.generator import ClusterGenerator
from asyncli.engine.generator import Generator
from asyncli.engine.shard import HoldBegun
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import CHURN, RunEvent


class HoldEvents:
    """The events of one soak."""

    def __init__(
        self, progress: Progress, recorder: Recorder, generator: Generator | ClusterGenerator
    ) -> None:
        self._progress = progress
        self._recorder = recorder
        self._generator = generator

    @contextlib.asynccontextmanager
    async def while_held(self, held_s: float = 0.0) -> AsyncIterator[None]:
        """The hold begins, or goes on in a resumed run that has held for ``held_s`` already; at the
        end no more of them are recorded.
        """
        plan = self._progress.plan
        if not (plan.events or plan.churn) or not self._progress.is_in("hold"):
            yield
            return
        begun_s = time.monotonic() - held_s
        is_resumed = held_s > 0
        events = plan.planned_events
        after_s = tuple(event.after_s(plan.hold_s) for event in events)
        self._generator.hold(HoldBegun(begun_s, after_s))
        coming = []
        for number, (due_s, event) in enumerate(zip(after_s, events, strict=True), start=1):
            if due_s >= held_s:
                coming.append((begun_s + due_s, number, event))
        coming.sort()
        if plan.churn is not None and not is_resumed:
            at_s = begun_s - self._progress.zero_s
            fields = {"number": CHURN}
            self._recorder.event(RunEvent("churn", at_s, None, f"churn {plan.churn}", fields))
        tasks = []
        for due_s, number, event in coming:
            taking_place = self._take_place(due_s, number, event, may_run=not is_resumed)
            tasks.append(asyncio.create_task(taking_place))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_place(
        self, due_s: float, number: int, event: PlannedEvent, *, may_run: bool
    ) -> None:
        """Record an event when it is due, and run its command if it has one and ``may_run``."""
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        at_s = due_s - self._progress.zero_s
        fields: dict[str, Any] = {"number": number}
        if event.do == "mark":
            self._recorder.event(RunEvent("mark", at_s, at_s, event.note, fields))
            return
        if event.do != "run":
            self._recorder.event(RunEvent(event.do, at_s, None, event.words, fields))
            return

        def ended(result: CommandResult) -> None:
            asdict = msgspec.structs.asdict(result)
            self._recorder.event(
                RunEvent("run", at_s, at_s + result.took_s, event.note, fields | asdict)
            )

        if not may_run:
            # Its file may be a stranger's.
            ended(CommandResult(None, 0.0, "not run: a resumed run runs no commands"))
            return
        await run_command(event.note, ended)
