"""Runs an experiment and makes its record, also of one that was stopped."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncli.errors import AsyncliError
from asyncli.experiments import Experiment, ExperimentPlan, command_of
from asyncli.experiments.context import Context
from asyncli.experiments.record import SCHEMA, Conclusions, Record, Round, Rounds
from asyncli.findings.experiment import ended_early, not_concluded, stopped, tasted, untested


async def run(
    experiment: Experiment,
    plan: ExperimentPlan,
    *,
    quick: bool = False,
    say: Callable[[str], None] = print,
    folder: Path | None = None,
) -> Record:
    """Run a plan of :func:`~asyncli.experiments.plan_of`; run files go to ``folder``. When cancelled it keeps what was measured,
    and the record is not complete."""
    context = Context(plan, say, folder)
    started, begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    complete = False
    try:
        await experiment.run(context)
        complete = True
    except asyncio.CancelledError:
        context.findings.append(stopped())
    except Exception as error:
        # Keep what was measured.
        if not context.rounds:
            raise
        context.findings.append(ended_early(_words(error)))
    try:
        conclusions = concluded(experiment, plan, context.rounds)
    except Exception as error:
        context.findings.append(not_concluded(_words(error)))
        complete, conclusions = False, Conclusions()
    if not counted(context.rounds):
        context.findings.append(untested())
    if quick:
        context.findings.append(tasted())
    title, question = experiment.said(plan)
    return Record(
        schema=SCHEMA,
        experiment=experiment.name,
        title=title,
        question=question,
        source=experiment.source,
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
    """The usable rounds; the others are only in the record."""
    return Rounds(one for one in rounds if one.get("usable", True))


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, AsyncliError) else f"{type(error).__name__}: {error}"
