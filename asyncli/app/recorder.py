"""Writes the records of a soak to the run file and shows them to its observers."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from asyncli.app.progress import Progress
from asyncli.findings.run import sample_refused, watcher_failed
from asyncli.model.metrics import greatest, least
from asyncli.model.plan import Plan, plan_document
from asyncli.model.private_values import secret_texts
from asyncli.model.quotation import Quotation
from asyncli.model.records import MOST, Finding, Phase, ProtocolCounts, RunEvent, Sample, Tick
from asyncli.store.private_file import write_private
from asyncli.store.writer import RunWriter

if TYPE_CHECKING:
    from asyncli.report.cost_so_far import CostSoFar
    from asyncli.report.livestate import LiveObserver

# An error may quote everything that it could not display.
_LONGEST_WHY = 200


class NoObserver:
    """Gets the records of a running soak and ignores them; other observers are a screen, a log, a
    notebook's output.
    """

    #: Whether it shows the cost so far, which is computed for it.
    shows_cost = False

    def phase(self, phase: Phase) -> None: ...
    def tick(self, t_s: float, tick: Tick) -> None: ...
    def sample(self, sample: Sample) -> None: ...
    def finding(self, finding: Finding, t_s: float | None = None) -> None: ...
    def event(self, event: RunEvent) -> None: ...
    def cost(self, so_far: CostSoFar) -> None: ...
    def planned(self, plan: Plan, interrupted_s: float = 0.0) -> None:
        """The plan, once the length of a hold that ends by the wall clock is known.

        ``interrupted_s``: how much of its hold were interruptions of the run.
        """

    def resumed(self, t_s: float, so_far: Tick) -> None:
        """An interrupted run continues at ``t_s`` with these counts; ``planned`` then gives the end
        of its hold.
        """


Observer: TypeAlias = "NoObserver | LiveObserver"


class Recorder:
    """Writes to ``writer`` once it is open, and calls each of ``observers`` until it raises."""

    def __init__(self, observers: Iterable[Observer], progress: Progress) -> None:
        self.writer: RunWriter | None = None
        self._observers = list(observers)
        self._progress = progress
        self._early: list[Finding] = []
        self._refused_sample = False
        # Those that were shown, and are still to be read back.
        self._own_events: list[RunEvent] = []
        self._quotation = Quotation(secret_texts(plan_document(progress.plan)))

    def create(self, environment: dict[str, Any]) -> None:
        """Create the run file, with the plan's secrets beside it, and start to write."""
        started = datetime.datetime.now(datetime.UTC)
        environment["wall_start"] = started.isoformat()
        run_id = uuid.uuid4().hex[:12]
        document = plan_document(self._progress.plan)
        path = self._progress.path
        writer = RunWriter.create(
            path,
            run_id=run_id,
            started_wall_s=started.timestamp(),
            plan_document=document,
            environment=environment,
        )
        write_private(path, run_id, document)
        self.open(writer)

    def open(self, writer: RunWriter) -> None:
        """Start to write, earlier findings first."""
        self.writer = writer
        for finding in self._early:
            self.finding(finding)

    def phase(self, phase: Phase) -> None:
        self._progress.phase = phase
        if self.writer is not None:
            self.writer.phase(phase)
        self.show(lambda observer: observer.phase(phase))

    def tick(self, t_s: float, tick: Tick) -> None:
        if tick.protocol is not None:
            self._hide_secrets(tick.protocol)
        if self.writer is not None:
            self.writer.tick(t_s, tick)
            self._check_writer(self.writer)
        self.show(lambda observer: observer.tick(t_s, tick))

    def sample(self, sample: Sample) -> None:
        sample = self._without_impossible(sample)
        if self.writer is not None:
            self.writer.sample(sample)
            self._check_writer(self.writer)
        self.show(lambda observer: observer.sample(sample))

    def _without_impossible(self, sample: Sample) -> Sample:
        """The sample without values that no host can have; the first such sample of a run is
        a finding."""
        possible = {}
        refused = []
        for name, value in sample.values.items():
            if least(name) <= value <= min(MOST, greatest(name)):
                possible[name] = value
            else:
                refused.append(name)
        if refused and not self._refused_sample:
            self._refused_sample = True
            first, *also = refused
            self.finding(sample_refused(first, sample.values[first], also))
        return Sample(sample.t_s, possible)

    def _hide_secrets(self, counts: ProtocolCounts) -> None:
        """Hide what the server's texts repeat of our secrets."""
        quoted = self._quotation.counts
        counts.refused = quoted(counts.refused)
        counts.broken = quoted(counts.broken)
        counts.farewells = quoted(counts.farewells)
        counts.first_answers = quoted(counts.first_answers)
        counts.other_answers = quoted(counts.other_answers)
        counts.streams_lost = quoted(counts.streams_lost)

    def _check_writer(self, writer: RunWriter) -> None:
        """Show findings about the run file, and what others recorded in it. A file that was moved
        or deleted ends the run.
        """
        for finding in writer.news():
            self.show_finding(finding)
        for event in writer.new_events():
            if event in self._own_events:
                self._own_events.remove(event)
            else:
                self._show_event(event)
        if writer.lost:
            self._progress.stopped.set()

    def finding(self, finding: Finding) -> None:
        if self.writer is None:
            self._early.append(finding)
            return
        # One instant for the file, and for all that show it.
        at_s = self._progress.now_s() if self._progress.has_clock else 0.0
        self.writer.finding(at_s, finding)
        self.show(lambda observer: observer.finding(finding, at_s))

    def show_finding(self, finding: Finding) -> None:
        """Show a finding without recording it."""
        self.show(lambda observer: observer.finding(finding))

    def event(self, event: RunEvent) -> None:
        """Record an event of the plan, and show it at once: once it is read back from the file, as
        those of others are, more has happened.
        """
        if "output" in event.fields:
            # A command may print what was sent, such as a page's login.
            fields = {**event.fields, "output": self._quotation(str(event.fields["output"]))}
            event = msgspec.structs.replace(event, fields=fields)
        if self.writer is not None:
            self.writer.event(event)
            self._own_events.append(event)
            self._show_event(event)

    def event_begun(self, event: RunEvent) -> None:
        """Show that a command of the plan begins; it is recorded when it ends."""
        self._show_event(event)

    def _show_event(self, event: RunEvent) -> None:
        self.show(lambda observer: observer.event(event))

    def show(self, call: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception as error:  # whatever the observer raises
                self._observers.remove(observer)
                self.observer_failed(error)

    def observer_failed(self, error: BaseException) -> None:
        why = f"{type(error).__name__}: {str(error)[:_LONGEST_WHY]}"
        self.finding(watcher_failed(*self._progress.where(), why, str(self._progress.path)))
