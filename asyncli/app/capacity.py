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
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis.bottleneck import GaveWay, memory_floor
from asyncli.analysis.capacity import FEW, RULE, Bracket, Prediction, Search, bracket, next_count, prediction, verdict
from asyncli.analysis.forecast import Forecast
from asyncli.app.check import check
from asyncli.app.recorder import NoObserver
from asyncli.app.results import read_results
from asyncli.app.settle import Rest
from asyncli.app.soak import Soak
from asyncli.collect.listening import nothing_listens
from asyncli.data_file import read_data
from asyncli.environment import probe_host
from asyncli.errors import AsyncliError, EngineError, PlanError, StoreError
from asyncli.findings.bottleneck import words_of
from asyncli.findings.capacity import not_at_rest, server_gone
from asyncli.findings.probes import needs_root
from asyncli.metrics import HOST_AVAILABLE_BYTES
from asyncli.plan import Plan, shown_plan
from asyncli.preflight import checks_to_findings, refusals, refuse
from asyncli.preflight.checks import host_checks
from asyncli.records import Check, Environment, Finding, Phase, Sample
from asyncli.report.capacity_report import SCHEMA, Capacity, Step, step_line, step_of, with_lifetime_limit
from asyncli.report.livestate import LiveObserver
from asyncli.topology import place_of
from asyncli.units import format_bytes, format_count, format_duration, format_many
from asyncli.values import MOST_CONNECTIONS

if TYPE_CHECKING:
    from asyncli.engine.probe import TlsFacts

#: What ends connections however few there are; the rest of what the preflight finds of a server is what is searched for.
_TIMER_CHECKS = frozenset({
    "nginx_keepalive_timeout", "nginx_client_header_timeout", "nginx_keepalive_requests", "nginx_keepalive_time",
})  # fmt: skip


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
        onlooker: Callable[[Plan], LiveObserver] = LiveObserver,
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
        self._tls: TlsFacts | None = None
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
        rest = await Rest.now(self.plan, local=local)
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
        steps = with_lifetime_limit(self.steps) if word == "failed" else self.steps
        failed = [one for one in steps if one.outcome == "failed"]
        decisive = [one for one in failed if one.asked == known.failed]
        if word == "failed":
            # Of few, too few have ended to say why; the largest step has the most.
            timed, told = [one for one in failed if one.tried.timed], [one for one in failed if one.is_explained]
            sure = [one for one in failed if not one.tried.chance]
            decisive = sorted(timed or told or sure or decisive, key=lambda one: one.asked)
        why = why if self.unheard is None else self.unheard.evidence
        ours = [one for one in steps[-1:] if one.outcome == "ours"]
        ways = (ours or decisive)[-1].gave_way if ours or decisive else []
        if word == "invalid" and not ways:
            words = words_of("preflight", short=self.search.bound, remedy=self.search.mend)
            ways = [GaveWay("host", "preflight", words.evidence, words.remedy)]
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
            steps=steps,
            findings=[*self._findings, *([server_gone(self._gone)] if self._gone else [])],
            search=self.search,
            plan=shown_plan(self.plan),
            environment=self._environment,
        )

    def _foretold(self, known: Bracket) -> Prediction | None:
        """By the cost of the greatest step that held; what limits alone say needs none."""
        if not any(one.tested for one in self.steps):
            return None
        best = sorted(self._forecasts, key=lambda one: (one[1], one[0]), reverse=True)
        return next((said for _, _, one in best if (said := prediction(one, known, self.search.within)) is not None), None)

    async def _examine(self) -> bool:
        """Refuse what no count would mend: limits of this host, and timers of the server. Whether that is on this host."""
        plan = sized(self.plan, min(self.search.start, self.search.most))
        limits, _ = await probe_host(plan)
        self._memory = limits.memory_total
        found = await check(plan, connects=not plan.force, beats=False)
        spread, self._tls = found.spread, found.tls
        # What a flag or root would show of the server, in every step.
        self._findings += [one for one in found.findings if one.code == needs_root.code]
        self._findings += checks_to_findings(one for one in found.checks if one.code == "nginx_stub_status")
        watched: dict[str, object] = {"local": spread.local, "agent": None if plan.agent is None else {}}
        self._own = place_of(watched).of_ours(HOST_AVAILABLE_BYTES)
        if not self.plan.force:
            refuse([one for one in found.checks if not one.code.startswith("nginx_") or one.code in _TIMER_CHECKS])
            if spread.local:
                places = {(one.address, one.port) for one in spread.destinations}
                self.unheard = nothing_listens(places, None, "no step was begun")
                self._findings += [] if self.unheard is None else [self.unheard]
        return spread.local

    async def _step(self, count: int) -> None:
        # Of the server the preflight would refuse the very counts that are searched for.
        plan = msgspec.structs.replace(sized(self.plan, count), force=True)
        if count <= FEW and (aged_s := max((one.ended_s for one in self.steps), default=0.0)):
            # They are to get as old as those that ended, and to be heard of then.
            plan = msgspec.structs.replace(plan, hold_s=max(plan.hold_s or 0.0, aged_s + plan.keepalive_s / 2 + plan.timeout_s))
        number = len(self.steps) + 1
        path = self.folder / f"{number:02}-{count}.db"
        self._say(f"step {number}: {format_count(count)} connections, {_lasts(plan)}")
        with self._onlooker(plan) as onlooker:
            guard = _Guard(self._memory, self._own)
            self._soak = soak = Soak(plan, path, observer=onlooker, guard=guard, tls=self._tls)
            onlooker.stop = guard.stop = soak.stop
            onlooker.failed = soak.observer_failed
            if self._stopping:
                soak.stop()
            await soak.run()
        results = await asyncio.to_thread(read_results, path)
        analyses = await asyncio.to_thread(lambda: results.analyses)
        step = step_of(results.records, analyses, results.summary, path.name)
        if not step.tested and self.steps and step.outcome == "failed":
            # A server that is not there says nothing of this count.
            step.outcome, self._gone = "stopped", f"nothing answered any more in the step of {format_count(count)}"
        self.steps.append(step)
        self._environment, self._server = results.records.environment, step.server
        self._forecasts.append((count, step.outcome == "held", analyses.prediction))
        self._say(step_line(step))


