"""The search for the number of connections that a server holds, from plan to bracket.

Start at :meth:`CapacitySearch.run`.

Each step is an ordinary soak with its own run file. It starts with the server at rest, so that the
memory is that of its own connections, a failed step spoils no other, and 'asyncli report' can read
each later. It installs no signal handler and does not touch the terminal.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asyncli.analysis.bottleneck import Bottleneck
from asyncli.analysis.capacity import (
    FEW,
    RULE,
    Absence,
    Bracket,
    Prediction,
    Search,
    Tried,
    Verdict,
    moved_limit,
    prediction,
    served_before,
)  # fmt: skip
from asyncli.analysis.forecast import Forecast
from asyncli.analysis.pace import (
    Attempt,
    PaceTest,
    at_first_pace,
    connect_rate,
    next_attempt,
    pace_test,
    paced_bracket,
    paced_verdict,
    slower_ramp_s,
)
from asyncli.app.check import check
from asyncli.app.decisive_step import decisive_step
from asyncli.app.results import read_results
from asyncli.app.search_range import sized
from asyncli.app.settle import Rest
from asyncli.app.soak import Soak
from asyncli.app.step_guard import StepGuard
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
from asyncli.model.consistency import flag_of, plan_templates
from asyncli.model.errors import AsyncliError, EngineError, PeerError, StoreError
from asyncli.model.masks import masked_url
from asyncli.model.metrics import HOST_AVAILABLE_BYTES
from asyncli.model.plan import Plan, shown_plan
from asyncli.model.records import Check, Environment, Finding
from asyncli.model.topology import place_of
from asyncli.model.units import format_count, format_duration, format_rate, pace_of
from asyncli.preflight import checks_to_findings, refuse
from asyncli.report.capacity_report import SCHEMA, Capacity, step_line
from asyncli.report.capacity_step import (
    Step,
    doubts_of_largest_held,
    step_of,
    with_lifetime_limit,
    with_own_limit,
)
from asyncli.report.livestate import LiveObserver

if TYPE_CHECKING:
    from asyncli.engine.tls_facts import TlsFacts

#: Checks of what ends connections at any count. Other limits of the server are what the search
#: looks for.
_TIMER_CHECKS = frozenset(
    {
        "nginx_keepalive_timeout",
        "nginx_client_header_timeout",
        "nginx_keepalive_requests",
        "nginx_keepalive_time",
    }
)
# Findings of what a flag, or root, would show more of the server in every step.
_SHOWS_MORE = frozenset({needs_root.code, probe_refused.code, *OF_ANOTHER})
# Checks of whether the server's own counts are read.
_PAGE_CHECKS = frozenset({"nginx_stub_status", "status_page"})


class CapacitySearch:
    """A search within ``search`` by soaks of ``plan``, with their run files in ``folder``, which
    must exist.

    ``stop()`` drains the current step and ends the search; cancelling the task ends it at once.
    ``make_observer`` makes the observer of a step, and ``say`` gets a line at each step's start and
    end.
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
        self.plan = plan
        self.search = search
        self.folder = folder
        self.steps: list[Step] = []
        self._make_observer = make_observer
        self._say = say
        self._soak: Soak | None = None
        self._stopping = False
        self._findings: list[Finding] = []
        self._forecasts: list[_StepForecast] = []
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
        """Drain the current step and end; safe to repeat, callable from a signal handler."""
        self._stopping = True
        if self._soak is not None:
            self._soak.stop()

    async def run(self) -> None:
        """Run steps until the answer is known.

        Raises :class:`AsyncliError` if the first step cannot start.
        """
        is_local = await self._examine()
        if self.no_listener is not None:
            return
        rest = await Rest.now(self.plan, local=is_local)
        while True:
            attempt = next_attempt(self.search, self._tried)
            if attempt is None:
                return
            if self.steps and not await self._server_rests(rest):
                return
            if self._stopping:
                return
            try:
                await self._step(attempt, rest)
            except AsyncliError as error:
                if not self.steps:
                    raise
                self._end_with(error, rest)
                return

    @property
    def _tried(self) -> list[Tried]:
        return [step.tried for step in self.steps]

    async def _server_rests(self, rest: Rest) -> bool:
        """Wait until the server is at rest. False, and the end, if it listens no more."""
        why = await rest.wait(self.steps[-1].asked, lambda: self._stopping)
        if not why:
            return True
        if rest.listens():
            self._findings.append(not_at_rest(why))
            return True
        self._end(why, listens=False)
        return False

    def _end_with(self, error: AsyncliError, rest: Rest) -> None:
        """End the search because a step could not run."""
        if isinstance(error, StoreError | EngineError):
            self._broken = str(error)
            return
        # The server answered before: its process or its status page is gone.
        self._end(str(error), listens=isinstance(error, PeerError) and rest.listens())

    def _end(self, why: str, *, listens: bool) -> None:
        """End the search because the server serves no further step.

        ``listens``: nothing shows that it ended.
        """
        self._gone = why
        self._absence = "silent" if listens else "ended"

    @property
    def result(self) -> Capacity:
        """The result so far."""
        tried = self._tried
        known = paced_bracket(self.search, tried)
        word, why = paced_verdict(
            self.search, tried, gone=self._absence, broken=self._broken, stopped=self._stopping
        )
        pace = pace_test(self.search, tried)
        steps = self.steps
        if word == "failed":
            steps = with_lifetime_limit(steps)
        return Capacity(
            schema=SCHEMA,
            verdict=word,
            why=self._reason(word, why),
            started=self._began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=time.monotonic() - self._zero,
            folder=str(self.folder),
            urls=tuple(map(masked_url, self.plan.urls)),
            server=self._server,
            bracket=known,
            rule=RULE,
            limits=list(self.plan.fail_if),
            gave_way=self._bottlenecks(word, steps, known, pace),
            forecast=self._prediction(known),
            steps=steps,
            findings=[
                *self._findings,
                *self._doubts(at_first_pace(tried), known, pace),
                *doubts_of_largest_held(steps),
            ],
            search=self.search,
            plan=shown_plan(self.plan),
            environment=self._environment,
            pace=pace,
        )

    def _reason(self, word: Verdict, why: str) -> str:
        """Why the search has this verdict. ``why``: by its steps alone."""
        if self.no_listener is not None:
            return self.no_listener.evidence
        if word == "untested" and self.steps:
            return self.steps[-1].why
        if word not in ("held", "found"):
            return why
        before = served_before(at_first_pace(self._tried), self.plan.protocol)
        if not before:
            return why
        if not why:
            return not_a_fresh_broker(before)
        return f"{why}; {not_a_fresh_broker(before)}"

    def _bottlenecks(
        self, word: Verdict, steps: Sequence[Step], known: Bracket, pace: PaceTest | None
    ) -> list[Bottleneck]:
        """Those of the decisive step, or the check of this host that bounds the search."""
        if pace is not None and pace.limits == "connects_in_a_time":
            return [connect_rate(pace, steps[-1].gave_way[0])]
        first_pace = [step for step in steps if not step.slower_ramp]
        step = decisive_step(word, first_pace, known)
        if step is not None and step.gave_way:
            return step.gave_way
        if word != "invalid":
            return []
        words = words_of("preflight", short=self.search.bound, remedy=self.search.mend)
        return [Bottleneck("host", "preflight", words.evidence, words.remedy)]

    def _doubts(
        self, tried: Sequence[Tried], known: Bracket, pace: PaceTest | None
    ) -> Iterator[Finding]:
        """Findings on how the search ended, and on steps that depend on earlier ones. ``tried``: at
        the first pace.
        """
        if self._absence == "ended":
            yield server_gone(self._gone)
        elif self._absence == "silent":
            yield server_silent(self._gone)
        elif self._absence == "refusing":
            refused = self.steps[-1]
            yield limit_moved(refused.asked, 0, max(step.served for step in tried), self._gone)
        flag = same_in_each_step(self.plan)
        if flag and len(tried) > 1:
            yield same_clients(flag)
        if pace is not None and pace.limits == "connects_in_a_time":
            return
        if pace is not None and pace.limits == "moved":
            yield limit_moved(pace.asked, pace.served, pace.asked)
            return
        moved = moved_limit(tried)
        if moved is not None:
            first_refused, served_more = moved
            yield limit_moved(first_refused.asked, first_refused.served, served_more.served)
            return
        before = served_before(tried, self.plan.protocol)
        if before:
            yield broker_served_before(known.held, before)

    def _prediction(self, known: Bracket) -> Prediction | None:
        """The forecast of the largest held step that has one, else of the largest step."""
        if not any(step.tested for step in self.steps):
            return None
        best_first = sorted(
            self._forecasts, key=lambda step: (step.is_held, step.asked), reverse=True
        )
        for step in best_first:
            predicted = prediction(step.forecast, known, self.search.within)
            if predicted is not None:
                return predicted
        return None

    async def _examine(self) -> bool:
        """Check what no smaller count would fix: limits of this host and timers of the server.

        Returns whether the server is on this host. Raises :class:`AsyncliError` if a check fails.
        """
        plan = sized(self.plan, min(self.search.start, self.search.most))
        limits, _ = await probe_host(plan)
        self._memory = limits.memory_total
        examined = await check(plan, connects=True, beats=False)
        is_local = examined.spread.local
        self._tls = examined.tls
        for finding in examined.findings:
            if finding.code in _SHOWS_MORE:
                self._findings.append(finding)
        of_pages = [check for check in examined.checks if check.code in _PAGE_CHECKS]
        self._findings += checks_to_findings(of_pages)
        place: dict[str, object] = {"local": is_local, "agent": None if plan.agent is None else {}}
        self._own = place_of(place).of_ours(HOST_AVAILABLE_BYTES)
        if self.plan.force:
            return is_local
        refuse(filter(_holds_at_any_count, examined.checks))
        if is_local:
            destinations = examined.spread.destinations
            places = {(destination.address, destination.port) for destination in destinations}
            self.no_listener = nothing_listens(places, None, "no step was started")
            if self.no_listener is not None:
                self._findings.append(self.no_listener)
        return is_local

    async def _step(self, attempt: Attempt, rest: Rest) -> None:
        number = len(self.steps) + 1
        count = attempt.asked
        plan = self._plan_of_step(number, attempt)
        path = self.folder / f"{number:02}-{count}.db"
        before_s = plan.baseline_s + plan.schedule.end_s
        lasts_s = round(before_s + (plan.hold_s or 0.0) + plan.residue_s)
        connections = f"{format_count(count)} connections"
        if attempt.slower:
            connections += f", opened more slowly ({format_rate(plan.asked_per_s)})"
        self._say(f"step {number}: {connections}, {format_duration(lasts_s)} if all are held")
        await self._soak_step(plan, path)
        results = await asyncio.to_thread(read_results, path)
        analyses = await asyncio.to_thread(lambda: results.analyses)
        step = step_of(results.records, analyses, results.summary, path.name)
        step.slower_ramp = attempt.slower
        if not step.tested and self.steps and step.outcome == "failed":
            # The server has gone, so the step says nothing about this count.
            step.outcome = "stopped"
            self._end_unanswered(step, rest)
        self.steps = with_own_limit([*self.steps, step])
        self._environment = results.records.environment
        self._server = step.server
        is_held = step.outcome == "held"
        self._forecasts.append(_StepForecast(count, is_held, analyses.prediction))
        self._say(step_line(self.steps[-1]))

    def _end_unanswered(self, step: Step, rest: Rest) -> None:
        """End the search because nothing answered in ``step``. A server that refuses every
        connection is neither silent nor gone.
        """
        why = f"nothing answered in the step of {format_count(step.asked)}"
        first = step.gave_way[0]
        if first.refuses and rest.listens():
            self._gone = first.evidence
            self._absence = "refusing"
            return
        has_ended = first.code == "refused" and first.side == "server"
        self._end(f"{why}: {first.evidence}", listens=not has_ended and rest.listens())

    def _plan_of_step(self, number: int, attempt: Attempt) -> Plan:
        count = attempt.asked
        # Forced: the preflight would refuse the very counts that the search looks for. The field
        # {random} is made from the seed: clients of each step have identities of their own.
        seed = (self.plan.seed + number - 1) & _LARGEST_SEED
        plan = msgspec.structs.replace(sized(self.plan, count), force=True, seed=seed)
        if attempt.slower:
            plan = _with_slower_ramp(plan)
        aged_s = max((step.ended_s for step in self.steps), default=0.0)
        if count > FEW or not aged_s:
            return plan
        # These connections must get as old as those that ended, and answer then.
        old_s = aged_s + plan.keepalive_s / 2 + plan.timeout_s
        return msgspec.structs.replace(plan, hold_s=max(plan.hold_s or 0.0, old_s))

    async def _soak_step(self, plan: Plan, path: Path) -> None:
        with self._make_observer(plan) as observer:
            guard = StepGuard(self._memory, self._own, plan)
            soak = Soak(plan, path, observer=observer, guard=guard, tls=self._tls)
            self._soak = soak
            observer.stop = soak.stop
            observer.failed = soak.observer_failed
            guard.stop = soak.stop
            if self._stopping:
                soak.stop()
            await soak.run()


def _with_slower_ramp(plan: Plan) -> Plan:
    """``plan`` with its connects spread evenly over more time."""
    count = plan.connections
    ramp_s = slower_ramp_s(count / plan.asked_per_s, plan.hold_s or 0.0)
    batch, interval_s = pace_of(count / ramp_s)
    return msgspec.structs.replace(plan, batch=batch, interval_s=interval_s)


class _StepForecast(NamedTuple):
    asked: int
    is_held: bool
    forecast: Forecast


def _holds_at_any_count(check: Check) -> bool:
    """Whether no smaller count would pass this check either."""
    return not check.code.startswith("nginx_") or check.code in _TIMER_CHECKS


# A signed number of 64 bits, as in a run file.
_LARGEST_SEED = 2**63 - 1


def same_in_each_step(plan: Plan) -> str:
    """The flag whose template names the same clients in each step; "" if there is none."""
    fields = msgspec.structs.asdict(plan)
    for field, template in plan_templates(fields, ()):
        if field == "mqtt_id" and "random" not in template.names:
            return flag_of(field)
    return ""
