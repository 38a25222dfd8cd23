"""How many connections can this server hold? A search by soaks, from plan to bracket.

Each step is an ordinary soak with a run file of its own: it begins with the server at rest, so that its memory is that of its own
connections, a step that goes wrong spoils no other, and 'asyncli report' reads each a month later. Read
:meth:`CapacitySearch.run` and you know the program. It installs no signal handler and touches no terminal.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncli.agent.link import Link
from asyncli.analysis.capacity import RULE, Bracket, Foretold, Search, bracket, foretold, next_count, verdict
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.gaveway import GaveWay, memory_floor
from asyncli.analysis.sides import of_ours
from asyncli.collect.kernel import read_counters
from asyncli.collect.listening import nothing_listens
from asyncli.collect.procfs import read_listeners
from asyncli.collect.status import StatusReader
from asyncli.environment import look_around
from asyncli.errors import AsyncliError, EngineError, PeerError, StoreError
from asyncli.findings.capacity import not_at_rest, server_gone
from asyncli.metrics import HOST_AVAILABLE_BYTES, KERNEL_TCP_ALLOC, STATUS_ACTIVE
from asyncli.plan import MOST_CONNECTIONS, Plan, shown_plan
from asyncli.preflight import refusals, refuse
from asyncli.preflight.checks import host_checks
from asyncli.records import Check, Environment, Finding, Phase, Sample, Tick
from asyncli.report.analyses import analyse
from asyncli.report.capacity_report import SCHEMA, Capacity, Step, step_line, step_of
from asyncli.report.livestate import Observer
from asyncli.report.summary import summarise
from asyncli.session import Soak, look_at
from asyncli.store.reader import read_run
from asyncli.units import format_bytes, format_count, format_duration

#: A server that was killed is started again within this time, or not at all; and so long may it take to close what we left.
REST_S = 30.0
_LOOK_S = 0.2
# Sockets that became no fewer for so long will not soon.
_SETTLED_S = 3.0
# Connections of others come and go: so many, and this share of ours, may be there beyond those of before.
_OTHERS, _OTHERS_SHARE = 10, 0.01
# A preflight's numbers are predictions: to two digits.
_TWO_DIGITS = 1.02
#: What ends connections however few there are; the rest of what the preflight finds of a server is what is searched for.
_TIMER_CHECKS = frozenset({
    "nginx_keepalive_timeout", "nginx_client_header_timeout", "nginx_keepalive_requests", "nginx_keepalive_time",
})  # fmt: skip


async def most_here(plan: Plan) -> tuple[int, Check | None]:
    """The most connections that this host can carry by its preflight, to two digits, and the check that forbids more.

    (MOST_CONNECTIONS, None) where none does. Memory counts as short from where its prediction is not comfortable. Raises
    :class:`PreflightError` where this host cannot carry even one.
    """

    async def short(count: int) -> Check | None:
        sized = msgspec.structs.replace(plan, connections=count, batch=min(plan.batch, count))
        limits, spread = await look_around(sized)
        checks = host_checks(sized, spread, limits)
        return next(iter([*refusals(checks), *(one for one in checks if one.verdict == "warn" and one.code in _MEMORY)]), None)

    if await short(MOST_CONNECTIONS) is None:
        return MOST_CONNECTIONS, None
    low, high, why = 1, MOST_CONNECTIONS, await short(1)
    if why is not None:
        refuse([msgspec.structs.replace(why, verdict="short")])
    while high > max(low * _TWO_DIGITS, low + 1):
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        found = await short(middle)
        low, high, why = (middle, high, why) if found is None else (low, middle, found)
    return _two_digits(low), why


_MEMORY = ("memory", "cgroup_memory")


def _two_digits(number: int) -> int:
    """Rounded down; below a hundred as it is."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return number // step * step


