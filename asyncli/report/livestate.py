"""The state of a running soak, folded from its records. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from asyncli.analysis.asked_by_plan import asked_so_far
from asyncli.analysis.slope import streams_each
from asyncli.analysis.totals import errors, in_ms
from asyncli.core.histogram import Histogram
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import PHASES, Finding, Phase, PhaseName, RunEvent, Sample, Tick
from asyncli.model.samples import first_read
from asyncli.report.cost_so_far import CostSoFar
from asyncli.report.limits_so_far import LimitNews, LimitSoFar, LimitsSoFar
from asyncli.report.losses_so_far import LossNews
from asyncli.report.summary import CostPart

# Rates and latencies cover this time: steady to read, yet quick to change.
_RECENT_S = 10
# A longer wait spans more than one tick.
_WAITS_LONG_S = 1.0
_FINDINGS_KEPT = 8
_EVENTS_KEPT = 8


class Notice(msgspec.Struct, frozen=True):
    """A finding with its time (s on the run's clock) and phase."""

    t_s: float
    phase: PhaseName | None
    finding: Finding


class LiveState(msgspec.Struct):
    """The state of a run; None: unknown so far. Rates, latency, lateness and CPU cover the last ten
    seconds, counts the run.
    """

    phase: PhaseName | None = None
    phases_done: tuple[PhaseName, ...] = ()
    elapsed_s: float = 0.0
    #: The end of the last second that was counted.
    counted_s: float = 0.0
    #: Progress of the phase (0 to 1) and time left; None without a planned end.
    progress: float | None = None
    eta_s: float | None = None
    #: When the hold ends by the wall clock, as in the plan: "07:00".
    until: str | None = None
    #: A resumed run reopens its connections before its hold continues.
    refilling: bool = False
    #: The host whose memory is sampled.
    host: str = "this host"
    asked: int = 0
    #: HTTP/2 streams that each connection holds; its cost includes them.
    streams: float | msgspec.UnsetType = msgspec.UNSET
    held: int = 0
    opened: int = 0
    reopened: int = 0
    lost: int = 0
    failed: int = 0
    connecting: int = 0
    #: Connections that events of the plan ended, and that are not to be back yet; and those that
    #: had no answer since, though it was their turn.
    away: int = 0
    not_back: int = 0
    #: Until the hold ends; infinite without an end, or before it is known.
    hold_left_s: float = math.inf
    #: Connections that wait for an answer, and the longest wait; 0 until one has waited for more
    #: than a second.
    unanswered: int = 0
    longest_wait_s: float = 0.0
    #: Connections opened in a second, as planned and as it was; None after the ramp.
    asked_per_s: float | None = None
    achieved_per_s: float | None = None
    heartbeats_per_s: float | None = None
    #: Unsolicited messages; None for HTTP.
    messages_per_s: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    lateness_p99_ms: float | None = None
    deaths: dict[str, int] = msgspec.field(default_factory=dict)
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    #: Error answers by status.
    errors: dict[str, int] = msgspec.field(default_factory=dict)
    #: The server's counts, without our poller's connection; accepts and handled since the first
    #: status page.
    active: int | None = None
    waiting: int | None = None
    accepts: int | None = None
    handled: int | None = None
    server_bytes: float | None = None
    server_cpu_share: float | None = None
    kernel_bytes: float | None = None
    #: The server's processes, how many have ended, and how often its counters restarted.
    server_processes: int | None = None
    server_ended: int = 0
    server_restarts: int = 0
    #: The report's cost of a connection by the records up to ``cost_at_s`` (on the run's clock);
    #: None: not computed yet. ``cost_unknown``: why the host's is unknown, "" where it is known.
    cost: CostPart | None = None
    cost_at_s: float | None = None
    cost_unknown: str = ""
    #: Each limit of --fail-if.
    limits: tuple[LimitSoFar, ...] = ()
    generator_bytes: float | None = None
    generator_cpu_share: float | None = None
    longest_turn_s: float | None = None
    workers: int = 0
    findings: tuple[Notice, ...] = ()
    #: The number of all findings.
    findings_seen: int = 0
    #: The last events, and the number of all.
    events: tuple[RunEvent, ...] = ()
    events_seen: int = 0
    #: The last phase has ended, or the writer has.
    over: bool = False


def _forget_ticks(state: LiveState) -> None:
    """What ticks tell is meaningless in the residue: there are no connections."""
    state.asked_per_s = None
    state.achieved_per_s = None
    state.heartbeats_per_s = None
    state.messages_per_s = None
    state.latency_p50_ms = None
    state.latency_p99_ms = None
    state.lateness_p99_ms = None
    state.longest_turn_s = None


def _forget_status(state: LiveState) -> None:
    state.active = None
    state.waiting = None
    state.accepts = None
    state.handled = None


def _forget_server(state: LiveState) -> None:
    state.server_bytes = None
    state.server_cpu_share = None
    state.server_processes = None


def _forget_agent(state: LiveState) -> None:
    _forget_status(state)
    _forget_server(state)


def _forget_server_memory(state: LiveState) -> None:
    state.server_bytes = None


def _forget_kernel(state: LiveState) -> None:
    state.kernel_bytes = None


def _forget_generator_cpu(state: LiveState) -> None:
    state.generator_cpu_share = None


def _forget_generator_memory(state: LiveState) -> None:
    state.generator_bytes = None


#: What becomes unknown when a source is lost or has ended, as a finding says.
_FORGET: dict[str, Callable[[LiveState], None]] = {
    "status": _forget_status,
    "metrics": _forget_status,
    "server": _forget_server,
    "server_memory": _forget_server_memory,
    "agent": _forget_agent,
    "memory": _forget_kernel,
    "generator": _forget_generator_cpu,
    "generator_memory": _forget_generator_memory,
}


class LiveFold:
    """Folds records one by one, at constant cost; :meth:`state` is the result."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._interrupted_s = 0.0
        self._ramp = plan.schedule
        self._state = LiveState(
            asked=plan.connections, asked_per_s=plan.asked_per_s, until=plan.hold_until
        )
        self._state.streams = streams_each(plan.streams, [])
        if plan.agent is not None:
            self._state.host = "the server's host"
        self._limits = LimitsSoFar(plan)
        self._limit_news = LimitNews(ends_run=plan.abort)
        #: Up to when counted limits were looked at (on the run's clock).
        self._looked_s = 0.0
        self._loss_news = LossNews()
        self._phase: Phase | None = None
        self._recent: deque[tuple[float, Tick]] = deque()
        self._server_cpu = CpuShare()
        self._generator_cpu = CpuShare()
        #: The status page's counts before our connections.
        self._first: dict[str, float] = {}
        self._accepts: float | None = None
        #: By the number of an event: who is not to be back yet, and for good with some events.
        self._turns_to_come: Counter[int] = Counter()
        #: Likewise who had no answer since, and of those with a turn to come who is gone for good.
        self._without_answer: Counter[int] = Counter()
        self._gone: Counter[int] = Counter()
        self._findings: deque[Notice] = deque(maxlen=_FINDINGS_KEPT)
        self._events: deque[RunEvent] = deque(maxlen=_EVENTS_KEPT)
        #: Commands of the plan so far, by the numbers of their events.
        self._commands: dict[object, RunEvent] = {}

    def phase(self, phase: Phase) -> None:
        state = self._state
        if phase.end_s is not None:
            if phase.name not in state.phases_done:
                state.phases_done = (*state.phases_done, phase.name)
            self._now(phase.end_s)
            state.over = phase.name == PHASES[-1]
            return
        self._phase = phase
        if phase.name == "ramp":
            # Before it nothing is counted.
            self._looked_s = phase.start_s
        self._limits.phase(phase)
        state.phase = phase.name
        state.over = False
        state.refilling &= phase.name == "hold"
        if phase.name == "residue":
            _forget_ticks(state)
        self._now(phase.start_s)

    def tick(self, t_s: float, tick: Tick) -> None:
        state = self._state
        self._now(t_s)
        self._recent.append((t_s, tick))
        while self._recent and self._recent[0][0] <= t_s - _RECENT_S:
            self._recent.popleft()
        state.held = tick.held
        state.connecting = tick.connecting
        state.workers = tick.workers
        state.unanswered = 0
        state.longest_wait_s = 0.0
        if tick.longest_wait_s > _WAITS_LONG_S:
            state.unanswered = tick.awaiting
            state.longest_wait_s = tick.longest_wait_s
        state.streams = streams_each(self._plan.streams, [tick])
        state.counted_s = max(state.counted_s, t_s)
        self._count(tick, t_s)
        # The drain's last tick may come late.
        if state.phase != "residue":
            self._rates()
        self._tell_limits(self._looked_s)
        self._looked_s = t_s

    def turns_to_come(self, by_event: Mapping[int, int]) -> None:
        """Who was not to be back yet, before the ticks that are folded one by one."""
        self._turns_to_come.update(by_event)

    def resumed(self, t_s: float, so_far: Tick) -> None:
        """The run continues at ``t_s``, with these counts so far."""
        self._now(t_s)
        self._count(so_far)
        self._state.refilling = True

    def _count(self, tick: Tick, t_s: float | None = None) -> None:
        state = self._state
        self._limits.tick(tick, t_s)
        state.opened += tick.opened
        state.reopened += tick.reopened
        state.lost += tick.lost
        state.failed += tick.failed
        for number, counts in tick.events.items():
            self._turns_to_come[number] += counts.turns_to_come
            self._gone[number] += counts.gone
            if self._has_turns(number):
                self._without_answer[number] += counts.away
        _add(state.deaths, tick.lost_by_cause)
        _add(state.failures, tick.failures)
        _add(state.errors, {str(status): count for status, count in errors(tick).items()})

    def sample(self, sample: Sample) -> None:
        self._now(sample.t_s)
        self._status(sample.values)
        self._processes(sample.values)
        self._memory(sample.values)
        state = self._state
        state.server_cpu_share = self._server_cpu.read(
            sample.t_s, sample.values.get(metrics.SERVER_CPU_S)
        )
        state.generator_cpu_share = self._generator_cpu.read(
            sample.t_s, sample.values.get(metrics.GENERATOR_CPU_S)
        )

    def _status(self, values: Mapping[str, float]) -> None:
        state = self._state
        # Our poller holds one active connection, and none that waits.
        state.active = self._since_start(values, metrics.STATUS_ACTIVE, state.active, 1.0)
        state.waiting = self._since_start(values, metrics.STATUS_WAITING, state.waiting, 0.0)
        state.accepts = self._since_start(values, metrics.STATUS_ACCEPTS, state.accepts)
        state.handled = self._since_start(values, metrics.STATUS_HANDLED, state.handled)
        accepts = values.get(metrics.STATUS_ACCEPTS)
        if accepts is not None:
            state.server_restarts += self._accepts is not None and accepts < self._accepts
            self._accepts = accepts

    def _since_start(
        self,
        values: Mapping[str, float],
        metric: str,
        known: int | None,
        before: float | None = None,
    ) -> int | None:
        """The count since our start, which compares with our counts; ``before``: what it was then,
        if that is not its first value. ``known``: the last one, if this sample has none.
        """
        number = values.get(metric)
        if number is None:
            return known
        first = self._first.setdefault(metric, number if before is None else before)
        return max(0, round(number - first))

    def _processes(self, values: Mapping[str, float]) -> None:
        state = self._state
        processes = values.get(metrics.SERVER_PROCESSES)
        if processes is not None:
            state.server_processes = round(processes)
        state.server_ended = max(state.server_ended, round(values.get(metrics.SERVER_ENDED, 0.0)))

    def _memory(self, values: Mapping[str, float]) -> None:
        state = self._state
        state.server_bytes = _last_read("server", values, state.server_bytes)
        state.kernel_bytes = _last_read("kernel", values, state.kernel_bytes)
        state.generator_bytes = _last_read("generator", values, state.generator_bytes)

    def cost(self, so_far: CostSoFar) -> None:
        state = self._state
        state.cost = so_far.cost
        state.cost_at_s = so_far.at_s
        state.cost_unknown = so_far.why_unknown
        self._limits.computed(so_far.limits, so_far.at_s)
        self._tell_limits(state.elapsed_s)
        for finding in self._loss_news.of(so_far.losses, state.elapsed_s):
            self.finding(finding)

    def _tell_limits(self, since_s: float) -> None:
        """Show limits that have become crossed, or are kept again, since that instant among the
        findings.
        """
        at_s = self._state.elapsed_s
        for finding in self._limit_news.of(self._limits.state(), at_s, since_s):
            self.finding(finding)

    def finding(self, finding: Finding, t_s: float | None = None) -> None:
        """``t_s``: its time; None: now."""
        state = self._state
        at_s = state.elapsed_s if t_s is None else t_s
        finding = asked_so_far(finding, list(self._commands.values()), self._plan, at_s)
        self._findings.append(Notice(at_s, state.phase, finding))
        state.findings_seen += 1
        source, _, event = finding.code.rpartition("_")
        if event in ("lost", "ended") and source in _FORGET:
            _FORGET[source](state)
            self._forget_readings()

    def _forget_readings(self) -> None:
        """Of a share that is unknown from now on: it is not told of the readings before."""
        if self._state.server_cpu_share is None:
            self._server_cpu = CpuShare()
        if self._state.generator_cpu_share is None:
            self._generator_cpu = CpuShare()

    def event(self, event: RunEvent) -> None:
        """A command is an event twice: when it begins, then without a status, and when it ends."""
        self._limits.event(event)
        if event.kind == "run":
            self._commands[event.fields.get("number")] = event
        self._events.append(event)
        self._state.events_seen += 1
        self._tell_limits(self._state.elapsed_s)

    def end(self) -> None:
        """The writer has ended."""
        self._state.over = True

    def go_on(self) -> None:
        """A process writes the run: one that was killed may be resumed."""
        self._state.over = PHASES[-1] in self._state.phases_done

    def planned(self, plan: Plan, interrupted_s: float = 0.0) -> None:
        """The plan, once the length of the hold is known; ``interrupted_s`` of it the run was
        interrupted, and held nothing.
        """
        self._plan = plan
        self._interrupted_s = interrupted_s
        self._state.refilling = False

    def state(self) -> LiveState:
        """A copy of the current state."""
        state = self._state
        state.findings = tuple(self._findings)
        state.events = tuple(self._events)
        state.limits = self._limits.state()
        state.away = sum(max(0, turns) for turns in self._turns_to_come.values())
        state.not_back = self._not_back()
        state.hold_left_s = self._hold_left_s()
        self._progress()
        return msgspec.structs.replace(
            state,
            deaths=dict(state.deaths),
            failures=dict(state.failures),
            errors=dict(state.errors),
        )

    def _has_turns(self, number: int) -> bool:
        """Whether an event has its clients come back each in turn. Who stalls is held, and of churn
        some are always on their way.
        """
        planned = self._plan.event_numbered(number)
        return planned is None or planned.do not in ("churn", "stall")

    def _not_back(self) -> int:
        """How many had no answer since an event, though it was their turn."""
        total = 0
        for number, without_answer in self._without_answer.items():
            turns_to_come = max(0, self._turns_to_come[number] - self._gone[number])
            total += max(0, without_answer - turns_to_come)
        return total

    def _now(self, t_s: float) -> None:
        self._state.elapsed_s = max(self._state.elapsed_s, t_s)

    def _progress(self) -> None:
        """Set how far the phase is and when it ends."""
        state = self._state
        phase = self._phase
        state.progress = None
        state.eta_s = None
        if phase is None or state.over:
            return
        if phase.name == "drain":
            state.progress = 1.0 - state.held / max(1, state.opened - state.lost)
            return
        lasts_s = self._lasts_s(phase.name)
        if lasts_s:
            gone_s = state.elapsed_s - phase.start_s
            state.progress = self._share(phase.name, gone_s, lasts_s)
            state.eta_s = max(0.0, lasts_s - gone_s)
        if phase.name == "ramp" and not self._plan.plateaus:
            # By connections, not by the clock, so that a late ramp shows.
            state.progress = min(1.0, state.held / self._plan.connections)
            if state.achieved_per_s:
                to_open = max(0.0, self._plan.connections - state.held)
                state.eta_s = to_open / state.achieved_per_s

    def _share(self, phase: PhaseName, gone_s: float, lasts_s: float) -> float:
        """The share of a phase that is over. An interruption of the hold is no part of it."""
        if phase == "hold":
            gone_s -= self._interrupted_s
            lasts_s -= self._interrupted_s
        if lasts_s <= 0:
            return 1.0
        return min(1.0, max(0.0, gone_s / lasts_s))

    def _hold_left_s(self) -> float:
        """By the plan. Of a run that was killed, as it was then."""
        state = self._state
        if state.phase in ("drain", "residue"):
            return 0.0
        hold_s = self._plan.hold_s
        if hold_s is None:
            return math.inf
        gone_s = 0.0 if self._phase is None else state.elapsed_s - self._phase.start_s
        if state.phase == "hold":
            return max(0.0, hold_s - gone_s)
        if state.phase == "ramp":
            return hold_s + max(0.0, self._ramp.end_s - gone_s)
        return hold_s + self._ramp.end_s + max(0.0, self._plan.baseline_s - gone_s)

    def _lasts_s(self, phase: PhaseName) -> float | None:
        """How long the plan has the phase last; None: without an end, or not begun."""
        if phase == "baseline":
            return self._plan.baseline_s
        if phase == "ramp":
            return self._ramp.end_s
        if phase == "hold" and not self._state.refilling:
            return self._plan.hold_s
        if phase == "residue":
            return self._plan.residue_s
        return None

    def _rates(self) -> None:
        state = self._state
        recent = self._recent
        latency = Histogram()
        lateness = Histogram()
        for _, tick in recent:
            latency.merge(tick.latency_us)
            lateness.merge(tick.lateness_us)
        # A tick covers one second, or several if a worker was busy.
        span = max(1.0, recent[-1][0] - recent[0][0] + 1.0)
        state.asked_per_s = None
        state.achieved_per_s = None
        if self._phase is not None and self._phase.name == "ramp":
            opened = sum(tick.opened - tick.reopened for _, tick in recent)
            state.achieved_per_s = opened / span
            # Over the same seconds: on a plateau nothing is due.
            end = recent[-1][0] - self._phase.start_s
            state.asked_per_s = (
                self._ramp.opened_by(end) - self._ramp.opened_by(end - span)
            ) / span
        state.heartbeats_per_s = sum(tick.answered for _, tick in recent) / span
        counts = [tick.protocol.messages for _, tick in recent if tick.protocol is not None]
        if counts and self._plan.protocol != "http":
            state.messages_per_s = sum(counts) / span
        state.latency_p50_ms, state.latency_p99_ms = in_ms(latency, 0.5, 0.99)
        (state.lateness_p99_ms,) = in_ms(lateness, 0.99)
        state.longest_turn_s = max(tick.longest_turn_s for _, tick in recent)


class CpuShare:
    """Mean cores in use over the last seconds."""

    def __init__(self) -> None:
        self.readings: deque[tuple[float, float]] = deque()

    def read(self, t_s: float, cpu_s: float | None) -> float | None:
        """The share at ``t_s``, with a further reading if there is one; None: unknown."""
        if cpu_s is not None:
            if self.readings and cpu_s < self.readings[-1][1]:
                # Another program counts from 0.
                self.readings.clear()
            self.readings.append((t_s, cpu_s))
        while self.readings and self.readings[0][0] < t_s - _RECENT_S:
            self.readings.popleft()
        if len(self.readings) < 2:
            return None
        first_s, first = self.readings[0]
        last_s, last = self.readings[-1]
        if last_s <= first_s:
            return None
        return max(0.0, (last - first) / (last_s - first_s))


def _add(counts: dict[str, int], further: Mapping[str, int]) -> None:
    """Add ``further`` to the ``counts`` of the same names."""
    for name, count in further.items():
        counts[name] = counts.get(name, 0) + count


def _last_read(whose: str, values: Mapping[str, float], before: float | None) -> float | None:
    """The memory of a sample; where it has none, as ``before``."""
    memory_bytes = first_read(metrics.MEMORY[whose], values)
    return before if memory_bytes is None else memory_bytes


class LiveObserver:
    """Observes a soak and folds its records. ``stop`` is called with a reason at a crossed limit,
    if the plan's ``abort`` is set. ``failed`` gets the error of a failed display; then nothing more
    is shown, but limits still end the run.
    """

    #: Whether it shows the cost so far, which is computed for it.
    shows_cost = False

    def __init__(self, plan: Plan) -> None:
        self.fold = LiveFold(plan)
        self.stop: Callable[[str], None] = lambda _because: None
        self.failed: Callable[[BaseException], None] = lambda _error: None
        self._display_failed = False
        #: Those of this session alone, counted even when the display has failed.
        self._limits = LimitsSoFar(plan) if plan.abort else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, at_once: bool) -> None:
        """Show the current state. ``at_once``: do not delay it, because of a new phase or a
        finding.
        """

    def _fold_and_show(self, fold: Callable[[], None], at_once: bool) -> None:
        if self._display_failed:
            return
        try:
            fold()
            self.show(at_once)
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever a terminal, a pipe (rich: SystemExit) or a front end raises
            self._display_failed = True
            self.failed(error)

    def phase(self, phase: Phase) -> None:
        if self._limits is not None:
            self._limits.phase(phase)
        self._fold_and_show(lambda: self.fold.phase(phase), at_once=True)

    def tick(self, t_s: float, tick: Tick) -> None:
        self._stop_if_crossed(lambda limits: limits.tick(tick, t_s))
        self._fold_and_show(lambda: self.fold.tick(t_s, tick), at_once=False)

    def _stop_if_crossed(self, fold: Callable[[LimitsSoFar], None]) -> None:
        if self._limits is None:
            return
        fold(self._limits)
        crossed = self._limits.crossed()
        if crossed is not None:
            self.stop(f"a limit was crossed: {crossed.words}")

    def sample(self, sample: Sample) -> None:
        self._fold_and_show(lambda: self.fold.sample(sample), at_once=False)

    def finding(self, finding: Finding, t_s: float | None = None) -> None:
        self._fold_and_show(lambda: self.fold.finding(finding, t_s), at_once=True)

    def event(self, event: RunEvent) -> None:
        self._stop_if_crossed(lambda limits: limits.event(event))
        self._fold_and_show(lambda: self.fold.event(event), at_once=True)

    def cost(self, so_far: CostSoFar) -> None:
        self._fold_and_show(lambda: self.fold.cost(so_far), at_once=False)

    def planned(self, plan: Plan, interrupted_s: float = 0.0) -> None:
        self.fold.planned(plan, interrupted_s)

    def resumed(self, t_s: float, so_far: Tick) -> None:
        # Earlier losses are judged at the end and do not abort the run.
        self.fold.resumed(t_s, so_far)
