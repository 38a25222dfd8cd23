"""Everything that a soak records goes into the run file and to its observers; its clock, its phase, and what stopped it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from asyncli.findings.run import sample_refused, watcher_failed
from asyncli.plan import Plan
from asyncli.records import MOST, Finding, Phase, Sample, Tick
from asyncli.store.writer import RunWriter

if TYPE_CHECKING:
    from asyncli.report.livestate import LiveObserver

# An error may quote all that it could not show.
_LONGEST_WHY = 200


class NoObserver:
    """Sees a soak while it runs, and shows nothing; others do: a screen, a log, a notebook's progress bar."""

    def phase(self, phase: Phase) -> None: ...
    def tick(self, t_s: float, tick: Tick) -> None: ...
    def sample(self, sample: Sample) -> None: ...
    def finding(self, finding: Finding) -> None: ...
    def planned(self, plan: Plan) -> None:
        """The plan, with the length of a hold that ends by the wall clock."""

    def resumed(self, so_far: Tick) -> None:
        """An interrupted run goes on with these counts; ``planned`` then tells the end of its hold."""


Observer: TypeAlias = "NoObserver | LiveObserver"


class Recorder:
    """Writes to ``writer`` once it is open, and shows to each of ``observers`` until that raises."""

    def __init__(self, observers: Iterable[Observer], progress: Progress) -> None:
        self.writer: RunWriter | None = None
        self._observers, self._progress = [*observers], progress
        self._early: list[Finding] = []
        self._refused_sample = False

    def open(self, writer: RunWriter) -> None:
        """Begin to write, the findings so far first."""
        self.writer = writer
        for finding in self._early:
            self.finding(finding)

    def phase(self, phase: Phase) -> None:
        self._progress.phase = phase
        if self.writer is not None:
            self.writer.phase(phase)
        self.show(lambda observer: observer.phase(phase))

    def tick(self, t_s: float, tick: Tick) -> None:
        if self.writer is not None:
            self.writer.tick(t_s, tick)
            self._tell_news(self.writer)
        self.show(lambda observer: observer.tick(t_s, tick))

    def sample(self, sample: Sample) -> None:
        if odd := {name: value for name, value in sample.values.items() if not 0 <= value <= MOST}:
            if not self._refused_sample:
                self._refused_sample = True
                self.finding(sample_refused(*next(iter(odd.items()))))
            sample = Sample(sample.t_s, {name: value for name, value in sample.values.items() if name not in odd})
        if self.writer is not None:
            self.writer.sample(sample)
            self._tell_news(self.writer)
        self.show(lambda observer: observer.sample(sample))

    def _tell_news(self, writer: RunWriter) -> None:
        """Findings about the run file. A file that was moved or deleted ends the run."""
        for finding in writer.news():
            self.show(lambda observer, told=finding: observer.finding(told))  # type: ignore[misc]
        if writer.lost:
            self._progress.stopped.set()

    def finding(self, finding: Finding) -> None:
        if self.writer is None:
            self._early.append(finding)
            return
        self.writer.finding(self._progress.now_s(), finding)
        self.show(lambda observer: observer.finding(finding))

    def show(self, tell: Callable[[Observer], None]) -> None:
        for observer in [*self._observers]:
            try:
                tell(observer)
            except Exception as error:  # whatever it is, it is the observer's
                self._observers.remove(observer)
                self.observer_failed(error)

    def observer_failed(self, error: BaseException) -> None:
        why = f"{type(error).__name__}: {str(error)[:_LONGEST_WHY]}"
        self.finding(watcher_failed(*self._progress.where(), why, str(self._progress.path)))


#: From the drain on, stopping changes nothing.
STOPPABLE = ("baseline", "ramp", "hold")


class Progress:
    """``plan`` changes once: when a hold by the wall clock begins."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.path = plan, path
        #: On time.monotonic(): the zero of the run's clock, and of the generator's seconds (0: it has not begun).
        self.zero_s = time.monotonic()
        self.t0_s = 0.0
        self.phase: Phase | None = None
        #: A resumed run is opening what it held.
        self.reopening = False
        #: Interruptions of the hold (s).
        self.left_out_s = 0.0
        self.stopped = asyncio.Event()
        self.ticked = asyncio.Event()
        #: The generator failed.
        self.failed = False

    def now_s(self) -> float:
        """The run's clock."""
        return time.monotonic() - self.zero_s

    def is_in(self, *phases: str) -> bool:
        return self.phase is not None and self.phase.name in phases

    def where(self) -> tuple[str | None, float, float | None]:
        """The phase ("resume" while a resumed run reopens its connections), how long it has lasted, and how long it is to last
        (s)."""
        if self.reopening or self.phase is None:
            return "resume" if self.reopening else None, 0.0, None
        name = self.phase.name
        lasts = {"baseline": self.plan.baseline_s, "ramp": self.plan.schedule.end_s, "hold": self.plan.hold_s}
        since_s = self.now_s() - self.phase.start_s - (self.left_out_s if name == "hold" else 0.0)
        return name, max(0.0, since_s), lasts.get(name)


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for ``event``, ``seconds`` at most."""
    # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