class CapacitySearch:
    """A search of ``search`` by soaks of ``plan``, their run files in ``folder``, which must be there.

    ``stop()`` drains the step that runs and ends the search; cancelling the task ends it at once. ``onlooker`` makes who looks on
    at a step, and ``say`` hears a line at each step's beginning and end.
    """

    def __init__(
        self,
        plan: Plan,
        search: Search,
        folder: Path,
        *,
        onlooker: Callable[[Plan], Observer] = Observer,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan, self.search, self.folder = plan, search, folder
        self.steps: list[Step] = []
        self._onlooker, self._say = onlooker, say
        self._soak: Soak | None = None
        self._stopping = False
        self._findings: list[Finding] = []
        self._forecasts: list[tuple[int, bool, Forecast]] = []
        self._environment: Environment = {}
        self._server = "the server"
        self._gone = ""
        self._broken = ""
        #: Where nothing listens, before the first step.
        self.unheard: Finding | None = None
        self._memory: int | None = None
        self._own = HOST_AVAILABLE_BYTES
        self._began = datetime.datetime.now(datetime.UTC)
        self._zero = time.monotonic()

    def stop(self) -> None:
        """Drain what runs and come to an end; safe to repeat, callable from a signal handler of the loop."""
        self._stopping = True
        if self._soak is not None:
            self._soak.stop()

    async def run(self) -> None:
        """Step by step until no more can be known. Raises :class:`AsyncliError` where not even the first step can begin."""
        local = await self._examine()
        if self.unheard is not None:
            return
        rest = await _Rest.now(self.plan, local=local)
        while (count := next_count(self.search, [one.tried for one in self.steps])) is not None:
            if self.steps and (why := await rest.wait(self.steps[-1].asked, lambda: self._stopping)):
                if not rest.listens():
                    self._gone = why
                    return
                self._findings.append(not_at_rest(why))
            if self._stopping:
                return
            try:
                await self._step(count)
            except AsyncliError as error:
                if not self.steps:
                    raise
                if isinstance(error, StoreError | EngineError):
                    self._broken = str(error)
                else:
                    # It could be asked before: its process or its status page is gone.
                    self._gone = str(error)
                return

    @property
    def found(self) -> Capacity:
        """What is known by now."""
        tried = [one.tried for one in self.steps]
        known = bracket(tried)
        word, why = verdict(self.search, tried, gone=bool(self._gone), broken=self._broken, stopped=self._stopping)
        # Of few that a timer ends, too few have ended to say which.
        timed = [one for one in self.steps if one.tried.timed] if word == "failed" else []
        decisive = timed or [one for one in self.steps if one.outcome == "failed" and one.asked == known.failed]
        why = why if self.unheard is None else self.unheard.evidence
        ours = [one for one in self.steps[-1:] if one.outcome == "ours"]
        ways = (ours or decisive)[-1].gave_way if ours or decisive else []
        if word == "invalid" and not ways:
            ways = [GaveWay("host", "preflight", self.search.bound, self.search.mend)]
        return Capacity(
            schema=SCHEMA,
            verdict=word,
            why=why,
            started=self._began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=time.monotonic() - self._zero,
            folder=str(self.folder),
            urls=self.plan.urls,
            server=self._server,
            bracket=known,
            rule=RULE,
            limits=list(self.plan.fail_if),
            gave_way=ways,
            forecast=self._foretold(known),
            steps=self.steps,
            findings=[*self._findings, *([server_gone(self._gone)] if self._gone else [])],
            search=self.search,
            plan=shown_plan(self.plan),
            environment=self._environment,
        )

    def _foretold(self, known: Bracket) -> Foretold | None:
        """By the cost of the greatest step that held; what limits alone say needs none."""
        if not any(one.answered for one in self.steps):
            return None
        best = sorted(self._forecasts, key=lambda one: (one[1], one[0]), reverse=True)
        return next((said for _, _, one in best if (said := foretold(one, known, self.search.within)) is not None), None)

    async def _examine(self) -> bool:
        """Refuse what no count would mend: limits of this host, and timers of the server. Whether that is on this host."""
        start = min(self.search.start, self.search.most)
        plan = msgspec.structs.replace(self.plan, connections=start, batch=min(self.plan.batch, start))
        limits, _ = await look_around(plan)
        self._memory = limits.memory_total
        spread, checks, _ = await look_at(plan)
        watched: dict[str, object] = {"local": spread.local, "agent": None if plan.agent is None else {}}
        self._own = of_ours(HOST_AVAILABLE_BYTES, watched)
        if not self.plan.force:
            refuse([one for one in checks if not one.code.startswith("nginx_") or one.code in _TIMER_CHECKS])
            if spread.local:
                places = {(one.address, one.port) for one in spread.destinations}
                self.unheard = nothing_listens(places, None, "no step was begun")
                self._findings += [] if self.unheard is None else [self.unheard]
        return spread.local

    async def _step(self, count: int) -> None:
        # Of the server the preflight would refuse the very counts that are searched for.
        plan = msgspec.structs.replace(self.plan, connections=count, batch=min(self.plan.batch, count), force=True)
        number = len(self.steps) + 1
        path = self.folder / f"{number:02}-{count}.db"
        self._say(f"step {number}: {format_count(count)} connections, {_lasts(plan)}")
        with self._onlooker(plan) as onlooker:
            guard = _Guard(onlooker, self._memory, self._own)
            self._soak = soak = Soak(plan, path, watcher=guard)
            onlooker.stop = guard.stop = soak.stop
            onlooker.failed = soak.watcher_failed
            if self._stopping:
                soak.stop()
            # It may have been moved, or written elsewhere where its folder is gone or its disk is full.
            at = await soak.run()
        run = await asyncio.to_thread(read_run, at)
        analyses = await asyncio.to_thread(analyse, run)
        summary = summarise(run, analyses)
        step = step_of(run, analyses, summary, path.name if at == path else str(at.absolute()))
        if not step.answered and self.steps and step.outcome == "failed":
            # A server that is not there says nothing of this count.
            step.outcome, self._gone = "stopped", f"nothing answered any more in the step of {format_count(count)}"
        self.steps.append(step)
        self._environment, self._server = run.environment, step.server
        self._forecasts.append((count, step.outcome == "held", analyses.foretold))
        self._say(step_line(step))


def _lasts(plan: Plan) -> str:
    hold_s = plan.hold_s or 0.0
    return f"{format_duration(round(plan.baseline_s + plan.schedule.end_s + hold_s + plan.residue_s))} if all are held"


class _Guard:
    """Passes on what happens, and ends the step where this host's own memory runs out: the kernel would end somebody.

    ``total``: bytes of memory that this host has; None where that is not known, and then nothing is guarded. ``own``: the metric
    of what is available on it.
    """

    def __init__(self, onlooker: Observer, total: int | None, own: str = HOST_AVAILABLE_BYTES) -> None:
        self.stop: Callable[[str], None] = lambda _: None
        self._to, self._total, self._own = onlooker, total, own
        self._before: float | None = None
        self._driven = False

    def phase(self, phase: Phase) -> None:
        self._driven |= phase.name == "ramp"
        self._to.phase(phase)

    def tick(self, t_s: float, tick: Tick) -> None:
        self._to.tick(t_s, tick)

    def finding(self, finding: Finding) -> None:
        self._to.finding(finding)

    def planned(self, plan: Plan) -> None:
        self._to.planned(plan)

    def resumed(self, so_far: Tick) -> None:
        self._to.resumed(so_far)

    def sample(self, sample: Sample) -> None:
        self._to.sample(sample)
        free = sample.values.get(self._own)
        if free is None or self._total is None:
            return
        if not self._driven:
            self._before = free
        elif self._before is not None and free < memory_floor(self._total, self._before):
            self.stop(f"this host has {format_bytes(free)} of memory left")


class _Rest:
    """The server as it was before the first step, and waiting until it is so again.

    By its own count of connections, where it has a status page, which an agent may read; else by the TCP sockets of its host,
    until they are as few as before or become no fewer: other programs have some too.
    """

    def __init__(self, plan: Plan, *, local: bool) -> None:
        # Where an agent samples, the listener may be in another network namespace of this host.
        self._ports = {target.port for target in plan.targets} if local and plan.agent is None else set()
        self._local = local
        self._link = None if plan.agent is None else Link(plan)
        self._counts = plan.status_url is not None
        self._status = None if plan.status_url is None else StatusReader(plan.status_url)
        self._before = 0.0

    @classmethod
    async def now(cls, plan: Plan, *, local: bool) -> _Rest:
        rest = cls(plan, local=local)
        rest._before = await rest._open() or 0.0
        await rest.close()
        return rest

    def listens(self) -> bool:
        """Whether somebody listens on every port; where the server is elsewhere, that is not known, and assumed."""
        return all(read_listeners(port) for port in self._ports)

    async def wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        """What is still amiss after :data:`REST_S`; "" as soon as it is at rest again."""
        try:
            return await self._wait(ours, stopped)
        finally:
            # One connection of ours more would be counted in the step.
            await self.close()

    async def _wait(self, ours: int, stopped: Callable[[], bool]) -> str:
        most = self._before + _OTHERS + _OTHERS_SHARE * ours
        latest = time.monotonic() + REST_S
        fewest, fell = math.inf, time.monotonic()
        while not stopped():
            listens, still = self.listens(), await self._open()
            if still is not None and still < fewest:
                fewest, fell = still, time.monotonic()
            settled = not self._counts and time.monotonic() - fell >= _SETTLED_S
            if listens and still is not None and (still <= most or settled):
                return ""
            if time.monotonic() >= latest:
                waited = f"{REST_S:.0f} s after the drain"
                if not listens:
                    return f"nobody listens on port {', '.join(map(str, sorted(self._ports)))} any more, {waited}"
                if still is None:
                    return f"the server's status page does not answer, {waited}"
                return f"the server counts {format_count(still - self._before)} connections more than at the start, {waited}"
            # An agent samples once a second.
            await asyncio.sleep(_LOOK_S if self._link is None else 1.0)
        return ""

    async def _open(self) -> float | None:
        """Connections of the server by its own count, else the TCP sockets of this host; None while its page does not answer."""
        if self._link is not None:
            try:
                latest = (await self._link.hello(measure=False)).latest
            except PeerError:
                return None
            self._counts = STATUS_ACTIVE in latest
            return latest.get(STATUS_ACTIVE, latest.get(KERNEL_TCP_ALLOC, 0.0))
        if self._status is not None:
            try:
                return (await self._status.read()).get(STATUS_ACTIVE, 0.0)
            except PeerError:
                return None
        if not self._local:
            return 0.0
        return (await asyncio.to_thread(read_counters)).values.get(KERNEL_TCP_ALLOC, 0.0)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        if self._status is not None:
            await self._status.close()
