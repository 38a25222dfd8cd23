"""How far a soak has come: its clock, its phase, and what stopped it; and waiting, which each of these ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from asyncli.plan import Plan
from asyncli.records import Phase

#: From the drain on a run ends of itself.
STOPPABLE = ("baseline", "ramp", "hold")


class Progress:
    """The state of a soak that all of its parts share. ``plan`` changes once: when a hold by the wall clock begins."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.path = plan, path
        #: On time.monotonic(): the zero of the run's clock, and of the generator's seconds (0: it has not begun).
        self.zero_s = time.monotonic()
        self.t0_s = 0.0
        self.phase: Phase | None = None
        #: A resumed run opens again what it held.
        self.reopening = False
        #: What of the hold was not measured (s).
        self.left_out_s = 0.0
        self.stopped = asyncio.Event()
        self.ticked = asyncio.Event()
        #: The generator or the server cannot be relied on any more.
        self.failed = False

    def now_s(self) -> float:
        """The run's clock."""
        return time.monotonic() - self.zero_s

    def is_in(self, *phases: str) -> bool:
        return self.phase is not None and self.phase.name in phases

    def where(self) -> tuple[str | None, float, float | None]:
        """The phase ("resume" while a resumed run opens its connections again), how long it has lasted and is to last (s)."""
        if self.reopening or self.phase is None:
            return "resume" if self.reopening else None, 0.0, None
        name = self.phase.name
        lasts = {"baseline": self.plan.baseline_s, "ramp": self.plan.schedule.end_s, "hold": self.plan.hold_s}
        since_s = self.now_s() - self.phase.start_s - (self.left_out_s if name == "hold" else 0.0)
        return name, max(0.0, since_s), lasts.get(name)


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until ``event`` is set, for ``seconds`` at most."""
    # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes together with the event, so two quick Ctrl-C
    # would count as one.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
