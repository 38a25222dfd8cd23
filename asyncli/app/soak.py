"""One soak: preflight, run file, baseline, ramp, hold, drain, residue, close.

Start at :meth:`Soak.run`; :meth:`asyncli.app.phases.Phases.run` has the phases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from asyncli import preflight
from asyncli.analysis.handshakes import certificate_ends, planned_s
from asyncli.app.baseline_runs import BaselineRuns, read_baseline_runs
from asyncli.app.check import Examined, examine, examine_again, make_sampler, plan_spread
from asyncli.app.cost_meter import CostMeter, is_worth_showing
from asyncli.app.forced_collections import ForcedCollections
from asyncli.app.hold_events import HoldEvents
from asyncli.app.incoming import Incoming
from asyncli.app.phases import Phases
from asyncli.app.progress import STOPPABLE, Progress
from asyncli.app.recorder import Observer, Recorder
from asyncli.app.resume import Resumption, retry_while_leased
from asyncli.collect.clocks import ClockWatch
from asyncli.collect.listening import nothing_listens, wait_for_listener
from asyncli.collect.sampler import SamplerOptions
from asyncli.engine.generator import Generator
from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.spread import Spread
from asyncli.environment import clock_at, read_environment
from asyncli.findings.run import (
    BY_SIGNAL,
    aborted_by_limit,
    baseline_runs_left_out,
    cut_off,
    decided_early,
    stopped_by_user,
    waiting,
)
from asyncli.model.data_file import described, read_data
from asyncli.model.errors import StoreError
from asyncli.model.plan import Plan
from asyncli.model.records import Finding, Sample
from asyncli.model.template import Data
from asyncli.preflight.host_limits import Limits
from asyncli.report.cost_so_far import CostSoFar, decided
from asyncli.report.relative_limits import BASELINE_RUNS
from asyncli.store.private_file import delete_private
from asyncli.store.resume import Interrupted
from asyncli.store.writer import RunWriter

if TYPE_CHECKING:
    from asyncli.app.check import Sampler
    from asyncli.cluster.generator import ClusterGenerator
    from asyncli.cluster.link import Cluster
    from asyncli.engine.tls_facts import TlsFacts
    from asyncli.report.livestate import LiveObserver

T = TypeVar("T")


class KnownServer(msgspec.Struct, frozen=True):
    """A lab server: its name for the report and its root process."""

    label: str
    pid: int


# So that a decision comes soon. A look takes half a second of CPU time or more.
_MOST_OF_A_CORE_TO_DECIDE = 0.1


class Soak:
    """One run of ``plan`` into the run file ``out``.

    ``stop()`` drains and reports; cancelling the task ends it at once. ``guard``: a second
    observer. ``resume``: the run in ``out`` to resume. ``cluster``: the hosts that open the
    connections. ``wait_for_server_s``: how long to wait for a server on this host to listen.
    ``findings``: earlier findings about the plan. ``tls``: the server's TLS, if probed before.
    ``helper_pids``: further processes of asyncli, which are not counted as other programs.
    ``collect_by``: a command that asks the server for a collection of its heap, "" for what the
    plan says.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        *,
        observer: Observer | None = None,
        guard: Observer | None = None,
        target: KnownServer | None = None,
        resume: Interrupted | None = None,
        cluster: Cluster | None = None,
        wait_for_server_s: float = 0.0,
        findings: Iterable[Finding] = (),
        tls: TlsFacts | None = None,
        collect_by: str = "",
        helper_pids: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.out = out
        #: The file that has the whole run: another one where the disk of ``out`` is full.
        self.recorded = out
        #: Measuring has started, or nothing listens.
        self.started = False
        #: What the run file lacks, in one line; None: nothing.
        self.trouble: str | None = None
        self._target = target
        self._cluster = cluster
        self._wait_for_server_s = wait_for_server_s
        self._findings = list(findings)
        self._tls = tls
        self._collect_by = collect_by
        self._helper_pids = helper_pids
        self._progress = Progress(plan, out)
        observers = [observer for observer in (observer, guard) if observer is not None]
        self._recorder = Recorder(observers, self._progress)
        self._started_wall_s = time.time()
        self._resumption: Resumption | None = None
        if resume is not None:
            self._started_wall_s = resume.run.started_wall_s
            self._resumption = Resumption(resume)
            self._resumption.set_clock(self._progress)
        self._generator: Any = None
        self._events: HoldEvents | None = None
        self._data: Data | None = None
        self._baseline = BaselineRuns()
        self._meter = CostMeter(out)
        if plan.baseline_runs:
            self._meter = CostMeter(out, _MOST_OF_A_CORE_TO_DECIDE)
        self._shows_cost = bool(plan.baseline_runs) or (
            is_worth_showing(plan) and any(observer.shows_cost for observer in observers)
        )

    @classmethod
    def shown_by(cls, observer: LiveObserver, plan: Plan, out: Path, **options: Any) -> Self:
        """A soak that ``observer`` shows, and stops at a limit that can no longer be met."""
        from asyncli.report.live_thresholds import too_short

        findings = [] if options.get("resume") else too_short(plan)
        soak = cls(plan, out, observer=observer, findings=findings, **options)
        observer.stop = soak.stop
        observer.failed = soak.observer_failed
        return soak

    # -- the story of a run

    async def run(self) -> Path:
        """Run the soak and return the run file's path.

        Raises :class:`~asyncli.model.errors.AsyncliError` if it cannot start.
        """
        try:
            if self._shows_cost:
                self._meter.start()
            self._data = await asyncio.to_thread(read_data, self._progress.plan)
            if self._resumption is None:
                self._baseline = await asyncio.to_thread(read_baseline_runs, self._progress.plan)
            if self._resumption is not None:
                self._resumption.require_same(self._data)
            limits, spread = await self._retry(self._plan_spread)
            sampler = self._make_sampler(spread)
            try:
                await self._record_run(limits, spread, sampler)
            finally:
                await sampler.close()
        finally:
            self._meter.close()
            if self._cluster is not None:
                await self._cluster.close()
        return self.recorded

    async def _record_run(self, limits: Limits, spread: Spread, sampler: Sampler) -> None:
        """Check the plan, open the run file, measure, and close the file."""
        plan = self._progress.plan
        places = {(destination.address, destination.port) for destination in spread.destinations}
        is_local = spread.local and self._cluster is None
        waited_s = await wait_for_listener(
            places, is_local, self._wait_for_server_s, self._show_wait, self._progress.stopped
        )
        await self._retry(sampler.open)
        remaining_plan = self._remaining_plan()
        examined = await self._examine(remaining_plan, spread, sampler)
        if not plan.force:
            preflight.refuse(examined.checks)
        writer = self._open_run_file(limits, examined, sampler)
        self._record_preflight(writer, remaining_plan, examined)
        is_complete = False
        try:
            missing = None
            if is_local and self._resumption is None and not plan.force:
                missing = nothing_listens(places, waited_s, "the run did not start")
            if missing is None:
                await self._measure(examined, sampler)
            else:
                self.started = True
                self._recorder.finding(missing)
            is_complete = not self._progress.failed and not self._progress.reopening
        except asyncio.CancelledError:
            self._recorder.finding(cut_off(*self._progress.where()))
            raise
        finally:
            sampler.end()
            await self._close_run_file(writer, sampler, is_complete=is_complete)
        if writer.lost:
            raise StoreError(
                f"{self.out}: was moved, deleted or emptied while the run wrote to it; "
                "leave it where it is until the end"
            )

    async def _measure(self, examined: Examined, sampler: Sampler) -> None:
        """Start the generator and the samplers, run the phases, and stop everything."""
        progress = self._progress
        shard = self._build_shard(examined.spread)
        generator = self._make_generator(shard)
        self._generator = generator
        incoming = Incoming(
            progress,
            self._recorder,
            examined.spread.destinations,
            resume=self._command,
            on_host_finding=self._record_cluster,
            on_sample=self._record_sample,
        )
        collections = ForcedCollections(
            progress.plan,
            self._collect_by,
            examined.server,
            progress,
            read_all=sampler.sample_now,
            by_agent=sampler.collect_by_agent,
            on_sample=self._record_own_sample,
            on_finding=self._recorder.finding,
        )
        self._events = HoldEvents(
            progress,
            self._recorder,
            generator,
            read_all=partial(sampler.sample_now, is_spent=False),
        )
        phases = Phases(
            progress,
            self._recorder,
            incoming,
            shard=shard,
            generator=generator,
            sampler=sampler,
            resumption=self._resumption,
            started_wall_s=self._started_wall_s,
            before_connects=partial(self._settle_server, examined, sampler),
            collections=collections,
            events=self._events,
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            await generator.start()
            if self._shows_cost:
                # Its memory must not rise while that of others is measured.
                await asyncio.to_thread(self._meter.wait)
            self._record_cluster()
            reading = incoming.listen(generator.messages())
            tasks.append(_begin(reading, "the reader of ticks", incoming))
            if self._resumption is None:
                self._start_clock()
            self.started = True
            if not progress.reopening:
                if self._resumption is not None:
                    self._resumption.close_gap(progress, self._recorder)
                phases.enter("baseline")
            tasks.append(_begin(sampler.run(), "the collector", incoming))
            clocks = ClockWatch(
                progress.now_s, on_sample=self._record_own_sample, on_finding=self._recorder.finding
            )
            tasks.append(_begin(clocks.run(), "the watcher of clocks", incoming))
            await phases.run()
        finally:
            for task in tasks:
                task.cancel()
            await generator.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- what others may ask of a running soak

    def stop(self, because: str = "", *, by: str = BY_SIGNAL) -> None:
        """Start the drain; safe to repeat, callable from a signal handler of the loop.

        ``because``: the crossed limit; "": the user stops it, in the way ``by``.
        """
        progress = self._progress
        is_stoppable = progress.phase is None or progress.is_in(*STOPPABLE)
        if is_stoppable and not progress.stopped.is_set():
            self._record_stop(because, by)
        progress.stopped.set()

    def _record_stop(self, because: str, by: str) -> None:
        progress = self._progress
        where = progress.where()
        if because:
            self._recorder.finding(aborted_by_limit(*where, because))
        elif progress.reopening:
            self._recorder.finding(stopped_by_user(*where, self._command, by))
        elif not progress.is_in("hold") or progress.plan.hold_s is not None:
            # Stopping a hold without end is no finding.
            self._recorder.finding(stopped_by_user(*where, "", by))

    def observer_failed(self, error: BaseException) -> None:
        """Record that the observer failed; the run continues without it."""
        self._recorder.observer_failed(error)

    @property
    def recording(self) -> bool:
        """Whether there is a run file; before that there is nothing to drain or report."""
        return self._recorder.writer is not None

    # -- the preflight

    async def _plan_spread(self) -> tuple[Limits, Spread]:
        return await plan_spread(self._progress.plan, self._cluster, self._show_wait)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of ``ask``; a resumed run waits for the leases of its killed session."""
        if self._resumption is None:
            return await ask()
        return await retry_while_leased(ask, self._show_wait, self._progress)

    def _show_wait(self, what: str) -> None:
        """Show what the start waits for."""
        self._recorder.show_finding(waiting(what))

    def _remaining_plan(self) -> Plan:
        """The plan; of a resumed run what remains of it."""
        if self._resumption is None:
            return self._progress.plan
        return self._resumption.remaining_plan(self._progress.plan)

    async def _examine(self, plan: Plan, spread: Spread, sampler: Sampler) -> Examined:
        # A forced run whose TLS is known needs no connection to learn it.
        connects = self._tls is None or not plan.force
        return await examine(plan, spread, sampler, self._cluster, self._data, connects=connects)

    def _record_preflight(self, writer: RunWriter, plan: Plan, examined: Examined) -> None:
        writer.checks(examined.checks)
        of_checks = preflight.checks_to_findings(examined.checks)
        if self._baseline.left_out:
            used = len(self._baseline.runs)
            self._recorder.finding(baseline_runs_left_out(self._baseline.left_out, used))
        for finding in [*self._findings, *examined.findings, *of_checks]:
            self._recorder.finding(finding)
        if examined.tls is not None and examined.tls.certificate is not None:
            # This is not recorded: a report finds it in the environment.
            certificate = msgspec.to_builtins(examined.tls.certificate)
            for finding in certificate_ends(certificate, planned_s(plan, time.time())):
                self._recorder.show_finding(finding)

    async def _settle_server(self, examined: Examined, sampler: Sampler) -> None:
        """Record the server that the connections will have: where a process that was ``examined``
        has ended, the others are the server, with their configuration and its limits.
        """
        writer = self._recorder.writer
        assert writer is not None
        if await sampler.settle_server():
            plan = self._progress.plan
            after = await examine_again(examined, plan, sampler, self._cluster)
            label = None if self._target is None else self._target.label
            writer.environment({"server": after.server.record(label)})
            writer.checks(after.checks)
            changed = [check for check in after.checks if check not in examined.checks]
            for finding in preflight.checks_to_findings(changed):
                self._recorder.finding(finding)
        several = sampler.several_servers()
        if several is not None:
            self._recorder.finding(several)

    # -- the run file

    def _open_run_file(self, limits: Limits, examined: Examined, sampler: Sampler) -> RunWriter:
        """Create the run file, or continue that of the run to resume."""
        if self._resumption is None:
            self._recorder.create(self._environment(limits, examined, sampler))
        else:
            self._resumption.open(self.out, examined.server, self._progress, self._recorder)
        assert self._recorder.writer is not None
        return self._recorder.writer

    def _environment(self, limits: Limits, examined: Examined, sampler: Sampler) -> dict[str, Any]:
        environment = read_environment(limits, examined.spread)
        label = None if self._target is None else self._target.label
        environment["server"] = examined.server.record(label)
        if sampler.agent is not None:
            environment["agent"] = sampler.agent
        tls = examined.tls or self._tls
        if tls is not None:
            environment["tls"] = msgspec.to_builtins(tls)
        if self._data is not None:
            environment["data"] = described(self._data)
        if self._baseline.runs:
            environment[BASELINE_RUNS] = msgspec.to_builtins(self._baseline.runs)
        return environment

    async def _close_run_file(
        self, writer: RunWriter, sampler: Sampler, *, is_complete: bool
    ) -> None:
        """Close the run file. The secrets beside it are kept for a run that can be resumed."""
        if sampler.agent is not None:
            writer.environment({"agent": sampler.agent})
        if sampler.server.metrics and self._resumption is None:
            label = None if self._target is None else self._target.label
            writer.environment({"server": sampler.server.record(label)})
        await asyncio.to_thread(writer.close, is_complete)
        if is_complete:
            delete_private(self.out)
        self.trouble = writer.trouble
        self.recorded = writer.whole_path

    # -- the generator and the samplers

    def _build_shard(self, spread: Spread) -> Shard:
        shard = build_shard(self._progress.plan, spread, self._data)
        if self._resumption is None or not self._resumption.in_hold:
            return shard
        # Connections that were held before are reopened without plateaus.
        ramp = msgspec.structs.replace(shard.ramp, plateaus=0, plateau_s=0.0)
        return msgspec.structs.replace(shard, again=True, ramp=ramp)

    def _make_generator(self, shard: Shard) -> Generator | ClusterGenerator:
        if self._cluster is None:
            return Generator(shard)
        return self._cluster.generator(shard)

    def _make_sampler(self, spread: Spread) -> Sampler:
        options = SamplerOptions(
            clock=self._progress.now_s,
            generator_pids=self._generator_pids,
            helper_pids=lambda: [*self._meter.pids, *self._helper_pids()],
            on_sample=self._record_own_sample,
            on_finding=self._recorder.finding,
        )
        return make_sampler(self._progress.plan, options, local=spread.local)

    def _generator_pids(self) -> Sequence[int]:
        if self._generator is None:
            return ()
        pids: Sequence[int] = self._generator.pids
        return pids

    def _start_clock(self) -> None:
        """The run's time begins now."""
        self._progress.zero_s = time.monotonic()
        self._progress.has_clock = True
        if self._recorder.writer is not None:
            self._recorder.writer.environment({"clock": clock_at(self._progress.zero_s)})

    def _record_cluster(self) -> None:
        """Record the cluster's hosts, shares and clocks, which change as hosts join."""
        if self._cluster is None or self._recorder.writer is None:
            return
        hosts = self._generator.document()
        self._recorder.writer.environment(self._cluster.environment(hosts))

    def _record_own_sample(self, sample: Sample) -> None:
        """Record a sample of this host. With a cluster, this host opens no connections."""
        if self._cluster is None:
            self._record_sample(sample)
            return
        values = {}
        for name, value in sample.values.items():
            if not name.startswith(self._cluster.leave_out):
                values[name] = value
        self._record_sample(Sample(sample.t_s, values))

    def _record_sample(self, sample: Sample) -> None:
        if self._resumption is not None:
            self._resumption.continue_counters(sample.values)
        self._recorder.sample(sample)
        if self._events is not None:
            self._events.sample(sample.values)
        self._show_cost()

    def _show_cost(self) -> None:
        """Show the cost so far if it is known, and have it computed again if that is due: right
        after a sample, so that the next one is taken when its memory is free again.
        """
        progress = self._progress
        so_far = self._meter.turn(progress.now_s(), is_held=progress.is_in("ramp", "hold"))
        if so_far is None:
            return
        self._recorder.show(lambda observer: observer.cost(so_far))
        # The hold of a resumed run has a gap, so it is judged at its end.
        if progress.is_in("hold") and self._resumption is None:
            self._end_if_decided(so_far)

    def _end_if_decided(self, so_far: CostSoFar) -> None:
        """End the hold once it is sure what the limits that compare with earlier runs say."""
        decision = decided(self._progress.plan, so_far)
        if decision is None or self._progress.stopped.is_set():
            return
        where = self._progress.where()
        self._recorder.finding(decided_early(*where, decision.is_worse, decision.because))
        self._progress.stopped.set()

    @property
    def _command(self) -> str:
        """The command that resumes the run."""
        if self._cluster is None:
            return f"asyncli soak --resume {self.out}"
        return f"asyncli soak --resume {self.out} {self._cluster.flags}"


def _begin(work: Coroutine[Any, Any, None], name: str, incoming: Incoming) -> asyncio.Task[None]:
    """Start a task beside the phases, which fails the run if it fails."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(incoming.task_ended)
    return task
