"""One soak: preflight, run file, baseline, ramp, hold, drain, residue, close.

Start at :meth:`Soak.run`, then :meth:`asyncli.app.phases.Phases.run`.
"""

from __future__ import annotations

import asyncio
import datetime
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from asyncli import preflight
from asyncli.analysis.handshakes import certificate_ends, planned_s
from asyncli.app.check import examine, make_sampler, plan_spread
from asyncli.app.incoming import Incoming
from asyncli.app.phases import Phases
from asyncli.app.progress import STOPPABLE, Progress
from asyncli.app.recorder import Observer, Recorder
from asyncli.app.resume import Resumption, retry_while_leased
from asyncli.collect.clocks import ClockWatch
from asyncli.collect.listening import nothing_listens, wait_for_listener
from asyncli.collect.locate import ServerFacts
from asyncli.collect.sampler import SamplerOptions
from asyncli.engine.generator import Generator
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Spread
from asyncli.environment import clock_at, read_environment
from asyncli.findings.generator import asyncli_failed
from asyncli.findings.run import aborted_by_limit, cut_off, stopped_by_user, waiting
from asyncli.model.data_file import described, read_data
from asyncli.model.errors import StoreError
from asyncli.model.plan import Plan, plan_document
from asyncli.model.records import Finding, Sample
from asyncli.model.template import Data
from asyncli.preflight.host_limits import Limits
from asyncli.store.private_file import delete_private, write_private
from asyncli.store.resume import Interrupted
from asyncli.store.writer import RunWriter

if TYPE_CHECKING:
    from asyncli.app.check import Sampler
    from asyncli.cluster.link import Cluster
    from asyncli.engine.probe import TlsFacts
    from asyncli.report.livestate import LiveObserver

T = TypeVar("T")


class KnownServer(msgspec.Struct, frozen=True):
    """A lab server: its name for the report and its root process."""

    label: str
    pid: int


