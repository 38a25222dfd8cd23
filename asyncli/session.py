"""One soak, from plan to verdict: preflight, run file, baseline, ramp, hold, drain, residue, close.

Read :meth:`Soak.run` and :meth:`Soak._phases` and you know the program. The same class serves the command line and a notebook
(``await asyncli.soak(plan)``, in asyncli/api.py): it installs no signal handler and touches no terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from asyncli import preflight
from asyncli.collect.clocks import ClockWatch
from asyncli.collect.collector import Collector
from asyncli.collect.listening import nothing_listens, wait_for_listener
from asyncli.collect.locate import ServerFacts
from asyncli.engine.generator import Generator
from asyncli.engine.shard import (
    Failed,
    Measured,
    Shard,
    SilentWorkers,
    Ticked,
    Told,
    Up,
    WorkerBack,
    WorkerLost,
    WorkerReplaced,
    WorkerSilent,
    build_shard,
)  # fmt: skip
from asyncli.engine.spread import Destination, Spread, show
from asyncli.environment import clock_at, look_around, read_environment
from asyncli.errors import HeldError
from asyncli.findings.generator import (
    asyncli_failed,
    drain_unfinished,
    generator_failed,
    generator_silent,
    resumed,
    worker_back,
    worker_lost,
    worker_replaced,
    worker_silent,
)
from asyncli.findings.run import (
    aborted_by_limit,
    cut_off,
    gave_up,
    held_again,
    hold_until,
    nobody_home,
    sample_refused,
    server_changed,
    stopped_by_user,
    waiting,
    watcher_failed,
)
from asyncli.findings.server import address_dropped
from asyncli.plan import Plan, plan_document
from asyncli.preflight.limits import Limits
from asyncli.records import (
    MOST,
    SERVER_CHANGED,
    Check,
    Deaths,
    Finding,
    Gap,
    Phase,
    PhaseName,
    Sample,
    Tick,
)
from asyncli.store.resume import HOLD_ENDS, Interrupted
from asyncli.store.writer import RunWriter
from asyncli.units import format_instant, instant_of

if TYPE_CHECKING:
    from asyncli.agent.collector import AgentCollector

    Observer = Collector | AgentCollector

T = TypeVar("T")

# A ramp may end late by its connects' deadlines and their retries; past this the hold begins with what there is.
_RAMP_SLACK_S = 10.0
# When this many attempts have failed and none has succeeded, nobody is listening, and the ramp need not go on.
_FAILURES_THAT_SETTLE_IT = 100
# Half seconds without a tick. Ticks come once a second, and up to 0.7 s late when a worker is slow.
_SILENT_TURNS = 20
# From the drain on the run ends of itself; and whoever asked for a hold without end stops it there by plan.
_STOPPABLE = ("baseline", "ramp", "hold")
# Closing 100,000 connections takes a few seconds; a drain that takes longer than this per connection is stuck.
_DRAIN_S_PER_CONNECTION = 1 / 2000
# What a session held that was killed, an agent or hosts of a cluster, is let go within 15 s; its run may be resumed before that.
_LET_GO_S = 25.0
# An error may quote all that it could not show.
_LONGEST_WHY = 200


class Watcher(Protocol):
    """Whoever looks on while the soak runs: a screen, a log, a notebook's progress bar."""

    def phase(self, phase: Phase) -> None: ...
    def tick(self, t_s: float, tick: Tick) -> None: ...
    def sample(self, sample: Sample) -> None: ...
    def finding(self, finding: Finding) -> None: ...
    def planned(self, plan: Plan) -> None:
        """The plan, in which something has been reckoned by now: how long a hold by the wall clock is."""

    def resumed(self, so_far: Tick) -> None:
        """The run is gone on with: the counts that it has by now. While it opens again what it held, until it is ``planned``,
        the end of its hold is not known.
        """


class NoWatcher:
    """Nobody looks on."""

    def phase(self, phase: Phase) -> None: ...
    def tick(self, t_s: float, tick: Tick) -> None: ...
    def sample(self, sample: Sample) -> None: ...
    def finding(self, finding: Finding) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def resumed(self, so_far: Tick) -> None: ...


