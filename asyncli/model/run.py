"""The view of a run's records: phases, hold, connections held over time, and where it took place.
Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from asyncli.core.adding import added_up
from asyncli.core.histogram import RangeSums
from asyncli.model.metrics import SERVER_PROCESSES
from asyncli.model.plan import Plan
from asyncli.model.records import (
    CHURN,
    Check,
    Environment,
    EventCounts,
    Finding,
    Gap,
    Phase,
    PhaseName,
    RunEvent,
    Sample,
    Tick,
    left_out_s,
)
from asyncli.model.samples import Series, instants, metrics_of, series, within
from asyncli.model.topology import Place, Sides, place_of

Ticks = Sequence[tuple[float, Tick]]


class Hold(msgspec.Struct, frozen=True):
    """The hold of a run: start, end (s; the last record's instant for a run without a drain), and
    ticks.
    """

    start_s: float
    end_s: float
    #: Those with at least half of their second in the hold.
    ticks: Ticks

    @property
    def length_s(self) -> float:
        """Its duration."""
        return max(0.0, self.end_s - self.start_s)


class TimeAtWork(NamedTuple):
    """From one instant to another (s)."""

    start_s: float
    end_s: float


#: The generator counts each second.
TICK_S = 1.0
#: After the last comeback from an event memory settles for so long (s), as after a drain: the
#: default of --residue.
EVENT_SETTLES_S = 5.0
#: So many collections settle a heap after the drain. What Go's pools keep of closed connections
#: (sync.Pool, two buffers of 4 kB of each in net/http) goes at the second collection, and so do
#: objects with finalizers. The JVM's serial collector compacts at each fourth alone, and else
#: counts dead objects as alive, up to 5 % of the old generation (MarkSweepAlwaysCompactCount,
#: MarkSweepDeadRatio): 3.8 MB of 400 ended threads.
SETTLING_COLLECTIONS = 4
#: So many more, some seconds apart, show what rises by the clock alone: as many steps, all of them
#: upwards by chance, are rare, and in the JVM one of them compacts.
LOOKS_AFTER_DRAIN = 4
#: What is alive is told to rise by the clock from so much (bytes/s) on: a slower rise may be what a
#: runtime loads late (8 kB/s in a Node).
LEAST_PACE = 10e3


class Run(msgspec.Struct, dict=True):
    """The records of a run. Times are seconds since its start, except ``started``.

    Computed properties are cached until a field is set.
    """

    id: str
    #: UTC, ISO 8601, to the second: ``2025-03-01T12:00:00Z``.
    started: str
    plan: Plan
    environment: Environment
    phases: list[Phase]
    #: The histograms of ticks from a file are decoded on access.
    ticks: list[tuple[float, Tick]]
    #: From a file: :class:`~asyncli.model.samples.Samples`, stored by metric.
    samples: Sequence[Sample]
    findings: list[Finding]
    checks: list[Check]
    #: The writer closed the file at the end of the run. False while the run lasts, and if it was
    #: killed.
    complete: bool
    #: Whether a process wrote the file when it was read; None if unknown: in the writer's process,
    #: looking would end its locks.
    written: bool | None = None
    #: Records that the writer had to drop because writing failed for too long.
    dropped: int = 0
    #: Where the run was interrupted and resumed, in order.
    gaps: list[Gap] = msgspec.field(default_factory=list)
    #: What was done to it or noted, in order of time.
    events: list[RunEvent] = msgspec.field(default_factory=list)
    #: Unix time of the clock's zero.
    started_wall_s: float = 0.0

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self.__dict__.clear()

    def phase(self, name: PhaseName) -> Phase | None:
        """The phase called ``name``, or None if the run did not reach it."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        return None

    @cached_property
    def first_connect_s(self) -> float:
        """When the ramp began: nothing was connected before. Infinite for a run that did not reach
        it.
        """
        ramp = self.phase("ramp")
        if ramp is not None:
            return ramp.start_s
        if self.ticks:
            first_tick_s, _ = self.ticks[0]
            return first_tick_s - 1.0
        return math.inf

    @cached_property
    def stop_s(self) -> float:
        """When the drain began; for a run that did not reach it, ``end_s``."""
        drain = self.phase("drain")
        return drain.start_s if drain is not None else self.end_s

    @cached_property
    def end_s(self) -> float:
        """The last instant in the records."""
        ends = [phase.start_s if phase.end_s is None else phase.end_s for phase in self.phases]
        ends += [t_s for t_s, _ in self.ticks[-1:]]
        ends += [sample.t_s for sample in self.samples[-1:]]
        return max(ends, default=0.0)

    @cached_property
    def hold(self) -> Hold | None:
        """The hold; None if the run did not reach it."""
        hold = self.phase("hold")
        if hold is None:
            return None
        ticks = [(t_s, tick) for t_s, tick in self.ticks if hold.start_s < t_s - 0.5 <= self.stop_s]
        return Hold(hold.start_s, self.stop_s, ticks)

    @cached_property
    def latency_sums(self) -> RangeSums:
        """The sums of the latencies (us) of ticks, by their indices in ``ticks``."""
        return RangeSums([tick.latency_us for _, tick in self.ticks])

    @cached_property
    def lateness_sums(self) -> RangeSums:
        """The same of how late asyncli sent."""
        return RangeSums([tick.lateness_us for _, tick in self.ticks])

    @cached_property
    def phases_of_ticks(self) -> list[PhaseName]:
        """The phase of each tick: the latest that had begun at the middle of its second.

        Ticks before the first recorded phase belong to the ramp; the baseline has no ticks.
        """
        phases = [phase for phase in self.phases if phase.name != "baseline"]
        starts_s = [phase.start_s for phase in phases]
        names: list[PhaseName] = ["ramp", *(phase.name for phase in phases)]
        return [names[bisect_right(starts_s, t_s - 0.5)] for t_s, _ in self.ticks]

    def ticks_between(self, after_s: float, until_s: float) -> Ticks:
        """The ticks that end in ``(after_s, until_s]``."""
        first = bisect_right(self.ticks, after_s, key=lambda row: row[0])
        end = bisect_right(self.ticks, until_s, key=lambda row: row[0])
        return self.ticks[first:end]

    @cached_property
    def server_read_s(self) -> Sequence[float]:
        """When the server's processes were read (s)."""
        return self.series(SERVER_PROCESSES).t_s

    def series(self, metric: str) -> Series:
        """``metric`` over time."""
        return series(self.samples, metric)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were ever read."""
        return metrics_of(self.samples)

    def instants(self, *families: str) -> list[float]:
        """When (s) any metric was read whose name begins with one of ``families``."""
        return instants(self.samples, *families)

    @cached_property
    def held(self) -> Series:
        """Connections held over time: 0 until the ramp begins, then the gauge of each tick.

        At the start of the drain it is the count taken then: the gauge of that second is of its
        end, when they are closed. Where the ramp ends on time within a second, the count has a
        bend there: a line through that second would have fewer connections than were open.
        """
        drain = self.phase("drain")
        at_drain = self._held_at_drain
        start_s = self.first_connect_s if math.isfinite(self.first_connect_s) else 0.0
        held = Series([start_s], [0.0])
        opened_s = self._all_opened_s
        for t_s, tick in self.ticks:
            if held.t_s[-1] < opened_s < t_s and tick.held == self.plan.connections:
                held.t_s.append(opened_s)
                held.values.append(float(tick.held))
            if drain is not None and at_drain and held.t_s[-1] < drain.start_s < t_s:
                held.t_s.append(drain.start_s)
                held.values.append(float(at_drain))
            if t_s > held.t_s[-1]:
                held.t_s.append(t_s)
                held.values.append(float(tick.held))
        return held

    @cached_property
    def own_cpu_s(self) -> Series:
        """The CPU time (s) of asyncli's processes that connect, at the end of each second."""
        spent_s = [tick.cpu_user_s + tick.cpu_system_s for _, tick in self.ticks]
        return Series([t_s for t_s, _ in self.ticks], spent_s)

    @property
    def _all_opened_s(self) -> float:
        """When the last batch of a ramp is due. Infinite for a ladder: its levels are read at
        rest, and its steps on the way between the rests as they are counted.
        """
        schedule = self.plan.schedule
        if schedule.plateaus:
            return math.inf
        return self.first_connect_s + schedule.due_s(schedule.batches - 1)

    @property
    def _held_at_drain(self) -> int:
        drain = self.phase("drain")
        if drain is None:
            return 0
        counts = [tick.held_at_drain for t_s, tick in self.ticks if t_s > drain.start_s]
        return max(counts, default=0)

    @property
    def place(self) -> Place:
        """The facts of the environment."""
        return place_of(self.environment)

    @property
    def sides(self) -> Sides:
        """What is on the sampled host."""
        return self.place.sides

    def of_ours(self, metric: str) -> str:
        """The name under which ``metric`` of asyncli's host, or of its network namespace, was
        sampled.
        """
        return self.place.of_ours(metric)

    def within(self, *spans: tuple[float, float]) -> Run:
        """The run with only the records in ``spans`` (start, end; s, both included; in order, not
        overlapping).
        """
        ticks = []
        for t_s, tick in self.ticks:
            if any(start_s <= t_s <= end_s for start_s, end_s in spans):
                ticks.append((t_s, tick))
        return msgspec.structs.replace(self, ticks=ticks, samples=within(self.samples, *spans))

    def counts_of_event(self, number: int) -> EventCounts:
        """What was counted of an event of the plan, or of churn, in all; zeros without it."""
        return self._counts_of_events.get(number, EventCounts())

    def seconds_of_event(self, number: int) -> list[tuple[float, EventCounts]]:
        """The ends (s) of the seconds in which an event of the plan, or churn, counted anything,
        and what each counted.
        """
        return self._seconds_of_events.get(number, [])

    @property
    def has_churned(self) -> bool:
        """Whether churn ended or replaced any connection."""
        return CHURN in self._seconds_of_events

    @cached_property
    def _seconds_of_events(self) -> dict[int, list[tuple[float, EventCounts]]]:
        seconds: dict[int, list[tuple[float, EventCounts]]] = {}
        for t_s, tick in self.ticks:
            for number, counts in tick.events.items():
                seconds.setdefault(number, []).append((t_s, counts))
        return seconds

    @cached_property
    def _counts_of_events(self) -> dict[int, EventCounts]:
        in_all = {}
        for number, seconds in self._seconds_of_events.items():
            counts = added_up(EventCounts(), *(of_second for _, of_second in seconds))
            if not self.has_drained:
                counts.waiting = counts.waiting_so_far
            in_all[number] = counts
        return in_all

    @property
    def has_drained(self) -> bool:
        """Whether the hold was over, and who was not to be back yet was counted: not so in a run
        that goes on, or was killed.
        """
        return self.phase("drain") is not None

    @property
    def held_for_s(self) -> float:
        """How long the hold lasted (s), without interruptions of the run; 0 without a hold."""
        if self.hold is None:
            return 0.0
        return max(0.0, self.held_until_s(self.hold.end_s))

    def held_until_s(self, at_s: float) -> float:
        """How much of the hold (s) was over at an instant of it: the plan's time of an event goes
        on where an interruption ended.
        """
        assert self.hold is not None
        start_s = self.hold.start_s
        return at_s - start_s - left_out_s(self.gaps, start_s, at_s)

    @cached_property
    def event_windows(self) -> dict[int, Gap]:
        """By the number of each event of the plan that concerned connections: from its instant
        until its command has ended, the last comeback is over and memory has settled, or until the
        next event, an interruption of the run or the drain. An event that took nobody, such as a
        command that the server survived, ends only the time in which memory settles.
        """
        return {number: self._window(lasted) for number, lasted in self._concerned.items()}

    @cached_property
    def quiet_commands(self) -> dict[int, Gap]:
        """The same of each command of the plan in whose time the server ended no connection: until
        the command has ended and memory has settled.
        """
        return {number: self._window(lasted) for number, lasted in self._ended_nobody.items()}

    @cached_property
    def event_times(self) -> dict[int, Gap]:
        """The windows of both, each as if no other event began meanwhile: what was in the time of
        an event. Several may be at work at a time.
        """
        lasted = self._concerned | self._ended_nobody
        return {number: self._time(lasted[number]) for number in lasted}

    @cached_property
    def _concerned(self) -> dict[int, TimeAtWork]:
        """From when to when each event of the plan that concerned connections was at work: to its
        last comeback, and to its command's end; in the order of their instants.
        """
        began_s = self._began_s
        last_s: dict[int, float] = {}
        for t_s, tick in self.ticks:
            for number in tick.events.keys() - {CHURN}:
                start_s = began_s.get(number, t_s - TICK_S)
                began_s[number] = start_s
                last_s[number] = max(t_s, start_s + self._least_length_s(number))
        in_order = sorted(last_s, key=lambda number: began_s[number])
        return {number: TimeAtWork(began_s[number], last_s[number]) for number in in_order}

    @property
    def _ended_nobody(self) -> dict[int, TimeAtWork]:
        """The same of each command of the plan in whose time the server ended no connection."""
        lasted = {}
        for number, command in self.commands.items():
            if number not in self._concerned:
                end_s = self.stop_s if command.end_s is None else command.end_s
                lasted[number] = TimeAtWork(command.at_s, end_s)
        return lasted

    @cached_property
    def commands(self) -> dict[int, RunEvent]:
        """By the number of its event each command of the plan that was run: what is there of it."""
        commands = {}
        for event in self.events:
            number = event.fields.get("number")
            # One that was not run, or whose end was not seen, took no time.
            was_run = event.fields.get("took_s") != 0.0
            if event.kind == "run" and isinstance(number, int) and was_run:
                commands[number] = event
        return commands

    @property
    def running_commands(self) -> list[RunEvent]:
        """Commands of the plan that had not ended when the records end, where the run did not come
        to the end of its hold: each is recorded as it ends. Those of the last second may not have
        begun. A resumed run runs none.
        """
        hold = self.phase("hold")
        if self.complete or hold is None or self.phase("drain") is not None or self.gaps:
            return []
        recorded = {event.fields.get("number") for event in self.events}
        running = []
        for number, planned in enumerate(self.plan.planned_events, start=1):
            if planned.do != "run" or number in recorded:
                continue
            at_s = hold.start_s + planned.after_s(self.plan.hold_s)
            if at_s <= self.end_s - TICK_S:
                running.append(RunEvent("run", at_s, None, planned.note, {"number": number}))
        return running

    @property
    def _began_s(self) -> dict[int, float]:
        """When each event of the plan began. A mark is none: it does nothing."""
        began_s: dict[int, float] = {}
        for event in self.events:
            number = event.fields.get("number")
            if isinstance(number, int) and number != CHURN and event.kind != "mark":
                began_s[number] = event.at_s
        return began_s

    @cached_property
    def _began_and_took_s(self) -> list[tuple[float, bool]]:
        """When each event of the plan began, and whether it may have taken anybody: only what was
        counted of it tells that it did not, and of a command that nothing was.
        """
        began_s = self._began_s
        for number, lasted in self._concerned.items():
            began_s[number] = lasted.start_s
        commands = {event.fields.get("number") for event in self.events if event.kind == "run"}
        events = []
        for number, at_s in began_s.items():
            took = number not in commands
            if number in self._concerned:
                counts = self.counts_of_event(number)
                took = counts.ended + counts.stalled > 0
            events.append((at_s, took))
        return events

    def _window(self, lasted: TimeAtWork) -> Gap:
        """Of an event that was at work so long."""
        time = self._time(lasted)
        assert time.end_s is not None
        end_s = time.end_s
        for began_s, took in self._began_and_took_s:
            if began_s > lasted.start_s:
                end_s = min(end_s, began_s if took else max(began_s, lasted.end_s))
        return Gap(lasted.start_s, max(lasted.start_s, end_s))

    def _time(self, lasted: TimeAtWork) -> Gap:
        """The same as if no other event began meanwhile."""
        start_s = lasted.start_s
        cut_s = self._interruptions_s(start_s)
        end_s = min(lasted.end_s + EVENT_SETTLES_S, self.stop_s, *cut_s)
        return Gap(start_s, max(start_s, end_s))

    def interrupted_after_s(self, number: int) -> float | None:
        """How long after an event (s) the run was interrupted, if before its window was over; 0 for
        one of which no second was recorded before.
        """
        window = self.event_windows.get(number)
        if window is not None:
            if window.end_s in self._interruptions_s(window.start_s):
                return window.end_s - window.start_s
            return None
        began_s = [event.at_s for event in self.events if event.fields.get("number") == number]
        for gap in self.gaps:
            if any(gap.start_s - 2 * TICK_S <= at_s <= gap.start_s + TICK_S for at_s in began_s):
                return 0.0
        return None

    def _interruptions_s(self, since_s: float) -> list[float]:
        """When the run was interrupted since an instant, at which it may have been already: the
        last second is not recorded.
        """
        instants = []
        for gap in self.gaps:
            if gap.end_s is None or gap.end_s > since_s:
                instants.append(max(since_s, gap.start_s))
        return instants

    def rested_since_s(self, start_s: float) -> float:
        """Since when (s on the run's clock) nothing disturbed the hold before an event at
        ``start_s``, and at most as long before it as memory settles: ``start_s`` where another
        event had not settled by then. What is read in the second half of that time is at rest.
        """
        hold_s = start_s if self.hold is None else self.hold.start_s
        since_s = max(start_s - EVENT_SETTLES_S, hold_s)
        for window in (*self.event_windows.values(), *self.quiet_commands.values()):
            if window.start_s >= start_s or window.end_s is None:
                continue
            if window.end_s >= start_s:
                return start_s
            since_s = max(since_s, window.end_s - EVENT_SETTLES_S / 2)
        return min(start_s, since_s)

    def _least_length_s(self, number: int) -> float:
        """How long an event lasts at least (s)."""
        command = self.commands.get(number)
        if command is not None:
            return math.inf if command.end_s is None else command.end_s - command.at_s
        planned = self.plan.event_numbered(number)
        if planned is None:
            return 0.0
        if planned.do == "stall" and planned.for_s is None:
            return math.inf
        return planned.for_s or 0.0

    @cached_property
    def disturbances(self) -> list[Gap]:
        """When the run was not at rest: its gaps, and the windows of its events."""
        windows = [*self.gaps, *self.event_windows.values(), *self.quiet_commands.values()]
        return sorted(windows, key=lambda window: window.start_s)

    @property
    def undisturbed(self) -> Run:
        """The run without the records in its disturbances; itself if it has none."""
        if not self.disturbances:
            return self
        return self._undisturbed

    # Separate, since a cached reference to itself would be a cycle that only the garbage collector
    # frees.
    @cached_property
    def _undisturbed(self) -> Run:
        return self.within(*self.undisturbed_spans(-math.inf, math.inf))

    def undisturbed_spans(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """The parts of [start, end] outside disturbances."""
        return _spans_outside(self.disturbances, start_s, end_s)

    def uninterrupted_spans(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """The parts of [start, end] outside interruptions of the run."""
        return _spans_outside(self.gaps, start_s, end_s)

    @property
    def spans_outside_events(self) -> list[tuple[float, float]]:
        """The times (s) in which no event was at work, nor settled."""
        windows = [*self.gaps, *self.event_times.values()]
        windows.sort(key=lambda window: window.start_s)
        return _spans_outside(windows, -math.inf, math.inf)


def answered_between(t_s: float, tick: Tick) -> tuple[float, float] | None:
    """When the first and the last answer came in the tick that ended at ``t_s`` (s on the run's
    clock); None without any, and where that was not recorded.
    """
    if tick.answered_s is None:
        return None
    t0_s = t_s - tick.second
    first_s, last_s = tick.answered_s
    return t0_s + first_s, t0_s + last_s


def _spans_outside(gaps: Sequence[Gap], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """The parts of [start, end] outside ``gaps``, which are in order; at least one."""
    spans = []
    begin_s = start_s
    for gap in gaps:
        if gap.start_s > end_s:
            break
        if gap.start_s > begin_s:
            spans.append((begin_s, gap.start_s))
        after_s = math.inf if gap.end_s is None else math.nextafter(gap.end_s, math.inf)
        begin_s = max(begin_s, after_s)
    if begin_s < end_s or not spans:
        spans.append((min(begin_s, end_s), end_s))
    return spans
