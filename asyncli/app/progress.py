"""A soak's state: its clock, its phase, and whether it was stopped or failed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from asyncli.model.plan import Plan
from asyncli.model.records import Phase, PhaseName

#: The phases that a stop ends; from the drain on, stopping changes nothing.
STOPPABLE = ("baseline", "ramp", "hold")


class Progress:
    """``plan`` changes once, when a hold that ends by the wall clock begins."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan = plan
        self.path = path
        #: The zero of the run's clock, on time.monotonic().
        self.zero_s = time.monotonic()
        #: Before that the run's time has not begun: it is being prepared.
        self.has_clock = False
        #: The zero of the generator's seconds, on time.monotonic(); 0: not started.
        self.t0_s = 0.0
        self.phase: Phase | None = None
        #: A resumed run is reopening its connections.
        self.reopening = False
        #: Interruptions of the hold (s).
        self.gaps_s = 0.0
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
        """(The phase, or "resume" while a resumed run reopens its connections; its time so far (s);
        its planned time (s)).
        """
        if self.reopening:
            return "resume", 0.0, None
        if self.phase is None:
            return None, 0.0, None
        name = self.phase.name
        since_s = self.now_s() - self.phase.start_s
        if name == "hold":
            since_s -= self.gaps_s
        return name, max(0.0, since_s), self._lasts_s(name)

    def _lasts_s(self, phase: PhaseName) -> float | None:
        """How long a phase is planned to last (s); None: unknown, or until stopped."""
        if phase == "baseline":
            return self.plan.baseline_s
        if phase == "ramp":
            return self.plan.schedule.end_s
        if phase == "hold":
            return self.plan.hold_s
        return None


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for ``event``, ``seconds`` at most."""
    # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