def _lasts(plan: Plan) -> str:
    hold_s = plan.hold_s or 0.0
    return f"{format_duration(round(plan.baseline_s + plan.schedule.end_s + hold_s + plan.residue_s))} if all are held"


class _Guard(NoObserver):
    """Ends the step where this host's own memory runs out: the kernel would end somebody.

    ``total``: bytes of memory that this host has; None where that is not known, and then nothing is guarded. ``own``: the metric
    of what is available on it.
    """

    def __init__(self, total: int | None, own: str = HOST_AVAILABLE_BYTES) -> None:
        self.stop: Callable[[str], None] = lambda _: None
        self._total, self._own = total, own
        self._before: float | None = None
        self._driven = False

    def phase(self, phase: Phase) -> None:
        self._driven |= phase.name == "ramp"

    def sample(self, sample: Sample) -> None:
        free = sample.values.get(self._own)
        if free is None or self._total is None:
            return
        if not self._driven:
            self._before = free
        elif self._before is not None and free < memory_floor(self._total, self._before):
            self.stop(f"this host has {format_bytes(free)} of memory left")


# The preflight predicts to two digits.
_TWO_DIGITS = 1.02
_MEMORY = ("memory", "cgroup_memory")


# How many it may ask for: what this host can carry by its preflight, or what the user says.


async def bounded(plan: Plan, start: int, most: int | None, within: float) -> Search:
    """The counts that the search may ask for; ``most`` None: as many as this host can carry. Raises
    :class:`~asyncli.errors.PreflightError` where this host cannot carry ``most``."""
    rows = await asyncio.to_thread(read_data, plan, MOST_CONNECTIONS)
    if rows is not None and rows.rows < max(start, most or 0):
        raise PlanError(f"--data: {plan.data} has {format_many(rows.rows, 'row')}; write --start and --most of at most that")
    if most is None:
        here, why = await most_here(plan)
        if rows is not None and rows.rows < here:
            return Search(start, rows.rows, within)
        told = checks_to_findings([] if why is None else [why])
        return Search(min(start, here), here, within, *((told[0].evidence, told[0].remedy) if told else ()))
    if start > most:
        raise PlanError(f"--start: {start} is more than --most {most}; write at most that")
    checks = await _checks(plan, most)
    if not plan.force:
        refuse(checks)
    return Search(start, most, within)


def sized(plan: Plan, count: int) -> Plan:
    return msgspec.structs.replace(plan, connections=count, batch=min(plan.batch, count))


async def _checks(plan: Plan, count: int) -> list[Check]:
    limits, spread = await probe_host(sized(plan, count))
    return host_checks(sized(plan, count), spread, limits)


async def most_here(plan: Plan) -> tuple[int, Check | None]:
    """The most connections that this host's preflight allows, to two digits, and the check that forbids more.

    (MOST_CONNECTIONS, None) where none does. A memory warning counts as short. Raises :class:`PreflightError` where this host
    cannot carry even one.
    """

    async def short(count: int) -> Check | None:
        checks = await _checks(plan, count)
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


def _two_digits(number: int) -> int:
    """Rounded down; numbers below a hundred stay."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return number // step * step