class Guarded:
    """Passes on to ``watcher`` until it raises: from then on it is not called, and ``failed`` has heard why."""

    def __init__(self, watcher: Watcher, failed: Callable[[BaseException], None]) -> None:
        self._watcher, self._failed = watcher, failed

    def _tell(self, tell: Callable[[Watcher], None]) -> None:
        try:
            tell(self._watcher)
        except Exception as error:  # whatever it is, it is the watcher's
            self._watcher = NoWatcher()
            self._failed(error)

    def phase(self, phase: Phase) -> None:
        self._tell(lambda watcher: watcher.phase(phase))

    def tick(self, t_s: float, tick: Tick) -> None:
        self._tell(lambda watcher: watcher.tick(t_s, tick))

    def sample(self, sample: Sample) -> None:
        self._tell(lambda watcher: watcher.sample(sample))

    def finding(self, finding: Finding) -> None:
        self._tell(lambda watcher: watcher.finding(finding))

    def planned(self, plan: Plan) -> None:
        self._tell(lambda watcher: watcher.planned(plan))

    def resumed(self, so_far: Tick) -> None:
        self._tell(lambda watcher: watcher.resumed(so_far))


class Fleet(Protocol):
    """Whoever opens the connections on other hosts: :class:`asyncli.cluster.link.Cluster`."""

    flags: str
    checks: list[Check]

    async def muster(self, plan: Plan, waits: Callable[[str], None]) -> tuple[Limits, Spread]: ...
    def watched_by_agent(self, boot: str | None) -> None: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def leave_out(self) -> tuple[str, ...]: ...
    def environment(self, hosts: list[dict[str, Any]]) -> dict[str, Any]: ...
    def generator(self, shard: Shard) -> FleetGenerator: ...
    async def close(self) -> None: ...


class FleetGenerator(Protocol):
    """A :class:`Generator` whose processes are on other hosts."""

    lead_s: float
    drain_s: float
    pids: list[int]

    async def start(self) -> None: ...
    def begin(self, t0: float) -> None: ...
    def drain(self) -> None: ...
    def messages(self) -> AsyncIterator[Up]: ...
    def document(self) -> list[dict[str, Any]]: ...
    async def close(self) -> None: ...


class Target(msgspec.Struct, frozen=True):
    """What is known of the server beforehand, from the lab that started it: its name for the report and its root process."""

    label: str
    pid: int