class Soak:
    """One run of ``plan`` into the run file ``out``. ``stop()`` drains and reports; cancelling the task ends it at once.

    ``guard``: a second observer. ``resume``: the run in ``out`` to resume. ``cluster``: the hosts that open the connections.
    ``wait_for_server_s``: how long to wait for a server on this host to listen. ``findings``: earlier findings about the plan.
    ``tls``: the server's TLS, if it was probed before.
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
    ) -> None:
        self.out = out
        #: Measuring has started, or nothing listens.
        self.started = False
        #: What the run file lacks, in one line; None: nothing.
        self.trouble: str | None = None
        self._target, self._cluster = target, cluster
        self._wait_for_server_s = wait_for_server_s
        self._findings, self._tls = list(findings), tls
        self._progress = Progress(plan, out)
        self._recorder = Recorder([one for one in (observer, guard) if one is not None], self._progress)
        self._started_wall_s = time.time() if resume is None else resume.run.started_wall_s
        self._resumption = None if resume is None else Resumption(resume)
        if self._resumption is not None:
            self._resumption.set_clock(self._progress)
        self._generator: Any = None
        self._data: Data | None = None

    @classmethod
    def shown_by(cls, observer: LiveObserver, plan: Plan, out: Path, **more: Any) -> Self:
        """A soak that ``observer`` shows, and stops at a crossed limit that can no longer be met."""
        from asyncli.report.live_thresholds import too_short

        soak = cls(plan, out, observer=observer, findings=() if more.get("resume") else too_short(plan), **more)
        observer.stop, observer.failed = soak.stop, soak.observer_failed
        return soak

    def stop(self, because: str = "") -> None:
        """Start the drain; safe to repeat, callable from a signal handler of the loop.

        ``because``: the crossed limit; "": the user stops it.
        """
        progress = self._progress
        if not progress.stopped.is_set() and (progress.phase is None or progress.is_in(*STOPPABLE)):
            # Stopping a hold without end is no finding.
            endless = progress.is_in("hold") and not progress.reopening and progress.plan.hold_s is None
            if because:
                self._recorder.finding(aborted_by_limit(*progress.where(), because))
            elif not endless:
                self._recorder.finding(stopped_by_user(*progress.where(), self._command if progress.reopening else ""))
        progress.stopped.set()

    def observer_failed(self, error: BaseException) -> None:
        """Record that the observer failed; the run continues without it."""
        self._recorder.observer_failed(error)

    @property
    def recording(self) -> bool:
        """Whether there is a run file; before that there is nothing to drain or report."""
        return self._recorder.writer is not None

    async def run(self) -> Path:
        """Run the soak and return the run file's path. Raises :class:`~asyncli.model.errors.AsyncliError` if it cannot start."""
        try:
            self._data = await asyncio.to_thread(read_data, self._progress.plan)
            if self._resumption is not None:
                self._resumption.require_same(self._data)
            limits, spread = await self._retry(lambda: plan_spread(self._progress.plan, self._cluster, self._show_wait))
            options = SamplerOptions(
                clock=self._progress.now_s,
                generator_pids=lambda: self._generator.pids if self._generator else [],
                on_sample=self._sampled,
                on_finding=self._recorder.finding,
            )
            sampler = make_sampler(self._progress.plan, options, local=spread.local)
            try:
                await self._run(limits, spread, sampler)
            finally:
                await sampler.close()
        finally:
            if self._cluster is not None:
                await self._cluster.close()
        return self.out

    async def _run(self, limits: Limits, spread: Spread, sampler: Sampler) -> None:
        plan, progress, stopped = self._progress.plan, self._progress, self._progress.stopped
        places = {(one.address, one.port) for one in spread.destinations}
        here = spread.local and self._cluster is None
        waited_s = await wait_for_listener(places, here, self._wait_for_server_s, self._show_wait, stopped)
        await self._retry(sampler.open)
        judged = plan if self._resumption is None else self._resumption.remaining_plan(plan)
        examined = await examine(judged, spread, sampler, self._cluster, self._data, connects=self._tls is None or not plan.force)
        spread, checks, findings, server, tls, _ = examined
        if not plan.force:
            preflight.refuse(checks)
        if self._resumption is None:
            self._recorder.open(self._create_run_file(limits, spread, server, sampler.agent, tls or self._tls))
        else:
            self._resumption.open(self.out, server, progress, self._recorder)
        writer = self._recorder.writer
        assert writer is not None
        writer.checks(checks)
        for finding in [*self._findings, *findings, *preflight.checks_to_findings(checks)]:
            self._recorder.finding(finding)
        if tls is not None and tls.certificate is not None:
            # A report finds this in the environment.
            for ends in certificate_ends(msgspec.to_builtins(tls.certificate), planned_s(judged, time.time())):
                self._recorder.show(lambda observer, ends=ends: observer.finding(ends))  # type: ignore[misc]
        completed = False
        try:
            checks_listener = here and self._resumption is None and not plan.force
            if checks_listener and (missing := nothing_listens(places, waited_s, "the run did not start")):
                self.started = True
                self._recorder.finding(missing)
            else:
                await self._measure(spread, sampler)
            completed = not progress.failed and not progress.reopening
        except asyncio.CancelledError:
            self._recorder.finding(cut_off(*progress.where()))
            raise
        finally:
            sampler.end()
            if sampler.agent is not None:
                writer.environment({"agent": sampler.agent})
            await asyncio.to_thread(writer.close, completed)
            if completed:
                delete_private(self.out)
            self.trouble = writer.trouble
        if writer.lost:
            raise StoreError(f"{self.out}: was moved or deleted while the run wrote to it; leave it where it is until the end")

    async def _measure(self, spread: Spread, sampler: Sampler) -> None:
        """Start the generator and the samplers, run the phases, and stop everything."""
        progress, recorder = self._progress, self._recorder
        shard = build_shard(progress.plan, spread, self._data)
        if self._resumption is not None and self._resumption.in_hold:
            ramp = msgspec.structs.replace(shard.ramp, plateaus=0, plateau_s=0.0)
            shard = msgspec.structs.replace(shard, again=True, ramp=ramp)
        generator = self._generator = Generator(shard) if self._cluster is None else self._cluster.generator(shard)
        incoming = Incoming(
            progress, recorder, spread.destinations,
            resume=self._command, on_host_finding=self._record_cluster, on_sample=self._sample,
        )  # fmt: skip
        phases = Phases(
            progress, recorder, incoming, shard=shard, generator=generator, sampler=sampler, resumption=self._resumption,
            started_wall_s=self._started_wall_s,
        )  # fmt: skip
        tasks: list[asyncio.Task[None]] = []

        def ended(task: asyncio.Task[None]) -> None:
            # A task that ends by itself is a bug: the run must not continue without its numbers.
            if not task.cancelled() and (error := task.exception()) is not None:
                incoming.fail(asyncli_failed(task.get_name(), f"{type(error).__name__}: {error}", incoming.resume))

        def begin(work: Coroutine[Any, Any, None], name: str) -> None:
            tasks.append(asyncio.create_task(work, name=name))
            tasks[-1].add_done_callback(ended)

        try:
            await generator.start()
            self._record_cluster()
            begin(incoming.listen(generator.messages()), "the reader of ticks")
            if self._resumption is None:
                progress.zero_s = time.monotonic()
                if recorder.writer is not None:
                    recorder.writer.environment({"clock": clock_at(progress.zero_s)})
            self.started = True
            if not progress.reopening:
                if self._resumption is not None:
                    self._resumption.close_gap(progress, recorder)
                phases.enter("baseline")
            begin(sampler.run(), "the collector")
            clocks = ClockWatch(progress.now_s, on_sample=self._sampled, on_finding=recorder.finding)
            begin(clocks.run(), "the watcher of clocks")
            await phases.run()
        finally:
            for task in tasks:
                task.cancel()
            await generator.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await (ask() if self._resumption is None else retry_while_leased(ask, self._show_wait, self._progress))

    def _show_wait(self, what: str) -> None:
        """Show, without recording it, what the start waits for."""
        self._recorder.show(lambda observer: observer.finding(waiting(what)))

    def _create_run_file(
        self, limits: Limits, spread: Spread, server: ServerFacts, agent: dict[str, Any] | None, tls: TlsFacts | None
    ) -> RunWriter:
        wall = datetime.datetime.now(datetime.UTC)
        environment = read_environment(limits, spread)
        environment["server"] = server.record(self._target.label if self._target else None)
        if agent is not None:
            environment["agent"] = agent
        if tls is not None:
            environment["tls"] = msgspec.to_builtins(tls)
        if self._data is not None:
            environment["data"] = described(self._data)
        environment["wall_start"] = wall.isoformat()
        run_id, document = uuid.uuid4().hex[:12], plan_document(self._progress.plan)
        writer = RunWriter.create(
            self.out, run_id=run_id, started_wall_s=wall.timestamp(), plan_document=document, environment=environment
        )
        write_private(self.out, run_id, document)
        return writer

    def _record_cluster(self) -> None:
        """Record the cluster's hosts, shares and clocks, which change as hosts join."""
        if self._cluster is not None and self._recorder.writer is not None:
            self._recorder.writer.environment(self._cluster.environment(self._generator.document()))

    def _sampled(self, sample: Sample) -> None:
        """Record a sample of this host. With a cluster, this host opens no connections."""
        if self._cluster is not None:
            left_out = self._cluster.leave_out
            sample = Sample(sample.t_s, {name: value for name, value in sample.values.items() if not name.startswith(left_out)})
        self._sample(sample)

    def _sample(self, sample: Sample) -> None:
        if self._resumption is not None:
            self._resumption.continue_counters(sample.values)
        self._recorder.sample(sample)

    @property
    def _command(self) -> str:
        """The command that resumes the run."""
        return f"asyncli soak --resume {self.out}{'' if self._cluster is None else f' {self._cluster.flags}'}"
