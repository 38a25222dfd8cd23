"""One bench: probe the host, start the generator, wait until it has sent all or time is up, count.

The counterpart of soak.py, on the same generator, collector and limits. It writes no file and
installs no signal handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
import time
from collections.abc import Callable

import msgspec

from asyncli import preflight
from asyncli.analysis.bench_result import BenchResult, evaluate_bench
from asyncli.app.incoming import SILENT_TURNS
from asyncli.collect import cpus
from asyncli.collect.collector import Collector
from asyncli.collect.listening import nothing_listens, wait_for_listener
from asyncli.collect.sampler import SamplerOptions
from asyncli.engine.generator import Generator
from asyncli.engine.probe import probe
from asyncli.engine.shard import (
    Failed,
    LoadShard,
    Ticked,
    Up,
    WorkerLost,
    WorkerSilent,
    build_load_shard,
)
from asyncli.engine.spread import OWN_DESCRIPTORS, Spread, show
from asyncli.engine.tls_facts import TlsFacts
from asyncli.environment import probe_host, read_environment
from asyncli.findings.bench import requests_unaccounted
from asyncli.findings.generator import (
    asyncli_failed,
    generator_failed,
    generator_silent,
    worker_lost,
    worker_silent,
)
from asyncli.findings.server import address_dropped
from asyncli.model.benchplan import BenchPlan, BenchRun
from asyncli.model.quantities import BEYOND_LATENESS, beyond_lateness
from asyncli.model.records import Asked, Ended, Finding, Sample, Tick
from asyncli.preflight.host_checks import host_checks
from asyncli.preflight.host_limits import Limits
from asyncli.report.summary import limit_findings, not_kept
from asyncli.report.thresholds import judge, parse, require

_LEAD_S = 0.1
# A second process halves each connection's CPU; with fewer connections each it gains nothing.
_CONNECTIONS_WORTH_A_PROCESS = 4
# How late the last tick may come after the end of the time.
_PATIENCE_S = 10.0


class Bench:
    """One run of ``plan``. ``on_tick`` gets (seconds since the start, tick) once a second.

    ``label``: the lab server's name. ``wait_for_server_s``: how long to wait for a server on this
    host to listen; ``say`` gets a message about it.
    """

    def __init__(
        self,
        plan: BenchPlan,
        *,
        on_tick: Callable[[float, Tick], None] | None = None,
        label: str | None = None,
        wait_for_server_s: float = 0.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.plan = plan
        self._wait_for_server_s = wait_for_server_s
        self._say = say or (lambda _: None)
        self._on_tick = on_tick or (lambda _t_s, _tick: None)
        self._label = label
        self._stopped = asyncio.Event()
        self._over = asyncio.Event()
        self._zero = time.monotonic()
        self._t0 = 0.0
        self._ticks: list[tuple[float, Tick]] = []
        self._samples: list[Sample] = []
        self._findings: list[Finding] = []
        # CPU times at the start, before the first connect and after the last answer.
        self._cpu_times: list[cpus.CpuTimes] = []
        self._failed = False
        # Nothing listens, or every address refuses.
        self._refused = False
        self._connects = 0
        self._refusals = 0
        self._silent_turns = 0
        self._shard: LoadShard | None = None
        self._given_up: set[int] = set()
        self._generator: Generator | None = None
        self._tls: TlsFacts | None = None

    def stop(self) -> None:
        """Stop sending and report; safe to repeat."""
        self._stopped.set()

    async def run(self) -> BenchRun:
        """Run the bench. Raises :class:`~asyncli.model.errors.AsyncliError` if it cannot start."""
        await self._read_cpus()
        limits, spread = await _plan_spread(self.plan)
        options = SamplerOptions(
            clock=lambda: time.monotonic() - self._zero,
            generator_pids=lambda: self._generator.pids if self._generator else [],
            on_sample=self._samples.append,
            on_finding=self._findings.append,
        )
        collector = Collector(self.plan.held, options, local=spread.local)
        try:
            return await self._run(limits, spread, collector)
        finally:
            await collector.close()

    async def _run(self, limits: Limits, spread: Spread, collector: Collector) -> BenchRun:
        """Check the plan, measure, and count."""
        is_forced = self.plan.force
        places = {(destination.address, destination.port) for destination in spread.destinations}
        waited_s = await wait_for_listener(
            places, spread.local, self._wait_for_server_s, self._say, self._stopped
        )
        await collector.open()
        if not is_forced:
            preflight.refuse(host_checks(self.plan.held, spread, limits))
        self._tls, _, findings = await asyncio.to_thread(probe, self.plan.held, spread)
        self._findings += findings
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        shard = build_load_shard(self.plan, spread)
        missing = None
        if spread.local and not is_forced:
            missing = nothing_listens(places, waited_s, "no request was sent")
        if missing is None:
            await self._measure(shard, collector)
        else:
            self._refused = True
            self._findings.append(missing)
        # Convert to the ticks' clock: seconds since the first connect.
        lead_s = self._t0 - self._zero
        self._samples = [Sample(sample.t_s - lead_s, sample.values) for sample in self._samples]
        environment = read_environment(limits, spread)
        environment["server"] = collector.server.document(self._label)
        if collector.server.metrics:
            environment["server"]["metrics"] = msgspec.to_builtins(collector.server.metrics)
        if self._tls is not None:
            environment["tls"] = msgspec.to_builtins(self._tls)
        run = self._result(started, environment, shard)
        if len(self._cpu_times) == 3:
            at_start, before_connects, after_answers = self._cpu_times
            pids = collector.server.pids
            run.cpus_before = cpus.shares(at_start, before_connects, os.getpid(), pids)
            run.cpus = cpus.shares(before_connects, after_answers, os.getpid(), pids)
        return run

    async def _measure(self, shard: LoadShard, collector: Collector) -> None:
        generator = Generator(shard)
        self._generator = generator
        self._shard = shard
        tasks: list[asyncio.Task[None]] = []
        try:
            await generator.start()
            await collector.sample_now()
            if self._stopped.is_set():
                return
            await self._read_cpus()
            self._t0 = time.monotonic() + _LEAD_S
            generator.begin(self._t0)
            listening = asyncio.create_task(self._listen(generator), name="the reader of ticks")
            sampling = asyncio.create_task(collector.run(), name="the collector")
            tasks = [listening, sampling]
            await self._wait_for_end(generator)
            await self._read_cpus()
            sampling.cancel()
            await asyncio.wait({sampling})
            await collector.sample_now()
        finally:
            for task in tasks:
                task.cancel()
            await generator.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_cpus(self) -> None:
        # If /proc is hidden, the result has no CPU shares.
        with contextlib.suppress(OSError, ValueError):
            self._cpu_times.append(await asyncio.to_thread(cpus.read_times))

    async def _wait_for_end(self, generator: Generator) -> None:
        stopped = asyncio.create_task(self._stopped.wait())
        over = asyncio.create_task(self._over.wait())
        latest = math.inf
        if self.plan.duration_s is not None:
            latest = self._t0 + self.plan.duration_s + _PATIENCE_S
        done: set[asyncio.Task[bool]] = set()
        try:
            while not done and time.monotonic() < latest:
                self._silent_turns += 1
                if self._silent_turns > SILENT_TURNS:
                    self._fail(generator_silent(SILENT_TURNS / 2, False, None))
                done, _ = await asyncio.wait(
                    {stopped, over}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED
                )
            if over in done:
                return
            if stopped in done:
                generator.drain()
                done, _ = await asyncio.wait({over}, timeout=_PATIENCE_S)
            if over not in done:
                self._fail(generator_silent(_PATIENCE_S, True, None))
        finally:
            stopped.cancel()
            over.cancel()

    async def _listen(self, generator: Generator) -> None:
        try:
            async for message in generator.messages():
                self._handle(message)
        except Exception as error:  # a bug of ours must not look like a server that does not answer
            why = f"{type(error).__name__}: {error}"
            self._fail(asyncli_failed("the reader of ticks", why, None))
            raise

    def _handle(self, message: Up) -> None:
        match message:
            case Ticked(tick=tick):
                self._tick(tick)
            case WorkerLost(worker=worker, pid=pid, how=how):
                self._fail(worker_lost(worker, pid, None, None, how), over=False)
            case WorkerSilent(worker=worker, pid=pid, silent_s=silent_s):
                # Its share of the requests would never be sent.
                self._fail(worker_silent(worker, pid, None, None, silent_s))
            case Failed(why=why):
                self._fail(generator_failed(why, None))

    def _tick(self, tick: Tick) -> None:
        assert self._shard is not None
        self._silent_turns = 0
        t_s = float(tick.second)
        self._ticks.append((t_s, tick))
        self._on_tick(t_s, tick)
        self._connects += tick.opened
        self._refusals += tick.failures.get("refused", 0)
        if self._is_refused_everywhere(tick):
            self._refused = True
            self._stopped.set()
        for number in tick.dropped.keys() - self._given_up:
            self._given_up.add(number)
            self._findings.append(address_dropped(show(self._shard.destinations[number])))
        if tick.drained >= self._shard.workers:
            self._over.set()

    def _is_refused_everywhere(self, tick: Tick) -> bool:
        """Two refusals each: a refusal is an answer, a timeout may be a lost packet."""
        assert self._shard is not None
        if self._connects or tick.connecting:
            return False
        return self._refusals >= 2 * len(self._shard.destinations)

    def _fail(self, finding: Finding, over: bool = True) -> None:
        self._failed = True
        self._findings.append(finding)
        if over:
            self._over.set()

    def _result(self, started: str, environment: dict[str, object], shard: LoadShard) -> BenchRun:
        total = Tick(asked=Asked())
        last = Tick()
        for _, tick in self._ticks:
            total.merge_counts(tick)
            last = tick
        asked = total.asked
        assert asked is not None
        if not self._ticks:
            asked.left = self.plan.requests or 0
        ended = self._end(asked)
        self._require_account(asked, total.answered)
        is_complete = not self._failed and ended in ("asked", "time") and bool(asked.ended)
        return BenchRun(
            plan=self.plan,
            started=started,
            elapsed_s=_elapsed_s(self.plan, asked, ended),
            workers=shard.workers,
            cpu_s=(last.cpu_user_s, last.cpu_system_s),
            ended=ended,
            complete=is_complete,
            total=total,
            ticks=self._ticks,
            samples=self._samples,
            findings=self._findings,
            environment=environment,
        )

    def _end(self, asked: Asked) -> Ended:
        """How the bench ended; "asked": all requests were sent."""
        if self._refused or "gave up" in asked.ended:
            return "gave up"
        if self._stopped.is_set() or "stopped" in asked.ended:
            return "stopped"
        if "time" in asked.ended:
            return "time"
        return "asked"

    def _require_account(self, asked: Asked, answered: int) -> None:
        """Fail if a request of a complete bench is counted nowhere, or twice."""
        requests = self.plan.requests
        if requests is None or not asked.ended or self._failed:
            return
        accounted = answered + sum(asked.failed.values()) + asked.in_flight + asked.left
        if accounted != requests:
            self._fail(requests_unaccounted(accounted, requests))


def _elapsed_s(plan: BenchPlan, asked: Asked, ended: Ended) -> float:
    """How long the bench lasted, from the first connect (s)."""
    if ended == "time" and plan.duration_s is not None:
        return max(asked.last_s, plan.duration_s)
    if ended == "stopped":
        return max(asked.last_s, asked.ended_s)
    if ended == "asked" and plan.rate is not None and plan.requests is not None:
        # The last of n instants is one interval before the end.
        return max(asked.last_s, plan.requests / plan.rate)
    return asked.last_s


def require_limits(plan: BenchPlan, where: str = "--fail-if") -> None:
    """Raise :class:`~asyncli.model.errors.PlanError` for an invalid limit of ``plan``, written
    ``where``.
    """
    require(plan.fail_if, BenchResult, where)


def bench_results(run: BenchRun) -> BenchResult:
    """The results of ``run``. A crossed limit makes it fail; one that only asyncli's own lateness
    may have crossed makes it invalid.
    """
    limits = [parse(text, BenchResult) for text in run.plan.fail_if]
    result = evaluate_bench(run, [limit.key for limit in limits])
    document = msgspec.to_builtins(result, str_keys=True)
    document[BEYOND_LATENESS] = beyond_lateness(run.total.latency_us, run.total.lateness_us)
    outcomes = judge(limits, document)
    result.findings += limit_findings(outcomes)
    not_held = not_kept(outcomes)
    broken = [outcome.words for outcome in not_held]
    if broken and result.verdict == "passed":
        is_by_lateness = all(outcome.by_lateness for outcome in not_held)
        result.verdict = "invalid" if is_by_lateness else "failed"
        result.why = "; ".join(broken)
    elif broken and result.verdict == "failed":
        result.why = "; ".join([result.why, *broken])
    return result


async def _plan_spread(plan: BenchPlan) -> tuple[Limits, Spread]:
    limits, spread = await probe_host(plan.held)
    workers = spread.workers
    if plan.workers is None:
        workers = _workers(plan, limits, is_local=spread.local)
    # A worker without a connection would still get a share of the requests.
    workers = min(workers, plan.connections)
    return limits, msgspec.structs.replace(spread, workers=workers)


def _workers(plan: BenchPlan, limits: Limits, *, is_local: bool) -> int:
    cpus_to_use = limits.cpus or 1
    if is_local:
        # A server on this host needs CPUs as well.
        cpus_to_use = max(1, cpus_to_use // 2)
    worth = math.ceil(plan.connections / _CONNECTIONS_WORTH_A_PROCESS)
    descriptors = max(1, (limits.nofile_hard or 1024) - OWN_DESCRIPTORS)
    forced = math.ceil(plan.connections / descriptors)
    return max(min(cpus_to_use, worth), forced)
