"""What experiments share: benches of lab servers, steps that may fail alone, rounds; and
:func:`run`, which makes the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncli.analysis.bench_result import BenchResult, evaluate_bench
from asyncli.app.bench import Bench
from asyncli.collect.processes import ProcessesGoneError
from asyncli.experiments import Experiment, ExperimentPlan, command_of
from asyncli.experiments.record import SCHEMA, Conclusions, Record, Round, Rounds, rotated
from asyncli.findings.experiment import (
    ended_early,
    left_out,
    not_concluded,
    quick_run,
    round_failed,
    stopped,
    untested,
)
from asyncli.lab.base import LabServer
from asyncli.model.benchplan import BenchRun, build_bench_plan
from asyncli.model.errors import AsyncliError, PlanError
from asyncli.model.plan import Layer
from asyncli.model.records import Environment, Finding


class Context:
    """One run of an experiment."""

    def __init__(
        self, plan: Any, say: Callable[[str], None] = lambda _: None, folder: Path | None = None
    ) -> None:
        self.plan = plan
        self.say = say
        #: For run files kept beside the record; None: none are kept.
        self.folder = folder
        self.rounds: list[Round] = []
        self.findings: list[Finding] = []
        self.environment: Environment = {}
        #: Servers or steps that failed.
        self.left_out: set[str] = set()

    def wanted(self, server: str) -> bool:
        """Whether ``--only`` selects it, and it has not failed."""
        return server not in self.left_out and (not self.plan.only or server in self.plan.only)

    @contextlib.contextmanager
    def step(self, server: str, what: str) -> Iterator[None]:
        """Run a part that may fail alone: an error other than :class:`PlanError` becomes a finding,
        and ``server`` is left out from then on.
        """
        try:
            yield
        except PlanError:
            raise
        except (AsyncliError, ProcessesGoneError) as error:
            self.left_out.add(server)
            why, _, remedy = str(error).partition("; ")
            self.findings.append(left_out(what, why, remedy))
            self.say(f"{what} is left out: {error}")

    async def run_rounds(
        self, names: Sequence[str], measure: Callable[[Context, str, int], Awaitable[None]]
    ) -> None:
        """Measure each name in each round as a step, in rotated order."""
        for number in range(self.plan.rounds):
            for name in rotated(names, number):
                if self.wanted(name):
                    with self.step(name, name):
                        await measure(self, name, number)

    def add(self, step: str, number: int, **figures: Any) -> None:
        """Add the figures of ``step`` in round ``number``; unusable ones get a finding."""
        self.rounds.append({"step": step, "round": number, **figures})
        if not figures.get("usable", True):
            self.findings.append(round_failed(step, number + 1, figures["unusable"]))

    def report(self, number: int, step: str, words: str) -> None:
        self.say(f"round {number + 1} of {self.plan.rounds}, {step}: {words}")

    def record_server(self, server: LabServer, host: Environment | None = None) -> None:
        """Record the server's version, and once the facts of the ``host``."""
        if not self.environment:
            facts: Environment = {
                "cpus": os.cpu_count(),
                "kernel": os.uname().release,
                "machine": os.uname().machine,
            }
            self.environment = {**(host or facts), "server": {}}
        self.environment["server"][server.label] = {"version": server.version}

    async def bench(self, server: LabServer, url: str | None = None, **values: Any) -> BenchResult:
        """Bench a lab server with the keys of a bench plan; ``server_pid`` is its main process."""
        return evaluate_bench(await self.bench_run(server, url, **values))

    async def bench_run(self, server: LabServer, url: str | None = None, **values: Any) -> BenchRun:
        """Like :meth:`bench`, with samples and complete histograms."""
        keys = {"urls": [url or server.url], "server_pid": server.pid, **values}
        run = await Bench(build_bench_plan([Layer("{key}", keys)]), label=server.label).run()
        self.record_server(server, run.environment)
        return run


# Not failures: asyncli was the limit, and claims on the server's speed exclude such rounds.
_BUSY = ("generator_saturated_cpu", "both_busy", "host_busy")


