"""One bench: probe the host, start the generator, run until all requests are sent or the time is up, count.

The counterpart of soak.py, on the same generator, collector and limits. It writes no file and installs no signal handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
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
from asyncli.engine.probe import TlsFacts, probe
from asyncli.engine.shard import Failed, LoadShard, Ticked, Up, WorkerLost, WorkerSilent, build_load_shard
from asyncli.engine.spread import OWN_DESCRIPTORS, Spread, show
from asyncli.environment import probe_host, read_environment
from asyncli.findings.bench import requests_unaccounted
from asyncli.findings.generator import asyncli_failed, generator_failed, generator_silent, worker_lost, worker_silent
from asyncli.findings.server import address_dropped
from asyncli.model.benchplan import BenchPlan, BenchRun
from asyncli.model.records import Asked, Ended, Finding, Sample, Tick
from asyncli.preflight.host_checks import host_checks
from asyncli.preflight.host_limits import Limits
from asyncli.report.summary import limit_findings, not_kept
from asyncli.report.thresholds import judge, parse, require

_LEAD_S = 0.1
# A second process halves each connection's CPU; with fewer connections per process it gains nothing.
_CONNECTIONS_WORTH_A_PROCESS = 4
# How late the last tick may come after the end of the time.
_PATIENCE_S = 10.0


class Bench:
    """One run of ``plan``. ``on_tick`` gets (seconds since the start, tick) once a second.

    ``label``: the lab server's name. ``wait_for_server_s``: how long to wait for a server on this host to listen; ``say`` gets a
    message about it.
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
        self._wait_for_server_s, self._say = wait_for_server_s, say or (lambda _: None)
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
        self._connects = self._refusals = 0
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
        places = {(one.address, one.port) for one in spread.destinations}
        try:
            waited_s = await wait_for_listener(places, spread.local, self._wait_for_server_s, self._say, self._stopped)
            await collector.open()
            if not self.plan.force:
                preflight.refuse(host_checks(self.plan.held, spread, limits))
            self._tls, _, news = await asyncio.to_thread(probe, self.plan.held, spread)
            self._findings += news
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            shard = build_load_shard(self.plan, spread)
            checks_listener = spread.local and not self.plan.force
            if checks_listener and (missing := nothing_listens(places, waited_s, "no request was sent")):
                self._refused = True
                self._findings.append(missing)
            else:
                await self._measure(shard, collector)
            # Convert to the ticks' clock: seconds since the first connect.
            lead_s = self._t0 - self._zero
            self._samples = [Sample(one.t_s - lead_s, one.values) for one in self._samples]
            environment = read_environment(limits, spread)
            environment["server"] = collector.server.document(self._label)
            if self._tls is not None:
                environment["tls"] = msgspec.to_builtins(self._tls)
            run = self._result(started, environment, shard)
            if len(self._cpu_times) == 3:
                pairs = itertools.pairwise(self._cpu_times)
                run.cpus_before, run.cpus = [cpus.shares(*pair, os.getpid(), collector.server.pids) for pair in pairs]
            return run
        finally:
            await collector.close()

    async def _measure(self, shard: LoadShard, collector: Collector) -> None:
        generator = self._generator = Generator(shard)
        tasks: list[asyncio.Task[None]] = []
        self._shard = shard
        try:
            await generator.start()
            await collector.sample_now()
            if self._stopped.is_set():
                return
            await self._read_cpus()
            self._t0 = time.monotonic() + _LEAD_S
            generator.begin(self._t0)
            listening = asyncio.create_task(self._listen(generator), name="the reader of ticks")
            tasks = [listening, asyncio.create_task(collector.run(), name="the collector")]
            await self._wait_for_end(generator)
            await self._read_cpus()
            tasks[1].cancel()
            await asyncio.wait({tasks[1]})
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
        stopped, over = (asyncio.create_task(event.wait()) for event in (self._stopped, self._over))
        latest = float("inf") if self.plan.duration_s is None else self._t0 + self.plan.duration_s + _PATIENCE_S
        done: set[asyncio.Task[bool]] = set()
        try:
            while not done and time.monotonic() < latest:
                self._silent_turns += 1
                if self._silent_turns > SILENT_TURNS:
                    self._fail(generator_silent(SILENT_TURNS / 2, False, None))
                done, _ = await asyncio.wait({stopped, over}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
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
            self._fail(asyncli_failed("the reader of ticks", f"{type(error).__name__}: {error}", None))
            raise

    def _handle(self, message: Up) -> None:
        match message:
            case Ticked(tick=tick):
                assert self._shard is not None
                self._silent_turns = 0
                t_s = float(tick.second)
                self._ticks.append((t_s, tick))
                self._on_tick(t_s, tick)
                self._connects += tick.opened
                self._refusals += tick.failures.get("refused", 0)
                if not self._connects and self._refusals >= 2 * len(self._shard.destinations) and not tick.connecting:
                    # Two refusals from each address: a refusal is an answer, a timeout may be a lost packet.
                    self._refused = True
                    self._stopped.set()
                for number in tick.dropped.keys() - self._given_up:
                    self._given_up.add(number)
                    self._findings.append(address_dropped(show(self._shard.destinations[number])))
                if tick.drained >= self._shard.workers:
                    self._over.set()
            case WorkerLost():
                self._fail(worker_lost(message.worker, message.pid, None, None, message.how), over=False)
            case WorkerSilent():
                # Its share of the requests would never be sent.
                self._fail(worker_silent(message.worker, message.pid, None, None, message.silent_s))
            case Failed():
                self._fail(generator_failed(message.why, None))

    def _fail(self, finding: Finding, over: bool = True) -> None:
        self._failed = True
        self._findings.append(finding)
        if over:
            self._over.set()

    def _result(self, started: str, environment: dict[str, object], shard: LoadShard) -> BenchRun:
        total, last = Tick(asked=Asked()), Tick()
        for _, tick in self._ticks:
            total.merge_counts(tick)
            last = tick
        assert total.asked is not None
        asked, plan = total.asked, self.plan
        if not self._ticks:
            asked.left = plan.requests or 0
        ended: Ended = "asked"
        for reason in ("time", "stopped", "gave up"):
            if reason in asked.ended or (reason == "stopped" and self._stopped.is_set()):
                ended = reason
        ended = "gave up" if self._refused else ended
        elapsed_s = asked.last_s
        if ended == "time" and plan.duration_s is not None:
            elapsed_s = max(elapsed_s, plan.duration_s)
        elif ended == "stopped":
            elapsed_s = max(elapsed_s, asked.ended_s)
        elif plan.rate is not None and plan.requests is not None and ended == "asked":
            # The last of n instants is one interval before the end.
            elapsed_s = max(elapsed_s, plan.requests / plan.rate)
        accounted = total.answered + sum(asked.failed.values()) + asked.in_flight + asked.left
        if plan.requests is not None and asked.ended and not self._failed and accounted != plan.requests:
            self._fail(requests_unaccounted(accounted, plan.requests))
        return BenchRun(
            plan=plan,
            started=started,
            elapsed_s=elapsed_s,
            workers=shard.workers,
            cpu_s=(last.cpu_user_s, last.cpu_system_s),
            ended=ended,
            complete=not self._failed and ended in ("asked", "time") and bool(asked.ended),
            total=total,
            ticks=self._ticks,
            samples=self._samples,
            findings=self._findings,
            environment=environment,
        )


def require_limits(plan: BenchPlan, where: str = "--fail-if") -> None:
    """Raise :class:`~asyncli.model.errors.PlanError` for an invalid limit of ``plan``, written ``where``."""
    require(plan.fail_if, BenchResult, where)


def bench_results(run: BenchRun) -> BenchResult:
    """The results of ``run``. A crossed limit makes it fail."""
    limits = [parse(text, BenchResult) for text in run.plan.fail_if]
    found = evaluate_bench(run, [one.key for one in limits])
    outcomes = judge(limits, msgspec.to_builtins(found, str_keys=True))
    found.findings += limit_findings(outcomes)
    if (broken := [one.words for one in not_kept(outcomes)]) and found.verdict in ("passed", "failed"):
        reasons = broken if found.verdict == "passed" else [found.why, *broken]
        found.verdict, found.why = "failed", "; ".join(reasons)
    return found


async def _plan_spread(plan: BenchPlan) -> tuple[Limits, Spread]:
    limits, spread = await probe_host(plan.held)
    if plan.workers is None:
        nofile, cpus = limits.nofile_hard or 1024, limits.cpus or 1
        # A server on this host needs CPUs as well.
        wanted = min(max(1, cpus // 2 if spread.local else cpus), -(-plan.connections // _CONNECTIONS_WORTH_A_PROCESS))
        forced = -(-plan.connections // max(1, nofile - OWN_DESCRIPTORS))
        spread = msgspec.structs.replace(spread, workers=max(wanted, forced))
    # A worker without a connection would still get a share of the requests.
    return limits, msgspec.structs.replace(spread, workers=min(spread.workers, plan.connections))
