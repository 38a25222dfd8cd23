"""The search for the number of connections that a server holds, from plan to bracket. Start at :meth:`CapacitySearch.run`.

Each step is an ordinary soak with its own run file. It starts with the server at rest, so that the memory is that of its own
connections, a failed step spoils no other, and 'asyncli report' can read each later. It installs no signal handler and does not
touch the terminal.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncli.analysis.bottleneck import Bottleneck, memory_floor
from asyncli.analysis.capacity import (
    FEW,
    RULE,
    Absence,
    Bracket,
    Prediction,
    Search,
    Tried,
    bracket,
    moved_limit,
    next_count,
    prediction,
    served_before,
    verdict,
)  # fmt: skip
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.totals import errors
from asyncli.app.check import check
from asyncli.app.recorder import NoObserver
from asyncli.app.results import read_results
from asyncli.app.settle import Rest
from asyncli.app.soak import Soak
from asyncli.collect.listening import nothing_listens
from asyncli.environment import probe_host
from asyncli.findings.bottleneck import words_of
from asyncli.findings.capacity import (
    broker_served_before,
    limit_moved,
    not_a_fresh_broker,
    not_at_rest,
    same_clients,
    server_gone,
    server_silent,
)
from asyncli.findings.probes import needs_root, probe_refused
from asyncli.findings.server import OF_ANOTHER
from asyncli.findings.tls import by_reason
from asyncli.model.consistency import flag_of, plan_templates
from asyncli.model.data_file import read_data
from asyncli.model.errors import AsyncliError, EngineError, PeerError, PlanError, StoreError
from asyncli.model.metrics import HOST_AVAILABLE_BYTES
from asyncli.model.plan import Plan, shown_plan
from asyncli.model.private_values import masked_url
from asyncli.model.records import Check, Environment, Finding, Phase, Sample, Tick
from asyncli.model.topology import place_of
from asyncli.model.units import format_bytes, format_count, format_duration, format_many
from asyncli.model.values import MOST_CONNECTIONS
from asyncli.preflight import checks_to_findings, refusals, refuse
from asyncli.preflight.host_checks import host_checks
from asyncli.report.capacity_report import SCHEMA, Capacity, step_line
from asyncli.report.capacity_step import Step, step_of, with_lifetime_limit, with_own_limit
from asyncli.report.livestate import LiveObserver
from asyncli.report.summary import Summary
from asyncli.report.thresholds import parse

if TYPE_CHECKING:
    from asyncli.engine.probe import TlsFacts

#: Checks of what ends connections at any count. Other limits of the server are what the search looks for.
_TIMER_CHECKS = frozenset({
    "nginx_keepalive_timeout", "nginx_client_header_timeout", "nginx_keepalive_requests", "nginx_keepalive_time",
})  # fmt: skip
# Checks of whether the server's own counts are read.
_PAGE_CHECKS = frozenset({"nginx_stub_status", "status_page"})


class CapacitySearch:
    """A search within ``search`` by soaks of ``plan``, with their run files in ``folder``, which must exist.

    ``stop()`` drains the current step and ends the search; cancelling the task ends it at once. ``make_observer`` makes the
    observer of a step, and ``say`` gets a line at each step's start and end.
    """

    def __init__(
        self,
        plan: Plan,
        search: Search,
        folder: Path,
        *,
        make_observer: Callable[[Plan], LiveObserver] = LiveObserver,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan, self.search, self.folder = plan, search, folder
        self.steps: list[Step] = []
        self._make_observer, self._say = make_observer, say
        self._soak: Soak | None = None
        self._stopping = False
        self._findings: list[Finding] = []
        self._forecasts: list[tuple[int, bool, Forecast]] = []
        self._environment: Environment = {}
        self._server = "the server"
        #: Why the server served no further step ("": it did), and how.
        self._gone = ""
        self._absence: Absence = ""
        self._broken = ""
        #: A finding if nothing listens before the first step.
        self.no_listener: Finding | None = None
        self._memory: int | None = None
        self._own = HOST_AVAILABLE_BYTES
        self._tls: TlsFacts | None = None
        self._began = datetime.datetime.now(datetime.UTC)
        self._zero = time.monotonic()

    def stop(self) -> None:
        """Drain the current step and end; safe to repeat, callable from a signal handler of the loop."""
        self._stopping = True
        if self._soak is not None:
            self._soak.stop()

    async def run(self) -> None:
        """Run steps until the answer is known. Raises :class:`AsyncliError` if the first step cannot start."""
        local = await self._examine()
        if self.no_listener is not None:
            return
        rest = await Rest.now(self.plan, local=local)
        while (count := next_count(self.search, [one.tried for one in self.steps])) is not None:
            if self.steps and (why := await rest.wait(self.steps[-1].asked, lambda: self._stopping)):
                if not rest.listens():
                    self._end(why, listens=False)
                    return
                self._findings.append(not_at_rest(why))
            if self._stopping:
                return
            try:
                await self._step(count, rest)
            except AsyncliError as error:
                if not self.steps:
                    raise
                if isinstance(error, StoreError | EngineError):
                    self._broken = str(error)
                else:
                    # The server answered before: its process or its status page is gone.
                    self._end(str(error), listens=isinstance(error, PeerError) and rest.listens())
                return

    def _end(self, why: str, *, listens: bool) -> None:
        """End the search because the server serves no further step. ``listens``: nothing shows that it ended."""
        self._gone = why
        self._absence = "silent" if listens else "ended"

    @property
    def found(self) -> Capacity:
        """The result so far."""
        tried = [one.tried for one in self.steps]
        known = bracket(tried)
        word, why = verdict(self.search, tried, gone=self._absence, broken=self._broken, stopped=self._stopping)
        if word in ("held", "found") and (before := served_before(tried, self.plan.protocol)):
            why = "; ".join((*([why] if why else []), not_a_fresh_broker(before)))
        steps = with_lifetime_limit(self.steps) if word == "failed" else self.steps
        failed = [one for one in steps if one.outcome == "failed"]
        decisive = [one for one in failed if one.asked == known.failed]
        if word == "failed":
            # The largest step lost the most connections, so it explains best.
            timed, explained = [one for one in failed if one.tried.timed], [one for one in failed if one.is_explained]
            sure = [one for one in failed if not one.tried.chance]
            decisive = sorted(timed or explained or sure or decisive, key=lambda one: one.asked)
        why = why if self.no_listener is None else self.no_listener.evidence
        ours = [one for one in steps[-1:] if one.outcome == "ours"]
        bottlenecks = (ours or decisive)[-1].gave_way if ours or decisive else []
        if word == "invalid" and not bottlenecks:
            words = words_of("preflight", short=self.search.bound, remedy=self.search.mend)
            bottlenecks = [Bottleneck("host", "preflight", words.evidence, words.remedy)]
        return Capacity(
            schema=SCHEMA,
            verdict=word,
            why=why,
            started=self._began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=time.monotonic() - self._zero,
            folder=str(self.folder),
            urls=tuple(map(masked_url, self.plan.urls)),
            server=self._server,
            bracket=known,
            rule=RULE,
            limits=list(self.plan.fail_if),
            gave_way=bottlenecks,
            forecast=self._prediction(known),
            steps=steps,
            findings=[*self._findings, *self._doubts(tried, known)],
            search=self.search,
            plan=shown_plan(self.plan),
            environment=self._environment,
        )

    def _doubts(self, tried: Sequence[Tried], known: Bracket) -> Iterator[Finding]:
        """Findings on how the search ended, and on steps that depend on earlier ones."""
        if self._absence == "ended":
            yield server_gone(self._gone)
        elif self._absence == "silent":
            yield server_silent(self._gone)
        if len(tried) > 1 and (flag := same_in_each_step(self.plan)):
            yield same_clients(flag)
        moved = moved_limit(tried)
        if moved is not None:
            refused, more = moved
            yield limit_moved(refused.asked, refused.served, more.served)
            return
        if before := served_before(tried, self.plan.protocol):
            yield broker_served_before(known.held, before)

    def _prediction(self, known: Bracket) -> Prediction | None:
        """The forecast of the largest held step that has one, else of the largest step."""
        if not any(one.tested for one in self.steps):
            return None
        best = sorted(self._forecasts, key=lambda one: (one[1], one[0]), reverse=True)
        predictions = (prediction(one, known, self.search.within) for _, _, one in best)
        return next((one for one in predictions if one is not None), None)

    async def _examine(self) -> bool:
        """Check what no smaller count would fix: limits of this host and timers of the server. Returns whether the server is on
        this host. Raises :class:`AsyncliError` if a check fails."""
        plan = sized(self.plan, min(self.search.start, self.search.most))
        limits, _ = await probe_host(plan)
        self._memory = limits.memory_total
        found = await check(plan, connects=True, beats=False)
        spread, self._tls = found.spread, found.tls
        # A flag or root would show more of the server, in every step.
        self._findings += [one for one in found.findings if one.code in (needs_root.code, probe_refused.code, *OF_ANOTHER)]
        self._findings += checks_to_findings(one for one in found.checks if one.code in _PAGE_CHECKS)
        place: dict[str, object] = {"local": spread.local, "agent": None if plan.agent is None else {}}
        self._own = place_of(place).of_ours(HOST_AVAILABLE_BYTES)
        if not self.plan.force:
            refuse([one for one in found.checks if not one.code.startswith("nginx_") or one.code in _TIMER_CHECKS])
            if spread.local:
                places = {(one.address, one.port) for one in spread.destinations}
                self.no_listener = nothing_listens(places, None, "no step was started")
                self._findings += [] if self.no_listener is None else [self.no_listener]
        return spread.local

    async def _step(self, count: int, rest: Rest) -> None:
        # Forced: the preflight would refuse the very counts that the search looks for.
        plan = msgspec.structs.replace(sized(self.plan, count), force=True)
        if count <= FEW and (aged_s := max((one.ended_s for one in self.steps), default=0.0)):
            # These connections must get as old as those that ended, and answer then.
            plan = msgspec.structs.replace(plan, hold_s=max(plan.hold_s or 0.0, aged_s + plan.keepalive_s / 2 + plan.timeout_s))
        number = len(self.steps) + 1
        # The field {random} is made from the seed: clients of each step have identities of their own.
        plan = msgspec.structs.replace(plan, seed=(plan.seed + number - 1) & _LARGEST_SEED)
        path = self.folder / f"{number:02}-{count}.db"
        lasts_s = round(plan.baseline_s + plan.schedule.end_s + (plan.hold_s or 0.0) + plan.residue_s)
        self._say(f"step {number}: {format_count(count)} connections, {format_duration(lasts_s)} if all are held")
        with self._make_observer(plan) as observer:
            guard = _Guard(self._memory, self._own, plan)
            self._soak = soak = Soak(plan, path, observer=observer, guard=guard, tls=self._tls)
            observer.stop = guard.stop = soak.stop
            observer.failed = soak.observer_failed
            if self._stopping:
                soak.stop()
            await soak.run()
        results = await asyncio.to_thread(read_results, path)
        analyses = await asyncio.to_thread(lambda: results.analyses)
        step = step_of(results.records, analyses, results.summary, path.name)
        if not step.tested and self.steps and step.outcome == "failed":
            # The server has gone, so the step says nothing about this count.
            step.outcome = "stopped"
            refused = step.gave_way[0].code == "refused"
            self._end(f"nothing answered in the step of {format_count(count)}", listens=rest.listens() and not refused)
        self.steps = with_own_limit([*self.steps, step])
        self._environment, self._server = results.records.environment, step.server
        self._forecasts.append((count, step.outcome == "held", analyses.prediction))
        self._say(step_line(self.steps[-1]))


class _Guard(NoObserver):
    """Ends the step at the first error answer, and before this host runs out of memory and the kernel kills a process.

    ``total``: this host's memory in bytes; None: unknown, and not guarded. ``own``: the metric of its available memory.
    """

    def __init__(self, total: int | None, own: str, plan: Plan) -> None:
        self.stop: Callable[[str], None] = lambda _: None
        self._total, self._own = total, own
        self._limited = [parse(text, Summary).key for text in plan.fail_if]
        self._before: float | None = None
        self._ramping = False

    def phase(self, phase: Phase) -> None:
        self._ramping |= phase.name == "ramp"

    def tick(self, t_s: float, tick: Tick) -> None:
        if wrong := errors(tick, self._limited):
            self.stop(f"heartbeats were answered with errors: {by_reason(wrong)}")

    def sample(self, sample: Sample) -> None:
        free = sample.values.get(self._own)
        if free is None or self._total is None:
            return
        if not self._ramping:
            self._before = free
        elif self._before is not None and free < memory_floor(self._total, self._before):
            self.stop(f"this host has {format_bytes(free)} of memory left")


# A signed number of 64 bits, as in a run file.
_LARGEST_SEED = 2**63 - 1


def same_in_each_step(plan: Plan) -> str:
    """The flag whose template names each client, but the same ones in each step; "" if there is none."""
    fields = msgspec.structs.asdict(plan)
    for field, template in plan_templates(fields, ()):
        if field == "mqtt_id" and "random" not in template.names:
            return flag_of(field)
    return ""


# The preflight predicts to two digits.
_TWO_DIGITS = 1.02
_MEMORY = ("memory", "cgroup_memory")


async def make_search(plan: Plan, start: int, most: int | None, within: float) -> Search:
    """The range of the search; ``most`` None: as many as this host can carry. Raises
    :class:`~asyncli.model.errors.PreflightError` if this host cannot carry ``most``."""
    rows = await asyncio.to_thread(read_data, plan, MOST_CONNECTIONS)
    if rows is not None and rows.rows < max(start, most or 0):
        raise PlanError(f"--data: {plan.data} has {format_many(rows.rows, 'row')}; lower --start and --most to at most that")
    if most is None:
        limit, check = await host_limit(plan)
        if rows is not None and rows.rows < limit:
            return Search(start, rows.rows, within)
        why = checks_to_findings([] if check is None else [check])
        return Search(min(start, limit), limit, within, *((why[0].evidence, why[0].remedy) if why else ()))
    if start > most:
        raise PlanError(f"--start: {start} is more than --most {most}; lower --start or raise --most")
    checks = await _checks(plan, most)
    if not plan.force:
        refuse(checks)
    return Search(start, most, within)


def sized(plan: Plan, count: int) -> Plan:
    return msgspec.structs.replace(plan, connections=count, batch=min(plan.batch, count))


async def _checks(plan: Plan, count: int) -> list[Check]:
    limits, spread = await probe_host(sized(plan, count))
    return host_checks(sized(plan, count), spread, limits)


async def host_limit(plan: Plan) -> tuple[int, Check | None]:
    """The most connections that this host's preflight allows, to two digits, and the check that forbids more, else None.

    A memory warning counts as short. Raises :class:`PreflightError` if this host cannot carry even one connection.
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
    # Rounded down to two digits.
    step = int(10 ** max(0, len(str(low)) - 2))
    return low // step * step, why