def fitness(*failures: str | None) -> dict[str, Any]:
    """``usable``: there are no ``failures``; ``unusable``: the failures as a text, or None."""
    reason = "; ".join(filter(None, failures))
    return {"usable": not reason, "unusable": reason or None}


def fitness_of(result: BenchResult) -> dict[str, Any]:
    """The :func:`fitness` of a bench: as many requests as asked for were answered, with a status
    below 400.
    """
    failures = []
    for finding in result.findings:
        if finding.severity == "error" and finding.code not in _BUSY:
            failures.append(finding.evidence)
    asked = result.plan.requests
    total = result.requests.total
    # The bench's own findings say more.
    if not failures and asked is not None and total != asked:
        failures.append(f"{total:,} of {asked:,} requests were answered")
    if not failures and not result.complete:
        failures.append("it was stopped early")
    if not total:
        failures.append("nothing was answered")
    return fitness(*failures)


def figures(result: BenchResult) -> dict[str, Any]:
    """A bench's figures by the keys of the experiments' tables."""
    times = result.times_ms["total"]
    latency = result.latency_ms
    return {
        **fitness_of(result),
        "per_s": result.requests.per_s,
        "failed": result.requests.failed,
        "resent": result.requests.resent,
        "total": result.requests.total,
        "duration_s": result.duration_s,
        "mean_ms": times and times.mean,
        "sd_ms": times and times.sd,
        "p50_ms": latency.p50,
        "p90_ms": latency.p90,
        "p99_ms": latency.p99,
        "p999_ms": latency.p999,
        "max_ms": latency.max,
        "opened": result.connections.opened,
        "client_us": result.generator.cpu_us_per_request,
        "server_us": result.server.cpu_us_per_request,
        "cpu_s": result.generator.cpu_s,
        "bytes": result.bytes,
        "busy": [finding.code for finding in result.findings if finding.code in _BUSY],
    }


async def run(
    experiment: Experiment,
    plan: ExperimentPlan,
    *,
    quick: bool = False,
    say: Callable[[str], None] = print,
    folder: Path | None = None,
) -> Record:
    """Run a plan of :func:`~asyncli.experiments.plan_of`; run files go to ``folder``. If cancelled,
    the record has what was measured and is not complete.
    """
    context = Context(plan, say, folder)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    begun = time.monotonic()
    complete = False
    try:
        await experiment.run(context)
        complete = True
    except asyncio.CancelledError:
        context.findings.append(stopped())
    except Exception as error:
        if not context.rounds:
            raise
        context.findings.append(ended_early(_describe(error)))
    try:
        conclusions = concluded(experiment, plan, context.rounds)
    except Exception as error:
        context.findings.append(not_concluded(_describe(error)))
        complete = False
        conclusions = Conclusions()
    if not counted(context.rounds):
        context.findings.append(untested())
    if quick:
        context.findings.append(quick_run())
    title, question = experiment.title_and_question(plan)
    return Record(
        schema=SCHEMA,
        experiment=experiment.name,
        title=title,
        question=question,
        source=experiment.cited,
        plan=msgspec.to_builtins(plan),
        quick=quick,
        started=started,
        duration_s=time.monotonic() - begun,
        complete=complete,
        rounds=context.rounds,
        conclusions=conclusions,
        findings=context.findings,
        environment=context.environment,
        command=command_of(experiment, plan, quick),
    )


def concluded(experiment: Experiment, plan: ExperimentPlan, rounds: list[Round]) -> Conclusions:
    """The conclusions of the usable rounds. Pure."""
    return experiment.conclude(plan, counted(rounds))


def counted(rounds: list[Round]) -> Rounds:
    """The usable rounds, for tables and claims."""
    return Rounds(measurement for measurement in rounds if measurement.get("usable", True))


def _describe(error: Exception) -> str:
    if isinstance(error, AsyncliError):
        return str(error)
    return f"{type(error).__name__}: {error}"
