"""Runs an experiment and makes its record, also of one that was stopped."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from typing import Any

from asyncli.errors import AsyncliError, PlanError
from asyncli.experiments import Experiment
from asyncli.experiments.context import Context
from asyncli.experiments.record import Record
from asyncli.records import Finding

SCHEMA = 1
#: The finding of an experiment that its user stopped.
STOPPED = "stopped"


async def run(experiment: Experiment, plan: dict[str, Any], *, quick: bool = False, say: Callable[[str], None] = print) -> Record:
    """All of it. Cancelled, it keeps what was measured, and its record is not complete."""
    context = Context(plan, say)
    started, begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    complete = False
    try:
        await experiment.run(context)
        if plan.get("only") and not context.rounds and not context.findings:
            raise PlanError(f"--only: none of {', '.join(plan['only'])} takes part; write one of {', '.join(context.servers)}")
        complete = True
    except asyncio.CancelledError:
        evidence = "it was stopped before its end: what follows is of what was measured"
        context.findings.append(Finding(STOPPED, "warning", evidence))
    except Exception as error:
        # What was measured is kept, whatever ends it.
        if not context.rounds:
            raise
        what = str(error) if isinstance(error, AsyncliError) else f"{type(error).__name__}: {error}"
        evidence = f"it ended before its time ({what}): what follows is of what was measured"
        context.findings.append(Finding("ended_early", "error", evidence))
    if quick:
        evidence = "a taste: few rounds, each of them short; its figures scatter more than a whole run's"
        context.findings.append(Finding("quick", "info", evidence, "run it without --quick"))
    return Record(
        schema=SCHEMA,
        experiment=experiment.name,
        title=experiment.title,
        question=experiment.question,
        source=experiment.source,
        plan=plan,
        quick=quick,
        started=started,
        duration_s=time.monotonic() - begun,
        complete=complete,
        rounds=context.rounds,
        conclusions=experiment.conclude(plan, context.rounds),
        findings=context.findings,
        environment=context.environment,
    )
