"""Ends a step of a capacity search before it harms this host."""

from __future__ import annotations

from collections.abc import Callable

from asyncli.analysis.bottleneck import memory_floor
from asyncli.analysis.totals import errors
from asyncli.app.recorder import NoObserver
from asyncli.findings.tls import by_reason
from asyncli.model.plan import Plan
from asyncli.model.records import Phase, Sample, Tick
from asyncli.model.units import format_bytes
from asyncli.report.summary import Summary
from asyncli.report.thresholds import parse


class StepGuard(NoObserver):
    """Ends the step at the first error answer, and before this host runs out of memory and the
    kernel kills a process.

    ``total``: this host's memory in bytes; None: unknown, and not guarded. ``own``: the metric of
    its available memory.
    """

    def __init__(self, total: int | None, own: str, plan: Plan) -> None:
        self.stop: Callable[[str], None] = lambda _: None
        self._total = total
        self._own = own
        self._limited = [parse(text, Summary).key for text in plan.fail_if]
        self._before: float | None = None
        self._ramping = False

    def phase(self, phase: Phase) -> None:
        if phase.name == "ramp":
            self._ramping = True

    def tick(self, t_s: float, tick: Tick) -> None:
        wrong = errors(tick, self._limited)
        if wrong:
            self.stop(f"heartbeats were answered with errors: {by_reason(wrong)}")

    def sample(self, sample: Sample) -> None:
        free = sample.values.get(self._own)
        if free is None or self._total is None:
            return
        if not self._ramping:
            self._before = free
        elif self._before is not None and free < memory_floor(self._total, self._before):
            self.stop(f"this host has {format_bytes(free)} of memory left")