class Soak:
    """One run of ``plan`` into the run file ``out``. ``stop()`` drains and reports; cancelling the task ends it at once.

    ``resume``: go on with the run that ``out`` has the beginning of. ``cluster``: the hosts that open the connections; None:
    this one. ``wait_for_server_s``: so long at most it waits for a server on this host to listen. ``findings``: what was found
    of the plan beforehand.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        *,
        watcher: Watcher | None = None,
        target: Target | None = None,
        resume: Interrupted | None = None,
        cluster: Fleet | None = None,
        wait_for_server_s: float = 0.0,
        findings: Iterable[Finding] = (),
    ) -> None:
        self.plan, self.out = plan, out
        self._wait_for_server_s = wait_for_server_s
        self._cluster = cluster
        self._watcher = Guarded(watcher or NoWatcher(), self.watcher_failed)
        self._target = target
        self._resume = resume
        #: The hold in which a resumed run goes on; None where all begins with the baseline.
        self._held_before = resume.hold if resume is not None else None
        self._gap: Gap | None = None
        self._resumed_s = 0.0
        #: What of the hold was not measured (s).
        self._left_out_s = 0.0
        self._begun_wall_s = time.time() if resume is None else resume.started_wall_s
        self._zero = time.monotonic()
        if resume is not None:
            # Only the wall clock counted meanwhile. Where it was set back, time goes on all the same.
            self._zero -= max(time.time() - resume.started_wall_s, resume.last_s + 1.0)
        self._t0 = 0.0
        self._stopped = asyncio.Event()
        self._ticked = asyncio.Event()
        self._failed = False
        self._last = Tick()
        self._opened = 0
        self._failures = self._refused = 0
        self._given_up: set[int] = set()
        self._destinations: tuple[Destination, ...] = ()
        self._silent_turns = 0
        self._silent_workers = SilentWorkers()
        self._early = list(findings)
        self._phase: Phase | None = None
        self._writer: RunWriter | None = None
        self._generator: Generator | FleetGenerator | None = None
        self.started = self._told_odd = False
        #: What the run file lacks, in one line, once the run is over.
        self.trouble: str | None = None

    def stop(self, because: str = "") -> None:
        """Go to the drain from wherever the run is; safe to repeat, callable from a signal handler of the loop.

        ``because``: what else than the user ends it, in words.
        """
        stoppable = not self._stopped.is_set() and (self._phase is None or self._phase.name in _STOPPABLE)
        holds = self._phase is not None and self._phase.name == "hold" and self._gap is None
        planned = holds and self.plan.hold_s is None
        if stoppable and because:
            self._found(aborted_by_limit(*self._where(), because))
        elif stoppable and not planned:
            again = self._held_before is not None and not holds
            self._found(stopped_by_user(*self._where(), self._go_on if again else ""))
        self._stopped.set()

    def watcher_failed(self, error: BaseException) -> None:
        """Whoever looks on has failed, and looks on no more: that is said once, and the soak goes on."""
        why = f"{type(error).__name__}: {str(error)[:_LONGEST_WHY]}"
        self._found(watcher_failed(*self._where(), why, str(self._file)))

    @property
    def recording(self) -> bool:
        """There is a run file to write to: before that there is nothing to drain or to report."""
        return self._writer is not None

    async def run(self) -> Path:
        """Do all of it; the run file's path. Raises :class:`~asyncli.errors.AsyncliError` for what stands in the way."""
        try:
            return await self._run()
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def _run(self) -> Path:
        limits, spread = await self._when_free(self._look_around)
        self._destinations = spread.destinations
        collector = observer(
            self.plan,
            clock=self._clock,
            generator_pids=lambda: self._generator.pids if self._generator else [],
            on_sample=self._sampled,
            on_finding=self._found,
            local=spread.local,
        )
        places = {(one.address, one.port) for one in spread.destinations}
        here = spread.local and self._cluster is None
        try:
            waited_s = await wait_for_listener(places, here, self._wait_for_server_s, self._waits, self._stopped)
            await self._when_free(collector.open)
            if self._cluster is not None:
                _say_who_watches(self._cluster, collector)
            spread = msgspec.structs.replace(spread, local=collector.local)
            checks = await asyncio.to_thread(_examine, self._plan_from_here(), spread, collector, self._cluster)
            if not self.plan.force:
                preflight.refuse(checks)
            self._open_run_file(limits, spread, collector, checks)
            asks = here and self._resume is None and not self.plan.force
            if asks and (nobody := nothing_listens(places, waited_s, "the run did not begin")):
                self.started = True
                self._found(nobody)
                await self._close(completed=True)
                return self.out
            completed = False
            try:
                await self._measure(spread, collector)
                completed = True
            except asyncio.CancelledError:
                self._found(cut_off(*self._where()))
                raise
            finally:
                collector.end()
                if self._writer is not None and collector.agent is not None:
                    self._writer.environment({"agent": collector.agent})
                await self._close(completed)
        finally:
            await collector.close()
        return self.out

    async def _look_around(self) -> tuple[Limits, Spread]:
        return await (look_around(self.plan) if self._cluster is None else self._cluster.muster(self.plan, self._waits))

    async def _when_free(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What ``ask`` gives; of a run that is resumed, once what its killed session still holds is let go."""
        until_s = time.monotonic() + (0.0 if self._resume is None else _LET_GO_S)
        told = False
        while True:
            try:
                return await ask()
            except HeldError as error:
                if time.monotonic() >= until_s or self._stopped.is_set():
                    raise
                if not told:
                    whom = "what a session that was killed may still hold"
                    self._waits(f"waits, for {_LET_GO_S:.0f} s at most, for {whom}: {error}")
                    told = True
                await _for_at_most(1.0, self._stopped)

    def _waits(self, what: str) -> None:
        """Said before there is a run file."""
        self._watcher.finding(waiting(what))

    async def _measure(self, spread: Spread, collector: Observer) -> None:
        """Start the generator and those who watch it, go through the phases, and end them all, whatever happens."""
        shard = build_shard(self.plan, spread)
        if self._held_before is not None:
            shard = msgspec.structs.replace(shard, again=True, ramp=shard.ramp.without_rests())
        generator = self._generator = Generator(shard) if self._cluster is None else self._cluster.generator(shard)
        tasks: list[asyncio.Task[None]] = []
        try:
            await generator.start()
            self._record_fleet()
            tasks.append(asyncio.create_task(self._listen(generator), name="the reader of ticks"))
            if self._resume is None:
                self._zero = time.monotonic()
                if self._writer is not None:
                    self._writer.environment({"clock": clock_at(self._zero)})
            self.started = True
            if self._held_before is None:
                self._close_gap()
                self._enter("baseline")
            tasks.append(asyncio.create_task(collector.run(), name="the collector"))
            clocks = ClockWatch(self._clock, on_sample=self._sampled, on_finding=self._found)
            tasks.append(asyncio.create_task(clocks.run(), name="the watcher of clocks"))
            for task in tasks:
                task.add_done_callback(self._ended)
            await self._phases(shard, collector, generator)
        finally:
            for task in tasks:
                task.cancel()
            await generator.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _phases(self, shard: Shard, collector: Observer, generator: Generator | FleetGenerator) -> None:
        """Baseline (entered already), ramp, hold, drain, residue; of a run that is resumed in its hold, from there on."""
        plan = self.plan
        await collector.sample_now()
        if self._held_before is not None:
            await self._fill_again(shard, generator, self._held_before)
            if self._gap is not None:
                # Nothing was measured: the run is as it was, and can be resumed once more.
                return
        else:
            await self._wait(plan.baseline_s)
            await collector.sample_now()

            self._t0 = time.monotonic() + generator.lead_s
            self._enter("ramp", at_s=self._t0 - self._zero)
            generator.begin(self._t0)
            if self._stopped.is_set():
                # Stopped in the baseline, it opens nothing, however long the next reading takes.
                generator.drain()
            await self._wait_for_ramp(shard)
            if self._nobody_home():
                self._found(gave_up(*self._where(), self._failures))
            elif not self._failed:
                self._reckon_hold()
                self._enter("hold")
        if not self._nobody_home():
            await self._wait(self._hold_left_s())
        await collector.sample_now()
        if self._failed:
            # There is nothing to drain, and a run that has no drain can be resumed.
            return

        self._enter("drain")
        generator.drain()
        await self._wait_for_drain(shard, generator.drain_s)

        self._enter("residue")
        await collector.sample_now()
        if not self._nobody_home():
            await self._wait(plan.residue_s, even_if_stopped=True)
        await collector.sample_now()
        self._leave()

    def _reckon_hold(self) -> None:
        """A hold that ends by the wall clock: how long that is from now. Where that clock is stepped later, it stays so."""
        if (until := self.plan.hold_until) is None:
            return
        now_s = time.time()
        # Of a time of day the one is meant that was next when this was asked for, not that of tomorrow after a long ramp.
        hold_s = instant_of(until, min(self._begun_wall_s, now_s)) - now_s
        self.plan = plan = msgspec.structs.replace(self.plan, hold_s=max(0.0, hold_s))
        if self._writer is not None:
            self._writer.plan(plan_document(plan))
            self._writer.environment({HOLD_ENDS: now_s + max(0.0, hold_s)})
        self._watcher.planned(plan)
        self._found(hold_until(until, hold_s, format_instant(now_s + hold_s)))

    async def _fill_again(self, shard: Shard, generator: Generator | FleetGenerator, hold: Phase) -> None:
        """Hold again what the run held when it was interrupted; until then its gap lasts."""
        if self.plan.hold_until is not None:
            # That end stands, however long this takes.
            self._tell_end(hold)
        self._report_phase(Phase("hold", hold.start_s))
        self._t0 = time.monotonic() + generator.lead_s
        generator.begin(self._t0)
        await self._wait_for_ramp(shard)
        if self._nobody_home():
            self._fail(nobody_home(self._failures, self._go_on))
        if self._failed or self._stopped.is_set():
            return
        if self._gap is not None:
            self._found(held_again(self._last.held, self._resumed_s - self._gap.start_s, self._clock() - self._resumed_s))
        self._close_gap()
        self._tell_end(hold)
        if self._resume is not None and self.plan.hold_until is None:
            self._left_out_s = self._clock() - hold.start_s - self._resume.held_s

    def _tell_end(self, hold: Phase) -> None:
        """Whoever looks on reckons the end from the hold's begin."""
        left_s = self._hold_left_s()
        hold_s = None if left_s is None else self._clock() + left_s - hold.start_s
        self._watcher.planned(msgspec.structs.replace(self.plan, hold_s=hold_s))

    def _hold_left_s(self) -> float | None:
        """How long the hold is still to last; None: until it is stopped."""
        return self.plan.hold_s if self._resume is None else self._resume.left_s(time.time())

    def _plan_from_here(self) -> Plan:
        """The plan by which limits are to be judged: of a run that is resumed they bear what is left of its hold."""
        left_s = None if self._resume is None else self._resume.left_s(time.time())
        if self._resume is None or left_s is None:
            return self.plan
        if self.plan.hold_until is not None:
            # Until that instant all that comes before it takes its part.
            left_s = max(0.0, left_s - self.plan.schedule.end_s)
        return msgspec.structs.replace(self.plan, hold_s=left_s, hold_until=None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours is over: by itself, it is a bug that must neither hide nor let the run go on without numbers."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(asyncli_failed(task.get_name(), f"{type(error).__name__}: {error}", self._resume_with))

    # -- before the first connect

    def _open_run_file(self, limits: Limits, spread: Spread, collector: Observer, checks: list[Check]) -> None:
        if self._resume is not None:
            self._open_again(self._resume, collector)
        else:
            self._open_new(limits, spread, collector)
        assert self._writer is not None
        self._writer.checks(checks)
        of_the_fleet = [] if self._cluster is None else self._cluster.findings
        for finding in [*self._early, *of_the_fleet, *preflight.checks_to_findings(checks)]:
            self._found(finding)
        self._early.clear()

    def _open_new(self, limits: Limits, spread: Spread, collector: Observer) -> None:
        wall = datetime.datetime.now(datetime.UTC)
        environment = read_environment(limits, spread)
        environment["server"] = collector.server.record(self._target.label if self._target else None)
        if collector.agent is not None:
            environment["agent"] = collector.agent
        environment["wall_start"] = wall.isoformat()
        self._writer = RunWriter.create(
            self.out,
            run_id=uuid.uuid4().hex[:12],
            started_wall_s=wall.timestamp(),
            plan_document=plan_document(self.plan),
            environment=environment,
        )

    def _record_fleet(self) -> None:
        """Its hosts, their shares and clocks, which are known once it stands."""
        if self._cluster is not None and self._writer is not None and not isinstance(self._generator, Generator | None):
            self._writer.environment(self._cluster.environment(self._generator.document()))

    def _open_again(self, before: Interrupted, collector: Observer) -> None:
        """Go on in the file of an interrupted run: what it held is lost, by our doing, and the gap in it begins."""
        resumed = [*before.environment.get("resumed", ()), datetime.datetime.now(datetime.UTC).isoformat()]
        writer = self._writer = RunWriter.resume(
            self.out, before.environment, recorded=before.recorded, anew=self._held_before is None
        )
        writer.environment({"resumed": resumed})
        open_gap = before.gaps[-1] if before.gaps and before.gaps[-1].end_s is None else None
        self._gap = open_gap or Gap(before.last_s)
        writer.gap(self._gap)
        so_far = Tick()
        so_far.merge_counts(before.so_far)
        if before.held:
            lost = _lost_with_us(before.held, before.awaiting)
            writer.tick(before.last_s + 0.001, lost)
            so_far.merge_counts(lost)
        self._watcher.resumed(so_far)
        self._resumed_s = self._clock()
        self._found(_resumed(before, self._resumed_s))
        self._meet_server(before, collector.server, writer)

    def _meet_server(self, before: Interrupted, server: ServerFacts, writer: RunWriter) -> None:
        """Describe the server of now, of a run that is resumed; where it is another one, its numbers are joined to no others."""
        known = before.environment.get("server")
        if not isinstance(known, dict) or (server.exe is None and server.version is None):
            return
        differs = server.differences(known)
        writer.environment({"server": server.record(None if differs else known.get("label"))})
        if not differs:
            return
        writer.environment({SERVER_CHANGED: before.last_s})
        self._found(server_changed(differs, self._held_before is not None))

    def _close_gap(self) -> None:
        if self._gap is not None and self._writer is not None:
            self._writer.gap(Gap(self._gap.start_s, self._clock()))
            self._gap = None

    # -- waiting

    async def _wait(self, seconds: float | None, even_if_stopped: bool = False) -> None:
        """Until ``seconds`` have passed (None: for ever), or the user or the generator's end says stop."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._failed and (even_if_stopped or not self._stopped.is_set()):
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            if left <= 0:
                return
            if even_if_stopped:
                await asyncio.sleep(left)
            else:
                await _for_at_most(left, self._stopped)
            self._mind_silence()

    async def _next_tick(self) -> None:
        self._ticked.clear()
        await _for_at_most(0.5, self._ticked)
        self._mind_silence()

    def _mind_silence(self) -> None:
        """Called every half second of a wait: a generator that says nothing must not pass for one that holds everything.

        Counted in turns of our own loop, so that a loop that stood still does not blame the generator.
        """
        self._silent_turns += 1
        if self._t0 and self._silent_turns > _SILENT_TURNS:
            self._fail(generator_silent(_SILENT_TURNS / 2, False, self._resume_with))

    def _fail(self, found: Finding) -> None:
        """The generator or the server cannot be relied on any more: say so once, and come to an end."""
        if not self._failed:
            self._failed = True
            self._found(found)
            self._ticked.set()

    @property
    def _resume_with(self) -> str:
        """The command that goes on with the run; "" from its drain on."""
        return "" if self._phase is not None and self._phase.name not in _STOPPABLE else self._go_on

    @property
    def _go_on(self) -> str:
        return f"asyncli soak --resume {self._file}{'' if self._cluster is None else f' {self._cluster.flags}'}"

    @property
    def _file(self) -> Path:
        """Where the run file is now."""
        return self.out if self._writer is None else self._writer.path

    async def _wait_for_ramp(self, shard: Shard) -> None:
        latest = self._t0 + shard.ramp.end_s * 2 + shard.attempt_s + _RAMP_SLACK_S
        rest_over = self._t0 + shard.ramp.end_s
        while not self._stopped.is_set() and not self._failed and time.monotonic() < latest and not self._nobody_home():
            if self._last.ramped >= shard.workers and time.monotonic() >= rest_over:
                return
            await self._next_tick()

    async def _wait_for_drain(self, shard: Shard, generators_s: float) -> None:
        plan = self.plan
        patience = max(plan.timeout_s, plan.connect_timeout_s, generators_s) + plan.connections * _DRAIN_S_PER_CONNECTION + 10.0
        latest = time.monotonic() + patience
        while not self._failed and self._last.drained < shard.workers and time.monotonic() < latest:
            await self._next_tick()
        if self._last.drained < shard.workers:
            silent = [{"worker": one.worker, "pid": one.pid} for one in self._silent_workers]
            self._fail(drain_unfinished(patience, silent, self._resume_with))

    def _nobody_home(self) -> bool:
        """Nothing has connected, and enough attempts have failed to say that nothing will."""
        if self._opened:
            return False
        # So many refusals as two from each address: a refusal is an answer, where a timeout may be a packet lost. But one address
        # may have given them all, while another has not been tried yet or takes its time.
        ramp, addresses = self.plan.schedule, len(self._destinations)
        each_s = ramp.due_s((min(addresses, ramp.connections) - 1) // ramp.batch)
        refused = self._refused >= 2 * addresses > 0 and self._last.second >= each_s and not self._last.connecting
        return refused or self._failures >= min(_FAILURES_THAT_SETTLE_IT, self.plan.connections)

    # -- what comes in

    async def _listen(self, generator: Generator | FleetGenerator) -> None:
        async for message in generator.messages():
            self._hear(message)

    def _hear(self, message: Up) -> None:
        match message:
            case Ticked(tick=tick):
                self._last = tick
                self._silent_workers.ticked()
                self._silent_turns = 0
                self._opened += tick.opened
                self._failures += sum(tick.failures.values())
                self._refused += tick.failures.get("refused", 0)
                t_s = self._t0 + tick.second - self._zero
                if self._writer is not None:
                    self._writer.tick(t_s, tick)
                    for finding in self._writer.news():
                        self._watcher.finding(finding)
                self._watcher.tick(t_s, tick)
                for destination in tick.dropped:
                    self._dropped(destination)
                self._ticked.set()
            case WorkerSilent(pid=pid, held=held):
                self._silent_workers.heard(message)
                self._found(worker_silent(message.worker, pid, message.host, held, message.silent_s))
            case WorkerBack():
                self._silent_workers.heard(message)
                self._found(worker_back(message.worker, message.pid, message.host, message.silent_s))
            case WorkerLost():
                self._silent_workers.heard(message)
                self._found(worker_lost(message.worker, message.pid, message.host, message.held, message.how))
            case WorkerReplaced(worker=worker, pid=pid, host=host):
                self._found(worker_replaced(worker, pid, host, self.plan.reopen if self._t0 else None))
            case Measured(values=values):
                self._sample(Sample(self._clock(), values))
            case Told(finding=finding):
                self._found(finding)
                # One may have come.
                self._record_fleet()
            case Failed():
                last = self._last
                held, awaiting = last.held + self._silent_workers.held, last.awaiting + self._silent_workers.awaiting
                if held:
                    # Nobody is left to count them.
                    self._hear(Ticked(_lost_with_us(held, awaiting, last.second + 1)))
                self._fail(generator_failed(message.why, self._resume_with))

    def _dropped(self, number: int) -> None:
        """The engine gave an address up."""
        if number in self._given_up:
            return
        self._given_up.add(number)
        self._found(address_dropped(show(self._destinations[number])))

    def _sampled(self, sample: Sample) -> None:
        if self._cluster is not None:
            left_out = self._cluster.leave_out
            sample = Sample(sample.t_s, {name: value for name, value in sample.values.items() if not name.startswith(left_out)})
        self._sample(sample)

    def _sample(self, sample: Sample) -> None:
        if self._resume is not None:
            for name, before in self._resume.counted.items():
                if name in sample.values:
                    sample.values[name] += before
        if odd := [name for name, value in sample.values.items() if not 0 <= value <= MOST]:
            self._sample_refused(odd[0], sample.values[odd[0]])
            sample = Sample(sample.t_s, {name: value for name, value in sample.values.items() if name not in odd})
        if self._writer is not None:
            self._writer.sample(sample)
        self._watcher.sample(sample)

    def _sample_refused(self, name: str, value: float) -> None:
        """A number that nothing could be done with; said of the first, whoever sends them, since there may be many."""
        if not self._told_odd:
            self._told_odd = True
            self._found(sample_refused(name, value))

    def _found(self, finding: Finding) -> None:
        if self._writer is None:
            self._early.append(finding)
            return
        self._writer.finding(self._clock(), finding)
        self._watcher.finding(finding)

    # -- phases and the end

    def _clock(self) -> float:
        return time.monotonic() - self._zero

    def _where(self) -> tuple[str | None, float, float | None]:
        """The instant of now, for what was done then: the phase ("resume": of a run that opens again what it held), how long it
        has lasted (s), and how long it is to last.
        """
        if self._held_before is not None and (self._phase is None or self._gap is not None):
            return "resume", 0.0, None
        if self._phase is None:
            return None, 0.0, None
        since = max(0.0, self._clock() - self._phase.start_s - (self._left_out_s if self._phase.name == "hold" else 0.0))
        lasts = {"baseline": self.plan.baseline_s, "ramp": self.plan.schedule.end_s, "hold": self.plan.hold_s}
        return self._phase.name, since, lasts.get(self._phase.name)

    def _enter(self, name: PhaseName, at_s: float | None = None) -> None:
        start = self._clock() if at_s is None else at_s
        if self._phase is not None:
            # A ramp begins a moment in the future; stopped before it came, it has no length, and nothing begins before it.
            start = max(start, self._phase.start_s)
        self._leave(start)
        self._report_phase(Phase(name, start))

    def _leave(self, at_s: float | None = None) -> None:
        if self._phase is not None:
            self._report_phase(msgspec.structs.replace(self._phase, end_s=self._clock() if at_s is None else at_s))

    def _report_phase(self, phase: Phase) -> None:
        self._phase = phase
        if self._writer is not None:
            self._writer.phase(phase)
        self._watcher.phase(phase)

    async def _close(self, completed: bool) -> None:
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close, completed and not self._failed and self._gap is None)
            # It may have been moved, or deleted and written anew.
            self.out, self.trouble = self._writer.path, self._writer.trouble


async def _for_at_most(seconds: float, event: asyncio.Event) -> None:
    # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the event, so two quick Ctrl-C
    # would count as one.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _lost_with_us(held: int, awaiting: int, second: int = 0) -> Tick:
    """What was held by the last tick of processes of ours that ended: their loss, not the server's."""
    return Tick(second=second, beats_failed=awaiting, deaths={"generator_lost": Deaths(count=held)})


def _resumed(before: Interrupted, now_s: float) -> Finding:
    """What a run that goes on says of its interruption."""
    phase = before.phases[-1].name if before.phases else None
    after_s = round(now_s - before.last_s)
    return resumed(before.last_s, after_s, phase, before.held, before.hold is not None, before.ended_by)


def free_name(what: str = "asyncli", suffix: str = ".db") -> Path:
    """``asyncli-<time>.db`` in the current folder, numbered on where two runs begin in one second."""
    stem = f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = Path(f"{stem}{suffix}"), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def observer(
    plan: Plan,
    *,
    clock: Callable[[], float],
    generator_pids: Callable[[], Sequence[int]],
    on_sample: Callable[[Sample], None],
    on_finding: Callable[[Finding], None],
    local: bool,
) -> Observer:
    """Who samples: a collector, or with an agent on the server's host that and one for what is here."""
    if plan.agent is None:
        return Collector(
            plan, clock=clock, generator_pids=generator_pids, on_sample=on_sample, on_finding=on_finding, local=local
        )
    from asyncli.agent.collector import AgentCollector

    return AgentCollector(plan, clock=clock, generator_pids=generator_pids, on_sample=on_sample, on_finding=on_finding)


async def look_at(
    plan: Plan, cluster: Fleet | None = None, waits: Callable[[str], None] = lambda _: None
) -> tuple[Spread, list[Check], list[Finding]]:
    """What ``asyncli check`` shows: how the plan would be spread, every limit against it, and what was odd on the way.

    ``waits`` hears what it waits for. Sends nothing to the target.
    """
    findings: list[Finding] = []
    if cluster is None:
        _, spread = await look_around(plan)
    else:
        try:
            _, spread = await cluster.muster(plan, waits)
        finally:
            await cluster.close()
    collector = observer(
        plan,
        clock=time.monotonic,
        generator_pids=list,
        on_sample=lambda _: None,
        on_finding=findings.append,
        local=spread.local,
    )
    try:
        # Another session may hold an agent meanwhile: looking takes nothing from it.
        await collector.open(hold=False)
        if cluster is not None:
            _say_who_watches(cluster, collector)
            findings += cluster.findings
        spread = msgspec.structs.replace(spread, local=collector.local)
        return spread, await asyncio.to_thread(_examine, plan, spread, collector, cluster), findings
    finally:
        await collector.close()


def _say_who_watches(fleet: Fleet, collector: Observer) -> None:
    if not isinstance(collector, Collector):
        fleet.watched_by_agent(collector.boot)


def _examine(plan: Plan, spread: Spread, collector: Observer, fleet: Fleet | None = None) -> list[Check]:
    hosts = None if fleet is None else fleet.checks
    if not isinstance(collector, Collector):
        return collector.examine(plan, spread, hosts=hosts)
    server = collector.server
    return preflight.examine(
        plan, spread, server_pid=server.pid, server_exe=server.exe, server_config=server.config_path, hosts=hosts
    )
