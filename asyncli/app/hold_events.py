"""The events of a plan in its hold: the generator's processes do them; the run file gets a record
of each when it begins, and of a command when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from asyncli.app.command_event import CommandResult, run_command
from asyncli.app.earlier_processes import EarlierProcesses
from asyncli.app.event_readings import APART_S, reading_instants_s
from asyncli.app.progress import Progress
from asyncli.app.recorder import Recorder
from asyncli.cluster.generator import ClusterGenerator
from asyncli.engine.generator import Generator
from asyncli.engine.shard import CommandLasts, HoldBegun
from asyncli.model.planned_events import PlannedEvent
from asyncli.model.records import CHURN, RunEvent

_END_NOT_SEEN = "its end was not seen: the run was interrupted before"


def _still_due(after_s: Sequence[float], begun: Collection[int]) -> tuple[float, ...]:
    """When each event is due, for the generator, which leaves out what lies behind: so do those
    that had begun.
    """
    due = list(after_s)
    for number in begun:
        if 0 < number <= len(due):
            due[number - 1] = -math.inf
    return tuple(due)


class EarlierPart(msgspec.Struct, frozen=True):
    """Of a resumed run: for how long it had held (s), since when (s on its clock), and the numbers
    of the events that had ``begun`` and of those whose record is in its file.
    """

    held_s: float = 0.0
    since_s: float = 0.0
    begun: frozenset[int] = frozenset()
    recorded: frozenset[int] = frozenset()


class HoldEvents:
    """The events of one soak. ``read_all``: reads everything for the sake of an event."""

    def __init__(
        self,
        progress: Progress,
        recorder: Recorder,
        generator: Generator | ClusterGenerator,
        read_all: Callable[[], Awaitable[object]],
    ) -> None:
        self._progress = progress
        self._recorder = recorder
        self._generator = generator
        self._read_all = read_all
        self._earlier_processes = EarlierProcesses()
        #: The events whose commands run.
        self._running: set[int] = set()

    def sample(self, values: Mapping[str, float]) -> None:
        """Readings of the server: while a command runs, what the server ends belongs to it; and
        while the server has processes from before a command, what it ends of that time.
        """
        self._earlier_processes.read(values)
        for number in self._running:
            self._command_lasts(number, runs=True)
        left_by = self._earlier_processes.left_by
        if left_by is not None:
            self._command_lasts(left_by, runs=False)

    def _command_lasts(self, number: int, *, runs: bool) -> None:
        """Tell the workers so, for as long as each connection takes to be heard once more."""
        if self._progress.is_in("hold"):
            until = time.monotonic() + self._progress.plan.heard_within_s
            self._generator.command_lasts(CommandLasts(number, until, runs))

    @contextlib.asynccontextmanager
    async def while_held(self, earlier: EarlierPart | None = None) -> AsyncIterator[None]:
        """The hold begins, or goes on after the ``earlier`` part of a resumed run; at the end no
        more events are recorded.
        """
        plan = self._progress.plan
        if not (plan.events or plan.churn) or not self._progress.is_in("hold"):
            yield
            return
        is_resumed = earlier is not None
        before = earlier or EarlierPart()
        held_s = before.held_s
        begun_s = time.monotonic() - held_s
        events = plan.planned_events
        after_s = tuple(event.after_s(plan.hold_s) for event in events)
        self._generator.hold(HoldBegun(begun_s, _still_due(after_s, before.begun)))
        coming = []
        for number, (due_s, event) in enumerate(zip(after_s, events, strict=True), start=1):
            if number in before.begun or due_s < held_s:
                self._record_earlier(before, due_s, number, event)
            else:
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
        timed = list(zip(after_s, events, strict=True))
        tasks.append(asyncio.create_task(self._read_for(timed, begun_s, held_s)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_for(
        self, events: list[tuple[float, PlannedEvent]], begun_s: float, held_s: float
    ) -> None:
        """Read everything before each event and at its end. A reading that took longer than until
        the next one replaces it.
        """
        for instant_s in reading_instants_s(events, held_s):
            wait_s = begun_s + instant_s - time.monotonic()
            if wait_s < -APART_S:
                continue
            await asyncio.sleep(max(0.0, wait_s))
            await self._read_all()

    def _record_earlier(
        self, before: EarlierPart, due_s: float, number: int, event: PlannedEvent
    ) -> None:
        """Record an event of the earlier part that is not: a command is when it has ended."""
        if number in before.recorded:
            return
        at_s = before.since_s + due_s
        fields: dict[str, Any] = {"number": number}
        if event.do == "run":
            # Without a status: nobody knows whether it failed.
            fields |= {"took_s": 0.0, "output": _END_NOT_SEEN}
            self._recorder.event(RunEvent("run", at_s, at_s, event.note, fields))
        elif event.do != "mark" and number in before.begun:
            self._recorder.event(RunEvent(event.do, at_s, None, event.words, fields))

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
            if number in self._running:
                self._running.remove(number)
                self._command_lasts(number, runs=True)
            asdict = msgspec.structs.asdict(result)
            self._recorder.event(
                RunEvent("run", at_s, at_s + result.took_s, event.note, fields | asdict)
            )

        if not may_run:
            # Its file may be a stranger's.
            ended(CommandResult(None, 0.0, "not run: a resumed run runs no commands"))
            return
        self._earlier_processes.command_begins(number)
        self._running.add(number)
        self._recorder.event_begun(RunEvent("run", at_s, None, event.note, fields))
        await run_command(event.note, ended)
