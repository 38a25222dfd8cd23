"""The events of a plan in its hold: the generator's processes do them; the run file gets a record
of each when it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.cluster.generator import ClusterGenerator
from asyncli.engine.generator import Generator
from asyncli.engine.shard import HoldBegun
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import RunEvent


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
        if not plan.events or not self._progress.is_in("hold"):
            yield
            return
        begun_s = time.monotonic() - held_s
        events = plan.planned_events
        after_s = tuple(event.after_s(plan.hold_s) for event in events)
        self._generator.hold(HoldBegun(begun_s, after_s))
        coming = []
        for number, (due_s, event) in enumerate(zip(after_s, events, strict=True), start=1):
            if due_s >= held_s:
                coming.append((begun_s + due_s, number, event))
        coming.sort()
        recording = asyncio.create_task(self._record(coming))
        try:
            yield
        finally:
            recording.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await recording

    async def _record(self, coming: list[tuple[float, int, PlannedEvent]]) -> None:
        for due_s, number, event in coming:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            at_s = due_s - self._progress.zero_s
            fields = {"number": number, "share": event.share, "how": event.how}
            self._recorder.event(RunEvent(event.do, at_s, None, event.words, fields))
